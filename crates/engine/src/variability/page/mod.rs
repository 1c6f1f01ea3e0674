//! The page of a variability report: all that the text says, and when devices did it.

mod tables;
mod time_line;

use std::collections::HashMap;
use std::ops::Range;

use gpuwhy_derive::devices::Devices;
use gpuwhy_derive::sweep::{ALL_KINDS, Interval, is_copy, kind_index};
use gpuwhy_report::variability::{CloseUp, StallLane, Variability};
use gpuwhy_schema::{Copy, Id, Ns, Source, Span, sources};

use super::{Gathered, NS_MS, Report};
use crate::error::{Error, Result};
use crate::phases::{self, NotTold, Program, Programs, RestsOn};
use crate::source::TraceSource;

/// Intervals whose kernels and copies are drawn one by one.
const CLOSE_UPS: usize = 6;

/// What is shown besides the report.
struct Beside<'a> {
    /// The programs whose calls were recorded.
    programs: Vec<Program>,
    /// Programs and threads that were too many to look at.
    not_told: Option<NotTold>,
    /// What is known of them rests on this.
    rests_on: Option<RestsOn>,
    /// The files that other tools wrote.
    files: Vec<&'a Source>,
    /// The devices of the trace, if it is one on this machine.
    devices: Option<Devices>,
    /// When the first work of a device began.
    origin: i64,
}

/// The devices that did anything, by their numbers, with what they did in each interval. They are those of the
/// report, in its order.
fn with_work(gathered: &Gathered) -> impl Iterator<Item = (usize, &[Interval])> {
    let devices = gathered.sums.intervals.devices.iter().enumerate();
    devices.filter(|(_, each)| !each.is_empty()).map(|(number, each)| (number, &each[..]))
}

impl<'a> Beside<'a> {
    fn of(report: &Report, gathered: &'a Gathered) -> Result<Beside<'a>> {
        let mut beside = Beside {
            programs: Vec::new(),
            not_told: None,
            rests_on: None,
            files: Vec::new(),
            devices: None,
            origin: gathered.cut.origin,
        };
        let Some(source) = &gathered.source else { return Ok(beside) };
        let catalog = source.entities_and_tracks();
        beside.devices = Some(Devices::of(&catalog.entity, &catalog.track));
        beside.files =
            catalog.source.iter().filter(|source| &*source.tool != sources::RECORDER).collect();
        beside.rests_on = RestsOn::of(source);
        if report.whole && beside.rests_on.is_some() {
            let Programs { told, not_told } =
                phases::of_trace(source).map_err(Error::read("calls", source.trace().path()))?;
            (beside.programs, beside.not_told) = (told, not_told);
        }
        Ok(beside)
    }

    /// Seconds since the first work of a device.
    fn seconds(&self, ns: i64) -> f64 {
        ns.saturating_sub(self.origin) as f64 / 1e9
    }
}

/// The page of a report.
pub fn of(report: &Report, gathered: &Gathered) -> Result<Variability> {
    let intervals = &gathered.sums.intervals;
    let beside = Beside::of(report, gathered)?;
    let mut page = Variability {
        title: report.trace.clone(),
        seconds: report.seconds,
        interval_ms: report.interval_ms,
        interval_chosen: report.interval_chosen,
        intervals: report.intervals,
        incomplete: report.rests_on_incomplete.iter().map(|of| of.mark()).collect(),
        mostly: beside.programs.iter().flat_map(Program::mostly).collect(),
        findings: report.statements.iter().map(|s| (s.says.clone(), s.sql.clone())).collect(),
        time_line: time_line::of(report, gathered, &beside),
        tables: tables::all(report, &beside),
        no_findings: report.no_findings.iter().map(|s| s.says.clone()).collect(),
        not_looked_for: not_looked_for(report, &beside),
        ..Variability::default()
    };
    let of_devices = report.devices.iter().zip(&report.outliers).zip(with_work(gathered));
    for ((of, found), (_, device)) in of_devices {
        let kinds = ALL_KINDS.into_iter().filter(|kind| is_copy(*kind)).map(|kind| {
            let at = kind_index(kind);
            let exposed: i64 = device.iter().map(|i| i.exposed_by[at]).sum();
            let all: i64 = device.iter().map(|i| i.copies[at].sum).sum();
            (kind.as_str(), exposed as f64 / NS_MS, all as f64 / NS_MS)
        });
        let exposed_ms = |i: &Interval| i.exposed_ns as f64 / NS_MS;
        page.lanes.push(StallLane {
            name: of.device.label(),
            exposed_ms: device.iter().map(exposed_ms).collect(),
            anomalous: found.found.iter().map(|o| o.index).collect(),
            rule: of.rule,
            kinds: kinds.filter(|(_, _, all)| *all > 0.0).collect(),
        });
    }
    if let (Some(source), Some(devices)) = (&gathered.source, &beside.devices) {
        // The worst of each device first, then the second worst.
        let depth = report.devices.iter().map(|d| d.worst.len()).max().unwrap_or(0);
        let order = (0..depth).flat_map(|rank| {
            report.devices.iter().filter_map(move |d| Some((d, d.worst.get(rank)?)))
        });
        for (of, worst) in order.take(CLOSE_UPS) {
            let title =
                format!("{}, {:.3} to {:.3} s", of.device.label(), worst.from_s, worst.to_s);
            let range = intervals.cut.range(worst.interval);
            page.worst.push(close_up(source, devices, of.device.entity, range, title)?);
        }
    }
    Ok(page)
}

/// What was not looked for, and why.
fn not_looked_for(report: &Report, beside: &Beside<'_>) -> Vec<String> {
    let mut all = report.not_said.clone();
    all.extend(beside.not_told.map(|not| not.text()));
    if !report.whole {
        all.push(super::NOT_WHOLE.to_owned());
    } else if report.launches.is_none() {
        all.push(
            "why streams were idle, the longest gaps, the critical path, named ranges, links, stragglers and phases of programs: \
             the reports were read as they are; gpuwhy import reads their calls as well"
                .to_owned(),
        );
    }
    if report.launches.is_some() && report.critical_path.is_none() {
        all.push(super::NO_PATH.to_owned());
    }
    if let Some(rests_on) = &beside.rests_on {
        all.extend(rests_on.missing.iter().map(|what| format!("{what} (not in the trace)")));
    } else if report.launches.is_some() {
        all.push("phases of programs: the trace holds no calls of CUDA or MPI".to_owned());
    }
    all
}

/// Kernels and copies of a device in a stretch of time.
fn close_up(
    source: &TraceSource,
    plan: &Devices,
    gpu: u32,
    range: Range<i64>,
    title: String,
) -> Result<CloseUp> {
    let trace = source.trace();
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
