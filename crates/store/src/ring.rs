//! Keeps the recent past in memory, and writes a stretch of it out when it turns out to matter.
//!
//! The live path puts every row in here. When a finding fires, [`Ring::retain`] writes the rows
//! around it to a trace, with the details, links and lanes that belong to them. A row is written
//! once, however many findings it lies near to.

use std::collections::VecDeque;
use std::ops::Range;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Counter, EachTable, Gather, Mark, Ns, Rows, State, Table, TrackId};

use crate::ids::IdSet;
use crate::latest::Latest;
use crate::read::{overlaps, twin_key};
use crate::select::{Links, Selection};
use crate::{Result, Writer};

/// How much of the past a ring holds: whichever limit is reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Bytes of rows. Names are shared between rows and not counted; lanes are not either.
    pub bytes: usize,
    /// How long after its end a row is kept.
    pub duration: Ns,
}

/// Rows that arrived together.
#[derive(Debug)]
struct Chunk {
    number: u64,
    rows: Rows,
    bytes: usize,
    /// From the first start to the last end; rows without an end count by their start.
    start: Ns,
    end: Ns,
    /// Whether there are rows without an end.
    open: bool,
}

/// A stretch that was written out, as far as rows had arrived by then.
#[derive(Clone, Debug)]
struct Retained {
    range: Range<Ns>,
    /// The last chunk that had arrived.
    up_to: u64,
}

/// Chunks below this grow, so that a slow source does not fill the ring with small ones; but not
/// beyond a sixteenth of the time that is kept, because a chunk goes as a whole.
const CHUNK_BYTES: usize = 256 << 10;

/// The recent past, in bounded memory.
#[derive(Debug)]
pub struct Ring {
    keep: Keep,
    lanes: Latest,
    chunks: VecDeque<Chunk>,
    next: u64,
    bytes: usize,
    /// The emptied tables of a chunk that was evicted, for the next one: they have grown to what a chunk needs.
    spare: Rows,
    newest: Ns,
    evicted: u64,
    /// States without an end that were evicted and may hold still.
    holding: HashMap<TrackId, State>,
    /// The latest start of a state on each track, and whether that state has ended.
    last_state: HashMap<TrackId, (Ns, bool)>,
    retained: Vec<Retained>,
    /// The spans, marks and findings that were written out.
    written: IdSet,
}

impl Ring {
    /// An empty ring.
    pub fn new(keep: Keep) -> Ring {
        Ring {
            keep,
            lanes: Latest::default(),
            chunks: VecDeque::new(),
            next: 0,
            bytes: 0,
            spare: Rows::default(),
            newest: Ns::MIN,
            evicted: 0,
            holding: HashMap::new(),
            last_state: HashMap::new(),
            retained: Vec::new(),
            written: IdSet::default(),
        }
    }

    /// Takes all of `rows` in, and lets go of what is older or more than the ring keeps.
    pub fn push(&mut self, rows: &mut Rows) {
        self.lanes.take(rows, self.newest);
        let mut measure = Measure { bytes: 0, start: Ns::MAX, end: Ns::MIN, open: false };
        let Ok(()) = rows.each(&mut measure);
        if measure.bytes == 0 {
            return;
        }
        for state in &rows.state {
            if !self.holding.is_empty() {
                self.holding.remove(&state.track);
            }
            let last = self.last_state.entry(state.track).or_insert((Ns::MIN, false));
            *last = (*last).max((state.ts, state.dur.is_some()));
        }
        self.bytes += measure.bytes;
        self.newest = self.newest.max(measure.end);
        // A chunk that a retention has seen must not grow: its number says what was written.
        let seen = self.retained.last().map_or(0, |r| r.up_to + 1);
        match self.chunks.back_mut() {
            Some(last)
                if last.bytes < CHUNK_BYTES
                    && last.number >= seen
                    && last.end.saturating_sub(last.start).0 < self.keep.duration.0 / 16 =>
            {
                last.rows.append(rows);
                last.bytes += measure.bytes;
                last.start = last.start.min(measure.start);
                last.end = last.end.max(measure.end);
                last.open |= measure.open;
            }
            _ => {
                let mut held = std::mem::take(&mut self.spare);
                held.append(rows);
                self.chunks.push_back(Chunk {
                    number: self.next,
                    rows: held,
                    bytes: measure.bytes,
                    start: measure.start,
                    end: measure.end,
                    open: measure.open,
                });
                self.next += 1;
            }
        }
        self.evict();
    }

    fn evict(&mut self) {
        let since = self.since();
        while let Some(chunk) = self.chunks.front() {
            if self.bytes <= self.keep.bytes && chunk.end >= since {
                break;
            }
            let Some(mut chunk) = self.chunks.pop_front() else { break };
            self.bytes -= chunk.bytes;
            self.evicted += chunk.rows.len() as u64;
            // Most chunks have none, and what is old is no longer in the CPU's caches.
            if chunk.open {
                for state in chunk.rows.state.drain(..).filter(|state| state.dur.is_none()) {
                    if self.last_state.get(&state.track) == Some(&(state.ts, false)) {
                        self.holding.insert(state.track, state);
                    }
                }
            }
            chunk.rows.clear();
            // One that was much larger than others would hold its memory for good.
            self.spare = if chunk.bytes <= 2 * CHUNK_BYTES { chunk.rows } else { Rows::default() };
        }
        let oldest = self.oldest();
        self.retained.retain(|r| r.range.end > oldest);
        if self.lanes.prune_if_grown(since.min(oldest)) {
            let known = |track: &TrackId| self.lanes.has_track(*track);
            self.holding.retain(|track, _| known(track));
            self.last_state.retain(|track, _| known(track));
        }
    }

    /// Holds so much from now on.
    pub fn set_keep(&mut self, keep: Keep) {
        self.keep = keep;
        self.evict();
    }

    fn since(&self) -> Ns {
        self.newest.saturating_sub(self.keep.duration)
    }

    fn oldest(&self) -> Ns {
        self.chunks.iter().map(|c| c.start).min().unwrap_or(self.newest)
    }

    /// Bytes of the rows that are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rows that are held.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|c| c.rows.len()).sum()
    }

    /// Whether no rows are held.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Rows that were let go; most of them were of no interest to anybody.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// From the first start to the last end that is held.
    pub fn extent(&self) -> Range<Ns> {
        self.oldest()..self.newest
    }

    /// What is held of `range`: the rows that overlap it with what hangs on them, sorted by start,
    /// and all lanes.
    pub fn rows(&self, range: Range<Ns>) -> Rows {
        self.select(range, |_, _, _| true, Links::Either)
    }

    /// Writes what is held of `range` and was not written before, and the lanes, to `writer`;
    /// says how many rows that were.
    ///
    /// Rows of the range that arrive later are not written: call it again when they have.
    pub fn retain(&mut self, range: Range<Ns>, writer: &mut Writer) -> Result<usize> {
        let fresh = |chunk: u64, start, end| {
            !self.retained.iter().any(|r| chunk <= r.up_to && overlaps(start, end, &r.range))
        };
        let mut rows = self.select(range.clone(), fresh, Links::Both);
        let count = rows.len();
        for span in &mut rows.span {
            self.written.insert(span.id);
        }
        for id in rows.mark.iter().map(|m| m.id).chain(rows.finding.iter().map(|f| f.id)) {
            self.written.insert(id);
        }
        for span in &mut rows.span {
            // A parent that ends later than the ring reaches back, or has not arrived yet, is not
            // there to be referred to.
            span.parent = span.parent.filter(|p| self.written.contains(*p));
        }
        // The writer has them even where it cannot write them now; a second time they would be twins.
        let appended = writer.append(&mut rows);
        if let Some(last) = self.next.checked_sub(1) {
            self.retained.push(Retained { range, up_to: last });
        }
        appended.map(|()| count)
    }

    /// The entities, tracks, sources and clocks.
    pub fn lanes(&self) -> Rows {
        self.lanes.rows_for(&Rows::default())
    }

    /// The counters of `range` for which `on` holds, as they arrived.
    pub fn counters(&self, range: Range<Ns>, on: impl Fn(&Counter) -> bool) -> Vec<Counter> {
        let held = self.near(&range).flat_map(|chunk| &chunk.rows.counter);
        held.filter(|row| overlaps(row.ts, row.ts, &range) && on(row)).cloned().collect()
    }

    /// The marks of `range` for which `on` holds, as they arrived.
    pub fn marks(&self, range: Range<Ns>, on: impl Fn(&Mark) -> bool) -> Vec<Mark> {
        let held = self.near(&range).flat_map(|chunk| &chunk.rows.mark);
        held.filter(|row| overlaps(row.ts, row.ts, &range) && on(row)).cloned().collect()
    }

    /// About how many rows of `range` are held: of a chunk that reaches beyond it, its share of time.
    pub fn about(&self, range: &Range<Ns>) -> usize {
        let share = |chunk: &Chunk| {
            let long = (chunk.end - chunk.start).0.max(1) as f64;
            let within = Ns::overlap(chunk.start, chunk.end, range.start, range.end).0 as f64;
            (within / long * chunk.rows.len() as f64) as usize
        };
        self.chunks.iter().map(share).sum()
    }

    /// The chunks in which rows of `range` may be.
    fn near(&self, range: &Range<Ns>) -> impl Iterator<Item = &Chunk> {
        let (range, point) = (range.clone(), range.start);
        self.chunks.iter().filter(move |chunk| {
            let end = if chunk.open { Ns::MAX } else { chunk.end };
            overlaps(chunk.start, end, &range) || chunk.end == point
        })
    }

    fn select(&self, range: Range<Ns>, wanted: impl Fn(u64, Ns, Ns) -> bool, links: Links) -> Rows {
        let holding = self.holding.values().cloned().collect();
        let holding = Rows { state: holding, ..Rows::default() };
        let near: Vec<&Chunk> = self.near(&range).collect();
        let selection = Selection::new(range, links);
        let numbers = near.iter().map(|chunk| chunk.number).collect();
        let parts = near.iter().map(|chunk| &chunk.rows).chain([&holding]);
        let mut rows = Rows::gather(parts, &mut Choose { selection, numbers, wanted });
        let mut lanes = self.lanes.rows_for(&rows);
        rows.append(&mut lanes);
        rows
    }
}

/// Measures rows.
struct Measure {
    bytes: usize,
    start: Ns,
    end: Ns,
    open: bool,
}

impl EachTable for Measure {
    type Error = std::convert::Infallible;

    fn table<T: Table>(&mut self, rows: &mut Vec<T>) -> Result<(), Self::Error> {
        self.bytes += rows.len() * size_of::<T>();
        for (start, end) in rows.iter().filter_map(|r| r.start().zip(r.end())) {
            self.start = self.start.min(start);
            self.end = self.end.max(if end == Ns::MAX { start } else { end });
            self.open |= end == Ns::MAX;
        }
        Ok(())
    }
}

/// Chooses what belongs to a selection, in order, and of twins the one that has ended.
struct Choose<W> {
    selection: Selection,
    /// The chunks' numbers; what comes after them is wanted in any case.
    numbers: Vec<u64>,
    /// Which rows of a chunk are wanted; what hangs on others is decided with these.
    wanted: W,
}

impl<W: Fn(u64, Ns, Ns) -> bool> Choose<W> {
    fn is_wanted<T: Table>(&self, list: usize, row: &T) -> bool {
        let Some(&chunk) = self.numbers.get(list) else { return true };
        match (row.start(), row.end()) {
            (Some(start), Some(end)) if !Selection::hangs_on_others::<T>() => {
                (self.wanted)(chunk, start, end)
            }
            _ => true,
        }
    }
}

impl<W: Fn(u64, Ns, Ns) -> bool> Gather for Choose<W> {
    fn table<'a, T: Table>(&mut self, lists: impl Iterator<Item = &'a [T]> + Clone) -> Vec<T> {
        let of_all =
            || lists.clone().enumerate().flat_map(|(n, list)| list.iter().map(move |row| (n, row)));
        let is_open = |row: &T| row.end() == Some(Ns::MAX);
        let key = |row: &T| (row.start(), twin_key(row));
        // Those that have not ended, and whether a twin of theirs has.
        let mut open: HashMap<_, bool> = HashMap::new();
        if crate::read::has_twins::<T>() {
            let rows = of_all().filter(|(list, row)| is_open(row) && self.is_wanted(*list, *row));
            open.extend(rows.map(|(_, row)| (key(row), false)));
        }
        if !open.is_empty() {
            for (list, row) in of_all().filter(|(_, row)| !is_open(row)) {
                if let Some(ended) = open.get_mut(&key(row)) {
                    *ended |= self.is_wanted(list, row);
                }
            }
        }
        // References are sorted, and rows are copied once, into their places.
        let most = lists.clone().map(<[T]>::len).sum();
        let mut chosen: Vec<(Ns, std::cmp::Reverse<Ns>, &'a T)> = Vec::with_capacity(most);
        for (list, row) in of_all() {
            // Of several that have not ended the first is taken.
            let is_twin = is_open(row) && open.get(&key(row)) == Some(&true);
            if is_twin || !self.is_wanted(list, row) || !self.selection.take(row) {
                continue;
            }
            if let Some(taken) = open.get_mut(&key(row)).filter(|_| is_open(row)) {
                *taken = true;
            }
            let end = std::cmp::Reverse(row.end().unwrap_or(Ns::MAX));
            chosen.push((row.start().unwrap_or(Ns::MIN), end, row));
        }
        if T::START.is_some() {
            chosen.sort_by_key(|(start, end, _)| (*start, *end));
        }
        chosen.into_iter().map(|(.., row)| row.clone()).collect()
    }
}
