//! The simulated host's events as LTTng writes them: CTF 1.8, one stream a CPU, metadata as plain text.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::events::{Event, KINDS, Type, Value};

/// Bytes of events in a packet.
const PACKET: usize = 1 << 18;
const MAGIC: u32 = 0xc1fc_1fc1;

/// Writes a trace into a folder, which is made.
///
/// # Errors
/// The folder or a file cannot be written.
pub fn write(events: &[Event], folder: &Path) -> io::Result<()> {
    let mut writer = Writer::create(folder)?;
    for event in events {
        writer.event(event)?;
    }
    writer.finish()
}

/// Writes a trace of which no more than a packet a CPU is held.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    streams: BTreeMap<u32, Stream>,
}

/// The stream of a CPU.
#[derive(Debug)]
struct Stream {
    file: File,
    /// The events of the packet that is being made, and their first and last times.
    body: Vec<u8>,
    span: (i64, i64),
}

impl Writer {
    /// Begins a trace in a folder, which is made.
    ///
    /// # Errors
    /// The folder or a file cannot be written.
    pub fn create(folder: &Path) -> io::Result<Writer> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("metadata"), metadata())?;
        Ok(Writer { folder: folder.into(), streams: BTreeMap::new() })
    }

    /// Adds an event. Those of one CPU come in the order of time.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let stream = match self.streams.entry(event.cpu) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let file = File::create(self.folder.join(format!("kernel_{}", event.cpu)))?;
                place.insert(Stream { file, body: Vec::new(), span: (0, 0) })
            }
        };
        if stream.body.is_empty() {
            stream.span.0 = event.time;
        }
        stream.span.1 = event.time;
        append(&mut stream.body, event);
        if stream.body.len() >= PACKET { stream.end(event.cpu) } else { Ok(()) }
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.streams.iter_mut().try_for_each(|(cpu, stream)| stream.end(*cpu))
    }
}

impl Stream {
    /// Writes the packet, if there is anything in it.
    fn end(&mut self, cpu: u32) -> io::Result<()> {
        if self.body.is_empty() {
            return Ok(());
        }
        let mut out = Vec::with_capacity(self.body.len() + 64);
        packet(&mut out, cpu, self.span, &self.body);
        self.body.clear();
        self.file.write_all(&out)
    }
}

fn packet(out: &mut Vec<u8>, cpu: u32, (from, to): (i64, i64), body: &[u8]) {
    // Magic, stream, two times, two sizes, lost events, CPU.
    let bits = 8 * (4 + 4 + 8 + 8 + 8 + 8 + 8 + 4 + body.len() as u64);
    out.extend(MAGIC.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    for number in [from as u64, to as u64, bits, bits, 0] {
        out.extend(number.to_le_bytes());
    }
    out.extend(cpu.to_le_bytes());
    out.extend(body);
}

fn append(out: &mut Vec<u8>, event: &Event) {
    out.extend((event.kind as u16).to_le_bytes());
    out.extend((event.time as u64).to_le_bytes());
    out.extend(event.tid.to_le_bytes());
    out.extend(event.pid.to_le_bytes());
    text(out, event.comm);
    for ((_, kind), value) in KINDS[event.kind].fields.iter().zip(&event.values) {
        match (kind, value) {
            (Type::Unsigned(bits) | Type::Signed(bits), Value::Number(number)) => {
                out.extend(&number.to_le_bytes()[..usize::from(*bits) / 8]);
            }
            (_, Value::Text(value)) => text(out, value),
            (Type::Text, Value::Number(number)) => text(out, &number.to_string()),
        }
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend(value.as_bytes());
    out.push(0);
}

/// What the streams are made of, in CTF's own language.
fn metadata() -> String {
    let mut out = String::from(
        "/* CTF 1.8 */\n\
         typealias integer { size = 8; align = 8; signed = false; } := uint8_t;\n\
         typealias integer { size = 16; align = 8; signed = false; } := uint16_t;\n\
         typealias integer { size = 32; align = 8; signed = false; } := uint32_t;\n\
         typealias integer { size = 64; align = 8; signed = false; } := uint64_t;\n\
         typealias integer { size = 32; align = 8; signed = true; } := int32_t;\n\
         typealias integer { size = 64; align = 8; signed = true; } := int64_t;\n\
         trace {\n\tmajor = 1;\n\tminor = 8;\n\tbyte_order = le;\n\
         \tpacket.header := struct {\n\t\tuint32_t magic;\n\t\tuint32_t stream_id;\n\t};\n};\n\
         env {\n\thostname = \"gvt-host\";\n\tdomain = \"kernel\";\n\tsysname = \"Linux\";\n\
         \tkernel_release = \"4.14.0\";\n\ttracer_name = \"lttng-modules\";\n\
         \ttracer_major = 2;\n\ttracer_minor = 10;\n\ttracer_patchlevel = 0;\n};\n\
         clock {\n\tname = monotonic;\n\tdescription = \"Monotonic Clock\";\n\
         \tfreq = 1000000000;\n\toffset = 0;\n};\n\
         typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } \
         := time_t;\n\
         stream {\n\tid = 0;\n\
         \tpacket.context := struct {\n\t\ttime_t timestamp_begin;\n\t\ttime_t timestamp_end;\n\
         \t\tuint64_t content_size;\n\t\tuint64_t packet_size;\n\t\tuint64_t events_discarded;\n\
         \t\tuint32_t cpu_id;\n\t};\n\
         \tevent.header := struct {\n\t\tuint16_t id;\n\t\ttime_t timestamp;\n\t};\n\
         \tevent.context := struct {\n\t\tint32_t _tid;\n\t\tint32_t _pid;\n\t\tstring _procname;\n\t};\n};\n",
    );
    for (id, kind) in KINDS.iter().enumerate() {
        let _ =
            write!(out, "event {{\n\tname = \"{}\";\n\tid = {id};\n\tstream_id = 0;\n", kind.name);
        out += "\tfields := struct {\n";
        for (name, of) in kind.fields {
            let of = match of {
                Type::Unsigned(bits) => format!("uint{bits}_t"),
                Type::Signed(bits) => format!("int{bits}_t"),
                Type::Text => "string".to_owned(),
            };
            let _ = writeln!(out, "\t\t{of} _{name};");
        }
        out += "\t};\n};\n";
    }
    out
}
