//! `kernel_imbalance`: launches waited for a few of their blocks.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, NamedSpans, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Kernels take longer although the GPU runs at full clock and nobody else uses it, often with the data: \
                 long sequences beside short ones in a batch, experts that get most tokens.",
    spans: Some(NamedSpans {
        names: &["kernel_imbalance"],
        detailed: true,
        instead_of: &[PartKind::Gpu, PartKind::Unknown],
    }),
    evidence: "For it: spans of the step's process called `kernel_imbalance` that lie in slow steps: times in which less \
               than half as many blocks of a launch ran as before, as the device probe `tail` counts them \
               (`gpuwhy probe new DIR --tool tail`, and `gpuwhy record -- gpuwhy probe run --object DIR/probe.bpf.o -- \
               COMMAND`). Without such spans it is never named.",
    verify: Verify {
        culprit: None,
        otherwise: "see which blocks are late: the probe `blocks` tells when each ran, `work` which threads do more; \
                    then share the work out evenly, sort it so that the longest comes first, or use smaller blocks",
    },
    fooled_by: "Kernels that follow each other without a gap or run side by side, which count as one. Threads of a \
                block that end before others. A block that is late because its SM is shared with another process.",
    ..ClassSpec::new(Class::KernelImbalance)
};

#[cfg(test)]
mod tests {
    use gpuwhy_schema::PartKind;

    use crate::classes::span_scene::judged;

    #[test]
    fn time_in_which_few_blocks_run_is_not_the_kernels_own_work() {
        let finding = judged(PartKind::Gpu, "kernel_imbalance");
        assert_eq!(finding.class, "kernel_imbalance", "{}", finding.summary);
        assert!((finding.causes[0].excess_ms - 8.0).abs() < 1e-6, "{}", finding.summary);
    }

    #[test]
    fn the_kernel_that_such_spans_name_is_told() {
        let finding = judged(PartKind::Gpu, "kernel_imbalance: gemm<float>(float*)");
        assert_eq!(finding.class, "kernel_imbalance", "{}", finding.summary);
        let says: Vec<&str> =
            finding.causes[0].evidence_for.iter().map(|evidence| evidence.says.as_str()).collect();
        let wanted = "most of it in `gemm<float>(float*)`, 8.000 ms a slow step";
        assert!(says.iter().any(|says| says.ends_with(wanted)), "{says:?}");
        // A name that only begins like it is none.
        let other = judged(PartKind::Gpu, "kernel_imbalance of mine");
        assert_ne!(other.class, "kernel_imbalance");
    }

    #[test]
    fn without_such_a_span_the_class_is_never_named() {
        let finding = judged(PartKind::Gpu, "forward");
        assert!(finding.causes.iter().all(|cause| cause.class != "kernel_imbalance"));
        assert_ne!(finding.class, "kernel_imbalance");
    }

    #[test]
    fn a_gpu_that_does_somebody_elses_work_is_contended_also_while_few_blocks_run() {
        assert_eq!(judged(PartKind::GpuQueue, "kernel_imbalance").class, "gpu_contention");
    }
}
