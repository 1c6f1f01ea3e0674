//! Calls of ours, by which the driver may load or launch what is none of the program's.

use core::cell::Cell;

thread_local! {
    /// Whether this thread is in one.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`; what it loads is ours.
pub fn ours<R>(f: impl FnOnce() -> R) -> R {
    let before = OURS.try_with(|ours| ours.replace(true)).unwrap_or(true);
    let out = f();
    let _ = OURS.try_with(|ours| ours.set(before));
    out
}

/// Whether what this thread loads is ours.
pub fn is_ours() -> bool {
    OURS.try_with(Cell::get).unwrap_or(false)
}
