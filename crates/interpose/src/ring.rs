//! What is seen inside kernels, as rows of the program in a trace that is recorded around it.

use std::sync::OnceLock;

use gpuwhy_wire::{Event, Producer};

/// The name of the spans, by which `gpuwhy diagnose` knows them.
const NAME: &str = "kernel_imbalance";

/// The ring that the environment names; opened on a thread of the program, which may change its environment later.
pub fn open() -> &'static Producer {
    static RING: OnceLock<Producer> = OnceLock::new();
    RING.get_or_init(Producer::from_env)
}

/// Few blocks of a launch still ran, by our clock, ns.
pub fn tail(from: u64, to: u64, most: u64) {
    let ring = open();
    let (name, dur) = (ring.name(NAME), to.saturating_sub(from));
    ring.write(Event::Phase { name, step: None, start: from, dur });
    ring.mark("blocks before the tail of a launch", Some(most as f64));
}
