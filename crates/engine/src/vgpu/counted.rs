//! Who had how much of a GPU by what its driver counts or samples, and how GPUs are shared.
//!
//! Counts say how much, and not who waited for whom: that takes the events of requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpuwhy_derive::vgpu::Model;
use gpuwhy_derive::vgpu::request::TenantKey;
use gpuwhy_schema::{Counter, Entity, EntityId, EntityKind, Mark, Ns, Rows, Track, TrackId, names};
use serde::Serialize;

use super::percent_of;
use crate::error::Result;
use crate::source::TraceSource;

/// What MPS calls the process through which others use a GPU.
const MPS: &str = "nvidia-cuda-mps-";

/// How much of a GPU a process, or a software runlist of virtual GPUs, had in the window, as its driver counts or samples it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CountedReport {
    /// The GPU.
    pub gpu: String,
    /// The engine, or the kind of several alike; `None` where the driver tells none apart.
    pub engine: Option<String>,
    /// The process: name and pid.
    pub process: String,
    /// Its use, % of the window; where there are several engines of the kind, of all of them.
    pub utilisation: f64,
    /// How long it had an engine, ms, where the driver counts it.
    pub busy_ms: Option<f64>,
    /// From what the number is: `context switches`, `counter`, which misses nothing either, or `sampled`.
    pub provenance: &'static str,
    /// Between two readings, s: the median. A number may be off by what was had in so long at each border of the window.
    pub every_s: f64,
    /// Readings in the window.
    pub readings: usize,
    /// What a library in its container lets it have, if there is one (HAMi).
    pub limit: Option<LimitReport>,
    /// Its turns, where each is known.
    pub turns: Option<TurnsReport>,
}

/// The turns of a process on an engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TurnsReport {
    /// How many.
    pub turns: usize,
    /// How long they are, ms: the median.
    pub p50_ms: f64,
    /// What 99 % do not exceed.
    pub p99_ms: f64,
}

/// What a library in a container lets its processes have of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LimitReport {
    /// Of the multiprocessors, %: at the end of the window. 100 is no limit.
    pub sm: f64,
    /// For which share of the window launches were held back for a container that goes first, %.
    pub held_back: f64,
}

/// How a GPU is shared, and what can be known then.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharingReport {
    /// The GPU, by its name or the number of its device.
    pub gpu: String,
    /// The scheme.
    pub scheme: &'static str,
    /// What is known of each tenant under it, and what is not.
    pub permits: &'static str,
}

/// Tracks of processes under those of engines and GPUs.
struct Share<'a> {
    process: &'a Entity,
    /// The engine, or the GPU where the driver tells none apart.
    on: &'a Entity,
    counts: bool,
    /// Time and value of the readings in the window.
    readings: Readings,
    limit: Option<LimitReport>,
}

/// Time and value.
type Readings = Vec<(i64, f64)>;

/// Limits are read when they change, and each ten seconds.
const LIMITS_EVERY: i64 = 10_000_000_000;

/// Entities and tracks of a trace, by their ids.
pub(super) struct Known<'a> {
    pub entities: HashMap<EntityId, &'a Entity>,
    pub tracks: HashMap<TrackId, &'a Track>,
}

impl<'a> Known<'a> {
    pub fn of(rows: &'a Rows) -> Known<'a> {
        Known {
            entities: rows.entity.iter().map(|one| (one.id, one)).collect(),
            tracks: rows.track.iter().map(|one| (one.id, one)).collect(),
        }
    }

    /// The process of a track and what its parent track is of.
    fn share(&self, track: &Track) -> Option<(&'a Entity, &'a Entity)> {
        let parent = self.tracks.get(&track.parent?)?;
        Some((self.entities.get(&track.entity)?, self.entities.get(&parent.entity)?))
    }

    /// What something is called.
    pub fn name(&self, id: Option<EntityId>) -> String {
        let entity = id.and_then(|id| self.entities.get(&id));
        entity.map_or_else(|| "not known".to_owned(), |one| one.name.to_string())
    }
}

/// The GPU that an engine is of, or that something is itself.
fn gpu_of(on: &Entity) -> EntityId {
    on.parent.filter(|_| on.kind == EntityKind::Engine).unwrap_or(on.id)
}

/// A process by its name and pid.
pub(super) fn process(one: &Entity) -> String {
    one.number.map_or_else(|| one.name.to_string(), |pid| format!("{} ({pid})", one.name))
}

/// Who had how much within the window.
pub(super) fn counted(source: &TraceSource, window: (i64, i64)) -> Result<Vec<CountedReport>> {
    let known = Known::of(source.entities_and_tracks());
    let mut shares: BTreeMap<TrackId, Share<'_>> = BTreeMap::new();
    // Limits of a process on a GPU, and when it was held back.
    let mut limits: BTreeMap<TrackId, (EntityId, EntityId, bool, Readings)> = BTreeMap::new();
    for track in known.tracks.values() {
        let held = &*track.name == names::PROCESS_HELD_BACK;
        if held || &*track.name == names::PROCESS_SM_LIMIT {
            if let Some((process, gpu)) = known.share(track) {
                limits.insert(track.id, (process.id, gpu.id, held, Vec::new()));
            }
            continue;
        }
        let counts = &*track.name == names::PROCESS_ENGINE_TIME;
        if !counts && &*track.name != names::PROCESS_SM_UTILIZATION {
            continue;
        }
        if let Some((process, on)) = known.share(track) {
            let (readings, limit) = (Vec::new(), None);
            shares.insert(track.id, Share { process, on, counts, readings, limit });
        }
    }
    if shares.is_empty() {
        return Ok(Vec::new());
    }
    for rows in source.trace().read::<Counter>(Ns(window.0)..Ns(window.1)) {
        for row in rows? {
            let limit = limits.get_mut(&row.track).map(|(_, _, _, readings)| readings);
            let readings = shares.get_mut(&row.track).map(|share| &mut share.readings).or(limit);
            if let Some(readings) = readings {
                readings.push((row.ts.0, row.value));
            }
        }
    }
    for (process, gpu, held, mut readings) in limits.into_values() {
        readings.sort_by_key(|(ts, _)| *ts);
        let Some((_, last)) = readings.last().copied() else { continue };
        let of = |share: &&mut Share<'_>| share.process.id == process && gpu_of(share.on) == gpu;
        for share in shares.values_mut().filter(of) {
            let limit = share.limit.get_or_insert(LimitReport { sm: 100.0, held_back: 0.0 });
            match held {
                true => limit.held_back = 100.0 * mean(&readings, LIMITS_EVERY),
                false => limit.sm = last,
            }
        }
    }
    let mut out: Vec<CountedReport> =
        shares.into_values().filter_map(|share| share.report(&known, window)).collect();
    in_order(&mut out);
    Ok(out)
}

/// Puts those of an engine together, who had most of it first.
pub(super) fn in_order(of: &mut [CountedReport]) {
    of.sort_by(|a, b| {
        let place = |one: &CountedReport| (one.gpu.clone(), one.engine.clone());
        place(a).cmp(&place(b)).then(b.utilisation.total_cmp(&a.utilisation))
    });
}

impl Share<'_> {
    fn report(mut self, known: &Known<'_>, window: (i64, i64)) -> Option<CountedReport> {
        self.readings.sort_by_key(|(ts, _)| *ts);
        if self.readings.is_empty() {
            return None;
        }
        let mut gaps: Vec<i64> = self.readings.windows(2).map(|w| w[1].0 - w[0].0).collect();
        gaps.sort_unstable();
        let every = gaps.get(gaps.len() / 2).copied().unwrap_or(window.1 - window.0);
        let (utilisation, busy) = if self.counts {
            let busy: f64 = self.readings.iter().map(|(_, ns)| ns).sum();
            let engines = self.on.number.unwrap_or(1).max(1) as f64;
            (percent_of(busy / engines, window), Some(busy / super::MS))
        } else {
            (mean(&self.readings, every), None)
        };
        let (gpu, engine) = match self.on.kind {
            EntityKind::Engine => (known.name(self.on.parent), Some(self.on.name.to_string())),
            _ => (self.on.name.to_string(), None),
        };
        Some(CountedReport {
            gpu,
            engine,
            process: process(self.process),
            utilisation,
            busy_ms: busy,
            provenance: if self.counts { "counter" } else { "sampled" },
            every_s: every as f64 / 1e9,
            readings: self.readings.len(),
            limit: self.limit,
            turns: None,
        })
    }
}

/// The mean of samples, of which there are some: each holds until the next one, and no longer than twice as long as usual.
fn mean(readings: &[(i64, f64)], every: i64) -> f64 {
    let (mut sum, mut time) = (0.0, 0.0);
    for (i, (ts, value)) in readings.iter().enumerate() {
        let next = readings.get(i + 1).map_or(ts + every, |(next, _)| *next);
        let held = (next - ts).min(2 * every) as f64;
        sum += value * held;
        time += held;
    }
    if time > 0.0 { sum / time } else { readings[0].1 }
}

/// Whose the clients of drivers are, as marks tell.
pub(super) struct Clients<'a> {
    /// The processes of the tracks of such marks.
    tracks: HashMap<TrackId, &'a Entity>,
    /// By their numbers.
    pub names: BTreeMap<i64, String>,
}

impl<'a> Clients<'a> {
    pub fn of(source: &'a TraceSource) -> Clients<'a> {
        let known = Known::of(source.entities_and_tracks());
        let told = known.tracks.values().filter(|track| &*track.name == names::DRM_CLIENTS);
        let process = |track: &&Track| Some((track.id, *known.entities.get(&track.entity)?));
        Clients { tracks: told.filter_map(process).collect(), names: BTreeMap::new() }
    }

    /// A mark, of whatever track.
    pub fn mark(&mut self, mark: &Mark) {
        if let (Some(one), Some(id)) = (self.tracks.get(&mark.track), mark.value) {
            self.names.entry(id as i64).or_insert_with(|| process(one));
        }
    }
}

const GVT: (&str, &str) = (
    "mediated device (GVT-g)",
    "exact intervals of requests by virtual GPU, waits and their causes, slices and debts; memory within a guest is not known",
);
const SCHEDULER: (&str, &str) = (
    "time-slicing by the driver's scheduler",
    "exact intervals of requests by client, waits and their causes",
);
const ONE: (&str, &str) = ("whole, to one process", "its use; nobody else waits");
const SEVERAL: (&str, &str) = (
    "time-slicing between processes",
    "use and memory by process, counted or sampled; who waited for whom is not known without events of the driver",
);
const TURNS: (&str, &str) = (
    "time-slicing between processes, each turn logged",
    "whose context had the GPU from when to when; one keeps it until another one wants it, so that a turn may be idle at its end",
);
const MIG: (&str, &str) = (
    "slices of the hardware (MIG)",
    "memory by slice and process; NVML does not tell how much a slice is used",
);
const VIRTUAL: (&str, &str) = (
    "virtual GPUs of NVIDIA's driver (vGPU)",
    "memory by virtual GPU, and time on the engine by software runlist where the driver's scheduler logs it; which virtual GPU has \
     which runlist, and the processes of guests, are not known to the host",
);
const FUNCTIONS: (&str, &str) = (
    "virtual functions (SR-IOV)",
    "time on each engine by function, counted; which machine has which function, and who waited, are not known: the GPU's firmware \
     schedules",
);
const THROUGH_MPS: (&str, &str) = (
    "shared context (MPS)",
    "use by client, sampled; kernels of several clients run at once, so that shares do not say who waited",
);

const LIMITED: (&str, &str) = (
    "time-slicing between processes with limits in each (HAMi)",
    "use and memory by process, counted or sampled, what each may have, and when it is held back; how long a limit delays a launch is \
     not known",
);

/// How each GPU is shared, as far as the trace tells.
pub(super) fn sharing(source: &TraceSource, model: &Model) -> Vec<SharingReport> {
    let rows = source.entities_and_tracks();
    let known = Known::of(rows);
    let mut out = Vec::new();
    let mut devices: BTreeMap<i64, (bool, usize)> = BTreeMap::new();
    for tenant in &model.tenants {
        let one = devices.entry(tenant.device).or_default();
        one.0 |= matches!(tenant.key, TenantKey::Vgpu(_));
        one.1 += 1;
    }
    for (device, (virtual_gpus, tenants)) in devices {
        let (scheme, permits) = match (virtual_gpus, tenants) {
            (true, _) => GVT,
            (false, 1) => ONE,
            (false, _) => SCHEDULER,
        };
        out.push(SharingReport { gpu: format!("device {device}"), scheme, permits });
    }
    let used =
        [names::PROCESS_ENGINE_TIME, names::PROCESS_SM_UTILIZATION, names::PROCESS_GPU_MEMORY];
    let mut users: HashMap<EntityId, BTreeSet<EntityId>> = HashMap::new();
    let mut limited: BTreeSet<EntityId> = BTreeSet::new();
    for track in rows.track.iter().filter(|track| &*track.name == names::PROCESS_SM_LIMIT) {
        let Some((process, gpu)) = known.share(track) else { continue };
        limited.insert(gpu.id);
        users.entry(gpu.id).or_default().insert(process.id);
    }
    for track in rows.track.iter().filter(|track| used.contains(&&*track.name)) {
        let Some((process, on)) = known.share(track) else { continue };
        users.entry(gpu_of(on)).or_default().insert(process.id);
    }
    let mut gpus: Vec<&Entity> =
        known.entities.values().copied().filter(|one| one.kind == EntityKind::Gpu).collect();
    gpus.sort_by_key(|one| one.id);
    for gpu in gpus {
        let part =
            |kind| known.entities.values().any(|e| e.parent == Some(gpu.id) && e.kind == kind);
        let users = users.get(&gpu.id);
        let has_turns = known.tracks.values().any(|track| {
            let engine = known.entities.get(&track.entity);
            &*track.name == names::ENGINE_OWNER && engine.is_some_and(|e| e.parent == Some(gpu.id))
        });
        let is_mps =
            |id: &EntityId| known.entities.get(id).is_some_and(|e| e.name.starts_with(MPS));
        let whole = gpu.parent.and_then(|id| known.entities.get(&id));
        let is_slice = whole.is_some_and(|e| e.kind == EntityKind::Gpu);
        let (scheme, permits) = match users {
            _ if part(EntityKind::Vgpu) && gpu.key.starts_with("drm:") => FUNCTIONS,
            _ if part(EntityKind::Vgpu) => VIRTUAL,
            _ if part(EntityKind::Gpu) => MIG,
            // What a slice is was said of its GPU.
            None => continue,
            Some(all) if all.iter().any(is_mps) => THROUGH_MPS,
            Some(_) if limited.contains(&gpu.id) => LIMITED,
            Some(all) if all.len() > 1 && has_turns => TURNS,
            Some(all) if all.len() > 1 => SEVERAL,
            Some(_) if is_slice => continue,
            Some(_) => ONE,
        };
        out.push(SharingReport { gpu: gpu.name.to_string(), scheme, permits });
    }
    out
}

#[cfg(test)]
mod tests;
