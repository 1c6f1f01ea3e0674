//! Clocks, and sleeping until one of them shows a time.

use gpuwhy_schema::Ns;

/// The trace clock: CLOCK_MONOTONIC, which is what `bpf_ktime_get_ns` reads as well.
pub fn now() -> Ns {
    monotonic()
}

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> Ns {
    clock(libc::CLOCK_MONOTONIC)
}

/// How long this host has been suspended since its boot.
pub(crate) fn suspended() -> Ns {
    clock(libc::CLOCK_BOOTTIME) - clock(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, ns since 1970.
pub(crate) fn wall() -> i64 {
    clock(libc::CLOCK_REALTIME).0
}

/// CPU time of this process so far: all its threads, user and system.
pub fn cpu_time() -> Ns {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread so far, user and system.
pub fn thread_time() -> Ns {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(clock: libc::clockid_t) -> Ns {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for a timespec; the clocks asked for exist on every
    // Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Ns(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

/// Sleeps until CLOCK_MONOTONIC shows `until`, or a signal arrives.
pub(crate) fn sleep_until(until: Ns) {
    let time = libc::timespec { tv_sec: until.0 / 1_000_000_000, tv_nsec: until.0 % 1_000_000_000 };
    // SAFETY: `time` is a valid timespec, and a null remainder is allowed.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &time,
            std::ptr::null_mut(),
        )
    };
}

/// A time or duration that is written as an unsigned number of ns.
pub(crate) fn ns(n: u64) -> Ns {
    Ns(i64::try_from(n).unwrap_or(i64::MAX))
}
