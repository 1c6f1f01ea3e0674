//! The layouts of activity records, by version of CUPTI.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::activity::kind;
use crate::machine::{cuda_version, env_number};

/// Plain numbers without gaps: all bytes are set and can be copied.
///
/// # Safety
/// The type is `repr(C)`, has no padding, and any bytes are a valid value.
pub(super) unsafe trait Plain: Copy {
    /// The bytes of the record.
    fn bytes(&self) -> &[u8] {
        // SAFETY: `size_of` bytes that live as long as `self`, all of them set: no padding.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }
}

/// Declares a record with its size and the offsets of some of its fields.
macro_rules! record {
    (
        $(#[$about:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* }
        at { $($at:ident: $offset:literal),* }
    ) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }
        // The sizes of the fields add up to that of the record, so there is no gap.
        const _: () = assert!(size_of::<$name>() == $size && 0 $(+ size_of::<$type>())* == $size);
        $(const _: () = assert!(std::mem::offset_of!($name, $at) == $offset);)*
        // SAFETY: `repr(C)`; all fields are integers and arrays of them; the
        // assertion above excludes padding.
        unsafe impl Plain for $name {}
    };
}

record! {
    /// `CUpti_ActivitySynchronization` in its first 40 bytes, `CUpti_ActivitySynchronization2`.
    Synchronization = 56 {
        kind: u32,
        synchronization_kind: u32,
        start: u64,
        end: u64,
        correlation: u32,
        context: u32,
        stream: u32,
        event: u32,
        later: [u64; 2],
    }
    at { start: 8, correlation: 24, stream: 32 }
}

record! {
    /// `CUpti_ActivityKernel9` in its first 208 bytes, `CUpti_ActivityKernel10` in its first 216,
    /// and so on up to `CUpti_ActivityKernel13`.
    Kernel = 248 {
        kind: u32,
        cache_config: u8,
        shared_memory_config: u8,
        registers: u16,
        partitioned_requested: u32,
        partitioned_executed: u32,
        start: u64,
        end: u64,
        completed: u64,
        device: u32,
        context: u32,
        stream: u32,
        grid: [i32; 3],
        block: [i32; 3],
        static_shared: i32,
        dynamic_shared: i32,
        local_per_thread: u32,
        local_total: u32,
        correlation: u32,
        grid_id: i64,
        name: u64,
        reserved: u64,
        queued: u64,
        submitted: u64,
        launch_type: u8,
        carveout: [u8; 2],
        padding: u8,
        shared_executed: u32,
        graph_node: u64,
        shared_limit: u32,
        graph: u32,
        access_policy: u64,
        channel: u32,
        channel_type: u32,
        cluster: [u32; 3],
        cluster_policy: u32,
        local_total_v2: u64,
        cluster_size_max: u32,
        clusters_active_max: u32,
        device_launched: u8,
        padding3: [u8; 7],
        later: [u64; 4],
    }
    at {
        start: 16, end: 24, device: 40, context: 44, stream: 48, grid: 52, block: 64,
        correlation: 92, name: 104, queued: 120, graph_node: 144, graph: 156,
        access_policy: 160, local_total_v2: 192, device_launched: 208
    }
}

record! {
    /// `CUpti_ActivityMemcpy5` in its first 88 bytes, `CUpti_ActivityMemcpy6`.
    Memcpy = 96 {
        kind: u32,
        copy_kind: u8,
        source_kind: u8,
        target_kind: u8,
        flags: u8,
        bytes: u64,
        start: u64,
        end: u64,
        device: u32,
        context: u32,
        stream: u32,
        correlation: u32,
        runtime_correlation: u32,
        padding: u32,
        reserved: u64,
        graph_node: u64,
        graph: u32,
        channel: u32,
        channel_type: u32,
        device_launched: u8,
        padding2: [u8; 3],
        count: u64,
    }
    at { start: 16, device: 32, correlation: 44, graph_node: 64, graph: 72, count: 88 }
}

record! {
    /// `CUpti_ActivityMemcpyPtoP4`, which is packed and then aligned to 8.
    PeerMemcpy = 96 {
        kind: u32,
        copy_kind: u8,
        source_kind: u8,
        target_kind: u8,
        flags: u8,
        bytes: u64,
        start: u64,
        end: u64,
        device: u32,
        context: u32,
        stream: u32,
        source_device: u32,
        source_context: u32,
        target_device: u32,
        target_context: u32,
        correlation: u32,
        reserved: u64,
        graph_node: u64,
        graph: u32,
        channel: u32,
        channel_type: u32,
        padding: u32,
    }
    at { start: 16, device: 32, correlation: 60, graph_node: 72, graph: 80 }
}

record! {
    /// `CUpti_ActivityMemset4`.
    Memset = 88 {
        kind: u32,
        value: u32,
        bytes: u64,
        start: u64,
        end: u64,
        device: u32,
        context: u32,
        stream: u32,
        correlation: u32,
        flags: u16,
        memory_kind: u16,
        padding: u32,
        reserved: u64,
        graph_node: u64,
        graph: u32,
        channel: u32,
        channel_type: u32,
        device_launched: u8,
        padding2: [u8; 3],
    }
    at { start: 16, device: 32, correlation: 44, graph_node: 64, graph: 72 }
}

record! {
    /// `CUpti_ActivityGraphTrace` in its first 48 bytes, `CUpti_ActivityGraphTrace2`.
    GraphTrace = 56 {
        kind: u32,
        correlation: u32,
        start: u64,
        end: u64,
        device: u32,
        graph: u32,
        context: u32,
        stream: u32,
        reserved: u64,
        end_device: u32,
        end_context: u32,
    }
    at { start: 8, device: 24, graph: 28, stream: 36, end_device: 48 }
}

record! {
    /// `CUpti_ActivityAPI`.
    Api = 40 {
        kind: u32,
        cbid: u32,
        start: u64,
        end: u64,
        process: u32,
        thread: u32,
        correlation: u32,
        code: u32,
    }
    at { start: 8, process: 24, correlation: 32 }
}

/// `CUPTI_API_VERSION` that is reported: 18 to 28 are CUDA 12, CUDA 13.0 is 130001 and so on.
pub(super) fn version() -> u32 {
    static VERSION: AtomicU64 = AtomicU64::new(0);
    match VERSION.load(Relaxed) {
        0 => {
            let by_cuda = if cuda_version() >= 13000 { 130_001 } else { 26 };
            let version = env_number("GPUWHY_STANDIN_CUPTI").unwrap_or(by_cuda);
            VERSION.store(version.into(), Relaxed);
            version
        }
        version => version as u32,
    }
}

/// Size of a record of this kind in this version, bytes; `None` if there are none of this kind.
pub(super) fn size_of_kind(kind: u32) -> Option<usize> {
    Some(match (kind, version()) {
        (kind::KERNEL | kind::CONCURRENT_KERNEL, v) => match v {
            0..=130_000 => 208,
            130_001..=130_100 => 216,
            130_101..=130_299 => 224,
            130_300..=130_399 => 232,
            _ => 248,
        },
        (kind::MEMCPY, 0..=130_000) => 88,
        (kind::MEMCPY, _) => 96,
        (kind::MEMCPY2, _) => 96,
        (kind::MEMSET, _) => 88,
        (kind::GRAPH_TRACE, 0..=22) => 48,
        (kind::GRAPH_TRACE, _) => 56,
        (kind::SYNCHRONIZATION, 0..=25) => 40,
        (kind::SYNCHRONIZATION, _) => 56,
        (kind::DRIVER, _) => 40,
        _ => return None,
    })
}
