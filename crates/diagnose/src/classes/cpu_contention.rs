//! `cpu_contention`: somebody else ran where this work was ready to run.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps take longer and vary more while other processes are busy on the same CPUs; the \
                 GPU idles between kernels although the host seems to have work.",
    takes: &[Takes::all(PartKind::Runnable)],
    evidence: "For it: `state` rows of the step's threads that are runnable, and the `occupant` tracks \
               of CPUs, which say who ran meanwhile. \
               Who is to blame: of those who ran meanwhile, who began to take more of the CPUs than before \
             (`cpu_time` of processes); the others were displaced. Against it: nobody in particular was seen \
             on the CPU. Where who took more works for the steps itself, \
             nobody of those who did accounts for enough, or nobody did and steps that are measured by their batches took \
             less than twice as long, the confidence is multiplied by 0.4: the work may be in its own \
             way.",
    verify: Verify {
        culprit: Some(
            "move it away for a while and record again: `taskset -acp <other CPUs> {pid}`, or pause it: \
             `kill -STOP {pid}; sleep 5; kill -CONT {pid}`",
        ),
        otherwise: Verify::COMPARE,
    },
    fooled_by: "Work that takes more of the CPUs because it has more to do, on as many CPUs as it has threads.",
    has_culprit: true,
    by_demand: true,
    ..ClassSpec::new(Class::CpuContention)
};
