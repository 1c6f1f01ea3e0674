//! The closed vocabularies: columns of few words, and the codes that state tracks hold.

use crate::cell::choice;

choice! {
    /// What an entity is.
    EntityKind {
        /// A machine with a kernel of its own; key: its machine id.
        Host = "host",
        /// A logical CPU; number: its index.
        Cpu = "cpu",
        /// A process; number: its pid in the host's namespace; key: `pid@start`.
        Process = "process",
        /// A thread; number: its tid in the host's namespace; parent: its process.
        Thread = "thread",
        /// A control group; key: its path, `v1:` or `v2:` before it.
        Cgroup = "cgroup",
        /// A network device; number: its ifindex; key: `netns/name`.
        Nic = "nic",
        /// A block device; number: its dev_t; key: its name.
        Disk = "disk",
        /// A GPU or a MIG slice; key: its UUID.
        Gpu = "gpu",
        /// An engine of a GPU (compute, copy, render); parent: its GPU.
        Engine = "engine",
        /// A stream or hardware queue; parent: its GPU.
        Stream = "stream",
        /// A virtual machine.
        Vm = "vm",
        /// A virtual GPU; parent: its GPU.
        Vgpu = "vgpu",
        /// One member of a parallel job; number: its rank.
        Rank = "rank",
        /// A served model.
        Model = "model",
        /// A container; key: its id; parent: its pod or its cgroup.
        Container = "container",
        /// A pod, batch job or service unit that containers or processes belong to.
        Job = "job",
        /// A setting of its parent while it has this value; name: `thp.enabled=madvise`; key: its parent's, its name and
        /// how often it had changed.
        Setting = "setting",
    }
}

choice! {
    /// Which of the six shapes a track carries.
    Shape {
        /// It took time.
        Span = "span",
        /// Exactly one value at a time.
        State = "state",
        /// A measurement.
        Counter = "counter",
        /// A point.
        Mark = "mark",
        /// Statistics.
        Sample = "sample",
        /// Cause or identity.
        Link = "link",
    }
}

choice! {
    /// What the values of a counter track are.
    Measure {
        /// The value at that time: a temperature, a queue length.
        Gauge = "gauge",
        /// A running total that only grows, until its source starts anew.
        Total = "total",
        /// What was added since the row before: bytes in this tick, nanoseconds in this tick.
        Delta = "delta",
    }
}

choice! {
    /// How the rows of a track may lie.
    Discipline {
        /// Spans may contain each other but never cross.
        Nested = "nested",
        /// Spans follow one another.
        Serial = "serial",
        /// Spans may lie anyhow.
        Overlap = "overlap",
        /// States follow one another without a gap from the track's first row to its last.
        Tiled = "tiled",
        /// States follow one another; a gap means that nobody looked.
        Sparse = "sparse",
    }
}

choice! {
    /// Whether a source could do what it was asked.
    SourceState {
        /// It ran as asked.
        Ok = "ok",
        /// It ran, but saw less than it was asked to; `note` says what was missing.
        Degraded = "degraded",
        /// It could not run; `note` says why and what would change that.
        Unavailable = "unavailable",
    }
}

choice! {
    /// What a link says.
    LinkKind {
        /// The call that launched this kernel or copy.
        Launch = "launch",
        /// The step that served this request.
        Serves = "serves",
        /// The same work, first queued and then run.
        Queued = "queued",
        /// The waker, then the woken.
        Wakes = "wakes",
        /// The same collective, seen by two ranks.
        Rank = "rank",
        /// The same thing, seen by two sources.
        Same = "same",
    }
}

choice! {
    /// Where the code that woke a thread ran.
    WakeContext {
        /// In the waker's own context: the waker is to be believed.
        Task = "task",
        /// In a softirq that borrowed the current thread; the waker is unknown.
        Softirq = "softirq",
        /// In an interrupt handler that borrowed the current thread; the waker is unknown.
        Hardirq = "hardirq",
        /// On the idle task or before anything was known.
        Unknown = "unknown",
    }
}

choice! {
    /// What a block request does.
    IoOp {
        /// Reads.
        Read = "read",
        /// Writes.
        Write = "write",
        /// Flushes the device's cache, alone or before a write.
        Flush = "flush",
        /// Discards or zeroes.
        Discard = "discard",
        /// Anything else.
        Other = "other",
    }
}

choice! {
    /// Which way bytes went.
    Direction {
        /// Handed to the transport by the process.
        Send = "send",
        /// Taken from the transport by the process.
        Receive = "receive",
    }
}

choice! {
    /// What a device copy connects.
    CopyKind {
        /// Host to device.
        HostToDevice = "h2d",
        /// Device to host.
        DeviceToHost = "d2h",
        /// Within one device.
        DeviceToDevice = "d2d",
        /// Between two devices.
        PeerToPeer = "p2p",
        /// Within the host.
        HostToHost = "h2h",
        /// A memset.
        Memset = "memset",
        /// Unified memory moved by the driver.
        Managed = "managed",
        /// Anything else.
        Other = "other",
    }
}

choice! {
    /// Why managed memory moved: values of the attribute `migration_cause` of a copy of kind `managed`.
    Migration {
        /// The source does not say.
        Unknown = "unknown",
        /// The program asked for it ahead of its use.
        Prefetch = "prefetch",
        /// Somebody used it: a page fault.
        Fault = "page_fault",
        /// The driver guessed from page faults nearby that it would be used next.
        Speculative = "speculative_prefetch",
        /// It had to make room for other memory.
        Eviction = "eviction",
        /// Somebody used it often from afar.
        AccessCounters = "access_counters",
    }
}

choice! {
    /// Where a piece of a step's time went. The parts of one step sum to its duration.
    PartKind {
        /// On a CPU, doing its own work; `blame` is the process that did it, where another one served a call of the step.
        Run = "run",
        /// On a CPU, while an interrupt handler had borrowed it.
        Hardirq = "hardirq",
        /// On a CPU, while a softirq had borrowed it.
        Softirq = "softirq",
        /// Ready to run while `blame` occupied the CPU.
        Runnable = "runnable",
        /// Ready to run, but out of CPU quota; `blame` is the cgroup.
        Throttled = "throttled",
        /// Taken by the hypervisor.
        Steal = "steal",
        /// A block request waited to be issued to its device; `blame` had requests there.
        BlockQueue = "block_queue",
        /// A block request was with its device; `blame` had requests there too.
        BlockDevice = "block_device",
        /// A block request had completed, but the waiter had not been woken yet.
        BlockCompletion = "block_completion",
        /// The thread freed memory so that it could allocate; `blame` took the memory.
        Reclaim = "reclaim",
        /// A read or fault missed the page cache and waited for the disk; `blame` emptied it.
        CacheMiss = "cache_miss",
        /// A read or fault waited for data from the disk that nobody was seen to evict from the page cache.
        ColdRead = "cold_read",
        /// Bytes were on their way; `blame` used the same link.
        Network = "network",
        /// Waited for something that `blame`, outside the workload, held.
        Lock = "lock",
        /// Waited for the interpreter lock of Python (GIL), which `blame`, a thread of the same process, held.
        Gil = "gil",
        /// The GPU was busy with the step's own work.
        Gpu = "gpu",
        /// The GPU was busy with somebody else's work; `blame` is whose.
        GpuQueue = "gpu_queue",
        /// The GPU was busy with the step's own work, longer than at full clock; `blame` is the GPU.
        GpuThrottled = "gpu_throttled",
        /// The GPU had reported an error and got on no further; `blame` is the GPU.
        GpuFault = "gpu_fault",
        /// The GPU copied for the step and did nothing else for it; `blame` copied there too, or is
        /// the GPU.
        Copy = "copy",
        /// Pages of managed memory were on their way between host and GPU, and the work waited for them.
        PageFault = "page_fault",
        /// In a call that allocates, registers or frees memory of a GPU, or of the host for a GPU.
        Allocate = "allocate",
        /// In a call that loads code onto a GPU, or makes a context there.
        Load = "load",
        /// Waited for a worker of its data loader, `blame`, that computed.
        Input = "input",
        /// Slept because it asked to; `blame` is the process that slept.
        Timer = "timer",
        /// Stopped by a signal; `blame` is the stopped process.
        Stopped = "stopped",
        /// Waited for another process: one that this trace does not see, or, as `blame`, a rank that
        /// came late for reasons of its own.
        Peer = "peer",
        /// Not seen, or not understood.
        Unknown = "unknown",
    }
}

choice! {
    /// What a cause is an instance of.
    Class {
        /// Somebody else ran where this work was ready to run.
        CpuContention = "cpu_contention",
        /// The hypervisor gave the CPUs to another virtual machine.
        CpuSteal = "cpu_steal",
        /// The work ran out of its CPU quota.
        CpuThrottling = "cpu_throttling",
        /// Memory was short: reclaim, or pages evicted that were needed again.
        MemoryPressure = "memory_pressure",
        /// The disk, its queue or its journal was busy with somebody else's requests.
        BlockIo = "block_io",
        /// Bytes took longer: a full link, a shaped link, loss.
        Network = "network",
        /// Interrupts took the CPU.
        Interrupts = "interrupts",
        /// Somebody else held what the work needed.
        LockContention = "lock_contention",
        /// Another thread of the program held Python's interpreter lock.
        GilContention = "gil_contention",
        /// The GPU did the same work more slowly.
        GpuThrottling = "gpu_throttling",
        /// The GPU did somebody else's work.
        GpuContention = "gpu_contention",
        /// Copies took longer at the same size.
        Pcie = "pcie",
        /// The GPU reported an error.
        GpuFault = "gpu_fault",
        /// One rank came late and the others waited.
        CollectiveStraggler = "collective_straggler",
        /// A garbage collector or another stop-the-world pause held the program's threads.
        GcPause = "gc_pause",
        /// Code was compiled within the work, for the first time or again.
        Recompilation = "recompilation",
        /// Launches waited for a few of their blocks while most of the GPU had nothing to do.
        KernelImbalance = "kernel_imbalance",
        /// A launch was under way and the GPU had nothing of the program to do.
        LaunchLatency = "launch_latency",
        /// A worker of the program's data loader computed for longer than the work could wait.
        InputStarvation = "input_starvation",
        /// The program slept because it asked to.
        OwnSleep = "own_sleep",
        /// The program itself did more.
        EngineSoftware = "engine_software",
        /// There was more to do.
        InputLoad = "input_load",
        /// The time is accounted for by nothing that was seen.
        Unexplained = "unexplained",
    }
}

/// In the place of a system call's number: a wait in `futex` for the interpreter lock (GIL) of the process's Python. The
/// recorder tells it from others by its address, which lies within `_PyRuntime`.
pub const WAIT_FOR_GIL: i64 = 1 << 20 | 202;

/// Declares the codes of a state track: small integers with names, kept stable forever.
macro_rules! codes {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $variant:ident = $code:literal $word:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i64)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant = $code,)+ }

        impl $name {
            /// Every code.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            /// The word for it, as views and exports show it.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
            /// What it means, as documented.
            pub const fn doc(self) -> &'static str {
                match self { $($name::$variant => concat!($($vdoc),+).trim_ascii_start()),+ }
            }
            /// The number that stands in `state.value`.
            pub const fn code(self) -> i64 { self as i64 }
            /// The state that `code` stands for, if any.
            pub const fn from_code(code: i64) -> Option<$name> {
                match code { $($code => Some($name::$variant),)+ _ => None }
            }
        }
    };
}

codes! {
    /// Values of tracks named `thread_state`. `state.arg` says more where stated.
    ThreadState {
        /// Not known: the record of it was lost.
        Unknown = 0 "unknown",
        /// On a CPU; arg: the CPU.
        Running = 1 "running",
        /// Ready to run, waiting for a CPU; arg: the CPU it waits for.
        Runnable = 2 "runnable",
        /// Ready to run, but its cgroup has used up its quota; arg: the CPU.
        Throttled = 3 "throttled",
        /// Interruptible sleep; arg: the system call it sleeps in, -1 for none, `WAIT_FOR_GIL` in a futex of
        /// Python's interpreter lock.
        Sleep = 4 "sleep",
        /// Uninterruptible sleep waiting for I/O; arg: the system call, -1 for a fault or none.
        DiskWait = 5 "disk_wait",
        /// Uninterruptible sleep for another reason; arg: the system call, -1 for none.
        Uninterruptible = 6 "uninterruptible",
        /// Stopped or traced; arg: the pid that sent the signal, -1 if not seen.
        Stopped = 7 "stopped",
        /// On a CPU borrowed by softirqs, summed and placed at the end of the slice; arg: the vector that took most.
        Softirq = 8 "softirq",
        /// On a CPU borrowed by interrupt handlers, summed and placed at the end of the slice; arg: the CPU.
        Hardirq = 9 "hardirq",
    }
}
