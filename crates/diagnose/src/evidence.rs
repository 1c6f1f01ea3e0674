//! Statements for or against a cause, with the rows that they rest on.

use gpuwhy_schema::{EntityId, Ns, Part, PartKind, TrackId};
use serde::Serialize;

/// Rows of the trace that a statement rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pointer {
    /// The table.
    pub table: &'static str,
    /// The track, if all rows lie on one.
    pub track: Option<u32>,
    /// From this time, ns.
    pub from_ns: i64,
    /// To this time, ns.
    pub to_ns: i64,
    /// A query that shows them, for DuckDB in the trace's directory.
    pub sql: String,
}

impl Pointer {
    /// The rows of `table` between two times, on one track or on all.
    pub fn new(table: &'static str, track: Option<TrackId>, from: Ns, to: Ns) -> Pointer {
        let track = track.map(|track| track.0);
        let on = track.map_or(String::new(), |t| format!(" and track = {t}"));
        let sql = format!(
            "select * from '{table}/*.parquet' where ts between {} and {}{on}",
            from.0, to.0
        );
        Pointer { table, track, from_ns: from.0, to_ns: to.0, sql }
    }

    /// The rows that a part of a step was derived from; `states` is the track of a thread's states.
    pub fn of_part(part: &Part, states: impl Fn(EntityId) -> Option<TrackId>) -> Pointer {
        let (table, track) = match part.kind {
            PartKind::Network => ("message", None),
            PartKind::BlockQueue
            | PartKind::BlockDevice
            | PartKind::CacheMiss
            | PartKind::ColdRead => ("io", None),
            PartKind::Gpu
            | PartKind::GpuQueue
            | PartKind::GpuThrottled
            | PartKind::GpuFault
            | PartKind::Copy
            | PartKind::PageFault
            | PartKind::Allocate
            | PartKind::Load => ("span", None),
            // Of a thread without states, calls say what it did.
            _ => states(part.thread).map_or(("span", None), |track| ("state", Some(track))),
        };
        Pointer::new(table, track, part.ts, part.ts.saturating_add(part.dur))
    }
}

/// One statement for or against a cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// What was seen.
    pub says: String,
    /// Where.
    pub rows: Option<Pointer>,
}

impl Evidence {
    /// A statement that rests on no rows in particular.
    pub fn of(says: impl Into<String>) -> Evidence {
        Evidence { says: says.into(), rows: None }
    }
}

/// What supports a cause and what contradicts it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statements {
    /// What supports it.
    pub supporting: Vec<Evidence>,
    /// What contradicts it.
    pub contradicting: Vec<Evidence>,
}
