//! What stands out in a recording, one kind of statement a file.

mod exchanges;
mod exposed_communication;
mod host_functions;
mod kernel_shift;
mod managed_memory;
mod shared_stall;
mod slow_link;
mod straggler;
mod transfer_bound;

use serde::Serialize;

use super::{Gathered, Report};
use crate::error::Result;

/// A statement about a recording, with the rows that it rests on.
#[derive(Clone, Debug, Serialize)]
pub struct Statement {
    /// What kind of statement it is.
    pub kind: &'static str,
    /// One sentence for users.
    pub says: String,
    /// A query that shows the rows, for DuckDB in the trace's directory.
    pub sql: Option<String>,
}

impl Statement {
    fn new(kind: &'static str, says: String) -> Statement {
        Statement { kind, says, sql: None }
    }
}

/// All that can be said of a recording, and what cannot.
pub fn all(report: &Report, gathered: &Gathered) -> Result<(Vec<Statement>, Vec<String>)> {
    let Gathered { sums, cut, names, devices, source, clocks, .. } = gathered;
    let (mut all, stalls_not_said) = shared_stall::statements(report, clocks, *cut);
    let mut not_said: Vec<String> = stalls_not_said.into_iter().collect();
    all.extend(straggler::statements(sums, names));
    all.extend(slow_link::statements(sums, names));
    let (shifts, shifts_not_said) = kernel_shift::statements(report, sums, clocks, *cut);
    all.extend(shifts);
    not_said.extend(shifts_not_said);
    all.extend(managed_memory::statements(report));
    all.extend(transfer_bound::statements(report));
    all.extend(exposed_communication::statements(report));
    let (exchanged, exchanges_not_said) = exchanges::statements(sums, devices, clocks);
    all.extend(exchanged);
    not_said.extend(exchanges_not_said);
    if let Some(source) = source {
        let stalls = shared_stall::worst(report, clocks, *cut);
        all.extend(host_functions::statements(source.trace(), &stalls)?);
    }
    Ok((all, not_said))
}
