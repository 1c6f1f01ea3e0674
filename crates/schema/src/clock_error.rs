//! By how much the times of two sources of one trace may differ.
//!
//! Sources of one recorder share a clock. Files of several hosts, which an import makes one trace of, had
//! clocks of their own; how well these were aligned is a word of each source's `config`. Whoever compares
//! times of two sources asks here whether the comparison can carry what it wants to conclude.

use std::fmt;

use crate::{Ns, Source};

/// The word of `source.config` that holds it.
const KEY: &str = "error_ns";
/// What stands there if it is not known.
const UNKNOWN: &str = "unknown";

/// By how much the times of a source may differ from those of the trace's other sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClockError {
    /// By at most so much, ns.
    Within(Ns),
    /// By any amount: nothing says when the source was recorded.
    Unknown,
}

impl Default for ClockError {
    fn default() -> ClockError {
        ClockError::NONE
    }
}

impl ClockError {
    /// One clock.
    pub const NONE: ClockError = ClockError::Within(Ns::ZERO);

    /// What a source says of itself. One that says nothing has the clock of the trace.
    pub fn of(source: &Source) -> ClockError {
        match source.word(KEY).map(str::parse::<i64>) {
            None => ClockError::NONE,
            Some(Ok(ns)) if ns >= 0 => ClockError::Within(Ns(ns)),
            Some(_) => ClockError::Unknown,
        }
    }

    /// The word by which a source says it.
    pub fn word(self) -> String {
        match self {
            ClockError::Within(ns) => format!("{KEY}={}", ns.0),
            ClockError::Unknown => format!("{KEY}={UNKNOWN}"),
        }
    }

    /// Whether times that differ by more than `least` differ for sure.
    pub fn carries(self, least: Ns) -> bool {
        self <= ClockError::Within(least)
    }

    /// The error in ns; `None` if it is not known.
    pub fn ns(self) -> Option<i64> {
        match self {
            ClockError::Within(ns) => Some(ns.0),
            ClockError::Unknown => None,
        }
    }
}

/// The clause of a sentence: `their clocks may differ by 1.000 ms`.
impl fmt::Display for ClockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockError::Within(ns) => {
                write!(f, "their clocks may differ by {:.3} ms", ns.0 as f64 / 1e6)
            }
            ClockError::Unknown => write!(f, "by how much their clocks differ is not known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lanes, Rows};

    fn of(config: &str) -> ClockError {
        let (mut lanes, mut rows) = (Lanes::default(), Rows::default());
        lanes.source("kineto", "other", "1", config);
        lanes.drain(&mut rows);
        ClockError::of(&rows.source[0])
    }

    #[test]
    fn a_source_says_how_far_its_clock_may_be_off_and_its_own_word_is_read_back() {
        assert_eq!(of("file=a.json"), ClockError::NONE);
        for error in [ClockError::Within(Ns(281)), ClockError::NONE, ClockError::Unknown] {
            assert_eq!(of(&format!("file=a.json {} rank=3", error.word())), error);
        }
        // What makes no sense is no bound.
        assert_eq!(of("error_ns=-5"), ClockError::Unknown);
        assert_eq!(of("error_ns=99999999999999999999"), ClockError::Unknown);
    }

    #[test]
    fn an_unknown_error_carries_nothing() {
        assert!(ClockError::Within(Ns::millis(1)).carries(Ns::millis(1)));
        assert!(!ClockError::Within(Ns::millis(1)).carries(Ns(999_999)));
        assert!(!ClockError::Unknown.carries(Ns::MAX));
        assert_eq!(
            ClockError::Within(Ns::micros(1500)).to_string(),
            "their clocks may differ by 1.500 ms"
        );
    }
}
