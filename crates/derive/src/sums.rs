//! Statistics of durations that can be computed in parts: whole numbers only, so that any parts in
//! any order merge to the same result, to the last digit.

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

/// Durations are kept as they are up to so many, and in classes of about 0.4 % beyond.
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
        fn parts_merge_to_the_whole(durs in prop::collection::vec(0i64..1 << 40, 0..6000), cut in 0usize..6000) {
            let cut = cut.min(durs.len());
            let of = |durs: &[i64]| {
                let (mut sum, mut quantiles) = (Sum::default(), Quantiles::default());
                durs.iter().for_each(|d| { sum.add(*d); quantiles.add(*d); });
                (sum, quantiles)
            };
            let whole = of(&durs);
            let (mut a, b) = (of(&durs[..cut]), of(&durs[cut..]));
            a.0.merge(&b.0);
            a.1.merge(&b.1);
            prop_assert_eq!(a.0, whole.0);
            for q in [0.0, 0.25, 0.5, 0.99, 1.0] {
                let (x, y) = (a.1.quantile(q), whole.1.quantile(q));
                prop_assert!(x == y || x.is_nan() && y.is_nan());
            }
        }
    }
}
