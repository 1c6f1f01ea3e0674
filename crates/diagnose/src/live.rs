//! Detection while steps arrive.
//!
//! # What it sees
//! The same series, thresholds and merging as [`crate::detect::incidents`], one step at a time:
//! an incident is reported as soon as it is worth reporting, and again when it has ended. An incident
//! has ended when every series of it was calm and nothing touched it for
//! [`Detection::merge_within`], so that one disturbance is one incident.
//!
//! # Why it matters
//! An answer two seconds after the onset finds the culprit still at it.
//!
//! A step that has begun and does not end is an incident before it ends ([`Live::set_open`]).
//!
//! # What fools it
//! What stays slow for good: after [`ADOPTED`] it is reported as ended, as the usual has changed.

use std::collections::BTreeMap;

use gpuwhy_schema::{EntityId, Ns};

use crate::baseline::Baseline;
use crate::detect::{
    self, ADOPTED, Against, By, Detection, Group, Incident, Series, Signature, Slowed, Step,
    StepNo, Steps,
};

/// A series that has had no step for this long is forgotten.
pub const FORGOTTEN: Ns = Ns::secs(3600);
/// Steps that are remembered at most; half of them go at once.
pub const REMEMBERED: usize = 1 << 16;
/// Steps that an open one is compared with whose series is not known before it ends.
const LIKE_IT: usize = 400;
/// Series that are followed at most; more are counted and not followed.
pub const SERIES: usize = 1 << 14;

/// What is the matter now, with steps by their numbers in [`Live::steps`].
#[derive(Clone, Debug)]
pub enum Look {
    /// Nothing worth reporting.
    Calm,
    /// An incident that has not ended.
    Present(Incident),
    /// An incident that is over.
    Over(Incident),
}

/// All series, and what is the matter with them.
pub struct Live {
    config: Detection,
    steps: Steps,
    series: BTreeMap<Signature, Series>,
    /// Anomalies that have ended and may still touch others.
    ended: Vec<Slowed>,
    /// Where what is the matter came to another level: what was before is told.
    cut: Ns,
    /// How many of `steps`, at the end, have not ended.
    open: usize,
    unfollowed: u64,
}

impl Live {
    /// Nothing seen yet.
    pub fn new(config: Detection) -> Live {
        Live {
            config,
            steps: Steps::default(),
            series: BTreeMap::new(),
            ended: Vec::new(),
            cut: Ns::MIN,
            open: 0,
            unfollowed: 0,
        }
    }

    /// The steps that are remembered, in the order of their arrival.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Steps that belonged to no series, because there were too many.
    pub fn unfollowed(&self) -> u64 {
        self.unfollowed
    }

    /// Takes a finished step, and returns its number if it is followed. Steps of one thread must come in the order of their
    /// ends.
    pub fn push(&mut self, step: Step) -> Option<StepNo> {
        self.set_open(Vec::new());
        if self.steps.len() >= REMEMBERED {
            self.forget(step.ts);
        }
        let signature = step.signature();
        if !self.series.contains_key(&signature) && self.series.len() >= SERIES {
            self.unfollowed += 1;
            return None;
        }
        let no = self.steps.next();
        let one = self.series.entry(signature).or_insert_with(Series::new);
        self.ended.extend(one.step(no, &step, &self.config));
        self.steps.push(step);
        Some(no)
    }

    /// Steps that have begun and not ended, each as long as it has taken so far. Those that take
    /// no longer than they may are left out; the others are the last of [`Live::steps`] until the
    /// next step is pushed or this is called again. Returns these.
    pub fn set_open(&mut self, open: Vec<Step>) -> &[Step] {
        let ended = self.steps.len() - self.open;
        self.steps.truncate(ended);
        for step in open {
            let no = self.steps.next();
            if self.hung(no, &step).is_some() {
                self.steps.push(step);
            }
        }
        self.open = self.steps.len() - ended;
        self.steps.get(ended..).unwrap_or_default()
    }

    /// The anomaly that an open step is or belongs to, if it hangs.
    fn hung(&self, no: StepNo, step: &Step) -> Option<Slowed> {
        match self.series.get(&step.signature()) {
            Some(series) => series.with_open(no, step, &self.config),
            None => self.hung_of_any_length(no, step),
        }
    }

    /// The same of a step whose series are measured by what there is to do in it, which is known when it has ended: it hangs
    /// if none of the latest took nearly as long.
    fn hung_of_any_length(&self, no: StepNo, step: &Step) -> Option<Slowed> {
        if step.dur < self.config.hang {
            return None;
        }
        let is_like = |before: StepNo, of: &Step| {
            before < no && of.thread == step.thread && of.name == step.name
        };
        let before = self.steps.numbered().rev().filter(|(no, of)| is_like(*no, of)).take(LIKE_IT);
        let mut usual: Vec<StepNo> = before.map(|(no, _)| no).collect();
        usual.reverse();
        let mut baseline = Baseline::default();
        usual.iter().for_each(|no| baseline.learn(self.steps[*no].dur.0 as f64));
        let (fit, longest) = (baseline.fit()?, usual.iter().map(|no| self.steps[*no].dur).max()?);
        let hangs = detect::hangs(step.dur, fit, detect::HUNG, &self.config)
            && step.dur >= longest.saturating_add(self.config.hang);
        hangs.then(|| Slowed {
            signature: step.signature(),
            fit,
            threshold: longest,
            usual,
            slow: vec![no],
            score: detect::HUNG,
            alone_from: detect::HUNG,
            against: Against::Longest,
            as_often: 1.0,
            by: By::Alike,
            follows: None,
        })
    }

    /// Remembers a step that belongs to no series: of a recording before this one, to compare with.
    pub fn remember(&mut self, step: Step) -> StepNo {
        self.set_open(Vec::new());
        let no = self.steps.next();
        self.steps.push(step);
        no
    }

    /// Takes an anomaly that somebody else has found and that has ended.
    pub fn tell(&mut self, slowed: Slowed) {
        self.ended.push(slowed);
    }

    /// Whether the steps of a series are as usual.
    pub fn is_calm(&self, signature: &Signature) -> bool {
        self.series.get(signature).is_some_and(|one| !one.is_anomalous())
    }

    /// The series whose steps are as usual, and the numbers of the latest of these, oldest first: more than `least`.
    pub fn usual(&self, least: usize) -> impl Iterator<Item = (&Signature, &[StepNo])> {
        let calm = self.series.iter().filter(|(_, one)| !one.is_anomalous());
        calm.map(|(signature, one)| (signature, one.learned())).filter(move |of| of.1.len() > least)
    }

    /// The threads of the steps that are remembered, again and again.
    pub fn threads(&self) -> impl Iterator<Item = EntityId> {
        self.steps.iter().map(|step| step.thread)
    }

    /// A verdict has named somebody else for this incident: it does not become usual by coming again at equal
    /// distances, as a checkpoint does.
    pub fn blame_others(&mut self, incident: &Incident) {
        for slowed in &incident.slowed {
            let of_all = Signature { kind: 0, ..slowed.signature.clone() };
            if let Some(series) = self.series.get_mut(&of_all) {
                series.blame(&slowed.slow);
            }
        }
    }

    /// Whether some series is slow, worth reporting or not.
    pub fn is_suspicious(&self) -> bool {
        self.open > 0 || !self.ended.is_empty() || self.series.values().any(|s| s.is_anomalous())
    }

    /// What is the matter with each series, with its open step if that hangs.
    fn present(&mut self, now: Ns) -> Vec<Slowed> {
        let ended = self.steps.len() - self.open;
        let open = self.steps.numbered().skip(ended);
        let open: BTreeMap<Signature, StepNo> =
            open.map(|(no, step)| (step.signature(), no)).collect();
        let mut present: Vec<Slowed> = open
            .iter()
            .filter(|(signature, _)| !self.series.contains_key(signature))
            .filter_map(|(_, no)| self.hung_of_any_length(*no, &self.steps[*no]))
            .collect();
        for (signature, one) in &mut self.series {
            if let Some(&no) = open.get(signature) {
                present.extend(one.with_open(no, &self.steps[no], &self.config));
            } else if let Some(idle) = one.close_idle(signature, now, &self.config) {
                self.ended.push(idle);
            } else {
                present.extend(one.present(signature));
            }
        }
        present
    }

    /// What is the matter at `now`. To be called several times a second; each incident is reported as
    /// over once.
    pub fn look(&mut self, now: Ns) -> Look {
        if !self.is_suspicious() {
            return Look::Calm;
        }
        let present = self.present(now);
        let since_cut = |slowed: &Slowed| detect::since(&self.steps, slowed, self.cut);
        let is_left = |slowed: &Slowed| !slowed.slow.is_empty();
        let present: Vec<Slowed> = present.iter().map(since_cut).filter(is_left).collect();
        let ended = self.ended.iter().map(since_cut).filter(is_left);
        let all = ended.chain(present.iter().cloned()).collect();
        let groups = detect::groups(&self.steps, all, &self.config);
        let calm_before = now.saturating_sub(self.config.merge_within);
        let begun: Option<Ns> = present.iter().map(|s| detect::from(&self.steps, s)).min();
        for Group { from, to, slowed, cut } in groups {
            let goes_on =
                cut.is_none() && (to >= calm_before || begun.is_some_and(|b| b <= to && b >= from));
            let adopted = goes_on && to.saturating_sub(from) >= ADOPTED;
            if goes_on && !adopted {
                if let Some(incident) = detect::incident(&self.steps, slowed, &self.config) {
                    return Look::Present(incident);
                }
                continue;
            }
            if adopted {
                self.adopt();
            }
            self.cut = cut.unwrap_or(self.cut);
            let steps = &self.steps;
            self.ended.retain(|s| match cut {
                Some(cut) => detect::to(steps, s) > cut,
                None => detect::from(steps, s) > to,
            });
            if let Some(incident) = detect::incident(&self.steps, slowed, &self.config) {
                return Look::Over(incident);
            }
        }
        Look::Calm
    }

    /// What is slow now is the usual from now on.
    fn adopt(&mut self) {
        self.series.values_mut().filter(|s| s.is_anomalous()).for_each(Series::adopt);
        self.ended.clear();
    }

    fn forget(&mut self, now: Ns) {
        let first = self.steps.forget(self.steps.len() / 2);
        let since = now.saturating_sub(FORGOTTEN);
        self.series.retain(|_, one| one.last_ts().is_none_or(|last| last >= since));
        self.series.values_mut().for_each(|one| one.forget(first));
        for slowed in &mut self.ended {
            for list in [&mut slowed.usual, &mut slowed.slow] {
                list.retain(|no| *no >= first);
            }
        }
        self.ended.retain(|slowed| !slowed.slow.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::Id;

    use super::*;
    use crate::detect::Expected;
    use crate::roofline::Mix;
    use crate::stats::Random;

    struct World {
        live: Live,
        random: Random,
        now: Ns,
        reported: Vec<String>,
        looked: i64,
        over: Vec<Incident>,
    }

    impl World {
        fn new() -> World {
            let live = Live::new(Detection::default());
            let random = Random::new(3);
            World {
                live,
                random,
                now: Ns::ZERO,
                reported: Vec::new(),
                looked: -1,
                over: Vec::new(),
            }
        }

        /// `n` steps of about `ms`; notes what is reported when it changes.
        fn steps(&mut self, n: usize, ms: f64) {
            self.sized(n, ms, None);
        }

        /// A step that has begun and taken this long so far.
        fn open(&self, ms: i64) -> Step {
            let (thread, rank) = (EntityId(1), None);
            let (ts, dur) = (self.now, Ns::millis(ms));
            Step {
                id: Id(77),
                ts,
                dur,
                thread,
                series: None,
                rank,
                name: "step".into(),
                size: None,
                ran: None,
                expected: Default::default(),
            }
        }

        fn sized(&mut self, n: usize, ms: f64, size: Option<i64>) {
            for _ in 0..n {
                let dur = Ns((ms * 1e6 * (1.0 + self.random.below(40) as f64 / 1000.0)) as i64);
                let id = Id(self.now.0 as u64 + 1);
                let name = "step".into();
                let (thread, rank) = (EntityId(1), None);
                self.live.push(Step {
                    id,
                    ts: self.now,
                    dur,
                    thread,
                    series: None,
                    rank,
                    name,
                    size,
                    ran: None,
                    expected: Default::default(),
                });
                self.now += dur;
                // As often as a watcher that has other things to do.
                let at = self.now.0 / 100_000_000;
                if at == self.looked {
                    continue;
                }
                self.looked = at;
                let what = match self.live.look(self.now) {
                    Look::Calm => "calm".into(),
                    Look::Present(i) => format!("since {}", i.from.0 / 100_000_000),
                    Look::Over(i) => {
                        self.over.push(i.clone());
                        format!("over {}..{}", i.from.0 / 100_000_000, i.to.0 / 100_000_000)
                    }
                };
                if self.reported.last().is_none_or(|last| last.split_once(": ").unwrap().1 != what)
                {
                    self.reported.push(format!("{at}: {what}"));
                }
            }
        }
    }

    #[test]
    fn one_disturbance_with_a_pause_is_one_incident() {
        let mut world = World::new();
        world.steps(500, 20.0);
        world.steps(100, 40.0);
        world.steps(30, 20.0);
        world.steps(100, 40.0);
        world.steps(300, 20.0);
        assert_eq!(
            world.reported,
            ["0: calm", "104: since 101", "210: over 101..189", "211: calm"],
            "{:?}",
            world.reported
        );
    }

    #[test]
    fn a_strong_disturbance_within_a_weak_one_is_an_incident_of_its_own() {
        let mut world = World::new();
        world.steps(500, 20.0);
        world.steps(400, 24.0);
        let (begins, onset) = (world.now, world.now.0 / 100_000_000);
        world.steps(70, 60.0);
        let ends = world.now.0 / 100_000_000;
        world.steps(400, 24.0);
        world.steps(300, 20.0);
        let of = |i: &Incident| (i.from.0 / 100_000_000, i.to.0 / 100_000_000);
        let over: Vec<_> = world.over.iter().map(of).collect();
        assert_eq!(over.len(), 3, "{:?}", world.reported);
        assert_eq!((over[0].1, over[1]), (onset, (onset, ends)), "{:?}", world.reported);
        assert_eq!(world.over[1].from, begins);
        // What is left is told if it lasts.
        assert_eq!(over[2].0, ends);
        assert!(world.reported.last().unwrap().ends_with("calm"), "{:?}", world.reported);
    }

    /// The weak one is an anomaly each time: it pauses for half a second.
    #[test]
    fn a_strong_disturbance_after_weak_ones_that_come_and_go_is_an_incident_of_its_own() {
        let mut world = World::new();
        world.steps(500, 20.0);
        for _ in 0..8 {
            world.steps(40, 24.0);
            world.steps(25, 20.0);
        }
        let begins = world.now;
        world.steps(70, 60.0);
        world.steps(300, 20.0);
        assert_eq!(world.over.len(), 2, "{:?}", world.reported);
        assert_eq!(world.over[1].from, begins, "{:?}", world.reported);
    }

    /// Another thread is a little slow all the time.
    #[test]
    fn disturbances_of_a_series_that_was_calm_between_are_not_joined_by_another_one() {
        let mut world = World::new();
        let other = |world: &mut World, slow: bool| {
            let (ts, dur) = (world.now, Ns::millis(if slow { 13 } else { 10 }));
            let (id, thread, rank) = (Id(1 << 62 | ts.0 as u64), EntityId(2), None);
            world.live.push(Step {
                id,
                ts,
                dur,
                thread,
                series: None,
                rank,
                name: "step".into(),
                size: None,
                ran: None,
                expected: Default::default(),
            });
        };
        for n in 0..900 {
            let disturbed = (500..560).contains(&n) || (760..820).contains(&n);
            world.steps(1, if disturbed { 60.0 } else { 20.0 });
            other(&mut world, n >= 500);
        }
        for _ in 0..300 {
            world.steps(1, 20.0);
            other(&mut world, false);
        }
        assert!(world.over.len() >= 2, "{:?}", world.reported);
        let begins: Vec<i64> = world.over.iter().map(|i| i.from.0 / 100_000_000).collect();
        assert!(begins.iter().any(|at| (170..200).contains(at)), "{begins:?}");
    }

    /// A hiccup of a few steps, and a disturbance 1.6 s later: near enough to be one incident.
    #[test]
    fn a_hiccup_before_a_disturbance_does_not_date_it() {
        let mut world = World::new();
        world.steps(500, 20.0);
        world.steps(3, 45.0);
        world.steps(80, 20.0);
        let begins = world.now;
        world.steps(90, 35.0);
        world.steps(300, 20.0);
        let began: Vec<Ns> = world.over.iter().map(|i| i.from).collect();
        assert_eq!(began, [begins], "{:?}", world.reported);
        let first = &world.over[0].slowed[0];
        let dated_before = first.slow.iter().filter(|&&no| world.live.steps()[no].ts < begins);
        assert_eq!(dated_before.count(), 0);
    }

    /// The first of its bursts is a part of a disturbance that comes in bursts.
    #[test]
    fn a_disturbance_in_bursts_begins_with_the_first() {
        let mut world = World::new();
        world.steps(500, 20.0);
        let begins = world.now;
        for _ in 0..14 {
            world.steps(6, 45.0);
            world.steps(24, 20.0);
        }
        world.steps(300, 20.0);
        assert_eq!(world.over.first().map(|i| i.from), Some(begins), "{:?}", world.reported);
    }

    #[test]
    fn how_a_disturbance_ends_is_no_incident_of_its_own() {
        let mut world = World::new();
        world.steps(500, 20.0);
        world.steps(70, 60.0);
        world.steps(100, 24.0);
        world.steps(300, 20.0);
        assert_eq!(world.over.len(), 1, "{:?}", world.reported);
    }

    #[test]
    fn noise_between_two_disturbances_does_not_join_them() {
        let mut world = World::new();
        world.steps(500, 20.0);
        world.steps(100, 40.0);
        world.steps(60, 20.0);
        world.steps(5, 27.0);
        world.steps(80, 20.0);
        world.steps(100, 60.0);
        world.steps(300, 20.0);
        let over = world.reported.iter().filter(|t| t.contains("over")).count();
        assert_eq!(over, 2, "{:?}", world.reported);
    }

    /// Of a series with a step a second, sixteen usual steps are sixteen seconds.
    #[test]
    fn two_disturbances_five_seconds_apart_are_two_incidents_of_a_series_with_few_steps() {
        let mut world = World::new();
        world.steps(60, 1000.0);
        world.steps(6, 2500.0);
        world.steps(6, 1000.0);
        world.steps(6, 3500.0);
        world.steps(30, 1000.0);
        let over = world.reported.iter().filter(|t| t.contains("over")).count();
        assert_eq!(over, 2, "{:?}", world.reported);
    }

    #[test]
    fn what_is_slow_for_good_becomes_the_usual() {
        let mut world = World::new();
        world.steps(500, 20.0);
        world.steps(18_000, 40.0);
        let over = world.reported.iter().filter(|t| t.contains("over")).count();
        assert_eq!(over, 1, "{:?}", world.reported);
        assert!(world.reported.last().unwrap().ends_with("calm"), "{:?}", world.reported);
    }

    #[test]
    fn a_live_look_finds_what_the_whole_recording_shows() {
        let mut world = World::new();
        world.steps(500, 20.0);
        world.steps(60, 30.0);
        world.steps(300, 20.0);
        let whole = detect::incidents(world.live.steps(), &Detection::default());
        assert_eq!(whole.len(), 1);
        let of =
            |i: &Incident| format!("over {}..{}", i.from.0 / 100_000_000, i.to.0 / 100_000_000);
        assert!(world.reported.iter().any(|t| t.ends_with(&of(&whole[0]))), "{:?}", world.reported);
    }

    #[test]
    fn slow_steps_of_a_size_that_comes_no_more_are_over() {
        let mut world = World::new();
        world.sized(300, 20.0, Some(64));
        world.sized(300, 40.0, Some(128));
        world.sized(50, 60.0, Some(128));
        world.sized(400, 20.0, Some(64));
        let over = world.reported.iter().filter(|t| t.contains("over")).count();
        assert_eq!(over, 1, "{:?}", world.reported);
        assert!(world.reported.last().unwrap().ends_with("calm"), "{:?}", world.reported);
    }

    #[test]
    fn a_step_that_hangs_is_reported_before_it_ends_and_once() {
        let mut world = World::new();
        world.steps(500, 20.0);
        assert!(world.live.set_open(vec![world.open(900)]).is_empty(), "not long enough");
        assert!(matches!(world.live.look(world.now + Ns::millis(900)), Look::Calm));
        let began = world.now;
        assert_eq!(world.live.set_open(vec![world.open(1100)]).len(), 1);
        match world.live.look(world.now + Ns::millis(1100)) {
            Look::Present(incident) => assert_eq!(incident.from, began),
            other => panic!("{other:?}"),
        }
        // It ends at last, and what follows is as usual.
        world.steps(1, 3000.0);
        world.steps(300, 20.0);
        let over = world.reported.iter().filter(|t| t.contains("over")).count();
        assert_eq!(over, 1, "{:?}", world.reported);
        // A thread that is not known has no usual.
        let stranger = Step { thread: EntityId(9), ..world.open(60_000) };
        assert!(world.live.set_open(vec![stranger]).is_empty());
    }

    #[test]
    fn a_step_that_hangs_among_slow_ones_on_an_uneven_machine_is_reported() {
        let mut world = World::new();
        // Its usual wanders by as much as the machine's other work does.
        for _ in 0..9 {
            world.steps(25, 19.0);
            world.steps(25, 23.0);
            world.steps(2, 35.0);
        }
        assert!(world.live.is_suspicious(), "the machine is busy: {:?}", world.reported);
        let (open, began) = (world.open(8000), world.now);
        assert_eq!(world.live.set_open(vec![open]).len(), 1);
        match world.live.look(world.now + Ns::secs(8)) {
            Look::Present(incident) => assert!(incident.to >= began + Ns::secs(8)),
            other => panic!("{other:?}"),
        }
    }

    /// Every 500 steps one of two seconds, which somebody is blamed for each time it is over.
    fn stalls_told(foreign: bool, mut period: impl FnMut(usize) -> usize) -> usize {
        let mut world = World::new();
        let mut told = 0;
        for stall in 0..9 {
            world.steps(period(stall) - 301, 20.0);
            world.steps(1, 2000.0);
            world.steps(300, 20.0);
            for incident in std::mem::take(&mut world.over) {
                told += 1;
                if foreign {
                    world.live.blame_others(&incident);
                }
            }
        }
        told
    }

    #[test]
    fn regular_stalls_that_somebody_else_was_named_for_are_told_each_time() {
        assert_eq!(stalls_told(false, |_| 500), 2);
        // Once a while by the clock is not always at the same step.
        assert_eq!(stalls_told(false, |n| 500 + n % 2), 2);
        assert_eq!(stalls_told(true, |n| 500 + n % 2), 9);
        // Who counts the steps of the program is its own helper.
        assert!(stalls_told(true, |_| 500) <= 6);
    }

    #[test]
    fn a_step_that_is_open_when_a_checkpoint_is_due_hangs_from_when_that_would_be_over() {
        let mut world = World::new();
        for _ in 0..6 {
            world.steps(499, 20.0);
            world.steps(1, 3000.0);
        }
        world.steps(250, 20.0);
        assert_eq!(world.live.set_open(vec![world.open(1100)]).len(), 1, "no checkpoint is due");
        world.steps(249, 20.0);
        assert!(world.live.set_open(vec![world.open(4000)]).is_empty(), "a checkpoint is due");
        let began = world.now;
        assert_eq!(world.live.set_open(vec![world.open(6000)]).len(), 1, "twice as long");
        match world.live.look(world.now + Ns::secs(6)) {
            Look::Present(incident) => {
                assert_eq!((incident.from, incident.slowed[0].usual.len()), (began, 6))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_step_of_any_length_hangs_if_none_before_took_nearly_as_long() {
        let mut world = World::new();
        let mut learned = |n: i64| {
            for k in 0..n {
                // Prompts of all lengths among answers.
                let ms = if k % 10 == 9 { 20 * (k % 7 + 1) } else { 3 };
                let ns = ms as f64 * 1e6;
                let expected = Expected::Priced { mix: Mix::Decode, ns, first_ns: Some(ns) };
                let dur = Ns::millis(ms);
                let id = Id(world.now.0 as u64 + 1);
                let step = Step { id, ts: world.now, dur, expected, ..world.open(0) };
                world.live.push(step);
                world.now += dur + Ns::millis(1);
            }
        };
        learned(600);
        world.live.set_open(vec![world.open(900)]);
        assert!(matches!(world.live.look(world.now + Ns::millis(900)), Look::Calm));
        // The longest took 140 ms.
        world.live.set_open(vec![world.open(1200)]);
        match world.live.look(world.now + Ns::millis(1200)) {
            Look::Present(incident) => {
                assert_eq!((incident.from, incident.slowed[0].usual.len()), (world.now, LIKE_IT));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn memory_stays_bounded_and_steps_keep_their_numbers() {
        let mut world = World::new();
        world.steps(3 * REMEMBERED, 1.0);
        assert!(world.live.steps().len() <= REMEMBERED);
        world.steps(400, 3.0);
        world.steps(3000, 1.0);
        assert!(world.reported.iter().any(|t| t.contains("over")), "{:?}", world.reported);
    }
}
