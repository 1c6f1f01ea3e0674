//! When threads were off their CPUs in their steps: asleep in a collective, they waited for other ranks.

use std::collections::VecDeque;

use foldhash::HashMap;
use gpuwhy_diagnose::detect::Step;
use gpuwhy_schema::{EntityId, Ns, Rows, ThreadState, TrackId, names};

use crate::units::off_cpu::is_off_cpu;
use crate::units::steps::FinishedStep;

/// Stretches of one thread that are remembered.
const REMEMBERED: usize = 1024;
/// Threads that are followed; if there are more, all are forgotten and follow anew.
const FOLLOWED: usize = 4096;
/// Tracks that are known; if there are more, those of threads that are not followed are forgotten.
const TRACKS: usize = 65_536;

/// A stretch in which a thread was off its CPU.
struct Stretch {
    from: Ns,
    to: Ns,
    asleep: bool,
}

/// When the threads that have steps were off their CPUs lately.
#[derive(Default)]
pub struct OffCpu {
    tracks: HashMap<TrackId, EntityId>,
    by_thread: HashMap<EntityId, VecDeque<Stretch>>,
}

impl OffCpu {
    /// Remembers the states among `rows` of threads that are followed.
    pub fn take(&mut self, rows: &Rows) {
        let states = rows.track.iter().filter(|t| &*t.name == names::THREAD_STATE);
        self.tracks.extend(states.map(|t| (t.id, t.entity)));
        if self.tracks.len() > TRACKS {
            self.tracks.retain(|_, thread| self.by_thread.contains_key(thread));
        }
        if self.by_thread.is_empty() {
            return;
        }
        for state in &rows.state {
            let Some(value) = ThreadState::from_code(state.value).filter(|s| is_off_cpu(*s)) else {
                continue;
            };
            let Some(dur) = state.dur else { continue };
            let Some(list) = self.tracks.get(&state.track).and_then(|t| self.by_thread.get_mut(t))
            else {
                continue;
            };
            if list.len() >= REMEMBERED {
                list.pop_front();
            }
            let (from, asleep) = (state.ts, value == ThreadState::Sleep);
            list.push_back(Stretch { from, to: from.saturating_add(dur), asleep });
        }
    }

    /// Follows a thread from now on.
    pub fn follow(&mut self, thread: EntityId) {
        if !self.by_thread.contains_key(&thread) {
            if self.by_thread.len() >= FOLLOWED {
                self.by_thread.clear();
            }
            self.by_thread.insert(thread, VecDeque::new());
        }
    }

    /// For how long the thread of a step that has just ended was on a CPU in it; `None` if its states are not recorded.
    ///
    /// A thread that ends a step runs, so that it has been switched in after each stretch, and that is when a stretch is
    /// recorded.
    pub fn ran(&self, step: &Step) -> Option<Ns> {
        let off = self.within(step.thread, step.ts, step.end(), |_| true)?;
        Some(step.dur.saturating_sub(off))
    }

    /// How long the thread of a step was asleep in one of its phases; the length of the phase where the
    /// thread's states are not recorded.
    pub fn slept_in_phase(&self, step: &FinishedStep, phase: &str) -> Ns {
        let mut all = Ns::ZERO;
        for (_, from, long) in step.phases.iter().filter(|p| *p.0 == *phase) {
            let (from, to) = (*from, from.saturating_add(*long));
            all += self.within(step.step.thread, from, to, |s| s.asleep).unwrap_or(*long);
        }
        all
    }

    /// For how much of `[from, to)` stretches of `thread` lasted; `None` if its states of that time are not known.
    fn within(
        &self,
        thread: EntityId,
        from: Ns,
        to: Ns,
        counts: impl Fn(&Stretch) -> bool,
    ) -> Option<Ns> {
        let list = self.by_thread.get(&thread)?;
        list.front().filter(|first| first.from <= from)?;
        let recent = list.iter().rev().take_while(|s| s.to > from);
        let of = |s: &Stretch| s.to.min(to).saturating_sub(s.from.max(from)).0.max(0);
        Some(Ns(recent.filter(|s| counts(s)).map(of).sum()))
    }
}
