//! One file as rows.

use std::collections::BTreeMap;
use std::path::Path;

use gpuwhy_schema::{ClockError, Rows};

use super::identity::Identity;
use super::job::Job;
use super::reader::{About, Reader, Step};
use super::rows::Converter;
use crate::Result;
use crate::align::Alignment;
use crate::left_out::LeftOut;

/// Events whose rows are handed out together.
const BATCH: u64 = 1 << 14;

/// A file that is being imported.
pub(super) struct File {
    reader: Reader,
    converter: Converter,
    /// By how much its times may differ from those of the job's other files.
    error: ClockError,
    is_over: bool,
}

impl File {
    /// Opens the file at `path`, whose times are moved by `shift` ns, as `alignment` has it.
    ///
    /// # Errors
    /// It cannot be opened, or does not begin as JSON.
    pub fn open(
        path: &Path,
        identity: Identity,
        shift: i64,
        alignment: &Alignment,
    ) -> Result<File> {
        let reader = Reader::open(path)?;
        let converter = Converter::new(identity, shift, alignment.words());
        Ok(File { reader, converter, error: alignment.error, is_over: false })
    }

    /// How many of its events became rows, and what was left out.
    pub fn left_out(&self) -> (u64, LeftOut) {
        self.converter.left_out()
    }

    /// Its spans by what they are, as far as it has been read.
    pub fn spans(&self) -> BTreeMap<String, u64> {
        self.converter.spans()
    }

    /// Its kernels, copies and memsets.
    pub fn device_spans(&self) -> u64 {
        self.converter.device_spans()
    }

    /// What the file contains about itself, as far as it has been read.
    pub fn about(&self) -> &About {
        &self.reader.about
    }

    /// How many bytes of its text have been read, after decompression.
    pub fn offset(&self) -> u64 {
        self.reader.offset()
    }

    /// How many events have been read.
    pub fn events(&self) -> u64 {
        self.reader.events
    }

    /// The next rows, after new entities and tracks; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn next(&mut self, job: &mut Job) -> Result<Option<Rows>> {
        if self.is_over {
            return Ok(None);
        }
        let mut rows = Rows::default();
        let until = self.reader.events + BATCH;
        while self.reader.events < until {
            match self.reader.step()? {
                Step::Event => {
                    self.converter.tracks.source(job);
                    self.converter.event(&self.reader.event, job, &mut rows);
                }
                // A file without events is a source, too.
                Step::EventsEnd => drop(self.converter.tracks.source(job)),
                Step::About => self.converter.tracks.about.clone_from(&self.reader.about),
                Step::End => {
                    self.converter.finish(self.error, job, &mut rows);
                    self.is_over = true;
                    break;
                }
            }
        }
        job.lanes.drain(&mut rows);
        Ok(Some(rows))
    }
}
