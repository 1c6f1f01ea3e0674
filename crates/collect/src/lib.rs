//! Live sources of one host: eBPF probes, /proc and cgroups, NVML, marked steps.
//!
//! A [`Recorder`] starts every probe that the host offers, and each probe turns what it reads into
//! rows of [`gpuwhy_schema`]. A probe that cannot run says so in its `source` row, with what would
//! change that, and the recording goes on with the others.
//!
//! *Kernel side.* Probes are tracepoints (`tp_btf`) and uprobe multi links only: they need
//! CAP_BPF and CAP_PERFMON, neither tracefs nor kprobes, and so work on locked-down kernels. Exact
//! events of threads of interest go through one ring that is drained every tick without wakeups;
//! everything else is summed in the kernel, in pages that user space maps and reads without a
//! system call. The ring, every map and every queue is bounded; what does not fit is counted.
//!
//! *One file, one probe*: `run_queue.bpf.c` beside `run_queue.rs`. *Invariants:* this crate knows
//! no file format; unsafe code lives in `kernel` alone.

mod attribution;
mod block_io;
mod book;
mod cgroup;
mod cgroup_path;
mod context;
mod delta;
mod doors;
pub mod host;
mod interrupts;
mod kernel;
mod memory;
mod nccl_calls;
mod nccl_ras;
mod nest;
mod network;
mod nvml;
mod psi;
mod recorder;
mod run_queue;
mod self_cost;
mod stacks;
mod steal;
mod steps;
mod sums;
mod wire_source;

pub use attribution::Attribution;
pub use context::{CollectError, Context, OpenStep, Probe, Start, now};
pub use doors::DoorConfig;
pub use kernel::{GivingWay, cpu_time, give_back_memory, give_way, nice, signal, thread_time};
pub use nccl_ras::RasAt;
pub(crate) use recorder::story;
pub use recorder::{BadStep, Config, Recorder, Shed, Status, Target, UprobeStep};
