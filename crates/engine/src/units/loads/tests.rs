use gpuwhy_schema::Ns;

use super::*;

/// A step of `ms`, and its batch of so many answers.
fn step(n: u64, ms: f64, requests: u64) -> (Step, Batch) {
    let (id, ts, dur) = (Id(n), Ns::millis(20 * n as i64), Ns((ms * 1e6) as i64));
    let (thread, rank, size, ran, name) =
        (EntityId(1), None, None, None, "EngineCore::Step".into());
    let step = Step {
        id,
        ts,
        dur,
        thread,
        series: None,
        rank,
        name,
        size,
        ran,
        expected: Expected::Alike,
    };
    let of = ("vllm engine".into(), EntityId(2));
    let batch = Batch {
        prefill_tokens: Some(0),
        prefill_requests: Some(0),
        context: Some(0),
        ..Batch::bare((id, ts), of, n, (requests, requests))
    };
    (step, batch)
}

/// What each of these steps is expected to take, in ms.
fn expected(steps: &[Step]) -> Vec<Option<f64>> {
    let tenths = |ns: f64| (ns / 1e5).round() / 10.0;
    steps.iter().map(|step| step.expected_ns().map(tenths)).collect()
}

#[test]
fn a_step_is_expected_to_take_what_its_batch_takes() {
    let mut loads = Loads::default();
    for n in 0..200 {
        let requests = 1 + n * 7 % 32;
        let (step, batch) = step(n, 2.0 + 0.5 * requests as f64, requests);
        let out = loads.take(vec![step], &[batch], &mut |_, _| None);
        assert_eq!(out.len(), 1, "none waits that has its batch");
    }
    let (one, batch) = step(200, 40.0, 10);
    assert_eq!(expected(&loads.take(vec![one], &[batch], &mut |_, _| None)), [Some(7.0)]);
    let (other, batch) = step(201, 40.0, 30);
    assert_eq!(expected(&loads.take(vec![other], &[batch], &mut |_, _| None)), [Some(17.0)]);
}

#[test]
fn a_step_waits_for_a_batch_that_comes_later_and_not_for_one_that_never_comes() {
    let mut loads = Loads::default();
    let steps: Vec<(Step, Batch)> = (0..40).map(|n| step(n, 5.0, 1)).collect();
    let (mut out, mut most) = (Vec::new(), 0);
    for n in 0..40 {
        // Each batch comes four steps late, and that of step 20 never.
        let late = (n >= 4 && n != 24).then(|| steps[n - 4].1.clone());
        out.extend(loads.take(vec![steps[n].0.clone()], late.as_slice(), &mut |_, _| None));
        most = most.max(n + 1 - out.len());
    }
    assert!(out.is_sorted_by_key(|step| step.id));
    assert!(out.len() >= 40 - LATE && most <= LATE + 1, "{} steps, {most} held at most", out.len());
    // The first ones passed before it was known that batches would come.
    assert!(out[..4].iter().all(|step| step.expected == Expected::Alike), "{:?}", &out[..4]);
    assert_eq!(out[10].expected.mix(), Some(Mix::Decode));
    assert_eq!(out[20].expected, Expected::NotKnown(Mix::Mixed));
}

#[test]
fn steps_without_batches_are_passed_on_as_they_are() {
    let mut loads = Loads::default();
    let steps: Vec<Step> = (0..10).map(|n| step(n, 5.0, 1).0).collect();
    assert_eq!(loads.take(steps.clone(), &[], &mut |_, _| None), steps);
}
