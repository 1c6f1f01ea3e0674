//! Shortage of memory: what freed memory, for how long, and what emptied the page cache.
//!
//! *What it sees*: direct reclaim, reclaim within a memory cgroup and compaction, as spans of
//! threads of interest and as time per process of all others; pages that leave and enter the page
//! cache, per process, and of those that enter it, whether they hold data that a file had already, and who had evicted
//! pages of that file; kswapd waking up; victims of the OOM killer. *Why it matters*: a thread that allocates when memory is short frees memory first, and
//! pages that another process evicts must be read from the disk again. *What fools it*: pages that
//! kswapd evicts count as kswapd's, although the process that took the memory is the cause: what
//! processes added (`page_cache_added`) or reclaimed meanwhile says more; a file that is deleted
//! counts as evicted, although no process reads it again. Which pages of a file were evicted is not kept: one that reads
//! others of the same file, which were never in memory, reads as many again as had been evicted. What was evicted
//! before the recording is not known.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Discipline, EntityId, Lane, Mark, Measure, Name, Ns, SourceId, Span, TrackId, names, sources,
};

use crate::bpf::process_sums::{self, ProcessSums};
use crate::bpf::{Head, LoadedObject, bpf_object, from_bytes, leave_out, shared_with_c};
use crate::context::Context;
use crate::error::CollectError;
use crate::probe::{How, Probe, ProbeSpec, Shedding, Start};
use crate::shed::Shed;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    sheds: &[Shedding {
        shed: Shed::PageCache,
        how: How::Pause,
        missing: "the page cache is not recorded",
    }],
    ..ProbeSpec::new(
        "memory",
        &sources::MEMORY,
        "reclaim, and which process emptied the page cache",
        start,
    )
};

/// Counter track of a process (delta, 1): pages it added to the page cache.
const PAGE_CACHE_ADDED: &str = "page_cache_added";

/// Mark track of the host and of processes: `kswapd_wake` with the node, `oom_kill` with the pid
/// of the victim.
const MEMORY_EVENTS: &str = "memory_events";

/// Tracks of threads that are remembered.
const THREAD_TRACKS: usize = 16 * 1024;

// The structs and enums of `memory.bpf.c`, where each is explained.
shared_with_c! {
    objects ["memory"];

    enum Kind = "kind" { Span, Kswapd, Oom, }

    enum Summed = "summed" { Evicted, Added, ReclaimNs, Missed, }

    enum Effort = "effort" { DirectReclaim, MemcgReclaim, Compaction, }

    struct Record = "record" {
        head: Head,
        begin: u64,
        value: u64,
        tgid: u32,
        effort: u32,
        comm: [u8; 16],
    }
}

impl Summed {
    /// Name and unit of its counter.
    fn counter(self) -> (&'static str, &'static str) {
        match self {
            Summed::Evicted => (names::PAGE_CACHE_EVICTED, "1"),
            Summed::Added => (PAGE_CACHE_ADDED, "1"),
            Summed::ReclaimNs => (names::RECLAIM, "ns"),
            Summed::Missed => (names::PAGE_CACHE_MISSED, "1"),
        }
    }
}

impl Effort {
    /// What its spans are called.
    fn name(self) -> &'static str {
        match self {
            Effort::DirectReclaim => "direct_reclaim",
            Effort::MemcgReclaim => "memcg_reclaim",
            Effort::Compaction => "compaction",
        }
    }
}

struct Memory {
    source: SourceId,
    sums: ProcessSums,
    tracks: HashMap<EntityId, TrackId>,
    /// Names of spans, by [`Effort`].
    efforts: [Name; Effort::ALL.len()],
    recorded: u64,
    loaded: LoadedObject,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let bpf = start.bpf;
    let mut loaded = bpf.load("memory", bpf_object!("memory"), |object| {
        process_sums::configure(object, bpf, 3)?;
        // Before 6.10 it carries no task.
        if bpf.tracepoint_arguments("mark_victim") < Some(2) {
            leave_out(object, "mark_victim");
        }
        Ok(())
    })?;
    loaded.attach()?;
    Ok(Box::new(Memory {
        source: start.source,
        sums: ProcessSums::new(&loaded)?,
        tracks: HashMap::new(),
        efforts: Effort::ALL.map(|effort| effort.name().into()),
        recorded: 0,
        loaded,
    }))
}

impl Probe for Memory {
    fn event(&mut self, kind: u8, bytes: &[u8], cx: &mut Context) {
        let Some(record) = from_bytes::<Record>(bytes) else { return };
        match Kind::from_code(kind) {
            Some(Kind::Span) => self.span(&record, cx),
            Some(Kind::Kswapd) => self.mark("kswapd_wake", cx.host, &record, cx),
            Some(Kind::Oom) => {
                // The victim's pid is where other records have the pages that were freed.
                let Ok(pid) = u32::try_from(record.value) else { return };
                let victim = cx.process(pid, Some(&record.comm));
                self.mark("oom_kill", victim, &record, cx);
            }
            None => {}
        }
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let (source, recorded) = (self.source, &mut self.recorded);
        self.sums.each(now, |share| {
            let Context { catalog, rows, attribution, .. } = &mut *cx;
            let (tgid, comm, evictor) = (share.tgid, share.comm, share.slot);
            for (i, (name, unit)) in Summed::ALL.map(Summed::counter).into_iter().enumerate() {
                *recorded += if unit == "1" { share.added[i] } else { 0 };
                share.counters[i].add(share.added[i], now, rows, || {
                    let process = attribution.process(catalog, tgid, Some(&comm));
                    let by = (evictor != 0).then(|| {
                        let evictor = attribution.process(catalog, evictor, None);
                        let kind = Lane::counter(names::PAGE_CACHE_EVICTED, "1", Measure::Delta);
                        catalog.track(evictor, None, kind, source)
                    });
                    catalog.track(process, by, Lane::counter(name, unit, Measure::Delta), source)
                });
            }
        });
        Ok(())
    }

    fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        self.loaded.pause(paused)
    }

    fn recorded(&self) -> u64 {
        self.recorded
    }
}

impl Memory {
    fn span(&mut self, record: &Record, cx: &mut Context) {
        let Some(name) = self.efforts.get(record.effort as usize) else { return };
        let (tid, tgid) = (record.head.tid, record.tgid);
        let thread = cx.thread(tid, tgid, Some(&record.comm));
        if self.tracks.len() >= THREAD_TRACKS {
            self.tracks.clear();
        }
        let track = *self.tracks.entry(thread).or_insert_with(|| {
            let kind = Lane::spans(names::MEMORY, Discipline::Nested);
            cx.catalog.track(thread, None, kind, self.source)
        });
        cx.rows.span.push(Span {
            id: cx.ids.next_id(),
            ts: Ns(record.begin as i64),
            dur: Some(Ns(record.head.ts.saturating_sub(record.begin) as i64)),
            track,
            parent: None,
            name: name.clone(),
        });
    }

    fn mark(&self, name: &str, entity: EntityId, record: &Record, cx: &mut Context) {
        let track = cx.catalog.track(entity, None, Lane::marks(MEMORY_EVENTS), self.source);
        cx.rows.mark.push(Mark {
            id: cx.ids.next_id(),
            ts: Ns(record.head.ts as i64),
            track,
            name: name.into(),
            value: Some(record.value as f64),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::text_of;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut raw = Vec::new();
        raw.extend(900_u64.to_ne_bytes());
        raw.extend([0, 3]);
        raw.extend(3_u16.to_ne_bytes());
        raw.extend(42_u32.to_ne_bytes());
        raw.extend(400_u64.to_ne_bytes());
        raw.extend(32_u64.to_ne_bytes());
        raw.extend(41_u32.to_ne_bytes());
        raw.extend(1_u32.to_ne_bytes());
        raw.extend(*b"eater\0\0\0\0\0\0\0\0\0\0\0");
        let record = from_bytes::<Record>(&raw).unwrap();
        assert_eq!((record.head.ts, record.begin, record.value), (900, 400, 32));
        assert_eq!((record.head.tid, record.tgid), (42, 41));
        assert_eq!(Effort::from_code(record.effort as u8).map(Effort::name), Some("memcg_reclaim"));
        assert_eq!(text_of(&record.comm), "eater");
        assert!(from_bytes::<Record>(&raw[..55]).is_none());
    }
}
