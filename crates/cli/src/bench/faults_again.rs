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
use gpuwhy_diagnose::gpu::Readings;
use gpuwhy_diagnose::verdict::{self, Court, Judgement};
use gpuwhy_schema::{Ns, Rows, State, ThreadState, Track, TrackId, names};
use gpuwhy_store::Trace;

use super::faults::{Row, stored};
use crate::analysis::{self, Around, OnDisk};

/// The answer for which no group of probes was taken away.
pub const ALL: &str = "all";

/// Steps of a series that are looked into, on each side.
const LOOKED_INTO: usize = 80;
/// How far before an incident usual steps are taken from, where exact rows are kept.
const USUAL: Ns = Ns::secs(5);

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
) -> Result<BTreeMap<String, Option<String>>> {
    let groups = || [ALL].into_iter().chain(GROUPS.iter().map(|g| g.0));
    let Some(incident) = found else {
        return Ok(groups().map(|group| (group.to_string(), None)).collect());
    };
    let since = incident.from.saturating_sub(USUAL);
    let mut incident = incident.clone();
    for slowed in &mut incident.slowed {
        slowed.usual.retain(|&i| steps[i].ts >= since);
    }
    let incident = incident.where_it_hung(steps);
    let wanted = verdict::wanted(steps, &incident, LOOKED_INTO);
    let told = analysis::readings(disk.trace, disk.lanes, std::slice::from_ref(&incident))?;
    let mut out = BTreeMap::new();
    for group in groups() {
        let around = Without { disk, group };
        let lanes = around.less(Rows { source: disk.lanes.source.clone(), ..disk.rows(NEVER)? });
        let readings = if group == "gpu" { Readings::default() } else { told.clone() };
        let court = Court::new(&lanes).with_readings(readings);
        let parts = analysis::account(&around, steps, &wanted, &Accounting::default())?;
        let finding = verdict::judge(steps, &incident, &parts, &court, &Judgement::default());
        out.insert(group.to_string(), Some(finding.class.to_owned()));
    }
    Ok(out)
}

/// No row lies in it.
const NEVER: Range<Ns> = Ns::MIN..Ns::MIN;

/// A trace as if a group of probes had not been there.
struct Without<'a> {
    disk: &'a OnDisk<'a>,
    group: &'a str,
}

impl Around for Without<'_> {
    fn rows(&self, range: Range<Ns>) -> Result<Rows> {
        Ok(self.less(self.disk.rows(range)?))
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

impl Without<'_> {
    fn less(&self, mut rows: Rows) -> Rows {
        let group = self.group;
        let all = &self.disk.lanes.source;
        let gone = all.iter().filter(|s| sources(group).contains(&&*s.kind));
        let gone: HashSet<_> = gone.map(|s| s.id).collect();
        let is_gone = |track: &&Track| {
            gone.contains(&track.source) || (group == "gpu" && &*track.name == names::STREAM)
        };
        let tracks: HashSet<TrackId> = rows.track.iter().filter(is_gone).map(|t| t.id).collect();
        rows.span.retain(|r| !tracks.contains(&r.track));
        rows.state.retain(|r| !tracks.contains(&r.track));
        rows.counter.retain(|r| !tracks.contains(&r.track));
        rows.source.retain(|r| !gone.contains(&r.id));
        match group {
            "scheduler" => rows.wakeup.clear(),
            "block" => rows.io.clear(),
            "network" => rows.message.clear(),
            // Interrupted time is told apart from running by this group.
            "interrupts" => {
                let interrupted = [ThreadState::Hardirq.code(), ThreadState::Softirq.code()];
                let of_it = |s: &&mut State| interrupted.contains(&s.value);
                let running = ThreadState::Running.code();
                rows.state.iter_mut().filter(of_it).for_each(|s| s.value = running);
            }
            _ => {}
        }
        rows
    }
}
