//! What a step of one signature usually takes.
//!
//! Durations are judged on a log scale, where a step that takes twice as long is as far from the
//! usual whether it usually takes 20 µs or 20 s. Location and scale are median and MAD, so the
//! baseline tolerates slow steps among those it learned from. The upper tail is fitted by its mean
//! excess (peaks over threshold, an exponential tail of the log, which is a power law of the
//! duration), and that fit turns a wished-for false-alarm rate into a threshold.

use std::collections::VecDeque;

use crate::stats::{median_and_mad, quantile, sorted};

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

/// The usual duration of one signature on one thread.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    logs: VecDeque<f64>,
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
        let tail_from = quantile(&sorted(logs.iter().copied()), TAIL_FROM).max(center);
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
    /// every fifth is held up: the scale, which is robust, tells of the most, and by it those few
    /// would lie as far out as the steps of a real shift. The spread has room for them: it is the
    /// scale that a normal distribution with this upper tail had.
    pub fn spreads(&self, log: f64) -> f64 {
        let spread = self.scale.max((self.tail_from - self.center) / NORMAL_TAIL);
        (log - self.center) / spread
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
        }
        self.logs.push_back(dur.max(1.0).ln());
        self.since_fit += 1;
        // A fit costs two sorts; the early ones matter most.
        if self.fit.is_none() || self.since_fit >= 16 || self.logs.len() < 2 * NEEDED {
            self.fit = (self.logs.len() >= NEEDED).then(|| Fit::of(self.logs.make_contiguous()));
            self.since_fit = 0;
        }
    }

    /// The summary, once enough was learned.
    pub fn fit(&self) -> Option<Fit> {
        self.fit
    }

    /// The log durations remembered, oldest first.
    pub fn logs(&self) -> impl Iterator<Item = f64> + '_ {
        self.logs.iter().copied()
    }
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
}
