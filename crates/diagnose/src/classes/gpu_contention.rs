//! `gpu_contention`: the GPU did somebody else's work.

use gpuwhy_schema::{Class, PartKind, names};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::Statements;
use crate::gpu::{Gpu, GpuEvidence, User};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Kernels and waits for the GPU take longer while another process uses the same GPU.",
    takes: &[Takes::all(PartKind::GpuQueue)],
    readings: &[names::PROCESS_SM_UTILIZATION],
    evidence: "For it: kernels of another process on the same GPU while the step waited for it, and the \
               driver's readings of how much of the multiprocessors each process used.",
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
}
