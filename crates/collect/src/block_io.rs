//! Requests to disks: who asked, how long each waited to be issued, how long the device took.
//!
//! *What it sees*: each request when it is made, issued, merged into another, and completed; all
//! of those that threads of interest made, of others up to 2000 a second on each CPU, the rest in
//! sums per disk and per process. *Why it matters*: a thread in disk wait waits for one of
//! these, and who else had requests there is who made it wait. *What fools it*: dirty pages are
//! written by the kernel's flusher threads long after somebody dirtied them, and a journal's
//! commit by jbd2, which are named as submitters here; a flush is issued once for all who ask for
//! it at a time and is shown as the last one's. Requests of stacked devices (dm, md) are seen at
//! the disks below.
//!
//! A span begins when the request is made (`block_io_start`, in the context of the submitter; on
//! kernels before 6.5 when it is inserted) and ends when its last byte is completed, in the
//! context of the interrupt that reports it: the waiter is woken after that.

use std::rc::Rc;

use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Io, IoOp, Lane, Measure, Name, Ns, SourceId, SourceState,
    Span, TrackId, names,
};

use crate::context::{CollectError, Context, Probe, Start};
use crate::delta::Delta;
use crate::kernel::{Head, Kernel, Loaded, Mapped, ProbeNumber, bpf_object, plain, record};
use crate::sums::{self, Sums};

/// New disks are looked for so often.
const LOOK: Ns = Ns::millis(100);

record! {
    /// As `struct disk` in `block_io.bpf.c`.
    struct Disk {
        dev: u64,
        bytes: u64,
        device_ns: u64,
        flusher: u32,
        flusher_tgid: u32,
        flusher_wanted: u32,
        pad: u32,
        flusher_comm: [u8; 16],
        name: [u8; 32],
    }
}

record! {
    /// As `struct allowance` in `block_io.bpf.c`.
    struct Allowance {
        spent_until: u64,
        summed: u64,
        lost: u64,
    }
}

record! {
    /// As `struct record` in `block_io.bpf.c`.
    struct Request {
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
    disks: Mapped<Disk>,
    allowances: Mapped<Allowance>,
    sums: Sums,
    /// What is known of each slot of `disks` in use; slots are taken once and for all.
    lanes: Vec<Option<Lanes>>,
    words: Words,
    rows: u64,
    next_look: Ns,
    next_account: Ns,
    _loaded: Loaded,
}

/// A disk's tracks and what was last read of it.
struct Lanes {
    entity: EntityId,
    io: TrackId,
    bytes_track: TrackId,
    time_track: TrackId,
    bytes: Delta,
    time: Delta,
}

/// Names of spans, made once.
struct Words([(IoOp, Name); 5]);

/// Starts the probe.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let kernel: &Rc<Kernel> = start.kernel;
    if let Some(1) = kernel.tracepoint("block_rq_issue") {
    } else {
        return Err(CollectError::Unsupported {
            what: "the block tracepoints of this kernel are older than Linux 5.11".into(),
            fix: "use a newer kernel; PSI and thread states still show disk waits".into(),
        });
    }
    let begins = kernel.tracepoint("block_io_start").is_some();
    let mut loaded = kernel.load("block_io", bpf_object!("block_io"), |open| {
        sums::configure(open, kernel, 1)?;
        for mut map in open.maps_mut() {
            if map.name() == "allowances" {
                map.set_max_entries(kernel.cpu_count() as u32)?;
            }
        }
        for mut program in open.progs_mut() {
            if begins && program.name() == "block_rq_insert" {
                program.set_autoload(false);
            }
        }
        Ok(())
    })?;
    loaded.attach()?;
    let disks: Mapped<Disk> = loaded.mapped("disks")?;
    let lanes = (0..disks.len()).map(|_| None).collect();
    Ok(Box::new(BlockIo {
        source: start.source,
        allowances: loaded.mapped("allowances")?,
        sums: Sums::new(&loaded)?,
        disks,
        lanes,
        words: Words([
            (IoOp::Read, "read".into()),
            (IoOp::Write, "write".into()),
            (IoOp::Flush, "flush".into()),
            (IoOp::Discard, "discard".into()),
            (IoOp::Other, "other".into()),
        ]),
        rows: 0,
        next_look: Ns::ZERO,
        next_account: Ns::ZERO,
        _loaded: loaded,
    }))
}

impl Probe for BlockIo {
    fn name(&self) -> &'static str {
        "block_io"
    }

    fn kinds(&self) -> std::ops::Range<u16> {
        ProbeNumber::BlockIo.kinds()
    }

    fn event(&mut self, _kind: u16, bytes: &[u8], cx: &mut Context) {
        let Some(request) = plain::<Request>(bytes) else { return };
        let Some(lanes) = self.disk(usize::from(request.disk), cx) else { return };
        let (track, disk) = (lanes.io, lanes.entity);
        self.rows += 1;
        let thread = match request.head.tid {
            // Issued by an interrupt on nobody's behalf that we know of.
            0 => cx.lanes.entity(EntityKind::Thread, "interrupt", |e| {
                e.parent = Some(cx.host);
                e.name = "(interrupt)".into();
            }),
            tid => cx.people.thread(&mut cx.lanes, tid, request.tgid, Some(&request.comm)),
        };
        let issuer = match request.issuer {
            0 => None,
            tid if tid == request.head.tid => Some(thread),
            tid => Some(cx.people.thread(&mut cx.lanes, tid, request.issuer_tgid, None)),
        };
        let (span, io) = request.rows(track, disk, thread, &self.words);
        let id = cx.ids.next_id();
        cx.rows.span.push(Span { id, ..span });
        cx.rows.io.push(Io { id, issuer, ..io });
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if now >= self.next_look {
            self.next_look = now + LOOK;
            for slot in 0..self.disks.len() {
                self.disk(slot, cx);
            }
        }
        for (slot, lanes) in self.lanes.iter_mut().enumerate() {
            let Some(lanes) = lanes else { continue };
            let disk = self.disks.read(slot);
            lanes.bytes.to(disk.bytes, now, &mut cx.rows, || lanes.bytes_track);
            lanes.time.to(disk.device_ns, now, &mut cx.rows, || lanes.time_track);
        }
        let (tracks, source) = (&self.lanes, self.source);
        self.sums.each(now, |who| {
            let Some(Some(disk)) = tracks.get(who.slot as usize) else { return };
            let Context { lanes, rows, people, .. } = &mut *cx;
            let (tgid, comm) = (who.tgid, who.comm);
            let mut track = |parent: TrackId, name: &str, unit: &str| {
                let process = people.process(lanes, tgid, Some(&comm));
                let lane = Lane::counter(name, unit, Measure::Delta);
                lanes.track(process, Some(parent), lane, source)
            };
            let [bytes, time, ..] = &mut who.deltas;
            bytes.add(who.added[0], now, rows, || track(disk.bytes_track, names::DISK_BYTES, "By"));
            time.add(who.added[1], now, rows, || track(disk.time_track, names::DISK_TIME, "ns"));
        })?;
        if now >= self.next_account {
            self.next_account = now + Ns::secs(1);
            self.account(cx);
        }
        Ok(())
    }

    fn counted(&self) -> u64 {
        self.sum(|a| a.summed)
    }

    fn dropped(&self) -> u64 {
        self.sum(|a| a.lost)
    }

    fn finish(&mut self, _now: Ns, cx: &mut Context) {
        self.account(cx);
    }
}

impl BlockIo {
    fn sum(&self, of: impl Fn(&Allowance) -> u64) -> u64 {
        (0..self.allowances.len()).map(|i| of(&self.allowances.read(i))).sum()
    }

    /// Says so if requests of others became sums instead of rows.
    fn account(&mut self, cx: &mut Context) {
        let (rows, summed) = (self.rows, self.counted());
        if summed == 0 {
            return;
        }
        cx.lanes.update_source(self.source, |s| {
            s.state = SourceState::Degraded;
            s.one_in = u32::try_from((rows + summed).div_ceil(rows.max(1))).unwrap_or(u32::MAX);
            let note = "requests of threads not of interest beyond the limit of rows are summed \
                        per disk and process only";
            s.note = Some(note.into());
        });
    }

    fn disk(&mut self, slot: usize, cx: &mut Context) -> Option<&mut Lanes> {
        let entry = self.lanes.get_mut(slot)?;
        if entry.is_none() {
            let disk = self.disks.read(slot);
            let name = name(&disk.name);
            // The slot is taken before the name is written.
            if disk.dev == 0 || name.is_empty() {
                return None;
            }
            let dev = disk.dev - 1;
            let entity = cx.lanes.entity(EntityKind::Disk, &name, |e| {
                e.parent = Some(cx.host);
                let dev = libc::makedev((dev >> 32) as u32, dev as u32);
                e.number = i64::try_from(dev).ok();
            });
            let mut track = |lane| cx.lanes.track(entity, None, lane, self.source);
            *entry = Some(Lanes {
                entity,
                io: track(Lane::spans(names::IO, Discipline::Overlap)),
                bytes_track: track(Lane::counter(names::DISK_BYTES, "By", Measure::Delta)),
                time_track: track(Lane::counter(names::DISK_TIME, "ns", Measure::Delta)),
                bytes: Delta::default(),
                time: Delta::default(),
            });
        }
        entry.as_mut()
    }
}

impl Request {
    /// The rows, but for their id.
    fn rows(&self, track: TrackId, disk: EntityId, thread: EntityId, words: &Words) -> (Span, Io) {
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
        let name = words.0.iter().find(|(word, _)| *word == op).map(|(_, name)| name.clone());
        let (ts, end) = (Ns(self.begin as i64), Ns(self.head.ts as i64));
        let id = gpuwhy_schema::Id::default();
        (
            Span {
                id,
                ts,
                dur: Some(end.saturating_sub(ts).max(Ns::ZERO)),
                track,
                parent: None,
                name: name.unwrap_or_else(|| op.as_str().into()),
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

/// What stands before the first NUL.
pub(crate) fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::same_layout;

    #[test]
    fn a_record_is_a_span_with_its_request() {
        let words = Words([
            (IoOp::Read, "read".into()),
            (IoOp::Write, "write".into()),
            (IoOp::Flush, "flush".into()),
            (IoOp::Discard, "discard".into()),
            (IoOp::Other, "other".into()),
        ]);
        let check = |op, bytes: u64, issued: u64, expected: &str| {
            let mut raw = Vec::new();
            raw.extend(900_u64.to_ne_bytes()); // completed
            raw.extend(0x0400_u16.to_ne_bytes());
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
            let request = plain::<Request>(&raw).unwrap();
            assert_eq!(plain::<Request>(&raw[1..]).map(|_| ()), None);
            let (span, io) = request.rows(TrackId(1), EntityId(2), EntityId(3), &words);
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
                name(&request.comm),
            );
            assert_eq!(text, expected);
        };
        check(0, 4096, 300, "read 100+800 4096 bytes at 8 issued Some(300) sync true of 41 writer");
        check(1, 512, 300, "write 100+800 512 bytes at 8 issued Some(300) sync true of 41 writer");
        check(1, 0, 0, "flush 100+800 0 bytes at 8 issued None sync true of 41 writer");
        check(9, 0, 1, "discard 100+800 0 bytes at 8 issued Some(1) sync true of 41 writer");
        check(35, 0, 1, "other 100+800 0 bytes at 8 issued Some(1) sync true of 41 writer");
    }

    #[test]
    fn both_halves_agree_on_every_record() {
        same_layout("block_io", "disk", size_of::<Disk>(), Disk::LAYOUT);
        same_layout("block_io", "allowance", size_of::<Allowance>(), Allowance::LAYOUT);
        same_layout("block_io", "record", size_of::<Request>(), Request::LAYOUT);
    }
}
