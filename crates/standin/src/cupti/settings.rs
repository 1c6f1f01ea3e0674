//! What the client has enabled, and its callbacks.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::activity::kind;
use crate::lock::Mutex;

/// `CUpti_BuffersCallbackRequestFunc`: buffer, size and most records are results.
pub(super) type RequestBuffer = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`: context, stream, buffer, size, valid bytes.
pub(super) type CompleteBuffer = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
/// `CUpti_TimestampCallbackFunc`: ns.
pub(super) type ReadClock = extern "C" fn() -> u64;

/// The callbacks for buffers, once they are registered.
pub(super) static CALLBACKS: Mutex<Option<(RequestBuffer, CompleteBuffer)>> = Mutex::new(None);
/// The client's clock, if it has registered one.
pub(super) static CLOCK: Mutex<Option<ReadClock>> = Mutex::new(None);
/// Bits of the enabled kinds.
pub(super) static KINDS: AtomicU64 = AtomicU64::new(0);
/// Callback ids of the driver's functions that are enabled one by one.
pub(super) static ENABLED_CALLS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// Whether there are any [`ENABLED_CALLS`].
pub(super) static ANY_CALL: AtomicBool = AtomicBool::new(false);
/// Whether kernels' records have the times of queueing and submission.
pub(super) static LATENCY: AtomicBool = AtomicBool::new(false);

/// Whether a kind is enabled.
pub(super) fn is_on(kind: u32) -> bool {
    KINDS.load(Relaxed) & 1 << kind != 0
}

/// Whether each launch waits for its kernel, because KERNEL is enabled.
pub fn serialises() -> bool {
    is_on(kind::KERNEL)
}

/// Whether graphs are reported as a whole, because GRAPH_TRACE is enabled.
pub fn traces_graphs() -> bool {
    is_on(kind::GRAPH_TRACE)
}

/// Set once this library has been taken apart at the end of the process.
static TORN_DOWN: AtomicBool = AtomicBool::new(false);
/// Whether [`tear_down`] is registered.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// As the real library does, registers what takes it apart at the end of the process when it is first
/// used: it runs before the handlers that were registered earlier.
pub(super) fn register_tear_down() {
    if !REGISTERED.swap(true, Relaxed) {
        // SAFETY: the handler stays where it is, since this library is not unloaded.
        unsafe { libc::atexit(tear_down) };
    }
}

extern "C" fn tear_down() {
    TORN_DOWN.store(true, Relaxed);
}

/// Ends the process if the library has been taken apart: the real one would read freed memory.
pub(super) fn must_be_whole() {
    if TORN_DOWN.load(Relaxed) {
        eprintln!("stand-in of CUPTI: called after it was taken apart");
        std::process::abort();
    }
}
