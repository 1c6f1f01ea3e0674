use gpuwhy_schema::{EntityId, Id, Part, PartKind, names};

use super::*;
use crate::live::{Live, Look};
use crate::roofline::Mix;
use crate::stats::Random;

/// A step every 20 ms from a drawn level: each character is five steps, `.` usual, a digit `d`
/// slower by d × 10 %, `~` slower by 4 %. Two per cent of noise.
fn steps(thread: u32, drawn: &str, seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut out = Vec::new();
    for c in drawn.chars() {
        for _ in 0..5 {
            let noise = 1.0 + 0.02 * (random.below(2001) as f64 / 1000.0 - 1.0);
            let slower =
                if c == '~' { 0.04 } else { f64::from(c.to_digit(10).unwrap_or(0)) / 10.0 };
            let level = 1.0 + slower;
            let n = out.len() as u64;
            out.push(Step {
                id: Id::new(thread as u16, n),
                ts: Ns::millis(20 * n as i64),
                dur: Ns((10e6 * level * noise) as i64),
                thread: EntityId(thread),
                series: None,
                rank: None,
                name: "step".into(),
                size: None,
                ran: None,
                expected: Default::default(),
            });
        }
    }
    out
}

fn said(steps: &[Step]) -> String {
    let found: Vec<String> = incidents(&Steps::from(steps.to_vec()), &Detection::default())
        .iter()
        .map(|i| {
            let slow: usize = i.slowed.iter().map(|s| s.slow.len()).sum();
            format!(
                "{} series, {slow} steps, {}..{} ms",
                i.slowed.len(),
                i.from.0 / 1_000_000,
                i.to.0 / 1_000_000
            )
        })
        .collect();
    found.join("; ")
}

#[test]
fn a_steady_series_says_nothing() {
    assert_eq!(said(&steps(1, &".".repeat(400), 7)), "");
}

#[test]
fn a_step_up_is_one_incident_from_its_first_slow_step() {
    let drawn = format!("{}{}", ".".repeat(40), "5".repeat(20));
    assert_eq!(said(&steps(1, &drawn, 7)), "1 series, 100 steps, 4000..5995 ms");
}

#[test]
fn a_weak_shift_before_it_does_not_date_it() {
    let drawn = format!("{}{}{}", ".".repeat(40), "~".repeat(20), "5".repeat(20));
    assert_eq!(said(&steps(1, &drawn, 7)), "1 series, 100 steps, 6000..7994 ms");
}

/// The steps of the first are far out, each of them.
#[test]
fn what_was_far_out_in_one_disturbance_does_not_date_the_next() {
    let mut drawn = steps(1, &".".repeat(220), 7);
    for step in &mut drawn {
        let s = step.ts.as_secs_f64();
        let far = (8.0..10.0).contains(&s) || (16.0..18.0).contains(&s);
        step.dur = if far { Ns(step.dur.0 * 5) } else { step.dur };
    }
    let said = said(&drawn);
    assert_eq!(said.matches("series").count(), 2, "{said}");
}

#[test]
fn it_ends_when_steps_are_usual_again() {
    let drawn = format!("{}{}{}", ".".repeat(40), "3".repeat(8), ".".repeat(40));
    assert_eq!(said(&steps(1, &drawn, 7)), "1 series, 40 steps, 4000..4792 ms");
}

#[test]
fn a_slowdown_of_a_few_per_cent_is_not_worth_a_finding() {
    let drawn: String = ".".repeat(40) + &".".repeat(40);
    let mut steps = steps(1, &drawn, 7);
    for step in &mut steps[200..] {
        step.dur.0 += step.dur.0 / 25;
    }
    assert_eq!(said(&steps), "");
}

#[test]
fn two_ranks_slowed_by_one_disturbance_are_one_incident() {
    let drawn = format!("{}{}", ".".repeat(40), "9".repeat(10));
    let mut both = steps(1, &drawn, 7);
    both.extend(steps(2, &drawn, 8));
    both.sort_by_key(Step::end);
    assert_eq!(said(&both), "2 series, 100 steps, 4000..4999 ms");
}

#[test]
fn another_size_is_another_signature() {
    let drawn = format!("{}{}", ".".repeat(40), "9".repeat(40));
    let mut steps = steps(1, &drawn, 7);
    for (n, step) in steps.iter_mut().enumerate() {
        step.size = Some(if n < 200 { 1000 } else { 1900 });
    }
    assert_eq!(said(&steps), "");
}

/// Latency-like noise with memory: a lognormal AR(1) with φ = 0.9, on which a 3σ rule over 5 s
/// windows fires in nearly every window.
#[test]
fn an_hour_of_clean_steps_with_memory_say_nothing() {
    let mut random = Random::new(3);
    let mut x = 0.0;
    let steps: Vec<Step> = (0..180_000u64)
        .map(|n| {
            let normal: f64 =
                (0..12).map(|_| random.below(1_000_000) as f64 / 1e6).sum::<f64>() - 6.0;
            x = 0.9 * x + 0.02 * normal;
            Step {
                id: Id::new(1, n),
                ts: Ns::millis(20 * n as i64),
                dur: Ns((10e6 * f64::exp(x)) as i64),
                thread: EntityId(1),
                name: "step".into(),
                ..Step::default()
            }
        })
        .collect();
    assert_eq!(said(&steps), "");
}

/// A busy machine: each twentieth of a thousand steps is held up, by up to half.
fn busy(outliers: &[usize]) -> Vec<Step> {
    let mut steps = steps(1, &".".repeat(300), 7);
    let mut random = Random::new(3);
    for step in steps.iter_mut().step_by(20) {
        step.dur.0 += step.dur.0 * random.below(500) as i64 / 1000;
    }
    for &at in outliers {
        steps[at].dur = Ns::millis(60);
    }
    for i in 1..steps.len() {
        steps[i].ts = steps[i].ts.max(steps[i - 1].end());
    }
    steps
}

#[test]
fn one_step_far_out_is_nothing_and_a_handful_is_no_chance() {
    assert_eq!(said(&busy(&[700])), "");
    assert_eq!(said(&busy(&[700, 900, 1100])), "");
    let found = said(&busy(&[700, 720, 740, 760, 780, 800]));
    assert!(found.starts_with("1 series, "), "{found}");
    let (_, rest) = found.split_once(", ").unwrap();
    let slow: usize = rest.split(' ').next().unwrap().parse().unwrap();
    assert!((6..=12).contains(&slow), "{found}");
    assert!(found.contains(", 14"), "from the first of them: {found}");
}

/// Steps of 4.2 ms with a tail, a spell of them a fifth of a second after the beginning that took
/// `slower` times as long, and from 5 s on three seconds of steps of 7.4 ms.
fn after_a_spell(spell: usize, slower: f64) -> Vec<Step> {
    let mut random = Random::new(1);
    let (mut out, mut ts): (Vec<Step>, i64) = (Vec::new(), 0);
    while ts < 10_000_000_000 {
        let n = out.len();
        let mut level = 4.2e6 * (1.0 + 0.01 * (random.below(2001) as f64 / 1000.0 - 1.0));
        if random.below(50) == 0 {
            level *= 1.0 + random.below(100) as f64 / 100.0;
        }
        if (50..50 + spell).contains(&n) {
            level *= slower;
        }
        if (5_000_000_000..8_000_000_000).contains(&ts) {
            level *= 7.4 / 4.2;
        }
        let dur = level as i64;
        out.push(Step {
            id: Id::new(1, n as u64),
            ts: Ns(ts),
            dur: Ns(dur),
            thread: EntityId(1),
            name: "step".into(),
            ..Step::default()
        });
        ts += dur;
    }
    out
}

#[test]
fn a_spell_while_it_learned_does_not_excuse_seconds_of_much_slower_steps() {
    for (spell, slower) in [(0, 1.0), (20, 1.05), (50, 1.2), (100, 1.4), (150, 1.9)] {
        let found = incidents(&after_a_spell(spell, slower).into(), &Detection::default());
        assert_eq!(found.len(), 1, "{spell} steps {slower} times as long");
        let seconds = (found[0].to - found[0].from).as_secs_f64();
        assert!((2.9..3.3).contains(&seconds), "{spell} steps {slower}: {seconds} s");
    }
}

/// Statements of a database, 300 a second on one connection: four of five take 15 us, the others 0.15 ms and more, by a
/// power law up to 60 ms. In the seconds of `held`, one of them waits 300 ms for a row every 0.8 s.
fn statements(seconds: i64, held: std::ops::Range<i64>, seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut uniform = || (random.below(1_000_000) as f64 + 1.0) / 1e6;
    let (mut at, mut out) = (Ns::ZERO, Vec::new());
    let mut next_wait = Ns::secs(held.start);
    while at < Ns::secs(seconds) {
        let mut us = 15.0 * (1.0 + 0.1 * uniform());
        if uniform() < 0.2 {
            us = (150.0 / uniform()).min(60_000.0);
        }
        if at >= next_wait && at < Ns::secs(held.end) {
            (us, next_wait) = (300_000.0, at + Ns::millis(800));
        }
        let dur = Ns((us * 1e3) as i64);
        out.push(Step {
            id: Id::new(1, out.len() as u64),
            ts: at,
            dur,
            thread: EntityId(1),
            series: None,
            rank: None,
            name: "PortalRun".into(),
            size: None,
            ran: None,
            expected: Default::default(),
        });
        at += dur + Ns::millis(3);
    }
    out
}

#[test]
fn statements_that_wait_for_a_row_are_told_among_thousands_of_short_ones() {
    let held = statements(90, 60..68, 3);
    let found = incidents(&Steps::from(held.clone()), &Detection::default());
    assert_eq!(found.len(), 1, "{found:?}");
    let (from, to) = (found[0].from, found[0].to);
    assert!((60_000..61_100).contains(&(from.0 / 1_000_000)), "{from}");
    assert!((67_000..69_100).contains(&(to.0 / 1_000_000)), "{to}");
    let slowed = &found[0].slowed[0];
    let long = slowed.slow.iter().filter(|&&no| held[no.0 as usize].dur > Ns::millis(200)).count();
    assert!(long >= 7 && 4 * long > slowed.slow.len(), "{long} of {}", slowed.slow.len());
    // They are compared with statements that take long here, and not with those of 20 us.
    let ns = |no: &StepNo| held[no.0 as usize].dur.0 as f64;
    assert!(crate::stats::mean(&slowed.usual.iter().map(ns).collect::<Vec<_>>()) > 1e5);
}

/// Each third one waits 8 ms for a CPU, while others take up to 60 ms as ever.
#[test]
fn statements_that_wait_a_little_and_often_are_told_beside_others_that_always_take_long() {
    let mut steps = statements(90, 0..0, 3);
    let during = |step: &&mut Step| (60..68).contains(&(step.ts.0 / 1_000_000_000));
    for step in steps.iter_mut().step_by(3).filter(during) {
        step.dur += Ns::millis(8);
    }
    let steps = Steps::from(steps);
    let found = incidents(&steps, &Detection::default());
    let seconds = |i: &Incident| (i.from.0 / 1_000_000_000, i.to.0 / 1_000_000_000);
    assert_eq!(found.iter().map(seconds).collect::<Vec<_>>(), [(60, 67)]);
    let lost = mean_excess(&steps, &found[0].slowed[0]) / 1e6;
    assert!((5.0..10.0).contains(&lost), "{lost} ms a step");
}

#[test]
fn statements_with_a_long_tail_are_no_incident() {
    for seed in 0..3 {
        let calm = statements(80, 0..0, seed);
        assert_eq!(said(&calm), "", "seed {seed}");
    }
}

/// Statements with a burst of long ones every half minute: a compaction, say.
fn with_bursts() -> Vec<Step> {
    let mut steps = statements(300, 0..0, 9);
    for (n, step) in steps.iter_mut().enumerate() {
        let burst = step.ts.0 / 1_000_000 % 30_000 > 28_000 && step.ts > Ns::secs(50);
        step.dur = if burst && n % 60 == 0 { step.dur + Ns::millis(100) } else { step.dur };
    }
    steps
}

#[test]
fn a_burst_that_comes_every_half_minute_is_told_at_most_twice() {
    let found = incidents(&Steps::from(with_bursts()), &Detection::default());
    assert!(found.len() <= 2, "{}", found.len());
}

#[test]
fn a_burst_that_somebody_else_is_to_blame_for_is_told_each_time() {
    let mut live = Live::new(Detection::default());
    let mut told = 0;
    for step in with_bursts() {
        let now = step.end();
        live.push(step);
        if let Look::Over(incident) = live.look(now) {
            live.blame_others(&incident);
            told += 1;
        }
    }
    assert!(told >= 7, "{told} of 9");
}

/// A minute of an engine's steps: what each should take is known from its batch, 3 to 60 ms, and it takes `slower` times
/// that, by the second.
fn of_known_batches(slower: impl Fn(f64) -> f64) -> Steps {
    let (mut random, mut at) = (Random::new(5), Ns::ZERO);
    let mut steps = Vec::new();
    while at < Ns::secs(60) {
        let expected = 3e6 * 20f64.powf(random.below(1000) as f64 / 1000.0);
        let noise = 0.97 + 0.06 * random.below(1000) as f64 / 1000.0;
        let dur = Ns((expected * noise * slower(at.as_secs_f64())) as i64);
        let (id, thread) = (Id::new(1, steps.len() as u64), EntityId(1));
        let (rank, size, ran, name) = (None, None, None, "EngineCore::Step".into());
        let expected = Expected::Priced { mix: Mix::Mixed, ns: expected, first_ns: Some(expected) };
        steps.push(Step { id, ts: at, dur, thread, series: None, rank, name, size, ran, expected });
        at += dur + Ns::millis(1);
    }
    steps.into()
}

#[test]
fn steps_of_any_length_whose_batches_are_known_are_compared_with_what_these_should_take() {
    let config = Detection::default();
    assert!(incidents(&of_known_batches(|_| 1.0), &config).is_empty());
    // A third slower for three seconds: no step is longer than the longest usual ones.
    let steps = of_known_batches(|at| if (40.0..43.0).contains(&at) { 1.33 } else { 1.0 });
    let found = incidents(&steps, &config);
    assert_eq!(found.len(), 1, "{found:?}");
    let slowed = &found[0].slowed[0];
    assert!((found[0].from - Ns::secs(40)).0.abs() < 200_000_000, "{:?}", found[0].from);
    assert!(matches!(slowed.by, By::Load(_)), "{slowed:?}");
    assert_eq!(slowed.signature.mix, Some(Mix::Mixed));
    let took: f64 = slowed.slow.iter().map(|no| steps[*no].dur.0 as f64).sum();
    let share = mean_excess(&steps, slowed) * slowed.slow.len() as f64 / took;
    assert!((share - 0.25).abs() < 0.03, "a third more than usual is a quarter of all: {share}");
    // As long as it is not known what batches should take, nothing is said of them.
    let not_known = |step: &Step| Step { expected: Expected::NotKnown(Mix::Mixed), ..step.clone() };
    let steps: Vec<Step> = steps.iter().map(not_known).collect();
    assert!(incidents(&steps.into(), &config).is_empty());
}

/// Two minutes of a loop over batches of any size, whose steps are not told apart: what a step of so many ms takes from so
/// many seconds on.
fn of_any_length(takes: impl Fn(f64, f64) -> (f64, f64)) -> Steps {
    let (mut random, mut at) = (Random::new(3), Ns::ZERO);
    let mut steps = Vec::new();
    while at < Ns::secs(120) {
        let ms = 64f64.powf(random.below(1000) as f64 / 1000.0) / 2.0;
        let (took, ran) = takes(ms, at.as_secs_f64());
        let ns = |ms: f64| Ns((1e6 * ms) as i64);
        steps.push(Step {
            id: Id::new(1, steps.len() as u64),
            ts: at,
            dur: ns(took),
            thread: EntityId(1),
            series: None,
            rank: None,
            name: "batch".into(),
            size: None,
            ran: Some(ns(ran)),
            expected: Default::default(),
        });
        at = at.saturating_add(ns(took));
    }
    steps.into()
}

#[test]
fn steps_of_any_length_are_slow_by_what_their_thread_waits_for_a_cpu() {
    let is_slow = |second: f64| (60.0..70.0).contains(&second);
    let steps =
        of_any_length(|ms, second| (if is_slow(second) { 1.5 * ms } else { 1.002 * ms }, ms));
    let [one] = &incidents(&steps, &Detection::default())[..] else { panic!("not one incident") };
    assert!((59.0..62.0).contains(&one.from.as_secs_f64()), "from {:?}", one.from);
    assert!((68.0..71.0).contains(&one.to.as_secs_f64()), "to {:?}", one.to);
    let slowed = &one.slowed[0];
    assert_eq!(slowed.by, By::Cpu);
    // Whatever their lengths: a third of what the slow ones took.
    let took: f64 = slowed.slow.iter().map(|no| steps[*no].dur.0 as f64).sum();
    let lost = mean_excess(&steps, slowed) * slowed.slow.len() as f64;
    assert!((0.31..0.35).contains(&(lost / took)), "{} of {took}", lost);
}

#[test]
fn steps_of_any_length_that_have_more_to_do_are_not_slow() {
    let is_long = |second: f64| (60.0..64.0).contains(&second);
    let steps = of_any_length(|ms, second| {
        let ms = if is_long(second) { 1.3 * ms } else { ms };
        (1.002 * ms, ms)
    });
    assert!(incidents(&steps, &Detection::default()).is_empty());
}

#[test]
fn steps_of_any_length_that_always_wait_are_not_slow_by_that() {
    let steps = of_any_length(|ms, _| (2.0 * ms, ms));
    assert!(incidents(&steps, &Detection::default()).is_empty());
}

#[test]
fn who_waits_by_running_loses_nothing_while_somebody_has_its_cpu() {
    // For ten seconds, a third of each step.
    let is_taken = |second: f64| (60.0..70.0).contains(&second);
    let steps =
        of_any_length(|ms, second| (ms, if is_taken(second) { 0.67 * ms } else { 0.998 * ms }));
    assert!(incidents(&steps, &Detection::default()).is_empty());
}

/// A loop that evaluates: steps of 1 ms, of which each 300th takes 1.5 s; in the seconds 100 to 110 each eighth of them waits
/// 3 ms for a CPU, and who evaluates runs two thirds of the time.
#[test]
fn a_loop_that_evaluates_is_slow_by_what_its_short_steps_wait_for() {
    let (mut at, mut steps) = (Ns::ZERO, Vec::new());
    for n in 1u64.. {
        let is_slow = (100.0..110.0).contains(&at.as_secs_f64());
        let ran = if n % 300 == 0 { Ns::millis(1500) } else { Ns::millis(1) };
        let dur = match (is_slow, n % 300, n % 8) {
            (true, 0, _) => Ns::millis(2200),
            (true, _, 3) => Ns::millis(4),
            _ => Ns(ran.0 + (n % 7) as i64 * 1000),
        };
        let (id, thread, rank, name) = (Id::new(1, n), EntityId(1), None, "step".into());
        steps.push(Step {
            id,
            ts: at,
            dur,
            thread,
            series: None,
            rank,
            name,
            size: None,
            ran: Some(ran),
            expected: Default::default(),
        });
        at = at.saturating_add(dur);
        if at > Ns::secs(200) {
            break;
        }
    }
    let found = incidents(&steps.into(), &Detection::default());
    let [one] = &found[..] else { panic!("{} incidents: {found:?}", found.len()) };
    assert!((99.0..103.0).contains(&one.from.as_secs_f64()), "from {:?}", one.from);
}

/// The statements of a database under one name, where half of them always take ten times as long as the others. Another
/// session holds a lock, 200 ms at a time.
#[test]
fn an_incident_among_statements_of_several_kinds_ends_with_what_held_them() {
    let mut random = Random::new(5);
    let mut drawn = steps(1, ".", 7);
    drawn.clear();
    let mut at = Ns::ZERO;
    let holds = |at: Ns| {
        let s = at.as_secs_f64();
        let within = (30.0..38.0).contains(&s).then_some((s - 30.0) % 0.3);
        within.filter(|held| *held < 0.2).map_or(Ns::ZERO, |held| Ns(((0.2 - held) * 1e9) as i64))
    };
    while at < Ns::secs(80) {
        for ms in [0.02, 0.5, 0.05, 0.9] {
            let noise = (0.4 * (random.below(2001) as f64 / 1000.0 - 1.0)).exp();
            let own = Ns((ms * noise * 1e6) as i64);
            let dur = if ms == 0.5 { own + holds(at) } else { own };
            let n = drawn.len() as u64;
            let step = steps(1, ".", 7).remove(0);
            drawn.push(Step { id: Id::new(1, n), ts: at, dur, name: "statement".into(), ..step });
            at = at + dur + Ns::millis(2);
        }
    }
    let said = said(&drawn);
    assert!(said.starts_with("1 series") && !said.contains(';'), "{said}");
    let to: i64 = said.rsplit("..").next().unwrap().trim_end_matches(" ms").parse().unwrap();
    assert!((37_000..39_500).contains(&to), "{said}");
}

/// Of busy periods it is not known how much there was to do, but by the messages that arrived in them.
#[test]
fn busy_periods_are_slow_if_their_thread_waits_or_runs_for_longer_a_message() {
    let drawn = format!("{}{}{}", ".".repeat(60), "9".repeat(40), ".".repeat(60));
    let of = |name: &str, waits: bool, messages: Option<(i64, i64)>| {
        let mut drawn = steps(1, &drawn, 7);
        for step in &mut drawn {
            step.name = name.into();
            let is_long = step.dur.0 > 14_000_000;
            step.size = messages.map(|(usual, slow)| if is_long { slow } else { usual });
            let ran = if waits { step.dur.0.min(10_000_000) } else { step.dur.0 };
            step.ran = Some(Ns(ran * 99 / 100));
        }
        said(&drawn)
    };
    assert!(of(names::BUSY_PERIOD, true, None).starts_with("1 series, 200 steps"));
    assert_eq!(of(names::BUSY_PERIOD, false, None), "");
    assert!(of("step", false, None).starts_with("1 series, 200 steps"));
    assert!(of(names::BUSY_PERIOD, false, Some((10, 11))).starts_with("1 series, 200 steps"));
    assert_eq!(of(names::BUSY_PERIOD, false, Some((1, 9))), "", "there was more to do");
    assert_eq!(of(names::BUSY_PERIOD, false, Some((4, 1))), "", "some were not recorded");
}

/// Each fifth step takes twenty times as long for a while, and those in between as long as ever.
#[test]
fn long_steps_among_usual_ones_are_told_apart_from_steps_that_are_all_slower() {
    let mut drawn = steps(1, &".".repeat(160), 7);
    for (n, step) in drawn.iter_mut().enumerate() {
        step.ts = Ns(step.ts.0 * 15);
        if (500..600).contains(&n) && n % 5 == 0 {
            step.dur = Ns(20 * step.dur.0);
        }
    }
    let among = |drawn: Vec<Step>| {
        let drawn = Steps::from(drawn);
        let found = incidents(&drawn, &Detection::default());
        long_among(&drawn, &found[0].slowed[0])
    };
    let long = among(drawn).unwrap();
    assert!((13..=20).contains(&long.many) && (long.times - 20.0).abs() < 1.0, "{long:?}");
    assert!(long.scattered);
    let all = format!("{}{}{}", ".".repeat(60), "9".repeat(40), ".".repeat(60));
    assert_eq!(among(steps(1, &all, 7)), None);
}

/// A thread of a pool waits for its next connection from 4 to 18 s; then another one's busy periods take a tenth of a second.
#[test]
fn a_thread_that_paused_does_not_lengthen_the_incident_after_it() {
    let step = |thread: u32, n: usize, at: i64, dur: i64| Step {
        id: Id::new(thread as u16, n as u64),
        ts: Ns::millis(at),
        dur: Ns::millis(dur),
        thread: EntityId(thread),
        series: None,
        rank: None,
        name: names::BUSY_PERIOD.into(),
        size: None,
        ran: None,
        expected: Default::default(),
    };
    let of_pool =
        (0..200).map(|n| step(1, n, 20 * n as i64, 1)).chain([step(1, 200, 4000, 14_000)]);
    let usual = (0..900).map(|n| step(2, n, 20 * n as i64, 1));
    let slow = (0..30).map(|n| step(2, 900 + n, 18_000 + 110 * n as i64, 100));
    let mut all: Vec<Step> = of_pool.chain(usual).chain(slow).collect();
    all.sort_by_key(|step| step.end());
    let slow: Vec<StepNo> = (0..all.len())
        .filter(|n| all[*n].dur >= Ns::millis(100))
        .map(|n| StepNo(n as u64))
        .collect();
    let steps = Steps::from(all.clone());
    let incident = incident_of(&steps, &slow).unwrap();
    let between = |kind, of: u32| {
        let incident = Narrowed(incident.clone());
        let parts: Vec<Part> = slow
            .iter()
            .map(|no| &steps[*no])
            .map(|step| {
                let kind = if step.thread == EntityId(of) { kind } else { PartKind::Lock };
                let (ts, dur, thread) = (step.ts, step.dur, step.thread);
                Part { step: step.id, ts, dur, kind, thread, blame: None, hops: 0 }
            })
            .collect();
        let left = incident.without_pauses(&steps, &parts);
        (left.slowed.len(), left.from.0 / 1_000_000, left.to.0 / 1_000_000)
    };
    assert_eq!(between(PartKind::Unknown, 1), (1, 18_000, 21_290));
    assert_eq!(between(PartKind::Lock, 1), (2, 4000, 21_290), "it is known what it waited for");
    assert_eq!(
        between(PartKind::Unknown, 2),
        (2, 4000, 21_290),
        "many that nothing explains are no pause"
    );
}

/// Answers of 2.6 ms, forty a second, of which one in six has to wait for the time slice of a busy loop: no single one
/// is far out, and the others take as long as ever.
#[test]
fn a_few_answers_that_wait_a_little_are_told_by_what_they_lose_in_a_second() {
    let mut random = Random::new(5);
    let mut drawn = |n: i64, ms: f64| {
        let noise = 1.0 + 0.25 * (random.below(2001) as f64 / 1000.0 - 1.0);
        let of = steps(1, ".", n as u64).swap_remove(0);
        Step {
            id: Id::new(1, n as u64),
            ts: Ns::millis(25 * n),
            dur: Ns((ms * noise * 1e6) as i64),
            ..of
        }
    };
    let waits = |n: i64| (1600..1920).contains(&n) && n % 6 == 0;
    let all: Vec<Step> = (0..2400).map(|n| drawn(n, if waits(n) { 6.6 } else { 2.6 })).collect();
    let said = said(&all);
    assert!(said.starts_with("1 series, ") && !said.contains(';'), "{said}");
    let (from, to) = said.rsplit_once(", ").unwrap().1.split_once("..").unwrap();
    let (from, to): (i64, i64) =
        (from.parse().unwrap(), to.trim_end_matches(" ms").parse().unwrap());
    assert!((39_000..42_000).contains(&from) && (46_000..49_000).contains(&to), "{said}");
}

/// Requests of 1.5 ms, sixty a second, are answered by thirty threads by turns; for eight seconds every third waits 2.5 ms more
/// for a CPU. No thread has enough of them to have seconds that can be compared.
#[test]
fn requests_that_wander_are_compared_as_those_of_their_process() {
    let found = |series: Option<EntityId>| {
        let mut random = Random::new(9);
        let draw = |n: i64| {
            let at = Ns(n * 1_000_000_000 / 60);
            let waits = (60..68).contains(&(at.0 / 1_000_000_000)) && n % 3 == 0;
            let ms = 1.5 * (1.0 + 0.3 * (random.below(1000) as f64 / 1000.0))
                + if waits { 2.5 } else { 0.0 };
            Step {
                id: Id::new(1, n as u64),
                ts: at,
                dur: Ns((ms * 1e6) as i64),
                thread: EntityId(2 + random.below(30) as u32),
                series,
                rank: None,
                name: names::BUSY_PERIOD.into(),
                size: Some(1),
                ran: None,
                expected: Default::default(),
            }
        };
        let mut all: Vec<Step> = (0..60 * 90).map(draw).collect();
        all.sort_by_key(|step| step.end());
        let steps = Steps::from(all);
        let found = incidents(&steps, &Detection::default());
        let lasted = |i: &Incident| (i.from.0 / 1_000_000_000, i.to.0 / 1_000_000_000);
        found.iter().map(|i| (lasted(i), i.slowed.len())).collect::<Vec<_>>()
    };
    let of_process = found(Some(EntityId(1)));
    assert!(matches!(of_process[..], [((60 | 61, 67 | 68), 1)]), "{of_process:?}");
    assert_eq!(found(None), [], "each thread has a few a second");
}
