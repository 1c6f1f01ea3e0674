//! The workload and its injectors as commands, and a table of what each injector does to the steps.

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
    /// Run the workload, until it is interrupted or for a limited time.
    Steploop(Workload),
    /// Disturb a running workload; prints a label of what was done as a line of JSON.
    Inject {
        /// Which disturbance.
        kind: Kind,
        /// Seconds to wait before it begins.
        #[arg(long, default_value_t = 0.0)]
        after: f64,
        /// Seconds that it lasts.
        #[arg(long = "for", default_value_t = 5.0)]
        seconds: f64,
        /// Strength; 1 is the usual one.
        #[arg(long, default_value_t = 1.0)]
        intensity: f64,
        /// Work directory of the workload; needed if more than one runs.
        #[arg(long)]
        work_dir: Option<PathBuf>,
    },
    /// Run a workload on the scripted GPU of GPUWHY_STANDIN; prints a summary as a line of JSON.
    Gpuloop {
        /// Seconds to run; until interrupted if absent.
        #[arg(long = "for")]
        seconds: Option<f64>,
        /// Rank that its steps are marked with.
        #[arg(long, default_value_t = 0)]
        rank: u32,
        /// Kernels per step.
        #[arg(long, default_value_t = 8)]
        kernels: u32,
        /// Duration of each kernel at the nominal clock, µs.
        #[arg(long, default_value_t = 400)]
        kernel_us: u64,
        /// MiB that each step copies to the device.
        #[arg(long, default_value_t = 4)]
        batch_mib: u32,
        /// Launch the kernels of three of four steps as a graph.
        #[arg(long)]
        graph: bool,
        /// CUDA's ordinal of the device.
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// Print no summary.
        #[arg(long)]
        quiet: bool,
    },
    /// Compete for the scripted GPU; prints a label as a line of JSON.
    Gpuhog {
        /// Seconds to run; until interrupted if absent.
        #[arg(long = "for")]
        seconds: Option<f64>,
        /// Duration of each kernel at the nominal clock, µs.
        #[arg(long, default_value_t = 5000)]
        kernel_us: u64,
        /// CUDA's ordinal of the device.
        #[arg(long, default_value_t = 0)]
        device: u32,
    },
    /// Inject a fault into the scripted GPU or its CUPTI, and repair it; prints a label as a line
    /// of JSON.
    GpuFault {
        /// Which fault.
        kind: gpufault::Kind,
        /// Seconds that it lasts; until interrupted if absent.
        #[arg(long = "for")]
        seconds: Option<f64>,
        /// Index of the GPU in the machine.
        #[arg(long, default_value_t = 0)]
        gpu: u32,
        /// The process in whose work an Xid happens; 0 for none.
        #[arg(long, default_value_t = 0)]
        pid: u64,
    },
    /// Make a directory with links to the stand-in under the names of NVIDIA's libraries.
    GpuLinks {
        /// The directory to make, for LD_LIBRARY_PATH.
        dir: PathBuf,
        /// The stand-in, libgpuwhy_standin.so.
        object: PathBuf,
    },
    /// Measure what injectors do to the steps.
    Measure {
        /// Which injectors; all if none is given.
        kinds: Vec<Kind>,
        /// Seconds without disturbance.
        #[arg(long, default_value_t = 3.0)]
        before: f64,
        /// Seconds with disturbance.
        #[arg(long, default_value_t = 5.0)]
        during: f64,
        /// Strength; 1 is the usual one.
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
    /// Connect the ranks over loopback, without network namespaces.
    #[arg(long)]
    loopback: bool,
    /// CSV file for the steps, written by the workload itself.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Ring that steps are marked in, instead of that of GPUWHY_RING.
    #[arg(long)]
    ring: Option<PathBuf>,
    /// Directory to create for its files.
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
            let waiter = Waiter::new().context("cannot handle signals")?;
            let summary = gpuloop::start(&config)?.finish_or_interrupt(&waiter)?;
            if !quiet {
                print(&summary);
            }
            Ok(())
        }
        Command::Gpuhog { seconds, kernel_us, device } => {
            let hog = gpuloop::Hog { seconds, kernel_us, device, environment: Default::default() };
            let waiter = Waiter::new().context("cannot handle signals")?;
            print(&gpuloop::start_hog(&hog)?.finish_or_interrupt(&waiter)?);
            Ok(())
        }
        Command::GpuFault { kind, seconds, gpu, pid } => {
            let spec = gpufault::Spec { kind, seconds, gpu, pid, environment: Default::default() };
            let waiter = Waiter::new().context("cannot handle signals")?;
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

#[expect(
    clippy::disallowed_methods,
    reason = "a line of JSON of our own, for the program that started it"
)]
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
