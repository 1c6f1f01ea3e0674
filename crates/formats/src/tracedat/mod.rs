//! trace-cmd's `trace.dat`, versions 6 and 7: the pages of the kernel's ring buffers as they were, with the kernel's own
//! descriptions of its events.
//!
//! # What it sees
//! Every event of every CPU and instance with all its fields, as [`crate::kernel::rows`] makes rows of them; the names
//! of threads.
//!
//! # How
//! [`file`] reads headers, options and where the pages lie, [`cpu`] the pages of one CPU through a window
//! ([`crate::kernel::ring`]), and [`import`] merges all CPUs by time. In version 7, parts and pages may be compressed
//! ([`pack`]).
//!
//! # What fools it
//! Times are those of the kernel's clock, which by default (`local`) counts for each CPU by itself. Forks have used
//! numbers of options for something else: what is not of a known form is passed over and said.

mod cpu;
mod file;
mod import;
mod pack;

#[cfg(test)]
pub(crate) mod build;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
pub(crate) mod oracle_tests;

use std::path::PathBuf;

use crate::Result;
use crate::importer::{Candidate, Import, Importer, Options};
use crate::kernel::feed::FeedImport;
use crate::kernel::rows::KernelRows;
use crate::kernel::tracing_data::MAGIC;

/// The importer.
pub(crate) struct TraceDat;

impl Importer for TraceDat {
    fn name(&self) -> &'static str {
        "trace-cmd"
    }

    fn describes(&self) -> &'static str {
        "trace.dat"
    }

    fn recognise(&self, candidate: &Candidate) -> bool {
        candidate.head.starts_with(MAGIC)
    }

    fn open(&self, paths: &[PathBuf], _options: &Options) -> Result<Box<dyn Import>> {
        let mut kernel = KernelRows::default();
        let feed = import::DatFeed::open(paths, &mut kernel)?;
        Ok(Box::new(FeedImport::new(feed, kernel)))
    }
}
