//! A lock that a forked child can open: the thread that held it exists in the parent only.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// A value that one thread at a time uses. Whoever waits for it sleeps for 50 us at a time: it is held while an image
/// is loaded or maps are copied, and not in launches.
pub struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that has set `taken` touches `value`.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Unlocks it, also in a panic.
struct Free<'a>(&'a AtomicBool);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value, if no other thread has it.
    pub fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.taken.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        let free = Free(&self.taken);
        // SAFETY: `taken` was false and is true now, so nobody else has a reference until `free` is dropped.
        let out = f(unsafe { &mut *self.value.get() });
        drop(free);
        Some(out)
    }

    /// Calls `f` with the value when no other thread has it. Not from within `f`.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut f = Some(f);
        loop {
            // `f` is taken only where it is called, and then this returns.
            let done = self.try_with(|value| f.take().map(|f| f(value)));
            if let Some(Some(out)) = done {
                return out;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// In a forked child, which has one thread: unlocks it, and leaves what it held, which is the parent's.
    pub fn forget_after_fork(&self, empty: T) {
        // SAFETY: no other thread exists in this process. The old value is not dropped: it may be half changed.
        unsafe { self.value.get().write(empty) };
        self.taken.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn one_thread_at_a_time_has_it() {
        let lock = Arc::new(Lock::new(0_u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || (0..1000).for_each(|_| lock.with(|n| *n += 1)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(lock.with(|n| (*n, lock.try_with(|_| ()))), (4000, None));
    }

    #[test]
    fn it_is_free_again_after_a_panic() {
        let lock = Lock::new(1);
        let panicked =
            std::thread::scope(|s| s.spawn(|| lock.with(|_| panic!("on purpose"))).join());
        assert!(panicked.is_err());
        assert_eq!(lock.try_with(|n| *n), Some(1));
    }
}
