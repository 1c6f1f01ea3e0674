//! Managed memory that moves only when it is needed: kernels that wait for it, and devices that do.
//!
//! Memory that the program asked for ahead of its use is nobody's fault, whatever its copies cost.

use gpuwhy_schema::Migration;

use super::Statement;
use crate::variability::{Managed, ManagedDevice, Report, StalledKernel};

/// Kernels are mentioned if they wait for this share of their own time,
const OF_KERNEL: f64 = 0.1;
/// or of the recording,
const OF_RECORDING: f64 = 0.01;
/// and no less than this, ms.
const LEAST_MS: f64 = 0.1;
/// Copies of memory to the host that are worth mentioning, as a share of the recording.
const TO_HOST: f64 = 0.05;
/// The most kernels that are mentioned.
const LISTED: usize = 3;

/// The kernels and devices that wait.
pub fn statements(report: &Report) -> Vec<Statement> {
    let Some(managed) = &report.managed else { return Vec::new() };
    let seconds_ms = report.seconds * 1e3;
    let waits = |kernel: &&StalledKernel| {
        kernel.stalled_ms >= LEAST_MS
            && (kernel.stalled_ms >= OF_KERNEL * kernel.total_ms
                || kernel.stalled_ms >= OF_RECORDING * seconds_ms)
    };
    let kernels = managed.kernels.iter().filter(waits).take(LISTED);
    let mut all: Vec<Statement> = kernels.map(|k| of_kernel(k, managed, report)).collect();
    for of in &managed.devices {
        let to_host = on_demand(of, managed, "host");
        if to_host.2 > TO_HOST * seconds_ms {
            let says = format!(
                "{} bytes of managed memory move back from {} on demand in {} pieces ({:.1} ms): the host \
                 uses what lies on the device",
                to_host.1,
                report.devices[of.device].device.label(),
                to_host.0,
                to_host.2
            );
            all.push(Statement { sql: sql(), ..Statement::new("managed_to_host", says) });
        }
    }
    all
}

fn sql() -> Option<String> {
    Some("select * from 'copy/*.parquet' where kind = 'managed'".into())
}

fn of_kernel(kernel: &StalledKernel, managed: &Managed, report: &Report) -> Statement {
    let name: String = kernel.name.chars().take(90).collect();
    let device = &report.devices[kernel.device].device;
    let faults = match kernel.page_faults {
        0 => String::new(),
        faults => format!("{faults} page faults, "),
    };
    let of = managed.devices.iter().find(|of| of.device == kernel.device);
    let ahead = of.map_or(0, |of| bytes_of(of, Migration::Prefetch));
    let evicted = of.map_or(0, |of| bytes_of(of, Migration::Eviction));
    let asked = match (ahead, managed.asked_ahead) {
        (0, Some(false)) => "; nothing asked for it ahead (cudaMemPrefetchAsync)".to_owned(),
        (0, _) => "; nothing was moved ahead of its use".to_owned(),
        (bytes, _) => format!("; {bytes} other bytes were asked for ahead"),
    };
    let room = match evicted {
        0 => String::new(),
        bytes => format!("; {bytes} bytes had to make room: it does not fit"),
    };
    let says = format!(
        "{name} waits {:.1} ms of its {:.1} ms ({} calls) on {} for managed memory: {faults}{} bytes moved on \
         demand{asked}{room}",
        kernel.stalled_ms,
        kernel.total_ms,
        kernel.kernels,
        device.label(),
        kernel.bytes,
    );
    Statement { sql: sql(), ..Statement::new("missing_prefetch", says) }
}

/// Copies, bytes and ms that moved on demand.
fn on_demand(of: &ManagedDevice, managed: &Managed, to: &str) -> (u64, u64, f64) {
    let demanded = |cause: &str| {
        [Migration::Fault, Migration::Speculative].iter().any(|c| c.as_str() == cause)
            || cause == Migration::Unknown.as_str() && managed.asked_ahead == Some(false)
    };
    let moved = of.moved.iter().filter(|moved| moved.to == to && demanded(moved.cause));
    moved.fold((0, 0u64, 0.0), |sum, moved| {
        (sum.0 + moved.copies, sum.1.saturating_add(moved.bytes), sum.2 + moved.ms)
    })
}

fn bytes_of(of: &ManagedDevice, cause: Migration) -> u64 {
    of.moved.iter().filter(|moved| moved.cause == cause.as_str()).map(|moved| moved.bytes).sum()
}
