//! Clocks, and sleeping until a point in time.

/// CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    gpuwhy_wire::now()
}

/// CPU time of the calling thread, ns.
pub fn thread_cpu() -> u64 {
    cpu(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of this process, ns.
pub fn process_cpu() -> u64 {
    cpu(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for a timespec, which the call fills.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Sleeps until a time of CLOCK_MONOTONIC (ns); a timer interrupt ends the sleep.
pub fn sleep_until(at: u64) {
    let t = libc::timespec {
        tv_sec: (at / 1_000_000_000) as libc::time_t,
        tv_nsec: (at % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `t` is valid; no remainder is asked for. After a signal the call is repeated.
    while unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &t, std::ptr::null_mut())
    } == libc::EINTR
    {}
}

/// Sets the timer slack of the calling thread to 1 µs instead of 50, so that its sleeps end on
/// time.
pub fn set_exact_timers() {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000 as libc::c_ulong) };
}
