//! A mutex that a thread sanitizer understands.
//!
//! std comes compiled and not instrumented, so a sanitizer sees only the inlined parts of its mutex
//! and misses that a thread has waited for the lock. A release and an acquire of an atomic beside
//! the mutex show the same order in instrumented code. A poisoned mutex is used like any other.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A mutex; see the module.
#[derive(Default)]
pub struct Mutex<T> {
    inner: std::sync::Mutex<T>,
    released: AtomicU32,
}

/// Holds a [`Mutex`] until dropped.
pub struct Guard<'a, T> {
    inner: MutexGuard<'a, T>,
    released: &'a AtomicU32,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { inner: std::sync::Mutex::new(value), released: AtomicU32::new(0) }
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> Guard<'_, T> {
        let inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.released.load(Acquire);
        Guard { inner, released: &self.released }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Before the mutex itself is unlocked, which happens when the fields are dropped.
        self.released.store(1, Release);
    }
}
