//! Whether more time on a CPU was more work, or the same work that took longer.
//!
//! # What it sees
//! At which places of a step its threads ran for longer ([`Place`]), and who else took more of the CPUs. Code that does
//! more than before runs for longer where it does so, and the rest of the step runs as fast as ever. A CPU that
//! became slower (its clock, or a neighbour on the other thread of its core) slows every place. A neighbour that uses the
//! caches or the memory slows some places and not others, and has to run for that. And what its peers did, who run the same
//! code at the same time on other CPUs: what slows all CPUs slows them as well.
//!
//! # Why it matters
//! "The program itself did more" accuses a program. Without this, each of the causes above would be told as that.
//!
//! # What fools it
//! A neighbour that is not seen: another virtual machine, a device that copies. Within a virtual machine, a place must have
//! grown by more than these were seen to do, or by about as much in each step. A program that does twice as much of
//! everything: it looks like a CPU of half the speed, and is not decided. Hardware counters would tell, and are not
//! recorded. Stacks would tell where code is new, but usual steps have none: they are sampled in incidents only.

use std::collections::BTreeMap;

use gpuwhy_schema::{EntityId, Part, PartKind};

use crate::detect::Long;

/// Where in the course of a step a thread ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Before the step's thread waited for the first time.
    BeforeWaits,
    /// Between two of its waits; another thread of the program, while it was waited for.
    BetweenWaits,
    /// After the last of its waits.
    AfterWaits,
}

/// A thread at a place of a step.
pub type Stretch = (EntityId, Place);

/// Usual and slow ns a step of each stretch.
pub type Stretches = BTreeMap<Stretch, (f64, f64)>;

/// The stretch that grew most.
pub(crate) fn grew_most(stretches: &Stretches) -> Option<Stretch> {
    let grew = |(_, (usual, slow)): &(&Stretch, &(f64, f64))| slow - usual;
    stretches.iter().max_by(|a, b| grew(a).total_cmp(&grew(b))).map(|(stretch, _)| *stretch)
}

/// Whether a part is a time in which the step's thread had no need of anything but a CPU.
fn needs_a_cpu(part: &Part, own: EntityId) -> bool {
    use PartKind::{Hardirq, Reclaim, Run, Runnable, Softirq, Steal, Stopped, Throttled};
    let kinds = [Run, Hardirq, Softirq, Runnable, Throttled, Steal, Reclaim, Stopped];
    part.thread == own && kinds.contains(&part.kind)
}

/// For how many ns each thread ran at each place of one step of `own`, whose parts these are.
pub fn stretches(parts: &[&Part], own: EntityId) -> Vec<(Stretch, f64)> {
    let mut parts = parts.to_vec();
    parts.sort_by_key(|part| part.ts);
    let waits = |part: &&&Part| !needs_a_cpu(part, own);
    let first_wait = parts.iter().position(|part| waits(&part)).unwrap_or(parts.len());
    let last_wait = parts.iter().rposition(|part| waits(&part)).unwrap_or(0);
    let mut out: BTreeMap<Stretch, f64> = BTreeMap::new();
    for (at, part) in parts.iter().enumerate().filter(|(_, part)| part.kind == PartKind::Run) {
        let place = match at {
            _ if at < first_wait => Place::BeforeWaits,
            _ if at > last_wait => Place::AfterWaits,
            _ => Place::BetweenWaits,
        };
        *out.entry((part.thread, place)).or_default() += part.dur.0 as f64;
    }
    out.into_iter().collect()
}

/// Somebody who took more of the CPUs than before.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbour {
    /// What to call it.
    pub name: String,
    /// Its command and control group, if it is a process.
    pub command: Option<(String, Option<String>)>,
    /// CPUs that it took before,
    pub before: f64,
    /// and since the onset.
    pub during: f64,
}

/// What is known of how much work steps are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Work {
    /// Somebody marked them: as much as any other.
    #[default]
    Marked,
    /// They are busy periods, of any length.
    Any,
    /// They are busy periods in which about as many messages arrived as before: usual and slow ones of a period.
    Asked((f64, f64)),
}

/// What is known of the time that a program spent on CPUs.
#[derive(Clone, Debug, Default)]
pub struct OnCpu {
    /// Usual and slow ns a step at the place that grew most.
    most: (f64, f64),
    /// The same of all other places of these steps.
    elsewhere: (f64, f64),
    /// Who else took more of the CPUs; none if that was not recorded.
    neighbours: Option<Vec<Neighbour>>,
    /// How many times as long its peers ran meanwhile, at the median.
    peers: Option<f64>,
    /// What is known of how much its steps are.
    work: Work,
    /// Whether its steps are measured by their batches.
    batches: bool,
    /// It is about three steps at most.
    few: bool,
    /// Those that took far longer than usual, while those in between took as long as ever.
    long: Option<Long>,
    /// Its CPUs may be those of a virtual machine.
    is_virtual: bool,
    /// By how much the slow steps differ among themselves at the place that grew most, ns.
    spread: f64,
}

/// Why it is not known that a program did more.
#[derive(Clone, Debug, PartialEq)]
pub enum Doubt {
    /// Somebody began to run who could have slowed it.
    Neighbour(Neighbour),
    /// It was slower wherever it ran.
    Everywhere,
    /// It ran at one place only.
    OnePlace,
    /// Who ran beside it was not recorded.
    NotRecorded,
    /// There may have been more to do.
    AnyWork,
    /// It may do so now and then.
    Habit,
    /// It ran hardly longer in all.
    Little,
    /// It ran so little longer there that other virtual machines may have slowed it.
    OtherMachines,
    /// The other ranks of its engine ran longer as well.
    Ranks,
}

/// Other places are evidence if they make up this share of the usual time on CPUs.
const EVIDENCE: f64 = 0.05;
/// What it ran less elsewhere may have moved to the place that grew, from this share of that growth on: waiting that spins
/// is told as the running of one thread or of another.
const MOVED: f64 = 0.25;
/// It was slower wherever it ran if a CPU as much slower as at the place that was slowed least explains more than this
/// share of what it ran longer.
const SLOWER_CPU: f64 = 0.5;
/// A neighbour that runs all the time makes the same work take at most so many times longer: a walk through 3 MiB of
/// memory took 5 times as long beside a process that streamed through 256 MiB (two virtual CPUs of one EPYC).
const SLOWED_AT_MOST: f64 = 8.0;
/// What slows one CPU alone, the other thread of its core above all, makes the same work take at most so many times longer.
const SLOWED_ALONE: f64 = 2.0;
/// Peers were as fast as ever if they took no more than this share of what the program took longer, by its usual time.
const AS_FAST: f64 = 0.25;
/// What is not seen at all, another virtual machine on the same socket above all, makes the same work take at most so many
/// times longer without anybody's doing: our own loop, left alone on two virtual CPUs, took 1.03 to 1.11 times as long for
/// 4 to 16 s at a time.
const UNSEEN: f64 = 1.15;
/// Other virtual machines take caches and the bandwidth of memory as well, which no guest sees. What they do all the time makes
/// the same work take at most so many times longer at one place of its steps,
const OTHER_MACHINES: f64 = 2.0;
/// and what they do now and then makes steps differ by this share of the growth, or more, while a program that does more does
/// so in each: of a walk through 3 MiB, left alone on two virtual CPUs, that place took 1.6 to 4.5 times as long for 1 to 20 s at
/// a time, and the rest of its steps as long as ever; among its slow steps it differed by as much as it had grown.
const IRREGULAR: f64 = 0.5;
/// What a batch takes is learned from how many tokens, requests and how much context it has. What that does not say (how answers
/// are sampled, what a cache held, who else needs the memory) makes it take at most so many times longer without anybody's
/// doing: of a server under a client of a steady rate, left alone, steps took 1.2 to 1.5 times as long for seconds.
const OF_BATCHES: f64 = 2.0;
/// So many long steps show whether they come again; of four, the three that hold most of the loss are judged.
const HABIT: usize = 4;
/// No clock is lowered to less than one part in so many, so that what took longer than that was more work, if nobody
/// else ran.
const NO_CLOCK: f64 = 16.0;

impl OnCpu {
    /// From where the threads of one series ran, and who else took more of the CPUs.
    pub fn new(stretches: &Stretches, neighbours: Option<Vec<Neighbour>>) -> OnCpu {
        let Some(most) = grew_most(stretches).map(|stretch| stretches[&stretch]) else {
            return OnCpu { neighbours, ..OnCpu::default() };
        };
        let sum = |of: fn(&(f64, f64)) -> f64| stretches.values().map(of).sum::<f64>();
        let elsewhere = (sum(|s| s.0) - most.0, sum(|s| s.1) - most.1);
        OnCpu { most, elsewhere, neighbours, ..OnCpu::default() }
    }

    /// With what its peers ran in their own steps of the same name: usual and slow ns a step of each.
    pub fn beside(self, peers: &[(f64, f64)]) -> OnCpu {
        let usual = self.most.0 + self.elsewhere.0;
        let ran = peers.iter().filter(|peer| peer.0 > 0.0 && peer.0 >= EVIDENCE * usual);
        let times = crate::stats::sorted(ran.map(|(usual, slow)| slow / usual));
        let peers = (!times.is_empty()).then(|| crate::stats::quantile(&times, 0.5));
        OnCpu { peers, ..self }
    }

    /// The same of steps that are so much work.
    pub fn of_work(self, work: Work) -> OnCpu {
        OnCpu { work, ..self }
    }

    /// Whether nobody marked the steps: they are busy periods.
    pub(crate) fn is_of_busy_periods(&self) -> bool {
        self.work != Work::Marked
    }

    /// The same of steps that are measured by their batches, or not.
    pub fn of_batches(self, batches: bool) -> OnCpu {
        OnCpu { batches, ..self }
    }

    /// The same of slow steps that differ among themselves by so many ns at the place that grew most.
    pub fn differing_by(self, spread: f64) -> OnCpu {
        OnCpu { spread, ..self }
    }

    /// The same on CPUs that may be those of a virtual machine, or not.
    pub fn on_virtual_cpus(self, is_virtual: bool) -> OnCpu {
        OnCpu { is_virtual, ..self }
    }

    /// The same of so many slow steps.
    pub fn of_steps(self, slow: usize) -> OnCpu {
        OnCpu { few: slow < HABIT, ..self }
    }

    /// The same of steps among which these were long; of steps that somebody marked, and of few, that says nothing.
    pub(crate) fn among(self, long: Option<Long>) -> OnCpu {
        let is_busy = matches!(self.work, Work::Asked(_));
        OnCpu { long: long.filter(|long| is_busy && long.many >= HABIT), ..self }
    }

    /// Whether some took longer than anything makes the same work take from one to the next: no clock changes as often, and what a
    /// neighbour slows at most is known.
    fn some_were_more(&self) -> bool {
        let at_most = |long: &Long| if long.scattered { SLOWED_AT_MOST } else { NO_CLOCK };
        self.long.is_some_and(|long| long.times >= at_most(&long))
    }

    /// Whether its peers, who ran the same code meanwhile, were as fast as ever, and it took longer somewhere than what
    /// slows a single CPU explains.
    fn is_alone(&self) -> bool {
        let most = self.most.1 / self.most.0.max(1.0);
        let somewhere = self.times_elsewhere().map_or(most, |times| times.max(most));
        let as_fast = |peers| peers - 1.0 <= AS_FAST * (self.times() - 1.0);
        somewhere > SLOWED_ALONE && self.peers.is_some_and(as_fast)
    }

    /// Whether steps that take so many times as long come and go without anybody's doing: those that are measured by their
    /// batches, up to twice as long.
    pub(crate) fn comes_and_goes(&self, times: f64) -> bool {
        self.batches && times < OF_BATCHES
    }

    /// How many times as long it ran in all.
    fn times(&self) -> f64 {
        (self.most.1 + self.elsewhere.1) / (self.most.0 + self.elsewhere.0).max(1.0)
    }

    /// Whether it ran so much less elsewhere that this may be what it ran longer at one place.
    fn may_have_moved(&self) -> bool {
        let less = self.elsewhere.0 - self.elsewhere.1;
        less > 0.0 && less >= MOVED * (self.most.1 - self.most.0)
    }

    /// How many times as long it ran elsewhere; none if it ran there too little to say, or less than before by so much
    /// that it may have moved.
    fn times_elsewhere(&self) -> Option<f64> {
        let usual = self.most.0 + self.elsewhere.0;
        let is_evidence = self.elsewhere.0 >= EVIDENCE * usual && self.elsewhere.0 > 0.0;
        let is_evidence = is_evidence && !self.may_have_moved();
        is_evidence.then(|| self.elsewhere.1 / self.elsewhere.0)
    }

    /// Whether a neighbour took enough of the CPUs to slow the program as much, at the place that grew most. What it ran
    /// less elsewhere may have moved there.
    fn suffices(&self, neighbour: &Neighbour) -> bool {
        let moved = (self.elsewhere.0 - self.elsewhere.1).max(0.0);
        let times = self.most.1 / (self.most.0 + moved).max(1.0);
        (neighbour.during - neighbour.before) * (SLOWED_AT_MOST - 1.0) >= times - 1.0
    }

    /// Which share of what it ran longer a slower CPU explains, if it ran so many times as long elsewhere.
    fn by_slower_cpu(&self, elsewhere: f64) -> f64 {
        let (usual, slow) = (self.most.0 + self.elsewhere.0, self.most.1 + self.elsewhere.1);
        let most = self.most.1 / self.most.0.max(1.0);
        (elsewhere.min(most) - 1.0) * usual / (slow - usual).max(1.0)
    }

    /// Whether other virtual machines may have slowed it at the place that grew most: by as much as any neighbour does, if some
    /// steps took much longer there than others, and else by a little.
    fn by_other_machines(&self) -> bool {
        let grew = self.most.1 - self.most.0;
        let at_most = if self.spread >= IRREGULAR * grew { SLOWED_AT_MOST } else { OTHER_MACHINES };
        self.is_virtual && self.most.1 < at_most * self.most.0
    }

    /// What speaks against that the program did more; none if nothing does.
    pub fn doubt(&self) -> Option<Doubt> {
        if self.work == Work::Any {
            return Some(Doubt::AnyWork);
        }
        if self.few {
            return Some(Doubt::Habit);
        }
        let Some(neighbours) = &self.neighbours else { return Some(Doubt::NotRecorded) };
        if let Some(neighbour) = neighbours.iter().find(|one| self.suffices(one)) {
            return Some(Doubt::Neighbour(neighbour.clone()));
        }
        if self.is_alone() || self.some_were_more() {
            return None;
        }
        // Ranks of an engine run while they wait for each other, where no GPU does so for them.
        if self.batches && self.peers.is_some() {
            return Some(Doubt::Ranks);
        }
        if self.times() < if self.batches { OF_BATCHES } else { UNSEEN } {
            return Some(Doubt::Little);
        }
        match self.times_elsewhere() {
            Some(times) if self.by_slower_cpu(times) <= SLOWER_CPU => {
                self.by_other_machines().then_some(Doubt::OtherMachines)
            }
            Some(_) => Some(Doubt::Everywhere),
            None if self.times() >= NO_CLOCK => None,
            None => Some(Doubt::OnePlace),
        }
    }

    /// Where it ran for longer and where it did not, in words.
    pub fn places(&self) -> String {
        let most = match self.most.0 {
            0.0 => "where it did not run before".to_owned(),
            usual => format!("{:.2} times as long at one place of its steps", self.most.1 / usual),
        };
        let places = match self.times_elsewhere() {
            Some(times) => format!("it ran {most}, and {times:.2} times as long elsewhere"),
            None if self.may_have_moved() => {
                format!(
                    "it ran {most}, and less than before elsewhere, from where that may have moved"
                )
            }
            None => format!("it ran {most}, and hardly anywhere else"),
        };
        let places = match self.work {
            Work::Asked((usual, slow)) => format!(
                "{places}; {slow:.1} messages arrived in a busy period, {usual:.1} in a usual one"
            ),
            Work::Marked | Work::Any => places,
        };
        let places = match self.long {
            Some(long) => format!(
                "{places}; some took {:.1} times as long as usual, and those in between as long as ever",
                long.times
            ),
            None => places,
        };
        match self.peers.filter(|_| self.is_alone()) {
            Some(times) => {
                format!(
                    "{places}; those who take the same steps ran {times:.2} times as long meanwhile"
                )
            }
            None => places,
        }
    }
}

impl Doubt {
    /// Whether the same work may have taken longer.
    pub fn is_of_speed(&self) -> bool {
        !matches!(self, Doubt::AnyWork | Doubt::Habit)
    }

    /// It, in words.
    pub fn says(&self, on_cpu: &OnCpu) -> String {
        match self {
            Doubt::Neighbour(Neighbour { name, before, during, .. }) => format!(
                "{name} took {during:.2} CPUs, {before:.2} before, and may have slowed the same work through \
                 memory bandwidth, a cache or the other thread of a core"
            ),
            Doubt::Everywhere => format!(
                "{}: so does the same work on a slower CPU, as does more of everything",
                on_cpu.places()
            ),
            Doubt::OnePlace => {
                format!("{}: nothing shows that the CPU was as fast as before", on_cpu.places())
            }
            Doubt::Little if on_cpu.batches => format!(
                "it ran {:.2} times as long in all: so much comes and goes with what the sizes of batches do not say, such \
                 as how answers are sampled, and with what is not seen here",
                on_cpu.times()
            ),
            Doubt::Little => format!(
                "it ran {:.2} times as long in all: so much comes and goes with what is not seen here, such as another \
                 virtual machine on the same socket",
                on_cpu.times()
            ),
            Doubt::OtherMachines => format!(
                "{}; there the slow steps differ by {:.2} ms: so they do where code waits for memory that other virtual \
                 machines use as well",
                on_cpu.places(),
                on_cpu.spread / 1e6
            ),
            Doubt::Ranks => format!(
                "{}, and those who take the same steps {:.2} times: ranks that run while they wait for each other do so, \
                 whichever of them is late",
                on_cpu.places(),
                on_cpu.peers.unwrap_or(1.0)
            ),
            Doubt::AnyWork => {
                "a busy period ends when there is no more to do, and how much there was is not known: mark the steps, or \
                 name the function that is one"
                    .to_owned()
            }
            Doubt::Habit => {
                "a few long steps may be what the program does now and then, as a checkpoint or an evaluation is: more \
                 would show whether they come again"
                    .to_owned()
            }
            Doubt::NotRecorded => {
                "who else took more of the CPUs is not known: a neighbour may have slowed \
                                   the same work"
                    .to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Id, Ns};

    use super::*;

    const OWN: EntityId = EntityId(1);
    const HELPER: EntityId = EntityId(2);

    /// How long the step's thread (`r`) and its helper (`h`) ran at each place of a drawn step, in ms: `q` it waited for
    /// a CPU, `w` for something else.
    fn drawn(step: &str) -> String {
        let mut parts = Vec::new();
        for (at, c) in step.chars().enumerate() {
            let (kind, thread) = match c {
                'r' => (PartKind::Run, OWN),
                'h' => (PartKind::Run, HELPER),
                'q' => (PartKind::Runnable, OWN),
                _ => (PartKind::Timer, OWN),
            };
            let (ts, dur) = (Ns::millis(at as i64), Ns::millis(1));
            let (step, hops) = (Id(1), u32::from(thread != OWN));
            parts.push(Part { step, ts, dur, kind, thread, blame: None, hops });
        }
        // The order of rows is not that of time.
        parts.reverse();
        let parts: Vec<&Part> = parts.iter().collect();
        let say = |((thread, place), ns): (Stretch, f64)| {
            let who = if thread == OWN { "r" } else { "h" };
            format!("{who} {place:?} {}", ns / 1e6)
        };
        stretches(&parts, OWN).into_iter().map(say).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_wait_for_a_cpu_does_not_end_a_stretch_and_other_waits_do() {
        assert_eq!(drawn("rrqrr"), "r BeforeWaits 4");
        assert_eq!(drawn("rrqrwrwrrr"), "r BeforeWaits 3, r BetweenWaits 1, r AfterWaits 3");
        assert_eq!(drawn("rhhr"), "r BeforeWaits 1, r AfterWaits 1, h BetweenWaits 2");
    }

    /// What is doubted where a program ran so many ms before its first and after its last wait, usually and then, beside
    /// neighbours that took so many CPUs before and then.
    fn doubt(before: (f64, f64), after: (f64, f64), cpus: Option<&[(f64, f64)]>) -> String {
        let stretch = |place, (usual, slow): (f64, f64)| ((OWN, place), (usual * 1e6, slow * 1e6));
        let stretches =
            [stretch(Place::BeforeWaits, before), stretch(Place::AfterWaits, after)].into();
        let neighbour = |&(before, during): &(f64, f64)| {
            let name = "stream".to_owned();
            Neighbour { name, command: None, before, during }
        };
        let neighbours = cpus.map(|list| list.iter().map(neighbour).collect());
        match OnCpu::new(&stretches, neighbours).doubt() {
            None => "more work".to_owned(),
            Some(Doubt::Neighbour(_)) => "a neighbour".to_owned(),
            Some(other) => format!("{other:?}"),
        }
    }

    #[test]
    fn one_place_that_grew_beside_one_that_did_not_is_more_work_if_nobody_else_began_to_run() {
        assert_eq!(doubt((3.0, 9.0), (1.0, 1.05), Some(&[])), "more work");
        // A new phase.
        assert_eq!(doubt((0.0, 9.0), (1.0, 1.05), Some(&[])), "more work");
    }

    #[test]
    fn code_that_is_slower_wherever_it_runs_may_run_on_a_slower_cpu() {
        assert_eq!(doubt((3.0, 6.0), (1.0, 1.9), Some(&[])), "Everywhere");
        // A CPU of three quarters of the speed explains less than half of this, and most of that.
        assert_eq!(doubt((6.3, 10.9), (1.4, 1.8), Some(&[])), "more work");
        assert_eq!(doubt((6.3, 9.3), (1.4, 1.8), Some(&[])), "Everywhere");
        // The place that grew most is not the one that became slowest.
        assert_eq!(doubt((6.4, 8.0), (0.9, 2.2), Some(&[])), "Everywhere");
    }

    /// A thread that spins until another is done: what was the other's running is told as its own.
    #[test]
    fn what_ran_less_elsewhere_may_have_moved_there() {
        assert_eq!(doubt((0.0, 1.0), (2.0, 1.5), Some(&[])), "OnePlace");
        assert_eq!(doubt((0.0, 1.0), (2.0, 1.9), Some(&[])), "more work");
    }

    #[test]
    fn a_rank_of_an_engine_that_runs_longer_as_others_do_may_wait_for_them() {
        let of = |peers: f64, batches| {
            let stretches =
                [((OWN, Place::BeforeWaits), (1e6, 4e6)), ((OWN, Place::AfterWaits), (1e6, 1e6))];
            let on_cpu = OnCpu::new(&stretches.into(), Some(Vec::new()));
            on_cpu.beside(&[(2e6, peers * 2e6)]).of_batches(batches).doubt()
        };
        assert_eq!(of(2.2, true), Some(Doubt::Ranks));
        assert_eq!(of(1.1, true), None, "nobody else is slower");
        assert_eq!(of(2.2, false), None, "others wait for each other without running");
    }

    /// What waits for memory at one place only is slowed there by neighbours that no guest sees.
    #[test]
    fn one_place_that_grew_in_a_virtual_machine_may_have_been_slowed_by_another_one() {
        let of = |slow: f64, spread: f64, is_virtual| {
            let stretches = [
                ((OWN, Place::BeforeWaits), (4.7e6, slow * 1e6)),
                ((OWN, Place::AfterWaits), (1e6, 1e6)),
            ];
            let on_cpu = OnCpu::new(&stretches.into(), Some(Vec::new()));
            on_cpu.differing_by(spread * 1e6).on_virtual_cpus(is_virtual).doubt()
        };
        assert_eq!((of(8.0, 0.2, true), of(8.0, 0.2, false)), (Some(Doubt::OtherMachines), None));
        assert_eq!((of(14.0, 7.0, true), of(14.0, 7.0, false)), (Some(Doubt::OtherMachines), None));
        assert_eq!(of(14.0, 2.0, true), None, "each step does as much more");
        assert_eq!(of(40.0, 35.0, true), None, "no neighbour slows it so");
    }

    /// Requests of a server that take twenty times as long as others, between which these are as quick as ever.
    #[test]
    fn a_few_very_long_busy_periods_among_usual_ones_are_more_work_if_as_much_arrived() {
        let stretches = Stretches::from([((OWN, Place::BeforeWaits), (1e6, 3e6))]);
        let of = |work, long| {
            let on_cpu = OnCpu::new(&stretches, Some(Vec::new())).of_work(work);
            on_cpu.of_steps(40).among(long).doubt()
        };
        let asked = Work::Asked((1.0, 1.0));
        let long = |many, times, scattered| Some(Long { many, times, scattered });
        assert_eq!(of(asked, long(5, 20.0, false)), None);
        let one_place = Some(Doubt::OnePlace);
        assert_eq!(of(asked, long(5, 10.0, false)), one_place, "a lower clock may be that slow");
        assert_eq!(of(asked, long(5, 10.0, true)), None, "it does not change as often");
        assert_eq!(of(asked, long(5, 6.0, true)), one_place, "a neighbour that nobody sees may");
        assert_eq!(of(asked, long(3, 20.0, true)), one_place, "three may be a habit");
        assert_eq!(of(asked, None), one_place);
        assert_eq!(of(Work::Any, long(5, 20.0, true)), Some(Doubt::AnyWork));
        assert_eq!(of(Work::Marked, long(5, 20.0, true)), one_place);
    }

    #[test]
    fn batches_that_run_less_than_twice_as_long_may_do_so_by_what_their_sizes_do_not_say() {
        let of = |slow: f64, batches| {
            let (most, other) = ((3e6, slow * 1e6), (1e6, 1e6));
            let stretches =
                [((OWN, Place::BeforeWaits), most), ((OWN, Place::AfterWaits), other)].into();
            OnCpu::new(&stretches, Some(Vec::new())).of_batches(batches).doubt()
        };
        assert_eq!((of(5.0, true), of(5.0, false)), (Some(Doubt::Little), None));
        assert_eq!(of(7.5, true), None);
    }

    #[test]
    fn code_that_runs_at_one_place_only_has_nothing_to_compare_it_with() {
        assert_eq!(doubt((3.0, 9.0), (0.1, 0.1), Some(&[])), "OnePlace");
        // No clock is lowered that far.
        assert_eq!(doubt((3.0, 90.0), (0.1, 0.1), Some(&[])), "more work");
    }

    /// What is doubted of a program that ran so many ms before and after its waits, usually and then, while peers ran for so
    /// many.
    fn doubt_beside(before: (f64, f64), after: (f64, f64), peers: &[(f64, f64)]) -> Option<Doubt> {
        let stretch = |place, (usual, slow): (f64, f64)| ((OWN, place), (usual * 1e6, slow * 1e6));
        let stretches =
            [stretch(Place::BeforeWaits, before), stretch(Place::AfterWaits, after)].into();
        let peers: Vec<(f64, f64)> = peers.iter().map(|p| (p.0 * 1e6, p.1 * 1e6)).collect();
        OnCpu::new(&stretches, Some(vec![])).beside(&peers).doubt()
    }

    #[test]
    fn code_that_runs_longer_everywhere_is_more_work_where_its_peers_are_as_fast_as_ever() {
        let slower = |peers| doubt_beside((6.0, 10.0), (1.0, 5.4), peers);
        assert_eq!(slower(&[]), Some(Doubt::Everywhere));
        assert_eq!(slower(&[(7.0, 7.4)]), None);
        // What slowed the peers may be what slowed it.
        assert_eq!(slower(&[(7.0, 11.0)]), Some(Doubt::Everywhere));
        // Of three, one that was slowed as well is no reason.
        assert_eq!(slower(&[(7.0, 7.4), (7.0, 7.1), (7.0, 15.0)]), None);
        // A peer that hardly runs says nothing.
        assert_eq!(slower(&[(0.1, 0.1)]), Some(Doubt::Everywhere));
        // The other thread of its core slows one CPU alone.
        assert_eq!(doubt_beside((6.0, 10.0), (1.0, 1.7), &[(7.0, 7.0)]), Some(Doubt::Everywhere));
    }

    #[test]
    fn what_ran_hardly_longer_in_all_may_have_been_slowed_by_what_is_not_seen() {
        // One place twice as long, of a step that runs for 12 ms.
        assert_eq!(doubt((1.0, 2.0), (11.0, 11.0), Some(&[])), "Little");
        assert_eq!(doubt((1.0, 3.0), (11.0, 11.0), Some(&[])), "more work");
        // Its peers, who run the same code, were as fast as ever.
        assert_eq!(doubt_beside((0.5, 1.6), (11.0, 11.0), &[(11.5, 11.5)]), None);
    }

    #[test]
    fn a_neighbour_that_began_to_run_may_have_slowed_the_same_work_by_as_much_as_it_ran() {
        let grew = |cpus| doubt((3.0, 9.0), (1.0, 1.05), cpus);
        assert_eq!(grew(Some(&[(0.0, 0.9)])), "a neighbour");
        assert_eq!(grew(Some(&[(0.0, 0.06)])), "more work");
        assert_eq!(grew(None), "NotRecorded");
        // What counts is the place that grew: three times as long there, and the whole step 1.2 times.
        let little = |cpus| doubt((3.0, 9.0), (27.0, 27.5), Some(&[(0.0, cpus)]));
        assert_eq!((little(0.2), little(0.3)), ("more work".to_owned(), "a neighbour".to_owned()));
        // A new phase is no slower one, unless it is one that was elsewhere.
        let phase = |before| doubt(before, (0.0, 9.0), Some(&[(0.0, 0.95)]));
        assert_eq!(phase((3.0, 3.0)), "more work");
        assert_eq!(phase((3.0, 0.0)), "a neighbour");
    }
}
