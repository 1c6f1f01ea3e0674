//! `gpuwhy variability`: which intervals, ranks and links of GPU work differ from the others.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::variability::{
    Change, CopySummary, DeviceSummary, KernelSummary, Launches, Managed, NO_PATH, NOT_WHOLE,
    Options, Report, SEVERAL_FILES, Statement, StreamGap, notable_in_words, variability,
};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;

use crate::{args, exit};

/// Arguments of `variability`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A trace with GPU work, or SQLite exports of Nsight Systems as they are (without links, stragglers,
    /// gaps, ranges and the critical path, for which calls must be imported)
    #[arg(required = true, value_name = "T.trace | FILE")]
    inputs: Vec<PathBuf>,
    /// An earlier recording of the same work: report which kernels and copies changed since. `+` is time that
    /// this recording takes more, `-` less. With it, the exit code says whether anything changed by at least
    /// 1 % of the time of all kernels and copies: 0 if so, 3 if not, whatever else was found
    #[arg(long, value_name = "T.trace | FILE")]
    against: Option<PathBuf>,
    /// Also write a page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Length of an interval: 100us, 20ms, 1s [default: 1 ms to 1 s, so that there are about a hundred]
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    interval: Option<Duration>,
    /// How many anomalous intervals, kernels, gaps and ranges to print
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
        gpuwhy_store::write_file(path, found.html()?.as_bytes())?;
    }
    if args.json {
        terminal::say_json(&serde_json::to_string_pretty(&found.report)?)?;
    } else {
        terminal::show(&text(&found.report, args.top))?;
        let seconds = began.elapsed().as_secs_f64();
        terminal::note(format_args!("{} rows in {seconds:.2} s", found.rows));
    }
    // Whoever compares asks whether something changed, not whether something is remarkable in both.
    let found_something = found.report.has_changed().unwrap_or(found.report.found);
    Ok(if found_something { ExitCode::SUCCESS } else { exit::nothing() })
}

fn text(report: &Report, top: usize) -> Screen {
    let mut out = Screen::new(false);
    let chosen = if report.interval_chosen { " (chosen; --interval sets it)" } else { "" };
    out.line(format_args!(
        "{}: {}, {:.3} s in {} intervals of {} ms{chosen}",
        report.trace,
        count(report.devices.len(), "device"),
        report.seconds,
        report.intervals,
        report.interval_ms
    ));
    args::mark(&mut out, &report.rests_on_incomplete);
    report.devices.iter().for_each(|of| device(&mut out, of, report));
    kernels(&mut out, &report.kernels, top);
    copies(&mut out, &report.copies);
    if let Some(found) = &report.managed {
        managed(&mut out, found, report, top);
    }
    if let Some(joined) = &report.launches {
        launches(&mut out, joined, (top, report.decimals()));
        match &report.critical_path {
            Some(path) => path.text(&mut out, top),
            None => {
                out.end().line(NO_PATH);
            }
        }
    }
    if !report.whole {
        out.end().line(format_args!("not looked for: {NOT_WHOLE}"));
    }
    if let Some(all) = &report.changes {
        changes(&mut out, all, top);
    }
    if !report.settings.is_empty() {
        out.end().line("settings in which both recordings differ");
        for one in &report.settings {
            out.line(format_args!("  - {}", one.text()));
        }
    }
    statements(&mut out, "findings", &report.statements);
    statements(&mut out, "looked at, and no finding", &report.no_findings);
    if !report.not_said.is_empty() {
        out.end().line("not said");
    }
    for says in &report.not_said {
        out.line(format_args!("  - {says}"));
    }
    out
}

fn statements(out: &mut Screen, title: &str, all: &[Statement]) {
    if !all.is_empty() {
        out.end().line(title);
    }
    for statement in all {
        out.line(format_args!("  - {}", statement.says));
        if let Some(sql) = &statement.sql {
            out.line(format_args!("    {sql}"));
        }
    }
}

/// `1 device`, `2 devices`.
fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn device(out: &mut Screen, of: &DeviceSummary, report: &Report) {
    out.end().line(of.device.label()).line(format_args!(
        "  {} kernels {:.3} s, {} copies {:.3} s: {:.3} s of them exposed, {:.3} s beneath \
         kernels; idle {:.3} s",
        of.kernels, of.kernel_s, of.copies, of.copy_s, of.exposed_s, of.overlapped_s, of.idle_s
    ));
    if let Some(found) = &of.communication {
        out.line(format_args!(
            "  communication {:.3} s ({} kernels, {} copies between devices): {:.3} s exposed, {:.3} s \
             beneath computing; computing {:.3} s",
            found.total_s,
            found.kernels,
            found.peer_copies,
            found.exposed_s,
            found.overlapped_s,
            found.compute_s
        ));
    }
    if let Some(stalled) = of.fault_stall_s.filter(|stalled| *stalled > 0.0) {
        out.line(format_args!(
            "  kernels wait {stalled:.3} s for managed memory that moves on demand"
        ));
    }
    if of.rule == "too_few" {
        out.line(format_args!(
            "  {} intervals are too few to compare; choose a shorter --interval",
            report.intervals
        ));
        return;
    }
    if of.rule == SEVERAL_FILES {
        out.line("  its stalls are not told, since files whose clocks may differ hold its work; see below");
        return;
    }
    let stall = if of.anomalous == 1 { "interval stalls" } else { "intervals stall" };
    out.line(format_args!(
        "  {} {stall}: more than {:.3} ms of exposed copy (rule {})",
        of.anomalous, of.fence_ms, of.rule
    ));
    let decimals = report.decimals();
    for anomaly in &of.worst {
        let kinds: Vec<String> =
            anomaly.by_kind.iter().map(|(kind, ms)| format!("{kind} {ms:.3} ms")).collect();
        out.line(format_args!(
            "    {:>9.decimals$} to {:.decimals$} s: {:.3} ms of exposed copy ({})",
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

fn copies(out: &mut Screen, copies: &[CopySummary]) {
    if !copies.is_empty() {
        out.end().line("copies and memsets by time");
    }
    for of in copies {
        let rate = of.gb_per_s().map_or(String::new(), |rate| format!(", {rate:.3} GB/s"));
        out.line(format_args!(
            "  {:>10.3} ms  {:>8} x {:>10.3} us  {} ({} bytes{rate})",
            of.total_ms, of.count, of.mean_us, of.kind, of.bytes
        ));
    }
}

fn managed(out: &mut Screen, found: &Managed, report: &Report, top: usize) {
    out.end().line("managed memory, by why it moved");
    let label = |device: usize| report.devices[device].device.label();
    for of in &found.devices {
        for moved in &of.moved {
            out.line(format_args!(
                "  {:>10.3} ms  {:>8} x {}, to the {}: {} bytes  {}",
                moved.ms,
                moved.copies,
                moved.cause,
                moved.to,
                moved.bytes,
                label(of.device)
            ));
        }
        if of.fault_groups > 0 {
            out.line(format_args!(
                "  {} page faults in {} groups  {}",
                of.page_faults,
                of.fault_groups,
                label(of.device)
            ));
        }
    }
    if !found.kernels.is_empty() {
        out.end().line("kernels that wait for managed memory");
    }
    for of in found.kernels.iter().take(top) {
        let name: String = of.name.chars().take(90).collect();
        out.line(format_args!(
            "  {:>10.3} of {:.3} ms  {:>8} x, {} page faults, {} bytes  {name}",
            of.stalled_ms, of.total_ms, of.kernels, of.page_faults, of.bytes
        ));
    }
}

fn launches(out: &mut Screen, joined: &Launches, (top, decimals): (usize, usize)) {
    out.end().line("idle between the work of a stream, s: host wait, kernel wait, other");
    for of in &joined.idle {
        out.line(format_args!(
            "  {:>9.3} {:>9.3} {:>9.3}  {} ({} kernels)",
            of.host_wait_s, of.kernel_wait_s, of.other_s, of.stream, of.kernels
        ));
    }
    if !joined.gaps.is_empty() {
        out.end().line(
            "longest gaps of each device's busiest stream: when, how long, what the thread did that \
             launched what came next",
        );
    }
    joined.gaps.iter().take(top).for_each(|of| gap(out, of, decimals));
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

fn gap(out: &mut Screen, of: &StreamGap, decimals: usize) {
    out.line(format_args!(
        "  {:>9.decimals$} s {:>10.3} ms  {}: {}; the device was idle for {:.3} ms",
        of.from_s,
        of.ms,
        of.stream,
        of.why(),
        of.device_idle_ms
    ));
    let thread = of.thread.as_ref().map_or(String::new(), |thread| format!("{thread}: "));
    out.line(format_args!("{:>28}{thread}{}", "", of.did()));
}

fn changes(out: &mut Screen, changes: &[Change], top: usize) {
    out.end().line(
        "against the other recording, ms: + more time now, - less (of that by the number of calls, by how \
         long a call takes)",
    );
    for change in changes.iter().take(2 * top) {
        out.line(format_args!("  {}", change.text()));
    }
    out.line(notable_in_words(changes));
}
