//! Whether threads were on their CPUs, from the switches of `SCHED_EVENTS`.
//!
//! A switch ends one state of a thread and begins the next, so switches are needed in the order of time.
//! The export does not promise it (one row in 50,000 stands too late, in real reports), so all of them
//! go through a sorter, and become states after the last row of their table.

use std::collections::BTreeMap;

use gpuwhy_schema::{ThreadState, TrackId};

use super::piece::Switch;
use super::report::Report;
use crate::sorter::{Sorted, Sorter};
use crate::{Error, Result};

/// Switches that are turned into states at once.
pub(super) const BATCH: usize = 1 << 16;

/// The switches of the report whose table is being read.
pub(super) type Switches = Sorter<3>;

/// A switch as three words: when, the thread, and the rest, where who leaves comes before who comes.
pub(super) fn record(switch: &Switch) -> [i64; 3] {
    let cpu = i64::from(u32::try_from(switch.cpu).unwrap_or(u32::MAX));
    let state = switch.state.and_then(|state| u8::try_from(state).ok()).unwrap_or(u8::MAX);
    [switch.ts, switch.thread, i64::from(switch.is_in) << 40 | i64::from(state) << 32 | cpu]
}

/// What a thread is after a switch, and the CPU of a thread that runs or could.
pub(super) fn after(rest: i64) -> (Option<ThreadState>, i64) {
    let cpu = match rest as u32 {
        u32::MAX => -1,
        cpu => i64::from(cpu),
    };
    match (rest >> 40 != 0, rest >> 32 & 0xff) {
        (true, _) => (Some(ThreadState::Running), cpu),
        // Why it left the CPU, as Nsight's `ENUM_SAMPLING_THREAD_STATE` numbers it.
        (false, 1 | 6) => (Some(ThreadState::Runnable), cpu),
        (false, 2 | 7) => (Some(ThreadState::Sleep), -1),
        (false, 3) => (Some(ThreadState::Uninterruptible), -1),
        (false, 4) => (Some(ThreadState::Stopped), -1),
        // The report does not say.
        (false, _) => (None, -1),
    }
}

/// Sorted switches that are being turned into states.
#[derive(Debug)]
pub(super) struct States {
    pub number: usize,
    pub sorted: Sorted<3>,
    pub ahead: Option<[i64; 3]>,
    /// The state that each thread is in.
    pub open: BTreeMap<i64, OpenState>,
}

/// A state that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenState {
    pub since: i64,
    pub state: Option<ThreadState>,
    pub arg: i64,
    pub track: TrackId,
}

impl States {
    pub fn next(&mut self, report: &Report) -> Result<Option<[i64; 3]>> {
        match self.ahead.take() {
            Some(ahead) => Ok(Some(ahead)),
            None => self.sorted.next().map_err(Error::io("sort the rows of", report.path())),
        }
    }
}
