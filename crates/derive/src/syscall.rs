//! What a sleeping thread asked the kernel for, by the number of its system call.
//!
//! Numbers are those of x86-64 (`arch/x86/entry/syscalls/syscall_64.tbl`), which the recorder
//! stores on every architecture that it runs on today.

use gpuwhy_schema::WAIT_FOR_GIL;

/// What kind of wait a system call can lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Reads a file, pipe or socket.
    Read,
    /// Writes a file, pipe or socket.
    Write,
    /// Receives from a socket.
    Receive,
    /// Sends to a socket.
    Send,
    /// Waits for any of several descriptors.
    Poll,
    /// Forces data to the disk.
    Sync,
    /// Waits for another thread or process: a futex, a semaphore.
    Futex,
    /// Waits for the interpreter lock of Python.
    Gil,
    /// Waits for a lock on a file (`flock`, `fcntl` with `F_SETLKW`), which is ended by who gives it up.
    FileLock,
    /// Sleeps for a time.
    Timer,
    /// Talks to a device driver.
    Ioctl,
    /// In no system call: a page fault, or a kernel thread.
    None,
    /// Something else.
    Other,
}

impl Wait {
    /// Whether it is a wait for work: for something to be read, on one descriptor or on any of several.
    pub fn is_for_work(self) -> bool {
        matches!(self, Wait::Poll | Wait::Read | Wait::Receive)
    }
}

/// The wait that belongs to system call `number`; negative numbers are none.
pub fn wait(number: i64) -> Wait {
    match number {
        WAIT_FOR_GIL => Wait::Gil,
        i64::MIN..=-1 => Wait::None,
        0 | 17 | 19 | 275 | 295 | 327 => Wait::Read,
        1 | 18 | 20 | 296 | 328 | 40 => Wait::Write,
        43 | 45 | 47 | 288 | 299 => Wait::Receive,
        42 | 44 | 46 | 307 => Wait::Send,
        7 | 23 | 232 | 270 | 271 | 281 | 441 => Wait::Poll,
        26 | 74 | 75 | 162 | 277 | 306 => Wait::Sync,
        65 | 202 | 220 | 449 | 454 | 455 | 456 => Wait::Futex,
        72 | 73 => Wait::FileLock,
        34 | 35 | 230 => Wait::Timer,
        16 => Wait::Ioctl,
        _ => Wait::Other,
    }
}
