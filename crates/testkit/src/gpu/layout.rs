//! What lies where in the file `device`, which processes share.
//!
//! The layout is a contract between processes of one version; [`VERSION`] changes with it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::quantity::{Quantity, ThrottleTime};
use super::windows::Window;
use crate::sys::{self, InSharedMemory, Random};

/// Most GPUs of a machine.
pub const GPUS: usize = 8;

/// Most processes on a GPU.
pub const PROCESSES: usize = 16;

/// How many of the last Xids a GPU keeps.
pub const XIDS: usize = 32;
/// Most MIG instances of a GPU.
pub const MIGS: usize = 2;

/// Turns of processes that a GPU keeps.
pub(super) const TURNS: usize = 4096;

/// Memory that the driver reserves for itself.
pub const RESERVED_BYTES: u64 = 600 << 20;
/// The first word of the file.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"GPUWHYSI");
/// The version of this layout.
pub(super) const VERSION: u64 = 2;
const NAME_WORDS: usize = 12;
/// Windows of utilisation that a GPU keeps.
pub(super) const WINDOWS: usize = 128;
/// Windows of utilisation that a GPU keeps of a process.
pub(super) const PROCESS_WINDOWS: usize = 16;

/// The file `device`.
#[repr(C)]
pub(super) struct Layout {
    /// [`MAGIC`], written last.
    pub(super) magic: AtomicU64,
    /// [`VERSION`].
    pub(super) version: AtomicU64,
    /// Number of GPUs.
    pub(super) count: AtomicU64,
    /// When the machine was created.
    pub(super) created: AtomicU64,
    /// Bits of [`Defect`](super::Defect).
    pub(super) defects: AtomicU64,
    /// Number of the first record of a process whose timestamps a defect spoils.
    pub(super) defect_after: AtomicU64,
    /// Bytes of device memory that 10,000 records of graph kernels cost under `graph-growth`.
    pub(super) defect_growth: AtomicU64,
    pub(super) gpus: [Gpu; GPUS],
}

/// A counter of ns that grows while its reason holds.
#[repr(C)]
pub(super) struct Cumulative {
    /// Its value at the end of the last stretch.
    pub(super) base: AtomicU64,
    /// Since when the reason holds; 0 if it does not.
    pub(super) since: AtomicU64,
}

/// An [`Xid`](super::Xid).
#[repr(C)]
pub(super) struct XidCell {
    pub(super) number: AtomicU64,
    pub(super) at: AtomicU64,
    pub(super) pid: AtomicU64,
}

/// A MIG instance.
#[repr(C)]
pub(super) struct MigCell {
    pub(super) uuid: [AtomicU64; 2],
    pub(super) present: AtomicU64,
    pub(super) memory: AtomicU64,
}

/// A process on a GPU.
#[repr(C)]
pub(super) struct ProcessCell {
    /// 0 if the cell is free.
    pub(super) pid: AtomicU64,
    pub(super) memory: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) seen: AtomicU64,
    /// When its last kernel ends.
    pub(super) until: AtomicU64,
    /// From here to `until` its work was scheduled as if it had the GPU to itself.
    pub(super) whole_from: AtomicU64,
    /// How much of that time other processes have taken, ns; added to its next kernel.
    pub(super) owed: AtomicU64,
    pub(super) windows: [Window; PROCESS_WINDOWS],
}

/// A [`Turn`](super::Turn).
#[repr(C)]
pub(super) struct TurnCell {
    pub(super) pid: AtomicU64,
    pub(super) start: AtomicU64,
    pub(super) end: AtomicU64,
}

/// One scripted GPU.
#[repr(C)]
pub struct Gpu {
    /// 0, or the process that holds the [lock](Gpu::lock).
    pub(super) lock: AtomicU64,
    pub(super) present: AtomicU64,
    pub(super) uuid: [AtomicU64; 2],
    pub(super) name: [AtomicU64; NAME_WORDS],
    /// Domain, bus and device, 16 bits each from the top of 48.
    pub(super) bus: AtomicU64,
    pub(super) values: [AtomicU64; Quantity::COUNT],
    pub(super) throttle_times: [Cumulative; ThrottleTime::ALL.len()],
    pub(super) xid_count: AtomicU64,
    pub(super) xids: [XidCell; XIDS],
    pub(super) migs: [MigCell; MIGS],
    /// Busy ns of all processes since the start.
    pub(super) busy: AtomicU64,
    pub(super) windows: [Window; WINDOWS],
    /// When the last copy ends, to the device and to the host.
    pub(super) copies_until: [AtomicU64; 2],
    pub(super) processes: [ProcessCell; PROCESSES],
    /// How many turns were given out so far, and the last of them.
    pub(super) turn_count: AtomicU64,
    pub(super) turns: [TurnCell; TURNS],
}

// SAFETY: atomics of 64 bits only, for which all bytes are valid and which expect to be changed by
// other processes.
unsafe impl InSharedMemory for Layout {}

impl Layout {
    /// Fills zeroed bytes with a new machine of `gpus` H100s, at rest.
    pub(super) fn begin(&self, gpus: usize, now: u64) {
        self.version.store(VERSION, Relaxed);
        self.count.store(gpus as u64, Relaxed);
        self.created.store(now, Relaxed);
        self.defect_after.store(1000, Relaxed);
        self.defect_growth.store(64 << 20, Relaxed);
        for (index, gpu) in self.gpus.iter().take(gpus).enumerate() {
            gpu.begin(index);
        }
        self.magic.store(MAGIC, Release);
    }
}

/// Writes text with a zero at its end, cut where it does not fit.
pub(super) fn store_text(words: &[AtomicU64], text: &str) {
    let mut bytes = vec![0; words.len() * 8];
    let kept = text.len().min(bytes.len() - 1);
    bytes[..kept].copy_from_slice(&text.as_bytes()[..kept]);
    for (word, eight) in words.iter().zip(bytes.chunks_exact(8)) {
        let mut value = [0; 8];
        value.copy_from_slice(eight);
        word.store(u64::from_le_bytes(value), Relaxed);
    }
}

/// Reads what [`store_text`] has written.
pub(super) fn load_text(words: &[AtomicU64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Reads the 16 bytes of a UUID.
pub(super) fn load_uuid(words: &[AtomicU64; 2]) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&words[0].load(Relaxed).to_be_bytes());
    uuid[8..].copy_from_slice(&words[1].load(Relaxed).to_be_bytes());
    uuid
}

/// A UUID as NVIDIA writes it, behind a prefix such as `GPU-` or `MIG-`.
pub fn uuid_text(prefix: &str, uuid: &[u8; 16]) -> String {
    let mut text = prefix.to_owned();
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

impl Gpu {
    fn begin(&self, index: usize) {
        let mut random = Random::new(0x6770_7577 + index as u64);
        for word in &self.uuid {
            word.store(random.next_u64(), Relaxed);
        }
        for mig in &self.migs {
            for word in &mig.uuid {
                word.store(random.next_u64(), Relaxed);
            }
            mig.memory.store(40 << 30, Relaxed);
        }
        store_text(&self.name, "NVIDIA H100 80GB HBM3");
        self.bus.store((0x1a + 0x10 * index as u64) << 16, Relaxed);
        self.present.store(1, Relaxed);
        for (quantity, value) in [
            (Quantity::SmClock, 1980),
            (Quantity::SmClockMax, 1980),
            (Quantity::MemoryClock, 2619),
            (Quantity::MemoryClockMax, 2619),
            (Quantity::Temperature, 42),
            (Quantity::PowerLimit, 700_000),
            (Quantity::PcieGeneration, 5),
            (Quantity::PcieGenerationMax, 5),
            (Quantity::PcieWidth, 16),
            (Quantity::PcieWidthMax, 16),
            (Quantity::Bandwidth, 50_000_000_000),
            (Quantity::NvLinks, 18),
            (Quantity::Ecc, 1),
            (Quantity::MemoryTotal, 80 << 30),
        ] {
            self.values[quantity as usize].store(value, Relaxed);
        }
    }

    /// Waits for the lock under which work is scheduled and reasons and Xids are changed. It is
    /// held for microseconds; a holder that died loses it.
    pub(super) fn lock(&self) -> GpuGuard<'_> {
        let me = u64::from(std::process::id());
        let mut tries = 0u64;
        loop {
            match self.lock.compare_exchange_weak(0, me, Acquire, Relaxed) {
                Ok(_) => return GpuGuard(self),
                Err(holder) => {
                    tries += 1;
                    if tries.is_multiple_of(1000) && holder != 0 && !sys::is_alive(holder as i32) {
                        let _ = self.lock.compare_exchange(holder, 0, AcqRel, Relaxed);
                    }
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// Holds the lock of a GPU until dropped.
pub(super) struct GpuGuard<'a>(&'a Gpu);

impl Drop for GpuGuard<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Release);
    }
}

impl ProcessCell {
    /// Empties the cell and assigns it to a process; 0 frees it.
    pub(super) fn clear(&self, pid: u64) {
        self.pid.store(0, Release);
        for word in
            [&self.memory, &self.busy, &self.seen, &self.until, &self.whole_from, &self.owed]
        {
            word.store(0, Relaxed);
        }
        for window in &self.windows {
            window.index.store(0, Relaxed);
        }
        self.pid.store(pid, Release);
    }
}
