//! `gpuwhy vgpu`: who waits for whom where tenants share a GPU.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::vgpu::{Base, Change, Options, Weights, WhatIf, hosts, vgpu, window};
use gpuwhy_schema::terminal;

use crate::exit;

/// Arguments of `vgpu`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A trace with the events of a kernel's GPU driver, as `gpuwhy import` makes of CTF; of several, each is of a host,
    /// and machines are placed over them
    #[arg(required = true, value_name = "T.trace")]
    traces: Vec<PathBuf>,
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
    /// Compare with another run: by how much longer the requests of each tenant took, in which parts, and by whom
    #[arg(long, value_name = "BASE.trace")]
    against: Option<PathBuf>,
    /// Of the other run count only what ends at this time or later, on the clock of its trace
    #[arg(long, value_parser = parse_duration, value_name = "TIME", requires = "against")]
    against_from: Option<Duration>,
    /// Of the other run count only what ends before this time
    #[arg(long, value_parser = parse_duration, value_name = "TIME", requires = "against")]
    against_to: Option<Duration>,
    /// Write a page with pictures and tables into this file, at most 20 MB; it says the finest level that it draws
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a trace for the Perfetto UI into this file: every request, with arrows to its executions
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Reports on tenants; exit code 3 if nothing is found, or if nothing changed where two runs are compared.
pub fn run(args: &Args) -> Result<ExitCode> {
    let base = |path| Base { path, window: window(args.against_from, args.against_to) };
    let options = Options {
        window: window(args.from, args.to),
        what_if: WhatIf::of(&args.what_if).into_iter().collect(),
        weights: args.weights.clone().unwrap_or_default(),
        against: args.against.clone().map(base),
    };
    let [trace] = &args.traces[..] else {
        let draws = args.html.as_ref().or(args.perfetto.as_ref());
        anyhow::ensure!(draws.is_none(), "--html and --perfetto draw one trace; give one");
        let found = hosts(&args.traces, &options)?;
        match args.json {
            true => terminal::say_json(&serde_json::to_string_pretty(&found)?)?,
            false => terminal::show(&found.text())?,
        }
        return Ok(if found.found_something() { ExitCode::SUCCESS } else { exit::nothing() });
    };
    let found = vgpu(trace, &options)?;
    if let Some(path) = &args.html {
        gpuwhy_store::write_file(path, found.html().as_bytes())?;
    }
    if let Some(path) = &args.perfetto {
        found.perfetto(path)?;
    }
    let report = found.report;
    if args.json {
        terminal::say_json(&serde_json::to_string_pretty(&report)?)?;
    } else {
        terminal::show(&report.text())?;
    }
    Ok(if report.found_something() { ExitCode::SUCCESS } else { exit::nothing() })
}
