//! What watching costs and how fast it is: over read rates, under overload, and for long.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpuwhy_collect::{Config, Target};
use gpuwhy_diagnose::stats::mean;
use gpuwhy_schema::terminal;
use gpuwhy_testkit::inject::Kind;
use serde::Serialize;

use super::result::{self, Figure, Made};
use crate::stage::{Stage, Timed};
use gpuwhy_engine::launch;
use gpuwhy_engine::live::Event;
use gpuwhy_engine::watch::{WatchOptions, Watcher};

/// Arguments of `bench rates`.
#[derive(Debug, clap::Args)]
pub struct RatesArgs {
    /// Reads a second.
    #[arg(long, default_values_t = [10, 30, 100, 300, 1000])]
    hz: Vec<u32>,
    /// Runs at each rate; the rates take turns.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Injections in each run.
    #[arg(long, default_value_t = 2)]
    injections: u32,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/rates.json")]
    output: PathBuf,
    /// Where the traces go.
    #[arg(long, default_value = "target/live")]
    traces: PathBuf,
}

/// Arguments of `bench overload`.
#[derive(Debug, clap::Args)]
pub struct OverloadArgs {
    /// Messages of each sender.
    #[arg(long, default_value_t = 30_000)]
    loops: u32,
    /// Rounds of each way to run it; they take turns.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The limit, per cent of the machine.
    #[arg(long, default_value_t = 2.0)]
    max_cpu: f64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/overload.json")]
    output: PathBuf,
    /// Where the traces go.
    #[arg(long, default_value = "target/live")]
    traces: PathBuf,
}

/// Arguments of `bench soak`.
#[derive(Debug, clap::Args)]
pub struct SoakArgs {
    /// For how long.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/soak.json")]
    output: PathBuf,
    /// Where the trace goes.
    #[arg(long, default_value = "target/live")]
    traces: PathBuf,
    /// Keep the trace.
    #[arg(long)]
    keep_traces: bool,
}

#[derive(Serialize)]
struct Results<R> {
    made: Made,
    figures: BTreeMap<String, Figure>,
    rows: Vec<R>,
}

/// One read rate.
#[derive(Serialize)]
struct Rate {
    reads_a_second: u32,
    machine_share_bpf: Figure,
    machine_share_agent: Figure,
    machine_share: Figure,
    detect_s: Figure,
    verdict_s: Figure,
    class_right: Figure,
}

/// What one run at one rate was.
#[derive(Default)]
struct AtRate {
    bpf: Vec<f64>,
    agent: Vec<f64>,
    detect: Vec<f64>,
    verdict: Vec<f64>,
    right: usize,
    of: usize,
}

/// CPU cost and time to a verdict over read rates, as in figure 2a of Darzi et al.; the rates take
/// turns, so that drift of the machine meets all of them.
pub fn rates(args: &RatesArgs) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.traces)?;
    let path = args.traces.join("rates.trace");
    let mut all: BTreeMap<u32, AtRate> = BTreeMap::new();
    for _ in 0..args.rounds {
        for &hz in &args.hz {
            let at = all.entry(hz).or_default();
            at.run(&path, hz, args.injections)?;
            terminal::say(format_args!(
                "{hz:>5} Hz: BPF {:.3} %, agent {:.3} % of the machine; verdict after {:.2} s",
                100.0 * at.bpf.last().copied().unwrap_or(0.0),
                100.0 * at.agent.last().copied().unwrap_or(0.0),
                at.verdict.last().copied().unwrap_or(f64::NAN)
            ))?;
        }
    }
    let rows: Vec<Rate> = all.into_iter().map(|(hz, at)| at.row(hz)).collect();
    let mut figures = BTreeMap::new();
    for row in &rows {
        figures
            .insert(format!("machine_share_{}hz", row.reads_a_second), row.machine_share.clone());
        figures.insert(format!("verdict_s_{}hz", row.reads_a_second), row.verdict_s.clone());
    }
    result::write(&args.output, &Results { made: Made::now(), figures, rows })?;
    Ok(ExitCode::SUCCESS)
}

impl AtRate {
    /// One watch at this rate: undisturbed, and then with injections.
    fn run(&mut self, path: &Path, hz: u32, injections: u32) -> Result<()> {
        let mut stage = Stage::open(path, |options| {
            options.config.hz = hz;
            options.limits.cpu_share = 1.0;
        })?;
        stage.run_for(Duration::from_secs(9))?;
        // Undisturbed, so that judging is not in the cost of reading.
        let (from, before) = (Instant::now(), stage.watcher.cost());
        stage.run_for(Duration::from_secs(8))?;
        let (wall, after) = (from.elapsed().as_secs_f64(), stage.watcher.cost());
        let cpus = std::thread::available_parallelism().map_or(1.0, |n| usize::from(n) as f64);
        self.bpf.push((after.0 - before.0) / wall / cpus);
        self.agent.push((after.1 - before.1) / wall / cpus);
        for _ in 0..injections {
            self.inject(&mut stage)?;
        }
        stage.watcher.finish()?;
        Ok(())
    }

    fn inject(&mut self, stage: &mut Stage) -> Result<()> {
        stage.calm(Duration::from_secs(10))?;
        let first = stage.events.len();
        let spec = stage.spec(Kind::CpuHog, 3.0);
        let label = stage.inject(vec![spec])?.remove(0);
        stage.run_for(Duration::from_secs(3))?;
        let after = |at: i64| (at - label.onset_ns as i64) as f64 / 1e9;
        let events = &stage.events[first..];
        let slow = events.iter().find(|timed| matches!(timed.event, Event::Slow(_)));
        self.detect.extend(slow.map(|timed| after(timed.at)));
        let verdict = events.iter().find_map(|timed| match &timed.event {
            Event::Verdict(verdict) => Some((timed.at, verdict)),
            _ => None,
        });
        self.of += 1;
        if let Some((at, verdict)) = verdict {
            self.verdict.push(after(at));
            self.right += usize::from(Some(verdict.finding.class) == label.class.as_deref());
        }
        Ok(())
    }

    fn row(self, hz: u32) -> Rate {
        let both: Vec<f64> = self.bpf.iter().zip(&self.agent).map(|(a, b)| a + b).collect();
        Rate {
            reads_a_second: hz,
            machine_share: Figure::of(&both),
            machine_share_bpf: Figure::of(&self.bpf),
            machine_share_agent: Figure::of(&self.agent),
            detect_s: Figure::of(&self.detect),
            verdict_s: Figure::of(&self.verdict),
            class_right: Figure::share(self.right, self.of),
        }
    }
}

/// One way to run the overloading workload.
#[derive(Serialize)]
struct Overload {
    watched: &'static str,
    seconds: Figure,
    slowdown: Figure,
    share_at_first: Figure,
    share_at_last: Figure,
    left_out: Vec<String>,
    dropped: u64,
}

/// The watched runs with one limit.
#[derive(Default)]
struct Overloaded {
    seconds: Vec<f64>,
    /// Share of the machine at first and at last.
    shares: Vec<(f64, f64)>,
    left_out: Vec<String>,
    dropped: u64,
}

/// A workload that does nothing but switch between hundreds of threads, all of which are recorded
/// exactly: alone, watched without limits, and watched within limits.
pub fn overload(args: &OverloadArgs) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.traces)?;
    let path = args.traces.join("overload.trace");
    let loops = args.loops.to_string();
    let perf = || {
        let mut command = Command::new("perf");
        command.args(["bench", "-f", "simple", "sched", "messaging", "-g", "4", "-l", &loops]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let alone = || -> Result<f64> {
        let from = Instant::now();
        let status =
            perf().status().context("cannot run perf; scripts/setup.sh bench installs it")?;
        if !status.success() {
            bail!("perf bench failed: {status}");
        }
        Ok(from.elapsed().as_secs_f64())
    };
    alone()?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (mut unlimited, mut limited) = (Overloaded::default(), Overloaded::default());
    for _ in 0..args.rounds {
        before.push(alone()?);
        unlimited.run(perf(), &path, 1.0)?;
        limited.run(perf(), &path, args.max_cpu / 100.0)?;
        after.push(alone()?);
    }
    let nothing = Figure { value: 0.0, spread: [0.0, 0.0], n: 0 };
    let control: Vec<f64> = after.iter().zip(&before).map(|(b, a)| b / a).collect();
    let off: Vec<f64> = before.iter().zip(&after).map(|(a, b)| (a + b) / 2.0).collect();
    let rows = vec![
        Overload {
            watched: "alone (A/A)",
            seconds: Figure::of(&[&before[..], &after[..]].concat()),
            slowdown: Figure::of(&control),
            share_at_first: nothing.clone(),
            share_at_last: nothing,
            left_out: vec![],
            dropped: 0,
        },
        unlimited.row("watched without limits", &off),
        limited.row("watched within limits", &off),
    ];
    rows.iter().try_for_each(print_overload)?;
    let figures = [
        ("slowdown_a_a", rows[0].slowdown.clone()),
        ("slowdown_without_limits", rows[1].slowdown.clone()),
        ("slowdown_within_limits", rows[2].slowdown.clone()),
        ("share_without_limits", rows[1].share_at_last.clone()),
        ("share_within_limits", rows[2].share_at_last.clone()),
    ];
    let figures = figures.map(|(name, figure)| (name.to_string(), figure)).into();
    result::write(&args.output, &Results { made: Made::now(), figures, rows })?;
    Ok(ExitCode::SUCCESS)
}

fn print_overload(row: &Overload) -> std::io::Result<()> {
    terminal::say(format_args!(
        "{:<24} {:.1} s, slowdown {:.3} [{:.3}, {:.3}], {:.2} % at first, {:.2} % at last; left out: {}",
        row.watched,
        row.seconds.value,
        row.slowdown.value,
        row.slowdown.spread[0],
        row.slowdown.spread[1],
        100.0 * row.share_at_first.value,
        100.0 * row.share_at_last.value,
        row.left_out.join(", ")
    ))
}

impl Overloaded {
    /// Runs `command` watched, within `limit` of the machine's CPU time.
    fn run(&mut self, mut command: Command, path: &Path, limit: f64) -> Result<()> {
        launch::make_room(path, true)?;
        let mut options = WatchOptions::new(Config::default());
        options.limits.cpu_share = limit;
        let from = Instant::now();
        let mut child = command.spawn().context("cannot run perf")?;
        options.config.targets = vec![Target::Pid(child.id() as i32)];
        let mut watcher = Watcher::start(path, options)?;
        let mut shares: Vec<f64> = Vec::new();
        let mut sampled = Instant::now();
        while child.try_wait()?.is_none() {
            for event in watcher.tick()? {
                if let Event::Shed(shed) = event {
                    terminal::say(format_args!("  {}", shed.says))?;
                    self.left_out = shed.left_out.iter().map(|s| s.to_string()).collect();
                }
            }
            if sampled.elapsed() >= Duration::from_secs(1) {
                sampled = Instant::now();
                let status = watcher.status();
                shares.push(status.bpf_share + status.cpu_share);
            }
        }
        self.seconds.push(from.elapsed().as_secs_f64());
        let shares = &shares[shares.len().min(2)..];
        let last = mean(&shares[shares.len().saturating_sub(3)..]);
        self.shares.push((shares.first().copied().unwrap_or(0.0), last));
        self.dropped = watcher.finish()?.1.dropped;
        Ok(())
    }

    /// `off` is how long each round's runs took alone.
    fn row(self, watched: &'static str, off: &[f64]) -> Overload {
        let slowdown: Vec<f64> = self.seconds.iter().zip(off).map(|(on, off)| on / off).collect();
        let shares = |of: fn(&(f64, f64)) -> f64| {
            Figure::of(&self.shares.iter().map(of).collect::<Vec<_>>())
        };
        Overload {
            watched,
            slowdown: Figure::of(&slowdown),
            share_at_first: shares(|s| s.0),
            share_at_last: shares(|s| s.1),
            seconds: Figure::of(&self.seconds),
            left_out: self.left_out,
            dropped: self.dropped,
        }
    }
}

/// One minute of a long watch.
#[derive(Serialize)]
struct Minute {
    minute: usize,
    rss_mib: Figure,
    machine_share: Figure,
    findings: usize,
}

/// Watches the workload for long, with a disturbance every minute.
pub fn soak(args: &SoakArgs) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.traces)?;
    let path = args.traces.join("soak.trace");
    let mut stage = Stage::open(&path, |_| {})?;
    let kinds =
        [Kind::CpuHog, Kind::OdirectWriter, Kind::LockHolder, Kind::CacheEvict, Kind::Sigstop];
    let mut rows: Vec<Minute> = Vec::new();
    let mut all: Vec<f64> = Vec::new();
    for minute in 0..args.minutes as usize {
        let from = Instant::now();
        let (mut rss, mut share) = (Vec::new(), Vec::new());
        let first = stage.events.len();
        let mut disturbed = false;
        while from.elapsed() < Duration::from_secs(60) {
            stage.run_for(Duration::from_secs(5))?;
            let status = stage.watcher.status();
            rss.push(status.rss_bytes as f64 / 1048576.0);
            share.push(status.bpf_share + status.cpu_share);
            if !disturbed && from.elapsed() >= Duration::from_secs(30) {
                disturbed = true;
                let spec = stage.spec(kinds[minute % kinds.len()], 4.0);
                stage.inject(vec![spec])?;
            }
        }
        let over = |timed: &&Timed| matches!(timed.event, Event::Over(_));
        let findings = stage.events[first..].iter().filter(over).count();
        stage.events.clear();
        all.extend(&rss);
        terminal::say(format_args!(
            "minute {minute:>2}: {:.1} MiB, {:.2} % of the machine, {findings} findings",
            mean(&rss),
            100.0 * mean(&share)
        ))?;
        rows.push(Minute {
            minute,
            rss_mib: Figure::of(&rss),
            machine_share: Figure::of(&share),
            findings,
        });
    }
    let (_, ended) = stage.watcher.finish()?;
    // The ring of the recent past fills in the first minutes.
    let third = all.len() / 3;
    let (middle, last) = (&all[third..2 * third], &all[all.len() - third..]);
    let growth = mean(last) / mean(middle).max(1e-9);
    terminal::say(format_args!("memory: the last third is {growth:.3} of the middle third"))?;
    let one = |value: f64| Figure { value, spread: [value, value], n: 1 };
    let figures = [
        ("rss_mib_middle_third", Figure::of(middle)),
        ("rss_mib_last_third", Figure::of(last)),
        ("rss_growth", one(growth)),
        ("machine_share", one(ended.machine_share)),
        ("findings", one(ended.findings as f64)),
        ("minutes", one(args.minutes as f64)),
        ("dropped", one(ended.dropped as f64)),
    ];
    let figures = figures.map(|(name, figure)| (name.to_string(), figure)).into();
    result::write(&args.output, &Results { made: Made::now(), figures, rows })?;
    if !args.keep_traces {
        let _ = std::fs::remove_dir_all(&path);
    }
    Ok(ExitCode::SUCCESS)
}
