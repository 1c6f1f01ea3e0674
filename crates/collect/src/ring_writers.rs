//! Who writes to the ring of marked steps.
//!
//! The ring is one file, and a record in it names its writer by the pid of the writer's own namespace.
//! Whoever may write to the file may write any pid. A pid is taken for a process of this host only if
//! that process has the ring mapped and has this very number in its own namespace; everybody else is a
//! process of its own, `ring/OWN-PID`, without a number here, and no target. *What fools it*: two
//! writers of one ring can pretend to be each other, and processes that map the ring in different
//! containers and have the same number there cannot be told apart, so that neither is believed. The
//! file's rights decide who can do so: it is its owner's alone.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Ns, SourceId};
use gpuwhy_wire::PidFd;

use crate::context::Context;
use crate::event_rows::EventRows;
use crate::guest::Guest;
use crate::procfs::Proc;
use crate::quota::{self, Bucket};

/// What the mappings of a process cost, in files that are looked up.
const MAPS: u64 = 8;

/// Processes of the host that are looked at to find a writer.
const PROCESSES: usize = 4096;

/// The writers of one ring.
pub(crate) struct RingWriters {
    proc: Proc,
    /// The ring's file, as a `maps` has it.
    device: String,
    inode: u64,
    source: SourceId,
    /// By the pids of their own namespaces.
    writers: HashMap<u32, Writer>,
    /// The number of the last guest.
    last: u32,
    look_ups: Bucket,
    now: Ns,
}

struct Writer {
    guest: u32,
    /// Tells when it has ended; `None` for who cannot be verified.
    process: Option<PidFd>,
}

impl RingWriters {
    /// Of the ring that lies in this file.
    pub fn of(file: &File, source: SourceId) -> RingWriters {
        let (device, inode) = file.metadata().map_or((0, 0), |meta| (meta.dev(), meta.ino()));
        let (major, minor) = (libc::major(device), libc::minor(device));
        RingWriters {
            proc: Proc::default(),
            device: format!("{major:02x}:{minor:02x}"),
            inode,
            source,
            writers: HashMap::new(),
            last: 0,
            look_ups: Bucket::new(quota::WRITER_LOOK_UPS),
            now: Ns::ZERO,
        }
    }

    /// A tick begins: the writers that have ended, whose last records are in the ring by now.
    pub fn ended(&mut self, now: Ns) -> Vec<u32> {
        self.now = now;
        self.look_ups.refill(now);
        let over = |(pid, writer): (&u32, &Writer)| {
            writer.process.as_ref().is_some_and(PidFd::has_exited).then_some(*pid)
        };
        self.writers.iter().filter_map(over).collect()
    }

    /// The writer with this number has ended: the number may be another one's.
    pub fn remove(&mut self, own_pid: u32) -> Option<u32> {
        self.writers.remove(&own_pid).map(|writer| writer.guest)
    }

    /// A guest has ended, for `EventRows` has ended it.
    pub fn forget(&mut self, guest: u32) {
        self.writers.retain(|_, writer| writer.guest != guest);
    }

    /// The guest that wrote a record with this pid; `None` if there are too many.
    pub fn guest(&mut self, own_pid: u32, rows: &mut EventRows, cx: &mut Context) -> Option<u32> {
        if let Some(writer) = self.writers.get(&own_pid) {
            return Some(writer.guest);
        }
        if self.writers.len() >= quota::WRITERS {
            return None;
        }
        self.last += 1;
        let found = self.find(own_pid).and_then(|pid| self.verify(pid, own_pid, cx));
        let (guest, process) = match found {
            Some((guest, process)) => (guest, Some(process)),
            None => {
                // The number keeps it apart from the next one with this pid.
                let key = format!("ring/{own_pid}.{}.{}", self.source.0, self.last);
                (Guest::unverified(&mut cx.catalog, cx.host, &key, own_pid), None)
            }
        };
        rows.add(self.last, guest, cx);
        self.writers.insert(own_pid, Writer { guest: self.last, process });
        Some(self.last)
    }

    /// The only process that maps the ring and has this number in its own namespace.
    fn find(&mut self, own_pid: u32) -> Option<u32> {
        // One of our own namespace, as nearly all are.
        if self.is_writer(own_pid, own_pid) {
            return Some(own_pid);
        }
        let mut found = None;
        for pid in self.proc.processes(PROCESSES) {
            if pid != own_pid && self.is_writer(pid, own_pid) && found.replace(pid).is_some() {
                return None;
            }
        }
        found
    }

    fn is_writer(&mut self, pid: u32, own_pid: u32) -> bool {
        self.look_ups.take(1)
            && self.proc.namespace_pids(pid).last() == Some(&own_pid)
            && self.look_ups.take(MAPS)
            && self.proc.maps_file(pid, &self.device, self.inode)
    }

    /// That process, with what tells its end; nothing if it has ended meanwhile.
    fn verify(&mut self, pid: u32, own_pid: u32, cx: &mut Context) -> Option<(Guest, PidFd)> {
        let process = PidFd::open(i32::try_from(pid).ok()?).ok()?;
        // Again, since the number could have been given to another one before the descriptor was had.
        let is_same = self.is_writer(pid, own_pid);
        let lives = || is_same && !process.has_exited();
        let guest = cx.attribution.guest(&mut cx.catalog, pid, lives)?;
        Some((guest, process))
    }
}
