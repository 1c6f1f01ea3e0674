//! Traces of Perfetto (`.pftrace`): the events of ftrace in them.
//!
//! # What it sees
//! Events whose fields `events.txt` lists (scheduler, interrupts, block requests, DRM scheduler, fences, virtio-gpu, KVM and
//! others), events that Perfetto itself has no type for, in both encodings, and scheduler events in the compact one.
//! Names and processes of threads from the process tree.
//!
//! # How
//! [`wire`] takes messages apart without knowing them, [`packets`] reads packet after packet, also compressed ones,
//! [`types`] says which event and field a number stands for, and [`import`] brings events into the order of time.
//!
//! # What fools it
//! A bundle holds events of one CPU, and bundles come in the order in which buffers were read. 128 MiB of events are
//! brought into order; what comes later still keeps its time and is counted.

mod import;
mod packets;
mod types;
mod wire;

#[cfg(test)]
mod build;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::Result;
use crate::importer::{Candidate, Import, Importer, Options};
use crate::kernel::feed::FeedImport;
use crate::kernel::rows::KernelRows;

/// The importer.
pub(crate) struct Pftrace;

impl Importer for Pftrace {
    fn name(&self) -> &'static str {
        "Perfetto"
    }

    fn describes(&self) -> &'static str {
        ".pftrace"
    }

    fn recognise(&self, candidate: &Candidate) -> bool {
        packets::looks_like_packets(&candidate.head)
    }

    fn open(&self, paths: &[PathBuf], _options: &Options) -> Result<Box<dyn Import>> {
        let mut kernel = KernelRows::default();
        let feed = import::PftraceFeed::open(paths, &mut kernel)?;
        Ok(Box::new(FeedImport::new(feed, kernel)))
    }
}
