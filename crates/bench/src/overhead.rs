//! What recording costs.
//!
//! The claim is made from the kernel's own run time of our BPF programs (`run_time_ns` over
//! `run_cnt`, which includes the tens of ns that measuring costs) and from the recorder's CPU
//! time; both are the recorder's account of itself. Paired slowdowns stand beside them with an
//! A/A control, because on a small machine pairs of equal runs differ by more than the cost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_schema::terminal;
use serde::Serialize;
use serde_json::Value;

use super::result::{self, Figure, Made};
use super::trial::{self, Ended};
use crate::program;

/// Arguments of `bench overhead`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rounds of off, on, off for each workload.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of the workloads that last as long as asked.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// Only these workloads.
    #[arg(long = "only", value_name = "WORKLOAD")]
    only: Vec<String>,
    /// A folder on a disk, for the workloads' files.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work_dir: PathBuf,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/overhead.json")]
    output: PathBuf,
}

/// A workload, and how long one unit of its work took.
struct Workload {
    name: &'static str,
    /// What it stands for.
    about: &'static str,
    /// Whether its own threads are recorded exactly, or the host only in sums.
    exact: bool,
    run: fn(&Env<'_>) -> Result<f64>,
}

struct Env<'a> {
    seconds: u64,
    folder: &'a Path,
    /// What goes before the command: the recorder, when the workload is its target.
    recorder: Option<&'a Path>,
    own: &'a Path,
}

#[derive(Serialize)]
struct Row {
    workload: &'static str,
    about: &'static str,
    exact: bool,
    bpf_ns_per_event: Figure,
    events_per_second: Figure,
    machine_share_bpf: Figure,
    machine_share_agent: Figure,
    machine_share: Figure,
    rss_mib: Figure,
    lost_share: Figure,
    slowdown: Figure,
    slowdown_a_a: Figure,
}

#[derive(Serialize)]
struct Results {
    made: Made,
    figures: BTreeMap<&'static str, Figure>,
    workloads: Vec<Row>,
}

/// The recorder's account of one run.
struct Account {
    wall: f64,
    bpf: f64,
    runs: f64,
    cpu: f64,
    rss: f64,
    events: f64,
    dropped: f64,
}

impl Account {
    fn read(path: &Path) -> Result<Account> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("the recorder left no account in `{}`", path.display()))?;
        let value: Value = serde_json::from_str(&text)?;
        let number = |name: &str| {
            value[name].as_f64().ok_or_else(|| anyhow!("the account has no number `{name}`"))
        };
        Ok(Account {
            wall: number("seconds")?,
            bpf: number("bpf_seconds").context("the kernel did not measure BPF run time")?,
            runs: number("bpf_runs")?,
            cpu: number("cpu_seconds")?,
            rss: number("rss_bytes")?,
            events: number("events")?,
            dropped: number("dropped")?,
        })
    }
}

const WORKLOADS: &[Workload] = &[
    Workload {
        name: "steploop",
        about: "two ranks, the workload of the demo",
        exact: true,
        run: steploop,
    },
    Workload {
        name: "sched messaging",
        about: "perf bench sched messaging, hundreds of threads over sockets",
        exact: false,
        run: |_| perf(&["sched", "messaging", "-g", "4", "-l", "4000"]),
    },
    Workload {
        name: "sched pipe",
        about: "perf bench sched pipe, the worst case: nothing but context switches",
        exact: false,
        run: |_| perf(&["sched", "pipe", "-l", "400000"]),
    },
    Workload {
        name: "fio randread 4k",
        about: "4 KiB random reads, depth 32",
        exact: false,
        run: fio,
    },
    Workload {
        name: "iperf3 loopback",
        about: "one TCP stream over loopback",
        exact: false,
        run: iperf3,
    },
];

fn output_of(command: &mut Command) -> Result<String> {
    let name = format!("{command:?}");
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {name}; scripts/setup.sh bench installs it"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Mean step of the name `step`, in seconds.
fn steploop(env: &Env<'_>) -> Result<f64> {
    let csv = env.folder.join("steps.csv");
    let work = env.folder.join("work");
    let mut command = Command::new(env.own);
    command.args(["steploop", "--for", &env.seconds.to_string()]);
    command.arg("--work-dir").arg(&work).arg("--csv").arg(&csv);
    if let Some(ring) = env.recorder {
        command.env("GPUWHY_RING", ring);
    }
    output_of(&mut command)?;
    let durations: Vec<f64> = gpuwhy_testkit::measure::read_steps(&csv)?
        .iter()
        .filter(|step| step.name == "step")
        .map(|step| (step.end_ns - step.start_ns) as f64 / 1e9)
        .collect();
    Ok(gpuwhy_diagnose::stats::mean(&durations))
}

fn perf(args: &[&str]) -> Result<f64> {
    let out = output_of(Command::new("perf").args(["bench", "-f", "simple"]).args(args))?;
    out.lines()
        .rev()
        .find_map(|l| l.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| anyhow!("perf bench printed no time"))
}

fn fio(env: &Env<'_>) -> Result<f64> {
    let file = env.folder.join("fio.data");
    let mut command = Command::new("fio");
    command.args(["--name=r", "--rw=randread", "--bs=4k", "--size=256m", "--direct=1"]);
    command.args(["--ioengine=libaio", "--iodepth=32", "--time_based", "--output-format=json"]);
    command.arg(format!("--runtime={}", env.seconds)).arg(format!("--filename={}", file.display()));
    let out = output_of(&mut command)?;
    let json = out.find('{').map(|i| &out[i..]).unwrap_or("");
    let value: Value = serde_json::from_str(json).context("fio printed no JSON")?;
    let iops = value["jobs"][0]["read"]["iops"].as_f64().filter(|i| *i > 0.0);
    Ok(1.0 / iops.ok_or_else(|| anyhow!("fio measured no reads"))?)
}

fn iperf3(env: &Env<'_>) -> Result<f64> {
    let server =
        Command::new("iperf3").args(["-s", "-1", "-p", "5299"]).stdout(Stdio::null()).spawn();
    let _server = Ended(server.context("cannot run iperf3; scripts/setup.sh bench installs it")?);
    std::thread::sleep(Duration::from_millis(400));
    let seconds = env.seconds.to_string();
    let args = ["-c", "127.0.0.1", "-p", "5299", "-J", "-t", &seconds];
    let out = output_of(Command::new("iperf3").args(args))?;
    let value: Value = serde_json::from_str(&out).context("iperf3 printed no JSON")?;
    let bits = value["end"]["sum_received"]["bits_per_second"].as_f64().filter(|b| *b > 0.0);
    Ok(1.0 / bits.ok_or_else(|| anyhow!("iperf3 measured nothing"))?)
}

/// Runs a workload with the recorder beside it.
fn recorded(workload: &Workload, env: &Env<'_>) -> Result<(f64, Account)> {
    let trace = env.folder.join("overhead.trace");
    let ring = env.folder.join("overhead.ring");
    let account = env.folder.join("account.json");
    let _ = std::fs::remove_dir_all(&trace);
    let _ = std::fs::remove_file(&ring);
    let mut command = Command::new(program::gpuwhy());
    command.args(["record", "--json", "--force", "-o"]).arg(&trace).arg("--ring").arg(&ring);
    let child = command.stdout(std::fs::File::create(&account)?).spawn()?;
    let mut recorder = Ended(child);
    trial::recording_begins(&mut recorder.0, &trace)?;
    std::thread::sleep(Duration::from_millis(300));
    let env = Env { recorder: workload.exact.then_some(ring.as_path()), ..*env };
    let unit = (workload.run)(&env)?;
    gpuwhy_collect::signal(recorder.0.id() as i32, signal_hook::consts::SIGINT)?;
    recorder.0.wait()?;
    Ok((unit, Account::read(&account)?))
}

/// Measures every workload and writes the result.
pub fn run(args: &Args) -> Result<ExitCode> {
    let folder: PathBuf = args.work_dir.join(format!("gpuwhy-overhead-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let own = program::own()?;
    let env = Env { seconds: args.seconds, folder: &folder, recorder: None, own: &own };
    let mut rows = Vec::new();
    for workload in WORKLOADS {
        if !args.only.is_empty() && !args.only.iter().any(|o| o == workload.name) {
            continue;
        }
        let row = measure(workload, &env, args.rounds)?;
        print_row(&row)?;
        rows.push(row);
    }
    let _ = std::fs::remove_dir_all(&folder);
    let figures = figures(&rows);
    result::write(&args.output, &Results { made: Made::now(), figures, workloads: rows })?;
    Ok(ExitCode::SUCCESS)
}

/// Rounds of one workload: off, on and off again, in an order that turns, so that drift cancels.
fn measure(workload: &Workload, env: &Env<'_>, rounds: u32) -> Result<Row> {
    let cpus = std::thread::available_parallelism().map_or(1.0, |n| usize::from(n) as f64);
    (workload.run)(env).with_context(|| format!("{} does not run", workload.name))?;
    let (mut ratio, mut control, mut accounts) = (vec![], vec![], vec![]);
    for round in 0..rounds {
        let mut off = Vec::new();
        let mut on = f64::NAN;
        for turn in 0..3 {
            if (turn + round) % 3 == 1 {
                let (unit, account) = recorded(workload, env)?;
                on = unit;
                accounts.push(account);
            } else {
                off.push((workload.run)(env)?);
            }
        }
        ratio.push(on / ((off[0] + off[1]) / 2.0));
        control.push(off[1] / off[0]);
    }
    let of = |f: &dyn Fn(&Account) -> f64| Figure::of(&accounts.iter().map(f).collect::<Vec<_>>());
    Ok(Row {
        workload: workload.name,
        about: workload.about,
        exact: workload.exact,
        bpf_ns_per_event: of(&|a| 1e9 * a.bpf / a.runs.max(1.0)),
        events_per_second: of(&|a| a.runs / a.wall),
        machine_share_bpf: of(&|a| a.bpf / a.wall / cpus),
        machine_share_agent: of(&|a| a.cpu / a.wall / cpus),
        machine_share: of(&|a| (a.bpf + a.cpu) / a.wall / cpus),
        rss_mib: of(&|a| a.rss / 1048576.0),
        lost_share: of(&|a| a.dropped / (a.events + a.dropped).max(1.0)),
        slowdown: Figure::of(&ratio),
        slowdown_a_a: Figure::of(&control),
    })
}

fn print_row(row: &Row) -> std::io::Result<()> {
    terminal::say(format_args!(
        "{:<16} {:>4.0} ns/event  {:>8.0} events/s  {:.3} % of the machine (BPF {:.3}, agent {:.3})  \
         {:.0} MiB  slowdown {:.3} [{:.3}, {:.3}], A/A {:.3} [{:.3}, {:.3}]",
        row.workload,
        row.bpf_ns_per_event.value,
        row.events_per_second.value,
        100.0 * row.machine_share.value,
        100.0 * row.machine_share_bpf.value,
        100.0 * row.machine_share_agent.value,
        row.rss_mib.value,
        row.slowdown.value,
        row.slowdown.spread[0],
        row.slowdown.spread[1],
        row.slowdown_a_a.value,
        row.slowdown_a_a.spread[0],
        row.slowdown_a_a.spread[1]
    ))
}

fn figures(rows: &[Row]) -> BTreeMap<&'static str, Figure> {
    let mut figures = BTreeMap::new();
    let events: Vec<f64> = rows.iter().map(|r| r.bpf_ns_per_event.value).collect();
    if !events.is_empty() {
        figures.insert("ns_per_event", Figure::of(&events));
        figures.insert(
            "rss_mib",
            Figure::of(&rows.iter().map(|r| r.rss_mib.spread[1]).collect::<Vec<_>>()),
        );
    }
    if let Some(row) = rows.iter().find(|r| r.workload == "steploop") {
        figures.insert("machine_share_steploop", row.machine_share.clone());
    }
    figures
}
