//! What calls say of a step's time, where a profiler recorded calls (see [`crate::calls`]).
//!
//! Scheduler events say more of a thread that was ready to run, stopped or throttled. A call says more of a
//! thread that slept, that ran in it, or of which nothing else was recorded.

use gpuwhy_schema::{EntityId, PartKind, ThreadState};

use super::{Via, Walk};
use crate::calls::{CallKind, Doing, Tile, cut};
use crate::intervals::Interval;
use crate::world::Held;

impl Walk<'_> {
    /// The pieces of `window` in which a call says what the thread did; `rest` accounts for the others.
    /// `held` is its state, where that was recorded.
    pub(super) fn in_calls(
        &mut self,
        thread: EntityId,
        held: Option<Held>,
        window: Interval,
        via: Via,
        rest: impl Fn(&mut Self, Interval),
    ) {
        let mut at = window.0;
        for tile in self.world.calls().of(thread, window) {
            let piece = (tile.from.max(at), tile.to.min(window.1));
            if piece.0 >= piece.1 {
                continue;
            }
            if at < piece.0 {
                rest(self, (at, piece.0));
            }
            at = piece.1;
            self.call(thread, tile, held, piece, via, &rest);
        }
        if at < window.1 {
            rest(self, (at, window.1));
        }
    }

    /// A piece of time in a call.
    fn call(
        &mut self,
        thread: EntityId,
        tile: &Tile,
        held: Option<Held>,
        piece: Interval,
        via: Via,
        rest: &impl Fn(&mut Self, Interval),
    ) {
        let runs = held.is_some_and(|held| held.state == ThreadState::Running);
        match tile.doing {
            // Loading waits for what the GPU does, as freeing does.
            Doing::Device(CallKind::Load, _) => self.or_gpu(thread, piece, |walk, idle| {
                walk.put(idle, PartKind::Load, None);
            }),
            Doing::Device(CallKind::Allocate, _) => self.put(piece, PartKind::Allocate, None),
            Doing::Device(CallKind::Free, _) => self.or_gpu(thread, piece, |walk, idle| {
                walk.put(idle, PartKind::Allocate, None);
            }),
            Doing::Device(CallKind::Copy, _) | Doing::Device(CallKind::CopyAsync, true) => {
                self.copying(thread, piece);
            }
            // A thread that polls while its GPU does nothing is busy with itself.
            Doing::Device(CallKind::Synchronise, _) if runs => self.or_gpu(thread, piece, rest),
            Doing::Device(CallKind::Synchronise, _) => self.or_gpu(thread, piece, |walk, idle| {
                walk.put_as(idle, via, PartKind::Unknown);
            }),
            // A launch that takes long waits for room in the queue of the GPU.
            Doing::Device(CallKind::Launch, true) => {
                self.or_gpu(thread, piece, |walk, idle| walk.put(idle, PartKind::Run, None));
            }
            Doing::Device(..) => self.put(piece, PartKind::Run, None),
            Doing::Late(rank) if self.path.contains(&rank) => {
                let late = self.world.process(rank);
                self.put(piece, PartKind::Peer, Some(late));
            }
            Doing::Late(rank) => self.follow(rank, piece, Via::Rank),
            Doing::Transfer => self.put(piece, PartKind::Network, None),
            Doing::Elsewhere => self.put(piece, PartKind::Peer, None),
            Doing::Os(..) if runs => rest(self, piece),
            Doing::Os(state, arg) => {
                let (from, to) = held.map_or((tile.from, tile.to), |held| (held.from, held.to));
                let asleep = Held { from, to, state, arg };
                match state {
                    ThreadState::DiskWait => self.uninterruptible(thread, asleep, piece, via),
                    _ => self.sleep(thread, asleep, piece, via),
                }
            }
        }
    }

    /// In a call that copies: what the GPU copied, else what it did before it came to copy, else the staging
    /// that the host does itself.
    fn copying(&mut self, thread: EntityId, window: Interval) {
        let world = self.world;
        let process = world.process(thread);
        let mut at = window.0;
        for ((from, to), gpu) in world.gpus().copies(process, window) {
            let (from, to) = (from.max(at), to.min(window.1));
            if from >= to {
                continue;
            }
            self.before_a_copy(thread, (at, from));
            self.put((from, to), PartKind::Copy, Some(gpu));
            at = to;
        }
        self.before_a_copy(thread, (at, window.1));
    }

    fn before_a_copy(&mut self, thread: EntityId, window: Interval) {
        if window.0 < window.1 {
            self.or_gpu(thread, window, |walk, rest| walk.put(rest, PartKind::Copy, None));
        }
    }

    /// A part as it is told where calls were recorded: what a process did while other ranks waited for it is
    /// what made it late, and what ran while pages of managed memory were moved waited for them.
    pub(super) fn told(
        &self,
        thread: EntityId,
        window: Interval,
        kind: PartKind,
    ) -> Vec<(Interval, PartKind, Option<EntityId>)> {
        let calls = self.world.calls();
        let process = self.world.process(thread);
        let moved = match kind {
            PartKind::Gpu | PartKind::Run | PartKind::Unknown => calls.faults(process),
            _ => &[],
        };
        let late = match kind {
            PartKind::Gpu | PartKind::Run | PartKind::Unknown | PartKind::Timer => {
                calls.awaited(process)
            }
            _ => &[],
        };
        let mut out = Vec::new();
        for (piece, is_moved) in cut(window, moved) {
            if is_moved {
                out.push((piece, PartKind::PageFault, None));
                continue;
            }
            let tell = |(piece, is_late)| match is_late {
                true => (piece, PartKind::Peer, Some(process)),
                false => (piece, kind, None),
            };
            out.extend(cut(piece, late).into_iter().map(tell));
        }
        out
    }

    /// Nothing but calls was recorded of the thread, and it is in none.
    pub(super) fn computes(&self, thread: EntityId) -> bool {
        self.world.calls().computes_outside(thread)
    }
}

/// The states of which a call says more.
pub(super) fn says_more(held: &Held) -> bool {
    matches!(
        held.state,
        ThreadState::Running
            | ThreadState::Sleep
            | ThreadState::DiskWait
            | ThreadState::Uninterruptible
    )
}
