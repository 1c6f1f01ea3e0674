//! The events of one CPU, page by page.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::file::{Buffer, CpuData, DatFile};
use crate::kernel::ring::{Missed, PageLayout, Place};
use crate::{Error, Result};

/// Bytes that are read at once, and that all CPUs together may hold beyond a page each.
const WINDOW: usize = 256 << 10;
const WINDOWS: usize = 64 << 20;
/// Bytes of a chunk, packed or not, at most.
const CHUNK: u64 = 16 << 20;

/// The events of a CPU as they are read, one after the other.
#[derive(Debug)]
pub(super) struct CpuStream {
    /// The number of its file.
    pub file: usize,
    pub cpu: u32,
    layout: PageLayout,
    page_size: usize,
    /// The byte of the file that is read next, and the one after the last.
    at: u64,
    end: u64,
    /// Chunks to come, if the pages are packed; `None` before their number was read.
    chunks: Option<u64>,
    is_packed: bool,
    width: usize,
    /// Pages, and the byte of the file that they or their chunk begin at.
    window: Vec<u8>,
    window_at: u64,
    /// The page of the window that is read.
    page: Range<usize>,
    place: Place,
    /// The event: its bytes within the page.
    event: Range<usize>,
    /// Events that were lost, as far as pages say how many, and pages that do not.
    pub missed: u64,
    pub missed_unknown: u64,
    pub pages: u64,
}

impl CpuStream {
    /// Of a CPU of a buffer; `streams` are read at the same time.
    pub fn new(
        number: usize,
        dat: &DatFile,
        buffer: &Buffer,
        data: CpuData,
        streams: usize,
    ) -> Option<CpuStream> {
        let is_packed = buffer.is_packed && data.size > 0;
        // trace-cmd does not count the number of chunks, which comes first.
        let counted = if is_packed { data.size + 4 } else { data.size };
        let pages = (WINDOWS / streams.max(1)).min(WINDOW) / buffer.page_size;
        Some(CpuStream {
            file: number,
            cpu: data.cpu,
            layout: dat.tracing.page?,
            page_size: buffer.page_size,
            at: data.offset,
            end: (data.offset + counted).min(dat.length),
            chunks: None,
            is_packed,
            width: pages.max(1) * buffer.page_size,
            window: Vec::new(),
            window_at: data.offset,
            page: 0..0,
            place: Place::default(),
            event: 0..0,
            missed: 0,
            missed_unknown: 0,
            pages: 0,
        })
    }

    /// The bytes of the event.
    pub fn record(&self) -> &[u8] {
        &self.window[self.page.clone()][self.event.clone()]
    }

    /// When it happened, as the kernel's clock counts.
    pub fn time(&self) -> u64 {
        self.place.time
    }

    /// Bytes that are still to be read.
    pub fn left(&self) -> u64 {
        self.end - self.at
    }

    /// The error about what was read last.
    pub fn damaged(&self, dat: &DatFile, what: impl Into<String>) -> Error {
        let within = (self.page.start + self.place.at()) as u64;
        let place = if self.is_packed {
            format!("at byte {within} of the chunk at byte {}, CPU {}", self.window_at, self.cpu)
        } else {
            format!("at byte {}, CPU {}", self.window_at + within, self.cpu)
        };
        Error::damaged(&dat.path, place, what)
    }

    /// Goes on to the next event; false after the last.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn advance(&mut self, dat: &DatFile) -> Result<bool> {
        loop {
            let page = &self.window[self.page.clone()];
            match self.place.next(page, dat.machine) {
                Ok(Some(event)) => {
                    self.event = event;
                    return Ok(true);
                }
                Ok(None) => {}
                Err(what) => return Err(self.damaged(dat, what)),
            }
            if !self.next_page(dat)? {
                return Ok(false);
            }
        }
    }

    fn next_page(&mut self, dat: &DatFile) -> Result<bool> {
        let mut from = self.page.end;
        while from >= self.window.len() {
            if !self.refill(dat)? {
                return Ok(false);
            }
            from = 0;
        }
        let to = (from + self.page_size).min(self.window.len());
        self.page = from..to;
        self.place = Place::default();
        let page = &self.window[from..to];
        let (place, missed) = match Place::begin(page, self.layout, dat.machine) {
            Ok(begun) => begun,
            Err(what) => return Err(self.damaged(dat, what)),
        };
        match missed {
            Missed::None => {}
            Missed::Some(events) => self.missed = self.missed.saturating_add(events),
            Missed::Unknown => self.missed_unknown += 1,
        }
        self.place = place;
        self.pages += 1;
        Ok(true)
    }

    /// Reads more pages; false if there are none.
    fn refill(&mut self, dat: &DatFile) -> Result<bool> {
        self.page = 0..0;
        self.window_at = self.at;
        if self.is_packed {
            return self.next_chunk(dat);
        }
        let bytes = self.left().min(self.width as u64) as usize;
        self.window.resize(bytes, 0);
        read(&dat.file, &dat.path, &mut self.window, self.at)?;
        self.at += bytes as u64;
        Ok(bytes > 0)
    }

    fn number(&mut self, dat: &DatFile) -> Result<u64> {
        if self.left() < 4 {
            self.window.clear();
            return Err(self.damaged(dat, "a chunk that is cut off"));
        }
        let mut bytes = [0; 4];
        read(&dat.file, &dat.path, &mut bytes, self.at)?;
        self.at += 4;
        Ok(dat.machine.unsigned(&bytes))
    }

    /// Unpacks the next chunk: its packed size, its size, and its bytes.
    fn next_chunk(&mut self, dat: &DatFile) -> Result<bool> {
        let chunks = match self.chunks {
            Some(chunks) => chunks,
            None => self.number(dat)?,
        };
        let Some(left) = chunks.checked_sub(1) else {
            self.chunks = Some(0);
            return Ok(false);
        };
        self.chunks = Some(left);
        let (packed, size) = (self.number(dat)?, self.number(dat)?);
        if packed > self.left() || packed > CHUNK || size > CHUNK {
            let left = self.left();
            let what = format!("a chunk of {packed} bytes for {size}, where {left} bytes are left");
            return Err(self.damaged(dat, what));
        }
        let mut bytes = vec![0; packed as usize];
        read(&dat.file, &dat.path, &mut bytes, self.at)?;
        self.at += packed;
        self.window = match dat.packing.unpack(&bytes, size as usize) {
            Ok(window) => window,
            Err(what) => return Err(self.damaged(dat, what)),
        };
        Ok(true)
    }
}

fn read(file: &File, path: &Path, bytes: &mut [u8], at: u64) -> Result<()> {
    file.read_exact_at(bytes, at).map_err(Error::io("read", path))
}
