//! Rows as a native Perfetto trace (`.pftrace`), for <https://ui.perfetto.dev> and its SQL.
//!
//! | rows | in Perfetto |
//! |---|---|
//! | entities | processes and threads by number; a tree of named tracks for all others |
//! | spans | slices; spans that would cross are spread over tracks of the same name, which viewers merge |
//! | steps | slices on the thread's own track |
//! | states | slices named by the state; an occupant by its comm and pid |
//! | counters | counters with their unit |
//! | marks | instants; details and attributes are arguments |
//! | wakeups in task context | a flow from an instant at the waker to one at the woken |
//! | links | flows |
//! | samples | instants named by the innermost frame, the stack as argument |
//! | parts | slices below the thread whose step it is |
//! | findings and causes | slices on `gpuwhy findings`, with class, culprit and excess |
//! | sources | instants on `gpuwhy sources`: what was recorded, what was lost, and why |
//!
//! Times stay CLOCK_MONOTONIC nanoseconds, as the file declares (`primary_trace_clock`); sync points
//! with other clocks are written, too. A trace stores a delta at the *end* of its tick, while Perfetto
//! draws a value *from* its time on, so deltas are written at the begin of their tick.
//!
//! Memory is bounded: rows are written in pieces, and between pieces the writer keeps an open state and
//! a few Perfetto tracks for each track, and names and flows up to a limit.

mod args;
mod events;
mod packets;
mod proto;
mod text;
mod track_tree;
mod writer;

use std::io::{self, Write};
use std::ops::Range;

use gpuwhy_schema::{Ns, Rows};

pub use text::{TextError, text};
pub use writer::Writer;

/// What to write, and how much to hold in memory for it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Write only rows that overlap `[start, end)`, unclipped; all rows if `None`.
    pub range: Option<Range<Ns>>,
    /// How many flows may have an end that is not written yet; about 64 bytes each.
    pub max_flows: usize,
    /// Over how many Perfetto tracks the overlapping spans of one track may be spread.
    pub max_parallel: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { range: None, max_flows: 1_000_000, max_parallel: 256 }
    }
}

/// What was written, and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Slices: spans, states, parts, findings.
    pub slices: u64,
    /// Instants: marks, samples, wakers, sources.
    pub instants: u64,
    /// Values of counters.
    pub counters: u64,
    /// Flows of which both ends were written.
    pub flows: u64,
    /// Perfetto tracks, including groups.
    pub tracks: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Rows outside of [`Options::range`].
    pub outside: u64,
    /// Rows whose track is not declared, or that began before the clock did.
    pub misplaced: u64,
    /// Spans that overlapped more than [`Options::max_parallel`] others of their track.
    pub crowded: u64,
    /// Links beyond [`Options::max_flows`], or with an end that was not written.
    pub loose_flows: u64,
}

/// Why a trace could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Writing failed.
    #[error("cannot write the Perfetto trace beyond byte {bytes}")]
    Write {
        /// Bytes that were written.
        bytes: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Writes `rows` as one Perfetto trace.
///
/// # Errors
/// Writing to `out` fails.
pub fn write(rows: &Rows, out: impl Write, options: Options) -> Result<Stats, Error> {
    let mut writer = Writer::new(out, options);
    writer.rows(rows)?;
    Ok(writer.finish()?.1)
}
