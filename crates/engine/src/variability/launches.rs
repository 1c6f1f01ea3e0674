//! Joins kernels with the calls that launched them: why streams were idle, and which ranges of the
//! program (NVTX, annotations, operators) their work belongs to.
//!
//! A kernel and its launch have the same correlation id, which is unique within a process. They are
//! joined over the whole trace, since a kernel may run long after its launch.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_derive::idle::{Idle, Queued, idle};
use gpuwhy_derive::nvtx::{self, Launch, Launched, Range};
use gpuwhy_schema::{Call, Copy, EntityId, Id, Kernel, Name, Span, TrackId, names};
use serde::Serialize;

use crate::error::Result;
use crate::source::TraceSource;

/// A trace with more spans is not joined: what has to be held in memory would not fit a laptop.
const SPANS: u64 = 20_000_000;

/// Idle time of a stream between its kernels.
#[derive(Clone, Debug, Serialize)]
pub struct StreamIdle {
    /// Its GPU and its name.
    pub stream: String,
    /// Kernels on it.
    pub kernels: usize,
    /// Because nothing had been launched, s.
    pub host_wait_s: f64,
    /// Between a kernel and the next one that was queued already, s.
    pub kernel_wait_s: f64,
    /// Because a kernel that was queued waited for something else, s.
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
    /// Copies and memsets launched within them.
    pub copies: u64,
}

/// What joining launches with kernels gave.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Launches {
    /// By stream, ordered by device.
    pub idle: Vec<StreamIdle>,
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

/// A track that is read here.
enum Role {
    Stream(u32),
    Calls { thread: EntityId, process: EntityId, source: u32 },
    Ranges { thread: EntityId, name: Name },
}

/// Work that ran on a stream.
struct Work {
    is_copy: bool,
    track: TrackId,
    start: i64,
    end: i64,
    launch: Option<(Owner, u64)>,
}

/// What the details of kernels, copies and calls say, by id.
struct Details {
    /// Kernels and copies: whether it is a copy, its process, its correlation id.
    work: HashMap<Id, (bool, Option<EntityId>, Option<u64>)>,
    /// Calls: the correlation id of what they launch.
    calls: HashMap<Id, u64>,
    /// Whether processes are known.
    by_process: bool,
}

/// All spans that matter, by what they are.
struct Spans {
    work: Vec<Work>,
    /// Start and thread of each launch.
    launches: HashMap<(Owner, u64), (i64, EntityId)>,
    ranges: BTreeMap<(EntityId, Name), Vec<Range>>,
}

/// Whether the ranges of a track own the work that is launched within them.
fn is_ranges(name: &str) -> bool {
    let of_domain = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    of_domain(names::NVTX) || name == names::ANNOTATIONS || name == names::OPERATORS
}

/// Joins launches with kernels; `None` if the trace is too large for it. `label` names the stream of a
/// track.
///
/// # Errors
/// The trace cannot be read.
pub fn join(
    source: &TraceSource,
    label: impl Fn(TrackId) -> Option<String>,
) -> Result<Option<Launches>> {
    let spans: u64 = source.trace().manifest().files_of("span").map(|f| f.rows).sum();
    if spans > SPANS {
        return Ok(None);
    }
    let details = details(source)?;
    let Spans { work, launches, ranges } = read_spans(source, &roles(source), &details)?;
    drop(details);
    let mut joined = Launches::default();
    let mut queued: BTreeMap<TrackId, Vec<Queued>> = BTreeMap::new();
    let mut by_thread: HashMap<EntityId, Vec<Launch>> = HashMap::new();
    for Work { is_copy, track, start, end, launch } in work {
        let launched = launch.and_then(|key| launches.get(&key)).copied();
        if let Some((at, thread)) = launched {
            let device_ns = end - start;
            by_thread.entry(thread).or_default().push(Launch { at, device_ns, is_copy });
        }
        if is_copy {
            continue;
        }
        joined.orphans += u64::from(launched.is_none());
        let launched = launched.map(|(at, _)| at);
        queued.entry(track).or_default().push(Queued { start, end, launched });
    }
    drop(launches);
    joined.idle = idle_of_streams(queued, label);
    joined.ranges = work_of_ranges(ranges, by_thread);
    Ok(Some(joined))
}

fn roles(source: &TraceSource) -> HashMap<TrackId, Role> {
    let catalog = source.entities_and_tracks();
    let parents: HashMap<EntityId, Option<EntityId>> =
        catalog.entity.iter().map(|e| (e.id, e.parent)).collect();
    let mut roles: HashMap<TrackId, Role> = HashMap::new();
    for track in &catalog.track {
        let source = track.source.0;
        let role = match &*track.name {
            names::STREAM => Role::Stream(source),
            names::CUDA_CALLS => {
                let process = parents.get(&track.entity).copied().flatten();
                let process = process.unwrap_or(track.entity);
                Role::Calls { thread: track.entity, process, source }
            }
            name if is_ranges(name) => {
                Role::Ranges { thread: track.entity, name: track.name.clone() }
            }
            _ => continue,
        };
        roles.insert(track.id, role);
    }
    roles
}

fn details(source: &TraceSource) -> Result<Details> {
    let trace = source.trace();
    let mut work: HashMap<Id, (bool, Option<EntityId>, Option<u64>)> = HashMap::new();
    for rows in trace.all::<Kernel>() {
        work.extend(rows?.into_iter().map(|k| (k.id, (false, k.process, k.correlation))));
    }
    for rows in trace.all::<Copy>() {
        work.extend(rows?.into_iter().map(|c| (c.id, (true, c.process, c.correlation))));
    }
    let by_process = work.values().any(|w| w.1.is_some());
    let mut calls: HashMap<Id, u64> = HashMap::new();
    for rows in trace.all::<Call>() {
        calls.extend(rows?.into_iter().filter_map(|c| Some((c.id, c.correlation?))));
    }
    Ok(Details { work, calls, by_process })
}

fn read_spans(
    source: &TraceSource,
    roles: &HashMap<TrackId, Role>,
    details: &Details,
) -> Result<Spans> {
    let mut found = Spans {
        work: Vec::with_capacity(details.work.len()),
        launches: HashMap::new(),
        ranges: BTreeMap::new(),
    };
    for rows in source.trace().all::<Span>() {
        for span in rows? {
            let (start, end) = (span.ts.0, span.dur.map(|dur| span.ts.saturating_add(dur).0));
            match roles.get(&span.track) {
                Some(Role::Stream(source)) => {
                    let Some((is_copy, process, number)) = details.work.get(&span.id) else {
                        continue;
                    };
                    let owner = process.map_or(Owner::Source(*source), Owner::Process);
                    found.work.push(Work {
                        is_copy: *is_copy,
                        track: span.track,
                        start,
                        end: end.unwrap_or(start),
                        launch: number.map(|number| (owner, number)),
                    });
                }
                Some(Role::Calls { thread, process, source }) => {
                    let Some(number) = details.calls.get(&span.id) else { continue };
                    let owner = match details.by_process {
                        true => Owner::Process(*process),
                        false => Owner::Source(*source),
                    };
                    found.launches.insert((owner, *number), (start, *thread));
                }
                Some(Role::Ranges { thread, name }) => {
                    let ranges = found.ranges.entry((*thread, name.clone())).or_default();
                    ranges.push(Range { name: span.name, start, end: end.unwrap_or(i64::MAX) });
                }
                None => {}
            }
        }
    }
    Ok(found)
}

fn idle_of_streams(
    queued: BTreeMap<TrackId, Vec<Queued>>,
    label: impl Fn(TrackId) -> Option<String>,
) -> Vec<StreamIdle> {
    let s = |ns: i64| ns as f64 / 1e9;
    let of_stream = |(track, mut kernels): (TrackId, Vec<Queued>)| {
        kernels.sort_by_key(|k| k.start);
        let Idle { host_wait_ns, kernel_wait_ns, other_ns, .. } = idle(&kernels);
        StreamIdle {
            stream: label(track).unwrap_or_else(|| format!("track {track}")),
            kernels: kernels.len(),
            host_wait_s: s(host_wait_ns),
            kernel_wait_s: s(kernel_wait_ns),
            other_s: s(other_ns),
        }
    };
    queued.into_iter().map(of_stream).collect()
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
            copies: launched.copies,
        })
        .collect();
    all.sort_by(|a, b| {
        b.device_ms
            .total_cmp(&a.device_ms)
            .then_with(|| (&a.lane, &a.name).cmp(&(&b.lane, &b.name)))
    });
    all
}
