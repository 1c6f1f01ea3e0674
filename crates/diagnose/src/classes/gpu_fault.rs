//! `gpu_fault`: the GPU reported an error.

use gpuwhy_schema::{Class, Ns, PartKind, names};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::Statements;
use crate::gpu::{Gpu, GpuEvidence};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps stop for seconds, or for good, after an error of the GPU.",
    takes: &[Takes::all(PartKind::GpuFault)],
    readings: &[names::GPU_EVENTS],
    evidence: "For it: marks of Xids and of lost GPUs in the driver's readings, just before or during the \
               incident, from which on the device did nothing for the step.",
    verify: Verify {
        culprit: None,
        otherwise: "read what the driver says of it: `dmesg | grep -i xid`, `nvidia-smi -q`",
    },
    fooled_by: "An error that the driver reports late; Xids of another program that did not stop this one.",
    statements,
    ..ClassSpec::new(Class::GpuFault)
};

/// Events this long before an incident may have begun it.
const BEFORE: Ns = Ns::secs(1);
/// Events of a GPU that are named at most.
const NAMED: usize = 5;

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    incident.of_each_gpu(out, |gpu, evidence| events(gpu, incident, evidence));
}

fn events(gpu: &Gpu, incident: &Incident<'_>, evidence: &mut GpuEvidence<'_>) {
    let (from, to) = (incident.from.saturating_sub(BEFORE), evidence.during().1);
    for event in gpu.events(from, to).take(NAMED) {
        let after = event.ts - incident.from;
        let says = match (event.name.as_str(), event.value) {
            ("xid", Some(number)) => {
                format!("Xid {number:.0}, {after} after the onset: {}", meaning(number as i64))
            }
            (name, _) => format!("{name}, {after} after the onset"),
        };
        evidence.supports("mark", event.track, &says);
    }
}

/// What an Xid, the number that NVIDIA's driver gives an error, means, as far as that helps
/// (docs.nvidia.com/deploy/xid-errors).
fn meaning(xid: i64) -> &'static str {
    match xid {
        13 => "an exception of the graphics engine: a fault of the program, mostly",
        31 => "a page fault: the program touched memory that is not its own",
        43 => "a program's work was stopped after a fault of its own",
        45 => "a program's work was cleared away",
        48 => "an error of its memory that could not be corrected",
        61 | 62 => "its microcontroller halted",
        63 => "a row of its memory will be replaced",
        64 => "a row of its memory could not be replaced",
        74 => "an error of NVLink",
        79 => "it fell off the bus",
        92 => "many errors of its memory were corrected",
        94 => "an error of its memory, contained: one program lost",
        95 => "an error of its memory, not contained: the GPU must be reset",
        119 | 120 => "its system processor does not answer",
        _ => "see NVIDIA's list of Xids",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::scene::Scene;

    #[test]
    fn an_xid_is_stated_with_its_meaning() {
        Scene::new().event(10_100, "xid", Some(79.0)).check(
            Class::GpuFault,
            &["gpu 0: Xid 79, 100.000 ms after the onset: it fell off the bus"],
            &[],
        );
    }
}
