//! Traces of the PyTorch profiler (Kineto): Chrome's JSON, plain or gzipped.
//!
//! # What it sees
//! Kernels, copies and memsets on their streams; calls of the CUDA or HIP runtime, operators,
//! annotations and Python functions on their threads; marks and counters. All spellings since 2021:
//! an object or a bare array, times as numbers or texts, categories in old and new names.
//!
//! # How
//! The text is read once, from beginning to end, and never held as a whole; [`file::File::next`] hands
//! out rows in the order of events. Times are read as decimal numbers and kept to the nanosecond.
//!
//! # What fools it
//! Events are not sorted, so it is known only at the end whether calls of a thread nest. Flow events
//! repeat what `correlation` says and are only counted.

mod align;
mod event;
mod file;
mod identity;
mod import;
mod job;
mod reader;
mod rows;
mod survey;
mod text;
mod timestamps;
mod tracks;

use std::path::PathBuf;

use crate::Result;
use crate::importer::{Candidate, Import, Importer, Options};
use crate::signature::{GZIP, gunzip};

/// The importer.
pub(crate) struct Kineto;

impl Importer for Kineto {
    fn name(&self) -> &'static str {
        "PyTorch profiler"
    }

    fn describes(&self) -> &'static str {
        "Chrome's JSON with `traceEvents`, .json or .json.gz"
    }

    fn recognise(&self, candidate: &Candidate) -> bool {
        let inflated;
        let head = if candidate.head.starts_with(GZIP) {
            inflated = gunzip(&candidate.head);
            // One that cannot be decompressed is reported by `open`, with the place of the damage.
            if inflated.is_empty() {
                return candidate.path.to_string_lossy().contains(".json");
            }
            &inflated
        } else {
            &candidate.head
        };
        let text = reader::without_mark(head).trim_ascii_start();
        match text.first() {
            // JSON in UTF-16 is reported by `open`, with what to do.
            Some(0xff | 0xfe) if candidate.path.to_string_lossy().contains(".json") => true,
            // An array of events, or cut off.
            Some(b'[') => matches!(text[1..].trim_ascii_start().first(), None | Some(b'{' | b']')),
            // Damage before the events is reported by `open`, too.
            Some(b'{') => reader::Reader::has_events(&candidate.path).unwrap_or(true),
            _ => false,
        }
    }

    fn open(&self, paths: &[PathBuf], _options: &Options) -> Result<Box<dyn Import>> {
        Ok(Box::new(import::KinetoImport::open(paths)?))
    }
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod others_tests;
#[cfg(test)]
mod tests;
