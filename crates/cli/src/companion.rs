//! Commands that are programs of their own: `gpuwhy-query` carries the SQL engine, `gpuwhy-probe` the
//! compiler of device probes, `gpuwhy-bench` workload, injectors, benchmarks and demo.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::Result;
use gpuwhy_engine::{Error, launch, query};

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

/// Becomes the program `name`, with `command` first.
pub fn beside(name: &str, command: Option<&str>, args: &Args) -> Result<ExitCode> {
    let program = launch::program_beside(name, &name.to_uppercase().replace('-', "_"));
    let source = Command::new(&program).args(command).args(&args.args).exec();
    let hint = match source.kind() {
        std::io::ErrorKind::NotFound => {
            ": it is a program of its own; `make release` builds it, and GPUWHY_BENCH or GPUWHY_PROBE \
             names it if it is neither beside gpuwhy nor on the PATH"
        }
        _ => "",
    };
    Err(Error::Run { program: program.display().to_string(), hint, source }.into())
}
