//! Work quanta of the threads of a recording in which nothing recurs and nobody waits for work: see
//! [`gpuwhy_derive::work_quanta`].

use std::collections::HashMap;

use gpuwhy_derive::busy_periods::Period;
use gpuwhy_derive::work_quanta::WorkQuanta;
use gpuwhy_schema::{EntityId, State};

use super::of_threads::{OfThreads, Unit};
use crate::error::Result;
use crate::source::{EVER, TraceSource};
use crate::threads::{Busy, state_tracks};

/// Threads with fewer quanta are not looked at: nothing can be usual of them.
const NEEDED: usize = 500;
/// Threads that are looked at, those with most to do.
const THREADS: usize = 256;

/// Who records all that a thread does. In a profile of another tool a thread that computes is one of a program whose work is
/// elsewhere.
const RECORDED_BY: &str = "bpf:run_queue";

/// The work quanta of a trace that was recorded here.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource, busy: &Busy) -> Result<OfThreads> {
    let mut sources = source.entities_and_tracks().source.iter();
    if !sources.any(|source| &*source.kind == RECORDED_BY) {
        return Ok(OfThreads { of: Unit::Quantum, units: HashMap::new() });
    }
    let threads: HashMap<EntityId, EntityId> =
        busy.threads.iter().take(THREADS).map(|t| (t.id, t.process)).collect();
    let tracks = state_tracks(source);
    let mut of: HashMap<EntityId, (WorkQuanta, Vec<Period>)> = HashMap::new();
    for rows in source.trace().read::<State>(EVER) {
        for row in rows? {
            let thread = tracks.get(&row.track).filter(|thread| threads.contains_key(thread));
            let Some(thread) = thread else { continue };
            let (quanta, ended) = of.entry(*thread).or_default();
            quanta.take(&row, ended);
        }
    }
    let units = of.into_iter().map(|(thread, (_, ended))| (thread, ended));
    let units = units.filter(|(_, ended)| ended.len() >= NEEDED).collect();
    Ok(OfThreads { of: Unit::Quantum, units })
}
