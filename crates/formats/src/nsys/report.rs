//! A report, open for reading: its strings, devices, processes and host, which are small, and where
//! the rest lies.

use std::collections::HashMap;
use std::path::Path;

use gpuwhy_schema::Name;

use super::chunk::{self, Chunk};
use super::identity::Identity;
use super::ids::{pid_of, process_of};
use super::strings::{Strings, name_of};
use super::tables::Tables;
use super::versions;
use crate::sqlite::Value;
use crate::{Error, Result};

/// A report with more strings than this is damaged.
const MAX_STRINGS: usize = 1 << 26;

/// The `eventType` of the name of an NVTX domain.
const NVTX_DOMAIN: i64 = 75;

/// A GPU of the host, as the report lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gpu {
    /// Its number in the report.
    pub id: i64,
    /// Its CUDA ordinal for a process that sees all devices, if the report has it.
    pub ordinal: Option<i64>,
    /// Its model.
    pub name: Option<Name>,
    /// Its PCI address.
    pub bus: Option<Name>,
    /// Its UUID.
    pub uuid: Option<Name>,
}

/// A report, open for reading.
#[derive(Debug)]
pub(super) struct Report {
    /// Where its tables lie.
    pub database: Tables,
    /// Its string table.
    pub strings: Strings,
    /// The version of Nsight Systems that exported it, if the report has it.
    pub version: Option<String>,
    /// The version of its schema, if the report has it.
    pub schema: Option<String>,
    /// The name of the host.
    pub host: Option<String>,
    /// The time in UTC of its time 0, in ns since 1970.
    pub epoch: Option<i64>,
    /// The GPUs of the host.
    pub gpus: Vec<Gpu>,
    /// Which GPU a process means by its CUDA ordinal: by pid and ordinal, the GPU's number.
    ordinals: HashMap<(i64, i64), i64>,
    /// Names of programs, by `globalPid`.
    pub processes: HashMap<i64, Name>,
    /// Names of threads, by `globalTid`.
    pub threads: HashMap<i64, Name>,
    /// Names of NVTX domains, by pid and number.
    pub domains: HashMap<(i64, i64), Name>,
    /// Names of GPU metrics, by `typeId` and `metricId`.
    pub metrics: HashMap<(i64, i64), Name>,
    /// How long it was captured, ns, if the report has it.
    pub length: Option<i64>,
    /// The id of the capture, if the report has one.
    pub session: Option<String>,
    /// Which member of which job it is of.
    pub identity: Identity,
    /// Its tables as chunks, in the order of reading.
    pub chunks: Vec<Chunk>,
    /// Tables with rows that are not read.
    pub unread: Vec<String>,
}

impl Report {
    /// Opens the report at `path` and reads its small tables.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or is a database of something else.
    pub fn open(path: impl AsRef<Path>) -> Result<Report> {
        let path = path.as_ref();
        let database = Tables::open(path)?;
        database.check_is_table("StringIds")?;
        if database.table("StringIds").is_none() {
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
            length: None,
            session: None,
            identity: Identity::default(),
            chunks: Vec::new(),
            unread: Vec::new(),
        };
        report.read_strings()?;
        report.read_about()?;
        report.read_devices()?;
        report.read_processes()?;
        report.name_launched()?;
        report.read_identity()?;
        report.read_metrics()?;
        report.read_domains()?;
        let plan = chunk::plan(&report.database)?;
        (report.chunks, report.unread) = (plan.chunks, plan.unread);
        Ok(report)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        self.database.path()
    }

    /// Whether a chunk is the last one of its table.
    pub fn is_last_of_table(&self, chunk: usize) -> bool {
        let next = self.chunks.get(chunk + 1);
        next.is_none_or(|next| next.table != self.chunks[chunk].table)
    }

    /// The string of this number.
    pub fn string(&self, number: i64) -> Option<&Name> {
        self.strings.get(number)
    }

    /// Calls `each` with these columns of every row of a table; not at all if there is no such table.
    pub(super) fn each<const N: usize>(
        &self,
        table: &str,
        columns: [&str; N],
        each: impl FnMut(i64, [Value<'_>; N]) -> Result<()>,
    ) -> Result<()> {
        self.database.check_is_table(table)?;
        let Some(table) = self.database.table(table) else { return Ok(()) };
        let leaves = self.database.leaves(table)?;
        self.database.scan(table, &leaves, versions::columns(table, columns), each)
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

    /// The versions, the host, and the time in UTC at which the report begins.
    fn read_about(&mut self) -> Result<()> {
        let (mut version, mut schema, mut host, mut epoch) = (None, None, None, None);
        for table in versions::EXPORT_TABLES {
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
                id: versions::gpu_id(id, device, rowid),
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

    fn read_processes(&mut self) -> Result<()> {
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
        (self.processes, self.threads) = (processes, threads);
        Ok(())
    }

    fn read_identity(&mut self) -> Result<()> {
        let mut evidence = self.read_evidence()?;
        // Old reports have the name of the host only as that under which it is shown.
        self.host = self.host.take().or_else(|| evidence.display_name.take());
        self.identity = evidence.identify(self.path());
        let (mut length, mut session) = (None, None);
        self.each("ANALYSIS_DETAILS", ["duration"], |_, [duration]| {
            length = length.max(duration.int());
            Ok(())
        })?;
        self.each("META_DATA_CAPTURE", ["name", "value"], |_, [name, value]| {
            if name.text() == Some("PROFILING_SESSION_UUID") {
                session = value.text().filter(|id| !id.is_empty()).map(str::to_owned);
            }
            Ok(())
        })?;
        (self.length, self.session) = (length, session);
        Ok(())
    }

    fn read_metrics(&mut self) -> Result<()> {
        let mut metrics = HashMap::new();
        let columns = ["typeId", "metricId", "metricName"];
        self.each("TARGET_INFO_GPU_METRICS", columns, |_, [kind, metric, name]| {
            if let (Some(kind), Some(metric), Some(name)) = (kind.int(), metric.int(), name.text())
            {
                metrics.insert((kind, metric), name_of(name));
            }
            Ok(())
        })?;
        self.metrics = metrics;
        Ok(())
    }

    fn read_domains(&mut self) -> Result<()> {
        let mut domains = HashMap::new();
        let columns = ["eventType", "domainId", "globalTid", "text", "textId"];
        self.each("NVTX_EVENTS", columns, |_, [kind, domain, thread, text, id]| {
            if kind.int() != Some(NVTX_DOMAIN) {
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

    /// The GPU that a process calls by a CUDA ordinal: by the report's table for that process; else by
    /// the ordinals of the host's GPUs; else, in old reports, by their numbers.
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
