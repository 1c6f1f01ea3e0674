//! Other processes: signals, namespaces, whether they are alive, and ending with the parent.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::check;

/// Sends a signal to a process.
///
/// # Errors
/// If the process does not exist or may not be signalled.
pub fn kill(pid: i32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::kill(pid, signal) })
}

/// Moves the calling thread into a new network namespace.
///
/// # Errors
/// Without CAP_SYS_ADMIN.
pub fn new_netns() -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Children of the calling process get a new pid namespace, of which the first one is the first process.
///
/// # Errors
/// Without CAP_SYS_ADMIN.
pub fn new_pidns() -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) })
}

/// Becomes another user, in that one's group of the same number alone.
///
/// # Errors
/// Without CAP_SETUID and CAP_SETGID.
pub fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: no groups, and so no list of them.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresgid(id, id, id) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresuid(id, id, id) })
}

/// A copy of a descriptor, closed on exec.
///
/// # Errors
/// It is not open, or there are too many.
pub fn duplicate(fd: std::os::fd::RawFd) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Moves the calling thread into the network namespace of a process.
///
/// # Errors
/// If the process does not exist, or without CAP_SYS_ADMIN.
pub fn enter_netns(pid: i32) -> io::Result<()> {
    let ns = File::open(format!("/proc/{pid}/ns/net"))?;
    // SAFETY: the descriptor is open.
    check(unsafe { libc::setns(ns.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Sets the command up so that it gets `signal` when the thread that starts it ends, and runs in a
/// session of its own: a Ctrl-C then reaches only us, and we end the command in order.
pub fn die_with_parent(command: &mut Command, signal: libc::c_int) -> &mut Command {
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        command.pre_exec(move || {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong))?;
            // The parent may have died before the call above.
            if libc::getppid() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        })
    }
}

/// Whether a process exists, also one of another user.
pub(crate) fn is_alive(pid: i32) -> bool {
    match kill(pid, 0) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() != Some(libc::ESRCH),
    }
}

/// Whether a child has ended; it can still be waited for.
pub(crate) fn has_ended(child: i32) -> bool {
    // SAFETY: all zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the result lives while the call runs.
    let failed = unsafe { libc::waitid(libc::P_PID, child as libc::id_t, &mut info, how) };
    // SAFETY: waitid has filled it, or it is all zero as above.
    failed != 0 || unsafe { info.si_pid() } != 0
}
