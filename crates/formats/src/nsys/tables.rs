//! Each table's rows as shapes.
//!
//! A piece is made by itself, on any thread: its rows are numbered from 0 on, and lie on lanes
//! that are numbered within the piece. [`super::Import::place`] makes both those of the trace.

use std::collections::HashMap;

use gpuwhy_schema::{
    Call, Copy, CopyKind, Counter, EntityId, Id, Kernel, Mark, Name, Ns, Rows, Span, TrackId,
};

use super::{Report, name_of, process_of, wanted};
use crate::Result;
use crate::sqlite::{TableDef, Value};

/// NVTX event types.
pub(super) const NVTX_DOMAIN: i64 = 75;
const NVTX_MARK: i64 = 34;
const NVTX_PUSH_POP: i64 = 59;
const NVTX_START_END: i64 = 60;

/// Event classes by which the profiler notes, among calls of the operating system, that it began and
/// ended.
const NOTES: [i64; 2] = [31, 32];

/// Leaf pages of a piece: some ten thousand rows.
const LEAVES: usize = 256;

/// What a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Kernels,
    Copies,
    Memsets,
    Synchronizations,
    CudaCalls,
    Nvtx,
    OsCalls,
    Mpi,
    Scheduling,
    Overhead,
    GpuMetrics,
    CpuFaults,
    GpuFaults,
    Chains,
    Samples,
}

/// Tables that are read, in the order in which they are. What others refer to comes first.
const TABLES: &[(&str, What)] = &[
    ("CUPTI_ACTIVITY_KIND_RUNTIME", What::CudaCalls),
    ("CUPTI_ACTIVITY_KIND_KERNEL", What::Kernels),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", What::Copies),
    ("CUPTI_ACTIVITY_KIND_MEMSET", What::Memsets),
    ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", What::Synchronizations),
    ("NVTX_EVENTS", What::Nvtx),
    ("MPI_P2P_EVENTS", What::Mpi),
    ("MPI_COLLECTIVES_EVENTS", What::Mpi),
    ("MPI_START_WAIT_EVENTS", What::Mpi),
    ("MPI_OTHER_EVENTS", What::Mpi),
    ("OSRT_API", What::OsCalls),
    ("SCHED_EVENTS", What::Scheduling),
    ("PROFILER_OVERHEAD", What::Overhead),
    ("CUDA_UM_CPU_PAGE_FAULT_EVENTS", What::CpuFaults),
    ("CUDA_UM_GPU_PAGE_FAULT_EVENTS", What::GpuFaults),
    ("GPU_METRICS", What::GpuMetrics),
    ("SAMPLING_CALLCHAINS", What::Chains),
    ("COMPOSITE_EVENTS", What::Samples),
];

/// Tables whose rows say what others are, or how the report was made.
const ABOUT: &[&str] = &["enum_", "target_info_", "meta_data", "export_meta_data", "analysis_"];
const ABOUT_TOO: &[&str] =
    &["stringids", "processes", "threadnames", "processstreams", "diagnostic_event", "mpi_ranks"];

/// A stretch of a table.
#[derive(Clone, Debug)]
pub struct Chunk {
    table: &'static str,
    what: What,
    leaves: Vec<u32>,
}

impl Chunk {
    /// Whether it holds kernels.
    pub fn is_kernels(&self) -> bool {
        self.what == What::Kernels
    }

    /// Whether it holds copies or memsets.
    pub fn is_copies(&self) -> bool {
        matches!(self.what, What::Copies | What::Memsets)
    }

    /// How many pages it has: what progress is counted in.
    pub fn pages(&self) -> usize {
        self.leaves.len()
    }
}

/// A lane, by what the report calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Stream {
        process: i64,
        device: i64,
        context: i64,
        stream: i64,
    },
    /// A lane of a thread, by its name.
    Thread {
        thread: i64,
        lane: &'static str,
    },
    /// NVTX ranges of a thread in a domain: those that are pushed and popped.
    Ranges {
        thread: i64,
        domain: i64,
    },
    /// NVTX ranges that may end on another thread.
    LooseRanges {
        process: i64,
        domain: i64,
    },
    Marks {
        thread: i64,
        domain: i64,
    },
    /// What the profiler notes of itself on a thread.
    Notes {
        thread: i64,
    },
    /// A lane of a process.
    Process {
        process: i64,
        lane: &'static str,
    },
    Metric {
        kind: i64,
        metric: i64,
    },
}

/// A GPU, by what a process calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Device {
    pub process: i64,
    pub ordinal: i64,
}

/// A thread came to a CPU or left it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch {
    pub ts: i64,
    pub thread: i64,
    pub cpu: i64,
    pub is_in: bool,
    pub state: Option<i64>,
}

/// A function in the call chain of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called {
    /// The sample.
    pub sample: i64,
    /// 0 is where the thread was, 1 its caller.
    pub depth: i64,
    pub symbol: i64,
    pub module: i64,
}

/// A thread was seen on a CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub sample: i64,
    pub ts: i64,
    pub thread: i64,
}

/// A piece of work of a GPU, and no more of it than an overview needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Which device: a place in [`WorkPiece::devices`].
    pub device: u32,
    /// What kind of copy; a kernel is none.
    pub copy: Option<CopyKind>,
    /// When it began, ns since the report's beginning.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// What it moved.
    pub bytes: u64,
    /// The kernel's name: a number of [`Report::string`].
    pub name: i64,
}

/// The work of a chunk.
#[derive(Clone, Debug, Default)]
pub struct WorkPiece {
    /// In the order of the table's rows.
    pub work: Vec<Work>,
    /// The devices: process and CUDA ordinal.
    pub devices: Vec<(i64, i64)>,
    /// Rows without an end.
    pub open: u64,
}

/// The rows of a chunk.
#[derive(Debug, Default)]
pub struct Piece {
    pub(super) rows: Rows,
    pub(super) lanes: Vec<Lane>,
    pub(super) devices: Vec<Device>,
    pub(super) switches: Vec<Switch>,
    pub(super) chains: Vec<Called>,
    pub(super) samples: Vec<Seen>,
    /// Ids that were given out.
    pub(super) ids: u64,
    /// Rows of the table that make no sense: they end before they begin.
    pub(super) dropped: u64,
    pub(super) recorded: u64,
}

/// What rows are put into.
struct Out<'r> {
    report: &'r Report,
    piece: Piece,
    lanes: HashMap<Lane, u32>,
    last_lane: Option<(Lane, u32)>,
    last_device: Option<(Device, u32)>,
    /// Names that the table spells out.
    texts: HashMap<Box<str>, Name>,
    unnamed: Name,
}

impl<'r> Out<'r> {
    fn new(report: &'r Report) -> Out<'r> {
        Out {
            report,
            piece: Piece::default(),
            lanes: HashMap::new(),
            last_lane: None,
            last_device: None,
            texts: HashMap::new(),
            unnamed: "?".into(),
        }
    }

    fn id(&mut self) -> Id {
        self.piece.ids += 1;
        Id(self.piece.ids - 1)
    }

    fn lane(&mut self, lane: Lane) -> TrackId {
        if let Some((last, number)) = self.last_lane
            && last == lane
        {
            return TrackId(number);
        }
        let next = self.lanes.len() as u32;
        let number = *self.lanes.entry(lane).or_insert(next);
        if number == next {
            self.piece.lanes.push(lane);
        }
        self.last_lane = Some((lane, number));
        TrackId(number)
    }

    fn device(&mut self, process: i64, ordinal: i64) -> EntityId {
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

    /// The time that a row cannot do without.
    fn when(&mut self, value: Value<'_>) -> Option<i64> {
        let when = value.int();
        self.piece.dropped += u64::from(when.is_none());
        when
    }

    /// The string of a number; nameless if there is none.
    fn string(&self, id: Option<i64>) -> Name {
        id.and_then(|id| self.report.strings.get(id)).unwrap_or(&self.unnamed).clone()
    }

    fn text(&mut self, text: &str) -> Name {
        if let Some(name) = self.texts.get(text) {
            return name.clone();
        }
        let name = name_of(text);
        // Texts that all differ are not worth remembering.
        if self.texts.len() < 1 << 16 {
            self.texts.insert(text.into(), name.clone());
        }
        name
    }

    /// A span from `start` to `end`; none if it makes no sense.
    fn span(&mut self, lane: Lane, start: i64, end: Option<i64>, name: Name) -> Option<(Id, Ns)> {
        let dur = match end.map(|end| end.checked_sub(start)) {
            None => None,
            Some(Some(dur)) if dur >= 0 => Some(Ns(dur)),
            Some(_) => {
                self.piece.dropped += 1;
                return None;
            }
        };
        let (id, track, ts) = (self.id(), self.lane(lane), Ns(start));
        self.piece.rows.span.push(Span { id, ts, dur, track, parent: None, name });
        self.piece.recorded += 1;
        Some((id, ts))
    }

    fn mark(&mut self, lane: Lane, at: i64, name: Name, value: Option<f64>) {
        let (id, track) = (self.id(), self.lane(lane));
        self.piece.rows.mark.push(Mark { id, ts: Ns(at), track, name, value });
        self.piece.recorded += 1;
    }
}

fn unsigned(value: Value<'_>) -> Option<u64> {
    value.int().and_then(|n| u64::try_from(n).ok())
}

/// The lane of work that a device did for a process.
fn on_stream(process: i64, device: i64, context: Value<'_>, stream: Value<'_>) -> Lane {
    let [context, stream] = [context, stream].map(|value| value.int().unwrap_or(0));
    Lane::Stream { process, device, context, stream }
}

fn small(value: Value<'_>) -> u32 {
    value.int().and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

/// The name of a CUDA call without the version that its entry point bears, `cudaMalloc_v3020`; as
/// `nsys stats` has it, which leaves versions of five digits where they are.
pub(super) fn call_name(name: &str) -> &str {
    match name.rfind("_v") {
        Some(at) => {
            let digits = &name[at + 2..];
            let version = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit());
            if version { &name[..at] } else { name }
        }
        None => name,
    }
}

/// What a copy connects, by `copyKind`.
pub(super) fn copy_kind(code: i64) -> (CopyKind, &'static str) {
    use CopyKind::*;
    match code {
        1 => (HostToDevice, "[CUDA memcpy Host-to-Device]"),
        2 => (DeviceToHost, "[CUDA memcpy Device-to-Host]"),
        3 => (HostToDevice, "[CUDA memcpy Host-to-Array]"),
        4 => (DeviceToHost, "[CUDA memcpy Array-to-Host]"),
        5 => (DeviceToDevice, "[CUDA memcpy Array-to-Array]"),
        6 => (DeviceToDevice, "[CUDA memcpy Array-to-Device]"),
        7 => (DeviceToDevice, "[CUDA memcpy Device-to-Array]"),
        8 => (DeviceToDevice, "[CUDA memcpy Device-to-Device]"),
        9 => (HostToHost, "[CUDA memcpy Host-to-Host]"),
        10 => (PeerToPeer, "[CUDA memcpy Peer-to-Peer]"),
        11 => (Managed, "[CUDA memcpy Unified Host-to-Device]"),
        12 => (Managed, "[CUDA memcpy Unified Device-to-Host]"),
        13 => (Managed, "[CUDA memcpy Unified Device-to-Device]"),
        _ => (Other, "[CUDA memcpy Unknown]"),
    }
}

/// The name of a memset.
pub(super) const MEMSET: &str = "[CUDA memset]";

/// What kind of memory the host's side of a copy was.
fn host_memory(kind: Option<i64>) -> Option<&'static str> {
    match kind? {
        0 => Some("pageable"),
        1 => Some("pinned"),
        4 | 6 => Some("managed"),
        _ => None,
    }
}

impl Report {
    /// Cuts the tables into chunks.
    pub(super) fn plan(&mut self) -> Result<()> {
        let mut chunks = Vec::new();
        for &(name, what) in TABLES {
            let Some(table) = self.database.table(name) else { continue };
            // A table without it is none that we know.
            let needed = match what {
                What::GpuMetrics => "timestamp",
                What::Chains => "stackDepth",
                _ => "start",
            };
            if table.column(needed).is_none() {
                continue;
            }
            let leaves = self.database.leaves(table)?;
            let parts = leaves.chunks(self.database.leaves_at_a_time(table, LEAVES));
            chunks.extend(parts.map(|l| Chunk { table: name, what, leaves: l.to_vec() }));
        }
        let mut unread = Vec::new();
        for table in self.database.names() {
            let name = table.name.to_ascii_lowercase();
            let read = TABLES.iter().any(|t| t.0.eq_ignore_ascii_case(&name));
            let about = ABOUT.iter().any(|prefix| name.starts_with(prefix))
                || ABOUT_TOO.contains(&&*name)
                || name.starts_with("sqlite_");
            if !read && !about {
                // One that cannot be read is not asked for.
                let pages = self.database.leaves(table).map_or(0, |leaves| leaves.len());
                unread.push((table.name.clone(), pages));
            }
        }
        unread.retain(|table| table.1 > 1);
        (self.chunks, self.unread) = (chunks, unread);
        Ok(())
    }

    /// What there is to read.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Reads one chunk.
    pub fn read(&self, chunk: &Chunk) -> Result<Piece> {
        let Some(table) = self.database.table(chunk.table) else { return Ok(Piece::default()) };
        let mut out = Out::new(self);
        let leaves = &chunk.leaves;
        match chunk.what {
            What::Kernels => self.kernels(table, leaves, &mut out)?,
            What::Copies => self.copies(table, leaves, &mut out)?,
            What::Memsets => self.memsets(table, leaves, &mut out)?,
            What::Synchronizations => self.synchronizations(table, leaves, &mut out)?,
            What::CudaCalls => self.cuda_calls(table, leaves, &mut out)?,
            What::Nvtx => self.nvtx(table, leaves, &mut out)?,
            What::OsCalls => self.calls(table, leaves, "nameId", OS_CALLS, &mut out)?,
            What::Mpi => self.calls(table, leaves, "textId", MPI, &mut out)?,
            What::Overhead => self.calls(table, leaves, "nameId", OVERHEAD, &mut out)?,
            What::Scheduling => self.scheduling(table, leaves, &mut out)?,
            What::GpuMetrics => self.gpu_metrics(table, leaves, &mut out)?,
            What::CpuFaults => self.cpu_faults(table, leaves, &mut out)?,
            What::GpuFaults => self.gpu_faults(table, leaves, &mut out)?,
            What::Chains => self.chains(table, leaves, &mut out)?,
            What::Samples => self.samples(table, leaves, &mut out)?,
        }
        Ok(out.piece)
    }

    /// The work in a chunk of kernels, copies or memsets, without making rows of it.
    pub fn read_work(&self, chunk: &Chunk) -> Result<WorkPiece> {
        let mut piece = WorkPiece::default();
        let Some(table) = self.database.table(chunk.table) else { return Ok(piece) };
        let name =
            if table.column("demangledName").is_some() { "demangledName" } else { "shortName" };
        let columns =
            wanted(table, ["start", "end", "deviceId", "globalPid", name, "bytes", "copyKind"]);
        let mut last: Option<((i64, i64), u32)> = None;
        self.database.scan(table, &chunk.leaves, columns, |_, values| {
            let [start, end, device, process, name, bytes, kind] = values;
            let (Some(start), Some(end)) = (start.int(), end.int()) else {
                piece.open += 1;
                return Ok(());
            };
            if end < start {
                piece.open += 1;
                return Ok(());
            }
            let key = (process.int().map_or(0, process_of), device.int().unwrap_or(0));
            let device = match last {
                Some((known, number)) if known == key => number,
                _ => {
                    let found = piece.devices.iter().position(|d| *d == key);
                    let number = found.unwrap_or_else(|| {
                        piece.devices.push(key);
                        piece.devices.len() - 1
                    }) as u32;
                    last = Some((key, number));
                    number
                }
            };
            let copy = match chunk.what {
                What::Kernels => None,
                What::Memsets => Some(CopyKind::Memset),
                _ => Some(copy_kind(kind.int().unwrap_or(0)).0),
            };
            piece.work.push(Work {
                device,
                copy,
                start,
                end,
                bytes: unsigned(bytes).unwrap_or(0),
                name: name.int().unwrap_or(-1),
            });
            Ok(())
        })?;
        Ok(piece)
    }

    fn kernels(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(
            table,
            [
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "globalPid",
                "correlationId",
                "demangledName",
                "shortName",
                "registersPerThread",
                "gridX",
                "gridY",
                "gridZ",
                "blockX",
                "blockY",
                "blockZ",
                "staticSharedMemory",
                "dynamicSharedMemory",
                "graphNodeId",
            ],
        );
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, device, context, stream, process, correlation, name, short, ..] =
                values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let process = process.int().map_or(0, process_of);
            let device = device.int().unwrap_or(0);
            let lane = on_stream(process, device, context, stream);
            let name = out.string(name.int().or(short.int()));
            let Some((id, ts)) = out.span(lane, start, end.int(), name) else { return Ok(()) };
            let gpu = out.device(process, device);
            let shared = match (unsigned(values[16]), unsigned(values[17])) {
                (None, None) => None,
                (fixed, dynamic) => Some(fixed.unwrap_or(0).saturating_add(dynamic.unwrap_or(0))),
            };
            out.piece.rows.kernel.push(Kernel {
                id,
                ts,
                gpu,
                // The same number: a device is one of a process.
                process: Some(gpu),
                correlation: unsigned(correlation),
                grid_x: small(values[10]),
                grid_y: small(values[11]),
                grid_z: small(values[12]),
                block_x: small(values[13]),
                block_y: small(values[14]),
                block_z: small(values[15]),
                registers: values[9].int().and_then(|n| u32::try_from(n).ok()),
                shared_bytes: shared,
                graph_node: unsigned(values[18]),
            });
            Ok(())
        })
    }

    fn copies(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(
            table,
            [
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "globalPid",
                "correlationId",
                "bytes",
                "copyKind",
                "srcKind",
                "dstKind",
                "srcDeviceId",
                "dstDeviceId",
            ],
        );
        let names: Vec<Name> = (0..=14).map(|code| copy_kind(code).1.into()).collect();
        let memory: [Name; 3] = ["pageable", "pinned", "managed"].map(Name::from);
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, device, context, stream, process, correlation, bytes, code, ..] =
                values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let process = process.int().map_or(0, process_of);
            let device = device.int().unwrap_or(0);
            let lane = on_stream(process, device, context, stream);
            let code = code.int().unwrap_or(0);
            let (kind, _) = copy_kind(code);
            let name = names[usize::try_from(code).unwrap_or(14).min(14)].clone();
            let Some((id, ts)) = out.span(lane, start, end.int(), name) else { return Ok(()) };
            let here = out.device(process, device);
            let mut at = |value: Value<'_>| match value.int().filter(|d| *d >= 0) {
                Some(other) if other != device => out.device(process, other),
                _ => here,
            };
            let (from, to) = match kind {
                CopyKind::HostToDevice => (None, Some(here)),
                CopyKind::DeviceToHost => (Some(here), None),
                CopyKind::DeviceToDevice => (Some(here), Some(here)),
                CopyKind::PeerToPeer => (Some(at(values[11])), Some(at(values[12]))),
                CopyKind::Managed if code == 11 => (None, Some(here)),
                CopyKind::Managed if code == 12 => (Some(here), None),
                CopyKind::Managed => (Some(here), Some(here)),
                _ => (None, None),
            };
            let host_side = match (from, to) {
                (None, Some(_)) => values[9],
                (Some(_), None) => values[10],
                _ => Value::Null,
            };
            let pinned = host_memory(host_side.int())
                .and_then(|word| memory.iter().find(|name| &***name == word).cloned());
            out.piece.rows.copy.push(Copy {
                id,
                ts,
                kind,
                bytes: unsigned(bytes).unwrap_or(0),
                from,
                to,
                pinned,
                process: Some(here),
                correlation: unsigned(correlation),
            });
            Ok(())
        })
    }

    fn memsets(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(
            table,
            [
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "globalPid",
                "correlationId",
                "bytes",
            ],
        );
        let name: Name = MEMSET.into();
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, device, context, stream, process, correlation, bytes] = values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let process = process.int().map_or(0, process_of);
            let device = device.int().unwrap_or(0);
            let lane = on_stream(process, device, context, stream);
            let span = out.span(lane, start, end.int(), name.clone());
            let Some((id, ts)) = span else { return Ok(()) };
            let here = out.device(process, device);
            out.piece.rows.copy.push(Copy {
                id,
                ts,
                kind: CopyKind::Memset,
                bytes: unsigned(bytes).unwrap_or(0),
                from: None,
                to: Some(here),
                pinned: None,
                process: Some(here),
                correlation: unsigned(correlation),
            });
            Ok(())
        })
    }

    fn synchronizations(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(table, ["start", "end", "globalPid", "syncType", "correlationId"]);
        let names: [Name; 5] = [
            "unknown",
            "event_synchronize",
            "stream_wait_event",
            "stream_synchronize",
            "context_synchronize",
        ]
        .map(Name::from);
        self.database.scan(table, leaves, columns, |_, [start, end, process, kind, _]| {
            let Some(start) = out.when(start) else { return Ok(()) };
            let kind = kind.int().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            let name = names.get(kind).unwrap_or(&names[0]).clone();
            let process = process.int().map_or(0, process_of);
            let lane = Lane::Process { process, lane: SYNCHRONIZATION };
            out.span(lane, start, end.int(), name);
            Ok(())
        })
    }

    fn cuda_calls(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns =
            wanted(table, ["start", "end", "globalTid", "correlationId", "nameId", "returnValue"]);
        let mut names: HashMap<i64, Name> = HashMap::new();
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, thread, correlation, name, result] = values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let name = match name.int() {
                None => out.unnamed.clone(),
                Some(id) => names
                    .entry(id)
                    .or_insert_with(|| {
                        let full = out.string(Some(id));
                        let short = call_name(&full);
                        if short.len() == full.len() { full } else { short.into() }
                    })
                    .clone(),
            };
            let lane = Lane::Thread { thread: thread.int().unwrap_or(0), lane: CUDA_CALLS };
            let Some((id, ts)) = out.span(lane, start, end.int(), name) else { return Ok(()) };
            out.piece.rows.call.push(Call {
                id,
                ts,
                correlation: unsigned(correlation),
                result: result.int(),
            });
            Ok(())
        })
    }

    /// Tables of calls: when, on which thread, and what was called.
    fn calls(
        &self,
        table: &TableDef,
        leaves: &[u32],
        name: &str,
        lane: &'static str,
        out: &mut Out<'_>,
    ) -> Result<()> {
        let columns = wanted(table, ["start", "end", "globalTid", name, "eventClass"]);
        let notes: [Name; 2] = ["profiling started", "profiling finished"].map(Name::from);
        self.database.scan(table, leaves, columns, |_, [start, end, thread, name, class]| {
            let Some(start) = out.when(start) else { return Ok(()) };
            let thread = thread.int().unwrap_or(0);
            if let Some(note) = class.int().and_then(|c| NOTES.iter().position(|n| *n == c)) {
                out.mark(Lane::Notes { thread }, start, notes[note].clone(), None);
                return Ok(());
            }
            let name = out.string(name.int());
            out.span(Lane::Thread { thread, lane }, start, end.int(), name);
            Ok(())
        })
    }

    fn nvtx(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns =
            wanted(table, ["start", "end", "eventType", "globalTid", "text", "textId", "domainId"]);
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, kind, thread, text, text_id, domain] = values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let thread = thread.int().unwrap_or(0);
            let domain = domain.int().unwrap_or(0);
            let name = |out: &mut Out<'_>| match text.text() {
                Some(text) => out.text(text),
                None => out.string(text_id.int()),
            };
            match kind.int() {
                Some(NVTX_PUSH_POP) => {
                    let name = name(out);
                    out.span(Lane::Ranges { thread, domain }, start, end.int(), name);
                }
                Some(NVTX_START_END) => {
                    let name = name(out);
                    let lane = Lane::LooseRanges { process: process_of(thread), domain };
                    out.span(lane, start, end.int(), name);
                }
                Some(NVTX_MARK) => {
                    let name = name(out);
                    out.mark(Lane::Marks { thread, domain }, start, name, None);
                }
                // Names of domains, categories and threads say what others are.
                _ => {}
            }
            Ok(())
        })
    }

    fn scheduling(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(table, ["start", "cpu", "isSchedIn", "globalTid", "threadState"]);
        self.database.scan(table, leaves, columns, |_, [start, cpu, is_in, thread, state]| {
            let (Some(ts), Some(thread)) = (start.int(), thread.int()) else {
                out.piece.dropped += 1;
                return Ok(());
            };
            out.piece.switches.push(Switch {
                ts,
                thread,
                cpu: cpu.int().unwrap_or(-1),
                is_in: is_in.int() != Some(0),
                state: state.int(),
            });
            Ok(())
        })
    }

    fn gpu_metrics(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(table, ["timestamp", "typeId", "metricId", "value"]);
        self.database.scan(table, leaves, columns, |_, [ts, kind, metric, value]| {
            let (Some(ts), Some(kind), Some(metric), Some(value)) =
                (ts.int(), kind.int(), metric.int(), value.real())
            else {
                out.piece.dropped += 1;
                return Ok(());
            };
            let track = out.lane(Lane::Metric { kind, metric });
            out.piece.rows.counter.push(Counter { ts: Ns(ts), track, value });
            out.piece.recorded += 1;
            Ok(())
        })
    }

    fn cpu_faults(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(table, ["start", "globalPid"]);
        let name: Name = "cpu_page_fault".into();
        self.database.scan(table, leaves, columns, |_, [start, process]| {
            let Some(start) = out.when(start) else { return Ok(()) };
            let process = process.int().map_or(0, process_of);
            out.mark(Lane::Process { process, lane: CPU_FAULTS }, start, name.clone(), None);
            Ok(())
        })
    }

    fn gpu_faults(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(table, ["start", "end", "globalPid"]);
        let name: Name = "gpu_page_faults".into();
        self.database.scan(table, leaves, columns, |_, [start, end, process]| {
            let Some(start) = out.when(start) else { return Ok(()) };
            let process = process.int().map_or(0, process_of);
            out.span(Lane::Process { process, lane: GPU_FAULTS }, start, end.int(), name.clone());
            Ok(())
        })
    }

    fn chains(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(table, ["id", "stackDepth", "symbol", "module"]);
        self.database.scan(table, leaves, columns, |_, [sample, depth, symbol, module]| {
            let (Some(sample), Some(depth)) = (sample.int(), depth.int()) else {
                out.piece.dropped += 1;
                return Ok(());
            };
            let [symbol, module] = [symbol, module].map(|v| v.int().unwrap_or(-1));
            out.piece.chains.push(Called { sample, depth, symbol, module });
            Ok(())
        })
    }

    fn samples(&self, table: &TableDef, leaves: &[u32], out: &mut Out<'_>) -> Result<()> {
        let columns = wanted(table, ["id", "start", "globalTid"]);
        self.database.scan(table, leaves, columns, |rowid, [sample, start, thread]| {
            let (Some(ts), Some(thread)) = (start.int(), thread.int()) else {
                out.piece.dropped += 1;
                return Ok(());
            };
            out.piece.samples.push(Seen { sample: sample.int().unwrap_or(rowid), ts, thread });
            Ok(())
        })
    }

    /// When calls of these names ended, in order, by name: of MPI, whose names stand in `textId`.
    pub(super) fn ends_of_mpi(
        &self,
        wanted_name: impl Fn(&str) -> bool,
    ) -> Result<HashMap<Name, Vec<i64>>> {
        let mut ends: HashMap<Name, Vec<i64>> = HashMap::new();
        let mpi = self.chunks.iter().filter(|chunk| chunk.what == What::Mpi);
        for chunk in mpi {
            let Some(table) = self.database.table(chunk.table) else { continue };
            let columns = wanted(table, ["end", "textId"]);
            self.database.scan(table, &chunk.leaves, columns, |_, [end, name]| {
                let name = name.int().and_then(|id| self.strings.get(id));
                if let (Some(end), Some(name)) = (end.int(), name)
                    && wanted_name(name)
                {
                    ends.entry(name.clone()).or_default().push(end);
                }
                Ok(())
            })?;
        }
        Ok(ends)
    }

    /// When kernels of these names ended, in order, by name.
    pub(super) fn ends_of_kernels(
        &self,
        wanted_name: impl Fn(&str) -> bool,
    ) -> Result<HashMap<Name, Vec<i64>>> {
        // Most kernels are none of these: their names are looked at once.
        let ids = self.strings.dense.iter().enumerate();
        let ids: HashMap<i64, Name> = ids
            .filter_map(|(id, name)| Some((id as i64, name.clone()?)))
            .filter(|(_, name)| wanted_name(name))
            .collect();
        let mut ends: HashMap<Name, Vec<i64>> = HashMap::new();
        if ids.is_empty() {
            return Ok(ends);
        }
        for chunk in self.chunks.iter().filter(|chunk| chunk.what == What::Kernels) {
            let Some(table) = self.database.table(chunk.table) else { continue };
            let columns = wanted(table, ["end", "shortName"]);
            self.database.scan(table, &chunk.leaves, columns, |_, [end, name]| {
                if let (Some(end), Some(name)) = (end.int(), name.int())
                    && let Some(name) = ids.get(&name)
                {
                    ends.entry(name.clone()).or_default().push(end);
                }
                Ok(())
            })?;
        }
        Ok(ends)
    }
}

/// Names of lanes.
pub(super) use gpuwhy_schema::names::{
    CPU_PAGE_FAULTS as CPU_FAULTS, CUDA_CALLS, GPU_PAGE_FAULTS as GPU_FAULTS, MPI_CALLS as MPI,
    OS_CALLS, PROFILER_OVERHEAD as OVERHEAD, SYNCHRONIZATION,
};
