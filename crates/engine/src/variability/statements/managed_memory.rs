//! Devices that wait for managed memory although nothing asked for it ahead of its use.

use gpuwhy_derive::sweep::kind_index;
use gpuwhy_schema::CopyKind;

use super::Statement;
use crate::variability::sums::Sums;
use crate::variability::{NS_MS, Report};

/// Waits for managed memory that are worth reporting, as a share of the recording.
const SHARE: f64 = 0.05;

/// The devices that wait.
pub fn statements(report: &Report, sums: &Sums) -> Vec<Statement> {
    if sums.prefetches.is_some_and(|n| n > 0) {
        return Vec::new();
    }
    let asked = match sums.prefetches {
        Some(_) => "nothing asked for them ahead (cudaMemPrefetchAsync)",
        None => "whether anything asked for them ahead was not read; import the report to know",
    };
    let kind = kind_index(CopyKind::Managed);
    let intervals = sums.intervals.devices.iter().filter(|d| !d.is_empty());
    let mut all = Vec::new();
    for (of, intervals) in report.devices.iter().zip(intervals) {
        let exposed: i64 = intervals.iter().map(|i| i.exposed_by[kind]).sum();
        let (times, bytes) = intervals.iter().fold((0, 0u64), |(times, bytes), i| {
            (times + i.copies[kind].count, bytes.saturating_add(i.bytes[kind]))
        });
        if exposed as f64 / 1e9 <= SHARE * report.seconds {
            continue;
        }
        let says = format!(
            "{} waits {:.1} ms for managed memory: {bytes} bytes move on demand in {times} pieces, and \
             {asked}",
            of.device.label(),
            exposed as f64 / NS_MS
        );
        let sql = Some("select * from 'copy/*.parquet' where kind = 'managed'".into());
        all.push(Statement { kind: "missing_prefetch", says, sql });
    }
    all
}
