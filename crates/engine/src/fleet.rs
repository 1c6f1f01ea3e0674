//! What a watching node tells its correlator, and how it answers it. The connection, the correlator and the
//! messages are `gpuwhy-fleet`'s.

use std::time::{Duration, Instant};

use gpuwhy_fleet::protocol::NO_JOB;
use gpuwhy_fleet::protocol::{self, LINE, NodeMessage, RankStep};
use gpuwhy_fleet::{Credentials, Link, LinkEvent};
use gpuwhy_schema::SourceId;
use serde_json::Value;

use crate::error::Result;
use crate::live::{Correlating, Event};
use crate::units::steps::FinishedStep;
use crate::watch::Watcher;

/// How often a node sends its steps.
const SEND_EVERY: Duration = Duration::from_millis(100);
/// Steps in one message: it must stay shorter than a line may be.
const STEPS: usize = 64;
/// Steps that wait to be put into a message.
const WAITING: usize = 65_536;
/// Variables of the environment that say which job this is, the first that is set.
const JOB_VARIABLES: [&str; 4] = ["SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID"];

/// Where to and as what a node reports.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The correlator, as HOST:PORT.
    pub to: String,
    /// The name of the node; the host's if `None`.
    pub node: Option<String>,
    /// The name of the job; that of the environment if `None`.
    pub job: Option<String>,
    /// How both ends know each other.
    pub credentials: Credentials,
    /// The phase of a step in which ranks wait for each other.
    pub collective: String,
    /// Seconds to be added to all times that are sent, for tests.
    pub skew: i64,
}

/// A node's side of the connection. It never blocks the watcher.
pub struct NodeLink {
    link: Link,
    to: String,
    job: String,
    /// The row of the trace that says what became of the connection.
    source: Option<SourceId>,
    noted: u64,
    steps: Vec<RankStep>,
    sent: Instant,
    dropped: u64,
    collective: String,
    skew: i64,
}

impl NodeLink {
    /// Connects, in the background.
    ///
    /// # Errors
    /// A name is none, the credentials cannot be read, or there are none and the address is not on loopback.
    pub fn connect(options: NodeOptions) -> Result<NodeLink> {
        let NodeOptions { to, node, job, credentials, collective, skew } = options;
        let node = node.unwrap_or_else(host_name);
        let job = job.or_else(|| JOB_VARIABLES.iter().find_map(|name| std::env::var(name).ok()));
        Ok(NodeLink {
            link: Link::connect(&to, &node, &credentials)?,
            to,
            source: None,
            noted: 0,
            job: job.map_or_else(|| NO_JOB.to_owned(), |job| protocol::job_name(&job)),
            steps: Vec::new(),
            sent: Instant::now(),
            dropped: 0,
            collective,
            skew: skew.saturating_mul(1_000_000_000),
        })
    }

    /// Messages that were dropped so far because the connection was slow or away, and steps that did not fit.
    pub fn dropped(&self) -> u64 {
        self.dropped + self.link.dropped()
    }

    fn send(&mut self, message: &NodeMessage) -> bool {
        let line = protocol::line(message, LINE);
        let fits = line.is_some();
        line.into_iter().for_each(|line| self.link.send(line));
        fits
    }

    /// Sends what is new, and answers the correlator's questions; what became of the connection.
    ///
    /// # Errors
    /// The watcher cannot read the rows that an answer needs.
    pub fn tick(&mut self, watcher: &mut Watcher, findings: &[Value]) -> Result<Vec<Event>> {
        let events = self.news(watcher);
        for (finished, waited) in watcher.ended_steps(&self.collective) {
            let FinishedStep { step, seq, phases } = finished;
            let Some(rank) = step.rank else { continue };
            if self.steps.len() >= WAITING {
                self.dropped += 1;
                continue;
            }
            let others = phases.iter().filter(|p| *p.0 != *self.collective);
            self.steps.push(RankStep {
                rank,
                seq,
                name: protocol::clean(&step.name, protocol::NAME),
                size: step.size,
                dur_ns: step.dur.0,
                waited_ns: waited.0,
                phases: longest_phases(others.map(|(name, _, ns)| (&**name, ns.0)).collect()),
            });
        }
        if self.sent.elapsed() >= SEND_EVERY && !self.steps.is_empty() {
            self.sent = Instant::now();
            self.send_steps();
        }
        for finding in findings {
            let finding = self.fitting(finding.clone());
            if !self.send(&NodeMessage::Finding { finding }) {
                self.dropped += 1;
            }
        }
        while let Some(question) = self.link.question() {
            // A question about another job is one about steps that this node does not know.
            let finding = match question.job == self.job {
                true => watcher.explain(question.rank, (question.first_seq, question.last_seq))?,
                false => None,
            };
            // Our own types can always be written as JSON.
            let finding = finding.and_then(|f| serde_json::to_value(f).ok());
            let finding = finding.map(|finding| self.fitting(finding));
            if !self.send(&NodeMessage::Answer { id: question.id, finding }) {
                self.dropped += 1;
            }
        }
        Ok(events)
    }

    /// What became of the connection since the last call; the trace keeps the latest.
    fn news(&mut self, watcher: &mut Watcher) -> Vec<Event> {
        let to = &self.to;
        let source = *self.source.get_or_insert_with(|| watcher.add_source("correlator", to));
        let mut events = Vec::new();
        for event in self.link.news() {
            let why = match event {
                LinkEvent::Joined => None,
                LinkEvent::Away { why } => Some(why),
            };
            let correlating = Correlating {
                at_ns: gpuwhy_collect::now().0,
                to: self.to.clone(),
                joined: why.is_none(),
                why,
                dropped: self.dropped(),
            };
            self.noted = correlating.dropped;
            watcher.note(source, &correlating.text());
            events.push(Event::Correlator(correlating));
        }
        let dropped = self.dropped();
        // Each note is a row.
        if dropped > self.noted && dropped >= 2 * self.noted {
            self.noted = dropped;
            watcher.note(source, &format!("{dropped} messages to {} were dropped", self.to));
        }
        events
    }

    fn send_steps(&mut self) {
        let all = std::mem::take(&mut self.steps);
        for steps in all.chunks(STEPS) {
            let (job, dropped) = (self.job.clone(), self.dropped());
            if !self.send(&NodeMessage::Steps { job, steps: steps.to_vec(), dropped }) {
                self.dropped += steps.len() as u64;
            }
        }
    }

    /// A finding with shifted times, short enough for a message: lists are left out of one that is not.
    fn fitting(&self, mut finding: Value) -> Value {
        shift(&mut finding, self.skew);
        if finding.to_string().len() > LINE / 2
            && let Value::Object(fields) = &mut finding
        {
            fields.retain(|_, field| !field.is_array());
        }
        finding
    }
}

/// The host's name.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The longest phases of a step, as many as the correlator looks at.
fn longest_phases(mut phases: Vec<(&str, i64)>) -> Vec<(String, i64)> {
    phases.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let most = gpuwhy_diagnose::fleet::PHASES;
    let clean = |name: &str| protocol::clean(name, protocol::NAME);
    phases.into_iter().take(most).map(|(name, ns)| (clean(name), ns)).collect()
}

/// Adds `skew` to every time in a document.
fn shift(value: &mut Value, skew: i64) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_i64().filter(|_| name.ends_with("_ns")) {
                    Some(ns) => *field = ns.saturating_add(skew).into(),
                    None => shift(field, skew),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| shift(one, skew)),
        _ => {}
    }
}
