//! Stored trials judged again: by this program as it is now, and without a group of probes.
//!
//! The judgement is the one that `gpuwhy watch` passes when an incident is over: the same function
//! with the same budget. A session's trace holds steps and aggregates of all of it, and exact rows
//! around findings; a trial in which nothing was found cannot be judged again, and counts as missed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use gpuwhy_diagnose::detect::{self, Detection, Incident, Steps};
use gpuwhy_diagnose::published::GROUPS;
use gpuwhy_engine::source::{ProbeGroup, Without};
use gpuwhy_engine::{Budget, KnownParts, RowSource, TraceSource, investigate, units};
use gpuwhy_schema::terminal;

use super::results::{ALL_PROBES, Row, stored};

/// Fills in [`Row::again`] of the trials whose traces are there.
pub fn judge(traces: &Path, trials: &mut [Row]) -> Result<()> {
    let mut by_session: BTreeMap<u64, Vec<&mut Row>> = BTreeMap::new();
    for row in trials {
        by_session.entry(row.session).or_default().push(row);
    }
    for (seed, rows) in by_session {
        let path = stored(traces, seed);
        if !path.exists() {
            terminal::note(format_args!(
                "session {seed}: there is no trace of it at {}",
                path.display()
            ));
            continue;
        }
        let source = TraceSource::open(&path)?;
        let steps = Steps::from(units::steps::of_trace(&source)?);
        let incidents = detect::incidents(&steps, &Detection::default());
        let n = rows.len();
        for row in rows {
            // The incident that lost most time comes first.
            let touches = |i: &&Incident| i.from.0 < row.end_ns && i.to.0 > row.onset_ns;
            let found = incidents.iter().find(touches);
            row.again = answers(found, &steps, &source)?;
        }
        terminal::note(format_args!("session {seed}: {n} trials judged again"));
    }
    Ok(())
}

/// The class with all probes, and without each group.
fn answers(
    found: Option<&Incident>,
    steps: &Steps,
    source: &TraceSource,
) -> Result<BTreeMap<String, Option<String>>> {
    let mut answers = BTreeMap::new();
    answers.insert(ALL_PROBES.to_string(), class(found, steps, source)?);
    for (group, _) in GROUPS {
        let without = Without::new(source, ProbeGroup::named(group));
        answers.insert(group.to_string(), class(found, steps, &without)?);
    }
    Ok(answers)
}

fn class(
    found: Option<&Incident>,
    steps: &Steps,
    source: &dyn RowSource,
) -> Result<Option<String>> {
    let Some(incident) = found else { return Ok(None) };
    let (options, mut known) = (investigate::Options::default(), KnownParts::default());
    let found = investigate(source, steps, incident, &options, &Budget::ENDED, &mut known)?;
    Ok(Some(found.finding.class.to_owned()))
}
