//! The line through 99th percentiles of StriaTrace (section 5.4.1): a step above it is an anomaly.
//!
//! # What it sees
//! Of each step the number of its tokens (of prompts where it has any, else of its batch) and its duration. Until enough
//! steps were seen nothing is judged; then the 99th percentile of each number of tokens is taken, and a line fitted to these
//! by RANSAC. The line is fitted anew from time to time.
//!
//! # Why it matters
//! It is what a published tool for engines in production retains and alerts by.
//!
//! # What fools it
//! Its construction: of steps whose percentiles it is made of one in a hundred lies above, whether they are healthy or not.
//! Context, requests and mixed batches are not in it. The paper leaves open how many steps a percentile needs, how numbers
//! of tokens that come once are taken together, and how often it is fitted anew: here numbers are taken together until each
//! group has [`OF_GROUP`] steps, from [`BOOTSTRAP`] steps on, anew after as many again, from the latest [`KEPT`].

use std::collections::VecDeque;

use crate::stats::{self, Random, quantile_of};

/// Steps before the first fit.
pub const BOOTSTRAP: usize = 500;
/// Steps that a fit is made of at most.
pub const KEPT: usize = 10_000;
/// Steps that a percentile is made of at least.
pub const OF_GROUP: usize = 100;
/// Lines that are tried.
const TRIED: usize = 200;

/// A line over numbers of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// ns of a step without tokens.
    pub constant: f64,
    /// ns of a token.
    pub slope: f64,
    /// Of the variance of the percentiles, the share that it explains.
    pub r2: f64,
    /// Percentiles that it goes through.
    pub points: usize,
}

impl Line {
    /// Above what a step of so many tokens is an anomaly, ns.
    pub fn at(&self, tokens: f64) -> f64 {
        self.constant + self.slope * tokens
    }
}

/// One instance's steps of a kind: of prompts, or of answers only.
#[derive(Clone, Debug, Default)]
pub struct P99Line {
    steps: VecDeque<(f64, f64)>,
    since: usize,
    line: Option<Line>,
}

impl P99Line {
    /// Takes a step; whether it lies above the line, if there is one.
    pub fn step(&mut self, tokens: f64, ns: f64) -> Option<bool> {
        let above = self.line.map(|line| ns > line.at(tokens));
        if self.steps.len() == KEPT {
            self.steps.pop_front();
        }
        self.steps.push_back((tokens, ns));
        self.since += 1;
        if self.since >= BOOTSTRAP {
            self.since = 0;
            self.line = fit(&percentiles(self.steps.make_contiguous())).or(self.line);
        }
        above
    }

    /// The latest line.
    pub fn line(&self) -> Option<&Line> {
        self.line.as_ref()
    }
}

/// The 99th percentile of groups of numbers of tokens, each at the group's mean.
fn percentiles(steps: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sorted = steps.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut groups: Vec<Vec<(f64, f64)>> = Vec::new();
    for same in sorted.chunk_by(|a, b| a.0 == b.0) {
        match groups.last_mut().filter(|last| last.len() < OF_GROUP) {
            Some(last) => last.extend(same),
            None => groups.push(same.to_vec()),
        }
    }
    if groups.len() > 1 && groups.last().is_some_and(|last| last.len() < OF_GROUP) {
        let few = groups.pop().unwrap_or_default();
        groups.last_mut().into_iter().for_each(|last| last.extend(&few));
    }
    let point = |group: Vec<(f64, f64)>| {
        let n = group.len().max(1) as f64;
        let tokens = group.iter().map(|step| step.0).sum::<f64>() / n;
        (tokens, quantile_of(group.iter().map(|step| step.1), 0.99))
    };
    groups.into_iter().map(point).collect()
}

/// The line with most points near it: of pairs of points, and then by least squares of those near (RANSAC).
fn fit(points: &[(f64, f64)]) -> Option<Line> {
    let [first, ..] = points else { return None };
    if points.len() == 1 {
        return Some(Line { constant: first.1, slope: 0.0, r2: 0.0, points: 1 });
    }
    // As far as the usual choice of RANSAC: the median absolute deviation of what is to be explained.
    let (_, near) = crate::stats::median_and_mad(&points.iter().map(|p| p.1).collect::<Vec<_>>());
    let near = (near / 1.4826).max(1.0);
    let mut random = Random::new(points.len() as u64);
    let mut best: Vec<(f64, f64)> = Vec::new();
    for _ in 0..TRIED {
        let (a, b) = (points[random.below(points.len())], points[random.below(points.len())]);
        if a.0 == b.0 {
            continue;
        }
        let slope = (b.1 - a.1) / (b.0 - a.0);
        let is_near = |p: &&(f64, f64)| (p.1 - a.1 - slope * (p.0 - a.0)).abs() <= near;
        let inliers: Vec<(f64, f64)> = points.iter().filter(is_near).copied().collect();
        if inliers.len() > best.len() {
            best = inliers;
        }
    }
    let stats::Line { constant, slope, left, of_values, .. } = stats::Line::through(&best);
    let r2 = if of_values > 0.0 { 1.0 - left / of_values } else { 0.0 };
    (!best.is_empty()).then_some(Line { constant, slope, r2, points: best.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that take 3 ms and 50 µs a token, with noise of a tenth.
    fn judged(n: u64, slow: impl Fn(u64) -> f64) -> (P99Line, Vec<(u64, bool)>) {
        let mut random = Random::new(3);
        let mut line = P99Line::default();
        let mut told = Vec::new();
        for step in 0..n {
            let tokens = 1.0 + random.below(32) as f64;
            let noise = 1.0 + random.below(1000) as f64 / 10_000.0;
            let ns = (3e6 + 5e4 * tokens) * noise * slow(step);
            told.extend(line.step(tokens, ns).map(|above| (step, above)));
        }
        (line, told)
    }

    #[test]
    fn one_healthy_step_in_a_hundred_lies_above_it_by_its_construction() {
        let (line, told) = judged(20_000, |_| 1.0);
        let line = line.line().unwrap();
        assert!(line.r2 > 0.98, "{line:?}");
        assert!((line.slope / 5e4 - 1.1).abs() < 0.03, "{line:?}");
        let above = told.iter().filter(|(_, above)| *above).count() as f64 / told.len() as f64;
        assert!((0.004..0.02).contains(&above), "{above}");
    }

    #[test]
    fn a_step_that_takes_three_times_as_long_lies_above_it() {
        let (_, told) = judged(3_000, |step| if step == 2_500 { 3.0 } else { 1.0 });
        assert!(told.contains(&(2_500, true)));
        assert_eq!(told.first().map(|(step, _)| *step), Some(BOOTSTRAP as u64));
    }

    #[test]
    fn one_number_of_tokens_has_a_percentile_and_no_slope() {
        let mut line = P99Line::default();
        for n in 0..1_000 {
            line.step(1.0, 1e6 + f64::from(n % 100));
        }
        let of = line.line().unwrap();
        assert_eq!((of.slope, of.points), (0.0, 1));
        assert_eq!(line.step(1.0, 2e6), Some(true));
    }
}
