//! Ranks, injectors and GPU programs as processes of their own: this program, started again with a
//! role and a task.

mod child;
mod deadline;
mod process;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use child::Failed;
pub(crate) use child::JsonChild;
pub(crate) use deadline::Deadline;
pub use process::{HelperProcess, set_program};
pub(crate) use process::{MARKER, command, print_json};

use crate::{gpufault, gpuloop, guest, inject, steploop, sys, vms};

/// Runs the role that this process was started for and does not return; returns at once if it was
/// started for none. Must come first in the `main` of every program that uses this crate, before it
/// starts a thread.
pub fn dispatch() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|marker| marker != process::MARKER) {
        return;
    }
    let (role, task) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    sys::unblock_signals();
    let code = match run(&role.to_string_lossy(), &task.to_string_lossy()) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("gpuwhy-testkit: {error:#}");
            print_json(&Failed { failed: format!("{error:#}") });
            1
        }
    };
    std::process::exit(code);
}

/// The roles, each with what runs it.
fn run(role: &str, task: &str) -> Result<()> {
    match role {
        "steploop" => steploop::supervise(parse(task)?),
        "rank" => steploop::rank::run(parse(task)?),
        "inject" => inject::run(parse(task)?),
        "gpuloop" => gpuloop::run(parse(task)?),
        "gpuhog" => gpuloop::run_hog(parse(task)?),
        "guest" => guest::run(parse(task)?),
        "vm" => vms::run(parse(task)?),
        "gpu-fault" => gpufault::run(parse(task)?),
        _ => bail!("no helper process has the role `{role}`"),
    }
}

fn parse<T: DeserializeOwned>(task: &str) -> Result<T> {
    serde_json::from_str(task).context("cannot parse the task of this helper process")
}
