//! What the drivers of GPUs said around an incident, as evidence.
//!
//! # What it sees
//! Clocks, the time that they were held down and why, the links' errors, who used the
//! multiprocessors, and Xids: before an incident and during it.
//!
//! # Why it matters
//! Accounting says that kernels took longer, and how much of that a lowered clock explains. Why the
//! clock was lowered (power, heat, the board), that a link sends packets again, and which error the
//! GPU reported, only its driver says; and that nothing of it changed is evidence too.
//!
//! # What fools it
//! A driver's readings are up to 0.2 s late (clocks, polled ten times a second), a second (users) or
//! 0.17 s (utilisation), so that an incident shorter than that may have none.
//!
//! # Example
//! `gpu 0: held down by its power cap for 1.94 s of 2.0 s, and its clock was 1185 MHz, 1980 before`

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::{Class, Counter, Entity, EntityId, Mark, Ns, Track, TrackId, names};

use crate::stats;
use crate::verdict::{Evidence, Pointer};

/// So long before an incident is what it is compared with.
const BEFORE: Ns = Ns::secs(10);
/// A reading holds until the next one, which may be this far apart.
const APART: Ns = Ns::secs(2);
/// Drivers' readings come so late.
const LATE: Ns = Ns::millis(300);
/// A clock below this share of what it was is lowered.
const LOWERED: f64 = 0.98;
/// So much of an incident's time a clock is lowered that has to do with it: incidents take up what
/// happens near them.
const LOWERED_FOR: f64 = 0.2;
/// GPUs that are spoken of.
const MOST: usize = 4;

/// Why a clock was held down, by the counter that says for how long.
const HELD_DOWN: &[(&str, &str)] = &[
    (names::THROTTLED_POWER, "its power cap"),
    (names::THROTTLED_THERMAL, "its temperature"),
    (names::THROTTLED_SW_THERMAL, "the driver, to cool it"),
    (names::THROTTLED_HW_THERMAL, "the hardware, to cool it"),
    (names::THROTTLED_POWER_BRAKE, "the power supply's brake"),
    (names::THROTTLED_SYNC_BOOST, "the clocks of others in its group"),
    (names::THROTTLED_BOARD, "a limit of its board"),
    (names::THROTTLED_RELIABILITY, "its voltage limit"),
];

/// Errors of the link, by the counter that counts them.
const LINK: &[(&str, &str)] = &[
    (names::PCIE_REPLAY, "packets were sent again over PCIe"),
    (names::PCIE_RECOVERY, "times its PCIe link left service to recover"),
    (names::PCIE_CORRECTABLE, "errors of its PCIe link were corrected"),
    (names::PCIE_NON_FATAL, "errors of its PCIe link were not corrected"),
];

/// The numbers that NVIDIA's driver gives its errors, as far as their meaning helps
/// (docs.nvidia.com/deploy/xid-errors).
pub fn xid(number: i64) -> &'static str {
    match number {
        13 => "an exception of the graphics engine: a fault of the program, mostly",
        31 => "a page fault: the program touched memory that is not its own",
        43 => "a program's work was stopped after a fault of its own",
        45 => "a program's work was cleared away",
        48 => "an error of its memory that could not be corrected",
        61 | 62 => "its microcontroller halted",
        63 => "a row of its memory will be replaced",
        64 => "a row of its memory could not be replaced",
        74 => "an error of NVLink",
        79 => "it fell off the bus",
        92 => "many errors of its memory were corrected",
        94 => "an error of its memory, contained: one program lost",
        95 => "an error of its memory, not contained: the GPU must be reset",
        119 | 120 => "its system processor does not answer",
        _ => "see NVIDIA's list of Xids",
    }
}

/// What drivers said, by GPU.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    gpus: BTreeMap<EntityId, Gpu>,
}

#[derive(Clone, Debug, Default)]
struct Gpu {
    name: String,
    /// Readings by the track's name.
    counters: HashMap<String, (TrackId, Vec<(Ns, f64)>)>,
    /// Who used it: name, and readings.
    users: BTreeMap<EntityId, User>,
    /// Xids and losses.
    events: Vec<(Ns, TrackId, String, Option<f64>)>,
}

#[derive(Clone, Debug)]
struct User {
    name: String,
    track: TrackId,
    readings: Vec<(Ns, f64)>,
}

impl Readings {
    /// Whether a track has readings that matter here.
    pub fn wants(track: &Track) -> bool {
        let name = &*track.name;
        matches!(
            name,
            names::SM_CLOCK
                | names::PROCESS_SM_UTILIZATION
                | names::GPU_EVENTS
                | names::PCIE_LINK_GEN
                | names::PCIE_LINK_GEN_MAX
                | names::PCIE_LINK_WIDTH
                | names::PCIE_LINK_WIDTH_MAX
                | names::GPU_TEMPERATURE
                | names::GPU_POWER
        ) || HELD_DOWN.iter().chain(LINK).any(|(counter, _)| *counter == name)
    }

    /// The time from which readings matter for an incident that lasted so.
    pub fn around(from: Ns, to: Ns) -> std::ops::Range<Ns> {
        from.saturating_sub(BEFORE).saturating_sub(APART)..to.saturating_add(Ns::secs(1))
    }

    /// Takes readings of tracks that [`Readings::wants`]; others are passed over.
    pub fn new<'a>(
        entities: impl IntoIterator<Item = &'a Entity>,
        tracks: impl IntoIterator<Item = &'a Track>,
        counters: &[Counter],
        marks: &[Mark],
    ) -> Readings {
        let entities: HashMap<EntityId, &Entity> =
            entities.into_iter().map(|e| (e.id, e)).collect();
        let all: HashMap<TrackId, &Track> = tracks.into_iter().map(|t| (t.id, t)).collect();
        let called = |id: EntityId| {
            entities.get(&id).map_or_else(|| format!("entity {}", id.0), |e| e.name.to_string())
        };
        let mut readings = Readings::default();
        for row in counters {
            let Some(track) = all.get(&row.track).filter(|t| Readings::wants(t)) else { continue };
            if &*track.name == names::PROCESS_SM_UTILIZATION {
                let Some(on) = track.parent.and_then(|p| all.get(&p)).map(|t| t.entity) else {
                    continue;
                };
                let gpu = readings.gpu(on, called);
                let user = gpu.users.entry(track.entity).or_insert_with(|| {
                    let pid = entities.get(&track.entity).and_then(|e| e.number).unwrap_or(-1);
                    let name = format!("{} (pid {pid})", called(track.entity));
                    User { name, track: track.id, readings: Vec::new() }
                });
                user.readings.push((row.ts, row.value));
            } else {
                let gpu = readings.gpu(track.entity, called);
                let counter = gpu.counters.entry(track.name.to_string());
                counter.or_insert((track.id, Vec::new())).1.push((row.ts, row.value));
            }
        }
        for mark in marks {
            let Some(track) = all.get(&mark.track).filter(|t| &*t.name == names::GPU_EVENTS) else {
                continue;
            };
            let gpu = readings.gpu(track.entity, called);
            gpu.events.push((mark.ts, track.id, mark.name.to_string(), mark.value));
        }
        for gpu in readings.gpus.values_mut() {
            gpu.counters.values_mut().for_each(|c| c.1.sort_by_key(|r| r.0));
            gpu.users.values_mut().for_each(|u| u.readings.sort_by_key(|r| r.0));
            gpu.events.sort_by_key(|e| e.0);
        }
        readings
    }

    /// Whether the clock of a GPU was lower in `[from, to)` than before; none if no clock was told.
    pub fn is_lowered(&self, from: Ns, to: Ns) -> Option<bool> {
        let (before, during) =
            ((from.saturating_sub(BEFORE), from), (from, to.saturating_add(LATE)));
        let clocks = self.gpus.values().filter_map(|gpu| gpu.counter(names::SM_CLOCK));
        let lowered = clocks.filter_map(|(_, clock)| Lowered::of(clock, before, during));
        lowered.map(|clock| clock.matters()).reduce(|any, one| any || one)
    }

    fn gpu(&mut self, id: EntityId, called: impl Fn(EntityId) -> String) -> &mut Gpu {
        let name = || Gpu { name: called(id), ..Gpu::default() };
        self.gpus.entry(id).or_insert_with(name)
    }

    /// What speaks for a class and what against it, of an incident in `[from, to)`.
    pub fn evidence(&self, class: Class, from: Ns, to: Ns) -> (Vec<Evidence>, Vec<Evidence>) {
        let mut of = Testimony {
            before: (from.saturating_sub(BEFORE), from),
            during: (from, to.saturating_add(LATE)),
            speaks_for: Vec::new(),
            speaks_against: Vec::new(),
        };
        for gpu in self.gpus.values().take(MOST) {
            match class {
                Class::GpuThrottling => of.throttling(gpu),
                Class::GpuContention => of.users(gpu),
                Class::Pcie => of.link(gpu),
                Class::GpuFault => of.faults(gpu),
                _ => {}
            }
        }
        (of.speaks_for, of.speaks_against)
    }
}

struct Testimony {
    before: (Ns, Ns),
    during: (Ns, Ns),
    speaks_for: Vec<Evidence>,
    speaks_against: Vec<Evidence>,
}

/// A clock before an incident and during it.
#[derive(Clone, Copy)]
struct Lowered {
    /// Its median before.
    before: f64,
    /// During it: the median of the readings that were lowered, or of all if none was.
    during: f64,
    /// Which share of its readings was lowered.
    share: f64,
}

impl Lowered {
    fn of(clock: &[(Ns, f64)], before: (Ns, Ns), during: (Ns, Ns)) -> Option<Lowered> {
        let before = median(within(clock, before))?;
        let all = within(clock, during);
        let low: Vec<_> = all.iter().copied().filter(|r| r.1 < LOWERED * before).collect();
        let share = low.len() as f64 / all.len() as f64;
        let during = median(&low).or_else(|| median(all))?;
        Some(Lowered { before, during, share })
    }

    fn matters(&self) -> bool {
        self.share >= LOWERED_FOR
    }
}

type Readout<'a> = (TrackId, &'a [(Ns, f64)]);

impl Gpu {
    fn counter(&self, name: &str) -> Option<Readout<'_>> {
        self.counters.get(name).map(|(track, list)| (*track, &list[..]))
    }
}

impl Testimony {
    fn pointer(&self, table: &'static str, track: TrackId) -> Option<Pointer> {
        let (from, to) = (self.during.0.0, self.during.1.0);
        let track = track.0;
        let sql = format!(
            "select * from '{table}/*.parquet' where ts between {from} and {to} and track = {track}"
        );
        Some(Pointer { table, track: Some(track), from_ns: from, to_ns: to, sql })
    }

    fn say(&mut self, gpu: &Gpu, track: TrackId, table: &'static str, says: String) {
        let rows = self.pointer(table, track);
        self.speaks_for.push(Evidence { says: format!("{}: {says}", gpu.name), rows });
    }

    fn throttling(&mut self, gpu: &Gpu) {
        if let Some((track, clock)) = gpu.counter(names::SM_CLOCK)
            && let Some(clock) = Lowered::of(clock, self.before, self.during)
        {
            let Lowered { before, during, share } = clock;
            let part = match share {
                0.01..0.75 => format!(" for {:.0} % of the time", 100.0 * share),
                _ => String::new(),
            };
            let says = format!("its clock was {during:.0} MHz{part}, {before:.0} MHz before");
            if clock.matters() {
                self.say(gpu, track, "counter", says);
            } else {
                let says = format!("{}: {says}", gpu.name);
                let rows = self.pointer("counter", track);
                self.speaks_against.push(Evidence { says, rows });
            }
        }
        for (name, why) in HELD_DOWN {
            let Some((track, total)) = gpu.counter(name) else { continue };
            let grew = grown(total, self.during);
            let whole = (self.during.1 - self.during.0).0 as f64;
            if grew > 0.01 * whole {
                let says = format!(
                    "its clock was held down by {why} for {:.2} s of {:.2} s",
                    grew / 1e9,
                    whole / 1e9
                );
                self.say(gpu, track, "counter", says);
            }
        }
    }

    fn users(&mut self, gpu: &Gpu) {
        for User { name, track, readings } in gpu.users.values() {
            let (before, during) = (mean(readings, self.before), mean(readings, self.during));
            if let Some(during) = during.filter(|d| *d > before.unwrap_or(0.0) + 1.0) {
                let says = format!(
                    "{name} had {during:.0} % of its multiprocessors, {:.0} % before",
                    before.unwrap_or(0.0)
                );
                self.say(gpu, *track, "counter", says);
            }
        }
    }

    fn link(&mut self, gpu: &Gpu) {
        let mut clean = true;
        for (name, what) in LINK {
            let Some((track, total)) = gpu.counter(name) else { continue };
            let (before, during) = (grown(total, self.before), grown(total, self.during));
            if during > 0.0 {
                clean = false;
                self.say(gpu, track, "counter", format!("{during:.0} {what}, {before:.0} before"));
            }
        }
        for (now, most, what) in [
            (names::PCIE_LINK_GEN, names::PCIE_LINK_GEN_MAX, "at generation"),
            (names::PCIE_LINK_WIDTH, names::PCIE_LINK_WIDTH_MAX, "on lanes"),
        ] {
            let (Some((track, now)), Some((_, most))) = (gpu.counter(now), gpu.counter(most))
            else {
                continue;
            };
            if let (Some(&(_, now)), Some(&(_, most))) = (now.last(), most.last())
                && now < most
            {
                clean = false;
                let says = format!("its PCIe link runs {what} {now:.0} of {most:.0}");
                self.say(gpu, track, "counter", says);
            }
        }
        if clean && gpu.counters.contains_key(names::PCIE_REPLAY) {
            let says = format!("{}: its PCIe link reported no error", gpu.name);
            self.speaks_against.push(Evidence { says, rows: None });
        }
    }

    fn faults(&mut self, gpu: &Gpu) {
        let near = (self.during.0.saturating_sub(Ns::secs(1)), self.during.1);
        let events = gpu.events.iter().filter(|e| e.0 >= near.0 && e.0 < near.1).take(5);
        for (at, track, name, value) in events.collect::<Vec<_>>() {
            let after = *at - self.during.0;
            let says = match (name.as_str(), value) {
                ("xid", Some(number)) => {
                    format!("Xid {number:.0}, {after} after the onset: {}", xid(*number as i64))
                }
                _ => format!("{name}, {after} after the onset"),
            };
            self.say(gpu, *track, "mark", says);
        }
    }
}

fn within(list: &[(Ns, f64)], (from, to): (Ns, Ns)) -> &[(Ns, f64)] {
    let first = list.partition_point(|r| r.0 < from);
    let last = list.partition_point(|r| r.0 < to);
    &list[first..last.max(first)]
}

fn median(list: &[(Ns, f64)]) -> Option<f64> {
    (!list.is_empty()).then(|| stats::quantile(&stats::sorted(list.iter().map(|r| r.1)), 0.5))
}

fn mean(list: &[(Ns, f64)], range: (Ns, Ns)) -> Option<f64> {
    let list = within(list, range);
    (!list.is_empty()).then(|| list.iter().map(|r| r.1).sum::<f64>() / list.len() as f64)
}

/// By how much a total grew. It is told when it changes, so the value before the range counts.
fn grown(list: &[(Ns, f64)], (from, to): (Ns, Ns)) -> f64 {
    let at = |ts: Ns| list[..list.partition_point(|r| r.0 < ts)].last().map(|r| r.1);
    let first = at(from).or(list.first().map(|r| r.1));
    match (first, at(to)) {
        // A driver that was loaded anew counts from zero.
        (Some(first), Some(last)) => (last - first).max(0.0),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{EntityKind, Lane, Lanes, Measure, Rows};

    use super::*;

    struct Scene {
        lanes: Lanes,
        rows: Rows,
        gpu: EntityId,
        source: gpuwhy_schema::SourceId,
    }

    impl Scene {
        fn new() -> Scene {
            let mut lanes = Lanes::default();
            let source = lanes.source("nvml", "test", "0", "");
            let gpu = lanes.entity(EntityKind::Gpu, "GPU-1", |e| e.name = "gpu 0".into());
            Scene { lanes, rows: Rows::default(), gpu, source }
        }

        fn counter(mut self, name: &str, measure: Measure, readings: &[(i64, f64)]) -> Scene {
            let lane = Lane::counter(name, "1", measure);
            let track = self.lanes.track(self.gpu, None, lane, self.source);
            let rows = readings.iter().map(|&(s, value)| Counter { ts: Ns::secs(s), track, value });
            self.rows.counter.extend(rows);
            self
        }

        /// What is said for and against a class of an incident from 10 to 12 s.
        fn check(mut self, class: Class, speaks_for: &[&str], against: &[&str]) {
            self.lanes.drain(&mut self.rows);
            let Rows { entity, track, counter, mark, .. } = &self.rows;
            let readings = Readings::new(entity, track, counter, mark);
            let (yes, no) = readings.evidence(class, Ns::secs(10), Ns::secs(12));
            let text = |list: &[Evidence]| list.iter().map(|e| e.says.clone()).collect::<Vec<_>>();
            assert_eq!(text(&yes), speaks_for);
            assert_eq!(text(&no), against);
        }
    }

    #[test]
    fn a_lowered_clock_and_who_held_it_down() {
        Scene::new()
            .counter(names::SM_CLOCK, Measure::Gauge, &[(8, 1980.0), (9, 1980.0), (11, 1185.0)])
            .counter(names::THROTTLED_POWER, Measure::Total, &[(1, 5e9), (12, 6.9e9)])
            .check(
                Class::GpuThrottling,
                &[
                    "gpu 0: its clock was 1185 MHz, 1980 MHz before",
                    "gpu 0: its clock was held down by its power cap for 1.90 s of 2.30 s",
                ],
                &[],
            );
    }

    #[test]
    fn a_clock_that_was_lowered_for_a_part_of_a_longer_incident() {
        let mut readings = vec![(8, 1980.0), (9, 1980.0)];
        // Ten to twelve s is the incident.
        readings.extend([(10, 1980.0), (11, 990.0)]);
        Scene::new().counter(names::SM_CLOCK, Measure::Gauge, &readings).check(
            Class::GpuThrottling,
            &["gpu 0: its clock was 990 MHz for 50 % of the time, 1980 MHz before"],
            &[],
        );
    }

    #[test]
    fn a_clock_that_did_not_change_speaks_against_throttling() {
        Scene::new().counter(names::SM_CLOCK, Measure::Gauge, &[(8, 1980.0), (11, 1980.0)]).check(
            Class::GpuThrottling,
            &[],
            &["gpu 0: its clock was 1980 MHz, 1980 MHz before"],
        );
    }

    #[test]
    fn a_clock_is_lowered_or_not_or_nobody_knows() {
        let is_lowered = |during: f64| {
            let mut scene = Scene::new().counter(
                names::SM_CLOCK,
                Measure::Gauge,
                &[(8, 1980.0), (9, 1980.0), (11, during)],
            );
            scene.lanes.drain(&mut scene.rows);
            let Rows { entity, track, counter, mark, .. } = &scene.rows;
            Readings::new(entity, track, counter, mark).is_lowered(Ns::secs(10), Ns::secs(12))
        };
        assert_eq!(is_lowered(1185.0), Some(true));
        assert_eq!(is_lowered(1975.0), Some(false));
        assert_eq!(Readings::default().is_lowered(Ns::secs(10), Ns::secs(12)), None);
    }

    #[test]
    fn a_link_that_sends_again_and_one_that_is_clean() {
        Scene::new()
            .counter(names::PCIE_REPLAY, Measure::Total, &[(1, 7.0), (11, 5319.0)])
            .counter(names::PCIE_LINK_GEN, Measure::Gauge, &[(1, 3.0)])
            .counter(names::PCIE_LINK_GEN_MAX, Measure::Gauge, &[(1, 5.0)])
            .check(
                Class::Pcie,
                &[
                    "gpu 0: 5312 packets were sent again over PCIe, 0 before",
                    "gpu 0: its PCIe link runs at generation 3 of 5",
                ],
                &[],
            );
        Scene::new().counter(names::PCIE_REPLAY, Measure::Total, &[(1, 7.0)]).check(
            Class::Pcie,
            &[],
            &["gpu 0: its PCIe link reported no error"],
        );
    }

    #[test]
    fn an_xid_says_what_it_is() {
        let mut scene = Scene::new();
        let lane = Lane::marks(names::GPU_EVENTS);
        let track = scene.lanes.track(scene.gpu, None, lane, scene.source);
        let (id, value) = (gpuwhy_schema::Id(1), Some(79.0));
        let ts = Ns::millis(10_100);
        scene.rows.mark.push(Mark { id, ts, track, name: "xid".into(), value });
        scene.check(
            Class::GpuFault,
            &["gpu 0: Xid 79, 100.000 ms after the onset: it fell off the bus"],
            &[],
        );
    }
}
