//! `gc_pause`: a garbage collector or another stop-the-world pause held the program's threads.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, NamedSpans, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Single steps take longer by about the same time, at regular intervals or the more often \
                 the more objects the program makes, and nothing else of the machine is busy.",
    spans: Some(NamedSpans {
        names: &["gc", "GC", "gc.collect", "gc_collect", "GC pause", "Garbage Collection"],
        detailed: false,
        instead_of: &[
            PartKind::Run,
            PartKind::Lock,
            PartKind::Gil,
            PartKind::Timer,
            PartKind::Unknown,
        ],
    }),
    evidence: "For it: spans of the step's process, or of one that it waited for, whose name is that of a pause (`gc`, `gc.collect`, …) \
               and which lie in slow steps: of CPython, if the interpreter has static probes (as Debian's \
               has) or the program uses PyTorch, else as programs and profilers mark them. Without such spans it \
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
    use gpuwhy_schema::PartKind;

    use crate::classes::span_scene::judged;

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
