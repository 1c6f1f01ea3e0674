//! Which intervals, ranks and links of GPU work differ from the others.
//!
//! The time is cut into intervals, and what devices did is added up interval by interval: of a trace
//! in shards that threads share (`trace_rows`), of profilers' reports without importing them
//! (`reports`), or by the query engine on a cluster (`remote`). All three hand back sums of whole
//! numbers, so the answer does not depend on how many shards, threads or machines there were. What
//! the sums say is then stated, one kind of statement a file (`statements`).

mod clocks;
mod compare;
mod gaps;
mod kernel_names;
mod kinds;
mod launches;
mod managed;
mod page;
mod path;
mod remote;
mod reports;
mod statements;
mod sums;
mod trace_rows;
mod without_devices;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuwhy_derive::Sum;
use gpuwhy_derive::communication::Communicated;
use gpuwhy_derive::devices::Devices;
use gpuwhy_derive::sweep::{ALL_KINDS, Cut, Interval, is_copy, kind_index};
use gpuwhy_diagnose::variability::{Outliers, most_variable, outliers};
use gpuwhy_formats::importer::GpuWork;
use gpuwhy_formats::importers;
use gpuwhy_report::timeline;
use gpuwhy_schema::{CopyKind, EntityId, Name, Ns, Rows, TrackId};
use gpuwhy_store::IncompleteSource;
use serde::Serialize;

pub use crate::settings::Between;
pub use compare::{Change, Side, notable_in_words};
pub use gaps::{Called, StreamGap};
pub use kernel_names::Replaced;
pub use launches::{Launches, RangeWork, StreamIdle};
pub use managed::{Managed, ManagedDevice, MovedMemory, StalledKernel};
pub use path::{CriticalPath, PathName, PathPart};
pub use statements::Statement;

use crate::error::{Error, Result};
use crate::settings;
use crate::source::TraceSource;
use clocks::Clocks;
use statements::Statements;
use sums::{KernelSum, Sums};

/// The most intervals: more are no overview.
const INTERVALS: usize = 1 << 16;
/// Collectives whose length is waiting for the last rank.
const WAITS: &[&str] =
    &["MPI_Barrier", "MPI_Allreduce", "MPI_Allgather", "MPI_Alltoall", "MPI_Reduce_scatter"];
/// Calls that ask for managed memory ahead of its use.
const PREFETCH: &[&str] = &["cudaMemPrefetch", "cuMemPrefetch"];
const NS_MS: f64 = 1e6;
/// What a report says where it is not of the whole trace.
pub const NOT_WHOLE: &str = "communication, managed memory, gaps, ranges and the critical path, for which the whole \
                             trace must be on this machine and have no more than 20 million spans";
/// The rule of devices whose own times cannot be compared with each other.
pub const SEVERAL_FILES: &str = "several_files";
/// What a report says where no call is known that launched work.
pub const NO_PATH: &str = "critical path: not found, since the trace holds no launch of its work";

/// What to read, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long an interval is; chosen from the length of the recording if `None`.
    pub interval: Option<Duration>,
    /// How many anomalous intervals are listed for each device, and how many gaps of streams in all.
    pub top: usize,
    /// How many shards of time; chosen by the number of rows if `None`.
    pub shards: Option<usize>,
    /// How many threads; one a CPU if `None`.
    pub threads: Option<usize>,
    /// The query engine that reads the rows: a scheduler's address, or `local`.
    pub cluster: Option<String>,
}

impl Options {
    fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
        self.threads.unwrap_or_else(all)
    }
}

/// A device, and whose it is.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Its entity.
    pub entity: u32,
    /// Its name.
    pub name: String,
    /// The rank that used it.
    pub rank: Option<i64>,
    /// What distinguishes it from others: UUID, PCI address, or report and ordinal.
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

    /// Its rank and name, for users.
    pub fn label(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank}, {}", self.name),
            None => self.name.clone(),
        }
    }
}

/// An anomalous interval.
#[derive(Clone, Debug, Serialize)]
pub struct Anomaly {
    /// Its number.
    pub interval: usize,
    /// Its begin, seconds from the first work.
    pub from_s: f64,
    /// Its end.
    pub to_s: f64,
    /// Copy time that no kernel covered, ms.
    pub exposed_ms: f64,
    /// By how much that is beyond the fence, ms.
    pub beyond_ms: f64,
    /// Exposed time by kind of copy, ms.
    pub by_kind: BTreeMap<&'static str, f64>,
}

/// Communication of one device with others: kernels of communication libraries, and copies between
/// devices.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CommunicationSummary {
    /// Kernels that communicate.
    pub kernels: u64,
    /// All of them, s.
    pub kernels_s: f64,
    /// Copies to and from other devices.
    pub peer_copies: u64,
    /// All of them, s.
    pub peer_copies_s: f64,
    /// Time in which something communicated, s.
    pub total_s: f64,
    /// Of that, while another kernel computed, s.
    pub overlapped_s: f64,
    /// Of that, while nothing computed, s.
    pub exposed_s: f64,
    /// Time in which a kernel ran that does not communicate, s.
    pub compute_s: f64,
}

impl CommunicationSummary {
    fn of(found: &Communicated, kernel_s: f64) -> CommunicationSummary {
        let s = |ns: i64| ns as f64 / 1e9;
        CommunicationSummary {
            kernels: found.kernels,
            kernels_s: s(found.kernels_ns),
            peer_copies: found.copies,
            peer_copies_s: s(found.copies_ns),
            total_s: s(found.total_ns),
            overlapped_s: s(found.total_ns - found.exposed_ns),
            exposed_s: s(found.exposed_ns),
            compute_s: kernel_s - s(found.kernels_exposed_ns),
        }
    }
}

/// What one device did.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceSummary {
    /// The device.
    pub device: Device,
    /// Kernels.
    pub kernels: u64,
    /// Time in which a kernel ran, s.
    pub kernel_s: f64,
    /// Copies.
    pub copies: u64,
    /// Time in which a copy ran, s.
    pub copy_s: f64,
    /// Of that, while no kernel ran, s.
    pub exposed_s: f64,
    /// Of that, while a kernel ran, s.
    pub overlapped_s: f64,
    /// Time in which neither ran, from the first work of all devices to the last, s.
    pub idle_s: f64,
    /// Communication with other devices; `None` if there is none, or if it was not looked for.
    pub communication: Option<CommunicationSummary>,
    /// Time in which a kernel ran and waited for managed memory, s.
    pub fault_stall_s: Option<f64>,
    /// The rule by which intervals are anomalous: `iqr`, `mad`, `effect`, or `too_few` if there are too
    /// few to compare, or `several_files` if its work was read from files whose clocks are not known well enough.
    pub rule: &'static str,
    /// Exposed time from which on an interval is anomalous, ms; null if there are too few to compare.
    pub fence_ms: f64,
    /// How many are.
    pub anomalous: usize,
    /// The worst of them.
    pub worst: Vec<Anomaly>,
    /// The intervals whose copies vary most: number, and standard deviation in ms.
    pub most_variable_copies: Vec<(usize, f64)>,
    /// The same of kernels.
    pub most_variable_kernels: Vec<(usize, f64)>,
}

/// The copies of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct CopySummary {
    /// The kind: `h2d`, `d2h`, `d2d`, `p2p`, `h2h`, `managed`, `other`; or `memset`.
    pub kind: &'static str,
    /// How many.
    pub count: u64,
    /// How many bytes.
    pub bytes: u64,
    /// All of them, ms.
    pub total_ms: f64,
    /// Mean duration, µs.
    pub mean_us: f64,
}

impl CopySummary {
    /// How fast they were; `None` of memsets, which go over no link and whose sizes some profilers make up.
    pub fn gb_per_s(&self) -> Option<f64> {
        // Bytes per ns are GB/s.
        (self.kind != CopyKind::Memset.as_str())
            .then(|| self.bytes as f64 / (self.total_ms * NS_MS).max(1.0))
    }
}

/// The kernels of one name.
#[derive(Clone, Debug, Serialize)]
pub struct KernelSummary {
    /// The name.
    pub name: String,
    /// How many.
    pub count: u64,
    /// All of them, ms.
    pub total_ms: f64,
    /// Mean duration, µs.
    pub mean_us: f64,
    /// Median duration, µs.
    pub p50_us: f64,
    /// 99th percentile of the duration, µs.
    pub p99_us: f64,
    /// Longest duration, µs.
    pub max_us: f64,
    /// Standard deviation of the duration, µs.
    pub std_us: f64,
    /// Whether the quantiles are exact, or good to 0.4 %.
    pub exact: bool,
}

/// All that is said of a recording.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    schema_version: u32,
    /// The inputs.
    pub trace: String,
    /// From the first work of a device to the last, s.
    pub seconds: f64,
    /// How long an interval is, ms.
    pub interval_ms: f64,
    /// Whether that was chosen from the length of the recording.
    pub interval_chosen: bool,
    /// How many there are.
    pub intervals: usize,
    /// Each device.
    pub devices: Vec<DeviceSummary>,
    /// Kernels by name, most time first.
    pub kernels: Vec<KernelSummary>,
    /// Copies by kind, most time first.
    pub copies: Vec<CopySummary>,
    /// Why streams were idle, and what ranges launched; `None` for reports that were not imported, for
    /// traces of more than twenty million spans, and for traces on another machine.
    pub launches: Option<Launches>,
    /// What the end of the recording waited for, back to its begin; `None` where `launches` is, or if no call
    /// is known that launched work.
    pub critical_path: Option<CriticalPath>,
    /// Managed memory; `None` if there is none, or where `launches` is `None` for a trace.
    pub managed: Option<Managed>,
    /// Whether communication and managed memory were looked for: not in traces that are too large or on
    /// another machine.
    pub whole: bool,
    /// Against another recording.
    pub changes: Option<Vec<Change>>,
    /// Settings in which both recordings differ, where both recorded them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<Between>,
    /// Whether something differs from the others: an interval of a device is anomalous, or there is a finding.
    pub found: bool,
    /// What stands out.
    pub statements: Vec<Statement>,
    /// What was looked at and is no finding: it is as it should be, or as chance makes it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub no_findings: Vec<Statement>,
    /// What is not said, because the clocks of different files are not known well enough, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_said: Vec<String>,
    /// Imported files, or reports that were read as they are, of which rows were lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rests_on_incomplete: Vec<IncompleteSource>,
    #[serde(skip)]
    outliers: Vec<Outliers>,
    /// The number of each device of `devices` among all, those included that did nothing.
    #[serde(skip)]
    numbers: Vec<u32>,
}

impl Report {
    /// Whether something worth mentioning changed against the other recording; `None` without one.
    pub fn has_changed(&self) -> Option<bool> {
        let changes = self.changes.as_ref()?;
        Some(changes.iter().any(|change| change.notable))
    }

    /// Decimals of a time in s, so that stretches of a short recording are told apart.
    pub fn decimals(&self) -> usize {
        if self.seconds < 2.0 { 6 } else { 3 }
    }

    /// Takes what is said of the recording.
    fn state(&mut self, said: Statements) {
        let Statements { findings, no_findings, not_said } = said;
        (self.statements, self.no_findings, self.not_said) = (findings, no_findings, not_said);
        let stalls = self.outliers.iter().any(|o| !o.found.is_empty());
        self.found = stalls || !self.statements.is_empty();
    }
}

/// A report, with what its page needs besides.
pub struct Variability {
    /// The report.
    pub report: Report,
    /// Rows that were read.
    pub rows: u64,
    gathered: Gathered,
}

/// What was read.
struct Gathered {
    /// The trace, if it is one on this machine.
    source: Option<TraceSource>,
    /// The reports that were read as they are.
    reports: Vec<Box<dyn GpuWork>>,
    devices: Vec<Device>,
    /// Whose times can be compared, by the numbers of devices.
    clocks: Clocks,
    sums: Sums,
    cut: Cut,
    /// The entities that are named in statements.
    names: Rows,
    /// What is found by looking at all work at once, where that was done already.
    whole: Option<launches::Whole>,
    /// The files of which rows were lost.
    incomplete: Vec<IncompleteSource>,
}

/// Finds what differs in a trace or in profilers' reports; `against` is another recording of the
/// same work, from before.
///
/// # Errors
/// The inputs cannot be read, hold no GPU work, or the interval does not suit them.
pub fn variability(
    inputs: &[PathBuf],
    against: Option<&PathBuf>,
    options: &Options,
) -> Result<Variability> {
    let mut gathered = gather(inputs, options)?;
    gathered.trim(options)?;
    if let Some(source) = &gathered.source {
        let names = source.entities_and_tracks();
        let question = launches::Question {
            devices: &Devices::of(&names.entity, &names.track),
            label: |track| stream_label(names, track),
            gaps: options.top,
            columns: columns(gathered.cut, gathered.cut.count),
        };
        gathered.whole = launches::join(source, &question)?;
    }
    let mut report = gathered.report(inputs, options);
    if let Some(other) = against {
        let before = gather(std::slice::from_ref(other), options)?;
        let catalog = |of: &Gathered| of.source.as_ref().map(|s| s.entities_and_tracks().clone());
        if let (Some(before), Some(now)) = (catalog(&before), catalog(&gathered)) {
            report.settings = settings::between(&before, &now);
        }
        let before = compare::Recording::of(&before.sums);
        report.changes = Some(compare::changes(&before, &compare::Recording::of(&gathered.sums)));
    }
    report.state(statements::all(&report, &gathered)?);
    let rows = gathered.sums.rows;
    Ok(Variability { report, rows, gathered })
}

impl Variability {
    /// The page with pictures.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn html(&self) -> Result<String> {
        let page = page::of(&self.report, &self.gathered)?;
        Ok(gpuwhy_report::variability::render(&page))
    }
}

/// Whether a path is a trace of gpuwhy, and not a directory of another tool.
fn is_trace(path: &Path) -> bool {
    path.is_dir() && !matches!(importers::recognise(path), Ok(Some(_)))
}

fn gather(inputs: &[PathBuf], options: &Options) -> Result<Gathered> {
    if let Some(cluster) = &options.cluster {
        let [trace] = inputs else { return Err(Error::OneTraceOnly { count: inputs.len() }) };
        let name = trace.to_str().ok_or_else(|| Error::NotUtf8 { path: trace.clone() })?;
        let mut gathered = remote::gather(name, cluster, options)?;
        if is_trace(trace) {
            // Statements about a trace on this machine need its entities and tracks.
            let source = TraceSource::open(trace)?;
            gathered.names = source.entities_and_tracks().clone();
            let names = &gathered.names;
            let devices = Devices::of(&names.entity, &names.track);
            gathered.clocks = Clocks::of_trace(&devices, &names.track, &names.source);
            gathered.incomplete = source.incomplete();
            gathered.source = Some(source);
        }
        return Ok(gathered);
    }
    match inputs {
        [trace] if is_trace(trace) => trace_rows::gather(trace, options),
        reports => reports::gather(reports, options),
    }
}

impl Gathered {
    /// Drops the intervals after the last work of a device.
    fn trim(&mut self, options: &Options) -> Result<()> {
        let (cut, sums) = (&mut self.cut, &mut self.sums);
        let length = sums.last_end.saturating_sub(cut.origin);
        if let Some(interval) = options.interval
            && interval_ns(interval) > length
        {
            return Err(too_long(interval, length as f64 / 1e9));
        }
        cut.count = cut.index(sums.last_end.saturating_sub(1)).map_or(1, |last| last + 1);
        sums.intervals.cut = *cut;
        for device in sums.intervals.devices.iter_mut().filter(|d| !d.is_empty()) {
            device.resize(cut.count, Interval::default());
        }
        // Those of one file are in order already.
        if !sums.moved.is_sorted_by_key(|copy| copy.start) {
            sums.moved.sort_by_key(|copy| copy.start);
        }
        Ok(())
    }

    fn report(&self, inputs: &[PathBuf], options: &Options) -> Report {
        let Gathered { sums, cut, whole, .. } = self;
        let inputs: Vec<String> = inputs.iter().map(|path| path.display().to_string()).collect();
        let mut report = Report {
            schema_version: 1,
            trace: inputs.join(", "),
            seconds: (sums.last_end - cut.origin) as f64 / 1e9,
            interval_ms: cut.width as f64 / NS_MS,
            interval_chosen: options.interval.is_none(),
            intervals: cut.count,
            devices: Vec::new(),
            kernels: kernels_of(sums),
            copies: copies_of(sums),
            launches: whole.as_ref().and_then(|whole| whole.launches.clone()),
            critical_path: whole.as_ref().and_then(|whole| whole.path.clone()),
            managed: whole.as_ref().and_then(|whole| whole.managed.clone()),
            whole: whole.is_some(),
            changes: None,
            settings: Vec::new(),
            found: false,
            statements: Vec::new(),
            no_findings: Vec::new(),
            not_said: Vec::new(),
            rests_on_incomplete: self.incomplete.clone(),
            outliers: Vec::new(),
            numbers: Vec::new(),
        };
        let numbered = self.devices.iter().zip(&sums.intervals.devices).enumerate();
        // The place of each device in the report: devices that did nothing are left out.
        let mut places: BTreeMap<usize, usize> = BTreeMap::new();
        for (number, (device, intervals)) in numbered.filter(|(_, (_, i))| !i.is_empty()) {
            let of = OneDevice { device, intervals, cut: *cut, last_end: sums.last_end };
            let (mut summary, mut found) = of.summary(options.top);
            if !self.clocks.within(number as u32).carries(Ns(cut.width / 2)) {
                found.found.clear();
                (summary.rule, summary.fence_ms) = (SEVERAL_FILES, f64::INFINITY);
                (summary.anomalous, summary.worst) = (0, Vec::new());
            }
            let communicated = whole.as_ref().and_then(|whole| whole.communication.get(number));
            summary.communication = communicated
                .map(|columns| Communicated::sum(columns))
                .filter(|of| of.kernels + of.copies > 0)
                .map(|of| CommunicationSummary::of(&of, summary.kernel_s));
            places.insert(number, report.devices.len());
            report.devices.push(summary);
            report.outliers.push(found);
            report.numbers.push(number as u32);
        }
        if let Some(managed) = &mut report.managed {
            managed.renumber(&places);
            for of in &managed.devices {
                report.devices[of.device].fault_stall_s = Some(of.stalled_ms / 1e3);
            }
        }
        report
    }
}

/// What is known of one device.
struct OneDevice<'a> {
    device: &'a Device,
    intervals: &'a [Interval],
    cut: Cut,
    /// End of the last work of all devices.
    last_end: i64,
}

impl OneDevice<'_> {
    fn summary(&self, top: usize) -> (DeviceSummary, Outliers) {
        let OneDevice { device, intervals, cut, last_end } = *self;
        let sum = |of: fn(&Interval) -> i64| intervals.iter().map(of).sum::<i64>() as f64 / 1e9;
        let exposed: Vec<f64> = intervals.iter().map(|i| i.exposed_ns as f64).collect();
        // Less than a hundredth of an interval is no stall worth mentioning.
        let least = cut.width as f64 / 100.0;
        let found = outliers(&exposed, least);
        // Where most intervals have no stall, the rule's own fence is 0, and this is what decides.
        let fence = found.fence.max(found.median + least);
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
                to_s: (range.end.min(last_end) - cut.origin) as f64 / 1e9,
                exposed_ms: outlier.value / NS_MS,
                beyond_ms: (outlier.value - fence) / NS_MS,
                by_kind: kinds
                    .map(|kind| {
                        (kind.as_str(), interval.exposed_by[kind_index(kind)] as f64 / NS_MS)
                    })
                    .filter(|(_, ms)| *ms > 0.0)
                    .collect(),
            }
        });
        let busy: i64 = intervals.iter().map(Interval::busy_ns).sum();
        let idle_ns = (last_end - cut.origin).saturating_sub(busy).max(0);
        let summary = DeviceSummary {
            device: device.clone(),
            kernels: intervals.iter().map(|i| i.kernels.count).sum(),
            kernel_s: sum(|i| i.kernel_ns),
            copies: intervals.iter().map(|i| i.all_copies().count).sum(),
            copy_s: sum(|i| i.copy_ns),
            exposed_s: sum(|i| i.exposed_ns),
            overlapped_s: sum(Interval::overlapped_ns),
            // The last interval ends with the recording.
            idle_s: idle_ns as f64 / 1e9,
            communication: None,
            fault_stall_s: None,
            rule: found.rule.as_str(),
            fence_ms: fence / NS_MS,
            anomalous: found.found.len(),
            worst: worst.collect(),
            most_variable_copies: spread(&|i| i.all_copies().std()),
            most_variable_kernels: spread(&|i| i.kernels.std()),
        };
        (summary, found)
    }
}

/// Copies by kind, most time first.
fn copies_of(sums: &Sums) -> Vec<CopySummary> {
    let mut copies: Vec<CopySummary> = Vec::new();
    for kind in ALL_KINDS {
        let (mut sum, mut bytes) = (Sum::default(), 0u64);
        for interval in sums.intervals.devices.iter().flatten() {
            sum.merge(&interval.copies[kind_index(kind)]);
            bytes = bytes.saturating_add(interval.bytes[kind_index(kind)]);
        }
        if sum.count > 0 {
            copies.push(CopySummary {
                kind: kind.as_str(),
                count: sum.count,
                bytes,
                total_ms: sum.sum as f64 / NS_MS,
                mean_us: sum.mean() / 1e3,
            });
        }
    }
    copies.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms).then(a.kind.cmp(b.kind)));
    copies
}

/// Kernels by name, most time first.
fn kernels_of(sums: &Sums) -> Vec<KernelSummary> {
    let mut kernels: Vec<(&Name, &KernelSum)> = sums.kernels.iter().collect();
    kernels.sort_by(|a, b| b.1.sum.sum.cmp(&a.1.sum.sum).then(a.0.cmp(b.0)));
    kernels
        .into_iter()
        .map(|(name, KernelSum { sum, quantiles, .. })| KernelSummary {
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

/// The displayed name of the stream of a track: its GPU and its name.
fn stream_label(names: &Rows, track: TrackId) -> Option<String> {
    let track = names.track.iter().find(|t| t.id == track)?;
    let named = |id: EntityId| names.entity.iter().find(|e| e.id == id);
    let stream = named(track.entity)?;
    let gpu = stream.parent.and_then(named).map_or("", |e| &e.name);
    Some(format!("{gpu}, {}", stream.name))
}

/// The length of an interval in ns.
fn interval_ns(interval: Duration) -> i64 {
    i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX).max(1)
}

/// The length of intervals that is asked for, or that suits work which begins within `length` ns.
fn width_for(interval: Option<Duration>, length: i64) -> i64 {
    interval.map_or_else(|| Cut::usual_width(length, INTERVALS), interval_ns)
}

/// The columns of a picture of the first `used` intervals of a cut: whole intervals, as many in each column.
fn columns(cut: Cut, used: usize) -> Cut {
    let each = used.div_ceil(timeline::COLUMNS).max(1);
    let coarse = cut.width.saturating_mul(each as i64);
    let count = cut.count.div_ceil(each);
    match coarse.checked_mul(count as i64).and_then(|length| cut.origin.checked_add(length)) {
        Some(_) => Cut { origin: cut.origin, width: coarse, count },
        // At the end of all time there is no room for a whole last column.
        None => cut,
    }
}

/// Cuts a range of time into intervals; its last work of a device begins at `begins`.
fn cut_time(range: Range<i64>, begins: i64, interval: Option<Duration>) -> Result<Cut> {
    let width = width_for(interval, begins.saturating_sub(range.start));
    // A width that was chosen suits the work of devices, and need not suit all that the host did later.
    let all = width.saturating_mul(INTERVALS as i64);
    let end = match interval {
        None => range.end.min(range.start.saturating_add(all)),
        Some(_) => range.end,
    };
    Cut::of(range.start..end, width, INTERVALS)
        .ok_or_else(|| too_short(width, range.end - range.start))
}

fn too_short(width: i64, length_ns: i64) -> Error {
    let least = (length_ns / INTERVALS as i64 + 1).max(1) as u64;
    Error::IntervalTooShort {
        interval: Duration::from_nanos(width as u64),
        seconds: length_ns as f64 / 1e9,
        most: INTERVALS,
        least: Duration::from_micros(least.div_ceil(1000)),
    }
}

fn too_long(interval: Duration, seconds: f64) -> Error {
    // The longest whole number of ms, or of µs, that leaves at least one interval.
    let at_most = match seconds {
        long if long >= 0.01 => Duration::from_millis((long * 1e3).floor() as u64),
        short => Duration::from_micros((short * 1e6).floor().max(1.0) as u64),
    };
    Error::IntervalTooLong { interval, seconds, at_most }
}
