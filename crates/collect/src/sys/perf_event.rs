//! Timers of CPUs, and counters of devices.
//!
//! `testkit` opens perf events too, but others: its samples are thrown away by the kernel, ours run
//! a BPF program. The two share no crate below them in which one function could serve both.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `struct perf_event_attr`, version 0 (uapi/linux/perf_event.h).
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_freq: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

/// A timer that interrupts whatever runs on a CPU, `hz` times a second, while it is open; BPF
/// programs can be attached to it.
///
/// # Errors
/// Needs CAP_PERFMON, and a CPU that is online.
pub(crate) fn cpu_timer(cpu: usize, hz: u64) -> io::Result<OwnedFd> {
    const SOFTWARE: u32 = 1;
    const CPU_CLOCK: u64 = 0;
    const FREQ: u64 = 1 << 10;
    let attr =
        Attr { kind: SOFTWARE, config: CPU_CLOCK, sample_freq: hz, flags: FREQ, ..Attr::default() };
    open(attr, cpu as libc::c_int)
}

/// A counter of a device, which is read on a CPU: a number of 64 bits for each `read`.
///
/// # Errors
/// Needs CAP_PERFMON, and a device that counts this.
pub(crate) fn counter(kind: u32, config: u64, cpu: u32) -> io::Result<OwnedFd> {
    let cpu = libc::c_int::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?;
    open(Attr { kind, config, ..Attr::default() }, cpu)
}

/// Of any process on a CPU, closed in programs that are started.
fn open(attr: Attr, cpu: libc::c_int) -> io::Result<OwnedFd> {
    const CLOEXEC: libc::c_ulong = 8;
    let attr = Attr { size: size_of::<Attr>() as u32, ..attr };
    let (any_process, no_group) = (-1 as libc::pid_t, -1 as libc::c_int);
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
