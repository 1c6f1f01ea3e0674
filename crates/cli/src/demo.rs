//! `gpuwhy demo`: a real slowdown on this machine, recorded by real probes, and its verdict.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_store::Trace;

use crate::analysis;
use crate::args::Demo;
use crate::bench::trial::{self, Plan};
use crate::exit;
use crate::paint::Paint;

/// Runs the demo.
pub fn run(args: &Demo) -> Result<ExitCode> {
    if let Some(reason) = crate::doctor::refusal() {
        eprintln!("gpuwhy: {reason}");
        return Ok(exit::privilege());
    }
    let began = Instant::now();
    let paint = Paint::stdout();
    std::fs::create_dir_all(&args.output)
        .with_context(|| format!("cannot make `{}`", args.output.display()))?;
    let trace_path = args.output.join("demo.trace");
    let plan = Plan {
        before: Duration::from_secs(args.before),
        during: Duration::from_secs(args.during),
        after: Duration::from_secs(1),
    };
    println!(
        "A two-rank training loop on a simulated GPU runs for {} s, then `{}` disturbs it for {} s.\n\
         The slowdown, the probes and the verdict are real; only the GPU is simulated.\n",
        args.before + 1,
        args.injector.name(),
        args.during
    );
    let trial = trial::run(&trace_path, args.injector, &plan, &mut |says| {
        eprintln!("[{:>4.1} s] {says}", began.elapsed().as_secs_f64());
    })?;
    let trace = Trace::open(&trace_path)?;
    let report = gpuwhy_store::validate(&trace);
    let analysis = analysis::analyse(&trace, &Default::default())?;
    print!("{}", crate::diagnose::text(&analysis, &trace_path.display().to_string(), paint));

    let page = args.output.join("report.html");
    std::fs::write(&page, crate::page::render(&trace, &analysis, "demo.trace")?)
        .with_context(|| format!("cannot write `{}`", page.display()))?;
    let perfetto = args.output.join("demo.pftrace");
    crate::export::perfetto(&trace, &perfetto, gpuwhy_schema::Ns::MIN..gpuwhy_schema::Ns::MAX)?;

    let label = trial.label;
    let mut verdict = match analysis.findings.first() {
        Some(finding) => serde_json::to_value(finding)?,
        None => serde_json::json!({ "class": "nothing_anomalous", "culprit": null }),
    };
    verdict["schema_version"] = 1.into();
    verdict["injected"] = serde_json::json!({
        "injector": args.injector.name(), "class": label.class, "pid": label.culprit_pid,
        "comm": label.culprit_comm, "onset_ns": label.onset_ns, "end_ns": label.end_ns,
    });
    verdict["recording"] = serde_json::to_value(&trial.told)?;
    crate::bench::result::write(&args.output.join("verdict.json"), &verdict)?;

    println!();
    let injected = match (label.culprit_pid, &label.culprit_comm) {
        (Some(pid), Some(comm)) => format!(" by {comm} (pid {pid})"),
        _ => String::new(),
    };
    let class = label.class.as_deref().unwrap_or("none");
    println!("injected was: {class}{injected}");
    println!(
        "the recorder lost {} of {} events and used {:.2} s of CPU in {:.1} s; the trace is {}",
        trial.told.dropped,
        trial.told.events,
        trial.told.cpu_seconds,
        trial.told.seconds,
        if report.is_valid() { "valid" } else { "NOT VALID" }
    );
    println!("{:.0} s in all; left in {}:", began.elapsed().as_secs_f64(), args.output.display());
    println!("  report.html   the page; open it in a browser");
    println!("  demo.pftrace  the timeline; open it in https://ui.perfetto.dev");
    println!("  verdict.json  the verdict for programs");
    println!(
        "  demo.trace    the trace; query it: duckdb -c \"select * from 'demo.trace/step/*.parquet'\""
    );
    let found = analysis.findings.first().is_some_and(|f| Some(f.class) == label.class.as_deref());
    Ok(if found && report.is_valid() { ExitCode::SUCCESS } else { exit::failed() })
}
