//! `gpuwhy-bench`: what measures gpuwhy, apart from it: the workload, the injectors, the benchmarks and
//! the demo. `gpuwhy bench`, `inject`, `steploop` and `demo` run this program.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod crash;
mod darzi;
mod demo;
mod faults;
mod injectors;
mod kernel_trace;
mod live;
mod nodes;
mod overhead;
mod program;
mod result;
mod safety;
mod server;
mod stage;
mod stolen;
mod trace_data;
mod trial;
mod vcpus;
mod vgpu;
mod windows;
mod workload;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gpuwhy_schema::terminal;

/// The workload, the injectors, the benchmarks and the demo of gpuwhy
#[derive(Debug, Parser)]
#[command(name = "gpuwhy", bin_name = "gpuwhy", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Disturb a running steploop, with a label that says what was done
    Inject(workload::InjectArgs),
    /// Run the simulated distributed training loop that `inject` disturbs
    Steploop(workload::SteploopArgs),
    /// See a real verdict about a real slowdown on this machine
    Demo(demo::Args),
    /// Run the benchmarks that the documents quote
    Bench {
        #[command(subcommand)]
        which: Bench,
    },
    /// Start a command, pass signals on to it and return its status, as `gpuwhy record` does, but record
    /// nothing
    #[command(hide = true, name = "__supervise")]
    Supervise {
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Write numbered rows into a trace, and say how many were lost
    #[command(hide = true, name = "__write-rows")]
    WriteRows {
        /// The trace
        path: PathBuf,
        /// How many at a time
        batch: u64,
        /// The socket that is told
        answers: PathBuf,
    },
    /// Run virtual machines and threads in their way, pinned; print what the kernel counted of them
    #[command(hide = true, name = "__machines")]
    Machines(vcpus::MachinesArgs),
    /// Wait for the recorder, then become the command
    #[command(hide = true, name = "__exec")]
    Exec {
        /// How, as the recorder says it
        launch: String,
        /// The command
        #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

/// One benchmark.
#[derive(Debug, Subcommand)]
enum Bench {
    /// Cost of watching and time to a verdict, over read rates
    Rates(live::RatesArgs),
    /// A workload that overloads the watcher: what is no longer recorded, and how much it is slowed
    Overload(live::OverloadArgs),
    /// A long watch with a disturbance every minute: does its memory stay flat?
    Soak(live::SoakArgs),
    /// Three nodes with wrong clocks, one disturbed: does the correlator name the rank, and why?
    Nodes(nodes::Args),
    /// Faults of random kind, strength, place and time, judged while they happen
    Faults(faults::Args),
    /// Several fresh trials of every injector: are class and culprit right?
    Injectors(injectors::Args),
    /// False alarms per clean 5 s window: ours and the published method on the same recordings
    Darzi(darzi::Args),
    /// Cost of recording, on five workloads
    Overhead(overhead::Args),
    /// The recorder killed at random moments: does every trace open, validate and hold all?
    Crash(crash::Args),
    /// What gpuwhy withstands: full disks, hostile guests, a besieged correlator, power cuts
    Safety(safety::Args),
    /// An unmodified Redis, disturbed by a CPU hog and by a disk hog
    Server(server::Args),
    /// Write a generated database of Nsight Systems, or trace of the PyTorch profiler, with stalls at
    /// known places
    TraceData(trace_data::Args),
    /// Simulated hosts that share a GPU: are idle and long-running neighbours found, and nothing else?
    Vgpu(vgpu::Args),
    /// How long it takes to see a random window of a trace
    Windows(windows::Args),
    /// Real virtual machines in each other's way: are their preemptions those that the kernel counts?
    Vcpus(vcpus::Args),
}

fn main() -> ExitCode {
    // Ranks and culprits are this program, started again in another role.
    gpuwhy_testkit::helper::dispatch();
    terminal::tell_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // What was typed may be the name of somebody's file.
        Err(error) if error.use_stderr() => {
            terminal::fail(error.render());
            return ExitCode::from(2);
        }
        // Help and version.
        Err(error) => error.exit(),
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            terminal::fail(format_args!("gpuwhy: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Inject(args) => workload::inject(&args),
        Command::Steploop(args) => workload::steploop(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench { which } => match which {
            Bench::Rates(args) => live::rates(&args),
            Bench::Overload(args) => live::overload(&args),
            Bench::Soak(args) => live::soak(&args),
            Bench::Nodes(args) => nodes::run(&args),
            Bench::Faults(args) => faults::run(&args),
            Bench::Injectors(args) => injectors::run(&args),
            Bench::Darzi(args) => darzi::run(&args),
            Bench::Overhead(args) => overhead::run(&args),
            Bench::Crash(args) => crash::run(&args),
            Bench::Safety(args) => safety::run(&args),
            Bench::Server(args) => server::run(&args),
            Bench::TraceData(args) => trace_data::run(&args),
            Bench::Vgpu(args) => vgpu::run(&args),
            Bench::Windows(args) => windows::run(&args),
            Bench::Vcpus(args) => vcpus::run(&args),
        },
        Command::Supervise { command } => program::supervise(&command),
        Command::WriteRows { path, batch, answers } => {
            safety::disk_fault::write_rows(&path, batch, &answers)
        }
        Command::Machines(args) => vcpus::machines(&args),
        Command::Exec { launch, command } => {
            let Err(error) = gpuwhy_engine::launch::exec_when_open(&launch, &command);
            program::not_started(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }
}
