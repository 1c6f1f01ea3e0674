//! Of how much time all rows are written.
//!
//! All rows of a moment are a hundred times what is written of it anyway, and a program may be slow for half of the day. So
//! incidents share an allowance: of those whose cause was told a long one, and of the others, of which there may be as many as
//! there are gusts on a shared machine, a short one. Each grows with time. What is refused can be had as long as it is held in
//! memory, if the cause is told by then.

use std::ops::Range;

use gpuwhy_schema::Ns;

/// Of one incident at most, with what lay before it.
const EACH: Ns = Ns::secs(60);
/// Of incidents whose cause was told, as long as nothing was used,
const TOLD: Ns = Ns::secs(600);
/// and of others.
const UNTOLD: Ns = Ns::secs(30);
/// Less than this is not worth a row.
const LEAST: Ns = Ns::secs(1);

/// For how long rows may still be written in full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// By which share of the time it grows.
    share: f64,
    /// Until when it has grown.
    grown: Option<Ns>,
    told: Ns,
    untold: Ns,
    /// What is left of the current incident.
    each: Ns,
    /// What was written, in all, and refused.
    written: Ns,
    refused: Ns,
}

impl Allowance {
    /// One that grows by a share of the time.
    pub(super) fn new(share: f64) -> Allowance {
        let (written, refused) = (Ns::ZERO, Ns::ZERO);
        Allowance { share, grown: None, told: TOLD, untold: UNTOLD, each: EACH, written, refused }
    }

    /// An incident begins.
    pub(super) fn begins(&mut self, now: Ns) {
        let passed = now.saturating_sub(self.grown.replace(now).unwrap_or(now));
        let grows = Ns((passed.0.max(0) as f64 * self.share) as i64);
        self.told = self.told.saturating_add(grows).min(TOLD);
        self.untold = self.untold.saturating_add(grows).min(UNTOLD);
        self.each = EACH;
    }

    /// What may be written of an incident whose cause was told or not.
    fn left(&self, told: bool) -> Ns {
        self.each.min(if told { self.told } else { self.untold })
    }

    /// Whether any more of an incident may be written.
    pub(super) fn has(&self, told: bool) -> bool {
        self.left(told) >= LEAST
    }

    /// The first part of some time, as far as it may be written; it counts as written.
    pub(super) fn take(&mut self, range: Range<Ns>, told: bool) -> Range<Ns> {
        let long = range.end.saturating_sub(range.start).max(Ns::ZERO).min(self.left(told));
        self.each = self.each.saturating_sub(long);
        let from = if told { &mut self.told } else { &mut self.untold };
        *from = from.saturating_sub(long);
        self.written = self.written.saturating_add(long);
        range.start..range.start.saturating_add(long)
    }

    /// So much of an incident is never written.
    pub(super) fn refuse(&mut self, range: &Range<Ns>) {
        let long = range.end.saturating_sub(range.start).max(Ns::ZERO);
        self.refused = self.refused.saturating_add(long);
    }

    /// How much was written, and refused.
    pub(super) fn used(&self) -> (Ns, Ns) {
        (self.written, self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Incidents of ten seconds, one a minute, for so long: how many ms of each are written.
    fn written(minutes: i64, share: f64, told: bool) -> Vec<i64> {
        let mut allowance = Allowance::new(share);
        let each = (0..minutes).map(|minute| {
            let now = Ns::secs(60 * minute);
            allowance.begins(now);
            let taken = allowance.take(now..now.saturating_add(Ns::secs(10)), told);
            (taken.end - taken.start).0 / 1_000_000
        });
        each.collect()
    }

    #[test]
    fn an_hour_of_findings_is_written_whole_and_of_gusts_the_first_ones() {
        let told = written(60, 0.01, true);
        assert!(told.iter().all(|ms| *ms == 10_000), "{told:?}");
        let untold = written(60, 0.01, false);
        assert_eq!(untold[..3], [10_000; 3]);
        assert!(untold[4..].iter().sum::<i64>() < 40_000, "{untold:?}");
    }

    #[test]
    fn in_the_long_run_a_share_of_the_time_is_written() {
        let day = written(24 * 60, 0.01, true);
        let ms: i64 = day.iter().sum();
        assert!((1_400_000..1_500_000).contains(&ms), "{ms}");
        assert!(written(24 * 60, 1.0, false).iter().all(|ms| *ms == 10_000));
    }

    #[test]
    fn of_a_long_incident_the_begin_is_written() {
        let mut allowance = Allowance::new(0.01);
        allowance.begins(Ns::ZERO);
        assert_eq!(allowance.take(Ns::ZERO..Ns::secs(50), true), Ns::ZERO..Ns::secs(50));
        assert_eq!(allowance.take(Ns::secs(50)..Ns::secs(90), true), Ns::secs(50)..Ns::secs(60));
        assert!(!allowance.has(true));
        allowance.begins(Ns::secs(100));
        assert!(allowance.has(true) && allowance.has(false));
        assert_eq!(allowance.used().0, Ns::secs(60));
    }

    #[test]
    fn what_was_refused_can_be_had_once_the_cause_is_told() {
        let mut allowance = Allowance::new(0.0);
        allowance.begins(Ns::ZERO);
        allowance.take(Ns::ZERO..Ns::secs(30), false);
        allowance.begins(Ns::secs(100));
        assert!(!allowance.has(false) && allowance.has(true));
        let late = allowance.take(Ns::secs(95)..Ns::secs(110), true);
        assert_eq!(late, Ns::secs(95)..Ns::secs(110));
    }
}
