//! What an importer is: how it describes itself, which files it reads, and how it hands out rows.
//!
//! *Invariant:* whoever imports (`gpuwhy import`, `gpuwhy variability`) knows these traits and the
//! list in [`crate::importers`], and no format by name.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use gpuwhy_schema::{Attr, AttrBatch, ClockError, CopyKind, Migration, Name, Rows};

use crate::left_out::FileLeftOut;
use crate::{Error, Result};

/// How many bytes of a file [`Candidate`] holds.
const HEAD: u64 = 4096;

/// Reads the files of one tool. `importers.rs` lists all of them.
pub trait Importer: Sync {
    /// The tool, as `gpuwhy import` prints it: `Nsight Systems`.
    fn name(&self) -> &'static str;

    /// Which files it reads, by their endings or kinds, for help texts and for the error about a file
    /// of an unknown format.
    fn describes(&self) -> &'static str;

    /// Whether a file or directory is of this format. It may still be damaged or of an unknown
    /// version: [`Importer::open`] says so.
    fn recognise(&self, candidate: &Candidate) -> bool;

    /// Opens the files of one job, usually one a rank, to be read as one trace.
    ///
    /// # Errors
    /// A file cannot be read, is damaged, or must be converted first; the error says how.
    fn open(&self, paths: &[PathBuf], options: &Options) -> Result<Box<dyn Import>>;

    /// Opens the files for an overview of what GPUs did, without making rows; `None` if this format is
    /// to be imported first.
    ///
    /// # Errors
    /// As [`Importer::open`].
    fn open_work(&self, _paths: &[PathBuf]) -> Result<Option<Vec<Box<dyn GpuWork>>>> {
        Ok(None)
    }
}

/// How to import.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that may decode the files. The rows do not depend on it.
    pub threads: usize,
}

/// Files that are being read as one trace.
pub trait Import: Send {
    /// The next rows, with new entities and tracks before the rows that refer to them; `None` after
    /// the last.
    ///
    /// # Errors
    /// A file cannot be read or is damaged.
    fn next(&mut self) -> Result<Option<Batch>>;

    /// What was read, as far as it has been read: asked for after the last rows.
    fn summary(&self) -> Summary;
}

/// Some rows of an import.
#[derive(Debug)]
pub struct Batch {
    /// The rows, with ids and times of the trace that is being made.
    pub rows: Rows,
    /// Rows of `attr` as columns, beside those in `rows`.
    pub attrs: Option<AttrBatch>,
    /// About how much has been read by now, from 0 to 1.
    pub done: f64,
}

impl Batch {
    /// With rows alone.
    pub fn new(rows: Rows, done: f64) -> Batch {
        Batch { rows, attrs: None, done }
    }

    /// All rows as rows.
    pub fn into_rows(mut self) -> Rows {
        let attrs = self.attrs.iter().flat_map(AttrBatch::iter);
        let attrs = attrs.map(|(id, key, value)| Attr { id, key: key.into(), value: value.into() });
        self.rows.attr.extend(attrs);
        self.rows
    }
}

/// What an import read besides rows.
#[derive(Debug)]
pub struct Summary {
    /// For `import --json`: an object whose keys are the importer's own.
    pub about: serde_json::Value,
    /// For the terminal, a line each; empty if there is nothing to add to the number of rows.
    pub lines: Vec<String>,
    /// What was left out of each file, as its source says too; files of which all was read are not listed.
    pub left_out: Vec<FileLeftOut>,
}

/// A file or directory whose format is to be found out.
#[derive(Debug)]
pub struct Candidate {
    /// Where it lies.
    pub path: PathBuf,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Its first 4096 bytes, or all of them if there are fewer; none of a directory.
    pub head: Vec<u8>,
}

impl Candidate {
    /// Looks at the file or directory at `path`.
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub fn read(path: &Path) -> Result<Candidate> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let is_dir = file.metadata().map_err(Error::io("measure", path))?.is_dir();
        let mut head = Vec::new();
        if !is_dir {
            file.take(HEAD).read_to_end(&mut head).map_err(Error::io("read", path))?;
        }
        Ok(Candidate { path: path.into(), is_dir, head })
    }

    /// Whether it is the small text that Git LFS leaves in place of a file that was not fetched.
    pub fn is_lfs_pointer(&self) -> bool {
        self.head.starts_with(LFS_POINTER)
    }
}

/// How the pointer files of Git LFS begin (git-lfs, docs/spec.md).
pub(crate) const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// What GPUs did according to one report, read without making rows: enough for sums and overviews.
pub trait GpuWork: Sync {
    /// Where the report lies.
    fn path(&self) -> &Path;

    /// The rank of its process in its job, if the report names one.
    fn rank(&self) -> Option<u32>;

    /// What to add to its times, in ns, so that all reports that were opened together share one clock.
    fn shift(&self) -> i64;

    /// By how much its times may still differ from those of the others.
    fn clock_error(&self) -> ClockError;

    /// How many parts hold work of this kind. Each can be read on any thread.
    fn parts(&self, kind: WorkKind) -> usize;

    /// The work of one part, in the order in which the report holds it.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    fn read(&self, kind: WorkKind, part: usize) -> Result<WorkPart>;

    /// The device that a process calls by this CUDA ordinal; see [`WorkPart::devices`].
    fn device(&self, process: i64, ordinal: i64) -> WorkDevice;

    /// The name of a kernel by its number, [`Work::name`].
    fn name(&self, number: i64) -> Option<Name>;

    /// How the kernels of one part were launched, in the order in which the report holds them; empty if it does not
    /// say.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    fn launched(&self, _part: usize) -> Result<Vec<Launched>> {
        Ok(Vec::new())
    }

    /// Page faults of managed memory on devices, in the order in which the report holds them.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    fn page_faults(&self) -> Result<Vec<PageFaults>> {
        Ok(Vec::new())
    }

    /// Whether the report holds a call whose name begins with one of these; `None` if that cannot be
    /// told without reading all calls.
    fn calls_any(&self, _prefixes: &[&str]) -> Option<bool> {
        None
    }
}

/// A kernel and the size of its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The number of the kernel's name, for [`GpuWork::name`].
    pub name: i64,
    /// When it began, in ns on the report's own clock.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// Blocks of the grid along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
}

/// Page faults of managed memory that a device had at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFaults {
    /// The process and, if the report names it, the CUDA ordinal of the device.
    pub device: (i64, Option<i64>),
    /// When they began, in ns on the report's own clock.
    pub start: i64,
    /// When they had been served.
    pub end: i64,
    /// How many there were; 0 if the report does not say.
    pub count: u64,
}

/// What kind of work a part of a report holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Kernels.
    Kernels,
    /// Copies and memsets.
    Copies,
}

/// A kernel, copy or memset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Which device: an index of [`WorkPart::devices`].
    pub device: u32,
    /// What kind of copy or memset; `None` for a kernel.
    pub copy: Option<CopyKind>,
    /// When it began, in ns on the report's own clock.
    pub start: i64,
    /// When it ended, in ns on the report's own clock.
    pub end: i64,
    /// How many bytes it moved; 0 for a kernel.
    pub bytes: u64,
    /// Of managed memory: why it moved, and whether to the device.
    pub migration: Option<(Migration, bool)>,
    /// The number of the kernel's name, for [`GpuWork::name`].
    pub name: i64,
}

/// The work of one part of a report.
#[derive(Clone, Debug, Default)]
pub struct WorkPart {
    /// In the order of the report.
    pub work: Vec<Work>,
    /// The devices: process, and CUDA ordinal within that process.
    pub devices: Vec<(i64, i64)>,
    /// Rows that were left out because their start or end is missing or reversed.
    pub dropped: u64,
}

/// A device as a report names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkDevice {
    /// Its number and model: `GPU 0 NVIDIA A100`.
    pub name: String,
    /// Its UUID or PCI address, equal in all reports of a job; `None` if the report has neither.
    pub id: Option<String>,
}
