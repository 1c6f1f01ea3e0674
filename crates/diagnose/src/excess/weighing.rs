//! Means over weighed steps: all of them, and resamples, of which a verdict takes hundreds.
//!
//! What a step holds is found by number and not by key, so that a resample is additions and no look-ups.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Class, EntityId, PartKind};

use super::{Compared, Excess, Key, Profile};
use crate::classes::Counts;
use crate::detect::By;
use crate::stats::Random;

/// Usual and slow ns, by part and blame.
type Grown = BTreeMap<Key, (f64, f64)>;

/// Usual and slow ns in spans, by the class that they point to and the part.
type InSpans = BTreeMap<(Class, PartKind), (f64, f64)>;

/// What grew, and by how much.
fn more(grown: &Grown) -> Vec<(Key, f64)> {
    let grown = grown.iter().map(|(key, (usual, slow))| (*key, slow - usual));
    grown.filter(|(_, ns)| *ns > 0.0).collect()
}

/// What grew in the late rank's own steps and is explained by nothing outside of it, as its own
/// doing.
fn name_the_late_one(own: &mut Grown, key: Key) {
    let mut grew = 0.0;
    for ((kind, blame), (usual, slow)) in own.iter_mut() {
        let unexplained = *kind == PartKind::Unknown && blame.is_none();
        let slept = *kind == PartKind::Timer;
        if (unexplained || slept) && slow > usual {
            grew += *slow - *usual;
            *slow = *usual;
        }
    }
    own.entry(key).or_default().1 += grew;
}

/// A helper shares the work of a step's thread if it usually runs for this share of the time that that runs.
const HELPS: f64 = 0.25;
/// And the step's thread waits for it by running if this share of what it ran longer is what helpers waited for.
const WAITS: f64 = 0.5;

/// A thread that ran longer by what its helpers waited for waited for them: what it ran longer is what they waited for.
fn told_by_helpers(own: &mut Grown, waited: &Grown) {
    let run = (PartKind::Run, None);
    let Some(ran) = own.get(&run).copied() else { return };
    let helped = waited.get(&run).map_or(0.0, |(usual, _)| *usual);
    let waits = |key: &Key| *key != run;
    let grew: Vec<(Key, f64)> = more(waited).into_iter().filter(|(key, _)| waits(key)).collect();
    let (longer, all) = (ran.1 - ran.0, grew.iter().map(|(_, ns)| ns).sum::<f64>());
    if helped < HELPS * ran.0 || all <= 0.0 || all < WAITS * longer || longer <= 0.0 {
        return;
    }
    let moved = longer.min(all);
    if let Some(run) = own.get_mut(&run) {
        run.1 -= moved;
    }
    for (key, ns) in grew {
        own.entry(key).or_default().1 += moved * ns / all;
    }
}

/// What a late rank's own steps grew by explains at most so many times as much waiting of each that waits for it. One that
/// holds a lock for 300 ms while its own steps grew by 3 did not hold it because of these 3.
const EXPLAINS: f64 = 2.0;

/// The numbers of keys, in the order in which they came.
struct Numbers<K> {
    keys: Vec<K>,
    of: HashMap<K, u32>,
}

impl<K: Copy + Eq + std::hash::Hash> Numbers<K> {
    fn new() -> Numbers<K> {
        Numbers { keys: Vec::new(), of: HashMap::new() }
    }

    fn of(&mut self, key: K) -> u32 {
        *self.of.entry(key).or_insert_with(|| {
            self.keys.push(key);
            self.keys.len() as u32 - 1
        })
    }
}

/// A [`Profile`] whose keys are numbers.
struct Numbered {
    /// What it weighs where it is counted once.
    weight: f64,
    dur: f64,
    /// How much it has of what the steps of its series are measured by.
    measured: f64,
    misses: f64,
    cold: f64,
    sleeps: f64,
    own: Vec<(u32, f64)>,
    awaited: Vec<(u32, f64)>,
    helpers: Vec<(u32, f64)>,
    spans: Vec<(u32, f64)>,
    /// Whom its thread waited for.
    waited_for: Vec<u32>,
}

/// The steps of one series.
struct Counted {
    usual: Vec<Numbered>,
    slow: Vec<Numbered>,
    longest: usize,
    /// Whether usual steps are scaled to as much of what they are measured by as slow ones have.
    scales: bool,
    /// Usual steps of which only the duration is known, summed ns, and where their time went.
    ordinary: (f64, u32),
}

/// Which of two means a step counts for: its place in a [`Sum`].
type Side = usize;
const USUAL: Side = 0;
const SLOW: Side = 1;

/// Usual and slow.
type Sum = [f64; 2];

/// What weighed steps hold together, by number.
struct Sums {
    dur: Sum,
    misses: Sum,
    cold: Sum,
    sleeps: Sum,
    own: Vec<Sum>,
    awaited: Vec<Sum>,
    helpers: Vec<Sum>,
    spans: Vec<Sum>,
    waited: Vec<bool>,
}

impl Sums {
    fn clear(&mut self) {
        for sum in [&mut self.dur, &mut self.misses, &mut self.cold, &mut self.sleeps] {
            *sum = [0.0; 2];
        }
        for sums in [&mut self.own, &mut self.awaited, &mut self.helpers, &mut self.spans] {
            sums.fill([0.0; 2]);
        }
        self.waited.fill(false);
    }

    /// Adds each step as often as `times` says, scaled by so much.
    fn add(&mut self, steps: &[Numbered], times: &[u32], side: Side, scale: f64) {
        for (step, times) in steps.iter().zip(times).filter(|(_, times)| **times > 0) {
            let weight = scale * f64::from(*times) * step.weight;
            self.dur[side] += weight * step.dur;
            self.misses[side] += weight * step.misses;
            self.cold[side] += weight * step.cold;
            self.sleeps[side] += weight * step.sleeps;
            for (sums, held) in [
                (&mut self.own, &step.own),
                (&mut self.awaited, &step.awaited),
                (&mut self.helpers, &step.helpers),
                (&mut self.spans, &step.spans),
            ] {
                held.iter().for_each(|(i, ns)| sums[*i as usize][side] += weight * ns);
            }
            step.waited_for.iter().for_each(|i| self.waited[*i as usize] = true);
        }
    }
}

/// How much weighed steps have of what they are measured by.
fn measured(steps: &[Numbered], times: &[u32]) -> f64 {
    let each = steps.iter().zip(times);
    each.map(|(step, times)| f64::from(*times) * step.weight * step.measured).sum()
}

/// Steps of several series that are to be weighed, again and again.
pub struct Weighing {
    series: Vec<Counted>,
    own: Vec<(EntityId, Key)>,
    awaited: Vec<(EntityId, Key)>,
    /// By the thread whose helpers they are.
    helpers: Vec<(EntityId, Key)>,
    /// By the thread whose steps they lie in.
    spans: Vec<(EntityId, (Class, PartKind))>,
    /// Who was waited for, and who waited.
    waiters: Vec<(EntityId, EntityId)>,
    /// How often each step of a side is counted.
    times: Vec<u32>,
    sums: Sums,
}

impl Weighing {
    /// Of these series.
    pub fn new(series: &[Compared<'_>]) -> Weighing {
        let (mut own, mut awaited, mut helpers) = (Numbers::new(), Numbers::new(), Numbers::new());
        let (mut spans, mut waiters) = (Numbers::new(), Numbers::new());
        let total = series.iter().map(Compared::slow_steps).sum::<f64>().max(1.0);
        let mut counted = Vec::new();
        for one in series {
            let mut numbered = |profile: &Profile, weight: f64| Numbered {
                weight,
                dur: profile.dur,
                measured: profile.measured(one.by),
                misses: profile.misses,
                cold: profile.cold,
                sleeps: profile.sleeps,
                own: profile.parts.iter().map(|(k, ns)| (own.of((one.thread, *k)), *ns)).collect(),
                awaited: {
                    let of = profile.awaited.iter();
                    of.map(|(rank, k, ns)| (awaited.of((*rank, *k)), *ns)).collect()
                },
                helpers: {
                    let of = profile.helpers.iter();
                    of.map(|(k, ns)| (helpers.of((one.thread, *k)), *ns)).collect()
                },
                spans: {
                    let of = profile.spans.iter();
                    of.map(|(key, ns)| (spans.of((one.thread, *key)), *ns)).collect()
                },
                waited_for: {
                    let ranks: BTreeSet<EntityId> =
                        profile.awaited.iter().map(|(rank, ..)| *rank).collect();
                    ranks.into_iter().map(|rank| waiters.of((rank, one.thread))).collect()
                },
            };
            let weight = one.slow_steps() / total;
            let share = one.as_often * weight / one.usual.len() as f64;
            let usual = one.usual.iter().map(|step| numbered(step, share)).collect();
            let slow = one.slow.iter().enumerate();
            let slow = slow.map(|(i, step)| numbered(step, one.stands_for(i) / total)).collect();
            let ordinary = (1.0 - one.as_often) * weight * one.ordinary;
            let runs = own.of((one.thread, (PartKind::Run, None)));
            let ordinary = (ordinary, runs);
            let (longest, scales) = (one.longest, one.by != By::Alike);
            counted.push(Counted { usual, slow, longest, scales, ordinary });
        }
        let zeros = |n: usize| vec![[0.0; 2]; n];
        Weighing {
            sums: Sums {
                dur: [0.0; 2],
                misses: [0.0; 2],
                cold: [0.0; 2],
                sleeps: [0.0; 2],
                own: zeros(own.keys.len()),
                awaited: zeros(awaited.keys.len()),
                helpers: zeros(helpers.keys.len()),
                spans: zeros(spans.keys.len()),
                waited: vec![false; waiters.keys.len()],
            },
            series: counted,
            own: own.keys,
            awaited: awaited.keys,
            helpers: helpers.keys,
            spans: spans.keys,
            waiters: waiters.keys,
            times: Vec::new(),
        }
    }

    /// The excess where all steps are counted once.
    pub fn all(&mut self) -> Excess {
        self.weighed(|times| times.fill(1))
    }

    /// The excess of a resample with replacement of each series' usual and slow steps.
    pub fn resampled(&mut self, random: &mut Random) -> Excess {
        self.weighed(|times| {
            for _ in 0..times.len() {
                times[random.below(times.len())] += 1;
            }
        })
    }

    /// `draw` says how often each of some steps is counted, of none so far.
    fn weighed(&mut self, mut draw: impl FnMut(&mut [u32])) -> Excess {
        let Weighing { series, times, sums, .. } = self;
        sums.clear();
        for one in series.iter() {
            times.clear();
            times.resize(one.slow.len(), 0);
            let (longest, others) = times.split_at_mut(one.longest);
            draw(longest);
            draw(others);
            sums.add(&one.slow, times, SLOW, 1.0);
            let slow = measured(&one.slow, times);
            times.clear();
            times.resize(one.usual.len(), 0);
            draw(times);
            let usual = measured(&one.usual, times);
            let scales = one.scales && usual > 0.0;
            sums.add(&one.usual, times, USUAL, if scales { slow / usual } else { 1.0 });
            let (ns, runs) = one.ordinary;
            if ns > 0.0 {
                // The program does what it does.
                sums.dur[USUAL] += ns;
                sums.own[runs as usize][USUAL] += ns;
            }
        }
        self.by_key().distribute()
    }

    /// The sums by their keys.
    fn by_key(&self) -> Weighed {
        fn of<'a, K: Copy>(
            keys: &'a [K],
            sums: &'a [Sum],
        ) -> impl Iterator<Item = (K, (f64, f64))> + 'a {
            let all = keys.iter().copied().zip(sums.iter().map(|[usual, slow]| (*usual, *slow)));
            all.filter(|(_, (usual, slow))| *usual != 0.0 || *slow != 0.0)
        }
        fn by_thread<K: Copy + Ord>(
            keys: &[(EntityId, K)],
            sums: &[Sum],
        ) -> BTreeMap<EntityId, BTreeMap<K, (f64, f64)>> {
            let mut grown: BTreeMap<EntityId, BTreeMap<K, (f64, f64)>> = BTreeMap::new();
            for ((thread, key), ns) in of(keys, sums) {
                grown.entry(thread).or_default().insert(key, ns);
            }
            grown
        }
        let Sums { dur, misses, cold, sleeps, own, awaited, helpers, spans, waited } = &self.sums;
        let both = |sum: &Sum| Counts { usual: sum[USUAL], slow: sum[SLOW] };
        let mut waiters: BTreeMap<EntityId, usize> = BTreeMap::new();
        for ((rank, _), _) in self.waiters.iter().zip(waited).filter(|(_, waited)| **waited) {
            *waiters.entry(*rank).or_default() += 1;
        }
        Weighed {
            out: Excess {
                slow_steps: self.series.iter().map(|one| one.slow.len()).sum(),
                usual_steps: self.series.iter().map(|one| one.usual.len()).sum(),
                usual: dur[USUAL],
                slow: dur[SLOW],
                parts: BTreeMap::new(),
                misses: both(misses),
                cold: both(cold),
                sleeps: both(sleeps),
                spans: BTreeMap::new(),
            },
            own: by_thread(&self.own, own),
            awaited: by_thread(&self.awaited, awaited),
            helpers: by_thread(&self.helpers, helpers),
            spans: by_thread(&self.spans, spans),
            waiters,
        }
    }
}

/// Sums over weighed steps, before waiting for other ranks is distributed.
struct Weighed {
    out: Excess,
    /// What each thread's own steps grew by.
    own: BTreeMap<EntityId, Grown>,
    /// What waiting for each thread grew by.
    awaited: BTreeMap<EntityId, Grown>,
    /// What its helpers waited for while it ran grew by.
    helpers: BTreeMap<EntityId, Grown>,
    /// Of what each thread's own steps took, what lies in spans that point to a class.
    spans: BTreeMap<EntityId, InSpans>,
    /// How many waited for each thread.
    waiters: BTreeMap<EntityId, usize>,
}

impl Weighed {
    /// The excess, where what the waiting for a rank grew by is distributed in the proportions in which
    /// that rank's own steps grew, as far as that growth explains it.
    fn distribute(self) -> Excess {
        let Weighed { mut out, mut own, awaited, helpers, spans, waiters } = self;
        for (thread, waited) in helpers {
            if let Some(own) = own.get_mut(&thread) {
                told_by_helpers(own, &waited);
            }
        }
        for (rank, grown) in awaited {
            // A rank that came late into a collective, and not because it waited for something outside
            // of it, is the cause itself, in its own steps too.
            let itself = grown
                .iter()
                .filter(|((kind, blame), (usual, slow))| {
                    *kind == PartKind::Peer && blame.is_some() && slow > usual
                })
                .max_by(|a, b| (a.1.1 - a.1.0).total_cmp(&(b.1.1 - b.1.0)))
                .map(|(key, _)| *key);
            if let (Some(key), Some(own)) = (itself, own.get_mut(&rank)) {
                name_the_late_one(own, key);
            }
            let late = own.get(&rank).map(more).unwrap_or_default();
            let all: f64 = late.iter().map(|(_, ns)| ns).sum();
            let waited: f64 = grown.values().map(|(usual, slow)| slow - usual).sum();
            let waiters = waiters.get(&rank).copied().unwrap_or(0) as f64;
            let explained = waited.min(EXPLAINS * waiters * all).max(0.0);
            let left = if explained > 0.0 { 1.0 - explained / waited } else { 1.0 };
            for (key, (usual, slow)) in grown {
                let sum = out.parts.entry(key).or_default();
                sum.0 += usual;
                sum.1 += usual + left * (slow - usual);
            }
            if explained <= 0.0 {
                continue;
            }
            // What its own steps grew by in spans the others waited for as well.
            for (key, (usual, slow)) in spans.get(&rank).into_iter().flatten() {
                let of_kind = late.iter().filter(|((kind, _), _)| *kind == key.1);
                let of_kind: f64 = of_kind.map(|(_, ns)| ns).sum();
                let grew = (slow - usual).clamp(0.0, of_kind);
                out.spans.entry(*key).or_default().1 += explained * grew / all;
            }
            for (key, ns) in late {
                out.parts.entry(key).or_default().1 += explained * ns / all;
            }
        }
        for (key, (usual, slow)) in spans.into_values().flatten() {
            let sum = out.spans.entry(key).or_default();
            sum.0 += usual;
            sum.1 += slow;
        }
        for (key, (usual, slow)) in own.into_values().flatten() {
            let sum = out.parts.entry(key).or_default();
            sum.0 += usual;
            sum.1 += slow;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Key = (PartKind::Run, None);
    const BEHIND: Key = (PartKind::Runnable, Some(EntityId(7)));

    /// What a thread's steps are told to wait for a CPU, and to run, usually and now, if it ran 4 and then 6.5, and a
    /// helper that usually ran so long waited for so long.
    fn told(helped: f64, waited: f64) -> [(f64, f64); 2] {
        let mut own = Grown::from([(RUN, (4.0, 6.5))]);
        let of_helpers = Grown::from([(RUN, (helped, 1.0)), (BEHIND, (0.1, 0.1 + waited))]);
        told_by_helpers(&mut own, &of_helpers);
        [RUN, BEHIND].map(|key| own.get(&key).copied().unwrap_or_default())
    }

    #[test]
    fn a_thread_that_runs_while_its_helpers_wait_for_a_cpu_waits_with_them() {
        assert_eq!(told(4.0, 2.0), [(4.0, 4.5), (0.0, 2.0)]);
        // No more than it ran longer.
        assert_eq!(told(4.0, 3.0), [(4.0, 4.0), (0.0, 2.5)]);
    }

    #[test]
    fn a_thread_runs_longer_by_itself_where_no_helper_shares_its_work_or_hardly_waits() {
        assert_eq!(told(0.5, 2.0), [(4.0, 6.5), (0.0, 0.0)]);
        assert_eq!(told(4.0, 1.0), [(4.0, 6.5), (0.0, 0.0)]);
    }
}
