//! The workload and its injectors by hand, and the table of what each injector does to the steps.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use gpuwhy_testkit::inject::{Injector, Kind, Placement, Spec};
use gpuwhy_testkit::measure;
use gpuwhy_testkit::steploop::{self, Config, Ready};

/// A step workload and labelled fault injectors.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the workload until it is interrupted, or for some time.
    Steploop(Workload),
    /// Disturb a running workload; prints the label as a line of JSON.
    Inject {
        /// What to do.
        kind: Kind,
        /// Seconds to wait before.
        #[arg(long, default_value_t = 0.0)]
        after: f64,
        /// Seconds that it lasts.
        #[arg(long = "for", default_value_t = 5.0)]
        seconds: f64,
        /// How strong it is; 1 is usual.
        #[arg(long, default_value_t = 1.0)]
        intensity: f64,
        /// Work directory of the workload, if more than one runs.
        #[arg(long)]
        work_dir: Option<PathBuf>,
    },
    /// Measure what injectors do to the steps.
    Measure {
        /// Which; all if none is named.
        kinds: Vec<Kind>,
        /// Undisturbed seconds.
        #[arg(long, default_value_t = 3.0)]
        before: f64,
        /// Disturbed seconds.
        #[arg(long, default_value_t = 5.0)]
        during: f64,
        /// How strong they are; 1 is usual.
        #[arg(long, default_value_t = 1.0)]
        intensity: f64,
    },
}

#[derive(Args)]
struct Workload {
    /// Seconds to run.
    #[arg(long = "for")]
    seconds: Option<f64>,
    /// How many ranks.
    #[arg(long, default_value_t = 2)]
    ranks: u32,
    /// Have the ranks talk over loopback.
    #[arg(long)]
    loopback: bool,
    /// Where the steps are told, apart from any recorder.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// The ring that steps are marked in; else that of GPUWHY_RING.
    #[arg(long)]
    ring: Option<PathBuf>,
    /// A new directory for its files.
    #[arg(long)]
    work_dir: Option<PathBuf>,
}

fn main() -> Result<()> {
    gpuwhy_testkit::helper::dispatch();
    match Cli::parse().command {
        Command::Steploop(w) => {
            let config = Config {
                ranks: w.ranks,
                network: !w.loopback,
                seconds: w.seconds,
                csv: w.csv,
                ring: w.ring,
                work_dir: w.work_dir,
                ..Config::default()
            };
            let summary = steploop::run(&config, None, |ready| {
                for note in &ready.notes {
                    eprintln!("note: {note}");
                }
                print(ready);
            })?;
            print(&summary);
            Ok(())
        }
        Command::Inject { kind, after, seconds, intensity, work_dir } => {
            let target = Ready::find(work_dir.as_deref())?;
            let spec =
                Spec { kind, after, seconds, intensity, placement: Placement::Other, target };
            print(&Injector::start(spec)?.finish()?);
            Ok(())
        }
        Command::Measure { kinds, before, during, intensity } => {
            let kinds = if kinds.is_empty() { Kind::ALL.to_vec() } else { kinds };
            table(&kinds, intensity, before, during)
        }
    }
}

fn print(value: &impl serde::Serialize) {
    println!("{}", serde_json::to_string(value).unwrap_or_default());
    let _ = std::io::stdout().flush();
}

fn table(kinds: &[Kind], intensity: f64, before: f64, during: f64) -> Result<()> {
    println!("| injector | steps | before | during | mean ms | p95 ms | growth of the mean |");
    println!("|---|---|---|---|---|---|---|");
    for kind in kinds {
        let (_, effects) = measure::trial(&Config::default(), *kind, intensity, before, during)
            .with_context(|| format!("cannot measure {}", kind.name()))?;
        for e in effects {
            let star = if e.name == kind.slows() { "*" } else { "" };
            println!(
                "| {} | {}{star} | {} | {} | {:.1} -> {:.1} | {:.1} -> {:.1} | {:+.0} % |",
                kind.name(),
                e.name,
                e.steps_before,
                e.steps_during,
                e.mean_before,
                e.mean_during,
                e.p95_before,
                e.p95_during,
                e.growth() * 100.0
            );
        }
    }
    Ok(())
}
