//! `gpuwhy validate`: every rule of the schema, checked on a trace.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use gpuwhy_schema::text::Screen;
use gpuwhy_store::Trace;

use crate::args::tell;
use crate::exit;

/// Arguments of `validate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace to check
    #[arg(value_name = "T.trace")]
    trace: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Checks a trace; exit code 1 if a rule is broken.
pub fn run(args: &Args) -> Result<ExitCode> {
    let trace = Trace::open(&args.trace)?;
    let report = gpuwhy_store::validate(&trace);
    tell(args.json, &report, || std::mem::take(Screen::new(false).block("  ", &report)))?;
    Ok(if report.is_valid() { ExitCode::SUCCESS } else { exit::failed() })
}
