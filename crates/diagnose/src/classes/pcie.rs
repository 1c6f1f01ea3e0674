//! `pcie`: copies took longer at the same size.

use gpuwhy_schema::{Class, PartKind, names};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::Statements;
use crate::gpu::{Gpu, GpuEvidence};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Copies between host and GPU take longer at the same size, and kernels do not; or, in a \
                 profile of another tool, there are more of them, or pages of managed memory move.",
    takes: &[Takes::all(PartKind::Copy), Takes::all(PartKind::PageFault)],
    readings: &[
        names::PCIE_REPLAY,
        names::PCIE_RECOVERY,
        names::PCIE_CORRECTABLE,
        names::PCIE_NON_FATAL,
        names::PCIE_LINK_GEN,
        names::PCIE_LINK_GEN_MAX,
        names::PCIE_LINK_WIDTH,
        names::PCIE_LINK_WIDTH_MAX,
    ],
    evidence: "For it: copies that grew while no kernel ran or a call waited for them, the link's error counters, and a link that \
               runs below its highest generation or width. Against it: a link without errors.",
    verify: Verify {
        culprit: None,
        otherwise: "look at the link's errors, speed and width: `nvidia-smi -q -d PCIE`, `lspci -vv`",
    },
    fooled_by: "More to copy than usual; pageable memory, whose copies wait for the host's CPU; a link \
                that sleeps at a low generation while it is idle.",
    statements,
    ..ClassSpec::new(Class::Pcie)
};

/// Errors of the link, by the counter that counts them.
const ERRORS: &[(&str, &str)] = &[
    (names::PCIE_REPLAY, "packets were sent again over PCIe"),
    (names::PCIE_RECOVERY, "times its PCIe link left service to recover"),
    (names::PCIE_CORRECTABLE, "errors of its PCIe link were corrected"),
    (names::PCIE_NON_FATAL, "errors of its PCIe link were not corrected"),
];

/// What a link runs at, what it could run at, and how that is said.
const SPEEDS: &[(&str, &str, &str)] = &[
    (names::PCIE_LINK_GEN, names::PCIE_LINK_GEN_MAX, "at generation"),
    (names::PCIE_LINK_WIDTH, names::PCIE_LINK_WIDTH_MAX, "on lanes"),
];

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    incident.of_each_gpu(out, link);
}

fn link(gpu: &Gpu, evidence: &mut GpuEvidence<'_>) {
    let mut clean = true;
    for (name, what) in ERRORS {
        let Some(total) = gpu.counter(name) else { continue };
        let (before, during) = (total.growth(evidence.before()), total.growth(evidence.during()));
        if during > 0.0 {
            clean = false;
            let says = format!("{during:.0} {what}, {before:.0} before");
            evidence.supports("counter", total.track, &says);
        }
    }
    for (now, most, what) in SPEEDS {
        let (Some(now), Some(most)) = (gpu.counter(now), gpu.counter(most)) else { continue };
        if let (Some(value), Some(highest)) = (now.last(), most.last())
            && value < highest
        {
            clean = false;
            let says = format!("its PCIe link runs {what} {value:.0} of {highest:.0}");
            evidence.supports("counter", now.track, &says);
        }
    }
    if clean && gpu.counter(names::PCIE_REPLAY).is_some() {
        evidence.contradicts(None, "its PCIe link reported no error");
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::Measure;

    use super::*;
    use crate::classes::scene::Scene;

    #[test]
    fn a_link_that_sends_again_and_one_that_is_clean() {
        Scene::new()
            .counter(names::PCIE_REPLAY, Measure::Total, &[(1, 7.0), (11, 5319.0)])
            .counter(names::PCIE_LINK_GEN, Measure::Gauge, &[(1, 3.0)])
            .counter(names::PCIE_LINK_GEN_MAX, Measure::Gauge, &[(1, 5.0)])
            .check(
                Class::Pcie,
                &[
                    "gpu 0: 5312 packets were sent again over PCIe, 0 before",
                    "gpu 0: its PCIe link runs at generation 3 of 5",
                ],
                &[],
            );
        Scene::new().counter(names::PCIE_REPLAY, Measure::Total, &[(1, 7.0)]).check(
            Class::Pcie,
            &[],
            &["gpu 0: its PCIe link reported no error"],
        );
    }
}
