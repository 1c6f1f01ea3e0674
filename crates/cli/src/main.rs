//! The `gpuwhy` command: what was typed becomes calls of the libraries below.

#![forbid(unsafe_code)]

mod analysis;
mod args;
mod bench;
mod darzi;
mod demo;
mod diagnose;
mod doctor;
mod exit;
mod export;
mod help;
mod import;
mod inside;
mod own;
mod page;
mod paint;
mod parallel;
mod query;
mod record;
mod rounds;
mod validate;
mod variability;
mod watch;
mod workload;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{BenchCommand, Cli, Command};

fn main() -> ExitCode {
    // Ranks and culprits are this program, started again in another role.
    gpuwhy_testkit::helper::dispatch();
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            // A reader that closed the pipe has seen what it wanted.
            if error.chain().any(|e| {
                e.downcast_ref::<std::io::Error>()
                    .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
            }) {
                return ExitCode::SUCCESS;
            }
            eprintln!("gpuwhy: {error:#}");
            exit::failed()
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Query { args } => query::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Variability(args) => variability::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Inject(args) => workload::inject(&args),
        Command::Steploop(args) => workload::steploop(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => match args.which {
            BenchCommand::Injectors(args) => bench::injectors::run(&args),
            BenchCommand::Faults(args) => bench::faults::run(&args),
            BenchCommand::Rates(args) => bench::live::rates(&args),
            BenchCommand::Overload(args) => bench::live::overload(&args),
            BenchCommand::Soak(args) => bench::live::soak(&args),
            BenchCommand::Nodes(args) => bench::nodes::run(&args),
            BenchCommand::Darzi(args) => bench::darzi::run(&args),
            BenchCommand::Crash(args) => bench::crash::run(&args),
            BenchCommand::Server(args) => bench::server::run(&args),
            BenchCommand::Overhead(args) => bench::overhead::run(&args),
            BenchCommand::TraceData(args) => bench::trace_data::run(&args),
        },
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "gpuwhy", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::HelpAll => {
            print!("{}", help::markdown());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man => {
            clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::ExecWhenTold { gate, command } => record::exec_when_told(&gate, &command),
    }
}
