//! Who asked for more than before.
//!
//! # What it sees
//! The CPU time of every process, ten times a second (`cpu_time`), before an incident and during it.
//!
//! # Why it matters
//! Whoever runs where this work waits is in the way, and need not be the reason. A process that takes as much as it
//! always did may have been moved here by one that began to take more: of two ranks and a new neighbour on two CPUs,
//! the ranks wait for each other most of the time. So the time is given to those whose own demand rose.
//!
//! # What fools it
//! A process whose demand rose because of the incident itself: one that tries again and again, or that judges it.
//! A process that does as much as before on fewer CPUs, since somebody took CPUs away from both: nobody's demand
//! rises then, and nobody is named.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::{Counter, EntityId, Ns, Track, TrackId, names};

/// What an incident is compared with, at most.
const BEFORE: Ns = Ns::secs(8);
/// And at least: of less, nothing is known.
const LEAST: Ns = Ns::secs(1);
/// So long before the onset is left out: an onset is dated to a step.
const APART: Ns = Ns::millis(200);
/// Of an incident shorter than this, ten readings a second say too little.
const SHORTEST: Ns = Ns::millis(200);
/// A counter's value covers at most this long before it.
const TICK: Ns = Ns::millis(100);
/// Rows may arrive this late.
const LATE: Ns = Ns::millis(200);

/// What a process took, in CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Before the incident.
    pub before: f64,
    /// During it.
    pub during: f64,
    /// When it began to take more, if it did.
    pub began: Option<Ns>,
}

/// A rise of fewer CPUs than this is none,
const RISE: f64 = 0.05;
/// nor is one by a smaller share of what was taken before.
const RISE_SHARE: f64 = 0.2;
/// Of one that takes fewer CPUs more than this it is not known when it began to,
const BEGINS: f64 = 0.02;
/// else it began when it had taken this share of what it took more.
const BEGUN: f64 = 0.05;

impl Demand {
    /// By how many CPUs it rose; 0 if it did not.
    pub fn rise(self) -> f64 {
        let rise = self.during - self.before;
        if rise >= RISE.max(RISE_SHARE * self.before) { rise } else { 0.0 }
    }

    /// Whether it took more than before, or is new: one of many short processes takes little by itself.
    pub fn grew(self) -> bool {
        self.rise() > 0.0 || (self.before < BEGINS && self.during > self.before)
    }
}

/// What several processes took together.
#[derive(Clone, Copy, Debug)]
pub struct Together {
    /// The sum.
    pub demand: Demand,
    /// The one that took most during the incident.
    pub most: EntityId,
    /// How many they are.
    pub processes: usize,
}

/// What each process took.
#[derive(Clone, Debug, Default)]
pub struct Demands {
    of: BTreeMap<EntityId, Demand>,
    known: bool,
    /// The incident, as far as it was recorded,
    during: (Ns, Ns),
    /// and what each used in it.
    used: Vec<Used>,
}

/// What a process used of the CPUs between two times, ns.
#[derive(Clone, Copy, Debug)]
struct Used {
    entity: EntityId,
    since: Ns,
    ts: Ns,
    value: f64,
}

impl Demands {
    /// The time of which counters are needed for an incident.
    pub fn around(from: Ns, to: Ns) -> std::ops::Range<Ns> {
        from.saturating_sub(BEFORE + APART)..to.saturating_add(LATE)
    }

    /// Whether a track holds what this is made from.
    pub fn reads(track: &Track) -> bool {
        &*track.name == names::CPU_TIME
    }

    /// From the counters of an incident's time, of those tracks.
    pub fn new<'a>(
        tracks: impl IntoIterator<Item = &'a Track>,
        counters: impl IntoIterator<Item = &'a Counter>,
        (from, to): (Ns, Ns),
    ) -> Demands {
        let of_track: HashMap<TrackId, EntityId> =
            tracks.into_iter().filter(|t| Demands::reads(t)).map(|t| (t.id, t.entity)).collect();
        let mut rows: Vec<(Ns, EntityId, f64)> = Vec::new();
        for row in counters {
            if let Some(entity) = of_track.get(&row.track) {
                rows.push((row.ts, *entity, row.value.max(0.0)));
            }
        }
        let first = rows.iter().map(|row| row.0).min().unwrap_or(Ns::MAX);
        let last = rows.iter().map(|row| row.0).max().unwrap_or(Ns::MIN);
        let until = from.saturating_sub(APART);
        let before = (first.saturating_sub(TICK).max(until.saturating_sub(BEFORE)), until);
        let during = (from, to.min(last));
        if before.1.saturating_sub(before.0) < LEAST || during.1.saturating_sub(during.0) < SHORTEST
        {
            return Demands::default();
        }
        let share = |(from, to): (Ns, Ns), (since, ts): (Ns, Ns), value: f64| {
            let within = Ns::overlap(since, ts, from, to).0 as f64 / (ts - since).0.max(1) as f64;
            value * within / to.saturating_sub(from).0 as f64
        };
        rows.sort_by_key(|row| row.0);
        let mut of: BTreeMap<EntityId, Demand> = BTreeMap::new();
        let mut known_until: HashMap<EntityId, Ns> = HashMap::new();
        let mut used: Vec<Used> = Vec::with_capacity(rows.len());
        for (ts, entity, value) in rows {
            // What a thread used is added when it leaves its CPU, which may be seconds later if nobody else
            // wants that.
            let gap = ts.saturating_sub(known_until.insert(entity, ts).unwrap_or(first));
            let since = ts.saturating_sub(TICK.max(Ns(value as i64).min(gap)));
            let demand = of.entry(entity).or_default();
            demand.before += share(before, (since, ts), value);
            demand.during += share(during, (since, ts), value);
            if ts > from {
                used.push(Used { entity, since, ts, value });
            }
        }
        let taking_more = of.iter_mut().map(|(id, demand)| (*id, demand)).collect();
        begin(taking_more, during, &used, Some);
        Demands { of, known: true, during, used }
    }

    /// Whether enough was recorded to say whose demand rose.
    pub fn are_known(&self) -> bool {
        self.known
    }

    /// What a process took.
    pub fn of(&self, process: EntityId) -> Demand {
        self.of.get(&process).copied().unwrap_or_default()
    }

    /// What the processes of each group took, of those that are in one, and when they began to together: each of many
    /// short ones takes too little for that to be known of it.
    pub fn grouped<K: Ord + Clone>(
        &self,
        group: impl Fn(EntityId, Demand) -> Option<K>,
    ) -> BTreeMap<K, Together> {
        let mut out: BTreeMap<K, Together> = BTreeMap::new();
        let mut groups: HashMap<EntityId, K> = HashMap::new();
        for (id, demand) in self.iter() {
            let Some(key) = group(id, demand) else { continue };
            groups.insert(id, key.clone());
            let nothing = Together { demand: Demand::default(), most: id, processes: 0 };
            let sum = out.entry(key).or_insert(nothing);
            if demand.during > self.of(sum.most).during {
                sum.most = id;
            }
            sum.demand.before += demand.before;
            sum.demand.during += demand.during;
            sum.processes += 1;
        }
        let taking_more = out.iter_mut().map(|(key, sum)| (key.clone(), &mut sum.demand));
        begin(taking_more.collect(), self.during, &self.used, |id| groups.get(&id).cloned());
        out
    }

    /// What all processes took.
    pub fn iter(&self) -> impl Iterator<Item = (EntityId, Demand)> {
        self.of.iter().map(|(id, demand)| (*id, *demand))
    }
}

/// Finds out when each of those that may have begun to take more did so, from what was used and since when.
fn begin<K: Ord>(
    mut of: BTreeMap<K, &mut Demand>,
    (from, to): (Ns, Ns),
    used: &[Used],
    whose: impl Fn(EntityId) -> Option<K>,
) {
    let mut more: BTreeMap<K, (Ns, f64)> = BTreeMap::new();
    for Used { entity, since, ts, value } in used.iter().copied() {
        let Some(key) = whose(entity) else { continue };
        let Some(demand) = of.get_mut(&key) else { continue };
        let all = (demand.during - demand.before) * to.saturating_sub(from).0 as f64;
        if demand.during - demand.before < BEGINS || demand.began.is_some() {
            continue;
        }
        let (until, sum) = more.entry(key).or_insert((from, 0.0));
        let within = Ns::overlap(since, ts, from, to).0 as f64 / (ts - since).0.max(1) as f64;
        *sum += value * within - demand.before * ts.saturating_sub(*until).0.max(0) as f64;
        *until = ts;
        // Of what it took alone on its CPU the begin is known, however late it is added.
        *sum = sum.max(0.0);
        if *sum >= BEGUN * all {
            demand.began = Some(since.max(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Shape, SourceId};

    use super::*;

    fn track(id: u32, entity: u32) -> Track {
        Track {
            id: TrackId(id),
            entity: EntityId(entity),
            parent: None,
            shape: Shape::Counter,
            name: names::CPU_TIME.into(),
            unit: None,
            measure: None,
            discipline: None,
            source: SourceId(1),
        }
    }

    /// Ten seconds of readings: `before` and `during` CPUs from the sixth second on, of each track.
    fn demands(cpus: &[(f64, f64)]) -> Demands {
        let tracks: Vec<Track> = (0..cpus.len() as u32).map(|n| track(n, n + 10)).collect();
        let mut counters = Vec::new();
        for tick in 1..=100 {
            for (n, (before, during)) in cpus.iter().enumerate() {
                let value = if tick <= 60 { before } else { during } * 1e8;
                let ts = Ns::millis(tick * 100);
                counters.push(Counter { ts, track: TrackId(n as u32), value });
            }
        }
        Demands::new(&tracks, &counters, (Ns::secs(6), Ns::secs(9)))
    }

    #[test]
    fn who_began_to_take_more_is_told_from_who_takes_what_he_took() {
        let demands = demands(&[(0.9, 0.6), (0.0, 0.98), (0.5, 0.55), (0.01, 0.04)]);
        assert!(demands.are_known());
        let rise = |entity| demands.of(EntityId(entity)).rise();
        assert_eq!((rise(10), rise(12), rise(13)), (0.0, 0.0, 0.0));
        assert!((rise(11) - 0.98).abs() < 1e-6, "{demands:?}");
        assert!((demands.of(EntityId(10)).before - 0.9).abs() < 1e-6);
    }

    #[test]
    fn who_begins_to_take_more_in_the_middle_is_dated_there() {
        let track = track(1, 10);
        let counter = |tick: i64, cpus: f64| Counter {
            ts: Ns::millis(tick * 100),
            track: TrackId(1),
            value: cpus * 1e8,
        };
        let cpus = |tick| if tick <= 80 { 0.3 } else { 0.9 };
        let noise = |tick: i64| [0.05, -0.05, 0.0][(tick % 3) as usize];
        let counters: Vec<Counter> = (1..=120).map(|t| counter(t, cpus(t) + noise(t))).collect();
        let demand =
            Demands::new([&track], &counters, (Ns::secs(6), Ns::secs(12))).of(EntityId(10));
        let began = demand.began.unwrap().as_millis_f64();
        assert!((8000.0..8500.0).contains(&began), "{began}");
        let steady: Vec<Counter> = (1..=120).map(|t| counter(t, 0.3 + noise(t))).collect();
        let demand = Demands::new([&track], &steady, (Ns::secs(6), Ns::secs(12))).of(EntityId(10));
        assert_eq!(demand.began, None);
    }

    /// It was alone on its CPU; what it used since it began is added when the neighbour comes.
    #[test]
    fn who_ran_alone_for_seconds_and_is_interrupted_now_did_not_begin_now() {
        let tracks = [track(1, 10), track(2, 11)];
        let at = |ms: i64, track: u32, ns: f64| Counter {
            ts: Ns::millis(ms),
            track: TrackId(track),
            value: ns,
        };
        let mut counters: Vec<Counter> = (1..60).map(|n| at(n * 100, 2, 1e6)).collect();
        counters.push(at(6050, 1, 5.9e9));
        counters.extend((61..=90).flat_map(|n| [at(n * 100, 1, 5e7), at(n * 100, 2, 5e7)]));
        let demands = Demands::new(&tracks, &counters, (Ns::secs(6), Ns::secs(9)));
        assert_eq!(demands.of(EntityId(10)).rise(), 0.0, "{demands:?}");
        assert!(demands.of(EntityId(11)).rise() > 0.4, "{demands:?}");
    }

    /// Each takes a tenth of a second; of 40 of them one takes three times as long, at the end.
    #[test]
    fn many_short_processes_began_when_the_first_of_them_did_and_not_the_longest() {
        let tracks: Vec<Track> = (0..41).map(|n| track(n, n + 10)).collect();
        let at = |ms: i64, track: usize, ns: f64| Counter {
            ts: Ns::millis(ms),
            track: TrackId(track as u32),
            value: ns,
        };
        let mut counters: Vec<Counter> = (1..=100).map(|n| at(n * 100, 40, 1e7)).collect();
        counters.extend((0..40).map(|n| at(6100 + n as i64 * 100, n, 7e7)));
        counters.extend([at(9900, 39, 1e8), at(10_000, 39, 1e8)]);
        let demands = Demands::new(&tracks, &counters, (Ns::secs(6), Ns::secs(10)));
        let of_each: Vec<Ns> = demands.iter().filter_map(|(_, demand)| demand.began).collect();
        assert!(matches!(of_each[..], [at] if at > Ns::millis(9700)), "{of_each:?}");
        let together = demands.grouped(|_, demand| demand.grew().then_some(()))[&()];
        assert_eq!(together.processes, 40);
        assert!(together.demand.began.unwrap() < Ns::millis(6500), "{together:?}");
    }

    #[test]
    fn an_incident_at_the_begin_of_a_recording_has_nothing_to_be_compared_with() {
        let tracks = [track(1, 10)];
        let counters: Vec<Counter> = (1..30)
            .map(|n| Counter { ts: Ns::millis(n * 100), track: TrackId(1), value: 1e8 })
            .collect();
        assert!(!Demands::new(&tracks, &counters, (Ns::secs(1), Ns::secs(2))).are_known());
        assert!(Demands::new(&tracks, &counters, (Ns::millis(1500), Ns::secs(2))).are_known());
        assert!(!Demands::new(&tracks, &[], (Ns::secs(5), Ns::secs(9))).are_known());
    }
}
