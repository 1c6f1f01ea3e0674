//! Traces as they are imported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use gpuwhy_schema::{ClockError, Name, SourceId};
use serde_json::json;

use super::ast::Role;
use super::build::{Class, EventClass, Int, StreamClass};
use super::decode::Sink;
use super::stream::{Body, Counts};
use super::trace::Traces;
use crate::Result;
use crate::importer::{Batch, Import, Summary};
use crate::kernel::rows::KernelRows;
use crate::left_out::{FileLeftOut, LeftOut};
use gpuwhy_tracepoint::{EventType, RawEvent, Value};

/// Types of events that the summary lists.
const LISTED: usize = 12;

/// Traces that are being imported.
pub(super) struct CtfImport {
    traces: Traces,
    kernel: KernelRows,
    /// For each trace and class of event: the number of its type, and what its fields are.
    types: Vec<Vec<Option<Fields>>>,
    /// The host and the source of each trace.
    of_trace: Vec<(usize, SourceId)>,
    /// The events of each trace.
    events: Vec<u64>,
    event: RawEvent,
    read: u64,
    is_finished: bool,
    lines: Vec<String>,
    left_out: Vec<FileLeftOut>,
}

/// Where the fields of an event are that say who it is about.
#[derive(Clone, Copy, Debug)]
struct Fields {
    kind: usize,
    tid: Option<usize>,
    pid: Option<usize>,
    comm: Option<usize>,
    cpu: Option<usize>,
}

impl CtfImport {
    /// Opens traces.
    ///
    /// # Errors
    /// A directory holds none, or metadata or the beginning of a stream are damaged.
    pub fn open(paths: &[PathBuf]) -> Result<CtfImport> {
        let traces = Traces::open(paths)?;
        let mut kernel = KernelRows::default();
        let mut of_trace = Vec::new();
        let hosts: BTreeSet<String> =
            traces.all.iter().map(|one| host(&one.model.environment).1).collect();
        for (number, one) in traces.all.iter().enumerate() {
            let facts = &one.model.environment;
            let fact = |name: &str| facts.get(name).map_or("", String::as_str);
            let (host, key) = host(facts);
            // Clocks of several hosts are compared by what each believed the time to be.
            let error = if hosts.len() > 1 { ClockError::Unknown } else { ClockError::NONE };
            let tool = match fact("tracer_name") {
                "" => "unknown",
                tool => tool,
            };
            let version = [fact("tracer_major"), fact("tracer_minor"), fact("tracer_patch")];
            let version: Vec<&str> = version.into_iter().filter(|part| !part.is_empty()).collect();
            let file = one.path.display().to_string().replace(' ', "_");
            let config = format!("file={file} {}", error.word());
            let source = kernel.lanes.source("ctf", tool, &version.join("."), &config);
            let host = kernel.host(&key, &host, source);
            debug_assert_eq!(of_trace.len(), number);
            of_trace.push((host, source));
        }
        let types = traces.all.iter().map(|one| vec![None; one.model.events.len()]).collect();
        let events = vec![0; traces.all.len()];
        Ok(CtfImport {
            traces,
            kernel,
            types,
            of_trace,
            events,
            event: RawEvent::default(),
            read: 0,
            is_finished: false,
            lines: Vec::new(),
            left_out: Vec::new(),
        })
    }

    /// Reads the event that a stream has come to, and makes its rows.
    fn read(&mut self, number: usize) -> Result<()> {
        let stream = &mut self.traces.streams[number];
        let trace = stream.trace();
        let (class, what) = stream.event();
        let fields = match self.types[trace][class] {
            Some(fields) => fields,
            None => {
                let fields =
                    declare(what, stream.stream_class(), self.of_trace[trace].0, &mut self.kernel);
                self.types[trace][class] = Some(fields);
                fields
            }
        };
        let event = &mut self.event;
        event.clear();
        stream.body(&mut Filler::new(event), Filler::part)?;
        event.time = stream.time;
        event.kind = fields.kind;
        let number = |place: Option<usize>| event.integer(place);
        let cpu = number(fields.cpu).and_then(|cpu| u32::try_from(cpu).ok());
        let (tid, pid) = (number(fields.tid), number(fields.pid));
        (event.cpu, event.tid, event.pid) = (stream.cpu.or(cpu), tid, pid);
        event.comm = fields.comm;
        self.events[trace] += 1;
        self.kernel.event(event);
        Ok(())
    }

    /// Says what was read, and writes what the tracer lost into the sources.
    fn finish(&mut self) {
        self.kernel.finish();
        let mut of_trace = vec![Counts::default(); self.traces.all.len()];
        for stream in &self.traces.streams {
            let (all, counts) = (&mut of_trace[stream.trace()], stream.counts);
            all.packets += counts.packets;
            all.discarded = all.discarded.saturating_add(counts.discarded);
            all.lost_packets = all.lost_packets.saturating_add(counts.lost_packets);
            all.other_uuid += counts.other_uuid;
        }
        for (number, counts) in of_trace.iter().enumerate() {
            let mut left_out = LeftOut::default();
            left_out.lose("events that the tracer says it lost", counts.discarded);
            if counts.lost_packets > 0 {
                let what = "packets that are missing by their numbers";
                left_out.not_imported(what, Some(counts.lost_packets));
            }
            let file = self.traces.all[number].path.display().to_string();
            let recorded = self.events[number];
            self.kernel
                .lanes
                .update_source(self.of_trace[number].1, |source| left_out.write(source, recorded));
            if counts.other_uuid > 0 {
                let packets = counts.other_uuid;
                self.lines
                    .push(format!("{file}: {packets} packets have another UUID than the metadata"));
            }
            if !left_out.is_empty() {
                self.left_out.push(FileLeftOut { file, recorded, left_out });
            }
        }
        let tally = self.kernel.tally();
        let packets: u64 = of_trace.iter().map(|counts| counts.packets).sum();
        let mut line = format!(
            "{} events in {packets} packets of {} streams of {} traces",
            tally.events,
            self.traces.streams.len(),
            self.traces.all.len()
        );
        if let Some((first, last)) = tally.span {
            let _ = write!(line, ", from {first} to {last} ns");
        }
        self.lines.insert(0, line);
        if self.traces.streams.iter().any(|stream| !stream.has_clock()) {
            self.lines.push("some streams have no clock: their events lie at 0".into());
        }
        if self.traces.streams.iter().any(super::stream::Stream::is_out_of_range) {
            let line =
                "the offset of a clock is beyond 64 bits of nanoseconds: its times count from 0";
            self.lines.push(line.into());
        }
        if tally.backwards > 0 {
            let line = "events are earlier than one before them in their stream; states were not moved back";
            self.lines.push(format!("{} {line}", tally.backwards));
        }
        if tally.unknown_requests > 0 {
            let line = "block requests completed of which nothing else was seen";
            self.lines.push(format!("{} {line}", tally.unknown_requests));
        }
        self.lines.push(self.most_frequent());
    }

    fn most_frequent(&self) -> String {
        let mut counts: BTreeMap<&Name, u64> = BTreeMap::new();
        for (name, count) in self.kernel.counts() {
            *counts.entry(name).or_default() += count;
        }
        let mut counts: Vec<(&Name, u64)> = counts.into_iter().collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let more = counts.len().saturating_sub(LISTED);
        let listed: Vec<String> =
            counts.iter().take(LISTED).map(|(name, count)| format!("{name} {count}")).collect();
        let more = if more > 0 { format!(" and {more} more types") } else { String::new() };
        format!("events: {}{more}", listed.join(", "))
    }
}

/// The name of a trace's host and what tells it from others. Traces that name none are of one host.
fn host(facts: &BTreeMap<String, String>) -> (String, String) {
    let name = ["hostname", "host", "nodename"].iter().find_map(|name| facts.get(*name));
    let name = name.map_or("the traced host", String::as_str);
    (name.to_owned(), format!("ctf:{name}"))
}

/// Declares the type of an event: its fields, and after them what its contexts say.
fn declare(
    event: &EventClass,
    stream: Option<&StreamClass>,
    host: usize,
    kernel: &mut KernelRows,
) -> Fields {
    let mut fields: Vec<Name> = Vec::new();
    let of_stream = stream.and_then(|stream| stream.event_context.as_ref());
    // In the order in which they are decoded.
    for class in [of_stream, event.context.as_ref(), event.fields.as_ref()].into_iter().flatten() {
        if let Class::Struct { fields: members, .. } = class {
            fields.extend(members.iter().map(|member| member.name.clone()));
        }
    }
    let context = of_stream.map_or(0, members) + event.context.as_ref().map_or(0, members);
    let what = EventType { name: event.name.clone(), fields };
    let within = |names: &[&str]| {
        let of_context =
            EventType { name: what.name.clone(), fields: what.fields[..context].to_vec() };
        of_context.field(names)
    };
    let of_perf =
        |name: &str| what.field(&[name]).filter(|_| what.fields.iter().any(|f| &**f == "perf_ip"));
    // A thread's number in its own namespace is not that of the host, unless there is no other.
    let tid = within(&["tid", "vtid"]).or(of_perf("perf_tid"));
    let pid = within(&["pid", "vpid"]).or(of_perf("perf_pid"));
    let cpu = within(&["cpu_id"]).or(of_perf("perf_cpu"));
    let comm = within(&["procname"]);
    Fields { kind: kernel.declare(what, host), tid, pid, comm, cpu }
}

fn members(class: &Class) -> usize {
    match class {
        Class::Struct { fields, .. } => fields.len(),
        _ => 0,
    }
}

impl Import for CtfImport {
    fn next(&mut self) -> Result<Option<Batch>> {
        if self.is_finished {
            return Ok(None);
        }
        while !self.kernel.is_full() {
            match self.traces.next()? {
                Some(stream) => self.read(stream)?,
                None => {
                    self.is_finished = true;
                    self.finish();
                    return Ok(Some(self.kernel.take(1.0)));
                }
            }
        }
        self.read = self.traces.streams.iter().map(|stream| stream.counts.bytes).sum();
        let done = self.read as f64 / self.traces.bytes.max(1) as f64;
        Ok(Some(self.kernel.take(done.min(1.0))))
    }

    fn summary(&self) -> Summary {
        let tally = self.kernel.tally();
        let traces = self.traces.all.iter().enumerate().map(|(number, one)| {
            json!({
                "directory": one.path.display().to_string(),
                "environment": one.model.environment,
                "events": self.events[number],
            })
        });
        let mut types: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in self.kernel.counts() {
            *types.entry(name).or_default() += count;
        }
        let counts = self.traces.streams.iter().map(|stream| stream.counts);
        let about = json!({
            "traces": traces.collect::<Vec<_>>(),
            "streams": self.traces.streams.len(),
            "packets": counts.clone().map(|counts| counts.packets).sum::<u64>(),
            "events": tally.events,
            "discarded_events": counts.clone().fold(0u64, |sum, c| sum.saturating_add(c.discarded)),
            "lost_packets": counts.fold(0u64, |sum, c| sum.saturating_add(c.lost_packets)),
            "earlier_than_one_before": tally.backwards,
            "first_ns": tally.span.map(|span| span.0),
            "last_ns": tally.span.map(|span| span.1),
            "types": types,
        });
        Summary { about, lines: self.lines.clone(), left_out: self.left_out.clone() }
    }
}

/// Fills a [`RawEvent`]: one value for each member of the outermost structures.
struct Filler<'a> {
    event: &'a mut RawEvent,
    depth: usize,
    /// Where the text of a value of several parts begins.
    from: usize,
    is_first: bool,
}

impl<'a> Filler<'a> {
    fn new(event: &'a mut RawEvent) -> Filler<'a> {
        Filler { event, depth: 0, from: 0, is_first: true }
    }

    fn part(&mut self, part: Body) {
        if part == Body::Anew {
            self.event.values.clear();
            self.event.text.clear();
            self.depth = 0;
        }
    }

    /// Adds a value, or writes it where it is one of several parts.
    fn add(&mut self, value: Value) {
        match (self.depth, value) {
            (0 | 1, value) => self.event.values.push(value),
            (_, Value::Unsigned(n)) => self.number(n),
            (_, Value::Signed(n)) => self.number(n),
            (_, Value::Float(n)) => {
                drop(std::io::Write::write_fmt(&mut self.event.text, format_args!("{n}")))
            }
            (_, Value::Text(_) | Value::Absent) => {}
        }
    }

    fn number(&mut self, number: impl itoa::Integer) {
        self.event.text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn separate(&mut self) {
        if self.depth > 1 {
            if !self.is_first {
                self.event.text.extend_from_slice(b", ");
            }
            self.is_first = false;
        }
    }
}

impl Sink for Filler<'_> {
    fn field(&mut self, name: &Name) {
        if self.depth > 1 {
            self.separate();
            self.event.text.extend_from_slice(name.as_bytes());
            self.event.text.extend_from_slice(b": ");
        }
    }

    fn element(&mut self, _: u64) {
        self.separate();
    }

    fn begin(&mut self, elements: Option<u64>) {
        self.depth += 1;
        if self.depth == 2 {
            self.from = self.event.text.len();
        }
        if self.depth > 1 {
            self.event.text.push(if elements.is_some() { b'[' } else { b'{' });
            self.is_first = true;
        }
    }

    fn end(&mut self, is_array: bool) {
        if self.depth > 1 {
            self.event.text.push(if is_array { b']' } else { b'}' });
            self.is_first = false;
        }
        self.depth -= 1;
        if self.depth == 1 {
            let range = self.from..self.event.text.len();
            self.event.values.push(Value::Text(range));
        }
    }

    fn choice(&mut self, _: &Name) {}

    fn end_choice(&mut self) {}

    fn integer(&mut self, bits: u64, class: &Int) {
        debug_assert!(class.role != Some(Role::Magic), "no part of an event");
        self.add(if class.signed { Value::Signed(bits as i64) } else { Value::Unsigned(bits) });
    }

    fn float(&mut self, value: f64, _: bool) {
        self.add(Value::Float(value));
    }

    fn text(&mut self, text: &[u8]) {
        if self.depth > 1 {
            self.event.text.extend_from_slice(text);
        } else {
            self.event.push_text(text);
        }
    }

    fn blob(&mut self, bytes: &[u8]) {
        let from = self.event.text.len();
        for byte in bytes {
            let _ = std::io::Write::write_fmt(&mut self.event.text, format_args!("{byte:02x}"));
        }
        if self.depth <= 1 {
            self.event.values.push(Value::Text(from..self.event.text.len()));
        }
    }

    fn absent(&mut self) {
        self.add(Value::Absent);
    }
}
