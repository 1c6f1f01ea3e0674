//! What is seen inside kernels, as rows of the program in a trace that is recorded around it.

use std::sync::OnceLock;

use gpuwhy_wire::{Event, Producer};

/// The names of the spans, by which `gpuwhy diagnose` knows them.
const TAIL: &str = "kernel_imbalance";
const GAP: &str = "launch_latency";

/// The ring that the environment names; opened on a thread of the program, which may change its environment later.
pub fn open() -> &'static Producer {
    static RING: OnceLock<Producer> = OnceLock::new();
    RING.get_or_init(Producer::from_env)
}

/// Few blocks of a launch still ran, by our clock, ns.
pub fn tail(from: u64, to: u64, most: u64) {
    span(TAIL, from, to);
    open().mark("blocks before the tail of a launch", Some(most as f64));
}

/// A launch was under way and nothing of the program ran, by our clock, ns.
pub fn gap(from: u64, to: u64) {
    span(GAP, from, to);
}

fn span(name: &str, from: u64, to: u64) {
    let ring = open();
    let (name, dur) = (ring.name(name), to.saturating_sub(from));
    ring.write(Event::Phase { name, step: None, start: from, dur });
}
