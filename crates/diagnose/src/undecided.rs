//! Slowdowns of which nobody could say why, and that come again.
//!
//! # What it sees
//! Steps of an engine that shares its CPUs with its clients take 20 % longer for a second, and a minute later again. Each
//! time that is a slowdown by any threshold that is learned from the last thousand steps; each time the evidence names
//! nobody. Of a process that had two such, a third one is *as before* if it is hardly larger than the second largest of the last
//! hour.
//!
//! # Why it matters
//! A calm engine was told of 65 times an hour, each time with "insufficient evidence". Whoever is told so looks away, also when
//! it is another one.
//!
//! # What fools it
//! A disturbance from outside that nobody could be named for, twice, is not told of a third time as long as it is no larger.
//! Only what stays undecided is kept silent: a cause that is found is told at any size.

use std::collections::VecDeque;

use gpuwhy_schema::{EntityId, Ns};

use crate::detect::{Against, Incident, Steps, lost};

/// How long one is remembered,
const FOR: Ns = Ns::secs(3600);
/// and how many are.
const REMEMBERED: usize = 256;
/// One is as before if its steps rose by no more than this many times as much,
const RISE: f64 = 1.25;
/// and lost no more than this many times as much.
const LOST: f64 = 4.0;

/// How large a slowdown of a process was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Which process.
    pub of: EntityId,
    /// By which share of the usual its steps took longer: 0.2 is 20 %. The largest of its series.
    pub rise: f64,
    /// What its steps lost in all, ns. The most of its series.
    pub lost: f64,
}

/// The slowdowns of the last hour for which nobody could be named.
#[derive(Debug, Default)]
pub struct Undecided {
    seen: VecDeque<(Ns, Size)>,
}

/// How large an incident was, of each process; `process_of` says whose thread it is. None if it is compared with something
/// else than what was usual just before: that is not told twice in any case.
pub fn sizes(
    steps: &Steps,
    incident: &Incident,
    process_of: impl Fn(EntityId) -> EntityId,
) -> Vec<Size> {
    let mut out: Vec<Size> = Vec::new();
    for slowed in &incident.slowed {
        if slowed.against != Against::Lately || slowed.follows.is_some() {
            return Vec::new();
        }
        let took = slowed.slow.iter().map(|&no| steps[no].dur.0 as f64).sum::<f64>();
        let lost = lost(steps, slowed);
        let of = process_of(slowed.signature.of);
        let rise = lost / (took - lost).max(1.0);
        match out.iter_mut().find(|size| size.of == of) {
            Some(size) => *size = Size { of, rise: size.rise.max(rise), lost: size.lost.max(lost) },
            None => out.push(Size { of, rise, lost }),
        }
    }
    out
}

impl Undecided {
    /// Whether at `now` an incident of these sizes is hardly larger than those before, for every process.
    pub fn is_as_before(&self, sizes: &[Size], now: Ns) -> bool {
        !sizes.is_empty()
            && sizes.iter().all(|size| {
                self.second_largest(size.of, now).is_some_and(|before| {
                    size.rise <= RISE * before.rise && size.lost <= LOST * before.lost
                })
            })
    }

    /// Takes note of one that ended at `now`; whether it was as before. Such a one counts as no larger than those: else each
    /// could be somewhat larger than the last, and none would be told.
    pub fn take(&mut self, sizes: &[Size], now: Ns) -> bool {
        let as_before = self.is_as_before(sizes, now);
        for size in sizes {
            let mut size = *size;
            if let Some(before) = self.second_largest(size.of, now).filter(|_| as_before) {
                size.rise = size.rise.min(before.rise);
                size.lost = size.lost.min(before.lost);
            }
            if self.seen.len() == REMEMBERED {
                self.seen.pop_front();
            }
            self.seen.push_back((now, size));
        }
        while self.seen.front().is_some_and(|(at, _)| now.saturating_sub(*at) > FOR) {
            self.seen.pop_front();
        }
        as_before
    }

    /// The second largest rise and loss of a process in the last hour, each by itself.
    fn second_largest(&self, of: EntityId, now: Ns) -> Option<Size> {
        let lately = |(at, size): &&(Ns, Size)| size.of == of && now.saturating_sub(*at) <= FOR;
        let (mut rise, mut lost) = ([0.0; 2], [0.0; 2]);
        let mut seen = 0;
        for (_, size) in self.seen.iter().filter(lately) {
            seen += 1;
            rise = two_largest(rise, size.rise);
            lost = two_largest(lost, size.lost);
        }
        (seen >= 2).then_some(Size { of, rise: rise[1], lost: lost[1] })
    }
}

/// The two largest of two and another one, the largest first.
fn two_largest([first, second]: [f64; 2], other: f64) -> [f64; 2] {
    if other > first { [other, first] } else { [first, second.max(other)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: EntityId = EntityId(1);

    fn size(rise: f64, lost_ms: f64) -> Vec<Size> {
        vec![Size { of: SERVER, rise, lost: lost_ms * 1e6 }]
    }

    /// The sizes of slowdowns one a minute, and whether each was as before.
    fn as_before(sizes: &[(f64, f64)]) -> Vec<bool> {
        let mut undecided = Undecided::default();
        let each = sizes.iter().enumerate().map(|(minute, &(rise, lost))| {
            let now = Ns::secs(60 * minute as i64);
            let size = size(rise, lost);
            let is = undecided.is_as_before(&size, now);
            assert_eq!(undecided.take(&size, now), is);
            is
        });
        each.collect()
    }

    #[test]
    fn the_third_that_is_no_larger_is_as_before() {
        assert_eq!(as_before(&[(0.2, 200.0), (0.3, 300.0), (0.24, 700.0)]), [false, false, true]);
    }

    #[test]
    fn one_that_rises_higher_or_loses_much_more_than_the_second_largest_is_not() {
        let one_large = [(0.2, 200.0), (3.0, 9000.0)];
        assert!(!as_before(&[one_large[0], one_large[1], (0.26, 100.0)])[2]);
        assert!(!as_before(&[one_large[0], one_large[1], (0.2, 900.0)])[2]);
        assert!(as_before(&[one_large[0], one_large[1], (0.24, 700.0)])[2]);
    }

    #[test]
    fn they_do_not_grow_little_by_little_without_a_word() {
        let grows: Vec<(f64, f64)> = (0..12).map(|n| (0.2 * 1.1_f64.powi(n), 300.0)).collect();
        let told = as_before(&grows).iter().filter(|is| !**is).count();
        assert!(told >= 6, "{told} of 12 were told");
    }

    #[test]
    fn what_comes_again_and_again_stays_as_before_and_what_does_not_is_forgotten_after_an_hour() {
        let mut often = Undecided::default();
        let mut seldom = Undecided::default();
        for minute in 0..180 {
            let now = Ns::secs(60 * minute);
            let is = often.is_as_before(&size(0.2, 200.0), now);
            assert_eq!(is, minute >= 2, "in minute {minute}");
            often.take(&size(0.2, 200.0), now);
            if minute < 2 {
                seldom.take(&size(0.2, 200.0), now);
            }
        }
        assert!(seldom.is_as_before(&size(0.2, 200.0), Ns::secs(3500)));
        assert!(!seldom.is_as_before(&size(0.2, 200.0), Ns::secs(3700)));
    }

    #[test]
    fn another_process_is_another_matter() {
        let mut undecided = Undecided::default();
        for _ in 0..2 {
            undecided.take(&size(0.2, 200.0), Ns::ZERO);
        }
        let other = Size { of: EntityId(2), ..size(0.2, 200.0)[0] };
        assert!(!undecided.is_as_before(&[other], Ns::secs(1)));
        assert!(!undecided.is_as_before(&[size(0.2, 200.0)[0], other], Ns::secs(1)));
        assert!(!undecided.is_as_before(&[], Ns::secs(1)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut undecided = Undecided::default();
        for n in 0..10_000 {
            undecided.take(&size(0.2, 200.0), Ns::millis(n));
        }
        assert_eq!(undecided.seen.len(), REMEMBERED);
    }
}
