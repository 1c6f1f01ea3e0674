//! Statistics of durations that can be computed in parts: whole numbers only, so that any parts in
//! any order merge to the same result, to the last digit.

use crate::bytes::{Malformed, Partial, Reader, put, put_signed};

/// Count, sum, extremes and squares of durations in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: i64,
    /// The least; 0 of none.
    pub min: i64,
    /// The greatest; 0 of none.
    pub max: i64,
    /// The sum of their squares.
    pub squares: u128,
}

impl Sum {
    /// One more.
    pub fn add(&mut self, dur: i64) {
        self.min = if self.count == 0 { dur } else { self.min.min(dur) };
        self.max = if self.count == 0 { dur } else { self.max.max(dur) };
        self.count += 1;
        self.sum = self.sum.saturating_add(dur);
        let square = u128::from(dur.unsigned_abs()).pow(2);
        self.squares = self.squares.saturating_add(square);
    }

    /// All of another part's.
    pub fn merge(&mut self, other: &Sum) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.squares = self.squares.saturating_add(other.squares);
    }

    /// Their mean; NaN of none.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    /// Their standard deviation, of a sample (n - 1); 0 of fewer than two.
    pub fn std(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let n = u128::from(self.count);
        let sum = u128::from(self.sum.unsigned_abs());
        // n Σx² - (Σx)², exactly where it fits; it nearly always does.
        let spread = match (n.checked_mul(self.squares), sum.checked_mul(sum)) {
            (Some(a), Some(b)) => a.saturating_sub(b) as f64,
            _ => (n as f64) * (self.squares as f64) - (sum as f64).powi(2),
        };
        (spread.max(0.0) / (self.count as f64) / ((self.count - 1) as f64)).sqrt()
    }

    /// Standard deviation by mean: how much they vary for their size.
    pub fn variation(&self) -> f64 {
        if self.sum == 0 { 0.0 } else { self.std() / self.mean() }
    }
}

impl Partial for Sum {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.count);
        if self.count > 0 {
            put_signed(out, self.sum);
            put_signed(out, self.min);
            put_signed(out, self.max);
            put(out, (self.squares >> 64) as u64);
            put(out, self.squares as u64);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Sum, Malformed> {
        let count = from.number()?;
        if count == 0 {
            return Ok(Sum::default());
        }
        let (sum, min, max) = (from.signed()?, from.signed()?, from.signed()?);
        let squares = u128::from(from.number()?) << 64 | u128::from(from.number()?);
        Ok(Sum { count, sum, min, max, squares })
    }
}

/// Sums over stretches of time of equal length, at most [`STRETCHES`] of them: as time goes on, two
/// neighbours become one. What they come to depends on what was added only, not on the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretches {
    /// Intervals that a stretch spans: a power of two.
    each: usize,
    sums: Vec<Sum>,
}

/// Stretches of [`Stretches`].
pub const STRETCHES: usize = 16;

impl Default for Stretches {
    fn default() -> Self {
        Stretches { each: 1, sums: Vec::new() }
    }
}

impl Stretches {
    /// Intervals that a stretch spans now.
    pub fn each(&self) -> usize {
        self.each
    }

    /// One more, which began in the interval of this number.
    pub fn add(&mut self, interval: usize, dur: i64) {
        while interval / self.each >= STRETCHES {
            self.coarsen();
        }
        let at = interval / self.each;
        if at >= self.sums.len() {
            self.sums.resize(at + 1, Sum::default());
        }
        self.sums[at].add(dur);
    }

    fn coarsen(&mut self) {
        let pairs = self.sums.chunks(2).map(|pair| {
            let mut both = pair[0];
            pair[1..].iter().for_each(|other| both.merge(other));
            both
        });
        self.sums = pairs.collect();
        self.each *= 2;
    }

    /// All of another part's.
    pub fn merge(&mut self, other: &Stretches) {
        let mut other = other.clone();
        while self.each < other.each {
            self.coarsen();
        }
        while other.each < self.each {
            other.coarsen();
        }
        if other.sums.len() > self.sums.len() {
            self.sums.resize(other.sums.len(), Sum::default());
        }
        for (ours, theirs) in self.sums.iter_mut().zip(&other.sums) {
            ours.merge(theirs);
        }
    }

    /// What came before an interval and what from there on, for each border between two stretches.
    pub fn splits(&self) -> Vec<(usize, Sum, Sum)> {
        let all = |sums: &[Sum]| {
            sums.iter().fold(Sum::default(), |mut all, sum| {
                all.merge(sum);
                all
            })
        };
        let border = |at: usize| (at * self.each, all(&self.sums[..at]), all(&self.sums[at..]));
        (1..self.sums.len()).map(border).collect()
    }
}

impl Partial for Stretches {
    fn write(&self, out: &mut Vec<u8>) {
        put(out, u64::from(self.each.trailing_zeros()));
        put(out, self.sums.len() as u64);
        self.sums.iter().for_each(|sum| sum.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Result<Stretches, Malformed> {
        let each = 1 << from.count_up_to(31)?;
        let sums = (0..from.count_up_to(STRETCHES)?).map(|_| Sum::read(from));
        Ok(Stretches { each, sums: sums.collect::<Result<_, _>>()? })
    }
}

/// Up to this many durations are kept exactly; beyond, in classes of about 0.4 %.
const EXACT: usize = 4096;
/// Classes an octave.
const PER_OCTAVE: i64 = 1 << FRACTION;
const FRACTION: u32 = 7;
/// Classes in all: of durations up to the longest there is.
const CLASSES: usize = (64 - FRACTION as usize) * PER_OCTAVE as usize;

/// Durations for their quantiles: exact for the first few thousand, to 0.4 % beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    exact: Vec<i64>,
    /// How many are of each class; empty while durations are kept as they are.
    classes: Vec<u64>,
    count: u64,
}

fn class_of(dur: i64) -> u16 {
    let dur = dur.max(0) as u64;
    if dur < PER_OCTAVE as u64 * 2 {
        return dur as u16;
    }
    let octave = 63 - dur.leading_zeros() - FRACTION;
    (u64::from(octave) * PER_OCTAVE as u64 + (dur >> octave)) as u16
}

/// The middle of a class.
fn middle(class: u16) -> i64 {
    let class = i64::from(class);
    if class < PER_OCTAVE * 2 {
        return class;
    }
    let octave = class / PER_OCTAVE - 1;
    let from = (class - octave * PER_OCTAVE) << octave;
    from + (1 << octave) / 2
}

impl Quantiles {
    /// One more.
    pub fn add(&mut self, dur: i64) {
        self.count += 1;
        if self.classes.is_empty() {
            self.exact.push(dur);
            if self.exact.len() > EXACT {
                self.classify();
            }
        } else {
            self.classes[usize::from(class_of(dur))] += 1;
        }
    }

    fn classify(&mut self) {
        self.classes.resize(CLASSES, 0);
        for dur in std::mem::take(&mut self.exact) {
            self.classes[usize::from(class_of(dur))] += 1;
        }
    }

    /// All of another part's. What is kept depends on all of them together only.
    pub fn merge(&mut self, other: &Quantiles) {
        self.count += other.count;
        self.exact.extend_from_slice(&other.exact);
        if self.exact.len() > EXACT || !self.classes.is_empty() || !other.classes.is_empty() {
            self.classify();
        }
        for (ours, theirs) in self.classes.iter_mut().zip(&other.classes) {
            *ours += theirs;
        }
    }

    /// Bytes of memory that lie behind it.
    pub fn size(&self) -> usize {
        (self.exact.capacity() + self.classes.capacity()) * size_of::<u64>()
    }

    /// Whether quantiles are exact.
    pub fn is_exact(&self) -> bool {
        self.classes.is_empty()
    }

    /// The `q`-quantile, linearly interpolated where it is exact; NaN of none.
    pub fn quantile(&self, q: f64) -> f64 {
        if self.count == 0 {
            return f64::NAN;
        }
        let at = q.clamp(0.0, 1.0) * (self.count - 1) as f64;
        if self.is_exact() {
            let mut sorted = self.exact.clone();
            sorted.sort_unstable();
            let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
            return below as f64 + (above - below) as f64 * at.fract();
        }
        let mut seen = 0;
        let found = self.classes.iter().position(|n| {
            seen += n;
            seen as f64 > at
        });
        found.map_or(f64::NAN, |class| middle(class as u16) as f64)
    }
}

impl Partial for Quantiles {
    fn write(&self, out: &mut Vec<u8>) {
        if self.is_exact() {
            put(out, 0);
            put(out, self.exact.len() as u64);
            self.exact.iter().for_each(|dur| put_signed(out, *dur));
            return;
        }
        put(out, 1);
        let present = || self.classes.iter().enumerate().filter(|(_, n)| **n > 0);
        put(out, present().count() as u64);
        let mut last = 0;
        for (class, n) in present() {
            put(out, (class - last) as u64);
            put(out, *n);
            last = class;
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Quantiles, Malformed> {
        let mut quantiles = Quantiles::default();
        match from.number()? {
            0 => {
                let count = from.count(1)?;
                if count > EXACT {
                    return Err(from.malformed());
                }
                for _ in 0..count {
                    quantiles.exact.push(from.signed()?);
                }
                quantiles.count = count as u64;
            }
            1 => {
                quantiles.classes.resize(CLASSES, 0);
                let mut class = 0;
                for i in 0..from.count(2)? {
                    let step = from.count_up_to(CLASSES)?;
                    class += step;
                    if class >= CLASSES || (i > 0 && step == 0) {
                        return Err(from.malformed());
                    }
                    let n = from.number()?;
                    quantiles.classes[class] = n;
                    quantiles.count = quantiles.count.checked_add(n).ok_or(from.malformed())?;
                }
            }
            _ => return Err(from.malformed()),
        }
        Ok(quantiles)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sums_say_what_the_textbook_says() {
        let mut sum = Sum::default();
        [2, 4, 4, 4, 5, 5, 7, 9].into_iter().for_each(|dur| sum.add(dur));
        assert_eq!((sum.count, sum.sum, sum.min, sum.max), (8, 40, 2, 9));
        assert_eq!(sum.mean(), 5.0);
        assert!((sum.std() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Sum::default().std(), 0.0);
    }

    #[test]
    fn classes_are_narrow_and_in_order() {
        let mut last = 0;
        for dur in (0..100_000).chain((17..62).flat_map(|n| [1i64 << n, (1 << n) + 12_345])) {
            let class = class_of(dur);
            assert!(class >= last, "{dur}");
            last = class;
            let off = (middle(class) - dur).abs() as f64 / dur.max(1) as f64;
            assert!(off <= 1.0 / 256.0 + 1e-9, "{dur}: {off}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = (Sum::from_bytes(&bytes), Quantiles::from_bytes(&bytes));
            let _ = Stretches::from_bytes(&bytes);
        }

        #[test]
        fn stretches_do_not_depend_on_the_order(
            all in prop::collection::vec((0usize..3000, 0i64..1000), 0..200),
            cut in 0usize..200,
        ) {
            let of = |all: &[(usize, i64)]| {
                let mut out = Stretches::default();
                all.iter().for_each(|(at, dur)| out.add(*at, *dur));
                out
            };
            let cut = cut.min(all.len());
            let mut parts = of(&all[cut..]);
            parts.merge(&Stretches::from_bytes(&of(&all[..cut]).to_bytes()).unwrap());
            prop_assert_eq!(&parts, &of(&all));
            for (at, before, after) in parts.splits() {
                let early = all.iter().filter(|(i, _)| *i < at).count() as u64;
                prop_assert_eq!((before.count, after.count), (early, all.len() as u64 - early));
            }
        }

        #[test]
        fn parts_merge_to_the_whole(durs in prop::collection::vec(0i64..1 << 40, 0..6000), cut in 0usize..6000) {
            let cut = cut.min(durs.len());
            let of = |durs: &[i64]| {
                let (mut sum, mut quantiles) = (Sum::default(), Quantiles::default());
                durs.iter().for_each(|d| { sum.add(*d); quantiles.add(*d); });
                (sum, quantiles)
            };
            let whole = of(&durs);
            let (mut a, b) = (of(&durs[..cut]), of(&durs[cut..]));
            a.0.merge(&Sum::from_bytes(&b.0.to_bytes()).unwrap());
            a.1.merge(&Quantiles::from_bytes(&b.1.to_bytes()).unwrap());
            prop_assert_eq!(a.0, whole.0);
            for q in [0.0, 0.25, 0.5, 0.99, 1.0] {
                let (x, y) = (a.1.quantile(q), whole.1.quantile(q));
                prop_assert!(x == y || x.is_nan() && y.is_nan());
            }
        }
    }
}
