//! Files as they are imported: records by time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::PathBuf;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{ClockError, SourceId};
use serde_json::json;

use super::file::PerfFile;
use super::layout::{Attr, Sample, TRACEPOINT};
use super::records::{COMM, FINISHED_ROUND, FORK, LOST, LOST_SAMPLES, Records, SAMPLE};
use crate::Result;
use crate::kernel::feed::{About, Feed};
use crate::kernel::rows::KernelRows;
use crate::left_out::{FileLeftOut, LeftOut, NO_TIME, OUT_OF_RANGE};
use gpuwhy_tracepoint::{EventType, Format, RawEvent, Value};

/// Bytes of records that wait for their turn at most; beyond that the earliest goes first.
const HELD: usize = 256 << 20;
/// What a record that waits takes besides its bytes.
const OVERHEAD: usize = 64;

/// Bytes of a record whose memory is used again at most.
const SPARE: usize = 1 << 10;

/// A record that waits: when, in which place of the file, and its place in [`OneFile::stored`].
type Waiting = Reverse<(u64, u64, usize)>;

/// What waits.
#[derive(Default)]
struct Stored {
    kind: u64,
    bytes: Vec<u8>,
    /// Of a sample, its event.
    attr: Option<usize>,
}

/// A file that is read.
struct OneFile {
    records: Records,
    host: usize,
    source: SourceId,
    waiting: BinaryHeap<Waiting>,
    held: usize,
    /// The records that wait, and places among them that are free.
    stored: Vec<Stored>,
    free: Vec<usize>,
    /// Up to when records may go, the latest time by the end of the last round, and that by now.
    until: u64,
    round: u64,
    latest: u64,
    is_read: bool,
    read: u64,
    /// Types of tracepoints by their numbers, and of other events by theirs.
    kinds: HashMap<u64, (usize, Format)>,
    others: HashMap<usize, usize>,
    counts: Counts,
}

/// What was counted of a file.
#[derive(Default)]
struct Counts {
    events: u64,
    lost: u64,
    unknown: u64,
    no_time: u64,
    out_of_range: u64,
    unreadable: u64,
    outside: u64,
    /// Records that are not imported, by their kinds.
    other: BTreeMap<u64, u64>,
    rounds: u64,
}

/// Files that are being imported.
pub(super) struct PerfFeed {
    files: Vec<OneFile>,
    event: RawEvent,
}

impl PerfFeed {
    /// Opens files.
    ///
    /// # Errors
    /// One cannot be read or is damaged.
    pub fn open(paths: &[PathBuf], kernel: &mut KernelRows) -> Result<PerfFeed> {
        let open = |path: &PathBuf| {
            let mut records = Records::new(PerfFile::open(path)?);
            records.begin()?;
            Ok(records)
        };
        let files: Vec<Records> = paths.iter().map(open).collect::<Result<_>>()?;
        let host = |records: &Records| records.file.known.host.clone();
        let is_many = files.iter().any(|file| host(file) != host(&files[0]));
        let files = files.into_iter().map(|file| OneFile::new(file, is_many, kernel)).collect();
        Ok(PerfFeed { files, event: RawEvent::default() })
    }

    /// The next event by time over all files; threads are named on the way.
    fn read(&mut self, kernel: &mut KernelRows) -> Result<bool> {
        loop {
            let mut first: Option<(u64, usize)> = None;
            for (number, file) in self.files.iter_mut().enumerate() {
                if let Some(time) = file.ready()?
                    && first.is_none_or(|(earliest, _)| time < earliest)
                {
                    first = Some((time, number));
                }
            }
            let Some((_, number)) = first else { return Ok(false) };
            if self.files[number].take(&mut self.event, kernel) {
                return Ok(true);
            }
        }
    }

    /// The events with their types' names and formats, for tests.
    #[cfg(test)]
    pub fn each(
        &mut self,
        kernel: &mut KernelRows,
        mut see: impl FnMut(&RawEvent, &Format),
    ) -> Result<()> {
        while self.read(kernel)? {
            let kinds = self.files.iter().flat_map(|file| file.kinds.values());
            if let Some((_, format)) = kinds.into_iter().find(|kind| kind.0 == self.event.kind) {
                see(&self.event, format);
            }
        }
        Ok(())
    }
}

impl OneFile {
    fn new(records: Records, is_many: bool, kernel: &mut KernelRows) -> OneFile {
        let file = &records.file;
        // Clocks of several hosts count from when each began.
        let error = if is_many { ClockError::Unknown } else { ClockError::NONE };
        let path = file.path.display().to_string().replace(' ', "_");
        let config = format!("file={path} {}", error.word());
        let source = kernel.lanes.source("perf.data", "perf", &file.known.version, &config);
        let name = match &*file.known.host {
            "" => "the traced host",
            name => name,
        };
        let host = kernel.host(&format!("perf.data:{name}"), name, source);
        for (tid, name) in &file.known.tracing.commands {
            kernel.learn(host, *tid, None, Some(name.as_bytes()));
        }
        OneFile {
            records,
            host,
            source,
            waiting: BinaryHeap::new(),
            held: 0,
            stored: Vec::new(),
            free: Vec::new(),
            until: 0,
            round: 0,
            latest: 0,
            is_read: false,
            read: 0,
            kinds: HashMap::new(),
            others: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// When the next record is, once it is sure that none before it comes.
    ///
    /// perf writes the buffers of all CPUs in turn, and a mark after each round: what was recorded before the end of
    /// one round is written by the end of the next.
    fn ready(&mut self) -> Result<Option<u64>> {
        loop {
            if let Some(Reverse((time, ..))) = self.waiting.peek()
                && (self.is_read || *time <= self.until || self.held > HELD)
            {
                return Ok(Some(*time));
            }
            if self.is_read {
                return Ok(None);
            }
            match self.records.next()? {
                None => self.is_read = true,
                Some(FINISHED_ROUND) => {
                    self.counts.rounds += 1;
                    // The round before this one is over for all CPUs.
                    self.until = std::mem::replace(&mut self.round, self.latest);
                }
                Some(kind @ (SAMPLE | COMM | FORK)) => self.wait(kind),
                Some(LOST) => {
                    self.counts.lost = self.counts.lost.saturating_add(self.records.number(16, 8));
                }
                Some(LOST_SAMPLES) => {
                    self.counts.lost = self.counts.lost.saturating_add(self.records.number(8, 8));
                }
                Some(kind) => *self.counts.other.entry(kind).or_default() += 1,
            }
        }
    }

    /// Which event a record is of.
    fn attr(&self, record: &[u8], is_sample: bool) -> Option<usize> {
        let known = &self.records.file.known;
        let first = known.attrs.first()?;
        let id = first.id(record, is_sample, self.records.file.machine);
        match id.and_then(|id| known.ids.get(&id)) {
            Some(place) if *place < known.attrs.len() => Some(*place),
            // Records that perf makes itself have no number.
            _ if known.attrs.len() == 1 || id == Some(0) => Some(0),
            _ => None,
        }
    }

    /// Lets the record wait for its turn.
    fn wait(&mut self, kind: u64) {
        let record = &self.records.record;
        let (machine, is_sample) = (self.records.file.machine, kind == SAMPLE);
        let Some(attr) = self.attr(record, is_sample) else {
            self.counts.unknown += u64::from(is_sample);
            return;
        };
        let place = is_sample.then_some(attr);
        let attr = &self.records.file.known.attrs[attr];
        let time = if is_sample {
            match attr.sample(record, machine) {
                None => {
                    self.counts.unreadable += 1;
                    return;
                }
                Some(sample) => sample.time,
            }
        } else {
            Some(attr.trailing_time(record, machine).unwrap_or(0))
        };
        let Some(time) = time else {
            self.counts.no_time += 1;
            return;
        };
        self.latest = self.latest.max(time);
        self.held += record.len() + OVERHEAD;
        self.read += 1;
        let free = self.free.pop().unwrap_or_else(|| {
            self.stored.push(Stored::default());
            self.stored.len() - 1
        });
        let stored = &mut self.stored[free];
        (stored.kind, stored.attr) = (kind, place);
        std::mem::swap(&mut stored.bytes, &mut self.records.record);
        self.waiting.push(Reverse((time, self.read, free)));
    }

    /// Takes the first record that waits; whether it is an event.
    fn take(&mut self, event: &mut RawEvent, kernel: &mut KernelRows) -> bool {
        let Some(Reverse((time, _, place))) = self.waiting.pop() else { return false };
        let Stored { kind, mut bytes, attr } = std::mem::take(&mut self.stored[place]);
        self.held -= bytes.len() + OVERHEAD;
        let is_event = match attr {
            Some(attr) => self.sample((time, attr), &bytes, event, kernel),
            None => {
                self.learn(kind, &bytes, kernel);
                false
            }
        };
        if bytes.capacity() <= SPARE {
            bytes.clear();
            self.stored[place].bytes = bytes;
        }
        self.free.push(place);
        is_event
    }

    /// Names a thread or its process by a record that says that.
    fn learn(&self, kind: u64, record: &[u8], kernel: &mut KernelRows) {
        let machine = self.records.file.machine;
        let number = |at: usize| {
            record.get(at..at + 4).map(|bytes| i64::from(machine.unsigned(bytes) as u32 as i32))
        };
        match kind {
            COMM => {
                let name = record.get(16..).unwrap_or_default();
                let name = &name[..memchr::memchr(0, name).unwrap_or(name.len())];
                if let (Some(pid), Some(tid)) = (number(8), number(12)) {
                    kernel.learn(self.host, tid, Some(pid), Some(name));
                }
            }
            _ => {
                if let (Some(pid), Some(tid)) = (number(8), number(16)) {
                    kernel.learn(self.host, tid, Some(pid), None);
                }
            }
        }
    }

    fn sample(
        &mut self,
        (time, place): (u64, usize),
        record: &[u8],
        event: &mut RawEvent,
        kernel: &mut KernelRows,
    ) -> bool {
        let machine = self.records.file.machine;
        let Some(sample) = self.records.file.known.attrs[place].sample(record, machine) else {
            return false;
        };
        let Ok(time) = i64::try_from(time) else {
            self.counts.out_of_range += 1;
            return false;
        };
        event.clear();
        let is_tracepoint = self.records.file.known.attrs[place].kind == TRACEPOINT;
        let kind = match sample.raw.clone().filter(|_| is_tracepoint) {
            Some(raw) => self.tracepoint(&record[raw], event, kernel),
            None if is_tracepoint => None,
            None => Some(self.other(place, &sample, event, kernel)),
        };
        let Some(kind) = kind else {
            self.counts.unknown += 1;
            return false;
        };
        (event.time, event.kind, event.cpu) = (time, kind, sample.cpu);
        // A thread that has ended has no numbers any more.
        event.tid = sample.tid.filter(|tid| *tid >= 0);
        event.pid = sample.pid.filter(|pid| *pid >= 0);
        self.counts.events += 1;
        true
    }

    /// The values of a tracepoint, and the number of its type.
    fn tracepoint(
        &mut self,
        raw: &[u8],
        event: &mut RawEvent,
        kernel: &mut KernelRows,
    ) -> Option<usize> {
        let file = &self.records.file;
        let id = file.machine.unsigned(raw.get(..2)?);
        if !self.kinds.contains_key(&id) {
            let known = file.known.tracing.formats.get(&id)?;
            let fields = known.format.fields.iter().map(|field| field.name.clone()).collect();
            let name = format!("{}:{}", known.system, known.format.name);
            let number =
                kernel.declare(EventType { name: name.as_str().into(), fields }, self.host);
            self.kinds.insert(id, (number, known.format.clone()));
        }
        let (number, format) = self.kinds.get(&id)?;
        self.counts.outside += format.values(raw, file.machine, event);
        Some(*number)
    }

    /// A sample of a counter or of a clock: where the CPU was, and how much was counted.
    fn other(
        &mut self,
        place: usize,
        sample: &Sample,
        event: &mut RawEvent,
        kernel: &mut KernelRows,
    ) -> usize {
        let value = |value: Option<u64>| value.map_or(Value::Absent, Value::Unsigned);
        event.values.extend([value(sample.ip), value(sample.period)]);
        let (attrs, host) = (&self.records.file.known.attrs, self.host);
        *self.others.entry(place).or_insert_with(|| {
            let Attr { name, kind, config, .. } = &attrs[place];
            let name = match &**name {
                "" => format!("perf:{kind}/{config:#x}"),
                name => format!("perf:{name}"),
            };
            let fields = ["ip", "period"].map(gpuwhy_schema::Name::from).to_vec();
            kernel.declare(EventType { name: name.as_str().into(), fields }, host)
        })
    }

    fn finish(&self, about: &mut About, kernel: &mut KernelRows) {
        let (file, counts) = (self.records.file.path.display().to_string(), &self.counts);
        let mut left_out = LeftOut::default();
        left_out.lose("events that perf says it lost", counts.lost);
        left_out.lose("samples of an event that the file does not describe", counts.unknown);
        left_out.lose("samples whose fields do not fit into them", counts.unreadable);
        left_out.lose(NO_TIME, counts.no_time);
        left_out.lose(OUT_OF_RANGE, counts.out_of_range);
        for (kind, count) in &counts.other {
            left_out.not_imported(&format!("records of kind {}", kind_name(*kind)), Some(*count));
        }
        for what in &self.records.file.known.tracing.unreadable {
            left_out.not_imported(&format!("a type of event: {what}"), None);
        }
        let recorded = counts.events;
        kernel.lanes.update_source(self.source, |source| left_out.write(source, recorded));
        if counts.outside > 0 {
            let line = "fields lie outside of their events and are absent";
            about.lines.push(format!("{file}: {} {line}", counts.outside));
        }
        if !left_out.is_empty() {
            about.left_out.push(FileLeftOut { file, recorded, left_out });
        }
    }
}

/// What the kernel calls a kind of record.
fn kind_name(kind: u64) -> String {
    let name = match kind {
        1 => "MMAP",
        4 => "EXIT",
        5 => "THROTTLE",
        6 => "UNTHROTTLE",
        8 => "READ",
        10 => "MMAP2",
        11 => "AUX",
        12 => "ITRACE_START",
        14 | 15 => "SWITCH",
        16 => "NAMESPACES",
        17 => "KSYMBOL",
        18 => "BPF_EVENT",
        19 => "CGROUP",
        69 => "ID_INDEX",
        73 => "THREAD_MAP",
        74 => "CPU_MAP",
        78 => "EVENT_UPDATE",
        79 => "TIME_CONV",
        82 => "FINISHED_INIT",
        kind => return kind.to_string(),
    };
    name.into()
}

impl Feed for PerfFeed {
    fn next(&mut self, kernel: &mut KernelRows) -> Result<bool> {
        let is_there = self.read(kernel)?;
        if is_there {
            kernel.event(&self.event);
        }
        Ok(is_there)
    }

    fn done(&self) -> f64 {
        self.files.iter().map(|file| file.records.done()).fold(1.0, f64::min)
    }

    fn finish(&mut self, kernel: &mut KernelRows) -> About {
        let mut about = About::default();
        let mut files = Vec::new();
        for one in &self.files {
            one.finish(&mut about, kernel);
            let known = &one.records.file.known;
            files.push(json!({
                "file": one.records.file.path.display().to_string(),
                "host": kernel.host_name(one.host),
                "perf": known.version,
                "is_pipe": one.records.file.is_pipe,
                "recorded_events": known.attrs.iter().map(|attr| &*attr.name).collect::<Vec<_>>(),
                "rounds": one.counts.rounds,
                "events": one.counts.events,
                "lost_events": one.counts.lost,
            }));
        }
        about.about.insert("files".into(), files.into());
        about
    }
}
