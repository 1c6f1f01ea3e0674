//! Devices that wait for copies most of the time.

use super::Statement;
use crate::variability::Report;

/// The devices that are bound by transfers.
pub fn statements(report: &Report) -> Vec<Statement> {
    let bound = report
        .devices
        .iter()
        .filter(|of| of.exposed_s > 0.5 * report.seconds && of.exposed_s > 5.0 * of.kernel_s);
    let statement = |of: &crate::variability::DeviceSummary| {
        let says = format!(
            "{} waits for copies {:.0} % of the time and computes {:.0} %: it is bound by transfers",
            of.device.label(),
            100.0 * of.exposed_s / report.seconds,
            100.0 * of.kernel_s / report.seconds
        );
        Statement::new("transfer_bound", says)
    };
    bound.map(statement).collect()
}
