use super::*;

/// Numbers from 0 to 1 that look random, by their place.
fn uniform(n: u64) -> f64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) as f64 / u64::MAX as f64
}

/// Batches of all mixes: prompts of 16 to 1,000 tokens, 1 to 32 answers.
fn load(n: u64) -> Load {
    let draw = |k: u64| uniform(8 * n + k);
    let decode = if draw(0) < 0.9 { (1.0 + 31.0 * draw(1)).floor() } else { 0.0 };
    let prompts = if draw(2) < 0.3 || decode == 0.0 { 1.0 } else { 0.0 };
    let prefill = prompts * (16.0 + 984.0 * draw(3) * draw(4)).floor();
    let context = (decode * 400.0 * (0.5 + draw(5))).floor();
    Load {
        prefill,
        prefill_requests: prompts,
        decode,
        context,
        requests: decode + prompts,
        drafts: 0.0,
    }
}

/// What a machine of our own takes for it.
fn truth(load: &Load) -> f64 {
    let Load { prefill, decode, context, .. } = *load;
    3.0e6 + 40_000.0 * prefill + 30.0 * prefill * prefill + 60_000.0 * decode + 900.0 * context
}

/// The fits of each mix after `steps` steps, of which every fifth takes three times as long.
fn learned(steps: u64) -> impl Fn(&Load) -> f64 {
    let mut of: [Roofline; 4] = Default::default();
    for n in 0..steps {
        let load = load(n);
        let noise = 1.0 + 0.04 * (uniform(7 * n + 3) - 0.5);
        let slow = if uniform(11 * n + 5) < 0.2 { 3.0 } else { 1.0 };
        of[load.mix() as usize].learn(&load, truth(&load) * noise * slow, n as f64);
    }
    move |load| of[load.mix() as usize].fit().unwrap().expects(load)
}

#[test]
fn batches_of_any_length_take_what_their_tokens_take_though_a_fifth_of_them_was_slow() {
    let expects = learned(4_000);
    let mut worst = 0.0_f64;
    for n in 10_000..11_000 {
        let load = load(n);
        worst = worst.max((expects(&load) / truth(&load) - 1.0).abs());
    }
    assert!(worst < 0.05, "{worst}");
}

#[test]
fn a_fit_says_how_much_it_explains() {
    let mut roofline = Roofline::default();
    for n in 0..500 {
        let tokens = 16.0 + 900.0 * uniform(n);
        let load =
            Load { prefill: tokens, prefill_requests: 1.0, requests: 1.0, ..Load::default() };
        roofline.learn(&load, 2e6 + 50_000.0 * tokens, n as f64);
    }
    let fit = roofline.fit().unwrap();
    assert!(fit.r2 > 0.999 && fit.error < 0.01, "{fit:?}");
    // Durations that have nothing to do with the batch.
    let mut roofline = Roofline::default();
    for n in 0..500 {
        let load = Load { decode: 1.0 + (31.0 * uniform(n)).floor(), ..Load::default() };
        roofline.learn(&load, 1e6 * (1.0 + 9.0 * uniform(n + 1_000_000)), n as f64);
    }
    assert!(roofline.fit().unwrap().r2 < 0.1, "{:?}", roofline.fit());
}

#[test]
fn too_few_steps_make_no_fit_and_odd_ones_do_no_harm() {
    let mut roofline = Roofline::default();
    for n in 0..(NEEDED as u64 - 1) {
        roofline.learn(&load(n), 1e6, n as f64);
        assert!(roofline.fit().is_none());
    }
    // All alike, of no length, and huge.
    for ns in [0.0, 1.0, 1e18] {
        let mut roofline = Roofline::default();
        (0..100).for_each(|n| roofline.learn(&Load::default(), ns, f64::from(n)));
        let expected = roofline.fit().unwrap().expects(&Load::default());
        assert!((expected / ns.max(1.0) - 1.0).abs() < 0.01, "{expected} of {ns}");
    }
}

#[test]
fn what_is_usual_spans_minutes_however_many_steps_come_a_second() {
    let mut roofline = Roofline::default();
    // Ten thousand steps in ten minutes, and a minute in which all take three times as long.
    for n in 0..11_000_u64 {
        let at = n as f64 * 0.06;
        let slow = if at > 600.0 { 3.0 } else { 1.0 };
        let load = load(n);
        roofline.learn(&Load { prefill: 0.0, ..load }, slow * 1e6 * (1.0 + load.decode), at);
    }
    let load = Load { decode: 9.0, ..Load::default() };
    let expected = roofline.fit().unwrap().expects(&load);
    assert!((expected / 1e7 - 1.0).abs() < 0.1, "{expected}");
}

#[test]
fn prices_that_rise_are_followed_and_what_was_known_first_is_not_lost() {
    let mut roofline = Roofline::default();
    let (mut worst, mut lately) = (0.0_f64, 0.0_f64);
    // Steps half a second apart for half an hour, one per cent slower each minute; batches become larger meanwhile.
    for n in 0..3_600 {
        let mut load = load(n);
        (load.prefill, load.prefill_requests) = (0.0, 0.0);
        load.decode = load.decode.max(1.0) + (n / 200) as f64;
        load.context = 200.0 * load.decode;
        let minute = n as f64 / 120.0;
        let noise = 1.0 + 0.04 * (uniform(7 * n + 3) - 0.5);
        let now = truth(&load) * 1.01f64.powf(minute);
        if n > 1_200 {
            worst = worst.max((roofline.expected_first(&load).unwrap() / truth(&load) - 1.0).abs());
            lately = lately.max((roofline.fit().unwrap().expects(&load) / now - 1.0).abs());
        }
        roofline.learn(&load, now * noise, n as f64 / 2.0);
    }
    assert!(lately < 0.08, "{lately}");
    assert!(worst < 0.05, "{worst}");
}

#[test]
fn stored_prices_are_what_was_known_first_and_say_nothing_of_more_to_do() {
    let decode = |n: f64| Load { decode: n, requests: n, context: 100.0 * n, ..Load::default() };
    let mut before = Roofline::default();
    (0..400).for_each(|n| {
        before.learn(&decode((n % 8 + 1) as f64), 1e6 + 1e5 * (n % 8) as f64, 0.4 * n as f64)
    });
    let fit = *before.fit().unwrap();
    let stored = Fit::of_prices(fit.prices(), fit.largest()).unwrap();
    let mut now = Roofline::knowing(Some(stored));
    let known = now.expected_first(&decode(8.0)).unwrap();
    assert!((known / 1.7e6 - 1.0).abs() < 0.05, "{known}");
    assert_eq!(now.expected_first(&decode(20.0)), None);
    (0..400).for_each(|n| now.learn(&decode((n % 8 + 1) as f64), 3e6, 0.4 * n as f64));
    assert_eq!(now.expected_first(&decode(8.0)), Some(known), "they stay");
    assert_eq!(Fit::of_prices(&[0.0; 6], &[1.0; 6]), None);
    assert_eq!(Fit::of_prices(&[1.0; 5], &[1.0; 5]), None);
    assert_eq!(Fit::of_prices(&[1.0, f64::NAN, 0.0, 0.0, 0.0, 0.0], &[1.0; 6]), None);
}
