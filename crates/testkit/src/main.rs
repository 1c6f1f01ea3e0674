//! The workload and its injectors by hand, and the table of what each injector does to the steps.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use gpuwhy_testkit::inject::{Injector, Kind, Placement, Spec};
use gpuwhy_testkit::steploop::{self, Config, Ready};
use gpuwhy_testkit::sys::Waiter;
use gpuwhy_testkit::{gpu, gpufault, gpuloop, measure};

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
    /// Run a workload on the GPU that GPUWHY_STANDIN scripts; a line of JSON at its end.
    Gpuloop {
        /// Seconds to run; until interrupted if absent.
        #[arg(long = "for")]
        seconds: Option<f64>,
        /// What its steps are marked with.
        #[arg(long, default_value_t = 0)]
        rank: u32,
        /// Kernels a step.
        #[arg(long, default_value_t = 8)]
        kernels: u32,
        /// How long each takes at the nominal clock, µs.
        #[arg(long, default_value_t = 400)]
        kernel_us: u64,
        /// MiB that each step copies to the device.
        #[arg(long, default_value_t = 4)]
        batch_mib: u32,
        /// Replay the kernels of three of four steps as a graph.
        #[arg(long)]
        graph: bool,
        /// CUDA's number of the device.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Say nothing at the end.
        #[arg(long)]
        quiet: bool,
    },
    /// Compete for that GPU; prints the label as a line of JSON.
    Gpuhog {
        /// Seconds to run; until interrupted if absent.
        #[arg(long = "for")]
        seconds: Option<f64>,
        /// How long each kernel takes at the nominal clock, µs.
        #[arg(long, default_value_t = 5000)]
        kernel_us: u64,
        /// CUDA's number of the device.
        #[arg(long, default_value_t = 0)]
        device: u32,
    },
    /// Have something happen to that GPU, or to its CUPTI, and heal it; prints the label as a line
    /// of JSON.
    GpuFault {
        /// What happens.
        kind: gpufault::Kind,
        /// Seconds that it lasts; until interrupted if absent.
        #[arg(long = "for")]
        seconds: Option<f64>,
        /// The GPU, by the machine's number.
        #[arg(long, default_value_t = 0)]
        gpu: u32,
        /// The process in whose work an Xid happens.
        #[arg(long, default_value_t = 0)]
        pid: u64,
    },
    /// Make a directory in which the stand-in is found under the names of NVIDIA's libraries.
    GpuLinks {
        /// The directory, for LD_LIBRARY_PATH.
        dir: PathBuf,
        /// libgpuwhy_standin.so
        object: PathBuf,
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
        Command::Gpuloop { seconds, rank, kernels, kernel_us, batch_mib, graph, device, quiet } => {
            let config = gpuloop::Config {
                seconds,
                rank,
                kernels,
                kernel_us,
                batch_mib,
                graph,
                device,
                ..gpuloop::Config::default()
            };
            let waiter = Waiter::new().context("cannot take over signals")?;
            let summary = gpuloop::start(&config)?.finish_or_interrupt(&waiter)?;
            if !quiet {
                print(&summary);
            }
            Ok(())
        }
        Command::Gpuhog { seconds, kernel_us, device } => {
            let hog = gpuloop::Hog { seconds, kernel_us, device, environment: Default::default() };
            let waiter = Waiter::new().context("cannot take over signals")?;
            print(&gpuloop::start_hog(&hog)?.finish_or_interrupt(&waiter)?);
            Ok(())
        }
        Command::GpuFault { kind, seconds, gpu, pid } => {
            let spec = gpufault::Spec { kind, seconds, gpu, pid, environment: Default::default() };
            let waiter = Waiter::new().context("cannot take over signals")?;
            print(&gpufault::start(&spec)?.finish_or_interrupt(&waiter)?);
            Ok(())
        }
        Command::GpuLinks { dir, object } => gpu::link_libraries(&dir, &object),
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
