//! Several hosts: each watches for itself and tells one correlator how long its steps took; the
//! correlator finds the rank that came late and asks its host why.
//!
//! Lines of JSON over TCP. A node sends `hello`, then `steps` about ten times a second, `finding`s
//! as it tells them itself, and an `answer` for each `ask`. Nothing that is sent carries a time of
//! the node's clock that the correlator would compare with another's. Queues are bounded on both
//! sides; what does not fit is dropped and counted, and a node whose correlator is away goes on
//! watching and tries again.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpuwhy_diagnose::detect::Detection;
use gpuwhy_diagnose::fleet::{Arrival, Fleet, Straggler};
use gpuwhy_schema::Ns;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Engine;
use super::engine::Summed;

/// The version of these lines.
const VERSION: u32 = 1;
/// The longest line that is read.
const LINE: u64 = 1 << 20;
/// Lines that wait to be sent.
const QUEUE: usize = 256;
/// Nodes that may join.
const NODES: usize = 1024;
/// How often a node tells of its steps.
const TELL: Duration = Duration::from_millis(100);
/// How long a node waits before it tries again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long after a straggler was seen its node is asked: its rows must have arrived there.
const SETTLED: Ns = Ns::millis(400);

/// One step of one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ToldStep {
    rank: u32,
    seq: u64,
    name: String,
    size: Option<i64>,
    dur_ns: i64,
    waited_ns: i64,
    phases: Vec<(String, i64)>,
}

/// What a node says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "says", rename_all = "snake_case")]
enum Said {
    Hello { version: u32, node: String },
    Steps { steps: Vec<ToldStep>, dropped: u64 },
    Finding { finding: Value },
    Answer { id: u64, finding: Option<Value> },
}

/// What the correlator asks of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ask {
    id: u64,
    rank: u32,
    first_seq: u64,
    last_seq: u64,
}

/// A node's side of the line.
pub struct Line {
    queue: SyncSender<String>,
    asks: Receiver<Ask>,
    steps: Vec<ToldStep>,
    told: Instant,
    dropped: u64,
    collective: String,
    skew: i64,
}

impl Line {
    /// To the correlator at `address`, as `node`; `collective` is the phase in which ranks wait for
    /// each other.
    /// What is told of times is wrong by `skew` seconds.
    pub fn to(address: &str, node: &str, collective: &str, skew: i64) -> Line {
        let (queue, lines) = sync_channel::<String>(QUEUE);
        let (asked, asks) = channel();
        let hello = Said::Hello { version: VERSION, node: node.into() };
        let address = address.to_owned();
        std::thread::spawn(move || {
            let mut lost = None;
            // Ends with the engine's side of the queue.
            loop {
                if let Ok(stream) = TcpStream::connect(&address) {
                    let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
                    let _ = stream.set_nodelay(true);
                    if !speak(stream, &hello, &lines, &asked, &mut lost) {
                        return;
                    }
                }
                std::thread::sleep(AGAIN);
            }
        });
        Line {
            queue,
            asks,
            steps: Vec::new(),
            told: Instant::now(),
            dropped: 0,
            collective: collective.into(),
            skew: skew.saturating_mul(1_000_000_000),
        }
    }

    fn send(&mut self, said: &Said) {
        let Ok(line) = serde_json::to_string(said) else { return };
        if self.queue.try_send(line).is_err() {
            self.dropped += 1;
        }
    }

    /// Tells what there is to tell, and answers what was asked.
    pub fn turn(&mut self, engine: &mut Engine, findings: &[Value]) -> Result<()> {
        for summed in engine.ended() {
            let waited = engine.asleep(&summed, &self.collective).0;
            let Summed { step, seq, phases } = summed;
            let Some(rank) = step.rank else { continue };
            let others = phases.iter().filter(|p| *p.0 != *self.collective);
            self.steps.push(ToldStep {
                rank,
                seq,
                name: step.name.to_string(),
                size: step.size,
                dur_ns: step.dur.0,
                waited_ns: waited,
                phases: others.map(|(name, _, ns)| (name.to_string(), ns.0)).collect(),
            });
        }
        if self.told.elapsed() >= TELL && !self.steps.is_empty() {
            self.told = Instant::now();
            let steps = std::mem::take(&mut self.steps);
            let dropped = self.dropped;
            self.send(&Said::Steps { steps, dropped });
        }
        for finding in findings {
            let mut finding = finding.clone();
            shift(&mut finding, self.skew);
            self.send(&Said::Finding { finding });
        }
        while let Ok(ask) = self.asks.try_recv() {
            let finding = engine.explain(ask.rank, (ask.first_seq, ask.last_seq))?;
            let mut finding = finding.map(serde_json::to_value).transpose()?;
            finding.iter_mut().for_each(|f| shift(f, self.skew));
            self.send(&Said::Answer { id: ask.id, finding });
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
/// not be sent is kept in `lost` for the next connection.
fn speak(
    mut stream: TcpStream,
    hello: &Said,
    lines: &Receiver<String>,
    asked: &Sender<Ask>,
    lost: &mut Option<String>,
) -> bool {
    let Ok(listening) = stream.try_clone() else { return true };
    let asked = asked.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(listening.take(u64::MAX)).lines().map_while(Result::ok) {
            if let Ok(ask) = serde_json::from_str(&line)
                && asked.send(ask).is_err()
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
        let line = match lost.take() {
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
            *lost = Some(line);
            return true;
        }
    }
}

/// What happened at the correlator.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum News {
    /// A node has come.
    Joined { node: String, from: String },
    /// A node has gone.
    Left { node: String },
    /// A node has told a finding of its own.
    Node { node: String, finding: Value },
    /// All ranks are slower, and this one came late.
    Straggler(Told),
    /// What its node knows of it.
    Cause(Told),
    /// It is over.
    Over(Told),
}

/// A straggler.
#[derive(Clone, Debug, Serialize)]
struct Told {
    /// Who came late; none if the collective itself took longer.
    rank: Option<u32>,
    /// On which node.
    node: Option<String>,
    /// The first and the last slow step, by number.
    seqs: (u64, u64),
    /// By how much it came later than usual, ms a step.
    later_ms: f64,
    /// By how much the steps were longer, ms.
    excess_ms: f64,
    /// Steps in which it came last, of how many.
    last_in: (usize, usize),
    /// `compute-slow`, `communication-slow`, `input-slow` or `host-interfered`.
    slowness: &'static str,
    /// The phase that grew most, and by how many ms.
    phase: Option<(String, f64)>,
    /// What its node found.
    finding: Option<Value>,
}

impl Told {
    fn of(straggler: &Straggler, node: Option<String>, finding: Option<Value>) -> Told {
        let class = finding.as_ref().and_then(|f| f["class"].as_str());
        let slowness = class.map_or(straggler.slowness, |c| straggler.slowness.with_cause(c));
        Told {
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

    fn text(&self) -> String {
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

/// A line that came, or the end of them.
enum Came {
    Joined(usize, String, TcpStream),
    Said(usize, Said),
    Left(usize),
}

struct Node {
    name: String,
    stream: TcpStream,
    ranks: Vec<u32>,
}

/// Joins what nodes tell at `address`, until told to stop.
pub fn correlate(address: &str, json: bool, for_at_most: Option<Duration>) -> Result<ExitCode> {
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen at `{address}` (want HOST:PORT)"))?;
    eprintln!("waiting for nodes at {}", listener.local_addr()?);
    let (came, coming) = sync_channel::<Came>(4096);
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let came = came.clone();
            std::thread::spawn(move || listen(n, stream, &came));
        }
    });
    let stop = crate::record::stop_flag()?;
    let end = for_at_most.map(|d| Instant::now() + d);
    let mut center = Center {
        json,
        fleet: Fleet::new(Detection::default()),
        nodes: HashMap::new(),
        present: None,
        asked: 0,
    };
    while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        loop {
            match coming.try_recv() {
                Ok(came) => center.take(came)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => bail!("the listener has ended"),
            }
        }
        center.look()?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(ExitCode::SUCCESS)
}

fn listen(n: usize, stream: TcpStream, came: &SyncSender<Came>) {
    let from = stream.peer_addr().map_or_else(|_| "?".into(), |a| a.to_string());
    let Ok(answers) = stream.try_clone() else { return };
    let _ = answers.set_write_timeout(Some(Duration::from_secs(1)));
    if came.send(Came::Joined(n, from.clone(), answers)).is_err() {
        return;
    }
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        match reader.by_ref().take(LINE).read_line(&mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) if !line.ends_with('\n') => {
                eprintln!("{from}: a line is longer than {LINE} bytes or cut off; hanging up");
                break;
            }
            Ok(_) => match serde_json::from_str::<Said>(&line) {
                Ok(said) => {
                    if came.send(Came::Said(n, said)).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    eprintln!("{from}: not understood ({error}); hanging up");
                    break;
                }
            },
        }
    }
    let _ = came.send(Came::Left(n));
}

struct Present {
    straggler: Straggler,
    since: Ns,
    asked: Option<u64>,
    finding: Option<Value>,
    told_cause: bool,
}

struct Center {
    json: bool,
    fleet: Fleet,
    nodes: HashMap<usize, Node>,
    present: Option<Present>,
    asked: u64,
}

impl Center {
    fn tell(&self, news: &News) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, news)?;
            writeln!(out)?;
        } else {
            let clock = super::engine::wall_clock(gpuwhy_collect::now().0);
            match news {
                News::Joined { node, from } => {
                    writeln!(out, "{clock}  {node} has joined from {from}")?
                }
                News::Left { node } => writeln!(out, "{clock}  {node} has left")?,
                News::Node { node, finding } => {
                    let summary = finding["summary"].as_str().unwrap_or("a finding");
                    writeln!(out, "{clock}  {node}: {summary}")?;
                }
                News::Straggler(told) => writeln!(out, "{clock}  STRAGGLER: {}", told.text())?,
                News::Cause(told) => writeln!(out, "{clock}  CAUSE: {}", told.text())?,
                News::Over(told) => writeln!(out, "{clock}  over: {}", told.text())?,
            }
        }
        out.flush().context("cannot write to standard output")
    }

    fn take(&mut self, came: Came) -> Result<()> {
        match came {
            Came::Joined(n, from, stream) => {
                if self.nodes.len() >= NODES {
                    let _ = stream.shutdown(Shutdown::Both);
                    return Ok(());
                }
                self.nodes.insert(n, Node { name: from, stream, ranks: Vec::new() });
            }
            Came::Left(n) => {
                if let Some(node) = self.nodes.remove(&n) {
                    self.tell(&News::Left { node: node.name })?;
                }
            }
            Came::Said(n, said) => self.hear(n, said)?,
        }
        Ok(())
    }

    fn hear(&mut self, n: usize, said: Said) -> Result<()> {
        let Some(node) = self.nodes.get_mut(&n) else { return Ok(()) };
        match said {
            Said::Hello { version, node: name } => {
                if version != VERSION {
                    eprintln!(
                        "{name} speaks version {version}, we {VERSION}; update the older one"
                    );
                    let _ = node.stream.shutdown(Shutdown::Both);
                    return Ok(());
                }
                let from = std::mem::replace(&mut node.name, name.clone());
                self.tell(&News::Joined { node: name, from })?;
            }
            Said::Steps { steps, .. } => {
                let now = gpuwhy_collect::now();
                for step in steps {
                    if !node.ranks.contains(&step.rank) {
                        node.ranks.push(step.rank);
                    }
                    let arrival = Arrival {
                        rank: step.rank,
                        seq: step.seq,
                        name: step.name.as_str().into(),
                        size: step.size,
                        dur: Ns(step.dur_ns.max(0)),
                        waited: Ns(step.waited_ns.max(0)),
                        phases: step
                            .phases
                            .iter()
                            .map(|(name, ns)| (name.as_str().into(), Ns(*ns)))
                            .collect(),
                    };
                    self.fleet.arrive(arrival, now);
                }
            }
            Said::Finding { finding } => {
                let node = node.name.clone();
                self.tell(&News::Node { node, finding })?;
            }
            Said::Answer { id, finding } => {
                if let Some(present) = &mut self.present
                    && present.asked == Some(id)
                {
                    present.asked = None;
                    present.finding = finding;
                    let decided =
                        present.finding.as_ref().is_some_and(|f| f["outcome"] == "decided");
                    if decided && !present.told_cause {
                        present.told_cause = true;
                        let (straggler, finding) =
                            (present.straggler.clone(), present.finding.clone());
                        let node = self.node_of(straggler.rank).map(|(_, node)| node.name.clone());
                        self.tell(&News::Cause(Told::of(&straggler, node, finding)))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn node_of(&self, rank: Option<u32>) -> Option<(usize, &Node)> {
        let rank = rank?;
        self.nodes.iter().find(|(_, node)| node.ranks.contains(&rank)).map(|(n, node)| (*n, node))
    }

    fn look(&mut self) -> Result<()> {
        let now = gpuwhy_collect::now();
        let Some((straggler, over)) = self.fleet.look(now) else { return Ok(()) };
        let node = self.node_of(straggler.rank).map(|(_, node)| node.name.clone());
        if over {
            let finding = self.present.take().and_then(|p| p.finding);
            return self.tell(&News::Over(Told::of(&straggler, node, finding)));
        }
        match &mut self.present {
            None => {
                self.tell(&News::Straggler(Told::of(&straggler, node, None)))?;
                let (asked, finding, told_cause) = (None, None, false);
                self.present = Some(Present { straggler, since: now, asked, finding, told_cause });
            }
            Some(present) => {
                if present.straggler.rank != straggler.rank {
                    // Seen better: somebody else came late.
                    present.finding = None;
                    present.told_cause = false;
                    present.asked = None;
                    present.since = now;
                    self.tell(&News::Straggler(Told::of(&straggler, node, None)))?;
                }
                if let Some(present) = &mut self.present {
                    present.straggler = straggler;
                }
            }
        }
        self.ask(now)
    }

    /// Asks the late rank's node for the cause, once its rows have settled, until it knows.
    fn ask(&mut self, now: Ns) -> Result<()> {
        let Some(present) = &self.present else { return Ok(()) };
        if present.told_cause
            || present.asked.is_some()
            || now < present.since.saturating_add(SETTLED)
        {
            return Ok(());
        }
        let (Some(rank), seqs) = (present.straggler.rank, present.straggler.seqs) else {
            return Ok(());
        };
        let Some((n, _)) = self.node_of(Some(rank)) else { return Ok(()) };
        self.asked += 1;
        let ask = Ask { id: self.asked, rank, first_seq: seqs.0, last_seq: seqs.1 };
        let line = serde_json::to_string(&ask)?;
        if let Some(node) = self.nodes.get_mut(&n)
            && writeln!(node.stream, "{line}").is_ok()
            && let Some(present) = &mut self.present
        {
            present.asked = Some(ask.id);
            present.since = now;
        }
        Ok(())
    }
}
