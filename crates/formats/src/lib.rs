//! Files of other tools, in and out: each module knows one format.
//!
//! Traces of other tools are imported through [`importer::Importer`], whose implementations
//! [`importers`] lists; [`perfetto`] exports ours. [`sqlite`] reads and writes the databases of Nsight
//! Systems.
//!
//! *Invariant:* this crate knows rows and bytes. It knows no source of live data, no trace
//! directory and nothing of findings and causes.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod align;
mod ctf;
mod error;
mod ftracetext;
#[cfg(test)]
mod imported;
pub mod importer;
pub mod importers;
pub mod kernel;
mod kineto;
pub mod left_out;
mod nsys;
mod perfdata;
pub mod perfetto;
mod pftrace;
mod read_ahead;
mod signature;
mod sorter;
pub mod sqlite;
mod tracedat;

pub use error::{Error, Result};

/// The directory of other tools' traces, for tests that read them; says so where there is none.
#[cfg(test)]
fn shared_data() -> Option<std::path::PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let path = std::env::var_os("GPUWHY_TRACES").unwrap_or_else(|| beside.into());
    let path = std::path::PathBuf::from(path);
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: GPUWHY_TRACES names no directory of other tools' traces");
    None
}

/// The lines of a CSV file, each as its values by column.
#[cfg(test)]
fn csv(path: &std::path::Path) -> Vec<std::collections::BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    reader.deserialize().map(Result::unwrap).collect()
}
