//! Where an investigation reads its rows: a trace on disk, the recent past in memory, or either of
//! them without the rows of some probes.
//!
//! Steps and the catalog (entities, tracks, sources, clocks) are few and are read whole. Thread
//! states, messages and requests are many: they are read only around the steps that are examined, a
//! few seconds at a time, so that memory stays bounded whatever the length of the trace.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use gpuwhy_diagnose::classes;
use gpuwhy_diagnose::demand::Demands;
use gpuwhy_diagnose::detect::{Incident, Step};
use gpuwhy_diagnose::gpu::Readings;
use gpuwhy_schema::{self as schema, Ns, Rows, SourceId, ThreadState, Track, TrackId, names};
use gpuwhy_store::{IncompleteSource, Trace};

use crate::error::Result;

/// Any time: the range that reads all rows of a trace.
pub const EVER: Range<Ns> = Ns::MIN..Ns::MAX;

/// Rows that an investigation can ask for.
pub trait RowSource {
    /// Entities, tracks, sources and clocks: what names and qualifies the other rows.
    fn catalog(&self) -> Cow<'_, Rows>;

    /// All rows of a stretch of time, with the entities and tracks that they refer to.
    ///
    /// # Errors
    /// They cannot be read.
    fn rows(&self, range: Range<Ns>) -> Result<Rows>;

    /// What the GPUs' drivers reported around an incident; empty where no driver was read.
    ///
    /// # Errors
    /// The rows cannot be read.
    fn gpu_readings(&self, incident: &Incident) -> Result<Readings>;

    /// What each process took of the CPUs before an incident and during it; unknown where it was not recorded.
    ///
    /// # Errors
    /// The rows cannot be read.
    fn demands(&self, incident: &Incident) -> Result<Demands>;

    /// About how many exact rows a stretch of time has; 0 where that is not known.
    fn rows_about(&self, _range: &Range<Ns>) -> usize {
        0
    }

    /// Whether the exact rows of a step are available.
    fn covers(&self, _step: &Step) -> bool {
        true
    }
}

/// A trace on disk.
pub struct TraceSource {
    trace: Trace,
    catalog: Rows,
}

impl TraceSource {
    /// Reads the trace's catalog.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn new(trace: Trace) -> Result<TraceSource> {
        let catalog = Rows {
            entity: trace.entities()?,
            track: trace.tracks()?,
            source: trace.sources()?,
            clock: all(&trace, EVER)?,
            ..Rows::default()
        };
        Ok(TraceSource { trace, catalog })
    }

    /// Opens the trace at `path` and reads its catalog.
    ///
    /// # Errors
    /// It is not a trace, or cannot be read.
    pub fn open(path: &std::path::Path) -> Result<TraceSource> {
        TraceSource::new(Trace::open(path)?)
    }

    /// The trace.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The imported files of which rows were lost: a result that rests on the trace is marked with them.
    pub fn incomplete(&self) -> Vec<IncompleteSource> {
        IncompleteSource::that_lost(&self.catalog.source)
    }

    /// Its entities, tracks, sources and clocks.
    pub fn entities_and_tracks(&self) -> &Rows {
        &self.catalog
    }
}

/// All rows of one table that overlap a range.
pub(crate) fn all<T: schema::Table>(trace: &Trace, range: Range<Ns>) -> Result<Vec<T>> {
    matching(trace, range, |_| true)
}

/// The tracks for which `reads` holds: those of GPU drivers ([`classes::reads`]), or of what processes took of the
/// CPUs ([`Demands::reads`]).
pub(crate) fn tracks_of(catalog: &Rows, reads: impl Fn(&Track) -> bool) -> HashSet<TrackId> {
    catalog.track.iter().filter(|track| reads(track)).map(|track| track.id).collect()
}

/// The rows of a table that overlap a range and for which `on` holds.
fn matching<T: schema::Table>(
    trace: &Trace,
    range: Range<Ns>,
    on: impl Fn(&T) -> bool,
) -> Result<Vec<T>> {
    let mut out = Vec::new();
    for rows in trace.read::<T>(range) {
        out.extend(rows?.into_iter().filter(&on));
    }
    Ok(out)
}

impl RowSource for TraceSource {
    fn catalog(&self) -> Cow<'_, Rows> {
        Cow::Borrowed(&self.catalog)
    }

    fn rows(&self, range: Range<Ns>) -> Result<Rows> {
        let trace = &self.trace;
        Ok(Rows {
            entity: self.catalog.entity.clone(),
            track: self.catalog.track.clone(),
            source: self.catalog.source.clone(),
            span: all(trace, range.clone())?,
            kernel: all(trace, range.clone())?,
            copy: all(trace, range.clone())?,
            collective: all(trace, range.clone())?,
            state: all(trace, range.clone())?,
            counter: all(trace, range.clone())?,
            mark: all(trace, range.clone())?,
            link: all(trace, range.clone())?,
            io: all(trace, range.clone())?,
            wakeup: all(trace, range.clone())?,
            message: all(trace, range.clone())?,
            step: all(trace, range)?,
            ..Rows::default()
        })
    }

    fn gpu_readings(&self, incident: &Incident) -> Result<Readings> {
        let tracks = tracks_of(&self.catalog, classes::reads);
        if tracks.is_empty() {
            return Ok(Readings::default());
        }
        let range = Readings::around(incident.from, incident.to);
        let (trace, on) = (&self.trace, &tracks);
        let counters: Vec<schema::Counter> =
            matching(trace, range.clone(), |row: &schema::Counter| on.contains(&row.track))?;
        let marks: Vec<schema::Mark> =
            matching(trace, range, |row: &schema::Mark| on.contains(&row.track))?;
        Ok(Readings::new(
            &self.catalog.entity,
            &self.catalog.track,
            classes::reads,
            &counters,
            &marks,
        ))
    }

    fn demands(&self, incident: &Incident) -> Result<Demands> {
        let tracks = tracks_of(&self.catalog, Demands::reads);
        if tracks.is_empty() {
            return Ok(Demands::default());
        }
        let range = Demands::around(incident.from, incident.to);
        let counters: Vec<schema::Counter> =
            matching(&self.trace, range, |row: &schema::Counter| tracks.contains(&row.track))?;
        Ok(Demands::new(&self.catalog.track, &counters, (incident.from, incident.to)))
    }
}

/// A group of probes that a judgement can be made without, to measure what the group is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeGroup {
    /// Its name, as in [`gpuwhy_diagnose::published::GROUPS`].
    pub name: &'static str,
    /// The `source.kind`s whose rows belong to it.
    sources: &'static [&'static str],
}

impl ProbeGroup {
    /// The group that is called `name` there.
    pub fn named(name: &'static str) -> ProbeGroup {
        let sources: &[&str] = match name {
            "scheduler" => &["bpf:run_queue", "proc:steal", "proc:cgroup"],
            "interrupts" => &["bpf:interrupts"],
            "block" => &["bpf:block_io"],
            "network" => &["bpf:network", "bpf:tcp"],
            "memory" => &["bpf:memory"],
            _ => &[],
        };
        ProbeGroup { name, sources }
    }
}

/// Another source as if a group of probes had not been recorded.
pub struct Without<'a> {
    inner: &'a dyn RowSource,
    group: ProbeGroup,
    removed: HashSet<SourceId>,
    catalog: Rows,
}

impl<'a> Without<'a> {
    /// `inner` without the rows of `group`.
    pub fn new(inner: &'a dyn RowSource, group: ProbeGroup) -> Without<'a> {
        let mut catalog = inner.catalog().into_owned();
        let removed = catalog.source.iter().filter(|s| group.sources.contains(&&*s.kind));
        let removed: HashSet<SourceId> = removed.map(|s| s.id).collect();
        catalog.source.retain(|source| !removed.contains(&source.id));
        Without { inner, group, removed, catalog }
    }

    fn remove(&self, mut rows: Rows) -> Rows {
        let is_removed = |track: &&Track| {
            self.removed.contains(&track.source)
                || (self.group.name == "gpu" && &*track.name == names::STREAM)
        };
        let tracks: HashSet<TrackId> = rows.track.iter().filter(is_removed).map(|t| t.id).collect();
        rows.span.retain(|r| !tracks.contains(&r.track));
        rows.state.retain(|r| !tracks.contains(&r.track));
        rows.counter.retain(|r| !tracks.contains(&r.track));
        match self.group.name {
            "scheduler" => rows.wakeup.clear(),
            "block" => rows.io.clear(),
            "network" => rows.message.clear(),
            // Only this group tells interrupted time from running.
            "interrupts" => {
                let interrupted = [ThreadState::Hardirq.code(), ThreadState::Softirq.code()];
                let running = ThreadState::Running.code();
                for state in rows.state.iter_mut().filter(|s| interrupted.contains(&s.value)) {
                    state.value = running;
                }
            }
            _ => {}
        }
        rows
    }
}

impl RowSource for Without<'_> {
    fn catalog(&self) -> Cow<'_, Rows> {
        Cow::Borrowed(&self.catalog)
    }

    fn rows(&self, range: Range<Ns>) -> Result<Rows> {
        Ok(self.remove(self.inner.rows(range)?))
    }

    fn gpu_readings(&self, incident: &Incident) -> Result<Readings> {
        match self.group.name {
            "gpu" => Ok(Readings::default()),
            _ => self.inner.gpu_readings(incident),
        }
    }

    fn demands(&self, incident: &Incident) -> Result<Demands> {
        match self.group.name {
            "scheduler" => Ok(Demands::default()),
            _ => self.inner.demands(incident),
        }
    }

    fn covers(&self, step: &Step) -> bool {
        self.inner.covers(step)
    }
}
