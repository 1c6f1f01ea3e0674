//! A node's connection to the correlator.

use std::io::{BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::protocol::{Line, NodeMessage, Question, RankStep, VERSION, read_line};
use crate::error::Result;
use crate::units::steps::FinishedStep;
use crate::watch::Watcher;

/// Lines that wait to be sent.
const QUEUE: usize = 256;
/// Questions that wait for an answer; the correlator asks one at a time.
const QUESTIONS: usize = 16;
/// How often a node sends its steps.
const SEND_EVERY: Duration = Duration::from_millis(100);
/// How long a node waits before it connects again.
const RECONNECT: Duration = Duration::from_secs(1);

/// A node's side of the connection. It never blocks the watcher.
pub struct NodeLink {
    queue: SyncSender<String>,
    questions: Receiver<Question>,
    steps: Vec<RankStep>,
    sent: Instant,
    dropped: u64,
    collective: String,
    skew: i64,
}

impl NodeLink {
    /// To the correlator at `address`, as `node`; `collective` is the phase of a step in which ranks
    /// wait for each other. `skew` seconds are added to all times that are sent, for tests.
    pub fn connect(address: &str, node: &str, collective: &str, skew: i64) -> NodeLink {
        let (queue, lines) = sync_channel::<String>(QUEUE);
        let (asked, questions) = sync_channel(QUESTIONS);
        let hello = NodeMessage::Hello { version: VERSION, node: node.into() };
        let address = address.to_owned();
        std::thread::spawn(move || {
            let mut unsent = None;
            // Ends when the watcher drops its side of the queue.
            loop {
                if let Ok(stream) = TcpStream::connect(&address) {
                    let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
                    let _ = stream.set_nodelay(true);
                    if !send_lines(stream, &hello, &lines, &asked, &mut unsent) {
                        return;
                    }
                }
                std::thread::sleep(RECONNECT);
            }
        });
        NodeLink {
            queue,
            questions,
            steps: Vec::new(),
            sent: Instant::now(),
            dropped: 0,
            collective: collective.into(),
            skew: skew.saturating_mul(1_000_000_000),
        }
    }

    fn send(&mut self, message: &NodeMessage) {
        let Ok(line) = serde_json::to_string(message) else { return };
        if self.queue.try_send(line).is_err() {
            self.dropped += 1;
        }
    }

    /// Sends what is new, and answers the correlator's questions.
    ///
    /// # Errors
    /// The watcher cannot read the rows that an answer needs.
    pub fn tick(&mut self, watcher: &mut Watcher, findings: &[Value]) -> Result<()> {
        for (finished, waited) in watcher.ended_steps(&self.collective) {
            let FinishedStep { step, seq, phases } = finished;
            let Some(rank) = step.rank else { continue };
            let others = phases.iter().filter(|p| *p.0 != *self.collective);
            self.steps.push(RankStep {
                rank,
                seq,
                name: step.name.to_string(),
                size: step.size,
                dur_ns: step.dur.0,
                waited_ns: waited.0,
                phases: others.map(|(name, _, ns)| (name.to_string(), ns.0)).collect(),
            });
        }
        if self.sent.elapsed() >= SEND_EVERY && !self.steps.is_empty() {
            self.sent = Instant::now();
            let steps = std::mem::take(&mut self.steps);
            let dropped = self.dropped;
            self.send(&NodeMessage::Steps { steps, dropped });
        }
        for finding in findings {
            let mut finding = finding.clone();
            shift(&mut finding, self.skew);
            self.send(&NodeMessage::Finding { finding });
        }
        while let Ok(question) = self.questions.try_recv() {
            let seqs = (question.first_seq, question.last_seq);
            let finding = watcher.explain(question.rank, seqs)?;
            // Our own types can always be written as JSON.
            let mut finding = finding.and_then(|f| serde_json::to_value(f).ok());
            finding.iter_mut().for_each(|f| shift(f, self.skew));
            self.send(&NodeMessage::Answer { id: question.id, finding });
        }
        Ok(())
    }
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

/// Sends lines until the connection or the queue ends; false if it was the queue. A line that could
/// not be sent is kept in `unsent` for the next connection.
fn send_lines(
    mut stream: TcpStream,
    hello: &NodeMessage,
    lines: &Receiver<String>,
    asked: &SyncSender<Question>,
    unsent: &mut Option<String>,
) -> bool {
    let Ok(incoming) = stream.try_clone() else { return true };
    let asked = asked.clone();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(incoming);
        let mut line = String::new();
        while let Line::Whole = read_line(&mut reader, &mut line) {
            if let Ok(question) = serde_json::from_str(&line)
                && asked.send(question).is_err()
            {
                return;
            }
        }
    });
    let Ok(hello) = serde_json::to_string(hello) else { return true };
    if writeln!(stream, "{hello}").is_err() {
        return true;
    }
    loop {
        let line = match unsent.take() {
            Some(line) => line,
            None => match lines.recv() {
                Ok(line) => line,
                Err(_) => {
                    let _ = stream.shutdown(Shutdown::Both);
                    return false;
                }
            },
        };
        if writeln!(stream, "{line}").is_err() {
            *unsent = Some(line);
            return true;
        }
    }
}
