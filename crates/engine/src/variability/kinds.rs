//! The kinds of launches of a kernel: how large its grid was, and in which phase of its program it ran. They are
//! read only of kernels whose duration seems to change, since that takes a second look at the rows.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use gpuwhy_derive::devices::Devices;
use gpuwhy_derive::sweep::Cut;
use gpuwhy_derive::{STRETCHES, Stretches, Sum};
use gpuwhy_formats::importer::{GpuWork, WorkKind};
use gpuwhy_schema::{EntityId, Id, Kernel, Name, Ns, Span};
use gpuwhy_store::Read;

use super::Gathered;
use crate::error::{Error, Result};
use crate::phases::{self, Program};
use crate::source::{EVER, TraceSource};

/// Kinds of one kernel that are told apart; later ones count as one.
const KINDS: usize = 256;

/// How large a launch was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// Blocks of the grid along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [gx, gy, gz] = self.grid;
        write!(f, "{gx}x{gy}x{gz} blocks")?;
        match self.block {
            [0, 0, 0] => Ok(()),
            [bx, by, bz] => write!(f, " of {bx}x{by}x{bz} threads"),
        }
    }
}

/// A kind of launch; the default stands for all that are too many to be told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// How large it was.
    pub size: Size,
    /// In which phase, by its place in [`Kinds::phases`].
    pub phase: Option<usize>,
}

/// The launches of one kind.
#[derive(Clone, Debug)]
pub struct OfKind {
    /// Their durations in each of the stretches that the kernel's durations are divided into.
    pub sums: [Sum; STRETCHES],
    /// When the first began, ns.
    pub from: i64,
    /// When the last ended.
    pub to: i64,
}

/// The launches of a kernel by their kind.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    /// All of them.
    pub by: BTreeMap<Kind, OfKind>,
    /// What phases are called.
    pub phases: Vec<String>,
}

impl Kinds {
    fn add(&mut self, kind: Kind, stretch: usize, start: i64, end: i64) {
        let full = self.by.len() >= KINDS && !self.by.contains_key(&kind);
        let kind = if full { Kind::default() } else { kind };
        let new = || OfKind { sums: [Sum::default(); STRETCHES], from: start, to: end };
        let of = self.by.entry(kind).or_insert_with(new);
        (of.from, of.to) = (of.from.min(start), of.to.max(end));
        // Nothing begins behind the last stretch: the durations were divided knowing all of them.
        of.sums[stretch.min(STRETCHES - 1)].add(end - start);
    }
}

/// Kernels whose launches are looked at.
pub struct Wanted<'a> {
    /// Their places, by their names.
    places: HashMap<&'a Name, usize>,
    stretches: Vec<&'a Stretches>,
    cut: Cut,
}

impl<'a> Wanted<'a> {
    /// These kernels, with their durations over time.
    pub fn new(kernels: &[(&'a Name, &'a Stretches)], cut: Cut) -> Wanted<'a> {
        let places = kernels.iter().enumerate().map(|(i, (name, _))| (*name, i)).collect();
        Wanted { places, stretches: kernels.iter().map(|(_, of)| *of).collect(), cut }
    }

    fn stretch(&self, place: usize, start: i64) -> usize {
        self.cut.index(start).unwrap_or(0) / self.stretches[place].each()
    }

    /// The kinds of each of them, in their order; `None` where the rows are not on this machine.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub fn read(&self, gathered: &Gathered) -> Result<Option<Vec<Kinds>>> {
        if let Some(source) = &gathered.source {
            return self.of_trace(source).map(Some);
        }
        if gathered.reports.is_empty() {
            return Ok(None);
        }
        let mut all = vec![Kinds::default(); self.stretches.len()];
        for report in &gathered.reports {
            self.of_report(&**report, &mut all)?;
        }
        Ok(Some(all))
    }

    fn of_report(&self, report: &dyn GpuWork, all: &mut [Kinds]) -> Result<()> {
        // By the number of a name; of most there is nothing to know.
        let mut known: HashMap<i64, Option<usize>> = HashMap::new();
        for part in 0..report.parts(WorkKind::Kernels) {
            for launch in report.launched(part)? {
                let find = || report.name(launch.name).and_then(|n| self.places.get(&n).copied());
                let Some(place) = *known.entry(launch.name).or_insert_with(find) else { continue };
                let shifted = |at: i64| at.saturating_add(report.shift());
                let (start, end) = (shifted(launch.start), shifted(launch.end));
                let size = Size { grid: launch.grid, block: launch.block };
                let stretch = self.stretch(place, start);
                all[place].add(Kind { size, phase: None }, stretch, start, end);
            }
        }
        Ok(())
    }

    fn of_trace(&self, source: &TraceSource) -> Result<Vec<Kinds>> {
        let catalog = source.entities_and_tracks();
        let streams = Devices::of(&catalog.entity, &catalog.track).streams;
        let programs = phases::of_trace(source);
        let programs = programs.map_err(Error::read("calls", source.trace().path()))?.told;
        let phases = Phases::of(&programs);
        let mut all = vec![Kinds::default(); self.stretches.len()];
        let mut sizes = Sizes::new(source);
        for rows in source.trace().read::<Span>(EVER) {
            for span in rows? {
                if !streams.contains_key(&span.track) {
                    continue;
                }
                let launch = sizes.of(&span)?;
                let (Some(&place), Some(dur)) = (self.places.get(&span.name), span.dur) else {
                    continue;
                };
                let Some((process, size)) = launch else { continue };
                let (start, end) = (span.ts.0, span.ts.saturating_add(dur).0);
                let phase = phases.at(process, start);
                all[place].add(Kind { size, phase }, self.stretch(place, start), start, end);
            }
        }
        all.iter_mut().for_each(|kinds| kinds.phases.clone_from(&phases.names));
        Ok(all)
    }
}

/// Whose a kernel is, and how large.
type Launch = (Option<EntityId>, Size);

/// The details of kernels, read along with their spans, which come by their begin as well.
struct Sizes {
    kernels: Read<Kernel>,
    /// Read to here.
    until: Ns,
    known: HashMap<Id, Launch>,
}

impl Sizes {
    fn new(source: &TraceSource) -> Sizes {
        let kernels = source.trace().read::<Kernel>(EVER);
        Sizes { kernels, until: Ns::MIN, known: HashMap::new() }
    }

    fn of(&mut self, span: &Span) -> Result<Option<Launch>> {
        while self.until <= span.ts {
            let Some(rows) = self.kernels.next().transpose()? else {
                self.until = Ns::MAX;
                break;
            };
            self.until = rows.last().map_or(self.until, |row| row.ts);
            self.known.extend(rows.into_iter().map(|k| {
                let grid = [k.grid_x, k.grid_y, k.grid_z];
                let block = [k.block_x, k.block_y, k.block_z];
                (k.id, (k.process, Size { grid, block }))
            }));
        }
        Ok(self.known.remove(&span.id))
    }
}

/// The phases of all programs.
struct Phases {
    names: Vec<String>,
    /// By process: when each phase begins, and its place among the names.
    of: HashMap<EntityId, Vec<(i64, usize)>>,
    /// The program of kernels of which it is not known: the only one.
    only: Option<EntityId>,
}

impl Phases {
    fn of(programs: &[Program]) -> Phases {
        let mut names = Vec::new();
        let mut of: HashMap<EntityId, Vec<(i64, usize)>> = HashMap::new();
        for program in programs {
            // Iterations are one.
            let mut series: BTreeMap<usize, usize> = BTreeMap::new();
            let begins = program.phases.iter().map(|phase| {
                let place = *series.entry(phase.series).or_insert_with(|| {
                    names.push(phase.name.clone());
                    names.len() - 1
                });
                (phase.from_ns, place)
            });
            of.insert(program.entity, begins.collect());
        }
        let only = match programs {
            [one] => Some(one.entity),
            _ => None,
        };
        Phases { names, of, only }
    }

    /// The phase in which something of a process began; what is launched in one phase may begin in the next.
    fn at(&self, process: Option<EntityId>, start: i64) -> Option<usize> {
        let of = self.of.get(&process.or(self.only)?)?;
        let behind = of.partition_point(|(begin, _)| *begin <= start);
        of.get(behind.saturating_sub(1)).map(|(_, place)| *place)
    }
}
