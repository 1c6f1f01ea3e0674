//! How much of a busy CPU a thread takes from others.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use super::clock::monotonic;

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
    watchdog: Option<Arc<Deadline>>,
}

/// Runs the calling thread at idle priority for `at_most`: on a CPU that is never idle a thread of
/// this policy would get nowhere. Afterwards the thread has `niceness`. Does nothing if the thread
/// could not return to its present priority.
pub fn idle_priority(niceness: i32, at_most: Duration) -> IdlePriority {
    // SAFETY: takes plain numbers; 0 is this thread.
    let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // A thread below 0 had the privilege to go there, and so may return.
    let watchdog = (own < 0)
        .then(|| WATCHDOG.with(|own| own.get_or_init(Watchdog::start).armed(at_most)))
        .flatten();
    if watchdog.is_some() {
        set_policy(0, libc::SCHED_IDLE);
    }
    IdlePriority { niceness, watchdog }
}

thread_local! {
    static WATCHDOG: OnceCell<Watchdog> = const { OnceCell::new() };
}

/// When a thread is to leave idle priority, ns of the monotonic clock; or one of these.
#[derive(Debug)]
struct Deadline(AtomicU64);

const NONE: u64 = 0;
const OVER: u64 = 1;

/// A thread that takes another one out of idle priority; it ends with that.
#[derive(Debug)]
struct Watchdog {
    deadline: Arc<Deadline>,
    thread: Option<Thread>,
}

impl Watchdog {
    fn start() -> Watchdog {
        let deadline = Arc::new(Deadline(AtomicU64::new(NONE)));
        // SAFETY: takes nothing.
        let tid = unsafe { libc::gettid() };
        let watched = deadline.clone();
        let thread = std::thread::Builder::new()
            .name("gpuwhy-guard".into())
            .spawn(move || watch(&watched, tid));
        Watchdog { deadline, thread: thread.ok().map(|thread| thread.thread().clone()) }
    }

    fn armed(&self, at_most: Duration) -> Option<Arc<Deadline>> {
        let thread = self.thread.as_ref()?;
        let ns = u64::try_from(at_most.as_nanos()).unwrap_or(u64::MAX);
        self.deadline.0.store(now().saturating_add(ns), Ordering::Release);
        thread.unpark();
        Some(self.deadline.clone())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.deadline.0.store(OVER, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

fn now() -> u64 {
    monotonic().0.unsigned_abs()
}

fn watch(deadline: &Deadline, tid: libc::pid_t) {
    loop {
        match deadline.0.load(Ordering::Acquire) {
            OVER => return,
            NONE => std::thread::park(),
            end => match end.saturating_sub(now()) {
                0 => {
                    if deadline
                        .0
                        .compare_exchange(end, NONE, Ordering::AcqRel, Ordering::Acquire)
                        .is_ok()
                    {
                        set_policy(tid, libc::SCHED_OTHER);
                    }
                }
                left => std::thread::park_timeout(Duration::from_nanos(left)),
            },
        }
    }
}

fn set_policy(tid: libc::pid_t, policy: libc::c_int) {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` lives during the call; for a thread that has ended it is an error without
    // effect.
    unsafe { libc::sched_setscheduler(tid, policy, &none) };
}

impl Drop for IdlePriority {
    fn drop(&mut self) {
        if let Some(deadline) = self.watchdog.take() {
            deadline.0.store(NONE, Ordering::Release);
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
        let end = now() + seconds * 1_000_000_000;
        while (policy() == libc::SCHED_IDLE) != is && now() < end {
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
