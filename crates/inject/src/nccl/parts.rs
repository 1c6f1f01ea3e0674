//! All other events: calls, groups, channels, phases, network operations.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use super::abi::{Descr, StateArgs, bit, state};
use super::follow::Tracker;
use super::names::{BYTES, LocalName};
use super::open::*;
use super::outside::Outside;
use super::pool::{Handle, Place, State};
use super::text::text;
use crate::notice::Code;

/// What is kept of a part when it begins; see [`Part`].
struct Begun {
    kind: u64,
    name: LocalName,
    channel: u16,
    mode: u16,
    task: Handle,
    first: u64,
}

impl<O: Outside> Tracker<O> {
    /// # Safety
    /// The descriptor's strings must be null or C strings.
    pub(super) unsafe fn start_part(
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
        let mut begun = Begun {
            kind: 0,
            name: LocalName(0),
            channel: u16::MAX,
            mode: 0,
            task: Handle::NONE,
            first: 0,
        };
        if ours {
            begun.kind = kind;
            // SAFETY: null or C strings, promised.
            unsafe { self.describe_part(kind, d, now, &mut begun) };
        }
        let p = &place.of;
        p.kind.store(begun.kind as u32, Relaxed);
        p.communicator.store(communicator as u16, Relaxed);
        p.name.store(begun.name.0, Relaxed);
        p.channel.store(begun.channel, Relaxed);
        p.mode.store(begun.mode, Relaxed);
        p.task.store(begun.task.0, Relaxed);
        p.began.store(now, Relaxed);
        p.first.store(begun.first, Relaxed);
        p.last.store(0, Relaxed);
        p.theirs.store(pass_on(), Relaxed);
        place.begin(generation);
        Handle::new(self.process.load(Relaxed), generation, TASKS + index)
    }

    /// # Safety
    /// The descriptor's strings must be null or C strings.
    unsafe fn describe_part(&self, kind: u64, d: &Descr, now: u64, begun: &mut Begun) {
        let parent = Handle(d.parent());
        let above = self.part(parent).map(|(_, place)| &place.of);
        match kind {
            bit::GROUP_API => begun.mode = d.group_depth().clamp(0, u16::MAX as c_int) as u16,
            // SAFETY: null or C strings, promised.
            bit::COLL_API | bit::P2P_API => unsafe { self.describe_call(kind, d, above, begun) },
            bit::KERNEL_CH => {
                begun.channel = d.kernel_channel() as u16;
                begun.first = d.kernel_timer();
                if let Some((_, place)) = self.task(parent).filter(|(of, t)| t.hold(*of)) {
                    begun.task = parent;
                    self.channel_began(&place.of, now, begun.first);
                }
            }
            bit::KERNEL_PHASE => {
                begun.channel = d.phase_channel() as u16;
                begun.mode = d.phase_id() as u16;
                begun.first = d.phase_timer();
                // Under a channel, as NCCL does, or right under a task.
                begun.task = above.map_or(parent, |above| Handle(above.task.load(Relaxed)));
            }
            bit::PROXY_OP => {
                begun.channel = d.proxy_channel() as u16;
                if self.task(parent).is_some_and(|(of, t)| t.hold(of)) {
                    begun.task = parent;
                }
            }
            bit::PROXY_STEP | bit::NET_PLUGIN => {
                if let Some(above) = above {
                    begun.task = Handle(above.task.load(Relaxed));
                    begun.channel = above.channel.load(Relaxed);
                }
                begun.first = now;
            }
            bit::CE_SYNC | bit::CE_BATCH => begun.task = parent,
            _ => {}
        }
    }

    /// A call such as `ncclAllReduce`, within the group `above`.
    ///
    /// # Safety
    /// The descriptor's strings must be null or C strings.
    unsafe fn describe_call(&self, kind: u64, d: &Descr, above: Option<&Part>, begun: &mut Begun) {
        let (func, captured) = if kind == bit::COLL_API {
            (d.coll_api_func(), d.coll_api_captured())
        } else {
            (d.p2p_api_func(), d.p2p_api_captured())
        };
        let mut buffer = [0; BYTES];
        // SAFETY: null or a C string, promised.
        let func = unsafe { text(func, &mut buffer) };
        begun.name = self.names.joined(&[b"nccl", func]);
        if captured != 0 {
            begun.mode |= CAPTURED;
            self.notices.count(Code::NcclGraph, 1);
        }
        let group = above.filter(|above| above.kind.load(Relaxed) as u64 == bit::GROUP_API);
        if let Some(group) = group {
            begun.mode |= BY_GROUP;
            if group.mode.load(Relaxed) <= 1 {
                group.name.store(begun.name.0, Relaxed);
            }
        }
    }

    /// The part of a handle, with its generation.
    pub(super) fn part(&self, handle: Handle) -> Option<(u64, &Place<Part>)> {
        let index = handle.place(self.process.load(Relaxed))?.checked_sub(TASKS)?;
        let place = self.parts.at(index)?;
        let word = place.word();
        let known = !matches!(word.state(), State::Free | State::Busy);
        (known && word.generation() == handle.generation()).then_some((handle.generation(), place))
    }

    /// # Safety
    /// `args` must be null or what belongs to the state.
    pub(super) unsafe fn part_state(&self, p: &Part, state: c_int, args: *mut StateArgs) {
        match (p.kind.load(Relaxed) as u64, state) {
            (bit::KERNEL_CH, state::KERNEL_CH_STOP)
            | (bit::KERNEL_PHASE, state::KERNEL_PHASE_STOP | state::KERNEL_CH_STOP)
                if !args.is_null() =>
            {
                // SAFETY: these states come with a timer.
                let gpu = unsafe { (*args).p_timer };
                p.last.store(gpu, Relaxed);
                if gpu != 0 {
                    let now = self.outside.now();
                    self.clock(p.communicator.load(Relaxed)).observe(now, gpu);
                }
            }
            (bit::PROXY_STEP, state) if net_state(state).is_some() => {
                let now = self.outside.now();
                self.step_state_ends(p, now);
                p.first.store(now, Relaxed);
                p.mode.store(state as u16, Relaxed);
            }
            _ => {}
        }
    }

    /// The network step leaves the state that it is in.
    fn step_state_ends(&self, p: &Part, now: u64) {
        if let Some(name) = net_state(p.mode.load(Relaxed) as c_int) {
            self.report_stage(p, self.names.id(name), p.first.load(Relaxed), now, false);
        }
    }

    /// Reports the part, or adds it to its task.
    pub(super) fn part_ended(&self, p: &Part) {
        let began = p.began.load(Relaxed);
        let task = Handle(p.task.load(Relaxed));
        let stage_ended = |name: &[u8]| {
            self.report_stage(p, self.names.id(name), began, self.outside.now(), false);
        };
        match p.kind.load(Relaxed) as u64 {
            bit::GROUP_API => {
                let now = self.outside.now();
                let single = LocalName(p.name.load(Relaxed));
                let name = if single.0 != 0 { single } else { self.names.id(b"nccl group") };
                self.report_phase(name, began, now);
            }
            bit::COLL_API | bit::P2P_API if p.mode.load(Relaxed) & BY_GROUP == 0 => {
                self.report_phase(LocalName(p.name.load(Relaxed)), began, self.outside.now());
            }
            bit::KERNEL_LAUNCH => {
                let now = self.outside.now();
                if now.saturating_sub(began) >= LONG_LAUNCH {
                    self.report_phase(self.names.id(b"nccl launch"), began, now);
                }
            }
            bit::KERNEL_CH => self.channel_ended(p, task),
            bit::KERNEL_PHASE => self.phase_ended(p, task),
            bit::PROXY_OP => {
                if let Some((generation, place)) = self.task(task) {
                    place.let_go(generation);
                    self.settle(place, generation);
                }
            }
            bit::PROXY_STEP => self.step_state_ends(p, self.outside.now()),
            bit::NET_PLUGIN => stage_ended(b"net:plugin"),
            bit::CE_SYNC => stage_ended(b"ce:sync"),
            bit::CE_BATCH => stage_ended(b"ce:batch"),
            _ => {}
        }
    }

    fn give_up_part(&self, index: usize, _generation: u64) {
        self.notices.count(Code::NcclUnended, 1);
        let Some(place) = self.parts.at(index) else { return };
        self.drop_part(&place.of);
    }

    /// A part that never ended holds its task no longer.
    pub(super) fn drop_part(&self, p: &Part) {
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
}
