//! Kernels that take longer from some time on, or less.

use gpuwhy_derive::Sum;
use gpuwhy_derive::sweep::Cut;
use gpuwhy_diagnose::variability::{Moments, Shift, shift};
use gpuwhy_schema::Name;

use super::Statement;
use crate::variability::NS_MS;
use crate::variability::sums::Sums;

/// The most kernels that are listed.
const LISTED: usize = 3;

/// The kernels whose duration changed most.
pub fn statements(sums: &Sums, cut: Cut) -> Vec<Statement> {
    let moments = |sum: &Sum| Moments { count: sum.count, mean: sum.mean(), std: sum.std() };
    let all: i64 = sums.kernels.values().map(|stat| stat.sum.sum).sum();
    let mut found = Vec::new();
    for (name, stat) in &sums.kernels {
        let splits = stat.stretches.splits();
        let sides: Vec<_> = splits.iter().map(|(_, a, b)| (moments(a), moments(b))).collect();
        let Some(shift) = shift(&sides) else { continue };
        let more_ns = (shift.after.mean - shift.before.mean) * shift.after.count as f64;
        if more_ns.abs() >= all as f64 / 100.0 {
            found.push((name, splits[shift.index].0, shift, more_ns));
        }
    }
    found.sort_by(|a, b| b.3.abs().total_cmp(&a.3.abs()).then(a.0.cmp(b.0)));
    let statement = |(name, interval, shift, more_ns): (&Name, usize, Shift, f64)| {
        let Shift { before, after, .. } = shift;
        let at = (cut.range(interval).start - cut.origin) as f64 / 1e9;
        let short: String = name.chars().take(90).collect();
        let says = format!(
            "{short} took {:.3} us on average until {at:.3} s and {:.3} us from there on ({} and {} calls, \
             {:+.1} ms)",
            before.mean / 1e3,
            after.mean / 1e3,
            before.count,
            after.count,
            more_ns / NS_MS
        );
        let quoted = name.replace('\'', "''");
        let sql = format!(
            "select ts, dur from 'span/*.parquet' where name = '{quoted}' and ts >= {}",
            cut.range(interval).start
        );
        Statement { kind: "kernel_shift", says, sql: Some(sql) }
    };
    found.into_iter().take(LISTED).map(statement).collect()
}
