//! Memory that was short: who made room, for how long, and who emptied the page cache.
//!
//! *What it sees*: direct reclaim, reclaim within a memory cgroup and compaction, as spans of
//! threads of interest and as time per process of all others; pages that leave and enter the page
//! cache, per process; page faults of threads of interest; kswapd waking up; victims of the OOM
//! killer. *Why it matters*: a thread that allocates when memory is short works for others first,
//! and pages that somebody throws out must be read from the disk again. *What fools it*: pages
//! that kswapd throws out count as kswapd's, although whoever took the memory is the cause: who
//! entered pages (`page_cache_added`) or reclaimed meanwhile says more; a file that is deleted
//! counts as evicted, although nobody will miss it.

use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Discipline, EntityId, Lane, Mark, Measure, Name, Ns, SourceId, Span, TrackId, names,
};

use crate::context::{CollectError, Context, Probe, Start};
use crate::kernel::{Head, Kernel, Loaded, ProbeNumber, bpf_object, plain, record};
use crate::sums::{self, SUMS, Sums};

/// Counter track of a process (delta, 1): pages it brought into the page cache.
const PAGE_CACHE_ADDED: &str = "page_cache_added";

/// Counter track of a process (delta, 1): page faults of its threads of interest.
const PAGE_FAULTS: &str = "page_faults";

/// Mark track of the host and of processes: `kswapd_wake` with the node, `oom_kill` with the pid
/// of the victim.
const MEMORY_EVENTS: &str = "memory_events";

/// Tracks of threads that are remembered.
const THREAD_TRACKS: usize = 16 * 1024;

/// Name and unit of the counter of each sum; as the `SUM_…` of `memory.bpf.c`.
const COUNTERS: [(&str, &str); SUMS] = [
    (names::PAGE_CACHE_EVICTED, "1"),
    (PAGE_CACHE_ADDED, "1"),
    (names::RECLAIM, "ns"),
    (PAGE_FAULTS, "1"),
];

/// Names of spans; as `enum effort` in `memory.bpf.c`.
const EFFORTS: [&str; 3] = ["direct_reclaim", "memcg_reclaim", "compaction"];

record! {
    /// As `struct record` in `memory.bpf.c`.
    struct Record {
        head: Head,
        begin: u64,
        value: u64,
        tgid: u32,
        effort: u32,
        comm: [u8; 16],
    }
}

struct Memory {
    source: SourceId,
    sums: Sums,
    tracks: HashMap<EntityId, TrackId>,
    efforts: [Name; EFFORTS.len()],
    counted: u64,
    loaded: Loaded,
}

/// Starts the probe.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let kernel: &Rc<Kernel> = start.kernel;
    let mut loaded = kernel.load("memory", bpf_object!("memory"), |open| {
        sums::configure(open, kernel, 2)?;
        for mut program in open.progs_mut() {
            // Before 6.10 it brings no task.
            if program.name() == "mark_victim" && kernel.tracepoint("mark_victim") < Some(2) {
                program.set_autoload(false);
            }
        }
        Ok(())
    })?;
    loaded.attach()?;
    Ok(Box::new(Memory {
        source: start.source,
        sums: Sums::new(&loaded)?,
        tracks: HashMap::new(),
        efforts: EFFORTS.map(Name::from),
        counted: 0,
        loaded,
    }))
}

impl Probe for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn kinds(&self) -> std::ops::Range<u16> {
        ProbeNumber::Memory.kinds()
    }

    fn event(&mut self, kind: u16, bytes: &[u8], cx: &mut Context) {
        let Some(record) = plain::<Record>(bytes) else { return };
        match kind - self.kinds().start {
            0 => self.span(&record, cx),
            1 => self.mark("kswapd_wake", cx.host, &record, cx),
            2 => {
                // The victim's number stands where others have what they freed.
                let Ok(pid) = u32::try_from(record.value) else { return };
                let victim = cx.people.process(&mut cx.lanes, pid, Some(&record.comm));
                self.mark("oom_kill", victim, &record, cx);
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let (source, counted) = (self.source, &mut self.counted);
        self.sums.each(now, |who| {
            let Context { lanes, rows, people, .. } = &mut *cx;
            let (tgid, comm) = (who.tgid, who.comm);
            for (i, (name, unit)) in COUNTERS.into_iter().enumerate() {
                *counted += if unit == "1" { who.added[i] } else { 0 };
                who.deltas[i].add(who.added[i], now, rows, || {
                    let process = people.process(lanes, tgid, Some(&comm));
                    let lane = Lane::counter(name, unit, Measure::Delta);
                    lanes.track(process, None, lane, source)
                });
            }
        })
    }

    fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        self.loaded.pause(paused)
    }

    fn counted(&self) -> u64 {
        self.counted
    }
}

impl Memory {
    fn span(&mut self, record: &Record, cx: &mut Context) {
        let Some(word) = self.efforts.get(record.effort as usize) else { return };
        let (tid, tgid) = (record.head.tid, record.tgid);
        let thread = cx.people.thread(&mut cx.lanes, tid, tgid, Some(&record.comm));
        if self.tracks.len() >= THREAD_TRACKS {
            self.tracks.clear();
        }
        let track = *self.tracks.entry(thread).or_insert_with(|| {
            let lane = Lane::spans(names::MEMORY, Discipline::Nested);
            cx.lanes.track(thread, None, lane, self.source)
        });
        cx.rows.span.push(Span {
            id: cx.ids.next_id(),
            ts: Ns(record.begin as i64),
            dur: Some(Ns(record.head.ts.saturating_sub(record.begin) as i64)),
            track,
            parent: None,
            name: word.clone(),
        });
    }

    fn mark(&self, word: &str, whose: EntityId, record: &Record, cx: &mut Context) {
        let track = cx.lanes.track(whose, None, Lane::marks(MEMORY_EVENTS), self.source);
        cx.rows.mark.push(Mark {
            id: cx.ids.next_id(),
            ts: Ns(record.head.ts as i64),
            track,
            name: word.into(),
            value: Some(record.value as f64),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_io::name;
    use crate::kernel::tests::same_layout;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut raw = Vec::new();
        raw.extend(900_u64.to_ne_bytes());
        raw.extend(0x0600_u16.to_ne_bytes());
        raw.extend(3_u16.to_ne_bytes());
        raw.extend(42_u32.to_ne_bytes());
        raw.extend(400_u64.to_ne_bytes());
        raw.extend(32_u64.to_ne_bytes());
        raw.extend(41_u32.to_ne_bytes());
        raw.extend(1_u32.to_ne_bytes());
        raw.extend(*b"eater\0\0\0\0\0\0\0\0\0\0\0");
        let record = plain::<Record>(&raw).unwrap();
        assert_eq!((record.head.ts, record.begin, record.value), (900, 400, 32));
        assert_eq!((record.head.tid, record.tgid), (42, 41));
        assert_eq!(EFFORTS[record.effort as usize], "memcg_reclaim");
        assert_eq!(name(&record.comm), "eater");
        assert!(plain::<Record>(&raw[..55]).is_none());
    }

    #[test]
    fn both_halves_agree_on_every_record() {
        same_layout("memory", "record", size_of::<Record>(), Record::LAYOUT);
    }
}
