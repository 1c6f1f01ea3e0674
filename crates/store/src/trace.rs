//! Reads a trace, whether its writer has finished, is at work, or has died.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpuwhy_schema::{EachTable, Entity, Frame, Ns, Rows, Source, Stack, Table, Track};
use serde::Serialize;

use crate::dir::{Dir, Locking};
use crate::journal::Found;
use crate::manifest::{File, Manifest};
use crate::read::{Place, Read, has_twins};
use crate::recover::{Recovered, recover, unsealed};
use crate::seal::{LaneRow, is_lane, learn_shards};
use crate::select::{Links, Selection};
use crate::{Error, Result};

/// Rows that [`Trace::rows`] holds unless another limit is given: some 3 GiB.
pub const MAX_ROWS: usize = 40_000_000;

/// A trace that can be read.
#[derive(Debug)]
pub struct Trace {
    dir: Dir,
    manifest: Manifest,
    journals: Vec<Arc<Found>>,
    live: bool,
    recovered: Recovered,
    max_rows: usize,
}

impl Trace {
    /// Opens the trace at `path`.
    ///
    /// Nothing is written, with one exception: if the writer died, its journal is sealed and what
    /// is torn of it is set aside in `quarantine/`; [`Trace::recovered`] says so. Where we may not
    /// write, and in a trace that is not ours alone (of another user, or for everybody to write), the
    /// journal is read as it lies. While the writer is alive, its trace is read as it is at this
    /// moment and not touched.
    pub fn open(path: impl AsRef<Path>) -> Result<Trace> {
        let dir = Dir::open(path.as_ref())?;
        let manifest = Manifest::read_in(&dir)?;
        let mut recovered = Recovered::default();
        let mut live = false;
        let left = dir.journals()?;
        if !manifest.complete || !left.is_empty() {
            let others = dir.root.is_others().map_err(Error::io("examine", &dir.path))?;
            match others {
                Some(_) if dir.is_written() => live = true,
                Some(why) => recovered.not_written = Some(why).filter(|_| !left.is_empty()),
                None => (recovered, live) = bring_into_order(&dir, !left.is_empty())?,
            }
        }
        let (manifest, journals) = snapshot(&dir)?;
        if !live {
            let torn: u64 = journals.iter().map(|j| j.torn_bytes()).sum();
            recovered.torn_bytes = recovered.torn_bytes.max(torn);
        }
        Ok(Trace { dir, manifest, journals, live, recovered, max_rows: MAX_ROWS })
    }

    /// With another limit for [`Trace::rows`], in rows of all tables together.
    pub fn with_max_rows(mut self, rows: usize) -> Trace {
        self.max_rows = rows;
        self
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.dir.path
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// What `trace.toml` says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether a writer was at work on it when it was opened.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// What a dead writer had left, if there was one.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// The journals that are not sealed yet.
    pub(crate) fn journals(&self) -> &[Arc<Found>] {
        &self.journals
    }

    /// The files that hold all rows of a table that may overlap `range`, and more.
    pub(crate) fn sealed<T: Table>(&self, range: &Range<Ns>) -> impl Iterator<Item = &File> {
        let files = || self.manifest.file.iter().filter(|f| f.table == T::NAME);
        // The last head that declares all that is still valid when the range begins. Earlier
        // segments have nothing to add to it. If they are gone, it is the only one to tell.
        let first_own = files().filter(|f| !f.is_head()).map(|f| f.segment).min();
        let head = files()
            .filter(|f| {
                f.repeats_from.is_some_and(|from| Ns(from) <= range.start)
                    || f.is_head() && first_own.is_none_or(|first| f.segment <= first)
            })
            .max_by_key(|f| f.segment);
        let from = head.map_or(0, |h| h.segment);
        files().filter(move |f| match f.is_head() {
            true => head.is_some_and(|h| h.path == f.path),
            false => f.segment >= from,
        })
    }

    /// The sources of a table's rows that may overlap `range`.
    pub(crate) fn places<T: Table>(&self, range: &Range<Ns>) -> Vec<Place> {
        // Where a row may have been written open, its end has to be looked for, and may lie in a
        // file that does not reach into the range.
        let open = has_twins::<T>() && self.sealed::<T>(range).any(|f| f.open > 0);
        let sealed = self.sealed::<T>(range).filter(|f| match open {
            true => f.min_start.is_none_or(|start| Ns(start) < range.end),
            false => f.meets(range),
        });
        let journals = self.journals.iter().filter(|j| j.frames.iter().any(|f| f.is_of::<T>()));
        sealed.cloned().map(Place::Sealed).chain(journals.cloned().map(Place::Journal)).collect()
    }

    /// The shards whose ids the trace holds.
    pub(crate) fn shards(&self) -> HashSet<u16> {
        let mut shards: HashSet<u16> = self.manifest.shards.iter().copied().collect();
        let Ok(()) = Rows::default().each(&mut JournalShards(&self.journals, &mut shards));
        shards
    }

    /// The rows of a table that overlap `range`, in the order of their start, in batches of some
    /// thousands. Tables without time come whole, in the order in which they were written.
    ///
    /// A row that was written while open and again when it ended comes once.
    pub fn read<T: Table>(&self, range: Range<Ns>) -> Read<T> {
        Read::new(&self.dir, self.places::<T>(&range), range)
    }

    /// All rows of a table.
    pub fn all<T: Table>(&self) -> Read<T> {
        self.read(Ns::MIN..Ns::MAX)
    }

    /// The last row of each entity, in the order of their ids.
    pub fn entities(&self) -> Result<Vec<Entity>> {
        self.latest()
    }

    /// The last row of each track, in the order of their ids.
    pub fn tracks(&self) -> Result<Vec<Track>> {
        self.latest()
    }

    /// The last row of each source, in the order of their ids.
    pub fn sources(&self) -> Result<Vec<Source>> {
        self.latest()
    }

    pub(crate) fn latest<T: LaneRow>(&self) -> Result<Vec<T>> {
        let mut latest: HashMap<u32, T> = HashMap::new();
        for rows in self.all::<T>() {
            for row in rows? {
                latest.insert(row.lane_id(), row);
                if latest.len() > self.max_rows {
                    return Err(Error::TooMany {
                        path: self.dir.path.clone(),
                        limit: self.max_rows,
                    });
                }
            }
        }
        let mut rows: Vec<T> = latest.into_values().collect();
        rows.sort_unstable_by_key(T::lane_id);
        Ok(rows)
    }

    /// Everything that is to be known about `range`: the rows that overlap it, the details,
    /// attributes and links of these, and all lanes, each with its last row only. Sorted by
    /// start.
    pub fn rows(&self, range: Range<Ns>) -> Result<Rows> {
        let mut rows = Rows::default();
        let selection = (range != (Ns::MIN..Ns::MAX)).then(|| Selection::new(range, Links::Either));
        rows.each(&mut Gather { trace: self, selection, count: 0 })?;
        Ok(rows)
    }

    /// What there is, table by table.
    pub fn summary(&self) -> Summary {
        let mut tables: Vec<TableSummary> = Vec::new();
        for name in gpuwhy_schema::TABLES {
            let files = || self.manifest.files_of(name);
            let frames: u64 = self
                .journals
                .iter()
                .flat_map(|j| &j.frames)
                .filter(|f| gpuwhy_schema::TABLES.get(usize::from(f.table)) == Some(name))
                .map(|f| u64::from(f.rows))
                .sum();
            if files().next().is_none() && frames == 0 {
                continue;
            }
            tables.push(TableSummary {
                table: name,
                files: files().count(),
                rows: files().map(|f| f.rows).sum(),
                journal_rows: frames,
                bytes: files().map(|f| f.bytes).sum(),
                start: files().filter_map(|f| f.min_start).min(),
                end: files().filter_map(|f| f.max_end).max(),
            });
        }
        Summary {
            path: self.dir.path.clone(),
            schema_version: self.manifest.schema_version,
            tool: self.manifest.tool.clone(),
            hosts: self.manifest.hosts.clone(),
            complete: self.manifest.complete,
            live: self.live,
            start: self.manifest.start,
            end: self.manifest.end,
            kept_since: self.manifest.kept_since,
            lost_rows: self.manifest.lost_rows,
            quarantined_bytes: self.manifest.quarantined_bytes,
            recovered: self.recovered.clone(),
            tables,
        }
    }
}

/// Recovers what a dead writer left in a trace of ours, if none is at work; says what was done, and whether
/// one is.
fn bring_into_order(dir: &Dir, has_journals: bool) -> Result<(Recovered, bool)> {
    match dir.lock() {
        Locking::Busy => Ok((Recovered::default(), true)),
        Locking::Barred(e) => {
            let not_written = has_journals.then(|| e.to_string());
            Ok((Recovered { not_written, ..Recovered::default() }, false))
        }
        Locking::Taken(lock) => {
            let recovered = match recover(dir, None) {
                Ok((_, what)) => what,
                // A full disk, most likely. The rows are there, so they can be read.
                Err(Error::Io { what, path, source }) => {
                    let why = format!("cannot {what} `{}`: {source}", path.display());
                    Recovered { not_written: Some(why), ..Recovered::default() }
                }
                Err(e) => return Err(e),
            };
            dir.unlock(lock);
            Ok((recovered, false))
        }
    }
}

/// The manifest, and the journals that hold what it does not name yet.
fn snapshot(dir: &Dir) -> Result<(Manifest, Vec<Arc<Found>>)> {
    let mut manifest = Manifest::read_in(dir)?;
    // A writer may seal a journal between two of our steps. The journals belong to the manifest
    // if it still is the same after they were opened.
    for _ in 0..16 {
        let journals = match unsealed(dir, &manifest) {
            Ok(journals) => Some(journals),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e),
        };
        let after = Manifest::read_in(dir)?;
        if let Some(journals) = journals
            && after.next_segment == manifest.next_segment
        {
            return Ok((after, journals.into_iter().map(|(_, found)| Arc::new(found)).collect()));
        }
        manifest = after;
    }
    Err(Error::Busy { path: dir.path.clone() })
}

/// Gathers what is to be known about a range.
struct Gather<'a> {
    trace: &'a Trace,
    /// None for all there is.
    selection: Option<Selection>,
    count: usize,
}

impl EachTable for Gather<'_> {
    type Error = Error;

    fn table<T: Table>(&mut self, rows: &mut Vec<T>) -> Result<()> {
        let range = self.selection.as_ref().map_or(Ns::MIN..Ns::MAX, Selection::extent::<T>);
        let mut latest: HashMap<u32, usize> = HashMap::new();
        for batch in self.trace.read::<T>(range) {
            for row in batch? {
                if self.selection.as_mut().is_some_and(|selection| !selection.take(&row)) {
                    continue;
                }
                if is_lane::<T>()
                    && let Some(id) = lane_id(&row)
                {
                    if let Some(&at) = latest.get(&id) {
                        rows[at] = row;
                        continue;
                    }
                    latest.insert(id, rows.len());
                }
                self.count += 1;
                if self.count > self.trace.max_rows {
                    return Err(Error::TooMany {
                        path: self.trace.dir.path.clone(),
                        limit: self.trace.max_rows,
                    });
                }
                rows.push(row);
            }
        }
        Ok(())
    }
}

/// Gathers the shards of ids that stand in journals; the manifest knows those of sealed files.
struct JournalShards<'a>(&'a [Arc<Found>], &'a mut HashSet<u16>);

impl EachTable for JournalShards<'_> {
    type Error = std::convert::Infallible;

    fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<(), Self::Error> {
        for batch in self.0.iter().flat_map(|j| j.batches::<T>()).flatten() {
            learn_shards(&batch, self.1);
        }
        Ok(())
    }
}

/// The id of a lane's row.
pub(crate) fn lane_id<T: Table>(row: &T) -> Option<u32> {
    let any = row as &dyn Any;
    any.downcast_ref::<Entity>()
        .map(LaneRow::lane_id)
        .or_else(|| any.downcast_ref::<Track>().map(LaneRow::lane_id))
        .or_else(|| any.downcast_ref::<Source>().map(LaneRow::lane_id))
        .or_else(|| any.downcast_ref::<Stack>().map(LaneRow::lane_id))
        .or_else(|| any.downcast_ref::<Frame>().map(LaneRow::lane_id))
}

/// What a trace holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Where it lies.
    pub path: PathBuf,
    /// The schema of its tables.
    pub schema_version: u32,
    /// Who wrote it.
    pub tool: String,
    /// The keys of the hosts in it.
    pub hosts: Vec<String>,
    /// Whether its writer came to its end.
    pub complete: bool,
    /// Whether its writer was at work when it was opened.
    pub live: bool,
    /// When its first sealed row begins, in ns on the trace clock.
    pub start: Option<i64>,
    /// When its last sealed row that has ended ends, in ns on the trace clock.
    pub end: Option<i64>,
    /// Rows that ended before this time, in ns, may have been dropped.
    pub kept_since: Option<i64>,
    /// Rows that were dropped because they could not be written.
    pub lost_rows: u64,
    /// Bytes that crashes tore.
    pub quarantined_bytes: u64,
    /// What was recovered when it was opened.
    pub recovered: Recovered,
    /// Its tables that have rows.
    pub tables: Vec<TableSummary>,
}

/// What a table of a trace holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableSummary {
    /// Its name.
    pub table: &'static str,
    /// Sealed files.
    pub files: usize,
    /// Rows in them.
    pub rows: u64,
    /// Rows that still are in a journal.
    pub journal_rows: u64,
    /// The length of the sealed files together.
    pub bytes: u64,
    /// When its first sealed row begins, in ns.
    pub start: Option<i64>,
    /// When its last sealed row that has ended ends, in ns.
    pub end: Option<i64>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.live, self.complete) {
            (true, _) => "being written",
            (false, true) => "complete",
            (false, false) => "cut off",
        };
        writeln!(f, "{}: {state}, written by {}", self.path.display(), self.tool)?;
        if let (Some(start), Some(end)) = (self.start, self.end) {
            writeln!(f, "  {} of {}", Ns(end.saturating_sub(start)), self.hosts.join(", "))?;
        }
        if let Some(since) = self.kept_since {
            writeln!(f, "  what ended before {} was dropped", Ns(since))?;
        }
        if self.lost_rows > 0 {
            writeln!(f, "  {} rows were lost because they could not be written", self.lost_rows)?;
        }
        if !self.recovered.is_nothing() {
            let r = &self.recovered;
            write!(f, "  recovered {} rows of {} journals", r.rows, r.journals)?;
            writeln!(f, ", {} torn bytes set aside", r.torn_bytes)?;
        }
        for t in &self.tables {
            let journal = match t.journal_rows {
                0 => String::new(),
                n => format!(" + {n} in the journal"),
            };
            writeln!(
                f,
                "  {:<12} {:>10} rows{journal} in {} files, {} bytes",
                t.table, t.rows, t.files, t.bytes
            )?;
        }
        Ok(())
    }
}
