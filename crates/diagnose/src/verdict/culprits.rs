//! Which processes or devices are blamed for the excess of a cause, in which order.

use std::collections::HashMap;

use gpuwhy_schema::{EntityId, PartKind};

use crate::excess::Excess;

/// A culprit that accounts for a smaller share of a cause is not named.
pub(super) const WORTH: f64 = 0.1;
/// Culprits of a cause that are looked at.
const MOST: usize = 4;

/// An entity with the parts that are blamed on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Blamed {
    /// The entity.
    pub id: EntityId,
    /// What they take in usual steps, ns a step.
    pub usual: f64,
    /// What they take in slow steps, ns a step.
    pub slow: f64,
}

/// The entities that are blamed for parts of these kinds more than in usual steps: most excess first, at
/// most four. Equal ones are in the order of their ids.
pub(super) fn ranked(excess: &Excess, kinds: &[PartKind]) -> Vec<Blamed> {
    let mut sums: HashMap<EntityId, (f64, f64)> = HashMap::new();
    for (&(kind, blame), &(usual, slow)) in &excess.parts {
        if let Some(blame) = blame.filter(|_| kinds.contains(&kind)) {
            let sum = sums.entry(blame).or_default();
            sum.0 += usual;
            sum.1 += slow;
        }
    }
    let blamed = sums.into_iter().map(|(id, (usual, slow))| Blamed { id, usual, slow });
    let mut blamed: Vec<Blamed> = blamed.filter(|b| b.slow > b.usual).collect();
    blamed.sort_by(|a, b| (b.slow - b.usual).total_cmp(&(a.slow - a.usual)).then(a.id.cmp(&b.id)));
    blamed.truncate(MOST);
    blamed
}
