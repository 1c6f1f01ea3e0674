//! Requests to a process of which one thread receives what another one answers.
//!
//! # What it sees
//! What the threads of one process receive and send by TCP and Unix sockets, as far as it is known which end of a connection asks.
//! A request lasts from when the thread that received it could take it to the first sending of an answer on the same
//! connection, by whichever thread.
//!
//! # Why it matters
//! Runtimes with schedulers of their own (Go, Erlang, asynchronous Rust) let requests wander between threads, each of which
//! waits in turn for whatever there is to do: as for a lock or for descriptors. What lies between two waits of a thread has no
//! usual length then, and what a request takes has.
//!
//! # What fools it
//! - Of several requests that are sent ahead on one connection only the first is seen until it is answered, or until another
//!   thread receives one.
//! - A thread that has long been running when it receives a request could have taken it since it last slept: how much of that
//!   the request waited is not known.
//! - Sockets whose ends are alike (equal ports, two unnamed ends) tell nothing.

use std::collections::{HashMap, VecDeque};

use gpuwhy_schema::{Direction, Message, Ns};

use crate::busy_periods::Period;

/// Answers after which it is known whether requests wander.
const ANSWERS: u32 = 64;
/// They do if one in so many is answered by another thread.
const WANDER: u32 = 16;
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
    wander: bool,
}

impl<T> Default for Requests<T> {
    fn default() -> Requests<T> {
        Requests { flows: HashMap::new(), answers: 0, elsewhere: 0, wander: false }
    }
}

impl<T: Copy + PartialEq> Requests<T> {
    /// Takes a message of a thread, which could have taken it since then. Messages of one thread come in order, those of
    /// different ones nearly so. The request that is answered by it, or that it is if the answer came first, and the thread that answered.
    pub fn take(&mut self, thread: T, message: &Message, since: Ns) -> Option<(T, Period)> {
        match (message.direction, message.is_request()?) {
            (Direction::Receive, true) if message.bytes > 0 => {
                self.received(thread, message, since)
            }
            (Direction::Send, false) => self.sent(thread, message),
            _ => None,
        }
    }

    /// Whether threads answer what others have received, or did so once.
    pub fn wander(&self) -> bool {
        self.wander
    }

    fn flow(&mut self, flow: u64) -> &mut Flow<T> {
        if self.flows.len() >= FLOWS && !self.flows.contains_key(&flow) {
            self.flows.retain(|_, flow| flow.open.is_some());
            if self.flows.len() >= FLOWS {
                self.flows.clear();
            }
        }
        let none = || Flow { open: None, sent: VecDeque::new() };
        self.flows.entry(flow).or_insert_with(none)
    }

    fn received(&mut self, thread: T, message: &Message, since: Ns) -> Option<(T, Period)> {
        let at = message.ts;
        let flow = self.flow(message.flow);
        let is_piece = |(_, open, by): (Ns, Ns, T)| {
            // What another thread receives is the next one: who answered this is not told yet.
            by == thread && at < open.saturating_add(FORGOTTEN)
        };
        if flow.open.is_some_and(is_piece) {
            return None;
        }
        flow.open = None;
        while flow.sent.pop_front_if(|(sent, _)| *sent <= at).is_some() {}
        match flow.sent.pop_front() {
            Some((sent, by)) => self.answered((since, thread), (sent, by)),
            None => {
                flow.open = Some((since, at, thread));
                None
            }
        }
    }

    fn sent(&mut self, thread: T, message: &Message) -> Option<(T, Period)> {
        let flow = self.flow(message.opposite());
        match flow.open.take_if(|(_, received, _)| *received < message.ts) {
            Some((since, _, receiver)) => self.answered((since, receiver), (message.ts, thread)),
            None => {
                if flow.sent.len() == AHEAD {
                    flow.sent.pop_front();
                }
                flow.sent.push_back((message.ts, thread));
                None
            }
        }
    }

    fn answered(&mut self, (from, receiver): (Ns, T), (to, by): (Ns, T)) -> Option<(T, Period)> {
        if self.answers >= 2 * ANSWERS {
            (self.answers, self.elsewhere) = (self.answers / 2, self.elsewhere / 2);
        }
        self.answers += 1;
        self.elsewhere += u32::from(receiver != by);
        self.wander |= self.answers >= ANSWERS && self.elsewhere * WANDER >= self.answers;
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
        let mut requests = Requests::default();
        let found = messages.iter().filter_map(|&(thread, at, direction, client)| {
            requests.take(thread, &message(at, direction, client), Ns(at - 1))
        });
        found.map(|(by, period)| (by, period.from.0, period.to.0)).collect()
    }

    #[test]
    fn a_request_lasts_until_any_thread_answers_it() {
        let asked = [(1, 10, Receive, 5000), (2, 30, Send, 5000), (2, 40, Send, 5000)];
        assert_eq!(of(&asked), [(2, 9, 30)]);
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
            requests.take(0_u8, &message(10 * n, Receive, 5000), Ns(10 * n));
            requests.take(by, &message(10 * n + 5, Send, 5000), Ns(10 * n));
        }
        requests.wander()
    }

    #[test]
    fn requests_wander_if_other_threads_answer_them_again_and_again() {
        assert!(wander(1) && wander(3) && wander(12));
        assert!(!wander(100) && !wander(1000));
    }

    #[test]
    fn what_is_never_answered_is_forgotten() {
        let late = FORGOTTEN.0 + 20;
        let asked = [(1, 10, Receive, 5000), (1, late, Receive, 5000), (1, late + 5, Send, 5000)];
        assert_eq!(of(&asked), [(1, late - 1, late + 5)]);
        let mut requests = Requests::default();
        for client in 0..60_000 {
            requests.take(1_u8, &message(1, Receive, 1024 + client), Ns(1));
        }
        assert!(requests.flows.len() <= FLOWS);
    }
}
