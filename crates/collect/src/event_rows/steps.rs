//! Steps that programs mark, and their phases.

use std::collections::VecDeque;

use gpuwhy_schema::{Discipline, EntityId, Id, Lane, Name, Ns, Span, Step, TrackId, names};

use super::{Devices, EventRows, KEPT, Times, Writer};
use crate::context::Context;
use crate::probe::OpenStep;
use crate::span_nesting::SpanNesting;

/// Phases of one step that are held until it ends; more are counted as dropped.
const PHASES: usize = 256;

/// Steps of one thread that have begun, or that a phase has named, and that have not ended.
const OPEN_STEPS: usize = 16;

/// What is known of one thread.
pub(super) struct Thread {
    /// The thread.
    pub entity: EntityId,
    /// The track of its steps and phases.
    pub steps: TrackId,
    /// The track of its launches, if it has any.
    pub launches: Option<TrackId>,
    /// The track of its marks, if it has any.
    pub marks: Option<TrackId>,
    open: VecDeque<Unfinished>,
    nesting: SpanNesting,
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

impl EventRows {
    pub(super) fn step_begins(
        &mut self,
        writer: Writer,
        seq: u64,
        begin: StepBegin,
        cx: &mut Context,
    ) {
        self.thread(writer, cx).step(seq, cx).begin = Some(begin);
    }

    pub(super) fn step_ends(
        &mut self,
        writer: Writer,
        seq: u64,
        begin: StepBegin,
        end: Ns,
        cx: &mut Context,
    ) {
        let StepBegin { name, start: ts, size, rank } = begin;
        let thread = self.thread(writer, cx);
        let Unfinished { id, phases, .. } = thread.step(seq, cx);
        let (id, mut phases) = (*id, std::mem::take(phases));
        thread.open.retain(|step| step.seq != seq);
        let fits = thread.nesting.fits(ts, end);
        if !fits {
            phases.iter_mut().for_each(|phase| phase.parent = None);
        }
        cx.rows.span.append(&mut phases);
        if !fits {
            self.dropped += 1;
            return;
        }
        let (track, thread) = (thread.steps, thread.entity);
        cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
        cx.rows.step.push(Step { id, ts, thread, seq, size, rank });
    }

    pub(super) fn phase(
        &mut self,
        writer: Writer,
        step: Option<u64>,
        name: Name,
        times: Times,
        cx: &mut Context,
    ) {
        let thread = self.thread(writer, cx);
        let (ts, end) = (times.ts, times.end());
        if !thread.nesting.fits(ts, end) {
            self.dropped += 1;
            return;
        }
        let (id, track) = (cx.ids.next_id(), thread.steps);
        let span = Span { id, ts, dur: Some(end - ts), track, parent: None, name };
        match step.map(|seq| thread.step(seq, cx)) {
            Some(step) if step.phases.len() < PHASES => {
                step.phases.push(Span { parent: Some(step.id), ..span });
            }
            Some(_) => self.dropped += 1,
            None => cx.rows.span.push(span),
        }
    }

    pub(super) fn thread(&mut self, (pid, tid): Writer, cx: &mut Context) -> &mut Thread {
        if self.threads.len() >= KEPT {
            self.threads.clear();
        }
        self.threads.entry((pid, tid)).or_insert_with(|| {
            let entity = cx.thread(tid, pid, None);
            // Spans that a library reports do not nest with the steps of its program.
            let name = match self.devices {
                Devices::Simulated => names::STEPS,
                Devices::Real => names::LIBRARY_CALLS,
            };
            let kind = Lane::spans(name, Discipline::Nested);
            Thread {
                entity,
                steps: cx.catalog.track(entity, None, kind, self.source),
                launches: None,
                marks: None,
                open: VecDeque::new(),
                nesting: SpanNesting::default(),
            }
        })
    }

    /// The step of each thread that began last, before `before`, and has not ended. `lives` says
    /// whether a thread lives; a process that writes a pid of another namespace seems not to.
    pub fn open_steps(&self, before: Ns, lives: impl Fn(u32, u32) -> bool) -> Vec<OpenStep> {
        let last = |(&(pid, tid), thread): (&(u32, u32), &Thread)| {
            let (step, begin) =
                thread.open.iter().rev().find_map(|s| Some((s, s.begin.as_ref()?)))?;
            (begin.start < before && lives(pid, tid)).then(|| OpenStep {
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
        self.threads.iter().filter_map(last).collect()
    }

    /// Writes the steps that have begun and not ended, as spans without an end.
    pub(super) fn finish_steps(&mut self, cx: &mut Context) {
        let mut threads: Vec<_> = self.threads.drain().collect();
        threads.sort_unstable_by_key(|(key, _)| *key);
        for (_, thread) in threads {
            // One of them at most: two open spans on one track would cross.
            let last = thread.open.iter().rposition(|s| s.begin.is_some());
            let mut nesting = thread.nesting;
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
            }
        }
    }
}

impl Thread {
    /// The step `seq`, which has not ended.
    fn step(&mut self, seq: u64, cx: &mut Context) -> &mut Unfinished {
        let i = match self.open.iter().position(|step| step.seq == seq) {
            Some(i) => i,
            None => {
                if self.open.len() >= OPEN_STEPS {
                    self.open.pop_front();
                }
                let id = cx.ids.next_id();
                self.open.push_back(Unfinished { seq, id, begin: None, phases: Vec::new() });
                self.open.len() - 1
            }
        };
        &mut self.open[i]
    }
}
