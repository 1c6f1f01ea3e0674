//! Kernels that take longer from some time on, or less.

use gpuwhy_derive::sweep::Cut;
use gpuwhy_derive::{STRETCHES, Sum};
use gpuwhy_diagnose::variability::{Moments, Shift, shift};
use gpuwhy_schema::{Name, Ns};

use super::Statement;
use crate::variability::clocks::Clocks;
use crate::variability::sums::Sums;
use crate::variability::{NS_MS, Report};

/// The most kernels that are listed.
const LISTED: usize = 3;

/// The kernels whose duration changed most; and what is not said, because kernels of several files are not in
/// the order of time.
pub fn statements(
    report: &Report,
    sums: &Sums,
    clocks: &Clocks,
    cut: Cut,
) -> (Vec<Statement>, Option<String>) {
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
    // A change is told to one stretch of all that were compared.
    let stretch = cut.width.saturating_mul(cut.count as i64) / STRETCHES as i64;
    if !found.is_empty() && clocks.groups(&report.numbers, Ns(stretch / 2)).len() > 1 {
        let not_said = format!(
            "not said from when on kernels take longer or less long: {}, and a change is told to {:.3} ms",
            clocks.among(&report.numbers),
            stretch as f64 / NS_MS
        );
        return (Vec::new(), Some(not_said));
    }
    (found.into_iter().take(LISTED).map(statement).collect(), None)
}
