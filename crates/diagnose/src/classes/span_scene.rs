//! A scene for tests of classes that spans point to by their names.

use gpuwhy_schema::{
    EntityId, EntityKind, Id, Lane, Lanes, Ns, Part, PartKind, Rows, Span, TrackId, names,
};

use crate::detect::{Detection, Step, Steps, incidents};
use crate::spans::{StepRows, spans_in_steps};
use crate::verdict::{Finding, JudgeContext, Judgement, judge};

const STEPS: u64 = 240;
const USUAL: u64 = 200;

/// Where a step's 10 ms go; a slow one takes 8 ms longer, in parts of `kind`.
fn parts(step: &Step, kind: PartKind) -> Vec<Part> {
    let slow = step.dur - Ns::millis(10);
    let list = [(PartKind::Run, Ns::millis(4)), (kind, slow), (PartKind::Gpu, Ns::millis(6))];
    let mut at = step.ts;
    let part = |(kind, dur)| {
        let (ts, blame) = (at, (kind == PartKind::Runnable).then_some(step.thread));
        at += dur;
        Part { step: step.id, ts, dur, kind, thread: step.thread, blame, hops: 0 }
    };
    list.into_iter().map(part).collect()
}

/// Steps of a thread of which the last ones are slow by 8 ms of `kind`, and in each of these a span
/// that another thread of the process marks for just that time.
pub(super) fn judged(kind: PartKind, span: &str) -> Finding {
    let (mut lanes, mut rows) = (Lanes::default(), Rows::default());
    let source = lanes.source("test", "test", "0", "");
    let process = lanes.entity(EntityKind::Process, "job", |_| {});
    let mut thread =
        |key: &str| lanes.entity(EntityKind::Thread, key, |e| e.parent = Some(process));
    let (own, collector): (EntityId, EntityId) = (thread("own"), thread("collector"));
    let lane = Lane::spans(names::STEPS, gpuwhy_schema::Discipline::Overlap);
    let track: TrackId = lanes.track(collector, None, lane, source);
    let mut steps = Vec::new();
    for n in 0..STEPS {
        let (id, ts) = (Id::new(0, n), Ns::millis(50 * n as i64));
        let dur = Ns::millis(if n < USUAL { 10 } else { 18 });
        let (rank, name) = (None, "step".into());
        steps.push(Step {
            id,
            ts,
            dur,
            thread: own,
            series: None,
            rank,
            name,
            size: None,
            ran: None,
            expected: Default::default(),
        });
        if n >= USUAL {
            let (id, ts, dur) = (Id::new(1, n), ts + Ns::millis(4), Some(Ns::millis(8)));
            rows.span.push(Span { id, ts, dur, track, parent: None, name: span.into() });
        }
    }
    lanes.drain(&mut rows);
    let all: Vec<&Step> = steps.iter().collect();
    let parts: Vec<Part> = steps.iter().flat_map(|s| parts(s, kind)).collect();
    let spans = spans_in_steps(&rows, &all, &parts);
    let of_steps = StepRows { parts, spans, ..StepRows::default() };
    let steps = Steps::from(steps);
    let found = incidents(&steps, &Detection::default());
    assert_eq!(found.len(), 1, "{found:?}");
    let incident = found[0].where_it_hung(&steps);
    let context = JudgeContext::new(&rows);
    judge(&steps, &incident, &of_steps, &context, &Judgement::default())
}
