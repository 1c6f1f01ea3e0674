//! One session: the workload is watched while faults are injected, and every method is asked about each.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuwhy_diagnose::detect::Step;
use gpuwhy_diagnose::published::darzi::HZ;
use gpuwhy_diagnose::published::{self, Window};
use gpuwhy_diagnose::stats::{Random, mean, quantile, sorted};
use gpuwhy_engine::live::{Ended, Event, Verdict};
use gpuwhy_engine::published::{self as series, Series};
use gpuwhy_engine::{TraceSource, units};
use gpuwhy_schema::{Class, terminal};
use gpuwhy_testkit::inject::{Kind, Label, Placement, Spec};

use super::Args;
use super::choose::{Choice, choose};
use super::results::{Answer, Counterfactual, EFFECT, Row, Session};
use crate::result::Made;
use crate::stage::{Stage, Timed};
use crate::stolen::Stolen;
use crate::trial;

/// A trial is compared with the steps of this long before it.
const BEFORE: Duration = Duration::from_secs(5);
/// How long after its end an injection may still show.
pub(super) const AFTER: Duration = Duration::from_secs(3);
/// Undisturbed steps at the start of a session, to learn what is usual.
const WARM_UP: Duration = Duration::from_secs(12);
/// No trial begins with less than this left of the session.
const LAST_TRIAL: Duration = Duration::from_secs(18);

/// A trial that was made but not scored yet.
struct Trial {
    label: Label,
    second: Option<Label>,
    choice: Choice,
    calm_before: bool,
    /// From the start of the injector to its end: it prepares before the fault, and cleans up after it.
    busy: (i64, i64),
}

impl Trial {
    fn onset(&self) -> i64 {
        self.label.onset_ns as i64
    }

    fn end(&self) -> i64 {
        let second = self.second.as_ref().map_or(0, |l| l.end_ns);
        self.label.end_ns.max(second) as i64
    }

    fn is_fault(&self) -> bool {
        self.label.class.is_some()
    }
}

/// Runs one session of length `long` into `path`; `before` are the trials of earlier sessions.
pub fn run(
    path: &Path,
    seed: u64,
    long: Duration,
    args: &Args,
    before: &[Row],
) -> Result<(Session, Vec<Row>)> {
    let mut stage = Stage::open(path, |options| {
        options.everything = args.everything;
        // Trials are judged again from what is stored.
        options.all_rows = 1.0;
    })?;
    let zero = gpuwhy_collect::now().0;
    let injected = inject_all(&mut stage, seed, long, args, before)?;
    let Stage { watcher, mut events, stolen, .. } = stage;
    let (last, ended) = watcher.finish()?;
    let at = gpuwhy_collect::now().0;
    events.extend(last.into_iter().map(|event| Timed { at, event }));

    let source = TraceSource::open(path)?;
    let steps = units::steps::of_trace(&source)?;
    let series = series::series(&source)?;
    let trials = &injected.trials;
    let windows: Vec<(i64, i64)> = trials.iter().map(|t| (t.onset(), t.end())).collect();
    let mut rows = Vec::new();
    for (number, trial) in trials.iter().enumerate() {
        let mut row = Row::new(seed, number as u32, &trial.choice);
        score_ours(&mut row, trial, zero, &steps, &events);
        let before = stolen.share(row.onset_ns - BEFORE.as_nanos() as i64, row.onset_ns);
        row.stolen = before.zip(stolen.share(row.onset_ns, row.end_ns)).map(Into::into);
        if let Some(series) = &series {
            ask_others(&mut row, trial, series, &windows);
        }
        rows.push(row);
    }
    let session = session(seed, zero, injected, &events, (&stolen, ended));
    Ok((session, rows))
}

/// Injects faults until the session is over.
fn inject_all(
    stage: &mut Stage,
    seed: u64,
    long: Duration,
    args: &Args,
    before: &[Row],
) -> Result<Injected> {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(1));
    let began = Instant::now();
    stage.run_for(WARM_UP)?;
    let mut trials: Vec<Trial> = Vec::new();
    let mut chosen: Vec<Row> = Vec::new();
    let (mut failed, mut rss_mib): (Vec<(i64, i64)>, Vec<f64>) = (Vec::new(), Vec::new());
    while began.elapsed() + LAST_TRIAL < long {
        if rss_mib.len() as u64 <= began.elapsed().as_secs() / 60 {
            rss_mib.push((stage.watcher.status().rss_bytes as f64 / 1048576.0).round());
        }
        let choice = choose(&mut random, args, before, &chosen);
        stage.run_for(choice.gap)?;
        let calm_before = stage.calm(Duration::from_secs(10))?;
        let spec = |kind| Spec {
            intensity: choice.intensity,
            placement: choice.placement,
            ..stage.spec(kind, choice.long.as_secs_f64())
        };
        let specs = [Some(choice.kind), choice.second].into_iter().flatten().map(spec).collect();
        let since = gpuwhy_collect::now().0;
        match stage.inject(specs) {
            Ok(mut labels) => {
                let label = labels.remove(0);
                chosen.push(Row::new(seed, trials.len() as u32, &choice));
                let (second, busy) = (labels.pop(), (since, gpuwhy_collect::now().0));
                trials.push(Trial { label, second, choice, calm_before, busy });
            }
            Err(error) => {
                // Of two, one may have been at work.
                failed.push((since, gpuwhy_collect::now().0));
                terminal::fail(format_args!("{}: not injected: {error:#}", choice.kind.name()));
            }
        }
        stage.run_for(AFTER)?;
    }
    stage.calm(Duration::from_secs(10))?;
    Ok(Injected { trials, failed, rss_mib })
}

/// What was done in a session.
struct Injected {
    trials: Vec<Trial>,
    /// When something was tried that could not be done.
    failed: Vec<(i64, i64)>,
    /// The memory of the watcher, once a minute.
    rss_mib: Vec<f64>,
}

/// What the session was as a whole.
fn session(
    seed: u64,
    zero: i64,
    injected: Injected,
    events: &[Timed],
    (stolen, ended): (&Stolen, Ended),
) -> Session {
    let faults = injected.trials.iter().filter(|trial| trial.is_fault());
    let busy: Vec<(i64, i64)> = faults.map(|trial| trial.busy).chain(injected.failed).collect();
    let disturbed: f64 =
        busy.iter().map(|(from, to)| (to - from) as f64 / 1e9 + AFTER.as_secs_f64()).sum();
    let touches = |from: i64, to: i64| {
        let near = AFTER.as_nanos() as i64;
        busy.iter().any(|(begun, ended)| from < ended + near && to > *begun)
    };
    let rss_mib = injected.rss_mib;
    let is_false = |v: &Verdict| !touches(v.finding.from_ns, v.finding.to_ns);
    let usual = stolen.share(i64::MIN / 2, i64::MAX / 2);
    let was_stolen = |v: &Verdict| {
        let then = stolen.share(v.finding.from_ns, v.finding.to_ns);
        v.finding.class == Class::CpuSteal.as_str() && then.zip(usual).is_some_and(|(t, u)| t > u)
    };
    let (mut false_alarms, mut hypervisor_alarms) = (Vec::new(), Vec::new());
    let mut shed = Vec::new();
    for timed in events {
        match &timed.event {
            Event::Over(verdict) if is_false(verdict) => {
                let says = verdict.finding.summary.clone();
                if was_stolen(verdict) { &mut hypervisor_alarms } else { &mut false_alarms }
                    .push(says);
            }
            Event::Shed(event) => {
                shed.push(((timed.at - zero) as f64 / 1e9, event.says.clone()));
            }
            _ => {}
        }
    }
    Session {
        seed,
        made: Made::now(),
        seconds: ended.seconds,
        calm_seconds: (ended.seconds - disturbed).max(0.0),
        steps: ended.steps,
        false_alarms,
        hypervisor_alarms,
        stolen: usual,
        own_doing: ended.own_doing,
        as_before: ended.as_before,
        machine_share: ended.machine_share,
        rss_bytes: ended.rss_bytes,
        rss_mib,
        judging_seconds: ended.judging_seconds,
        shed,
    }
}

impl Row {
    /// A trial that has been chosen and not begun.
    fn new(session: u64, number: u32, choice: &Choice) -> Row {
        Row {
            session,
            number,
            kind: choice.kind.name().into(),
            second: choice.second.map(|k| k.name().into()),
            class: choice.kind.class().map(str::to_owned),
            second_class: choice.second.and_then(Kind::class).map(str::to_owned),
            culprit_pid: None,
            intensity: choice.intensity,
            placement: match choice.placement {
                Placement::Other => "other".into(),
                Placement::Same => "same".into(),
            },
            onset_ns: 0,
            end_ns: 0,
            onset_s: 0.0,
            seconds: choice.long.as_secs_f64(),
            effects: Vec::new(),
            slowed: false,
            stolen: None,
            calm_before: false,
            detected_s: None,
            verdict_s: None,
            first: None,
            last: None,
            onset_error_s: None,
            counterfactual: None,
            baselines: BTreeMap::new(),
            ablated: BTreeMap::new(),
            again: BTreeMap::new(),
        }
    }
}

/// Fills in what was done in a trial, and what the watcher said of it.
fn score_ours(row: &mut Row, trial: &Trial, zero: i64, steps: &[Step], events: &[Timed]) {
    let (onset, end) = (trial.onset(), trial.end());
    let since = onset - BEFORE.as_nanos() as i64;
    (row.onset_ns, row.end_ns) = (onset, end);
    row.onset_s = (onset - zero) as f64 / 1e9;
    row.seconds = (end - onset) as f64 / 1e9;
    row.culprit_pid = trial.label.culprit_pid.map(i64::from);
    row.calm_before = trial.calm_before;
    row.effects = trial::effects(steps, since, onset, end);
    row.slowed = row.effects.iter().any(|e| e.during_ms > e.before_ms * (1.0 + EFFECT));
    let until = end + AFTER.as_nanos() as i64;
    let after = |at: i64| (at - onset) as f64 / 1e9;
    for timed in events.iter().filter(|timed| timed.at >= onset) {
        match &timed.event {
            Event::Slow(_) if timed.at < until => {
                row.detected_s.get_or_insert(after(timed.at));
            }
            Event::Verdict(verdict) if timed.at < until && row.first.is_none() => {
                row.verdict_s = Some(after(timed.at));
                row.first = Some(Answer::of(&verdict.finding));
            }
            Event::Over(verdict)
                if verdict.finding.from_ns < end && verdict.finding.to_ns > onset =>
            {
                let finding = &verdict.finding;
                if row.last.as_ref().is_some_and(|last| finding.excess_ms <= last.excess_ms) {
                    continue;
                }
                row.last = Some(Answer::of(finding));
                row.onset_error_s = Some(after(finding.from_ns));
                let usual = steps.iter().filter(|s| s.ts.0 >= since && s.end().0 <= onset);
                let usual: Vec<f64> = usual.map(|s| s.dur.as_millis_f64()).collect();
                row.counterfactual = counterfactual(verdict, &usual);
            }
            _ => {}
        }
    }
}

/// A verdict's counterfactual beside the truth: the steps before the fault.
fn counterfactual(verdict: &Verdict, usual: &[f64]) -> Option<Counterfactual> {
    verdict.finding.counterfactual.as_ref().map(|c| Counterfactual {
        mean_ms: c.mean_ms,
        without_ms: c.mean_without_ms,
        truth_ms: mean(usual),
        p99_ms: c.p99_ms,
        p99_without_ms: c.p99_without_ms,
        p99_truth_ms: quantile(&sorted(usual.iter().copied()), 0.99),
    })
}

/// What the other methods say of a trial: they are given its onset, a window of up to 5 s from there
/// on, and the last 30 s without any fault as their baseline.
fn ask_others(row: &mut Row, trial: &Trial, series: &Series, windows: &[(i64, i64)]) {
    let sample = |ns: i64| ((ns - series.from.0).max(0) as usize) * HZ / 1_000_000_000;
    let n = series.latency.len();
    let (onset, end) = (sample(trial.onset()).min(n), sample(trial.end()).min(n));
    let settled = (AFTER.as_secs_f64() * HZ as f64) as usize;
    let calm = |i: &usize| {
        windows.iter().all(|(from, to)| *i < sample(*from) || *i > sample(*to) + settled)
    };
    let mut base: Vec<usize> = (0..onset).rev().filter(calm).take(series::BASE).collect();
    base.reverse();
    if base.len() < 5 * HZ || end <= onset {
        return;
    }
    let picked: Vec<usize> = base.iter().copied().chain(onset..end.min(onset + 500)).collect();
    let take = |values: &[f64]| -> Vec<f64> { picked.iter().map(|i| values[*i]).collect() };
    let metrics: Vec<published::Metric> = series
        .metrics
        .iter()
        .map(|m| published::Metric {
            name: m.name.clone(),
            class: m.class,
            values: take(&m.values),
        })
        .collect();
    let latency = take(&series.latency);
    let (base, at) = ((0, base.len()), (base.len(), picked.len()));
    let window = Window { latency: &latency, metrics: &metrics, base, at };
    let classes = |ranked: Vec<published::Scored>| {
        let mut out: Vec<String> = Vec::new();
        for (metric, _) in ranked {
            let class = metrics[metric].class.to_string();
            if out.len() < 3 && !out.contains(&class) {
                out.push(class);
            }
        }
        out
    };
    for (name, method) in published::ALL {
        row.baselines.insert(name.to_string(), classes(method(&window)));
    }
    for (group, within) in published::GROUPS {
        let ranked = published::darzi_with(&window, |name| !within(name));
        row.ablated.insert(group.to_string(), classes(ranked).into_iter().next());
    }
}
