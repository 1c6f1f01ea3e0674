//! The published method of Darzi et al. over a trace: series at 100 Hz from rows, windows of 5 s.

mod p99_lines;

use std::collections::HashMap;

use gpuwhy_diagnose::detect::{Signature, Step};
use gpuwhy_diagnose::published::darzi::{self, HZ, Metric, Ranked, WINDOW};
use gpuwhy_schema::text::Screen;
use gpuwhy_schema::{self as schema, EntityKind, Measure, Ns, TrackId};
use gpuwhy_store::Trace;
use serde::Serialize;

use crate::error::Result;
use crate::source::TraceSource;
use crate::units::steps;
pub use p99_lines::{Above, OfKind, p99_lines};

/// Samples that the first baseline is taken from: 30 s, or what there is before half the trace.
pub const BASE: usize = 3000;
/// The most counter tracks, so that memory stays bounded; the first ones are taken.
const METRICS: usize = 512;
/// The most samples of a trace: an hour.
const SAMPLES: usize = HZ * 3600;

/// Latency and metrics of a trace at 100 Hz.
pub struct Series {
    /// Time of sample 0.
    pub from: Ns,
    /// Duration of the last finished step, ms.
    pub latency: Vec<f64>,
    /// The counters of the host, its CPUs, NICs, disks, GPUs and cgroups.
    pub metrics: Vec<Metric>,
}

/// One window with a spike.
#[derive(Serialize)]
pub struct Window {
    /// Seconds from the first sample.
    pub from_s: f64,
    /// Seconds from the first sample.
    pub to_s: f64,
    /// The latency's greatest deviation, in standard deviations of the baseline.
    pub spike: f64,
    /// The metrics, best first; at most five.
    pub ranked: Vec<RankedMetric>,
}

/// A metric that the method ranks as a cause.
#[derive(Serialize)]
pub struct RankedMetric {
    /// The metric.
    pub metric: String,
    /// The class that it is taken as evidence for.
    pub class: &'static str,
    /// Its deviation.
    pub spike: f64,
    /// Its correlation.
    pub correlation: f64,
    /// What the method calls confidence.
    pub confidence: f64,
}

impl Window {
    /// Lines for users.
    pub fn text(&self, screen: &mut Screen) {
        let (from, to) = (self.from_s, self.to_s);
        screen.line(format_args!("{from:.0} s to {to:.0} s: spike of {:.1} sigma", self.spike));
        for r in &self.ranked {
            screen.line(format_args!(
                "  {:<40} {:<18} confidence {:.2} (deviation {:.1}, correlation {:.2})",
                r.metric, r.class, r.confidence, r.spike, r.correlation
            ));
        }
    }
}

const PERIOD: i64 = 1_000_000_000 / HZ as i64;

/// The series of a trace; `None` without steps.
///
/// # Errors
/// The trace cannot be read.
pub fn series(source: &TraceSource) -> Result<Option<Series>> {
    let steps = steps::of_trace(source)?;
    // One signature, so that a checkpoint every tenth step is not a spike: the commonest.
    let mut count: HashMap<Signature, usize> = HashMap::new();
    for step in &steps {
        *count.entry(step.signature()).or_default() += 1;
    }
    let Some(commonest) = count.into_iter().max_by_key(|(s, n)| (*n, s.clone())) else {
        return Ok(None);
    };
    let steps: Vec<&Step> = steps.iter().filter(|s| s.signature() == commonest.0).collect();
    let (from, to) = (steps[0].end(), steps[steps.len() - 1].end());
    let samples = (((to - from).0 / PERIOD) as usize + 1).min(SAMPLES);
    let mut latency = vec![0.0; samples];
    let mut next = 0;
    let mut last = steps[0];
    for (i, value) in latency.iter_mut().enumerate() {
        let at = Ns(from.0 + i as i64 * PERIOD);
        while next < steps.len() && steps[next].end() <= at {
            last = steps[next];
            next += 1;
        }
        *value = last.dur.as_millis_f64();
    }
    Ok(Some(Series { from, latency, metrics: metrics(source, from, samples)? }))
}

fn metrics(source: &TraceSource, from: Ns, samples: usize) -> Result<Vec<Metric>> {
    let (trace, lanes): (&Trace, _) = (source.trace(), source.entities_and_tracks());
    let entities: HashMap<_, _> = lanes.entity.iter().map(|e| (e.id, e)).collect();
    let host = |t: &&schema::Track| {
        t.shape == schema::Shape::Counter
            && !t.name.starts_with("self.")
            && entities.get(&t.entity).is_none_or(|e| e.kind != EntityKind::Process)
    };
    let tracks: Vec<&schema::Track> = lanes.track.iter().filter(host).take(METRICS).collect();
    let index: HashMap<TrackId, usize> =
        tracks.iter().enumerate().map(|(i, t)| (t.id, i)).collect();
    let mut values: Vec<Vec<f64>> = tracks.iter().map(|_| vec![f64::NAN; samples]).collect();
    let to = Ns(from.0 + samples as i64 * PERIOD);
    for rows in trace.read::<schema::Counter>(from..to) {
        for row in rows? {
            let Some(&i) = index.get(&row.track) else { continue };
            let at = ((row.ts - from).0 / PERIOD) as usize;
            if let Some(cell) = values[i].get_mut(at) {
                let delta = tracks[i].measure == Some(Measure::Delta);
                *cell = if delta && !cell.is_nan() { *cell + row.value } else { row.value };
            }
        }
    }
    Ok(tracks
        .iter()
        .zip(values)
        .map(|(track, mut values)| {
            fill(&mut values, track.measure);
            let whose = entities.get(&track.entity).map_or("", |e| &e.name);
            Metric {
                name: format!("{whose} {}", track.name),
                class: darzi::class_of(&track.name),
                values,
            }
        })
        .collect())
}

/// Fills ticks without a row: nothing was added to a delta, a gauge held, a total did not grow.
fn fill(values: &mut [f64], measure: Option<Measure>) {
    let mut last = values.iter().copied().find(|v| !v.is_nan()).unwrap_or(0.0);
    for value in values.iter_mut() {
        match measure {
            Some(Measure::Delta) => *value = if value.is_nan() { 0.0 } else { *value },
            Some(Measure::Total) => {
                let now = if value.is_nan() { last } else { *value };
                *value = (now - last).max(0.0);
                last = now;
            }
            _ => {
                if !value.is_nan() {
                    last = *value;
                }
                *value = last;
            }
        }
    }
}

/// The windows of a trace, each 5 s, with the 30 s before it (or all there is) as baseline.
pub fn windows(series: &Series) -> Vec<(std::ops::Range<usize>, f64, Option<Vec<Ranked>>)> {
    let mut out = Vec::new();
    let mut at = WINDOW.max(BASE.min(series.latency.len() / 2));
    while at + WINDOW <= series.latency.len() {
        let base = at.saturating_sub(BASE)..at;
        let window = at..at + WINDOW;
        let spike = darzi::spike(&series.latency[window.clone()], &series.latency[base.clone()]);
        let ranked = darzi::diagnose(&series.latency, &series.metrics, base, window.clone());
        out.push((window, spike, ranked));
        at += WINDOW;
    }
    out
}

/// The windows of a trace that have a spike, each with its ranked metrics.
pub fn spikes(series: &Series) -> Vec<Window> {
    let seconds = |sample: usize| sample as f64 / HZ as f64;
    let ranked = |r: Ranked| RankedMetric {
        metric: series.metrics[r.metric].name.clone(),
        class: series.metrics[r.metric].class.as_str(),
        spike: r.spike,
        correlation: r.correlation,
        confidence: r.confidence,
    };
    let spiked = windows(series).into_iter().filter_map(|(at, spike, all)| {
        Some(Window {
            from_s: seconds(at.start),
            to_s: seconds(at.end),
            spike,
            ranked: all?.into_iter().take(5).map(ranked).collect(),
        })
    });
    spiked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_without_a_row_mean_what_their_measure_says() {
        let nan = f64::NAN;
        let filled = |measure| {
            let mut values = [nan, 4.0, nan, 6.0];
            fill(&mut values, Some(measure));
            values
        };
        assert_eq!(filled(Measure::Delta), [0.0, 4.0, 0.0, 6.0]);
        assert_eq!(filled(Measure::Gauge), [4.0, 4.0, 4.0, 6.0]);
        assert_eq!(filled(Measure::Total), [0.0, 0.0, 0.0, 2.0]);
    }

    /// A latency that is much the same, and no metrics.
    fn series(samples: usize) -> Series {
        let latency = (0..samples).map(|at| 10.0 + (at % 7) as f64).collect();
        Series { from: Ns::ZERO, latency, metrics: Vec::new() }
    }

    #[test]
    fn windows_follow_each_other_and_each_has_half_a_minute_or_what_there_is_as_its_base() {
        let of = |samples| -> Vec<_> {
            windows(&series(samples))
                .into_iter()
                .map(|(window, ..)| (window.start, window.end))
                .collect()
        };
        let behind_the_base = (BASE, BASE + WINDOW);
        let next = (BASE + WINDOW, BASE + 2 * WINDOW);
        assert_eq!(of(2 * BASE)[..2], [behind_the_base, next]);
        assert_eq!(of(2 * BASE).len(), BASE / WINDOW);
        assert_eq!(of(4 * WINDOW), [(2 * WINDOW, 3 * WINDOW), (3 * WINDOW, 4 * WINDOW)]);
        assert_eq!(of(WINDOW), []);
    }

    #[test]
    fn a_latency_that_jumps_is_a_spike_of_its_window() {
        let mut series = series(2 * BASE);
        series.latency[BASE + WINDOW + 3..BASE + WINDOW + 90].fill(100.0);
        let found: Vec<_> =
            windows(&series).into_iter().filter(|(_, spike, _)| *spike > 10.0).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, BASE + WINDOW..BASE + 2 * WINDOW);
    }
}
