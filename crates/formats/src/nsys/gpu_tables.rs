//! Tables of what GPUs did: kernels, copies, memsets, synchronizations and GPU metrics.

use gpuwhy_schema::{Attr, Copy, CopyKind, Counter, Kernel, Migration, Name, Ns, names};

use super::dropped::Why;
use super::ids::process_of;
use super::piece::{PieceBuilder, TrackKey};
use super::report::Report;
use super::versions;
use crate::Result;
use crate::sqlite::{TableDef, Value};

/// CUPTI's number for a wait that is of no stream, or of no event in particular.
const NOT_OF_ANY: u64 = u32::MAX as u64;

/// A number that cannot be negative.
pub(super) fn unsigned(value: Value<'_>) -> Option<u64> {
    value.int().and_then(|n| u64::try_from(n).ok())
}

/// The process and the device of a row, and the track of what that device did for that process.
fn on_stream(
    process: Value<'_>,
    device: Value<'_>,
    context: Value<'_>,
    stream: Value<'_>,
) -> (i64, i64, TrackKey) {
    let process = process.int().map_or(0, process_of);
    let [device, context, stream] = [device, context, stream].map(|value| value.int().unwrap_or(0));
    (process, device, TrackKey::Stream { process, device, context, stream })
}

/// A number of a launch's geometry; 0 if it is missing or out of range.
pub(super) fn small(value: Value<'_>) -> u32 {
    value.int().and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

/// What a copy connects and its name in `nsys stats`, by `copyKind` (CUpti_ActivityMemcpyKind).
pub(super) fn copy_kind(code: i64) -> (CopyKind, &'static str) {
    use CopyKind::*;
    match code {
        1 => (HostToDevice, "[CUDA memcpy Host-to-Device]"),
        2 => (DeviceToHost, "[CUDA memcpy Device-to-Host]"),
        3 => (HostToDevice, "[CUDA memcpy Host-to-Array]"),
        4 => (DeviceToHost, "[CUDA memcpy Array-to-Host]"),
        5 => (DeviceToDevice, "[CUDA memcpy Array-to-Array]"),
        6 => (DeviceToDevice, "[CUDA memcpy Array-to-Device]"),
        7 => (DeviceToDevice, "[CUDA memcpy Device-to-Array]"),
        8 => (DeviceToDevice, "[CUDA memcpy Device-to-Device]"),
        9 => (HostToHost, "[CUDA memcpy Host-to-Host]"),
        10 => (PeerToPeer, "[CUDA memcpy Peer-to-Peer]"),
        11 => (Managed, "[CUDA memcpy Unified Host-to-Device]"),
        12 => (Managed, "[CUDA memcpy Unified Device-to-Host]"),
        13 => (Managed, "[CUDA memcpy Unified Device-to-Device]"),
        _ => (Other, "[CUDA memcpy Unknown]"),
    }
}

/// Why managed memory moved, by `migrationCause` (CUpti_ActivityUnifiedMemoryMigrationCause).
pub(super) fn migration(code: Value<'_>) -> Migration {
    match code.int() {
        Some(1) => Migration::Prefetch,
        Some(2) => Migration::Fault,
        Some(3) => Migration::Speculative,
        Some(4) => Migration::Eviction,
        Some(5) => Migration::AccessCounters,
        _ => Migration::Unknown,
    }
}

/// The name of a memset.
pub(super) const MEMSET: &str = "[CUDA memset]";

/// The kind of memory on the host's side of a copy (CUpti_ActivityMemoryKind).
fn host_memory(kind: Option<i64>) -> Option<&'static str> {
    match kind? {
        0 => Some("pageable"),
        1 => Some("pinned"),
        4 | 6 => Some("managed"),
        _ => None,
    }
}

impl Report {
    pub(super) fn kernels(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(
            table,
            [
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "globalPid",
                "correlationId",
                "demangledName",
                "shortName",
                "registersPerThread",
                "gridX",
                "gridY",
                "gridZ",
                "blockX",
                "blockY",
                "blockZ",
                "staticSharedMemory",
                "dynamicSharedMemory",
                "graphNodeId",
            ],
        );
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, device, context, stream, process, correlation, name, short, ..] =
                values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let (process, device, track) = on_stream(process, device, context, stream);
            let name = out.string(name.int().or(short.int()));
            let Some((id, ts)) = out.span(track, start, end, name) else { return Ok(()) };
            let gpu = out.device(process, device);
            let shared = match (unsigned(values[16]), unsigned(values[17])) {
                (None, None) => None,
                (fixed, dynamic) => Some(fixed.unwrap_or(0).saturating_add(dynamic.unwrap_or(0))),
            };
            out.piece.rows.kernel.push(Kernel {
                id,
                ts,
                gpu,
                // Devices are numbered together with their process, so this number gives both.
                process: Some(gpu),
                correlation: unsigned(correlation),
                grid_x: small(values[10]),
                grid_y: small(values[11]),
                grid_z: small(values[12]),
                block_x: small(values[13]),
                block_y: small(values[14]),
                block_z: small(values[15]),
                registers: values[9].int().and_then(|n| u32::try_from(n).ok()),
                shared_bytes: shared,
                graph_node: unsigned(values[18]),
            });
            Ok(())
        })
    }

    pub(super) fn copies(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(
            table,
            [
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "globalPid",
                "correlationId",
                "bytes",
                "copyKind",
                "srcKind",
                "dstKind",
                "srcDeviceId",
                "dstDeviceId",
                "migrationCause",
            ],
        );
        let names: Vec<Name> = (0..=14).map(|code| copy_kind(code).1.into()).collect();
        let memory: [Name; 3] = ["pageable", "pinned", "managed"].map(Name::from);
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, device, context, stream, process, correlation, bytes, code, ..] =
                values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let (process, device, track) = on_stream(process, device, context, stream);
            let code = code.int().unwrap_or(0);
            let (kind, _) = copy_kind(code);
            let name = names[usize::try_from(code).unwrap_or(14).min(14)].clone();
            let Some((id, ts)) = out.span(track, start, end, name) else { return Ok(()) };
            let here = out.device(process, device);
            let mut at = |value: Value<'_>| match value.int().filter(|d| *d >= 0) {
                Some(other) if other != device => out.device(process, other),
                _ => here,
            };
            let (from, to) = match kind {
                CopyKind::HostToDevice => (None, Some(here)),
                CopyKind::DeviceToHost => (Some(here), None),
                CopyKind::DeviceToDevice => (Some(here), Some(here)),
                CopyKind::PeerToPeer => (Some(at(values[11])), Some(at(values[12]))),
                CopyKind::Managed if code == 11 => (None, Some(here)),
                CopyKind::Managed if code == 12 => (Some(here), None),
                CopyKind::Managed => (Some(here), Some(here)),
                _ => (None, None),
            };
            let host_side = match (from, to) {
                (None, Some(_)) => values[9],
                (Some(_), None) => values[10],
                _ => Value::Null,
            };
            let pinned = host_memory(host_side.int())
                .and_then(|word| memory.iter().find(|name| &***name == word).cloned());
            if kind == CopyKind::Managed {
                let value = migration(values[13]).as_str().into();
                let key = names::MIGRATION_CAUSE.into();
                out.piece.rows.attr.push(Attr { id, key, value });
            }
            out.piece.rows.copy.push(Copy {
                id,
                ts,
                kind,
                bytes: unsigned(bytes).unwrap_or(0),
                from,
                to,
                pinned,
                process: Some(here),
                correlation: unsigned(correlation),
            });
            Ok(())
        })
    }

    pub(super) fn memsets(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(
            table,
            [
                "start",
                "end",
                "deviceId",
                "contextId",
                "streamId",
                "globalPid",
                "correlationId",
                "bytes",
            ],
        );
        let name: Name = MEMSET.into();
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, device, context, stream, process, correlation, bytes] = values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let (process, device, track) = on_stream(process, device, context, stream);
            let span = out.span(track, start, end, name.clone());
            let Some((id, ts)) = span else { return Ok(()) };
            let here = out.device(process, device);
            out.piece.rows.copy.push(Copy {
                id,
                ts,
                kind: CopyKind::Memset,
                bytes: unsigned(bytes).unwrap_or(0),
                from: None,
                to: Some(here),
                pinned: None,
                process: Some(here),
                correlation: unsigned(correlation),
            });
            Ok(())
        })
    }

    pub(super) fn synchronizations(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(
            table,
            [
                "start",
                "end",
                "globalPid",
                "syncType",
                "deviceId",
                "streamId",
                "eventId",
                "correlationId",
            ],
        );
        let keys: [Name; 3] =
            [names::CUDA_STREAM, names::CUDA_EVENT, names::CORRELATION].map(Name::from);
        let names: [Name; 5] = [
            "unknown",
            "event_synchronize",
            "stream_wait_event",
            "stream_synchronize",
            "context_synchronize",
        ]
        .map(Name::from);
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, process, kind, device, stream, event, correlation] = values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let kind = kind.int().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            let name = names.get(kind).unwrap_or(&names[0]).clone();
            let process = process.int().map_or(0, process_of);
            let track = TrackKey::Process { process, name: names::SYNCHRONIZATION };
            let Some((id, _)) = out.span(track, start, end, name) else { return Ok(()) };
            if let Some(device) = device.int() {
                let gpu = out.device(process, device);
                out.piece.on_gpu.push((id, gpu));
            }
            for (key, value) in keys.iter().zip([stream, event, correlation]) {
                if let Some(number) = unsigned(value).filter(|number| *number != NOT_OF_ANY) {
                    let value = number.to_string().as_str().into();
                    out.piece.rows.attr.push(Attr { id, key: key.clone(), value });
                }
            }
            Ok(())
        })
    }

    pub(super) fn gpu_metrics(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(table, ["timestamp", "typeId", "metricId", "value"]);
        self.database.scan(table, leaves, columns, |_, [ts, kind, metric, value]| {
            let Some(ts) = out.when(ts) else { return Ok(()) };
            let Some([kind, metric]) = out.of([kind, metric]) else { return Ok(()) };
            let Some(value) = value.real() else {
                out.drop_row(Why::OfNothing);
                return Ok(());
            };
            let track = out.track(TrackKey::Metric { kind, metric });
            out.piece.rows.counter.push(Counter { ts: Ns(ts), track, value });
            out.piece.recorded += 1;
            Ok(())
        })
    }
}
