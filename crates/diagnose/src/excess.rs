//! What a slow step spent beyond a usual one, part by part.
//!
//! The parts of a step sum to its duration, so means of parts sum to the mean duration, and the
//! differences of the means sum to the excess. Nothing is fitted; what no part explains stays as
//! [`PartKind::Unknown`].
//!
//! A rank that waits for another sees what the other does at that time, which for the most part is
//! what it always does, only later. So what the waiting grew by is distributed in the proportions in
//! which the awaited rank's own steps grew: they are why it was late.
mod weighing;

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _, HashSet};
use gpuwhy_schema::{Class, EntityId, Id, Name, Ns, Part, PartKind};

use crate::classes::{self, Counts};
use crate::detect::{By, Incident, StepNo, Steps};
use crate::on_cpu::{Stretch, Stretches, grew_most, stretches};
use crate::spans::{SpanInStep, StepRows, covered};
use crate::stats;

pub use weighing::Weighing;

/// A kind of part and who is blamed for it.
pub type Key = (PartKind, Option<EntityId>);

/// Where the time of one step went.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The step's duration in ns.
    pub dur: f64,
    /// What it should take, in ns, for what there was to do in it, by what was learned lately; its duration where that is
    /// not known.
    pub expected: f64,
    /// The same by what was known first.
    pub first: f64,
    /// Its parts in ns, summed, but for those that were spent waiting for another rank.
    pub parts: Vec<(Key, f64)>,
    /// What other ranks did while it waited for them, in ns, by their threads.
    pub awaited: Vec<(EntityId, Key, f64)>,
    /// How often it missed the page cache, and the data had been there.
    pub misses: f64,
    /// The same of data that nobody had evicted.
    pub cold: f64,
    /// How often its own thread slept for a time.
    pub sleeps: f64,
    /// Of its parts, what lies in spans that point to a class by their names, in ns.
    pub spans: Vec<((Class, PartKind), f64)>,
    /// For how long its threads ran at each place of it, in ns.
    pub on_cpu: Vec<(Stretch, f64)>,
    /// What its helpers waited for while its own thread ran, in ns, and for how long one of them ran meanwhile.
    pub helpers: Vec<(Key, f64)>,
}

/// Sums over the parts of one step.
#[derive(Default)]
struct Sums<'a> {
    parts: Vec<&'a Part>,
    own: BTreeMap<Key, f64>,
    awaited: BTreeMap<(EntityId, Key), f64>,
    misses: f64,
    cold: f64,
    sleeps: f64,
    spans: BTreeMap<(Class, PartKind), f64>,
    helpers: BTreeMap<Key, f64>,
}

/// Where the time of the steps went that have parts.
pub fn profiles(steps: &Steps, rows: &StepRows) -> HashMap<StepNo, Profile> {
    let known: HashSet<Id> = rows.parts.iter().map(|part| part.step).collect();
    let numbered = steps.numbered().filter(|(_, step)| known.contains(&step.id));
    let index: HashMap<Id, StepNo> = numbered.map(|(no, step)| (step.id, no)).collect();
    let ranks: HashSet<EntityId> = steps.iter().map(|s| s.thread).collect();
    let mut spans: HashMap<Id, Vec<&SpanInStep>> = HashMap::new();
    for span in &rows.spans {
        spans.entry(span.step).or_default().push(span);
    }
    let mut sums: HashMap<StepNo, Sums<'_>> = HashMap::new();
    for part in &rows.parts {
        let Some(&no) = index.get(&part.step) else { continue };
        let sums = sums.entry(no).or_default();
        let key = (part.kind, part.blame);
        if part.thread != steps[no].thread && ranks.contains(&part.thread) {
            *sums.awaited.entry((part.thread, key)).or_default() += part.dur.0 as f64;
        } else {
            sums.parts.push(part);
            *sums.own.entry(key).or_default() += part.dur.0 as f64;
            for (key, ns) in spans.get(&part.step).map_or(vec![], |of| covered(part, of)) {
                *sums.spans.entry(key).or_default() += ns;
            }
        }
        sums.misses += f64::from(u8::from(part.kind == PartKind::CacheMiss));
        sums.cold += f64::from(u8::from(part.kind == PartKind::ColdRead));
        let sleeps = part.kind == PartKind::Timer && part.thread == steps[no].thread;
        sums.sleeps += f64::from(u8::from(sleeps));
    }
    for part in &rows.helpers {
        let Some(sums) = index.get(&part.step).and_then(|no| sums.get_mut(no)) else { continue };
        *sums.helpers.entry((part.kind, part.blame)).or_default() += part.dur.0 as f64;
    }
    let profile = |(no, sums): (StepNo, Sums<'_>)| {
        let on_cpu = stretches(&sums.parts, steps[no].thread);
        let dur = steps[no].dur.0 as f64;
        let awaited = sums.awaited.into_iter().map(|((of, key), ns)| (of, key, ns)).collect();
        let (parts, spans) = (sums.own.into_iter().collect(), sums.spans.into_iter().collect());
        let Sums { misses, cold, sleeps, helpers, .. } = sums;
        let helpers = helpers.into_iter().collect();
        let by = |by: By| by.of(&steps[no]).unwrap_or(dur);
        let (expected, first) = (by(By::Load(0.0)), by(By::First(0.0)));
        let profile = Profile {
            dur,
            expected,
            first,
            parts,
            awaited,
            misses,
            cold,
            sleeps,
            spans,
            on_cpu,
            helpers,
        };
        (no, profile)
    };
    sums.into_iter().map(profile).collect()
}

/// Usual and slow profiles of one series.
#[derive(Clone, Debug)]
pub struct Compared<'a> {
    /// Whose steps.
    pub thread: EntityId,
    /// Their name.
    name: Name,
    /// Before the incident.
    pub usual: Vec<&'a Profile>,
    /// During it: the longest steps, and then a sample of the others.
    pub slow: Vec<&'a Profile>,
    /// How many of `slow` are the longest steps.
    longest: usize,
    /// How many steps each of the others stands for.
    each: f64,
    /// For this share of the slow steps a usual one is what they would have been,
    as_often: f64,
    /// and for the others a step of this duration in ns.
    ordinary: f64,
    /// What steps are measured by: usual ones are scaled to as much of it as slow ones have.
    by: By,
}

impl<'a> Compared<'a> {
    /// Of steps that all stand for themselves.
    pub fn new(thread: EntityId, usual: Vec<&'a Profile>, slow: Vec<&'a Profile>) -> Compared<'a> {
        let (longest, each, as_often, ordinary) = (0, 1.0, 1.0, 0.0);
        let name = Name::default();
        let by = By::Alike;
        Compared { thread, name, usual, slow, longest, each, as_often, ordinary, by }
    }

    /// How many slow steps the one at `i` stands for.
    fn stands_for(&self, i: usize) -> f64 {
        if i < self.longest { 1.0 } else { self.each }
    }

    /// How many slow steps there are, looked into or not.
    fn slow_steps(&self) -> f64 {
        self.longest as f64 + self.each * (self.slow.len() - self.longest) as f64
    }
}

/// Where the threads of a series ran.
#[derive(Clone, Debug, Default)]
pub struct WhereItRan {
    /// At which place for how much longer.
    pub stretches: Stretches,
    /// For how long the threads ran meanwhile that take steps of the same name, each in its own: usual and slow ns a step.
    pub peers: Vec<(f64, f64)>,
    /// By how much the slow steps differ among themselves at the place that grew most, ns: nine in ten from one in ten.
    pub spread: f64,
}

/// That of the series whose steps took more CPU time than others.
pub fn where_it_ran(series: &[Compared<'_>]) -> WhereItRan {
    let grew = |all: &Stretches| all.values().map(|(usual, slow)| slow - usual).sum::<f64>();
    let of = |one: &Compared<'_>| grew(&one.stretches()) * one.slow_steps();
    let Some(most) = series.iter().max_by(|a, b| of(a).total_cmp(&of(b))) else {
        return WhereItRan::default();
    };
    let is_peer = |one: &&Compared<'_>| one.thread != most.thread && one.name == most.name;
    let own = |one: &Compared<'_>| {
        let stretches = one.stretches();
        let own = stretches.iter().filter(|((thread, _), _)| *thread == one.thread);
        own.fold((0.0, 0.0), |sum, (_, ns)| (sum.0 + ns.0, sum.1 + ns.1))
    };
    let stretches = most.stretches();
    let spread = grew_most(&stretches).map_or(0.0, |at| most.spread(at));
    WhereItRan { stretches, peers: series.iter().filter(is_peer).map(own).collect(), spread }
}

impl Compared<'_> {
    /// By how much usual steps are scaled.
    fn scale(&self) -> f64 {
        if self.by == By::Alike {
            return 1.0;
        }
        let slow = self.slow.iter().enumerate();
        let slow: f64 = slow.map(|(i, step)| self.stands_for(i) * step.measured(self.by)).sum();
        let usual: f64 = self.usual.iter().map(|step| step.measured(self.by)).sum();
        match usual > 0.0 {
            true => slow / self.slow_steps() / (usual / self.usual.len() as f64),
            false => 1.0,
        }
    }

    /// By how much the slow steps differ among themselves in this stretch, without the longest ones where there are others.
    fn spread(&self, stretch: Stretch) -> f64 {
        let ran = |profile: &&Profile| {
            let there = profile.on_cpu.iter().find(|(at, _)| *at == stretch);
            there.map_or(0.0, |(_, ns)| *ns)
        };
        let others = self.slow.get(self.longest..).filter(|others| others.len() > self.longest);
        let all = stats::sorted(others.unwrap_or(&self.slow).iter().map(ran));
        stats::quantile(&all, 0.9) - stats::quantile(&all, 0.1)
    }

    /// Usual and slow ns a step of each stretch.
    fn stretches(&self) -> Stretches {
        let mut out = Stretches::new();
        let usual = self.scale();
        for profile in &self.usual {
            for (stretch, ns) in &profile.on_cpu {
                let weight = usual * self.as_often / self.usual.len() as f64;
                out.entry(*stretch).or_default().0 += weight * ns;
            }
        }
        for (i, profile) in self.slow.iter().enumerate() {
            for (stretch, ns) in &profile.on_cpu {
                let weight = self.stands_for(i) / self.slow_steps();
                out.entry(*stretch).or_default().1 += weight * ns;
            }
        }
        out
    }
}

impl Profile {
    /// For how long its thread ran.
    fn ran(&self) -> f64 {
        self.parts.iter().filter(|(key, _)| key.0 == PartKind::Run).map(|(_, ns)| ns).sum()
    }

    /// How much it has of what steps are measured by.
    fn measured(&self, by: By) -> f64 {
        match by {
            By::Alike => 1.0,
            By::Cpu => self.ran(),
            By::Load(_) => self.expected,
            By::First(_) => self.first,
        }
    }

    /// Whether anything was recorded of the step's time.
    fn is_seen(&self) -> bool {
        !self.awaited.is_empty() || self.parts.iter().any(|(key, _)| key.0 != PartKind::Unknown)
    }
}

/// The series of an incident that have profiles on both sides. Where something was recorded of
/// some steps, the others are left out: a trace may hold exact rows of the time around incidents
/// only.
///
/// How long every slow step took is known, so the longest ones, as far as all of them were looked
/// into, are not a sample but all there are, and only the others stand for those that were not: a few
/// long stops among hundreds of steps weigh as much as they cost, however the sample fell.
pub fn compared<'a>(
    steps: &Steps,
    incident: &Incident,
    profiles: &'a HashMap<StepNo, Profile>,
) -> Vec<Compared<'a>> {
    let pick = |numbers: &[StepNo]| -> Vec<Option<&'a Profile>> {
        let all: Vec<_> = numbers.iter().map(|no| profiles.get(no)).collect();
        let seen = all.iter().flatten().any(|p| p.is_seen());
        all.into_iter().map(|p| p.filter(|p| !seen || p.is_seen())).collect()
    };
    incident
        .slowed
        .iter()
        .map(|s| {
            let slow = pick(&s.longest_first(steps));
            let longest = slow.iter().take_while(|p| p.is_some()).count();
            let others = slow[longest..].iter().flatten().count();
            let left = slow.len() - longest;
            Compared {
                thread: s.slow.first().map_or(s.signature.of, |&no| steps[no].thread),
                name: s.signature.name.clone(),
                usual: pick(&s.usual).into_iter().flatten().collect(),
                slow: slow.into_iter().flatten().collect(),
                longest,
                each: left as f64 / others.max(1) as f64,
                as_often: s.as_often,
                ordinary: s.fit.center.exp(),
                by: s.by,
            }
        })
        .filter(|c: &Compared<'_>| !c.usual.is_empty() && !c.slow.is_empty())
        .collect()
}

/// Mean parts of a slow and of a usual step, in ns a step, over all series by their slow steps.
#[derive(Clone, Debug, Default)]
pub struct Excess {
    /// Slow steps that were accounted for.
    pub slow_steps: usize,
    /// Usual steps that they were compared with.
    pub usual_steps: usize,
    /// Mean duration of a usual step.
    pub usual: f64,
    /// Mean duration of a slow step.
    pub slow: f64,
    /// Per part and blame: usual and slow.
    pub parts: BTreeMap<Key, (f64, f64)>,
    /// Page-cache misses a step, of data that had been there,
    pub misses: Counts,
    /// and of data that nobody had evicted.
    pub cold: Counts,
    /// How often threads slept for a time in their steps.
    pub sleeps: Counts,
    /// Of these parts: usual and slow ns in spans that point to a class by their names.
    pub spans: BTreeMap<(Class, PartKind), (f64, f64)>,
}

impl Excess {
    /// The excess of series whose steps are all counted once.
    pub fn of(series: &[Compared<'_>]) -> Excess {
        Weighing::new(series).all()
    }

    /// The mean excess of a step in ns.
    pub fn total(&self) -> f64 {
        self.slow - self.usual
    }

    /// Usual and slow ns a step of each kind of part, with any blame.
    pub fn kinds(&self) -> BTreeMap<PartKind, (f64, f64)> {
        let mut out: BTreeMap<PartKind, (f64, f64)> = BTreeMap::new();
        for (&(kind, _), &(usual, slow)) in &self.parts {
            let sum = out.entry(kind).or_default();
            sum.0 += usual;
            sum.1 += slow;
        }
        out
    }

    /// The excess of each class in ns a step. The values sum to [`Excess::total`]. Kinds of part that are
    /// `contradicted` point to no class: their excess stays unexplained.
    pub fn classes(&self, contradicted: &[PartKind]) -> BTreeMap<Class, f64> {
        let mut out: BTreeMap<Class, f64> = BTreeMap::new();
        let kinds = self.kinds();
        for (&kind, &(usual, slow)) in &kinds {
            if contradicted.contains(&kind) {
                *out.entry(Class::Unexplained).or_default() += slow - usual;
                continue;
            }
            for spec in classes::ALL {
                if let Some(share) = spec.share_of(kind) {
                    let cold = kind == PartKind::ColdRead;
                    let ns = share.of(usual, slow, if cold { self.cold } else { self.misses });
                    *out.entry(spec.class).or_default() += ns;
                }
            }
        }
        let beside = beside_handlers(&kinds, contradicted);
        if beside > 0.0 {
            *out.entry(Class::Interrupts).or_default() += beside;
            *out.entry(Class::EngineSoftware).or_default() -= beside;
        }
        for (&(class, kind), &(usual, slow)) in &self.spans {
            let instead_of = classes::of_part(kind).filter(|_| !contradicted.contains(&kind));
            *out.entry(class).or_default() += slow - usual;
            *out.entry(instead_of.unwrap_or(Class::Unexplained)).or_default() -= slow - usual;
        }
        out
    }

    /// The excess in ns a step of which nothing is known: no part says where the time went, and no span.
    pub fn unexplained(&self) -> f64 {
        let kinds = self.kinds();
        let unknown = kinds.get(&PartKind::Unknown).map_or(0.0, |(usual, slow)| slow - usual);
        let of_unknown = self.spans.iter().filter(|((_, kind), _)| *kind == PartKind::Unknown);
        of_unknown.fold(unknown, |left, (_, (usual, slow))| left - (slow - usual))
    }

    /// Usual and slow ns a step in spans that point to a class by their names; none if there are none.
    pub fn in_spans(&self, class: Class) -> Option<(f64, f64)> {
        let of_class = self.spans.iter().filter(|((c, _), _)| *c == class).map(|(_, ns)| *ns);
        of_class.reduce(|sum, ns| (sum.0 + ns.0, sum.1 + ns.1))
    }
}

/// What interrupts took longer beside their handlers, in ns a step. A handler is seen from its first line to its last; that
/// the CPU enters the kernel, leaves it, and on a virtual machine asks the hypervisor for the next one, is in the time of
/// the code that was interrupted. That is no more than the handlers themselves took longer, and no more than that code ran
/// longer.
fn beside_handlers(kinds: &BTreeMap<PartKind, (f64, f64)>, contradicted: &[PartKind]) -> f64 {
    let grew = |kind| match kinds.get(&kind) {
        Some((usual, slow)) if !contradicted.contains(&kind) => slow - usual,
        _ => 0.0,
    };
    grew(PartKind::Hardirq).min(grew(PartKind::Run)).max(0.0)
}

/// Durations of slow steps in ns as they were, and as they would have been had somebody not been
/// in the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Without {
    /// 99 % of the slow steps that were looked into took no longer.
    pub p99: f64,
    /// The same, less the parts that are blamed on that one.
    pub p99_without: f64,
    /// Their mean.
    pub mean: f64,
    /// The mean, less the parts that are blamed on that one.
    pub mean_without: f64,
}

/// What the slow steps would have taken without what is blamed on `who`, of each the share that is given. The parts of
/// a step lie one behind the other, so what is taken out of it shortens it by as much; that somebody else might have
/// taken the place is not seen.
pub fn without(series: &[Compared<'_>], who: &[(EntityId, f64)]) -> Option<Without> {
    let share =
        |of: EntityId| who.iter().find(|(id, _)| *id == of).map_or(0.0, |(_, share)| *share);
    // As it was, as it would have been, and how many steps it stands for.
    let mut steps: Vec<[f64; 3]> = Vec::new();
    for one in series {
        for (i, profile) in one.slow.iter().enumerate() {
            let own = profile.parts.iter().map(|((_, blame), ns)| (*blame, *ns));
            let awaited = profile.awaited.iter().map(|(_, (_, blame), ns)| (*blame, *ns));
            let of = own.chain(awaited).map(|(blame, ns)| ns * blame.map_or(0.0, share));
            let without = profile.dur - of.sum::<f64>();
            steps.push([profile.dur, without, one.stands_for(i)]);
        }
    }
    let all: f64 = steps.iter().map(|s| s[2]).sum();
    if steps.is_empty() {
        return None;
    }
    let mut p99 = |of: usize| {
        steps.sort_by(|a, b| a[of].total_cmp(&b[of]));
        let mut below = 0.0;
        let found = steps.iter().find(|s| {
            below += s[2];
            below >= 0.99 * all
        });
        found.or(steps.last()).map_or(0.0, |s| s[of])
    };
    let (p99, p99_without) = (p99(0), p99(1));
    let mean = |of: usize| steps.iter().map(|s| s[of] * s[2]).sum::<f64>() / all;
    Some(Without { p99, p99_without, mean: mean(0), mean_without: mean(1) })
}

/// When the blamed one was first in the way, of these steps.
pub fn first_in_the_way(
    parts: &[Part],
    kinds: &[PartKind],
    blame: EntityId,
    from: Ns,
) -> Option<Ns> {
    parts
        .iter()
        .filter(|p| p.blame == Some(blame) && kinds.contains(&p.kind) && p.ts >= from)
        .map(|p| p.ts)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::Step;
    use crate::stats::Random;

    fn profile(parts: &[(PartKind, f64)], misses: f64) -> Profile {
        Profile {
            dur: parts.iter().map(|p| p.1).sum(),
            parts: parts.iter().map(|&(k, ns)| ((k, None), ns)).collect(),
            awaited: Vec::new(),
            misses,
            ..Profile::default()
        }
    }

    #[test]
    fn class_excesses_sum_to_the_excess() {
        use PartKind::*;
        let usual = profile(&[(Run, 5.0), (Gpu, 10.0)], 0.0);
        let slow = profile(&[(Run, 5.5), (Gpu, 7.0), (Runnable, 8.0), (Unknown, 0.5)], 0.0);
        let series = [Compared::new(EntityId(1), vec![&usual], vec![&slow])];
        let excess = Excess::of(&series);
        assert_eq!(excess.total(), 6.0);
        let classes = excess.classes(&[]);
        assert_eq!(classes.values().sum::<f64>(), 6.0);
        assert_eq!(classes[&Class::CpuContention], 8.0);
        assert_eq!(classes[&Class::GpuThrottling], -3.0);
    }

    #[test]
    fn what_interrupts_take_beside_their_handlers_is_not_told_as_more_work() {
        use PartKind::*;
        let usual = profile(&[(Run, 5.0), (Hardirq, 0.1)], 0.0);
        let classes = |run: f64, hardirq: f64| {
            let slow = profile(&[(Run, run), (Hardirq, hardirq)], 0.0);
            let series = [Compared::new(EntityId(1), vec![&usual], vec![&slow])];
            let classes = Excess::of(&series).classes(&[]);
            let of = |class| classes.get(&class).map_or(0.0, |ns| (ns * 10.0).round() / 10.0);
            (of(Class::Interrupts), of(Class::EngineSoftware))
        };
        // A storm of timers: entering and leaving the kernel took longer than the handlers.
        assert_eq!(classes(7.0, 1.7), (3.2, 0.4));
        assert_eq!(classes(5.5, 1.7), (2.1, 0.0));
        // More work is interrupted by a few ticks more, which are no reason for it.
        assert_eq!(classes(9.0, 0.2), (0.2, 3.9));
        assert_eq!(classes(4.0, 0.3), (0.2, -1.0));
    }

    #[test]
    fn a_few_long_stops_among_many_slow_steps_weigh_what_they_cost() {
        use PartKind::*;
        let step = |n: usize, dur: i64| Step {
            id: Id::new(1, n as u64),
            ts: Ns(1000 * n as i64),
            dur: Ns(dur),
            thread: EntityId(1),
            name: "step".into(),
            ..Step::default()
        };
        // A thousand usual steps, and a thousand that a lowered clock slows, of which five are
        // stopped as well.
        let stopped = |n: usize| n >= 1000 && n.is_multiple_of(200);
        let dur = |n: usize| if n < 1000 { 40 } else { 70 + 1000 * i64::from(stopped(n)) };
        let steps: Vec<Step> = (0..2000).map(|n| step(n, dur(n))).collect();
        let steps = Steps::from(steps);
        let incident =
            crate::detect::incident_of(&steps, &(1000..2000).map(StepNo).collect::<Vec<_>>())
                .unwrap();
        let wanted = crate::verdict::select_steps(&steps, &incident, 40);
        assert!(wanted.len() <= 80, "{}", wanted.len());
        let of = |&no: &StepNo| {
            let n = no.0 as usize;
            let throttled = if n < 1000 { 0.0 } else { 30.0 };
            let stop = if stopped(n) { 1000.0 } else { 0.0 };
            (no, profile(&[(Gpu, 40.0), (GpuThrottled, throttled), (Stopped, stop)], 0.0))
        };
        let profiles = wanted.iter().map(of).collect();
        let series = compared(&steps, &incident, &profiles);
        let excess = Excess::of(&series);
        assert!((excess.total() - 35.0).abs() < 1e-9, "{}", excess.total());
        assert!((excess.classes(&[])[&Class::GpuThrottling] - 30.0).abs() < 1e-9);
        assert!((excess.classes(&[])[&Class::CollectiveStraggler] - 5.0).abs() < 1e-9);
        // However the sample falls, the stops never come out first.
        let mut random = Random::new(1);
        let mut weighing = Weighing::new(&series);
        for _ in 0..100 {
            let classes = weighing.resampled(&mut random).classes(&[]);
            assert!(classes[&Class::CollectiveStraggler] < 30.0, "{classes:?}");
        }
    }

    #[test]
    fn without_the_culprit_a_step_is_shorter_by_what_is_blamed_on_it() {
        use PartKind::*;
        let who = Some(EntityId(7));
        let slow = |behind: f64| Profile {
            dur: 10.0 + behind,
            parts: vec![((Run, None), 10.0), ((Runnable, who), behind)],
            ..Profile::default()
        };
        let (a, b) = (slow(5.0), slow(15.0));
        let series = [Compared::new(EntityId(1), vec![], vec![&a, &b])];
        let without = without(&series, &[(EntityId(7), 1.0)]).unwrap();
        assert_eq!((without.mean, without.mean_without), (20.0, 10.0));
        assert_eq!(without.p99_without, 10.0);
        assert!(without.p99 > 24.0);
    }

    #[test]
    fn who_waits_for_a_late_rank_grows_by_what_made_it_late() {
        use PartKind::*;
        // Rank 1 runs 6 longer before it launches, so that rank 0 waits 6 longer, and most of that
        // time it sees rank 1's kernels run, as always but later.
        let late = |run: f64| Profile {
            dur: run + 10.0,
            parts: vec![((Run, None), run), ((Gpu, None), 10.0)],
            ..Profile::default()
        };
        let waits = |run: f64, gpu: f64| Profile {
            dur: 12.0 + run + gpu,
            parts: vec![((Run, None), 2.0), ((Gpu, None), 10.0)],
            awaited: vec![(EntityId(1), (Run, None), run), (EntityId(1), (Gpu, None), gpu)],
            ..Profile::default()
        };
        let (usual1, slow1) = (late(2.0), late(8.0));
        let (usual0, slow0) = (waits(0.5, 0.5), waits(0.5, 6.5));
        let series = [
            Compared::new(EntityId(1), vec![&usual1], vec![&slow1]),
            Compared::new(EntityId(0), vec![&usual0], vec![&slow0]),
        ];
        let excess = Excess::of(&series);
        assert_eq!(excess.total(), 6.0);
        let kinds = excess.kinds();
        assert_eq!(kinds[&Run].1 - kinds[&Run].0, 6.0);
        assert_eq!(kinds[&Gpu].1 - kinds[&Gpu].0, 0.0);
    }

    #[test]
    fn who_waits_for_a_rank_that_collects_its_garbage_waits_for_that() {
        use PartKind::*;
        // Rank 1 runs 6 longer, of which 5 are a collection; rank 0 waits 6 longer for it.
        let late = |run: f64, collects: f64| Profile {
            dur: run + 10.0,
            parts: vec![((Run, None), run), ((Gpu, None), 10.0)],
            spans: vec![((Class::GcPause, Run), collects)],
            ..Profile::default()
        };
        let waits = |run: f64| Profile {
            dur: 12.0 + run,
            parts: vec![((Run, None), 2.0), ((Gpu, None), 10.0)],
            awaited: vec![(EntityId(1), (Run, None), run)],
            ..Profile::default()
        };
        let (usual1, slow1) = (late(2.0, 0.0), late(8.0, 5.0));
        let (usual0, slow0) = (waits(0.5), waits(6.5));
        let series = [
            Compared::new(EntityId(1), vec![&usual1], vec![&slow1]),
            Compared::new(EntityId(0), vec![&usual0], vec![&slow0]),
        ];
        let classes = Excess::of(&series).classes(&[]);
        let of = |class| (classes[&class] * 1e9).round() / 1e9;
        assert_eq!((of(Class::GcPause), of(Class::EngineSoftware)), (5.0, 1.0));
    }

    #[test]
    fn what_grew_a_little_does_not_explain_a_long_wait_for_whoever_it_grew_in() {
        use PartKind::*;
        // One holds a lock for 300 ms; its own steps wait 3 ms longer for a CPU.
        let holder = |runnable: f64| profile(&[(Run, 10.0), (Runnable, runnable)], 0.0);
        let waits = |lock: f64| Profile {
            dur: 10.0 + lock,
            parts: vec![((Run, None), 10.0)],
            awaited: vec![(EntityId(1), (Lock, Some(EntityId(7))), lock)],
            ..Profile::default()
        };
        let (usual1, slow1) = (holder(0.0), holder(3.0));
        let (usual0, slow0) = (waits(0.0), waits(300.0));
        let series = [
            Compared::new(EntityId(1), vec![&usual1], vec![&slow1]),
            Compared::new(EntityId(0), vec![&usual0], vec![&slow0]),
        ];
        let excess = Excess::of(&series);
        assert_eq!(excess.total(), 151.5);
        let kinds = excess.kinds();
        // Of the two series a half each: 3 of its own, 6 through the wait, and what is left is the lock.
        assert_eq!(kinds[&Runnable].1, 4.5);
        assert_eq!(kinds[&Lock].1, 147.0);
    }

    #[test]
    fn a_rank_that_sleeps_before_a_collective_is_the_reason_itself() {
        use PartKind::*;
        let itself = Some(EntityId(7));
        let late = |slept: f64| Profile {
            dur: slept + 10.0,
            parts: vec![((Timer, None), slept), ((Gpu, None), 10.0)],
            ..Profile::default()
        };
        let waits = |peer: f64| Profile {
            dur: 12.0 + peer,
            parts: vec![((Run, None), 2.0), ((Gpu, None), 10.0)],
            awaited: vec![(EntityId(1), (Peer, itself), peer)],
            ..Profile::default()
        };
        let (usual1, slow1) = (late(2.0), late(8.0));
        let (usual0, slow0) = (waits(0.0), waits(6.0));
        let series = [
            Compared::new(EntityId(1), vec![&usual1], vec![&slow1]),
            Compared::new(EntityId(0), vec![&usual0], vec![&slow0]),
        ];
        let excess = Excess::of(&series);
        assert_eq!(excess.total(), 6.0);
        assert_eq!(excess.parts[&(Peer, itself)], (0.0, 6.0));
        assert_eq!(excess.classes(&[])[&Class::CollectiveStraggler], 6.0);
    }

    #[test]
    fn more_misses_are_memory_and_slower_misses_are_disk() {
        use PartKind::*;
        let usual = profile(&[(CacheMiss, 2.0)], 2.0);
        let more = profile(&[(CacheMiss, 10.0)], 10.0);
        let slower = profile(&[(CacheMiss, 10.0)], 2.0);
        let class = |slow| {
            let classes =
                Excess::of(&[Compared::new(EntityId(1), vec![&usual], vec![slow])]).classes(&[]);
            (classes[&Class::MemoryPressure], classes[&Class::BlockIo])
        };
        let near = |(memory, disk): (f64, f64), expected: (f64, f64)| {
            (memory - expected.0).abs() < 0.05 && (disk - expected.1).abs() < 0.05
        };
        assert!(near(class(&more), (8.0, 0.0)));
        assert!(near(class(&slower), (0.0, 8.0)));
        // Eight misses more, and each takes longer because there are so many.
        let both = profile(&[(CacheMiss, 20.0)], 10.0);
        assert!(near(class(&both), (12.6, 5.4)), "{:?}", class(&both));
        // One miss more, and each waits for a full queue: as in a storm of flushes.
        let queued = profile(&[(CacheMiss, 60.0)], 3.0);
        assert!(near(class(&queued), (6.9, 51.1)), "{:?}", class(&queued));
        // Where nothing missed before, nothing is known of how long a miss would take.
        let first = profile(&[(CacheMiss, 6.0)], 2.0);
        let none = profile(&[], 0.0);
        let of = Excess::of(&[Compared::new(EntityId(1), vec![&none], vec![&first])]).classes(&[]);
        assert_eq!(of[&Class::MemoryPressure], 6.0);
    }

    #[test]
    fn reading_more_data_for_the_first_time_is_more_to_do_and_reading_it_slower_is_disk() {
        use PartKind::*;
        let read = |ns, cold| Profile { cold, ..profile(&[(ColdRead, ns)], 0.0) };
        let (usual, more, slower) = (read(2.0, 2.0), read(10.0, 10.0), read(10.0, 2.0));
        let class = |slow| {
            let classes =
                Excess::of(&[Compared::new(EntityId(1), vec![&usual], vec![slow])]).classes(&[]);
            (classes[&Class::InputLoad], classes[&Class::BlockIo])
        };
        assert_eq!(class(&more), (8.0, 0.0));
        assert_eq!(class(&slower), (0.0, 8.0));
    }
}
