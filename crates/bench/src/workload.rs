//! `gpuwhy steploop` and `gpuwhy inject`: the workload, and what disturbs it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use gpuwhy_engine::parse_duration;
use gpuwhy_schema::terminal;
use gpuwhy_testkit::inject::{Injector, Kind, Placement, Spec};
use gpuwhy_testkit::steploop::{self, Config, Ready};

/// Arguments of `inject`.
#[derive(Debug, clap::Args)]
pub struct InjectArgs {
    /// The disturbance
    kind: Kind,
    /// Seconds to wait before it
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    after: f64,
    /// How long it lasts
    #[arg(long = "for", default_value = "5s", value_name = "5s", value_parser = parse_duration)]
    duration: Duration,
    /// How strong it is; 1 is normal
    #[arg(long, default_value_t = 1.0)]
    intensity: f64,
    /// Whether it runs in the workload's own control groups
    #[arg(long, value_enum, default_value = "other")]
    placement: Placement,
    /// Work directory of the workload, if several run
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

/// Arguments of `steploop`.
#[derive(Debug, clap::Args)]
pub struct SteploopArgs {
    /// How long to run; until interrupted by default
    #[arg(long = "for", value_name = "30s", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Number of ranks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    ranks: u32,
    /// Let the ranks talk over loopback instead of network namespaces
    #[arg(long)]
    loopback: bool,
    /// Also write every step to this CSV file, independently of any recorder
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// The ring in which steps are marked; GPUWHY_RING by default. `{rank}` in it is replaced by the
    /// rank's number
    #[arg(long, value_name = "PATH")]
    ring: Option<PathBuf>,
    /// A new directory for its files, on a real file system
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

/// Prints a line of JSON at once. Whoever does not read it has no use for it.
fn print_line(value: &impl serde::Serialize) {
    let _ = terminal::say_json(&serde_json::to_string(value).unwrap_or_default());
}

/// Runs the workload; a line of JSON when it is ready, another when it has ended.
pub fn steploop(args: &SteploopArgs) -> Result<ExitCode> {
    let config = Config {
        ranks: args.ranks,
        network: !args.loopback,
        seconds: args.duration.map(|d| d.as_secs_f64()),
        csv: args.csv.clone(),
        ring: args.ring.clone(),
        work_dir: args.work_dir.clone(),
        ..Config::default()
    };
    let summary = steploop::run(&config, None, |ready| {
        for note in &ready.notes {
            terminal::note(format_args!("note: {note}"));
        }
        print_line(ready);
    })?;
    print_line(&summary);
    Ok(ExitCode::SUCCESS)
}

/// Disturbs a running workload; its label is a line of JSON.
pub fn inject(args: &InjectArgs) -> Result<ExitCode> {
    let spec = Spec {
        kind: args.kind,
        after: args.after,
        seconds: args.duration.as_secs_f64(),
        intensity: args.intensity,
        placement: args.placement,
        target: Ready::find(args.work_dir.as_deref())?,
    };
    print_line(&Injector::start(spec)?.finish()?);
    Ok(ExitCode::SUCCESS)
}
