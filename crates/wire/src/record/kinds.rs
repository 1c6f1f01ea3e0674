//! The kinds of record, each declared once: its number, its fields, and where each field lies.
//!
//! Encoding, decoding, which flags a record may have, and the examples for tests and fuzzing follow from
//! the declaration. The places are those of [`super::fields`].

use super::fields::{self, Fields, Flags, flags, places};
use super::{BadRecord, NameId};

/// Declares the kinds: number, name, and for each field its type and its place. `N` is a name, as its
/// number or as text.
macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $kind:literal $event:ident {
            $(
                $(#[$field_doc:meta])*
                $field:ident: $type:ident $(<$of:ident>)? in $place:ident,
            )*
        }
    )*) => {
        /// What happened. Times are CLOCK_MONOTONIC ns, durations ns.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Event<N = NameId> {
            $(
                $(#[$doc])*
                $event {
                    $(
                        $(#[$field_doc])*
                        $field: $type $(<$of>)?,
                    )*
                },
            )*
        }

        impl<N: Copy> Event<N> {
            /// The same event with its names looked up by `name`.
            pub(super) fn named<M>(&self, mut name: impl FnMut(N) -> M) -> Event<M> {
                match *self {
                    $(Event::$event { $($field,)* } => {
                        Event::$event { $($field: named!($type, $field, name),)* }
                    })*
                }
            }
        }

        impl Event {
            /// The number of each kind, with its name.
            #[cfg(any(test, feature = "std"))]
            pub(crate) const KINDS: &[(u8, &str)] = &[$(($kind, stringify!($event)),)*];

            /// As it lies in the record.
            #[inline]
            pub(super) fn encode(self) -> Fields {
                let mut fields = Fields::default();
                match self {
                    $(Event::$event { $($field,)* } => {
                        fields.kind = $kind;
                        $(fields::put::<places::$place, _>(&mut fields, $field);)*
                    })*
                }
                fields
            }

            /// The flags that a record of this kind has.
            pub(super) fn flags(kind: u8) -> Option<Flags> {
                match kind {
                    $($kind => Some(const {
                        Flags::NONE$(.and(flags::<places::$place, known!($type $(<$of>)?)>()))*
                    }),)*
                    _ => None,
                }
            }

            /// Reads a record whose flags are right.
            pub(super) fn decode(fields: &Fields) -> Result<Event, BadRecord> {
                match fields.kind {
                    $($kind => Ok(Event::$event {
                        $($field: fields::get::<places::$place, _>(fields)?,)*
                    }),)*
                    kind => Err(BadRecord::Kind(kind)),
                }
            }

            /// A valid event of this kind, made of any numbers: for tests and fuzzing.
            #[cfg(any(test, feature = "std"))]
            pub(crate) fn example(kind: u8, mut next: impl FnMut() -> u64) -> Option<Event> {
                match kind {
                    $($kind => Some(Event::$event {
                        $($field: fields::example::<places::$place, _>(next()),)*
                    }),)*
                    _ => None,
                }
            }
        }
    };
}

/// A field with its names looked up.
macro_rules! named {
    (N, $field:ident, $name:ident) => {
        $name($field)
    };
    ($type:ident, $field:ident, $name:ident) => {
        $field
    };
}

/// The type of a field where names are numbers.
macro_rules! known {
    (N) => {
        NameId
    };
    ($type:ty) => {
        $type
    };
}

kinds! {
    /// A step has begun; an [`Event::Step`] of the same thread and `seq` follows when it ends. So a
    /// step that never ends is seen too.
    1 StepOpen {
        /// Its name.
        name: N in Name,
        /// Its number on its thread, from 0.
        seq: u64 in A,
        /// How much there is to do, in the workload's own unit.
        size: Option<i64> in B,
        /// The rank that takes it.
        rank: Option<u32> in Extra,
        /// When it began.
        start: u64 in Start,
    }

    /// A step, written at its end.
    2 Step {
        /// Its name.
        name: N in Name,
        /// Its number on its thread, from 0.
        seq: u64 in A,
        /// How much there was to do, in the workload's own unit.
        size: Option<i64> in B,
        /// The rank that took it.
        rank: Option<u32> in Extra,
        /// When it began.
        start: u64 in Start,
        /// How long it took.
        dur: u64 in Dur,
    }

    /// A part of a step, written at its end; phases may contain each other.
    3 Phase {
        /// Its name.
        name: N in Name,
        /// `seq` of the step that it belongs to.
        step: Option<u64> in A,
        /// When it began.
        start: u64 in Start,
        /// How long it took.
        dur: u64 in Dur,
    }

    /// A point.
    4 Mark {
        /// Its name.
        name: N in Name,
        /// When.
        at: u64 in Start,
        /// A number that belongs to it; finite.
        value: Option<f64> in A,
    }

    /// A measurement.
    5 Counter {
        /// What was measured.
        name: N in Name,
        /// The unit in UCUM: `MHz`, `By`, `1`.
        unit: N in Extra,
        /// The GPU it belongs to; without one it belongs to the process.
        device: Option<u16> in Device,
        /// When.
        at: u64 in Start,
        /// The value; finite.
        value: f64 in A,
    }

    /// A call that launched work on a device.
    6 Launch {
        /// What was launched.
        name: N in Name,
        /// The GPU's number in this process.
        device: u16 in Device,
        /// The stream's number on that GPU.
        stream: u32 in Extra,
        /// Ties it to its kernel; unique within its process.
        correlation: u64 in A,
        /// When the call began.
        start: u64 in Start,
        /// How long the call took.
        dur: u64 in Dur,
    }

    /// Work on a device.
    7 Kernel {
        /// What ran.
        name: N in Name,
        /// The GPU's number in this process.
        device: u16 in Device,
        /// The stream's number on that GPU.
        stream: u32 in Extra,
        /// Ties it to its launch; unique within its process.
        correlation: u64 in A,
        /// The CUDA graph that it is a node of, or that it is one launch of as a whole.
        graph: Option<u64> in B,
        /// When it began on the device.
        start: u64 in Start,
        /// How long it ran.
        dur: u64 in Dur,
    }

    /// A copy by a device, or a memset.
    8 Copy {
        /// The direction: `HtoD`, `DtoH`, `DtoD`, `PtoP`, or `memset`; followed by `pinned` or
        /// `pageable` where the kind of host memory is known.
        name: N in Name,
        /// The GPU's number in this process.
        device: u16 in Device,
        /// The stream's number on that GPU.
        stream: u32 in Extra,
        /// Ties it to its call; unique within its process.
        correlation: u64 in A,
        /// Bytes moved.
        bytes: u64 in B,
        /// When it began on the device.
        start: u64 in Start,
        /// How long it took.
        dur: u64 in Dur,
    }

    /// Which GPU a device number of this process means.
    9 Device {
        /// Its UUID, as NVML prints it.
        name: N in Name,
        /// The GPU's number in this process.
        device: u16 in Device,
        /// When that was found out.
        at: u64 in Start,
    }

    /// A communicator of a collective library.
    10 Communicator {
        /// The name that its program gave it; may be empty.
        name: N in Name,
        /// Its number in this process, which the records of its work have.
        communicator: u16 in Device,
        /// Its identity, equal on all ranks.
        id: u64 in A,
        /// This process's rank in it.
        rank: u32 in Extra,
        /// How many ranks it has.
        ranks: u32 in B,
        /// When it was made.
        at: u64 in Start,
    }

    /// A collective of one rank.
    11 Collective {
        /// The operation: `AllReduce`.
        name: N in Name,
        /// The communicator's number in this process.
        communicator: u16 in Device,
        /// The call's number within its communicator and operation, equal on all ranks.
        seq: u64 in A,
        /// Payload in bytes.
        bytes: u64 in B,
        /// Algorithm, protocol and channels as `RING/LL128/24`; 0 if unknown.
        how: N in Extra,
        /// Whether start and duration are those of the device; else they are those of the call
        /// that enqueued it.
        on_gpu: bool in OnGpu,
        /// When it began.
        start: u64 in Start,
        /// How long it took.
        dur: u64 in Dur,
    }

    /// A send or receive between two ranks.
    12 Message {
        /// The operation: `Send`, `Recv`.
        name: N in Name,
        /// The communicator's number in this process.
        communicator: u16 in Device,
        /// The other rank.
        peer: u32 in Extra,
        /// Its number within its communicator, operation and peer.
        seq: u64 in A,
        /// Payload in bytes.
        bytes: u64 in B,
        /// As for a collective.
        on_gpu: bool in OnGpu,
        /// When it began.
        start: u64 in Start,
        /// How long it took.
        dur: u64 in Dur,
    }

    /// A part of a collective: a phase of its kernel, or a wait of the thread that feeds the
    /// network.
    13 Stage {
        /// Which part: `initial_sync`, `compute`, `final_sync`, `channel`, `net:send_wait`.
        name: N in Name,
        /// The communicator's number in this process.
        communicator: u16 in Device,
        /// The collective's operation.
        operation: N in B,
        /// The collective's number.
        seq: u64 in A,
        /// The channel; without one the record is the mean over all channels.
        channel: Option<u32> in Extra,
        /// Whether start and duration are those of the device.
        on_gpu: bool in OnGpu,
        /// When it began.
        start: u64 in Start,
        /// How long it took.
        dur: u64 in Dur,
    }

    /// A thread of this process waited for its device.
    15 Wait {
        /// What it waited for: `stream`, `event`, `context`.
        name: N in Name,
        /// The stream's number.
        stream: u32 in Extra,
        /// Ties it to its call; unique within its process.
        correlation: u64 in A,
        /// When it began to wait.
        start: u64 in Start,
        /// How long it waited.
        dur: u64 in Dur,
    }

    /// What a step of an engine that serves language models was made of. It comes before the
    /// [`Event::Step`] of the same thread whose `seq` ends in these 32 bits, as do the records after it.
    16 Batch {
        /// The engine, and its side: `vllm engine`, `vllm worker`.
        name: N in Name,
        /// The last 32 bits of the step's `seq`.
        step: u32 in Extra,
        /// Made of who is in the batch and where each one stands: equal at the engine and at its
        /// workers, and of no other step.
        digest: u64 in A,
        /// Tokens to be computed.
        tokens: u32 in B0,
        /// Requests.
        requests: u32 in B1,
        /// When it was put together, or received.
        at: u64 in Start,
        /// How long that took.
        dur: u64 in Dur,
    }

    /// What was put into a batch.
    17 BatchWork {
        /// As in the batch.
        step: u32 in Extra,
        /// Tokens of prompts that are computed.
        prefill_tokens: u32 in A0,
        /// Requests whose prompt is being computed.
        prefill_requests: u32 in A1,
        /// Tokens that the requests of this batch have computed before.
        context: u64 in B,
        /// As in the batch.
        at: u64 in Start,
    }

    /// How the batch came about.
    18 BatchChange {
        /// As in the batch.
        step: u32 in Extra,
        /// Requests seen for the first time.
        new: u32 in A0,
        /// Tokens of theirs that a cache had.
        cached_tokens: u32 in A1,
        /// Requests that were sent back to the queue for want of memory.
        preempted: u32 in B0,
        /// Draft tokens that are to be verified.
        drafts: u32 in B1,
        /// As in the batch.
        at: u64 in Start,
    }

    /// What the engine had when it made the batch.
    19 BatchQueue {
        /// As in the batch.
        step: u32 in Extra,
        /// Requests that run.
        running: u32 in A0,
        /// Requests that wait.
        waiting: u32 in A1,
        /// The share of its cache's memory that is in use, in millionths.
        cache_ppm: u32 in B0,
        /// Time that went into giving out that memory, ns, over all requests.
        allocate_ns: u32 in B1,
        /// As in the batch.
        at: u64 in Start,
    }

    /// What became of a batch; follows it when its output is there, which may be in a later step.
    20 BatchOutput {
        /// As in the batch.
        step: u32 in Extra,
        /// Tokens that the device computes, with padding; 0 where that is not known.
        padded: u32 in A0,
        /// Tokens that requests got.
        output_tokens: u32 in A1,
        /// Draft tokens that were verified and kept.
        accepted: u32 in B0,
        /// Draft tokens that had been made for it, of which some were to be verified.
        proposed: u32 in B1,
        /// When.
        at: u64 in Start,
    }

    /// A request's part in the batches from this one on: as many tokens in each, and as many more
    /// computed, until the next record of the same request.
    21 Request {
        /// What happens to it: `runs`, `pauses`, `preempted`, and other words.
        name: N in Name,
        /// Its number in this process, from 1.
        request: u32 in Extra,
        /// `seq` of the step on this thread, if it is of one.
        step: Option<u64> in A,
        /// Tokens in the batch.
        tokens: u32 in B0,
        /// Tokens computed before.
        computed: u32 in B1,
        /// When.
        at: u64 in Start,
    }

    /// What a request is called, sixteen bytes at a time. No name of the ring's table: those are never
    /// given back.
    22 RequestKey {
        /// Its number in this process.
        request: u32 in Extra,
        /// Which sixteen bytes of the engine's own name for it, from 0; 65535 is the trace id of
        /// OpenTelemetry.
        part: u16 in Device,
        /// The first eight bytes, little endian, padded by zeros.
        first: u64 in A,
        /// The last eight.
        last: u64 in B,
        /// When.
        at: u64 in Start,
    }

    /// A limit of what a library can record, or a loss, which readers of the trace must know.
    14 Notice {
        /// Its text.
        name: N in Name,
        /// Its kind; see `gpuwhy-inject`, which writes it.
        code: u32 in Extra,
        /// A number that belongs to it; finite.
        value: Option<f64> in A,
        /// When.
        at: u64 in Start,
    }
}
