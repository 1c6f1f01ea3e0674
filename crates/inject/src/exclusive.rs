//! A lock that is tried and never waited for.
//!
//! A mutex that is locked during a fork stays locked in the child for ever; this one can be unlocked
//! there.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::{AtomicBool, UnsafeCell};

/// A value that one thread at a time may use.
pub struct Exclusive<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that has set `taken` touches `value`.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    /// Unlocked.
    #[cfg(loom)]
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Unlocked.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Exclusive<T> {
        Exclusive { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value, unless another thread is using it, or this one further up its stack.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.taken.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        let free = Free(&self.taken);
        let out = self.value.with_mut(|value| {
            // SAFETY: `taken` was false and is true now, so no other thread has a reference, until
            // `free` is dropped.
            f(unsafe { &mut *value })
        });
        drop(free);
        Some(out)
    }

    /// Unlocks it in a forked child: the thread that held it exists in the parent only.
    pub fn open_after_fork(&self) {
        self.taken.store(false, Release);
    }
}

/// Unlocks it, also in a panic.
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
    fn a_second_user_goes_without() {
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
