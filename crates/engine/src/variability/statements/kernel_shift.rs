//! Kernels that take longer from some time on, or less. A kernel that is launched in other sizes, or that the next
//! phase of a program runs for something else, takes another time as it should, and is told as that.

use std::collections::BTreeMap;

use gpuwhy_derive::sweep::Cut;
use gpuwhy_derive::{STRETCHES, Sum};
use gpuwhy_diagnose::variability::{Moments, Shift, Sides, is_of_kinds, shift};
use gpuwhy_schema::{Name, Ns};

use super::Statement;
use crate::error::Result;
use crate::variability::kinds::{Kind, Kinds, OfKind, Size, Wanted};
use crate::variability::sums::KernelSum;
use crate::variability::{Gathered, NS_MS, Report};

/// The most kernels that are listed, of each sort.
const LISTED: usize = 3;
/// The most whose launches are looked at, those that changed most.
const LOOKED_AT: usize = 16;
/// Kinds of launches that are named in a sentence.
const NAMED: usize = 3;

/// A kernel whose duration changes.
struct Candidate<'a> {
    name: &'a Name,
    stat: &'a KernelSum,
    found: Found,
}

/// A change of durations.
#[derive(Clone, Copy)]
struct Found {
    /// The interval with which it begins.
    interval: usize,
    shift: Shift,
    more_ns: f64,
}

/// The kernels whose duration changed most, and those that only seem to; and what is not said, because kernels of
/// several files are not in the order of time.
pub fn statements(
    report: &Report,
    gathered: &Gathered,
) -> Result<(Vec<Statement>, Option<String>)> {
    let Gathered { sums, cut, clocks, .. } = gathered;
    let all: i64 = sums.kernels.values().map(|stat| stat.sum.sum).sum();
    let least = all as f64 / 100.0;
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for (name, stat) in &sums.kernels {
        let found = found(&stat.stretches.splits(), least);
        candidates.extend(found.map(|found| Candidate { name, stat, found }));
    }
    candidates.sort_by(|a, b| {
        let more = |c: &Candidate<'_>| c.found.more_ns.abs();
        more(b).total_cmp(&more(a)).then(a.name.cmp(b.name))
    });
    candidates.truncate(LOOKED_AT);
    if candidates.is_empty() {
        return Ok((Vec::new(), None));
    }
    let wanted: Vec<_> = candidates.iter().map(|c| (c.name, &c.stat.stretches)).collect();
    let kinds = Wanted::new(&wanted, *cut).read(gathered)?;
    let mut told = Told::default();
    for (at, candidate) in candidates.iter().enumerate() {
        match kinds.as_ref().map(|kinds| &kinds[at]) {
            Some(kinds) => Looked { candidate, kinds, least, cut: *cut }.tell(&mut told),
            None => told.shifts.push(shifted(candidate.name, "", candidate.found, *cut)),
        }
    }
    told.shifts.truncate(LISTED);
    told.kinds.truncate(LISTED);
    // A change is told to one stretch of all that were compared.
    let stretch = cut.width.saturating_mul(cut.count as i64) / STRETCHES as i64;
    let mut not_said = None;
    if !told.shifts.is_empty() && !clocks.are_one(&report.numbers, Ns(stretch / 2)) {
        told.shifts.clear();
        not_said = Some(format!(
            "not said from when on kernels take longer or less long: {}, and a change is told to {:.3} ms",
            clocks.among(&report.numbers),
            stretch as f64 / NS_MS
        ));
    }
    told.shifts.append(&mut told.kinds);
    Ok((told.shifts, not_said))
}

/// A change among these durations, if it is worth `least` ns.
fn found(splits: &[(usize, Sum, Sum)], least: f64) -> Option<Found> {
    let sides: Vec<Sides> = splits.iter().map(|(_, a, b)| (moments(a), moments(b))).collect();
    let shift = shift(&sides)?;
    let more_ns = (shift.after.mean - shift.before.mean) * shift.after.count as f64;
    let interval = splits[shift.index].0;
    (more_ns.abs() >= least).then_some(Found { interval, shift, more_ns })
}

fn moments(sum: &Sum) -> Moments {
    Moments { count: sum.count, mean: sum.mean(), std: sum.std() }
}

/// What is told.
#[derive(Default)]
struct Told {
    shifts: Vec<Statement>,
    /// Changes that are none of how long a launch takes.
    kinds: Vec<Statement>,
}

/// The launches of a kernel, being looked at.
struct Looked<'a> {
    candidate: &'a Candidate<'a>,
    kinds: &'a Kinds,
    least: f64,
    cut: Cut,
}

/// Launches of some kinds together.
type Group<'a> = Vec<(&'a Kind, &'a OfKind)>;

impl Looked<'_> {
    fn tell(&self, told: &mut Told) {
        let all: Group<'_> = self.kinds.by.iter().collect();
        let by_size = grouped(&all, |kind| kind.size);
        if is_of_kinds(&self.candidate.found.shift, &self.sides(by_size.values())) {
            let before = told.shifts.len();
            for (size, group) in &by_size {
                self.tell_group(group, &format!(" in launches of {size}"), told);
            }
            if told.shifts.len() == before {
                told.kinds.push(self.by_size(&by_size));
            }
        } else {
            self.tell_group(&all, "", told);
        }
    }

    /// What changed within these launches, if anything did.
    fn tell_group(&self, group: &Group<'_>, of: &str, told: &mut Told) {
        let each = self.candidate.stat.stretches.each();
        let sums = group.iter().fold([Sum::default(); STRETCHES], |mut all, (_, of)| {
            all.iter_mut().zip(&of.sums).for_each(|(all, sum)| all.merge(sum));
            all
        });
        let last = sums.iter().rposition(|sum| sum.count > 0).unwrap_or(0);
        let merged = |sums: &[Sum]| {
            sums.iter().fold(Sum::default(), |mut all, sum| {
                all.merge(sum);
                all
            })
        };
        let split = |at: usize| (at * each, merged(&sums[..at]), merged(&sums[at..]));
        let splits: Vec<_> = (1..=last).map(split).collect();
        let Some(found) = found(&splits, self.least) else { return };
        let by_phase = grouped(group, |kind| kind.phase);
        let kinds = grouped(group, |kind| *kind);
        let sides: Vec<Sides> =
            kinds.values().map(|group| sides(group, found.interval / each)).collect();
        if by_phase.len() > 1 && is_of_kinds(&found.shift, &sides) {
            told.kinds.push(self.by_phase(&by_phase, of));
        } else {
            told.shifts.push(shifted(self.candidate.name, of, found, self.cut));
        }
    }

    fn sides<'g>(&self, groups: impl Iterator<Item = &'g Group<'g>>) -> Vec<Sides> {
        let each = self.candidate.stat.stretches.each();
        groups.map(|group| sides(group, self.candidate.found.interval / each)).collect()
    }

    /// That a kernel is launched in several sizes.
    fn by_size(&self, groups: &BTreeMap<Size, Group<'_>>) -> Statement {
        let s = |at: i64| (at - self.cut.origin) as f64 / 1e9;
        let mut of_size: Vec<(Sum, String)> = Vec::new();
        let begin = |group: &Group<'_>| group.iter().map(|(_, of)| of.from).min().unwrap_or(0);
        let mut in_order: Vec<_> = groups.iter().collect();
        in_order.sort_by_key(|(size, group)| (begin(group), **size));
        for (size, group) in in_order {
            let all = sum_of(group);
            let from = begin(group);
            let to = group.iter().map(|(_, of)| of.to).max().unwrap_or(0);
            let says = format!(
                "{:.3} us on average in {} launches of {size} ({:.3} to {:.3} s)",
                all.mean() / 1e3,
                all.count,
                s(from),
                s(to)
            );
            of_size.push((all, says));
        }
        let says = format!(
            "{} took {}: it was launched in {} sizes, and no launch of one size came to take longer or less long",
            short(self.candidate.name),
            named(of_size, "sizes"),
            groups.len()
        );
        Statement::no_finding("kernel_sizes", says)
    }

    /// That a kernel takes another time in another phase.
    fn by_phase(&self, groups: &BTreeMap<Option<usize>, Group<'_>>, of: &str) -> Statement {
        let mut of_phase: Vec<(Sum, String)> = Vec::new();
        for (phase, group) in groups {
            let all = sum_of(group);
            let phase = phase.and_then(|place| self.kinds.phases.get(place));
            let phase = phase.map_or("outside of phases".to_owned(), |name| format!("in `{name}`"));
            let (mean, count) = (all.mean() / 1e3, all.count);
            of_phase.push((all, format!("{mean:.3} us on average {phase} ({count} calls)")));
        }
        let says = format!(
            "{}{of} took {}: these are phases of the program, and within one it came to take neither longer nor \
             less long",
            short(self.candidate.name),
            named(of_phase, "phases")
        );
        Statement::no_finding("kernel_phases", says)
    }
}

/// Launches by what tells them apart.
fn grouped<'g, K: Ord>(group: &Group<'g>, key: impl Fn(&Kind) -> K) -> BTreeMap<K, Group<'g>> {
    let mut groups: BTreeMap<K, Group<'g>> = BTreeMap::new();
    for &(kind, of) in group {
        groups.entry(key(kind)).or_default().push((kind, of));
    }
    groups
}

/// The durations of a group before a stretch, and from there on.
fn sides(group: &Group<'_>, stretch: usize) -> Sides {
    let (mut before, mut after) = (Sum::default(), Sum::default());
    for (_, of) in group {
        of.sums[..stretch].iter().for_each(|sum| before.merge(sum));
        of.sums[stretch..].iter().for_each(|sum| after.merge(sum));
    }
    (moments(&before), moments(&after))
}

fn sum_of(group: &Group<'_>) -> Sum {
    let mut all = Sum::default();
    group.iter().flat_map(|(_, of)| &of.sums).for_each(|sum| all.merge(sum));
    all
}

/// The kinds with most time, in their order.
fn named(mut kinds: Vec<(Sum, String)>, what: &str) -> String {
    let mut most: Vec<i64> = kinds.iter().map(|(sum, _)| sum.sum).collect();
    most.sort_unstable_by_key(|ns| std::cmp::Reverse(*ns));
    let least = most.get(NAMED - 1).copied().unwrap_or(i64::MIN);
    let all = kinds.len();
    kinds.retain(|(sum, _)| sum.sum >= least);
    kinds.truncate(NAMED);
    let others = all - kinds.len();
    let mut says: Vec<String> = kinds.into_iter().map(|(_, says)| says).collect();
    if others > 0 {
        says.push(format!("and other times in {others} more {what}"));
    }
    says.join(", ")
}

fn short(name: &Name) -> String {
    name.chars().take(90).collect()
}

/// That a kernel, or its launches of one kind, came to take longer or less long.
fn shifted(name: &Name, of: &str, found: Found, cut: Cut) -> Statement {
    let Found { interval, shift: Shift { before, after, .. }, more_ns } = found;
    let at = (cut.range(interval).start - cut.origin) as f64 / 1e9;
    let says = format!(
        "{}{of} took {:.3} us on average until {at:.3} s and {:.3} us from there on ({} and {} calls, \
         {:+.1} ms)",
        short(name),
        before.mean / 1e3,
        after.mean / 1e3,
        before.count,
        after.count,
        more_ns / NS_MS
    );
    let quoted = name.replace('\'', "''");
    let sql = format!(
        "select ts, dur from 'span/*.parquet' where name = '{quoted}' and ts >= {}",
        cut.range(interval).start
    );
    Statement::new("kernel_shift", says).with_sql(sql)
}
