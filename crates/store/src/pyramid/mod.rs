//! What the lanes of a trace did in each of some thousand columns of any window, without reading all rows of it.
//!
//! # How
//! Beside the segments lies a file of levels (`pyramid/levels.bin`). A level says for each bucket of time, of 2ⁿ ns, how
//! long each value of a lane held within it and how many rows began; the next levels have buckets that are four
//! times, sixteen times and from there on twice as long as those before. A picture is made of the coarsest level whose buckets are not longer than its columns, so that it takes as
//! long for an hour as for a minute; where no level is fine enough, of the rows themselves, which are few then. Columns
//! are buckets, so that both ways give the same sums to the nanosecond.
//!
//! An import writes the file as it writes the rows. Of other traces it is made when the first picture is asked for, and
//! made again when the trace has got other files since; where we may not write, in memory.
//!
//! # What fools it
//! States and spans are sums, so that which of two short spans came first within a column is not told. Counters and
//! samples have no lanes here.

mod build;
mod cell;
mod code;
mod file;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use gpuwhy_schema::{Mark, Ns, Shape, Span, State, Table, TrackId};

pub(crate) use build::Builder;
use build::{FEW, raise};
use cell::{Cell, Lane, Row, split};
use file::{Chunk, Holds, Stamp};
pub(crate) use file::{FOLDER, PATH};
use rows::Seen;

use crate::dir::{Dir, Locking};
use crate::journal::Found;
use crate::manifest::File;
use crate::trace::Trace;
use crate::{Error, Result};

/// Equal columns of time, which begin at multiples of their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    level: u32,
    first: i64,
    columns: usize,
}

impl Grid {
    /// At least `columns` columns for a window, and about twice as many at most; fewer where a column would be shorter
    /// than 1 ns. The first and the last one may reach out of the window.
    pub fn new(window: Range<Ns>, columns: usize) -> Grid {
        let (from, last) = (window.start.0, window.end.0.saturating_sub(1).max(window.start.0));
        let most = 2 * columns.max(1) as u64;
        let count = |level: u32| (last >> level).abs_diff(from >> level).saturating_add(1);
        let level = (0..file::COARSEST).find(|level| count(*level) <= most);
        let level = level.unwrap_or(file::COARSEST);
        Grid { level, first: from >> level, columns: count(level) as usize }
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How long a column is.
    pub fn column(&self) -> Ns {
        Ns(1 << self.level)
    }

    /// When a column begins; the one after the last is the end.
    pub fn begin(&self, column: usize) -> Ns {
        let at = (i128::from(self.first) + column as i128) << self.level;
        Ns(at.min(i128::from(i64::MAX)) as i64)
    }

    /// The same columns in as many stretches, which can be drawn at the same time; each with its first column.
    pub fn parts(&self, count: usize) -> impl Iterator<Item = (usize, Grid)> {
        let (columns, grid) = (self.columns, *self);
        let edge = move |at: usize| columns * at / count.max(1);
        (0..count).map(move |at| {
            let (from, to) = (edge(at), edge(at + 1));
            (from, Grid { first: grid.first + from as i64, columns: to - from, ..grid })
        })
    }

    fn range(&self) -> Range<Ns> {
        self.begin(0)..self.begin(self.columns)
    }
}

/// A part of a picture. Parts of the same lane, column and value add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The lane.
    pub track: TrackId,
    /// What its rows are: states, spans or marks.
    pub shape: Shape,
    /// The columns that it is about, which are alike.
    pub columns: Range<usize>,
    /// The value of the states; 0 of spans and marks.
    pub value: i64,
    /// How long rows hold within each of the columns, ns; where rows overlap, the sum.
    pub held: i64,
    /// How many rows begin in each of them.
    pub count: u64,
}

/// Where chunks are read from.
#[derive(Debug)]
enum Source {
    File(fs::File),
    Memory(Vec<u8>),
}

impl Source {
    fn read(&self, at: u64, bytes: u64, into: &mut Vec<u8>) -> std::io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(std::io::Error::other)?;
        into.resize(bytes, 0);
        match self {
            Source::File(file) => file.read_exact_at(into, at),
            Source::Memory(all) => {
                let from = usize::try_from(at).map_err(std::io::Error::other)?;
                let part = all.get(from..).and_then(|rest| rest.get(..bytes));
                into.copy_from_slice(part.ok_or(std::io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    /// Bytes that may not be there.
    fn get(&self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.read(at, bytes, &mut out).ok().map(|()| out)
    }

    fn length(&self) -> u64 {
        match self {
            Source::File(file) => file.metadata().map_or(0, |metadata| metadata.len()),
            Source::Memory(all) => all.len() as u64,
        }
    }
}

/// A trace from which pictures are made.
#[derive(Debug)]
pub struct Pyramid<'a> {
    trace: &'a Trace,
    source: Source,
    chunks: Vec<Chunk>,
    /// The levels that there are, the finest first.
    levels: Vec<u32>,
    /// Rows that have not ended, and those of journals.
    besides: Vec<Row>,
}

impl<'a> Pyramid<'a> {
    /// The pyramid of a trace: as it lies there, or made anew where there is none or that of other files.
    ///
    /// # Errors
    /// The trace cannot be read, or what is made cannot be written.
    pub fn open(trace: &'a Trace) -> Result<Pyramid<'a>> {
        let stamp = Stamp::of(trace.manifest());
        if let Some(pyramid) = Pyramid::found(trace, stamp)? {
            return Ok(pyramid);
        }
        if stamp.rows() >= FEW
            && let Some(pyramid) = Pyramid::written(trace, stamp)?
        {
            return Ok(pyramid);
        }
        Pyramid::made(trace, Builder::in_memory()?)
    }

    /// As it lies there, if it does.
    fn found(trace: &'a Trace, stamp: Stamp) -> Result<Option<Pyramid<'a>>> {
        match trace.dir().file(PATH) {
            Ok(file) => Pyramid::of(trace, Source::File(file), stamp),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes it where it belongs; `None` where we may not.
    fn written(trace: &'a Trace, stamp: Stamp) -> Result<Option<Pyramid<'a>>> {
        let dir = trace.dir();
        let is_ours = || dir.root.is_others().is_ok_and(|others| others.is_none());
        if trace.is_live() || !is_ours() {
            return Ok(None);
        }
        let Locking::Taken(lock) = dir.lock() else { return Ok(None) };
        let written = Builder::create(dir).and_then(|builder| make(trace, builder));
        dir.unlock(lock);
        match written {
            Ok(_) => Pyramid::found(trace, stamp),
            // A full disk, or one that may not be written: in memory, then.
            Err(Error::Io { what: "create" | "write", .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn made(trace: &'a Trace, builder: Builder) -> Result<Pyramid<'a>> {
        let bytes = make(trace, builder)?;
        let stamp = Stamp::of(trace.manifest());
        let pyramid = Pyramid::of(trace, Source::Memory(bytes), stamp)?;
        pyramid.ok_or_else(|| Error::damaged(trace.path(), "its pyramid is not what was made"))
    }

    fn of(trace: &'a Trace, source: Source, stamp: Stamp) -> Result<Option<Pyramid<'a>>> {
        let Some((_, mut chunks)) = file::parse(source.length(), |at, bytes| source.get(at, bytes))
            .filter(|(of, _)| *of == stamp)
        else {
            return Ok(None);
        };
        chunks.sort_by_key(|chunk| (chunk.holds, chunk.extent));
        let mut levels: Vec<u32> = chunks
            .iter()
            .filter_map(|chunk| match chunk.holds {
                Holds::Cells(level) => Some(level),
                Holds::Long | Holds::Open => None,
            })
            .collect();
        levels.dedup();
        let mut pyramid = Pyramid { trace, source, chunks, levels, besides: Vec::new() };
        pyramid.besides = pyramid.besides()?;
        Ok(Some(pyramid))
    }

    /// Rows that are in no cell, nor may be read as rows of sealed files.
    fn besides(&self) -> Result<Vec<Row>> {
        let mut open: HashMap<(Lane, i64, u64), Row> = HashMap::new();
        self.rows_of(Holds::Open, |row, key| {
            open.insert((row.lane, row.from, key), row);
        })?;
        let mut rows = Vec::new();
        let mut see = |seen, key| match seen {
            Seen::Open(row) => {
                open.insert((row.lane, row.from, key), row);
            }
            Seen::Ended(row) => {
                open.remove(&(row.lane, row.from, key));
                rows.push(row);
            }
        };
        for found in self.trace.journals() {
            journal_rows::<State>(found, &mut see)?;
            journal_rows::<Span>(found, &mut see)?;
            journal_rows::<Mark>(found, &mut see)?;
        }
        rows.extend(open.into_values());
        Ok(rows)
    }

    /// How long a column of the finest level is; windows with shorter ones are drawn from rows.
    pub fn finest(&self) -> Option<Ns> {
        self.levels.first().map(|level| Ns(1 << level))
    }

    /// Hands out what all lanes did in the columns of a grid.
    ///
    /// # Errors
    /// A file cannot be read or is damaged.
    pub fn draw(&self, grid: &Grid, see: impl FnMut(Piece)) -> Result<()> {
        let range = grid.range();
        let mut draw = Draw { grid, from: range.start.0, to: range.end.0, see };
        self.besides.iter().for_each(|row| draw.row(row));
        match self.levels.iter().rfind(|level| **level <= grid.level) {
            Some(level) => self.draw_cells(*level, &mut draw),
            None => {
                each_row::<State>(self.trace, &range, |row| draw.row(row))?;
                each_row::<Span>(self.trace, &range, |row| draw.row(row))?;
                each_row::<Mark>(self.trace, &range, |row| draw.row(row))
            }
        }
    }

    fn draw_cells<F: FnMut(Piece)>(&self, level: u32, draw: &mut Draw<'_, F>) -> Result<()> {
        self.rows_of(Holds::Long, |row, _| draw.row(&row))?;
        let up = draw.grid.level - level;
        let first = draw.grid.first << up;
        let last = (draw.grid.first + draw.grid.columns as i64 - 1).saturating_mul(1 << up);
        let last = last.saturating_add((1 << up) - 1);
        let all = self.chunks_of(Holds::Cells(level));
        let wanted = all.filter(|chunk| chunk.extent.0 <= last && chunk.extent.1 >= first);
        let mut bytes = Vec::new();
        for chunk in wanted {
            self.load(chunk, &mut bytes)?;
            let read = code::cells(&bytes, level, chunk.extent, |lane, cell| match cell.run {
                0 => draw.cell(lane, Cell { bucket: cell.bucket >> up, ..cell }),
                _ if up == 0 => draw.cell(lane, cell),
                _ => raise(lane, cell, level, draw.grid.level, |cell| draw.cell(lane, cell)),
            });
            read.ok_or_else(|| self.garbled(chunk))?;
        }
        Ok(())
    }

    fn chunks_of(&self, holds: Holds) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().filter(move |chunk| chunk.holds == holds)
    }

    fn rows_of(&self, holds: Holds, mut see: impl FnMut(Row, u64)) -> Result<()> {
        let mut bytes = Vec::new();
        for chunk in self.chunks_of(holds) {
            self.load(chunk, &mut bytes)?;
            code::rows(&bytes, &mut see).ok_or_else(|| self.garbled(chunk))?;
        }
        Ok(())
    }

    fn load(&self, chunk: &Chunk, into: &mut Vec<u8>) -> Result<()> {
        let path = || self.trace.dir().at(PATH);
        self.source.read(chunk.at, chunk.bytes, into).map_err(Error::io("read", &path()))?;
        if crc32fast::hash(into) == chunk.crc { Ok(()) } else { Err(self.garbled(chunk)) }
    }

    fn garbled(&self, chunk: &Chunk) -> Error {
        let what = format!(
            "byte {}: a chunk is not what was written; remove the file, and it is made anew",
            chunk.at
        );
        Error::damaged(&self.trace.dir().at(PATH), what)
    }
}

/// Cuts what is seen to a grid.
struct Draw<'a, F> {
    grid: &'a Grid,
    from: i64,
    to: i64,
    see: F,
}

impl<F: FnMut(Piece)> Draw<'_, F> {
    fn row(&mut self, row: &Row) {
        if let Some((row, begins)) = row.clipped(self.from, self.to) {
            split(&row, begins, self.grid.level, |cell| self.cell(row.lane, cell));
        }
    }

    /// A cell of the grid's level.
    fn cell(&mut self, lane: Lane, cell: Cell) {
        let count = self.grid.columns as i64;
        let from = cell.bucket.saturating_sub(self.grid.first);
        let to = from.saturating_add(i64::from(cell.run.max(1))).min(count);
        let from = from.max(0);
        if from < to {
            let held = if cell.run > 0 { 1 << self.grid.level } else { cell.held };
            (self.see)(Piece {
                track: lane.track(),
                shape: lane.shape(),
                columns: from as usize..to as usize,
                value: cell.value,
                held,
                count: u64::from(cell.count),
            });
        }
    }
}

/// Makes the pyramid of a trace's sealed rows, segment by segment, as an import does.
fn make(trace: &Trace, mut builder: Builder) -> Result<Vec<u8>> {
    let (dir, manifest) = (trace.dir(), trace.manifest());
    let mut files: Vec<&File> = manifest.file.iter().filter(|f| file::is_drawn(f)).collect();
    files.sort_by_key(|file| file.segment);
    for of_segment in files.chunk_by(|a, b| a.segment == b.segment) {
        for file in of_segment {
            match file.table.as_str() {
                State::NAME => builder.file::<State>(dir, file)?,
                Span::NAME => builder.file::<Span>(dir, file)?,
                _ => builder.file::<Mark>(dir, file)?,
            }
        }
        builder.end_segment()?;
    }
    builder.finish(manifest)
}

/// The rows of a journal, as far as they are drawn.
fn journal_rows<T: Table>(found: &Found, see: &mut impl FnMut(Seen, u64)) -> Result<()> {
    for batch in found.batches::<T>() {
        let read = rows::each_of::<T>(&batch?, &mut *see);
        read.ok_or_else(|| Error::damaged(&found.path, "rows are not of their table"))?;
    }
    Ok(())
}

/// The rows of sealed files that have ended and may overlap a range.
fn each_row<T: Table>(trace: &Trace, range: &Range<Ns>, mut see: impl FnMut(&Row)) -> Result<()> {
    let dir: &Dir = trace.dir();
    for file in trace.sealed::<T>(range).filter(|file| file.meets(range)) {
        rows::each_in::<T>(dir, file, range, |seen, _| {
            if let Seen::Ended(row) = seen {
                see(&row);
            }
        })?;
    }
    Ok(())
}

/// Reads all chunks of a file, as drawing does; what is garbled ends it.
pub(crate) fn read_all(bytes: &[u8]) -> u64 {
    let source = Source::Memory(bytes.to_vec());
    let parsed = file::parse(source.length(), |at, bytes| source.get(at, bytes));
    let Some((_, chunks)) = parsed else { return 0 };
    let mut count = 0u64;
    for chunk in chunks {
        let Some(bytes) = source.get(chunk.at, chunk.bytes) else { break };
        if crc32fast::hash(&bytes) != chunk.crc {
            break;
        }
        let level = match chunk.holds {
            Holds::Cells(level) => level,
            Holds::Long | Holds::Open => file::COARSEST,
        };
        let grid = Grid { level, first: chunk.extent.0.max(i64::MIN >> level), columns: 4096 };
        let see = |_: Piece| count += 1;
        let mut draw = Draw { grid: &grid, from: i64::MIN, to: i64::MAX, see };
        if chunk.holds == Holds::Cells(level) {
            let up = (level + build::STEP).min(file::COARSEST);
            code::cells(&bytes, level, chunk.extent, |lane, cell| {
                draw.cell(lane, cell);
                raise(lane, cell, level, up, |_| {});
            });
        } else {
            code::rows(&bytes, |row, _| draw.row(&row));
        }
    }
    count
}

/// A file of one chunk; see [`crate::fuzzing::pyramid_of`].
pub(crate) fn wrap(level: u32, extent: (i64, i64), payload: &[u8]) -> Vec<u8> {
    let holds = if level <= file::COARSEST { Holds::Cells(level) } else { Holds::Long };
    let mut out = file::head().to_vec();
    let (at, crc) = (out.len() as u64, crc32fast::hash(payload));
    out.extend_from_slice(payload);
    let chunk = Chunk { holds, extent, at, bytes: payload.len() as u64, crc };
    let tail = file::tail(Stamp::default(), &[chunk], out.len() as u64);
    out.extend(tail);
    out
}
