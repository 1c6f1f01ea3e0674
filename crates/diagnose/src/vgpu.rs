//! Findings about tenants that share a GPU: what held them up, and what they would have saved.
//!
//! # What it sees
//! Sums of each tenant over the time in which it was active ([`TenantFacts`]). A rule fires by thresholds that are
//! constants here; each finding says its numbers and what would have been without the cause.
//!
//! # What fools it
//! Weights are not in the events: shares are compared as if all weights were equal, and a finding says so. A tenant
//! that the device was withheld from because it had used more than its slice earlier is told from one whose
//! neighbours used their slices by how much they used.

pub mod noise;

/// A tenant while it was active, from its first request to its last end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantFacts {
    /// What users are shown.
    pub name: String,
    /// How long it was active, ns.
    pub active: i64,
    /// How long it had requests that waited or ran, ns.
    pub backlogged: i64,
    /// How long engines worked for it, ns.
    pub busy: i64,
    /// How long it had a request that waited for the device while the device was idle for longer than the scheduler
    /// takes, ns.
    pub withheld: i64,
    /// How often that was.
    pub withheld_times: usize,
    /// How long it had a request that waited for the device while another tenant's ran, ns.
    pub blocked: i64,
    /// Requests that were done.
    pub done: usize,
    /// Requests that waited, on average.
    pub queue: f64,
    /// The others in that time: name, how long engines worked for them, ns, and the median of their executions, ns.
    pub others: Vec<(String, i64, i64)>,
}

/// What kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The device was idle while a tenant with work was not given it.
    UnusedReservation,
    /// Another tenant's requests are long and cannot be taken off the engine.
    BlockedByTenant,
    /// The device has more work than it can do.
    Saturation,
    /// The guest sends too little to keep the device busy.
    GuestLimited,
    /// Virtual CPUs of machines are in each other's way, and would be less so on other CPUs.
    Placement,
    /// Tenants want more of the device's memory than there is.
    MemoryOvercommit,
}

impl Rule {
    /// As documents for programs call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Rule::UnusedReservation => "unused_reservation",
            Rule::BlockedByTenant => "blocked_by_tenant",
            Rule::Saturation => "saturation",
            Rule::GuestLimited => "guest_limited",
            Rule::Placement => "placement",
            Rule::MemoryOvercommit => "memory_overcommit",
        }
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What kind.
    pub rule: Rule,
    /// Whom it is about.
    pub tenant: String,
    /// Who was in the way, if somebody was.
    pub culprit: Option<String>,
    /// For how long it held the tenant up, ns: what would have been saved without it. `None` if it cost nothing.
    pub cost: Option<i64>,
    /// How long the tenant would have been active without it, ns.
    pub counterfactual: Option<i64>,
    /// Jain's index of fairness over all tenants' use of the device, 1 if all is equal.
    pub fairness: Option<f64>,
    /// In a sentence.
    pub says: String,
}

/// Withheld beyond this share of the backlogged time is a finding.
const WITHHELD: f64 = 0.1;
/// Blocked beyond this share of the backlogged time is a finding.
const BLOCKED: f64 = 0.3;
/// A blocker's median request is longer than this, ns: two periods of GVT-g's scheduler.
const LONG: i64 = 200_000_000;
/// Below this, use is not fair.
const FAIR: f64 = 0.9;
/// Use above this is saturation.
const FULL: f64 = 0.95;
/// Fewer requests say nothing.
const FEW: usize = 5;
/// What a request waits for GVT-g's tick of 1 ms on average, ns.
const HALF_A_TICK: i64 = 500_000;
const MS: f64 = 1e6;

/// Virtual CPUs and what moves of them would change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementFacts {
    /// Who moves first.
    pub tenant: String,
    /// The moves, in words.
    pub moves: Vec<String>,
    /// How often machines took CPUs from others directly, and how often they would with the moves.
    pub preemptions: (u64, f64),
    /// How long virtual CPUs waited for a CPU, and how long they would with the moves, ns.
    pub waited: (i64, i64),
    /// How long they ran, ns.
    pub ran: i64,
}

/// Waits of virtual CPUs below this share of what they ran are not worth a move.
const WAITED: f64 = 0.1;
/// Moves must leave at most this share of the waits.
const LEFT: f64 = 0.7;
/// Fewer preemptions of machines by machines say nothing.
const FEW_PREEMPTIONS: u64 = 20;

/// A finding that moves would leave `foretold` of what was `waited`, ns, in the time for which machines `wanted` something; none
/// if that is not worth them.
fn worth_moving(
    tenant: &str,
    moves: &[String],
    (waited, foretold): (i64, i64),
    wanted: i64,
    says: impl FnOnce() -> String,
) -> Option<Finding> {
    let worth = share(waited, wanted) > WAITED && share(foretold, waited) < LEFT;
    (worth && !moves.is_empty()).then(|| Finding {
        rule: Rule::Placement,
        tenant: tenant.to_owned(),
        culprit: None,
        cost: Some(waited - foretold),
        counterfactual: None,
        fairness: None,
        says: says(),
    })
}

/// Whether virtual CPUs should be moved.
pub fn placement_finding(one: &PlacementFacts) -> Option<Finding> {
    let (waited, foretold) = one.waited;
    let says = || {
        format!(
            "virtual CPUs waited {:.3} ms for CPUs, and machines took CPUs from others {} times. Move {}: about \
             {:.0} ms and {:.0} times would be left",
            waited as f64 / MS,
            one.preemptions.0,
            one.moves.join("; "),
            foretold as f64 / MS,
            one.preemptions.1,
        )
    };
    let found = worth_moving(&one.tenant, &one.moves, one.waited, one.ran, says);
    found.filter(|_| one.preemptions.0 >= FEW_PREEMPTIONS)
}

/// Several hosts and what moves of machines between them would change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostsFacts {
    /// Which machine moves first.
    pub tenant: String,
    /// The moves, in words.
    pub moves: Vec<String>,
    /// How long virtual CPUs waited for CPUs, and how long they would with the moves, ns.
    pub cpu: (i64, i64),
    /// How long requests waited for other tenants, and how long they would with the moves, ns.
    pub gpu: (i64, i64),
    /// For how long machines wanted CPUs and GPUs in sum, ns.
    pub wanted: i64,
}

/// Whether machines should be moved to other hosts.
pub fn hosts_finding(one: &HostsFacts) -> Option<Finding> {
    let waits = (one.cpu.0 + one.gpu.0, one.cpu.1 + one.gpu.1);
    worth_moving(&one.tenant, &one.moves, waits, one.wanted, || {
        format!(
            "on their hosts, requests waited {:.3} s for other tenants, and virtual CPUs {:.3} s for CPUs. Move {}: about \
             {:.3} s and {:.3} s would be left",
            one.gpu.0 as f64 / 1e9,
            one.cpu.0 as f64 / 1e9,
            one.moves.join("; "),
            one.gpu.1 as f64 / 1e9,
            one.cpu.1 as f64 / 1e9,
        )
    })
}

/// What left the memory of devices, and who asked for memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryFacts {
    /// How often something had to leave.
    pub evictions: usize,
    /// Bytes that left, in sum.
    pub evicted: u64,
    /// The least bytes of all buffers when something had to leave, and the most at any time; 0 where events do not tell.
    pub live: (u64, u64),
    /// Who asked for memory: the most bytes of each at any time.
    pub holders: Vec<(String, u64)>,
}

/// Fewer evictions say nothing: now and then a buffer that nobody uses makes room.
const FEW_EVICTIONS: usize = 10;
/// What left must be this share of what tenants hold, so that it is memory that they use.
const EVICTED: f64 = 0.25;
/// Where events do not tell what they hold, it must be so many bytes.
const EVICTED_BYTES: u64 = 256 << 20;
/// Holders that are named.
const NAMED: usize = 3;

/// Whether tenants want more memory than a device has.
pub fn memory_finding(one: &MemoryFacts) -> Option<Finding> {
    let (first, peak) = one.live;
    let much = match peak {
        0 => one.evicted >= EVICTED_BYTES,
        peak => one.evicted as f64 >= EVICTED * peak as f64,
    };
    if one.evictions < FEW_EVICTIONS || !much {
        return None;
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut holders = one.holders.clone();
    holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let named = holders.iter().take(NAMED);
    let named: Vec<String> =
        named.map(|(who, bytes)| format!("{who} {:.0} MiB", mib(*bytes))).collect();
    let mut says = format!(
        "memory: {} times something had to leave the device's memory to make room, {:.0} MiB in sum",
        one.evictions,
        mib(one.evicted)
    );
    if peak > 0 {
        says += &format!(
            ". Tenants asked for at most {:.0} MiB, most of it {}: that is more than the device has",
            mib(peak),
            named.join(", "),
        );
    }
    // While buffers are still being made, the first that has to leave says how much fits.
    if first < peak {
        says += &format!(
            ", by at least {:.0} MiB, since it began with {:.0} MiB",
            mib(peak - first),
            mib(first)
        );
    }
    Some(Finding {
        rule: Rule::MemoryOvercommit,
        tenant: holders.first().map_or_else(|| "all tenants".to_owned(), |(who, _)| who.clone()),
        culprit: None,
        cost: None,
        counterfactual: None,
        fairness: None,
        says,
    })
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has all.
pub fn jain(uses: &[f64]) -> f64 {
    let (sum, squares) = uses.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (uses.len() as f64 * squares) }
}

/// What is found of the tenants, the costliest first.
pub fn findings(tenants: &[TenantFacts]) -> Vec<Finding> {
    let rules = [unused, blocked, saturated, guest_limited];
    let enough = tenants.iter().filter(|one| one.done >= FEW && one.active > 0);
    let mut out: Vec<Finding> =
        enough.flat_map(|one| rules.iter().filter_map(|rule| rule(one))).collect();
    out.sort_by(|a, b| b.cost.cmp(&a.cost).then(a.rule.cmp(&b.rule)));
    out
}

fn share(part: i64, whole: i64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn unused(one: &TenantFacts) -> Option<Finding> {
    let withheld = share(one.withheld, one.backlogged);
    let others: i64 = one.others.iter().map(|(_, busy, _)| busy).sum();
    // A request that comes while nothing runs is seen at the scheduler's next tick anyhow.
    let cost = one.withheld - (one.withheld_times as i64).saturating_mul(HALF_A_TICK);
    // Who uses most of what is left is no idle neighbour.
    let rest = one.active - one.busy;
    (withheld > WITHHELD && share(others, rest) < 0.5).then(|| Finding {
        rule: Rule::UnusedReservation,
        tenant: one.name.clone(),
        culprit: None,
        cost: Some(cost),
        counterfactual: Some(one.active - cost),
        fairness: None,
        says: format!(
            "{}: the device was idle for {:.3} ms while requests waited to be given it ({:.1} % of the time with \
             work): its slice was used up, and the rest is reserved for others, who used {:.1} % of the device. If the \
             scheduler gave unused time away, {:.3} ms would have taken {:.3} ms",
            one.name,
            one.withheld as f64 / MS,
            100.0 * withheld,
            100.0 * share(others, one.active),
            one.active as f64 / MS,
            (one.active - cost) as f64 / MS,
        ),
    })
}

fn blocked(one: &TenantFacts) -> Option<Finding> {
    let blocked = share(one.blocked, one.backlogged);
    let (name, busy, median) = one.others.iter().max_by_key(|(_, busy, _)| *busy)?;
    let others = one.others.iter().filter(|(_, busy, _)| *busy > 0);
    let mut uses: Vec<f64> = others.map(|(_, busy, _)| *busy as f64).collect();
    uses.push(one.busy as f64);
    let fairness = jain(&uses);
    if blocked <= BLOCKED || *median <= LONG || fairness >= FAIR || one.busy >= *busy {
        return None;
    }
    // With an equal share it has the device once in as many stretches as there are users.
    let fair = one.busy.saturating_mul(uses.len() as i64).min(one.backlogged);
    let cost = one.backlogged - fair;
    Some(Finding {
        rule: Rule::BlockedByTenant,
        tenant: one.name.clone(),
        culprit: Some(name.clone()),
        cost: Some(cost),
        counterfactual: Some(one.active - cost),
        fairness: Some(fairness),
        says: format!(
            "{}: requests waited {:.3} ms while another tenant's ran ({:.1} % of the time with work). The median \
             request of {name} runs {:.1} ms and cannot be interrupted. Use was {:.1} % against {:.1} % (fairness \
             {fairness:.2}, weights taken as equal). With an equal share, {:.3} ms would have taken {:.3} ms",
            one.name,
            one.blocked as f64 / MS,
            100.0 * blocked,
            *median as f64 / MS,
            100.0 * share(one.busy, one.active),
            100.0 * share(*busy, one.active),
            one.active as f64 / MS,
            (one.active - cost) as f64 / MS,
        ),
    })
}

fn saturated(one: &TenantFacts) -> Option<Finding> {
    let others: i64 = one.others.iter().map(|(_, busy, _)| busy).sum();
    let used = share(one.busy + others, one.active);
    (used > FULL && one.queue > 1.0).then(|| Finding {
        rule: Rule::Saturation,
        tenant: one.name.clone(),
        culprit: None,
        cost: None,
        counterfactual: None,
        fairness: None,
        says: format!(
            "{}: the device worked {:.1} % of the time and {:.1} requests waited on average: it has more work than \
             it can do",
            one.name,
            100.0 * used,
            one.queue
        ),
    })
}

fn guest_limited(one: &TenantFacts) -> Option<Finding> {
    let (work, used) = (share(one.backlogged, one.active), share(one.busy, one.active));
    (work < 0.5 && used < 0.5).then(|| Finding {
        rule: Rule::GuestLimited,
        tenant: one.name.clone(),
        culprit: None,
        cost: None,
        counterfactual: None,
        fairness: None,
        says: format!(
            "{}: it had no request at all for {:.1} % of the time and used {:.1} % of the device: the guest, and not \
             the device, sets its pace",
            one.name,
            100.0 * (1.0 - work),
            100.0 * used
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn capped() -> TenantFacts {
        TenantFacts {
            name: "vGPU 1".into(),
            active: 40 * S,
            backlogged: 36 * S,
            busy: 20 * S,
            withheld: 16 * S,
            withheld_times: 1000,
            done: 1000,
            queue: 0.4,
            ..TenantFacts::default()
        }
    }

    fn rules(one: &TenantFacts) -> Vec<Rule> {
        findings(std::slice::from_ref(one)).iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn an_idle_neighbours_slice_is_told_with_what_it_costs() {
        let found = findings(&[capped()]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].rule, Rule::UnusedReservation);
        // Half a tick of each of the thousand waits would have been there anyhow.
        assert_eq!((found[0].cost, found[0].counterfactual), (Some(31 * S / 2), Some(49 * S / 2)));
        assert!(found[0].says.contains("16000.000 ms"), "{}", found[0].says);
        // A neighbour that uses its slice is no idle one.
        let others = vec![("vGPU 2".to_owned(), 15 * S, 18_000_000)];
        assert_eq!(rules(&TenantFacts { others, ..capped() }), []);
        assert_eq!(rules(&TenantFacts { withheld: 3 * S, ..capped() }), []);
        assert_eq!(rules(&TenantFacts { done: 4, ..capped() }), []);
    }

    #[test]
    fn long_requests_of_a_neighbour_are_told_and_short_ones_are_not() {
        let mut one = TenantFacts {
            withheld: 0,
            withheld_times: 0,
            busy: 6 * S,
            blocked: 29 * S,
            ..capped()
        };
        one.others = vec![("vGPU 2".into(), 30 * S, 800_000_000)];
        let found = findings(std::slice::from_ref(&one));
        assert_eq!(found[0].rule, Rule::BlockedByTenant);
        assert_eq!(found[0].culprit.as_deref(), Some("vGPU 2"));
        // Two users: an equal share of 36 s of work takes 12 s.
        assert_eq!((found[0].cost, found[0].counterfactual), (Some(24 * S), Some(16 * S)));
        one.others[0].2 = 18_000_000;
        assert_eq!(rules(&one), []);
    }

    #[test]
    fn a_full_device_and_a_slow_guest_are_told() {
        let full =
            TenantFacts { withheld: 0, withheld_times: 0, busy: 39 * S, queue: 3.0, ..capped() };
        assert_eq!(rules(&full), [Rule::Saturation]);
        let slow = TenantFacts {
            withheld: 0,
            withheld_times: 0,
            backlogged: 8 * S,
            busy: 8 * S,
            ..capped()
        };
        assert_eq!(rules(&slow), [Rule::GuestLimited]);
    }

    #[test]
    fn a_move_is_advised_where_it_takes_off_much_of_long_waits() {
        let facts = PlacementFacts {
            tenant: "b".into(),
            moves: vec!["b from CPU 0 to CPU 1".into()],
            preemptions: (500, 40.0),
            waited: (4 * S, S / 2),
            ran: 9 * S,
        };
        let found = placement_finding(&facts).unwrap();
        assert_eq!((found.rule, found.cost), (Rule::Placement, Some(7 * S / 2)));
        let none = |facts: PlacementFacts| assert_eq!(placement_finding(&facts), None);
        none(PlacementFacts { waited: (4 * S, 3 * S), ..facts.clone() });
        none(PlacementFacts { ran: 90 * S, ..facts.clone() });
        none(PlacementFacts { preemptions: (19, 0.0), ..facts.clone() });
        none(PlacementFacts { moves: Vec::new(), ..facts });
    }

    #[test]
    fn machines_go_to_other_hosts_where_that_takes_off_much_of_what_they_wait() {
        let facts = HostsFacts {
            tenant: "a".into(),
            moves: vec!["a from x to y, and b there".into()],
            cpu: (S, S / 10),
            gpu: (4 * S, S),
            wanted: 20 * S,
        };
        let found = hosts_finding(&facts).unwrap();
        assert_eq!((found.rule, found.cost), (Rule::Placement, Some(39 * S / 10)));
        assert!(found.says.contains("Move a from x to y, and b there"), "{}", found.says);
        let none = |facts: HostsFacts| assert_eq!(hosts_finding(&facts), None);
        none(HostsFacts { cpu: (S, S), gpu: (4 * S, 3 * S), ..facts.clone() });
        none(HostsFacts { wanted: 60 * S, ..facts.clone() });
        none(HostsFacts { moves: Vec::new(), ..facts });
    }

    #[test]
    fn memory_that_leaves_again_and_again_is_told_with_who_holds_most() {
        let facts = MemoryFacts {
            evictions: 400,
            evicted: 3 << 30,
            live: (1 << 30, 3 << 29),
            holders: vec![("a".into(), 1 << 29), ("b".into(), 1 << 30)],
        };
        let found = memory_finding(&facts).unwrap();
        assert_eq!((found.rule, found.tenant.as_str()), (Rule::MemoryOvercommit, "b"));
        for words in
            ["400 times", "3072 MiB in sum", "by at least 512 MiB", "b 1024 MiB, a 512 MiB"]
        {
            assert!(found.says.contains(words), "{words}: {}", found.says);
        }
        let none = |facts: MemoryFacts| assert_eq!(memory_finding(&facts), None);
        // Room for a few buffers that nobody uses any more.
        none(MemoryFacts { evictions: 9, ..facts.clone() });
        none(MemoryFacts { evicted: 300 << 20, ..facts.clone() });
        // What tenants hold is not told: only much counts.
        let unknown = MemoryFacts { live: (0, 0), holders: Vec::new(), ..facts };
        assert_eq!(memory_finding(&unknown).unwrap().tenant, "all tenants");
        none(MemoryFacts { evicted: 255 << 20, ..unknown });
    }

    #[test]
    fn fairness_is_one_for_equals_and_one_over_n_for_a_monopoly() {
        assert!((jain(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[5.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }
}
