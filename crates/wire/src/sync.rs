//! The atomics that the ring is made of: the language's own, or those of loom, which tries every
//! order in which threads may come and every value that a load may see (`scripts/loom.sh`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64};
