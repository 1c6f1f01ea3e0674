//! The NCCL door: a profiler plug-in for NCCL 2.27 and later (`NCCL_PROFILER_PLUGIN`).
//!
//! | file | what it knows |
//! |---|---|
//! | `abi` | the interface's versions 4 to 7 |
//! | `door` | the symbols that NCCL looks for |
//! | `follow` | which event belongs to what, and when all of a task has ended |
//! | `open` | what is kept of each meanwhile |
//! | `tell` | the records |
//! | `pool` | places and handles of open events |
//! | `timing` | the GPU's clock on the host's |
//! | `multiplex` | the user's own plug-in beside ours |
//! | `names`, `peers` | tables of fixed size |
//! | `outside` | the clock and the ring, which tests replace |
//!
//! NCCL calls from the program's own threads, from the threads that feed its network and from one
//! that watches its kernels. No call waits for another, none allocates once communicators are
//! made, and everything has an end: 4,096 tasks, 8,192 parts of them and 256 communicators open
//! at once, beyond which NCCL gets a null handle and the loss is counted.
//!
//! From the environment: `GPUWHY_NCCL_MASK` (a number: the events to ask for instead of ours),
//! `GPUWHY_NCCL_NEXT` (a plug-in as `NCCL_PROFILER_PLUGIN` would name it, which gets everything
//! too), `GPUWHY_OFF=1` (tell nothing, pass everything on).

pub mod abi;
mod door;
mod follow;
mod multiplex;
mod names;
mod open;
mod outside;
mod peers;
mod pool;
mod tell;
mod text;
mod timing;

#[cfg(test)]
mod tests;

pub use door::{ncclProfiler_v4, ncclProfiler_v5, ncclProfiler_v6, ncclProfiler_v7};

/// How much NCCL shall tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Detail {
    /// Calls and tasks, timed on the host: next to nothing for the program.
    Low = 0,
    /// And when they ran on the GPU: by phases where NCCL knows them (2.31), else by channels. On
    /// NCCL 2.31 this slows small collectives by up to a tenth (NCCL issue 2355).
    Phases = 1,
    /// And what the network did, and each channel on its own.
    Network = 2,
}

/// Asks NCCL to tell more or less from now on, in all communicators of this process.
pub fn set_detail(detail: Detail) {
    crate::guarded((), || door::DOOR.set_detail(detail));
}

/// Tells a collector that has just come which communicators there are. For the link's thread, once
/// a second or so; a communicator that works tells of itself.
pub fn tick() {
    crate::guarded((), || door::DOOR.tick());
}

/// What a collector asks for, from now on.
pub(crate) fn ask(settings: gpuwhy_wire::Settings) {
    use gpuwhy_wire::Collectives;
    let unwanted = settings.collectives == Collectives::Off;
    outside::UNWANTED.store(unwanted, core::sync::atomic::Ordering::Relaxed);
    set_detail(match settings.collectives {
        Collectives::Off | Collectives::Calls => Detail::Low,
        Collectives::Phases => Detail::Phases,
        Collectives::Network => Detail::Network,
    });
}
