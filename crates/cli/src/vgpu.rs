//! `gpuwhy vgpu`: who waits for whom where tenants share a GPU.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::vgpu::{Change, Options, Weights, WhatIf, vgpu};
use gpuwhy_schema::terminal;

use crate::exit;

/// Arguments of `vgpu`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A trace with the events of a kernel's GPU driver, as `gpuwhy import` makes of CTF
    #[arg(value_name = "T.trace")]
    trace: PathBuf,
    /// Count only what ends at this time or later, on the clock of the trace: 12.5s, 300ms
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    from: Option<Duration>,
    /// Count only what ends before this time
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    to: Option<Duration>,
    /// Replay the requests under another policy of GVT-g's scheduler: work-conserving, no-debts, weights=A:2,B:1 (by name
    /// or number of the virtual GPU), or kernel; may be given several times
    #[arg(long, value_name = "POLICY")]
    what_if: Vec<Change>,
    /// The weights that tenants had, for --what-if: A:2,B:1; without it, all are equal
    #[arg(long, requires = "what_if")]
    weights: Option<Weights>,
    /// Write a page with pictures and tables into this file, at most 20 MB; it says the finest level that it draws
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Reports on tenants; exit code 3 if nothing is found.
pub fn run(args: &Args) -> Result<ExitCode> {
    let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let window = (args.from.is_some() || args.to.is_some())
        .then(|| args.from.map_or(i64::MIN, ns)..args.to.map_or(i64::MAX, ns));
    let what_if = WhatIf::of(&args.what_if).into_iter().collect();
    let weights = args.weights.clone().unwrap_or_default();
    let found = vgpu(&args.trace, &Options { window, what_if, weights })?;
    if let Some(path) = &args.html {
        gpuwhy_store::write_file(path, found.html().as_bytes())?;
    }
    let report = found.report;
    if args.json {
        terminal::say_json(&serde_json::to_string_pretty(&report)?)?;
    } else {
        terminal::show(&report.text())?;
    }
    Ok(if report.findings.is_empty() { exit::nothing() } else { ExitCode::SUCCESS })
}
