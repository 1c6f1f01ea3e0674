//! Steps that a program marked, or that are calls of a function named as one step.

use std::collections::{HashMap, HashSet};

use gpuwhy_diagnose::detect::Step;
use gpuwhy_schema::{self as schema, Id, Name, Ns, Rows, Span, TrackId, names};

use crate::error::Result;
use crate::source::{EVER, TraceSource, all};

/// Every finished step of a trace, ordered by its end.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource) -> Result<Vec<Step>> {
    let details: Vec<schema::Step> = all(source.trace(), EVER)?;
    let details: HashMap<Id, &schema::Step> = details.iter().map(|d| (d.id, d)).collect();
    let tracks: HashSet<TrackId> = step_tracks(source.entities_and_tracks()).collect();
    let mut steps = Vec::with_capacity(details.len());
    for spans in source.trace().read::<Span>(EVER) {
        for span in spans? {
            if !tracks.contains(&span.track) {
                continue;
            }
            steps.extend(details.get(&span.id).and_then(|detail| step(&span, detail)));
        }
    }
    steps.sort_by_key(|s| (s.end(), s.ts, s.id));
    Ok(steps)
}

/// The tracks that hold steps.
pub fn step_tracks(rows: &Rows) -> impl Iterator<Item = TrackId> + '_ {
    rows.track.iter().filter(|t| &*t.name == names::STEPS).map(|t| t.id)
}

/// A step from its span and its details; `None` if it has not ended.
fn step(span: &Span, detail: &schema::Step) -> Option<Step> {
    Some(Step {
        id: span.id,
        ts: span.ts,
        dur: span.dur?,
        thread: detail.thread,
        rank: detail.rank,
        name: span.name.clone(),
        size: detail.size,
        ran: None,
        expected: Default::default(),
    })
}

/// A step that ended, with its number and its phases.
#[derive(Clone, Debug)]
pub struct FinishedStep {
    /// The step.
    pub step: Step,
    /// Its number on its thread.
    pub seq: u64,
    /// Its phases: name, begin and length.
    pub phases: Vec<(Name, Ns, Ns)>,
}

/// The steps that ended in `rows`, which hold the spans of steps and of their phases.
pub fn finished(rows: &Rows) -> Vec<FinishedStep> {
    if rows.step.is_empty() {
        return Vec::new();
    }
    let spans: HashMap<Id, &Span> = rows.span.iter().map(|s| (s.id, s)).collect();
    let mut phases: HashMap<Id, Vec<(Name, Ns, Ns)>> = HashMap::new();
    for span in &rows.span {
        if let (Some(parent), Some(dur)) = (span.parent, span.dur) {
            phases.entry(parent).or_default().push((span.name.clone(), span.ts, dur));
        }
    }
    let mut steps: Vec<FinishedStep> = rows
        .step
        .iter()
        .filter_map(|detail| {
            let step = step(spans.get(&detail.id)?, detail)?;
            let phases = phases.remove(&detail.id).unwrap_or_default();
            Some(FinishedStep { step, seq: detail.seq, phases })
        })
        .collect();
    steps.sort_by_key(|s| (s.step.end(), s.step.ts, s.step.id));
    steps
}
