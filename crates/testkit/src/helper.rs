//! Ranks and culprits as processes: this program, started again in another role.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sys;

const MARKER: &str = "__testkit";
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Plays a role and does not return, if this process was started for one. Must come first in the
/// `main` of every program that uses this crate, before it starts a thread.
pub fn dispatch() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|marker| marker != MARKER) {
        return;
    }
    let (role, spec) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    sys::unblock_signals();
    let code = match play(role, spec) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("gpuwhy-testkit: {error:#}");
            1
        }
    };
    std::process::exit(code);
}

/// Has roles played by another program than this one: for tests, whose own `main` is not theirs.
/// The first call counts.
pub fn set_program(program: impl AsRef<Path>) {
    let _ = PROGRAM.set(program.as_ref().to_owned());
}

fn play(role: OsString, spec: OsString) -> Result<()> {
    let (role, spec) = (role.to_string_lossy(), spec.to_string_lossy());
    match &*role {
        "steploop" => crate::steploop::supervise(parse(&spec)?),
        "rank" => crate::steploop::rank::run(parse(&spec)?),
        "inject" => crate::inject::act(parse(&spec)?),
        _ => bail!("no role is called `{role}`"),
    }
}

fn parse<T: DeserializeOwned>(spec: &str) -> Result<T> {
    serde_json::from_str(spec).context("cannot read what this role should do")
}

/// The command that plays a role; killed by `signal` when the calling thread ends.
pub(crate) fn command(role: &str, spec: &impl Serialize, signal: i32) -> Result<Command> {
    let spec = serde_json::to_string(spec).context("cannot write what a role should do")?;
    // By this link the program is found even when it was built anew since it was started.
    let mut command = match PROGRAM.get() {
        Some(program) => Command::new(program),
        None => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0(std::env::current_exe().unwrap_or_else(|_| "gpuwhy-testkit".into()));
            command
        }
    };
    command.arg(MARKER).arg(role).arg(spec);
    sys::die_with_parent(&mut command, signal);
    Ok(command)
}
