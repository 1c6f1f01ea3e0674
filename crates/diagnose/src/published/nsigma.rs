//! Ranking by the greatest deviation in standard deviations of the baseline.
//!
//! *Source*: the "N-Sigma" baseline of root-cause rankings, as described by Pham, Ha and Zhang,
//! "BARO: Robust Root Cause Analysis for Microservices via Multivariate Bayesian Online Change
//! Point Detection", FSE 2024, section 4.2.

use super::{BEYOND, Scored, Window, by_score};
use crate::stats::mean;

pub(super) fn rank(window: &Window<'_>) -> Vec<Scored> {
    let score = |values: &[f64], at: &[f64]| {
        let center = mean(values);
        let variance = mean(&values.iter().map(|v| (v - center).powi(2)).collect::<Vec<_>>());
        let most = at.iter().map(|v| (v - center).abs()).fold(0.0, f64::max);
        if variance > 0.0 {
            most / variance.sqrt()
        } else if most > 0.0 {
            BEYOND
        } else {
            0.0
        }
    };
    let metrics = window.metrics.iter().enumerate();
    by_score(
        metrics.map(|(i, m)| (i, score(window.base(&m.values), window.at(&m.values)))).collect(),
    )
}
