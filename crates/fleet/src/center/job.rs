//! One job: its rounds, which node speaks for which rank, and the straggler that is looked into.

use std::collections::HashMap;

use gpuwhy_diagnose::detect::Detection;
use gpuwhy_diagnose::fleet::{Arrival, Fleet, Straggler};
use gpuwhy_schema::Ns;
use serde_json::Value;

use super::Conn;
use super::events::{FleetEvent, StragglerReport};
use crate::protocol::{Question, RankStep, clean};

/// How long after a straggler was seen its node is asked: the node's rows must have arrived there.
const SETTLED: Ns = Ns::millis(400);
/// A question is answered within this, or not at all.
const ANSWERED: Ns = Ns::secs(10);
/// Questions about one straggler that may stay without an answer.
const UNANSWERED: u32 = 3;
/// A rank of which its node says nothing for so long may be another node's from then on; longer where its
/// steps take longer.
const SPEAKS: Ns = Ns::secs(3);
/// How often stragglers are looked for.
const LOOK: Ns = Ns::millis(100);

/// The node that speaks for a rank.
struct Owner {
    conn: Conn,
    heard: Ns,
    took: Ns,
}

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
    owners: HashMap<u32, Owner>,
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
            owners: HashMap::new(),
            current: None,
            heard: now,
            looked: now,
        }
    }

    pub fn set_limit(&mut self, bytes: usize) {
        self.fleet.set_limit(bytes);
    }

    /// Takes a step of a rank. Fails with the connection that speaks for the rank, if that is another one.
    pub fn step(&mut self, conn: Conn, step: &RankStep, now: Ns) -> Result<(), Conn> {
        self.heard = now;
        let took = Ns(step.dur_ns.clamp(0, Ns::secs(3600).0));
        if let Some(owner) = self.owners.get(&step.rank)
            && owner.conn != conn
            && now < owner.heard.saturating_add(SPEAKS.max(Ns(owner.took.0 * 4)))
        {
            return Err(owner.conn);
        }
        if self.fleet.arrive(arrival(conn, step, took), now).is_some() {
            self.owners.insert(step.rank, Owner { conn, heard: now, took });
        }
        Ok(())
    }

    /// How many ranks a connection speaks for.
    pub fn ranks_of(&self, conn: Conn) -> usize {
        self.owners.values().filter(|owner| owner.conn == conn).count()
    }

    /// Whether a connection speaks for a rank.
    pub fn speaks(&self, conn: Conn, rank: u32) -> bool {
        self.owners.get(&rank).is_some_and(|owner| owner.conn == conn)
    }

    /// A connection has ended.
    pub fn closed(&mut self, conn: Conn) {
        self.owners.retain(|_, owner| owner.conn != conn);
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
        let owner = straggler.rank.and_then(|rank| self.owners.get(&rank));
        StragglerReport::new(&self.name, straggler, owner.and_then(|o| name(o.conn)), finding)
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
        self.owners.get(&current.straggler.rank?).map(|owner| owner.conn)
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

fn arrival(conn: Conn, step: &RankStep, dur: Ns) -> Arrival {
    let name = |text: &str| clean(text, crate::protocol::NAME).as_str().into();
    Arrival {
        rank: step.rank,
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
