//! Benchmarks: what the docs quote, made by a command.

pub mod crash;
pub mod darzi;
pub mod faults;
mod faults_again;
mod faults_score;
pub mod injectors;
pub mod live;
pub mod nodes;
pub mod overhead;
pub mod result;
pub mod server;
pub mod trace_data;
pub mod trial;

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Waits until `recorder`, which was started a moment ago, has made the trace.
fn recording_begins(recorder: &mut Child, trace: &Path) -> Result<()> {
    let by = Instant::now() + Duration::from_secs(20);
    while !trace.join("trace.toml").exists() {
        if Instant::now() > by || recorder.try_wait()?.is_some() {
            bail!("the recorder did not start");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
