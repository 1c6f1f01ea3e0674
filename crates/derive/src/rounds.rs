//! Rounds of a program that marks no steps.
//!
//! # What it sees
//! Moments that come again and again in a program's own order: the ends of its waits for its GPU, or the
//! begins of its collectives. A training loop waits for its device a fixed number of times an iteration.
//! That number of moments makes a round, and a round is as good as a step: it has a usual length, and
//! can be longer.
//!
//! # Why it matters
//! Nobody marks steps in a program that is slow today. Without steps nothing can be slower than usual.
//!
//! # What fools it
//! - Work that always varies (requests of all sizes, idle time between them) has no rounds:
//!   [`rounds`] returns `None`, so that it is not found slow all day.
//! - What an iteration does only now and then, such as a checkpoint with waits of its own, shifts where
//!   later rounds begin within their iteration; their length stays what it was.
//! - A round need not begin where the programmer's iteration does.

use std::collections::VecDeque;

use gpuwhy_schema::Ns;

use crate::median::median;

/// Fewer rounds than this are none.
const LEAST: usize = 24;
/// At most this many moments make a round.
const MOST_IN_ONE: usize = 64;
/// Regularity is the median of this many stretches of time: in some of them something may have
/// happened.
const STRETCHES: usize = 9;
/// A stretch has at least this many rounds.
const IN_A_STRETCH: usize = 12;
/// The largest differences between one round and the next are left out: this share of each stretch.
const LEFT_OUT: f64 = 0.02;
/// Rounds that differ from the one before by no more than this share, on average, are good; the
/// fewest moments that make such ones do.
const GOOD: f64 = 0.15;
/// Where rounds differ by more than this share, on average, the program has no rounds.
const REGULAR: f64 = 0.5;
/// Where no number of moments is good, the smallest that is at most this many times as irregular as the
/// best.
const NEARLY: f64 = 3.0;
/// If more than the second share of rounds are the first number of times longer than usual, the series is
/// idle time and not rounds: more than 1 % that take ten times as long.
const IDLE: (f64, f64) = (10.0, 0.01);

/// Rounds, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// How many moments make one.
    pub each: usize,
    /// When each begins and ends.
    pub list: Vec<(Ns, Ns)>,
}

/// The rounds that moments, oldest first, make; `None` where they are too irregular, or too few.
pub fn rounds(moments: &[Ns]) -> Option<Rounds> {
    rounds_within(moments, REGULAR)
}

/// The same of rounds that differ from the one before by no more than this share, on average.
pub fn rounds_within(moments: &[Ns], regular: f64) -> Option<Rounds> {
    let most = MOST_IN_ONE.min(moments.len().saturating_sub(1) / LEAST);
    // Sums of anything vary less the more are summed, by the root of their number.
    let score = |each: usize| {
        let change = change(&lengths(moments, each))?;
        Some(change * (each as f64).sqrt()).filter(|score| *score <= regular)
    };
    let scores: Vec<(usize, f64)> = (1..=most).filter_map(|n| Some((n, score(n)?))).collect();
    let best = scores.iter().map(|s| s.1).fold(f64::INFINITY, f64::min);
    let good = |limit: f64| scores.iter().find(|s| s.1 <= limit);
    let (each, _) = *good(GOOD).or_else(|| good(best * NEARLY))?;
    let lengths = lengths(moments, each);
    let (times, share) = IDLE;
    let usual = middle(&lengths);
    let idle = lengths.iter().filter(|length| **length >= times * usual).count();
    let may_idle = (lengths.len() as f64 * share).max(3.0);
    if idle as f64 > may_idle {
        return None;
    }
    let ends: Vec<Ns> = moments.iter().copied().step_by(each).collect();
    let list = ends.windows(2).map(|pair| (pair[0], pair[1])).filter(|(from, to)| from < to);
    Some(Rounds { each, list: list.collect() })
}

/// This many moments are remembered.
const REMEMBERED: usize = 4096;
/// After how many moments rounds are looked for first, and after how many more at most again.
const LOOKS: (usize, usize) = (128, 2048);
/// The moments must cover this much time: what a program does at first it does not do later.
const FIRST: Ns = Ns::secs(5);

/// Moments as they come, and their rounds.
#[derive(Clone, Debug, Default)]
pub struct Train {
    moments: VecDeque<Ns>,
    seen: usize,
    look_at: usize,
    each: Option<usize>,
    /// Of the round that has begun: when, and how many moments it has.
    begun: (Ns, usize),
    /// The end of the last one that was returned.
    returned: Ns,
}

impl Train {
    /// Takes the next moment. Rounds that have ended go to `out`; when rounds are seen for the first
    /// time, those before come too.
    pub fn push(&mut self, moment: Ns, out: &mut Vec<(Ns, Ns)>) {
        // Of several streams, what ended first may arrive last.
        let moment = self.moments.back().map_or(moment, |last| moment.max(*last));
        if self.moments.len() >= REMEMBERED {
            self.moments.pop_front();
        }
        self.moments.push_back(moment);
        self.seen += 1;
        if let Some(each) = self.each {
            self.begun.1 += 1;
            if self.begun.1 >= each {
                out.push((self.begun.0, moment));
                self.begun = (moment, 0);
                self.returned = moment;
            }
        }
        if self.seen >= self.look_at.max(LOOKS.0) {
            self.look_at = self.seen + self.seen.clamp(LOOKS.0, LOOKS.1);
            self.look(out);
        }
    }

    fn look(&mut self, out: &mut Vec<(Ns, Ns)>) {
        let moments = self.moments.make_contiguous();
        let (Some(first), Some(last)) = (moments.first(), moments.last()) else { return };
        if last.saturating_sub(*first) < FIRST {
            return;
        }
        let found = rounds(moments);
        if found.as_ref().map(|found| found.each) == self.each {
            return;
        }
        let Some(found) = found else {
            self.each = None;
            return;
        };
        let whole = (moments.len() - 1) / found.each * found.each;
        self.begun = (moments[whole], moments.len() - 1 - whole);
        if self.each.replace(found.each).is_none() {
            out.extend(found.list.into_iter().filter(|(from, _)| *from >= self.returned));
        }
        self.returned = self.returned.max(self.begun.0);
    }

    /// When the round began that has not ended; `None` where there are no rounds.
    pub fn begun(&self) -> Option<Ns> {
        self.each.map(|_| self.begun.0)
    }
}

/// How long rounds of `each` moments take, ns.
fn lengths(moments: &[Ns], each: usize) -> Vec<f64> {
    let ends: Vec<Ns> = moments.iter().copied().step_by(each).collect();
    ends.windows(2).map(|pair| (pair[1].saturating_sub(pair[0])).0 as f64).collect()
}

/// By how much one length differs from the next, as a share of the usual.
fn change(lengths: &[f64]) -> Option<f64> {
    let size = (lengths.len() / STRETCHES).max(IN_A_STRETCH);
    let of = |stretch: &[f64]| {
        let mut steps: Vec<f64> =
            stretch.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
        steps.sort_by(f64::total_cmp);
        let kept = steps.len() - (steps.len() as f64 * LEFT_OUT).ceil() as usize;
        let usual = middle(stretch);
        (kept > 0 && usual > 0.0).then(|| steps[..kept].iter().sum::<f64>() / kept as f64 / usual)
    };
    let all: Vec<f64> = lengths.chunks_exact(size).filter_map(of).collect();
    (!all.is_empty()).then(|| middle(&all))
}

fn middle(list: &[f64]) -> f64 {
    median(list.iter().copied(), f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drawn clock; noise is in parts of a thousand.
    struct Clock {
        at: i64,
        random: u64,
        moments: Vec<Ns>,
    }

    impl Clock {
        fn new() -> Clock {
            Clock { at: 0, random: 1, moments: vec![Ns::ZERO] }
        }

        fn gap(&mut self, us: i64, noise: i64) {
            self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let noise = (self.random >> 33) as i64 % (2 * noise + 1) - noise;
            self.at += us * (1000 + noise);
            self.moments.push(Ns(self.at));
        }

        /// `n` iterations with these gaps, in µs, each `times` as long.
        fn iterate(&mut self, n: usize, gaps: &[i64], times: i64, noise: i64) {
            (0..n).for_each(|_| gaps.iter().for_each(|us| self.gap(us * times, noise)));
        }

        /// A request of any size.
        fn request(&mut self) {
            let size = 1 << ((self.random >> 40) % 10);
            self.gap(100 * size, 300);
        }
    }

    #[test]
    fn moments_of_one_iteration_make_one_round() {
        for gaps in [&[5000][..], &[1000, 9000], &[100, 100, 100, 20_000], &[300, 8000, 300, 2000]]
        {
            let mut clock = Clock::new();
            clock.iterate(200, gaps, 1, 30);
            let rounds = rounds(&clock.moments).unwrap();
            assert_eq!((rounds.each, rounds.list.len()), (gaps.len(), 200), "{gaps:?}");
        }
    }

    #[test]
    fn what_happened_to_some_rounds_changes_nothing_of_what_a_round_is() {
        let mut clock = Clock::new();
        for (n, times) in [(100, 1), (60, 2), (41, 1)] {
            clock.iterate(n, &[500, 500, 4000], times, 50);
        }
        clock.gap(3_000_000, 0);
        clock.iterate(99, &[500, 500, 4000], 1, 50);
        let rounds = rounds(&clock.moments).unwrap();
        assert_eq!(rounds.each, 3);
        let longest = rounds.list.iter().map(|(from, to)| (*to - *from).0).max().unwrap();
        assert!(longest >= 3_000_000_000, "{longest}");
    }

    #[test]
    fn rounds_as_they_come_are_those_of_the_whole() {
        let mut clock = Clock::new();
        for (n, times) in [(2000, 1), (100, 3), (900, 1)] {
            clock.iterate(n, &[500, 4000, 500], times, 50);
        }
        let (mut train, mut found) = (Train::default(), Vec::new());
        for moment in &clock.moments {
            train.push(*moment, &mut found);
            assert!(train.begun().is_none_or(|begun| begun <= *moment));
        }
        let whole = rounds(&clock.moments).unwrap();
        // None comes twice or is left out, from the first on.
        assert_eq!(found, whole.list);
        assert_eq!(train.begun(), clock.moments.last().copied());
        assert!(train.moments.len() <= REMEMBERED);
        // A program that stops having rounds has none.
        for _ in 0..3 * REMEMBERED {
            clock.request();
            train.push(Ns(clock.at), &mut found);
        }
        assert_eq!(train.begun(), None);
    }

    #[test]
    fn what_comes_at_no_particular_time_has_no_rounds() {
        // Requests of all sizes.
        let mut clock = Clock::new();
        (0..2000).for_each(|_| clock.request());
        assert_eq!(rounds(&clock.moments), None);
        // Bursts of equal work, and idle time between them.
        let mut clock = Clock::new();
        for _ in 0..40 {
            clock.iterate(25, &[20_000], 1, 20);
            clock.gap(2_000_000, 900);
        }
        assert_eq!(rounds(&clock.moments), None);
        // Too few, and none at all.
        assert_eq!(rounds(&clock.moments[..20]), None);
        assert_eq!(rounds(&[]), None);
        assert_eq!(rounds(&[Ns::ZERO; 1000]), None);
    }
}
