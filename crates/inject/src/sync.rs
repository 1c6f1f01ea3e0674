//! What threads share here is made of these: the language's own, or those of loom, which tries
//! every order in which threads may come and every value that a load may see (`scripts/loom.sh`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
#[cfg(loom)]
pub use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

/// A cell with the interface of loom's.
#[cfg(not(loom))]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    /// What the pointer may be used for is the caller's argument.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Orders what came before it and what comes after it, between accesses that are all `SeqCst`.
///
/// In the language they are ordered as they are, and this is nothing. Loom takes such accesses for
/// `AcqRel` (it may then see more than can happen, never less) and knows their order by fences only.
#[inline]
pub fn in_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}
