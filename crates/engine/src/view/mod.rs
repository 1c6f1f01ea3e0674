//! The view: a window of a trace as drawable lanes, no more of them and no finer than a screen can
//! show. The report draws them, and a server will; [`page`] adds what a report says around them, and
//! [`export`] writes the same window for the Perfetto UI, row by row.

mod devices;
pub mod export;
pub mod page;
mod profile;

use std::collections::HashMap;

use gpuwhy_diagnose::detect::Step;
use gpuwhy_report::TimeTrack;
use gpuwhy_report::detail::{self, View};
use gpuwhy_schema::{
    Counter, Entity, EntityId, EntityKind, Measure, Ns, Shape, State, Track, names,
};

use crate::analysis::Analysis;
use crate::error::Result;
use crate::source::TraceSource;

/// The most lanes of threads.
const THREADS: usize = 8;
/// The most lanes of counters.
const COUNTERS: usize = 28;
/// The most states of one view: a page is a picture, and beyond this a trace viewer is the better
/// tool.
const STATES: usize = 3_000_000;
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
        let slowed = analysis.incidents.iter().flat_map(|i| &i.slowed).map(|s| s.signature.thread);
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
    let mut by_track: HashMap<_, Vec<State>> = shown.iter().map(|t| (t.id, Vec::new())).collect();
    let mut read = 0;
    for rows in source.trace().read::<State>(window.start()..window.end) {
        for row in rows? {
            if let Some(list) = by_track.get_mut(&row.track) {
                list.push(row);
                read += 1;
            }
        }
        if read > STATES {
            break;
        }
    }
    let mut lanes = Vec::new();
    for track in shown {
        let rows = by_track.get(&track.id).map_or(&[][..], Vec::as_slice);
        if rows.is_empty() {
            continue;
        }
        let lane = if &*track.name == names::OCCUPANT {
            detail::bands(rows, &window.view, |s| match s.value {
                0 => "idle".into(),
                id => labels.of(EntityId(u32::try_from(id).unwrap_or(0))),
            })
        } else {
            detail::thread_states(rows, &window.view)
        };
        let label = track.name.replace('_', " ");
        lanes.push(TimeTrack { group: labels.of(track.entity), label, lane });
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
