//! `gpuwhy watch`: record and judge at once, or join what several nodes report.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_collect::{Config, Metrics};
use gpuwhy_diagnose::verdict::Outcome;
use gpuwhy_engine::launch::{self, Instrumentation, MarkRing, Supervised};
use gpuwhy_engine::live::{self, Event};
use gpuwhy_engine::parse_duration;
use gpuwhy_engine::watch::governor::Limits;
use gpuwhy_engine::watch::{Closed, WatchOptions, Watcher};
use gpuwhy_fleet::FleetEvent;
use gpuwhy_schema::text::Screen;
use gpuwhy_schema::{Ns, terminal};
use serde::Serialize;

use crate::args::{Judging, Recorded, trace_losses};
use crate::command::{CommandArgs, EXIT_CODES, Session};
use crate::exit;
use crate::fleet::{self, Nodes};
use crate::sink::{Place, Sink};

/// Arguments of `watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Args {
    /// The trace directory to create: aggregates throughout, all rows around findings
    #[arg(short, long, default_value = "gpuwhy-watch.trace", value_name = "T.trace")]
    output: PathBuf,
    /// Stop after this long
    #[arg(long = "for", value_name = "30m", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// How much of the recent past is held in memory in full
    #[arg(long, value_name = "30s", default_value = "30s", value_parser = parse_duration)]
    recent: Duration,
    /// Keep only the latest part of the trace on disk
    #[arg(long, value_name = "24h", value_parser = parse_duration)]
    keep: Option<Duration>,
    /// Beyond the first minutes of incidents, write all rows for at most this share of the time, in per cent
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    all_rows: f64,
    /// Record less when recording takes more than this share of the machine's CPU time, in per cent
    #[arg(long, default_value_t = 4.0, value_name = "PERCENT")]
    max_cpu: f64,
    /// Hold less of the past when gpuwhy takes more memory than this, MiB
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    max_memory: u64,
    /// Compare with what steps took when FILE was made, and add this recording; FILE is made if it is not there
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Print JSON documents, one a line, instead of text
    #[arg(long)]
    json: bool,
    /// Where events go: a file, - for standard output (the default), or fd:N; beside a command standard error
    #[arg(long, value_name = "FILE|-|fd:N")]
    events: Option<Place>,
    // Options that follow these would stand under their headings in the help.
    #[command(flatten)]
    recorded: Recorded,
    #[command(flatten)]
    judging: Judging,
    #[command(flatten)]
    command: CommandArgs,
    #[command(flatten)]
    nodes: Nodes,
}

impl Args {
    fn options(
        &self,
        ring: &MarkRing,
        observed: &Instrumentation,
        command: Option<&Supervised>,
    ) -> WatchOptions {
        let Recorded { pids, steps, hz, off, in_process, served, .. } = &self.recorded;
        let config = Config {
            targets: launch::targets(pids, command),
            hz: *hz,
            steps: steps.clone(),
            wire: Some(ring.path().to_path_buf()),
            agent_socket: observed.socket.clone(),
            nccl_ras: in_process.nccl_ras.clone(),
            gpu_switches: self.recorded.gpu_switches,
            metrics: Metrics::at(&served.metrics, &served.slo),
            off: off.clone(),
            ..Config::default()
        };
        WatchOptions {
            judge: live::Options {
                detection: self.judging.detection(),
                judging: self.judging.options(),
                collect_steps: self.nodes.to.is_some(),
            },
            recent: Ns(self.recent.as_nanos() as i64),
            keep: self.keep,
            all_rows: self.all_rows / 100.0,
            reference: self.reference.clone(),
            limits: Limits {
                cpu_share: (self.max_cpu / 100.0).max(1e-4),
                rss: self.max_memory << 20,
            },
            ..WatchOptions::new(config)
        }
    }
}

/// Watches until a signal or a limit ends it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(address) = &args.nodes.join {
        return correlate(address, args);
    }
    let recorded = &args.recorded;
    launch::recorded_pids(&recorded.pids, false)?;
    args.command.check()?;
    if let Some(reason) = crate::doctor::refusal() {
        terminal::fail(format_args!("gpuwhy: {reason}"));
        return Ok(exit::privilege());
    }
    let beside_command = args.command.is_there();
    let mut printer = Printer::new(args)?;
    launch::make_room(&args.output, recorded.force)?;
    let ring = MarkRing::make(recorded.ring.as_deref())?;
    let observed = Instrumentation::prepare(&recorded.in_process.options(), beside_command)?;
    let command = args.command.start(&ring, &observed)?;
    let options = args.options(&ring, &observed, command.as_ref());
    let mut watcher = Watcher::start(&args.output, options)?;
    // What is wrong with the nodes is said before the command begins.
    let mut link = args.nodes.link()?;
    let mut session = Session::begin(&args.command, command, &observed, args.duration)?;
    if !beside_command {
        printer.note(&format!(
            "watching; the trace is {}, programs that mark steps find the ring by GPUWHY_RING={}; ^C ends it",
            args.output.display(),
            ring.path().display()
        ));
    }
    while !session.is_over() {
        session.shield(|| {
            let mut findings = Vec::new();
            for event in watcher.tick()? {
                if let Event::Over(verdict) = &event {
                    findings.push(serde_json::to_value(&verdict.finding)?);
                }
                printer.event(&event)?;
            }
            if let Some(link) = &mut link {
                for event in link.tick(&mut watcher, &findings)? {
                    printer.event(&event)?;
                }
            }
            printer.status(&watcher);
            Ok(())
        });
    }
    let closed = session.close(|| {
        let Closed { events, ended, error } = watcher.close();
        ((events, ended), error)
    });
    if !session.is_outlived() {
        printer.out.release();
    }
    if let Some((last, mut ended)) = closed {
        ended.command_status = session.command_status();
        for event in last {
            printer.event(&event)?;
        }
        printer.event(&Event::Ended(ended))?;
    }
    let verdict = match printer.decided {
        true => ExitCode::SUCCESS,
        false => exit::nothing(),
    };
    let code = session.end(args.command.exit_with_verdict.then_some(verdict))?;
    printer.out.release();
    Ok(code)
}

/// Joins what nodes report, until a signal ends it.
fn correlate(address: &str, args: &Args) -> Result<ExitCode> {
    let mut printer = Printer::new(args)?;
    args.nodes.correlate(address, args.duration, |event| printer.fleet_event(event))
}

/// Prints events as text or as JSON lines, and on a terminal the status.
struct Printer {
    out: Sink,
    json: bool,
    beside_command: bool,
    show_status: bool,
    printed: Instant,
    /// Whether a cause was decided.
    decided: bool,
}

impl Printer {
    fn new(args: &Args) -> Result<Printer> {
        let beside_command = args.command.is_there();
        // A terminal that a command runs in is the command's.
        let show_status = terminal::stderr_is_terminal() && !args.json && !beside_command;
        let out = Sink::open(args.events.as_ref(), beside_command)?;
        let (json, printed) = (args.json, Instant::now());
        Ok(Printer { out, json, beside_command, show_status, printed, decided: false })
    }

    /// A line on standard error, for users.
    fn note(&self, text: &str) {
        if !self.json {
            self.clear();
            terminal::note(text);
        }
    }

    fn clear(&self) {
        if self.show_status {
            terminal::status("");
        }
    }

    fn print(&mut self, event: &impl Serialize, screen: &Screen) -> Result<()> {
        let printed = if self.json {
            self.out.json(&serde_json::to_string(event)?)
        } else if screen.is_empty() {
            Ok(())
        } else {
            self.clear();
            self.out.show(screen)
        };
        // Who reads our events may go away; the command goes on.
        if self.beside_command { Ok(()) } else { printed.context("cannot write events") }
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        if let Event::Verdict(verdict) | Event::Over(verdict) = event {
            self.decided |= verdict.finding.outcome == Outcome::Decided;
        }
        let mut text = event.text();
        if let Event::Ended(ended) = event {
            trace_losses(&mut text, ended.lost_rows, ended.complete);
        }
        self.print(event, &text)
    }

    fn fleet_event(&mut self, event: &FleetEvent) -> Result<()> {
        let clock = live::wall_clock(gpuwhy_collect::now().0);
        let text = match fleet::text(event) {
            Ok(text) => text,
            Err((from, why)) => {
                terminal::note(format_args!("{from}: {why}"));
                return Ok(());
            }
        };
        self.print(event, Screen::new(false).block("          ", format_args!("{clock}  {text}")))
    }

    fn status(&mut self, watcher: &Watcher) {
        if !self.show_status || self.printed.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.printed = Instant::now();
        terminal::status(watcher.status().line());
    }
}
