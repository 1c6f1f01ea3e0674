//! Other people's files, in and out: one module knows one format.
//!
//! *Invariant:* this crate knows rows and bytes. It knows no source of live data, no trace
//! directory and no judgement.

#![forbid(unsafe_code)]

mod error;
pub mod kineto;
pub mod nsys;
pub mod perfetto;
pub mod sqlite;

pub use error::{Error, Result};

/// Where traces that others made lie, for tests that read them.
#[cfg(test)]
fn shared_data() -> Option<std::path::PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let path = std::env::var_os("GPUWHY_TRACES").unwrap_or_else(|| beside.into());
    let path = std::path::PathBuf::from(path);
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: GPUWHY_TRACES names no directory of other people's traces");
    None
}

/// Lines of a CSV file: values by column.
#[cfg(test)]
fn csv(path: &std::path::Path) -> Vec<std::collections::BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    reader.deserialize().map(Result::unwrap).collect()
}
