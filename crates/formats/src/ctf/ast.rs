//! What metadata say, before references are resolved: the form that both front ends, TSDL of CTF 1.8 and JSON of
//! CTF 2, hand to [`super::build`].

use std::collections::BTreeMap;
use std::sync::Arc;

/// The order of the bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// What a field is there for, besides its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The magic number of a packet.
    Magic,
    /// The UUID of the trace, again in each packet.
    Uuid,
    /// The class of the stream that a packet belongs to.
    StreamClass,
    /// The stream of that class.
    StreamInstance,
    /// Bits of the packet with what fills it up.
    PacketSize,
    /// Bits of the packet that are used.
    ContentSize,
    /// When the packet began.
    Begin,
    /// When it ended.
    End,
    /// Events that were lost since the stream began.
    Discarded,
    /// The number of the packet within its stream.
    Sequence,
    /// The class of an event.
    EventClass,
    /// The time.
    Timestamp,
    /// The CPU that a packet is from.
    Cpu,
}

/// Ranges of values, both ends included.
pub(super) type Ranges = Vec<(i128, i128)>;

/// An integer of fixed size.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Integer {
    /// In bits.
    pub size: u64,
    /// In bits; by default 8 for whole bytes and else 1.
    pub align: Option<u64>,
    /// Whether it can be negative.
    pub signed: bool,
    /// As which it is shown: 2, 8, 10 or 16.
    pub base: u32,
    /// `None` is that of the trace.
    pub order: Option<Order>,
    /// Whether an array of it is a text.
    pub is_text: bool,
    /// The clock whose value it holds.
    pub clock: Option<String>,
    /// CTF 2 says what a field is there for; CTF 1.8 goes by names.
    pub roles: Vec<Role>,
    /// The names of its values, if it is an enumeration.
    pub names: Option<Vec<(String, Ranges)>>,
    /// Of any length, seven bits a byte (LEB128).
    pub is_variable: bool,
}

/// How many elements an array has, or bytes a blob.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Length {
    /// Always so many.
    Fixed(u64),
    /// As many as this field says.
    Of(Vec<String>),
    /// Text up to a zero byte.
    Terminated,
}

/// A choice of a variant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    /// Its name, as the metadata spell it.
    pub name: String,
    /// The values of the selector that choose it; `None` are those that the selector calls by the same name.
    pub ranges: Option<Ranges>,
    /// What it holds.
    pub class: Arc<Type>,
}

/// The class of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Type {
    Integer(Integer),
    Float { size: u64, align: Option<u64>, order: Option<Order> },
    Text(Length),
    Blob(Length, Vec<Role>),
    Struct { fields: Vec<(String, Arc<Type>)>, align: u64 },
    Array { element: Arc<Type>, length: Length, align: u64 },
    Variant { selector: Option<Vec<String>>, choices: Vec<Choice> },
    Optional { selector: Vec<String>, ranges: Option<Ranges>, class: Arc<Type> },
}

/// A clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    pub name: String,
    /// Cycles a second.
    pub frequency: u64,
    pub offset_seconds: i64,
    pub offset_cycles: i64,
    /// Clocks of the same UUID are one clock.
    pub uuid: Option<[u8; 16]>,
}

/// A class of streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    pub id: u64,
    pub packet_context: Option<Arc<Type>>,
    pub event_header: Option<Arc<Type>>,
    pub event_context: Option<Arc<Type>>,
    /// In CTF 2: the clock of all its times.
    pub clock: Option<String>,
}

/// A class of events.
#[derive(Clone, Debug, Default)]
pub(super) struct Event {
    pub id: u64,
    pub stream: u64,
    pub name: String,
    pub context: Option<Arc<Type>>,
    pub fields: Option<Arc<Type>>,
}

/// What metadata say.
#[derive(Clone, Debug, Default)]
pub(super) struct Metadata {
    /// 1 or 2.
    pub version: u32,
    pub order: Option<Order>,
    pub uuid: Option<[u8; 16]>,
    /// Facts about the traced system, as text.
    pub environment: BTreeMap<String, String>,
    pub packet_header: Option<Arc<Type>>,
    pub clocks: Vec<Clock>,
    pub streams: Vec<Stream>,
    pub events: Vec<Event>,
}

/// Why metadata cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The byte of the text at which it was noticed.
    pub at: usize,
    /// What is wrong.
    pub what: String,
}

/// The UUID in a text such as `2a6422d0-6cee-11e0-8c08-cb07d7b3a564`.
pub(super) fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    if digits.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}
