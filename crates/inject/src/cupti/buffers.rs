//! The memory that CUPTI fills with records: a fixed number of buffers, made once.
//!
//! A buffer is free, or CUPTI has it. When none is free, CUPTI gets none and counts the records that it
//! drops, so that memory has a limit whatever the device does. Buffers are zeroed when they come back,
//! on CUPTI's own thread, so that CUPTI need not do it on the program's.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// Bytes of a buffer: some 600 kernels.
pub const BYTES: usize = 128 << 10;
/// How many there are: 4 MiB together.
pub const COUNT: usize = 32;

/// All buffers.
pub struct Buffers {
    base: AtomicPtr<u8>,
    /// One bit for each buffer that is free.
    free: AtomicU32,
    /// How often none was free.
    starved: AtomicU64,
}

impl Buffers {
    /// No memory yet.
    pub const fn new() -> Buffers {
        Buffers {
            base: AtomicPtr::new(null_mut()),
            free: AtomicU32::new(0),
            starved: AtomicU64::new(0),
        }
    }

    /// Allocates them, unless that has been done; false if the system gives no memory. One thread at a
    /// time.
    pub fn make(&self) -> bool {
        if !self.base.load(Acquire).is_null() {
            return true;
        }
        // All pages are there from the start: the program's thread that launches fills them.
        // SAFETY: a new anonymous mapping touches no memory of ours. It is aligned to a page and
        // zeroed, and is never unmapped, since CUPTI may keep a buffer for as long as it likes.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                BYTES * COUNT,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return false;
        }
        self.base.store(base.cast(), Release);
        self.free.store(u32::MAX, Release);
        true
    }

    /// A free buffer, which is now CUPTI's.
    pub fn take(&self) -> Option<*mut u8> {
        let mut free = self.free.load(Relaxed);
        loop {
            if free == 0 {
                self.starved.fetch_add(1, Relaxed);
                return None;
            }
            let bit = free & free.wrapping_neg();
            match self.free.compare_exchange_weak(free, free & !bit, AcqRel, Relaxed) {
                // Within the mapping: the bit's number is below `COUNT`.
                Ok(_) => {
                    let base = self.base.load(Acquire);
                    return Some(base.wrapping_add(bit.trailing_zeros() as usize * BYTES));
                }
                Err(now) => free = now,
            }
        }
    }

    /// The index of the buffer that begins there, if CUPTI has it.
    fn index(&self, buffer: *mut u8) -> Option<u32> {
        let base = self.base.load(Acquire) as usize;
        let offset = (buffer as usize).checked_sub(base)?;
        let index = offset / BYTES;
        let ours = base != 0 && offset.is_multiple_of(BYTES) && index < COUNT;
        (ours && self.free.load(Acquire) & (1 << index) == 0).then_some(index as u32)
    }

    /// Whether this is a buffer that CUPTI has.
    pub fn is_out(&self, buffer: *mut u8) -> bool {
        self.index(buffer).is_some()
    }

    /// A buffer has come back with `written` bytes of records. A pointer to anything else is ignored.
    pub fn give_back(&self, buffer: *mut u8, written: usize) {
        let Some(index) = self.index(buffer) else { return };
        // SAFETY: `buffer` is one of ours that CUPTI had, and CUPTI gives it back here, so that only we
        // use these `BYTES` bytes.
        unsafe { buffer.write_bytes(0, written.min(BYTES)) };
        self.free.fetch_or(1 << index, Release);
    }

    /// How many buffers CUPTI has.
    pub fn out(&self) -> usize {
        match self.base.load(Acquire).is_null() {
            true => 0,
            false => COUNT - self.free.load(Acquire).count_ones() as usize,
        }
    }

    /// How often CUPTI asked for a buffer when none was free.
    pub fn starved(&self) -> u64 {
        self.starved.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_bounded_and_come_back_zeroed() {
        let buffers = Buffers::new();
        assert!(buffers.take().is_none(), "none yet");
        assert!(buffers.make() && buffers.make());
        let all: Vec<_> = (0..COUNT).map(|_| buffers.take().unwrap()).collect();
        assert!(buffers.take().is_none());
        assert_eq!((buffers.out(), buffers.starved()), (COUNT, 2));
        // SAFETY: taken above, so it is ours and `BYTES` long.
        unsafe { all[3].write_bytes(7, 100) };
        buffers.give_back(all[3], 100);
        assert_eq!(buffers.take(), Some(all[3]));
        // SAFETY: as above.
        assert!((0..100).all(|i| unsafe { *all[3].add(i) } == 0));
    }

    #[test]
    fn only_buffers_that_cupti_has_come_back() {
        let buffers = Buffers::new();
        assert!(buffers.make());
        let one = buffers.take().unwrap();
        for other in [null_mut(), one.wrapping_add(1), one.wrapping_add(BYTES * COUNT)] {
            buffers.give_back(other, 10);
        }
        assert_eq!(buffers.out(), 1);
        buffers.give_back(one, 0);
        buffers.give_back(one, 0);
        assert_eq!(buffers.out(), 0);
    }
}
