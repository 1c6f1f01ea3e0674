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
/// The name of steps that stand in for marked ones where a thread waits for work, does it, and waits again: from the end
/// of one such wait to the next. How much work that is, nobody knows.
pub const BUSY_PERIOD: &str = "busy period";
/// The name of steps that stand in for marked ones where a thread computes and does not wait: each is so much of its
/// running, with all that others took from it meanwhile.
pub const QUANTUM: &str = "10 ms of CPU time";
/// Span track of a process (overlap): requests that it serves; detail `request`.
pub const REQUESTS: &str = "requests";
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
/// Mark of a thread: it runs a virtual CPU of KVM, whose number is the value.
pub const KVM_VCPU: &str = "kvm_vcpu";
/// Span track of a thread (nested): calls that a library reports itself, such as `ncclAllReduce`.
pub const LIBRARY_CALLS: &str = "library_calls";
/// Span track of a thread (nested): calls of NCCL as seen from outside, `ncclAllReduce`: what enqueues
/// a collective, not the collective; detail `collective` where its communicator was seen to be made.
pub const NCCL_CALLS: &str = "nccl_calls";
/// Span track of a thread (nested): pauses of a run time, such as `gc` of its garbage collector.
pub const RUNTIME_PAUSES: &str = "runtime_pauses";
/// State track of a thread: from a try for a lock of a file that was in vain to the next one, the entity id of the
/// holder's main thread.
pub const FILE_LOCK_HOLDER: &str = "file_lock_holder";
/// Mark track of a host: what NCCL's own RAS says of the jobs here, `behind in AllReduce`; the value is
/// the rank.
pub const NCCL_RAS: &str = "nccl_ras";
/// Mark track of a host: requests to a language model that took longer than was promised, by what its engine counts:
/// `ttft over 500 ms`; the value is how many, with the attributes [`OF`], [`BOUND_NS`], [`SINCE_NS`] and [`ADDRESS`].
pub const ENGINE_METRICS: &str = "engine_metrics";
/// Attribute of a mark of [`ENGINE_METRICS`]: of how many requests, or tokens.
pub const OF: &str = "of";
/// Attribute of a mark of [`ENGINE_METRICS`]: they took longer than this, the least bound that the engine counts by and
/// that is no less than what was promised, ns.
pub const BOUND_NS: &str = "bound_ns";
/// Attribute of a mark of [`ENGINE_METRICS`]: since when these were counted, ns on the trace clock.
pub const SINCE_NS: &str = "since_ns";
/// Attribute of a mark of [`ENGINE_METRICS`]: where the engine was asked.
pub const ADDRESS: &str = "address";
/// Gauge of a host: requests that an engine serves, by its own account.
pub const REQUESTS_RUNNING: &str = "requests_running";
/// Gauge of a host: requests that wait for an engine, by its own account.
pub const REQUESTS_WAITING: &str = "requests_waiting";
/// Gauge of a host: share of an engine's KV cache that is in use, by its own account.
pub const KV_CACHE_USED: &str = "kv_cache_used";
/// Span track of a rank (overlap): its collectives and messages; detail `collective`.
pub const COLLECTIVES: &str = "collectives";
/// Span track of a rank (overlap), under the one before: what collectives are made of:
/// `initial_sync`, `compute`, `final_sync`, waits of the network's threads.
pub const COLLECTIVE_STAGES: &str = "collective_stages";
/// Mark track of a process: what a library in it has to say about what it can see.
pub const NOTICES: &str = "notices";
/// Span track of a process (overlap): waits for events, streams and contexts of its GPUs; attributes
/// [`ON_GPU`], [`CUDA_STREAM`], [`CUDA_EVENT`] and [`CORRELATION`], where the source says them.
pub const SYNCHRONIZATION: &str = "synchronization";
/// Span track of a thread (nested): what the profiler itself took.
pub const PROFILER_OVERHEAD: &str = "profiler_overhead";
/// Mark track of a process: page faults of unified memory on a CPU.
pub const CPU_PAGE_FAULTS: &str = "cpu_page_faults";
/// Span track of a process (overlap): page faults of unified memory on a GPU; attributes
/// [`PAGE_FAULTS`] and [`ON_GPU`].
pub const GPU_PAGE_FAULTS: &str = "gpu_page_faults";
/// Attribute of a copy of kind `managed`: why it moved, a word of `Migration`.
pub const MIGRATION_CAUSE: &str = "migration_cause";
/// Attribute of a span of page faults: how many there were.
pub const PAGE_FAULTS: &str = "page_faults";
/// Attribute of a span: the GPU that it is about, by its entity's id.
pub const ON_GPU: &str = "gpu";
/// Attribute of a wait: the stream that waits or is waited for, by its number within its context.
pub const CUDA_STREAM: &str = "cuda_stream";
/// Attribute of a wait: the event that is waited for, by its number.
pub const CUDA_EVENT: &str = "cuda_event";
/// Attribute of a wait: the correlation id of the call that waits, unique within its process.
pub const CORRELATION: &str = "correlation";

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
/// Counter track of a network device (delta, 1): how often it lost its carrier: a cable, the other end, or somebody took it
/// down (`carrier_down_count` of sysfs).
pub const NIC_CARRIER_DOWNS: &str = "nic_carrier_downs";
/// Counter track of the host (delta, 1): TCP segments sent again.
pub const TCP_RETRANSMITS: &str = "tcp_retransmits";

/// Counter track of a process (delta, ns): time that its threads were on CPUs; what is less than 2 ms a thread is
/// added later.
pub const CPU_TIME: &str = "cpu_time";

/// Counter track of a process (delta, 1): pages it took out of the page cache.
pub const PAGE_CACHE_EVICTED: &str = "page_cache_evicted";
/// Counter track of a process (delta, 1): pages of data that a file had already and that were not in the page cache
/// when it needed them. Where pages of that file had been evicted and not been read again, the track of the
/// process that evicted them last is its parent; without a parent nobody was seen to evict any.
pub const PAGE_CACHE_MISSED: &str = "page_cache_missed";
/// Counter track of a process (delta, ns): time it spent freeing memory.
pub const RECLAIM: &str = "reclaim";
/// Counter track of a disk (delta, By): bytes completed. Tracks of the same name that belong to
/// a process have this track as parent and say how much of it is theirs.
pub const DISK_BYTES: &str = "disk_bytes";
/// Counter track of a disk (delta, ns): time that its requests were with the device, summed.
pub const DISK_TIME: &str = "disk_time";

/// Counter track of a GPU (gauge, MHz): the clock of its multiprocessors.
pub const SM_CLOCK: &str = "sm_clock";
/// Counter track of a GPU (gauge, MHz): the highest clock that its multiprocessors can have.
pub const SM_CLOCK_MAX: &str = "sm_clock_max";
/// Counter track of a GPU (gauge, MHz): the clock of its memory.
pub const MEM_CLOCK: &str = "mem_clock";
/// Counter track of a GPU (gauge, 1): why its clock is where it is, as bits: 1 idle, 2 clocks set
/// by somebody, 4 power cap, 8 hardware slowdown, 0x10 sync boost, 0x20 thermal (driver), 0x40
/// thermal (hardware), 0x80 power brake, 0x100 display.
pub const CLOCK_EVENT_REASONS: &str = "clock_event_reasons";
/// Counter track of a GPU (total, ns): time that its clock was held down by the power cap.
pub const THROTTLED_POWER: &str = "throttled.power";
/// Counter track of a GPU (total, ns): time that its clock was held down by temperature.
pub const THROTTLED_THERMAL: &str = "throttled.thermal";
/// Counter track of a GPU (total, ns): time that its clock was held down to that of others.
pub const THROTTLED_SYNC_BOOST: &str = "throttled.sync_boost";
/// Counter track of a GPU (total, ns): time that its clock was held down by a limit of the board.
pub const THROTTLED_BOARD: &str = "throttled.board";
/// Counter track of a GPU (total, ns): time that its clock was low since there was little to do.
pub const THROTTLED_LOW_UTILIZATION: &str = "throttled.low_utilization";
/// Counter track of a GPU (total, ns): time that its clock was held down by its voltage limit.
pub const THROTTLED_RELIABILITY: &str = "throttled.reliability";
/// Counter track of a GPU (total, ns): time that the driver held its clock down to cool it.
pub const THROTTLED_SW_THERMAL: &str = "throttled.sw_thermal";
/// Counter track of a GPU (total, ns): time that the hardware held its clock down to cool it.
pub const THROTTLED_HW_THERMAL: &str = "throttled.hw_thermal";
/// Counter track of a GPU (total, ns): time in which the power supply asked it to lower its clock.
pub const THROTTLED_POWER_BRAKE: &str = "throttled.power_brake";
/// Counter track of a GPU (gauge, W): what it draws.
pub const GPU_POWER: &str = "gpu_power";
/// Counter track of a GPU (gauge, W): what it may draw.
pub const GPU_POWER_LIMIT: &str = "gpu_power_limit";
/// Counter track of a GPU (gauge, Cel): the temperature of its chip.
pub const GPU_TEMPERATURE: &str = "gpu_temperature";
/// Counter track of a GPU (gauge, Cel): the temperature of its memory.
pub const GPU_MEMORY_TEMPERATURE: &str = "gpu_memory_temperature";
/// Counter track of a GPU (gauge, %): the share of time in which any kernel ran on it.
pub const GPU_UTILIZATION: &str = "gpu_utilization";
/// Counter track of a GPU (gauge, %): the share of time in which its memory was read or written.
pub const GPU_MEMORY_UTILIZATION: &str = "gpu_memory_utilization";
/// Counter track of a GPU (gauge, By): memory that is taken.
pub const GPU_MEMORY_USED: &str = "gpu_memory_used";
/// Counter track of a GPU (gauge, By): memory that it has.
pub const GPU_MEMORY_TOTAL: &str = "gpu_memory_total";
/// Counter track of a process (gauge, %): its share of the multiprocessors of a GPU; its parent is
/// that GPU's track [`GPU_UTILIZATION`].
pub const PROCESS_SM_UTILIZATION: &str = "gpu.sm_utilization";
/// Counter track of a process (gauge, By): its memory on a GPU; its parent is that GPU's track
/// [`GPU_MEMORY_USED`].
pub const PROCESS_GPU_MEMORY: &str = "gpu.memory";
/// Counter track of a process (gauge, By): memory that HAMi's library lets the processes of its container have on a GPU; its
/// parent is that GPU's track [`GPU_MEMORY_USED`].
pub const PROCESS_GPU_MEMORY_LIMIT: &str = "gpu.memory_limit";
/// Counter track of a process (gauge, %): the share of a GPU's multiprocessors that HAMi's library lets the processes of its
/// container have now, 100 where it has no limit; its parent is that GPU's track [`GPU_UTILIZATION`].
pub const PROCESS_SM_LIMIT: &str = "gpu.sm_limit";
/// Counter track of a process (gauge, 1): 1 while HAMi's library holds its launches back for a container that goes first; its
/// parent is that GPU's track [`GPU_UTILIZATION`].
pub const PROCESS_HELD_BACK: &str = "gpu.held_back";
/// Counter track of an engine (delta, ns): time that all clients of its driver were seen to have it.
pub const ENGINE_TIME: &str = "engine_time";
/// Counter track of a process, of a software runlist of a host of NVIDIA's virtual GPUs, or of a function of a GPU that is shared
/// by SR-IOV (delta, ns): time that it had an engine
/// of a GPU; its parent is that engine's track [`ENGINE_TIME`].
pub const PROCESS_ENGINE_TIME: &str = "gpu.engine_time";
/// State track of an engine of a GPU: the process whose context has it, 0 if that is not told. It keeps the engine until another
/// one wants it, and need not work.
pub const ENGINE_OWNER: &str = "owner";
/// Mark track of a process: when it was first seen as client of a GPU's driver; the value is the client's number, which
/// tracepoints of the DRM scheduler call `client_id`.
pub const DRM_CLIENTS: &str = "drm_clients";
/// Mark track of a GPU: `xid` with its number as value, `gpu lost`, `gpu back`, errors of its
/// memory, changes of its partitions.
pub const GPU_EVENTS: &str = "events";
/// Counter track of a GPU (gauge, 1): what its driver asks for to make it sound again; 0 nothing,
/// 1 a reset, 2 a reboot, 3 to drain peers, 4 to drain and reset.
pub const GPU_RECOVERY_ACTION: &str = "gpu_recovery_action";

/// Counter track of a GPU (total, 1): packets that its PCIe link had to send again.
pub const PCIE_REPLAY: &str = "pcie.replay";
/// Counter track of a GPU (total, 1): times that the replay counter of its PCIe link ran over.
pub const PCIE_REPLAY_ROLLOVER: &str = "pcie.replay_rollover";
/// Counter track of a GPU (total, 1): times that its PCIe link left service to recover.
pub const PCIE_RECOVERY: &str = "pcie.recovery";
/// Counter track of a GPU (total, 1): errors of its PCIe link that the hardware corrected.
pub const PCIE_CORRECTABLE: &str = "pcie.correctable";
/// Counter track of a GPU (total, 1): packets that the other end of the link refused.
pub const PCIE_NAKS_RECEIVED: &str = "pcie.naks_received";
/// Counter track of a GPU (total, 1): packets that it refused.
pub const PCIE_NAKS_SENT: &str = "pcie.naks_sent";
/// Counter track of a GPU (total, 1): errors of its PCIe receiver.
pub const PCIE_RECEIVER_ERROR: &str = "pcie.receiver_error";
/// Counter track of a GPU (total, 1): broken packets of the transaction layer.
pub const PCIE_BAD_TLP: &str = "pcie.bad_tlp";
/// Counter track of a GPU (total, 1): broken packets of the link layer.
pub const PCIE_BAD_DLLP: &str = "pcie.bad_dllp";
/// Counter track of a GPU (total, 1): uncorrected errors that the link survived.
pub const PCIE_NON_FATAL: &str = "pcie.non_fatal";
/// Counter track of a GPU (total, 1): uncorrected errors that the link did not survive.
pub const PCIE_FATAL: &str = "pcie.fatal";
/// Counter track of a GPU (total, 1): requests that nobody understood.
pub const PCIE_UNSUPPORTED_REQUEST: &str = "pcie.unsupported_request";
/// Counter track of a GPU (total, 1): packets whose checksum was wrong.
pub const PCIE_LCRC_ERROR: &str = "pcie.lcrc_error";
/// Counter track of a GPU (total, 1): errors of single lanes.
pub const PCIE_LANE_ERROR: &str = "pcie.lane_error";
/// Counter track of a GPU (total, By): bytes that it sent over PCIe.
pub const PCIE_TX: &str = "pcie.tx";
/// Counter track of a GPU (total, By): bytes that it received over PCIe.
pub const PCIE_RX: &str = "pcie.rx";
/// Counter track of a GPU (gauge, By/s): what it sends over PCIe, where no total is to be had.
pub const PCIE_TX_RATE: &str = "pcie.tx_rate";
/// Counter track of a GPU (gauge, By/s): what it receives over PCIe, where no total is to be had.
pub const PCIE_RX_RATE: &str = "pcie.rx_rate";
/// Counter track of a GPU (gauge, 1): the generation that its PCIe link runs at.
pub const PCIE_LINK_GEN: &str = "pcie.link_gen";
/// Counter track of a GPU (gauge, 1): the generation that its PCIe link could run at.
pub const PCIE_LINK_GEN_MAX: &str = "pcie.link_gen_max";
/// Counter track of a GPU (gauge, 1): the lanes that its PCIe link runs on.
pub const PCIE_LINK_WIDTH: &str = "pcie.link_width";
/// Counter track of a GPU (gauge, 1): the lanes that its PCIe link could run on.
pub const PCIE_LINK_WIDTH_MAX: &str = "pcie.link_width_max";

/// Counter track of a GPU (total, By): payload that it sent over its first NVLink.
pub const NVLINK_TX: &str = "nvlink.tx";
/// Counter track of a GPU (total, By): payload that it received over its first NVLink.
pub const NVLINK_RX: &str = "nvlink.rx";
/// Counter track of a GPU (total, By): bytes with protocol that it sent over its first NVLink.
pub const NVLINK_RAW_TX: &str = "nvlink.raw_tx";
/// Counter track of a GPU (total, By): bytes with protocol that it received over its first NVLink.
pub const NVLINK_RAW_RX: &str = "nvlink.raw_rx";
/// Counter track of a GPU (total, 1): packets that NVLink had to send again.
pub const NVLINK_REPLAY: &str = "nvlink.replay";
/// Counter track of a GPU (total, 1): times that an NVLink left service to recover.
pub const NVLINK_RECOVERY: &str = "nvlink.recovery";
/// Counter track of a GPU (total, 1): packets of NVLink whose checksum was wrong.
pub const NVLINK_CRC: &str = "nvlink.crc";

/// Counter track of a GPU (total, 1): memory errors that were corrected, since the driver started.
pub const ECC_CORRECTED: &str = "ecc.corrected";
/// Counter track of a GPU (total, 1): memory errors that were not, since the driver started.
pub const ECC_UNCORRECTED: &str = "ecc.uncorrected";
/// Counter track of a GPU (total, 1): rows of memory replaced after corrected errors.
pub const ECC_REMAPPED_CORRECTABLE: &str = "ecc.remapped_correctable";
/// Counter track of a GPU (total, 1): rows of memory replaced after uncorrected errors.
pub const ECC_REMAPPED_UNCORRECTABLE: &str = "ecc.remapped_uncorrectable";
/// Counter track of a GPU (gauge, 1): whether a row waits for a reset to be replaced.
pub const ECC_REMAP_PENDING: &str = "ecc.remap_pending";
/// Counter track of a GPU (gauge, 1): whether a row could not be replaced.
pub const ECC_REMAP_FAILED: &str = "ecc.remap_failed";

/// Counter track of a host (gauge, ns): the most by which the time of a reading of NVML in the last
/// second may be off, either way.
pub const NVML_UNCERTAINTY: &str = "nvml.uncertainty";

/// Counter track of a host (delta, ns): run time of the recorder's own BPF programs.
pub const SELF_BPF: &str = "self.bpf";
/// Counter track of a host (delta, ns): CPU time of the recorder itself.
pub const SELF_CPU: &str = "self.cpu";
/// Counter track of a host (gauge, By): resident memory of the recorder itself.
pub const SELF_RSS: &str = "self.rss";

/// Span track of a host: what was slower than it should have been, one span a finding.
pub const FINDINGS: &str = "findings";
/// What a span of an engine's thread is called in which it waits for its workers, asleep or polling.
pub const RPC_WAIT: &str = "EngineCore::CollectiveRpcWait";
/// What a span of a worker of an engine is called at whose end the engine has the answer to one of its calls.
pub const WORKER_RESPONSE: &str = "Worker::Response";
/// What spans of a data loader's worker are called, one a batch.
pub const LOAD: &str = "load";
/// Sample track of a thread (ns, or 1 where a sample's share of time is not known): where it was when
/// a timer interrupted it on its CPU.
pub const CPU_SAMPLES: &str = "cpu_samples";
/// Sample track of a thread (ns that it was off its CPU): where it was when it went to sleep; of sleeps of a
/// millisecond or more, during incidents.
pub const SLEEP_SAMPLES: &str = "sleep_samples";
/// The setting of a host that says whether its CPUs are those of a virtual machine (`yes`, `no`). Where CPUs do not tell, it
/// is not recorded.
pub const VIRTUAL_CPUS: &str = "cpu.virtual";

/// Whether a process of this name is a thread of the kernel that works for whoever asks it to: what it does is somebody
/// else's doing.
#[must_use]
pub fn is_kernel_worker(process: &str) -> bool {
    matches!(process.split('/').next(), Some("kworker" | "ksoftirqd"))
}
