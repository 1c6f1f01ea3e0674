//! A small parallel job whose every step is known.
//!
//! `N` ranks, each a process (`steploop-r0`, ...) in a network namespace of its own, joined in a
//! ring by veth pairs with a limited speed. A step has these phases, one after the other, so that
//! a delay in any of them delays the step:
//!
//! | phase | what it does | what can slow it |
//! |---|---|---|
//! | `load` | reads a batch of samples from a warm file, looks at every byte | CPU, memory, disk |
//! | `launch` | launches kernels on a simulated device | CPU |
//! | `sync` | sleeps until the device is idle | the device's clock |
//! | `allreduce` | ring all-reduce over TCP with real additions | network, the other rank |
//! | `update` | updates shared parameters under a lock, runs a last kernel | the lock's holder |
//! | `checkpoint` | every tenth step: writes a file and has it synced | disk |
//!
//! Steps with a checkpoint are called `step+ckpt`, so that they have a baseline of their own.
//! Without the rights to make namespaces, control groups or links the job runs without them and
//! says so.

mod allreduce;
pub mod control;
pub mod device;
mod groups;
mod instances;
mod job;
pub(crate) mod network;
pub(crate) mod rank;

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

pub use control::Control;
pub use groups::{Group, Groups, Version};
pub use network::Nic;

use crate::helper::command;
use crate::sys::{self, Ended, Waiter};
use instances::running;
use job::Job;

const PREFIX: &str = "gpuwhy-steploop-";

/// The workload's size and surroundings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// How many ranks, up to 16.
    pub ranks: u32,
    /// Bytes that a step reads.
    pub batch_bytes: u64,
    /// Bytes of the file that it reads from.
    pub dataset_bytes: u64,
    /// How often it looks at each of them; what takes most of its CPU time.
    pub decode_rounds: u32,
    /// Kernels of a step's first pass.
    pub kernels: u32,
    /// How long each takes at nominal clock, us.
    pub kernel_us: u64,
    /// Bytes that are reduced over all ranks.
    pub allreduce_bytes: u64,
    /// Every so many steps there is a checkpoint; 0 is never.
    pub checkpoint_every: u64,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Speed of the links between ranks, Mbit/s.
    pub link_mbit: u32,
    /// Whether rank `i` is pinned to CPU `i`.
    pub pin: bool,
    /// Whether ranks get network namespaces and links; else they talk over loopback.
    pub network: bool,
    /// Whether ranks get control groups.
    pub cgroups: bool,
    /// Memory that the ranks' control group may use, page cache included.
    pub memory_bytes: u64,
    /// How long it runs; `None` is until it is stopped.
    pub seconds: Option<f64>,
    /// Where its files lie, on a real file system; made, and removed in the end. `None` is a new
    /// directory in /var/tmp.
    pub work_dir: Option<PathBuf>,
    /// The ring that steps are told to; `None` is the one of the environment, if any. `{rank}` in
    /// it is the number of the rank, so that each can have its own, as on hosts of their own.
    pub ring: Option<PathBuf>,
    /// A file for the truth: `rank,seq,name,start_ns,end_ns,size` of every step.
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
    /// Its process.
    pub pid: i32,
    /// Its process's name.
    pub comm: String,
    /// The CPU it is pinned to.
    pub cpu: Option<usize>,
    /// Its NICs.
    pub nics: Vec<Nic>,
}

/// A running workload, as it introduces itself: a line of JSON on stdout, and `ready.json` in its
/// work directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The supervisor's process; ends the workload on SIGTERM.
    pub pid: i32,
    /// The ranks.
    pub ranks: Vec<Member>,
    /// The control groups of the ranks.
    pub cgroups: Groups,
    /// Where its files lie.
    pub work_dir: PathBuf,
    /// The file that batches are read from.
    pub dataset: PathBuf,
    /// The control page.
    pub control: PathBuf,
    /// How it was set up.
    pub config: Config,
    /// When the first step could begin, CLOCK_MONOTONIC ns.
    pub started_ns: u64,
    /// What this system did not let it have.
    pub notes: Vec<String>,
}

impl Ready {
    /// The rank of this number.
    ///
    /// # Errors
    /// If there is none.
    pub fn rank(&self, rank: u32) -> Result<&Member> {
        self.ranks
            .iter()
            .find(|member| member.rank == rank)
            .with_context(|| format!("the workload has no rank {rank}"))
    }

    /// Reads `ready.json` of a workload, or of the only running one.
    ///
    /// # Errors
    /// If none or more than one runs, or the file cannot be read.
    pub fn find(work_dir: Option<&Path>) -> Result<Ready> {
        let dir = match work_dir {
            Some(dir) => dir.to_owned(),
            None => {
                let running = running(Path::new("/var/tmp"), PREFIX);
                match &running[..] {
                    [one] => one.clone(),
                    [] => bail!("no steploop is running (start one with `steploop`)"),
                    _ => {
                        bail!("{} steploops are running; name one's work directory", running.len())
                    }
                }
            }
        };
        let path = dir.join("ready.json");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("cannot understand `{}`", path.display()))
    }
}

/// What a workload has done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Steps that each rank has taken.
    pub steps: u64,
    /// How long the steps took together, s.
    pub seconds: f64,
}

/// The name of a rank's process.
pub fn comm(rank: u32) -> String {
    format!("steploop-r{rank}")
}

/// A workload that was started by this process. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    /// How it introduced itself.
    pub ready: Ready,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Starts the workload as a process of its own and waits until its steps begin. It ends with the
/// calling thread.
///
/// # Errors
/// If it cannot be started; the reason is on stderr.
pub fn start(config: &Config) -> Result<Running> {
    let mut child = command("steploop", config, libc::SIGTERM)?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the steploop")?;
    let stdout = child.stdout.take().context("the steploop has no stdout")?;
    let mut lines = BufReader::new(stdout).lines();
    let ready = match lines.next() {
        Some(line) => {
            let line = line.context("cannot read from the steploop")?;
            serde_json::from_str(&line).context("cannot understand the steploop")?
        }
        None => {
            let status = child.wait().context("cannot wait for the steploop")?;
            bail!("the steploop did not start ({status}); its message is above");
        }
    };
    Ok(Running { ready, child, lines })
}

impl Running {
    /// Ends the workload and waits until it has cleaned up.
    ///
    /// # Errors
    /// If it had failed.
    pub fn stop(mut self) -> Result<Summary> {
        // Its stdin closes, which is a wish to end.
        drop(self.child.stdin.take());
        self.wait()
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// If it had failed.
    pub fn wait(&mut self) -> Result<Summary> {
        let line = self.lines.next();
        let status = self.child.wait().context("cannot wait for the steploop")?;
        match line {
            Some(Ok(line)) if status.success() => {
                serde_json::from_str(&line).context("cannot understand the steploop")
            }
            _ => bail!("the steploop failed ({status}); its message is above"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Plays the supervisor of a workload that [`start`] started.
pub(crate) fn supervise(config: Config) -> Result<()> {
    sys::set_comm("steploop");
    let say = |line: String| {
        println!("{line}");
        let _ = std::io::stdout().flush();
    };
    let ready = |ready: &Ready| say(serde_json::to_string(ready).unwrap_or_default());
    let summary = run(&config, Some(&std::io::stdin()), ready)?;
    say(serde_json::to_string(&summary).context("cannot write the summary")?);
    Ok(())
}

/// Runs the workload until its time is over, a signal comes, or `parent` is closed. To be called
/// before this process starts threads, because it takes over the signals.
///
/// # Errors
/// If it cannot be set up, or a rank dies.
pub fn run(
    config: &Config,
    parent: Option<&dyn std::os::fd::AsRawFd>,
    on_ready: impl FnOnce(&Ready),
) -> Result<Summary> {
    ensure!((1..=16).contains(&config.ranks), "{} ranks: 1 to 16 are possible", config.ranks);
    ensure!(
        config.batch_bytes >= 4096 && config.batch_bytes <= config.dataset_bytes,
        "a batch of {} bytes must be at least a page and fit into the data set of {}",
        config.batch_bytes,
        config.dataset_bytes
    );
    let waiter = Waiter::new().context("cannot take over signals")?;
    let mut job = Job::set_up(config)?;
    job.start_ranks()?;
    on_ready(&job.ready);

    let end = config.seconds.map(|s| sys::now() + Duration::from_secs_f64(s).as_nanos() as u64);
    loop {
        let look = sys::now() + 200_000_000;
        let until = end.map_or(look, |end| end.min(look));
        match waiter.until(Some(until), parent) {
            Ended::Time if end.is_none_or(|end| sys::now() < end) => job.check()?,
            _ => break,
        }
    }
    job.finish()
}
