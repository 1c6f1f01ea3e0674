//! Processes and threads in the serialized ids of a report, and the rank in its file's name.

use std::path::Path;

/// The pid in a serialized `globalTid` or `globalPid`.
pub(super) fn pid_of(global: i64) -> i64 {
    global >> 24 & 0xff_ffff
}

/// The tid in a serialized `globalTid`.
pub(super) fn tid_of(global: i64) -> i64 {
    global & 0xff_ffff
}

/// A `globalTid` or `globalPid` without its thread.
pub(super) fn process_of(global: i64) -> i64 {
    global & !0xff_ffff
}

/// The rank in the name of a file: `rank3.sqlite`, `report.rank-12.sqlite`, `out_rank_0.sqlite`.
pub(super) fn rank_in(path: &Path) -> Option<u32> {
    let name = path.file_stem()?.to_str()?.to_ascii_lowercase();
    let after = &name[name.rfind("rank")? + 4..];
    let digits = after.trim_start_matches(['-', '_', '.']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}
