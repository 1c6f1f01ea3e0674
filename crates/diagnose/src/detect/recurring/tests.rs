use gpuwhy_schema::{EntityId, Id, Ns};

use crate::detect::{Detection, Incident, Step, Steps, incidents};
use crate::stats::Random;

/// Steps of 20 ms with two per cent of noise, of which the `n`th, begun at `at`, takes as many ms as `long` says.
fn steps(many: u64, seed: u64, mut long: impl FnMut(u64, Ns) -> Option<f64>) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut at = Ns::ZERO;
    let mut one = |n: u64| {
        let noise = 1.0 + 0.02 * (random.below(2001) as f64 / 1000.0 - 1.0);
        let dur = Ns((long(n, at).unwrap_or(20.0) * 1e6 * noise) as i64);
        let (ts, id) = (at, Id::new(1, n));
        at += dur + Ns::millis(1);
        Step { id, ts, dur, thread: EntityId(1), name: "step".into(), ..Step::default() }
    };
    (0..many).map(&mut one).collect()
}

fn found(steps: &[Step]) -> Vec<Incident> {
    let mut found = incidents(&Steps::from(steps.to_vec()), &Detection::default());
    found.sort_by_key(|incident| incident.from);
    found
}

/// When, in seconds.
fn told(found: &[Incident]) -> String {
    let when =
        found.iter().map(|i| format!("{:.1}..{:.1}", i.from.as_secs_f64(), i.to.as_secs_f64()));
    when.collect::<Vec<_>>().join(" ")
}

fn every(period: u64, ms: f64) -> impl Fn(u64, Ns) -> Option<f64> {
    move |n, _| (n % period == period - 1).then_some(ms)
}

#[test]
fn a_checkpoint_every_five_hundred_steps_is_told_twice_and_never_again() {
    let found = found(&steps(10_000, 7, every(500, 2000.0)));
    assert!(found.len() <= 2, "{} of 20", found.len());
    assert!(found.iter().all(|incident| incident.to < Ns::secs(30)), "{}", told(&found));
}

#[test]
fn an_evaluation_every_half_hour_is_told_twice_and_never_again() {
    let mut due = Ns::secs(1800);
    let mut evaluated = |_: u64, at: Ns| {
        let is_due = at >= due;
        if is_due {
            due = at + Ns::secs(1800);
        }
        is_due.then_some(20_000.0)
    };
    let mut steps = steps(20_000, 7, |_, _| None);
    let mut at = Ns::ZERO;
    for (n, step) in steps.iter_mut().enumerate() {
        step.ts = at;
        step.dur = evaluated(n as u64, at).map_or(step.dur, |ms| Ns((ms * 1e6) as i64));
        at += step.dur + Ns::millis(980);
    }
    let found = found(&steps);
    assert!(found.len() <= 2, "{} of 10", found.len());
}

/// An evaluation every hundred steps, and every fifth time a checkpoint with it.
#[test]
fn two_kinds_that_fall_together_are_a_third() {
    let long = |n: u64, _: Ns| match n {
        n if n % 500 == 499 => Some(5000.0),
        n if n % 100 == 99 => Some(1500.0),
        _ => None,
    };
    let found = found(&steps(10_000, 7, long));
    let late = found.iter().filter(|incident| incident.from > Ns::secs(75)).count();
    assert_eq!(late, 0, "{}", told(&found));
}

/// The loop counts its batches, and an epoch has 937 of them.
#[test]
fn a_kind_that_counts_anew_after_each_epoch_is_told_no_more_after_a_few_epochs() {
    let long = |n: u64, _: Ns| (n % 937 % 200 == 199).then_some(1500.0);
    let steps = steps(12_000, 7, long);
    let third = steps[3 * 937].ts;
    let found = found(&steps);
    let late = found.iter().filter(|incident| incident.from > third).count();
    assert_eq!(late, 0, "{}", told(&found));
}

#[test]
fn every_tenth_step_ten_times_as_long_hides_no_slowdown_of_the_others() {
    let calm = |n: u64| every(10, 200.0)(n, Ns::ZERO);
    assert_eq!(found(&steps(4000, 7, |n, _| calm(n))).len(), 0);
    let slow = |n: u64, _: Ns| calm(n).or((2000..2200).contains(&n).then_some(27.0));
    let steps = steps(4000, 7, slow);
    let found = found(&steps);
    assert_eq!(found.len(), 1, "{}", told(&found));
    assert!(found[0].from.0.abs_diff(steps[2000].ts.0) < 50_000_000, "{}", found[0].from);
    assert!(found[0].to.0.abs_diff(steps[2198].end().0) < 50_000_000, "{}", found[0].to);
    assert!(found[0].slowed.iter().all(|s| s.usual.iter().all(|no| no.0 % 10 != 9)));
}

#[test]
fn a_checkpoint_that_takes_twice_as_long_as_its_kind_is_told_against_its_kind() {
    let long = |n: u64, _: Ns| {
        let ms = if n == 5999 { 4000.0 } else { 2000.0 };
        (n % 500 == 499).then_some(ms)
    };
    let steps = steps(10_000, 7, long);
    let found = found(&steps);
    let last = found.last().unwrap();
    assert_eq!((last.from, last.to), (steps[5999].ts, steps[5999].end()));
    assert!(last.slowed[0].usual.iter().all(|no| no.0 % 500 == 499), "compared with checkpoints");
    let excess = crate::detect::mean_excess(&Steps::from(steps), &last.slowed[0]);
    assert!((1.9e9..2.1e9).contains(&excess), "{excess}");
}

#[test]
fn checkpoints_too_short_to_be_told_alone_are_told_if_all_of_them_grow() {
    let long = |n: u64, _: Ns| {
        let ms = if (6000..6400).contains(&n) { 300.0 } else { 120.0 };
        (n % 50 == 49).then_some(ms)
    };
    let steps = steps(10_000, 7, long);
    let found = found(&steps);
    assert_eq!(found.len(), 1, "{}", told(&found));
    assert!(found[0].from >= steps[6000].ts && found[0].to <= steps[6400].ts, "{}", told(&found));
}

#[test]
fn stalls_alike_at_irregular_times_are_all_told() {
    let stalls = [1100, 1900, 4200, 5555, 6030, 8700];
    let found = found(&steps(10_000, 7, |n, _| stalls.contains(&n).then_some(2000.0)));
    assert_eq!(found.len(), stalls.len(), "{}", told(&found));
}

#[test]
fn a_stall_as_long_as_a_checkpoint_and_out_of_time_is_told() {
    let long = |n: u64, _: Ns| (n % 500 == 499 || n == 5250).then_some(2000.0);
    let steps = steps(10_000, 7, long);
    let found = found(&steps);
    let late = found.iter().filter(|incident| incident.from > steps[2000].ts);
    assert_eq!(late.map(|i| i.from).collect::<Vec<_>>(), [steps[5250].ts]);
}

/// A neighbour stops every tenth step, for half a minute, long after the series began.
#[test]
fn a_regular_disturbance_that_began_later_is_told_until_it_ends() {
    let long = |n: u64, _: Ns| ((3000..4000).contains(&n) && n.is_multiple_of(10)).then_some(90.0);
    let steps = steps(6000, 7, long);
    let found = found(&steps);
    assert_eq!(found.len(), 1, "{}", told(&found));
    assert!(found[0].from <= steps[3050].ts && found[0].to >= steps[3950].ts, "{}", told(&found));
}

/// Each twentieth step on average, at random.
#[test]
fn long_steps_at_random_are_no_kind() {
    let mut random = Random::new(11);
    let mut at_random = |_: u64, _: Ns| (random.below(20) == 0).then_some(60.0);
    let steps = steps(50_000, 7, &mut at_random);
    let mut recurring = super::Recurring::default();
    let body = super::Fit {
        center: 20e6f64.ln(),
        scale: 0.02,
        tail_from: 20.4e6f64.ln(),
        tail_mean: 0.01,
    };
    for (seen, step) in steps.iter().enumerate() {
        let no = crate::detect::StepNo(seen as u64);
        let taken = recurring.take(seen, no, step, &body, &Detection::default());
        assert!(matches!(taken, super::Taken::Body), "step {seen}: {taken:?}");
    }
}
