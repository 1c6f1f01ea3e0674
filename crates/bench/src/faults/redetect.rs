//! Stored sessions detected again: their steps, one by one, through the detection that `gpuwhy watch` uses.
//!
//! A change of the detection shows here within seconds, on the same steps: which incidents there are, and when they
//! began. What a judgement does to detection (an incident that others are blamed for) and steps that hang are not in it.
//! A figure of live sessions this is not.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use gpuwhy_diagnose::detect::{Detection, Incident, Steps};
use gpuwhy_diagnose::live::{Live, Look};
use gpuwhy_diagnose::stats::{quantile, sorted};
use gpuwhy_engine::{TraceSource, units};
use gpuwhy_schema::{Ns, terminal};

use super::results::{Row, stored};
use super::session::AFTER;

/// How often the series are looked at.
const LOOK: Ns = Ns::millis(50);
/// Beyond this an onset's error is listed.
const LISTED_S: f64 = 0.3;

/// Prints what is found in the stored sessions of these trials, beside what was done.
pub fn print(traces: &Path, trials: &[Row]) -> Result<()> {
    let sessions: BTreeSet<u64> = trials.iter().map(|row| row.session).collect();
    let (mut errors, mut scored, mut missed) = (Vec::new(), 0, 0);
    for seed in sessions {
        let path = stored(traces, seed);
        if !path.exists() {
            terminal::note(format_args!("session {seed}: no trace at {}", path.display()));
            continue;
        }
        let (steps, found) = incidents(&TraceSource::open(&path)?)?;
        let rows = trials.iter().filter(|row| row.session == seed && row.class.is_some());
        for row in rows.filter(|row| row.slowed && row.calm_before) {
            scored += 1;
            let touches = |i: &&Incident| i.from.0 < row.end_ns && i.to.0 > row.onset_ns;
            let lost = |i: &&Incident| i.lost_ns(&steps);
            let one = found.iter().filter(touches).max_by(|a, b| lost(a).total_cmp(&lost(b)));
            let Some(incident) = one else {
                missed += 1;
                terminal::note(format_args!("{seed} {}: {} is not found", row.number, row.kind));
                continue;
            };
            let error = (incident.from.0 - row.onset_ns) as f64 / 1e9;
            errors.push(error.abs());
            if error.abs() > LISTED_S {
                terminal::note(format_args!(
                    "{seed} {}: {} x{} begins {error:+.2} s from its onset (live {:+.2})",
                    row.number,
                    row.kind,
                    row.intensity,
                    row.onset_error_s.unwrap_or(f64::NAN)
                ));
            }
        }
        let near = |i: &&Incident| {
            trials.iter().filter(|row| row.session == seed).any(|row| {
                i.from.0 < row.end_ns + AFTER.as_nanos() as i64
                    && i.to.0 > row.onset_ns - 1_000_000_000
            })
        };
        let beside = found.iter().filter(|i| !near(i)).count();
        terminal::note(format_args!("session {seed}: {} incidents, {beside} in calm", found.len()));
    }
    let sorted = sorted(errors);
    terminal::note(format_args!(
        "{scored} trials, {missed} not found; onset error p50 {:.3} s, p95 {:.3} s",
        quantile(&sorted, 0.5),
        quantile(&sorted, 0.95)
    ));
    Ok(())
}

/// All incidents of a session, as they are when they are over.
fn incidents(source: &TraceSource) -> Result<(Steps, Vec<Incident>)> {
    let mut all = units::steps::of_trace(source)?;
    all.sort_by_key(|step| step.end());
    let mut live = Live::new(Detection::default());
    let mut found = Vec::new();
    let mut looked = Ns::MIN;
    for step in &all {
        let now = step.end();
        live.push(step.clone());
        if now >= looked.saturating_add(LOOK) {
            looked = now;
            if let Look::Over(incident) = live.look(now) {
                found.push(incident);
            }
        }
    }
    // Nothing comes any more.
    let end = all.last().map_or(Ns::ZERO, |step| step.end());
    for n in 1..200 {
        if let Look::Over(incident) = live.look(end.saturating_add(Ns(n * LOOK.0))) {
            found.push(incident);
        }
    }
    Ok((Steps::from(all), found))
}
