//! Ranking by how much the past of a metric helps to predict the latency.
//!
//! *Source*: Granger, "Investigating Causal Relations by Econometric Models and Cross-spectral
//! Methods", Econometrica 37 (1969): two autoregressions of the latency, one with and one without
//! the lags of the metric, compared by an F test. Series are taken at 10 Hz, with half a second of
//! lags, over the window and as much time before it.

use super::{Scored, Window, by_score};
use crate::stats::mean;

/// Samples of 100 Hz that are one of ours.
const COARSE: usize = 10;
/// Lags of either series.
const LAGS: usize = 5;

fn coarse(values: &[f64]) -> Vec<f64> {
    values.chunks_exact(COARSE).map(mean).collect()
}

/// The sum of squared residuals of the least-squares fit of `y` by the columns of `x`; `None` if
/// they do not determine one.
fn residuals(x: &[Vec<f64>], y: &[f64]) -> Option<f64> {
    let k = x.first()?.len();
    let mut a = vec![vec![0.0; k + 1]; k];
    for (row, &target) in x.iter().zip(y) {
        for i in 0..k {
            for j in 0..k {
                a[i][j] += row[i] * row[j];
            }
            a[i][k] += row[i] * target;
        }
    }
    for i in 0..k {
        let pivot = (i..k).max_by(|&p, &q| a[p][i].abs().total_cmp(&a[q][i].abs()))?;
        a.swap(i, pivot);
        if a[i][i].abs() < 1e-9 {
            return None;
        }
        let (above, below) = a.split_at_mut(i + 1);
        let pivot = &above[i];
        for row in below {
            let factor = row[i] / pivot[i];
            row.iter_mut().zip(pivot).for_each(|(cell, top)| *cell -= factor * top);
        }
    }
    let mut fit = vec![0.0; k];
    for i in (0..k).rev() {
        let known: f64 = (i + 1..k).map(|j| a[i][j] * fit[j]).sum();
        fit[i] = (a[i][k] - known) / a[i][i];
    }
    let residual = |row: &Vec<f64>, y: &f64| {
        (y - row.iter().zip(&fit).map(|(a, b)| a * b).sum::<f64>()).powi(2)
    };
    Some(x.iter().zip(y).map(|(row, y)| residual(row, y)).sum())
}

/// In its own standard deviations, so that the normal equations are well scaled.
fn standard(values: &[f64]) -> Option<Vec<f64>> {
    let center = mean(values);
    let variance = mean(&values.iter().map(|v| (v - center).powi(2)).collect::<Vec<_>>());
    (variance > 1e-18).then(|| values.iter().map(|v| (v - center) / variance.sqrt()).collect())
}

pub(super) fn rank(window: &Window<'_>) -> Vec<Scored> {
    let long = window.at.1.saturating_sub(window.at.0);
    let (from, to) = (window.at.0.saturating_sub(long), window.at.1.min(window.latency.len()));
    let cut = |values: &[f64]| standard(&coarse(values.get(from..to.min(values.len()))?));
    let Some(latency) = cut(window.latency) else { return Vec::new() };
    let lagged =
        |series: &[f64], t: usize| -> Vec<f64> { (1..=LAGS).map(|lag| series[t - lag]).collect() };
    let times = LAGS..latency.len();
    let own: Vec<Vec<f64>> =
        times.clone().map(|t| [vec![1.0], lagged(&latency, t)].concat()).collect();
    let y: Vec<f64> = times.clone().map(|t| latency[t]).collect();
    let Some(alone) = residuals(&own, &y) else { return Vec::new() };
    let free = y.len() as f64 - (2 * LAGS + 1) as f64;
    let score = |values: &[f64]| {
        let series = cut(values).filter(|s| s.len() == latency.len())?;
        let both: Vec<Vec<f64>> = times
            .clone()
            .zip(&own)
            .map(|(t, own)| [own.clone(), lagged(&series, t)].concat())
            .collect();
        let with = residuals(&both, &y)?;
        (free > 0.0).then(|| ((alone - with) / LAGS as f64) / (with / free).max(1e-12))
    };
    let metrics = window.metrics.iter().enumerate();
    by_score(metrics.filter_map(|(i, m)| Some((i, score(&m.values)?))).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn least_squares_leave_what_no_line_explains() {
        let x: Vec<Vec<f64>> = (0..10).map(|i| vec![1.0, f64::from(i)]).collect();
        let y: Vec<f64> = (0..10).map(|i| 3.0 + 2.0 * f64::from(i)).collect();
        assert!(super::residuals(&x, &y).unwrap() < 1e-18);
        let flat = vec![vec![1.0, 1.0]; 10];
        assert_eq!(super::residuals(&flat, &y), None);
    }
}
