//! Whether the mean of a tenant's requests changed from one run to another, or only varies.
//!
//! # How
//! Requests follow one another, and neighbours in time are alike, so their own spread says too little. Each run is cut into
//! stretches of consecutive requests; the spread of the stretches' means says how far the mean of a run is from that of
//! another run like it. A change counts if it is more than three standard errors, as Student's distribution has them for
//! so few stretches, and more than 1 % of the base.
//!
//! # What fools it
//! What lasts longer than a stretch, such as a phase of the program that only one of the runs has, is a change here.

use crate::stats::mean;

/// Fewer stretches in a run say nothing of what it varies by.
const FEW: usize = 5;
/// So many standard errors, where stretches are many.
const ERRORS: f64 = 3.0;
/// Less than this share of the base is no change, however sure.
const LEAST: f64 = 0.01;

/// By how much a difference of two means may be by itself, in their unit, from the means of each run's stretches; `None`
/// where a run has fewer than five.
pub fn noise(base: &[f64], run: &[f64]) -> Option<f64> {
    let fewest = base.len().min(run.len());
    if fewest < FEW {
        return None;
    }
    let error = (squared_error(base) + squared_error(run)).sqrt();
    Some(errors((fewest - 1) as f64) * error)
}

/// Whether a change of a mean is one; `None` where it is not known by how much it may change by itself.
pub fn is_change(base: f64, change: f64, noise: Option<f64>) -> Option<bool> {
    noise.map(|noise| change.abs() > noise && change.abs() > LEAST * base.abs())
}

/// Of a mean, from those of stretches.
fn squared_error(stretches: &[f64]) -> f64 {
    let middle = mean(stretches);
    let squares: f64 = stretches.iter().map(|one| (one - middle) * (one - middle)).sum();
    let n = stretches.len() as f64;
    squares / (n - 1.0) / n
}

/// The quantile of Student's distribution that three standard errors are of the normal one (0.27 % lie beyond), by the
/// expansion of Cornish and Fisher: 6.4 for 4 degrees of freedom, of 6.6.
fn errors(freedom: f64) -> f64 {
    let z = ERRORS;
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    let first = (z3 + z) / 4.0;
    let second = (5.0 * z5 + 16.0 * z3 + 3.0 * z) / 96.0;
    let third = (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    /// Means of stretches around 10, give or take 1.
    fn stretches(random: &mut Random, n: usize, more: f64) -> Vec<f64> {
        (0..n).map(|_| 9.0 + more + random.below(2_001) as f64 / 1_000.0).collect()
    }

    #[test]
    fn equal_runs_rarely_change_and_a_change_of_a_fifth_is_seen() {
        let mut random = Random::new(3);
        for n in [5, 10, 20] {
            let mut changed = [0, 0];
            for _ in 0..1_000 {
                let base = stretches(&mut random, n, 0.0);
                for (more, changed) in [0.0, 2.0].into_iter().zip(&mut changed) {
                    let run = stretches(&mut random, n, more);
                    let noise = noise(&base, &run);
                    let change = mean(&run) - mean(&base);
                    *changed += u32::from(is_change(mean(&base), change, noise) == Some(true));
                }
            }
            assert!(changed[0] <= 10, "{n} stretches: {changed:?} of 1,000");
            // With 5 stretches on each side much more cannot be told.
            assert!(changed[1] > if n > 5 { 990 } else { 200 }, "{n} stretches: {changed:?}");
        }
    }

    #[test]
    fn the_quantiles_are_those_of_students_distribution() {
        for (freedom, truly) in [(4.0, 6.62), (9.0, 4.09), (19.0, 3.45)] {
            assert!((errors(freedom) / truly - 1.0).abs() < 0.04, "{freedom}: {}", errors(freedom));
        }
    }

    #[test]
    fn too_few_stretches_say_nothing_and_little_is_no_change() {
        assert_eq!(noise(&[1.0; 4], &[1.0; 20]), None);
        assert_eq!(is_change(1.0, 5.0, None), None);
        let exact = noise(&[1.0; 5], &[1.005; 5]);
        assert_eq!((exact, is_change(1.0, 0.005, exact)), (Some(0.0), Some(false)));
        assert_eq!(is_change(1.0, -0.02, exact), Some(true));
    }
}
