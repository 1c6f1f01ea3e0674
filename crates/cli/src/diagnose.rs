//! `gpuwhy diagnose`: the verdict as text, JSON or a page.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use gpuwhy_diagnose::verdict::{Cause, Evidence, Finding, Outcome};
use gpuwhy_engine::analysis::{Analysis, Options, analyse};
use gpuwhy_engine::phases::{self, NotTold, Program, RestsOn};
use gpuwhy_engine::settings::Settings;
use gpuwhy_engine::source::TraceSource;
use gpuwhy_engine::threads::Threads;
use gpuwhy_engine::units::rounds::RoundsOfProcess;
use gpuwhy_engine::{published, view};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;
use gpuwhy_store::IncompleteSource;
use serde::Serialize;

use crate::args::Judging;
use crate::{args, exit};

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
    /// The published line through 99th percentiles of steps that serve language models (StriaTrace), for comparison
    P99Line,
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
    /// Phases of the programs in a profile, and what they were spent on.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    programs: &'a [Program],
    /// Programs and threads that were too many to look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_told: Option<NotTold>,
    /// What can be said without steps: where the time of busy threads went, and when that changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<&'a Threads>,
    /// What verdicts on a profile rest on.
    #[serde(skip_serializing_if = "Option::is_none")]
    rests_on: Option<&'a RestsOn>,
    /// `found`, `nothing_anomalous` or `no_steps`.
    verdict: &'static str,
    findings: &'a [Finding],
    /// Settings that are known to cost time, that are not the same everywhere, or that changed.
    #[serde(skip_serializing_if = "Settings::is_empty")]
    settings: &'a Settings,
    /// Imported files that lost rows.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    rests_on_incomplete: &'a [IncompleteSource],
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
    if args.detector == Detector::P99Line {
        return p99_line(&source, args);
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
            programs: &analysis.programs,
            not_told: analysis.not_told,
            threads: analysis.threads.as_ref(),
            rests_on: analysis.rests_on.as_ref(),
            verdict: verdict(&analysis),
            findings: &analysis.findings,
            settings: &analysis.settings,
            rests_on_incomplete: &analysis.incomplete,
        };
        terminal::say_json(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let mut screen = args::screen();
        text(&mut screen, &analysis, &name);
        terminal::show(&screen)?;
    }
    if let Some(path) = &args.html {
        let page = view::page::render(&source, &analysis, &name)?;
        gpuwhy_store::write_file(path, page.as_bytes())?;
        terminal::note(format_args!("page: {}", path.display()));
    }
    Ok(exit_code(&analysis))
}

/// What is said of a trace: the verdict's word, its text, and the exit code.
pub struct Judged {
    /// `found`, `nothing_anomalous` or `no_steps`.
    pub verdict: &'static str,
    analysis: Analysis,
    /// 0 if a cause was decided, else 3.
    pub code: ExitCode,
}

impl Judged {
    /// The text, as `gpuwhy diagnose` prints it.
    pub fn text(&self, screen: &mut Screen, trace: &str) {
        text(screen, &self.analysis, trace);
    }
}

/// Judges a trace as `gpuwhy diagnose` does.
pub fn judge(trace: &Path) -> Result<Judged> {
    let analysis = analyse(&TraceSource::open(trace)?, &Options::default())?;
    Ok(Judged { verdict: verdict(&analysis), code: exit_code(&analysis), analysis })
}

/// Whether a cause was decided.
fn exit_code(analysis: &Analysis) -> ExitCode {
    match analysis.findings.iter().any(|f| f.outcome == Outcome::Decided) {
        true => ExitCode::SUCCESS,
        false => exit::nothing(),
    }
}

/// Judges a trace by the published method.
fn darzi(source: &TraceSource, args: &Args) -> Result<ExitCode> {
    let Some(series) = published::series(source)? else {
        terminal::say(format_args!("{} holds no steps", args.trace.display()))?;
        return Ok(exit::nothing());
    };
    let spikes = published::spikes(&series);
    if args.json {
        let document = serde_json::json!({
            "schema_version": 1, "detector": "darzi", "windows": spikes,
        });
        terminal::say_json(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let mut screen = args::screen();
        spikes.iter().for_each(|window| window.text(&mut screen));
        if spikes.is_empty() {
            screen.line("No window with a spike.");
        }
        terminal::show(&screen)?;
    }
    Ok(if spikes.is_empty() { exit::nothing() } else { ExitCode::SUCCESS })
}

/// Judges the steps of an engine by the published line.
fn p99_line(source: &TraceSource, args: &Args) -> Result<ExitCode> {
    let (lines, above) = published::p99_lines(source)?;
    if args.json {
        let document = serde_json::json!({
            "schema_version": 1, "detector": "p99-line", "lines": lines, "above": above,
        });
        terminal::say_json(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let mut screen = args::screen();
        for of in &lines {
            screen.line(of.text());
        }
        if lines.is_empty() {
            screen.line("No step has a batch.");
        }
        terminal::show(&screen)?;
    }
    Ok(if above.is_empty() { exit::nothing() } else { ExitCode::SUCCESS })
}

/// Seconds from the beginning of the first step, or of the first program whose phases are told.
fn clock(analysis: &Analysis, ns: i64) -> f64 {
    let steps = analysis.units.steps.iter().map(|s| s.ts.0);
    let phases = analysis.programs.iter().flat_map(|program| &program.phases).map(|p| p.from_ns);
    ns.saturating_sub(steps.chain(phases).min().unwrap_or(0)) as f64 / 1e9
}

/// The diagnosis as text.
fn text(screen: &mut Screen, analysis: &Analysis, trace: &str) {
    verdict_text(screen, analysis, trace);
    args::mark(screen, &analysis.incomplete);
}

fn verdict_text(screen: &mut Screen, analysis: &Analysis, trace: &str) {
    if !analysis.units.rounds.is_empty() {
        screen.line(analysis.units.why_rounds());
        for rounds in &analysis.units.rounds {
            screen.line(format_args!("  {}", rounds.text()));
        }
        screen.end();
    }
    if analysis.units.steps.is_empty() && analysis.rests_on.is_some() {
        screen.line(phases::without_rounds(&analysis.programs, trace));
    } else if analysis.units.steps.is_empty() {
        no_steps(screen, trace);
    } else if analysis.findings.is_empty() {
        let (n, what) = (analysis.units.steps.len(), analysis.units.name());
        screen.line(format_args!("Nothing anomalous in {n} {what} of {trace}."));
    }
    if analysis.findings.is_empty() {
        mostly(screen, &analysis.programs);
    }
    for (n, finding) in analysis.findings.iter().enumerate() {
        if n > 0 {
            screen.end();
        }
        one_finding(screen, analysis, finding);
    }
    if let Some(threads) = &analysis.threads {
        without_steps(screen, threads);
    }
    programs(screen, analysis);
    if let Some(rests_on) = &analysis.rests_on {
        screen.end();
        for line in rests_on.text() {
            screen.line(line);
        }
    }
    for line in analysis.settings.text() {
        screen.line(line);
    }
}

fn no_steps(screen: &mut Screen, trace: &str) {
    screen
        .line(format_args!(
            "{trace} holds no steps, and no GPU waits, collectives or waits of busy threads regular enough to"
        ))
        .line("take in their place, so there is nothing to compare. To get a verdict, mark each step in the")
        .line("program (GPUWHY_RING, include/gpuwhy.h) or name a function that runs once a step:")
        .line("  gpuwhy record --step uprobe:BINARY:SYMBOL -p PID");
}

/// What can be said without steps.
fn without_steps(screen: &mut Screen, threads: &Threads) {
    screen.end().line("What can be said without steps:");
    for line in threads.text() {
        screen.line(line);
    }
}

/// What takes most of the time, where nothing was slower than usual.
fn mostly(screen: &mut Screen, programs: &[Program]) {
    for program in programs {
        for says in &program.mostly {
            screen.line(format_args!("{}: {says}.", program.name()));
        }
    }
}

/// The phases of each program.
fn programs(screen: &mut Screen, analysis: &Analysis) {
    for program in &analysis.programs {
        screen.end().line(format_args!("Phases of {}, and their shares of time", program.name()));
        for phase in &program.phases {
            screen.line(format_args!(
                "  {:<24} {:>9.3} s to {:>9.3} s  {}",
                phases::shown(&phase.name),
                clock(analysis, phase.from_ns),
                clock(analysis, phase.to_ns),
                phase.text()
            ));
        }
    }
    if let Some(not_told) = &analysis.not_told {
        screen.end().line(not_told.text());
    }
}

fn one_finding(screen: &mut Screen, analysis: &Analysis, finding: &Finding) {
    screen.bold(&finding.summary).end().line(format_args!(
        "  from {:.3} s to {:.3} s of the recording; {} slow steps looked into, {} usual ones",
        clock(analysis, finding.from_ns),
        clock(analysis, finding.to_ns),
        finding.slow_steps,
        finding.usual_steps
    ));
    table_of_parts(screen, finding);
    screen.end().line("  why");
    finding.causes.iter().for_each(|cause| one_cause(screen, cause));
    if let Some(without) = &finding.counterfactual {
        screen.end().line(format_args!("  {without}"));
    }
    if !finding.ruled_out.is_empty() {
        screen.end().line("  checked, and not it");
        for evidence in &finding.ruled_out {
            screen.line(format_args!("    {}", evidence.says));
        }
    }
}

fn table_of_parts(screen: &mut Screen, finding: &Finding) {
    screen
        .end()
        .line("  where the time went, ms a step")
        .line(format_args!("    {:<18}{:>9}{:>9}{:>9}", "part", "usual", "slow", "excess"));
    let mut parts: Vec<_> = finding.parts.iter().collect();
    parts.sort_by(|a, b| b.1.excess.abs().total_cmp(&a.1.excess.abs()));
    for (kind, part) in parts {
        if part.usual.abs() < 0.0005 && part.slow.abs() < 0.0005 {
            continue;
        }
        let name = if *kind == "unknown" { "unexplained" } else { kind };
        screen.line(format_args!(
            "    {name:<18}{:>9.3}{:>9.3}{:>+9.3}",
            part.usual, part.slow, part.excess
        ));
    }
    screen.line(format_args!(
        "    {:<18}{:>9.3}{:>9.3}{:>+9.3}",
        "step", finding.usual_ms, finding.slow_ms, finding.excess_ms
    ));
}

fn one_cause(screen: &mut Screen, cause: &Cause) {
    let who = cause.culprit.as_ref().map_or(String::new(), |c| format!(" by {c}"));
    let support = cause.culprit_support.map(|support| format!(", support for it {support:.2}"));
    screen.put(format_args!("    {}. ", cause.rank)).bold(cause.class).line(format_args!(
        "{who}: {:+.3} ms a step, confidence in the class {:.2}{}",
        cause.excess_ms,
        cause.confidence,
        support.unwrap_or_default()
    ));
    if let Some(culprit) = &cause.culprit {
        if let Some(cgroup) = &culprit.cgroup {
            screen.line(format_args!("         in {cgroup}"));
        }
        for owner in &culprit.belongs_to {
            screen.line(format_args!("         of {owner}"));
        }
    }
    for (other, ms) in &cause.others {
        screen.line(format_args!("         also {other}: {ms:+.3} ms a step"));
    }
    let mut say = |sign: &str, evidence: &Evidence| {
        screen.line(format_args!("       {sign} {}", evidence.says));
        if let Some(rows) = &evidence.rows {
            screen.put("         ").dim(&rows.sql).end();
        }
    };
    if cause.rank <= 2 {
        cause.evidence_for.iter().for_each(|e| say("+", e));
        cause.evidence_against.iter().for_each(|e| say("-", e));
        screen.line(format_args!("       to verify: {}", cause.verify));
    }
}
