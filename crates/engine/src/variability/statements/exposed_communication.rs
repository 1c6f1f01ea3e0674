//! Devices that wait for their communication with others.

use super::Statement;
use crate::variability::Report;

/// Exposed communication that is worth mentioning, as a share of the recording.
const SHARE: f64 = 0.05;

/// The devices whose communication nothing hides.
pub fn statements(report: &Report) -> Vec<Statement> {
    let mut all = Vec::new();
    for of in &report.devices {
        let Some(found) = &of.communication else { continue };
        if found.exposed_s <= SHARE * report.seconds {
            continue;
        }
        let says = format!(
            "{} waits {:.1} ms ({:.0} % of the time) for communication that no computing hides: {} kernels \
             and {} copies between devices take {:.1} ms, {:.1} ms of it beneath computing",
            of.device.label(),
            found.exposed_s * 1e3,
            100.0 * found.exposed_s / report.seconds,
            found.kernels,
            found.peer_copies,
            found.total_s * 1e3,
            found.overlapped_s * 1e3
        );
        all.push(Statement::new("exposed_communication", says));
    }
    all
}
