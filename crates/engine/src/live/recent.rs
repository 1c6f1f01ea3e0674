//! The recent past in memory: exact rows and aggregates, each in a ring of bounded size.

use std::borrow::Cow;
use std::ops::Range;

use foldhash::HashMap;
use gpuwhy_diagnose::classes;
use gpuwhy_diagnose::demand::Demands;
use gpuwhy_diagnose::detect::{Incident, Step};
use gpuwhy_diagnose::gpu::Readings;
use gpuwhy_schema::{EntityId, Ns, Rows, Span, TrackId, names};
use gpuwhy_store::{Keep, Ring, Writer};

use crate::error::Result;
use crate::source::{RowSource, tracks_of};
use crate::units::steps::step_tracks;

/// Rows of a step have arrived this long after it: the ring is drained every tick, aggregates are
/// read at 10 Hz.
pub const SETTLED: Ns = Ns::millis(150);

/// Rows sorted by where they go.
pub struct Sorted {
    /// Steps, what they were made of, requests, and aggregates, which are written at once.
    pub aggregates: Rows,
    /// States, wakeups, messages, requests and kernels, which are held in memory and written around
    /// findings only.
    pub exact: Rows,
}

/// The recent past.
pub struct Recent {
    exact: Ring,
    aggregates: Ring,
    keep: Keep,
    /// With whose they are.
    step_tracks: HashMap<TrackId, EntityId>,
}

impl Recent {
    /// Empty; `keep` bounds the exact rows, and a quarter of its bytes the aggregates.
    pub fn new(keep: Keep) -> Recent {
        Recent {
            exact: Ring::new(keep),
            aggregates: Ring::new(aggregates_keep(keep)),
            keep,
            step_tracks: HashMap::default(),
        }
    }

    /// Tracks whose spans are steps, and whose they are.
    pub fn add_step_tracks(&mut self, tracks: impl IntoIterator<Item = (TrackId, EntityId)>) {
        self.step_tracks.extend(tracks);
    }

    /// Whose steps lie on a track.
    pub fn steps_of(&self, track: TrackId) -> Option<EntityId> {
        self.step_tracks.get(&track).copied()
    }

    /// Parts rows into aggregates and exact ones. Entities and tracks go both ways.
    pub fn sort(&mut self, mut rows: Rows) -> Sorted {
        let of_requests = rows.track.iter().filter(|track| &*track.name == names::REQUESTS);
        self.step_tracks.extend(of_requests.map(|track| (track.id, track.entity)));
        self.step_tracks.extend(step_tracks(&rows));
        let is_step = |span: &Span| self.step_tracks.contains_key(&span.track);
        let steps = rows.span.extract_if(.., |span| is_step(span)).collect();
        let aggregates = Rows {
            entity: rows.entity.clone(),
            track: rows.track.clone(),
            source: rows.source.clone(),
            clock: rows.clock.clone(),
            counter: std::mem::take(&mut rows.counter),
            step: std::mem::take(&mut rows.step),
            batch: std::mem::take(&mut rows.batch),
            batch_request: std::mem::take(&mut rows.batch_request),
            request: std::mem::take(&mut rows.request),
            span: steps,
            ..Rows::default()
        };
        Sorted { aggregates, exact: rows }
    }

    /// Remembers rows, and forgets what is too old or too much.
    pub fn push(&mut self, mut rows: Sorted) {
        self.aggregates.push(&mut rows.aggregates);
        self.exact.push(&mut rows.exact);
    }

    /// Holds twice as much, or half as much, from now on; returns how many bytes.
    pub fn resize(&mut self, more: bool) -> usize {
        let bytes = &mut self.keep.bytes;
        *bytes = if more { *bytes * 2 } else { *bytes / 2 };
        self.exact.set_keep(self.keep);
        self.aggregates.set_keep(aggregates_keep(self.keep));
        self.keep.bytes
    }

    /// Writes the exact rows of a stretch of time that were not written before.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn retain(&mut self, range: Range<Ns>, writer: &mut Writer) -> Result<()> {
        self.exact.retain(range, writer)?;
        Ok(())
    }

    /// Entities, tracks, sources and clocks.
    pub fn catalog(&self) -> Rows {
        self.aggregates.lanes()
    }

    /// Exact rows alone.
    pub fn exact_rows(&self, range: Range<Ns>) -> Rows {
        self.exact.rows(range)
    }

    /// The recent past as seen at `now`, with rows for steps that have not ended.
    pub fn at(&self, now: Ns, open: Rows) -> RecentSource<'_> {
        let available = self.exact.extent().start..now.saturating_sub(SETTLED);
        RecentSource { recent: self, open, available }
    }
}

fn aggregates_keep(keep: Keep) -> Keep {
    Keep { bytes: keep.bytes / 4, ..keep }
}

/// The recent past at one moment, as a source of rows.
pub struct RecentSource<'a> {
    recent: &'a Recent,
    /// Rows for the steps that have not ended, as if they ended now, and for the states that threads
    /// are in.
    open: Rows,
    /// The stretch of time for which all exact rows are held.
    available: Range<Ns>,
}

impl RowSource for RecentSource<'_> {
    fn catalog(&self) -> Cow<'_, Rows> {
        Cow::Owned(self.recent.catalog())
    }

    fn rows(&self, range: Range<Ns>) -> Result<Rows> {
        let mut rows = self.recent.exact.rows(range.clone());
        let Rows { mut span, mut counter, mut step, .. } = self.recent.aggregates.rows(range);
        rows.span.append(&mut span);
        rows.counter.append(&mut counter);
        rows.step.append(&mut step);
        rows.append(&mut self.open.clone());
        Ok(rows)
    }

    fn gpu_readings(&self, incident: &Incident) -> Result<Readings> {
        let catalog = self.recent.catalog();
        let tracks = tracks_of(&catalog, classes::reads);
        if tracks.is_empty() {
            return Ok(Readings::default());
        }
        let range = Readings::around(incident.from, incident.to);
        // An Xid is reported within a second of it, and exact rows are many.
        let near = incident.from.saturating_sub(Ns::secs(1))..range.end;
        let counters = self.recent.aggregates.counters(range, |row| tracks.contains(&row.track));
        let marks = self.recent.exact.marks(near, |row| tracks.contains(&row.track));
        Ok(Readings::new(&catalog.entity, &catalog.track, classes::reads, &counters, &marks))
    }

    fn demands(&self, incident: &Incident) -> Result<Demands> {
        let range = Demands::around(incident.from, incident.to);
        let catalog = self.recent.catalog();
        let tracks = tracks_of(&catalog, Demands::reads);
        let counters = self.recent.aggregates.counters(range, |row| tracks.contains(&row.track));
        Ok(Demands::new(&catalog.track, &counters, (incident.from, incident.to)))
    }

    fn rows_about(&self, range: &Range<Ns>) -> usize {
        self.recent.exact.about(range)
    }

    fn covers(&self, step: &Step) -> bool {
        step.ts >= self.available.start && step.end() <= self.available.end
    }
}
