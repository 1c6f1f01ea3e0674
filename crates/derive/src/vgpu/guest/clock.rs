//! The time of a host at any time of its guest.

/// How a guest's clock stands to that of its host: a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// A time of the guest, ns.
    pub guest: i64,
    /// The host's time at that moment, ns.
    pub host: i64,
    /// By how much the host's clock runs ahead, ns a ns.
    pub drift: f64,
    /// How far it may be off at any time from the first request to the last, ns: no line that all of them allow is further
    /// away. `None` where no ends of requests are known, so that nothing says how long it took the host to hear of them.
    pub uncertain: Option<i64>,
    /// By how much some of what is known contradicts the line, ns; 0 if all of it can be.
    pub contradicted: i64,
}

impl Clock {
    /// The host's time at a time of the guest, ns.
    pub fn host(&self, guest: i64) -> i64 {
        let passed = guest.saturating_sub(self.guest);
        self.host.saturating_add(passed).saturating_add((self.drift * passed as f64) as i64)
    }
}

/// A moment of the guest and one of the host, of which one was later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub guest: i64,
    pub host: i64,
    /// Whether the host's was.
    pub later: bool,
}

/// Clocks that tell the same time drift by no more than so many ns a ns.
pub(super) const DRIFTS: f64 = 5e-4;
/// Drifts that are tried when the worst is looked for.
const SAMPLES: u32 = 64;
/// A drift is believed if what is known fits so many times better with it than without.
const FITS_BETTER: f64 = 2.0;

/// The bounds relative to one of them: (time, distance of the clocks).
struct Relative {
    upper: Vec<(f64, f64)>,
    lower: Vec<(f64, f64)>,
}

impl Relative {
    /// Where a line of this drift begins at most.
    fn most(&self, drift: f64) -> f64 {
        let at = |&(time, distance): &(f64, f64)| distance - drift * time;
        self.upper.iter().map(at).fold(f64::INFINITY, f64::min)
    }

    /// How far a line of this drift can be from all bounds, and where it then begins.
    fn margin(&self, drift: f64) -> (f64, f64) {
        let most = self.most(drift);
        let at = |&(time, distance): &(f64, f64)| distance - drift * time;
        let least = self.lower.iter().map(at).fold(f64::NEG_INFINITY, f64::max);
        ((most - least) / 2.0, f64::midpoint(most, least))
    }

    /// The drift at which the line is the furthest from all bounds; the margin has one maximum.
    fn best(&self) -> f64 {
        let (mut from, mut to) = (-DRIFTS, DRIFTS);
        for _ in 0..80 {
            let third = (to - from) / 3.0;
            match self.margin(from + third).0 < self.margin(to - third).0 {
                true => from += third,
                false => to -= third,
            }
        }
        f64::midpoint(from, to)
    }

    /// How far lines that all bounds allow are from this one at most, at the first or the last of them.
    fn furthest(&self, (drift, begins): (f64, f64)) -> f64 {
        let times = || self.upper.iter().chain(&self.lower).map(|one| one.0);
        let ends = [times().fold(0.0, f64::min), times().fold(0.0, f64::max)];
        // What is allowed is one stretch of drifts, of which this one is a part.
        let until = |limit: f64| {
            let (mut allowed, mut not) = (drift, limit);
            for _ in 0..40 {
                let middle = f64::midpoint(allowed, not);
                if self.margin(middle).0 >= 0.0 { allowed = middle } else { not = middle }
            }
            allowed
        };
        let (from, to) = (until(-DRIFTS), until(DRIFTS));
        let mut most = 0.0_f64;
        for step in 0..=SAMPLES {
            let other = from + (to - from) * f64::from(step) / f64::from(SAMPLES);
            let (margin, middle) = self.margin(other);
            let off = ends.map(|time| (middle + other * time - begins - drift * time).abs());
            most = off.into_iter().map(|off| off + margin.max(0.0)).fold(most, f64::max);
        }
        most
    }

    /// The line along the upper bounds, where there are no others: through the least distance of the first and of the last
    /// third.
    fn along_upper(&self) -> (f64, f64) {
        let third = self.upper.len() / 3;
        let least = |of: &[(f64, f64)]| of.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        let ends = least(&self.upper[..third]).zip(least(&self.upper[self.upper.len() - third..]));
        let drift = ends.map_or(0.0, |(a, b)| (b.1 - a.1) / (b.0 - a.0).max(1.0));
        let drift = drift.clamp(-DRIFTS, DRIFTS);
        (drift, self.most(drift))
    }
}

/// The clock that keeps the furthest from all bounds.
///
/// # Panics
/// There is no bound.
pub(super) fn fitted(bounds: &[Bound]) -> Clock {
    let origin = bounds[0];
    let distance = origin.host.wrapping_sub(origin.guest);
    let mut all = Relative { upper: Vec::new(), lower: Vec::new() };
    for one in bounds {
        let time = one.guest.wrapping_sub(origin.guest) as f64;
        let own = one.host.wrapping_sub(one.guest).wrapping_sub(distance) as f64;
        if one.later { all.upper.push((time, own)) } else { all.lower.push((time, own)) }
    }
    let clock = |drift: f64, begins: f64| Clock {
        guest: origin.guest,
        host: origin.host.saturating_add(begins.round() as i64),
        drift,
        uncertain: None,
        contradicted: 0,
    };
    if all.lower.is_empty() {
        let (drift, begins) = all.along_upper();
        return clock(drift, begins);
    }
    let best = all.best();
    let (without, with) = (all.margin(0.0), all.margin(best));
    // What is left of a margin that is below nothing is a contradiction.
    let drifts = without.0 <= 0.0 || with.0 > FITS_BETTER * without.0;
    let (drift, (margin, begins)) = if drifts { (best, with) } else { (0.0, without) };
    let uncertain = if margin > 0.0 { all.furthest((drift, begins)) } else { 0.0 };
    let contradicted = (-margin).max(0.0) as i64;
    Clock { uncertain: Some(uncertain.ceil() as i64), contradicted, ..clock(drift, begins) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request each ms for so many ms: the host hears of it 2 to 9 µs later, and the guest of its end 5 to 12 µs later.
    fn requests(ms: i64, ahead: i64, drift: f64) -> Vec<Bound> {
        let guest = |host: i64| host - ahead - (drift * (host as f64)) as i64;
        let of = |at: i64| {
            let (late, back) = ((at * 7) % 8 * 1_000, (at * 5) % 8 * 1_000);
            let host = at * 1_000_000;
            let ended = host + 300_000;
            [
                Bound { guest: guest(host - 2_000 - late), host, later: true },
                Bound { guest: guest(ended + 5_000 + back), host: ended, later: false },
            ]
        };
        (0..ms).flat_map(of).collect()
    }

    #[test]
    fn a_clock_that_is_ahead_is_found_within_what_is_said_to_be_uncertain() {
        for ahead in [0, 1_700_000_000_000_000_000, -5_000_000_000] {
            let clock = fitted(&requests(2_000, ahead, 0.0));
            assert_eq!(clock.drift, 0.0, "{clock:?}");
            let uncertain = clock.uncertain.unwrap();
            // 2 µs there and 5 back at least: half of their sum, and a little for drifts that cannot be excluded.
            assert!((3_500..=6_000).contains(&uncertain), "{clock:?}");
            for host in [0, 500_000_000, 2_000_000_000] {
                let error = clock.host(host - ahead) - host;
                assert!(error.abs() <= uncertain, "{error} {clock:?}");
            }
            assert_eq!(clock.contradicted, 0);
        }
    }

    #[test]
    fn a_drift_is_followed_where_time_shows_it() {
        let drift = 40e-6;
        let bounds = requests(20_000, 1_000_000_000, drift);
        let clock = fitted(&bounds);
        let found = clock.drift;
        assert!((found - drift).abs() < 1e-6, "{clock:?}");
        for host in [0, 10_000_000_000_i64, 20_000_000_000] {
            let guest = host - 1_000_000_000 - (drift * host as f64) as i64;
            let error = clock.host(guest) - host;
            assert!(error.abs() <= clock.uncertain.unwrap(), "{error} {clock:?}");
        }
    }

    #[test]
    fn without_ends_the_clock_is_as_early_as_it_can_be_and_nothing_is_said_of_its_error() {
        let bounds: Vec<Bound> =
            requests(3_000, 77_000_000, 0.0).into_iter().filter(|one| one.later).collect();
        let clock = fitted(&bounds);
        assert_eq!(clock.uncertain, None);
        // The least that it took the host is counted as nothing.
        let error = clock.host(1_000_000_000 - 77_000_000) - 1_000_000_000;
        assert!((1_900..=2_100).contains(&error), "{error} {clock:?}");
    }

    #[test]
    fn what_cannot_be_is_counted() {
        let mut bounds = requests(100, 0, 0.0);
        // The host heard of one 50 µs before the guest handed it over.
        bounds.push(Bound { guest: 40_050_000, host: 40_000_000, later: true });
        let clock = fitted(&bounds);
        assert!(clock.contradicted > 10_000, "{clock:?}");
        assert_eq!(clock.uncertain, Some(0));
    }
}
