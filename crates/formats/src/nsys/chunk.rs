//! Which tables of a report are read, and how they are cut into chunks that threads can share.

use super::tables::Tables;
use crate::Result;

/// Leaf pages of a chunk: some ten thousand rows.
const LEAVES: usize = 256;

/// Contents a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Contents {
    /// Kernels.
    Kernels,
    /// Copies between host and devices, and among devices.
    Copies,
    /// Memsets.
    Memsets,
    /// Waits of the host for a device.
    Synchronizations,
    /// Calls of the CUDA runtime and driver.
    CudaCalls,
    /// NVTX ranges, marks and names.
    Nvtx,
    /// Calls of the operating system's libraries.
    OsCalls,
    /// Calls of MPI.
    Mpi,
    /// When threads came to a CPU or left it.
    Scheduling,
    /// The profiler's own overhead.
    Overhead,
    /// Sampled metrics of GPUs.
    GpuMetrics,
    /// Page faults of unified memory on the host.
    CpuFaults,
    /// Page faults of unified memory on a device.
    GpuFaults,
    /// The call chains of samples, a row a function.
    Chains,
    /// Samples of threads on CPUs.
    Samples,
}

/// Tables that are read, in the order in which they are. Contents others refer to comes first.
const TABLES: &[(&str, Contents)] = &[
    ("CUPTI_ACTIVITY_KIND_RUNTIME", Contents::CudaCalls),
    ("CUPTI_ACTIVITY_KIND_KERNEL", Contents::Kernels),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", Contents::Copies),
    ("CUPTI_ACTIVITY_KIND_MEMSET", Contents::Memsets),
    ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", Contents::Synchronizations),
    ("NVTX_EVENTS", Contents::Nvtx),
    ("MPI_P2P_EVENTS", Contents::Mpi),
    ("MPI_COLLECTIVES_EVENTS", Contents::Mpi),
    ("MPI_START_WAIT_EVENTS", Contents::Mpi),
    ("MPI_OTHER_EVENTS", Contents::Mpi),
    ("OSRT_API", Contents::OsCalls),
    ("SCHED_EVENTS", Contents::Scheduling),
    ("PROFILER_OVERHEAD", Contents::Overhead),
    ("CUDA_UM_CPU_PAGE_FAULT_EVENTS", Contents::CpuFaults),
    ("CUDA_UM_GPU_PAGE_FAULT_EVENTS", Contents::GpuFaults),
    ("GPU_METRICS", Contents::GpuMetrics),
    ("SAMPLING_CALLCHAINS", Contents::Chains),
    ("COMPOSITE_EVENTS", Contents::Samples),
];

/// Tables that describe the others or the report itself, by how their names begin.
const ABOUT: &[&str] = &["enum_", "target_info_", "meta_data", "export_meta_data", "analysis_"];
/// More such tables, by their whole names.
const ABOUT_TOO: &[&str] =
    &["stringids", "processes", "threadnames", "processstreams", "unwindmethodtype", "mpi_ranks"];

/// Some leaf pages of a table, which one thread reads at a time.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// The name of the table.
    pub table: &'static str,
    /// What the table holds.
    pub contents: Contents,
    /// The numbers of the leaf pages. Progress is counted in them.
    pub leaves: Vec<u32>,
}

/// The chunks of a report, and what is left out.
pub(super) struct Plan {
    /// In the order of reading.
    pub chunks: Vec<Chunk>,
    /// Tables with rows that are not read.
    pub unread: Vec<String>,
}

/// Cuts the tables of a report into chunks.
pub(super) fn plan(tables: &Tables) -> Result<Plan> {
    let mut chunks = Vec::new();
    let mut read = Vec::new();
    for &(name, contents) in TABLES {
        tables.check_is_table(name)?;
        let Some(table) = tables.table(name) else { continue };
        // Without this column it is another table of the same name.
        let needed = match contents {
            Contents::GpuMetrics => "timestamp",
            Contents::Chains => "stackDepth",
            _ => "start",
        };
        if table.column(needed).is_none() {
            continue;
        }
        read.push(name);
        let leaves = tables.leaves(table)?;
        let parts = leaves.chunks(tables.leaves_at_a_time(table, LEAVES));
        chunks.extend(parts.map(|l| Chunk { table: name, contents, leaves: l.to_vec() }));
    }
    Ok(Plan { chunks, unread: unread(tables, &read) })
}

/// Tables with rows that are neither read nor describe others.
fn unread(tables: &Tables, read: &[&str]) -> Vec<String> {
    let mut unread = Vec::new();
    for table in tables.definitions() {
        let name = table.name.to_ascii_lowercase();
        let about = ABOUT.iter().any(|prefix| name.starts_with(prefix))
            || ABOUT_TOO.contains(&&*name)
            || name.starts_with("sqlite_");
        let is_read = read.iter().any(|read| read.eq_ignore_ascii_case(&name));
        // Damage in a table that is not read does not matter.
        if !is_read && !about && tables.has_rows(table) {
            unread.push(table.name.clone());
        }
    }
    unread
}
