//! The part of Perfetto's trace protocol that the export uses, written by hand, so that neither protoc
//! nor a build script is needed.
//!
//! Field numbers and types are those of `protos/perfetto/trace/**.proto`, which Perfetto keeps
//! compatible forever. `oneof`s are written as plain optional fields: the bytes are the same.

use prost::Message;

/// `perfetto.protos.Trace`.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// The packets, in the order of the file.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// `TracePacket`.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// Times of several clocks at one moment.
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    /// When, on the clock of the sequence.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The sequence that the packet belongs to.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// An event on a track.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// Names that later packets refer to by number.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// Bits of [`sequence`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// Defaults for the packets of the sequence.
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    /// A declaration of a track.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// `TracePacketDefaults`.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacketDefaults {
    /// The clock of timestamps, of [`clock`].
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
}

/// `ClockSnapshot`.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    /// The clocks, read at one moment.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    /// The clock of the whole trace, of [`clock`].
    #[prost(uint32, optional, tag = "2")]
    pub primary_trace_clock: Option<u32>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    /// Which clock, of [`clock`].
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// Its time, ns.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// The number by which events name the track.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// The name that viewers show.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The process that the track stands for.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// The thread that the track stands for.
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    /// The track that this one is shown below.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// Set for a track of counter values.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    /// `ChildTracksOrdering`; readers before v47 do not know it.
    #[prost(uint32, optional, tag = "11")]
    pub child_ordering: Option<u32>,
    /// Its position among the tracks below the same parent.
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

/// `ProcessDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// The pid.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// The name of the program.
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
}

/// `ThreadDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct ThreadDescriptor {
    /// The pid of its process.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// The tid.
    #[prost(int64, optional, tag = "2")]
    pub tid: Option<i64>,
    /// The name of the thread.
    #[prost(string, optional, tag = "5")]
    pub thread_name: Option<String>,
}

/// `CounterDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct CounterDescriptor {
    /// The unit, of [`unit`].
    #[prost(uint32, optional, tag = "3")]
    pub unit: Option<u32>,
    /// The unit, where [`unit`] lacks it.
    #[prost(string, optional, tag = "6")]
    pub unit_name: Option<String>,
}

/// `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// Interned categories.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    /// Arguments.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// What kind of event, of [`event`].
    #[prost(uint32, optional, tag = "9")]
    pub r#type: Option<u32>,
    /// The interned name.
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    /// The track that it lies on.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// The name, where it is not interned.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// `flow_ids` until v24, since then `flow_ids_old`.
    #[prost(uint64, repeated, packed = "false", tag = "36")]
    pub flow_ids_old: Vec<u64>,
    /// The value of a counter.
    #[prost(double, optional, tag = "44")]
    pub double_counter_value: Option<f64>,
    /// The flows that pass through the event.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
}

/// `DebugAnnotation`.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// The interned name.
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    /// A truth value.
    #[prost(bool, optional, tag = "2")]
    pub bool_value: Option<bool>,
    /// An unsigned integer.
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    /// A signed integer.
    #[prost(int64, optional, tag = "4")]
    pub int_value: Option<i64>,
    /// A floating-point number.
    #[prost(double, optional, tag = "5")]
    pub double_value: Option<f64>,
    /// A text.
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    /// The name, where it is not interned.
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
}

/// `InternedData`.
#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    /// Categories of events.
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<InternedName>,
    /// Names of events.
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<InternedName>,
    /// Names of arguments.
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<InternedName>,
}

/// `EventCategory`, `EventName` and `DebugAnnotationName`, which are alike.
#[derive(Clone, PartialEq, Message)]
pub struct InternedName {
    /// The number, unique among interned names of its kind.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// The name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// `ClockSnapshot.Clock.BuiltinClocks`.
pub mod clock {
    /// CLOCK_REALTIME: time in UTC, set by NTP.
    pub const REALTIME: u32 = 1;
    /// CLOCK_MONOTONIC: stops while the machine sleeps; the clock of traces.
    pub const MONOTONIC: u32 = 3;
    /// CLOCK_MONOTONIC_RAW: not slewed by NTP.
    pub const MONOTONIC_RAW: u32 = 5;
    /// CLOCK_BOOTTIME: counts on while the machine sleeps.
    pub const BOOTTIME: u32 = 6;
}

/// `TrackEvent.Type`.
pub mod event {
    /// A slice begins.
    pub const SLICE_BEGIN: u32 = 1;
    /// The innermost open slice of the track ends.
    pub const SLICE_END: u32 = 2;
    /// A point in time.
    pub const INSTANT: u32 = 3;
    /// A value of a counter.
    pub const COUNTER: u32 = 4;
}

/// `CounterDescriptor.Unit`.
pub mod unit {
    /// Nanoseconds.
    pub const TIME_NS: u32 = 1;
    /// A count without a unit.
    pub const COUNT: u32 = 2;
    /// Bytes.
    pub const SIZE_BYTES: u32 = 3;
}

/// `TracePacket.SequenceFlags`.
pub mod sequence {
    /// Interned names begin anew here.
    pub const INCREMENTAL_STATE_CLEARED: u32 = 1;
    /// The packet refers to interned names.
    pub const NEEDS_INCREMENTAL_STATE: u32 = 2;
}

/// `TrackDescriptor.ChildTracksOrdering.EXPLICIT`.
pub const EXPLICIT_ORDER: u32 = 3;
