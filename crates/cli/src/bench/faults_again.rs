//! Stored trials judged again: by this program as it is now, and without a group of probes.
//!
//! A session's trace holds steps and aggregates of all of it, and exact rows around what was
//! found; a trial of which nothing was found cannot be judged again, and counts as missed.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use gpuwhy_derive::Accounting;
use gpuwhy_diagnose::baselines::GROUPS;
use gpuwhy_diagnose::detect::{self, Detection, Incident, Step};
use gpuwhy_diagnose::verdict::{self, Court, Judgement};
use gpuwhy_schema::{Ns, Rows, TrackId};
use gpuwhy_store::Trace;

use super::faults::{Answer, Row, answer, stored};
use crate::analysis::{self, Around, OnDisk};

/// The answer for which no group of probes was taken away.
pub const ALL: &str = "all";

/// Steps of a series that are looked into, on each side.
const LOOKED_INTO: usize = 80;
/// How far before an incident usual steps are taken from, where exact rows are kept.
const USUAL: Ns = Ns::secs(5);
/// Rows around what is looked into.
const MARGIN: Ns = Ns::secs(1);

/// Fills in [`Row::again`] of the trials whose traces are there.
pub fn judge(traces: &Path, trials: &mut [Row]) -> Result<()> {
    let mut by_session: BTreeMap<u64, Vec<&mut Row>> = BTreeMap::new();
    for row in trials {
        by_session.entry(row.session).or_default().push(row);
    }
    for (seed, rows) in by_session {
        let path = stored(traces, seed);
        if !path.exists() {
            eprintln!("session {seed}: there is no trace of it at {}", path.display());
            continue;
        }
        let trace = Trace::open(&path)?;
        let lanes = analysis::lanes(&trace)?;
        let steps = analysis::steps(&trace, &lanes)?;
        let incidents = detect::incidents(&steps, &Detection::default());
        let disk = OnDisk { trace: &trace, lanes: &lanes };
        let n = rows.len();
        for row in rows {
            // The one that lost most time comes first.
            let touches = |i: &&Incident| i.from.0 < row.end_ns && i.to.0 > row.onset_ns;
            let found = incidents.iter().find(touches);
            row.again = answers(found, &steps, &disk)?;
        }
        eprintln!("session {seed}: {n} trials judged again");
    }
    Ok(())
}

fn answers(
    found: Option<&Incident>,
    steps: &[Step],
    disk: &OnDisk<'_>,
) -> Result<BTreeMap<String, Option<Answer>>> {
    let groups = || [ALL].into_iter().chain(GROUPS.iter().map(|g| g.0));
    let Some(incident) = found else {
        return Ok(groups().map(|group| (group.to_string(), None)).collect());
    };
    let since = incident.from.saturating_sub(USUAL);
    let mut incident = incident.clone();
    for slowed in &mut incident.slowed {
        slowed.usual.retain(|&i| steps[i].ts >= since);
    }
    let read = since.saturating_sub(MARGIN)..incident.to.saturating_add(MARGIN);
    let mut rows = disk.rows(read)?;
    rows.source = disk.lanes.source.clone();
    let wanted = verdict::wanted(&incident, LOOKED_INTO);
    let mut out = BTreeMap::new();
    for group in groups() {
        let rows = without(&rows, group);
        let court = Court::new(&rows);
        let around = Held { rows: &rows };
        let parts = analysis::account(&around, steps, &wanted, &Accounting::default())?;
        let finding = verdict::judge(steps, &incident, &parts, &court, &Judgement::default());
        out.insert(group.to_string(), Some(answer(&finding)));
    }
    Ok(out)
}

/// Rows in memory.
struct Held<'a> {
    rows: &'a Rows,
}

impl Around for Held<'_> {
    fn rows(&self, range: Range<Ns>) -> Result<Rows> {
        let mut rows = self.rows.clone();
        let within = |ts: Ns, dur: Option<Ns>| {
            ts < range.end && dur.is_none_or(|dur| ts.saturating_add(dur) >= range.start)
        };
        let at = |ts: Ns| within(ts, Some(Ns::ZERO));
        rows.span.retain(|r| within(r.ts, r.dur));
        rows.state.retain(|r| within(r.ts, r.dur));
        rows.counter.retain(|r| at(r.ts));
        rows.wakeup.retain(|r| at(r.ts));
        rows.message.retain(|r| at(r.ts));
        Ok(rows)
    }
}

/// The sources whose rows belong to a group of probes.
fn sources(group: &str) -> &'static [&'static str] {
    match group {
        "scheduler" => &["bpf:run_queue", "proc:steal", "proc:cgroup"],
        "interrupts" => &["bpf:interrupts"],
        "block" => &["bpf:block_io"],
        "network" => &["bpf:network"],
        "memory" => &["bpf:memory"],
        _ => &[],
    }
}

/// `rows` as if a group of probes had not been there.
fn without(rows: &Rows, group: &str) -> Rows {
    let mut rows = rows.clone();
    let gone: HashSet<_> =
        rows.source.iter().filter(|s| sources(group).contains(&&*s.kind)).map(|s| s.id).collect();
    let tracks: HashSet<TrackId> = rows
        .track
        .iter()
        .filter(|t| {
            gone.contains(&t.source) || (group == "gpu" && &*t.name == gpuwhy_schema::names::STREAM)
        })
        .map(|t| t.id)
        .collect();
    rows.span.retain(|r| !tracks.contains(&r.track));
    rows.state.retain(|r| !tracks.contains(&r.track));
    rows.counter.retain(|r| !tracks.contains(&r.track));
    match group {
        "scheduler" => rows.wakeup.clear(),
        "block" => rows.io.clear(),
        "network" => rows.message.clear(),
        _ => {}
    }
    if group == "interrupts" {
        // Interrupted time is told apart from running by this group.
        use gpuwhy_schema::ThreadState::{Hardirq, Running, Softirq};
        for state in &mut rows.state {
            if [Hardirq.code(), Softirq.code()].contains(&state.value) {
                state.value = Running.code();
            }
        }
    }
    rows
}
