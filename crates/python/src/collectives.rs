//! Collectives of `torch.distributed`, for Python to write.

use gpuwhy_wire::Event;
use pyo3::prelude::*;

use crate::late::{Said, say, write};

/// A communicator of this process: its number here, its identity, which is equal on all ranks, this process's rank,
/// and how many ranks there are.
#[pyfunction]
pub fn write_communicator(name: &str, communicator: u16, id: u64, rank: u32, ranks: u32) {
    say(Said::Communicator(name.to_owned(), communicator, id, rank, ranks));
}

/// A collective of this rank from `start` to `end`, CLOCK_MONOTONIC ns; `seq` is its number within its communicator and
/// operation, equal on all ranks.
#[pyfunction]
pub fn write_collective(name: &str, communicator: u16, seq: u64, bytes: u64, start: u64, end: u64) {
    write(|ring| Event::Collective {
        name: ring.name(name),
        communicator,
        seq,
        bytes,
        how: ring.name(""),
        on_gpu: false,
        start,
        dur: end.saturating_sub(start),
    });
}
