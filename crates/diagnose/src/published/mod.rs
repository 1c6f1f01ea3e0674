//! Other ways to name the cause of a slow window, to be measured against: published ones and the
//! rules that public tools go by. Each stands in a file of its own with its source.
//!
//! # What they see
//! The latency and every host metric as series at 100 Hz, a baseline before the window, and the
//! window. They see neither threads nor requests, and name a metric, which is taken as evidence
//! for a class; none of them names a process.
//!
//! # Why they matter
//! A benchmark that only its author's method has run is an advertisement.

mod baro;
mod cooccur;
pub mod darzi;
mod granger;
mod nsigma;
pub mod p99_line;

pub use self::darzi::Metric;

/// What a method is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// Latency, one value a sample.
    pub latency: &'a [f64],
    /// The metrics, over the same samples.
    pub metrics: &'a [Metric],
    /// Samples of the baseline.
    pub base: (usize, usize),
    /// Samples of the window.
    pub at: (usize, usize),
}

impl<'a> Window<'a> {
    fn base(&self, values: &'a [f64]) -> &'a [f64] {
        values.get(self.base.0..self.base.1.min(values.len())).unwrap_or(&[])
    }

    fn at(&self, values: &'a [f64]) -> &'a [f64] {
        values.get(self.at.0..self.at.1.min(values.len())).unwrap_or(&[])
    }
}

/// A metric, by index, and its score.
pub type Scored = (usize, f64);

/// A method: every metric that it scores, best first.
pub type Method = fn(&Window<'_>) -> Vec<Scored>;

/// All methods, by name.
pub const ALL: &[(&str, Method)] = &[
    ("darzi", darzi),
    ("darzi-gpu-only", darzi_gpu_only),
    ("nsigma", nsigma::rank),
    ("baro", baro::rank),
    ("granger", granger::rank),
    ("cooccurrence", cooccur::rank),
];

/// Whether a metric of this name belongs to a group.
pub type Within = fn(&str) -> bool;

/// The groups of probes that the published ablation leaves out one at a time (Darzi et al.,
/// section 4), by a word for each and what it leaves out.
pub const GROUPS: &[(&str, Within)] = &[
    ("scheduler", |m| {
        ["runq_wait", "switches", "steal", "throttled"].iter().any(|n| m.ends_with(n))
            || m.contains("psi.cpu")
    }),
    ("interrupts", |m| m.contains("softirq.") || m.ends_with("hardirq") || m.contains("psi.irq")),
    ("block", |m| m.ends_with("disk_bytes") || m.ends_with("disk_time") || m.contains("psi.io")),
    ("network", |m| m.contains("nic_") || m.ends_with("tcp_retransmits")),
    ("memory", |m| {
        m.ends_with("page_cache_evicted") || m.ends_with("reclaim") || m.contains("psi.memory")
    }),
    ("gpu", |m| m.ends_with("sm_clock")),
];

/// The published method, with its metrics those of `keep`.
pub fn darzi_with(window: &Window<'_>, keep: impl Fn(&str) -> bool) -> Vec<Scored> {
    let kept: Vec<usize> =
        (0..window.metrics.len()).filter(|i| keep(&window.metrics[*i].name)).collect();
    let metrics: Vec<Metric> = kept.iter().map(|i| window.metrics[*i].clone()).collect();
    let ranked = darzi::diagnose(
        window.latency,
        &metrics,
        window.base.0..window.base.1,
        window.at.0..window.at.1,
    );
    ranked.into_iter().flatten().map(|r| (kept[r.metric], r.confidence)).collect()
}

fn darzi(window: &Window<'_>) -> Vec<Scored> {
    darzi_with(window, |_| true)
}

/// The paper's B1: what a tool sees that looks at the GPU only.
fn darzi_gpu_only(window: &Window<'_>) -> Vec<Scored> {
    darzi_with(window, |name| name.ends_with("sm_clock"))
}

fn by_score(mut scored: Vec<Scored>) -> Vec<Scored> {
    scored.retain(|s| s.1.is_finite());
    scored.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    scored
}

/// What deviates from nothing at all is beyond measure, but comparable.
const BEYOND: f64 = 1e9;

#[cfg(test)]
mod tests {
    use gpuwhy_schema::Class;

    use super::*;
    use crate::stats::Random;

    /// 30 s of noise, then 5 s in which the disk's metric rises with the latency behind it.
    fn situation() -> (Vec<f64>, Vec<Metric>) {
        let mut random = Random::new(7);
        let mut noise = |n: usize, at: f64| -> Vec<f64> {
            (0..n).map(|_| at + (random.below(1000) as f64 / 1000.0 - 0.5)).collect()
        };
        let n = 3500;
        let mut latency = noise(n, 20.0);
        let mut disk = noise(n, 5.0);
        let clock = noise(n, 1410.0);
        let quiet = noise(n, 0.5);
        let mut level: f64 = 0.0;
        for t in 3000..n {
            // A load that wanders, so that what follows it can be seen to follow.
            level = 0.9 * level + (disk[t] - 5.0) * 4.0;
            disk[t] = 25.0 + 6.0 * level;
            latency[t] = 30.0 + 3.0 * (disk[t - 5] - 25.0).max(-3.0);
        }
        let metric = |name: &str, class, values| Metric { name: name.into(), class, values };
        let metrics = vec![
            metric("gpu sm_clock", Class::GpuThrottling, clock),
            metric("vda disk_time", Class::BlockIo, disk),
            metric("host runq_wait", Class::CpuContention, quiet),
        ];
        (latency, metrics)
    }

    #[test]
    fn every_method_but_the_blind_one_names_the_metric_that_rose() {
        let (latency, metrics) = situation();
        let window =
            Window { latency: &latency, metrics: &metrics, base: (0, 3000), at: (3000, 3500) };
        for (name, method) in ALL {
            let ranked = method(&window);
            let first = ranked.first().map(|s| s.0);
            let wanted = if *name == "darzi-gpu-only" { Some(0) } else { Some(1) };
            assert_eq!(first, wanted, "{name}: {ranked:?}");
        }
    }

    #[test]
    fn without_the_group_that_saw_it_the_published_method_names_something_else() {
        let (latency, metrics) = situation();
        let window =
            Window { latency: &latency, metrics: &metrics, base: (0, 3000), at: (3000, 3500) };
        let (_, in_block) = GROUPS.iter().find(|g| g.0 == "block").unwrap();
        let ranked = darzi_with(&window, |name| !in_block(name));
        assert!(ranked.iter().all(|s| s.0 != 1), "{ranked:?}");
    }

    #[test]
    fn windows_beyond_the_series_and_constant_series_are_survived() {
        let metrics = [Metric { name: "m".into(), class: Class::Network, values: vec![1.0; 100] }];
        for (base, at) in [((0, 50), (50, 100)), ((0, 0), (0, 0)), ((0, 500), (90, 900))] {
            let window = Window { latency: &[1.0; 100], metrics: &metrics, base, at };
            for (_, method) in ALL {
                method(&window);
            }
        }
    }
}
