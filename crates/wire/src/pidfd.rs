//! A descriptor of a process: it means that process for good, whoever gets its number later.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A descriptor of a process, closed with the value.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Of the process that has the number `pid` now.
    ///
    /// # Errors
    /// There is no such process, or the system refuses.
    pub fn open(pid: i32) -> io::Result<PidFd> {
        // SAFETY: no pointers. The call makes a new descriptor, closed on exec by its nature.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just opened and that nobody else owns.
        Ok(PidFd(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Of the process that connected a socket, as the kernel noted it then (SO_PEERPIDFD, Linux 6.5).
    /// On older kernels, of the process that has its number now.
    ///
    /// # Errors
    /// The process has gone, or the system refuses.
    pub(crate) fn of_peer(socket: RawFd, pid: i32) -> io::Result<PidFd> {
        let (mut fd, mut bytes): (RawFd, _) = (-1, size_of::<RawFd>() as libc::socklen_t);
        // SAFETY: the descriptor is open; `fd` has the size that `bytes` says.
        let failed = unsafe {
            libc::getsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_PEERPIDFD,
                (&raw mut fd).cast(),
                &raw mut bytes,
            )
        };
        if failed == 0 && fd >= 0 {
            // SAFETY: a descriptor that was just opened and that nobody else owns.
            return Ok(PidFd(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENOPROTOOPT) => PidFd::open(pid),
            e => Err(e),
        }
    }

    /// Whether the process has ended, all its threads included.
    pub fn has_exited(&self) -> bool {
        let mut poll = [readable(self.as_raw_fd())];
        wait_for_none(&mut poll);
        poll[0].revents != 0
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Asks whether a descriptor can be read, for [`wait_for_none`].
pub(crate) fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Writes into each entry what is the matter with its descriptor now. Does not wait.
pub(crate) fn wait_for_none(all: &mut [libc::pollfd]) {
    // SAFETY: `all` is a slice of its length.
    let n = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, 0) };
    if n < 0 {
        // Interrupted: nothing is known, and the next look is soon.
        all.iter_mut().for_each(|entry| entry.revents = 0);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn it_tells_that_its_process_has_ended() {
        let mut child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
        let fd = PidFd::open(child.id() as i32).unwrap();
        assert!(!fd.has_exited());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fd.has_exited());
        assert!(PidFd::open(child.id() as i32).is_err(), "its number is nobody's");
    }
}
