//! The supervisor's side of a workload: sets it up, starts its ranks, ends them and cleans up.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::control::Control;
use super::groups::Groups;
use super::instances::orphans;
use super::network::{self, Nic};
use super::rank::{self, FromRank, ToRank};
use super::{Config, Member, PREFIX, Ready, Summary, comm};
use crate::helper::{JsonChild, command};
use crate::sys;

/// A workload. Dropping it ends its ranks and removes its files and control groups.
pub(super) struct Job {
    pub(super) ready: Ready,
    control: Option<sys::Shared<Control>>,
    children: Vec<JsonChild>,
}

impl Job {
    /// Makes its directory, control groups, control page and data set.
    pub(super) fn set_up(config: &Config) -> Result<Job> {
        let pid = std::process::id() as i32;
        for dir in orphans(Path::new("/var/tmp"), PREFIX) {
            let _ = std::fs::remove_dir_all(dir);
        }
        Groups::remove_stale(PREFIX);
        let name = format!("{PREFIX}{pid}");
        let work_dir = config.work_dir.clone().unwrap_or_else(|| Path::new("/var/tmp").join(&name));
        std::fs::create_dir(&work_dir).with_context(|| {
            format!("cannot create the work directory `{}`", work_dir.display())
        })?;
        let mut notes = Vec::new();
        let ready = Ready {
            pid,
            ranks: Vec::new(),
            cgroups: Groups::default(),
            dataset: work_dir.join("dataset"),
            control: work_dir.join("control"),
            work_dir,
            config: config.clone(),
            started_ns: 0,
            notes: Vec::new(),
        };
        // From here on, dropping the job cleans up.
        let mut job = Job { ready, control: None, children: Vec::new() };
        if config.cgroups {
            job.ready.cgroups = Groups::create(&name, &mut notes);
        }
        if let Some(memory) = &job.ready.cgroups.memory
            && let Err(error) = memory.set_memory_limit(config.memory_bytes)
        {
            notes.push(format!("no memory limit: {error:#}"));
        }
        job.ready.notes = notes;
        job.control = Some(Control::create(&job.ready.control)?);
        write_dataset(&job.ready.dataset, config.dataset_bytes)?;
        if let Some(csv) = &config.csv {
            std::fs::write(csv, "rank,seq,name,start_ns,end_ns,size\n")
                .with_context(|| format!("cannot create `{}`", csv.display()))?;
        }
        Ok(job)
    }

    /// Starts the ranks and connects them; returns when their steps begin.
    pub(super) fn start_ranks(&mut self) -> Result<()> {
        let config = self.ready.config.clone();
        let network = config.network && config.ranks > 1 && self.may_make_networks();
        let pairs = if network { network::ring(config.ranks) } else { Vec::new() };
        let nics: Vec<Nic> = pairs.iter().flatten().cloned().collect();
        let cpus = sys::cpus();

        for rank in 0..config.ranks {
            let cpu = config.pin.then(|| cpus[rank as usize % cpus.len()]);
            let spec = rank::Spec {
                rank,
                config: config.clone(),
                cpu,
                network,
                groups: self.ready.cgroups.clone(),
                control: self.ready.control.clone(),
                dataset: self.ready.dataset.clone(),
                work_dir: self.ready.work_dir.clone(),
            };
            let mut command = command("rank", &spec, libc::SIGKILL)?;
            let child = JsonChild::spawn(comm(rank), &mut command, Stdio::piped())?;
            self.ready.ranks.push(Member {
                rank,
                pid: child.pid(),
                comm: comm(rank),
                cpu,
                nics: nics.iter().filter(|nic| nic.rank == rank).cloned().collect(),
            });
            self.children.push(child);
        }

        self.expect(|message| matches!(message, FromRank::Alive).then_some(()))?;
        let pid = |rank: u32| self.ready.ranks[rank as usize].pid;
        for pair in &pairs {
            network::join(pair, [pid(pair[0].rank), pid(pair[1].rank)])?;
        }
        for (rank, member) in self.children.iter_mut().zip(&self.ready.ranks) {
            rank.send(&ToRank::Nics(member.nics.clone()))?;
        }
        let ports = self.expect(|message| match message {
            FromRank::Listening(port) => Some(port),
            _ => None,
        })?;
        for (rank, child) in self.children.iter_mut().enumerate() {
            let next = ports[(rank + 1) % ports.len()];
            let address = rank::address(&nics, rank as u32, config.ranks, next);
            child.send(&ToRank::Connect(address))?;
        }
        self.expect(|message| matches!(message, FromRank::Ready).then_some(()))?;

        self.ready.started_ns = sys::now();
        let path = self.ready.work_dir.join("ready.json");
        let text = serde_json::to_string_pretty(&self.ready).context("cannot write ready.json")?;
        std::fs::write(&path, text)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
        for child in &mut self.children {
            child.send(&ToRank::Go)?;
        }
        Ok(())
    }

    /// Whether network namespaces and links can be made here; if not, the notes get the reason.
    fn may_make_networks(&mut self) -> bool {
        let tried = std::thread::spawn(|| -> Result<()> {
            sys::new_netns().context("cannot make a network namespace (needs CAP_SYS_ADMIN)")?;
            network::run("ip link add to1 type veth peer name to0")?;
            network::set_speed("to1", 1000)
        });
        match tried.join() {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                self.ready.notes.push(format!("the ranks communicate over loopback: {error:#}"));
                false
            }
            Err(_) => false,
        }
    }

    /// Receives one message of each rank.
    fn expect<T>(&mut self, wanted: impl Fn(FromRank) -> Option<T>) -> Result<Vec<T>> {
        let mut messages = Vec::new();
        for rank in &mut self.children {
            let message = rank.receive()?;
            messages.push(wanted(message).context("a rank sent an unexpected message")?);
        }
        Ok(messages)
    }

    /// Fails if a rank has ended. If one dies, its neighbours fail at once; the error names the one
    /// that was killed.
    pub(super) fn check(&mut self) -> Result<()> {
        use std::os::unix::process::ExitStatusExt;
        let mut ended = Vec::new();
        for (rank, member) in self.children.iter_mut().zip(&self.ready.ranks) {
            if let Some(status) = rank.try_wait().context("cannot get the status of a rank")? {
                ended.push((status, member));
            }
        }
        ended.sort_by_key(|(status, _)| status.signal().is_none());
        match ended.first() {
            Some((status, member)) => {
                bail!("rank {} (pid {}) has ended: {status}", member.rank, member.pid)
            }
            None => Ok(()),
        }
    }

    /// Ends the ranks after the same step.
    pub(super) fn finish(mut self) -> Result<Summary> {
        if let Some(control) = &self.control {
            control.stop();
        }
        self.resume();
        // A rank that does not end is killed when the job is dropped. The last steps save what they have:
        // on a disk that others keep busy, that takes many seconds.
        let deadline = sys::now() + 60_000_000_000;
        for rank in &mut self.children {
            while matches!(rank.try_wait(), Ok(None)) {
                ensure!(
                    sys::now() < deadline,
                    "a rank did not end within 60 s after the stop flag was set"
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let steps = self.expect(|message| match message {
            FromRank::Done(steps) => Some(steps),
            _ => None,
        })?;
        let seconds = (sys::now() - self.ready.started_ns) as f64 / 1e9;
        Ok(Summary { steps: steps.into_iter().min().unwrap_or(0), seconds })
    }

    /// Continues ranks that an injector may have left stopped.
    fn resume(&self) {
        for member in &self.ready.ranks {
            let _ = sys::kill(member.pid, libc::SIGCONT);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.children {
            rank.kill();
        }
        self.ready.cgroups.remove();
        let _ = std::fs::remove_dir_all(&self.ready.work_dir);
    }
}

/// Writes the data set to the disk and drops it from the page cache, so that the ranks read it and
/// their control group is charged for it.
fn write_dataset(path: &Path, bytes: u64) -> Result<()> {
    let failed = || format!("cannot write the data set `{}`", path.display());
    let mut file = std::fs::File::create_new(path).with_context(failed)?;
    let mut block = vec![0; 1 << 20];
    let mut left = bytes;
    let mut seed = 1;
    while left > 0 {
        let n = left.min(block.len() as u64) as usize;
        sys::fill(&mut block[..n], seed);
        file.write_all(&block[..n]).with_context(failed)?;
        left -= n as u64;
        seed += 1;
    }
    file.sync_all().with_context(failed)?;
    sys::drop_cache(&file).with_context(failed)
}
