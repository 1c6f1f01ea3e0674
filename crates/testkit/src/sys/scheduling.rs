//! Where and with which priority the calling thread or process runs, and what it is called.

use std::ffi::CString;
use std::io;

use super::check;

/// Names the calling thread, and so a process that has only this one; 15 bytes are kept.
pub fn set_comm(name: &str) {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: a C string, which the kernel copies.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Pins the calling thread, and the threads that it starts from now on, to one CPU.
///
/// # Errors
/// If the CPU does not exist, or this process may not run on it.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid, and CPU_SET ignores numbers beyond it.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid and its size is given.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) })
}

/// The CPUs that the calling thread may run on, ascending.
pub fn cpus() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid and its size is given.
    let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if failed != 0 {
        return vec![0];
    }
    // SAFETY: all numbers below CPU_SETSIZE lie within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Makes the calling thread a real-time thread of the lowest FIFO priority.
///
/// # Errors
/// Without CAP_SYS_NICE.
pub fn set_fifo() -> io::Result<()> {
    // SAFETY: all zero is a valid sched_param.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = 1;
    // SAFETY: the parameter is valid.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) })
}

/// Gives this session's autogroup the scheduling weight of this many busy threads. By default the
/// scheduler gives all processes of a session together the weight of one thread.
pub fn raise_weight(threads: usize) {
    // Each step of nice is a quarter more weight.
    let nice = (threads as f64).ln() / 1.25f64.ln();
    let _ = std::fs::write("/proc/self/autogroup", format!("-{}", nice.round().min(20.0)));
}

/// The calling thread, and those that it starts from now on, run when nobody else wants the CPU.
pub fn run_when_idle() {
    // SAFETY: all zero is a valid sched_param, and the only one of this policy.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the parameter is valid.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &param) };
    let _ = std::fs::write("/proc/self/autogroup", "19");
}

/// How often a thread gave its CPU up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Switches {
    /// To wait for something.
    pub voluntary: u64,
    /// Because another thread got it.
    pub involuntary: u64,
}

/// What the kernel has counted of the calling thread.
pub fn switches() -> Switches {
    // SAFETY: all zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place, which the call fills.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    Switches { voluntary: usage.ru_nvcsw as u64, involuntary: usage.ru_nivcsw as u64 }
}

/// The number of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: this cannot fail and touches no memory.
    unsafe { libc::gettid() }
}

/// From now on [`interrupt`] does nothing to threads of this process but end what they wait for.
///
/// # Errors
/// The kernel refuses the handler.
pub fn survive_interrupts() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zero is a valid sigaction: no flags, so that calls end with EINTR, and no signals blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, which is allowed in any thread at any time.
    check(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) })
}

/// Interrupts a thread of this process, if it is there.
pub fn interrupt(tid: i32) {
    // SAFETY: the call takes numbers only; a thread that has ended is not found.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
}
