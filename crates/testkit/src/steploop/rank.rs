//! One rank: the process that takes the steps.

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use gpuwhy_wire::Producer;
use serde::{Deserialize, Serialize};

use super::allreduce::Ring;
use super::control::Control;
use super::device::Device;
use super::groups::Groups;
use super::network::{self, Nic};
use super::{Config, comm};
use crate::sys::{self, Random};

/// The task of a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// Its number.
    pub rank: u32,
    /// The workload.
    pub config: Config,
    /// The CPU to pin it to.
    pub cpu: Option<usize>,
    /// Whether it gets a network namespace.
    pub network: bool,
    /// The control groups to join.
    pub groups: Groups,
    /// File of the control page.
    pub control: PathBuf,
    /// The file that batches are read from.
    pub dataset: PathBuf,
    /// Directory for its checkpoint.
    pub work_dir: PathBuf,
}

/// Messages of the supervisor to a rank, one line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToRank {
    /// The rank's network devices.
    Nics(Vec<Nic>),
    /// Address at which the next rank listens.
    Connect(SocketAddr),
    /// All ranks are ready: take steps.
    Go,
}

/// Messages of a rank to the supervisor, one line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromRank {
    /// It is in its namespaces and groups.
    Alive,
    /// Its network devices are up, and it listens on this port.
    Listening(u16),
    /// It is connected and its caches are warm.
    Ready,
    /// It has ended after this many steps.
    Done(u64),
}

/// Runs the rank in this process.
pub(crate) fn run(spec: Spec) -> Result<()> {
    sys::set_comm(&comm(spec.rank));
    let rank = spec.rank;
    take_part(spec).with_context(|| format!("rank {rank}"))
}

fn take_part(spec: Spec) -> Result<()> {
    let mut supervisor = Supervisor { lines: std::io::stdin().lines() };
    spec.groups.join()?;
    if spec.network {
        sys::new_netns().context("cannot make a network namespace")?;
    }
    supervisor.send(&FromRank::Alive)?;

    let ToRank::Nics(nics) = supervisor.receive()? else {
        bail!("the supervisor did not send the network devices")
    };
    if spec.network {
        network::run("ip link set lo up")?;
    }
    for nic in &nics {
        network::bring_up(nic, spec.config.link_mbit)?;
    }
    let local = if spec.network { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
    let listener = TcpListener::bind((local, 0)).context("cannot listen for the previous rank")?;
    let port = listener.local_addr().context("cannot ask for the port")?.port();
    supervisor.send(&FromRank::Listening(port))?;

    let ToRank::Connect(next) = supervisor.receive()? else {
        bail!("the supervisor did not send the address of the next rank")
    };
    let ranks = spec.config.ranks;
    let ring = if ranks > 1 {
        let next = TcpStream::connect(next)
            .with_context(|| format!("cannot connect to the next rank at {next}"))?;
        let (previous, _) = listener.accept().context("cannot accept the previous rank")?;
        Some(Ring::new(spec.rank, ranks, next, previous)?)
    } else {
        None
    };
    let mut worker = Worker::new(&spec, ring)?;
    supervisor.send(&FromRank::Ready)?;

    let ToRank::Go = supervisor.receive()? else { bail!("the supervisor did not start the steps") };
    let steps = worker.work();
    worker.csv.flush()?;
    supervisor.send(&FromRank::Done(steps?))
}

struct Supervisor<L> {
    lines: L,
}

impl<L: Iterator<Item = std::io::Result<String>>> Supervisor<L> {
    fn send(&mut self, message: &FromRank) -> Result<()> {
        let line = serde_json::to_string(message).context("cannot send to the supervisor")?;
        println!("{line}");
        Ok(())
    }

    fn receive(&mut self) -> Result<ToRank> {
        let line = self.lines.next().context("the supervisor has ended")?;
        let line = line.context("cannot receive from the supervisor")?;
        serde_json::from_str(&line).context("cannot parse a message of the supervisor")
    }
}

/// Everything that a step needs.
struct Worker {
    rank: u32,
    config: Config,
    control: sys::Shared<Control>,
    gpuwhy: Producer,
    dataset: File,
    checkpoint: PathBuf,
    device: Device,
    ring: Option<Ring>,
    random: Random,
    batch: Vec<u8>,
    gradients: Vec<f32>,
    parameters: Vec<f32>,
    /// Uses the checksum, so that the compiler does not drop its computation.
    digest: u64,
    clock_reported: u64,
    csv: Csv,
}

/// Size of a sample, about that of a photograph, bytes.
const SAMPLE: usize = 32 << 10;

/// Names of the kernels of one pass, in turn.
const KERNELS: [&str; 4] = ["embed_fwd", "gemm_fwd", "gemm_bwd", "norm_bwd"];

impl Worker {
    fn new(spec: &Spec, ring: Option<Ring>) -> Result<Worker> {
        let config = spec.config.clone();
        let control = Control::open(&spec.control)?;
        let gpuwhy = match &config.ring {
            Some(path) => {
                let path = path.to_string_lossy().replace("{rank}", &spec.rank.to_string());
                Producer::open(&path).with_context(|| format!("cannot open the ring `{path}`"))?
            }
            None => Producer::from_env(),
        };
        let dataset = File::open(&spec.dataset)
            .with_context(|| format!("cannot open the data set `{}`", spec.dataset.display()))?;
        let mut batch = vec![0; config.batch_bytes as usize];
        if spec.rank == 0 {
            // Warms the page cache, charged to the memory cgroup of the workload.
            let mut offset = 0;
            while let Ok(n @ 1..) = dataset.read_at(&mut batch, offset) {
                offset += n as u64;
            }
        }
        if let Some(cpu) = spec.cpu {
            sys::pin(cpu).with_context(|| format!("cannot pin to CPU {cpu}"))?;
        }
        sys::set_exact_timers();
        let values = (config.allreduce_bytes / 4) as usize;
        Ok(Worker {
            rank: spec.rank,
            control,
            gpuwhy,
            dataset,
            checkpoint: spec.work_dir.join(format!("checkpoint-r{}", spec.rank)),
            device: Device::default(),
            ring,
            random: Random::new(spec.rank as u64 + 1),
            batch,
            gradients: vec![1.0; values],
            parameters: vec![0.0; 4096],
            digest: 0,
            clock_reported: 0,
            csv: Csv::open(config.csv.as_deref())?,
            config,
        })
    }

    /// Takes steps until the plan ends; returns how many.
    fn work(&mut self) -> Result<u64> {
        let mut seq = 0;
        while let Some(load) = self.control.plan(self.rank, seq) {
            let every = self.config.checkpoint_every;
            self.step(seq, load, every > 0 && (seq + 1) % every == 0)?;
            seq += 1;
        }
        Ok(seq)
    }

    fn step(&mut self, seq: u64, load: f64, checkpoint: bool) -> Result<()> {
        let name = if checkpoint { "step+ckpt" } else { "step" };
        let batch = scaled(self.config.batch_bytes, load, 4096);
        let gpuwhy = self.gpuwhy.clone();
        let start = sys::now();
        let step = gpuwhy.step(name).seq(seq).size(batch as i64).rank(self.rank).open();
        {
            let _phase = step.phase("load");
            self.load(batch as usize)?;
        }
        let launched = {
            let _phase = step.phase("launch");
            self.launch(load)
        };
        {
            let _phase = step.phase("sync");
            sys::sleep_until(self.device.idle_at());
        }
        self.report_kernels(&launched);
        if self.ring.is_some() {
            let _phase = step.phase("allreduce");
            self.reduce(load)?;
        }
        {
            let _phase = step.phase("update");
            self.update(load);
        }
        if checkpoint {
            let _phase = step.phase("checkpoint");
            self.save()?;
        }
        step.end();
        let end = sys::now();
        self.csv.row(self.rank, seq, name, start, end, batch)?;
        self.report_clock(end);
        Ok(())
    }

    /// Reads a batch of samples from pseudo-random offsets, as shuffled data sets are read, and
    /// processes every byte.
    fn load(&mut self, bytes: usize) -> Result<()> {
        self.batch.resize(bytes, 0);
        for sample in self.batch.chunks_mut(SAMPLE) {
            let pages = self.config.dataset_bytes.saturating_sub(sample.len() as u64) / 4096;
            let offset = self.random.next_u64() % (pages + 1) * 4096;
            self.dataset
                .read_exact_at(sample, offset)
                .context("cannot read a sample from the data set")?;
        }
        let waste = if self.rank == 0 { self.control.waste() } else { 1.0 };
        let rounds = (f64::from(self.config.decode_rounds) * waste).round() as u32;
        for _ in 0..rounds {
            self.digest = checksum(&self.batch, self.digest);
        }
        Ok(())
    }

    fn launch(&mut self, load: f64) -> Vec<(&'static str, super::device::Kernel)> {
        let rate = self.control.clock();
        let work = (self.config.kernel_us as f64 * 1000.0 * load) as u64;
        let gpuwhy = self.gpuwhy.clone();
        let stream = gpuwhy.stream(0, 7);
        (0..self.config.kernels as usize)
            .map(|i| {
                let name = KERNELS[i % KERNELS.len()];
                let kernel = self.device.launch(sys::now(), work, rate);
                stream.launch(name, kernel.correlation, kernel.launched, sys::now());
                (name, kernel)
            })
            .collect()
    }

    /// Reports kernels after they have ended, as a profiler does.
    fn report_kernels(&self, kernels: &[(&'static str, super::device::Kernel)]) {
        let stream = self.gpuwhy.stream(0, 7);
        for (name, kernel) in kernels {
            stream.kernel(*name, kernel.correlation, kernel.start, kernel.end);
        }
    }

    fn reduce(&mut self, load: f64) -> Result<()> {
        let values = scaled(self.config.allreduce_bytes, load, 4) as usize / 4;
        self.gradients.resize(values, 1.0);
        let Some(ring) = &mut self.ring else { return Ok(()) };
        ring.sum(&mut self.gradients)?;
        // The mean, to keep the numbers small.
        let scale = 1.0 / self.config.ranks as f32;
        self.gradients.iter_mut().for_each(|g| *g *= scale);
        Ok(())
    }

    /// Updates the shared parameters under the lock of the ranks, then runs the optimizer's kernel.
    fn update(&mut self, load: f64) {
        {
            let _held = self.control.lock();
            for (p, g) in self.parameters.iter_mut().zip(&self.gradients) {
                *p = *p * 0.999 + *g * 0.001;
            }
            let updates = &self.control.updates;
            updates.store(updates.load(Relaxed) + 1, Relaxed);
        }
        let work = (self.config.kernel_us as f64 * 500.0 * load) as u64;
        let kernel = self.device.launch(sys::now(), work, self.control.clock());
        let stream = self.gpuwhy.stream(0, 7);
        stream.launch("adam", kernel.correlation, kernel.launched, sys::now());
        sys::sleep_until(self.device.idle_at());
        stream.kernel("adam", kernel.correlation, kernel.start, kernel.end);
    }

    /// Writes a checkpoint as training programs do: into a temporary file, fsync, rename.
    fn save(&mut self) -> Result<()> {
        let failed = || format!("cannot write the checkpoint `{}`", self.checkpoint.display());
        let mut bytes = vec![0; self.config.checkpoint_bytes as usize];
        sys::fill(&mut bytes, self.random.next_u64());
        let unfinished = self.checkpoint.with_extension("tmp");
        let mut file = File::create(&unfinished).with_context(failed)?;
        file.write_all(&bytes).with_context(failed)?;
        file.sync_all().with_context(failed)?;
        std::fs::rename(&unfinished, &self.checkpoint).with_context(failed)
    }

    /// Reports the device's clock 10 times a second, at the rate at which NVML is sampled.
    fn report_clock(&mut self, now: u64) {
        if now.saturating_sub(self.clock_reported) >= 100_000_000 {
            self.clock_reported = now;
            let mhz = (Device::MHZ * self.control.clock()).round();
            self.gpuwhy.counter("sm_clock", "MHz", Some(0), mhz);
        }
    }
}

fn scaled(bytes: u64, load: f64, multiple: u64) -> u64 {
    ((bytes as f64 * load) as u64).next_multiple_of(multiple).max(multiple)
}

/// FNV-1a over words of four bytes; each step depends on the one before, as in decoding.
fn checksum(bytes: &[u8], seed: u64) -> u64 {
    bytes.chunks_exact(4).fold(seed ^ 0xcbf2_9ce4_8422_2325, |sum, four| {
        let word = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        (sum ^ word as u64).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The ground truth of the steps, independent of any recorder. All ranks append whole lines to one
/// file.
struct Csv {
    file: Option<File>,
    pending: String,
}

impl Csv {
    fn open(path: Option<&Path>) -> Result<Csv> {
        let file = path
            .map(|path| {
                File::options()
                    .append(true)
                    .open(path)
                    .with_context(|| format!("cannot open `{}`", path.display()))
            })
            .transpose()?;
        Ok(Csv { file, pending: String::new() })
    }

    fn row(
        &mut self,
        rank: u32,
        seq: u64,
        name: &str,
        start: u64,
        end: u64,
        size: u64,
    ) -> Result<()> {
        use std::fmt::Write;
        if self.file.is_some() {
            let _ = writeln!(self.pending, "{rank},{seq},{name},{start},{end},{size}");
        }
        if self.pending.len() > 16 << 10 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(self.pending.as_bytes()).context("cannot write the steps")?;
            self.pending.clear();
        }
        Ok(())
    }
}

/// The address at which a rank reaches the next one.
pub(crate) fn address(nics: &[Nic], rank: u32, ranks: u32, port: u16) -> SocketAddr {
    let next = (rank + 1) % ranks.max(1);
    let ip = nics
        .iter()
        .find(|nic| nic.rank == rank && nic.peer == next)
        .map_or(Ipv4Addr::LOCALHOST, |nic| nic.peer_address);
    SocketAddr::new(IpAddr::V4(ip), port)
}
