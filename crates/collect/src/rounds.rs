//! A thread that reads something every so often, for as long as somebody takes what it reads.

use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SendError, Sender, SyncSender, channel, sync_channel,
};
use std::time::Duration;

use gpuwhy_schema::Ns;

use crate::context::Context;
use crate::error::CollectError;
use crate::probe::Probe;

/// What a thread reads; it ends when this is dropped, after the round that it is in.
pub(crate) struct Rounds<T> {
    /// What it has read.
    pub readings: Receiver<T>,
    _goes_on: Sender<()>,
}

impl<T: Send + 'static> Rounds<T> {
    /// Starts a thread of this name that does a `round`, waits, and so on. At most `waiting` readings wait to be taken.
    ///
    /// # Errors
    /// There can be no thread; `what` says in the message what it was to read.
    pub fn start(
        name: &str,
        what: &str,
        (every, waiting): (Duration, usize),
        round: impl FnMut(&SyncSender<T>) -> Result<(), SendError<T>> + Send + 'static,
    ) -> Result<Rounds<T>, CollectError> {
        let (goes_on, ends) = channel();
        let (sender, readings) = sync_channel(waiting);
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || run(every, &sender, &ends, round)).map_err(|source| {
            CollectError::System { action: format!("start a thread that reads {what}"), source }
        })?;
        Ok(Rounds { readings, _goes_on: goes_on })
    }
}

fn run<T>(
    every: Duration,
    sender: &SyncSender<T>,
    ends: &Receiver<()>,
    mut round: impl FnMut(&SyncSender<T>) -> Result<(), SendError<T>>,
) {
    while round(sender).is_ok() && ends.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {}
}

/// Makes rows of what a thread reads.
pub(crate) trait Readings {
    type Reading;

    fn take(&mut self, reading: Self::Reading, cx: &mut Context);

    /// The recording ends at `now`: writes what is still open.
    fn finish(&mut self, _now: Ns, _cx: &mut Context) {}

    /// How much was written.
    fn recorded(&self) -> u64;

    /// What was left out.
    fn dropped(&self) -> u64;
}

/// A probe that is a thread which reads, and what makes rows of that.
pub(crate) struct Polled<R: Readings> {
    pub reads: Rounds<R::Reading>,
    pub rows: R,
}

impl<R: Readings> Probe for Polled<R> {
    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        while let Ok(reading) = self.reads.readings.try_recv() {
            self.rows.take(reading, cx);
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.rows.dropped()
    }

    fn recorded(&self) -> u64 {
        self.rows.recorded()
    }

    fn finish(&mut self, now: Ns, cx: &mut Context) {
        self.rows.finish(now, cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_reads_until_nobody_asks_any_more() {
        let (goes_on, ends) = channel();
        let (sender, readings) = sync_channel(16);
        let every = Duration::from_secs(1);
        let thread = std::thread::spawn(move || run(every, &sender, &ends, |to| to.send(7)));
        assert_eq!(readings.recv(), Ok(7));
        drop(goes_on);
        thread.join().unwrap();
    }
}
