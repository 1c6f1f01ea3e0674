//! Whether an open anomaly has come to another level.
//!
//! # What it sees
//! The median of the latest steps of an anomaly beside the median of those before them. Where steps lose several times
//! as much as before, or a fraction of it, something else has begun, or what was the matter is over and something
//! weaker is left. The anomaly is divided there. So it is where a part of the latest steps loses several times as much
//! as nearly all before, and where hardly any does any more: a lock that some requests of a server need changes no median.
//!
//! # Why it matters
//! On a machine that is never quite calm (a neighbour, the hypervisor), an anomaly that does not end would hide every
//! later one: one incident, dated to the first, with one verdict for all.
//!
//! # What fools it
//! A disturbance that grows by itself: a memory leak is a new incident when it has come to cost three times as much.

use gpuwhy_schema::Ns;

use super::Detection;

/// To which level an anomaly came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its steps lose several times as much as before.
    Risen,
    /// They lose a fraction of it, and still more than is usual.
    Fallen,
}

/// The latest steps of which the median is taken for a rise; for a fall they are those of so long a time as anomalies
/// may pause.
const LATEST: usize = 12;
/// Where they come seldom, so many do for a fall,
const SELDOM: usize = 5;
/// if they are those of so many times as long as anomalies may pause.
const SELDOM_FOR: i64 = 3;
/// Steps that are looked at of each side, at most: of more, each second one, and so on.
const LOOKED_AT: usize = 128;
/// So many steps before the latest are looked at, at most.
const BEFORE: usize = 4096;
/// Steps that lose so many times as much as before have risen,
const RISES: f64 = 3.0;
/// if they take so many times as long as well;
const LONGER: f64 = 1.25;
/// and those that lose one part in so many have fallen,
const FALLS: f64 = 3.0;
/// this share of them,
const MOSTLY: f64 = 0.9;
/// if they lost so many times the least effect before.
const HIGH: f64 = 2.0;

/// So many of the latest steps are looked at for a part of them that takes longer,
const PART_OF: usize = 64;
/// and so many of them make one,
const PART: usize = 8;
/// if they lose [`RISES`] times as much as this share of those before.
const NEARLY_ALL: f64 = 0.95;
/// What no more than this share of steps exceeds is what a part of them takes,
const RARE: f64 = 0.06;
/// and this share of the latest may take that long although it is over.
const SINGLE: f64 = 0.02;
/// So many before are compared with, at most.
const COMPARED_WITH: usize = 1024;

/// Where the steps of an anomaly came to another level, if the latest have: the first step of the new level, and which
/// it is. `durations` of all its steps and `usual`, in ns; a fall is looked for in the last [`lately`].
pub(super) fn change(
    durations: &[f64],
    lately: Option<usize>,
    usual: f64,
    config: &Detection,
) -> Option<(usize, Change)> {
    let least = config.min_effect * usual;
    let (before, now, first) = levels(durations, (LATEST, 0.5), usual)?;
    if rises((before, now), usual, least) {
        let at = first + turns_at(&durations[first..], usual, (before, now));
        return Some((at, Change::Risen));
    }
    if let Some(at) = a_part_rises(durations, usual, least) {
        return Some((at, Change::Risen));
    }
    let lately = lately?;
    if let Some(at) = a_part_falls(durations, lately, usual, least) {
        return Some((at, Change::Fallen));
    }
    let (before, now, first) = levels(durations, (lately, MOSTLY), usual)?;
    if falls((before, now), least) {
        let at = first + turns_at(&durations[first..], usual, (before, now));
        return Some((at, Change::Fallen));
    }
    None
}

/// How many of the latest steps, of which the last ended at `now`, say whether an anomaly has fallen: those of so long a time
/// as anomalies may pause, if they are many, and else those of a longer time; none if it has not lasted so long.
pub(super) fn lately(begins: &[Ns], now: Ns, config: &Detection) -> Option<usize> {
    let before = |time: Ns| begins.partition_point(|ts| *ts <= now.saturating_sub(time));
    let steps = match before(config.merge_within) {
        0 => return None,
        since => begins.len() - since + 1,
    };
    let seldom = begins.len() - before(Ns(config.merge_within.0.saturating_mul(SELDOM_FOR)));
    Some(steps.max(if seldom < SELDOM { LATEST } else { seldom.min(LATEST) }))
}

/// Whether steps that lose `now` lose several times what they lost `before`. All in ns.
fn rises((before, now): (f64, f64), usual: f64, least: f64) -> bool {
    now >= RISES * before.max(least) && usual + now >= LONGER * (usual + before)
}

/// Whether they lose a fraction of it.
fn falls((before, now): (f64, f64), least: f64) -> bool {
    before >= FALLS * now && before >= HIGH * least
}

/// The step from which on hardly any loses as much as a part of those before did.
fn a_part_falls(durations: &[f64], lately: usize, usual: f64, least: f64) -> Option<usize> {
    let split = durations.len().checked_sub(lately.max(PART_OF))?;
    let first = split.saturating_sub(COMPARED_WITH);
    let before = lost_at_most(&durations[first..split], 1.0 - RARE, usual)?;
    // They may be many: the count ends with the first that is too many.
    let bar = before / FALLS;
    let long = durations[split..].iter().filter(|ns| **ns - usual > bar);
    let single = ((durations.len() - split) as f64 * SINGLE) as usize;
    if before < HIGH * least || long.take(single + 1).count() > single {
        return None;
    }
    // It is over after the last one of these that is not alone.
    let many = |i: usize| {
        let near =
            &durations[i.saturating_sub(PART_OF / 2)..(i + PART_OF / 2).min(durations.len())];
        near.iter().filter(|ns| **ns - usual > bar).count() > 1
    };
    let last = (first..durations.len()).rev().find(|&i| durations[i] - usual > bar && many(i))?;
    (last < split).then_some(last + 1)
}

/// What this share of steps lost at most, beyond the usual, in ns; none of few.
fn lost_at_most(durations: &[f64], share: f64, usual: f64) -> Option<f64> {
    let mut all = durations.to_vec();
    let at = (all.len() as f64 * share) as usize;
    (all.len() >= PART_OF).then(|| *all.select_nth_unstable_by(at, f64::total_cmp).1 - usual)
}

/// The step from which on a part of the latest loses several times as much as nearly all before.
fn a_part_rises(durations: &[f64], usual: f64, least: f64) -> Option<usize> {
    let split = durations.len().checked_sub(PART_OF)?;
    // All of them: each second one would hit or miss what comes at each sixth.
    let first = split.saturating_sub(COMPARED_WITH);
    let before = lost_at_most(&durations[first..split], NEARLY_ALL, usual)?;
    let rises = |ns: &f64| rises((before, ns - usual), usual, least);
    let long = durations[split..].iter().filter(|ns| rises(ns)).count();
    if long < PART {
        return None;
    }
    let share = long as f64 / PART_OF as f64;
    // Before there were hardly any, and from then on this share: where that fits best.
    let (mut sum, mut lowest, mut at) = (0.0, f64::INFINITY, split);
    for (i, ns) in durations.iter().enumerate().skip(split - PART_OF) {
        let is_long = f64::from(u8::from(rises(ns)));
        if is_long > 0.0 && sum < lowest {
            (lowest, at) = (sum, i);
        }
        sum += is_long - share / 2.0;
    }
    Some(at)
}

/// How the mean loss of a step changed from one anomaly to the next, in ns.
pub(super) fn between(levels: (f64, f64), usual: f64, config: &Detection) -> Option<Change> {
    let least = config.min_effect * usual;
    match () {
        () if rises(levels, usual, least) => Some(Change::Risen),
        () if falls(levels, least) => Some(Change::Fallen),
        () => None,
    }
}

/// What has lasted so long may come to another level; before, it grows and wanes as disturbances do.
const RISES_AFTER: Ns = Ns::secs(5);
/// The same of what is left of another one, and of one that falls.
const CHANGES_AFTER: Ns = Ns::secs(2);

impl Change {
    /// Whether it is one, after a level that lasted so long, and is what was left of a higher one or not.
    pub(super) fn may_follow(self, lasted: Ns, fallen: bool) -> bool {
        let grows = self == Change::Risen && !fallen;
        lasted >= if grows { RISES_AFTER } else { CHANGES_AFTER }
    }
}

/// What steps lost beyond the usual at the median before the last `lately`, which share of these loses no more than what,
/// and the first step that was looked at.
fn levels(
    durations: &[f64],
    (lately, share): (usize, f64),
    usual: f64,
) -> Option<(f64, f64, usize)> {
    let split = durations.len().checked_sub(lately).filter(|before| *before >= LATEST)?;
    let first = split.saturating_sub(BEFORE);
    let lost = |of: &[f64], share| {
        let some = of.iter().step_by(of.len().div_ceil(LOOKED_AT)).map(|ns| ns - usual);
        crate::stats::quantile(&crate::stats::sorted(some), share)
    };
    Some((lost(&durations[first..split], 0.5), lost(&durations[split..], share), first))
}

/// Where durations turn from one level to another, both in ns beyond the usual: the split that fits best.
fn turns_at(durations: &[f64], usual: f64, (before, now): (f64, f64)) -> usize {
    let (low, high) = (before.min(now), before.max(now));
    let sign = if now > before { 1.0 } else { -1.0 };
    let half = f64::midpoint(before, now);
    let (mut sum, mut least, mut at) = (0.0, 0.0, 0);
    for (i, ns) in durations.iter().enumerate() {
        sum += sign * ((ns - usual).clamp(low, high) - half);
        if sum <= least {
            (least, at) = (sum, i + 1);
        }
    }
    at.min(durations.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When an anomaly of steps of 10 ms is divided: after so many steps, at which, and how.
    fn divided(levels: &[(usize, f64)]) -> String {
        let all: Vec<f64> =
            levels.iter().flat_map(|&(n, ms)| std::iter::repeat_n(ms * 1e6, n)).collect();
        let mut begins = Vec::new();
        let mut now = 0.0;
        for n in 1..=all.len() {
            begins.push(Ns(now as i64));
            now += all[n - 1];
            let lately = lately(&begins, Ns(now as i64), &Detection::default());
            if let Some((at, change)) = change(&all[..n], lately, 10e6, &Detection::default()) {
                return format!("at {at}: {change:?} after {n}");
            }
        }
        "whole".to_owned()
    }

    #[test]
    fn an_anomaly_is_divided_where_it_comes_to_another_level() {
        assert_eq!(divided(&[(100, 12.0), (40, 30.0)]), "at 100: Risen after 106");
        // It has to last as long as a pause may.
        assert_eq!(divided(&[(100, 30.0), (300, 12.0)]), "at 100: Fallen after 232");
        assert_eq!(divided(&[(100, 30.0), (120, 12.0), (5, 30.0)]), "whole");
    }

    /// Steps of a fifth of a second and more, as they begin, ms.
    fn falls_after(behind: &[(i64, f64)]) -> Option<usize> {
        let high = (0..40).map(|n| (200 * n, 30.0));
        let all: Vec<(Ns, f64)> = high
            .chain(behind.iter().map(|&(at, ms)| (8000 + at, ms)))
            .map(|(at, ms)| (Ns::millis(at), ms * 1e6))
            .collect();
        let (begins, durations): (Vec<Ns>, Vec<f64>) = all.into_iter().unzip();
        (41..=begins.len()).find(|&n| {
            let lately = lately(&begins[..n], begins[n - 1], &Detection::default());
            let change = change(&durations[..n], lately, 10e6, &Detection::default());
            change.is_some_and(|(at, change)| (at, change) == (40, Change::Fallen))
        })
    }

    #[test]
    fn of_steps_that_come_seldom_a_few_of_a_longer_time_say_that_it_is_over() {
        let some: Vec<(i64, f64)> = (1..=8).map(|n| (1500 * n, 11.5)).collect();
        assert_eq!(falls_after(&some), None, "of each six seconds there are four");
        let some: Vec<(i64, f64)> = (1..=8).map(|n| (1100 * n, 11.5)).collect();
        assert_eq!(falls_after(&some), Some(46), "six seconds hold more than the five");
        let again: Vec<(i64, f64)> =
            (1..=8).map(|n| (1100 * n, if n % 4 == 0 { 30.0 } else { 11.5 })).collect();
        assert_eq!(falls_after(&again), None, "it goes on, now and then");
    }

    #[test]
    fn a_little_more_is_no_other_level_and_neither_is_a_few_long_steps() {
        assert_eq!(divided(&[(100, 14.0), (40, 20.0)]), "whole");
        // It loses three times as much, and takes a fifth longer.
        assert_eq!(divided(&[(100, 11.0), (40, 13.0)]), "whole");
        assert_eq!(divided(&[(100, 12.0), (5, 90.0), (40, 12.0)]), "whole");
        assert_eq!(divided(&[(100, 11.5), (400, 10.4)]), "whole");
    }

    /// Of requests that need a lock, one in six waits for it.
    #[test]
    fn an_anomaly_is_divided_where_a_part_of_its_steps_loses_several_times_as_much_as_nearly_all_before()
     {
        let waits = [(5, 12.0), (1, 90.0)];
        let parts = |n| std::iter::repeat_n(waits, n).flatten();
        let all: Vec<_> = std::iter::once((200, 12.0)).chain(parts(12)).collect();
        assert_eq!(divided(&all), "at 205: Risen after 248");
        // So they did before.
        let all: Vec<_> = parts(40).chain([(40, 12.0)]).collect();
        assert_eq!(divided(&all), "whole");
        // Until none of them does for as long as a pause may be.
        let all: Vec<_> = parts(40).chain([(400, 12.0)]).collect();
        assert_eq!(divided(&all), "at 240: Fallen after 407");
        let all: Vec<_> = parts(40).chain([(90, 12.0), (1, 90.0), (200, 12.0)]).collect();
        assert_eq!(divided(&all), "at 240: Fallen after 401");
    }

    /// Steps that lose nearly enough to be slow do not end an anomaly by themselves.
    #[test]
    fn what_is_left_may_be_less_than_what_is_worth_reporting() {
        assert_eq!(divided(&[(100, 30.0), (300, 10.9)]), "at 100: Fallen after 240");
    }

    #[test]
    fn a_level_of_a_few_steps_is_none() {
        assert_eq!(divided(&[(8, 12.0), (11, 30.0)]), "whole");
    }

    #[test]
    fn of_a_long_anomaly_of_short_steps_not_all_are_looked_at() {
        assert_eq!(divided(&[(9000, 12.0), (40, 30.0)]), "at 9000: Risen after 9006");
    }
}
