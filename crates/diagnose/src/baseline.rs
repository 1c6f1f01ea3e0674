//! What a step of one signature usually takes.
//!
//! Durations are judged on a log scale, where a step that takes twice as long is as far from the
//! usual whether it usually takes 20 µs or 20 s. Location and scale are median and MAD, so the
//! baseline tolerates slow steps among those it learned from. The upper tail is fitted by its mean
//! excess (peaks over threshold, an exponential tail of the log, which is a power law of the
//! duration), and that fit turns a wished-for false-alarm rate into a threshold.
//!
//! A spell of slow steps among those learned from (a program that starts, a neighbour that stirred
//! once) is no habit: the longest one is left out of the tail and of what the cumulative sum is compared with,
//! else what came once, for a tenth of a second, would excuse seconds of much slower steps. Spells
//! that come again are left in, all but the longest, and excuse what is like them.

use std::collections::VecDeque;
use std::ops::Range;

use crate::stats::{median_and_mad, quantile_of};

/// How many steps a baseline remembers: enough for a 1 % quantile, little enough to keep one for
/// each of thousands of signatures.
pub const REMEMBERED: usize = 1024;
/// How many steps it needs before it is believed.
pub const NEEDED: usize = 12;
/// Durations closer than this on the log scale are the same: 1 %.
const FINEST_SCALE: f64 = 0.01;
/// Where the tail of a normal distribution begins, in standard deviations.
const NORMAL_TAIL: f64 = 1.2816;
/// The tail begins here.
const TAIL_FROM: f64 = 0.9;

/// Steps of a series are of several kinds if the beginning of its tail is so many times the median.
const BROAD: f64 = 1.5;

/// Steps that a baseline has at least before a spell among them is left out.
const SPELL_NEEDED: usize = 200;
/// A spell is at most one in this many of the steps; what is slow for longer is the usual.
const SPELL_ONE_IN: usize = 3;
/// The sum that a spell reaches at least, in spreads.
const SPELL: f64 = 8.0;
/// And how many times that of any other.
const EXCEPTION: f64 = 2.5;

/// What a CUSUM forgives per step, in spreads: half of the smallest shift worth seeing.
pub(crate) const SLACK: f64 = 0.75;
/// One step counts for no more than this many spreads, so that one outlier is not a shift.
pub(crate) const CLIP: f64 = 4.0;

/// One-sided cumulative sum of clipped deviations, in spreads.
#[derive(Clone, Debug)]
pub(crate) struct Cusum<At> {
    /// The sum; never negative.
    pub sum: f64,
    /// At which step it last left zero.
    pub since: At,
}

impl<At: Copy + Default> Cusum<At> {
    /// A sum of nothing.
    pub fn new() -> Cusum<At> {
        Cusum { sum: 0.0, since: At::default() }
    }

    /// Adds the deviation of the step at `at`, in spreads; returns the sum.
    pub fn add(&mut self, z: f64, at: At) -> f64 {
        if self.sum <= 0.0 {
            self.since = at;
        }
        self.sum = (self.sum + z.clamp(-CLIP, CLIP) - SLACK).max(0.0);
        self.sum
    }
}

/// The usual duration of one signature on one thread.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    logs: VecDeque<f64>,
    /// The longest spell among them, oldest first.
    spell: Range<usize>,
    since_fit: usize,
    fit: Option<Fit>,
}

/// A baseline's summary, on the log scale of ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Median.
    pub center: f64,
    /// Robust standard deviation, at least 1 %.
    pub scale: f64,
    /// Where the tail begins (90 % quantile).
    pub tail_from: f64,
    /// The tail's mean excess over `tail_from`, at least half the scale.
    pub tail_mean: f64,
}

impl Fit {
    fn of(logs: &[f64]) -> Fit {
        let (center, scale) = median_and_mad(logs);
        let scale = scale.max(FINEST_SCALE);
        let tail_from = quantile_of(logs.iter().copied(), TAIL_FROM).max(center);
        let excess: Vec<f64> = logs.iter().map(|x| x - tail_from).filter(|x| *x > 0.0).collect();
        let tail_mean = crate::stats::mean(&excess).max(scale / 2.0);
        Fit { center, scale, tail_from, tail_mean }
    }

    /// The log duration that a usual step exceeds with probability `p`.
    pub fn threshold(&self, p: f64) -> f64 {
        let beyond = ((1.0 - TAIL_FROM) / p.clamp(1e-12, 1.0 - TAIL_FROM)).ln();
        self.tail_from + self.tail_mean * beyond
    }

    /// How many spreads `log` lies above the center. On a busy machine most steps are alike and
    /// every fifth is held up: the scale, which is robust, describes the four, and by it the
    /// fifth would lie as far out as the steps of a real shift. The spread has room for them: it is the
    /// scale that a normal distribution with this upper tail had.
    pub fn spreads(&self, log: f64) -> f64 {
        let spread = self.scale.max((self.tail_from - self.center) / NORMAL_TAIL);
        (log - self.center) / spread
    }

    /// Whether its steps are of several kinds: each tenth takes half as long again as the median.
    pub fn is_broad(&self) -> bool {
        self.tail_from - self.center > BROAD.ln()
    }

    /// How many scales `log` lies above the center.
    pub fn z(&self, log: f64) -> f64 {
        (log - self.center) / self.scale
    }
}

impl Baseline {
    /// Learns a step that was not anomalous. `dur` in ns.
    pub fn learn(&mut self, dur: f64) {
        if self.logs.len() == REMEMBERED {
            self.logs.pop_front();
            self.spell = self.spell.start.saturating_sub(1)..self.spell.end.saturating_sub(1);
        }
        self.logs.push_back(dur.max(1.0).ln());
        self.since_fit += 1;
        // A fit goes through all of them three times; the early ones matter most.
        if self.fit.is_none() || self.since_fit >= 16 || self.logs.len() < 2 * NEEDED {
            self.refit();
        }
    }

    fn refit(&mut self) {
        let logs = self.logs.make_contiguous();
        self.fit = (logs.len() >= NEEDED).then(|| Fit::of(logs));
        self.spell = self.fit.map_or(0..0, |fit| spell(logs, &fit));
        if !self.spell.is_empty() {
            self.fit = Some(Fit::of(&self.settled()));
        }
        self.since_fit = 0;
    }

    /// Takes back what was learned from steps of these log durations, and of others as near to their median: they
    /// were learned before it was known that they are a kind of their own.
    pub(crate) fn unlearn(&mut self, logs: &[f64]) {
        let (center, _) = median_and_mad(logs);
        let away = |log: &f64| (log - center).abs();
        let farthest = logs.iter().map(away).fold(0.0, f64::max);
        self.logs.retain(|log| away(log) > farthest);
        self.refit();
    }

    /// The summary, once enough was learned.
    pub fn fit(&self) -> Option<Fit> {
        self.fit
    }

    /// The log durations remembered, oldest first, without the longest spell of slow ones.
    pub fn settled(&self) -> Vec<f64> {
        let all = self.logs.iter().copied().enumerate();
        all.filter(|(i, _)| !self.spell.contains(i)).map(|(_, log)| log).collect()
    }
}

/// Where the longest spell of slow steps lies: the highest excursion of the cumulative sum, up to its
/// top. Empty if it does not stand out, or is so long that it is no exception.
fn spell(logs: &[f64], fit: &Fit) -> Range<usize> {
    if logs.len() < SPELL_NEEDED {
        return 0..0;
    }
    let mut cusum = Cusum::new();
    let (mut highest, mut longest, mut next) = (0.0, 0..0, 0.0);
    for (i, log) in logs.iter().enumerate() {
        let sum = cusum.add(fit.spreads(*log), i);
        let same = longest.contains(&cusum.since);
        if sum > highest {
            if !same {
                next = highest;
            }
            (highest, longest) = (sum, cusum.since..i + 1);
        } else if !same && sum > next {
            next = sum;
        }
    }
    let stands_out = highest >= EXCEPTION * f64::max(next, SPELL / EXCEPTION);
    let exception = longest.len() * SPELL_ONE_IN <= logs.len();
    if stands_out && exception { longest } else { 0..0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    #[test]
    fn a_rarer_false_alarm_asks_for_a_slower_step() {
        let mut baseline = Baseline::default();
        let mut random = Random::new(1);
        for _ in 0..300 {
            baseline.learn(20e6 * (1.0 + 0.02 * (random.below(100) as f64 / 100.0)));
        }
        let fit = baseline.fit().unwrap();
        assert!(fit.threshold(1e-6) > fit.threshold(1e-3));
        assert!(fit.threshold(1e-3) > fit.center);
        assert!(fit.threshold(1e-6).exp() < 30e6, "{}", fit.threshold(1e-6).exp());
    }

    #[test]
    fn too_few_steps_are_no_baseline() {
        let mut baseline = Baseline::default();
        for _ in 0..NEEDED - 1 {
            baseline.learn(1e6);
        }
        assert_eq!(baseline.fit(), None);
    }

    /// 600 steps with noise of 1 %, and spells, from a step to another, that are a fifth slower.
    fn with_spells(spells: &[(usize, usize)]) -> Baseline {
        let mut baseline = Baseline::default();
        let mut random = Random::new(5);
        for n in 0..600 {
            let slower = if spells.iter().any(|s| (s.0..s.1).contains(&n)) { 1.2 } else { 1.0 };
            baseline.learn(10e6 * slower * (1.0 + 0.01 * (random.below(200) as f64 / 100.0 - 1.0)));
        }
        baseline
    }

    #[test]
    fn a_spell_that_came_once_is_no_habit_and_one_that_comes_again_is() {
        let clean = with_spells(&[]).fit().unwrap();
        let threshold = |spells: &[(usize, usize)]| {
            with_spells(spells).fit().unwrap().threshold(1e-6) - clean.threshold(1e-6)
        };
        assert!(threshold(&[(100, 180)]).abs() < 0.05, "left out: {}", threshold(&[(100, 180)]));
        assert_eq!(with_spells(&[(100, 180)]).settled().len(), 520);
        assert!(threshold(&[(100, 150), (300, 350), (500, 550)]) > 0.1, "this is how it is here");
        assert!(threshold(&[(100, 350)]) > 0.1, "too long for an exception");
    }
}
