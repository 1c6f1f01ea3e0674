//! Calls of functions that were named as steps, beside the busy periods of the processes that make them.
//!
//! A server may do most of its work before and after the function: Redis writes its log when the command has returned. In
//! each tick it is counted whether calls took less than half as long as busy periods, and most ticks of late decide, so that
//! a few long calls do not.

use std::collections::{HashMap, HashSet};

use gpuwhy_collect::Recorder;
use gpuwhy_schema::{EntityId, Ns, Span, Track, TrackId};

/// Tracks of calls that are known, at most.
const KNOWN: usize = 16_384;
/// Each tick makes those before it count for less by one part in so many.
const LATE: f64 = 512.0;

/// The calls of all processes.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Where they are written, by their threads.
    tracks: HashMap<EntityId, TrackId>,
    /// Of which process those on a track are.
    of: HashMap<TrackId, EntityId>,
    processes: HashMap<EntityId, Ticks>,
}

/// What a process does.
#[derive(Debug, Default)]
struct Ticks {
    /// How long calls and busy periods took in the present tick, ns.
    calls: i64,
    periods: i64,
    /// Ticks in which calls were the least of it, and all of which something is known.
    least: f64,
    all: f64,
}

impl Calls {
    /// Takes new tracks of calls.
    pub fn add<'a>(&mut self, tracks: impl Iterator<Item = &'a Track>, recorder: &Recorder) {
        for track in tracks {
            let process = recorder.entity(track.entity).and_then(|thread| thread.parent);
            if let Some(process) = process.filter(|_| self.tracks.len() < KNOWN) {
                self.insert(track.entity, track.id, process);
            }
        }
    }

    fn insert(&mut self, thread: EntityId, track: TrackId, process: EntityId) {
        self.tracks.insert(thread, track);
        self.of.insert(track, process);
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        !self.tracks.is_empty()
    }

    /// Where those of a thread are written.
    pub fn track(&self, thread: EntityId) -> Option<TrackId> {
        self.tracks.get(&thread).copied()
    }

    /// Takes the spans that ended in a tick, and counts the tick before it.
    pub fn tick(&mut self, spans: &[Span]) {
        self.processes.values_mut().for_each(Ticks::count);
        if !self.any() {
            return;
        }
        for span in spans {
            if let Some((process, dur)) = self.of.get(&span.track).zip(span.dur) {
                let ticks = self.processes.entry(*process).or_default();
                ticks.calls = ticks.calls.saturating_add(dur.0);
            }
        }
    }

    /// Takes a busy period of a process.
    pub fn period(&mut self, process: EntityId, dur: Ns) {
        if let Some(ticks) = self.processes.get_mut(&process) {
            ticks.periods = ticks.periods.saturating_add(dur.0);
        }
    }

    /// Whether a process makes calls, and they are the least of what it does.
    pub fn are_least(&self, process: EntityId) -> bool {
        self.processes.get(&process).is_some_and(|ticks| ticks.least * 2.0 > ticks.all)
    }

    /// Forgets threads that are not among these, and what is not of these processes.
    pub fn retain(&mut self, lives: impl Fn(EntityId) -> bool, processes: &HashSet<EntityId>) {
        self.tracks.retain(|thread, _| lives(*thread));
        self.of.retain(|_, process| processes.contains(process));
        self.processes.retain(|process, _| processes.contains(process));
    }
}

impl Ticks {
    fn count(&mut self) {
        let (calls, periods) = (std::mem::take(&mut self.calls), std::mem::take(&mut self.periods));
        if calls == 0 && periods == 0 {
            return;
        }
        self.least -= self.least / LATE;
        self.all += 1.0 - self.all / LATE;
        self.least += f64::from(u8::from(calls.saturating_mul(2) < periods));
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::Id;

    use super::*;

    const PROCESS: EntityId = EntityId(7);

    /// Ticks of a busy period of 10 ms with calls of so many ms each.
    fn ticks(calls: &mut Calls, many: u32, calls_ms: i64) {
        for _ in 0..many {
            let (dur, name) = (Some(Ns::millis(calls_ms)), "call".into());
            let track = TrackId(3);
            calls.tick(&[Span { id: Id(1), ts: Ns::ZERO, dur, track, parent: None, name }]);
            calls.period(PROCESS, Ns::millis(10));
        }
    }

    fn known() -> Calls {
        let mut calls = Calls::default();
        calls.insert(EntityId(1), TrackId(3), PROCESS);
        calls
    }

    #[test]
    fn calls_are_the_least_if_they_take_less_than_half_of_busy_periods() {
        let least = |calls_ms: i64| {
            let mut calls = known();
            ticks(&mut calls, 10, calls_ms);
            (calls.are_least(PROCESS), calls.are_least(EntityId(8)))
        };
        assert_eq!(least(4), (true, false), "what the function does not do");
        assert_eq!(least(6), (false, false), "the function says it all");
        assert!(!Calls::default().are_least(PROCESS));
    }

    /// Someone has all keys looked through for eight seconds.
    #[test]
    fn some_seconds_of_long_calls_do_not_change_what_a_process_does() {
        let mut calls = known();
        ticks(&mut calls, 400, 1);
        ticks(&mut calls, 160, 300);
        assert!(calls.are_least(PROCESS));
        ticks(&mut calls, 1200, 300);
        assert!(!calls.are_least(PROCESS), "in the end it is another program");
    }
}
