//! A window of a trace, its findings and their parts as a Perfetto trace.

use std::io::BufWriter;
use std::ops::Range;
use std::path::Path;

use gpuwhy_diagnose::verdict;
use gpuwhy_formats::perfetto;
use gpuwhy_schema::{Discipline, EntityKind, Id, Ns, Rows, Shape, Track, TrackId, names};
use gpuwhy_store::Output;

use crate::analysis::{Analysis, Options, analyse};
use crate::error::{Error, Result};
use crate::source::TraceSource;

/// Writes the rows of `range`, and what was found in the trace, to `path`.
///
/// # Errors
/// The trace cannot be read, holds too many rows in that range, or the file cannot be written.
pub fn write(source: &TraceSource, path: &Path, range: Range<Ns>) -> Result<perfetto::Stats> {
    let mut rows = source.trace().rows(range.clone()).map_err(|error| match error {
        gpuwhy_store::Error::TooMany { .. } => Error::TooManyRows(error),
        other => other.into(),
    })?;
    let analysis = analyse(source, &Options::default())?;
    add_findings(&analysis, &mut rows);
    let options = perfetto::Options { range: Some(range), ..Default::default() };
    write_rows(&rows, path, options)
}

/// Writes rows to `path`.
pub(crate) fn write_rows(
    rows: &Rows,
    path: &Path,
    options: perfetto::Options,
) -> Result<perfetto::Stats> {
    let mut file = Output::create(path)?;
    let written = perfetto::write(rows, BufWriter::new(&mut file), options)
        .map_err(|source| Error::Export { path: path.into(), source })?;
    file.finish()?;
    Ok(written)
}

/// Adds findings, causes and parts to `rows`, on a track of their own.
fn add_findings(analysis: &Analysis, rows: &mut Rows) {
    let Some(host) = rows.entity.iter().find(|e| e.kind == EntityKind::Host).map(|e| e.id) else {
        return;
    };
    let track = TrackId(rows.track.iter().map(|t| t.id.0).max().unwrap_or(0) + 1);
    let Some(source) = rows.source.first().map(|s| s.id) else { return };
    rows.track.push(Track {
        id: track,
        entity: host,
        parent: None,
        shape: Shape::Span,
        name: names::FINDINGS.into(),
        unit: None,
        measure: None,
        discipline: Some(Discipline::Overlap),
        source,
    });
    for (n, finding) in analysis.findings.iter().enumerate() {
        let id = Id::new(u16::MAX, n as u64 + 1);
        rows.append(&mut verdict::rows(finding, id, track));
    }
    rows.part.extend(analysis.parts.iter().cloned());
}
