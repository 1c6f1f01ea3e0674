//! Events of ftrace as text: `trace` and `trace_pipe` of tracefs, `trace-cmd report`, `perf script`; plain or gzipped.
//!
//! # What it sees
//! A line an event: who ran on which CPU, when, which event, and what is printed of its fields, as
//! [`crate::kernel::rows`] makes rows of them; lines that say how many events were lost.
//!
//! # How
//! [`line`] takes a line apart, [`fields`] the text of an event, [`import`] merges files by time.
//!
//! # What fools it
//! A text says only what the kernel's `print fmt` prints, rounded to µs unless the tool was asked for ns. Names of
//! threads may hold anything: events that name threads are read by patterns that end with numbers ([`fields`]), and of
//! any other event a field that is printed twice is believed neither time. The first part of a line that looks like
//! `name-tid [cpu] time:` is its head.

mod fields;
mod frequent;
mod import;
mod line;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::importer::{Candidate, Import, Importer, Options};
use crate::kernel::feed::FeedImport;
use crate::kernel::rows::KernelRows;
use crate::{Result, signature};

/// How `trace` of tracefs begins.
const TRACER: &[u8] = b"# tracer:";

/// The importer.
pub(crate) struct FtraceText;

impl Importer for FtraceText {
    fn name(&self) -> &'static str {
        "ftrace text"
    }

    fn describes(&self) -> &'static str {
        "text of tracefs, trace-cmd report or perf script"
    }

    fn recognise(&self, candidate: &Candidate) -> bool {
        let unpacked;
        let head = match candidate.head.starts_with(signature::GZIP) {
            true => {
                unpacked = signature::gunzip(&candidate.head);
                &*unpacked
            }
            false => &*candidate.head,
        };
        head.starts_with(TRACER) || head.split(|byte| *byte == b'\n').any(line::is_event)
    }

    fn open(&self, paths: &[PathBuf], _options: &Options) -> Result<Box<dyn Import>> {
        let mut kernel = KernelRows::default();
        let feed = import::TextFeed::open(paths, &mut kernel)?;
        Ok(Box::new(FeedImport::new(feed, kernel)))
    }
}
