//! Commands that are programs of their own beside this one: `gpuwhy-query` carries the SQL engine,
//! `gpuwhy-bench` the workload, the injectors, the benchmarks and the demo. Whoever only records and
//! diagnoses needs neither.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::Result;
use gpuwhy_engine::{Error, launch, query};

/// The program of the benchmarks.
const BENCH: &str = "gpuwhy-bench";

/// Passed on to the program as they are.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Arguments of the command; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// Becomes `gpuwhy-query`.
pub fn query(args: &Args) -> Result<ExitCode> {
    Err(query::cannot_run(Command::new(query::program()).args(&args.args).exec()).into())
}

/// Becomes `gpuwhy-bench COMMAND`.
pub fn bench(command: &str, args: &Args) -> Result<ExitCode> {
    let program = launch::program_beside(BENCH, "GPUWHY_BENCH");
    let source = Command::new(&program).arg(command).args(&args.args).exec();
    let hint = match source.kind() {
        std::io::ErrorKind::NotFound => {
            ": the benchmarks are a program of their own; `make release` builds it, and GPUWHY_BENCH \
             names it if it is neither beside gpuwhy nor on the PATH"
        }
        _ => "",
    };
    Err(Error::Run { program: program.display().to_string(), hint, source }.into())
}
