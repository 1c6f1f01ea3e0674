//! Disturbances of a running [`steploop`](crate::steploop), each with a label of the ground truth.
//!
//! A disturbance is a process of its own with the name of its kind (`cpu-hog`), so that a recorder
//! can see it and a verdict can name it. It restores what it changes when its time is over, when it
//! gets a signal, and when the process that started it ends; if it is killed, the process that
//! started it restores what it changed.

mod cpu;
mod disk;
mod kind;
mod memory;
mod network;
mod workload;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use kind::Kind;

use crate::helper::{JsonChild, command, print_json};
use crate::steploop::{Member, Ready};
use crate::sys::{self, Ended, Waiter};

/// Where the disturbing process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// In the control groups of the process that starts it, as in another container.
    #[default]
    Other,
    /// In the control groups of the workload, as in the same container.
    Same,
}

/// A disturbance to be injected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Its kind.
    pub kind: Kind,
    /// How long to wait before it begins, s.
    pub after: f64,
    /// How long it lasts, s.
    pub seconds: f64,
    /// Strength; 1 is described by [`Kind::intensity`].
    pub intensity: f64,
    /// Control groups of its process.
    #[serde(default)]
    pub placement: Placement,
    /// The workload that it disturbs.
    pub target: Ready,
}

/// The ground truth of a disturbance. Times are CLOCK_MONOTONIC ns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// What was done.
    pub injector: Kind,
    /// The class that a verdict should give; `None` if there should be no finding.
    pub class: Option<String>,
    /// The process to blame, if a process is.
    pub culprit_pid: Option<i32>,
    /// Its name.
    pub culprit_comm: Option<String>,
    /// The control group to blame, or that of the process to blame, by its key in traces:
    /// `v1:cpu:/path`, `v2:/path`.
    pub culprit_cgroup: Option<String>,
    /// When it began.
    pub onset_ns: u64,
    /// When it had ended and everything was restored.
    pub end_ns: u64,
    /// Strength.
    pub intensity: f64,
    /// What the strength meant.
    pub params: Value,
}

/// A running disturbance, in a process of its own. Dropping it ends it.
#[derive(Debug)]
pub struct Injector {
    spec: Spec,
    child: JsonChild,
    over: bool,
}

/// The message of the disturbing process when it begins.
#[derive(Debug, Serialize, Deserialize)]
struct Onset {
    onset_ns: u64,
}

impl Injector {
    /// Starts the process, which begins after [`Spec::after`]. It ends with the calling thread.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(spec: Spec) -> Result<Injector> {
        let mut command = command("inject", &spec, libc::SIGTERM)?;
        let name = spec.kind.name().to_owned();
        let child = JsonChild::spawn(name, &mut command, Stdio::piped())?;
        Ok(Injector { spec, child, over: false })
    }

    /// Process id of the disturbing process.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Waits until it begins; returns when, CLOCK_MONOTONIC ns. To be called at most once.
    ///
    /// # Errors
    /// If it could not begin.
    pub fn onset(&mut self) -> Result<u64> {
        Ok(self.child.receive::<Onset>()?.onset_ns)
    }

    /// Waits until its time is over and everything is restored.
    ///
    /// # Errors
    /// If it could not begin or was killed.
    pub fn finish(mut self) -> Result<Label> {
        self.label()
    }

    /// Ends it before its time.
    ///
    /// # Errors
    /// As [`Injector::finish`].
    pub fn stop(mut self) -> Result<Label> {
        self.child.close_stdin();
        self.label()
    }

    fn label(&mut self) -> Result<Label> {
        let label = loop {
            let value: Value = self.child.receive()?;
            if value.get("injector").is_some() {
                break serde_json::from_value(value).context("cannot parse the label")?;
            }
        };
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} failed: {status}", self.spec.kind.name());
        }
        self.over = true;
        Ok(label)
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        if !self.over {
            self.child.close_stdin();
            let _ = self.child.wait();
            undo(self.spec.kind, &self.spec.target);
        }
    }
}

/// A disturbance that has begun, in the disturbing process. Dropping it stops its threads.
struct Disturbance {
    /// What the intensity means.
    params: Value,
    /// What is to blame.
    culprit: Culprit,
    /// Its threads; stopped before anything is restored.
    workers: Workers,
}

/// What a label blames.
enum Culprit {
    /// This process.
    ThisProcess,
    /// A rank.
    Rank(Member),
    /// A control group.
    Group(String),
    /// No process.
    NoProcess,
}

impl Disturbance {
    fn new(culprit: Culprit, workers: Workers, params: Value) -> Disturbance {
        Disturbance { params, culprit, workers }
    }
}

/// Threads that disturb until they are stopped.
#[derive(Default)]
struct Workers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    fn new() -> Workers {
        Workers::default()
    }

    /// Starts a thread, which must return soon after its flag is set.
    fn spawn(&mut self, work: impl FnOnce(&AtomicBool) + Send + 'static) {
        let stop = self.stop.clone();
        self.threads.push(std::thread::spawn(move || work(&stop)));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn begin(kind: Kind, target: &Ready, intensity: f64) -> Result<Disturbance> {
    match kind {
        Kind::CpuHog => cpu::hog(target, intensity),
        Kind::CpuHogMany => cpu::hog_many(intensity),
        Kind::RtHog => cpu::rt_hog(target, intensity),
        Kind::CgroupQuota => cpu::quota(target, intensity),
        Kind::OdirectWriter => disk::odirect_writer(target, intensity),
        Kind::FsyncStorm => disk::fsync_storm(target, intensity),
        Kind::MemoryHog => memory::hog(target, intensity),
        Kind::CacheEvict => memory::cache_evict(target, intensity),
        Kind::UdpBurst => network::udp_burst(target, intensity),
        Kind::LinkCap => network::link_cap(target, intensity),
        Kind::Sigstop => workload::sigstop(target, intensity),
        Kind::LockHolder => workload::lock_holder(target, intensity),
        Kind::DeviceSlowdown => workload::device_slowdown(target, intensity),
        Kind::IrqStorm => cpu::irq_storm(target, intensity),
        Kind::SlowCode => workload::slow_code(target, intensity),
        Kind::LoadChange => workload::load_change(target, intensity),
        Kind::None => Ok(Disturbance::new(Culprit::NoProcess, Workers::new(), json!({}))),
    }
}

/// Restores what a kind changes in its target; harmless if nothing was changed or the target has
/// ended.
fn undo(kind: Kind, target: &Ready) {
    match kind {
        Kind::CgroupQuota => cpu::restore_quota(target),
        Kind::LinkCap => network::restore_link(target),
        Kind::Sigstop => workload::resume(target),
        Kind::DeviceSlowdown | Kind::SlowCode | Kind::LoadChange => workload::restore(target),
        _ => {}
    }
}

/// Runs the disturbance in this process.
pub(crate) fn run(spec: Spec) -> Result<()> {
    let Spec { kind, after, seconds, intensity, placement, target } = spec;
    sys::set_comm(kind.name());
    if placement == Placement::Same {
        target.cgroups.join().context("cannot join the workload's control groups")?;
    }
    let waiter = Waiter::new().context("cannot handle signals")?;
    let parent = std::io::stdin();
    let from_now =
        |s: f64| sys::now() + Duration::from_secs_f64(s.clamp(0.0, 1e6)).as_nanos() as u64;
    if waiter.until(Some(from_now(after)), Some(&parent)) != Ended::Time {
        bail!("{} was stopped before it began", kind.name());
    }

    let begun = begin(kind, &target, intensity)
        .with_context(|| format!("cannot start the disturbance {}", kind.name()));
    let Disturbance { params, culprit, workers } = match begun {
        Ok(disturbance) => disturbance,
        Err(error) => {
            undo(kind, &target);
            return Err(error);
        }
    };
    // The first disturbing thread has just been started.
    let onset_ns = sys::now();
    print_json(&Onset { onset_ns });
    waiter.until(Some(from_now(seconds)), Some(&parent));
    drop(workers);
    undo(kind, &target);
    let end_ns = sys::now();

    let (pid, comm) = match &culprit {
        Culprit::ThisProcess => (Some(std::process::id() as i32), Some(kind.name().to_owned())),
        Culprit::Rank(member) => (Some(member.pid), Some(member.comm.clone())),
        Culprit::Group(_) | Culprit::NoProcess => (None, None),
    };
    let cgroup = match culprit {
        Culprit::Group(key) => Some(key),
        _ => pid.and_then(cgroup_of),
    };
    print_json(&Label {
        injector: kind,
        class: kind.class().map(str::to_owned),
        culprit_pid: pid,
        culprit_comm: comm,
        culprit_cgroup: cgroup,
        onset_ns,
        end_ns,
        intensity,
        params,
    });
    Ok(())
}

fn cgroup_of(pid: i32) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(format!("v2:{path}"))
}

/// A number, at least 1, that grows with the intensity: `at_one` at intensity 1.
fn count(intensity: f64, at_one: f64) -> usize {
    (intensity * at_one).round().clamp(1.0, 1000.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_the_schema() {
        for kind in Kind::ALL {
            if let Some(class) = kind.class() {
                let known = class.parse::<gpuwhy_schema::Class>();
                assert!(known.is_ok(), "{}: {known:?}", kind.name());
            }
        }
    }

    #[test]
    fn names_fit_a_comm_and_are_those_of_the_command_line() {
        use clap::ValueEnum;
        for kind in Kind::ALL {
            assert!(kind.name().len() <= 15, "{}", kind.name());
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
            assert_eq!(json!(kind), json!(kind.name()));
        }
        assert_eq!(Kind::ALL.len(), Kind::value_variants().len());
    }
}
