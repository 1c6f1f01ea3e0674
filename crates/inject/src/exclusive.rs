//! Something that one thread at a time may use, and that nobody waits for.
//!
//! A mutex that a fork finds locked is locked in the child for ever; this one can be opened there.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::{AtomicBool, UnsafeCell};

/// See the module.
pub struct Exclusive<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is touched by whoever has set `taken` and by nobody else.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    /// Free.
    #[cfg(loom)]
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Free.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Exclusive<T> {
        Exclusive { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Gives `f` the value, unless another thread, or this one further up, has it.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Who comes second writes nothing.
        self.taken.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        let free = Free(&self.taken);
        let out = self.value.with_mut(|value| {
            // SAFETY: `taken` was false and is true now, so nobody else has a reference, until
            // `free` is dropped.
            f(unsafe { &mut *value })
        });
        drop(free);
        Some(out)
    }

    /// In a forked child, which has one thread: whoever had it is not here.
    pub fn open_after_fork(&self) {
        self.taken.store(false, Release);
    }
}

/// Frees it, also in a panic.
struct Free<'a>(&'a AtomicBool);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_comes_second_goes_without() {
        let one = Exclusive::new(1);
        let inner = one.with(|n| {
            *n += 1;
            one.with(|_| ())
        });
        assert_eq!((inner, one.with(|n| *n)), (Some(None), Some(2)));
        let panicked =
            std::thread::scope(|s| s.spawn(|| one.with(|_| panic!("on purpose"))).join());
        assert!(panicked.is_err());
        assert_eq!(one.with(|n| *n), Some(2));
    }
}
