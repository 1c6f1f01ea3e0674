//! Joins the work of devices with the calls that launched it: why streams were idle, which ranges of the
//! program (NVTX, annotations, operators) work belongs to, what was exposed communication, which kernels
//! waited for managed memory, and the critical path.
//!
//! A kernel and its launch have the same correlation id, which is unique within a process. They are
//! joined over the whole trace, since a kernel may run long after its launch.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_derive::communication::{Communicated, Communication, Piece, is_communication};
use gpuwhy_derive::critical_path::{self, Hosts, Lane, Recording, ThreadOf, What as PathWhat};
use gpuwhy_derive::devices::Devices;
use gpuwhy_derive::idle::{self, Gap, Idle, Queued};
use gpuwhy_derive::nvtx::{self, Launch, Launched, Range};
use gpuwhy_derive::sweep::Cut;
use gpuwhy_schema::{
    Attr, Call, Copy, CopyKind, EntityId, Id, Kernel, Migration, Name, Ns, Span, TrackId, names,
};
use serde::Serialize;

use super::PREFETCH;
use super::gaps::{self, Candidate, StreamGap, is_ranges};
use super::managed::{Gathering, Managed, Moved};
use super::path::{self, CriticalPath, process_of};
use crate::error::{Error, Result};
use crate::phases::clocks_of_mpi;
use crate::source::TraceSource;

/// A trace with more spans is not joined: what has to be held in memory would not fit a laptop.
const SPANS: u64 = 20_000_000;

/// Idle time of a stream between its kernels, copies and memsets.
#[derive(Clone, Debug, Serialize)]
pub struct StreamIdle {
    /// Its GPU and its name.
    pub stream: String,
    /// Kernels on it.
    pub kernels: usize,
    /// Because nothing had been launched, s.
    pub host_wait_s: f64,
    /// Between a piece of work and the next one that was queued already, s.
    pub kernel_wait_s: f64,
    /// Because work that was queued waited for something else, s.
    pub other_s: f64,
}

/// Work that the ranges of one name launched.
#[derive(Clone, Debug, Serialize)]
pub struct RangeWork {
    /// The ranges' track: `nvtx`, `annotations`, `operators`.
    pub lane: String,
    /// Their name.
    pub name: String,
    /// How many there were.
    pub ranges: u64,
    /// How long they took on the host, ms.
    pub host_ms: f64,
    /// How long the work ran that was launched within them, ms.
    pub device_ms: f64,
    /// Of that, what was not launched within a range inside them, ms.
    pub own_device_ms: f64,
    /// Kernels launched within them.
    pub kernels: u64,
    /// Copies and memsets launched within them; a device's own `copies` are without memsets.
    pub copies_and_memsets: u64,
}

/// What joining launches with kernels gave.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Launches {
    /// By stream, ordered by device.
    pub idle: Vec<StreamIdle>,
    /// The longest gaps of the busiest stream of each device, longest first.
    pub gaps: Vec<StreamGap>,
    /// Most device time first.
    pub ranges: Vec<RangeWork>,
    /// Kernels whose launch is not in the trace.
    pub orphans: u64,
}

/// Where a correlation id is unique: in a process or, where that is not known, in a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Process(EntityId),
    Source(u32),
}

impl Owner {
    /// Of a thread of this process; whether processes are known.
    fn of(by_process: bool, process: EntityId, source: u32) -> Owner {
        if by_process { Owner::Process(process) } else { Owner::Source(source) }
    }

    fn number(self) -> u64 {
        match self {
            Owner::Process(process) => 1 << 32 | u64::from(process.0),
            Owner::Source(source) => u64::from(source),
        }
    }
}

/// A track that is read here.
enum Role {
    Stream(u32),
    /// Of CUDA or HIP; the thread has this number in [`Hosts`].
    Calls {
        thread: EntityId,
        owner: Owner,
        number: u32,
    },
    /// Other calls of a thread that calls CUDA, HIP or MPI.
    OtherCalls {
        number: u32,
        lane: Lane,
    },
    Ranges {
        thread: EntityId,
        name: Name,
    },
    Faults {
        process: EntityId,
    },
}

/// What ran on a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Kernel,
    Copy(CopyKind),
}

/// Work that ran on a stream.
#[derive(Clone)]
struct Work {
    what: What,
    /// The kernel's name.
    name: u32,
    process: Option<EntityId>,
    track: TrackId,
    start: i64,
    end: i64,
    launch: Option<(Owner, u64)>,
}

/// What the details of a kernel or a copy say.
#[derive(Clone, Copy)]
struct Detail {
    what: What,
    process: Option<EntityId>,
    correlation: Option<u64>,
}

/// What the details of kernels, copies and calls say, by id.
struct Details {
    work: HashMap<Id, Detail>,
    /// Of copies of managed memory: bytes, and whether to the device.
    managed: HashMap<Id, (u64, bool)>,
    /// Calls: the correlation id of what they launch.
    calls: HashMap<Id, u64>,
    /// Whether processes are known.
    by_process: bool,
}

/// The names of kernels by their numbers, and whether such a kernel communicates.
#[derive(Default)]
struct KernelNames {
    numbers: HashMap<Name, u32>,
    names: Vec<(Name, bool)>,
}

impl KernelNames {
    fn number(&mut self, name: &Name) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push((name.clone(), is_communication(name)));
        self.numbers.insert(name.clone(), number);
        number
    }
}

/// Page faults of a process: their span, and from when to when.
struct Faults {
    id: Id,
    process: EntityId,
    start: i64,
    end: i64,
}

/// All spans that matter, by what they are.
struct Spans {
    /// In the order of their begin.
    work: Vec<Work>,
    /// Start and thread of each launch.
    launches: HashMap<(Owner, u64), (i64, EntityId)>,
    ranges: BTreeMap<(EntityId, Name), Vec<Range>>,
    names: KernelNames,
    faults: Vec<Faults>,
    /// Whether a call asks for managed memory ahead; looked for where there is such memory.
    asked_ahead: bool,
    /// Copies of managed memory, with their spans.
    managed: Vec<(Id, Work)>,
    /// The calls of all threads that matter.
    hosts: Hosts,
}

/// What is found by looking at all work of a trace at once.
pub struct Whole {
    /// Why streams were idle, and what launched their work; `None` where that was not read.
    pub launches: Option<Launches>,
    /// How time is cut for pictures.
    pub columns: Cut,
    /// By the numbers of devices, in each of these columns.
    pub communication: Vec<Vec<Communicated>>,
    /// `None` if there is no managed memory.
    pub managed: Option<Managed>,
    /// `None` if no call is known that launched work.
    pub path: Option<CriticalPath>,
}

/// What is asked besides the trace.
pub struct Question<'a, L> {
    /// The numbers of devices, by the tracks of their streams.
    pub devices: &'a Devices,
    /// The displayed name of the stream of a track.
    pub label: L,
    /// How many gaps to explain.
    pub gaps: usize,
    /// How time is cut for pictures, from when the first work of a device began.
    pub columns: Cut,
}

/// Joins launches with their work; `None` if the trace is too large for it.
///
/// # Errors
/// The trace cannot be read.
pub fn join(
    source: &TraceSource,
    question: &Question<'_, impl Fn(TrackId) -> Option<String>>,
) -> Result<Option<Whole>> {
    let spans: u64 = source.trace().manifest().files_of("span").map(|f| f.rows).sum();
    if spans > SPANS {
        return Ok(None);
    }
    let details = details(source)?;
    let (roles, hosts) = roles(source, details.by_process);
    let mut spans = read_spans(source, &roles, hosts, &details)?;
    drop(details.work);
    drop(details.calls);
    let streams = &question.devices.streams;
    let communication = communication(&spans, source, streams, question.columns)?;
    let managed = managed(source, &mut spans, &details.managed, question)?;
    let path = critical_path(source, &mut spans, question.columns.origin);
    let Spans { work, launches, ranges, .. } = spans;
    let mut joined = Launches::default();
    let mut queued: BTreeMap<TrackId, Stream> = BTreeMap::new();
    let mut by_thread: HashMap<EntityId, Vec<Launch>> = HashMap::new();
    for Work { what, track, start, end, launch, .. } in &work {
        let (is_copy, launched) = (*what != What::Kernel, launch.and_then(|l| launches.get(&l)));
        if let Some(&(at, thread)) = launched {
            let launch = Launch { at, device_ns: end - start, is_copy };
            by_thread.entry(thread).or_default().push(launch);
        }
        joined.orphans += u64::from(!is_copy && launched.is_none());
        let stream = queued.entry(*track).or_default();
        stream.kernels += usize::from(!is_copy);
        stream.busy += end - start;
        stream.threads.push(launched.map(|(_, thread)| *thread));
        let launched = launched.map(|(at, _)| *at);
        stream.work.push(Queued { start: *start, end: *end, launched });
    }
    drop(launches);
    let longest = longest_gaps(&queued, &work, question);
    drop(work);
    joined.gaps = gaps::explain(source, longest, question.columns.origin, &question.label)?;
    joined.idle = idle_of_streams(queued, &question.label);
    joined.ranges = work_of_ranges(ranges, by_thread);
    let (columns, launches) = (question.columns, Some(joined));
    Ok(Some(Whole { launches, columns, communication, managed, path }))
}

/// The work of a trace as the critical path asks for it.
struct Recorded<'a> {
    work: &'a [Work],
    launches: &'a HashMap<(Owner, u64), (i64, EntityId)>,
    names: &'a KernelNames,
    hosts: &'a Hosts,
}

impl Recording for Recorded<'_> {
    fn count(&self) -> usize {
        self.work.len()
    }

    fn work(&self, place: usize) -> critical_path::Work {
        let Work { what, name, track, start, end, launch, process, .. } = &self.work[place];
        let what = match *what {
            What::Kernel if self.names.names[*name as usize].1 => PathWhat::Communication,
            What::Kernel => PathWhat::Kernel,
            What::Copy(kind) => PathWhat::Copy(kind),
        };
        let owner = launch.map(|(owner, _)| owner).or(process.map(Owner::Process));
        let owner = owner.map_or(u64::MAX, Owner::number);
        let (start, end, stream, name) = (*start, *end, track.0, *name);
        critical_path::Work { start, end, stream, owner, what, name }
    }

    fn launch(&self, place: usize) -> Option<critical_path::Launch> {
        let (start, thread) = *self.launches.get(&self.work[place].launch?)?;
        Some(critical_path::Launch { thread: self.hosts.number(thread)?, start })
    }
}

/// The critical path; `None` if nothing was launched by a call that the trace holds.
fn critical_path(source: &TraceSource, spans: &mut Spans, origin: i64) -> Option<CriticalPath> {
    let launched = |work: &Work| work.launch.is_some_and(|of| spans.launches.contains_key(&of));
    if !spans.work.iter().any(launched) {
        return None;
    }
    let mut hosts = std::mem::take(&mut spans.hosts);
    for ((thread, name), ranges) in &mut spans.ranges {
        ranges.sort_by_key(|r| (r.start, std::cmp::Reverse(r.end)));
        let number = hosts.number(*thread).filter(|_| &**name == names::OPERATORS);
        if let Some(number) = number {
            ranges.iter().for_each(|range| hosts.operator(number, range.start, range.end));
        }
    }
    hosts.finish(&source.entities_and_tracks().entity);
    let Spans { work, launches, names, .. } = &*spans;
    let recorded = Recorded { work, launches, names, hosts: &hosts };
    path::of(&recorded, &hosts, origin, |number| names.names[number as usize].0.clone())
}

/// The work of a stream.
#[derive(Default)]
struct Stream {
    work: Vec<Queued>,
    /// Who launched it.
    threads: Vec<Option<EntityId>>,
    kernels: usize,
    /// How long its work took, summed.
    busy: i64,
}

fn communication(
    spans: &Spans,
    source: &TraceSource,
    streams: &std::collections::HashMap<TrackId, u32>,
    columns: Cut,
) -> Result<Vec<Vec<Communicated>>> {
    let mut all = Communication::by_interval(columns);
    for work in &spans.work {
        let piece = match work.what {
            What::Kernel if spans.names.names[work.name as usize].1 => Piece::Communicate,
            What::Kernel | What::Copy(CopyKind::Memset) => Piece::Compute,
            What::Copy(CopyKind::PeerToPeer) => Piece::PeerCopy,
            What::Copy(_) => continue,
        };
        if let Some(&device) = streams.get(&work.track) {
            all.push(device, piece, work.start, work.end)
                .map_err(|e| Error::Unsorted { path: source.trace().path().into(), at: e.start })?;
        }
    }
    Ok(all.finish_by_interval())
}

/// Managed memory, if there is any.
fn managed<L>(
    source: &TraceSource,
    spans: &mut Spans,
    copies: &HashMap<Id, (u64, bool)>,
    question: &Question<'_, L>,
) -> Result<Option<Managed>> {
    if copies.is_empty() && spans.faults.is_empty() {
        return Ok(None);
    }
    let mut causes: HashMap<Id, Migration> = HashMap::new();
    let mut faults: HashMap<Id, u64> = HashMap::new();
    let mut gpus: HashMap<Id, u32> = HashMap::new();
    for rows in source.trace().all::<Attr>() {
        for Attr { id, key, value } in rows? {
            match &*key {
                names::MIGRATION_CAUSE => {
                    causes.extend(value.parse().ok().map(|c: Migration| (id, c)))
                }
                names::PAGE_FAULTS => faults.extend(value.parse().ok().map(|n: u64| (id, n))),
                names::ON_GPU => gpus.extend(value.parse().ok().map(|gpu: u32| (id, gpu))),
                _ => {}
            }
        }
    }
    let devices = question.devices;
    let number = |gpu: u32| devices.devices.iter().position(|d| d.entity.0 == gpu);
    let mut found = Gathering::new(Some(spans.asked_ahead));
    for (id, work) in std::mem::take(&mut spans.managed) {
        let (Some(&device), Some(&(bytes, to_device))) =
            (devices.streams.get(&work.track), copies.get(&id))
        else {
            continue;
        };
        let cause = causes.get(&id).copied().unwrap_or(Migration::Unknown);
        let (start, end) = (work.start, work.end);
        found.moved(work.process, device, Moved { cause, to_device, start, end, bytes });
    }
    for Faults { id, process, start, end } in std::mem::take(&mut spans.faults) {
        let device = gpus.get(&id).and_then(|gpu| number(*gpu)).map(|n| n as u32);
        let count = faults.get(&id).copied().unwrap_or(0);
        found.faults(Some(process), device, start, end, count);
    }
    let mut stalls = found.kernels();
    for work in spans.work.iter().filter(|w| w.what == What::Kernel) {
        if let Some(&device) = devices.streams.get(&work.track) {
            stalls.kernel(work.process, device, work.name, work.start, work.end);
        }
    }
    Ok(Some(stalls.finish(|number| spans.names.names[*number as usize].0.clone())))
}

/// What each track says, and the threads that call CUDA, HIP or MPI; whether processes are known.
fn roles(source: &TraceSource, by_process: bool) -> (HashMap<TrackId, Role>, Hosts) {
    let catalog = source.entities_and_tracks();
    let parents: HashMap<EntityId, Option<EntityId>> =
        catalog.entity.iter().map(|e| (e.id, e.parent)).collect();
    let mut hosts = Hosts::new(clocks_of_mpi(catalog).ns());
    for track in &catalog.track {
        if matches!(&*track.name, names::CUDA_CALLS | names::MPI_CALLS) {
            let (entity, source) = (track.entity, track.source.0);
            let process = process_of(&parents, entity);
            let owner = Owner::of(by_process, process, source).number();
            hosts.thread(ThreadOf { entity, process, owner, source });
        }
    }
    let mut roles: HashMap<TrackId, Role> = HashMap::new();
    for track in &catalog.track {
        let (thread, source) = (track.entity, track.source.0);
        let number = hosts.number(thread);
        let role = match (&*track.name, number) {
            (names::STREAM, _) => Role::Stream(source),
            (names::CUDA_CALLS, Some(number)) => {
                let owner = Owner::of(by_process, process_of(&parents, thread), source);
                Role::Calls { thread, owner, number }
            }
            (names::MPI_CALLS, Some(number)) => Role::OtherCalls { number, lane: Lane::Mpi },
            (names::OS_CALLS, Some(number)) => Role::OtherCalls { number, lane: Lane::Os },
            (names::LIBRARY_CALLS | names::NCCL_CALLS, Some(number)) => {
                Role::OtherCalls { number, lane: Lane::Library }
            }
            (names::GPU_PAGE_FAULTS, _) => Role::Faults { process: thread },
            (name, _) if is_ranges(name) => Role::Ranges { thread, name: track.name.clone() },
            _ => continue,
        };
        roles.insert(track.id, role);
    }
    (roles, hosts)
}

fn details(source: &TraceSource) -> Result<Details> {
    let trace = source.trace();
    let mut work: HashMap<Id, Detail> = HashMap::new();
    let mut managed: HashMap<Id, (u64, bool)> = HashMap::new();
    for rows in trace.all::<Kernel>() {
        let detail = |k: Kernel| {
            let Kernel { process, correlation, .. } = k;
            (k.id, Detail { what: What::Kernel, process, correlation })
        };
        work.extend(rows?.into_iter().map(detail));
    }
    for rows in trace.all::<Copy>() {
        for copy in rows? {
            let Copy { id, kind, process, correlation, .. } = copy;
            if kind == CopyKind::Managed {
                managed.insert(id, (copy.bytes, copy.to.is_some()));
            }
            work.insert(id, Detail { what: What::Copy(kind), process, correlation });
        }
    }
    let by_process = work.values().any(|w| w.process.is_some());
    let mut calls: HashMap<Id, u64> = HashMap::new();
    for rows in trace.all::<Call>() {
        calls.extend(rows?.into_iter().filter_map(|c| Some((c.id, c.correlation?))));
    }
    Ok(Details { work, managed, calls, by_process })
}

fn read_spans(
    source: &TraceSource,
    roles: &HashMap<TrackId, Role>,
    hosts: Hosts,
    details: &Details,
) -> Result<Spans> {
    let mut found = Spans {
        work: Vec::with_capacity(details.work.len()),
        launches: HashMap::new(),
        ranges: BTreeMap::new(),
        names: KernelNames::default(),
        faults: Vec::new(),
        asked_ahead: false,
        managed: Vec::new(),
        hosts,
    };
    for rows in source.trace().all::<Span>() {
        for span in rows? {
            let (start, end) = (span.ts.0, span.dur.map(|dur| span.ts.saturating_add(dur).0));
            match roles.get(&span.track) {
                Some(Role::Stream(source)) => found.work(&span, *source, details),
                Some(Role::Calls { thread, owner, number }) => {
                    if !details.managed.is_empty() {
                        let asks = PREFETCH.iter().any(|name| span.name.starts_with(name));
                        found.asked_ahead |= asks;
                    }
                    let to = end.unwrap_or(i64::MAX);
                    found.hosts.call(*number, Lane::Device, &span.name, start, to);
                    let Some(correlation) = details.calls.get(&span.id) else { continue };
                    found.launches.insert((*owner, *correlation), (start, *thread));
                }
                Some(Role::OtherCalls { number, lane }) => {
                    let to = end.unwrap_or(i64::MAX);
                    found.hosts.call(*number, *lane, &span.name, start, to);
                }
                Some(Role::Ranges { thread, name }) => {
                    let ranges = found.ranges.entry((*thread, name.clone())).or_default();
                    ranges.push(Range { name: span.name, start, end: end.unwrap_or(i64::MAX) });
                }
                Some(Role::Faults { process }) => {
                    let (process, end) = (*process, end.unwrap_or(start));
                    found.faults.push(Faults { id: span.id, process, start, end });
                }
                None => {}
            }
        }
    }
    found.work.sort_by_key(|work| work.start);
    Ok(found)
}

impl Spans {
    /// Adds the work of a span on a stream.
    fn work(&mut self, span: &Span, source: u32, details: &Details) {
        let Some(Detail { what, process, correlation }) = details.work.get(&span.id).copied()
        else {
            return;
        };
        let owner = process.map_or(Owner::Source(source), Owner::Process);
        let name = match what {
            What::Kernel => self.names.number(&span.name),
            What::Copy(_) => 0,
        };
        let work = Work {
            what,
            name,
            process,
            track: span.track,
            start: span.ts.0,
            end: span.dur.map_or(span.ts, |dur| span.ts.saturating_add(dur)).0,
            launch: correlation.map(|number| (owner, number)),
        };
        if what == What::Copy(CopyKind::Managed) {
            self.managed.push((span.id, work.clone()));
        }
        self.work.push(work);
    }
}

/// The longest gaps of the busiest stream of each device, longest first.
fn longest_gaps<L>(
    streams: &BTreeMap<TrackId, Stream>,
    work: &[Work],
    question: &Question<'_, L>,
) -> Vec<Candidate> {
    let devices = &question.devices.streams;
    let mut busiest: BTreeMap<u32, TrackId> = BTreeMap::new();
    for (track, stream) in streams.iter().filter(|(_, stream)| stream.kernels > 0) {
        let Some(device) = devices.get(track) else { continue };
        let best = busiest.entry(*device).or_insert(*track);
        if stream.busy > streams[best].busy {
            *best = *track;
        }
    }
    let of_streams = busiest.values().flat_map(|track| {
        idle::gaps(&streams[track].work).map(|gap: Gap| (gap.end - gap.start, *track, gap))
    });
    let mut longest: Vec<(i64, TrackId, Gap)> = of_streams.collect();
    longest.sort_by_key(|(length, track, gap)| (std::cmp::Reverse(*length), gap.start, *track));
    longest.truncate(question.gaps);
    let candidate = |(_, track, gap): (i64, TrackId, Gap)| {
        let device = devices.get(&track);
        let overlaps = |w: &&Work| w.start < gap.end && w.end > gap.start;
        let of_device = work.iter().filter(overlaps).filter(|w| devices.get(&w.track) == device);
        Candidate {
            track,
            thread: streams[&track].threads[gap.next],
            device: of_device.map(|w| (Ns(w.start), Ns(w.end))).collect(),
            gap,
        }
    };
    longest.into_iter().map(candidate).collect()
}

fn idle_of_streams(
    streams: BTreeMap<TrackId, Stream>,
    label: impl Fn(TrackId) -> Option<String>,
) -> Vec<StreamIdle> {
    let s = |ns: i64| ns as f64 / 1e9;
    let of_stream = |(track, stream): (TrackId, Stream)| {
        let Idle { host_wait_ns, kernel_wait_ns, other_ns, .. } = idle::idle(&stream.work);
        StreamIdle {
            stream: label(track).unwrap_or_else(|| format!("track {track}")),
            kernels: stream.kernels,
            host_wait_s: s(host_wait_ns),
            kernel_wait_s: s(kernel_wait_ns),
            other_s: s(other_ns),
        }
    };
    streams.into_iter().filter(|(_, stream)| stream.kernels > 0).map(of_stream).collect()
}

fn work_of_ranges(
    ranges: BTreeMap<(EntityId, Name), Vec<Range>>,
    mut by_thread: HashMap<EntityId, Vec<Launch>>,
) -> Vec<RangeWork> {
    let mut by_name: BTreeMap<(Name, Name), Launched> = BTreeMap::new();
    for ((thread, lane), mut ranges) in ranges {
        ranges.sort_by_key(|r| (r.start, std::cmp::Reverse(r.end)));
        let launches = by_thread.entry(thread).or_default();
        launches.sort_by_key(|l| l.at);
        for (name, launched) in nvtx::launched(&ranges, launches) {
            by_name.entry((lane.clone(), name)).or_default().merge(&launched);
        }
    }
    let ms = |ns: i64| ns as f64 / 1e6;
    let mut all: Vec<RangeWork> = by_name
        .into_iter()
        .map(|((lane, name), launched)| RangeWork {
            lane: lane.to_string(),
            name: name.to_string(),
            ranges: launched.ranges.count,
            host_ms: ms(launched.ranges.sum),
            device_ms: ms(launched.within.sum),
            own_device_ms: ms(launched.own.sum),
            kernels: launched.within.count - launched.copies,
            copies_and_memsets: launched.copies,
        })
        .collect();
    all.sort_by(|a, b| {
        b.device_ms
            .total_cmp(&a.device_ms)
            .then_with(|| (&a.lane, &a.name).cmp(&(&b.lane, &b.name)))
    });
    all
}
