//! Which sleeps of a thread that sleeps for a time, works, and sleeps again are the pace at which it works.
//!
//! # What it sees
//! How long each sleep was, and how long it had been since the pace before it. Where at least half of the latest sleeps are
//! equally long, the others are none of the pace: a program that finds its database locked sleeps for a while and tries
//! again, which is a part of its work. Programs that work at a rate sleep for what is left of an interval; theirs is the
//! interval that is equally long.
//!
//! # What fools it
//! Waits for something that are as long as the usual sleep. A program that comes to sleep for another time is measured by
//! the old one for 32 sleeps.

use gpuwhy_schema::Ns;

use crate::median::median;

/// Sleeps that are remembered.
const KEPT: usize = 64;
/// Equally long: within this share of the usual one.
const WITHIN: f64 = 0.2;
/// This share of the sleeps that are remembered has to be, or each sleep is the pace.
const STEADY: f64 = 0.5;

/// The latest sleeps of a thread, and what is usual of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// How long they were, and how long it had been since the pace before them, as a ring.
    slept: Vec<i64>,
    intervals: Vec<i64>,
    next: usize,
    /// How long a sleep is, and from the end of one to the end of the next, if sleeps are equally long.
    usual: Option<(i64, i64)>,
}

impl Pace {
    /// Takes the next sleep, and how long it had been since the pace before it when it ended; whether it is the pace.
    pub fn take(&mut self, slept: Ns, interval: Ns) -> bool {
        let is_pace = self.usual.is_none_or(|(usual, usual_interval)| {
            is_like(slept.0, usual) || is_like(interval.0, usual_interval)
        });
        put(&mut self.slept, self.next, slept.0);
        if is_pace {
            put(&mut self.intervals, self.next, interval.0);
        }
        self.next = (self.next + 1) % KEPT;
        if self.next.is_multiple_of(KEPT / 4) {
            self.learn();
        }
        is_pace
    }

    fn learn(&mut self) {
        let usual = |of: &[i64]| median(of.iter().copied(), i64::cmp);
        let slept = usual(&self.slept);
        let like = self.slept.iter().filter(|of| is_like(**of, slept)).count();
        let is_steady = self.slept.len() == KEPT && like as f64 >= STEADY * KEPT as f64;
        self.usual = is_steady.then(|| (slept, usual(&self.intervals)));
    }
}

fn put(ring: &mut Vec<i64>, at: usize, ns: i64) {
    match ring.get_mut(at) {
        Some(old) => *old = ns,
        None => ring.push(ns),
    }
}

fn is_like(ns: i64, usual: i64) -> bool {
    (ns as f64 - usual as f64).abs() <= WITHIN * usual as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which sleeps are the pace of a thread that works for so many us before each, us.
    fn paces(sleeps: &[(i64, i64)]) -> Vec<bool> {
        let (mut pace, mut since) = (Pace::default(), 0);
        let take = |(works, slept): &(i64, i64)| {
            since += works + slept;
            let is_pace = pace.take(Ns::micros(*slept), Ns::micros(since));
            if is_pace {
                since = 0;
            }
            is_pace
        };
        sleeps.iter().map(take).collect()
    }

    /// Sleeps of 4 ms, and from the hundredth on it also waits for a lock, now and then.
    fn waits_for_a_lock() -> Vec<(i64, i64)> {
        let backs_off = [(300, 1000), (50, 2000), (50, 5000), (50, 10_000), (50, 15_000)];
        let mut sleeps = vec![(1000, 4000); 100];
        for _ in 0..10 {
            sleeps.extend(backs_off);
            sleeps.extend([(1000, 4100); 8]);
        }
        sleeps
    }

    #[test]
    fn a_wait_for_something_is_none_of_the_pace() {
        let found = paces(&waits_for_a_lock());
        assert!(found[..100].iter().all(|is_pace| *is_pace));
        for round in found[100..].chunks(13) {
            assert_eq!(round[..5], [false; 5], "{round:?}");
            assert_eq!(round[5..], [true; 8], "{round:?}");
        }
    }

    #[test]
    fn one_that_works_at_a_rate_sleeps_for_what_is_left() {
        let mut sleeps = vec![(1000, 9000); 100];
        // Its work takes longer, so that less is left.
        sleeps.extend([(7000, 3000); 20]);
        assert_eq!(paces(&sleeps), vec![true; 120]);
    }

    #[test]
    fn where_sleeps_are_of_any_length_each_is_the_pace() {
        let sleeps: Vec<(i64, i64)> = (0..300).map(|n| (500, 500 + 7919 * n % 20_000)).collect();
        assert_eq!(paces(&sleeps), vec![true; 300]);
    }

    #[test]
    fn another_pace_is_learned() {
        let mut sleeps = vec![(1000, 4000); 100];
        sleeps.extend([(1000, 8000); 100]);
        let found = paces(&sleeps);
        let missed = found.iter().filter(|is_pace| !**is_pace).count();
        assert!(
            (20..60).contains(&missed) && found[160..].iter().all(|is_pace| *is_pace),
            "{missed}"
        );
    }
}
