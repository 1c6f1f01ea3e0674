//! NCCL: a profiler plug-in for NCCL 2.27 and later (`NCCL_PROFILER_PLUGIN`).
//!
//! | file | what it knows |
//! |---|---|
//! | `abi` | the interface's versions 4 to 7 |
//! | `entry` | the symbols that NCCL looks for |
//! | `follow` | which event belongs to what: NCCL's calls, dispatched |
//! | `communicators`, `tasks`, `parts` | what is done for each of them, and when all of a task has ended |
//! | `open` | what is kept of each while it is open |
//! | `report` | the records |
//! | `pool` | places and handles of open events |
//! | `timing` | the GPU's clock on the host's |
//! | `multiplex` | the user's own plug-in beside ours |
//! | `names`, `peers` | tables of fixed size |
//! | `outside` | the clock and the ring, which tests replace |
//!
//! NCCL calls from the program's own threads, from the threads that feed its network and from one
//! that watches its kernels. No call waits for another, none allocates once communicators are
//! made, and everything has a limit: 4,096 tasks, 8,192 parts of them and 256 communicators open
//! at once, beyond which NCCL gets a null handle and the loss is counted.
//!
//! From the environment: `GPUWHY_NCCL_MASK` (a number: the events to ask for instead of ours),
//! `GPUWHY_NCCL_NEXT` (a plug-in as `NCCL_PROFILER_PLUGIN` would name it, which gets everything
//! too), `GPUWHY_OFF=1` (record nothing, pass everything on).

pub mod abi;
mod communicators;
mod entry;
mod follow;
mod multiplex;
mod names;
mod open;
mod outside;
mod parts;
mod peers;
mod pool;
mod report;
mod tasks;
mod text;
mod timing;

#[cfg(test)]
mod tests;

pub use entry::{ncclProfiler_v4, ncclProfiler_v5, ncclProfiler_v6, ncclProfiler_v7};

use core::sync::atomic::Ordering::Relaxed;

use gpuwhy_wire::{Collectives, Settings};

use crate::tenant::Tenant;
use follow::Tracker;
use outside::Process;

/// How much NCCL is to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Detail {
    /// Calls and tasks, timed on the host: next to nothing for the program.
    Low = 0,
    /// And when they ran on the GPU: by phases where NCCL knows them (2.31), else by channels. On
    /// NCCL 2.31 this slows small collectives by up to a tenth (NCCL issue 2355).
    Phases = 1,
    /// And what the network did, and each channel alone.
    Network = 2,
}

/// The process's events.
static TRACKER: Tracker<Process> = Tracker::new(Process);

/// NCCL, as the connection to the agent sees it.
pub(crate) struct NcclTenant;

impl Tenant for NcclTenant {
    fn ask(&self, settings: Settings) {
        outside::UNWANTED.store(settings.collectives == Collectives::Off, Relaxed);
        TRACKER.set_detail(match settings.collectives {
            Collectives::Off | Collectives::Calls => Detail::Low,
            Collectives::Phases => Detail::Phases,
            Collectives::Network => Detail::Network,
        });
    }

    fn tick(&self) {
        TRACKER.tick();
    }

    fn forget(&self) {
        TRACKER.forget_after_fork();
    }
}
