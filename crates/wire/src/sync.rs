//! The atomics that threads and processes share: the language's own, or those of loom, which tries every
//! order in which threads may come and every value that a load may see (`scripts/loom.sh`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// Orders what came before it and what comes after it, between accesses that are all `SeqCst`.
///
/// Rust's memory model orders `SeqCst` accesses without help, so this does nothing. Loom treats them as
/// `AcqRel` (so that it may try more than can happen, never less) and orders them by fences only.
#[inline]
pub fn in_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Tries every order of events in `f` with so many preemptions, unless LOOM_MAX_PREEMPTIONS says otherwise.
#[cfg(all(test, loom))]
pub fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(f);
}
