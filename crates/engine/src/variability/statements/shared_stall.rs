//! Intervals in which several devices stall at once: something that they share is slow.

use std::ops::Range;

use gpuwhy_derive::sweep::Cut;
use gpuwhy_diagnose::variability::{Outliers, Together, shared};
use gpuwhy_schema::Ns;

use super::Statement;
use crate::variability::clocks::Clocks;
use crate::variability::{NS_MS, Report, SEVERAL_FILES};

/// The most shared stalls that are listed.
const LISTED: usize = 5;

/// The worst shared stalls, and how many there are against how many there would be by chance; and what is not
/// said of devices whose intervals are not the same times.
pub fn statements(report: &Report, clocks: &Clocks, cut: Cut) -> (Vec<Statement>, Vec<String>) {
    let groups = groups(report, clocks, cut);
    let of = if groups.len() > 1 { " of one file" } else { "" };
    let all = groups.iter().flat_map(|group| of_group(report, &outliers(report, group), cut, of));
    let mut not = not_said(report, &groups, clocks, cut);
    not.extend(not_said_of_one(report, clocks, cut));
    (all.collect(), not)
}

/// That stalls of devices are not told whose own work was read from several files, if there are any.
fn not_said_of_one(report: &Report, clocks: &Clocks, cut: Cut) -> Option<String> {
    let all = report.devices.iter().zip(&report.numbers);
    let shared: Vec<_> = all.filter(|(of, _)| of.rule == SEVERAL_FILES).collect();
    let error = shared.iter().map(|(_, number)| clocks.within(**number)).max()?;
    Some(format!(
        "not said in which intervals {} stall{}, nor how much of what the processes of one file copy or exchange the \
         others' kernels hide: the work was read from several files, {error}, and an interval is {:.3} ms long",
        match shared.as_slice() {
            [(one, _)] => one.device.label(),
            several => format!("{} devices", several.len()),
        },
        if shared.len() == 1 { "s" } else { "" },
        cut.width as f64 / NS_MS
    ))
}

/// Devices whose intervals are the same times: an interval of one may lie by half of it beside that of another.
fn groups(report: &Report, clocks: &Clocks, cut: Cut) -> Vec<Vec<u32>> {
    clocks.groups(&report.numbers, Ns(cut.width / 2))
}

/// The anomalous intervals of these devices.
fn outliers(report: &Report, group: &[u32]) -> Vec<Outliers> {
    let all = report.numbers.iter().zip(&report.outliers);
    all.filter(|(number, _)| group.contains(number)).map(|(_, found)| found.clone()).collect()
}

/// That stalls of different files are not compared, if there are any.
fn not_said(report: &Report, groups: &[Vec<u32>], clocks: &Clocks, cut: Cut) -> Vec<String> {
    let stalls = |group: &&Vec<u32>| outliers(report, group).iter().any(|o| !o.found.is_empty());
    if groups.iter().filter(stalls).count() < 2 {
        return Vec::new();
    }
    vec![format!(
        "not said whether devices of different files stall together, and what threads do meanwhile: {}, and \
         an interval is {:.3} ms long",
        clocks.among(&report.numbers),
        cut.width as f64 / NS_MS
    )]
}

/// What is said of devices whose intervals are the same times.
fn of_group(report: &Report, outliers: &[Outliers], cut: Cut, of: &str) -> Vec<Statement> {
    let devices = outliers.len();
    if devices < 2 {
        return Vec::new();
    }
    let together = shared(outliers, report.intervals);
    let most = together.found.first().map_or(0, |stall| stall.series);
    // Where chance makes as many, none of them is worth a sentence of its own.
    let listed = [2, most].into_iter().any(|k| together.is_more_than_chance(k));
    let seconds = |ns: i64| (ns - cut.origin) as f64 / 1e9;
    let mut all: Vec<Statement> = together
        .found
        .iter()
        .take(if listed { LISTED } else { 0 })
        .map(|stall| {
            let range = cut.range(stall.index);
            let says = format!(
                "{} of {devices} devices{of} stall together from {:.3} to {:.3} s: {:.1} ms of exposed copy \
                 each on average",
                stall.series,
                seconds(range.start),
                seconds(range.end).min(report.seconds),
                stall.mean / NS_MS
            );
            let sql = format!(
                "select * from 'copy/*.parquet' where ts between {} and {}",
                range.start, range.end
            );
            Statement::new("shared_stall", says).with_sql(sql)
        })
        .collect();
    if most > 1 {
        let devices = format!("{devices} devices{of}");
        let says = against_chance(&together, &devices, most, listed);
        all.push(match listed {
            true => Statement::new("shared_stalls", says),
            false => Statement::no_finding("shared_stalls", says),
        });
    }
    all
}

/// How many stalls are shared, and how many chance would make; `listed` if it is more than that.
fn against_chance(together: &Together, devices: &str, most: usize, listed: bool) -> String {
    let count = |n: usize| match n {
        1 => "1 interval is".to_owned(),
        n => format!("{n} intervals are"),
    };
    let mut says = format!(
        "{} anomalous on several of {devices} at once; if devices stalled independently of each \
         other, {} would be",
        count(together.at_least(2)),
        rounded(together.expected(2))
    );
    if most > 2 {
        says += &format!(
            "; {} so on {most} of them, where {} would be",
            count(together.at_least(most)),
            rounded(together.expected(most))
        );
    }
    says + if listed { ": they share a cause" } else { ": no more than chance makes" }
}

/// A number of intervals that may be far below one: with one digit that counts.
fn rounded(expected: f64) -> String {
    match expected {
        0.0 => "0".into(),
        tiny if tiny < 1e-6 => "less than 0.000001".into(),
        small if small < 0.095 => format!("{small:.*}", (-small.log10()).ceil() as usize),
        many => format!("{many:.1}"),
    }
}

/// The times of the worst stalls: those in which several devices stalled, or the one there is. None where they
/// are not the same times for all devices, nor then for the threads of all files.
pub fn worst(report: &Report, clocks: &Clocks, cut: Cut) -> Vec<Range<i64>> {
    if !clocks.are_one(&report.numbers, Ns(cut.width / 2)) {
        return Vec::new();
    }
    let shared = shared(&report.outliers, report.intervals).found;
    let mut worst: Vec<usize> = match report.outliers.as_slice() {
        [one] => one.found.iter().map(|o| o.index).take(LISTED).collect(),
        _ => shared.iter().map(|stall| stall.index).take(LISTED).collect(),
    };
    worst.sort_unstable();
    worst.iter().map(|&i| cut.range(i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_expectations_keep_a_digit() {
        let of = [0.0, 1e-9, 0.00012, 0.0104, 0.094, 0.3, 3.04];
        assert_eq!(
            of.map(rounded),
            ["0", "less than 0.000001", "0.0001", "0.01", "0.09", "0.3", "3.0"]
        );
    }

    #[test]
    fn five_of_five_devices_are_said_against_the_chance_of_five() {
        let shared =
            |index, series| gpuwhy_diagnose::variability::Shared { index, series, mean: 1.0 };
        let found = vec![shared(1, 5), shared(2, 5), shared(3, 5), shared(4, 5)];
        let by_chance = vec![100.0, 18.5, 1.4, 0.05, 0.0012, 0.00001];
        assert_eq!(
            against_chance(&Together { found, by_chance }, "5 devices", 5, true),
            "4 intervals are anomalous on several of 5 devices at once; if devices stalled independently \
             of each other, 1.4 would be; 4 intervals are so on 5 of them, where 0.00001 would be: they \
             share a cause"
        );
        let found = vec![shared(1, 2)];
        let by_chance = vec![100.0, 30.0, 3.0, 0.1];
        assert_eq!(
            against_chance(&Together { found, by_chance }, "3 devices", 2, false),
            "1 interval is anomalous on several of 3 devices at once; if devices stalled independently of \
             each other, 3.0 would be: no more than chance makes"
        );
    }
}
