//! The correlator: joins the steps of all nodes, finds the rank that came late, and asks its node why.

use std::collections::HashMap;
use std::io::{BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use gpuwhy_diagnose::detect::Detection;
use gpuwhy_diagnose::fleet::{Arrival, Fleet, Straggler};
use gpuwhy_schema::Ns;
use serde::Serialize;
use serde_json::Value;

use super::protocol::{LINE, Line, NodeMessage, Question, RankStep, VERSION, read_line};
use crate::error::{Error, Result};

/// The most nodes.
const NODES: usize = 1024;
/// Messages that wait to be looked at.
const QUEUE: usize = 4096;
/// How long after a straggler was seen its node is asked: the node's rows must have arrived there.
const SETTLED: Ns = Ns::millis(400);

/// What happened at the correlator.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum FleetEvent {
    /// A node connected.
    Joined {
        /// Its name.
        node: String,
        /// Its address.
        from: String,
    },
    /// A node disconnected.
    Left {
        /// Its name.
        node: String,
    },
    /// A node reported a finding of its own.
    Node {
        /// Its name.
        node: String,
        /// The finding, as in `gpuwhy watch --json`.
        finding: Value,
    },
    /// All ranks are slower, and this one came late.
    Straggler(StragglerReport),
    /// Why, as its node found.
    Cause(StragglerReport),
    /// It is over.
    Over(StragglerReport),
    /// A connection was closed because of what it sent.
    #[serde(skip)]
    Refused {
        /// Its address or name.
        from: String,
        /// Why.
        why: String,
    },
}

/// A straggler, with what its node found.
#[derive(Clone, Debug, Serialize)]
pub struct StragglerReport {
    /// The rank that came late; `None` if the collective itself took longer.
    pub rank: Option<u32>,
    /// The rank's node.
    pub node: Option<String>,
    /// The numbers of the first and the last slow step.
    pub seqs: (u64, u64),
    /// By how much it came later than usual, ms a step.
    pub later_ms: f64,
    /// By how much the steps were longer, ms.
    pub excess_ms: f64,
    /// In how many steps it came last, of how many.
    pub last_in: (usize, usize),
    /// `compute-slow`, `communication-slow`, `input-slow` or `host-interfered`.
    pub slowness: &'static str,
    /// The phase that grew most, and by how many ms.
    pub phase: Option<(String, f64)>,
    /// What its node found.
    pub finding: Option<Value>,
}

impl StragglerReport {
    fn new(straggler: &Straggler, node: Option<String>, finding: Option<Value>) -> StragglerReport {
        let class = finding.as_ref().and_then(|f| f["class"].as_str());
        let slowness = class.map_or(straggler.slowness, |c| straggler.slowness.with_cause(c));
        StragglerReport {
            rank: straggler.rank,
            node,
            seqs: straggler.seqs,
            later_ms: straggler.later / 1e6,
            excess_ms: straggler.excess / 1e6,
            last_in: straggler.last_in,
            slowness: slowness.as_str(),
            phase: straggler.phase.as_ref().map(|(name, ns)| (name.to_string(), ns / 1e6)),
            finding,
        }
    }

    /// One line for users.
    pub fn text(&self) -> String {
        let mut out = match (self.rank, &self.node) {
            (Some(rank), Some(node)) => format!(
                "rank {rank} on {node} comes {:.1} ms later than usual (steps +{:.1} ms; last in {} of {}): {}",
                self.later_ms, self.excess_ms, self.last_in.0, self.last_in.1, self.slowness
            ),
            (Some(rank), None) => format!("rank {rank} comes {:.1} ms later", self.later_ms),
            (None, _) => {
                format!(
                    "steps +{:.1} ms, and no rank comes late: {}",
                    self.excess_ms, self.slowness
                )
            }
        };
        if let Some((phase, ms)) = &self.phase {
            out += &format!(", its `{phase}` takes {ms:.1} ms longer");
        }
        if let Some(summary) = self.finding.as_ref().and_then(|f| f["summary"].as_str()) {
            out += &format!("\n          its node: {summary}");
        }
        out
    }
}

/// What a connection's thread hands to the correlator; connections are numbered.
enum Incoming {
    Connected(usize, String, TcpStream),
    Message(usize, NodeMessage),
    Refused(String, String),
    Closed(usize),
}

struct Node {
    name: String,
    stream: TcpStream,
    ranks: Vec<u32>,
}

/// The straggler that is reported and not over.
struct Current {
    straggler: Straggler,
    since: Ns,
    /// The question that was not answered yet.
    asked: Option<u64>,
    finding: Option<Value>,
    cause_reported: bool,
}

/// Listens to nodes, and reports stragglers.
pub struct Correlator {
    address: SocketAddr,
    incoming: Receiver<Incoming>,
    fleet: Fleet,
    nodes: HashMap<usize, Node>,
    current: Option<Current>,
    questions: u64,
}

impl Correlator {
    /// Listens at `address`, as HOST:PORT.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub fn listen(address: &str) -> Result<Correlator> {
        let cannot = |source| Error::Listen { address: address.into(), source };
        let listener = TcpListener::bind(address).map_err(cannot)?;
        let local = listener.local_addr().map_err(cannot)?;
        let (send, incoming) = sync_channel::<Incoming>(QUEUE);
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().map_while(std::io::Result::ok).enumerate() {
                let send = send.clone();
                std::thread::spawn(move || receive(n, stream, &send));
            }
        });
        Ok(Correlator {
            address: local,
            incoming,
            fleet: Fleet::new(Detection::default()),
            nodes: HashMap::new(),
            current: None,
            questions: 0,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes the messages that have come, and looks for stragglers.
    ///
    /// # Errors
    /// The listener has ended.
    pub fn poll(&mut self) -> Result<Vec<FleetEvent>> {
        let mut events = Vec::new();
        loop {
            match self.incoming.try_recv() {
                Ok(incoming) => events.extend(self.take(incoming)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(Error::ListenerEnded),
            }
        }
        events.extend(self.look());
        Ok(events)
    }

    fn take(&mut self, incoming: Incoming) -> Option<FleetEvent> {
        match incoming {
            Incoming::Connected(_, _, stream) if self.nodes.len() >= NODES => {
                let _ = stream.shutdown(Shutdown::Both);
                None
            }
            Incoming::Connected(n, from, stream) => {
                self.nodes.insert(n, Node { name: from, stream, ranks: Vec::new() });
                None
            }
            Incoming::Closed(n) => {
                self.nodes.remove(&n).map(|node| FleetEvent::Left { node: node.name })
            }
            Incoming::Refused(from, why) => Some(FleetEvent::Refused { from, why }),
            Incoming::Message(n, message) => self.receive(n, message),
        }
    }

    fn receive(&mut self, n: usize, message: NodeMessage) -> Option<FleetEvent> {
        let node = self.nodes.get_mut(&n)?;
        match message {
            NodeMessage::Hello { version, node: name } => {
                if version != VERSION {
                    let why = format!(
                        "it speaks version {version} of the protocol, this correlator {VERSION}; \
                         update the older one"
                    );
                    let _ = node.stream.shutdown(Shutdown::Both);
                    return Some(FleetEvent::Refused { from: name, why });
                }
                let from = std::mem::replace(&mut node.name, name.clone());
                Some(FleetEvent::Joined { node: name, from })
            }
            NodeMessage::Steps { steps, .. } => {
                let now = gpuwhy_collect::now();
                for step in steps {
                    if !node.ranks.contains(&step.rank) {
                        node.ranks.push(step.rank);
                    }
                    self.fleet.arrive(arrival(&step), now);
                }
                None
            }
            NodeMessage::Finding { finding } => {
                Some(FleetEvent::Node { node: node.name.clone(), finding })
            }
            NodeMessage::Answer { id, finding } => self.answered(id, finding),
        }
    }

    fn answered(&mut self, id: u64, finding: Option<Value>) -> Option<FleetEvent> {
        let current = self.current.as_mut().filter(|current| current.asked == Some(id))?;
        current.asked = None;
        current.finding = finding;
        let decided = current.finding.as_ref().is_some_and(|f| f["outcome"] == "decided");
        if !decided || current.cause_reported {
            return None;
        }
        current.cause_reported = true;
        let (straggler, finding) = (current.straggler.clone(), current.finding.clone());
        Some(FleetEvent::Cause(self.report(&straggler, finding)))
    }

    fn report(&self, straggler: &Straggler, finding: Option<Value>) -> StragglerReport {
        let node = self.node_of(straggler.rank).map(|(_, node)| node.name.clone());
        StragglerReport::new(straggler, node, finding)
    }

    fn node_of(&self, rank: Option<u32>) -> Option<(usize, &Node)> {
        let rank = rank?;
        self.nodes.iter().find(|(_, node)| node.ranks.contains(&rank)).map(|(n, node)| (*n, node))
    }

    fn look(&mut self) -> Option<FleetEvent> {
        let now = gpuwhy_collect::now();
        let (straggler, over) = self.fleet.look(now)?;
        if over {
            let finding = self.current.take().and_then(|current| current.finding);
            return Some(FleetEvent::Over(self.report(&straggler, finding)));
        }
        let is_new = self.current.as_ref().is_none_or(|c| c.straggler.rank != straggler.rank);
        let event = is_new.then(|| FleetEvent::Straggler(self.report(&straggler, None)));
        match &mut self.current {
            // Seen better: another rank came late.
            Some(current) if !is_new => current.straggler = straggler,
            current => {
                let (since, asked, finding, cause_reported) = (now, None, None, false);
                *current = Some(Current { straggler, since, asked, finding, cause_reported });
            }
        }
        self.ask(now);
        event
    }

    /// Asks the late rank's node for the cause, once its rows have arrived there, until it knows.
    fn ask(&mut self, now: Ns) -> Option<()> {
        let current = self.current.as_ref()?;
        if current.cause_reported
            || current.asked.is_some()
            || now < current.since.saturating_add(SETTLED)
        {
            return None;
        }
        let (rank, seqs) = (current.straggler.rank?, current.straggler.seqs);
        let (n, _) = self.node_of(Some(rank))?;
        self.questions += 1;
        let question = Question { id: self.questions, rank, first_seq: seqs.0, last_seq: seqs.1 };
        let line = serde_json::to_string(&question).ok()?;
        if let Some(node) = self.nodes.get_mut(&n)
            && writeln!(node.stream, "{line}").is_ok()
            && let Some(current) = &mut self.current
        {
            current.asked = Some(question.id);
            current.since = now;
        }
        Some(())
    }
}

fn arrival(step: &RankStep) -> Arrival {
    Arrival {
        rank: step.rank,
        seq: step.seq,
        name: step.name.as_str().into(),
        size: step.size,
        dur: Ns(step.dur_ns.max(0)),
        waited: Ns(step.waited_ns.max(0)),
        phases: step.phases.iter().map(|(name, ns)| (name.as_str().into(), Ns(*ns))).collect(),
    }
}

/// Reads the messages of one connection until it ends or sends what makes no sense.
fn receive(n: usize, stream: TcpStream, send: &SyncSender<Incoming>) {
    let from = stream.peer_addr().map_or_else(|_| "?".into(), |a| a.to_string());
    let Ok(answers) = stream.try_clone() else { return };
    let _ = answers.set_write_timeout(Some(Duration::from_secs(1)));
    if send.send(Incoming::Connected(n, from.clone(), answers)).is_err() {
        return;
    }
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    loop {
        let why = match read_line(&mut reader, &mut line) {
            Line::End => break,
            Line::Broken => format!("a line is longer than {LINE} bytes or cut off"),
            Line::Whole => match serde_json::from_str::<NodeMessage>(&line) {
                Ok(message) => match send.send(Incoming::Message(n, message)) {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                Err(error) => format!("a message is not understood ({error})"),
            },
        };
        let _ = send.send(Incoming::Refused(from, why));
        break;
    }
    let _ = send.send(Incoming::Closed(n));
}
