//! Clients of DRM drivers (amdgpu, i915, xe, nouveau, panfrost and others): how long each process had each engine of a
//! GPU, and how much of its memory.
//!
//! *What it sees*: `/proc/PID/fdinfo` of whoever has opened a device below `/dev/dri`, once a second: the driver's own count
//! of the time that each client's work ran (Documentation/gpu/drm-usage-stats.rst of Linux). *Why it matters*: it tells who
//! shares a GPU and how much of it each takes, on every driver but NVIDIA's, without a tracepoint; and the number of a
//! client is what tracepoints of the scheduler call it, so that they can be told whose it is. *What fools it*:
//!
//! - It is a sum: that two processes had an engine in the same second does not say that one waited for the other.
//! - What lies before a client is first seen does not count. Whoever holds devices is looked for every [`SEARCH`] at most, and
//!   more seldom where there are many descriptors to look at; who came and went between two looks is not seen.
//! - Drivers count at the end of a job, or of a slice: a long job appears at once, in the second in which it ends.
//! - A descriptor that was handed on counts for the process in which it was seen first.
//! - The client of a virtual machine's GPU is the program that runs the machine.
//!
//! A thread of its own reads, since drivers take locks to answer.

pub(crate) mod fdinfo;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use gpuwhy_schema::{
    Counter, EntityId, EntityKind, Lane, Lanes, Mark, Measure, Ns, SourceId, TrackId, names,
    sources,
};

use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::every::Every;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::procfs::Proc;
use crate::rounds::{Polled, Readings, Rounds};
use crate::sys;
use fdinfo::{Client, EngineTime};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |_| is_expected(Path::new("/sys/class/drm")),
    ..ProbeSpec::new(
        "drm_clients",
        &sources::DRM_CLIENTS,
        "which process had which engine of a GPU for how long, as its driver counts it (not NVIDIA's)",
        start,
    )
};

/// Between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks for who has devices open, at least.
const SEARCH: Ns = Ns::secs(2);
/// Processes that are looked at.
const PROCESSES: usize = 100_000;
/// Descriptors of devices that are read,
const DESCRIPTORS: usize = 1024;
/// and of one process: nobody takes the places of all others.
const OF_ONE: usize = 64;
/// Bytes of what is said of one descriptor.
const TEXT: u64 = 64 << 10;

/// Whether there is a GPU with a DRM driver: without, the trace does not mention its clients.
fn is_expected(class: &Path) -> bool {
    let mut all = fs::read_dir(class).into_iter().flatten().flatten();
    all.any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // `card0-HDMI-A-1` is a connector, `version` a file.
        ["card", "renderD"].iter().any(|kind| {
            let number = name.strip_prefix(kind);
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
    })
}

/// What distinguishes clients: numbers may be those of one device.
type Key = (String, String, u64);

/// What all clients were said to have had so far.
#[derive(Debug)]
struct Reading {
    /// Just before it.
    before: Ns,
    /// Just after it.
    after: Ns,
    clients: BTreeMap<Key, (u32, Client)>,
    /// Descriptors that were not read, being too many.
    left_out: u64,
}

/// Reads what is said of descriptors.
struct Reader {
    proc: Proc,
    /// Process and descriptor.
    known: Vec<(u32, u32)>,
    left_out: u64,
    searches: Every,
}

impl Reader {
    fn new(proc: Proc) -> Reader {
        Reader { proc, known: Vec::new(), left_out: 0, searches: Every::new(SEARCH) }
    }

    fn read(&mut self) -> Reading {
        let before = sys::monotonic();
        if self.searches.is_due(before) {
            let spent = sys::thread_time();
            self.search();
            self.searches.spare(sys::thread_time().saturating_sub(spent), before);
        }
        let mut clients = BTreeMap::new();
        let proc = &self.proc;
        self.known.retain(|&(pid, fd)| {
            // The client may be another one by now, and its number says so.
            let Some(client) = client(proc, pid, fd) else { return false };
            let key = (client.driver.clone(), client.device.clone(), client.id);
            clients.entry(key).or_insert((pid, client));
            true
        });
        Reading { before, after: sys::monotonic(), clients, left_out: self.left_out }
    }

    /// Looks for descriptors of devices. Those that are known keep their places, so that a client counts for the process in
    /// which it was seen first.
    fn search(&mut self) {
        self.left_out = 0;
        for pid in self.proc.processes(PROCESSES) {
            let mut own = self.known.iter().filter(|(of, _)| *of == pid).count();
            let all = fs::read_dir(self.proc.path(format!("{pid}/fd"))).into_iter().flatten();
            for entry in all.flatten() {
                let Ok(behind) = fs::read_link(entry.path()) else { continue };
                let fd = entry.file_name().to_str().and_then(|fd| fd.parse::<u32>().ok());
                let Some(fd) = fd.filter(|_| behind.starts_with("/dev/dri")) else { continue };
                // A file that is only called like a device is none.
                if self.known.contains(&(pid, fd)) || client(&self.proc, pid, fd).is_none() {
                    continue;
                }
                if own < OF_ONE && self.known.len() < DESCRIPTORS {
                    self.known.push((pid, fd));
                    own += 1;
                } else {
                    self.left_out += 1;
                }
            }
        }
    }
}

/// What is said of a descriptor, if it is of a client of a driver that counts.
fn client(proc: &Proc, pid: u32, fd: u32) -> Option<Client> {
    let file = File::open(proc.path(format!("{pid}/fdinfo/{fd}"))).ok()?;
    let mut bytes = Vec::new();
    file.take(TEXT).read_to_end(&mut bytes).ok()?;
    Client::parse(&String::from_utf8_lossy(&bytes))
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut reader = Reader::new(Proc::default());
    let round = move |readings: &SyncSender<Reading>| readings.send(reader.read());
    let reads = Rounds::start("gpuwhy-drm", "the clients of GPUs", (EVERY, 16), round)?;
    let rows = ClientRows { source: start.source, ..ClientRows::default() };
    Ok(Box::new(Polled { reads, rows }))
}

/// What a client was last said to have.
#[derive(Debug)]
struct Known {
    pid: u32,
    client: Client,
    at: Ns,
}

/// Makes rows of readings.
#[derive(Debug, Default)]
struct ClientRows {
    source: SourceId,
    clients: HashMap<Key, Known>,
    /// By engine: all processes together.
    engines: HashMap<EntityId, DeltaCounter>,
    /// By process and engine.
    processes: HashMap<(u32, EntityId), DeltaCounter>,
    /// By process and device, the bytes that were last written.
    memory: HashMap<(u32, EntityId), u64>,
    written: u64,
    left_out: u64,
}

impl Readings for ClientRows {
    type Reading = Reading;

    fn take(&mut self, reading: Reading, cx: &mut Context) {
        let half = Ns(reading.after.saturating_sub(reading.before).0.max(0) / 2);
        let ts = reading.before.saturating_add(half);
        self.left_out = self.left_out.max(reading.left_out);
        let mut had: HashMap<(u32, EntityId), u64> = HashMap::new();
        let mut holds: HashMap<(u32, EntityId), u64> = HashMap::new();
        let mut still = HashMap::new();
        for (key, (pid, client)) in reading.clients {
            let gpu = gpu(&client, cx);
            let known = self.clients.remove(&key);
            if known.as_ref().is_none_or(|known| known.pid != pid) {
                self.met(pid, &client, ts, cx);
            }
            for engine in &client.engines {
                let entity = engine_entity(gpu, engine, cx);
                let before = known.as_ref().and_then(|known| {
                    let mut all = known.client.engines.iter();
                    Some((all.find(|one| one.engine == engine.engine)?, known.at))
                });
                let added = before.map_or(0, |(one, at)| added(one, engine, ts.saturating_sub(at)));
                *had.entry((pid, entity)).or_default() += added;
            }
            if let Some(bytes) = client.device_memory {
                *holds.entry((pid, gpu)).or_default() += bytes;
            }
            let client = merged(known.map(|known| known.client), client);
            still.insert(key, Known { pid, client, at: ts });
        }
        self.clients = still;
        self.write_times(&had, ts, cx);
        self.write_memory(holds, ts, cx);
    }

    fn recorded(&self) -> u64 {
        self.written
    }

    fn dropped(&self) -> u64 {
        self.left_out
    }
}

impl ClientRows {
    /// A client of a process that did not have it before: whose it is.
    fn met(&mut self, pid: u32, client: &Client, ts: Ns, cx: &mut Context) {
        let process = cx.process(pid, None);
        let track = cx.catalog.track(process, None, Lane::marks(names::DRM_CLIENTS), self.source);
        let name = format!("client of {}", device(client)).as_str().into();
        let id = cx.ids.next_id();
        cx.rows.mark.push(Mark { id, ts, track, name, value: Some(client.id as f64) });
        self.written += 1;
    }

    fn write_times(&mut self, had: &HashMap<(u32, EntityId), u64>, ts: Ns, cx: &mut Context) {
        let source = self.source;
        let mut all: BTreeMap<EntityId, u64> = BTreeMap::new();
        for (&(_, engine), ns) in had {
            *all.entry(engine).or_default() += ns;
        }
        let before = cx.rows.counter.len();
        for (engine, ns) in all {
            let track = || engine_track(engine, source, &mut cx.catalog);
            self.engines.entry(engine).or_default().add(ns, ts, &mut cx.rows, track);
        }
        let mut ordered: Vec<_> = had.iter().collect();
        ordered.sort_unstable();
        for (&(pid, engine), &ns) in ordered {
            let track = || {
                let process = cx.attribution.process(&mut cx.catalog, pid, None);
                share_track(process, engine, source, &mut cx.catalog)
            };
            let counter = self.processes.entry((pid, engine)).or_default();
            counter.add(ns, ts, &mut cx.rows, track);
        }
        // Whoever has gone uses nothing any more.
        self.processes.retain(|key, counter| {
            let stays = had.contains_key(key);
            if !stays && counter.is_moving() {
                counter.add(0, ts, &mut cx.rows, TrackId::default);
            }
            stays
        });
        self.written += (cx.rows.counter.len() - before) as u64;
    }

    fn write_memory(&mut self, mut holds: HashMap<(u32, EntityId), u64>, ts: Ns, cx: &mut Context) {
        for key in self.memory.keys() {
            holds.entry(*key).or_insert(0);
        }
        let mut ordered: Vec<_> = holds.into_iter().collect();
        ordered.sort_unstable();
        for (key @ (pid, gpu), bytes) in ordered {
            if self.memory.get(&key) == Some(&bytes) {
                continue;
            }
            let lane = Lane::counter(names::GPU_MEMORY_USED, "By", Measure::Gauge);
            let parent = cx.catalog.track(gpu, None, lane, self.source);
            let process = cx.process(pid, None);
            let lane = Lane::counter(names::PROCESS_GPU_MEMORY, "By", Measure::Gauge);
            let track = cx.catalog.track(process, Some(parent), lane, self.source);
            cx.rows.counter.push(Counter { ts, track, value: bytes as f64 });
            self.written += 1;
            match bytes {
                0 => self.memory.remove(&key),
                _ => self.memory.insert(key, bytes),
            };
        }
    }
}

/// The device of a client, in words.
fn device(client: &Client) -> String {
    format!("{} {}", client.driver, client.device).trim_end().to_owned()
}

fn gpu(client: &Client, cx: &mut Context) -> EntityId {
    device_entity(&device(client), cx)
}

/// A device by its driver and number, in words.
pub(super) fn device_entity(name: &str, cx: &mut Context) -> EntityId {
    let host = cx.host;
    cx.catalog.entity(EntityKind::Gpu, &format!("drm:{name}"), |e| {
        e.parent = Some(host);
        e.name = name.into();
    })
}

fn engine_entity(gpu: EntityId, engine: &EngineTime, cx: &mut Context) -> EntityId {
    engine_of(gpu, &engine.engine, engine.capacity.unwrap_or(1), cx)
}

/// So many alike engines of a device.
pub(super) fn engine_of(gpu: EntityId, name: &str, engines: u32, cx: &mut Context) -> EntityId {
    let of = cx.catalog.get(gpu).map_or_else(String::new, |e| e.key.to_string());
    cx.catalog.entity(EntityKind::Engine, &format!("{of}/{name}"), |e| {
        e.parent = Some(gpu);
        e.name = name.into();
        e.number = Some(i64::from(engines));
    })
}

/// The track of what somebody had of an engine.
pub(super) fn share_track(
    of: EntityId,
    engine: EntityId,
    source: SourceId,
    catalog: &mut Lanes,
) -> TrackId {
    let parent = engine_track(engine, source, catalog);
    let lane = Lane::counter(names::PROCESS_ENGINE_TIME, "ns", Measure::Delta);
    catalog.track(of, Some(parent), lane, source)
}

fn engine_track(engine: EntityId, source: SourceId, catalog: &mut Lanes) -> TrackId {
    let lane = Lane::counter(names::ENGINE_TIME, "ns", Measure::Delta);
    catalog.track(engine, None, lane, source)
}

/// Time on an engine since the reading before, `passed` ago, ns. A count that goes back stands still until it has caught
/// up, as the kernel's documentation asks for.
fn added(before: &EngineTime, now: &EngineTime, passed: Ns) -> u64 {
    let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
    if let Some(ns) = since(now.time, before.time) {
        return ns;
    }
    let cycles = since(now.cycles, before.cycles).unwrap_or(0);
    let total = since(now.total_cycles, before.total_cycles).unwrap_or(0);
    if total == 0 {
        return 0;
    }
    (cycles as f64 / total as f64 * passed.0.max(0) as f64) as u64
}

/// What a client has had, where counts do not go back.
fn merged(before: Option<Client>, mut now: Client) -> Client {
    for engine in &mut now.engines {
        let mut all = before.iter().flat_map(|client| &client.engines);
        let Some(old) = all.find(|one| one.engine == engine.engine) else { continue };
        engine.time = engine.time.max(old.time);
        engine.cycles = engine.cycles.max(old.cycles);
        engine.total_cycles = engine.total_cycles.max(old.total_cycles);
    }
    now
}

#[cfg(test)]
mod tests;
