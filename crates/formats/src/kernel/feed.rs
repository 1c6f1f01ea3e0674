//! Imports of files of events: what they have in common, whichever tool wrote them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpuwhy_schema::Name;
use serde_json::{Map, Value, json};

use super::rows::KernelRows;
use crate::Result;
use crate::importer::{Batch, Import, Summary};
use crate::left_out::FileLeftOut;

/// Types of events that the summary lists.
const LISTED: usize = 12;

/// Files that hold events.
pub(crate) trait Feed: Send {
    /// Hands the next event to `kernel`; false after the last.
    ///
    /// # Errors
    /// A file cannot be read or is damaged.
    fn next(&mut self, kernel: &mut KernelRows) -> Result<bool>;

    /// About how much has been read, from 0 to 1.
    fn done(&self) -> f64;

    /// Says what was read and what was left out, and writes that into the sources.
    fn finish(&mut self, kernel: &mut KernelRows) -> About;
}

/// What a feed read besides events.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    /// Keys of its own for `import --json`.
    pub about: Map<String, Value>,
    /// Lines for the terminal.
    pub lines: Vec<String>,
    /// What was left out of each file.
    pub left_out: Vec<FileLeftOut>,
}

/// An import of a feed.
pub(crate) struct FeedImport<F> {
    feed: F,
    kernel: KernelRows,
    is_finished: bool,
    about: About,
}

impl<F: Feed> FeedImport<F> {
    /// Of a feed that has declared its sources in `kernel`.
    pub fn new(feed: F, kernel: KernelRows) -> FeedImport<F> {
        FeedImport { feed, kernel, is_finished: false, about: About::default() }
    }

    fn finish(&mut self) {
        self.kernel.finish();
        self.about = self.feed.finish(&mut self.kernel);
        let tally = self.kernel.tally();
        let mut line = format!("{} events", tally.events);
        if let Some((first, last)) = tally.span {
            let _ = write!(line, ", from {first} to {last} ns");
        }
        let lines = &mut self.about.lines;
        lines.insert(0, line);
        if tally.backwards > 0 {
            let line = "events are earlier than one before them; states were not moved back";
            lines.push(format!("{} {line}", tally.backwards));
        }
        if tally.unknown_requests > 0 {
            let line = "block requests completed of which nothing else was seen";
            lines.push(format!("{} {line}", tally.unknown_requests));
        }
        let counts = counts(&self.kernel);
        let mut sorted: Vec<(&Name, u64)> = counts.iter().map(|(name, n)| (*name, *n)).collect();
        sorted.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let listed = sorted.iter().take(LISTED).map(|(name, count)| format!("{name} {count}"));
        let listed: Vec<String> = listed.collect();
        let more = match sorted.len().saturating_sub(LISTED) {
            0 => String::new(),
            more => format!(" and {more} more types"),
        };
        lines.push(format!("events: {}{more}", listed.join(", ")));
    }
}

/// How many events there were of each type.
fn counts(kernel: &KernelRows) -> BTreeMap<&Name, u64> {
    let mut counts = BTreeMap::new();
    for (name, count) in kernel.counts() {
        *counts.entry(name).or_default() += count;
    }
    counts
}

impl<F: Feed> Import for FeedImport<F> {
    fn next(&mut self) -> Result<Option<Batch>> {
        if self.is_finished {
            return Ok(None);
        }
        while !self.kernel.is_full() {
            if !self.feed.next(&mut self.kernel)? {
                self.is_finished = true;
                self.finish();
                return Ok(Some(self.kernel.take(1.0)));
            }
        }
        Ok(Some(self.kernel.take(self.feed.done().min(1.0))))
    }

    fn summary(&self) -> Summary {
        let tally = self.kernel.tally();
        let types = counts(&self.kernel);
        let types: Map<String, Value> =
            types.into_iter().map(|(name, count)| (name.to_string(), count.into())).collect();
        let mut about = self.about.about.clone();
        about.insert("events".into(), tally.events.into());
        about.insert("earlier_than_one_before".into(), tally.backwards.into());
        about.insert("first_ns".into(), json!(tally.span.map(|span| span.0)));
        about.insert("last_ns".into(), json!(tally.span.map(|span| span.1)));
        about.insert("types".into(), types.into());
        let About { lines, left_out, .. } = &self.about;
        Summary { about: about.into(), lines: lines.clone(), left_out: left_out.clone() }
    }
}
