//! The page of a variability report.

use std::collections::HashMap;
use std::ops::Range;

use gpuwhy_derive::devices::Devices;
use gpuwhy_derive::sweep::{ALL_KINDS, Interval, is_copy, kind_index};
use gpuwhy_report::variability::{CloseUp, StallLane, Variability};
use gpuwhy_schema::{Copy, Id, Ns, Span};

use super::{Gathered, NS_MS, Report};
use crate::error::Result;
use crate::source::TraceSource;

/// Intervals whose kernels and copies are drawn one by one.
const CLOSE_UPS: usize = 6;
/// Kernels in its table.
const KERNELS: usize = 30;

/// The page of a report.
pub fn of(report: &Report, gathered: &Gathered) -> Result<Variability> {
    let intervals = &gathered.sums.intervals;
    let mut page = Variability {
        title: report.trace.clone(),
        seconds: report.seconds,
        interval_ms: report.interval_ms,
        incomplete: report.rests_on_incomplete.iter().map(|of| of.mark()).collect(),
        findings: report.statements.iter().map(|s| (s.says.clone(), s.sql.clone())).collect(),
        ..Variability::default()
    };
    let of_devices = intervals.devices.iter().filter(|d| !d.is_empty());
    for ((of, found), device) in report.devices.iter().zip(&report.outliers).zip(of_devices) {
        let ms = |value: fn(&Interval) -> i64| -> Vec<f64> {
            device.iter().map(|i| value(i) as f64 / NS_MS).collect()
        };
        let kinds = ALL_KINDS.into_iter().filter(|kind| is_copy(*kind)).map(|kind| {
            let at = kind_index(kind);
            let exposed: i64 = device.iter().map(|i| i.exposed_by[at]).sum();
            let all: i64 = device.iter().map(|i| i.copies[at].sum).sum();
            (kind.as_str(), exposed as f64 / NS_MS, all as f64 / NS_MS)
        });
        page.lanes.push(StallLane {
            name: of.device.label(),
            exposed_ms: ms(|i| i.exposed_ns),
            kernel_ms: ms(|i| i.kernel_ns),
            anomalous: found.found.iter().map(|o| o.index).collect(),
            rule: found.rule.as_str(),
            kinds: kinds.filter(|(_, _, all)| *all > 0.0).collect(),
        });
    }
    page.kernels = report
        .kernels
        .iter()
        .take(KERNELS)
        .map(|k| (k.name.clone(), k.count, k.total_ms, k.mean_us, k.p50_us, k.p99_us))
        .collect();
    if let Some(source) = &gathered.source {
        // The worst of each device first, then the second worst.
        let depth = report.devices.iter().map(|d| d.worst.len()).max().unwrap_or(0);
        let order = (0..depth).flat_map(|rank| {
            report.devices.iter().filter_map(move |d| Some((d, d.worst.get(rank)?)))
        });
        for (of, worst) in order.take(CLOSE_UPS) {
            let title =
                format!("{}, {:.3} to {:.3} s", of.device.label(), worst.from_s, worst.to_s);
            let range = intervals.cut.range(worst.interval);
            page.worst.push(close_up(source, of.device.entity, range, title)?);
        }
    }
    Ok(page)
}

/// Kernels and copies of a device in a stretch of time.
fn close_up(source: &TraceSource, gpu: u32, range: Range<i64>, title: String) -> Result<CloseUp> {
    let (trace, catalog) = (source.trace(), source.entities_and_tracks());
    let plan = Devices::of(&catalog.entity, &catalog.track);
    let number = plan.devices.iter().position(|d| d.entity.0 == gpu).map(|n| n as u32);
    let mut close = CloseUp { title, ..CloseUp::default() };
    let mut spans: Vec<Span> = Vec::new();
    for rows in trace.read::<Span>(Ns(range.start)..Ns(range.end)) {
        let of_it = |s: &Span| plan.streams.get(&s.track).copied() == number && number.is_some();
        spans.extend(rows?.into_iter().filter(of_it));
    }
    let since = spans.iter().map(|s| s.ts).min().unwrap_or(Ns(range.start));
    let mut copies: HashMap<Id, Copy> = HashMap::new();
    for rows in trace.read::<Copy>(since..Ns(range.end)) {
        copies.extend(rows?.into_iter().map(|copy| (copy.id, copy)));
    }
    let share = |ns: i64| (ns - range.start) as f64 / (range.end - range.start).max(1) as f64;
    for span in spans {
        let Some(dur) = span.dur else { continue };
        let (from, to) = (share(span.ts.0), share(span.ts.saturating_add(dur).0));
        match copies.get(&span.id) {
            Some(copy) => close.copies.push((copy.kind.as_str(), from, to)),
            None => close.kernels.push((from, to)),
        }
    }
    Ok(close)
}
