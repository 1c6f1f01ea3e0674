//! A thousand honest nodes on one thread, and the jobs whose ranks they run.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_fleet::protocol::{LINE, NodeMessage, RankStep, line};
use gpuwhy_fleet::{Channel, ClientTls, Credentials, Lines, Session};
use gpuwhy_schema::Ns;
use mio::{Events, Poll, Token};
use serde_json::json;

/// How long a usual step takes.
const STEP: Duration = Duration::from_millis(100);
/// Steps before the first straggler, and of a cycle: usual, slow, usual again.
const WARM_UP: u64 = 80;
const CYCLE: [u64; 3] = [50, 30, 35];
/// At which step of a cycle its job is restarted, and for how many steps it then stands still.
const RESTART: (u64, u64) = (22, 10);
/// Connections that are begun at once.
const CONNECTING: usize = 128;

/// What is to happen.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Of all that is drawn.
    pub seed: u64,
    /// Stragglers in each job.
    pub each: usize,
    /// Restarts over all jobs.
    pub restarts: usize,
}

/// A rank that came late.
#[derive(Clone, Debug)]
pub struct Episode {
    pub rank: u32,
    pub epoch: u32,
    /// The first and the last late step.
    pub seqs: (u64, u64),
    /// When they were reported.
    pub from: Instant,
    pub to: Instant,
}

/// Ranks that make steps together.
pub struct Job {
    pub name: String,
    /// Those that have begun.
    pub episodes: Vec<Episode>,
    pub restarts: usize,
    first_node: usize,
    ranks: usize,
    random: u64,
    /// For each cycle, whether the job is restarted in it.
    cycles: Vec<bool>,
    /// Steps so far, those in which it stood still included.
    ticks: u64,
    seq: u64,
    epoch: u32,
    pause: u64,
    late: u32,
    due: Option<Instant>,
}

/// Jobs for `nodes` nodes: one of `ranks.0` ranks, and others of `ranks.1`.
pub fn jobs(nodes: usize, ranks: (usize, usize), plan: Plan) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut first_node = 0;
    while first_node < nodes {
        let ranks = if jobs.is_empty() { ranks.0 } else { ranks.1 }.min(nodes - first_node);
        jobs.push(Job {
            name: format!("job{}", jobs.len()),
            episodes: Vec::new(),
            restarts: 0,
            first_node,
            ranks,
            random: plan.seed ^ (jobs.len() as u64) << 32,
            cycles: vec![false; plan.each],
            ticks: 0,
            seq: 0,
            epoch: 0,
            pause: 0,
            late: 0,
            due: None,
        });
        first_node += ranks;
    }
    let (count, all) = (jobs.len(), jobs.len() * plan.each);
    for n in 0..plan.restarts.min(all) {
        let at = n * all / plan.restarts;
        jobs[at % count].cycles[at / count] = true;
    }
    jobs
}

impl Job {
    /// What the node of a rank answers.
    pub fn node_of(&self, rank: u64) -> Option<String> {
        (rank < self.ranks as u64).then(|| name_of(self.first_node + rank as usize))
    }

    /// A number from 0 to 1, by SplitMix64.
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }

    fn is_over(&self) -> bool {
        self.ticks >= WARM_UP + self.cycles.len() as u64 * CYCLE.iter().sum::<u64>()
    }

    /// The next step of all ranks; none while the job is being restarted.
    fn step(&mut self, now: Instant) -> Vec<RankStep> {
        let tick = self.ticks;
        self.ticks += 1;
        if self.pause > 0 {
            self.pause -= 1;
            return Vec::new();
        }
        let length: u64 = CYCLE.iter().sum();
        let at = tick.checked_sub(WARM_UP).map(|since| (since / length, since % length));
        let at = at.filter(|(cycle, _)| (*cycle as usize) < self.cycles.len());
        if let Some((cycle, RESTART_AT)) = at
            && self.cycles[cycle as usize]
        {
            (self.seq, self.pause) = (0, RESTART.1);
            self.epoch += 1;
            self.restarts += 1;
            return Vec::new();
        }
        let slow = at.is_some_and(|(_, at)| at >= CYCLE[0] && at < CYCLE[0] + CYCLE[1]);
        if slow {
            self.note_episode(at.is_some_and(|(_, at)| at == CYCLE[0]), now);
        }
        let own: Vec<f64> = (0..self.ranks as u32)
            .map(|rank| {
                60.0 + 3.0 * self.draw() + if slow && rank == self.late { 40.0 } else { 0.0 }
            })
            .collect();
        let slowest = own.iter().copied().fold(0.0, f64::max) + 5.0 + self.draw();
        let seq = self.seq;
        self.seq += 1;
        let ns = |ms: f64| (ms * 1e6) as i64;
        let step = |(rank, own): (usize, &f64)| RankStep {
            rank: rank as u32,
            seq,
            name: "step".into(),
            size: None,
            dur_ns: ns(slowest),
            waited_ns: ns(slowest - own),
            phases: vec![("load".into(), ns(own / 3.0)), ("compute".into(), ns(own / 1.5))],
        };
        own.iter().enumerate().map(step).collect()
    }

    fn note_episode(&mut self, first: bool, now: Instant) {
        if first {
            self.late = (self.draw() * self.ranks as f64) as u32 % self.ranks as u32;
            let (rank, epoch, seqs) = (self.late, self.epoch, (self.seq, self.seq));
            self.episodes.push(Episode { rank, epoch, seqs, from: now, to: now });
        }
        if let Some(episode) = self.episodes.last_mut() {
            (episode.seqs.1, episode.to) = (self.seq, now);
        }
    }
}

const RESTART_AT: u64 = RESTART.0;

/// The name of a node.
pub fn name_of(node: usize) -> String {
    format!("node{node:04}")
}

/// A node: its connection, while it has one.
struct Node {
    connection: Option<(Channel, Session, Lines)>,
    retry: Instant,
}

/// All nodes.
pub struct Swarm {
    address: SocketAddr,
    tls: ClientTls,
    poll: Poll,
    events: Events,
    nodes: Vec<Node>,
    jobs: Vec<Job>,
    began: Instant,
    running: bool,
    lost: usize,
    ticked: Instant,
    bytes: Vec<u8>,
}

impl Swarm {
    /// Begins to connect them.
    pub fn connect(address: SocketAddr, keys: &Credentials, jobs: Vec<Job>) -> Result<Swarm> {
        let tls = keys.client(&address.to_string())?;
        let count = jobs.iter().map(|job| job.ranks).sum();
        let began = Instant::now();
        Ok(Swarm {
            address,
            tls,
            poll: Poll::new().context("cannot wait for connections")?,
            events: Events::with_capacity(1024),
            nodes: (0..count).map(|_| Node { connection: None, retry: began }).collect(),
            jobs,
            began,
            running: false,
            lost: 0,
            ticked: began,
            bytes: Vec::new(),
        })
    }

    fn now(&self) -> Ns {
        Ns::secs(1).saturating_add(Ns(self.began.elapsed().as_nanos() as i64))
    }

    /// How many nodes the correlator takes now.
    pub fn welcome(&self) -> usize {
        let welcome = |node: &&Node| node.connection.as_ref().is_some_and(|c| c.1.is_welcome());
        self.nodes.iter().filter(welcome).count()
    }

    /// How many connections were lost.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// Whether all stragglers are over, for so long.
    pub fn is_over(&self, since: Duration) -> bool {
        let over = |job: &Job| {
            job.is_over() && job.episodes.last().is_none_or(|last| last.to.elapsed() >= since)
        };
        self.jobs.iter().all(over)
    }

    /// The jobs with what happened in them.
    pub fn finished_jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Has the jobs begin, one after the other within a step's time.
    pub fn begin(&mut self) {
        self.running = true;
        let (now, count) = (Instant::now(), self.jobs.len() as u32);
        for (n, job) in self.jobs.iter_mut().enumerate() {
            job.due = Some(now + STEP * n as u32 / count);
        }
    }

    /// Goes on until `done`.
    pub fn run_until(&mut self, done: impl Fn(&Swarm) -> bool) -> Result<()> {
        while !done(self) {
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        let wait = Some(Duration::from_millis(2));
        match self.poll.poll(&mut self.events, wait) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                return Err(error).context("cannot wait for connections");
            }
            _ => {}
        }
        let mut ready = Vec::new();
        for event in &self.events {
            let node = event.token().0;
            if let Some((channel, ..)) = &mut self.nodes[node].connection {
                channel.ready(event);
                ready.push(node);
            }
        }
        for node in ready {
            self.drive(node);
        }
        self.make_steps();
        if self.ticked.elapsed() >= Duration::from_millis(50) {
            self.ticked = Instant::now();
            self.keep_connections();
        }
        Ok(())
    }

    fn make_steps(&mut self) {
        let now = Instant::now();
        for number in 0..self.jobs.len() {
            let job = &mut self.jobs[number];
            let Some(due) = job.due.filter(|due| *due <= now && !job.is_over()) else { continue };
            job.due = Some(due + STEP);
            let (steps, first) = (job.step(now), job.first_node);
            let name = job.name.clone();
            for (rank, step) in steps.into_iter().enumerate() {
                let message =
                    NodeMessage::Steps { job: name.clone(), steps: vec![step], dropped: 0 };
                self.say(first + rank, &message);
            }
        }
    }

    /// Sends a message, if the node is connected.
    fn say(&mut self, node: usize, message: &NodeMessage) {
        let now = self.now();
        let Some((channel, session, _)) = &mut self.nodes[node].connection else { return };
        if session.is_welcome()
            && let Some(line) = line(message, LINE)
        {
            channel.send(&line);
            session.sent(now);
        }
        if channel.flush().is_err() {
            self.lose(node);
        }
    }

    fn lose(&mut self, node: usize) {
        let welcome = self.nodes[node].connection.take().is_some_and(|c| c.1.is_welcome());
        self.lost += usize::from(welcome);
        self.nodes[node].retry = Instant::now() + Duration::from_millis(500);
    }

    /// Connects those that are not, some at a time, and lets time pass for the others.
    fn keep_connections(&mut self) {
        let now = self.now();
        let is_connecting =
            |node: &&Node| node.connection.as_ref().is_some_and(|c| !c.1.is_welcome());
        let mut connecting = self.nodes.iter().filter(is_connecting).count();
        for number in 0..self.nodes.len() {
            let may_try = self.nodes[number].retry <= Instant::now();
            match &mut self.nodes[number].connection {
                Some((channel, session, _)) => {
                    let due = session.tick(now);
                    if let Ok(Some(line)) = &due {
                        channel.send(line);
                    }
                    if due.is_err() || channel.flush().is_err() {
                        self.lose(number);
                    }
                }
                None if connecting < CONNECTING && may_try => {
                    connecting += 1;
                    self.open(number, now);
                }
                None => {}
            }
        }
    }

    fn open(&mut self, number: usize, now: Ns) {
        let name = name_of(number);
        let session = Session::new(&name, &format!("session of {name}"), now);
        let opened = self.tls.connect(self.address).and_then(|mut channel| {
            channel.register(self.poll.registry(), Token(number))?;
            channel.send(session.hello());
            Ok(channel)
        });
        match opened {
            Ok(channel) => {
                self.nodes[number].connection = Some((channel, session, Lines::default()));
            }
            Err(_) => self.nodes[number].retry = Instant::now() + Duration::from_millis(500),
        }
    }

    /// Reads what the correlator says, and answers.
    fn drive(&mut self, node: usize) {
        let now = self.now();
        let Some((channel, session, lines)) = &mut self.nodes[node].connection else { return };
        self.bytes.clear();
        let got = channel.read(64 << 10, &mut self.bytes);
        lines.push(&self.bytes);
        let mut questions = Vec::new();
        let mut broken = !matches!(&got, Ok(progress) if !progress.ended);
        loop {
            match lines.next_line(session.longest_line()) {
                Ok(Some(line)) => match session.line(line, now) {
                    Ok(question) => questions.extend(question),
                    Err(_) => broken = true,
                },
                Ok(None) => break,
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        if broken || channel.flush().is_err() {
            return self.lose(node);
        }
        for question in questions {
            let finding =
                json!({"outcome": "decided", "class": "cpu_contention", "summary": name_of(node)});
            self.say(node, &NodeMessage::Answer { id: question.id, finding: Some(finding) });
        }
    }
}
