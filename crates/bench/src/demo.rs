//! `gpuwhy demo`: a real slowdown on this machine, recorded by real probes, and its verdict.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpuwhy_engine::{TraceSource, analyse, analysis};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;
use gpuwhy_testkit::inject::Kind;

use crate::program;
use crate::result;
use crate::trial::{self, Plan, Trial};

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to leave demo.trace, report.html, demo.pftrace and verdict.json
    #[arg(short, long, default_value = "target/demo", value_name = "DIR")]
    output: PathBuf,
    /// The disturbance to inject
    #[arg(long, default_value = "cpu-hog", value_name = "INJECTOR")]
    injector: Kind,
    /// Seconds of undisturbed steps before it
    #[arg(long, default_value_t = 10)]
    before: u64,
    /// Seconds of disturbance
    #[arg(long, default_value_t = 8)]
    during: u64,
}

/// Runs the demo.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(reason) = program::cannot_record() {
        terminal::note(format_args!("gpuwhy: {reason}"));
        return Ok(ExitCode::from(5));
    }
    let began = Instant::now();
    std::fs::create_dir_all(&args.output)
        .with_context(|| format!("cannot make `{}`", args.output.display()))?;
    let trace = args.output.join("demo.trace");
    let plan = Plan {
        before: Duration::from_secs(args.before),
        during: Duration::from_secs(args.during),
        after: Duration::from_secs(1),
    };
    let mut screen = Screen::new(false);
    screen
        .line(format_args!(
            "A two-rank training loop on a simulated GPU runs for {} s, then `{}` disturbs it for {} s.",
            args.before + 1,
            args.injector.name(),
            args.during
        ))
        .line("The slowdown, the probes and the verdict are real; only the GPU is simulated.")
        .end();
    terminal::show(&screen)?;
    let trial = trial::run(&trace, args.injector, &plan, &mut |says| {
        terminal::note(format_args!("[{:>4.1} s] {says}", began.elapsed().as_secs_f64()));
    })?;
    let source = TraceSource::open(&trace)?;
    let valid = gpuwhy_store::validate(source.trace()).is_valid();
    let class = write_verdict(args, &trial, &source)?;
    // From here on the demo types what a user would type.
    let page = args.output.join("report.html");
    gpuwhy(&["diagnose".as_ref(), &trace, "--html".as_ref(), &page], &[0, 3])?;
    let perfetto = args.output.join("demo.pftrace");
    let export = ["export".as_ref(), &*trace, "--json".as_ref(), "--perfetto".as_ref(), &perfetto];
    gpuwhy_quiet(&export)?;
    terminal::show(&summary(args, &trial, valid, began.elapsed()))?;
    let found = class.as_deref() == trial.label.class.as_deref();
    Ok(if found && valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs `gpuwhy` with its output on ours; one of `codes` is fine.
fn gpuwhy(args: &[&Path], codes: &[i32]) -> Result<()> {
    let program = program::gpuwhy();
    let status = Command::new(&program)
        .args(args)
        .status()
        .with_context(|| format!("cannot run `{}`", program.display()))?;
    if !status.code().is_some_and(|code| codes.contains(&code)) {
        bail!("`{}` failed: {status}", args[0].display());
    }
    Ok(())
}

/// The same without its output.
fn gpuwhy_quiet(args: &[&Path]) -> Result<()> {
    let program = program::gpuwhy();
    let output = Command::new(&program)
        .args(args)
        .output()
        .with_context(|| format!("cannot run `{}`", program.display()))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Writes verdict.json: the first finding beside what was injected; returns its class.
fn write_verdict(args: &Args, trial: &Trial, source: &TraceSource) -> Result<Option<String>> {
    let analysis = analyse(source, &analysis::Options::default())?;
    let label = &trial.label;
    let mut verdict = match analysis.findings.first() {
        Some(finding) => serde_json::to_value(finding)?,
        None => serde_json::json!({ "class": "nothing_anomalous", "culprit": null }),
    };
    verdict["schema_version"] = 1.into();
    verdict["injected"] = serde_json::json!({
        "injector": args.injector.name(), "class": label.class, "pid": label.culprit_pid,
        "comm": label.culprit_comm, "onset_ns": label.onset_ns, "end_ns": label.end_ns,
    });
    verdict["recording"] = serde_json::to_value(&trial.summary)?;
    result::write(&args.output.join("verdict.json"), &verdict)?;
    Ok(analysis.findings.first().map(|finding| finding.class.to_owned()))
}

fn summary(args: &Args, trial: &Trial, valid: bool, elapsed: Duration) -> Screen {
    let label = &trial.label;
    let culprit = match (label.culprit_pid, &label.culprit_comm) {
        (Some(pid), Some(comm)) => format!(" by {comm} (pid {pid})"),
        _ => String::new(),
    };
    let mut screen = Screen::new(false);
    screen.end().line(format_args!(
        "what was injected: {}{culprit}",
        label.class.as_deref().unwrap_or("none")
    ));
    screen.line(format_args!(
        "the recorder lost {} of {} events and used {:.2} s of CPU in {:.1} s; the trace is {}",
        trial.summary.dropped,
        trial.summary.events,
        trial.summary.cpu_seconds,
        trial.summary.seconds,
        if valid { "valid" } else { "NOT VALID" }
    ));
    screen
        .line(format_args!(
            "{:.0} s in all; left in {}:",
            elapsed.as_secs_f64(),
            args.output.display()
        ))
        .line("  report.html   the page; open it in a browser")
        .line("  demo.pftrace  the timeline; open it in https://ui.perfetto.dev")
        .line("  verdict.json  the verdict for programs")
        .line(
            "  demo.trace    the trace; query it: \
             duckdb -c \"select * from 'demo.trace/step/*.parquet'\"",
        );
    screen
}
