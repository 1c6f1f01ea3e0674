//! The sums of profilers' reports, without importing them: kernels and copies are swept over as they are
//! read, and of a kernel only the sums of its name and its interval are kept.

use std::collections::HashMap;
use std::path::PathBuf;

use gpuwhy_derive::communication::{Communicated, Communication, Piece, is_communication};
use gpuwhy_derive::sweep::{Cut, Sweep, Work as SweptWork};
use gpuwhy_diagnose::exchange::Moved;
use gpuwhy_formats::importer::{GpuWork, Work, WorkDevice, WorkKind};
use gpuwhy_formats::importers;
use gpuwhy_schema::{CopyKind, Name, Rows};
use gpuwhy_store::IncompleteSource;

use super::clocks::Clocks;
use super::launches::Whole;
use super::managed::{Gathering, Managed, Moved as MovedMemory, Stalls};
use super::sums::{KernelSum, MOVED, Sums, moved};
use super::{Device, Gathered, INTERVALS, Options, PREFETCH, columns, too_short, width_for};
use crate::error::{Error, Result};
use crate::parallel::in_order;

/// Kernels whose name has a number below this are found by index.
const NUMBERED: usize = 1 << 20;

/// Devices whose numbers are at hand.
const RECENT: usize = 16;

/// A piece of work with the process and the ordinal of its device.
type Copied = (Work, (i64, i64));

/// The sums of these reports.
///
/// # Errors
/// They cannot be read, hold no GPU work, or their rows are not sorted by time.
pub fn gather(paths: &[PathBuf], options: &Options) -> Result<Gathered> {
    let reports = importers::open_work(paths)?;
    let threads = options.threads();
    let (mut copies, mut lost, begins) = copies(&reports, threads)?;
    let Some((origin, last)) = begins else {
        return Err(Error::NoGpuWork { path: paths[0].clone() });
    };
    let width = width_for(options.interval, last - origin);
    let length = width.saturating_mul(INTERVALS as i64);
    let end = origin.saturating_add(length);
    let Some(cut) = Cut::of(origin..end, width, INTERVALS) else {
        // An interval of centuries: as long as any trace.
        return Err(super::too_long(options.interval.unwrap_or_default(), 0.0));
    };
    let mut devices: Vec<Device> = Vec::new();
    let mut clocks = Clocks::default();
    let mut sums = Sums::new(cut);
    // The columns of pictures are whole intervals of those that will be left.
    let columns = columns(cut, usize::try_from((last - origin) / width).unwrap_or(INTERVALS) + 1);
    let mut whole =
        Whole { launches: None, columns, communication: Vec::new(), managed: None, path: None };
    let mut incomplete = Vec::new();
    for (number, report) in reports.iter().enumerate() {
        let mut one = ReportSweep::new(&**report, number, (cut, columns), &mut devices);
        let copies = std::mem::take(&mut copies[number]);
        one.managed_memory(&copies)?;
        let mut waiting = copies.iter().peekable();
        lost[number] += each_work(&**report, WorkKind::Kernels, threads, |work, device| {
            while let Some((copy, device)) = waiting.next_if(|c| c.0.start <= work.start) {
                one.push(copy, *device)?;
            }
            one.push(work, device)
        })?;
        waiting.try_for_each(|(copy, device)| one.push(copy, *device))?;
        // Before the sums are merged, which takes most memory.
        drop(copies);
        for device in one.known.values() {
            clocks.add(*device, number as u32, report.clock_error());
        }
        incomplete.extend(incomplete_report(&**report, one.rows, lost[number]));
        let (swept, communication, managed) = one.finish(cut);
        sums.merge(swept);
        add(&mut whole, communication, managed);
    }
    if cut.all().contains(&sums.last_end) || sums.last_end == cut.all().end {
        let (names, whole) = (Rows::default(), Some(whole));
        let source = None;
        return Ok(Gathered {
            source,
            reports,
            devices,
            clocks,
            sums,
            cut,
            names,
            whole,
            incomplete,
        });
    }
    Err(too_short(width, sums.last_end - origin))
}

/// Adds what was found in one report.
fn add(whole: &mut Whole, communication: Vec<Vec<Communicated>>, managed: Option<Managed>) {
    if whole.communication.len() < communication.len() {
        whole.communication.resize(communication.len(), Vec::new());
    }
    for (ours, theirs) in whole.communication.iter_mut().zip(&communication) {
        if ours.len() < theirs.len() {
            ours.resize(theirs.len(), Communicated::default());
        }
        ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| ours.merge(theirs));
    }
    if let Some(managed) = managed {
        whole.managed.get_or_insert_default().merge(managed);
    }
}

/// When the first work and the last work of all reports begin.
type Begins = Option<(i64, i64)>;

/// The copies of each report, how many it lost, and when work begins.
type AllCopies = (Vec<Vec<Copied>>, Vec<u64>, Begins);

/// A report that lost some of its kernels and copies.
fn incomplete_report(report: &dyn GpuWork, read: u64, lost: u64) -> Option<IncompleteSource> {
    (lost > 0).then(|| IncompleteSource {
        source: report.path().display().to_string(),
        lost,
        of: read.saturating_add(lost),
        why: "kernels and copies without a time, or that end before they begin".into(),
        not_imported: String::new(),
    })
}

/// The copies of each report, sorted by their start, how many were lost, and when work begins. Copies are
/// few: they are held, so that kernels can be merged with them in the order of time.
fn copies(reports: &[Box<dyn GpuWork>], threads: usize) -> Result<AllCopies> {
    let mut lost: Vec<u64> = Vec::new();
    let mut copies: Vec<Vec<Copied>> = Vec::new();
    let mut begins: Begins = None;
    for report in reports {
        let mut all = Vec::new();
        lost.push(each_work(&**report, WorkKind::Copies, threads, |work, device| {
            all.push((*work, device));
            Ok(())
        })?);
        if !all.is_sorted_by_key(|(work, _): &Copied| work.start) {
            all.sort_by_key(|(work, _)| work.start);
        }
        let mut begin = |work: &Work| {
            let start = work.start.saturating_add(report.shift());
            let (first, last) = begins.unwrap_or((start, start));
            begins = Some((first.min(start), last.max(start)));
        };
        all.iter().for_each(|(work, _)| begin(work));
        // Kernels are sorted, or the sweep says that they are not: their ends tell.
        let parts = report.parts(WorkKind::Kernels);
        for part in (0..parts.min(1)).chain((1..parts).last()) {
            report.read(WorkKind::Kernels, part)?.work.iter().for_each(&mut begin);
        }
        copies.push(all);
    }
    Ok((copies, lost, begins))
}

/// Calls `take` with all work of a kind in the order of the report, and the process and ordinal of its
/// device. How many rows were lost.
fn each_work(
    report: &dyn GpuWork,
    kind: WorkKind,
    threads: usize,
    mut take: impl FnMut(&Work, (i64, i64)) -> Result<()>,
) -> Result<u64> {
    let read = |i: usize| report.read(kind, i);
    let mut lost = 0;
    in_order(report.parts(kind), threads, read, |_, part| {
        let part = part?;
        lost += part.dropped;
        part.work.iter().try_for_each(|work| take(work, part.devices[work.device as usize]))
    })?;
    Ok(lost)
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
    /// Some of them again, found without hashing.
    recent: [Option<((i64, i64), u32)>; RECENT],
    cut: Cut,
    sweep: Sweep,
    communication: Communication,
    /// Kernels that wait for managed memory, if there is any; a process has a number.
    stalls: Option<Stalls<i64, i64>>,
    /// Kernels by the number of their name, where that is small.
    stats: Vec<Option<Box<Named>>>,
    others: HashMap<i64, Named>,
    last_end: i64,
    rows: u64,
    moved: Vec<Moved>,
}

/// The kernels of one name.
#[derive(Clone, Default)]
struct Named {
    sum: KernelSum,
    /// Whether they communicate.
    communicate: bool,
}

impl Named {
    fn of(report: &dyn GpuWork, name: i64) -> Named {
        let communicate = report.name(name).is_some_and(|name| is_communication(&name));
        Named { sum: KernelSum::default(), communicate }
    }
}

impl<'a> ReportSweep<'a> {
    fn new(
        report: &'a dyn GpuWork,
        number: usize,
        (cut, columns): (Cut, Cut),
        devices: &'a mut Vec<Device>,
    ) -> ReportSweep<'a> {
        ReportSweep {
            report,
            shift: report.shift(),
            rank: report.rank().map(i64::from),
            number,
            devices,
            known: HashMap::new(),
            recent: [None; RECENT],
            cut,
            sweep: Sweep::new(cut, cut.all()),
            communication: Communication::by_interval(columns),
            stalls: None,
            stats: Vec::new(),
            others: HashMap::new(),
            last_end: i64::MIN,
            rows: 0,
            moved: Vec::new(),
        }
    }

    #[inline]
    fn device(&mut self, key: (i64, i64)) -> u32 {
        // The pid begins at bit 24.
        let place = ((key.0 >> 24) ^ key.1) as usize % RECENT;
        match self.recent[place] {
            Some((known, number)) if known == key => number,
            _ => {
                let number = self.device_by_key(key);
                self.recent[place] = Some((key, number));
                number
            }
        }
    }

    fn device_by_key(&mut self, key: (i64, i64)) -> u32 {
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

    /// Takes note of managed memory and page faults, before kernels are looked at.
    fn managed_memory(&mut self, copies: &[Copied]) -> Result<()> {
        let asked_ahead = self.report.calls_any(PREFETCH);
        let mut found = Gathering::new(asked_ahead);
        for (copy, key) in copies {
            let Some((cause, to_device)) = copy.migration else { continue };
            let (start, end) = self.shifted(copy.start, copy.end);
            let moved = MovedMemory { cause, to_device, start, end, bytes: copy.bytes };
            found.moved(key.0, self.device(*key), moved);
        }
        for faults in self.report.page_faults()? {
            let (process, ordinal) = faults.device;
            let (start, end) = self.shifted(faults.start, faults.end);
            let device = ordinal.map(|ordinal| self.device((process, ordinal)));
            found.faults(process, device, start, end, faults.count);
        }
        if !found.is_empty() {
            self.stalls = Some(found.kernels());
        }
        Ok(())
    }

    /// Times of the report as times of all reports.
    fn shifted(&self, start: i64, end: i64) -> (i64, i64) {
        (start.saturating_add(self.shift), end.saturating_add(self.shift))
    }

    #[inline]
    fn push(&mut self, work: &Work, key: (i64, i64)) -> Result<()> {
        let device = self.device(key);
        let (start, end) = self.shifted(work.start, work.end);
        let what = work.copy.map_or(SweptWork::Kernel, SweptWork::Copy);
        let unsorted = |at: i64| Error::Unsorted { path: self.report.path().into(), at };
        self.sweep.push(device, what, start, end, work.bytes).map_err(|e| unsorted(e.start))?;
        self.rows += 1;
        self.last_end = self.last_end.max(end);
        let piece = if let Some(kind) = work.copy {
            if self.moved.len() < MOVED {
                self.moved.extend(moved(device, kind, work.bytes, start, end));
            }
            match kind {
                CopyKind::PeerToPeer => Piece::PeerCopy,
                CopyKind::Memset => Piece::Compute,
                _ => return Ok(()),
            }
        } else {
            if let Some(stalls) = &mut self.stalls {
                stalls.kernel(key.0, device, work.name, start, end);
            }
            let report = self.report;
            let named = match usize::try_from(work.name) {
                Ok(name) if name < NUMBERED => {
                    if name >= self.stats.len() {
                        self.stats.resize(name + 1, None);
                    }
                    let new = || Box::new(Named::of(report, work.name));
                    &mut **self.stats[name].get_or_insert_with(new)
                }
                _ => self.others.entry(work.name).or_insert_with(|| Named::of(report, work.name)),
            };
            named.sum.add(self.cut.index(start).unwrap_or(0), end - start);
            if named.communicate { Piece::Communicate } else { Piece::Compute }
        };
        self.communication.push(device, piece, start, end).map_err(|e| unsorted(e.start))
    }

    fn finish(self, cut: Cut) -> (Sums, Vec<Vec<Communicated>>, Option<Managed>) {
        let report = self.report;
        let name_of = |number: i64| report.name(number).unwrap_or_else(|| Name::from("?"));
        let mut sums = Sums::new(cut);
        let numbered = self.stats.into_iter().enumerate();
        let numbered = numbered.filter_map(|(i, stat)| Some((i as i64, *stat?)));
        for (name, named) in numbered.chain(self.others) {
            sums.add_kernels(name_of(name), named.sum);
        }
        sums.intervals = self.sweep.finish();
        (sums.last_end, sums.rows, sums.moved) = (self.last_end, self.rows, self.moved);
        let managed = self.stalls.map(|stalls| stalls.finish(|number| name_of(*number)));
        (sums, self.communication.finish_by_interval(), managed)
    }
}
