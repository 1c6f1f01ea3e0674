//! What one device did in one interval, from its work in any order: the same as a
//! [`Sweep`](crate::sweep::Sweep) over sorted work, for engines that hand out rows as they come.
//!
//! A sweep needs the work of a device in the order of its begin. A query engine hashes rows over
//! partitions and processes and merges what these come to, so that there is no order. What merges
//! is the set of times in which a kernel ran and those in which a copy ran, by kind: unions of
//! half-open intervals. Price: one pair of times for each gap between kernels, some five bytes as it
//! travels.

use std::ops::Range;

use gpuwhy_schema::Ns;

use crate::bytes::{Malformed, Partial, Reader, put, put_signed};
use crate::intervals::{subtract, union};
use crate::sweep::{ALL_KINDS, Interval, KINDS, Work, is_copy, kind_index};

/// Times in which something ran.
#[derive(Clone, Debug, Default)]
struct Cover {
    /// Sorted and apart up to `tidy`, and as they came from there on.
    pieces: Vec<(Ns, Ns)>,
    tidy: usize,
}

impl Cover {
    fn add(&mut self, from: i64, to: i64) {
        self.pieces.push((Ns(from), Ns(to)));
        if self.pieces.len() > 2 * self.tidy + 64 {
            self.tidy_up();
        }
    }

    fn tidy_up(&mut self) {
        self.pieces = union(std::mem::take(&mut self.pieces));
        self.tidy = self.pieces.len();
    }

    fn united(&self) -> Vec<(Ns, Ns)> {
        union(self.pieces.clone())
    }
}

/// One device in one interval, and what is needed to go on adding to it.
#[derive(Clone, Debug)]
pub struct Tally {
    window: Range<i64>,
    /// What began in the window.
    begun: Interval,
    kernels: Cover,
    copies: [Cover; KINDS],
}

impl Tally {
    /// Nothing yet, of the interval `window`.
    pub fn new(window: Range<i64>) -> Tally {
        Tally {
            window,
            begun: Interval::default(),
            kernels: Cover::default(),
            copies: Default::default(),
        }
    }

    /// The interval.
    pub fn window(&self) -> Range<i64> {
        self.window.clone()
    }

    /// A piece of work from `start` to `end`, and what it moved.
    pub fn push(&mut self, work: Work, start: i64, end: i64, bytes: u64) {
        if self.window.contains(&start) {
            self.begun.begin(work, end.saturating_sub(start).max(0), bytes);
        }
        let (from, to) = (start.max(self.window.start), end.min(self.window.end));
        if from < to {
            match work {
                Work::Copy(kind) if is_copy(kind) => self.copies[kind_index(kind)].add(from, to),
                _ => self.kernels.add(from, to),
            }
        }
    }

    /// All of another part's, which is of the same interval.
    pub fn merge(&mut self, other: Tally) {
        self.begun.merge(&other.begun);
        let theirs = std::iter::once(other.kernels).chain(other.copies);
        let ours = std::iter::once(&mut self.kernels).chain(&mut self.copies);
        for (ours, theirs) in ours.zip(theirs) {
            ours.pieces.extend(theirs.pieces);
            ours.tidy_up();
        }
    }

    /// What the device did.
    pub fn finish(&self) -> Interval {
        let length = |pieces: &[(Ns, Ns)]| pieces.iter().map(|(from, to)| to.0 - from.0).sum();
        let kernels = self.kernels.united();
        let exposed = |copies: &[(Ns, Ns)]| -> i64 {
            copies.iter().map(|piece| length(&subtract(*piece, &kernels))).sum()
        };
        let by_kind: Vec<Vec<(Ns, Ns)>> = self.copies.iter().map(Cover::united).collect();
        let copies = union(by_kind.concat());
        let mut sums = self.begun;
        sums.kernel_ns = length(&kernels);
        sums.copy_ns = length(&copies);
        sums.exposed_ns = exposed(&copies);
        for (kind, pieces) in by_kind.iter().enumerate() {
            sums.exposed_by[kind] = exposed(pieces);
        }
        sums
    }

    /// Bytes of memory that it takes.
    pub fn size(&self) -> usize {
        let covers = std::iter::once(&self.kernels).chain(&self.copies);
        let pieces: usize = covers.map(|cover| cover.pieces.capacity()).sum();
        size_of::<Tally>() + pieces * size_of::<(Ns, Ns)>()
    }
}

impl Partial for Tally {
    fn write(&self, out: &mut Vec<u8>) {
        put_signed(out, self.window.start);
        put_signed(out, self.window.end);
        self.begun.write(out);
        for cover in std::iter::once(&self.kernels).chain(&self.copies) {
            let pieces = cover.united();
            put(out, pieces.len() as u64);
            let mut last = self.window.start;
            for (from, to) in pieces {
                put(out, from.0.wrapping_sub(last) as u64);
                put(out, to.0.wrapping_sub(from.0) as u64);
                last = to.0;
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Tally, Malformed> {
        let window = from.signed()?..from.signed()?;
        if window.end.checked_sub(window.start).is_none_or(|length| length < 0) {
            return Err(from.malformed());
        }
        let mut tally = Tally { begun: Interval::read(from)?, ..Tally::new(window) };
        let end = tally.window.end;
        for cover in std::iter::once(&mut tally.kernels).chain(&mut tally.copies) {
            let mut last = tally.window.start;
            for _ in 0..from.count(2)? {
                let step = |from: &mut Reader<'_>, at: i64| {
                    let step = i64::try_from(from.number()?).ok();
                    step.and_then(|step| at.checked_add(step))
                        .filter(|at| *at <= end)
                        .ok_or(from.malformed())
                };
                let begin = step(from, last)?;
                last = step(from, begin)?;
                cover.pieces.push((Ns(begin), Ns(last)));
            }
            cover.tidy = cover.pieces.len();
        }
        Ok(tally)
    }
}

/// The kind of a copy by its word, and none of a kernel.
pub fn work_of(kind: Option<&str>) -> Option<Work> {
    let Some(word) = kind else { return Some(Work::Kernel) };
    ALL_KINDS.into_iter().find(|kind| kind.as_str() == word).map(Work::Copy)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sweep::{Cut, Sweep};

    fn work() -> impl Strategy<Value = Vec<(usize, i64, i64, u64)>> {
        let one = (0usize..=KINDS, -20i64..220, 0i64..60, 0u64..9);
        prop::collection::vec(one, 0..200)
    }

    fn what(number: usize) -> Work {
        ALL_KINDS.get(number).map_or(Work::Kernel, |kind| Work::Copy(*kind))
    }

    proptest! {
        #[test]
        fn a_tally_of_parts_in_any_order_is_what_a_sweep_says(all in work(), cut_at in 0usize..200) {
            let cut = Cut::of(0..200, 50, 10).unwrap();
            let mut sorted = all.clone();
            sorted.sort_by_key(|w| w.1);
            let mut sweep = Sweep::new(cut, cut.all());
            for (kind, start, dur, bytes) in &sorted {
                sweep.push(0, what(*kind), *start, start + dur, *bytes).unwrap();
            }
            let swept = sweep.finish();
            for index in 0..cut.count {
                let mut parts = [Tally::new(cut.range(index)), Tally::new(cut.range(index))];
                for (i, (kind, start, dur, bytes)) in all.iter().enumerate() {
                    parts[usize::from(i < cut_at)].push(what(*kind), *start, start + dur, *bytes);
                }
                let [mut a, b] = parts;
                a.merge(Tally::from_bytes(&b.to_bytes()).unwrap());
                let sums = a.finish();
                let theirs = swept.devices.first().and_then(|d| d.get(index)).copied();
                prop_assert_eq!(sums, theirs.unwrap_or_default());
                prop_assert_eq!(Interval::from_bytes(&sums.to_bytes()).unwrap(), sums);
            }
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Tally::from_bytes(&bytes), Interval::from_bytes(&bytes));
        }
    }

    #[test]
    fn pieces_that_lead_out_of_the_window_are_refused() {
        let mut tally = Tally::new(0..10);
        tally.push(Work::Kernel, 2, 8, 0);
        let mut bytes = tally.to_bytes();
        assert!(Tally::from_bytes(&bytes).is_ok());
        // The kernels' only piece: how long it is.
        let at = bytes.len() - KINDS - 1;
        bytes[at] = 100;
        assert_eq!(Tally::from_bytes(&bytes).unwrap_err(), Malformed { at: at + 1 });
    }

    #[test]
    fn words_of_copies_are_those_of_the_schema() {
        assert_eq!(work_of(None), Some(Work::Kernel));
        assert_eq!(work_of(Some("h2d")), Some(what(0)));
        assert_eq!(work_of(Some("kernel")), None);
    }
}
