//! Units of work: what is compared with its like, and may be slower than usual.
//!
//! A program that marks its *steps*, or of which a function is named that is one step, is judged by
//! these ([`steps`]). A GPU program that marks none is judged by its *rounds*, if it has any: the
//! regular pattern of its waits for the GPU or of its collectives ([`rounds`] in a trace,
//! [`live_rounds`] as they happen). Of a recording that has neither, the rhythm of what its busiest threads wait for
//! is taken (`waits`), of one whose threads wait for work at no rhythm their busy periods (`busy_periods`, and
//! `live_busy` as they happen), and of one whose threads compute and wait for nothing their work quanta (`work_quanta`).

mod busy_periods;
mod calls;
mod live_busy;
pub mod live_rounds;
pub mod loads;
mod of_threads;
pub(crate) mod off_cpu;
pub mod rounds;
pub mod steps;
mod waits;
mod work_quanta;

use gpuwhy_diagnose::detect::{Step, Steps};
use gpuwhy_schema::Finding;

use crate::error::{Error, Result};
use crate::phases::Program;
use crate::source::{EVER, TraceSource};
use crate::threads::Busy;
use rounds::{Recurring, RoundsOfProcess};

/// The units of work of a trace.
#[derive(Debug, Default)]
pub struct Units {
    /// Every finished unit, ordered by its end.
    pub steps: Steps,
    /// What the units are, where no steps are marked: the rounds of each process.
    pub rounds: Vec<RoundsOfProcess>,
    /// These are compared beside calls of functions that were named as steps, and not in the place of steps.
    pub beside_calls: bool,
}

impl Units {
    /// What these units are called: `steps`, `rounds`, `busy periods` or `work quanta`.
    pub fn name(&self) -> &'static str {
        match self.rounds.is_empty() {
            true => "steps",
            false if self.beside_calls => "steps and busy periods",
            false if self.are(Recurring::BusyPeriods) => "busy periods",
            false if self.are(Recurring::WorkQuanta) => "work quanta",
            false => "rounds",
        }
    }

    /// What stands before the list of rounds, for users.
    pub fn why_rounds(&self) -> &'static str {
        match self.beside_calls {
            true => {
                "The functions that were named as steps do the least of what their processes do. What was judged as well:"
            }
            false => "No steps are marked. What was judged in their place:",
        }
    }

    /// Whether the threads themselves say what these units are, and not what the program does again and again.
    pub fn are_of_threads(&self) -> bool {
        self.are(Recurring::BusyPeriods) || self.are(Recurring::WorkQuanta)
    }

    fn are(&self, of: Recurring) -> bool {
        self.rounds.iter().any(|rounds| rounds.of == of)
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
        let (periods, rounds) = beside_calls(source, &steps)?;
        if !periods.is_empty() {
            steps.extend(periods);
            steps.sort_by_key(|step| (step.end(), step.ts, step.id));
        }
        return Ok(Units { steps: steps.into(), beside_calls: !rounds.is_empty(), rounds });
    }
    let (steps, rounds) =
        rounds::of_trace(source, programs).map_err(Error::read("rounds", path))?;
    Ok(Units { steps: steps.into(), rounds, beside_calls: false })
}

/// The busy periods of processes of whose work functions that were named as steps do the least; none where a program marks
/// its steps.
fn beside_calls(source: &TraceSource, steps: &[Step]) -> Result<(Vec<Step>, Vec<RoundsOfProcess>)> {
    let path = source.trace().path();
    if !steps::are_calls(source.entities_and_tracks()) || is_of_watch(source)? {
        return Ok(Default::default());
    }
    let busy = Busy::of_trace(source).map_err(Error::read("states", path))?;
    let found = of_threads::beside_calls(source, &busy, steps);
    let (mut periods, rounds) = found.map_err(Error::read("states", path))?;
    off_cpu::fill(source, &mut periods).map_err(Error::read("states", path))?;
    Ok((periods, rounds))
}

/// Whether a trace is one of `watch`, which has exact rows around its findings only.
fn is_of_watch(source: &TraceSource) -> Result<bool> {
    let finding = source.trace().read::<Finding>(EVER).next().transpose();
    Ok(finding.map_err(Error::read("findings", source.trace().path()))?.is_some())
}

/// The rounds that waits of busy threads make, or else the busy periods of threads that wait for work, or else the work
/// quanta of those that do not, for a trace without steps.
///
/// # Errors
/// The trace cannot be read.
pub fn of_waits(source: &TraceSource, busy: &Busy) -> Result<Units> {
    let path = source.trace().path();
    let (steps, rounds) = waits::of_trace(source, busy).map_err(Error::read("states", path))?;
    if !steps.is_empty() {
        return Ok(Units { steps: steps.into(), rounds, beside_calls: false });
    }
    if is_of_watch(source)? {
        return Ok(Units::default());
    }
    let (mut steps, rounds) =
        of_threads::of_trace(source, busy).map_err(Error::read("states", path))?;
    off_cpu::fill(source, &mut steps).map_err(Error::read("states", path))?;
    Ok(Units { steps: steps.into(), rounds, beside_calls: false })
}
