//! Busy periods of threads that wait for work, do it, and wait again: what a server's threads do.
//!
//! # What it sees
//! States of a thread, and what it sent and received by TCP or a Unix socket. A wait for any of several descriptors
//! (`epoll_wait`, `poll`, `select`) is a wait for work, and so is a read from a pipe or a socket that has nothing yet. A busy period lasts from
//! the end of such a wait, when the thread could go on, to the begin of the next. The term is queueing theory's. Waiting
//! for a CPU, for a disk, for a lock or for a time is part of it, and being idle is not.
//!
//! A thread that answers what it receives, one after the other, has periods by its messages: from the end of the last
//! wait before it received something to its last sending before its next wait. Whatever it waits for in between is a part
//! of them, and whatever it waits for after that is none: a thread of a pool waits for its next connection as for a lock.
//!
//! A thread that asks others before it answers (a proxy, a front end of services) has a period for each request: from when it could
//! take it until it sent the first bytes of the answer on the same connection, with all that it waited for in between. Such periods
//! overlap.
//!
//! A thread that asks others and is asked by nobody is given its work in another way, most likely by threads of its own process: for it
//! a futex is a wait for work as well.
//!
//! So it is for one whose first periods were nearly all spent in futexes, perhaps with sleeps for a time between, and that nobody has
//! asked by then: it is parked, as threads are that take turns at polling for a library, or that take tasks from a queue. Its
//! sleeps for a time are waits for work too: it backs off while there is nothing to do.
//!
//! A thread that waits for nothing of that kind but sleeps for a time again and again paces itself: its periods lie between
//! these sleeps.
//!
//! # Why it matters
//! Requests come when clients send them, so that a server has no rounds. Yet what is in its way makes its busy
//! periods longer.
//!
//! Where records of the thread's states are missing, the periods that were open are left out.
//!
//! # What fools it
//! - Who asks on a connection is known by who connected, its ports, or which end of a Unix socket has a name. Between unnamed
//!   sockets it is not, and a thread that waits for an answer of such a one is taken for idle.
//! - A thread that has hardly asked anybody when it has answered its first requests is taken for one that never does.
//! - Threads between which requests wander (goroutines) receive what others answer: see [`wandering`](crate::wandering).
//! - A period in which more requests have gathered is longer, as is one of a request that asks for more. So that a
//!   thread ran for longer says nothing, unless it received as many messages as in others.

use std::collections::HashMap;

use gpuwhy_schema::{Direction, Message, Ns, State, ThreadState};

use crate::pace::Pace;
use crate::syscall::{self, Wait};

/// Answers after which it is known whether a thread answers what it receives, one after the other.
const ANSWERS: u32 = 20;
/// So many of these may have been something else.
const EXCEPTIONS: u32 = 1;
/// A thread asks others if it does so for one in so many of its answers.
const ASKS: u32 = 4;
/// Requests that are open at a time, at most: of more none is followed until some are answered.
const OPEN: usize = 1024;
/// Sleeps for a time, without a wait for work among them, after which a thread paces itself.
const PACED: u32 = 20;
/// After so many periods it is known whether a thread is parked in futexes,
const FIRST: u32 = 20;
/// where it spent this share of their time at least, asleep for a time included,
const PARKED: f64 = 0.9;
/// and this one in futexes alone.
const MOSTLY: f64 = 0.5;
/// States follow each other: where more time than this is not known, records were lost.
const GAP: Ns = Ns::micros(100);

/// Up to when it is known what a thread did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known(Option<Ns>);

impl Known {
    /// Whether a state that begins then lies behind others that are known.
    pub(crate) fn is_behind(self, from: Ns) -> bool {
        self.0.is_some_and(|known| from < known)
    }

    /// Takes the next state; whether records of what was before it are missing.
    pub(crate) fn take(&mut self, from: Ns, to: Ns) -> bool {
        let missing = self.0.is_some_and(|known| from > known.saturating_add(GAP));
        self.0 = self.0.max(Some(to));
        missing
    }
}

/// A busy period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// When the wait for work before it ended.
    pub from: Ns,
    /// When the next one began.
    pub to: Ns,
    /// How many messages the thread received in it; none of one that never received any.
    pub messages: Option<i64>,
    /// For how long the thread ran since the period before it ended.
    pub ran: Ns,
}

/// What a thread did last with its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// It received something by this flow, and whether it has waited for more since.
    Received { flow: u64, waited: bool },
    /// It sent something, and whether it has slept since.
    Sent { at: Ns, slept: bool },
}

/// Whether a thread answers what it receives, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// Not yet known.
    Counted {
        answers: u32,
        exceptions: u32,
        /// Requests that it received, and that it sent.
        requests: u32,
        asked: u32,
    },
    Yes,
    No,
    /// It asks others and nobody asks it by a socket: it is given its work in another way.
    Given,
    /// It is parked, and given its work in another way.
    Parked,
    /// It asks others before it does.
    Through,
}

/// How much of its first periods a thread spent asleep in futexes, and for a time.
#[derive(Clone, Copy, Debug, Default)]
struct Parked {
    periods: u32,
    all: Ns,
    /// In futexes and for a time: in those that have ended, and in the open one.
    asleep: [Ns; 2],
    open: [Ns; 2],
}

impl Parked {
    /// Takes a period that has ended.
    fn period(&mut self, period: &Period) {
        let asleep = std::mem::take(&mut self.open);
        if self.periods < FIRST {
            self.periods += 1;
            self.all = self.all.saturating_add(period.to - period.from);
            for (sum, one) in self.asleep.iter_mut().zip(asleep) {
                *sum = sum.saturating_add(one);
            }
        }
    }

    /// Takes a sleep of the open period.
    fn sleep(&mut self, for_a_time: bool, dur: Ns) {
        let sum = &mut self.open[usize::from(for_a_time)];
        *sum = sum.saturating_add(dur);
    }

    /// Whether the thread is parked, as far as is known.
    fn is_so(&self) -> bool {
        let [futexes, times] = self.asleep.map(|asleep| asleep.0 as f64);
        let all = self.all.0 as f64;
        self.periods == FIRST && futexes + times >= PARKED * all && futexes >= MOSTLY * all
    }
}

/// The busy periods of one thread, from its waits as they end and its messages.
#[derive(Clone, Debug)]
pub struct BusyPeriods {
    /// When the open period began.
    since: Option<Ns>,
    /// What was received in it; none of a thread that never received anything.
    received: Option<i64>,
    last: Option<Last>,
    answers: Answers,
    /// When the thread last slept to.
    awake: Option<Ns>,
    /// Sleeps for a time since it last waited for work.
    timers: u32,
    /// Which of them are its pace, of a thread that paces itself.
    pace: Option<Box<Pace>>,
    parked: Parked,
    /// For how long it ran since its latest period ended.
    ran: Ns,
    /// When it could take the requests that it has not answered, by their flows, and which of them may be none.
    open: HashMap<u64, (Ns, bool)>,
    /// Its latest message.
    latest: Option<Ns>,
    known: Known,
}

impl Default for BusyPeriods {
    fn default() -> BusyPeriods {
        let answers = Answers::Counted { answers: 0, exceptions: 0, requests: 0, asked: 0 };
        BusyPeriods {
            since: None,
            received: None,
            last: None,
            answers,
            awake: None,
            timers: 0,
            pace: None,
            parked: Parked::default(),
            ran: Ns::ZERO,
            open: HashMap::new(),
            latest: None,
            known: Known::default(),
        }
    }
}

impl BusyPeriods {
    /// Takes the next state that has ended, after the messages before its end; the busy period that ends where it begins, if
    /// one does.
    pub fn take(&mut self, state: &State) -> Option<Period> {
        let (from, dur) = (state.ts, state.dur?);
        if self.known.take(from, from.saturating_add(dur)) {
            self.forget();
        }
        match ThreadState::from_code(state.value)? {
            ThreadState::Sleep => {}
            ThreadState::Running => {
                self.ran = self.ran.saturating_add(dur);
                return None;
            }
            _ => return None,
        }
        if self.awake.is_some_and(|awake| from < awake) {
            return None;
        }
        let to = from.saturating_add(dur);
        self.awake = Some(to);
        let wait = syscall::wait(state.arg.unwrap_or(-1));
        let is_idle = match wait {
            _ if wait.is_for_work() => {
                self.since = self.since.filter(|_| !self.is_paced());
                self.timers = 0;
                true
            }
            Wait::Timer if self.answers == Answers::Parked => true,
            Wait::Timer => {
                self.parked.sleep(true, dur);
                // What lies between its last wait for work and now is no period.
                self.since = self.since.filter(|_| self.timers + 1 != PACED || !self.waits());
                self.timers = (self.timers + 1).min(PACED);
                self.is_paced() && self.is_pace(dur, to)
            }
            Wait::Futex => {
                self.parked.sleep(false, dur);
                matches!(self.answers, Answers::Given | Answers::Parked)
            }
            _ => false,
        };
        match &mut self.last {
            Some(Last::Received { waited, .. }) => *waited |= is_idle,
            Some(Last::Sent { slept, .. }) => *slept = true,
            None => {}
        }
        match self.answers {
            // Whatever comes before the next request is a pause.
            Answers::Yes if matches!(self.last, Some(Last::Sent { .. })) => {
                self.since.take().and_then(|since| self.ended(since, from))
            }
            _ if is_idle && self.waits() => {
                let ended = self.since.replace(to).and_then(|since| self.ended(since, from));
                if let Some(period) = &ended {
                    self.parked.period(period);
                }
                self.parked.open = Default::default();
                if self.may_be_given() && !self.is_paced() && self.parked.is_so() {
                    self.answers = Answers::Parked;
                }
                ended
            }
            _ => None,
        }
    }

    /// Records are missing: the waits between which the open periods lie may be among them.
    fn forget(&mut self) {
        (self.since, self.last, self.awake) = (None, None, None);
        (self.ran, self.parked.open) = (Ns::ZERO, Default::default());
        self.open.clear();
    }

    /// Whether it may be given its work in another way than by its messages, as far as is known.
    fn may_be_given(&self) -> bool {
        match self.answers {
            Answers::Counted { answers, requests, asked, .. } => {
                answers == 0 || is_never_asked(answers, requests, asked)
            }
            Answers::No => true,
            Answers::Yes | Answers::Given | Answers::Parked | Answers::Through => false,
        }
    }

    /// Whether its periods lie between waits, and not between its messages.
    fn waits(&self) -> bool {
        !matches!(self.answers, Answers::Yes | Answers::Through)
    }

    /// Whether its periods lie between sleeps for a time.
    pub fn is_paced(&self) -> bool {
        self.timers == PACED && self.waits()
    }

    /// Whether a sleep is the pace of a thread that paces itself.
    fn is_pace(&mut self, slept: Ns, to: Ns) -> bool {
        let interval = to - self.since.unwrap_or(to - slept);
        self.pace.get_or_insert_default().take(slept, interval)
    }

    /// Whether its periods are known to be the requests that it answers, one after the other.
    pub fn are_requests(&self) -> bool {
        self.answers == Answers::Yes
    }

    /// When its last wait for work ended, if its periods lie between such waits.
    pub(crate) fn waited(&self) -> Option<Ns> {
        self.since.filter(|_| self.waits() && !self.is_paced())
    }

    /// Since when the thread could take its next message: what a wait ended with, since then; what follows was behind that, for
    /// how long is not known.
    pub(crate) fn could_take(&self, message: &Message) -> Ns {
        let awake = self.awake.filter(|awake| self.latest.is_none_or(|latest| latest < *awake));
        awake.map_or(message.ts, |awake| awake.min(message.ts))
    }

    /// Takes the next message of the thread; the busy period that ends before it, if one does: of a thread that has its next
    /// request at hand.
    pub fn exchange(&mut self, message: &Message) -> Option<Period> {
        let since = self.could_take(message);
        self.latest = Some(message.ts);
        if self.answers == Answers::Through {
            return self.through(message, since);
        }
        if let Answers::Counted { requests, asked, .. } = &mut self.answers {
            let is_request = message.bytes > 0 && message.is_request() == Some(true);
            let count = match message.direction {
                Direction::Receive => requests,
                Direction::Send => asked,
            };
            *count += u32::from(is_request);
        }
        match message.direction {
            Direction::Send => {
                self.count_sent();
                self.last = Some(Last::Sent { at: message.ts, slept: false });
                None
            }
            Direction::Receive if message.bytes == 0 => None,
            Direction::Receive => {
                let ended = self.request(message);
                self.last = Some(Last::Received { flow: message.flow, waited: false });
                *self.received.get_or_insert(0) += 1;
                ended
            }
        }
    }

    /// The same of a thread that asks others before it answers.
    fn through(&mut self, message: &Message, since: Ns) -> Option<Period> {
        match (message.direction, message.is_request()) {
            (Direction::Receive, Some(true)) if message.bytes > 0 && self.open.len() < OPEN => {
                let open = self.open.entry(message.flow).or_insert((since, true));
                if open.1 {
                    *open = (since, message.may_be_housekeeping());
                }
                None
            }
            (Direction::Send, Some(false)) => {
                let (from, doubtful) = self.open.remove(&message.opposite())?;
                // A ping is answered by another one.
                let is_none = doubtful && message.may_be_housekeeping();
                if is_none { None } else { self.period(from, message.ts, Some(1)) }
            }
            _ => None,
        }
    }

    fn request(&mut self, message: &Message) -> Option<Period> {
        let next_at_hand = match self.last {
            Some(Last::Received { flow, waited }) => {
                let unanswered = flow != message.flow;
                self.count(unanswered, false);
                if self.answers == Answers::Yes && (unanswered || waited) {
                    // What came before needed no answer.
                    (self.since, self.received) = (self.awake, self.received.map(|_| 0));
                }
                None
            }
            Some(Last::Sent { at, slept }) => Some(at).filter(|_| !slept),
            None => None,
        };
        if self.answers != Answers::Yes {
            return None;
        }
        let ended = match (self.since, next_at_hand) {
            (Some(since), Some(at)) => self.ended(since, at),
            _ => None,
        };
        self.since = next_at_hand.or(self.since).or(self.awake).or(Some(message.ts));
        ended
    }

    fn count_sent(&mut self) {
        let unasked = matches!(self.last, Some(Last::Sent { slept: true, .. }));
        self.count(unasked, matches!(self.last, Some(Last::Received { .. })));
    }

    /// Counts an answer, and what a thread that answers one request after the other does not do.
    fn count(&mut self, exception: bool, answer: bool) {
        let Answers::Counted { answers, exceptions, requests, asked } = &mut self.answers else {
            return;
        };
        *exceptions += u32::from(exception);
        *answers += u32::from(answer);
        if *answers == ANSWERS {
            let asks = *asked * ASKS >= *answers && *requests * ASKS >= *answers;
            self.answers = match *exceptions <= EXCEPTIONS {
                _ if asks => Answers::Through,
                _ if is_never_asked(*answers, *requests, *asked) => Answers::Given,
                true => Answers::Yes,
                false => Answers::No,
            };
            self.since = self.since.filter(|_| self.waits());
        }
    }

    fn ended(&mut self, from: Ns, to: Ns) -> Option<Period> {
        let messages = self.received;
        self.received = messages.map(|_| 0);
        self.period(from, to, messages)
    }

    fn period(&mut self, from: Ns, to: Ns, messages: Option<i64>) -> Option<Period> {
        let ran = std::mem::take(&mut self.ran);
        (from < to).then_some(Period { from, to, messages, ran })
    }
}

/// Whether a thread that has sent so many answers was asked by nobody, but for what may be said of connections whose ends are not
/// known, and asks others itself.
fn is_never_asked(answers: u32, requests: u32, asked: u32) -> bool {
    requests == 0 && asked * 2 >= answers
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{EntityId, Id, TrackId, flow::End};

    use super::*;

    const EPOLL_WAIT: i64 = 232;
    const READ: i64 = 0;
    const FUTEX: i64 = 202;

    fn state(from: i64, to: i64, value: ThreadState, call: i64) -> State {
        let (ts, dur) = (Ns(from), Some(Ns(to - from)));
        State { ts, dur, track: TrackId(1), value: value.code(), arg: Some(call) }
    }

    fn of(states: &[State]) -> Vec<(i64, i64)> {
        let mut periods = BusyPeriods::default();
        states.iter().filter_map(|s| periods.take(s)).map(|p| (p.from.0, p.to.0)).collect()
    }

    /// A thread that has two busy periods.
    fn two_periods() -> [State; 10] {
        use ThreadState::{DiskWait, Runnable, Running, Sleep};
        [
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
        ]
    }

    #[test]
    fn a_period_lasts_from_one_poll_to_the_next_with_all_other_waits() {
        assert_eq!(of(&two_periods()), [(100, 210), (400, 420)]);
    }

    /// Rounds of a poll, a run of 1 us, a futex of so many us, another run, and a poll.
    fn polls_and_parks(rounds: i64, futex: i64) -> Vec<State> {
        use ThreadState::{Running, Sleep};
        let us = |from: i64, to: i64, kind, call| state(from * 1000, to * 1000, kind, call);
        let each = futex + 12;
        let round = |n: i64| {
            let at = n * each;
            [
                us(at, at + 10, Sleep, EPOLL_WAIT),
                us(at + 10, at + 11, Running, 0),
                us(at + 11, at + 11 + futex, Sleep, FUTEX),
                us(at + 11 + futex, at + each, Running, 0),
            ]
        };
        (0..rounds).flat_map(round).collect()
    }

    #[test]
    fn for_a_thread_that_is_parked_most_of_its_time_a_futex_is_a_wait_for_work() {
        let lasted = |states: &[State]| -> Vec<i64> {
            of(states).iter().map(|(from, to)| (to - from) / 1000).collect()
        };
        let parked = lasted(&polls_and_parks(40, 250));
        assert_eq!(parked[..20], [252; 20], "not yet known");
        assert!(parked[20..].iter().all(|us| *us == 1), "{parked:?}");
        // A lock for half of the time is a part of it,
        assert!(lasted(&polls_and_parks(40, 2)).iter().all(|us| *us == 4));
        // and one for nearly all of it too, if the thread has been seen at work before.
        let mut later = polls_and_parks(25, 1);
        let at = later.last().unwrap().ts.0 + 1000;
        later.extend(
            polls_and_parks(40, 250).into_iter().map(|s| State { ts: Ns(s.ts.0 + at), ..s }),
        );
        assert_eq!(lasted(&later).iter().filter(|us| **us == 252).count(), 39);
    }

    #[test]
    fn a_period_in_which_records_are_missing_is_left_out() {
        let ms = |from, to, kind, call| state(from * 1_000_000, to * 1_000_000, kind, call);
        let around = |gap: i64| {
            of(&[
                ms(0, 1, ThreadState::Sleep, EPOLL_WAIT),
                ms(1, 2, ThreadState::Running, 0),
                ms(2 + gap, 3 + gap, ThreadState::Running, 0),
                ms(3 + gap, 4 + gap, ThreadState::Sleep, EPOLL_WAIT),
                ms(4 + gap, 5 + gap, ThreadState::Running, 0),
                ms(5 + gap, 6 + gap, ThreadState::Sleep, EPOLL_WAIT),
            ])
            .iter()
            .map(|(from, to)| (to - from) / 1_000_000)
            .collect::<Vec<_>>()
        };
        assert_eq!((around(0), around(10_000)), (vec![2, 1], vec![1]));
    }

    #[test]
    fn a_thread_that_reads_what_is_not_there_yet_is_idle_as_well() {
        let waits = [(0, READ), (100, EPOLL_WAIT), (200, READ)];
        let states = waits.map(|(at, call)| state(at, at + 60, ThreadState::Sleep, call));
        assert_eq!(of(&states), [(60, 100), (160, 200)]);
    }

    #[test]
    fn a_period_knows_for_how_long_the_thread_ran() {
        let mut periods = BusyPeriods::default();
        let states = two_periods();
        let ran = states.iter().filter_map(|s| periods.take(s)).map(|p| p.ran.0);
        assert_eq!(ran.collect::<Vec<_>>(), [60, 20]);
    }

    /// The periods of a thread that waits so often in each of these ways, for 60 of each 100, and how many of them lie
    /// between sleeps for a time.
    fn paced(waits: &[(i64, u32)]) -> (usize, usize) {
        let calls = waits.iter().flat_map(|&(call, times)| (0..times).map(move |_| call));
        let mut periods = BusyPeriods::default();
        let (mut all, mut paced) = (0, 0);
        for (at, call) in (0..).step_by(100).zip(calls) {
            let found = periods.take(&state(at, at + 60, ThreadState::Sleep, call));
            all += usize::from(found.is_some_and(|period| period.to.0 - period.from.0 == 40));
            paced += usize::from(found.is_some() && periods.is_paced());
        }
        (all, paced)
    }

    #[test]
    fn a_thread_that_only_sleeps_for_a_time_paces_itself() {
        const SLEEP: i64 = 230;
        assert_eq!(paced(&[(SLEEP, 20)]), (0, 0), "a few sleeps may be anything");
        assert_eq!(paced(&[(SLEEP, 50)]), (30, 30));
        assert_eq!(paced(&[(READ, 1), (SLEEP, 50)]), (30, 30), "one wait for work is long ago");
        assert_eq!(paced(&[(SLEEP, 50), (READ, 3)]), (32, 30), "it has begun to serve");
        let serves: Vec<(i64, u32)> = [(READ, 1), (SLEEP, 2)].repeat(20);
        assert_eq!(paced(&serves).1, 0, "what it sleeps for is a part of what it does");
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

    /// What a thread does, and when.
    #[derive(Clone, Copy)]
    enum Does {
        Sleeps(i64, i64, i64),
        Receives(i64, u64),
        Sends(i64),
    }
    use Does::{Receives, Sends, Sleeps};

    /// The periods of a thread that does this again and again, each time after so long: begin and end within one time, and how
    /// much was received, of the times from the 25th on.
    fn again(every: i64, does: &[Does]) -> Vec<(i64, i64, Option<i64>)> {
        let mut periods = BusyPeriods::default();
        let mut found = Vec::new();
        for round in 0..30 {
            let begun = round * every;
            let message = |at: i64, direction, flow| Message {
                id: Id(1),
                ts: Ns(begun + at),
                thread: EntityId(1),
                direction,
                flow,
                bytes: 10,
                position: 0,
            };
            for one in does {
                let period = match *one {
                    Sleeps(from, to, call) => {
                        periods.take(&state(begun + from, begun + to, ThreadState::Sleep, call))
                    }
                    Receives(at, flow) => periods.exchange(&message(at, Direction::Receive, flow)),
                    Sends(at) => periods.exchange(&message(at, Direction::Send, 9)),
                };
                let of = period.filter(|_| round >= 25);
                found.extend(of.map(|p| (p.from.0 % every, p.to.0 - p.from.0, p.messages)));
            }
        }
        found
    }

    fn each_time<T: Clone>(one: T) -> Vec<T> {
        vec![one; 5]
    }

    #[test]
    fn a_thread_of_a_pool_is_idle_while_it_waits_for_the_next_connection() {
        let does = [Sleeps(0, 40, FUTEX), Receives(50, 1), Sleeps(55, 75, FUTEX), Sends(80)];
        assert_eq!(again(100, &does), each_time((40, 60, Some(1))), "till 100, its next wait");
    }

    #[test]
    fn what_a_thread_waits_for_before_its_answer_is_a_part_of_the_period() {
        let does = [Sleeps(0, 40, EPOLL_WAIT), Receives(50, 1), Sleeps(55, 75, READ), Sends(80)];
        assert_eq!(again(100, &does), each_time((40, 60, Some(1))));
    }

    #[test]
    fn a_thread_that_finds_its_next_request_at_hand_has_a_period_for_each() {
        let does = [Receives(10, 1), Sends(30), Receives(35, 2), Sends(90)];
        let found = again(100, &does);
        assert_eq!(found[..2], [(30, 60, Some(1)), (90, 40, Some(1))]);
        assert_eq!(found.len(), 10);
    }

    #[test]
    fn what_needs_no_answer_begins_no_period() {
        let does = [
            Sleeps(0, 40, READ),
            Receives(45, 1),
            Sends(50),
            Sleeps(51, 52, READ),
            Receives(53, 1),
        ];
        assert_eq!(again(100, &does), each_time((40, 11, Some(1))));
    }

    #[test]
    fn a_thread_that_takes_further_requests_before_it_answers_has_periods_by_its_waits() {
        let does = [
            Sleeps(0, 40, EPOLL_WAIT),
            Receives(41, 1),
            Sleeps(45, 50, EPOLL_WAIT),
            Receives(51, 2),
            Sends(55),
            Sends(56),
        ];
        let found = again(100, &does);
        assert_eq!(found[..2], [(50, 50, Some(1)), (40, 5, Some(1))]);
    }

    #[test]
    fn a_thread_that_sends_unasked_has_periods_by_its_waits() {
        let does = [
            Sleeps(0, 40, EPOLL_WAIT),
            Receives(41, 1),
            Sends(42),
            Sleeps(45, 50, EPOLL_WAIT),
            Sends(60),
        ];
        let found = again(100, &does);
        assert_eq!(found[..2], [(50, 50, Some(0)), (40, 5, Some(1))]);
    }

    /// A proxy: clients ask it by connections 0, 1, …, and it asks a service. What a message is: who sends, and when.
    #[derive(Clone, Copy)]
    enum Passes {
        /// Waits in `epoll_wait`.
        Waits(i64, i64),
        /// Waits for another thread.
        Parks(i64, i64),
        Asked(i64, u16),
        Asks(i64),
        IsAnswered(i64),
        Answers(i64, u16),
    }
    use Passes::{Answers as AnswersTo, Asked, Asks, IsAnswered, Parks, Waits};

    /// What is said then from one end of a connection to the other.
    fn said(at: i64, direction: Direction, (from, to): (End, End)) -> Message {
        let (id, thread, bytes, position) = (Id(1), EntityId(1), 10, 0);
        let flow = gpuwhy_schema::flow::of_ends(from, to);
        Message { id, ts: Ns(at), thread, direction, flow, bytes, position }
    }

    #[test]
    fn what_http2_says_of_a_connection_is_no_request() {
        let (client, own, service) = (([2; 16], 40_000), ([1; 16], 80), ([9; 16], 5432));
        let mut periods = BusyPeriods::default();
        let mut lasted = Vec::new();
        for n in 0..60 {
            let says = [
                (0, Direction::Receive, (client, own), 200),
                (20, Direction::Send, (([1; 16], 50_000), service), 100),
                (50, Direction::Receive, (service, ([1; 16], 50_000)), 100),
                (60, Direction::Send, (own, client), 300),
                // The acknowledgement of a ping, and a ping that is acknowledged.
                (70, Direction::Receive, (client, own), 17),
                (80, Direction::Receive, (client, own), 30),
                (81, Direction::Send, (own, client), 17),
                // The next request is 919 later. One of such a size is a request if it is answered.
                (500, Direction::Receive, (client, own), 17),
                (530, Direction::Send, (own, client), 40),
            ];
            for (at, direction, ends, bytes) in says {
                let message = Message { bytes, ..said(n * 1000 + at, direction, ends) };
                lasted.extend(periods.exchange(&message).map(|p| (p.to - p.from).0));
            }
        }
        assert!(lasted.len() > 60 && lasted.iter().all(|ns| [60, 30].contains(ns)), "{lasted:?}");
    }

    #[test]
    fn a_thread_that_takes_turns_at_polling_is_parked_between_them_though_it_has_asked_somebody() {
        let (own, service, client) = (([1; 16], 50_000), ([9; 16], 5432), ([2; 16], 40_000));
        // In the third round it says something, and later gets something now and then.
        let lasted = |says: (End, End), hears: (End, End)| -> Vec<i64> {
            let (mut periods, mut found) = (BusyPeriods::default(), Vec::new());
            for (n, states) in polls_and_parks(40, 250).chunks(4).enumerate() {
                found.extend(periods.take(&states[0]));
                if n % 8 == 1 {
                    periods.exchange(&said(states[1].ts.0, Direction::Receive, hears));
                }
                if n % 8 == 2 {
                    periods.exchange(&said(states[1].ts.0, Direction::Send, says));
                }
                found.extend(states[1..].iter().filter_map(|state| periods.take(state)));
            }
            found.iter().map(|period| (period.to - period.from).0 / 1000).collect()
        };
        let asks = lasted((own, service), (service, own));
        assert!(asks[25..].iter().all(|us| *us == 1), "{asks:?}");
        // Somebody waits for one that is asked.
        let is_asked = lasted((service, client), (client, service));
        assert!(is_asked.iter().all(|us| *us == 252), "{is_asked:?}");
    }

    #[test]
    fn a_parked_thread_that_backs_off_for_a_time_has_nothing_to_do_then() {
        // Rounds of a poll, a futex and a sleep for so many us.
        let lasted = |futex: i64, sleep: i64| -> Vec<i64> {
            let each = 20 + futex + sleep;
            let round = |n: i64| {
                let at = [0, 10, 10 + futex + 5, each - 5].map(|us| (n * each + us) * 1000);
                let nanosleep = 230;
                [
                    state(at[0], at[1], ThreadState::Sleep, EPOLL_WAIT),
                    state(at[1], at[1] + futex * 1000, ThreadState::Sleep, FUTEX),
                    state(at[2], at[2] + sleep * 1000, ThreadState::Sleep, nanosleep),
                ]
            };
            let states: Vec<State> = (0..40).flat_map(round).collect();
            of(&states).iter().map(|(from, to)| (to - from) / 1000).collect()
        };
        let parked = lasted(800, 180);
        assert!(parked[20..].iter().all(|us| *us == 5), "{parked:?}");
        // One that sleeps for most of it, and waits for others hardly ever, does so as its work.
        let sleeps = lasted(20, 800);
        assert!(sleeps.iter().all(|us| *us >= 800), "{sleeps:?}");
    }

    /// The periods of a thread that does this again and again, as in [`again`].
    fn passes(every: i64, does: &[Passes]) -> Vec<(i64, i64)> {
        let end = |n: u8, port| ([n; 16], port);
        let (proxy, service) = (end(1, 80), end(9, 5432));
        let client = |n: u16| end(2, 40_000 + n);
        let mut periods = BusyPeriods::default();
        let mut found = Vec::new();
        for round in 0..60 {
            let begun = round * every;
            for one in does {
                let own = end(1, 50_000);
                let (at, direction, ends) = match *one {
                    Waits(from, to) | Parks(from, to) => {
                        let call = if matches!(one, Waits(..)) { EPOLL_WAIT } else { FUTEX };
                        let wait = state(begun + from, begun + to, ThreadState::Sleep, call);
                        let ended = periods.take(&wait).filter(|_| round >= 50);
                        found.extend(ended.map(|p| (p.from.0 % every, p.to.0 - p.from.0)));
                        continue;
                    }
                    Asked(at, n) => (at, Direction::Receive, (client(n), proxy)),
                    Asks(at) => (at, Direction::Send, (own, service)),
                    IsAnswered(at) => (at, Direction::Receive, (service, own)),
                    AnswersTo(at, n) => (at, Direction::Send, (proxy, client(n))),
                };
                let ended = periods.exchange(&said(begun + at, direction, ends));
                let ended = ended.filter(|_| round >= 50);
                found.extend(ended.map(|p| (p.from.0 % every, p.to.0 - p.from.0)));
            }
        }
        found
    }

    #[test]
    fn a_thread_that_asks_others_has_a_period_from_each_request_to_its_answer() {
        let does = [
            Waits(0, 100),
            Asked(105, 1),
            Asks(110),
            Waits(115, 400),
            IsAnswered(405),
            AnswersTo(420, 1),
        ];
        assert_eq!(passes(1000, &does), vec![(100, 320); 10]);
    }

    #[test]
    fn a_thread_that_is_asked_by_nobody_is_idle_until_another_one_gives_it_work() {
        let does = [Asks(10), Waits(15, 100), IsAnswered(105), Parks(120, 1000)];
        let found = passes(1000, &does);
        assert_eq!(found[found.len() - 4..], [(0, 15), (100, 20), (0, 15), (100, 20)]);
    }

    #[test]
    fn requests_of_several_clients_at_a_time_are_told_apart() {
        let does = [
            Waits(0, 100),
            Asked(105, 1),
            Asks(110),
            Waits(115, 200),
            Asked(205, 2),
            Asks(210),
            Waits(215, 400),
            IsAnswered(405),
            AnswersTo(420, 1),
            Waits(430, 600),
            IsAnswered(605),
            AnswersTo(610, 2),
        ];
        assert_eq!(passes(1000, &does), [(100, 320), (200, 410)].repeat(10));
    }

    #[test]
    fn one_that_asks_seldom_answers_by_itself() {
        let mut does = vec![Waits(0, 50), Asked(55, 1), AnswersTo(60, 1)];
        does.extend([Waits(70, 100), Asked(105, 1), AnswersTo(110, 1)]);
        does.extend([Waits(120, 200), Asked(205, 1), AnswersTo(210, 1)]);
        does.extend([Waits(220, 300), Asked(305, 1), AnswersTo(310, 1)]);
        does.extend([Waits(320, 400), Asked(405, 1), AnswersTo(410, 1), Asks(420)]);
        assert_eq!(passes(1000, &does).len(), 50, "busy periods between its waits");
    }

    #[test]
    fn of_a_thread_that_never_received_anything_no_messages_are_told() {
        let does = [Sleeps(0, 40, EPOLL_WAIT)];
        assert_eq!(again(100, &does), each_time((40, 60, None)));
    }
}
