//! Steps of a trace that has none marked: rounds of what its processes wait for on their GPUs, or of
//! their collectives.

use std::collections::HashMap;

use anyhow::Result;
use gpuwhy_derive::rounds::rounds;
use gpuwhy_diagnose::detect::Step;
use gpuwhy_schema::{self as schema, Entity, EntityId, EntityKind, Id, Ns, Rows, TrackId, names};
use gpuwhy_store::Trace;
use serde::Serialize;

use crate::analysis::EVER;

/// What a process has rounds of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// Waits for its GPU, by their ends.
    GpuWaits,
    /// Collectives, by their calls.
    Collectives,
}

/// The rounds of a process.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    /// The process.
    pub process: String,
    /// Its number.
    pub pid: Option<i64>,
    /// What comes again and again in it.
    pub of: Of,
    /// How many of these make a round.
    pub each: usize,
    /// How many rounds there are.
    pub rounds: usize,
}

impl Of {
    /// What the moments of a lane are, by its name.
    pub fn lane(name: &str) -> Option<Of> {
        match name {
            names::SYNCHRONIZATION => Some(Of::GpuWaits),
            names::COLLECTIVES => Some(Of::Collectives),
            _ => None,
        }
    }

    /// When a span of such a lane comes.
    pub fn moment(self, span: &schema::Span) -> Option<Ns> {
        let dur = span.dur?;
        Some(if self == Of::GpuWaits { span.ts.saturating_add(dur) } else { span.ts })
    }

    /// What its rounds are called: those of another kind are another series.
    pub fn name(self) -> &'static str {
        match self {
            Of::GpuWaits => "round",
            Of::Collectives => "round of collectives",
        }
    }
}

/// The process that an entity belongs to, or is.
pub fn process_of<'a>(
    entity: EntityId,
    get: impl Fn(EntityId) -> Option<&'a Entity>,
) -> Option<&'a Entity> {
    let chain = std::iter::successors(get(entity), |e| get(e.parent?));
    chain.take(8).find(|e| e.kind == EntityKind::Process)
}

impl Told {
    /// For people.
    pub fn says(&self) -> String {
        let pid = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        let what = match (self.of, self.each) {
            (Of::GpuWaits, 1) => "from one wait for its GPU to the next".to_owned(),
            (Of::GpuWaits, n) => format!("of {n} waits for its GPU each"),
            (Of::Collectives, 1) => "from one collective to the next".to_owned(),
            (Of::Collectives, n) => format!("of {n} collectives each"),
        };
        format!("{}{pid}: {} rounds {what}", self.process, self.rounds)
    }
}

/// The number of a round, which no row has: rows are counted from below.
fn number(n: usize) -> Id {
    Id(u64::MAX - 1 - n as u64)
}

/// Whether a step is a round.
pub fn is_round(step: &Step) -> bool {
    step.id.0 > u64::MAX / 2
}

/// Rounds of the processes of a trace, by their ends.
pub fn steps(trace: &Trace, lanes: &Rows) -> Result<(Vec<Step>, Vec<Told>)> {
    let entities: HashMap<EntityId, &Entity> = lanes.entity.iter().map(|e| (e.id, e)).collect();
    // Calls into one communicator are a train of their own: those into another come when they come.
    let trains: HashMap<TrackId, (EntityId, Of)> = lanes
        .track
        .iter()
        .filter_map(|track| {
            let of = Of::lane(&track.name)?;
            let process = process_of(track.entity, |id| entities.get(&id).copied())?;
            Some((track.id, (process.id, of)))
        })
        .collect();
    // What was kept around findings alone has holes, which would be long rounds.
    let has_holes = trace.read::<schema::Finding>(EVER).next().transpose()?.is_some();
    if trains.is_empty() || has_holes {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut ranks: HashMap<Id, u32> = HashMap::new();
    for rows in trace.read::<schema::Collective>(EVER) {
        ranks.extend(rows?.iter().map(|row| (row.id, row.rank)));
    }
    let mut moments: HashMap<TrackId, Vec<Ns>> = HashMap::new();
    let mut rank_of: HashMap<EntityId, u32> = HashMap::new();
    for rows in trace.read::<schema::Span>(EVER) {
        for span in rows? {
            let Some(&(process, of)) = trains.get(&span.track) else { continue };
            let Some(moment) = of.moment(&span) else { continue };
            moments.entry(span.track).or_default().push(moment);
            if let Some(rank) = ranks.get(&span.id) {
                rank_of.insert(process, *rank);
            }
        }
    }

    // Of each process, waits before collectives, and of these the most.
    let mut of_process: HashMap<EntityId, Vec<(Of, usize, TrackId)>> = HashMap::new();
    for (track, train) in &mut moments {
        train.sort_unstable();
        let (process, of) = trains[track];
        let rest = usize::MAX - train.len();
        of_process.entry(process).or_default().push((of, rest, *track));
    }
    let mut processes: Vec<_> = of_process.into_iter().collect();
    processes.sort_unstable_by_key(|(process, _)| *process);
    let (mut steps, mut told) = (Vec::new(), Vec::new());
    for (process, mut candidates) in processes {
        candidates.sort_unstable();
        let found =
            candidates.iter().find_map(|&(of, _, track)| Some((of, rounds(&moments[&track])?)));
        let Some(((of, found), thread)) = found.zip(main_thread(&entities, process)) else {
            continue;
        };
        let e = entities[&process];
        told.push(Told {
            process: e.name.to_string(),
            pid: e.number,
            of,
            each: found.each,
            rounds: found.list.len(),
        });
        for (from, to) in found.list {
            steps.push(Step {
                id: number(steps.len()),
                ts: from,
                dur: to - from,
                thread,
                rank: rank_of.get(&process).copied(),
                name: of.name().into(),
                size: None,
            });
        }
    }
    steps.sort_by_key(|s| (s.end(), s.ts, s.id));
    Ok((steps, told))
}

/// The thread that a process began with: the one that waits, in most programs.
fn main_thread(entities: &HashMap<EntityId, &Entity>, process: EntityId) -> Option<EntityId> {
    let number = entities.get(&process)?.number;
    entities
        .values()
        .filter(|e| e.kind == EntityKind::Thread && e.parent == Some(process))
        .min_by_key(|e| (e.number != number, e.number, e.id))
        .map(|e| e.id)
}
