//! What is done at some ticks only, every so often.

use gpuwhy_schema::Ns;

/// A tick counts as if it came so much of the period later: ticks come some microseconds early or late, and one that is
/// early must not leave its turn to the next.
const EARLY: i64 = 8;

/// What is worth a thousandth of a CPU is done again after a thousand times its cost,
const ONE_IN: i64 = 1000;
/// but no later than this.
const LONGEST: Ns = Ns::secs(10);

/// How long to wait before something is done again that has cost so much CPU time and is worth a thousandth of a CPU;
/// no less than `period`.
pub(crate) fn pause(period: Ns, cost: Ns) -> Ns {
    period.max(Ns(cost.0.saturating_mul(ONE_IN)).min(LONGEST))
}

/// When something is due that is done every so often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Every {
    period: Ns,
    next: Ns,
}

impl Every {
    /// Due at once, and then after each `period`.
    pub const fn new(period: Ns) -> Every {
        Every { period, next: Ns::ZERO }
    }

    /// With another period, from `now` on.
    pub fn wait(&mut self, period: Ns, now: Ns) {
        *self = Every { period, next: now.saturating_add(period) };
    }

    /// What was just done has cost so much CPU time: the next turn comes the later, the more it was.
    pub fn spare(&mut self, cost: Ns, now: Ns) {
        self.next = now.saturating_add(pause(self.period, cost));
    }

    /// Whether it is due at `now`; if so, it is due again a period later.
    pub fn is_due(&mut self, now: Ns) -> bool {
        let is_due = now.0.saturating_add(self.period.0 / EARLY) >= self.next.0;
        if is_due {
            self.next = now.saturating_add(self.period);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_costly_is_done_the_more_seldom_and_not_never() {
        let mut every = Every::new(Ns::millis(500));
        assert!(every.is_due(Ns::secs(1)));
        every.spare(Ns::millis(3), Ns::secs(1));
        assert!(!every.is_due(Ns::secs(3)));
        assert!(every.is_due(Ns::secs(4)));
        every.spare(Ns::millis(300), Ns::secs(4));
        assert!(every.is_due(Ns::secs(14)));
        every.spare(Ns::ZERO, Ns::secs(14));
        assert!(!every.is_due(Ns::secs(14) + Ns::millis(400)));
        assert!(every.is_due(Ns::secs(14) + Ns::millis(500)));
    }

    #[test]
    fn a_tick_that_is_early_by_a_moment_has_its_turn() {
        let mut every = Every::new(Ns::millis(100));
        let at = |us: i64| Ns(1_000_000_000 + us * 1000);
        // Ticks of 100 ms, each some microseconds off.
        let ticks = [0, 99_980, 200_010, 299_930, 400_000];
        assert!(ticks.iter().all(|us| every.is_due(at(*us))));
        // Ticks of 50 ms: every other one.
        let due: Vec<bool> = (9..13).map(|i| every.is_due(at(i * 50_000 - 7))).collect();
        assert_eq!(due, [false, true, false, true]);
    }
}
