//! The published method, to be measured against (Darzi, Pareja, Bharadwaj, "Host-Side Telemetry
//! for Performance Diagnosis in Cloud and HPC GPU Infrastructure", section 2.2).
//!
//! # What it sees
//! Latency and metrics as series at 100 Hz. A window of 5 s has a spike if some sample lies more
//! than 3 standard deviations above the mean of the baseline. Each metric then scores half its own
//! greatest deviation plus half its greatest absolute correlation with the latency at up to 20
//! samples of lag either way; metrics are ranked by that score.
//!
//! # Why it matters
//! It is what a reader of the paper would build, and the number to beat.
//!
//! # What fools it
//! 500 samples of clean Gaussian noise exceed 3σ in 49 % of all windows, heavier tails nearly
//! always; an unbounded deviation plus a correlation of at most 1 is, for ranking, the deviation.

use gpuwhy_schema::Class;

/// Samples a second.
pub const HZ: usize = 100;
/// Samples of a window: 5 s.
pub const WINDOW: usize = 500;
/// A deviation beyond this is a spike.
pub const SIGMAS: f64 = 3.0;
/// Lags considered either way: 200 ms.
pub const LAGS: usize = 20;
/// Weight of the deviation; the correlation has the rest.
pub const ALPHA: f64 = 0.5;

/// A metric at 100 Hz, over the same samples as the latency.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// The class that it is taken as evidence for.
    pub class: Class,
    /// Its values.
    pub values: Vec<f64>,
}

/// A metric's rank in a window with a spike.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// Index of the metric.
    pub metric: usize,
    /// Its greatest deviation from its baseline.
    pub spike: f64,
    /// Its greatest absolute correlation with the latency.
    pub correlation: f64,
    /// What the method calls confidence.
    pub confidence: f64,
}

/// Mean and standard deviation.
fn moments(values: &[f64]) -> (f64, f64) {
    let mean = crate::stats::mean(values);
    let var = crate::stats::mean(&values.iter().map(|v| (v - mean).powi(2)).collect::<Vec<_>>());
    (mean, var.sqrt())
}

/// Greatest deviation of `window` from the mean of `base`, in standard deviations of `base`; 0
/// when `base` does not vary and neither does `window`.
pub fn spike(window: &[f64], base: &[f64]) -> f64 {
    let (mean, sigma) = moments(base);
    let greatest = window.iter().copied().fold(f64::NEG_INFINITY, f64::max) - mean;
    match (sigma > 0.0, greatest > 0.0) {
        (true, _) => greatest / sigma,
        // The paper leaves a constant baseline open; any rise above it is then beyond measure.
        (false, true) => f64::MAX.sqrt(),
        (false, false) => 0.0,
    }
}

/// Greatest absolute correlation of the two series at lags of up to [`LAGS`] samples either way.
pub fn correlation(latency: &[f64], metric: &[f64]) -> f64 {
    let n = latency.len().min(metric.len());
    let (latency, metric) = (&latency[..n], &metric[..n]);
    let (ml, sl) = moments(latency);
    let (mm, sm) = moments(metric);
    if n == 0 || sl == 0.0 || sm == 0.0 {
        return 0.0;
    }
    let norm = n as f64 * sl * sm;
    let at = |lag: i64| -> f64 {
        let from = (-lag).max(0) as usize;
        let to = (n as i64 - lag.max(0)) as usize;
        (from..to)
            .map(|t| (latency[t] - ml) * (metric[(t as i64 + lag) as usize] - mm))
            .sum::<f64>()
            / norm
    };
    let most = LAGS.min(n.saturating_sub(1)) as i64;
    (-most..=most).map(|lag| at(lag).abs()).fold(0.0, f64::max)
}

/// The metrics by what the method calls confidence, for the window `at` of samples, if the
/// latency has a spike there. `base` is the range of samples that the baseline is taken from.
pub fn diagnose(
    latency: &[f64],
    metrics: &[Metric],
    base: std::ops::Range<usize>,
    at: std::ops::Range<usize>,
) -> Option<Vec<Ranked>> {
    if spike(latency.get(at.clone())?, latency.get(base.clone())?) <= SIGMAS {
        return None;
    }
    let mut ranked: Vec<Ranked> = metrics
        .iter()
        .enumerate()
        .filter_map(|(metric, m)| {
            let window = m.values.get(at.clone())?;
            let spike = spike(window, m.values.get(base.clone())?);
            let correlation = correlation(&latency[at.clone()], window);
            let confidence = ALPHA * spike + (1.0 - ALPHA) * correlation;
            Some(Ranked { metric, spike, correlation, confidence })
        })
        .collect();
    ranked.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    Some(ranked)
}

/// The class that a metric of this name is taken as evidence for (section 2.2's taxonomy, on our
/// track names).
pub fn class_of(track: &str) -> Class {
    use gpuwhy_schema::names;
    match track {
        names::NIC_TX_BYTES
        | names::NIC_QUEUE
        | names::NIC_QUEUE_DELAY
        | names::NIC_DROPS
        | names::TCP_RETRANSMITS => Class::Network,
        names::DISK_BYTES | names::DISK_TIME => Class::BlockIo,
        names::PAGE_CACHE_EVICTED | names::RECLAIM => Class::MemoryPressure,
        names::THROTTLED => Class::CpuThrottling,
        names::SM_CLOCK => Class::GpuThrottling,
        names::RUNQ_WAIT | names::SWITCHES | names::STEAL => Class::CpuContention,
        _ if track.starts_with("softirq.NET") => Class::Network,
        _ if track.starts_with("softirq.BLOCK") => Class::BlockIo,
        _ if track.starts_with(names::SOFTIRQ_PREFIX) || track == names::HARDIRQ => {
            Class::Interrupts
        }
        _ if track.starts_with("psi.cpu") => Class::CpuContention,
        _ if track.starts_with("psi.io") => Class::BlockIo,
        _ if track.starts_with("psi.memory") => Class::MemoryPressure,
        _ => Class::Unexplained,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.below(1_000_000) as f64 / 1e6).sum::<f64>() - 6.0
    }

    #[test]
    fn a_lagged_copy_correlates_and_the_higher_deviation_ranks_first() {
        let mut random = Random::new(5);
        let n = 3500;
        let mut latency: Vec<f64> = (0..n).map(|_| 10.0 + normal(&mut random)).collect();
        let mut nic: Vec<f64> = (0..n).map(|_| 5.0 + normal(&mut random)).collect();
        let disk: Vec<f64> = (0..n).map(|_| 5.0 + normal(&mut random)).collect();
        for t in 3200..3260 {
            latency[t] += 20.0;
            nic[t - 5] += 40.0;
        }
        let metric = |name: &str, class, values| Metric { name: name.into(), class, values };
        let metrics = [metric("disk", Class::BlockIo, disk), metric("nic", Class::Network, nic)];
        let ranked = diagnose(&latency, &metrics, 0..3000, 3000..3500).unwrap();
        assert_eq!(metrics[ranked[0].metric].name, "nic");
        assert!(ranked[0].correlation > 0.8, "{ranked:?}");
    }

    /// Theory: 1 − Φ(3)^500 = 49 % of clean Gaussian windows.
    #[test]
    fn it_fires_in_about_half_of_clean_gaussian_windows() {
        let mut random = Random::new(11);
        let fired = (0..400)
            .filter(|_| {
                let base: Vec<f64> = (0..3000).map(|_| normal(&mut random)).collect();
                let window: Vec<f64> = (0..WINDOW).map(|_| normal(&mut random)).collect();
                spike(&window, &base) > SIGMAS
            })
            .count();
        assert!((120..260).contains(&fired), "{fired} of 400");
    }
}
