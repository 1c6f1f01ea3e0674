//! What a page shows, as plain data, to be filled in by what has a verdict.
//!
//! All times here are nanoseconds since [`TraceInfo::start_ns`], so that they stay exact as
//! JavaScript numbers for a hundred days of trace.

use serde::Serialize;

use crate::table::Table;

/// Everything on the page.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReportData {
    /// Which trace this is about.
    pub trace: TraceInfo,
    /// The answer.
    pub verdict: Verdict,
    /// How long the steps took.
    pub steps: StepPlot,
    /// Where the time of a step went: usually, and in the anomaly. Milliseconds a step.
    pub parts: Vec<PartRow>,
    /// Who took it, most first.
    pub culprits: Vec<CulpritRow>,
    /// Explanations, the best first.
    pub causes: Vec<CauseRow>,
    /// What happened at the same time.
    pub tracks: Vec<TimeTrack>,
    /// The kind of source.
    pub sources: Vec<SourceRow>,
    /// When nobody looked.
    pub gaps: Vec<Gap>,
    /// What this trace cannot say.
    pub not_collected: Vec<NotCollected>,
    /// How to get this again, and how to go on.
    pub commands: Vec<CommandLine>,
    /// What was judged where no steps are marked, and how to get steps where there are none; a sentence each.
    pub judged: Vec<String>,
    /// What takes most of a program's time, though nothing is slower than usual.
    pub mostly: Vec<String>,
    /// What this rests on that is not whole, a clause each.
    pub incomplete: Vec<String>,
    /// What steps would have taken without the first cause.
    pub without: Option<String>,
    /// What was checked, and is not the cause.
    pub ruled_out: Vec<String>,
    /// The findings after the first.
    #[serde(skip)]
    pub others: Table,
    /// The phases of programs in a profile.
    #[serde(skip)]
    pub phases: Table,
    /// What is said of the threads of a recording without steps.
    #[serde(skip)]
    pub threads: Vec<Table>,
    /// What verdicts on a profile rest on, and what is not in the trace.
    pub rests_on: Vec<String>,
    /// Tracks that are not shown, in words.
    pub not_drawn: Vec<String>,
}

/// A trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TraceInfo {
    /// Its path, as SQL on it will need it.
    pub path: String,
    /// The machine.
    pub host: String,
    /// When it was recorded, in the reader's words: `2026-03-01 12:00:03 UTC`. May be empty.
    pub recorded: String,
    /// What wrote this page: `gpuwhy 0.1.0`.
    pub tool: String,
    /// Trace time of the page's time 0, in ns.
    pub start_ns: i64,
    /// How much time the page shows, in ns.
    pub length_ns: i64,
}

/// What kind of answer it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Something was slower than it should have been, and this is why.
    Explained,
    /// Something was slower than it should have been; the evidence does not say why.
    InsufficientEvidence,
    /// Nothing was slower than it should have been.
    #[default]
    Nothing,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// What kind of answer.
    pub outcome: Outcome,
    /// It in one sentence.
    pub sentence: String,
    /// The class in the schema's word, `cpu_contention`.
    pub class: Option<String>,
    /// Who did it.
    pub culprit: Option<Who>,
    /// How strongly what was measured supports that, 0 to 1; not calibrated.
    pub culprit_support: Option<f64>,
    /// What a step usually takes, in ms.
    pub baseline_ms: f64,
    /// What a slow step took, in ms.
    pub observed_ms: f64,
    /// How much of the excess nothing accounts for, in ms a step.
    pub unexplained_ms: f64,
    /// How sure the class is, from 0 to 1.
    pub confidence: Option<f64>,
    /// The next best explanation and its confidence.
    pub runner_up: Option<(String, f64)>,
    /// Slow steps.
    pub slow_steps: u64,
    /// All steps.
    pub all_steps: u64,
}

/// Somebody: a process, a cgroup, a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Who {
    /// What people call it; for a process its comm.
    pub name: String,
    /// Its pid, if it is a process.
    pub pid: Option<i64>,
    /// Its cgroup, where known.
    pub cgroup: Option<String>,
    /// Its container, pod or job, where known.
    pub owner: Option<String>,
}

impl Who {
    /// `fio (pid 4242)`.
    pub fn label(&self) -> String {
        match self.pid {
            Some(pid) => format!("{} (pid {pid})", self.name),
            None => self.name.clone(),
        }
    }
}

/// From one time to another, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// First ns.
    pub from: i64,
    /// First ns after it.
    pub to: i64,
}

impl Interval {
    /// How long it is, in ns; never negative.
    pub fn len(self) -> i64 {
        self.to.saturating_sub(self.from).max(0)
    }

    /// Whether it is no time at all.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Durations of steps over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepPlot {
    /// What the steps are called.
    pub name: String,
    /// One series a thread or rank. Thin long ones with [`crate::detail::thin_steps`].
    pub series: Vec<StepSeries>,
    /// What was expected, piece by piece.
    pub baseline: Vec<Baseline>,
    /// What stood out.
    pub anomalies: Vec<Interval>,
}

/// The steps of one thread or rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepSeries {
    /// Whose.
    pub name: String,
    /// In order of time.
    pub points: Vec<StepPoint>,
}

/// A step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepPoint {
    /// When it ended, in ns: that is when it was known to be slow.
    pub at: i64,
    /// How long it took, in ms.
    pub ms: f64,
    /// Whether it stood out.
    pub slow: bool,
}

/// What was expected of steps for some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Baseline {
    /// When this was expected.
    pub during: Interval,
    /// The usual duration, in ms.
    pub median_ms: f64,
    /// Where usual ends downwards, in ms.
    pub low_ms: f64,
    /// Beyond this a step stands out, in ms.
    pub threshold_ms: f64,
}

/// One part of a step's time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PartRow {
    /// The part in the schema's word, `runnable`; `unexplained` for what is left.
    pub kind: String,
    /// What a step usually spends on it, in ms.
    pub baseline_ms: f64,
    /// What a slow step spent on it, in ms.
    pub anomalous_ms: f64,
    /// Who is blamed for most of it.
    pub blame: Option<String>,
}

impl PartRow {
    /// How much more than usual, in ms.
    pub fn excess_ms(&self) -> f64 {
        self.anomalous_ms - self.baseline_ms
    }
}

/// Somebody who took time from the steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CulpritRow {
    /// Who.
    pub who: Who,
    /// What was taken: `cpu`, `disk sda`.
    pub what: String,
    /// How much of the excess, in ms a step.
    pub excess_ms: f64,
    /// The same as a share of the excess, 0 to 1.
    pub share: f64,
}

/// An explanation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CauseRow {
    /// The class in the schema's word.
    pub class: String,
    /// Who did it.
    pub culprit: Option<Who>,
    /// How strongly what was measured supports that, 0 to 1; not calibrated.
    pub culprit_support: Option<f64>,
    /// How much of the excess it accounts for, in ms a step.
    pub excess_ms: f64,
    /// From 0 to 1.
    pub confidence: f64,
    /// It in a sentence.
    pub summary: String,
    /// What speaks for it.
    pub evidence_for: Vec<Evidence>,
    /// What speaks against it.
    pub evidence_against: Vec<Evidence>,
    /// A command that would prove or refute it.
    pub verify: Option<String>,
}

/// Something that was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// What.
    pub text: String,
    /// Where it can be looked up.
    pub rows: Option<RowsRef>,
}

/// Rows of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowsRef {
    /// The table.
    pub table: String,
    /// The track, where it is one.
    pub track: Option<u32>,
    /// When.
    pub during: Interval,
}

/// One track of the time view.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeTrack {
    /// Whose track it is: `steploop (4242)`, `cpu 3`. Tracks of one group stand together.
    pub group: String,
    /// What it shows: `thread state`.
    pub label: String,
    /// The track's data.
    #[serde(flatten)]
    pub lane: Lane,
}

/// What a track shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "shape", rename_all = "snake_case")]
pub enum Lane {
    /// One value at a time.
    Bands {
        /// The values that occur, by the index that bands use.
        values: Vec<String>,
        /// The same in several degrees of detail, the coarsest first.
        levels: Vec<Level<Band>>,
    },
    /// What share of the time each of several values had.
    Stack {
        /// The values, from below, in the order of their shares.
        values: Vec<String>,
        /// The same in several degrees of detail, the coarsest first.
        levels: Vec<Level<Shares>>,
    },
    /// A measurement.
    Line {
        /// Its unit, as shown.
        unit: String,
        /// The same in several degrees of detail, the coarsest first.
        levels: Vec<Level<Piece>>,
    },
}

/// A track for some time, thinned to what a screen can show.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level<T> {
    /// What it covers.
    pub during: Interval,
    /// In order of time, without overlap; between them nothing was recorded.
    pub items: Vec<T>,
}

/// A value for some time: from, to (ns), index of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Band(pub i64, pub i64, pub u32);

/// Shares of some time: from, to (ns), % of each value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shares(pub i64, pub i64, pub Vec<f64>);

/// A measurement for some time: from, to (ns), mean, greatest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Piece(pub i64, pub i64, pub f64, pub f64);

/// A source and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceRow {
    /// The kind of source.
    pub kind: String,
    /// `ok`, `degraded` or `unavailable`.
    pub state: String,
    /// Why, and what would change it.
    pub note: String,
    /// Events that reached the trace.
    pub recorded: u64,
    /// Events that were lost.
    pub dropped: u64,
    /// One event in this many was recorded.
    pub one_in: u32,
}

/// A time at which something was not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// When.
    pub during: Interval,
    /// What was missed, and why.
    pub what: String,
}

/// Something that this trace cannot say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NotCollected {
    /// What.
    pub what: String,
    /// Why not.
    pub why: String,
    /// What would change that.
    pub fix: String,
}

/// A command to copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CommandLine {
    /// What it does.
    pub what: String,
    /// The command.
    pub line: String,
}
