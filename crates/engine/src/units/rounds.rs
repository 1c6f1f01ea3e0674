//! Rounds: the units of work of a GPU program that marks no steps.
//!
//! *What it sees:* the ends of a process's waits for its GPU or, where it has none that are regular,
//! the calls of one communicator's collectives. `derive::rounds` decides how many of them make a
//! round, and whether they are regular enough to be one.
//! In a profile of another tool, whose programs have phases (see [`crate::phases`]), rounds are found and
//! compared within each phase of work; set-up has none. There, calls that wait for the GPU stand in for waits.
//! *What fools it:* a trace that holds exact rows around findings only (`gpuwhy watch`) has holes,
//! which would look like long rounds; none are made of such a trace.

use std::collections::HashMap;

use gpuwhy_derive::rounds::{Rounds, rounds};
use gpuwhy_diagnose::detect::Step;
use gpuwhy_schema::{self as schema, Entity, EntityId, EntityKind, Id, Name, Ns, TrackId, names};
use serde::Serialize;

use crate::error::Result;
use crate::phases::{Phase, Program};
use crate::source::{EVER, TraceSource};

/// What recurs in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recurring {
    /// Its waits for the GPU; a wait counts at its end.
    GpuWaits,
    /// Its collectives; a collective counts at its call.
    Collectives,
    /// Waits of a thread for bytes; as those that follow, a wait counts at its end.
    SocketWaits,
    /// Waits of a thread for other threads.
    FutexWaits,
    /// Waits of a thread for any of several descriptors.
    Polls,
    /// Sleeps of a thread for a time.
    Timers,
    /// Busy periods of threads, from one wait for work to the next.
    BusyPeriods,
    /// Fixed quanta of the work of threads that compute and hardly ever wait.
    WorkQuanta,
}

/// The rounds of one process.
#[derive(Clone, Debug, Serialize)]
pub struct RoundsOfProcess {
    /// The process's name.
    pub process: String,
    /// Its pid.
    pub pid: Option<i64>,
    /// What recurs in it.
    pub of: Recurring,
    /// How many of these make one round.
    pub each: usize,
    /// How many rounds there are.
    pub rounds: usize,
    /// The phase of the program that they are in, where it has several phases of work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

impl Recurring {
    /// What recurs on a track, by the track's name.
    pub fn on_track(name: &str) -> Option<Recurring> {
        match name {
            names::SYNCHRONIZATION => Some(Recurring::GpuWaits),
            names::COLLECTIVES => Some(Recurring::Collectives),
            _ => None,
        }
    }

    /// The time at which a span of such a track counts; `None` if it has not ended.
    pub fn moment(self, span: &schema::Span) -> Option<Ns> {
        let dur = span.dur?;
        Some(match self {
            Recurring::Collectives => span.ts,
            _ => span.ts.saturating_add(dur),
        })
    }

    /// The name of its rounds. Rounds of different kinds are different series.
    pub fn round_name(self) -> &'static str {
        match self {
            Recurring::GpuWaits => "round",
            Recurring::Collectives => "round of collectives",
            Recurring::SocketWaits => "round of waits for bytes",
            Recurring::FutexWaits => "round of waits for threads",
            Recurring::Polls => "round of polls",
            Recurring::Timers => "round of sleeps",
            Recurring::BusyPeriods => names::BUSY_PERIOD,
            Recurring::WorkQuanta => names::QUANTUM,
        }
    }
}

/// The process that an entity is or belongs to.
pub fn process_of<'a>(
    entity: EntityId,
    get: impl Fn(EntityId) -> Option<&'a Entity>,
) -> Option<&'a Entity> {
    let chain = std::iter::successors(get(entity), |e| get(e.parent?));
    chain.take(8).find(|e| e.kind == EntityKind::Process)
}

impl RoundsOfProcess {
    /// One line for users.
    pub fn text(&self) -> String {
        let pid = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        let (one, many) = match self.of {
            Recurring::GpuWaits => ("wait for its GPU", "waits for its GPU"),
            Recurring::Collectives => ("collective", "collectives"),
            Recurring::SocketWaits => ("wait for bytes", "waits for bytes"),
            Recurring::FutexWaits => ("wait for another thread", "waits for other threads"),
            Recurring::Polls => ("wait in poll", "waits in poll"),
            Recurring::Timers => ("sleep", "sleeps"),
            Recurring::BusyPeriods | Recurring::WorkQuanta => {
                let looked_at = match self.each {
                    1 => String::new(),
                    n => format!(", of which one in {n} is compared"),
                };
                let what = match self.of {
                    Recurring::WorkQuanta => {
                        "times 10 ms of CPU time of its threads, which hardly ever wait"
                    }
                    _ => "busy periods of its threads, from one wait for work to the next",
                };
                return format!("{}{pid}: {} {what}{looked_at}", self.process, self.rounds);
            }
        };
        let what = match self.each {
            1 => format!("from one {one} to the next"),
            n => format!("of {n} {many} each"),
        };
        let phase = self.phase.as_ref().map(|phase| format!(", in {phase}")).unwrap_or_default();
        format!("{}{pid}: {} rounds {what}{phase}", self.process, self.rounds)
    }
}

/// The id of a round. Rows count their ids from 0 upward, rounds from the top downward.
pub(super) fn round_id(n: usize) -> Id {
    Id(u64::MAX - 1 - n as u64)
}

/// Whether a step is a round.
pub fn is_round(step: &Step) -> bool {
    step.id.0 > u64::MAX / 2
}

/// Moments of one track, and what a process's tracks are worth as its rounds.
struct Moments {
    /// By track, sorted.
    by_track: HashMap<TrackId, Vec<Ns>>,
    /// The rank of a process, as its collectives give it.
    ranks: HashMap<EntityId, u32>,
}

/// The rounds of a trace's processes, ordered by their ends. Those of `programs` lie within their phases of work.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(
    source: &TraceSource,
    programs: &[Program],
) -> Result<(Vec<Step>, Vec<RoundsOfProcess>)> {
    let catalog = source.entities_and_tracks();
    let entities: HashMap<EntityId, &Entity> = catalog.entity.iter().map(|e| (e.id, e)).collect();
    // Each communicator has a track of its own: calls into another one come at their own times.
    let tracks: HashMap<TrackId, (EntityId, Recurring)> = catalog
        .track
        .iter()
        .filter_map(|track| {
            let of = Recurring::on_track(&track.name)?;
            let process = process_of(track.entity, |id| entities.get(&id).copied())?;
            Some((track.id, (process.id, of)))
        })
        .collect();
    let has_findings = source.trace().read::<schema::Finding>(EVER).next().transpose()?.is_some();
    if (tracks.is_empty() && programs.is_empty()) || has_findings {
        return Ok((Vec::new(), Vec::new()));
    }
    let moments = moments(source, &tracks)?;
    let mut candidates = candidates(&moments, &tracks);
    // Programs without recorded waits have calls that wait.
    for program in programs.iter().filter(|p| !p.waits.is_empty()) {
        if !candidates.iter().any(|(process, _)| *process == program.entity) {
            candidates.push((program.entity, Vec::new()));
        }
    }
    let (mut steps, mut found) = (Vec::new(), Vec::new());
    for (process, tracks) in candidates {
        let Some(thread) = main_thread(&entities, process) else { continue };
        let program = programs.iter().find(|program| program.entity == process);
        let rank = moments.ranks.get(&process).copied();
        let listed = tracks.iter().map(|(of, track)| (*of, &moments.by_track[track][..]));
        let calls = program.filter(|p| !p.waits.is_empty());
        let calls = calls.map(|p| (Recurring::GpuWaits, &p.waits[..]));
        let lists: Vec<(Recurring, &[Ns])> = listed.chain(calls).collect();
        for (phase, of, Rounds { each, list }) in in_phases(program, &lists) {
            let entity = entities[&process];
            let name: Name = match &phase {
                Some(phase) => format!("{} of {phase}", of.round_name()).as_str().into(),
                None => of.round_name().into(),
            };
            found.push(RoundsOfProcess {
                process: entity.name.to_string(),
                pid: entity.number,
                of,
                each,
                rounds: list.len(),
                phase,
            });
            for (from, to) in list {
                let (id, name) = (round_id(steps.len()), name.clone());
                steps.push(Step {
                    id,
                    ts: from,
                    dur: to - from,
                    thread,
                    series: None,
                    rank,
                    name,
                    size: None,
                    ran: None,
                    expected: Default::default(),
                });
            }
        }
    }
    steps.sort_by_key(|s| (s.end(), s.ts, s.id));
    Ok((steps, found))
}

/// The rounds that the first of these lists of moments makes that makes any: in each phase of work of a program
/// that has phases, else in all of its time. The phase is named if there are several.
fn in_phases(
    program: Option<&Program>,
    lists: &[(Recurring, &[Ns])],
) -> Vec<(Option<String>, Recurring, Rounds)> {
    let found = |from: Ns, to: Ns| {
        lists.iter().find_map(|(of, moments)| {
            let (first, last) =
                (moments.partition_point(|at| *at < from), moments.partition_point(|at| *at <= to));
            Some((*of, rounds(&moments[first..last.max(first)])?))
        })
    };
    let Some(program) = program else {
        return found(Ns::MIN, Ns::MAX)
            .map(|(of, rounds)| (None, of, rounds))
            .into_iter()
            .collect();
    };
    let worked = || program.phases.iter().filter(|phase| matches!(phase.kind, "work" | "whole"));
    let several = worked().count() > 1;
    let of_phase = |phase: &Phase| {
        let (of, rounds) = found(Ns(phase.from_ns), Ns(phase.to_ns))?;
        Some((several.then(|| phase.name.clone()), of, rounds))
    };
    worked().filter_map(of_phase).collect()
}

fn moments(
    source: &TraceSource,
    tracks: &HashMap<TrackId, (EntityId, Recurring)>,
) -> Result<Moments> {
    let mut rank_of_span: HashMap<Id, u32> = HashMap::new();
    for rows in source.trace().read::<schema::Collective>(EVER) {
        rank_of_span.extend(rows?.iter().map(|row| (row.id, row.rank)));
    }
    let mut found = Moments { by_track: HashMap::new(), ranks: HashMap::new() };
    for rows in source.trace().read::<schema::Span>(EVER) {
        for span in rows? {
            let Some(&(process, of)) = tracks.get(&span.track) else { continue };
            let Some(moment) = of.moment(&span) else { continue };
            found.by_track.entry(span.track).or_default().push(moment);
            if let Some(rank) = rank_of_span.get(&span.id) {
                found.ranks.insert(process, *rank);
            }
        }
    }
    found.by_track.values_mut().for_each(|moments| moments.sort_unstable());
    Ok(found)
}

/// The tracks of each process that may have rounds: waits before collectives, and of these the track
/// with most moments first.
fn candidates(
    moments: &Moments,
    tracks: &HashMap<TrackId, (EntityId, Recurring)>,
) -> Vec<(EntityId, Vec<(Recurring, TrackId)>)> {
    let mut by_process: HashMap<EntityId, Vec<(Recurring, usize, TrackId)>> = HashMap::new();
    for (track, list) in &moments.by_track {
        let (process, of) = tracks[track];
        by_process.entry(process).or_default().push((of, usize::MAX - list.len(), *track));
    }
    let mut by_process: Vec<_> = by_process.into_iter().collect();
    by_process.sort_unstable_by_key(|(process, _)| *process);
    let in_order = |(process, mut all): (EntityId, Vec<(Recurring, usize, TrackId)>)| {
        all.sort_unstable();
        (process, all.into_iter().map(|(of, _, track)| (of, track)).collect())
    };
    by_process.into_iter().map(in_order).collect()
}

/// The thread that a process began with, which is the one that waits in most programs.
fn main_thread(entities: &HashMap<EntityId, &Entity>, process: EntityId) -> Option<EntityId> {
    let number = entities.get(&process)?.number;
    entities
        .values()
        .filter(|e| e.kind == EntityKind::Thread && e.parent == Some(process))
        .min_by_key(|e| (e.number != number, e.number, e.id))
        .map(|e| e.id)
}
