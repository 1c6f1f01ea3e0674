//! Spans in a step whose names point to a class of causes: a runtime that marks its own pauses, say.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::{
    Class, Entity, EntityId, EntityKind, Id, Name, Ns, Part, PartKind, Rows, Span, TrackId,
};

use crate::classes::{self, ClassSpec};
use crate::correspondents::Correspondents;
use crate::detect::Step;
use crate::evidence::Pointer;

/// The time of a step in which a span lasted whose name points to a class: of its process, or of one that it waited for.
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
    /// Who exchanged something meanwhile with those that take the steps.
    pub correspondents: Correspondents,
}

/// The spans of `rows` that lie in one of `steps`, whose `parts` these are, and point to a class by their names.
/// A step stands still with its whole process, whichever of its threads the span is about. Of another process they count
/// for as long as the step waited for that: one that collects its garbage keeps others waiting as well.
pub fn spans_in_steps(rows: &Rows, steps: &[&Step], parts: &[Part]) -> Vec<SpanInStep> {
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
    let processes: HashMap<Id, EntityId> =
        steps.iter().map(|s| (s.id, process(s.thread))).collect();
    // Who kept steps of other processes waiting, and when.
    let mut elsewhere: HashMap<EntityId, Vec<&Part>> = HashMap::new();
    for part in parts {
        let Some(own) = processes.get(&part.step) else { continue };
        let of = [Some(process(part.thread)), part.blame.map(process)];
        let [thread, blame] = of.map(|of| of.filter(|of| of != own));
        for of in [thread, blame.filter(|_| blame != thread)].into_iter().flatten() {
            elsewhere.entry(of).or_default().push(part);
        }
    }
    let mut out = Vec::new();
    for (span, spec) in named {
        let Some(of) = tracks.get(&span.track).map(|entity| process(*entity)) else { continue };
        let end = span.dur.map_or(Ns::MAX, |dur| span.ts.saturating_add(dur));
        let mut within = |step: Id, from: Ns, to: Ns| {
            let (from, to) = (span.ts.max(from), end.min(to));
            if from < to {
                let (class, name, track) = (spec.class, span.name.clone(), span.track);
                out.push(SpanInStep { step, class, name, track, from, to });
            }
        };
        for step in steps.iter().filter(|step| process(step.thread) == of) {
            within(step.id, step.ts, step.end());
        }
        for part in elsewhere.get(&of).into_iter().flatten() {
            within(part.step, part.ts, part.ts.saturating_add(part.dur));
        }
    }
    out.sort_by_key(|span| (span.step, span.from, span.to));
    out
}

/// Of what spans were, where their names say so behind `: `: the one with most time, and that time, ns.
pub(crate) fn most_in<'a>(spans: impl Iterator<Item = &'a SpanInStep>) -> Option<(&'a str, f64)> {
    let mut details: BTreeMap<&str, f64> = BTreeMap::new();
    for span in spans {
        if let Some((_, detail)) = span.name.split_once(": ") {
            *details.entry(detail).or_default() += (span.to - span.from).0 as f64;
        }
    }
    details.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
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

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Id = Id(7);

    #[test]
    fn of_the_kernels_that_spans_name_the_one_with_most_time_is_told() {
        let span = |name: &str, from: i64, to: i64| SpanInStep {
            step: STEP,
            class: Class::KernelImbalance,
            name: name.into(),
            track: TrackId(1),
            from: Ns(from),
            to: Ns(to),
        };
        let spans = [
            span("kernel_imbalance", 0, 900),
            span("kernel_imbalance: a(std::pair: b)", 0, 30),
            span("kernel_imbalance: z()", 0, 40),
            span("kernel_imbalance: a(std::pair: b)", 50, 80),
        ];
        assert_eq!(most_in(spans.iter()), Some(("a(std::pair: b)", 60.0)));
        assert_eq!(most_in(spans[..3].iter()), Some(("z()", 40.0)));
        assert_eq!(most_in(spans[..1].iter()), None);
    }

    fn entity(id: u32, kind: EntityKind, parent: Option<u32>) -> Entity {
        Entity {
            id: EntityId(id),
            kind,
            key: format!("{id}").into(),
            name: "python".into(),
            number: Some(i64::from(id)),
            parent: parent.map(EntityId),
            from: None,
            to: None,
        }
    }

    /// A worker's step of 10 ms that waits for a thread of its engine, which collects garbage from 3 to 6 ms, as a third
    /// process does that has nothing to do with it.
    #[test]
    fn a_pause_of_another_process_counts_while_a_step_waited_for_that_process() {
        let mut rows = Rows::default();
        for (process, thread) in [(1, 11), (2, 12), (3, 13)] {
            rows.entity.push(entity(process, EntityKind::Process, None));
            rows.entity.push(entity(thread, EntityKind::Thread, Some(process)));
        }
        let mut lanes = gpuwhy_schema::Lanes::default();
        for thread in [12, 13] {
            let lane = gpuwhy_schema::Lane::spans("gc", gpuwhy_schema::Discipline::Nested);
            let track = lanes.track(EntityId(thread), None, lane, gpuwhy_schema::SourceId(1));
            let (id, ts, dur) = (Id(u64::from(thread)), Ns::millis(3), Some(Ns::millis(3)));
            rows.span.push(Span { id, ts, dur, track, parent: None, name: "gc".into() });
        }
        lanes.drain(&mut rows);
        let step = Step {
            id: STEP,
            ts: Ns::ZERO,
            dur: Ns::millis(10),
            thread: EntityId(11),
            series: None,
            rank: None,
            name: "step".into(),
            size: None,
            ran: None,
            expected: Default::default(),
        };
        let part = |from, to, thread: u32, kind, blame: Option<u32>| Part {
            step: STEP,
            ts: Ns::millis(from),
            dur: Ns::millis(to - from),
            kind,
            thread: EntityId(thread),
            blame: blame.map(EntityId),
            hops: 1,
        };
        let of = |parts: &[Part]| {
            let spans = spans_in_steps(&rows, &[&step], parts);
            spans.iter().map(|s| (s.from.0 / 1_000_000, s.to.0 / 1_000_000)).collect::<Vec<_>>()
        };
        let waits = part(1, 5, 11, PartKind::Gil, Some(12));
        assert_eq!(of(std::slice::from_ref(&waits)), [(3, 5)]);
        let runs = part(5, 8, 12, PartKind::Run, None);
        assert_eq!(of(&[waits, runs]), [(3, 5), (5, 6)]);
        assert_eq!(of(&[part(0, 10, 11, PartKind::Run, None)]), []);
    }
}
