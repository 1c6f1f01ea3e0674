//! Whether the spans of a track nest, as its declaration says.
//!
//! A profiler may lose the end of a span, so it is checked. Rows usually come in the order of time, and
//! then they are checked as they come. Where they do not, the tables of that track are read a second
//! time and its spans are sorted: the order of rows in a file is no property of what happened.

use std::collections::{HashMap, HashSet};

use gpuwhy_schema::{Rows, Span, TrackId, names};

use super::chunk::Contents;
use super::piece::TrackKey;

/// Open spans that are remembered for each track; deeper nesting makes the track `overlap`.
const DEEPEST: usize = 1024;

/// What is known of the nesting of tracks.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    /// Tracks whose spans have nested so far.
    tracks: HashMap<TrackId, Open>,
    /// Tracks with a span that began before the one in the row above.
    pub disordered: HashSet<TrackId>,
}

/// The spans of a track that are open.
#[derive(Debug)]
pub(super) struct Open {
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
    pub fn nests(&mut self, start: i64, end: i64) -> bool {
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
pub(super) fn contents(key: TrackKey) -> Option<Contents> {
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
    pub fn check(&mut self, rows: &Rows) -> Vec<TrackId> {
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
