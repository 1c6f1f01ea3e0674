//! The programs that a benchmark starts: `gpuwhy` beside this one, and this one again.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use gpuwhy_engine::launch::{self, Instrumentation, MarkRing, Supervised, program_beside};
use gpuwhy_schema::terminal;

/// The `gpuwhy` that is measured: as GPUWHY_BIN says, or beside this program, or on the PATH.
pub fn gpuwhy() -> PathBuf {
    program_beside("gpuwhy", "GPUWHY_BIN")
}

/// This program, which is also the workload.
pub fn own() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find the binary of gpuwhy-bench")
}

/// Runs a command as `gpuwhy record` does, but records nothing.
pub fn supervise(command: &[OsString]) -> Result<ExitCode> {
    let start = || {
        launch::check_program(&command[0])?;
        let ring = MarkRing::make(None)?;
        let own = std::env::current_exe()
            .map_err(gpuwhy_engine::Error::io("find", "/proc/self/exe".as_ref()))?;
        let mut supervised =
            Supervised::start(&own, command, ring.path(), &Instrumentation::none(), None)?;
        supervised.release()?;
        Ok(supervised.wait())
    };
    match start() {
        Ok(status) => Ok(ExitCode::from(status.code)),
        Err(error) => not_started(error),
    }
}

/// The exit code of a command that could not be started.
pub fn not_started(error: gpuwhy_engine::Error) -> Result<ExitCode> {
    let Some(code) = error.exit_code() else { return Err(error.into()) };
    terminal::fail(format_args!("gpuwhy: {:#}", anyhow::Error::from(error)));
    Ok(ExitCode::from(code))
}

/// Why this host cannot be recorded, and what would change that.
pub fn cannot_record() -> Option<String> {
    let checks = gpuwhy_collect::host::needed();
    let missing: Vec<String> = checks
        .iter()
        .filter(|c| c.needed && !c.ok)
        .map(|c| format!("  {}: {}\n    fix: {}", c.name, c.found, c.fix))
        .collect();
    let list = missing.join("\n");
    (!missing.is_empty()).then(|| format!("this user cannot record this host:\n{list}"))
}
