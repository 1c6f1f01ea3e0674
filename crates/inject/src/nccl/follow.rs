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

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64};

use super::Detail;
use super::abi::{Descr, StateArgs, Version, bit, state};
use super::multiplex::{InitArgs, Next, delivered};
use super::names::{BYTES, LocalName, Names};
use super::open::*;
use super::outside::Outside;
use super::peers::Peers;
use super::pool::{Handle, Place, Pool, State};
use super::text::{decimal, element_bytes, text};
use super::timing::Envelope;
use crate::notice::{Code, Notices};

/// All that the door knows. `O` is the world that it tells.
pub struct Door<O> {
    /// The world.
    pub outside: O,
    /// Which process this is, in handles; 0 is one that has not begun.
    pub(super) process: AtomicU16,
    pub(super) pid: AtomicI32,
    pub(super) began_before: AtomicBool,
    pub(super) lock: AtomicBool,
    pub(super) off: AtomicBool,
    /// `GPUWHY_NCCL_MASK` and [`INSTEAD`], or 0.
    pub(super) instead: AtomicU64,
    pub(super) detail: AtomicU32,
    /// What we ask for, by version.
    pub(super) ours: [AtomicU64; 4],
    /// When we began to ask for kernels.
    pub(super) raised: AtomicU64,
    pub(super) tasks: Pool<Task, TASKS>,
    pub(super) parts: Pool<Part, PARTS>,
    pub(super) communicators: Pool<Communicator, COMMUNICATORS>,
    pub(super) clocks: [Envelope; COMMUNICATORS],
    /// The process has several ranks of one communicator, and so several GPUs.
    pub(super) many_gpus: AtomicBool,
    pub(super) peers: Peers,
    pub(super) names: Names,
    /// What the other plug-in sees, if there is one.
    pub next: Next,
    /// What we could not see.
    pub notices: Notices,
    /// The generation of ring that has been told the notices.
    pub(super) generation: AtomicU64,
    pub(super) clock_told: AtomicU64,
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
            raised: AtomicU64::new(0),
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

    /// Runs `f` alone among those that come and go with communicators, which takes a while where
    /// another plug-in is loaded; not at all if it takes longer.
    fn alone<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        for turn in 0..2_000u32 {
            if let Some(lock) = self.try_alone() {
                let result = f();
                drop(lock);
                return Some(result);
            }
            let wait = libc::timespec { tv_sec: 0, tv_nsec: 1_000 << turn.min(11) };
            // SAFETY: a valid time, and nobody asks what was left of it.
            unsafe { libc::nanosleep(&wait, null_mut()) };
        }
        None
    }

    fn try_alone(&self) -> Option<impl Drop> {
        struct Lock<'a>(&'a AtomicBool);
        impl Drop for Lock<'_> {
            fn drop(&mut self) {
                self.0.store(false, Release);
            }
        }
        let free = self.lock.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        free.then(|| Lock(&self.lock))
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
            let asked = self.ours[version.index()].load(Relaxed);
            of.channels_come.store(asked & KERNELS != 0, Relaxed);
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

    pub(super) fn open_communicators(&self) -> impl Iterator<Item = (usize, &Communicator)> {
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
        let mut raised = false;
        for version in Version::ALL {
            let off = self.off.load(Relaxed);
            let ours = if off { 0 } else { mask(version, detail, instead) };
            let before = self.ours[version.index()].swap(ours, Relaxed);
            raised |= before & KERNELS == 0 && ours & KERNELS != 0;
        }
        for (_, communicator) in self.open_communicators() {
            let version = version_of(communicator);
            // SAFETY: still open, and `finalize` waits for the lock that our caller has.
            unsafe { self.store_mask(communicator.mask.load(Relaxed), version) };
            if raised {
                communicator.channels_come.store(false, Relaxed);
            }
        }
        if raised {
            self.raised.store(self.outside.now(), Relaxed);
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
            self.look_for_open(sink);
            self.say(sink);
        });
    }

    pub(super) fn communicator(&self, context: *mut c_void) -> Option<(usize, u64, &Communicator)> {
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

    pub(super) fn task(&self, handle: Handle) -> Option<(u64, &Place<Task>)> {
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
        // Nobody waits here: if it cannot be done now, the next event does it.
        if shared
            && self.next.has_changed_its_mind(version)
            && let Some(_lock) = self.try_alone()
        {
            self.next.has_been_heard(version);
            self.apply();
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
        let called = self.called(Handle(d.parent()));
        let kernels = kind != bit::CE_COLL
            && asked & KERNELS != 0
            && match called {
                // NCCL keeps for each task what was asked for when it was appended.
                Some(called) => called > self.raised.load(Relaxed),
                None => self
                    .communicators
                    .at(communicator)
                    .is_some_and(|place| place.of.channels_come.load(Relaxed)),
            };
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
        t.called.store(called.unwrap_or(0), Relaxed);
        t.told_open.store(0, Relaxed);
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

    pub(super) fn clock(&self, communicator: u16) -> &Envelope {
        let place = self.communicators.at(communicator as usize);
        let clock = place.map_or(0, |place| place.of.clock.load(Relaxed) as usize);
        &self.clocks[clock % COMMUNICATORS]
    }

    /// A channel of `t` began at `gpu`, of which we were told at `now`.
    fn channel_began(&self, t: &Task, now: u64, gpu: u64) {
        if gpu == 0 {
            return;
        }
        let communicator = t.communicator.load(Relaxed);
        let clock = self.clock(communicator);
        clock.told(now, gpu);
        if let Some(place) = self.communicators.at(communicator as usize)
            && !place.of.channels_come.load(Relaxed)
            && t.called.load(Relaxed) == 0
        {
            place.of.channels_come.store(true, Relaxed);
        }
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
            if p.kind.load(Relaxed) as u64 == bit::KERNEL_CH {
                place.of.done.fetch_add(1, AcqRel);
            }
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
}
