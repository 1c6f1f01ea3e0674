//! The consumer: takes records out of the ring and gives their names back.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use crate::layout::NAME_BYTES;
use crate::map::{Error, Map};
use crate::record::{NameId, Record};
use crate::ring::{Lost, Tail, Taken};

/// What one [`Consumer::drain`] took and missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records given to the callback.
    pub records: u64,
    /// Records that found the ring full, since the last call.
    pub lost: u64,
    /// Slots that held no whole record.
    pub torn: u64,
    /// Slots whose producer died or was stopped before it had finished.
    pub abandoned: u64,
    /// Counts of lost records that were overwritten, so that nothing is known of them.
    pub garbage: u64,
    /// A producer is in the middle of a record; there may be records after it, for the next call.
    pub waiting: bool,
}

impl Drained {
    /// All that was missed: lost, torn, abandoned, and counts that were garbage.
    pub fn missed(&self) -> u64 {
        let parts = [self.lost, self.torn, self.abandoned, self.garbage];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Slots that were looked at.
    pub fn slots(&self) -> u64 {
        self.records.saturating_add(self.torn).saturating_add(self.abandoned)
    }

    /// Adds what another one took and missed. The counts are another process's, and so may be anything.
    pub fn add(&mut self, other: Drained) {
        let Drained { records, lost, torn, abandoned, garbage, waiting } = other;
        for (sum, more) in [
            (&mut self.records, records),
            (&mut self.lost, lost),
            (&mut self.torn, torn),
            (&mut self.abandoned, abandoned),
            (&mut self.garbage, garbage),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.waiting |= waiting;
    }
}

/// The one consumer of a ring.
#[derive(Debug)]
pub struct Consumer {
    // Before `map`, whose memory it uses.
    tail: Tail,
    names: Names,
    map: Map,
}

/// Names that have been read; at most as many as the ring has places.
#[derive(Debug)]
struct Names {
    by_id: Vec<Option<Arc<str>>>,
    unnamed: Arc<str>,
}

impl Names {
    fn load(&mut self, tail: &Tail, id: NameId) {
        let Some(index) = (id.0 as usize).checked_sub(1) else { return };
        if let Some(Some(_)) = self.by_id.get(index) {
            return;
        }
        let mut buffer = [0u8; NAME_BYTES];
        let Some(bytes) = tail.ring().name(id, &mut buffer) else { return };
        if self.by_id.len() <= index {
            self.by_id.resize(index + 1, None);
        }
        let text: String = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
        self.by_id[index] = Some(text.into());
    }

    fn get(&self, id: NameId) -> &Arc<str> {
        let index = (id.0 as usize).checked_sub(1);
        index.and_then(|i| self.by_id.get(i)?.as_ref()).unwrap_or(&self.unnamed)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // By closing alone, a child that was forked meanwhile would keep the lock until its exec.
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.map.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

impl Consumer {
    /// The name of a record whose name found no place in the ring or cannot be read.
    pub const UNNAMED: &str = "?";
    /// How long a producer may take between reserving a slot and publishing it. It needs tens of ns, but
    /// may lose its CPU in between.
    pub const PATIENCE_NS: u64 = 100_000_000;

    /// Becomes the ring's consumer, and continues where the last one stopped.
    ///
    /// # Errors
    /// [`Error::Busy`] while another consumer lives, [`Error::Io`] and [`Error::Bad`] for files
    /// that cannot be opened or are not rings.
    pub fn open(path: impl AsRef<Path>) -> Result<Consumer, Error> {
        Consumer::open_with(path, Consumer::PATIENCE_NS)
    }

    /// As [`Consumer::open`], with another patience.
    ///
    /// # Errors
    /// As [`Consumer::open`].
    pub fn open_with(path: impl AsRef<Path>, patience_ns: u64) -> Result<Consumer, Error> {
        let path = path.as_ref();
        let map = Map::open(path)?;
        // The kernel drops the lock with the descriptor, also when the consumer is killed.
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(map.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(Error::Busy { path: path.to_owned() });
        }
        let tail = Tail::new(map.raw, patience_ns);
        Ok(Consumer {
            tail,
            names: Names { by_id: Vec::new(), unnamed: Consumer::UNNAMED.into() },
            map,
        })
    }

    /// The consumer of a ring that this process made and that has no other consumer.
    pub fn of(ring: crate::map::Ring) -> Consumer {
        let map = ring.into_map();
        let tail = Tail::new(map.raw, Consumer::PATIENCE_NS);
        Consumer {
            tail,
            names: Names { by_id: Vec::new(), unnamed: Consumer::UNNAMED.into() },
            map,
        }
    }

    /// Calls `f` with the records of at most `max` slots, oldest first, and never reads more slots than
    /// the ring has. Does not wait. Equal names share one allocation.
    pub fn drain(&mut self, max: usize, f: impl FnMut(Record<&Arc<str>>)) -> Drained {
        self.drain_at(crate::clock::now(), max, f)
    }

    /// As [`Consumer::drain`] at a time of any clock of ns that does not go back.
    pub fn drain_at(
        &mut self,
        now: u64,
        max: usize,
        mut f: impl FnMut(Record<&Arc<str>>),
    ) -> Drained {
        let mut drained = Drained::default();
        match self.tail.lost() {
            Lost::Records(lost) => drained.lost = lost,
            Lost::Garbage => drained.garbage = 1,
        }
        for _ in 0..max.min(self.map.raw.slots() as usize) {
            match self.tail.take(now) {
                Taken::Record(record) => {
                    drained.records += 1;
                    let (tail, names) = (&self.tail, &mut self.names);
                    record.named(|id| names.load(tail, id));
                    f(record.named(|id| names.get(id)));
                }
                Taken::Torn => drained.torn += 1,
                Taken::Abandoned => drained.abandoned += 1,
                Taken::Waiting => {
                    drained.waiting = true;
                    break;
                }
                Taken::Empty => break,
            }
        }
        drained
    }

    /// How many slots wait to be taken, as far as the ring can be believed.
    pub fn reserved(&self) -> u64 {
        self.tail.reserved()
    }

    /// The file that the ring lies in.
    pub fn file(&self) -> &std::fs::File {
        &self.map.file
    }

    pub(crate) fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.map.file.as_raw_fd()
    }

    /// Where the ring is.
    pub fn path(&self) -> &Path {
        &self.map.path
    }
}
