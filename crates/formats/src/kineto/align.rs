//! How the clocks of several files are aligned, and how well.
//!
//! Times of a file count from its base time, which its host's clock gave. Ranks of one host share that
//! clock. Clocks of several hosts differ; but kernels of a collective end at nearly the same moment on all
//! ranks, so the median difference of their ends corrects the clocks, and what is left of the differences
//! is how well that went.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::survey::Survey;
use crate::{Error, Result};

/// With fewer collectives than this, the hosts' clocks are kept.
const ENOUGH: usize = 8;
/// The clocks of hosts that use NTP agree to about a millisecond (RFC 5905), in ns. Collectives whose ends
/// lie farther apart after the correction are not the same ones.
const UNCORRECTED: i64 = 1_000_000;

/// How the times of files are moved to one clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Alignment {
    /// What to add to the times of each file, ns.
    pub shifts: Vec<i64>,
    /// By what they are aligned, in words; empty for a single file.
    pub by: String,
    /// The ends of collectives, if they could be compared.
    pub compared: Option<Compared>,
    /// The error of times between files, ns.
    pub error_ns: i64,
}

/// The ends of a collective's kernels on all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Compared {
    /// The name of the kernel.
    pub kernel: String,
    /// How many were compared.
    pub count: usize,
    /// How far apart their ends lie by the files' own clocks: median, ns.
    pub before_p50_ns: i64,
    /// After the times were moved: median, ns.
    pub p50_ns: i64,
    /// The same at the 95th percentile.
    pub p95_ns: i64,
}

impl Alignment {
    /// Of files that were recorded at the same time.
    ///
    /// # Errors
    /// They were not.
    pub fn of(paths: &[PathBuf], surveys: &[Survey]) -> Result<Alignment> {
        let bases: Vec<Option<i64>> = surveys.iter().map(|s| s.about.base).collect();
        let first = bases.iter().flatten().min().copied().unwrap_or(0);
        let shift = |base: &Option<i64>| base.map_or(0, |base| base.saturating_sub(first));
        let shifts: Vec<i64> = bases.iter().map(shift).collect();
        check_overlap(paths, surveys, &shifts)?;
        let hosts: Vec<Option<&str>> = surveys.iter().map(|s| s.about.host.as_deref()).collect();
        let one_host = hosts[0].filter(|_| hosts.iter().all(|host| *host == hosts[0]));
        let n = paths.len();
        let clock = match (bases.iter().flatten().count(), one_host) {
            (0, _) => "the times in the files as they are, which have no base time".to_owned(),
            (some, _) if some < n => {
                format!("the base times of {some} of {n} files, and 0 for the others")
            }
            (_, Some(host)) => format!("the clock of host {host}, which all {n} share"),
            _ => "their base times, by the clocks of their hosts".to_owned(),
        };
        let ends = common(surveys);
        let measured = ends.as_ref().map(|(name, ends)| measure(name, ends, &shifts));
        let is_one_clock = one_host.is_some() && bases.iter().all(Option::is_some);
        let kept = |compared: Option<Compared>| {
            let p95 = compared.as_ref().map(|c| c.p95_ns);
            let error_ns = match (is_one_clock, p95) {
                (true, _) => 0,
                (false, p95) => p95.unwrap_or(0).max(UNCORRECTED),
            };
            Alignment { shifts: shifts.clone(), by: clock.clone(), compared, error_ns }
        };
        let Some((name, ends)) = ends.filter(|_| !is_one_clock) else { return Ok(kept(measured)) };
        let moved = corrected(&ends, &shifts);
        let after = measure(&name, &ends, &moved);
        if after.p95_ns > UNCORRECTED {
            return Ok(kept(measured));
        }
        let before_p50_ns = measured.map_or(0, |m| m.p50_ns);
        let error_ns = after.p95_ns.max(1);
        let compared = Some(Compared { before_p50_ns, ..after });
        Ok(Alignment { shifts: moved, by: "the ends of collectives".into(), compared, error_ns })
    }

    /// For the terminal.
    pub fn line(&self, files: usize) -> Option<String> {
        if self.by.is_empty() {
            return None;
        }
        let us = |ns: i64| ns as f64 / 1e3;
        let how = match &self.compared {
            Some(c) => format!(
                "{} x {} end {:.3} us apart at the median, {:.3} us at p95 ({:.3} us by the files' own \
                 clocks)",
                c.count,
                c.kernel,
                us(c.p50_ns),
                us(c.p95_ns),
                us(c.before_p50_ns)
            ),
            None => {
                format!("fewer than {ENOUGH} collectives are common to all, by which to check it")
            }
        };
        let error = match self.error_ns {
            0 => String::new(),
            ns => format!("; times of two files may differ by {:.3} us", us(ns)),
        };
        Some(format!("{files} files aligned by {}: {how}{error}", self.by))
    }

    /// For `import --json`.
    pub fn json(&self) -> Value {
        json!({
            "shifts_ns": self.shifts,
            "by": self.by,
            "error_ns": self.error_ns,
            "collective": self.compared.as_ref().map(|c| &c.kernel),
            "collectives": self.compared.as_ref().map_or(0, |c| c.count),
            "residual_p50_ns": self.compared.as_ref().map(|c| c.p50_ns),
            "residual_p95_ns": self.compared.as_ref().map(|c| c.p95_ns),
            "before_p50_ns": self.compared.as_ref().map(|c| c.before_p50_ns),
        })
    }
}

/// Files of one job were recorded at the same time.
fn check_overlap(paths: &[PathBuf], surveys: &[Survey], shifts: &[i64]) -> Result<()> {
    let range = |i: usize| {
        let at = |time: Option<i64>| time.map(|time| time.saturating_add(shifts[i]));
        Some((at(surveys[i].first)?, at(surveys[i].last)?, i))
    };
    let mut ranges: Vec<(i64, i64, usize)> = (0..surveys.len()).filter_map(range).collect();
    ranges.sort_unstable();
    let mut last: Option<(i64, usize)> = None;
    for (from, to, i) in ranges {
        if let Some((until, before)) = last
            && from > until
        {
            let apart = from.saturating_sub(until) as f64 / 1e9;
            let why = format!(
                "they were not recorded at the same time: the first ends {apart:.3} s before the other \
                 begins"
            );
            return Err(Error::Unrelated {
                first: paths[before].clone(),
                other: paths[i].clone(),
                why,
            });
        }
        last = last.max(Some((to, i)));
    }
    Ok(())
}

/// The ends of the collective that ran most often, among those that ran equally often on all ranks.
fn common(surveys: &[Survey]) -> Option<(String, Vec<&[i64]>)> {
    let (first, others) = surveys.split_first()?;
    let equal = |(name, ends): &(&Vec<u8>, &Vec<i64>)| {
        ends.len() >= ENOUGH
            && others.iter().all(|s| s.collectives.get(*name).map(Vec::len) == Some(ends.len()))
    };
    let (name, _) = first.collectives.iter().filter(equal).max_by_key(|(_, ends)| ends.len())?;
    let ends = surveys.iter().map(|s| &*s.collectives[name]).collect();
    Some((String::from_utf8_lossy(name).into_owned(), ends))
}

/// How far apart the ends of collectives lie, moved by `shifts`.
fn measure(kernel: &str, ends: &[&[i64]], shifts: &[i64]) -> Compared {
    let count = ends[0].len();
    let mut apart: Vec<i64> = (0..count)
        .map(|k| {
            let times = ends.iter().zip(shifts).map(|(ends, shift)| ends[k].saturating_add(*shift));
            let (min, max) = (times.clone().min(), times.max());
            max.unwrap_or(0).saturating_sub(min.unwrap_or(0))
        })
        .collect();
    apart.sort_unstable();
    let (p50_ns, p95_ns) = (apart[count / 2], apart[(count * 95 / 100).min(count - 1)]);
    Compared { kernel: kernel.into(), count, before_p50_ns: p50_ns, p50_ns, p95_ns }
}

/// The shifts with which the ends on each rank lie where they lie on the first, at the median.
fn corrected(ends: &[&[i64]], shifts: &[i64]) -> Vec<i64> {
    let at = |rank: usize, k: usize| ends[rank][k].saturating_add(shifts[rank]);
    let of = |rank: usize| {
        let count = ends[0].len();
        let mut late: Vec<i64> = (0..count).map(|k| at(rank, k).saturating_sub(at(0, k))).collect();
        late.sort_unstable();
        shifts[rank].saturating_sub(late[count / 2])
    };
    (0..ends.len()).map(of).collect()
}
