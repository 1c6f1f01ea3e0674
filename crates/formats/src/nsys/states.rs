//! Whether threads were on their CPUs, from the switches of `SCHED_EVENTS`.
//!
//! A switch ends one state of a thread and begins the next, so switches are needed in the order of time.
//! The export does not promise it (one row in 50,000 stands too late, in real reports), so all of them
//! go through a sorter, and become states after the last row of their table.

use std::collections::BTreeMap;

use gpuwhy_schema::{Discipline, Lane, Ns, Rows, State, ThreadState, TrackId, names};

use super::dropped::Why;
use super::piece::Switch;
use super::place::Placer;
use super::report::Report;
use crate::sorter::{Sorted, Sorter};
use crate::{Error, Result};

/// Switches that are turned into states at once.
const BATCH: usize = 1 << 16;

/// The switches of the report whose table is being read.
pub(super) type Switches = Sorter<3>;

/// A switch as three words: when, the thread, and the rest, where who leaves comes before who comes.
fn record(switch: &Switch) -> [i64; 3] {
    let cpu = i64::from(u32::try_from(switch.cpu).unwrap_or(u32::MAX));
    let state = switch.state.and_then(|state| u8::try_from(state).ok()).unwrap_or(u8::MAX);
    [switch.ts, switch.thread, i64::from(switch.is_in) << 40 | i64::from(state) << 32 | cpu]
}

/// What a thread is after a switch, and the CPU of a thread that runs or could.
fn after(rest: i64) -> (Option<ThreadState>, i64) {
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
    number: usize,
    sorted: Sorted<3>,
    ahead: Option<[i64; 3]>,
    /// The state that each thread is in.
    open: BTreeMap<i64, OpenState>,
}

/// A state that has begun.
#[derive(Clone, Copy, Debug)]
struct OpenState {
    since: i64,
    state: Option<ThreadState>,
    arg: i64,
    track: TrackId,
}

impl States {
    fn next(&mut self, report: &Report) -> Result<Option<[i64; 3]>> {
        match self.ahead.take() {
            Some(ahead) => Ok(Some(ahead)),
            None => self.sorted.next().map_err(Error::io("sort the rows of", report.path())),
        }
    }
}

impl Placer {
    /// Remembers a switch until its table has been read.
    pub(super) fn switch(&mut self, report: &Report, switch: &Switch) -> Result<()> {
        let pushed = self.switches.push(record(switch));
        pushed.map_err(Error::io("sort the rows of", report.path()))
    }

    /// Begins to turn switches into states: all of a table have been read.
    pub(super) fn begin_states(&mut self, report: &Report, number: usize) -> Result<()> {
        let sorted = std::mem::take(&mut self.switches).finish();
        let sorted = sorted.map_err(Error::io("sort the rows of", report.path()))?;
        self.states = Some(States { number, sorted, ahead: None, open: BTreeMap::new() });
        Ok(())
    }

    /// The next states of the table that has been read; `None` after the last.
    pub(super) fn more_states(&mut self, reports: &[Report]) -> Result<Option<Rows>> {
        let Some(mut states) = self.states.take() else { return Ok(None) };
        let report = &reports[states.number];
        let mut rows = Rows::default();
        let mut switches = 0;
        while switches < BATCH {
            let Some(first) = states.next(report)? else { break };
            switches += self.moment(report, &mut states, first, &mut rows)?;
        }
        if switches < BATCH {
            for open in states.open.into_values() {
                if let Some(state) = open.state {
                    let (ts, value, arg) = (Ns(open.since), state.code(), Some(open.arg));
                    rows.state.push(State { ts, dur: None, track: open.track, value, arg });
                }
            }
        } else {
            self.states = Some(states);
        }
        self.lanes.drain(&mut rows);
        Ok(Some(rows))
    }

    /// Applies all switches of one thread at one moment, and returns how many they are. At the same
    /// moment, a thread that runs leaves before it comes, and one that does not run comes before it
    /// leaves.
    fn moment(
        &mut self,
        report: &Report,
        states: &mut States,
        first: [i64; 3],
        rows: &mut Rows,
    ) -> Result<usize> {
        let [ts, thread, _] = first;
        // How many there are, and the last: of those that leave, and of those that come.
        let (mut leaves, mut comes) = ((0usize, 0i64), (0usize, 0i64));
        let mut next = Some(first);
        while let Some([t, th, rest]) = next {
            if (t, th) != (ts, thread) {
                states.ahead = next;
                break;
            }
            let of = if rest >> 40 == 0 { &mut leaves } else { &mut comes };
            *of = (of.0 + 1, rest);
            next = states.next(report)?;
        }
        let at = ts.saturating_add(self.reports[states.number].shift);
        let before = states.open.get(&thread).copied();
        let runs = before.is_some_and(|open| open.state == Some(ThreadState::Running));
        let comes_last = if runs { comes.0 >= leaves.0 } else { comes.0 > leaves.0 };
        let (state, arg) = after(if comes_last { comes.1 } else { leaves.1 });
        let track = match before {
            Some(open) => open.track,
            None => {
                let lane = Lane::states(names::THREAD_STATE, Discipline::Sparse);
                self.thread_track(report, states.number, thread, names::THREAD_STATE, lane)
            }
        };
        let switches = leaves.0 + comes.0;
        let placed = &mut self.reports[states.number];
        if *self.state_owners.entry(track).or_insert(states.number) != states.number {
            placed.drop_rows("SCHED_EVENTS", Why::ToldTwice, switches as u64);
            return Ok(switches);
        }
        placed.recorded += switches as u64;
        if let Some(OpenState { since, state: Some(state), arg, .. }) = before
            && since < at
        {
            let (ts, dur, value) = (Ns(since), Some(Ns(at - since)), state.code());
            rows.state.push(State { ts, dur, track, value, arg: Some(arg) });
        }
        states.open.insert(thread, OpenState { since: at, state, arg, track });
        Ok(switches)
    }
}
