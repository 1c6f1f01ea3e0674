//! Steps that programs mark, and their phases.

use std::collections::VecDeque;

use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Id, Lane, Name, Ns, Span, Step, TrackId, names,
};

use super::GuestRows;
use super::batches::Batches;
use crate::attribution::NoLookUps;
use crate::context::Context;
use crate::event_rows::{Devices, Times};
use crate::probe::OpenStep;
use crate::quota::{self, Quota};
use crate::span_nesting::SpanNesting;

/// Phases of one step that are held until it ends; more are counted as dropped.
const PHASES: usize = 256;

/// Steps of one thread that have begun, or that a phase has named, and that have not ended.
const OPEN_STEPS: usize = 16;

/// The track of a thread's steps.
const STEPS: Lane<'static> = Lane::spans(names::STEPS, Discipline::Nested);

/// How precisely the beginning of a thread is known: two clock ticks.
const BEGIN: Ns = Ns::millis(20);

/// What is known of one thread.
pub(super) struct Thread {
    /// The thread.
    pub entity: EntityId,
    /// Its tid on this host; `None` if the thread cannot be verified.
    tid: Option<u32>,
    /// When it last wrote, and when it was last seen to be still the same.
    used: Ns,
    seen: Ns,
    tracks: usize,
    /// The track of its steps and phases, or of a library's spans.
    pub steps: TrackId,
    /// Whether that is one of steps.
    takes_steps: bool,
    /// The track of its launches, if it has any.
    pub launches: Option<TrackId>,
    /// The track of its marks, if it has any.
    pub marks: Option<TrackId>,
    open: VecDeque<Unfinished>,
    nesting: SpanNesting,
    pub(super) batches: Batches,
}

/// A step that has not ended, of which the beginning or a phase has arrived.
struct Unfinished {
    seq: u64,
    id: Id,
    begin: Option<StepBegin>,
    /// Its phases so far; they are written with it, so that their parent is always in the trace.
    phases: Vec<Span>,
}

/// What is known of a step when it begins.
pub(super) struct StepBegin {
    /// What it is called.
    pub name: Name,
    /// When it begins.
    pub start: Ns,
    /// How much there is to do.
    pub size: Option<i64>,
    /// The rank that takes it.
    pub rank: Option<u32>,
}

impl GuestRows {
    pub(super) fn step_begins(
        &mut self,
        tid: u32,
        seq: u64,
        begin: StepBegin,
        cx: &mut Context,
    ) -> Option<()> {
        let thread = self.thread_with_steps(tid, cx)?;
        let lost = thread.step(seq, cx).1;
        thread.step(seq, cx).0.begin = Some(begin);
        self.budget.held = self.budget.held.saturating_sub(lost);
        Some(())
    }

    pub(super) fn step_ends(
        &mut self,
        tid: u32,
        seq: u64,
        begin: StepBegin,
        end: Ns,
        cx: &mut Context,
    ) -> Option<()> {
        let StepBegin { name, start: ts, size, rank } = begin;
        let thread = self.thread_with_steps(tid, cx)?;
        let (Unfinished { id, phases, .. }, lost) = thread.step(seq, cx);
        let (id, mut phases) = (*id, std::mem::take(phases));
        let freed = lost + phases.len();
        thread.open.retain(|step| step.seq != seq);
        let fits = thread.nesting.fits(ts, end);
        let freed = freed + thread.batches.step_ended(seq, fits.then_some((id, ts)), cx);
        if !fits {
            phases.iter_mut().for_each(|phase| phase.parent = None);
        }
        let (track, thread) = (thread.steps, thread.entity);
        self.budget.held = self.budget.held.saturating_sub(freed);
        cx.rows.span.append(&mut phases);
        if !fits {
            return None;
        }
        cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
        cx.rows.step.push(Step { id, ts, thread, seq, size, rank });
        Some(())
    }

    pub(super) fn phase(
        &mut self,
        tid: u32,
        step: Option<u64>,
        name: Name,
        times: Times,
        cx: &mut Context,
    ) -> Option<()> {
        let has_room = self.budget.held < quota::HELD_SPANS;
        let thread = match step {
            Some(_) => self.thread_with_steps(tid, cx)?,
            None => self.thread(tid, cx)?,
        };
        let (ts, end) = (times.ts, times.end());
        if !thread.nesting.fits(ts, end) {
            return None;
        }
        let (id, track) = (cx.ids.next_id(), thread.steps);
        let span = Span { id, ts, dur: Some(end - ts), track, parent: None, name };
        let Some(seq) = step else {
            cx.rows.span.push(span);
            return Some(());
        };
        let (step, lost) = thread.step(seq, cx);
        let is_held = has_room && step.phases.len() < PHASES;
        if is_held {
            step.phases.push(Span { parent: Some(step.id), ..span });
        }
        self.budget.held = self.budget.held.saturating_sub(lost) + usize::from(is_held);
        is_held.then_some(())
    }

    /// The guest's thread with its own number `own_tid`; `None` if a quota is used up.
    pub(super) fn thread(&mut self, own_tid: u32, cx: &mut Context) -> Option<&mut Thread> {
        let (now, process) = (self.now, self.guest.host());
        let known = self.threads.get_mut(&own_tid);
        // Once a tick is often enough to ask whether the number is another thread's by now.
        let is_known = known.is_some_and(|thread| {
            let (Some(tid), Some(process)) = (thread.tid, process) else { return true };
            let is_same = thread.seen == now
                || cx.attribution.is_current(tid, process.pid, thread.entity, now);
            thread.seen = now;
            is_same
        });
        if !is_known {
            self.find_thread(own_tid, cx)?;
        }
        let thread = self.threads.get_mut(&own_tid)?;
        thread.used = now;
        Some(thread)
    }

    /// The same of a thread that takes steps: from the first one on they have a track, by which they are told from what a
    /// library does.
    fn thread_with_steps(&mut self, own_tid: u32, cx: &mut Context) -> Option<&mut Thread> {
        let thread = self.thread(own_tid, cx)?;
        let entity = thread.entity;
        if !std::mem::replace(&mut thread.takes_steps, true)
            && let Some(track) = self.track(entity, None, STEPS, cx)
        {
            let thread = self.threads.get_mut(&own_tid)?;
            thread.steps = track;
            thread.tracks += 1;
        }
        self.threads.get_mut(&own_tid)
    }

    /// Finds out which thread has this number now. One that was known stays the same unless another one
    /// has its number.
    fn find_thread(&mut self, own_tid: u32, cx: &mut Context) -> Option<()> {
        if let Some(known) = self.threads.get(&own_tid) {
            // One that was known is believed until it can be asked for again.
            let (Some(tid), Some(process)) = (known.tid, self.guest.host()) else {
                return Some(());
            };
            if !self.budget.look_ups.take(1)
                || cx.attribution.confirm(tid, process.pid, known.entity)
            {
                return Some(());
            }
            self.guest.unlearn(own_tid);
        } else if self.threads.len() >= quota::THREADS {
            self.end_threads(self.now.saturating_sub(quota::IDLE_WHEN_FULL), true, cx);
            if self.threads.len() >= quota::THREADS {
                self.budget.use_up(Quota::Threads);
                return None;
            }
        }
        let look_ups = &mut self.budget.look_ups;
        let tid = match cx.attribution.guest_tid(&mut self.guest, own_tid, self.now, look_ups) {
            Ok(tid) => tid,
            Err(NoLookUps) => {
                self.budget.use_up(Quota::LookUps);
                let is_believed = !self.guest.is_nested() && self.threads.contains_key(&own_tid);
                return is_believed.then_some(());
            }
        };
        let found = tid.and_then(|tid| {
            let thread = cx.attribution.guest_thread(&mut cx.catalog, &self.guest, tid)?;
            Some((thread, tid))
        });
        let (entity, tid) = match found {
            Some((thread, tid)) => {
                let began = cx.catalog.get(thread).and_then(|thread| thread.from);
                if began.is_some_and(|began| self.at.saturating_add(BEGIN) < began) {
                    // It was written before this thread began, by the last one with its number.
                    return None;
                }
                (thread, Some(tid))
            }
            // It has ended: what is known of it is the last that there was.
            None if self.threads.contains_key(&own_tid) => return Some(()),
            None => (self.unverified_thread(own_tid, cx)?, None),
        };
        if self.threads.get(&own_tid).is_some_and(|known| known.entity == entity) {
            return Some(());
        }
        if let Some(before) = self.threads.remove(&own_tid) {
            self.end_thread(before, cx);
        }
        let thread = self.new_thread(entity, tid, cx)?;
        self.threads.insert(own_tid, thread);
        Some(())
    }

    /// A thread of this process that /proc does not show: it ended before its first record was read, or
    /// there never was one.
    fn unverified_thread(&mut self, own_tid: u32, cx: &mut Context) -> Option<EntityId> {
        let process = self.guest.process();
        let key = format!("{}/{own_tid}", self.guest.key());
        self.entity(EntityKind::Thread, &key, cx, |e| {
            e.parent = Some(process);
            e.name = format!("tid {own_tid}, as it said itself").as_str().into();
        })
    }

    fn new_thread(
        &mut self,
        entity: EntityId,
        tid: Option<u32>,
        cx: &mut Context,
    ) -> Option<Thread> {
        // Spans that a library reports do not nest with the steps of its program.
        let takes_steps = self.devices == Devices::Simulated;
        let spans = Lane::spans(names::LIBRARY_CALLS, Discipline::Nested);
        let steps = self.track(entity, None, if takes_steps { STEPS } else { spans }, cx);
        if steps.is_none() && tid.is_none() {
            self.budget.give_back(0);
            cx.catalog.retire(entity, self.now);
        }
        Some(Thread {
            entity,
            tid,
            used: self.now,
            seen: self.now,
            tracks: 1,
            steps: steps?,
            takes_steps,
            launches: None,
            marks: None,
            open: VecDeque::new(),
            nesting: SpanNesting::default(),
            batches: Batches::default(),
        })
    }

    /// Ends the threads that have not written since `before` and that cannot be verified; `all` forgets
    /// the others as well, unless they are in the middle of a step.
    pub(super) fn end_threads(&mut self, before: Ns, all: bool, cx: &mut Context) {
        let ends = |thread: &Thread| {
            let may = thread.tid.is_none() || all && (thread.open.is_empty() || before == Ns::MAX);
            thread.used < before && may
        };
        let over: Vec<u32> =
            self.threads.iter().filter(|(_, t)| ends(t)).map(|(tid, _)| *tid).collect();
        for tid in over {
            if let Some(thread) = self.threads.remove(&tid) {
                self.end_thread(thread, cx);
            }
        }
    }

    /// A thread writes no more: phases of steps that never ended are written without them.
    fn end_thread(&mut self, mut thread: Thread, cx: &mut Context) {
        self.budget.held = self.budget.held.saturating_sub(thread.batches.finish(cx));
        for mut step in thread.open {
            self.budget.held = self.budget.held.saturating_sub(step.phases.len());
            step.phases.iter_mut().for_each(|phase| phase.parent = None);
            cx.rows.span.append(&mut step.phases);
        }
        self.budget.tracks = self.budget.tracks.saturating_sub(thread.tracks);
        if thread.tid.is_none() {
            self.budget.give_back(0);
            cx.catalog.retire(thread.entity, self.now);
        }
    }

    /// See [`crate::event_rows::EventRows::open_steps`].
    pub(in crate::event_rows) fn open_steps(
        &self,
        before: Ns,
        lives: impl Fn(u32, u32) -> bool,
    ) -> Vec<OpenStep> {
        let Some(process) = self.guest.host() else { return Vec::new() };
        let last = |thread: &Thread| {
            let (step, begin) =
                thread.open.iter().rev().find_map(|s| Some((s, s.begin.as_ref()?)))?;
            (begin.start < before && lives(process.pid, thread.tid?)).then(|| OpenStep {
                id: step.id,
                ts: begin.start,
                thread: thread.entity,
                track: thread.steps,
                seq: step.seq,
                name: begin.name.clone(),
                size: begin.size,
                rank: begin.rank,
            })
        };
        self.threads.values().filter_map(last).collect()
    }

    /// Writes the steps that have begun and not ended, as spans without an end.
    pub(super) fn finish_steps(&mut self, cx: &mut Context) {
        let mut threads: Vec<_> = self.threads.drain().collect();
        threads.sort_unstable_by_key(|(key, _)| *key);
        for (_, thread) in threads {
            // One of them at most: two open spans on one track would cross.
            let last = thread.open.iter().rposition(|s| s.begin.is_some());
            let (mut nesting, mut batches) = (thread.nesting, thread.batches);
            for (i, mut step) in thread.open.into_iter().enumerate() {
                let begin = step.begin.take().filter(|_| last == Some(i));
                let begin = begin.filter(|begin| nesting.fits(begin.start, Ns::MAX));
                if begin.is_none() {
                    step.phases.iter_mut().for_each(|phase| phase.parent = None);
                }
                cx.rows.span.append(&mut step.phases);
                let Some(StepBegin { name, start: ts, size, rank }) = begin else { continue };
                let (id, seq, track) = (step.id, step.seq, thread.steps);
                cx.rows.span.push(Span { id, ts, dur: None, track, parent: None, name });
                cx.rows.step.push(Step { id, ts, thread: thread.entity, seq, size, rank });
                batches.step_ended(seq, Some((id, ts)), cx);
            }
            batches.finish(cx);
        }
    }
}

impl Thread {
    /// The step `seq`, which has not ended, and how many phases were lost with an older one.
    fn step(&mut self, seq: u64, cx: &mut Context) -> (&mut Unfinished, usize) {
        let mut lost = 0;
        let i = match self.open.iter().position(|step| step.seq == seq) {
            Some(i) => i,
            None => {
                if self.open.len() >= OPEN_STEPS {
                    lost = self.open.pop_front().map_or(0, |oldest| oldest.phases.len());
                }
                let id = cx.ids.next_id();
                self.open.push_back(Unfinished { seq, id, begin: None, phases: Vec::new() });
                self.open.len() - 1
            }
        };
        (&mut self.open[i], lost)
    }

    /// It has a track for its marks from now on.
    pub fn add_marks(&mut self, track: TrackId) {
        self.marks = Some(track);
        self.tracks += 1;
    }

    /// It has a track for its launches from now on.
    pub fn add_launches(&mut self, track: TrackId) {
        self.launches = Some(track);
        self.tracks += 1;
    }
}
