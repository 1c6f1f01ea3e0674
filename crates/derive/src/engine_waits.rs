//! When an engine that serves language models waited for its worker, and the worker for the engine.
//!
//! # What it sees
//! The spans that the engine's own threads mark ([`names::RPC_WAIT`]), and those of its workers: at the end of one called
//! [`names::WORKER_RESPONSE`], or before, the engine has an answer, and the worker has nothing to do until its next span.
//!
//! # Why it matters
//! Both sides poll: they run all the time, and which of them held the other up their states do not say.
//!
//! # What fools it
//! Several engines on one host: whose worker is whose is not known, and nothing is told.

use foldhash::{HashMap, HashMapExt as _};

use gpuwhy_schema::{EntityId, Ns, names};

/// One thread waited from one time to another for a second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineWait {
    pub from: Ns,
    pub to: Ns,
    pub awaited: EntityId,
}

/// The spans of engines and their workers.
#[derive(Default)]
pub(crate) struct Engines {
    /// When threads of engines waited for their workers.
    waits: HashMap<EntityId, Vec<(Ns, Ns)>>,
    /// From when to when workers answered, and when they began something.
    answers: HashMap<EntityId, Vec<(Ns, Ns)>>,
    begun: HashMap<EntityId, Vec<Ns>>,
}

impl Engines {
    /// A span of a thread, with its duration if it has ended.
    pub fn span(&mut self, name: &str, thread: EntityId, (ts, dur): (Ns, Option<Ns>)) {
        let end = dur.map_or(Ns::MAX, |dur| ts.saturating_add(dur));
        if name == names::RPC_WAIT {
            self.waits.entry(thread).or_default().push((ts, end));
        } else if name == names::WORKER_RESPONSE {
            self.answers.entry(thread).or_default().push((ts, end));
        } else if name.starts_with("Worker::") || name.starts_with("ModelRunner::") {
            self.begun.entry(thread).or_default().push(ts);
        }
    }

    /// Who waited for whom, by the thread that waited, in order.
    pub fn waits(mut self) -> HashMap<EntityId, Vec<EngineWait>> {
        let mut out: HashMap<EntityId, Vec<EngineWait>> = HashMap::new();
        let mut engines = std::mem::take(&mut self.waits).into_iter();
        let (Some((engine, mut waits)), None) = (engines.next(), engines.next()) else {
            return out;
        };
        self.answers.values_mut().for_each(|list| list.sort_unstable());
        self.begun.values_mut().for_each(|list| list.sort_unstable());
        waits.sort_unstable();
        for (from, to) in waits {
            // Until the worker that answered last. An engine that polls has the answer before the worker's call that gives it
            // returns.
            let last = self.answers.iter().filter_map(|(worker, answers)| {
                let begun = answers.partition_point(|(begun, _)| *begun <= to);
                let last = answers[..begun].last()?.1.min(to);
                (last > from).then_some((last, *worker))
            });
            if let Some((to, awaited)) = last.max() {
                out.entry(engine).or_default().push(EngineWait { from, to, awaited });
            }
        }
        for (worker, answers) in &self.answers {
            let Some(begun) = self.begun.get(worker) else { continue };
            for &(_, from) in answers {
                if let Some(&to) = begun.get(begun.partition_point(|at| *at < from)) {
                    out.entry(*worker).or_default().push(EngineWait { from, to, awaited: engine });
                }
            }
        }
        out
    }
}
