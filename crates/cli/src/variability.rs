//! `gpuwhy variability`: which intervals, ranks and links of GPU work differ from the others.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::variability::{
    Change, DeviceSummary, KernelSummary, Launches, Options, Report, variability,
};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;

use crate::exit;

/// Arguments of `variability`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A trace with GPU work, or SQLite exports of Nsight Systems as they are (without links and
    /// stragglers, for which MPI calls must be imported)
    #[arg(required = true, value_name = "T.trace | FILE")]
    inputs: Vec<PathBuf>,
    /// An earlier recording of the same work: report which kernels changed since
    #[arg(long, value_name = "T.trace | FILE")]
    against: Option<PathBuf>,
    /// Also write a page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Length of an interval [default: 1s]
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    interval: Option<Duration>,
    /// How many anomalous intervals and kernels to print
    #[arg(long, default_value_t = 5, value_name = "N")]
    top: usize,
    /// Shards of time that are read separately; the answer does not depend on it
    #[arg(long, value_name = "N")]
    shards: Option<usize>,
    /// Threads; one a CPU by default. The answer does not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Let the query engine read the rows: on the cluster of this scheduler, or `local` in a process on
    /// this machine. The trace may then be at s3://BUCKET/PATH. The answer does not depend on it
    #[arg(long, value_name = "df://HOST:PORT")]
    cluster: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Reports what differs.
pub fn run(args: &Args) -> Result<ExitCode> {
    let began = Instant::now();
    let options = Options {
        interval: args.interval,
        top: args.top,
        shards: args.shards,
        threads: args.threads,
        cluster: args.cluster.clone(),
    };
    let found = variability(&args.inputs, args.against.as_ref(), &options)?;
    if let Some(path) = &args.html {
        std::fs::write(path, found.html()?)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    if args.json {
        terminal::say_json(&serde_json::to_string_pretty(&found.report)?)?;
    } else {
        terminal::show(&text(&found.report, args.top))?;
        let seconds = began.elapsed().as_secs_f64();
        terminal::note(format_args!("{} rows in {seconds:.2} s", found.rows));
    }
    Ok(if found.report.is_quiet() { exit::nothing() } else { ExitCode::SUCCESS })
}

fn text(report: &Report, top: usize) -> Screen {
    let mut out = Screen::new(false);
    out.line(format_args!(
        "{}: {} devices, {:.3} s in {} intervals of {} ms",
        report.trace,
        report.devices.len(),
        report.seconds,
        report.intervals,
        report.interval_ms
    ));
    report.devices.iter().for_each(|of| device(&mut out, of));
    kernels(&mut out, &report.kernels, top);
    if let Some(joined) = &report.launches {
        launches(&mut out, joined, top);
    }
    if let Some(all) = &report.changes {
        changes(&mut out, all, top);
    }
    if !report.statements.is_empty() {
        out.end().line("findings");
        for statement in &report.statements {
            out.line(format_args!("  - {}", statement.says));
            if let Some(sql) = &statement.sql {
                out.line(format_args!("    {sql}"));
            }
        }
    }
    out
}

fn device(out: &mut Screen, of: &DeviceSummary) {
    out.end().line(of.device.label()).line(format_args!(
        "  {} kernels {:.3} s, {} copies {:.3} s: {:.3} s of them exposed, {:.3} s beneath \
         kernels; idle {:.3} s",
        of.kernels, of.kernel_s, of.copies, of.copy_s, of.exposed_s, of.overlapped_s, of.idle_s
    ));
    out.line(format_args!(
        "  {} intervals stall beyond {:.3} ms (rule {})",
        of.anomalous, of.fence_ms, of.rule
    ));
    for anomaly in &of.worst {
        let kinds: Vec<String> =
            anomaly.by_kind.iter().map(|(kind, ms)| format!("{kind} {ms:.3} ms")).collect();
        out.line(format_args!(
            "    {:>9.3} to {:.3} s: {:.3} ms of exposed copy ({})",
            anomaly.from_s,
            anomaly.to_s,
            anomaly.exposed_ms,
            kinds.join(", ")
        ));
    }
}

fn kernels(out: &mut Screen, kernels: &[KernelSummary], top: usize) {
    out.end().line("kernels by time");
    for kernel in kernels.iter().take(top) {
        let name: String = kernel.name.chars().take(90).collect();
        out.line(format_args!(
            "  {:>10.3} ms  {:>8} x {:>10.3} us (p50 {:.3}, p99 {:.3}, std {:.3})  {name}",
            kernel.total_ms,
            kernel.count,
            kernel.mean_us,
            kernel.p50_us,
            kernel.p99_us,
            kernel.std_us
        ));
    }
}

fn launches(out: &mut Screen, joined: &Launches, top: usize) {
    out.end().line("idle between kernels, s: host wait, kernel wait, other");
    for of in &joined.idle {
        out.line(format_args!(
            "  {:>9.3} {:>9.3} {:>9.3}  {} ({} kernels)",
            of.host_wait_s, of.kernel_wait_s, of.other_s, of.stream, of.kernels
        ));
    }
    if !joined.ranges.is_empty() {
        out.end().line("ranges by the device time launched within them");
    }
    for of in joined.ranges.iter().take(top) {
        let name: String = of.name.chars().take(90).collect();
        out.line(format_args!(
            "  {:>10.3} ms on devices, {:>10.3} ms on the host, {:>7} x {}: {name}",
            of.device_ms, of.host_ms, of.ranges, of.lane
        ));
    }
}

fn changes(out: &mut Screen, changes: &[Change], top: usize) {
    out.end().line("kernels against the other recording, ms: by count, by duration");
    for change in changes.iter().take(2 * top) {
        let name: String = change.name.chars().take(90).collect();
        let how = match (&change.before, &change.after, &change.built_as) {
            (None, _, Some(_)) => " (built otherwise)",
            (None, _, None) => " (new)",
            (_, None, Some(_)) => " (built otherwise now)",
            (_, None, None) => " (gone)",
            _ => "",
        };
        out.line(format_args!(
            "  {:>+10.3} ({:+.3}, {:+.3})  {name}{how}",
            change.delta_ms, change.by_count_ms, change.by_duration_ms
        ));
    }
}
