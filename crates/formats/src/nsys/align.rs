//! By what the times of several reports are one: when each says that it began, and collectives that all have.
//!
//! Each report has a clock of its own that begins at 0, and holds the time in UTC at which it began.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::Name;

use super::chunk::Contents;
use super::job::file_name;
use super::report::Report;
use super::versions;
use crate::Result;
use crate::align::{Alignment, Base, Ends, end_together};

/// Collectives that no rank leaves before all ranks have entered them (MPI 4.0, chapter 6).
const MPI: &[&str] = &[
    "MPI_Barrier",
    "MPI_Allreduce",
    "MPI_Allgather",
    "MPI_Allgatherv",
    "MPI_Alltoall",
    "MPI_Alltoallv",
    "MPI_Reduce_scatter",
    "MPI_Reduce_scatter_block",
];

/// Aligns reports that were captured at the same time.
///
/// # Errors
/// A report cannot be read or is damaged.
pub(super) fn align(reports: &[Report]) -> Result<Alignment> {
    let first = reports.first().and_then(|r| r.epoch).unwrap_or(0);
    let shift = |report: &Report| report.epoch.map_or(0, |epoch| epoch.saturating_sub(first));
    let shifts: Vec<i64> = reports.iter().map(shift).collect();
    if reports.len() < 2 {
        return Ok(Alignment::of(Base::Alone, shifts, None));
    }
    let without: Vec<String> =
        reports.iter().filter(|r| r.epoch.is_none()).map(file_name).collect();
    let base = if without.is_empty() { Base::Hosts } else { Base::Missing(without) };
    let mpi = |name: &str| MPI.contains(&name);
    let by_mpi: Result<Vec<_>> = reports.iter().map(|r| r.ends_of_mpi(mpi)).collect();
    let mut ends = common(&by_mpi?);
    if ends.is_none() {
        let nccl = |name: &str| end_together(name.as_bytes());
        let by_nccl: Result<Vec<_>> = reports.iter().map(|r| r.ends_of_kernels(nccl)).collect();
        ends = common(&by_nccl?);
    }
    Ok(Alignment::of(base, shifts, ends.as_ref()))
}

/// The ends of the collective that all ranks called most often.
fn common(ranks: &[BTreeMap<Name, Vec<i64>>]) -> Option<Ends> {
    Ends::common(&ranks.iter().collect::<Vec<_>>(), Name::to_string)
}

impl Report {
    /// The ends of MPI calls with these names, in the order of rows, by name.
    fn ends_of_mpi(&self, wanted_name: impl Fn(&str) -> bool) -> Result<BTreeMap<Name, Vec<i64>>> {
        let mut ends: BTreeMap<Name, Vec<i64>> = BTreeMap::new();
        let mpi = self.chunks.iter().filter(|chunk| chunk.contents == Contents::Mpi);
        for chunk in mpi {
            let Some(table) = self.database.table(chunk.table) else { continue };
            let columns = versions::columns(table, ["end", "textId"]);
            self.database.scan(table, &chunk.leaves, columns, |_, [end, name]| {
                let name = name.int().and_then(|id| self.strings.get(id));
                if let (Some(end), Some(name)) = (end.int(), name)
                    && wanted_name(name)
                {
                    ends.entry(name.clone()).or_default().push(end);
                }
                Ok(())
            })?;
        }
        Ok(ends)
    }

    /// The ends of kernels with these names, in the order of rows, by name.
    fn ends_of_kernels(
        &self,
        wanted_name: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<Name, Vec<i64>>> {
        // Most kernels have other names: each name is compared once, not for each kernel.
        let named = self.strings.numbered().filter(|(_, name)| wanted_name(name));
        let ids: HashMap<i64, Name> = named.map(|(id, name)| (id, name.clone())).collect();
        let mut ends: BTreeMap<Name, Vec<i64>> = BTreeMap::new();
        if ids.is_empty() {
            return Ok(ends);
        }
        for chunk in self.chunks.iter().filter(|chunk| chunk.contents == Contents::Kernels) {
            let Some(table) = self.database.table(chunk.table) else { continue };
            let columns = versions::columns(table, ["end", "shortName"]);
            self.database.scan(table, &chunk.leaves, columns, |_, [end, name]| {
                if let (Some(end), Some(name)) = (end.int(), name.int())
                    && let Some(name) = ids.get(&name)
                {
                    ends.entry(name.clone()).or_default().push(end);
                }
                Ok(())
            })?;
        }
        Ok(ends)
    }
}
