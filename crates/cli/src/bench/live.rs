//! What watching costs and how fast it is: over read rates, under overload, and for long.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpuwhy_collect::{Config, Target};
use gpuwhy_diagnose::stats::mean;
use gpuwhy_testkit::inject::Kind;
use serde::Serialize;

use super::faults::Stage;
use super::result::{self, Figure, Made};
use crate::args::{BenchOverload, BenchRates, BenchSoak};
use crate::watch::{Engine, News, Setup};

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
pub fn rates(args: &BenchRates) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.traces)?;
    let path = args.traces.join("rates.trace");
    let mut all: BTreeMap<u32, AtRate> = BTreeMap::new();
    for _ in 0..args.rounds {
        for &hz in &args.hz {
            let at = all.entry(hz).or_default();
            let mut stage = Stage::open(&path, |setup| {
                setup.config.hz = hz;
                setup.limits.cpu_share = 1.0;
            })?;
            stage.run_for(Duration::from_secs(9))?;
            // Undisturbed, so that judging is not in the cost of reading.
            let (from, before) = (Instant::now(), stage.engine.cost());
            stage.run_for(Duration::from_secs(8))?;
            let (wall, after) = (from.elapsed().as_secs_f64(), stage.engine.cost());
            let cpus = std::thread::available_parallelism().map_or(1.0, |n| usize::from(n) as f64);
            at.bpf.push((after.0 - before.0) / wall / cpus);
            at.agent.push((after.1 - before.1) / wall / cpus);
            for _ in 0..args.injections {
                stage.calm(Duration::from_secs(10))?;
                let heard = stage.heard.len();
                let spec = stage.spec(Kind::CpuHog, 3.0);
                let label = stage.inject(vec![spec])?.remove(0);
                stage.run_for(Duration::from_secs(3))?;
                let onset = label.onset_ns as i64;
                let after = |at: i64| (at - onset) as f64 / 1e9;
                let since = &stage.heard[heard..];
                let slow = since.iter().find(|h| matches!(h.news, News::Slow(_)));
                at.detect.extend(slow.map(|h| after(h.at)));
                let verdict = since.iter().find_map(|h| match &h.news {
                    News::Verdict(told) => Some((h.at, told)),
                    _ => None,
                });
                at.of += 1;
                if let Some((when, told)) = verdict {
                    at.verdict.push(after(when));
                    at.right += usize::from(Some(told.finding.class) == label.class.as_deref());
                }
            }
            stage.engine.finish()?;
            println!(
                "{hz:>5} Hz: BPF {:.3} %, agent {:.3} % of the machine; verdict after {:.2} s",
                100.0 * at.bpf.last().copied().unwrap_or(0.0),
                100.0 * at.agent.last().copied().unwrap_or(0.0),
                at.verdict.last().copied().unwrap_or(f64::NAN)
            );
        }
    }
    let rows: Vec<Rate> = all
        .into_iter()
        .map(|(hz, at)| Rate {
            reads_a_second: hz,
            machine_share: Figure::of(
                &at.bpf.iter().zip(&at.agent).map(|(a, b)| a + b).collect::<Vec<_>>(),
            ),
            machine_share_bpf: Figure::of(&at.bpf),
            machine_share_agent: Figure::of(&at.agent),
            detect_s: Figure::of(&at.detect),
            verdict_s: Figure::of(&at.verdict),
            class_right: Figure::share(at.right, at.of),
        })
        .collect();
    let mut figures = BTreeMap::new();
    for row in &rows {
        figures
            .insert(format!("machine_share_{}hz", row.reads_a_second), row.machine_share.clone());
        figures.insert(format!("verdict_s_{}hz", row.reads_a_second), row.verdict_s.clone());
    }
    result::write(&args.output, &Results { made: Made::now(), figures, rows })?;
    Ok(ExitCode::SUCCESS)
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

/// A workload that does nothing but switch between hundreds of threads, all of them of interest:
/// alone, watched without limits, and watched within limits.
pub fn overload(args: &BenchOverload) -> Result<ExitCode> {
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
    let mut times: [Vec<f64>; 4] = Default::default();
    let mut shares: [Vec<(f64, f64)>; 2] = Default::default();
    let mut left_out: [Vec<String>; 2] = Default::default();
    let mut dropped = [0; 2];
    for _ in 0..args.rounds {
        times[0].push(alone()?);
        for (i, limit) in [1.0, args.max_cpu / 100.0].into_iter().enumerate() {
            crate::record::make_room(&path, true)?;
            let mut setup = Setup::new(Config::default());
            setup.limits.cpu_share = limit;
            let from = Instant::now();
            let mut child = perf().spawn().context("cannot run perf")?;
            setup.config.targets = vec![Target::Pid(child.id() as i32)];
            let mut engine = Engine::start(&path, setup)?;
            let mut seen: Vec<f64> = Vec::new();
            let mut told = Instant::now();
            while child.try_wait()?.is_none() {
                for news in engine.turn()? {
                    if let News::Shed(shed) = news {
                        println!("  {}", shed.says);
                        left_out[i] = shed.left_out.iter().map(|s| s.to_string()).collect();
                    }
                }
                if told.elapsed() >= Duration::from_secs(1) {
                    told = Instant::now();
                    let status = engine.status();
                    seen.push(status.bpf_share + status.cpu_share);
                }
            }
            times[1 + i].push(from.elapsed().as_secs_f64());
            let seen = &seen[seen.len().min(2)..];
            shares[i].push((
                seen.first().copied().unwrap_or(0.0),
                mean(&seen[seen.len().saturating_sub(3)..]),
            ));
            let (_, ended) = engine.finish()?;
            dropped[i] = ended.dropped;
        }
        times[3].push(alone()?);
    }
    let ratio = |of: &[f64]| {
        let pairs = of.iter().zip(times[0].iter().zip(&times[3]));
        Figure::of(&pairs.map(|(on, (a, b))| on / ((a + b) / 2.0)).collect::<Vec<_>>())
    };
    let share = |i: usize, last: bool| {
        let all = shares[i].iter().map(|s| if last { s.1 } else { s.0 });
        Figure::of(&all.collect::<Vec<_>>())
    };
    let nothing = Figure { value: 0.0, spread: [0.0, 0.0], n: 0 };
    let control: Vec<f64> = times[3].iter().zip(&times[0]).map(|(b, a)| b / a).collect();
    let rows = vec![
        Overload {
            watched: "alone (A/A)",
            seconds: Figure::of(&[&times[0][..], &times[3][..]].concat()),
            slowdown: Figure::of(&control),
            share_at_first: nothing.clone(),
            share_at_last: nothing,
            left_out: vec![],
            dropped: 0,
        },
        Overload {
            watched: "watched without limits",
            seconds: Figure::of(&times[1]),
            slowdown: ratio(&times[1]),
            share_at_first: share(0, false),
            share_at_last: share(0, true),
            left_out: left_out[0].clone(),
            dropped: dropped[0],
        },
        Overload {
            watched: "watched within limits",
            seconds: Figure::of(&times[2]),
            slowdown: ratio(&times[2]),
            share_at_first: share(1, false),
            share_at_last: share(1, true),
            left_out: left_out[1].clone(),
            dropped: dropped[1],
        },
    ];
    for row in &rows {
        println!(
            "{:<24} {:.1} s, slowdown {:.3} [{:.3}, {:.3}], {:.2} % at first, {:.2} % at last; left out: {}",
            row.watched,
            row.seconds.value,
            row.slowdown.value,
            row.slowdown.spread[0],
            row.slowdown.spread[1],
            100.0 * row.share_at_first.value,
            100.0 * row.share_at_last.value,
            row.left_out.join(", ")
        );
    }
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

/// One minute of a long watch.
#[derive(Serialize)]
struct Minute {
    minute: usize,
    rss_mib: Figure,
    machine_share: Figure,
    findings: usize,
}

/// Watches the workload for long, with a disturbance every minute.
pub fn soak(args: &BenchSoak) -> Result<ExitCode> {
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
        let heard = stage.heard.len();
        let mut disturbed = false;
        while from.elapsed() < Duration::from_secs(60) {
            stage.run_for(Duration::from_secs(5))?;
            let status = stage.engine.status();
            rss.push(status.rss_bytes as f64 / 1048576.0);
            share.push(status.bpf_share + status.cpu_share);
            if !disturbed && from.elapsed() >= Duration::from_secs(30) {
                disturbed = true;
                let spec = stage.spec(kinds[minute % kinds.len()], 4.0);
                stage.inject(vec![spec])?;
            }
        }
        let over = |h: &&super::faults::Heard| matches!(h.news, News::Over(_));
        let findings = stage.heard[heard..].iter().filter(over).count();
        stage.heard.clear();
        all.extend(&rss);
        println!(
            "minute {minute:>2}: {:.1} MiB, {:.2} % of the machine, {findings} findings",
            mean(&rss),
            100.0 * mean(&share)
        );
        rows.push(Minute {
            minute,
            rss_mib: Figure::of(&rss),
            machine_share: Figure::of(&share),
            findings,
        });
    }
    let (_, ended) = stage.engine.finish()?;
    // The ring of the recent past fills in the first minutes.
    let third = all.len() / 3;
    let (middle, last) = (&all[third..2 * third], &all[all.len() - third..]);
    let growth = mean(last) / mean(middle).max(1e-9);
    println!("memory: the last third is {growth:.3} of the middle third");
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
