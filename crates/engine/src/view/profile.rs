//! What a page says of a profile that another tool recorded, besides the verdict.

use gpuwhy_diagnose::verdict::Finding;
use gpuwhy_report::table::{Cell, Row, Table};
use gpuwhy_report::{Band, Interval, Lane, Level, TimeTrack};
use gpuwhy_schema::Ns;

use super::Window;
use crate::analysis::Analysis;
use crate::phase_table as table;
use crate::phases::{Program, without_rounds};

/// The most programs whose phases are drawn; the table lists all.
const PROGRAMS: usize = 16;

/// What to do where nothing can be judged.
const MARK_STEPS: &str = "No GPU waits, collectives or waits of busy threads are regular enough to take in the place of \
                          steps. Where the time went is below. To get a verdict, \
                          mark each step in the program (GPUWHY_RING, include/gpuwhy.h), or name a function that runs \
                          once a step: gpuwhy record --step uprobe:BINARY:SYMBOL -p PID";

/// What was judged where no steps are marked, and what to do where nothing was.
pub fn judged(analysis: &Analysis, trace: &str) -> Vec<String> {
    let rounds = &analysis.units.rounds;
    let instead = (!rounds.is_empty()).then(|| analysis.units.why_rounds().to_owned());
    let judged = instead.into_iter().chain(rounds.iter().map(|of| of.text()));
    let advice = || match analysis.rests_on {
        Some(_) => without_rounds(&analysis.programs, trace),
        None => MARK_STEPS.to_owned(),
    };
    let nothing = analysis.units.steps.is_empty().then(advice);
    // A short recording has no table of changes, and what is not known is to be read nevertheless.
    let not_known = analysis.threads.iter().filter(|threads| threads.changes.is_empty());
    let not_known = not_known.flat_map(|threads| &threads.not_known);
    let not_known = not_known.map(|what| format!("Not known: {what}."));
    judged.chain(nothing).chain(not_known).collect()
}

/// What takes most of the time, where nothing was slower than usual.
pub fn mostly(analysis: &Analysis) -> Vec<String> {
    if !analysis.findings.is_empty() {
        return Vec::new();
    }
    analysis.programs.iter().flat_map(Program::mostly).collect()
}

/// Page time of a stretch of the trace.
fn during(from_ns: i64, to_ns: i64, start: Ns) -> Interval {
    Interval { from: from_ns.saturating_sub(start.0), to: to_ns.saturating_sub(start.0) }
}

fn show(from_ns: i64, to_ns: i64, start: Ns) -> Cell {
    let Interval { from, to } = during(from_ns, to_ns, start);
    Cell::Show(from, to)
}

/// The findings after the first.
pub fn others(findings: &[Finding], start: Ns) -> Table {
    let row = |f: &Finding| Row {
        id: None,
        cells: vec![
            show(f.from_ns, f.to_ns, start),
            Cell::Text(f.class.to_string()),
            f.culprit.as_ref().map_or(Cell::Nothing, |c| Cell::Name(c.to_string())),
            Cell::thousandths(f.usual_ms),
            Cell::thousandths(f.slow_ms),
            Cell::Signed(f.excess_ms, 3),
            Cell::Number(f.confidence, 2),
            Cell::Text(f.summary.clone()),
        ],
    };
    Table {
        id: "others",
        title: "Other findings".into(),
        columns: vec![
            "when",
            "class",
            "culprit",
            "usual, ms",
            "slow, ms",
            "excess, ms",
            "confidence",
            "summary",
        ],
        rows: findings.iter().skip(1).map(row).collect(),
        ..Table::default()
    }
}

/// The phases of programs, each with a button that shows it.
pub fn phase_table(analysis: &Analysis, start: Ns) -> Table {
    let seconds = |ns: i64| ns.saturating_sub(start.0) as f64 / 1e9;
    let mut all = table::of(&analysis.programs, "the beginning of the time line", seconds);
    let phases = analysis.programs.iter().flat_map(|program| &program.phases);
    let Some(from) = all.columns.iter().position(|column| *column == "from, s") else { return all };
    // The time line is a canvas, so that a button leads there and no link.
    all.columns.splice(from..from + 2, ["when"]);
    for (row, phase) in all.rows.iter_mut().zip(phases) {
        row.id = None;
        row.cells.splice(from..from + 2, [show(phase.from_ns, phase.to_ns, start)]);
    }
    all
}

/// The phases of programs as tracks.
pub fn phases(analysis: &Analysis, window: &Window) -> Vec<TimeTrack> {
    let track = |program: &crate::phases::Program| {
        let mut values: Vec<String> = Vec::new();
        let mut bands: Vec<Band> = Vec::with_capacity(program.phases.len());
        for phase in &program.phases {
            let value = values.iter().position(|v| *v == phase.name).unwrap_or_else(|| {
                values.push(phase.name.clone());
                values.len() - 1
            });
            let Interval { from, to } = during(phase.from_ns, phase.to_ns, window.start());
            bands.push(Band(from, to, value as u32));
        }
        let level = |within: &Interval| {
            let clip = |b: &Band| Band(b.0.max(within.from), b.1.min(within.to), b.2);
            let items = bands.iter().map(clip).filter(|band| band.1 > band.0).collect();
            Level { during: *within, items }
        };
        let levels = window.view.levels.iter().map(level).collect();
        let lane = Lane::Bands { values, levels };
        TimeTrack { group: program.name(), label: "phase".into(), lane }
    };
    analysis.programs.iter().take(PROGRAMS).map(track).collect()
}
