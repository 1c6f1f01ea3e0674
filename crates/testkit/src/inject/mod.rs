//! Disturbances of a running [`steploop`](crate::steploop), each with a label of the ground truth.
//!
//! A disturbance is a process of its own with the name of its kind (`cpu-hog`), so that a recorder can
//! see it and a verdict can name it. It restores what it changes when its time is over, when it gets
//! a signal, and when the process that started it ends; if it is killed, the process that started it
//! restores what it changed.

mod cpu;
mod disk;
mod memory;
mod network;
mod workload;

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::helper::{command, print_json};
use crate::steploop::{Member, Ready};
use crate::sys::{self, Ended, Waiter};

/// A kind of disturbance.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Busy threads on the CPU of rank 0.
    CpuHog,
    /// Busy threads on all CPUs.
    CpuHogMany,
    /// A real-time thread that is busy most of the time on the CPU of rank 0.
    RtHog,
    /// A CPU quota for the workload's control group, below what it uses.
    CgroupQuota,
    /// Many large O_DIRECT writes at once on the workload's file system.
    OdirectWriter,
    /// Many files written and synced on the workload's file system.
    FsyncStorm,
    /// Memory taken and touched in the workload's memory control group.
    MemoryHog,
    /// The data set dropped from the page cache again and again.
    CacheEvict,
    /// UDP packets through rank 0's link to rank 1.
    UdpBurst,
    /// A lower speed of rank 0's link to rank 1.
    LinkCap,
    /// Rank 1 stopped and continued.
    Sigstop,
    /// The lock that every step takes, held for long times.
    LockHolder,
    /// A lower clock of the simulated devices.
    DeviceSlowdown,
    /// Many thousand timer interrupts a second on the CPU of rank 0, as of a profiler at too high a rate.
    IrqStorm,
    /// Rank 0 repeats part of its work needlessly, as inefficient code does.
    SlowCode,
    /// More work in every step, which is no fault.
    LoadChange,
    /// No disturbance.
    None,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 17] = [
        Kind::CpuHog,
        Kind::CpuHogMany,
        Kind::RtHog,
        Kind::CgroupQuota,
        Kind::OdirectWriter,
        Kind::FsyncStorm,
        Kind::MemoryHog,
        Kind::CacheEvict,
        Kind::UdpBurst,
        Kind::LinkCap,
        Kind::Sigstop,
        Kind::LockHolder,
        Kind::DeviceSlowdown,
        Kind::IrqStorm,
        Kind::SlowCode,
        Kind::LoadChange,
        Kind::None,
    ];

    /// Its name, which is also that of its process.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::CpuHog => "cpu-hog",
            Kind::CpuHogMany => "cpu-hog-many",
            Kind::RtHog => "rt-hog",
            Kind::CgroupQuota => "cgroup-quota",
            Kind::OdirectWriter => "odirect-writer",
            Kind::FsyncStorm => "fsync-storm",
            Kind::MemoryHog => "memory-hog",
            Kind::CacheEvict => "cache-evict",
            Kind::UdpBurst => "udp-burst",
            Kind::LinkCap => "link-cap",
            Kind::Sigstop => "sigstop",
            Kind::LockHolder => "lock-holder",
            Kind::DeviceSlowdown => "device-slowdown",
            Kind::IrqStorm => "irq-storm",
            Kind::SlowCode => "slow-code",
            Kind::LoadChange => "load-change",
            Kind::None => "none",
        }
    }

    /// The class that a verdict should give, as the schema's `Class` names it; `None` where there
    /// should be no finding.
    pub const fn class(self) -> Option<&'static str> {
        Some(match self {
            Kind::CpuHog | Kind::CpuHogMany | Kind::RtHog => "cpu_contention",
            Kind::CgroupQuota => "cpu_throttling",
            Kind::OdirectWriter | Kind::FsyncStorm => "block_io",
            Kind::MemoryHog | Kind::CacheEvict => "memory_pressure",
            Kind::UdpBurst | Kind::LinkCap => "network",
            Kind::Sigstop => "collective_straggler",
            Kind::LockHolder => "lock_contention",
            Kind::DeviceSlowdown => "gpu_throttling",
            Kind::IrqStorm => "interrupts",
            Kind::SlowCode => "engine_software",
            Kind::LoadChange | Kind::None => return None,
        })
    }

    /// Name of the steps that it slows most, if it slows any.
    pub const fn slows(self) -> &'static str {
        match self {
            Kind::OdirectWriter | Kind::FsyncStorm => "step+ckpt",
            _ => "step",
        }
    }

    /// What [`Spec::intensity`] 1 means.
    pub const fn intensity(self) -> &'static str {
        match self {
            Kind::CpuHog => "4 busy threads",
            Kind::CpuHogMany => "4 busy threads a CPU",
            Kind::RtHog => "busy 14 of 20 ms",
            Kind::CgroupQuota => "quota of 60 % of what the workload used",
            Kind::OdirectWriter => "24 writes of 1 MiB at once",
            Kind::FsyncStorm => "32 writers of 4 MiB files",
            Kind::MemoryHog => "80 % of the group's memory",
            Kind::CacheEvict => "every 2 ms",
            Kind::UdpBurst => "4 senders",
            Kind::LinkCap => "an eighth of the speed",
            Kind::Sigstop => "stopped 30 of 60 ms",
            Kind::LockHolder => "held 30 of 33 ms",
            Kind::DeviceSlowdown => "half the clock",
            Kind::IrqStorm => "24 profilers of 20 kHz",
            Kind::SlowCode => "three times as much decoding",
            Kind::LoadChange => "half as much again",
            Kind::None => "nothing",
        }
    }
}

/// Control groups of the disturbing process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Those of the process that starts it, as in another container than the workload's.
    #[default]
    Other,
    /// Those of the workload, as in the same container.
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
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
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
        let mut child = command("inject", &spec, libc::SIGTERM)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", spec.kind.name()))?;
        let stdout = child.stdout.take().context("the injector has no stdout")?;
        Ok(Injector { spec, child, lines: BufReader::new(stdout).lines(), over: false })
    }

    /// Process id of the disturbing process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until it begins; returns when, CLOCK_MONOTONIC ns. To be called at most once.
    ///
    /// # Errors
    /// If it could not begin; the reason is on stderr.
    pub fn onset(&mut self) -> Result<u64> {
        Ok(self.receive::<Onset>()?.onset_ns)
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
        drop(self.child.stdin.take());
        self.label()
    }

    fn label(&mut self) -> Result<Label> {
        let label = loop {
            let value: Value = self.receive()?;
            if value.get("injector").is_some() {
                break serde_json::from_value(value).context("cannot parse the label")?;
            }
        };
        let status = self.child.wait().context("cannot wait for the injector")?;
        if !status.success() {
            bail!("{} failed: {status}", self.spec.kind.name());
        }
        self.over = true;
        Ok(label)
    }

    fn receive<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let name = self.spec.kind.name();
        match self.lines.next() {
            Some(line) => {
                let line = line.with_context(|| format!("cannot read from {name}"))?;
                serde_json::from_str(&line)
                    .with_context(|| format!("cannot parse what {name} printed"))
            }
            None => bail!("{name} has ended before its time; its message is on stderr"),
        }
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        if !self.over {
            drop(self.child.stdin.take());
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
