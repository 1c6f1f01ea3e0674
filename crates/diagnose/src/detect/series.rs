//! One series of comparable steps: what is usual, and what lies beyond it.

use std::collections::VecDeque;

use gpuwhy_schema::Ns;

use super::anomaly::{Judged, Open};
use super::drift::Drift;
use super::merge::{HUNG, hangs};
use super::recurring::{Recurring, Taken};
use super::surge::Surge;
use super::{Against, By, COMPARED, Detection, Expected, Signature, Slowed, Step, StepNo};
use crate::baseline::{Baseline, CLIP, Cusum, Fit, SLACK};
use crate::stats::Random;

/// A step is an outlier if one usual step in this many exceeds it,
const OUTLIER_ONE_IN: f64 = 1e5;
/// and if it took this many times as long as usual.
const OUTLIER_TIMES: f64 = 3.0;
/// This many outliers, among this many steps, are no chance: where one in 100,000 is expected, four
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

/// How far back a shift may be dated.
const DATED_BACK: usize = 64;
/// A series is idle if it has had no step for this many times the time between two.
const IDLE: i64 = 20;

/// What a series is doing.
enum State {
    /// Too few steps were seen to say what is usual.
    Learning,
    /// Steps are as usual; they are learned.
    Calm,
    /// Steps are slower than usual; nothing is learned.
    Anomalous(Box<Open>),
}

/// An outlier: which step of the series it was, its number and its log duration.
#[derive(Clone, Copy)]
struct Outlier {
    seen: usize,
    no: StepNo,
    log: f64,
}

/// A series of comparable steps, and what is the matter with it.
pub(crate) struct Series {
    state: State,
    baseline: Baseline,
    learned: Vec<StepNo>,
    seen: usize,
    cusum: Cusum<StepNo>,
    limit: Option<f64>,
    /// The latest steps, and their durations in ns, that are held back in case a shift has begun.
    recent: Vec<(StepNo, f64)>,
    outliers: VecDeque<Outlier>,
    surge: Surge,
    /// The same of what its thread was off its CPU.
    off_cpu: Surge,
    recurring: Recurring,
    drift: Drift,
    /// Outliers up to this number belong to an anomaly that has begun before.
    reported: Option<StepNo>,
    /// What a typical step should take, where steps are compared with what they should take, ns.
    typical: Option<f64>,
    interval: f64,
    first_ts: Option<Ns>,
    last_ts: Option<Ns>,
    last_end: Ns,
}

impl Series {
    /// No step seen yet.
    pub(crate) fn new() -> Series {
        Series {
            state: State::Learning,
            baseline: Baseline::default(),
            learned: Vec::new(),
            seen: 0,
            cusum: Cusum::new(),
            limit: None,
            recent: Vec::new(),
            outliers: VecDeque::new(),
            surge: Surge::default(),
            off_cpu: Surge::off_cpu(),
            recurring: Recurring::default(),
            drift: Drift::default(),
            reported: None,
            typical: None,
            interval: 0.0,
            first_ts: None,
            last_ts: None,
            last_end: Ns::MIN,
        }
    }

    /// Takes the next step; returns an anomaly that it ended.
    pub(crate) fn step(&mut self, no: StepNo, step: &Step, config: &Detection) -> Option<Slowed> {
        match step.expected {
            Expected::Alike => self.take(no, step, Some(step.dur), config),
            Expected::NotKnown(_) => None,
            Expected::Priced { ns, first_ns, .. } => {
                let typical = *self.typical.get_or_insert(ns);
                let scaled = |of: Ns| Ns((of.0 as f64 * typical / ns) as i64);
                let (dur, ran) = (scaled(step.dur), step.ran.map(scaled));
                let in_the_long_run = first_ns.map(|_| step.as_typical(By::First(typical)));
                let scaled = Step { dur, ran, ..step.clone() };
                let slowed = self.take(no, &scaled, in_the_long_run, config);
                self.measured(slowed)
            }
        }
    }

    /// What its steps are measured by, if they are measured by what there is to do in them.
    fn measured(&self, slowed: Option<Slowed>) -> Option<Slowed> {
        let mut slowed = slowed?;
        if let (By::Alike, Some(typical)) = (slowed.by, self.typical) {
            slowed.by = match slowed.against {
                Against::Lately | Against::Longest => By::Load(typical),
                Against::Drifted(_) | Against::Reference => By::First(typical),
            };
        }
        Some(slowed)
    }

    /// Takes a step that took `in_the_long_run` by what was known first, if that says something of it.
    fn take(
        &mut self,
        no: StepNo,
        step: &Step,
        in_the_long_run: Option<Ns>,
        config: &Detection,
    ) -> Option<Slowed> {
        self.count(step);
        if self.seen <= config.warm_up {
            return None;
        }
        self.first_ts.get_or_insert(step.ts);
        if let Some(of_a_kind) = self.of_a_kind(no, step, config) {
            return of_a_kind;
        }
        let ended = self.single(no, step, config);
        let single = ended.is_some() || self.open().is_some();
        let off_cpu = self.off_cpu(no, step);
        let elsewhere = single && !self.by_seconds() || self.off_cpu.is_open();
        let surged = self.fit().and_then(|fit| self.surge.step(no, step, fit, elsewhere));
        let surged = off_cpu.or(surged);
        let elsewhere = single && !self.by_seconds();
        let long = in_the_long_run.filter(|_| !elsewhere);
        let drifted = long.and_then(|dur| self.drifts(no, step, dur, config));
        ended.or(surged).or(drifted)
    }

    /// Whether its steps are of several kinds, or of any length.
    pub(crate) fn has_several_kinds(&self) -> bool {
        self.recurring.has_kinds() || self.fit().is_some_and(|fit| fit.is_broad())
    }

    /// Takes a step of a series whose durations say little: an anomaly of what its thread was off its CPU that ended
    /// before.
    fn off_cpu(&mut self, no: StepNo, step: &Step) -> Option<Slowed> {
        let fit = self.fit()?;
        step.ran?;
        if self.has_several_kinds() { self.off_cpu.step(no, step, fit, false) } else { None }
    }

    /// Whether what is usual has grown, little by little, to something worth telling.
    fn drifts(&mut self, no: StepNo, step: &Step, dur: Ns, config: &Detection) -> Option<Slowed> {
        let minute = self.drift.step(no, step.ts, dur);
        if minute { self.drift.found(step.signature(), &self.learned, config) } else { None }
    }

    /// What is usual now, or was when an anomaly began.
    fn fit(&self) -> Option<Fit> {
        self.open().map(|open| open.fit).or_else(|| self.baseline.fit())
    }

    /// Compares the next step with its kind, if it is of one that comes again; what that told.
    fn of_a_kind(&mut self, no: StepNo, step: &Step, config: &Detection) -> Option<Option<Slowed>> {
        let body = self.fit()?;
        match self.recurring.take(self.seen, no, step, &body, config) {
            Taken::Body => None,
            Taken::Usual => Some(None),
            Taken::Slow(slowed) => Some(slowed),
            Taken::Known(steps) => {
                // Those that were learned before the kind was known are no part of the body.
                let logs: Vec<f64> = steps.iter().map(|(_, log)| *log).collect();
                self.baseline.unlearn(&logs);
                self.learned.retain(|no| steps.iter().all(|(of, _)| of != no));
                self.recent.retain(|(no, _)| steps.iter().all(|(of, _)| of != no));
                self.outliers.retain(|o| steps.iter().all(|(of, _)| *of != o.no));
                self.limit = None;
                Some(None)
            }
        }
    }

    /// Judges the next step alone and with those just before it.
    fn single(&mut self, no: StepNo, step: &Step, config: &Detection) -> Option<Slowed> {
        let dur = step.dur.0 as f64;
        let fit = match &self.state {
            State::Anomalous(open) => Some(open.fit),
            State::Learning | State::Calm => self.usual(step, config),
        };
        let Some(fit) = fit else {
            self.learn(no, dur);
            return None;
        };
        let judged = self.judged(no, step, &fit, config);
        match &mut self.state {
            State::Anomalous(open) => {
                let over = open.step(&judged, config);
                if !over {
                    return self.divided(step, config);
                }
                if self.by_seconds() {
                    // It is a part of what the seconds tell.
                    self.close_single(step.signature());
                    return None;
                }
                self.close(step.signature())
            }
            State::Learning | State::Calm => {
                self.state = State::Calm;
                self.calm(&judged, fit, config);
                None
            }
        }
    }

    /// What the anomaly of single steps was until it came to another level, if it just did.
    fn divided(&mut self, step: &Step, config: &Detection) -> Option<Slowed> {
        if self.by_seconds() {
            return None;
        }
        let State::Anomalous(open) = &mut self.state else { return None };
        let (at, since, change) = open.change(step.end(), config)?;
        let before = open.divide(at, since, change);
        before.anomaly(step.signature())
    }

    /// Counts a step, whatever becomes of it.
    fn count(&mut self, step: &Step) {
        self.seen += 1;
        self.last_end = self.last_end.max(step.end());
        if let Some(last) = self.last_ts.replace(step.ts) {
            let gap = step.ts.saturating_sub(last).as_secs_f64().max(1e-6);
            self.interval =
                if self.interval == 0.0 { gap } else { 0.95 * self.interval + 0.05 * gap };
        }
    }

    /// What is usual, once enough was learned for a step to be compared with it.
    fn usual(&self, step: &Step, config: &Detection) -> Option<Fit> {
        let first = self.first_ts?;
        self.baseline.fit().filter(|_| step.ts >= first + config.learn_for)
    }

    /// The latest steps of which was learned what is usual, oldest first.
    pub(crate) fn learned(&self) -> &[StepNo] {
        &self.learned
    }

    fn learn(&mut self, no: StepNo, dur: f64) {
        self.baseline.learn(dur);
        if self.learned.len() >= 2 * COMPARED {
            self.learned.drain(..COMPARED);
        }
        self.learned.push(no);
        self.limit = self.limit.filter(|_| !self.seen.is_multiple_of(64));
    }

    /// The chance that a usual step is taken for a spike: the chosen rate a day, for one step.
    fn false_alarm(&self, config: &Detection) -> f64 {
        (config.false_alarms_per_day * self.interval.max(1e-6) / 86_400.0).min(1e-3)
    }

    /// Compares a step with what is usual, and holds it back in case a shift has begun.
    fn judged(&mut self, no: StepNo, step: &Step, fit: &Fit, config: &Detection) -> Judged {
        let dur = step.dur.0 as f64;
        let log = dur.max(1.0).ln();
        let least = fit.center + (1.0 + config.min_effect).ln();
        let threshold = fit.threshold(self.false_alarm(config)).max(least);
        let clustered = self.cluster(no, log, fit);
        let spike = log > threshold || clustered;
        let sum = self.cusum.add(fit.spreads(log), no);
        self.recent.push((no, dur));
        if self.recent.len() > DATED_BACK {
            self.recent.remove(0);
        }
        Judged { no, ts: step.ts, end: step.end(), log, threshold, clustered, spike, sum }
    }

    /// A step of a calm series: it is as usual, or an anomaly has begun.
    fn calm(&mut self, step: &Judged, fit: Fit, config: &Detection) {
        let p = self.false_alarm(config);
        let baseline = &self.baseline;
        let limit = *self.limit.get_or_insert_with(|| shift_limit(&baseline.settled(), &fit, p));
        // Of steps of several kinds a sum of clipped deviations says which kinds came, and seconds say what they lost.
        let shift = step.sum > limit && !(fit.is_broad() && self.surge.is_able());
        if !step.spike && !shift {
            self.learn_settled();
            return;
        }
        let since = if shift { self.shifted_since(&fit).min(step.no) } else { step.no };
        let (steps, logs) = self.begun(step, since);
        if step.clustered {
            // They are reported now, and count for no other cluster but their own.
            self.learned.retain(|no| !steps.contains(no));
        }
        // What was held back and lies before the shift is usual after all.
        let held_back = self.recent.iter().map(|r| r.0).filter(|no| *no < since);
        let mut usual: Vec<StepNo> = self.learned.iter().copied().chain(held_back).collect();
        usual.drain(..usual.len().saturating_sub(COMPARED));
        let score = (step.log - fit.center) / (step.threshold - fit.center);
        self.recent.retain(|r| r.0 < since);
        self.learn_settled();
        // The last of them is this one; where it is no part of a shift, all before are outliers.
        let first_spike = if shift { steps.len().saturating_sub(1) } else { 0 };
        self.state = State::Anomalous(Box::new(Open {
            fit,
            threshold: step.threshold,
            usual,
            to_last_slow: steps.len(),
            last_slow: step.end,
            usual_since: 0,
            heights: logs.iter().map(|log| Open::height(&fit, *log)).collect(),
            durations: logs.iter().map(|log| log.exp()).collect(),
            begins: vec![step.ts; steps.len()],
            since: step.ts,
            follows: None,
            steps,
            first_spike: step.spike.then_some(first_spike),
            latest: VecDeque::new(),
            score: score.max(step.sum / limit),
        }));
    }

    /// The steps with which an anomaly has begun, and their log durations: those held back `since` it began,
    /// and the outliers before it if they are what it consists of.
    fn begun(&mut self, step: &Judged, since: StepNo) -> (Vec<StepNo>, Vec<f64>) {
        let reported = self.reported.replace(step.no);
        let new = |o: &&Outlier| o.no < since && reported.is_none_or(|reported| o.no > reported);
        let outliers = self.outliers.iter().filter(|o| step.clustered && new(o));
        let outliers = outliers.map(|o| (o.no, o.log));
        let recent = self.recent.iter().filter(|r| r.0 >= since);
        let recent = recent.map(|r| (r.0, r.1.max(1.0).ln()));
        outliers.chain(recent).unzip()
    }

    /// Whether this step is an outlier, and one of a handful.
    fn cluster(&mut self, no: StepNo, log: f64, fit: &Fit) -> bool {
        let far = fit.threshold(1.0 / OUTLIER_ONE_IN).max(fit.center + OUTLIER_TIMES.ln());
        if log <= far {
            return false;
        }
        let (many, among) = CLUSTER;
        self.outliers.push_back(Outlier { seen: self.seen, no, log });
        while self.outliers.front().is_some_and(|o| o.seen + among < self.seen) {
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
    fn shifted_since(&self, fit: &Fit) -> StepNo {
        let z = |dur: f64| fit.spreads(dur.max(1.0).ln()).clamp(-CLIP, CLIP);
        let candidates = self.recent.iter().filter(|r| r.0 >= self.cusum.since);
        let last: Vec<f64> = self.recent.iter().rev().take(4).map(|r| z(r.1)).collect();
        let half = (crate::stats::mean(&last) / 2.0).max(SLACK);
        let (mut sum, mut least, mut since) = (0.0, 0.0, self.cusum.since);
        let mut next_is_first = false;
        for &(no, dur) in candidates {
            if next_is_first {
                since = no;
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
        let keep_from = (self.cusum.sum > 0.0).then_some(self.cusum.since);
        let is_settled = |no: StepNo| keep_from.is_none_or(|from| no < from);
        let settled: Vec<(StepNo, f64)> =
            self.recent.iter().copied().filter(|r| is_settled(r.0)).collect();
        if settled.is_empty() && self.recent.len() >= DATED_BACK {
            // The sum has stayed above zero for long without a shift: that is the usual, then.
            let (no, dur) = self.recent.remove(0);
            self.learn(no, dur);
            return;
        }
        self.recent.retain(|r| !is_settled(r.0));
        for (no, dur) in settled {
            self.learn(no, dur);
        }
    }

    /// Ends the anomaly that has begun, if one has.
    pub(crate) fn close(&mut self, signature: Signature) -> Option<Slowed> {
        let by_seconds = self.by_seconds();
        let off_cpu = self.off_cpu.close(&signature);
        let surged = off_cpu.or(self.surge.close(&signature));
        if self.open().is_none() {
            return self.measured(surged);
        }
        let single = self.close_single(signature);
        self.measured(if by_seconds { surged } else { single })
    }

    /// Whether seconds are anomalous in a series whose steps are of several kinds: they are what is told.
    fn by_seconds(&self) -> bool {
        self.off_cpu.is_open()
            || self.surge.is_open() && self.fit().is_some_and(|fit| fit.is_broad())
    }

    /// Ends the anomaly of single steps, if one has begun.
    fn close_single(&mut self, signature: Signature) -> Option<Slowed> {
        self.open()?;
        self.cusum = Cusum::new();
        self.recent.clear();
        // They belong to this anomaly, and are not the begin of the next one.
        self.outliers.clear();
        match std::mem::replace(&mut self.state, State::Calm) {
            State::Anomalous(open) => open.anomaly(signature),
            State::Learning | State::Calm => None,
        }
    }

    fn open(&self) -> Option<&Open> {
        match &self.state {
            State::Anomalous(open) => Some(open),
            State::Learning | State::Calm => None,
        }
    }

    /// The anomaly that has begun and not ended, as far as it is known.
    pub(crate) fn present(&self, signature: &Signature) -> Option<Slowed> {
        self.measured(match self.open().filter(|_| !self.by_seconds()) {
            Some(open) => open.clone().anomaly(signature.clone()),
            None => self.off_cpu.present(signature).or_else(|| self.surge.present(signature)),
        })
    }

    /// Ends the anomaly of a series that has had no step for long: of steps of another size, say,
    /// since when there is more to do.
    pub(crate) fn close_idle(
        &mut self,
        signature: &Signature,
        now: Ns,
        config: &Detection,
    ) -> Option<Slowed> {
        let usual = Ns((self.interval * 1e9) as i64);
        let patience = config.merge_within.saturating_add(Ns(usual.0.saturating_mul(IDLE)));
        let idle = self.last_end.saturating_add(patience) < now;
        if idle { self.close(signature.clone()) } else { None }
    }

    /// The anomaly if `step` has begun, has not ended, and took `step.dur` so far: the one that is
    /// present, with that step, or one of that step alone if it hangs.
    pub(crate) fn with_open(&self, no: StepNo, step: &Step, config: &Detection) -> Option<Slowed> {
        if let Some(due) = self.recurring.due_open(self.seen + 1, step, config) {
            return due.slow.then(|| due.anomaly(no, step));
        }
        if let Some(open) = self.open() {
            if !hangs(step.dur, open.fit, HUNG, config) {
                return None;
            }
            let mut open = open.clone();
            open.hanging(no);
            return open.anomaly(step.signature());
        }
        let fit = self.usual(step, config)?;
        hangs(step.dur, fit, HUNG, config).then(|| Slowed {
            signature: step.signature(),
            fit,
            threshold: Ns((fit.center.exp() * HUNG) as i64),
            usual: self.learned.iter().rev().take(COMPARED).rev().copied().collect(),
            slow: vec![no],
            score: HUNG,
            alone_from: HUNG,
            against: Against::Lately,
            as_often: 1.0,
            by: By::Alike,
            follows: None,
        })
    }

    /// Who is to blame for these steps is somebody else, so that they do not become usual by coming again.
    pub(crate) fn blame(&mut self, steps: &[StepNo]) {
        self.recurring.blame(steps);
        self.surge.blame(steps);
        self.off_cpu.blame(steps);
    }

    /// Whether an anomaly has begun and not ended.
    pub(crate) fn is_anomalous(&self) -> bool {
        self.open().is_some() || self.surge.is_open() || self.off_cpu.is_open()
    }

    /// What is slow now is the usual from now on.
    pub(crate) fn adopt(&mut self) {
        let recurring = std::mem::take(&mut self.recurring);
        *self = Series { seen: self.seen, last_ts: self.last_ts, recurring, ..Series::new() };
    }

    /// When the latest step began.
    pub(crate) fn last_ts(&self) -> Option<Ns> {
        self.last_ts
    }

    /// Forgets the steps before `first`.
    pub(crate) fn forget(&mut self, first: StepNo) {
        self.learned.retain(|no| *no >= first);
        self.outliers.retain(|o| o.no >= first);
        self.recent.retain(|r| r.0 >= first);
        self.surge.forget(first);
        self.off_cpu.forget(first);
        self.recurring.forget(first);
        self.drift.forget(first);
        if let State::Anomalous(open) = &mut self.state {
            open.forget(first);
        }
    }
}
