//! `bench windows`: how long it takes to see a random window of a trace: what each lane did in each of 2,000 columns.
//!
//! # How
//! Widths are log-uniform from 1 µs to the whole trace. Of a window, all states, spans and marks that overlap it are read and
//! summed by lane and column. The trace is opened anew in this process, once; pages of its files may be in the kernel's cache.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_diagnose::stats::Random;
use gpuwhy_engine::parse_duration;
use gpuwhy_schema::{Mark, Ns, Span, State, Table, TrackId, terminal};
use gpuwhy_store::Trace;
use serde_json::json;

use crate::result::Figure;

/// Arguments of `bench windows`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace.
    trace: PathBuf,
    /// Windows at most.
    #[arg(long, default_value_t = 1000)]
    windows: usize,
    /// No further window begins after this long.
    #[arg(long = "for", default_value = "2m", value_parser = parse_duration)]
    duration: Duration,
    /// What the windows follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Columns of a picture.
const COLUMNS: usize = 2000;
/// The narrowest window, ns.
const LEAST: f64 = 1000.0;

/// How much of each column each lane was busy in, ns, or how many marks it has there.
#[derive(Debug)]
struct Picture {
    from: i64,
    width: i64,
    lanes: HashMap<TrackId, Vec<i64>>,
    rows: u64,
}

impl Picture {
    fn columns(&mut self, track: TrackId) -> &mut [i64] {
        self.rows += 1;
        self.lanes.entry(track).or_insert_with(|| vec![0; COLUMNS])
    }

    /// When a column begins; the one after the last is the end of the window.
    fn begins(&self, column: usize) -> i64 {
        self.from + (self.width as i128 * column as i128 / COLUMNS as i128) as i64
    }

    fn column(&self, time: i64) -> usize {
        let place = (time - self.from) as i128 * COLUMNS as i128 / self.width.max(1) as i128;
        usize::try_from(place).unwrap_or(0).min(COLUMNS - 1)
    }

    fn busy(&mut self, track: TrackId, from: i64, to: i64) {
        let (from, to) = (from.max(self.from), to.min(self.from + self.width));
        if from >= to {
            self.rows += 1;
            return;
        }
        let (first, last) = (self.column(from), self.column(to - 1));
        let borders: Vec<i64> = (first..=last + 1).map(|column| self.begins(column)).collect();
        let columns = self.columns(track);
        for column in first..=last {
            let (begin, end) = (borders[column - first], borders[column - first + 1]);
            columns[column] += to.min(end) - from.max(begin);
        }
    }
}

/// The time that a lane of states was not in the state 0, in which a CPU has nobody.
fn picture(trace: &Trace, from: i64, width: i64) -> Result<Picture> {
    let mut out = Picture { from, width, lanes: HashMap::new(), rows: 0 };
    let range = Ns(from)..Ns(from + width);
    each::<State>(trace, &range, |row| {
        if row.value != 0 {
            out.busy(row.track, row.ts.0, row.dur.map_or(i64::MAX, |dur| row.ts.0 + dur.0));
        }
    })?;
    each::<Span>(trace, &range, |row| {
        out.busy(row.track, row.ts.0, row.dur.map_or(i64::MAX, |dur| row.ts.0 + dur.0));
    })?;
    each::<Mark>(trace, &range, |row| {
        let column = out.column(row.ts.0);
        out.columns(row.track)[column] += 1;
    })?;
    Ok(out)
}

fn each<T: Table>(
    trace: &Trace,
    range: &std::ops::Range<Ns>,
    mut see: impl FnMut(&T),
) -> Result<()> {
    for rows in trace.read::<T>(range.clone()) {
        rows?.iter().for_each(&mut see);
    }
    Ok(())
}

/// Looks at windows and prints how long that took, as JSON.
pub fn run(args: &Args) -> Result<ExitCode> {
    let began = Instant::now();
    let trace = Trace::open(&args.trace)?;
    let opened = began.elapsed();
    let summary = trace.summary();
    let (start, end) = summary.start.zip(summary.end).context("the trace has no rows")?;
    let length = (end - start).max(1);
    let mut random = Random::new(args.seed);
    let mut unit = || (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
    let (mut times, mut rows, mut lanes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..args.windows {
        if began.elapsed() > args.duration {
            break;
        }
        let width = (LEAST * (length as f64 / LEAST).max(1.0).powf(unit())) as i64;
        let from = start + ((length - width).max(0) as f64 * unit()) as i64;
        let at = Instant::now();
        let seen = picture(&trace, from, width.max(1))?;
        times.push(at.elapsed().as_secs_f64() * 1e3);
        rows.push(seen.rows as f64);
        lanes = lanes.max(seen.lanes.len());
    }
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let p99 = sorted.get((0.99 * sorted.len() as f64) as usize).or(sorted.last());
    let document = json!({
        "schema_version": 1,
        "windows": times.len(),
        "lanes": lanes,
        "open_ms": opened.as_secs_f64() * 1e3,
        "p99_ms": p99,
        "ms": Figure::of(&times),
        "rows": Figure::of(&rows),
    });
    terminal::say(format_args!("{document}"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lane_does_is_split_over_the_columns_and_cut_to_the_window() {
        let width = 10 * COLUMNS as i64;
        let mut seen = Picture { from: 1000, width, lanes: HashMap::new(), rows: 0 };
        seen.busy(TrackId(1), 0, 1005);
        seen.busy(TrackId(1), 1015, 1042);
        seen.busy(TrackId(1), 1000 + width - 3, i64::MAX);
        seen.busy(TrackId(2), 0, 1000);
        let lane = &seen.lanes[&TrackId(1)];
        assert_eq!((&lane[..5], lane[COLUMNS - 1]), (&[5, 5, 10, 10, 2][..], 3));
        assert_eq!((lane.iter().sum::<i64>(), seen.lanes.len(), seen.rows), (35, 1, 4));
    }
}
