//! Calls of functions that were named as steps, beside the busy periods of the processes that make them.
//!
//! A server may do most of its work before and after the function: Redis writes its log when the command has returned. In
//! each tick it is counted whether calls took less than half as long as busy periods, and most ticks of late decide, of a
//! recording all of them, so that a few long calls do not.

use foldhash::{HashMap, HashSet};
use gpuwhy_collect::Recorder;
use gpuwhy_schema::{EntityId, Ns, Span, Track, TrackId};

/// Tracks of calls that are known, at most.
const KNOWN: usize = 16_384;
/// Each tick makes those before it count for less by one part in so many.
const LATE: f64 = 512.0;

/// In a recording, a tick is as long as one of `watch` is.
const TICK: i64 = 100_000_000;

/// Whether calls are the least of what a process did in a tick in which its busy periods took so long, both in ns.
fn least_of(calls: i64, periods: i64) -> bool {
    calls.saturating_mul(2) < periods
}

/// A call or a busy period of a recording: of which process, when it ended, and how long it took.
pub(super) type Took = (EntityId, Ns, Ns);

/// The processes that make calls which are the least of what they do, of a recording.
pub(super) fn least(
    calls: impl Iterator<Item = Took>,
    periods: impl Iterator<Item = Took>,
) -> HashSet<EntityId> {
    let mut processes: HashMap<EntityId, HashMap<i64, (i64, i64)>> = HashMap::default();
    for (process, end, dur) in calls {
        let ticks = processes.entry(process).or_default();
        let tick = ticks.entry(end.0.div_euclid(TICK)).or_default();
        tick.0 = tick.0.saturating_add(dur.0);
    }
    for (process, end, dur) in periods {
        let Some(ticks) = processes.get_mut(&process) else { continue };
        let tick = ticks.entry(end.0.div_euclid(TICK)).or_default();
        tick.1 = tick.1.saturating_add(dur.0);
    }
    let are_least = |ticks: &HashMap<i64, (i64, i64)>| {
        let least = ticks.values().filter(|(calls, periods)| least_of(*calls, *periods));
        least.count() * 2 > ticks.len()
    };
    processes.retain(|_, ticks| are_least(ticks));
    processes.into_keys().collect()
}

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
        self.least += f64::from(u8::from(least_of(calls, periods)));
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

    /// A recording of 40 s with calls of 1 of each 10 ms, of 300 ms for 8 s, and a process that makes none.
    #[test]
    fn of_a_recording_all_ticks_decide() {
        let at = |n: i64| Ns::millis(10 * (n + 1));
        let periods = || (0..4000).map(|n| (PROCESS, at(n), Ns::millis(10)));
        let others = || (0..4000).map(|n| (EntityId(8), at(n), Ns::millis(10)));
        let calls = |long: std::ops::Range<i64>, ms: i64| {
            let call =
                move |n| (PROCESS, at(n), Ns::millis(if long.contains(&n) { ms } else { 1 }));
            (0..4000).map(call)
        };
        let least = |calls| least(calls, periods().chain(others())).into_iter().collect::<Vec<_>>();
        assert_eq!(least(calls(1000..1800, 300)), [PROCESS]);
        assert_eq!(least(calls(0..4000, 6)), [], "the function says it all");
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
