//! What a live judgement and its recorder report while they run.

use gpuwhy_diagnose::verdict::Finding;
use serde::Serialize;

/// Something became slower.
#[derive(Clone, Debug, Serialize)]
pub struct Slow {
    /// When it was noticed, trace clock.
    pub at_ns: i64,
    /// When the first slow step began.
    pub since_ns: i64,
    /// Which steps, and by how much.
    pub what: String,
    /// The threads whose steps they are.
    pub series: Vec<String>,
}

/// A judgement of an incident.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// When it was reached, trace clock.
    pub at_ns: i64,
    /// Class, culprit, confidence, evidence.
    pub finding: Finding,
    /// What the steps would have taken without the culprit.
    pub counterfactual: Option<String>,
    /// Where the culprit was when its threads were sampled: the last three functions of the stack and
    /// their share of the samples; the five most frequent.
    pub culprit_was_in: Vec<(String, f64)>,
    /// The same of the threads that take the steps, while that lasted which made them slow: where they ran, or had gone to
    /// sleep.
    pub steps_were_in: Vec<(String, f64)>,
    /// Settings that are not as they were in the recordings that these steps are compared with, if it is those.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
}

/// Requests took longer than was promised, by what their engine counts.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    /// When that was read, trace clock.
    pub at_ns: i64,
    /// Since when they were counted, trace clock.
    pub since_ns: i64,
    /// What was promised: `ttft over 500 ms`.
    pub what: String,
    /// How many took longer than the bound,
    pub over: f64,
    /// of how many,
    pub of: f64,
    /// which is the least one that the engine counts by and that is no less than what was promised, ms.
    pub bound_ms: f64,
    /// Where the engine was asked.
    pub address: String,
    /// What was slow in that time: findings, and the step that lost most.
    pub because: Vec<String>,
}

/// Less, or more, is recorded from now on.
#[derive(Clone, Debug, Serialize)]
pub struct Shedding {
    /// Since when, trace clock.
    pub at_ns: i64,
    /// Why, and what changed.
    pub says: String,
    /// What is not recorded now.
    pub left_out: Vec<&'static str>,
}

/// Something keeps the watch from recording all; it goes on.
#[derive(Clone, Debug, Serialize)]
pub struct Trouble {
    /// Since when, trace clock.
    pub at_ns: i64,
    /// What.
    pub says: String,
}

/// State and cost of a running watch.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Seconds since the start.
    pub seconds: f64,
    /// Steps so far, or what is compared in their place.
    pub steps: u64,
    /// What these are: `steps`, `rounds`, `busy periods` or `work quanta`.
    pub units: &'static str,
    /// `calm`, `slow` or a class.
    pub state: String,
    /// Share of the machine that our BPF programs took in the last second.
    pub bpf_share: f64,
    /// Share of the machine that this process took in the last second.
    pub cpu_share: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Events lost so far.
    pub dropped: u64,
    /// What is not recorded, to stay within the limits.
    pub shedding: Vec<&'static str>,
}

/// Summary of a watch that ended.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    /// Path of the trace.
    pub trace: String,
    /// How long it was watched.
    pub seconds: f64,
    /// Steps seen, or what was compared in their place.
    pub steps: u64,
    /// What these were: `steps`, `rounds`, `busy periods` or `work quanta`.
    pub units: &'static str,
    /// Findings reported.
    pub findings: u64,
    /// Slowdowns that began and ended with our own judging of a past incident, and were not reported.
    pub own_doing: u64,
    /// Slowdowns that were hardly larger than others for which nobody could be named, and were not reported.
    pub as_before: u64,
    /// Events received.
    pub events: u64,
    /// Events lost.
    pub dropped: u64,
    /// Rows that were lost because they could not be written.
    pub lost_rows: u64,
    /// Of how much time around findings all rows were written,
    pub exact_seconds: f64,
    /// and of how much of it not, as that was more than is allowed.
    pub exact_left_out_seconds: f64,
    /// Whether the trace is complete; if not, whoever opens it next recovers it.
    pub complete: bool,
    /// Exit status of the command, 128 + N if signal N ended it; `None` without a command, and if it
    /// went on when the watch ended.
    pub command_status: Option<i32>,
    /// CPU seconds of this process after its start.
    pub cpu_seconds: f64,
    /// Of these, for judging.
    pub judging_seconds: f64,
    /// Of these, for writing exact rows around findings.
    pub keeping_seconds: f64,
    /// CPU seconds of its BPF programs, where the kernel measures them.
    pub bpf_seconds: Option<f64>,
    /// Both, as a share of all CPUs' time.
    pub machine_share: f64,
    /// Resident memory.
    pub rss_bytes: u64,
}

/// The connection of a node to its correlator.
#[derive(Clone, Debug, Serialize)]
pub struct Correlating {
    /// When, on the trace clock.
    pub at_ns: i64,
    /// The correlator's address.
    pub to: String,
    /// Whether it takes what this node reports.
    pub joined: bool,
    /// Why not.
    pub why: Option<String>,
    /// Messages that were dropped so far because it could not be reached, or was slow.
    pub dropped: u64,
}

impl Correlating {
    /// One line for users.
    pub fn text(&self) -> String {
        let Correlating { to, why, dropped, .. } = self;
        let lost = match dropped {
            0 => String::new(),
            n => format!("; {n} messages were dropped so far"),
        };
        match (self.joined, why) {
            (true, _) => format!("reporting to the correlator at {to}{lost}"),
            (false, why) => format!(
                "the correlator at {to} does not take what this node reports: {}{lost}; recording goes on",
                why.as_deref().unwrap_or("unknown")
            ),
        }
    }
}

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Something became slower.
    Slow(Slow),
    /// Why. Reported again when the class changes or the loss has grown.
    Verdict(Box<Verdict>),
    /// It is over; the judgement of the whole incident.
    Over(Box<Verdict>),
    /// Requests took longer than was promised.
    Broken(Broken),
    /// Less, or more, is recorded from now on.
    Shed(Shedding),
    /// The correlator cannot be reached, or can be again.
    Correlator(Correlating),
    /// The trace cannot be written, or can be again; or the host could not be read.
    Trouble(Trouble),
    /// State and cost, every ten seconds.
    Status(Status),
    /// The watch ended.
    Ended(Ended),
}

impl Verdict {
    /// Where the culprit and the steps were in their code, two lines of each at most; and what is not as in the reference.
    pub fn places(&self) -> Vec<String> {
        let of = |who: &'static str, places: &[(String, f64)]| -> Vec<String> {
            let said = |(place, share): &(String, f64)| {
                format!("{who} in {place} for {:.0} %", 100.0 * share)
            };
            places.iter().take(2).map(said).collect()
        };
        let mut lines = of("it was", &self.culprit_was_in);
        lines.extend(of("the slow steps were", &self.steps_were_in));
        lines.extend(self.differs.iter().map(|one| format!("not as in the reference: {one}")));
        lines
    }
}

impl Status {
    /// One line for users.
    pub fn line(&self) -> String {
        let shed = if self.shedding.is_empty() { "" } else { "  RECORDING LESS" };
        format!(
            "{:>6.0} s  {:>9}  {}  {:.2} % of the machine (kernel {:.2}, here {:.2})  {} MiB  {} lost{shed}",
            self.seconds,
            self.compared(),
            self.state,
            100.0 * (self.bpf_share + self.cpu_share),
            100.0 * self.bpf_share,
            100.0 * self.cpu_share,
            self.rss_bytes >> 20,
            self.dropped
        )
    }

    /// How many steps there were so far, or of what was compared in their place.
    pub fn compared(&self) -> String {
        format!("{} {}", self.steps, self.units)
    }
}

impl Ended {
    /// How many steps there were, or of what was compared in their place.
    pub fn compared(&self) -> String {
        format!("{} {}", self.steps, self.units)
    }

    /// What to do if nothing was compared.
    pub fn hint(&self) -> Option<&'static str> {
        (self.steps == 0).then_some(
            "nothing was compared: no program marked a step, and none that was named (-p PID, -- CMD) waited regularly for a GPU or \
             again and again for work; --step uprobe:BINARY:SYMBOL names a function that is a step",
        )
    }
}
