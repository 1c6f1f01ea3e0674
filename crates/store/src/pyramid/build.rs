//! Makes a pyramid of rows as they are sealed.
//!
//! # How
//! Rows become cells of the finest level, which are held until what is sealed has gone well beyond them; then they are
//! written as a chunk, and added to the next level. Rows that would be very many cells are kept as rows. Since cells
//! are sums, rows that come late, or in any order, only make further chunks for the same time.

use std::collections::BTreeMap;
use std::io::Write as _;

use arrow_array::RecordBatch;
use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Ns, Table};

use super::cell::{Cell, Lane, Row, merge, split};
use super::code;
use super::file::{self, Chunk, Holds, PATH, Stamp};
use super::rows::{self, Seen};
use crate::beneath::Written;
use crate::dir::Dir;
use crate::manifest::{self, Manifest};
use crate::{Error, Result};

/// Buckets of the second and third level are 2² of those of the level below; cells there are as many as rows, so that
/// more levels would take room and save little. From there on, a level for each power of two has few cells.
const STEPS: [u32; 2] = [2, 2];
/// How many levels a cell rises at most at once.
pub(super) const STEP: u32 = 2;
/// The finest level that is made, and the coarsest (24 days).
const FINEST: u32 = 10;
const LAST: u32 = 51;
/// So many rows are read for one picture at most, on average, rather than cells.
const ROWS: f64 = 400_000.0;
/// Columns that a picture has at least (see [`super::Grid`]).
const COLUMNS: f64 = 2048.0;
/// Traces with fewer rows need no pyramid.
pub(super) const FEW: u64 = 400_000;
/// A tile has 2⁸ buckets; cells are held and written by tiles.
const TILE: u32 = 8;
/// A row of more tiles of the finest level than this is kept as a row.
const LONG_TILES: i64 = 4;
/// Fewer cells than this make no chunk before the end.
const LEAST: usize = 4 << 10;
/// Cells of a level that are held at most, at 32 bytes each.
const MOST: usize = 1 << 20;
/// Room for so many cells of a lane at first: most lanes get some more.
const SOME: usize = 16;
/// Long rows that are held.
const LONG_ROWS: usize = 1 << 16;
/// Bits of the place of a row among those that are gathered, of its lane, and the greatest number of its tile.
const PLACE: u32 = 17;
const LANE: u32 = 34;
const LATE: i64 = (1 << (64 - PLACE - LANE)) - 1;
/// Rows that are gathered before they become cells.
const GATHERED: usize = 1 << PLACE;

/// The cells of some time, by lane.
type Tile = HashMap<Lane, Vec<Cell>>;

/// The cells of a level that are held.
#[derive(Debug)]
struct Level {
    level: u32,
    tiles: BTreeMap<i64, Tile>,
    /// The tile that the last cell was added to, and its number: most go to the same one. It is not among the others.
    last: (i64, Tile),
    held: usize,
}

impl Level {
    fn new(level: u32) -> Level {
        Level { level, tiles: BTreeMap::new(), last: (0, Tile::new()), held: 0 }
    }

    fn tile(&mut self, number: i64) -> &mut Tile {
        if self.last.0 != number {
            self.put_back();
            self.last = (number, self.tiles.remove(&number).unwrap_or_default());
        }
        &mut self.last.1
    }

    /// Puts the last tile to the others.
    fn put_back(&mut self) {
        let (number, tile) = std::mem::take(&mut self.last);
        if !tile.is_empty() {
            self.tiles.insert(number, tile);
        }
    }

    fn add(&mut self, lane: Lane, mut cell: Cell) {
        loop {
            let tile = cell.bucket >> TILE;
            // Of a run, what lies in this tile; the rest goes to the next ones.
            let beyond = cell.bucket + i64::from(cell.run) - ((tile + 1) << TILE);
            let part = Cell { run: cell.run - beyond.max(0) as u32, ..cell };
            let cells = self.tile(tile).entry(lane).or_insert_with(|| Vec::with_capacity(SOME));
            self.held += usize::from(push(cells, part));
            if part.run == cell.run {
                return;
            }
            cell.bucket += i64::from(part.run);
            cell.run -= part.run;
        }
    }

    /// Adds cells of a lane, whose place is looked up once for those of the same tile.
    fn add_all(&mut self, lane: Lane, mut rest: &[Cell]) {
        while let Some(first) = rest.first() {
            let tile = first.bucket >> TILE;
            let end = (tile + 1) << TILE;
            let is_within = |cell: &&Cell| {
                cell.bucket >> TILE == tile && cell.bucket + i64::from(cell.run) <= end
            };
            let within = rest.iter().take_while(is_within).count();
            if within == 0 {
                self.add(lane, *first);
                rest = &rest[1..];
                continue;
            }
            let (these, after) = rest.split_at(within);
            rest = after;
            let cells = self.tile(tile).entry(lane).or_insert_with(|| Vec::with_capacity(SOME));
            let more = these.iter().filter(|cell| push(cells, **cell)).count();
            self.held += more;
        }
    }
}

/// Adds a cell to those of its lane; false if it became part of another one.
fn push(cells: &mut Vec<Cell>, cell: Cell) -> bool {
    // Of what a lane does in a bucket, most is like the last few cells.
    let is_same =
        |last: &Cell| last.bucket == cell.bucket && last.value == cell.value && last.run == 0;
    let near = cells.len().saturating_sub(4);
    let mut near = cells[near..].iter_mut().rev();
    let last = if cell.run == 0 { near.find(|last| is_same(last)) } else { None };
    if let Some(last) = last
        && let Some(count) = last.count.checked_add(cell.count)
        && let Some(held) = last.held.checked_add(cell.held)
    {
        (last.count, last.held) = (count, held);
        return false;
    }
    cells.push(cell);
    true
}

/// Where chunks go.
#[derive(Debug)]
enum Out {
    /// Into a file of the trace that has not its name yet.
    File(Dir, Written),
    Memory(Vec<u8>),
}

/// Makes a pyramid.
#[derive(Debug)]
pub(crate) struct Builder {
    out: Out,
    at: u64,
    chunks: Vec<Chunk>,
    /// The first rows, until it is known how dense they are.
    first: Option<Vec<Row>>,
    levels: Vec<Level>,
    /// Rows that are to become cells.
    gathered: Vec<Row>,
    long: Vec<Row>,
    /// Rows that had not ended when they were written, by what they have in common with their ends.
    open: HashMap<(Lane, i64, u64), Row>,
    /// The latest start of a row.
    newest: i64,
    rows: u64,
    /// The finest level, where it is not chosen by the rows.
    pub finest: Option<u32>,
}

impl Builder {
    /// Writes into a trace.
    pub fn create(dir: &Dir) -> Result<Builder> {
        dir.folder(file::FOLDER)?;
        let tmp = tmp();
        dir.remove_if_there(&tmp)?;
        let file = dir.root.create(&tmp).map_err(Error::io("create", &dir.at(&tmp)))?;
        Builder::new(Out::File(dir.clone(), file))
    }

    /// Writes into memory.
    pub fn in_memory() -> Result<Builder> {
        Builder::new(Out::Memory(Vec::new()))
    }

    fn new(out: Out) -> Result<Builder> {
        let mut builder = Builder {
            out,
            at: 0,
            chunks: Vec::new(),
            first: Some(Vec::new()),
            levels: Vec::new(),
            gathered: Vec::new(),
            long: Vec::new(),
            open: HashMap::new(),
            newest: i64::MIN,
            rows: 0,
            finest: None,
        };
        builder.write(file::head())?;
        Ok(builder)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len() as u64;
        match &mut self.out {
            Out::Memory(all) => all.extend_from_slice(bytes),
            Out::File(dir, file) => {
                file.write_all(bytes).map_err(Error::io("write", &dir.at(PATH)))?;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, holds: Holds, extent: (i64, i64), bytes: &[u8]) -> Result<()> {
        let (at, crc) = (self.at, crc32fast::hash(bytes));
        self.chunks.push(Chunk { holds, extent, at, bytes: bytes.len() as u64, crc });
        self.write(bytes)
    }

    /// Takes the rows of a batch, if they are of a table that is drawn.
    pub fn batch<T: Table>(&mut self, batch: &RecordBatch) -> Result<()> {
        rows::each_of::<T>(batch, |seen, key| self.see(seen, key));
        self.make_room()
    }

    /// Takes the rows of a file of a trace.
    pub fn file<T: Table>(&mut self, dir: &Dir, file: &manifest::File) -> Result<()> {
        rows::each_in::<T>(dir, file, &(Ns::MIN..Ns::MAX), |seen, key| self.see(seen, key))?;
        self.make_room()
    }

    fn make_room(&mut self) -> Result<()> {
        self.settle();
        if self.first.as_ref().is_some_and(|first| first.len() as u64 >= FEW) {
            self.begin_levels();
        }
        match self.levels.first() {
            Some(finest) if finest.held > MOST => self.flush(0, false),
            _ => Ok(()),
        }
    }

    /// Takes a row; `key` tells it from others of its lane that begin when it does.
    fn see(&mut self, seen: Seen, key: u64) {
        let row = match seen {
            Seen::Open(row) => {
                self.open.insert((row.lane, row.from, key), row);
                return;
            }
            Seen::Ended(row) => row,
        };
        if !self.open.is_empty() {
            self.open.remove(&(row.lane, row.from, key));
        }
        self.rows += 1;
        self.newest = self.newest.max(row.from);
        match &mut self.first {
            Some(first) => first.push(row),
            None => self.gather(row),
        }
    }

    fn gather(&mut self, row: Row) {
        self.gathered.push(row);
        if self.gathered.len() >= GATHERED {
            self.settle();
        }
    }

    /// Makes cells of the rows that were gathered, tile by tile and lane by lane: the cells of each lane lie elsewhere in
    /// memory, so that another lane for each row would be a cache miss for each.
    fn settle(&mut self) {
        let Some(tile) = self.levels.first().map(|finest| finest.level + TILE) else { return };
        let mut rows = std::mem::take(&mut self.gathered);
        let first = rows.iter().map(|row| row.from >> tile).min().unwrap_or(0);
        let number = |(row, place): (&Row, u64)| {
            let tile = ((row.from >> tile) - first).min(LATE) as u64;
            (tile << LANE | row.lane.0) << PLACE | place
        };
        let mut order: Vec<u64> = rows.iter().zip(0..).map(number).collect();
        order.sort_unstable();
        for number in order {
            self.add(rows[number as usize % GATHERED]);
        }
        rows.clear();
        self.gathered = rows;
    }

    fn add(&mut self, row: Row) {
        let Some(finest) = self.levels.first_mut() else { return };
        let level = finest.level;
        if (row.to >> level) - (row.from >> level) > LONG_TILES << TILE {
            self.long.push(row);
            return;
        }
        split(&row, true, level, |cell| finest.add(row.lane, cell));
    }

    /// A segment's rows have all been taken.
    pub fn end_segment(&mut self) -> Result<()> {
        if self.long.len() >= LONG_ROWS {
            self.flush_long()?;
        }
        for at in 0..self.levels.len() {
            self.flush(at, false)?;
        }
        Ok(())
    }

    /// Chooses the finest level by how dense the first rows are.
    fn begin_levels(&mut self) {
        let Some(first) = self.first.take_if(|first| !first.is_empty()) else { return };
        let from = first.iter().map(|row| row.from).min().unwrap_or(0);
        let length = self.newest.abs_diff(from).max(1) as f64;
        let bucket = ROWS / COLUMNS * length / first.len() as f64;
        let finest = self.finest.unwrap_or(bucket.log2().floor() as u32);
        let finest = finest.clamp(FINEST, LAST);
        let mut steps = STEPS.into_iter().chain(std::iter::repeat(1));
        let next = |level: &u32| steps.next().map(|step| level + step).filter(|next| *next <= LAST);
        self.levels = std::iter::successors(Some(finest), next).map(Level::new).collect();
        for row in first {
            self.gather(row);
        }
        self.settle();
    }

    fn flush_long(&mut self) -> Result<()> {
        let mut long = std::mem::take(&mut self.long);
        long.sort_unstable();
        for rows in long.chunks(LONG_ROWS) {
            let from = rows.iter().map(|row| row.from).min().unwrap_or(0);
            let to = rows.iter().map(|row| row.to).max().unwrap_or(0);
            let mut bytes = Vec::new();
            code::put_rows(&mut bytes, rows.iter().map(|row| (row, 0)));
            self.chunk(Holds::Long, (from, to), &bytes)?;
        }
        Ok(())
    }

    /// Writes the tiles of a level that no more rows are expected for, or more where too many are held, or all, and
    /// adds them to the next level.
    fn flush(&mut self, at: usize, all: bool) -> Result<()> {
        let done = (self.newest >> self.levels[at].level >> TILE).saturating_sub(LONG_TILES);
        self.levels[at].put_back();
        loop {
            let level = &mut self.levels[at];
            let crowded = level.held > MOST;
            let (mut tiles, mut cells) = (Vec::new(), 0);
            while cells < LEAST
                && let Some(entry) = level.tiles.first_entry()
                && (all || crowded || *entry.key() < done)
            {
                let (number, tile) = entry.remove_entry();
                cells += tile.values().map(Vec::len).sum::<usize>();
                tiles.push((number, tile));
            }
            if tiles.is_empty() {
                return Ok(());
            }
            if cells < LEAST && !all && !crowded {
                level.tiles.extend(tiles);
                return Ok(());
            }
            level.held -= cells;
            self.tiles(at, tiles)?;
        }
    }

    fn tiles(&mut self, at: usize, tiles: Vec<(i64, Tile)>) -> Result<()> {
        let level = self.levels[at].level;
        let mut lanes: Vec<(Lane, Vec<Cell>)> =
            tiles.into_iter().flat_map(|(_, tile)| tile).collect();
        // Tiles are in order, and those of a lane stay so.
        lanes.sort_by_key(|(lane, _)| *lane);
        lanes.dedup_by(|(lane, cells), (last, all)| {
            let is_same = lane == last;
            if is_same {
                all.append(cells);
            }
            is_same
        });
        let (mut from, mut to) = (i64::MAX, i64::MIN);
        for (_, cells) in &mut lanes {
            merge(cells, level);
            for cell in &*cells {
                from = from.min(cell.bucket);
                to = to.max(cell.bucket + i64::from(cell.run.saturating_sub(1)));
            }
        }
        let (mut bytes, mut before) = (Vec::new(), Lane(0));
        for (lane, cells) in &lanes {
            code::put_cells(&mut bytes, (*lane, before), cells, level, from);
            before = *lane;
        }
        self.chunk(Holds::Cells(level), (from, to), &bytes)?;
        let Some(next) = self.levels.get_mut(at + 1) else { return Ok(()) };
        let mut raised = Vec::new();
        for (lane, cells) in lanes {
            for cell in cells {
                raise(lane, cell, level, next.level, |cell| {
                    push(&mut raised, cell);
                });
            }
            next.add_all(lane, &raised);
            raised.clear();
        }
        Ok(())
    }

    /// Writes the rest; the pyramid is that of the files that the manifest names. Its bytes come back if it was made in
    /// memory.
    pub fn finish(mut self, manifest: &Manifest) -> Result<Vec<u8>> {
        let stamp = Stamp::of(manifest);
        if self.rows >= FEW || matches!(self.out, Out::Memory(_)) {
            self.begin_levels();
            for at in 0..self.levels.len() {
                self.flush(at, true)?;
            }
            self.flush_long()?;
        }
        let open = std::mem::take(&mut self.open);
        if !open.is_empty() {
            let mut open: Vec<(Row, u64)> =
                open.into_iter().map(|((.., key), row)| (row, key)).collect();
            open.sort_unstable();
            let mut bytes = Vec::new();
            code::put_rows(&mut bytes, open.iter().map(|(row, key)| (row, *key)));
            self.chunk(Holds::Open, (open[0].0.from, i64::MAX), &bytes)?;
        }
        let tail = file::tail(stamp, &self.chunks, self.at);
        self.write(&tail)?;
        match self.out {
            Out::Memory(bytes) => Ok(bytes),
            Out::File(dir, file) => {
                drop(file);
                let rename = dir.root.rename(&tmp(), PATH);
                rename.map_err(Error::io("rename to its place", &dir.at(PATH)))?;
                Ok(Vec::new())
            }
        }
    }
}

fn tmp() -> String {
    format!("{PATH}.tmp")
}

/// The same time in buckets of a coarser level.
pub(super) fn raise(lane: Lane, cell: Cell, from: u32, to: u32, mut see: impl FnMut(Cell)) {
    if cell.run == 0 {
        see(Cell { bucket: cell.bucket >> (to - from), ..cell });
        return;
    }
    let begin = cell.bucket << from;
    let end = (i128::from(cell.bucket) + i128::from(cell.run)) << from;
    let end = end.min(i128::from(i64::MAX)) as i64;
    split(&Row { lane, from: begin, to: end, value: cell.value }, false, to, see);
}
