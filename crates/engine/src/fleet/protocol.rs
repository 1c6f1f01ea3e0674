//! The messages between nodes and the correlator.

use std::io::{BufRead, Read as _};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of these messages.
pub const VERSION: u32 = 1;
/// The longest line that is read, bytes.
pub const LINE: u64 = 1 << 20;

/// What reading a line came to.
pub enum Line {
    /// A line that ended.
    Whole,
    /// One that is longer than [`LINE`] or was cut off.
    Broken,
    /// The connection has ended.
    End,
}

/// Reads the next line into `line`, which is emptied first.
pub fn read_line(reader: &mut impl BufRead, line: &mut String) -> Line {
    line.clear();
    match reader.take(LINE).read_line(line) {
        Ok(0) | Err(_) => Line::End,
        Ok(_) if line.ends_with('\n') => Line::Whole,
        Ok(_) => Line::Broken,
    }
}

/// One step of one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankStep {
    /// The rank.
    pub rank: u32,
    /// The step's number, which is the same on all ranks.
    pub seq: u64,
    /// Its name.
    pub name: String,
    /// How much there was to do.
    pub size: Option<i64>,
    /// How long it took.
    pub dur_ns: i64,
    /// How long its thread slept in the collective.
    pub waited_ns: i64,
    /// Its other phases and how long they took.
    pub phases: Vec<(String, i64)>,
}

/// From a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "says", rename_all = "snake_case")]
pub enum NodeMessage {
    /// The first message.
    Hello {
        /// [`VERSION`] of the node.
        version: u32,
        /// The node's name.
        node: String,
    },
    /// Steps that ended.
    Steps {
        /// The steps.
        steps: Vec<RankStep>,
        /// Messages that were dropped so far because the connection was slow or away.
        dropped: u64,
    },
    /// A finding of the node itself.
    Finding {
        /// The finding, as in `gpuwhy watch --json`.
        finding: Value,
    },
    /// The answer to a [`Question`].
    Answer {
        /// The question's id.
        id: u64,
        /// What the node found; `None` if it does not know these steps.
        finding: Option<Value>,
    },
}

/// From the correlator: why did these steps of this rank take as long as they did?
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// Its id, which the answer repeats.
    pub id: u64,
    /// The rank.
    pub rank: u32,
    /// The first slow step.
    pub first_seq: u64,
    /// The last slow step.
    pub last_seq: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_whatever_the_other_side_sends() {
        let long = "x".repeat(LINE as usize + 10);
        let text = format!("one\n{long}\n");
        let (mut reader, mut line) = (text.as_bytes(), String::new());
        assert!(matches!(read_line(&mut reader, &mut line), Line::Whole) && line == "one\n");
        assert!(matches!(read_line(&mut reader, &mut line), Line::Broken));
        assert_eq!(line.len() as u64, LINE);
        let mut cut = &b"cut off"[..];
        assert!(matches!(read_line(&mut cut, &mut line), Line::Broken));
        assert!(matches!(read_line(&mut cut, &mut line), Line::End));
    }
}
