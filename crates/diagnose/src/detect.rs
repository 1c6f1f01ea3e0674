//! When steps were slower than they should have been.
//!
//! # What it sees
//! Each signature (name and size class) on each thread is a series of its own. A step beyond the
//! tail threshold is a *spike*; a cumulative sum of clipped deviations (CUSUM, Page 1954)
//! sees a *shift* that no single step shows. Steps far out that are too few for a shift and not
//! far enough for a spike are *outliers*: one is nothing, a handful close together does not come
//! by chance. The first two thresholds come from one wished-for
//! false-alarm rate: the spike's from the tail fit, the shift's from a block bootstrap of the
//! baseline itself, which keeps the autocorrelation that makes textbook limits fire too often.
//! Anomalies of all series that touch in time are one incident: one disturbance slows all ranks.
//!
//! # Why it matters
//! A 3σ rule over a 5 s window fires in every second window of clean data.
//!
//! # What fools it
//! A recording that begins in the middle of the trouble: there is nothing to compare with. A
//! change of the workload that its `size` does not tell.

use std::collections::BTreeMap;

use gpuwhy_schema::{EntityId, Id, Name, Ns};

use crate::baseline::{Baseline, CLIP, Cusum, Fit, SLACK};
use crate::stats::Random;

/// One finished step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its span.
    pub id: Id,
    /// When it began.
    pub ts: Ns,
    /// How long it took.
    pub dur: Ns,
    /// Whose time it is.
    pub thread: EntityId,
    /// The rank, where there is one.
    pub rank: Option<u32>,
    /// Its name.
    pub name: Name,
    /// How much there was to do.
    pub size: Option<i64>,
}

/// What makes steps comparable: the thread, the name and the class of size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature {
    /// Whose steps.
    pub thread: EntityId,
    /// Their name.
    pub name: Name,
    /// Their size in sixteenths of an octave (4.4 % apart), or none: what follows from the size
    /// must stay below the least effect that is told.
    pub size_class: Option<i64>,
}

impl Step {
    /// The signature that it is compared under.
    pub fn signature(&self) -> Signature {
        let class = |size: i64| (16.0 * (size.max(1) as f64).log2()).round() as i64;
        Signature { thread: self.thread, name: self.name.clone(), size_class: self.size.map(class) }
    }

    /// When it ended.
    pub fn end(&self) -> Ns {
        self.ts.saturating_add(self.dur)
    }
}

/// How eagerly to detect.
#[derive(Clone, Copy, Debug)]
pub struct Detection {
    /// False incidents a day that are tolerated, over all series together.
    pub false_alarms_per_day: f64,
    /// The least slowdown of the median that is worth a finding: 0.1 is 10 %.
    pub min_effect: f64,
    /// The least number of anomalous steps of a series that are worth a finding.
    pub min_steps: usize,
    /// The least time that all slow steps of a series together lost that is worth a finding: a few
    /// steps of microseconds that took twice as long cost nobody anything, and a tenth of a second in
    /// which something on a shared machine stirred is nothing that anybody can do something about.
    pub min_lost: Ns,
    /// A single step is worth a finding if it took so much longer than usual, and ten times as
    /// long: it hung.
    pub hang: Ns,
    /// Steps at the head of each series that are not learned (caches are cold).
    pub warm_up: usize,
    /// How long a series is learned at least, so that thousands of short steps of one moment are
    /// not taken for the usual.
    pub learn_for: Ns,
    /// An anomaly ends when three quarters of so many steps were usual.
    pub calm: usize,
    /// Anomalies closer than this are one incident.
    pub merge_within: Ns,
}

impl Default for Detection {
    fn default() -> Detection {
        Detection {
            false_alarms_per_day: 1.0,
            min_effect: 0.10,
            min_steps: 4,
            min_lost: Ns::millis(60),
            hang: Ns::secs(1),
            warm_up: 3,
            learn_for: Ns::secs(2),
            calm: 16,
            merge_within: Ns::secs(2),
        }
    }
}

/// What one series did during an incident.
#[derive(Clone, Debug)]
pub struct Slowed {
    /// Which steps these are.
    pub signature: Signature,
    /// Where the usual lay when the anomaly began.
    pub fit: Fit,
    /// The duration above which a single step is a spike.
    pub threshold: Ns,
    /// Steps to compare with: indices into the steps given, oldest first.
    pub usual: Vec<usize>,
    /// Steps of the incident, slow or not: indices into the steps given.
    pub slow: Vec<usize>,
    /// How far the evidence lies beyond its threshold; 1 is at it.
    pub score: f64,
}

impl Slowed {
    /// Its slow steps, the longest first.
    pub(crate) fn longest_first(&self, steps: &[Step]) -> Vec<usize> {
        let mut slow = self.slow.clone();
        slow.sort_by_key(|&i| std::cmp::Reverse(steps[i].dur));
        slow
    }
}

/// An interval in which something was slower than it should have been.
#[derive(Clone, Debug)]
pub struct Incident {
    /// When the first slowed step began.
    pub from: Ns,
    /// When the last one ended.
    pub to: Ns,
    /// The series that were slowed, most excess time first.
    pub slowed: Vec<Slowed>,
}

/// So few steps may hold most of the time that an incident cost.
const FEW: usize = 3;
/// The share that most is.
const MOST: f64 = 2.0 / 3.0;
/// How many times as long as usual such a step takes.
const HANGS: f64 = 10.0;

impl Incident {
    /// The incident with, of each series, only the steps in which most of the time was lost,
    /// where these are a few that hung: a rank that is stopped while a neighbour has slowed a hundred
    /// steps a little. What is asked is where the time went, and a mean over all steps, or a sample
    /// of them, would tell of the neighbour.
    pub fn where_it_hung(&self, steps: &[Step]) -> Incident {
        let mut out = self.clone();
        let mut most = 0f64;
        for slowed in &mut out.slowed {
            let ns = |i: &usize| steps[*i].dur.0 as f64;
            let usual =
                crate::stats::quantile(&crate::stats::sorted(slowed.usual.iter().map(ns)), 0.5);
            let lost: f64 = slowed.slow.iter().map(|i| (ns(i) - usual).max(0.0)).sum();
            let mut longest = slowed.longest_first(steps);
            longest.truncate(FEW);
            longest.retain(|i| ns(i) >= HANGS * usual);
            let held: f64 = longest.iter().map(|i| ns(i) - usual).sum();
            if !longest.is_empty() && held >= MOST * lost {
                longest.sort_unstable();
                slowed.slow = longest;
                most = most.max(lost);
            }
        }
        // Nor are other series asked that lost little beside what hung.
        out.slowed.retain(|slowed| self::lost(steps, slowed) * 10.0 >= most);
        out
    }
}

/// A step is an outlier if a usual one exceeds it once in so many.
const OUTLIER_ONE_IN: f64 = 1e5;
/// And if it took so many times as long as usual.
const OUTLIER_TIMES: f64 = 3.0;
/// So many outliers among so many steps are no chance: where one in 100,000 is expected, four
/// among a thousand come once in 10^10.
const CLUSTER: (usize, usize) = (4, 1000);

/// Steps kept in order by the bootstrap, so that slow phases of the baseline stay together.
const BLOCK: usize = 64;
/// The longest run that the bootstrap plays; what is rarer is extrapolated by the exponential
/// tail that a CUSUM's maxima have.
const PLAYED: usize = 20_000;

/// The sum that a usual series reaches once in `1 / p` steps, from a block bootstrap of its own
/// baseline.
fn shift_limit(logs: &[f64], fit: &Fit, p: f64) -> f64 {
    let mut random = Random::new(logs.len() as u64);
    let mut cusum = Cusum::new();
    let mut maxima = Vec::new();
    let mut highest: f64 = 0.0;
    for index in 0..PLAYED / BLOCK {
        let from = random.below(logs.len());
        for k in 0..BLOCK {
            let sum = cusum.add(fit.spreads(logs[(from + k) % logs.len()]), index);
            highest = highest.max(sum);
        }
        if cusum.sum == 0.0 && highest > 0.0 {
            maxima.push(highest);
            highest = 0.0;
        }
    }
    // A sum that never came back to zero is one long excursion: the baseline itself drifts.
    maxima.push(highest);
    let sorted = crate::stats::sorted(maxima);
    let tail_from = crate::stats::quantile(&sorted, 0.9);
    let excess: Vec<f64> = sorted.iter().map(|m| m - tail_from).filter(|m| *m > 0.0).collect();
    let tail_mean = crate::stats::mean(&excess).max(1.0);
    let per_step = sorted.len() as f64 * 0.1 / PLAYED as f64;
    (tail_from + tail_mean * (per_step / p).max(1.0).ln()).max(8.0)
}

pub(crate) struct Series {
    baseline: Baseline,
    learned: Vec<usize>,
    seen: usize,
    cusum: Cusum,
    limit: Option<f64>,
    recent: Vec<(usize, f64)>,
    /// The latest outliers: which step of the series each was, its index and its log duration.
    outliers: std::collections::VecDeque<(usize, usize, f64)>,
    /// Outliers up to this index belong to an anomaly that was told.
    told: Option<usize>,
    open: Option<Open>,
    interval: f64,
    first_ts: Option<Ns>,
    last_ts: Option<Ns>,
    last_end: Ns,
}

#[derive(Clone)]
struct Open {
    fit: Fit,
    threshold: f64,
    usual: Vec<usize>,
    steps: Vec<usize>,
    /// How many scales above the usual each of them lies, clipped at [`DATED_BY`].
    heights: Vec<f64>,
    /// Which of them was the first spike.
    first_spike: Option<usize>,
    /// Which of the latest steps were slow.
    latest: std::collections::VecDeque<bool>,
    /// How many of `steps` there were when the last slow one came.
    to_last_slow: usize,
    score: f64,
}

/// What an anomaly is dated by is clipped here, in scales, so that a few outliers do not date it.
const DATED_BY: f64 = 12.0;

/// Where a series of heights rises to what it is for the most part: the split that leaves the least
/// behind, seen from half of the mean of its higher half.
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
    fn anomaly(mut self, signature: Signature) -> Option<Slowed> {
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
        })
    }
}

/// How many steps an incident is compared with.
const COMPARED: usize = 400;
/// How far back a shift may be dated.
const DATED_BACK: usize = 64;

/// A series is idle that has had no step for so many times the time between two.
const IDLE: i64 = 20;

impl Series {
    pub(crate) fn new() -> Series {
        Series {
            baseline: Baseline::default(),
            learned: Vec::new(),
            seen: 0,
            cusum: Cusum::new(),
            limit: None,
            recent: Vec::new(),
            outliers: Default::default(),
            told: None,
            open: None,
            interval: 0.0,
            first_ts: None,
            last_ts: None,
            last_end: Ns::MIN,
        }
    }

    fn learn(&mut self, index: usize, dur: f64) {
        self.baseline.learn(dur);
        if self.learned.len() >= 2 * COMPARED {
            self.learned.drain(..COMPARED);
        }
        self.learned.push(index);
        self.limit = self.limit.filter(|_| !self.seen.is_multiple_of(64));
    }

    /// Takes the next step; returns an anomaly that it ended.
    pub(crate) fn step(&mut self, index: usize, step: &Step, config: &Detection) -> Option<Slowed> {
        let dur = step.dur.0 as f64;
        self.seen += 1;
        self.last_end = self.last_end.max(step.end());
        if let Some(last) = self.last_ts.replace(step.ts) {
            let gap = step.ts.saturating_sub(last).as_secs_f64().max(1e-6);
            self.interval =
                if self.interval == 0.0 { gap } else { 0.95 * self.interval + 0.05 * gap };
        }
        if self.seen <= config.warm_up {
            return None;
        }
        let first = *self.first_ts.get_or_insert(step.ts);
        let learned = || self.baseline.fit().filter(|_| step.ts >= first + config.learn_for);
        let Some(fit) = self.open.as_ref().map(|o| o.fit).or_else(learned) else {
            self.learn(index, dur);
            return None;
        };
        // A wished-for rate a day becomes a probability a step.
        let p = (config.false_alarms_per_day * self.interval.max(1e-6) / 86_400.0).min(1e-3);
        let log = dur.max(1.0).ln();
        let threshold = fit.threshold(p).max(fit.center + (1.0 + config.min_effect).ln());
        let clustered = self.cluster(index, log, &fit);
        let spike = log > threshold || clustered;
        let sum = self.cusum.add(fit.spreads(log), index);
        self.recent.push((index, dur));
        if self.recent.len() > DATED_BACK {
            self.recent.remove(0);
        }

        if let Some(open) = &mut self.open {
            let height = fit.z(log).clamp(-DATED_BY, DATED_BY);
            let weak = open.first_spike.is_none();
            if spike && height > 3.0 * crate::stats::mean(&open.heights).max(1.0) && weak {
                // A weak shift was open when the real one came: this is where that begins.
                open.steps.clear();
                open.heights.clear();
                open.latest.clear();
            }
            if spike {
                open.first_spike.get_or_insert(open.steps.len());
            }
            open.steps.push(index);
            open.heights.push(height);
            let slow =
                spike || log > fit.center + (1.0 + config.min_effect).ln().max(2.0 * fit.scale);
            open.latest.push_back(slow);
            if open.latest.len() > config.calm {
                open.latest.pop_front();
            }
            if slow {
                open.to_last_slow = open.steps.len();
            }
            open.score = open.score.max((log - fit.center) / (threshold - fit.center));
            let still = open.latest.iter().filter(|slow| **slow).count();
            let over = open.latest.len() == config.calm && still * 4 <= config.calm;
            return if over { self.close(step.signature()) } else { None };
        }
        let baseline = &self.baseline;
        let limit = *self.limit.get_or_insert_with(|| shift_limit(&baseline.settled(), &fit, p));
        let shift = sum > limit;
        if !spike && !shift {
            self.learn_settled();
            return None;
        }
        let since = if shift { self.shifted_since(&fit).min(index) } else { index };
        let told = self.told.replace(index);
        let new = |o: &&(usize, usize, f64)| o.1 < since && told.is_none_or(|told| o.1 > told);
        let earlier = self.outliers.iter().filter(|o| clustered && new(o));
        let (steps, heights): (Vec<usize>, Vec<f64>) = earlier
            .map(|o| (o.1, fit.z(o.2)))
            .chain(
                self.recent
                    .iter()
                    .filter(|r| r.0 >= since)
                    .map(|r| (r.0, fit.z(r.1.max(1.0).ln()))),
            )
            .unzip();
        if clustered {
            // They are told now, and count for no other cluster but their own.
            self.learned.retain(|i| !steps.contains(i));
        }
        // What was held back and lies before the shift is usual after all.
        let held_back = self.recent.iter().map(|r| r.0).filter(|i| *i < since);
        let mut usual: Vec<usize> = self.learned.iter().copied().chain(held_back).collect();
        usual.drain(..usual.len().saturating_sub(COMPARED));
        let score = ((log - fit.center) / (threshold - fit.center)).max(sum / limit);
        self.recent.retain(|r| r.0 < since);
        self.learn_settled();
        let to_last_slow = steps.len();
        let latest = Default::default();
        let heights = heights.iter().map(|h: &f64| h.clamp(-DATED_BY, DATED_BY)).collect();
        // The last of them is this one; where it is no part of a shift, all before are outliers.
        let first_spike = spike.then(|| if shift { steps.len().saturating_sub(1) } else { 0 });
        self.open = Some(Open {
            fit,
            threshold,
            usual,
            steps,
            heights,
            first_spike,
            latest,
            to_last_slow,
            score,
        });
        None
    }

    /// Whether this step is an outlier, and one of a handful.
    fn cluster(&mut self, index: usize, log: f64, fit: &Fit) -> bool {
        let far = fit.threshold(1.0 / OUTLIER_ONE_IN).max(fit.center + OUTLIER_TIMES.ln());
        if log <= far {
            return false;
        }
        let (many, among) = CLUSTER;
        self.outliers.push_back((self.seen, index, log));
        while self.outliers.front().is_some_and(|o| o.0 + among < self.seen) {
            self.outliers.pop_front();
        }
        if self.outliers.len() > 2 * many {
            self.outliers.pop_front();
        }
        self.outliers.len() >= many
    }

    /// The first step of the shift that the CUSUM has seen: the split of the recent steps that
    /// fits best to a shift as large as that of the last ones. Where the sum left zero is too
    /// early when the shift is large, as a little noise suffices for it.
    fn shifted_since(&self, fit: &Fit) -> usize {
        let z = |dur: f64| fit.spreads(dur.max(1.0).ln()).clamp(-CLIP, CLIP);
        let candidates = self.recent.iter().filter(|r| r.0 >= self.cusum.since);
        let last: Vec<f64> = self.recent.iter().rev().take(4).map(|r| z(r.1)).collect();
        let half = (crate::stats::mean(&last) / 2.0).max(SLACK);
        let (mut sum, mut least, mut since) = (0.0, 0.0, self.cusum.since);
        let mut next_is_first = false;
        for &(index, dur) in candidates {
            if next_is_first {
                since = index;
                next_is_first = false;
            }
            sum += z(dur) - half;
            if sum <= least {
                least = sum;
                next_is_first = true;
            }
        }
        since
    }

    /// Learns what was held back in case a shift had begun.
    fn learn_settled(&mut self) {
        let keep_from = if self.cusum.sum > 0.0 { self.cusum.since } else { usize::MAX };
        let settled: Vec<(usize, f64)> =
            self.recent.iter().copied().filter(|r| r.0 < keep_from).collect();
        if settled.is_empty() && self.recent.len() >= DATED_BACK {
            // The sum has hovered above zero for long without a shift: that is the usual, then.
            let (index, dur) = self.recent.remove(0);
            self.learn(index, dur);
            return;
        }
        self.recent.retain(|r| r.0 >= keep_from);
        for (index, dur) in settled {
            self.learn(index, dur);
        }
    }

    fn close(&mut self, signature: Signature) -> Option<Slowed> {
        let open = self.open.take()?;
        self.cusum = Cusum::new();
        self.recent.clear();
        open.anomaly(signature)
    }

    /// The anomaly that has begun and not ended, as far as it is known.
    pub(crate) fn present(&self, signature: &Signature) -> Option<Slowed> {
        self.open.as_ref()?.clone().anomaly(signature.clone())
    }

    /// Ends the anomaly of a series that has had no step for long: of steps of another size, say,
    /// since when there is more to do.
    pub(crate) fn close_idle(
        &mut self,
        signature: &Signature,
        now: Ns,
        config: &Detection,
    ) -> Option<Slowed> {
        self.open.as_ref()?;
        let usual = Ns((self.interval * 1e9) as i64);
        let patience = config.merge_within.saturating_add(Ns(usual.0.saturating_mul(IDLE)));
        let idle = self.last_end.saturating_add(patience) < now;
        if idle { self.close(signature.clone()) } else { None }
    }

    /// What is the matter if `step` has begun, has not ended, and took `step.dur` so far: the
    /// anomaly that is present, with that step, or one of that step alone if it hangs.
    pub(crate) fn with_open(
        &self,
        index: usize,
        step: &Step,
        config: &Detection,
    ) -> Option<Slowed> {
        if let Some(open) = &self.open {
            if !hangs(step.dur, open.fit, config) {
                return None;
            }
            let mut open = open.clone();
            open.steps.push(index);
            open.heights.push(DATED_BY);
            open.to_last_slow = open.steps.len();
            return open.anomaly(step.signature());
        }
        let first = self.first_ts?;
        let fit = self.baseline.fit().filter(|_| step.ts >= first + config.learn_for)?;
        hangs(step.dur, fit, config).then(|| Slowed {
            signature: step.signature(),
            fit,
            threshold: Ns((fit.center.exp() * HUNG) as i64),
            usual: self.learned.iter().rev().take(COMPARED).rev().copied().collect(),
            slow: vec![index],
            score: HUNG,
        })
    }

    /// How many steps belong to the anomaly that has begun and not ended.
    pub(crate) fn present_steps(&self) -> Option<usize> {
        self.open.as_ref().map(|open| open.to_last_slow)
    }

    /// What has been slow for so long is the usual from now on.
    pub(crate) fn adopt(&mut self) {
        *self = Series { seen: self.seen, last_ts: self.last_ts, ..Series::new() };
    }

    /// When the latest step began.
    pub(crate) fn last_ts(&self) -> Option<Ns> {
        self.last_ts
    }

    /// The first `n` of all steps are forgotten, and the others move up.
    pub(crate) fn forget(&mut self, n: usize) {
        let forget = |list: &mut Vec<usize>| {
            list.retain(|i| *i >= n);
            list.iter_mut().for_each(|i| *i -= n);
        };
        forget(&mut self.learned);
        self.outliers.retain(|o| o.1 >= n);
        self.outliers.iter_mut().for_each(|o| o.1 -= n);
        self.told = self.told.and_then(|told| told.checked_sub(n));
        self.recent.retain(|r| r.0 >= n);
        self.recent.iter_mut().for_each(|r| r.0 -= n);
        self.cusum.since = self.cusum.since.saturating_sub(n);
        if let Some(open) = &mut self.open {
            forget(&mut open.usual);
            let gone = open.steps.partition_point(|i| *i < n);
            open.to_last_slow = open.to_last_slow.saturating_sub(gone);
            open.heights.drain(..gone);
            forget(&mut open.steps);
        }
    }
}

/// The incidents in `steps`, which must be sorted by their ends, most excess time first.
pub fn incidents(steps: &[Step], config: &Detection) -> Vec<Incident> {
    let mut series: BTreeMap<Signature, Series> = BTreeMap::new();
    let mut all: Vec<Slowed> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let one = series.entry(step.signature()).or_insert_with(Series::new);
        all.extend(one.step(index, step, config));
    }
    all.extend(series.into_iter().filter_map(|(signature, mut one)| one.close(signature)));
    merge(steps, all, config)
}

/// An incident of the steps that somebody else has found slow: those of `slow`, by index, each
/// series compared with the steps before its first slow one.
pub fn incident_of(steps: &[Step], slow: &[usize]) -> Option<Incident> {
    let mut by_signature: BTreeMap<Signature, Vec<usize>> = BTreeMap::new();
    for &i in slow {
        by_signature.entry(steps[i].signature()).or_default().push(i);
    }
    let mut slowed = Vec::new();
    for (signature, mut slow) in by_signature {
        slow.sort_unstable();
        let before = (0..slow[0]).rev().filter(|&i| steps[i].signature() == signature);
        let mut usual: Vec<usize> = before.take(COMPARED).collect();
        usual.reverse();
        let mut baseline = Baseline::default();
        usual.iter().for_each(|&i| baseline.learn(steps[i].dur.0 as f64));
        let Some(fit) = baseline.fit() else { continue };
        let threshold = Ns(fit.threshold(1e-3).exp().min(9e18) as i64);
        slowed.push(Slowed { signature, fit, threshold, usual, slow, score: 1.0 });
    }
    let begin = slowed.iter().map(|s| from(steps, s)).min()?;
    let end = slowed.iter().map(|s| to(steps, s)).max()?;
    Some(Incident { from: begin, to: end, slowed })
}

/// The mean excess of an anomaly's steps over the usual, in ns a step.
pub fn mean_excess(steps: &[Step], slowed: &Slowed) -> f64 {
    let mean = |indices: &[usize]| {
        indices.iter().map(|&i| steps[i].dur.0 as f64).sum::<f64>() / indices.len().max(1) as f64
    };
    mean(&slowed.slow) - mean(&slowed.usual)
}

/// When the first slow step of an anomaly began.
pub(crate) fn from(steps: &[Step], s: &Slowed) -> Ns {
    s.slow.iter().map(|&i| steps[i].ts).min().unwrap_or(Ns::ZERO)
}

/// When its last slow step ended.
pub(crate) fn to(steps: &[Step], s: &Slowed) -> Ns {
    s.slow.iter().map(|&i| steps[i].end()).max().unwrap_or(Ns::ZERO)
}

/// Anomalies that touch, by time.
pub(crate) fn groups(
    steps: &[Step],
    mut all: Vec<Slowed>,
    config: &Detection,
) -> Vec<(Ns, Ns, Vec<Slowed>)> {
    all.sort_by_key(|s| from(steps, s));
    let mut groups: Vec<(Ns, Ns, Vec<Slowed>)> = Vec::new();
    for slowed in all {
        let (begin, end) = (from(steps, &slowed), to(steps, &slowed));
        match groups.last_mut() {
            Some(last) if begin <= last.1.saturating_add(config.merge_within) => {
                last.1 = last.1.max(end);
                last.2.push(slowed);
            }
            _ => groups.push((begin, end, vec![slowed])),
        }
    }
    groups
}

/// What a group of anomalies is, if it is worth telling.
pub(crate) fn incident(
    steps: &[Step],
    slowed: Vec<Slowed>,
    config: &Detection,
) -> Option<Incident> {
    let mut slowed = join_series(without_blips(steps, slowed));
    slowed.retain(|s| mean_excess(steps, s) > 0.0);
    // Touching blips of other series must not stretch what the told ones say.
    let mut told: Vec<(Ns, Ns)> = Vec::new();
    for one in &mut slowed {
        let mut is_told = worth_telling(steps, one, config);
        if !is_told {
            // Among many that are a little slow, one that hung is worth it by itself.
            let hung = |i: &usize| hangs(steps[*i].dur, one.fit, config);
            let slow: Vec<usize> = one.slow.iter().copied().filter(hung).collect();
            let alone = Slowed { slow, ..one.clone() };
            is_told = worth_telling(steps, &alone, config);
            if is_told {
                *one = alone;
            }
        }
        if is_told {
            told.push((from(steps, one), to(steps, one)));
        }
    }
    let begin = told.iter().map(|t| t.0).min()?;
    let end = told.iter().map(|t| t.1).max()?;
    slowed.sort_by(|a, b| lost(steps, b).total_cmp(&lost(steps, a)));
    slowed.retain(|s| from(steps, s) < end && to(steps, s) > begin);
    Some(Incident { from: begin, to: end, slowed })
}

/// The time that all slow steps of an anomaly lost, ns.
fn lost(steps: &[Step], slowed: &Slowed) -> f64 {
    mean_excess(steps, slowed) * slowed.slow.len() as f64
}

fn merge(steps: &[Step], all: Vec<Slowed>, config: &Detection) -> Vec<Incident> {
    let mut found: Vec<Incident> = groups(steps, all, config)
        .into_iter()
        .filter_map(|(_, _, slowed)| incident(steps, slowed, config))
        .collect();
    let sum = |i: &Incident| i.slowed.iter().map(|s| lost(steps, s)).sum::<f64>();
    found.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
    found
}

/// Beside the anomaly of a series that lost most time, those that lost a tenth of it are noise
/// that happened to be near; they would date the incident too early.
fn without_blips(steps: &[Step], slowed: Vec<Slowed>) -> Vec<Slowed> {
    let mut most: BTreeMap<Signature, f64> = BTreeMap::new();
    for one in &slowed {
        let most = most.entry(one.signature.clone()).or_default();
        *most = most.max(lost(steps, one));
    }
    slowed.into_iter().filter(|one| lost(steps, one) * 10.0 >= most[&one.signature]).collect()
}

/// Several anomalies of one series within an incident are one.
fn join_series(slowed: Vec<Slowed>) -> Vec<Slowed> {
    let mut by_signature: BTreeMap<Signature, Slowed> = BTreeMap::new();
    for one in slowed {
        match by_signature.entry(one.signature.clone()) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(one);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let first = entry.get_mut();
                first.slow.extend(one.slow);
                first.score = first.score.max(one.score);
                let slow: std::collections::HashSet<usize> = first.slow.iter().copied().collect();
                first.usual.retain(|i| !slow.contains(i));
            }
        }
    }
    by_signature.into_values().collect()
}

/// How many standard deviations of the usual steps' own moving mean an incident must lie above
/// it. Noise with memory (a busy neighbour, a warm cache) moves means of many steps far more than
/// independent noise would.
const DRIFTS: f64 = 7.0;

/// How far the mean of the slow steps lies above the mean of the usual ones, in standard
/// deviations of usual means over as many steps, on the log scale.
fn drifts(steps: &[Step], slowed: &Slowed) -> f64 {
    let logs = |indices: &[usize]| -> Vec<f64> {
        indices.iter().map(|&i| (steps[i].dur.0.max(1) as f64).ln()).collect()
    };
    let (usual, slow) = (logs(&slowed.usual), logs(&slowed.slow));
    let window = slow.len().clamp(1, (usual.len() / 4).max(1));
    let means: Vec<f64> = usual.windows(window).map(crate::stats::mean).collect();
    let center = crate::stats::mean(&means);
    let spread =
        crate::stats::mean(&means.iter().map(|m| (m - center).powi(2)).collect::<Vec<_>>());
    // Short series show little of their own drift; independent noise is the least there can be.
    let least = slowed.fit.scale / (window as f64).sqrt();
    (crate::stats::mean(&slow) - center) / spread.sqrt().max(least).max(1e-9)
}

/// How many times as long as usual a step takes that hung.
const HUNG: f64 = 10.0;

fn hangs(dur: Ns, fit: Fit, config: &Detection) -> bool {
    let usual = fit.center.exp();
    dur.0 as f64 >= (usual + config.hang.0 as f64).max(HUNG * usual)
}

fn worth_telling(steps: &[Step], slowed: &Slowed, config: &Detection) -> bool {
    let center = slowed.fit.center.exp();
    let slow =
        slowed.slow.iter().filter(|&&i| steps[i].dur.0 as f64 > center * (1.0 + config.min_effect));
    let hung = |&i: &usize| hangs(steps[i].dur, slowed.fit, config);
    (slow.count() >= config.min_steps || slowed.slow.iter().any(hung))
        && !slowed.usual.is_empty()
        && mean_excess(steps, slowed) >= config.min_effect * center
        && mean_excess(steps, slowed) * slowed.slow.len() as f64 >= config.min_lost.0 as f64
        && drifts(steps, slowed) >= DRIFTS
}

#[cfg(test)]
mod tests;
