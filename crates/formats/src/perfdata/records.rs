//! Records as they lie in a file, those that are compressed as if they were not.

use zstd::stream::raw::{Decoder, Operation as _};

use super::file::PerfFile;
use crate::Result;

/// Kinds of records (include/uapi/linux/perf_event.h and tools/lib/perf/include/perf/event.h of Linux).
pub(super) const LOST: u64 = 2;
pub(super) const COMM: u64 = 3;
pub(super) const FORK: u64 = 7;
pub(super) const SAMPLE: u64 = 9;
pub(super) const LOST_SAMPLES: u64 = 13;
pub(super) const FINISHED_ROUND: u64 = 68;
const HEADER_ATTR: u64 = 64;
const HEADER_TRACING_DATA: u64 = 66;
const AUXTRACE: u64 = 71;
const HEADER_FEATURE: u64 = 80;
const COMPRESSED: u64 = 81;
const COMPRESSED2: u64 = 83;
/// Bytes that a compressed record may become.
const UNPACKED: usize = 64 << 20;

/// Reads records one after the other.
pub(super) struct Records {
    pub file: PerfFile,
    decoder: Option<Decoder<'static>>,
    /// What was decompressed, and how much of it has been read.
    unpacked: Vec<u8>,
    used: usize,
    /// The record, with its header.
    pub record: Vec<u8>,
    /// What [`Records::begin`] found, until it is asked for.
    first: Option<Option<u64>>,
}

impl Records {
    /// Of a file from its first record on.
    pub fn new(file: PerfFile) -> Records {
        let (unpacked, record) = (Vec::new(), Vec::new());
        Records { file, decoder: None, unpacked, used: 0, record, first: None }
    }

    /// Reads up to the first record, so that what a pipe says of itself before is known.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn begin(&mut self) -> Result<()> {
        self.first = Some(self.next()?);
        Ok(())
    }

    /// About how much has been read.
    pub fn done(&self) -> f64 {
        let all = (self.file.end - self.file.start.min(self.file.end)).max(1);
        self.file.input.at().saturating_sub(self.file.start) as f64 / all as f64
    }

    /// Reads the next record that is not about the file itself; its kind, or `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn next(&mut self) -> Result<Option<u64>> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        loop {
            if self.take_unpacked() {
                return Ok(Some(self.kind()));
            }
            if self.file.input.at() >= self.file.end {
                if self.used < self.unpacked.len() {
                    return Err(self.file.input.damaged("a compressed record that is cut off"));
                }
                return Ok(None);
            }
            self.read()?;
            match self.kind() {
                COMPRESSED => self.unpack(8, self.record.len())?,
                COMPRESSED2 => {
                    let size =
                        self.record.get(8..16).map_or(u64::MAX, |b| self.file.machine.unsigned(b));
                    let to = usize::try_from(size).ok().and_then(|size| size.checked_add(16));
                    match to.filter(|to| *to <= self.record.len()) {
                        Some(to) => self.unpack(16, to)?,
                        None => {
                            return Err(self
                                .file
                                .input
                                .damaged("a compressed record that is cut off"));
                        }
                    }
                }
                HEADER_ATTR => {
                    // In a file, they are in the header, too.
                    if self.file.is_pipe {
                        let added =
                            self.file.known.attr_record(&self.record[8..], self.file.machine);
                        added.map_err(|what| self.file.input.damaged(what))?;
                    }
                }
                HEADER_TRACING_DATA => {
                    let size = self.number(8, 4);
                    let to = self.file.input.at() + size.next_multiple_of(8);
                    self.file.known.tracing_data(&mut self.file.input, size)?;
                    let rest = to.saturating_sub(self.file.input.at());
                    self.file.input.skip(rest)?;
                }
                HEADER_FEATURE => {
                    let (number, bytes) = (self.number(8, 8), self.record.get(16..));
                    let PerfFile { path, machine, known, .. } = &mut self.file;
                    known.feature(number, bytes.unwrap_or_default(), path, *machine)?;
                }
                AUXTRACE => {
                    let size = self.number(8, 8);
                    self.file.input.skip(size)?;
                }
                kind => return Ok(Some(kind)),
            }
        }
    }

    fn kind(&self) -> u64 {
        self.number(0, 4)
    }

    /// A number of the record; 0 beyond its end.
    pub fn number(&self, at: usize, size: usize) -> u64 {
        self.record.get(at..at + size).map_or(0, |bytes| self.file.machine.unsigned(bytes))
    }

    /// Reads a record from the file.
    fn read(&mut self) -> Result<()> {
        let PerfFile { input, machine, end, .. } = &mut self.file;
        let from = input.at();
        self.record.clear();
        input.append(8, &mut self.record)?;
        let size = machine.unsigned(&self.record[6..8]);
        if size < 8 || from + size > *end {
            return Err(input.damaged(format!("a record of {size} bytes")));
        }
        input.append(size - 8, &mut self.record)
    }

    /// Takes the next record from what was decompressed; false if there is no whole one.
    fn take_unpacked(&mut self) -> bool {
        let rest = &self.unpacked[self.used..];
        let Some(head) = rest.get(6..8) else { return false };
        let size = self.file.machine.unsigned(head) as usize;
        match rest.get(..size).filter(|_| size >= 8) {
            Some(record) => {
                self.record.clear();
                self.record.extend_from_slice(record);
                self.used += size;
                true
            }
            None => false,
        }
    }

    /// Decompresses a part of the record. All parts of a file are one stream, and records may lie across parts.
    fn unpack(&mut self, from: usize, to: usize) -> Result<()> {
        self.unpacked.drain(..self.used);
        self.used = 0;
        if self.unpacked.len() >= 1 << 16 {
            return Err(self.file.input.damaged("a compressed record without a length"));
        }
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => {
                let made = Decoder::new().map_err(|e| self.file.input.damaged(e.to_string()))?;
                none.insert(made)
            }
        };
        let mut packed = &self.record[from..to];
        let mut part = vec![0; 128 << 10];
        loop {
            let status = match decoder.run_on_buffers(packed, &mut part) {
                Ok(status) => status,
                Err(e) => return Err(self.file.input.damaged(format!("a compressed record: {e}"))),
            };
            packed = &packed[status.bytes_read..];
            self.unpacked.extend_from_slice(&part[..status.bytes_written]);
            if self.unpacked.len() > UNPACKED {
                let what = format!("a compressed record of more than {UNPACKED} bytes");
                return Err(self.file.input.damaged(what));
            }
            let is_full = status.bytes_written == part.len();
            if packed.is_empty() && !is_full || status.bytes_read == 0 && status.bytes_written == 0
            {
                return Ok(());
            }
        }
    }
}
