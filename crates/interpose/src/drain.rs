//! When the maps are shown: a thread, and the program's exit.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gpuwhy_wire::spawn_without_signals;

use crate::{guarded, patched, places, ring};

/// How often, while kernels are launched.
const EVERY: Duration = Duration::from_millis(100);
/// So often more when none is launched any more: the last ones may run long.
const AFTERWARDS: u32 = 10;

static STARTED: AtomicBool = AtomicBool::new(false);
static ENDED: AtomicBool = AtomicBool::new(false);

/// Starts the thread, and asks to be called at exit, once a process.
pub fn start() {
    if STARTED.swap(true, SeqCst) {
        return;
    }
    ring::open();
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: functions of this object, which is never unloaded. The driver, which was loaded before, is told of the
    // exit after us.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_the_child));
        libc::atexit(at_exit);
    });
    // Without the thread the maps are shown at exit.
    let _ = spawn_without_signals(|| guarded((), run));
}

fn run() {
    let mut left = 0;
    while !ENDED.load(SeqCst) {
        std::thread::sleep(EVERY);
        if places::launched() {
            left = AFTERWARDS;
        }
        if left > 0 && !ENDED.load(SeqCst) {
            left -= 1;
            places::drain_all(false);
        }
    }
}

extern "C" fn at_exit() {
    if STARTED.load(SeqCst) && !ENDED.swap(true, SeqCst) {
        guarded((), || places::drain_all(true));
    }
}

unsafe extern "C" fn in_the_child() {
    places::forget_after_fork();
    patched::forget_after_fork();
    STARTED.store(false, SeqCst);
    ENDED.store(false, SeqCst);
}
