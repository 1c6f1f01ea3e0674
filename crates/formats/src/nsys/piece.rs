//! The rows of one chunk, before they have their place in the trace.
//!
//! Pieces are made on any thread, independently of each other: rows are numbered from 0, and tracks and
//! devices are numbered within the piece. [`super::place::Placer::place`] replaces these numbers by the
//! trace's.

use std::collections::HashMap;

use gpuwhy_schema::{EntityId, Id, Mark, Name, Ns, Rows, Span, TrackId};

use super::dropped::{self, Dropped, Why};
use super::report::Report;
use super::strings::name_of;
use crate::sqlite::Value;

/// A track, by the ids that the report has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TrackKey {
    /// What a device did for a process on a stream.
    Stream { process: i64, device: i64, context: i64, stream: i64 },
    /// A track of a thread, with the track's name.
    Thread { thread: i64, name: &'static str },
    /// NVTX ranges of a thread in a domain: those that are pushed and popped.
    Ranges { thread: i64, domain: i64 },
    /// NVTX ranges that may end on another thread.
    LooseRanges { process: i64, domain: i64 },
    /// NVTX marks of a thread in a domain.
    Marks { thread: i64, domain: i64 },
    /// Where the profiler began and ended on a thread.
    Notes { thread: i64 },
    /// A track of a process, with the track's name.
    Process { process: i64, name: &'static str },
    /// A GPU metric, by `typeId` and `metricId`.
    Metric { kind: i64, metric: i64 },
}

/// A GPU, as a process calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Device {
    /// The `globalPid`; 0 if the row names no process.
    pub process: i64,
    /// The CUDA ordinal, or the GPU's number in old reports.
    pub ordinal: i64,
}

/// A thread came to a CPU or left it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch {
    /// When, in ns on the report's clock.
    pub ts: i64,
    /// The `globalTid`.
    pub thread: i64,
    /// The CPU; -1 if the row names none.
    pub cpu: i64,
    /// Whether it came to the CPU.
    pub is_in: bool,
    /// Why it left, as Nsight's `ENUM_SAMPLING_THREAD_STATE` numbers it.
    pub state: Option<i64>,
}

/// A function in the call chain of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainEntry {
    /// The number of the sample.
    pub sample: i64,
    /// 0 for the function that ran, 1 for its caller.
    pub depth: i64,
    /// The string of the function's name.
    pub symbol: i64,
    /// The string of the file that holds the function.
    pub module: i64,
}

/// A sample of a thread on a CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuSample {
    /// Its number, to which its call chain refers.
    pub sample: i64,
    /// When, in ns on the report's clock.
    pub ts: i64,
    /// The `globalTid`.
    pub thread: i64,
}

/// The rows of a chunk.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// Rows whose ids, tracks and devices are numbered within the piece, with times of the report.
    pub rows: Rows,
    /// The tracks, by the numbers that rows have for them.
    pub tracks: Vec<TrackKey>,
    /// The devices, by the numbers that rows have for them.
    pub devices: Vec<Device>,
    /// Context switches, which become states once they are in the order of time.
    pub switches: Vec<Switch>,
    /// Spans of processes, and the devices that they are about.
    pub on_gpu: Vec<(Id, EntityId)>,
    /// Call chains of samples.
    pub chains: Vec<ChainEntry>,
    /// Samples, which become rows once their call chains are known.
    pub samples: Vec<CpuSample>,
    /// How many ids its rows have.
    pub ids: u64,
    /// Rows of the table that are left out.
    pub dropped: Dropped,
    /// Rows of the table that became rows of the trace.
    pub recorded: u64,
}

/// Builds a piece from rows of a table.
pub(super) struct PieceBuilder<'r> {
    report: &'r Report,
    table: &'static str,
    /// What has been built.
    pub piece: Piece,
    tracks: HashMap<TrackKey, u32>,
    last_track: Option<(TrackKey, u32)>,
    last_device: Option<(Device, u32)>,
    /// Names that the table holds as texts, not as numbers of strings.
    texts: HashMap<Box<str>, Name>,
    unnamed: Name,
}

impl<'r> PieceBuilder<'r> {
    /// An empty piece of a table of `report`.
    pub fn new(report: &'r Report, table: &'static str) -> PieceBuilder<'r> {
        PieceBuilder {
            report,
            table,
            piece: Piece::default(),
            tracks: HashMap::new(),
            last_track: None,
            last_device: None,
            texts: HashMap::new(),
            unnamed: "?".into(),
        }
    }

    fn id(&mut self) -> Id {
        self.piece.ids += 1;
        Id(self.piece.ids - 1)
    }

    /// The number of a track within the piece.
    pub fn track(&mut self, key: TrackKey) -> TrackId {
        if let Some((last, number)) = self.last_track
            && last == key
        {
            return TrackId(number);
        }
        let next = self.tracks.len() as u32;
        let number = *self.tracks.entry(key).or_insert(next);
        if number == next {
            self.piece.tracks.push(key);
        }
        self.last_track = Some((key, number));
        TrackId(number)
    }

    /// The number of a device within the piece.
    pub fn device(&mut self, process: i64, ordinal: i64) -> EntityId {
        let device = Device { process, ordinal };
        if let Some((last, number)) = self.last_device
            && last == device
        {
            return EntityId(number);
        }
        let found = self.piece.devices.iter().position(|d| *d == device);
        let number = found.unwrap_or_else(|| {
            self.piece.devices.push(device);
            self.piece.devices.len() - 1
        }) as u32;
        self.last_device = Some((device, number));
        EntityId(number)
    }

    /// Leaves a row out.
    pub fn drop_row(&mut self, why: Why) {
        self.piece.dropped.add(self.table, why, 1);
    }

    /// The time of a row; a row without one is left out.
    pub fn when(&mut self, value: Value<'_>) -> Option<i64> {
        dropped::time(value).map_err(|why| self.drop_row(why)).ok()
    }

    /// What a row is of, such as its thread; a row of nothing is left out.
    pub fn of<const N: usize>(&mut self, values: [Value<'_>; N]) -> Option<[i64; N]> {
        let mut all = [0; N];
        for (place, value) in all.iter_mut().zip(values) {
            let Some(number) = value.int() else {
                self.drop_row(Why::OfNothing);
                return None;
            };
            *place = number;
        }
        Some(all)
    }

    /// The name of rows without one: `?`.
    pub fn unnamed(&self) -> Name {
        self.unnamed.clone()
    }

    /// The string of a number, `?` if there is none.
    pub fn string(&self, id: Option<i64>) -> Name {
        id.and_then(|id| self.report.strings.get(id)).unwrap_or(&self.unnamed).clone()
    }

    /// A name that the table holds as a text.
    pub fn text(&mut self, text: &str) -> Name {
        if let Some(name) = self.texts.get(text) {
            return name.clone();
        }
        let name = name_of(text);
        // Keeping texts that all differ would only cost memory.
        if self.texts.len() < 1 << 16 {
            self.texts.insert(text.into(), name.clone());
        }
        name
    }

    /// Adds a span from `start` to `end`, which is still open without an end; leaves out one that ends
    /// before it begins.
    pub fn span(
        &mut self,
        key: TrackKey,
        start: i64,
        end: Value<'_>,
        name: Name,
    ) -> Option<(Id, Ns)> {
        let dur = match dropped::end(end) {
            Ok(None) => None,
            Ok(Some(end)) if end >= start => Some(Ns(end.saturating_sub(start))),
            Ok(Some(_)) => {
                self.drop_row(Why::Reversed);
                return None;
            }
            Err(why) => {
                self.drop_row(why);
                return None;
            }
        };
        let (id, track, ts) = (self.id(), self.track(key), Ns(start));
        self.piece.rows.span.push(Span { id, ts, dur, track, parent: None, name });
        self.piece.recorded += 1;
        Some((id, ts))
    }

    /// Adds a mark.
    pub fn mark(&mut self, key: TrackKey, at: i64, name: Name, value: Option<f64>) {
        let (id, track) = (self.id(), self.track(key));
        self.piece.rows.mark.push(Mark { id, ts: Ns(at), track, name, value });
        self.piece.recorded += 1;
    }
}
