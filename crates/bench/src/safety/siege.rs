//! A besieged correlator: does it still name the rank that comes late, and what does it cost?
//!
//! `gpuwhy watch --join` runs as its own process with the usual limit of 1,024 open files. A thousand nodes,
//! simulated in this process, speak the real protocol over TLS with the code of real nodes. Ranks come late
//! at drawn times; a straggler counts as found if the first that is told of its job while it lasts is that rank, in
//! that run of the job, at those steps. Everything else that is told is a false alarm. The same runs once without
//! attackers and restarts, and once with them.

mod attack;
mod swarm;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_fleet::{Credentials, make_secret, raise_descriptors};
use gpuwhy_schema::terminal;
use serde_json::Value;

use super::Measured;
use crate::program;
use crate::result::Figure;
use crate::trial::Ended;
use attack::Attack;
use swarm::{Episode, Job, Plan, Swarm};

/// Nodes, of one rank each: more than open files without raising the limit.
const NODES: usize = 1024;
/// Ranks of the largest job, and of the others.
const RANKS: (usize, usize) = (256, 32);
/// Stragglers in each of the two runs, and how many of them follow upon a restart of their job.
const EPISODES: usize = 200;
const RESTARTS: usize = 100;
/// How long after the last slow step a straggler may still be told.
const GRACE: Duration = Duration::from_secs(4);

/// Measures recall and cost, with and without a siege.
pub fn run(args: &super::Args) -> Result<Measured> {
    raise_descriptors(16 << 10);
    let jobs = 1 + (NODES - RANKS.0) / RANKS.1;
    let each = args.tries(EPISODES).div_ceil(jobs);
    let calm = siege(each, 0, args.seed, false)?;
    let restarts = RESTARTS * each * jobs / EPISODES.max(each * jobs);
    let besieged = siege(each, restarts, args.seed + 1, true)?;
    let mut figures: BTreeMap<String, Figure> = BTreeMap::new();
    let mut put = |name: &str, figure: Figure| figures.insert(name.into(), figure);
    put("siege_nodes", besieged.connected());
    put("siege_recall", Figure::share(besieged.found, besieged.episodes));
    put("siege_recall_calm", Figure::share(calm.found, calm.episodes));
    put("siege_false_alarms", exactly(besieged.false_alarms, besieged.episodes));
    put("siege_false_alarms_calm", exactly(calm.false_alarms, calm.episodes));
    put("siege_forged_causes", exactly(besieged.forged_causes, besieged.causes));
    put("siege_told_after_s", Figure::of(&besieged.told_after));
    put("siege_rss_mib", besieged.memory());
    put("siege_rss_mib_calm", calm.memory());
    put("siege_cpu_share", Figure { value: besieged.cpu, spread: [calm.cpu, besieged.cpu], n: 2 });
    let attempts = besieged.attempts.iter().map(|(what, n)| format!("{n} {what}"));
    let attempts = attempts.collect::<Vec<_>>().join(", ");
    let mut notes = vec![
        format!("attacks: {attempts}; {} restarts of jobs", besieged.restarts),
        format!(
            "causes told: {}; connections of honest nodes lost: {}",
            besieged.causes, besieged.lost
        ),
    ];
    notes.extend(besieged.missed.iter().chain(&calm.missed).take(12).cloned());
    Ok(Measured { figures, notes, ..Measured::default() })
}

fn exactly(count: usize, n: usize) -> Figure {
    Figure { value: count as f64, spread: [count as f64; 2], n }
}

/// What one run came to.
#[derive(Debug, Default)]
struct Outcome {
    episodes: usize,
    found: usize,
    false_alarms: usize,
    causes: usize,
    forged_causes: usize,
    told_after: Vec<f64>,
    restarts: usize,
    /// Nodes that were connected, once a second; and the peak of the resident memory, MiB.
    nodes: Vec<f64>,
    rss: Vec<f64>,
    /// CPU time of the correlator, as a share of one CPU.
    cpu: f64,
    lost: usize,
    attempts: BTreeMap<&'static str, usize>,
    missed: Vec<String>,
}

impl Outcome {
    /// The least number of nodes at once while stragglers were looked for, with the range.
    fn connected(&self) -> Figure {
        let all = Figure::of(&self.nodes);
        Figure { value: all.spread[0], ..all }
    }

    fn memory(&self) -> Figure {
        let all = Figure::of(&self.rss);
        Figure { value: all.spread[1], ..all }
    }
}

/// The correlator as a process, and what it tells.
struct Center {
    child: Ended,
    address: SocketAddr,
    told: Receiver<(Instant, Value)>,
}

impl Center {
    fn start(key: &std::path::Path) -> Result<Center> {
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -S -n 1024; exec \"$@\"", "sh"])
            .arg(program::gpuwhy())
            .args(["watch", "--json", "--join", "127.0.0.1:0", "--fleet-key"])
            .arg(key)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the correlator")?;
        let told = documents(&mut child)?;
        let complaints = child.stderr.take().ok_or_else(|| anyhow!("no standard error"))?;
        let child = Ended(child);
        let mut lines = BufReader::new(complaints).lines();
        let greeting =
            lines.by_ref().map_while(std::io::Result::ok).find(|line| line.contains("waiting"));
        let address = greeting.as_deref().and_then(|line| line.rsplit(' ').next()?.parse().ok());
        let address = address.context("the correlator did not say where it listens")?;
        // Its complaints are read, so that it never waits for us.
        std::thread::spawn(move || lines.map_while(std::io::Result::ok).for_each(drop));
        Ok(Center { child, address, told })
    }

    fn field(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.0.id())).ok()
    }

    /// The peak of its resident memory, MiB.
    fn peak(&self) -> Option<f64> {
        let status = self.field("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? / 1024.0)
    }

    /// CPU time so far, s.
    fn cpu(&self) -> Option<f64> {
        let stat = self.field("stat")?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        // Fields 14 and 15 of the whole line, in ticks of 10 ms.
        Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / 100.0)
    }
}

fn documents(child: &mut Child) -> Result<Receiver<(Instant, Value)>> {
    let out = child.stdout.take().ok_or_else(|| anyhow!("the correlator has no output"))?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
            let Ok(value) = serde_json::from_str(&line) else { continue };
            if send.send((Instant::now(), value)).is_err() {
                break;
            }
        }
    });
    Ok(receive)
}

/// One run: `each` stragglers in every job, `restarts` restarts over all jobs.
fn siege(each: usize, restarts: usize, seed: u64, attacked: bool) -> Result<Outcome> {
    let keys = tempfile::tempdir()?;
    let (key, other) = (keys.path().join("fleet.key"), keys.path().join("other.key"));
    make_secret(&key)?;
    make_secret(&other)?;
    let center = Center::start(&key)?;
    let credentials = Credentials::Secret(key);
    let plan = Plan { seed, each, restarts };
    let jobs = swarm::jobs(NODES, RANKS, plan);
    let mut swarm = Swarm::connect(center.address, &credentials, jobs)?;
    let began = Instant::now();
    swarm
        .run_until(|swarm| swarm.welcome() == NODES || began.elapsed() > Duration::from_secs(60))?;
    if swarm.welcome() < NODES / 2 {
        bail!("only {} of {NODES} nodes could connect within a minute", swarm.welcome());
    }
    terminal::note(format_args!(
        "  {} nodes connected after {:.1} s",
        swarm.welcome(),
        began.elapsed().as_secs_f64()
    ));
    let attack =
        attacked.then(|| Attack::begin(center.address, credentials, Credentials::Secret(other)));
    let mut outcome = Outcome::default();
    let (from, cpu) = (Instant::now(), center.cpu().unwrap_or(0.0));
    swarm.begin();
    while !swarm.is_over(GRACE) {
        let until = Instant::now() + Duration::from_secs(1);
        swarm.run_until(|_| Instant::now() >= until)?;
        outcome.nodes.push(swarm.welcome() as f64);
        outcome.rss.extend(center.peak());
    }
    outcome.cpu = (center.cpu().unwrap_or(0.0) - cpu) / from.elapsed().as_secs_f64();
    outcome.attempts = attack.map(Attack::end).unwrap_or_default();
    outcome.lost = swarm.lost();
    score(swarm.finished_jobs(), center.told.try_iter().collect(), &mut outcome);
    Ok(outcome)
}

/// Compares what was told with what was done.
fn score(jobs: &[Job], told: Vec<(Instant, Value)>, outcome: &mut Outcome) {
    let mut first: BTreeMap<(usize, usize), (Instant, bool, Value)> = BTreeMap::new();
    let mut epochs = vec![BTreeMap::new(); jobs.len()];
    for (at, event) in told {
        let name = event["job"].as_str().unwrap_or_default();
        let Some(number) = jobs.iter().position(|job| job.name == name) else { continue };
        let job = &jobs[number];
        match event["event"].as_str() {
            Some("straggler") => {
                let within = |e: &Episode| at >= e.from && at <= e.to + GRACE;
                let episode = job.episodes.iter().position(within);
                let right = episode.is_some_and(|episode| {
                    let episode = &job.episodes[episode];
                    is_right(episode, &event) && is_same_run(episode, &event, &mut epochs[number])
                });
                if !right {
                    outcome.false_alarms += 1;
                    outcome.missed.push(format!("false: {}", short(&event)));
                }
                if let Some(episode) = episode {
                    first.entry((number, episode)).or_insert((at, right, event));
                }
            }
            Some("cause") => {
                outcome.causes += 1;
                let honest = event["rank"].as_u64().and_then(|rank| job.node_of(rank));
                let says = event["finding"]["summary"].as_str();
                outcome.forged_causes += usize::from(honest.is_none() || says != honest.as_deref());
            }
            _ => {}
        }
    }
    for (number, job) in jobs.iter().enumerate() {
        outcome.restarts += job.restarts;
        for (n, episode) in job.episodes.iter().enumerate() {
            outcome.episodes += 1;
            match first.get(&(number, n)) {
                Some((at, true, _)) => {
                    outcome.found += 1;
                    outcome.told_after.push(at.duration_since(episode.from).as_secs_f64());
                }
                Some((_, false, event)) => outcome.missed.push(format!(
                    "{}: rank {} epoch {} {:?}: told {}",
                    job.name,
                    episode.rank,
                    episode.epoch,
                    episode.seqs,
                    short(event)
                )),
                None => outcome.missed.push(format!(
                    "{}: rank {} epoch {} {:?}: nothing was told",
                    job.name, episode.rank, episode.epoch, episode.seqs
                )),
            }
        }
    }
}

/// Whether the epoch that was told is the one of this run of the job: the correlator may count runs that liars
/// made up, but ours must be told apart, and in their order.
fn is_same_run(episode: &Episode, event: &Value, known: &mut BTreeMap<u32, u64>) -> bool {
    let Some(told) = event["epoch"].as_u64() else { return false };
    let before = known.range(..episode.epoch).next_back().map(|(_, told)| *told);
    let ours = *known.entry(episode.epoch).or_insert(told);
    ours == told && before.is_none_or(|before| before < told) && told >= u64::from(episode.epoch)
}

fn short(event: &Value) -> String {
    format!(
        "{} epoch {} rank {} seqs {} ({})",
        event["job"], event["epoch"], event["rank"], event["seqs"], event["slowness"]
    )
}

/// Whether it is this rank, at these steps.
fn is_right(episode: &Episode, event: &Value) -> bool {
    let seqs = (event["seqs"][0].as_u64(), event["seqs"][1].as_u64());
    let (Some(first), Some(last)) = seqs else { return false };
    event["rank"] == episode.rank
        // One step before may be slower by chance.
        && first + 2 >= episode.seqs.0
        && last <= episode.seqs.1 + 2
}
