//! One shared object that is loaded into other people's processes and records what happens there.
//!
//! The CUDA driver loads it because `CUDA_INJECTION64_PATH` names it ([`cupti`]), and NCCL because
//! `NCCL_PROFILER_PLUGIN` does ([`nccl`]). Both are tenants (`tenants`): their entry points write
//! `gpuwhy-wire` records to the ring that an agent has sent ([`ring`]), and one thread, which holds
//! the connection to the agent ([`link`]), calls them back. Without an agent they do nothing.
//!
//! *Invariants.* Nothing here blocks, prints, fails, or grows without bound, and no panic leaves
//! the library: every function that other code calls runs inside [`guarded`]. `GPUWHY_OFF=1` turns
//! all of it off.

#[cfg(not(loom))]
pub mod cupti;
pub mod exclusive;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
pub mod nccl;
#[cfg(not(loom))]
pub mod notice;
mod sync;
#[cfg(not(loom))]
mod tenant;
#[cfg(not(loom))]
mod tenants;

#[cfg(not(loom))]
pub use gpuwhy_wire::connected as ring;

#[cfg(all(test, loom))]
mod models;

/// Panics that were caught.
#[cfg(not(loom))]
static FAULTS: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// Runs `f`; if it panics, counts that and returns `otherwise`, so that nothing unwinds into C code.
/// The count is reported to the agent.
#[cfg(not(loom))]
pub fn guarded<R>(otherwise: R, f: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or_else(|_| {
        FAULTS.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        otherwise
    })
}

/// How many panics were caught in this process.
#[cfg(not(loom))]
pub(crate) fn faults() -> u64 {
    FAULTS.load(core::sync::atomic::Ordering::Relaxed)
}
