//! Means over weighed steps: all of them, and resamples, of which a verdict takes hundreds.
//!
//! What a step holds is found by number and not by key, so that a resample is additions and no look-ups.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Class, EntityId, PartKind};

use super::{Compared, Excess, Key, Profile};
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
    /// What each usual step weighs that is counted once,
    share: f64,
    /// and each slow one: of the longest, and of the others.
    stands_for: (f64, f64),
    /// Usual steps of which only the duration is known, summed ns, and where their time went.
    ordinary: (f64, u32),
}

/// Usual and slow ns by number.
type Sums = Vec<(f64, f64)>;

/// Steps of several series that are to be weighed, again and again.
pub struct Weighing {
    series: Vec<Counted>,
    steps: (usize, usize),
    own: Vec<(EntityId, Key)>,
    awaited: Vec<(EntityId, Key)>,
    spans: Vec<(Class, PartKind)>,
    /// Who was waited for, and who waited.
    waiters: Vec<(EntityId, EntityId)>,
    /// How often each step of a side is counted.
    times: Vec<u32>,
    sums: [Sums; 3],
    waited: Vec<bool>,
}

impl Weighing {
    /// Of these series.
    pub fn new(series: &[Compared<'_>]) -> Weighing {
        let (mut own, mut awaited) = (Numbers::new(), Numbers::new());
        let (mut spans, mut waiters) = (Numbers::new(), Numbers::new());
        let total = series.iter().map(Compared::slow_steps).sum::<f64>().max(1.0);
        let mut counted = Vec::new();
        for one in series {
            let mut numbered = |profile: &&Profile| Numbered {
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
            let usual: Vec<Numbered> = one.usual.iter().map(&mut numbered).collect();
            let slow = one.slow.iter().map(&mut numbered).collect();
            let weight = one.slow_steps() / total;
            let ordinary = (1.0 - one.as_often) * weight * one.ordinary;
            counted.push(Counted {
                share: one.as_often * weight / usual.len() as f64,
                usual,
                slow,
                longest: one.longest,
                stands_for: (1.0 / total, one.each / total),
                ordinary: (ordinary, own.of((one.thread, (PartKind::Run, None)))),
            });
        }
        let zeros = |n: usize| vec![(0.0, 0.0); n];
        Weighing {
            steps: (
                series.iter().map(|c| c.slow.len()).sum(),
                series.iter().map(|c| c.usual.len()).sum(),
            ),
            sums: [zeros(own.keys.len()), zeros(awaited.keys.len()), zeros(spans.keys.len())],
            waited: vec![false; waiters.keys.len()],
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
        self.weighed(|times, range| times[range].fill(1))
    }

    /// The excess of a resample with replacement of each series' usual and slow steps.
    pub fn resampled(&mut self, random: &mut Random) -> Excess {
        self.weighed(|times, range| {
            for _ in range.clone() {
                times[range.start + random.below(range.len())] += 1;
            }
        })
    }

    fn weighed(&mut self, mut draw: impl FnMut(&mut [u32], Range<usize>)) -> Excess {
        let (slow_steps, usual_steps) = self.steps;
        let mut out = Excess { slow_steps, usual_steps, ..Excess::default() };
        self.sums.iter_mut().for_each(|sums| sums.fill((0.0, 0.0)));
        self.waited.fill(false);
        let times = &mut self.times;
        for one in &self.series {
            times.clear();
            times.resize(one.slow.len(), 0);
            draw(times, 0..one.longest);
            draw(times, one.longest..one.slow.len());
            for (i, step) in one.slow.iter().enumerate().filter(|(i, _)| times[*i] > 0) {
                let (longest, other) = one.stands_for;
                let weight = f64::from(times[i]) * if i < one.longest { longest } else { other };
                out.slow += weight * step.dur;
                out.misses.slow += weight * step.misses;
                out.cold.slow += weight * step.cold;
                step.add(&mut self.sums, &mut self.waited, |sum, ns| sum.1 += weight * ns);
            }
            times.clear();
            times.resize(one.usual.len(), 0);
            draw(times, 0..one.usual.len());
            for (i, step) in one.usual.iter().enumerate().filter(|(i, _)| times[*i] > 0) {
                let weight = f64::from(times[i]) * one.share;
                out.usual += weight * step.dur;
                out.misses.usual += weight * step.misses;
                out.cold.usual += weight * step.cold;
                step.add(&mut self.sums, &mut self.waited, |sum, ns| sum.0 += weight * ns);
            }
            let (ns, runs) = one.ordinary;
            if ns > 0.0 {
                // The program does what it does.
                out.usual += ns;
                self.sums[0][runs as usize].0 += ns;
            }
        }
        self.by_key(out).distribute()
    }

    /// The sums by their keys.
    fn by_key(&self, mut out: Excess) -> Weighed {
        fn of<'a, K: Copy>(
            keys: &'a [K],
            sums: &'a [(f64, f64)],
        ) -> impl Iterator<Item = (K, (f64, f64))> + 'a {
            let all = keys.iter().copied().zip(sums.iter().copied());
            all.filter(|(_, (usual, slow))| *usual != 0.0 || *slow != 0.0)
        }
        let [own, awaited, spans] = &self.sums;
        let by_thread = |keys, sums| {
            let mut grown: BTreeMap<EntityId, Grown> = BTreeMap::new();
            for ((thread, key), ns) in of(keys, sums) {
                grown.entry(thread).or_default().insert(key, ns);
            }
            grown
        };
        out.spans = of(&self.spans, spans).collect();
        let mut waiters: BTreeMap<EntityId, usize> = BTreeMap::new();
        for ((rank, _), _) in self.waiters.iter().zip(&self.waited).filter(|(_, waited)| **waited) {
            *waiters.entry(*rank).or_default() += 1;
        }
        Weighed {
            out,
            own: by_thread(&self.own, own),
            awaited: by_thread(&self.awaited, awaited),
            waiters,
        }
    }
}

impl Numbered {
    /// Adds what the step holds, each by `add`.
    fn add(
        &self,
        [own, awaited, spans]: &mut [Sums; 3],
        waited: &mut [bool],
        add: impl Fn(&mut (f64, f64), f64),
    ) {
        self.own.iter().for_each(|(i, ns)| add(&mut own[*i as usize], *ns));
        self.awaited.iter().for_each(|(i, ns)| add(&mut awaited[*i as usize], *ns));
        self.spans.iter().for_each(|(i, ns)| add(&mut spans[*i as usize], *ns));
        self.waited_for.iter().for_each(|i| waited[*i as usize] = true);
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
