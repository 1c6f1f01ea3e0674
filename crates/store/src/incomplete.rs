//! Imported sources that are not whole in the trace, for whoever shows what rests on them.
//!
//! Only sources of other tools are listed. What our own recorder lost is said where it matters: by its
//! sources' states, and in each verdict by the evidence that is missing.

use std::fmt;

use gpuwhy_schema::{Source, SourceState, sources};
use serde::Serialize;

/// An imported source of which something was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IncompleteSource {
    /// The file that was imported; where the source names none, its kind.
    pub source: String,
    /// Rows of it that should be in the trace and are not.
    pub lost: u64,
    /// All rows that should be.
    pub of: u64,
    /// Why rows were lost, and how many for each reason.
    pub why: String,
    /// The tables or kinds of events that are not imported at all, with their rows.
    pub not_imported: String,
}

impl IncompleteSource {
    /// What was left out of a source; `None` if nothing was, or if our own recorder wrote it.
    pub fn of(source: &Source) -> Option<IncompleteSource> {
        let note = source.note.as_deref().filter(|_| source.state == SourceState::Ok);
        let note = note.unwrap_or_default();
        if &*source.tool == sources::RECORDER || (source.dropped == 0 && note.is_empty()) {
            return None;
        }
        let (why, not_imported) = note.split_once(sources::NOT_IMPORTED).unwrap_or((note, ""));
        let file = source.word("file");
        Some(IncompleteSource {
            source: file.unwrap_or(&source.kind).to_owned(),
            lost: source.dropped,
            of: source.recorded.saturating_add(source.dropped),
            why: why.trim_end_matches("; ").to_owned(),
            not_imported: not_imported.to_owned(),
        })
    }

    /// Those of `sources` that lost rows: what rests on them is marked.
    pub fn that_lost(sources: &[Source]) -> Vec<IncompleteSource> {
        sources.iter().filter_map(IncompleteSource::of).filter(|of| of.lost > 0).collect()
    }

    /// What to say of a result that rests on this source: `rests on a.json, which lost 3 of 10 rows (no time
    /// 3)`.
    pub fn mark(&self) -> String {
        let IncompleteSource { source, lost, of, why, .. } = self;
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        format!("rests on {source}, which lost {lost} of {of} rows{why}")
    }
}

/// The line that `gpuwhy validate` prints.
impl fmt::Display for IncompleteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IncompleteSource { source, lost, of, why, not_imported } = self;
        match (lost, &**why) {
            (0, _) => write!(f, "left out: no row of {source} was lost")?,
            (_, "") => write!(f, "left out: {lost} of {of} rows of {source}")?,
            _ => write!(f, "left out: {lost} of {of} rows of {source}: {why}")?,
        }
        match &**not_imported {
            "" => Ok(()),
            all => write!(f, "; {}{all}", sources::NOT_IMPORTED),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::Lanes;

    use super::*;

    fn source(tool: &str, dropped: u64, note: &str) -> Source {
        let mut lanes = Lanes::default();
        let id = lanes.source("kineto", tool, "1", "file=a_b.json schema=1");
        lanes.update_source(id, |s| {
            (s.recorded, s.dropped) = (7, dropped);
            s.note = Some(note.into()).filter(|_| !note.is_empty());
        });
        let mut rows = gpuwhy_schema::Rows::default();
        lanes.drain(&mut rows);
        rows.source.pop().unwrap()
    }

    #[test]
    fn a_source_says_what_was_left_out_of_it_and_a_verdict_only_what_was_lost() {
        let of = |dropped, note: &str| IncompleteSource::of(&source("other", dropped, note));
        assert_eq!(of(0, ""), None);
        let both = of(3, "no time 2, out of order 1; not imported: flow events (12 rows)").unwrap();
        assert_eq!(
            both.to_string(),
            "left out: 3 of 10 rows of a_b.json: no time 2, out of order 1; not imported: flow events \
             (12 rows)"
        );
        assert_eq!(
            both.mark(),
            "rests on a_b.json, which lost 3 of 10 rows (no time 2, out of order 1)"
        );
        let unread = source("other", 0, "not imported: CUDA_EVENT (1 row)");
        assert_eq!(
            IncompleteSource::of(&unread).unwrap().to_string(),
            "left out: no row of a_b.json was lost; not imported: CUDA_EVENT (1 row)"
        );
        assert_eq!(IncompleteSource::that_lost(&[unread]), []);
        assert_eq!(of(3, "").unwrap().to_string(), "left out: 3 of 10 rows of a_b.json");
    }

    #[test]
    fn what_our_own_recorder_lost_is_not_said_twice() {
        assert_eq!(IncompleteSource::of(&source(sources::RECORDER, 3, "overrun")), None);
    }
}
