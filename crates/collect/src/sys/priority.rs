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

/// Lets all threads of this process that give way, or are nice, run as others do from now on: somebody waits for them. On CPUs
/// that are never idle they would get next to nothing.
pub fn hurry() {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let Some(tid) = thread.file_name().to_str().and_then(|tid| tid.parse::<libc::pid_t>().ok())
        else {
            continue;
        };
        let of = tid.unsigned_abs();
        // SAFETY: takes plain numbers; of a thread that has ended it is an error without effect.
        if unsafe { libc::getpriority(libc::PRIO_PROCESS, of) } > 0 {
            set_policy(tid, libc::SCHED_OTHER);
            // SAFETY: as above.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, of, 0) };
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: takes a plain number; 0 is this thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    fn in_idle_priority_within(seconds: u64, is: bool) -> bool {
        let end = Instant::now() + Duration::from_secs(seconds);
        while (policy() == libc::SCHED_IDLE) != is && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        (policy() == libc::SCHED_IDLE) == is
    }

    #[test]
    fn root_a_thread_gives_way_until_it_has_done_so_for_too_long() {
        nice(-1);
        // SAFETY: takes plain numbers; 0 is this thread.
        if unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) } != -1 {
            return println!("skipped: no privilege to be less nice");
        }
        for _ in 0..2 {
            let guard = idle_priority(-1, Duration::from_secs(600));
            assert_eq!(policy(), libc::SCHED_IDLE);
            drop(guard);
            assert_eq!(policy(), libc::SCHED_OTHER);
            // A shorter time after a longer one is kept, and what is over does nothing to the next one.
            let guard = idle_priority(-1, Duration::from_millis(20));
            assert!(in_idle_priority_within(60, false), "it was not taken out of idle priority");
            drop(guard);
        }
        // What is nice is so no longer once somebody waits for it.
        let (says, hears) = std::sync::mpsc::channel();
        let (done, waits) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _guard = idle_priority(19, Duration::from_secs(600));
            nice(19);
            says.send(()).unwrap();
            let _ = waits.recv();
            // SAFETY: takes plain numbers; 0 is this thread.
            (policy(), unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) })
        });
        hears.recv().unwrap();
        hurry();
        drop(done);
        assert_eq!(thread.join().unwrap(), (libc::SCHED_OTHER, 0));
        nice(0);
        drop(idle_priority(0, Duration::from_secs(600)));
        assert_eq!(policy(), libc::SCHED_OTHER);
    }
}
