//! What each device did when, in columns of whole intervals.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_derive::communication::Communicated;
use gpuwhy_derive::sweep::Interval;
use gpuwhy_report::timeline::{DEVICES, DeviceRow, Mark, PhaseBox, TimeLine, TimeRow};

use super::super::{Gathered, Report, columns};
use super::{Beside, with_work};
use crate::phases::Program;

/// What lies before the first work of a device and after the last is drawn for this share of the time between.
const MARGIN: f64 = 0.25;

/// The time line of a report.
pub fn of(report: &Report, gathered: &Gathered, beside: &Beside<'_>) -> TimeLine {
    let cut = gathered.sums.intervals.cut;
    let whole = gathered.whole.as_ref();
    let columns = whole.map_or_else(|| columns(cut, cut.count), |whole| whole.columns);
    let phases = beside.programs.iter().flat_map(|program| &program.phases);
    let (mut first, mut last) = (0.0f64, report.seconds);
    for phase in phases {
        first = first.min(beside.seconds(phase.from_ns));
        last = last.max(beside.seconds(phase.to_ns));
    }
    let margin = MARGIN * report.seconds;
    let mut line = TimeLine {
        from_s: first.max(-margin),
        to_s: last.min(report.seconds + margin),
        column_s: columns.width as f64 / 1e9,
        tells_communication: whole.is_some(),
        ..TimeLine::default()
    };
    let mut programs = programs(beside);
    let shown = shown(report);
    let mut marks = marks(report, gathered, beside);
    let mut devices: Vec<TimeRow> = Vec::new();
    let devices_of = with_work(gathered).zip(&report.devices);
    for (place, ((number, intervals), of)) in devices_of.enumerate() {
        if !shown.contains(&place) {
            continue;
        }
        // The phases of a rank stand above its first device.
        let its = of.device.rank.and_then(|rank| programs.remove(&Some(rank)));
        devices.extend(its.into_iter().flatten());
        let each = (columns.width / cut.width).max(1) as usize;
        let waited = whole.and_then(|whole| whole.communication.get(number));
        let last_end = gathered.sums.last_end;
        let mut row =
            device_row(intervals, each, waited.map_or(&[][..], Vec::as_slice), |column| {
                let range = columns.range(column);
                range.end.min(last_end).saturating_sub(range.start)
            });
        row.name = of.device.label();
        row.marks = marks.remove(&number).unwrap_or_default();
        devices.push(TimeRow::Device(row));
    }
    line.rows = programs.into_values().flatten().chain(devices).collect();
    if shown.len() < report.devices.len() {
        line.left_out.push(format!(
            "Drawn are {} of {} devices: those that computed most and those that computed least.",
            shown.len(),
            report.devices.len()
        ));
    }
    if first < line.from_s || last > line.to_s {
        line.left_out.push(format!(
            "Phases of programs reach from {first:.3} s to {last:.3} s, beyond what is drawn; their table has all."
        ));
    }
    line
}

/// The places of the devices that are drawn: all of a few, else the extremes of many.
fn shown(report: &Report) -> Vec<usize> {
    let mut places: Vec<usize> = (0..report.devices.len()).collect();
    if places.len() > DEVICES {
        places.sort_by(|a, b| {
            report.devices[*a].kernel_s.total_cmp(&report.devices[*b].kernel_s).then(a.cmp(b))
        });
        let most = places.split_off(places.len() - DEVICES / 2);
        places.truncate(DEVICES / 2);
        places.extend(most);
    }
    places
}

/// The bands of programs: by rank where one program has it, else all under none.
fn programs(beside: &Beside<'_>) -> BTreeMap<Option<i64>, Vec<TimeRow>> {
    let mut of_rank: HashMap<i64, usize> = HashMap::new();
    for rank in beside.programs.iter().filter_map(|program| program.rank) {
        *of_rank.entry(rank).or_default() += 1;
    }
    let mut bands: BTreeMap<Option<i64>, Vec<TimeRow>> = BTreeMap::new();
    let mut number = 0;
    for program in &beside.programs {
        let alone = program.rank.filter(|rank| of_rank[rank] == 1);
        bands.entry(alone).or_default().push(band(program, beside, &mut number));
    }
    bands
}

fn band(program: &Program, beside: &Beside<'_>, number: &mut usize) -> TimeRow {
    let mut phases = Vec::with_capacity(program.phases.len());
    for phase in &program.phases {
        *number += 1;
        phases.push(PhaseBox {
            name: phase.name.clone(),
            kind: phase.kind,
            from_s: beside.seconds(phase.from_ns),
            to_s: beside.seconds(phase.to_ns),
            spent: phase.text(),
            row: format!("phase-{number}"),
        });
    }
    TimeRow::Program { name: program.name(), phases }
}

/// A device column by column; `each` intervals make one, which is so long.
fn device_row(
    intervals: &[Interval],
    each: usize,
    communicated: &[Communicated],
    length: impl Fn(usize) -> i64,
) -> DeviceRow {
    let mut row = DeviceRow::default();
    for (column, intervals) in intervals.chunks(each).enumerate() {
        let sum = |of: fn(&Interval) -> i64| intervals.iter().map(of).sum::<i64>();
        let (kernels, copies) = (sum(|i| i.kernel_ns), sum(|i| i.exposed_ns));
        let waited = communicated.get(column).copied().unwrap_or_default();
        let share = |ns: i64| ns as f64 / length(column).max(1) as f64;
        let [computing, communicating, copying] = waited.divide(kernels, copies);
        row.computing.push(share(computing));
        row.communicating.push(share(communicating));
        row.copying.push(share(copying));
    }
    row
}

/// What tables have rows for, by the numbers of devices.
fn marks(report: &Report, gathered: &Gathered, beside: &Beside<'_>) -> HashMap<usize, Vec<Mark>> {
    let mut marks: HashMap<usize, Vec<Mark>> = HashMap::new();
    let mut row = 0;
    for ((number, _), of) in with_work(gathered).zip(&report.devices) {
        for worst in &of.worst {
            row += 1;
            marks.entry(number).or_default().push(Mark {
                what: "stall",
                row: format!("stall-{row}"),
                from_s: worst.from_s,
                to_s: worst.to_s,
                says: format!("stall: {:.3} ms of exposed copy", worst.exposed_ms),
            });
        }
    }
    let gaps = report.launches.iter().flat_map(|launches| &launches.gaps);
    for (n, gap) in gaps.enumerate() {
        let number = beside.devices.as_ref().and_then(|devices| devices.streams.get(&gap.track));
        let Some(number) = number else { continue };
        marks.entry(*number as usize).or_default().push(Mark {
            what: "gap",
            row: format!("gap-{}", n + 1),
            from_s: gap.from_s,
            to_s: gap.from_s + gap.ms / 1e3,
            says: format!("gap of {:.3} ms: {}; {}", gap.ms, gap.why(), gap.did()),
        });
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_column_have_nothing_in_common_and_the_last_column_is_as_long_as_it_is() {
        // Two intervals of 100 ns a column; the recording ends after 50 ns of the last.
        let interval =
            |kernel_ns, exposed_ns| Interval { kernel_ns, exposed_ns, ..Interval::default() };
        let intervals = [interval(80, 10), interval(40, 60), interval(25, 5)];
        // Of the kernels 30 ns only communicate; of the exposed copies 20 ns are between devices.
        let waited =
            Communicated { exposed_ns: 50, kernels_exposed_ns: 30, ..Communicated::default() };
        let row = device_row(&intervals, 2, &[waited], |column| [200, 50][column]);
        assert_eq!(row.computing, [0.45, 0.5]);
        assert_eq!(row.communicating, [0.25, 0.0]);
        assert_eq!(row.copying, [0.25, 0.1]);
    }
}
