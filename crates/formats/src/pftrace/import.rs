//! Files as they are imported: events by time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::PathBuf;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{ClockError, Name, SourceId};
use serde_json::json;

use super::packets::Packets;
use super::types::{self, Holds, Kind};
use super::wire::{Value, fields, packed};
use crate::Result;
use crate::kernel::feed::{About, Feed};
use crate::kernel::rows::KernelRows;
use crate::left_out::{FileLeftOut, LeftOut, NO_TIME, OUT_OF_RANGE};
use gpuwhy_tracepoint::{EventType, RawEvent, Value as FieldValue};

/// Bytes of events that wait for their turn at most; beyond that the earliest goes first.
const HELD: usize = 128 << 20;
/// What an event that waits takes besides its bytes.
const OVERHEAD: usize = 80;
/// Types of events that a file may describe or name itself.
const TYPES: usize = 4096;
/// CPUs of a host.
const CPUS: u64 = 1 << 16;

/// Fields of a packet.
mod of_packet {
    pub const FTRACE_EVENTS: u32 = 1;
    pub const PROCESS_TREE: u32 = 2;
    pub const FTRACE_STATS: u32 = 34;
}

/// Fields of an event.
mod of_event {
    pub const TIMESTAMP: u32 = 1;
    pub const PID: u32 = 2;
    pub const FLAGS: u32 = 5;
    pub const SWITCH: u32 = 4;
    pub const WAKING: u32 = 20;
    pub const GENERIC: u32 = 327;
}

/// What packets besides those of ftrace are called, if they are many.
const OTHERS: &[(u32, &str)] = &[
    (7, "sys_stats"),
    (9, "process_stats"),
    (11, "track_event"),
    (37, "profile_packet"),
    (39, "android_log"),
    (40, "power_rails"),
    (52, "gpu_counter_event"),
    (53, "gpu_render_stage_event"),
    (57, "graphics_frame_event"),
    (66, "perf_sample"),
    (71, "gpu_mem_total_event"),
    (76, "frame_timeline_event"),
];

/// An event that waits: when, in which place of the file, on which CPU, and its message.
type Waiting = Reverse<(u64, u64, u32, Box<[u8]>)>;

/// A file that is read.
struct OneFile {
    packets: Packets,
    host: usize,
    source: SourceId,
    waiting: BinaryHeap<Waiting>,
    held: usize,
    is_read: bool,
    read: u64,
    /// Types by the numbers of their fields in an event, with the numbers of the declared ones.
    kinds: HashMap<u32, (Kind, Option<usize>)>,
    /// Types that are named in each event, by the names of event and fields.
    named: HashMap<String, usize>,
    /// Who got each CPU last, by events in the compact encoding.
    last: BTreeMap<u32, (u64, Vec<u8>)>,
    counts: Counts,
}

/// What was counted of a file.
#[derive(Default)]
struct Counts {
    events: u64,
    lost: u64,
    lost_before: u64,
    gaps: u64,
    unknown: BTreeMap<u32, u64>,
    no_time: u64,
    no_type: u64,
    out_of_range: u64,
    clock: u64,
    other: BTreeMap<&'static str, u64>,
}

/// Files that are being imported.
pub(super) struct PftraceFeed {
    files: Vec<OneFile>,
    event: RawEvent,
}

impl PftraceFeed {
    /// Opens files.
    ///
    /// # Errors
    /// One cannot be opened.
    pub fn open(paths: &[PathBuf], kernel: &mut KernelRows) -> Result<PftraceFeed> {
        let files: Vec<Packets> =
            paths.iter().map(|path| Packets::open(path)).collect::<Result<_>>()?;
        let is_many = files.len() > 1;
        let files = files.into_iter().enumerate();
        let files = files.map(|(at, packets)| OneFile::new(packets, at, is_many, kernel)).collect();
        Ok(PftraceFeed { files, event: RawEvent::default() })
    }
}

/// Adds a field to a message.
fn push(out: &mut Vec<u8>, number: u32, value: Value<'_>) {
    let varint = |out: &mut Vec<u8>, mut n: u64| {
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
    };
    match value {
        Value::Varint(n) => {
            varint(out, u64::from(number) << 3);
            varint(out, n);
        }
        Value::Bytes(bytes) => {
            varint(out, u64::from(number) << 3 | 2);
            varint(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        Value::Eight(_) | Value::Four(_) => {}
    }
}

impl OneFile {
    fn new(packets: Packets, at: usize, is_many: bool, kernel: &mut KernelRows) -> OneFile {
        // Clocks of several hosts count from when each began.
        let error = if is_many { ClockError::Unknown } else { ClockError::NONE };
        let path = packets.path.display().to_string().replace(' ', "_");
        let config = format!("file={path} {}", error.word());
        let source = kernel.lanes.source("pftrace", "perfetto", "", &config);
        let name = match is_many {
            false => "the traced host".to_owned(),
            true => format!("the traced host {at}"),
        };
        let host = kernel.host(&format!("pftrace:{name}"), &name, source);
        let kinds = types::known().into_iter().map(|(number, kind)| (number, (kind, None)));
        OneFile {
            packets,
            host,
            source,
            waiting: BinaryHeap::new(),
            held: 0,
            is_read: false,
            read: 0,
            kinds: kinds.collect(),
            named: HashMap::new(),
            last: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// When the next event is, once enough have been read behind it.
    fn ready(&mut self, kernel: &mut KernelRows) -> Result<Option<u64>> {
        while !self.is_read && self.held <= HELD {
            if self.packets.advance()? {
                self.packet(kernel)?;
            } else {
                self.is_read = true;
            }
        }
        Ok(self.waiting.peek().map(|Reverse((time, ..))| *time))
    }

    fn packet(&mut self, kernel: &mut KernelRows) -> Result<()> {
        let packet = std::mem::take(&mut *self.packets.packet_mut());
        for field in fields(&packet) {
            let (number, value) = field.map_err(|bad| {
                self.packets.damaged(format!("its field at byte {} is malformed", bad.at))
            })?;
            match (number, value.bytes()) {
                (of_packet::FTRACE_EVENTS, Some(bundle)) => self.bundle(bundle)?,
                (of_packet::PROCESS_TREE, Some(tree)) => self.process_tree(tree, kernel),
                (of_packet::FTRACE_STATS, Some(stats)) => self.stats(stats),
                (number, Some(_)) => {
                    if let Some((_, name)) = OTHERS.iter().find(|other| other.0 == number) {
                        *self.counts.other.entry(name).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        *self.packets.packet_mut() = packet;
        Ok(())
    }

    /// Events of one CPU.
    fn bundle(&mut self, bundle: &[u8]) -> Result<()> {
        let malformed = |file: &OneFile, at: usize| {
            file.packets.damaged(format!("its bundle of events is malformed at byte {at}"))
        };
        let mut cpu = 0;
        for field in fields(bundle) {
            if let (1, Value::Varint(number)) = field.map_err(|bad| malformed(self, bad.at))? {
                cpu = number.min(CPUS) as u32;
            }
        }
        for field in fields(bundle).flatten() {
            match (field.0, field.1) {
                (2, Value::Bytes(event)) => self.wait(cpu, event.into()),
                (3, Value::Varint(1)) => self.counts.gaps += 1,
                (4, Value::Bytes(compact)) => self.compact(cpu, compact),
                (5, Value::Varint(clock)) => self.counts.clock = clock,
                (11, Value::Bytes(descriptor)) => self.describe(descriptor),
                _ => {}
            }
        }
        Ok(())
    }

    /// A type of event that Perfetto has none for.
    fn describe(&mut self, described: &[u8]) {
        let (mut number, mut kind) = (None, None);
        for field in fields(described).flatten() {
            match field.0 {
                1 => number = field.1.number().and_then(|n| u32::try_from(n).ok()),
                2 => kind = field.1.bytes().and_then(types::described),
                _ => {}
            }
        }
        if let (Some(number), Some(kind)) = (number, kind)
            && self.kinds.len() < TYPES
        {
            self.kinds.entry(number).or_insert((kind, None));
        }
    }

    /// Lets an event wait for its turn.
    fn wait(&mut self, cpu: u32, event: Box<[u8]>) {
        let time = fields(&event).flatten().find(|field| field.0 == of_event::TIMESTAMP);
        let Some(time) = time.and_then(|field| field.1.number()) else {
            self.counts.no_time += 1;
            return;
        };
        self.held += event.len() + OVERHEAD;
        self.read += 1;
        self.waiting.push(Reverse((time, self.read, cpu, event)));
    }

    /// Scheduler events as columns: times are differences, names are places in a table.
    fn compact(&mut self, cpu: u32, compact: &[u8]) {
        let mut texts: Vec<&[u8]> = Vec::new();
        let mut columns: [Vec<u64>; 13] = Default::default();
        for (number, value) in fields(compact).flatten() {
            match (number, value) {
                (5, Value::Bytes(text)) => texts.push(text),
                (1..=12, Value::Bytes(numbers)) => columns[number as usize].extend(packed(numbers)),
                (1..=12, Value::Varint(one)) => columns[number as usize].push(one),
                _ => {}
            }
        }
        let text = |column: &[u64], at: usize| {
            let place = column.get(at).and_then(|place| usize::try_from(*place).ok());
            place.and_then(|place| texts.get(place)).copied().unwrap_or_default()
        };
        let number =
            |column: &[u64], at: usize| Value::Varint(column.get(at).copied().unwrap_or(0));
        let mut time = 0u64;
        for (at, delta) in columns[1].iter().enumerate() {
            time = time.wrapping_add(*delta);
            let (pid, comm) = (columns[3].get(at).copied().unwrap_or(0), text(&columns[6], at));
            let mut body = Vec::new();
            if let Some((pid, comm)) = self.last.insert(cpu, (pid, comm.to_vec())) {
                push(&mut body, 1, Value::Bytes(&comm));
                push(&mut body, 2, Value::Varint(pid));
            }
            push(&mut body, 4, number(&columns[2], at));
            push(&mut body, 5, Value::Bytes(comm));
            push(&mut body, 6, Value::Varint(pid));
            push(&mut body, 7, number(&columns[4], at));
            self.wait(cpu, made(time, of_event::SWITCH, &body));
        }
        time = 0;
        for (at, delta) in columns[7].iter().enumerate() {
            time = time.wrapping_add(*delta);
            let mut body = Vec::new();
            push(&mut body, 1, Value::Bytes(text(&columns[11], at)));
            push(&mut body, 2, number(&columns[8], at));
            push(&mut body, 3, number(&columns[10], at));
            push(&mut body, 5, number(&columns[9], at));
            self.wait(cpu, made(time, of_event::WAKING, &body));
        }
    }

    /// Names and processes of threads.
    fn process_tree(&self, tree: &[u8], kernel: &mut KernelRows) {
        for (number, value) in fields(tree).flatten() {
            let Some(message) = value.bytes().filter(|_| matches!(number, 1 | 2)) else { continue };
            let (mut tid, mut pid, mut name) = (None, None, None);
            for (field, value) in fields(message).flatten() {
                match (number, field) {
                    (_, 1) => tid = signed(value),
                    (2, 2) => name = value.bytes(),
                    (2, 3) => pid = signed(value),
                    // The first word of a command line: a path.
                    (1, 3) if name.is_none() => {
                        let path = value.bytes().unwrap_or_default();
                        name = path.rsplit(|byte| *byte == b'/').next();
                    }
                    _ => {}
                }
            }
            if let Some(tid) = tid {
                kernel.learn(self.host, tid, pid.or(Some(tid).filter(|_| number == 1)), name);
            }
        }
    }

    /// What the kernel's buffers lost, said at the begin and at the end.
    fn stats(&mut self, stats: &[u8]) {
        let (mut phase, mut lost) = (0, 0u64);
        for (number, value) in fields(stats).flatten() {
            match (number, value) {
                (1, Value::Varint(which)) => phase = which,
                (2, Value::Bytes(cpu)) => {
                    let of_loss = fields(cpu).flatten().filter(|field| matches!(field.0, 3 | 8));
                    let numbers = of_loss.filter_map(|field| field.1.number());
                    lost = numbers.fold(lost, u64::saturating_add);
                }
                _ => {}
            }
        }
        match phase {
            1 => self.counts.lost_before = lost,
            2 => self.counts.lost = lost.saturating_sub(self.counts.lost_before),
            _ => {}
        }
    }

    /// Takes the first event that waits; whether it is one.
    fn take(&mut self, event: &mut RawEvent, kernel: &mut KernelRows) -> bool {
        let Some(Reverse((time, _, cpu, message))) = self.waiting.pop() else { return false };
        self.held -= message.len() + OVERHEAD;
        let Ok(time) = i64::try_from(time) else {
            self.counts.out_of_range += 1;
            return false;
        };
        event.clear();
        let (mut what, mut tid) = (None, None);
        for (number, value) in fields(&message).flatten() {
            match (number, value) {
                (of_event::TIMESTAMP | of_event::FLAGS, _) => {}
                (of_event::PID, value) => tid = signed(value),
                (number, Value::Bytes(body)) => what = Some((number, body)),
                _ => {}
            }
        }
        let Some((number, body)) = what else {
            self.counts.no_type += 1;
            return false;
        };
        let kind = match number {
            of_event::GENERIC => self.named(body, event, kernel),
            number => self.typed(number, body, event, kernel),
        };
        let Some(kind) = kind else {
            *self.counts.unknown.entry(number).or_default() += 1;
            return false;
        };
        (event.time, event.kind, event.cpu) = (time, kind, Some(cpu));
        event.tid = tid.filter(|tid| *tid >= 0);
        self.counts.events += 1;
        true
    }

    /// An event whose fields are known by their numbers.
    fn typed(
        &mut self,
        number: u32,
        body: &[u8],
        event: &mut RawEvent,
        kernel: &mut KernelRows,
    ) -> Option<usize> {
        let (kind, declared) = self.kinds.get_mut(&number)?;
        let declared = *declared.get_or_insert_with(|| {
            let fields = kind.fields.iter().map(|field| field.1.clone()).collect();
            kernel.declare(EventType { name: kind.name.clone(), fields }, self.host)
        });
        event.values.resize(kind.fields.len(), FieldValue::Absent);
        for (number, value) in fields(body).flatten() {
            let place = kind.fields.iter().position(|field| field.0 == number);
            if let Some(place) = place {
                event.values[place] = value_of(value, kind.fields[place].2, &mut event.text);
            }
        }
        Some(declared)
    }

    /// An event that names itself and its fields.
    fn named(
        &mut self,
        body: &[u8],
        event: &mut RawEvent,
        kernel: &mut KernelRows,
    ) -> Option<usize> {
        let mut key = String::new();
        let mut names: Vec<Name> = Vec::new();
        let mut called: Option<Name> = None;
        let text = |bytes: &[u8]| Name::from(&*String::from_utf8_lossy(bytes));
        for (number, value) in fields(body).flatten() {
            match (number, value.bytes()) {
                (1, Some(bytes)) => called = Some(text(bytes)),
                (2, Some(field)) => {
                    let (mut name, mut value) = (None, FieldValue::Absent);
                    for (number, part) in fields(field).flatten() {
                        match number {
                            1 => name = part.bytes().map(text),
                            3 => value = value_of(part, Holds::Text, &mut event.text),
                            4 => value = value_of(part, Holds::Signed, &mut event.text),
                            5 => value = value_of(part, Holds::Unsigned, &mut event.text),
                            _ => {}
                        }
                    }
                    names.push(name?);
                    event.values.push(value);
                }
                _ => {}
            }
        }
        let called = called?;
        for name in std::iter::once(&called).chain(&names) {
            key.push_str(name);
            key.push('\n');
        }
        if let Some(known) = self.named.get(&key) {
            return Some(*known);
        }
        if self.named.len() >= TYPES {
            return None;
        }
        let number = kernel.declare(EventType { name: called, fields: names }, self.host);
        self.named.insert(key, number);
        Some(number)
    }

    fn finish(&self, about: &mut About, kernel: &mut KernelRows) {
        let (file, counts) = (self.packets.path.display().to_string(), &self.counts);
        let mut left_out = LeftOut::default();
        left_out.lose("events that the kernel's buffers lost", counts.lost);
        left_out.lose(NO_TIME, counts.no_time);
        left_out.lose("events without a type", counts.no_type);
        left_out.lose(OUT_OF_RANGE, counts.out_of_range);
        for (number, count) in &counts.unknown {
            left_out.not_imported(&format!("events of field {number}"), Some(*count));
        }
        for (name, count) in &counts.other {
            left_out.not_imported(&format!("packets of {name}"), Some(*count));
        }
        let recorded = counts.events;
        kernel.lanes.update_source(self.source, |source| left_out.write(source, recorded));
        if counts.gaps > 0 && counts.lost == 0 {
            let line = "times events were lost before a bundle; how many is not said";
            about.lines.push(format!("{file}: {} {line}", counts.gaps));
        }
        // FtraceClock; CLOCK_BOOTTIME is not named.
        if let Some(clock) = match counts.clock {
            1 => Some("unknown"),
            2 => Some("global"),
            3 => Some("local"),
            4 => Some("CLOCK_MONOTONIC_RAW"),
            _ => None,
        } {
            about.lines.push(format!("{file}: times are of the clock {clock}"));
        }
        if !left_out.is_empty() {
            about.left_out.push(FileLeftOut { file, recorded, left_out });
        }
    }
}

/// An event in the usual encoding; the idle task or whoever runs has no number in the compact one.
fn made(time: u64, number: u32, body: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(body.len() + 16);
    push(&mut out, of_event::TIMESTAMP, Value::Varint(time));
    push(&mut out, number, Value::Bytes(body));
    out.into()
}

/// A number of 32 bits with a sign.
fn signed(value: Value<'_>) -> Option<i64> {
    value.number().map(|number| i64::from(number as u32 as i32))
}

/// A value as events have them.
fn value_of(value: Value<'_>, holds: Holds, text: &mut Vec<u8>) -> FieldValue {
    match (value, holds) {
        (Value::Bytes(bytes), _) => {
            let from = text.len();
            text.extend_from_slice(bytes);
            FieldValue::Text(from..text.len())
        }
        (value, Holds::Signed) => {
            value.number().map_or(FieldValue::Absent, |n| FieldValue::Signed(n as i64))
        }
        (value, _) => value.number().map_or(FieldValue::Absent, FieldValue::Unsigned),
    }
}

impl Feed for PftraceFeed {
    fn next(&mut self, kernel: &mut KernelRows) -> Result<bool> {
        loop {
            let mut first: Option<(u64, usize)> = None;
            for (number, file) in self.files.iter_mut().enumerate() {
                if let Some(time) = file.ready(kernel)?
                    && first.is_none_or(|(earliest, _)| time < earliest)
                {
                    first = Some((time, number));
                }
            }
            let Some((_, number)) = first else { return Ok(false) };
            if self.files[number].take(&mut self.event, kernel) {
                kernel.event(&self.event);
                return Ok(true);
            }
        }
    }

    fn done(&self) -> f64 {
        self.files.iter().map(|file| file.packets.done()).fold(1.0, f64::min)
    }

    fn finish(&mut self, kernel: &mut KernelRows) -> About {
        let mut about = About::default();
        let mut files = Vec::new();
        for one in &self.files {
            one.finish(&mut about, kernel);
            files.push(json!({
                "file": one.packets.path.display().to_string(),
                "host": kernel.host_name(one.host),
                "events": one.counts.events,
                "lost_events": one.counts.lost,
            }));
        }
        about.about.insert("files".into(), files.into());
        about
    }
}
