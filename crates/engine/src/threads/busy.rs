//! Which threads of a trace had most to do: the rows of states are read once, and only sums are kept.

use std::collections::HashMap;

use gpuwhy_derive::threads::Doing;
use gpuwhy_schema::{EntityId, EntityKind, Ns, State, ThreadState, TrackId, names};

use crate::error::Result;
use crate::source::{EVER, TraceSource};

/// Threads that are looked at. Of more, the ones that were seen later are counted.
const THREADS: usize = 65_536;

/// What one thread had to do.
#[derive(Clone, Copy, Debug)]
pub struct BusyThread {
    /// The thread.
    pub id: EntityId,
    /// Its process.
    pub process: EntityId,
    /// Whether it is the one that the process began with.
    pub is_main: bool,
    /// Time in which it ran or would have.
    pub busy: Ns,
    /// Time of which it was recorded what it did.
    pub seen: Ns,
    /// When its first recorded state begins.
    pub first: Ns,
    /// When its last one ends.
    pub last: Ns,
}

impl BusyThread {
    /// Whether all of its time was recorded, but for some hundredths.
    pub fn is_seen_whole(&self) -> bool {
        self.seen.0 as f64 >= 0.95 * (self.last - self.first).0 as f64
    }
}

/// The threads of a trace, those with most to do first.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// Threads whose states were recorded.
    pub threads: Vec<BusyThread>,
    /// Threads that were too many to look at.
    pub not_looked_at: usize,
    /// From when to when states were recorded.
    pub range: Option<(Ns, Ns)>,
}

/// The tracks that hold states of threads, with their threads.
pub fn state_tracks(source: &TraceSource) -> HashMap<TrackId, EntityId> {
    let tracks = source.entities_and_tracks().track.iter();
    tracks.filter(|t| &*t.name == names::THREAD_STATE).map(|t| (t.id, t.entity)).collect()
}

/// What a row says that a thread did, and when: a state that has not ended lasts until the recording ends.
pub fn doing(row: &State, end: Ns) -> Option<(Doing, Ns, Ns)> {
    let state = ThreadState::from_code(row.value)?;
    let to = row.dur.map_or(end, |dur| row.ts.saturating_add(dur));
    Some((Doing::of(state, row.arg.unwrap_or(-1))?, row.ts, to))
}

impl Busy {
    /// The threads of a trace.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_trace(source: &TraceSource) -> Result<Busy> {
        let manifest = source.trace().manifest();
        let first = manifest.first_start(&["state", "counter"]);
        let (Some(from), Some(end)) = (first, manifest.end) else { return Ok(Busy::default()) };
        let (from, end) = (Ns(from), Ns(end.max(from)));
        let tracks = state_tracks(source);
        let entities: HashMap<EntityId, _> =
            source.entities_and_tracks().entity.iter().map(|e| (e.id, e)).collect();
        let mut of: HashMap<EntityId, BusyThread> = HashMap::new();
        let mut others = std::collections::HashSet::new();
        for rows in source.trace().read::<State>(EVER) {
            for row in rows? {
                let Some(thread) = tracks.get(&row.track) else { continue };
                let Some((doing, since, to)) = doing(&row, end) else { continue };
                if of.len() >= THREADS && !of.contains_key(thread) {
                    others.insert(*thread);
                    continue;
                }
                let known = of.entry(*thread).or_insert_with(|| {
                    let entity = entities.get(thread);
                    let process = entity.filter(|e| e.kind == EntityKind::Thread);
                    let process = process.and_then(|e| e.parent).unwrap_or(*thread);
                    let number = |id: EntityId| entities.get(&id).and_then(|e| e.number);
                    let is_main = number(*thread) == number(process);
                    let (busy, seen, first, last) = (Ns::ZERO, Ns::ZERO, since, to);
                    BusyThread { id: *thread, process, is_main, busy, seen, first, last }
                });
                let took = to.saturating_sub(since);
                known.seen = known.seen.saturating_add(took);
                if doing.is_busy() {
                    known.busy = known.busy.saturating_add(took);
                }
                (known.first, known.last) = (known.first.min(since), known.last.max(to));
            }
        }
        let mut threads: Vec<BusyThread> = of.into_values().collect();
        threads.sort_by_key(|t| (std::cmp::Reverse(t.busy), t.id));
        Ok(Busy { threads, not_looked_at: others.len(), range: Some((from, end)) })
    }
}
