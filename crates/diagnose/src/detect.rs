//! When steps were slower than they should have been.
//!
//! # What it sees
//! Each signature (name and size class) on each thread is a series of its own. A step beyond the
//! tail threshold is a *spike*; a cumulative sum of clipped deviations (CUSUM, Page 1954)
//! sees a *shift* that no single step shows. Steps far out that are too few for a shift and not
//! far enough for a spike are *outliers*: one is nothing, a handful close together does not come
//! by chance. The first two thresholds come from one chosen
//! false-alarm rate: the spike's from the tail fit, the shift's from a block bootstrap of the
//! baseline itself, which keeps the autocorrelation that makes textbook limits fire too often. Where steps of
//! several kinds have one name, and no step is unusual by such a tail, the time that is lost in a second is compared
//! with earlier seconds: a *surge*; and so is what their thread was off its CPU, where steps are its own work. Long
//! steps that come again in a rhythm are a kind of their own, and are compared with their kind (`detect/recurring.rs`).
//! Anomalies of all series that touch in time are one incident: one disturbance slows all ranks. An anomaly that comes
//! to another level is divided there (`detect/level.rs`), and so is the incident.
//!
//! # Why it matters
//! A 3σ rule over a 5 s window fires in every second window of clean data.
//!
//! # What fools it
//! A recording that begins in the middle of the trouble: there is nothing to compare with. A
//! change of the workload that its `size` does not show.

mod anomaly;
mod drift;
mod level;
mod merge;
mod recurring;
mod sampled;
mod series;
mod steps;
mod surge;

use std::collections::{BTreeMap, HashMap, HashSet};

use gpuwhy_schema::{EntityId, Id, Ns, Part, PartKind};

use crate::baseline::{Baseline, Fit};

pub use level::Change;
pub(crate) use merge::{
    Group, HUNG, Long, asked_as_before, from, groups, hangs, incident, long_among, lost, since, to,
};
pub(crate) use sampled::{Sampled, every_other};
pub(crate) use series::Series;
pub use steps::{By, Expected, Signature, Step, StepNo, Steps};

/// What has been slow for this long is the new usual.
pub const ADOPTED: Ns = Ns::secs(600);

/// How many steps an incident is compared with.
const COMPARED: usize = 400;

/// How eagerly to detect.
#[derive(Clone, Copy, Debug)]
pub struct Detection {
    /// False incidents a day that are tolerated, over all series together.
    pub false_alarms_per_day: f64,
    /// The least slowdown of the median that is worth a finding: 0.1 is 10 %.
    pub min_effect: f64,
    /// The least number of anomalous steps of a series that are worth a finding.
    pub min_steps: usize,
    /// The least time that all slow steps of a series together must have lost to be worth a finding: a
    /// few steps of microseconds that took twice as long cost nobody anything, and nobody can do
    /// something about a tenth of a second in which a shared machine was busy.
    pub min_lost: Ns,
    /// A single step is worth a finding if it took this much longer than usual, and ten times as
    /// long: it hung.
    pub hang: Ns,
    /// Steps at the head of each series that are not learned (caches are cold).
    pub warm_up: usize,
    /// How long a series is learned at least, so that thousands of short steps of one moment are
    /// not taken for the usual.
    pub learn_for: Ns,
    /// An anomaly ends when three quarters of the last steps, this many, were usual.
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
    /// Steps to compare with: their numbers, oldest first.
    pub usual: Vec<StepNo>,
    /// Steps of the incident, slow or not, by their numbers.
    pub slow: Vec<StepNo>,
    /// How far the evidence lies beyond its threshold; 1 is at it.
    pub score: f64,
    /// How many times as long as usual a single step must have taken to be worth a finding alone.
    pub alone_from: f64,
    /// What was usual when.
    pub against: Against,
    /// How often steps like the usual ones came, as a share of how often the slow ones do. Only for those that lose
    /// most of a second is it less than 1: the others were steps of the median duration before.
    pub as_often: f64,
    /// What its steps are measured by: usual ones are scaled to as much of it as slow ones have. By the CPU they are slow by
    /// what their thread was off it.
    pub by: By,
    /// It is what another anomaly of the series became when it came to another level.
    pub follows: Option<Change>,
}

/// When that was which slow steps are compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Against {
    /// Just before.
    #[default]
    Lately,
    /// Long ago, and it has grown little by little.
    Drifted(Drifted),
    /// In a recording before this one.
    Reference,
    /// Just before, where steps are of any length: none took nearly as long.
    Longest,
}

/// How steps have come to take longer, too slowly for any of them to be unusual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drifted {
    /// When they took what is usual.
    pub since: Ns,
    /// By which share they have grown a minute: 0.01 is 1 %.
    pub per_minute: f64,
}

impl Slowed {
    /// What the slow steps would have been, by what the usual ones and what ordinary ones are.
    pub(crate) fn instead_of(&self, usual: f64, ordinary: f64) -> f64 {
        self.as_often * usual + (1.0 - self.as_often) * ordinary
    }

    /// What its usual steps took for each unit of what they are measured by; none where steps are compared as they are.
    fn of_each(&self, steps: &Steps) -> Option<f64> {
        let usual = self.usual.iter().map(|&i| &steps[i]);
        let of =
            |step: &Step| self.by.of(step).or((self.by == By::Cpu).then_some(step.dur.0 as f64));
        let measured = usual.filter_map(|step| Some((step.dur.0 as f64, of(step)?)));
        let (dur, all) = measured.fold((0.0, 0.0), |sum, (dur, of)| (sum.0 + dur, sum.1 + of));
        (all > 0.0).then(|| dur / all)
    }

    /// What a step would usually have taken, where `of_each` is [`Slowed::of_each`].
    fn ordinary(&self, step: &Step, of_each: Option<f64>) -> f64 {
        let scaled = of_each.zip(self.by.of(step)).map(|(of_each, of)| of_each * of);
        scaled.unwrap_or(self.fit.center.exp())
    }

    /// Its slow steps, the longest first.
    pub(crate) fn longest_first(&self, steps: &Steps) -> Vec<StepNo> {
        let mut slow = self.slow.clone();
        slow.sort_by_key(|&i| std::cmp::Reverse(steps[i].as_typical(self.by)));
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

/// An incident in which only those steps of each series are left that say where most of the time was
/// lost: see [`Incident::where_it_hung`].
#[derive(Clone, Debug)]
pub struct Narrowed(Incident);

impl std::ops::Deref for Narrowed {
    type Target = Incident;

    fn deref(&self) -> &Incident {
        &self.0
    }
}

impl Narrowed {
    /// With fewer usual and slow steps of each series, as `limit` leaves them.
    pub fn limited(&self, limit: impl FnMut(&mut Slowed)) -> Narrowed {
        let mut limited = self.clone();
        limited.0.slowed.iter_mut().for_each(limit);
        limited
    }

    /// Without series of busy periods of which a single one was long, if nothing in its `parts` says what it waited for and
    /// other series are left. A thread of a pool that waits for its next connection waits for another thread, as for a lock;
    /// and what it did between two disturbances would make them one.
    pub fn without_pauses(mut self, steps: &Steps, parts: &[Part]) -> Narrowed {
        let mut unknown: HashMap<Id, i64> = HashMap::new();
        for part in parts.iter().filter(|part| part.kind == PartKind::Unknown) {
            *unknown.entry(part.step).or_default() += part.dur.0;
        }
        let is_pause = |slowed: &Slowed| match slowed.slow[..] {
            [no] if slowed.signature.is_busy_period() => {
                let step = &steps[no];
                let unknown = unknown.get(&step.id).copied().unwrap_or(0);
                unknown as f64 >= PAUSE * step.dur.0 as f64
            }
            _ => false,
        };
        if self.0.slowed.iter().all(is_pause) || !self.0.slowed.iter().any(is_pause) {
            return self;
        }
        self.0.slowed.retain(|slowed| !is_pause(slowed));
        let slowed = || self.0.slowed.iter();
        let from = slowed().map(|slowed| merge::from(steps, slowed)).min();
        let to = slowed().map(|slowed| merge::to(steps, slowed)).max();
        self.0.from = from.unwrap_or(self.0.from).max(self.0.from);
        self.0.to = to.unwrap_or(self.0.to).min(self.0.to);
        self
    }
}

/// Nothing says what a busy period waited for if this share of it is accounted for by nothing.
const PAUSE: f64 = 0.9;

/// The incident hung if no more steps than this hold most of the time that it cost,
const FEW: usize = 3;
/// where most is this share,
const MOST: f64 = 2.0 / 3.0;
/// and each of them took this many times as long as usual.
const HANGS: f64 = 10.0;

impl Incident {
    /// The time that its slow steps lost, ns.
    pub fn lost_ns(&self, steps: &Steps) -> f64 {
        self.slowed.iter().map(|slowed| merge::lost(steps, slowed)).sum()
    }

    /// The time that the steps of the series lost that lost most, ns.
    pub fn most_lost_ns(&self, steps: &Steps) -> f64 {
        self.slowed.iter().map(|slowed| merge::lost(steps, slowed)).fold(0.0, f64::max)
    }

    /// The incident with, of each series, only the steps in which most of the time was lost, if these
    /// are a few that hung: a rank that is stopped while a neighbour has slowed a hundred steps a
    /// little. The question is where the time went, and a mean over all steps, or over a sample of
    /// them, would answer with the neighbour.
    pub fn where_it_hung(&self, steps: &Steps) -> Narrowed {
        let mut out = self.clone();
        let mut most = 0f64;
        for slowed in &mut out.slowed {
            let by = slowed.by;
            let ns = |no: &StepNo| steps[*no].as_typical(by).0 as f64;
            let usual =
                crate::stats::quantile(&crate::stats::sorted(slowed.usual.iter().map(ns)), 0.5);
            let lost: f64 = slowed.slow.iter().map(|no| (ns(no) - usual).max(0.0)).sum();
            let mut longest = slowed.longest_first(steps);
            longest.truncate(FEW);
            longest.retain(|no| ns(no) >= HANGS * usual);
            let held: f64 = longest.iter().map(|no| ns(no) - usual).sum();
            if !longest.is_empty() && held >= MOST * lost {
                longest.sort_unstable();
                slowed.slow = longest;
                most = most.max(lost);
            }
        }
        // Series that lost little beside what hung are left out.
        out.slowed.retain(|slowed| merge::lost(steps, slowed) * 10.0 >= most);
        Narrowed(out)
    }
}

/// The threads of series whose steps are of several kinds or of any length.
pub fn of_several_kinds(steps: &[Step], config: &Detection) -> HashSet<EntityId> {
    let (series, _) =
        judged(steps.iter().enumerate().map(|(no, step)| (StepNo(no as u64), step)), config);
    let several = |step: &&Step| {
        series.get(&step.signature()).is_some_and(|series| series.has_several_kinds())
    };
    steps.iter().filter(several).map(|step| step.thread).collect()
}

/// The series of these steps, and the anomalies of them that ended.
fn judged<'a>(
    steps: impl Iterator<Item = (StepNo, &'a Step)>,
    config: &Detection,
) -> (BTreeMap<Signature, Series>, Vec<Slowed>) {
    let mut series: BTreeMap<Signature, Series> = BTreeMap::new();
    let mut all: Vec<Slowed> = Vec::new();
    for (no, step) in steps {
        let one = series.entry(step.signature()).or_insert_with(Series::new);
        all.extend(one.step(no, step, config));
    }
    (series, all)
}

/// The incidents in `steps`, most excess time first.
pub fn incidents(steps: &Steps, config: &Detection) -> Vec<Incident> {
    let (series, mut all) = judged(steps.numbered(), config);
    all.extend(series.into_iter().filter_map(|(signature, mut one)| one.close(signature)));
    merge::merge(steps, all, config)
}

/// An incident of steps that were found slow elsewhere, by their numbers: each series is compared with
/// the steps before its first slow one.
pub fn incident_of(steps: &Steps, slow: &[StepNo]) -> Option<Incident> {
    let mut by_signature: BTreeMap<Signature, Vec<StepNo>> = BTreeMap::new();
    for &no in slow {
        by_signature.entry(steps[no].signature()).or_default().push(no);
    }
    let mut slowed = Vec::new();
    for (signature, mut slow) in by_signature {
        slow.sort_unstable();
        let before = steps.numbered().rev().skip_while(|(no, _)| *no >= slow[0]);
        let before = before.filter(|(_, step)| step.signature() == signature).map(|(no, _)| no);
        let mut usual: Vec<StepNo> = before.take(COMPARED).collect();
        usual.reverse();
        let mut baseline = Baseline::default();
        let by = steps[slow[0]].expected_ns().map_or(By::Alike, By::Load);
        usual.iter().for_each(|&no| baseline.learn(steps[no].as_typical(by).0 as f64));
        let Some(fit) = baseline.fit() else { continue };
        let threshold = Ns(fit.threshold(1e-3).exp().min(9e18) as i64);
        slowed.push(Slowed {
            signature,
            fit,
            threshold,
            usual,
            slow,
            score: 1.0,
            alone_from: merge::HUNG,
            against: Against::Lately,
            as_often: 1.0,
            by,
            follows: None,
        });
    }
    let begin = slowed.iter().map(|s| from(steps, s)).min()?;
    let end = slowed.iter().map(|s| to(steps, s)).max()?;
    Some(Incident { from: begin, to: end, slowed })
}

/// What the slow steps of an anomaly would have taken: those of any length, for as much of what they are measured by, on
/// average, and others the median of the usual ones.
fn instead(steps: &Steps, slowed: &Slowed) -> f64 {
    let Some(of_each) = slowed.of_each(steps) else { return slowed.fit.center.exp() };
    let each = slowed.slow.iter().map(|&i| slowed.ordinary(&steps[i], Some(of_each)));
    each.sum::<f64>() / slowed.slow.len().max(1) as f64
}

/// The mean excess of an anomaly's steps over the usual, in ns a step. Where usual ones came so seldom that none is
/// remembered, their median is.
pub fn mean_excess(steps: &Steps, slowed: &Slowed) -> f64 {
    let mean = |indices: &[StepNo]| {
        indices.iter().map(|&i| steps[i].dur.0 as f64).sum::<f64>() / indices.len().max(1) as f64
    };
    let usual = match slowed.usual.is_empty() {
        true => slowed.fit.center.exp(),
        false if slowed.by != By::Alike => instead(steps, slowed),
        false => slowed.instead_of(mean(&slowed.usual), slowed.fit.center.exp()),
    };
    mean(&slowed.slow) - usual
}

#[cfg(test)]
mod tests;
