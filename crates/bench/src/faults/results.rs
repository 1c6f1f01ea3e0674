//! What a session and its trials were.

use std::collections::BTreeMap;
use std::path::Path;

use gpuwhy_diagnose::verdict::{Finding, Outcome};
use serde::{Deserialize, Serialize};

use crate::injectors;
use crate::result::Made;
use crate::trial::Effect;

/// What a judge said of a trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Its class, `unexplained` if it is not decided.
    pub class: String,
    /// Whether it is decided.
    pub decided: bool,
    /// How sure it is.
    pub confidence: f64,
    /// The same before it was calibrated.
    pub raw_confidence: f64,
    /// How strongly its culprit is supported, where it names one; not calibrated.
    #[serde(default)]
    pub culprit_support: Option<f64>,
    /// Its classes, best first, at most three.
    pub classes: Vec<String>,
    /// The processes that it names, best first, at most three: pid and comm.
    pub named: Vec<(i64, String)>,
    /// Ms a step.
    pub excess_ms: f64,
    /// Ms a step.
    pub unexplained_ms: f64,
}

/// What a verdict says of the culprit's share, and what the calm steps before say.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counterfactual {
    /// Mean of the slow steps, ms.
    pub mean_ms: f64,
    /// What it would be without the culprit, ms.
    pub without_ms: f64,
    /// What it was without the culprit, before it came, ms.
    pub truth_ms: f64,
    /// p99 of the slow steps, ms.
    pub p99_ms: f64,
    /// What it would be without the culprit, ms.
    pub p99_without_ms: f64,
    /// What it was without the culprit, before it came, ms.
    pub p99_truth_ms: f64,
}

/// One trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The session, by its seed.
    pub session: u64,
    /// Its number in the session.
    pub number: u32,
    /// What was injected.
    pub kind: String,
    /// What was injected with it.
    pub second: Option<String>,
    /// The right class; none if there should be no finding.
    pub class: Option<String>,
    /// The second's class.
    pub second_class: Option<String>,
    /// Whom to blame.
    pub culprit_pid: Option<i64>,
    /// How strong it was.
    pub intensity: f64,
    /// `other` or `same` container.
    pub placement: String,
    /// When it began, ns on the clock of the session's trace.
    pub onset_ns: i64,
    /// When it ended.
    pub end_ns: i64,
    /// Since the session's beginning.
    pub onset_s: f64,
    /// How long it lasted.
    pub seconds: f64,
    /// What it did to the steps.
    pub effects: Vec<Effect>,
    /// Whether that is enough.
    pub slowed: bool,
    /// Shares of the CPUs' time that the hypervisor took before and during it.
    #[serde(default)]
    pub stolen: Option<[f64; 2]>,
    /// Whether nothing was the matter when it began.
    pub calm_before: bool,
    /// From the onset to the first word of it.
    pub detected_s: Option<f64>,
    /// From the onset to the first verdict.
    pub verdict_s: Option<f64>,
    /// The first verdict.
    pub first: Option<Answer>,
    /// The judgement at its end.
    pub last: Option<Answer>,
    /// When it is said to have begun, less when it did.
    pub onset_error_s: Option<f64>,
    /// Without the culprit.
    pub counterfactual: Option<Counterfactual>,
    /// What the others said: their classes, best first, at most three.
    pub baselines: BTreeMap<String, Vec<String>>,
    /// What the published method said without a group of probes.
    pub ablated: BTreeMap<String, Option<String>>,
    /// The class that this program finds later in the stored trace: with all probes, and without a
    /// group; none if it finds nothing.
    #[serde(default)]
    pub again: BTreeMap<String, Option<String>>,
}

impl Answer {
    /// What a finding says.
    pub fn of(finding: &Finding) -> Answer {
        let decided = finding.outcome == Outcome::Decided;
        Answer {
            class: finding.class.into(),
            decided,
            confidence: finding.confidence,
            raw_confidence: finding.raw_confidence,
            culprit_support: finding.culprit_support,
            classes: finding.causes.iter().take(3).map(|c| c.class.to_string()).collect(),
            named: injectors::named(finding).into_iter().take(3).collect(),
            excess_ms: finding.excess_ms,
            unexplained_ms: finding.unexplained_ms,
        }
    }
}

/// The least change of a mean that counts as an effect.
pub const EFFECT: f64 = 0.10;

impl Row {
    /// Whether it counts.
    pub fn accepted(&self) -> bool {
        self.calm_before && (self.slowed || self.class.is_none()) && !self.by_hypervisor()
    }

    /// Whether the hypervisor may have done as much as half of what was seen: by as much did its share of the CPUs
    /// grow.
    pub fn by_hypervisor(&self) -> bool {
        let slowed = |e: &Effect| e.during_ms / e.before_ms - 1.0;
        let most = self.effects.iter().map(slowed).fold(EFFECT, f64::max);
        self.stolen.is_some_and(|[before, during]| during - before > 0.5 * most)
    }
}

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    /// What everything in it follows from.
    pub seed: u64,
    /// When and by which program.
    pub made: Made,
    /// How long it was.
    pub seconds: f64,
    /// Of that, without any fault, benign changes included.
    pub calm_seconds: f64,
    /// Steps taken.
    pub steps: u64,
    /// Incidents reported while there was no fault: the summary of each.
    pub false_alarms: Vec<String>,
    /// Incidents without a fault that were told as the hypervisor's doing, while it took more than usual.
    #[serde(default)]
    pub hypervisor_alarms: Vec<String>,
    /// Share of the CPUs' time that the hypervisor took.
    #[serde(default)]
    pub stolen: Option<f64>,
    /// Slowdowns that the watcher takes for its own doing and does not tell.
    #[serde(default)]
    pub own_doing: u64,
    /// Slowdowns that are no larger than undecided ones before, and are not told.
    #[serde(default)]
    pub as_before: u64,
    /// Share of the machine that watching took.
    pub machine_share: f64,
    /// Resident memory at the end.
    pub rss_bytes: u64,
    /// The same once a minute, MiB.
    #[serde(default)]
    pub rss_mib: Vec<f64>,
    /// CPU seconds of judging.
    pub judging_seconds: f64,
    /// What was left out to stay within the limits, and when, s.
    pub shed: Vec<(f64, String)>,
}

/// Where a session's trace is.
pub fn stored(traces: &Path, seed: u64) -> std::path::PathBuf {
    traces.join(format!("session-{seed}.trace"))
}

/// The key of [`Row::again`] under which no group of probes was left out.
pub const ALL_PROBES: &str = "all";
