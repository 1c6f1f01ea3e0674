//! `gpuwhy vgpu`: who waits for whom where tenants share a GPU.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::vgpu::{Report, TenantReport, Times, vgpu};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;

use crate::exit;

/// Arguments of `vgpu`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A trace with the events of a kernel's GPU driver, as `gpuwhy import` makes of CTF
    #[arg(value_name = "T.trace")]
    trace: PathBuf,
    /// Count only what ends at this time or later, on the clock of the trace: 12.5s, 300ms
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    from: Option<Duration>,
    /// Count only what ends before this time
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    to: Option<Duration>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Reports on tenants; exit code 3 if nothing is found.
pub fn run(args: &Args) -> Result<ExitCode> {
    let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let window = (args.from.is_some() || args.to.is_some())
        .then(|| args.from.map_or(i64::MIN, ns)..args.to.map_or(i64::MAX, ns));
    let report = vgpu(&args.trace, window)?;
    if args.json {
        terminal::say_json(&serde_json::to_string_pretty(&report)?)?;
    } else {
        terminal::show(&text(&report))?;
    }
    Ok(if report.findings.is_empty() { exit::nothing() } else { ExitCode::SUCCESS })
}

fn text(report: &Report) -> Screen {
    let mut out = Screen::new(false);
    if report.events.is_empty() {
        out.line("the trace holds no event of a GPU's driver that is known here; see docs/vgpu.md");
        return out;
    }
    let (from, to) = (report.from_s, report.to_s);
    let seconds = to - from;
    out.line(format_args!("{from:.6} to {to:.6} s ({seconds:.3} s); {}", report.provenance));
    out.end().line("engines");
    for engine in &report.engines {
        let (name, device) = (&engine.name, engine.device);
        out.line(format_args!("  device {device} {name}: {:.2} % of the time", engine.utilisation));
    }
    out.end().line("tenants");
    report.tenants.iter().for_each(|one| tenant(&mut out, one));
    if !report.memory.is_empty() {
        out.end().line("memory, by the thread that asked for it; what a guest allocates within its own is not seen");
    }
    for (who, (live, peak)) in &report.memory {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        out.line(format_args!("  {who}: {:.1} MiB, at most {:.1} MiB", mib(*live), mib(*peak)));
    }
    if !report.findings.is_empty() {
        out.end().line("findings");
    }
    for finding in &report.findings {
        out.line(format_args!("  - {}: {}", finding.rule, finding.says));
    }
    not_known(&mut out, report);
    out
}

fn tenant(out: &mut Screen, one: &TenantReport) {
    out.line(format_args!(
        "  {} (device {}): {} requests, active {:.3} s, with work {:.3} s",
        one.name, one.device, one.requests, one.active_s, one.backlogged_s
    ));
    let used: Vec<String> =
        one.utilisation.iter().map(|(engine, used)| format!("{engine} {used:.2} %")).collect();
    out.line(format_args!("    use         {}", used.join(", ")));
    for (what, times) in
        [("wait", one.wait), ("execution", one.execution), ("latency", one.latency)]
    {
        let Times { mean, p50, p99, max } = times;
        out.line(format_args!(
            "    {what:<11} mean {mean:.3} ms, p50 {p50:.3}, p99 {p99:.3}, max {max:.3}"
        ));
    }
    let waits = &one.waits;
    let others: Vec<String> = waits
        .other_tenant_ms
        .iter()
        .map(|(who, ms)| format!("behind {who} {ms:.3} ms, "))
        .collect();
    out.line(format_args!(
        "    waits       {:.3} ms: own predecessor {:.3} ms, {}device idle and reserved {:.3} ms, dependency {:.3} \
         ms, host {:.3} ms",
        waits.total_ms,
        waits.own_predecessor_ms,
        others.concat(),
        waits.reserved_idle_ms,
        waits.dependency_ms,
        waits.host_ms
    ));
    out.line(format_args!(
        "    queue       {:.3} on average, {:.3} by Little's law",
        one.queue, one.queue_by_little
    ));
    if let Some(left) = one.least_left_ms {
        out.line(format_args!("    slice       {left:.3} ms left at least (below 0: debt)"));
    }
    if one.preempted + one.unfinished > 0 {
        let (preempted, unfinished) = (one.preempted, one.unfinished);
        out.line(format_args!("    {preempted} preempted, {unfinished} without an end"));
    }
}

fn not_known(out: &mut Screen, report: &Report) {
    if !report.missing.is_empty() {
        out.end().line("not known");
    }
    for (event, what) in &report.missing {
        out.line(format_args!("  - {what}: there is no {event}"));
    }
    let of = &report.misfits;
    let all = of.unmatched + of.repeated + of.impossible + of.nameless + of.never_ran + of.left_out;
    if all + of.unknown_objects > 0 {
        out.end().line(format_args!(
            "did not fit: {} events of unknown requests, {} repeated, {} impossible, {} without a name, {} requests \
             that never ran, {} beyond the limit, {} buffers of unknown size",
            of.unmatched,
            of.repeated,
            of.impossible,
            of.nameless,
            of.never_ran,
            of.left_out,
            of.unknown_objects
        ));
    }
}
