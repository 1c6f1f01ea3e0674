//! Reports as they are imported: threads read chunks ahead, and their pieces are placed in order.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::align::align;
use super::job;
use super::piece::Piece;
use super::place::Placer;
use super::report::Report;
use crate::Result;
use crate::align::Alignment;
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
        let reports = job::open(paths)?;
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
        let done = |pages_read: usize, pages: usize| pages_read as f64 / pages.max(1) as f64;
        if let Some(rows) = self.placer.more_states(&self.reports)? {
            return Ok(Some(Batch::new(rows, done(self.pages_read, self.pages))));
        }
        if let Some(piece) = self.pieces.next() {
            let (number, at) = self.chunks[self.placed];
            let report = &self.reports[number];
            let chunk = &report.chunks[at];
            let rows = self.placer.place(report, number, piece?)?;
            if report.is_last_of_table(at) {
                self.placer.end_of_table(report, number, chunk.contents)?;
            }
            self.placed += 1;
            self.pages_read += chunk.leaves.len();
            return Ok(Some(Batch::new(rows, done(self.pages_read, self.pages))));
        }
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(None);
        }
        let rows = self.placer.finish(&self.reports, &self.alignment)?;
        Ok(Some(Batch::new(rows, 1.0)))
    }

    fn summary(&self) -> Summary {
        let alignment = &self.alignment;
        let about = json!({
            "world_size": job::world(&self.reports),
            "reports": self.reports.iter().map(about).collect::<Vec<_>>(),
            "alignment": alignment.json(),
        });
        let lines = job::lines(&self.reports, alignment);
        Summary { about, lines, left_out: self.placer.left_out(&self.reports) }
    }
}

fn about(report: &Report) -> Value {
    json!({
        "file": report.path().display().to_string(),
        "version": report.version,
        "schema": report.schema,
        "host": report.host,
        "rank": report.identity.rank,
        "rank_by": report.identity.by,
        "ranks_of_processes": report.identity.ranks.iter().map(|(pid, rank)| (pid.to_string(), *rank)).collect::<BTreeMap<_, _>>(),
        "world_size": report.identity.world,
        "job": report.identity.job,
        "launch": report.identity.launch,
        "container": report.identity.container,
        "remark": report.identity.remark,
        "not_imported": report.unread,
    })
}
