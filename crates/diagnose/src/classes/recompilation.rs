//! `recompilation`: code was compiled within the work, for the first time or again.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, NamedSpans, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Single steps take longer by seconds, often where the size of a batch differs from those before \
                 (the last of an epoch, a longer sequence), and the next step of that size is as quick as any.",
    spans: Some(NamedSpans {
        names: &["recompilation", "compile"],
        detailed: false,
        instead_of: &[
            PartKind::Run,
            PartKind::Lock,
            PartKind::Gil,
            PartKind::Timer,
            PartKind::Peer,
            PartKind::Unknown,
        ],
    }),
    evidence: "For it: spans of the step's process called `recompilation` or `compile` that lie in slow steps, as the \
               hooks of `torch.compile` write them (the reason that PyTorch gives is a mark beside them), or as a \
               program marks them. Without such spans it is never named.",
    verify: Verify {
        culprit: None,
        otherwise: "see what was compiled: run with `TORCH_LOGS=recompiles`; then pad the batches to few sizes, \
                    mark the size as dynamic (`torch._dynamo.mark_dynamic`) or drop the last batch, and record again",
    },
    fooled_by: "Code that is compiled without `torch.compile` (Triton kernels of one's own, Numba, CUDA modules \
                loaded late), which looks like `engine_software`. A compilation that itself waited for a CPU or a \
                disk: that time points to them.",
    ..ClassSpec::new(Class::Recompilation)
};

#[cfg(test)]
mod tests {
    use gpuwhy_schema::PartKind;

    use crate::classes::span_scene::judged;

    #[test]
    fn time_in_which_code_was_compiled_is_not_the_programs_own_work() {
        for name in ["recompilation", "compile"] {
            let finding = judged(PartKind::Run, name);
            assert_eq!(finding.class, "recompilation", "{}", finding.summary);
            assert!((finding.causes[0].excess_ms - 8.0).abs() < 1e-6, "{}", finding.summary);
        }
    }

    #[test]
    fn without_such_a_span_the_class_is_never_named() {
        let finding = judged(PartKind::Run, "forward");
        assert_eq!(finding.causes[0].class, "engine_software", "{}", finding.summary);
        assert!(finding.causes.iter().all(|cause| cause.class != "recompilation"));
    }

    #[test]
    fn a_compilation_that_waits_for_a_cpu_is_slowed_by_who_has_it() {
        assert_eq!(judged(PartKind::Runnable, "recompilation").class, "cpu_contention");
    }
}
