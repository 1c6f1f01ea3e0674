//! Which steps of an incident are looked into.

use crate::detect::{Incident, StepNo, Steps};

/// Of the slow steps that are looked into, one in this many is one of the longest.
const LONGEST_ONE_IN: usize = 4;

/// Steps of an incident whose parts are needed to judge it, at most `most` slow and as many usual
/// ones a series: the longest slow ones, and a sample of the others and of the usual ones that is spread
/// evenly.
pub fn select_steps(steps: &Steps, incident: &Incident, most: usize) -> Vec<StepNo> {
    let spread = |numbers: &[StepNo], most: usize| -> Vec<StepNo> {
        let stride = numbers.len().div_ceil(most.max(1)).max(1);
        numbers.iter().step_by(stride).copied().collect()
    };
    let mut out = Vec::new();
    for slowed in &incident.slowed {
        out.extend(spread(&slowed.usual, most));
        let mut longest = slowed.longest_first(steps);
        longest.truncate(most / LONGEST_ONE_IN);
        // A step may stand in two of the anomalies that were joined.
        longest.sort_unstable();
        longest.dedup();
        let others: Vec<StepNo> =
            slowed.slow.iter().copied().filter(|no| !longest.contains(no)).collect();
        out.extend(spread(&others, most - longest.len()));
        out.extend(longest);
    }
    out.sort_unstable();
    out.dedup();
    out
}
