//! The GPU's clock on the host's: `%globaltimer` to CLOCK_MONOTONIC.
//!
//! NCCL's kernels write `%globaltimer` into memory that a host thread watches, and that thread
//! calls us. So each call is a pair of readings whose order is known: the GPU's came first.
//! The least difference of many pairs is the offset of the clocks plus the shortest way to us, a
//! few µs; a busy host only makes pairs that are less precise. In the other direction, a kernel
//! begins after the call that enqueued it, and the greatest difference of those pairs is a bound
//! from below: between the two the offset must lie.
//!
//! The clocks drift. The least of each second is kept for eight; from four on the drift itself is
//! estimated, and an old bound is widened by what the drift may have been besides.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// How many windows a bound is kept for,
const WINDOWS: usize = 8;
/// and the length of each, ns.
const WINDOW: u64 = 1_000_000_000;
/// How fast a bound is widened while the drift is not known, ns a second: crystals differ by tens
/// of ppm.
const DRIFT_UNKNOWN: i64 = 50_000;
/// And when it is known.
const DRIFT_KNOWN: i64 = 5_000;
/// A drift above this is not believed, ns a second.
const DRIFT_MOST: i64 = 200_000;
/// A pair that would move the offset by more than this is not believed, ns: the first pair of a busy host
/// may well be off by less,
const ODD: i64 = 100_000_000;
/// unless as many in a row agree: then a clock was set.
const ODD_MOST: u32 = 16;

struct Window {
    number: AtomicU64,
    /// Least of host minus GPU, and the host's time then.
    least: AtomicI64,
    least_at: AtomicU64,
    /// Greatest of enqueued minus GPU.
    most: AtomicI64,
}

/// What is known about one GPU's clock.
pub struct Envelope {
    windows: [Window; WINDOWS],
    latest: AtomicU64,
    /// ns a second, and whether it is known.
    drift: AtomicI64,
    drift_known: AtomicU32,
    odd: AtomicU32,
}

/// A time of the GPU on the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// CLOCK_MONOTONIC, ns: not before the true time, but for the drift's uncertainty.
    pub at: u64,
    /// The true time is earlier by this at most, ns; `None` if nothing bounds it from below.
    pub error: Option<u64>,
}

impl Envelope {
    /// Nothing is known yet. All zero, so that a static takes no room in the object file.
    pub const fn new() -> Envelope {
        Envelope {
            windows: [const {
                Window {
                    number: AtomicU64::new(0),
                    least: AtomicI64::new(0),
                    least_at: AtomicU64::new(0),
                    most: AtomicI64::new(0),
                }
            }; WINDOWS],
            latest: AtomicU64::new(0),
            drift: AtomicI64::new(0),
            drift_known: AtomicU32::new(0),
            odd: AtomicU32::new(0),
        }
    }

    /// At `host`, CLOCK_MONOTONIC ns, we received a time `gpu` of the GPU, ns.
    #[inline]
    pub fn observe(&self, host: u64, gpu: u64) {
        let difference = host.wrapping_sub(gpu) as i64;
        if difference >= self.window(host).least.load(Relaxed) {
            if self.odd.load(Relaxed) != 0 {
                self.odd.store(0, Relaxed);
            }
            return;
        }
        if self.offset(host).is_some_and(|offset| difference < offset.saturating_sub(ODD)) {
            if self.odd.fetch_add(1, Relaxed) + 1 < ODD_MOST {
                return;
            }
            self.forget();
        }
        self.odd.store(0, Relaxed);
        let window = self.window(host);
        window.least.fetch_min(difference, Relaxed);
        window.least_at.store(host, Relaxed);
    }

    /// Work that began at `gpu` had been enqueued at `host`.
    pub fn enqueued(&self, host: u64, gpu: u64) {
        let difference = host.wrapping_sub(gpu) as i64;
        // A pair that contradicts the other bound is a wrong pair, not a better bound.
        if self.offset(host).is_some_and(|offset| difference <= offset) {
            self.window(host).most.fetch_max(difference, Relaxed);
        }
    }

    /// `gpu` on the host's clock, as known around the host's time `now`; `None` while nothing is
    /// known.
    pub fn map(&self, gpu: u64, now: u64) -> Option<Mapped> {
        let offset = self.offset(now)?;
        let floor = self.floor(now);
        let error = (floor != i64::MIN).then(|| offset.saturating_sub(floor).max(0) as u64);
        Some(Mapped { at: gpu.wrapping_add(offset as u64), error })
    }

    fn window(&self, host: u64) -> &Window {
        let number = host / WINDOW + 1;
        let window = &self.windows[number as usize % WINDOWS];
        let had = window.number.load(Relaxed);
        if had < number && window.number.compare_exchange(had, number, AcqRel, Relaxed).is_ok() {
            window.least.store(i64::MAX, Relaxed);
            window.most.store(i64::MIN, Relaxed);
            self.latest.fetch_max(number, Relaxed);
            self.learn_drift();
        }
        window
    }

    /// Windows that still count.
    fn known(&self) -> impl Iterator<Item = &Window> {
        let latest = self.latest.load(Relaxed);
        self.windows.iter().filter(move |window| {
            let number = window.number.load(Relaxed);
            number != 0 && number + WINDOWS as u64 > latest
        })
    }

    /// The least offset that all pairs allow at the host's time `now`.
    fn offset(&self, now: u64) -> Option<i64> {
        let (drift, slack) = self.drift();
        let bound = |window: &Window| {
            let least = window.least.load(Relaxed);
            (least != i64::MAX).then(|| {
                let apart = now.wrapping_sub(window.least_at.load(Relaxed)) as i64;
                let moved = (drift as i128 * apart as i128 / 1_000_000_000) as i64;
                let widened = (slack as i128 * apart.unsigned_abs() as i128 / 1_000_000_000) as i64;
                least.saturating_add(moved).saturating_add(widened)
            })
        };
        self.known().filter_map(bound).min()
    }

    fn floor(&self, now: u64) -> i64 {
        let (drift, slack) = self.drift();
        let latest = now / WINDOW + 1;
        self.known()
            .filter(|window| window.most.load(Relaxed) != i64::MIN)
            .map(|window| {
                let seconds = latest.abs_diff(window.number.load(Relaxed)).min(60) as i64;
                let most = window.most.load(Relaxed);
                most.saturating_add(drift * seconds).saturating_sub(slack * (seconds + 1))
            })
            .max()
            .unwrap_or(i64::MIN)
    }

    fn drift(&self) -> (i64, i64) {
        match self.drift_known.load(Relaxed) {
            0 => (0, DRIFT_UNKNOWN),
            _ => (self.drift.load(Relaxed), DRIFT_KNOWN),
        }
    }

    /// The median slope between windows at least three apart: one bad window moves it little.
    fn learn_drift(&self) {
        let latest = self.latest.load(Relaxed);
        let mut points = [(0u64, 0i64); WINDOWS];
        let mut n = 0;
        for window in self.known() {
            let least = window.least.load(Relaxed);
            if least != i64::MAX && window.number.load(Relaxed) != latest {
                points[n] = (window.least_at.load(Relaxed), least);
                n += 1;
            }
        }
        let mut slopes = [0i64; WINDOWS * WINDOWS];
        let mut m = 0;
        for a in &points[..n] {
            for b in &points[..n] {
                if b.0 > a.0 + 5 * WINDOW / 2 {
                    let apart = (b.0 - a.0) as i128;
                    slopes[m] = ((b.1.wrapping_sub(a.1)) as i128 * 1_000_000_000 / apart) as i64;
                    m += 1;
                }
            }
        }
        if m < 3 {
            return self.drift_known.store(0, Relaxed);
        }
        slopes[..m].sort_unstable();
        let median = slopes[m / 2];
        if median.abs() > DRIFT_MOST {
            return self.drift_known.store(0, Relaxed);
        }
        self.drift.store(median, Relaxed);
        self.drift_known.store(1, Relaxed);
    }

    fn forget(&self) {
        for window in &self.windows {
            window.number.store(0, Relaxed);
            window.least.store(i64::MAX, Relaxed);
            window.most.store(i64::MIN, Relaxed);
        }
        self.drift_known.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The GPU's clock counts from 1970, and drifts.
    struct Clocks {
        ppm: f64,
    }

    impl Clocks {
        fn gpu(&self, host: u64) -> u64 {
            1_790_000_000_000_000_000 + host + (host as f64 * self.ppm / 1e6) as u64
        }
    }

    /// Largest errors, ns, early and late, of mapping the last of `pairs` (host time, way to us).
    fn errors(ppm: f64, pairs: impl Iterator<Item = (u64, u64)>) -> (i64, i64) {
        let (clocks, envelope) = (Clocks { ppm }, Envelope::new());
        let (mut early, mut late) = (0, 0);
        for (i, (host, way)) in pairs.enumerate() {
            envelope.observe(host + way, clocks.gpu(host));
            let error = envelope.map(clocks.gpu(host), host + way).unwrap().at as i64 - host as i64;
            if i > 200 {
                early = early.min(error);
                late = late.max(error);
            }
        }
        (early, late)
    }

    /// A way of at least 2 µs, now and then of up to 20 ms: the host is busy.
    fn way(random: &mut u64) -> u64 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        2_000
            + if random.is_multiple_of(4) {
                *random >> 8 & 0x1ff
            } else {
                *random >> 8 & 0x1ff_ffff
            }
    }

    #[test]
    fn a_busy_host_moves_no_time_of_the_gpu() {
        for ppm in [0.0, 20.0, -20.0] {
            let mut random = 42;
            let pairs = (0..40_000u64).map(|i| (1_000_000_000 + i * 500_000, way(&mut random)));
            let (early, late) = errors(ppm, pairs);
            assert!(early > -30_000 && late < 60_000, "{ppm} ppm: {early}..{late} ns");
        }
    }

    #[test]
    fn what_is_enqueued_bounds_from_below() {
        let (clocks, envelope) = (Clocks { ppm: 0.0 }, Envelope::new());
        let t = 5_500_000_000;
        assert_eq!(envelope.map(clocks.gpu(t), t), None);
        envelope.observe(t + 3_000, clocks.gpu(t));
        assert_eq!(envelope.map(clocks.gpu(t), t + 3_000).unwrap().error, None);
        envelope.enqueued(t - 9_000, clocks.gpu(t));
        let mapped = envelope.map(clocks.gpu(t), t + 3_000).unwrap();
        assert_eq!(mapped.at, t + 3_000);
        assert!((12_000..=62_000).contains(&mapped.error.unwrap()), "{mapped:?}");
    }

    #[test]
    fn one_wild_reading_is_not_believed_but_a_clock_that_was_set_is() {
        let (clocks, envelope) = (Clocks { ppm: 0.0 }, Envelope::new());
        let at = |i: u64| 1_000_000_000 + i * 1_000_000;
        for i in 0..100 {
            envelope.observe(at(i) + 2_000, clocks.gpu(at(i)));
        }
        envelope.observe(at(100), clocks.gpu(at(100)) + 7_000_000_000);
        let error = |i: u64, set: u64| {
            envelope.map(clocks.gpu(at(i)) + set, at(i)).unwrap().at as i64 - at(i) as i64
        };
        assert!((0..10_000).contains(&error(101, 0)));
        for i in 101..140 {
            envelope.observe(at(i) + 2_000, clocks.gpu(at(i)) + 7_000_000_000);
        }
        assert!((0..10_000).contains(&error(140, 7_000_000_000)));
    }

    proptest! {
        /// Whatever the numbers, nothing overflows and no time comes out of nothing.
        #[test]
        fn any_pairs_are_survived(pairs in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 1..60)) {
            let envelope = Envelope::new();
            for (host, gpu, observed) in pairs {
                if observed { envelope.observe(host, gpu) } else { envelope.enqueued(host, gpu) }
                let _ = envelope.map(gpu, host);
            }
        }

        #[test]
        fn drift_is_followed(ppm in -40.0f64..40.0, seed in 1u64..) {
            let mut random = seed;
            let pairs = (0..6_000u64).map(|i| (1_000_000_000 + i * 4_000_000, way(&mut random)));
            let (early, late) = errors(ppm, pairs);
            prop_assert!(early > -100_000 && late < 150_000, "{early}..{late} ns");
        }
    }
}
