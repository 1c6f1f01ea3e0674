//! From NCCL's calls to records: what is open, what belongs to what, and what is recorded at the end.
//!
//! NCCL's own events are not what they are called. The API event of a call covers only its being
//! appended to a group; the group's event, which every single call has too, is the one that lasts
//! as long as the call. The event of a collective covers the hand-over to the threads that feed
//! network and profiler, after the launch. When the collective runs is known only from its
//! kernel's channels, which are reported later, by another thread, each with the GPU's own times.
//!
//! So a collective is recorded when its event and all channels that were announced have ended, from
//! the first channel's start to the last one's end; without channels, from the append to the end
//! of the hand-over, and marked as such.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64};

use super::Detail;
use super::abi::{Descr, StateArgs, Version, bit};
use super::multiplex::{Next, delivered};
use super::names::{LocalName, Names};
use super::open::*;
use super::outside::Outside;
use super::peers::Peers;
use super::pool::{Handle, Pool, State};
use super::timing::Envelope;
use crate::notice::{Code, Notices};

/// Follows all events of NCCL in this process. Its methods lie in the files of what they are about:
/// `communicators`, `tasks`, `parts` and `report`.
pub struct Tracker<O> {
    /// The clock, and the ring to which records are written.
    pub outside: O,
    /// This process in handles; 0 until the first call.
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
    /// When kernels were last added to what we ask for, CLOCK_MONOTONIC ns.
    pub(super) raised: AtomicU64,
    pub(super) tasks: Pool<Task, TASKS>,
    pub(super) parts: Pool<Part, PARTS>,
    pub(super) communicators: Pool<Communicator, COMMUNICATORS>,
    pub(super) clocks: [Envelope; COMMUNICATORS],
    /// The process has several ranks of one communicator, and so several GPUs.
    pub(super) many_gpus: AtomicBool,
    pub(super) peers: Peers,
    pub(super) names: Names,
    /// The user's own plug-in, if there is one.
    pub next: Next,
    /// Losses.
    pub notices: Notices,
    /// The generation of ring to which notices were written.
    pub(super) generation: AtomicU64,
    pub(super) clock_reported: AtomicU64,
}

impl<O: Outside> Tracker<O> {
    /// No communicator has been made yet.
    pub const fn new(outside: O) -> Tracker<O> {
        Tracker {
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
            clock_reported: AtomicU64::new(0),
        }
    }

    /// In the child of a fork: all handles are the parent's, and the lock's holder exists in the parent only.
    pub fn forget_after_fork(&self) {
        self.process.store(0, Relaxed);
        self.lock.store(false, Relaxed);
    }

    /// Prepares for this process, if that has not been done.
    pub(super) fn begin(&self, settings: impl FnOnce() -> Settings) {
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

    /// Runs `f` with the lock that keeps changes of communicators and masks apart. Loading another
    /// plug-in may hold it for a while; `None` if it is held for longer than some seconds.
    pub(super) fn alone<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        for turn in 0..2_000u32 {
            if let Some(lock) = self.try_alone() {
                let result = f();
                drop(lock);
                return Some(result);
            }
            let wait = libc::timespec { tv_sec: 0, tv_nsec: 1_000 << turn.min(11) };
            // SAFETY: a valid time; the second pointer may be null.
            unsafe { libc::nanosleep(&wait, null_mut()) };
        }
        None
    }

    pub(super) fn try_alone(&self) -> Option<impl Drop> {
        struct Lock<'a>(&'a AtomicBool);
        impl Drop for Lock<'_> {
            fn drop(&mut self) {
                self.0.store(false, Release);
            }
        }
        let free = self.lock.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        free.then(|| Lock(&self.lock))
    }

    /// The other plug-in's handle for one of ours.
    pub(super) fn theirs(&self, handle: u64) -> u64 {
        let handle = Handle(handle);
        let task = self.task(handle).map(|(_, place)| place.of.theirs.load(Relaxed));
        task.or_else(|| self.part(handle).map(|(_, place)| place.of.theirs.load(Relaxed)))
            .unwrap_or(0)
    }

    pub(super) fn name(&self, name: &[u8]) -> LocalName {
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
        // No waiting here: if the lock is held now, the next event does it.
        if shared
            && self.next.has_changed_mask(version)
            && let Some(_lock) = self.try_alone()
        {
            self.next.mask_applied(version);
            self.apply();
        }
        if kind == bit::PROXY_OP && d.proxy_pid() != self.pid.load(Relaxed) {
            return self.notices.count(Code::NcclForeign, 1);
        }
        // A legacy group has nothing that its tasks do not have.
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
                // SAFETY: strings of NCCL are null or C strings.
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

    /// An event changes its state.
    ///
    /// # Safety
    /// As NCCL calls it: `args` null or what belongs to the state.
    pub unsafe fn record_state(
        &self,
        version: Version,
        handle: *mut c_void,
        state: c_int,
        args: *mut StateArgs,
    ) {
        let handle = Handle(handle as u64);
        let live = |state| state == State::Live;
        let theirs = if let Some((_, place)) = self.part(handle) {
            if !live(place.word().state()) {
                return;
            }
            // SAFETY: promised by the caller.
            unsafe { self.part_state(&place.of, state, args) };
            place.of.theirs.load(Relaxed)
        } else if let Some((_, place)) = self.task(handle) {
            if live(place.word().state()) { place.of.theirs.load(Relaxed) } else { 0 }
        } else {
            0
        };
        if theirs != 0 {
            self.next.record_state(version, theirs, state, args);
        }
    }

    /// An event ends.
    pub fn stop(&self, version: Version, handle: *mut c_void) {
        let handle = Handle(handle as u64);
        if let Some((generation, place)) = self.part(handle) {
            let p = &place.of;
            let theirs = p.theirs.load(Relaxed);
            // `Reporting` keeps the place while it is read; of two that stop it, one gets here.
            if !place.turn(generation, &[State::Live], State::Reporting) {
                return;
            }
            self.part_ended(p);
            place.turn(generation, &[State::Reporting], State::Done);
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
}
