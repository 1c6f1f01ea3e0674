//! Busy periods of threads that wait for work, do it, and wait again: what a server's threads do.
//!
//! # What it sees
//! States of a thread. A wait for any of several descriptors (`epoll_wait`, `poll`, `select`) is a wait for work, and so
//! is a read from a pipe or a socket that has nothing yet. A busy period lasts from the end of such a wait, when the
//! thread could go on, to the begin of the next. The term is queueing theory's. Waiting for a CPU, for a disk, for a lock
//! or for a time is part of it, and being idle is not.
//!
//! # Why it matters
//! Requests come when clients send them, so that a server has no rounds. Yet what is in its way makes its busy
//! periods longer.
//!
//! # What fools it
//! - A thread that waits for the answer of somebody whom it asked is taken for idle meanwhile: which descriptor it
//!   waits for is not recorded.
//! - A thread of a pool that waits for its next connection waits for another thread, as for a lock. Such a period has
//!   messages of two connections; where hardly any other of the thread has, it is left out ([`Connections`]).
//! - A period in which more requests have gathered is longer, as is one of a request that asks for more. So that a
//!   thread ran for longer says nothing, unless it received as many messages as in others ([`Received`]).

use std::collections::VecDeque;

use gpuwhy_schema::{Direction, Message, Ns, State, ThreadState};

use crate::syscall::{self, Wait};

/// The busy periods of one thread, from its states as they end.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyPeriods {
    /// When the last wait for work ended.
    since: Option<Ns>,
}

impl BusyPeriods {
    /// Takes the next state that has ended; the busy period that ends where it begins, if one does.
    pub fn take(&mut self, state: &State) -> Option<(Ns, Ns)> {
        let sleeps = state.value == ThreadState::Sleep.code();
        let (from, dur) = (state.ts, state.dur.filter(|_| sleeps)?);
        let wait = syscall::wait(state.arg.unwrap_or(-1));
        let is_idle = matches!(wait, Wait::Poll | Wait::Read | Wait::Receive);
        if !is_idle || self.since.is_some_and(|since| from < since) {
            return None;
        }
        let began = self.since.replace(from.saturating_add(dur))?;
        (began < from).then_some((began, from))
    }
}

/// Whether a thread received something by a message.
pub fn is_received(message: &Message) -> bool {
    message.direction == Direction::Receive && message.bytes > 0
}

/// An event loop changes its connection from one period to another at least once in so many.
const CHANGES_ONE_IN: u64 = 20;

/// The first and the last connection by which a thread sent or received something in a period, and whether there were
/// several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Whether one of both is not all there were.
    pub several: bool,
}

/// The connections of one thread, from busy period to busy period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    last: Option<u64>,
    periods: u64,
    changes: u64,
}

impl Connections {
    /// Takes the flows of the next period.
    pub fn take(&mut self, flows: Flows) {
        self.periods += 1;
        let changed = flows.several || self.last.is_some_and(|last| last != flows.first);
        self.changes += u64::from(changed);
        self.last = Some(flows.last);
    }

    /// Whether the thread serves one connection after another, so that in a period of several it waited for the next one.
    pub fn is_one_at_a_time(&self) -> bool {
        self.changes * CHANGES_ONE_IN < self.periods
    }
}

/// Messages that are remembered until the period that they were received in ends.
const REMEMBERED: usize = 1024;

/// What one thread received from stream sockets, to be counted by its periods.
#[derive(Clone, Debug, Default)]
pub struct Received {
    at: VecDeque<Ns>,
    /// From when to when it sent and received by one connection and no other, and by which.
    flows: VecDeque<(Ns, Ns, u64)>,
    /// It has received something, ever.
    any: bool,
}

impl Received {
    /// Takes the thread's next message.
    pub fn take(&mut self, message: &Message) {
        match self.flows.back_mut().filter(|(.., flow)| *flow == message.flow) {
            Some((_, last, _)) => *last = (*last).max(message.ts),
            None => {
                if self.flows.len() == REMEMBERED {
                    self.flows.pop_front();
                }
                self.flows.push_back((message.ts, message.ts, message.flow));
            }
        }
        if !is_received(message) {
            return;
        }
        self.any = true;
        if self.at.len() == REMEMBERED {
            self.at.pop_front();
        }
        self.at.push_back(message.ts);
    }

    /// By which connections it sent or received in a period, if it did; forgets what it did before.
    pub fn flows(&mut self, from: Ns, to: Ns) -> Option<Flows> {
        while self.flows.front().is_some_and(|(_, last, _)| *last < from) {
            self.flows.pop_front();
        }
        let within = self.flows.iter().take_while(|(first, ..)| *first <= to);
        let ids = within.map(|(.., flow)| *flow);
        let (first, last) = (ids.clone().next()?, ids.clone().last()?);
        Some(Flows { first, last, several: ids.count() > 1 })
    }

    /// How many it received in a period, and forgets them with all before. None of a thread that has never received
    /// anything, since what asks it for work is not known, and none if there were too many to be remembered.
    pub fn within(&mut self, from: Ns, to: Ns) -> Option<i64> {
        let until = self.at.iter().take_while(|at| **at <= to).count();
        let of_period = self.at.drain(..until).filter(|at| *at >= from).count();
        (self.any && of_period < REMEMBERED).then_some(of_period as i64)
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{EntityId, Id, TrackId};

    use super::*;

    fn message(at: i64, direction: Direction) -> Message {
        let (id, thread) = (Id(1), EntityId(1));
        Message { id, ts: Ns(at), thread, direction, flow: 1, bytes: 10, position: 0 }
    }

    const EPOLL_WAIT: i64 = 232;
    const READ: i64 = 0;
    const FUTEX: i64 = 202;

    fn state(from: i64, to: i64, value: ThreadState, call: i64) -> State {
        let (ts, dur) = (Ns(from), Some(Ns(to - from)));
        State { ts, dur, track: TrackId(1), value: value.code(), arg: Some(call) }
    }

    fn of(states: &[State]) -> Vec<(i64, i64)> {
        let mut periods = BusyPeriods::default();
        states.iter().filter_map(|s| periods.take(s)).map(|(from, to)| (from.0, to.0)).collect()
    }

    #[test]
    fn a_period_lasts_from_one_poll_to_the_next_with_all_other_waits() {
        use ThreadState::{DiskWait, Runnable, Running, Sleep};
        let states = [
            state(0, 100, Sleep, EPOLL_WAIT),
            state(100, 110, Runnable, 0),
            state(110, 150, Running, 0),
            state(150, 170, Sleep, FUTEX),
            state(170, 180, Running, 0),
            state(180, 200, DiskWait, 1),
            state(200, 210, Running, 0),
            state(210, 400, Sleep, EPOLL_WAIT),
            state(400, 420, Running, 0),
            state(420, 500, Sleep, EPOLL_WAIT),
        ];
        assert_eq!(of(&states), [(100, 210), (400, 420)]);
    }

    #[test]
    fn a_thread_that_reads_what_is_not_there_yet_is_idle_as_well() {
        let waits = [(0, READ), (100, EPOLL_WAIT), (200, READ)];
        let states = waits.map(|(at, call)| state(at, at + 60, ThreadState::Sleep, call));
        assert_eq!(of(&states), [(60, 100), (160, 200)]);
    }

    #[test]
    fn a_period_has_the_messages_that_were_received_in_it() {
        let mut received = Received::default();
        assert_eq!(received.within(Ns(0), Ns(10)), None);
        for at in [5, 20, 21, 30, 45] {
            received.take(&message(at, Direction::Receive));
            received.take(&message(at + 1, Direction::Send));
        }
        received.take(&Message { bytes: 0, ..message(46, Direction::Receive) });
        let counted =
            [(20, 30), (35, 40), (44, 50)].map(|(from, to)| received.within(Ns(from), Ns(to)));
        assert_eq!(counted, [Some(3), Some(0), Some(1)]);
    }

    /// The flows of one period after the other: first, last and whether there were several.
    fn flows_of(periods: &[(i64, i64)]) -> Vec<Option<(u64, u64, bool)>> {
        let mut received = Received::default();
        for (at, flow) in [(10, 1), (20, 1), (30, 2), (40, 2), (90, 2), (95, 3)] {
            let direction = if at % 20 == 0 { Direction::Send } else { Direction::Receive };
            received.take(&Message { flow, ..message(at, direction) });
        }
        let flows = periods.iter().map(|(from, to)| received.flows(Ns(*from), Ns(*to)));
        flows.map(|flows| flows.map(|f| (f.first, f.last, f.several))).collect()
    }

    #[test]
    fn the_connections_of_a_period_are_told() {
        let of = flows_of(&[(5, 15), (15, 35), (50, 92), (88, 99), (100, 110)]);
        assert_eq!(of[..3], [Some((1, 1, false)), Some((1, 2, true)), Some((2, 2, false))]);
        assert_eq!(of[3..], [Some((2, 3, true)), None]);
    }

    #[test]
    fn a_thread_that_changes_its_connection_now_and_then_serves_one_at_a_time() {
        let after = |changes_every: u64| {
            let mut connections = Connections::default();
            for period in 0..100 {
                let flow = period / changes_every;
                connections.take(Flows { first: flow, last: flow, several: false });
            }
            connections.is_one_at_a_time()
        };
        assert_eq!([after(100), after(30), after(2), after(1)], [true, true, false, false]);
    }

    #[test]
    fn more_messages_than_are_remembered_are_not_counted() {
        let mut received = Received::default();
        (0..5000).for_each(|at| received.take(&message(at, Direction::Receive)));
        assert_eq!(received.within(Ns(0), Ns(5000)), None);
        (5001..5101).for_each(|at| received.take(&message(at, Direction::Receive)));
        assert_eq!(received.within(Ns(5001), Ns(6000)), Some(100));
    }

    #[test]
    fn states_that_come_late_make_no_period() {
        let states = [
            state(500, 600, ThreadState::Sleep, EPOLL_WAIT),
            state(100, 200, ThreadState::Sleep, EPOLL_WAIT),
            state(700, 800, ThreadState::Sleep, EPOLL_WAIT),
        ];
        assert_eq!(of(&states), [(600, 700)]);
    }
}
