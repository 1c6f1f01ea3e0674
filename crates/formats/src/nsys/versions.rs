//! What differs between versions of Nsight Systems, from 2020 to 2026.
//!
//! Versions are not told apart by number: a report is read by the tables and columns that it has. Three
//! rules cover every schema that was seen:
//!
//! - a column that a version lacks is null ([`columns`]); only `start` is required;
//! - the table of the export's own versions has two names ([`EXPORT_TABLES`]);
//! - the oldest schema calls the id of a GPU `deviceId` ([`gpu_id`]).

use crate::sqlite::{TableDef, Value};

/// The names that the table with the versions of product and schema has had.
pub(super) const EXPORT_TABLES: [&str; 2] = ["META_DATA_EXPORT", "EXPORT_META_DATA"];

/// The indexes of columns in a table; `None` where this version's table lacks one.
pub(super) fn columns<const N: usize>(table: &TableDef, names: [&str; N]) -> [Option<usize>; N] {
    names.map(|name| table.column(name))
}

/// The number of a GPU in `TARGET_INFO_GPU`: its `id`, else its `deviceId`, else its place in the table,
/// whose row ids count from 1.
pub(super) fn gpu_id(id: Value<'_>, device: Value<'_>, rowid: i64) -> i64 {
    id.int().or(device.int()).unwrap_or(rowid - 1)
}
