//! Units of work: what is compared with its like, and may be slower than usual.
//!
//! A program that marks its *steps*, or of which a function is named that is one step, is judged by
//! these ([`steps`]). A GPU program that marks none is judged by its *rounds*, if it has any: the
//! regular pattern of its waits for the GPU or of its collectives ([`rounds`] in a trace,
//! [`live_rounds`] as they happen). Of a recording that has neither, the rhythm of what its busiest threads wait for
//! is taken (`waits`), and of one whose threads wait for work at no rhythm their busy periods (`busy_periods`, and
//! `live_busy` as they happen).

mod busy_periods;
mod live_busy;
pub mod live_rounds;
pub mod loads;
pub(crate) mod off_cpu;
pub mod rounds;
pub mod steps;
mod waits;

use gpuwhy_diagnose::detect::Steps;

use crate::error::{Error, Result};
use crate::phases::Program;
use crate::source::TraceSource;
use crate::threads::Busy;
use rounds::RoundsOfProcess;

/// The units of work of a trace.
#[derive(Debug, Default)]
pub struct Units {
    /// Every finished unit, ordered by its end.
    pub steps: Steps,
    /// What the units are, where no steps are marked: the rounds of each process.
    pub rounds: Vec<RoundsOfProcess>,
}

impl Units {
    /// What these units are called: `steps`, `rounds` or `busy periods`.
    pub fn name(&self) -> &'static str {
        match self.rounds.is_empty() {
            true => "steps",
            false if self.are_busy_periods() => "busy periods",
            false => "rounds",
        }
    }

    /// Whether these units are busy periods.
    pub fn are_busy_periods(&self) -> bool {
        self.rounds.iter().any(|rounds| rounds.of == rounds::Recurring::BusyPeriods)
    }
}

/// The steps of a trace or, where none are marked, the rounds of its processes: of each of its `programs`, whose
/// phases are known, in each phase of work.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource, programs: &[Program]) -> Result<Units> {
    let path = source.trace().path();
    let mut steps = steps::of_trace(source).map_err(Error::read("steps", path))?;
    off_cpu::fill(source, &mut steps).map_err(Error::read("states", path))?;
    loads::learn(source, &mut steps).map_err(Error::read("batches", path))?;
    if !steps.is_empty() {
        return Ok(Units { steps: steps.into(), rounds: Vec::new() });
    }
    let (steps, rounds) =
        rounds::of_trace(source, programs).map_err(Error::read("rounds", path))?;
    Ok(Units { steps: steps.into(), rounds })
}

/// The rounds that waits of busy threads make, or else the busy periods of threads that wait for work, for a trace without
/// steps.
///
/// # Errors
/// The trace cannot be read.
pub fn of_waits(source: &TraceSource, busy: &Busy) -> Result<Units> {
    let path = source.trace().path();
    let (steps, rounds) = waits::of_trace(source, busy).map_err(Error::read("states", path))?;
    if !steps.is_empty() {
        return Ok(Units { steps: steps.into(), rounds });
    }
    let (mut steps, rounds) =
        busy_periods::of_trace(source, busy).map_err(Error::read("states", path))?;
    off_cpu::fill(source, &mut steps).map_err(Error::read("states", path))?;
    Ok(Units { steps: steps.into(), rounds })
}
