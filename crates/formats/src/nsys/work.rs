//! What GPUs did according to reports, without making rows.

use std::path::{Path, PathBuf};

use gpuwhy_schema::{ClockError, CopyKind, Name};

use super::align::align;
use super::chunk::{Chunk, Contents};
use super::dropped::time;
use super::gpu_tables::{copy_kind, migration, small, unsigned};
use super::host_tables::FAULT_COLUMNS;
use super::ids::process_of;
use super::job;
use super::report::{Gpu, Report};
use super::versions;
use crate::Result;
use crate::align::Alignment;
use crate::importer::{GpuWork, Launched, PageFaults, Work, WorkDevice, WorkKind, WorkPart};
use crate::sqlite::TableDef;

/// The code of copies of managed memory to the host.
const UNIFIED_TO_HOST: i64 = 12;

/// A report, with its place in time among the others.
struct ReportWork {
    report: Report,
    shift: i64,
    error: ClockError,
    /// The chunks that hold kernels, and those that hold copies and memsets.
    kernels: Vec<Chunk>,
    copies: Vec<Chunk>,
}

/// Opens reports and aligns them.
pub(super) fn open(paths: &[PathBuf]) -> Result<Vec<Box<dyn GpuWork>>> {
    let reports = job::open(paths)?;
    let Alignment { shifts, error, .. } = align(&reports)?;
    let one = |(report, shift): (Report, i64)| -> Box<dyn GpuWork> {
        let chunks = |selected: fn(Contents) -> bool| {
            report.chunks.iter().filter(|c| selected(c.contents)).cloned().collect()
        };
        let kernels = chunks(|contents| contents == Contents::Kernels);
        let copies = chunks(|c| matches!(c, Contents::Copies | Contents::Memsets));
        Box::new(ReportWork { report, shift, error, kernels, copies })
    };
    Ok(reports.into_iter().zip(shifts).map(one).collect())
}

impl ReportWork {
    fn chunks(&self, kind: WorkKind) -> &[Chunk] {
        match kind {
            WorkKind::Kernels => &self.kernels,
            WorkKind::Copies => &self.copies,
        }
    }
}

impl GpuWork for ReportWork {
    fn path(&self) -> &Path {
        self.report.path()
    }

    fn rank(&self) -> Option<u32> {
        self.report.identity.rank
    }

    fn shift(&self) -> i64 {
        self.shift
    }

    fn clock_error(&self) -> ClockError {
        self.error
    }

    fn parts(&self, kind: WorkKind) -> usize {
        self.chunks(kind).len()
    }

    fn read(&self, kind: WorkKind, part: usize) -> Result<WorkPart> {
        self.report.read_work(&self.chunks(kind)[part])
    }

    fn device(&self, process: i64, ordinal: i64) -> WorkDevice {
        let gpu = self.report.gpu(process, ordinal);
        let model = gpu.and_then(|gpu| gpu.name.as_deref()).unwrap_or_default();
        let name = format!("GPU {} {model}", gpu.map_or(ordinal, |gpu| gpu.id));
        let id = match gpu {
            Some(Gpu { uuid: Some(uuid), .. }) => Some(uuid.to_string()),
            Some(Gpu { bus: Some(bus), .. }) => Some(bus.to_string()),
            _ => None,
        };
        WorkDevice { name: name.trim().to_owned(), id }
    }

    fn name(&self, number: i64) -> Option<Name> {
        self.report.strings.get(number).cloned()
    }

    fn launched(&self, part: usize) -> Result<Vec<Launched>> {
        self.report.read_launched(&self.kernels[part])
    }

    fn page_faults(&self) -> Result<Vec<PageFaults>> {
        let mut all = Vec::new();
        let database = &self.report.database;
        let chunks = self.report.chunks.iter().filter(|c| c.contents == Contents::GpuFaults);
        for chunk in chunks {
            let Some(table) = database.table(chunk.table) else { continue };
            let columns = versions::columns(table, FAULT_COLUMNS);
            database.scan(table, &chunk.leaves, columns, |_, values| {
                let [start, end, process, device, count] = values;
                if let (Ok(start), Ok(end)) = (time(start), time(end))
                    && start <= end
                {
                    let device = (process.int().map_or(0, process_of), device.int());
                    let count = unsigned(count).unwrap_or(0);
                    all.push(PageFaults { device, start, end, count });
                }
                Ok(())
            })?;
        }
        Ok(all)
    }

    fn calls_any(&self, prefixes: &[&str]) -> Option<bool> {
        // A report's strings are those that its rows use.
        let calls = self.report.chunks.iter().any(|c| c.contents == Contents::CudaCalls);
        let is_one = |name: &Name| prefixes.iter().any(|prefix| name.starts_with(prefix));
        calls.then(|| self.report.strings.numbered().any(|(_, name)| is_one(name)))
    }
}

/// The column with the names of kernels.
fn name_column(table: &TableDef) -> &'static str {
    if table.column("demangledName").is_some() { "demangledName" } else { "shortName" }
}

impl Report {
    /// How the kernels of a chunk were launched.
    fn read_launched(&self, chunk: &Chunk) -> Result<Vec<Launched>> {
        let mut all = Vec::new();
        let Some(table) = self.database.table(chunk.table) else { return Ok(all) };
        let [start, end, name] = ["start", "end", name_column(table)];
        let columns = versions::columns(
            table,
            [start, end, name, "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"],
        );
        self.database.scan(table, &chunk.leaves, columns, |_, values| {
            let [start, end, name, sizes @ ..] = values;
            if let (Ok(start), Ok(end)) = (time(start), time(end))
                && start <= end
            {
                let [gx, gy, gz, bx, by, bz] = sizes.map(small);
                let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
                all.push(Launched { name: name.int().unwrap_or(-1), start, end, grid, block });
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// The work in a chunk of kernels, copies or memsets.
    fn read_work(&self, chunk: &Chunk) -> Result<WorkPart> {
        let mut part = WorkPart::default();
        let Some(table) = self.database.table(chunk.table) else { return Ok(part) };
        let name = name_column(table);
        let columns = versions::columns(
            table,
            ["start", "end", "deviceId", "globalPid", name, "bytes", "copyKind", "migrationCause"],
        );
        let mut last: Option<((i64, i64), u32)> = None;
        self.database.scan(table, &chunk.leaves, columns, |_, values| {
            let [start, end, device, process, name, bytes, code, cause] = values;
            let (start, end) = match (time(start), time(end)) {
                (Ok(start), Ok(end)) if start <= end => (start, end),
                _ => {
                    part.dropped += 1;
                    return Ok(());
                }
            };
            let key = (process.int().map_or(0, process_of), device.int().unwrap_or(0));
            let device = match last {
                Some((known, number)) if known == key => number,
                _ => {
                    let found = part.devices.iter().position(|d| *d == key);
                    let number = found.unwrap_or_else(|| {
                        part.devices.push(key);
                        part.devices.len() - 1
                    }) as u32;
                    last = Some((key, number));
                    number
                }
            };
            let code = code.int().unwrap_or(0);
            let copy = match chunk.contents {
                Contents::Kernels => None,
                Contents::Memsets => Some(CopyKind::Memset),
                _ => Some(copy_kind(code).0),
            };
            let managed = copy == Some(CopyKind::Managed);
            part.work.push(Work {
                device,
                copy,
                start,
                end,
                bytes: unsigned(bytes).unwrap_or(0),
                migration: managed.then(|| (migration(cause), code != UNIFIED_TO_HOST)),
                name: name.int().unwrap_or(-1),
            });
            Ok(())
        })?;
        Ok(part)
    }
}
