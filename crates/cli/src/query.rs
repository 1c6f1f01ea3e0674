//! `gpuwhy query`: runs `gpuwhy-query`, the program that carries the SQL engine.
//!
//! The engine is an hour of compiling and a hundred megabytes; those who record and diagnose need
//! neither, so it is a program of its own beside this one.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow};

/// Its name.
const PROGRAM: &str = "gpuwhy-query";

/// The program: `GPUWHY_QUERY`, or beside this one, or on the PATH.
pub fn program() -> PathBuf {
    if let Some(said) = std::env::var_os("GPUWHY_QUERY") {
        return said.into();
    }
    let beside = std::env::current_exe().ok().map(|exe| exe.with_file_name(PROGRAM));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}

/// Says what to do about a program that cannot be run.
pub fn cannot_run(error: std::io::Error) -> anyhow::Error {
    let path = program();
    if error.kind() == std::io::ErrorKind::NotFound {
        return anyhow!(
            "`{}` is not here: SQL and clusters are a program of their own; `make query` builds it, \
             and GPUWHY_QUERY says where it lies if not beside gpuwhy or on the PATH",
            path.display()
        );
    }
    anyhow::Error::new(error).context(format!("cannot run `{}`", path.display()))
}

/// Becomes that program.
pub fn run(args: &[String]) -> Result<ExitCode> {
    Err(cannot_run(Command::new(program()).args(args).exec()))
}
