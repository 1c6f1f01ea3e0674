//! `gpuwhy record`: the recorder's rows into a trace directory, until the command, a signal or a limit
//! ends it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_collect::{Config, EventPattern, Metrics};
use gpuwhy_engine::launch::{self, Instrumentation, MarkRing, Supervised};
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::record::{CPU_RECORDS, Recording, RecordingSummary};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;

use crate::args::{Recorded, trace_losses};
use crate::command::{CommandArgs, EXIT_CODES, Session};
use crate::diagnose::{self, Judged};
use crate::exit;
use crate::sink::{Place, Sink};

/// Arguments of `record`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Args {
    /// The trace directory to create
    #[arg(short, long, default_value = "gpuwhy.trace", value_name = "T.trace")]
    output: PathBuf,
    /// Stop after this long
    #[arg(long = "for", value_name = "30s", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Record threads exactly that wake recorded threads, this many wakers away
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=8))]
    hops: u8,
    /// Record the threads of all processes exactly that hold a virtual CPU of KVM now, for `gpuwhy vgpu`
    #[arg(long)]
    vms: bool,
    /// Tracepoints that become marks with their fields, such as drm:* or sched:sched_process_exec; may be repeated. Those of
    /// GPU drivers by which `gpuwhy vgpu` judges are recorded in any case
    #[arg(long = "kernel-event", value_name = "SYSTEM:EVENT")]
    kernel_events: Vec<EventPattern>,
    /// Size of the ring buffer between kernel and recorder in KiB, rounded up to a power of two
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=262_144))]
    ring_kib: u32,
    /// Keep only the latest part of the trace on disk
    #[arg(long, value_name = "10m", value_parser = parse_duration)]
    keep: Option<Duration>,
    /// Print one JSON document at the end instead of text
    #[arg(long)]
    json: bool,
    /// Where the summary goes: a file, - for standard output, or fd:N for an open descriptor. By default
    /// on standard output, beside a command on standard error
    #[arg(long, value_name = "FILE|-|fd:N")]
    summary: Option<Place>,
    // Options that follow these would stand under their headings in the help.
    #[command(flatten)]
    recorded: Recorded,
    #[command(flatten)]
    command: CommandArgs,
}

impl Args {
    fn config(
        &self,
        pids: &[i32],
        ring: &MarkRing,
        observed: &Instrumentation,
        command: Option<&Supervised>,
    ) -> Config {
        let Recorded { steps, hz, off, in_process, served, .. } = &self.recorded;
        Config {
            targets: launch::targets(pids, command),
            hops: self.hops,
            hz: *hz,
            calm_hz: None,
            ring_bytes: (self.ring_kib * 1024).next_power_of_two(),
            cpu_records: CPU_RECORDS,
            steps: steps.clone(),
            wire: Some(ring.path().to_path_buf()),
            agent_socket: observed.socket.clone(),
            nccl_ras: in_process.nccl_ras.clone(),
            gpu_switches: self.recorded.gpu_switches,
            metrics: Metrics::at(&served.metrics, &served.slo),
            kernel_events: Some(self.kernel_events.clone()),
            off: off.clone(),
        }
    }
}

/// Records a trace.
pub fn run(args: &Args) -> Result<ExitCode> {
    let recorded = &args.recorded;
    let pids = launch::recorded_pids(&recorded.pids, args.vms)?;
    args.command.check()?;
    if let Some(reason) = crate::doctor::refusal() {
        terminal::fail(format_args!("gpuwhy: {reason}"));
        return Ok(exit::privilege());
    }
    let beside_command = args.command.is_there();
    let mut out = Sink::open(args.summary.as_ref(), beside_command)?;
    launch::make_room(&args.output, recorded.force)?;
    let ring = MarkRing::make(recorded.ring.as_deref())?;
    let observed = Instrumentation::prepare(&recorded.in_process.options(), beside_command)?;
    let command = args.command.start(&ring, &observed)?;
    let config = args.config(&pids, &ring, &observed, command.as_ref());
    let mut recording = Recording::start(&args.output, config, args.keep)?;
    let mut session = Session::begin(&args.command, command, &observed, args.duration)?;
    let mut progress = Progress::new(args);
    while !session.is_over() {
        session.shield(|| Ok(recording.tick()?));
        for news in recording.take_news() {
            session.say(&news);
        }
        progress.print(&recording);
    }
    progress.end();
    let Some(mut summary) = session.close(|| recording.close()) else { return session.end(None) };
    summary.command_status = session.command_status();
    summary.degraded.extend(observed.notes.iter().cloned());
    let judge = || (diagnose::judge(&args.output), None);
    let judged = args.command.exit_with_verdict.then(|| session.close(judge)).flatten();
    let is_outlived = session.is_outlived();
    if !is_outlived {
        out.release();
    }
    let judged_well = judged.as_ref().and_then(|judged| judged.as_ref().ok());
    let written = match args.json {
        true => out.json(&document(&summary, judged_well)?),
        false => out.show(&report(&summary, judged_well, is_outlived)),
    };
    let verdict = match judged {
        None => None,
        Some(Ok(judged)) => Some(judged.code),
        Some(Err(error)) => {
            session.say(&format!("the trace cannot be judged: {error:#}"));
            Some(exit::failed())
        }
    };
    let code = session.end(verdict)?;
    out.release();
    if !beside_command {
        written.context("cannot write the summary")?;
    }
    Ok(code)
}

/// The summary as a JSON document.
fn document(summary: &RecordingSummary, judged: Option<&Judged>) -> Result<String> {
    let mut document = serde_json::to_value(summary)?;
    if let (Some(judged), Some(document)) = (judged, document.as_object_mut()) {
        document.insert("verdict".into(), judged.verdict.into());
    }
    Ok(serde_json::to_string_pretty(&document)?)
}

/// What is said at the end.
fn report(summary: &RecordingSummary, judged: Option<&Judged>, is_outlived: bool) -> Screen {
    let mut screen = text(summary);
    if is_outlived {
        screen.line("The recording has ended as --for says; gpuwhy waits for the command.");
    }
    if let Some(judged) = judged {
        judged.text(&mut screen, &summary.trace);
    }
    screen
}

/// One line on a terminal, once a second.
struct Progress {
    enabled: bool,
    printed: Instant,
}

impl Progress {
    fn new(args: &Args) -> Progress {
        // A terminal that a command runs in is the command's.
        let enabled = terminal::stderr_is_terminal() && !args.json && !args.command.is_there();
        if enabled {
            terminal::note(format_args!("recording into {}; ^C ends it", args.output.display()));
        }
        Progress { enabled, printed: Instant::now() }
    }

    fn print(&mut self, recording: &Recording) {
        if !self.enabled || self.printed.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.printed = Instant::now();
        let (status, seconds) = (recording.status(), recording.elapsed().as_secs_f64());
        terminal::status(format_args!(
            "{seconds:>5.0} s  {:>10} events  {} lost  {:.1} % of a CPU  {} MiB ",
            status.events,
            status.dropped,
            100.0 * status.cpu.as_secs_f64() / seconds,
            status.rss >> 20
        ));
    }

    fn end(&self) {
        if self.enabled {
            terminal::note("");
        }
    }
}

/// The summary for users, and what to do next.
fn text(summary: &RecordingSummary) -> Screen {
    let mut screen = Screen::new(false);
    screen.line(format_args!(
        "{}: {:.1} s, {} events, {} lost, {} rows; the recorder used {:.2} s of CPU and {} MiB",
        summary.trace,
        summary.seconds,
        summary.events,
        summary.dropped,
        summary.rows,
        summary.cpu_seconds,
        summary.rss_bytes >> 20
    ));
    trace_losses(&mut screen, summary.lost_rows, summary.complete);
    for degraded in &summary.degraded {
        screen.line(format_args!("  {degraded}"));
    }
    let observed = &summary.observed;
    if summary.steps > 0 {
        screen.line(format_args!("next: gpuwhy diagnose {}", summary.trace));
    } else if observed.gpu_waits + observed.collectives > 0 {
        screen.line(format_args!(
            "No steps were marked. `gpuwhy diagnose {}` will look for a regular pattern in the {} GPU \
             waits and {} collectives that were recorded.",
            summary.trace, observed.gpu_waits, observed.collectives
        ));
    } else {
        screen
            .line(
                "No steps were recorded: no program marked any, and there were no GPU waits and no collectives \
                 to take in their place.",
            )
            .line(format_args!(
                "Recorded were the states of {} threads, {} disk requests, {} kernels. `gpuwhy diagnose {}` will \
                 look for a rhythm in what busy threads wait for, and says where their time went.",
                observed.threads, observed.requests, observed.kernels, summary.trace
            ))
            .line("To have steps,")
            .line("  - mark each step in the program (include/gpuwhy.h; GPUWHY_RING is set for it), or")
            .line(
                "  - name a function that runs once a step: \
                 gpuwhy record --step uprobe:BINARY:SYMBOL -- CMD",
            );
    }
    screen
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_engine::record::Observed;

    fn next(steps: u64, observed: Observed) -> String {
        let summary = RecordingSummary {
            trace: "t.trace".into(),
            complete: true,
            steps,
            observed,
            ..RecordingSummary::default()
        };
        let text = text(&summary);
        text.as_str().lines().nth(1).unwrap_or_default().to_owned()
    }

    #[test]
    fn the_last_line_says_what_can_be_judged() {
        assert_eq!(next(7, Observed::default()), "next: gpuwhy diagnose t.trace");
        let waits = next(0, Observed { gpu_waits: 300, ..Observed::default() });
        assert!(waits.contains("regular pattern in the 300 GPU waits"), "{waits}");
        let nothing = next(0, Observed { threads: 3, ..Observed::default() });
        assert!(nothing.starts_with("No steps were recorded"), "{nothing}");
    }
}
