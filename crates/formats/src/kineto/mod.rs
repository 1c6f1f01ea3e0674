//! Traces of the PyTorch profiler (Kineto): Chrome's JSON, plain or gzipped.
//!
//! # What it sees
//! Kernels, copies and memsets on their streams; calls of the CUDA or HIP runtime, operators,
//! annotations and Python functions on their threads; marks and counters. All spellings since 2021:
//! an object or a bare array, times as numbers or texts, categories in old and new names.
//!
//! # How
//! The text is read once, from end to end, and never held; [`File::next`] hands out rows as they
//! come. Times are read as decimal numbers and kept to the nanosecond.
//!
//! # What fools it
//! Events stand in no order, so that whether calls of a thread nest is known at the end only.
//! Flow events say what `correlation` says as well and are counted only.

mod text;

use std::fs;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Call, Clock, Copy, CopyKind, Counter, Discipline, EntityId, EntityKind, Id, Kernel, Lane,
    Lanes, Mark, Measure, Name, Ns, Rows, SourceId, Span, TrackId, names,
};

use crate::{Error, Result};
use text::{Number, Text};

/// Events that are handed out together.
const BATCH: usize = 1 << 14;
/// What is kept of a name.
const NAME: usize = 4096;
/// Names that are remembered, so that each is held once; later ones are held as they come.
const NAMES: usize = 1 << 17;
/// Calls whose nesting is looked at; of more, lanes are said to overlap.
const NESTED: usize = 1 << 22;
/// A file that grows more than this when it is decompressed, and is long, is meant to do harm.
const GROWS: u64 = 1000;
const LONG: u64 = 4 << 30;

/// Several files as one trace: lanes and ids.
#[derive(Debug, Default)]
pub struct Import {
    lanes: Lanes,
    last_id: u64,
    /// Spans of lanes that should nest: begin and end.
    calls: HashMap<TrackId, Vec<(i64, i64)>>,
    held: usize,
}

impl Import {
    /// Nothing imported yet.
    pub fn new() -> Import {
        Import::default()
    }

    fn id(&mut self) -> Id {
        self.last_id += 1;
        Id(self.last_id)
    }

    fn call(&mut self, track: TrackId, start: i64, end: i64) {
        if self.held < NESTED {
            self.held += 1;
            self.calls.entry(track).or_default().push((start, end));
        }
    }

    /// The last rows: which lanes do not nest after all.
    pub fn finish(&mut self) -> Rows {
        let full = self.held >= NESTED;
        let mut calls: Vec<_> = std::mem::take(&mut self.calls).into_iter().collect();
        calls.sort_unstable_by_key(|(track, _)| *track);
        for (track, mut spans) in calls {
            spans.sort_unstable_by_key(|(start, end)| (*start, std::cmp::Reverse(*end)));
            if full || crosses(&spans) {
                let overlap = Some(Discipline::Overlap);
                self.lanes.update_track(track, |t| t.discipline = overlap);
            }
        }
        let mut rows = Rows::default();
        self.lanes.drain(&mut rows);
        rows
    }
}

/// Whether spans, sorted by their begins, cross.
fn crosses(spans: &[(i64, i64)]) -> bool {
    let mut around: Vec<i64> = Vec::new();
    for &(start, end) in spans {
        while around.last().is_some_and(|outer| *outer <= start) {
            around.pop();
        }
        if around.last().is_some_and(|outer| *outer < end) {
            return true;
        }
        around.push(end);
    }
    false
}

/// What a file says of itself besides its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The rank in its job.
    pub rank: Option<u32>,
    /// What its times are counted from, in ns since 1970.
    pub base: Option<i64>,
    /// Its GPUs, by their ordinals.
    pub gpus: Vec<(i64, String)>,
}

/// A file, being read.
pub struct File {
    text: Text<Counted>,
    path: PathBuf,
    /// What it says of itself, as far as it has been read.
    pub about: About,
    source: Option<SourceId>,
    is_over: bool,
    place: Place,
    shift: i64,
    tag: String,
    events: u64,
    flows: u64,
    skipped: u64,
    names: HashMap<Box<[u8]>, Name>,
    /// Of processes, threads, streams: by pid and tid, as texts or numbers.
    tracks: HashMap<(Who, Who, Kind), TrackId>,
    gpus: HashMap<i64, EntityId>,
    event: Event,
    key: Vec<u8>,
}

/// Where in the file we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Begin,
    /// Within the outermost object, before a key; whether it is the first.
    Top(bool),
    /// Within the events; whether it is the first, and whether they are all that there is.
    Events(bool, bool),
    End,
}

/// A pid or tid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    Number(i64),
    Text(Name),
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Number(n) => write!(f, "{n}"),
            Who::Text(text) => write!(f, "{text}"),
        }
    }
}

/// What an event is, by its category.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Kernel,
    Copy,
    Memset,
    Call,
    Operator,
    Python,
    Annotation,
    GpuAnnotation,
    Overhead,
    Mark,
    Counter(Name),
    Other(Name),
}

/// An event, as far as it is wanted. Kept between events for its allocations.
#[derive(Default)]
struct Event {
    phase: u8,
    category: Vec<u8>,
    name: Vec<u8>,
    pid: Option<Number>,
    pid_text: Vec<u8>,
    tid: Option<Number>,
    tid_text: Vec<u8>,
    ts: Option<i64>,
    dur: Option<i64>,
    args: Args,
}

#[derive(Clone, Debug, Default)]
struct Args {
    device: Option<i64>,
    stream: Option<i64>,
    correlation: Option<u64>,
    grid: [u32; 3],
    block: [u32; 3],
    registers: Option<u32>,
    shared: Option<u64>,
    bytes: Option<u64>,
    graph_node: Option<u64>,
    value: Option<f64>,
    name: Vec<u8>,
}

/// The file's bytes, with how many there have been.
struct Counted {
    input: Box<dyn Read + Send>,
    compressed: u64,
    given: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.given += n as u64;
        if self.given > LONG && self.given / GROWS > self.compressed {
            let what = format!("{} bytes of {} compressed ones", self.given, self.compressed);
            return Err(std::io::Error::other(format!("{what} are absurd")));
        }
        Ok(n)
    }
}

/// Whether a file of these first bytes may be such a trace.
pub fn is_trace(head: &[u8]) -> bool {
    let text = head.iter().find(|b| !b.is_ascii_whitespace());
    head.starts_with(&[0x1f, 0x8b]) || matches!(text, Some(b'{' | b'['))
}

fn input(path: &Path) -> Result<Counted> {
    let mut file = fs::File::open(path).map_err(Error::io("open", path))?;
    let metadata = file.metadata().map_err(Error::io("measure", path))?;
    let not = |why: &str| Error::NotThis {
        path: path.into(),
        format: "a trace of the PyTorch profiler",
        why: why.into(),
    };
    if !metadata.is_file() {
        return Err(not("it is not a regular file"));
    }
    let mut head = Vec::new();
    (&mut file).take(64).read_to_end(&mut head).map_err(Error::io("read", path))?;
    file.rewind().map_err(Error::io("read", path))?;
    if head.starts_with(b"version https://git-lfs") {
        return Err(not("it is a Git LFS pointer; `git lfs pull` brings the file itself"));
    }
    if !is_trace(&head) {
        return Err(not("it begins neither as JSON nor as gzip"));
    }
    let input: Box<dyn Read + Send> = match head.starts_with(&[0x1f, 0x8b]) {
        true => Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(
            256 << 10,
            file,
        ))),
        false => Box::new(file),
    };
    Ok(Counted { input, compressed: metadata.len().max(1), given: 0 })
}

impl File {
    /// Opens the file at `path`, whose times are to be moved by `shift`.
    pub fn open(path: impl AsRef<Path>, shift: i64) -> Result<File> {
        let path = path.as_ref();
        let text = Text::new(input(path)?, path);
        let stem = path.file_name().unwrap_or_default().to_string_lossy();
        let tag = stem.split('.').next().unwrap_or_default().to_owned();
        Ok(File {
            text,
            path: path.into(),
            about: About::default(),
            source: None,
            is_over: false,
            place: Place::Begin,
            shift,
            tag,
            events: 0,
            flows: 0,
            skipped: 0,
            names: HashMap::new(),
            tracks: HashMap::new(),
            gpus: HashMap::new(),
            event: Event::default(),
            key: Vec::new(),
        })
    }

    /// What a file says of itself, wherever in it: reads all of it, and nothing of its events.
    pub fn about(path: impl AsRef<Path>) -> Result<About> {
        let mut file = File::open(path, 0)?;
        loop {
            match file.place {
                Place::End => return Ok(file.about),
                Place::Events(_, alone) => {
                    // Its bracket has been read.
                    file.text.skip_value(b'[')?;
                    file.place = if alone { Place::End } else { Place::Top(false) };
                }
                _ => file.top()?,
            }
        }
    }

    /// How many bytes of its text have been read.
    pub fn offset(&self) -> u64 {
        self.text.offset()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The next rows, with the lanes that are new; none at the end.
    pub fn next(&mut self, import: &mut Import) -> Result<Option<Rows>> {
        if self.is_over {
            return Ok(None);
        }
        let mut rows = Rows::default();
        let until = self.events + BATCH as u64;
        while self.events < until {
            match self.place {
                Place::End => {
                    self.end(import, &mut rows);
                    self.is_over = true;
                    break;
                }
                Place::Events(first, alone) => self.event(first, alone, import, &mut rows)?,
                _ => self.top()?,
            }
        }
        import.lanes.drain(&mut rows);
        Ok(Some(rows))
    }

    /// The next value of the outermost object.
    fn top(&mut self) -> Result<()> {
        let first = match self.place {
            Place::Begin => {
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
            (b"traceEvents", b'[') => self.place = Place::Events(true, false),
            (b"baseTimeNanoseconds", _) => {
                let number = self.text.number_or_text(byte, &mut key)?;
                self.about.base = number.and_then(|n| n.int());
            }
            (b"distributedInfo", b'{') => {
                let mut rank = None;
                self.object(|text, key, byte| match key {
                    b"rank" => {
                        rank = text.number(byte)?.and_then(|n| n.int());
                        Ok(())
                    }
                    _ => text.skip_value(byte),
                })?;
                self.about.rank = rank.and_then(|rank| u32::try_from(rank).ok());
            }
            (b"deviceProperties", b'[') => self.devices()?,
            _ => self.text.skip_value(byte)?,
        }
        self.key = key;
        Ok(())
    }

    /// Calls `each` with the keys of an object whose bracket has been read, and the first byte of
    /// their values, which it must read.
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
            // More GPUs than this are in no machine.
            if let Some(id) = id.filter(|_| self.about.gpus.len() < 4096) {
                self.about.gpus.push((id, String::from_utf8_lossy(&name).into_owned()));
            }
        }
        Ok(())
    }

    /// The next of the events.
    fn event(
        &mut self,
        first: bool,
        alone: bool,
        import: &mut Import,
        rows: &mut Rows,
    ) -> Result<()> {
        self.source(import);
        self.text.place.clear();
        if self.text.is_end(b']', first)? {
            self.place = if alone { Place::End } else { Place::Top(false) };
            return Ok(());
        }
        self.place = Place::Events(false, alone);
        self.events += 1;
        if let Err(e) = self.read_event() {
            return Err(match e {
                Error::Damaged { path, place, what } => {
                    Error::Damaged { path, place: format!("event {}, {place}", self.events), what }
                }
                other => other,
            });
        }
        let event = std::mem::take(&mut self.event);
        self.take(&event, import, rows);
        self.event = event;
        Ok(())
    }

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
                    event.ts = number.and_then(|n| n.nanoseconds());
                }
                (b"dur", _) => {
                    let number = text.number_or_text(byte, &mut scratch)?;
                    event.dur = number.and_then(|n| n.nanoseconds());
                }
                (b"args", b'{') => args(text, &mut event.args)?,
                _ => text.skip_value(byte)?,
            }
            Ok(())
        });
        self.event = event;
        read
    }

    fn source(&mut self, import: &mut Import) -> SourceId {
        *self.source.get_or_insert_with(|| {
            let name = self.path.file_name().unwrap_or_default().to_string_lossy();
            let config = format!("file={}", name.replace(' ', "_"));
            import.lanes.source("kineto", "PyTorch profiler", "unknown", &config)
        })
    }

    fn name(&mut self, bytes: &[u8]) -> Name {
        if let Some(name) = self.names.get(bytes) {
            return name.clone();
        }
        let name: Name = String::from_utf8_lossy(bytes).into();
        if self.names.len() < NAMES {
            self.names.insert(bytes.into(), name.clone());
        }
        name
    }

    fn who(&mut self, number: Option<Number>, text: &[u8]) -> Who {
        match number.and_then(|n| n.int()) {
            Some(n) => Who::Number(n),
            None => Who::Text(self.name(text)),
        }
    }

    /// An event as rows.
    fn take(&mut self, event: &Event, import: &mut Import, rows: &mut Rows) {
        match event.phase {
            b'M' => return self.metadata(event, import),
            b's' | b't' | b'f' => {
                self.flows += 1;
                return;
            }
            b'X' | b'i' | b'I' | b'C' => {}
            _ => {
                self.skipped += 1;
                return;
            }
        }
        let Some(ts) = event.ts.map(|ts| ts.saturating_add(self.shift)) else {
            self.skipped += 1;
            return;
        };
        let dur = event.dur.unwrap_or(0);
        if dur < 0 || ts.checked_add(dur).is_none() {
            self.skipped += 1;
            return;
        }
        let kind = match event.phase {
            b'X' => self.kind(&event.category),
            b'C' => Kind::Counter(self.name(&event.name)),
            _ => Kind::Mark,
        };
        let track = self.track(event, &kind, import);
        if let Kind::Counter(_) = kind {
            if let Some(value) = event.args.value {
                rows.counter.push(Counter { ts: Ns(ts), track, value });
            }
            return;
        }
        let (id, name) = (import.id(), self.name(&event.name));
        let at = Ns(ts);
        if kind == Kind::Mark {
            rows.mark.push(Mark { id, ts: at, track, name, value: event.args.value });
            return;
        }
        let parent = None;
        rows.span.push(Span { id, ts: at, dur: Some(Ns(dur)), track, parent, name });
        let args = &event.args;
        match kind {
            Kind::Kernel => {
                let gpu = self.gpu(self.device_of(event), import);
                rows.kernel.push(Kernel {
                    id,
                    ts: at,
                    gpu,
                    process: None,
                    correlation: args.correlation,
                    grid_x: args.grid[0],
                    grid_y: args.grid[1],
                    grid_z: args.grid[2],
                    block_x: args.block[0],
                    block_y: args.block[1],
                    block_z: args.block[2],
                    registers: args.registers,
                    shared_bytes: args.shared,
                    graph_node: args.graph_node.filter(|node| *node != 0),
                });
            }
            Kind::Copy | Kind::Memset => {
                let gpu = self.gpu(self.device_of(event), import);
                let kind =
                    if kind == Kind::Memset { CopyKind::Memset } else { copy_kind(&event.name) };
                let (from, to) = match kind {
                    CopyKind::HostToDevice | CopyKind::Memset => (None, Some(gpu)),
                    CopyKind::DeviceToHost => (Some(gpu), None),
                    CopyKind::DeviceToDevice => (Some(gpu), Some(gpu)),
                    _ => (None, None),
                };
                let pinned = match event.name.windows(6).any(|w| w == b"Pinned") {
                    true => Some("pinned"),
                    false if event.name.windows(8).any(|w| w == b"Pageable") => Some("pageable"),
                    false => None,
                };
                rows.copy.push(Copy {
                    id,
                    ts: at,
                    kind,
                    bytes: args.bytes.unwrap_or(0),
                    from,
                    to,
                    pinned: pinned.map(|word| self.name(word.as_bytes())),
                    process: None,
                    correlation: args.correlation,
                });
            }
            Kind::Call => {
                let correlation = args.correlation;
                rows.call.push(Call { id, ts: at, correlation, result: None });
                import.call(track, ts, ts + dur);
            }
            Kind::GpuAnnotation | Kind::Other(_) => {}
            _ => import.call(track, ts, ts + dur),
        }
    }

    /// What a category means, in its old and new spellings.
    fn kind(&mut self, category: &[u8]) -> Kind {
        let is = |names: &[&str]| names.iter().any(|n| category.eq_ignore_ascii_case(n.as_bytes()));
        match () {
            () if is(&["kernel"]) => Kind::Kernel,
            () if is(&["gpu_memcpy", "memcpy"]) => Kind::Copy,
            () if is(&["gpu_memset", "memset"]) => Kind::Memset,
            () if is(&["cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime"]) => {
                Kind::Call
            }
            () if is(&["cpu_op", "operator"]) => Kind::Operator,
            () if is(&["python_function"]) => Kind::Python,
            () if is(&["user_annotation"]) => Kind::Annotation,
            () if is(&["gpu_user_annotation"]) => Kind::GpuAnnotation,
            () if is(&["overhead"]) => Kind::Overhead,
            () => Kind::Other(self.name(category)),
        }
    }

    fn device_of(&self, event: &Event) -> i64 {
        event.args.device.or(event.pid.and_then(|n| n.int())).unwrap_or(0)
    }

    fn gpu(&mut self, device: i64, import: &mut Import) -> EntityId {
        if let Some(&known) = self.gpus.get(&device) {
            return known;
        }
        let model = self.about.gpus.iter().find(|g| g.0 == device).map_or("", |g| &g.1);
        let name = format!("GPU {device} {model}");
        let key = format!("kineto:{}:cuda{device}", self.owner());
        let gpu = import.lanes.entity(EntityKind::Gpu, &key, |e| {
            e.name = name.trim().into();
            e.number = Some(device);
        });
        self.gpus.insert(device, gpu);
        gpu
    }

    /// What tells this file's processes from those of others.
    fn owner(&self) -> String {
        self.about.rank.map_or_else(|| self.tag.clone(), |rank| format!("rank{rank}"))
    }

    fn process(&mut self, pid: &Who, import: &mut Import) -> EntityId {
        let rank = self.about.rank.map(|rank| {
            import.lanes.entity(EntityKind::Rank, &format!("rank:{rank}"), |e| {
                e.name = format!("rank {rank}").as_str().into();
                e.number = Some(i64::from(rank));
            })
        });
        let key = format!("kineto:{}:{pid}", self.owner());
        import.lanes.entity(EntityKind::Process, &key, |e| {
            e.name = match pid {
                Who::Number(pid) => format!("pid {pid}").as_str().into(),
                Who::Text(text) => text.clone(),
            };
            e.number = if let Who::Number(pid) = pid { Some(*pid) } else { None };
            e.parent = rank;
        })
    }

    fn thread(&mut self, pid: &Who, tid: &Who, import: &mut Import) -> EntityId {
        let process = self.process(pid, import);
        let key = format!("kineto:{}:{pid}:{tid}", self.owner());
        import.lanes.entity(EntityKind::Thread, &key, |e| {
            e.name = match tid {
                Who::Number(tid) => format!("tid {tid}").as_str().into(),
                Who::Text(text) => text.clone(),
            };
            e.number = if let Who::Number(tid) = tid { Some(*tid) } else { None };
            e.parent = Some(process);
        })
    }

    fn track(&mut self, event: &Event, kind: &Kind, import: &mut Import) -> TrackId {
        let on_gpu = matches!(kind, Kind::Kernel | Kind::Copy | Kind::Memset | Kind::GpuAnnotation);
        let (pid, tid) = if on_gpu {
            let stream = event.args.stream.or(event.tid.and_then(|n| n.int())).unwrap_or(0);
            (Who::Number(self.device_of(event)), Who::Number(stream))
        } else {
            (self.who(event.pid, &event.pid_text), self.who(event.tid, &event.tid_text))
        };
        // Kernels, copies and memsets share a lane.
        let lane = if *kind == Kind::Copy || *kind == Kind::Memset { &Kind::Kernel } else { kind };
        let key = (pid, tid, lane.clone());
        if let Some(&known) = self.tracks.get(&key) {
            return known;
        }
        let source = self.source(import);
        let (pid, tid) = (&key.0, &key.1);
        let entity = match (on_gpu, pid, tid) {
            (true, Who::Number(device), Who::Number(stream)) => {
                let gpu = self.gpu(*device, import);
                let key = format!("kineto:{}:cuda{device}:{stream}", self.owner());
                import.lanes.entity(EntityKind::Stream, &key, |e| {
                    e.name = format!("stream {stream}").as_str().into();
                    e.number = Some(*stream);
                    e.parent = Some(gpu);
                })
            }
            _ => self.thread(pid, tid, import),
        };
        let (nested, overlap) = (Discipline::Nested, Discipline::Overlap);
        let lane = match lane {
            Kind::Kernel | Kind::Copy | Kind::Memset => Lane::spans(names::STREAM, overlap),
            Kind::GpuAnnotation => Lane::spans(names::GPU_ANNOTATIONS, overlap),
            Kind::Call => Lane::spans(names::CUDA_CALLS, nested),
            Kind::Operator => Lane::spans(names::OPERATORS, nested),
            Kind::Python => Lane::spans(names::PYTHON, nested),
            Kind::Annotation => Lane::spans(names::ANNOTATIONS, nested),
            Kind::Overhead => Lane::spans(names::PROFILER_OVERHEAD, nested),
            Kind::Mark => Lane::marks(names::MARKS),
            Kind::Counter(name) => Lane::counter(name, "1", Measure::Gauge),
            Kind::Other(name) if name.is_empty() => Lane::spans("other", overlap),
            Kind::Other(name) => Lane::spans(name, overlap),
        };
        let track = import.lanes.track(entity, None, lane, source);
        self.tracks.insert(key, track);
        track
    }

    /// Names of processes and threads.
    fn metadata(&mut self, event: &Event, import: &mut Import) {
        if event.args.name.is_empty() {
            return;
        }
        let pid = self.who(event.pid, &event.pid_text);
        let entity = match &*event.name {
            b"process_name" => self.process(&pid, import),
            b"thread_name" => {
                let tid = self.who(event.tid, &event.tid_text);
                self.thread(&pid, &tid, import)
            }
            _ => return,
        };
        let name = self.name(&event.args.name);
        import.lanes.update(entity, |e| e.name = name);
    }

    /// What there is to say at the end.
    fn end(&mut self, import: &mut Import, rows: &mut Rows) {
        let Some(source) = self.source.take() else { return };
        let (events, flows, skipped) = (self.events, self.flows, self.skipped);
        import.lanes.update_source(source, |s| {
            (s.recorded, s.dropped) = (events - skipped, skipped);
            if flows > 0 {
                let note =
                    format!("{flows} flow events say what correlations say, and are not kept");
                s.note = Some(note.as_str().into());
            }
        });
        if let Some(base) = self.about.base {
            let owner = self.owner();
            let host = import.lanes.entity(EntityKind::Host, &format!("kineto:{owner}"), |e| {
                e.name = format!("host of {owner}").as_str().into();
            });
            rows.clock.push(Clock {
                host,
                clock: "utc".into(),
                ts_source: base,
                ts_trace: Ns(self.shift),
                error_ns: Ns::ZERO,
            });
        }
    }
}

impl Event {
    fn clear(&mut self) {
        (self.phase, self.ts, self.dur, self.pid, self.tid) = (0, None, None, None, None);
        self.category.clear();
        self.name.clear();
        self.pid_text.clear();
        self.tid_text.clear();
        let mut name = std::mem::take(&mut self.args.name);
        name.clear();
        self.args = Args { name, ..Args::default() };
    }
}

/// The arguments of an event that have columns.
fn args(text: &mut Text<Counted>, args: &mut Args) -> Result<()> {
    let (mut key, mut scratch, mut first) = (Vec::new(), Vec::new(), true);
    while !text.is_end(b'}', first)? {
        first = false;
        text.expect(b'"')?;
        text.string(&mut key, 64)?;
        text.expect(b':')?;
        let byte = text.token()?;
        let mut number = |text: &mut Text<Counted>| text.number_or_text(byte, &mut scratch);
        let unsigned = |n: Option<Number>| n.and_then(|n| n.int()).and_then(|n| n.try_into().ok());
        match (&*key, byte) {
            (b"device", _) => args.device = number(text)?.and_then(|n| n.int()),
            (b"stream", _) => args.stream = number(text)?.and_then(|n| n.int()),
            (b"correlation", _) => args.correlation = unsigned(number(text)?),
            (b"graph node id", _) => args.graph_node = unsigned(number(text)?),
            (b"bytes", _) => args.bytes = unsigned(number(text)?),
            (b"shared memory", _) => args.shared = unsigned(number(text)?),
            (b"registers per thread", _) => {
                let n = number(text)?.and_then(|n| n.int());
                args.registers = n.and_then(|n| n.try_into().ok());
            }
            (b"Bytes" | b"value", _) => args.value = number(text)?.and_then(|n| n.real()),
            (b"name", b'"') => text.string(&mut args.name, NAME)?,
            (b"grid", b'[') => triple(text, &mut args.grid)?,
            (b"block", b'[') => triple(text, &mut args.block)?,
            _ => text.skip_value(byte)?,
        }
    }
    Ok(())
}

fn triple(text: &mut Text<Counted>, out: &mut [u32; 3]) -> Result<()> {
    let mut i = 0;
    while !text.is_end(b']', i == 0)? {
        let byte = text.token()?;
        let n = text.number(byte)?.and_then(|n| n.int()).and_then(|n| n.try_into().ok());
        if let Some(place) = out.get_mut(i) {
            *place = n.unwrap_or(0);
        }
        i += 1;
    }
    Ok(())
}

/// What a copy connects, by its name: `Memcpy HtoD (Pageable -> Device)`.
fn copy_kind(name: &[u8]) -> CopyKind {
    let has = |word: &[u8]| name.windows(word.len()).any(|w| w == word);
    match () {
        () if has(b"HtoD") => CopyKind::HostToDevice,
        () if has(b"DtoH") => CopyKind::DeviceToHost,
        () if has(b"DtoD") => CopyKind::DeviceToDevice,
        () if has(b"PtoP") => CopyKind::PeerToPeer,
        () if has(b"HtoH") => CopyKind::HostToHost,
        () => CopyKind::Other,
    }
}

#[cfg(test)]
mod others_tests;
#[cfg(test)]
mod tests;
