//! An anomaly of one series that has begun and not ended, and when it began.

use std::collections::VecDeque;

use gpuwhy_schema::Ns;

use super::level::{self, Change};
use super::merge::HUNG;
use super::{Against, By, Detection, Signature, Slowed, StepNo};
use crate::baseline::Fit;

/// An anomaly that has begun and not ended.
#[derive(Clone)]
pub(super) struct Open {
    /// The usual duration when it began.
    pub fit: Fit,
    /// The log duration of a spike.
    pub threshold: f64,
    /// Steps to compare with.
    pub usual: Vec<StepNo>,
    /// Its steps, slow or not.
    pub steps: Vec<StepNo>,
    /// How many scales above the usual each of them lies, clipped by [`Open::height`].
    pub heights: Vec<f64>,
    /// How long each took, ns.
    pub durations: Vec<f64>,
    /// When each began; of those that were held back before it was one, when it became one.
    pub begins: Vec<Ns>,
    /// When the first began.
    pub since: Ns,
    /// It is what another anomaly became, at another level.
    pub follows: Option<Change>,
    /// Which of them was the first spike.
    pub first_spike: Option<usize>,
    /// Which of the latest steps were slow.
    pub latest: VecDeque<bool>,
    /// How many of `steps` there were when the last slow one came.
    pub to_last_slow: usize,
    /// When that ended.
    pub last_slow: Ns,
    /// Usual steps since then.
    pub usual_since: usize,
    /// How far the evidence lies beyond its threshold; 1 is at it.
    pub score: f64,
}

/// A step as a series judges it.
#[derive(Clone, Copy)]
pub(super) struct Judged {
    /// Its number.
    pub no: StepNo,
    /// When it began and ended.
    pub ts: Ns,
    pub end: Ns,
    /// Its log duration.
    pub log: f64,
    /// The log duration of a spike.
    pub threshold: f64,
    /// Whether it is an outlier and one of a handful.
    pub clustered: bool,
    /// Whether it is anomalous alone: beyond the threshold, or clustered.
    pub spike: bool,
    /// The cumulative sum that it leads to.
    pub sum: f64,
}

/// What an anomaly is dated by is clipped here, in scales, so that a few outliers do not date it.
const DATED_BY: f64 = 12.0;
/// Usual steps, with no slow one between, after which the anomaly of a series with few steps is over if it has been
/// for long: the next slow one belongs to something else.
const OVER_AFTER: usize = 3;
/// A spike this many times as high as the anomaly was so far is the begin of another one.
const REAL: f64 = 3.0;

/// Whether it has changed is asked once in so many steps.
const ASKED: usize = 4;

/// Where a series of heights rises to the level that most of it has: the split that leaves the least
/// before it, measured from half of the mean of the higher half.
fn rises_at(heights: &[f64]) -> usize {
    let sorted = crate::stats::sorted(heights.iter().copied());
    let half = crate::stats::mean(&sorted[sorted.len() / 2..]) / 2.0;
    let (mut sum, mut least, mut at) = (0.0, 0.0, 0);
    for (i, height) in heights.iter().enumerate() {
        sum += height - half;
        if sum < least {
            (least, at) = (sum, i + 1);
        }
    }
    at.min(heights.len().saturating_sub(1))
}

impl Open {
    /// By which height a step of this log duration dates an anomaly.
    pub fn height(fit: &Fit, log: f64) -> f64 {
        fit.z(log).clamp(-DATED_BY, DATED_BY)
    }

    /// Takes the next step; whether the anomaly is over.
    pub fn step(&mut self, step: &Judged, config: &Detection) -> bool {
        let (fit, Judged { no, log, threshold, spike, .. }) = (self.fit, *step);
        let height = Open::height(&fit, log);
        let so_far = crate::stats::mean(&self.heights).max(1.0);
        if spike && height > REAL * so_far && self.first_spike.is_none() {
            // A weak shift was open when the real one came: this is where that begins.
            self.steps.clear();
            self.heights.clear();
            self.durations.clear();
            self.begins.clear();
            self.latest.clear();
            self.since = step.ts;
        }
        if spike {
            self.first_spike.get_or_insert(self.steps.len());
        }
        self.steps.push(no);
        self.heights.push(height);
        self.durations.push(log.exp());
        self.begins.push(step.ts);
        let slow = spike || log > fit.center + (1.0 + config.min_effect).ln().max(2.0 * fit.scale);
        self.latest.push_back(slow);
        if self.latest.len() > config.calm {
            self.latest.pop_front();
        }
        if slow {
            self.to_last_slow = self.steps.len();
            (self.last_slow, self.usual_since) = (step.end, 0);
        } else {
            self.usual_since += 1;
        }
        self.score = self.score.max((log - fit.center) / (threshold - fit.center));
        let still = self.latest.iter().filter(|slow| **slow).count();
        let calm = self.latest.len() == config.calm && still * 4 <= config.calm;
        let since = step.ts.saturating_sub(self.last_slow);
        calm || (self.usual_since >= OVER_AFTER && since >= config.merge_within)
    }

    /// Adds a step that has not ended and hangs.
    pub fn hanging(&mut self, no: StepNo) {
        self.steps.push(no);
        self.heights.push(DATED_BY);
        self.durations.push(self.fit.center.exp() * HUNG);
        self.begins.push(self.begins.last().copied().unwrap_or(self.since));
        self.to_last_slow = self.steps.len();
    }

    /// Forgets steps before `first`.
    pub fn forget(&mut self, first: StepNo) {
        self.usual.retain(|no| *no >= first);
        let gone = self.steps.partition_point(|no| *no < first);
        self.to_last_slow = self.to_last_slow.saturating_sub(gone);
        self.heights.drain(..gone);
        self.durations.drain(..gone);
        self.begins.drain(..gone);
        self.steps.drain(..gone);
    }

    /// Where it came to another level, if the latest step, which ended at `now`, shows that: at the step of this index,
    /// and when that began.
    pub fn change(&self, now: Ns, config: &Detection) -> Option<(usize, Ns, Change)> {
        if !self.durations.len().is_multiple_of(ASKED) {
            return None;
        }
        let lately = level::lately(&self.begins, now, config);
        let (at, change) = level::change(&self.durations, lately, self.fit.center.exp(), config)?;
        let begins = self.begins[at];
        let lasted = begins.saturating_sub(self.since);
        let fallen = self.follows == Some(Change::Fallen);
        change.may_follow(lasted, fallen).then_some((at, begins, change))
    }

    /// Divides it at the step of this index, from which on it is another one that began at `since`; returns what was
    /// before.
    pub fn divide(&mut self, at: usize, since: Ns, change: Change) -> Open {
        let mut before = self.clone();
        self.steps.drain(..at);
        self.heights.drain(..at);
        self.durations.drain(..at);
        self.begins.drain(..at);
        self.to_last_slow = self.to_last_slow.saturating_sub(at);
        // Where it begins is known.
        (self.first_spike, self.since, self.follows) = (Some(0), since, Some(change));
        before.steps.truncate(at);
        before.heights.truncate(at);
        before.durations.truncate(at);
        before.begins.truncate(at);
        before.to_last_slow = before.to_last_slow.min(at);
        before
    }

    /// The anomaly, if any of its steps was slow.
    pub fn anomaly(mut self, signature: Signature) -> Option<Slowed> {
        self.steps.truncate(self.to_last_slow);
        self.heights.truncate(self.to_last_slow);
        // A weak shift that was open when the real one came must not date it; what went far beyond
        // all noise must not be dated away, however much noise follows it.
        let spike = self.first_spike.unwrap_or(usize::MAX);
        self.steps.drain(..rises_at(&self.heights).min(spike));
        (!self.steps.is_empty()).then(|| Slowed {
            signature,
            fit: self.fit,
            threshold: Ns(self.threshold.exp().min(9e18) as i64),
            usual: self.usual,
            slow: self.steps,
            score: self.score,
            alone_from: HUNG,
            against: Against::Lately,
            as_often: 1.0,
            by: By::Alike,
            follows: self.follows,
        })
    }
}
