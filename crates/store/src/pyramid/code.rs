//! Cells and rows as bytes.
//!
//! # How
//! A chunk of cells has one lane after the other: the lane's number less that of the one before, how many cells it
//! has, and these in the order of their buckets. A cell begins with the distance to the bucket of the one before and,
//! in the three lowest bits, with what it is. All numbers have seven bits a byte, the lowest first (LEB128). Where the
//! values of a bucket hold all of it, as they do where a lane always has one, the last of them does not say for how
//! long: it has the rest.

use super::cell::{Cell, Lane, Row};

/// A run of buckets; their number follows.
const RUN: u64 = 0;
/// For some time, and this many rows begin: none, one, or as many as follow.
const TIMES: [u64; 3] = [1, 2, 3];
/// The same for the rest of the bucket.
const RESTS: [u64; 3] = [4, 5, 6];
/// Bits of a cell's first number that say what it is.
const KIND_BITS: u32 = 3;

pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Bytes that are read one number after the other.
#[derive(Debug)]
pub(super) struct Bytes<'a> {
    pub rest: &'a [u8],
}

impl Bytes<'_> {
    // Each place where a number is read has its own habit of how long it is: inlined, a branch is foretold for each by itself.
    #[inline(always)]
    pub fn number(&mut self) -> Option<u64> {
        let (&first, rest) = self.rest.split_first()?;
        if first < 0x80 {
            self.rest = rest;
            return Some(u64::from(first));
        }
        match self.rest.first_chunk() {
            Some(word) => self.of_word(u64::from_le_bytes(*word)),
            None => self.byte_by_byte(),
        }
    }

    /// A number of up to eight bytes, all at once: most have three, in no order that a branch could be foretold by.
    #[inline(always)]
    fn of_word(&mut self, word: u64) -> Option<u64> {
        let ends = !word & 0x8080_8080_8080_8080;
        if ends == 0 {
            return self.byte_by_byte();
        }
        let bits = ends.trailing_zeros() + 1;
        let word = word & u64::MAX >> (64 - bits) & 0x7f7f_7f7f_7f7f_7f7f;
        // Seven bits a byte become fourteen of two, twenty-eight of four, fifty-six.
        let word = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
        let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
        let word = word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4;
        self.rest = &self.rest[bits as usize / 8..];
        Some(word)
    }

    #[cold]
    fn byte_by_byte(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for (at, &byte) in self.rest.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            if at == 9 && bits > 1 {
                return None;
            }
            number |= bits << (7 * at);
            if byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Some(number);
            }
        }
        None
    }

    #[inline(always)]
    fn count(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    #[inline(always)]
    fn signed(&mut self) -> Option<i64> {
        self.number().map(unzigzag)
    }
}

/// Adds the cells of a lane, in order and merged, to a chunk whose first bucket is `from`.
pub(super) fn put_cells(
    out: &mut Vec<u8>,
    (lane, before): (Lane, Lane),
    cells: &[Cell],
    level: u32,
    from: i64,
) {
    put(out, lane.0 - before.0);
    put(out, cells.len() as u64);
    let mut last = from;
    for of_bucket in cells.chunk_by(|a, b| a.bucket == b.bucket) {
        let rest = match of_bucket {
            // Most buckets have one cell.
            [cell] => (cell.run == 0 && cell.held == 1 << level).then_some(0),
            _ => {
                let sum = of_bucket.iter().try_fold(0i64, |sum, cell| sum.checked_add(cell.held));
                let rest = of_bucket.iter().rposition(|cell| cell.run == 0);
                rest.filter(|_| sum == Some(1 << level))
            }
        };
        for (at, cell) in of_bucket.iter().enumerate() {
            let begins = (cell.count as usize).min(2);
            let kind = match (cell.run, Some(at) == rest) {
                (0, false) => TIMES[begins],
                (0, true) => RESTS[begins],
                _ => RUN,
            };
            put(out, ((cell.bucket - last) as u64) << KIND_BITS | kind);
            last = cell.bucket;
            if lane.has_values() {
                put(out, zigzag(cell.value));
            }
            if kind == RUN {
                put(out, u64::from(cell.run));
                continue;
            }
            if begins == 2 {
                put(out, u64::from(cell.count));
            }
            if lane.takes_time() && kind < RESTS[0] {
                put(out, cell.held as u64);
            }
        }
    }
}

/// Hands out the cells of a chunk whose buckets are `from` to `to`, both included. `None` if it is garbled, after some
/// of them may have been handed out.
pub(super) fn cells(
    bytes: &[u8],
    level: u32,
    (from, to): (i64, i64),
    mut see: impl FnMut(Lane, Cell),
) -> Option<()> {
    let mut bytes = Bytes { rest: bytes };
    let mut number = 0u64;
    while !bytes.rest.is_empty() {
        number = number.checked_add(bytes.number()?)?;
        let lane = Lane::checked(number)?;
        let count = bytes.number()?;
        let (has_values, takes_time) = (lane.has_values(), lane.takes_time());
        let (mut bucket, mut left) = (from, 1i64 << level);
        for _ in 0..count {
            let head = bytes.number()?;
            let (kind, distance) = (head & 7, head >> KIND_BITS);
            if distance > 0 {
                bucket = bucket.checked_add(i64::try_from(distance).ok()?)?;
                left = 1 << level;
            }
            let value = if has_values { bytes.signed()? } else { 0 };
            let mut cell = Cell { bucket, value, held: 0, count: 0, run: 0 };
            if kind == RUN {
                cell.run = bytes.count().filter(|run| *run > 0)?;
            } else {
                cell.count = match kind {
                    1 | 4 => 0,
                    2 | 5 => 1,
                    3 | 6 => bytes.count()?,
                    _ => return None,
                };
                if kind >= RESTS[0] {
                    cell.held = left;
                } else if takes_time {
                    cell.held = i64::try_from(bytes.number()?).ok()?;
                    left = left.saturating_sub(cell.held).max(0);
                }
            }
            let last = bucket.checked_add(i64::from(cell.run.saturating_sub(1)))?;
            if last > to {
                return None;
            }
            see(lane, cell);
        }
    }
    Some(())
}

/// Adds rows to bytes, each with a number that tells it from others.
pub(super) fn put_rows<'a>(out: &mut Vec<u8>, rows: impl Iterator<Item = (&'a Row, u64)>) {
    for (row, key) in rows {
        put(out, row.lane.0);
        put(out, zigzag(row.from));
        put(out, row.to.abs_diff(row.from));
        put(out, zigzag(row.value));
        put(out, key);
    }
}

/// Hands out rows; `None` if the bytes are garbled.
pub(super) fn rows(bytes: &[u8], mut see: impl FnMut(Row, u64)) -> Option<()> {
    let mut bytes = Bytes { rest: bytes };
    while !bytes.rest.is_empty() {
        let lane = Lane::checked(bytes.number()?)?;
        let from = bytes.signed()?;
        let to = from.checked_add_unsigned(bytes.number()?)?;
        let value = bytes.signed()?;
        see(Row { lane, from, to, value }, bytes.number()?);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_lengths_are_read_wherever_they_end() {
        for bits in 0..=64u32 {
            let number = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
            for number in [number, number ^ number >> 3, number & 0xaaaa_5555_aaaa_5555] {
                let mut bytes = Vec::new();
                put(&mut bytes, number);
                let length = bytes.len();
                for more in [0, 1, 20] {
                    bytes.resize(length + more, 0xff);
                    let mut read = Bytes { rest: &bytes };
                    assert_eq!(
                        (read.number(), read.rest.len()),
                        (Some(number), more),
                        "{number:#x}"
                    );
                    assert_eq!(Bytes { rest: &bytes[..length - 1] }.number(), None, "{number:#x}");
                }
            }
        }
        assert_eq!(Bytes { rest: &[0xff; 20] }.number(), None);
    }

    #[test]
    fn what_was_put_into_a_chunk_comes_out_of_it() {
        let cell = |bucket, value, held, count, run| Cell { bucket, value, held, count, run };
        let state = [
            cell(-5, 1, 3, 0, 0),
            cell(-5, i64::MIN, 5, 70_000, 0),
            cell(-4, 1, 0, 0, 3),
            cell(-1, 2, 7, 1, 0),
            cell(-1, 2, 0, 0, 1),
            // All of a bucket, and a state without length beside it.
            cell(9, 4, 0, 1, 0),
            cell(9, 5, 8, 1, 0),
        ];
        let span = [cell(0, 0, i64::MAX, 2, 0), cell(0, 0, 0, 0, u32::MAX >> 1)];
        let mark = [cell(1, 0, 0, 1, 0), cell(2, 0, 0, 9, 0)];
        let lanes: [(Lane, &[Cell]); 3] = [
            (Lane::new(3, Lane::STATE), &state),
            (Lane::new(3, Lane::SPAN), &span),
            (Lane::new(u32::MAX, Lane::MARK), &mark),
        ];
        let (mut bytes, mut before) = (Vec::new(), Lane(0));
        for (lane, cells) in lanes {
            put_cells(&mut bytes, (lane, before), cells, 3, -5);
            before = lane;
        }
        let mut out = Vec::new();
        cells(&bytes, 3, (-5, i64::from(u32::MAX >> 1)), |lane, cell| out.push((lane, cell)))
            .unwrap();
        let all: Vec<(Lane, Cell)> = lanes
            .iter()
            .flat_map(|(lane, cells)| cells.iter().map(|cell| (*lane, *cell)))
            .collect();
        assert_eq!(out, all);
        // A run that leads out of what the index says is not believed, nor is an end within a number.
        assert_eq!(cells(&bytes, 3, (-5, 100), |_, _| {}), None);
        for length in 1..bytes.len() {
            let cut = cells(&bytes[..length], 3, (-5, i64::MAX), |_, _| {});
            let ends_behind_a_lane = cut.is_some();
            assert!(!ends_behind_a_lane || length > 10, "{length}");
        }
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let row = |from, to| Row { lane: Lane::new(9, Lane::SPAN), from, to, value: -3 };
        let all = [row(i64::MIN, i64::MAX), row(0, 0), row(-7, 12)];
        let mut bytes = Vec::new();
        put_rows(&mut bytes, all.iter().zip(5..));
        let mut out = Vec::new();
        rows(&bytes, |row, key| out.push((row, key))).unwrap();
        assert_eq!(out, all.into_iter().zip(5..).collect::<Vec<_>>());
        assert_eq!(rows(&bytes[..bytes.len() - 1], |_, _| {}), None);
    }
}
