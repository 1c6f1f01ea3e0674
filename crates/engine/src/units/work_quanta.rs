//! Work quanta of the threads of a recording in which nothing recurs and nobody waits for work: see
//! [`gpuwhy_derive::work_quanta`].

use std::collections::HashMap;

use gpuwhy_derive::busy_periods::Period;
use gpuwhy_derive::work_quanta::WorkQuanta;
use gpuwhy_schema::{EntityId, State};

use crate::source::TraceSource;
use crate::threads::Busy;

/// Threads with fewer quanta are not looked at: nothing can be usual of them.
const NEEDED: usize = 500;
/// Threads that are looked at, those with most to do.
const THREADS: usize = 256;

/// Who records all that a thread does. In a profile of another tool a thread that computes is one of a program whose work is
/// elsewhere.
const RECORDED_BY: &str = "bpf:run_queue";

/// The work quanta of threads, as their states are read.
pub(super) struct QuantaOfThreads {
    of: HashMap<EntityId, (WorkQuanta, Vec<Period>)>,
}

impl QuantaOfThreads {
    /// Of the threads that have most to do, if the trace was recorded here.
    pub fn new(source: &TraceSource, busy: &Busy) -> QuantaOfThreads {
        let mut sources = source.entities_and_tracks().source.iter();
        let many = match sources.any(|source| &*source.kind == RECORDED_BY) {
            true => THREADS,
            false => 0,
        };
        let of = busy.threads.iter().take(many).map(|t| (t.id, Default::default()));
        QuantaOfThreads { of: of.collect() }
    }

    /// Takes the next state of a thread.
    pub fn take(&mut self, thread: EntityId, state: &State) {
        if let Some((quanta, ended)) = self.of.get_mut(&thread) {
            quanta.take(state, ended);
        }
    }

    /// Those of threads that have enough.
    pub fn finish(self) -> HashMap<EntityId, Vec<Period>> {
        let units = self.of.into_iter().map(|(thread, (_, ended))| (thread, ended));
        units.filter(|(_, ended)| ended.len() >= NEEDED).collect()
    }
}
