//! `gpuwhy steploop` and `gpuwhy inject`: the workload that is disturbed, and the disturbances.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use gpuwhy_testkit::inject::{Injector, Spec};
use gpuwhy_testkit::steploop::{self, Config, Ready};

use crate::args::{Inject, Steploop};

/// A line of JSON on stdout, at once.
fn say(value: &impl serde::Serialize) {
    println!("{}", serde_json::to_string(value).unwrap_or_default());
    let _ = std::io::stdout().flush();
}

/// Runs the workload; a line of JSON when it is ready, another when it has ended.
pub fn steploop(args: &Steploop) -> Result<ExitCode> {
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
            eprintln!("note: {note}");
        }
        say(ready);
    })?;
    say(&summary);
    Ok(ExitCode::SUCCESS)
}

/// Disturbs a running workload; its label is a line of JSON.
pub fn inject(args: &Inject) -> Result<ExitCode> {
    let spec = Spec {
        kind: args.kind,
        after: args.after,
        seconds: args.duration.as_secs_f64(),
        intensity: args.intensity,
        placement: args.placement,
        target: Ready::find(args.work_dir.as_deref())?,
    };
    say(&Injector::start(spec)?.finish()?);
    Ok(ExitCode::SUCCESS)
}
