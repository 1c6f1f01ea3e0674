//! Ranking by the greatest deviation after a change point of the latency, in interquartile ranges.
//!
//! *Source*: Pham, Ha and Zhang, "BARO: Robust Root Cause Analysis for Microservices via
//! Multivariate Bayesian Online Change Point Detection", FSE 2024, sections 3.2 and 3.3. Of the
//! two parts the robust scorer is as published (median and interquartile range of what lies before
//! the change, greatest deviation after it); the change point is found in the latency alone, by
//! the split that explains most of its variance, instead of by the Bayesian recursion over all
//! metrics, whose cost grows with the square of the window.

use super::{BEYOND, Scored, Window, by_score};
use crate::stats::{quantile, sorted};

/// The sample from which the mean of `values` is another one: the split that leaves least
/// variance.
fn change(values: &[f64]) -> usize {
    let n = values.len();
    let total: f64 = values.iter().sum();
    let (mut left, mut best) = (0.0, (0.0, n));
    for at in 1..n {
        left += values[at - 1];
        let (a, b) = (left / at as f64, (total - left) / (n - at) as f64);
        let between = (a - b).powi(2) * at as f64 * (n - at) as f64;
        if between > best.0 {
            best = (between, at);
        }
    }
    best.1
}

pub(super) fn rank(window: &Window<'_>) -> Vec<Scored> {
    let (from, to) = (window.base.0, window.at.1.min(window.latency.len()));
    let Some(latency) = window.latency.get(from..to) else { return Vec::new() };
    // The change is looked for around the window, which is where somebody was alarmed.
    let from = from.max(window.at.0.saturating_sub(window.at.1.saturating_sub(window.at.0)));
    let Some(near) = latency.get(from - window.base.0..) else { return Vec::new() };
    let at = from + change(near);
    let score = |values: &[f64]| {
        let before = sorted(values.get(window.base.0..at.min(values.len()))?.iter().copied());
        let after = values.get(at..to.min(values.len()))?;
        let median = quantile(&before, 0.5);
        let range = quantile(&before, 0.75) - quantile(&before, 0.25);
        let most = after.iter().map(|v| (v - median).abs()).fold(0.0, f64::max);
        Some(if range > 0.0 {
            most / range
        } else if most > 0.0 {
            BEYOND
        } else {
            0.0
        })
    };
    let metrics = window.metrics.iter().enumerate();
    by_score(metrics.filter_map(|(i, m)| Some((i, score(&m.values)?))).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_change_is_where_the_level_rises() {
        let mut values = vec![1.0; 70];
        values.extend([5.0; 30]);
        assert_eq!(super::change(&values), 70);
    }
}
