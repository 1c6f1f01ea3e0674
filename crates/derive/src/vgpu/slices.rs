//! How long the slice of a virtual GPU is, and when that changed: its weight is in no event, but what it gets is.
//!
//! # How
//! Whenever the device is taken from a virtual GPU, its scheduler says what is left of the slice. Between two such moments
//! it lost the time that it had the device, from its first hand-over to the second moment, and gained its slice once if
//! a balance was in between (`gains`). A change lasts: it is one if the median of the next gains differs.
//!
//! # What fools it
//! A virtual GPU that is rarely given the device has few gains, and none is told. Resets of debts are taken for gains; the
//! median passes over them.

use crate::median::median;

/// Gains at a time that make a median.
const GAINS: usize = 5;
/// Gains below this are none, ns: ticks and threads.
const LEAST: i64 = 1_000_000;
/// Further apart, more than one balance may be in between, ns.
const APART: i64 = 150_000_000;
/// Medians that differ by more than this share are two slices.
const CHANGED: f64 = 0.2;

/// The slice of a virtual GPU for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// When it was first seen, ns.
    pub from: i64,
    /// When it was last seen, ns.
    pub to: i64,
    /// How long it is, ns of each 100 ms.
    pub slice: i64,
}

/// What a virtual GPU gained between the moments when the device was taken from it: when, and how much. `taken` are these
/// moments and what was left, `handed` when its requests were handed over; both in the order of time, ns.
fn gains(taken: &[(i64, i64)], handed: &[i64]) -> Vec<(i64, i64)> {
    let mut out = Vec::new();
    for (&(before, left), &(at, now)) in taken.iter().zip(taken.iter().skip(1)) {
        let first = handed.get(handed.partition_point(|time| *time < before));
        let Some(since) = first.filter(|since| **since <= at && at - before <= APART) else {
            continue;
        };
        let gain = now - left + (at - since);
        if gain > LEAST {
            out.push((at, gain));
        }
    }
    out
}

fn usual(of: &[(i64, i64)]) -> i64 {
    median(of.iter().map(|(_, gain)| *gain), i64::cmp)
}

fn differ(a: i64, b: i64) -> bool {
    (a - b).abs() as f64 > CHANGED * a.max(b) as f64
}

/// The slices of a virtual GPU one after the other; empty if it was given the device too rarely.
pub fn slices(taken: &[(i64, i64)], handed: &[i64]) -> Vec<Slices> {
    let gains = gains(taken, handed);
    let mut out = Vec::new();
    let mut begun = 0;
    for at in GAINS..=gains.len() {
        if at - begun < GAINS {
            continue;
        }
        let own = &gains[begun..at];
        let slice = usual(own);
        let next = gains.get(at..at + GAINS);
        // One that is longer by itself does not begin a new slice.
        let changes = next.is_some_and(|next| {
            differ(usual(next), slice) && next.first().is_some_and(|one| differ(one.1, slice))
        });
        if at == gains.len() || changes {
            out.push(Slices { from: own[0].0, to: own[own.len() - 1].0, slice });
            begun = at;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// It has the device for 40 ms of each 100 ms, and gets a slice of so many ms; each tenth time what is left is set anew.
    fn seen(slices: &[i64]) -> (Vec<(i64, i64)>, Vec<i64>) {
        let (mut taken, mut handed, mut left) = (vec![(0, 0)], Vec::new(), 0);
        for (at, slice) in slices.iter().enumerate() {
            let from = at as i64 * 100 * MS + 50 * MS;
            left = if at % 10 == 9 { 0 } else { left } + slice * MS - 40 * MS;
            handed.push(from);
            taken.push((from + 40 * MS, left));
        }
        (taken, handed)
    }

    #[test]
    fn a_change_of_weight_is_seen_in_the_slices() {
        let (taken, handed) = seen(&[[50; 30], [75; 30]].concat());
        let found = slices(&taken, &handed);
        let lengths: Vec<i64> = found.iter().map(|one| one.slice / MS).collect();
        assert_eq!(lengths, [50, 75], "{found:?}");
        // At 2.99 s what was saved is taken away.
        assert_eq!((found[0].to, found[1].from), (2_890 * MS, 3_090 * MS));
    }

    #[test]
    fn one_slice_stays_one_and_too_little_says_nothing() {
        let (taken, handed) = seen(&[50; 40]);
        assert_eq!(slices(&taken, &handed).len(), 1);
        let (taken, handed) = seen(&[50; 3]);
        assert_eq!(slices(&taken, &handed), []);
        assert_eq!(slices(&[], &[]), []);
    }
}
