//! CLOCK_MONOTONIC, the clock of every record, read faster than by a call.
//!
//! clock_gettime(2) takes 21 ns on the machine that this was written on, and a span reads the clock
//! twice; reading the CPU's time-stamp counter takes 9 ns. So each thread keeps a pair of readings,
//! taken together at most a millisecond ago, and extrapolates from there by the counter. The pair's own
//! uncertainty, tens of ns, bounds the error; a thread that marks seldom reads the clock itself each
//! time and has no such error.
//!
//! This is done only where the kernel derives CLOCK_MONOTONIC from that counter too, and so vouches for
//! it on all CPUs; elsewhere, and where the two disagree, every reading is a call.

/// CLOCK_MONOTONIC in ns, to a tenth of a microsecond; never goes back within a thread.
#[inline]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        tsc::now()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        exact()
    }
}

/// CLOCK_MONOTONIC in ns, as the system call gives it.
#[inline]
fn exact() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for a timespec, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
mod tsc {
    use core::cell::Cell;
    use core::sync::atomic::AtomicU8;
    use core::sync::atomic::Ordering::Relaxed;

    const MS: u64 = 1_000_000;
    /// The counter's rate is known from readings at least this far apart.
    const BASE: u64 = 4 * MS;
    /// A reading is extrapolated for this long.
    const REACH: u64 = MS;
    /// A pair whose two readings are further apart was interrupted, ticks.
    const TIGHT: u64 = 1 << 11;
    /// Counter and clock may disagree by this much, ns.
    const TRUST: u64 = 3_000;

    /// Whether the kernel vouches for the counter: 0 not read yet, 1 yes, 2 no.
    static VOUCHED: AtomicU8 = AtomicU8::new(0);

    /// How often counter and clock have disagreed.
    static STRIKES: AtomicU8 = AtomicU8::new(0);

    /// What a thread has learned. Rates are ns per tick, times 2^32.
    struct Known {
        tsc: Cell<u64>,
        ns: Cell<u64>,
        rate: Cell<u64>,
        /// Ticks after `tsc` for which the pair may be extrapolated; 0 is not at all.
        reach: Cell<u64>,
        base_tsc: Cell<u64>,
        base_ns: Cell<u64>,
        last: Cell<u64>,
    }

    thread_local! {
        static KNOWN: Known = const { Known::nothing() };
    }

    #[inline]
    fn counter() -> u64 {
        // SAFETY: every x86-64 CPU has the instruction; where a process is forbidden to use it
        // (PR_TSC_SIGSEGV), the C library's clock_gettime would die as well.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    #[inline]
    pub(super) fn now() -> u64 {
        let read = |known: &Known| {
            let ticks = counter().wrapping_sub(known.tsc.get());
            let now = if ticks < known.reach.get() {
                known.ns.get() + ((ticks * known.rate.get()) >> 32)
            } else {
                known.look()
            };
            let now = now.max(known.last.get());
            known.last.set(now);
            now
        };
        // A thread that is being torn down has no thread-local values any more.
        KNOWN.try_with(read).unwrap_or_else(|_| super::exact())
    }

    impl Known {
        const fn nothing() -> Known {
            Known {
                tsc: Cell::new(0),
                ns: Cell::new(0),
                rate: Cell::new(0),
                reach: Cell::new(0),
                base_tsc: Cell::new(0),
                base_ns: Cell::new(0),
                last: Cell::new(0),
            }
        }

        /// Reads the clock, and compares the counter with it.
        #[cold]
        fn look(&self) -> u64 {
            match VOUCHED.load(Relaxed) {
                0 => VOUCHED.store(if kernel_vouches() { 1 } else { 2 }, Relaxed),
                1 => {}
                _ => return super::exact(),
            }
            let before = counter();
            let ns = super::exact();
            let between = counter().wrapping_sub(before);
            if between <= TIGHT {
                self.learn(before.wrapping_add(between / 2), ns);
            }
            ns
        }

        fn learn(&self, tsc: u64, ns: u64) {
            let (ticks, rate) = (tsc.wrapping_sub(self.tsc.get()), self.rate.get());
            // Shortly after a reading that held, the two must agree.
            if self.reach.get() != 0 && ticks < 2 * self.reach.get() {
                let expected = self.ns.get() + ((ticks * rate) >> 32);
                if expected.abs_diff(ns) > TRUST {
                    return self.distrust();
                }
            }
            self.tsc.set(tsc);
            self.ns.set(ns);
            let base_ticks = tsc.wrapping_sub(self.base_tsc.get());
            let base_ns = ns.saturating_sub(self.base_ns.get());
            // A rate that is known is kept up to date; the first one may take a second to come by,
            // for a thread that marks in short bursts.
            let most = if rate == 0 { 250 * BASE } else { 25 * BASE };
            if self.base_tsc.get() == 0 || base_ns > most {
                self.base_tsc.set(tsc);
                self.base_ns.set(ns);
            } else if base_ns >= BASE {
                let new = (((base_ns as u128) << 32) / base_ticks.max(1) as u128) as u64;
                // A clock is slewed by 0.05 % at most; more means that a machine that slept, or
                // moved, lies between.
                if rate != 0 && new.abs_diff(rate) > rate / 1000 {
                    return self.distrust();
                }
                self.rate.set(new);
            }
            // From 0.5 to 20 GHz; anything else is no time-stamp counter.
            let rate = self.rate.get();
            let sane = ((1 << 32) / 20..2 << 32).contains(&rate);
            self.reach.set(if sane { (REACH << 32) / rate } else { 0 });
        }

        /// Forgets everything; a process in which this happens often does without the counter.
        fn distrust(&self) {
            for cell in [&self.rate, &self.reach, &self.base_tsc] {
                cell.set(0);
            }
            if STRIKES.fetch_add(1, Relaxed) >= 8 {
                VOUCHED.store(2, Relaxed);
            }
        }
    }

    fn kernel_vouches() -> bool {
        const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Whatever the schedule, a fast reading lies between two calls, but for the error that
        /// the documentation admits.
        #[test]
        fn fast_readings_lie_between_exact_ones_and_never_go_back() {
            let (mut last, mut outside, mut fast) = (0, 0, 0);
            for _ in 0..300_000 {
                let before = super::super::exact();
                let now = now();
                let after = super::super::exact();
                fast += KNOWN.with(|k| (k.ns.get() != now) as u32);
                // Readings may be off by no more than what counts as disagreement.
                outside += (now + TRUST < before || now > after + TRUST) as u32;
                assert!(now >= last);
                last = now;
            }
            assert_eq!(outside, 0);
            if VOUCHED.load(Relaxed) == 1 {
                assert!(fast > 100_000, "{fast} of 300,000 readings were by the counter");
            }
        }

        /// Readings of a counter of two ticks a ns, and what is concluded: the reach in ticks.
        fn reach(readings: &[(u64, u64)]) -> u64 {
            let known = Known::nothing();
            readings.iter().for_each(|(tsc, ns)| known.learn(*tsc, *ns));
            known.reach.get()
        }

        #[test]
        fn a_counter_that_disagrees_with_the_clock_is_not_believed() {
            let (a, b) = ((1_000, 500), (10_001_000, 5_000_500));
            assert_eq!(reach(&[a]), 0, "one reading gives no rate");
            assert_eq!(reach(&[a, (1_001_000, 500_500)]), 0, "too near for a rate");
            assert_eq!(reach(&[a, b]), 2_000_000);
            assert_eq!(reach(&[a, b, (12_001_000, 6_000_500)]), 2_000_000);
            assert_eq!(reach(&[a, b, (12_001_000, 6_004_500)]), 0, "4 us off after 1 ms");
            assert_eq!(reach(&[a, b, (40_001_000, 6_000_500)]), 0, "the clock stood still");
            assert_eq!(reach(&[a, b, (1_000, 6_000_500)]), 0, "the counter began anew");
            assert_eq!(reach(&[a, (10_001_000, 500_000_500)]), 0, "a fiftieth of a GHz");
            let later = (400_001_000, 200_000_500);
            assert_eq!(reach(&[a, later]), 2_000_000, "two readings in 200 ms");
            assert_eq!(reach(&[a, b, later]), 2_000_000, "the known rate, a new base");
        }
    }
}
