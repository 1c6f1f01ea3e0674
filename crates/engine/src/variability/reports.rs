//! The sums of profilers' reports, without importing them: kernels and copies are swept over as they are
//! read, and of a kernel only the sums of its name and its interval are kept.

use std::collections::HashMap;
use std::path::PathBuf;

use gpuwhy_derive::sweep::{Cut, Sweep, Work as SweptWork};
use gpuwhy_diagnose::exchange::Moved;
use gpuwhy_formats::importer::{GpuWork, Work, WorkDevice, WorkKind};
use gpuwhy_formats::importers;
use gpuwhy_schema::{Name, Rows};

use super::sums::{KernelSum, MOVED, Sums, moved};
use super::{Device, Gathered, INTERVALS, Options, interval_ns, too_short};
use crate::error::{Error, Result};
use crate::parallel::in_order;

/// Kernels whose name has a number below this are found by index.
const NUMBERED: usize = 1 << 20;

/// A piece of work with the process and the ordinal of its device.
type Copied = (Work, (i64, i64));

/// The sums of these reports.
///
/// # Errors
/// They cannot be read, hold no GPU work, or their rows are not sorted by time.
pub fn gather(paths: &[PathBuf], options: &Options) -> Result<Gathered> {
    let reports = importers::open_work(paths)?;
    let threads = options.threads();
    let (copies, origin) = copies(&reports, threads)?;
    let Some(origin) = origin else { return Err(Error::NoGpuWork { path: paths[0].clone() }) };
    let width = interval_ns(options.interval);
    let length = width.saturating_mul(INTERVALS as i64);
    let end = origin.saturating_add(length);
    let Some(cut) = Cut::of(origin..end, width, INTERVALS) else {
        // An interval of centuries: as long as any trace.
        return Err(super::too_long(options.interval, 0.0));
    };
    let mut devices: Vec<Device> = Vec::new();
    let mut sums = Sums::new(cut);
    for (number, report) in reports.iter().enumerate() {
        let mut one = ReportSweep::new(&**report, number, cut, &mut devices);
        let mut waiting = copies[number].iter().peekable();
        each_work(&**report, WorkKind::Kernels, threads, |work, device| {
            while let Some((copy, device)) = waiting.next_if(|c| c.0.start <= work.start) {
                one.push(copy, *device)?;
            }
            one.push(work, device)
        })?;
        waiting.try_for_each(|(copy, device)| one.push(copy, *device))?;
        sums.merge(one.finish(cut));
    }
    if cut.all().contains(&sums.last_end) || sums.last_end == cut.all().end {
        return Ok(Gathered { source: None, devices, sums, cut, names: Rows::default() });
    }
    Err(too_short(options.interval, sums.last_end - origin))
}

/// The copies of each report, sorted by their start, and the start of the first work of all reports.
/// Copies are few: they are held, so that kernels can be merged with them in the order of time.
fn copies(reports: &[Box<dyn GpuWork>], threads: usize) -> Result<(Vec<Vec<Copied>>, Option<i64>)> {
    let mut copies: Vec<Vec<Copied>> = Vec::new();
    let mut origin: Option<i64> = None;
    for report in reports {
        let mut all = Vec::new();
        each_work(&**report, WorkKind::Copies, threads, |work, device| {
            all.push((*work, device));
            Ok(())
        })?;
        all.sort_by_key(|(work, _)| work.start);
        let has_kernels = report.parts(WorkKind::Kernels) > 0;
        let first = has_kernels.then(|| report.read(WorkKind::Kernels, 0)).transpose()?;
        let starts = first.iter().flat_map(|p| &p.work).chain(all.iter().map(|c| &c.0));
        let first = starts.map(|w| w.start.saturating_add(report.shift())).min();
        origin = origin.into_iter().chain(first).min();
        copies.push(all);
    }
    Ok((copies, origin))
}

/// Calls `take` with all work of a kind in the order of the report, and the process and ordinal of its
/// device.
fn each_work(
    report: &dyn GpuWork,
    kind: WorkKind,
    threads: usize,
    mut take: impl FnMut(&Work, (i64, i64)) -> Result<()>,
) -> Result<()> {
    let read = |i: usize| report.read(kind, i);
    in_order(report.parts(kind), threads, read, |_, part| {
        let part = part?;
        part.work.iter().try_for_each(|work| take(work, part.devices[work.device as usize]))
    })
}

/// One report, being swept over.
struct ReportSweep<'a> {
    report: &'a dyn GpuWork,
    shift: i64,
    rank: Option<i64>,
    number: usize,
    devices: &'a mut Vec<Device>,
    /// The numbers of devices, by process and ordinal.
    known: HashMap<(i64, i64), u32>,
    cut: Cut,
    sweep: Sweep,
    /// Kernels by the number of their name, where that is small.
    stats: Vec<Option<Box<KernelSum>>>,
    others: HashMap<i64, KernelSum>,
    last_end: i64,
    rows: u64,
    moved: Vec<Moved>,
}

impl<'a> ReportSweep<'a> {
    fn new(
        report: &'a dyn GpuWork,
        number: usize,
        cut: Cut,
        devices: &'a mut Vec<Device>,
    ) -> ReportSweep<'a> {
        ReportSweep {
            report,
            shift: report.shift(),
            rank: report.rank().map(i64::from),
            number,
            devices,
            known: HashMap::new(),
            cut,
            sweep: Sweep::new(cut, cut.all()),
            stats: Vec::new(),
            others: HashMap::new(),
            last_end: i64::MIN,
            rows: 0,
            moved: Vec::new(),
        }
    }

    fn device(&mut self, key: (i64, i64)) -> u32 {
        if let Some(&number) = self.known.get(&key) {
            return number;
        }
        let WorkDevice { name, id } = self.report.device(key.0, key.1);
        // Without an id it cannot be recognised in other reports.
        let place = id.unwrap_or_else(|| format!("report {} {}", self.number, key.1));
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
    fn push(&mut self, work: &Work, device: (i64, i64)) -> Result<()> {
        let device = self.device(device);
        let (start, end) =
            (work.start.saturating_add(self.shift), work.end.saturating_add(self.shift));
        let what = work.copy.map_or(SweptWork::Kernel, SweptWork::Copy);
        self.sweep
            .push(device, what, start, end, work.bytes)
            .map_err(|e| Error::Unsorted { path: self.report.path().into(), at: e.start })?;
        self.rows += 1;
        self.last_end = self.last_end.max(end);
        if let Some(kind) = work.copy {
            if self.moved.len() < MOVED {
                self.moved.extend(moved(device, kind, work.bytes, start, end));
            }
        } else {
            let stat = match usize::try_from(work.name) {
                Ok(name) if name < NUMBERED => {
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

    fn finish(self, cut: Cut) -> Sums {
        let mut sums = Sums::new(cut);
        let numbered = self.stats.into_iter().enumerate();
        let numbered = numbered.filter_map(|(i, stat)| Some((i as i64, *stat?)));
        for (name, stat) in numbered.chain(self.others) {
            let unnamed = || Name::from("?");
            let name = self.report.name(name).unwrap_or_else(unnamed);
            sums.kernels.entry(name).or_default().merge(&stat);
        }
        sums.intervals = self.sweep.finish();
        (sums.last_end, sums.rows, sums.moved) = (self.last_end, self.rows, self.moved);
        sums
    }
}
