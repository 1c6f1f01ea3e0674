//! `gpuwhy export`: a trace in another tool's format.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use gpuwhy_engine::TraceSource;
use gpuwhy_engine::view;
use gpuwhy_schema::{Ns, terminal};

/// Arguments of `export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace to convert
    #[arg(value_name = "T.trace")]
    trace: PathBuf,
    /// Write a trace for the Perfetto UI to this file
    #[arg(long, value_name = "FILE")]
    perfetto: PathBuf,
    /// Start at this second of the recording
    #[arg(long, value_name = "S")]
    from: Option<f64>,
    /// End at this second of the recording
    #[arg(long, value_name = "S")]
    to: Option<f64>,
    /// Print one JSON document about what was written
    #[arg(long)]
    json: bool,
}

/// Writes the trace as a Perfetto trace, findings included.
pub fn run(args: &Args) -> Result<ExitCode> {
    let source = TraceSource::open(&args.trace)?;
    let begin = Ns(source.trace().summary().start.unwrap_or(0));
    let at = |s: f64| begin.saturating_add(Ns((s * 1e9) as i64));
    let range = args.from.map_or(Ns::MIN, at)..args.to.map_or(Ns::MAX, at);
    let stats = view::export::write(&source, &args.perfetto, range)?;
    if args.json {
        let document = serde_json::json!({
            "schema_version": 1,
            "perfetto": args.perfetto.display().to_string(),
            "slices": stats.slices,
            "instants": stats.instants,
            "counters": stats.counters,
            "flows": stats.flows,
            "tracks": stats.tracks,
            "bytes": stats.bytes,
            "misplaced": stats.misplaced,
            "loose_flows": stats.loose_flows,
        });
        terminal::say_json(&serde_json::to_string_pretty(&document)?)?;
    } else {
        terminal::say(format_args!(
            "{}: {} slices, {} counter values, {} instants, {} flows on {} tracks, {} bytes; open \
             it in https://ui.perfetto.dev",
            args.perfetto.display(),
            stats.slices,
            stats.counters,
            stats.instants,
            stats.flows,
            stats.tracks,
            stats.bytes
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
