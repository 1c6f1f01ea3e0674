//! `gpuwhy watch`: rows are judged as they arrive.
//!
//! Aggregates and steps go to the trace at once. Exact rows (states, wakeups, messages, requests,
//! kernels) are held in memory for the last half minute, and go to the trace only around what
//! turned out to be slower; then they are there from before the onset on.

mod engine;
mod fleet;
mod governor;
mod rhythm;

use std::io::{IsTerminal as _, Write as _};
use std::process::{ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_collect::{Config, Target, UprobeStep};
use gpuwhy_diagnose::detect::Detection;
use gpuwhy_diagnose::verdict::Outcome;
use gpuwhy_schema::Ns;

pub use engine::{Engine, News, Setup};
pub use governor::Limits;

use crate::args::Watch;
use crate::inside::{self, Doors};
use crate::record::{Gated, MarkRing, prepare, stop_flag, targets};

impl Watch {
    fn setup(&self, ring: &MarkRing, doors: &Doors, targets: Vec<Target>) -> Setup {
        let steps = self
            .steps
            .iter()
            .map(|s| UprobeStep { binary: s.binary.clone(), symbol: s.symbol.clone() })
            .collect();
        let mut setup = Setup::new(Config {
            targets,
            hz: self.hz,
            steps,
            wire: Some(ring.path().to_path_buf()),
            doors: doors.config.clone(),
            ras: self.inside.nccl_ras.clone(),
            off: self.off.clone(),
            ..Config::default()
        });
        setup.detection = Detection {
            false_alarms_per_day: self.false_alarms_per_day.max(1e-6),
            min_effect: (self.min_effect / 100.0).max(0.0),
            ..Detection::default()
        };
        setup.judgement.decide_at = self.decide_at;
        setup.recent = Ns(self.recent.as_nanos() as i64);
        setup.keep = self.keep;
        setup.summed = self.to.is_some();
        setup.limits =
            Limits { cpu_share: (self.max_cpu / 100.0).max(1e-4), rss: self.max_memory << 20 };
        setup
    }
}

/// Watches until told to stop.
pub fn run(args: &Watch) -> Result<ExitCode> {
    if let Some(address) = &args.join {
        return fleet::correlate(address, args.json, args.duration);
    }
    if let Some(refused) = prepare(&args.pids, &args.output, args.force)? {
        return Ok(refused);
    }
    inside::check(&args.inside)?;
    let ring = MarkRing::make(args.ring.as_deref())?;
    let doors = Doors::prepare(&args.inside, !args.command.is_empty())?;
    let mut gated = match &args.command[..] {
        [] => None,
        command => {
            // Standard output is for what we have to say.
            Some(Gated::spawn(command, ring.path(), &doors, Stdio::null())?)
        }
    };
    let targets = targets(&args.pids, gated.as_ref());
    let mut engine = Engine::start(&args.output, args.setup(&ring, &doors, targets))?;
    let stop = stop_flag()?;
    let end = args.duration.map(|d| Instant::now() + d);
    if let Some(gated) = &gated {
        gated.gate().go()?;
    }
    let node = args.node.clone().unwrap_or_else(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_string()
    });
    let mut line =
        args.to.as_ref().map(|to| fleet::Line::to(to, &node, &args.collective, args.skew));
    let mut mouth = Mouth::new(args.json);
    mouth.line(&format!(
        "watching; the trace is {}, marked programs find the ring by GPUWHY_RING={}; ^C ends it",
        args.output.display(),
        ring.path().display()
    ))?;
    let mut ended = false;
    while !ended {
        let mut findings = Vec::new();
        for news in engine.turn()? {
            if let News::Over(told) = &news {
                findings.push(serde_json::to_value(&told.finding)?);
            }
            mouth.tell(&news)?;
        }
        if let Some(line) = &mut line {
            line.turn(&mut engine, &findings)?;
        }
        mouth.status(&engine)?;
        if let Some(gated) = &mut gated {
            ended = gated.child.try_wait()?.is_some();
        }
        ended |= stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
    }
    if let Some(gated) = &mut gated
        && gated.child.try_wait()?.is_none()
    {
        let _ = gpuwhy_collect::signal(gated.child.id() as i32, signal_hook::consts::SIGTERM);
        let _ = gated.child.wait();
    }
    let (last, told) = engine.finish()?;
    for news in last {
        mouth.tell(&news)?;
    }
    mouth.tell(&News::Ended(told))?;
    Ok(ExitCode::SUCCESS)
}

/// Says what there is to say, as text or as JSON lines, and on a terminal how it goes.
struct Mouth {
    json: bool,
    status: bool,
    told_at: Instant,
}

const CLEAR: &str = "\r\x1b[K";

impl Mouth {
    fn new(json: bool) -> Mouth {
        let status = std::io::stderr().is_terminal() && !json;
        Mouth { json, status, told_at: Instant::now() }
    }

    fn line(&self, text: &str) -> Result<()> {
        if !self.json {
            let clear = if self.status { CLEAR } else { "" };
            eprintln!("{clear}{text}");
        }
        Ok(())
    }

    fn tell(&mut self, news: &News) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, news)?;
            writeln!(out)?;
            return Ok(());
        }
        if self.status {
            eprint!("{CLEAR}");
        }
        let clock = crate::watch::engine::wall_clock;
        match news {
            News::Slow(slow) => writeln!(
                out,
                "{}  slower since {:.1} s ago: {} ({})",
                clock(slow.at_ns),
                (slow.at_ns - slow.since_ns) as f64 / 1e9,
                slow.what,
                slow.series.join(", ")
            )?,
            News::Verdict(told) => {
                let sign = match told.finding.outcome {
                    Outcome::Decided => "VERDICT",
                    Outcome::InsufficientEvidence => "undecided",
                };
                writeln!(
                    out,
                    "{}  {sign}, {:.1} s after the onset: {}",
                    clock(told.at_ns),
                    (told.at_ns - told.finding.from_ns) as f64 / 1e9,
                    told.finding.summary
                )?;
            }
            News::Over(told) => {
                writeln!(out, "{}  over: {}", clock(told.at_ns), told.finding.summary)?;
                if let Some(without) = &told.counterfactual {
                    writeln!(out, "          {without}")?;
                }
                for (place, share) in told.culprit_was_in.iter().take(2) {
                    writeln!(out, "          it was in {place} for {:.0} %", 100.0 * share)?;
                }
            }
            News::Shed(shed) => writeln!(out, "{}  {}", clock(shed.at_ns), shed.says)?,
            News::Status(_) => {}
            News::Ended(told) => writeln!(
                out,
                "{}: watched for {:.0} s, {} steps, {} findings; {:.2} s of CPU in the kernel and \
                 {:.2} s here ({:.2} % of the machine), {} MiB",
                told.trace,
                told.seconds,
                told.steps,
                told.findings,
                told.bpf_seconds.unwrap_or(0.0),
                told.cpu_seconds,
                100.0 * told.machine_share,
                told.rss_bytes >> 20
            )?,
        }
        out.flush().context("cannot write to standard output")
    }

    fn status(&mut self, engine: &Engine) -> Result<()> {
        if !self.status || self.told_at.elapsed() < Duration::from_secs(1) {
            return Ok(());
        }
        self.told_at = Instant::now();
        let now = engine.status();
        let shed = if now.shedding.is_empty() { "" } else { "  SHEDDING" };
        eprint!(
            "{CLEAR}{:>6.0} s  {:>9} steps  {}  {:.2} % of the machine (kernel {:.2}, here {:.2})  {} MiB  {} lost{shed}",
            now.seconds,
            now.steps,
            now.state,
            100.0 * (now.bpf_share + now.cpu_share),
            100.0 * now.bpf_share,
            100.0 * now.cpu_share,
            now.rss_bytes >> 20,
            now.dropped
        );
        std::io::stderr().flush().context("cannot write to standard error")
    }
}
