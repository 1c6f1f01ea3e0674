//! A workload of steps on a GPU, and one that competes with it: ordinary clients of `libcuda`, for
//! the scripted device of the stand-in.
//!
//! A step reads and prepares a batch on the CPU (about 1 ms), copies it to the device from pinned
//! memory, launches kernels or replays them as a graph, waits, and copies a result back. Steps and
//! phases are marked in the ring that `GPUWHY_RING` names, as a program that uses `gpuwhy-wire`
//! marks them; the driver loads what `CUDA_INJECTION64_PATH` names.
//!
//! Like ranks and injectors they are processes of their own, this program started again
//! ([`helper`](crate::helper)), named `gpuloop` and `gpuhog`.

use anyhow::Result;
use gpuwhy_wire::Producer;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cuda::Gpu;
use crate::gpu::Environment;
use crate::helper::{Deadline, HelperProcess, print_json};
use crate::sys;

/// How many bytes of a batch are prepared on the CPU; the rest is copied as it is.
const PREPARED: usize = 4 << 20;
/// Bytes of a result that is copied back.
const RESULT: usize = 256 << 10;

/// Names of a step's kernels, in turn, as compilers generate them: mangled C++, templates, and one
/// of a library that does not mangle.
pub const KERNELS: [&str; 4] = [
    "_ZN7gpuloop4gemmEPKfS1_Pfiii",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas",
    "_ZN7gpuloop7softmaxEPfi",
];

/// The kernel of the competitor.
pub const HOG_KERNEL: &str = "_ZN6gpuhog4burnEPfi";

/// What the workload does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Seconds to run; until SIGTERM if absent.
    pub seconds: Option<f64>,
    /// The rank that its steps are marked with.
    pub rank: u32,
    /// Kernels per step.
    pub kernels: u32,
    /// How long each takes at the nominal clock, µs.
    pub kernel_us: u64,
    /// Size of a batch, which is copied to the device, MiB.
    pub batch_mib: u32,
    /// Whether three of four steps launch their kernels as a graph.
    pub graph: bool,
    /// Whether it marks no steps.
    #[serde(default)]
    pub unmarked: bool,
    /// CUDA's ordinal of the device.
    pub device: u32,
    /// Where it finds the machine and the libraries.
    #[serde(default)]
    pub environment: Environment,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seconds: None,
            rank: 0,
            kernels: 8,
            kernel_us: 400,
            batch_mib: 4,
            graph: false,
            unmarked: false,
            device: 0,
            environment: Environment::default(),
        }
    }
}

/// What the workload did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Steps taken.
    pub steps: u64,
    /// Their mean length, ms.
    pub mean_ms: f64,
    /// The process that took them.
    pub pid: i32,
    /// Its rank.
    pub rank: u32,
    /// The first step's begin, CLOCK_MONOTONIC ns.
    pub from_ns: u64,
    /// The last step's end.
    pub to_ns: u64,
    /// Kernels launched, those of graphs too.
    pub launches: u64,
    /// CPU time of the thread that took the steps, ns.
    pub thread_cpu_ns: u64,
    /// The part of it in the phases that launch, copy and wait: the cost of the driver's calls, ns.
    pub driver_cpu_ns: u64,
    /// CPU time of the whole process in these steps, ns.
    pub process_cpu_ns: u64,
}

/// Starts the workload. It ends with the calling thread.
///
/// # Errors
/// If the process cannot be started.
pub fn start(config: &Config) -> Result<HelperProcess<Summary>> {
    HelperProcess::start("gpuloop", config, &config.environment)
}

/// Runs the workload in this process.
pub(crate) fn run(config: Config) -> Result<()> {
    sys::set_comm("gpuloop");
    sys::set_exact_timers();
    // Before the driver starts threads, so that they have the signals blocked.
    let end = Deadline::new(config.seconds)?;
    let gpuwhy = if config.unmarked { Producer::default() } else { Producer::from_env() };
    let gpu = Gpu::open(config.device)?;
    let kernels = KERNELS.iter().map(|name| gpu.kernel(name)).collect::<Result<Vec<_>>>()?;
    let bytes = (config.batch_mib.max(1) as usize) << 20;
    let (input, output) = (gpu.memory(bytes)?, gpu.memory(RESULT)?);
    let (mut batch, mut result) = (gpu.pinned(bytes)?, gpu.pinned(RESULT)?);
    let launch = || {
        (0..config.kernels as usize)
            .try_for_each(|i| gpu.launch(kernels[i % kernels.len()], config.kernel_us * 1000))
    };
    let graph = if config.graph { Some(gpu.capture(launch)?) } else { None };

    let from_ns = sys::now();
    let (mut steps, mut spent, mut to_ns, mut driver_cpu_ns) = (0, 0, from_ns, 0);
    let (thread_from, process_from) = (sys::thread_cpu(), sys::process_cpu());
    while !end.has_passed() {
        let begun = sys::now();
        let step = gpuwhy.step("step").seq(steps).size(bytes as i64).rank(config.rank).open();
        {
            let _phase = step.phase("load");
            let prepared = bytes.min(PREPARED);
            sys::fill(&mut batch.as_mut()[..prepared], steps + 1);
        }
        let calls = sys::thread_cpu();
        {
            let _phase = step.phase("h2d");
            gpu.send(&batch, input)?;
        }
        {
            let _phase = step.phase("launch");
            match graph {
                Some(graph) if steps % 4 != 3 => gpu.launch_graph(graph)?,
                _ => launch()?,
            }
        }
        {
            let _phase = step.phase("sync");
            gpu.synchronize()?;
        }
        {
            let _phase = step.phase("d2h");
            gpu.receive(output, &mut result)?;
            gpu.synchronize()?;
        }
        driver_cpu_ns += sys::thread_cpu() - calls;
        step.end();
        to_ns = sys::now();
        spent += to_ns - begun;
        steps += 1;
    }
    let mean_ms = spent as f64 / steps.max(1) as f64 / 1e6;
    let pid = std::process::id() as i32;
    print_json(&Summary {
        steps,
        mean_ms,
        pid,
        rank: config.rank,
        from_ns,
        to_ns,
        launches: steps * u64::from(config.kernels),
        thread_cpu_ns: sys::thread_cpu() - thread_from,
        driver_cpu_ns,
        process_cpu_ns: sys::process_cpu() - process_from,
    });
    Ok(())
}

/// What the competitor does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hog {
    /// Seconds to run; until SIGTERM if absent.
    pub seconds: Option<f64>,
    /// How long each of its kernels takes at the nominal clock, µs.
    pub kernel_us: u64,
    /// CUDA's ordinal of the device.
    pub device: u32,
    /// Where it finds the machine and the libraries.
    #[serde(default)]
    pub environment: Environment,
}

impl Default for Hog {
    fn default() -> Hog {
        Hog { seconds: None, kernel_us: 5000, device: 0, environment: Environment::default() }
    }
}

/// The truth about a disturbance of a GPU. Times are CLOCK_MONOTONIC ns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// What was done.
    pub kind: String,
    /// The class that a verdict should give, as the schema names it; `None` where no step should be
    /// slower.
    pub class: Option<String>,
    /// When it began.
    pub from_ns: u64,
    /// When it ended.
    pub to_ns: u64,
    /// The process to blame, if a process is.
    pub pid: Option<i32>,
    /// Index in the machine of the GPU that it happened to; `None` if it happened to CUPTI.
    pub gpu: Option<u32>,
}

/// Starts the competitor. It ends with the calling thread.
///
/// # Errors
/// If the process cannot be started.
pub fn start_hog(hog: &Hog) -> Result<HelperProcess<Label>> {
    HelperProcess::start("gpuhog", hog, &hog.environment)
}

/// Runs the competitor in this process: it always has two kernels in its queue.
pub(crate) fn run_hog(hog: Hog) -> Result<()> {
    sys::set_comm("gpuhog");
    sys::set_exact_timers();
    let end = Deadline::new(hog.seconds)?;
    let gpu = Gpu::open(hog.device)?;
    let kernel = gpu.kernel(HOG_KERNEL)?;
    let from_ns = sys::now();
    // The parent may wait for its beginning.
    print_json(&json!({ "from_ns": from_ns }));
    while !end.has_passed() {
        for _ in 0..2 {
            gpu.launch(kernel, hog.kernel_us * 1000)?;
        }
        gpu.synchronize()?;
    }
    print_json(&Label {
        kind: "gpuhog".into(),
        class: Some("gpu_contention".into()),
        from_ns,
        to_ns: sys::now(),
        pid: Some(std::process::id() as i32),
        gpu: Some(hog.device),
    });
    Ok(())
}
