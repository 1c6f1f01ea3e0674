//! The sums of a trace, read in shards of time that threads share.

use std::collections::HashMap;
use std::ops::Range;

use gpuwhy_derive::devices::Devices;
use gpuwhy_derive::sweep::{Cut, Disorder, Sweep, Work as DeviceWork};
use gpuwhy_schema::{Copy, CopyKind, Id, Name, Ns, Span};
use gpuwhy_store::Trace;

use super::clocks::Clocks;
use super::sums::{Sums, moved};
use super::{Device, Gathered, INTERVALS, Options, WAITS, cut_time, without_devices};
use crate::error::{Error, Result};
use crate::parallel::in_order;
use crate::source::TraceSource;

/// Rows that a shard reads, about.
const SHARD_ROWS: u64 = 500_000;
/// A trace with fewer rows than this is not worth several shards.
const SMALL: u64 = 50_000;

/// The sums of the trace at `path`.
///
/// # Errors
/// It cannot be read, or holds no GPU work.
pub fn gather(path: &std::path::Path, options: &Options) -> Result<Gathered> {
    let source = TraceSource::open(path)?;
    let catalog = source.entities_and_tracks();
    let plan = Devices::of(&catalog.entity, &catalog.track);
    if plan.devices.is_empty() {
        return Err(without_devices::error(&source)?);
    }
    let (sums, cut) = read(&source, &plan, options)?;
    let devices = plan.devices.iter().map(Device::of).collect();
    let clocks = Clocks::of_trace(&plan, &catalog.track, &catalog.source);
    let names = catalog.clone();
    let (whole, incomplete) = (None, source.incomplete());
    let (source, reports) = (Some(source), Vec::new());
    Ok(Gathered { source, reports, devices, clocks, sums, cut, names, whole, incomplete })
}

/// Reads the whole, shard by shard.
fn read(source: &TraceSource, plan: &Devices, options: &Options) -> Result<(Sums, Cut)> {
    let trace = source.trace();
    let manifest = trace.manifest();
    let first = manifest.first_start(&["kernel", "copy"]);
    let (Some(first), Some(last)) = (first, manifest.end) else {
        return Err(without_devices::error(source)?);
    };
    let begins = manifest.last_end(&["kernel", "copy"]).unwrap_or(last);
    let cut = cut_time(first..last.max(first + 1), begins, options.interval)?;
    let rows: u64 = manifest.files_of("span").map(|f| f.rows).sum();
    let threads = options.threads();
    let shards = options.shards.unwrap_or_else(|| {
        let by_rows = usize::try_from(rows / SHARD_ROWS).unwrap_or(1);
        by_rows.max(if rows > SMALL { threads } else { 1 })
    });
    let shards = shards.clamp(1, INTERVALS);
    let all = cut.all();
    let border = |i: usize| {
        let length = i128::from(all.end - all.start);
        all.start + (length * i as i128 / shards as i128) as i64
    };
    let mut whole = Sums::new(cut);
    let work = |i: usize| shard(trace, plan, cut, border(i)..border(i + 1));
    in_order(shards, threads, work, |_, sums| {
        whole.merge(sums?);
        Ok::<_, Error>(())
    })?;
    Ok((whole, cut))
}

/// Work of a device.
struct Piece {
    device: u32,
    work: DeviceWork,
    start: i64,
    end: i64,
    bytes: u64,
    name: Name,
}

/// The sums of a shard of time.
fn shard(trace: &Trace, plan: &Devices, cut: Cut, shard: Range<i64>) -> Result<Sums> {
    let mut sums = Sums::new(cut);
    let spans = spans(trace, plan, &shard, &mut sums)?;
    let mut pieces = pieces(trace, plan, &shard, spans, &mut sums)?;
    pieces.sort_by_key(|p| p.start);
    let mut sweep = Sweep::new(cut, shard.clone());
    for piece in &pieces {
        let Piece { device, work, start, end, bytes, .. } = *piece;
        let unsorted = |e: Disorder| Error::Unsorted { path: trace.path().into(), at: e.start };
        sweep.push(device, work, start, end, bytes).map_err(unsorted)?;
        sums.last_end = sums.last_end.max(end.min(shard.end));
        if work == DeviceWork::Kernel && start >= shard.start {
            let interval = cut.index(start).unwrap_or(0);
            sums.kernels.entry(piece.name.clone()).or_default().add(interval, end - start);
        }
    }
    sums.intervals = sweep.finish();
    Ok(sums)
}

/// The spans of devices that reach into a shard; waits in collectives are added up on the way.
fn spans(trace: &Trace, plan: &Devices, shard: &Range<i64>, sums: &mut Sums) -> Result<Vec<Span>> {
    let mut spans: Vec<Span> = Vec::new();
    for rows in trace.read::<Span>(Ns(shard.start)..Ns(shard.end)) {
        for span in rows? {
            sums.rows += 1;
            // How long a span without an end took is not known.
            let Some(dur) = span.dur else { continue };
            let end = span.ts.saturating_add(dur);
            if span.ts.0 >= shard.end || (end.0 <= shard.start && span.ts.0 < shard.start) {
                continue;
            }
            let begins_here = span.ts.0 >= shard.start;
            if let Some(&rank) = plan.waits.get(&span.track) {
                if begins_here && WAITS.contains(&&*span.name) {
                    let waits = sums.waits.entry((span.name.clone(), rank)).or_default();
                    waits.sum.add(dur.0);
                    waits.first = waits.first.into_iter().chain([(span.ts.0, dur.0)]).min();
                }
            } else if plan.streams.contains_key(&span.track) {
                spans.push(span);
            }
        }
    }
    Ok(spans)
}

/// Work of devices from their spans; copies are counted by link on the way.
fn pieces(
    trace: &Trace,
    plan: &Devices,
    shard: &Range<i64>,
    spans: Vec<Span>,
    sums: &mut Sums,
) -> Result<Vec<Piece>> {
    let mut copies: HashMap<Id, Copy> = HashMap::new();
    if let Some(early) = spans.iter().map(|span| span.ts).min() {
        for rows in trace.read::<Copy>(early..Ns(shard.end)) {
            copies.extend(rows?.into_iter().map(|copy| (copy.id, copy)));
        }
    }
    let mut pieces: Vec<Piece> = Vec::with_capacity(spans.len());
    for span in spans {
        let copy = copies.get(&span.id);
        let (start, device) = (span.ts.0, plan.streams[&span.track]);
        let end = span.ts.saturating_add(span.dur.unwrap_or_default()).0;
        if let Some(copy) = copy.filter(|_| start >= shard.start) {
            if copy.kind == CopyKind::PeerToPeer
                && let (Some(from), Some(to)) = (copy.from, copy.to)
            {
                let link = sums.links.entry((from.0, to.0)).or_default();
                link.durations.add(end - start);
                link.bytes += copy.bytes;
            }
            sums.moved.extend(moved(device, copy.kind, copy.bytes, start, end));
        }
        pieces.push(Piece {
            device,
            work: copy.map_or(DeviceWork::Kernel, |copy| DeviceWork::Copy(copy.kind)),
            start,
            end,
            bytes: copy.map_or(0, |copy| copy.bytes),
            name: span.name,
        });
    }
    Ok(pieces)
}
