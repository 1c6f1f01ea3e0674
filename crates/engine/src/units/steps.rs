//! Steps that a program marked, or that are calls of a function named as one step.

use std::collections::{HashMap, HashSet};

use gpuwhy_diagnose::detect::Step;
use gpuwhy_schema::{
    self as schema, EntityId, Id, Name, Ns, Rows, SourceId, Span, Track, TrackId, names, sources,
};

use crate::error::Result;
use crate::source::{EVER, TraceSource, all};

/// Every finished step of a trace, ordered by its end.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource) -> Result<Vec<Step>> {
    let details: Vec<schema::Step> = all(source.trace(), EVER)?;
    let details: HashMap<Id, &schema::Step> = details.iter().map(|d| (d.id, d)).collect();
    let tracks: HashMap<TrackId, EntityId> = step_tracks(source.entities_and_tracks()).collect();
    let mut steps = Vec::with_capacity(details.len());
    for spans in source.trace().read::<Span>(EVER) {
        for span in spans? {
            let Some(of) = tracks.get(&span.track) else { continue };
            let step = details.get(&span.id).and_then(|detail| step(&span, detail, Some(*of)));
            steps.extend(step);
        }
    }
    steps.sort_by_key(|s| (s.end(), s.ts, s.id));
    Ok(steps)
}

/// The tracks that hold steps, and whose they are.
pub fn step_tracks(rows: &Rows) -> impl Iterator<Item = (TrackId, EntityId)> + '_ {
    rows.track.iter().filter(|track| is_of_steps(track)).map(|t| (t.id, t.entity))
}

/// Whether all steps of a recording are calls of functions that were named as steps.
pub(super) fn are_calls(rows: &Rows) -> bool {
    let calls = rows.source.iter().filter(|source| &*source.kind == sources::STEPS.kind);
    let calls: HashSet<SourceId> = calls.map(|source| source.id).collect();
    let mut steps = rows.track.iter().filter(|track| is_of_steps(track));
    !calls.is_empty() && steps.all(|track| calls.contains(&track.source))
}

/// Whether a track holds steps.
pub(super) fn is_of_steps(track: &Track) -> bool {
    &*track.name == names::STEPS
}

/// A step from its span, its details and whose track it lies on, if that is known; `None` if it has not ended.
fn step(span: &Span, detail: &schema::Step, of: Option<EntityId>) -> Option<Step> {
    let is_others = |of: &EntityId| *of != detail.thread && &*span.name == names::BUSY_PERIOD;
    Some(Step {
        id: span.id,
        ts: span.ts,
        dur: span.dur?,
        thread: detail.thread,
        series: of.filter(is_others),
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
///
/// `of` says whose a track is, if it knows.
pub fn finished(rows: &Rows, of: impl Fn(TrackId) -> Option<EntityId>) -> Vec<FinishedStep> {
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
            let span = spans.get(&detail.id)?;
            let step = step(span, detail, of(span.track))?;
            let phases = phases.remove(&detail.id).unwrap_or_default();
            Some(FinishedStep { step, seq: detail.seq, phases })
        })
        .collect();
    steps.sort_by_key(|s| (s.step.end(), s.step.ts, s.step.id));
    steps
}
