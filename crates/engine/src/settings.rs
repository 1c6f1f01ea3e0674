//! What recordings say of settings: those that are known to cost time, those in which hosts or ranks differ, and
//! those that changed.
//!
//! *What it sees:* the entities of kind `setting`. *What fools it:* nothing here is a verdict: a setting that costs
//! time in general need not be why these steps were slow. Settings that differ by design (which GPUs and CPUs a
//! rank uses) are not compared.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gpuwhy_schema::{Entity, EntityId, EntityKind, Ns, Rows, names};
use serde::Serialize;

/// What is told of each list at most.
const TOLD: usize = 20;

/// Settings of which something can be said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Those that are known to cost time.
    pub costly: Vec<Costly>,
    /// Those in which hosts, or processes that take steps, differ.
    pub differ: Vec<Differ>,
    /// Those that changed while it was recorded.
    pub changed: Vec<Changed>,
}

/// A setting that is known to cost time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Costly {
    /// The host or process.
    pub whose: String,
    /// Its name.
    pub setting: String,
    /// Its value.
    pub value: String,
    /// What it costs.
    pub why: &'static str,
}

/// A setting in which hosts or processes differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differ {
    /// Its name.
    pub setting: String,
    /// Who has each value; `null` for those who have none.
    pub values: Vec<(Option<String>, Vec<String>)>,
}

/// A setting that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The host or process.
    pub whose: String,
    /// Its name.
    pub setting: String,
    /// What it was,
    pub from: String,
    /// what it became,
    pub to: String,
    /// and when that was seen, ns on the trace clock.
    pub at_ns: i64,
}

/// A setting in which two recordings differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Between {
    /// `host`, or the name of processes.
    pub whose: String,
    /// Its name.
    pub setting: String,
    /// Its values before, and now; none if it was not set.
    pub before: Vec<String>,
    /// Its values now.
    pub now: Vec<String>,
}

/// In which settings two recordings differ: of their hosts, and of processes whose names are in both. Nothing if one of
/// them has recorded none.
pub fn between(before: &Rows, now: &Rows) -> Vec<Between> {
    let (before, now) = (of_names(before), of_names(now));
    let mut out = Vec::new();
    for (whose, settings) in &now {
        let Some(others) = before.get(whose) else { continue };
        let all: BTreeSet<&String> = settings.keys().chain(others.keys()).collect();
        for setting in all.into_iter().filter(|name| !BY_DESIGN.contains(&name.as_str())) {
            let values = |of: &BTreeMap<String, BTreeSet<String>>| -> Vec<String> {
                of.get(setting).into_iter().flatten().cloned().collect()
            };
            let (before, now) = (values(others), values(settings));
            if before != now {
                let (whose, setting) = (whose.clone(), setting.clone());
                out.push(Between { whose, setting, before, now });
            }
        }
    }
    out
}

/// The settings that hold at the end of a trace: whose, the name and the value. Of an entity the last row counts.
pub(crate) fn current(catalog: &Rows) -> Vec<(EntityId, &str, &str)> {
    let by_id: BTreeMap<EntityId, &Entity> = catalog.entity.iter().map(|e| (e.id, e)).collect();
    let set = by_id.into_values().filter(|e| e.kind == EntityKind::Setting && e.to.is_none());
    set.filter_map(|e| {
        let (name, value) = e.name.split_once('=')?;
        Some((e.parent?, name, value))
    })
    .collect()
}

/// The values that settings have in the end: of all hosts, and of all processes of a name.
fn of_names(catalog: &Rows) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let by_id: HashMap<EntityId, &Entity> = catalog.entity.iter().map(|e| (e.id, e)).collect();
    let mut out: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (owner, name, value) in current(catalog) {
        let Some(owner) = by_id.get(&owner) else { continue };
        let whose = match owner.kind {
            EntityKind::Host => "host",
            _ => &*owner.name,
        };
        let settings = out.entry(whose.to_owned()).or_default();
        settings.entry(name.to_owned()).or_default().insert(value.to_owned());
    }
    out
}

impl Between {
    /// As one line.
    pub fn text(&self) -> String {
        let of = |values: &[String]| match values {
            [] => "not set".to_owned(),
            values => values.join(", "),
        };
        let Between { whose, setting, before, now } = self;
        format!("{setting} ({whose}): {}, was {}", of(now), of(before))
    }
}

/// When a setting costs time.
struct Rule {
    setting: &'static str,
    /// Of its value, and the other settings of the host or process.
    costs: fn(&str, &Current<'_>) -> bool,
    why: &'static str,
}

/// Whether a variable is switched on.
fn is_on(value: &str, _: &Current<'_>) -> bool {
    !matches!(value, "" | "0")
}

/// The number that a value begins with.
fn number(value: &str) -> Option<u64> {
    let digits = value.find(|c: char| !c.is_ascii_digit()).map_or(value, |end| &value[..end]);
    digits.parse().ok()
}

fn has_several_nodes(all: &Current<'_>) -> bool {
    all.get("numa.nodes").is_some_and(|nodes| nodes.contains(['-', ',']))
}

/// Documented by: kernel `Documentation/admin-guide` (mm, sysctl, pm), `Documentation/timers`; NVIDIA's CUDA C++
/// Programming Guide and NCCL's list of environment variables; PyTorch's `torch.distributed` and CUDA notes; OpenMP 5.2;
/// the arguments of vLLM (`vllm serve --help`) and SGLang (server arguments).
const RULES: &[Rule] = &[
    Rule {
        setting: "clocksource",
        costs: |value, _| matches!(value, "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies"),
        why: "each reading of the clock takes about a microsecond and enters the kernel",
    },
    Rule {
        setting: "cpu.governor",
        costs: |value, all| {
            // Drivers that choose by themselves what `powersave` means.
            let chooses = all.get("cpu.driver").is_some_and(|d| d.contains("pstate"));
            value.split(',').any(|governor| governor == "powersave") && !chooses
        },
        why: "CPUs stay at their lowest frequency",
    },
    Rule {
        setting: "cpu.boost",
        costs: |value, _| value == "0",
        why: "CPUs do not run faster than their nominal frequency",
    },
    Rule {
        setting: "cpu.no_turbo",
        costs: |value, _| value == "1",
        why: "CPUs do not run faster than their nominal frequency",
    },
    Rule {
        setting: "numa.balancing",
        costs: |value, all| value != "0" && has_several_nodes(all),
        why: "pages are unmapped now and then to learn who uses them: faults in the midst of the work",
    },
    Rule {
        setting: "vm.zone_reclaim_mode",
        costs: |value, all| value != "0" && has_several_nodes(all),
        why: "an allocation frees memory of its own node before it takes some of another",
    },
    Rule {
        setting: "thp.defrag",
        costs: |value, _| value == "always",
        why: "an allocation may wait until memory has been compacted into a huge page",
    },
    Rule {
        setting: "CUDA_LAUNCH_BLOCKING",
        costs: is_on,
        why: "each kernel is waited for before the next one is launched",
    },
    Rule {
        setting: "OMP_NUM_THREADS",
        costs: |value, all| {
            let cpus = all.get("cpus.count").and_then(|cpus| number(cpus));
            number(value).zip(cpus).is_some_and(|(threads, cpus)| threads > cpus)
        },
        why: "more threads than CPUs: they wait for each other at each parallel region",
    },
    Rule {
        setting: "TORCH_DISTRIBUTED_DEBUG",
        costs: |value, _| value == "DETAIL",
        why: "every collective is checked against those of all ranks before it runs",
    },
    Rule {
        setting: "PYTORCH_NO_CUDA_MEMORY_CACHING",
        costs: is_on,
        why: "each allocation of device memory is one of the driver, which waits for the device",
    },
    Rule {
        setting: "NCCL_P2P_DISABLE",
        costs: is_on,
        why: "GPUs of one host do not copy to each other directly",
    },
    Rule {
        setting: "NCCL_SHM_DISABLE",
        costs: is_on,
        why: "processes of one host send through the network stack",
    },
    Rule {
        setting: "NCCL_IB_DISABLE",
        costs: is_on,
        why: "collectives use IP sockets and no RDMA",
    },
    Rule {
        setting: "--enforce-eager",
        costs: is_on,
        why: "no CUDA graphs and no compilation: each kernel of a step is launched by itself",
    },
    Rule {
        setting: "--disable-cuda-graph",
        costs: is_on,
        why: "each kernel of a step is launched by itself",
    },
    Rule {
        setting: "--cpu-offload-gb",
        costs: is_on,
        why: "weights are copied to the GPU in each step",
    },
    Rule {
        setting: "--no-async-scheduling",
        costs: is_on,
        why: "the GPU waits while the next step is scheduled",
    },
    Rule {
        setting: "--disable-overlap-schedule",
        costs: is_on,
        why: "the GPU waits while the next step is scheduled",
    },
    Rule {
        setting: "--no-enable-chunked-prefill",
        costs: is_on,
        why: "a long prompt is computed in one step, for which all others wait",
    },
    Rule {
        setting: "--no-enable-prefix-caching",
        costs: is_on,
        why: "prompts that begin alike are computed each time",
    },
    Rule {
        setting: "--disable-radix-cache",
        costs: is_on,
        why: "prompts that begin alike are computed each time",
    },
    Rule { setting: "PYTHONDEVMODE", costs: is_on, why: "Python checks each allocation" },
    Rule {
        setting: "PYTHONMALLOC",
        costs: |value, _| value.ends_with("debug"),
        why: "Python checks each allocation",
    },
];

/// Settings in which ranks differ by design.
const BY_DESIGN: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_PLACES",
    "cpus",
    "memory.nodes",
];

/// The last value of each setting of a host or process.
type Current<'a> = BTreeMap<&'a str, &'a str>;

impl Settings {
    /// Of the entities of a trace.
    pub fn of(catalog: &Rows) -> Settings {
        let by_id: HashMap<EntityId, &Entity> = catalog.entity.iter().map(|e| (e.id, e)).collect();
        // Each value of each setting of each owner, in time.
        let mut all: BTreeMap<(EntityId, &str), Vec<(Ns, &str)>> = BTreeMap::new();
        for entity in by_id.values().filter(|e| e.kind == EntityKind::Setting) {
            if let (Some(owner), Some((name, value))) = (entity.parent, entity.name.split_once('='))
            {
                let values = all.entry((owner, name)).or_default();
                values.push((entity.from.unwrap_or(Ns::MIN), value));
            }
        }
        all.values_mut().for_each(|values| values.sort_unstable());
        let mut current: BTreeMap<EntityId, Current<'_>> = BTreeMap::new();
        for ((owner, name), values) in &all {
            if let Some((_, value)) = values.last() {
                current.entry(*owner).or_default().insert(name, value);
            }
        }
        let whose = |owner: EntityId| by_id.get(&owner).map_or_else(String::new, |e| whose(e));
        Settings {
            costly: costly(&current, &whose),
            differ: differ(catalog, &by_id, &current, &whose),
            changed: changed(&all, &whose),
        }
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.costly.is_empty() && self.differ.is_empty() && self.changed.is_empty()
    }

    /// As lines of text; none if there is nothing to say.
    pub fn text(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut list = |title: &str, told: Vec<String>| {
            if told.is_empty() {
                return;
            }
            lines.push(String::new());
            lines.push(title.to_owned());
            let more = told.len().saturating_sub(TOLD);
            lines.extend(told.into_iter().take(TOLD).map(|line| format!("  {line}")));
            if more > 0 {
                lines.push(format!("  {more} more; --json has all"));
            }
        };
        let costly =
            |one: &Costly| format!("{}={} ({}): {}", one.setting, one.value, one.whose, one.why);
        list("Settings that are known to cost time:", self.costly.iter().map(costly).collect());
        let value = |(value, whose): &(Option<String>, Vec<String>)| {
            format!("{} ({})", value.as_deref().unwrap_or("not set"), shortened(whose))
        };
        let differ = |one: &Differ| {
            let values: Vec<String> = one.values.iter().map(value).collect();
            format!("{}: {}", one.setting, values.join(", "))
        };
        list(
            "Settings that are not the same everywhere:",
            self.differ.iter().map(differ).collect(),
        );
        let changed = |one: &Changed| {
            format!("{}: {} became {} ({})", one.setting, one.from, one.to, one.whose)
        };
        list("Settings that changed:", self.changed.iter().map(changed).collect());
        lines
    }
}

/// The first few of many.
fn shortened(whose: &[String]) -> String {
    match whose {
        [a, b, c, _, rest @ ..] => format!("{a}, {b}, {c} and {} more", rest.len() + 1),
        few => few.join(", "),
    }
}

fn whose(owner: &Entity) -> String {
    match (owner.kind, owner.number) {
        (EntityKind::Process, Some(pid)) => format!("{} (pid {pid})", owner.name),
        _ => owner.name.to_string(),
    }
}

fn costly(
    current: &BTreeMap<EntityId, Current<'_>>,
    whose: &dyn Fn(EntityId) -> String,
) -> Vec<Costly> {
    let of = |(owner, all): (&EntityId, &Current<'_>)| -> Vec<Costly> {
        let costs = |rule: &&Rule| all.get(rule.setting).is_some_and(|v| (rule.costs)(v, all));
        let told = |rule: &Rule| Costly {
            whose: whose(*owner),
            setting: rule.setting.to_owned(),
            value: all.get(rule.setting).map_or_else(String::new, |value| (*value).to_owned()),
            why: rule.why,
        };
        RULES.iter().filter(costs).map(told).collect()
    };
    current.iter().flat_map(of).collect()
}

/// What differs between hosts, and between processes of one name that take steps.
fn differ(
    catalog: &Rows,
    by_id: &HashMap<EntityId, &Entity>,
    current: &BTreeMap<EntityId, Current<'_>>,
    whose: &dyn Fn(EntityId) -> String,
) -> Vec<Differ> {
    let steps = catalog.track.iter().filter(|track| &*track.name == names::STEPS);
    let step_takers: HashSet<EntityId> = steps
        .filter_map(|track| by_id.get(&track.entity))
        .filter_map(|taker| match taker.kind {
            EntityKind::Process => Some(taker.id),
            _ => taker.parent,
        })
        .collect();
    let mut groups: BTreeMap<(&str, String), Vec<EntityId>> = BTreeMap::new();
    for owner in current.keys() {
        let Some(entity) = by_id.get(owner) else { continue };
        match entity.kind {
            EntityKind::Host => groups.entry(("", String::new())).or_default().push(*owner),
            _ if step_takers.contains(owner) => {
                let name = entity.name.to_string();
                groups.entry((entity.kind.as_str(), name)).or_default().push(*owner);
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    for owners in groups.values().filter(|owners| owners.len() > 1) {
        let names: BTreeSet<&str> =
            owners.iter().flat_map(|owner| current[owner].keys().copied()).collect();
        for name in names.into_iter().filter(|name| !BY_DESIGN.contains(name)) {
            let mut values: BTreeMap<Option<String>, Vec<String>> = BTreeMap::new();
            for owner in owners {
                let value = current[owner].get(name).map(|value| (*value).to_owned());
                values.entry(value).or_default().push(whose(*owner));
            }
            if values.len() > 1 {
                out.push(Differ { setting: name.to_owned(), values: values.into_iter().collect() });
            }
        }
    }
    out
}

fn changed(
    all: &BTreeMap<(EntityId, &str), Vec<(Ns, &str)>>,
    whose: &dyn Fn(EntityId) -> String,
) -> Vec<Changed> {
    let mut out = Vec::new();
    for ((owner, name), values) in all {
        for pair in values.windows(2).filter(|pair| pair[0].1 != pair[1].1) {
            out.push(Changed {
                whose: whose(*owner),
                setting: (*name).to_owned(),
                from: pair[0].1.to_owned(),
                to: pair[1].1.to_owned(),
                at_ns: pair[1].0.0,
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Discipline, Lane, Lanes, SourceId};

    use super::*;

    /// Processes `train` that take steps, each with these settings, on one host with those.
    fn catalog(host: &[&str], ranks: &[&[&str]]) -> Rows {
        let mut lanes = Lanes::default();
        let machine = lanes.entity(EntityKind::Host, "h", |e| e.name = "node1".into());
        let set = |lanes: &mut Lanes, owner: EntityId, settings: &[&str]| {
            for (n, setting) in settings.iter().enumerate() {
                lanes.entity(EntityKind::Setting, &format!("{}/{n}", owner.0), |e| {
                    e.parent = Some(owner);
                    e.name = (*setting).into();
                    e.from = Some(Ns(n as i64));
                });
            }
        };
        set(&mut lanes, machine, host);
        for (pid, settings) in ranks.iter().enumerate() {
            let process = lanes.entity(EntityKind::Process, &format!("{pid}@1"), |e| {
                e.parent = Some(machine);
                e.name = "train".into();
                e.number = Some(pid as i64);
            });
            let thread = lanes.entity(EntityKind::Thread, &format!("{pid}/{pid}@1"), |e| {
                e.parent = Some(process);
            });
            lanes.track(thread, None, Lane::spans(names::STEPS, Discipline::Nested), SourceId(1));
            set(&mut lanes, process, settings);
        }
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        rows
    }

    #[test]
    fn settings_in_which_two_recordings_differ_are_told_by_host_and_name() {
        let before =
            catalog(&["thp.enabled=always"], &[&["--max-num-seqs=32", "cpus=0"], &["nice=0"]]);
        let now = catalog(
            &["thp.enabled=never"],
            &[&["--max-num-seqs=32", "--enforce-eager=on", "cpus=1", "nice=5"]],
        );
        let told: Vec<String> = between(&before, &now).iter().map(Between::text).collect();
        let wanted = [
            "thp.enabled (host): never, was always",
            "--enforce-eager (train): on, was not set",
            "nice (train): 5, was 0",
        ];
        assert_eq!(told, wanted);
        assert_eq!(between(&now, &now), []);
        // One that has ended since does not hold any more.
        let mut ended = now.clone();
        let set = ended.entity.iter().find(|e| &*e.name == "--enforce-eager=on").unwrap();
        ended.entity.push(Entity { to: Some(Ns(9)), ..set.clone() });
        let told: Vec<String> = between(&now, &ended).iter().map(Between::text).collect();
        assert_eq!(told, ["--enforce-eager (train): not set, was on"]);
        // Of what was not recorded nothing is known.
        assert_eq!(between(&Rows::default(), &now), []);
    }

    #[test]
    fn what_is_known_to_cost_time_is_told_with_what_it_costs() {
        let rows = catalog(
            &["clocksource=hpet", "numa.balancing=1", "numa.nodes=0-1", "thp.defrag=madvise"],
            &[&[
                "cpus.count=4",
                "OMP_NUM_THREADS=64",
                "CUDA_LAUNCH_BLOCKING=1",
                "NCCL_IB_DISABLE=0",
            ]],
        );
        let settings = Settings::of(&rows);
        let told: Vec<&str> = settings.costly.iter().map(|one| one.setting.as_str()).collect();
        let wanted = ["clocksource", "numa.balancing", "CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS"];
        assert_eq!(told, wanted, "{settings:?}");
        let text = settings.text().join("\n");
        assert!(
            text.contains("OMP_NUM_THREADS=64 (train (pid 0)): more threads than CPUs"),
            "{text}"
        );
    }

    #[test]
    fn settings_that_cost_nothing_are_not_told() {
        let rows = catalog(
            &[
                "clocksource=tsc",
                "cpu.governor=powersave",
                "cpu.driver=intel_pstate",
                "numa.nodes=0",
                "numa.balancing=1",
                "vm.zone_reclaim_mode=1",
            ],
            &[&[
                "cpus.count=8",
                "OMP_NUM_THREADS=8,2",
                "PYTHONMALLOC=malloc",
                "CUDA_LAUNCH_BLOCKING=",
            ]],
        );
        assert_eq!(Settings::of(&rows), Settings::default());
        assert!(Settings::default().text().is_empty());
    }

    #[test]
    fn one_rank_that_is_set_up_otherwise_is_named_and_what_differs_by_design_is_not() {
        let usual: &[&str] = &["OMP_NUM_THREADS=8", "CUDA_VISIBLE_DEVICES=0", "cpus=0-7"];
        let other: &[&str] = &["CUDA_VISIBLE_DEVICES=3", "cpus=8-15"];
        let settings = Settings::of(&catalog(&[], &[usual, usual, other]));
        let value = |value: Option<&str>, whose: &[&str]| {
            (value.map(str::to_owned), whose.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
        };
        let wanted = Differ {
            setting: "OMP_NUM_THREADS".into(),
            values: vec![
                value(None, &["train (pid 2)"]),
                value(Some("8"), &["train (pid 0)", "train (pid 1)"]),
            ],
        };
        assert_eq!(settings.differ, [wanted]);
        let text = settings.text().join("\n");
        assert!(
            text.contains("not set (train (pid 2)), 8 (train (pid 0), train (pid 1))"),
            "{text}"
        );
    }

    #[test]
    fn a_change_is_told_with_both_values() {
        let settings = Settings::of(&catalog(&["thp.enabled=always", "thp.enabled=never"], &[]));
        let wanted = Changed {
            whose: "node1".into(),
            setting: "thp.enabled".into(),
            from: "always".into(),
            to: "never".into(),
            at_ns: 1,
        };
        assert_eq!(settings.changed, [wanted]);
    }
}
