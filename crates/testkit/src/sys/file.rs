//! Page cache and disk blocks of files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::check_errno;

/// Drops the clean pages of a file from the page cache (`POSIX_FADV_DONTNEED`).
///
/// # Errors
/// If the file is not one that has pages.
pub fn drop_cache(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    check_errno(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) })
}

/// Allocates disk blocks for the first `bytes` of a file.
///
/// # Errors
/// If the disk is full or the descriptor is not open for writing.
pub fn allocate(fd: libc::c_int, bytes: u64) -> io::Result<()> {
    // SAFETY: numbers only; a descriptor that is not open is an error.
    check_errno(unsafe { libc::posix_fallocate(fd, 0, bytes as libc::off_t) })
}
