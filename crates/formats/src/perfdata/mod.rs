//! `perf.data` of Linux perf, files and what `perf record -o -` writes into a pipe: tracepoints with their fields, and
//! samples of other events.
//!
//! # What it sees
//! Every sample: of a tracepoint all its fields, by the kernel's own descriptions, as [`crate::kernel::rows`] makes rows
//! of them; of a counter or clock a mark with the address and the period. Names and processes of threads.
//!
//! # How
//! [`file`] reads what was recorded, [`layout`] the fields of a sample by its event's `sample_type`, [`records`] one record
//! after the other, decompressed where they are compressed, and [`import`] brings them into the order of time (Linux,
//! tools/perf/Documentation/perf.data-file-format.txt; include/uapi/linux/perf_event.h).
//!
//! # What fools it
//! Records of several CPUs are in the order of time from one round of perf to the next but one only. Where there are no rounds,
//! 256 MiB of records are brought into order, and what comes later still keeps its time and is counted.

mod file;
mod import;
mod layout;
mod records;

#[cfg(test)]
mod build;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
pub(crate) mod oracle_tests;

use std::path::PathBuf;

use crate::Result;
use crate::importer::{Candidate, Import, Importer, Options};
use crate::kernel::feed::FeedImport;
use crate::kernel::rows::KernelRows;

/// The importer.
pub(crate) struct PerfData;

impl Importer for PerfData {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn describes(&self) -> &'static str {
        "perf.data"
    }

    fn recognise(&self, candidate: &Candidate) -> bool {
        candidate.head.starts_with(file::LITTLE) || candidate.head.starts_with(file::BIG)
    }

    fn open(&self, paths: &[PathBuf], _options: &Options) -> Result<Box<dyn Import>> {
        let mut kernel = KernelRows::default();
        let feed = import::PerfFeed::open(paths, &mut kernel)?;
        Ok(Box::new(FeedImport::new(feed, kernel)))
    }
}
