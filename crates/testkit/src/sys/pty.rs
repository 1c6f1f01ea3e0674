//! Pseudo-terminals.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// A terminal whose other end is ours.
pub struct Pty {
    /// What is written here was typed; what programs write can be read here.
    pub master: File,
    /// The terminal, held open so that its modes outlive the programs in it.
    slave: File,
    /// Its path.
    pub path: PathBuf,
}

/// How a terminal is set: input, output, control and local modes, and control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modes {
    flags: [libc::tcflag_t; 4],
    characters: [libc::cc_t; libc::NCCS],
}

impl Pty {
    /// A new one, with the kernel's modes.
    ///
    /// # Errors
    /// There is no `/dev/ptmx`, or no more of them.
    pub fn new() -> io::Result<Pty> {
        let open = |path: &str| {
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)
        };
        let master = open("/dev/ptmx")?;
        let (locked, mut number): (libc::c_int, libc::c_int) = (0, 0);
        // SAFETY: both numbers live during the calls, which read the one and write the other.
        let failed = unsafe {
            libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &locked) < 0
                || libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &mut number) < 0
        };
        if failed {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/dev/pts/{number}");
        let slave = open(&path)?;
        Ok(Pty { master, slave, path: path.into() })
    }

    /// How it is set now.
    ///
    /// # Errors
    /// It is gone.
    pub fn modes(&self) -> io::Result<Modes> {
        // SAFETY: a `termios` is plain numbers, for which zeros are valid, and lives during the call.
        let modes = unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(self.slave.as_raw_fd(), &mut modes) < 0 {
                return Err(io::Error::last_os_error());
            }
            modes
        };
        let flags = [modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag];
        Ok(Modes { flags, characters: modes.c_cc })
    }
}
