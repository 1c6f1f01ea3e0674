//! NVIDIA Nsight Systems reports, as `nsys export -t sqlite` writes them, or `-t parquetdir` and
//! `-t arrowdir`.
//!
//! # What it sees
//! Kernels, copies, memsets and synchronizations of the GPUs; calls of the CUDA runtime and
//! driver, of the operating system and of MPI; NVTX ranges and marks; when threads were on their
//! CPUs, and samples of what they did there with their call chains; unified-memory faults; GPU
//! metrics; the profiler's own overhead. Every schema from 2020 to 2026: of a table only `start` is
//! required, everything else may be missing.
//!
//! # How
//! [`Report::open`] reads what is small (names, devices, processes). [`Report::chunks`] cuts the
//! rest into stretches of leaf pages, which any number of threads turn into [`Piece`]s with
//! [`Report::read`]; [`Import::place`] takes the pieces in order and gives out ids and lanes, so
//! that the trace does not depend on how many threads there were.
//!
//! # What fools it
//! `deviceId` is the CUDA ordinal of its process, which is neither the number of the GPU in
//! `TARGET_INFO_GPU` nor the same in two processes; see [`Report::gpu`]. `correlationId` comes
//! again in every process.

mod align;
mod directory;
mod place;
mod stacks;
mod tables;

use std::collections::HashMap;
use std::path::Path;

use gpuwhy_schema::Name;

pub use align::{Alignment, align};
pub use directory::is_directory;
pub use place::Import;
pub use tables::{Chunk, Piece, Work, WorkPiece};

use self::directory::Directory;
use crate::sqlite::{Database, TableDef, Value};
use crate::{Error, Result};

/// Names longer than this are cut off: a name is to be read, and a string table may hold the whole
/// output of a program.
const LONGEST_NAME: usize = 4096;
/// More strings than this are no string table of a profiler.
const MAX_STRINGS: usize = 1 << 26;

/// A GPU of the host, as the report lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its number in the report.
    pub id: i64,
    /// Its CUDA ordinal where nothing hides devices, if the report says so.
    pub ordinal: Option<i64>,
    /// What it is called.
    pub name: Option<Name>,
    /// Where it is plugged in.
    pub bus: Option<Name>,
    /// Its UUID.
    pub uuid: Option<Name>,
}

/// A report, open for reading.
#[derive(Debug)]
pub struct Report {
    database: Tables,
    strings: Strings,
    /// The version of Nsight Systems that exported it, if it says so.
    pub version: Option<String>,
    /// The version of its schema, if it says so.
    pub schema: Option<String>,
    /// The name of the host.
    pub host: Option<String>,
    /// When its time 0 was, in ns since 1970.
    pub epoch: Option<i64>,
    /// The GPUs of the host.
    pub gpus: Vec<Gpu>,
    /// Which GPU a process means by its CUDA ordinal: by pid and ordinal, the GPU's number.
    ordinals: HashMap<(i64, i64), i64>,
    processes: HashMap<i64, Name>,
    threads: HashMap<i64, Name>,
    /// Names of NVTX domains, by pid and number.
    domains: HashMap<(i64, i64), Name>,
    metrics: HashMap<(i64, i64), Name>,
    /// The rank of its process in a parallel job, if it says so.
    pub rank: Option<u32>,
    chunks: Vec<Chunk>,
    /// Tables with rows that are not read, and how many pages of rows they have.
    pub unread: Vec<(String, usize)>,
}

/// Where a report's tables lie.
#[derive(Debug)]
enum Tables {
    Database(Database),
    Directory(Directory),
}

/// Does the same with either.
macro_rules! either {
    ($tables:expr, $it:ident => $do:expr) => {
        match $tables {
            Tables::Database($it) => $do,
            Tables::Directory($it) => $do,
        }
    };
}

impl Tables {
    fn open(path: &Path) -> Result<Tables> {
        if path.is_dir() {
            return Ok(Tables::Directory(Directory::open(path)?));
        }
        Ok(Tables::Database(Database::open(path)?))
    }

    fn path(&self) -> &Path {
        either!(self, it => it.path())
    }

    fn bytes(&self) -> u64 {
        either!(self, it => it.bytes())
    }

    fn names(&self) -> Vec<&TableDef> {
        either!(self, it => it.tables().collect())
    }

    fn table(&self, name: &str) -> Option<&TableDef> {
        either!(self, it => it.table(name))
    }

    fn leaves(&self, table: &TableDef) -> Result<Vec<u32>> {
        either!(self, it => it.leaves(table))
    }

    /// How many leaves one thread is to read at a time.
    fn leaves_at_a_time(&self, table: &TableDef, usual: usize) -> usize {
        match self {
            Tables::Database(_) => usual,
            Tables::Directory(directory) => directory.leaves_at_a_time(table, usual),
        }
    }

    fn scan<const N: usize>(
        &self,
        table: &TableDef,
        leaves: &[u32],
        wanted: [Option<usize>; N],
        each: impl FnMut(i64, [Value<'_>; N]) -> Result<()>,
    ) -> Result<()> {
        either!(self, it => it.scan(table, leaves, wanted, each))
    }
}

/// The pid in a serialized `globalTid` or `globalPid`.
pub(crate) fn pid_of(global: i64) -> i64 {
    global >> 24 & 0xff_ffff
}

/// The tid in a serialized `globalTid`.
pub(crate) fn tid_of(global: i64) -> i64 {
    global & 0xff_ffff
}

/// A `globalTid` or `globalPid` without its thread.
pub(crate) fn process_of(global: i64) -> i64 {
    global & !0xff_ffff
}

/// Strings by their number.
#[derive(Debug, Default)]
struct Strings {
    dense: Vec<Option<Name>>,
    sparse: HashMap<i64, Name>,
}

impl Strings {
    fn get(&self, id: i64) -> Option<&Name> {
        match usize::try_from(id).ok().and_then(|i| self.dense.get(i)) {
            Some(found) => found.as_ref(),
            None => self.sparse.get(&id),
        }
    }

    fn put(&mut self, id: i64, name: Name) {
        // Numbers are given out in order, but for a few that are far away.
        match usize::try_from(id) {
            Ok(i) if i < self.dense.len() + 1024 => {
                if i >= self.dense.len() {
                    self.dense.resize(i + 1, None);
                }
                self.dense[i] = Some(name);
            }
            _ => {
                self.sparse.insert(id, name);
            }
        }
    }
}

/// A text as a name, cut off where it is too long to be one.
pub(crate) fn name_of(text: &str) -> Name {
    if text.len() <= LONGEST_NAME {
        return text.into();
    }
    let end = (0..=LONGEST_NAME).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    text[..end].into()
}

impl Report {
    /// Opens the report at `path`, and reads what is small of it.
    pub fn open(path: impl AsRef<Path>) -> Result<Report> {
        let path = path.as_ref();
        let database = Tables::open(path)?;
        let known = |name: &str| database.table(name).is_some();
        if !known("StringIds") {
            return Err(Error::NotThis {
                path: path.into(),
                format: "an Nsight Systems report",
                why: "it has no table StringIds; `nsys export -t sqlite` writes one".into(),
            });
        }
        let mut report = Report {
            database,
            strings: Strings::default(),
            version: None,
            schema: None,
            host: None,
            epoch: None,
            gpus: Vec::new(),
            ordinals: HashMap::new(),
            processes: HashMap::new(),
            threads: HashMap::new(),
            domains: HashMap::new(),
            metrics: HashMap::new(),
            rank: None,
            chunks: Vec::new(),
            unread: Vec::new(),
        };
        report.read_strings()?;
        report.read_about()?;
        report.read_devices()?;
        report.read_people()?;
        report.read_domains()?;
        report.plan()?;
        Ok(report)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        self.database.path()
    }

    /// The string of a number, if there is one.
    pub fn string(&self, number: i64) -> Option<&Name> {
        self.strings.get(number)
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.database.bytes()
    }

    /// Calls `each` with these columns of every row of a table, if it is there.
    fn each<const N: usize>(
        &self,
        table: &str,
        columns: [&str; N],
        each: impl FnMut(i64, [Value<'_>; N]) -> Result<()>,
    ) -> Result<()> {
        let Some(table) = self.database.table(table) else { return Ok(()) };
        let leaves = self.database.leaves(table)?;
        self.database.scan(table, &leaves, wanted(table, columns), each)
    }

    fn read_strings(&mut self) -> Result<()> {
        let mut strings = Strings::default();
        let mut count = 0;
        self.each("StringIds", ["id", "value"], |_, [id, value]| {
            count += 1;
            if count > MAX_STRINGS {
                return Err(Error::damaged(self.path(), "StringIds", "too many strings"));
            }
            if let (Some(id), Some(text)) = (id.int(), value.text()) {
                strings.put(id, name_of(text));
            }
            Ok(())
        })?;
        self.strings = strings;
        Ok(())
    }

    /// Which program, which version, which host, since when.
    fn read_about(&mut self) -> Result<()> {
        let (mut version, mut schema, mut host, mut epoch) = (None, None, None, None);
        for table in ["META_DATA_EXPORT", "EXPORT_META_DATA"] {
            self.each(table, ["name", "value"], |_, [name, value]| {
                let value = || value.text().map(str::to_owned);
                match name.text() {
                    Some("EXPORT_PRODUCT_VERSION") => version = value(),
                    Some("EXPORT_SCHEMA_VERSION") => schema = value(),
                    _ => {}
                }
                Ok(())
            })?;
        }
        self.each("TARGET_INFO_SYSTEM_ENV", ["name", "value"], |_, [name, value]| {
            if name.text() == Some("Hostname") {
                host = value.text().filter(|text| !text.is_empty()).map(str::to_owned);
            }
            Ok(())
        })?;
        self.each("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"], |_, [ns]| {
            epoch = epoch.or(ns.int());
            Ok(())
        })?;
        (self.version, self.schema, self.host, self.epoch) = (version, schema, host, epoch);
        Ok(())
    }

    fn read_devices(&mut self) -> Result<()> {
        let text = |value: Value<'_>| value.text().filter(|t| !t.is_empty()).map(name_of);
        let mut gpus: Vec<Gpu> = Vec::new();
        let columns = ["id", "deviceId", "cuDevice", "name", "busLocation", "uuid"];
        self.each("TARGET_INFO_GPU", columns, |rowid, values| {
            let [id, device, ordinal, name, bus, uuid] = values;
            gpus.push(Gpu {
                // The oldest schema calls it deviceId.
                id: id.int().or(device.int()).unwrap_or(rowid - 1),
                ordinal: ordinal.int(),
                name: text(name),
                bus: text(bus),
                uuid: text(uuid),
            });
            Ok(())
        })?;
        let mut ordinals = HashMap::new();
        let columns = ["gpuId", "cudaId", "pid"];
        self.each("TARGET_INFO_CUDA_DEVICE", columns, |_, [gpu, ordinal, pid]| {
            if let (Some(gpu), Some(ordinal), Some(pid)) = (gpu.int(), ordinal.int(), pid.int()) {
                ordinals.insert((pid, ordinal), gpu);
            }
            Ok(())
        })?;
        (self.gpus, self.ordinals) = (gpus, ordinals);
        Ok(())
    }

    fn read_people(&mut self) -> Result<()> {
        let mut processes = HashMap::new();
        self.each("PROCESSES", ["globalPid", "name"], |_, [process, name]| {
            if let (Some(process), Some(name)) = (process.int(), name.text()) {
                processes.insert(process_of(process), name_of(name));
            }
            Ok(())
        })?;
        let mut threads = HashMap::new();
        self.each("ThreadNames", ["globalTid", "nameId"], |_, [thread, name]| {
            if let (Some(thread), Some(name)) = (thread.int(), name.int())
                && let Some(name) = self.strings.get(name)
            {
                threads.insert(thread, name.clone());
            }
            Ok(())
        })?;
        let mut rank = None;
        self.each("MPI_RANKS", ["rank"], |_, [number]| {
            rank = rank.or(number.int().and_then(|n| u32::try_from(n).ok()));
            Ok(())
        })?;
        let mut metrics = HashMap::new();
        let columns = ["typeId", "metricId", "metricName"];
        self.each("TARGET_INFO_GPU_METRICS", columns, |_, [kind, metric, name]| {
            if let (Some(kind), Some(metric), Some(name)) = (kind.int(), metric.int(), name.text())
            {
                metrics.insert((kind, metric), name_of(name));
            }
            Ok(())
        })?;
        // Ranks that a tool wrote for each thread are the same rank; else the file's name may say.
        self.rank = rank.or_else(|| rank_in(self.path()));
        (self.processes, self.threads, self.metrics) = (processes, threads, metrics);
        Ok(())
    }

    fn read_domains(&mut self) -> Result<()> {
        let mut domains = HashMap::new();
        let columns = ["eventType", "domainId", "globalTid", "text", "textId"];
        self.each("NVTX_EVENTS", columns, |_, [kind, domain, thread, text, id]| {
            if kind.int() != Some(tables::NVTX_DOMAIN) {
                return Ok(());
            }
            let registered = id.int().and_then(|id| self.strings.get(id)).cloned();
            if let Some(name) = text.text().map(name_of).or(registered) {
                let pid = pid_of(thread.int().unwrap_or(0));
                domains.insert((pid, domain.int().unwrap_or(0)), name);
            }
            Ok(())
        })?;
        self.domains = domains;
        Ok(())
    }

    /// Which GPU a process means by a CUDA ordinal: by what the report says of that process; else
    /// by the ordinals of the host's GPUs; else, in old reports, by their numbers.
    pub fn gpu(&self, process: i64, ordinal: i64) -> Option<&Gpu> {
        let by_id = |id: i64| self.gpus.iter().find(|gpu| gpu.id == id);
        if let Some(&id) = self.ordinals.get(&(pid_of(process), ordinal)) {
            return by_id(id);
        }
        if self.gpus.iter().any(|gpu| gpu.ordinal.is_some()) {
            return self.gpus.iter().find(|gpu| gpu.ordinal == Some(ordinal));
        }
        by_id(ordinal)
    }
}

/// The rank that a file's name tells: `rank3.sqlite`, `report.rank-12.sqlite`, `out_rank_0.sqlite`.
fn rank_in(path: &Path) -> Option<u32> {
    let name = path.file_stem()?.to_str()?.to_ascii_lowercase();
    let after = &name[name.rfind("rank")? + 4..];
    let digits = after.trim_start_matches(['-', '_', '.']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The places of columns in a table.
pub(crate) fn wanted<const N: usize>(table: &TableDef, columns: [&str; N]) -> [Option<usize>; N] {
    columns.map(|name| table.column(name))
}

#[cfg(test)]
mod stats_tests;
#[cfg(test)]
mod tests;
