use gpuwhy_diagnose::spans::StepRows;
use gpuwhy_schema::{EntityId, Part, PartKind};

use super::super::testing::{HELD_BACK, Takes, USUAL, World};
use super::*;

#[test]
fn an_incident_that_follows_another_is_judged_by_usual_steps_whose_rows_are_gone() {
    let mut world = World::new("performance");
    world.runs(30, &USUAL);
    world.runs(50, &HELD_BACK);
    world.runs(40, &Takes { runs: 18.0, throttled: 40.0 });
    world.runs(10, &USUAL);
    assert!(world.over.len() >= 2, "{:?}", world.slow);
    for verdict in &world.over {
        let finding = &verdict.finding;
        assert_eq!(finding.class, "cpu_throttling", "{}", finding.summary);
        assert!(finding.unexplained_ms.abs() < 1.0, "{}", finding.summary);
        assert!((finding.usual_ms - 18.0).abs() < 1.0, "{}", finding.summary);
    }
}

#[test]
fn steps_that_became_slower_little_by_little_are_compared_with_what_they_were_made_of() {
    let mut world = World::new("performance");
    (world.every, world.noise) = (Ns::secs(1), 0.15);
    let takes = |throttled| Takes { runs: 180.0, throttled };
    world.runs(300, &takes(0.0));
    for n in 0..300 {
        world.runs(6, &takes(0.2 * f64::from(n)));
    }
    let told: Vec<&str> =
        world.over.iter().map(|verdict| verdict.finding.summary.as_str()).collect();
    let grew =
        told.iter().find(|says| says.contains("a minute")).unwrap_or_else(|| panic!("{told:?}"));
    assert!(grew.contains("cpu_throttling"), "{told:?}");
}

/// Of long steps, and of a series that has few, the last ones are sampled again.
#[test]
fn a_step_in_several_samples_is_counted_once_and_known_as_long_as_it_is_in_one() {
    let step = |n: u64| Step {
        id: Id(n),
        ts: Ns::secs(10 * n as i64),
        dur: Ns::secs(8),
        thread: EntityId(1),
        name: "step".into(),
        ..Step::default()
    };
    let steps = Steps::from((1..=20).map(step).collect::<Vec<Step>>());
    let numbers: Vec<StepNo> = steps.numbered().map(|(no, _)| no).collect();
    let part = |id: Id| Part {
        step: id,
        ts: Ns::ZERO,
        dur: Ns::secs(8),
        kind: PartKind::Run,
        thread: EntityId(1),
        blame: None,
        hops: 0,
    };
    let mut known = KnownParts::default();
    let parts = steps.iter().map(|step| part(step.id)).collect();
    known.extend(StepRows { parts, ..StepRows::default() });
    let mut usual = Usual::default();
    for n in 0..12 {
        let chosen = vec![(steps[numbers[0]].signature(), numbers[n..n + STEPS].to_vec())];
        usual.take(chosen, Ns::secs(60 * n as i64), &steps, &known);
        let sampled = usual.series.values().flatten().flat_map(|sample| sample.steps.clone());
        let sampled: BTreeSet<StepNo> = sampled.collect();
        let held: Vec<Id> = usual.known.parts().map(|part| part.step).collect();
        assert_eq!(held.len(), sampled.len(), "each once, and no others");
    }
}

/// Samples of one series taken at these seconds: those that are left.
fn left(seconds: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut samples: Vec<Sample> = Vec::new();
    for at in seconds {
        samples.push(Sample { ts: Ns::secs(at), steps: Vec::new() });
        if samples.len() > SAMPLES {
            samples.remove(most_alike(&samples, Ns::secs(at)));
        }
    }
    samples.iter().map(|sample| sample.ts.0 / 1_000_000_000).collect()
}

#[test]
fn samples_are_the_closer_together_the_later_they_are() {
    let hour = left((0..=60).map(|minute| 60 * minute));
    assert_eq!((hour[0], hour[SAMPLES - 1]), (0, 3600), "{hour:?}");
    let apart: Vec<i64> = hour.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(apart.windows(2).all(|pair| pair[0] >= pair[1]), "{hour:?}");
    assert!(apart[0] > 4 * apart[SAMPLES - 2], "{hour:?}");
}
