//! Descriptors that whoever started this program handed to it.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// The file behind an inherited descriptor; programs that are started from now on do not inherit it.
///
/// # Errors
/// There is no such descriptor.
pub fn inherited(descriptor: RawFd) -> io::Result<File> {
    // SAFETY: takes plain numbers, and fails where there is no such descriptor. That a program which is
    // started later lacks it takes it from nobody here.
    let own = unsafe {
        if libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3)
    };
    if own < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us, so nobody else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(own) }))
}
