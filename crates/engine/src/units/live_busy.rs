//! Busy periods of a program that marks no steps and uses no GPU, as its threads' states arrive; of one whose threads have
//! none, work quanta. Where a function was named as a step, and its calls are less than half of what its process does between
//! waits for work, that has busy periods as well: a server may write to its disk after the function has returned.
//!
//! They are written as steps of their threads, as [live rounds](super::live_rounds) are: the trace of `gpuwhy watch`
//! holds exact rows around findings only, so they could not be found in it again.

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use gpuwhy_collect::Recorder;
use gpuwhy_derive::busy_periods::{BusyPeriods, Period};
use gpuwhy_derive::wandering::Requests;
use gpuwhy_derive::work_quanta::WorkQuanta;
use gpuwhy_schema::{
    Discipline, EntityId, Lane, Message, Name, Ns, Rows, SourceId, Span, State, Step, Track,
    TrackId, names,
};

use super::calls::Calls;
use super::of_threads::Kind;

/// Programs that mark steps are given so long to begin with them.
const PATIENCE: Ns = Ns::secs(10);
/// The first ones of a thread are left out: one that lives for a moment has no usual.
const FIRST: u32 = 20;
/// A thread of a pool is new until it has had so many: its own usual is not known, but what requests to its process took by
/// others is.
const NEW: u32 = 100;
/// Threads that are followed at most.
const FOLLOWED: usize = 1024;
/// Tracks of states that are known; if there are more, those of threads that have ended are forgotten, and then
/// those that are not followed.
const KNOWN: usize = 16_384;
/// So many busy periods a second are compared, of all threads together. Where there are more, of each thread one in so many
/// is.
const COMPARED: u32 = 2000;

/// Messages of a thread that are not looked at yet, at most.
const QUEUED: usize = 4096;

/// Finds busy periods in states as they arrive.
#[derive(Default)]
pub(super) struct LiveBusy {
    /// When the first state ended.
    first: Option<Ns>,
    /// The threads of watched processes, by the tracks of their states.
    known: HashMap<TrackId, Known>,
    followed: usize,
    /// What those that are followed sent and received and is not looked at yet.
    messages: HashMap<EntityId, VecDeque<Message>>,
    /// States of watched processes that ended, until all messages before their ends have arrived: they come from another source.
    held: Vec<State>,
    /// The second of the latest period, and how many ended in that.
    second: i64,
    count: u32,
    /// One in so many of each thread's is compared.
    one_in: u32,
    /// Where busy periods and work quanta are written.
    outputs: HashSet<TrackId>,
    /// What each process does, by its units.
    processes: HashMap<EntityId, Does>,
    /// Calls of functions that were named as steps.
    calls: Calls,
    /// The requests to each process, by the tracks of the states of its threads, and where those are written that wander.
    requests: HashMap<EntityId, (Requests<TrackId>, Option<Output>)>,
    /// The thread of each process that answers requests one after the other, is not new and did so last, by the track of its
    /// states.
    answers: HashMap<EntityId, TrackId>,
    /// When what processes do is next made to count less, ns.
    next_fade: i64,
    /// What was written.
    written: [bool; 3],
}

/// How much units of each kind weighed lately, ns.
type Does = [i64; 3];

/// What they weighed counts for half after so long.
const FADES: i64 = 10_000_000_000;

/// A thread, of which nothing else is known unless it is followed.
struct Known {
    thread: EntityId,
    process: EntityId,
    followed: Option<Followed>,
}

/// A thread that is followed.
#[derive(Default)]
struct Followed {
    periods: BusyPeriods,
    quanta: WorkQuanta,
    /// How many it has had, up to [`NEW`].
    had: u32,
    /// Whether it has answered a request.
    answers: bool,
    /// Periods that were not compared since one was.
    skipped: u32,
    output: Option<Output>,
}

/// Where units are written, and how many were.
struct Output {
    track: TrackId,
    seq: u64,
}

/// A unit that has ended, of the thread with this track of states.
struct Ended {
    states: TrackId,
    kind: Kind,
    period: Period,
    /// It is a request that wanders between threads of its process, whose requests are alike.
    wanders: bool,
    /// It is a request that a new thread answered, and is compared with those that this one did.
    like: Option<TrackId>,
}

fn of_track(known: &mut HashMap<TrackId, Known>, track: TrackId) -> Option<&mut Followed> {
    known.get_mut(&track)?.followed.as_mut()
}

impl LiveBusy {
    /// Appends the busy periods of watched processes that ended to `rows`, as steps, but for threads of processes that have
    /// steps of `others`. Returns the tracks made for them, and whose
    /// they are.
    pub fn take(
        &mut self,
        rows: &mut Rows,
        source: SourceId,
        recorder: &mut Recorder,
        has_others: impl Fn(EntityId) -> bool,
    ) -> Vec<(TrackId, EntityId)> {
        for track in rows.track.iter().filter(|track| &*track.name == names::THREAD_STATE) {
            let thread = track.entity;
            let process = recorder.entity(thread).and_then(|thread| thread.parent);
            if let Some(process) = process.filter(|process| recorder.is_watched(*process)) {
                let known = || Known { thread, process, followed: None };
                self.known.entry(track.id).or_insert_with(known);
            }
        }
        if self.known.len() > KNOWN {
            self.forget(recorder);
        }
        self.queue(&rows.message);
        let (mut tracks, mut spans, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        let mut ended: Vec<Ended> = Vec::new();
        for state in &rows.state {
            self.quanta(state, &mut ended);
        }
        let watched = rows.state.iter().filter(|state| self.known.contains_key(&state.track));
        let watched = watched.cloned().collect();
        let held = std::mem::replace(&mut self.held, watched);
        for state in &held {
            self.ended(state, &mut ended);
        }
        self.calls.tick(&rows.span);
        for Ended { states, kind, period, wanders, like } in ended {
            let Some(known) = self.known.get(&states) else { continue };
            let (thread, process) = (known.thread, known.process);
            if has_others(process) || !self.is_what_it_does(process, kind, &period) {
                continue;
            }
            if like.is_some() {
                of_track(&mut self.known, states).into_iter().for_each(|new| new.had += 1);
            }
            let series = like.unwrap_or(states);
            if !self.is_compared(series, &period) {
                continue;
            }
            let (of, output) = match (wanders, self.known.get_mut(&series)) {
                (true, _) => (process, self.requests.get_mut(&process).map(|(_, output)| output)),
                (false, Some(known)) => {
                    (known.thread, known.followed.as_mut().map(|followed| &mut followed.output))
                }
                (false, None) => continue,
            };
            let Some(output) = output else { continue };
            self.written[kind as usize] = true;
            let calls = self.calls.track(of);
            let output = output.get_or_insert_with(|| {
                let lane = Lane::spans(names::STEPS, Discipline::Overlap);
                let track = recorder.track_below(of, calls, lane, source);
                tracks.push((track, of));
                self.outputs.insert(track);
                Output { track, seq: 0 }
            });
            let (id, seq, track) = (recorder.next_id(), output.seq, output.track);
            output.seq += 1;
            let name: Name = kind.recurring().round_name().into();
            let Period { from: ts, to, messages: size, .. } = period;
            let dur = Some(to - ts);
            spans.push(Span { id, ts, dur, track, parent: None, name });
            steps.push(Step { id, ts, thread, seq, size, rank: None });
        }
        rows.span.append(&mut spans);
        rows.step.append(&mut steps);
        tracks
    }

    /// Takes new tracks of calls of functions that were named as steps.
    pub fn add_calls<'a>(&mut self, tracks: impl Iterator<Item = &'a Track>, recorder: &Recorder) {
        self.calls.add(tracks, recorder);
    }

    /// Whether functions were named as steps, and called.
    pub fn has_calls(&self) -> bool {
        self.calls.any()
    }

    /// Takes what threads sent and received.
    fn queue(&mut self, messages: &[Message]) {
        for message in messages {
            let Some(queue) = self.messages.get_mut(&message.thread) else { continue };
            if queue.len() == QUEUED {
                queue.pop_front();
            }
            queue.push_back(message.clone());
        }
    }

    /// What is known of the thread that was in this state, which it is and whose, if it is followed or can be.
    fn followed(&mut self, state: &State) -> Option<(EntityId, EntityId, &mut Followed)> {
        self.first.get_or_insert(state.ts.saturating_add(state.dur?));
        let Known { thread, process, followed } = self.known.get_mut(&state.track)?;
        if followed.is_none() && self.followed < FOLLOWED {
            *followed = Some(Followed::default());
            self.followed += 1;
            self.messages.entry(*thread).or_default();
        }
        Some((*thread, *process, followed.as_mut()?))
    }

    /// Appends the work quanta that ended in a state.
    fn quanta(&mut self, state: &State, ended: &mut Vec<Ended>) {
        let Some((.., followed)) = self.followed(state) else { return };
        let mut found = Vec::new();
        followed.quanta.take(state, &mut found);
        let of = |period| Ended {
            states: state.track,
            kind: Kind::Quantum,
            period,
            wanders: false,
            like: None,
        };
        ended.extend(found.into_iter().map(of));
    }

    /// Appends the busy periods that the end of a wait, or a message before it, ended.
    fn ended(&mut self, state: &State, ended: &mut Vec<Ended>) {
        let Some(end) = state.dur.map(|dur| state.ts.saturating_add(dur)) else { return };
        let Some((thread, process, _)) = self.followed(state) else { return };
        let Some(followed) = of_track(&mut self.known, state.track) else { return };
        let (requests, _) = self.requests.entry(process).or_default();
        let (mut found, mut answered) = (Vec::new(), Vec::new());
        if let Some(messages) = self.messages.get_mut(&thread) {
            while let Some(message) = messages.pop_front_if(|message| message.ts < end) {
                let (request, period) =
                    requests.take_with(state.track, &message, &mut followed.periods);
                answered.extend(request);
                found.extend(period);
            }
        }
        found.extend(followed.periods.take(state));
        followed.answers |= !answered.is_empty();
        let states = state.track;
        let kind = if followed.periods.is_paced() { Kind::Paced } else { Kind::Served };
        if requests.outlast() {
            let wanders = requests.are_alike();
            let of = |(states, period)| Ended {
                states,
                kind: Kind::Served,
                period,
                wanders,
                like: None,
            };
            ended.extend(answered.drain(..).map(of));
            // What lies between the waits of a thread is any part of any request.
            if kind == Kind::Served {
                return;
            }
        }
        let is_new = followed.had < NEW;
        if !is_new && followed.periods.are_requests() {
            self.answers.insert(process, states);
        }
        let like = self.answers.get(&process).copied();
        let like = like.filter(|_| is_new && followed.answers && !requests.outlast());
        if like.is_some() {
            let of = |(states, period)| Ended { states, kind, period, wanders: false, like };
            ended.extend(answered.into_iter().map(of));
            return;
        }
        let of = |period| Ended { states, kind, period, wanders: false, like: None };
        ended.extend(found.into_iter().map(of));
    }

    /// Counts a unit of a process; whether those of its kind are most of what the process does. Where functions were named
    /// as steps, processes that do not call them are left alone.
    fn is_what_it_does(&mut self, process: EntityId, kind: Kind, unit: &Period) -> bool {
        if unit.to.0 >= self.next_fade {
            self.next_fade = unit.to.0.saturating_add(FADES);
            self.processes.values_mut().flatten().for_each(|ns| *ns /= 2);
            self.processes.retain(|_, does| does.iter().any(|ns| *ns > 0));
        }
        if kind == Kind::Served {
            self.calls.period(process, unit.to - unit.from);
        }
        let does = self.processes.entry(process).or_default();
        let this = kind as usize;
        does[this] = does[this].saturating_add(kind.weight(unit));
        let most = Kind::heaviest(Kind::ALL.map(|kind| (kind, does[kind as usize])));
        let beside_calls =
            !self.calls.any() || kind == Kind::Served && self.calls.are_least(process);
        most == Some(kind) && beside_calls
    }

    /// Whether a period is to be compared with others.
    fn is_compared(&mut self, track: TrackId, period: &Period) -> bool {
        let Some(followed) = of_track(&mut self.known, track) else { return false };
        if self.first.is_none_or(|first| period.to < first.saturating_add(PATIENCE)) {
            return false;
        }
        followed.had = (followed.had + 1).min(NEW);
        if followed.had <= FIRST {
            return false;
        }
        followed.skipped += 1;
        // How many are left out only grows, since what a second loses is compared with earlier ones.
        let second = period.to.0.div_euclid(1_000_000_000);
        if second != self.second {
            (self.second, self.count) = (second, 0);
        }
        self.count += 1;
        self.one_in = self.one_in.max(self.count.div_ceil(COMPARED));
        let is_compared = followed.skipped >= self.one_in;
        if is_compared {
            followed.skipped = 0;
        }
        is_compared
    }

    /// What was written, in words; none if nothing was.
    pub fn units(&self) -> Option<&'static str> {
        match self.written {
            [false, false, false] => None,
            [false, false, true] => Some("work quanta"),
            _ => Some("busy periods"),
        }
    }

    /// Whether busy periods are written there.
    pub fn is_output(&self, track: TrackId) -> bool {
        self.outputs.contains(&track)
    }

    /// Forgets threads that have ended.
    fn forget(&mut self, recorder: &Recorder) {
        let lives = |thread: EntityId| recorder.entity(thread).is_some_and(|e| e.to.is_none());
        self.known.retain(|_, known| lives(known.thread));
        if self.known.len() > KNOWN {
            self.known.retain(|_, known| known.followed.is_some());
        }
        let threads: HashSet<EntityId> = self.known.values().map(|known| known.thread).collect();
        self.messages.retain(|thread, _| threads.contains(thread));
        let processes: HashSet<EntityId> = self.known.values().map(|known| known.process).collect();
        self.requests.retain(|process, _| processes.contains(process));
        self.answers.retain(|_, track| self.known.contains_key(track));
        self.calls.retain(lives, &processes);
        // Tracks that were made before have been seen among the rows by now.
        let followed = || self.known.values().filter_map(|known| known.followed.as_ref());
        let of_threads = followed().filter_map(|followed| followed.output.as_ref());
        let of_processes = self.requests.values().filter_map(|(_, output)| output.as_ref());
        self.outputs = of_threads.chain(of_processes).map(|output| output.track).collect();
        self.followed = followed().count();
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Direction, Id, ThreadState};

    use super::*;

    const READ: i64 = 0;

    fn waits(track: TrackId, ts: Ns) -> State {
        let (dur, value) = (Some(Ns(10_000)), ThreadState::Sleep.code());
        State { ts, dur, track, value, arg: Some(READ) }
    }

    fn known(thread: EntityId) -> Known {
        Known { thread, process: EntityId(7), followed: None }
    }

    /// What a thread does until a wait and then; the units that end.
    fn runs_and_waits(busy: &mut LiveBusy, wait: &State) -> Vec<Ended> {
        // No record is missing in between.
        let since = Ns(wait.ts.0 - Ns::secs(1).0);
        let (ts, dur, value) = (since, Some(Ns::secs(1)), ThreadState::Running.code());
        let mut found = Vec::new();
        busy.ended(&State { ts, dur, value, ..wait.clone() }, &mut found);
        busy.ended(wait, &mut found);
        found
    }

    /// The busy periods that a wait ended, of those that are to be compared.
    fn ended(busy: &mut LiveBusy, wait: &State) -> Vec<Period> {
        let found = runs_and_waits(busy, wait);
        let periods = found.into_iter().map(|ended| ended.period);
        periods.filter(|period| busy.is_compared(wait.track, period)).collect()
    }

    /// So many busy periods in each of these seconds; how many of each are compared.
    fn compared(seconds: &[i64]) -> Vec<usize> {
        let track = TrackId(1);
        let mut busy = LiveBusy::default();
        busy.known.insert(track, known(EntityId(1)));
        let in_second = |(second, many): (usize, &i64)| {
            let at = |n: i64| Ns((second as i64 * many + n) * 1_000_000_000 / many);
            (0..*many).map(|n| ended(&mut busy, &waits(track, at(n))).len()).sum()
        };
        seconds.iter().enumerate().map(in_second).collect()
    }

    #[test]
    fn nothing_is_compared_of_a_program_that_may_mark_its_steps_yet() {
        assert_eq!(compared(&[100; 12])[..10], [0; 10]);
        assert_eq!(compared(&[100; 13])[12], 100);
    }

    /// A thread that runs for 8 ms, has no CPU for 4 ms, and so on, for so many seconds, and never waits; how many of its
    /// quanta are compared in each.
    #[test]
    fn quanta_are_compared_of_a_thread_that_never_waits() {
        let track = TrackId(1);
        let mut busy = LiveBusy::default();
        busy.known.insert(track, known(EntityId(1)));
        let mut compared = vec![0; 15];
        for n in 0..1250 {
            for (kind, at, ms) in [(ThreadState::Running, 0, 8), (ThreadState::Runnable, 8, 4)] {
                let (ts, dur) = (Ns::millis(12 * n + at), Some(Ns::millis(ms)));
                let mut found = Vec::new();
                busy.quanta(&State { ts, dur, track, value: kind.code(), arg: None }, &mut found);
                for Ended { kind, period, .. } in found {
                    assert_eq!(kind, Kind::Quantum);
                    let second = (period.to.0 / 1_000_000_000) as usize;
                    compared[second] += usize::from(busy.is_compared(track, &period));
                }
            }
        }
        assert_eq!((compared[..10].iter().sum::<usize>(), compared[14]), (0, 67), "{compared:?}");
    }

    /// A server that receives two messages in each of its periods, but for one that receives five.
    #[test]
    fn a_period_knows_how_many_messages_were_received_in_it() {
        let (track, thread) = (TrackId(1), EntityId(1));
        let mut busy = LiveBusy::default();
        busy.known.insert(track, known(thread));
        let mut counted = Vec::new();
        for period in 0..2000 {
            let at = Ns::millis(10 * period);
            let many: i64 = if period == 1990 { 5 } else { 2 };
            let message = |n| Message {
                id: Id(1),
                ts: at + Ns::millis(1 + n),
                thread,
                direction: Direction::Receive,
                flow: 1,
                bytes: 100,
                position: 0,
            };
            busy.queue(&(0..many).map(message).collect::<Vec<_>>());
            let ended = ended(&mut busy, &waits(track, at + Ns::millis(9)));
            counted.extend(ended.iter().map(|period| period.messages));
        }
        assert_eq!(counted.len(), 1000 - FIRST as usize, "after the first ten seconds");
        assert_eq!(counted.iter().filter(|n| **n == Some(2)).count(), counted.len() - 1);
        assert_eq!(counted[counted.len() - 10], Some(5));
    }

    /// A runtime of two threads that wait in turn, each for 4 of 5 ms; the second one answers half of what the first one receives,
    /// and it answers 3 ms after it could be received. All units that last, in ms.
    #[test]
    fn where_requests_wander_they_are_compared_and_not_what_lies_between_waits() {
        let mut busy = LiveBusy::default();
        let threads = [1, 2].map(EntityId);
        for thread in threads {
            busy.known.insert(TrackId(thread.0), known(thread));
            busy.followed(&waits(TrackId(thread.0), Ns::ZERO));
        }
        let mut lasted = Vec::new();
        for n in 0..600 {
            let (at, ms) = (Ns::millis(5 * n), Ns::millis(1));
            let by = threads[(n % 2) as usize];
            let message = |thread, direction, answers: u64, ts| Message {
                id: Id(1),
                ts,
                thread,
                direction,
                flow: 0xf7 << 56 | 0b10 | answers,
                bytes: 100,
                position: 0,
            };
            busy.queue(&[message(threads[0], Direction::Receive, 0, at + ms)]);
            busy.queue(&[message(by, Direction::Send, 1, at + ms + ms)]);
            for thread in threads {
                let wait = State { dur: Some(ms), ..waits(TrackId(thread.0), at + ms + ms + ms) };
                let found = runs_and_waits(&mut busy, &wait);
                lasted.extend(found.into_iter().map(|ended| {
                    assert!(ended.wanders || n < 400, "they are the process's");
                    (n, (ended.period.to - ended.period.from).0)
                }));
            }
        }
        let after = lasted.iter().filter(|(n, _)| *n >= 100);
        assert!(after.clone().count() >= 499, "{}", after.count());
        assert!(after.clone().all(|(_, ns)| *ns == 3_000_000), "from the end of the wait");
    }

    /// A pool whose first thread has answered 130 requests, when another one takes over. Whose each unit is like, and how long it
    /// lasted, ms.
    #[test]
    fn requests_that_a_new_thread_answers_are_compared_with_those_of_the_thread_before_it() {
        let mut busy = LiveBusy { first: Some(Ns(-PATIENCE.0)), ..LiveBusy::default() };
        let tracks = [TrackId(1), TrackId(2)];
        for track in tracks {
            busy.known.insert(track, known(EntityId(track.0)));
            busy.followed(&waits(track, Ns::ZERO));
        }
        let mut of_new = Vec::new();
        for n in 0..260 {
            let (at, ms) = (Ns::millis(5 * n), Ns::millis(1));
            let track = tracks[usize::from(n >= 130)];
            let message = |direction, answers: u64, ts| Message {
                id: Id(1),
                ts,
                thread: EntityId(track.0),
                direction,
                flow: 0xf7 << 56 | 0b10 | answers,
                bytes: 100,
                position: 0,
            };
            // It is woken, receives the request and answers it; then it waits again.
            runs_and_waits(&mut busy, &State { dur: Some(ms), ..waits(track, at) });
            busy.queue(&[message(Direction::Receive, 0, at + ms + Ns(1))]);
            busy.queue(&[message(Direction::Send, 1, at + ms + ms)]);
            let wait = State { dur: Some(ms), ..waits(track, at + ms + ms + ms) };
            for Ended { states, period, like, .. } in runs_and_waits(&mut busy, &wait) {
                assert_eq!(states, track);
                busy.is_compared(like.unwrap_or(states), &period);
                of_track(&mut busy.known, states).unwrap().had += u32::from(like.is_some());
                of_new.extend((n >= 130).then_some((like, (period.to - period.from).0)));
            }
        }
        let stands_in = of_new.iter().take_while(|unit| **unit == (Some(tracks[0]), 1_000_000));
        assert_eq!(stands_in.count(), NEW as usize, "{of_new:?}");
        assert_eq!(of_new.last().unwrap().0, None, "it has a usual of its own by now");
    }

    /// Whether units of a kind that last for so many ms are compared, of a process that did this before, in ms.
    fn is_compared(before: [i64; 3], kind: Kind, ms: i64) -> bool {
        let mut busy = LiveBusy::default();
        let process = EntityId(7);
        busy.processes.insert(EntityId(7), before.map(|ms| ms * 1_000_000));
        busy.next_fade = FADES;
        busy.is_what_it_does(process, kind, &unit(ms, ms))
    }

    /// A unit that lasts for so many ms, in so many of which its thread runs.
    fn unit(ms: i64, ran: i64) -> Period {
        Period { from: Ns::ZERO, to: Ns::millis(ms), messages: None, ran: Ns::millis(ran) }
    }

    /// A runtime has a thread that looks after the others, which sleeps for a time, and for as long as there is nothing to do.
    #[test]
    fn a_server_is_not_judged_by_its_monitor() {
        let (mut busy, process) = (LiveBusy::default(), EntityId(7));
        busy.next_fade = FADES;
        for _ in 0..20 {
            busy.is_what_it_does(process, Kind::Paced, &unit(9, 0));
            assert!(busy.is_what_it_does(process, Kind::Served, &unit(2, 1)));
        }
        assert!(!busy.is_what_it_does(process, Kind::Paced, &unit(9, 0)));
    }

    #[test]
    fn a_process_is_judged_by_the_units_that_it_does_most() {
        assert!(is_compared([0, 0, 0], Kind::Quantum, 10), "a solver");
        assert!(is_compared([5, 0, 900], Kind::Quantum, 10), "with a thread for messages");
        assert!(!is_compared([5, 0, 900], Kind::Served, 10));
        assert!(is_compared([900, 0, 500], Kind::Served, 2), "a server with a compiler");
        assert!(!is_compared([900, 0, 500], Kind::Quantum, 10));
        assert!(!is_compared([900, 0, 0], Kind::Paced, 1), "a server with a timer");
        assert!(!is_compared([20, 0, 10], Kind::Quantum, 10), "what says more, of two alike");
    }

    #[test]
    fn what_a_process_does_no_longer_is_forgotten() {
        let (mut busy, process) = (LiveBusy::default(), EntityId(7));
        let mut unit = |kind, second: i64| {
            let (from, to) = (Ns::millis(second * 1000), Ns::millis(second * 1000 + 100));
            busy.is_what_it_does(process, kind, &Period { from, to, messages: None, ran: Ns::ZERO })
        };
        (0..60).for_each(|second| {
            unit(Kind::Served, second);
        });
        let taken_for_it = (60..200).find(|second| unit(Kind::Quantum, *second));
        assert!(taken_for_it.is_some_and(|at| (65..90).contains(&at)), "{taken_for_it:?}");
    }

    #[test]
    fn of_very_many_one_in_so_many_is_compared_from_then_on() {
        let mut seconds = vec![100; 11];
        seconds.extend([10_000, 10_000, 1000]);
        let compared = compared(&seconds);
        assert!((2000..=5000).contains(&compared[11]), "{compared:?}");
        assert_eq!(compared[12..], [2000, 200], "seconds stay comparable");
    }
}
