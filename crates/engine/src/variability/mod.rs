//! Which intervals, ranks and links of GPU work differ from the others.
//!
//! The time is cut into intervals, and what devices did is added up interval by interval: of a trace
//! in shards that threads share (`trace_rows`), of profilers' reports without importing them
//! (`reports`), or by the query engine on a cluster (`remote`). All three hand back sums of whole
//! numbers, so the answer does not depend on how many shards, threads or machines there were. What
//! the sums say is then stated, one kind of statement a file (`statements`).

mod compare;
mod launches;
mod page;
mod remote;
mod reports;
mod statements;
mod sums;
mod trace_rows;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuwhy_derive::sweep::{ALL_KINDS, Cut, Interval, is_copy, kind_index};
use gpuwhy_diagnose::variability::{Outliers, most_variable, outliers};
use gpuwhy_formats::importers;
use gpuwhy_schema::{EntityId, Name, Rows, TrackId};
use serde::Serialize;

pub use compare::{Change, Side};
pub use launches::{Launches, RangeWork, StreamIdle};
pub use statements::Statement;

use crate::error::{Error, Result};
use crate::source::TraceSource;
use sums::{KernelSum, Sums};

/// The most intervals: more are no overview.
const INTERVALS: usize = 1 << 16;
/// The length of an interval where none is asked for.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
/// Collectives whose length is waiting for the last rank.
const WAITS: &[&str] =
    &["MPI_Barrier", "MPI_Allreduce", "MPI_Allgather", "MPI_Alltoall", "MPI_Reduce_scatter"];
/// Calls that ask for managed memory ahead of its use.
const PREFETCH: &[&str] = &["cudaMemPrefetch", "cuMemPrefetch"];
const NS_MS: f64 = 1e6;

/// What to read, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long an interval is; [`DEFAULT_INTERVAL`] if `None`.
    pub interval: Option<Duration>,
    /// How many anomalous intervals are listed for each device.
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
    /// Time in which neither ran, s.
    pub idle_s: f64,
    /// The rule by which intervals are anomalous: `iqr` or `mad`.
    pub rule: &'static str,
    /// Exposed time from which on an interval is anomalous, ms.
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
    /// How many there are.
    pub intervals: usize,
    /// Each device.
    pub devices: Vec<DeviceSummary>,
    /// Kernels by name, most time first.
    pub kernels: Vec<KernelSummary>,
    /// Why streams were idle, and what ranges launched; `None` for reports that were not imported and
    /// for traces of more than twenty million spans.
    pub launches: Option<Launches>,
    /// Against another recording.
    pub changes: Option<Vec<Change>>,
    /// What stands out.
    pub statements: Vec<Statement>,
    #[serde(skip)]
    outliers: Vec<Outliers>,
}

impl Report {
    /// Whether nothing differs from the others.
    pub fn is_quiet(&self) -> bool {
        self.outliers.iter().all(|o| o.found.is_empty()) && self.statements.is_empty()
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
    devices: Vec<Device>,
    sums: Sums,
    cut: Cut,
    /// The entities that are named in statements.
    names: Rows,
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
    let mut report = gathered.report(inputs, options);
    if let Some(source) = &gathered.source {
        let names = source.entities_and_tracks();
        report.launches = launches::join(source, |track| stream_label(names, track))?;
    }
    if let Some(other) = against {
        let before = gather(std::slice::from_ref(other), options)?;
        report.changes = Some(compare::changes(&kernels_of(&before.sums), &report.kernels));
    }
    report.statements = statements::all(&report, &gathered)?;
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
            && interval_ns(Some(interval)) > length
        {
            return Err(too_long(Some(interval), length as f64 / 1e9));
        }
        cut.count = cut.index(sums.last_end.saturating_sub(1)).map_or(1, |last| last + 1);
        sums.intervals.cut = *cut;
        for device in sums.intervals.devices.iter_mut().filter(|d| !d.is_empty()) {
            device.resize(cut.count, Interval::default());
        }
        Ok(())
    }

    fn report(&self, inputs: &[PathBuf], options: &Options) -> Report {
        let Gathered { sums, cut, .. } = self;
        let inputs: Vec<String> = inputs.iter().map(|path| path.display().to_string()).collect();
        let mut report = Report {
            schema_version: 1,
            trace: inputs.join(", "),
            seconds: (sums.last_end - cut.origin) as f64 / 1e9,
            interval_ms: cut.width as f64 / NS_MS,
            intervals: cut.count,
            devices: Vec::new(),
            kernels: kernels_of(sums),
            launches: None,
            changes: None,
            statements: Vec::new(),
            outliers: Vec::new(),
        };
        for (device, intervals) in self.devices.iter().zip(&sums.intervals.devices) {
            if !intervals.is_empty() {
                let (summary, found) = device_summary(device, intervals, *cut, options.top);
                report.devices.push(summary);
                report.outliers.push(found);
            }
        }
        report
    }
}

fn device_summary(
    device: &Device,
    intervals: &[Interval],
    cut: Cut,
    top: usize,
) -> (DeviceSummary, Outliers) {
    let sum = |of: fn(&Interval) -> i64| intervals.iter().map(of).sum::<i64>() as f64 / 1e9;
    let exposed: Vec<f64> = intervals.iter().map(|i| i.exposed_ns as f64).collect();
    // Less than a hundredth of an interval is no stall worth mentioning.
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
    let summary = DeviceSummary {
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
    (summary, found)
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
fn interval_ns(interval: Option<Duration>) -> i64 {
    i64::try_from(interval.unwrap_or(DEFAULT_INTERVAL).as_nanos()).unwrap_or(i64::MAX).max(1)
}

/// Cuts a range of time into intervals.
fn cut_time(range: Range<i64>, interval: Option<Duration>) -> Result<Cut> {
    let length = range.end - range.start;
    Cut::of(range, interval_ns(interval), INTERVALS).ok_or_else(|| too_short(interval, length))
}

fn too_short(interval: Option<Duration>, length_ns: i64) -> Error {
    let least = (length_ns / INTERVALS as i64 + 1).max(1) as u64;
    Error::IntervalTooShort {
        interval: interval.unwrap_or(DEFAULT_INTERVAL),
        seconds: length_ns as f64 / 1e9,
        most: INTERVALS,
        least: Duration::from_millis((least).div_ceil(1_000_000)),
    }
}

fn too_long(interval: Option<Duration>, seconds: f64) -> Error {
    // The longest whole number of ms that leaves at least one interval.
    let at_most = Duration::from_millis((seconds * 1e3).floor().max(1.0) as u64);
    Error::IntervalTooLong { interval: interval.unwrap_or(DEFAULT_INTERVAL), seconds, at_most }
}
