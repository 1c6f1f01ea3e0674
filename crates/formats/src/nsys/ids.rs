//! Processes and threads in the serialized ids of a report.

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
