//! From a trace to findings: which rows are read when, so that memory stays bounded.
//!
//! Steps and lanes are read whole; they are few. Thread states, messages and requests are read
//! only around the steps that an incident needs, a few seconds at a time.

use anyhow::{Context as _, Result};
use gpuwhy_derive::Accounting;
use gpuwhy_diagnose::detect::{self, Detection, Incident, Step};
use gpuwhy_diagnose::gpu::Readings;
use gpuwhy_diagnose::verdict::{self, Court, Finding, Judgement};
use gpuwhy_schema::{self as schema, Id, Ns, Part, Rows};
use gpuwhy_store::Trace;

use crate::rounds;

/// What was found, and what it was found in.
pub struct Analysis {
    /// Lanes, sources and clocks of the trace.
    pub lanes: Rows,
    /// Every finished step, by its end; rounds, where none are marked.
    pub steps: Vec<Step>,
    /// The rounds, by process.
    pub rounds: Vec<rounds::Told>,
    /// What was slower, most excess first.
    pub incidents: Vec<Incident>,
    /// The judgement of each incident.
    pub findings: Vec<Finding>,
    /// Parts of the steps that were looked into.
    pub parts: Vec<Part>,
}

impl Analysis {
    /// What [`Analysis::steps`] are.
    pub fn what(&self) -> &'static str {
        if self.rounds.is_empty() { "steps" } else { "rounds" }
    }
}

/// How to analyse.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// When something is slower.
    pub detection: Detection,
    /// Where the time went.
    pub accounting: Accounting,
    /// What that means.
    pub judgement: Judgement,
}

/// Steps of a series that are accounted for, on each side of an incident.
const LOOKED_INTO: usize = 120;
/// Incidents that are judged; the others are small beside them.
const JUDGED: usize = 8;
/// Rows around a step that its walk may need: the sleep that began before it, the message that
/// ended a wait after it, counters read at 10 Hz.
const MARGIN: Ns = Ns::millis(600);
/// Rows are read for at most so long a stretch at a time.
const STRETCH: Ns = Ns::secs(4);

/// The lane of rounds, which is none.
const NOWHERE: schema::TrackId = schema::TrackId(u32::MAX);

/// All of a trace.
pub const EVER: std::ops::Range<Ns> = Ns::MIN..Ns::MAX;

fn all<T: schema::Table>(trace: &Trace, range: std::ops::Range<Ns>) -> Result<Vec<T>> {
    let mut out = Vec::new();
    for rows in trace.read::<T>(range) {
        out.extend(rows?);
    }
    Ok(out)
}

/// Lanes, sources and clocks: what names the rest.
pub fn lanes(trace: &Trace) -> Result<Rows> {
    Ok(Rows {
        entity: trace.entities()?,
        track: trace.tracks()?,
        source: trace.sources()?,
        clock: all(trace, EVER)?,
        ..Rows::default()
    })
}

/// Every finished step of the trace, by its end.
pub fn steps(trace: &Trace, lanes: &Rows) -> Result<Vec<Step>> {
    let details: Vec<schema::Step> = all(trace, EVER)?;
    let known: std::collections::HashMap<Id, &schema::Step> =
        details.iter().map(|d| (d.id, d)).collect();
    let tracks: std::collections::HashSet<_> =
        lanes.track.iter().filter(|t| &*t.name == schema::names::STEPS).map(|t| t.id).collect();
    let mut steps = Vec::with_capacity(details.len());
    for spans in trace.read::<schema::Span>(EVER) {
        for span in spans? {
            let Some(dur) = span.dur.filter(|_| tracks.contains(&span.track)) else { continue };
            let Some(detail) = known.get(&span.id) else { continue };
            steps.push(Step {
                id: span.id,
                ts: span.ts,
                dur,
                thread: detail.thread,
                rank: detail.rank,
                name: span.name,
                size: detail.size,
            });
        }
    }
    steps.sort_by_key(|s| (s.end(), s.ts, s.id));
    Ok(steps)
}

/// Where the rows come from that the accounting of steps walks over.
pub trait Around {
    /// The rows of a stretch of time, lanes and all.
    fn rows(&self, range: std::ops::Range<Ns>) -> Result<Rows>;
}

/// A trace, whose lanes were read before.
pub struct OnDisk<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Its lanes.
    pub lanes: &'a Rows,
}

impl Around for OnDisk<'_> {
    fn rows(&self, range: std::ops::Range<Ns>) -> Result<Rows> {
        let trace = self.trace;
        Ok(Rows {
            entity: self.lanes.entity.clone(),
            track: self.lanes.track.clone(),
            span: all(trace, range.clone())?,
            kernel: all(trace, range.clone())?,
            copy: all(trace, range.clone())?,
            collective: all(trace, range.clone())?,
            state: all(trace, range.clone())?,
            counter: all(trace, range.clone())?,
            mark: all(trace, range.clone())?,
            link: all(trace, range.clone())?,
            io: all(trace, range.clone())?,
            wakeup: all(trace, range.clone())?,
            message: all(trace, range.clone())?,
            step: all(trace, range)?,
            ..Rows::default()
        })
    }
}

/// The parts of the steps `wanted`, which are indices into `steps`.
pub fn account(
    around: &dyn Around,
    steps: &[Step],
    wanted: &[usize],
    accounting: &Accounting,
) -> Result<Vec<Part>> {
    let mut wanted: Vec<&Step> = wanted.iter().map(|&i| &steps[i]).collect();
    wanted.sort_by_key(|s| s.ts);
    // A step that no span belongs to is not accounted for, but makes its process the workload's.
    let threads: std::collections::BTreeSet<_> = steps.iter().map(|s| s.thread).collect();
    let nowhere = |thread| schema::Step {
        id: Id(u64::MAX),
        ts: Ns::ZERO,
        thread,
        seq: 0,
        size: None,
        rank: None,
    };
    let workload: Vec<schema::Step> = threads.into_iter().map(nowhere).collect();
    let mut parts = Vec::new();
    let mut rest = &wanted[..];
    while let Some(first) = rest.first() {
        let until = first.ts.saturating_add(STRETCH);
        let n = rest.partition_point(|s| s.ts < until);
        let (stretch, later) = rest.split_at(n);
        rest = later;
        let end = stretch.iter().map(|s| s.end()).max().unwrap_or(until);
        let mut rows = around.rows(first.ts.saturating_sub(MARGIN)..end.saturating_add(MARGIN))?;
        let ids: std::collections::HashSet<Id> = stretch.iter().map(|s| s.id).collect();
        rows.step.retain(|s| ids.contains(&s.id));
        for round in stretch.iter().filter(|s| rounds::is_round(s)) {
            let Step { id, ts, dur, thread, rank, size, .. } = **round;
            let (track, name, dur) = (NOWHERE, round.name.clone(), Some(dur));
            rows.span.push(schema::Span { id, ts, dur, track, parent: None, name });
            rows.step.push(schema::Step { id, ts, thread, seq: 0, size, rank });
        }
        rows.step.extend(workload.iter().cloned());
        parts.extend(
            gpuwhy_derive::parts(&rows, accounting).into_iter().filter(|p| ids.contains(&p.step)),
        );
    }
    Ok(parts)
}

/// What the drivers of GPUs said around these incidents; nothing is read where there are none.
pub fn readings(trace: &Trace, lanes: &Rows, incidents: &[Incident]) -> Result<Readings> {
    let tracks: std::collections::HashSet<_> =
        lanes.track.iter().filter(|t| Readings::wants(t)).map(|t| t.id).collect();
    if tracks.is_empty() {
        return Ok(Readings::default());
    }
    let (mut counters, mut marks) = (Vec::new(), Vec::new());
    for incident in incidents {
        let range = Readings::around(incident.from, incident.to);
        for rows in trace.read::<schema::Counter>(range.clone()) {
            counters.extend(rows?.into_iter().filter(|row| tracks.contains(&row.track)));
        }
        for rows in trace.read::<schema::Mark>(range) {
            marks.extend(rows?.into_iter().filter(|row| tracks.contains(&row.track)));
        }
    }
    Ok(Readings::new(&lanes.entity, &lanes.track, &counters, &marks))
}

/// Finds what was slower in a trace and why.
pub fn analyse(trace: &Trace, options: &Options) -> Result<Analysis> {
    let lanes = lanes(trace).context("cannot read the trace's lanes")?;
    let mut steps = steps(trace, &lanes).context("cannot read the trace's steps")?;
    let mut told = Vec::new();
    if steps.is_empty() {
        (steps, told) = rounds::steps(trace, &lanes).context("cannot read the trace's rounds")?;
    }
    let mut incidents = detect::incidents(&steps, &options.detection);
    incidents.truncate(JUDGED);
    let judged: Vec<Incident> = incidents.iter().map(|i| i.where_it_hung(&steps)).collect();
    let mut wanted: Vec<usize> =
        judged.iter().flat_map(|i| verdict::wanted(&steps, i, LOOKED_INTO)).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let around = OnDisk { trace, lanes: &lanes };
    let parts = account(&around, &steps, &wanted, &options.accounting)
        .context("cannot account for the steps' time")?;
    let court = Court::new(&lanes).with_readings(readings(trace, &lanes, &judged)?);
    let mut findings = Vec::new();
    for incident in &judged {
        findings.push(verdict::judge(&steps, incident, &parts, &court, &options.judgement));
    }
    drop(court);
    Ok(Analysis { lanes, steps, rounds: told, incidents, findings, parts })
}
