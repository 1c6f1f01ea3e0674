//! Whether the spans of a track nest, as its declaration says.
//!
//! A profiler may lose the end of a span, so it is checked. Rows usually come in the order of time, and
//! then they are checked as they come. Where they do not, the tables of that track are read a second
//! time and its spans are sorted: the order of rows in a file is no property of what happened.

use std::collections::{HashMap, HashSet};

use gpuwhy_schema::{Discipline, Rows, Span, Track, TrackId, names};

use super::chunk::Contents;
use super::piece::TrackKey;
use super::place::Placer;
use super::report::Report;
use crate::sorter::Sorter;
use crate::{Error, Result};

/// Open spans that are remembered for each track; deeper nesting makes the track `overlap`.
const DEEPEST: usize = 1024;

/// What is known of the nesting of tracks.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    /// Tracks whose spans have nested so far.
    tracks: HashMap<TrackId, Open>,
    /// Tracks with a span that began before the one in the row above.
    disordered: HashSet<TrackId>,
}

/// The spans of a track that are open.
#[derive(Debug)]
struct Open {
    /// The start and end of the span that came last.
    last: (i64, i64),
    /// The ends of the spans around the next one, the innermost last.
    around: Vec<i64>,
}

impl Default for Open {
    fn default() -> Open {
        Open { last: (i64::MIN, i64::MAX), around: Vec::new() }
    }
}

impl Open {
    /// Adds a span; of those with the same start the longest must come first. False if it crosses
    /// another.
    fn nests(&mut self, start: i64, end: i64) -> bool {
        while self.around.last().is_some_and(|outer| *outer <= start) {
            self.around.pop();
        }
        if self.around.last().is_some_and(|outer| *outer < end) || self.around.len() >= DEEPEST {
            return false;
        }
        self.around.push(end);
        true
    }
}

/// The contents of the tables that hold the spans of a track, if those are to nest.
fn contents(key: TrackKey) -> Option<Contents> {
    match key {
        TrackKey::Thread { name, .. } => Some(match name {
            names::CUDA_CALLS => Contents::CudaCalls,
            names::MPI_CALLS => Contents::Mpi,
            names::PROFILER_OVERHEAD => Contents::Overhead,
            _ => Contents::OsCalls,
        }),
        TrackKey::Ranges { .. } => Some(Contents::Nvtx),
        _ => None,
    }
}

fn end_of(span: &Span) -> i64 {
    span.dur.map_or(i64::MAX, |dur| span.ts.0.saturating_add(dur.0))
}

impl Nesting {
    /// Begins to check a track, if its spans are to nest.
    pub fn declare(&mut self, key: TrackKey, track: TrackId) {
        if contents(key).is_some() && !self.disordered.contains(&track) {
            self.tracks.entry(track).or_default();
        }
    }

    /// Looks at new spans, and returns the tracks on which some cross.
    fn check(&mut self, rows: &Rows) -> Vec<TrackId> {
        let mut crossed = Vec::new();
        for span in &rows.span {
            let Some(open) = self.tracks.get_mut(&span.track) else { continue };
            let (start, end) = (span.ts.0, end_of(span));
            let disordered = start < open.last.0 || (start == open.last.0 && end > open.last.1);
            open.last = (start, end);
            if disordered {
                self.disordered.insert(span.track);
            } else if !open.nests(start, end) {
                crossed.push(span.track);
            } else {
                continue;
            }
            self.tracks.remove(&span.track);
        }
        crossed
    }
}

impl Placer {
    /// Declares tracks whose spans cross to overlap.
    pub(super) fn check_nesting(&mut self, rows: &Rows) {
        let crossed = self.nesting.check(rows);
        self.overlap(crossed);
    }

    fn overlap(&mut self, crossed: Vec<TrackId>) {
        for track in crossed {
            self.lanes.update_track(track, |t: &mut Track| {
                t.discipline = Some(Discipline::Overlap);
            });
        }
    }

    /// Reads the tables again whose rows were not in the order of time, and declares tracks whose spans
    /// cross to overlap.
    ///
    /// # Errors
    /// A report cannot be read, or the temporary file.
    pub(super) fn check_disordered(&mut self, reports: &[Report]) -> Result<()> {
        let disordered = std::mem::take(&mut self.nesting.disordered);
        if disordered.is_empty() {
            return Ok(());
        }
        let mut sorter: Sorter<3> = Sorter::default();
        let mut crossed = Vec::new();
        let path = reports[0].path();
        for (number, report) in reports.iter().enumerate() {
            let tracks = &self.reports[number].tracks;
            let of: HashSet<Contents> = tracks
                .iter()
                .filter(|(_, track)| disordered.contains(*track))
                .filter_map(|(key, _)| contents(*key))
                .collect();
            for chunk in report.chunks.iter().filter(|chunk| of.contains(&chunk.contents)) {
                let piece = report.read(chunk)?;
                for span in &piece.rows.span {
                    let track = tracks.get(&piece.tracks[span.track.0 as usize]).copied();
                    let Some(track) = track.filter(|track| disordered.contains(track)) else {
                        continue;
                    };
                    let shift = self.reports[number].shift;
                    let start = span.ts.0.saturating_add(shift);
                    let end = span.dur.map_or(i64::MAX, |dur| start.saturating_add(dur.0));
                    // Of equal starts the longest first.
                    let record = [i64::from(track.0), start, !end];
                    sorter.push(record).map_err(Error::io("sort the rows of", path))?;
                }
            }
        }
        let mut sorted = sorter.finish().map_err(Error::io("sort the rows of", path))?;
        let mut at: Option<(i64, Open)> = None;
        while let Some([track, start, end]) =
            sorted.next().map_err(Error::io("sort the rows of", path))?
        {
            let (_, open) = match &mut at {
                Some(known) if known.0 == track => known,
                _ => at.insert((track, Open::default())),
            };
            if !open.nests(start, !end)
                && crossed.last().is_none_or(|t: &TrackId| i64::from(t.0) != track)
            {
                crossed.push(TrackId(track as u32));
            }
        }
        self.overlap(crossed);
        Ok(())
    }
}
