//! `cpu_contention`: somebody else ran where this work was ready to run.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::{Evidence, Statements};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps take longer and vary more while other processes are busy on the same CPUs; the \
                 GPU idles between kernels although the host seems to have work.",
    takes: &[Takes::all(PartKind::Runnable), Takes::all(PartKind::Steal)],
    evidence: "For it: `state` rows of the step's threads that are runnable, and the `occupant` tracks \
               of CPUs, which say who ran meanwhile; the `steal` counters of CPUs on a virtual machine. \
               Who is to blame: of those who ran meanwhile, who began to take more of the CPUs than before \
             (`cpu_time` of processes); the others were displaced. Against it: nobody in particular was seen \
             on the CPU.",
    verify: Verify {
        culprit: Some(
            "move it away for a while and record again: `taskset -acp <other CPUs> {pid}`, or pause it: \
             `kill -STOP {pid}; sleep 5; kill -CONT {pid}`",
        ),
        otherwise: Verify::COMPARE,
    },
    fooled_by: "Threads of the workload itself that compete for its own CPUs. What the hypervisor took is told \
                as its doing; which other virtual machine had it is not seen from inside of one.",
    has_culprit: true,
    by_demand: true,
    statements,
    ..ClassSpec::new(Class::CpuContention)
};

/// What the hypervisor took is worth a statement from this share of the excess on.
const WORTH: f64 = 0.1;

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    let taken = incident.growth(PartKind::Steal);
    if taken >= WORTH * incident.excess && taken > 0.0 {
        out.supporting.push(Evidence::of(format!(
            "the hypervisor took {:.3} ms a step more: it gave the CPUs to another virtual machine, or this one is \
             limited",
            taken / 1e6
        )));
    }
}
