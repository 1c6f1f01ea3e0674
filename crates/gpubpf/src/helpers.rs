//! The helpers that device programs and policies may call: their numbers, arguments and effects.
//!
//! 1–3, 6, 14 and 25 are Linux's numbers, 501–511 bpftime's as merged there; 512 to 518 are ours.

use crate::insn::Reg;
use crate::program::{MapKind, Program};
use crate::value::Value;

/// A helper that is lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helper {
    /// 1: `void *lookup(map, key)`.
    Lookup,
    /// 2: `long update(map, key, value, flags)`.
    Update,
    /// 3: `long delete(map, key)`.
    Delete,
    /// 14: `u64 get_current_pid_tgid()`, of the process that launched the kernel.
    PidTgid,
    /// 25: `long perf_event_output(ctx, map, flags, data, size)`, into a ring.
    Output,
    /// 502: `u64 globaltimer()`, in ns.
    GlobalTimer,
    /// 503: `void block_idx(u64 *x, u64 *y, u64 *z)`.
    BlockIdx,
    /// 504: `void block_dim(u64 *x, u64 *y, u64 *z)`.
    BlockDim,
    /// 505: `void thread_idx(u64 *x, u64 *y, u64 *z)`.
    ThreadIdx,
    /// 506: `void membar_sys()`.
    MembarSys,
    /// 507: `void exit()`: the thread of the kernel ends.
    CudaExit,
    /// 508: `void grid_dim(u64 *x, u64 *y, u64 *z)`.
    GridDim,
    /// 509: `u64 sm_id()`.
    SmId,
    /// 510: `u64 warp_id()`, as the hardware numbers them at this moment.
    WarpId,
    /// 511: `u64 lane_id()`.
    LaneId,
    /// 512: `void prefetch_l2(void *address)`. bpftime's unmerged proposal has it as 509, which is
    /// the SM's number in what is merged.
    PrefetchL2,
    /// 513: `u64 grid_id()`: the number of the launch in its context, which grows from launch to launch (PTX ISA,
    /// `%gridid`).
    GridId,
    /// 514: `long policy_prefetch(u64 address, u64 bytes)`: asks for managed memory to be moved to the device.
    AskPrefetch,
    /// 515: `long policy_advise(u64 address, u64 bytes, u64 advice)`: asks for advice about managed memory.
    AskAdvise,
    /// 516: `long policy_delay(u64 kernel, u64 us)`: asks for launches of a kernel, or of all (0), to be delayed.
    AskDelay,
    /// 518: `u64 clock64()`, in cycles of the SM on which the thread runs; those of two SMs are not comparable.
    Clock64,
    /// 517: `long policy_priority(u64 stream, s64 priority)`: asks for a priority of streams that are created later.
    AskPriority,
}

/// Where a helper may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// In kernels of the device.
    Kernels,
    /// In policies, on the host.
    Policies,
    /// In both.
    Both,
}

impl Helper {
    /// The helper with this number, or why there is none.
    pub fn from_id(id: u32) -> Result<Self, String> {
        Ok(match id {
            1 => Self::Lookup,
            2 => Self::Update,
            3 => Self::Delete,
            14 => Self::PidTgid,
            25 => Self::Output,
            502 => Self::GlobalTimer,
            503 => Self::BlockIdx,
            504 => Self::BlockDim,
            505 => Self::ThreadIdx,
            506 => Self::MembarSys,
            507 => Self::CudaExit,
            508 => Self::GridDim,
            509 => Self::SmId,
            510 => Self::WarpId,
            511 => Self::LaneId,
            512 => Self::PrefetchL2,
            513 => Self::GridId,
            514 => Self::AskPrefetch,
            515 => Self::AskAdvise,
            516 => Self::AskDelay,
            517 => Self::AskPriority,
            518 => Self::Clock64,
            6 | 501 => {
                let name = if id == 6 { "trace_printk" } else { "puts" };
                return Err(format!(
                    "helper {id} ({name}) prints, which on a GPU is a call; send a record to a ring \
                     (helper 25) instead"
                ));
            }
            _ => return Err(format!("helper {id} does not exist on a GPU{}", host_name(id))),
        })
    }

    /// The registers that hold addresses which the helper reads or writes.
    pub fn pointers(self) -> &'static [Reg] {
        match self {
            Self::Lookup | Self::Delete => &[2],
            Self::Update => &[2, 3],
            Self::Output => &[4],
            Self::BlockIdx | Self::BlockDim | Self::ThreadIdx | Self::GridDim => &[1, 2, 3],
            Self::PrefetchL2 => &[1],
            _ => &[],
        }
    }

    /// Where it may be called.
    pub fn runs(self) -> Runs {
        match self {
            Self::Lookup | Self::Update | Self::Delete | Self::GlobalTimer => Runs::Both,
            asks if asks.asks().is_some() => Runs::Policies,
            _ => Runs::Kernels,
        }
    }

    /// What it asks for on behalf of a policy: the number of the helper, and of its arguments, which are numbers.
    pub fn asks(self) -> Option<(u64, Reg)> {
        match self {
            Self::AskPrefetch => Some((514, 2)),
            Self::AskAdvise => Some((515, 3)),
            Self::AskDelay => Some((516, 2)),
            Self::AskPriority => Some((517, 2)),
            _ => None,
        }
    }

    /// The three-component special register that the helper stores.
    pub fn triple(self) -> Option<&'static str> {
        match self {
            Self::BlockIdx => Some("ctaid"),
            Self::BlockDim => Some("ntid"),
            Self::ThreadIdx => Some("tid"),
            Self::GridDim => Some("nctaid"),
            _ => None,
        }
    }
}

/// The kernel's name of some helpers that programs written for a host call.
fn host_name(id: u32) -> &'static str {
    match id {
        4 => ": probe_read (dereference the address instead)",
        5 => ": ktime_get_ns (use 502, globaltimer)",
        7 => ": get_prandom_u32",
        8 => ": get_smp_processor_id (use 509, sm_id)",
        12 => ": tail_call",
        15 => ": get_current_uid_gid",
        16 => ": get_current_comm",
        27 => ": get_stackid",
        112 | 113 => ": probe_read (dereference the address instead)",
        114 | 115 => ": probe_read_str",
        130..=134 => ": the host's ring buffer (use a map of type 1527 and helper 25)",
        _ => "",
    }
}

/// What helper `id` leaves in `r0`, where `first` is what `r1` holds.
pub(crate) fn result(program: &Program, id: u32, first: Value) -> Value {
    let number = Value::Any { align: 0 };
    match (Helper::from_id(id), first) {
        (Ok(Helper::Lookup), Value::Map(map)) => {
            let kind = program.maps.get(map as usize).map(|map| map.kind);
            match kind {
                Some(MapKind::Ring | MapKind::Other(_)) | None => number,
                // In shared memory: a generic address.
                Some(MapKind::BlockArray) => Value::Any { align: 3 },
                Some(_) => Value::Global { align: 3, map: Some(map) },
            }
        }
        (Ok(helper), _) if helper.triple().is_some() => Value::Const(0),
        (Ok(Helper::MembarSys | Helper::PrefetchL2), _) => Value::Const(0),
        _ => number,
    }
}

/// The registers through which helper `id` writes, each with the bytes that it writes.
pub(crate) fn writes(id: u32) -> impl Iterator<Item = (Reg, i32)> {
    let regs: &[Reg] = match Helper::from_id(id) {
        Ok(helper) if helper.triple().is_some() => helper.pointers(),
        _ => &[],
    };
    regs.iter().map(|&reg| (reg, 8))
}

/// The registers of helper `id` that hold addresses.
pub(crate) fn arguments(id: u32) -> impl Iterator<Item = Reg> {
    Helper::from_id(id).map(Helper::pointers).unwrap_or_default().iter().copied()
}
