//! `gpuwhy record`: the recorder's rows into a trace directory, until a signal or a limit ends it.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_collect::Config;
use gpuwhy_engine::launch::{self, GatedCommand, Instrumentation, MarkRing};
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::record::{Recording, RecordingSummary};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;

use crate::args::{Recorded, check_pids, stop_flag};
use crate::exit;

/// Arguments of `record`.
#[derive(Debug, clap::Args)]
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
    /// Size of the ring buffer between kernel and recorder in KiB, rounded up to a power of two
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=262_144))]
    ring_kib: u32,
    /// Keep only the latest part of the trace on disk
    #[arg(long, value_name = "10m", value_parser = parse_duration)]
    keep: Option<Duration>,
    /// Print one JSON document at the end instead of text
    #[arg(long)]
    json: bool,
    /// The command to run and record
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    // Last: options that follow it would stand under its heading in the help.
    #[command(flatten)]
    recorded: Recorded,
}

impl Args {
    fn config(
        &self,
        ring: &MarkRing,
        observed: &Instrumentation,
        command: Option<&GatedCommand>,
    ) -> Config {
        let Recorded { pids, steps, hz, off, in_process, .. } = &self.recorded;
        Config {
            targets: launch::targets(pids, command),
            hops: self.hops,
            hz: *hz,
            ring_bytes: (self.ring_kib * 1024).next_power_of_two(),
            steps: steps.clone(),
            wire: Some(ring.path().to_path_buf()),
            agent_socket: observed.socket.clone(),
            nccl_ras: in_process.nccl_ras.clone(),
            off: off.clone(),
        }
    }
}

/// Records a trace.
pub fn run(args: &Args) -> Result<ExitCode> {
    let recorded = &args.recorded;
    check_pids(&recorded.pids)?;
    if let Some(reason) = crate::doctor::refusal() {
        terminal::fail(format_args!("gpuwhy: {reason}"));
        return Ok(exit::privilege());
    }
    launch::make_room(&args.output, recorded.force)?;
    let ring = MarkRing::make(recorded.ring.as_deref())?;
    let observed =
        Instrumentation::prepare(&recorded.in_process.options(), !args.command.is_empty())?;
    let mut command = spawn(&args.command, &ring, &observed, Stdio::inherit())?;
    let config = args.config(&ring, &observed, command.as_ref());
    let mut recording = Recording::start(&args.output, config, args.keep)?;
    let stop = stop_flag()?;
    let end = args.duration.map(|d| Instant::now() + d);
    if let Some(command) = &command {
        command.gate().open()?;
    }
    let mut progress = Progress::new(args);
    let mut command_status = None;
    loop {
        recording.tick()?;
        progress.print(&recording);
        if let Some(command) = &mut command
            && let Some(status) = command.child.try_wait()?
        {
            command_status = Some(status.code().unwrap_or(-1));
            break;
        }
        if stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
    }
    progress.end();
    if let Some(command) = command.filter(|_| command_status.is_none()) {
        terminate(command);
    }
    let mut summary = recording.finish()?;
    summary.command_status = command_status;
    summary.degraded.extend(observed.notes.iter().cloned());
    if args.json {
        terminal::say_json(&serde_json::to_string_pretty(&summary)?)?;
    } else {
        terminal::show(&text(&summary))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the command, which waits until recording has begun; `None` without one.
pub fn spawn(
    command: &[String],
    ring: &MarkRing,
    observed: &Instrumentation,
    output: Stdio,
) -> Result<Option<GatedCommand>> {
    if command.is_empty() {
        return Ok(None);
    }
    let own = std::env::current_exe().context("cannot find gpuwhy's own binary")?;
    Ok(Some(GatedCommand::spawn(&own, command, ring.path(), observed, output)?))
}

/// Ends a command that we started.
pub fn terminate(mut command: GatedCommand) {
    let _ = gpuwhy_collect::signal(command.child.id() as i32, signal_hook::consts::SIGTERM);
    let _ = command.child.wait();
}

/// One line on a terminal, once a second.
struct Progress {
    enabled: bool,
    printed: Instant,
}

impl Progress {
    fn new(args: &Args) -> Progress {
        let enabled = terminal::stderr_is_terminal() && !args.json;
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
                "No steps were recorded, so `gpuwhy diagnose` has nothing to compare: no program \
                 marked any, and there were no GPU waits and no collectives to take in their place.",
            )
            .line(format_args!(
                "Recorded instead: the states of {} threads, {} disk requests, {} kernels. To get a \
                 verdict,",
                observed.threads, observed.requests, observed.kernels
            ))
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
