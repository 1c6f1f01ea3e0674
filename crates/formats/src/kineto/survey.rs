//! What must be known of several files before their rows can be made: who they are, when they were
//! recorded, and when collectives ended in them.

use std::collections::BTreeMap;
use std::path::Path;

use super::reader::{About, Reader, Step};
use crate::Result;
use crate::align::end_together;

/// Ends of collectives that are kept of a file, and names of their kernels.
const ENDS: usize = 1 << 20;
const KERNELS: usize = 4096;

/// What a file holds, without its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// What it contains about itself.
    pub about: About,
    /// When its first event began, in ns on its own clock.
    pub first: Option<i64>,
    /// When its last event ended.
    pub last: Option<i64>,
    /// The ends of collectives by the names of their kernels, sorted.
    pub collectives: BTreeMap<Vec<u8>, Vec<i64>>,
}

impl Survey {
    /// Reads the file at `path` from end to end.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub fn of(path: &Path) -> Result<Survey> {
        let mut reader = Reader::open(path)?;
        let mut survey = Survey::default();
        let mut kept = 0;
        loop {
            match reader.step()? {
                Step::End => break,
                Step::Event => {}
                Step::EventsEnd | Step::About => continue,
            }
            let event = &reader.event;
            if !matches!(event.phase, b'X' | b'i' | b'I' | b'C') {
                continue;
            }
            let Ok(start) = event.ts.moved(0) else { continue };
            let end = start.saturating_add(event.dur.duration().unwrap_or(0));
            survey.first = Some(survey.first.map_or(start, |first| first.min(start)));
            survey.last = Some(survey.last.map_or(end, |last| last.max(end)));
            let is_one =
                event.category.eq_ignore_ascii_case(b"kernel") && end_together(&event.name);
            if !is_one || kept >= ENDS {
                continue;
            }
            if let Some(ends) = survey.collectives.get_mut(&event.name) {
                ends.push(end);
                kept += 1;
            } else if survey.collectives.len() < KERNELS {
                survey.collectives.insert(event.name.clone(), vec![end]);
                kept += 1;
            }
        }
        survey.collectives.values_mut().for_each(|ends| ends.sort_unstable());
        survey.about = reader.about;
        Ok(survey)
    }
}
