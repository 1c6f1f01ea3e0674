//! `gpuwhy diagnose`: the verdict as text, JSON or a page.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use gpuwhy_diagnose::verdict::{Evidence, Finding, Outcome};
use gpuwhy_store::Trace;
use serde::Serialize;

use crate::analysis::{self, Analysis, Options};
use crate::args::{Detector, Diagnose};
use crate::exit;
use crate::paint::Paint;
use crate::rounds::Told;

/// The JSON document of a diagnosis.
#[derive(Serialize)]
pub struct Document<'a> {
    schema_version: u32,
    trace: String,
    steps: usize,
    /// Where no steps are marked: what was judged in their place.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    rounds: &'a [Told],
    /// `found`, `nothing_anomalous` or `no_steps`.
    verdict: &'static str,
    findings: &'a [Finding],
}

fn verdict(analysis: &Analysis) -> &'static str {
    match (analysis.steps.is_empty(), analysis.findings.is_empty()) {
        (true, _) => "no_steps",
        (_, true) => "nothing_anomalous",
        _ => "found",
    }
}

impl Diagnose {
    fn options(&self) -> Options {
        let mut options = Options::default();
        options.detection.false_alarms_per_day = self.false_alarms_per_day.max(1e-6);
        options.detection.min_effect = (self.min_effect / 100.0).max(0.0);
        options.judgement.decide_at = self.decide_at;
        options
    }
}

/// Judges a trace.
pub fn run(args: &Diagnose) -> Result<ExitCode> {
    let trace = Trace::open(&args.trace)?;
    if args.detector == Detector::Darzi {
        return crate::darzi::run(&trace, args);
    }
    let analysis = analysis::analyse(&trace, &args.options())?;
    if args.json {
        let document = Document {
            schema_version: 1,
            trace: args.trace.display().to_string(),
            steps: analysis.steps.len(),
            rounds: &analysis.rounds,
            verdict: verdict(&analysis),
            findings: &analysis.findings,
        };
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        print!("{}", text(&analysis, &args.trace.display().to_string(), Paint::stdout()));
    }
    if let Some(path) = &args.html {
        let page = crate::page::render(&trace, &analysis, &args.trace.display().to_string())?;
        std::fs::write(path, page).with_context(|| format!("cannot write `{}`", path.display()))?;
        eprintln!("page: {}", path.display());
    }
    let decided = analysis.findings.iter().any(|f| f.outcome == Outcome::Decided);
    Ok(if decided { ExitCode::SUCCESS } else { exit::nothing() })
}

fn clock(analysis: &Analysis, ns: i64) -> f64 {
    let first = analysis.steps.iter().map(|s| s.ts.0).min().unwrap_or(0);
    ns.saturating_sub(first) as f64 / 1e9
}

/// The diagnosis for people.
pub fn text(analysis: &Analysis, trace: &str, paint: Paint) -> String {
    let mut out = String::new();
    if analysis.steps.is_empty() {
        let _ = writeln!(
            out,
            "{trace} holds no steps, and no GPU waits or collectives that come regularly enough to be\n\
             taken for them, so nothing can be slower than usual.\n\
             Mark them (GPUWHY_RING, include/gpuwhy.h) or name a function that is one step:\n  \
             gpuwhy record --step uprobe:BINARY:SYMBOL -p PID"
        );
        return out;
    }
    if !analysis.rounds.is_empty() {
        out.push_str("No steps are marked. What was judged in their place:\n");
        for told in &analysis.rounds {
            let _ = writeln!(out, "  {}", told.says());
        }
        out.push('\n');
    }
    if analysis.findings.is_empty() {
        let (n, what) = (analysis.steps.len(), analysis.what());
        let _ = writeln!(out, "Nothing anomalous in {n} {what} of {trace}.");
        return out;
    }
    for (n, finding) in analysis.findings.iter().enumerate() {
        if n > 0 {
            out.push('\n');
        }
        one(&mut out, analysis, finding, paint);
    }
    out
}

fn one(out: &mut String, analysis: &Analysis, finding: &Finding, paint: Paint) {
    let _ = writeln!(out, "{}", paint.bold(&finding.summary));
    let _ = writeln!(
        out,
        "  from {:.3} s to {:.3} s of the recording; {} slow steps looked into, {} usual ones",
        clock(analysis, finding.from_ns),
        clock(analysis, finding.to_ns),
        finding.slow_steps,
        finding.usual_steps
    );
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
    let _ = writeln!(out, "\n  why");
    for cause in &finding.causes {
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
