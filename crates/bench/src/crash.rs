//! The recorder is killed at random moments; every trace must open, validate, and hold all but
//! the last second.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_diagnose::stats::Random;
use gpuwhy_schema::terminal;
use gpuwhy_schema::{Counter, Ns, State};
use gpuwhy_store::Trace;
use serde::Serialize;

use super::result::{self, Figure, Made};
use super::trial;
use gpuwhy_engine::launch::{self, MarkRing};

use crate::program;

/// Arguments of `bench crash`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many kills.
    #[arg(long, default_value_t = 50)]
    kills: u32,
    /// Seed of the moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/crash.json")]
    output: PathBuf,
    /// Where the recordings go.
    #[arg(long, default_value = "target/crash")]
    traces: PathBuf,
}

#[derive(Serialize)]
struct Kill {
    after_ms: u64,
    opens: bool,
    valid: bool,
    rows: usize,
    /// How long before the kill the last row lies, ms.
    missing_ms: f64,
    note: String,
}

#[derive(Serialize)]
struct Results {
    made: Made,
    figures: std::collections::BTreeMap<&'static str, Figure>,
    kills: Vec<Kill>,
}

/// Kills and looks.
pub fn run(args: &Args) -> Result<ExitCode> {
    let ring = MarkRing::make(None)?;
    let mut workload = Command::new(program::own()?)
        .args(["steploop", "--ring"])
        .arg(ring.path())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the workload")?;
    // Ready when it introduces itself.
    let mut introduction = String::new();
    let out = workload.stdout.as_mut().ok_or_else(|| anyhow!("the workload has no output"))?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut introduction)?;
    let workload = trial::Ended(workload);
    if !introduction.starts_with('{') {
        bail!("the workload did not start");
    }
    std::fs::create_dir_all(&args.traces)?;
    let mut random = Random::new(args.seed);
    let mut kills = Vec::new();
    for n in 0..args.kills {
        let path = args.traces.join(format!("killed-{n}.trace"));
        launch::make_room(&path, true)?;
        let mut recorder = Command::new(program::gpuwhy())
            .args(["record", "--json", "-o"])
            .arg(&path)
            .arg("--ring")
            .arg(ring.path())
            .args(["-p", &workload.0.id().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        trial::recording_begins(&mut recorder, &path)?;
        let after = Duration::from_millis(random.below(3500) as u64);
        std::thread::sleep(after);
        recorder.kill()?;
        let killed = gpuwhy_collect::now();
        recorder.wait()?;
        let kill = look(&path, after, killed);
        terminal::say(format_args!(
            "kill {n:>2} after {:>4} ms: {}, {}, {} rows, the last {:.0} ms before the kill {}",
            kill.after_ms,
            if kill.opens { "opens" } else { "DOES NOT OPEN" },
            if kill.valid { "valid" } else { "NOT VALID" },
            kill.rows,
            kill.missing_ms,
            kill.note
        ))?;
        kills.push(kill);
        let _ = std::fs::remove_dir_all(&path);
    }
    let good = kills.iter().filter(|k| k.opens && k.valid).count();
    let whole = kills.iter().filter(|k| k.opens && k.missing_ms <= 1000.0).count();
    let missing: Vec<f64> = kills.iter().map(|k| k.missing_ms).collect();
    let figures: std::collections::BTreeMap<&'static str, Figure> = [
        ("opens_and_validates", Figure::share(good, kills.len())),
        ("holds_all_but_the_last_second", Figure::share(whole, kills.len())),
        ("missing_ms", Figure::of(&missing)),
    ]
    .into();
    for (name, f) in &figures {
        terminal::say(format_args!(
            "{name}: {:.3} [{:.3}, {:.3}] of {}",
            f.value, f.spread[0], f.spread[1], f.n
        ))?;
    }
    let all = good == kills.len() && whole == kills.len();
    result::write(&args.output, &Results { made: Made::now(), figures, kills })?;
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn look(path: &Path, after: Duration, killed: Ns) -> Kill {
    let mut kill = Kill {
        after_ms: after.as_millis() as u64,
        opens: false,
        valid: false,
        rows: 0,
        missing_ms: f64::INFINITY,
        note: String::new(),
    };
    match Trace::open(path) {
        Err(error) => kill.note = error.to_string(),
        Ok(trace) => {
            kill.opens = true;
            let report = gpuwhy_store::validate(&trace);
            kill.valid = report.is_valid();
            if !kill.valid {
                kill.note = report.to_string();
            }
            let mut last = Ns::MIN;
            for rows in trace.all::<Counter>() {
                let Ok(rows) = rows else { continue };
                kill.rows += rows.len();
                last = rows.iter().map(|r| r.ts).fold(last, Ns::max);
            }
            for rows in trace.all::<State>() {
                let Ok(rows) = rows else { continue };
                kill.rows += rows.len();
                let end = |r: &State| r.ts.saturating_add(r.dur.unwrap_or(Ns::ZERO));
                last = rows.iter().map(end).fold(last, Ns::max);
            }
            // Before the first commit there is nothing to lose but what began with the trace.
            kill.missing_ms = match last {
                Ns::MIN => kill.after_ms as f64,
                last => killed.saturating_sub(last).as_millis_f64(),
            };
        }
    }
    kill
}
