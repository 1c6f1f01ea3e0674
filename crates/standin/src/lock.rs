//! A mutex whose passing on is seen by a thread sanitizer.
//!
//! std comes compiled and not instrumented, so of its mutex only the parts that are inlined here are
//! seen, and a lock that was waited for looks like none. Passing an atomic on beside it says the same
//! once more, in code that is instrumented. A poisoned mutex is used like any other.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// See the module.
#[derive(Default)]
pub struct Mutex<T> {
    inner: std::sync::Mutex<T>,
    passed_on: AtomicU32,
}

/// Has the mutex.
pub struct Guard<'a, T> {
    inner: MutexGuard<'a, T>,
    passed_on: &'a AtomicU32,
}

impl<T> Mutex<T> {
    /// Free.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { inner: std::sync::Mutex::new(value), passed_on: AtomicU32::new(0) }
    }

    /// Waits for it.
    pub fn lock(&self) -> Guard<'_, T> {
        let inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.passed_on.load(Acquire);
        Guard { inner, passed_on: &self.passed_on }
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
        // Before the mutex itself is freed, which happens when the fields are dropped.
        self.passed_on.store(1, Release);
    }
}
