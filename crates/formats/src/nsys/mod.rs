//! NVIDIA Nsight Systems reports, as `nsys export -t sqlite` writes them, or `-t parquetdir` and
//! `-t arrowdir`.
//!
//! # What it sees
//! Kernels, copies, memsets and synchronizations of the GPUs; calls of the CUDA runtime and
//! driver, of the operating system and of MPI; NVTX ranges and marks; when threads were on their
//! CPUs, and samples of what they did there with their call chains; unified-memory faults; GPU
//! metrics; the profiler's own overhead. Every schema from 2020 to 2026 is read; `versions.rs` has what
//! differs.
//!
//! # How
//! [`report::Report::open`] reads the small tables (names, devices, processes) and cuts the others into
//! chunks of leaf pages. Any number of threads turn chunks into [`piece::Piece`]s;
//! [`place::Placer::place`] takes the pieces in order and gives ids, entities and tracks, so that the
//! trace does not depend on the number of threads.
//!
//! # What fools it
//! `deviceId` is the CUDA ordinal within its process, which is neither the number of the GPU in
//! `TARGET_INFO_GPU` nor the same in two processes; see [`report::Report::gpu`]. `correlationId` repeats
//! in every process.

mod align;
mod chunk;
mod directory;
mod dropped;
mod evidence;
mod gpu_tables;
mod host_tables;
mod identity;
mod ids;
mod import;
mod job;
mod nesting;
mod piece;
mod place;
mod read;
mod reordered;
mod report;
mod stacks;
mod states;
mod strings;
mod tables;
mod versions;
mod work;

use std::path::PathBuf;

use crate::importer::{Candidate, GpuWork, Import, Importer, Options};
use crate::sqlite::{Database, is_database};
use crate::{Error, Result};

/// The importer.
pub(crate) struct Nsys;

impl Importer for Nsys {
    fn name(&self) -> &'static str {
        "Nsight Systems"
    }

    fn describes(&self) -> &'static str {
        "databases of `nsys export -t sqlite`, directories of `-t parquetdir` and `-t arrowdir`; \
         .nsys-rep and .qdrep files after that export"
    }

    fn recognise(&self, candidate: &Candidate) -> bool {
        if candidate.is_dir {
            return directory::is_directory(&candidate.path);
        }
        if is_database(&candidate.head) {
            // A database that cannot be opened is reported by `open`, with the place of the damage.
            let database = Database::open(&candidate.path);
            return database.map_or(true, |database| database.table("StringIds").is_some());
        }
        is_unexported(&candidate.path)
    }

    fn open(&self, paths: &[PathBuf], options: &Options) -> Result<Box<dyn Import>> {
        check_exported(paths)?;
        Ok(Box::new(import::NsysImport::open(paths, options)?))
    }

    fn open_work(&self, paths: &[PathBuf]) -> Result<Option<Vec<Box<dyn GpuWork>>>> {
        check_exported(paths)?;
        work::open(paths).map(Some)
    }
}

/// Whether a file is a report in Nsight's own format, by its ending.
fn is_unexported(path: &std::path::Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("nsys-rep" | "qdrep"))
}

fn check_exported(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let is_report = is_unexported(path) && !is_database(&Candidate::read(path)?.head);
        if is_report && !path.is_dir() {
            return Err(Error::Unreadable {
                path: path.clone(),
                why: format!(
                    "it is a report in Nsight's own format; `nsys export -t sqlite {}` makes a database \
                     of it, which can be imported",
                    path.display()
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod job_tests;
#[cfg(test)]
mod launched_tests;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod stats_tests;
#[cfg(test)]
mod tests;
