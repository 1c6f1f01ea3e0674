//! Plays one rank of a job through the real libnccl, without a GPU.
//!
//! ```text
//! nccl_driver LIBNCCL PLUGIN straggler --rank R --ranks N --steps S --barrier FILE
//!             [--late-us X] [--late-from S1] [--late-until S2] [--compute-us C] [--channels K]
//! ```
//!
//! Each step computes for C µs, and from step S1 to S2 for X more on a rank that is late; then all ranks meet in an
//! all-reduce: its first phase lasts until the last rank is there, which is really waited for, at
//! a barrier in FILE that all ranks share. The plug-in is told as NCCL would tell it, with times
//! of a GPU's clock. Steps and their `allreduce` phases are marked in the ring of `GPUWHY_RING`.
//! NCCL's mask is followed: ask for phases with `GPUWHY_NCCL_MASK=0x8e46`.

#[path = "../tests/nccl/driver.rs"]
#[allow(dead_code)]
mod driver;

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use driver::{Library, gpu_now};
use gpuwhy_wire::Producer;

/// Longest wait for the other ranks.
const PATIENCE: Duration = Duration::from_secs(60);

struct Straggler {
    rank: u32,
    ranks: u32,
    steps: u64,
    late: Duration,
    /// The steps in which it is late.
    when: std::ops::Range<u64>,
    compute: Duration,
    channels: u8,
    barrier: PathBuf,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("nccl_driver: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let mut need = |what: &str| args.next().ok_or(format!("{what} is missing"));
    let (library, plugin) = (PathBuf::from(need("LIBNCCL")?), PathBuf::from(need("PLUGIN")?));
    match need("a scenario")?.as_str() {
        "straggler" => straggler(&library, &plugin, options(args)?),
        other => Err(format!("there is no scenario `{other}`")),
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Straggler, String> {
    let us = Duration::from_micros;
    let mut of = Straggler {
        rank: 0,
        ranks: 1,
        steps: 10,
        late: us(0),
        when: 0..u64::MAX,
        compute: us(2_000),
        channels: 2,
        barrier: PathBuf::new(),
    };
    while let Some(option) = args.next() {
        let value = args.next().ok_or(format!("{option} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|e| format!("{option} {value}: {e}"));
        match option.as_str() {
            "--rank" => of.rank = number()? as u32,
            "--ranks" => of.ranks = number()? as u32,
            "--steps" => of.steps = number()?,
            "--late-us" => of.late = us(number()?),
            "--late-from" => of.when.start = number()?,
            "--late-until" => of.when.end = number()?,
            "--compute-us" => of.compute = us(number()?),
            "--channels" => of.channels = number()?.clamp(1, 64) as u8,
            "--barrier" => of.barrier = value.into(),
            _ => return Err(format!("there is no option `{option}`")),
        }
    }
    if of.barrier.as_os_str().is_empty() {
        return Err("--barrier is missing".into());
    }
    Ok(of)
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

fn straggler(
    library: &std::path::Path,
    plugin: &std::path::Path,
    of: Straggler,
) -> Result<(), String> {
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
