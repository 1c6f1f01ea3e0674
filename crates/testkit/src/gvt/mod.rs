//! A simulated host that shares a GPU by Intel GVT-g, down to the events of its kernel.
//!
//! # How
//! [`run`] follows the kernel's scheduler of virtual GPUs (drivers/gpu/drm/i915/gvt/sched_policy.c and scheduler.c, from
//! 4.14 to 6.12): a tick each ms, slices by weight, a balance each 100 ms, a reset each tenth, debts carried between.
//! What it does comes out as [`Trace`]: events with the names and the fields that the real tracepoints have, and beside
//! them a ledger of the truth, which an analyser must not see. [`ctf::write`] writes the events as LTTng would.
//!
//! The times between an event of the hardware and what the driver does about it are constants of a few µs.
//!
//! A guest may be traced as well ([`Guest`]): its driver then has a queue of its own, hands over what the virtual GPU has room
//! for, and hears of the end of a request some time after the host.
//!
//! Where virtual CPUs are pinned to CPUs of the host, a guest thinks as fast as its virtual CPU runs, and the switches,
//! wakeups, entries and exits are told; the driver's own threads then have a CPU of their own, without switches.

mod cpus;
pub mod ctf;
mod events;
mod scheduler;

pub use events::{Event, KINDS, Kind, Value, kind};
pub use scheduler::run;

/// Work that a virtual machine sends to one engine.
#[derive(Clone, Debug)]
pub struct Load {
    /// The engine: 0 render, 1 copy, 2 video.
    pub engine: usize,
    /// How long a request runs, ns.
    pub runs: i64,
    /// By which share of that requests differ, at random, 0 to 1.
    pub spread: f64,
    /// How long the guest thinks between the end of a request and the next, ns.
    pub thinks: i64,
    /// How many requests.
    pub requests: u32,
    /// How many it has on their way at once.
    pub depth: u32,
    /// When the first comes, ns.
    pub from: i64,
}

/// A thread that is pinned to a CPU of the host: a virtual CPU, or one of the host's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The CPU.
    pub cpu: u32,
    /// How long it works at a time, give or take a half, ns; 0 for a virtual CPU that only thinks for its loads.
    pub runs: i64,
    /// How long it sleeps in between, give or take a half, ns; 0 for one that always works.
    pub halts: i64,
}

/// A guest that is traced as well, by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// How many requests to an engine its driver hands over before the first is done.
    pub ports: u32,
    /// By how much its clock is ahead of the host's when that is 0, ns.
    pub ahead: i64,
    /// By how much its clock gains on the host's, parts in a billion.
    pub gains: i64,
}

impl Guest {
    /// What its clock shows at a time of the host's, ns.
    pub fn shows(&self, host: i64) -> i64 {
        let gained = i128::from(host) * i128::from(self.gains) / 1_000_000_000;
        host + self.ahead + gained as i64
    }
}

/// A virtual GPU.
#[derive(Clone, Debug)]
pub struct Vgpu {
    /// Its weight.
    pub weight: u32,
    /// When it gets another weight, ns, and which; the scheduler takes it over at its next reset.
    pub changes: Vec<(i64, u32)>,
    /// What its machine does; nothing if empty.
    pub loads: Vec<Load>,
    /// When its machine is shut down, ns.
    pub leaves: Option<i64>,
    /// The buffers that its requests use, bytes.
    pub buffers: Vec<u64>,
    /// Its machine's virtual CPUs, 8 at most; the first also thinks for the loads. Without any, thinking takes no CPU.
    pub vcpus: Vec<Pinned>,
    /// How its machine is traced; without, its requests come to the host as soon as they are made.
    pub guest: Option<Guest>,
}

impl Vgpu {
    /// A virtual GPU of weight 4 with one load.
    pub fn with(load: Load) -> Vgpu {
        Vgpu { loads: vec![load], ..Vgpu::idle(4) }
    }

    /// A virtual GPU that is there and does nothing.
    pub fn idle(weight: u32) -> Vgpu {
        Vgpu {
            weight,
            changes: Vec::new(),
            loads: Vec::new(),
            leaves: None,
            buffers: vec![64 << 20],
            vcpus: Vec::new(),
            guest: None,
        }
    }
}

/// What the scheduler may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether a virtual GPU whose slice is used up may have what nobody else wants.
    pub work_conserving: bool,
    /// Whether what is left or owed is carried over to the next 100 ms.
    pub debts: bool,
}

impl Policy {
    /// As the kernel does it.
    pub const KERNEL: Policy = Policy { work_conserving: false, debts: true };
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The virtual GPUs; the first has the number 1.
    pub vgpus: Vec<Vgpu>,
    /// The scheduler.
    pub policy: Policy,
    /// What makes times differ.
    pub seed: u64,
    /// The host's own threads.
    pub tasks: Vec<Pinned>,
    /// Bytes that the device can hold of the buffers; those of whoever had the device the longest ago leave.
    pub memory: u64,
    /// It goes on at least until then, ns; it ends when all requests are done.
    pub lasts: i64,
}

impl Setup {
    /// The kernel's scheduler over these, until all requests are done.
    pub fn kernel(vgpus: Vec<Vgpu>, seed: u64) -> Setup {
        let policy = Policy::KERNEL;
        Setup { vgpus, policy, seed, tasks: Vec::new(), memory: u64::MAX, lasts: 0 }
    }
}

/// What truly became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth {
    /// The place of its virtual GPU in the set-up.
    pub vgpu: usize,
    /// Its engine.
    pub engine: usize,
    /// When it was made: it came into the queue of its guest, ns.
    pub made: i64,
    /// When it came into the queue of its virtual GPU, ns.
    pub queued: i64,
    /// When it was handed to the host's driver, ns.
    pub submitted: i64,
    /// When it began to run, ns.
    pub from: i64,
    /// When it was done, ns.
    pub to: i64,
}

/// What truly became of a virtual GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// When its last request was done, ns.
    pub finished: i64,
    /// How long engines worked for it, ns.
    pub busy: i64,
    /// How long it had requests and an unused device was withheld since its slice was used up, ns.
    pub withheld: i64,
    /// How long it had requests that were not handed over and another virtual GPU had the device, ns.
    pub behind: i64,
}

/// Who took CPUs from whom: by the place of the machine and of the other one in the set-up; the host's threads are last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// How often a thread of the other was the next on a CPU that was taken from one.
    pub direct: Vec<Vec<u64>>,
    /// How often the other was the first other machine on the CPU until the thread ran again; if no machine was, who took
    /// the CPU.
    pub eventual: Vec<Vec<u64>>,
    /// How long threads were ready to run while the other had their CPU, ns.
    pub behind: Vec<Vec<i64>>,
    /// How often threads slept.
    pub halts: Vec<u64>,
}

impl Taken {
    fn new(parties: usize) -> Taken {
        Taken {
            direct: vec![vec![0; parties]; parties],
            eventual: vec![vec![0; parties]; parties],
            behind: vec![vec![0; parties]; parties],
            halts: vec![0; parties],
        }
    }
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// What tracepoints say, in the order of their times.
    pub events: Vec<Event>,
    /// What the tracepoints of each guest say, on its clock; nothing of those that are not traced.
    pub guests: Vec<Vec<Event>>,
    /// The truth of each request, in the order in which they ended.
    pub requests: Vec<Truth>,
    /// The truth of each virtual GPU.
    pub accounts: Vec<Account>,
    /// The truth of the CPUs; empty if no thread is pinned.
    pub taken: Taken,
    /// How often buffers had to leave the device, and their bytes.
    pub evicted: (u64, u64),
    /// When it ended, ns.
    pub ended: i64,
}
