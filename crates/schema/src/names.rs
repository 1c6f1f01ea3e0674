//! The names of well-known tracks: the contract between those who record and those who judge.
//!
//! A track is known by its name and by the kind of entity that it belongs to. Sources are free to
//! add tracks of other names; analyses look for these.

/// State track of a thread (sparse): its [`crate::ThreadState`].
pub const THREAD_STATE: &str = "thread_state";
/// State track of a CPU (sparse): the entity id of the thread that occupied it, 0 for the idle
/// task. Recorded only while a thread of interest waited for that CPU.
pub const OCCUPANT: &str = "occupant";
/// Mark track of a thread: it was woken; detail `wakeup`.
pub const WAKEUPS: &str = "wakeups";
/// Mark track of a thread: it sent to or received from a stream socket; detail `message`.
pub const MESSAGES: &str = "messages";
/// Mark track of a thread or process: a signal was sent to it; the mark's name is the signal,
/// its value the pid of the sender.
pub const SIGNALS: &str = "signals";
/// Span track of a thread (nested): `direct_reclaim`, `memcg_reclaim`, `compaction`,
/// `major_fault`.
pub const MEMORY: &str = "memory";
/// Span track of a disk (overlap): block requests from insertion to completion; detail `io`.
pub const IO: &str = "io";
/// Span track of a thread (nested): steps with detail `step`, and their phases as children.
pub const STEPS: &str = "steps";
/// Mark track of a thread: calls that launched device work; links `launch` lead to the kernels.
pub const LAUNCHES: &str = "launches";
/// Span track of a stream (serial): kernels and copies; details `kernel` and `copy`.
pub const STREAM: &str = "stream";

/// Span track of a thread (nested): calls of the CUDA runtime and driver; detail `call`.
pub const CUDA_CALLS: &str = "cuda_calls";
/// Span track of a thread (nested): calls of the operating system's libraries.
pub const OS_CALLS: &str = "os_calls";
/// Span track of a thread (nested): calls of MPI.
pub const MPI_CALLS: &str = "mpi_calls";
/// Span track of a thread (nested): NVTX ranges that are pushed and popped. Those of a domain lie
/// on a track with its name behind a point, `nvtx.NCCL`; the same goes for the next two.
pub const NVTX: &str = "nvtx";
/// Span track of a process (overlap): NVTX ranges that may end on another thread.
pub const NVTX_RANGES: &str = "nvtx_ranges";
/// Mark track of a thread: NVTX marks.
pub const NVTX_MARKS: &str = "nvtx_marks";
/// Span track of a thread (nested): operators of a framework, `aten::mm`.
pub const OPERATORS: &str = "operators";
/// Span track of a thread (nested): functions of Python.
pub const PYTHON: &str = "python";
/// Span track of a thread (nested): ranges that a framework's user named.
pub const ANNOTATIONS: &str = "annotations";
/// Span track of a stream (overlap): the device work within such a range.
pub const GPU_ANNOTATIONS: &str = "gpu_annotations";
/// Mark track of a thread: points that a profiler noted.
pub const MARKS: &str = "marks";
/// Span track of a thread (nested): calls of a library that tells them by itself, `ncclAllReduce`.
pub const LIBRARY_CALLS: &str = "library_calls";
/// Span track of a rank (overlap): its collectives and messages; detail `collective`.
pub const COLLECTIVES: &str = "collectives";
/// Span track of a rank (overlap), under the one before: what collectives are made of:
/// `initial_sync`, `compute`, `final_sync`, waits of the network's threads.
pub const COLLECTIVE_STAGES: &str = "collective_stages";
/// Mark track of a process: what a library in it has to say about what it can see.
pub const NOTICES: &str = "notices";
/// Span track of a process (overlap): waits for events, streams and contexts of its GPUs.
pub const SYNCHRONIZATION: &str = "synchronization";
/// Span track of a thread (nested): what the profiler itself took.
pub const PROFILER_OVERHEAD: &str = "profiler_overhead";
/// Mark track of a process: page faults of unified memory on a CPU.
pub const CPU_PAGE_FAULTS: &str = "cpu_page_faults";
/// Span track of a process (overlap): page faults of unified memory on a GPU.
pub const GPU_PAGE_FAULTS: &str = "gpu_page_faults";

/// Counter track of a CPU (delta, ns): time taken by the hypervisor.
pub const STEAL: &str = "steal";
/// Counter track of a CPU (delta, ns): time in interrupt handlers.
pub const HARDIRQ: &str = "hardirq";
/// Prefix of counter tracks of a CPU (delta, ns): time in a softirq vector, `softirq.NET_RX`.
pub const SOFTIRQ_PREFIX: &str = "softirq.";
/// Counter track of the host (delta, ns): time that all threads together waited for a CPU.
pub const RUNQ_WAIT: &str = "runq_wait";
/// Counter track of the host (delta, 1): context switches.
pub const SWITCHES: &str = "switches";

/// Counter track of a cgroup (delta, ns): time that it was out of quota.
pub const THROTTLED: &str = "throttled";
/// Prefix of counter tracks of the host or a cgroup (total, us): pressure stall information,
/// `psi.cpu.some`, `psi.io.full`.
pub const PSI_PREFIX: &str = "psi.";

/// Counter track of a NIC (delta, By): bytes queued for sending. Tracks of the same name that
/// belong to a process have this track as parent and say how much of it is theirs.
pub const NIC_TX_BYTES: &str = "nic_tx_bytes";
/// Counter track of a NIC (gauge, 1): packets in its queueing discipline, the most of the tick.
pub const NIC_QUEUE: &str = "nic_queue";
/// Counter track of a NIC (delta, ns): time that packets spent in its queueing discipline, summed.
pub const NIC_QUEUE_DELAY: &str = "nic_queue_delay";
/// Counter track of a NIC (delta, 1): packets dropped.
pub const NIC_DROPS: &str = "nic_drops";
/// Counter track of the host (delta, 1): TCP segments sent again.
pub const TCP_RETRANSMITS: &str = "tcp_retransmits";

/// Counter track of a process (delta, 1): pages it took out of the page cache.
pub const PAGE_CACHE_EVICTED: &str = "page_cache_evicted";
/// Counter track of a process (delta, ns): time it spent freeing memory.
pub const RECLAIM: &str = "reclaim";
/// Counter track of a disk (delta, By): bytes completed. Tracks of the same name that belong to
/// a process have this track as parent and say how much of it is theirs.
pub const DISK_BYTES: &str = "disk_bytes";
/// Counter track of a disk (delta, ns): time that its requests were with the device, summed.
pub const DISK_TIME: &str = "disk_time";

/// Counter track of a GPU (gauge, MHz): the clock of its multiprocessors.
pub const SM_CLOCK: &str = "sm_clock";

/// Counter track of a host (delta, ns): run time of the recorder's own BPF programs.
pub const SELF_BPF: &str = "self.bpf";
/// Counter track of a host (delta, ns): CPU time of the recorder itself.
pub const SELF_CPU: &str = "self.cpu";
/// Counter track of a host (gauge, By): resident memory of the recorder itself.
pub const SELF_RSS: &str = "self.rss";

/// Span track of a host: what was slower than it should have been, one span a finding.
pub const FINDINGS: &str = "findings";
/// Sample track of a thread (ns, or 1 where a sample's share of time is not known): where it was when
/// a timer interrupted it on its CPU.
pub const CPU_SAMPLES: &str = "cpu_samples";
