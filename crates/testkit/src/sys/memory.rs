//! Memory aligned for O_DIRECT, and memory that is touched page by page.

use std::io;

use super::fill;

/// Memory aligned for O_DIRECT.
pub struct Aligned {
    at: *mut u8,
    bytes: usize,
}

impl Aligned {
    const ALIGN: usize = 4096;

    /// This many bytes, rounded up to pages, filled with bytes that do not compress.
    pub fn new(bytes: usize) -> Aligned {
        let bytes = bytes.next_multiple_of(Self::ALIGN).max(Self::ALIGN);
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        if at.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        let mut memory = Aligned { at, bytes };
        fill(memory.as_mut(), 1);
        memory
    }

    fn layout(bytes: usize) -> std::alloc::Layout {
        // A power of two, and far from the end of the address space.
        std::alloc::Layout::from_size_align(bytes, Self::ALIGN).expect("a small aligned layout")
    }

    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: `new` allocated and initialised this many bytes, which are ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

// SAFETY: the memory is owned, and bytes may be read from any thread.
unsafe impl Send for Aligned {}
// SAFETY: as above; it is written only while it is made.
unsafe impl Sync for Aligned {}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `as_mut`.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { std::alloc::dealloc(self.at, Self::layout(self.bytes)) };
    }
}

/// Anonymous memory whose pages are not there until they are touched.
pub struct Memory {
    at: *mut u8,
    bytes: usize,
}

impl Memory {
    /// Reserves address space of this many bytes.
    ///
    /// # Errors
    /// If the address space is exhausted.
    pub fn new(bytes: usize) -> io::Result<Memory> {
        // SAFETY: a new anonymous mapping touches no memory of ours.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Memory { at: at.cast(), bytes })
    }

    /// Writes a byte into each page of `range`, as far as it lies within the memory.
    pub fn touch(&mut self, range: std::ops::Range<usize>) {
        for offset in (range.start..range.end.min(self.bytes)).step_by(4096) {
            // SAFETY: the offset lies within the mapping, which is ours alone.
            unsafe { self.at.add(offset).write_volatile(offset as u8 | 1) };
        }
    }

    /// Writes bytes from `offset` on; false if they do not fit.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes);
        if fits {
            // SAFETY: all of it lies within the mapping, which is ours alone.
            unsafe { self.at.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        fits
    }

    /// Where it begins.
    pub(super) fn address(&self) -> u64 {
        self.at as u64
    }

    /// Gives all pages back to the kernel; the address space stays.
    pub fn release(&mut self) {
        // SAFETY: the mapping is ours alone, and zeroed pages are valid bytes.
        unsafe { libc::madvise(self.at.cast(), self.bytes, libc::MADV_DONTNEED) };
    }
}

// SAFETY: the mapping is owned, and may be written from any thread that has it alone.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}
