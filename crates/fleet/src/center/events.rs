//! What happened at the correlator.

use gpuwhy_diagnose::fleet::Straggler;
use serde::Serialize;
use serde_json::Value;

/// What happened at the correlator.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum FleetEvent {
    /// A node connected.
    Joined {
        /// Its name.
        node: String,
        /// Its address.
        from: String,
    },
    /// A node disconnected.
    Left {
        /// Its name.
        node: String,
    },
    /// A node reported a finding of its own.
    Node {
        /// Its name.
        node: String,
        /// The finding, as in `gpuwhy watch --json`.
        finding: Value,
    },
    /// All ranks are slower, and this one came late.
    Straggler(StragglerReport),
    /// Why, as its node found.
    Cause(StragglerReport),
    /// It is over.
    Over(StragglerReport),
    /// A connection was closed, or something of it was not taken, because of what it did.
    #[serde(skip)]
    Refused {
        /// Its address or name.
        from: String,
        /// Why.
        why: String,
    },
}

/// A straggler, with what its node found.
#[derive(Clone, Debug, Serialize)]
pub struct StragglerReport {
    /// The job.
    pub job: String,
    /// The run of the job, counted from 0: a restart of its ranks begins a new one.
    pub epoch: u32,
    /// The rank that came late; `None` if the collective itself took longer.
    pub rank: Option<u32>,
    /// The rank's node.
    pub node: Option<String>,
    /// The numbers of the first and the last slow step.
    pub seqs: (u64, u64),
    /// By how much it came later than usual, ms a step.
    pub later_ms: f64,
    /// By how much the steps were longer, ms.
    pub excess_ms: f64,
    /// In how many steps it came last, of how many.
    pub last_in: (usize, usize),
    /// `compute-slow`, `communication-slow`, `input-slow` or `host-interfered`.
    pub slowness: &'static str,
    /// The phase that grew most, and by how many ms.
    pub phase: Option<(String, f64)>,
    /// What its node found.
    pub finding: Option<Value>,
}

impl StragglerReport {
    pub(super) fn new(
        job: &str,
        straggler: &Straggler,
        node: Option<String>,
        finding: Option<Value>,
    ) -> StragglerReport {
        let class = finding.as_ref().and_then(|f| f["class"].as_str());
        let slowness = class.map_or(straggler.slowness, |c| straggler.slowness.with_cause(c));
        StragglerReport {
            job: job.into(),
            epoch: straggler.epoch,
            rank: straggler.rank,
            node,
            seqs: straggler.seqs,
            later_ms: straggler.later / 1e6,
            excess_ms: straggler.excess / 1e6,
            last_in: straggler.last_in,
            slowness: slowness.as_str(),
            phase: straggler.phase.as_ref().map(|(name, ns)| (name.to_string(), ns / 1e6)),
            finding,
        }
    }

    /// One line for users, or two.
    pub fn text(&self) -> String {
        let mut out = match (self.rank, &self.node) {
            (Some(rank), Some(node)) => format!(
                "rank {rank} on {node} comes {:.1} ms later than usual (steps +{:.1} ms; last in {} of {}): {}",
                self.later_ms, self.excess_ms, self.last_in.0, self.last_in.1, self.slowness
            ),
            (Some(rank), None) => format!("rank {rank} comes {:.1} ms later", self.later_ms),
            (None, _) => {
                format!(
                    "steps +{:.1} ms, and no rank comes late: {}",
                    self.excess_ms, self.slowness
                )
            }
        };
        if let Some((phase, ms)) = &self.phase {
            out += &format!(", its `{phase}` takes {ms:.1} ms longer");
        }
        if let Some(summary) = self.finding.as_ref().and_then(|f| f["summary"].as_str()) {
            out += &format!("\nits node: {summary}");
        }
        if self.job != crate::protocol::NO_JOB {
            out.insert_str(0, &format!("job {}: ", self.job));
        }
        out
    }
}
