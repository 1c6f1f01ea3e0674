//! Which rank of many made the others wait, without trusting any node's clock.
//!
//! # What it sees
//! For each collective, by its number, how long each rank waited in it. The rank that came last
//! waited least; the others waited longer by as much as they came earlier. That needs no common clock: only
//! differences of one rank's own times are used, and the number that all ranks count alike.
//!
//! # Why it matters
//! When one rank is late all ranks are slow, and the evidence for the cause is on one node.
//!
//! # What fools it
//! A collective in which nobody waits for everybody (a ring lets each rank wait for its neighbour
//! only) shows the neighbour's lateness first. Ranks that do not number their steps alike.

use std::collections::BTreeMap;

use gpuwhy_schema::{EntityId, Id, Name, Ns};

use crate::detect::{Detection, Step};
use crate::live::{Live, Look};
use crate::stats::mean;

/// What one rank reports of one of its steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// The rank.
    pub rank: u32,
    /// The step's number, by which it meets those of the other ranks.
    pub seq: u64,
    /// The step's name.
    pub name: Name,
    /// How much there was to do.
    pub size: Option<i64>,
    /// How long the step took.
    pub dur: Ns,
    /// How long it waited in the collective.
    pub waited: Ns,
    /// How long its other phases took.
    pub phases: Vec<(Name, Ns)>,
}

/// What kind of slowness it is, as operators call it (seed taxonomy of slow nodes: computing,
/// communicating, fetching input, or a node whose host is in the way).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slowness {
    /// The rank computed for longer.
    Compute,
    /// No rank came late; the collective itself took longer.
    Communication,
    /// The rank waited for its input.
    Input,
    /// The rank's host was in the way: known when its node has been asked.
    Host,
}

impl Slowness {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Slowness::Compute => "compute-slow",
            Slowness::Communication => "communication-slow",
            Slowness::Input => "input-slow",
            Slowness::Host => "host-interfered",
        }
    }

    /// What it is once the cause on the node is known.
    pub fn with_cause(self, class: &str) -> Slowness {
        let host = [
            "cpu_contention",
            "cpu_throttling",
            "memory_pressure",
            "block_io",
            "interrupts",
            "lock_contention",
            "collective_straggler",
        ];
        if host.contains(&class) { Slowness::Host } else { self }
    }
}

/// What was slower, and who came late.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// Who came late; nobody if the collective itself took longer.
    pub rank: Option<u32>,
    /// The first and the last of the slow steps, by number.
    pub seqs: (u64, u64),
    /// By how much the rank came later than it usually does, mean in ns a step.
    pub later: f64,
    /// How much longer the steps took, mean in ns a step.
    pub excess: f64,
    /// In how many of the slow steps it came last, of how many.
    pub last_in: (usize, usize),
    /// What kind of slowness it is.
    pub slowness: Slowness,
    /// The phase of that rank that grew most, and by how many ns a step.
    pub phase: Option<(Name, f64)>,
}

/// One step of all ranks.
#[derive(Clone, Debug, Default)]
struct Round {
    arrivals: BTreeMap<u32, Arrival>,
    /// When the first of them arrived, by our own clock.
    first: Ns,
}

/// All ranks' steps.
pub struct Fleet {
    live: Live,
    rounds: BTreeMap<u64, Round>,
}

/// Steps of all ranks that are remembered.
const ROUNDS: usize = 4096;
/// Rounds that slow ones are compared with.
const COMPARED: usize = 200;

impl Fleet {
    /// No rank yet.
    pub fn new(detection: Detection) -> Fleet {
        Fleet { live: Live::new(detection), rounds: BTreeMap::new() }
    }

    /// Ranks that took part in the latest rounds.
    pub fn ranks(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> =
            self.rounds.values().rev().take(64).flat_map(|r| r.arrivals.keys().copied()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Takes what a rank reported, at `now` of our own clock.
    pub fn arrive(&mut self, arrival: Arrival, now: Ns) {
        self.live.push(Step {
            id: Id(arrival.seq),
            ts: now.saturating_sub(arrival.dur),
            dur: arrival.dur,
            thread: EntityId(arrival.rank + 1),
            rank: Some(arrival.rank),
            name: arrival.name.clone(),
            size: arrival.size,
        });
        let round = self.rounds.entry(arrival.seq).or_default();
        round.first = if round.first == Ns::ZERO { now } else { round.first.min(now) };
        round.arrivals.insert(arrival.rank, arrival);
        while self.rounds.len() > ROUNDS {
            self.rounds.pop_first();
        }
    }

    /// What is the matter at `now`: a straggler, and whether it is over.
    pub fn look(&mut self, now: Ns) -> Option<(Straggler, bool)> {
        let (incident, over) = match self.live.look(now) {
            Look::Calm => return None,
            Look::Present(incident) => (incident, false),
            Look::Over(incident) => (incident, true),
        };
        let steps = self.live.steps();
        let of_incident = incident.slowed.iter().flat_map(|s| &s.slow).map(|&i| steps[i].id.0);
        let (mut first, mut last) = (u64::MAX, 0);
        for seq in of_incident {
            (first, last) = (first.min(seq), last.max(seq));
        }
        Some((self.straggler(first, last)?, over))
    }

    fn straggler(&self, first: u64, last: u64) -> Option<Straggler> {
        let ranks = self.ranks();
        // A rank that has not reported a round yet would seem to have waited least.
        let whole = |round: &&Round| round.arrivals.len() == ranks.len() && ranks.len() > 1;
        let slow: Vec<&Round> =
            self.rounds.range(first..=last).map(|(_, round)| round).filter(whole).collect();
        let usual: Vec<&Round> =
            self.rounds.range(..first).rev().map(|(_, r)| r).filter(whole).take(COMPARED).collect();
        if slow.is_empty() || usual.is_empty() {
            return None;
        }
        let longest =
            |round: &Round| round.arrivals.values().map(|a| a.waited.0).max().unwrap_or(0);
        let late = |rounds: &[&Round], rank: u32| {
            let each = rounds.iter().filter_map(|round| {
                Some((longest(round) - round.arrivals.get(&rank)?.waited.0) as f64)
            });
            mean(&each.collect::<Vec<_>>())
        };
        let took = |rounds: &[&Round]| {
            let all: Vec<f64> =
                rounds.iter().flat_map(|r| r.arrivals.values()).map(|a| a.dur.0 as f64).collect();
            mean(&all)
        };
        let excess = took(&slow) - took(&usual);
        let (rank, later) = ranks
            .iter()
            .map(|&rank| (rank, late(&slow, rank) - late(&usual, rank)))
            .max_by(|a, b| a.1.total_cmp(&b.1))?;
        let came_last = |round: &&&Round| {
            round
                .arrivals
                .get(&rank)
                .is_some_and(|own| round.arrivals.values().all(|other| other.waited >= own.waited))
        };
        let last_in = (slow.iter().filter(came_last).count(), slow.len());
        let seqs = (first, last);
        if later < 0.3 * excess {
            let slowness = Slowness::Communication;
            let later = 0.0;
            return Some(Straggler {
                rank: None,
                seqs,
                later,
                excess,
                last_in,
                slowness,
                phase: None,
            });
        }
        let phases = |rounds: &[&Round]| {
            let mut sums: BTreeMap<Name, f64> = BTreeMap::new();
            for arrival in rounds.iter().filter_map(|round| round.arrivals.get(&rank)) {
                for (name, ns) in &arrival.phases {
                    *sums.entry(name.clone()).or_default() += ns.0 as f64 / rounds.len() as f64;
                }
            }
            sums
        };
        let before = phases(&usual);
        let grown = phases(&slow).into_iter().map(|(name, ns)| {
            let more = ns - before.get(&name).copied().unwrap_or(0.0);
            (name, more)
        });
        let phase = grown.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|p| p.1 > 0.0);
        let slowness = match phase.as_ref().map(|p| &*p.0) {
            Some("load" | "input" | "data" | "fetch") => Slowness::Input,
            _ => Slowness::Compute,
        };
        Some(Straggler { rank: Some(rank), seqs, later, excess, last_in, slowness, phase })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    struct Job {
        fleet: Fleet,
        random: Random,
        now: Ns,
        seq: u64,
    }

    impl Job {
        fn new() -> Job {
            let fleet = Fleet::new(Detection::default());
            Job { fleet, random: Random::new(9), now: Ns::secs(1), seq: 0 }
        }

        /// `n` steps of three ranks, of whom `who` needs `more` ms longer in `phase`, and whose
        /// collective takes `wire` ms.
        fn steps(&mut self, n: usize, who: u32, phase: &str, more: f64, wire: f64) {
            for _ in 0..n {
                let mut work = Vec::new();
                for rank in 0..3 {
                    let noise = self.random.below(100) as f64 / 200.0;
                    let load =
                        4.0 + noise + if phase == "load" && rank == who { more } else { 0.0 };
                    let sync = 10.0 + if phase == "sync" && rank == who { more } else { 0.0 };
                    work.push((load, sync));
                }
                let slowest = work.iter().map(|w| w.0 + w.1).fold(0.0, f64::max);
                let ms = |ms: f64| Ns((ms * 1e6) as i64);
                for (rank, (load, sync)) in work.into_iter().enumerate() {
                    let arrival = Arrival {
                        rank: rank as u32,
                        seq: self.seq,
                        name: "step".into(),
                        size: None,
                        dur: ms(slowest + wire),
                        waited: ms(slowest - load - sync + wire),
                        phases: vec![("load".into(), ms(load)), ("sync".into(), ms(sync))],
                    };
                    // Each node's lines come when they come.
                    let jitter = Ns::millis(rank as i64 * 30);
                    self.fleet.arrive(arrival, self.now + jitter);
                }
                self.now += ms(slowest + wire);
                self.seq += 1;
            }
        }
    }

    #[test]
    fn the_rank_that_waited_least_is_the_late_one() {
        let mut job = Job::new();
        job.steps(400, 9, "", 0.0, 2.0);
        assert_eq!(job.fleet.look(job.now), None);
        job.steps(60, 2, "sync", 8.0, 2.0);
        let (straggler, over) = job.fleet.look(job.now).unwrap();
        assert_eq!((straggler.rank, over), (Some(2), false));
        assert_eq!(straggler.slowness, Slowness::Compute);
        assert!((7e6..9e6).contains(&straggler.later), "{straggler:?}");
        assert_eq!(straggler.phase.unwrap().0, "sync".into());
        assert!(straggler.last_in.0 >= straggler.last_in.1 - 3, "{:?}", straggler.last_in);
        assert!((397..=402).contains(&straggler.seqs.0), "{:?}", straggler.seqs);
    }

    #[test]
    fn a_rank_without_its_input_is_input_slow_until_its_host_is_known_to_be_in_the_way() {
        let mut job = Job::new();
        job.steps(400, 9, "", 0.0, 2.0);
        job.steps(60, 0, "load", 8.0, 2.0);
        let (straggler, _) = job.fleet.look(job.now).unwrap();
        assert_eq!((straggler.rank, straggler.slowness), (Some(0), Slowness::Input));
        assert_eq!(straggler.slowness.with_cause("block_io"), Slowness::Host);
        assert_eq!(straggler.slowness.with_cause("unexplained"), Slowness::Input);
    }

    #[test]
    fn when_nobody_is_late_it_is_the_network() {
        let mut job = Job::new();
        job.steps(400, 9, "", 0.0, 2.0);
        job.steps(60, 9, "", 0.0, 12.0);
        let (straggler, _) = job.fleet.look(job.now).unwrap();
        assert_eq!((straggler.rank, straggler.slowness), (None, Slowness::Communication));
    }

    #[test]
    fn a_rank_that_has_gone_silent_blames_nobody() {
        let mut job = Job::new();
        job.steps(400, 9, "", 0.0, 2.0);
        for seq in 400..480 {
            let arrival = Arrival {
                rank: 0,
                seq,
                name: "step".into(),
                size: None,
                dur: Ns::millis(40),
                waited: Ns::millis(20),
                phases: vec![],
            };
            job.now += Ns::millis(40);
            job.fleet.arrive(arrival, job.now);
        }
        assert_eq!(job.fleet.look(job.now), None);
    }
}
