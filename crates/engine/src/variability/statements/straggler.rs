//! The rank that the others wait for: it spends least in the collective that all call equally often.

use std::collections::BTreeMap;

use gpuwhy_diagnose::variability::straggler;
use gpuwhy_schema::Name;

use super::Statement;
use crate::variability::sums::{Sums, WaitSum};

/// A difference of waits that is worth reporting, ns.
const LEAST_WAIT: f64 = 1000.0;

/// Whether a rank is waited for, in the collective that was called most often by all ranks.
pub fn statements(sums: &Sums) -> Option<Statement> {
    let mut by_name: BTreeMap<&Name, Vec<(i64, &WaitSum)>> = BTreeMap::new();
    for ((name, rank), waits) in &sums.waits {
        by_name.entry(name).or_default().push((*rank, waits));
    }
    let (name, ranks) = by_name
        .into_iter()
        .filter(|(_, ranks)| ranks.len() > 1)
        .max_by_key(|(_, ranks)| ranks.iter().map(|(_, waits)| waits.sum.count).min())?;
    let means: Vec<f64> = ranks.iter().map(|(_, waits)| mean(waits)).collect();
    let of_ranks: Vec<String> = ranks
        .iter()
        .zip(&means)
        .map(|((rank, _), mean)| format!("rank {rank} {:.1} us", mean / 1e3))
        .collect();
    let of_ranks = of_ranks.join(", ");
    Some(match straggler(&means, LEAST_WAIT) {
        Some(found) => {
            let rank = ranks[found.index].0;
            let says = format!(
                "rank {rank} is waited for: it spends least in {name} (mean without the first call: \
                 {of_ranks})"
            );
            Statement::new("straggler", says)
        }
        None => {
            let says = format!("no rank is waited for more than the others in {name}: {of_ranks}");
            Statement::new("no_straggler", says)
        }
    })
}

/// The mean wait without the first call, which waits for programs to start.
fn mean(waits: &WaitSum) -> f64 {
    let first = waits.first.map_or(0, |(_, dur)| dur);
    (waits.sum.sum - first) as f64 / (waits.sum.count.saturating_sub(1)).max(1) as f64
}
