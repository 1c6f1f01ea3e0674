//! All of a trace: which units of work were slower than usual, and why.

use gpuwhy_diagnose::detect::{self, Detection, Incident};
use gpuwhy_diagnose::verdict::Finding;
use gpuwhy_schema::Part;
use gpuwhy_store::IncompleteSource;

use crate::account::KnownParts;
use crate::error::{Error, Result};
use crate::investigate::{self, Budget, investigate};
use crate::phases::{self, NotTold, Program, Programs, RestsOn};
use crate::settings::Settings;
use crate::source::TraceSource;
use crate::threads::{self, Busy, Threads};
use crate::units::{self, Units};

/// Incidents of a trace that are investigated; the others lost less time.
const INVESTIGATED: usize = 8;

/// How to analyse a trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// When something is slower than usual.
    pub detection: Detection,
    /// Why.
    pub judging: investigate::Options,
}

/// What was found in a trace.
pub struct Analysis {
    /// What was compared.
    pub units: Units,
    /// The phases of programs, where a profiler recorded their calls; empty of gpuwhy's own recordings.
    pub programs: Vec<Program>,
    /// Programs and threads that were too many to look at.
    pub not_told: Option<NotTold>,
    /// What was recorded of these, and what was not.
    pub rests_on: Option<RestsOn>,
    /// What can be said without steps, where there are none, or busy periods or work quanta only.
    pub threads: Option<Threads>,
    /// What was slower, most excess first.
    pub incidents: Vec<Incident>,
    /// The judgement of each incident.
    pub findings: Vec<Finding>,
    /// Settings of hosts and processes of which something can be said.
    pub settings: Settings,
    /// Parts of the steps that were examined.
    pub parts: Vec<Part>,
    /// The imported files that the judgement rests on and of which rows were lost.
    pub incomplete: Vec<IncompleteSource>,
}

/// Finds what was slower in a trace and why.
///
/// # Errors
/// The trace cannot be read.
pub fn analyse(source: &TraceSource, options: &Options) -> Result<Analysis> {
    let rests_on = RestsOn::of(source);
    let Programs { told: programs, not_told } = match rests_on {
        Some(_) => phases::of_trace(source).map_err(Error::read("calls", source.trace().path()))?,
        None => Programs::default(),
    };
    let mut units = units::of_trace(source, &programs)?;
    let threads = match units.steps.is_empty() && programs.is_empty() {
        true => without_steps(source, &mut units)?,
        false => None,
    };
    let detection = match programs.is_empty() {
        true => options.detection,
        false => phases::detection(&options.detection, &units.steps),
    };
    let mut incidents = detect::incidents(&units.steps, &detection);
    incidents.truncate(INVESTIGATED);
    let mut known = KnownParts::default();
    let mut findings = Vec::new();
    for incident in &incidents {
        let found = investigate(
            source,
            &units.steps,
            incident,
            &options.judging,
            &Budget::TRACE,
            &mut known,
        )?;
        findings.push(found.finding);
    }
    let mut parts: Vec<Part> = known.into_steps().flat_map(|(_, parts)| parts).collect();
    parts.sort_by_key(|part| (part.ts, part.step));
    let incomplete = source.incomplete();
    Ok(Analysis {
        units,
        programs,
        not_told,
        rests_on,
        threads,
        incidents,
        findings,
        settings: Settings::of(source.entities_and_tracks()),
        parts,
        incomplete,
    })
}

/// Where there are no steps, waits that recur stand in for them, or busy periods, or work quanta; where none do, what can be
/// said without. Of busy periods and work quanta, which may be any work, that is told as well.
fn without_steps(source: &TraceSource, units: &mut Units) -> Result<Option<Threads>> {
    let path = source.trace().path();
    let busy = Busy::of_trace(source).map_err(Error::read("states", path))?;
    *units = units::of_waits(source, &busy)?;
    match units.steps.is_empty() || units.are_of_threads() {
        true => threads::of_trace(source, &busy).map_err(Error::read("states", path)),
        false => Ok(None),
    }
}
