//! Where a recording's rows go, whatever the disk does.
//!
//! A full or failing disk is a source that records less, never the end of a recording: rows are held
//! and tried again, what does not fit is counted, and the trace says so itself once it can be written.
//! Nothing here returns an error; what happened is news, each of which is told once.

use std::time::{Duration, Instant};

use gpuwhy_collect::Recorder;
use gpuwhy_schema::{Rows, SourceId, SourceState};
use gpuwhy_store::{Writer, Written};

use crate::error::{Error, Result};

/// What a killed recorder may lose.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// The same while the disk fails: each try encodes all rows that are held.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// The trace that is being written.
pub(crate) struct TraceOutput {
    writer: Writer,
    /// What the trace itself says of this.
    source: SourceId,
    committed: Instant,
    failing: Option<Failing>,
    /// For how long the disk has failed before, and how many rows that cost.
    failed_for: Duration,
    news: Vec<String>,
}

/// A disk that fails at present.
struct Failing {
    since: Instant,
    why: String,
}

impl TraceOutput {
    /// Over a trace that was begun a moment ago.
    pub fn new(writer: Writer, recorder: &mut Recorder) -> TraceOutput {
        TraceOutput {
            writer,
            source: recorder.add_source("store", "journal"),
            committed: Instant::now(),
            failing: None,
            failed_for: Duration::ZERO,
            news: Vec::new(),
        }
    }

    /// Takes all of `rows`.
    pub fn append(&mut self, rows: &mut Rows) {
        let appended = self.writer.append(rows);
        self.note(appended);
    }

    /// Lets `write` write; the writer holds what it could not write.
    pub fn with<T>(&mut self, write: impl FnOnce(&mut Writer) -> Result<T>) {
        match write(&mut self.writer) {
            Err(Error::Store(error)) => self.note::<()>(Err(error)),
            Err(error) => self.news.push(why(&error)),
            Ok(_) => {}
        }
    }

    /// Commits what was appended, if that is due, and tells of trouble, or of its end.
    pub fn commit(&mut self, recorder: &mut Recorder) {
        let every = if self.failing.is_some() { RETRY_EVERY } else { COMMIT_EVERY };
        if self.committed.elapsed() >= every {
            let committed = self.writer.flush_journal();
            self.committed = Instant::now();
            let was_well = self.failing.is_none();
            self.note(committed);
            match &self.failing {
                Some(failing) if was_well => {
                    let note = format!("rows wait to be written: {}", failing.why);
                    recorder.set_state(self.source, SourceState::Degraded, &note);
                }
                Some(_) if !self.writer.is_failing() => self.recovered(recorder),
                _ => {}
            }
        }
    }

    /// What users should be told, each once.
    pub fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// Completes the trace; if that fails, it is left as a crash would leave it.
    pub fn close(mut self, mut last: Rows) -> Closed {
        // What is said of an error is said of the closing as a whole.
        let _ = self.writer.append(&mut last);
        // What still seals in the background is waited for from now on.
        gpuwhy_collect::hurry();
        let (written, closed) = self.writer.close();
        Closed { written, error: closed.err().map(Error::Store), news: self.news }
    }

    fn note<T>(&mut self, result: Result<T, gpuwhy_store::Error>) {
        let Err(error) = result else { return };
        if self.failing.is_none() {
            let why = why(&error);
            self.news.push(format!(
                "the trace cannot be written: {why}. The recording goes on: rows are held in memory, what \
                 does not fit is counted as lost, and writing is tried again"
            ));
            self.failing = Some(Failing { since: Instant::now(), why });
        }
    }

    fn recovered(&mut self, recorder: &mut Recorder) {
        let Some(failing) = self.failing.take() else { return };
        self.failed_for += failing.since.elapsed();
        let (seconds, lost) = (self.failed_for.as_secs_f64(), self.writer.written().lost);
        let state = if lost > 0 { SourceState::Degraded } else { SourceState::Ok };
        let note = format!(
            "for {seconds:.1} s rows could not be written ({}); {lost} were lost",
            failing.why
        );
        recorder.set_state(self.source, state, &note);
        self.news.push(format!("the trace can be written again: {note}"));
    }
}

/// What became of a trace.
pub(crate) struct Closed {
    /// What was written, and lost.
    pub written: Written,
    /// Why it is not complete.
    pub error: Option<Error>,
    /// What was not told yet.
    pub news: Vec<String>,
}

/// An error with its causes, in one line.
pub(crate) fn why(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
