//! Every injector, several fresh trials each.
//!
//! A trial counts as a success if the verdict's class is the label's and, where the label has a
//! culprit, its pid is among the first two named. A trial whose injection did not slow the steps
//! by a tenth is reported as such and counts as neither.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gpuwhy_diagnose::verdict::{Finding, Outcome};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;
use gpuwhy_testkit::inject::Kind;
use serde::{Deserialize, Serialize};

use super::result::{self, Figure, Made};
use super::trial::{self, Effect, Plan};
use gpuwhy_engine::{TraceSource, analyse};

/// Arguments of `bench injectors`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Trials of each injector.
    #[arg(long, default_value_t = 5)]
    trials: u32,
    /// Only these injectors.
    #[arg(long = "only", value_name = "INJECTOR")]
    only: Vec<Kind>,
    /// Where the results go; trials that are there already are kept and counted.
    #[arg(long, default_value = "bench/results/injectors.json")]
    output: PathBuf,
    /// Where the traces of the trials go.
    #[arg(long, default_value = "target/trials")]
    traces: PathBuf,
    /// Forget earlier results.
    #[arg(long)]
    fresh: bool,
    /// Seconds of undisturbed steps before an injection.
    #[arg(long, default_value_t = 9)]
    before: u64,
    /// Seconds of disturbance.
    #[arg(long, default_value_t = 7)]
    during: u64,
}

/// The least change of a mean that counts as an effect.
const EFFECT: f64 = 0.10;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    injector: String,
    trial: u32,
    class: Option<String>,
    culprit_pid: Option<i64>,
    effects: Vec<Effect>,
    slowed: bool,
    found: usize,
    verdict: String,
    named: Vec<(i64, String)>,
    excess_ms: f64,
    unexplained_ms: f64,
    confidence: f64,
    class_right: bool,
    culprit_right: Option<bool>,
    valid: bool,
    summary: String,
}

#[derive(Serialize, Deserialize)]
struct Results {
    made: Made,
    figures: std::collections::BTreeMap<String, Figure>,
    trials: Vec<Row>,
}

/// Runs what is missing, and prints the table.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut trials: Vec<Row> = Vec::new();
    if !args.fresh
        && let Ok(text) = std::fs::read_to_string(&args.output)
    {
        let old: Results = serde_json::from_str(&text).with_context(|| {
            format!("`{}` is not a result; --fresh replaces it", args.output.display())
        })?;
        trials = old.trials;
    }
    let plan = Plan {
        before: Duration::from_secs(args.before),
        during: Duration::from_secs(args.during),
        after: Duration::from_secs(1),
    };
    for number in 0..args.trials {
        for kind in Kind::ALL {
            let injector = kind.name();
            let wanted = args.only.is_empty() || args.only.contains(&kind);
            let have = trials.iter().any(|t| t.injector == injector && t.trial == number);
            if !wanted || have {
                continue;
            }
            let path = args.traces.join(format!("{injector}-{number}.trace"));
            match one(&path, kind, number, &plan) {
                Ok(row) => {
                    terminal::note(format_args!("{}", line(&row)));
                    trials.push(row);
                }
                // A trial that could not be run is no trial; the next one is tried.
                Err(error) => {
                    terminal::fail(format_args!("{injector} {number}: not run: {error:#}"))
                }
            }
            let made = Made::now();
            let results = Results { made, figures: figures(&trials), trials: trials.clone() };
            result::write(&args.output, &results)?;
        }
    }
    terminal::show(Screen::new(false).block("", table(&trials)))?;
    Ok(ExitCode::SUCCESS)
}

fn one(path: &Path, injector: Kind, number: u32, plan: &Plan) -> Result<Row> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let trial = trial::run(path, injector, plan, &mut |_| {})?;
    let source = TraceSource::open(path)?;
    let valid = gpuwhy_store::validate(source.trace()).is_valid();
    let analysis = analyse(&source, &Default::default())?;
    let label = trial.label;
    let (from, to) = (label.onset_ns as i64, label.end_ns as i64);
    let effects = trial::effects(&analysis.units.steps, i64::MIN, from, to);
    let slowed = effects.iter().any(|e| e.during_ms > e.before_ms * (1.0 + EFFECT));
    // What is judged is what was found while it was injected.
    let overlapping = |f: &&Finding| f.from_ns < to && f.to_ns > from;
    let found: Vec<&Finding> =
        analysis.findings.iter().filter(|f| f.outcome == Outcome::Decided).collect();
    let first = analysis.findings.iter().find(overlapping);
    let class = label.class.clone();
    let culprit_pid = label.culprit_pid.map(i64::from);
    let named: Vec<(i64, String)> = first.map_or(vec![], named);
    let benign = class.is_none();
    Ok(Row {
        injector: injector.name().into(),
        trial: number,
        class_right: if benign {
            analysis.findings.is_empty()
        } else {
            first.is_some_and(|f| Some(f.class) == class.as_deref())
        },
        culprit_right: culprit_pid.map(|pid| named.iter().take(2).any(|n| n.0 == pid)),
        class,
        culprit_pid,
        effects,
        slowed,
        found: found.len(),
        verdict: first.map_or("nothing".into(), |f| f.class.to_string()),
        named,
        excess_ms: first.map_or(0.0, |f| f.excess_ms),
        unexplained_ms: first.map_or(0.0, |f| f.unexplained_ms),
        confidence: first.map_or(0.0, |f| f.confidence),
        valid,
        summary: first.map_or(String::new(), |f| f.summary.clone()),
    })
}

/// The processes that a finding names, in order: first culprits of its causes, then the others.
pub fn named(finding: &Finding) -> Vec<(i64, String)> {
    let first = finding.causes.first();
    let culprits =
        first.into_iter().flat_map(|c| c.culprit.iter().chain(c.others.iter().map(|(c, _)| c)));
    let later = finding.causes.iter().skip(1).filter_map(|c| c.culprit.as_ref());
    let mut out: Vec<(i64, String)> = Vec::new();
    for culprit in culprits.chain(later) {
        if let Some(pid) = culprit.pid
            && out.iter().all(|o| o.0 != pid)
        {
            out.push((pid, culprit.comm.clone().unwrap_or_default()));
        }
    }
    out
}

fn benign(row: &Row) -> bool {
    row.class.is_none()
}

fn counts(row: &Row) -> bool {
    benign(row) || row.slowed
}

fn figures(trials: &[Row]) -> std::collections::BTreeMap<String, Figure> {
    let counted: Vec<&Row> = trials.iter().filter(|r| counts(r) && !benign(r)).collect();
    let clean: Vec<&Row> = trials.iter().filter(|r| benign(r)).collect();
    let blamed: Vec<&&Row> = counted.iter().filter(|r| r.culprit_right.is_some()).collect();
    let share = |hits: usize, n: usize| Figure::share(hits, n);
    [
        ("class_right", share(counted.iter().filter(|r| r.class_right).count(), counted.len())),
        (
            "culprit_in_first_two",
            share(blamed.iter().filter(|r| r.culprit_right == Some(true)).count(), blamed.len()),
        ),
        ("quiet_when_benign", share(clean.iter().filter(|r| r.class_right).count(), clean.len())),
        (
            "injection_slowed_steps",
            share(counted.len(), trials.iter().filter(|r| !benign(r)).count()),
        ),
        ("traces_valid", share(trials.iter().filter(|r| r.valid).count(), trials.len())),
    ]
    .map(|(name, figure)| (name.to_string(), figure))
    .into()
}

fn line(row: &Row) -> String {
    let effect = row
        .effects
        .iter()
        .map(|e| format!("{} {:.1}->{:.1} ms", e.name, e.before_ms, e.during_ms))
        .collect::<Vec<_>>()
        .join(", ");
    let judged = match (benign(row), row.slowed, row.class_right) {
        (false, false, _) => "NO EFFECT",
        (_, _, true) => "ok",
        (_, _, false) => "WRONG",
    };
    let culprit = match row.culprit_right {
        Some(true) => "culprit ok",
        Some(false) => "culprit WRONG",
        None => "no culprit asked",
    };
    let first = row.named.first().map_or("-".to_string(), |(pid, comm)| format!("{comm} {pid}"));
    format!(
        "{:<16}{} {judged:<10} {:<18} {:<18} {culprit:<17} {first:<22} {:>+8.2} ms {:>5.2}  {effect}",
        row.injector,
        row.trial,
        row.class.as_deref().unwrap_or("-"),
        row.verdict,
        row.excess_ms,
        row.confidence,
    )
}

fn table(trials: &[Row]) -> String {
    let mut out = format!(
        "{:<16}  {:<10} {:<18} {:<18} {:<17} {:<22} {:>11} {:>5}  {}\n",
        "injector",
        "judged",
        "label",
        "verdict",
        "",
        "first named",
        "excess",
        "conf",
        "measured effect on the steps"
    );
    let mut rows: Vec<&Row> = trials.iter().collect();
    let order = |r: &Row| Kind::ALL.iter().position(|k| k.name() == r.injector);
    rows.sort_by_key(|r| (order(r), r.trial));
    for row in rows {
        out += &line(row);
        out.push('\n');
    }
    out.push('\n');
    for injector in Kind::ALL.map(Kind::name) {
        let all: Vec<&Row> = trials.iter().filter(|r| r.injector == injector).collect();
        let counted: Vec<&&Row> = all.iter().filter(|r| counts(r)).collect();
        if all.is_empty() {
            continue;
        }
        let right = counted.iter().filter(|r| r.class_right).count();
        let asked = counted.iter().filter(|r| r.culprit_right.is_some()).count();
        let culprit = counted.iter().filter(|r| r.culprit_right == Some(true)).count();
        let culprit = if asked > 0 { format!("{culprit}/{asked}") } else { "-".into() };
        out += &format!(
            "{injector:<16} class {right}/{} culprit {culprit:<5} without effect {}\n",
            counted.len(),
            all.len() - counted.len()
        );
    }
    for (name, figure) in figures(trials) {
        out += &format!(
            "{name}: {:.3} [{:.3}, {:.3}] of {}\n",
            figure.value, figure.spread[0], figure.spread[1], figure.n
        );
    }
    out
}
