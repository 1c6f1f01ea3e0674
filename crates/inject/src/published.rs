//! Something that many threads use while one may take it away; nobody waits for the other.
//!
//! A reader marks itself in one of a few counters, looks whether there is something, uses it, and
//! unmarks itself. What was withdrawn is freed once each counter has been seen at zero since; until
//! then it stays.
//!
//! *Why it holds.* The mark and the look at the pointer, and the withdrawal and the look at the
//! counter, are `SeqCst`: of one who marks and then looks, and one who withdraws and then looks, at
//! least one sees the other. So a reader either finds nothing, or is seen; and who has seen zero
//! after it (`Acquire` of the unmarking `Release`) has what the reader did behind it. An `Acquire`
//! load of the counter would not do: it may be taken before the withdrawal is seen by others, as on
//! ARM with LDAPR. `models.rs` has loom try all orders.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use crate::sync::{AtomicPtr, AtomicUsize, in_order};

/// Counters, so that readers on many CPUs do not share a cache line.
pub const LINES: usize = if cfg!(loom) { 2 } else { 16 };
/// How often a counter is looked at before it is left for the next time: readers stay for tens of
/// ns, and one that was stopped in the middle keeps what it has.
const LOOKS: usize = if cfg!(loom) { 2 } else { 1000 };

/// A counter on a cache line of its own.
#[repr(align(128))]
struct Readers(AtomicUsize);

/// See the module.
pub struct Published<T> {
    current: AtomicPtr<T>,
    readers: [Readers; LINES],
}

/// What was withdrawn; [`Published::release`] frees it. Dropped otherwise, it stays for ever.
#[derive(Debug)]
pub struct Withdrawn<T>(NonNull<T>);

// SAFETY: it is the one owner of the value, which readers may still share.
unsafe impl<T: Send + Sync> Send for Withdrawn<T> {}

impl<T> Published<T> {
    /// Nothing yet.
    #[cfg(not(loom))]
    pub const fn new() -> Published<T> {
        Published {
            current: AtomicPtr::new(null_mut()),
            readers: [const { Readers(AtomicUsize::new(0)) }; LINES],
        }
    }

    /// Nothing yet.
    #[cfg(loom)]
    pub fn new() -> Published<T> {
        Published {
            current: AtomicPtr::new(null_mut()),
            readers: std::array::from_fn(|_| Readers(AtomicUsize::new(0))),
        }
    }

    /// Whether there seems to be something; what follows from it is up to [`Published::with`].
    #[inline]
    pub fn is_there(&self) -> bool {
        !self.current.load(Relaxed).is_null()
    }

    /// Gives `f` what is published, if something is; the reader marks itself in counter `line` of
    /// [`LINES`]. Never waits.
    #[inline]
    pub fn with<R>(&self, line: usize, f: impl FnOnce(&T) -> R) -> Option<R> {
        let readers = &self.readers[line % LINES].0;
        // Before the pointer is read: whoever withdraws sees this mark, or we see nothing.
        readers.fetch_add(1, SeqCst);
        let marked = Marked(readers);
        in_order();
        let current = self.current.load(SeqCst);
        // SAFETY: a published pointer is a leaked box. It is freed only after it was withdrawn and
        // each counter was seen at zero since; ours was above zero before the pointer was read and
        // is so until `marked` is dropped.
        let out = unsafe { current.as_ref() }.map(f);
        drop(marked);
        out
    }

    /// Publishes a value in the place of nothing; what was there is withdrawn.
    pub fn publish(&self, value: Box<T>) -> Option<Withdrawn<T>> {
        NonNull::new(self.current.swap(Box::into_raw(value), SeqCst)).map(Withdrawn)
    }

    /// From now on there is nothing.
    pub fn withdraw(&self) -> Option<Withdrawn<T>> {
        NonNull::new(self.current.swap(null_mut(), SeqCst)).map(Withdrawn)
    }

    /// Frees what was withdrawn here, if nobody can be using it: each counter is seen at zero once.
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

    /// In a forked child, which has one thread and that is not here: nobody reads, and what was
    /// published is the parent's and stays where it is.
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

/// Unmarks a reader, also when it panics.
struct Marked<'a>(&'a AtomicUsize);

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_used_stays_and_what_is_not_goes() {
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
    fn a_reader_that_panics_keeps_nothing() {
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
