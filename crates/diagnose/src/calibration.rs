//! From the confidence that a judgement has in itself to how often such a judgement is right.
//!
//! *Source*: Platt, "Probabilistic Outputs for Support Vector Machines", 1999: a logistic curve
//! through the log odds. With two parameters it can be fitted to some hundred trials.

/// A logistic curve through the log odds of a confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// What the log odds are multiplied by; 1 changes nothing.
    pub slope: f64,
    /// What is added to them; 0 changes nothing.
    pub shift: f64,
}

/// Confidences nearer to 0 or 1 than this count as this: no number of trials shows more.
const NEAREST: f64 = 0.005;
/// How strongly the curve is held to changing nothing, in trials.
const HELD: f64 = 1.0;

fn odds(confidence: f64) -> f64 {
    let p = confidence.clamp(NEAREST, 1.0 - NEAREST);
    (p / (1.0 - p)).ln()
}

impl Default for Calibration {
    fn default() -> Calibration {
        Calibration { slope: 1.0, shift: 0.0 }
    }
}

impl Calibration {
    /// Fitted on trials of the benchmark of host interference (docs/faults-benchmark.md): its figures
    /// `calibration_slope` and `calibration_shift`.
    pub const MEASURED: Calibration = Calibration { slope: 0.827, shift: 1.007 };

    /// The curve that fits judgements of these confidences, right or wrong, best.
    pub fn fit(judged: &[(f64, bool)]) -> Calibration {
        let mut at = Calibration::default();
        // Newton's method; the problem is convex, and its two-by-two system has a closed form.
        for _ in 0..50 {
            let (mut gs, mut gb) = (HELD * (at.slope - 1.0), HELD * at.shift);
            let (mut ss, mut sb, mut bb) = (HELD, 0.0, HELD);
            for &(confidence, right) in judged {
                let x = odds(confidence);
                let p = at.of_odds(x);
                let error = p - f64::from(u8::from(right));
                let weight = p * (1.0 - p);
                gs += error * x;
                gb += error;
                ss += weight * x * x;
                sb += weight * x;
                bb += weight;
            }
            let det = ss * bb - sb * sb;
            if det.abs() < 1e-12 {
                break;
            }
            let (ds, db) = ((bb * gs - sb * gb) / det, (ss * gb - sb * gs) / det);
            at.slope -= ds.clamp(-1.0, 1.0);
            at.shift -= db.clamp(-1.0, 1.0);
            if ds.abs() + db.abs() < 1e-9 {
                break;
            }
        }
        // More confidence never means less.
        Calibration { slope: at.slope.max(0.0), ..at }
    }

    fn of_odds(&self, x: f64) -> f64 {
        1.0 / (1.0 + (-(self.slope * x + self.shift)).exp())
    }

    /// How often judgements of this confidence are right.
    pub fn apply(&self, confidence: f64) -> f64 {
        self.of_odds(odds(confidence))
    }
}

/// The expected calibration error: how far confidence lies from the share that is right, over ten
/// bins of as many judgements each, by their size (Naeini, Cooper, Hauskrecht, AAAI 2015).
pub fn expected_error(judged: &[(f64, bool)], confidence: impl Fn(f64) -> f64) -> f64 {
    let mut all: Vec<(f64, bool)> = judged.iter().map(|j| (confidence(j.0), j.1)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let size = all.len().div_ceil(10).max(1);
    let n = all.len().max(1) as f64;
    all.chunks(size)
        .map(|bin| {
            let sure: f64 = bin.iter().map(|j| j.0).sum();
            let right = bin.iter().filter(|j| j.1).count() as f64;
            (sure - right).abs() / n
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    fn judged(random: &mut Random, n: usize, truth: impl Fn(f64) -> f64) -> Vec<(f64, bool)> {
        (0..n)
            .map(|_| {
                let confidence = 0.5 + random.below(500) as f64 / 1000.0;
                (confidence, (random.below(100_000) as f64 / 1e5) < truth(confidence))
            })
            .collect()
    }

    #[test]
    fn an_overconfident_judge_is_brought_down() {
        let mut random = Random::new(4);
        let all = judged(&mut random, 4000, |c| 0.5 + (c - 0.5) / 2.0);
        let calibration = Calibration::fit(&all[..2000]);
        let before = expected_error(&all[2000..], |c| c);
        let after = expected_error(&all[2000..], |c| calibration.apply(c));
        assert!(before > 0.1 && after < 0.04, "{before} {after}");
        assert!(calibration.apply(0.95) > calibration.apply(0.6));
    }

    #[test]
    fn a_judge_that_is_surer_when_it_is_wrong_is_never_less_sure_by_more_confidence() {
        let mut random = Random::new(6);
        let calibration = Calibration::fit(&judged(&mut random, 4000, |c| 1.4 - c));
        assert_eq!(calibration.apply(0.95), calibration.apply(0.6), "{calibration:?}");
    }

    #[test]
    fn an_honest_judge_is_left_alone() {
        let mut random = Random::new(5);
        let calibration = Calibration::fit(&judged(&mut random, 4000, |c| c));
        assert!((calibration.apply(0.8) - 0.8).abs() < 0.03, "{calibration:?}");
    }

    #[test]
    fn nothing_to_learn_from_changes_nothing() {
        assert_eq!(Calibration::fit(&[]), Calibration::default());
        assert_eq!(expected_error(&[], |c| c), 0.0);
    }

    #[test]
    fn a_judge_that_is_always_right_ends_up_surer() {
        let calibration = Calibration::fit(&[(0.7, true); 100]);
        assert!(calibration.apply(0.7) > 0.9, "{calibration:?}");
    }
}
