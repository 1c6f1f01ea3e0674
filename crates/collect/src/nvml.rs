//! NVIDIA GPUs by NVML: clocks and what holds them down, power, temperature, links, memory errors,
//! who uses them, and what befalls them.
//!
//! *What it sees*: ten times a second what moves ([`readings`] is the list), once a second the rest;
//! events, Xids among them, in the round after they happened. *Why it matters*: the same kernels on
//! a GPU whose clock is held down, whose link repeats itself or which somebody else uses take longer,
//! and nothing in the program says so. The driver's own totals of nanoseconds held down also show
//! what lies between two readings. *What fools it*:
//!
//! - Utilisation is an average over some 167 ms, that of a process over about 1 s, and busy processes
//!   are missing from it at times; it is the share of time in which *any* kernel ran, not how much of
//!   the GPU it took. The power sensor of A100 and H100 looks at 25 % of the time (arXiv 2312.02741).
//! - NVML sums over NVLinks only for callers that name the sum, which the safe wrapper cannot: bytes
//!   are those of the first link. On systems with a switch the others carry as much.
//! - The PCIe byte counters may have 32 bits. They are carried on past their end, but a link of more
//!   than 43 GB/s can pass it twice between two readings, and loses 4 GiB each time.
//! - NVML shows pids of the host; in a container without them processes are strangers.
//! - A GPU that fell off the bus keeps those who ask waiting. It is left alone and asked again every
//!   5 s; a reset from outside may be refused while NVML is open here, so end the recording for it.
//!
//! NVML is asked by a thread of its own, see [`sampler`]; a tick only takes what has come. A reading is
//! placed in the middle between just before and just after its call; the widest half of that in each
//! second is the track `nvml.uncertainty`. What the driver had kept (power, utilisation) has the
//! driver's own times, on the wall clock in us, which are carried over to the trace clock.
//! [`Probe::detail`] changes nothing: faster polling costs CPU and shows nothing new.

mod readings;
mod sampler;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpuwhy_schema::{
    Counter, EntityId, EntityKind, Lane, Mark, Measure, Ns, SourceId, SourceState, TrackId, names,
};

use crate::kernel;
use crate::{CollectError, Context, Probe, Start};
use readings::{METRICS, Which};
use sampler::{Reading, Sampler, Told, Unit, UnitKind, What};

pub(crate) use sampler::open;

/// Names the library, before the usual ones.
const LIBRARY: &str = "GPUWHY_NVML";

/// NVML starts within this or goes on starting while we record.
const START: Duration = Duration::from_secs(2);

/// What the last round may take.
const END: Duration = Duration::from_millis(250);

/// A thread that has said nothing for so long hangs in a call.
const HANGS: Ns = Ns::secs(3);

/// Processes of one GPU that get tracks.
const PROCESSES: usize = 256;
/// A process uses a GPU from this share of its multiprocessors on, %.
const USED: f64 = 5.0;

struct NvmlProbe {
    sampler: Sampler,
    book: Book,
    heard: Ns,
    hangs: bool,
}

/// Whether this host has an NVIDIA GPU as far as can be seen without asking one, or was told so.
/// Where it has none there is nothing to look at and nothing to be said.
pub(crate) fn expected() -> bool {
    // The last is WSL's, where the driver is that of Windows.
    let signs = ["/proc/driver/nvidia", "/dev/nvidiactl", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];
    std::env::var_os(LIBRARY).is_some() || signs.iter().any(|sign| Path::new(sign).exists())
}

/// What NVML may be called, in the order of trying.
pub(crate) fn libraries() -> Vec<OsString> {
    // The name without a number comes with development packages only.
    let usual = ["libnvidia-ml.so.1", "libnvidia-ml.so"].map(OsString::from);
    std::env::var_os(LIBRARY).into_iter().chain(usual).collect()
}

/// Starts the probe.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let system = |source| CollectError::System { what: "start a thread for NVML".into(), source };
    let sampler = Sampler::begin(libraries()).map_err(system)?;
    Ok(Box::new(begin(sampler, START, start)?))
}

fn begin(
    sampler: Sampler,
    patience: Duration,
    start: Start<'_>,
) -> Result<NvmlProbe, CollectError> {
    let mut book = Book::new(start.source);
    match sampler.wait(patience) {
        Some(Told::Refused(why)) => return Err(refused(&why)),
        Some(told) => book.take(told, start.cx),
        None => {
            book.trouble.push((Trouble::Starts, "NVML has not answered yet".into()));
            book.tell_state(start.cx);
        }
    }
    Ok(NvmlProbe { sampler, book, heard: kernel::monotonic(), hangs: false })
}

fn refused(why: &str) -> CollectError {
    CollectError::Unsupported {
        what: format!("NVML cannot be used: {why}"),
        fix: format!(
            "install the driver's libraries; in a container give it the GPU with the capability \
             `utility` (NVIDIA_DRIVER_CAPABILITIES=utility,compute); {LIBRARY} names a library that \
             lies elsewhere"
        ),
    }
}

impl Probe for NvmlProbe {
    fn name(&self) -> &'static str {
        "nvml"
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        while let Some(told) = self.sampler.next() {
            self.heard = now;
            self.book.take(told, cx);
        }
        let hangs = self.book.driver.is_some() && now - self.heard > HANGS;
        if hangs != self.hangs {
            self.hangs = hangs;
            self.book.trouble.retain(|(trouble, _)| *trouble != Trouble::Hangs);
            if hangs {
                let gpu = self.book.called(self.sampler.asked());
                let says = format!("NVML was asked about {gpu} and has not answered since");
                self.book.trouble.push((Trouble::Hangs, says));
            }
            self.book.tell_state(cx);
        }
        self.book.tell_uncertainty(now, cx);
        Ok(())
    }

    fn counted(&self) -> u64 {
        self.book.rows
    }

    fn dropped(&self) -> u64 {
        self.sampler.dropped() + self.book.dropped
    }

    fn finish(&mut self, now: Ns, cx: &mut Context) {
        let patience = if self.hangs { Duration::ZERO } else { END };
        let book = &mut self.book;
        self.sampler.stop(patience, |told| book.take(told, cx));
        book.finish(now, cx);
    }
}

/// The rows that follow from readings.
struct Book {
    source: SourceId,
    units: HashMap<String, Lanes>,
    /// The driver's version, once NVML has answered.
    driver: Option<String>,
    trouble: Vec<(Trouble, String)>,
    /// The widest half of a call since the last row about it, and when that row was.
    widest: Ns,
    told_widest: Ns,
    rows: u64,
    dropped: u64,
}

/// What keeps the source from seeing all that it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    Starts,
    Refused,
    Silent,
    Hangs,
    /// A unit, by UUID.
    Lost(String),
}

/// One unit's entity and tracks.
struct Lanes {
    entity: EntityId,
    unit: Arc<Unit>,
    series: Vec<Series>,
    events: Option<TrackId>,
    /// Tracks of processes, by pid: how busy, how much memory.
    processes: HashMap<u32, Process>,
}

#[derive(Default)]
struct Process {
    busy: Series,
    memory: Series,
}

/// A track and where it has come to.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    track: Option<TrackId>,
    /// The last row.
    written: Option<(Ns, f64)>,
    /// The last reading, which may have had nothing new.
    read: Option<(Ns, f64)>,
}

impl Series {
    /// Writes the value, or only remembers that it still is what it was, and says how many rows
    /// that was. Times only go forward.
    ///
    /// A value that changes after it stood still for some readings is preceded by its old self at
    /// the last of these: so that growth lies where it was, and not all over the time before.
    fn to(&mut self, ts: Ns, value: f64, on_change: bool, cx: &mut Context) -> u64 {
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

    /// The last reading is written, if it was not.
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

impl Book {
    fn new(source: SourceId) -> Book {
        Book {
            source,
            units: HashMap::new(),
            driver: None,
            trouble: Vec::new(),
            widest: Ns::ZERO,
            told_widest: Ns::ZERO,
            rows: 0,
            dropped: 0,
        }
    }

    fn take(&mut self, told: Told, cx: &mut Context) {
        match told {
            Told::Began { driver, gpus } => {
                self.trouble.retain(|(trouble, _)| *trouble != Trouble::Starts);
                self.driver = Some(driver.clone());
                cx.lanes.update_source(self.source, |s| {
                    s.config = format!("{} driver={driver} gpus={gpus}", s.config).as_str().into();
                });
            }
            Told::Refused(why) => {
                self.trouble.retain(|(trouble, _)| *trouble != Trouble::Starts);
                self.trouble.push((Trouble::Refused, format!("NVML cannot be used: {why}")));
            }
            Told::Silent(gpus) => {
                self.trouble.retain(|(trouble, _)| *trouble != Trouble::Silent);
                if !gpus.is_empty() {
                    let list: Vec<String> =
                        gpus.iter().map(|(i, why)| format!("gpu {i} ({why})")).collect();
                    let says = format!("no answer from the beginning: {}", list.join(", "));
                    self.trouble.push((Trouble::Silent, says));
                }
            }
            Told::Read(unit, readings) => {
                self.meet(&unit, cx);
                for reading in readings {
                    self.read(&unit, reading, cx);
                }
                return;
            }
        }
        self.tell_state(cx);
    }

    /// Its entity; its name may change when it is split or joined.
    fn meet(&mut self, unit: &Arc<Unit>, cx: &mut Context) {
        if let Some(lanes) = self.units.get_mut(&unit.uuid) {
            if lanes.unit != *unit {
                cx.lanes.update(lanes.entity, |e| e.name = unit.name.as_str().into());
                lanes.unit = Arc::clone(unit);
            }
            return;
        }
        let parent = unit.parent.as_ref().and_then(|uuid| self.units.get(uuid));
        let parent = match (&unit.parent, parent) {
            (_, Some(lanes)) => lanes.entity,
            // A slice may be told of before its GPU.
            (Some(uuid), None) => {
                cx.lanes.entity(EntityKind::Gpu, uuid, |e| e.parent = Some(cx.host))
            }
            (None, None) => cx.host,
        };
        let kind = match unit.kind {
            UnitKind::Gpu | UnitKind::Slice => EntityKind::Gpu,
            UnitKind::Virtual => EntityKind::Vgpu,
        };
        let entity = cx.lanes.entity(kind, &unit.uuid, |_| {});
        cx.lanes.update(entity, |e| {
            e.parent = Some(parent);
            e.name = unit.name.as_str().into();
            e.number = Some(i64::from(unit.index));
        });
        let lanes = Lanes {
            entity,
            unit: Arc::clone(unit),
            series: vec![Series::default(); METRICS.len()],
            events: None,
            processes: HashMap::new(),
        };
        self.units.insert(unit.uuid.clone(), lanes);
    }

    fn read(&mut self, unit: &Unit, reading: Reading, cx: &mut Context) {
        let Reading { before, after, what } = reading;
        let half = Ns((after.saturating_sub(before)).0.max(0) / 2);
        let ts = before.saturating_add(half);
        let Some(lanes) = self.units.get_mut(&unit.uuid) else { return };
        let source = self.source;
        match what {
            What::Values(values) => {
                self.widest = self.widest.max(half);
                for (which, value) in values {
                    self.rows += lanes.value(which, ts, value, source, cx);
                }
            }
            What::Kept(which, values) => {
                for (ts, value) in values {
                    self.rows += lanes.value(which, ts, value, source, cx);
                }
            }
            What::Busy(list) => {
                for (pid, ts, percent) in list {
                    let Some(process) = lanes.process(pid, source, cx) else {
                        self.dropped += 1;
                        continue;
                    };
                    self.rows += process.busy.to(ts, percent, false, cx);
                    if percent >= USED {
                        cx.gpu_used.insert(pid, ts);
                    }
                }
            }
            What::Memory(list) => {
                self.widest = self.widest.max(half);
                for &(pid, bytes) in &list {
                    let Some(process) = lanes.process(pid, source, cx) else {
                        self.dropped += 1;
                        continue;
                    };
                    self.rows += process.memory.to(ts, bytes as f64, false, cx);
                    cx.gpu_memory.insert(pid, bytes);
                }
                let here: HashSet<u32> = list.iter().map(|&(pid, _)| pid).collect();
                lanes.processes.retain(|pid, process| {
                    // Who is only known to be busy is not in the list anyway.
                    let left = process.memory.written.is_some() && !here.contains(pid);
                    if left {
                        self.rows += process.memory.to(ts, 0.0, false, cx);
                        cx.gpu_memory.remove(pid);
                        cx.gpu_used.remove(pid);
                        if process.busy.written.is_some() {
                            self.rows += process.busy.to(ts, 0.0, false, cx);
                        }
                    }
                    !left
                });
            }
            What::Ended => {
                let entity = lanes.entity;
                self.units.remove(&unit.uuid);
                cx.lanes.end(entity, after);
            }
            What::Mark(name, value) => self.mark(unit, after, name, value, cx),
            What::Lost(why) => {
                self.mark(unit, after, "gpu lost", None, cx);
                let says = format!("{} does not answer: {why}", unit.name);
                self.trouble.push((Trouble::Lost(unit.uuid.clone()), says));
                self.tell_state(cx);
            }
            What::Back => {
                self.mark(unit, after, "gpu back", None, cx);
                let lost = Trouble::Lost(unit.uuid.clone());
                self.trouble.retain(|(trouble, _)| *trouble != lost);
                self.tell_state(cx);
            }
        }
    }

    fn mark(&mut self, unit: &Unit, ts: Ns, name: &str, value: Option<f64>, cx: &mut Context) {
        let Some(lanes) = self.units.get_mut(&unit.uuid) else { return };
        let track = *lanes.events.get_or_insert_with(|| {
            cx.lanes.track(lanes.entity, None, Lane::marks(names::GPU_EVENTS), self.source)
        });
        let id = cx.ids.next_id();
        cx.rows.mark.push(Mark { id, ts, track, name: name.into(), value });
        self.rows += 1;
    }

    /// What the GPU of this index is called.
    fn called(&self, index: u32) -> String {
        let is = |lanes: &&Lanes| lanes.unit.kind == UnitKind::Gpu && lanes.unit.index == index;
        let found = self.units.values().find(is);
        found.map_or_else(|| format!("gpu {index}"), |lanes| lanes.unit.name.clone())
    }

    /// Brings the source's state and note up to date.
    fn tell_state(&self, cx: &mut Context) {
        let says: Vec<&str> = self.trouble.iter().map(|(_, says)| says.as_str()).collect();
        cx.lanes.update_source(self.source, |s| {
            let refused = self.trouble.iter().any(|(trouble, _)| *trouble == Trouble::Refused);
            s.state = match says.is_empty() {
                true => SourceState::Ok,
                false if refused => SourceState::Unavailable,
                false => SourceState::Degraded,
            };
            s.note = (!says.is_empty()).then(|| says.join("; ").as_str().into());
        });
    }

    /// Once a second: by how much times may be off.
    fn tell_uncertainty(&mut self, now: Ns, cx: &mut Context) {
        if self.widest == Ns::ZERO || now.saturating_sub(self.told_widest) < Ns::secs(1) {
            return;
        }
        let lane = Lane::counter(names::NVML_UNCERTAINTY, "ns", Measure::Gauge);
        let track = cx.lanes.track(cx.host, None, lane, self.source);
        cx.rows.counter.push(Counter { ts: now, track, value: self.widest.0 as f64 });
        self.rows += 1;
        self.told_widest = now;
        self.widest = Ns::ZERO;
    }

    /// The last of everything.
    fn finish(&mut self, now: Ns, cx: &mut Context) {
        self.told_widest = Ns::MIN;
        self.tell_uncertainty(now, cx);
        let mut offered = HashSet::new();
        for lanes in self.units.values_mut() {
            for (i, series) in lanes.series.iter_mut().enumerate() {
                self.rows += series.finish(cx);
                if lanes.unit.kind == UnitKind::Gpu && series.track.is_some() {
                    offered.insert(i);
                }
            }
        }
        let (have, all) = (offered.len(), METRICS.len());
        if self.driver.is_some() && self.trouble.is_empty() && have < all {
            cx.lanes.update_source(self.source, |s| {
                let note = format!("{have} of {all} readings are offered by these GPUs");
                s.note = Some(note.as_str().into());
            });
        }
    }
}

impl Lanes {
    fn value(
        &mut self,
        which: Which,
        ts: Ns,
        value: f64,
        source: SourceId,
        cx: &mut Context,
    ) -> u64 {
        self.track(which, source, cx);
        self.series[which.0].to(ts, value, which.metric().on_change, cx)
    }

    fn track(&mut self, which: Which, source: SourceId, cx: &mut Context) -> TrackId {
        let metric = which.metric();
        *self.series[which.0].track.get_or_insert_with(|| {
            let lane = Lane::counter(metric.name, metric.unit, metric.measure);
            cx.lanes.track(self.entity, None, lane, source)
        })
    }

    /// The tracks of a process on this GPU; `None` if there are too many.
    fn process(&mut self, pid: u32, source: SourceId, cx: &mut Context) -> Option<&mut Process> {
        if !self.processes.contains_key(&pid) {
            if self.processes.len() >= PROCESSES {
                return None;
            }
            let entity = cx.people.process(&mut cx.lanes, pid, None);
            let mut under = |parent: &str, name: &str, unit: &str| {
                let parent = readings::which(parent).map(|which| self.track(which, source, cx));
                let lane = Lane::counter(name, unit, Measure::Gauge);
                let track = Some(cx.lanes.track(entity, parent, lane, source));
                Series { track, ..Series::default() }
            };
            let process = Process {
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
