//! Collectives of `torch.distributed`, for Python to write.

use gpuwhy_wire::{Event, now};
use pyo3::prelude::*;

use crate::marks::ring;

/// A communicator of this process: its number here, its identity, which is equal on all ranks, this process's rank,
/// and how many ranks there are.
#[pyfunction]
pub fn write_communicator(name: &str, communicator: u16, id: u64, rank: u32, ranks: u32) {
    let name = ring().name(name);
    ring().write(Event::Communicator { name, communicator, id, rank, ranks, at: now() });
}

/// A collective of this rank from `start` to `end`, CLOCK_MONOTONIC ns; `seq` is its number within its communicator and
/// operation, equal on all ranks.
#[pyfunction]
pub fn write_collective(name: &str, communicator: u16, seq: u64, bytes: u64, start: u64, end: u64) {
    let (name, how, dur) = (ring().name(name), ring().name(""), end.saturating_sub(start));
    ring().write(Event::Collective {
        name,
        communicator,
        seq,
        bytes,
        how,
        on_gpu: false,
        start,
        dur,
    });
}
