//! A program for tests of live judgement.

use gpuwhy_diagnose::detect::Incident;
use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Id, Lane, Lanes, Ns, Rows, SourceId, Span, State,
    ThreadState, TrackId, names,
};
use gpuwhy_store::Keep;

use super::references::is_stored;
use super::{LiveJudge, Options, Phase, Sorted, Verdict};

/// How long a step runs, and for how long its control group holds it back.
pub(super) struct Takes {
    pub runs: f64,
    pub throttled: f64,
}

/// A program of the process `server`, and what is told of it.
pub(super) struct World {
    pub judge: LiveJudge,
    pub now: Ns,
    n: u64,
    thread: EntityId,
    steps: TrackId,
    states: TrackId,
    pub slow: Vec<String>,
    pub over: Vec<Verdict>,
    /// How often it is looked at.
    pub every: Ns,
    looked: Ns,
    /// By which share steps are longer than others at most.
    pub noise: f64,
}

impl World {
    pub fn new(governor: &str) -> World {
        let keep = Keep { bytes: 16 << 20, duration: Ns::secs(30) };
        let mut judge = LiveJudge::new(Options::default(), keep);
        let mut lanes = Lanes::default();
        let host = lanes.entity(EntityKind::Host, "h", |e| e.name = "node1".into());
        lanes.entity(EntityKind::Setting, "h/0", |e| {
            e.parent = Some(host);
            e.name = format!("cpu.governor={governor}").as_str().into();
        });
        let process = lanes.entity(EntityKind::Process, "7@1", |e| {
            e.parent = Some(host);
            e.name = "server".into();
            e.number = Some(7);
        });
        let thread = lanes.entity(EntityKind::Thread, "7/7@1", |e| {
            e.parent = Some(process);
            e.name = "engine".into();
            e.number = Some(7);
        });
        let source = SourceId(1);
        let steps = Lane::spans(names::STEPS, Discipline::Nested);
        let steps = lanes.track(thread, None, steps, source);
        let states = Lane::states(names::THREAD_STATE, Discipline::Sparse);
        let states = lanes.track(thread, None, states, source);
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        let exact = rows.clone();
        judge.push(Sorted { aggregates: rows, exact });
        let (slow, over) = (Vec::new(), Vec::new());
        World {
            judge,
            now: Ns::secs(10),
            n: 0,
            thread,
            steps,
            states,
            slow,
            over,
            every: Ns::ZERO,
            looked: Ns::ZERO,
            noise: 0.015,
        }
    }

    /// Runs for so many seconds, and judges as the watcher does.
    pub fn runs(&mut self, seconds: i64, takes: &Takes) {
        let until = self.now + Ns::secs(seconds);
        while self.now < until {
            self.step(takes);
            let now = self.now + Ns::millis(400);
            if now < self.looked + self.every {
                continue;
            }
            self.looked = now;
            match self.judge.look(now) {
                Phase::Calm => {
                    if self.judge.is_sample_due(now) {
                        self.judge.sample(now).unwrap();
                    }
                }
                Phase::Withdrawn(_) => {}
                Phase::Lasts(incident) => {
                    self.begin(&incident, now);
                    if self.judge.is_due(now)
                        && self.judge.examine(&incident, now, Vec::new()).unwrap().is_some()
                    {
                        self.begin(&incident, now);
                    }
                }
                Phase::Over(incident) => {
                    self.begin(&incident, now);
                    let conclusion = self.judge.conclude(&incident, now, Vec::new()).unwrap();
                    let Some(conclusion) = conclusion else { continue };
                    assert!(conclusion.parts.iter().all(|part| !is_stored(part.step)));
                    self.slow.extend(conclusion.began.map(|slow| slow.what));
                    self.over.push(*conclusion.verdict);
                }
            }
        }
    }

    fn begin(&mut self, incident: &Incident, now: Ns) {
        let slow = self.judge.begin(incident, now);
        self.slow.extend(slow.map(|slow| slow.what));
    }

    fn step(&mut self, takes: &Takes) {
        self.n += 1;
        let noise = 1.0 + (self.n * 5 % 7) as f64 / 6.0 * self.noise;
        let ns = |ms: f64| Ns((ms * 1e6 * noise) as i64);
        let (runs, throttled) = (ns(takes.runs), ns(takes.throttled));
        let (id, ts, dur) = (Id::new(1, self.n), self.now, runs + throttled);
        let mut state = Vec::new();
        let mut put = |at: Ns, dur: Ns, value: ThreadState| {
            let (track, value) = (self.states, value.code());
            let row = State { ts: at, dur: Some(dur), track, value, arg: Some(0) };
            state.extend((dur > Ns::ZERO).then_some(row));
        };
        put(ts, runs, ThreadState::Running);
        put(ts + runs, throttled, ThreadState::Throttled);
        put(ts + dur, Ns::millis(1), ThreadState::Running);
        self.now = ts + dur + Ns::millis(1);
        let (track, thread, seq) = (self.steps, self.thread, self.n);
        let span = Span { id, ts, dur: Some(dur), track, parent: None, name: "step".into() };
        let step = gpuwhy_schema::Step { id, ts, thread, seq, size: None, rank: None };
        let aggregates = Rows { span: vec![span], step: vec![step], ..Rows::default() };
        let exact = Rows { state, ..Rows::default() };
        self.judge.push(Sorted { aggregates, exact });
    }
}

pub(super) const USUAL: Takes = Takes { runs: 18.0, throttled: 0.0 };
pub(super) const HELD_BACK: Takes = Takes { runs: 18.0, throttled: 9.0 };
