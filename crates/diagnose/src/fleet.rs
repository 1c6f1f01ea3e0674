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
//!
//! # Restarts, and ranks that lie
//! A restarted job begins its step numbers anew, so rounds are kept by epoch and number (`epochs`), and the
//! oldest by the time they were heard of go first. Which ranks take part is decided by those that were in
//! half of the latest rounds, so that one rank that reports at random keeps no round from being whole; how
//! long a round took is the median of its ranks; and no rank can have waited for longer than that. A rank
//! that lies can hide or accuse itself, and nobody else, as long as three of four do not. Of several nodes that
//! report the same rank, the one that keeps step with the others is believed, and of several that do, the first:
//! a rank as one node reports it is a *seat*, and rounds are made of seats.

mod epochs;
mod rounds;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use gpuwhy_schema::{EntityId, Id, Name, Ns};

use self::epochs::Epochs;
use self::rounds::{Report, Round, Rounds};
use crate::detect::{Detection, Step};
use crate::live::{Live, Look};
use crate::stats::mean;

/// What one rank reports of one of its steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// The rank.
    pub rank: u32,
    /// The seat: a number for the rank as this node reports it. Of several seats of a rank, the first has the
    /// lowest number.
    pub seat: u32,
    /// The node that reports it, by any number of its own.
    pub node: u64,
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

    /// What it is once the cause on the node is known: what was seen in kernels tells a device that computed for longer from a
    /// host that came late with its launches (seed 002, 9.4).
    pub fn with_cause(self, class: &str) -> Slowness {
        match class {
            "cpu_contention"
            | "cpu_steal"
            | "cpu_throttling"
            | "memory_pressure"
            | "block_io"
            | "interrupts"
            | "lock_contention"
            | "collective_straggler"
            | "launch_latency" => Slowness::Host,
            "kernel_imbalance" | "gpu_throttling" | "gpu_contention" => Slowness::Compute,
            _ => self,
        }
    }
}

/// What was slower, and who came late.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// Who came late; nobody if the collective itself took longer.
    pub rank: Option<u32>,
    /// The seat from which that is known.
    pub seat: Option<u32>,
    /// The run of the job, counted from 0: a restart begins step numbers anew.
    pub epoch: u32,
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

/// Steps of all ranks of one job, over its restarts.
pub struct Fleet {
    live: Live,
    epochs: Epochs,
    rounds: Rounds,
    /// The seats that a round of each epoch must have to be judged.
    expected: BTreeMap<u32, Expected>,
    /// When the last round that was closed ended.
    ended: Ns,
    forgot: Ns,
    names: Names,
}

/// The seats that take part in an epoch.
#[derive(Debug, Default)]
struct Expected {
    seats: Vec<u32>,
    /// The latest rounds that most of them took part in.
    latest: VecDeque<u64>,
    /// Rounds that were closed since `seats` was found.
    closed: usize,
    /// When a round was closed last.
    used: Ns,
}

/// Memory that the reports of a job may take, unless [`Fleet::set_limit`] says otherwise.
pub const BYTES: usize = 128 << 20;
/// Ranks of a job that are followed.
pub const RANKS: usize = 1 << 14;
/// Names of steps and phases that are told apart in a job.
pub const NAMES: usize = 512;
/// Phases of one step that are looked at.
pub const PHASES: usize = 16;
/// Rounds that slow ones are compared with.
const COMPARED: usize = 200;
/// The latest rounds, by which it is decided which ranks take part: those that were in half of them.
const LATEST: usize = 64;
/// So many rounds are needed to decide that; until then all ranks take part that were heard of.
const ENOUGH: usize = 8;
/// A round that not all ranks have reported is closed after this long.
const PATIENCE: Ns = Ns::secs(2);
/// A rank that was silent for so long, and for so many rounds, takes no part.
const SILENT: Ns = Ns::secs(10);
/// A rank that was silent for so long is forgotten.
const FORGOTTEN: Ns = Ns::secs(900);
/// Epochs whose ranks are remembered.
const EPOCHS: usize = 16;
/// An epoch of which no round was closed for so long is over.
const OVER: Ns = Ns::secs(60);

impl Fleet {
    /// No rank yet.
    pub fn new(detection: Detection) -> Fleet {
        Fleet {
            live: Live::new(detection),
            epochs: Epochs::default(),
            rounds: Rounds::new(BYTES),
            expected: BTreeMap::new(),
            ended: Ns::ZERO,
            forgot: Ns::ZERO,
            names: Names::default(),
        }
    }

    /// Sets how much memory the reports may take; the oldest go first.
    pub fn set_limit(&mut self, bytes: usize) {
        self.rounds.set_limit(bytes);
    }

    /// Takes what a rank reported, at `now` of our own clock; the epoch that it belongs to. `None` if there
    /// are too many ranks, or too many names of steps.
    pub fn arrive(&mut self, arrival: Arrival, now: Ns) -> Option<u32> {
        let Arrival { rank, seat, node, seq, name, size, dur, waited, phases } = arrival;
        let is_new = !self.epochs.knows(seat);
        if is_new && self.epochs.len() >= RANKS {
            return None;
        }
        let name = self.names.of(&name)?;
        let names = &mut self.names;
        let phases = phases.into_iter().take(PHASES);
        let phases = phases.filter_map(|(name, ns)| Some((names.of(&name)?, ns))).collect();
        let epoch = self.epochs.of(seat, node, seq, now);
        let report = Report { rank, node, name, size, dur, waited, phases };
        let number = self.rounds.add((epoch, seq), seat, report, now);
        let knew = self.expected.get(&epoch).is_some_and(|e| e.latest.len() >= ENOUGH);
        self.close_if_whole(number, now);
        while let Some(overdue) = self.rounds.overdue(now.saturating_sub(PATIENCE)) {
            self.close(overdue, now);
        }
        if !knew && self.expected.get(&epoch).is_some_and(|e| e.latest.len() >= ENOUGH) {
            // It is known now who takes part: what waited for that is looked at in its order.
            self.rounds.open_ones().into_iter().for_each(|number| self.close_if_whole(number, now));
        }
        Some(epoch)
    }

    /// Closes and judges a round that was reported from all seats that take part. One that was closed before
    /// that, since its reports came late or somebody made its number up before its time, is judged all the same.
    fn close_if_whole(&mut self, number: u64, now: Ns) {
        let Some(round) = self.rounds.get(number) else { return };
        // Until it is known who takes part, rounds are closed when they are overdue.
        if !self.seats_of(round.epoch).is_some_and(|seats| round.has(seats)) {
            return;
        }
        if self.rounds.is_open(number) {
            self.close(number, now);
        } else {
            self.judge(number);
        }
    }

    /// The seats that take part in an epoch, if that is known. A new one has those of the last one, until a few
    /// of its rounds have shown others.
    fn seats_of(&self, epoch: u32) -> Option<&[u32]> {
        let known = |e: &&Expected| e.latest.len() >= ENOUGH;
        let own = self.expected.get(&epoch).filter(known);
        let expected = own.or_else(|| {
            self.expected.range(..epoch).map(|(_, e)| e).filter(known).max_by_key(|e| e.seats.len())
        });
        expected.map(|e| &e.seats[..])
    }

    /// Closes a round: if all seats that take part reported it, it is looked at.
    fn close(&mut self, number: u64, now: Ns) {
        let Some(round) = self.rounds.get(number) else { return };
        let epoch = round.epoch;
        let Some((_, _, took)) = round.consensus(self.seats_of(epoch).unwrap_or(&[])) else {
            return;
        };
        if !self.rounds.close(number, took) {
            return;
        }
        self.took_part(epoch, number, now);
        self.judge(number);
    }

    /// Looks at a round, once, if all seats that take part reported it.
    fn judge(&mut self, number: u64) {
        let Some(round) = self.rounds.get(number) else { return };
        let (seats, last) = (self.seats_of(round.epoch).unwrap_or(&[]), round.last);
        if seats.len() < 2 || round.judged || !round.has(seats) {
            return;
        }
        let Some((name, size, took)) = round.consensus(seats) else { return };
        self.rounds.judge(number, took);
        self.ended = self.ended.max(last);
        self.live.push(Step {
            id: Id(number),
            ts: self.ended.saturating_sub(took),
            dur: took,
            thread: EntityId(1),
            series: None,
            rank: None,
            name,
            size,
            ran: None,
            expected: Default::default(),
        });
    }

    /// Finds anew, now and then, which seats take part in an epoch: one for each rank.
    fn took_part(&mut self, epoch: u32, number: u64, now: Ns) {
        self.forget_epochs(now);
        let Some(round) = self.rounds.get(number) else { return };
        let expected = self.expected.entry(epoch).or_default();
        expected.used = now;
        if round.reports.len() * 2 >= expected.seats.len() {
            expected.latest.push_back(number);
        }
        while expected.latest.len() > LATEST {
            expected.latest.pop_front();
        }
        expected.closed += 1;
        if expected.latest.len() >= 2 * ENOUGH && expected.closed < ENOUGH {
            return;
        }
        expected.closed = 0;
        // Rounds that take long are reported seldom.
        let took = round.took.unwrap_or_default();
        let since = now.saturating_sub(SILENT.max(Ns(took.0.saturating_mul(4))));
        let mut seats: Vec<u32> = self.epochs.members(epoch, since).collect();
        if expected.latest.len() >= ENOUGH {
            let mut counts: HashMap<u32, usize> = HashMap::new();
            let mut ranks: HashMap<u32, u32> = HashMap::new();
            let latest: Vec<&Round> =
                expected.latest.iter().filter_map(|number| self.rounds.get(*number)).collect();
            for (seat, report) in latest.iter().flat_map(|round| &round.reports) {
                *counts.entry(*seat).or_default() += 1;
                ranks.insert(*seat, report.rank);
            }
            seats.retain(|seat| counts.get(seat).is_some_and(|n| 2 * n >= latest.len()));
            // They come by their numbers, so that the first seat of a rank is kept.
            let mut taken: HashSet<u32> = HashSet::new();
            seats.retain(|seat| ranks.get(seat).is_some_and(|rank| taken.insert(*rank)));
        }
        expected.seats = seats;
    }

    /// Forgets epochs that are over, then such in which few ranks are: one that restarts all the time does not
    /// displace the others.
    fn forget_epochs(&mut self, now: Ns) {
        while self.expected.len() > EPOCHS {
            let most = self.expected.values().map(|e| e.seats.len()).max().unwrap_or(0);
            let recent = now.saturating_sub(OVER);
            let key = |e: &Expected| (e.used >= recent, e.seats.len() * 2 >= most, e.used);
            let Some((&epoch, _)) = self.expected.iter().min_by_key(|(_, e)| key(e)) else {
                return;
            };
            self.expected.remove(&epoch);
        }
    }

    /// What is the matter at `now`: a straggler, and whether it is over.
    pub fn look(&mut self, now: Ns) -> Option<(Straggler, bool)> {
        while let Some(overdue) = self.rounds.overdue(now.saturating_sub(PATIENCE)) {
            self.close(overdue, now);
        }
        if now >= self.forgot.saturating_add(FORGOTTEN) {
            self.forgot = now;
            self.epochs.forget(now.saturating_sub(FORGOTTEN));
        }
        let (incident, over) = match self.live.look(now) {
            Look::Calm => return None,
            Look::Present(incident) => (incident, false),
            Look::Over(incident) => (incident, true),
        };
        let steps = self.live.steps();
        let of_incident = incident.slowed.iter().flat_map(|s| &s.slow).map(|&i| steps[i].id.0);
        let numbers: BTreeSet<u64> = of_incident.collect();
        Some((self.straggler(&numbers)?, over))
    }

    /// Who came late in the rounds of these numbers, and in those between them.
    fn straggler(&self, numbers: &BTreeSet<u64>) -> Option<Straggler> {
        let (&first, &last) = (numbers.first()?, numbers.last()?);
        let epoch = self.rounds.range(first..=last).next_back()?.epoch;
        // Between by their steps too: one that makes up step numbers has rounds numbered before their time.
        let own = numbers.iter().filter_map(|number| self.rounds.get(*number));
        let own: Vec<u64> = own.filter(|r| r.epoch == epoch).map(|r| r.seq).collect();
        let between = *own.iter().min()?..=*own.iter().max()?;
        let seats = self.seats_of(epoch).filter(|seats| seats.len() > 1)?;
        // A rank that has not reported a round yet would seem to have waited least.
        let whole = |round: &&Round| round.judged && round.has(seats);
        let of_epoch = |round: &&Round| round.epoch == epoch && between.contains(&round.seq);
        let slow: Vec<&Round> =
            self.rounds.range(first..=last).filter(of_epoch).filter(whole).collect();
        // What was usual before a restart still is, where the same ranks take part.
        let before = |r: &&Round| r.epoch != epoch || r.seq < *between.start();
        let earlier = self.rounds.range(..last).rev().filter(before);
        let usual: Vec<&Round> = earlier.filter(whole).take(COMPARED).collect();
        let seqs = (slow.iter().map(|r| r.seq).min()?, slow.iter().map(|r| r.seq).max()?);
        if usual.is_empty() {
            return None;
        }
        let excess = took(&slow) - took(&usual);
        if excess <= 0.0 {
            // What was slow are other rounds than those that could be compared.
            return None;
        }
        let (before, during) = (lateness(&usual, seats), lateness(&slow, seats));
        let (seat, later) = seats
            .iter()
            .zip(during.iter().zip(&before))
            .map(|(&seat, (during, before))| (seat, during - before))
            .max_by(|a, b| a.1.total_cmp(&b.1))?;
        let came_last = |round: &&&Round| {
            round.reports.get(&seat).is_some_and(|own| {
                seats
                    .iter()
                    .filter_map(|other| round.reports.get(other))
                    .all(|other| round.waited(other) >= round.waited(own))
            })
        };
        let last_in = (slow.iter().filter(came_last).count(), slow.len());
        let straggler = Straggler {
            rank: None,
            seat: None,
            epoch,
            seqs,
            later: 0.0,
            excess,
            last_in,
            slowness: Slowness::Communication,
            phase: None,
        };
        if later < 0.3 * excess {
            return Some(straggler);
        }
        let phase = grown_phase(&slow, &usual, seat);
        let slowness = match phase.as_ref().map(|p| &*p.0) {
            Some("load" | "input" | "data" | "fetch") => Slowness::Input,
            _ => Slowness::Compute,
        };
        let rank = slow.iter().rev().find_map(|round| Some(round.reports.get(&seat)?.rank));
        Some(Straggler { rank, seat: Some(seat), later, slowness, phase, ..straggler })
    }
}

/// Names that are told apart: the first [`NAMES`].
#[derive(Debug, Default)]
struct Names(HashSet<Name>);

impl Names {
    fn of(&mut self, name: &Name) -> Option<Name> {
        if let Some(known) = self.0.get(name) {
            return Some(known.clone());
        }
        (self.0.len() < NAMES).then(|| {
            self.0.insert(name.clone());
            name.clone()
        })
    }
}

/// How long rounds took: the mean of their medians over the ranks, ns.
fn took(rounds: &[&Round]) -> f64 {
    let each: Vec<f64> = rounds.iter().filter_map(|r| r.took).map(|ns| ns.0 as f64).collect();
    mean(&each)
}

/// How much later than most each of `seats` came, mean over rounds that have them all, ns.
///
/// What the others waited is what three of four of them did not exceed: one that says to have waited for as long
/// as a round took, in some rounds and not in others, would else make all seem late at one time, and nobody at
/// another. Who takes no part does not count.
fn lateness(rounds: &[&Round], seats: &[u32]) -> Vec<f64> {
    let mut sums = vec![0.0; seats.len()];
    let mut sorted: Vec<Ns> = Vec::with_capacity(seats.len());
    for round in rounds {
        let waited = |seat: &u32| round.reports.get(seat).map(|report| round.waited(report));
        let each: Vec<Option<Ns>> = seats.iter().map(waited).collect();
        sorted.clear();
        sorted.extend(each.iter().flatten());
        if sorted.is_empty() {
            continue;
        }
        let at = sorted.len() * 3 / 4;
        let (_, usual, _) = sorted.select_nth_unstable(at);
        for (sum, waited) in sums.iter_mut().zip(each) {
            *sum += waited.map_or(0.0, |waited: Ns| (*usual - waited).0 as f64);
        }
    }
    sums.iter().map(|sum| sum / rounds.len() as f64).collect()
}

/// The phase of a seat that grew most from usual rounds to slow ones, and by how many ns a step.
fn grown_phase(slow: &[&Round], usual: &[&Round], seat: u32) -> Option<(Name, f64)> {
    let phases = |rounds: &[&Round]| {
        let mut sums: BTreeMap<Name, f64> = BTreeMap::new();
        for report in rounds.iter().filter_map(|round| round.reports.get(&seat)) {
            for (name, ns) in &report.phases {
                *sums.entry(name.clone()).or_default() += ns.0 as f64 / rounds.len() as f64;
            }
        }
        sums
    };
    let before = phases(usual);
    let grown = phases(slow).into_iter().map(|(name, ns)| {
        let more = ns - before.get(&name).copied().unwrap_or(0.0);
        (name, more)
    });
    grown.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|p| p.1 > 0.0)
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
        first_seat: u32,
    }

    impl Job {
        fn new() -> Job {
            let fleet = Fleet::new(Detection::default());
            Job { fleet, random: Random::new(9), now: Ns::secs(1), seq: 0, first_seat: 0 }
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
                        seat: self.first_seat + rank as u32,
                        node: rank as u64,
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

    /// Of two ranks that come late since they waited for their GPU, one's kernels took longer, and one's host launched them late.
    #[test]
    fn what_was_seen_in_kernels_tells_a_slow_device_from_a_host_in_the_way() {
        let mut job = Job::new();
        job.steps(400, 9, "", 0.0, 2.0);
        job.steps(60, 1, "sync", 8.0, 2.0);
        let (straggler, _) = job.fleet.look(job.now).unwrap();
        let known = |class| straggler.slowness.with_cause(class).as_str();
        assert_eq!(known("kernel_imbalance"), "compute-slow");
        assert_eq!(known("launch_latency"), "host-interfered");
        for (before, class, is) in [
            (Slowness::Input, "kernel_imbalance", Slowness::Compute),
            (Slowness::Input, "gpu_throttling", Slowness::Compute),
            (Slowness::Communication, "network", Slowness::Communication),
        ] {
            assert_eq!(before.with_cause(class), is, "{class}");
        }
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
                seat: 0,
                node: 0,
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

    /// What a node that lies reports of its rank.
    fn lie(rank: u32, seq: u64, dur: i64, waited: i64) -> Arrival {
        Arrival {
            rank,
            seat: rank,
            node: u64::from(rank),
            seq,
            name: "step".into(),
            size: None,
            dur: Ns(dur),
            waited: Ns(waited),
            phases: vec![],
        }
    }

    fn found(job: &mut Job) -> (Option<u32>, u32) {
        let (straggler, over) = job.fleet.look(job.now).expect("a straggler is found");
        assert!(!over);
        (straggler.rank, straggler.epoch)
    }

    #[test]
    fn a_straggler_is_told_soon_after_an_elastic_restart() {
        let mut job = Job::new();
        job.steps(5000, 9, "", 0.0, 2.0);
        job.seq = 0;
        job.steps(100, 9, "", 0.0, 2.0);
        assert_eq!(job.fleet.look(job.now), None);
        job.steps(60, 2, "sync", 8.0, 2.0);
        assert_eq!(found(&mut job), (Some(2), 1));
        let (straggler, _) = job.fleet.look(job.now).unwrap();
        assert!((97..=102).contains(&straggler.seqs.0), "{:?}", straggler.seqs);
    }

    #[test]
    fn a_straggler_is_told_after_a_hundred_restarts() {
        let mut job = Job::new();
        job.steps(400, 9, "", 0.0, 2.0);
        for _ in 0..100 {
            job.seq = 0;
            job.steps(30, 9, "", 0.0, 2.0);
        }
        job.steps(60, 1, "load", 8.0, 2.0);
        assert_eq!(found(&mut job), (Some(1), 100));
    }

    #[test]
    fn one_line_of_made_up_steps_evicts_no_rounds_of_others() {
        let mut job = Job::new();
        job.steps(400, 9, "", 0.0, 2.0);
        for n in 0..20_000 {
            job.fleet.arrive(lie(7, u64::MAX - 20_000 + n, 1, 1), job.now);
        }
        job.steps(60, 2, "sync", 8.0, 2.0);
        assert_eq!(found(&mut job), (Some(2), 0));
    }

    #[test]
    fn a_rank_that_reports_at_random_keeps_no_round_from_being_whole() {
        for every in [1, 2, 3, 50] {
            let mut job = Job::new();
            for n in 0..460 {
                let late = if n < 400 { 0.0 } else { 8.0 };
                job.steps(1, 1, "sync", late, 2.0);
                if n % every == 0 {
                    job.fleet.arrive(lie(7, job.seq - 1, 14_000_000, 2_000_000), job.now);
                }
            }
            assert_eq!(found(&mut job).0, Some(1), "one step in {every}");
        }
        // A number that no other rank will ever reach.
        let mut job = Job::new();
        job.steps(400, 9, "", 0.0, 2.0);
        job.fleet.arrive(lie(7, u64::MAX, 14_000_000, 2_000_000), job.now);
        job.steps(60, 1, "sync", 8.0, 2.0);
        assert_eq!(found(&mut job).0, Some(1));
    }

    #[test]
    fn a_rank_that_lies_about_its_times_hides_nobody_else() {
        for (dur, waited) in [(i64::MAX, i64::MAX), (i64::MIN, i64::MIN), (1, i64::MAX), (0, 0)] {
            let mut job = Job::new();
            for n in 0..460 {
                let late = if n < 400 { 0.0 } else { 8.0 };
                job.steps(1, 1, "sync", late, 2.0);
                job.fleet.arrive(lie(7, job.seq - 1, dur, waited), job.now);
            }
            assert_eq!(found(&mut job).0, Some(1), "{dur} {waited}");
        }
    }

    /// Before the fault it reports long waits of some steps, and during the fault of none.
    #[test]
    fn a_rank_that_reports_a_step_now_and_then_hides_nobody() {
        let mut job = Job::new();
        for n in 0..460 {
            let late = if n < 400 { 0.0 } else { 8.0 };
            job.steps(1, 1, "sync", late, 2.0);
            if n < 400 && n % 9 < 4 {
                job.fleet.arrive(lie(7, job.seq - 1, 1, i64::MAX), job.now);
            }
        }
        assert_eq!(found(&mut job).0, Some(1));
    }

    /// The first slow step is heard of long before it is made.
    #[test]
    fn a_step_that_was_made_up_before_its_time_moves_no_begin() {
        let mut job = Job::new();
        for n in 0..460 {
            let late = if n < 400 { 0.0 } else { 8.0 };
            job.steps(1, 1, "sync", late, 2.0);
            if n == 380 {
                job.fleet.arrive(lie(7, job.seq + 20, 1, i64::MAX), job.now);
            }
        }
        let found = job.fleet.look(job.now).unwrap().0;
        assert_eq!(found.rank, Some(1));
        assert!((397..=402).contains(&found.seqs.0), "{:?}", found.seqs);
    }

    /// Another node has claimed the rank before its own node came, and reports steps that nobody makes.
    #[test]
    fn who_claims_a_rank_before_its_node_does_and_keeps_no_step_hides_nothing() {
        let mut job = Job::new();
        let mut random = Random::new(3);
        let mut claim = |job: &mut Job| {
            let seq = random.below(500) as u64;
            let arrival = Arrival { rank: 1, seat: 0, ..lie(77, seq, i64::MAX, i64::MAX) };
            job.fleet.arrive(arrival, job.now);
        };
        job.first_seat = 1;
        (0..5).for_each(|_| claim(&mut job));
        for n in 0..460 {
            job.steps(1, 1, "sync", if n < 400 { 0.0 } else { 8.0 }, 2.0);
            claim(&mut job);
        }
        assert_eq!(found(&mut job).0, Some(1));
        assert_eq!(job.fleet.look(job.now).unwrap().0.seat, Some(2));
    }

    /// Another node says of all ranks that they come in time, at the same steps.
    #[test]
    fn of_two_nodes_that_keep_step_with_the_others_the_first_is_believed() {
        let mut job = Job::new();
        for n in 0..460 {
            job.steps(1, 1, "sync", if n < 400 { 0.0 } else { 8.0 }, 2.0);
            for rank in 0..3 {
                let copy = lie(rank, job.seq - 1, 16_000_000, 2_000_000);
                job.fleet.arrive(Arrival { seat: 100 + rank, node: 99, ..copy }, job.now);
            }
        }
        assert_eq!(found(&mut job).0, Some(1));
        assert_eq!(job.fleet.look(job.now).unwrap().0.seat, Some(1));
    }

    /// Its numbers are heard of, and closed, before the ranks come to them.
    #[test]
    fn steps_that_were_made_up_seconds_before_their_time_are_judged_when_they_are_made() {
        let mut job = Job::new();
        for n in 0..460 {
            let late = if n < 400 { 0.0 } else { 8.0 };
            job.steps(1, 1, "sync", late, 2.0);
            if n == 200 {
                // They are overdue long before.
                for seq in 380..440 {
                    job.fleet.arrive(lie(7, seq, i64::MAX, i64::MAX), job.now);
                }
            }
        }
        let found = job.fleet.look(job.now).unwrap().0;
        assert_eq!(found.rank, Some(1), "{found:?}");
        assert!((397..=402).contains(&found.seqs.0), "{:?}", found.seqs);
        assert!(
            (6e6..9e6).contains(&found.later) && (6e6..9e6).contains(&found.excess),
            "{found:?}"
        );
    }

    #[test]
    fn what_is_remembered_of_a_job_is_bounded() {
        let mut job = Job::new();
        job.fleet.set_limit(1 << 20);
        for n in 0..100_000u32 {
            let mut arrival = lie(n, u64::from(n % 7), 1_000_000, 0);
            arrival.name = format!("step{n}").as_str().into();
            arrival.phases = (0..100).map(|p| (format!("{n}{p}").as_str().into(), Ns(1))).collect();
            job.fleet.arrive(arrival, job.now);
        }
        assert!(job.fleet.epochs.len() <= RANKS && job.fleet.names.0.len() <= NAMES);
        assert!(job.fleet.rounds.range(..).count() <= 7);
    }
}
