//! The page of shared memory through which supervisor and injectors control the ranks.
//!
//! All ranks must agree on the work of each step, or the all-reduce would wait for bytes that never
//! arrive. So rank 0 decides a few steps ahead: at the start of step `s` it writes the plan of step
//! `s + AHEAD`. The all-reduce keeps the other ranks within one step of it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use anyhow::{Context, Result, ensure};

use crate::sys::{InSharedMemory, Shared, SharedMutex, SharedMutexGuard};

const MAGIC: u64 = u64::from_le_bytes(*b"STEPLOOP");
const AHEAD: u64 = 4;
const PLANS: usize = 16;
/// A factor of one, in millionths.
pub const ONE: u64 = 1_000_000;

/// The shared page.
#[repr(C)]
pub struct Control {
    magic: AtomicU64,
    /// Clock rate of the simulated devices, in millionths.
    clock: AtomicU64,
    /// Work of a step, in millionths.
    load: AtomicU64,
    /// How often rank 0 repeats work that once would do, in millionths.
    waste: AtomicU64,
    /// Not 0 when the ranks should end.
    stop: AtomicU64,
    /// Work of step `s`, in millionths, at `s % PLANS`; 0 is the end.
    plans: [AtomicU64; PLANS],
    /// Updates that the ranks have made under the lock.
    pub updates: AtomicU64,
    /// The lock that every step takes once.
    lock: SharedMutex,
}

// SAFETY: atomics, for which all bytes are valid, and a mutex, which `initialise` makes one before
// the path is passed to another process.
unsafe impl InSharedMemory for Control {
    fn initialise(&mut self) -> io::Result<()> {
        self.lock.initialise()
    }
}

fn map(path: &Path, create: bool) -> io::Result<Shared<Control>> {
    let file = File::options().read(true).write(true).create_new(create).open(path)?;
    if create { Shared::create(&file) } else { Shared::open(&file) }
}

impl Control {
    /// Creates the page as a file.
    ///
    /// # Errors
    /// If the file exists or cannot be made.
    pub fn create(path: &Path) -> Result<Shared<Control>> {
        let control = map(path, true)
            .with_context(|| format!("cannot create the control page `{}`", path.display()))?;
        control.clock.store(ONE, Relaxed);
        control.load.store(ONE, Relaxed);
        control.waste.store(ONE, Relaxed);
        for plan in &control.plans {
            plan.store(ONE, Relaxed);
        }
        control.magic.store(MAGIC, Release);
        Ok(control)
    }

    /// Opens the page of a running workload.
    ///
    /// # Errors
    /// If the file cannot be mapped or is no control page.
    pub fn open(path: &Path) -> Result<Shared<Control>> {
        let control = map(path, false)
            .with_context(|| format!("cannot open the control page `{}`", path.display()))?;
        let magic = control.magic.load(Acquire);
        ensure!(magic == MAGIC, "`{}` is not the control page of a steploop", path.display());
        Ok(control)
    }

    /// Takes the lock that every step takes once.
    pub fn lock(&self) -> SharedMutexGuard<'_> {
        self.lock.lock()
    }

    /// Clock rate of the simulated devices; 1 is nominal.
    pub fn clock(&self) -> f64 {
        self.clock.load(Relaxed) as f64 / ONE as f64
    }

    /// Sets the clock rate of the simulated devices.
    pub fn set_clock(&self, factor: f64) {
        self.clock.store(millionths(factor), Relaxed);
    }

    /// Sets how much work a step is; 1 is nominal. Takes effect a few steps later.
    pub fn set_load(&self, factor: f64) {
        self.load.store(millionths(factor), Relaxed);
    }

    /// How often rank 0 repeats work that once would do.
    pub fn waste(&self) -> f64 {
        self.waste.load(Relaxed) as f64 / ONE as f64
    }

    /// Sets how often rank 0 repeats work that once would do.
    pub fn set_waste(&self, factor: f64) {
        self.waste.store(millionths(factor), Relaxed);
    }

    /// Ends the ranks, all after the same step.
    pub fn stop(&self) {
        self.stop.store(1, Relaxed);
    }

    /// The work of step `seq`, or `None` after the last one. Rank 0 writes the plan of a later
    /// step.
    pub fn plan(&self, rank: u32, seq: u64) -> Option<f64> {
        if rank == 0 {
            let load = match self.stop.load(Relaxed) {
                0 => self.load.load(Relaxed),
                _ => 0,
            };
            self.plans[((seq + AHEAD) % PLANS as u64) as usize].store(load, Release);
        }
        match self.plans[(seq % PLANS as u64) as usize].load(Acquire) {
            0 => None,
            load => Some(load as f64 / ONE as f64),
        }
    }
}

fn millionths(factor: f64) -> u64 {
    // Never 0, which would end the workload.
    ((factor * ONE as f64) as u64).clamp(ONE / 100, ONE * 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reaches_all_ranks_at_the_same_step() {
        let dir = tempfile::tempdir().unwrap();
        let control = Control::create(&dir.path().join("control")).unwrap();
        let mut loads = [Vec::new(), Vec::new()];
        for seq in 0..40 {
            if seq == 10 {
                control.set_load(2.0);
            }
            if seq == 30 {
                control.stop();
            }
            // Rank 1 is one step ahead of rank 0, as far as the all-reduce lets it.
            loads[0].push(control.plan(0, seq));
            if seq == 0 {
                loads[1].push(control.plan(1, 0));
            }
            loads[1].push(control.plan(1, seq + 1));
        }
        loads[1].pop();
        assert_eq!(loads[0], loads[1]);
        assert_eq!(loads[0].iter().position(|l| *l == Some(2.0)), Some(14));
        assert_eq!(loads[0].iter().position(|l| l.is_none()), Some(34));
    }

    #[test]
    fn only_one_thread_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let control = Control::create(&dir.path().join("control")).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _held = control.lock();
                        let before = control.updates.load(Relaxed);
                        control.updates.store(before + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(control.updates.load(Relaxed), 4000);
    }

    #[test]
    fn a_file_that_is_no_control_page_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        std::fs::write(&path, [0; 4096]).unwrap();
        let error = Control::open(&path).err().unwrap().to_string();
        assert!(error.contains("is not the control page of a steploop"), "{error}");
    }
}
