//! Steps that take longer and longer, too slowly for a step or a minute to be unusual.
//!
//! # What it sees
//! The median of each minute of a series, for hours: what is usual follows a slow change (it is learned from the last
//! [`crate::baseline::REMEMBERED`] steps) and cannot show it. The level now, of the last three minutes, is compared
//! with the lowest before. If it has grown by twice what is worth a finding, rose most of the way (Kendall's tau) and
//! not at once, it is a *drift*. It is told again when it has doubled.
//!
//! # Why it matters
//! One per cent a minute is three times as long after two hours, and no step was ever longer than the one before.
//!
//! # What fools it
//! Work that grows by itself, and load that rises in the course of a day, are drifts as well. A level that rises at once
//! is a shift, and is told as one. What has drifted is adopted with a shift that stays: the comparison begins anew.

use gpuwhy_schema::Ns;

use super::{Against, By, Detection, Drifted, Sampled, Signature, Slowed, StepNo, every_other};
use crate::baseline::Fit;
use crate::stats::{Line, quantile, sorted};

/// How long a window is at first.
const WINDOW: Ns = Ns::secs(60);
/// Windows that are remembered. If they are more, every second one goes, and windows are twice as long from then on.
const REMEMBERED: usize = 240;
/// Steps of a window that are sampled at most, at equal distances; a window of fewer than the least goes on.
const SAMPLED: usize = 32;
const LEAST_SAMPLED: usize = 8;
/// Steps of a window whose numbers are remembered, to compare with.
const KEPT: usize = 6;
/// Windows of which a level is the median.
const LEVEL: usize = 3;
/// A drift lasts at least so many windows,
const LASTS: usize = 6;
/// rises with this rank correlation (Kendall's tau; a level that rises once, in the middle, has 0.5),
const TAU: f64 = 0.7;
/// by no more than this share of it within two windows,
const AT_ONCE: f64 = 0.5;
/// and by so many times what is worth a finding,
const EFFECTS: f64 = 2.0;
/// or by this share, where steps are measured by what there is to do in them, so that other work is no other level,
const BY_LOAD: f64 = 0.05;
/// and the line through the levels rises by so many of its standard errors a minute.
const ERRORS: f64 = 6.0;
/// A level is as low as the lowest within this share of the rise.
const AS_LOW: f64 = 0.1;
/// The scale of a level of many steps, at least.
const SCALE: f64 = 0.01;
/// The latest steps that are looked into.
const LATEST: usize = 40;

#[derive(Debug)]
struct Window {
    ts: Ns,
    log: f64,
    steps: Vec<StepNo>,
}

/// What a series has taken, minute by minute.
#[derive(Debug)]
pub(super) struct Drift {
    length: Ns,
    began: Option<Ns>,
    sample: Sampled,
    past: Vec<Window>,
    /// By how much it had grown when that was told last.
    told: f64,
}

impl Default for Drift {
    fn default() -> Drift {
        Drift {
            length: WINDOW,
            began: None,
            sample: Sampled::new(SAMPLED),
            past: Vec::new(),
            told: 0.0,
        }
    }
}

impl Drift {
    /// Takes a step that was as usual, as far as it alone and those near it tell; whether a window ended with it.
    pub fn step(&mut self, no: StepNo, ts: Ns, dur: Ns) -> bool {
        let began = *self.began.get_or_insert(ts);
        let over = ts.saturating_sub(began) >= self.length && self.sample.len() >= LEAST_SAMPLED;
        if over {
            self.finish(began);
            self.began = Some(ts);
        }
        self.sample.step((dur.0.max(1) as f64).ln(), no);
        over
    }

    fn finish(&mut self, ts: Ns) {
        let sample = self.sample.take();
        let log = quantile(&sorted(sample.iter().map(|(log, _)| *log)), 0.5);
        let apart = sample.len().div_ceil(KEPT);
        let steps = sample.iter().step_by(apart).map(|(_, no)| *no).collect();
        if self.past.len() == REMEMBERED {
            every_other(&mut self.past, 1);
            self.length = Ns(2 * self.length.0);
        }
        self.past.push(Window { ts, log, steps });
    }

    /// A drift that is to be told, if `latest` are the latest steps of the series.
    pub fn found(
        &mut self,
        signature: Signature,
        latest: &[StepNo],
        config: &Detection,
    ) -> Option<Slowed> {
        let by_load = signature.mix.is_some();
        let (from, grown) = self.rise()?;
        let by = grown.exp_m1();
        if by < self.told / 2.0 {
            self.told = 0.0;
        }
        let worth = if by_load { BY_LOAD } else { EFFECTS * config.min_effect };
        let least = worth.max(2.0 * self.told);
        if by < least {
            return None;
        }
        let (from, grown) = self.gradual(from, grown);
        let by = grown.exp_m1();
        let segment = &self.past[from..];
        if by < least || segment.len() < LASTS || tau(segment) < TAU {
            return None;
        }
        if by < EFFECTS * config.min_effect && errors(segment) < ERRORS {
            return None;
        }
        self.told = by;
        let before = &segment[..LEVEL];
        let center = self.level(from);
        let (then, now) = (before[LEVEL / 2].ts, segment[segment.len() - 1 - LEVEL / 2].ts);
        let minutes = (now - then).as_secs_f64() / 60.0;
        let fit = Fit { center, scale: SCALE, tail_from: center + SCALE, tail_mean: SCALE };
        Some(Slowed {
            signature: Signature { kind: u8::MAX, ..signature },
            fit,
            threshold: Ns((center + least.ln_1p()).exp().min(9e18) as i64),
            usual: before.iter().flat_map(|w| w.steps.iter().copied()).collect(),
            slow: latest[latest.len().saturating_sub(LATEST)..].to_vec(),
            score: by / least,
            alone_from: super::merge::HUNG,
            as_often: 1.0,
            by: By::Alike,
            follows: None,
            against: Against::Drifted(Drifted {
                since: then,
                per_minute: (grown / minutes).exp_m1(),
            }),
        })
    }

    /// Since which window it has risen from its lowest level, and how far, on the log scale.
    fn rise(&self) -> Option<(usize, f64)> {
        let last = self.past.len().checked_sub(LEVEL)?;
        let lowest = (0..=last).min_by(|a, b| self.level(*a).total_cmp(&self.level(*b)))?;
        Some((lowest, self.level(last) - self.level(lowest)))
    }

    /// The same of what rose gradually: what rose at once is left behind, and the rise begins anew after it; and what
    /// was as low as at its lowest is no part of it.
    fn gradual(&self, mut from: usize, mut grown: f64) -> (usize, f64) {
        let last = self.past.len() - LEVEL;
        let now = self.level(last);
        while grown > 0.0 {
            let at_once = |i: &usize| self.past[i + 2].log - self.past[*i].log > AT_ONCE * grown;
            let Some(jump) = (from..self.past.len() - 2).rev().find(at_once) else { break };
            let after = jump + 2;
            if after >= last {
                return (last, 0.0);
            }
            let lowest = |a: &usize, b: &usize| self.level(*a).total_cmp(&self.level(*b));
            from = (after..=last).min_by(lowest).unwrap_or(last);
            grown = now - self.level(from);
        }
        let low = self.level(from) + AS_LOW * grown;
        let from = (from..=last).rev().find(|i| self.level(*i) <= low).unwrap_or(from);
        (from, now - self.level(from))
    }

    fn level(&self, from: usize) -> f64 {
        let mut logs: [f64; LEVEL] = std::array::from_fn(|i| self.past[from + i].log);
        logs.sort_unstable_by(f64::total_cmp);
        logs[LEVEL / 2]
    }

    /// Forgets the numbers of steps before `first`.
    pub fn forget(&mut self, first: StepNo) {
        self.sample.forget(first);
        self.past.iter_mut().for_each(|window| window.steps.retain(|no| *no >= first));
    }
}

/// By how many of its standard errors the line through the levels rises.
fn errors(windows: &[Window]) -> f64 {
    let points = windows.iter().enumerate().map(|(minute, window)| (minute as f64, window.log));
    let line = Line::through(&points.collect::<Vec<_>>());
    let free = windows.len().saturating_sub(2).max(1) as f64;
    let error = (line.left / free / line.of_places).sqrt();
    line.slope / error.max(1e-12)
}

/// How well the order of levels is that of time: 1 if each is higher than all before it, 0 if they are in no order.
fn tau(windows: &[Window]) -> f64 {
    let (mut rising, mut pairs) = (0i64, 0i64);
    for (i, earlier) in windows.iter().enumerate() {
        for later in &windows[i + 1..] {
            rising += if later.log > earlier.log { 1 } else { -1 };
            pairs += 1;
        }
    }
    rising as f64 / pairs.max(1) as f64
}

#[cfg(test)]
mod tests;
