//! Requests to a process that outlast what one thread does between two waits: of which one thread receives what another one
//! answers, or that are answered after other work.
//!
//! # What it sees
//! What the threads of one process receive and send by TCP and Unix sockets, as far as it is known which end of a connection asks.
//! A request lasts from when the thread that received it could take it to the first sending of an answer on the same
//! connection, by whichever thread.
//!
//! # Why it matters
//! Runtimes with schedulers of their own (Go, Erlang, asynchronous Rust) let requests wander between threads, each of which
//! waits in turn for whatever there is to do: as for a lock or for descriptors. What lies between two waits of a thread has no
//! usual length then, and what a request takes has. The same holds of a thread that receives a request, hands it to others, waits for
//! whatever there is to do, and answers when it is told to.
//!
//! # What fools it
//! - Of several requests that are sent ahead on one connection only the first is seen until it is answered, or until another
//!   thread receives one.
//! - A thread that has long been running when it receives a request could have taken it since it last slept: how much of that
//!   the request waited is not known.
//! - Sockets whose ends are alike (equal ports, two unnamed ends) tell nothing.

use std::collections::{HashMap, VecDeque};

use gpuwhy_schema::{Direction, Message, Ns};

use crate::busy_periods::{BusyPeriods, Period};

/// Answers after which it is known whether requests wander.
const ANSWERS: u32 = 64;
/// They do if one in so many is answered by another thread, and outlast the periods of threads if one in so many does.
const WANDER: u32 = 16;
/// By so many requests, once they are known to wander, it is known whether they are alike:
const SAMPLED: usize = 200;
/// if all but one in so many of them
const EXCEPT: usize = 50;
/// took no more than so many times as long as the median one.
const ALIKE: i64 = 8;
/// Connections that are followed at most.
const FLOWS: usize = 4096;
/// Sendings of a connection that are known before what they answer, at most.
const AHEAD: usize = 8;
/// What has not been answered for so long never will be.
const FORGOTTEN: Ns = Ns::secs(60);

/// A connection on which requests are received.
#[derive(Clone, Debug)]
struct Flow<T> {
    /// The request that is not answered: since when it could be taken, when it was received, and by whom.
    open: Option<(Ns, Ns, T)>,
    /// It may be none, by its size.
    doubtful: bool,
    /// Sendings that answer nothing that is known: pieces of answers, and those to requests that are only told later.
    sent: VecDeque<(Ns, T)>,
}

/// The requests of one process; `T` is what its threads are called.
#[derive(Clone, Debug)]
pub struct Requests<T> {
    flows: HashMap<u64, Flow<T>>,
    answers: u32,
    /// How many of these were answered by another thread than the one that had received them.
    elsewhere: u32,
    /// How many were answered by the same one, which had waited for other work since.
    later: u32,
    wander: bool,
    outlast: bool,
    /// How long the first of those lasted that wander, ns, until it is known whether they are alike.
    sample: Vec<i64>,
    alike: bool,
}

impl<T> Default for Requests<T> {
    fn default() -> Requests<T> {
        Requests {
            flows: HashMap::new(),
            answers: 0,
            elsewhere: 0,
            later: 0,
            wander: false,
            outlast: false,
            sample: Vec::new(),
            alike: false,
        }
    }
}

impl<T: Copy + PartialEq> Requests<T> {
    /// Takes a message of a thread, which could have taken it since then, and when its wait for work before it ended if its busy
    /// periods lie between such waits. Messages of one thread come in order, those of
    /// different ones nearly so. The request that is answered by it, or that it is if the answer came first, and the thread that answered.
    pub fn take(
        &mut self,
        thread: T,
        message: &Message,
        since: Ns,
        waited: Option<Ns>,
    ) -> Option<(T, Period)> {
        match (message.direction, message.is_request()?) {
            (Direction::Receive, true) if message.bytes > 0 => {
                self.received(thread, message, since)
            }
            (Direction::Send, false) => self.sent(thread, message, waited),
            _ => None,
        }
    }

    /// Takes a message of a thread whose busy periods are looked for too; the period of the thread that it ended, besides.
    pub fn take_with(
        &mut self,
        thread: T,
        message: &Message,
        periods: &mut BusyPeriods,
    ) -> (Option<(T, Period)>, Option<Period>) {
        // Both are as they were before the message.
        let (since, waited) = (periods.could_take(message), periods.waited());
        (self.take(thread, message, since, waited), periods.exchange(message))
    }

    /// Whether threads answer what others have received, or did so once.
    pub fn wander(&self) -> bool {
        self.wander
    }

    /// Whether they do, or answer after they have waited for other work, or did so once: what a thread does between two
    /// waits is any part of any request then.
    pub fn outlast(&self) -> bool {
        self.outlast
    }

    /// Whether those that do are alike, whoever answers them, so that they can be compared with each other. Those of a service
    /// that lets clients wait for news, or of a connection with several requests at a time, are not.
    pub fn are_alike(&self) -> bool {
        self.alike
    }

    fn lasted(&mut self, ns: i64) {
        if self.outlast && self.sample.len() < SAMPLED {
            self.sample.push(ns);
            if self.sample.len() == SAMPLED {
                self.sample.sort_unstable();
                let (median, long) =
                    (self.sample[SAMPLED / 2], self.sample[SAMPLED - 1 - SAMPLED / EXCEPT]);
                self.alike = long <= median.saturating_mul(ALIKE);
            }
        }
    }

    fn flow(&mut self, flow: u64) -> &mut Flow<T> {
        if self.flows.len() >= FLOWS && !self.flows.contains_key(&flow) {
            self.flows.retain(|_, flow| flow.open.is_some());
            if self.flows.len() >= FLOWS {
                self.flows.clear();
            }
        }
        let none = || Flow { open: None, doubtful: false, sent: VecDeque::new() };
        self.flows.entry(flow).or_insert_with(none)
    }

    fn received(&mut self, thread: T, message: &Message, since: Ns) -> Option<(T, Period)> {
        let at = message.ts;
        let flow = self.flow(message.flow);
        let is_piece = |(_, open, by): (Ns, Ns, T)| {
            // What another thread receives is the next one: who answered this is not told yet.
            by == thread && at < open.saturating_add(FORGOTTEN)
        };
        // What comes after what may be none is no piece of it.
        if flow.open.is_some_and(is_piece) && !flow.doubtful {
            return None;
        }
        flow.open = None;
        flow.doubtful = message.may_be_housekeeping();
        while flow.sent.pop_front_if(|(sent, _)| *sent <= at).is_some() {}
        match flow.sent.pop_front() {
            Some((sent, by)) => self.answered((since, thread), (sent, by), false),
            None => {
                flow.open = Some((since, at, thread));
                None
            }
        }
    }

    fn sent(&mut self, thread: T, message: &Message, waited: Option<Ns>) -> Option<(T, Period)> {
        let flow = self.flow(message.opposite());
        if flow.doubtful && message.may_be_housekeeping() {
            // A ping is answered by another one.
            flow.open = None;
            return None;
        }
        match flow.open.take_if(|(_, received, _)| *received < message.ts) {
            Some((since, received, receiver)) => {
                let later = waited.is_some_and(|waited| waited > received);
                self.answered((since, receiver), (message.ts, thread), later)
            }
            None => {
                if flow.sent.len() == AHEAD {
                    flow.sent.pop_front();
                }
                flow.sent.push_back((message.ts, thread));
                None
            }
        }
    }

    fn answered(
        &mut self,
        (from, receiver): (Ns, T),
        (to, by): (Ns, T),
        later: bool,
    ) -> Option<(T, Period)> {
        if self.answers >= 2 * ANSWERS {
            self.answers /= 2;
            (self.elsewhere, self.later) = (self.elsewhere / 2, self.later / 2);
        }
        self.answers += 1;
        self.elsewhere += u32::from(receiver != by);
        self.later += u32::from(receiver == by && later);
        let are_many = |of: u32| self.answers >= ANSWERS && of * WANDER >= self.answers;
        (self.wander, self.outlast) = (
            self.wander || are_many(self.elsewhere),
            self.outlast || are_many(self.elsewhere + self.later),
        );
        self.lasted((to - from).0);
        let period = Period { from, to, messages: Some(1), ran: Ns::ZERO };
        (from < to).then_some((by, period))
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{EntityId, Id, flow};

    use super::*;

    /// What a thread sends or receives at a time, on the connection of a client with that port.
    fn message(at: i64, direction: Direction, client: u16) -> Message {
        let (asks, answers) = (([1; 16], client), ([2; 16], 80));
        let flow = match direction {
            Direction::Receive => flow::of_ends(asks, answers),
            Direction::Send => flow::of_ends(answers, asks),
        };
        let (id, thread) = (Id(1), EntityId(1));
        Message { id, ts: Ns(at), thread, direction, flow, bytes: 10, position: 0 }
    }

    use Direction::{Receive, Send};

    /// The requests that are found in messages: thread, when, direction, client's port; who answered, from and to.
    fn of(messages: &[(u8, i64, Direction, u16)]) -> Vec<(u8, i64, i64)> {
        let one = |&(thread, at, direction, client): &_| {
            (thread, message(at, direction, client), Ns(at - 1))
        };
        found(messages.iter().map(one))
    }

    /// The same of what threads sent and received, and since when they could take it.
    fn found(messages: impl Iterator<Item = (u8, Message, Ns)>) -> Vec<(u8, i64, i64)> {
        let mut requests = Requests::default();
        let found = messages
            .filter_map(|(thread, message, since)| requests.take(thread, &message, since, None));
        found.map(|(by, period)| (by, period.from.0, period.to.0)).collect()
    }

    #[test]
    fn a_request_lasts_until_any_thread_answers_it() {
        let asked = [(1, 10, Receive, 5000), (2, 30, Send, 5000), (2, 40, Send, 5000)];
        assert_eq!(of(&asked), [(2, 9, 30)]);
    }

    #[test]
    fn what_http2_says_of_a_connection_is_no_request() {
        let said = [
            (1, 10, Receive, 200),
            (2, 30, Send, 300),
            // The acknowledgement of a ping; the next request. A ping that is acknowledged.
            (1, 40, Receive, 17),
            (1, 1000, Receive, 200),
            (2, 1030, Send, 300),
            (1, 1040, Receive, 30),
            (3, 1900, Send, 17),
            // One of such a size is a request if it is answered.
            (1, 2000, Receive, 17),
            (2, 2010, Send, 40),
        ];
        let said = said.map(|(thread, at, direction, bytes)| {
            (thread, Message { bytes, ..message(at, direction, 5000) }, Ns(at))
        });
        assert_eq!(found(said.into_iter()), [(2, 10, 30), (2, 1000, 1030), (2, 2000, 2010)]);
    }

    #[test]
    fn requests_of_which_some_wait_for_news_are_not_alike() {
        let are_alike = |one_in: i64| {
            let mut requests = Requests::default();
            for n in 0..1000 {
                let (at, ms) = (n * 2_000_000_000, if n % one_in == 0 { 1000 } else { 2 + n % 3 });
                requests.take(1, &message(at, Receive, 5000), Ns(at), None);
                requests.take(2, &message(at + ms * 1_000_000, Send, 5000), Ns(at), None);
            }
            requests.are_alike()
        };
        assert!(are_alike(2000), "one in a thousand");
        assert!(!are_alike(20));
    }

    #[test]
    fn connections_are_told_apart_and_pieces_of_a_request_are_one() {
        let asked = [
            (1, 10, Receive, 5000),
            (1, 12, Receive, 5001),
            (1, 14, Receive, 5000),
            (2, 30, Send, 5001),
            (3, 50, Send, 5000),
        ];
        assert_eq!(of(&asked), [(2, 11, 30), (3, 9, 50)]);
    }

    /// What two threads did is not told in the order in which they did it.
    #[test]
    fn an_answer_that_is_told_first_is_that_of_the_request_before_it() {
        let piece = (2, 5, Send, 5000);
        let asked = [piece, (2, 30, Send, 5000), (2, 31, Send, 5000), (1, 10, Receive, 5000)];
        assert_eq!(of(&asked), [(2, 9, 30)]);
        let next = [asked.as_slice(), &[(1, 60, Receive, 5000), (1, 70, Send, 5000)]].concat();
        assert_eq!(of(&next), [(2, 9, 30), (1, 59, 70)]);
    }

    /// Threads of a pool take requests of one connection in turn. What the first one did is told after what the second did.
    #[test]
    fn a_request_that_another_thread_receives_next_has_an_answer_of_its_own() {
        let asked = [
            (1, 10, Receive, 5000),
            (2, 40, Receive, 5000),
            (2, 50, Send, 5000),
            (1, 30, Send, 5000),
            (1, 60, Receive, 5000),
            (1, 70, Send, 5000),
        ];
        assert_eq!(of(&asked), [(2, 39, 50), (1, 59, 70)]);
    }

    /// Whether requests wander of which one in so many is answered by another thread.
    fn wander(one_in: i64) -> bool {
        let mut requests = Requests::default();
        for n in 0..200 {
            let by = u8::from(n % one_in == 0);
            requests.take(0_u8, &message(10 * n, Receive, 5000), Ns(10 * n), None);
            requests.take(by, &message(10 * n + 5, Send, 5000), Ns(10 * n), None);
        }
        requests.wander()
    }

    #[test]
    fn requests_wander_if_other_threads_answer_them_again_and_again() {
        assert!(wander(1) && wander(3) && wander(12));
        assert!(!wander(100) && !wander(1000));
    }

    /// Whether requests wander and outlast periods of which a thread answers one in so many after it waited again.
    fn later(one_in: i64) -> (bool, bool) {
        let mut requests = Requests::default();
        for n in 0..200 {
            let (at, waited) = (Ns(10 * n), Ns(10 * n + if n % one_in == 0 { 3 } else { -3 }));
            requests.take(0_u8, &message(at.0, Receive, 5000), at, Some(at - Ns(3)));
            requests.take(0_u8, &message(at.0 + 5, Send, 5000), at, Some(waited));
        }
        (requests.wander(), requests.outlast())
    }

    #[test]
    fn requests_outlast_the_periods_of_a_thread_that_waits_again_before_it_answers() {
        assert_eq!((later(1), later(12)), ((false, true), (false, true)));
        assert_eq!((later(100), later(1000)), ((false, false), (false, false)));
    }

    #[test]
    fn what_is_never_answered_is_forgotten() {
        let late = FORGOTTEN.0 + 20;
        let asked = [(1, 10, Receive, 5000), (1, late, Receive, 5000), (1, late + 5, Send, 5000)];
        assert_eq!(of(&asked), [(1, late - 1, late + 5)]);
        let mut requests = Requests::default();
        for client in 0..60_000 {
            requests.take(1_u8, &message(1, Receive, 1024 + client), Ns(1), None);
        }
        assert!(requests.flows.len() <= FLOWS);
    }
}
