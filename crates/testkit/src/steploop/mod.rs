//! A small parallel job whose every step is known.
//!
//! `N` ranks, each a process (`steploop-r0`, ...) in a network namespace of its own, joined in a
//! ring by veth pairs with a limited speed. A step has these phases, one after the other, so that
//! a delay in any of them delays the step:
//!
//! | phase | what it does | what can slow it |
//! |---|---|---|
//! | `load` | reads a batch of samples from a cached file, processes every byte | CPU, memory, disk |
//! | `launch` | launches kernels on a simulated device | CPU |
//! | `sync` | sleeps until the device is idle | the device's clock |
//! | `allreduce` | ring all-reduce over TCP with real additions | network, the other rank |
//! | `update` | updates shared parameters under a lock, runs a last kernel | the holder of the lock |
//! | `checkpoint` | every tenth step: writes and syncs a file | disk |
//!
//! Steps with a checkpoint are called `step+ckpt`, so that they have a baseline of their own.
//! Without the privileges to make namespaces, control groups or links the job runs without them and
//! says so in [`Ready::notes`].

mod allreduce;
pub mod control;
pub mod device;
mod groups;
mod instances;
mod job;
pub(crate) mod network;
pub(crate) mod rank;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

pub use control::Control;
pub use groups::{Group, Groups, Version};
pub use network::Nic;

use crate::helper::{JsonChild, command, print_json};
use crate::sys::{self, Ended, Waiter};
use instances::running;
use job::Job;

const PREFIX: &str = "gpuwhy-steploop-";

/// Size and environment of the workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// How many ranks, up to 16.
    pub ranks: u32,
    /// Bytes that a step reads.
    pub batch_bytes: u64,
    /// Size of the file that batches are read from, bytes.
    pub dataset_bytes: u64,
    /// How often it processes each byte of a batch; takes most of its CPU time.
    pub decode_rounds: u32,
    /// Kernels per step, apart from the optimizer's.
    pub kernels: u32,
    /// Duration of each kernel at the nominal clock, µs.
    pub kernel_us: u64,
    /// Bytes that are reduced over all ranks.
    pub allreduce_bytes: u64,
    /// A checkpoint is written every this many steps; 0 is never.
    pub checkpoint_every: u64,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Speed of the links between ranks, Mbit/s.
    pub link_mbit: u32,
    /// Whether rank `i` is pinned to CPU `i`.
    pub pin: bool,
    /// Whether ranks get network namespaces and links; otherwise they communicate over loopback.
    pub network: bool,
    /// Whether ranks get control groups.
    pub cgroups: bool,
    /// Memory limit of the ranks' control group, page cache included, bytes.
    pub memory_bytes: u64,
    /// How long it runs, s; `None` is until it is stopped.
    pub seconds: Option<f64>,
    /// Directory for its files, on a file system of a disk; created, and removed at the end. `None`
    /// is a new directory in /var/tmp.
    pub work_dir: Option<PathBuf>,
    /// The ring that steps are reported to; `None` is the one of the environment, if any. `{rank}`
    /// in it stands for the number of the rank, so that each rank can have a ring, as on separate
    /// hosts.
    pub ring: Option<PathBuf>,
    /// A file for the ground truth: `rank,seq,name,start_ns,end_ns,size` of every step.
    pub csv: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            ranks: 2,
            batch_bytes: 4 << 20,
            dataset_bytes: 256 << 20,
            decode_rounds: 4,
            kernels: 8,
            kernel_us: 1250,
            allreduce_bytes: 512 << 10,
            checkpoint_every: 10,
            checkpoint_bytes: 1 << 20,
            link_mbit: 1000,
            pin: true,
            network: true,
            cgroups: true,
            memory_bytes: 512 << 20,
            seconds: None,
            work_dir: None,
            ring: None,
            csv: None,
        }
    }
}

/// One rank of a running workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub rank: u32,
    /// Its process id.
    pub pid: i32,
    /// Name of its process.
    pub comm: String,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// Its network devices.
    pub nics: Vec<Nic>,
}

/// A running workload as it describes itself: in a line of JSON on stdout, and in `ready.json` in
/// its work directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Process id of the supervisor, which ends the workload on SIGTERM.
    pub pid: i32,
    /// The ranks.
    pub ranks: Vec<Member>,
    /// The control groups of the ranks.
    pub cgroups: Groups,
    /// Directory of its files.
    pub work_dir: PathBuf,
    /// The file that batches are read from.
    pub dataset: PathBuf,
    /// File of the control page.
    pub control: PathBuf,
    /// What it was started with.
    pub config: Config,
    /// When the first step could begin, CLOCK_MONOTONIC ns.
    pub started_ns: u64,
    /// What this system did not allow, and why.
    pub notes: Vec<String>,
}

impl Ready {
    /// The rank of this number.
    ///
    /// # Errors
    /// If the workload has no such rank.
    pub fn rank(&self, rank: u32) -> Result<&Member> {
        self.ranks
            .iter()
            .find(|member| member.rank == rank)
            .with_context(|| format!("the workload has no rank {rank}"))
    }

    /// Reads `ready.json` of the workload in a directory, or of the only running one.
    ///
    /// # Errors
    /// If none or more than one is running, or the file cannot be read.
    pub fn find(work_dir: Option<&Path>) -> Result<Ready> {
        let dir = match work_dir {
            Some(dir) => dir.to_owned(),
            None => {
                let running = running(Path::new("/var/tmp"), PREFIX);
                match &running[..] {
                    [one] => one.clone(),
                    [] => bail!("no steploop is running; start one with `steploop`"),
                    _ => {
                        bail!(
                            "{} steploops are running; choose one by its work directory",
                            running.len()
                        )
                    }
                }
            }
        };
        let path = dir.join("ready.json");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("cannot parse `{}`", path.display()))
    }
}

/// What a workload did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Steps that each rank took.
    pub steps: u64,
    /// Time from the first step to the end, s.
    pub seconds: f64,
}

/// The name of a rank's process.
pub fn comm(rank: u32) -> String {
    format!("steploop-r{rank}")
}

/// A workload that was started by this process. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    /// What it reported when its steps began.
    pub ready: Ready,
    child: JsonChild,
}

/// Starts the workload as a process of its own and waits until its steps begin. It ends with the
/// calling thread.
///
/// # Errors
/// If it cannot be started.
pub fn start(config: &Config) -> Result<Running> {
    let mut command = command("steploop", config, libc::SIGTERM)?;
    let mut child = JsonChild::spawn("the steploop".into(), &mut command, Stdio::piped())?;
    match child.receive() {
        Ok(ready) => Ok(Running { ready, child }),
        Err(error) => {
            child.close_stdin();
            let status = child.wait()?;
            Err(error).with_context(|| format!("the steploop did not start ({status})"))
        }
    }
}

impl Running {
    /// Ends the workload and waits until it has cleaned up.
    ///
    /// # Errors
    /// If it failed.
    pub fn stop(mut self) -> Result<Summary> {
        // It ends when its stdin is closed.
        self.child.close_stdin();
        self.wait()
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// If it failed.
    pub fn wait(&mut self) -> Result<Summary> {
        let summary = self.child.receive();
        let status = self.child.wait()?;
        let summary = summary?;
        ensure!(status.success(), "the steploop failed: {status}");
        Ok(summary)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.close_stdin();
        let _ = self.child.wait();
    }
}

/// Runs the supervisor of a workload that [`start`] started.
pub(crate) fn supervise(config: Config) -> Result<()> {
    sys::set_comm("steploop");
    let summary = run(&config, Some(&std::io::stdin()), print_json)?;
    print_json(&summary);
    Ok(())
}

/// Runs the workload until its time is over, a signal arrives, or `parent` is closed. To be called
/// before this process starts threads, because it blocks the signals.
///
/// # Errors
/// If it cannot be set up, or a rank dies.
pub fn run(
    config: &Config,
    parent: Option<&dyn std::os::fd::AsRawFd>,
    on_ready: impl FnOnce(&Ready),
) -> Result<Summary> {
    ensure!((1..=16).contains(&config.ranks), "cannot run {} ranks; choose 1 to 16", config.ranks);
    ensure!(
        config.batch_bytes >= 4096 && config.batch_bytes <= config.dataset_bytes,
        "a batch of {} bytes must be at least a page (4096) and fit into the data set of {}",
        config.batch_bytes,
        config.dataset_bytes
    );
    let waiter = Waiter::new().context("cannot handle signals")?;
    let mut job = Job::set_up(config)?;
    job.start_ranks()?;
    on_ready(&job.ready);

    let end = config.seconds.map(|s| sys::now() + Duration::from_secs_f64(s).as_nanos() as u64);
    loop {
        let next_check = sys::now() + 200_000_000;
        let until = end.map_or(next_check, |end| end.min(next_check));
        match waiter.until(Some(until), parent) {
            Ended::Time if end.is_none_or(|end| sys::now() < end) => job.check()?,
            _ => break,
        }
    }
    job.finish()
}
