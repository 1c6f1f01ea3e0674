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
    /// Whether it is a finding; else it was looked at, and is as it should be or as chance makes it.
    #[serde(skip)]
    is_finding: bool,
}

impl Statement {
    fn new(kind: &'static str, says: String) -> Statement {
        Statement { kind, says, sql: None, is_finding: true }
    }

    fn no_finding(kind: &'static str, says: String) -> Statement {
        Statement { is_finding: false, ..Statement::new(kind, says) }
    }

    fn with_sql(self, sql: String) -> Statement {
        Statement { sql: Some(sql), ..self }
    }
}

/// All that is said of a recording.
#[derive(Default)]
pub struct Statements {
    /// What stands out.
    pub findings: Vec<Statement>,
    /// What was looked at and is no finding.
    pub no_findings: Vec<Statement>,
    /// What cannot be said, a sentence each.
    pub not_said: Vec<String>,
}

/// All that can be said of a recording, and what cannot.
pub fn all(report: &Report, gathered: &Gathered) -> Result<Statements> {
    let Gathered { sums, cut, names, devices, source, clocks, .. } = gathered;
    let (mut all, mut not_said) = shared_stall::statements(report, clocks, *cut);
    all.extend(straggler::statements(sums, names));
    all.extend(slow_link::statements(sums, names));
    let (shifts, shifts_not_said) = kernel_shift::statements(report, gathered)?;
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
    let (findings, no_findings) = all.into_iter().partition(|statement| statement.is_finding);
    Ok(Statements { findings, no_findings, not_said })
}
