//! When something changed, of which there is a value for each window of a recording and no step to compare.
//!
//! # What it sees
//! Shares of time, one a window. The recording is its own baseline: the shortest range that holds half of the
//! windows is what is usual (the *shorth* of Andrews et al., *Robust Estimates of Location*, 1972), since unlike a
//! median's deviation it is as narrow as one of two levels even if each holds for half of the time. Windows far from
//! it, several in a row, are a change.
//!
//! # Why it matters
//! A recording without steps is compared with nothing else.
//!
//! # What fools it
//! What holds for most of a recording is its usual: a trouble that lasts that long makes the rest look unusual. A
//! slow drift changes no window against its neighbours, and widens what is usual. Which of two levels is the sound
//! one is not known.

use crate::stats::{mean, sorted};

/// Of fewer windows nothing is said.
pub const LEAST_WINDOWS: usize = 20;
/// So many scales from the usual a window is unusual,
const SCALES: f64 = 5.0;
/// if it also differs by this share of the time.
const LEAST: f64 = 0.1;
/// A single window is a change only if it differs by this share.
const ALONE: f64 = 0.5;
/// A normal distribution's shortest half is this many standard deviations long.
const HALF_OF_NORMAL: f64 = 1.349;
/// More changes than this are no changes: it comes and goes.
const MOST: usize = 8;

/// What is usual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usual {
    /// The mean of the half of all windows that lie closest together.
    pub level: f64,
    /// By how much windows differ from it; for normal noise its standard deviation.
    pub scale: f64,
}

/// A stretch of windows that are not as usual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// The first window.
    pub from: usize,
    /// Behind the last one.
    pub to: usize,
    /// The mean of its windows.
    pub then: f64,
}

/// What a series of windows says.
#[derive(Clone, Debug, PartialEq)]
pub enum Changes {
    /// Too few windows to say anything.
    TooFew,
    /// Nothing changed, or at these times.
    At(Usual, Vec<Stretch>),
    /// It comes and goes, so often that it is what the program does.
    ComesAndGoes(Usual, usize),
}

/// What is usual of these values.
pub fn usual(values: &[f64]) -> Option<Usual> {
    let all = sorted(values.iter().copied());
    let half = all.len().div_ceil(2);
    if all.is_empty() {
        return None;
    }
    let tightest =
        all.windows(half).min_by(|a, b| (a[half - 1] - a[0]).total_cmp(&(b[half - 1] - b[0])))?;
    let scale = (tightest[half - 1] - tightest[0]) / HALF_OF_NORMAL;
    Some(Usual { level: mean(tightest), scale })
}

/// When these shares of time, one a window, were not as usual.
pub fn changes(shares: &[f64]) -> Changes {
    let Some(usual) = usual(shares).filter(|_| shares.len() >= LEAST_WINDOWS) else {
        return Changes::TooFew;
    };
    let limit = (SCALES * usual.scale).max(LEAST);
    let side = |share: f64| match share - usual.level {
        by if by > limit => 1,
        by if by < -limit => -1,
        _ => 0,
    };
    let mut found: Vec<(Stretch, i32)> = Vec::new();
    for (at, share) in shares.iter().enumerate() {
        let side = side(*share);
        match found.last_mut() {
            _ if side == 0 => {}
            // One window between two others may lie on the border.
            Some((last, of)) if *of == side && at <= last.to + 1 => last.to = at + 1,
            _ => found.push((Stretch { from: at, to: at + 1, then: 0.0 }, side)),
        }
    }
    let mut stretches: Vec<Stretch> = Vec::new();
    for (mut stretch, _) in found {
        stretch.then = mean(&shares[stretch.from..stretch.to]);
        let is_long = stretch.to - stretch.from > 1;
        if is_long || (stretch.then - usual.level).abs() >= ALONE.max(limit) {
            stretches.push(stretch);
        }
    }
    match stretches.len() > MOST {
        true => Changes::ComesAndGoes(usual, stretches.len()),
        false => Changes::At(usual, stretches),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    /// Windows with these shares, with noise of some hundredths.
    fn windows(levels: &[(usize, f64)]) -> Vec<f64> {
        let mut random = Random::new(7);
        let noise = &mut || (random.below(1000) as f64 / 1000.0 - 0.5) * 0.06;
        let each = levels.iter().flat_map(|(n, level)| std::iter::repeat_n(*level, *n));
        each.map(|level| (level + noise()).clamp(0.0, 1.0)).collect()
    }

    fn told(levels: &[(usize, f64)]) -> Vec<(usize, usize)> {
        match changes(&windows(levels)) {
            Changes::At(_, all) => all.iter().map(|s| (s.from, s.to)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_unusual_for_some_windows_changed_there() {
        assert_eq!(told(&[(50, 0.05), (15, 0.4), (35, 0.05)]), [(50, 65)]);
        assert_eq!(
            told(&[(30, 0.9), (10, 0.4), (30, 0.9), (5, 0.3), (5, 0.9)]),
            [(30, 40), (70, 75)]
        );
    }

    #[test]
    fn a_level_that_holds_for_half_of_the_recording_is_told_from_the_other() {
        assert_eq!(told(&[(50, 0.2), (50, 0.8)]).len(), 1);
        assert_eq!(told(&[(60, 0.2), (40, 0.8)]), [(60, 100)]);
    }

    #[test]
    fn noise_a_small_step_and_a_single_window_are_no_change() {
        assert_eq!(told(&[(200, 0.5)]), []);
        assert_eq!(told(&[(50, 0.5), (50, 0.55)]), []);
        assert_eq!(told(&[(50, 0.1), (1, 0.35), (49, 0.1)]), []);
        // But one that took all of its time is.
        assert_eq!(told(&[(50, 0.1), (1, 1.0), (49, 0.1)]), [(50, 51)]);
    }

    #[test]
    fn what_comes_and_goes_is_what_the_program_does() {
        let levels: Vec<(usize, f64)> = (0..40).map(|n| (3, [0.1, 0.9][n % 3 / 2])).collect();
        assert!(matches!(changes(&windows(&levels)), Changes::ComesAndGoes(_, 13)));
    }

    #[test]
    fn of_a_short_recording_nothing_is_said() {
        assert_eq!(changes(&[0.1; 19]), Changes::TooFew);
        assert_eq!(changes(&[]), Changes::TooFew);
    }
}
