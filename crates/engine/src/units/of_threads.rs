//! Units that single threads have, of whatever kind: which of them a process is judged by.

use std::collections::HashMap;

use gpuwhy_derive::busy_periods::Period;
use gpuwhy_diagnose::detect::Step;
use gpuwhy_schema::{Entity, EntityId, names};

use super::rounds::{Recurring, RoundsOfProcess, round_id};
use crate::source::TraceSource;
use crate::threads::Busy;

/// Of more units one in so many is looked at.
const UNITS: usize = 1 << 20;

/// What units of threads are, those first that say more of what a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Unit {
    /// Busy periods.
    BusyPeriod,
    /// Work quanta.
    Quantum,
}

impl Unit {
    /// The name of the steps that they become.
    pub fn name(self) -> &'static str {
        match self {
            Unit::BusyPeriod => names::BUSY_PERIOD,
            Unit::Quantum => names::QUANTUM,
        }
    }

    fn recurring(self) -> Recurring {
        match self {
            Unit::BusyPeriod => Recurring::BusyPeriods,
            Unit::Quantum => Recurring::WorkQuanta,
        }
    }
}

/// Units of one kind, of each thread that has enough.
pub(super) struct OfThreads {
    /// What they are.
    pub of: Unit,
    /// Them.
    pub units: HashMap<EntityId, Vec<Period>>,
}

/// The units of each process of the kind that it spends most time in, ordered by their ends: a timer's thread of a solver
/// or a compiler's thread of a server is not what the program is judged by.
pub(super) fn judged_by(
    source: &TraceSource,
    busy: &Busy,
    kinds: &[OfThreads],
) -> (Vec<Step>, Vec<RoundsOfProcess>) {
    let process: HashMap<EntityId, EntityId> =
        busy.threads.iter().map(|thread| (thread.id, thread.process)).collect();
    let mut does: HashMap<(EntityId, Unit), (i64, usize)> = HashMap::new();
    for kind in kinds {
        for (thread, units) in &kind.units {
            let (lasted, many) = does.entry((process[thread], kind.of)).or_default();
            *lasted += units.iter().map(|unit| (unit.to - unit.from).0).sum::<i64>();
            *many += units.len();
        }
    }
    let mut by: HashMap<EntityId, (i64, Unit)> = HashMap::new();
    for ((process, of), (lasted, _)) in &does {
        let most = by.entry(*process).or_insert((*lasted, *of));
        if (*lasted, std::cmp::Reverse(*of)) > (most.0, std::cmp::Reverse(most.1)) {
            *most = (*lasted, *of);
        }
    }
    let entities: HashMap<EntityId, &Entity> =
        source.entities_and_tracks().entity.iter().map(|e| (e.id, e)).collect();
    let all: usize = by.iter().map(|(process, (_, of))| does[&(*process, *of)].1).sum();
    let one_in = all.div_ceil(UNITS).max(1);
    let rounds = by.iter().filter_map(|(id, (_, unit))| {
        let entity = entities.get(id)?;
        let (process, pid) = (entity.name.to_string(), entity.number);
        let (of, rounds) = (unit.recurring(), does[&(*id, *unit)].1);
        Some(RoundsOfProcess { process, pid, of, each: one_in, rounds, phase: None })
    });
    let mut rounds: Vec<RoundsOfProcess> = rounds.collect();
    rounds.sort_by(|a, b| (b.rounds, a.pid).cmp(&(a.rounds, b.pid)));
    let of_kind = |kind: &OfThreads| {
        let judged = kind.units.iter().filter(|(thread, _)| by[&process[thread]].1 == kind.of);
        let one =
            judged.flat_map(|(thread, units)| units.iter().step_by(one_in).map(|u| (*thread, *u)));
        one.map(|(thread, unit)| (unit, thread, kind.of)).collect::<Vec<_>>()
    };
    let mut units: Vec<(Period, EntityId, Unit)> = kinds.iter().flat_map(of_kind).collect();
    units.sort_unstable_by_key(|(unit, thread, _)| (unit.to, unit.from, *thread));
    let step = |(n, (unit, thread, of)): (usize, (Period, EntityId, Unit))| Step {
        id: round_id(n),
        ts: unit.from,
        dur: unit.to - unit.from,
        thread,
        rank: None,
        name: of.name().into(),
        size: unit.messages,
        ran: None,
        expected: Default::default(),
    };
    (units.into_iter().enumerate().map(step).collect(), rounds)
}
