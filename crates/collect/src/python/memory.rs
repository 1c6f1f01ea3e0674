//! The memory of another process, as it is read for names.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The memory of one process. Reading it takes the rights of a debugger.
#[derive(Debug)]
pub(super) struct Memory(File);

impl Memory {
    /// Of process `pid`.
    ///
    /// # Errors
    /// It has ended, or may not be read.
    pub fn of(pid: u32) -> io::Result<Memory> {
        File::open(format!("/proc/{pid}/mem")).map(Memory)
    }

    /// Fills `buffer` from `address` on; `None` where that is not mapped.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.0.read_exact_at(buffer, address).ok()
    }

    /// The 64 bits at `address`.
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }
}
