//! Reads a trace from end to end, event by event.

use std::fs;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use super::event::{Event, NAME, read_args, read_values};
use super::text::{Text, UTF16};
use super::timestamps::Time;
use crate::importer::LFS_POINTER;
use crate::signature::GZIP;
use crate::{Error, Result};

/// A file that grows by more than this factor when it is decompressed is meant to do harm, once it has
/// grown beyond [`LONG`].
const GROWS: u64 = 1000;
/// Files that decompress to fewer bytes are always read.
pub(super) const LONG: u64 = 4 << 30;

/// What a file contains besides its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    /// The rank of the process in its job.
    pub rank: Option<u32>,
    /// How many ranks the job has.
    pub world: Option<u32>,
    /// The name of its host.
    pub host: Option<String>,
    /// The time in UTC from which its times count, in ns since 1970.
    pub base: Option<i64>,
    /// The CUDA ordinals and models of its GPUs.
    pub gpus: Vec<(i64, String)>,
}

/// A file that is being read.
pub(super) struct Reader {
    text: Text<Counted>,
    /// What the file contains besides its events, as far as it has been read.
    pub about: About,
    place: Place,
    /// The event that was read last.
    pub event: Event,
    /// How many events have been read.
    pub events: u64,
    /// Whether an array of events has begun.
    has_events: bool,
    key: Vec<u8>,
}

/// What [`Reader::step`] has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An event: [`Reader::event`].
    Event,
    /// The end of the events.
    EventsEnd,
    /// Something besides the events.
    About,
    /// The end of the file.
    End,
}

/// How far a file has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before its first byte.
    Begin,
    /// Within the outermost object, before a key; `true` before the first.
    Top(bool),
    /// Within the events; `true` before the first, and `true` if the file is nothing but an array of
    /// events.
    Events(bool, bool),
    /// After its last bracket.
    End,
}

/// The bytes of a file after decompression, with how many have been read.
pub(super) struct Counted {
    /// Decompresses the file, or reads it as it is.
    pub input: Box<dyn Read + Send>,
    /// The length of the file, at least 1.
    pub compressed: u64,
    /// Bytes that have been read after decompression.
    pub given: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.given += n as u64;
        if self.given > LONG && self.given / GROWS > self.compressed {
            return Err(std::io::Error::other(format!(
                "{} bytes grew to more than {}, as only a decompression bomb does",
                self.compressed, self.given
            )));
        }
        Ok(n)
    }
}

/// Whether a text begins with an object or an array.
pub(super) fn begins_as_json(head: &[u8]) -> bool {
    matches!(without_mark(head).trim_ascii_start().first(), Some(b'{' | b'['))
}

/// A text without the mark that may stand at the beginning of UTF-8.
pub(super) fn without_mark(head: &[u8]) -> &[u8] {
    head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head)
}

/// Opens a file, decompressed if it is gzipped.
fn input(path: &Path) -> Result<Counted> {
    let mut file = fs::File::open(path).map_err(Error::io("open", path))?;
    let metadata = file.metadata().map_err(Error::io("measure", path))?;
    let format = "a trace of the PyTorch profiler";
    let not = |why: &str| Error::NotThis { path: path.into(), format, why: why.into() };
    if !metadata.is_file() {
        return Err(not("it is not a regular file"));
    }
    let mut head = Vec::new();
    (&mut file).take(64).read_to_end(&mut head).map_err(Error::io("read", path))?;
    file.rewind().map_err(Error::io("read", path))?;
    if head.starts_with(LFS_POINTER) {
        return Err(not("it is a Git LFS pointer; `git lfs pull` brings the file itself"));
    }
    if head.is_empty() {
        return Err(not("it is empty (0 bytes)"));
    }
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return Err(not(UTF16));
    }
    if !head.starts_with(GZIP) && !begins_as_json(&head) {
        return Err(not("it begins neither as JSON nor as gzip"));
    }
    let input: Box<dyn Read + Send> = match head.starts_with(GZIP) {
        true => Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(
            256 << 10,
            file,
        ))),
        false => Box::new(file),
    };
    Ok(Counted { input, compressed: metadata.len().max(1), given: 0 })
}

impl Reader {
    /// Opens the file at `path`, plain or gzipped.
    ///
    /// # Errors
    /// It cannot be opened, or does not begin as JSON.
    pub fn open(path: &Path) -> Result<Reader> {
        Ok(Reader {
            text: Text::new(input(path)?, path),
            about: About::default(),
            place: Place::Begin,
            event: Event::default(),
            events: 0,
            has_events: false,
            key: Vec::new(),
        })
    }

    /// Whether a file has events: reads it as far as their bracket, or to its end.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub fn has_events(path: &Path) -> Result<bool> {
        let mut file = Reader::open(path)?;
        loop {
            match file.place {
                Place::End => return Ok(false),
                Place::Events(..) => return Ok(true),
                _ => file.read_about()?,
            }
        }
    }

    /// How many bytes of the text have been read, after decompression.
    pub fn offset(&self) -> u64 {
        self.text.offset()
    }

    /// Reads one event, or one value besides the events.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn step(&mut self) -> Result<Step> {
        let (first, alone) = match self.place {
            Place::End => return self.end().map(|()| Step::End),
            Place::Events(first, alone) => (first, alone),
            _ => {
                self.read_about()?;
                return Ok(Step::About);
            }
        };
        self.text.place.clear();
        if self.text.is_end(b']', first)? {
            self.place = if alone { Place::End } else { Place::Top(false) };
            return Ok(Step::EventsEnd);
        }
        self.place = Place::Events(false, alone);
        self.events += 1;
        self.read_event().map_err(|e| match e {
            Error::Damaged { path, place, what } => {
                Error::Damaged { path, place: format!("event {}, {place}", self.events), what }
            }
            other => other,
        })?;
        Ok(Step::Event)
    }

    /// Reads what follows after the last bracket, which is the rest of the compressed data.
    fn end(&mut self) -> Result<()> {
        self.text.end()?;
        if self.has_events {
            return Ok(());
        }
        Err(self.text.refuse("it is JSON without an array `traceEvents`"))
    }

    /// Reads the next value of the outermost object, up to the bracket of the events.
    fn read_about(&mut self) -> Result<()> {
        let first = match self.place {
            Place::Begin => {
                self.text.begin()?;
                self.place = match self.text.token()? {
                    b'{' => Place::Top(true),
                    b'[' => Place::Events(true, true),
                    other => {
                        let other = (other as char).escape_default();
                        return Err(self
                            .text
                            .bad(format!("`{{` or `[` is expected, not `{other}`")));
                    }
                };
                self.has_events = matches!(self.place, Place::Events(..));
                return Ok(());
            }
            Place::Top(first) => first,
            Place::Events(..) | Place::End => return Ok(()),
        };
        if self.text.is_end(b'}', first)? {
            self.place = Place::End;
            return Ok(());
        }
        self.place = Place::Top(false);
        self.text.expect(b'"')?;
        let mut key = std::mem::take(&mut self.key);
        self.text.string(&mut key, NAME)?;
        self.text.expect(b':')?;
        let byte = self.text.token()?;
        match (&*key, byte) {
            (b"traceEvents", b'[') => {
                self.place = Place::Events(true, false);
                self.has_events = true;
            }
            (b"host_name" | b"hostname", b'"') => {
                self.text.string(&mut key, 256)?;
                let host = String::from_utf8_lossy(&key).into_owned();
                self.about.host = Some(host).filter(|host| !host.is_empty());
            }
            (b"baseTimeNanoseconds", _) => {
                let number = self.text.number_or_text(byte, &mut key)?;
                self.about.base = number.and_then(|n| n.int());
            }
            (b"distributedInfo", b'{') => {
                let (mut rank, mut world, mut scratch) = (None, None, Vec::new());
                self.object(|text, key, byte| {
                    let place = match key {
                        b"rank" => &mut rank,
                        b"world_size" => &mut world,
                        _ => return text.skip_value(byte),
                    };
                    let number = text.number_or_text(byte, &mut scratch)?.and_then(|n| n.int());
                    *place = number.and_then(|n| u32::try_from(n).ok());
                    Ok(())
                })?;
                (self.about.rank, self.about.world) = (rank, world);
            }
            (b"deviceProperties", b'[') => self.devices()?,
            _ => self.text.skip_value(byte)?,
        }
        self.key = key;
        Ok(())
    }

    /// Calls `each` with each key of an object whose bracket has been read, and with the first byte of its
    /// value, whose rest `each` must read.
    fn object(
        &mut self,
        mut each: impl FnMut(&mut Text<Counted>, &[u8], u8) -> Result<()>,
    ) -> Result<()> {
        let (mut key, mut first) = (Vec::new(), true);
        while !self.text.is_end(b'}', first)? {
            first = false;
            self.text.expect(b'"')?;
            self.text.string(&mut key, 256)?;
            self.text.expect(b':')?;
            let byte = self.text.token()?;
            each(&mut self.text, &key, byte)?;
        }
        Ok(())
    }

    /// Reads the GPUs, whose bracket has been read.
    fn devices(&mut self) -> Result<()> {
        let mut first = true;
        while !self.text.is_end(b']', first)? {
            first = false;
            self.text.expect(b'{')?;
            let (mut id, mut name) = (None, Vec::new());
            self.object(|text, key, byte| match (key, byte) {
                (b"id", _) => {
                    id = text.number(byte)?.and_then(|n| n.int());
                    Ok(())
                }
                (b"name", b'"') => text.string(&mut name, 256),
                _ => text.skip_value(byte),
            })?;
            // No machine has more GPUs than this.
            if let Some(id) = id.filter(|_| self.about.gpus.len() < 4096) {
                self.about.gpus.push((id, String::from_utf8_lossy(&name).into_owned()));
            }
        }
        Ok(())
    }

    /// Reads the event that begins here.
    fn read_event(&mut self) -> Result<()> {
        self.text.expect(b'{')?;
        let mut event = std::mem::take(&mut self.event);
        event.clear();
        let mut scratch = Vec::new();
        let read = self.object(|text, key, byte| {
            match (key, byte) {
                (b"ph", b'"') => {
                    text.string(&mut scratch, 8)?;
                    event.phase = scratch.first().copied().unwrap_or(0);
                }
                (b"cat", b'"') => text.string(&mut event.category, 256)?,
                (b"name", b'"') => text.string(&mut event.name, NAME)?,
                (b"pid", _) => event.pid = text.number_or_text(byte, &mut event.pid_text)?,
                (b"tid", _) => event.tid = text.number_or_text(byte, &mut event.tid_text)?,
                (b"ts", _) => {
                    let number = text.number_or_text(byte, &mut scratch)?;
                    event.ts = number.map_or(Time::NotANumber, |n| n.time());
                }
                (b"dur", _) => {
                    let number = text.number_or_text(byte, &mut scratch)?;
                    event.dur = number.map_or(Time::NotANumber, |n| n.time());
                }
                (b"args", b'{') if event.phase == b'C' => read_values(text, &mut event.args)?,
                (b"args", b'{') => read_args(text, &mut event.args)?,
                _ => text.skip_value(byte)?,
            }
            Ok(())
        });
        self.event = event;
        read
    }
}
