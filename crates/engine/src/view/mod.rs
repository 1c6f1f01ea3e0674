//! The view: a window of a trace as drawable lanes, no more of them and no finer than a screen can
//! show. The report draws them, and a server will; [`page`] adds what a report says around them, and
//! [`export`] writes the same window for the Perfetto UI, row by row.

mod devices;
pub mod export;
pub mod page;
mod profile;

use std::collections::HashMap;

use gpuwhy_diagnose::detect::Step;
use gpuwhy_report::detail::{self, Held, View};
use gpuwhy_report::{Interval, Lane, TimeTrack};
use gpuwhy_schema::{
    Counter, Entity, EntityId, EntityKind, Measure, Ns, Shape, State, Table as _, Track, TrackId,
    names,
};
use gpuwhy_store::{Grid, Pyramid};

use crate::analysis::Analysis;
use crate::error::Result;
use crate::source::TraceSource;

/// The most lanes of threads.
const THREADS: usize = 8;
/// The most lanes of counters.
const COUNTERS: usize = 28;
/// States that are read one by one. Of traces with more, a view is made of what they sum up to in columns.
const STATES: u64 = 1_000_000;
/// Counters that are shown, in this order; on a host that has one, the GPU's come first.
const SHOWN_COUNTERS: [&str; 21] = [
    names::SM_CLOCK,
    names::THROTTLED_POWER,
    names::THROTTLED_HW_THERMAL,
    names::THROTTLED_SW_THERMAL,
    names::PROCESS_SM_UTILIZATION,
    names::GPU_POWER,
    names::PCIE_REPLAY,
    names::RUNQ_WAIT,
    "softirq.NET_RX",
    "softirq.BLOCK",
    names::HARDIRQ,
    names::STEAL,
    names::THROTTLED,
    names::DISK_BYTES,
    names::DISK_TIME,
    names::NIC_TX_BYTES,
    names::NIC_QUEUE,
    names::NIC_QUEUE_DELAY,
    names::PAGE_CACHE_EVICTED,
    names::RECLAIM,
    names::SWITCHES,
];

/// A window of a trace, and whose lanes to show in it.
pub struct Window {
    /// From when to when, and which stretches in more detail.
    pub view: View,
    /// The end of the window.
    pub end: Ns,
    /// The threads whose states are shown, most interesting first.
    pub threads: Vec<EntityId>,
}

impl Window {
    /// All of an analysed trace: around the first incident in more detail, and the threads of slowed
    /// steps first.
    pub fn of(analysis: &Analysis) -> Window {
        let steps = &analysis.units.steps;
        // A profile is told as its phases, whether or not steps were found in all of them.
        let phases = || analysis.programs.iter().flat_map(|program| &program.phases);
        let without_steps = || analysis.threads.iter().map(|t| (Ns(t.from_ns), Ns(t.to_ns)));
        let begins = steps.iter().map(|s| s.ts).chain(phases().map(|phase| Ns(phase.from_ns)));
        let begins = begins.chain(without_steps().map(|of| of.0));
        let start = begins.min().unwrap_or(Ns::ZERO);
        let ends = steps.iter().map(|s| s.end()).chain(phases().map(|phase| Ns(phase.to_ns)));
        let end = ends.chain(without_steps().map(|of| of.1)).max().unwrap_or(start);
        let around =
            |from: Ns| (from.saturating_sub(Ns::millis(300)), from.saturating_add(Ns::millis(700)));
        let close: Vec<(Ns, Ns)> =
            analysis.incidents.iter().take(1).map(|i| around(i.from)).collect();
        let slowed = analysis.incidents.iter().flat_map(|i| &i.slowed).flat_map(|s| &s.slow);
        let slowed = slowed.map(|&no| steps[no].thread);
        let mut threads: Vec<EntityId> = Vec::new();
        let busy = analysis.threads.iter().flat_map(|threads| threads.entities.iter().copied());
        for thread in slowed.chain(steps.iter().map(|s: &Step| s.thread)).chain(busy) {
            if threads.len() < THREADS && !threads.contains(&thread) {
                threads.push(thread);
            }
        }
        Window { view: View::new(start, end, &close), end, threads }
    }

    /// The beginning of the window.
    pub fn start(&self) -> Ns {
        self.view.start
    }
}

/// What entities are called in a view.
struct Labels<'a>(HashMap<EntityId, &'a Entity>);

impl Labels<'_> {
    fn of(&self, id: EntityId) -> String {
        self.0.get(&id).map_or(String::new(), |e| match (e.kind, e.number) {
            (EntityKind::Thread | EntityKind::Process, Some(n)) => format!("{} ({n})", e.name),
            (EntityKind::Cpu, Some(n)) => format!("cpu {n}"),
            _ => e.name.to_string(),
        })
    }

    /// Who has a CPU.
    fn occupant(&self, value: i64) -> String {
        match value {
            0 => "idle".into(),
            id => self.of(EntityId(u32::try_from(id).unwrap_or(0))),
        }
    }

    fn track(&self, track: &Track, lane: Lane) -> TimeTrack {
        TimeTrack { group: self.of(track.entity), label: track.name.replace('_', " "), lane }
    }
}

/// The lanes of a window: the states of its threads, who occupied the CPUs, and counters.
///
/// # Errors
/// The trace cannot be read.
pub fn lanes(source: &TraceSource, window: &Window) -> Result<Vec<TimeTrack>> {
    let entities = &source.entities_and_tracks().entity;
    let labels = Labels(entities.iter().map(|e| (e.id, e)).collect());
    let mut lanes = states(source, window, &labels)?;
    lanes.sort_by_key(|lane| lane.label != "thread state");
    lanes.extend(counters(source, window, &labels)?);
    Ok(lanes)
}

fn states(source: &TraceSource, window: &Window, labels: &Labels<'_>) -> Result<Vec<TimeTrack>> {
    let is_shown = |track: &&Track| {
        let of_thread =
            &*track.name == names::THREAD_STATE && window.threads.contains(&track.entity);
        of_thread || &*track.name == names::OCCUPANT
    };
    let tracks = &source.entities_and_tracks().track;
    let shown: Vec<&Track> = tracks.iter().filter(is_shown).collect();
    let known = source.trace().summary();
    let rows = known.tables.iter().find(|one| one.table == State::NAME);
    if rows.is_some_and(|of| of.rows + of.journal_rows > STATES) {
        return held(source, window, labels, &shown);
    }
    let mut by_track: HashMap<_, Vec<State>> = shown.iter().map(|t| (t.id, Vec::new())).collect();
    for rows in source.trace().read::<State>(window.start()..window.end) {
        for row in rows? {
            if let Some(list) = by_track.get_mut(&row.track) {
                list.push(row);
            }
        }
    }
    let mut lanes = Vec::new();
    for track in shown {
        let rows = by_track.get(&track.id).map_or(&[][..], Vec::as_slice);
        if rows.is_empty() {
            continue;
        }
        let lane = if &*track.name == names::OCCUPANT {
            detail::bands(rows, &window.view, |s| labels.occupant(s.value))
        } else {
            detail::thread_states(rows, &window.view)
        };
        lanes.push(labels.track(track, lane));
    }
    Ok(lanes)
}

/// The same from what states sum up to in columns, whatever their number.
fn held(
    source: &TraceSource,
    window: &Window,
    labels: &Labels<'_>,
    shown: &[&Track],
) -> Result<Vec<TimeTrack>> {
    let pyramid = Pyramid::open(source.trace())?;
    let start = window.start();
    let mut by_track: HashMap<TrackId, Vec<(Interval, Vec<Held>)>> = HashMap::new();
    for &during in &window.view.levels {
        let at = |page: i64| start.saturating_add(Ns(page));
        let grid = Grid::new(at(during.from)..at(during.to), detail::COLUMNS / 2);
        let mut columns: HashMap<TrackId, Vec<Held>> =
            shown.iter().map(|t| (t.id, Vec::new())).collect();
        let page = |column| grid.begin(column).saturating_sub(start).0;
        for of_track in columns.values_mut() {
            let column = |n| Interval { from: page(n), to: page(n + 1) };
            *of_track = (0..grid.columns())
                .map(|n| Held { column: column(n), values: Vec::new() })
                .collect();
        }
        pyramid.draw(&grid, |piece| {
            let Some(of_track) = columns.get_mut(&piece.track) else { return };
            if piece.shape != Shape::State {
                return;
            }
            for column in &mut of_track[piece.columns.clone()] {
                match column.values.iter_mut().find(|(value, _)| *value == piece.value) {
                    Some((_, held)) => *held = held.saturating_add(piece.held),
                    None => column.values.push((piece.value, piece.held)),
                }
            }
        })?;
        for (track, columns) in columns {
            by_track.entry(track).or_default().push((during, columns));
        }
    }
    let mut lanes = Vec::new();
    for track in shown {
        let levels = by_track.remove(&track.id).unwrap_or_default();
        let is_empty =
            |(_, columns): &(_, Vec<Held>)| columns.iter().all(|one| one.values.is_empty());
        if levels.iter().all(is_empty) {
            continue;
        }
        let lane = detail::held_bands(levels, |value| match &*track.name {
            names::OCCUPANT => labels.occupant(value),
            _ => detail::state_name(value),
        });
        lanes.push(labels.track(track, lane));
    }
    Ok(lanes)
}

fn counters(source: &TraceSource, window: &Window, labels: &Labels<'_>) -> Result<Vec<TimeTrack>> {
    let place = |t: &Track| SHOWN_COUNTERS.iter().position(|name| *name == &*t.name);
    let tracks = source.entities_and_tracks().track.iter();
    let mut shown: Vec<&Track> =
        tracks.filter(|t| t.shape == Shape::Counter && place(t).is_some()).collect();
    shown.sort_by_key(|t| (place(t), t.parent.is_some(), t.id));
    let mut values: HashMap<_, Vec<Counter>> = shown.iter().map(|t| (t.id, Vec::new())).collect();
    for rows in source.trace().read::<Counter>(window.start()..window.end) {
        for row in rows? {
            if let Some(list) = values.get_mut(&row.track) {
                list.push(row);
            }
        }
    }
    let with_values =
        shown.into_iter().filter_map(|t| Some((t, values.get(&t.id).filter(|v| v.len() > 1)?)));
    let lane = |(track, rows): (&Track, &Vec<Counter>)| TimeTrack {
        group: labels.of(track.entity),
        label: track.name.to_string(),
        lane: detail::counter(
            rows,
            track.measure.unwrap_or(Measure::Gauge),
            track.unit.as_deref().unwrap_or("1"),
            &window.view,
        ),
    };
    Ok(with_values.take(COUNTERS).map(lane).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpuwhy_schema::{Discipline, Lane as Track, Lanes, Rows, ThreadState};
    use gpuwhy_store::{Options, Writer};

    use super::*;

    /// For how long each value is shown, % of a level, by track and level.
    fn shares(lanes: &[TimeTrack]) -> BTreeMap<(String, usize, String), f64> {
        let mut out = BTreeMap::new();
        for lane in lanes {
            let Lane::Bands { values, levels } = &lane.lane else { panic!("states are bands") };
            for (at, level) in levels.iter().enumerate() {
                for band in &level.items {
                    let key = (lane.group.clone(), at, values[band.2 as usize].clone());
                    let share = 100.0 * (band.1 - band.0) as f64 / level.during.len() as f64;
                    *out.entry(key).or_default() += share;
                }
            }
        }
        out
    }

    #[test]
    fn sums_of_columns_look_as_the_states_that_they_are_made_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.trace");
        let mut writer = Writer::create(&path, Options::default()).unwrap();
        let (mut lanes, mut rows) = (Lanes::default(), Rows::default());
        let source = lanes.source("test", "test", "1", "");
        let host = lanes.entity(EntityKind::Host, "host", |_| {});
        let thread = lanes.entity(EntityKind::Thread, "t", |e| e.name = "worker".into());
        let cpu = lanes.entity(EntityKind::Cpu, "c", |e| e.parent = Some(host));
        let lane = |name| Track::states(name, Discipline::Sparse);
        let of_thread = lanes.track(thread, None, lane(names::THREAD_STATE), source);
        let of_cpu = lanes.track(cpu, None, lane(names::OCCUPANT), source);
        lanes.drain(&mut rows);
        // Of each 100 µs the thread runs for 30 and waits for a CPU for 10.
        let codes = [ThreadState::Running, ThreadState::Runnable, ThreadState::Sleep];
        for at in 0..20_000i64 {
            let ts = at * 100_000;
            let mut state = |track, from, dur, value| {
                let (ts, dur) = (Ns(ts + from), Some(Ns(dur)));
                rows.state.push(State { ts, dur, track, value, arg: None });
            };
            for (code, (from, dur)) in
                codes.iter().zip([(0, 30_000), (30_000, 10_000), (40_000, 60_000)])
            {
                state(of_thread, from, dur, code.code());
            }
            state(of_cpu, 0, 30_000, i64::from(thread.0));
            state(of_cpu, 30_000, 70_000, 0);
        }
        writer.append(&mut rows).unwrap();
        writer.finish().unwrap();
        let source = TraceSource::open(&path).unwrap();
        let entities = &source.entities_and_tracks().entity;
        let labels = Labels(entities.iter().map(|e| (e.id, e)).collect());
        let (end, close) = (Ns(2_000_000_000), (Ns(500_000_000), Ns(503_000_000)));
        let window =
            Window { view: View::new(Ns::ZERO, end, &[close]), end, threads: vec![thread] };
        let listed = states(&source, &window, &labels).unwrap();
        let shown: Vec<_> = source.entities_and_tracks().track.iter().collect();
        let summed = held(&source, &window, &labels, &shown).unwrap();
        let (listed, summed) = (shares(&listed), shares(&summed));
        assert_eq!(listed.len(), 10, "5 values in 2 levels: {listed:?}");
        for (key, share) in &listed {
            let other = summed.get(key).copied().unwrap_or(0.0);
            assert!((share - other).abs() < 0.5, "{key:?}: {share} % and {other} %");
        }
    }
}
