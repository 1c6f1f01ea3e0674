//! The phases of programs as a table of a page.

use gpuwhy_report::table::{Cell, Row, Table};

use crate::phases::{Phase, Program};

/// The phases of these programs, with times from `origin` in the seconds that `seconds` makes of trace times. A
/// row has the id `phase-N`, counted from 1 over all programs.
pub fn of(programs: &[Program], origin: &str, seconds: impl Fn(i64) -> f64) -> Table {
    let all = programs.iter().flat_map(|program| program.phases.iter().map(move |p| (program, p)));
    let row = |(n, (program, phase)): (usize, (&Program, &Phase))| Row {
        id: Some(format!("phase-{}", n + 1)),
        cells: vec![
            Cell::Name(program.name()),
            Cell::Name(phase.name.clone()),
            Cell::Text(phase.kind.replace('_', "-")),
            Cell::thousandths(seconds(phase.from_ns)),
            Cell::thousandths(seconds(phase.to_ns)),
            Cell::thousandths(phase.ms()),
            Cell::thousandths(phase.spent.kernels_ms),
            Cell::thousandths(phase.spent.copies_ms),
            Cell::thousandths(phase.spent.copies_alone_ms),
            Cell::Text(phase.text()),
        ],
    };
    Table {
        id: "phases",
        title: "Phases of programs, and what they were spent on".into(),
        note: format!(
            "Times count from {origin}. Copies alone: while no kernel ran. The times of GPUs and of the thread with \
             most calls overlap."
        ),
        columns: vec![
            "program",
            "phase",
            "kind",
            "from, s",
            "to, s",
            "length, ms",
            "kernels, ms",
            "copies, ms",
            "copies alone, ms",
            "spent on",
        ],
        rows: all.enumerate().map(row).collect(),
        ..Table::default()
    }
}
