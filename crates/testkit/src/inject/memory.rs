//! Less memory for the workload: memory taken in its control group, or its page cache dropped.

use std::fs::File;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Culprit, Disturbance, Workers, count};
use crate::steploop::Ready;
use crate::sys::{self, Memory};

pub(super) fn hog(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let group = target
        .cgroups
        .memory
        .as_ref()
        .context("the workload has no control group that limits memory; start it as root")?;
    group.join()?;
    // If the group runs out of memory, the kernel kills this process and not the workload.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let share = (0.8 * intensity).clamp(0.05, 0.85);
    let bytes = (target.config.memory_bytes as f64 * share) as usize;
    let mut memory = Memory::new(bytes).context("cannot reserve memory")?;
    let mut workers = Workers::new();
    workers.spawn(move |stop| {
        sys::run_when_idle();
        // Touched piece by piece, released, touched again: the group reclaims memory all the time.
        while !stop.load(Relaxed) {
            for from in (0..bytes).step_by(PIECE) {
                memory.touch(from..from + PIECE);
                if stop.load(Relaxed) {
                    return;
                }
                sys::sleep_until(sys::now() + PAUSE_NS);
            }
            memory.release();
        }
    });
    Ok(Disturbance::new(
        Culprit::ThisProcess,
        workers,
        json!({ "bytes": bytes, "cgroup": group.key("memory") }),
    ))
}

/// Bytes that are touched at once.
const PIECE: usize = 4 << 20;
/// Pause after each piece. Touching one takes some milliseconds of CPU time, of a CPU that nobody else wants: the fault should be
/// the missing memory, not a busy CPU.
const PAUSE_NS: u64 = 5_000_000;

pub(super) fn cache_evict(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let path = target.dataset.clone();
    let file = File::open(&path)
        .with_context(|| format!("cannot open the data set `{}`", path.display()))?;
    let pause = 2_000_000 / count(intensity, 1.0) as u64;
    let mut workers = Workers::new();
    workers.spawn(move |stop| {
        while !stop.load(Relaxed) {
            let _ = sys::drop_cache(&file);
            sys::sleep_until(sys::now() + pause);
        }
    });
    Ok(Disturbance::new(Culprit::ThisProcess, workers, json!({ "file": path, "pause_ns": pause })))
}
