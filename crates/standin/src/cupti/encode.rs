//! Activities as the records of this version of CUPTI.

use std::sync::atomic::Ordering::Relaxed;

use super::activity::{Activity, CopyKind, MemoryKind, Operation, kind};
use super::records::{
    Api, GraphTrace, Kernel, Memcpy, Memset, PeerMemcpy, Plain, Synchronization, size_of_kind,
};
use super::settings::{LATENCY, is_on};
use crate::machine::pid;

/// `CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC`, which is also that of sets.
const ASYNC: u8 = 1;
/// `CUPTI_CHANNEL_TYPE_COMPUTE`.
const COMPUTE: u32 = 1;
/// `CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY`.
const ASYNC_MEMCPY: u32 = 2;

/// Calls `write` with the bytes of an activity's record, as many as this version has; its result.
pub(super) fn with_record(a: &Activity, write: impl FnOnce(&[u8]) -> bool) -> bool {
    fn bytes(record: &impl Plain, kind: u32) -> &[u8] {
        &record.bytes()[..size_of_kind(kind).unwrap_or(0)]
    }
    match a.operation {
        Operation::Kernel { .. } => {
            let record = kernel(a);
            write(bytes(&record, record.kind))
        }
        Operation::Copy { kind, from, to, bytes: n } => {
            write(bytes(&copy(a, kind, [from, to], n), kind::MEMCPY))
        }
        Operation::PeerCopy { bytes: n, source, target } => {
            write(bytes(&peer_copy(a, n, source, target), kind::MEMCPY2))
        }
        Operation::Set { value, bytes: n } => write(bytes(&set(a, value, n), kind::MEMSET)),
        Operation::Graph => write(bytes(&graph(a), kind::GRAPH_TRACE)),
        Operation::Wait(of) => write(bytes(&wait(a, of), kind::SYNCHRONIZATION)),
        Operation::Call { cbid, thread, code } => {
            write(bytes(&call(a, cbid, thread, code), kind::DRIVER))
        }
    }
}

/// The record of a kernel; an empty one of anything else.
fn kernel(a: &Activity) -> Kernel {
    let Operation::Kernel { name, grid, block, shared } = a.operation else {
        return Kernel::default();
    };
    let queued = if LATENCY.load(Relaxed) { a.queued } else { 0 };
    Kernel {
        kind: if is_on(kind::KERNEL) { kind::KERNEL } else { kind::CONCURRENT_KERNEL },
        registers: 64,
        start: a.start,
        end: a.end,
        device: a.device,
        context: a.context,
        stream: a.stream,
        grid,
        block,
        dynamic_shared: shared,
        correlation: a.correlation,
        grid_id: i64::from(a.correlation),
        name: name.address(),
        queued,
        submitted: queued,
        graph_node: a.node,
        graph: a.graph,
        channel: 8,
        channel_type: COMPUTE,
        ..Kernel::default()
    }
}

fn copy(a: &Activity, kind: CopyKind, [from, to]: [MemoryKind; 2], bytes: u64) -> Memcpy {
    Memcpy {
        kind: kind::MEMCPY,
        copy_kind: kind as u8,
        source_kind: from as u8,
        target_kind: to as u8,
        flags: ASYNC,
        bytes,
        start: a.start,
        end: a.end,
        device: a.device,
        context: a.context,
        stream: a.stream,
        correlation: a.correlation,
        graph_node: a.node,
        graph: a.graph,
        channel: 16,
        channel_type: ASYNC_MEMCPY,
        count: 1,
        ..Memcpy::default()
    }
}

fn peer_copy(a: &Activity, bytes: u64, source: (u32, u32), target: (u32, u32)) -> PeerMemcpy {
    PeerMemcpy {
        kind: kind::MEMCPY2,
        // CUPTI_ACTIVITY_MEMCPY_KIND_PTOP
        copy_kind: 10,
        source_kind: MemoryKind::Device as u8,
        target_kind: MemoryKind::Device as u8,
        flags: ASYNC,
        bytes,
        start: a.start,
        end: a.end,
        device: a.device,
        context: a.context,
        stream: a.stream,
        source_device: source.0,
        source_context: source.1,
        target_device: target.0,
        target_context: target.1,
        correlation: a.correlation,
        graph_node: a.node,
        graph: a.graph,
        channel: 16,
        channel_type: ASYNC_MEMCPY,
        ..PeerMemcpy::default()
    }
}

fn set(a: &Activity, value: u32, bytes: u64) -> Memset {
    Memset {
        kind: kind::MEMSET,
        value,
        bytes,
        start: a.start,
        end: a.end,
        device: a.device,
        context: a.context,
        stream: a.stream,
        correlation: a.correlation,
        flags: ASYNC.into(),
        memory_kind: MemoryKind::Device as u16,
        graph_node: a.node,
        graph: a.graph,
        channel: 8,
        channel_type: COMPUTE,
        ..Memset::default()
    }
}

fn graph(a: &Activity) -> GraphTrace {
    GraphTrace {
        kind: kind::GRAPH_TRACE,
        correlation: a.correlation,
        start: a.start,
        end: a.end,
        device: a.device,
        graph: a.graph,
        context: a.context,
        stream: a.stream,
        end_device: a.device,
        end_context: a.context,
        ..GraphTrace::default()
    }
}

fn wait(a: &Activity, kind: u32) -> Synchronization {
    Synchronization {
        kind: kind::SYNCHRONIZATION,
        synchronization_kind: kind,
        start: a.start,
        end: a.end,
        correlation: a.correlation,
        context: a.context,
        stream: a.stream,
        ..Synchronization::default()
    }
}

fn call(a: &Activity, cbid: u32, thread: u32, code: u32) -> Api {
    Api {
        kind: kind::DRIVER,
        cbid,
        start: a.start,
        end: a.end,
        process: pid(),
        thread,
        correlation: a.correlation,
        code,
    }
}
