//! Rounds of programs that neither mark steps nor use a GPU: the rhythm of what their threads wait for.
//!
//! *What it sees:* the ends of the waits of a process's busiest thread, and of the thread that it began with: for
//! bytes, for other threads, for any of several descriptors, for a time. Each kind by itself may have a rhythm;
//! `derive::rounds` decides how many waits make a round. A wait is ended by others, so rounds must be more regular
//! than those of a GPU.
//! *What fools it:* requests come when clients send them, and a thread that does little waits at any rhythm: of a
//! thread that has nothing to do for nine tenths of the time no rounds are made, nor of one whose states were not
//! recorded throughout.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_derive::rounds::{Rounds, rounds_within};
use gpuwhy_derive::threads::Doing;
use gpuwhy_diagnose::detect::{Expected, Step};
use gpuwhy_schema::{self as schema, Entity, EntityId, Finding, Name, Ns, State};

use super::rounds::{Recurring, RoundsOfProcess, round_id};
use crate::error::Result;
use crate::source::{EVER, TraceSource};
use crate::threads::{Busy, BusyThread, doing, state_tracks};

/// Processes whose threads are looked at: those with the busiest threads.
const PROCESSES: usize = 64;
/// A thread with less to do than this share of the recording has no rounds,
const BUSY: f64 = 0.1;
/// nor one of which less than this share of the recording was seen.
const SEEN: f64 = 0.8;
/// Rounds differ from the one before by no more than this share, on average.
const REGULAR: f64 = 0.25;
/// Waits of one kind of a thread that are looked at.
const WAITS: usize = 1 << 20;
/// Shorter rounds are taken several at a time.
const SHORTEST: Ns = Ns::millis(1);

impl Recurring {
    /// The waits that a thread is in while it does this.
    fn of_doing(doing: Doing) -> Option<Recurring> {
        match doing {
            Doing::Socket => Some(Recurring::SocketWaits),
            Doing::Futex => Some(Recurring::FutexWaits),
            Doing::Poll => Some(Recurring::Polls),
            Doing::Timer => Some(Recurring::Timers),
            _ => None,
        }
    }
}

/// When waits of threads ended, by thread and kind of wait.
type Moments = BTreeMap<(EntityId, Recurring), Vec<Ns>>;

/// The rounds that waits of threads make, ordered by their ends.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource, busy: &Busy) -> Result<(Vec<Step>, Vec<RoundsOfProcess>)> {
    let candidates = candidates(busy);
    let has_findings = source.trace().read::<Finding>(EVER).next().transpose()?.is_some();
    if candidates.is_empty() || has_findings {
        return Ok((Vec::new(), Vec::new()));
    }
    let moments = moments(source, &candidates)?;
    let entities: HashMap<EntityId, &Entity> =
        source.entities_and_tracks().entity.iter().map(|e| (e.id, e)).collect();
    let (mut steps, mut found) = (Vec::new(), Vec::new());
    for (process, threads) in candidates {
        let of_thread = |thread: &EntityId| {
            let range = (*thread, Recurring::SocketWaits)..=(*thread, Recurring::Timers);
            let mut kinds = moments.range(range);
            kinds.find_map(|((thread, of), moments)| Some((*thread, *of, regular(moments)?)))
        };
        let Some((thread, of, Rounds { each, list })) = threads.iter().find_map(of_thread) else {
            continue;
        };
        let Some(entity) = entities.get(&process) else { continue };
        found.push(RoundsOfProcess {
            process: entity.name.to_string(),
            pid: entity.number,
            of,
            each,
            rounds: list.len(),
            phase: None,
        });
        let name: Name = of.round_name().into();
        for (from, to) in list {
            let (id, name) = (round_id(steps.len()), name.clone());
            let (rank, size, ran) = (None, None, None);
            let expected = Expected::Alike;
            let (ts, dur) = (from, to - from);
            steps.push(Step { id, ts, dur, thread, series: None, rank, name, size, ran, expected });
        }
    }
    steps.sort_by_key(|s| (s.end(), s.ts, s.id));
    Ok((steps, found))
}

/// The threads of each process that may have rounds: the busiest, and the one that it began with.
fn candidates(busy: &Busy) -> Vec<(EntityId, Vec<EntityId>)> {
    let Some((from, to)) = busy.range else { return Vec::new() };
    let length = (to - from).0 as f64;
    let may = |t: &&BusyThread| {
        t.busy.0 as f64 >= BUSY * length && t.seen.0 as f64 >= SEEN * length && t.is_seen_whole()
    };
    let mut of: Vec<(EntityId, Vec<EntityId>)> = Vec::new();
    for thread in busy.threads.iter().filter(may) {
        match of.iter().position(|(process, _)| *process == thread.process) {
            Some(at) if thread.is_main => of[at].1.push(thread.id),
            Some(_) => {}
            None if of.len() < PROCESSES => of.push((thread.process, vec![thread.id])),
            None => {}
        }
    }
    of
}

fn moments(source: &TraceSource, candidates: &[(EntityId, Vec<EntityId>)]) -> Result<Moments> {
    let mut tracks = state_tracks(source);
    tracks.retain(|_, thread| candidates.iter().any(|(_, threads)| threads.contains(thread)));
    let mut out = Moments::new();
    for rows in source.trace().read::<State>(EVER) {
        for row in rows? {
            let schema::State { dur: Some(_), track, .. } = &row else { continue };
            let Some(thread) = tracks.get(track) else { continue };
            let Some((doing, _, to)) = doing(&row, Ns::MAX) else { continue };
            let Some(of) = Recurring::of_doing(doing) else { continue };
            let list = out.entry((*thread, of)).or_default();
            if list.len() < WAITS {
                list.push(to);
            }
        }
    }
    out.values_mut().for_each(|list| list.sort_unstable());
    Ok(out)
}

/// The rounds that these ends of waits make.
fn regular(moments: &[Ns]) -> Option<Rounds> {
    let (first, last) = (moments.first()?, moments.last()?);
    let usual = (last.saturating_sub(*first).0 / moments.len() as i64).max(1);
    let together = usize::try_from(SHORTEST.0 / usual).unwrap_or(0).max(1);
    let thinned: Vec<Ns> = moments.iter().copied().step_by(together).collect();
    let found = rounds_within(&thinned, REGULAR)?;
    Some(Rounds { each: found.each * together, ..found })
}
