//! Reports as they are imported: threads read chunks ahead, and their pieces are placed in order.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::align::{Alignment, align};
use super::piece::Piece;
use super::place::Placer;
use super::report::Report;
use crate::Result;
use crate::importer::{Batch, Import, Options, Summary};
use crate::read_ahead::ReadAhead;

/// Reports that are being imported.
pub(super) struct NsysImport {
    reports: Arc<Vec<Report>>,
    alignment: Alignment,
    placer: Placer,
    /// All chunks as report and index of the chunk, in the order of reading.
    chunks: Arc<Vec<(usize, usize)>>,
    pieces: ReadAhead<Result<Piece>>,
    /// How many chunks have been placed.
    placed: usize,
    pages_read: usize,
    pages: usize,
    is_finished: bool,
}

impl NsysImport {
    /// Opens reports and begins to read them.
    ///
    /// # Errors
    /// A report cannot be read, is damaged, or is something else.
    pub fn open(paths: &[PathBuf], options: &Options) -> Result<NsysImport> {
        let reports: Vec<Report> = paths.iter().map(Report::open).collect::<Result<_>>()?;
        let alignment = align(&reports)?;
        let placer = Placer::new(&reports, &alignment);
        let pages = reports.iter().flat_map(|r| &r.chunks).map(|c| c.leaves.len()).sum();
        let of_report =
            |(i, report): (usize, &Report)| (0..report.chunks.len()).map(move |c| (i, c));
        let chunks: Vec<_> = reports.iter().enumerate().flat_map(of_report).collect();
        let (reports, chunks) = (Arc::new(reports), Arc::new(chunks));
        let read = {
            let (reports, chunks) = (reports.clone(), chunks.clone());
            move |i: usize| {
                let (report, chunk) = chunks[i];
                reports[report].read(&reports[report].chunks[chunk])
            }
        };
        let pieces = ReadAhead::new(chunks.len(), options.threads, read);
        Ok(NsysImport {
            reports,
            alignment,
            placer,
            chunks,
            pieces,
            placed: 0,
            pages_read: 0,
            pages,
            is_finished: false,
        })
    }
}

impl Import for NsysImport {
    fn next(&mut self) -> Result<Option<Batch>> {
        if let Some(piece) = self.pieces.next() {
            let (number, chunk) = self.chunks[self.placed];
            let report = &self.reports[number];
            let rows = self.placer.place(report, number, piece?);
            self.placed += 1;
            self.pages_read += report.chunks[chunk].leaves.len();
            let done = self.pages_read as f64 / self.pages.max(1) as f64;
            return Ok(Some(Batch { rows, done }));
        }
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(None);
        }
        let rows = self.placer.finish(&self.reports, &self.alignment);
        Ok(Some(Batch { rows, done: 1.0 }))
    }

    fn summary(&self) -> Summary {
        let alignment = &self.alignment;
        let about = json!({
            "reports": self.reports.iter().map(about).collect::<Vec<_>>(),
            "alignment": {
                "shifts_ns": alignment.shifts,
                "by": alignment.by,
                "collectives": alignment.collectives,
                "residual_p50_ns": alignment.residual_p50_ns,
                "residual_p95_ns": alignment.residual_p95_ns,
                "before_p50_ns": alignment.before_p50_ns,
                "error_ns": alignment.error_ns,
            },
        });
        let us = |ns: i64| ns as f64 / 1e3;
        let line = |by: &String| {
            format!(
                "aligned by {} x {by}: their ends lie {:.3} us apart at the median, {:.3} us at p95 \
                 ({:.3} us by the reports' own clocks)",
                alignment.collectives,
                us(alignment.residual_p50_ns),
                us(alignment.residual_p95_ns),
                us(alignment.before_p50_ns),
            )
        };
        Summary { about, lines: alignment.by.iter().map(line).collect() }
    }
}

fn about(report: &Report) -> Value {
    json!({
        "file": report.path().display().to_string(),
        "version": report.version,
        "schema": report.schema,
        "host": report.host,
        "rank": report.rank,
        "not_imported": report.unread.iter().map(|t| &t.0).collect::<Vec<_>>(),
    })
}
