//! Rounds of programs that mark no steps, as their moments arrive.
//!
//! They are written as steps on a track of their process's first thread: the trace of `gpuwhy watch`
//! holds exact rows around findings only, so they could not be found in it again.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use gpuwhy_collect::{OpenStep, Recorder};
use gpuwhy_derive::rounds::Train;
use gpuwhy_schema::{
    Discipline, EntityId, Id, Lane, Ns, Rows, SourceId, Span, Step, Track, TrackId, names, sources,
};

use super::live_busy::LiveBusy;
use super::rounds::{Recurring, process_of};
use super::steps::is_of_steps;

/// The most tracks whose moments are followed.
const FOLLOWED: usize = 1024;
/// CUPTI hands its records over a few times a second, so a moment may be known this much later.
const LATE: Ns = Ns::secs(1);

/// Finds rounds in rows as they arrive.
#[derive(Default)]
pub struct LiveRounds {
    /// A program marks its steps, so rounds are not needed.
    marked: bool,
    /// The source of calls of functions that were named as steps.
    calls: Option<SourceId>,
    followed: HashMap<TrackId, Followed>,
    /// Where the rounds of a process are written.
    processes: HashMap<EntityId, Output>,
    ranks: HashMap<EntityId, u32>,
    /// Programs without a GPU.
    busy: LiveBusy,
}

/// A track whose moments may make rounds.
struct Followed {
    process: EntityId,
    of: Recurring,
    train: Train,
}

/// Where the rounds of a process are written.
struct Output {
    /// The track whose moments make them; a process may have several that could.
    from: TrackId,
    thread: EntityId,
    track: TrackId,
    seq: u64,
    /// The id of the round that has begun.
    next: Id,
}

impl LiveRounds {
    /// Appends the rounds, and busy periods or work quanta of programs without a GPU, that ended to `rows`, as steps. Returns the tracks
    /// made for them.
    pub fn take(
        &mut self,
        rows: &mut Rows,
        source: SourceId,
        recorder: &mut Recorder,
    ) -> Vec<(TrackId, EntityId)> {
        if self.is_marked(rows) {
            self.followed.clear();
            self.busy = LiveBusy::default();
            return Vec::new();
        }
        let calls = rows.track.iter().filter(|t| Some(t.source) == self.calls && is_of_steps(t));
        self.busy.add_calls(calls, recorder);
        if self.busy.has_calls() {
            self.followed.clear();
        } else {
            self.follow(rows, recorder);
        }
        let of_gpu: HashSet<EntityId> = self.followed.values().map(|f| f.process).collect();
        let mut tracks =
            self.busy.take(rows, source, recorder, |process| of_gpu.contains(&process));
        if self.followed.is_empty() {
            return tracks;
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
        let mut ended = Vec::new();
        for (moment, track) in moments {
            let Some(followed) = self.followed.get_mut(&track) else { continue };
            ended.clear();
            followed.train.push(moment, &mut ended);
            let (process, of) = (followed.process, followed.of);
            if ended.is_empty() {
                continue;
            }
            let rank = self.ranks.get(&process).copied();
            let Some(output) = self.output(process, track, source, recorder, &mut tracks) else {
                continue;
            };
            for (from, to) in ended.drain(..) {
                let (id, thread, track) = (output.next, output.thread, output.track);
                let (name, dur) = (of.round_name().into(), Some(to - from));
                rows.span.push(Span { id, ts: from, dur, track, parent: None, name });
                let seq = output.seq;
                rows.step.push(Step { id, ts: from, thread, seq, size: None, rank });
                output.seq += 1;
                output.next = recorder.next_id();
            }
        }
        tracks
    }

    /// Whether a program marks its steps. Calls of functions that were named as steps may be the least of what it does.
    fn is_marked(&mut self, rows: &Rows) -> bool {
        let calls = rows.source.iter().find(|source| &*source.kind == sources::STEPS.kind);
        self.calls = calls.map(|source| source.id).or(self.calls);
        let ours = |track: &TrackId| {
            self.busy.is_output(*track)
                || self.processes.values().any(|output| output.track == *track)
        };
        let marks = |track: &Track| {
            is_of_steps(track) && Some(track.source) != self.calls && !ours(&track.id)
        };
        self.marked |= rows.track.iter().any(marks);
        self.marked
    }

    /// What is compared: `steps`, `rounds`, `busy periods` or `work quanta`.
    pub fn units(&self) -> &'static str {
        if self.busy.has_calls() {
            return match self.busy.units() {
                Some(_) => "steps and busy periods",
                None => "steps",
            };
        }
        match (self.marked, self.processes.is_empty()) {
            (false, false) => "rounds",
            (false, true) => self.busy.units().unwrap_or("steps"),
            _ => "steps",
        }
    }

    /// Follows the new tracks in `rows` that may have rounds.
    fn follow(&mut self, rows: &Rows, recorder: &Recorder) {
        if self.followed.len() >= FOLLOWED && !rows.track.is_empty() {
            self.forget(recorder);
        }
        for track in &rows.track {
            let process = || process_of(track.entity, |id| recorder.entity(id));
            if self.followed.len() < FOLLOWED
                && let Some(of) = Recurring::on_track(&track.name)
                && let Some(process) = process()
            {
                let followed = Followed { process: process.id, of, train: Train::default() };
                self.followed.entry(track.id).or_insert(followed);
            }
        }
    }

    /// Where the rounds that `from` has are written; `None` while those of another track of the process
    /// are. A track stays the source as long as it has rounds, so that no two are mixed in one series;
    /// waits for the GPU take precedence over collectives.
    fn output(
        &mut self,
        process: EntityId,
        from: TrackId,
        source: SourceId,
        recorder: &mut Recorder,
        new_tracks: &mut Vec<(TrackId, EntityId)>,
    ) -> Option<&mut Output> {
        let place = match self.processes.entry(process) {
            Entry::Occupied(output) => {
                let output = output.into_mut();
                let current = self.followed.get(&output.from).filter(|f| f.train.begun().is_some());
                let of = self.followed.get(&from).map(|f| f.of);
                if current.is_none_or(|current| Some(current.of) > of) {
                    output.from = from;
                }
                return (output.from == from).then_some(output);
            }
            Entry::Vacant(place) => place,
        };
        let pid = u32::try_from(recorder.entity(process)?.number?).ok()?;
        let thread = recorder.main_thread(pid);
        let lane = Lane::spans(names::STEPS, Discipline::Overlap);
        let track = recorder.track(thread, lane, source);
        new_tracks.push((track, thread));
        Some(place.insert(Output { from, thread, track, seq: 0, next: recorder.next_id() }))
    }

    /// Forgets processes that have ended.
    fn forget(&mut self, recorder: &Recorder) {
        let lives = |process: &EntityId| recorder.entity(*process).is_some_and(|e| e.to.is_none());
        self.followed.retain(|_, followed| lives(&followed.process));
        self.processes.retain(|process, _| lives(process));
        self.ranks.retain(|process, _| lives(process));
    }

    /// Rounds that began before `before` and have not ended, of processes that are running.
    pub fn open(&self, before: Ns, recorder: &Recorder) -> Vec<OpenStep> {
        let open = |(process, output): (&EntityId, &Output)| {
            let followed = self.followed.get(&output.from)?;
            let ts = followed.train.begun().filter(|ts| *ts < before.saturating_sub(LATE))?;
            let lives = recorder.entity(*process)?.to.is_none();
            lives.then(|| OpenStep {
                id: output.next,
                ts,
                thread: output.thread,
                track: output.track,
                seq: output.seq,
                name: followed.of.round_name().into(),
                size: None,
                rank: self.ranks.get(process).copied(),
            })
        };
        self.processes.iter().filter_map(open).collect()
    }
}
