//! The atomics and cells that threads share here: the language's own, or those of loom, which tries
//! every order of threads and every value that a load may see (`scripts/loom.sh`).

#[cfg(not(loom))]
pub use core::sync::atomic::AtomicBool;
#[cfg(loom)]
pub use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::sync::atomic::AtomicBool;

/// A cell with the interface of loom's.
#[cfg(not(loom))]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell with this value.
    pub const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    /// What the pointer may be used for is the caller's argument.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
