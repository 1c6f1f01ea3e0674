//! What all files of one import share.

use std::cmp::Reverse;

use foldhash::HashMap;
use gpuwhy_schema::{Discipline, Id, Lanes, Rows, TrackId};

/// Spans whose nesting is checked; with more, all tracks are declared to overlap.
const NESTED: usize = 1 << 22;

/// What the files of one import share: entities and tracks, ids, and the check of nesting.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// Entities, tracks and sources.
    pub lanes: Lanes,
    last_id: u64,
    /// Spans of tracks that are declared to nest: begin and end.
    calls: HashMap<TrackId, Vec<(i64, i64)>>,
    held: usize,
}

impl Job {
    /// A new id.
    pub fn id(&mut self) -> Id {
        self.last_id += 1;
        Id(self.last_id)
    }

    /// A span on a track that is declared to nest.
    pub fn nested_span(&mut self, track: TrackId, start: i64, end: i64) {
        if self.held < NESTED {
            self.held += 1;
            self.calls.entry(track).or_default().push((start, end));
        }
    }

    /// The last rows: tracks that were declared to nest, and whose spans cross.
    pub fn finish(&mut self) -> Rows {
        let full = self.held >= NESTED;
        let mut calls: Vec<_> = std::mem::take(&mut self.calls).into_iter().collect();
        calls.sort_unstable_by_key(|(track, _)| *track);
        for (track, mut spans) in calls {
            spans.sort_unstable_by_key(|(start, end)| (*start, Reverse(*end)));
            if full || crosses(&spans) {
                let overlap = Some(Discipline::Overlap);
                self.lanes.update_track(track, |t| t.discipline = overlap);
            }
        }
        let mut rows = Rows::default();
        self.lanes.drain(&mut rows);
        rows
    }
}

/// Whether spans cross that are sorted by their begin, longer ones first.
fn crosses(spans: &[(i64, i64)]) -> bool {
    let mut around: Vec<i64> = Vec::new();
    for &(start, end) in spans {
        while around.last().is_some_and(|outer| *outer <= start) {
            around.pop();
        }
        if around.last().is_some_and(|outer| *outer < end) {
            return true;
        }
        around.push(end);
    }
    false
}
