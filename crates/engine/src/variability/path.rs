//! The critical path of a trace, added up: by what it is, and by the names on it.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_derive::critical_path::{self, Bound, Edge, Hosts, Part, Recording, Step};
use gpuwhy_schema::text::Screen;
use gpuwhy_schema::{EntityId, Name};
use serde::Serialize;

use super::NS_MS;

/// Names that are told, most time first.
const NAMES: usize = 20;

/// What is on the path, of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct PathPart {
    /// What: `kernel`, `host_launch`, `launch_latency`, `queue_gap`, `not_known` and others.
    pub part: &'static str,
    /// The same in words.
    #[serde(skip)]
    pub label: &'static str,
    /// What that counts as: `cpu`, `gpu_compute`, `gpu_communication`, `gpu_copies`,
    /// `gpu_kernel_launch_overhead`, `gpu_kernel_kernel_overhead`, `not_known`.
    pub bound: &'static str,
    /// How long, ms.
    pub ms: f64,
    /// The share of the path, 0 to 1.
    pub share: f64,
    /// In how many pieces.
    pub pieces: u64,
}

/// A kernel or a call that is on the path.
#[derive(Clone, Debug, Serialize)]
pub struct PathName {
    /// What it is, as in [`PathPart::part`].
    pub part: &'static str,
    /// Its name.
    pub name: String,
    /// How long it is on the path, ms: at most what is gained if it took no time.
    pub ms: f64,
    /// The share of the path, 0 to 1.
    pub share: f64,
    /// In how many pieces.
    pub pieces: u64,
}

/// What the end of a recording waited for, back to its begin. Its parts sum to its length.
#[derive(Clone, Debug, Serialize)]
pub struct CriticalPath {
    /// When it begins, s from the first work of a device: with the first call.
    pub from_s: f64,
    /// When it ends: with the last work of a device.
    pub to_s: f64,
    /// How long it is, ms.
    pub ms: f64,
    /// The same, ns.
    pub ns: i64,
    /// What the largest share of it counts as, as in [`PathPart::bound`].
    pub bound_by: &'static str,
    /// The same in words.
    #[serde(skip)]
    pub bound_label: &'static str,
    /// That share, 0 to 1.
    pub bound_share: f64,
    /// By what it is, most time first.
    pub parts: Vec<PathPart>,
    /// By name, most time first; at most 20.
    pub names: Vec<PathName>,
    /// How often it went from one thread or piece of work to another, by the reason.
    pub edges: BTreeMap<&'static str, u64>,
    /// Pieces of work on it whose launch is not in the trace.
    pub without_launch: u64,
    /// Calls of MPI on it whose last rank is not known, since clocks are not aligned well enough.
    pub not_aligned: u64,
    /// Pieces of work on it that begin before their launch does.
    pub skewed: u64,
}

impl CriticalPath {
    /// It, for a terminal, with so many of the names that take most.
    pub fn text(&self, out: &mut Screen, top: usize) {
        out.end().line(format_args!(
            "critical path from {:.3} to {:.3} s, {:.3} ms: {:.1} % of it is {}. A line that took no time \
             would save at most its ms",
            // Not "-0.000".
            (self.from_s * 1e3).round() / 1e3 + 0.0,
            self.to_s,
            self.ms,
            100.0 * self.bound_share,
            self.bound_label
        ));
        for of in &self.parts {
            out.line(format_args!(
                "  {:>10.3} ms {:>5.1} %  {:>8} x {}",
                of.ms,
                100.0 * of.share,
                of.pieces,
                of.label
            ));
        }
        if !self.names.is_empty() {
            out.line("  most of it by name");
        }
        for of in self.names.iter().take(top) {
            let name: String = of.name.chars().take(90).collect();
            out.line(format_args!(
                "  {:>10.3} ms {:>5.1} %  {:>8} x {name}",
                of.ms,
                100.0 * of.share,
                of.pieces
            ));
        }
        for what in self.unsure() {
            out.line(format_args!("  {what}"));
        }
    }

    /// What it is not sure of, a sentence each.
    pub fn unsure(&self) -> Vec<String> {
        let all = [
            (self.without_launch, "pieces of work whose launch is not in the trace"),
            (self.not_aligned, "times in a call of MPI whose last rank the clocks do not tell"),
            (self.skewed, "pieces of work that begin before their launch does: clocks are off"),
        ];
        let some = all.into_iter().filter(|(count, _)| *count > 0);
        some.map(|(count, what)| format!("not sure: {count} {what}")).collect()
    }
}

/// Time and pieces.
#[derive(Clone, Copy, Default)]
struct Time {
    ns: i64,
    pieces: u64,
}

impl Time {
    fn add(&mut self, ns: i64) {
        self.ns = self.ns.saturating_add(ns);
        self.pieces += 1;
    }
}

/// The path of this work, from the first call or work to the last work; its times are told from `origin`.
pub fn of(
    recording: &impl Recording,
    hosts: &Hosts,
    origin: i64,
    kernel: impl Fn(u32) -> Name,
) -> Option<CriticalPath> {
    let to = (0..recording.count()).map(|place| recording.work(place).end).max()?;
    let first = recording.work(0).start;
    let from = hosts.first().map_or(first, |call| call.min(first));
    // Times of a damaged file may be centuries apart.
    let from = from.max(to.saturating_sub(i64::MAX)).min(to);
    let mut parts: BTreeMap<Part, Time> = BTreeMap::new();
    let mut by_name: HashMap<(Part, u32), Time> = HashMap::new();
    let mut edges: BTreeMap<Edge, u64> = BTreeMap::new();
    let (mut not_aligned, mut skewed) = (0, 0);
    critical_path::walk(recording, hosts, from..to, |step| match step {
        Step::Segment(segment) => {
            let ns = segment.to - segment.from;
            parts.entry(segment.part).or_default().add(ns);
            if let Some(name) = segment.name {
                by_name.entry((segment.part, name)).or_default().add(ns);
            }
        }
        Step::Edge(edge) => *edges.entry(edge).or_default() += 1,
        Step::NotAligned => not_aligned += 1,
        Step::Skewed => skewed += 1,
    });
    let length = to - from;
    let (ms, share) = (|ns: i64| ns as f64 / NS_MS, |ns: i64| ns as f64 / length.max(1) as f64);
    let mut bounds: BTreeMap<Bound, i64> = BTreeMap::new();
    for (part, time) in &parts {
        *bounds.entry(part.bound()).or_default() += time.ns;
    }
    let (bound_by, bound_ns) =
        bounds.into_iter().max_by_key(|(_, ns)| *ns).map_or((Bound::NotKnown, 0), |found| found);
    let mut parts: Vec<(Part, Time)> = parts.into_iter().collect();
    parts.sort_by_key(|(part, time)| (std::cmp::Reverse(time.ns), *part));
    let part = |(part, time): (Part, Time)| PathPart {
        part: part.as_str(),
        label: part.label(),
        bound: part.bound().as_str(),
        ms: ms(time.ns),
        share: share(time.ns),
        pieces: time.pieces,
    };
    let is_kernel = |part: Part| matches!(part, Part::Kernel | Part::Communication);
    let name = |(part, name): (Part, u32)| match is_kernel(part) {
        true => kernel(name),
        false => hosts.name(name).clone(),
    };
    let mut named: Vec<(Name, Part, Time)> =
        by_name.into_iter().map(|(key, time)| (name(key), key.0, time)).collect();
    named.sort_by(|a, b| b.2.ns.cmp(&a.2.ns).then_with(|| (&a.0, a.1).cmp(&(&b.0, b.1))));
    named.truncate(NAMES);
    let named = named.into_iter().map(|(name, part, time)| PathName {
        part: part.as_str(),
        name: name.to_string(),
        ms: ms(time.ns),
        share: share(time.ns),
        pieces: time.pieces,
    });
    let s = |at: i64| at.saturating_sub(origin) as f64 / 1e9;
    Some(CriticalPath {
        from_s: s(from),
        to_s: s(to),
        ms: ms(length),
        ns: length,
        bound_by: bound_by.as_str(),
        bound_label: bound_by.label(),
        bound_share: share(bound_ns),
        parts: parts.into_iter().map(part).collect(),
        names: named.collect(),
        without_launch: edges.get(&Edge::NoLaunch).copied().unwrap_or(0),
        edges: edges.into_iter().map(|(edge, count)| (edge.as_str(), count)).collect(),
        not_aligned,
        skewed,
    })
}

/// The process of a thread, or the thread itself where it has none.
pub fn process_of(parents: &HashMap<EntityId, Option<EntityId>>, thread: EntityId) -> EntityId {
    parents.get(&thread).copied().flatten().unwrap_or(thread)
}
