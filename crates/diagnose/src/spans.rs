//! Spans in a step whose names point to a class of causes: a runtime that marks its own pauses, say.

use std::collections::HashMap;

use gpuwhy_schema::{
    Class, Entity, EntityId, EntityKind, Id, Name, Ns, Part, PartKind, Rows, Span, TrackId,
};

use crate::classes::{self, ClassSpec};
use crate::detect::Step;
use crate::evidence::Pointer;

/// The time of a step in which a span of its process lasted whose name points to a class.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanInStep {
    /// The step.
    pub step: Id,
    /// The class that the span points to.
    pub class: Class,
    /// The span's name.
    pub name: Name,
    /// The span's track.
    pub track: TrackId,
    /// When it began, or the step did.
    pub from: Ns,
    /// When it ended, or the step did.
    pub to: Ns,
}

impl SpanInStep {
    /// Its row.
    pub(crate) fn pointer(&self) -> Pointer {
        Pointer::new("span", Some(self.track), self.from, self.to)
    }
}

/// What is known of the steps of an incident.
#[derive(Clone, Debug, Default)]
pub struct StepRows {
    /// Where their time went.
    pub parts: Vec<Part>,
    /// Spans in them whose names point to a class.
    pub spans: Vec<SpanInStep>,
    /// What the helpers of their threads did, as `gpuwhy_derive::Accounted::helpers` tells it.
    pub helpers: Vec<Part>,
}

/// The spans of `rows` that lie in one of `steps`, in its process, and point to a class by their names.
/// A step stands still with its whole process, whichever of its threads the span is about.
pub fn spans_in_steps(rows: &Rows, steps: &[&Step]) -> Vec<SpanInStep> {
    let named = |span: &'_ Span| classes::of_span(&span.name);
    let named: Vec<(&Span, &ClassSpec)> =
        rows.span.iter().filter_map(|span| Some((span, named(span)?))).collect();
    if named.is_empty() {
        return Vec::new();
    }
    let entities: HashMap<EntityId, &Entity> = rows.entity.iter().map(|e| (e.id, e)).collect();
    let process = |id: EntityId| match entities.get(&id) {
        Some(entity) if entity.kind == EntityKind::Thread => entity.parent.unwrap_or(id),
        _ => id,
    };
    let tracks: HashMap<TrackId, EntityId> = rows.track.iter().map(|t| (t.id, t.entity)).collect();
    let mut out = Vec::new();
    for (span, spec) in named {
        let Some(of) = tracks.get(&span.track).map(|entity| process(*entity)) else { continue };
        let end = span.dur.map_or(Ns::MAX, |dur| span.ts.saturating_add(dur));
        for step in steps.iter().filter(|step| process(step.thread) == of) {
            let (from, to) = (span.ts.max(step.ts), end.min(step.end()));
            if from < to {
                let (class, name, track) = (spec.class, span.name.clone(), span.track);
                out.push(SpanInStep { step: step.id, class, name, track, from, to });
            }
        }
    }
    out.sort_by_key(|span| (span.step, span.from, span.to));
    out
}

/// Of a part of a step, the ns that lie in spans of the step which explain its kind, by class. `spans`
/// are those of the step, sorted by their begin; what several of them cover counts once.
pub(crate) fn covered(part: &Part, spans: &[&SpanInStep]) -> Vec<((Class, PartKind), f64)> {
    let end = part.ts.saturating_add(part.dur);
    let mut at = part.ts;
    let mut out = Vec::new();
    for span in spans {
        let explains = classes::of(span.class).spans;
        let (from, to) = (span.from.max(at), span.to.min(end));
        if from < to && explains.is_some_and(|spans| spans.instead_of.contains(&part.kind)) {
            out.push(((span.class, part.kind), (to - from).0 as f64));
            at = to;
        }
    }
    out
}
