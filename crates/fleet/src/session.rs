//! A node's side of a connection without sockets.

use gpuwhy_schema::Ns;

use crate::center::SILENT;
use crate::protocol::{
    CENTER_LINE, CenterMessage, LINE, NodeMessage, Question, VERSION, clean, is_name, line,
};
use crate::rate::{Bucket, Flow};

/// A correlator answers hello within this.
const WELCOME_BY: Ns = Ns::secs(10);
/// A node says something at least this often.
const ALIVE: Ns = Ns::secs(5);
/// Lines a second from a correlator, and at once.
const LINES: (f64, f64) = (5.0, 50.0);
/// Bytes a second from a correlator, and at once.
const BYTES: (f64, f64) = (4096.0, 65536.0);
/// Questions a second that are answered, and at once: each costs a judgement.
const QUESTIONS: (f64, f64) = (0.2, 10.0);
/// Steps that a question may be about.
const STEPS: u64 = 100_000;

/// A connection's state on the side of the node. Whatever the other end sends, what it takes of the node is
/// bounded: lines are short and few, and a question is answered five times a minute.
pub struct Session {
    hello: String,
    welcome: bool,
    since: Ns,
    heard: Ns,
    sent: Ns,
    flow: Flow,
    questions: Bucket,
    /// Questions that were not passed on because there were too many.
    pub unanswered: u64,
}

impl Session {
    /// A new connection of the node `node`, whose process is `session`.
    pub fn new(node: &str, session: &str, now: Ns) -> Session {
        let hello =
            NodeMessage::Hello { version: VERSION, node: node.into(), session: session.into() };
        Session {
            hello: line(&hello, LINE).unwrap_or_default(),
            welcome: false,
            since: now,
            heard: now,
            sent: now,
            flow: Flow::new(BYTES, LINES, now),
            questions: Bucket::new(QUESTIONS.0, QUESTIONS.1, now),
            unanswered: 0,
        }
    }

    /// The first line.
    pub fn hello(&self) -> &str {
        &self.hello
    }

    /// Whether the correlator wants to hear from us.
    pub fn is_welcome(&self) -> bool {
        self.welcome
    }

    /// The longest line that the correlator may send.
    pub fn longest_line(&self) -> usize {
        CENTER_LINE
    }

    /// Counts bytes that were read.
    pub fn read(&mut self, bytes: usize, now: Ns) {
        self.flow.read(bytes, 0, now);
    }

    /// Whether more may be read now.
    pub fn may_read(&mut self, now: Ns) -> bool {
        self.flow.may_read(now)
    }

    /// Something was sent.
    pub fn sent(&mut self, now: Ns) {
        self.sent = now;
    }

    /// Takes a line of the correlator; the question in it, if it is one that may be answered.
    ///
    /// # Errors
    /// Why the connection must be closed.
    pub fn line(&mut self, line: &[u8], now: Ns) -> Result<Option<Question>, String> {
        self.flow.read(0, 1, now);
        self.heard = now;
        let message: CenterMessage = serde_json::from_slice(line)
            .map_err(|error| clean(&format!("what it says is not understood ({error})"), 300))?;
        match message {
            CenterMessage::Welcome { version: VERSION } => {
                self.welcome = true;
                Ok(None)
            }
            CenterMessage::Welcome { version } => {
                Err(format!("it speaks version {version} of the protocol, this node {VERSION}"))
            }
            CenterMessage::Refused { why } => {
                Err(clean(&format!("it refuses this node: {why}"), 300))
            }
            CenterMessage::Alive => Ok(None),
            CenterMessage::Question(_) if !self.welcome => Err("it asks before it welcomes".into()),
            CenterMessage::Question(question) => {
                let sound = question.first_seq <= question.last_seq
                    && question.last_seq - question.first_seq < STEPS
                    && question.id.len() <= 64
                    && is_name(&question.job);
                if !sound {
                    return Err("it asks a question that makes no sense".into());
                }
                if !self.questions.try_take(now) {
                    self.unanswered += 1;
                    return Ok(None);
                }
                Ok(Some(question))
            }
        }
    }

    /// Lets time pass; a line that is due.
    ///
    /// # Errors
    /// Why the connection must be closed.
    pub fn tick(&mut self, now: Ns) -> Result<Option<String>, String> {
        if !self.welcome && now >= self.since.saturating_add(WELCOME_BY) {
            return Err("it did not answer within 10 s".into());
        }
        if now >= self.heard.saturating_add(SILENT) {
            return Err("it was silent for 20 s".into());
        }
        if self.flow.is_flood(now) {
            return Err("it sends more than a correlator has to say".into());
        }
        if self.welcome && now >= self.sent.saturating_add(ALIVE) {
            self.sent = now;
            return Ok(line(&NodeMessage::Alive, LINE));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn welcome() -> Session {
        let mut session = Session::new("n", "s", Ns::ZERO);
        session.line(br#"{"says":"welcome","version":2}"#, Ns::ZERO).unwrap();
        session
    }

    fn question(first: u64, last: u64) -> Vec<u8> {
        let id = "7f".repeat(16);
        let question = Question { id, job: "j".into(), rank: 0, first_seq: first, last_seq: last };
        serde_json::to_vec(&CenterMessage::Question(question)).unwrap()
    }

    #[test]
    fn a_hostile_correlator_gets_few_answers() {
        let mut session = welcome();
        let asked = (0..600).filter(|tenth| {
            session.line(&question(0, 9), Ns::millis(tenth * 100)).unwrap().is_some()
        });
        assert_eq!(asked.count(), 10 + 11, "in a minute");
        assert!(session.tick(Ns::secs(60)).unwrap_err().contains("more than"), "and is left");
    }

    #[test]
    fn questions_without_sense_end_the_connection() {
        for (first, last) in [(5, 4), (0, STEPS), (0, u64::MAX)] {
            assert!(welcome().line(&question(first, last), Ns::ZERO).is_err());
        }
        let mut early = Session::new("n", "s", Ns::ZERO);
        assert!(early.line(&question(0, 1), Ns::ZERO).is_err());
    }

    #[test]
    fn a_correlator_that_says_nothing_is_left_and_one_that_does_is_kept() {
        let mut silent = Session::new("n", "s", Ns::ZERO);
        assert!(silent.tick(Ns::secs(9)).is_ok() && silent.tick(Ns::secs(10)).is_err());
        let mut session = welcome();
        assert!(session.tick(Ns::secs(5)).unwrap().unwrap().contains("alive"));
        session.line(br#"{"says":"alive"}"#, Ns::secs(19)).unwrap();
        assert!(session.tick(Ns::secs(38)).is_ok() && session.tick(Ns::secs(39)).is_err());
    }

    #[test]
    fn why_a_node_is_refused_may_be_printed() {
        let refused = r#"{"says":"refused","why":"\u001b]52;c;x\u0007"}"#;
        let why = welcome().line(refused.as_bytes(), Ns::ZERO).unwrap_err();
        assert!(why.starts_with("it refuses") && !why.contains('\u{1b}'), "{why:?}");
    }

    /// The parser's error quotes a word that it does not know as it came.
    #[test]
    fn why_a_line_is_not_understood_may_be_printed() {
        let unknown = "{\"says\":\"questi\u{7f}\u{9b}2Jn\",\"why\":0}";
        let why = welcome().line(unknown.as_bytes(), Ns::ZERO).unwrap_err();
        assert!(why.contains("questi") && !why.contains(gpuwhy_schema::text::unseen), "{why:?}");
    }
}
