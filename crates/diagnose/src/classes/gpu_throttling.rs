//! `gpu_throttling`: the GPU did the same work more slowly.

use gpuwhy_schema::{Class, PartKind, names};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::{Evidence, Statements};
use crate::gpu::{Gpu, GpuEvidence, Lowered};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "The same kernels take longer, all of them by about the same share.",
    takes: &[Takes::all(PartKind::Gpu), Takes::all(PartKind::GpuThrottled)],
    readings: &[
        names::SM_CLOCK,
        names::GPU_TEMPERATURE,
        names::GPU_POWER,
        names::THROTTLED_POWER,
        names::THROTTLED_THERMAL,
        names::THROTTLED_SW_THERMAL,
        names::THROTTLED_HW_THERMAL,
        names::THROTTLED_POWER_BRAKE,
        names::THROTTLED_SYNC_BOOST,
        names::THROTTLED_BOARD,
        names::THROTTLED_RELIABILITY,
    ],
    evidence: "For it: kernels that took longer, a clock of the multiprocessors below what it was before, \
               and the driver's counters of how long and why it was held down. Against it: a clock that \
               did not change; where no clock was recorded, the class is only suspected.",
    verify: Verify {
        culprit: None,
        otherwise: "compare the clock and its limit reasons: `nvidia-smi -q -d CLOCK,PERFORMANCE`",
    },
    fooled_by: "More work on the GPU than usual, where no clock was recorded. Kernels that wait for \
                memory do not get slower as their clock does.",
    statements,
    contradicted,
    trust,
    ..ClassSpec::new(Class::GpuThrottling)
};

/// Why a clock was held down, by the counter that says for how long.
const HELD_DOWN: &[(&str, &str)] = &[
    (names::THROTTLED_POWER, "its power cap"),
    (names::THROTTLED_THERMAL, "its temperature"),
    (names::THROTTLED_SW_THERMAL, "the driver, to cool it"),
    (names::THROTTLED_HW_THERMAL, "the hardware, to cool it"),
    (names::THROTTLED_POWER_BRAKE, "the power supply's brake"),
    (names::THROTTLED_SYNC_BOOST, "the clocks of others in its group"),
    (names::THROTTLED_BOARD, "a limit of its board"),
    (names::THROTTLED_RELIABILITY, "its voltage limit"),
];

/// A clock that was held down for a smaller share of the time is not worth a statement.
const HELD_DOWN_FOR: f64 = 0.01;
/// How far the class is trusted where no clock was recorded: slower kernels, another process that was
/// not seen, and more work all look alike then.
const WITHOUT_CLOCK: f64 = 0.4;

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    incident.of_each_gpu(out, clock);
    if lacks_clock(incident) {
        out.contradicting.push(Evidence::of("no clock of the GPU was recorded"));
    }
}

/// A GPU whose clock was not lowered is not throttled, however long its work took.
fn contradicted(incident: &Incident<'_>) -> &'static [PartKind] {
    match incident.readings.is_lowered(incident.from, incident.to) {
        Some(false) => &[PartKind::Gpu],
        _ => &[],
    }
}

fn trust(incident: &Incident<'_>) -> f64 {
    if lacks_clock(incident) { WITHOUT_CLOCK } else { 1.0 }
}

/// Whether most of the excess is the GPU's own work and no clock says why it took longer.
fn lacks_clock(incident: &Incident<'_>) -> bool {
    incident.readings.is_lowered(incident.from, incident.to).is_none()
        && incident.growth(PartKind::Gpu) > 0.5 * incident.excess
}

fn clock(gpu: &Gpu, evidence: &mut GpuEvidence<'_>) {
    if let Some(clock) = gpu.counter(names::SM_CLOCK)
        && let Some(lowered) = Lowered::of(clock, evidence.before(), evidence.during())
    {
        let Lowered { before, during, share } = lowered;
        let part = match share {
            0.01..0.75 => format!(" for {:.0} % of the time", 100.0 * share),
            _ => String::new(),
        };
        let says = format!("its clock was {during:.0} MHz{part}, {before:.0} MHz before");
        if lowered.matters() {
            evidence.supports("counter", clock.track, &says);
        } else {
            evidence.contradicts(Some(("counter", clock.track)), &says);
        }
    }
    for (name, why) in HELD_DOWN {
        let Some(total) = gpu.counter(name) else { continue };
        let held = total.growth(evidence.during());
        let whole = (evidence.during().1 - evidence.during().0).0 as f64;
        if held > HELD_DOWN_FOR * whole {
            let (held, whole) = (held / 1e9, whole / 1e9);
            let says = format!("its clock was held down by {why} for {held:.2} s of {whole:.2} s");
            evidence.supports("counter", total.track, &says);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Measure, Ns};

    use super::*;
    use crate::classes::scene::Scene;
    use crate::gpu::Readings;

    #[test]
    fn a_lowered_clock_and_who_held_it_down() {
        Scene::new()
            .counter(names::SM_CLOCK, Measure::Gauge, &[(8, 1980.0), (9, 1980.0), (11, 1185.0)])
            .counter(names::THROTTLED_POWER, Measure::Total, &[(1, 5e9), (12, 6.9e9)])
            .check(
                Class::GpuThrottling,
                &[
                    "gpu 0: its clock was 1185 MHz, 1980 MHz before",
                    "gpu 0: its clock was held down by its power cap for 1.90 s of 2.30 s",
                ],
                &[],
            );
    }

    #[test]
    fn a_clock_that_was_lowered_for_a_part_of_a_longer_incident() {
        let mut readings = vec![(8, 1980.0), (9, 1980.0)];
        // Ten to twelve s is the incident.
        readings.extend([(10, 1980.0), (11, 990.0)]);
        Scene::new().counter(names::SM_CLOCK, Measure::Gauge, &readings).check(
            Class::GpuThrottling,
            &["gpu 0: its clock was 990 MHz for 50 % of the time, 1980 MHz before"],
            &[],
        );
    }

    #[test]
    fn a_clock_that_did_not_change_speaks_against_throttling() {
        Scene::new().counter(names::SM_CLOCK, Measure::Gauge, &[(8, 1980.0), (11, 1980.0)]).check(
            Class::GpuThrottling,
            &[],
            &["gpu 0: its clock was 1980 MHz, 1980 MHz before"],
        );
    }

    #[test]
    fn a_clock_is_lowered_or_not_or_was_not_recorded() {
        let is_lowered = |during: f64| {
            let clock = [(8, 1980.0), (9, 1980.0), (11, during)];
            let scene = Scene::new().counter(names::SM_CLOCK, Measure::Gauge, &clock);
            scene.readings().is_lowered(Ns::secs(10), Ns::secs(12))
        };
        assert_eq!(is_lowered(1185.0), Some(true));
        assert_eq!(is_lowered(1975.0), Some(false));
        assert_eq!(Readings::default().is_lowered(Ns::secs(10), Ns::secs(12)), None);
    }
}
