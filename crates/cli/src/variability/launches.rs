//! What launched what: why streams were idle, and which ranges of the program their work belongs to.
//!
//! A kernel and the call that launched it bear the same number, which is unique within its process. They
//! are joined over the whole trace, since a kernel may run long after its launch.

use std::collections::BTreeMap;

use anyhow::Result;
use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_derive::idle::{Idle, Queued, idle};
use gpuwhy_derive::nvtx::{self, Launch, Launched, Range};
use gpuwhy_schema::{Call, Copy, EntityId, Id, Kernel, Name, Rows, Span, TrackId, names};
use gpuwhy_store::Trace;
use serde::Serialize;

/// Spans that are looked at: of more, what is held in memory would not fit a laptop.
const MOST: u64 = 20_000_000;

/// Idle time of a stream.
#[derive(Clone, Debug, Serialize)]
pub struct OfStream {
    /// Whose.
    pub stream: String,
    /// Kernels on it.
    pub kernels: usize,
    /// Time between them because nothing had been launched, s.
    pub host_wait_s: f64,
    /// Because the device came to the next one, s.
    pub kernel_wait_s: f64,
    /// Because a kernel that was queued waited for something else, s.
    pub other_s: f64,
}

/// What ranges of a name launched.
#[derive(Clone, Debug, Serialize)]
pub struct OfRange {
    /// Its lane: `nvtx`, `annotations`, `operators`.
    pub lane: String,
    /// Its name.
    pub name: String,
    /// How many there were.
    pub ranges: u64,
    /// How long they took on the host, ms.
    pub host_ms: f64,
    /// How long the work ran that was launched within them, ms.
    pub device_ms: f64,
    /// Of that, what no range inside launched, ms.
    pub own_device_ms: f64,
    /// Kernels launched within them.
    pub kernels: u64,
    /// Copies and memsets launched within them.
    pub copies: u64,
}

/// Both.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Joined {
    /// By stream, in the order of their devices.
    pub idle: Vec<OfStream>,
    /// Most device time first.
    pub ranges: Vec<OfRange>,
    /// Kernels whose launch is not in the trace.
    pub orphans: u64,
}

/// In what a number is unique: a process, or, where it is not known, a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Process(EntityId),
    Source(u32),
}

/// A track that matters here.
enum Lane {
    Stream(u32),
    Calls { thread: EntityId, process: EntityId, source: u32 },
    Ranges { thread: EntityId, name: Name },
}

/// The lanes whose ranges work is attributed to.
fn is_ranges(name: &str) -> bool {
    let of_domain = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    of_domain(names::NVTX) || name == names::ANNOTATIONS || name == names::OPERATORS
}

struct Ran {
    is_copy: bool,
    track: TrackId,
    start: i64,
    end: i64,
    launch: Option<(Owner, u64)>,
}

/// Joins launches with kernels; none if the trace is too large for it.
pub fn join(
    trace: &Trace,
    lanes: &Rows,
    label: impl Fn(TrackId) -> Option<String>,
) -> Result<Option<Joined>> {
    let spans: u64 =
        trace.manifest().file.iter().filter(|f| f.table == "span").map(|f| f.rows).sum();
    if spans > MOST {
        return Ok(None);
    }
    let parents: HashMap<EntityId, Option<EntityId>> =
        lanes.entity.iter().map(|e| (e.id, e.parent)).collect();
    let mut tracks: HashMap<TrackId, Lane> = HashMap::new();
    for track in &lanes.track {
        let source = track.source.0;
        let lane = match &*track.name {
            names::STREAM => Lane::Stream(source),
            names::CUDA_CALLS => {
                let process = parents.get(&track.entity).copied().flatten();
                Lane::Calls {
                    thread: track.entity,
                    process: process.unwrap_or(track.entity),
                    source,
                }
            }
            name if is_ranges(name) => {
                Lane::Ranges { thread: track.entity, name: track.name.clone() }
            }
            _ => continue,
        };
        tracks.insert(track.id, lane);
    }
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
    let mut ran: Vec<Ran> = Vec::with_capacity(work.len());
    let mut launches: HashMap<(Owner, u64), (i64, EntityId)> = HashMap::new();
    let mut ranges: BTreeMap<(EntityId, Name), Vec<Range>> = BTreeMap::new();
    for rows in trace.all::<Span>() {
        for span in rows? {
            let (start, end) = (span.ts.0, span.dur.map(|dur| span.ts.saturating_add(dur).0));
            match tracks.get(&span.track) {
                Some(Lane::Stream(source)) => {
                    let Some((is_copy, process, number)) = work.get(&span.id) else { continue };
                    let owner = process.map_or(Owner::Source(*source), Owner::Process);
                    ran.push(Ran {
                        is_copy: *is_copy,
                        track: span.track,
                        start,
                        end: end.unwrap_or(start),
                        launch: number.map(|number| (owner, number)),
                    });
                }
                Some(Lane::Calls { thread, process, source }) => {
                    let Some(number) = calls.get(&span.id) else { continue };
                    let owner =
                        if by_process { Owner::Process(*process) } else { Owner::Source(*source) };
                    launches.insert((owner, *number), (start, *thread));
                }
                Some(Lane::Ranges { thread, name }) => {
                    ranges.entry((*thread, name.clone())).or_default().push(Range {
                        name: span.name,
                        start,
                        end: end.unwrap_or(i64::MAX),
                    });
                }
                None => {}
            }
        }
    }
    drop((work, calls));

    let mut joined = Joined::default();
    let mut queued: BTreeMap<TrackId, Vec<Queued>> = BTreeMap::new();
    let mut per_thread: HashMap<EntityId, Vec<Launch>> = HashMap::new();
    for Ran { is_copy, track, start, end, launch } in ran {
        let launched = launch.and_then(|key| launches.get(&key)).copied();
        if let Some((at, thread)) = launched {
            let device_ns = end - start;
            per_thread.entry(thread).or_default().push(Launch { at, device_ns, is_copy });
        }
        if is_copy {
            continue;
        }
        joined.orphans += u64::from(launched.is_none());
        let launched = launched.map(|(at, _)| at);
        queued.entry(track).or_default().push(Queued { start, end, launched });
    }
    drop(launches);
    let s = |ns: i64| ns as f64 / 1e9;
    for (track, mut kernels) in queued {
        kernels.sort_by_key(|k| k.start);
        let Idle { host_wait_ns, kernel_wait_ns, other_ns, .. } = idle(&kernels);
        joined.idle.push(OfStream {
            stream: label(track).unwrap_or_else(|| format!("track {track}")),
            kernels: kernels.len(),
            host_wait_s: s(host_wait_ns),
            kernel_wait_s: s(kernel_wait_ns),
            other_s: s(other_ns),
        });
    }
    let mut by_name: BTreeMap<(Name, Name), Launched> = BTreeMap::new();
    for ((thread, lane), mut ranges) in ranges {
        ranges.sort_by_key(|r| (r.start, std::cmp::Reverse(r.end)));
        let launches = per_thread.entry(thread).or_default();
        launches.sort_by_key(|l| l.at);
        for (name, launched) in nvtx::launched(&ranges, launches) {
            by_name.entry((lane.clone(), name)).or_default().merge(&launched);
        }
    }
    let ms = |ns: i64| ns as f64 / 1e6;
    joined.ranges = by_name
        .into_iter()
        .map(|((lane, name), launched)| OfRange {
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
    joined.ranges.sort_by(|a, b| {
        b.device_ms
            .total_cmp(&a.device_ms)
            .then_with(|| (&a.lane, &a.name).cmp(&(&b.lane, &b.name)))
    });
    Ok(Some(joined))
}
