use std::path::Path;

use super::super::testing::{HELD_BACK, Takes, USUAL, World};
use super::*;

/// The program on a host with a setting, compared with a reference.
fn world(reference: &Path, governor: &str) -> World {
    let mut world = World::new(governor);
    world.judge.set_references(References::open(reference).unwrap());
    world
}

/// A folder with a reference of two recordings.
fn with_reference() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.json");
    for recording in 1..3 {
        let mut world = world(&path, "performance");
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
    let mut world = world(&path, "powersave");
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
    let mut world = world(&path, "performance");
    world.runs(150, &Takes { runs: 18.6, throttled: 0.0 });
    assert_eq!(world.slow.len(), 0, "{:?}", world.slow);
    assert_eq!(world.judge.write_reference(2_000).unwrap(), Some(1));
    // As it is written while the watch lasts, and at its end.
    world.runs(100, &Takes { runs: 18.6, throttled: 0.0 });
    assert_eq!(world.judge.write_reference(3_000).unwrap(), Some(1));
    let file = File::parse(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!((file.series[0].levels.len(), file.latest_s), (3, 3_000));
}

#[test]
fn a_disturbance_of_a_minute_is_one_incident_and_no_second_one_beside_the_reference() {
    let (_folder, path) = with_reference();
    let mut world = world(&path, "performance");
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
    let mut world = world(&path, "performance");
    world.runs(150, &USUAL);
    let error = world.judge.write_reference(1).unwrap_err();
    assert!(error.to_string().contains("gone/server.json"), "{error}");
}

/// Steps whose batches say what they should take, by stored prices.
#[test]
fn steps_with_prices_are_compared_as_times_of_what_they_should_take() {
    let signature = Signature {
        of: EntityId(1),
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
        name: "step".into(),
        expected: Expected::Priced { mix: Mix::Decode, ns: ns * slow, first_ns: Some(ns) },
        ..Step::default()
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
