use std::path::Path;

use gpuwhy_schema::{
    Discipline, EntityKind, Lane, Lanes, SourceId, Span, State, ThreadState, TrackId, names,
};
use gpuwhy_store::Keep;

use super::super::{LiveJudge, Options, Phase, Sorted, Verdict};
use super::*;

/// How long a step runs, and for how long its control group holds it back.
struct Takes {
    runs: f64,
    throttled: f64,
}

/// A program of the process `server`, and what is told of it.
struct World {
    judge: LiveJudge,
    now: Ns,
    n: u64,
    thread: EntityId,
    steps: TrackId,
    states: TrackId,
    slow: Vec<String>,
    over: Vec<Verdict>,
}

impl World {
    fn new(reference: &Path, governor: &str) -> World {
        let keep = Keep { bytes: 16 << 20, duration: Ns::secs(30) };
        let mut judge = LiveJudge::new(Options::default(), keep);
        judge.set_references(References::open(reference).unwrap());
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
        World { judge, now: Ns::secs(10), n: 0, thread, steps, states, slow, over }
    }

    /// Runs for so many seconds, and judges as the watcher does.
    fn runs(&mut self, seconds: i64, takes: &Takes) {
        let until = self.now + Ns::secs(seconds);
        while self.now < until {
            self.step(takes);
            let now = self.now + Ns::millis(400);
            match self.judge.look(now) {
                Phase::Calm => {
                    if self.judge.is_sample_due(now) {
                        self.judge.sample(now).unwrap();
                    }
                }
                Phase::Withdrawn(_) => {}
                Phase::Lasts(incident) => {
                    let slow = self.judge.begin(&incident, now);
                    self.slow.extend(slow.map(|slow| slow.what));
                    if self.judge.is_due(now) {
                        self.judge.examine(&incident, now, Vec::new()).unwrap();
                    }
                }
                Phase::Over(incident) => {
                    let slow = self.judge.begin(&incident, now);
                    self.slow.extend(slow.map(|slow| slow.what));
                    let conclusion =
                        self.judge.conclude(&incident, now, Vec::new()).unwrap().unwrap();
                    assert!(conclusion.parts.iter().all(|part| !is_stored(part.step)));
                    self.over.push(*conclusion.verdict);
                }
            }
        }
    }

    fn step(&mut self, takes: &Takes) {
        self.n += 1;
        let noise = 1.0 + (self.n % 7) as f64 / 400.0;
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

const USUAL: Takes = Takes { runs: 18.0, throttled: 0.0 };
const HELD_BACK: Takes = Takes { runs: 18.0, throttled: 9.0 };

/// A folder with a reference of two recordings.
fn with_reference() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.json");
    for recording in 1..3 {
        let mut world = World::new(&path, "performance");
        world.runs(150, &USUAL);
        assert_eq!(world.slow.len(), 0, "{:?}", world.slow);
        assert_eq!(world.judge.write_reference(1_000).unwrap(), Some(1));
        let file = File::parse(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(file.series[0].levels.len(), recording);
        assert_eq!(file.series[0].steps.len(), file::STEPS);
    }
    (folder, path)
}

#[test]
fn a_server_that_is_held_back_from_its_first_step_on_is_told_with_its_cause() {
    let (_folder, path) = with_reference();
    let before = fs::read_to_string(&path).unwrap();
    let mut world = World::new(&path, "powersave");
    world.runs(200, &HELD_BACK);
    assert_eq!(world.slow.len(), 1, "{:?}", world.slow);
    let slow = &world.slow[0];
    assert!(slow.contains("(+9.1) beside the reference (2 recordings, the latest"), "{slow}");
    let [over] = &world.over[..] else { panic!("{:?}", world.over) };
    let finding = &over.finding;
    assert_eq!(finding.class, "cpu_throttling", "{}", finding.summary);
    assert!((finding.excess_ms - 9.1).abs() < 0.3, "{}", finding.excess_ms);
    assert!(finding.summary.contains("in the reference: cpu_throttling"), "{}", finding.summary);
    assert_eq!(over.differs, ["cpu.governor is `powersave`, was `performance`"]);
    // What is slow is no reference.
    assert_eq!(world.judge.write_reference(2_000).unwrap(), None);
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
}

#[test]
fn a_server_that_takes_what_it_took_is_calm_and_adds_to_the_reference() {
    let (_folder, path) = with_reference();
    let mut world = World::new(&path, "performance");
    world.runs(150, &Takes { runs: 18.6, throttled: 0.0 });
    assert_eq!(world.slow.len(), 0, "{:?}", world.slow);
    assert_eq!(world.judge.write_reference(2_000).unwrap(), Some(1));
    let file = File::parse(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!((file.series[0].levels.len(), file.latest_s), (3, 2_000));
}

#[test]
fn a_disturbance_of_a_minute_is_one_incident_and_no_second_one_beside_the_reference() {
    let (_folder, path) = with_reference();
    let mut world = World::new(&path, "performance");
    world.runs(60, &USUAL);
    world.runs(60, &HELD_BACK);
    world.runs(60, &USUAL);
    assert_eq!(world.over.len(), 1, "{:?}", world.slow);
    assert!(world.slow[0].contains("instead of"), "{:?}", world.slow);
}

#[test]
fn a_file_that_is_no_reference_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    fs::write(&path, "{\"format\": 1}").unwrap();
    let Err(error) = References::open(&path) else { panic!("opened") };
    assert!(error.to_string().contains("x.json"), "{error}");
    assert!(error.to_string().contains("line 1"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"format\": 1}");
}

#[test]
fn a_reference_that_cannot_be_written_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gone/server.json");
    let mut world = World::new(&path, "performance");
    world.runs(150, &USUAL);
    let error = world.judge.write_reference(1).unwrap_err();
    assert!(error.to_string().contains("gone/server.json"), "{error}");
}

/// Steps whose batches say what they should take, by stored prices.
#[test]
fn steps_with_prices_are_compared_as_times_of_what_they_should_take() {
    let signature = Signature {
        thread: EntityId(1),
        name: "step".into(),
        size_class: None,
        mix: Some(Mix::Decode),
        kind: 0,
    };
    let step = |n: u64, ns: f64, slow: f64| Step {
        id: Id::new(1, n),
        ts: Ns::secs(n as i64),
        dur: Ns((ns * slow) as i64),
        thread: EntityId(1),
        rank: None,
        name: "step".into(),
        size: None,
        ran: None,
        expected: Expected::Priced { mix: Mix::Decode, ns: ns * slow, first_ns: Some(ns) },
    };
    let steps: Vec<Step> = (0..40).map(|n| step(n, 1e6 * (1.0 + n as f64), 1.5)).collect();
    let steps = Steps::from(steps);
    let stored = |ns: f64| StoredStep {
        ns: ns as i64,
        expected_ns: Some(ns),
        parts: vec![StoredPart { kind: "run".into(), awaited: false, ns: ns as i64 }],
    };
    let slower = Slower {
        signature,
        level: Level::of(&[0.0], 0.01).unwrap(),
        steps: (0..40).map(StepNo).collect(),
        stored: vec![stored(5e6), stored(9e6)],
    };
    let folder = tempfile::tempdir().unwrap();
    let mut references = References::open(&folder.path().join("x")).unwrap();
    let (usual, parts, slowed) = references.anomaly(slower, &steps, 0.1).unwrap();
    assert_eq!((usual.len(), parts.len()), (2, 2));
    let mut all = steps.to_vec();
    all.extend(usual);
    let slowed = Slowed { usual: vec![StepNo(40), StepNo(41)], ..slowed };
    let mean = 1e6 * (1.0 + 19.5);
    let excess = gpuwhy_diagnose::detect::mean_excess(&Steps::from(all), &slowed);
    assert!((excess / mean - 0.5).abs() < 0.01, "{excess} of {mean}");
    assert!((slowed.fit.center.exp() / mean - 1.0).abs() < 0.01);
}
