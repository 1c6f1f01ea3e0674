//! How much of a busy CPU a thread takes from others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Sets the niceness of the calling thread, from -20 to 19; less than 0 needs a privilege, and
/// without it nothing changes.
pub fn nice(niceness: i32) {
    // SAFETY: takes plain numbers; 0 is this thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
}

/// While this guard exists, its thread runs only when no other thread wants its CPU.
///
/// A nice thread is not enough: since EEVDF (Linux 6.6) a thread that wakes up waits until the slice
/// of the running thread is over, however nice that one is; only a thread of the policy SCHED_IDLE is
/// preempted at once.
#[derive(Debug)]
pub struct IdlePriority {
    niceness: i32,
    watchdog: Option<std::thread::Thread>,
    over: Arc<AtomicBool>,
}

/// Runs the calling thread at idle priority for `at_most`: on a CPU that is never idle a thread of
/// this policy would get nowhere. Afterwards the thread has `niceness`. Does nothing if the thread
/// could not return to its present priority.
pub fn idle_priority(niceness: i32, at_most: Duration) -> IdlePriority {
    let over = Arc::new(AtomicBool::new(false));
    let mut guard = IdlePriority { niceness, watchdog: None, over: over.clone() };
    // SAFETY: takes plain numbers; 0 is this thread, whose id `gettid` returns.
    let (own, tid) = unsafe { (libc::getpriority(libc::PRIO_PROCESS, 0), libc::gettid()) };
    // A thread below 0 had the privilege to go there, and so may return.
    if own >= 0 {
        return guard;
    }
    let watch = move || {
        let end = Instant::now() + at_most;
        while !over.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                set_policy(tid, libc::SCHED_OTHER);
                return;
            }
            std::thread::park_timeout(left);
        }
    };
    let Ok(watchdog) = std::thread::Builder::new().name("gpuwhy-guard".into()).spawn(watch) else {
        return guard;
    };
    guard.watchdog = Some(watchdog.thread().clone());
    set_policy(tid, libc::SCHED_IDLE);
    guard
}

fn set_policy(tid: libc::pid_t, policy: libc::c_int) {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` lives during the call; for a thread that has ended it is an error without
    // effect.
    unsafe { libc::sched_setscheduler(tid, policy, &none) };
}

impl Drop for IdlePriority {
    fn drop(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            self.over.store(true, Ordering::Relaxed);
            watchdog.unpark();
            set_policy(0, libc::SCHED_OTHER);
        }
        nice(self.niceness);
    }
}
