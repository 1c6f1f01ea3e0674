//! What a disturbance did to the steps, from the workload's own record of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::inject::{Injector, Kind, Label, Placement, Spec};
use crate::steploop::{self, Config};

/// A step as the workload itself recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRow {
    /// The rank.
    pub rank: u32,
    /// Its number.
    pub seq: u64,
    /// `step` or `step+ckpt`.
    pub name: String,
    /// When it began, CLOCK_MONOTONIC ns.
    pub start_ns: u64,
    /// When it ended, CLOCK_MONOTONIC ns.
    pub end_ns: u64,
    /// Bytes that it read.
    pub size: u64,
}

/// Reads the file that [`Config::csv`] names.
///
/// # Errors
/// If it cannot be read, or a line has not six fields; the message has the number of the line.
pub fn read_steps(path: &Path) -> Result<Vec<StepRow>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    let lines = text.lines().enumerate().skip(1);
    lines
        .map(|(i, line)| {
            parse(line).with_context(|| format!("{}:{}: not a step", path.display(), i + 1))
        })
        .collect()
}

fn parse(line: &str) -> Option<StepRow> {
    let fields: Vec<&str> = line.split(',').collect();
    let [rank, seq, name, start, end, size] = fields[..] else { return None };
    Some(StepRow {
        rank: rank.parse().ok()?,
        seq: seq.parse().ok()?,
        name: name.to_owned(),
        start_ns: start.parse().ok()?,
        end_ns: end.parse().ok()?,
        size: size.parse().ok()?,
    })
}

/// Steps of one name, before and during a disturbance, over all ranks. Durations in ms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// `step` or `step+ckpt`.
    pub name: String,
    /// How many steps were taken before.
    pub steps_before: usize,
    /// How many during.
    pub steps_during: usize,
    /// Their mean duration before.
    pub mean_before: f64,
    /// Their mean duration during.
    pub mean_during: f64,
    /// 95th percentile before.
    pub p95_before: f64,
    /// 95th percentile during.
    pub p95_during: f64,
}

impl Effect {
    /// Growth of the mean relative to before: 0.25 is a quarter longer.
    pub fn growth(&self) -> f64 {
        self.mean_during / self.mean_before - 1.0
    }
}

/// The first steps are left out: caches and TCP windows are still cold.
const WARM_UP: u64 = 10;

/// Compares the steps that ended before the disturbance with those that began in it.
pub fn effects(steps: &[StepRow], label: &Label) -> Vec<Effect> {
    let mut names: BTreeMap<&str, [Vec<f64>; 2]> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.seq >= WARM_UP) {
        let side = if step.end_ns < label.onset_ns {
            0
        } else if (label.onset_ns..label.end_ns).contains(&step.start_ns) {
            1
        } else {
            continue;
        };
        let ms = step.end_ns.saturating_sub(step.start_ns) as f64 / 1e6;
        names.entry(&step.name).or_default()[side].push(ms);
    }
    names
        .into_iter()
        .map(|(name, [mut before, mut during])| Effect {
            name: name.to_owned(),
            steps_before: before.len(),
            steps_during: during.len(),
            mean_before: mean(&before),
            mean_during: mean(&during),
            p95_before: p95(&mut before),
            p95_during: p95(&mut during),
        })
        .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn p95(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => values[(n * 95 / 100).min(n - 1)],
    }
}

/// Runs a workload, undisturbed for `before` s and disturbed for `during` s, and measures.
///
/// # Errors
/// If the workload or the injector fails.
pub fn trial(
    config: &Config,
    kind: Kind,
    intensity: f64,
    before: f64,
    during: f64,
) -> Result<(Label, Vec<Effect>)> {
    let csv = std::env::temp_dir().join(format!("gpuwhy-steps-{}.csv", std::process::id()));
    let config = Config { csv: Some(csv.clone()), seconds: None, ..config.clone() };
    let measured = || -> Result<(Label, Vec<Effect>)> {
        let running = steploop::start(&config)?;
        let target = running.ready.clone();
        let spec = Spec {
            kind,
            after: before,
            seconds: during,
            intensity,
            placement: Placement::Other,
            target,
        };
        let label = Injector::start(spec)?.finish()?;
        running.stop()?;
        let effects = effects(&read_steps(&csv)?, &label);
        Ok((label, effects))
    };
    let result = measured();
    let _ = std::fs::remove_file(&csv);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_count_as_before_or_during_by_where_they_lie() {
        let step = |seq, name: &str, start_ms: u64, end_ms: u64| StepRow {
            rank: 0,
            seq,
            name: name.to_owned(),
            start_ns: start_ms * 1_000_000,
            end_ns: end_ms * 1_000_000,
            size: 1,
        };
        let steps = [
            step(0, "step", 0, 500),
            step(10, "step", 500, 510),
            step(11, "step", 510, 530),
            step(12, "step", 995, 1005),
            step(13, "step", 1005, 1035),
            step(14, "step+ckpt", 1035, 1135),
            step(15, "step", 2005, 2010),
        ];
        let label = Label {
            injector: Kind::CpuHog,
            class: None,
            culprit_pid: None,
            culprit_comm: None,
            culprit_cgroup: None,
            onset_ns: 1_000_000_000,
            end_ns: 2_000_000_000,
            intensity: 1.0,
            params: serde_json::Value::Null,
        };
        let effects = effects(&steps, &label);
        let summaries: Vec<_> = effects
            .iter()
            .map(|e| {
                format!(
                    "{} {}->{} {}->{}",
                    e.name, e.steps_before, e.steps_during, e.mean_before, e.mean_during
                )
            })
            .collect();
        assert_eq!(summaries, ["step 2->1 15->30", "step+ckpt 0->1 NaN->100"]);
        assert_eq!(effects[0].growth(), 1.0);
    }

    #[test]
    fn an_error_has_the_number_of_the_line_that_is_no_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps.csv");
        std::fs::write(&path, "header\n0,1,step,5,9,4096\n0,1,step,5\n").unwrap();
        let error = format!("{:#}", read_steps(&path).unwrap_err());
        assert!(error.ends_with("steps.csv:3: not a step"), "{error}");
    }
}
