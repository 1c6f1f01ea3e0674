//! Tasks: collectives, sends and receives, from their start until nothing of them is open.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::abi::{Descr, Version, bit};
use super::follow::Tracker;
use super::names::{BYTES, LocalName};
use super::open::*;
use super::outside::Outside;
use super::pool::{Handle, Place, State};
use super::text::{decimal, element_bytes, text};
use crate::notice::Code;

/// What the descriptor says of a task.
struct Described {
    name: LocalName,
    /// Algorithm, protocol and channels, as in [`gpuwhy_wire::Event::Collective`].
    how: LocalName,
    bytes: u64,
    channels: u8,
}

impl<O: Outside> Tracker<O> {
    /// # Safety
    /// The descriptor's strings must be null or C strings.
    pub(super) unsafe fn start_task(
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
        // SAFETY: null or C strings, promised.
        let described = unsafe { self.describe(kind, d) };
        let peer = d.p2p_peer().max(0) as u32;
        let seq = match kind {
            bit::COLL => d.coll_seq(),
            bit::P2P => self.message_number(communicator, of, described.name, peer),
            _ => d.ce_seq(),
        };
        let called = self.called(Handle(d.parent()));
        let has_channels = self.has_channels(version, communicator, kind, called);
        let t = &place.of;
        t.peer.store(peer, Relaxed);
        t.communicator.store(communicator as u16, Relaxed);
        t.of.store(of, Relaxed);
        t.kind.store(kind as u32, Relaxed);
        t.name.store(described.name.0, Relaxed);
        t.how.store(described.how.0, Relaxed);
        t.expected.store(if has_channels { described.channels as u32 } else { 0 }, Relaxed);
        t.done.store(0, Relaxed);
        t.seq.store(seq, Relaxed);
        t.bytes.store(described.bytes, Relaxed);
        t.called.store(called.unwrap_or(0), Relaxed);
        t.open_reports.store(0, Relaxed);
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

    /// # Safety
    /// The descriptor's strings must be null or C strings.
    unsafe fn describe(&self, kind: u64, d: &Descr) -> Described {
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
        let digits = &mut [0; 3];
        let how = match kind {
            bit::COLL => {
                let variant = d.coll_variant();
                let symmetric = d.coll_symmetric() != 0 || !variant.is_null();
                let first = if symmetric { c"sym".as_ptr() } else { d.coll_algo() };
                let second = if symmetric { variant } else { d.coll_proto() };
                // SAFETY: null or C strings, promised.
                let (first, second) = unsafe { (text(first, c), text(second, e)) };
                self.names.joined(&[first, b"/", second, b"/", decimal(channels, digits)])
            }
            bit::P2P => self.names.joined(&[b"P2P//", decimal(channels, digits)]),
            // SAFETY: null or a C string, promised.
            _ => self.names.joined(&[b"CE/", unsafe { text(d.ce_strategy(), c) }]),
        };
        let bytes = (count as u64).saturating_mul(element_bytes(datatype)).min(i64::MAX as u64);
        Described { name, how, bytes, channels }
    }

    /// The number of a send or receive among those with this peer; 0 if there is no room to count.
    fn message_number(&self, communicator: usize, of: u64, name: LocalName, peer: u32) -> u64 {
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

    /// Whether NCCL will report the channels of a task that begins now.
    fn has_channels(
        &self,
        version: Version,
        communicator: usize,
        kind: u64,
        called: Option<u64>,
    ) -> bool {
        let asked = self.ours[version.index()].load(Relaxed);
        kind != bit::CE_COLL
            && asked & KERNELS != 0
            && match called {
                // NCCL keeps for each task what was asked for when it was appended.
                Some(called) => called > self.raised.load(Relaxed),
                None => self
                    .communicators
                    .at(communicator)
                    .is_some_and(|place| place.of.has_channels.load(Relaxed)),
            }
    }

    /// The task of a handle, with its generation.
    pub(super) fn task(&self, handle: Handle) -> Option<(u64, &Place<Task>)> {
        let index = handle.place(self.process.load(Relaxed))?;
        let place = self.tasks.at(index)?;
        let word = place.word();
        let known = !matches!(word.state(), State::Free | State::Busy);
        (known && word.generation() == handle.generation()).then_some((handle.generation(), place))
    }

    /// When the call `api` began, unless a graph was being captured then.
    fn called(&self, api: Handle) -> Option<u64> {
        let (generation, place) = self.part(api)?;
        let kind = place.of.kind.load(Relaxed) as u64;
        let captured = place.of.mode.load(Relaxed) & CAPTURED != 0;
        let began = place.of.began.load(Relaxed);
        let same = place.word().generation() == generation;
        (same && !captured && matches!(kind, bit::COLL_API | bit::P2P_API)).then_some(began)
    }

    /// A channel of `t` began at `gpu` by the GPU's clock, which NCCL reported at `now`.
    pub(super) fn channel_began(&self, t: &Task, now: u64, gpu: u64) {
        if gpu == 0 {
            return;
        }
        let communicator = t.communicator.load(Relaxed);
        let clock = self.clock(communicator);
        clock.observe(now, gpu);
        if let Some(place) = self.communicators.at(communicator as usize)
            && !place.of.has_channels.load(Relaxed)
            && t.called.load(Relaxed) == 0
        {
            place.of.has_channels.store(true, Relaxed);
        }
        if t.base.load(Relaxed) == 0 && t.base.compare_exchange(0, gpu, Relaxed, Relaxed).is_ok() {
            let called = t.called.load(Relaxed);
            if called != 0 {
                clock.enqueued(called, gpu);
            }
        }
    }

    /// A channel of the task ended, from `first` to `last` by the GPU's clock.
    pub(super) fn channel_ended(&self, p: &Part, task: Handle) {
        let (first, last) = (p.first.load(Relaxed), p.last.load(Relaxed));
        let Some((generation, place)) = self.task(task) else { return };
        let t = &place.of;
        if self.is_plausible(first, last) {
            t.first.fetch_min(first, Relaxed);
            t.last.fetch_max(last, Relaxed);
            self.add_stage(p, t, CHANNEL, first, last);
        }
        t.done.fetch_add(1, AcqRel);
        place.let_go(generation);
        self.settle(place, generation);
    }

    /// A phase of a channel of the task ended.
    pub(super) fn phase_ended(&self, p: &Part, task: Handle) {
        let (first, last) = (p.first.load(Relaxed), p.last.load(Relaxed));
        let phase = p.mode.load(Relaxed) as usize;
        let Some((_, place)) = self.task(task) else { return };
        if self.is_plausible(first, last) && phase < CHANNEL {
            self.add_stage(p, &place.of, phase, first, last);
        }
    }

    /// Adds to the task's mean over its channels, and reports the stage alone where that is asked for.
    fn add_stage(&self, p: &Part, t: &Task, stage: usize, first: u64, last: u64) {
        let base = t.base.load(Relaxed);
        t.sums[stage].add(first.wrapping_sub(base) as i64, last - first);
        if self.detail() == super::Detail::Network {
            self.report_stage(p, self.names.id(STAGES[stage]), first, last, true);
        }
    }

    fn is_plausible(&self, first: u64, last: u64) -> bool {
        let plausible = first != 0 && last >= first && last - first <= IMPLAUSIBLE;
        if !plausible {
            self.notices.count(Code::NcclTimer, 1);
        }
        plausible
    }

    /// A channel of the task could not be followed; the others are waited for all the same.
    pub(super) fn channel_lost(&self, task: Handle) {
        if let Some((generation, place)) = self.task(task).filter(|(of, t)| t.hold(*of)) {
            place.of.done.fetch_add(1, AcqRel);
            place.let_go(generation);
            self.settle(place, generation);
        }
    }

    /// Reports the task if nothing of it is open any more.
    pub(super) fn settle(&self, place: &Place<Task>, generation: u64) {
        let t = &place.of;
        if t.done.load(Acquire) >= t.expected.load(Relaxed)
            && place.turn_if_free(generation, State::Stopped, State::Reporting)
        {
            self.report_task(t);
            place.turn(generation, &[State::Reporting], State::Done);
        }
    }

    fn give_up_task(&self, index: usize, _generation: u64) {
        self.notices.count(Code::NcclUnended, 1);
        if let Some(place) = self.tasks.at(index) {
            self.report_task(&place.of);
        }
    }
}
