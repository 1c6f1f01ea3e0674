//! Readings of GPU drivers and of network devices around an incident, and statements made from them.
//!
//! # What it sees
//! Clocks, the time that they were held down and why, the links' errors, who used the
//! multiprocessors, and Xids: before an incident and during it; and how often network devices lost their carrier. Which of them matter, the classes of
//! causes say ([`crate::classes::reads`]).
//!
//! # Why it matters
//! Accounting says that kernels took longer, and how much of that a lowered clock explains. Why the
//! clock was lowered (power, heat, the board), that a link sends packets again, and which error the
//! GPU reported, only its driver says; and that nothing of it changed is evidence too.
//!
//! # What fools it
//! A driver's readings are up to 0.2 s late (clocks, polled ten times a second), a second (users) or
//! 0.17 s (utilisation), so that an incident shorter than that may have none. Carriers are read once a second.
//!
//! # Example
//! `gpu 0: held down by its power cap for 1.94 s of 2.0 s, and its clock was 1185 MHz, 1980 before`

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::{Counter, Entity, EntityId, Mark, Ns, Track, TrackId, names};

use crate::evidence::{Evidence, Pointer, Statements};
use crate::stats;

/// Readings this long before an incident are what those during it are compared with.
const BEFORE: Ns = Ns::secs(10);
/// A reading holds until the next one, which may be this far apart.
const APART: Ns = Ns::secs(2);
/// Readings may arrive this late.
const LATE: Ns = Ns::millis(300);
/// and how often a carrier was lost is read once in this time.
const CARRIER_LATE: Ns = Ns::millis(1_300);
/// A clock below this share of what it was is lowered.
const LOWERED: f64 = 0.98;
/// A clock has to do with an incident if it is lowered for this share of its time: incidents take up
/// what happens near them.
const LOWERED_FOR: f64 = 0.2;

/// A stretch of time, from its begin up to its end.
type Window = (Ns, Ns);

/// Readings of GPU drivers, by GPU.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    gpus: BTreeMap<EntityId, Gpu>,
    /// Network devices.
    links: BTreeMap<EntityId, Link>,
}

/// How often a network device lost its carrier.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// The device.
    pub name: String,
    downs: Series,
}

/// Readings of one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gpu {
    name: String,
    /// Readings by the track's name.
    counters: HashMap<String, Series>,
    users: BTreeMap<EntityId, User>,
    /// By process and engine: how long it had that engine.
    turns: BTreeMap<(EntityId, EntityId), User>,
    events: Vec<Event>,
}

/// Readings of one track, in the order of their time.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// The track.
    pub track: TrackId,
    list: Vec<(Ns, f64)>,
}

/// A process that used a GPU.
#[derive(Clone, Debug)]
pub(crate) struct User {
    /// Its name and pid.
    pub name: String,
    /// Its share of the multiprocessors, percent; or the time that it had an engine since the reading before, ns.
    pub readings: Series,
}

/// An Xid, or the loss of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// When it was recorded.
    pub ts: Ns,
    /// Its track.
    pub track: TrackId,
    /// `xid`, or what the mark is called.
    pub name: String,
    /// The number of the Xid.
    pub value: Option<f64>,
}

impl Readings {
    /// The time from which readings matter for an incident.
    pub fn around(from: Ns, to: Ns) -> std::ops::Range<Ns> {
        from.saturating_sub(BEFORE).saturating_sub(APART)..to.saturating_add(Ns::secs(1))
    }

    /// Takes the readings on tracks for which `reads` holds, as [`crate::classes::reads`] does for those
    /// that some class looks at; others are passed over.
    pub fn new<'a>(
        entities: impl IntoIterator<Item = &'a Entity>,
        tracks: impl IntoIterator<Item = &'a Track>,
        reads: impl Fn(&Track) -> bool,
        counters: &[Counter],
        marks: &[Mark],
    ) -> Readings {
        let mut all = Builder {
            entities: entities.into_iter().map(|e| (e.id, e)).collect(),
            tracks: tracks.into_iter().map(|t| (t.id, t)).collect(),
            readings: Readings::default(),
        };
        for row in counters {
            if let Some(track) = all.tracks.get(&row.track).copied().filter(|t| reads(t)) {
                all.counter(track, row);
            }
        }
        for mark in marks {
            if let Some(track) = all.tracks.get(&mark.track).copied().filter(|t| reads(t)) {
                all.event(track, mark);
            }
        }
        let mut readings = all.readings;
        for gpu in readings.gpus.values_mut() {
            gpu.counters.values_mut().for_each(|c| c.list.sort_by_key(|r| r.0));
            let users = gpu.users.values_mut().chain(gpu.turns.values_mut());
            users.for_each(|u| u.readings.list.sort_by_key(|r| r.0));
            gpu.events.sort_by_key(|e| e.ts);
        }
        readings.links.values_mut().for_each(|link| link.downs.list.sort_by_key(|r| r.0));
        readings
    }

    /// The GPUs that have readings.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.values()
    }

    /// Network devices that lost their carrier in `[from, to)`, and how often.
    pub(crate) fn links_down(&self, from: Ns, to: Ns) -> impl Iterator<Item = (&Link, f64)> {
        let during = (from, to.saturating_add(CARRIER_LATE));
        let downs = move |link: &Link| link.downs.within(during).iter().map(|r| r.1).sum::<f64>();
        self.links.values().map(move |link| (link, downs(link))).filter(|(_, downs)| *downs > 0.0)
    }

    /// Whether the clock of a GPU was lower in `[from, to)` than before; none if no clock was recorded.
    pub fn is_lowered(&self, from: Ns, to: Ns) -> Option<bool> {
        let (before, during) = (before(from), during(from, to));
        let clocks = self.gpus.values().filter_map(|gpu| gpu.counter(names::SM_CLOCK));
        let lowered = clocks.filter_map(|clock| Lowered::of(clock, before, during));
        lowered.map(|clock| clock.matters()).reduce(|any, one| any || one)
    }
}

/// The time that an incident is compared with.
fn before(from: Ns) -> Window {
    (from.saturating_sub(BEFORE), from)
}

/// The time in which readings of an incident arrive.
fn during(from: Ns, to: Ns) -> Window {
    (from, to.saturating_add(LATE))
}

/// Readings while rows are sorted by their GPUs.
struct Builder<'a> {
    entities: HashMap<EntityId, &'a Entity>,
    tracks: HashMap<TrackId, &'a Track>,
    readings: Readings,
}

impl Builder<'_> {
    fn name(&self, id: EntityId) -> String {
        self.entities.get(&id).map_or_else(|| format!("entity {}", id.0), |e| e.name.to_string())
    }

    fn gpu(&mut self, id: EntityId) -> &mut Gpu {
        let name = self.name(id);
        self.readings.gpus.entry(id).or_insert_with(|| Gpu { name, ..Gpu::default() })
    }

    fn counter(&mut self, track: &Track, row: &Counter) {
        let empty = Series { track: track.id, list: Vec::new() };
        if &*track.name == names::NIC_CARRIER_DOWNS {
            let name = self.name(track.entity);
            let link = self.readings.links.entry(track.entity);
            let link = link.or_insert(Link { name, downs: empty });
            return link.downs.list.push((row.ts, row.value));
        }
        // The parent of a process's track is that of the GPU, or of an engine of it.
        let on = track.parent.and_then(|p| self.tracks.get(&p)).map(|t| t.entity);
        let user = || {
            let pid = self.entities.get(&track.entity).and_then(|e| e.number).unwrap_or(-1);
            let name = format!("{} (pid {pid})", self.name(track.entity));
            User { name, readings: empty.clone() }
        };
        let series = if &*track.name == names::PROCESS_SM_UTILIZATION {
            let (Some(gpu), user) = (on, user()) else { return };
            &mut self.gpu(gpu).users.entry(track.entity).or_insert(user).readings
        } else if &*track.name == names::PROCESS_ENGINE_TIME {
            let gpu = on.and_then(|engine| self.entities.get(&engine)).and_then(|e| e.parent);
            let (Some(gpu), Some(engine), user) = (gpu, on, user()) else { return };
            &mut self.gpu(gpu).turns.entry((track.entity, engine)).or_insert(user).readings
        } else {
            self.gpu(track.entity).counters.entry(track.name.to_string()).or_insert(empty)
        };
        series.list.push((row.ts, row.value));
    }

    fn event(&mut self, track: &Track, mark: &Mark) {
        if &*track.name == names::GPU_EVENTS {
            let Mark { ts, value, .. } = *mark;
            let event = Event { ts, track: track.id, name: mark.name.to_string(), value };
            self.gpu(track.entity).events.push(event);
        }
    }
}

impl Link {
    /// The track of its readings.
    pub fn track(&self) -> TrackId {
        self.downs.track
    }
}

impl Gpu {
    /// The readings of a track of this name, if there are any.
    pub fn counter(&self, name: &str) -> Option<&Series> {
        self.counters.get(name)
    }

    /// The processes that used it.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    /// The processes that had one of its engines, one for each.
    pub fn turns(&self) -> impl Iterator<Item = &User> {
        self.turns.values()
    }

    /// Its events in `[from, to)`.
    pub fn events(&self, from: Ns, to: Ns) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.ts >= from && event.ts < to)
    }
}

impl Series {
    fn within(&self, (from, to): Window) -> &[(Ns, f64)] {
        let first = self.list.partition_point(|r| r.0 < from);
        let last = self.list.partition_point(|r| r.0 < to);
        &self.list[first..last.max(first)]
    }

    /// The mean of the readings in a window.
    pub fn mean(&self, window: Window) -> Option<f64> {
        let list = self.within(window);
        (!list.is_empty()).then(|| list.iter().map(|r| r.1).sum::<f64>() / list.len() as f64)
    }

    /// Of times since the reading before, the mean share of what passed, percent; none without any reading in the window. A
    /// reading after a long pause is of about a second.
    pub fn share(&self, window: Window) -> Option<f64> {
        let second = Ns::secs(1);
        let first = self.list.partition_point(|r| r.0 < window.0);
        let within = self.within(window);
        let shares = within.iter().enumerate().map(|(i, (ts, value))| {
            let before = (first + i).checked_sub(1).map(|before| self.list[before].0);
            let passed = before.map(|before| ts.saturating_sub(before)).filter(|ns| *ns <= APART);
            100.0 * value / passed.unwrap_or(second).0.max(1) as f64
        });
        let sum: f64 = shares.map(|share| share.min(100.0)).sum();
        (!within.is_empty()).then(|| sum / within.len() as f64)
    }

    /// By how much a total grew. It is recorded when it changes, so the value before the window counts.
    pub fn growth(&self, (from, to): Window) -> f64 {
        let list = &self.list;
        let at = |ts: Ns| list[..list.partition_point(|r| r.0 < ts)].last().map(|r| r.1);
        let first = at(from).or(list.first().map(|r| r.1));
        match (first, at(to)) {
            // A driver that was loaded anew counts from zero.
            (Some(first), Some(last)) => (last - first).max(0.0),
            _ => 0.0,
        }
    }

    /// The latest reading.
    pub fn last(&self) -> Option<f64> {
        self.list.last().map(|r| r.1)
    }
}

/// A clock before an incident and during it.
#[derive(Clone, Copy)]
pub(crate) struct Lowered {
    /// Its median before.
    pub before: f64,
    /// During it: the median of the readings that were lowered, or of all if none was.
    pub during: f64,
    /// Which share of its readings was lowered.
    pub share: f64,
}

impl Lowered {
    /// Compares a clock's readings in two windows; none if either has none.
    pub fn of(clock: &Series, before: Window, during: Window) -> Option<Lowered> {
        let before = median(clock.within(before))?;
        let all = clock.within(during);
        let low: Vec<_> = all.iter().copied().filter(|r| r.1 < LOWERED * before).collect();
        let share = low.len() as f64 / all.len() as f64;
        let during = median(&low).or_else(|| median(all))?;
        Some(Lowered { before, during, share })
    }

    /// Whether it was lowered for long enough to have to do with the incident.
    pub fn matters(&self) -> bool {
        self.share >= LOWERED_FOR
    }
}

fn median(list: &[(Ns, f64)]) -> Option<f64> {
    (!list.is_empty()).then(|| stats::quantile(&stats::sorted(list.iter().map(|r| r.1)), 0.5))
}

/// Statements about one GPU during one incident.
pub(crate) struct GpuEvidence<'a> {
    gpu: &'a str,
    before: Window,
    during: Window,
    out: &'a mut Statements,
}

impl<'a> GpuEvidence<'a> {
    /// Statements about `gpu` in an incident in `[from, to)`, which are added to `out`.
    pub fn new(gpu: &'a Gpu, from: Ns, to: Ns, out: &'a mut Statements) -> GpuEvidence<'a> {
        GpuEvidence { gpu: &gpu.name, before: before(from), during: during(from, to), out }
    }

    /// The time that the incident is compared with.
    pub fn before(&self) -> Window {
        self.before
    }

    /// The time of the incident, and the time by which its readings are late.
    pub fn during(&self) -> Window {
        self.during
    }

    fn statement(&self, rows: Option<(&'static str, TrackId)>, says: &str) -> Evidence {
        let (from, to) = self.during;
        let rows = rows.map(|(table, track)| Pointer::new(table, Some(track), from, to));
        Evidence { says: format!("{}: {says}", self.gpu), rows }
    }

    /// Something that supports the class, and the table and track of its rows.
    pub fn supports(&mut self, table: &'static str, track: TrackId, says: &str) {
        let statement = self.statement(Some((table, track)), says);
        self.out.supporting.push(statement);
    }

    /// Something that contradicts the class, and the table and track of its rows, if it has any.
    pub fn contradicts(&mut self, rows: Option<(&'static str, TrackId)>, says: &str) {
        let statement = self.statement(rows, says);
        self.out.contradicting.push(statement);
    }
}
