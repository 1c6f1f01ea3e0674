//! What the door needs of the world: a clock and somebody who listens. The tests have their own.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use gpuwhy_wire::{Event, NameId};

/// A ring, or a test's list.
pub trait Sink {
    /// Changes when names get other numbers and a new listener knows nothing yet; not 0.
    fn generation(&self) -> u64;
    /// The number of a name.
    fn name(&self, name: &str) -> NameId;
    /// Takes an event.
    fn write(&self, event: Event);
}

/// Clock and listener.
pub trait Outside: Sync {
    /// CLOCK_MONOTONIC, ns.
    fn now(&self) -> u64;
    /// Calls `f` if somebody listens.
    fn with(&self, f: impl FnOnce(&dyn Sink));
}

/// Whether a collector listens that wants nothing of NCCL.
pub static UNWANTED: AtomicBool = AtomicBool::new(false);

/// The real ones.
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
