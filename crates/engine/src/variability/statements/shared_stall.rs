//! Intervals in which several devices stall at once: something that they share is slow.

use std::ops::Range;

use gpuwhy_derive::sweep::Cut;
use gpuwhy_diagnose::variability::shared;

use super::Statement;
use crate::variability::{NS_MS, Report};

/// The most shared stalls that are listed.
const LISTED: usize = 5;

/// The worst shared stalls, and how many there are against how many there would be by chance.
pub fn statements(report: &Report, cut: Cut) -> Vec<Statement> {
    let devices = report.outliers.len();
    if devices < 2 {
        return Vec::new();
    }
    let (found, by_chance) = shared(&report.outliers, report.intervals);
    let seconds = |ns: i64| (ns - cut.origin) as f64 / 1e9;
    let mut all: Vec<Statement> = found
        .iter()
        .take(LISTED)
        .map(|stall| {
            let range = cut.range(stall.index);
            let says = format!(
                "{} of {devices} devices stall together from {:.3} to {:.3} s: {:.1} ms of exposed copy \
                 each on average",
                stall.series,
                seconds(range.start),
                seconds(range.end),
                stall.mean / NS_MS
            );
            let sql = format!(
                "select * from 'copy/*.parquet' where ts between {} and {}",
                range.start, range.end
            );
            Statement { kind: "shared_stall", says, sql: Some(sql) }
        })
        .collect();
    if !found.is_empty() {
        let says = format!(
            "{} intervals are anomalous on several devices at once; by chance it would be {by_chance:.1}",
            found.len()
        );
        all.push(Statement::new("shared_stalls", says));
    }
    all
}

/// The times of the worst stalls: those in which several devices stalled, or the one there is.
pub fn worst(report: &Report, cut: Cut) -> Vec<Range<i64>> {
    let (shared, _) = shared(&report.outliers, report.intervals);
    let mut worst: Vec<usize> = match report.outliers.as_slice() {
        [one] => one.found.iter().map(|o| o.index).take(LISTED).collect(),
        _ => shared.iter().map(|stall| stall.index).take(LISTED).collect(),
    };
    worst.sort_unstable();
    worst.iter().map(|&i| cut.range(i)).collect()
}
