//! Order statistics, and random numbers that are the same every time.

/// The `q`-quantile of `sorted`, linearly interpolated; NaN when there are no values.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = sorted[at.floor() as usize];
    let above = sorted[at.ceil() as usize];
    below + (above - below) * at.fract()
}

/// Sorted copy without NaN.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
    all.sort_unstable_by(f64::total_cmp);
    all
}

/// The same quantile of values in any order, without sorting them all.
pub fn quantile_of(values: impl IntoIterator<Item = f64>, q: f64) -> f64 {
    let mut all: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
    let Some(last) = all.len().checked_sub(1) else { return f64::NAN };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (_, below, above) = all.select_nth_unstable_by(at.floor() as usize, f64::total_cmp);
    let below = *below;
    let next = above.iter().copied().min_by(f64::total_cmp).filter(|_| at.fract() > 0.0);
    below + (next.unwrap_or(below) - below) * at.fract()
}

/// Median and 1.4826 × the median absolute deviation, which estimates a normal distribution's
/// standard deviation without heeding outliers.
pub fn median_and_mad(values: &[f64]) -> (f64, f64) {
    let median = quantile_of(values.iter().copied(), 0.5);
    let mad = quantile_of(values.iter().map(|v| (v - median).abs()), 0.5);
    (median, 1.4826 * mad)
}

/// The mean; 0 when there are no values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// A line through points, by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Its value at 0.
    pub constant: f64,
    /// By how much it rises for each 1; 0 where all points stand at one place.
    pub slope: f64,
    /// The squared distances of the points from it, summed,
    pub left: f64,
    /// of their values from the mean value,
    pub of_values: f64,
    /// and of their places from the mean place.
    pub of_places: f64,
}

impl Line {
    /// Through at least one point.
    pub fn through(points: &[(f64, f64)]) -> Line {
        let n = points.len().max(1) as f64;
        let (x, y) = points.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0 / n, sum.1 + p.1 / n));
        let of_places: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
        let of_values: f64 = points.iter().map(|p| (p.1 - y).powi(2)).sum();
        let product: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
        let slope = if of_places > 0.0 { product / of_places } else { 0.0 };
        let constant = y - slope * x;
        let left = points.iter().map(|p| (p.1 - constant - slope * p.0).powi(2)).sum();
        Line { constant, slope, left, of_values, of_places }
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, seeded, and the same everywhere, so that a
/// verdict is the same for the same trace.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An index below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_moves_neither_median_nor_scale_far() {
        let (median, scale) = median_and_mad(&[1.0, 2.0, 3.0, 4.0, 1e9]);
        assert_eq!(median, 3.0);
        assert!((scale - 1.4826).abs() < 1e-9);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn quantiles_are_the_same_whether_values_are_sorted_or_not() {
        let mut random = Random::new(7);
        for n in [0, 1, 2, 3, 10, 99, 100, 1024] {
            let values: Vec<f64> = (0..n).map(|_| random.below(50) as f64 / 3.0).collect();
            for q in [0.0, 0.01, 0.25, 0.5, 0.9, 0.999, 1.0] {
                let (one, other) =
                    (quantile_of(values.clone(), q), quantile(&sorted(values.clone()), q));
                assert_eq!(one.to_bits(), other.to_bits(), "{q} of {n}");
            }
        }
    }
}
