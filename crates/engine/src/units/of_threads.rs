//! Units that single threads have, of whatever kind: which of them a process is judged by.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use gpuwhy_derive::busy_periods::Period;
use gpuwhy_diagnose::detect::Step;
use gpuwhy_schema::{Entity, EntityId, State};

use super::busy_periods::PeriodsOfThreads;
use super::calls;
use super::rounds::{Recurring, RoundsOfProcess, round_id};
use super::work_quanta::QuantaOfThreads;
use crate::error::Result;
use crate::source::{EVER, TraceSource};
use crate::threads::{Busy, state_tracks};

/// Of more units one in so many is looked at.
const UNITS: usize = 1 << 20;

/// Kinds of units. A process is judged by one at a time, so that a timer's thread of a solver or a compiler's thread of a
/// server is not what the program is judged by. What comes first says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Busy periods between waits for work.
    Served,
    /// Busy periods between sleeps for a time.
    Paced,
    /// Work quanta.
    Quantum,
}

impl Kind {
    /// All of them, in order.
    pub const ALL: [Kind; 3] = [Kind::Served, Kind::Paced, Kind::Quantum];

    /// The kind that weighs most; of two alike, the one that says more.
    pub fn heaviest(weights: impl IntoIterator<Item = (Kind, i64)>) -> Option<Kind> {
        let most = weights.into_iter().max_by_key(|&(kind, weight)| (weight, Reverse(kind)));
        most.map(|(kind, _)| kind)
    }

    /// What recurs.
    pub fn recurring(self) -> Recurring {
        match self {
            Kind::Served | Kind::Paced => Recurring::BusyPeriods,
            Kind::Quantum => Recurring::WorkQuanta,
        }
    }

    /// How much a unit says of what its process does, ns: how long it lasted. Of a thread that paces itself, how long it
    /// ran: between two sleeps it may have nothing to do and wait for other threads, as the monitor of a runtime.
    pub fn weight(self, unit: &Period) -> i64 {
        match self {
            Kind::Served | Kind::Quantum => (unit.to - unit.from).0,
            Kind::Paced => unit.ran.0,
        }
    }
}

/// Of which kind units are, and those of each thread that has enough.
type OfThreads = (Kind, HashMap<EntityId, Vec<Period>>);

/// The units of the threads of a trace by their kinds, and of which processes they wander between threads.
fn found(source: &TraceSource, busy: &Busy) -> Result<([OfThreads; 3], HashSet<EntityId>)> {
    let mut periods = PeriodsOfThreads::new(source, busy)?;
    let mut quanta = QuantaOfThreads::new(source, busy);
    let tracks = state_tracks(source);
    for rows in source.trace().read::<State>(EVER) {
        for row in rows? {
            let Some(thread) = tracks.get(&row.track) else { continue };
            periods.take(*thread, &row);
            quanta.take(*thread, &row);
        }
    }
    let (served, paced, wander) = periods.finish();
    let kinds = [(Kind::Served, served), (Kind::Paced, paced), (Kind::Quantum, quanta.finish())];
    Ok((kinds, wander))
}

/// The units of the threads of a trace, as steps, and whose they are.
///
/// # Errors
/// The trace cannot be read.
pub(super) fn of_trace(
    source: &TraceSource,
    busy: &Busy,
) -> Result<(Vec<Step>, Vec<RoundsOfProcess>)> {
    let (kinds, wander) = found(source, busy)?;
    Ok(judged_by(source, busy, &kinds, &wander, |_, _| true))
}

/// The busy periods of processes of whose work these calls of functions are the least, as steps, and whose they are.
///
/// # Errors
/// The trace cannot be read.
pub(super) fn beside_calls(
    source: &TraceSource,
    busy: &Busy,
    calls: &[Step],
) -> Result<(Vec<Step>, Vec<RoundsOfProcess>)> {
    let (kinds, wander) = found(source, busy)?;
    let process = processes(busy);
    let calls = calls.iter().filter_map(|call| {
        let process = process.get(&call.thread)?;
        Some((*process, call.end(), call.dur))
    });
    let served = kinds.iter().filter(|(of, _)| *of == Kind::Served).flat_map(|(_, units)| units);
    let periods = served.flat_map(|(thread, units)| {
        let process = process[thread];
        units.iter().map(move |unit| (process, unit.to, unit.to - unit.from))
    });
    let least = calls::least(calls, periods);
    let is_compared = |process, of| of == Kind::Served && least.contains(&process);
    Ok(judged_by(source, busy, &kinds, &wander, is_compared))
}

/// Of which process each thread is.
fn processes(busy: &Busy) -> HashMap<EntityId, EntityId> {
    busy.threads.iter().map(|thread| (thread.id, thread.process)).collect()
}

/// The units of each process of the kind that weighs most, ordered by their ends. Where they `wander` between its threads,
/// they are compared as the process's. Of which processes units of which kind are wanted says `wanted`.
fn judged_by(
    source: &TraceSource,
    busy: &Busy,
    kinds: &[OfThreads],
    wander: &HashSet<EntityId>,
    wanted: impl Fn(EntityId, Kind) -> bool,
) -> (Vec<Step>, Vec<RoundsOfProcess>) {
    let process = processes(busy);
    let mut does: HashMap<EntityId, BTreeMap<Kind, (i64, usize)>> = HashMap::new();
    for (of, threads) in kinds {
        for (thread, units) in threads {
            let (weight, many) = does.entry(process[thread]).or_default().entry(*of).or_default();
            *weight += units.iter().map(|unit| of.weight(unit)).sum::<i64>();
            *many += units.len();
        }
    }
    let by = does.iter().filter_map(|(process, kinds)| {
        let of = Kind::heaviest(kinds.iter().map(|(of, (weight, _))| (*of, *weight)))?;
        wanted(*process, of).then(|| (*process, (of, kinds[&of].1)))
    });
    let by: HashMap<EntityId, (Kind, usize)> = by.collect();
    let entities: HashMap<EntityId, &Entity> =
        source.entities_and_tracks().entity.iter().map(|e| (e.id, e)).collect();
    let all: usize = by.values().map(|(_, many)| many).sum();
    let one_in = all.div_ceil(UNITS).max(1);
    let rounds = by.iter().filter_map(|(id, &(of, rounds))| {
        let entity = entities.get(id)?;
        let (process, pid) = (entity.name.to_string(), entity.number);
        let of = of.recurring();
        Some(RoundsOfProcess { process, pid, of, each: one_in, rounds, phase: None })
    });
    let mut rounds: Vec<RoundsOfProcess> = rounds.collect();
    rounds.sort_by(|a, b| (b.rounds, a.pid).cmp(&(a.rounds, b.pid)));
    let of_kind = |(of, threads): &OfThreads| {
        let is_judged = |process| by.get(process).is_some_and(|(by, _)| by == of);
        let judged = threads.iter().filter(|(thread, _)| is_judged(&process[thread]));
        let one =
            judged.flat_map(|(thread, units)| units.iter().step_by(one_in).map(|u| (*thread, *u)));
        one.map(|(thread, unit)| (unit, thread, *of)).collect::<Vec<_>>()
    };
    let mut units: Vec<(Period, EntityId, Kind)> = kinds.iter().flat_map(of_kind).collect();
    units.sort_unstable_by_key(|(unit, thread, _)| (unit.to, unit.from, *thread));
    let step = |(n, (unit, thread, of)): (usize, (Period, EntityId, Kind))| Step {
        id: round_id(n),
        ts: unit.from,
        dur: unit.to - unit.from,
        thread,
        series: Some(process[&thread])
            .filter(|process| of == Kind::Served && wander.contains(process)),
        rank: None,
        name: of.recurring().round_name().into(),
        size: unit.messages,
        ran: None,
        expected: Default::default(),
    };
    (units.into_iter().enumerate().map(step).collect(), rounds)
}
