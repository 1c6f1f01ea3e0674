//! Disturbances of the workload itself: a stopped rank, a held lock, a slow device, more work.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Culprit, Disturbance, Workers};
use crate::steploop::{Control, Ready};
use crate::sys;

const MS: u64 = 1_000_000;

pub(super) fn sigstop(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let member = target.rank(1)?.clone();
    let (pid, period) = (member.pid, 60 * MS);
    let stopped = ((0.5 * intensity).clamp(0.05, 0.95) * period as f64) as u64;
    sys::kill(pid, libc::SIGCONT).with_context(|| format!("cannot signal rank 1 (pid {pid})"))?;
    let mut workers = Workers::new();
    workers.spawn(move |stop| {
        while !stop.load(Relaxed) {
            let _ = sys::kill(pid, libc::SIGSTOP);
            sys::sleep_until(sys::now() + stopped);
            let _ = sys::kill(pid, libc::SIGCONT);
            sys::sleep_until(sys::now() + period - stopped);
        }
    });
    let params = json!({ "stopped_ms": stopped / MS, "period_ms": period / MS });
    Ok(Disturbance::new(Culprit::Rank(member), workers, params))
}

pub(super) fn resume(target: &Ready) {
    if let Ok(member) = target.rank(1) {
        let _ = sys::kill(member.pid, libc::SIGCONT);
    }
}

pub(super) fn lock_holder(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let control = Control::open(&target.control)?;
    let held = (30.0 * intensity.clamp(0.05, 20.0) * MS as f64) as u64;
    let gap = 3 * MS;
    let mut workers = Workers::new();
    workers.spawn(move |stop| {
        while !stop.load(Relaxed) {
            {
                let _held = control.lock();
                sys::sleep_until(sys::now() + held);
            }
            sys::sleep_until(sys::now() + gap);
        }
    });
    Ok(Disturbance::new(
        Culprit::ThisProcess,
        workers,
        json!({ "held_ms": held / MS, "gap_ms": gap / MS }),
    ))
}

pub(super) fn device_slowdown(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let clock = 0.5f64.powf(intensity).max(0.02);
    Control::open(&target.control)?.set_clock(clock);
    Ok(Disturbance::new(Culprit::NoProcess, Workers::new(), json!({ "clock": clock })))
}

pub(super) fn load_change(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let load = (1.0 + 0.5 * intensity).clamp(0.1, 4.0);
    Control::open(&target.control)?.set_load(load);
    Ok(Disturbance::new(Culprit::NoProcess, Workers::new(), json!({ "load": load })))
}

pub(super) fn slow_code(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let rounds = (1.0 + 2.0 * intensity).clamp(1.0, 20.0);
    Control::open(&target.control)?.set_waste(rounds);
    let member = target.rank(0)?.clone();
    let params = json!({ "decode_rounds": rounds, "rank": member.rank });
    Ok(Disturbance::new(Culprit::NoProcess, Workers::new(), params))
}

pub(super) fn restore(target: &Ready) {
    if let Ok(control) = Control::open(&target.control) {
        control.set_clock(1.0);
        control.set_load(1.0);
        control.set_waste(1.0);
    }
}
