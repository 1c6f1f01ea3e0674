//! What a series took in recordings before this one, and whether it takes longer now.
//!
//! # What it sees
//! The median of each twenty seconds of calm, on the log scale, of what steps took; where steps are measured by what
//! there is to do in them, of what they took for what they should take by stored prices. Two such medians after each
//! other that lie above the stored level by what is worth a finding, and by several times what levels of
//! recordings and of a recording's minutes differ by, are told once; and again only after it was as stored.
//!
//! # Why it matters
//! What is slow from its first step on is the usual that is learned from it. A server that was started with half of
//! its CPUs, or on a host with another governor, is calm for ever.
//!
//! # What fools it
//! Another program under the same names; more work in a step that no size and no batch shows; a reference that was
//! made while it was slow.

pub mod file;

use gpuwhy_schema::Ns;

use crate::detect::{Sampled, StepNo, every_other};
use crate::stats::{median_and_mad, quantile_of};

/// How long steps are taken together.
const WINDOW: Ns = Ns::secs(20);
/// At least so many, and no more than so many are looked at, at equal distances.
const LEAST: usize = 8;
const SAMPLED: usize = 64;
/// A recording's level is the median of so many windows at least.
const WINDOWS: usize = 2;
/// Windows that are remembered; of more, every second one is forgotten.
const REMEMBERED: usize = 180;
/// Levels of windows, and of recordings, differ at least so much, on the log scale,
const FINEST: f64 = 0.01;
/// and what is told differs so many times as much.
const SCALES: f64 = 4.0;

/// What was stored of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// The median of its recordings, on the log scale: of ns, or of the times of what steps should take.
    pub center: f64,
    /// How far levels of its recordings, and of windows of one, lie apart.
    pub scale: f64,
}

impl Level {
    /// Of the levels of several recordings, and the scale within them.
    pub fn of(recordings: &[f64], within: f64) -> Option<Level> {
        if recordings.is_empty() || !recordings.iter().all(|level| level.is_finite()) {
            return None;
        }
        let (center, between) = median_and_mad(recordings);
        Some(Level { center, scale: between.max(within).max(FINEST) })
    }

    /// From which level on it is slower, if `effect` is worth a finding.
    pub fn slower_from(&self, effect: f64) -> f64 {
        self.center + effect.ln_1p().max(SCALES * self.scale)
    }
}

/// A series beside what was stored of it.
#[derive(Debug)]
pub struct Beside {
    stored: Option<Level>,
    began: Option<Ns>,
    sample: Sampled,
    /// The medians of windows.
    past: Vec<f64>,
    /// The steps of the last window, if that was slower.
    slower: Option<Vec<StepNo>>,
    told: bool,
    warm: bool,
}

impl Beside {
    /// Nothing seen yet.
    pub fn new(stored: Option<Level>) -> Beside {
        Beside {
            stored,
            began: None,
            sample: Sampled::new(SAMPLED),
            past: Vec::new(),
            slower: None,
            told: false,
            warm: false,
        }
    }

    /// Takes a step of a series while that is calm: a series with a hundred steps a second is out of the usual for a moment
    /// again and again, and what was gathered before counts. The steps that show it slower than stored, if that is to be told.
    pub fn step(&mut self, no: StepNo, ts: Ns, log: f64, effect: f64) -> Option<Vec<StepNo>> {
        let began = *self.began.get_or_insert(ts);
        let mut told = None;
        if ts.saturating_sub(began) >= WINDOW && self.sample.len() >= LEAST {
            told = self.finish(effect);
            self.began = Some(ts);
        }
        self.sample.step(log, no);
        told
    }

    fn finish(&mut self, effect: f64) -> Option<Vec<StepNo>> {
        let sample = self.sample.take();
        let level = quantile_of(sample.iter().map(|(log, _)| *log), 0.5);
        let steps: Vec<StepNo> = sample.into_iter().map(|(_, no)| no).collect();
        // The first window warms up: caches are cold, and code is compiled.
        if !std::mem::replace(&mut self.warm, true) {
            return None;
        }
        if self.past.len() == REMEMBERED {
            every_other(&mut self.past, 1);
        }
        self.past.push(level);
        let stored = self.stored?;
        if level < stored.slower_from(effect) {
            self.slower = None;
            self.told &= level >= (stored.center + stored.slower_from(effect)) / 2.0;
            return None;
        }
        let before = self.slower.replace(steps)?;
        if std::mem::replace(&mut self.told, true) {
            return None;
        }
        let latest = self.slower.iter().flatten().copied();
        Some(before.into_iter().chain(latest).collect())
    }

    /// The level of this recording, and how far its windows lie apart; none if there were too few of them, or it is slower
    /// than what was stored.
    pub fn level(&self) -> Option<(f64, f64)> {
        if self.past.len() < WINDOWS || self.told {
            return None;
        }
        Some(median_and_mad(&self.past))
    }

    /// Forgets the numbers of steps before `first`.
    pub fn forget(&mut self, first: StepNo) {
        self.sample.forget(first);
        if let Some(slower) = &mut self.slower {
            slower.retain(|no| *no >= first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFECT: f64 = 0.1;

    /// When steps of so many ms, half a second apart, are told as slower than stored: minutes.
    fn told(stored: Level, minutes: i64, ms: impl Fn(f64) -> f64) -> Vec<i64> {
        let mut beside = Beside::new(Some(stored));
        let mut told = Vec::new();
        for n in 0..minutes * 120 {
            let ts = Ns::millis(500 * n);
            let at = ts.as_secs_f64() / 60.0;
            let log = (ms(at) * 1e6 * (1.0 + (n % 7) as f64 / 500.0)).ln();
            if let Some(steps) = beside.step(StepNo(n as u64), ts, log, EFFECT) {
                assert!(!steps.is_empty() && steps.iter().all(|no| no.0 < n as u64));
                told.push(at.floor() as i64);
            }
        }
        told
    }

    fn stored() -> Level {
        Level::of(&[20e6f64.ln(), 20.2e6f64.ln(), 19.9e6f64.ln()], 0.01).unwrap()
    }

    #[test]
    fn a_series_that_is_slower_from_its_first_step_on_is_told_within_a_minute_or_so_and_once() {
        assert_eq!(told(stored(), 20, |_| 26.0), [1]);
        assert_eq!(told(stored(), 20, |_| 20.5), [0; 0]);
    }

    #[test]
    fn a_slow_first_window_is_a_program_that_warms_up() {
        assert_eq!(told(stored(), 5, |minute| if minute < 0.6 { 40.0 } else { 20.0 }), [0; 0]);
    }

    #[test]
    fn it_is_told_again_after_it_was_as_stored() {
        let comes_again = |minute: f64| if (4.0..8.0).contains(&minute) { 20.0 } else { 26.0 };
        assert_eq!(told(stored(), 12, comes_again), [1, 8]);
    }

    #[test]
    fn recordings_that_differ_by_themselves_excuse_what_differs_no_more() {
        let wide = Level::of(&[18e6f64.ln(), 20e6f64.ln(), 23e6f64.ln()], 0.01).unwrap();
        assert_eq!(told(wide, 10, |_| 26.0), [0; 0]);
        assert_eq!(told(wide, 10, |_| 40.0), [1]);
    }

    #[test]
    fn a_recording_that_was_slow_is_no_reference_and_a_short_one_is_none() {
        let mut slow = Beside::new(Some(stored()));
        let mut fast = Beside::new(None);
        for n in 0..300 {
            let level = fast.level();
            assert!(n > 100 || level.is_none(), "{n}: {level:?}");
            let (no, ts) = (StepNo(n), Ns::millis(500 * n as i64));
            slow.step(no, ts, 30e6f64.ln(), EFFECT);
            fast.step(no, ts, 30e6f64.ln(), EFFECT);
        }
        assert_eq!(slow.level(), None);
        assert!((fast.level().unwrap().0 - 30e6f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn what_is_left_out_moves_no_level() {
        let mut beside = Beside::new(None);
        for n in 0..400u64 {
            if (150..200).contains(&n) {
                continue;
            }
            beside.step(StepNo(n), Ns::millis(500 * n as i64), 20e6f64.ln(), EFFECT);
        }
        let (level, scale) = beside.level().unwrap();
        assert!((level - 20e6f64.ln()).abs() < 1e-9 && scale < 1e-9);
    }
}
