//! The labelled benchmark of host interference: sessions of the watched workload in which faults of
//! random kind, strength, place and time are injected, and every method of judgement is asked about
//! each.
//!
//! A session is one run of the workload under the engine's [`Watcher`](gpuwhy_engine::watch::Watcher);
//! faults follow each other with calm between them. The choice follows from the seed, and the class
//! with the fewest accepted trials comes first. A trial is accepted if all was calm before it and its
//! steps took at least a tenth longer during it; trials without effect are kept and listed, but not
//! scored.

mod choose;
mod file;
mod redetect;
mod rejudge;
mod results;
mod score;
mod session;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;
use gpuwhy_testkit::inject::Kind;

use file::Results;
use results::{Row, Session, stored};

/// Arguments of `bench faults`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// For how long to add trials, minutes; 0 scores what there is.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// How long one run of the workload lasts, minutes.
    #[arg(long, default_value_t = 10)]
    session_minutes: u64,
    /// The first session's seed; later ones count up.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these injectors; `none` and `load-change` alone make recordings without faults.
    #[arg(long = "only", value_name = "INJECTOR")]
    only: Vec<Kind>,
    /// Where the results go; trials that are there already are kept and counted.
    #[arg(long, default_value = "bench/results/faults.json")]
    output: PathBuf,
    /// Where the traces of the sessions go.
    #[arg(long, default_value = "target/faults")]
    traces: PathBuf,
    /// Keep every row in the traces, and not only those around findings.
    #[arg(long)]
    everything: bool,
    /// Do not keep the traces; the trials cannot be judged again then.
    #[arg(long, conflicts_with = "everything")]
    drop_traces: bool,
    /// Judge the stored traces of all trials again with this program, with all its probes and with
    /// one group of them taken away at a time, and add no trials.
    #[arg(long, conflicts_with = "fresh")]
    rejudge: bool,
    /// Detect again in the stored traces, step by step, print when incidents began beside the truth, and change
    /// nothing.
    #[arg(long, conflicts_with_all = ["fresh", "rejudge"])]
    redetect: bool,
    /// Forget earlier results.
    #[arg(long)]
    fresh: bool,
}

/// Runs sessions until the time is over, and scores all that there are.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (mut sessions, mut trials): (Vec<Session>, Vec<Row>) = Default::default();
    if !args.fresh
        && let Ok(text) = std::fs::read_to_string(&args.output)
    {
        let old: Results = serde_json::from_str(&text).with_context(|| {
            format!("`{}` is not a result; --fresh replaces it", args.output.display())
        })?;
        (sessions, trials) = (old.sessions, old.trials);
    }
    if args.redetect {
        redetect::print(&args.traces, &trials)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.rejudge {
        rejudge::judge(&args.traces, &mut trials)?;
        file::save(&args.output, &sessions, &trials)?;
        terminal::show(Screen::new(false).block("", score::table(&sessions, &trials)))?;
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::create_dir_all(&args.traces)?;
    let end = Instant::now() + Duration::from_secs(60 * args.minutes);
    while Instant::now() < end {
        let seed = sessions.iter().map(|s| s.seed + 1).max().unwrap_or(0).max(args.seed);
        let left = end.saturating_duration_since(Instant::now());
        let long = left.min(Duration::from_secs(60 * args.session_minutes));
        if long < Duration::from_secs(45) {
            break;
        }
        let path = stored(&args.traces, seed);
        match session::run(&path, seed, long, args, &trials) {
            Ok((session, rows)) => {
                for row in &rows {
                    terminal::note(format_args!("{}", score::line(row)));
                }
                for (at, says) in &session.shed {
                    terminal::note(format_args!("SHED at {at:.0} s: {says}"));
                }
                for alarm in &session.false_alarms {
                    terminal::note(format_args!("FALSE ALARM: {alarm}"));
                }
                for alarm in &session.hypervisor_alarms {
                    terminal::note(format_args!("HYPERVISOR: {alarm}"));
                }
                trials.extend(rows);
                sessions.push(session);
            }
            Err(error) => terminal::fail(format_args!("session {seed}: not run: {error:#}")),
        }
        file::save(&args.output, &sessions, &trials)?;
        if args.drop_traces {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
    file::save(&args.output, &sessions, &trials)?;
    terminal::show(Screen::new(false).block("", score::table(&sessions, &trials)))?;
    Ok(ExitCode::SUCCESS)
}
