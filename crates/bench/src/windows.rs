//! `bench windows`: how long it takes to see a random window of a trace: what each lane did in each of `--columns`.
//!
//! # How
//! Widths are log-uniform from 1 µs to the whole trace. Of a window, the states, spans and marks of all lanes are asked of
//! the trace's [`Pyramid`], and summed by lane and column, on all processors. The trace is opened anew in this process, once; pages of its
//! files may be in the kernel's cache. With `--check`, each picture is compared with one that is made of the rows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gpuwhy_diagnose::stats::Random;
use gpuwhy_engine::parse_duration;
use gpuwhy_schema::{Mark, Ns, Shape, Span, State, Table, TrackId, terminal};
use gpuwhy_store::{Grid, Piece, Pyramid, Trace};
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
    /// Columns of a picture at least, and less than twice as many: 1000 are what our pages draw.
    #[arg(long, default_value_t = 1000)]
    columns: usize,
    /// Compare each picture with the rows, which takes much longer.
    #[arg(long)]
    check: bool,
    /// What the windows follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The narrowest window, ns.
const LEAST: f64 = 1000.0;

/// How much of each column each lane was busy in, ns, or how many marks it has there.
#[derive(Debug, Default)]
struct Picture {
    /// The columns of each lane that has anything, by the place of its track.
    lanes: Vec<Vec<i64>>,
    /// Memory of lanes of earlier pictures, as a viewer keeps it from frame to frame.
    spare: Vec<Vec<i64>>,
    places: HashMap<TrackId, usize>,
    /// Where the last one was: much is told of a lane at a time.
    last: Option<(TrackId, usize)>,
}

impl Picture {
    /// Adds to columns of a lane; the state 0, in which a CPU has nobody, counts as nothing.
    #[inline(always)]
    fn add(&mut self, grid: &Grid, piece: &Piece) {
        let amount = match piece.shape {
            Shape::Mark => piece.count as i64,
            Shape::State if piece.value == 0 => return,
            _ => piece.held,
        };
        if amount > 0 {
            let place = match self.last {
                Some((track, place)) if track == piece.track => place,
                _ => *self.places.entry(piece.track).or_insert_with(|| {
                    let mut lane = self.spare.pop().unwrap_or_default();
                    lane.clear();
                    lane.resize(grid.columns(), 0);
                    self.lanes.push(lane);
                    self.lanes.len() - 1
                }),
            };
            self.last = Some((piece.track, place));
            let lane = &mut self.lanes[place];
            match piece.columns.len() {
                1 => lane[piece.columns.start] += amount,
                _ => lane[piece.columns.clone()].iter_mut().for_each(|column| *column += amount),
            }
        }
    }

    /// Forgets what was drawn.
    fn clear(&mut self) {
        self.spare.append(&mut self.lanes);
        self.places.clear();
        self.last = None;
    }

    fn by_track(&self) -> BTreeMap<TrackId, &[i64]> {
        self.places.iter().map(|(track, place)| (*track, &*self.lanes[*place])).collect()
    }
}

/// Draws a picture in place of another one, a stretch of it on each of the processors; how many pieces it was made of.
fn draw(pyramid: &Pyramid<'_>, grid: &Grid, into: &mut [Picture]) -> Result<u64> {
    let parts = grid.parts(into.len()).zip(into);
    std::thread::scope(|scope| {
        let draw = |((_, grid), into): ((usize, Grid), &mut Picture)| {
            let mut pieces = 0;
            into.clear();
            pyramid.draw(&grid, |piece| {
                pieces += 1;
                into.add(&grid, &piece);
            })?;
            Ok(pieces)
        };
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || draw(part))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|pieces| pieces.unwrap_or_else(|_| bail!("a thread that draws died"))).sum()
    })
}

/// The same by the rows of the trace, one after the other.
fn counted(trace: &Trace, grid: &Grid) -> Result<Picture> {
    let mut out = Picture::default();
    let range = grid.begin(0)..grid.begin(grid.columns());
    let mut row = |track, shape, value, from: Ns, to: Ns| {
        let (from, to) = (from.max(range.start), to.min(range.end));
        let column = |at: Ns| ((at.0 - range.start.0) / grid.column().0) as usize;
        let last = if to > from { column(Ns(to.0 - 1)) } else { column(from) };
        for at in column(from)..=last {
            let held = to.min(grid.begin(at + 1)).0 - from.max(grid.begin(at)).0;
            let columns = at..at + 1;
            out.add(grid, &Piece { track, shape, columns, value, held, count: 1 });
        }
    };
    each::<State>(trace, &range, |one| {
        row(one.track, Shape::State, one.value, one.ts, one.end().unwrap_or(Ns::MAX));
    })?;
    each::<Span>(trace, &range, |one| {
        row(one.track, Shape::Span, 0, one.ts, one.end().unwrap_or(Ns::MAX));
    })?;
    each::<Mark>(trace, &range, |one| row(one.track, Shape::Mark, 0, one.ts, one.ts))?;
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
    let pyramid = Pyramid::open(&trace)?;
    let opened = began.elapsed();
    let summary = trace.summary();
    let (start, end) = summary.start.zip(summary.end).context("the trace has no rows")?;
    let length = (end - start).max(1);
    let mut random = Random::new(args.seed);
    let mut unit = || (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
    let (mut times, mut pieces, mut lanes) = (Vec::new(), Vec::new(), 0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut seen: Vec<Picture> = (0..threads).map(|_| Picture::default()).collect();
    let mut of_column: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for _ in 0..args.windows {
        if began.elapsed() > args.duration {
            break;
        }
        let width = (LEAST * (length as f64 / LEAST).max(1.0).powf(unit())) as i64;
        let from = start + ((length - width).max(0) as f64 * unit()) as i64;
        let grid = Grid::new(Ns(from)..Ns(from.saturating_add(width.max(1))), args.columns);
        let at = Instant::now();
        let count = draw(&pyramid, &grid, &mut seen)?;
        let ms = at.elapsed().as_secs_f64() * 1e3;
        times.push(ms);
        of_column.entry(grid.column().0).or_default().push(ms);
        pieces.push(count as f64);
        let tracks = seen.iter().flat_map(|part| part.places.keys());
        lanes = lanes.max(tracks.collect::<HashSet<_>>().len());
        if args.check {
            let mut parts = grid.parts(threads).zip(&seen);
            let is_same = parts.try_fold(true, |is_same, ((_, part), seen)| {
                let counted = counted(&trace, &part)?;
                anyhow::Ok(is_same && seen.by_track() == counted.by_track())
            })?;
            ensure!(is_same, "the picture of {grid:?} is not what the rows say");
        }
    }
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let p99 = sorted.get((0.99 * sorted.len() as f64) as usize).or(sorted.last());
    let by_column = of_column.iter().map(|(ns, all)| {
        let most = all.iter().copied().fold(0.0, f64::max);
        json!({ "column_ns": ns, "windows": all.len(), "most_ms": most })
    });
    let by_column: Vec<_> = by_column.collect();
    let document = json!({
        "schema_version": 1,
        "windows": times.len(),
        "lanes": lanes,
        "open_ms": opened.as_secs_f64() * 1e3,
        "p99_ms": p99,
        "ms": Figure::of(&times),
        "by_column": by_column,
        "pieces": Figure::of(&pieces),
        "finest_ns": pyramid.finest().map(|ns| ns.0),
    });
    terminal::say(format_args!("{document}"))?;
    Ok(ExitCode::SUCCESS)
}
