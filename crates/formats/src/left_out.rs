//! What an import leaves out of a file, so that nothing is left out in silence.
//!
//! Importers count here what they cannot place. The counts become the `dropped` and `note` of the file's
//! `source` row, a line of `gpuwhy import` and a field of its JSON; `validate` and every verdict read them
//! from the trace.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use gpuwhy_schema::{Name, Source, sources};
use serde_json::{Value, json};

/// A row without a time.
pub(crate) const NO_TIME: &str = "no time";
/// A row whose time, in ns, is beyond what 64 bits hold, or so far from all others that it cannot be one.
pub(crate) const OUT_OF_RANGE: &str = "time out of range";

/// Names of what is not imported that are listed; a hostile file may have any number.
const LISTED: usize = 64;

/// What was left out of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Rows that should have become rows of the trace and did not, by the reason.
    lost: BTreeMap<Cow<'static, str>, u64>,
    /// Tables or kinds of events that are not imported, with their rows if these were counted.
    not_imported: BTreeMap<String, Option<u64>>,
}

impl LeftOut {
    /// Some rows are lost because of `why`.
    pub(crate) fn lose(&mut self, why: impl Into<Cow<'static, str>>, rows: u64) {
        if rows > 0 {
            let known = self.lost.entry(why.into()).or_default();
            *known = known.saturating_add(rows);
        }
    }

    /// A table or kind of event is not imported; it has so many rows, if they were counted.
    pub(crate) fn not_imported(&mut self, what: &str, rows: Option<u64>) {
        if let Some(known) = self.not_imported.get_mut(what) {
            *known = known.zip(rows).map(|(known, more)| known.saturating_add(more));
        } else {
            self.not_imported.insert(what.to_owned(), rows);
        }
    }

    /// How many rows were lost; a damaged file may claim any number.
    pub fn lost(&self) -> u64 {
        self.lost.values().fold(0, |sum, rows| sum.saturating_add(*rows))
    }

    /// Whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty() && self.not_imported.is_empty()
    }

    /// Writes it into the file's source, of whose rows `recorded` became rows of the trace.
    pub(crate) fn write(&self, source: &mut Source, recorded: u64) {
        (source.recorded, source.dropped) = (recorded, self.lost());
        source.note = self.note();
    }

    fn note(&self) -> Option<Name> {
        (!self.is_empty()).then(|| self.to_string().as_str().into())
    }
}

/// Why rows were lost, and what is not imported: `no time 3; not imported: CUDA_EVENT (12 rows)`.
impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (why, rows) in &self.lost {
            write!(f, "{between}{why} {rows}")?;
            between = ", ";
        }
        if self.not_imported.is_empty() {
            return Ok(());
        }
        between = if self.lost.is_empty() { "" } else { "; " };
        write!(f, "{between}{}", sources::NOT_IMPORTED)?;
        between = "";
        for (what, rows) in self.not_imported.iter().take(LISTED) {
            write!(f, "{between}{what}")?;
            match rows {
                Some(1) => write!(f, " (1 row)")?,
                Some(rows) => write!(f, " ({rows} rows)")?,
                None => {}
            }
            between = ", ";
        }
        match self.not_imported.len().saturating_sub(LISTED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// What was left out of a file, with the file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLeftOut {
    /// The file, as it was given.
    pub file: String,
    /// Its rows that reached the trace.
    pub recorded: u64,
    /// The others.
    pub left_out: LeftOut,
}

impl FileLeftOut {
    /// For `import --json`.
    pub fn json(&self) -> Value {
        let FileLeftOut { file, recorded, left_out } = self;
        let not_imported = left_out.not_imported.iter();
        json!({
            "file": file,
            "recorded": recorded,
            "lost": left_out.lost(),
            "why": left_out.lost,
            "not_imported": not_imported
                .map(|(what, rows)| json!({ "what": what, "rows": rows }))
                .collect::<Vec<_>>(),
        })
    }
}

/// The line that `gpuwhy import` prints.
impl fmt::Display for FileLeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileLeftOut { file, recorded, left_out } = self;
        match left_out.lost() {
            0 => write!(f, "left out: no row of {file} was lost; {left_out}"),
            lost => {
                let all = recorded.saturating_add(lost);
                write!(f, "left out: {lost} of {all} rows of {file}: {left_out}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_claims_to_have_lost_more_than_can_be_is_told_the_most_that_can_be() {
        let mut left_out = LeftOut::default();
        for why in [NO_TIME, NO_TIME, OUT_OF_RANGE] {
            left_out.lose(why, u64::MAX);
        }
        assert_eq!(left_out.lost(), u64::MAX);
    }

    #[test]
    fn what_was_left_out_is_one_line_with_its_reasons() {
        let mut left_out = LeftOut::default();
        assert_eq!(left_out.note(), None);
        left_out.not_imported("CUDA_EVENT", Some(12));
        left_out.not_imported("OSRT_CALLCHAINS", None);
        let line = |left_out: &LeftOut| {
            let (file, left_out) = ("report4.sqlite".into(), left_out.clone());
            FileLeftOut { file, recorded: 3957, left_out }.to_string()
        };
        assert_eq!(
            line(&left_out),
            "left out: no row of report4.sqlite was lost; not imported: CUDA_EVENT (12 rows), \
             OSRT_CALLCHAINS"
        );
        left_out.lose(NO_TIME, 1800);
        left_out.lose(OUT_OF_RANGE, 0);
        left_out.lose("ends before it begins", 12);
        left_out.lose(NO_TIME, 25);
        left_out.not_imported("CUDA_EVENT", Some(1));
        assert_eq!(left_out.lost(), 1837);
        assert_eq!(
            line(&left_out),
            "left out: 1837 of 5794 rows of report4.sqlite: ends before it begins 12, no time 1825; \
             not imported: CUDA_EVENT (13 rows), OSRT_CALLCHAINS"
        );
    }

    #[test]
    fn a_file_with_any_number_of_unknown_tables_has_a_short_note() {
        let mut left_out = LeftOut::default();
        (0..1000).for_each(|i| left_out.not_imported(&format!("t{i:04}"), Some(1)));
        let note = left_out.note().unwrap();
        assert!(note.ends_with("t0063 (1 row) and 936 more"), "{note}");
    }
}
