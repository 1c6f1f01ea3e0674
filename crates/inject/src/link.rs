//! The way to the collector: the ring to write to, if there is one now.

use std::sync::OnceLock;

use gpuwhy_wire::{Event, NameId, Producer};

/// A ring to write to.
#[derive(Debug)]
pub struct Ring {
    producer: Producer,
    /// Names have other numbers in another ring: caches of them are kept with this.
    pub generation: u64,
}

impl Ring {
    /// The number of a name in this ring.
    pub fn name(&self, name: &str) -> NameId {
        self.producer.name(name)
    }

    /// Writes one event, or counts that there was no room for it.
    pub fn write(&self, event: Event) {
        self.producer.write(event);
    }
}

/// Gives `f` the ring, if a collector listens. Never waits.
pub fn with<R>(f: impl FnOnce(&Ring) -> R) -> Option<R> {
    static RING: OnceLock<Ring> = OnceLock::new();
    let ring = RING.get_or_init(|| Ring { producer: Producer::from_env(), generation: 1 });
    ring.producer.is_on().then(|| f(ring))
}
