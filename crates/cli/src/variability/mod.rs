//! `gpuwhy variability`: which intervals, ranks and links of a recording differ from the others.
//!
//! The time is cut into shards that threads share; each reads its rows, sweeps over them once, and
//! hands back sums of whole numbers. What they merge to does not depend on how many shards or
//! threads there were.

mod compare;
mod hosts;
mod launches;
mod page;
mod remote;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_derive::devices::Devices;
use gpuwhy_derive::sweep::{
    ALL_KINDS, Cut, Interval, Intervals, Sweep, Work as DeviceWork, is_copy, kind_index,
};
use gpuwhy_derive::{Quantiles, Stretches, Sum};
use gpuwhy_diagnose::exchange::{self, Moved, Way};
use gpuwhy_diagnose::variability::{
    Moments, Outliers, most_variable, outliers, shared, shift, slow_links, straggler,
};
use gpuwhy_formats::nsys;
use gpuwhy_schema::{Copy, CopyKind, EntityId, Id, Name, Ns, Rows, Span, TrackId};
use gpuwhy_store::Trace;
use serde::Serialize;

use crate::analysis;
use crate::args::Variability;
use crate::exit;
use crate::parallel::in_order;

/// Intervals at most: more are no overview.
const MOST: usize = 1 << 16;
/// Rows that a shard reads, about.
const SHARD_ROWS: u64 = 500_000;
/// Collectives whose length is waiting for the last rank.
const WAITS: &[&str] =
    &["MPI_Barrier", "MPI_Allreduce", "MPI_Allgather", "MPI_Alltoall", "MPI_Reduce_scatter"];
/// Calls that ask for managed memory ahead of its use.
const PREFETCH: &[&str] = &["cudaMemPrefetch", "cuMemPrefetch"];
/// A difference of waits that is worth telling, ns.
const LEAST_WAIT: f64 = 1000.0;

/// A device, and whose it is.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Its entity.
    pub entity: u32,
    /// What it is called.
    pub name: String,
    /// The rank that used it.
    pub rank: Option<i64>,
    /// What tells it from others.
    #[serde(skip)]
    place: String,
}

impl Device {
    fn of(device: &gpuwhy_derive::devices::Device) -> Device {
        Device {
            entity: device.entity.0,
            name: device.name.to_string(),
            rank: device.rank,
            place: device.place.to_string(),
        }
    }

    fn label(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank}, {}", self.name),
            None => self.name.clone(),
        }
    }
}

/// What a shard comes to.
struct Part {
    intervals: Intervals,
    kernels: BTreeMap<Name, Stat>,
    /// Copies between devices: from, to.
    links: BTreeMap<(u32, u32), Link>,
    /// Waits by collective and rank.
    waits: BTreeMap<(Name, i64), Waits>,
    last_end: i64,
    rows: u64,
    /// Calls that asked for managed memory ahead of its use; none if calls were not read.
    prefetches: Option<u64>,
    /// Copies in the order of their begin, for the ways in which data go to and fro.
    moved: Vec<Moved>,
}

/// Copies that are looked at for exchanges; later ones are not.
const MOVED: usize = 4 << 20;

#[derive(Clone, Default)]
struct Stat {
    sum: Sum,
    quantiles: Quantiles,
    /// Over time, to see when they changed.
    stretches: Stretches,
}

impl Stat {
    fn add(&mut self, interval: usize, dur: i64) {
        self.sum.add(dur);
        self.quantiles.add(dur);
        self.stretches.add(interval, dur);
    }

    fn merge(&mut self, other: &Stat) {
        self.sum.merge(&other.sum);
        self.quantiles.merge(&other.quantiles);
        self.stretches.merge(&other.stretches);
    }
}

#[derive(Clone, Default)]
struct Link {
    durations: Sum,
    bytes: u64,
}

#[derive(Clone, Default)]
struct Waits {
    sum: Sum,
    /// The first call, which waits for programs to start.
    first: Option<(i64, i64)>,
}

impl Part {
    fn new(cut: Cut) -> Part {
        Part {
            intervals: Intervals::new(cut),
            kernels: BTreeMap::new(),
            links: BTreeMap::new(),
            waits: BTreeMap::new(),
            last_end: i64::MIN,
            rows: 0,
            prefetches: None,
            moved: Vec::new(),
        }
    }

    fn merge(&mut self, other: Part) {
        if let Some(theirs) = other.prefetches {
            *self.prefetches.get_or_insert(0) += theirs;
        }
        self.intervals.merge(&other.intervals);
        for (name, stat) in other.kernels {
            self.kernels.entry(name).or_default().merge(&stat);
        }
        for (link, theirs) in other.links {
            let ours = self.links.entry(link).or_default();
            ours.durations.merge(&theirs.durations);
            ours.bytes += theirs.bytes;
        }
        for (key, theirs) in other.waits {
            let ours = self.waits.entry(key).or_default();
            ours.sum.merge(&theirs.sum);
            ours.first = ours.first.into_iter().chain(theirs.first).min();
        }
        self.last_end = self.last_end.max(other.last_end);
        self.rows += other.rows;
        let room = MOVED.saturating_sub(self.moved.len());
        self.moved.extend(other.moved.into_iter().take(room));
    }
}

/// Work of a device, as a sweep wants it.
struct Piece {
    device: u32,
    work: DeviceWork,
    start: i64,
    end: i64,
    bytes: u64,
    name: Name,
}

fn read_shard(
    trace: &Trace,
    plan: &Devices,
    cut: Cut,
    shard: std::ops::Range<i64>,
) -> Result<Part> {
    let mut part = Part::new(cut);
    let range = Ns(shard.start)..Ns(shard.end);
    let mut spans: Vec<Span> = Vec::new();
    let mut early = i64::MAX;
    let mut prefetches = 0;
    for rows in trace.read::<Span>(range) {
        for span in rows? {
            part.rows += 1;
            // How long what has not ended took is not known.
            let Some(dur) = span.dur else { continue };
            let end = span.ts.saturating_add(dur);
            if span.ts.0 >= shard.end || (end.0 <= shard.start && span.ts.0 < shard.start) {
                continue;
            }
            if let Some(&rank) = plan.waits.get(&span.track) {
                let begins_here = span.ts.0 >= shard.start;
                if begins_here && WAITS.contains(&&*span.name) {
                    let waits = part.waits.entry((span.name.clone(), rank)).or_default();
                    waits.sum.add(dur.0);
                    waits.first = waits.first.into_iter().chain([(span.ts.0, dur.0)]).min();
                }
            } else if plan.streams.contains_key(&span.track) {
                early = early.min(span.ts.0);
                spans.push(span);
            } else if PREFETCH.iter().any(|name| span.name.starts_with(name)) {
                prefetches += u64::from(span.ts.0 >= shard.start);
            }
        }
    }
    let mut copies: HashMap<Id, Copy> = HashMap::new();
    if !spans.is_empty() {
        for rows in trace.read::<Copy>(Ns(early)..Ns(shard.end)) {
            copies.extend(rows?.into_iter().map(|copy| (copy.id, copy)));
        }
    }
    let mut pieces: Vec<Piece> = Vec::with_capacity(spans.len());
    for span in spans {
        let copy = copies.get(&span.id);
        let end = span.ts.saturating_add(span.dur.unwrap_or_default()).0;
        if let Some(copy) = copy.filter(|_| span.ts.0 >= shard.start)
            && copy.kind == CopyKind::PeerToPeer
            && let (Some(from), Some(to)) = (copy.from, copy.to)
        {
            let link = part.links.entry((from.0, to.0)).or_default();
            link.durations.add(end - span.ts.0);
            link.bytes += copy.bytes;
        }
        if let Some(copy) = copy.filter(|_| span.ts.0 >= shard.start) {
            let device = plan.streams[&span.track];
            part.moved.extend(moved(device, copy.kind, copy.bytes, span.ts.0, end));
        }
        pieces.push(Piece {
            device: plan.streams[&span.track],
            work: copy.map_or(DeviceWork::Kernel, |copy| DeviceWork::Copy(copy.kind)),
            start: span.ts.0,
            end,
            bytes: copy.map_or(0, |copy| copy.bytes),
            name: span.name,
        });
    }
    pieces.sort_by_key(|p| p.start);
    let mut sweep = Sweep::new(cut, shard.clone());
    for piece in &pieces {
        let Piece { device, work, start, end, bytes, .. } = *piece;
        sweep.push(device, work, start, end, bytes).map_err(|e| {
            anyhow!("work of device {} at {} ns is out of order", e.device, e.start)
        })?;
        part.last_end = part.last_end.max(end.min(shard.end));
        if work == DeviceWork::Kernel && start >= shard.start {
            let interval = cut.index(start).unwrap_or(0);
            part.kernels.entry(piece.name.clone()).or_default().add(interval, end - start);
        }
    }
    part.intervals = sweep.finish();
    part.prefetches = Some(prefetches);
    Ok(part)
}

/// A copy as one that goes in, out or across; none if it stays where it is.
fn moved(device: u32, kind: CopyKind, bytes: u64, start: i64, end: i64) -> Option<Moved> {
    let way = match kind {
        CopyKind::HostToDevice => Way::In,
        CopyKind::DeviceToHost => Way::Out,
        CopyKind::PeerToPeer => Way::Across,
        _ => return None,
    };
    Some(Moved { device, way, bytes, start, end })
}

/// A statement about the recording, with the rows that it rests on.
#[derive(Clone, Debug, Serialize)]
pub struct Statement {
    /// What kind of statement.
    kind: &'static str,
    /// It.
    says: String,
    /// A query that shows the rows, for DuckDB in the trace's directory.
    sql: Option<String>,
}

/// An anomalous interval.
#[derive(Clone, Debug, Serialize)]
struct Anomaly {
    interval: usize,
    from_s: f64,
    to_s: f64,
    exposed_ms: f64,
    beyond_ms: f64,
    /// Exposed time by kind of copy, ms.
    by_kind: BTreeMap<&'static str, f64>,
}

#[derive(Clone, Debug, Serialize)]
struct OfDevice {
    device: Device,
    kernels: u64,
    kernel_s: f64,
    copies: u64,
    copy_s: f64,
    exposed_s: f64,
    overlapped_s: f64,
    idle_s: f64,
    /// By which rule intervals are anomalous, and from what on, ms.
    rule: &'static str,
    fence_ms: f64,
    anomalous: usize,
    worst: Vec<Anomaly>,
    /// The intervals whose copies vary most: index, and standard deviation in ms.
    most_variable_copies: Vec<(usize, f64)>,
    /// The same of kernels.
    most_variable_kernels: Vec<(usize, f64)>,
}

#[derive(Clone, Debug, Serialize)]
struct OfKernel {
    name: String,
    count: u64,
    total_ms: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    std_us: f64,
    /// Whether the quantiles are exact, or good to 0.4 %.
    exact: bool,
}

/// All that is told.
#[derive(Clone, Debug, Serialize)]
struct Report {
    schema_version: u32,
    trace: String,
    seconds: f64,
    interval_ms: f64,
    intervals: usize,
    devices: Vec<OfDevice>,
    kernels: Vec<OfKernel>,
    /// Why streams were idle, and what ranges launched; not of databases as they are, nor of traces of
    /// more than twenty million spans.
    launches: Option<launches::Joined>,
    /// Against another recording.
    changes: Option<Vec<compare::Change>>,
    statements: Vec<Statement>,
    #[serde(skip)]
    outliers: Vec<Outliers>,
}

const NS_MS: f64 = 1e6;

fn of_device(
    device: &Device,
    intervals: &[Interval],
    cut: Cut,
    top: usize,
) -> (OfDevice, Outliers) {
    let sum = |of: fn(&Interval) -> i64| intervals.iter().map(of).sum::<i64>() as f64 / 1e9;
    let exposed: Vec<f64> = intervals.iter().map(|i| i.exposed_ns as f64).collect();
    // Less than a hundredth of an interval is no stall worth a word.
    let found = outliers(&exposed, cut.width as f64 / 100.0);
    let spread = |of: &dyn Fn(&Interval) -> f64| -> Vec<(usize, f64)> {
        let values: Vec<f64> = intervals.iter().map(of).collect();
        most_variable(&values).into_iter().map(|i| (i, values[i] / NS_MS)).collect()
    };
    let worst = found.found.iter().take(top).map(|outlier| {
        let interval = &intervals[outlier.index];
        let range = cut.range(outlier.index);
        let kinds = ALL_KINDS.into_iter().filter(|kind| is_copy(*kind));
        Anomaly {
            interval: outlier.index,
            from_s: (range.start - cut.origin) as f64 / 1e9,
            to_s: (range.end - cut.origin) as f64 / 1e9,
            exposed_ms: outlier.value / NS_MS,
            beyond_ms: outlier.beyond / NS_MS,
            by_kind: kinds
                .map(|kind| (kind.as_str(), interval.exposed_by[kind_index(kind)] as f64 / NS_MS))
                .filter(|(_, ms)| *ms > 0.0)
                .collect(),
        }
    });
    let told = OfDevice {
        device: device.clone(),
        kernels: intervals.iter().map(|i| i.kernels.count).sum(),
        kernel_s: sum(|i| i.kernel_ns),
        copies: intervals.iter().map(|i| i.all_copies().count).sum(),
        copy_s: sum(|i| i.copy_ns),
        exposed_s: sum(|i| i.exposed_ns),
        overlapped_s: sum(Interval::overlapped_ns),
        idle_s: intervals.len() as f64 * cut.width as f64 / 1e9 - sum(Interval::busy_ns),
        rule: found.rule.as_str(),
        fence_ms: found.fence / NS_MS,
        anomalous: found.found.len(),
        worst: worst.collect(),
        most_variable_copies: spread(&|i| i.all_copies().std()),
        most_variable_kernels: spread(&|i| i.kernels.std()),
    };
    (told, found)
}

/// Reads the whole, shard by shard.
fn read(trace: &Trace, plan: &Devices, args: &Variability) -> Result<(Part, Cut)> {
    let manifest = trace.manifest();
    let first = manifest.first_start(&["kernel", "copy"]);
    let (Some(first), Some(last)) = (first, manifest.end) else {
        bail!("`{}` holds neither kernels nor copies", trace.path().display());
    };
    let width = i64::try_from(args.interval.as_nanos()).unwrap_or(i64::MAX).max(1);
    let cut = Cut::of(first..last.max(first + 1), width, MOST).with_context(|| {
        format!(
            "{:.3} s in intervals of {:?} are more than {MOST} intervals; choose longer ones",
            (last - first) as f64 / 1e9,
            args.interval
        )
    })?;
    let rows: u64 = manifest.files_of("span").map(|f| f.rows).sum();
    let threads =
        args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let shards = args.shards.unwrap_or_else(|| {
        usize::try_from(rows / SHARD_ROWS).unwrap_or(1).max(if rows > 50_000 { threads } else { 1 })
    });
    let shards = shards.clamp(1, 1 << 16);
    let all = cut.all();
    let border = |i: usize| {
        let length = i128::from(all.end - all.start);
        all.start + (length * i as i128 / shards as i128) as i64
    };
    let mut whole = Part::new(cut);
    let work = |i: usize| read_shard(trace, plan, cut, border(i)..border(i + 1));
    in_order(shards, threads, work, |_, part| {
        whole.merge(part?);
        Ok(())
    })?;
    Ok((whole, cut))
}

/// What ranks and links are to each other.
fn statements(report: &mut Report, part: &Part, cut: Cut, lanes: &Rows) {
    let mut say = |kind, says: String, sql: Option<String>| {
        report.statements.push(Statement { kind, says, sql });
    };
    let sql_of = |table: &str, index: usize| {
        let range = cut.range(index);
        format!(
            "select * from '{table}/*.parquet' where ts between {} and {}",
            range.start, range.end
        )
    };
    if report.outliers.len() > 1 {
        let (found, by_chance) = shared(&report.outliers, report.intervals);
        for stall in found.iter().take(5) {
            let (from, to) = (cut.range(stall.index).start, cut.range(stall.index).end);
            let at = |ns: i64| (ns - cut.origin) as f64 / 1e9;
            say(
                "shared_stall",
                format!(
                    "{} of {} devices stall together from {:.3} to {:.3} s: {:.1} ms of exposed copy \
                     each on average",
                    stall.lanes,
                    report.outliers.len(),
                    at(from),
                    at(to),
                    stall.mean / NS_MS
                ),
                Some(sql_of("copy", stall.index)),
            );
        }
        if !found.is_empty() {
            say(
                "shared_stalls",
                format!(
                    "{} intervals are anomalous on several devices at once; by chance it would be {:.1}",
                    found.len(),
                    by_chance
                ),
                None,
            );
        }
    }
    // The collective that was called most often, by all ranks equally often.
    let mut by_name: BTreeMap<&Name, Vec<(i64, &Waits)>> = BTreeMap::new();
    for ((name, rank), waits) in &part.waits {
        by_name.entry(name).or_default().push((*rank, waits));
    }
    let most = by_name
        .into_iter()
        .filter(|(_, ranks)| ranks.len() > 1)
        .max_by_key(|(_, ranks)| ranks.iter().map(|(_, waits)| waits.sum.count).min());
    if let Some((name, ranks)) = most {
        let mean = |waits: &Waits| {
            let first = waits.first.map_or(0, |(_, dur)| dur);
            (waits.sum.sum - first) as f64 / (waits.sum.count.saturating_sub(1)).max(1) as f64
        };
        let means: Vec<f64> = ranks.iter().map(|(_, waits)| mean(waits)).collect();
        let told: Vec<String> = ranks
            .iter()
            .zip(&means)
            .map(|((rank, _), mean)| format!("rank {rank} {:.1} us", mean / 1e3))
            .collect();
        match straggler(&means, LEAST_WAIT) {
            Some(found) => say(
                "straggler",
                format!(
                    "rank {} is waited for: it spends least in {name} (mean without the first call: {})",
                    ranks[found.index].0,
                    told.join(", ")
                ),
                None,
            ),
            None => say(
                "no_straggler",
                format!(
                    "no rank is waited for more than the others in {name}: {}",
                    told.join(", ")
                ),
                None,
            ),
        }
    }
    let names: HashMap<u32, &str> = lanes.entity.iter().map(|e| (e.id.0, &*e.name)).collect();
    let links: Vec<(&(u32, u32), &Link)> =
        part.links.iter().filter(|(_, link)| link.durations.count >= 10).collect();
    let measured: Vec<(f64, f64)> =
        links.iter().map(|(_, l)| (l.durations.mean(), l.durations.min as f64)).collect();
    for slow in slow_links(&measured) {
        let ((from, to), link) = links[slow.index];
        let name = |id: &u32| names.get(id).copied().unwrap_or("?");
        say(
            "slow_link",
            format!(
                "copies from {} to {} are slow: {:.0} ns on average and {} ns at best, {:.0} ns on the \
                 other links ({} bytes each)",
                name(from),
                name(to),
                slow.value,
                link.durations.min,
                slow.others,
                link.bytes / link.durations.count.max(1)
            ),
            Some(format!(
                "select * from 'copy/*.parquet' where \"from\" = {from} and \"to\" = {to}"
            )),
        );
    }
    shifts(report, part, cut);
    managed(report, part);
    for of in &report.devices {
        if of.exposed_s > 0.5 * report.seconds && of.exposed_s > 5.0 * of.kernel_s {
            let text = format!(
                "{} waits for copies {:.0} % of the time and computes {:.0} %: it is bound by transfers",
                of.device.label(),
                100.0 * of.exposed_s / report.seconds,
                100.0 * of.kernel_s / report.seconds
            );
            report.statements.push(Statement { kind: "transfer_bound", says: text, sql: None });
        }
    }
}

/// Kernels that take longer from some time on, or less.
fn shifts(report: &mut Report, part: &Part, cut: Cut) {
    let moments = |sum: &Sum| Moments { count: sum.count, mean: sum.mean(), std: sum.std() };
    let all: i64 = part.kernels.values().map(|stat| stat.sum.sum).sum();
    let mut found = Vec::new();
    for (name, stat) in &part.kernels {
        let splits = stat.stretches.splits();
        let sides: Vec<_> = splits.iter().map(|(_, a, b)| (moments(a), moments(b))).collect();
        let Some(shift) = shift(&sides) else { continue };
        let more_ns = (shift.after.mean - shift.before.mean) * shift.after.count as f64;
        if more_ns.abs() >= all as f64 / 100.0 {
            found.push((name, splits[shift.index].0, shift, more_ns));
        }
    }
    found.sort_by(|a, b| b.3.abs().total_cmp(&a.3.abs()).then(a.0.cmp(b.0)));
    for (name, interval, shift, more_ns) in found.into_iter().take(3) {
        let at = (cut.range(interval).start - cut.origin) as f64 / 1e9;
        let short: String = name.chars().take(90).collect();
        let says = format!(
            "{short} took {:.3} us on average until {at:.3} s and {:.3} us from there on ({} and {} calls, \
             {:+.1} ms)",
            shift.before.mean / 1e3,
            shift.after.mean / 1e3,
            shift.before.count,
            shift.after.count,
            more_ns / NS_MS
        );
        let quoted = name.replace('\'', "''");
        let sql = format!(
            "select ts, dur from 'span/*.parquet' where name = '{quoted}' and ts >= {}",
            cut.range(interval).start
        );
        report.statements.push(Statement { kind: "kernel_shift", says, sql: Some(sql) });
    }
}

/// Devices that wait for managed memory which nobody had asked for ahead.
fn managed(report: &mut Report, part: &Part) {
    let kind = kind_index(CopyKind::Managed);
    let intervals = part.intervals.devices.iter().filter(|d| !d.is_empty());
    let mut told = Vec::new();
    for (of, intervals) in report.devices.iter().zip(intervals) {
        let exposed: i64 = intervals.iter().map(|i| i.exposed_by[kind]).sum();
        let (times, bytes) = intervals.iter().fold((0, 0u64), |(times, bytes), i| {
            (times + i.copies[kind].count, bytes.saturating_add(i.bytes[kind]))
        });
        if exposed as f64 / 1e9 <= 0.05 * report.seconds || part.prefetches.is_some_and(|n| n > 0) {
            continue;
        }
        let asked = match part.prefetches {
            Some(_) => "nothing asked for them ahead (cudaMemPrefetchAsync)",
            None => "whether anything asked for them ahead was not read; import the report to know",
        };
        told.push(Statement {
            kind: "missing_prefetch",
            says: format!(
                "{} waits {:.1} ms for managed memory: {bytes} bytes move on demand in {times} pieces, and \
                 {asked}",
                of.device.label(),
                exposed as f64 / NS_MS
            ),
            sql: Some("select * from 'copy/*.parquet' where kind = 'managed'".into()),
        });
    }
    report.statements.append(&mut told);
}

/// Data that go to and fro, and exchanges by way of the host.
fn exchanges(report: &mut Report, part: &Part, devices: &[Device]) {
    let mut copies = part.moved.clone();
    copies.sort_by_key(|copy| copy.start);
    let label = |number: u32| {
        devices.get(number as usize).map_or_else(|| number.to_string(), Device::label)
    };
    let mut told = Vec::new();
    for found in exchange::ping_pong(&copies).iter().take(3) {
        let says = format!(
            "{} bytes went to {} and back {} times ({:.1} ms): they could have stayed there",
            found.bytes,
            label(found.device),
            found.rounds,
            found.ns as f64 / NS_MS
        );
        told.push(Statement { kind: "ping_pong", says, sql: None });
    }
    for found in exchange::host_staged(&copies).iter().take(3) {
        let says = format!(
            "{} exchanges from {} to {} go by way of the host ({} bytes, {:.1} ms), and none directly",
            found.times,
            label(found.from),
            label(found.to),
            found.bytes,
            found.ns as f64 / NS_MS
        );
        told.push(Statement { kind: "host_staged", says, sql: None });
    }
    report.statements.append(&mut told);
}

/// What was read, of whatever it was.
struct Gathered {
    /// The trace, if it is one that lies here.
    trace: Option<Trace>,
    devices: Vec<Device>,
    part: Part,
    cut: Cut,
    lanes: Rows,
}

fn of_trace(path: &Path, args: &Variability) -> Result<Gathered> {
    let trace = Trace::open(path)?;
    let lanes = analysis::lanes(&trace)?;
    let plan = Devices::of(&lanes.entity, &lanes.track);
    if plan.devices.is_empty() {
        bail!(
            "`{}` holds no work of a GPU; `gpuwhy import` reads reports of profilers",
            path.display()
        );
    }
    let (part, cut) = read(&trace, &plan, args)?;
    let devices = plan.devices.iter().map(Device::of).collect();
    Ok(Gathered { trace: Some(trace), devices, part, cut, lanes })
}

/// Reports of Nsight Systems as they lie there: kernels and copies are swept over as they are read,
/// and nothing is kept of a kernel but what its name and its interval add up to.
fn of_reports(paths: &[PathBuf], args: &Variability) -> Result<Gathered> {
    let reports: Vec<nsys::Report> =
        paths.iter().map(nsys::Report::open).collect::<Result<_, _>>()?;
    let alignment = nsys::align(&reports)?;
    let threads = threads(args);
    // Copies are few: they are held, so that kernels can be met with them in the order of time.
    let mut copies: Vec<Vec<(nsys::Work, (i64, i64))>> = Vec::new();
    let mut origin = i64::MAX;
    for (report, shift) in reports.iter().zip(&alignment.shifts) {
        let mut all = Vec::new();
        each_work(report, nsys::Chunk::is_copies, threads, |work, device| {
            all.push((*work, device));
            Ok(())
        })?;
        all.sort_by_key(|(work, _)| work.start);
        let kernels = report.chunks().iter().find(|c| c.is_kernels());
        let first = kernels.map(|chunk| report.read_work(chunk)).transpose()?;
        let starts = first.iter().flat_map(|p| &p.work).chain(all.iter().map(|c| &c.0));
        let first = starts.map(|w| w.start).min();
        origin = origin.min(first.map_or(i64::MAX, |first| first.saturating_add(*shift)));
        copies.push(all);
    }
    if origin == i64::MAX {
        bail!("`{}` holds neither kernels nor copies", paths[0].display());
    }
    let width = i64::try_from(args.interval.as_nanos()).unwrap_or(i64::MAX).max(1);
    let length = width.saturating_mul(MOST as i64);
    let cut = Cut::of(origin..origin.saturating_add(length), width, MOST)
        .context("an interval that long is none")?;
    let mut devices: Vec<Device> = Vec::new();
    let mut part = Part::new(cut);
    for (number, report) in reports.iter().enumerate() {
        let mut one = OfReport {
            report,
            shift: alignment.shifts[number],
            rank: report.rank.map(i64::from),
            number,
            devices: &mut devices,
            known: HashMap::new(),
            cut,
            sweep: Sweep::new(cut, cut.all()),
            stats: Vec::new(),
            others: HashMap::new(),
            last_end: i64::MIN,
            rows: 0,
            moved: Vec::new(),
        };
        let mut waiting = copies[number].iter().peekable();
        each_work(report, nsys::Chunk::is_kernels, threads, |work, device| {
            while let Some((copy, device)) = waiting.next_if(|c| c.0.start <= work.start) {
                one.push(copy, *device)?;
            }
            one.push(work, device)
        })?;
        waiting.try_for_each(|(copy, device)| one.push(copy, *device))?;
        part.merge(one.finish(cut));
    }
    if cut.all().contains(&part.last_end) || part.last_end == cut.all().end {
        return Ok(Gathered { trace: None, devices, part, cut, lanes: Rows::default() });
    }
    bail!(
        "{:.3} s in intervals of {:?} are more than {MOST} intervals; choose longer ones",
        (part.last_end - origin) as f64 / 1e9,
        args.interval
    )
}

/// All work of these chunks of a report in order, each with the process and the ordinal of its device.
fn each_work(
    report: &nsys::Report,
    wanted: impl Fn(&nsys::Chunk) -> bool,
    threads: usize,
    mut take: impl FnMut(&nsys::Work, (i64, i64)) -> Result<()>,
) -> Result<()> {
    let chunks: Vec<&nsys::Chunk> = report.chunks().iter().filter(|c| wanted(c)).collect();
    let read = |i: usize| report.read_work(chunks[i]);
    in_order(chunks.len(), threads, read, |_, piece| {
        let piece = piece?;
        piece.work.iter().try_for_each(|work| take(work, piece.devices[work.device as usize]))
    })
}

/// One report, being swept over.
struct OfReport<'a> {
    report: &'a nsys::Report,
    shift: i64,
    rank: Option<i64>,
    number: usize,
    devices: &'a mut Vec<Device>,
    /// The numbers of devices, by process and ordinal.
    known: HashMap<(i64, i64), u32>,
    cut: Cut,
    sweep: Sweep,
    /// Kernels by the number of their name, where that is small.
    stats: Vec<Option<Box<Stat>>>,
    others: HashMap<i64, Stat>,
    last_end: i64,
    rows: u64,
    moved: Vec<Moved>,
}

impl OfReport<'_> {
    fn device(&mut self, key: (i64, i64)) -> u32 {
        if let Some(&number) = self.known.get(&key) {
            return number;
        }
        let gpu = self.report.gpu(key.0, key.1);
        let model = gpu.and_then(|gpu| gpu.name.as_deref()).unwrap_or_default();
        let name = format!("GPU {} {model}", gpu.map_or(key.1, |gpu| gpu.id));
        let name = name.trim().to_owned();
        let place = match gpu {
            Some(nsys::Gpu { uuid: Some(uuid), .. }) => uuid.to_string(),
            Some(nsys::Gpu { bus: Some(bus), .. }) => bus.to_string(),
            // Nothing tells it from other reports' devices.
            _ => format!("report {} {}", self.number, key.1),
        };
        let found = self.devices.iter().position(|d| d.place == place);
        let number = found.unwrap_or_else(|| {
            let entity = self.devices.len() as u32;
            self.devices.push(Device { entity, name, rank: self.rank, place });
            self.devices.len() - 1
        }) as u32;
        self.known.insert(key, number);
        number
    }

    #[inline]
    fn push(&mut self, work: &nsys::Work, device: (i64, i64)) -> Result<()> {
        let device = self.device(device);
        let (start, end) =
            (work.start.saturating_add(self.shift), work.end.saturating_add(self.shift));
        let what = work.copy.map_or(DeviceWork::Kernel, DeviceWork::Copy);
        self.sweep.push(device, what, start, end, work.bytes).map_err(|e| {
            anyhow!(
                "rows of `{}` do not lie in the order of their begin ({} ns); `gpuwhy import` sorts them",
                self.report.path().display(),
                e.start
            )
        })?;
        self.rows += 1;
        self.last_end = self.last_end.max(end);
        if let Some(kind) = work.copy {
            if self.moved.len() < MOVED {
                self.moved.extend(moved(device, kind, work.bytes, start, end));
            }
        } else {
            let stat = match usize::try_from(work.name) {
                Ok(name) if name < 1 << 20 => {
                    if name >= self.stats.len() {
                        self.stats.resize(name + 1, None);
                    }
                    &mut **self.stats[name].get_or_insert_default()
                }
                _ => self.others.entry(work.name).or_default(),
            };
            stat.add(self.cut.index(start).unwrap_or(0), end - start);
        }
        Ok(())
    }

    fn finish(self, cut: Cut) -> Part {
        let mut part = Part::new(cut);
        let numbered = self.stats.into_iter().enumerate();
        let numbered = numbered.filter_map(|(i, stat)| Some((i as i64, *stat?)));
        for (name, stat) in numbered.chain(self.others) {
            let unnamed = || Name::from("?");
            let name = self.report.string(name).cloned().unwrap_or_else(unnamed);
            part.kernels.entry(name).or_default().merge(&stat);
        }
        part.intervals = self.sweep.finish();
        (part.last_end, part.rows, part.moved) = (self.last_end, self.rows, self.moved);
        part
    }
}

fn threads(args: &Variability) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
    args.threads.unwrap_or_else(all)
}

/// Kernels by name, most time first.
fn kernels_of(part: &Part) -> Vec<OfKernel> {
    let mut kernels: Vec<(&Name, &Stat)> = part.kernels.iter().collect();
    kernels.sort_by(|a, b| b.1.sum.sum.cmp(&a.1.sum.sum).then(a.0.cmp(b.0)));
    kernels
        .into_iter()
        .map(|(name, Stat { sum, quantiles, .. })| OfKernel {
            name: name.to_string(),
            count: sum.count,
            total_ms: sum.sum as f64 / NS_MS,
            mean_us: sum.mean() / 1e3,
            p50_us: quantiles.quantile(0.5) / 1e3,
            p99_us: quantiles.quantile(0.99) / 1e3,
            max_us: sum.max as f64 / 1e3,
            std_us: sum.std() / 1e3,
            exact: quantiles.is_exact(),
        })
        .collect()
}

/// What people call the stream of a track.
fn stream_label(lanes: &Rows, track: TrackId) -> Option<String> {
    let track = lanes.track.iter().find(|t| t.id == track)?;
    let named = |id: EntityId| lanes.entity.iter().find(|e| e.id == id);
    let stream = named(track.entity)?;
    let gpu = stream.parent.and_then(named).map_or("", |e| &e.name);
    Some(format!("{gpu}, {}", stream.name))
}

/// Whether it is meant to be a trace that lies here, and not somebody else's tables.
fn is_trace(path: &Path) -> bool {
    path.is_dir() && !nsys::is_directory(path)
}

fn gather(inputs: &[PathBuf], args: &Variability) -> Result<Gathered> {
    if let Some(cluster) = &args.cluster {
        let [trace] = inputs else { bail!("the query engine reads one trace at a time") };
        let named = trace.to_str().context("a trace with a name that is no text")?;
        let mut gathered = remote::gather(named, cluster, args)?;
        if is_trace(trace) {
            // What else is told of a trace that lies here asks for its lanes.
            let trace = Trace::open(trace)?;
            gathered.lanes = analysis::lanes(&trace)?;
            gathered.trace = Some(trace);
        }
        return Ok(gathered);
    }
    match inputs {
        [trace] if is_trace(trace) => of_trace(trace, args),
        reports => of_reports(reports, args),
    }
}

/// Tells what differs.
pub fn run(args: &Variability) -> Result<ExitCode> {
    let began = Instant::now();
    let gathered = gather(&args.inputs, args)?;
    let Gathered { trace, devices, mut part, mut cut, lanes } = gathered;
    // What comes after the last work of a device is none of its intervals.
    cut.count = cut.index(part.last_end.saturating_sub(1)).map_or(1, |last| last + 1);
    part.intervals.cut = cut;
    for device in part.intervals.devices.iter_mut().filter(|d| !d.is_empty()) {
        device.resize(cut.count, Interval::default());
    }
    let inputs: Vec<String> = args.inputs.iter().map(|path| path.display().to_string()).collect();
    let mut report = Report {
        schema_version: 1,
        trace: inputs.join(", "),
        seconds: (part.last_end - cut.origin) as f64 / 1e9,
        interval_ms: cut.width as f64 / NS_MS,
        intervals: cut.count,
        devices: Vec::new(),
        kernels: kernels_of(&part),
        launches: None,
        changes: None,
        statements: Vec::new(),
        outliers: Vec::new(),
    };
    for (device, intervals) in devices.iter().zip(&part.intervals.devices) {
        if !intervals.is_empty() {
            let (told, found) = of_device(device, intervals, cut, args.top);
            report.devices.push(told);
            report.outliers.push(found);
        }
    }
    if let Some(trace) = &trace {
        report.launches = launches::join(trace, &lanes, |track| stream_label(&lanes, track))?;
    }
    if let Some(other) = &args.against {
        let before = gather(std::slice::from_ref(other), args)?;
        report.changes = Some(compare::changes(&kernels_of(&before.part), &report.kernels));
    }
    statements(&mut report, &part, cut, &lanes);
    exchanges(&mut report, &part, &devices);
    if let Some(trace) = &trace {
        // Those in which several devices stalled, or the one there is.
        let (shared, _) = shared(&report.outliers, report.intervals);
        let mut worst: Vec<usize> = match report.outliers.as_slice() {
            [one] => one.found.iter().map(|o| o.index).take(5).collect(),
            _ => shared.iter().map(|stall| stall.index).take(5).collect(),
        };
        worst.sort_unstable();
        let stalls: Vec<_> = worst.iter().map(|&i| cut.range(i)).collect();
        report.statements.append(&mut hosts::during(trace, &stalls)?);
    }
    if let Some(path) = &args.html {
        let page = page::of(&report, &part.intervals, trace.as_ref(), &lanes)?;
        std::fs::write(path, gpuwhy_report::variability::render(&page))
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text(&report, args.top));
        eprintln!("{} rows in {:.2} s", part.rows, began.elapsed().as_secs_f64());
    }
    let quiet = report.outliers.iter().all(|o| o.found.is_empty());
    Ok(if quiet && report.statements.is_empty() { exit::nothing() } else { ExitCode::SUCCESS })
}

fn text(report: &Report, top: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: {} devices, {:.3} s in {} intervals of {} ms",
        report.trace,
        report.devices.len(),
        report.seconds,
        report.intervals,
        report.interval_ms
    );
    for of in &report.devices {
        let _ = writeln!(
            out,
            "\n{}\n  {} kernels {:.3} s, {} copies {:.3} s: {:.3} s of them exposed, {:.3} s beneath \
             kernels; idle {:.3} s",
            of.device.label(),
            of.kernels,
            of.kernel_s,
            of.copies,
            of.copy_s,
            of.exposed_s,
            of.overlapped_s,
            of.idle_s
        );
        let _ = writeln!(
            out,
            "  {} intervals stall beyond {:.3} ms (rule {})",
            of.anomalous, of.fence_ms, of.rule
        );
        for anomaly in &of.worst {
            let kinds: Vec<String> =
                anomaly.by_kind.iter().map(|(kind, ms)| format!("{kind} {ms:.3} ms")).collect();
            let _ = writeln!(
                out,
                "    {:>9.3} to {:.3} s: {:.3} ms of exposed copy ({})",
                anomaly.from_s,
                anomaly.to_s,
                anomaly.exposed_ms,
                kinds.join(", ")
            );
        }
    }
    let _ = writeln!(out, "\nkernels by time");
    for kernel in report.kernels.iter().take(top) {
        let name: String = kernel.name.chars().take(90).collect();
        let _ = writeln!(
            out,
            "  {:>10.3} ms  {:>8} x {:>10.3} us (p50 {:.3}, p99 {:.3}, std {:.3})  {name}",
            kernel.total_ms,
            kernel.count,
            kernel.mean_us,
            kernel.p50_us,
            kernel.p99_us,
            kernel.std_us
        );
    }
    if let Some(joined) = &report.launches {
        let _ = writeln!(out, "\nidle between kernels, s: host wait, kernel wait, other");
        for of in &joined.idle {
            let _ = writeln!(
                out,
                "  {:>9.3} {:>9.3} {:>9.3}  {} ({} kernels)",
                of.host_wait_s, of.kernel_wait_s, of.other_s, of.stream, of.kernels
            );
        }
        if !joined.ranges.is_empty() {
            let _ = writeln!(out, "\nranges by the device time launched within them");
        }
        for of in joined.ranges.iter().take(top) {
            let name: String = of.name.chars().take(90).collect();
            let _ = writeln!(
                out,
                "  {:>10.3} ms on devices, {:>10.3} ms on the host, {:>7} x {}: {name}",
                of.device_ms, of.host_ms, of.ranges, of.lane
            );
        }
    }
    if let Some(changes) = &report.changes {
        let _ = writeln!(out, "\nkernels against the other recording, ms: by count, by duration");
        for change in changes.iter().take(2 * top) {
            let name: String = change.name.chars().take(90).collect();
            let how = match (&change.before, &change.after, &change.built_as) {
                (None, _, Some(_)) => " (built otherwise)",
                (None, _, None) => " (new)",
                (_, None, Some(_)) => " (built otherwise now)",
                (_, None, None) => " (gone)",
                _ => "",
            };
            let _ = writeln!(
                out,
                "  {:>+10.3} ({:+.3}, {:+.3})  {name}{how}",
                change.delta_ms, change.by_count_ms, change.by_duration_ms
            );
        }
    }
    if !report.statements.is_empty() {
        let _ = writeln!(out, "\nfindings");
        for statement in &report.statements {
            let _ = writeln!(out, "  - {}", statement.says);
            if let Some(sql) = &statement.sql {
                let _ = writeln!(out, "    {sql}");
            }
        }
    }
    out
}
