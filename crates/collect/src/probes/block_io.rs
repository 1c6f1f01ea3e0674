//! Requests to disks: what thread made each, how long it waited to be issued, how long the device
//! took.
//!
//! *What it sees*: each request when it is made, issued, merged into another, and completed; all
//! of those that threads of interest made, of others up to 2000 a second on each CPU, the rest in
//! sums per disk and per process. *Why it matters*: a thread in disk wait waits for one of
//! these, and the processes that had other requests there made it wait. *What fools it*: dirty pages
//! are written by the kernel's flusher threads long after a process wrote to them, and a journal's
//! commit by jbd2, which are named as submitters here; a flush is issued once for all threads that
//! ask for it at a time and is shown as the last one's. Requests of stacked devices (dm, md) are seen
//! at the disks below.
//!
//! A span begins when the request is made (`block_io_start`, in the context of the submitter; on
//! kernels before 6.5 when it is inserted) and ends when its last byte is completed, in the
//! context of the interrupt that reports it: the waiter is woken after that.

use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Io, IoOp, Lane, Measure, Name, Ns, SourceId, SourceState,
    Span, TrackId, names, sources,
};

use crate::bpf::process_sums::{self, ProcessSums};
use crate::bpf::{
    Head, LoadedObject, MappedArray, bpf_object, from_bytes, leave_out, set_map_entries,
    shared_with_c, text_of,
};
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::every::Every;
use crate::probe::{Probe, ProbeSpec, Start};

pub(crate) const PROBE: ProbeSpec =
    ProbeSpec::new("block_io", &sources::BLOCK_IO, "requests to disks and what made them", start);

/// How often new disks are looked for.
const SEARCH_EVERY: Ns = Ns::millis(100);

// The structs of `block_io.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["block_io"];

    struct Disk = "disk" {
        dev: u64,
        bytes: u64,
        device_ns: u64,
        flusher: u32,
        flusher_tgid: u32,
        flusher_of_interest: u32,
        pad: u32,
        flusher_comm: [u8; 16],
        name: [u8; 32],
    }

    struct Allowance = "allowance" {
        spent_until: u64,
        summed: u64,
        lost: u64,
    }

    struct Request = "record" {
        head: Head,
        begin: u64,
        issued: u64,
        sector: u64,
        bytes: u64,
        tgid: u32,
        disk: u16,
        op: u8,
        sync: u8,
        issuer: u32,
        issuer_tgid: u32,
        comm: [u8; 16],
    }
}

struct BlockIo {
    source: SourceId,
    disks: MappedArray<Disk>,
    allowances: MappedArray<Allowance>,
    sums: ProcessSums,
    /// The tracks of each slot of `disks` in use; a slot belongs to one disk for ever.
    tracks: Vec<Option<DiskTracks>>,
    span_names: SpanNames,
    rows: u64,
    searches: Every,
    next_note: Ns,
    _loaded: LoadedObject,
}

/// A disk's tracks and counters.
struct DiskTracks {
    entity: EntityId,
    io: TrackId,
    bytes_track: TrackId,
    time_track: TrackId,
    bytes: DeltaCounter,
    time: DeltaCounter,
}

/// Names of spans, made once.
struct SpanNames([(IoOp, Name); 5]);

impl SpanNames {
    fn new() -> SpanNames {
        let ops = [IoOp::Read, IoOp::Write, IoOp::Flush, IoOp::Discard, IoOp::Other];
        SpanNames(ops.map(|op| (op, op.as_str().into())))
    }

    fn of(&self, op: IoOp) -> Name {
        let known = self.0.iter().find(|(of, _)| *of == op);
        known.map_or_else(|| op.as_str().into(), |(_, name)| name.clone())
    }
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let bpf = start.bpf;
    // The tracepoints lost their argument `q` in 5.11.
    if bpf.tracepoint_arguments("block_rq_issue") != Some(1) {
        return Err(CollectError::Unsupported {
            missing: "the block tracepoints of this kernel have another form than since Linux 5.11"
                .into(),
            fix: "use a newer kernel; PSI and thread states still show disk waits".into(),
        });
    }
    let has_start = bpf.tracepoint_arguments("block_io_start").is_some();
    let mut loaded = bpf.load("block_io", bpf_object!("block_io"), |object| {
        process_sums::configure(object, bpf, 1)?;
        set_map_entries(object, "allowances", bpf.cpu_count() as u32)?;
        if has_start {
            leave_out(object, "block_rq_insert");
        }
        Ok(())
    })?;
    loaded.attach()?;
    let disks: MappedArray<Disk> = loaded.mapped("disks")?;
    let tracks = (0..disks.len()).map(|_| None).collect();
    Ok(Box::new(BlockIo {
        source: start.source,
        allowances: loaded.mapped("allowances")?,
        sums: ProcessSums::new(&loaded)?,
        disks,
        tracks,
        span_names: SpanNames::new(),
        rows: 0,
        searches: Every::new(SEARCH_EVERY),
        next_note: Ns::ZERO,
        _loaded: loaded,
    }))
}

impl Probe for BlockIo {
    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        let Some(request) = from_bytes::<Request>(bytes) else { return };
        let Some(tracks) = self.disk(usize::from(request.disk), cx) else { return };
        let (track, disk) = (tracks.io, tracks.entity);
        self.rows += 1;
        let thread = match request.head.tid {
            // Issued by an interrupt, and the submitter is not known.
            0 => cx.catalog.entity(EntityKind::Thread, "interrupt", |e| {
                e.parent = Some(cx.host);
                e.name = "(interrupt)".into();
            }),
            tid => cx.thread(tid, request.tgid, Some(&request.comm)),
        };
        let issuer = match request.issuer {
            0 => None,
            tid if tid == request.head.tid => Some(thread),
            tid => Some(cx.thread(tid, request.issuer_tgid, None)),
        };
        let (span, io) = request.rows(track, disk, thread, &self.span_names);
        let id = cx.ids.next_id();
        cx.rows.span.push(Span { id, ..span });
        cx.rows.io.push(Io { id, issuer, ..io });
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if self.searches.is_due(now) {
            for slot in 0..self.disks.len() {
                self.disk(slot, cx);
            }
        }
        for (slot, tracks) in self.tracks.iter_mut().enumerate() {
            let Some(tracks) = tracks else { continue };
            let disk = self.disks.read(slot);
            tracks.bytes.update(disk.bytes, now, &mut cx.rows, || tracks.bytes_track);
            tracks.time.update(disk.device_ns, now, &mut cx.rows, || tracks.time_track);
        }
        let (disks, source) = (&self.tracks, self.source);
        self.sums.each(now, |share| {
            let Some(Some(disk)) = disks.get(share.slot as usize) else { return };
            let Context { catalog, rows, attribution, .. } = &mut *cx;
            let (tgid, comm) = (share.tgid, share.comm);
            let mut track = |parent: TrackId, name: &str, unit: &str| {
                let process = attribution.process(catalog, tgid, Some(&comm));
                let kind = Lane::counter(name, unit, Measure::Delta);
                catalog.track(process, Some(parent), kind, source)
            };
            let [bytes, time, ..] = &mut share.counters;
            bytes.add(share.added[0], now, rows, || {
                track(disk.bytes_track, names::DISK_BYTES, "By")
            });
            time.add(share.added[1], now, rows, || track(disk.time_track, names::DISK_TIME, "ns"));
        });
        if now >= self.next_note {
            self.next_note = now + Ns::secs(1);
            self.note_sums(cx);
        }
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.summed()
    }

    fn dropped(&self) -> u64 {
        self.allowances.iter().map(|a| a.lost).sum()
    }

    fn finish(&mut self, _now: Ns, cx: &mut Context) {
        self.note_sums(cx);
    }
}

impl BlockIo {
    /// Requests that became no rows of their own.
    fn summed(&self) -> u64 {
        self.allowances.iter().map(|a| a.summed).sum()
    }

    /// Writes into the source's note that requests became sums instead of rows, if some did.
    fn note_sums(&mut self, cx: &mut Context) {
        let (rows, summed) = (self.rows, self.summed());
        if summed == 0 {
            return;
        }
        cx.catalog.update_source(self.source, |s| {
            s.state = SourceState::Degraded;
            s.one_in = u32::try_from((rows + summed).div_ceil(rows.max(1))).unwrap_or(u32::MAX);
            let note = "requests of threads not of interest beyond the limit of rows are summed \
                        per disk and process only";
            s.note = Some(note.into());
        });
    }

    /// The tracks of the disk in a slot; `None` while the slot is free.
    fn disk(&mut self, slot: usize, cx: &mut Context) -> Option<&mut DiskTracks> {
        let entry = self.tracks.get_mut(slot)?;
        if entry.is_none() {
            let disk = self.disks.read(slot);
            let name = text_of(&disk.name);
            // The slot is taken before the name is written.
            if disk.dev == 0 || name.is_empty() {
                return None;
            }
            let dev = disk.dev - 1;
            let entity = cx.catalog.entity(EntityKind::Disk, &name, |e| {
                e.parent = Some(cx.host);
                let dev = libc::makedev((dev >> 32) as u32, dev as u32);
                e.number = i64::try_from(dev).ok();
            });
            let mut track = |kind| cx.catalog.track(entity, None, kind, self.source);
            *entry = Some(DiskTracks {
                entity,
                io: track(Lane::spans(names::IO, Discipline::Overlap)),
                bytes_track: track(Lane::counter(names::DISK_BYTES, "By", Measure::Delta)),
                time_track: track(Lane::counter(names::DISK_TIME, "ns", Measure::Delta)),
                bytes: DeltaCounter::default(),
                time: DeltaCounter::default(),
            });
        }
        entry.as_mut()
    }
}

impl Request {
    /// The rows, without their id.
    fn rows(
        &self,
        track: TrackId,
        disk: EntityId,
        thread: EntityId,
        names: &SpanNames,
    ) -> (Span, Io) {
        let op = match self.op {
            // An empty write that asks for a flush never reaches the device as such.
            1 if self.bytes == 0 => IoOp::Flush,
            0 => IoOp::Read,
            1 | 7 => IoOp::Write,
            2 => IoOp::Flush,
            // Discard, secure erase, write zeroes.
            3 | 5 | 9 => IoOp::Discard,
            _ => IoOp::Other,
        };
        let (ts, end) = (Ns(self.begin as i64), Ns(self.head.ts as i64));
        let id = gpuwhy_schema::Id::default();
        (
            Span {
                id,
                ts,
                dur: Some(end.saturating_sub(ts).max(Ns::ZERO)),
                track,
                parent: None,
                name: names.of(op),
            },
            Io {
                id,
                ts,
                disk,
                thread,
                op,
                sync: self.sync != 0,
                bytes: self.bytes,
                sector: self.sector,
                issued: (self.issued != 0).then_some(Ns(self.issued as i64)),
                issuer: None,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_span_with_its_request() {
        let names = SpanNames::new();
        let check = |op, bytes: u64, issued: u64, expected: &str| {
            let mut raw = Vec::new();
            raw.extend(900_u64.to_ne_bytes()); // completed
            raw.extend([0, 4]);
            raw.extend(1_u16.to_ne_bytes());
            raw.extend(42_u32.to_ne_bytes());
            for n in [100, issued, 8, bytes] {
                raw.extend(n.to_ne_bytes());
            }
            raw.extend(41_u32.to_ne_bytes());
            raw.extend(3_u16.to_ne_bytes());
            raw.extend([op, 1]);
            raw.extend([0_u8; 8]); // issuer
            raw.extend(*b"writer\0\0\0\0\0\0\0\0\0\0");
            let request = from_bytes::<Request>(&raw).unwrap();
            assert_eq!(from_bytes::<Request>(&raw[1..]).map(|_| ()), None);
            let (span, io) = request.rows(TrackId(1), EntityId(2), EntityId(3), &names);
            let text = format!(
                "{} {}+{} {} bytes at {} issued {:?} sync {} of {} {}",
                span.name,
                span.ts.0,
                span.dur.unwrap().0,
                io.bytes,
                io.sector,
                io.issued.map(|n| n.0),
                io.sync,
                request.tgid,
                text_of(&request.comm),
            );
            assert_eq!(text, expected);
        };
        check(0, 4096, 300, "read 100+800 4096 bytes at 8 issued Some(300) sync true of 41 writer");
        check(1, 512, 300, "write 100+800 512 bytes at 8 issued Some(300) sync true of 41 writer");
        check(1, 0, 0, "flush 100+800 0 bytes at 8 issued None sync true of 41 writer");
        check(9, 0, 1, "discard 100+800 0 bytes at 8 issued Some(1) sync true of 41 writer");
        check(35, 0, 1, "other 100+800 0 bytes at 8 issued Some(1) sync true of 41 writer");
    }
}
