//! One shared object that lives inside somebody else's process and tells what happens there.
//!
//! It has two doors. The CUDA driver loads it because `CUDA_INJECTION64_PATH` names it, and NCCL
//! because `NCCL_PROFILER_PLUGIN` does. Both write `gpuwhy-wire` records into a ring that a
//! collector gave them ([`link`]); without a collector they do nothing.
//!
//! *Invariants.* Nothing here blocks, prints, fails, or grows without bound, and no panic leaves
//! it: a function that others call runs inside [`guarded`]. `GPUWHY_OFF=1` turns all of it off.

#[cfg(not(loom))]
pub mod cupti;
pub mod exclusive;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
pub mod nccl;
#[cfg(not(loom))]
pub mod notice;
pub mod published;
#[cfg(not(loom))]
pub mod ring;
mod sync;
#[cfg(not(loom))]
mod tenant;
#[cfg(not(loom))]
mod tenants;

#[cfg(all(test, loom))]
mod models;

/// Panics that did not leave.
static FAULTS: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// Runs `f` and turns a panic into `otherwise`: nothing unwinds into C code. It is counted, and the
/// collector is told.
pub fn guarded<R>(otherwise: R, f: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or_else(|_| {
        FAULTS.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        otherwise
    })
}

/// How many panics did not leave.
pub(crate) fn faults() -> u64 {
    FAULTS.load(core::sync::atomic::Ordering::Relaxed)
}
