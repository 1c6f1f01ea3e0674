//! Which named range of a program launched how much work of a GPU.
//!
//! # What it sees
//! The ranges of a thread, which nest, and the calls of that thread that launched work. A call belongs to
//! the innermost range that was open when it began, and to all ranges around that. One sweep over both in
//! the order of time, with a stack: a join of intervals, of ten million ranges, has brought down machines
//! with 175 GB (nsys-ai issue 143).
//!
//! # What fools it
//! Work that another thread launched for the range. Ranges that cross are taken to end when the outer one
//! does.

use std::collections::BTreeMap;

use gpuwhy_schema::Name;

use crate::sums::Sum;

/// A named range of a thread.
#[derive(Clone, Debug)]
pub struct Range {
    /// Its name.
    pub name: Name,
    /// When it began.
    pub start: i64,
    /// When it ended; `i64::MAX` while it has not.
    pub end: i64,
}

/// A call of the thread, and how long the work took that it launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// When the call began.
    pub at: i64,
    /// How long the work ran on the device.
    pub device_ns: i64,
    /// Whether it is a copy or a memset, and no kernel.
    pub is_copy: bool,
}

/// What ranges of one name launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// Ranges of that name, and how long they took on the host.
    pub ranges: Sum,
    /// Device work launched within them, by themselves and by ranges inside, counted once.
    pub within: Sum,
    /// Device work launched by themselves, in no range inside.
    pub own: Sum,
    /// How much of what was launched within them are copies and memsets.
    pub copies: u64,
}

impl Launched {
    /// What two threads come to.
    pub fn merge(&mut self, other: &Launched) {
        self.ranges.merge(&other.ranges);
        self.within.merge(&other.within);
        self.own.merge(&other.own);
        self.copies += other.copies;
    }
}

/// What the ranges of a thread launched, by their names. Both lists must be sorted by their begin, ranges
/// that begin together the longest first.
pub fn launched(ranges: &[Range], launches: &[Launch]) -> BTreeMap<Name, Launched> {
    let mut out: BTreeMap<Name, Launched> = BTreeMap::new();
    let mut open: Vec<&Range> = Vec::new();
    let mut next = ranges.iter().peekable();
    let mut names: Vec<&Name> = Vec::new();
    for launch in launches {
        while let Some(range) = next.next_if(|range| range.start <= launch.at) {
            while open.last().is_some_and(|outer| outer.end <= range.start) {
                open.pop();
            }
            open.push(range);
        }
        while open.last().is_some_and(|inner| inner.end <= launch.at) {
            open.pop();
        }
        let Some(inner) = open.last() else { continue };
        out.entry(inner.name.clone()).or_default().own.add(launch.device_ns);
        // A range within one of the same name must not count twice.
        names.clear();
        for range in open.iter().filter(|range| range.end > launch.at) {
            if !names.contains(&&range.name) {
                names.push(&range.name);
                let launched = out.entry(range.name.clone()).or_default();
                launched.within.add(launch.device_ns);
                launched.copies += u64::from(launch.is_copy);
            }
        }
    }
    for range in ranges.iter().filter(|range| range.end != i64::MAX) {
        let dur = range.end.saturating_sub(range.start);
        out.entry(range.name.clone()).or_default().ranges.add(dur);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, start: i64, end: i64) -> Range {
        Range { name: name.into(), start, end }
    }

    fn attributed(ranges: &[Range], launches: &[(i64, i64)]) -> String {
        let launches: Vec<Launch> = launches
            .iter()
            .map(|&(at, device_ns)| Launch { at, device_ns, is_copy: device_ns < 5 })
            .collect();
        launched(ranges, &launches)
            .iter()
            .map(|(name, l)| format!("{name}: {} of {}", l.own.sum, l.within.sum))
            .collect::<Vec<_>>()
            .join(", ")
    }

    #[test]
    fn work_belongs_to_the_innermost_range_and_to_all_around() {
        let ranges = [range("step", 0, 100), range("forward", 10, 50), range("backward", 50, 90)];
        let launches = [(5, 1), (20, 10), (50, 100), (95, 1000), (100, 7)];
        assert_eq!(
            attributed(&ranges, &launches),
            "backward: 100 of 100, forward: 10 of 10, step: 1001 of 1111"
        );
    }

    #[test]
    fn copies_are_attributed_apart() {
        let launches = [1, 10, 2].map(|ns| Launch { at: ns, device_ns: ns, is_copy: ns < 5 });
        let of_all = launched(&[range("step", 0, 100)], &launches)[&Name::from("step")];
        assert_eq!((of_all.within.count, of_all.within.sum, of_all.copies), (3, 13, 2));
    }

    #[test]
    fn a_range_within_its_like_counts_once() {
        let ranges = [range("f", 0, 100), range("f", 10, 90)];
        assert_eq!(attributed(&ranges, &[(20, 5)]), "f: 5 of 5");
    }

    #[test]
    fn ranges_that_never_end_hold_what_comes() {
        let ranges = [range("open", 0, i64::MAX), range("inner", 10, 20)];
        assert_eq!(attributed(&ranges, &[(15, 1), (30, 2)]), "inner: 1 of 1, open: 2 of 3");
        assert_eq!(attributed(&ranges, &[]), "inner: 0 of 0");
    }
}
