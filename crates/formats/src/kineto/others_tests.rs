//! Comparison with TraceLens, by the five tables that it publishes beside its trace.
//!
//! Counts are equal, and durations to the nanosecond wherever TraceLens sums durations. Where it
//! subtracts times it does so in floating-point microseconds, which at these times (1.4e12) have a grain
//! of 1/4096; such sums may differ from the exact ones by a grain for each kernel.
//! TraceLens tells operators further apart by the shapes of their inputs, which gpuwhy does not keep;
//! its lines are summed over them.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use gpuwhy_schema::{EntityId, Id, Span, TrackId, names};

use super::tests::read;
use crate::csv;

const TRACE: &str = "h100__Qwen_Qwen1.5-0.5B-Chat__1016005";

/// A kernel, copy or memset.
struct Work {
    name: String,
    is_kernel: bool,
    stream: i64,
    start: i64,
    dur: i64,
    /// The innermost operator within which it was launched, and which of all it is.
    operator: Option<(String, Id)>,
}

fn expected(table: &str) -> Option<PathBuf> {
    let data = crate::shared_data()?;
    Some(data.join(format!("kineto/{TRACE}__expected/{table}.csv")))
}

fn work() -> Option<Vec<Work>> {
    let data = crate::shared_data()?;
    let (rows, _) = read(&data.join(format!("kineto/{TRACE}.json.gz"))).unwrap();
    let track: HashMap<TrackId, _> = rows.track.iter().map(|t| (t.id, t)).collect();
    let number: HashMap<EntityId, i64> =
        rows.entity.iter().filter_map(|e| Some((e.id, e.number?))).collect();
    let kernels: HashMap<Id, Option<u64>> =
        rows.kernel.iter().map(|k| (k.id, k.correlation)).collect();
    let copies: HashMap<Id, Option<u64>> =
        rows.copy.iter().map(|c| (c.id, c.correlation)).collect();
    let calls: HashMap<Id, u64> =
        rows.call.iter().filter_map(|c| Some((c.id, c.correlation?))).collect();
    let launches: HashMap<u64, &Span> =
        rows.span.iter().filter_map(|s| Some((*calls.get(&s.id)?, s))).collect();
    let operators: Vec<&Span> =
        rows.span.iter().filter(|s| &*track[&s.track].name == names::OPERATORS).collect();
    // The shortest one that holds the launch, of all operators of its thread: no stack, no order.
    let around = |launch: &Span| {
        let thread = track[&launch.track].entity;
        operators
            .iter()
            .filter(|o| track[&o.track].entity == thread)
            .filter(|o| o.ts <= launch.ts && launch.ts < o.ts.saturating_add(o.dur.unwrap()))
            .min_by_key(|o| o.dur.unwrap())
            .map(|o| (o.name.to_string(), o.id))
    };
    let all = rows.span.iter().filter_map(|span| {
        let kernel = kernels.get(&span.id);
        let correlation = *kernel.or_else(|| copies.get(&span.id))?;
        Some(Work {
            name: span.name.to_string(),
            is_kernel: kernel.is_some(),
            stream: number[&track[&span.track].entity],
            start: span.ts.0,
            dur: span.dur.unwrap().0,
            operator: correlation.and_then(|c| launches.get(&c)).and_then(|launch| around(launch)),
        })
    });
    Some(all.collect())
}

#[derive(Debug, Default, PartialEq)]
struct Told {
    count: i64,
    sum: i64,
    min: Option<i64>,
    max: Option<i64>,
}

impl Told {
    fn add(&mut self, count: i64, sum: i64, min: i64, max: i64) {
        self.count += count;
        self.sum += sum;
        self.min = Some(self.min.map_or(min, |m| m.min(min)));
        self.max = Some(self.max.map_or(max, |m| m.max(max)));
    }
}

/// A number with a unit of 1000 ns.
fn us(text: &str) -> i64 {
    (text.parse::<f64>().unwrap() * 1000.0).round() as i64
}

#[test]
fn kernels_by_operator_and_stream() {
    let (Some(work), Some(path)) = (work(), expected("kernel_summary")) else { return };
    let mut ours: BTreeMap<(String, String, i64), Told> = BTreeMap::new();
    for w in work.iter().filter(|w| w.is_kernel) {
        let operator = w.operator.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
        let sums = ours.entry((operator, w.name.clone(), w.stream)).or_default();
        sums.add(1, w.dur, w.dur, w.dur);
    }
    let mut theirs: BTreeMap<(String, String, i64), Told> = BTreeMap::new();
    for line in csv(&path) {
        let key = |name: &str| line[name].clone();
        let key =
            (key("Parent cpu_op"), key("Kernel name"), line["Kernel stream"].parse().unwrap());
        theirs.entry(key).or_default().add(
            line["Kernel duration (µs)_count"].parse().unwrap(),
            us(&line["Kernel duration (µs)_sum"]),
            us(&line["Kernel duration (µs)_min"]),
            us(&line["Kernel duration (µs)_max"]),
        );
    }
    assert_eq!(theirs.values().map(|t| t.count).sum::<i64>(), 1465);
    assert_eq!(ours, theirs);
}

#[test]
fn short_kernels() {
    let (Some(work), Some(path)) = (work(), expected("short_kernels_summary")) else { return };
    // Shorter than 10 us, and launched by an operator.
    let mut ours: BTreeMap<(String, String), (i64, i64)> = BTreeMap::new();
    for w in work.iter().filter(|w| w.is_kernel && w.dur < 10_000) {
        let Some((operator, _)) = &w.operator else { continue };
        let sums = ours.entry((operator.clone(), w.name.clone())).or_default();
        *sums = (sums.0 + 1, sums.1 + w.dur);
    }
    let mut theirs: BTreeMap<(String, String), (i64, i64)> = BTreeMap::new();
    for line in csv(&path) {
        let key = (line["Parent cpu_op"].clone(), line["Kernel name"].clone());
        let sums = theirs.entry(key).or_default();
        sums.0 += line["Short Kernel count"].parse::<i64>().unwrap();
        sums.1 += us(&line["Short Kernel duration (µs) sum"]);
    }
    assert_eq!(ours, theirs);
}

#[test]
fn operators_that_launch_and_their_categories() {
    let (Some(work), Some(path)) = (work(), expected("ops_summary")) else { return };
    // Operators that launch by themselves, all that they launch, and how many are of a name.
    let mut of_one: BTreeMap<(String, Id), (i64, i64)> = BTreeMap::new();
    for w in &work {
        let Some(operator) = &w.operator else { continue };
        let sums = of_one.entry(operator.clone()).or_default();
        *sums = (sums.0 + 1, sums.1 + w.dur);
    }
    let mut ours: BTreeMap<String, (i64, i64, i64)> = BTreeMap::new();
    for ((name, _), (launched, ns)) in of_one {
        let sums = ours.entry(name).or_default();
        *sums = (sums.0 + 1, sums.1 + launched, sums.2 + ns);
    }
    let near = |what: &str, ours: (i64, i64, i64), count: &str, sum: f64| {
        assert_eq!(ours.0.to_string(), count, "{what}");
        let grain = 1e3 / 4096.0 * (ours.1 + 1) as f64;
        assert!((ours.2 as f64 - sum).abs() <= grain, "{what}: {} and {sum}", ours.2);
    };
    let mut categories: BTreeMap<String, (i64, i64, i64)> = BTreeMap::new();
    let theirs = csv(&path);
    for line in &theirs {
        let sums = ours[&line["name"]];
        near(
            &line["name"],
            sums,
            &line["Count"],
            1e3 * number(line, "total_direct_kernel_time_sum"),
        );
        let sum = categories.entry(line["Categories"].replace(['[', ']', '\''], "")).or_default();
        *sum = (sum.0 + sums.0, sum.1 + sums.1, sum.2 + sums.2);
    }
    assert_eq!(ours.len(), theirs.len());
    let lines = csv(&expected("ops_summary_by_category").unwrap());
    for line in &lines {
        let category = &line["op category"];
        let sum = 1e6 * number(line, "total_direct_kernel_time_ms");
        near(category, categories[category], &line["Count"], sum);
    }
    assert_eq!(categories.len(), lines.len());
}

fn number(line: &BTreeMap<String, String>, column: &str) -> f64 {
    line[column].parse().unwrap()
}

#[test]
fn busy_idle_and_exposed_copies() {
    let (Some(mut work), Some(path)) = (work(), expected("gpu_timeline")) else { return };
    // TraceLens looks only at work whose operator is in the trace: 31.9 ms of 45.6 ms here, since
    // the profiler was started in the middle of a step.
    work.retain(|w| w.operator.is_some());
    let union = |only: &dyn Fn(&Work) -> bool| {
        let mut spans: Vec<(i64, i64)> =
            work.iter().filter(|w| only(w)).map(|w| (w.start, w.start + w.dur)).collect();
        spans.sort_unstable();
        let (mut total, mut until) = (0, i64::MIN);
        for (start, end) in spans {
            total += (end - start.max(until)).max(0);
            until = until.max(end);
        }
        total
    };
    // As TraceLens has it: what is no kernel and no copy, memsets, computes as well.
    let is_copy = |w: &Work| w.name.starts_with("Memcpy");
    let (busy, computes) = (union(&|_| true), union(&|w| !is_copy(w)));
    let first = work.iter().map(|w| w.start).min().unwrap();
    let total = work.iter().map(|w| w.start + w.dur).max().unwrap() - first;
    let ours = [
        ("computation_time", computes),
        ("exposed_comm_time", 0),
        ("exposed_memcpy_time", busy - computes),
        ("busy_time", busy),
        ("idle_time", total - busy),
        ("total_time", total),
        ("total_comm_time", 0),
        ("total_memcpy_time", union(&is_copy)),
    ];
    let theirs = csv(&path);
    assert_eq!(theirs.len(), ours.len());
    for (line, (what, ns)) in theirs.iter().zip(ours) {
        assert_eq!(line["type"], what);
        let theirs = 1e6 * number(line, "time ms");
        assert!((theirs - ns as f64).abs() < 1e3 / 4096.0 * 1e3, "{what}: {ns} and {theirs}");
    }
}
