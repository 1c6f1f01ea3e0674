//! Three nodes as network namespaces, each with a `watch` of its own, and one correlator: a fault on
//! one node must be named at the centre, by rank, cause and culprit, however wrong their clocks are.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_schema::terminal;
use gpuwhy_testkit::inject::{Injector, Kind, Label, Placement, Spec};
use gpuwhy_testkit::steploop::Ready;
use serde::Serialize;
use serde_json::Value;

use super::result::{self, Figure, Made};
use super::trial::Ended;
use crate::program;

/// Arguments of `bench nodes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Trials of each fault.
    #[arg(long, default_value_t = 3)]
    trials: u32,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/nodes.json")]
    output: PathBuf,
    /// Where the traces go.
    #[arg(long, default_value = "target/live")]
    traces: PathBuf,
}

const NODES: usize = 3;
const PORT: u16 = 7791;
/// How wrong each node's clock is, s.
const SKEWS: [i64; NODES] = [0, 7, -13];

/// Faults, and the ranks that may come late for it: those on the CPU of rank 0, with two CPUs.
fn faults() -> Vec<(Kind, Vec<Option<i64>>)> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let beside =
        (0..NODES as i64).filter(|r| (*r as usize).is_multiple_of(cpus)).map(Some).collect();
    vec![
        (Kind::Sigstop, vec![Some(1)]),
        (Kind::CpuHog, beside),
        (Kind::SlowCode, vec![Some(0)]),
        (Kind::LinkCap, vec![None]),
    ]
}

#[derive(Serialize)]
struct Row {
    fault: String,
    trial: u32,
    class: String,
    rank_said: Option<i64>,
    node_said: Option<String>,
    slowness: String,
    class_said: String,
    culprit_said: Option<String>,
    straggler_after_s: Option<f64>,
    cause_after_s: Option<f64>,
    rank_right: bool,
    class_right: bool,
    culprit_right: Option<bool>,
}

#[derive(Serialize)]
struct Results {
    made: Made,
    figures: BTreeMap<&'static str, Figure>,
    trials: Vec<Row>,
}

/// A network namespace with a link to ours; it goes away with its last holder.
struct Node {
    name: String,
    here: String,
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("cannot run ip")?;
    if !output.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

impl Node {
    fn new(n: usize) -> Result<Node> {
        let (id, link) = (std::process::id(), format!("gw{n}p{}", std::process::id() % 10_000));
        let name = format!("gpuwhy-node{n}-{id}");
        ip(&["netns", "add", &name])?;
        let node = Node { name, here: format!("10.78.{n}.1") };
        let there = format!("10.78.{n}.2/30");
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &node.name])?;
        ip(&["addr", "add", &format!("{}/30", node.here), "dev", &link])?;
        ip(&["link", "set", &link, "up"])?;
        ip(&["-n", &node.name, "addr", "add", &there, "dev", "eth0"])?;
        ip(&["-n", &node.name, "link", "set", "eth0", "up"])?;
        Ok(node)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The link goes with its other end.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn documents(child: &mut Child) -> Result<Receiver<(Instant, Value)>> {
    let out = child.stdout.take().ok_or_else(|| anyhow!("the child has no output"))?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let Ok(value) = serde_json::from_str(&line) else { continue };
            if send.send((Instant::now(), value)).is_err() {
                break;
            }
        }
    });
    Ok(receive)
}

/// The correlator, the nodes and the workload over them, ended with the value.
struct Cluster {
    events: Receiver<(Instant, Value)>,
    workload: Ready,
    _ended: Vec<Ended>,
    _keys: tempfile::TempDir,
    _rings: Vec<RingFile>,
    _nodes: Vec<Node>,
}

/// Runs the trials.
pub fn run(args: &Args) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.traces)?;
    let cluster = Cluster::start(args)?;
    std::thread::sleep(Duration::from_secs(12));
    let mut trials = Vec::new();
    for trial in 0..args.trials {
        for (kind, ranks) in faults() {
            let row = cluster.trial(kind, trial, &ranks)?;
            print_row(&row)?;
            trials.push(row);
            std::thread::sleep(Duration::from_secs(6));
        }
    }
    let figures = figures(&trials);
    for (name, f) in &figures {
        terminal::say(format_args!(
            "{name}: {:.3} [{:.3}, {:.3}] of {}",
            f.value, f.spread[0], f.spread[1], f.n
        ))?;
    }
    let right = trials.iter().all(|r| r.rank_right && r.class_right);
    result::write(&args.output, &Results { made: Made::now(), figures, trials })?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Cluster {
    fn start(args: &Args) -> Result<Cluster> {
        let gpuwhy = program::gpuwhy();
        let keys = tempfile::tempdir()?;
        let key = keys.path().join("fleet.key");
        gpuwhy_fleet::make_secret(&key)?;
        let mut correlator = Command::new(&gpuwhy)
            .args(["watch", "--json", "--join", &format!("0.0.0.0:{PORT}"), "--fleet-key"])
            .arg(&key)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let events = documents(&mut correlator)?;
        let mut ended = vec![Ended(correlator)];
        let nodes: Vec<Node> = (0..NODES).map(Node::new).collect::<Result<_>>()?;
        let shm = Path::new("/dev/shm");
        let ring = |n: usize| shm.join(format!("gpuwhy-nodes-{}-{n}", std::process::id()));
        let rings: Vec<RingFile> = (0..NODES).map(|n| RingFile(ring(n))).collect();
        for (n, node) in nodes.iter().enumerate() {
            let child = Command::new("ip")
                .args(["netns", "exec", &node.name])
                .arg(&gpuwhy)
                .args(["watch", "--force", "--json", "--node", &format!("node{n}")])
                .args(["--to", &format!("{}:{PORT}", node.here), "--fleet-key"])
                .arg(&key)
                .arg(format!("--skew={}", SKEWS[n]))
                .arg("--ring")
                .arg(ring(n))
                .arg("-o")
                .arg(args.traces.join(format!("node{n}.trace")))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            ended.push(Ended(child));
        }
        let by = Instant::now() + Duration::from_secs(30);
        while !(0..NODES).all(|n| ring(n).exists()) {
            if Instant::now() > by {
                bail!("not all nodes have begun to watch");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut workload = Command::new(program::own()?)
            .args(["steploop", "--ranks", &NODES.to_string(), "--ring"])
            .arg(shm.join(format!("gpuwhy-nodes-{}-{{rank}}", std::process::id())))
            .stdout(Stdio::piped())
            .spawn()?;
        let first = documents(&mut workload)?;
        ended.push(Ended(workload));
        let (_, ready) = first
            .recv_timeout(Duration::from_secs(60))
            .context("the workload was not ready within a minute")?;
        let workload = serde_json::from_value(ready).context("cannot understand the workload")?;
        // What uses a node ends before it: fields are dropped in their order.
        ended.reverse();
        Ok(Cluster { events, workload, _ended: ended, _keys: keys, _rings: rings, _nodes: nodes })
    }

    /// One fault, and what the correlator said meanwhile.
    fn trial(&self, kind: Kind, trial: u32, ranks: &[Option<i64>]) -> Result<Row> {
        while self.events.try_recv().is_ok() {}
        let from = Instant::now();
        let spec = Spec {
            kind,
            after: 0.0,
            seconds: 5.0,
            intensity: 1.0,
            placement: Placement::Other,
            target: self.workload.clone(),
        };
        let label = Injector::start(spec)?.finish()?;
        std::thread::sleep(Duration::from_secs(5));
        Ok(judge(kind, trial, &label, ranks, from, self.events.try_iter().collect()))
    }
}

fn print_row(row: &Row) -> std::io::Result<()> {
    let right = row.rank_right && row.class_right && row.culprit_right != Some(false);
    terminal::say(format_args!(
        "{:<12} rank {:?} ({}), {}, {} by {:?}: {}",
        row.fault,
        row.rank_said,
        row.node_said.as_deref().unwrap_or("-"),
        row.slowness,
        row.class_said,
        row.culprit_said,
        if right { "ok" } else { "WRONG" }
    ))
}

fn figures(trials: &[Row]) -> BTreeMap<&'static str, Figure> {
    let share = |of: &dyn Fn(&Row) -> Option<bool>| {
        let all: Vec<bool> = trials.iter().filter_map(of).collect();
        Figure::share(all.iter().filter(|hit| **hit).count(), all.len())
    };
    let seconds = |of: &dyn Fn(&Row) -> Option<f64>| {
        Figure::of(&trials.iter().filter_map(of).collect::<Vec<_>>())
    };
    [
        ("rank_right", share(&|r| Some(r.rank_right))),
        ("class_right", share(&|r| Some(r.class_right))),
        ("culprit_right", share(&|r| r.culprit_right)),
        ("straggler_after_s", seconds(&|r| r.straggler_after_s)),
        ("cause_after_s", seconds(&|r| r.cause_after_s)),
    ]
    .into()
}

struct RingFile(std::path::PathBuf);

impl Drop for RingFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What the centre said during one fault. Where nobody comes late no node is asked, and what counts
/// is that nobody was accused.
fn judge(
    kind: Kind,
    trial: u32,
    label: &Label,
    ranks: &[Option<i64>],
    from: Instant,
    events: Vec<(Instant, Value)>,
) -> Row {
    let of = |event: &str| events.iter().rfind(|(_, v)| v["event"] == event);
    let first = |event: &str| events.iter().find(|(_, v)| v["event"] == event);
    let last = of("over").or_else(|| of("cause")).or_else(|| of("straggler"));
    let value = last.map_or(&Value::Null, |(_, v)| v);
    let finding = &value["finding"];
    let pid = finding["culprit"]["pid"].as_i64();
    let nobody = ranks == [None];
    let class = label.class.clone().unwrap_or_default();
    let class_said = finding["class"].as_str().unwrap_or("-").to_string();
    let slowness = value["slowness"].as_str().unwrap_or("-").to_string();
    let rank_said = value["rank"].as_i64();
    // The preparations of an injector are not the fault: its onset is later than its start.
    let after = |found: Option<&(Instant, Value)>| {
        found.map(|(at, _)| at.duration_since(from).as_secs_f64())
    };
    Row {
        fault: kind.name().into(),
        trial,
        rank_right: last.is_some() && ranks.contains(&rank_said),
        class_right: if nobody { slowness == "communication-slow" } else { class_said == class },
        culprit_right: label.culprit_pid.map(|truth| pid == Some(i64::from(truth))),
        class,
        rank_said,
        node_said: value["node"].as_str().map(str::to_owned),
        slowness,
        class_said,
        culprit_said: finding["culprit"]["comm"].as_str().map(str::to_owned),
        straggler_after_s: after(first("straggler")),
        cause_after_s: after(first("cause")),
    }
}
