//! Waiting for a time, a signal or a descriptor, whichever comes first.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{check, now};

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The time was reached.
    Time,
    /// SIGINT, SIGTERM or SIGHUP was sent.
    Signal,
    /// The descriptor is readable, or its other end is closed.
    Ready,
}

/// Takes signals from a descriptor, so that one wait covers them, a time and another descriptor.
pub struct Waiter {
    signals: OwnedFd,
}

impl Waiter {
    /// Blocks SIGINT, SIGTERM and SIGHUP for this thread and those that it starts. To be
    /// called before any thread is started.
    ///
    /// # Errors
    /// If the signals cannot be blocked or this process has no descriptor left.
    pub fn new() -> io::Result<Waiter> {
        // SAFETY: an all-zero sigset_t is made valid by sigemptyset; all arguments are valid.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Waiter { signals: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// Waits until `at` (CLOCK_MONOTONIC ns; `None` is for ever), a signal, or `watched`.
    pub fn until(&self, at: Option<u64>, watched: Option<&dyn AsRawFd>) -> Ended {
        loop {
            let timeout = match at {
                None => -1,
                // Rounded up, so that it does not spin in the last millisecond.
                Some(at) => at.saturating_sub(now()).div_ceil(1_000_000).min(1 << 30) as i32,
            };
            let fd = watched.map_or(-1, |w| w.as_raw_fd());
            let mut fds = [self.signals.as_raw_fd(), fd].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: two valid pollfds; poll ignores negative descriptors.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout) };
            if fds[0].revents != 0 {
                return Ended::Signal;
            }
            if fds[1].revents != 0 {
                return Ended::Ready;
            }
            if ready == 0 && at.is_some_and(|at| now() >= at) {
                return Ended::Time;
            }
        }
    }
}

/// Unblocks all signals, since a parent with a [`Waiter`] passes its blocked ones on to its
/// children.
pub fn unblock_signals() {
    // SAFETY: an all-zero sigset_t is made valid by sigemptyset; all arguments are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

/// Waits until `read` has bytes or `write` has room; a socket that is `None` is left out.
pub fn wait_for_sockets(read: Option<&dyn AsRawFd>, write: Option<&dyn AsRawFd>) {
    let mut fds = [(read, libc::POLLIN), (write, libc::POLLOUT)].map(|(socket, events)| {
        libc::pollfd { fd: socket.map_or(-1, |s| s.as_raw_fd()), events, revents: 0 }
    });
    // SAFETY: two valid pollfds; poll ignores negative descriptors.
    unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
}
