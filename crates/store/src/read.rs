//! Reads a table's rows in the order of their start, over all files and journals of a trace.
//!
//! Files are sorted, and segments follow one another in time but for what straddles their
//! borders, so a merge holds few files open at once: one enters when the merge comes to its
//! earliest row. Memory is one batch for each of these.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use gpuwhy_schema::{Ns, State, Table};

use crate::dir::Dir;
use crate::journal::Found;
use crate::manifest::File;
use crate::segment::{BATCH_ROWS, Batches};
use crate::{Error, Result};

/// Whether a row that holds over `[start, end)` overlaps `range`; a point overlaps if it lies in
/// it.
pub(crate) fn overlaps(start: Ns, end: Ns, range: &Range<Ns>) -> bool {
    start < range.end && (end > range.start || start >= range.start)
}

/// Where a row stands in its trace, for messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Index in the list of sources of the read.
    pub source: u32,
    /// Row in it, from 0.
    pub row: u64,
}

/// What a row is, apart from whether it has ended: a row that was written while open and again
/// when it ended is one row.
pub(crate) fn twin_key<T: Table>(row: &T) -> Option<u64> {
    match (row as &dyn Any).downcast_ref::<State>() {
        Some(state) => Some(u64::from(state.track.0)),
        None if T::NAME == "span" => row.id().map(|id| id.0),
        None => None,
    }
}

/// Whether a table's rows may come twice, open and ended.
pub(crate) fn has_twins<T: Table>() -> bool {
    matches!(T::NAME, "span" | "state")
}

/// A file or a journal that holds rows of the table.
#[derive(Clone)]
pub(crate) enum Place {
    Sealed(File),
    Journal(Arc<Found>),
}

/// A source that has been opened.
struct Cursor<T> {
    source: u32,
    /// Of the row that comes next.
    row: u64,
    rows: std::vec::IntoIter<T>,
    batches: Option<Batches>,
    /// The key of the first of `rows`; none when all is read.
    head: Option<(Ns, Reverse<Ns>)>,
}

fn key<T: Table>(row: &T) -> (Ns, Reverse<Ns>) {
    (row.start().unwrap_or(Ns::MIN), Reverse(row.end().unwrap_or(Ns::MAX)))
}

impl<T: Table> Cursor<T> {
    fn open(dir: &Dir, source: u32, place: &Place, range: &Range<Ns>) -> Result<Cursor<T>> {
        let mut cursor =
            Cursor { source, row: 0, rows: Vec::new().into_iter(), batches: None, head: None };
        match place {
            Place::Sealed(file) => cursor.batches = Some(Batches::open::<T>(dir, file, range)?),
            Place::Journal(found) => {
                let mut all = Vec::new();
                for batch in found.batches::<T>() {
                    let rows = T::rows(&batch?).map_err(Error::schema(&found.path, "a frame"))?;
                    all.extend(rows.into_iter().filter(|r| match (r.start(), r.end()) {
                        (Some(start), Some(end)) => overlaps(start, end, range),
                        _ => true,
                    }));
                }
                if T::START.is_some() {
                    all.sort_by_key(key);
                }
                cursor.rows = all.into_iter();
            }
        }
        cursor.refill()?;
        Ok(cursor)
    }

    /// Sees to it that `head` is the key of the next row, if there is one.
    fn refill(&mut self) -> Result<()> {
        while self.rows.as_slice().is_empty() {
            let Some(batches) = &mut self.batches else { break };
            let row = batches.row;
            match batches.next() {
                None => self.batches = None,
                Some(batch) => {
                    let rows = T::rows(&batch?).map_err(Error::schema(
                        batches.path(),
                        format!("in the batch that begins at row {row}"),
                    ))?;
                    self.row = row;
                    self.rows = rows.into_iter();
                }
            }
        }
        self.head = self.rows.as_slice().first().map(key);
        Ok(())
    }

    fn take(&mut self) -> Result<Option<(Origin, T)>> {
        let Some(row) = self.rows.next() else { return Ok(None) };
        let origin = Origin { source: self.source, row: self.row };
        self.row += 1;
        match self.rows.as_slice().first() {
            Some(next) => self.head = Some(key(next)),
            None => self.refill()?,
        }
        Ok(Some((origin, row)))
    }
}

/// The rows of a table that overlap a range, in the order of their start, in batches.
///
/// Tables without time come whole, in the order in which they were written.
pub struct Read<T> {
    dir: Dir,
    range: Range<Ns>,
    /// What is asked of the sources: more than `range` where the end of a row that began before
    /// it may have to be found.
    asked: Range<Ns>,
    /// By falling start: the next to be opened is the last.
    waiting: Vec<(Option<i64>, u32, Place)>,
    active: Vec<Cursor<T>>,
    /// Whether rows may come twice, open and ended.
    twins: bool,
    /// Rows of one start, among which twins are sought.
    group: Vec<(Origin, T)>,
    failed: bool,
}

impl<T: Table> Read<T> {
    pub(crate) fn new(dir: &Dir, places: Vec<Place>, range: Range<Ns>) -> Read<T> {
        let twins = has_twins::<T>()
            && places.iter().any(|place| match place {
                Place::Sealed(file) => file.open > 0,
                Place::Journal(_) => true,
            });
        let asked = if twins { Ns::MIN..range.end } else { range.clone() };
        let mut waiting: Vec<_> = places
            .into_iter()
            .enumerate()
            .map(|(i, place)| {
                let start = match &place {
                    Place::Sealed(file) => file.min_start,
                    Place::Journal(_) => None,
                };
                (start, i as u32, place)
            })
            .collect();
        if T::START.is_some() {
            // A journal has no known start and is opened first.
            waiting.sort_by_key(|(start, i, _)| (*start, *i));
        }
        waiting.reverse();
        Read {
            dir: dir.clone(),
            range,
            asked,
            waiting,
            active: Vec::new(),
            twins,
            group: Vec::new(),
            failed: false,
        }
    }

    /// The cursor whose row comes next.
    fn first(&mut self) -> Result<Option<usize>> {
        loop {
            let first = (0..self.active.len()).min_by_key(|&i| (self.active[i].head, i));
            let open_next = match (first, self.waiting.last()) {
                (_, None) => false,
                (None, Some(_)) => true,
                // Tables without time: one after the other.
                (Some(_), Some(_)) if T::START.is_none() => false,
                (Some(i), Some((start, ..))) => {
                    start.is_none_or(|s| self.active[i].head.is_none_or(|head| Ns(s) <= head.0))
                }
            };
            if !open_next {
                return Ok(first);
            }
            if let Some((_, source, place)) = self.waiting.pop() {
                let cursor = Cursor::open(&self.dir, source, &place, &self.asked)?;
                if cursor.head.is_some() {
                    self.active.push(cursor);
                }
            }
        }
    }

    fn fill(&mut self, out: &mut Vec<(Origin, T)>) -> Result<()> {
        while out.len() < BATCH_ROWS {
            let Some(i) = self.first()? else {
                self.close_group(out);
                return Ok(());
            };
            // As long as this cursor is ahead of all others, nobody else needs to be asked.
            let others = self.active.iter().enumerate().filter(|(j, _)| *j != i);
            let other = others.filter_map(|(_, c)| c.head).map(|h| h.0).min();
            let unopened = self.waiting.last().and_then(|w| w.0).map(Ns);
            let limit = other.into_iter().chain(unopened).min().unwrap_or(Ns::MAX);
            loop {
                let cursor = &mut self.active[i];
                if let Some((origin, row)) = cursor.take()? {
                    self.push(origin, row, out);
                }
                let cursor = &self.active[i];
                match cursor.head {
                    None => {
                        self.active.swap_remove(i);
                        break;
                    }
                    Some((start, _)) if T::START.is_some() && start >= self.range.end => {
                        // Sorted, so nothing of it is left.
                        self.active.swap_remove(i);
                        break;
                    }
                    Some((start, _)) if T::START.is_some() && start >= limit => break,
                    Some(_) if out.len() >= BATCH_ROWS => break,
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, origin: Origin, row: T, out: &mut Vec<(Origin, T)>) {
        let (Some(start), Some(end)) = (row.start(), row.end()) else {
            out.push((origin, row));
            return;
        };
        if !self.twins {
            if overlaps(start, end, &self.range) {
                out.push((origin, row));
            }
            return;
        }
        if self.group.first().is_some_and(|(_, first)| first.start() != Some(start)) {
            self.close_group(out);
        }
        self.group.push((origin, row));
    }

    /// Hands out the rows of one start, without those open ones that are known to have ended.
    fn close_group(&mut self, out: &mut Vec<(Origin, T)>) {
        let open = |row: &T| row.end() == Some(Ns::MAX);
        if self.group.iter().any(|(_, row)| open(row)) {
            let ended = self.group.iter().filter(|(_, row)| !open(row));
            let mut seen: HashSet<u64> = ended.filter_map(|(_, row)| twin_key(row)).collect();
            self.group.retain(|(_, row)| {
                !open(row) || twin_key(row).is_none_or(|twin| seen.insert(twin))
            });
        }
        out.extend(self.group.drain(..).filter(|(_, row)| match (row.start(), row.end()) {
            (Some(start), Some(end)) => overlaps(start, end, &self.range),
            _ => true,
        }));
    }

    /// The next rows with where they stand.
    pub(crate) fn next_placed(&mut self) -> Option<Result<Vec<(Origin, T)>>> {
        if self.failed {
            return None;
        }
        let mut out = Vec::new();
        match self.fill(&mut out) {
            Ok(()) if out.is_empty() => None,
            Ok(()) => Some(Ok(out)),
            Err(e) => {
                self.failed = true;
                Some(Err(e))
            }
        }
    }
}

impl<T: Table> Iterator for Read<T> {
    type Item = Result<Vec<T>>;

    fn next(&mut self) -> Option<Result<Vec<T>>> {
        let rows = self.next_placed()?;
        Some(rows.map(|rows| rows.into_iter().map(|(_, row)| row).collect()))
    }
}
