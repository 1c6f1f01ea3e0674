//! A value that many threads use while one may withdraw it; neither waits for the other.
//!
//! A reader counts itself in one of a few counters, loads the pointer, uses the value, and counts
//! itself out. A withdrawn value is freed once each counter has been seen at zero since; until then it
//! stays.
//!
//! *Why it holds.* The reader's count and its load of the pointer, and the withdrawal and the load of
//! the counter, are all `SeqCst`: of a reader that counts and then loads, and an owner that withdraws
//! and then loads, at least one sees the other. So a reader either finds null, or is seen. An owner
//! that sees zero after a reader was there (its load acquires the reader's `Release`) sees everything
//! that the reader did as past. An `Acquire` load of the counter would not do: it may be executed
//! before the withdrawal is visible to others, as on ARM with LDAPR. `models.rs` has loom try all
//! orders.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use crate::sync::{AtomicPtr, AtomicUsize, in_order};

/// Counters, so that readers on many CPUs do not share a cache line.
pub const LINES: usize = if cfg!(loom) { 2 } else { 16 };
/// How often a counter is loaded before the rest is left for the next call: readers stay for tens of
/// ns, and a thread that was stopped while it reads keeps the value alive.
const LOOKS: usize = if cfg!(loom) { 2 } else { 1000 };

/// A counter on a cache line of its own.
#[repr(align(128))]
struct Readers(AtomicUsize);

/// A value that is published or not.
pub struct Published<T> {
    current: AtomicPtr<T>,
    readers: [Readers; LINES],
}

/// A withdrawn value, which [`Published::release`] frees. If this is dropped instead, the value leaks.
#[derive(Debug)]
pub struct Withdrawn<T>(NonNull<T>);

// SAFETY: it is the only owner of the value, which readers may still share.
unsafe impl<T: Send + Sync> Send for Withdrawn<T> {}

impl<T> Published<T> {
    /// Nothing is published.
    #[cfg(not(loom))]
    pub const fn new() -> Published<T> {
        Published {
            current: AtomicPtr::new(null_mut()),
            readers: [const { Readers(AtomicUsize::new(0)) }; LINES],
        }
    }

    /// Nothing is published.
    #[cfg(loom)]
    pub fn new() -> Published<T> {
        Published {
            current: AtomicPtr::new(null_mut()),
            readers: std::array::from_fn(|_| Readers(AtomicUsize::new(0))),
        }
    }

    /// Whether a value seems to be published; only [`Published::with`] knows.
    #[inline]
    pub fn is_there(&self) -> bool {
        !self.current.load(Relaxed).is_null()
    }

    /// Calls `f` with the value, if one is published; the reader counts itself in counter `line` of
    /// [`LINES`]. Never waits.
    #[inline]
    pub fn with<R>(&self, line: usize, f: impl FnOnce(&T) -> R) -> Option<R> {
        let readers = &self.readers[line % LINES].0;
        // Before the pointer is loaded: the thread that withdraws sees this count, or we see null.
        readers.fetch_add(1, SeqCst);
        let counted = Counted(readers);
        in_order();
        let current = self.current.load(SeqCst);
        // SAFETY: a published pointer is a leaked box. It is freed only after it was withdrawn and
        // each counter was seen at zero since; ours was above zero before the pointer was read and
        // is so until `counted` is dropped.
        let out = unsafe { current.as_ref() }.map(f);
        drop(counted);
        out
    }

    /// Publishes a value, and withdraws the one that was published before.
    pub fn publish(&self, value: Box<T>) -> Option<Withdrawn<T>> {
        NonNull::new(self.current.swap(Box::into_raw(value), SeqCst)).map(Withdrawn)
    }

    /// Withdraws the value that is published.
    pub fn withdraw(&self) -> Option<Withdrawn<T>> {
        NonNull::new(self.current.swap(null_mut(), SeqCst)).map(Withdrawn)
    }

    /// Frees withdrawn values of this, if no reader can be using them: each counter is seen at zero.
    pub fn release(&self, withdrawn: &mut Vec<Withdrawn<T>>) {
        if withdrawn.is_empty() {
            return;
        }
        in_order();
        for readers in &self.readers {
            let free = (0..LOOKS).any(|_| {
                core::hint::spin_loop();
                readers.0.load(SeqCst) == 0
            });
            if !free {
                return;
            }
        }
        for value in withdrawn.drain(..) {
            // SAFETY: a box that `publish` leaked; it was withdrawn before the loop above, by which
            // no reader has it.
            drop(unsafe { Box::from_raw(value.0.as_ptr()) });
        }
    }

    /// In a forked child, whose one thread is not reading: resets the counters, and leaks the value, which
    /// is the parent's.
    pub fn forget_after_fork(&self) {
        self.current.store(null_mut(), SeqCst);
        for readers in &self.readers {
            readers.0.store(0, SeqCst);
        }
    }
}

impl<T> Default for Published<T> {
    fn default() -> Published<T> {
        Published::new()
    }
}

/// Counts a reader out, also when it panics.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_withdrawn_value_is_freed_when_no_reader_uses_it() {
        let published = Published::new();
        assert_eq!(published.with(0, |_: &Arc<u32>| ()), None);
        let value = Arc::new(7);
        assert!(published.publish(Box::new(value.clone())).is_none());
        let mut withdrawn = Vec::new();
        published.with(3, |seen| {
            assert_eq!(**seen, 7);
            withdrawn.extend(published.withdraw());
            published.release(&mut withdrawn);
            assert_eq!(Arc::strong_count(&value), 2, "in use");
        });
        assert_eq!(published.with(3, |_| ()), None);
        published.release(&mut withdrawn);
        assert_eq!((withdrawn.len(), Arc::strong_count(&value)), (0, 1));
    }

    #[test]
    fn a_reader_that_panics_keeps_no_value_alive() {
        let published = Published::new();
        assert!(published.publish(Box::new(1)).is_none());
        let panicked = std::thread::scope(|scope| {
            scope.spawn(|| published.with(1, |_| panic!("on purpose"))).join()
        });
        assert!(panicked.is_err());
        let mut withdrawn = Vec::from_iter(published.withdraw());
        published.release(&mut withdrawn);
        assert!(withdrawn.is_empty());
    }
}
