//! The correlator without sockets: joins the steps of all nodes, finds the rank that came late, and asks
//! its node why.
//!
//! What connections say goes in ([`Center::connected`], [`Center::line`], [`Center::closed`], and
//! [`Center::tick`] for the time); what is to be said, closed and told comes out ([`Center::actions`]).
//!
//! # Who may do what
//! A connection says hello once, under a name that nobody else has at the time, and that its certificate has
//! where it shows one. Of several that report the same rank, the one that keeps step with the other ranks counts,
//! and of several that do, the first. An answer counts only from the
//! connection that was asked, with the random id of the question, and within ten seconds. A node that sends too
//! much is read more slowly and then sent away for a minute; what it did is told once.

mod events;
mod job;
mod seats;

use std::collections::{BTreeMap, HashMap, VecDeque};

use gpuwhy_schema::Ns;
use serde_json::Value;

pub use self::events::{FleetEvent, StragglerReport};
use self::job::{Answered, Job};
use crate::protocol::{
    CENTER_LINE, CenterMessage, HELLO, LINE, NodeMessage, RankStep, VERSION, clean, clean_document,
    is_name, line,
};
use crate::rate::{Bucket, Complaints, Flow};

/// A connection, by a number that is never used again.
pub type Conn = u64;

/// Whether the other end of a connection may call itself by a name.
pub type MayBe = Box<dyn Fn(&str) -> bool + Send>;

/// What a correlator takes at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Nodes.
    pub nodes: usize,
    /// Connections that have not said hello.
    pub strangers: usize,
    /// Jobs.
    pub jobs: usize,
    /// Memory for the reports of all jobs, bytes.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { nodes: 2048, strangers: 512, jobs: 32, bytes: 96 << 20 }
    }
}

/// What is to be done about a connection, or told.
#[derive(Debug)]
pub enum Action {
    /// Send this line.
    Send(Conn, String),
    /// Close it, after what was sent.
    Close(Conn),
    /// Tell this.
    Tell(FleetEvent),
}

/// A connection has said hello within this.
const HELLO_BY: Ns = Ns::secs(5);
/// Each side says something at least this often,
const ALIVE: Ns = Ns::secs(5);
/// and takes the other for gone when it was silent for so long.
pub(crate) const SILENT: Ns = Ns::secs(20);
/// Bytes a second from a node, and at once.
const BYTES: (f64, f64) = (512.0 * 1024.0, 4.0 * 1024.0 * 1024.0);
/// Lines a second from a node, and at once: a node of few ranks sends ten a second, and after a pause what waited.
const LINES: (f64, f64) = (200.0, 2000.0);
/// Steps a second from a node, and at once.
const STEPS: (f64, f64) = (4000.0, 40_000.0);
/// Findings a second from a node, and at once.
const FINDINGS: (f64, f64) = (1.0, 10.0);
/// Questions a second to a node, and at once.
const QUESTIONS: (f64, f64) = (0.2, 10.0);
/// Ranks that one node speaks for.
const RANKS: usize = 64;
/// Jobs that one node reports.
const JOBS: usize = 4;
/// A job of which nothing was heard for so long is forgotten.
const OVER: Ns = Ns::secs(600);
/// A node that was sent away may not come back for so long.
const BANNED: Ns = Ns::secs(60);
/// Nodes that are sent away and remembered.
const MOST_BANNED: usize = 4096;
/// Answers to questions that were not asked, after which a node is sent away.
const FORGED: u32 = 8;

/// A connection.
struct Node {
    from: String,
    may_be: MayBe,
    /// Name and session, after hello.
    hello: Option<(String, String)>,
    since: Ns,
    heard: Ns,
    sent: Ns,
    flow: Flow,
    steps: Bucket,
    findings: Bucket,
    questions: Bucket,
    /// Questions that were sent, for answers that come too late.
    asked: VecDeque<String>,
    forged: u32,
    jobs: Vec<String>,
}

impl Node {
    fn name(&self) -> &str {
        self.hello.as_ref().map_or(&self.from, |(name, _)| name)
    }
}

/// The correlator without sockets.
pub struct Center {
    limits: Limits,
    nodes: HashMap<Conn, Node>,
    names: HashMap<String, Conn>,
    banned: HashMap<String, Ns>,
    jobs: BTreeMap<String, Job>,
    complaints: Complaints,
    actions: Vec<Action>,
    ids: Box<dyn FnMut() -> String + Send>,
}

impl Center {
    /// No node yet. `ids` makes ids of questions that nobody can guess.
    pub fn new(limits: Limits, ids: Box<dyn FnMut() -> String + Send>) -> Center {
        Center {
            limits,
            nodes: HashMap::new(),
            names: HashMap::new(),
            banned: HashMap::new(),
            jobs: BTreeMap::new(),
            complaints: Complaints::default(),
            actions: Vec::new(),
            ids,
        }
    }

    /// What is to be done since the last call.
    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// How many nodes have said hello.
    pub fn nodes(&self) -> usize {
        self.names.len()
    }

    /// Whether a connection has said hello.
    pub fn knows(&self, conn: Conn) -> bool {
        self.nodes.get(&conn).is_some_and(|node| node.hello.is_some())
    }

    /// Whether a connection is neither closed nor to be closed.
    pub fn has(&self, conn: Conn) -> bool {
        self.nodes.contains_key(&conn)
    }

    /// A connection from `from`, whose other end may call itself by some names.
    pub fn connected(&mut self, conn: Conn, from: &str, may_be: MayBe, now: Ns) {
        let node = Node {
            from: from.into(),
            may_be,
            hello: None,
            since: now,
            heard: now,
            sent: now,
            flow: Flow::new(BYTES, LINES, now),
            steps: Bucket::new(STEPS.0, STEPS.1, now),
            findings: Bucket::new(FINDINGS.0, FINDINGS.1, now),
            questions: Bucket::new(QUESTIONS.0, QUESTIONS.1, now),
            asked: VecDeque::new(),
            forged: 0,
            jobs: Vec::new(),
        };
        self.nodes.insert(conn, node);
    }

    /// A connection has ended by itself.
    pub fn closed(&mut self, conn: Conn) {
        let Some(node) = self.nodes.remove(&conn) else { return };
        for job in self.jobs.values_mut() {
            job.closed(conn);
        }
        if let Some((name, _)) = node.hello {
            self.names.remove(&name);
            self.actions.push(Action::Tell(FleetEvent::Left { node: name }));
        }
    }

    /// Closes a connection and tells why, unless that was told lately.
    pub fn refuse(&mut self, conn: Conn, why: &str, now: Ns) {
        let Some(node) = self.nodes.get(&conn) else { return };
        let from = node.name().to_owned();
        let line = line(&CenterMessage::Refused { why: clean(why, 500) }, CENTER_LINE);
        self.actions.extend(line.map(|line| Action::Send(conn, line)));
        self.actions.push(Action::Close(conn));
        self.closed(conn);
        self.complain(&from, why, now);
    }

    /// Tells what is wrong with what `from` does, once, and then how often.
    pub fn complain(&mut self, from: &str, why: &str, now: Ns) {
        // Ports differ each time: one host is one.
        let host = from.rsplit_once(':').map_or(from, |(host, _)| host);
        let kind: String = why.chars().take(24).collect();
        let Some(more) = self.complaints.tell(&format!("{host} {kind}"), now) else { return };
        let mut why = clean(why, 500);
        if more > 0 {
            why += &format!(" (and {more} times more since this was told)");
        }
        self.actions.push(Action::Tell(FleetEvent::Refused { from: clean(from, 100), why }));
    }

    /// Whether more may be read from a connection now.
    pub fn may_read(&mut self, conn: Conn, now: Ns) -> bool {
        self.nodes.get_mut(&conn).is_some_and(|node| node.flow.may_read(now))
    }

    /// Counts bytes that were read.
    pub fn read(&mut self, conn: Conn, bytes: usize, now: Ns) {
        if let Some(node) = self.nodes.get_mut(&conn) {
            node.flow.read(bytes, 0, now);
        }
    }

    /// The longest line that a connection may send now.
    pub fn longest_line(&self, conn: Conn) -> usize {
        if self.knows(conn) { LINE } else { HELLO }
    }

    /// Takes a line of a connection.
    pub fn line(&mut self, conn: Conn, line: &[u8], now: Ns) {
        let Some(node) = self.nodes.get_mut(&conn) else { return };
        node.flow.read(0, 1, now);
        node.heard = now;
        let message = match serde_json::from_slice::<NodeMessage>(line) {
            Ok(message) => message,
            Err(error) => {
                return self.refuse(conn, &format!("a message is not understood ({error})"), now);
            }
        };
        match message {
            NodeMessage::Hello { version, node, session } => {
                if let Err(why) = self.hello(conn, version, node, session, now) {
                    self.refuse(conn, &why, now);
                }
            }
            _ if node.hello.is_none() => self.refuse(conn, "its first message is not hello", now),
            NodeMessage::Steps { job, steps, .. } => {
                if let Err(why) = self.steps(conn, &job, &steps, now) {
                    let from = self.name_of(conn).unwrap_or_default();
                    self.complain(&from, &why, now);
                }
            }
            NodeMessage::Finding { mut finding } => {
                if node.findings.try_take(now) {
                    clean_document(&mut finding);
                    let node = node.name().to_owned();
                    self.actions.push(Action::Tell(FleetEvent::Node { node, finding }));
                } else {
                    let from = node.name().to_owned();
                    self.complain(&from, "it reports more findings than one a second", now);
                }
            }
            NodeMessage::Answer { id, finding } => self.answer(conn, &id, finding, now),
            NodeMessage::Alive => {}
        }
    }

    fn name_of(&self, conn: Conn) -> Option<String> {
        self.nodes.get(&conn).map(|node| node.name().to_owned())
    }

    fn hello(
        &mut self,
        conn: Conn,
        version: u32,
        name: String,
        session: String,
        now: Ns,
    ) -> Result<(), String> {
        let Some(node) = self.nodes.get(&conn) else { return Ok(()) };
        if node.hello.is_some() {
            return Err("it said hello a second time".into());
        }
        if version != VERSION {
            return Err(format!(
                "it speaks version {version} of the protocol, this correlator {VERSION}; update the older one"
            ));
        }
        if !is_name(&name) || session.is_empty() || session.len() > 64 {
            return Err("its name or session is none".into());
        }
        if !(node.may_be)(&name) {
            return Err(format!("its certificate is not for the name {name}"));
        }
        if self.banned.get(&name).is_some_and(|until| now < *until) {
            return Err(format!("{name} was sent away and may come back after a minute"));
        }
        if let Some(&other) = self.names.get(&name) {
            let known = self.nodes.get(&other).and_then(|node| node.hello.as_ref());
            if known.is_none_or(|(_, known)| *known != session) {
                return Err(format!("another node is connected under the name {name}"));
            }
            // The same process, whose old connection broke and has not been noticed yet.
            self.actions.push(Action::Close(other));
            self.closed(other);
        }
        if self.names.len() >= self.limits.nodes {
            return Err(format!("there are {} nodes, as many as are allowed", self.limits.nodes));
        }
        let Some(node) = self.nodes.get_mut(&conn) else { return Ok(()) };
        node.hello = Some((name.clone(), session));
        let from = node.from.clone();
        self.names.insert(name.clone(), conn);
        self.send(conn, &CenterMessage::Welcome { version: VERSION }, now);
        self.actions.push(Action::Tell(FleetEvent::Joined { node: name, from }));
        Ok(())
    }

    fn send(&mut self, conn: Conn, message: &CenterMessage, now: Ns) {
        if let Some(node) = self.nodes.get_mut(&conn)
            && let Some(line) = line(message, CENTER_LINE)
        {
            node.sent = now;
            self.actions.push(Action::Send(conn, line));
        }
    }

    /// Takes steps; fails with why some of them were left out.
    fn steps(&mut self, conn: Conn, job: &str, steps: &[RankStep], now: Ns) -> Result<(), String> {
        if !is_name(job) {
            return Err("the name of its job is none".into());
        }
        let Some(node) = self.nodes.get_mut(&conn) else { return Ok(()) };
        if !node.steps.has_some(now) {
            return Err(format!("it reports more than {} steps a second", STEPS.0));
        }
        node.steps.take(steps.len(), now);
        if !node.jobs.iter().any(|known| known == job) {
            if node.jobs.len() >= JOBS {
                return Err(format!("it reports more than {JOBS} jobs"));
            }
            node.jobs.push(job.to_owned());
        }
        let mut new = false;
        if !self.jobs.contains_key(job) {
            if self.jobs.len() >= self.limits.jobs {
                return Err(format!("there are {} jobs, as many as are allowed", self.limits.jobs));
            }
            self.jobs.insert(job.to_owned(), Job::new(job, now));
            new = true;
        }
        if new {
            self.share_memory();
        }
        let Some(job) = self.jobs.get_mut(job) else { return Ok(()) };
        let (mut of_others, mut too_many) = (None, false);
        let mut ranks = job.ranks_of(conn);
        for step in steps {
            if !job.speaks(conn, step.rank) {
                if ranks >= RANKS {
                    too_many = true;
                    continue;
                }
                ranks += 1;
            }
            if let Some(other) = job.step(conn, step, now) {
                of_others = Some((step.rank, other));
            }
        }
        if let Some((rank, other)) = of_others {
            let other = self.name_of(other).unwrap_or_default();
            return Err(format!(
                "rank {rank} is reported by {other} too; who keeps step with the other ranks counts"
            ));
        }
        if too_many {
            return Err(format!("it reports more than {RANKS} ranks of one job"));
        }
        Ok(())
    }

    fn share_memory(&mut self) {
        let share = self.limits.bytes / self.jobs.len().max(1);
        self.jobs.values_mut().for_each(|job| job.set_limit(share));
    }

    fn answer(&mut self, conn: Conn, id: &str, finding: Option<Value>, now: Ns) {
        let mut finding = finding;
        finding.iter_mut().for_each(clean_document);
        let nodes = &self.nodes;
        let name = |conn: Conn| nodes.get(&conn).map(|node| node.name().to_owned());
        for job in self.jobs.values_mut() {
            let (answered, event) = job.answer(conn, id, finding.clone(), name);
            self.actions.extend(event.map(Action::Tell));
            if answered == Answered::Here {
                return;
            }
        }
        let Some(node) = self.nodes.get_mut(&conn) else { return };
        // An answer that comes too late is no fault.
        if let Some(at) = node.asked.iter().position(|asked| asked == id) {
            node.asked.remove(at);
            return;
        }
        node.forged += 1;
        let (forged, from) = (node.forged, node.name().to_owned());
        let why = "it answers a question that it was not asked";
        if forged >= FORGED {
            self.send_away(conn, why, now);
        } else {
            self.complain(&from, why, now);
        }
    }

    /// Closes a node's connection and does not let it back for a while.
    fn send_away(&mut self, conn: Conn, why: &str, now: Ns) {
        if let Some((name, _)) = self.nodes.get(&conn).and_then(|node| node.hello.clone()) {
            if self.banned.len() >= MOST_BANNED {
                self.banned.retain(|_, until| now < *until);
            }
            if self.banned.len() < MOST_BANNED {
                self.banned.insert(name, now.saturating_add(BANNED));
            }
        }
        self.refuse(conn, why, now);
    }

    /// Lets time pass: deadlines, stragglers, questions. To be called ten times a second.
    pub fn tick(&mut self, now: Ns) {
        self.keep_deadlines(now);
        let nodes = &self.nodes;
        let name = |conn: Conn| nodes.get(&conn).map(|node| node.name().to_owned());
        let mut to_ask = Vec::new();
        for (job_name, job) in &mut self.jobs {
            self.actions.extend(job.look(now, name).map(Action::Tell));
            to_ask.extend(job.whom_to_ask(now).map(|conn| (job_name.clone(), conn)));
        }
        for (job, conn) in to_ask {
            self.ask(&job, conn, now);
        }
        let before = self.jobs.len();
        self.jobs.retain(|_, job| now < job.heard.saturating_add(OVER));
        if self.jobs.len() < before {
            let jobs = &self.jobs;
            self.nodes.values_mut().for_each(|node| node.jobs.retain(|job| jobs.contains_key(job)));
            self.share_memory();
        }
    }

    fn keep_deadlines(&mut self, now: Ns) {
        let (mut refused, mut floods, mut quiet) = (Vec::new(), Vec::new(), Vec::new());
        for (&conn, node) in &mut self.nodes {
            if node.hello.is_none() && now >= node.since.saturating_add(HELLO_BY) {
                refused.push((conn, "it did not say hello within 5 s"));
            } else if node.flow.is_flood(now) {
                floods.push(conn);
            } else if node.hello.is_some() && now >= node.heard.saturating_add(SILENT) {
                refused.push((conn, "it was silent for 20 s"));
            } else if node.hello.is_some() && now >= node.sent.saturating_add(ALIVE) {
                quiet.push(conn);
            }
        }
        for (conn, why) in refused {
            self.refuse(conn, why, now);
        }
        for conn in floods {
            self.send_away(conn, "it sends more than is read, and did not stop within 10 s", now);
        }
        for conn in quiet {
            self.send(conn, &CenterMessage::Alive, now);
        }
    }

    fn ask(&mut self, job: &str, conn: Conn, now: Ns) -> Option<()> {
        let node = self.nodes.get_mut(&conn)?;
        if !node.questions.try_take(now) {
            return None;
        }
        let id = (self.ids)();
        if id.is_empty() {
            return None;
        }
        let question = self.jobs.get_mut(job)?.ask(conn, id, now)?;
        node.asked.push_back(question.id.clone());
        if node.asked.len() > 8 {
            node.asked.pop_front();
        }
        self.send(conn, &CenterMessage::Question(question), now);
        Some(())
    }
}
