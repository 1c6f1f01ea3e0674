//! What is found out about an incident: a finding, its causes, who did it, and one sentence for people.

use std::collections::BTreeMap;
use std::fmt;

use gpuwhy_schema::{Class, EntityId, Id, Name, Ns, PartKind, Rows, TrackId};
use serde::Serialize;

use super::MS;
use crate::classes;
use crate::evidence::Evidence;

/// Whether a cause is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The first cause is believed.
    Decided,
    /// Something was slower, but what was seen does not say why.
    InsufficientEvidence,
}

/// Who did it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Culprit {
    /// Its entity in the trace.
    pub entity: u32,
    /// What it is: `process`, `cgroup`, …
    pub kind: &'static str,
    /// Its pid, if it is a process; of a thread, its process's.
    pub pid: Option<i64>,
    /// Its tid, if it is a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<i64>,
    /// Its name, if it is a process.
    pub comm: Option<String>,
    /// Its name, if it is a device.
    pub name: Option<String>,
    /// Its cgroup, or itself if it is one.
    pub cgroup: Option<String>,
    /// The container and the job that it belongs to, outermost last.
    pub belongs_to: Vec<String>,
    /// How many processes of the same command and control group it stands for: many short ones may do together
    /// what none of them does alone.
    pub processes: usize,
}

impl Culprit {
    /// Its command and control group, if it is a process.
    pub(crate) fn command(&self) -> Option<(String, Option<String>)> {
        Some((self.comm.clone()?, self.cgroup.clone()))
    }
}

/// A cause, with what speaks for and against it.
#[derive(Clone, Debug, Serialize)]
pub struct Cause {
    /// 1 for the first.
    pub rank: u32,
    /// What it is an instance of.
    pub class: &'static str,
    /// Who did it.
    pub culprit: Option<Culprit>,
    /// Others that were in the way for the same reason, with their ms a step.
    pub others: Vec<(Culprit, f64)>,
    /// How many ms of the excess of a step are blamed on the culprit.
    pub culprit_ms: f64,
    /// How strongly what was measured supports that it is this culprit, from 0 to 1. It is not calibrated: no share
    /// of right answers.
    pub culprit_support: Option<f64>,
    /// How many ms of the excess of a step it accounts for.
    pub excess_ms: f64,
    /// How sure it is of its class, from 0 to 1.
    pub confidence: f64,
    /// What speaks for it.
    pub evidence_for: Vec<Evidence>,
    /// What speaks against it.
    pub evidence_against: Vec<Evidence>,
    /// What would prove it.
    pub verify: String,
    #[serde(skip)]
    pub(super) instance_of: Option<Class>,
    /// Whose parts go if the culprit goes, each with the share of them that does.
    #[serde(skip)]
    pub(super) members: Vec<(EntityId, f64)>,
    /// What its culprits leave of its confidence.
    #[serde(skip)]
    pub(super) trust: f64,
}

impl Cause {
    /// The kinds of part that are evidence for its class.
    pub fn kinds(&self) -> Vec<&'static str> {
        let kinds = self.instance_of.map(|class| classes::of(class).kinds());
        kinds.into_iter().flatten().map(PartKind::as_str).collect()
    }
}

/// Ms a step of one kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PartMs {
    /// In usual steps.
    pub usual: f64,
    /// In slow steps.
    pub slow: f64,
    /// The difference.
    pub excess: f64,
}

/// One slowed series.
#[derive(Clone, Debug, Serialize)]
pub struct SlowedSeries {
    /// Name of the steps.
    pub name: String,
    /// The tid of the thread; of a process whose threads take them by turns, its pid.
    pub tid: Option<i64>,
    /// Its name.
    pub comm: String,
    /// The rank.
    pub rank: Option<u32>,
    /// Median of usual steps, ms.
    pub usual_ms: f64,
    /// The threshold of a single step, ms.
    pub threshold_ms: f64,
    /// Slow steps.
    pub steps: usize,
    /// Mean excess of a step, ms.
    pub excess_ms: f64,
    /// How it came to that, if little by little.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// Whether what is usual is what it took in a recording before this one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reference: bool,
}

/// How steps have come to take longer, too slowly for any of them to be unusual.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Drift {
    /// When they took what is usual, ns on the trace clock.
    pub since_ns: i64,
    /// By which share they have grown a minute: 0.01 is 1 %.
    pub per_minute: f64,
}

/// What the slow steps would have taken had the culprit not been in the way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counterfactual {
    /// Who is thought away.
    pub without: Culprit,
    /// Their 99th percentile, ms.
    pub p99_ms: f64,
    /// The same without the culprit.
    pub p99_without_ms: f64,
    /// Their mean, ms.
    pub mean_ms: f64,
    /// The same without the culprit.
    pub mean_without_ms: f64,
}

impl fmt::Display for Counterfactual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "without {} the slow steps would have taken {} instead of {}, their p99 {} instead of {}",
            self.without,
            time(self.mean_without_ms),
            time(self.mean_ms),
            time(self.p99_without_ms),
            time(self.p99_ms)
        )
    }
}

/// What was slower, by how much, made of what, because of whom, and how sure.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// When it began, ns on the trace clock.
    pub from_ns: i64,
    /// When it ended.
    pub to_ns: i64,
    /// Whether the first cause is believed.
    pub outcome: Outcome,
    /// The first cause's class.
    pub class: &'static str,
    /// The first cause's culprit.
    pub culprit: Option<Culprit>,
    /// The confidence of the first cause's class: how often such a class is right.
    pub confidence: f64,
    /// How strongly what was measured supports the culprit, from 0 to 1; not calibrated.
    pub culprit_support: Option<f64>,
    /// The same before it was calibrated on the benchmark's trials.
    pub raw_confidence: f64,
    /// Mean duration of a usual step, ms.
    pub usual_ms: f64,
    /// Mean duration of a slow step, ms.
    pub slow_ms: f64,
    /// The difference: `parts_ms` and `unexplained_ms` sum to it.
    pub excess_ms: f64,
    /// The difference, by kind of part.
    pub parts_ms: BTreeMap<&'static str, f64>,
    /// What no part accounts for.
    pub unexplained_ms: f64,
    /// Usual and slow ms of each kind, `unknown` included.
    pub parts: BTreeMap<&'static str, PartMs>,
    /// How many slow steps were accounted for.
    pub slow_steps: usize,
    /// How many usual steps they were compared with.
    pub usual_steps: usize,
    /// Which series were slower.
    pub series: Vec<SlowedSeries>,
    /// Why, most ms first.
    pub causes: Vec<Cause>,
    /// What was checked and does not account for it.
    pub ruled_out: Vec<Evidence>,
    /// What would have been without the culprit of the first cause.
    pub counterfactual: Option<Counterfactual>,
    /// One sentence for people.
    pub summary: String,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.comm, self.pid, &self.cgroup) {
            (Some(comm), Some(pid), _) if self.processes > 1 => {
                write!(f, "{comm} ({} processes, such as pid {pid})", self.processes)
            }
            (Some(comm), Some(pid), _) => match self.tid {
                Some(tid) => write!(f, "{comm} (tid {tid} of pid {pid})"),
                None => write!(f, "{comm} (pid {pid})"),
            },
            (_, _, Some(cgroup)) => write!(f, "cgroup {cgroup}"),
            _ if self.name.is_some() => f.write_str(self.name.as_deref().unwrap_or_default()),
            _ => write!(f, "{} {}", self.kind, self.entity),
        }
    }
}

/// With three digits, in the unit that leaves a readable number.
fn time(ms: f64) -> String {
    match ms.abs() {
        1000.0.. => format!("{:.2} s", ms / 1000.0),
        10.0.. => format!("{ms:.1} ms"),
        1.0.. => format!("{ms:.2} ms"),
        _ => format!("{:.0} us", ms * 1000.0),
    }
}

/// One sentence: what, by how much, why, who, how sure.
pub(super) fn summary(finding: &Finding) -> String {
    let name = finding.series.first().map_or("steps", |s| &s.name);
    let seconds = (finding.to_ns - finding.from_ns) as f64 / 1e9;
    let took = match (finding.slow_ms, finding.series.first()) {
        // Nothing was recorded of usual steps; how long they took is known.
        (0.0, Some(series)) => (series.usual_ms, series.usual_ms + series.excess_ms),
        _ => (finding.usual_ms, finding.slow_ms),
    };
    let (usual, slow) = (time(took.0), time(took.1));
    let slower = match finding.series.first().map(|series| (series.drift, series.reference)) {
        Some((None, true)) => format!("{name} takes {slow} and took {usual} in the reference"),
        Some((Some(drift), _)) => {
            let minutes = (finding.to_ns - drift.since_ns) as f64 / 60e9;
            let share = 100.0 * drift.per_minute;
            format!(
                "{name} took {usual} {minutes:.0} min ago and takes {slow} now; it grew by {share:.2} % a minute"
            )
        }
        _ => {
            let sign = if took.1 < took.0 { '-' } else { '+' };
            let excess = time((took.1 - took.0).abs());
            format!("{name} took {slow} instead of {usual} ({sign}{excess}) for {seconds:.1} s")
        }
    };
    let first = &finding.causes[0];
    let sure = format!("confidence {:.2}", finding.confidence);
    match (finding.outcome, &first.culprit) {
        (Outcome::Decided, Some(culprit)) => {
            let support = finding.culprit_support.unwrap_or_default();
            format!(
                "{slower}: {} {:.2}, by {culprit} {support:.2}",
                first.class, finding.confidence
            )
        }
        (Outcome::Decided, None) => {
            format!("{slower}: {} {:.2}", first.class, finding.confidence)
        }
        (Outcome::InsufficientEvidence, _) => {
            format!("{slower}: insufficient evidence; first suspect {} with {sure}", first.class)
        }
    }
}

impl Finding {
    /// Nothing measured and nothing found.
    pub(super) fn empty() -> Finding {
        Finding {
            from_ns: 0,
            to_ns: 0,
            outcome: Outcome::InsufficientEvidence,
            class: Class::Unexplained.as_str(),
            culprit: None,
            confidence: 0.0,
            culprit_support: None,
            raw_confidence: 0.0,
            usual_ms: 0.0,
            slow_ms: 0.0,
            excess_ms: 0.0,
            parts_ms: BTreeMap::new(),
            unexplained_ms: 0.0,
            parts: BTreeMap::new(),
            slow_steps: 0,
            usual_steps: 0,
            series: Vec::new(),
            causes: Vec::new(),
            ruled_out: Vec::new(),
            counterfactual: None,
            summary: String::new(),
        }
    }
}

/// The finding and its causes as rows, for the trace.
pub fn rows(finding: &Finding, id: Id, track: TrackId) -> Rows {
    let mut out = Rows::default();
    out.finding.push(gpuwhy_schema::Finding {
        id,
        ts: Ns(finding.from_ns),
        dur: Ns(finding.to_ns.saturating_sub(finding.from_ns)),
        track,
        detector: "accounting".into(),
        score: finding.excess_ms / finding.usual_ms.max(1e-9),
        baseline: json((finding.usual_ms, finding.slow_ms, finding.slow_steps)),
    });
    for cause in &finding.causes {
        out.cause.push(gpuwhy_schema::Cause {
            finding: id,
            rank: cause.rank,
            class: cause.instance_of.unwrap_or(Class::Unexplained),
            culprit: cause.culprit.as_ref().map(|c| EntityId(c.entity)),
            excess_ns: Ns((cause.excess_ms * MS) as i64),
            confidence: cause.confidence,
            evidence: json((&cause.evidence_for, &cause.evidence_against)),
        });
    }
    out
}

/// What can be written as JSON, and our own types always can.
fn json(value: impl Serialize) -> Name {
    serde_json::to_string(&value).unwrap_or_default().into()
}
