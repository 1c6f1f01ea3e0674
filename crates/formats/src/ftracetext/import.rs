//! Files as they are imported: lines by time.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{ClockError, Name, SourceId};
use serde_json::json;

use super::fields::{FIELDS, Fields, Layout};
use super::line::{self, Line, Time, What};
use crate::kernel::feed::{About, Feed};
use crate::kernel::rows::KernelRows;
use crate::left_out::{FileLeftOut, LeftOut, OUT_OF_RANGE};
use crate::{Error, Result, signature};
use gpuwhy_tracepoint::{EventType, RawEvent};

/// Bytes of a line at most.
const LINE: usize = 1 << 16;
/// Types of events of a file; the names of one's fields are part of its type.
const TYPES: usize = 1 << 14;
/// Threads whose names are remembered.
const THREADS: usize = 1 << 20;
/// Bytes of the line that an error or a note shows.
const SHOWN: usize = 60;

/// What reads a file.
struct Lines {
    input: BufReader<Box<dyn Read + Send>>,
    /// Bytes of the file that were read, and all of them.
    read: Arc<AtomicU64>,
    size: u64,
    /// The last line without its end, and its number from 1.
    line: Vec<u8>,
    number: u64,
}

/// Counts what is read of a file.
struct Counted(File, Arc<AtomicU64>);

impl Read for Counted {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(to)?;
        self.1.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// How a line ended.
enum End {
    Whole,
    /// It was too long.
    Long,
    /// The file ends within it.
    Cut,
}

impl Lines {
    fn open(path: &Path) -> Result<Lines> {
        let mut file = File::open(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("measure", path))?.len();
        let mut head = Vec::new();
        let read = file.by_ref().take(2).read_to_end(&mut head);
        read.map_err(Error::io("read", path))?;
        std::io::Seek::rewind(&mut file).map_err(Error::io("rewind", path))?;
        let read = Arc::new(AtomicU64::new(0));
        let file = Counted(file, Arc::clone(&read));
        let input: Box<dyn Read + Send> = match head == signature::GZIP {
            true => Box::new(MultiGzDecoder::new(BufReader::new(file))),
            false => Box::new(file),
        };
        let input = BufReader::with_capacity(1 << 18, input);
        Ok(Lines { input, read, size, line: Vec::new(), number: 0 })
    }

    /// Goes on to the next line; `None` at the end.
    fn advance(&mut self, path: &Path) -> Result<Option<End>> {
        self.line.clear();
        let number = self.number + 1;
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidInput => {
                Error::damaged(path, format!("after line {}", number - 1), source.to_string())
            }
            _ => Error::io("read", path)(source),
        };
        loop {
            let buffer = match self.input.fill_buf() {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                buffer => buffer.map_err(failed)?,
            };
            let part = &buffer[..buffer.len().min(LINE - self.line.len())];
            let end = memchr::memchr(b'\n', part);
            let length = end.map_or(part.len(), |end| end + 1);
            self.line.extend_from_slice(&part[..length]);
            self.input.consume(length);
            if end.is_some() || length == 0 {
                break;
            }
        }
        if self.line.is_empty() {
            return Ok(None);
        }
        self.number = number;
        if self.line.pop_if(|byte| *byte == b'\n').is_some() {
            self.line.pop_if(|byte| *byte == b'\r');
            return Ok(Some(End::Whole));
        }
        if self.line.len() < LINE {
            return Ok(Some(End::Cut));
        }
        loop {
            let buffer = self.input.fill_buf().map_err(failed)?;
            let (length, is_over) = match memchr::memchr(b'\n', buffer) {
                Some(at) => (at + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            };
            self.input.consume(length);
            if is_over {
                return Ok(Some(End::Long));
            }
        }
    }
}

/// What was counted of a file.
#[derive(Default)]
struct Counts {
    events: u64,
    /// As lines say, and as the head says.
    lost: u64,
    lost_unknown: u64,
    overwritten: u64,
    out_of_range: u64,
    functions: u64,
    long: u64,
    cut: u64,
    types: u64,
    /// Lines that are none of these, and the first with its number.
    other: u64,
    first_other: Option<(u64, String)>,
}

/// A file that is read.
struct OneFile {
    path: PathBuf,
    lines: Lines,
    host: usize,
    source: SourceId,
    /// The event's line that comes next.
    next: Option<(i64, Line)>,
    /// Types of events by their names and the names of their fields.
    kinds: HashMap<Vec<u8>, usize>,
    /// The fields of the last event of each name.
    layouts: HashMap<Vec<u8>, Layout>,
    /// The name of the event.
    name: Vec<u8>,
    fields: Fields,
    /// Names of threads as they were told last.
    names: HashMap<i64, Vec<u8>>,
    counts: Counts,
}

/// Files that are being imported.
pub(super) struct TextFeed {
    files: Vec<OneFile>,
    event: RawEvent,
}

impl TextFeed {
    /// Opens files and reads them up to their first event.
    ///
    /// # Errors
    /// One cannot be read, or holds no event.
    pub fn open(paths: &[PathBuf], kernel: &mut KernelRows) -> Result<TextFeed> {
        let is_many = paths.len() > 1;
        let open = |path: &PathBuf| {
            let mut file = OneFile::open(path, is_many, kernel)?;
            file.advance()?;
            match file.next {
                Some(_) => Ok(file),
                None => Err(file.no_event()),
            }
        };
        let files = paths.iter().map(open).collect::<Result<_>>()?;
        Ok(TextFeed { files, event: RawEvent::default() })
    }

    /// Makes the next event of all files ready; false after the last.
    fn read(&mut self, kernel: &mut KernelRows) -> Result<bool> {
        loop {
            let next = |file: &OneFile| file.next.as_ref().map(|(time, _)| *time);
            let all = self.files.iter().enumerate();
            let first = all.filter_map(|(number, file)| next(file).map(|time| (time, number)));
            let Some((_, number)) = first.min() else { return Ok(false) };
            let file = &mut self.files[number];
            let is_taken = file.take(&mut self.event, kernel);
            file.advance()?;
            if is_taken {
                return Ok(true);
            }
        }
    }

    /// The events with the names of their types and fields, for tests.
    #[cfg(test)]
    pub fn each(
        &mut self,
        kernel: &mut KernelRows,
        mut see: impl FnMut(&RawEvent, &EventType),
    ) -> Result<()> {
        while self.read(kernel)? {
            if let Some(kind) = kernel.kind(self.event.kind) {
                see(&self.event, kind);
            }
        }
        Ok(())
    }
}

impl OneFile {
    fn open(path: &Path, is_many: bool, kernel: &mut KernelRows) -> Result<OneFile> {
        let lines = Lines::open(path)?;
        // Nothing says whether two texts are of one machine.
        let error = if is_many { ClockError::Unknown } else { ClockError::NONE };
        let file = path.display().to_string().replace(' ', "_");
        let config = format!("file={file} {}", error.word());
        let source = kernel.lanes.source("ftrace text", "ftrace", "", &config);
        let name = match is_many {
            true => path.file_name().map_or_else(|| file.clone(), |n| n.to_string_lossy().into()),
            false => "the traced host".to_owned(),
        };
        let key = if is_many { format!("ftrace:{file}") } else { "ftrace:host".to_owned() };
        let host = kernel.host(&key, &name, source);
        Ok(OneFile {
            path: path.into(),
            lines,
            host,
            source,
            next: None,
            kinds: HashMap::new(),
            layouts: HashMap::new(),
            name: Vec::new(),
            fields: Fields::default(),
            names: HashMap::new(),
            counts: Counts::default(),
        })
    }

    fn no_event(&self) -> Error {
        let what = match (&self.counts.first_other, self.counts.functions) {
            (_, 1..) => "it holds function calls and no events, which are not read".to_owned(),
            (Some((number, line)), _) => format!("no line is an event; line {number} is {line:?}"),
            (None, _) => "no line is an event".to_owned(),
        };
        Error::damaged(&self.path, "as a text of events", what)
    }

    /// Goes on to the next event whose time is known.
    fn advance(&mut self) -> Result<()> {
        self.next = None;
        while let Some(end) = self.lines.advance(&self.path)? {
            match end {
                End::Long => self.counts.long += 1,
                // Half a number would be another number.
                End::Cut => self.counts.cut += 1,
                End::Whole => {
                    if let Some(next) = self.line()? {
                        self.next = Some(next);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The event of the line that was read.
    fn line(&mut self) -> Result<Option<(i64, Line)>> {
        let (bytes, counts) = (&self.lines.line, &mut self.counts);
        let Some(line) = line::parse(bytes) else {
            if let Some(count) = line::lost(bytes) {
                counts.lost = counts.lost.saturating_add(count);
                counts.lost_unknown += u64::from(count == 0);
            } else if let Some(count) = line::overwritten(bytes) {
                counts.overwritten = counts.overwritten.saturating_add(count);
            } else if !is_said(bytes) {
                counts.other(self.lines.number, bytes);
            }
            return Ok(None);
        };
        match line.what {
            What::Function => counts.functions += 1,
            What::Other => counts.other(self.lines.number, bytes),
            _ => match line.time {
                Time::Ns(time) => return Ok(Some((time, line))),
                Time::OutOfRange => counts.out_of_range += 1,
                Time::Ticks => {
                    let what = "its times are ticks of a clock that does not count time; record with \
                                the clock `local`, `global`, `mono` or `boot` (`trace_clock`)";
                    let place = format!("line {}", self.lines.number);
                    return Err(Error::damaged(&self.path, place, what));
                }
            },
        }
        Ok(None)
    }

    /// Fills an event with the line that comes next; false if it is of too many types.
    fn take(&mut self, event: &mut RawEvent, kernel: &mut KernelRows) -> bool {
        let Some((time, line)) = self.next.take() else { return false };
        let bytes = &self.lines.line;
        event.clear();
        self.name.clear();
        let text = match &line.what {
            What::Event { name, text } => {
                self.name.extend_from_slice(&bytes[name.clone()]);
                text
            }
            What::Enter { call, text } => {
                self.name.extend_from_slice(b"sys_enter_");
                self.name.extend_from_slice(&bytes[call.clone()]);
                text
            }
            What::Exit { call, text } => {
                self.name.extend_from_slice(b"sys_exit_");
                self.name.extend_from_slice(&bytes[call.clone()]);
                text
            }
            What::Function | What::Other => return false,
        };
        let name = std::str::from_utf8(&self.name).unwrap_or_default();
        let short = match line.what {
            What::Event { .. } => name.rsplit(':').next().unwrap_or(name),
            _ => name,
        };
        let mut other = Layout::default();
        if self.layouts.len() < TYPES && !self.layouts.contains_key(&self.name) {
            self.layouts.insert(self.name.clone(), Layout::default());
        }
        let layout = self.layouts.get_mut(&self.name).unwrap_or(&mut other);
        self.fields.read(short, &bytes[text.clone()], layout, event);
        if layout.kind.is_none() {
            layout.kind = kind(&mut self.kinds, name, layout.names(), self.host, kernel);
        }
        let Some(kind) = layout.kind else {
            self.counts.types += 1;
            return false;
        };
        (event.time, event.kind, event.cpu) = (time, kind, Some(line.cpu));
        (event.tid, event.pid) = (line.tid, line.pid);
        self.counts.events += 1;
        if let Some(tid) = line.tid.filter(|tid| *tid > 0) {
            let comm = &self.lines.line[line.comm];
            let known = self.names.get(&tid).is_some_and(|known| known == comm);
            if !known && !comm.is_empty() {
                kernel.learn(self.host, tid, None, Some(comm));
                if self.names.len() < THREADS {
                    self.names.insert(tid, comm.to_vec());
                }
            }
        }
        true
    }

    /// What was left out, and what is to be said.
    fn finish(&self, about: &mut About, kernel: &mut KernelRows) {
        let (file, counts) = (self.path.display().to_string(), &self.counts);
        let mut left_out = LeftOut::default();
        // What was overwritten before the text was made may be said a second time where the gap is.
        left_out.lose("events that the kernel says it lost", counts.lost.max(counts.overwritten));
        left_out.lose(OUT_OF_RANGE, counts.out_of_range);
        left_out.lose(format!("lines of more than {LINE} bytes"), counts.long);
        left_out.lose("a line that the end of the file cuts off", counts.cut);
        left_out.lose(format!("events beyond {TYPES} types"), counts.types);
        if counts.functions > 0 {
            left_out.not_imported("function calls", Some(counts.functions));
        }
        if let Some((number, line)) = &counts.first_other {
            let what = format!("lines that are no events, such as line {number} {line:?}");
            left_out.not_imported(&what, Some(counts.other));
        }
        let recorded = counts.events;
        kernel.lanes.update_source(self.source, |source| left_out.write(source, recorded));
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                about.lines.push(format!("{file}: {count} {what}"));
            }
        };
        say(counts.lost_unknown, "times events were lost, without a number");
        say(self.fields.doubtful, "fields are printed twice in their events and are absent");
        say(self.fields.beyond, &format!("fields beyond {FIELDS} of one event are absent"));
        if !left_out.is_empty() {
            about.left_out.push(FileLeftOut { file, recorded, left_out });
        }
    }
}

/// The number of an event's type; `None` if there are too many.
fn kind(
    kinds: &mut HashMap<Vec<u8>, usize>,
    name: &str,
    fields: &[Name],
    host: usize,
    kernel: &mut KernelRows,
) -> Option<usize> {
    let key = fields.iter().fold(name.as_bytes().to_vec(), |mut key, field| {
        key.push(b' ');
        key.extend_from_slice(field.as_bytes());
        key
    });
    if let Some(kind) = kinds.get(&key) {
        return Some(*kind);
    }
    if kinds.len() >= TYPES {
        return None;
    }
    let what = EventType { name: Name::from(name), fields: fields.to_vec() };
    let kind = kernel.declare(what, host);
    kinds.insert(key, kind);
    Some(kind)
}

/// Whether it is a line of those that tools print besides events.
fn is_said(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let is = |begin: &[u8]| line.starts_with(begin);
    line.is_empty()
        || is(b"#")
        || is(b"cpus=")
        || is(b"version = ")
        || is(b"CPU ") && line.ends_with(b"is empty")
}

impl Counts {
    fn other(&mut self, number: u64, line: &[u8]) {
        self.other += 1;
        if self.first_other.is_none() {
            let line = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
            self.first_other = Some((number, line.into()));
        }
    }
}

impl Feed for TextFeed {
    fn next(&mut self, kernel: &mut KernelRows) -> Result<bool> {
        let is_there = self.read(kernel)?;
        if is_there {
            kernel.event(&self.event);
        }
        Ok(is_there)
    }

    fn done(&self) -> f64 {
        let read = |file: &OneFile| file.lines.read.load(Ordering::Relaxed);
        let size: u64 = self.files.iter().map(|file| file.lines.size).sum();
        self.files.iter().map(read).sum::<u64>() as f64 / size.max(1) as f64
    }

    fn finish(&mut self, kernel: &mut KernelRows) -> About {
        let mut about = About::default();
        let mut files = Vec::new();
        for one in &self.files {
            one.finish(&mut about, kernel);
            files.push(json!({
                "file": one.path.display().to_string(),
                "host": kernel.host_name(one.host),
                "lines": one.lines.number,
                "events": one.counts.events,
                "lost_events": one.counts.lost.max(one.counts.overwritten),
            }));
        }
        about.about.insert("files".into(), files.into());
        about
    }
}
