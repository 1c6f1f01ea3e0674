//! What a record says, and its 56 bytes.
//!
//! | bytes | what | step, step_open | phase | mark | counter | launch, kernel |
//! |---|---|---|---|---|---|---|
//! | 0..4 | checksum | | | | | |
//! | 4 | kind | | | | | |
//! | 5 | flags: which of the optional fields are there | | | | | |
//! | 6..8 | device | | | | device? | device |
//! | 8..12 | name | name | name | name | name | name |
//! | 12..16 | extra | rank? | | | unit | stream |
//! | 16..20 | pid | | | | | |
//! | 20..24 | tid | | | | | |
//! | 24..32 | start, ns | start | start | at | at | start |
//! | 32..40 | duration, ns | duration | duration | | | duration |
//! | 40..48 | a | seq | step's seq? | value? | value | correlation |
//! | 48..56 | b | size? | | | | graph? |
//!
//! And what libraries tell from inside a process:
//!
//! | bytes | copy | device | communicator | collective | message | stage | notice | wait |
//! |---|---|---|---|---|---|---|---|---|
//! | 6..8 | device | device | number | communicator | communicator | communicator | | |
//! | 8..12 | kind | uuid | name | operation | operation | stage | text | for what |
//! | 12..16 | stream | | rank | how? | peer | channel? | code | stream |
//! | 24..32 | start | at | at | start | start | start | at | start |
//! | 32..40 | duration | | | duration | duration | duration | | duration |
//! | 40..48 | correlation | | id | seq | seq | seq | value? | correlation |
//! | 48..56 | bytes | | ranks | bytes | bytes | operation | | |

use core::fmt;

use crate::layout::{RECORD_BYTES, RECORD_WORDS, check};

/// A place in the ring's name table, from 1; 0 is a name that found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NameId(pub u32);

/// One record, with names as numbers ([`NameId`]) or as text (`&str`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record<N = NameId> {
    /// The process that wrote it, in that process's own pid namespace.
    pub pid: u32,
    /// The thread that wrote it, in that process's own pid namespace.
    pub tid: u32,
    /// What it says.
    pub event: Event<N>,
}

/// What happened. Times are CLOCK_MONOTONIC ns, durations ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<N = NameId> {
    /// A step has begun; a [`Event::Step`] of the same thread and `seq` follows when it ends, so
    /// that a step that never ends is seen too.
    StepOpen {
        /// What it is.
        name: N,
        /// Its number on its thread, from 0.
        seq: u64,
        /// How much there is to do, in the workload's own unit.
        size: Option<i64>,
        /// The rank that takes it.
        rank: Option<u32>,
        /// When it began.
        start: u64,
    },
    /// A step, written at its end.
    Step {
        /// What it is.
        name: N,
        /// Its number on its thread, from 0.
        seq: u64,
        /// How much there was to do, in the workload's own unit.
        size: Option<i64>,
        /// The rank that took it.
        rank: Option<u32>,
        /// When it began.
        start: u64,
        /// How long it took.
        dur: u64,
    },
    /// A part of a step, written at its end; phases may contain each other.
    Phase {
        /// What it is.
        name: N,
        /// `seq` of the step that it belongs to.
        step: Option<u64>,
        /// When it began.
        start: u64,
        /// How long it took.
        dur: u64,
    },
    /// A point.
    Mark {
        /// What it is.
        name: N,
        /// When.
        at: u64,
        /// A number that belongs to it; finite.
        value: Option<f64>,
    },
    /// A measurement.
    Counter {
        /// What was measured.
        name: N,
        /// The unit in UCUM: `MHz`, `By`, `1`.
        unit: N,
        /// The GPU it belongs to; without one it is the process's.
        device: Option<u16>,
        /// When.
        at: u64,
        /// The value; finite.
        value: f64,
    },
    /// A call that launched work on a device.
    Launch {
        /// What was launched.
        name: N,
        /// The GPU's number in this process.
        device: u16,
        /// The stream's number on that GPU.
        stream: u32,
        /// What ties it to its kernel; unique within its process.
        correlation: u64,
        /// When the call began.
        start: u64,
        /// How long the call took.
        dur: u64,
    },
    /// Work on a device.
    Kernel {
        /// What ran.
        name: N,
        /// The GPU's number in this process.
        device: u16,
        /// The stream's number on that GPU.
        stream: u32,
        /// What ties it to its launch; unique within its process.
        correlation: u64,
        /// The CUDA graph that it is a node of, or that it is one launch of as a whole.
        graph: Option<u64>,
        /// When it began on the device.
        start: u64,
        /// How long it ran.
        dur: u64,
    },
    /// A copy by a device, or a memset.
    Copy {
        /// Which way: `HtoD`, `DtoH`, `DtoD`, `PtoP`, `memset`, where the host's memory is known
        /// with `pinned` or `pageable` behind it.
        name: N,
        /// The GPU's number in this process.
        device: u16,
        /// The stream's number on that GPU.
        stream: u32,
        /// What ties it to its call; unique within its process.
        correlation: u64,
        /// Bytes moved.
        bytes: u64,
        /// When it began on the device.
        start: u64,
        /// How long it took.
        dur: u64,
    },
    /// Which GPU a number of this process means.
    Device {
        /// Its UUID, as NVML prints it.
        name: N,
        /// The GPU's number in this process.
        device: u16,
        /// When that was said.
        at: u64,
    },
    /// A communicator of a collective library.
    Communicator {
        /// What its program calls it; may be empty.
        name: N,
        /// Its number in this process, which the records of its work have.
        communicator: u16,
        /// What it is on all its ranks.
        id: u64,
        /// This process's rank in it.
        rank: u32,
        /// How many ranks it has.
        ranks: u32,
        /// When it was made.
        at: u64,
    },
    /// A collective of one rank.
    Collective {
        /// The operation: `AllReduce`.
        name: N,
        /// The communicator's number in this process.
        communicator: u16,
        /// The call's number within its communicator and operation, equal on all ranks.
        seq: u64,
        /// Payload in bytes.
        bytes: u64,
        /// Algorithm, protocol and channels as `RING/LL128/24`; 0 if it is not told.
        how: N,
        /// Whether start and duration are the device's; else they are those of the call that
        /// enqueued it.
        on_gpu: bool,
        /// When it began.
        start: u64,
        /// How long it took.
        dur: u64,
    },
    /// A send or receive between two ranks.
    Message {
        /// The operation: `Send`, `Recv`.
        name: N,
        /// The communicator's number in this process.
        communicator: u16,
        /// The other rank.
        peer: u32,
        /// Its number within its communicator, operation and peer.
        seq: u64,
        /// Payload in bytes.
        bytes: u64,
        /// As for a collective.
        on_gpu: bool,
        /// When it began.
        start: u64,
        /// How long it took.
        dur: u64,
    },
    /// A stretch of a collective: a phase of its kernel, a wait of the thread that feeds the
    /// network.
    Stage {
        /// What it is: `initial_sync`, `compute`, `final_sync`, `channel`, `net:send_wait`.
        name: N,
        /// The communicator's number in this process.
        communicator: u16,
        /// The collective's operation.
        operation: N,
        /// The collective's number.
        seq: u64,
        /// The channel; without one it is the mean over all channels.
        channel: Option<u32>,
        /// Whether start and duration are the device's.
        on_gpu: bool,
        /// When it began.
        start: u64,
        /// How long it took.
        dur: u64,
    },
    /// A thread of this process waited for its device.
    Wait {
        /// For what: `stream`, `event`, `context`.
        name: N,
        /// The stream's number.
        stream: u32,
        /// The call's; unique within its process.
        correlation: u64,
        /// When it began to wait.
        start: u64,
        /// How long it waited.
        dur: u64,
    },
    /// A library has something to say about what it can see: who reads the trace must know.
    Notice {
        /// What it says.
        name: N,
        /// What it is about; see the crate that writes it.
        code: u32,
        /// A number that belongs to it; finite.
        value: Option<f64>,
        /// When.
        at: u64,
    },
}

impl<N: Copy> Record<N> {
    /// The same record with its names looked up by `name`.
    pub fn named<M>(&self, mut name: impl FnMut(N) -> M) -> Record<M> {
        let event = match self.event {
            Event::StepOpen { name: n, seq, size, rank, start } => {
                Event::StepOpen { name: name(n), seq, size, rank, start }
            }
            Event::Step { name: n, seq, size, rank, start, dur } => {
                Event::Step { name: name(n), seq, size, rank, start, dur }
            }
            Event::Phase { name: n, step, start, dur } => {
                Event::Phase { name: name(n), step, start, dur }
            }
            Event::Mark { name: n, at, value } => Event::Mark { name: name(n), at, value },
            Event::Counter { name: n, unit, device, at, value } => {
                Event::Counter { name: name(n), unit: name(unit), device, at, value }
            }
            Event::Launch { name: n, device, stream, correlation, start, dur } => {
                Event::Launch { name: name(n), device, stream, correlation, start, dur }
            }
            Event::Kernel { name: n, device, stream, correlation, graph, start, dur } => {
                Event::Kernel { name: name(n), device, stream, correlation, graph, start, dur }
            }
            Event::Copy { name: n, device, stream, correlation, bytes, start, dur } => {
                Event::Copy { name: name(n), device, stream, correlation, bytes, start, dur }
            }
            Event::Device { name: n, device, at } => Event::Device { name: name(n), device, at },
            Event::Communicator { name: n, communicator, id, rank, ranks, at } => {
                Event::Communicator { name: name(n), communicator, id, rank, ranks, at }
            }
            Event::Collective { name: n, communicator, seq, bytes, how, on_gpu, start, dur } => {
                let (name, how) = (name(n), name(how));
                Event::Collective { name, communicator, seq, bytes, how, on_gpu, start, dur }
            }
            Event::Message { name: n, communicator, peer, seq, bytes, on_gpu, start, dur } => {
                let name = name(n);
                Event::Message { name, communicator, peer, seq, bytes, on_gpu, start, dur }
            }
            Event::Stage { name: n, communicator, operation, seq, channel, on_gpu, start, dur } => {
                let (name, operation) = (name(n), name(operation));
                Event::Stage { name, communicator, operation, seq, channel, on_gpu, start, dur }
            }
            Event::Wait { name: n, stream, correlation, start, dur } => {
                Event::Wait { name: name(n), stream, correlation, start, dur }
            }
            Event::Notice { name: n, code, value, at } => {
                Event::Notice { name: name(n), code, value, at }
            }
        };
        Record { pid: self.pid, tid: self.tid, event }
    }
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecord {
    /// Not [`RECORD_BYTES`] bytes.
    Length(usize),
    /// The checksum does not fit the words and the position: torn, or of another lap.
    Checksum,
    /// No record is of this kind.
    Kind(u8),
    /// This kind cannot have, or cannot lack, one of the fields that the flags name.
    Flags {
        /// The kind.
        kind: u8,
        /// Its flags.
        flags: u8,
    },
    /// It ends after the year 2262.
    Time,
    /// Its value is infinite or not a number.
    Value,
    /// A number of ranks or of a name that has more than 32 bits.
    Number(u64),
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRecord::Length(n) => write!(f, "a record has {RECORD_BYTES} bytes, not {n}"),
            BadRecord::Checksum => write!(f, "the checksum fits neither the record nor its place"),
            BadRecord::Kind(kind) => write!(f, "no record is of kind {kind}"),
            BadRecord::Flags { kind, flags } => {
                write!(f, "a record of kind {kind} cannot have the flags {flags:#x}")
            }
            BadRecord::Time => write!(f, "its time does not fit 63 bits of nanoseconds"),
            BadRecord::Value => write!(f, "its value is not finite"),
            BadRecord::Number(n) => write!(f, "it counts to {n}, which does not fit 32 bits"),
        }
    }
}

impl core::error::Error for BadRecord {}

const STEP_OPEN: u8 = 1;
const STEP: u8 = 2;
const PHASE: u8 = 3;
const MARK: u8 = 4;
const COUNTER: u8 = 5;
const LAUNCH: u8 = 6;
const KERNEL: u8 = 7;
const COPY: u8 = 8;
const DEVICE: u8 = 9;
const COMMUNICATOR: u8 = 10;
const COLLECTIVE: u8 = 11;
const MESSAGE: u8 = 12;
const STAGE: u8 = 13;
const NOTICE: u8 = 14;
const WAIT: u8 = 15;

const HAS_A: u8 = 1;
const HAS_B: u8 = 2;
const HAS_EXTRA: u8 = 4;
const HAS_DEVICE: u8 = 8;
const ON_GPU: u8 = 16;

/// For each kind: the flags that it must have, and those that it may have.
const FLAGS: [(u8, u8); 16] = [
    (0, 0),
    (HAS_A, HAS_B | HAS_EXTRA),
    (HAS_A, HAS_B | HAS_EXTRA),
    (0, HAS_A),
    (0, HAS_A),
    (HAS_A | HAS_EXTRA, HAS_DEVICE),
    (HAS_A | HAS_EXTRA | HAS_DEVICE, 0),
    (HAS_A | HAS_EXTRA | HAS_DEVICE, HAS_B),
    (HAS_A | HAS_B | HAS_EXTRA | HAS_DEVICE, 0),
    (HAS_DEVICE, 0),
    (HAS_A | HAS_B | HAS_EXTRA | HAS_DEVICE, 0),
    (HAS_A | HAS_B | HAS_EXTRA | HAS_DEVICE, ON_GPU),
    (HAS_A | HAS_B | HAS_EXTRA | HAS_DEVICE, ON_GPU),
    (HAS_A | HAS_B | HAS_DEVICE, HAS_EXTRA | ON_GPU),
    (HAS_EXTRA, HAS_A),
    (HAS_A | HAS_EXTRA, 0),
];

/// The fields as they lie in the bytes, before anybody has judged them.
#[derive(Clone, Copy, Default)]
struct Fields {
    kind: u8,
    flags: u8,
    device: u16,
    name: u32,
    extra: u32,
    start: u64,
    dur: u64,
    a: u64,
    b: u64,
}

fn flag<T>(value: Option<T>, flag: u8) -> u8 {
    if value.is_some() { flag } else { 0 }
}

/// The words of a record, without a checksum.
///
/// Never fails; what [`decode`] would refuse (a value that is not finite) it will refuse there.
#[inline]
pub fn encode(record: &Record) -> [u64; RECORD_WORDS] {
    let none = Fields::default();
    let f = match record.event {
        Event::StepOpen { name, seq, size, rank, start } => Fields {
            kind: STEP_OPEN,
            flags: HAS_A | flag(size, HAS_B) | flag(rank, HAS_EXTRA),
            name: name.0,
            extra: rank.unwrap_or(0),
            start,
            a: seq,
            b: size.unwrap_or(0) as u64,
            ..none
        },
        Event::Step { name, seq, size, rank, start, dur } => Fields {
            kind: STEP,
            flags: HAS_A | flag(size, HAS_B) | flag(rank, HAS_EXTRA),
            name: name.0,
            extra: rank.unwrap_or(0),
            start,
            dur,
            a: seq,
            b: size.unwrap_or(0) as u64,
            ..none
        },
        Event::Phase { name, step, start, dur } => Fields {
            kind: PHASE,
            flags: flag(step, HAS_A),
            name: name.0,
            start,
            dur,
            a: step.unwrap_or(0),
            ..none
        },
        Event::Mark { name, at, value } => Fields {
            kind: MARK,
            flags: flag(value, HAS_A),
            name: name.0,
            start: at,
            a: value.unwrap_or(0.0).to_bits(),
            ..none
        },
        Event::Counter { name, unit, device, at, value } => Fields {
            kind: COUNTER,
            flags: HAS_A | HAS_EXTRA | flag(device, HAS_DEVICE),
            device: device.unwrap_or(0),
            name: name.0,
            extra: unit.0,
            start: at,
            a: value.to_bits(),
            ..none
        },
        Event::Launch { name, device, stream, correlation, start, dur } => Fields {
            kind: LAUNCH,
            flags: HAS_A | HAS_EXTRA | HAS_DEVICE,
            device,
            name: name.0,
            extra: stream,
            start,
            dur,
            a: correlation,
            ..none
        },
        Event::Kernel { name, device, stream, correlation, graph, start, dur } => Fields {
            kind: KERNEL,
            flags: HAS_A | HAS_EXTRA | HAS_DEVICE | flag(graph, HAS_B),
            device,
            name: name.0,
            extra: stream,
            start,
            dur,
            a: correlation,
            b: graph.unwrap_or(0),
        },
        Event::Copy { name, device, stream, correlation, bytes, start, dur } => Fields {
            kind: COPY,
            flags: HAS_A | HAS_B | HAS_EXTRA | HAS_DEVICE,
            device,
            name: name.0,
            extra: stream,
            start,
            dur,
            a: correlation,
            b: bytes,
        },
        Event::Device { name, device, at } => {
            Fields { kind: DEVICE, flags: HAS_DEVICE, device, name: name.0, start: at, ..none }
        }
        Event::Communicator { name, communicator, id, rank, ranks, at } => Fields {
            kind: COMMUNICATOR,
            flags: HAS_A | HAS_B | HAS_EXTRA | HAS_DEVICE,
            device: communicator,
            name: name.0,
            extra: rank,
            start: at,
            a: id,
            b: ranks.into(),
            ..none
        },
        Event::Collective { name, communicator, seq, bytes, how, on_gpu, start, dur } => Fields {
            kind: COLLECTIVE,
            flags: HAS_A | HAS_B | HAS_EXTRA | HAS_DEVICE | if on_gpu { ON_GPU } else { 0 },
            device: communicator,
            name: name.0,
            extra: how.0,
            start,
            dur,
            a: seq,
            b: bytes,
        },
        Event::Message { name, communicator, peer, seq, bytes, on_gpu, start, dur } => Fields {
            kind: MESSAGE,
            flags: HAS_A | HAS_B | HAS_EXTRA | HAS_DEVICE | if on_gpu { ON_GPU } else { 0 },
            device: communicator,
            name: name.0,
            extra: peer,
            start,
            dur,
            a: seq,
            b: bytes,
        },
        Event::Stage { name, communicator, operation, seq, channel, on_gpu, start, dur } => {
            let gpu = if on_gpu { ON_GPU } else { 0 };
            Fields {
                kind: STAGE,
                flags: HAS_A | HAS_B | HAS_DEVICE | flag(channel, HAS_EXTRA) | gpu,
                device: communicator,
                name: name.0,
                extra: channel.unwrap_or(0),
                start,
                dur,
                a: seq,
                b: operation.0.into(),
            }
        }
        Event::Wait { name, stream, correlation, start, dur } => Fields {
            kind: WAIT,
            flags: HAS_A | HAS_EXTRA,
            name: name.0,
            extra: stream,
            start,
            dur,
            a: correlation,
            ..none
        },
        Event::Notice { name, code, value, at } => Fields {
            kind: NOTICE,
            flags: HAS_EXTRA | flag(value, HAS_A),
            name: name.0,
            extra: code,
            start: at,
            a: value.unwrap_or(0.0).to_bits(),
            ..none
        },
    };
    let (kind, flags, device) = (f.kind as u64, f.flags as u64, f.device as u64);
    [
        kind << 32 | flags << 40 | device << 48,
        f.name as u64 | (f.extra as u64) << 32,
        record.pid as u64 | (record.tid as u64) << 32,
        f.start,
        f.dur,
        f.a,
        f.b,
    ]
}

/// Writes the checksum for this position into the words.
#[inline]
pub fn seal(words: &mut [u64; RECORD_WORDS], position: u64) {
    let sum = check(words, position);
    words[0] = words[0] & !0xffff_ffff | sum as u64;
}

/// Reads a record that was written at this position of a ring.
///
/// # Errors
/// [`BadRecord`]: any bytes that [`seal`] and [`encode`] would not have made of a record with
/// finite values and with times below 2^63.
pub fn decode(bytes: &[u8], position: u64) -> Result<Record, BadRecord> {
    if bytes.len() != RECORD_BYTES {
        return Err(BadRecord::Length(bytes.len()));
    }
    let mut words = [0u64; RECORD_WORDS];
    for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut le = [0u8; 8];
        le.copy_from_slice(eight);
        *word = u64::from_le_bytes(le);
    }
    decode_words(&words, position)
}

pub(crate) fn decode_words(
    words: &[u64; RECORD_WORDS],
    position: u64,
) -> Result<Record, BadRecord> {
    if words[0] as u32 != check(words, position) {
        return Err(BadRecord::Checksum);
    }
    let f = Fields {
        kind: (words[0] >> 32) as u8,
        flags: (words[0] >> 40) as u8,
        device: (words[0] >> 48) as u16,
        name: words[1] as u32,
        extra: (words[1] >> 32) as u32,
        start: words[3],
        dur: words[4],
        a: words[5],
        b: words[6],
    };
    let (must, may) = match FLAGS.get(f.kind as usize) {
        Some(flags) if f.kind != 0 => *flags,
        _ => return Err(BadRecord::Kind(f.kind)),
    };
    if f.flags & must != must || f.flags & !(must | may) != 0 {
        return Err(BadRecord::Flags { kind: f.kind, flags: f.flags });
    }
    match f.start.checked_add(f.dur) {
        Some(end) if end <= i64::MAX as u64 => {}
        _ => return Err(BadRecord::Time),
    }
    let has = |flag| f.flags & flag != 0;
    let name = NameId(f.name);
    let size = has(HAS_B).then_some(f.b as i64);
    let rank = has(HAS_EXTRA).then_some(f.extra);
    let value = f64::from_bits(f.a);
    let valued = f.kind == COUNTER || matches!(f.kind, MARK | NOTICE) && has(HAS_A);
    if valued && !value.is_finite() {
        return Err(BadRecord::Value);
    }
    let small = u32::try_from(f.b);
    if matches!(f.kind, COMMUNICATOR | STAGE) && small.is_err() {
        return Err(BadRecord::Number(f.b));
    }
    let (start, dur, device, stream) = (f.start, f.dur, f.device, f.extra);
    let (communicator, seq, bytes, on_gpu) = (f.device, f.a, f.b, has(ON_GPU));
    let event = match f.kind {
        STEP_OPEN => Event::StepOpen { name, seq: f.a, size, rank, start },
        STEP => Event::Step { name, seq: f.a, size, rank, start, dur },
        PHASE => Event::Phase { name, step: has(HAS_A).then_some(f.a), start, dur },
        MARK => Event::Mark { name, at: start, value: has(HAS_A).then_some(value) },
        COUNTER => Event::Counter {
            name,
            unit: NameId(f.extra),
            device: has(HAS_DEVICE).then_some(device),
            at: start,
            value,
        },
        LAUNCH => Event::Launch { name, device, stream, correlation: f.a, start, dur },
        KERNEL => {
            let graph = has(HAS_B).then_some(f.b);
            Event::Kernel { name, device, stream, correlation: f.a, graph, start, dur }
        }
        COPY => Event::Copy { name, device, stream, correlation: f.a, bytes, start, dur },
        DEVICE => Event::Device { name, device, at: start },
        COMMUNICATOR => {
            let (rank, ranks) = (f.extra, small.unwrap_or(0));
            Event::Communicator { name, communicator, id: f.a, rank, ranks, at: start }
        }
        COLLECTIVE => {
            let how = NameId(f.extra);
            Event::Collective { name, communicator, seq, bytes, how, on_gpu, start, dur }
        }
        MESSAGE => {
            let peer = f.extra;
            Event::Message { name, communicator, peer, seq, bytes, on_gpu, start, dur }
        }
        STAGE => {
            let operation = NameId(small.unwrap_or(0));
            let channel = has(HAS_EXTRA).then_some(f.extra);
            Event::Stage { name, communicator, operation, seq, channel, on_gpu, start, dur }
        }
        WAIT => Event::Wait { name, stream, correlation: f.a, start, dur },
        _ => {
            let value = has(HAS_A).then_some(value);
            Event::Notice { name, code: f.extra, value, at: start }
        }
    };
    Ok(Record { pid: words[2] as u32, tid: (words[2] >> 32) as u32, event })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events() -> impl Strategy<Value = Event> {
        let name = any::<u32>().prop_map(NameId);
        let time = 0..(1u64 << 62);
        let value = prop::num::f64::NORMAL | prop::num::f64::ZERO;
        let size = prop::option::of(any::<i64>());
        let rank = prop::option::of(any::<u32>());
        let step = prop::option::of(any::<u64>());
        let device = any::<u16>();
        prop_oneof![
            (name.clone(), any::<u64>(), size.clone(), rank.clone(), time.clone()).prop_map(
                |(name, seq, size, rank, start)| Event::StepOpen { name, seq, size, rank, start }
            ),
            (name.clone(), any::<u64>(), size, rank, time.clone(), time.clone()).prop_map(
                |(name, seq, size, rank, start, dur)| Event::Step {
                    name,
                    seq,
                    size,
                    rank,
                    start,
                    dur
                }
            ),
            (name.clone(), step, time.clone(), time.clone())
                .prop_map(|(name, step, start, dur)| Event::Phase { name, step, start, dur }),
            (name.clone(), time.clone(), prop::option::of(value))
                .prop_map(|(name, at, value)| Event::Mark { name, at, value }),
            (name.clone(), name.clone(), prop::option::of(device), time.clone(), value).prop_map(
                |(name, unit, device, at, value)| Event::Counter { name, unit, device, at, value }
            ),
            (name.clone(), device, any::<u32>(), any::<u64>(), time.clone(), time.clone())
                .prop_map(|(name, device, stream, correlation, start, dur)| Event::Launch {
                    name,
                    device,
                    stream,
                    correlation,
                    start,
                    dur
                }),
            (
                name.clone(),
                device,
                any::<u32>(),
                any::<u64>(),
                prop::option::of(any::<u64>()),
                time.clone(),
                time.clone()
            )
                .prop_map(|(name, device, stream, correlation, graph, start, dur)| {
                    Event::Kernel { name, device, stream, correlation, graph, start, dur }
                }),
            inside(),
        ]
    }

    /// What libraries tell from inside a process.
    fn inside() -> impl Strategy<Value = Event> {
        let names = (any::<u32>().prop_map(NameId), any::<u32>().prop_map(NameId));
        let numbers = (any::<u16>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>());
        let times = (0..(1u64 << 62), 0..(1u64 << 62));
        (names, numbers, times, 0..8u8).prop_map(
            |((name, other), (device, small, a, b, on_gpu), (start, dur), kind)| match kind {
                0 => {
                    let (stream, correlation, bytes) = (small, a, b);
                    Event::Copy { name, device, stream, correlation, bytes, start, dur }
                }
                1 => Event::Device { name, device, at: start },
                2 => {
                    let (communicator, id, rank, ranks) = (device, a, small, b as u32);
                    Event::Communicator { name, communicator, id, rank, ranks, at: start }
                }
                3 => {
                    let (communicator, seq, bytes, how) = (device, a, b, other);
                    Event::Collective { name, communicator, seq, bytes, how, on_gpu, start, dur }
                }
                4 => {
                    let (communicator, peer, seq, bytes) = (device, small, a, b);
                    Event::Message { name, communicator, peer, seq, bytes, on_gpu, start, dur }
                }
                5 => {
                    let (communicator, operation, seq) = (device, other, a);
                    let channel = (b % 2 == 0).then_some(small);
                    Event::Stage { name, communicator, operation, seq, channel, on_gpu, start, dur }
                }
                6 => {
                    let (stream, correlation) = (small, a);
                    Event::Wait { name, stream, correlation, start, dur }
                }
                _ => {
                    let value = (b % 2 == 0).then_some(a as f64);
                    Event::Notice { name, code: small, value, at: start }
                }
            },
        )
    }

    fn bytes(words: &[u64; RECORD_WORDS]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    proptest! {
        #[test]
        fn a_record_comes_back_as_it_was_written(
            event in events(), pid: u32, tid: u32, position: u64,
        ) {
            let record = Record { pid, tid, event };
            let mut words = encode(&record);
            seal(&mut words, position);
            prop_assert_eq!(decode(&bytes(&words), position), Ok(record));
            prop_assert_eq!(decode(&bytes(&words), position + 64), Err(BadRecord::Checksum));
        }

        #[test]
        fn a_mixture_of_two_records_is_torn(
            a in events(), b in events(), position: u64, mixed in 1u8..127,
        ) {
            let (mut left, mut right) = (
                encode(&Record { pid: 1, tid: 1, event: a }),
                encode(&Record { pid: 1, tid: 1, event: b }),
            );
            seal(&mut left, position);
            seal(&mut right, position);
            let mut mixture = left;
            for i in 0..RECORD_WORDS {
                if mixed & 1 << i != 0 {
                    mixture[i] = right[i];
                }
            }
            prop_assume!(mixture != left && mixture != right);
            prop_assert_eq!(decode(&bytes(&mixture), position), Err(BadRecord::Checksum));
        }

        #[test]
        fn any_sealed_bytes_decode_to_what_encodes_to_them_or_to_an_error(
            mut words: [u64; RECORD_WORDS], kind in 0u8..16, flags in 0u8..32, position: u64,
        ) {
            words[0] = (kind as u64) << 32 | (flags as u64) << 40 | words[0] >> 48 << 48;
            words[3] >>= 1;
            words[4] >>= 2;
            seal(&mut words, position);
            if let Ok(record) = decode(&bytes(&words), position) {
                let mut again = encode(&record);
                seal(&mut again, position);
                prop_assert_eq!(decode(&bytes(&again), position), Ok(record));
            }
        }
    }

    fn refused(change: impl FnOnce(&mut [u64; RECORD_WORDS])) -> BadRecord {
        let event =
            Event::Counter { name: NameId(1), unit: NameId(2), device: None, at: 5, value: 1.0 };
        let mut words = encode(&Record { pid: 1, tid: 1, event });
        change(&mut words);
        seal(&mut words, 9);
        decode(&bytes(&words), 9).unwrap_err()
    }

    #[test]
    fn nonsense_is_refused_by_its_reason() {
        assert_eq!(decode(&[0; 55], 0), Err(BadRecord::Length(55)));
        assert_eq!(refused(|w| w[0] = 99 << 32), BadRecord::Kind(99));
        assert_eq!(refused(|w| w[0] = 0), BadRecord::Kind(0));
        assert_eq!(refused(|w| w[0] = 5 << 32), BadRecord::Flags { kind: 5, flags: 0 });
        assert_eq!(refused(|w| w[3] = u64::MAX), BadRecord::Time);
        assert_eq!(refused(|w| w[4] = i64::MAX as u64), BadRecord::Time);
        assert_eq!(refused(|w| w[5] = f64::NAN.to_bits()), BadRecord::Value);
    }
}
