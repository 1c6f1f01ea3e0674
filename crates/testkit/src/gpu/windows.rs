//! Busy time by windows of fixed width, from which utilisation follows.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The real library samples the utilisation of a GPU every 167 ms (notes on host telemetry, 4.7).
pub const UTILISATION_NS: u64 = 167_000_000;
/// The real library samples the utilisation of processes every second.
pub const PROCESS_UTILISATION_NS: u64 = 1_000_000_000;

/// Busy time within one window of a ring of windows.
#[repr(C)]
pub(super) struct Window {
    /// Number of the window since boot, plus one; 0 if nothing has run in it.
    pub(super) index: AtomicU64,
    /// Busy ns in the window.
    pub(super) busy: AtomicU64,
}

/// Adds `[start, end)` to the windows that it touches. Work is scheduled ahead of time, so windows
/// of the future fill too; what reaches further than half the ring is left out.
pub(super) fn add_busy(windows: &[Window], width: u64, start: u64, end: u64) {
    let furthest = start / width + windows.len() as u64 / 2;
    let mut at = start;
    while at < end && at / width < furthest {
        let index = at / width;
        let piece = end.min((index + 1) * width) - at;
        let cell = &windows[index as usize % windows.len()];
        if cell.index.load(Relaxed) != index + 1 {
            cell.busy.store(0, Relaxed);
            cell.index.store(index + 1, Release);
        }
        cell.busy.fetch_add(piece, Relaxed);
        at += piece;
    }
}

/// Percent of a window that was busy, rounded up: the real library shows 1 % for hardly any work.
pub(super) fn percent(windows: &[Window], index: u64, width: u64) -> u32 {
    let cell = &windows[index as usize % windows.len()];
    if cell.index.load(Acquire) != index + 1 {
        return 0;
    }
    (cell.busy.load(Relaxed) * 100).div_ceil(width).min(100) as u32
}
