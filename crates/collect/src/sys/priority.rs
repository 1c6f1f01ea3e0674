//! How much of a busy CPU a thread takes from others.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Sets the niceness of the calling thread, from -20 to 19; less than 0 needs a privilege, and
/// without it nothing changes.
pub fn nice(niceness: i32) {
    // SAFETY: takes plain numbers; 0 is this thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
}

/// While a thread gives way it runs for so long at a time, and then rests.
const RUN: Duration = Duration::from_micros(500);
/// So long.
const REST: Duration = Duration::from_micros(2000);

/// While this guard exists, its thread gives way to all others; see [`give_way`].
#[derive(Debug)]
pub struct GivesWay {
    niceness: i32,
    companion: Option<Thread>,
    over: Arc<AtomicBool>,
}

/// Lets the calling thread run only when no other thread wants its CPU, and even so in slices of half a
/// millisecond with pauses of two, for `at_most`: on a CPU that is never idle a thread of that policy
/// would get nowhere. Afterwards the thread has `niceness`.
///
/// Neither alone is enough. A nice thread: since EEVDF (Linux 6.6) a thread that wakes up waits until
/// the slice of the running one is over, however nice that one is; only a thread of the policy
/// SCHED_IDLE is preempted at once. And that policy, as niceness, counts within a control group or a
/// session alone (`sched_autogroup_enabled`): against a program of another one, an idle thread takes
/// half of a CPU, three milliseconds at a time.
///
/// The policy is left out where the thread could not return to its present one.
pub fn give_way(niceness: i32, at_most: Duration) -> GivesWay {
    let over = Arc::new(AtomicBool::new(false));
    let mut guard = GivesWay { niceness, companion: None, over: over.clone() };
    // SAFETY: takes plain numbers; 0 is this thread, whose id `gettid` returns.
    let (own, tid) = unsafe { (libc::getpriority(libc::PRIO_PROCESS, 0), libc::gettid()) };
    // A thread below 0 had the privilege to go there, and so may return.
    let idle = own < 0;
    let watch = move || {
        let end = Instant::now() + at_most;
        if idle {
            set_policy(tid, libc::SCHED_IDLE);
        }
        let is_over = || over.load(Ordering::Relaxed) || HURRY.load(Ordering::Relaxed);
        let mut rested_at = thread_cpu(tid);
        while !is_over() && Instant::now() < end {
            std::thread::park_timeout(RUN);
            let ran = thread_cpu(tid);
            // One that did not get that far, because others run, has rested enough.
            if is_over() || ran.saturating_sub(rested_at) < RUN {
                continue;
            }
            rested_at = ran;
            if rests() {
                // SAFETY: takes plain numbers. The thread is ours and lives, since its guard does; and if it
                // should have ended just now, no thread or another one of ours rests for once.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGURG) };
                std::thread::park_timeout(REST);
            }
        }
        if idle {
            set_policy(tid, libc::SCHED_OTHER);
        }
    };
    let Ok(companion) = std::thread::Builder::new().name("gpuwhy-guard".into()).spawn(watch) else {
        return guard;
    };
    guard.companion = Some(companion.thread().clone());
    guard
}

/// Lets the calling thread give way from now on until it ends, or for `at_most`.
pub fn give_way_to_the_end(niceness: i32, at_most: Duration) {
    thread_local! {
        static GUARD: RefCell<Option<GivesWay>> = const { RefCell::new(None) };
    }
    nice(niceness);
    if !at_most.is_zero() {
        GUARD.set(Some(give_way(niceness, at_most)));
    }
}

static HURRY: AtomicBool = AtomicBool::new(false);

/// Whether all threads of this process stop giving way: somebody waits for them.
pub fn hurry(on: bool) {
    HURRY.store(on, Ordering::Relaxed);
}

fn set_policy(tid: libc::pid_t, policy: libc::c_int) {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` lives during the call; for a thread that has ended it is an error without
    // effect.
    unsafe { libc::sched_setscheduler(tid, policy, &none) };
}

impl Drop for GivesWay {
    fn drop(&mut self) {
        if let Some(companion) = self.companion.take() {
            self.over.store(true, Ordering::Relaxed);
            companion.unpark();
            set_policy(0, libc::SCHED_OTHER);
        }
        nice(self.niceness);
    }
}

/// The CPU time of a thread of this process; zero if it has ended.
fn thread_cpu(tid: libc::pid_t) -> Duration {
    // MAKE_THREAD_CPUCLOCK with CPUCLOCK_SCHED (linux/posix-timers_types.h).
    let clock: libc::clockid_t = (!tid << 3) | 4 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a `timespec`, or nothing.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Sees to it that a thread rests on SIGURG, which means nothing to a program without sockets that ask
/// for it; `false` where somebody else handles it.
fn rests() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| {
        // SAFETY: a `sigaction` is plain numbers, for which zeros are valid; the handler lives as long as the
        // program, calls only what a handler may, and leaves errno as it was. Interrupted system calls begin
        // again.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            let asked = libc::sigaction(libc::SIGURG, std::ptr::null(), &mut now) == 0;
            if !asked || now.sa_sigaction != libc::SIG_DFL {
                return false;
            }
            let mut wanted: libc::sigaction = std::mem::zeroed();
            wanted.sa_sigaction = rest as *const () as libc::sighandler_t;
            wanted.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGURG, &wanted, std::ptr::null_mut()) == 0
        }
    })
}

extern "C" fn rest(_: libc::c_int) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: REST.as_nanos() as libc::c_long };
    // SAFETY: `time` lives during the call, and errno is this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        libc::nanosleep(&time, std::ptr::null_mut());
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::thread_time;

    /// The CPU time of a thread that is busy for `wall`.
    fn busy(wall: Duration) -> f64 {
        let (began, cpu) = (Instant::now(), thread_time());
        while began.elapsed() < wall {
            std::hint::spin_loop();
        }
        (thread_time() - cpu).as_secs_f64()
    }

    #[test]
    fn one_that_gives_way_rests_most_of_the_time_and_no_longer_than_it_was_told() {
        let wall = Duration::from_millis(300);
        let guard = give_way(0, Duration::from_secs(60));
        let gave_way = busy(wall);
        drop(guard);
        assert!(gave_way < 0.5 * wall.as_secs_f64(), "{gave_way} s of {wall:?}");
        // Other tests run beside this one: wall time alone says nothing, rests do.
        let guard = give_way(0, Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(50));
        let companions = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names = tasks.flatten().map(|t| std::fs::read_to_string(t.path().join("comm")));
            names.flatten().filter(|name| name.trim() == "gpuwhy-guard").count()
        };
        assert_eq!(companions(), 0, "it watches no longer than it was told");
        drop(guard);
    }
}
