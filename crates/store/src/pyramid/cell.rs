//! What rows amount to in buckets of time.
//!
//! A bucket of level `n` is 2ⁿ ns long and begins at a multiple of that, so that buckets of a finer level make up those
//! of a coarser one exactly. Everything in a cell is a sum: cells of the same bucket may be added in any order.

use gpuwhy_schema::{Shape, TrackId};

/// Rows of one track and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lane(pub u64);

/// The shapes that are drawn, by their numbers in a lane.
const SHAPES: [Shape; 3] = [Shape::State, Shape::Span, Shape::Mark];

impl Lane {
    /// States, whose values are told apart.
    pub const STATE: u64 = 0;
    /// Spans, all of which count as the same value, 0.
    pub const SPAN: u64 = 1;
    /// Marks, which take no time.
    pub const MARK: u64 = 2;

    pub fn new(track: u32, shape: u64) -> Lane {
        Lane(u64::from(track) << 2 | shape)
    }

    /// Of bytes that anybody may have written.
    pub fn checked(number: u64) -> Option<Lane> {
        (number >> 34 == 0 && number & 3 < SHAPES.len() as u64).then_some(Lane(number))
    }

    pub fn track(self) -> TrackId {
        TrackId((self.0 >> 2) as u32)
    }

    pub fn shape(self) -> Shape {
        SHAPES[(self.0 & 3) as usize]
    }

    pub fn has_values(self) -> bool {
        self.0 & 3 == Lane::STATE
    }

    pub fn takes_time(self) -> bool {
        self.0 & 3 != Lane::MARK
    }
}

/// A row, as far as it is drawn. It takes the time from `from` up to `to`, which is not earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    pub lane: Lane,
    pub from: i64,
    pub to: i64,
    pub value: i64,
}

impl Row {
    /// The part of it within `[from, to)`, and whether it begins there; `None` if it lies outside.
    pub fn clipped(mut self, from: i64, to: i64) -> Option<(Row, bool)> {
        let begins = self.from >= from;
        if self.from >= to || !begins && self.to <= from {
            return None;
        }
        self.from = self.from.max(from);
        self.to = self.to.min(to);
        Some((self, begins))
    }
}

/// What a value of a lane amounts to in a bucket; or, of a run, that it holds in all of several buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// The number of the bucket: when it begins, in its lengths.
    pub bucket: i64,
    pub value: i64,
    /// For how long the value holds within the bucket, ns; of a run, nothing.
    pub held: i64,
    /// How many rows begin in the bucket; of a run, none.
    pub count: u32,
    /// So many buckets are wholly held; 0 for a cell of one bucket that has `held` and `count`.
    pub run: u32,
}

/// Cuts a row into cells of a level: its first bucket, those that it holds wholly, its last one. It must not be longer
/// than 2³¹ buckets.
pub(super) fn split(row: &Row, begins: bool, level: u32, mut see: impl FnMut(Cell)) {
    let (first, last) = (row.from >> level, row.to >> level);
    let one = |bucket, held, begins| Cell {
        bucket,
        value: row.value,
        held,
        count: u32::from(begins),
        run: 0,
    };
    if first == last {
        see(one(first, row.to - row.from, begins));
        return;
    }
    let mut whole = first;
    if begins || row.from > first << level {
        // No further than the row's end, so that it is no overflow.
        see(one(first, ((first + 1) << level) - row.from, begins));
        whole += 1;
    }
    if last > whole {
        let run = (last - whole) as u32;
        see(Cell { bucket: whole, value: row.value, held: 0, count: 0, run });
    }
    if row.to > last << level {
        see(one(last, row.to - (last << level), false));
    }
}

/// Puts the cells of a lane in order, adds up those of the same bucket and value, and makes runs of buckets that are
/// wholly held.
pub(super) fn merge(cells: &mut Vec<Cell>, level: u32) {
    let key = |cell: &Cell| (cell.bucket, cell.run > 0, cell.value);
    // The bucket alone says the order of nearly all.
    let follows =
        |a: &Cell, b: &Cell| a.bucket < b.bucket || a.bucket == b.bucket && key(a) <= key(b);
    if !cells.is_sorted_by(follows) {
        cells.sort_unstable_by_key(key);
    }
    let width = 1i64 << level;
    // The last of those that are kept may still grow.
    let mut kept = 0;
    for at in 0..cells.len() {
        let cell = cells[at];
        if let Some(last) = cells[..kept].last_mut()
            && (last.bucket, last.value, last.run) == (cell.bucket, cell.value, 0)
            && cell.run == 0
            && let Some(count) = last.count.checked_add(cell.count)
            && let Some(held) = last.held.checked_add(cell.held)
        {
            (last.count, last.held) = (count, held);
            continue;
        }
        kept = end(cells, kept, width);
        cells[kept] = cell;
        kept += 1;
    }
    kept = end(cells, kept, width);
    cells.truncate(kept);
}

/// Makes a run of the last of so many cells, to which nothing is added any more, if it is wholly held; and one with the run
/// before it if that goes on. How many cells that leaves.
fn end(cells: &mut [Cell], kept: usize, width: i64) -> usize {
    let Some((last, before)) = cells[..kept].split_last_mut() else { return kept };
    if (last.run, last.count, last.held) == (0, 0, width) {
        (last.run, last.held) = (1, 0);
    }
    if let Some(before) = before.last_mut()
        && before.run > 0
        && last.run > 0
        && before.value == last.value
        && before.bucket + i64::from(before.run) == last.bucket
        && let Some(run) = before.run.checked_add(last.run)
    {
        before.run = run;
        return kept - 1;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cells of rows of the value 7 on level 3 (buckets of 8 ns), as `bucket:held/count` or `bucket..bucket`.
    fn cells(rows: &[(i64, i64)]) -> String {
        let mut cells = Vec::new();
        for (from, to) in rows {
            let row = Row { lane: Lane::new(1, Lane::SPAN), from: *from, to: *to, value: 7 };
            split(&row, true, 3, |cell| cells.push(cell));
        }
        merge(&mut cells, 3);
        let words = cells.iter().map(|cell| match cell.run {
            0 => format!("{}:{}/{}", cell.bucket, cell.held, cell.count),
            run => format!("{}..{}", cell.bucket, cell.bucket + i64::from(run)),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_row_is_cut_where_buckets_begin() {
        assert_eq!(cells(&[(9, 12)]), "1:3/1");
        assert_eq!(cells(&[(8, 8)]), "1:0/1");
        assert_eq!(cells(&[(8, 16)]), "1:8/1");
        assert_eq!(cells(&[(15, 17)]), "1:1/1 2:1/0");
        assert_eq!(cells(&[(4, 33)]), "0:4/1 1..4 4:1/0");
        assert_eq!(cells(&[(-9, 8)]), "-2:1/1 -1..1");
        assert_eq!(cells(&[(i64::MIN, i64::MIN + 20)]).matches(' ').count(), 2);
        assert_eq!(cells(&[(i64::MAX - 20, i64::MAX)]).matches(' ').count(), 2);
    }

    #[test]
    fn cells_of_a_bucket_are_added_and_those_that_are_whole_become_runs() {
        assert_eq!(cells(&[(1, 3), (5, 9), (4, 5)]), "0:6/3 1:1/0");
        // Two rows that end and begin within a bucket hold all of it, and begin in it.
        assert_eq!(cells(&[(0, 20), (20, 48)]), "0:8/1 1..2 2:8/1 3..6");
        // One begins where a bucket does, so that there are two runs.
        assert_eq!(cells(&[(7, 24), (24, 40)]), "0:1/1 1..3 3:8/1 4..5");
        // They overlap: a bucket is held for longer than it lasts.
        assert_eq!(cells(&[(0, 8), (0, 8)]), "0:16/2");
    }

    #[test]
    fn a_row_is_clipped_and_one_that_began_before_does_not_begin() {
        let row = Row { lane: Lane::new(1, Lane::SPAN), from: 10, to: 20, value: 0 };
        let at = |from, to| row.clipped(from, to).map(|(row, begins)| (row.from, row.to, begins));
        assert_eq!(at(0, 100), Some((10, 20, true)));
        assert_eq!(at(10, 11), Some((10, 11, true)));
        assert_eq!(at(15, 16), Some((15, 16, false)));
        assert_eq!((at(20, 30), at(0, 10)), (None, None));
        let point = Row { to: 10, ..row };
        assert!(point.clipped(10, 11).is_some() && point.clipped(0, 10).is_none());
        assert!(point.clipped(11, 12).is_none());
    }
}
