//! What a GPU is and what it reports.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::layout::{
    Gpu, PROCESS_WINDOWS, RESERVED_BYTES, WINDOWS, XIDS, load_text, load_uuid, store_text,
    uuid_text,
};
use super::quantity::{Quantity, ThrottleTime, reason};
use super::windows::{PROCESS_UTILISATION_NS, UTILISATION_NS, percent};
use crate::sys;

/// An error that a GPU reported (NVIDIA's Xid).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// Its number.
    pub number: u64,
    /// When it was reported.
    pub at: u64,
    /// The process in whose work it happened; 0 if unknown.
    pub pid: u64,
}

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Device memory, bytes.
    pub memory: u64,
    /// Time of its kernels, ns, including those that are scheduled but have not ended.
    pub busy: u64,
    /// When it last launched or allocated something.
    pub seen: u64,
}

impl Gpu {
    /// The 16 bytes of its UUID.
    pub fn uuid(&self) -> [u8; 16] {
        load_uuid(&self.uuid)
    }

    /// Its UUID, `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub fn uuid_text(&self) -> String {
        uuid_text("GPU-", &self.uuid())
    }

    /// Its product name.
    pub fn name(&self) -> String {
        load_text(&self.name)
    }

    /// Renames it; 95 bytes are kept.
    pub fn set_name(&self, name: &str) {
        store_text(&self.name, name);
    }

    /// PCI domain, bus and device.
    pub fn bus(&self) -> (u32, u32, u32) {
        let bus = self.bus.load(Relaxed);
        ((bus >> 32) as u32 & 0xffff, (bus >> 16) as u32 & 0xffff, bus as u32 & 0xffff)
    }

    /// Its PCI address, `00000000:1A:00.0`.
    pub fn bus_text(&self) -> String {
        let (domain, bus, device) = self.bus();
        format!("{domain:08X}:{bus:02X}:{device:02X}.0")
    }

    /// The value of a quantity.
    pub fn get(&self, quantity: Quantity) -> u64 {
        self.values[quantity as usize].load(Relaxed)
    }

    /// For how long the clock has been lowered for a reason since the start, ns.
    pub fn throttle_time(&self, counter: ThrottleTime, now: u64) -> u64 {
        let cell = &self.throttle_times[counter as usize];
        loop {
            let since = cell.since.load(Acquire);
            let base = cell.base.load(Acquire);
            if cell.since.load(Acquire) == since {
                let running = if since == 0 { 0 } else { now.saturating_sub(since) };
                return base + running;
            }
        }
    }

    /// The [`reason`]s why the clock is not higher, with GpuIdle if no kernel ran in the last
    /// window.
    pub fn reasons(&self, now: u64) -> u64 {
        let idle = if self.utilisation(now) == 0 { reason::IDLE } else { 0 };
        self.get(Quantity::Reasons) | idle
    }

    /// Percent of the last whole window of [`UTILISATION_NS`] in which kernels ran.
    pub fn utilisation(&self, now: u64) -> u32 {
        match (now / UTILISATION_NS).checked_sub(1) {
            Some(window) => percent(&self.windows, window, UTILISATION_NS),
            None => 0,
        }
    }

    /// The whole windows that ended after `since`: their end, and percent.
    pub fn utilisation_samples(&self, since: u64, now: u64) -> Vec<(u64, u32)> {
        let last = now / UTILISATION_NS;
        let first = last.saturating_sub(WINDOWS as u64 / 2).max(since / UTILISATION_NS);
        let samples = (first..last)
            .map(|w| ((w + 1) * UTILISATION_NS, percent(&self.windows, w, UTILISATION_NS)));
        samples.filter(|(end, _)| *end > since).collect()
    }

    /// As [`Gpu::utilisation_samples`], for each process and in windows of
    /// [`PROCESS_UTILISATION_NS`]: process, end, percent. Idle windows are left out.
    pub fn process_utilisation(&self, since: u64, now: u64) -> Vec<(u32, u64, u32)> {
        let last = now / PROCESS_UTILISATION_NS;
        let first =
            last.saturating_sub(PROCESS_WINDOWS as u64 / 2).max(since / PROCESS_UTILISATION_NS);
        let mut found = Vec::new();
        for cell in &self.processes {
            let pid = cell.pid.load(Acquire) as u32;
            for window in first..last {
                let end = (window + 1) * PROCESS_UTILISATION_NS;
                let share = percent(&cell.windows, window, PROCESS_UTILISATION_NS);
                if pid != 0 && share > 0 && end > since {
                    found.push((pid, end, share));
                }
            }
        }
        found
    }

    /// Time since the start in which kernels ran, ns, including what is scheduled and has not run.
    pub fn busy(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    /// Power draw, mW: [`Quantity::Power`] if it is set, else what follows from utilisation.
    pub fn power(&self, now: u64) -> u64 {
        match self.get(Quantity::Power) {
            0 => (90_000 + 5_500 * u64::from(self.utilisation(now)))
                .min(self.get(Quantity::PowerLimit)),
            scripted => scripted,
        }
    }

    /// Bytes of device memory in use, including [`RESERVED_BYTES`].
    pub fn memory_used(&self) -> u64 {
        RESERVED_BYTES + self.processes().iter().map(|p| p.memory).sum::<u64>()
    }

    /// Its processes, without those that have ended.
    pub fn processes(&self) -> Vec<Process> {
        let found = self.processes.iter().map(|cell| Process {
            pid: cell.pid.load(Acquire) as u32,
            memory: cell.memory.load(Relaxed),
            busy: cell.busy.load(Relaxed),
            seen: cell.seen.load(Relaxed),
        });
        found.filter(|p| p.pid != 0 && sys::is_alive(p.pid as i32)).collect()
    }

    /// How many Xids it has reported since the start.
    pub fn xid_count(&self) -> u64 {
        self.xid_count.load(Acquire)
    }

    /// The Xid of this number, counted from 0, if it is one of the last [`XIDS`].
    pub fn xid_at(&self, number: u64) -> Option<Xid> {
        let count = self.xid_count();
        if number >= count || count - number > XIDS as u64 {
            return None;
        }
        let cell = &self.xids[number as usize % XIDS];
        Some(Xid {
            number: cell.number.load(Relaxed),
            at: cell.at.load(Relaxed),
            pid: cell.pid.load(Relaxed),
        })
    }

    /// Whether an Xid was reported in the work of this process, after which every CUDA call of it
    /// fails.
    pub fn has_failed(&self, pid: u32) -> bool {
        let count = self.xid_count();
        let kept = count.saturating_sub(XIDS as u64)..count;
        kept.filter_map(|n| self.xid_at(n)).any(|xid| xid.pid == u64::from(pid))
    }

    /// UUID and bytes of memory of a MIG instance, if MIG is on and the instance exists.
    pub fn mig(&self, index: usize) -> Option<([u8; 16], u64)> {
        let mig = self.migs.get(index)?;
        (self.get(Quantity::Mig) != 0 && mig.present.load(Relaxed) != 0)
            .then(|| (load_uuid(&mig.uuid), mig.memory.load(Relaxed)))
    }

    /// Bandwidth of a copy over PCIe now, bytes/s.
    pub fn bandwidth(&self) -> u64 {
        let full = self.get(Quantity::Bandwidth) as u128;
        let generations = |q| 1u128 << self.get(q).clamp(1, 7);
        let now = generations(Quantity::PcieGeneration) * self.get(Quantity::PcieWidth) as u128;
        let max =
            generations(Quantity::PcieGenerationMax) * self.get(Quantity::PcieWidthMax) as u128;
        let replays = if self.get(Quantity::PcieReplaying) != 0 { 4 } else { 1 };
        ((full * now / max.max(1) / replays) as u64).max(1)
    }
}
