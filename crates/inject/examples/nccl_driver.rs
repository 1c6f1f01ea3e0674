//! Plays one rank of a job through the real libnccl, without a GPU.
//!
//! ```text
//! nccl_driver LIBNCCL PLUGIN straggler --rank R --ranks N --steps S --barrier FILE
//!             [--late-us X] [--late-from S1] [--late-until S2] [--compute-us C] [--channels K]
//! ```
//!
//! Each step computes for C µs, and from step S1 to S2 for X more on a rank that is late; then all ranks meet in an
//! all-reduce: its first phase lasts until the last rank is there, which is really waited for, at
//! a barrier in FILE that all ranks share. The plug-in is called as NCCL would call it, with times
//! of a GPU's clock. Steps and their `allreduce` phases are marked in the ring of `GPUWHY_RING`.
//! NCCL's mask is followed: ask for phases with `GPUWHY_NCCL_MASK=0x8e46`.

#[path = "../tests/nccl/driver.rs"]
#[allow(dead_code)]
mod driver;
#[path = "../tests/nccl/straggler.rs"]
mod straggler;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use straggler::{Straggler, straggler};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nccl_driver: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let mut need = |what: &str| args.next().ok_or(format!("{what} is missing"));
    let (library, plugin) = (PathBuf::from(need("LIBNCCL")?), PathBuf::from(need("PLUGIN")?));
    match need("a scenario")?.as_str() {
        "straggler" => straggler(&library, &plugin, options(args)?),
        other => Err(format!("there is no scenario `{other}`")),
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Straggler, String> {
    let us = Duration::from_micros;
    let mut of = Straggler {
        rank: 0,
        ranks: 1,
        steps: 10,
        late: us(0),
        when: 0..u64::MAX,
        compute: us(2_000),
        channels: 2,
        barrier: PathBuf::new(),
    };
    while let Some(option) = args.next() {
        let value = args.next().ok_or(format!("{option} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|e| format!("{option} {value}: {e}"));
        match option.as_str() {
            "--rank" => of.rank = number()? as u32,
            "--ranks" => of.ranks = number()? as u32,
            "--steps" => of.steps = number()?,
            "--late-us" => of.late = us(number()?),
            "--late-from" => of.when.start = number()?,
            "--late-until" => of.when.end = number()?,
            "--compute-us" => of.compute = us(number()?),
            "--channels" => of.channels = number()?.clamp(1, 64) as u8,
            "--barrier" => of.barrier = value.into(),
            _ => return Err(format!("there is no option `{option}`")),
        }
    }
    if of.barrier.as_os_str().is_empty() {
        return Err("--barrier is missing".into());
    }
    Ok(of)
}
