//! Timers of CPUs that sample what runs there.
//!
//! `collect` opens perf events too, but others: a BPF program runs at its samples, ours are thrown
//! away. The two share no crate below them in which one function could serve both.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Samples whatever runs on a CPU, `hz` times a second, from a timer interrupt, and throws the
/// samples away. Ends when the descriptor is closed.
///
/// # Errors
/// Without CAP_PERFMON, or if the CPU is not online.
pub fn sample_cpu(cpu: usize, hz: u64) -> io::Result<OwnedFd> {
    /// `struct perf_event_attr`, version 0 (uapi/linux/perf_event.h).
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        kind: u32,
        size: u32,
        config: u64,
        sample_period: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        wakeup_events: u32,
        bp_type: u32,
        bp_addr: u64,
    }
    const PERF_TYPE_SOFTWARE: u32 = 1;
    const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
    const PERF_SAMPLE_IP: u64 = 1;
    let attr = Attr {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<Attr>() as u32,
        config: PERF_COUNT_SW_CPU_CLOCK,
        sample_period: 1_000_000_000 / hz.max(1),
        sample_type: PERF_SAMPLE_IP,
        ..Attr::default()
    };
    let (any_process, no_group) = (-1 as libc::pid_t, -1 as libc::c_int);
    const CLOEXEC: libc::c_ulong = 8;
    let cpu = cpu as libc::c_int;
    // SAFETY: the attributes are valid and state their own length; the rest are numbers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &attr, any_process, cpu, no_group, CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
