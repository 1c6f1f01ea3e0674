//! `gc_pause`: a garbage collector or another stop-the-world pause held the program's threads.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, NamedSpans, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Single steps take longer by about the same time, at regular intervals or the more often \
                 the more objects the program makes, and nothing else of the machine is busy.",
    spans: Some(NamedSpans {
        names: &["gc", "GC", "gc.collect", "gc_collect", "GC pause", "Garbage Collection"],
        instead_of: &[PartKind::Run, PartKind::Lock, PartKind::Timer, PartKind::Unknown],
    }),
    evidence: "For it: spans of the step's process whose name is that of a pause (`gc`, `gc.collect`, …) \
               and which lie in slow steps: of CPython, if the interpreter has static probes (as Debian's \
               has), else as programs and profilers mark them. Without such spans it \
               is never named.",
    verify: Verify {
        culprit: None,
        otherwise: "freeze or switch off the collector and record again: `gc.freeze()` or `gc.disable()` \
                    in Python",
    },
    fooled_by: "A pause that is not marked, as by an interpreter without static probes, which looks like \
                `engine_software`. A marked pause in which \
                the collector itself waited for a CPU or a disk: that time points to them.",
    ..ClassSpec::new(Class::GcPause)
};

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{
        EntityId, EntityKind, Id, Lane, Lanes, Ns, Part, Rows, Span, TrackId, names,
    };

    use super::*;
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
    fn judged(kind: PartKind, span: &str) -> Finding {
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
            steps.push(Step { id, ts, dur, thread: own, rank, name, size: None });
            if n >= USUAL {
                let (id, ts, dur) = (Id::new(1, n), ts + Ns::millis(4), Some(Ns::millis(8)));
                rows.span.push(Span { id, ts, dur, track, parent: None, name: span.into() });
            }
        }
        lanes.drain(&mut rows);
        let all: Vec<&Step> = steps.iter().collect();
        let spans = spans_in_steps(&rows, &all);
        let of_steps =
            StepRows { parts: steps.iter().flat_map(|s| parts(s, kind)).collect(), spans };
        let steps = Steps::from(steps);
        let found = incidents(&steps, &Detection::default());
        assert_eq!(found.len(), 1, "{found:?}");
        let incident = found[0].where_it_hung(&steps);
        let context = JudgeContext::new(&rows);
        judge(&steps, &incident, &of_steps, &context, &Judgement::default())
    }

    #[test]
    fn time_in_a_marked_pause_is_the_collectors() {
        for name in ["gc", "gc.collect"] {
            let finding = judged(PartKind::Run, name);
            assert_eq!(finding.class, "gc_pause", "{}", finding.summary);
            assert!((finding.causes[0].excess_ms - 8.0).abs() < 1e-6, "{}", finding.summary);
            let says = &finding.causes[0].evidence_for[0].says;
            let expected = format!(
                "spans `{name}`: 0.000 ms a step before, 8.000 ms during; in 40 of 40 slow steps"
            );
            assert_eq!(*says, expected);
        }
        // A thread that was held, of which nothing else is known.
        assert_eq!(judged(PartKind::Unknown, "gc").class, "gc_pause");
    }

    #[test]
    fn without_a_span_of_that_name_the_class_is_never_named() {
        let finding = judged(PartKind::Run, "forward");
        assert_eq!(finding.causes[0].class, "engine_software", "{}", finding.summary);
        let named = |says: &str| says.contains("gc_pause");
        assert!(finding.causes.iter().all(|cause| cause.class != "gc_pause"));
        assert!(!finding.ruled_out.iter().any(|e| named(&e.says)), "{:?}", finding.ruled_out);
    }

    #[test]
    fn a_collector_that_waits_for_a_cpu_is_slowed_by_who_has_it() {
        assert_eq!(judged(PartKind::Runnable, "gc").class, "cpu_contention");
    }
}
