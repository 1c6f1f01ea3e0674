//! Threads that share the work of a step with its own thread, which runs while it waits for them.
//!
//! # What it sees
//! A team of OpenMP threads, or of a BLAS, divides each piece of work; who is done waits for the others by running in a
//! loop, as a sleep and a wakeup would take longer than the piece. If one of them waits for a CPU, all of them do, and
//! nothing in the states of the step's thread says so: it runs. So each wait of a helper for a CPU is told, as far as the
//! step's thread ran meanwhile; whether the step waited for it, a judgement tells by what the step's thread ran longer.
//!
//! # What fools it
//! A thread that has work of its own and happens to wait for a CPU while the step has more to do.

use gpuwhy_schema::{EntityId, Ns, Part, PartKind, ThreadState};

use super::{Via, Walk, merge};
use crate::intervals::{Interval, clip, subtract, union};

/// A helper is active for at least this share of the time that the step's thread runs.
const ACTIVE: f64 = 0.5;

impl Walk<'_> {
    /// What the helpers of the step's thread did while that ran: for how long the busiest of them ran, and for what any
    /// of them waited. A stretch in which several wait is told of one of them.
    pub(super) fn helpers(&mut self, thread: EntityId, window: Interval) {
        let world = self.world;
        let within = |thread: EntityId, is: &dyn Fn(ThreadState) -> bool| -> Vec<Interval> {
            let held = world.states(thread, window).iter().filter(|held| is(held.state));
            held.map(|held| (held.from.max(window.0), held.to.min(window.1))).collect()
        };
        let is_ready = |s: ThreadState| matches!(s, ThreadState::Runnable | ThreadState::Throttled);
        let is_running = |s: ThreadState| s == ThreadState::Running;
        let runs = union(within(thread, &is_running));
        let sum = |of: &[Interval]| -> Ns { of.iter().map(|(from, to)| *to - *from).sum() };
        let long = sum(&runs);
        if long == Ns::ZERO {
            return;
        }
        let beside = |of: Vec<Interval>| -> Vec<Interval> {
            of.into_iter().flat_map(|piece| clip(&runs, piece)).collect()
        };
        let (mut told, mut most) = (Vec::new(), (Ns::ZERO, thread));
        for helper in world.others_of_process(thread) {
            let ran = sum(&beside(within(helper, &is_running)));
            let waited = sum(&beside(within(helper, &is_ready)));
            if ((ran + waited).0 as f64) < ACTIVE * long.0 as f64 {
                continue;
            }
            most = most.max((ran, helper));
            self.path = vec![helper];
            for held in world.states(helper, window).iter().filter(|held| is_ready(held.state)) {
                let waits = (held.from.max(window.0), held.to.min(window.1));
                let new: Vec<Interval> = clip(&runs, waits)
                    .into_iter()
                    .flat_map(|piece| subtract(piece, &told))
                    .collect();
                for piece in &new {
                    self.scheduled(helper, *held, *piece, Via::Own);
                }
                told.extend(new);
                told = union(told);
            }
        }
        let (ran, helper) = most;
        if ran > Ns::ZERO {
            self.path = vec![helper];
            self.put_exactly(helper, (window.0, window.0.saturating_add(ran)), PartKind::Run, None);
        }
    }
}

/// The parts of a step's helpers, as [`Walk::helpers`] tells them.
pub(super) fn of(mut walk: Walk<'_>, thread: EntityId, window: Interval) -> Vec<Part> {
    walk.helpers(thread, window);
    merge(walk.out)
}
