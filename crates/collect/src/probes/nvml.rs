//! NVIDIA GPUs by NVML: clocks and what throttles them, power, temperature, links, memory errors,
//! processes that use them, and events.
//!
//! *What it sees*: ten times a second the values that change quickly ([`metrics`] is the list), once a
//! second the rest; events, Xids among them, in the round after they happened. *Why it matters*: the
//! same kernels take longer on a GPU whose clock is throttled, whose link repeats packets or which
//! another process uses, and nothing in the program shows it. The driver's own totals of throttled
//! nanoseconds also cover the time between two readings. *What fools it*:
//!
//! - Utilisation is an average over some 167 ms (of a process: over about 1 s, and at times NVML leaves
//!   busy processes out); it is the share of time in which *any* kernel ran, not how much of
//!   the GPU it took. The power sensor of A100 and H100 measures 25 % of the time (arXiv 2312.02741).
//! - NVML sums over NVLinks only for callers that name the sum, which the safe wrapper cannot: bytes
//!   are those of the first link. On systems with a switch the others carry as much.
//! - The PCIe byte counters may have 32 bits. They are continued past their overflow, but a link of
//!   more than 43 GB/s can overflow twice between two readings, and loses 4 GiB each time.
//! - NVML reports pids of the host; in a container without the host's pids they match no process.
//! - Calls on a GPU that fell off the bus hang. It is left alone and asked again every 5 s; a reset
//!   from outside may be refused while NVML is open here, so end the recording for it.
//!
//! A thread of its own calls NVML, see [`sampler`]; a tick only takes the readings that have arrived. A
//! reading is placed in the middle between just before and just after its call; the largest half of
//! that in each second is the track `nvml.uncertainty`. Samples that the driver had buffered (power,
//! utilisation) have the driver's own times, on the wall clock in µs, which are converted to the trace
//! clock. [`Probe::detail`] changes nothing: faster polling costs CPU and shows nothing new.

mod metrics;
mod sampler;
mod schedule;
mod unit;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpuwhy_schema::{
    Counter, EntityId, EntityKind, Lane, Lanes, Mark, Measure, Ns, SourceId, SourceState, TrackId,
    names, sources,
};

use super::drm_clients::share_track;
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::sys;
use metrics::{METRICS, MetricId, metric_named};
use sampler::{Message, Sampler};
use unit::{Observed, Reading, Unit, UnitKind};

pub(crate) use sampler::open;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |_| is_expected(),
    ..ProbeSpec::new(
        "nvml",
        &sources::NVML,
        "clocks, throttling, power, links and errors of NVIDIA GPUs, and the processes on them",
        start,
    )
};

/// The environment variable that names a library to try before the usual ones; without effect where the
/// program has its privileges from its file (`setcap`), so that nobody runs code with them.
const LIBRARY: &str = "GPUWHY_NVML";

/// How long the start waits for NVML; after that NVML goes on starting while we record.
const START: Duration = Duration::from_secs(2);

/// What the last round may take.
const END: Duration = Duration::from_millis(250);

/// A thread that has sent nothing for longer than this hangs in a call.
const HANGS: Ns = Ns::secs(3);

/// Processes of one GPU that get tracks.
const PROCESSES: usize = 256;
/// A process uses a GPU from this share of its multiprocessors on, %.
const BUSY: f64 = 5.0;

struct NvmlProbe {
    sampler: Sampler,
    rows: GpuRows,
    /// When a message last arrived.
    last_message: Ns,
    hangs: bool,
}

/// Whether there are signs of an NVIDIA GPU, or the user names a library. Where there are none, the
/// trace does not mention NVML.
pub(crate) fn is_expected() -> bool {
    // The last is WSL's, where the driver is that of Windows.
    let signs = ["/proc/driver/nvidia", "/dev/nvidiactl", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];
    sys::library_from_env(LIBRARY).is_some() || signs.iter().any(|sign| Path::new(sign).exists())
}

/// The names of NVML's library, in the order of trying.
pub(crate) fn libraries() -> Vec<OsString> {
    // The name without a number exists with development packages only.
    let usual = ["libnvidia-ml.so.1", "libnvidia-ml.so"].map(OsString::from);
    sys::library_from_env(LIBRARY).into_iter().chain(usual).collect()
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let action = || "start a thread for NVML".into();
    let system = |source| CollectError::System { action: action(), source };
    let sampler = Sampler::start(libraries()).map_err(system)?;
    Ok(Box::new(start_with(sampler, START, start)?))
}

fn start_with(
    sampler: Sampler,
    timeout: Duration,
    start: Start<'_>,
) -> Result<NvmlProbe, CollectError> {
    let mut rows = GpuRows::new(start.source);
    match sampler.wait(timeout) {
        Some(Message::Unavailable(why)) => return Err(unavailable(&why)),
        Some(message) => rows.take(message, start.cx),
        None => {
            rows.problems.push((Problem::Starting, "NVML has not answered yet".into()));
            rows.update_source(start.cx);
        }
    }
    Ok(NvmlProbe { sampler, rows, last_message: sys::monotonic(), hangs: false })
}

fn unavailable(why: &str) -> CollectError {
    CollectError::Unsupported {
        missing: format!("NVML cannot be used: {why}"),
        fix: format!(
            "install the driver's libraries; in a container give it the GPU with the capability \
             `utility` (NVIDIA_DRIVER_CAPABILITIES=utility,compute); {LIBRARY} may name a library in \
             another place"
        ),
    }
}

impl Probe for NvmlProbe {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        while let Some(message) = self.sampler.next() {
            self.last_message = now;
            self.rows.take(message, cx);
        }
        let hangs = self.rows.driver.is_some() && now - self.last_message > HANGS;
        if hangs != self.hangs {
            self.hangs = hangs;
            self.rows.problems.retain(|(problem, _)| *problem != Problem::Hangs);
            if hangs {
                let gpu = self.rows.gpu_name(self.sampler.current());
                let text = format!("NVML was asked about {gpu} and has not answered since");
                self.rows.problems.push((Problem::Hangs, text));
            }
            self.rows.update_source(cx);
        }
        self.rows.write_uncertainty(now, cx);
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.rows.written
    }

    fn dropped(&self) -> u64 {
        self.sampler.dropped() + self.rows.dropped
    }

    fn finish(&mut self, now: Ns, cx: &mut Context) {
        let timeout = if self.hangs { Duration::ZERO } else { END };
        let rows = &mut self.rows;
        self.sampler.stop(timeout, |message| rows.take(message, cx));
        rows.finish(now, cx);
    }
}

/// Turns readings into rows.
struct GpuRows {
    source: SourceId,
    units: HashMap<String, UnitTracks>,
    /// The driver's version, once NVML has answered.
    driver: Option<String>,
    problems: Vec<(Problem, String)>,
    /// The largest half of a call since the last row about it, and when that row was.
    uncertainty: Ns,
    last_uncertainty: Ns,
    /// Rows so far.
    written: u64,
    dropped: u64,
}

/// What keeps the source from seeing all that it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    Starting,
    Unavailable,
    Unresponsive,
    Hangs,
    /// A unit, by UUID.
    Lost(String),
}

/// One unit's entity and tracks.
struct UnitTracks {
    entity: EntityId,
    unit: Arc<Unit>,
    /// By [`MetricId`].
    series: Vec<Series>,
    events: Option<TrackId>,
    /// Tracks of processes, by pid.
    processes: HashMap<u32, ProcessTracks>,
    /// What software runlists of virtual GPUs had of it, by their numbers.
    runlists: HashMap<u32, DeltaCounter>,
}

/// How busy a process keeps a GPU, and how much of its memory it has.
#[derive(Default)]
struct ProcessTracks {
    busy: Series,
    memory: Series,
}

/// A track and its last values.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    track: Option<TrackId>,
    /// The last row.
    written: Option<(Ns, f64)>,
    /// The last reading, whose value may have been the same.
    read: Option<(Ns, f64)>,
}

impl Series {
    /// Writes the value, or only remembers that it has not changed, and returns how many rows that was.
    /// Readings that go back in time are ignored.
    ///
    /// A value that changes after several equal readings is preceded by a row with the old value at the
    /// last of these, so that growth lies where it was, and not all over the time before.
    fn update(&mut self, ts: Ns, value: f64, on_change: bool, cx: &mut Context) -> u64 {
        let Some(track) = self.track else { return 0 };
        if self.read.is_some_and(|(last, _)| ts <= last) {
            return 0;
        }
        let read = self.read.replace((ts, value));
        let mut rows = 0;
        if on_change && let (Some(written), Some(read)) = (self.written, read) {
            if written.1 == value {
                return 0;
            }
            if read.0 > written.0 {
                cx.rows.counter.push(Counter { ts: read.0, track, value: read.1 });
                rows += 1;
            }
        }
        cx.rows.counter.push(Counter { ts, track, value });
        self.written = Some((ts, value));
        rows + 1
    }

    /// Writes the last reading, if it was not written.
    fn finish(&mut self, cx: &mut Context) -> u64 {
        let (Some(track), Some((ts, value))) = (self.track, self.read) else { return 0 };
        if self.written.is_some_and(|(written, _)| written >= ts) {
            return 0;
        }
        cx.rows.counter.push(Counter { ts, track, value });
        self.written = self.read;
        1
    }
}

impl GpuRows {
    fn new(source: SourceId) -> GpuRows {
        GpuRows {
            source,
            units: HashMap::new(),
            driver: None,
            problems: Vec::new(),
            uncertainty: Ns::ZERO,
            last_uncertainty: Ns::ZERO,
            written: 0,
            dropped: 0,
        }
    }

    fn take(&mut self, message: Message, cx: &mut Context) {
        match message {
            Message::Started { driver, gpus } => {
                self.problems.retain(|(problem, _)| *problem != Problem::Starting);
                self.driver = Some(driver.clone());
                cx.catalog.update_source(self.source, |s| {
                    s.config = format!("{} driver={driver} gpus={gpus}", s.config).as_str().into();
                });
            }
            Message::Unavailable(why) => {
                self.problems.retain(|(problem, _)| *problem != Problem::Starting);
                self.problems.push((Problem::Unavailable, format!("NVML cannot be used: {why}")));
            }
            Message::Unresponsive(gpus) => {
                self.problems.retain(|(problem, _)| *problem != Problem::Unresponsive);
                if !gpus.is_empty() {
                    let list: Vec<String> =
                        gpus.iter().map(|(i, why)| format!("gpu {i} ({why})")).collect();
                    let text = format!("no answer from the beginning: {}", list.join(", "));
                    self.problems.push((Problem::Unresponsive, text));
                }
            }
            Message::Readings(unit, readings) => {
                self.declare(&unit, cx);
                for reading in readings {
                    self.write(&unit, reading, cx);
                }
                return;
            }
        }
        self.update_source(cx);
    }

    /// Declares the unit's entity; its name may change when it is split or joined.
    fn declare(&mut self, unit: &Arc<Unit>, cx: &mut Context) {
        if let Some(tracks) = self.units.get_mut(&unit.uuid) {
            if tracks.unit != *unit {
                cx.catalog.update(tracks.entity, |e| e.name = unit.name.as_str().into());
                tracks.unit = Arc::clone(unit);
            }
            return;
        }
        let parent = unit.parent.as_ref().and_then(|uuid| self.units.get(uuid));
        let parent = match (&unit.parent, parent) {
            (_, Some(tracks)) => tracks.entity,
            // The readings of a slice may arrive before those of its GPU.
            (Some(uuid), None) => {
                cx.catalog.entity(EntityKind::Gpu, uuid, |e| e.parent = Some(cx.host))
            }
            (None, None) => cx.host,
        };
        let kind = match unit.kind {
            UnitKind::Gpu | UnitKind::Slice => EntityKind::Gpu,
            UnitKind::Virtual => EntityKind::Vgpu,
        };
        let entity = cx.catalog.entity(kind, &unit.uuid, |_| {});
        cx.catalog.update(entity, |e| {
            e.parent = Some(parent);
            e.name = unit.name.as_str().into();
            e.number = Some(i64::from(unit.index));
        });
        let tracks = UnitTracks {
            entity,
            unit: Arc::clone(unit),
            series: vec![Series::default(); METRICS.len()],
            events: None,
            processes: HashMap::new(),
            runlists: HashMap::new(),
        };
        self.units.insert(unit.uuid.clone(), tracks);
    }

    fn write(&mut self, unit: &Unit, reading: Reading, cx: &mut Context) {
        let Reading { before, after, observed } = reading;
        let half = Ns((after.saturating_sub(before)).0.max(0) / 2);
        let ts = before.saturating_add(half);
        let Some(tracks) = self.units.get_mut(&unit.uuid) else { return };
        let source = self.source;
        match observed {
            Observed::Values(values) => {
                self.uncertainty = self.uncertainty.max(half);
                for (metric, value) in values {
                    self.written += tracks.value(metric, ts, value, source, cx);
                }
            }
            Observed::Buffered(metric, values) => {
                for (ts, value) in values {
                    self.written += tracks.value(metric, ts, value, source, cx);
                }
            }
            Observed::ProcessUse(list) => {
                for (pid, ts, percent) in list {
                    let Some(process) = tracks.process(pid, source, cx) else {
                        self.dropped += 1;
                        continue;
                    };
                    self.written += process.busy.update(ts, percent, false, cx);
                    if percent >= BUSY {
                        cx.gpu_use.set_busy(pid, ts);
                    }
                }
            }
            Observed::ProcessMemory(list) => {
                self.uncertainty = self.uncertainty.max(half);
                self.write_process_memory(unit, ts, &list, cx);
            }
            Observed::RunlistTime(list) => {
                let before = cx.rows.counter.len();
                for (runlist, ns) in list {
                    if !tracks.runlists.contains_key(&runlist) && tracks.runlists.len() >= PROCESSES
                    {
                        self.dropped += 1;
                        continue;
                    }
                    let track =
                        || runlist_track(unit, tracks.entity, runlist, source, &mut cx.catalog);
                    tracks.runlists.entry(runlist).or_default().add(ns, ts, &mut cx.rows, track);
                }
                self.written += (cx.rows.counter.len() - before) as u64;
            }
            Observed::Ended => {
                let entity = tracks.entity;
                self.units.remove(&unit.uuid);
                cx.catalog.end(entity, after);
            }
            Observed::Event(name, value) => self.mark(unit, after, name, value, cx),
            Observed::Lost(why) => {
                self.mark(unit, after, "gpu lost", None, cx);
                let text = format!("{} does not answer: {why}", unit.name);
                self.problems.push((Problem::Lost(unit.uuid.clone()), text));
                self.update_source(cx);
            }
            Observed::Returned => {
                self.mark(unit, after, "gpu back", None, cx);
                let lost = Problem::Lost(unit.uuid.clone());
                self.problems.retain(|(problem, _)| *problem != lost);
                self.update_source(cx);
            }
        }
    }

    /// Writes how much memory each process has, and zero for those that have none any more.
    fn write_process_memory(&mut self, unit: &Unit, ts: Ns, list: &[(u32, u64)], cx: &mut Context) {
        let Some(tracks) = self.units.get_mut(&unit.uuid) else { return };
        for &(pid, bytes) in list {
            let Some(process) = tracks.process(pid, self.source, cx) else {
                self.dropped += 1;
                continue;
            };
            self.written += process.memory.update(ts, bytes as f64, false, cx);
            cx.gpu_use.set_memory(pid, bytes);
        }
        let present: HashSet<u32> = list.iter().map(|&(pid, _)| pid).collect();
        tracks.processes.retain(|pid, process| {
            // A process that is only known to be busy never was in the list.
            let left = process.memory.written.is_some() && !present.contains(pid);
            if left {
                self.written += process.memory.update(ts, 0.0, false, cx);
                cx.gpu_use.remove(*pid);
                if process.busy.written.is_some() {
                    self.written += process.busy.update(ts, 0.0, false, cx);
                }
            }
            !left
        });
    }

    fn mark(&mut self, unit: &Unit, ts: Ns, name: &str, value: Option<f64>, cx: &mut Context) {
        let Some(tracks) = self.units.get_mut(&unit.uuid) else { return };
        let track = *tracks.events.get_or_insert_with(|| {
            cx.catalog.track(tracks.entity, None, Lane::marks(names::GPU_EVENTS), self.source)
        });
        let id = cx.ids.next_id();
        cx.rows.mark.push(Mark { id, ts, track, name: name.into(), value });
        self.written += 1;
    }

    /// The name of the GPU with this index.
    fn gpu_name(&self, index: u32) -> String {
        let is = |t: &&UnitTracks| t.unit.kind == UnitKind::Gpu && t.unit.index == index;
        let found = self.units.values().find(is);
        found.map_or_else(|| format!("gpu {index}"), |tracks| tracks.unit.name.clone())
    }

    /// Brings the source's state and note up to date.
    fn update_source(&self, cx: &mut Context) {
        let notes: Vec<&str> = self.problems.iter().map(|(_, text)| text.as_str()).collect();
        cx.catalog.update_source(self.source, |s| {
            let unavailable = self.problems.iter().any(|(p, _)| *p == Problem::Unavailable);
            s.state = match notes.is_empty() {
                true => SourceState::Ok,
                false if unavailable => SourceState::Unavailable,
                false => SourceState::Degraded,
            };
            s.note = (!notes.is_empty()).then(|| notes.join("; ").as_str().into());
        });
    }

    /// Writes, once a second, by how much times may be off.
    fn write_uncertainty(&mut self, now: Ns, cx: &mut Context) {
        if self.uncertainty == Ns::ZERO || now.saturating_sub(self.last_uncertainty) < Ns::secs(1) {
            return;
        }
        let kind = Lane::counter(names::NVML_UNCERTAINTY, "ns", Measure::Gauge);
        let track = cx.catalog.track(cx.host, None, kind, self.source);
        cx.rows.counter.push(Counter { ts: now, track, value: self.uncertainty.0 as f64 });
        self.written += 1;
        self.last_uncertainty = now;
        self.uncertainty = Ns::ZERO;
    }

    /// Writes the last values of all tracks.
    fn finish(&mut self, now: Ns, cx: &mut Context) {
        self.last_uncertainty = Ns::MIN;
        self.write_uncertainty(now, cx);
        let mut offered = HashSet::new();
        for tracks in self.units.values_mut() {
            for (i, series) in tracks.series.iter_mut().enumerate() {
                self.written += series.finish(cx);
                if tracks.unit.kind == UnitKind::Gpu && series.track.is_some() {
                    offered.insert(i);
                }
            }
        }
        let (have, all) = (offered.len(), METRICS.len());
        if self.driver.is_some() && self.problems.is_empty() && have < all {
            cx.catalog.update_source(self.source, |s| {
                let note = format!("{have} of {all} readings are offered by these GPUs");
                s.note = Some(note.as_str().into());
            });
        }
    }
}

/// The track of what a software runlist had of a GPU's engine.
fn runlist_track(
    unit: &Unit,
    gpu: EntityId,
    runlist: u32,
    source: SourceId,
    catalog: &mut Lanes,
) -> TrackId {
    let engine = catalog.entity(EntityKind::Engine, &format!("{}/graphics", unit.uuid), |e| {
        e.parent = Some(gpu);
        e.name = "graphics".into();
        e.number = Some(1);
    });
    let key = format!("{}/runlist/{runlist}", unit.uuid);
    let entity = catalog.entity(EntityKind::Stream, &key, |e| {
        e.parent = Some(gpu);
        e.name = "software runlist".into();
        e.number = Some(i64::from(runlist));
    });
    share_track(entity, engine, source, catalog)
}

impl UnitTracks {
    fn value(
        &mut self,
        id: MetricId,
        ts: Ns,
        value: f64,
        source: SourceId,
        cx: &mut Context,
    ) -> u64 {
        self.track(id, source, cx);
        self.series[id.0].update(ts, value, id.metric().on_change, cx)
    }

    fn track(&mut self, id: MetricId, source: SourceId, cx: &mut Context) -> TrackId {
        let metric = id.metric();
        *self.series[id.0].track.get_or_insert_with(|| {
            let kind = Lane::counter(metric.name, metric.unit, metric.measure);
            cx.catalog.track(self.entity, None, kind, source)
        })
    }

    /// The tracks of a process on this GPU; `None` if there are too many processes.
    fn process(
        &mut self,
        pid: u32,
        source: SourceId,
        cx: &mut Context,
    ) -> Option<&mut ProcessTracks> {
        if !self.processes.contains_key(&pid) {
            if self.processes.len() >= PROCESSES {
                return None;
            }
            let entity = cx.process(pid, None);
            let mut under = |parent: &str, name: &str, unit: &str| {
                let parent = metric_named(parent).map(|metric| self.track(metric, source, cx));
                let kind = Lane::counter(name, unit, Measure::Gauge);
                let track = Some(cx.catalog.track(entity, parent, kind, source));
                Series { track, ..Series::default() }
            };
            let process = ProcessTracks {
                busy: under(names::GPU_UTILIZATION, names::PROCESS_SM_UTILIZATION, "%"),
                memory: under(names::GPU_MEMORY_USED, names::PROCESS_GPU_MEMORY, "By"),
            };
            self.processes.insert(pid, process);
        }
        self.processes.get_mut(&pid)
    }
}

#[cfg(test)]
mod tests;
