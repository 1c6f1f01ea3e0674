//! Which anomalies are one incident, and which incidents are worth reporting.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::Ns;

use super::{
    Against, By, Change, Detection, Incident, Signature, Slowed, Step, StepNo, Steps, instead,
    level, mean_excess,
};
use crate::baseline::Fit;
use crate::stats::median_and_mad;

/// When the first slow step of an anomaly began.
pub(crate) fn from(steps: &Steps, s: &Slowed) -> Ns {
    s.slow.iter().map(|&i| steps[i].ts).min().unwrap_or(Ns::ZERO)
}

/// When its last slow step ended.
pub(crate) fn to(steps: &Steps, s: &Slowed) -> Ns {
    s.slow.iter().map(|&i| steps[i].end()).max().unwrap_or(Ns::ZERO)
}

/// Beside what a group lost most by, an anomaly that lost a smaller share is noise that happened to be near.
const NOISE: f64 = 0.1;

/// Anomalies that touch, by time.
pub(crate) struct Group {
    /// When the first began.
    pub from: Ns,
    /// When the last ended that is no noise beside the others.
    pub to: Ns,
    /// They.
    pub slowed: Vec<Slowed>,
    /// Where they came to another level, and the next group begins.
    pub cut: Option<Ns>,
}

/// Anomalies that touch, by time. Noise after a disturbance does not make the next disturbance a part of it; nor does
/// one join what a series was before it came to another level with what it is since.
pub(crate) fn groups(steps: &Steps, mut all: Vec<Slowed>, config: &Detection) -> Vec<Group> {
    let cuts = cuts(steps, &mut all, config);
    let mut all: Vec<Slowed> = all.into_iter().flat_map(|s| divided(steps, s, &cuts)).collect();
    all.sort_by_key(|s| from(steps, s));
    let mut groups: Vec<Group> = Vec::new();
    // Of the last group: the most that an anomaly lost, and the ends of those that are no noise beside it.
    let mut most = 0f64;
    let mut ends: Vec<(f64, Ns)> = Vec::new();
    for slowed in all {
        let (begin, end, lost) = (from(steps, &slowed), to(steps, &slowed), lost(steps, &slowed));
        let within = |last: &Group| begin <= last.to.saturating_add(config.merge_within);
        if let Some(last) = groups.last_mut() {
            last.cut = cuts.iter().copied().find(|cut| last.from < *cut && *cut <= begin);
        }
        match groups.last_mut().filter(|last| within(last) && last.cut.is_none()) {
            Some(last) => {
                if lost > most {
                    most = lost;
                    ends.retain(|(lost, _)| *lost >= NOISE * most);
                }
                if lost >= NOISE * most {
                    ends.push((lost, end));
                }
                last.to = ends.iter().map(|(_, end)| *end).max().unwrap_or(end);
                last.slowed.push(slowed);
            }
            None => {
                (most, ends) = (lost, vec![(lost, end)]);
                groups.push(Group { from: begin, to: end, slowed: vec![slowed], cut: None });
            }
        }
    }
    groups
}

/// A series divides an incident if it lost at least this share of what the one lost that lost most.
const DIVIDES: f64 = 0.3;

/// Where anomalies came to another level, or began anew, by the first of each disturbance that did.
fn cuts(steps: &Steps, all: &mut [Slowed], config: &Detection) -> Vec<Ns> {
    let mut of_series: BTreeMap<Signature, (f64, Vec<Ns>)> = BTreeMap::new();
    all.sort_by(|a, b| {
        (&a.signature, from(steps, a), to(steps, a)).cmp(&(
            &b.signature,
            from(steps, b),
            to(steps, b),
        ))
    });
    for series in all.chunk_by_mut(|a, b| a.signature == b.signature) {
        let sum = series.iter().map(|slowed| lost(steps, slowed)).sum();
        of_series.insert(series[0].signature.clone(), (sum, cuts_of(steps, series, config)));
    }
    let most = of_series.values().map(|(lost, _)| *lost).fold(0.0, f64::max);
    let divides = of_series.into_values().filter(|(lost, _)| *lost >= DIVIDES * most);
    let mut cuts: Vec<Ns> = divides.flat_map(|(_, cuts)| cuts).collect();
    cuts.sort_unstable();
    // The other ranks come to it a little later.
    cuts.dedup_by(|cut, before| *cut <= before.saturating_add(config.merge_within));
    cuts
}

/// Anomalies of one series that touch, as far as they are on one level.
struct Level {
    from: Ns,
    to: Ns,
    steps: usize,
    lost: f64,
    fallen: bool,
}

/// Where anomalies of one series, in the order of their begin, came to another level, or began after calm. Which of them
/// follow another one on another level is noted: a series that is disturbed again and again has an anomaly each time.
fn cuts_of(steps: &Steps, series: &mut [Slowed], config: &Detection) -> Vec<Ns> {
    let mut cuts = Vec::new();
    let mut level: Option<Level> = None;
    for slowed in series {
        let (begin, end) = (from(steps, slowed), to(steps, slowed));
        let touches = |level: &&mut Level| begin <= level.to.saturating_add(config.merge_within);
        // Where this series was calm between, what others did meanwhile does not make one of both.
        cuts.extend(level.as_mut().filter(|level| !touches(level)).map(|_| begin));
        let before = level.as_mut().filter(touches);
        if let Some(before) = &before
            && slowed.follows.is_none()
        {
            let lasted = begin.saturating_sub(before.from);
            let levels = (before.lost / before.steps.max(1) as f64, mean_excess(steps, slowed));
            let change = level::between(levels, instead(steps, slowed), config);
            slowed.follows = change.filter(|change| change.may_follow(lasted, before.fallen));
        }
        match before.filter(|_| slowed.follows.is_none()) {
            Some(before) => {
                before.to = before.to.max(end);
                before.steps += slowed.slow.len();
                before.lost += lost(steps, slowed);
            }
            None => {
                cuts.extend(slowed.follows.map(|_| begin));
                let fallen = slowed.follows == Some(Change::Fallen);
                let (steps, lost) = (slowed.slow.len(), lost(steps, slowed));
                level = Some(Level { from: begin, to: end, steps, lost, fallen });
            }
        }
    }
    cuts
}

/// An anomaly, divided where others came to another level.
fn divided(steps: &Steps, slowed: Slowed, cuts: &[Ns]) -> Vec<Slowed> {
    let mut out = Vec::new();
    let mut left = slowed;
    for &cut in cuts {
        let later = since(steps, &left, cut);
        left.slow.retain(|&no| steps[no].ts < cut);
        if !left.slow.is_empty() {
            out.push(left);
        }
        left = later;
    }
    out.extend((!left.slow.is_empty()).then_some(left));
    out
}

/// What an anomaly is since a series came to another level; it may have no slow steps then.
pub(crate) fn since(steps: &Steps, slowed: &Slowed, cut: Ns) -> Slowed {
    let slow: Vec<StepNo> = slowed.slow.iter().copied().filter(|&no| steps[no].ts >= cut).collect();
    Slowed { slow, ..slowed.clone() }
}

/// The incident that a group of anomalies is, if it is worth reporting.
pub(crate) fn incident(steps: &Steps, slowed: Vec<Slowed>, config: &Detection) -> Option<Incident> {
    let mut slowed = join_series(without_blips(steps, slowed));
    slowed.retain(|s| mean_excess(steps, s) > 0.0);
    // Touching blips of other series must not stretch what the reported ones say.
    let mut reported: Vec<usize> = Vec::new();
    for (i, one) in slowed.iter_mut().enumerate() {
        let mut reports = worth_reporting(steps, one, config);
        if !reports {
            // Among many that are a little slow, one that hung is worth it alone.
            let hung =
                |i: &StepNo| hangs(steps[*i].as_typical(one.by), one.fit, one.alone_from, config);
            let slow: Vec<StepNo> = one.slow.iter().copied().filter(hung).collect();
            let alone = Slowed { slow, ..one.clone() };
            reports = worth_reporting(steps, &alone, config);
            if reports {
                *one = alone;
            }
        }
        if reports {
            reported.push(i);
        }
    }
    let reported = reported.into_iter().map(|i| &slowed[i]);
    let begin = reported.clone().map(|one| from(steps, one)).min()?;
    let end = reported.clone().map(|one| to(steps, one)).max()?;
    let all = reported.clone().map(|one| lost(steps, one)).sum();
    let until = begin.saturating_add(Ns(FIRST * config.merge_within.0));
    let first = reported.flat_map(|one| lossy_steps(steps, one, config, until)).collect();
    let begin = begins_after_pause(first, all, config).unwrap_or(begin);
    for one in &mut slowed {
        one.slow.retain(|&no| steps[no].end() > begin);
    }
    slowed.retain(|one| !one.slow.is_empty());
    slowed.sort_by(|a, b| lost(steps, b).total_cmp(&lost(steps, a)));
    slowed.retain(|s| from(steps, s) < end && to(steps, s) > begin);
    Some(Incident { from: begin, to: end, slowed })
}

/// A step that took longer than usual by more than the least effect.
struct Lossy {
    ts: Ns,
    end: Ns,
    lost: f64,
}

/// The steps of an anomaly that began before `until` and lost time.
fn lossy_steps(steps: &Steps, slowed: &Slowed, config: &Detection, until: Ns) -> Vec<Lossy> {
    let of_each = slowed.of_each(steps);
    let first = slowed.slow.iter().map(|&no| &steps[no]).filter(|step| step.ts < until);
    let lossy = first.filter_map(|step| {
        let usual = slowed.ordinary(step, of_each);
        let lost = step.dur.0 as f64 - usual;
        let lossy = Lossy { ts: step.ts, end: step.end(), lost };
        (lost > config.min_effect * usual).then_some(lossy)
    });
    lossy.collect()
}

/// For so many times as long as anomalies may pause an incident is searched for a pause after its first steps.
const FIRST: i64 = 3;
/// A pause is at least this part of that time,
const PAUSE: i64 = 5;
/// and so many times as long as each later one.
const LONGER: i64 = 2;

/// When an incident begins whose first slow steps lost next to nothing of `all` that it lost, long before the others: a
/// hiccup in calm that happened to be near. None if there is no such pause.
fn begins_after_pause(mut first: Vec<Lossy>, all: f64, config: &Detection) -> Option<Ns> {
    first.sort_by_key(|step| step.ts);
    let mut until = first.first()?.end;
    // What was lost before each pause that may be one, how long it was, and when it ended.
    let (mut before, mut pauses) = (0.0, Vec::new());
    for step in &first {
        let pause = step.ts.saturating_sub(until);
        if pause.0 >= config.merge_within.0 / PAUSE / LONGER {
            pauses.push((before, pause.0, step.ts));
        }
        before += step.lost;
        until = until.max(step.end);
    }
    let mut longest_later = 0;
    for (before, pause, ends) in pauses.into_iter().rev() {
        let long = (LONGER * longest_later).max(config.merge_within.0 / PAUSE);
        if pause >= long && before <= NOISE * all {
            return Some(ends);
        }
        longest_later = longest_later.max(pause);
    }
    None
}

/// The time that all slow steps of an anomaly lost, ns.
pub(crate) fn lost(steps: &Steps, slowed: &Slowed) -> f64 {
    mean_excess(steps, slowed) * slowed.slow.len() as f64
}

/// All incidents, most excess time first.
pub(super) fn merge(steps: &Steps, all: Vec<Slowed>, config: &Detection) -> Vec<Incident> {
    let mut found: Vec<Incident> = groups(steps, all, config)
        .into_iter()
        .filter_map(|group| incident(steps, group.slowed, config))
        .collect();
    found.sort_by(|a, b| b.lost_ns(steps).total_cmp(&a.lost_ns(steps)));
    found
}

/// Beside the anomaly of a series that lost most time, those that lost a tenth of it are noise
/// that happened to be near; they would date the incident too early.
fn without_blips(steps: &Steps, slowed: Vec<Slowed>) -> Vec<Slowed> {
    let mut most: BTreeMap<Signature, f64> = BTreeMap::new();
    for one in &slowed {
        let most = most.entry(one.signature.clone()).or_default();
        *most = most.max(lost(steps, one));
    }
    slowed.into_iter().filter(|one| lost(steps, one) * 10.0 >= most[&one.signature]).collect()
}

/// Several anomalies of one series within an incident are one.
fn join_series(slowed: Vec<Slowed>) -> Vec<Slowed> {
    let mut by_signature: BTreeMap<Signature, Slowed> = BTreeMap::new();
    for one in slowed {
        match by_signature.entry(one.signature.clone()) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(one);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let first = entry.get_mut();
                first.slow.extend(one.slow);
                first.score = first.score.max(one.score);
                let slow: std::collections::HashSet<StepNo> = first.slow.iter().copied().collect();
                first.usual.retain(|i| !slow.contains(i));
            }
        }
    }
    by_signature.into_values().collect()
}

/// How many standard deviations of the usual steps' own moving mean an incident must lie above
/// it. Noise with memory (a busy neighbour, a warm cache) moves means of many steps far more than
/// independent noise would.
const DRIFTS: f64 = 7.0;
/// The least scale of what steps take for each ns that their thread is on a CPU.
const FINEST: f64 = 0.02;

/// The mean of each `window` values that follow each other.
fn moving_means(values: &[f64], window: usize) -> Vec<f64> {
    let sums = values.iter().scan(0.0, |sum, value| {
        *sum += value;
        Some(*sum)
    });
    let sums: Vec<f64> = std::iter::once(0.0).chain(sums).collect();
    sums.windows(window + 1).map(|of| (of[window] - of[0]) / window as f64).collect()
}

/// How far the mean of the slow steps lies above the mean of the usual ones, in standard
/// deviations of usual means over as many steps, on the log scale.
fn drifts(steps: &Steps, slowed: &Slowed) -> f64 {
    let ns = |step: &Step| match slowed.by {
        // For each ns on a CPU.
        By::Cpu => step.dur.0.max(1) as f64 / step.ran.map_or(1, |ran| ran.0.max(1)) as f64,
        By::Alike | By::Load(_) | By::First(_) => step.as_typical(slowed.by).0.max(1) as f64,
    };
    let logs = |steps_of: &[StepNo]| -> Vec<f64> {
        steps_of.iter().map(|&i| ns(&steps[i]).ln()).collect()
    };
    let (usual, slow) = (logs(&slowed.usual), logs(&slowed.slow));
    let window = slow.len().clamp(1, (usual.len() / 4).max(1));
    let means = moving_means(&usual, window);
    let center = crate::stats::mean(&means);
    let spread =
        crate::stats::mean(&means.iter().map(|m| (m - center).powi(2)).collect::<Vec<_>>());
    // Short series show little of their own drift; independent noise is the least there can be.
    // Usual steps that lost most of their second are of fewer kinds than all steps of the series.
    let (_, own) = median_and_mad(&crate::stats::sorted(usual.iter().copied()));
    let scale = if slowed.by == By::Cpu { FINEST } else { slowed.fit.scale.min(own.max(FINEST)) };
    let least = scale / (window as f64).sqrt();
    let usual = slowed.instead_of(center, slowed.fit.center);
    (crate::stats::mean(&slow) - usual) / spread.sqrt().max(least).max(1e-9)
}

/// What an anomaly has fallen to is worth reporting if it lasts so long.
const LASTS: Ns = Ns::secs(5);

/// A step that hung took this many times as long as usual.
pub(crate) const HUNG: f64 = 10.0;

/// Whether a step that took `dur` hung: so many times as long as usual.
pub(crate) fn hangs(dur: Ns, fit: Fit, times: f64, config: &Detection) -> bool {
    let usual = fit.center.exp();
    dur.0 as f64 >= (usual + config.hang.0 as f64).max(times * usual)
}

/// Busy periods are worth reporting if at least this share of what they took longer their thread was off its CPU.
const NOT_WORK: f64 = 0.3;

/// Messages explain how much longer busy periods took if as much a message explains at least this share of it.
const BY_MESSAGES: f64 = 0.5;
/// Messages of slow busy periods are counted if there are at least this many times as many as in usual ones: where there
/// are fewer, they may not have been recorded.
const AS_MANY: f64 = 0.5;

/// Messages received in a busy period, usual and slow, if these are known and explain little of what the slow ones took
/// longer: nobody asked for so much more.
pub(crate) fn asked_as_before(steps: &Steps, slowed: &Slowed) -> Option<(f64, f64)> {
    let mean = |list: &[StepNo], of: fn(&Step) -> Option<i64>| {
        let all: Option<Vec<f64>> =
            list.iter().map(|&no| of(&steps[no]).map(|n| n as f64)).collect();
        all.filter(|all| !all.is_empty()).map(|all| crate::stats::mean(&all))
    };
    let (usual, slow) = (mean(&slowed.usual, |s| s.size)?, mean(&slowed.slow, |s| s.size)?);
    let took = mean(&slowed.usual, |s| Some(s.dur.0))?;
    let explained = took * (slow / usual.max(f64::MIN_POSITIVE) - 1.0);
    (slow >= AS_MANY * usual && explained < BY_MESSAGES * mean_excess(steps, slowed))
        .then_some((usual, slow))
}

/// Long ones among slow steps are those that hold this share of what is lost, if they are no more than half of them.
const LONG_HOLD: f64 = 0.8;

/// Long ones among slow steps, of which most are usual ones in between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Long {
    /// How many there are.
    pub many: usize,
    /// How many times as long as usual they took.
    pub times: f64,
    /// Whether no more than half of them came next after another one of their thread.
    pub scattered: bool,
}

/// The long ones among slow steps; none if these are alike.
pub(crate) fn long_among(steps: &Steps, slowed: &Slowed) -> Option<Long> {
    let of_each = slowed.of_each(steps);
    let over = |no: &StepNo| {
        let usual = slowed.ordinary(&steps[*no], of_each);
        (steps[*no].dur.0 as f64 - usual, usual)
    };
    let in_order: Vec<(f64, f64)> = slowed.slow.iter().map(over).collect();
    let mut all = in_order.clone();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let lost: f64 = all.iter().map(|(over, _)| over.max(0.0)).sum();
    let mut held = 0.0;
    let long = all.iter().take_while(|(over, _)| {
        let is_needed = held < LONG_HOLD * lost;
        held += over.max(0.0);
        is_needed
    });
    let many = long.count();
    let (over, usual) =
        all[..many].iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    if lost <= 0.0 || usual <= 0.0 || 2 * many > all.len() {
        return None;
    }
    let least = all[many - 1].0;
    let (mut was_long, mut together) = (HashMap::new(), 0);
    for (no, (over, _)) in slowed.slow.iter().zip(&in_order) {
        let is_long = *over >= least;
        let before = was_long.insert(steps[*no].thread, is_long);
        together += usize::from(is_long && before == Some(true));
    }
    Some(Long { many, times: 1.0 + over / usual, scattered: 2 * together <= many })
}

/// Whether busy periods took longer because there was more to do, as far as it is known when their thread ran and what it
/// received.
fn is_more_work(steps: &Steps, slowed: &Slowed) -> bool {
    if !slowed.signature.is_busy_period() || asked_as_before(steps, slowed).is_some() {
        return false;
    }
    let off_cpu = |list: &[StepNo]| {
        let known = list.iter().filter_map(|&no| Some((steps[no].dur - steps[no].ran?).0 as f64));
        let known: Vec<f64> = known.collect();
        (!known.is_empty()).then(|| crate::stats::mean(&known))
    };
    let waited = off_cpu(&slowed.slow).zip(off_cpu(&slowed.usual));
    let usual = |usual: f64| slowed.instead_of(usual, 0.0);
    waited.is_some_and(|(slow, of)| slow - usual(of) < NOT_WORK * mean_excess(steps, slowed))
}

fn worth_reporting(steps: &Steps, slowed: &Slowed, config: &Detection) -> bool {
    if is_more_work(steps, slowed) {
        return false;
    }
    if slowed.against != Against::Lately {
        return true;
    }
    // What is left of a disturbance may be how it ends.
    let lasts = to(steps, slowed).saturating_sub(from(steps, slowed));
    if slowed.follows == Some(Change::Fallen) && lasts < LASTS {
        return false;
    }
    let (of_each, usual) = (slowed.of_each(steps), instead(steps, slowed));
    let slow = slowed.slow.iter().filter(|&&i| {
        let usual = slowed.ordinary(&steps[i], of_each);
        steps[i].dur.0 as f64 > usual * (1.0 + config.min_effect)
    });
    let hung =
        |&i: &StepNo| hangs(steps[i].as_typical(slowed.by), slowed.fit, slowed.alone_from, config);
    (slow.count() >= config.min_steps || slowed.slow.iter().any(hung))
        && (!slowed.usual.is_empty() || slowed.signature.kind != 0)
        && mean_excess(steps, slowed) >= config.min_effect * usual
        && mean_excess(steps, slowed) * slowed.slow.len() as f64 >= config.min_lost.0 as f64
        && drifts(steps, slowed) >= DRIFTS
}
