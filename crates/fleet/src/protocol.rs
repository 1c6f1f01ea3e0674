//! The messages between nodes and the correlator: one JSON document a line.
//!
//! What arrives is untrusted on both sides. Lines are bounded before they are parsed, names are restricted or
//! cleaned where they enter, and numbers may be anything.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of these messages.
pub const VERSION: u32 = 2;
/// The longest line from a node, bytes.
pub const LINE: usize = 64 << 10;
/// The longest first line from a node, before it is known who it is.
pub const HELLO: usize = 1 << 10;
/// The longest line from the correlator.
pub const CENTER_LINE: usize = 2 << 10;
/// The job of a node that was told none.
pub const NO_JOB: &str = "default";
/// The longest name of a node, a job, a step or a phase, bytes.
pub const NAME: usize = 64;

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
        /// A random number of the node's process, by which it is known again after its connection broke.
        /// Version 1 had none.
        #[serde(default)]
        session: String,
    },
    /// Steps that ended.
    Steps {
        /// The job that they are of.
        job: String,
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
        id: String,
        /// What the node found; `None` if it does not know these steps.
        finding: Option<Value>,
    },
    /// The connection is in order, and there is nothing to say.
    Alive,
}

/// From the correlator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "says", rename_all = "snake_case")]
pub enum CenterMessage {
    /// The answer to hello: the node may report.
    Welcome {
        /// [`VERSION`] of the correlator.
        version: u32,
    },
    /// The last message: the connection will be closed.
    Refused {
        /// Why.
        why: String,
    },
    /// Why did these steps take as long as they did?
    Question(Question),
    /// The connection is in order, and there is nothing to say.
    Alive,
}

/// Why did these steps of this rank take as long as they did?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Its id, which nobody else can guess and the answer repeats.
    pub id: String,
    /// The job.
    pub job: String,
    /// The rank.
    pub rank: u32,
    /// The first slow step.
    pub first_seq: u64,
    /// The last slow step.
    pub last_seq: u64,
}

/// Whether `text` can be the name of a node or a job.
pub fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    (1..=NAME).contains(&text.len())
        && text.bytes().all(allowed)
        && text.as_bytes()[0].is_ascii_alphanumeric()
}

/// `text` as the name of a job: what is not allowed in one becomes `-`.
pub fn job_name(text: &str) -> String {
    let text: String = text.chars().take(NAME - 1).collect();
    let safe: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' })
        .collect();
    if is_name(&safe) { safe } else { format!("j{safe}") }
}

/// Text of a peer without characters that do not show, and with at most `most` characters.
pub fn clean(text: &str, most: usize) -> String {
    let visible = |c: char| if gpuwhy_schema::text::unseen(c) { '\u{fffd}' } else { c };
    let mut kept: String = text.chars().take(most).map(visible).collect();
    if text.chars().nth(most).is_some() {
        kept.push('…');
    }
    kept
}

/// Cleans every text in a document of a peer.
pub fn clean_document(value: &mut Value) {
    match value {
        Value::String(text) => *text = clean(text, 2000),
        Value::Array(all) => all.iter_mut().for_each(clean_document),
        Value::Object(fields) => {
            let old = std::mem::take(fields);
            for (name, mut field) in old {
                clean_document(&mut field);
                fields.insert(clean(&name, NAME), field);
            }
        }
        _ => {}
    }
}

/// A message as a line; `None` if it is longer than `most` bytes.
pub fn line(message: &impl Serialize, most: usize) -> Option<String> {
    let mut line = serde_json::to_string(message).ok()?;
    line.push('\n');
    (line.len() <= most).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["n", "node-1.rack_2", "0"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-n", ".", "a b", "a\n", "\u{1b}[2J", "ä", &"x".repeat(NAME + 1)] {
            assert!(!is_name(bad), "{bad:?}");
        }
        for any in ["", "slurm 12", "-7", &"ä".repeat(99), "\u{1b}]52;c;\u{7}"] {
            assert!(is_name(&job_name(any)), "{any:?}");
        }
    }

    #[test]
    fn no_text_of_a_peer_reaches_a_terminal_with_control_characters() {
        let mut document = serde_json::json!({
            "summary": "\u{1b}]52;c;aGk=\u{7}hi\u{202e}\u{9b}2J", "a\u{1b}": ["\r\n", {"x": "\u{0}"}],
        });
        clean_document(&mut document);
        let text = format!("{}{}", document["summary"].as_str().unwrap(), document);
        assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
    }
}
