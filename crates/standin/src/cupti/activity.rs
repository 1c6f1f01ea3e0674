//! What ran on a device or was called, as the driver reports it to CUPTI.

use gpuwhy_testkit::gpu::Direction;

use crate::c::Static;

/// Callback ids of the driver's functions (`cupti_driver_cbid.h`).
pub mod cbid {
    /// `cuCtxSynchronize`.
    pub const CTX_SYNCHRONIZE: u32 = 17;
    /// `cuStreamSynchronize`.
    pub const STREAM_SYNCHRONIZE: u32 = 126;
    /// `cuMemsetD8Async`.
    pub const MEMSET_ASYNC: u32 = 216;
    /// `cuMemcpyHtoD_v2`.
    pub const COPY_TO_DEVICE: u32 = 276;
    /// `cuMemcpyHtoDAsync_v2`.
    pub const COPY_TO_DEVICE_ASYNC: u32 = 277;
    /// `cuMemcpyDtoH_v2`.
    pub const COPY_TO_HOST: u32 = 278;
    /// `cuMemcpyDtoHAsync_v2`.
    pub const COPY_TO_HOST_ASYNC: u32 = 279;
    /// `cuMemcpyDtoDAsync_v2`.
    pub const COPY_WITHIN_ASYNC: u32 = 281;
    /// `cuLaunchKernel`.
    pub const LAUNCH_KERNEL: u32 = 307;
    /// `cuMemcpyPeerAsync`.
    pub const COPY_PEER_ASYNC: u32 = 319;
    /// `cuGraphLaunch`.
    pub const GRAPH_LAUNCH: u32 = 514;
    /// One more than the highest id.
    pub const COUNT: u32 = 807;
}

/// `CUpti_ActivityKind`.
pub(super) mod kind {
    /// Copies between host and device, and within a device.
    pub const MEMCPY: u32 = 1;
    /// Memory set to a value.
    pub const MEMSET: u32 = 2;
    /// Kernels one at a time: each launch waits for its kernel.
    pub const KERNEL: u32 = 3;
    /// Calls of the driver.
    pub const DRIVER: u32 = 4;
    /// Kernels that may run side by side.
    pub const CONCURRENT_KERNEL: u32 = 10;
    /// Copies between devices.
    pub const MEMCPY2: u32 = 22;
    /// Threads that wait for a stream or context.
    pub const SYNCHRONIZATION: u32 = 38;
    /// Graphs as a whole.
    pub const GRAPH_TRACE: u32 = 51;
    /// One more than the highest kind.
    pub const COUNT: u32 = 55;
}

/// `CUpti_ActivityMemcpyKind`, as far as it is used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CopyKind {
    /// From the host to the device.
    ToDevice = 1,
    /// From the device to the host.
    ToHost = 2,
    /// Within a device, or between two.
    Within = 8,
}

impl CopyKind {
    /// The direction as the scripted device counts it.
    pub fn direction(self) -> Direction {
        match self {
            CopyKind::ToDevice => Direction::ToDevice,
            CopyKind::ToHost => Direction::ToHost,
            CopyKind::Within => Direction::Within,
        }
    }
}

/// `CUpti_ActivityMemoryKind`, as far as it is used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemoryKind {
    /// Ordinary memory of the host.
    Pageable = 1,
    /// Pinned memory of the host.
    Pinned = 2,
    /// Memory of a device.
    Device = 3,
}

/// Something that ran on a device, a wait, or a call. Times are CLOCK_MONOTONIC ns.
#[derive(Clone, Copy, Default)]
pub struct Activity {
    /// Index of the GPU in the machine.
    pub gpu: usize,
    /// The program's ordinal of the GPU.
    pub device: u32,
    /// Number of the context in the process, from 1.
    pub context: u32,
    /// Number of the stream, as CUPTI counts them.
    pub stream: u32,
    /// What ties the activity to the call that launched it.
    pub correlation: u32,
    /// Number of the graph that launched it; 0 if none did.
    pub graph: u32,
    /// Id of the graph's node; 0 if no graph launched it.
    pub node: u64,
    /// When it was launched.
    pub queued: u64,
    /// When it started.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// What it was.
    pub operation: Operation,
}

/// What an [`Activity`] was.
#[derive(Clone, Copy, Default)]
pub enum Operation {
    /// A kernel, with its launch parameters.
    Kernel {
        /// Mangled name.
        name: Static,
        /// Grid size.
        grid: [i32; 3],
        /// Block size.
        block: [i32; 3],
        /// Dynamic shared memory, bytes.
        shared: i32,
    },
    /// A copy between host and device, or within a device.
    Copy {
        /// Its direction.
        kind: CopyKind,
        /// Memory that it reads.
        from: MemoryKind,
        /// Memory that it writes.
        to: MemoryKind,
        /// Its size.
        bytes: u64,
    },
    /// A copy between devices.
    PeerCopy {
        /// Its size.
        bytes: u64,
        /// Device and context that it reads from.
        source: (u32, u32),
        /// Device and context that it writes to.
        target: (u32, u32),
    },
    /// Memory set to a value.
    Set {
        /// The value.
        value: u32,
        /// How much memory.
        bytes: u64,
    },
    /// A whole graph.
    #[default]
    Graph,
    /// A thread that waited, by `CUpti_ActivitySynchronizationType`.
    Wait(u32),
    /// A call of the driver.
    Call {
        /// Callback id of the function.
        cbid: u32,
        /// Thread id of the caller.
        thread: u32,
        /// What the call returned.
        code: u32,
    },
}
