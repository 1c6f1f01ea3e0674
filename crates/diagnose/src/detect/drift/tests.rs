use gpuwhy_schema::{EntityId, Id, Ns};

use crate::detect::{
    Against, Detection, Expected, Incident, Slowed, Step, Steps, incidents, mean_excess,
};
use crate::roofline::Mix;
use crate::stats::Random;

/// Steps for so many minutes, each as many ms as `level` says of its minute, with two per cent of noise.
fn steps(minutes: i64, level: impl Fn(f64) -> f64) -> Vec<Step> {
    let mut random = Random::new(5);
    let (mut at, mut out) = (Ns::ZERO, Vec::new());
    while at < Ns::secs(60 * minutes) {
        let noise = 1.0 + 0.02 * (random.below(2001) as f64 / 1000.0 - 1.0);
        let dur = Ns((level(at.as_secs_f64() / 60.0) * 1e6 * noise) as i64);
        let id = Id::new(1, out.len() as u64);
        let (thread, name) = (EntityId(1), "step".into());
        out.push(Step {
            id,
            ts: at,
            dur,
            thread,
            series: None,
            rank: None,
            name,
            size: None,
            ran: None,
            expected: Default::default(),
        });
        at += dur + Ns::millis(50);
    }
    out
}

fn found(steps: &[Step]) -> Vec<Incident> {
    let mut found = incidents(&Steps::from(steps.to_vec()), &Detection::default());
    found.sort_by_key(|incident| incident.from);
    found
}

#[test]
fn one_per_cent_a_minute_is_told_as_such_and_again_when_it_has_doubled() {
    let grows = |minute: f64| 18.0 * 1.01f64.powf((minute - 10.0).max(0.0));
    let steps = steps(112, grows);
    let found = found(&steps);
    let minutes: Vec<f64> = found.iter().map(|i| (i.to.as_secs_f64() / 60.0).round()).collect();
    assert_eq!(minutes, [31.0, 50.0, 81.0], "at 20 %, and at twice of what was told each time");
    let (mut told, all) = (0.0, Steps::from(steps));
    for incident in &found {
        let slowed = &incident.slowed[0];
        let Against::Drifted(drifted) = slowed.against else { panic!("no drift: {slowed:?}") };
        assert!((0.008..0.012).contains(&drifted.per_minute), "{drifted:?}");
        let since = drifted.since.as_secs_f64() / 60.0;
        assert!((5.0..17.0).contains(&since), "since minute {since}");
        assert!((17.5e6..19.5e6).contains(&slowed.fit.center.exp()), "{}", slowed.fit.center.exp());
        // Then and now are compared.
        let excess = mean_excess(&all, slowed);
        assert!(excess >= 1.9 * told, "{excess} after {told}");
        assert!(slowed.usual.iter().all(|no| all[*no].ts < Ns::secs(60 * 20)));
        told = excess;
    }
}

/// Steps of any length whose batches say what they should take, by prices that are learned anew all the time: they follow
/// the level, five minutes late.
fn priced(minutes: i64, level: impl Fn(f64) -> f64) -> Vec<Step> {
    let mut random = Random::new(9);
    let mut all = steps(minutes, &level);
    for step in &mut all {
        let work = 0.2 + random.below(4000) as f64 / 1000.0;
        let minute = step.ts.as_secs_f64() / 60.0;
        let of = |minute: f64| work * level(minute.max(0.0)) * 1e6;
        step.dur = Ns((step.dur.0 as f64 * work) as i64);
        let (mix, ns, first_ns) = (Mix::Decode, of(minute - 5.0), of(0.0));
        step.expected = Expected::Priced { mix, ns, first_ns: Some(first_ns) };
    }
    all
}

#[test]
fn one_per_cent_a_minute_of_steps_with_prices_is_told_before_ten_per_cent() {
    let steps = priced(24, |minute: f64| 18.0 * 1.01f64.powf(minute));
    let found = found(&steps);
    let first = found.first().expect("told");
    let grown = 1.01f64.powf(first.to.as_secs_f64() / 60.0);
    assert!(grown < 1.10, "told at {:.1} %", 100.0 * (grown - 1.0));
    let slowed = &first.slowed[0];
    let Against::Drifted(drifted) = slowed.against else { panic!("no drift: {slowed:?}") };
    assert!((0.008..0.012).contains(&drifted.per_minute), "{drifted:?}");
    let steps = Steps::from(steps);
    let (excess, slow) =
        (mean_excess(&steps, slowed), slowed.slow.iter().map(|no| steps[*no].dur.0 as f64));
    let mean = slow.sum::<f64>() / slowed.slow.len() as f64;
    let share = excess / (mean - excess);
    assert!((0.04..0.12).contains(&share), "{share}");
}

#[test]
fn prices_that_wander_by_a_few_per_cent_are_no_drift() {
    let wanders = |minute: f64| 18.0 * (1.0 + 0.015 * (minute / 6.0).sin());
    assert_eq!(found(&priced(60, wanders)).len(), 0);
}

#[test]
fn a_level_that_rises_at_once_and_stays_is_no_drift() {
    let found = found(&steps(120, |minute| if minute < 60.0 { 18.0 } else { 24.0 }));
    let drifted = |s: &Slowed| matches!(s.against, Against::Drifted(_));
    assert!(!found.iter().flat_map(|i| &i.slowed).any(drifted));
}

#[test]
fn a_level_that_wanders_by_a_tenth_is_no_drift() {
    let wanders =
        |minute: f64| 18.0 * (1.0 + 0.04 * (minute / 12.0).sin() + 0.03 * (minute / 7.0).sin());
    assert_eq!(found(&steps(90, wanders)).len(), 0);
}

#[test]
fn a_day_of_minutes_is_kept_in_bounded_memory_and_shows_a_slow_drift() {
    let mut drift = super::Drift::default();
    let (mut told, config) = (Vec::new(), Detection::default());
    let signature = steps(1, |_| 18.0)[0].signature();
    for n in 0..24 * 3600u64 {
        let (no, ts) = (crate::detect::StepNo(n), Ns::secs(n as i64));
        // A tenth of a per cent a minute.
        let dur = Ns((18e6 * (0.001 * (n as f64 / 60.0)).exp()) as i64);
        if drift.step(no, ts, dur) {
            told.extend(drift.found(signature.clone(), &[no], &config));
        }
        assert!(drift.past.len() <= super::REMEMBERED && drift.sample.len() <= super::SAMPLED);
    }
    // At 20, 40, 80, 160 and 320 %: it is 322 % at the end of the day.
    assert_eq!(told.len(), 4 + usize::from(told.len() > 4), "{}", told.len());
    let Against::Drifted(drifted) = told[0].against else { panic!("{:?}", told[0]) };
    assert!((0.0009..0.0011).contains(&drifted.per_minute), "{drifted:?}");
}
