//! Tables of what processes and threads did: calls, ranges, page faults, scheduling and samples.

use std::collections::HashMap;

use gpuwhy_schema::{Attr, Call, Name, names};

use super::dropped::Why;
use super::gpu_tables::unsigned;
use super::ids::process_of;
use super::piece::{ChainEntry, CpuSample, PieceBuilder, Switch, TrackKey};
use super::report::Report;
use super::versions;
use crate::Result;
use crate::sqlite::TableDef;

/// NVTX event types.
const NVTX_MARK: i64 = 34;
const NVTX_PUSH_POP: i64 = 59;
const NVTX_START_END: i64 = 60;
/// Names of categories, threads, devices, contexts and streams; beginning and end of domains.
const NVTX_NAMES: [i64; 7] = [33, 39, 75, 76, 97, 98, 99];

/// The columns of the table of page faults on GPUs that are read.
pub(super) const FAULT_COLUMNS: [&str; 5] =
    ["start", "end", "globalPid", "deviceId", "numberOfPageFaults"];

/// Event classes of rows, among calls of the operating system, that mark where the profiler began and
/// ended.
const NOTES: [i64; 2] = [31, 32];

/// The name of a CUDA call without the version of its entry point, `_v3020`. Like `nsys stats`, this
/// keeps versions of five digits.
pub(super) fn call_name(name: &str) -> &str {
    match name.rfind("_v") {
        Some(at) => {
            let digits = &name[at + 2..];
            let version = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit());
            if version { &name[..at] } else { name }
        }
        None => name,
    }
}

impl Report {
    pub(super) fn cuda_calls(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(
            table,
            ["start", "end", "globalTid", "correlationId", "nameId", "returnValue"],
        );
        let mut names: HashMap<i64, Name> = HashMap::new();
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, thread, correlation, name, result] = values;
            let Some(start) = out.when(start) else { return Ok(()) };
            let name = match name.int() {
                None => out.unnamed(),
                Some(id) => names
                    .entry(id)
                    .or_insert_with(|| {
                        let full = out.string(Some(id));
                        let short = call_name(&full);
                        if short.len() == full.len() { full } else { short.into() }
                    })
                    .clone(),
            };
            let thread = thread.int().unwrap_or(0);
            let track = TrackKey::Thread { thread, name: names::CUDA_CALLS };
            let Some((id, ts)) = out.span(track, start, end, name) else { return Ok(()) };
            out.piece.rows.call.push(Call {
                id,
                ts,
                correlation: unsigned(correlation),
                result: result.int(),
            });
            Ok(())
        })
    }

    /// A table of calls, whose names stand in the column `name`, as spans on tracks called `track`.
    pub(super) fn calls(
        &self,
        table: &TableDef,
        leaves: &[u32],
        name: &str,
        track: &'static str,
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(table, ["start", "end", "globalTid", name, "eventClass"]);
        let notes: [Name; 2] = ["profiling started", "profiling finished"].map(Name::from);
        self.database.scan(table, leaves, columns, |_, [start, end, thread, name, class]| {
            let Some(start) = out.when(start) else { return Ok(()) };
            let thread = thread.int().unwrap_or(0);
            if let Some(note) = class.int().and_then(|c| NOTES.iter().position(|n| *n == c)) {
                out.mark(TrackKey::Notes { thread }, start, notes[note].clone(), None);
                return Ok(());
            }
            let name = out.string(name.int());
            out.span(TrackKey::Thread { thread, name: track }, start, end, name);
            Ok(())
        })
    }

    pub(super) fn nvtx(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(
            table,
            ["start", "end", "eventType", "globalTid", "text", "textId", "domainId"],
        );
        self.database.scan(table, leaves, columns, |_, values| {
            let [start, end, kind, thread, text, text_id, domain] = values;
            // Names are no events.
            if kind.int().is_some_and(|kind| NVTX_NAMES.contains(&kind)) {
                return Ok(());
            }
            let Some(start) = out.when(start) else { return Ok(()) };
            let thread = thread.int().unwrap_or(0);
            let domain = domain.int().unwrap_or(0);
            let name = |out: &mut PieceBuilder<'_>| match text.text() {
                Some(text) => out.text(text),
                None => out.string(text_id.int()),
            };
            match kind.int() {
                Some(NVTX_PUSH_POP) => {
                    let name = name(out);
                    out.span(TrackKey::Ranges { thread, domain }, start, end, name);
                }
                Some(NVTX_START_END) => {
                    let name = name(out);
                    let track = TrackKey::LooseRanges { process: process_of(thread), domain };
                    out.span(track, start, end, name);
                }
                Some(NVTX_MARK) => {
                    let name = name(out);
                    out.mark(TrackKey::Marks { thread, domain }, start, name, None);
                }
                _ => out.drop_row(Why::UnknownKind),
            }
            Ok(())
        })
    }

    pub(super) fn scheduling(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns =
            versions::columns(table, ["start", "cpu", "isSchedIn", "globalTid", "threadState"]);
        self.database.scan(table, leaves, columns, |_, [start, cpu, is_in, thread, state]| {
            let Some(ts) = out.when(start) else { return Ok(()) };
            let Some([thread, is_in]) = out.of([thread, is_in]) else { return Ok(()) };
            out.piece.switches.push(Switch {
                ts,
                thread,
                cpu: cpu.int().unwrap_or(-1),
                is_in: is_in != 0,
                state: state.int(),
            });
            Ok(())
        })
    }

    pub(super) fn cpu_faults(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(table, ["start", "globalPid"]);
        let name: Name = "cpu_page_fault".into();
        self.database.scan(table, leaves, columns, |_, [start, process]| {
            let Some(start) = out.when(start) else { return Ok(()) };
            let process = process.int().map_or(0, process_of);
            out.mark(
                TrackKey::Process { process, name: names::CPU_PAGE_FAULTS },
                start,
                name.clone(),
                None,
            );
            Ok(())
        })
    }

    pub(super) fn gpu_faults(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(table, FAULT_COLUMNS);
        let name: Name = "gpu_page_faults".into();
        self.database.scan(table, leaves, columns, |_, [start, end, process, device, faults]| {
            let Some(start) = out.when(start) else { return Ok(()) };
            let process = process.int().map_or(0, process_of);
            let track = TrackKey::Process { process, name: names::GPU_PAGE_FAULTS };
            let span = out.span(track, start, end, name.clone());
            let Some((id, _)) = span else { return Ok(()) };
            if let Some(faults) = unsigned(faults) {
                let (key, value) = (names::PAGE_FAULTS.into(), faults.to_string().as_str().into());
                out.piece.rows.attr.push(Attr { id, key, value });
            }
            if let Some(device) = device.int() {
                let gpu = out.device(process, device);
                out.piece.on_gpu.push((id, gpu));
            }
            Ok(())
        })
    }

    pub(super) fn chains(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(table, ["id", "stackDepth", "symbol", "module"]);
        self.database.scan(table, leaves, columns, |_, [sample, depth, symbol, module]| {
            let Some([sample, depth]) = out.of([sample, depth]) else { return Ok(()) };
            let [symbol, module] = [symbol, module].map(|v| v.int().unwrap_or(-1));
            out.piece.chains.push(ChainEntry { sample, depth, symbol, module });
            Ok(())
        })
    }

    pub(super) fn samples(
        &self,
        table: &TableDef,
        leaves: &[u32],
        out: &mut PieceBuilder<'_>,
    ) -> Result<()> {
        let columns = versions::columns(table, ["id", "start", "globalTid"]);
        self.database.scan(table, leaves, columns, |rowid, [sample, start, thread]| {
            let Some(ts) = out.when(start) else { return Ok(()) };
            let Some([thread]) = out.of([thread]) else { return Ok(()) };
            out.piece.samples.push(CpuSample { sample: sample.int().unwrap_or(rowid), ts, thread });
            Ok(())
        })
    }
}
