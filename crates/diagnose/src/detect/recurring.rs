//! Long steps that come again, under the name of all others: a checkpoint every fifty steps, an evaluation every
//! half hour.
//!
//! # What it sees
//! A series may be a mixture: most steps are of one kind, its *body*, and every so often there is one of another
//! kind that takes much longer. A long step belongs to a *kind* if it comes when that kind is due: so many steps
//! after the last one, or so much time. A kind is known once three steps were alike and came at equal distances. Its
//! steps are then compared with their own kind, and with nothing else: they neither widen the tail of the body nor
//! begin an anomaly of it, and one that takes much longer than its kind is told as such.
//!
//! # Why it matters
//! An evaluation every half hour would be 48 alarms a day, and checkpoints among the steps that were learned from
//! hide every fault that is shorter than a checkpoint.
//!
//! # What fools it
//! Only its rhythm tells a habit of the program from a disturbance: what comes from outside seldom counts the
//! program's steps. What begins later than one of its own distances after the series is told as long as it is new, for
//! [`ADOPTED`], and is usual from then on, like all that stays. What has always been there is usual from its third time
//! on, and that may be a job of cron, once a minute; where a verdict has named another process for it, only what keeps
//! step with this one to the step, five times and more, is its habit ([`Recurring::blame`]). Long steps without a rhythm are told each time. Several long steps in a row are no kind.

use std::collections::VecDeque;

use gpuwhy_schema::Ns;

use super::merge::hangs;
use super::{ADOPTED, Against, By, Detection, Signature, Slowed, Step, StepNo};
use crate::baseline::{Fit, NEEDED};
use crate::stats::median_and_mad;

/// A step is long if it takes this many times as long as the body,
const LONG: f64 = 1.5;
/// and lies this many of its scales beyond it.
const LONG_SCALES: f64 = 8.0;
/// Long steps without a kind that are remembered.
const REMEMBERED: usize = 64;
/// Kinds of a series, at most; the one that came last longest ago goes first.
const KINDS: usize = 4;
/// Steps of a kind that are remembered.
const OF_A_KIND: usize = 64;
/// This many steps, alike and at equal distances, are a kind. Where single ones are not worth a finding, there
/// are many more of them, and more are needed.
const ALIKE: usize = 3;
/// Long steps that lie apart by no more than this factor are alike: by the first if that suffices.
const FACTORS: [f64; 2] = [1.25, 2.0];
/// Of all that are alike, this share keeps the distance.
const MOST: f64 = 2.0 / 3.0;
/// Kinds come at least so many steps apart: what is denser is a slower body.
const LEAST_PERIOD: usize = 4;
/// Distances are equal within this share, in steps (and by one) and in time.
const STEPS_APART: f64 = 0.02;
const TIME_APART: f64 = 0.05;
/// A kind may be left out this often in a row (where two kinds fall together it is another one); then it is no more.
const LEFT_OUT: u64 = 8;
/// So probable may it be that random steps come at such distances, where single ones are not worth a finding.
const CHANCE: f64 = 1e-6;
/// Distances out of time that are remembered: the rest of an epoch, after which counting begins anew.
const RESTS: usize = 3;
/// A kind has no smaller scale than this, and a step of it is slow from this many scales on,
const KIND_SCALE: f64 = 0.05;
const KIND_SCALES: f64 = 6.0;
/// and if it took this many times as long as its kind.
const KIND_TIMES: f64 = 1.5;
/// Of this many steps of a kind in a row, so many were slow as [`Detection::min_steps`] says: the kind is slower.
const IN_A_ROW: usize = 5;
/// What a kind that keeps its distance is worth at most, and what a step out of time costs it.
const TRUST: i32 = 8;
const DISTRUST: i32 = 2;

/// A step as this looks at it.
#[derive(Clone, Copy, Debug)]
struct Long {
    /// Which of the series it was.
    seen: u64,
    no: StepNo,
    ts: Ns,
    log: f64,
    /// Somebody else was the cause.
    foreign: bool,
}

/// At which distance a kind comes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Every {
    Steps(u64),
    Time(Ns),
}

/// Steps that come again.
#[derive(Debug)]
struct Kind {
    number: u8,
    every: Every,
    since: Ns,
    /// It is usual, and not only regular so far.
    accepted: bool,
    last: Long,
    /// One that came out of time since: the next may be counted from it.
    stray: Option<Long>,
    /// Distances at which one came out of time.
    rests: VecDeque<u64>,
    trust: i32,
    logs: VecDeque<f64>,
    usual: VecDeque<StepNo>,
    fit: Fit,
    /// Which of the latest were slow.
    latest: VecDeque<(StepNo, bool)>,
}

/// What a step is.
#[derive(Debug)]
pub(super) enum Taken {
    /// One of the body, or of no kind: to be compared with the body.
    Body,
    /// One of a kind, and as that is.
    Usual,
    /// One of a kind, and much longer: what is the matter with the kind, if that is known already.
    Slow(Option<Slowed>),
    /// The one by which a kind became known: its steps so far, which are no part of the body, by their log durations
    /// and numbers.
    Known(Vec<(StepNo, f64)>),
}

/// The kinds of a series, and long steps that may become one.
#[derive(Debug, Default)]
pub(super) struct Recurring {
    long: VecDeque<Long>,
    kinds: Vec<Kind>,
    numbered: u8,
    previous_was_long: bool,
    began: Option<Ns>,
}

impl Recurring {
    /// Takes the next step, which is the `seen`th of the series, where the body is as `body` says.
    pub fn take(
        &mut self,
        seen: usize,
        no: StepNo,
        step: &Step,
        body: &Fit,
        config: &Detection,
    ) -> Taken {
        let began = *self.began.get_or_insert(step.ts);
        let log = (step.dur.0.max(1) as f64).ln();
        let long = log > body.center + LONG.ln().max(LONG_SCALES * body.scale);
        if !long {
            self.previous_was_long = false;
            return Taken::Body;
        }
        let this = Long { seen: seen as u64, no, ts: step.ts, log, foreign: false };
        let regular = match self.due(&this, body, false) {
            Some(kind) => {
                let kind = &mut self.kinds[kind];
                kind.follow(this);
                kind.learn(&this);
                kind.accepted = this.ts.saturating_sub(kind.since) >= ADOPTED;
                if kind.accepted {
                    return Taken::Known(kind.members());
                }
                true
            }
            None => false,
        };
        if let Some(kind) = self.due(&this, body, true) {
            let kind = &mut self.kinds[kind];
            kind.follow(this);
            if log <= kind.limit() {
                kind.learn(&this);
                return Taken::Usual;
            }
            let slow = kind.slower(&this, step, config);
            // It may be that the kind has grown for good, or that another one falls together with it.
            let known = if regular { None } else { self.known(this, began, step, body, config) };
            return known.map_or(Taken::Slow(slow), Taken::Known);
        }
        let follows = std::mem::replace(&mut self.previous_was_long, true);
        if regular {
            return Taken::Body;
        }
        self.out_of_time(&this);
        if follows {
            // Several in a row are a slower body, and not one of a kind.
            if self.long.back().is_some_and(|last| last.seen + 1 == this.seen) {
                self.long.pop_back();
            }
            return Taken::Body;
        }
        self.known(this, began, step, body, config).map_or(Taken::Body, Taken::Known)
    }

    /// The kind that is due and that a long step is nearest to, of those that are accepted or of the others: half of
    /// the way there is the least.
    fn due(&self, this: &Long, body: &Fit, accepted: bool) -> Option<usize> {
        let away = |kind: &Kind| (this.log - kind.fit.center).abs();
        let is_due = |kind: &Kind| {
            kind.accepted == accepted
                && this.log >= (body.center + kind.fit.center) / 2.0
                && (accepted || away(kind) <= FACTORS[1].ln())
                && kind.is_due(this.seen, this.ts)
        };
        let due = self.kinds.iter().enumerate().filter(|(_, kind)| is_due(kind));
        due.min_by(|a, b| away(a.1).total_cmp(&away(b.1))).map(|(index, _)| index)
    }

    /// A long step that no kind was due for: where it is like one, that has lost its rhythm, or counts anew.
    fn out_of_time(&mut self, this: &Long) {
        for kind in &mut self.kinds {
            if (this.log - kind.fit.center).abs() <= FACTORS[0].ln() {
                kind.trust -= DISTRUST;
                if kind.rests.len() == RESTS {
                    kind.rests.pop_front();
                }
                kind.rests.push_back(this.seen - kind.last.seen);
                kind.stray = Some(*this);
            }
        }
        self.kinds.retain(|kind| kind.trust > 0 && !kind.is_left_out(this.seen, this.ts));
    }

    fn remember(&mut self, this: Long) {
        if self.long.len() == REMEMBERED {
            self.long.pop_front();
        }
        self.long.push_back(this);
    }

    /// Remembers a long step; whether it is one of a kind that becomes known by it, and the steps of that.
    fn known(
        &mut self,
        this: Long,
        began: Ns,
        step: &Step,
        body: &Fit,
        config: &Detection,
    ) -> Option<Vec<(StepNo, f64)>> {
        self.remember(this);
        let alone = hangs(step.dur, *body, super::merge::HUNG, config);
        let (rhythm, factor) = FACTORS.iter().find_map(|factor| {
            let rhythm = rhythm(self.long.iter().rev().filter(like(this, *factor)))?;
            (alone || rhythm.chance <= CHANCE).then_some((rhythm, *factor))
        })?;
        let latest_first = self.long.iter().rev().filter(like(this, factor));
        let mut members: Vec<Long> = latest_first.take(rhythm.members).copied().collect();
        members.reverse();
        let foreign = members.iter().any(|member| member.foreign);
        if foreign && !(rhythm.exact && rhythm.chance <= CHANCE) {
            return None;
        }
        let first = members[0];
        let always = match rhythm.every {
            Every::Steps(period) => first.seen <= period + period / 2 + NEEDED as u64,
            Every::Time(period) => first.ts.saturating_sub(began).0 <= period.0 + period.0 / 2,
        };
        self.long.retain(|l| members.iter().all(|member| member.seen != l.seen));
        self.numbered = self.numbered.checked_add(1).unwrap_or(1);
        if self.kinds.len() == KINDS {
            let oldest = (0..KINDS).min_by_key(|&index| self.kinds[index].last.seen)?;
            self.kinds.remove(oldest);
        }
        let kind = Kind::new(self.numbered, rhythm.every, &members, always);
        let known = kind.accepted.then(|| kind.members());
        self.kinds.push(kind);
        known
    }

    /// Whether some steps are known to be of a kind of their own.
    pub fn has_kinds(&self) -> bool {
        self.kinds.iter().any(|kind| kind.accepted)
    }

    /// The kind that is due now, of a step that has begun and not ended: up to when that is no wonder.
    pub fn due_open(&self, seen: usize, step: &Step, config: &Detection) -> Option<Open<'_>> {
        let due = |kind: &&Kind| kind.accepted && kind.is_due(seen as u64, step.ts);
        let due = self.kinds.iter().filter(due);
        let kind = due.max_by(|a, b| a.fit.center.total_cmp(&b.fit.center))?;
        let slow = (step.dur.0 as f64).ln() > kind.limit()
            && hangs(step.dur, kind.fit, KIND_TIMES, config);
        Some(Open { kind, slow })
    }

    /// Who is to blame for these steps is somebody else: they are a habit of this program only if they keep step with
    /// it exactly, and have done so more often.
    pub fn blame(&mut self, steps: &[StepNo]) {
        for long in self.long.iter_mut().filter(|long| steps.contains(&long.no)) {
            long.foreign = true;
        }
        let blamed = |kind: &Kind| kind.usual.iter().any(|no| steps.contains(no));
        self.kinds.retain(|kind| kind.accepted || !blamed(kind));
    }

    /// Forgets the numbers of steps before `first`.
    pub fn forget(&mut self, first: StepNo) {
        for kind in &mut self.kinds {
            kind.usual.retain(|no| *no >= first);
            kind.latest.retain(|(no, _)| *no >= first);
        }
    }
}

/// A step that has begun when a kind was due.
pub(super) struct Open<'a> {
    kind: &'a Kind,
    /// It takes longer than its kind.
    pub slow: bool,
}

impl Open<'_> {
    /// The anomaly of that step.
    pub fn anomaly(&self, no: StepNo, step: &Step) -> Slowed {
        self.kind.anomaly(step.signature(), vec![no], (step.dur.0 as f64).ln())
    }
}

impl Kind {
    fn new(number: u8, every: Every, members: &[Long], always: bool) -> Kind {
        let (first, last) = (members[0], members[members.len() - 1]);
        let mut kind = Kind {
            number,
            every,
            since: first.ts,
            accepted: always || last.ts.saturating_sub(first.ts) >= ADOPTED,
            last,
            stray: None,
            rests: VecDeque::new(),
            trust: ALIKE as i32,
            logs: VecDeque::new(),
            usual: VecDeque::new(),
            fit: fit(&[]),
            latest: VecDeque::new(),
        };
        members.iter().for_each(|member| kind.learn(member));
        kind
    }

    fn learn(&mut self, step: &Long) {
        if self.logs.len() == OF_A_KIND {
            self.logs.pop_front();
        }
        if self.usual.len() == OF_A_KIND {
            self.usual.pop_front();
        }
        self.logs.push_back(step.log);
        self.usual.push_back(step.no);
        self.fit = fit(self.logs.make_contiguous());
        self.noted(step.no, false);
    }

    fn members(&self) -> Vec<(StepNo, f64)> {
        // Numbers of the oldest may be forgotten.
        let logs = self.logs.iter().copied().rev();
        self.usual.iter().copied().rev().zip(logs).collect()
    }

    fn noted(&mut self, no: StepNo, slow: bool) {
        if self.latest.len() == IN_A_ROW {
            self.latest.pop_front();
        }
        self.latest.push_back((no, slow));
    }

    /// From which log duration on a step is slower than its kind.
    fn limit(&self) -> f64 {
        self.fit.center + KIND_TIMES.ln().max(KIND_SCALES * self.fit.scale)
    }

    /// Whether one is due now.
    fn is_due(&self, seen: u64, ts: Ns) -> bool {
        self.is_due_after(&self.last, seen, ts)
            || self.stray.is_some_and(|stray| self.is_due_after(&stray, seen, ts))
    }

    fn is_due_after(&self, last: &Long, seen: u64, ts: Ns) -> bool {
        let steps = seen.saturating_sub(last.seen);
        match self.every {
            Every::Steps(period) => {
                let times = (steps + period / 2) / period;
                let away = steps.abs_diff(times * period);
                let rest = self.rests.contains(&steps);
                (1..=LEFT_OUT).contains(&times) && away <= steps_apart(period) || rest
            }
            Every::Time(period) => {
                let passed = ts.saturating_sub(last.ts).0;
                let times = ((passed + period.0 / 2) / period.0).max(1);
                let away = (passed - times * period.0).unsigned_abs() as f64;
                times as u64 <= LEFT_OUT && away <= TIME_APART * period.0 as f64
            }
        }
    }

    fn is_left_out(&self, seen: u64, ts: Ns) -> bool {
        match self.every {
            Every::Steps(period) => seen.saturating_sub(self.last.seen) > (LEFT_OUT + 1) * period,
            Every::Time(period) => {
                ts.saturating_sub(self.last.ts).0 > (LEFT_OUT as i64 + 1) * period.0
            }
        }
    }

    /// One has come: the next is counted from it.
    fn follow(&mut self, this: Long) {
        if let Every::Time(period) = &mut self.every {
            // It may count from the end of the last one, and that may take longer than it did.
            let passed = this.ts.saturating_sub(self.last.ts).0;
            if passed < period.0 + period.0 / 2 {
                *period = Ns((3 * period.0 + passed) / 4);
            }
        }
        self.trust = (self.trust + 1).min(TRUST);
        (self.last, self.stray) = (this, None);
    }

    /// A step that is slower than its kind; what there is to tell of it.
    fn slower(&mut self, this: &Long, step: &Step, config: &Detection) -> Option<Slowed> {
        self.noted(this.no, true);
        let slow = if hangs(step.dur, self.fit, KIND_TIMES, config) {
            vec![this.no]
        } else {
            let slow = self.latest.iter().filter(|(_, slow)| *slow).map(|(no, _)| *no);
            Some(slow.collect::<Vec<_>>()).filter(|slow| slow.len() >= config.min_steps)?
        };
        self.latest.clear();
        Some(self.anomaly(step.signature(), slow, this.log))
    }

    fn anomaly(&self, signature: Signature, slow: Vec<StepNo>, log: f64) -> Slowed {
        Slowed {
            signature: Signature { kind: self.number, ..signature },
            fit: self.fit,
            threshold: Ns(self.limit().exp().min(9e18) as i64),
            usual: self.usual.iter().copied().collect(),
            slow,
            score: (log - self.fit.center) / (self.limit() - self.fit.center),
            alone_from: KIND_TIMES,
            against: Against::Lately,
            as_often: 1.0,
            by: By::Alike,
            follows: None,
        }
    }
}

/// Whether a long step is like this one, by a factor.
fn like<'a>(this: Long, factor: f64) -> impl Fn(&&'a Long) -> bool + Clone {
    move |l| (l.log - this.log).abs() <= factor.ln()
}

fn fit(logs: &[f64]) -> Fit {
    let (center, scale) = median_and_mad(logs);
    let scale = scale.max(KIND_SCALE);
    Fit { center, scale, tail_from: center + scale, tail_mean: scale / 2.0 }
}

fn steps_apart(period: u64) -> u64 {
    ((STEPS_APART * period as f64) as u64).max(1)
}

/// The distance that long steps keep.
struct Rhythm {
    every: Every,
    /// How many of the latest keep it.
    members: usize,
    /// How probable it is that random ones do.
    chance: f64,
    /// They keep it to the step.
    exact: bool,
}

/// The rhythm of long steps that are alike, given the latest first, if they have one.
fn rhythm<'a>(latest_first: impl Iterator<Item = &'a Long> + Clone) -> Option<Rhythm> {
    let in_steps = |a: &Long, b: &Long| (a.seen - b.seen) as f64;
    let in_time = |a: &Long, b: &Long| a.ts.saturating_sub(b.ts).0 as f64;
    let steps =
        keeps(latest_first.clone(), in_steps, |period| steps_apart(period as u64) as f64, 1.0)
            .map(|kept| (Every::Steps(kept.period as u64), kept));
    let found = steps.or_else(|| {
        let kept = keeps(latest_first.clone(), in_time, |period| TIME_APART * period, 1e-9)?;
        Some((Every::Time(Ns(kept.period as i64)), kept))
    });
    let (every, kept) = found?;
    let most = kept.members as f64 >= MOST * latest_first.count() as f64;
    let exact = kept.away == 0.0 && matches!(every, Every::Steps(_));
    most.then_some(Rhythm { every, members: kept.members, chance: kept.chance, exact })
}

struct Kept {
    period: f64,
    members: usize,
    /// How far from it one was, at most.
    away: f64,
    chance: f64,
}

/// How many of the latest long steps keep one distance, or a few times that, within `apart` of it. Distances are whole
/// multiples of `finest`.
fn keeps<'a>(
    latest_first: impl Iterator<Item = &'a Long> + Clone,
    distance: impl Fn(&Long, &Long) -> f64,
    apart: impl Fn(f64) -> f64,
    finest: f64,
) -> Option<Kept> {
    let pairs = latest_first.clone().zip(latest_first.skip(1));
    let dense = |(a, b): &(&Long, &Long)| a.seen - b.seen < LEAST_PERIOD as u64;
    let mut distances = pairs.take_while(|pair| !dense(pair)).map(|(a, b)| distance(a, b));
    let first_two = (distances.next()?, distances.next()?);
    let period = first_two.0.min(first_two.1);
    if period < finest {
        return None;
    }
    let (mut members, mut once, mut away) = (1, 0, 0.0);
    for distance in [first_two.0, first_two.1].into_iter().chain(distances) {
        let times = (distance / period).round();
        let off = (distance - times * period).abs();
        if times > LEFT_OUT as f64 || off > apart(period) {
            break;
        }
        members += 1;
        once += usize::from(times == 1.0);
        away = f64::max(away, off);
    }
    let enough = members >= ALIKE && 2 * once >= members - 1 && (once >= 2 || members > ALIKE);
    // The first distance is chance; each other one had to fall where it did. No clock is better than this.
    let one = ((2.0 * away + finest) / period).clamp(0.01, 1.0);
    enough.then(|| Kept { period, members, away, chance: one.powi(members as i32 - 2) })
}

#[cfg(test)]
mod tests;
