//! Locks of files that are asked for again and again.
//!
//! *What it sees*: of threads of targets, the time from a try for a lock of a file (`fcntl`, `flock`) that was in
//! vain to the next one, and the process that held the lock. *Why it matters*: a program that must not block, as
//! SQLite's busy handler or the package `filelock` of Python, sleeps in between by itself: it looks as if it slept of
//! its own will, and nobody wakes it when the lock is free.
//!
//! *What fools it*: locks that are files which are made and removed; a lock that was given up between the try and the
//! look at who has it (microseconds); a descriptor that a child inherited and its parent closed, whose lock the parent
//! is said to hold; locks that a server of files keeps for other hosts.
//!
//! *What it costs*: 0.1 µs of each call that locks or unlocks a file, of any process (1.2 million calls of `fcntl` by one
//! that is no target, on two shared virtual CPUs, Linux 6.18, by the kernel's own statistics, which add 20 to 40 ns); up to
//! 64 locks of the file are read where a target's try was in vain.

use gpuwhy_schema::{Discipline, Lane, Ns, SourceId, State, names, sources};

use crate::bpf::{Head, LoadedObject, bpf_object, from_bytes, shared_with_c};
use crate::context::Context;
use crate::error::CollectError;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::sys::ns;
use crate::thread_tracks::ThreadTracks;

pub(crate) const PROBE: ProbeSpec = ProbeSpec::new(
    "file_locks",
    &sources::FILE_LOCKS,
    "who holds the locks of files that are asked for in vain",
    start,
);

/// Threads that are kept.
const THREADS: usize = 4096;

// The struct of `file_locks.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["file_locks"];

    struct TryRecord = "try_record" {
        head: Head,
        from: u64,
        tgid: u32,
        holder: u32,
    }
}

struct FileLocks {
    rows: TryRows,
    _loaded: LoadedObject,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut loaded = start.bpf.load("file_locks", bpf_object!("file_locks"), |_| Ok(()))?;
    loaded.attach()?;
    Ok(Box::new(FileLocks { rows: TryRows::new(start.source), _loaded: loaded }))
}

impl Probe for FileLocks {
    fn tick(&mut self, _now: Ns, _cx: &mut Context) -> Result<(), CollectError> {
        Ok(())
    }

    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        if let Some(record) = from_bytes::<TryRecord>(bytes) {
            self.rows.tried(&record, cx);
        }
    }
}

/// Turns records into rows.
struct TryRows {
    /// Of each thread also until when its track has rows.
    threads: ThreadTracks<Ns>,
}

impl TryRows {
    fn new(source: SourceId) -> TryRows {
        let kind = Lane::states(names::FILE_LOCK_HOLDER, Discipline::Sparse);
        TryRows { threads: ThreadTracks::new(source, kind, THREADS) }
    }

    fn tried(&mut self, r: &TryRecord, cx: &mut Context) {
        let holder = cx.thread(r.holder, r.holder, None);
        let thread = self.threads.of(r.head.tid, r.tgid, cx);
        let (from, to) = (ns(r.from).max(thread.more), ns(r.head.ts));
        if from >= to {
            return;
        }
        thread.more = to;
        cx.rows.state.push(State {
            ts: from,
            dur: Some(to - from),
            track: thread.track,
            value: holder.0.into(),
            arg: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that does not exist.
    const TID: u32 = 4_000_000_000;

    fn record(from: u64, ts: u64) -> TryRecord {
        let head = Head { ts, tid: TID, ..Head::default() };
        TryRecord { head, from, tgid: TID, holder: TID + 1 }
    }

    #[test]
    fn from_one_try_to_the_next_the_holder_is_named_and_no_time_twice() {
        let mut cx = Context::new();
        let mut rows = TryRows::new(cx.catalog.source("bpf:file_locks", "test", "0", ""));
        for (from, ts) in [(10, 20), (20, 45), (40, 50), (50, 50)] {
            rows.tried(&record(from, ts), &mut cx);
        }
        let found: Vec<_> = cx.rows.state.iter().map(|s| (s.ts.0, s.dur.unwrap().0)).collect();
        assert_eq!(found, [(10, 10), (20, 25), (45, 5)]);
        let holder = cx.thread(TID + 1, TID + 1, None);
        assert!(cx.rows.state.iter().all(|s| s.value == i64::from(holder.0)));
    }

    #[test]
    fn any_bytes_are_tolerated() {
        let mut cx = Context::new();
        let mut rows = TryRows::new(cx.catalog.source("bpf:file_locks", "test", "0", ""));
        for fill in [0x00, 0x01, 0x7f, 0xff] {
            for len in 0..64 {
                if let Some(record) = from_bytes::<TryRecord>(&vec![fill; len]) {
                    rows.tried(&record, &mut cx);
                }
            }
        }
    }
}
