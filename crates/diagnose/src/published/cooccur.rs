//! Threshold co-occurrence: whatever exceeds three times its usual in the same window.
//!
//! *Source*: the public rule of event-correlation tools for GPU hosts, as in Ingero 0.17's causal
//! chains (a latency whose p99 exceeds three times its p50, together with host events beyond a
//! count in the same ten seconds). A metric co-occurs if its 99th percentile in the window exceeds
//! three times its median before; those that do are ranked by the ratio, as the rule has no other
//! order.

use super::{BEYOND, Scored, Window, by_score};
use crate::stats::{quantile, sorted};

/// How many times its usual is too much.
const TIMES: f64 = 3.0;

pub(super) fn rank(window: &Window<'_>) -> Vec<Scored> {
    let ratio = |values: &[f64]| {
        let usual = quantile(&sorted(window.base(values).iter().copied()), 0.5);
        let most = quantile(&sorted(window.at(values).iter().copied()), 0.99);
        match usual > 0.0 {
            true => most / usual,
            false if most > 0.0 => BEYOND,
            false => 0.0,
        }
    };
    let metrics = window.metrics.iter().enumerate();
    let scored = metrics.map(|(i, m)| (i, ratio(&m.values))).filter(|s| s.1 > TIMES);
    by_score(scored.collect())
}
