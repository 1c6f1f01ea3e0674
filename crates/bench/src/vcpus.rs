//! `bench vcpus`: real virtual machines under KVM on one CPU, a thread of the host among them, and a machine that halts
//! on another; recorded by `gpuwhy record`, judged by `gpuwhy vgpu`, and compared with what the kernel counted of each
//! virtual CPU's thread (`ru_nivcsw`) and with where each was pinned.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gpuwhy_engine::parse_duration;
use gpuwhy_schema::terminal;
use gpuwhy_testkit::sys;
use gpuwhy_testkit::vms::{self, Kind, Ran, Task};
use serde::Serialize;
use serde_json::Value;

use crate::program;
use crate::result::{self, Figure, Made};

/// Arguments of `bench vcpus`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Recordings.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// How long each is.
    #[arg(long = "for", default_value = "5s", value_parser = parse_duration)]
    duration: Duration,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/vcpus.json")]
    output: PathBuf,
}

/// Arguments of `__machines`.
#[derive(Debug, clap::Args)]
pub struct MachinesArgs {
    /// How long they run
    #[arg(long = "for", default_value = "5s", value_parser = parse_duration)]
    duration: Duration,
    /// What runs, CPU:spins, CPU:halts or CPU:hog
    #[arg(required = true)]
    tasks: Vec<Task>,
}

/// What came of a recording.
#[derive(Clone, Debug, Default, Serialize)]
struct Round {
    /// Preemptions that were found less those that the kernel counted, by machine.
    off_by: Vec<i64>,
    /// Preemptions that the kernel counted of machines that spin.
    counted: Vec<u64>,
    /// Preemptions that were found of the machine that halts.
    of_halting: u64,
    /// Its halts.
    halts: u64,
    /// Preemptions, directly or in the end, by a machine on another CPU.
    elsewhere: u64,
    /// Preemptions by nobody that is known.
    by_nobody: u64,
    /// Preemptions in the end by the other machine that spins, share.
    by_neighbour: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    made: Made,
    figures: BTreeMap<&'static str, Figure>,
    rounds: Vec<Round>,
}

/// Runs machines and prints what the kernel counted of each, a line of JSON.
pub fn machines(args: &MachinesArgs) -> Result<ExitCode> {
    let of = |task: &Task| Task { seconds: args.duration.as_secs_f64(), ..task.clone() };
    let tasks: Vec<Task> = args.tasks.iter().map(of).collect();
    terminal::say(serde_json::to_string(&vms::together(&tasks)?)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Records, judges and compares.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(reason) = vms::refusal().or_else(program::cannot_record) {
        terminal::fail(format_args!("gpuwhy: {reason}"));
        return Ok(ExitCode::FAILURE);
    }
    let cpus = sys::cpus();
    ensure!(cpus.len() > 1, "virtual machines and recorder need a CPU each");
    // Only this thread starts processes, and they are where it is.
    sys::pin(cpus[1]).context("cannot run on a CPU of our own")?;
    let mut rounds = Vec::new();
    for at in 0..args.rounds {
        rounds.push(round(args.duration, cpus[0], cpus[1])?);
        terminal::status(format_args!("{} of {}", at + 1, args.rounds));
    }
    terminal::status("");
    let figures = figures(&rounds);
    for (name, figure) in &figures {
        let [least, most] = figure.spread;
        terminal::say(format_args!(
            "{name:<20} {:.3} ({least:.3} to {most:.3}, n {})",
            figure.value, figure.n
        ))?;
    }
    result::write(&args.output, &Results { made: Made::now(), figures, rounds })?;
    Ok(ExitCode::SUCCESS)
}

fn figures(rounds: &[Round]) -> BTreeMap<&'static str, Figure> {
    let of =
        |value: &dyn Fn(&Round) -> f64| Figure::of(&rounds.iter().map(value).collect::<Vec<_>>());
    let all = |values: &dyn Fn(&Round) -> Vec<f64>| {
        Figure::of(&rounds.iter().flat_map(values).collect::<Vec<_>>())
    };
    BTreeMap::from([
        ("off_by", all(&|one| one.off_by.iter().map(|n| *n as f64).collect())),
        ("counted", all(&|one| one.counted.iter().map(|n| *n as f64).collect())),
        ("of_halting", of(&|one| one.of_halting as f64)),
        ("halts", of(&|one| one.halts as f64)),
        ("elsewhere", of(&|one| one.elsewhere as f64)),
        ("by_nobody", of(&|one| one.by_nobody as f64)),
        ("by_neighbour", of(&|one| one.by_neighbour)),
    ])
}

/// Two machines that spin and a thread of the host on one CPU; one that halts, and the recorder, on another.
fn round(duration: Duration, busy: usize, calm: usize) -> Result<Round> {
    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("t.trace");
    let mut record = Command::new(program::gpuwhy());
    record.args(["record", "--json", "-o"]).arg(&trace).arg("--").arg(program::own()?);
    record.args(["__machines", "--for", &format!("{}ms", duration.as_millis())]);
    record.args([format!("{busy}:spins"), format!("{busy}:spins")]);
    record.args([format!("{calm}:halts"), format!("{busy}:hog")]);
    let output = record.output().context("cannot start gpuwhy record")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "gpuwhy record failed: {said}");
    let ran: Vec<Ran> = serde_json::from_slice(&output.stdout)?;
    let output = Command::new(program::gpuwhy()).args(["vgpu", "--json"]).arg(&trace).output()?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    compared(&ran, &report["vcpus"])
}

fn compared(ran: &[Ran], report: &Value) -> Result<Round> {
    let mut round = Round::default();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let none = Vec::new();
    let machines = report["machines"].as_array().unwrap_or(&none);
    let pairs = report["preempted"].as_array().unwrap_or(&none);
    let told = |one: &Ran| machines.iter().find(|m| m["pid"].as_i64() == Some(i64::from(one.pid)));
    let of_name = |name: &str| ran.iter().find(|one| told(one).is_some_and(|m| m["name"] == *name));
    let (mut neighbours, mut all) = (0, 0);
    for one in ran.iter().filter(|one| one.kind != Kind::Hog) {
        let machine =
            told(one).with_context(|| format!("no machine of process {}: {report}", one.pid))?;
        let found = number(&machine["preemptions"]);
        round.off_by.push(found as i64 - one.switches.involuntary as i64);
        match one.kind {
            Kind::Halts => {
                round.of_halting += found;
                round.halts += number(&machine["halts"]);
            }
            _ => round.counted.push(one.switches.involuntary),
        }
        for pair in pairs.iter().filter(|pair| pair["machine"] == machine["name"]) {
            let (direct, eventual) = (number(&pair["direct"]), number(&pair["eventual"]));
            let by = pair["by"].as_str().unwrap_or("");
            all += eventual;
            match of_name(by) {
                Some(other) if other.cpu != one.cpu => round.elsewhere += direct + eventual,
                Some(_) => neighbours += eventual,
                None if by == "nobody" => round.by_nobody += direct,
                None => {}
            }
        }
    }
    round.by_neighbour = neighbours as f64 / all.max(1) as f64;
    Ok(round)
}
