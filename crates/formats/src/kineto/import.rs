//! Files as they are imported, one after the other.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::file::File;
use super::job::Job;
use super::reader::Reader;
use crate::Result;
use crate::importer::{Batch, Import, Summary};

/// How many times longer the text of a gzipped trace is than its file, for estimates of progress.
const GZIPPED: u64 = 12;

/// Files that are being imported.
pub(super) struct KinetoImport {
    paths: Vec<PathBuf>,
    /// What is added to the times of each file, ns.
    shifts: Vec<i64>,
    job: Job,
    /// The index of the file that is being read.
    current: usize,
    file: Option<File>,
    /// The length of that file's text, estimated.
    length: u64,
    /// What was read of each file.
    read: Vec<Value>,
    is_finished: bool,
}

impl KinetoImport {
    /// Opens files of one job.
    ///
    /// # Errors
    /// One of several files cannot be read or is damaged.
    pub fn open(paths: &[PathBuf]) -> Result<KinetoImport> {
        // Times of several files count from the earliest of their base times, which may stand at the
        // ends of the files.
        let bases: Vec<Option<i64>> = match paths {
            [_] => vec![None],
            _ => paths.iter().map(|path| Ok(Reader::about(path)?.base)).collect::<Result<_>>()?,
        };
        let first = bases.iter().flatten().min().copied().unwrap_or(0);
        let shift = |base: &Option<i64>| base.map_or(0, |base| base.saturating_sub(first));
        Ok(KinetoImport {
            paths: paths.to_vec(),
            shifts: bases.iter().map(shift).collect(),
            job: Job::default(),
            current: 0,
            file: None,
            length: 1,
            read: Vec::new(),
            is_finished: false,
        })
    }

    fn open_current(&mut self) -> Result<File> {
        let path = &self.paths[self.current];
        let length = std::fs::metadata(path).map_or(1, |m| m.len().max(1));
        let is_gzipped = path.extension().is_some_and(|e| e == "gz");
        self.length = length * if is_gzipped { GZIPPED } else { 1 };
        File::open(path, self.shifts[self.current])
    }
}

impl Import for KinetoImport {
    fn next(&mut self) -> Result<Option<Batch>> {
        while self.current < self.paths.len() {
            let mut file = match self.file.take() {
                Some(file) => file,
                None => self.open_current()?,
            };
            if let Some(rows) = file.next(&mut self.job)? {
                let of_file = (file.offset() as f64 / self.length as f64).min(1.0);
                let done = (self.current as f64 + of_file) / self.paths.len() as f64;
                self.file = Some(file);
                return Ok(Some(Batch { rows, done }));
            }
            self.read.push(json!({
                "file": self.paths[self.current].display().to_string(),
                "events": file.events(),
                "rank": file.about().rank,
                "base_ns": file.about().base,
            }));
            self.current += 1;
        }
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(None);
        }
        Ok(Some(Batch { rows: self.job.finish(), done: 1.0 }))
    }

    fn summary(&self) -> Summary {
        Summary { about: json!({ "files": self.read }), lines: Vec::new() }
    }
}
