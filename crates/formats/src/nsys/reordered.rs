//! What needs rows in the order of time, and so waits until their table has been read: states of threads
//! (`states`), and whether spans nest (`nesting`).

use std::collections::{BTreeMap, HashSet};

use gpuwhy_schema::{Discipline, Lane, Ns, Rows, State, ThreadState, Track, TrackId, names};

use super::chunk::Contents;
use super::dropped::Why;
use super::nesting::{Open, contents};
use super::piece::Switch;
use super::place::Placer;
use super::report::Report;
use super::states::{BATCH, OpenState, States, after, record};
use crate::sorter::Sorter;
use crate::{Error, Result};

impl Placer {
    /// Declares tracks whose spans cross to overlap.
    pub(super) fn check_nesting(&mut self, rows: &Rows) {
        let crossed = self.nesting.check(rows);
        self.overlap(crossed);
    }

    fn overlap(&mut self, crossed: Vec<TrackId>) {
        for track in crossed {
            self.lanes.update_track(track, |t: &mut Track| {
                t.discipline = Some(Discipline::Overlap);
            });
        }
    }

    /// Reads the tables again whose rows were not in the order of time, and declares tracks whose spans
    /// cross to overlap.
    ///
    /// # Errors
    /// A report cannot be read, or the temporary file.
    pub(super) fn check_disordered(&mut self, reports: &[Report]) -> Result<()> {
        let disordered = std::mem::take(&mut self.nesting.disordered);
        if disordered.is_empty() {
            return Ok(());
        }
        let mut sorter: Sorter<3> = Sorter::default();
        let mut crossed = Vec::new();
        let path = reports[0].path();
        for (number, report) in reports.iter().enumerate() {
            let tracks = &self.reports[number].tracks;
            let of: HashSet<Contents> = tracks
                .iter()
                .filter(|(_, track)| disordered.contains(*track))
                .filter_map(|(key, _)| contents(*key))
                .collect();
            for chunk in report.chunks.iter().filter(|chunk| of.contains(&chunk.contents)) {
                let piece = report.read(chunk)?;
                for span in &piece.rows.span {
                    let track = tracks.get(&piece.tracks[span.track.0 as usize]).copied();
                    let Some(track) = track.filter(|track| disordered.contains(track)) else {
                        continue;
                    };
                    let shift = self.reports[number].shift;
                    let start = span.ts.0.saturating_add(shift);
                    let end = span.dur.map_or(i64::MAX, |dur| start.saturating_add(dur.0));
                    // Of equal starts the longest first.
                    let record = [i64::from(track.0), start, !end];
                    sorter.push(record).map_err(Error::io("sort the rows of", path))?;
                }
            }
        }
        let mut sorted = sorter.finish().map_err(Error::io("sort the rows of", path))?;
        let mut at: Option<(i64, Open)> = None;
        while let Some([track, start, end]) =
            sorted.next().map_err(Error::io("sort the rows of", path))?
        {
            let (_, open) = match &mut at {
                Some(known) if known.0 == track => known,
                _ => at.insert((track, Open::default())),
            };
            if !open.nests(start, !end)
                && crossed.last().is_none_or(|t: &TrackId| i64::from(t.0) != track)
            {
                crossed.push(TrackId(track as u32));
            }
        }
        self.overlap(crossed);
        Ok(())
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
