//! When a verdict of an incident that lasts is given for the first time.
//!
//! # What it sees
//! One judgement after the other of the same incident, each of more steps than the one before.
//!
//! # Why it matters
//! The first judgement is of a handful of steps. Somebody who computes and writes is in the way of the next step at
//! once, on its CPU, and of the next checkpoint later, on its disk. The start of a disturbance makes work slower by a
//! little that has other reasons than the disturbance itself. A verdict that is revised a second later was wrong when
//! it was read.
//!
//! # What fools it
//! Two judgements that agree may both be wrong.

use gpuwhy_schema::Ns;

use super::{Cause, Finding};

/// An excess of so many usual steps is told at once,
const LARGE: f64 = 1.0;
/// and whatever an incident is that has lasted for so long.
const SETTLED: Ns = Ns::secs(1);

/// The judgements of an incident before its first verdict.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstWord {
    class: Option<&'static str>,
}

impl FirstWord {
    /// Whether a decided finding is told, when the incident has lasted for so long: if the judgement before came to
    /// the same class, or the excess is large; not in the first second if the same culprit is named for
    /// another class too.
    pub fn is_told(&mut self, finding: &Finding, lasted: Ns) -> bool {
        let before = self.class.replace(finding.class);
        if lasted >= SETTLED {
            return true;
        }
        let large = finding.excess_ms >= LARGE * finding.usual_ms;
        !is_blamed_twice(&finding.causes) && (large || before == Some(finding.class))
    }
}

/// Whether the culprit of the first cause is that of another one.
fn is_blamed_twice(causes: &[Cause]) -> bool {
    let culprit = |cause: &Cause| cause.culprit.as_ref().map(|culprit| culprit.entity);
    let Some((first, others)) = causes.split_first() else { return false };
    culprit(first).is_some() && others.iter().any(|other| culprit(other) == culprit(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Culprit;

    fn cause(class: &'static str, culprit: Option<u32>) -> Cause {
        let culprit = culprit.map(|entity| Culprit {
            entity,
            kind: "process",
            pid: Some(i64::from(entity)),
            tid: None,
            comm: None,
            name: None,
            cgroup: None,
            belongs_to: Vec::new(),
            processes: 1,
        });
        Cause {
            rank: 1,
            class,
            culprit,
            others: Vec::new(),
            culprit_ms: 0.0,
            culprit_support: None,
            members: Vec::new(),
            trust: 1.0,
            excess_ms: 0.0,
            confidence: 0.9,
            evidence_for: Vec::new(),
            evidence_against: Vec::new(),
            verify: String::new(),
            instance_of: None,
        }
    }

    fn finding(excess_ms: f64, causes: Vec<Cause>) -> Finding {
        Finding { class: causes[0].class, usual_ms: 20.0, excess_ms, causes, ..Finding::empty() }
    }

    #[test]
    fn a_small_excess_is_told_when_two_judgements_agree() {
        let mut first = FirstWord::default();
        let (code, cpu) =
            (|| vec![cause("engine_software", None)], || vec![cause("cpu_contention", Some(7))]);
        assert!(!first.is_told(&finding(2.0, code()), Ns::millis(150)));
        assert!(!first.is_told(&finding(8.0, cpu()), Ns::millis(400)));
        assert!(first.is_told(&finding(9.0, cpu()), Ns::millis(650)));
    }

    #[test]
    fn an_excess_of_a_whole_step_is_told_at_once() {
        let stopped = finding(40.0, vec![cause("collective_straggler", Some(3))]);
        assert!(FirstWord::default().is_told(&stopped, Ns::millis(150)));
    }

    #[test]
    fn who_is_in_the_way_in_two_ways_is_judged_after_a_second() {
        let both =
            || finding(40.0, vec![cause("cpu_contention", Some(7)), cause("block_io", Some(7))]);
        let mut first = FirstWord::default();
        assert!(!first.is_told(&both(), Ns::millis(200)));
        assert!(!first.is_told(&both(), Ns::millis(700)));
        assert!(first.is_told(&both(), Ns::millis(1000)));
    }

    #[test]
    fn an_incident_of_a_second_is_told_whatever_was_thought_before() {
        let mut first = FirstWord::default();
        assert!(
            !first.is_told(&finding(2.0, vec![cause("engine_software", None)]), Ns::millis(300))
        );
        assert!(first.is_told(&finding(2.0, vec![cause("interrupts", None)]), Ns::millis(1200)));
    }
}
