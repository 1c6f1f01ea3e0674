//! `launch_latency`: launches were under way, and the GPU had nothing of the program to do.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, NamedSpans, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Kernels take as long as ever and the GPU runs at full clock, but steps wait longer for it: between a \
                 launch on the host and its first block the GPU has nothing of the program to do.",
    spans: Some(NamedSpans {
        names: &["launch_latency"],
        detailed: true,
        // Threads wait for their GPU in a loop, in short sleeps, or in a call of its driver.
        instead_of: &[PartKind::Gpu, PartKind::Run, PartKind::Timer, PartKind::Unknown],
    }),
    evidence: "For it: spans of the step's process called `launch_latency` that lie in slow steps: times of a millisecond \
               and more in which a launch had been called for and no block of the program ran, as the device probe \
               `launchlate` tells them (`gpuwhy probe new DIR --tool launchlate`, and `gpuwhy record -- gpuwhy probe run \
               --object DIR/probe.bpf.o -- COMMAND`). Without such spans it is never named.",
    verify: Verify {
        culprit: None,
        otherwise: "see what a stream waits for before the launch: an event of another stream, a copy, a call of the host \
                    (`cuLaunchHostFunc`), or another process on the same GPU (`nvidia-smi pmon`); a recording with CUPTI \
                    has these beside each other",
    },
    fooled_by: "Kernels without the probe (machine code without PTX, libraries), copies and memsets, which count as \
                nothing to do. Another process whose work is not recorded holds the GPU: then it is that. A thread \
                that computes, or sleeps for reasons of its own, while a launch of its is late. Launches of graphs and those whose call is not known have no such span.",
    ..ClassSpec::new(Class::LaunchLatency)
};

#[cfg(test)]
mod tests {
    use gpuwhy_schema::PartKind;

    use crate::classes::span_scene::judged;

    #[test]
    fn time_between_a_launch_and_its_begin_is_not_the_kernels_own_work() {
        for kind in [PartKind::Gpu, PartKind::Run, PartKind::Timer, PartKind::Unknown] {
            let finding = judged(kind, "launch_latency");
            assert_eq!(finding.class, "launch_latency", "{}", finding.summary);
            assert!((finding.causes[0].excess_ms - 8.0).abs() < 1e-6, "{}", finding.summary);
        }
    }

    #[test]
    fn a_copy_or_somebody_elses_work_that_is_seen_in_it_is_that() {
        assert_eq!(judged(PartKind::Copy, "launch_latency").class, "pcie");
        assert_eq!(judged(PartKind::GpuQueue, "launch_latency").class, "gpu_contention");
    }
}
