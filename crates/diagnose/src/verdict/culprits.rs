//! Which processes or devices are blamed for the excess of a cause, in which order.
//!
//! Who was in the way is seen in the parts. Where a process was in the way that took no more than before, while
//! another began to take more, that other one displaced it: the time is given to it. Processes of one command in
//! one control group are one culprit, but not together with those of the same command that take no more than
//! before (a script beside a training loop, both `python3`), and not where one of them holds nearly all of what is
//! blamed on them: of the many processes of a server, the one that holds the lock.

use std::collections::{BTreeMap, HashSet};

use gpuwhy_schema::{EntityId, PartKind};

use super::context::{Group, JudgeContext};
use crate::demand::{Demand, Together};
use crate::excess::Excess;

/// A culprit that accounts for a smaller share of a cause is not listed.
pub(super) const WORTH: f64 = 0.1;
/// Culprits of a cause that are looked at.
const MOST: usize = 4;
/// Of a group, one that accounts for this share is a culprit by itself, unless more demand is what convicts.
const HOLDS_IT_ALONE: f64 = 2.0 / 3.0;
/// Who was in the way for more than this share of the time in usual steps was so before too.
pub(super) const BEFORE_WORTH: f64 = 0.2;
/// Who rose by so many CPUs may have displaced others, who were in the way for that.
const DISPLACES: f64 = 0.1;

/// A culprit with the parts that are blamed on it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Blamed {
    /// The entity; of a group, the one that was in the way for longest.
    pub id: EntityId,
    /// All of them.
    pub members: Vec<EntityId>,
    /// What they take in usual steps, ns a step.
    pub usual: f64,
    /// What they take in slow steps, ns a step.
    pub slow: f64,
    /// What others took whom they displaced, ns a step, beyond what these took in usual steps.
    pub through_others: f64,
    /// What they took of the CPUs, if that was compared.
    pub demand: Option<Demand>,
}

impl Blamed {
    /// Whose parts go without them, and which share of them: their own, and what those take beyond usual steps whom
    /// they displaced.
    pub(super) fn parts(&self, displaced: &[Blamed]) -> Vec<(EntityId, f64)> {
        let through: f64 = displaced.iter().map(Blamed::excess).sum();
        let of_theirs = self.through_others / through.max(f64::MIN_POSITIVE);
        let of = |other: &Blamed| of_theirs * other.excess() / other.slow.max(f64::MIN_POSITIVE);
        let others = displaced.iter().filter(|_| self.through_others > 0.0);
        let others = others.flat_map(|other| other.members.iter().map(move |id| (*id, of(other))));
        self.members.iter().map(|id| (*id, 1.0)).chain(others).collect()
    }

    /// What they account for, ns a step.
    pub(super) fn excess(&self) -> f64 {
        self.slow - self.usual + self.through_others
    }
}

/// The recorder is named if it was in the way for this share of what nobody else is to blame for.
pub(super) const RECORDER_MOST: f64 = 0.5;

/// Who is blamed, and who was in the way and is not.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ranking {
    /// Most excess first, at most four. Equal ones are in the order of their ids.
    pub blamed: Vec<Blamed>,
    /// Those who were in the way as well and took no more than before, most excess first.
    pub displaced: Vec<Blamed>,
    /// Whether anybody took more than before; none if that was not compared.
    pub anybody_rose: Option<bool>,
    /// Those who take the steps themselves, where it is not known whether they took more than before: they were in the
    /// way of each other before too, in steps that were usual.
    pub own: Vec<Blamed>,
}

/// Who is blamed for parts of these kinds more than in usual steps; `by_demand` if those parts are waits for a
/// CPU. Those of the `workload` take more CPU time for the same work beside somebody who shares their cores with them:
/// they are blamed only where they took more than all others together did.
pub(super) fn ranked(
    excess: &Excess,
    kinds: &[PartKind],
    by_demand: bool,
    context: &JudgeContext<'_>,
    workload: &HashSet<EntityId>,
) -> Ranking {
    let demands = Some(context.demands()).filter(|demands| by_demand && demands.are_known());
    let Some(demands) = demands else {
        // Of those of one name in the way of a CPU the ones that were so before too are not told from others by demand.
        let is_new = |usual: f64, slow: f64| by_demand && usual <= BEFORE_WORTH * slow;
        let side = |_, usual, slow| (is_new(usual, slow), false);
        let groups = groups(excess, kinds, context, side, !by_demand);
        let is_own = |b: &Blamed| by_demand && b.members.iter().any(|id| workload.contains(id));
        let grew = groups.into_values().filter(|b| b.excess() > 0.0);
        let (own, others): (Vec<Blamed>, Vec<Blamed>) = grew.partition(is_own);
        return Ranking { blamed: sorted(others), own: sorted(own), ..Ranking::default() };
    };
    let side = |id: EntityId, demand: Demand| (demand.grew(), workload.contains(&id));
    let mut groups = groups(excess, kinds, context, |id, _, _| side(id, demands.of(id)), false);
    let of_group = demands.grouped(|id, demand| Some((context.group(id), side(id, demand))));
    let rises_of = |own: bool| -> f64 {
        let of = of_group.iter().filter(|((_, (_, is_own)), together)| {
            *is_own == own && !context.records(together.most)
        });
        of.map(|(_, together)| together.demand.rise()).sum()
    };
    let others_did = rises_of(false) >= rises_of(true);
    for (group, Together { demand, most, .. }) in &of_group {
        if demand.rise() >= DISPLACES && !groups.contains_key(group) {
            groups.insert(group.clone(), Blamed::absent(*most));
        }
        if let Some(blamed) = groups.get_mut(group) {
            blamed.demand = Some(*demand);
            // Its parent is of the same name for a moment, and may have been what was seen in the way.
            blamed.is_shown_as(*most);
        }
    }
    let all: Vec<Blamed> = groups.into_values().collect();
    let rise = |b: &Blamed| b.demand.unwrap_or_default().rise();
    let is_own = |b: &Blamed| b.members.iter().any(|id| workload.contains(id));
    let (mut guilty, displaced): (Vec<Blamed>, Vec<Blamed>) =
        all.into_iter().partition(|b| rise(b) > 0.0 && !(others_did && is_own(b)));
    let displaced = sorted(displaced.into_iter().filter(|b| b.excess() > 0.0).collect());
    let through: f64 = displaced.iter().map(Blamed::excess).sum();
    let displaces = |b: &Blamed| Some(rise(b)).filter(|rise| *rise >= DISPLACES).unwrap_or(0.0);
    let rises: f64 = guilty.iter().map(displaces).sum();
    for blamed in &mut guilty {
        blamed.through_others = through * displaces(blamed) / rises.max(f64::MIN_POSITIVE);
    }
    let anybody_rose = Some(!guilty.is_empty());
    let blamed = sorted(guilty.into_iter().filter(|b| b.excess() > 0.0).collect());
    Ranking { blamed, displaced, anybody_rose, own: Vec::new() }
}

impl Blamed {
    /// Shows it as the member that took most.
    fn is_shown_as(&mut self, most: EntityId) {
        if !self.members.contains(&most) {
            self.members.push(most);
        }
        self.id = most;
    }

    /// Somebody who was never seen in the way.
    fn absent(id: EntityId) -> Blamed {
        let members = vec![id];
        Blamed { id, members, usual: 0.0, slow: 0.0, through_others: 0.0, demand: None }
    }
}

/// Whether somebody took more than before, or was not in the way before where that is not known, and is of the workload.
type Side = (bool, bool);

/// A group, and on which side its members are.
type Key = (Group, Side);

/// What is blamed on whom. Those of a group who are on different sides are apart; one who holds nearly all of what is
/// blamed on a group is `apart` from it where that is asked for.
fn groups(
    excess: &Excess,
    kinds: &[PartKind],
    context: &JudgeContext<'_>,
    side: impl Fn(EntityId, f64, f64) -> Side,
    apart: bool,
) -> BTreeMap<Key, Blamed> {
    let mut sums: BTreeMap<EntityId, (f64, f64)> = BTreeMap::new();
    for (&(kind, blame), &(usual, slow)) in &excess.parts {
        if let Some(blame) = blame.filter(|_| kinds.contains(&kind)) {
            let sum = sums.entry(blame).or_default();
            sum.0 += usual;
            sum.1 += slow;
        }
    }
    let mut of_groups: BTreeMap<Group, f64> = BTreeMap::new();
    for (&id, (usual, slow)) in &sums {
        *of_groups.entry(context.group(id)).or_default() += slow - usual;
    }
    let key_of = |id: EntityId, usual: f64, slow: f64| {
        let (group, excess) = (context.group(id), slow - usual);
        let alone = apart && excess > 0.0 && excess >= HOLDS_IT_ALONE * of_groups[&group];
        (if alone { Group::Alone(id) } else { group }, side(id, usual, slow))
    };
    let mut most: BTreeMap<Key, f64> = BTreeMap::new();
    let mut groups: BTreeMap<Key, Blamed> = BTreeMap::new();
    for (id, (usual, slow)) in sums {
        let key = key_of(id, usual, slow);
        let blamed = groups
            .entry(key.clone())
            .or_insert_with(|| Blamed { members: Vec::new(), ..Blamed::absent(id) });
        blamed.members.push(id);
        blamed.usual += usual;
        blamed.slow += slow;
        let most = most.entry(key).or_insert(f64::MIN);
        if slow - usual > *most {
            (*most, blamed.id) = (slow - usual, id);
        }
    }
    groups
}

fn sorted(mut blamed: Vec<Blamed>) -> Vec<Blamed> {
    blamed.sort_by(|a, b| b.excess().total_cmp(&a.excess()).then(a.id.cmp(&b.id)));
    blamed.truncate(MOST);
    blamed
}
