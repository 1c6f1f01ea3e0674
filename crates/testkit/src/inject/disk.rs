//! Writes of another process on the workload's file system.
//!
//! The storm is to slow the disk and the journal, not the CPU. So it runs when nobody else wants the CPU
//! (`SCHED_IDLE`), and writes past the page cache: on a fast disk it takes half a CPU otherwise. A kernel that is not
//! preempted (`CONFIG_PREEMPT_NONE`) copies to the page cache for up to some milliseconds, whoever waits and whatever
//! the policy, and the first second of a storm that did so was CPU contention indeed (3.5 to 6.8 ms a step spent
//! runnable, 1.0 to 2.2 ms at the disk).

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Culprit, Disturbance, Workers, count};
use crate::steploop::Ready;
use crate::sys::{self, Aligned};

const MIB: usize = 1 << 20;
/// Size of the file that is written over and over, MiB.
const SPAN: usize = 512;

pub(super) fn odirect_writer(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let path = target.work_dir.join("odirect-writer");
    let failed = || format!("cannot write `{}` with O_DIRECT", path.display());
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .with_context(failed)?;
    // Without a name the file disappears however this process ends.
    let _ = std::fs::remove_file(&path);
    sys::allocate(file.as_raw_fd(), (SPAN * MIB) as u64).with_context(failed)?;
    let block = Arc::new(Aligned::new(MIB));
    file.write_all_at(&block, 0).with_context(failed)?;
    let file = Arc::new(file);
    let depth = count(intensity, 24.0);
    let mut workers = Workers::new();
    for i in 0..depth {
        let (file, block) = (file.clone(), block.clone());
        workers.spawn(move |stop| {
            let mut at = i;
            while !stop.load(Relaxed) {
                let _ = file.write_all_at(&block, (at % SPAN * MIB) as u64);
                at += depth;
            }
        });
    }
    Ok(Disturbance::new(Culprit::ThisProcess, workers, json!({ "depth": depth, "bytes": MIB })))
}

pub(super) fn fsync_storm(target: &Ready, intensity: f64) -> Result<Disturbance> {
    let threads = count(intensity, 32.0);
    let dir = target.work_dir.join("fsync-storm");
    // If this process is killed, the directory is removed with the work directory.
    std::fs::create_dir_all(&dir)
        .with_context(|| format!("cannot create the directory `{}`", dir.display()))?;
    let block = Arc::new(Aligned::new(MIB));
    store(&dir.join("trial"), &block)
        .with_context(|| format!("cannot write and sync files in `{}`", dir.display()))?;
    sys::run_when_idle();
    let mut workers = Workers::new();
    for i in 0..threads {
        let (path, block) = (dir.join(i.to_string()), block.clone());
        workers.spawn(move |stop| {
            while !stop.load(Relaxed) {
                let _ = store(&path, &block);
            }
            let _ = std::fs::remove_file(&path);
        });
    }
    Ok(Disturbance::new(
        Culprit::ThisProcess,
        workers,
        json!({ "threads": threads, "bytes": BLOCKS * MIB }),
    ))
}

/// Size of each file, MiB.
const BLOCKS: usize = 4;

/// Creates and syncs a file: data, inode, directory and journal all have to be written.
fn store(path: &Path, block: &[u8]) -> std::io::Result<()> {
    let _ = std::fs::remove_file(path);
    let mut options = OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT).open(path)?;
    for _ in 0..BLOCKS {
        file.write_all(block)?;
    }
    file.sync_all()
}
