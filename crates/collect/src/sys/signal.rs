//! Signals to processes.

use std::io;

/// Sends a signal to a process.
///
/// # Errors
/// There is no such process, or we may not signal it.
pub fn signal(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes plain numbers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
