//! What one probe finds out and another one needs, each fact with one owner.

use std::collections::HashMap;

use foldhash::HashSet;
use gpuwhy_schema::{EntityId, Ns};

use crate::config::Target;

/// The most processes that are remembered as reporting through the plug-in.
const PLUGINS: usize = 1 << 16;

/// How much GPU memory processes have, and when they last used a GPU, by pid.
///
/// Written by `nvml`; read by `inject`, which compares it with what the libraries in these processes
/// report.
#[derive(Debug, Default)]
pub(crate) struct GpuUse {
    memory: HashMap<u32, u64>,
    busy: HashMap<u32, Ns>,
}

impl GpuUse {
    /// Sets the GPU memory of a process.
    pub fn set_memory(&mut self, pid: u32, bytes: u64) {
        self.memory.insert(pid, bytes);
    }

    /// A process used multiprocessors at `ts`.
    pub fn set_busy(&mut self, pid: u32, ts: Ns) {
        self.busy.insert(pid, ts);
    }

    /// A process uses no GPU any more.
    pub fn remove(&mut self, pid: u32) {
        self.memory.remove(&pid);
        self.busy.remove(&pid);
    }

    /// The bytes of GPU memory that a process has, if known.
    pub fn memory(&self, pid: u32) -> Option<u64> {
        self.memory.get(&pid).copied()
    }

    /// When a process was last seen to use multiprocessors.
    pub fn last_busy(&self, pid: u32) -> Option<Ns> {
        self.busy.get(&pid).copied()
    }
}

/// GPUs that guests have named by their UUIDs, and how many do.
///
/// Written by `inject` and `wire`.
#[derive(Debug, Default)]
pub(crate) struct GuestGpus(HashMap<EntityId, usize>);

impl GuestGpus {
    /// Nobody has known this GPU before a guest named it.
    pub fn made(&mut self, gpu: EntityId) {
        self.0.insert(gpu, 0);
    }

    /// One more guest uses the GPU.
    pub fn hold(&mut self, gpu: EntityId) {
        if let Some(guests) = self.0.get_mut(&gpu) {
            *guests += 1;
        }
    }

    /// One guest less uses it. Returns whether only guests have known it, and that was the last one.
    pub fn release(&mut self, gpu: EntityId) -> bool {
        let Some(guests) = self.0.get_mut(&gpu) else { return false };
        *guests = guests.saturating_sub(1);
        let was_last = *guests == 0;
        if was_last {
            self.0.remove(&gpu);
        }
        was_last
    }
}

/// Processes whose NCCL reports its collectives through our plug-in.
///
/// Written by `inject`; read by `nccl_calls`, which leaves these processes alone, so that no call is
/// recorded twice.
#[derive(Debug, Default)]
pub(crate) struct PluginProcesses(HashSet<u32>);

impl PluginProcesses {
    /// A process has reported a communicator.
    pub fn add(&mut self, pid: u32) {
        if self.0.len() < PLUGINS {
            self.0.insert(pid);
        }
    }

    /// A process has ended.
    pub fn remove(&mut self, pid: u32) {
        self.0.remove(&pid);
    }

    /// Whether the plug-in of a process reports.
    pub fn contains(&self, pid: u32) -> bool {
        self.0.contains(&pid)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Processes that are to become targets, since they mark steps or use a GPU.
///
/// Written by `steps`, `wire` and `inject`; taken by the recorder after each tick.
#[derive(Debug, Default)]
pub(crate) struct NewTargets(Vec<Target>);

impl NewTargets {
    /// A process is to become a target.
    pub fn add(&mut self, pid: u32) {
        if let Ok(pid) = i32::try_from(pid) {
            self.0.push(Target::Pid(pid));
        }
    }

    /// Those that were added since the last call.
    pub fn take(&mut self) -> Vec<Target> {
        std::mem::take(&mut self.0)
    }
}
