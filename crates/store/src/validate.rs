//! Checks every promise that the schema makes on every row of a trace.
//!
//! Two kinds of passes: over files, each alone, and over tables in the
//! order of time, for what rows must be to each other. Both stream. What is held in memory is the
//! lanes, one bit an id (two bytes where ids are sparse), one entry for each step that has parts,
//! and a million links at a time.

mod files;
mod lanes;
mod rows;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use gpuwhy_schema::Source;
use serde::Serialize;

use crate::{IncompleteSource, Trace};

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// Files can be read, and are what `trace.toml` says.
    Readable,
    /// The columns are the declared ones.
    Schema,
    /// The rows of a file are sorted by start, of equal starts the longest first.
    Sorted,
    /// An id is given out once, and a span or mark has at most one row in a detail table.
    Unique,
    /// What a row refers to is there.
    Reference,
    /// A row lies on a track of its shape, and a track's properties fit its shape.
    Shape,
    /// Every counter track has a unit and a measure.
    Unit,
    /// States tile, or at least do not overlap, as their track says.
    Tiling,
    /// Spans nest, follow one another, or overlap, as their track says.
    Discipline,
    /// A detail lies at the start of its span or mark.
    Detail,
    /// A wakeup lies on the `wakeups` track of the thread that it woke.
    Wakeup,
    /// A link lies where the later of its ends begins, and a cause begins before its effect, but
    /// for clock error.
    Link,
    /// The parts of a step tile it, and so sum to its duration.
    Parts,
    /// A source says why it was degraded or unavailable.
    Source,
    /// A value is one that its column can mean: no negative duration, no confidence above 1.
    Value,
}

impl Rule {
    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Readable => "readable",
            Rule::Schema => "schema",
            Rule::Sorted => "sorted",
            Rule::Unique => "unique",
            Rule::Reference => "reference",
            Rule::Shape => "shape",
            Rule::Unit => "unit",
            Rule::Tiling => "tiling",
            Rule::Discipline => "discipline",
            Rule::Detail => "detail",
            Rule::Wakeup => "wakeup",
            Rule::Link => "link",
            Rule::Parts => "parts",
            Rule::Source => "source",
            Rule::Value => "value",
        }
    }
}

/// A promise that rows of a table break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which promise.
    pub rule: Rule,
    /// Which table.
    pub table: &'static str,
    /// How often.
    pub count: u64,
    /// Where the first of these stands.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
}

/// What [`validate`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The trace.
    pub trace: PathBuf,
    /// Rows that were looked at.
    pub rows: u64,
    /// References to what was dropped because it was old. Only traces that keep the recent past
    /// have these.
    pub outside: u64,
    /// Broken promises, one entry for each rule and table.
    pub violations: Vec<Violation>,
    /// What importers left out of the files that the trace was made of. Nothing is broken by it.
    pub left_out: Vec<IncompleteSource>,
}

impl Report {
    /// Whether every promise is kept.
    pub fn is_valid(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for v in &self.violations {
            let times = match v.count {
                1 => String::new(),
                n => format!(" ({n} times)"),
            };
            writeln!(f, "{} {}{times}: {}: {}", v.table, v.rule.as_str(), v.place, v.what)?;
        }
        let verdict = match self.violations.len() {
            0 => "valid".to_string(),
            1 => "1 promise broken".to_string(),
            n => format!("{n} promises broken"),
        };
        write!(f, "{}: {verdict}, {} rows", self.trace.display(), self.rows)?;
        match self.outside {
            0 => writeln!(f)?,
            n => writeln!(f, ", {n} references to rows that were dropped because they were old")?,
        }
        self.left_out.iter().try_for_each(|source| writeln!(f, "{source}"))
    }
}

/// Gathers violations; the first of each kind is kept, the others are counted.
#[derive(Default)]
struct Findings {
    by_kind: BTreeMap<(&'static str, Rule), Violation>,
    rows: u64,
    outside: u64,
    /// Whether rows were dropped on purpose, so that references may lead to nothing.
    partial: bool,
}

impl Findings {
    fn note(
        &mut self,
        rule: Rule,
        table: &'static str,
        place: impl FnOnce() -> String,
        what: impl FnOnce() -> String,
    ) {
        self.by_kind
            .entry((table, rule))
            .and_modify(|v| v.count += 1)
            .or_insert_with(|| Violation { rule, table, count: 1, place: place(), what: what() });
    }

    /// A reference to a span, mark or finding that is not there.
    fn missing(
        &mut self,
        table: &'static str,
        place: impl FnOnce() -> String,
        what: impl FnOnce() -> String,
    ) {
        if self.partial {
            self.outside += 1;
        } else {
            self.note(Rule::Reference, table, place, what);
        }
    }

    fn has_unreadable(&self, table: &'static str) -> bool {
        self.by_kind.contains_key(&(table, Rule::Readable))
    }

    fn unreadable(&mut self, table: &'static str, e: &crate::Error) {
        let mut what = e.to_string();
        let mut source = std::error::Error::source(e);
        while let Some(e) = source {
            what += &format!(": {e}");
            source = e.source();
        }
        self.note(Rule::Readable, table, || "the table".into(), || what);
    }
}

fn incomplete(sources: &[Source]) -> Vec<IncompleteSource> {
    sources.iter().filter_map(IncompleteSource::of).collect()
}

/// Checks every promise of the schema on `trace`.
pub fn validate(trace: &Trace) -> Report {
    let mut findings =
        Findings { partial: trace.manifest().kept_since.is_some(), ..Findings::default() };
    let lanes = lanes::check(trace, &mut findings);
    files::check(trace, &lanes, &mut findings);
    rows::check(trace, &lanes, &mut findings);
    Report {
        trace: trace.path().into(),
        rows: findings.rows,
        outside: findings.outside,
        violations: findings.by_kind.into_values().collect(),
        // A table that cannot be read is one of the violations.
        left_out: trace.sources().map_or_else(|_| Vec::new(), |all| incomplete(&all)),
    }
}
