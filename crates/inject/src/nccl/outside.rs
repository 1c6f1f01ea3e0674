//! What the tracker needs from outside: a clock, and a ring to write to. Tests have their own.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use gpuwhy_wire::{Event, NameId};

/// A ring, or a test's list.
pub trait Sink {
    /// Not 0; another one for each ring, whose names have other numbers and whose agent has received
    /// nothing yet.
    fn generation(&self) -> u64;
    /// The number of a name.
    fn name(&self, name: &str) -> NameId;
    /// Writes an event.
    fn write(&self, event: Event);
}

/// Clock and ring.
pub trait Outside: Sync {
    /// CLOCK_MONOTONIC, ns.
    fn now(&self) -> u64;
    /// Calls `f` with the ring, if an agent wants records.
    fn with(&self, f: impl FnOnce(&dyn Sink));
}

/// Whether the agent wants no records of NCCL.
pub static UNWANTED: AtomicBool = AtomicBool::new(false);

/// Those of the process.
pub struct Process;

impl Outside for Process {
    #[inline]
    fn now(&self) -> u64 {
        gpuwhy_wire::now()
    }

    #[inline]
    fn with(&self, f: impl FnOnce(&dyn Sink)) {
        if !UNWANTED.load(Relaxed) {
            crate::ring::with(|ring| f(ring));
        }
    }
}

impl Sink for crate::ring::Ring {
    #[inline]
    fn generation(&self) -> u64 {
        self.generation
    }

    #[inline]
    fn name(&self, name: &str) -> NameId {
        self.name(name)
    }

    #[inline]
    fn write(&self, event: Event) {
        self.write(event);
    }
}
