//! Means over weighed steps: all of them, and resamples, of which a verdict takes hundreds.
//!
//! What a step holds is found by number and not by key, so that a resample is additions and no look-ups.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Class, EntityId, PartKind};

use super::{Compared, Excess, Key, Profile};
use crate::classes::Misses;
use crate::stats::Random;

/// Usual and slow ns, by part and blame.
type Grown = BTreeMap<Key, (f64, f64)>;

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
    misses: f64,
    cold: f64,
    own: Vec<(u32, f64)>,
    awaited: Vec<(u32, f64)>,
    spans: Vec<(u32, f64)>,
    /// Whom its thread waited for.
    waited_for: Vec<u32>,
}

/// The steps of one series.
struct Counted {
    usual: Vec<Numbered>,
    slow: Vec<Numbered>,
    longest: usize,
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
    own: Vec<Sum>,
    awaited: Vec<Sum>,
    spans: Vec<Sum>,
    waited: Vec<bool>,
}

impl Sums {
    fn clear(&mut self) {
        for sum in [&mut self.dur, &mut self.misses, &mut self.cold] {
            *sum = [0.0; 2];
        }
        for sums in [&mut self.own, &mut self.awaited, &mut self.spans] {
            sums.fill([0.0; 2]);
        }
        self.waited.fill(false);
    }

    /// Adds each step as often as `times` says.
    fn add(&mut self, steps: &[Numbered], times: &[u32], side: Side) {
        for (step, times) in steps.iter().zip(times).filter(|(_, times)| **times > 0) {
            let weight = f64::from(*times) * step.weight;
            self.dur[side] += weight * step.dur;
            self.misses[side] += weight * step.misses;
            self.cold[side] += weight * step.cold;
            for (sums, held) in [
                (&mut self.own, &step.own),
                (&mut self.awaited, &step.awaited),
                (&mut self.spans, &step.spans),
            ] {
                held.iter().for_each(|(i, ns)| sums[*i as usize][side] += weight * ns);
            }
            step.waited_for.iter().for_each(|i| self.waited[*i as usize] = true);
        }
    }
}

/// Steps of several series that are to be weighed, again and again.
pub struct Weighing {
    series: Vec<Counted>,
    own: Vec<(EntityId, Key)>,
    awaited: Vec<(EntityId, Key)>,
    spans: Vec<(Class, PartKind)>,
    /// Who was waited for, and who waited.
    waiters: Vec<(EntityId, EntityId)>,
    /// How often each step of a side is counted.
    times: Vec<u32>,
    sums: Sums,
}

impl Weighing {
    /// Of these series.
    pub fn new(series: &[Compared<'_>]) -> Weighing {
        let (mut own, mut awaited) = (Numbers::new(), Numbers::new());
        let (mut spans, mut waiters) = (Numbers::new(), Numbers::new());
        let total = series.iter().map(Compared::slow_steps).sum::<f64>().max(1.0);
        let mut counted = Vec::new();
        for one in series {
            let mut numbered = |profile: &Profile, weight: f64| Numbered {
                weight,
                dur: profile.dur,
                misses: profile.misses,
                cold: profile.cold,
                own: profile.parts.iter().map(|(k, ns)| (own.of((one.thread, *k)), *ns)).collect(),
                awaited: {
                    let of = profile.awaited.iter();
                    of.map(|(rank, k, ns)| (awaited.of((*rank, *k)), *ns)).collect()
                },
                spans: profile.spans.iter().map(|(key, ns)| (spans.of(*key), *ns)).collect(),
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
            counted.push(Counted { usual, slow, longest: one.longest, ordinary });
        }
        let zeros = |n: usize| vec![[0.0; 2]; n];
        Weighing {
            sums: Sums {
                dur: [0.0; 2],
                misses: [0.0; 2],
                cold: [0.0; 2],
                own: zeros(own.keys.len()),
                awaited: zeros(awaited.keys.len()),
                spans: zeros(spans.keys.len()),
                waited: vec![false; waiters.keys.len()],
            },
            series: counted,
            own: own.keys,
            awaited: awaited.keys,
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
            sums.add(&one.slow, times, SLOW);
            times.clear();
            times.resize(one.usual.len(), 0);
            draw(times);
            sums.add(&one.usual, times, USUAL);
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
        let by_thread = |keys, sums| {
            let mut grown: BTreeMap<EntityId, Grown> = BTreeMap::new();
            for ((thread, key), ns) in of(keys, sums) {
                grown.entry(thread).or_default().insert(key, ns);
            }
            grown
        };
        let Sums { dur, misses, cold, own, awaited, spans, waited } = &self.sums;
        let both = |sum: &Sum| Misses { usual: sum[USUAL], slow: sum[SLOW] };
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
                spans: of(&self.spans, spans).collect(),
            },
            own: by_thread(&self.own, own),
            awaited: by_thread(&self.awaited, awaited),
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
    /// How many waited for each thread.
    waiters: BTreeMap<EntityId, usize>,
}

impl Weighed {
    /// The excess, where what the waiting for a rank grew by is distributed in the proportions in which
    /// that rank's own steps grew, as far as that growth explains it.
    fn distribute(self) -> Excess {
        let Weighed { mut out, mut own, awaited, waiters } = self;
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
            for (key, ns) in late.into_iter().filter(|_| explained > 0.0) {
                out.parts.entry(key).or_default().1 += explained * ns / all;
            }
        }
        for (key, (usual, slow)) in own.into_values().flatten() {
            let sum = out.parts.entry(key).or_default();
            sum.0 += usual;
            sum.1 += slow;
        }
        out
    }
}
