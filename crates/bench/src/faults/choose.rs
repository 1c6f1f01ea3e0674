//! What is injected next: it follows from the seed, and the class with the fewest trials comes first.

use std::time::Duration;

use gpuwhy_diagnose::stats::Random;
use gpuwhy_testkit::inject::{Kind, Placement};

use super::Args;
use super::results::Row;

/// One trial in this many is of two faults at once.
const PAIRS: usize = 10;
/// One trial in this many is of no fault.
const BENIGN: usize = 12;

/// What is injected next.
pub struct Choice {
    /// The fault.
    pub kind: Kind,
    /// Another one at the same time.
    pub second: Option<Kind>,
    /// How strong it is.
    pub intensity: f64,
    /// Whether it runs in the workload's container.
    pub placement: Placement,
    /// Calm before it.
    pub gap: Duration,
    /// How long it lasts.
    pub long: Duration,
}

/// Whether a fault can be made from within the workload's container.
fn can_be_inside(kind: Kind) -> bool {
    use Kind::*;
    matches!(
        kind,
        CpuHog | CpuHogMany | OdirectWriter | FsyncStorm | CacheEvict | UdpBurst | LockHolder
    )
}

/// Chooses the next trial: `trials` are those of earlier sessions, `now` those of this one.
pub fn choose(random: &mut Random, args: &Args, trials: &[Row], now: &[Row]) -> Choice {
    let of_class = |class: &str| {
        let all = trials.iter().chain(now);
        // Those of this session have not been accepted yet; most of them will be.
        all.filter(|r| r.class.as_deref() == Some(class) && r.second.is_none()).count()
    };
    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| args.only.is_empty() || args.only.contains(kind))
        .collect();
    let benign: Vec<Kind> = kinds.iter().copied().filter(|k| k.class().is_none()).collect();
    let faults: Vec<Kind> = kinds.iter().copied().filter(|k| k.class().is_some()).collect();
    let pick = |random: &mut Random, list: &[Kind]| list[random.below(list.len())];
    let mut choice = Choice {
        kind: Kind::None,
        second: None,
        intensity: [0.7, 1.0, 1.0, 1.5][random.below(4)],
        placement: Placement::Other,
        gap: Duration::from_millis(2000 + random.below(2000) as u64),
        long: Duration::from_millis(2500 + random.below(2000) as u64),
    };
    if faults.is_empty() || (!benign.is_empty() && random.below(BENIGN) == 0) {
        choice.kind = pick(random, &benign);
        return choice;
    }
    let mut classes: Vec<&str> = faults.iter().filter_map(|k| k.class()).collect();
    classes.sort_unstable();
    classes.dedup();
    let fewest = classes.iter().map(|c| of_class(c)).min().unwrap_or(0);
    classes.retain(|c| of_class(c) <= fewest + 1);
    let class = classes[random.below(classes.len())];
    let of: Vec<Kind> = faults.iter().copied().filter(|k| k.class() == Some(class)).collect();
    choice.kind = pick(random, &of);
    if can_be_inside(choice.kind) && random.below(2) == 0 {
        choice.placement = Placement::Same;
    }
    if random.below(PAIRS) == 0 {
        let others: Vec<Kind> =
            faults.iter().copied().filter(|k| k.class() != Some(class)).collect();
        choice.second = (!others.is_empty()).then(|| pick(random, &others));
    }
    choice
}
