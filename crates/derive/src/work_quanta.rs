//! Fixed quanta of the work of threads that compute and hardly ever wait: what a solver's threads do.
//!
//! # What it sees
//! States of a thread. A quantum begins where the one before it ended and ends when the thread has run for
//! [`QUANTUM`] more; what it takes beyond that is what others took from it: it waited for a CPU, was out of quota, was
//! stopped, was interrupted or waited for a disk. A sleep of its own accord ends nothing and begins a new quantum, and so do short ones
//! that come to as much as a quantum, and each wait for work, however short: what lies before it is left out. (Benchmarks of operating-system noise measure *fixed work quanta* in the same way, by counting
//! instructions instead of time: Sottile and Minnich, "Analysis of microbenchmarks for performance tuning of clusters",
//! CLUSTER 2004.)
//!
//! # Why it matters
//! A program that computes, ranks of MPI that spin until their peers arrive above all, waits for nothing: it has neither rounds nor
//! busy periods, and nothing else shows that somebody is in its way.
//!
//! # What fools it
//! - The same work that takes longer on the CPU: by a neighbour in the caches, by a lower clock. A quantum is time, not
//!   instructions.
//! - A thread that spins for another one makes quanta and no progress. Who is in the way of the other one is told by its own.
//! - A thread that sleeps at least once in so much of its running has no quanta, and none lies where records of its states are
//!   missing.

use gpuwhy_schema::{Ns, State, ThreadState};

use crate::busy_periods::{Known, Period};
use crate::syscall;

/// How long a thread runs in a quantum.
pub const QUANTUM: Ns = Ns::millis(10);

/// A sleep that is shorter is a part of a quantum: a lock that was taken, a page that was brought. Many of them are not.
const SHORT: Ns = Ns::millis(1);
/// Of one state that lasted for longer than so many quanta, only the last ones count.
const AT_ONCE: i64 = 100;

/// The quanta of one thread, from its states as they end.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkQuanta {
    /// When the open one began, and for how long the thread has run and slept in it.
    open: Option<(Ns, Ns, Ns)>,
    known: Known,
}

impl WorkQuanta {
    /// Takes the next state that has ended; appends the quanta that ended in it.
    pub fn take(&mut self, state: &State, ended: &mut Vec<Period>) {
        let Some((kind, dur)) = ThreadState::from_code(state.value).zip(state.dur) else { return };
        let (mut from, to) = (state.ts, state.ts.saturating_add(dur));
        if self.known.is_behind(from) {
            return;
        }
        if self.known.take(from, to) {
            self.open = None;
        }
        match kind {
            ThreadState::Running => {}
            ThreadState::Sleep => {
                let goes_on = dur < SHORT && !syscall::wait(state.arg.unwrap_or(-1)).is_for_work();
                let open = self.open.filter(|_| goes_on);
                let slept = open.map(|(since, ran, slept)| (since, ran, slept + dur));
                self.open = slept.filter(|(_, _, slept)| *slept < QUANTUM);
                return;
            }
            ThreadState::Unknown => {
                self.open = None;
                return;
            }
            _ => return,
        }
        if dur.0 > AT_ONCE * QUANTUM.0 {
            from = to - Ns(AT_ONCE * QUANTUM.0);
            self.open = None;
        }
        let (mut since, mut ran, mut slept) = self.open.unwrap_or((from, Ns::ZERO, Ns::ZERO));
        while ran + (to - from) >= QUANTUM {
            let end = from + (QUANTUM - ran);
            ended.push(Period { from: since, to: end, messages: None, ran: QUANTUM });
            (since, ran, slept, from) = (end, Ns::ZERO, Ns::ZERO, end);
        }
        self.open = Some((since, ran + (to - from), slept));
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::TrackId;

    use super::*;
    use ThreadState::{DiskWait, Runnable, Running, Sleep, Stopped, Throttled, Unknown};

    /// The quanta of a thread that is in these states for so many ms, one after the other: begin and end, in ms.
    fn of(states: &[(ThreadState, i64)]) -> Vec<(i64, i64)> {
        let mut at = 0;
        let rows = states.iter().map(|&(kind, ms)| {
            let state = row(kind, at, ms);
            at += ms;
            state
        });
        of_rows(&rows.collect::<Vec<_>>())
    }

    fn row(kind: ThreadState, at_ms: i64, ms: i64) -> State {
        let (ts, dur) = (Ns::millis(at_ms), Some(Ns::millis(ms)));
        State { ts, dur, track: TrackId(1), value: kind.code(), arg: None }
    }

    fn of_rows(rows: &[State]) -> Vec<(i64, i64)> {
        let (mut quanta, mut ended) = (WorkQuanta::default(), Vec::new());
        rows.iter().for_each(|row| quanta.take(row, &mut ended));
        ended.iter().map(|p| (p.from.0 / 1_000_000, p.to.0 / 1_000_000)).collect()
    }

    #[test]
    fn a_thread_that_only_runs_has_a_quantum_each_ten_ms() {
        assert_eq!(of(&[(Running, 35)]), [(0, 10), (10, 20), (20, 30)]);
        assert_eq!(of(&[(Running, 4), (Running, 4), (Running, 4)]), [(0, 10)]);
    }

    #[test]
    fn what_others_took_is_a_part_of_a_quantum() {
        for taken in [Runnable, Throttled, Stopped, DiskWait] {
            assert_eq!(of(&[(Running, 4), (taken, 30), (Running, 16)]), [(0, 40), (40, 50)]);
        }
    }

    #[test]
    fn a_sleep_begins_another_quantum_and_what_was_before_it_is_left_out() {
        let slept = [(Running, 14), (Sleep, 500), (Running, 12)];
        assert_eq!(of(&slept), [(0, 10), (514, 524)]);
        let not_known = [(Running, 14), (Unknown, 500), (Running, 12)];
        assert_eq!(of(&not_known), [(0, 10), (514, 524)]);
        let short = |us| {
            let slept = State { dur: Some(Ns::micros(us)), ..row(Sleep, 4, 0) };
            let again = State { ts: Ns::millis(4) + Ns::micros(us), ..row(Running, 0, 9) };
            of_rows(&[row(Running, 0, 4), slept, again]).len()
        };
        assert_eq!((short(900), short(1100)), (1, 0), "the one before is not lost for a short one");
    }

    #[test]
    fn no_quantum_holds_a_wait_for_work() {
        const EPOLL_WAIT: i64 = 232;
        let after = |call| {
            let short = State { arg: Some(call), dur: Some(Ns::micros(100)), ..row(Sleep, 8, 0) };
            let next = State { ts: Ns::micros(8_100), ..row(Running, 0, 8) };
            of_rows(&[row(Running, 0, 8), short, next]).len()
        };
        assert_eq!((after(-1), after(EPOLL_WAIT)), (1, 0));
    }

    #[test]
    fn a_thread_that_sleeps_for_longer_than_it_runs_has_no_quanta() {
        let naps = |sleep_us: i64| {
            let each = 500 + sleep_us;
            let nap = |n: i64| {
                let at = Ns::micros(n * each);
                let of = |ts, us, kind| State { ts, dur: Some(Ns::micros(us)), ..row(kind, 0, 0) };
                [of(at, 500, Running), of(at + Ns::micros(500), sleep_us, Sleep)]
            };
            of_rows(&(0..200).flat_map(nap).collect::<Vec<_>>()).len()
        };
        assert_eq!((naps(300), naps(900)), (10, 0));
    }

    #[test]
    fn no_quantum_holds_what_is_not_known() {
        let after_a_gap = [row(Running, 0, 8), row(Running, 20, 9), row(Running, 29, 3)];
        assert_eq!(of_rows(&after_a_gap), [(20, 30)]);
        let late = [row(Running, 0, 12), row(Runnable, 5, 3), row(Running, 12, 8)];
        assert_eq!(of_rows(&late), [(0, 10), (10, 20)]);
    }

    #[test]
    fn of_hours_of_running_only_the_last_second_is_told() {
        let found = of(&[(Running, 3_600_000)]);
        assert_eq!(
            (found.len(), found[0], found[99]),
            (100, (3_599_000, 3_599_010), (3_599_990, 3_600_000))
        );
    }
}
