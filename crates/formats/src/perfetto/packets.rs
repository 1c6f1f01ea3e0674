//! Writes packets: framing, interning and counting, with one buffer for a trace of any length.

use std::collections::HashMap;
use std::io::Write;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use super::Error;
use super::proto::{self, DebugAnnotation, InternedData, InternedName, TrackDescriptor};
use super::proto::{TracePacket, TrackEvent};
use gpuwhy_schema::Ns;

/// The only packet sequence of a file; interned names belong to a sequence.
const SEQUENCE: u32 = 1;
/// How many names of each kind are interned; later ones are written inline. Otherwise a trace whose names
/// never repeat (request ids as names) would fill the memory of its writer and reader.
const INTERNED: usize = 1 << 16;
/// Longer names are written inline, for the same reason.
const INTERNED_BYTES: usize = 256;

/// A value of an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A quantity.
    Int(i64),
    /// A quantity that cannot be negative, an id or a hash.
    Uint(u64),
    /// A measurement.
    Double(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
}

/// Arguments of an event, in the order in which they are shown.
pub type Args = Vec<(&'static str, Value)>;

/// An event on a track.
pub struct Event<'a> {
    /// When.
    pub ts: Ns,
    /// The uuid of its track.
    pub track: u64,
    /// Of [`proto::event`].
    pub kind: u32,
    /// The shape of the row.
    pub category: &'static str,
    /// The name.
    pub name: &'a str,
    /// The arguments.
    pub args: Args,
    /// The flows that pass through it.
    pub flows: Vec<u64>,
}

#[derive(Default)]
struct Interned {
    known: HashMap<String, u64>,
}

impl Interned {
    /// The number of `name`, and whether it still has to be declared; `None` to write it inline.
    fn number(&mut self, name: &str) -> Option<(u64, bool)> {
        if let Some(&iid) = self.known.get(name) {
            return Some((iid, false));
        }
        if self.known.len() >= INTERNED || name.len() > INTERNED_BYTES {
            return None;
        }
        let iid = self.known.len() as u64 + 1;
        self.known.insert(name.to_owned(), iid);
        Some((iid, true))
    }
}

/// A file that packets are written to.
pub struct Packets<W> {
    out: W,
    buffer: Vec<u8>,
    names: Interned,
    categories: Interned,
    arg_names: Interned,
    /// Bytes written so far.
    pub bytes: u64,
}

impl<W: Write> Packets<W> {
    /// An empty file.
    pub fn new(out: W) -> Packets<W> {
        Packets {
            out,
            buffer: Vec::with_capacity(1 << 16),
            names: Interned::default(),
            categories: Interned::default(),
            arg_names: Interned::default(),
            bytes: 0,
        }
    }

    /// Begins the file: declares the clock of all its times, and a time near them.
    ///
    /// Times are CLOCK_MONOTONIC. Without this declaration readers assume BOOTTIME, which differs by the
    /// time that the machine has slept.
    pub fn begin(&mut self, near: Ns) -> Result<(), Error> {
        self.clocks(&[(proto::clock::MONOTONIC, near.0.max(0) as u64)])?;
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(proto::sequence::INCREMENTAL_STATE_CLEARED),
            trace_packet_defaults: Some(proto::TracePacketDefaults {
                timestamp_clock_id: Some(proto::clock::MONOTONIC),
            }),
            ..TracePacket::default()
        })
    }

    /// Writes times of several clocks at one moment.
    pub fn clocks(&mut self, clocks: &[(u32, u64)]) -> Result<(), Error> {
        let clocks = clocks
            .iter()
            .map(|&(id, ts)| proto::Clock { clock_id: Some(id), timestamp: Some(ts) })
            .collect();
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            clock_snapshot: Some(proto::ClockSnapshot {
                clocks,
                primary_trace_clock: Some(proto::clock::MONOTONIC),
            }),
            ..TracePacket::default()
        })
    }

    /// Declares a track.
    pub fn descriptor(&mut self, descriptor: TrackDescriptor) -> Result<(), Error> {
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        })
    }

    /// Writes a slice's begin or an instant.
    pub fn event(&mut self, event: Event<'_>) -> Result<(), Error> {
        let mut interned = InternedData::default();
        let declare = |number: Option<(u64, bool)>, name: &str, into: &mut Vec<InternedName>| {
            if let Some((iid, true)) = number {
                into.push(InternedName { iid: Some(iid), name: Some(name.to_owned()) });
            }
            number.map(|(iid, _)| iid)
        };

        let number = self.names.number(event.name);
        let name_iid = declare(number, event.name, &mut interned.event_names);
        let number = self.categories.number(event.category);
        let category = declare(number, event.category, &mut interned.event_categories);
        let debug_annotations = event
            .args
            .into_iter()
            .map(|(key, value)| {
                let number = self.arg_names.number(key);
                let name_iid = declare(number, key, &mut interned.debug_annotation_names);
                let name = name_iid.is_none().then(|| key.to_owned());
                let mut note = DebugAnnotation { name_iid, name, ..Default::default() };
                match value {
                    Value::Int(v) => note.int_value = Some(v),
                    Value::Uint(v) => note.uint_value = Some(v),
                    Value::Double(v) => note.double_value = Some(v),
                    Value::Bool(v) => note.bool_value = Some(v),
                    Value::Text(v) => note.string_value = Some(v),
                }
                note
            })
            .collect();
        let fresh = interned != InternedData::default();
        self.track_event(
            event.ts,
            fresh.then_some(interned),
            TrackEvent {
                category_iids: category.into_iter().collect(),
                debug_annotations,
                r#type: Some(event.kind),
                name_iid,
                name: name_iid.is_none().then(|| event.name.to_owned()),
                track_uuid: Some(event.track),
                // Both numbers of the field: readers up to v24 know the first, later ones prefer the
                // second.
                flow_ids_old: event.flows.clone(),
                flow_ids: event.flows,
                double_counter_value: None,
            },
        )
    }

    /// Writes the end of the innermost open slice of a track.
    pub fn slice_end(&mut self, ts: Ns, track: u64) -> Result<(), Error> {
        self.track_event(
            ts,
            None,
            TrackEvent {
                r#type: Some(proto::event::SLICE_END),
                track_uuid: Some(track),
                ..TrackEvent::default()
            },
        )
    }

    /// Writes a value of a counter.
    pub fn counter(&mut self, ts: Ns, track: u64, value: f64) -> Result<(), Error> {
        self.track_event(
            ts,
            None,
            TrackEvent {
                r#type: Some(proto::event::COUNTER),
                track_uuid: Some(track),
                double_counter_value: Some(value),
                ..TrackEvent::default()
            },
        )
    }

    fn track_event(
        &mut self,
        ts: Ns,
        interned_data: Option<InternedData>,
        event: TrackEvent,
    ) -> Result<(), Error> {
        self.packet(&TracePacket {
            timestamp: Some(ts.0.max(0) as u64),
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(proto::sequence::NEEDS_INCREMENTAL_STATE),
            interned_data,
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    /// One `Trace.packet`: field 1, length, bytes.
    fn packet(&mut self, packet: &TracePacket) -> Result<(), Error> {
        let len = packet.encoded_len();
        self.bytes += (1 + encoded_len_varint(len as u64) + len) as u64;
        encode_key(1, WireType::LengthDelimited, &mut self.buffer);
        encode_varint(len as u64, &mut self.buffer);
        packet.encode_raw(&mut self.buffer);
        if self.buffer.len() >= 1 << 16 { self.flush_buffer() } else { Ok(()) }
    }

    fn flush_buffer(&mut self) -> Result<(), Error> {
        let before = self.bytes - self.buffer.len() as u64;
        self.out
            .write_all(&self.buffer)
            .map_err(|source| Error::Write { bytes: before, source })?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes what is buffered, and returns the writer.
    pub fn finish(mut self) -> Result<W, Error> {
        self.flush_buffer()?;
        self.out.flush().map_err(|source| Error::Write { bytes: self.bytes, source })?;
        Ok(self.out)
    }
}
