//! What devices did, interval by interval: one sweep over their work in the order of its begin.
//!
//! # What it sees
//! Kernels, copies and memsets as `[begin, end)` on a device. In each interval: the time in which a
//! kernel ran, in which a copy ran, in which a copy ran and no kernel (*exposed* copy, the time for
//! which the device waited for memory), in which both did, and in which neither did. Times are split
//! at the borders of intervals; a duration belongs to the interval in which it began.
//!
//! # Why it matters
//! A copy beneath a kernel costs nothing; the same copy with nothing to compute stalls the device.
//! Joining kernels with copies to find out (as the published pipeline does, 93 million rows of a
//! million) asks for the pairs; a sweep needs none.
//!
//! # What fools it
//! Copies by kernels (NCCL, unified memory) are kernels. Two processes on one GPU are one device.
//!
//! Nothing but whole numbers is added up, so that shards of time, cut anywhere and merged in any
//! order, give the same result to the last digit.

use std::ops::Range;

use gpuwhy_schema::CopyKind;

use crate::bytes::{Malformed, Partial, Reader, put, put_signed};
use crate::sums::Sum;

/// Kinds of copies that are counted apart; see [`kind_index`].
pub const KINDS: usize = 8;

/// The place of a kind of copy in [`Interval::copies`].
pub const fn kind_index(kind: CopyKind) -> usize {
    match kind {
        CopyKind::HostToDevice => 0,
        CopyKind::DeviceToHost => 1,
        CopyKind::DeviceToDevice => 2,
        CopyKind::PeerToPeer => 3,
        CopyKind::HostToHost => 4,
        CopyKind::Memset => 5,
        CopyKind::Managed => 6,
        CopyKind::Other => 7,
    }
}

/// The kinds of copies, by their places.
pub const ALL_KINDS: [CopyKind; KINDS] = [
    CopyKind::HostToDevice,
    CopyKind::DeviceToHost,
    CopyKind::DeviceToDevice,
    CopyKind::PeerToPeer,
    CopyKind::HostToHost,
    CopyKind::Memset,
    CopyKind::Managed,
    CopyKind::Other,
];

/// Whether work of this kind counts as a copy: a memset moves nothing over a link.
pub const fn is_copy(kind: CopyKind) -> bool {
    !matches!(kind, CopyKind::Memset)
}

/// A piece of work of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A kernel ran.
    Kernel,
    /// A copy or a memset ran. A memset occupies the device as a kernel does.
    Copy(CopyKind),
}

/// One device in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Time in which a kernel or memset ran, ns.
    pub kernel_ns: i64,
    /// Time in which a copy ran, ns.
    pub copy_ns: i64,
    /// Time in which a copy ran and no kernel, ns.
    pub exposed_ns: i64,
    /// Of that, by the kind of the copy; kinds that run at once count each.
    pub exposed_by: [i64; KINDS],
    /// Kernels that began in it.
    pub kernels: Sum,
    /// Copies that began in it, by kind.
    pub copies: [Sum; KINDS],
    /// Bytes of these copies, by kind.
    pub bytes: [u64; KINDS],
}

impl Interval {
    /// Time in which a kernel and a copy ran, ns.
    pub fn overlapped_ns(&self) -> i64 {
        self.copy_ns - self.exposed_ns
    }

    /// Time in which something ran, ns.
    pub fn busy_ns(&self) -> i64 {
        self.kernel_ns + self.exposed_ns
    }

    /// Durations of all copies that began in it; memsets are none.
    pub fn all_copies(&self) -> Sum {
        let mut all = Sum::default();
        for (i, sum) in self.copies.iter().enumerate() {
            if is_copy(ALL_KINDS[i]) {
                all.merge(sum);
            }
        }
        all
    }

    /// A piece of work that began in it.
    pub(crate) fn begin(&mut self, work: Work, dur: i64, bytes: u64) {
        match work {
            Work::Kernel => self.kernels.add(dur),
            Work::Copy(kind) => {
                let kind = kind_index(kind);
                self.copies[kind].add(dur);
                self.bytes[kind] = self.bytes[kind].saturating_add(bytes);
            }
        }
    }

    /// Adds what another part of the same interval comes to, which has no time in common with it.
    pub fn merge(&mut self, other: &Interval) {
        self.kernel_ns += other.kernel_ns;
        self.copy_ns += other.copy_ns;
        self.exposed_ns += other.exposed_ns;
        self.kernels.merge(&other.kernels);
        for kind in 0..KINDS {
            self.exposed_by[kind] += other.exposed_by[kind];
            self.copies[kind].merge(&other.copies[kind]);
            self.bytes[kind] += other.bytes[kind];
        }
    }
}

impl Partial for Interval {
    fn write(&self, out: &mut Vec<u8>) {
        for ns in [self.kernel_ns, self.copy_ns, self.exposed_ns].iter().chain(&self.exposed_by) {
            put_signed(out, *ns);
        }
        self.kernels.write(out);
        self.copies.iter().for_each(|sum| sum.write(out));
        self.bytes.iter().for_each(|bytes| put(out, *bytes));
    }

    fn read(from: &mut Reader<'_>) -> Result<Interval, Malformed> {
        let mut read = Interval {
            kernel_ns: from.signed()?,
            copy_ns: from.signed()?,
            exposed_ns: from.signed()?,
            ..Interval::default()
        };
        for ns in &mut read.exposed_by {
            *ns = from.signed()?;
        }
        read.kernels = Sum::read(from)?;
        for sum in &mut read.copies {
            *sum = Sum::read(from)?;
        }
        for bytes in &mut read.bytes {
            *bytes = from.number()?;
        }
        Ok(read)
    }
}

/// How time is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// When the first interval begins, ns.
    pub origin: i64,
    /// How long each is, ns; positive.
    pub width: i64,
    /// How many there are.
    pub count: usize,
}

impl Cut {
    /// Intervals of `width` that cover `range`; none if there would be more than `most`.
    pub fn of(range: Range<i64>, width: i64, most: usize) -> Option<Cut> {
        let length = range.end.checked_sub(range.start)?;
        if width <= 0 || length < 0 {
            return None;
        }
        let count = usize::try_from(length / width + i64::from(length % width > 0)).ok()?.max(1);
        (count <= most).then_some(Cut { origin: range.start, width, count })
    }

    /// A width for work that begins within `length` ns: about a hundred intervals of 1, 2 or 5 (or 10, 20,
    /// 50 ...) ms, none shorter than a millisecond or longer than a second unless there were more than
    /// `most` of them.
    pub fn usual_width(length: i64, most: usize) -> i64 {
        const MS: i64 = 1_000_000;
        let round = [1, 2, 5, 10, 20, 50, 100, 200, 500].map(|ms| ms * MS);
        let mut width = round.into_iter().find(|w| length / w < 150).unwrap_or(1000 * MS);
        while usize::try_from(length / width).unwrap_or(0) + 1 > most && width < i64::MAX / 10 {
            width *= 10;
        }
        width
    }

    /// The interval that holds `at`, if one does.
    pub fn index(&self, at: i64) -> Option<usize> {
        let since = at.checked_sub(self.origin).filter(|since| *since >= 0)?;
        usize::try_from(since / self.width).ok().filter(|i| *i < self.count)
    }

    /// When an interval begins and ends.
    pub fn range(&self, index: usize) -> Range<i64> {
        let from = self.origin + index as i64 * self.width;
        from..from + self.width
    }

    /// All of the time.
    pub fn all(&self) -> Range<i64> {
        self.origin..self.origin + self.count as i64 * self.width
    }
}

/// What devices did in each interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// How time is cut.
    pub cut: Cut,
    /// By device, in the order of their numbers: one entry an interval, up to the last in which it
    /// did something.
    pub devices: Vec<Vec<Interval>>,
}

impl Intervals {
    /// Nothing done.
    pub fn new(cut: Cut) -> Intervals {
        Intervals { cut, devices: Vec::new() }
    }

    #[inline]
    fn at(&mut self, device: usize, index: usize) -> &mut Interval {
        if device >= self.devices.len() {
            self.devices.resize(device + 1, Vec::new());
        }
        let intervals = &mut self.devices[device];
        if index >= intervals.len() {
            intervals.resize(index + 1, Interval::default());
        }
        &mut intervals[index]
    }

    /// Adds to what a device did in an interval, if the cut has that interval.
    pub fn add(&mut self, device: u32, index: usize, what: &Interval) {
        if index < self.cut.count {
            self.at(device as usize, index).merge(what);
        }
    }

    /// Adds what another part of the work comes to, of the same cut.
    pub fn merge(&mut self, other: &Intervals) {
        for (number, theirs) in other.devices.iter().enumerate() {
            for (index, theirs) in theirs.iter().enumerate() {
                self.at(number, index).merge(theirs);
            }
        }
    }
}

/// What of a device's past reaches into the present.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Everything before this is accounted for.
    at: i64,
    kernel_end: i64,
    copy_end: i64,
    kind_end: [i64; KINDS],
}

/// Work came that began before work that had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disorder {
    /// On which device.
    pub device: u32,
    /// When it began.
    pub start: i64,
}

/// Takes the work of devices in the order of its begin, and accounts for a window of time.
///
/// Work that began before the window is to be given as well if it reaches into it; what it does
/// there is counted, and its duration is not.
#[derive(Clone, Debug)]
pub struct Sweep {
    window: Range<i64>,
    intervals: Intervals,
    reach: Vec<Option<Reach>>,
}

impl Sweep {
    /// Accounts for `window`, which lies in `cut`.
    pub fn new(cut: Cut, window: Range<i64>) -> Sweep {
        let all = cut.all();
        let window = window.start.max(all.start)..window.end.min(all.end);
        Sweep { window, intervals: Intervals::new(cut), reach: Vec::new() }
    }

    /// A piece of work of `device` from `start` to `end`, and what it moved.
    ///
    /// # Errors
    /// It began before another piece of that device that was given already.
    pub fn push(
        &mut self,
        device: u32,
        work: Work,
        start: i64,
        end: i64,
        bytes: u64,
    ) -> Result<(), Disorder> {
        let number = device as usize;
        if number >= self.reach.len() {
            self.reach.resize(number + 1, None);
        }
        let (from, to) = (start.max(self.window.start), end.min(self.window.end));
        if self.window.contains(&start)
            && let Some(index) = self.intervals.cut.index(start)
        {
            let dur = end.saturating_sub(start).max(0);
            self.intervals.at(number, index).begin(work, dur, bytes);
        }
        if from >= to {
            return Ok(());
        }
        let reach = self.reach[number].get_or_insert(Reach {
            at: from,
            kernel_end: i64::MIN,
            copy_end: i64::MIN,
            kind_end: [i64::MIN; KINDS],
        });
        if from < reach.at {
            return Err(Disorder { device, start });
        }
        account(&mut self.intervals, number, reach, from);
        match work {
            Work::Copy(kind) if is_copy(kind) => {
                reach.copy_end = reach.copy_end.max(to);
                let end = &mut reach.kind_end[kind_index(kind)];
                *end = (*end).max(to);
            }
            _ => reach.kernel_end = reach.kernel_end.max(to),
        }
        Ok(())
    }

    /// What the devices did.
    pub fn finish(mut self) -> Intervals {
        for (device, reach) in self.reach.iter_mut().enumerate() {
            if let Some(reach) = reach {
                account(&mut self.intervals, device, reach, self.window.end);
            }
        }
        self.intervals
    }
}

/// Accounts for the time of a device up to `until`. Nothing begins in it, so that whatever runs does so from its
/// beginning on.
fn account(all: &mut Intervals, device: usize, reach: &mut Reach, until: i64) {
    let at = reach.at;
    if until <= at {
        return;
    }
    reach.at = until;
    let (kernel, copy) = (reach.kernel_end.min(until), reach.copy_end.min(until));
    if kernel <= at && copy <= at {
        return;
    }
    let cut = all.cut;
    spread(cut, at, kernel, |i, ns| all.at(device, i).kernel_ns += ns);
    if copy > at {
        spread(cut, at, copy, |i, ns| all.at(device, i).copy_ns += ns);
        spread(cut, kernel.max(at), copy, |i, ns| all.at(device, i).exposed_ns += ns);
        for (kind, end) in reach.kind_end.iter().enumerate() {
            let end = (*end).min(until);
            spread(cut, kernel.max(at), end, |i, ns| all.at(device, i).exposed_by[kind] += ns);
        }
    }
}

/// Splits `[from, to)` at the borders of intervals.
fn spread(cut: Cut, from: i64, to: i64, mut add: impl FnMut(usize, i64)) {
    let mut at = from;
    while at < to {
        let index = ((at - cut.origin) / cut.width) as usize;
        let border = cut.range(index).end.min(to);
        add(index, border - at);
        at = border;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Piece = (u32, Work, i64, i64);

    fn sweep(cut: Cut, window: Range<i64>, work: &[Piece]) -> Intervals {
        let mut work: Vec<Piece> = work.to_vec();
        work.sort_by_key(|w| w.2);
        let mut sweep = Sweep::new(cut, window);
        for (device, what, start, end) in work {
            sweep.push(device, what, start, end, 1).unwrap();
        }
        sweep.finish()
    }

    /// As the definition has it: nanosecond by nanosecond.
    fn slowly(cut: Cut, work: &[Piece]) -> Vec<Vec<(i64, i64, i64, i64)>> {
        let devices = work.iter().map(|w| w.0 + 1).max().unwrap_or(0);
        (0..devices)
            .map(|device| {
                let mut out = vec![(0, 0, 0, 0); cut.count];
                for at in cut.all() {
                    let on = |copies: bool| {
                        work.iter().any(|w| {
                            let copy = matches!(w.1, Work::Copy(kind) if is_copy(kind));
                            w.0 == device && copy == copies && w.2 <= at && at < w.3
                        })
                    };
                    let (kernel, copy) = (on(false), on(true));
                    let peer = Work::Copy(CopyKind::PeerToPeer);
                    let of_kind = |w: &Piece| w.0 == device && w.1 == peer && w.2 <= at && at < w.3;
                    let peer = work.iter().any(of_kind);
                    let sums = &mut out[cut.index(at).unwrap()];
                    sums.0 += i64::from(kernel);
                    sums.1 += i64::from(copy);
                    sums.2 += i64::from(copy && !kernel);
                    sums.3 += i64::from(peer && !kernel);
                }
                out
            })
            .collect()
    }

    fn times(intervals: &Intervals) -> Vec<Vec<(i64, i64, i64, i64)>> {
        let peer = kind_index(CopyKind::PeerToPeer);
        let of = |i: &Interval| (i.kernel_ns, i.copy_ns, i.exposed_ns, i.exposed_by[peer]);
        let of_device = |device: &Vec<Interval>| {
            let mut all: Vec<_> = device.iter().map(of).collect();
            all.resize(intervals.cut.count, (0, 0, 0, 0));
            all
        };
        intervals.devices.iter().map(of_device).collect()
    }

    #[test]
    fn a_copy_beneath_a_kernel_costs_nothing() {
        let copy = Work::Copy(CopyKind::HostToDevice);
        let cut = Cut::of(0..100, 50, 10).unwrap();
        // Kernel ████████░░░░  copy ░░░░████████, across the border at 50.
        let all = sweep(cut, cut.all(), &[(0, Work::Kernel, 10, 40), (0, copy, 30, 60)]);
        assert_eq!(times(&all), [[(30, 20, 10, 0), (0, 10, 10, 0)]]);
        assert_eq!(all.devices[0][0].overlapped_ns(), 10);
        assert_eq!(all.devices[0][0].busy_ns(), 40);
        assert_eq!(all.devices[0][0].copies[0].sum, 30, "its duration lies where it began");
        assert_eq!(all.devices[0][1].copies[0].count, 0, "and nowhere else");
    }

    #[test]
    fn work_out_of_order_is_refused() {
        let cut = Cut::of(0..100, 50, 10).unwrap();
        let mut sweep = Sweep::new(cut, cut.all());
        sweep.push(0, Work::Kernel, 50, 60, 0).unwrap();
        sweep.push(1, Work::Kernel, 10, 20, 0).unwrap();
        assert_eq!(sweep.push(0, Work::Kernel, 40, 60, 0), Err(Disorder { device: 0, start: 40 }));
    }

    #[test]
    fn the_usual_width_is_round_and_makes_about_a_hundred_intervals() {
        let of = |ms: i64| Cut::usual_width(ms * 1_000_000, 1 << 16) / 1_000_000;
        assert_eq!([0, 20, 149, 299, 1000].map(of), [1, 1, 1, 2, 10]);
        assert_eq!([5_500, 60_000, 150_000, 3_600_000].map(of), [50, 500, 1000, 1000]);
        // A week in seconds is more than is compared.
        assert_eq!(of(7 * 86_400_000), 10_000);
        assert!(Cut::usual_width(i64::MAX, 1) > i64::MAX / 100);
    }

    #[test]
    fn absurd_cuts_are_none() {
        assert_eq!(Cut::of(0..i64::MAX, 1, 1000), None);
        assert_eq!(Cut::of(i64::MIN..i64::MAX, 1, 1000), None);
        assert_eq!(Cut::of(0..10, 0, 1000), None);
        assert_eq!(Cut::of(5..5, 10, 1000).unwrap().count, 1);
    }

    fn piece() -> impl Strategy<Value = Piece> {
        let kinds = [CopyKind::HostToDevice, CopyKind::PeerToPeer, CopyKind::Memset];
        (0u32..3, 0usize..5, 0i64..400, 0i64..120).prop_map(move |(device, what, start, dur)| {
            let work = kinds.get(what).map_or(Work::Kernel, |kind| Work::Copy(*kind));
            (device, work, start, start + dur)
        })
    }

    proptest! {
        #[test]
        fn the_sweep_says_what_the_definition_says(
            work in prop::collection::vec(piece(), 0..40),
            width in 1i64..200,
        ) {
            let cut = Cut::of(0..520, width, 1000).unwrap();
            let all = sweep(cut, cut.all(), &work);
            let mut slow = slowly(cut, &work);
            slow.truncate(all.devices.len());
            prop_assert_eq!(times(&all), slow);
        }

        #[test]
        fn shards_cut_anywhere_merge_to_the_whole(
            work in prop::collection::vec(piece(), 0..40),
            mut at in prop::collection::vec(0i64..520, 0..6),
            width in 1i64..200,
        ) {
            let cut = Cut::of(0..520, width, 1000).unwrap();
            let whole = sweep(cut, cut.all(), &work);
            at.extend([0, cut.all().end]);
            at.sort_unstable();
            let mut merged = Intervals::new(cut);
            for shard in at.windows(2).rev() {
                // What begins before a shard and reaches into it is part of what it reads.
                let reads: Vec<Piece> = work
                    .iter()
                    .copied()
                    .filter(|w| w.2 < shard[1] && (w.3 > shard[0] || w.2 >= shard[0]))
                    .collect();
                merged.merge(&sweep(cut, shard[0]..shard[1], &reads));
            }
            prop_assert_eq!(merged, whole);
        }
    }
}
