//! Sorts more records than fit into memory.
//!
//! Records gather in memory up to a limit. Beyond it they are sorted, written to an unnamed temporary
//! file (below `TMPDIR`), and the sorted runs are merged. What fits into memory never touches a disk.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Records that are held in memory: 12 MiB of three words each.
const RUN: usize = 1 << 19;
/// Bytes of all runs that are held while they are merged.
const MERGE: usize = 16 << 20;
/// Bytes of one run that are read at once.
const READ: std::ops::RangeInclusive<usize> = 4 << 10..=256 << 10;

/// Takes records of `W` words in any order.
#[derive(Debug)]
pub(crate) struct Sorter<const W: usize> {
    most: usize,
    run: Vec<[i64; W]>,
    file: Option<File>,
    /// The records of each run in the file: the first, and the one after the last.
    runs: Vec<(u64, u64)>,
}

impl<const W: usize> Default for Sorter<W> {
    fn default() -> Sorter<W> {
        Sorter::with_run(RUN)
    }
}

impl<const W: usize> Sorter<W> {
    /// Holds `most` records in memory.
    pub fn with_run(most: usize) -> Sorter<W> {
        Sorter { most, run: Vec::new(), file: None, runs: Vec::new() }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn push(&mut self, record: [i64; W]) -> io::Result<()> {
        if self.run.len() >= self.most {
            self.spill()?;
        }
        self.run.push(record);
        Ok(())
    }

    fn spill(&mut self) -> io::Result<()> {
        self.run.sort_unstable();
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile()?),
        };
        let from = self.runs.last().map_or(0, |run| run.1);
        let mut at = from;
        let mut bytes = Vec::new();
        for part in self.run.chunks((*READ.end() / (8 * W)).max(1)) {
            bytes.clear();
            bytes.extend(part.iter().flatten().flat_map(|word| word.to_ne_bytes()));
            file.write_all_at(&bytes, at * 8 * W as u64)?;
            at += part.len() as u64;
        }
        self.runs.push((from, at));
        self.run.clear();
        Ok(())
    }

    /// All records in order.
    ///
    /// # Errors
    /// The temporary file cannot be written or read.
    pub fn finish(mut self) -> io::Result<Sorted<W>> {
        if self.file.is_some() {
            self.spill()?;
            self.run = Vec::new();
        } else {
            self.run.sort_unstable();
        }
        let bytes = (MERGE / self.runs.len().max(1)).clamp(*READ.start(), *READ.end());
        let records = (bytes / (8 * W)).max(1);
        let mut sorted = Sorted {
            file: self.file,
            runs: Vec::new(),
            heap: BinaryHeap::new(),
            memory: self.run.into_iter(),
        };
        for (number, (next, end)) in self.runs.into_iter().enumerate() {
            sorted.runs.push(Run { next, end, records, held: Vec::new() });
            sorted.advance(number)?;
        }
        Ok(sorted)
    }
}

/// Records in order.
#[derive(Debug)]
pub(crate) struct Sorted<const W: usize> {
    file: Option<File>,
    runs: Vec<Run<W>>,
    /// The next record of each run.
    heap: BinaryHeap<Reverse<([i64; W], usize)>>,
    memory: std::vec::IntoIter<[i64; W]>,
}

/// A sorted run in the file.
#[derive(Debug)]
struct Run<const W: usize> {
    /// The next record to read from the file, and the one after the last.
    next: u64,
    end: u64,
    /// How many are read at once.
    records: usize,
    /// Those that have been read, the next one last.
    held: Vec<[i64; W]>,
}

impl<const W: usize> Sorted<W> {
    /// The next record.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub fn next(&mut self) -> io::Result<Option<[i64; W]>> {
        let Some(Reverse((record, run))) = self.heap.pop() else {
            return Ok(self.memory.next());
        };
        self.advance(run)?;
        Ok(Some(record))
    }

    fn advance(&mut self, number: usize) -> io::Result<()> {
        let run = &mut self.runs[number];
        if run.held.is_empty()
            && run.next < run.end
            && let Some(file) = &self.file
        {
            let count = run.records.min(usize::try_from(run.end - run.next).unwrap_or(usize::MAX));
            let mut bytes = vec![0; count * 8 * W];
            file.read_exact_at(&mut bytes, run.next * 8 * W as u64)?;
            let word = |bytes: &[u8]| {
                let mut eight = [0; 8];
                eight.copy_from_slice(bytes);
                i64::from_ne_bytes(eight)
            };
            let record = |bytes: &[u8]| std::array::from_fn(|i| word(&bytes[8 * i..8 * i + 8]));
            run.held.extend(bytes.chunks_exact(8 * W).rev().map(record));
            run.next += count as u64;
        }
        if let Some(record) = run.held.pop() {
            self.heap.push(Reverse((record, number)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(run: usize, records: &[[i64; 2]]) -> Vec<[i64; 2]> {
        let mut sorter = Sorter::with_run(run);
        for record in records {
            sorter.push(*record).unwrap();
        }
        let mut sorted = sorter.finish().unwrap();
        std::iter::from_fn(|| sorted.next().unwrap()).collect()
    }

    #[test]
    fn records_come_in_order_whether_they_fit_into_memory_or_not() {
        let mut state = 7i64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 40
        };
        let records: Vec<[i64; 2]> = (0..10_000).map(|_| [random() % 100, random()]).collect();
        let mut expected = records.clone();
        expected.sort_unstable();
        for run in [1 << 20, 10_000, 9_999, 700, 13] {
            assert_eq!(sorted(run, &records), expected, "{run}");
        }
        assert!(sorted(10, &[]).is_empty());
        assert_eq!(sorted(1, &[[i64::MAX, 0], [i64::MIN, 1]]), [[i64::MIN, 1], [i64::MAX, 0]]);
    }

    #[test]
    fn memory_holds_one_run() {
        let mut sorter: Sorter<1> = Sorter::with_run(100);
        for i in 0..100_000 {
            sorter.push([-i]).unwrap();
            assert!(sorter.run.len() <= 100);
        }
        let mut sorted = sorter.finish().unwrap();
        for i in (0..100_000).rev() {
            assert_eq!(sorted.next().unwrap(), Some([-i]));
        }
        assert_eq!(sorted.next().unwrap(), None);
    }
}
