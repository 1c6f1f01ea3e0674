//! The client: what a program calls to report its steps.
//!
//! ```
//! use gpuwhy_wire::Producer;
//!
//! let gpuwhy = Producer::from_env(); // does nothing unless GPUWHY_RING names a ring
//! for batch in [32, 64] {
//!     let step = gpuwhy.step("step").size(batch).rank(0);
//!     {
//!         let _load = step.phase("load");
//!         // read the batch
//!     }
//!     gpuwhy.mark("loaded", Some(batch as f64));
//! } // the step ends here
//! ```

use std::path::Path;
use std::sync::Arc;

use crate::clock::now;
use crate::map::{Error, Map};
use crate::record::{Event, NameId, Record, encode};
use crate::thread;

/// The environment variable that holds the path of the ring.
pub const ENV: &str = "GPUWHY_RING";

/// Writes records, from any thread; copies are cheap and write to the same ring. Without a ring,
/// every call is a branch.
#[derive(Clone, Debug, Default)]
pub struct Producer {
    map: Option<Arc<Map>>,
}

/// A name: text, or the number that [`Producer::name`] gave for it, which saves the look-up.
pub trait Label {
    /// Its number in the ring of `producer`.
    fn id(&self, producer: &Producer) -> NameId;
}

impl Label for NameId {
    #[inline]
    fn id(&self, _: &Producer) -> NameId {
        *self
    }
}

impl Label for &str {
    #[inline]
    fn id(&self, producer: &Producer) -> NameId {
        producer.name(self)
    }
}

impl Producer {
    /// A producer that writes nowhere.
    pub const fn none() -> Producer {
        Producer { map: None }
    }

    /// Opens the ring at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Bad`] for files that cannot be opened or are no rings.
    pub fn open(path: impl AsRef<Path>) -> Result<Producer, Error> {
        Ok(Producer { map: Some(Arc::new(Map::open(path.as_ref())?)) })
    }

    /// A producer for a ring that an agent sent.
    pub(crate) fn of(ring: std::os::fd::OwnedFd) -> Result<Producer, Error> {
        Ok(Producer { map: Some(Arc::new(Map::of(ring)?)) })
    }

    /// Opens the ring that [`ENV`] names. Without it, or if it names no ring, the producer writes nowhere:
    /// a program must not fail because it is not recorded.
    pub fn from_env() -> Producer {
        match std::env::var_os(ENV) {
            Some(path) if !path.is_empty() => Producer::open(path).unwrap_or_default(),
            _ => Producer::none(),
        }
    }

    /// The ring itself, for tests that play a hostile process.
    #[doc(hidden)]
    pub fn raw(&self) -> Option<&crate::ring::RawRing> {
        self.map.as_ref().map(|map| &map.raw)
    }

    /// Whether there is a ring.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.map.is_some()
    }

    /// The number of a name in this ring, to be used instead of the text.
    #[inline]
    pub fn name(&self, name: &str) -> NameId {
        self.map.as_ref().map_or(NameId(0), |map| map.raw.intern(name))
    }

    /// Writes one event of the calling thread.
    #[inline]
    pub fn write(&self, event: Event) {
        if let Some(map) = &self.map {
            let (pid, tid) = thread::ids();
            map.raw.push(&mut encode(&Record { pid, tid, event }));
        }
    }

    /// Writes one event of another thread of this process.
    #[inline]
    pub fn write_as(&self, tid: u32, event: Event) {
        if let Some(map) = &self.map {
            let (pid, _) = thread::ids();
            map.raw.push(&mut encode(&Record { pid, tid, event }));
        }
    }

    /// Begins a step of the calling thread, which ends when the value is dropped.
    #[inline]
    pub fn step(&self, name: impl Label) -> Step<'_> {
        if !self.is_on() {
            let (name, start, seq) = (NameId(0), 0, 0);
            return Step { producer: self, name, seq, size: None, rank: None, start };
        }
        Step {
            producer: self,
            name: name.id(self),
            seq: thread::next_step(),
            size: None,
            rank: None,
            start: now(),
        }
    }

    /// Begins a phase that belongs to no step, which ends when the value is dropped.
    #[inline]
    pub fn phase(&self, name: impl Label) -> Phase<'_> {
        self.begin_phase(name, None)
    }

    #[inline]
    fn begin_phase(&self, name: impl Label, step: Option<u64>) -> Phase<'_> {
        if !self.is_on() {
            return Phase { producer: self, name: NameId(0), step, start: 0 };
        }
        Phase { producer: self, name: name.id(self), step, start: now() }
    }

    /// Reports that something happened now. A value that is not finite is left out.
    #[inline]
    pub fn mark(&self, name: impl Label, value: Option<f64>) {
        if self.is_on() {
            let value = value.filter(|v| v.is_finite());
            self.write(Event::Mark { name: name.id(self), at: now(), value });
        }
    }

    /// Reports a measurement of now, in a UCUM unit, of a GPU of this process or of the process itself.
    /// Nothing is reported if the value is not finite.
    #[inline]
    pub fn counter(&self, name: impl Label, unit: impl Label, device: Option<u16>, value: f64) {
        if self.is_on() && value.is_finite() {
            let (name, unit) = (name.id(self), unit.id(self));
            self.write(Event::Counter { name, unit, device, at: now(), value });
        }
    }

    /// A stream of a GPU of this process, for launches and kernels.
    pub const fn stream(&self, device: u16, stream: u32) -> Stream<'_> {
        Stream { producer: self, device, stream }
    }
}

/// A step that has begun; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the step ends when this is dropped"]
pub struct Step<'a> {
    producer: &'a Producer,
    name: NameId,
    seq: u64,
    size: Option<i64>,
    rank: Option<u32>,
    start: u64,
}

impl<'a> Step<'a> {
    /// How much there is to do, in the workload's own unit.
    #[inline]
    pub fn size(mut self, size: i64) -> Step<'a> {
        self.size = Some(size);
        self
    }

    /// The rank that takes the step.
    #[inline]
    pub fn rank(mut self, rank: u32) -> Step<'a> {
        self.rank = Some(rank);
        self
    }

    /// The step's number, where the workload has numbers of its own.
    #[inline]
    pub fn seq(mut self, seq: u64) -> Step<'a> {
        self.seq = seq;
        self
    }

    /// Writes that the step has begun, so that it is seen even if it never ends.
    #[inline]
    pub fn open(self) -> Step<'a> {
        let Step { name, seq, size, rank, start, .. } = self;
        self.producer.write(Event::StepOpen { name, seq, size, rank, start });
        self
    }

    /// Begins a phase of this step, which ends when the value is dropped.
    #[inline]
    pub fn phase(&self, name: impl Label) -> Phase<'a> {
        self.producer.begin_phase(name, Some(self.seq))
    }

    /// When the step began, CLOCK_MONOTONIC ns; 0 without a ring.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Ends the step.
    #[inline]
    pub fn end(self) {}
}

impl Drop for Step<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.producer.is_on() {
            let Step { name, seq, size, rank, start, .. } = *self;
            let dur = now().saturating_sub(start);
            self.producer.write(Event::Step { name, seq, size, rank, start, dur });
        }
    }
}

/// A phase that has begun; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the phase ends when this is dropped"]
pub struct Phase<'a> {
    producer: &'a Producer,
    name: NameId,
    step: Option<u64>,
    start: u64,
}

impl Phase<'_> {
    /// Ends the phase.
    #[inline]
    pub fn end(self) {}
}

impl Drop for Phase<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.producer.is_on() {
            let Phase { name, step, start, .. } = *self;
            let dur = now().saturating_sub(start);
            self.producer.write(Event::Phase { name, step, start, dur });
        }
    }
}

/// A stream of a GPU, whose launches and kernels are reported.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    producer: &'a Producer,
    device: u16,
    stream: u32,
}

impl Stream<'_> {
    /// Reports a call that launched work, from `start` to `end`, CLOCK_MONOTONIC ns.
    #[inline]
    pub fn launch(&self, name: impl Label, correlation: u64, start: u64, end: u64) {
        if self.producer.is_on() {
            let (name, dur) = (name.id(self.producer), end.saturating_sub(start));
            let (device, stream) = (self.device, self.stream);
            self.producer.write(Event::Launch { name, device, stream, correlation, start, dur });
        }
    }

    /// Reports work that ran on the stream from `start` to `end`, CLOCK_MONOTONIC ns.
    #[inline]
    pub fn kernel(&self, name: impl Label, correlation: u64, start: u64, end: u64) {
        if self.producer.is_on() {
            let (name, dur) = (name.id(self.producer), end.saturating_sub(start));
            let (device, stream) = (self.device, self.stream);
            let graph = None;
            self.producer.write(Event::Kernel {
                name,
                device,
                stream,
                correlation,
                graph,
                start,
                dur,
            });
        }
    }
}
