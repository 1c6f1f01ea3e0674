//! Memory that is mapped for reading.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Memory that somebody else writes at any time, and this process reads.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is only read, by atomic or volatile loads, from any thread, and belongs to no thread.
unsafe impl Send for Mapped {}

impl Mapped {
    /// The first bytes of a file, of a map, or of a driver's memory.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(file: impl AsFd, bytes: usize) -> io::Result<Mapped> {
        // SAFETY: a new shared read-only mapping at an address of the kernel's choice; the descriptor is open during the call,
        // and the mapping outlives it by itself.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_fd().as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Mapped { memory, bytes })
    }

    /// Where it begins: a page's beginning, with as many bytes behind it as were mapped, for as long as this lives.
    pub fn start(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    /// The 32 bits at a multiple of 4; none beyond the end. What was written before is seen by loads after this one.
    pub fn u32(&self, at: usize) -> Option<u32> {
        (at.is_multiple_of(4) && at.checked_add(4)? <= self.bytes).then(|| {
            // SAFETY: within the mapping, which lives as long as `self`, and aligned, since mappings begin at pages; nothing
            // here ever takes a reference to it but as an atomic.
            unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(at).cast()) }
                .load(Ordering::Acquire)
        })
    }

    /// The same of 64 bits.
    pub fn u64(&self, at: usize) -> Option<u64> {
        (at.is_multiple_of(8) && at.checked_add(8)? <= self.bytes).then(|| {
            // SAFETY: as in `u32`.
            unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(at).cast()) }
                .load(Ordering::Acquire)
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nothing borrows from it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
