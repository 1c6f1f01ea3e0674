//! Threads of virtual machines on the host's CPUs: when they ran, waited and halted, and who had the CPU instead.
//!
//! # How
//! A thread was preempted if it was still ready to run when it left its CPU: its `Running` state is followed at once by
//! `Runnable`. One that left its CPU to sleep gave it up by itself; of a virtual CPU that is a halt, and no preemption.
//! Who ran on the CPU meanwhile is looked up among the stretches of that CPU.
//!
//! # What fools it
//! A thread that is moved to another CPU while it waits is taken to wait for the CPU that it left. A stretch of no
//! length is in no trace.

use std::collections::BTreeMap;

use gpuwhy_schema::ThreadState;

/// Whose a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A virtual machine, by its place in a list that the caller has.
    Machine(usize),
    /// The host.
    Host,
    /// Nobody: the CPU was idle, or it is not known who had it.
    Nobody,
}

/// A stretch in which a CPU had one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When it began, ns.
    pub from: i64,
    /// When it ended, ns.
    pub to: i64,
    /// Whose the thread was.
    pub by: Party,
}

/// A state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When it began, ns.
    pub from: i64,
    /// When it ended, ns.
    pub to: i64,
    /// Which.
    pub state: ThreadState,
    /// On which CPU it ran, or waited to run; -1 if that is not known.
    pub cpu: i64,
}

/// What a thread does, as seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It runs.
    Runs,
    /// It could run, and its CPU was taken from it.
    Preempted,
    /// It was woken and waits for a CPU.
    Woken,
    /// It sleeps: a virtual CPU has halted.
    Halted,
}

/// How long the threads of a party did what within a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// They ran, ns.
    pub runs: i64,
    /// They waited since their CPU was taken from them, ns.
    pub preempted: i64,
    /// They waited since they were woken, ns.
    pub woken: i64,
    /// They slept, ns.
    pub halted: i64,
    /// How often a CPU was taken from one.
    pub preemptions: u64,
    /// How often one gave its CPU up to sleep.
    pub halts: u64,
}

/// How often one party had the CPU of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// Its thread was the next on the CPU that was taken away.
    pub direct: u64,
    /// Its thread was the first of another machine that ran there before the preempted one did again; of the host: no
    /// machine's did.
    pub eventual: u64,
    /// How long its threads had the CPU while one waited there, preempted or woken, ns.
    pub behind: i64,
}

/// Who took CPUs from whom within a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preemptions {
    /// What the threads of each party did.
    pub times: BTreeMap<Party, Times>,
    /// By who was preempted or waited, and by whom.
    pub by: BTreeMap<(Party, Party), By>,
}

/// Turns of the CPUs, each in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    cpus: BTreeMap<i64, Vec<Turn>>,
}

impl Turns {
    /// Adds one, in any order.
    pub fn add(&mut self, cpu: i64, turn: Turn) {
        self.cpus.entry(cpu).or_default().push(turn);
    }

    /// Puts all into the order of time, which the rest needs.
    pub fn sort(&mut self) {
        self.cpus.values_mut().for_each(|turns| turns.sort_unstable_by_key(|turn| turn.from));
    }

    /// The CPUs of which there are any.
    pub fn cpus(&self) -> impl Iterator<Item = i64> {
        self.cpus.keys().copied()
    }

    /// The turns of a CPU that overlap a stretch.
    pub fn during(&self, cpu: i64, from: i64, to: i64) -> &[Turn] {
        let turns = self.cpus.get(&cpu).map_or(&[][..], Vec::as_slice);
        let first = turns.partition_point(|turn| turn.to <= from);
        let last = turns.partition_point(|turn| turn.from < to);
        turns.get(first..last).unwrap_or(&[])
    }
}

fn on_cpu(state: ThreadState) -> bool {
    matches!(state, ThreadState::Running | ThreadState::Softirq | ThreadState::Hardirq)
}

/// What a thread did, from its states in the order of time; other states than those of [`Phase`] are left out.
pub fn phases(states: &[Stretch]) -> Vec<(Phase, Stretch)> {
    let mut out: Vec<(Phase, Stretch)> = Vec::with_capacity(states.len());
    let mut before: Option<Stretch> = None;
    for &one in states {
        let left = before.filter(|b| on_cpu(b.state) && b.to == one.from);
        // What interrupts borrowed of a turn is part of it, and does not say the CPU.
        let borrowed = matches!(one.state, ThreadState::Softirq | ThreadState::Hardirq);
        let cpu = if borrowed { left.map_or(-1, |left| left.cpu) } else { one.cpu };
        let one = Stretch { cpu, ..one };
        let phase = match one.state {
            state if on_cpu(state) => Some((Phase::Runs, one)),
            // It waits where it was, as far as anybody knows.
            ThreadState::Runnable => Some(match left {
                Some(left) => (Phase::Preempted, Stretch { cpu: left.cpu, ..one }),
                None => (Phase::Woken, one),
            }),
            ThreadState::Sleep => Some((Phase::Halted, one)),
            _ => None,
        };
        out.extend(phase);
        before = Some(one);
    }
    out
}

impl Preemptions {
    /// Adds a thread of a party: its states in the order of time, counted within the window `[from, to)`.
    pub fn thread(&mut self, of: Party, states: &[Stretch], turns: &Turns, window: (i64, i64)) {
        let mut ran_until = None;
        for (phase, one) in phases(states) {
            let (from, to) = (one.from.max(window.0), one.to.min(window.1));
            let begins = window.0 <= one.from && one.from < window.1;
            let length = (to - from).max(0);
            let times = self.times.entry(of).or_default();
            match phase {
                Phase::Runs => times.runs += length,
                Phase::Halted => {
                    times.halted += length;
                    times.halts += u64::from(begins && ran_until == Some(one.from));
                }
                Phase::Woken => times.woken += length,
                Phase::Preempted => {
                    times.preempted += length;
                    times.preemptions += u64::from(begins);
                    if begins {
                        self.taken(of, &one, turns);
                    }
                }
            }
            ran_until = (phase == Phase::Runs).then_some(one.to);
            if matches!(phase, Phase::Preempted | Phase::Woken) {
                for turn in turns.during(one.cpu, from, to) {
                    let shared = turn.to.min(to) - turn.from.max(from);
                    self.by.entry((of, turn.by)).or_default().behind += shared.max(0);
                }
            }
        }
    }

    /// Who took the CPU at the begin of a wait.
    fn taken(&mut self, of: Party, wait: &Stretch, turns: &Turns) {
        let turns = turns.during(wait.cpu, wait.from, wait.to);
        let next = turns.first().filter(|turn| turn.from == wait.from);
        let next = next.map_or(Party::Nobody, |turn| turn.by);
        let other = |turn: &&Turn| matches!(turn.by, Party::Machine(_)) && turn.by != of;
        let first = turns.iter().find(other).map_or(next, |turn| turn.by);
        self.by.entry((of, next)).or_default().direct += 1;
        self.by.entry((of, first)).or_default().eventual += 1;
    }

    /// How often machines took CPUs from other machines directly.
    pub fn machine_by_machine(&self) -> u64 {
        let pairs = self.by.iter().filter(
            |((of, by), _)| matches!((of, by), (Party::Machine(a), Party::Machine(b)) if a != b),
        );
        pairs.map(|(_, by)| by.direct).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Party = Party::Machine(0);
    const B: Party = Party::Machine(1);

    fn stretch(from: i64, to: i64, state: ThreadState, cpu: i64) -> Stretch {
        Stretch { from, to, state, cpu }
    }

    fn turns(all: &[(i64, i64, Party)]) -> Turns {
        let mut out = Turns::default();
        for &(from, to, by) in all.iter().rev() {
            out.add(3, Turn { from, to, by });
        }
        out.sort();
        out
    }

    #[test]
    fn a_halt_is_no_preemption() {
        use ThreadState::{Runnable, Running, Sleep};
        let states = [
            stretch(0, 10, Running, 3),
            stretch(10, 40, Sleep, -1),
            stretch(40, 45, Runnable, 3),
            stretch(45, 60, Running, 3),
        ];
        let turns = turns(&[(0, 10, A), (10, 45, B), (45, 60, A)]);
        let mut all = Preemptions::default();
        all.thread(A, &states, &turns, (0, 100));
        let times = Times { runs: 25, woken: 5, halted: 30, halts: 1, ..Times::default() };
        assert_eq!(all.times[&A], times);
        // It waited behind the other machine after it was woken, and was preempted by nobody.
        assert_eq!(all.by[&(A, B)], By { direct: 0, eventual: 0, behind: 5 });
        assert_eq!(all.machine_by_machine(), 0);
    }

    #[test]
    fn the_next_thread_preempts_directly_and_the_next_machine_in_the_end() {
        use ThreadState::{Runnable, Running};
        let states = [
            stretch(0, 10, Running, 3),
            // It is moved to another CPU in the end.
            stretch(10, 40, Runnable, 5),
            stretch(40, 50, Running, 5),
            stretch(50, 60, Runnable, 5),
        ];
        let turns = turns(&[(0, 10, A), (10, 12, Party::Host), (12, 30, B), (30, 99, A)]);
        let mut all = Preemptions::default();
        all.thread(A, &states, &turns, (0, 100));
        assert_eq!(all.times[&A].preemptions, 2);
        assert_eq!(all.times[&A].preempted, 40);
        assert_eq!(all.by[&(A, Party::Host)], By { direct: 1, eventual: 0, behind: 2 });
        assert_eq!(all.by[&(A, B)], By { direct: 0, eventual: 1, behind: 18 });
        assert_eq!(all.by[&(A, A)].behind, 10);
        // Nothing is known of CPU 5.
        assert_eq!(all.by[&(A, Party::Nobody)], By { direct: 1, eventual: 1, behind: 0 });
        assert_eq!(all.machine_by_machine(), 0);
    }

    #[test]
    fn what_interrupts_borrow_of_a_turn_is_part_of_it() {
        use ThreadState::{Runnable, Running, Softirq};
        let states =
            [stretch(0, 10, Running, 3), stretch(10, 12, Softirq, 1), stretch(12, 20, Runnable, 3)];
        let mut all = Preemptions::default();
        all.thread(A, &states, &turns(&[(0, 12, A), (12, 20, B)]), (0, 100));
        let times = Times { runs: 12, preempted: 8, preemptions: 1, ..Times::default() };
        assert_eq!(all.times[&A], times);
        assert_eq!(all.by[&(A, B)].direct, 1);
    }

    #[test]
    fn only_what_begins_in_the_window_counts_and_times_are_cut_to_it() {
        use ThreadState::{Runnable, Running};
        let states = [
            stretch(0, 10, Running, 3),
            stretch(10, 20, Runnable, 3),
            stretch(20, 30, Running, 3),
            stretch(30, 40, Runnable, 3),
        ];
        let turns = turns(&[(0, 10, A), (10, 20, B), (20, 30, A), (30, 40, B)]);
        let mut all = Preemptions::default();
        all.thread(A, &states, &turns, (15, 35));
        let times = Times { runs: 10, preempted: 10, preemptions: 1, ..Times::default() };
        assert_eq!(all.times[&A], times);
        assert_eq!(all.by[&(A, B)], By { direct: 1, eventual: 1, behind: 10 });
        assert_eq!(all.machine_by_machine(), 1);
    }
}
