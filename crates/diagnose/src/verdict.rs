//! From an excess to a verdict: class, culprit, confidence, and the evidence both ways.
//!
//! Causes are ranked by the milliseconds that they account for. Confidence is the share of 200
//! seeded bootstrap resamples (of the usual and the slow steps) in which the same class comes out
//! first, times the share of the growth that is explained, less what too few steps and lost
//! records leave open, [calibrated](crate::calibration) on trials of known cause. Below
//! [`Judgement::decide_at`] the verdict is "insufficient evidence", and the causes are still listed.

mod context;
mod culprits;
mod finding;
mod first_word;
mod guilt;
mod neighbours;
mod rank;
mod select;
mod statements;

use std::collections::BTreeMap;

use gpuwhy_schema::{Class, EntityId, PartKind};

use crate::calibration::Calibration;
use crate::classes;
use crate::detect::{self, Against, Narrowed, Slowed, Steps, mean_excess};
use crate::excess::{Compared, Excess, compared, profiles, where_it_ran};
use crate::on_cpu::{Doubt, OnCpu, Work};
use crate::spans::StepRows;

pub use crate::evidence::{Evidence, Pointer};
pub use context::JudgeContext;
pub use finding::{
    Cause, Counterfactual, Culprit, Drift, Finding, Outcome, PartMs, SlowedSeries, rows,
};
pub use first_word::FirstWord;
pub use select::select_steps;

use rank::Ranked;
use statements::Stating;

/// Ns in a ms.
const MS: f64 = 1e6;

/// How a judgement is passed.
#[derive(Clone, Copy, Debug)]
pub struct Judgement {
    /// Confidence from which a verdict is given.
    pub decide_at: f64,
    /// Bootstrap resamples.
    pub resamples: usize,
    /// Causes that are reported at most.
    pub causes: usize,
    /// From the confidence as computed to how often such a verdict is right.
    pub calibration: Calibration,
}

impl Default for Judgement {
    fn default() -> Judgement {
        Judgement { decide_at: 0.5, resamples: 200, causes: 5, calibration: Calibration::MEASURED }
    }
}

/// Judges one incident from the rows of its steps.
pub fn judge(
    steps: &Steps,
    incident: &Narrowed,
    rows: &StepRows,
    context: &JudgeContext<'_>,
    judgement: &Judgement,
) -> Finding {
    let profiles = profiles(steps, rows);
    let series = compared(steps, incident, &profiles);
    let excess = Excess::of(&series);
    let stating = Stating::new(steps, incident, rows, &excess, context);
    let lasted = (incident.from, incident.to);
    let others = neighbours::neighbours(context, stating.workload(), lasted);
    let ran = where_it_ran(&series);
    let work = work(steps, incident);
    let slow = incident.slowed.iter().map(|s| s.slow.len()).sum();
    let long = incident.slowed.first().and_then(|first| detect::long_among(steps, first));
    let on_cpu = OnCpu::new(&ran.stretches, others).beside(&ran.peers).differing_by(ran.spread);
    let on_cpu = on_cpu.on_virtual_cpus(context.is_virtual());
    let batches = incident.slowed.iter().all(|slowed| slowed.signature.mix.is_some());
    let on_cpu = on_cpu.of_work(work).of_batches(batches).of_steps(slow).among(long);
    let ranked = Ranked::new(&series, &excess, on_cpu, lasted, context, judgement);
    let mut causes = causes(&ranked, &stating, context, judgement);
    if causes.is_empty() {
        causes.push(statements::nothing_recorded(&excess));
    }
    of_one_doer(&mut causes, &ranked);
    statements::contradict(&mut causes, &ranked, context);
    let raw_confidence = causes[0].confidence;
    causes[0].confidence = calibrated(&causes[0], &ranked, judgement);
    let mut finding = Finding {
        from_ns: incident.from.0,
        to_ns: incident.to.0,
        raw_confidence,
        series: incident.slowed.iter().map(|s| slowed_series(steps, s, context)).collect(),
        ruled_out: statements::ruled_out(&excess, &causes),
        ..measured(&excess)
    };
    if series.is_empty() {
        let of_first = incident.slowed.first().map_or(0.0, |s| mean_excess(steps, s));
        finding.excess_ms = of_first / MS;
        finding.unexplained_ms = finding.excess_ms;
    }
    conclude(&mut finding, causes, &series, judgement);
    finding
}

/// The classes that hold enough of the growth, each with its statements.
fn causes(
    ranked: &Ranked<'_>,
    stating: &Stating<'_>,
    context: &JudgeContext<'_>,
    judgement: &Judgement,
) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (rank, (class, ns)) in ranked.causes().take(judgement.causes).enumerate() {
        let mut cause = Cause {
            rank: rank as u32 + 1,
            class: class.as_str(),
            culprit: None,
            others: Vec::new(),
            culprit_ms: 0.0,
            culprit_support: None,
            members: Vec::new(),
            trust: 1.0,
            excess_ms: ns / MS,
            confidence: ranked.confidence(rank, (class, ns), context),
            evidence_for: Vec::new(),
            evidence_against: Vec::new(),
            verify: String::new(),
            instance_of: Some(class),
        };
        stating.complete(&mut cause, ranked);
        causes.push(cause);
    }
    causes
}

/// Somebody whom a CPU was waited for slows what runs beside it as well; what is seen of it has to be this share of the whole
/// growth for the rest to be taken for its doing without a doubt, and less is trusted less.
const SEEN_OF_DOER: f64 = 0.6;
/// And this share at least.
const SEEN_AT_LEAST: f64 = 0.25;

/// Puts `cpu_contention` before `engine_software` if the only doubt in that the program did more is a neighbour who is also
/// the one whom it waited for: both are that neighbour's doing, one seen, the other through what CPUs share.
fn of_one_doer(causes: &mut [Cause], ranked: &Ranked<'_>) {
    let Some(Doubt::Neighbour(neighbour)) = ranked.doubt() else { return };
    if causes[0].instance_of != Some(Class::EngineSoftware) {
        return;
    }
    let is_its = |cause: &Cause| {
        let command = cause.culprit.as_ref().and_then(Culprit::command);
        cause.instance_of == Some(Class::CpuContention)
            && command.is_some()
            && command == neighbour.command
    };
    let Some(at) = causes.iter().position(is_its) else { return };
    let seen = causes[at].excess_ms * MS / ranked.growth.max(1.0);
    if seen < SEEN_AT_LEAST {
        return;
    }
    causes[..=at].rotate_right(1);
    (1..).zip(&mut *causes).for_each(|(rank, cause)| cause.rank = rank);
    let both = [Class::CpuContention, Class::EngineSoftware];
    let (first, rest) = causes.split_at_mut(1);
    let (first, ran) = (&mut first[0], &rest[0]);
    first.confidence = ranked.confidence_of_any(&both);
    first.trust *= (seen / SEEN_OF_DOER).min(1.0);
    first.evidence_for.push(Evidence::of(format!(
        "{} ran {:.2} CPUs, {:.2} before: that the program ran for {:+.3} ms a step may be its doing as well, through what \
         CPUs share",
        neighbour.name, neighbour.during, neighbour.before, ran.excess_ms
    )));
}

/// How often a verdict with this first cause is right.
fn calibrated(first: &Cause, ranked: &Ranked<'_>, judgement: &Judgement) -> f64 {
    let raw = first.confidence;
    let confidence = if raw > 0.0 { judgement.calibration.apply(raw) } else { raw };
    match first.instance_of {
        Some(class) => {
            let trust = first.trust * (classes::of(class).trust)(&ranked.incident(class));
            confidence * trust * ranked.of_two()
        }
        None => confidence,
    }
}

/// As much was asked for as before if this share of what was lost is known to be so.
const KNOWN: f64 = 0.5;

/// How much work the steps of an incident were, as far as that is known.
fn work(steps: &Steps, incident: &Narrowed) -> Work {
    let busy = incident.slowed.iter().filter(|s| s.signature.is_busy_period());
    let busy: Vec<_> = busy.collect();
    if busy.is_empty() {
        return Work::Marked;
    }
    let lost = |s: &Slowed| (mean_excess(steps, s) * s.slow.len() as f64).max(0.0);
    let all: f64 = busy.iter().map(|s| lost(s)).sum();
    let asked = busy.iter().filter_map(|s| Some((lost(s), detect::asked_as_before(steps, s)?)));
    let asked: Vec<_> = asked.collect();
    let known: f64 = asked.iter().map(|(lost, _)| lost).sum();
    let most = asked.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    match most {
        Some((_, messages)) if known >= KNOWN * all => Work::Asked(*messages),
        _ => Work::Any,
    }
}

/// A finding with what the steps were measured to take, and nothing else.
fn measured(excess: &Excess) -> Finding {
    let kinds = excess.kinds();
    let seen = kinds.iter().filter(|(kind, _)| **kind != PartKind::Unknown);
    let mut parts_ms: BTreeMap<&'static str, f64> =
        seen.map(|(kind, (usual, slow))| (kind.as_str(), (slow - usual) / MS)).collect();
    parts_ms.retain(|_, ms| *ms != 0.0);
    let unknown = kinds.get(&PartKind::Unknown).map_or(0.0, |(usual, slow)| slow - usual);
    let part = |usual: f64, slow: f64| PartMs {
        usual: usual / MS,
        slow: slow / MS,
        excess: (slow - usual) / MS,
    };
    Finding {
        usual_ms: excess.usual / MS,
        slow_ms: excess.slow / MS,
        excess_ms: excess.total() / MS,
        parts_ms,
        unexplained_ms: unknown / MS,
        parts: kinds.iter().map(|(kind, &(u, s))| (kind.as_str(), part(u, s))).collect(),
        slow_steps: excess.slow_steps,
        usual_steps: excess.usual_steps,
        ..Finding::empty()
    }
}

/// The steps that were accounted for are like all slow ones if they show at least this share of what these took longer.
const SHOWN: f64 = 0.2;
/// The confidence in a cause of steps that are not.
const OF_OTHERS: f64 = 0.4;

/// Where the steps that were accounted for did not take longer as all slow ones did, what they waited for says little.
fn is_shown(finding: &Finding) -> bool {
    let all = finding.series.iter().map(|series| series.excess_ms).filter(|ms| *ms > 0.0);
    let least = all.fold(f64::INFINITY, f64::min);
    finding.slow_ms == 0.0 || !least.is_finite() || finding.excess_ms >= SHOWN * least
}

/// Decides whether the first cause is believed, and says so.
fn conclude(
    finding: &mut Finding,
    mut causes: Vec<Cause>,
    series: &[Compared<'_>],
    judgement: &Judgement,
) {
    if !is_shown(finding) {
        causes[0].confidence = causes[0].confidence.min(OF_OTHERS);
        causes[0].evidence_against.push(Evidence::of(format!(
            "the {} slow steps that were accounted for took {:+.3} ms longer, where all slow ones took {:+.3} ms: they are \
             others",
            finding.slow_steps, finding.excess_ms, finding.series[0].excess_ms
        )));
    }
    let first = &causes[0];
    let decided = first.confidence >= judgement.decide_at && first.instance_of.is_some();
    finding.confidence = first.confidence;
    if decided {
        finding.outcome = Outcome::Decided;
        finding.class = first.class;
        finding.culprit = first.culprit.clone();
        finding.culprit_support = first.culprit_support;
        finding.counterfactual =
            first.culprit.as_ref().and_then(|c| counterfactual(c, &first.members, series));
    }
    finding.causes = causes;
    finding.summary = finding::summary(finding);
}

/// What the slow steps would have taken without the culprit.
fn counterfactual(
    culprit: &Culprit,
    members: &[(EntityId, f64)],
    series: &[Compared<'_>],
) -> Option<Counterfactual> {
    let without = crate::excess::without(series, members)?;
    Some(Counterfactual {
        without: culprit.clone(),
        p99_ms: without.p99 / MS,
        p99_without_ms: without.p99_without / MS,
        mean_ms: without.mean / MS,
        mean_without_ms: without.mean_without / MS,
    })
}

fn slowed_series(steps: &Steps, slowed: &Slowed, context: &JudgeContext<'_>) -> SlowedSeries {
    let of = context.entity(slowed.signature.of);
    SlowedSeries {
        name: match slowed.signature.mix {
            Some(mix) => format!("{} ({})", slowed.signature.name, mix.as_str()),
            None => slowed.signature.name.to_string(),
        },
        tid: of.and_then(|of| of.number),
        comm: of.map_or(String::new(), |of| of.name.to_string()),
        rank: slowed.slow.first().and_then(|&no| steps[no].rank),
        usual_ms: slowed.fit.center.exp() / MS,
        threshold_ms: slowed.threshold.0 as f64 / MS,
        steps: slowed.slow.len(),
        excess_ms: mean_excess(steps, slowed) / MS,
        drift: match slowed.against {
            Against::Drifted(of) => Some(Drift { since_ns: of.since.0, per_minute: of.per_minute }),
            Against::Lately | Against::Longest | Against::Reference => None,
        },
        reference: slowed.against == Against::Reference,
    }
}

#[cfg(test)]
mod tests;
