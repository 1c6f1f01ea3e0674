//! Steps of programs that mark none, as they come: rounds of their GPU waits or collectives.
//!
//! They are written as steps on a lane of their process's first thread, so that whoever reads the trace,
//! which has only what lay around findings, need not find them again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use gpuwhy_collect::{Context, OpenStep};
use gpuwhy_derive::rounds::Train;
use gpuwhy_schema::{
    Discipline, EntityId, Id, Lane, Ns, Rows, SourceId, Span, Step, TrackId, names,
};

use crate::rounds::{Of, process_of};

/// Lanes whose moments are followed.
const FOLLOWED: usize = 1024;
/// CUPTI hands out what it knows a few times a second, when its buffers are asked for.
const LATE: Ns = Ns::secs(1);

/// What comes again and again, by lane.
#[derive(Default)]
pub struct Rhythm {
    /// Somebody marks steps: he knows better.
    marked: bool,
    followed: HashMap<TrackId, Followed>,
    /// Where rounds of a process go.
    processes: HashMap<EntityId, Home>,
    ranks: HashMap<EntityId, u32>,
}

struct Followed {
    process: EntityId,
    of: Of,
    train: Train,
}

struct Home {
    thread: EntityId,
    track: TrackId,
    seq: u64,
    /// What the round that has begun will be called by.
    next: Id,
}

impl Rhythm {
    /// Adds steps to rows that have come, if there are rounds in them; returns new lanes of steps.
    pub fn take(&mut self, rows: &mut Rows, source: SourceId, cx: &mut Context) -> Vec<TrackId> {
        let ours = |track: &TrackId| self.processes.values().any(|home| home.track == *track);
        let steps = rows.track.iter().filter(|t| &*t.name == names::STEPS);
        if self.marked || steps.map(|t| t.id).any(|id| !ours(&id)) {
            self.marked = true;
            self.followed.clear();
            return Vec::new();
        }
        for track in &rows.track {
            let process = || process_of(track.entity, |id| cx.lanes.get(id));
            if self.followed.len() < FOLLOWED
                && let Some(of) = Of::lane(&track.name)
                && let Some(process) = process()
            {
                let followed = Followed { process: process.id, of, train: Train::default() };
                self.followed.entry(track.id).or_insert(followed);
            }
        }
        if self.followed.is_empty() {
            return Vec::new();
        }
        let ranks: HashMap<Id, u32> = rows.collective.iter().map(|c| (c.id, c.rank)).collect();
        let mut moments: Vec<(Ns, TrackId)> = Vec::new();
        for span in &rows.span {
            let Some(followed) = self.followed.get(&span.track) else { continue };
            moments.extend(followed.of.moment(span).map(|moment| (moment, span.track)));
            if let Some(rank) = ranks.get(&span.id) {
                self.ranks.insert(followed.process, *rank);
            }
        }
        moments.sort_unstable();
        let (mut lanes, mut ended) = (Vec::new(), Vec::new());
        for (moment, track) in moments {
            let Some(followed) = self.followed.get_mut(&track) else { continue };
            followed.train.push(moment, &mut ended);
            let (process, of) = (followed.process, followed.of);
            if ended.is_empty() || !self.is_heard(process, of) {
                ended.clear();
                continue;
            }
            let rank = self.ranks.get(&process).copied();
            let Some(home) = self.home(process, source, cx, &mut lanes) else { continue };
            for (from, to) in ended.drain(..) {
                let (id, thread, track) = (home.next, home.thread, home.track);
                let (name, dur) = (of.name().into(), Some(to - from));
                rows.span.push(Span { id, ts: from, dur, track, parent: None, name });
                let seq = home.seq;
                rows.step.push(Step { id, ts: from, thread, seq, size: None, rank });
                home.seq += 1;
                home.next = cx.ids.next_id();
            }
        }
        lanes
    }

    /// Whether rounds of this kind count: waits before collectives.
    fn is_heard(&self, process: EntityId, of: Of) -> bool {
        let waits = |f: &&Followed| f.process == process && f.of == Of::GpuWaits;
        of == Of::GpuWaits
            || !self.followed.values().filter(waits).any(|f| f.train.begun().is_some())
    }

    fn home(
        &mut self,
        process: EntityId,
        source: SourceId,
        cx: &mut Context,
        lanes: &mut Vec<TrackId>,
    ) -> Option<&mut Home> {
        let place = match self.processes.entry(process) {
            Entry::Occupied(home) => return Some(home.into_mut()),
            Entry::Vacant(place) => place,
        };
        let pid = u32::try_from(cx.lanes.get(process)?.number?).ok()?;
        let thread = cx.people.thread(&mut cx.lanes, pid, pid, None);
        let lane = Lane::spans(names::STEPS, Discipline::Overlap);
        let track = cx.lanes.track(thread, None, lane, source);
        lanes.push(track);
        Some(place.insert(Home { thread, track, seq: 0, next: cx.ids.next_id() }))
    }

    /// Rounds that began before `before` and have not ended, of processes that live.
    pub fn open(&self, before: Ns, cx: &Context) -> Vec<OpenStep> {
        let open = |followed: &Followed| {
            let ts = followed.train.begun().filter(|ts| *ts < before.saturating_sub(LATE))?;
            let lives = cx.lanes.get(followed.process)?.to.is_none();
            let home = self.processes.get(&followed.process)?;
            (lives && self.is_heard(followed.process, followed.of)).then(|| OpenStep {
                id: home.next,
                ts,
                thread: home.thread,
                track: home.track,
                seq: home.seq,
                name: followed.of.name().into(),
                size: None,
                rank: self.ranks.get(&followed.process).copied(),
            })
        };
        self.followed.values().filter_map(open).collect()
    }
}
