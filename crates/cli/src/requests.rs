//! `gpuwhy requests`: how late requests to a language model were, and why.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use gpuwhy_engine::requests::{Options, Order, Slo, requests};

use crate::args::tell;
use crate::exit;

/// Arguments of `requests`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A trace of an engine that serves language models, as `record` or `watch` writes it
    #[arg(value_name = "T.trace")]
    trace: PathBuf,
    /// How many requests are told in full, the worst first
    #[arg(short = 'n', long, default_value_t = 5, value_name = "N")]
    worst: usize,
    /// By what: late (time that was not its own work), ttft (time to the first token), tpot (time of each later one),
    /// gap (longest between two tokens), total
    #[arg(long, default_value = "late", value_name = "WHAT")]
    by: Order,
    /// Tell the requests whose name, or trace id of OpenTelemetry, holds this, instead of the worst
    #[arg(long, value_name = "TEXT")]
    named: Option<String>,
    /// What was promised, such as ttft=500ms or tpot=50ms; may be given several times
    #[arg(long, value_name = "WHAT=TIME")]
    slo: Vec<Slo>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Reports on requests; exit code 3 if there are none.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (worst, order) = (args.worst, args.by);
    let (named, slos) = (args.named.clone(), args.slo.clone());
    let report = requests(&args.trace, &Options { worst, order, named, slos })?;
    tell(args.json, &report, || report.text())?;
    Ok(if report.told.is_empty() { exit::nothing() } else { ExitCode::SUCCESS })
}
