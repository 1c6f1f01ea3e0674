//! What a stream's handle means.

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: usize = 1;
pub const PER_THREAD: usize = 2;

/// The stream that a handle means: null is a default stream.
pub fn stream_of(handle: usize, per_thread: bool) -> usize {
    match handle {
        0 if per_thread => PER_THREAD,
        0 => LEGACY,
        other => other,
    }
}
