//! The kinds of sources that gpuwhy's own recorder writes: the contract between those who record
//! and those who judge, as [`crate::names`] is for tracks.
//!
//! A source row carries its kind. Where a source lost events or did not run, a judgement asks here
//! which causes it would have been evidence for. Sources of other kinds are free to be in a trace.

use crate::{Class, Source};

/// `source.tool` of what gpuwhy's own recorder writes. Sources of other tools were imported.
pub const RECORDER: &str = "gpuwhy";

/// How the part of an imported source's note begins that names what is not imported at all. What stands
/// before it says why rows were lost.
pub const NOT_IMPORTED: &str = "not imported: ";

impl Source {
    /// The value of one of the `key=value` words of its `config`.
    pub fn word(&self, key: &str) -> Option<&str> {
        let mut words = self.config.split(' ');
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}

/// A kind of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceKind {
    /// As in `source.kind`.
    pub kind: &'static str,
    /// The classes that its rows are evidence for; empty if they are evidence for all.
    pub evidence_for: &'static [Class],
}

/// Declares each kind once: as a constant, and in [`ALL`].
macro_rules! sources {
    ($($(#[doc = $doc:literal])+ $name:ident = $kind:literal [$($class:ident),*],)+) => {
        $(
            $(#[doc = $doc])+
            pub const $name: SourceKind =
                SourceKind { kind: $kind, evidence_for: &[$(Class::$class),*] };
        )+

        /// Every kind.
        pub const ALL: &[SourceKind] = &[$($name),+];
    };
}

sources! {
    /// Interrupt time, by BPF.
    INTERRUPTS = "bpf:interrupts" [Interrupts],
    /// Thread states, by BPF.
    RUN_QUEUE = "bpf:run_queue" [],
    /// Calls of functions that the user named as steps, by BPF.
    STEPS = "bpf:steps" [],
    /// Steps that programs mark themselves.
    WIRE = "wire" [],
    /// Device work and collectives, by libraries inside processes.
    INJECT = "inject" [GpuThrottling, GpuContention, Pcie, GpuFault, CollectiveStraggler],
    /// What the recording costs.
    SELF_COST = "self" [],
    /// Disk requests, by BPF.
    BLOCK_IO = "bpf:block_io" [BlockIo, MemoryPressure],
    /// Network devices and messages, by BPF.
    NETWORK = "bpf:network" [Network],
    /// TCP retransmissions, by BPF.
    TCP = "bpf:tcp" [Network],
    /// Reclaim, faults and the page cache, by BPF.
    MEMORY = "bpf:memory" [MemoryPressure],
    /// Who holds the locks of files that are asked for again and again, by BPF.
    FILE_LOCKS = "bpf:file_locks" [],
    /// Stack samples, by BPF.
    STACKS = "bpf:stacks" [],
    /// Pressure stall information.
    PSI = "proc:psi" [],
    /// Time taken by the hypervisor.
    STEAL = "proc:steal" [],
    /// Quotas and limits of cgroups.
    CGROUP = "proc:cgroup" [],
    /// Settings of the host and of recorded processes.
    SETTINGS = "proc:settings" [],
    /// Readings and events of NVIDIA GPUs.
    NVML = "nvml" [GpuThrottling, GpuContention, Pcie, GpuFault],
    /// Calls of NCCL as seen from outside, by BPF.
    NCCL_CALLS = "bpf:nccl_calls" [],
    /// Pauses of Python's garbage collector, by BPF.
    PYTHON_GC = "bpf:python_gc" [GcPause],
    /// Where the interpreters of Python programs have their lock and their stacks.
    PYTHON = "proc:python" [GilContention],
    /// What engines of language models count of themselves.
    ENGINE_METRICS = "engine_metrics" [],
    /// Statements of NCCL's RAS.
    NCCL_RAS = "nccl_ras" [],
    /// Tracepoints of GPU drivers and others that the user named, by BPF.
    KERNEL_EVENTS = "bpf:kernel_events" [],
    /// What drivers of GPUs count of each of their clients.
    DRM_CLIENTS = "drm_clients" [],
    /// What virtual functions of Intel GPUs had of their engines.
    XE_PMU = "xe_pmu" [],
    /// Context switches of NVIDIA GPUs.
    GPU_SWITCHES = "gpu_switches" [GpuContention],
    /// What virtual functions of AMD GPUs had of them.
    AMD_FUNCTIONS = "amd_functions" [],
    /// What HAMi's library lets the processes of containers have of a GPU.
    HAMI = "hami" [],
}

/// Whether any class rests on a source of this kind: that one saw less than all speaks against no verdict otherwise.
pub fn is_evidence(kind: &str) -> bool {
    let others = [ENGINE_METRICS, KERNEL_EVENTS, DRM_CLIENTS, XE_PMU, AMD_FUNCTIONS, HAMI];
    others.iter().all(|source| source.kind != kind)
}

/// The classes that a source of this kind is evidence for; empty if it is evidence for all, or if the
/// kind is not known.
pub fn evidence_for(kind: &str) -> &'static [Class] {
    ALL.iter().find(|source| source.kind == kind).map_or(&[], |source| source.evidence_for)
}
