//! Which events of two traces are the same, from the times between them.

use std::cmp::Ordering;
use std::fmt;

use super::clock::{Clock, DRIFTS};

/// Requests that are compared at once.
const STRETCH: usize = 48;
/// Less than so many requests tell nothing.
const AT_LEAST: usize = 8;
/// How many stretches of the guest's requests are tried: those that one trace lacks fit nowhere.
const TRIES: usize = 9;
/// A shift is right if all others fit so many times worse.
const WORSE: i64 = 4;
/// Times do not fit if half of them differ by more than one part in so many of the usual time between requests.
const IN_STEP: i64 = 10;
/// Below this, times fit as well as times can, ns.
const EXACT: i64 = 1_000;
/// How much longer than usual the host may take to hear of a request that still belongs to it, ns.
const LATE: i64 = 50_000;

/// Why nothing says which requests are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unaligned {
    /// There are too few.
    Few(usize),
    /// They come at such equal distances that several shifts fit.
    Regular,
    /// No shift fits.
    Unlike,
}

impl fmt::Display for Unaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unaligned::Few(n) => {
                write!(f, "{n} requests of an engine are in both traces at most, and {AT_LEAST} are needed")
            }
            Unaligned::Regular => f.write_str(
                "requests come at such equal distances that several shifts of the clocks fit as well",
            ),
            Unaligned::Unlike => f.write_str(
                "no stretch of the guest's requests has the times between them that the host's have",
            ),
        }
    }
}

impl std::error::Error for Unaligned {}

/// The places of events of the guest and of the host that are the same, in order.
pub(super) fn aligned(guest: &[i64], host: &[i64]) -> Result<Vec<(usize, usize)>, Unaligned> {
    let pairs = onwards(guest, host, anchor(guest, host)?);
    // Of what lies between the first pair and the last, most is matched, or a few fitted by chance.
    let spanned = |of: fn(&(usize, usize)) -> usize| {
        pairs.first().zip(pairs.last()).map_or(0, |(first, last)| of(last) + 1 - of(first))
    };
    let fewer = spanned(|pair| pair.0).min(spanned(|pair| pair.1));
    if pairs.len() < AT_LEAST || 2 * pairs.len() < fewer {
        return Err(Unaligned::Unlike);
    }
    Ok(pairs)
}

/// Where the two run in step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    /// The place of an event of the guest, and of the host's.
    places: (usize, usize),
    /// By how much their distances differ, ns: half of them by no more.
    spread: i64,
}

/// Finds where the guest's times run in step with the host's.
fn anchor(guest: &[i64], host: &[i64]) -> Result<Anchor, Unaligned> {
    let fewer = guest.len().min(host.len());
    if fewer < AT_LEAST {
        return Err(Unaligned::Few(fewer));
    }
    // The traces may have half of it in common.
    let length = (fewer / 2).clamp(AT_LEAST, STRETCH);
    let tries = TRIES.min(guest.len() - length + 1);
    let begins = |at: usize| (guest.len() - length) * at / (tries - 1).max(1);
    let fits = (0..tries).map(|at| fits(guest, host, begins(at), length));
    // The stretch of which the second best shift fits the worst beside the best one.
    let margin = |fit: &Fit| fit.second as f64 / fit.best.spread.max(EXACT) as f64;
    let best = fits.max_by(|a, b| margin(a).total_cmp(&margin(b))).ok_or(Unaligned::Few(0))?;
    let usual = usual_gap(guest);
    if best.best.spread > EXACT.max(usual / IN_STEP) {
        return Err(Unaligned::Unlike);
    }
    if best.second < WORSE.saturating_mul(best.best.spread.max(EXACT)) {
        return Err(Unaligned::Regular);
    }
    Ok(best.best)
}

/// The median of the times between events, ns.
fn usual_gap(times: &[i64]) -> i64 {
    let mut gaps: Vec<i64> = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let middle = gaps.len() / 2;
    gaps.select_nth_unstable(middle).1.to_owned()
}

/// How a stretch fits.
struct Fit {
    best: Anchor,
    /// The least spread of a shift by which the clocks would differ by something else.
    second: i64,
}

fn fits(guest: &[i64], host: &[i64], from: usize, length: usize) -> Fit {
    let own = &guest[from..from + length];
    let mut all: Vec<(i64, i64)> = Vec::with_capacity(host.len() - length + 1);
    let mut scratch = vec![0; length];
    for other in host.windows(length) {
        all.push(spread(own, other, &mut scratch));
    }
    let (with, &(least, distance)) =
        all.iter().enumerate().min_by_key(|(_, one)| one.0).expect("one window at least");
    let differs = |one: &&(i64, i64)| {
        one.1.abs_diff(distance) > 4 * least.unsigned_abs().max(EXACT.unsigned_abs())
    };
    let second = all.iter().filter(differs).map(|one| one.0).min().unwrap_or(i64::MAX);
    // One that is no outlier among its distances is where one goes on from.
    let off = |at: &usize| host[with + at].wrapping_sub(own[*at]).abs_diff(distance);
    let at = (0..length).min_by_key(off).unwrap_or(0);
    Fit { best: Anchor { places: (from + at, with + at), spread: least }, second }
}

/// The median deviation of the distances from their median, and that median.
fn spread(own: &[i64], other: &[i64], scratch: &mut [i64]) -> (i64, i64) {
    for ((place, a), b) in scratch.iter_mut().zip(own).zip(other) {
        *place = b.wrapping_sub(*a);
    }
    let middle = scratch.len() / 2;
    let median = *scratch.select_nth_unstable(middle).1;
    for place in scratch.iter_mut() {
        *place = place.saturating_sub(median).saturating_abs();
    }
    (*scratch.select_nth_unstable(middle).1, median)
}

/// From an anchor in both directions: the places of events that are the same, in order.
fn onwards(guest: &[i64], host: &[i64], anchor: Anchor) -> Vec<(usize, usize)> {
    let (at, with) = anchor.places;
    let backwards = |times: &[i64]| -> Vec<i64> {
        times.iter().rev().map(|time| time.saturating_neg()).collect()
    };
    let (before, of_host) = (backwards(&guest[..=at]), backwards(&host[..=with]));
    let mut pairs: Vec<(usize, usize)> = walk(&before, &of_host, anchor.spread)
        .into_iter()
        .map(|(a, b)| (at - a, with - b))
        .collect();
    pairs.reverse();
    // The anchor itself is in both.
    let after = walk(&guest[at..], &host[with..], anchor.spread);
    pairs.extend(after.into_iter().skip(1).map(|(a, b)| (at + a, with + b)));
    between(&pairs)
}

/// From the first of both, which are the same.
fn walk(guest: &[i64], host: &[i64], spread: i64) -> Vec<(usize, usize)> {
    let (mut distance, mut since) = (host[0].wrapping_sub(guest[0]), guest[0]);
    together(guest, host, |own, other| {
        let off = other.wrapping_sub(own).wrapping_sub(distance);
        let passed = own.saturating_sub(since).max(0);
        let allowed = LATE.max(spread.saturating_mul(8)) + (DRIFTS * passed as f64) as i64;
        let place = within(off, allowed);
        if place.is_eq() {
            // A quarter of the way, so that one that was late does not lead away.
            distance += off / 4;
            since = own;
        }
        place
    })
}

/// The places of events that are the same, by where the host's event lies beside the guest's: the earlier of two that are not
/// is passed over.
fn together(
    guest: &[i64],
    host: &[i64],
    mut place: impl FnMut(i64, i64) -> Ordering,
) -> Vec<(usize, usize)> {
    let (mut pairs, mut at, mut with) = (Vec::new(), 0, 0);
    while let (Some(own), Some(other)) = (guest.get(at), host.get(with)) {
        match place(*own, *other) {
            Ordering::Equal => {
                pairs.push((at, with));
                at += 1;
                with += 1;
            }
            Ordering::Less => with += 1,
            Ordering::Greater => at += 1,
        }
    }
    pairs
}

/// Whether something is off by no more than is allowed, and else in which direction.
fn within(off: i64, allowed: i64) -> Ordering {
    if off.saturating_abs() <= allowed { Ordering::Equal } else { off.cmp(&0) }
}

/// Where as many are unmatched on both sides between two pairs, they are the same in their order: the host was late.
fn between(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = Vec::with_capacity(pairs.len());
    for &(at, with) in pairs {
        if let Some(&(before, earlier)) = out.last()
            && at - before == with - earlier
        {
            out.extend((1..at - before).map(|step| (before + step, earlier + step)));
        }
        out.push((at, with));
    }
    out
}

/// The same where the clock is known.
pub(super) fn at_once(guest: &[i64], host: &[i64], clock: &Clock) -> Vec<(usize, usize)> {
    let allowed = LATE + clock.uncertain.unwrap_or(LATE) + clock.contradicted;
    let place = |own, other: i64| within(other.saturating_sub(clock.host(own)), allowed);
    between(&together(guest, host, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of a guest with gaps that differ, and the same of a host whose clock is ahead and which is 3 to 9 µs late.
    fn two(events: usize, ahead: i64) -> (Vec<i64>, Vec<i64>) {
        let mut now = 0;
        let guest: Vec<i64> = (0..events as i64)
            .map(|at| {
                now += 1_000_000 + (at * 7_919) % 613 * 1_000;
                now
            })
            .collect();
        let late = |(at, time): (usize, &i64)| time + ahead + 3_000 + (at as i64 * 31) % 7 * 1_000;
        let host = guest.iter().enumerate().map(late).collect();
        (guest, host)
    }

    #[test]
    fn traces_that_begin_and_end_at_other_times_are_matched_where_both_are() {
        let (guest, host) = two(500, 123_456_789_012);
        let pairs = aligned(&guest[..400], &host[120..]).unwrap();
        let wanted: Vec<(usize, usize)> = (120..400).map(|at| (at, at - 120)).collect();
        assert_eq!(pairs, wanted);
    }

    #[test]
    fn what_one_of_them_lost_is_passed_over() {
        let (mut guest, mut host) = two(400, -7_000_000);
        guest.drain(50..53);
        host.remove(200);
        host.drain(300..340);
        let pairs = aligned(&guest, &host).unwrap();
        // By their places before anything was lost.
        let was = |(at, with): &(usize, usize)| {
            let at = at + 3 * usize::from(*at >= 50);
            let with = with + usize::from(*with >= 200);
            (at, with + 40 * usize::from(with > 300))
        };
        assert!(pairs.iter().map(was).all(|(at, with)| at == with), "{pairs:?}");
        assert_eq!(pairs.len(), 400 - 3 - 1 - 40);
    }

    #[test]
    fn one_that_the_host_heard_of_late_is_matched_by_its_neighbours() {
        let (guest, mut host) = two(100, 5_000);
        host[60] += 700_000;
        let pairs = aligned(&guest, &host).unwrap();
        assert_eq!(pairs, (0..100).map(|at| (at, at)).collect::<Vec<_>>());
    }

    #[test]
    fn equal_distances_fit_at_any_shift_and_are_refused() {
        let guest: Vec<i64> = (0..200).map(|at| at * 16_666_667).collect();
        let host: Vec<i64> =
            guest.iter().enumerate().map(|(at, t)| t + 99 + (at as i64 * 31) % 7 * 1_000).collect();
        assert_eq!(aligned(&guest, &host), Err(Unaligned::Regular));
    }

    #[test]
    fn another_guests_trace_fits_nowhere() {
        let (guest, _) = two(300, 0);
        let mut now = 0;
        let other: Vec<i64> = (0..300_i64)
            .map(|at| {
                now += 900_000 + (at * at * 104_729) % 2_003 * 900;
                now
            })
            .collect();
        let said = aligned(&guest, &other);
        assert!(matches!(said, Err(Unaligned::Unlike | Unaligned::Regular)), "{said:?}");
    }

    #[test]
    fn a_few_requests_tell_nothing() {
        let (guest, host) = two(7, 0);
        assert_eq!(aligned(&guest, &host), Err(Unaligned::Few(7)));
    }
}
