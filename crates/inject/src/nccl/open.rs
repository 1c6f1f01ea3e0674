//! What is kept of tasks, their parts and communicators while they are open, and which events NCCL is
//! asked for.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU16, AtomicU32, AtomicU64};

use super::Detail;
use super::abi::{Version, bit, state};
use super::pool::Empty;

/// Collectives, sends and receives that can be open at once.
pub const TASKS: usize = 4096;
/// All other events that can be open at once.
pub const PARTS: usize = 8192;
/// Communicators that can be open at once.
pub const COMMUNICATORS: usize = 256;
/// How many places are tried for a new event.
pub const PROBES: usize = 64;

/// A kernel that took longer has a wrong time (NCCL issue 2368), ns.
pub const IMPLAUSIBLE: u64 = 600_000_000_000;
/// A kernel whose time lies earlier before its call than this has a wrong time, ns.
pub const BEFORE_CALL: u64 = 5_000_000;
/// A launch that took this long waited for something, and is reported, ns.
pub const LONG_LAUNCH: u64 = 1_000_000;
/// How often the uncertainty of the clock is reported, ns.
pub const CLOCK_EVERY: u64 = 60_000_000_000;
/// Marks `GPUWHY_NCCL_MASK` as set.
pub const INSTEAD: u64 = 1 << 63;
/// Events that make NCCL report kernels.
pub const KERNELS: u64 = bit::KERNEL_CH | bit::KERNEL_PHASE;
/// A task that has been open for this long is reported as open, and again each time the time has
/// doubled, ns.
pub const OPEN: u64 = 5_000_000_000;
/// A task whose call is not known and of which no channel was reported for this long has none, ns.
pub const NO_CHANNELS: u64 = 10_000_000_000;

/// Sums over the channels of a task.
pub struct Sum {
    /// Channels.
    pub count: AtomicU32,
    /// Of their starts, relative to [`Task::base`], ns.
    pub start: AtomicI64,
    /// Of their durations, ns.
    pub dur: AtomicU64,
}

impl Sum {
    /// Adds a channel, ns.
    pub fn add(&self, start: i64, dur: u64) {
        self.count.fetch_add(1, Relaxed);
        self.start.fetch_add(start, Relaxed);
        self.dur.fetch_add(dur, Relaxed);
    }

    /// Back to no channels.
    pub fn clear(&self) {
        self.count.store(0, Relaxed);
        self.start.store(0, Relaxed);
        self.dur.store(0, Relaxed);
    }
}

/// [`Task::sums`]: the phases by their ids, then the channels as wholes.
pub const STAGES: [&[u8]; 4] = [b"initial_sync", b"compute", b"final_sync", b"channel"];
/// The index in [`STAGES`] of a channel as a whole.
pub const CHANNEL: usize = 3;

/// A collective, a send or a receive.
pub struct Task {
    /// The other rank, for sends and receives.
    pub peer: AtomicU32,
    /// Index of the communicator.
    pub communicator: AtomicU16,
    /// Generation of the communicator.
    pub of: AtomicU64,
    /// The event bit.
    pub kind: AtomicU32,
    /// The operation, a [`super::names::LocalName`].
    pub name: AtomicU16,
    /// Algorithm, protocol and channels, a [`super::names::LocalName`].
    pub how: AtomicU16,
    /// Channels that NCCL will report.
    pub expected: AtomicU32,
    /// Channels that have ended.
    pub done: AtomicU32,
    /// Its number within communicator and operation.
    pub seq: AtomicU64,
    /// Payload.
    pub bytes: AtomicU64,
    /// When its call appended it, CLOCK_MONOTONIC ns; 0 if that is not known.
    pub called: AtomicU64,
    /// When its event began on the host, CLOCK_MONOTONIC ns.
    pub began: AtomicU64,
    /// When it ended there; 0 until then.
    pub ended: AtomicU64,
    /// By the GPU's clock: what the starts in `sums` are relative to; 0 until the first channel began.
    pub base: AtomicU64,
    /// By the GPU's clock: the start of the first channel; `u64::MAX` until one has ended.
    pub first: AtomicU64,
    /// By the GPU's clock: the end of the last channel.
    pub last: AtomicU64,
    /// By stage, see [`STAGES`].
    pub sums: [Sum; 4],
    /// The other plug-in's handle, or 0.
    pub theirs: AtomicU64,
    /// How often it was reported as open.
    pub open_reports: AtomicU32,
}

impl Empty for Task {
    const EMPTY: Task = Task {
        peer: AtomicU32::new(0),
        communicator: AtomicU16::new(0),
        of: AtomicU64::new(0),
        kind: AtomicU32::new(0),
        name: AtomicU16::new(0),
        how: AtomicU16::new(0),
        expected: AtomicU32::new(0),
        done: AtomicU32::new(0),
        seq: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        called: AtomicU64::new(0),
        began: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        base: AtomicU64::new(0),
        first: AtomicU64::new(0),
        last: AtomicU64::new(0),
        sums: [const {
            Sum { count: AtomicU32::new(0), start: AtomicI64::new(0), dur: AtomicU64::new(0) }
        }; 4],
        theirs: AtomicU64::new(0),
        open_reports: AtomicU32::new(0),
    };
}

/// Any other event.
pub struct Part {
    /// The event bit; 0 for one that only the other plug-in asked for.
    pub kind: AtomicU32,
    /// Index of the communicator.
    pub communicator: AtomicU16,
    /// Of a call or group: the call, a [`super::names::LocalName`].
    pub name: AtomicU16,
    /// The channel; `u16::MAX` if it has none.
    pub channel: AtomicU16,
    /// Of a group: how deep it is nested. Of a call: [`BY_GROUP`] and [`CAPTURED`]. Of a network step:
    /// the state that it is in. Of a phase: its id.
    pub mode: AtomicU16,
    /// Handle of the task that it belongs to.
    pub task: AtomicU64,
    /// When it began on the host, CLOCK_MONOTONIC ns.
    pub began: AtomicU64,
    /// When it began by the GPU's clock; of a network step, when it entered its state, CLOCK_MONOTONIC
    /// ns.
    pub first: AtomicU64,
    /// When it ended by the GPU's clock; 0 until then.
    pub last: AtomicU64,
    /// The other plug-in's handle, or 0.
    pub theirs: AtomicU64,
}

impl Empty for Part {
    const EMPTY: Part = Part {
        kind: AtomicU32::new(0),
        communicator: AtomicU16::new(0),
        name: AtomicU16::new(0),
        channel: AtomicU16::new(0),
        mode: AtomicU16::new(0),
        task: AtomicU64::new(0),
        began: AtomicU64::new(0),
        first: AtomicU64::new(0),
        last: AtomicU64::new(0),
        theirs: AtomicU64::new(0),
    };
}

/// In [`Part::mode`]: the call is reported as its group.
pub const BY_GROUP: u16 = 1;
/// In [`Part::mode`]: the call was captured into a CUDA graph.
pub const CAPTURED: u16 = 2;

/// A communicator.
pub struct Communicator {
    /// Its identity, equal on all ranks.
    pub id: AtomicU64,
    /// The name that its program gave it, a [`super::names::LocalName`].
    pub name: AtomicU16,
    /// This process's rank.
    pub rank: AtomicU32,
    /// How many ranks it has.
    pub ranks: AtomicU32,
    /// When it was made, CLOCK_MONOTONIC ns.
    pub at: AtomicU64,
    /// The [`Version`] by which NCCL made it.
    pub version: AtomicU32,
    /// Index of its GPU's clock.
    pub clock: AtomicU32,
    /// The generation of ring to which it was reported.
    pub reported_to: AtomicU64,
    /// NCCL's mask of events, which may be changed until the communicator is finalised.
    pub mask: AtomicPtr<c_int>,
    /// The other plug-in's context.
    pub theirs: AtomicU64,
    /// Whether the other plug-in follows this communicator.
    pub shared: AtomicBool,
    /// Whether tasks whose call is not known (launches of graphs, all tasks before version 5) have
    /// channels: what was asked for when a graph was captured holds for all its launches.
    pub has_channels: AtomicBool,
}

impl Empty for Communicator {
    const EMPTY: Communicator = Communicator {
        id: AtomicU64::new(0),
        name: AtomicU16::new(0),
        rank: AtomicU32::new(0),
        ranks: AtomicU32::new(0),
        at: AtomicU64::new(0),
        version: AtomicU32::new(0),
        clock: AtomicU32::new(0),
        reported_to: AtomicU64::new(0),
        mask: AtomicPtr::new(null_mut()),
        theirs: AtomicU64::new(0),
        shared: AtomicBool::new(false),
        has_channels: AtomicBool::new(false),
    };
}

/// What the environment asks for, read in the first call of a process.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `GPUWHY_OFF`: record nothing, only pass events on.
    pub off: bool,
    /// `GPUWHY_NCCL_MASK`: the mask, instead of ours.
    pub mask: Option<u64>,
    /// `GPUWHY_NCCL_NEXT`: the other plug-in.
    pub next: Option<std::ffi::CString>,
}

/// The events that we ask for.
pub fn mask(version: Version, detail: Detail, instead: Option<u64>) -> u64 {
    use bit::*;
    let low = COLL | P2P | COLL_API | P2P_API | KERNEL_LAUNCH | CE_COLL;
    // A mask that is changed while NCCL runs is not completed by it: phases are parts of channels,
    // which must be asked for too.
    let phases = if version == Version::V7 { KERNEL_CH | KERNEL_PHASE } else { KERNEL_CH };
    let network = PROXY_OP | PROXY_STEP | NET_PLUGIN;
    let more = match detail {
        Detail::Low => 0,
        Detail::Phases => phases,
        Detail::Network => phases | network,
    };
    (instead.unwrap_or(low) | more) & version.bits()
}

/// Reads the environment.
pub fn settings() -> Settings {
    use std::os::unix::ffi::OsStrExt;
    let get = |name: &str| std::env::var_os(name);
    let mask = get("GPUWHY_NCCL_MASK").and_then(|v| {
        let text = v.to_str()?.trim();
        match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    });
    let next = get("GPUWHY_NCCL_NEXT").and_then(|v| std::ffi::CString::new(v.as_bytes()).ok());
    Settings { off: gpuwhy_wire::is_off(), mask, next }
}

/// The version by which NCCL made a communicator.
pub fn version_of(communicator: &Communicator) -> Version {
    match communicator.version.load(Relaxed) {
        4 => Version::V4,
        5 => Version::V5,
        6 => Version::V6,
        _ => Version::V7,
    }
}

/// The stage that a network step is in while it has this state.
pub fn net_state(what: c_int) -> Option<&'static [u8]> {
    Some(match what {
        state::STEP_SEND_GPU_WAIT => b"net:send_gpu_wait",
        state::STEP_SEND_PEER_WAIT => b"net:send_peer_wait",
        state::STEP_SEND_WAIT => b"net:send_wait",
        state::STEP_RECV_WAIT => b"net:recv_wait",
        state::STEP_RECV_FLUSH_WAIT => b"net:recv_flush_wait",
        state::STEP_RECV_GPU_WAIT => b"net:recv_gpu_wait",
        _ => return None,
    })
}
