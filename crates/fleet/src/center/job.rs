//! One job: its rounds, which node speaks for which rank, and the straggler that is looked into.

use gpuwhy_diagnose::detect::Detection;
use gpuwhy_diagnose::fleet::{Arrival, Fleet, RANKS, Straggler};
use gpuwhy_schema::Ns;
use serde_json::Value;

use super::Conn;
use super::events::{FleetEvent, StragglerReport};
use super::seats::Seats;
use crate::protocol::{Question, RankStep, clean};

/// How long after a straggler was seen its node is asked: the node's rows must have arrived there.
const SETTLED: Ns = Ns::millis(400);
/// A question is answered within this, or not at all.
const ANSWERED: Ns = Ns::secs(10);
/// Questions about one straggler that may stay without an answer.
const UNANSWERED: u32 = 3;
/// How often stragglers are looked for.
const LOOK: Ns = Ns::millis(100);

/// A question to a node.
struct Asked {
    id: String,
    conn: Conn,
    at: Ns,
}

/// The straggler that is reported and not over.
struct Current {
    straggler: Straggler,
    since: Ns,
    asked: Option<Asked>,
    unanswered: u32,
    finding: Option<Value>,
    cause_reported: bool,
}

/// What became of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// It was the answer to a question of this job.
    Here,
    /// This job did not ask.
    Elsewhere,
}

pub(super) struct Job {
    name: String,
    fleet: Fleet,
    seats: Seats,
    current: Option<Current>,
    /// When something was heard of it last.
    pub heard: Ns,
    looked: Ns,
}

impl Job {
    pub fn new(name: &str, now: Ns) -> Job {
        Job {
            name: name.into(),
            fleet: Fleet::new(Detection::default()),
            seats: Seats::default(),
            current: None,
            heard: now,
            looked: now,
        }
    }

    pub fn set_limit(&mut self, bytes: usize) {
        self.fleet.set_limit(bytes);
    }

    /// Takes a step of a rank. Returns another connection that reports this rank now, if there is one.
    pub fn step(&mut self, conn: Conn, step: &RankStep, now: Ns) -> Option<Conn> {
        self.heard = now;
        let took = Ns(step.dur_ns.clamp(0, Ns::secs(3600).0));
        let is_new = !self.seats.has(conn, step.rank);
        let seat = self.seats.seat(conn, step.rank, RANKS, now)?;
        if self.fleet.arrive(arrival(conn, seat, step, took), now).is_some() {
            self.seats.heard(seat, took, now);
        } else if is_new {
            self.seats.withdraw(seat);
        }
        self.seats.rival(seat, now)
    }

    /// How many ranks a connection reports.
    pub fn ranks_of(&self, conn: Conn) -> usize {
        self.seats.count(conn)
    }

    /// Whether a connection reports a rank.
    pub fn speaks(&self, conn: Conn, rank: u32) -> bool {
        self.seats.has(conn, rank)
    }

    /// A connection has ended.
    pub fn closed(&mut self, conn: Conn) {
        self.seats.closed(conn);
        if let Some(current) = &mut self.current
            && current.asked.as_ref().is_some_and(|asked| asked.conn == conn)
        {
            current.asked = None;
        }
    }

    /// Takes an answer, if it is one to the question that this connection was asked.
    pub fn answer(
        &mut self,
        conn: Conn,
        id: &str,
        finding: Option<Value>,
        name: impl Fn(Conn) -> Option<String>,
    ) -> (Answered, Option<FleetEvent>) {
        let asked = |current: &&mut Current| {
            current.asked.as_ref().is_some_and(|asked| asked.conn == conn && asked.id == id)
        };
        let Some(current) = self.current.as_mut().filter(asked) else {
            return (Answered::Elsewhere, None);
        };
        current.asked = None;
        current.finding = finding;
        let decided = current.finding.as_ref().is_some_and(|f| f["outcome"] == "decided");
        if !decided || current.cause_reported {
            return (Answered::Here, None);
        }
        current.cause_reported = true;
        let (straggler, finding) = (current.straggler.clone(), current.finding.clone());
        let report = self.report(&straggler, finding, name);
        (Answered::Here, Some(FleetEvent::Cause(report)))
    }

    fn report(
        &self,
        straggler: &Straggler,
        finding: Option<Value>,
        name: impl Fn(Conn) -> Option<String>,
    ) -> StragglerReport {
        let conn = straggler.seat.and_then(|seat| self.seats.conn(seat));
        StragglerReport::new(&self.name, straggler, conn.and_then(name), finding)
    }

    /// Looks for a straggler.
    pub fn look(&mut self, now: Ns, name: impl Fn(Conn) -> Option<String>) -> Option<FleetEvent> {
        if now < self.looked.saturating_add(LOOK) {
            return None;
        }
        self.looked = now;
        let (straggler, over) = self.fleet.look(now)?;
        if over {
            let finding = self.current.take().and_then(|current| current.finding);
            return Some(FleetEvent::Over(self.report(&straggler, finding, name)));
        }
        let is_new = self.current.as_ref().is_none_or(|c| c.straggler.rank != straggler.rank);
        let event = is_new.then(|| FleetEvent::Straggler(self.report(&straggler, None, name)));
        match &mut self.current {
            // Seen better: another rank came late.
            Some(current) if !is_new => current.straggler = straggler,
            current => {
                *current = Some(Current {
                    straggler,
                    since: now,
                    asked: None,
                    unanswered: 0,
                    finding: None,
                    cause_reported: false,
                });
            }
        }
        event
    }

    /// Whom to ask for the cause of the present straggler now, if anybody: its node, once its rows have
    /// arrived there, until it knows.
    pub fn whom_to_ask(&mut self, now: Ns) -> Option<Conn> {
        let current = self.current.as_mut()?;
        if current.asked.as_ref().is_some_and(|asked| now >= asked.at.saturating_add(ANSWERED)) {
            current.asked = None;
            current.unanswered += 1;
        }
        if current.cause_reported
            || current.asked.is_some()
            || current.unanswered >= UNANSWERED
            || now < current.since.saturating_add(SETTLED)
        {
            return None;
        }
        self.seats.conn(current.straggler.seat?)
    }

    /// The question to `conn` about the present straggler.
    pub fn ask(&mut self, conn: Conn, id: String, now: Ns) -> Option<Question> {
        let current = self.current.as_mut()?;
        let (rank, (first_seq, last_seq)) = (current.straggler.rank?, current.straggler.seqs);
        let question =
            Question { id: id.clone(), job: self.name.clone(), rank, first_seq, last_seq };
        current.asked = Some(Asked { id, conn, at: now });
        current.since = now;
        Some(question)
    }
}

fn arrival(conn: Conn, seat: u32, step: &RankStep, dur: Ns) -> Arrival {
    let name = |text: &str| clean(text, crate::protocol::NAME).as_str().into();
    Arrival {
        rank: step.rank,
        seat,
        node: conn,
        seq: step.seq,
        name: name(&step.name),
        size: step.size,
        dur,
        waited: Ns(step.waited_ns.clamp(0, dur.0)),
        phases: step
            .phases
            .iter()
            .take(gpuwhy_diagnose::fleet::PHASES)
            .map(|(phase, ns)| (name(phase), Ns((*ns).clamp(0, dur.0))))
            .collect(),
    }
}
