//! How the clocks of several reports are aligned.
//!
//! Each report has a clock of its own that begins at 0, and holds the time in UTC at which it began.
//! Clocks of hosts differ, but no rank can leave a collective with a barrier before the last rank has
//! entered it, so the collective ends at nearly the same moment on all ranks. The median difference of
//! many such ends corrects the clocks; the differences that remain are reported as the residual.

use std::collections::HashMap;

use gpuwhy_schema::Name;

use super::chunk::Contents;
use super::report::Report;
use super::versions;
use crate::Result;

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
/// With fewer collectives than this, the reports' own clocks are kept.
const ENOUGH: usize = 8;

/// How the times of reports are moved to one clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Alignment {
    /// What to add to the times of each report, in ns; 0 for the first.
    pub shifts: Vec<i64>,
    /// The collective whose ends were compared: `MPI_Allreduce`, or the name of a kernel; `None` if the
    /// reports' own clocks were kept.
    pub by: Option<String>,
    /// How many collectives were compared.
    pub collectives: usize,
    /// How far apart the ends of a collective lie on the ranks after the correction: median, ns.
    pub residual_p50_ns: i64,
    /// The same at the 95th percentile, ns.
    pub residual_p95_ns: i64,
    /// How far apart they lie by the reports' own clocks: median, ns.
    pub before_p50_ns: i64,
    /// The error of times, in ns: the residual, or by how much clocks of hosts may differ.
    pub error_ns: i64,
}

/// The clocks of hosts that use NTP agree to about a millisecond (RFC 5905), in ns.
const UNCORRECTED: i64 = 1_000_000;

/// Aligns reports that were captured at the same time.
///
/// # Errors
/// A report cannot be read or is damaged.
pub(super) fn align(reports: &[Report]) -> Result<Alignment> {
    let first = reports.first().and_then(|r| r.epoch).unwrap_or(0);
    let shift = |report: &Report| report.epoch.map_or(0, |epoch| epoch.saturating_sub(first));
    let mut alignment =
        Alignment { shifts: reports.iter().map(shift).collect(), ..Alignment::default() };
    if reports.len() < 2 {
        return Ok(alignment);
    }
    alignment.error_ns = UNCORRECTED;
    let mpi = |name: &str| MPI.contains(&name);
    let nccl = |name: &str| name.starts_with("nccl") && !name.contains("Broadcast");
    let by_mpi: Result<Vec<_>> = reports.iter().map(|r| r.ends_of_mpi(mpi)).collect();
    if let Some(found) = common(&by_mpi?) {
        refine(&mut alignment, found);
        return Ok(alignment);
    }
    let by_nccl: Result<Vec<_>> = reports.iter().map(|r| r.ends_of_kernels(nccl)).collect();
    if let Some(found) = common(&by_nccl?) {
        refine(&mut alignment, found);
    }
    Ok(alignment)
}

/// The ends of the collective that was called most often, among those that all ranks called equally
/// often.
fn common(ranks: &[HashMap<Name, Vec<i64>>]) -> Option<(String, Vec<Vec<i64>>)> {
    let first = ranks.first()?;
    let equal = |name: &&Name| {
        ranks.iter().all(|rank| rank.get(*name).map(Vec::len) == first.get(*name).map(Vec::len))
    };
    let mut names: Vec<&Name> = first.keys().filter(equal).collect();
    names.sort();
    let name = names.into_iter().max_by_key(|name| first[*name].len())?;
    let ends = |rank: &HashMap<Name, Vec<i64>>| {
        let mut ends = rank[name].clone();
        ends.sort_unstable();
        ends
    };
    (first[name].len() >= ENOUGH).then(|| (name.to_string(), ranks.iter().map(ends).collect()))
}

/// Corrects the clocks by the ends of a collective, and measures the residual.
fn refine(alignment: &mut Alignment, (by, ends): (String, Vec<Vec<i64>>)) {
    let n = ends[0].len();
    let at = |shifts: &[i64], rank: usize, k: usize| ends[rank][k].saturating_add(shifts[rank]);
    let apart = |shifts: &[i64]| -> Vec<i64> {
        let mut all: Vec<i64> = (0..n)
            .map(|k| {
                let times = (0..ends.len()).map(|rank| at(shifts, rank, k));
                let (min, max) = (times.clone().min(), times.max());
                max.unwrap_or(0).saturating_sub(min.unwrap_or(0))
            })
            .collect();
        all.sort_unstable();
        all
    };
    let before = apart(&alignment.shifts);
    let mut shifts = alignment.shifts.clone();
    for (rank, shift) in shifts.iter_mut().enumerate().skip(1) {
        let mut late: Vec<i64> = (0..n)
            .map(|k| at(&alignment.shifts, rank, k).saturating_sub(at(&alignment.shifts, 0, k)))
            .collect();
        late.sort_unstable();
        *shift = shift.saturating_sub(late[n / 2]);
    }
    let after = apart(&shifts);
    let (p50, p95) = (after[n / 2], after[(n * 95 / 100).min(n - 1)]);
    *alignment = Alignment {
        shifts,
        by: Some(by),
        collectives: n,
        residual_p50_ns: p50,
        residual_p95_ns: p95,
        before_p50_ns: before[n / 2],
        error_ns: p95.max(1),
    };
}

impl Report {
    /// The ends of MPI calls with these names, in the order of rows, by name.
    fn ends_of_mpi(&self, wanted_name: impl Fn(&str) -> bool) -> Result<HashMap<Name, Vec<i64>>> {
        let mut ends: HashMap<Name, Vec<i64>> = HashMap::new();
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
    ) -> Result<HashMap<Name, Vec<i64>>> {
        // Most kernels have other names: each name is compared once, not for each kernel.
        let named = self.strings.numbered().filter(|(_, name)| wanted_name(name));
        let ids: HashMap<i64, Name> = named.map(|(id, name)| (id, name.clone())).collect();
        let mut ends: HashMap<Name, Vec<i64>> = HashMap::new();
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
