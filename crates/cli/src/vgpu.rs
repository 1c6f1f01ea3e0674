//! `gpuwhy vgpu`: who waits for whom where tenants share a GPU.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::vgpu::{
    Base, Change, GuestTrace, Options, Weights, WhatIf, hosts, vgpu, window,
};

use crate::args::tell;
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
    /// Join the trace of a guest, made at the same time, with this one of its host: VGPU is the tenant's name or the number of
    /// its virtual GPU; may be given for several guests. Waits then begin in the guest's queue
    #[arg(long, value_name = "VGPU=G.trace", conflicts_with = "against")]
    guest: Vec<GuestTrace>,
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
        guests: args.guest.clone(),
    };
    let [trace] = &args.traces[..] else {
        let is_of_one = args.html.is_some() || args.perfetto.is_some() || !args.guest.is_empty();
        anyhow::ensure!(!is_of_one, "--html, --perfetto and --guest are about one trace; give one");
        let found = hosts(&args.traces, &options)?;
        tell(args.json, &found, || found.text())?;
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
    tell(args.json, &report, || report.text())?;
    Ok(if report.found_something() { ExitCode::SUCCESS } else { exit::nothing() })
}
