//! When several reports were, against each other.
//!
//! Each report has a clock of its own that begins at 0, and says when that was in UTC. Hosts'
//! clocks differ, and captures do not begin together; but no rank can leave a collective that all
//! wait for before the last has come to it, so that its ends are nearly the same moment on all
//! ranks. The median difference of many such ends corrects the clocks, and what is left of the
//! differences is stated as the residual.

use std::collections::HashMap;

use gpuwhy_schema::Name;

use super::Report;
use crate::Result;

/// Calls that no rank leaves before all have come, and that are few times as long as a message:
/// from MPI 4.0, chapter 6.
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
/// Fewer collectives than this correct nothing.
const ENOUGH: usize = 8;

/// When each report was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alignment {
    /// What is to be added to the times of each report, ns. The first one's is 0.
    pub shifts: Vec<i64>,
    /// By which collective it was corrected: `MPI_Allreduce`, or the name of a kernel.
    pub by: Option<String>,
    /// How many collectives were compared.
    pub collectives: usize,
    /// How far apart the ends of a collective lie on the ranks, after that: median, ns.
    pub residual_p50_ns: i64,
    /// And at the 95th percentile.
    pub residual_p95_ns: i64,
    /// How far apart they lay before, by the reports' own clocks: median, ns.
    pub before_p50_ns: i64,
    /// How far off a time may be: the residual, or what clocks of hosts may differ by.
    pub error_ns: i64,
}

/// Hosts that keep their clocks by the network agree to about a millisecond (RFC 5905).
const UNCORRECTED: i64 = 1_000_000;

/// Aligns reports that were captured at the same time.
pub fn align(reports: &[Report]) -> Result<Alignment> {
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

/// The ends of the collective that was called most often, equally often by all.
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
