//! The `gpuwhy` command: what was typed becomes calls of the libraries below.
//!
//! Each command is one file with its arguments, `run`, and what it prints. Adding one takes that file,
//! its `mod` and its line in the list below, and a test.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod command;
mod companion;
mod diagnose;
mod doctor;
mod exit;
mod explain;
mod export;
mod fleet;
mod import;
mod record;
mod requests;
mod serving;
mod sink;
mod validate;
mod variability;
mod vgpu;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use gpuwhy_schema::terminal;

/// Why did this GPU work take longer than it should have, who did it, and how sure are we?
#[derive(Debug, Parser)]
#[command(name = "gpuwhy", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing anomalous or \
inconclusive, 5 a privilege is missing; `record` and `watch` return the status of their command; `variability --against` 0 if something changed, 3 if not.\nStart with `gpuwhy doctor`, then \
`gpuwhy record -o run.trace -- CMD` and `gpuwhy diagnose run.trace`.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// One command.
#[derive(Debug, Subcommand)]
enum Command {
    /// Check what this host allows to be recorded, with the exact fix for what it does not
    Doctor(doctor::Args),
    /// Record a trace from every source that this host offers
    Record(Box<record::Args>),
    /// Record and judge at once: a verdict within seconds of a slowdown
    Watch(Box<watch::Args>),
    /// Make the keys by which a correlator and its nodes know each other
    Fleet(fleet::Args),
    /// Find what was slow in a trace and why: ranked causes with evidence
    Diagnose(diagnose::Args),
    /// Explain a class of causes: how it is recognised, how to verify it, what fools it
    Explain(explain::Args),
    /// Convert other tools' files into a trace: Nsight Systems, PyTorch profiler, LTTng, trace-cmd, perf, Perfetto
    Import(import::Args),
    /// Find the intervals, ranks and links of GPU work that differ from the others, and the critical path
    Variability(variability::Args),
    /// Find who waits for whom where virtual machines or processes share a GPU
    Vgpu(vgpu::Args),
    /// Find which requests to a language model were late and why: queue, prompts of others, slow steps
    Requests(requests::Args),
    /// Look at engines that serve language models: which of their spans can be recorded
    Engine(serving::Args),
    /// Write, verify and try eBPF programs for GPU kernels, and find which kernels they reach (runs gpuwhy-probe)
    #[command(disable_help_flag = true)]
    Probe(companion::Args),
    /// Query a trace in SQL (runs gpuwhy-query)
    #[command(disable_help_flag = true)]
    Query(companion::Args),
    /// Check that a trace keeps every rule of its schema
    Validate(validate::Args),
    /// Convert a trace into another tool's format
    Export(export::Args),
    /// Disturb a running steploop, with a label that says what was done (runs gpuwhy-bench)
    #[command(disable_help_flag = true)]
    Inject(companion::Args),
    /// Run the simulated distributed training loop that `inject` disturbs (runs gpuwhy-bench)
    #[command(disable_help_flag = true)]
    Steploop(companion::Args),
    /// See a real verdict about a real slowdown on this machine (runs gpuwhy-bench)
    #[command(disable_help_flag = true)]
    Demo(companion::Args),
    /// Run the benchmarks that the documents quote (runs gpuwhy-bench)
    #[command(disable_help_flag = true)]
    Bench(companion::Args),
    /// Print shell completions
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// The manual page in roff
    #[command(hide = true)]
    Man,
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

fn main() -> ExitCode {
    terminal::tell_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // What was typed may be the name of somebody's file.
        Err(error) if error.use_stderr() => {
            terminal::fail(error.render());
            return exit::usage();
        }
        // Help and version.
        Err(error) => error.exit(),
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            // A reader that closed the pipe has read what it wanted.
            if error.chain().any(|e| {
                e.downcast_ref::<std::io::Error>()
                    .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
            }) {
                return ExitCode::SUCCESS;
            }
            terminal::fail(format_args!("gpuwhy: {error:#}"));
            exit::failed()
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Record(args) => command::started(record::run(&args)),
        Command::Watch(args) => command::started(watch::run(&args)),
        Command::Fleet(args) => fleet::run(&args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Variability(args) => variability::run(&args),
        Command::Vgpu(args) => vgpu::run(&args),
        Command::Requests(args) => requests::run(&args),
        Command::Engine(args) => serving::run(&args),
        Command::Probe(args) => companion::beside("gpuwhy-probe", None, &args),
        Command::Validate(args) => validate::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Query(args) => companion::query(&args),
        Command::Inject(args) => companion::beside("gpuwhy-bench", Some("inject"), &args),
        Command::Steploop(args) => companion::beside("gpuwhy-bench", Some("steploop"), &args),
        Command::Demo(args) => companion::beside("gpuwhy-bench", Some("demo"), &args),
        Command::Bench(args) => companion::beside("gpuwhy-bench", Some("bench"), &args),
        Command::Completions { shell } => {
            let mut out = terminal::exact_stdout();
            clap_complete::generate(shell, &mut Cli::command(), "gpuwhy", &mut out);
            Ok(ExitCode::SUCCESS)
        }
        Command::Man => {
            clap_mangen::Man::new(Cli::command()).render(&mut terminal::exact_stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Exec { launch, command } => {
            let Err(error) = gpuwhy_engine::launch::exec_when_open(&launch, &command);
            command::started(Err(error.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }
}
