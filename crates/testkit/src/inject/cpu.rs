//! Less CPU time for the workload: busy threads, a real-time thread, a quota, interrupts.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Culprit, Disturbance, Workers, count};
use crate::steploop::Ready;
use crate::sys;

const MS: u64 = 1_000_000;

fn spin(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        spin_until(sys::now() + MS);
    }
}

fn spin_until(at: u64) {
    let mut x = 1u64;
    while sys::now() < at {
        for _ in 0..1000 {
            x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
    }
}

/// The CPU of rank 0, or the first that this process may use.
fn cpu_of_rank_0(target: &Ready) -> Result<usize> {
    let pinned = target.rank(0)?.cpu;
    Ok(pinned.or_else(|| sys::cpus().first().copied()).unwrap_or(0))
}

pub(super) fn hog(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let cpu = cpu_of_rank_0(target)?;
    let threads = count(intensity, 4.0);
    sys::raise_weight(threads);
    let mut workers = Workers::new();
    for _ in 0..threads {
        workers.spawn(move |stop| {
            let _ = sys::pin(cpu);
            spin(stop);
        });
    }
    Ok(Disturbance::new(Culprit::ThisProcess, workers, json!({ "cpu": cpu, "threads": threads })))
}

pub(super) fn hog_many(intensity: f64) -> Result<Disturbance> {
    let threads = count(intensity, 4.0 * sys::cpus().len() as f64);
    sys::raise_weight(threads);
    let mut workers = Workers::new();
    for _ in 0..threads {
        workers.spawn(spin);
    }
    Ok(Disturbance::new(Culprit::ThisProcess, workers, json!({ "threads": threads })))
}

pub(super) fn rt_hog(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let cpu = cpu_of_rank_0(target)?;
    // Never all of the CPU: the machine must stay usable even where real-time throttling is off.
    let period = 20 * MS;
    let busy = ((0.7 * intensity).clamp(0.05, 0.9) * period as f64) as u64;
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut workers = Workers::new();
    workers.spawn(move |stop| {
        let ready = sys::pin(cpu).and_then(|()| sys::set_fifo());
        let failed = ready.is_err();
        let _ = sender.send(ready);
        if failed {
            return;
        }
        let mut at = sys::now();
        while !stop.load(Relaxed) {
            spin_until(at + busy);
            at = (at + period).max(sys::now());
            sys::sleep_until(at);
        }
    });
    receiver.recv()?.context("cannot make a thread SCHED_FIFO (needs CAP_SYS_NICE)")?;
    let params = json!({ "cpu": cpu, "busy_ms": busy / MS, "period_ms": period / MS });
    Ok(Disturbance::new(Culprit::ThisProcess, workers, params))
}

pub(super) fn irq_storm(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let cpu = cpu_of_rank_0(target)?;
    let profilers = count(intensity, 24.0);
    let mut held = Vec::new();
    for _ in 0..profilers {
        // Each has a timer of its own, whose interrupts sample what runs on the CPU.
        let profiler = sys::sample_cpu(cpu, 20_000)
            .context("cannot open a perf event on a CPU (needs CAP_PERFMON)")?;
        held.push(profiler);
    }
    let mut workers = Workers::new();
    workers.spawn(move |stop| {
        let _held = held;
        while !stop.load(Relaxed) {
            sys::sleep_until(sys::now() + 10 * MS);
        }
    });
    let params = json!({ "cpu": cpu, "profilers": profilers, "hz": 20_000 });
    Ok(Disturbance::new(Culprit::NoProcess, workers, params))
}

pub(super) fn quota(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let group = target
        .cgroups
        .cpu
        .as_ref()
        .context("the workload has no control group that limits CPU time; start it as root")?;
    // Relative to what it uses now, so that the quota has the same effect on any machine.
    let (from, before) = (sys::now(), cpu_time(target)?);
    sys::sleep_until(from + 500 * MS);
    let share = (cpu_time(target)? - before) as f64 / (sys::now() - from) as f64;
    let quota_us = ((share * 0.6 / intensity.max(0.01)) * 100_000.0).max(2000.0) as u64;
    group.set_quota(Some(quota_us))?;
    let params =
        json!({ "quota_us": quota_us, "period_us": 100_000, "used_us": (share * 1e5) as u64 });
    Ok(Disturbance::new(Culprit::Group(group.key("cpu")), Workers::new(), params))
}

/// CPU time that the ranks have used, ns.
fn cpu_time(target: &Ready) -> Result<u64> {
    target.ranks.iter().try_fold(0, |sum, member| {
        let path = format!("/proc/{}/schedstat", member.pid);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read `{path}`"))?;
        let ns: u64 = text.split(' ').next().unwrap_or_default().parse().unwrap_or(0);
        Ok(sum + ns)
    })
}

pub(super) fn restore_quota(target: &Ready) {
    if let Some(group) = &target.cgroups.cpu {
        let _ = group.set_quota(None);
    }
}
