//! Which intervals, ranks and links of a recording differ from the others.
//!
//! # What it sees
//! One value an interval (exposed copy, the spread of durations), one a rank (how long it waited in
//! collectives), one a link (how long copies took). Intervals beyond Tukey's fences are anomalous
//! (seed paper of sharded analysis: interquartile range); where half of the intervals are equal the
//! fences mean nothing, and the median absolute deviation or, if that is 0 too, the least effect
//! alone decides, which is said.
//!
//! # Why it matters
//! A stall that all ranks share at the same time is the program's; one that a single rank has is
//! the machine's. The rank that waits least is the one that all others wait for.
//!
//! # What fools it
//! Phases: a program that computes for a minute and copies for a minute has anomalous intervals in
//! one of them, and rightly so; how many there are is said.

use crate::stats::{median_and_mad, quantile, sorted};

/// By which rule values were found anomalous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Beyond 1.5 interquartile ranges from the quartiles (Tukey, 1977).
    Iqr,
    /// Beyond 3.5 scaled median absolute deviations (Iglewicz and Hoaglin, 1993): the quartiles are
    /// equal.
    Mad,
    /// Beyond the least effect alone: half of the values are equal.
    Effect,
    /// None: there are fewer than [`LEAST_VALUES`] values, whose quartiles mean nothing.
    TooFew,
}

impl Rule {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Iqr => "iqr",
            Rule::Mad => "mad",
            Rule::Effect => "effect",
            Rule::TooFew => "too_few",
        }
    }
}

/// An anomalous value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlier {
    /// Its place among the values.
    pub index: usize,
    /// It.
    pub value: f64,
    /// How far it lies beyond the fence.
    pub beyond: f64,
}

/// What is anomalous among values.
#[derive(Clone, Debug, PartialEq)]
pub struct Outliers {
    /// By which rule.
    pub rule: Rule,
    /// First quartile.
    pub q1: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub q3: f64,
    /// From here on values are anomalous.
    pub fence: f64,
    /// Those that are, the farthest beyond the fence first, of equal ones the earlier.
    pub found: Vec<Outlier>,
}

/// Fewer values are not compared: each quartile of seven is one value or the mean of two.
pub const LEAST_VALUES: usize = 8;

/// Values that are anomalously high, and at least `least` above the median. Of fewer than
/// [`LEAST_VALUES`] none is, and the fence is infinite.
pub fn outliers(values: &[f64], least: f64) -> Outliers {
    let ordered = sorted(values.iter().copied());
    let at = |q| quantile(&ordered, q);
    let (q1, median, q3) = (at(0.25), at(0.5), at(0.75));
    if values.len() < LEAST_VALUES {
        let (fence, found) = (f64::INFINITY, Vec::new());
        return Outliers { rule: Rule::TooFew, q1, median, q3, fence, found };
    }
    let (_, mad) = median_and_mad(values);
    let (rule, fence) = if q3 > q1 {
        (Rule::Iqr, q3 + 1.5 * (q3 - q1))
    } else if mad > 0.0 {
        (Rule::Mad, median + 3.5 * mad)
    } else {
        (Rule::Effect, median)
    };
    let mut found: Vec<Outlier> = values
        .iter()
        .enumerate()
        .filter(|(_, value)| **value > fence && **value - median >= least)
        .map(|(index, &value)| Outlier { index, value, beyond: value - fence })
        .collect();
    found.sort_by(|a, b| b.beyond.total_cmp(&a.beyond).then(a.index.cmp(&b.index)));
    Outliers { rule, q1, median, q3, fence, found }
}

/// The places of the greatest twentieth of the values, at least one, greatest first; values of 0 are
/// none.
pub fn most_variable(values: &[f64]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).filter(|&i| values[i] > 0.0).collect();
    places.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    places.truncate(values.len().div_ceil(20).max(1));
    places
}

/// An interval that is anomalous in several series at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// The interval.
    pub index: usize,
    /// In how many series.
    pub series: usize,
    /// The mean of its values there.
    pub mean: f64,
}

/// Intervals that are anomalous in several series, against what chance would make of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// Those of most series first, then the greatest.
    pub found: Vec<Shared>,
    /// At 0, how many intervals there are; at `k`, in how many of them at least `k` series would be
    /// anomalous if the series had nothing to do with each other.
    pub by_chance: Vec<f64>,
}

impl Together {
    /// How many intervals are anomalous in at least `series` of them.
    pub fn at_least(&self, series: usize) -> usize {
        self.found.iter().filter(|shared| shared.series >= series).count()
    }

    /// In how many at least `series` would be by chance.
    pub fn expected(&self, series: usize) -> f64 {
        self.by_chance.get(series).copied().unwrap_or(0.0)
    }

    /// Whether chance would seldom (one time in a hundred) make as many intervals anomalous in at least
    /// `series` of them.
    pub fn is_more_than_chance(&self, series: usize) -> bool {
        let seen = self.at_least(series);
        seen > 0 && poisson_tail(seen, self.expected(series)) < 0.01
    }
}

/// How probable it is that at least `seen` of many rare events happen where `expected` do on average.
fn poisson_tail(seen: usize, expected: f64) -> f64 {
    let (mut term, mut below) = ((-expected).exp(), 0.0);
    for k in 0..seen {
        below += term;
        term *= expected / (k + 1) as f64;
    }
    (1.0 - below).max(0.0)
}

/// Intervals that are among the anomalous ones of more than one series.
pub fn shared(series: &[Outliers], count: usize) -> Together {
    let mut by_index: std::collections::BTreeMap<usize, (usize, f64)> = Default::default();
    for one in series {
        for outlier in &one.found {
            let entry = by_index.entry(outlier.index).or_default();
            entry.0 += 1;
            entry.1 += outlier.value;
        }
    }
    let mut found: Vec<Shared> = by_index
        .into_iter()
        .filter(|(_, (series, _))| *series > 1)
        .map(|(index, (series, sum))| Shared { index, series, mean: sum / series as f64 })
        .collect();
    found.sort_by(|a, b| {
        b.series.cmp(&a.series).then(b.mean.total_cmp(&a.mean)).then(a.index.cmp(&b.index))
    });
    let n = count.max(1) as f64;
    let shares = series.iter().map(|one| one.found.len() as f64 / n);
    let by_chance = tails(shares).into_iter().map(|tail| n * tail).collect();
    Together { found, by_chance }
}

/// How probable it is that at least 0, 1, 2 ... of independent events happen, each with its own
/// probability (the tail of the Poisson binomial distribution).
fn tails(probabilities: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut exactly = vec![1.0];
    for p in probabilities {
        exactly.push(0.0);
        for k in (0..exactly.len()).rev() {
            let one_fewer = if k > 0 { exactly[k - 1] } else { 0.0 };
            exactly[k] = exactly[k] * (1.0 - p) + one_fewer * p;
        }
    }
    // From the end, where the terms are least, so that small tails keep their digits.
    let mut tail = 0.0;
    let mut tails: Vec<f64> = exactly
        .into_iter()
        .rev()
        .map(|p| {
            tail += p;
            tail
        })
        .collect();
    tails.reverse();
    tails
}

/// How one of several stands out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    /// Which.
    pub index: usize,
    /// Its value.
    pub value: f64,
    /// The median of the others'.
    pub others: f64,
}

/// The rank that waits least for the others, given what each waited in the same collectives, if the
/// others wait at least twice as long and at least `least` longer: it is the one that they wait for.
pub fn straggler(waits: &[f64], least: f64) -> Option<Apart> {
    let index = (0..waits.len()).min_by(|&a, &b| waits[a].total_cmp(&waits[b]))?;
    let rest = waits.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, wait)| *wait);
    let others = quantile(&sorted(rest), 0.5);
    let value = waits[index];
    (others >= 2.0 * value && others - value >= least).then_some(Apart { index, value, others })
}

/// The links that are slower than the others for the same bytes, slowest first. `links` are mean and
/// least duration of copies of about the same size; a link is slow if both lie a quarter above the
/// medians of the others, so that neither one long copy nor a single quick one decides.
pub fn slow_links(links: &[(f64, f64)]) -> Vec<Apart> {
    if links.len() < 3 {
        return Vec::new();
    }
    let median_of = |skip: usize, of: fn(&(f64, f64)) -> f64| {
        let rest = links.iter().enumerate().filter(|(i, _)| *i != skip).map(|(_, l)| of(l));
        quantile(&sorted(rest), 0.5)
    };
    let mut slow: Vec<Apart> = (0..links.len())
        .filter_map(|index| {
            let (mean, least) = links[index];
            let (others, leasts) = (median_of(index, |l| l.0), median_of(index, |l| l.1));
            let is_slow = mean > 1.25 * others && least > 1.25 * leasts;
            is_slow.then_some(Apart { index, value: mean, others })
        })
        .collect();
    slow.sort_by(|a, b| b.value.total_cmp(&a.value));
    slow
}

/// How many values there were, their mean and their standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation, of a sample.
    pub std: f64,
}

/// A time from which on durations are others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The split, by its place among those given.
    pub index: usize,
    /// Until then.
    pub before: Moments,
    /// And from then on.
    pub after: Moments,
}

/// Values on either side that suffice for a mean.
const SIDE: u64 = 20;
/// Means that differ less are the same.
const RATIO: f64 = 1.2;
/// Welch's t beyond which a difference is not chance, although the best of fifteen splits is taken.
const SURE: f64 = 10.0;

/// The split that separates durations best, if their means differ by a fifth and not by chance.
///
/// What fools it: one name for work of two sizes, one done early and one late. That is a shift
/// of the program itself.
pub fn shift(splits: &[(Moments, Moments)]) -> Option<Shift> {
    let sure = |a: &Moments, b: &Moments| {
        let error = |m: &Moments| m.std * m.std / m.count as f64;
        // Means that do not vary at all differ for sure; a nanosecond is what clocks resolve.
        (a.mean - b.mean).abs() / (error(a) + error(b)).sqrt().max(1.0)
    };
    let of = splits.iter().enumerate().filter(|(_, (a, b))| a.count >= SIDE && b.count >= SIDE);
    let (index, (before, after)) =
        of.max_by(|x, y| sure(&x.1.0, &x.1.1).total_cmp(&sure(&y.1.0, &y.1.1)))?;
    let ratio = after.mean.max(1.0) / before.mean.max(1.0);
    (ratio.max(1.0 / ratio) >= RATIO && sure(before, after) >= SURE).then_some(Shift {
        index,
        before: *before,
        after: *after,
    })
}

/// Values of one kind before a shift and after it; no values on a side have a count of 0.
pub type Sides = (Moments, Moments);

/// Whether a shift is one of what is done rather than of how long it takes: apart by their kinds (sizes of
/// launches, phases of a program), the values before and after it differ by less than half as much.
///
/// What fools it: kinds that are so many that none of them comes on both sides.
pub fn is_of_kinds(shift: &Shift, kinds: &[Sides]) -> bool {
    let more = |before: &Moments, after: &Moments| (after.mean - before.mean) * after.count as f64;
    let both = kinds.iter().filter(|(before, after)| before.count > 0 && after.count > 0);
    let within: f64 = both.map(|(before, after)| more(before, after)).sum();
    kinds.len() > 1 && within / more(&shift.before, &shift.after) < 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_to_other_launches_is_none_of_how_long_one_takes() {
        let of = |count, mean| Moments { count, mean, std: 10.0 };
        let none = Moments { count: 0, mean: f64::NAN, std: 0.0 };
        let shift = Shift { index: 3, before: of(1000, 3400.0), after: of(1000, 430.0) };
        assert!(is_of_kinds(&shift, &[(of(1000, 3400.0), none), (none, of(1000, 430.0))]));
        // Most of the large ones came before, and all take as long as they did.
        let large = (of(990, 3430.0), of(5, 3430.0));
        assert!(is_of_kinds(&shift, &[large, (of(10, 430.0), of(995, 415.0))]));
        // Both sizes came on both sides, and became quicker.
        let [large, small] = [(of(500, 6000.0), of(500, 760.0)), (of(500, 800.0), of(500, 100.0))];
        assert!(!is_of_kinds(&shift, &[large, small]));
        assert!(!is_of_kinds(&shift, &[(shift.before, shift.after)]), "one kind explains nothing");
    }

    #[test]
    fn a_kernel_that_becomes_slower_shifts_where_it_does() {
        let of = |count, mean| Moments { count, mean, std: 100.0 };
        let splits = [
            (of(100, 1000.0), of(300, 1333.0)),
            (of(200, 1000.0), of(200, 1500.0)),
            (of(300, 1166.0), of(100, 1500.0)),
        ];
        let found = shift(&splits).unwrap();
        assert_eq!((found.index, found.before.mean, found.after.mean), (1, 1000.0, 1500.0));
        assert_eq!(shift(&[(of(200, 1000.0), of(200, 1100.0))]), None, "a tenth is no shift");
        assert_eq!(shift(&[(of(5, 1000.0), of(200, 2000.0))]), None, "five are no mean");
        let wild = |mean| Moments { std: 9000.0, ..of(50, mean) };
        assert_eq!(shift(&[(wild(1000.0), wild(2000.0))]), None, "it may be chance");
    }

    fn outlying(values: &[f64], least: f64) -> String {
        let found = outliers(values, least);
        let places: Vec<usize> = found.found.iter().map(|o| o.index).collect();
        format!("{} {places:?}", found.rule.as_str())
    }

    #[test]
    fn values_beyond_the_fence_come_farthest_first() {
        let mut values: Vec<f64> = (0..40).map(|i| 10.0 + f64::from(i % 5)).collect();
        values[7] = 40.0;
        values[31] = 25.0;
        assert_eq!(outlying(&values, 0.0), "iqr [7, 31]");
        assert_eq!(outlying(&values, 20.0), "iqr [7]", "the other is not worth reporting");
    }

    #[test]
    fn where_quartiles_are_equal_another_rule_decides_and_says_so() {
        // A quarter and a bit differs: the quartiles are equal, the deviations are not all 0.
        let mut values = vec![5.0; 40];
        (0..9).for_each(|i| values[i] = 5.1);
        (9..21).for_each(|i| values[i] = 4.9);
        values[20] = 9.0;
        assert!(outlying(&values, 0.5).ends_with("[20]"), "{}", outlying(&values, 0.5));
        // Idle but for two intervals.
        let mut values = vec![0.0; 40];
        (values[3], values[30]) = (2.0, 7.0);
        assert_eq!(outlying(&values, 0.0), "effect [30, 3]");
        assert_eq!(outlying(&values, 5.0), "effect [30]");
        assert_eq!(outlying(&[0.0; 10], 0.0), "effect []");
        assert_eq!(outlying(&[], 0.0), "too_few []");
    }

    #[test]
    fn a_few_values_are_not_compared() {
        let one_stands_out = [0.0, 0.0, 0.0, 900.0];
        assert_eq!(outlying(&one_stands_out, 1.0), "too_few []");
        assert_eq!(outliers(&[360.731], 1.0).fence, f64::INFINITY);
        assert_eq!(outlying(&[1.0, 1.0, 1.0, 1.0, 900.0, 1.0, 1.0, 1.0], 1.0), "effect [4]");
    }

    #[test]
    fn the_most_variable_twentieth_is_at_least_one() {
        assert_eq!(most_variable(&[0.0, 3.0, 1.0]), [1]);
        let values: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(most_variable(&values), [99, 98, 97, 96, 95]);
        assert!(most_variable(&[0.0; 5]).is_empty());
    }

    #[test]
    fn stalls_that_ranks_share_come_with_what_chance_would_make_of_them() {
        let lane = |hot: &[usize]| {
            let mut values = vec![1.0; 50];
            hot.iter().for_each(|&i| values[i] = 10.0);
            outliers(&values, 1.0)
        };
        let all = shared(&[lane(&[35, 36, 4]), lane(&[35, 36]), lane(&[35, 9])], 50);
        let places: Vec<(usize, usize)> = all.found.iter().map(|s| (s.index, s.series)).collect();
        assert_eq!(places, [(35, 3), (36, 2)]);
        // All three: 50 x 3/50 x 2/50 x 2/50. At least two: besides, each pair without the third.
        let three = 50.0 * 0.06 * 0.04 * 0.04;
        let pairs = 50.0 * (2.0 * 0.06 * 0.04 * 0.96 + 0.04 * 0.04 * 0.94);
        assert!((all.expected(3) - three).abs() < 1e-12);
        assert!((all.expected(2) - pairs - three).abs() < 1e-12);
        assert!(all.is_more_than_chance(3), "once in 200 recordings, and here it is");
    }

    #[test]
    fn five_of_five_at_once_are_no_chance_and_pairs_among_many_busy_series_are() {
        let lane = |hot: &[usize]| {
            let mut values = vec![1.0; 100];
            hot.iter().for_each(|&i| values[i] = 10.0);
            outliers(&values, 1.0)
        };
        let five: Vec<Outliers> = (0..5).map(|_| lane(&[10, 20, 30, 40])).collect();
        let all = shared(&five, 100);
        // As the number of pairs it was 10 x 4 x 4 / 100 = 1.6.
        assert!((all.expected(5) - 100.0 * 0.04f64.powi(5)).abs() < 1e-12);
        assert!(all.expected(5) < 1.1e-5 && all.is_more_than_chance(5));
        // Eight series that stall in other intervals each, and two of them in the same.
        let eight: Vec<Outliers> =
            (0..8).map(|i| lane(&[3 * i, 3 * i + 1, 3 * i + 2, 30 + 7 * (i % 7)])).collect();
        let all = shared(&eight, 100);
        assert_eq!((all.at_least(2), all.found[0].series), (1, 2));
        assert!(!all.is_more_than_chance(2), "{}", all.expected(2));
    }

    #[test]
    fn the_rank_that_waits_least_is_waited_for() {
        assert_eq!(straggler(&[240.9, 5.1, 23.1], 1.0).unwrap().index, 1);
        assert_eq!(straggler(&[20.0, 19.0, 21.0], 1.0), None, "all wait alike");
        assert_eq!(straggler(&[0.2, 0.5, 0.5], 1.0), None, "nobody waits");
        assert_eq!(straggler(&[], 1.0), None);
        assert_eq!(straggler(&[5.0], 1.0), None);
    }

    #[test]
    fn a_slow_link_is_slow_at_its_best_too() {
        let links = [(3569.0, 3100.0), (3891.0, 3200.0), (3556.0, 3100.0), (5417.0, 4608.0)];
        let slow = slow_links(&links);
        assert_eq!(slow.iter().map(|s| s.index).collect::<Vec<_>>(), [3]);
        // One copy that took long makes no slow link.
        assert!(slow_links(&[(3500.0, 3000.0), (3600.0, 3000.0), (9000.0, 3050.0)]).is_empty());
        assert!(slow_links(&[(1.0, 1.0), (9.0, 9.0)]).is_empty(), "of two, who is slow?");
    }
}
