//! Communicators: made and finalised, and which events NCCL is asked for.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::AtomicI32;
use core::sync::atomic::AtomicU16;
use core::sync::atomic::Ordering::Relaxed;

use super::Detail;
use super::abi::Version;
use super::follow::Tracker;
use super::multiplex::InitArgs;
use super::names::BYTES;
use super::open::*;
use super::outside::Outside;
use super::pool::{Handle, Place, State};
use super::text::text;
use super::timing::Envelope;
use crate::notice::Code;

impl<O: Outside> Tracker<O> {
    /// A communicator is made. `settings` is called in the first call of a process.
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
            // SAFETY: name and mask as the caller promised.
            unsafe { self.register(version, mask, args) }
        });
        let Some(Some((index, generation, place))) = known else {
            return self.notices.count(Code::NcclCommunicators, 1);
        };
        // Without the lock: the other plug-in may take its time.
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
        self.outside.with(|sink| self.report_communicator(sink, index));
    }

    /// A place for a new communicator, filled but not begun: its index, generation and place.
    ///
    /// # Safety
    /// `args.name` must be null or a C string; `mask` as for [`Tracker::init`].
    unsafe fn register(
        &self,
        version: Version,
        mask: *mut c_int,
        args: InitArgs,
    ) -> Option<(usize, u64, &Place<Communicator>)> {
        let (index, generation, place) = self.communicators.give(0, COMMUNICATORS, |_, _| {})?;
        let of = &place.of;
        let same_id = |other: &Communicator| other.id.load(Relaxed) == args.id;
        if self.open_communicators().any(|(_, other)| same_id(other)) {
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
        of.reported_to.store(0, Relaxed);
        let asked = self.ours[version.index()].load(Relaxed);
        of.has_channels.store(asked & KERNELS != 0, Relaxed);
        of.mask.store(mask, Relaxed);
        Some((index, generation, place))
    }

    /// Communicators that are not finalised, by index.
    pub(super) fn open_communicators(&self) -> impl Iterator<Item = (usize, &Communicator)> {
        let open = |place: &Place<Communicator>| place.word().state() == State::Live;
        self.communicators.all().filter(move |(_, p)| open(p)).map(|(i, p)| (i, &p.of))
    }

    /// The communicator of a context: its index, its generation and what is kept of it.
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

    /// # Safety
    /// `mask` must be null or what NCCL gave with a communicator that is not finalised.
    pub(super) unsafe fn store_mask(&self, mask: *mut c_int, version: Version) {
        if mask.is_null() {
            return;
        }
        let ours = self.ours[version.index()].load(Relaxed);
        let both = (ours | self.next.mask(version)) as c_int;
        // SAFETY: an aligned int that lives (promised), which NCCL itself reads atomically.
        unsafe { AtomicI32::from_ptr(mask) }.store(both, Relaxed);
    }

    /// Computes the masks anew, and gives them to NCCL. The caller holds the lock.
    pub(super) fn apply(&self) {
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
            // SAFETY: still open, and `finalize` waits for the lock that our caller holds.
            unsafe { self.store_mask(communicator.mask.load(Relaxed), version) };
            if raised {
                communicator.has_channels.store(false, Relaxed);
            }
        }
        if raised {
            self.raised.store(self.outside.now(), Relaxed);
        }
    }

    pub(super) fn detail(&self) -> Detail {
        match self.detail.load(Relaxed) {
            1 => Detail::Phases,
            2 => Detail::Network,
            _ => Detail::Low,
        }
    }

    /// How much NCCL is to report from now on.
    pub fn set_detail(&self, detail: Detail) {
        if self.detail.swap(detail as u32, Relaxed) != detail as u32
            && self.process.load(Relaxed) != 0
        {
            self.alone(|| self.apply());
        }
    }

    /// Now and then: reports to a new agent which communicators there are, tasks that do not end, and
    /// notices.
    pub fn tick(&self) {
        if self.process.load(Relaxed) == 0 || self.off.load(Relaxed) {
            return;
        }
        self.outside.with(|sink| {
            for (index, _) in self.open_communicators() {
                self.report_communicator(sink, index);
            }
            self.report_open_tasks(sink);
            self.report_notices(sink);
        });
    }

    /// The clock of the GPU that the communicator uses.
    pub(super) fn clock(&self, communicator: u16) -> &Envelope {
        let place = self.communicators.at(communicator as usize);
        let clock = place.map_or(0, |place| place.of.clock.load(Relaxed) as usize);
        &self.clocks[clock % COMMUNICATORS]
    }

    /// A communicator ends, and with it all of its events that are still open.
    pub fn finalize(&self, version: Version, context: *mut c_void) {
        let Some((index, generation, communicator)) = self.communicator(context) else { return };
        let ours = |number: &AtomicU16| number.load(Relaxed) as usize == index;
        for (_, place) in self.parts.all() {
            let word = place.word();
            if ours(&place.of.communicator)
                && place.turn(word.generation(), &[State::Live], State::Reporting)
            {
                self.drop_part(&place.of);
                place.turn(word.generation(), &[State::Reporting], State::Done);
            }
        }
        for (_, place) in self.tasks.all() {
            let word = place.word();
            let open = [State::Live, State::Stopped];
            if open.contains(&word.state())
                && ours(&place.of.communicator)
                && place.of.of.load(Relaxed) == generation
                && place.turn(word.generation(), &open, State::Reporting)
            {
                self.report_task(&place.of);
                place.turn(word.generation(), &[State::Reporting], State::Done);
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
            // A thread that holds the lock that long may have died with it; the mask is dropped anyhow.
            communicator.mask.store(null_mut(), Relaxed);
        }
        if !self.off.load(Relaxed) {
            self.outside.with(|sink| self.report_notices(sink));
        }
    }
}
