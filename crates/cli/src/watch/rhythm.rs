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
    /// Whose rounds are told, of several lanes that have some.
    heard: TrackId,
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
        if self.followed.len() >= FOLLOWED && !rows.track.is_empty() {
            self.forget(cx);
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
            ended.clear();
            followed.train.push(moment, &mut ended);
            let (process, of) = (followed.process, followed.of);
            if ended.is_empty() {
                continue;
            }
            let rank = self.ranks.get(&process).copied();
            let Some(home) = self.home(process, track, source, cx, &mut lanes) else { continue };
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

    /// Where the rounds of a process go that are those of `from`; `None` where another lane's are told.
    /// One is told as long as it has rounds, so that no two make one series, and waits before
    /// collectives.
    fn home(
        &mut self,
        process: EntityId,
        from: TrackId,
        source: SourceId,
        cx: &mut Context,
        lanes: &mut Vec<TrackId>,
    ) -> Option<&mut Home> {
        let place = match self.processes.entry(process) {
            Entry::Occupied(home) => {
                let home = home.into_mut();
                let told = self.followed.get(&home.heard).filter(|f| f.train.begun().is_some());
                let of = self.followed.get(&from).map(|f| f.of);
                if told.is_none_or(|told| Some(told.of) > of) {
                    home.heard = from;
                }
                return (home.heard == from).then_some(home);
            }
            Entry::Vacant(place) => place,
        };
        let pid = u32::try_from(cx.lanes.get(process)?.number?).ok()?;
        let thread = cx.people.thread(&mut cx.lanes, pid, pid, None);
        let lane = Lane::spans(names::STEPS, Discipline::Overlap);
        let track = cx.lanes.track(thread, None, lane, source);
        lanes.push(track);
        Some(place.insert(Home { heard: from, thread, track, seq: 0, next: cx.ids.next_id() }))
    }

    /// Who has ended comes by nothing any more.
    fn forget(&mut self, cx: &Context) {
        let lives = |process: &EntityId| cx.lanes.get(*process).is_some_and(|e| e.to.is_none());
        self.followed.retain(|_, followed| lives(&followed.process));
        self.processes.retain(|process, _| lives(process));
        self.ranks.retain(|process, _| lives(process));
    }

    /// Rounds that began before `before` and have not ended, of processes that live.
    pub fn open(&self, before: Ns, cx: &Context) -> Vec<OpenStep> {
        let open = |(process, home): (&EntityId, &Home)| {
            let heard = self.followed.get(&home.heard)?;
            let ts = heard.train.begun().filter(|ts| *ts < before.saturating_sub(LATE))?;
            let lives = cx.lanes.get(*process)?.to.is_none();
            lives.then(|| OpenStep {
                id: home.next,
                ts,
                thread: home.thread,
                track: home.track,
                seq: home.seq,
                name: heard.of.name().into(),
                size: None,
                rank: self.ranks.get(process).copied(),
            })
        };
        self.processes.iter().filter_map(open).collect()
    }
}
