//! `gpu_contention`: the GPU did somebody else's work.

use gpuwhy_schema::{Class, Ns, PartKind, names};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::Statements;
use crate::gpu::{Gpu, GpuEvidence, User};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Kernels and waits for the GPU take longer while another process uses the same GPU.",
    takes: &[Takes::all(PartKind::GpuQueue)],
    readings: &[names::PROCESS_SM_UTILIZATION, names::PROCESS_ENGINE_TIME],
    evidence: "For it: whose context had the GPU while the step waited for it, by the driver's log of context switches \
               (`--gpu-switches`), or kernels of another process on it; and the driver's readings of how much of the \
               multiprocessors or engines each process had.",
    verify: Verify {
        culprit: Some(
            "pause it and record again: `kill -STOP {pid}; sleep 5; kill -CONT {pid}`; `nvidia-smi pmon` \
             shows who uses the GPU",
        ),
        otherwise: Verify::COMPARE,
    },
    fooled_by: "The driver's readings of users are averages over up to a second. Processes under MPS run \
                side by side, and not in turns.",
    statements,
    ..ClassSpec::new(Class::GpuContention)
};

/// A user's share that grew by no more than this, percent, is noise.
const NOISE: f64 = 1.0;

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    incident.of_each_gpu(out, users);
}

fn users(gpu: &Gpu, evidence: &mut GpuEvidence<'_>) {
    for User { name, readings } in gpu.users() {
        let before = readings.mean(evidence.before()).unwrap_or(0.0);
        let during = readings.mean(evidence.during());
        if let Some(during) = during.filter(|during| *during > before + NOISE) {
            let says =
                format!("{name} had {during:.0} % of its multiprocessors, {before:.0} % before");
            evidence.supports("counter", readings.track, &says);
        }
    }
    for User { name, readings } in gpu.turns() {
        let before = readings.share(evidence.before()).unwrap_or(0.0);
        // The end of an incident is told within the second after it.
        let (from, to) = evidence.during();
        let during = readings.share((from, to.saturating_add(Ns::secs(1))));
        if let Some(during) = during.filter(|during| *during > before + NOISE) {
            let says = format!("{name} had it for {during:.0} % of the time, {before:.0} % before");
            evidence.supports("counter", readings.track, &says);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::scene::Scene;

    #[test]
    fn who_had_the_gpu_for_longer_than_before_is_told() {
        Scene::new()
            .turns(7, &[(8, 0.9e9), (9, 0.9e9), (10, 0.9e9), (11, 0.5e9), (12, 0.5e9)])
            // It was not there before.
            .turns(8, &[(11, 0.4e9), (12, 0.6e9), (13, 0.0)])
            .check(
                Class::GpuContention,
                &["gpu 0: gpuhog (pid 8) had it for 33 % of the time, 0 % before"],
                &[],
            );
    }
}
