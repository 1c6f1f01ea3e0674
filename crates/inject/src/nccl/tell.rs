//! From NCCL's calls to records: what is open, what belongs to what, and what is told at the end.
//!
//! NCCL's own events are not what they are called. The API event of a call covers only its being
//! appended to a group; the group's event, which every single call has too, is the one that lasts
//! as long as the call. The event of a collective covers the hand-over to the threads that feed
//! network and profiler, after the launch. When the collective runs is known only from its
//! kernel's channels, which are told later, by another thread, each with the GPU's own times.
//!
//! So a collective is told when its event and all channels that were announced have ended, from
//! the first channel's start to the last one's end; without channels, from the append to the end
//! of the hand-over, and marked as such.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU16, AtomicU32, AtomicU64,
};

use gpuwhy_wire::{Event, NameId};

use super::Detail;
use super::abi::{Descr, StateArgs, Version, bit, state};
use super::multiplex::{InitArgs, Next, delivered};
use super::names::{BYTES, LocalName, Names};
use super::outside::{Outside, Sink};
use super::peers::Peers;
use super::pool::{Empty, Handle, Place, Pool, State};
use super::timing::Envelope;
use crate::notice::{Code, Notices};

/// Collectives, sends and receives that can be open at once.
pub const TASKS: usize = 4096;
/// All other events that can be open at once.
pub const PARTS: usize = 8192;
/// Communicators that can be open at once.
pub const COMMUNICATORS: usize = 256;
const PROBES: usize = 64;

/// A time of the GPU that differs more from its fellow is wrong (NCCL issue 2368), ns.
const IMPLAUSIBLE: u64 = 600_000_000_000;
/// A kernel cannot begin so long before its call, ns.
const BEFORE_CALL: u64 = 5_000_000;
/// A launch is told if it took so long, ns: then it waited for something.
const LONG_LAUNCH: u64 = 1_000_000;
/// How well the clock is known is told so often, ns.
const CLOCK_EVERY: u64 = 60_000_000_000;
/// Marks `GPUWHY_NCCL_MASK` as set.
const INSTEAD: u64 = 1 << 63;

/// Sums over the channels of a task.
struct Sum {
    count: AtomicU32,
    /// Of starts, relative to the task's first.
    start: AtomicI64,
    dur: AtomicU64,
}

impl Sum {
    fn add(&self, start: i64, dur: u64) {
        self.count.fetch_add(1, Relaxed);
        self.start.fetch_add(start, Relaxed);
        self.dur.fetch_add(dur, Relaxed);
    }

    fn clear(&self) {
        self.count.store(0, Relaxed);
        self.start.store(0, Relaxed);
        self.dur.store(0, Relaxed);
    }
}

/// [`Task::sums`]: the phases by their ids, then the channels as wholes.
const STAGES: [&[u8]; 4] = [b"initial_sync", b"compute", b"final_sync", b"channel"];
const CHANNEL: usize = 3;

/// A collective, a send or a receive.
struct Task {
    /// The other rank, for sends and receives.
    peer: AtomicU32,
    communicator: AtomicU16,
    /// Generation of the communicator.
    of: AtomicU64,
    kind: AtomicU32,
    name: AtomicU16,
    how: AtomicU16,
    /// Channels that will be told.
    expected: AtomicU32,
    /// Channels that were.
    done: AtomicU32,
    seq: AtomicU64,
    bytes: AtomicU64,
    /// When its call appended it, 0 if that is not known.
    called: AtomicU64,
    /// Its event on the host; `ended` is 0 until then.
    began: AtomicU64,
    ended: AtomicU64,
    /// By the GPU's clock; `base` is what the sums' starts are relative to.
    base: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    sums: [Sum; 4],
    theirs: AtomicU64,
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
    };
}

/// Any other event.
struct Part {
    kind: AtomicU32,
    communicator: AtomicU16,
    name: AtomicU16,
    channel: AtomicU16,
    /// Of a group: how deep it is nested. Of a call: 1 if its group tells of it, 2 if it was
    /// captured into a graph. Of a network step: the state that it is in. Of a phase: its id.
    mode: AtomicU16,
    /// The task that it belongs to, or of a call its group.
    task: AtomicU64,
    began: AtomicU64,
    /// By the GPU's clock; of a network step since when it is in its state, by ours.
    first: AtomicU64,
    last: AtomicU64,
    theirs: AtomicU64,
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

const BY_GROUP: u16 = 1;
const CAPTURED: u16 = 2;

struct Communicator {
    id: AtomicU64,
    name: AtomicU16,
    rank: AtomicU32,
    ranks: AtomicU32,
    at: AtomicU64,
    version: AtomicU32,
    clock: AtomicU32,
    /// The generation of ring that knows of it.
    told: AtomicU64,
    mask: AtomicPtr<c_int>,
    /// Context of the other plug-in, and whether it has one.
    theirs: AtomicU64,
    shared: AtomicBool,
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
        told: AtomicU64::new(0),
        mask: AtomicPtr::new(null_mut()),
        theirs: AtomicU64::new(0),
        shared: AtomicBool::new(false),
    };
}

/// What the environment says, read when a process begins.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `GPUWHY_OFF`: tell nothing, only pass on.
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

/// All that the door knows. `O` is the world that it tells.
pub struct Door<O> {
    /// The world.
    pub outside: O,
    /// Which process this is, in handles; 0 is one that has not begun.
    process: AtomicU16,
    pid: AtomicI32,
    began_before: AtomicBool,
    lock: AtomicBool,
    off: AtomicBool,
    /// `GPUWHY_NCCL_MASK` and [`INSTEAD`], or 0.
    instead: AtomicU64,
    detail: AtomicU32,
    /// What we ask for, by version.
    ours: [AtomicU64; 4],
    tasks: Pool<Task, TASKS>,
    parts: Pool<Part, PARTS>,
    communicators: Pool<Communicator, COMMUNICATORS>,
    clocks: [Envelope; COMMUNICATORS],
    /// The process has several ranks of one communicator, and so several GPUs.
    many_gpus: AtomicBool,
    peers: Peers,
    names: Names,
    /// What the other plug-in sees, if there is one.
    pub next: Next,
    /// What we could not see.
    pub notices: Notices,
    /// The generation of ring that has been told the notices.
    generation: AtomicU64,
    clock_told: AtomicU64,
}

impl<O: Outside> Door<O> {
    /// A door to which nobody has come yet.
    pub const fn new(outside: O) -> Door<O> {
        Door {
            outside,
            process: AtomicU16::new(0),
            pid: AtomicI32::new(0),
            began_before: AtomicBool::new(false),
            lock: AtomicBool::new(false),
            off: AtomicBool::new(false),
            instead: AtomicU64::new(0),
            detail: AtomicU32::new(Detail::Low as u32),
            ours: [const { AtomicU64::new(0) }; 4],
            tasks: Pool::new(),
            parts: Pool::new(),
            communicators: Pool::new(),
            clocks: [const { Envelope::new() }; COMMUNICATORS],
            many_gpus: AtomicBool::new(false),
            peers: Peers::new(),
            names: Names::new(),
            next: Next::new(),
            notices: Notices::new(),
            generation: AtomicU64::new(0),
            clock_told: AtomicU64::new(0),
        }
    }

    /// The child of a fork: everything is another process's.
    pub fn forked(&self) {
        self.process.store(0, Relaxed);
        self.lock.store(false, Relaxed);
    }

    /// Makes ready for this process, if that has not been done.
    fn begin(&self, settings: impl FnOnce() -> Settings) {
        // SAFETY: cannot fail.
        let pid = unsafe { libc::getpid() };
        if self.process.load(Relaxed) != 0 && self.pid.load(Relaxed) == pid {
            return;
        }
        if self.began_before.swap(true, Relaxed) {
            self.tasks.forget();
            self.parts.forget();
            self.communicators.forget();
        }
        let settings = settings();
        self.off.store(settings.off, Relaxed);
        self.instead.store(settings.mask.map_or(0, |mask| mask | INSTEAD), Relaxed);
        self.pid.store(pid, Relaxed);
        self.apply();
        // Not only the pid: another container may count the same.
        let mixed = (pid as u64 ^ self.outside.now() << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.process.store((mixed >> 48) as u16 | 1, Relaxed);
    }

    /// Runs `f` alone among those that come and go with communicators; not at all if that takes
    /// long.
    fn alone<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        for _ in 0..10_000 {
            if self.lock.compare_exchange(false, true, Acquire, Relaxed).is_ok() {
                let result = f();
                self.lock.store(false, Release);
                return Some(result);
            }
            // SAFETY: cannot fail.
            unsafe { libc::sched_yield() };
        }
        None
    }

    /// A communicator is made. `settings` is asked in the first call of a process.
    ///
    /// # Safety
    /// As NCCL calls it: `context` and `mask` writable, `name` null or a C string, and `mask` so
    /// until the last communicator is finalised.
    pub unsafe fn init(
        &self,
        version: Version,
        context: *mut *mut c_void,
        mask: *mut c_int,
        args: InitArgs,
        tables: &[*const c_void; 4],
        settings: impl FnOnce() -> Settings,
    ) {
        if !context.is_null() {
            // SAFETY: the caller promised.
            unsafe { *context = null_mut() };
        }
        let known = self.alone(|| {
            let mut next = None;
            self.begin(|| {
                let settings = settings();
                next.clone_from(&settings.next);
                settings
            });
            if let Some(next) = &next {
                self.next.open(next, version, tables, &self.notices);
            }
            let (index, generation, place) =
                self.communicators.give(0, COMMUNICATORS, |_, _| {})?;
            let of = &place.of;
            let known = |other: &Communicator| other.id.load(Relaxed) == args.id;
            if self.open_communicators().any(|(_, other)| known(other)) {
                self.many_gpus.store(true, Relaxed);
            }
            let clock = if self.many_gpus.load(Relaxed) { index } else { 0 };
            let mut buffer = [0; BYTES];
            // SAFETY: null or a C string, promised.
            let name = unsafe { text(args.name, &mut buffer) };
            of.id.store(args.id, Relaxed);
            of.name.store(self.name(name).0, Relaxed);
            of.rank.store(args.rank.max(0) as u32, Relaxed);
            of.ranks.store(args.ranks.max(0) as u32, Relaxed);
            of.at.store(self.outside.now(), Relaxed);
            of.version.store(version as u32, Relaxed);
            of.clock.store(clock as u32, Relaxed);
            of.told.store(0, Relaxed);
            of.mask.store(mask, Relaxed);
            Some((index, generation, place))
        });
        let Some(Some((index, generation, place))) = known else {
            return self.notices.count(Code::NcclCommunicators, 1);
        };
        // Not alone: whatever it does there is its own affair.
        let theirs = self.next.init(version, args);
        place.of.theirs.store(theirs.unwrap_or(null_mut()) as u64, Relaxed);
        place.of.shared.store(theirs.is_some(), Relaxed);
        place.begin(generation);
        let process = self.process.load(Relaxed);
        if !context.is_null() {
            let handle = Handle::new(process, generation, TASKS + PARTS + index);
            // SAFETY: the caller promised.
            unsafe { *context = handle.0 as *mut c_void };
        }
        // SAFETY: the caller promised.
        unsafe { self.store_mask(mask, version) };
        self.outside.with(|sink| self.greet(sink, index));
    }

    fn open_communicators(&self) -> impl Iterator<Item = (usize, &Communicator)> {
        let open = |place: &Place<Communicator>| place.word().state() == State::Live;
        self.communicators.all().filter(move |(_, p)| open(p)).map(|(i, p)| (i, &p.of))
    }

    /// # Safety
    /// `mask` must be null or what NCCL gave with a communicator that is not finalised.
    unsafe fn store_mask(&self, mask: *mut c_int, version: Version) {
        if mask.is_null() {
            return;
        }
        let ours = self.ours[version.index()].load(Relaxed);
        let both = (ours | self.next.mask(version)) as c_int;
        // SAFETY: an aligned int that lives (promised), which NCCL itself reads atomically.
        unsafe { AtomicI32::from_ptr(mask) }.store(both, Relaxed);
    }

    /// Computes the masks anew, and gives them to NCCL. False if that could not be done now.
    fn apply(&self) {
        let detail = self.detail();
        let instead = Some(self.instead.load(Relaxed)).filter(|mask| mask & INSTEAD != 0);
        for version in Version::ALL {
            let off = self.off.load(Relaxed);
            let ours = if off { 0 } else { mask(version, detail, instead) };
            self.ours[version.index()].store(ours, Relaxed);
        }
        for (_, communicator) in self.open_communicators() {
            let version = version_of(communicator);
            // SAFETY: still open, and `finalize` waits for the lock that our caller has.
            unsafe { self.store_mask(communicator.mask.load(Relaxed), version) };
        }
    }

    fn detail(&self) -> Detail {
        match self.detail.load(Relaxed) {
            1 => Detail::Phases,
            2 => Detail::Network,
            _ => Detail::Low,
        }
    }

    /// How much NCCL shall tell from now on.
    pub fn set_detail(&self, detail: Detail) {
        if self.detail.swap(detail as u32, Relaxed) != detail as u32
            && self.process.load(Relaxed) != 0
        {
            self.alone(|| self.apply());
        }
    }

    /// Once in a while: tells a new listener what there is.
    pub fn tick(&self) {
        if self.process.load(Relaxed) == 0 || self.off.load(Relaxed) {
            return;
        }
        self.outside.with(|sink| {
            for (index, _) in self.open_communicators() {
                self.greet(sink, index);
            }
            self.say(sink);
        });
    }

    fn communicator(&self, context: *mut c_void) -> Option<(usize, u64, &Communicator)> {
        let handle = Handle(context as u64);
        let index = handle.place(self.process.load(Relaxed))?.checked_sub(TASKS + PARTS)?;
        let place = self.communicators.at(index)?;
        let word = place.word();
        (word.generation() == handle.generation() && word.state() == State::Live).then_some((
            index,
            word.generation(),
            &place.of,
        ))
    }

    fn task(&self, handle: Handle) -> Option<(u64, &Place<Task>)> {
        let index = handle.place(self.process.load(Relaxed))?;
        let place = self.tasks.at(index)?;
        let word = place.word();
        let known = !matches!(word.state(), State::Free | State::Busy);
        (known && word.generation() == handle.generation()).then_some((handle.generation(), place))
    }

    fn part(&self, handle: Handle) -> Option<(u64, &Place<Part>)> {
        let index = handle.place(self.process.load(Relaxed))?.checked_sub(TASKS)?;
        let place = self.parts.at(index)?;
        let word = place.word();
        let known = !matches!(word.state(), State::Free | State::Busy);
        (known && word.generation() == handle.generation()).then_some((handle.generation(), place))
    }

    /// The other plug-in's handle for one of ours.
    fn theirs(&self, handle: u64) -> u64 {
        let handle = Handle(handle);
        let task = self.task(handle).map(|(_, place)| place.of.theirs.load(Relaxed));
        task.or_else(|| self.part(handle).map(|(_, place)| place.of.theirs.load(Relaxed)))
            .unwrap_or(0)
    }

    fn name(&self, name: &[u8]) -> LocalName {
        let id = self.names.id(name);
        if id.0 == 0 && !name.is_empty() {
            self.notices.count(Code::NcclNames, 1);
        }
        id
    }

    /// An event begins.
    ///
    /// # Safety
    /// As NCCL calls it: `out` null or writable, `descr` null or a whole descriptor of `version`.
    pub unsafe fn start(
        &self,
        version: Version,
        context: *mut c_void,
        out: *mut *mut c_void,
        descr: *const c_void,
    ) {
        if out.is_null() {
            return;
        }
        // SAFETY: the caller promised.
        unsafe { *out = null_mut() };
        if descr.is_null() {
            return;
        }
        // SAFETY: the caller promised a whole descriptor.
        let d = unsafe { Descr::new(descr, version) };
        let kind = d.kind();
        if !kind.is_power_of_two() || kind & version.bits() == 0 {
            return;
        }
        let Some((index, generation, communicator)) = self.communicator(context) else {
            // Another process's task (PXN) comes with that process's context.
            if kind == bit::PROXY_OP && !context.is_null() && self.process.load(Relaxed) != 0 {
                self.notices.count(Code::NcclForeign, 1);
            }
            return;
        };
        let ours = delivered(self.ours[version.index()].load(Relaxed), kind);
        let shared = communicator.shared.load(Relaxed);
        let theirs = shared && delivered(self.next.mask(version), kind);
        if shared && self.next.has_changed_its_mind(version) {
            self.alone(|| self.apply());
        }
        if kind == bit::PROXY_OP && d.proxy_pid() != self.pid.load(Relaxed) {
            return self.notices.count(Code::NcclForeign, 1);
        }
        // A legacy group says nothing that its tasks do not.
        if !theirs && (!ours || matches!(kind, bit::GROUP | bit::PROXY_CTRL)) {
            return;
        }
        let pass_on = || {
            if !theirs {
                return 0;
            }
            let context = communicator.theirs.load(Relaxed);
            // SAFETY: a whole descriptor of `version`, promised by the caller.
            unsafe { self.next.start(version, context, descr, kind, |parent| self.theirs(parent)) }
        };
        let handle = match kind {
            bit::COLL | bit::P2P | bit::CE_COLL => {
                // SAFETY: what NCCL says of strings: null or C strings.
                unsafe { self.start_task(version, index, generation, kind, &d, pass_on) }
            }
            // SAFETY: as above.
            _ => unsafe { self.start_part(index, ours, kind, &d, pass_on) },
        };
        if handle == Handle::NONE {
            self.notices.count(Code::NcclFull, 1);
        }
        // SAFETY: the caller promised.
        unsafe { *out = handle.0 as *mut c_void };
    }

    /// # Safety
    /// The descriptor's strings must be null or C strings.
    unsafe fn start_task(
        &self,
        version: Version,
        communicator: usize,
        of: u64,
        kind: u64,
        d: &Descr,
        pass_on: impl FnOnce() -> u64,
    ) -> Handle {
        let now = self.outside.now();
        let given_up = |index, generation| self.give_up_task(index, generation);
        let Some((index, generation, place)) = self.tasks.give(now, PROBES, given_up) else {
            return Handle::NONE;
        };
        let t = &place.of;
        let mut buffers = [[0; BYTES]; 4];
        let [a, b, c, e] = &mut buffers;
        let (func, datatype, count, channels) = match kind {
            bit::COLL => (d.coll_func(), d.coll_datatype(), d.coll_count(), d.coll_channels()),
            bit::P2P => (d.p2p_func(), d.p2p_datatype(), d.p2p_count(), d.p2p_channels()),
            _ => (d.ce_func(), d.ce_datatype(), d.ce_count(), 0),
        };
        // SAFETY: null or C strings, promised.
        let (func, datatype) = unsafe { (text(func, a), text(datatype, b)) };
        let name = match kind {
            // Copy engines number their calls apart from the others.
            bit::CE_COLL => self.names.joined(&[b"Ce", func]),
            _ => self.name(func),
        };
        let how = match kind {
            bit::COLL => {
                let variant = d.coll_variant();
                let symmetric = d.coll_symmetric() != 0 || !variant.is_null();
                let first = if symmetric { c"sym".as_ptr() } else { d.coll_algo() };
                let second = if symmetric { variant } else { d.coll_proto() };
                // SAFETY: null or C strings, promised.
                let (first, second) = unsafe { (text(first, c), text(second, e)) };
                let digits = &mut [0; 3];
                self.names.joined(&[first, b"/", second, b"/", decimal(channels, digits)])
            }
            bit::P2P => {
                let digits = &mut [0; 3];
                self.names.joined(&[b"P2P//", decimal(channels, digits)])
            }
            // SAFETY: null or a C string, promised.
            _ => self.names.joined(&[b"CE/", unsafe { text(d.ce_strategy(), c) }]),
        };
        let peer = d.p2p_peer().max(0) as u32;
        let seq = match kind {
            bit::COLL => d.coll_seq(),
            bit::P2P => {
                let alive = |communicator: usize, of: u64| {
                    self.communicators.at(communicator).is_some_and(|place| {
                        let word = place.word();
                        word.state() == State::Live && word.generation() & 0x7fff == of
                    })
                };
                self.peers.next(communicator, of, name, peer, alive).unwrap_or_else(|| {
                    self.notices.count(Code::NcclPeers, 1);
                    0
                })
            }
            _ => d.ce_seq(),
        };
        let asked = self.ours[version.index()].load(Relaxed);
        let kernels = kind != bit::CE_COLL && asked & (bit::KERNEL_CH | bit::KERNEL_PHASE) != 0;
        let bytes = (count as u64).saturating_mul(element_bytes(datatype)).min(i64::MAX as u64);
        t.peer.store(peer, Relaxed);
        t.communicator.store(communicator as u16, Relaxed);
        t.of.store(of, Relaxed);
        t.kind.store(kind as u32, Relaxed);
        t.name.store(name.0, Relaxed);
        t.how.store(how.0, Relaxed);
        t.expected.store(if kernels { channels as u32 } else { 0 }, Relaxed);
        t.done.store(0, Relaxed);
        t.seq.store(seq, Relaxed);
        t.bytes.store(bytes, Relaxed);
        t.called.store(self.called(Handle(d.parent())).unwrap_or(0), Relaxed);
        t.began.store(now, Relaxed);
        t.ended.store(0, Relaxed);
        t.base.store(0, Relaxed);
        t.first.store(u64::MAX, Relaxed);
        t.last.store(0, Relaxed);
        t.sums.iter().for_each(Sum::clear);
        t.theirs.store(pass_on(), Relaxed);
        place.begin(generation);
        Handle::new(self.process.load(Relaxed), generation, index)
    }

    /// When the call `api` began, unless that was when a graph was captured.
    fn called(&self, api: Handle) -> Option<u64> {
        let (generation, place) = self.part(api)?;
        let kind = place.of.kind.load(Relaxed) as u64;
        let captured = place.of.mode.load(Relaxed) & CAPTURED != 0;
        let began = place.of.began.load(Relaxed);
        let same = place.word().generation() == generation;
        (same && !captured && matches!(kind, bit::COLL_API | bit::P2P_API)).then_some(began)
    }

    /// # Safety
    /// The descriptor's strings must be null or C strings.
    unsafe fn start_part(
        &self,
        communicator: usize,
        ours: bool,
        kind: u64,
        d: &Descr,
        pass_on: impl FnOnce() -> u64,
    ) -> Handle {
        let now = self.outside.now();
        let given_up = |index, generation| self.give_up_part(index, generation);
        let Some((index, generation, place)) = self.parts.give(now, PROBES, given_up) else {
            if ours && kind == bit::KERNEL_CH {
                self.channel_lost(Handle(d.parent()));
            }
            return Handle::NONE;
        };
        let p = &place.of;
        let parent = Handle(d.parent());
        let above = self.part(parent).map(|(_, place)| &place.of);
        let (mut name, mut channel, mut mode, mut task) = (LocalName(0), u16::MAX, 0, Handle::NONE);
        let (mut first, mut kept) = (0, kind);
        match kind {
            _ if !ours => kept = 0,
            bit::GROUP_API => mode = d.group_depth().clamp(0, u16::MAX as c_int) as u16,
            bit::COLL_API | bit::P2P_API => {
                let collective = kind == bit::COLL_API;
                let func = if collective { d.coll_api_func() } else { d.p2p_api_func() };
                let captured =
                    if collective { d.coll_api_captured() } else { d.p2p_api_captured() };
                let mut buffer = [0; BYTES];
                // SAFETY: null or a C string, promised.
                let func = unsafe { text(func, &mut buffer) };
                name = self.names.joined(&[b"nccl", func]);
                if captured != 0 {
                    mode |= CAPTURED;
                    self.notices.count(Code::NcclGraph, 1);
                }
                let group = above.filter(|a| a.kind.load(Relaxed) as u64 == bit::GROUP_API);
                if let Some(group) = group {
                    mode |= BY_GROUP;
                    if group.mode.load(Relaxed) <= 1 {
                        group.name.store(name.0, Relaxed);
                    }
                }
            }
            bit::KERNEL_CH => {
                channel = d.kernel_channel() as u16;
                first = d.kernel_timer();
                if let Some((_, place)) = self.task(parent).filter(|(of, t)| t.hold(*of)) {
                    task = parent;
                    self.channel_began(&place.of, now, first);
                }
            }
            bit::KERNEL_PHASE => {
                channel = d.phase_channel() as u16;
                mode = d.phase_id() as u16;
                first = d.phase_timer();
                // Under a channel, as NCCL does, or right under a task.
                task = above.map_or(parent, |a| Handle(a.task.load(Relaxed)));
            }
            bit::PROXY_OP => {
                channel = d.proxy_channel() as u16;
                if self.task(parent).is_some_and(|(of, t)| t.hold(of)) {
                    task = parent;
                }
            }
            bit::PROXY_STEP | bit::NET_PLUGIN => {
                if let Some(above) = above {
                    task = Handle(above.task.load(Relaxed));
                    channel = above.channel.load(Relaxed);
                }
                first = now;
            }
            bit::CE_SYNC | bit::CE_BATCH => task = parent,
            _ => {}
        }
        p.kind.store(kept as u32, Relaxed);
        p.communicator.store(communicator as u16, Relaxed);
        p.name.store(name.0, Relaxed);
        p.channel.store(channel, Relaxed);
        p.mode.store(mode, Relaxed);
        p.task.store(task.0, Relaxed);
        p.began.store(now, Relaxed);
        p.first.store(first, Relaxed);
        p.last.store(0, Relaxed);
        p.theirs.store(pass_on(), Relaxed);
        place.begin(generation);
        Handle::new(self.process.load(Relaxed), generation, TASKS + index)
    }

    fn clock(&self, communicator: u16) -> &Envelope {
        let place = self.communicators.at(communicator as usize);
        let clock = place.map_or(0, |place| place.of.clock.load(Relaxed) as usize);
        &self.clocks[clock % COMMUNICATORS]
    }

    /// A channel of `t` began at `gpu`, of which we were told at `now`.
    fn channel_began(&self, t: &Task, now: u64, gpu: u64) {
        if gpu == 0 {
            return;
        }
        let clock = self.clock(t.communicator.load(Relaxed));
        clock.told(now, gpu);
        if t.base.load(Relaxed) == 0 && t.base.compare_exchange(0, gpu, Relaxed, Relaxed).is_ok() {
            let called = t.called.load(Relaxed);
            if called != 0 {
                clock.enqueued(called, gpu);
            }
        }
    }

    /// A channel of the task could not be followed; the others are waited for all the same.
    fn channel_lost(&self, task: Handle) {
        if let Some((generation, place)) = self.task(task).filter(|(of, t)| t.hold(*of)) {
            place.of.done.fetch_add(1, AcqRel);
            place.let_go(generation);
            self.settle(place, generation);
        }
    }

    /// An event tells a state.
    ///
    /// # Safety
    /// As NCCL calls it: `args` null or what belongs to the state.
    pub unsafe fn record_state(
        &self,
        version: Version,
        handle: *mut c_void,
        what: c_int,
        args: *mut StateArgs,
    ) {
        let handle = Handle(handle as u64);
        let live = |state| state == State::Live;
        let theirs = if let Some((_, place)) = self.part(handle) {
            if !live(place.word().state()) {
                return;
            }
            // SAFETY: promised by the caller.
            unsafe { self.part_state(&place.of, what, args) };
            place.of.theirs.load(Relaxed)
        } else if let Some((_, place)) = self.task(handle) {
            if live(place.word().state()) { place.of.theirs.load(Relaxed) } else { 0 }
        } else {
            0
        };
        if theirs != 0 {
            self.next.record_state(version, theirs, what, args);
        }
    }

    /// # Safety
    /// `args` must be null or what belongs to the state.
    unsafe fn part_state(&self, p: &Part, what: c_int, args: *mut StateArgs) {
        match (p.kind.load(Relaxed) as u64, what) {
            (bit::KERNEL_CH, state::KERNEL_CH_STOP)
            | (bit::KERNEL_PHASE, state::KERNEL_PHASE_STOP | state::KERNEL_CH_STOP)
                if !args.is_null() =>
            {
                // SAFETY: these states come with a timer.
                let gpu = unsafe { (*args).p_timer };
                p.last.store(gpu, Relaxed);
                if gpu != 0 {
                    let now = self.outside.now();
                    self.clock(p.communicator.load(Relaxed)).told(now, gpu);
                }
            }
            (bit::PROXY_STEP, what) if net_state(what).is_some() => {
                let now = self.outside.now();
                self.step_state_ends(p, now);
                p.first.store(now, Relaxed);
                p.mode.store(what as u16, Relaxed);
            }
            _ => {}
        }
    }

    /// The network step leaves the state that it is in.
    fn step_state_ends(&self, p: &Part, now: u64) {
        if let Some(name) = net_state(p.mode.load(Relaxed) as c_int) {
            self.tell_stage(p, self.names.id(name), p.first.load(Relaxed), now, false);
        }
    }

    /// An event ends.
    pub fn stop(&self, version: Version, handle: *mut c_void) {
        let handle = Handle(handle as u64);
        if let Some((generation, place)) = self.part(handle) {
            let p = &place.of;
            let theirs = p.theirs.load(Relaxed);
            // `Telling` keeps the place while it is read; of two that stop it, one gets here.
            if !place.turn(generation, &[State::Live], State::Telling) {
                return;
            }
            self.part_ended(p);
            place.turn(generation, &[State::Telling], State::Done);
            if theirs != 0 {
                self.next.stop(version, theirs);
            }
        } else if let Some((generation, place)) = self.task(handle) {
            let t = &place.of;
            let theirs = t.theirs.load(Relaxed);
            // Only one that is still live is written to.
            if place.word().state() != State::Live {
                return;
            }
            t.ended.store(self.outside.now(), Relaxed);
            if !place.turn(generation, &[State::Live], State::Stopped) {
                return;
            }
            self.settle(place, generation);
            if theirs != 0 {
                self.next.stop(version, theirs);
            }
        }
    }

    fn part_ended(&self, p: &Part) {
        let began = p.began.load(Relaxed);
        let task = Handle(p.task.load(Relaxed));
        match p.kind.load(Relaxed) as u64 {
            bit::GROUP_API => {
                let now = self.outside.now();
                let single = LocalName(p.name.load(Relaxed));
                let name = if single.0 != 0 { single } else { self.names.id(b"nccl group") };
                self.tell_phase(name, began, now);
            }
            bit::COLL_API | bit::P2P_API if p.mode.load(Relaxed) & BY_GROUP == 0 => {
                self.tell_phase(LocalName(p.name.load(Relaxed)), began, self.outside.now());
            }
            bit::KERNEL_LAUNCH => {
                let now = self.outside.now();
                if now.saturating_sub(began) >= LONG_LAUNCH {
                    self.tell_phase(self.names.id(b"nccl launch"), began, now);
                }
            }
            bit::KERNEL_CH => {
                let (first, last) = (p.first.load(Relaxed), p.last.load(Relaxed));
                let Some((generation, place)) = self.task(task) else { return };
                let t = &place.of;
                if self.is_plausible(first, last) {
                    t.first.fetch_min(first, Relaxed);
                    t.last.fetch_max(last, Relaxed);
                    self.add(t, CHANNEL, first, last);
                    if self.detail() == Detail::Network {
                        self.tell_stage(p, self.names.id(STAGES[CHANNEL]), first, last, true);
                    }
                }
                t.done.fetch_add(1, AcqRel);
                place.let_go(generation);
                self.settle(place, generation);
            }
            bit::KERNEL_PHASE => {
                let (first, last) = (p.first.load(Relaxed), p.last.load(Relaxed));
                let phase = p.mode.load(Relaxed) as usize;
                let Some((_, place)) = self.task(task) else { return };
                if self.is_plausible(first, last) && phase < CHANNEL {
                    self.add(&place.of, phase, first, last);
                    if self.detail() == Detail::Network {
                        self.tell_stage(p, self.names.id(STAGES[phase]), first, last, true);
                    }
                }
            }
            bit::PROXY_OP => {
                if let Some((generation, place)) = self.task(task) {
                    place.let_go(generation);
                    self.settle(place, generation);
                }
            }
            bit::PROXY_STEP => self.step_state_ends(p, self.outside.now()),
            bit::NET_PLUGIN => {
                self.tell_stage(p, self.names.id(b"net:plugin"), began, self.outside.now(), false);
            }
            bit::CE_SYNC => {
                self.tell_stage(p, self.names.id(b"ce:sync"), began, self.outside.now(), false);
            }
            bit::CE_BATCH => {
                self.tell_stage(p, self.names.id(b"ce:batch"), began, self.outside.now(), false);
            }
            _ => {}
        }
    }

    fn add(&self, t: &Task, stage: usize, first: u64, last: u64) {
        let base = t.base.load(Relaxed);
        t.sums[stage].add(first.wrapping_sub(base) as i64, last - first);
    }

    fn is_plausible(&self, first: u64, last: u64) -> bool {
        let plausible = first != 0 && last >= first && last - first <= IMPLAUSIBLE;
        if !plausible {
            self.notices.count(Code::NcclTimer, 1);
        }
        plausible
    }

    /// Tells the task if nothing of it is open any more.
    fn settle(&self, place: &Place<Task>, generation: u64) {
        let t = &place.of;
        if t.done.load(Acquire) >= t.expected.load(Relaxed)
            && place.turn_if_free(generation, State::Stopped, State::Telling)
        {
            self.tell_task(t);
            place.turn(generation, &[State::Telling], State::Done);
        }
    }

    fn give_up_task(&self, index: usize, _generation: u64) {
        self.notices.count(Code::NcclUnended, 1);
        if let Some(place) = self.tasks.at(index) {
            self.tell_task(&place.of);
        }
    }

    fn give_up_part(&self, index: usize, _generation: u64) {
        self.notices.count(Code::NcclUnended, 1);
        let Some(place) = self.parts.at(index) else { return };
        self.drop_part(&place.of);
    }

    /// What never ended holds its task no longer.
    fn drop_part(&self, p: &Part) {
        let holds = matches!(p.kind.load(Relaxed) as u64, bit::KERNEL_CH | bit::PROXY_OP);
        let task = self.task(Handle(p.task.load(Relaxed)));
        if let Some((generation, place)) = task.filter(|_| holds) {
            place.of.done.fetch_add(1, AcqRel);
            place.let_go(generation);
            self.settle(place, generation);
        }
    }

    /// A communicator ends, and with it whatever of it is still open.
    pub fn finalize(&self, version: Version, context: *mut c_void) {
        let Some((index, generation, communicator)) = self.communicator(context) else { return };
        let ours = |number: &AtomicU16| number.load(Relaxed) as usize == index;
        for (_, place) in self.parts.all() {
            let word = place.word();
            if ours(&place.of.communicator)
                && place.turn(word.generation(), &[State::Live], State::Telling)
            {
                self.drop_part(&place.of);
                place.turn(word.generation(), &[State::Telling], State::Done);
            }
        }
        for (_, place) in self.tasks.all() {
            let word = place.word();
            let open = [State::Live, State::Stopped];
            if open.contains(&word.state())
                && ours(&place.of.communicator)
                && place.of.of.load(Relaxed) == generation
                && place.turn(word.generation(), &open, State::Telling)
            {
                self.tell_task(&place.of);
                place.turn(word.generation(), &[State::Telling], State::Done);
            }
        }
        if communicator.shared.load(Relaxed) {
            self.next.finalize(version, communicator.theirs.load(Relaxed));
        }
        let ended = self.alone(|| {
            communicator.mask.store(null_mut(), Relaxed);
            communicator.shared.store(false, Relaxed);
            if let Some(place) = self.communicators.at(index) {
                place.turn(generation, &[State::Live], State::Done);
            }
        });
        if ended.is_none() {
            // Whoever has the lock that long may be dead with it; the mask is forgotten anyhow.
            communicator.mask.store(null_mut(), Relaxed);
        }
        if !self.off.load(Relaxed) {
            self.outside.with(|sink| self.say(sink));
        }
    }

    /// Tells who a communicator is, if the listener does not know.
    fn greet(&self, sink: &dyn Sink, communicator: usize) {
        if self.off.load(Relaxed) {
            return;
        }
        let generation = sink.generation();
        if self.generation.swap(generation, Relaxed) != generation {
            self.notices.again();
        }
        let Some(place) = self.communicators.at(communicator) else { return };
        let c = &place.of;
        if c.told.swap(generation, Relaxed) == generation {
            return;
        }
        sink.write(Event::Communicator {
            name: self.names.in_ring(LocalName(c.name.load(Relaxed)), sink),
            communicator: communicator as u16,
            id: c.id.load(Relaxed),
            rank: c.rank.load(Relaxed),
            ranks: c.ranks.load(Relaxed),
            at: c.at.load(Relaxed),
        });
    }

    /// Says what could not be seen.
    fn say(&self, sink: &dyn Sink) {
        if self.notices.has_news() {
            self.notices.tell(self.outside.now(), |text, code, value| {
                let (name, at) = (sink.name(text), self.outside.now());
                sink.write(Event::Notice { name, code, value: Some(value), at });
            });
        }
    }

    fn tell_phase(&self, name: LocalName, start: u64, end: u64) {
        self.outside.with(|sink| {
            let name = self.names.in_ring(name, sink);
            sink.write(Event::Phase { name, step: None, start, dur: end.saturating_sub(start) });
        });
    }

    /// Tells a stretch of the task that `p` belongs to.
    fn tell_stage(&self, p: &Part, stage: LocalName, first: u64, last: u64, on_gpu: bool) {
        let Some((generation, place)) = self.task(Handle(p.task.load(Relaxed))) else { return };
        let t = &place.of;
        let (operation, seq) = (LocalName(t.name.load(Relaxed)), t.seq.load(Relaxed));
        let communicator = t.communicator.load(Relaxed);
        if place.word().generation() != generation {
            return;
        }
        let now = self.outside.now();
        let start = if on_gpu {
            match self.clock(communicator).map(first, now) {
                Some(mapped) => mapped.at,
                None => return,
            }
        } else {
            first
        };
        let channel = Some(p.channel.load(Relaxed)).filter(|c| *c != u16::MAX).map(u32::from);
        self.outside.with(|sink| {
            self.greet(sink, communicator as usize);
            sink.write(Event::Stage {
                name: self.names.in_ring(stage, sink),
                communicator,
                operation: self.names.in_ring(operation, sink),
                seq,
                channel,
                on_gpu,
                start,
                dur: last.saturating_sub(first),
            });
        });
    }

    /// The task on the GPU: start and duration, if its channels were seen and can be right.
    fn on_gpu(&self, t: &Task, now: u64) -> Option<(u64, u64)> {
        let (first, last) = (t.first.load(Relaxed), t.last.load(Relaxed));
        if first == u64::MAX {
            return None;
        }
        let clock = self.clock(t.communicator.load(Relaxed));
        let mapped = clock.map(first, now)?;
        if let Some(error) = mapped.error
            && self.clock_told.load(Relaxed) + CLOCK_EVERY < now
        {
            self.clock_told.store(now, Relaxed);
            self.notices.set(Code::NcclClock, error);
        }
        // Counters that have come apart tell of a kernel of long ago (NCCL issue 2368).
        let called = t.called.load(Relaxed);
        let too_early = called != 0 && mapped.at + BEFORE_CALL < called;
        if too_early || last < first || last - first > IMPLAUSIBLE {
            self.notices.count(Code::NcclTimer, 1);
            return None;
        }
        Some((mapped.at, last - first))
    }

    fn tell_task(&self, t: &Task) {
        if self.off.load(Relaxed) {
            return;
        }
        self.outside.with(|sink| {
            let now = self.outside.now();
            let communicator = t.communicator.load(Relaxed);
            self.greet(sink, communicator as usize);
            let kind = t.kind.load(Relaxed) as u64;
            let gpu = self.on_gpu(t, now);
            let (start, dur) = gpu.unwrap_or_else(|| {
                let (began, ended) = (t.began.load(Relaxed), t.ended.load(Relaxed));
                let start = Some(t.called.load(Relaxed)).filter(|c| *c != 0).unwrap_or(began);
                let end = if ended == 0 { now } else { ended };
                (start, end.saturating_sub(start))
            });
            let name = self.names.in_ring(LocalName(t.name.load(Relaxed)), sink);
            let (seq, bytes) = (t.seq.load(Relaxed), t.bytes.load(Relaxed));
            let on_gpu = gpu.is_some();
            sink.write(if kind == bit::P2P {
                let peer = t.peer.load(Relaxed);
                Event::Message { name, communicator, peer, seq, bytes, on_gpu, start, dur }
            } else {
                let how = self.names.in_ring(LocalName(t.how.load(Relaxed)), sink);
                Event::Collective { name, communicator, seq, bytes, how, on_gpu, start, dur }
            });
            if on_gpu {
                self.tell_means(sink, t, name, start, now);
            }
            self.say(sink);
        });
    }

    /// One record a phase, with the mean over the channels; without phases one for the channels.
    fn tell_means(&self, sink: &dyn Sink, t: &Task, operation: NameId, start: u64, now: u64) {
        let communicator = t.communicator.load(Relaxed);
        let has_phases = t.sums[..CHANNEL].iter().any(|sum| sum.count.load(Relaxed) != 0);
        let base = self.clock(communicator).map(t.base.load(Relaxed), now);
        for (i, sum) in t.sums.iter().enumerate() {
            let count = sum.count.load(Relaxed) as u64;
            if count == 0 || has_phases && i == CHANNEL {
                continue;
            }
            let base = base.map_or(start, |mapped| mapped.at);
            let mean = sum.start.load(Relaxed) / count as i64;
            sink.write(Event::Stage {
                name: self.names.in_ring(self.names.id(STAGES[i]), sink),
                communicator,
                operation,
                seq: t.seq.load(Relaxed),
                channel: None,
                on_gpu: true,
                start: base.saturating_add_signed(mean),
                dur: sum.dur.load(Relaxed) / count,
            });
        }
    }
}

fn version_of(communicator: &Communicator) -> Version {
    match communicator.version.load(Relaxed) {
        4 => Version::V4,
        5 => Version::V5,
        6 => Version::V6,
        _ => Version::V7,
    }
}

fn net_state(what: c_int) -> Option<&'static [u8]> {
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

/// The text of a C string, cut to what a name may have; empty for null.
///
/// # Safety
/// `at` must be null or a C string; no more of it is read than `buffer` holds.
unsafe fn text(at: *const c_char, buffer: &mut [u8; BYTES]) -> &[u8] {
    if at.is_null() {
        return &[];
    }
    let mut n = 0;
    while n < BYTES {
        // SAFETY: within the string, whose end has not been met.
        let byte = unsafe { at.add(n).read() } as u8;
        if byte == 0 {
            break;
        }
        buffer[n] = byte;
        n += 1;
    }
    &buffer[..n]
}

fn decimal(n: u8, buffer: &mut [u8; 3]) -> &[u8] {
    let mut at = 3;
    let mut rest = n;
    while at == 3 || rest != 0 {
        at -= 1;
        buffer[at] = b'0' + rest % 10;
        rest /= 10;
    }
    &buffer[at..]
}

/// Bytes of an element: the first number in `ncclInt8`, `ncclBfloat16`, `ncclFloat8e4m3` counts
/// its bits; 0 for types that have none.
fn element_bytes(datatype: &[u8]) -> u64 {
    let digit = |b: &u8| b.is_ascii_digit();
    let digits = datatype.iter().skip_while(|b| !digit(b)).take_while(|b| digit(b)).take(4);
    digits.fold(0, |n, b| n * 10 + (b - b'0') as u64) / 8
}

/// As the environment says.
pub fn settings() -> Settings {
    use std::os::unix::ffi::OsStrExt;
    let get = |name: &str| std::env::var_os(name);
    let off = get("GPUWHY_OFF").is_some_and(|v| v == "1");
    let mask = get("GPUWHY_NCCL_MASK").and_then(|v| {
        let text = v.to_str()?.trim();
        match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    });
    let next = get("GPUWHY_NCCL_NEXT").and_then(|v| std::ffi::CString::new(v.as_bytes()).ok());
    Settings { off, mask, next }
}
