//! An unmodified Redis, its function `beforeSleep` as the step, disturbed by a CPU hog and then by
//! a disk hog, both Debian's own programs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpuwhy_collect::{Config, Target, UprobeStep};
use gpuwhy_schema::terminal;
use serde::Serialize;

use super::result::{self, Figure, Made};
use super::trial::{self, Effect, Ended};
use crate::program;
use gpuwhy_engine::launch;
use gpuwhy_engine::record::Recording;
use gpuwhy_engine::{TraceSource, analyse};

/// Arguments of `bench server`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The function of redis-server that is a step: it writes and syncs what was received.
    #[arg(long, default_value = "beforeSleep")]
    symbol: String,
    /// Seconds of undisturbed load.
    #[arg(long, default_value_t = 8)]
    before: u64,
    /// Seconds of disturbance.
    #[arg(long, default_value_t = 8)]
    during: u64,
    /// A folder on a disk, for the server's files and the disk hog's.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work_dir: PathBuf,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/server.json")]
    output: PathBuf,
    /// Where the recordings go.
    #[arg(long, default_value = "target/server")]
    traces: PathBuf,
}

const PORT: &str = "6399";

#[derive(Serialize)]
struct Outcome {
    hog: &'static str,
    expected: &'static str,
    effects: Vec<Effect>,
    class: String,
    culprit: Option<String>,
    culprit_is_the_hog: bool,
    excess_ms: f64,
    unexplained_ms: f64,
    confidence: f64,
    summary: String,
    valid: bool,
}

#[derive(Serialize)]
struct Results {
    made: Made,
    figures: std::collections::BTreeMap<&'static str, Figure>,
    step: String,
    outcomes: Vec<Outcome>,
}

/// A hog: what runs, what it is called, what a verdict should say.
struct Hog {
    name: &'static str,
    class: &'static str,
    /// Part of the comm that a culprit must have.
    comm: &'static str,
    start: fn(&Path, u64) -> Command,
}

const HOGS: &[Hog] = &[
    Hog {
        name: "CPU hog (stress-ng --cpu 3 on the server's CPU)",
        class: "cpu_contention",
        comm: "stress-ng",
        start: |_, seconds| {
            let mut command = Command::new("stress-ng");
            command.args(["--cpu", "3", "--taskset", "0", "--timeout", &format!("{seconds}s")]);
            command
        },
    },
    Hog {
        name: "disk hog (fio, 64 O_DIRECT writes of 1 MiB at once)",
        class: "block_io",
        comm: "fio",
        start: |folder, seconds| {
            let mut command = Command::new("fio");
            command.args(["--name=hog", "--rw=write", "--bs=1m", "--direct=1", "--size=512m"]);
            command.args(["--ioengine=libaio", "--iodepth=64", "--time_based", "--thread"]);
            command.arg(format!("--runtime={seconds}"));
            command.arg(format!("--filename={}", folder.join("hog.data").display()));
            command
        },
    },
];

fn quiet(command: &mut Command) -> Result<Ended> {
    let name = format!("{:?}", command.get_program());
    let child: Child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {name}; scripts/setup.sh bench installs it"))?;
    Ok(Ended(child))
}

/// Runs both and prints the verdicts.
pub fn run(args: &Args) -> Result<ExitCode> {
    let binary = std::fs::canonicalize("/usr/bin/redis-server")
        .context("there is no /usr/bin/redis-server; scripts/setup.sh bench installs it")?;
    let folder: PathBuf = args.work_dir.join(format!("gpuwhy-server-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut outcomes = Vec::new();
    for (n, hog) in HOGS.iter().enumerate() {
        terminal::say(format_args!("== {}", hog.name))?;
        let path = args.traces.join(format!("redis-{n}.trace"));
        std::fs::create_dir_all(&args.traces)?;
        // A folder for each: the server would read the other's log first.
        let own = folder.join(n.to_string());
        std::fs::create_dir_all(&own)?;
        let outcome = one(&binary, &own, &path, hog, args)?;
        outcomes.push(outcome);
    }
    let _ = std::fs::remove_dir_all(&folder);
    let class = outcomes.iter().filter(|o| o.class == o.expected).count();
    let culprit = outcomes.iter().filter(|o| o.culprit_is_the_hog).count();
    let figures = [
        ("class_right", Figure::share(class, outcomes.len())),
        ("culprit_right", Figure::share(culprit, outcomes.len())),
    ]
    .into();
    let right = class == outcomes.len() && culprit == outcomes.len();
    let step = format!("uprobe:{}:{}", binary.display(), args.symbol);
    result::write(&args.output, &Results { made: Made::now(), figures, step, outcomes })?;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn one(binary: &Path, folder: &Path, path: &Path, hog: &Hog, args: &Args) -> Result<Outcome> {
    let mut server = Command::new("taskset");
    // The binary looks at the name that it was called by.
    server.args(["-c", "0", "/usr/bin/redis-server", "--port", PORT, "--dir"]).arg(folder);
    // Every write is synced before its reply, so that the disk is in the path.
    server.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
    let server = quiet(&mut server)?;
    let up = Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(format!("127.0.0.1:{PORT}")).is_err() {
        if Instant::now() > up {
            bail!("redis-server did not come up");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut load = Command::new("taskset");
    load.args(["-c", "1", "redis-benchmark", "-p", PORT, "-t", "set", "-c", "4", "-d", "512"]);
    let _load = quiet(load.args(["-n", "100000000", "-q"]))?;
    let config = Config {
        targets: vec![Target::Pid(server.0.id() as i32)],
        steps: vec![UprobeStep { binary: binary.into(), symbol: args.symbol.clone() }],
        ..Config::default()
    };
    launch::make_room(path, true)?;
    let mut recording = Recording::start(path, config, None)?;
    recording.run_for(Duration::from_secs(args.before))?;
    let onset = gpuwhy_collect::now();
    {
        let _hog = quiet(&mut (hog.start)(folder, args.during + 2))?;
        recording.run_for(Duration::from_secs(args.during))?;
    }
    let end = gpuwhy_collect::now();
    let summary = recording.finish()?;
    let source = TraceSource::open(path)?;
    let analysis = analyse(&source, &Default::default())?;
    Command::new(program::gpuwhy())
        .arg("diagnose")
        .arg(path)
        .status()
        .context("cannot run gpuwhy")?;
    terminal::say(format_args!("{} events, {} lost", summary.events, summary.dropped))?;
    let effects = trial::effects(&analysis.units.steps, i64::MIN, onset.0, end.0);
    for e in &effects {
        terminal::say(format_args!(
            "measured: {} {:.3} ms before, {:.3} ms during",
            e.name, e.before_ms, e.during_ms
        ))?;
    }
    let finding = analysis.findings.iter().find(|f| f.from_ns < end.0 && f.to_ns > onset.0);
    let culprit = finding.and_then(|f| f.culprit.as_ref());
    Ok(Outcome {
        hog: hog.name,
        expected: hog.class,
        effects,
        class: finding.map_or("nothing".into(), |f| f.class.to_string()),
        culprit_is_the_hog: culprit
            .and_then(|c| c.comm.as_deref())
            .is_some_and(|comm| comm.contains(hog.comm)),
        culprit: culprit.map(ToString::to_string),
        excess_ms: finding.map_or(0.0, |f| f.excess_ms),
        unexplained_ms: finding.map_or(0.0, |f| f.unexplained_ms),
        confidence: finding.map_or(0.0, |f| f.confidence),
        summary: finding.map_or(String::new(), |f| f.summary.clone()),
        valid: gpuwhy_store::validate(source.trace()).is_valid(),
    })
}
