//! How long threads were asleep in the phases of their steps: in a collective, that is how long they
//! waited for other ranks.

use std::collections::{HashMap, VecDeque};

use gpuwhy_schema::{EntityId, Ns, Rows, ThreadState, TrackId, names};

use crate::units::steps::FinishedStep;

/// Sleeps of one thread that are remembered.
const REMEMBERED: usize = 1024;

/// The latest sleeps of the threads that have steps.
#[derive(Default)]
pub struct Sleeps {
    tracks: HashMap<TrackId, EntityId>,
    by_thread: HashMap<EntityId, VecDeque<(Ns, Ns)>>,
}

impl Sleeps {
    /// Remembers the sleeps among `rows` of threads that are followed.
    pub fn take(&mut self, rows: &Rows) {
        let states = rows.track.iter().filter(|t| &*t.name == names::THREAD_STATE);
        self.tracks.extend(states.map(|t| (t.id, t.entity)));
        for state in rows.state.iter().filter(|s| s.value == ThreadState::Sleep as i64) {
            let Some(dur) = state.dur else { continue };
            let Some(list) = self.tracks.get(&state.track).and_then(|t| self.by_thread.get_mut(t))
            else {
                continue;
            };
            if list.len() >= REMEMBERED {
                list.pop_front();
            }
            list.push_back((state.ts, state.ts.saturating_add(dur)));
        }
    }

    /// Follows a thread from now on.
    pub fn follow(&mut self, thread: EntityId) {
        self.by_thread.entry(thread).or_default();
    }

    /// How long the thread of a step was asleep in one of its phases; the length of the phase where the
    /// thread's states are not recorded.
    pub fn in_phase(&mut self, step: &FinishedStep, phase: &str) -> Ns {
        let mut all = Ns::ZERO;
        for (_, from, long) in step.phases.iter().filter(|p| *p.0 == *phase) {
            let slept = self.within(step.step.thread, *from, from.saturating_add(*long));
            all += slept.unwrap_or(*long);
        }
        all
    }

    /// How long `thread` slept of `[from, to)`; `None` if its states of that time are not known.
    fn within(&mut self, thread: EntityId, from: Ns, to: Ns) -> Option<Ns> {
        let list = self.by_thread.entry(thread).or_default();
        let slept = list
            .iter()
            .rev()
            .take_while(|s| s.1 > from)
            .map(|s| s.1.min(to).saturating_sub(s.0.max(from)).0.max(0));
        let known = list.front().is_some_and(|first| first.0 <= from);
        let slept = slept.sum();
        known.then_some(Ns(slept))
    }
}
