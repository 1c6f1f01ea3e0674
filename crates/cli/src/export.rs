//! `gpuwhy export`: other tools' formats.

use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use gpuwhy_schema::Ns;
use gpuwhy_store::Trace;

use crate::analysis;
use crate::args::Export;

/// Writes the trace as a Perfetto trace, findings included.
pub fn run(args: &Export) -> Result<ExitCode> {
    let trace = Trace::open(&args.trace)?;
    let begin = Ns(trace.summary().start.unwrap_or(0));
    let at = |s: f64| begin.saturating_add(Ns((s * 1e9) as i64));
    let range = args.from.map_or(Ns::MIN, at)..args.to.map_or(Ns::MAX, at);
    let stats = perfetto(&trace, &args.perfetto, range)?;
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
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        println!(
            "{}: {} slices, {} counter values, {} instants, {} flows on {} tracks, {} bytes; open \
             it in https://ui.perfetto.dev",
            args.perfetto.display(),
            stats.slices,
            stats.counters,
            stats.instants,
            stats.flows,
            stats.tracks,
            stats.bytes
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the rows of `range` and the findings in them to `path`.
pub fn perfetto(
    trace: &Trace,
    path: &std::path::Path,
    range: std::ops::Range<Ns>,
) -> Result<gpuwhy_formats::perfetto::Stats> {
    let mut rows = trace
        .rows(range.clone())
        .context("if there are too many rows, choose a window with --from and --to")?;
    let analysis = analysis::analyse(trace, &Default::default())?;
    crate::page::findings_into(&analysis, &mut rows);
    let file = File::create(path).with_context(|| format!("cannot make `{}`", path.display()))?;
    let options = gpuwhy_formats::perfetto::Options { range: Some(range), ..Default::default() };
    let stats = gpuwhy_formats::perfetto::write(&rows, BufWriter::new(file), options)
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(stats)
}
