//! Pauses of CPython's garbage collector.
//!
//! *What it sees*: the static probes `gc__start` and `gc__done` of an interpreter, in targets and their descendants:
//! each collection of 0.2 ms or more, on whichever thread it was. *Why it matters*: a collection of all objects of a
//! large program takes seconds, holds the interpreter lock, and looks like work of the program.
//!
//! *What fools it*: an interpreter that was built without `--with-dtrace` has no such probes (Debian's has them, one
//! that pyenv built has not), and its pauses stay the program's own; interpreters that the probe `python` does not find.
//!
//! *What it costs the target*: two probes a collection, those of the youngest objects included.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::rc::Rc;

use gpuwhy_schema::{Discipline, Lane, Ns, SourceId, Span, names, sources};

use crate::bpf::{Bpf, Head, LoadedObject, bpf_object, from_bytes, shared_with_c, uprobes};
use crate::context::Context;
use crate::elf::{self, StaticProbe};
use crate::error::{CollectError, error_chain};
use crate::probe::{Probe, ProbeSpec, Start};
use crate::sys::{self, ns};
use crate::thread_tracks::ThreadTracks;

pub(crate) const PROBE: ProbeSpec = ProbeSpec::new(
    "python_gc",
    &sources::PYTHON_GC,
    "pauses of the garbage collector of Python",
    start,
);

/// What the spans are called, as in the class `gc_pause`.
const PAUSE: &str = "gc";
/// Files that were looked at, and threads that are kept.
const KEPT: usize = 4096;

// The struct of `python_gc.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["python_gc"];

    struct PauseRecord = "pause_record" {
        head: Head,
        from: u64,
        tgid: u32,
        pad: u32,
    }
}

/// A file by its device and inode.
type FileKey = (u64, u64);

struct PythonGc {
    bpf: Rc<Bpf>,
    /// Loaded when the first interpreter was found.
    loaded: Option<LoadedObject>,
    files: BTreeSet<FileKey>,
    rows: PauseRows,
}

/// Loads nothing before an interpreter was found in a target.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    start.bpf.check()?;
    Ok(Box::new(PythonGc {
        bpf: Rc::clone(start.bpf),
        loaded: None,
        files: BTreeSet::new(),
        rows: PauseRows::new(start.source),
    }))
}

impl PythonGc {
    /// Attaches to an interpreter if it is new.
    fn found(&mut self, file: &File) -> Result<(), CollectError> {
        let Ok(meta) = file.metadata() else { return Ok(()) };
        let key = (meta.dev(), meta.ino());
        if self.files.len() >= KEPT || !self.files.insert(key) {
            return Ok(());
        }
        let probes = elf::static_probes(file, "python");
        let of = |name| probes.iter().find(|probe| probe.name == name);
        if let (Some(begins), Some(ends)) = (of("gc__start"), of("gc__done")) {
            self.attach(file, begins, ends)?;
        }
        Ok(())
    }

    /// In all processes of this interpreter: the program tells targets from others.
    fn attach(
        &mut self,
        file: &File,
        begins: &StaticProbe,
        ends: &StaticProbe,
    ) -> Result<(), CollectError> {
        if self.loaded.is_none() {
            self.loaded = Some(self.bpf.load("python_gc", bpf_object!("python_gc"), |_| Ok(()))?);
        }
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        let path = sys::path_of(file);
        let begins = uprobes::attach_static(loaded, "gc_begins", &path, begins)?;
        let ends = uprobes::attach_static(loaded, "gc_ends", &path, ends)?;
        loaded.links.extend([begins, ends]);
        Ok(())
    }
}

impl Probe for PythonGc {
    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        if let Some(record) = from_bytes::<PauseRecord>(bytes) {
            self.rows.pause(&record, cx);
        }
    }

    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        for found in std::mem::take(&mut cx.interpreters) {
            if let Err(error) = self.found(&found.file) {
                let why = error_chain(&error);
                cx.degraded(self.rows.source, &format!("an interpreter is not traced: {why}"));
            }
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.rows.crossed
    }
}

/// Turns records into rows.
struct PauseRows {
    source: SourceId,
    threads: ThreadTracks<()>,
    crossed: u64,
}

impl PauseRows {
    fn new(source: SourceId) -> PauseRows {
        let threads =
            ThreadTracks::new(source, Lane::spans(names::RUNTIME_PAUSES, Discipline::Nested), KEPT);
        PauseRows { source, threads, crossed: 0 }
    }

    fn pause(&mut self, r: &PauseRecord, cx: &mut Context) {
        let (ts, end) = (ns(r.from), ns(r.head.ts));
        let thread = self.threads.of(r.head.tid, r.tgid, cx);
        if !thread.nesting.fits(ts, end) {
            self.crossed += 1;
            return;
        }
        let (track, id) = (thread.track, cx.ids.next_id());
        let (dur, parent, name) = (Some(end - ts), None, PAUSE.into());
        cx.rows.span.push(Span { id, ts, dur, track, parent, name });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_span_of_its_thread_and_crossing_ones_are_counted() {
        let mut cx = Context::new();
        let source = cx.catalog.source("bpf:python_gc", "test", "0", "");
        let mut rows = PauseRows::new(source);
        for (from, ts) in [(10, 20), (30, 45), (40, 50)] {
            let head = Head { ts, tid: 4_000_000_000, ..Head::default() };
            rows.pause(&PauseRecord { head, from, tgid: 4_000_000_000, pad: 0 }, &mut cx);
        }
        let spans: Vec<_> =
            cx.rows.span.iter().map(|s| (&*s.name, s.ts.0, s.dur.unwrap().0)).collect();
        assert_eq!(spans, [("gc", 10, 10), ("gc", 30, 15)]);
        assert_eq!(rows.crossed, 1);
    }

    #[test]
    fn any_bytes_are_tolerated() {
        let mut cx = Context::new();
        let mut rows = PauseRows::new(cx.catalog.source("bpf:python_gc", "test", "0", ""));
        for fill in [0x00, 0x01, 0x7f, 0xff] {
            for len in 0..64 {
                if let Some(record) = from_bytes::<PauseRecord>(&vec![fill; len]) {
                    rows.pause(&record, &mut cx);
                }
            }
        }
    }
}
