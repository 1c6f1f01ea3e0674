//! Live sources of one host: eBPF probes, /proc and cgroups, NVML, marked steps.
//!
//! A [`Recorder`] starts every probe that the host can run, and each probe turns what it reads into
//! rows of [`gpuwhy_schema`]. A probe that cannot run says so in its `source` row, with what would
//! change that, and the recording goes on with the others.
//!
//! *Kernel side.* Probes are tracepoints (`tp_btf`) and uprobe multi links only: they need
//! CAP_BPF and CAP_PERFMON, neither tracefs nor kprobes, and so work on locked-down kernels; `kernel_events` alone
//! reads tracefs, as it takes tracepoints of any kind. Exact
//! events of threads of interest go through one ring that is drained every tick without wakeups;
//! everything else is summed in the kernel, in pages that user space maps and reads without a
//! system call. The ring, every map and every queue is bounded; what does not fit is counted.
//!
//! *A probe is a pair of files*: `probes/run_queue.bpf.c` beside `probes/run_queue.rs`; it describes
//! itself in its `PROBE`, and `probes.rs` lists all of them. *Invariants:* this crate knows no file
//! format of traces; unsafe code is only in `bpf` and `sys`, the two folders that make system calls.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attribution;
mod between_probes;
mod bpf;
mod cgroup_path;
mod config;
mod context;
mod delta_counter;
mod elf;
mod error;
mod event_pattern;
mod event_rows;
mod every;
#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod guest;
pub mod host;
mod polled_files;
mod probe;
mod probes;
mod procfs;
mod python;
mod quota;
mod recorder;
mod ring_writers;
mod rounds;
mod shed;
mod span_nesting;
mod status;
mod sys;
mod thread_tracks;

pub use bpf::SharedArray;
pub use config::{
    Config, InvalidStep, Metrics, RasAddress, SocketConfig, Target, UprobeStep, WIRE_RING_SLOTS,
};
pub use error::CollectError;
pub use event_pattern::EventPattern;
pub use gpuwhy_wire::Settings;
pub use probe::OpenStep;
pub use probes::engine_metrics::Latency;
pub use probes::kernel_events::GPU_EVENTS;
pub use procfs::virtual_machines;
pub use recorder::Recorder;
pub use shed::Shed;
pub use status::Status;
pub use sys::{
    IdlePriority, cpu_time, hurry, idle_priority, inherited, nice, now, release_free_memory,
    set_ignored, signal, sigpipe_was_ignored, thread_time,
};
