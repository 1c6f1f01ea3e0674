//! Disturbances of a running [`steploop`](crate::steploop), each with a label that tells the truth
//! about it.
//!
//! A disturbance is a process of its own, called like its kind (`cpu-hog`), so that a recorder can
//! see it and a verdict can name it. What it changes it changes back when its time is over, when
//! it is asked to end, and when whoever started it is gone; if it is killed itself, the one who
//! started it changes it back.

mod cpu;
mod disk;
mod memory;
mod network;
mod workload;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::helper::command;
use crate::steploop::{Member, Ready};
use crate::sys::{self, Ended, Waiter};

/// What to do to the workload.
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
    /// The lock that every step takes, held for long.
    LockHolder,
    /// A lower clock of the simulated devices.
    DeviceSlowdown,
    /// Timer interrupts on the CPU of rank 0, many thousand a second: a profiler that runs hot.
    IrqStorm,
    /// Rank 0 does the same work in a more wasteful way.
    SlowCode,
    /// More work in every step: no fault.
    LoadChange,
    /// Nothing.
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

    /// Its name, which is also its process's.
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

    /// The class that a verdict should give, in the words of the schema's `Class`; `None` where
    /// there should be no finding.
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

    /// The steps that it slows, if it does; others may be slowed as well.
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

/// Where the disturbing process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// In the control groups of whoever starts it: another container than the workload's.
    #[default]
    Other,
    /// In the workload's own control groups: the same container.
    Same,
}

/// A disturbance to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// What.
    pub kind: Kind,
    /// How long to wait before it, s.
    pub after: f64,
    /// How long it lasts, s.
    pub seconds: f64,
    /// How strong it is; 1 is what [`Kind::intensity`] says.
    pub intensity: f64,
    /// Where it is.
    #[serde(default)]
    pub placement: Placement,
    /// Whose steps.
    pub target: Ready,
}

/// The truth about a disturbance. Times are CLOCK_MONOTONIC ns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// What was done.
    pub injector: Kind,
    /// The right class, or none.
    pub class: Option<String>,
    /// The process to blame, if a process is.
    pub culprit_pid: Option<i32>,
    /// Its name.
    pub culprit_comm: Option<String>,
    /// The control group to blame or that the process is in, as traces call it: `v1:cpu:/path`,
    /// `v2:/path`.
    pub culprit_cgroup: Option<String>,
    /// When it began.
    pub onset_ns: u64,
    /// When it was over, and all was as before.
    pub end_ns: u64,
    /// How strong it was.
    pub intensity: f64,
    /// What that meant.
    pub params: Value,
}

/// A disturbance under way, in a process of its own. Dropping it ends it.
#[derive(Debug)]
pub struct Injector {
    spec: Spec,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    over: bool,
}

/// What the disturbing process says when it begins.
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

    /// The disturbing process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until it begins; CLOCK_MONOTONIC ns. To be called once, or not at all.
    ///
    /// # Errors
    /// If it could not begin; the reason is on stderr.
    pub fn onset(&mut self) -> Result<u64> {
        Ok(self.hear::<Onset>()?.onset_ns)
    }

    /// Waits until its time is over and everything is as before.
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
            let value: Value = self.hear()?;
            if value.get("injector").is_some() {
                break serde_json::from_value(value).context("cannot understand the label")?;
            }
        };
        let status = self.child.wait().context("cannot wait for the injector")?;
        if !status.success() {
            bail!("{} failed: {status}", self.spec.kind.name());
        }
        self.over = true;
        Ok(label)
    }

    fn hear<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let name = self.spec.kind.name();
        match self.lines.next() {
            Some(line) => {
                let line = line.with_context(|| format!("cannot read from {name}"))?;
                serde_json::from_str(&line).with_context(|| format!("cannot understand {name}"))
            }
            None => bail!("{name} has ended before its time; its message is above"),
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

/// A disturbance that has begun; dropping it ends it and changes back what it changed.
struct Disturbance {
    /// What the intensity meant.
    params: Value,
    /// Who is to blame.
    culprit: Culprit,
    /// Stopped and waited for before anything is changed back.
    workers: Workers,
}

enum Culprit {
    /// This process.
    Me,
    /// A rank.
    Rank(Member),
    /// A control group.
    Group(String),
    /// No process.
    Nobody,
}

impl Disturbance {
    fn of(culprit: Culprit, workers: Workers, params: Value) -> Disturbance {
        Disturbance { params, culprit, workers }
    }
}

/// Threads that disturb until they are told to stop.
#[derive(Default)]
struct Workers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    fn new() -> Workers {
        Workers::default()
    }

    /// Starts a thread that should return soon after its flag is set.
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
        Kind::None => Ok(Disturbance::of(Culprit::Nobody, Workers::new(), json!({}))),
    }
}

/// Changes back what a kind changes in its target; harmless if nothing was changed, and if the
/// target is gone.
fn undo(kind: Kind, target: &Ready) {
    match kind {
        Kind::CgroupQuota => cpu::restore_quota(target),
        Kind::LinkCap => network::restore_link(target),
        Kind::Sigstop => workload::resume(target),
        Kind::DeviceSlowdown | Kind::SlowCode | Kind::LoadChange => workload::restore(target),
        _ => {}
    }
}

/// Plays the disturbing process.
pub(crate) fn run(spec: Spec) -> Result<()> {
    let Spec { kind, after, seconds, intensity, placement, target } = spec;
    sys::set_comm(kind.name());
    if placement == Placement::Same {
        target.cgroups.join().context("cannot join the workload's control groups")?;
    }
    let waiter = Waiter::new().context("cannot take over signals")?;
    let parent = std::io::stdin();
    let from_now =
        |s: f64| sys::now() + Duration::from_secs_f64(s.clamp(0.0, 1e6)).as_nanos() as u64;
    let say = |value: Value| {
        println!("{value}");
        let _ = std::io::stdout().flush();
    };
    if waiter.until(Some(from_now(after)), Some(&parent)) != Ended::Time {
        bail!("{} was ended before it began", kind.name());
    }

    let begun = begin(kind, &target, intensity)
        .with_context(|| format!("cannot disturb by {}", kind.name()));
    let Disturbance { params, culprit, workers } = match begun {
        Ok(disturbance) => disturbance,
        Err(error) => {
            undo(kind, &target);
            return Err(error);
        }
    };
    // Preparations are over and the first disturbing thread has been started just now.
    let onset_ns = sys::now();
    say(json!(Onset { onset_ns }));
    waiter.until(Some(from_now(seconds)), Some(&parent));
    drop(workers);
    undo(kind, &target);
    let end_ns = sys::now();

    let (pid, comm) = match &culprit {
        Culprit::Me => (Some(std::process::id() as i32), Some(kind.name().to_owned())),
        Culprit::Rank(member) => (Some(member.pid), Some(member.comm.clone())),
        Culprit::Group(_) | Culprit::Nobody => (None, None),
    };
    let cgroup = match culprit {
        Culprit::Group(key) => Some(key),
        _ => pid.and_then(cgroup_of),
    };
    say(json!(Label {
        injector: kind,
        class: kind.class().map(str::to_owned),
        culprit_pid: pid,
        culprit_comm: comm,
        culprit_cgroup: cgroup,
        onset_ns,
        end_ns,
        intensity,
        params,
    }));
    Ok(())
}

fn cgroup_of(pid: i32) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(format!("v2:{path}"))
}

/// A number of things that grows with the intensity, at least one.
fn count(intensity: f64, at_one: f64) -> usize {
    (intensity * at_one).round().clamp(1.0, 1000.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_words_of_the_schema() {
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
