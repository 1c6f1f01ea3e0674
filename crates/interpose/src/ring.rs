//! What is seen inside kernels, as rows of the program in a trace that is recorded around it.

use std::sync::OnceLock;

use gpuwhy_wire::images::Name;
use gpuwhy_wire::{Event, NameId, Producer};

/// What names of the spans begin with, by which `gpuwhy diagnose` knows them; the kernel's name follows, if it is known.
const TAIL: &str = "kernel_imbalance";
const GAP: &str = "launch_latency";

/// The ring that the environment names; opened on a thread of the program, which may change its environment later.
pub fn open() -> &'static Producer {
    static RING: OnceLock<Producer> = OnceLock::new();
    RING.get_or_init(Producer::from_env)
}

/// Few blocks of a launch still ran, by our clock, ns.
pub fn tail(from: u64, to: u64, most: u64, kernel: Option<&Name>) {
    span(TAIL, from, to, kernel);
    let of = kernel.map_or("a launch", |kernel| &kernel.mangled);
    open().mark(format!("blocks before the tail of {of}").as_str(), Some(most as f64));
}

/// A launch was under way and nothing of the program ran, by our clock, ns.
pub fn gap(from: u64, to: u64, kernel: Option<&Name>) {
    span(GAP, from, to, kernel);
}

fn span(what: &str, from: u64, to: u64, kernel: Option<&Name>) {
    let ring = open();
    let dur = to.saturating_sub(from);
    let whole = kernel.map(|kernel| ring.name(&format!("{what}: {}", kernel.readable)));
    // Where there is no place for more names, the one without the kernel's.
    let name = whole.filter(|name| *name != NameId(0)).unwrap_or_else(|| ring.name(what));
    ring.write(Event::Phase { name, step: None, start: from, dur });
}
