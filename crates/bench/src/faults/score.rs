//! What the trials of the faults benchmark say about each judge.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gpuwhy_diagnose::calibration::{Calibration, expected_error};
use gpuwhy_diagnose::stats::{quantile, sorted};
use serde::{Deserialize, Serialize};

use super::results::{ALL_PROBES, Row, Session};
use crate::result::Figure;

/// How one judge did over all accepted trials of one fault.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judge {
    judge: String,
    trials: usize,
    top1: Figure,
    top3: Figure,
    culprit: Option<Figure>,
}

/// How we did on one class.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OfClass {
    class: String,
    accepted: usize,
    without_effect: usize,
    #[serde(default)]
    by_hypervisor: usize,
    found: Figure,
    top1: Figure,
    top3: Figure,
    culprit: Option<Figure>,
    verdict_p50_s: f64,
}

/// How often a class was said of another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Confused {
    class: String,
    said: String,
    trials: usize,
}

/// How a judge did on one class without a group of probes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ablated {
    class: String,
    judge: String,
    without: String,
    top1: Figure,
}

/// Verdicts of about the same confidence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bin {
    confidence: String,
    verdicts: usize,
    mean_confidence: f64,
    calibrated: f64,
    right: Figure,
}

fn faults(trials: &[Row]) -> Vec<&Row> {
    trials.iter().filter(|r| r.accepted() && r.class.is_some() && r.second.is_none()).collect()
}

fn said(row: &Row) -> &str {
    row.last.as_ref().map_or("nothing", |l| &l.class)
}

fn right(row: &Row) -> bool {
    row.class.as_deref() == Some(said(row))
}

fn in_three(row: &Row) -> bool {
    let class = row.class.as_ref();
    row.last.as_ref().is_some_and(|l| class.is_some_and(|c| l.classes.contains(c)))
}

/// Whether the culprit is the first one named; none where there is none to name.
fn culprit(row: &Row) -> Option<bool> {
    let pid = row.culprit_pid?;
    Some(row.last.as_ref().and_then(|l| l.named.first()).is_some_and(|n| n.0 == pid))
}

fn share_of<'a>(
    rows: impl Iterator<Item = &'a &'a Row>,
    of: impl Fn(&Row) -> Option<bool>,
) -> Figure {
    let all: Vec<bool> = rows.filter_map(|r| of(r)).collect();
    Figure::share(all.iter().filter(|hit| **hit).count(), all.len())
}

/// Every judge on the same trials.
pub fn judges(trials: &[Row]) -> Vec<Judge> {
    let rows = faults(trials);
    let mut out = vec![Judge {
        judge: "gpuwhy".into(),
        trials: rows.len(),
        top1: share_of(rows.iter(), |r| Some(right(r))),
        top3: share_of(rows.iter(), |r| Some(in_three(r))),
        culprit: Some(share_of(rows.iter(), culprit)),
    }];
    let first = rows.iter().filter(|r| r.first.is_some()).count();
    if first > 0 {
        let of_first = |r: &Row| Some(r.class.as_ref() == r.first.as_ref().map(|f| &f.class));
        out.push(Judge {
            judge: "gpuwhy, first word".into(),
            trials: rows.len(),
            top1: share_of(rows.iter(), of_first),
            top3: share_of(rows.iter(), |r| {
                let class = r.class.as_ref()?;
                Some(r.first.as_ref().is_some_and(|f| f.classes.contains(class)))
            }),
            culprit: Some(share_of(rows.iter(), |r| {
                let pid = r.culprit_pid?;
                Some(r.first.as_ref().and_then(|f| f.named.first()).is_some_and(|n| n.0 == pid))
            })),
        });
    }
    for (name, _) in gpuwhy_diagnose::published::ALL {
        let rows: Vec<&&Row> = rows.iter().filter(|r| !r.baselines.is_empty()).collect();
        let at = |r: &Row, n: usize| {
            let classes = r.baselines.get(*name)?;
            Some(classes.iter().take(n).any(|c| Some(c) == r.class.as_ref()))
        };
        let rows: Vec<&Row> = rows.into_iter().copied().collect();
        out.push(Judge {
            judge: name.to_string(),
            trials: rows.len(),
            top1: share_of(rows.iter(), |r| at(r, 1)),
            top3: share_of(rows.iter(), |r| at(r, 3)),
            culprit: None,
        });
    }
    for (group, _) in gpuwhy_diagnose::published::GROUPS {
        let rows: Vec<&Row> = rows.iter().filter(|r| !r.ablated.is_empty()).copied().collect();
        let hit = |r: &Row| Some(r.ablated.get(*group)?.as_ref() == r.class.as_ref());
        let top1 = share_of(rows.iter(), hit);
        out.push(Judge {
            judge: format!("darzi without {group}"),
            trials: rows.len(),
            top3: top1.clone(),
            top1,
            culprit: None,
        });
    }
    out
}

/// How we did on each class.
pub fn classes(trials: &[Row]) -> Vec<OfClass> {
    let mut by_class: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in trials.iter().filter(|r| r.second.is_none()) {
        if let Some(class) = &row.class {
            by_class.entry(class).or_default().push(row);
        }
    }
    by_class
        .into_iter()
        .map(|(class, all)| {
            let rows: Vec<&Row> = all.iter().filter(|r| r.accepted()).copied().collect();
            let verdicts = sorted(rows.iter().filter_map(|r| r.verdict_s));
            let asked = rows.iter().any(|r| r.culprit_pid.is_some());
            OfClass {
                class: class.into(),
                accepted: rows.len(),
                without_effect: all.iter().filter(|r| !r.slowed).count(),
                by_hypervisor: all.iter().filter(|r| r.slowed && r.by_hypervisor()).count(),
                found: share_of(rows.iter(), |r| Some(r.last.is_some())),
                top1: share_of(rows.iter(), |r| Some(right(r))),
                top3: share_of(rows.iter(), |r| Some(in_three(r))),
                culprit: asked.then(|| share_of(rows.iter(), culprit)),
                verdict_p50_s: quantile(&verdicts, 0.5),
            }
        })
        .collect()
}

/// What was said of what.
pub fn confusion(trials: &[Row]) -> Vec<Confused> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for row in faults(trials) {
        let class = row.class.clone().unwrap_or_default();
        *counts.entry((class, said(row).to_string())).or_default() += 1;
    }
    counts.into_iter().map(|((class, said), trials)| Confused { class, said, trials }).collect()
}

/// How we and the published method did on each class, with all probes and without one group of
/// them at a time, on the stored traces.
pub fn ablation(trials: &[Row]) -> Vec<Ablated> {
    let mut by_class: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in faults(trials) {
        by_class.entry(row.class.as_deref().unwrap_or_default()).or_default().push(row);
    }
    let mut out = Vec::new();
    for (class, rows) in by_class {
        let mut put = |judge: &str, without: &str, top1: Figure| {
            if top1.n > 0 {
                let (class, judge, without) = (class.into(), judge.into(), without.into());
                out.push(Ablated { class, judge, without, top1 });
            }
        };
        let ours = |group: &str| {
            share_of(rows.iter(), |r| {
                let answer = r.again.get(group)?;
                Some(answer.as_ref() == r.class.as_ref())
            })
        };
        let groups = || gpuwhy_diagnose::published::GROUPS.iter().map(|g| g.0);
        put("gpuwhy", "nothing", ours(ALL_PROBES));
        groups().for_each(|group| put("gpuwhy", group, ours(group)));
        put(
            "darzi",
            "nothing",
            share_of(rows.iter(), |r| Some(r.baselines.get("darzi")?.first() == r.class.as_ref())),
        );
        for group in groups() {
            let hit = |r: &Row| Some(r.ablated.get(group)?.as_ref() == r.class.as_ref());
            put("darzi", group, share_of(rows.iter(), hit));
        }
    }
    out
}

/// Confidence of the first cause, and whether it was right.
fn sure(rows: &[&Row]) -> Vec<(f64, bool)> {
    rows.iter()
        .filter_map(|r| {
            let last = r.last.as_ref()?;
            Some((last.raw_confidence, last.classes.first() == r.class.as_ref()))
        })
        .collect()
}

/// One half of the trials, by their number, to fit; the other to test.
fn halves(trials: &[Row]) -> [Vec<(f64, bool)>; 2] {
    let rows = faults(trials);
    let half = |odd: bool| -> Vec<&Row> {
        rows.iter().filter(|r| (r.number % 2 == 1) == odd).copied().collect()
    };
    [sure(&half(false)), sure(&half(true))]
}

/// How confident and how right, on the half that the calibration was not fitted on.
pub fn reliability(trials: &[Row]) -> Vec<Bin> {
    let [fit, test] = halves(trials);
    let calibration = Calibration::fit(&fit);
    let edges = [0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.000001];
    edges
        .windows(2)
        .map(|edge| {
            let of: Vec<(f64, bool)> =
                test.iter().filter(|s| s.0 >= edge[0] && s.0 < edge[1]).copied().collect();
            let mean = |f: &dyn Fn(f64) -> f64| {
                of.iter().map(|s| f(s.0)).sum::<f64>() / of.len().max(1) as f64
            };
            Bin {
                confidence: format!("{:.2} to {:.2}", edge[0], edge[1].min(1.0)),
                verdicts: of.len(),
                mean_confidence: mean(&|c| c),
                calibrated: mean(&|c| calibration.apply(c)),
                right: Figure::share(of.iter().filter(|s| s.1).count(), of.len()),
            }
        })
        .collect()
}

/// Figures by name.
type Figures = BTreeMap<String, Figure>;

/// The figures that are quoted.
pub fn figures(sessions: &[Session], trials: &[Row]) -> Figures {
    let mut out = Figures::new();
    out.extend(judge_figures(trials));
    out.extend(time_figures(trials));
    out.extend(alarm_figures(sessions));
    out.extend(calibration_figures(trials));
    out.extend(kind_figures(trials));
    out.extend(cost_figures(sessions));
    out
}

/// One value without a spread.
fn one(value: f64, n: usize) -> Figure {
    Figure { value, spread: [value, value], n }
}

fn named<const N: usize>(figures: [(&str, Figure); N]) -> Figures {
    figures.into_iter().map(|(name, figure)| (name.to_string(), figure)).collect()
}

/// How often each method is right.
fn judge_figures(trials: &[Row]) -> Figures {
    let accepted: Vec<f64> = classes(trials).iter().map(|c| c.accepted as f64).collect();
    let least = accepted.iter().copied().fold(f64::INFINITY, f64::min);
    let mut out = named([("trials_min_per_class", one(least, accepted.len()))]);
    for judge in judges(trials) {
        let key = judge.judge.replace([' ', '-'], "_").replace(',', "");
        if judge.judge == "gpuwhy" {
            out.extend(named([("top1", judge.top1), ("top3", judge.top3)]));
            out.extend(judge.culprit.map(|culprit| ("culprit".to_string(), culprit)));
        } else {
            out.insert(format!("top1_{key}"), judge.top1);
        }
    }
    out
}

/// How soon faults are noticed and judged, and how exact the verdict's numbers are.
fn time_figures(trials: &[Row]) -> Figures {
    let rows = faults(trials);
    let at = |of: &dyn Fn(&Row) -> Option<f64>, q: f64| {
        let all = sorted(rows.iter().filter_map(|r| of(r)));
        let spread = [quantile(&all, 0.0), quantile(&all, 1.0)];
        Figure { value: quantile(&all, q), spread, n: all.len() }
    };
    let error = |r: &Row| {
        let c = r.counterfactual.as_ref().filter(|_| culprit(r) == Some(true))?;
        Some((c.without_ms - c.truth_ms).abs() / c.truth_ms)
    };
    named([
        ("detect_p50_s", at(&|r| r.detected_s, 0.5)),
        ("detect_p95_s", at(&|r| r.detected_s, 0.95)),
        ("verdict_p50_s", at(&|r| r.verdict_s, 0.5)),
        ("verdict_p95_s", at(&|r| r.verdict_s, 0.95)),
        ("onset_error_p50_s", at(&|r| r.onset_error_s.map(f64::abs), 0.5)),
        ("onset_error_p95_s", at(&|r| r.onset_error_s.map(f64::abs), 0.95)),
        ("counterfactual_mean_error", at(&error, 0.5)),
    ])
}

/// False alarms a day of calm, with bounds at 95 %.
fn alarm_figures(sessions: &[Session]) -> Figures {
    let days = sessions.iter().map(|s| s.calm_seconds).sum::<f64>() / 86_400.0;
    let alarms = sessions.iter().map(|s| s.false_alarms.len()).sum::<usize>();
    if days <= 0.0 {
        return Figures::new();
    }
    // Exact bounds of a Poisson rate would need the gamma function; these are Byar's.
    let n = alarms as f64;
    let low = match alarms {
        0 => 0.0,
        _ => n * (1.0 - 1.0 / (9.0 * n) - 1.96 / (3.0 * n.sqrt())).powi(3),
    };
    let m = n + 1.0;
    let high = m * (1.0 - 1.0 / (9.0 * m) + 1.96 / (3.0 * m.sqrt())).powi(3);
    let rate = Figure { value: n / days, spread: [low / days, high / days], n: alarms };
    named([("false_alarms_per_day", rate), ("calm_hours", one(24.0 * days, sessions.len()))])
}

/// How well confidences fit: learned on one half of the trials, measured on the other.
fn calibration_figures(trials: &[Row]) -> Figures {
    let [fit, test] = halves(trials);
    let calibration = Calibration::fit(&fit);
    let of_culprits = [false, true].map(|odd| culprits_supported(trials, odd));
    let mut out = culprit_figures(&of_culprits);
    out.extend(named([
        ("ece_raw", one(expected_error(&test, |c| c), test.len())),
        ("ece", one(expected_error(&test, |c| calibration.apply(c)), test.len())),
        ("calibration_slope", one(calibration.slope, fit.len())),
        ("calibration_shift", one(calibration.shift, fit.len())),
    ]));
    out
}

/// The support of the culprits that were named, and whether each is right. Whoever is named where nobody did it is
/// wrong.
fn culprits_supported(trials: &[Row], odd: bool) -> Vec<(f64, bool)> {
    let of = |row: &Row| {
        let last = row.last.as_ref().filter(|last| last.decided)?;
        let (pid, _) = last.named.first()?;
        Some((last.culprit_support?, row.culprit_pid == Some(*pid)))
    };
    let half = trials.iter().filter(|row| row.accepted() && (row.number % 2 == 1) == odd);
    half.filter_map(of).collect()
}

/// How well the support of culprits fits; none of sessions that were recorded before it was stored.
fn culprit_figures([fit, test]: &[Vec<(f64, bool)>; 2]) -> Figures {
    if fit.is_empty() || test.is_empty() {
        return Figures::new();
    }
    let calibration = Calibration::fit(fit);
    named([
        ("culprit_ece_raw", one(expected_error(test, |c| c), test.len())),
        ("culprit_ece", one(expected_error(test, |c| calibration.apply(c)), test.len())),
        ("culprit_calibration_slope", one(calibration.slope, fit.len())),
        ("culprit_calibration_shift", one(calibration.shift, fit.len())),
    ])
}

/// Trials of no fault, of two faults at once, and by container.
fn kind_figures(trials: &[Row]) -> Figures {
    let accepted = || trials.iter().filter(|r| r.accepted());
    let benign: Vec<&Row> = accepted().filter(|r| r.class.is_none()).collect();
    let pairs: Vec<&Row> = accepted().filter(|r| r.second.is_some()).collect();
    let either = |r: &Row| {
        let said = Some(said(r));
        Some(said == r.class.as_deref() || said == r.second_class.as_deref())
    };
    let both = |r: &Row| {
        let second = r.second_class.as_ref()?;
        Some(in_three(r) && r.last.as_ref().is_some_and(|l| l.classes.contains(second)))
    };
    let mut out = named([
        ("quiet_when_benign", share_of(benign.iter(), |r| Some(r.last.is_none()))),
        ("two_at_once_top1_either", share_of(pairs.iter(), either)),
        ("two_at_once_both_in_top3", share_of(pairs.iter(), both)),
    ]);
    for place in ["other", "same"] {
        let of: Vec<&Row> = faults(trials).into_iter().filter(|r| r.placement == place).collect();
        let right = share_of(of.iter(), |r| Some(right(r)));
        out.insert(format!("top1_{place}_container"), right);
    }
    out
}

/// CPU and memory of watching.
fn cost_figures(sessions: &[Session]) -> Figures {
    let of =
        |value: fn(&Session) -> f64| Figure::of(&sessions.iter().map(value).collect::<Vec<_>>());
    let mut out = named([
        ("machine_share", of(|s| s.machine_share)),
        ("rss_mib", of(|s| s.rss_bytes as f64 / 1048576.0)),
    ]);
    // Of sessions of nearly half an hour or more, the most memory in the last third by the most in the
    // third before: rings and the remembered steps fill in the first twenty minutes.
    let growths: Vec<f64> = sessions
        .iter()
        .filter(|s| s.rss_mib.len() >= 27)
        .map(|s| {
            let third = s.rss_mib.len() / 3;
            let most = |of: &[f64]| of.iter().copied().fold(1.0, f64::max);
            most(&s.rss_mib[2 * third..]) / most(&s.rss_mib[third..2 * third])
        })
        .collect();
    let stolen: Vec<f64> = sessions.iter().filter_map(|s| s.stolen).collect();
    if !stolen.is_empty() {
        let told = sessions.iter().map(|s| s.hypervisor_alarms.len()).sum::<usize>() as f64;
        out.extend(named([
            ("stolen_share", Figure::of(&stolen)),
            ("hypervisor_alarms", one(told, sessions.len())),
        ]));
    }
    if !growths.is_empty() {
        out.extend(named([("rss_growth", Figure::of(&growths))]));
    }
    out
}

/// One trial for the eye.
pub fn line(row: &Row) -> String {
    let judged = match (&row.class, row.accepted()) {
        (_, false) if !row.calm_before => "NOT CALM BEFORE",
        (_, false) if row.by_hypervisor() => "BY HYPERVISOR",
        (Some(_), false) => "NO EFFECT",
        (None, _) if row.last.is_none() => "quiet",
        (None, _) => "FALSE ALARM",
        _ if row.last.is_none() => "MISSED",
        _ if row.second.is_some() => {
            match Some(said(row)) == row.second_class.as_deref() || right(row) {
                true => "ok, one of two",
                false => "WRONG",
            }
        }
        _ if right(row) && culprit(row) != Some(false) => "ok",
        _ if right(row) => "WRONG CULPRIT",
        _ => "WRONG",
    };
    let seconds = |s: Option<f64>| s.map_or("-".into(), |s| format!("{s:.2}"));
    let last = row.last.as_ref();
    let effect = row
        .effects
        .iter()
        .map(|e| format!("{} {:.1}->{:.1} ms", e.name, e.before_ms, e.during_ms))
        .collect::<Vec<_>>()
        .join(", ");
    let kind = match &row.second {
        Some(second) => format!("{}+{second}", row.kind),
        None => row.kind.clone(),
    };
    format!(
        "{:>3}/{:<3} {kind:<16} x{:.1} {:<5} {judged:<15} {:<20} {:<22} {:>4.2}  detect {:>5} s  verdict {:>5} s  onset {:>6} s  {effect}",
        row.session,
        row.number,
        row.intensity,
        row.placement,
        last.map_or("-", |l| &l.class),
        last.and_then(|l| l.named.first()).map_or("-".into(), |n| format!("{} {}", n.1, n.0)),
        last.map_or(0.0, |l| l.confidence),
        seconds(row.detected_s),
        seconds(row.verdict_s),
        seconds(row.onset_error_s),
    )
}

/// All of it for the eye.
pub fn table(sessions: &[Session], trials: &[Row]) -> String {
    let mut out = String::new();
    for class in classes(trials) {
        let culprit = class.culprit.as_ref().map_or("-".into(), |c| format!("{:.2}", c.value));
        let _ = writeln!(
            out,
            "{:<22} {:>3} accepted, {:>3} without effect, {:>3} by the hypervisor: found {:.2}  top-1 {:.2}  top-3 {:.2}  culprit {culprit}  verdict p50 {:.2} s",
            class.class,
            class.accepted,
            class.without_effect,
            class.by_hypervisor,
            class.found.value,
            class.top1.value,
            class.top3.value,
            class.verdict_p50_s
        );
    }
    out.push('\n');
    for judge in judges(trials) {
        let _ = writeln!(
            out,
            "{:<26} top-1 {:.3} [{:.3}, {:.3}]  top-3 {:.3}  of {}",
            judge.judge,
            judge.top1.value,
            judge.top1.spread[0],
            judge.top1.spread[1],
            judge.top3.value,
            judge.trials
        );
    }
    out.push('\n');
    for (name, f) in figures(sessions, trials) {
        let _ = writeln!(
            out,
            "{name}: {:.3} [{:.3}, {:.3}] of {}",
            f.value, f.spread[0], f.spread[1], f.n
        );
    }
    out
}
