//! One rank of a job whose ranks really wait for each other, playing NCCL.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use gpuwhy_wire::Producer;

use super::driver::{Library, gpu_now};

/// Longest wait for the other ranks.
const PATIENCE: Duration = Duration::from_secs(60);

/// One rank of a job.
pub struct Straggler {
    pub rank: u32,
    pub ranks: u32,
    pub steps: u64,
    pub late: Duration,
    /// The steps in which it is.
    pub when: std::ops::Range<u64>,
    pub compute: Duration,
    pub channels: u8,
    pub barrier: PathBuf,
}

/// A counter in a file, where all ranks meet.
struct Barrier {
    arrived: &'static AtomicU64,
    ranks: u64,
    met: u64,
}

impl Barrier {
    fn open(path: &PathBuf, ranks: u32) -> Result<Barrier, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(failed)?;
        file.set_len(8).map_err(failed)?;
        // SAFETY: a new shared mapping of 8 bytes that is never unmapped.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 8, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(format!("cannot map {}", path.display()));
        }
        // SAFETY: page-aligned, mapped for good, and only ever used as this atomic.
        Ok(Barrier { arrived: unsafe { &*at.cast() }, ranks: ranks as u64, met: 0 })
    }

    /// Waits until all ranks have come here as often as this one.
    fn meet(&mut self) -> Result<(), String> {
        self.met += 1;
        self.arrived.fetch_add(1, AcqRel);
        let start = Instant::now();
        while self.arrived.load(Acquire) < self.met * self.ranks {
            if start.elapsed() > PATIENCE {
                return Err("the other ranks did not come".into());
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }
}

/// Plays the rank to its end.
pub fn straggler(library: &Path, plugin: &Path, of: Straggler) -> Result<(), String> {
    let nccl = Library::open(library)?.load(plugin)?;
    println!("nccl {} speaks v{} took v{}", nccl.version, nccl.speaks as u8, nccl.took);
    let gpuwhy = Producer::from_env();
    let mut barrier = Barrier::open(&of.barrier, of.ranks)?;
    barrier.meet()?;
    let world = nccl.init(c"world", 0x5742_4c44, of.rank as i32, of.ranks as i32);
    println!("mask {:#x}", nccl.mask());
    let mut waited = Duration::ZERO;
    for seq in 0..of.steps {
        let step = gpuwhy.step("step").seq(seq).rank(of.rank).open();
        let late = if of.when.contains(&seq) { of.late } else { Duration::ZERO };
        std::thread::sleep(of.compute + late);
        let _phase = step.phase("allreduce");

        // The host's part: append, launch, hand over.
        let group = world.group(1);
        let api = world.api(group, 1 << 20);
        nccl.stop(api);
        let launch = world.launch(group);
        nccl.stop(launch);
        let coll = world.all_reduce(api, seq, 1 << 20, of.channels);
        nccl.stop(coll);
        nccl.stop(group);

        // The GPU's part. Its channels begin one µs after another.
        let channel = |c: u8| (c, gpu_now());
        let channels: Vec<_> = (0..of.channels)
            .map(channel)
            .map(|(c, at)| (c, at, world.channel(coll, c, at)))
            .collect();
        let start = Instant::now();
        barrier.meet()?;
        waited += start.elapsed();
        let met = gpu_now();
        std::thread::sleep(Duration::from_micros(300));
        let computed = gpu_now();
        barrier.meet()?;
        let end = gpu_now();
        for (c, began, channel) in channels {
            world.phase(channel, c, 0, began, met);
            world.phase(channel, c, 1, met, computed);
            world.phase(channel, c, 2, computed, end);
            world.channel_ends(channel, end);
        }
    }
    world.finalize();
    println!("rank {} waited {} us", of.rank, waited.as_micros());
    Ok(())
}
