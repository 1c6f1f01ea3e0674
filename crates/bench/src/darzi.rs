//! False alarms per clean 5 s window: ours and the published method, on the same recordings.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use gpuwhy_diagnose::published::darzi::HZ;
use gpuwhy_schema::terminal;
use gpuwhy_testkit::inject::Kind;
use serde::Serialize;

use super::result::{self, Figure, Made};
use super::trial::{self, Plan};
use gpuwhy_engine::{TraceSource, analyse, published};

/// Arguments of `bench darzi`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Clean recordings.
    #[arg(long, default_value_t = 3)]
    recordings: u32,
    /// Seconds of each.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/darzi.json")]
    output: PathBuf,
    /// Where the recordings go.
    #[arg(long, default_value = "target/darzi")]
    traces: PathBuf,
}

#[derive(Serialize)]
struct Recording {
    seconds: f64,
    steps: usize,
    windows: usize,
    darzi: usize,
    ours: usize,
    darzi_first_classes: Vec<String>,
}

#[derive(Serialize)]
struct Results {
    made: Made,
    figures: std::collections::BTreeMap<&'static str, Figure>,
    recordings: Vec<Recording>,
}

/// Records the undisturbed workload and asks both methods about every window of it.
pub fn run(args: &Args) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.traces)?;
    let mut recordings = Vec::new();
    for n in 0..args.recordings {
        let path = args.traces.join(format!("clean-{n}.trace"));
        let plan = Plan {
            before: Duration::ZERO,
            during: Duration::from_secs(args.seconds),
            after: Duration::ZERO,
        };
        trial::run(&path, Kind::None, &plan, &mut |_| {})?;
        let source = TraceSource::open(&path)?;
        let Some(series) = published::series(&source)? else { continue };
        let windows = published::windows(&series);
        let analysis = analyse(&source, &Default::default())?;
        let at = |sample: usize| series.from.0 + (sample * 1_000_000_000 / HZ) as i64;
        let ours = windows
            .iter()
            .filter(|(w, ..)| {
                let (from, to) = (at(w.start), at(w.end));
                analysis.findings.iter().any(|f| f.from_ns < to && f.to_ns > from)
            })
            .count();
        let fired: Vec<_> = windows.iter().filter_map(|(.., ranked)| ranked.as_ref()).collect();
        let recording = Recording {
            seconds: series.latency.len() as f64 / HZ as f64,
            steps: analysis.units.steps.len(),
            windows: windows.len(),
            darzi: fired.len(),
            ours,
            darzi_first_classes: fired
                .iter()
                .filter_map(|ranked| ranked.first())
                .map(|r| series.metrics[r.metric].class.to_string())
                .collect(),
        };
        terminal::say(format_args!(
            "clean recording {n}: {:.0} s, {} steps, {} windows of 5 s: darzi fires in {}, ours in {}",
            recording.seconds, recording.steps, recording.windows, recording.darzi, recording.ours
        ))?;
        recordings.push(recording);
    }
    let sum = |f: fn(&Recording) -> usize| recordings.iter().map(f).sum::<usize>();
    let windows = sum(|r| r.windows);
    let figures: std::collections::BTreeMap<&'static str, Figure> = [
        ("darzi_false_alarms_per_window", Figure::share(sum(|r| r.darzi), windows)),
        ("ours_false_alarms_per_window", Figure::share(sum(|r| r.ours), windows)),
    ]
    .into();
    for (name, f) in &figures {
        terminal::say(format_args!(
            "{name}: {:.3} [{:.3}, {:.3}] of {}",
            f.value, f.spread[0], f.spread[1], f.n
        ))?;
    }
    result::write(&args.output, &Results { made: Made::now(), figures, recordings })?;
    Ok(ExitCode::SUCCESS)
}
