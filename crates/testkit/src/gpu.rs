//! The scripted machine: GPUs that are a page of shared memory, so that everything which speaks
//! to a GPU can be tested where there is none.
//!
//! The file `device` in the directory that [`ENV`] names is mapped by every process that takes
//! part: the stand-ins for `libnvidia-ml`, `libcuda` and `libcupti` (crate `gpuwhy-standin`), and
//! whoever scripts what happens (tests, `gpu-fault`). It is numbers only, each an atomic of 64
//! bits, so that any bytes in it are valid and no process can harm another by dying. It is made
//! by the first who opens it, under a lock of the file; a file of another size, magic or version
//! is refused, never repaired. Times are CLOCK_MONOTONIC ns.
//!
//! # How the engine shares itself
//!
//! Work has its place in time when it is launched, and the place does not change afterwards, so
//! that a launch can be told at once when it will end and no thread has to run for it.
//!
//! - A kernel of so many ns takes that long at the nominal clock, and longer by nominal ÷ present
//!   clock when it is launched while the clock is low.
//! - Kernels of one process follow each other. A kernel starts when it was launched, or when what
//!   its stream waits for has ended, or when the process's last kernel has ended.
//! - While other processes have work queued, time is cut in slices of [`SLICE_NS`] which go to the
//!   processes in turn, as a GPU without MPS does: a short kernel waits for its process's next
//!   slice, a long one is stretched over several.
//! - A process whose work was placed before another came has been promised whole time. What the
//!   other takes out of that is added to the next kernel of the first: the sum of what runs is
//!   never more than the time that has passed.
//! - Copies of each direction follow each other at the present bandwidth and share nothing with
//!   kernels.
//!
//! What it does not model: kernels of one process side by side, memory bandwidth, and a clock that
//! changes within a kernel.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use anyhow::{Context, Result, bail};

use crate::sys;

/// Names the directory of the file `device`.
pub const ENV: &str = "GPUWHY_STANDIN";
/// How many GPUs a machine has that is made because it was not there; 1 if unset.
pub const ENV_GPUS: &str = "GPUWHY_STANDIN_GPUS";
/// Defects that a process has from its start, apart from those in the file: words of
/// [`Defect::name`] with commas between.
pub const ENV_DEFECTS: &str = "GPUWHY_STANDIN_DEFECTS";
/// The file in the directory.
pub const FILE: &str = "device";

/// GPUs at most.
pub const GPUS: usize = 8;
/// Processes at most on a GPU.
pub const PROCESSES: usize = 16;
/// Slices in which processes take turns.
pub const SLICE_NS: u64 = 2_000_000;
/// The real library samples utilisation so often (notes on host telemetry, 4.7).
pub const UTILISATION_NS: u64 = 167_000_000;
/// And that of processes so often.
pub const PROCESS_UTILISATION_NS: u64 = 1_000_000_000;
/// Xids that are remembered.
pub const XIDS: usize = 32;
/// MIG instances at most.
pub const MIGS: usize = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"GPUWHYSI");
const VERSION: u64 = 1;
const NAME_WORDS: usize = 12;
const WINDOWS: usize = 128;
const PROCESS_WINDOWS: usize = 16;
/// Longer work is cut to this, so that no launch walks through slices for long.
const LONGEST_NS: u64 = 60_000_000_000;
/// A driver keeps so much memory for itself.
pub const RESERVED_BYTES: u64 = 600 << 20;

/// The words of `device`, in all processes at the same places.
#[repr(C)]
pub struct Layout {
    magic: AtomicU64,
    version: AtomicU64,
    count: AtomicU64,
    created: AtomicU64,
    defects: AtomicU64,
    /// From which record of a process on the timestamps are wrong, if they become wrong.
    defect_after: AtomicU64,
    /// Bytes of device memory that 10,000 records of graph kernels cost under `graph-growth`.
    defect_growth: AtomicU64,
    gpus: [Gpu; GPUS],
}

/// Plain values of a GPU, which keep what they are set to. The discriminant is the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Quantity {
    /// SM clock now, MHz.
    SmClock,
    /// SM clock at which work takes its nominal time, MHz.
    SmClockMax,
    /// Memory clock now, MHz.
    MemoryClock,
    /// Memory clock at most, MHz.
    MemoryClockMax,
    /// °C.
    Temperature,
    /// mW; 0 means that it follows utilisation.
    Power,
    /// Enforced limit, mW.
    PowerLimit,
    /// Bits of `nvmlClocksEventReason*`, without GpuIdle, which follows utilisation.
    Reasons,
    /// PCIe generation now.
    PcieGeneration,
    /// PCIe generation at most.
    PcieGenerationMax,
    /// PCIe lanes now.
    PcieWidth,
    /// PCIe lanes at most.
    PcieWidthMax,
    /// Whether copies are replayed: a quarter of the bandwidth, and the counter grows.
    PcieReplaying,
    /// PCIe replays since the start.
    PcieReplays,
    /// Replay counter's overflows.
    PcieReplayRollovers,
    /// Times that the link went from L0 to recovery.
    PcieRecoveries,
    /// Correctable errors of PCIe.
    PcieCorrectable,
    /// Bytes that the GPU has sent over PCIe.
    PcieTx,
    /// Bytes that the GPU has received over PCIe.
    PcieRx,
    /// Bytes a second that a copy makes when nothing is wrong.
    Bandwidth,
    /// Active NVLinks.
    NvLinks,
    /// Data sent over NVLink, KiB.
    NvLinkTx,
    /// Data received over NVLink, KiB.
    NvLinkRx,
    /// Replays at the data link layer of NVLink.
    NvLinkReplays,
    /// Recoveries of NVLink.
    NvLinkRecoveries,
    /// CRC errors of NVLink.
    NvLinkCrc,
    /// Whether ECC is on.
    Ecc,
    /// Corrected errors since the driver was loaded.
    EccCorrected,
    /// Uncorrected errors since the driver was loaded.
    EccUncorrected,
    /// Rows remapped for corrected errors.
    RemappedCorrectable,
    /// Rows remapped for uncorrected errors.
    RemappedUncorrectable,
    /// Whether a remapping waits for a reset.
    RemapPending,
    /// Whether a remapping has failed.
    RemapFailed,
    /// Retired pages.
    RetiredPages,
    /// Bytes of device memory.
    MemoryTotal,
    /// Whether the GPU is cut into instances.
    Mig,
}

const QUANTITIES: usize = Quantity::Mig as usize + 1;

/// Nanoseconds since the start for which something held; NVML's cumulative counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Held {
    /// Limited by power (field 74).
    Power,
    /// Limited by temperature (75).
    Thermal,
    /// Held at the clock of a group (76).
    SyncBoost,
    /// Software thermal slowdown (269).
    SwThermal,
    /// Hardware thermal slowdown (270).
    HwThermal,
    /// Power brake slowdown (271).
    PowerBrake,
}

impl Held {
    const ALL: [Held; 6] = [
        Held::Power,
        Held::Thermal,
        Held::SyncBoost,
        Held::SwThermal,
        Held::HwThermal,
        Held::PowerBrake,
    ];

    /// Whether it grows under these reasons.
    fn grows(self, reasons: u64) -> bool {
        let bits = match self {
            Held::Power => reason::SW_POWER_CAP,
            Held::Thermal => reason::SW_THERMAL | reason::HW_THERMAL,
            Held::SyncBoost => reason::SYNC_BOOST,
            Held::SwThermal => reason::SW_THERMAL,
            Held::HwThermal => reason::HW_THERMAL,
            Held::PowerBrake => reason::POWER_BRAKE,
        };
        reasons & bits != 0
    }
}

/// Why clocks are lower than they could be: bits of `nvmlDeviceGetCurrentClocksEventReasons`.
pub mod reason {
    /// Nothing runs.
    pub const IDLE: u64 = 0x1;
    /// The power limit.
    pub const SW_POWER_CAP: u64 = 0x4;
    /// Hardware slowdown, set beside the two hardware reasons below.
    pub const HW_SLOWDOWN: u64 = 0x8;
    /// The slowest GPU of a group.
    pub const SYNC_BOOST: u64 = 0x10;
    /// The driver, for temperature.
    pub const SW_THERMAL: u64 = 0x20;
    /// The hardware, for temperature.
    pub const HW_THERMAL: u64 = 0x40;
    /// The server's power supply.
    pub const POWER_BRAKE: u64 = 0x80;
}

/// A count that grows with time while it is on.
#[repr(C)]
struct Cumulative {
    base: AtomicU64,
    since: AtomicU64,
}

/// Busy time within one window of a ring of windows.
#[repr(C)]
struct Window {
    /// Which window since boot, plus one; 0 is none.
    index: AtomicU64,
    busy: AtomicU64,
}

#[repr(C)]
struct XidCell {
    number: AtomicU64,
    at: AtomicU64,
    pid: AtomicU64,
}

#[repr(C)]
struct MigCell {
    uuid: [AtomicU64; 2],
    present: AtomicU64,
    memory: AtomicU64,
}

#[repr(C)]
struct ProcessCell {
    /// 0 is a free place.
    pid: AtomicU64,
    memory: AtomicU64,
    busy: AtomicU64,
    seen: AtomicU64,
    /// When its last kernel ends.
    until: AtomicU64,
    /// Since when, up to `until`, it has been promised whole time.
    whole_from: AtomicU64,
    /// What others took of promised time.
    owed: AtomicU64,
    windows: [Window; PROCESS_WINDOWS],
}

/// One scripted GPU.
#[repr(C)]
pub struct Gpu {
    /// 0, or the process that places work.
    lock: AtomicU64,
    present: AtomicU64,
    uuid: [AtomicU64; 2],
    name: [AtomicU64; NAME_WORDS],
    /// Domain, bus and device, 16 bits each from the top of 48.
    bus: AtomicU64,
    values: [AtomicU64; QUANTITIES],
    held: [Cumulative; Held::ALL.len()],
    xid_count: AtomicU64,
    xids: [XidCell; XIDS],
    migs: [MigCell; MIGS],
    /// Busy ns of all processes since the start.
    busy: AtomicU64,
    windows: [Window; WINDOWS],
    copies_until: [AtomicU64; 2],
    processes: [ProcessCell; PROCESSES],
}

/// An error that a GPU reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// Its number.
    pub number: u64,
    /// When.
    pub at: u64,
    /// In whose work; 0 is unknown.
    pub pid: u64,
}

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Who.
    pub pid: u32,
    /// Device memory, bytes.
    pub memory: u64,
    /// Kernels' time since it came, ns; also of those that are placed but have not ended.
    pub busy: u64,
    /// When it last asked for something.
    pub seen: u64,
}

/// When something runs on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// When it starts.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// Where a copy goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host; the GPU receives.
    ToDevice,
    /// To the host; the GPU sends.
    ToHost,
    /// Within the device, which PCIe does not see.
    Within,
}

/// What can be wrong with CUPTI, as it was seen to be (notes on LLM inference, section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Defect {
    /// From some record on start and end are 0, and some end before they start.
    ZeroTimestamps = 1,
    /// Kernels of graphs told one by one cost device memory that is not given back, and from some
    /// record on their timestamps are 0.
    GraphGrowth = 2,
    /// Somebody else has subscribed: `cuptiSubscribe` says 39.
    SubscriberRefused = 4,
    /// Somebody else has registered buffers' callbacks after us: ours are not called any more.
    CallbacksReplaced = 8,
    /// The callback for timestamps is rejected.
    NoTimestampCallback = 16,
    /// Buffers are requested and never completed.
    LostBuffers = 32,
}

impl Defect {
    /// All of them.
    pub const ALL: [Defect; 6] = [
        Defect::ZeroTimestamps,
        Defect::GraphGrowth,
        Defect::SubscriberRefused,
        Defect::CallbacksReplaced,
        Defect::NoTimestampCallback,
        Defect::LostBuffers,
    ];

    /// Its word, as in [`ENV_DEFECTS`].
    pub fn name(self) -> &'static str {
        match self {
            Defect::ZeroTimestamps => "zero-timestamps",
            Defect::GraphGrowth => "graph-growth",
            Defect::SubscriberRefused => "second-subscriber",
            Defect::CallbacksReplaced => "callbacks-replaced",
            Defect::NoTimestampCallback => "no-timestamp-callback",
            Defect::LostBuffers => "lost-buffers",
        }
    }

    /// The defect of this word.
    pub fn named(name: &str) -> Option<Defect> {
        Defect::ALL.into_iter().find(|d| d.name() == name)
    }
}

/// The machine: GPUs that several processes share.
pub struct Machine {
    file: sys::Shared<Layout>,
    /// Those of the environment, which are this process's alone.
    own_defects: u64,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("gpus", &self.count()).finish_non_exhaustive()
    }
}

impl Machine {
    /// The machine that [`ENV`] names, made if it is not there.
    ///
    /// # Errors
    /// If the variable is not set, and as [`Machine::open`].
    pub fn from_env() -> Result<Machine> {
        let dir = std::env::var_os(ENV).with_context(|| format!("{ENV} is not set"))?;
        let gpus = match std::env::var(ENV_GPUS) {
            Ok(n) => n.parse().with_context(|| format!("{ENV_GPUS} is `{n}`, not a number"))?,
            Err(_) => 1,
        };
        let mut machine = Machine::open(Path::new(&dir), gpus)?;
        for word in std::env::var(ENV_DEFECTS).unwrap_or_default().split(',') {
            match Defect::named(word.trim()) {
                Some(defect) => machine.own_defects |= defect as u64,
                None if word.trim().is_empty() => {}
                None => bail!("no defect is called `{word}`"),
            }
        }
        Ok(machine)
    }

    /// The machine in a directory; made with so many GPUs if it is not there.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped, or is not one of this version.
    pub fn open(dir: &Path, gpus: usize) -> Result<Machine> {
        let path = dir.join(FILE);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("cannot open the machine `{}`", path.display()))?;
        Machine::of(&file, gpus).with_context(|| format!("cannot use `{}`", path.display()))
    }

    fn of(file: &File, gpus: usize) -> Result<Machine> {
        if !(1..=GPUS).contains(&gpus) {
            bail!("a machine has 1 to {GPUS} GPUs, not {gpus}");
        }
        // The first takes it exclusively and leaves it complete; closing the file lets go.
        file.lock().context("cannot lock it")?;
        let length = file.metadata().context("cannot ask for its size")?.len();
        let expected = size_of::<Layout>() as u64;
        if length != 0 && length != expected {
            bail!("it has {length} bytes, and a machine of this version has {expected}");
        }
        let layout = sys::map_device(file, length == 0).context("cannot map it")?;
        if length == 0 {
            layout.begin(gpus, sys::now());
        }
        let (magic, version) = (layout.magic.load(Acquire), layout.version.load(Relaxed));
        if magic != MAGIC || version != VERSION {
            bail!("it is no machine of version {VERSION} (magic {magic:#x}, version {version})");
        }
        file.unlock().context("cannot unlock it")?;
        Ok(Machine { file: layout, own_defects: 0 })
    }

    /// How many GPUs it has, with those that have fallen off the bus.
    pub fn count(&self) -> usize {
        (self.file.count.load(Relaxed) as usize).min(GPUS)
    }

    /// A GPU by its number.
    pub fn gpu(&self, index: usize) -> Option<&Gpu> {
        self.gpus().get(index)
    }

    /// All GPUs, in order.
    pub fn gpus(&self) -> &[Gpu] {
        &self.file.gpus[..self.count()]
    }

    /// When it was made.
    pub fn created(&self) -> u64 {
        self.file.created.load(Relaxed)
    }

    /// Whether CUPTI has this defect at present.
    pub fn has(&self, defect: Defect) -> bool {
        (self.file.defects.load(Relaxed) | self.own_defects) & defect as u64 != 0
    }

    /// Gives CUPTI a defect, for all processes, or takes it away.
    pub fn set_defect(&self, defect: Defect, on: bool) {
        if on {
            self.file.defects.fetch_or(defect as u64, Relaxed);
        } else {
            self.file.defects.fetch_and(!(defect as u64), Relaxed);
        }
    }

    /// Timestamps go wrong with this record of a process, counted from 0, where a defect makes
    /// them; 1000 at first.
    pub fn defect_after(&self) -> u64 {
        self.file.defect_after.load(Relaxed)
    }

    /// Sets [`Machine::defect_after`].
    pub fn set_defect_after(&self, records: u64) {
        self.file.defect_after.store(records, Relaxed);
    }

    /// Device memory that 10,000 records cost under [`Defect::GraphGrowth`], bytes; 64 MiB at
    /// first.
    pub fn defect_growth(&self) -> u64 {
        self.file.defect_growth.load(Relaxed)
    }

    /// Sets [`Machine::defect_growth`].
    pub fn set_defect_growth(&self, bytes: u64) {
        self.file.defect_growth.store(bytes, Relaxed);
    }
}

impl Layout {
    fn begin(&self, gpus: usize, now: u64) {
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

fn store_text(words: &[AtomicU64], text: &str) {
    let mut bytes = vec![0; words.len() * 8];
    // A zero stays at the end.
    let kept = text.len().min(bytes.len() - 1);
    bytes[..kept].copy_from_slice(&text.as_bytes()[..kept]);
    for (word, eight) in words.iter().zip(bytes.chunks_exact(8)) {
        let mut value = [0; 8];
        value.copy_from_slice(eight);
        word.store(u64::from_le_bytes(value), Relaxed);
    }
}

fn load_text(words: &[AtomicU64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn load_uuid(words: &[AtomicU64; 2]) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&words[0].load(Relaxed).to_be_bytes());
    uuid[8..].copy_from_slice(&words[1].load(Relaxed).to_be_bytes());
    uuid
}

/// A UUID as NVIDIA writes it after `GPU-` or `MIG-`.
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
        let mut random = sys::Random::new(0x6770_7577 + index as u64);
        for word in &self.uuid {
            word.store(random.next(), Relaxed);
        }
        for mig in &self.migs {
            for word in &mig.uuid {
                word.store(random.next(), Relaxed);
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
            self.set(quantity, value);
        }
    }

    // What it is.

    /// Its 16 bytes.
    pub fn uuid(&self) -> [u8; 16] {
        load_uuid(&self.uuid)
    }

    /// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
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

    /// `00000000:1A:00.0`.
    pub fn bus_text(&self) -> String {
        let (domain, bus, device) = self.bus();
        format!("{domain:08X}:{bus:02X}:{device:02X}.0")
    }

    /// A plain value.
    pub fn get(&self, quantity: Quantity) -> u64 {
        self.values[quantity as usize].load(Relaxed)
    }

    /// Sets a plain value. For [`Quantity::Reasons`] use [`Gpu::throttle`], which has the
    /// cumulative counters follow.
    pub fn set(&self, quantity: Quantity, value: u64) {
        self.values[quantity as usize].store(value, Relaxed);
    }

    /// Adds to a count.
    pub fn add(&self, quantity: Quantity, more: u64) {
        self.values[quantity as usize].fetch_add(more, Relaxed);
    }

    // What happens to it.

    /// Whether it answers.
    pub fn present(&self) -> bool {
        self.present.load(Relaxed) != 0
    }

    /// It falls off the bus: every call on it is an error, and Xid 79 tells why.
    pub fn fall_off_bus(&self, now: u64) {
        self.xid(79, 0, now);
        self.present.store(0, Relaxed);
    }

    /// It is there again.
    pub fn return_to_bus(&self) {
        self.present.store(1, Relaxed);
    }

    /// Lowers the clock for these [`reason`]s, as if nothing had lowered it before; the counters
    /// of the reasons grow from now on. No reasons and the highest clock is as good as new.
    pub fn throttle(&self, reasons: u64, clock_mhz: u64, now: u64) {
        let _placing = self.lock();
        self.set(Quantity::SmClock, clock_mhz.max(1));
        self.set(Quantity::Reasons, reasons);
        for held in Held::ALL {
            let cell = &self.held[held as usize];
            let since = cell.since.load(Acquire);
            match (since != 0, held.grows(reasons)) {
                (false, true) => cell.since.store(now.max(1), Release),
                (true, false) => {
                    // A reader between the two sees the count twice at most for an instant, never
                    // less than before: `cumulative` reads `since` again.
                    cell.base.fetch_add(now.saturating_sub(since), AcqRel);
                    cell.since.store(0, Release);
                }
                _ => {}
            }
        }
    }

    /// Copies are replayed from now on, or not any more.
    pub fn pcie_replay(&self, on: bool) {
        self.set(Quantity::PcieReplaying, u64::from(on));
    }

    /// The link trains at another generation and width, and copies are slower by as much.
    pub fn pcie_link(&self, generation: u64, width: u64) {
        self.set(Quantity::PcieGeneration, generation);
        self.set(Quantity::PcieWidth, width);
        self.add(Quantity::PcieRecoveries, 1);
    }

    /// It reports an error, in the work of a process or of nobody (0).
    pub fn xid(&self, number: u64, pid: u64, now: u64) {
        let _placing = self.lock();
        let count = self.xid_count.load(Relaxed);
        let cell = &self.xids[count as usize % XIDS];
        cell.number.store(number, Relaxed);
        cell.at.store(now, Relaxed);
        cell.pid.store(pid, Relaxed);
        self.xid_count.store(count + 1, Release);
    }

    /// It stands still for so long, as when it recovers from an error: what is launched from now
    /// on begins after that.
    pub fn stall(&self, now: u64, ns: u64) {
        let _placing = self.lock();
        for process in &self.processes {
            let until = process.until.load(Relaxed).max(now);
            process.until.store(until.saturating_add(ns.min(LONGEST_NS)), Relaxed);
        }
    }

    /// The clock, temperature, power, link and presence are as in a new machine; counts keep what
    /// they have counted.
    pub fn heal(&self, now: u64) {
        self.throttle(0, self.get(Quantity::SmClockMax), now);
        self.set(Quantity::MemoryClock, self.get(Quantity::MemoryClockMax));
        self.set(Quantity::Temperature, 42);
        self.set(Quantity::Power, 0);
        self.set(Quantity::PcieGeneration, self.get(Quantity::PcieGenerationMax));
        self.set(Quantity::PcieWidth, self.get(Quantity::PcieWidthMax));
        self.set(Quantity::Bandwidth, 50_000_000_000);
        self.pcie_replay(false);
        self.return_to_bus();
    }

    /// Cuts it into this many instances, or makes it one again with 0.
    pub fn set_mig(&self, instances: usize) {
        for (i, mig) in self.migs.iter().enumerate() {
            mig.present.store(u64::from(i < instances), Relaxed);
        }
        self.set(Quantity::Mig, u64::from(instances > 0));
    }

    // What it says.

    /// A cumulative counter, ns.
    pub fn cumulative(&self, held: Held, now: u64) -> u64 {
        let cell = &self.held[held as usize];
        loop {
            let since = cell.since.load(Acquire);
            let base = cell.base.load(Acquire);
            if cell.since.load(Acquire) == since {
                let running = if since == 0 { 0 } else { now.saturating_sub(since) };
                return base + running;
            }
        }
    }

    /// Why the clock is not higher; with GpuIdle if nothing has run for a window.
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

    /// Whole windows that ended after `since`: when they ended, and percent.
    pub fn utilisation_samples(&self, since: u64, now: u64) -> Vec<(u64, u32)> {
        let last = now / UTILISATION_NS;
        let first = last.saturating_sub(WINDOWS as u64 / 2).max(since / UTILISATION_NS);
        let samples = (first..last)
            .map(|w| ((w + 1) * UTILISATION_NS, percent(&self.windows, w, UTILISATION_NS)));
        samples.filter(|(end, _)| *end > since).collect()
    }

    /// As [`Gpu::utilisation_samples`], of each process and windows of
    /// [`PROCESS_UTILISATION_NS`]; idle windows are left out.
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

    /// Time since the start in which kernels ran, ns, with what is placed and has not run yet.
    pub fn busy(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    /// mW: what was scripted, or what follows from utilisation.
    pub fn power(&self, now: u64) -> u64 {
        match self.get(Quantity::Power) {
            0 => (90_000 + 5_500 * u64::from(self.utilisation(now)))
                .min(self.get(Quantity::PowerLimit)),
            scripted => scripted,
        }
    }

    /// Bytes of device memory in use, with what the driver keeps.
    pub fn memory_used(&self) -> u64 {
        RESERVED_BYTES + self.processes().iter().map(|p| p.memory).sum::<u64>()
    }

    /// Processes that are alive.
    pub fn processes(&self) -> Vec<Process> {
        let found = self.processes.iter().map(|cell| Process {
            pid: cell.pid.load(Acquire) as u32,
            memory: cell.memory.load(Relaxed),
            busy: cell.busy.load(Relaxed),
            seen: cell.seen.load(Relaxed),
        });
        found.filter(|p| p.pid != 0 && sys::is_alive(p.pid as i32)).collect()
    }

    /// How many errors were reported since the start.
    pub fn xid_count(&self) -> u64 {
        self.xid_count.load(Acquire)
    }

    /// The error of this number, counted from 0, if it is not too long ago.
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

    /// Whether an error was reported in the work of this process, after which CUDA does nothing for
    /// it any more.
    pub fn has_failed(&self, pid: u32) -> bool {
        let count = self.xid_count();
        let kept = count.saturating_sub(XIDS as u64)..count;
        kept.filter_map(|n| self.xid_at(n)).any(|xid| xid.pid == u64::from(pid))
    }

    /// UUID and bytes of memory of a MIG instance, if the GPU is cut and has it.
    pub fn mig(&self, index: usize) -> Option<([u8; 16], u64)> {
        let mig = self.migs.get(index)?;
        (self.get(Quantity::Mig) != 0 && mig.present.load(Relaxed) != 0)
            .then(|| (load_uuid(&mig.uuid), mig.memory.load(Relaxed)))
    }

    /// Bytes a second of a copy over PCIe now.
    pub fn bandwidth(&self) -> u64 {
        let full = self.get(Quantity::Bandwidth) as u128;
        let generations = |q| 1u128 << self.get(q).clamp(1, 7);
        let now = generations(Quantity::PcieGeneration) * self.get(Quantity::PcieWidth) as u128;
        let max =
            generations(Quantity::PcieGenerationMax) * self.get(Quantity::PcieWidthMax) as u128;
        let replays = if self.get(Quantity::PcieReplaying) != 0 { 4 } else { 1 };
        ((full * now / max.max(1) / replays) as u64).max(1)
    }

    // What it does.

    /// Places a kernel of so many ns at nominal clock, launched `now` by a process, on a stream
    /// whose earlier work ends at `after`. The model is that of the module.
    pub fn launch(&self, now: u64, after: u64, pid: u32, work: u64) -> Run {
        let _placing = self.lock();
        let clock = self.get(Quantity::SmClock).max(1) as u128;
        let nominal = self.get(Quantity::SmClockMax).max(1) as u128;
        let work = (work.min(LONGEST_NS) as u128 * nominal / clock).min(LONGEST_NS as u128) as u64;
        let me = self.cell(pid, now);
        let mine = &self.processes[me];
        let mut left = work + mine.owed.swap(0, Relaxed).min(LONGEST_NS);
        let mut at = now.max(after).max(mine.until.load(Relaxed));
        let mut start = None;
        let mut whole_from = at;
        loop {
            let others: Vec<usize> = (0..PROCESSES)
                .filter(|i| *i != me && self.processes[*i].until.load(Relaxed) > at)
                .collect();
            let slice_ends = (at / SLICE_NS + 1) * SLICE_NS;
            let next = match others.iter().map(|i| self.processes[*i].until.load(Relaxed)).min() {
                None => u64::MAX,
                Some(changes) => changes.min(slice_ends),
            };
            let rank = others.iter().filter(|i| **i < me).count();
            let turn = (at / SLICE_NS) as usize % (others.len() + 1);
            if turn == rank {
                if start.is_none() {
                    start = Some(at);
                }
                let piece = left.min(next - at);
                self.run(mine, at, at + piece);
                for other in others {
                    let other = &self.processes[other];
                    let from = other.whole_from.load(Relaxed).max(at);
                    let to = other.until.load(Relaxed).min(at + piece);
                    let taken = to.saturating_sub(from);
                    other.owed.fetch_add(taken, Relaxed);
                    for busy in [&self.busy, &other.busy] {
                        busy.fetch_sub(taken, Relaxed);
                    }
                }
                left -= piece;
                at += piece;
                if left == 0 {
                    break;
                }
            } else {
                whole_from = next;
                at = next;
            }
        }
        if whole_from != mine.until.load(Relaxed) {
            mine.whole_from.store(whole_from, Relaxed);
        }
        mine.until.store(at, Relaxed);
        Run { start: start.unwrap_or(at), end: at }
    }

    /// Places a copy of so many bytes, and counts it.
    pub fn copy(&self, now: u64, after: u64, pid: u32, bytes: u64, to: Direction) -> Run {
        let _placing = self.lock();
        self.cell(pid, now);
        let per_second = match to {
            // About what HBM3 makes of a copy that reads and writes.
            Direction::Within => 1_300_000_000_000,
            _ => self.bandwidth(),
        };
        let takes = (u128::from(bytes) * 1_000_000_000 / u128::from(per_second)) as u64;
        // A copy of nothing still takes a microsecond or so.
        let takes = takes.clamp(1_000, LONGEST_NS);
        let engine = match to {
            Direction::ToDevice => {
                self.add(Quantity::PcieRx, bytes);
                Some(&self.copies_until[0])
            }
            Direction::ToHost => {
                self.add(Quantity::PcieTx, bytes);
                Some(&self.copies_until[1])
            }
            Direction::Within => None,
        };
        if engine.is_some() && self.get(Quantity::PcieReplaying) != 0 {
            self.add(Quantity::PcieReplays, bytes.div_ceil(1_000_000));
            self.add(Quantity::PcieCorrectable, bytes.div_ceil(1_000_000));
        }
        let start = now.max(after).max(engine.map_or(0, |e| e.load(Relaxed)));
        if let Some(engine) = engine {
            engine.store(start + takes, Relaxed);
        }
        Run { start, end: start + takes }
    }

    /// A process takes device memory; false if there is not so much.
    pub fn allocate(&self, pid: u32, bytes: u64, now: u64) -> bool {
        let _placing = self.lock();
        let free = self.get(Quantity::MemoryTotal).saturating_sub(self.memory_used());
        let fits = bytes <= free;
        if fits {
            self.processes[self.cell(pid, now)].memory.fetch_add(bytes, Relaxed);
        }
        fits
    }

    /// A process gives device memory back.
    pub fn release(&self, pid: u32, bytes: u64) {
        let _placing = self.lock();
        if let Some(cell) = self.processes.iter().find(|c| c.pid.load(Relaxed) == u64::from(pid)) {
            let left = cell.memory.load(Relaxed).saturating_sub(bytes);
            cell.memory.store(left, Relaxed);
        }
    }

    /// A process is on the GPU no more.
    pub fn leave(&self, pid: u32) {
        let _placing = self.lock();
        for cell in self.processes.iter().filter(|c| c.pid.load(Relaxed) == u64::from(pid)) {
            cell.clear(0);
        }
    }

    /// The place of a process; the lock is held. If all places are taken by the living, the last
    /// one is shared: those processes follow each other and their numbers are one's.
    fn cell(&self, pid: u32, now: u64) -> usize {
        let pid = u64::from(pid);
        let found = self.processes.iter().position(|c| c.pid.load(Relaxed) == pid);
        let place = found.or_else(|| {
            let free = self.processes.iter().position(|c| {
                let taken = c.pid.load(Relaxed);
                taken == 0 || !sys::is_alive(taken as i32)
            })?;
            self.processes[free].clear(pid);
            Some(free)
        });
        let place = place.unwrap_or(PROCESSES - 1);
        self.processes[place].seen.store(now, Relaxed);
        place
    }

    fn run(&self, process: &ProcessCell, start: u64, end: u64) {
        self.busy.fetch_add(end - start, Relaxed);
        process.busy.fetch_add(end - start, Relaxed);
        add_busy(&self.windows, UTILISATION_NS, start, end);
        add_busy(&process.windows, PROCESS_UTILISATION_NS, start, end);
    }

    /// Waits for the right to place work. Held for microseconds; a holder that died loses it.
    fn lock(&self) -> Placing<'_> {
        let me = u64::from(std::process::id());
        let mut tries = 0u64;
        loop {
            match self.lock.compare_exchange_weak(0, me, Acquire, Relaxed) {
                Ok(_) => return Placing(self),
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

/// The right to place work on a GPU, until dropped.
struct Placing<'a>(&'a Gpu);

impl Drop for Placing<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Release);
    }
}

impl ProcessCell {
    /// Empties the place and gives it to a process, or to nobody (0).
    fn clear(&self, pid: u64) {
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

/// Adds `[start, end)` to the windows that it touches. Work is placed ahead of time, so windows
/// of the future fill too; what reaches further than the ring is left out.
fn add_busy(windows: &[Window], width: u64, start: u64, end: u64) {
    let furthest = start / width + windows.len() as u64 / 2;
    let mut at = start;
    while at < end && at / width < furthest {
        let index = at / width;
        let piece = end.min((index + 1) * width) - at;
        let cell = &windows[index as usize % windows.len()];
        if cell.index.load(Relaxed) != index + 1 {
            cell.busy.store(0, Relaxed);
            cell.index.store(index + 1, Release);
        }
        cell.busy.fetch_add(piece, Relaxed);
        at += piece;
    }
}

fn percent(windows: &[Window], index: u64, width: u64) -> u32 {
    let cell = &windows[index as usize % windows.len()];
    if cell.index.load(Acquire) != index + 1 {
        return 0;
    }
    // Rounded up: the real library shows 1 % for what hardly runs.
    (cell.busy.load(Relaxed) * 100).div_ceil(width).min(100) as u32
}

/// The names under which programs look for the three libraries.
pub const LIBRARY_NAMES: [&str; 9] = [
    "libnvidia-ml.so.1",
    "libnvidia-ml.so",
    "libcuda.so.1",
    "libcuda.so",
    "libcupti.so.13",
    "libcupti.so.13.0",
    "libcupti.so.12",
    "libcupti.so.11.8",
    "libcupti.so",
];

/// Makes a directory in which the stand-in is found under [`LIBRARY_NAMES`], for
/// `LD_LIBRARY_PATH`. The plain names of CUPTI are links too: which version it says to be follows
/// from the environment, not from the name.
///
/// # Errors
/// If the object is not there, or a link cannot be made.
pub fn lay_links(dir: &Path, object: &Path) -> Result<()> {
    let object: PathBuf =
        object.canonicalize().with_context(|| format!("no stand-in at `{}`", object.display()))?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    for name in LIBRARY_NAMES {
        let link = dir.join(name);
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace `{}`", link.display()));
            }
            _ => {}
        }
        symlink(&object, &link).with_context(|| format!("cannot link `{}`", link.display()))?;
    }
    Ok(())
}

/// The stand-in as it was built beside this program: in its directory, or in that above, as cargo
/// leaves tests and objects. The newest, if there are several.
pub fn find_object() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let near = program.ancestors().skip(1).take(2);
    let found = near.map(|dir| dir.join("libgpuwhy_standin.so"));
    found
        .filter(|path| path.exists())
        .max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// Somewhere after boot, at the start of a slice of the first of two, and of a window.
    const T: u64 = 1_002_000 * MS;

    fn machine(gpus: usize) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::open(dir.path(), gpus).unwrap();
        (dir, machine)
    }

    /// Two processes that are alive as long as we look.
    fn pids() -> (u32, u32) {
        (std::process::id(), 1)
    }

    #[test]
    fn a_machine_is_the_same_for_all_who_open_it_and_others_are_refused() {
        let (dir, machine) = machine(3);
        let again = Machine::open(dir.path(), 1).unwrap();
        assert_eq!(again.count(), 3);
        machine.gpu(2).unwrap().set(Quantity::Temperature, 77);
        assert_eq!(again.gpu(2).unwrap().get(Quantity::Temperature), 77);
        assert!(again.gpu(3).is_none());
        let text = again.gpu(0).unwrap().uuid_text();
        assert_eq!((text.len(), text.matches('-').count()), (40, 5), "{text}");
        assert_ne!(text, again.gpu(1).unwrap().uuid_text());
        assert_eq!(again.gpu(1).unwrap().bus_text(), "00000000:2A:00.0");

        let other = tempfile::tempdir().unwrap();
        std::fs::write(other.path().join(FILE), [7; 100]).unwrap();
        let error = format!("{:#}", Machine::open(other.path(), 1).unwrap_err());
        assert!(error.contains("100 bytes"), "{error}");
        std::fs::write(other.path().join(FILE), vec![7; size_of::<Layout>()]).unwrap();
        let error = format!("{:#}", Machine::open(other.path(), 1).unwrap_err());
        assert!(error.contains("no machine of version"), "{error}");
        assert!(Machine::open(tempfile::tempdir().unwrap().path(), 9).is_err());
    }

    #[test]
    fn kernels_queue_and_a_throttle_stretches_them() {
        let (_dir, machine) = machine(1);
        let (me, _) = pids();
        let gpu = machine.gpu(0).unwrap();
        assert_eq!(gpu.launch(T, 0, me, MS), Run { start: T, end: T + MS });
        assert_eq!(gpu.launch(T, 0, me, MS), Run { start: T + MS, end: T + 2 * MS });
        gpu.throttle(reason::HW_THERMAL | reason::HW_SLOWDOWN, 990, T);
        assert_eq!(gpu.launch(T, 0, me, MS), Run { start: T + 2 * MS, end: T + 4 * MS });
        gpu.heal(T + 5 * MS);
        let after = T + 10 * MS;
        assert_eq!(gpu.launch(T, after, me, MS), Run { start: after, end: after + MS });
        assert_eq!(gpu.processes()[0].busy, 5 * MS);
    }

    #[test]
    fn cumulative_counters_grow_while_throttled_and_stay_afterwards() {
        let (_dir, machine) = machine(1);
        let gpu = machine.gpu(0).unwrap();
        let read = |now| Held::ALL.map(|h| gpu.cumulative(h, now) / MS);
        assert_eq!(read(T), [0; 6]);
        gpu.throttle(reason::SW_POWER_CAP, 1200, T);
        assert_eq!(read(T + 5 * MS), [5, 0, 0, 0, 0, 0]);
        gpu.throttle(reason::SW_POWER_CAP | reason::SW_THERMAL, 1000, T + 10 * MS);
        assert_eq!(read(T + 13 * MS), [13, 3, 0, 3, 0, 0]);
        gpu.heal(T + 20 * MS);
        assert_eq!(read(T + 99 * MS), [20, 10, 0, 10, 0, 0]);
        gpu.throttle(reason::POWER_BRAKE, 1000, T + 100 * MS);
        assert_eq!(read(T + 101 * MS), [20, 10, 0, 10, 0, 1]);
    }

    #[test]
    fn two_processes_take_turns_in_slices() {
        let (_dir, machine) = machine(1);
        let (me, other) = pids();
        let gpu = machine.gpu(0).unwrap();
        // It comes first and is promised 10 ms.
        assert_eq!(gpu.launch(T, 0, other, 10 * MS), Run { start: T, end: T + 10 * MS });
        // Slices: 0-2 the other's, 2-4 mine, and so on; I wait, and run in 2-4 and 6-7.
        let mine = gpu.launch(T + MS, 0, me, 3 * MS);
        assert_eq!(mine, Run { start: T + 2 * MS, end: T + 7 * MS });
        // The other's next kernel pays for the 3 ms that I took.
        let next = gpu.launch(T + 10 * MS, 0, other, MS);
        assert_eq!(next, Run { start: T + 10 * MS, end: T + 14 * MS });
        // And it owes nothing now.
        assert_eq!(gpu.launch(T + 20 * MS, 0, other, MS).end, T + 21 * MS);
    }

    #[test]
    fn a_competitor_with_a_full_queue_halves_what_one_gets() {
        let (_dir, machine) = machine(1);
        let (me, other) = pids();
        let gpu = machine.gpu(0).unwrap();
        let (mut mine, mut theirs) = (T, T);
        let mut work = 0;
        while mine < T + 1000 * MS {
            while theirs <= mine + 4 * MS {
                theirs = gpu.launch(mine, 0, other, 4 * MS).end;
            }
            mine = gpu.launch(mine, 0, me, MS).end;
            work += 1;
        }
        // Alone it would be a thousand.
        assert!((450..=560).contains(&work), "{work} kernels of 1 ms in a second");
        let busy: u64 = gpu.processes().iter().map(|p| p.busy).sum();
        assert!(busy <= theirs.max(mine) - T, "more ran than time passed: {busy}");
    }

    #[test]
    fn copies_slow_down_when_they_are_replayed_and_when_the_link_is_narrow() {
        let (_dir, machine) = machine(1);
        let (me, _) = pids();
        let gpu = machine.gpu(0).unwrap();
        let takes = |at| {
            let run = gpu.copy(at, 0, me, 50_000_000, Direction::ToDevice);
            assert_eq!(run.start, at);
            (run.end - run.start) / MS
        };
        assert_eq!(takes(T), 1);
        assert_eq!(gpu.get(Quantity::PcieReplays), 0);
        gpu.pcie_replay(true);
        assert_eq!(takes(T + 100 * MS), 4);
        assert_eq!(gpu.get(Quantity::PcieReplays), 50);
        gpu.heal(T);
        gpu.pcie_link(3, 8);
        assert_eq!(takes(T + 200 * MS), 8);
        // Kernels and the other direction do not wait for it.
        let back = gpu.copy(T + 200 * MS, 0, me, 50, Direction::ToHost);
        assert_eq!(back.start, T + 200 * MS);
        assert_eq!(gpu.launch(T + 200 * MS, 0, me, 1).start, T + 200 * MS);
        let moved = [Quantity::PcieRx, Quantity::PcieTx].map(|q| gpu.get(q));
        assert_eq!(moved, [150_000_000, 50]);
    }

    #[test]
    fn utilisation_lags_by_a_window() {
        let (_dir, machine) = machine(1);
        let (me, _) = pids();
        let gpu = machine.gpu(0).unwrap();
        let window = T / UTILISATION_NS * UTILISATION_NS + UTILISATION_NS;
        gpu.launch(window, 0, me, UTILISATION_NS / 2);
        assert_eq!(gpu.utilisation(window + UTILISATION_NS - 1), 0, "the window is not over");
        assert_eq!(gpu.utilisation(window + UTILISATION_NS), 50);
        assert_eq!(gpu.reasons(window + UTILISATION_NS), 0);
        assert_eq!(gpu.utilisation(window + 2 * UTILISATION_NS), 0);
        assert_eq!(gpu.reasons(window + 2 * UTILISATION_NS), reason::IDLE);
        let samples = gpu.utilisation_samples(window, window + 2 * UTILISATION_NS);
        assert_eq!(samples, [(window + UTILISATION_NS, 50), (window + 2 * UTILISATION_NS, 0)]);
        let seen = gpu.process_utilisation(T, window + 2 * PROCESS_UTILISATION_NS);
        assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [me], "{seen:?}");
    }

    #[test]
    fn memory_is_counted_by_process_and_xids_are_remembered() {
        let (_dir, machine) = machine(1);
        let (me, other) = pids();
        let gpu = machine.gpu(0).unwrap();
        assert!(gpu.allocate(me, 1 << 30, T) && gpu.allocate(other, 2 << 30, T));
        assert!(!gpu.allocate(me, 80 << 30, T), "more than there is");
        assert_eq!(gpu.memory_used(), (3 << 30) + RESERVED_BYTES);
        gpu.release(other, 1 << 30);
        gpu.leave(me);
        assert_eq!(gpu.processes().iter().map(|p| p.memory).collect::<Vec<_>>(), [1 << 30]);

        gpu.xid(31, 4242, T);
        gpu.fall_off_bus(T + 1);
        assert!(!gpu.present());
        assert!(gpu.has_failed(4242) && !gpu.has_failed(4243));
        let numbers: Vec<u64> = (0..9).map_while(|i| gpu.xid_at(i)).map(|x| x.number).collect();
        assert_eq!(numbers, [31, 79]);
        gpu.heal(T);
        assert!(gpu.present());
    }

    #[test]
    fn threads_that_launch_at_once_get_places_that_do_not_overlap() {
        let (_dir, machine) = machine(1);
        let (me, _) = pids();
        let gpu = machine.gpu(0).unwrap();
        let runs = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mine: Vec<Run> = (0..500).map(|_| gpu.launch(T, 0, me, 1000)).collect();
                    runs.lock().unwrap().extend(mine);
                });
            }
        });
        let mut runs = runs.into_inner().unwrap();
        runs.sort_by_key(|run| run.start);
        assert!(runs.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!((runs.len(), gpu.busy()), (2000, 2_000_000));
    }

    #[test]
    fn links_are_laid_and_laid_again() {
        let dir = tempfile::tempdir().unwrap();
        let object = dir.path().join("object.so");
        std::fs::write(&object, "elf").unwrap();
        let links = dir.path().join("links");
        for _ in 0..2 {
            lay_links(&links, &object).unwrap();
        }
        assert_eq!(std::fs::read_to_string(links.join("libcuda.so.1")).unwrap(), "elf");
        assert!(lay_links(&links, &dir.path().join("none")).is_err());
    }
}
