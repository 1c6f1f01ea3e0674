//! When a helper process should end.

use std::time::Duration;

use anyhow::Result;

use crate::sys::{self, Ended, Waiter};

/// The end of a helper process: after its time, or when it gets a signal.
pub(crate) struct Deadline {
    waiter: Waiter,
    at: Option<u64>,
}

impl Deadline {
    /// A deadline in `seconds`, or only by a signal. To be made before any thread is started.
    ///
    /// # Errors
    /// If the signals cannot be blocked.
    pub(crate) fn new(seconds: Option<f64>) -> Result<Deadline> {
        let at = seconds
            .map(|s| sys::now() + Duration::from_secs_f64(s.clamp(0.0, 1e6)).as_nanos() as u64);
        Ok(Deadline { waiter: Waiter::new()?, at })
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(&self) -> bool {
        self.at.is_some_and(|at| sys::now() >= at)
            || self.waiter.until(Some(0), None) == Ended::Signal
    }

    /// Waits for it.
    pub(crate) fn wait(&self) {
        self.waiter.until(self.at, None);
    }

    /// Waits for it, but for `seconds` at most; whether it has passed.
    pub(crate) fn wait_for(&self, seconds: f64) -> bool {
        let soon = sys::now() + Duration::from_secs_f64(seconds).as_nanos() as u64;
        let at = self.at.map_or(soon, |at| at.min(soon));
        self.waiter.until(Some(at), None) == Ended::Signal || self.has_passed()
    }
}
