//! `gpuwhy diagnose`: the verdict as text, JSON or a page.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use gpuwhy_diagnose::verdict::{Cause, Evidence, Finding, Outcome};
use gpuwhy_engine::analysis::{Analysis, Options, analyse};
use gpuwhy_engine::source::TraceSource;
use gpuwhy_engine::units::rounds::RoundsOfProcess;
use gpuwhy_engine::{published, view};
use serde::Serialize;

use crate::args::Judging;
use crate::exit;
use crate::paint::Paint;

/// Arguments of `diagnose`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace to judge
    #[arg(value_name = "T.trace")]
    trace: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Also write a self-contained page for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The method of judgement
    #[arg(long, value_enum, default_value_t = Detector::Accounting)]
    detector: Detector,
    #[command(flatten)]
    judging: Judging,
}

/// A method of judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Detector {
    /// Account for every nanosecond of the steps
    Accounting,
    /// The published 3σ and lagged-correlation method of Darzi et al., for comparison
    Darzi,
}

/// The JSON document of a diagnosis.
#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    trace: String,
    steps: usize,
    /// What was judged where no steps are marked.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    rounds: &'a [RoundsOfProcess],
    /// `found`, `nothing_anomalous` or `no_steps`.
    verdict: &'static str,
    findings: &'a [Finding],
}

fn verdict(analysis: &Analysis) -> &'static str {
    match (analysis.units.steps.is_empty(), analysis.findings.is_empty()) {
        (true, _) => "no_steps",
        (_, true) => "nothing_anomalous",
        _ => "found",
    }
}

/// Judges a trace.
pub fn run(args: &Args) -> Result<ExitCode> {
    let source = TraceSource::open(&args.trace)?;
    if args.detector == Detector::Darzi {
        return darzi(&source, args);
    }
    let options = Options { detection: args.judging.detection(), judging: args.judging.options() };
    let analysis = analyse(&source, &options)?;
    let name = args.trace.display().to_string();
    if args.json {
        let document = Document {
            schema_version: 1,
            trace: name.clone(),
            steps: analysis.units.steps.len(),
            rounds: &analysis.units.rounds,
            verdict: verdict(&analysis),
            findings: &analysis.findings,
        };
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        print!("{}", text(&analysis, &name, Paint::stdout()));
    }
    if let Some(path) = &args.html {
        let page = view::page::render(&source, &analysis, &name)?;
        std::fs::write(path, page).with_context(|| format!("cannot write `{}`", path.display()))?;
        eprintln!("page: {}", path.display());
    }
    let decided = analysis.findings.iter().any(|f| f.outcome == Outcome::Decided);
    Ok(if decided { ExitCode::SUCCESS } else { exit::nothing() })
}

/// Judges a trace by the published method.
fn darzi(source: &TraceSource, args: &Args) -> Result<ExitCode> {
    let Some(series) = published::series(source)? else {
        println!("{} holds no steps", args.trace.display());
        return Ok(exit::nothing());
    };
    let spikes = published::spikes(&series);
    if args.json {
        let document = serde_json::json!({
            "schema_version": 1, "detector": "darzi", "windows": spikes,
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        for window in &spikes {
            println!(
                "{:.0} s to {:.0} s: spike of {:.1} sigma",
                window.from_s, window.to_s, window.spike
            );
            for r in &window.ranked {
                println!(
                    "  {:<40} {:<18} confidence {:.2} (deviation {:.1}, correlation {:.2})",
                    r.metric, r.class, r.confidence, r.spike, r.correlation
                );
            }
        }
        if spikes.is_empty() {
            println!("No window with a spike.");
        }
    }
    Ok(if spikes.is_empty() { exit::nothing() } else { ExitCode::SUCCESS })
}

/// Seconds from the beginning of the first step.
fn clock(analysis: &Analysis, ns: i64) -> f64 {
    let first = analysis.units.steps.iter().map(|s| s.ts.0).min().unwrap_or(0);
    ns.saturating_sub(first) as f64 / 1e9
}

/// The diagnosis as text.
fn text(analysis: &Analysis, trace: &str, paint: Paint) -> String {
    let mut out = String::new();
    if analysis.units.steps.is_empty() {
        let _ = writeln!(
            out,
            "{trace} holds no steps, and no GPU waits or collectives regular enough to take in their \
             place,\nso there is nothing to compare. To get a verdict, mark each step in the program\n\
             (GPUWHY_RING, include/gpuwhy.h) or name a function that runs once a step:\n  \
             gpuwhy record --step uprobe:BINARY:SYMBOL -p PID"
        );
        return out;
    }
    if !analysis.units.rounds.is_empty() {
        out.push_str("No steps are marked. What was judged in their place:\n");
        for rounds in &analysis.units.rounds {
            let _ = writeln!(out, "  {}", rounds.text());
        }
        out.push('\n');
    }
    if analysis.findings.is_empty() {
        let (n, what) = (analysis.units.steps.len(), analysis.units.name());
        let _ = writeln!(out, "Nothing anomalous in {n} {what} of {trace}.");
        return out;
    }
    for (n, finding) in analysis.findings.iter().enumerate() {
        if n > 0 {
            out.push('\n');
        }
        one_finding(&mut out, analysis, finding, paint);
    }
    out
}

fn one_finding(out: &mut String, analysis: &Analysis, finding: &Finding, paint: Paint) {
    let _ = writeln!(out, "{}", paint.bold(&finding.summary));
    let _ = writeln!(
        out,
        "  from {:.3} s to {:.3} s of the recording; {} slow steps looked into, {} usual ones",
        clock(analysis, finding.from_ns),
        clock(analysis, finding.to_ns),
        finding.slow_steps,
        finding.usual_steps
    );
    table_of_parts(out, finding);
    let _ = writeln!(out, "\n  why");
    finding.causes.iter().for_each(|cause| one_cause(out, cause, paint));
    if let Some(without) = &finding.counterfactual {
        let _ = writeln!(out, "\n  {without}");
    }
    if !finding.ruled_out.is_empty() {
        let _ = writeln!(out, "\n  checked, and not it");
        for evidence in &finding.ruled_out {
            let _ = writeln!(out, "    {}", evidence.says);
        }
    }
}

fn table_of_parts(out: &mut String, finding: &Finding) {
    let _ = writeln!(out, "\n  where the time went, ms a step");
    let _ = writeln!(out, "    {:<18}{:>9}{:>9}{:>9}", "part", "usual", "slow", "excess");
    let mut parts: Vec<_> = finding.parts.iter().collect();
    parts.sort_by(|a, b| b.1.excess.abs().total_cmp(&a.1.excess.abs()));
    for (kind, part) in parts {
        if part.usual.abs() < 0.0005 && part.slow.abs() < 0.0005 {
            continue;
        }
        let name = if *kind == "unknown" { "unexplained" } else { kind };
        let _ = writeln!(
            out,
            "    {name:<18}{:>9.3}{:>9.3}{:>+9.3}",
            part.usual, part.slow, part.excess
        );
    }
    let _ = writeln!(
        out,
        "    {:<18}{:>9.3}{:>9.3}{:>+9.3}",
        "step", finding.usual_ms, finding.slow_ms, finding.excess_ms
    );
}

fn one_cause(out: &mut String, cause: &Cause, paint: Paint) {
    let who = cause.culprit.as_ref().map_or(String::new(), |c| format!(" by {c}"));
    let _ = writeln!(
        out,
        "    {}. {}{who}: {:+.3} ms a step, confidence {:.2}",
        cause.rank,
        paint.bold(cause.class),
        cause.excess_ms,
        cause.confidence
    );
    if let Some(culprit) = &cause.culprit {
        if let Some(cgroup) = &culprit.cgroup {
            let _ = writeln!(out, "         in {cgroup}");
        }
        for owner in &culprit.belongs_to {
            let _ = writeln!(out, "         of {owner}");
        }
    }
    for (other, ms) in &cause.others {
        let _ = writeln!(out, "         also {other}: {ms:+.3} ms a step");
    }
    let mut say = |sign: &str, evidence: &Evidence| {
        let _ = writeln!(out, "       {sign} {}", evidence.says);
        if let Some(rows) = &evidence.rows {
            let _ = writeln!(out, "         {}", paint.dim(&rows.sql));
        }
    };
    if cause.rank <= 2 {
        cause.evidence_for.iter().for_each(|e| say("+", e));
        cause.evidence_against.iter().for_each(|e| say("-", e));
        let _ = writeln!(out, "       to verify: {}", cause.verify);
    }
}
