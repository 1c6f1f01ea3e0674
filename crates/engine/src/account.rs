//! Where the time of selected steps went: their rows are read a few seconds at a time and walked over
//! by `derive`.

use std::collections::{HashMap, HashSet};

use gpuwhy_derive::{Accounted, Accounting};
use gpuwhy_diagnose::correspondents::Correspondents;
use gpuwhy_diagnose::detect::{Step, StepNo, Steps};
use gpuwhy_diagnose::spans::{SpanInStep, StepRows, spans_in_steps};
use gpuwhy_schema::{self as schema, EntityId, Id, Ns, Part, TrackId};

use crate::error::Result;
use crate::source::RowSource;
use crate::units::rounds;

/// Rows around a step that its walk may need: the sleep that began before it, the message that
/// ended a wait after it, counters read at 10 Hz.
const MARGIN: Ns = Ns::millis(600);
/// Rows are read for at most this long a stretch at a time.
const STRETCH: Ns = Ns::secs(4);
/// The track of rounds, which no row of the trace lies on.
const NO_TRACK: TrackId = TrackId(u32::MAX);

/// Parts of the steps that were accounted for, by step, so that no step is accounted for twice, the
/// spans in these steps that point to a class of causes, and who exchanged something with those who take the steps.
#[derive(Clone, Debug, Default)]
pub struct KnownParts {
    by_step: HashMap<Id, Vec<Part>>,
    spans: HashMap<Id, Vec<SpanInStep>>,
    helpers: HashMap<Id, Vec<Part>>,
    correspondents: Correspondents,
}

impl KnownParts {
    /// Whether a step was accounted for and has parts.
    pub fn contains(&self, step: Id) -> bool {
        self.by_step.contains_key(&step)
    }

    /// What is known of these steps.
    pub fn of(&self, steps: &[Id]) -> StepRows {
        let parts = steps.iter().filter_map(|step| self.by_step.get(step)).flatten();
        let spans = steps.iter().filter_map(|step| self.spans.get(step)).flatten();
        let helpers = steps.iter().filter_map(|step| self.helpers.get(step)).flatten();
        StepRows {
            parts: parts.cloned().collect(),
            spans: spans.cloned().collect(),
            helpers: helpers.cloned().collect(),
            correspondents: self.correspondents.clone(),
        }
    }

    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.by_step.values().flatten()
    }

    /// The parts of a step that are known from elsewhere.
    pub fn give(&mut self, step: Id, parts: Vec<Part>) {
        self.by_step.insert(step, parts);
    }

    /// Adds what is known of steps; of those that are known already, it stays.
    pub fn extend(&mut self, rows: StepRows) {
        add(&mut self.by_step, rows.parts, |part| part.step);
        add(&mut self.spans, rows.spans, |span| span.step);
        add(&mut self.helpers, rows.helpers, |part| part.step);
        self.correspondents.extend(rows.correspondents);
    }

    /// Forgets the parts of a step: one that has not ended has others when it is examined again.
    pub fn forget(&mut self, step: Id) {
        self.by_step.remove(&step);
        self.spans.remove(&step);
        self.helpers.remove(&step);
    }

    /// Each step with its parts.
    pub fn into_steps(self) -> impl Iterator<Item = (Id, Vec<Part>)> {
        self.by_step.into_iter()
    }
}

/// Adds the rows of each step that had none.
fn add<R>(to: &mut HashMap<Id, Vec<R>>, rows: Vec<R>, step: impl Fn(&R) -> Id) {
    let mut by_step: HashMap<Id, Vec<R>> = HashMap::new();
    for row in rows {
        by_step.entry(step(&row)).or_default().push(row);
    }
    for (id, rows) in by_step {
        to.entry(id).or_insert(rows);
    }
}

/// The parts of the `selected` ones of `steps`, and the spans in them that
/// point to a class of causes.
///
/// # Errors
/// Their rows cannot be read.
pub fn account(
    source: &dyn RowSource,
    steps: &Steps,
    selected: &[StepNo],
    accounting: &Accounting,
) -> Result<StepRows> {
    let mut selected: Vec<&Step> = selected.iter().map(|&no| &steps[no]).collect();
    selected.sort_by_key(|s| (s.ts, s.id));
    selected.dedup_by_key(|s| s.id);
    let workload = workload(steps);
    let threads: HashSet<EntityId> = workload.iter().map(|step| step.thread).collect();
    let mut known = StepRows::default();
    let mut rest = &selected[..];
    while let Some(first) = rest.first() {
        let until = first.ts.saturating_add(STRETCH);
        let n = rest.partition_point(|s| s.ts < until);
        let (stretch, later) = rest.split_at(n);
        rest = later;
        let end = stretch.iter().map(|s| s.end()).max().unwrap_or(until);
        let mut rows = source.rows(first.ts.saturating_sub(MARGIN)..end.saturating_add(MARGIN))?;
        let ids: HashSet<Id> = stretch.iter().map(|s| s.id).collect();
        rows.step.retain(|s| ids.contains(&s.id));
        for round in stretch.iter().filter(|s| rounds::is_round(s)) {
            let Step { id, ts, dur, thread, rank, size, .. } = **round;
            let (track, name, dur) = (NO_TRACK, round.name.clone(), Some(dur));
            rows.span.push(schema::Span { id, ts, dur, track, parent: None, name });
            rows.step.push(schema::Step { id, ts, thread, seq: 0, size, rank });
        }
        rows.step.extend(workload.iter().cloned());
        let Accounted { parts, helpers } = gpuwhy_derive::account(&rows, accounting);
        known.spans.extend(spans_in_steps(&rows, stretch, &parts));
        known.correspondents.extend(Correspondents::new(&rows, &threads));
        known.parts.extend(parts.into_iter().filter(|part| ids.contains(&part.step)));
        known.helpers.extend(helpers.into_iter().filter(|part| ids.contains(&part.step)));
    }
    Ok(known)
}

/// One row for each thread that has steps. No span belongs to it, so it is not accounted for; it says
/// that the thread's process is part of the workload.
fn workload(steps: &[Step]) -> Vec<schema::Step> {
    let threads: foldhash::HashSet<_> = steps.iter().map(|s| (s.thread, s.rank)).collect();
    let mut threads: Vec<_> = threads.into_iter().collect();
    threads.sort_unstable();
    let row = |(thread, rank)| schema::Step {
        id: Id(u64::MAX),
        ts: Ns::ZERO,
        thread,
        seq: 0,
        size: None,
        rank,
    };
    threads.into_iter().map(row).collect()
}
