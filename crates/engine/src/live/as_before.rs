//! Which slowdowns are not told again, as nobody could be named for those before.

use std::collections::HashMap;

use gpuwhy_diagnose::detect::{Incident, Steps};
use gpuwhy_diagnose::undecided::{Size, Undecided, sizes};
use gpuwhy_schema::{Entity, EntityId, Ns};

use super::Recent;
use crate::units::rounds::process_of;

/// What was undecided lately, and of which processes that was.
#[derive(Debug, Default)]
pub(super) struct AsBefore {
    undecided: Undecided,
    /// The process of each thread that was met; what belongs to none stands for itself.
    processes: HashMap<EntityId, EntityId>,
    not_told: u64,
}

impl AsBefore {
    /// Whether an incident is hardly larger than others before it that were not decided.
    pub fn is(&mut self, incident: &Incident, steps: &Steps, recent: &Recent, now: Ns) -> bool {
        let sizes = self.sizes(incident, steps, recent);
        self.undecided.is_as_before(&sizes, now)
    }

    /// Takes note of one that ended undecided at `now`; whether it is to be told, or was.
    pub fn take(
        &mut self,
        incident: &Incident,
        steps: &Steps,
        recent: &Recent,
        now: Ns,
        was_told: bool,
    ) -> bool {
        let sizes = self.sizes(incident, steps, recent);
        let told = !self.undecided.take(&sizes, now) || was_told;
        self.not_told += u64::from(!told);
        told
    }

    /// How many were not told.
    pub fn not_told(&self) -> u64 {
        self.not_told
    }

    fn sizes(&mut self, incident: &Incident, steps: &Steps, recent: &Recent) -> Vec<Size> {
        let unknown = |of| !self.processes.contains_key(of);
        if incident.slowed.iter().map(|slowed| &slowed.signature.of).any(unknown) {
            let catalog = recent.catalog();
            let all: HashMap<EntityId, &Entity> =
                catalog.entity.iter().map(|one| (one.id, one)).collect();
            for slowed in &incident.slowed {
                let of = slowed.signature.of;
                let process = process_of(of, |id| all.get(&id).copied());
                self.processes.insert(of, process.map_or(of, |process| process.id));
            }
        }
        sizes(steps, incident, |of| self.processes[&of])
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Takes, USUAL, World};
    use gpuwhy_diagnose::verdict::Outcome;

    /// More of the same work, of which nothing says why.
    const LONGER: Takes = Takes { runs: 24.0, throttled: 0.0 };
    /// No longer than that, and its control group held it back.
    const HELD_BACK: Takes = Takes { runs: 18.0, throttled: 5.0 };

    /// A program after so many slowdowns of three seconds.
    fn after(slowdowns: usize) -> World {
        let mut world = World::new("performance");
        world.runs(30, &USUAL);
        for _ in 0..slowdowns {
            world.runs(3, &LONGER);
            world.runs(12, &USUAL);
        }
        world
    }

    #[test]
    fn a_slowdown_that_was_undecided_twice_is_not_told_again() {
        let world = after(2);
        let undecided =
            |one: &super::super::Verdict| one.finding.outcome == Outcome::InsufficientEvidence;
        assert!(world.over.iter().all(undecided), "{:?}", world.over);
        assert_eq!((world.slow.len(), world.over.len(), world.judge.as_before()), (2, 2, 0));
        let world = after(5);
        assert_eq!((world.slow.len(), world.over.len(), world.judge.as_before()), (2, 2, 3));
        assert_eq!(world.judge.findings(), 2);
    }

    #[test]
    fn one_that_has_a_cause_is_told_at_any_size() {
        let mut world = after(3);
        world.runs(3, &HELD_BACK);
        assert_eq!(world.judge.state(), "cpu_throttling");
        world.runs(12, &USUAL);
        assert_eq!((world.slow.len(), world.over.len()), (3, 3));
        assert_eq!(world.over[2].finding.class, "cpu_throttling");
    }

    #[test]
    fn one_that_is_larger_is_told() {
        let mut world = after(3);
        world.runs(3, &Takes { runs: 36.0, ..LONGER });
        assert_eq!((world.slow.len(), world.judge.state().as_str()), (3, "slow"));
        world.runs(12, &USUAL);
        assert_eq!(world.over.len(), 3);
    }

    #[test]
    fn one_that_goes_on_for_longer_is_told() {
        let mut world = after(3);
        world.runs(9, &LONGER);
        assert_eq!((world.slow.len(), world.judge.state().as_str()), (2, "calm"));
        world.runs(12, &LONGER);
        assert_eq!((world.slow.len(), world.judge.state().as_str()), (3, "slow"));
    }
}
