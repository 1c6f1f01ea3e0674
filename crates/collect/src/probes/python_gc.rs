//! Pauses of CPython's garbage collector.
//!
//! *What it sees*: the static probes `gc__start` and `gc__done` of an interpreter, in targets and their descendants:
//! each collection of 0.2 ms or more, on whichever thread it was. *Why it matters*: a collection of all objects of a
//! large program takes seconds, holds the interpreter lock, and looks like work of the program.
//!
//! *What fools it*: an interpreter that was built without `--with-dtrace` has no such probes (Debian's has them, one
//! that pyenv built has not), and its pauses stay the program's own; other implementations of Python. An interpreter is
//! looked for within half a minute after its process became a target; one that is loaded later, with a file of its own,
//! is not seen.
//!
//! *What it costs the target*: two probes a collection, those of the youngest objects included.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::rc::Rc;

use gpuwhy_schema::{Ns, SourceId, Span, names, sources};

use crate::bpf::{Bpf, Head, LoadedObject, bpf_object, from_bytes, shared_with_c, uprobes};
use crate::config::Target;
use crate::context::Context;
use crate::elf::{self, StaticProbe};
use crate::error::{CollectError, error_chain};
use crate::probe::{Probe, ProbeSpec, Start};
use crate::procfs::{self, process_tree};
use crate::sys::{self, ns};
use crate::thread_spans::ThreadSpans;

pub(crate) const PROBE: ProbeSpec = ProbeSpec::new(
    "python_gc",
    &sources::PYTHON_GC,
    "pauses of the garbage collector of Python",
    start,
);

/// What the spans are called, as in the class `gc_pause`.
const PAUSE: &str = "gc";
/// When a process is searched for an interpreter: so long after it became a target.
const SEARCHES: [Ns; 5] = [Ns::millis(300), Ns::secs(1), Ns::secs(4), Ns::secs(12), Ns::secs(30)];
/// What is read of the mappings of a process at most.
const MAPS: u64 = 4 << 20;
/// Processes that are to be searched, files that were, and threads that are kept.
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
    /// Targets, when they became some, and how often they were searched.
    searched: Vec<(i32, Option<Ns>, usize)>,
    files: BTreeSet<FileKey>,
    rows: PauseRows,
}

/// Loads nothing before an interpreter was found in a target.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    start.bpf.check()?;
    let mut probe = PythonGc {
        bpf: Rc::clone(start.bpf),
        loaded: None,
        searched: Vec::new(),
        files: BTreeSet::new(),
        rows: PauseRows::new(start.source),
    };
    for &target in &start.config.targets {
        probe.add_target(target, start.cx)?;
    }
    Ok(Box::new(probe))
}

impl PythonGc {
    /// Looks for interpreters in a process and its descendants, and attaches to those that are new.
    fn search(&mut self, root: i32) -> Result<(), CollectError> {
        for pid in process_tree(root) {
            for file in interpreters(pid) {
                let Ok(meta) = file.metadata() else { continue };
                let key = (meta.dev(), meta.ino());
                if self.files.len() >= KEPT || !self.files.insert(key) {
                    continue;
                }
                let probes = elf::static_probes(&file, "python");
                let of = |name| probes.iter().find(|probe| probe.name == name);
                if let (Some(begins), Some(ends)) = (of("gc__start"), of("gc__done")) {
                    self.attach(&file, begins, ends)?;
                }
            }
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

/// The files of a process that may hold an interpreter: its program or a library.
fn interpreters(pid: u32) -> Vec<File> {
    let mut maps = String::new();
    let Ok(file) = File::open(format!("/proc/{pid}/maps")) else { return Vec::new() };
    if file.take(MAPS).read_to_string(&mut maps).is_err() {
        return Vec::new();
    }
    let is_python = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("python") || name.starts_with("libpython")
    };
    let code = procfs::mappings(&maps).filter(|m| m.executable && is_python(m.path));
    // The names there have no leading zeros, unlike those of `maps`.
    let link = |m: procfs::Mapping<'_>| format!("/proc/{pid}/map_files/{:x}-{:x}", m.from, m.to);
    code.filter_map(|m| sys::open_behind(&link(m)).ok()).collect()
}

impl Probe for PythonGc {
    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        if let Some(record) = from_bytes::<PauseRecord>(bytes) {
            self.rows.pause(&record, cx);
        }
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let mut due = Vec::new();
        self.searched.retain_mut(|(pid, since, times)| {
            let after = now.saturating_sub(*since.get_or_insert(now));
            if SEARCHES.get(*times).is_some_and(|at| after >= *at) {
                due.push(*pid);
                *times += 1;
            }
            *times < SEARCHES.len()
        });
        for pid in due {
            if let Err(error) = self.search(pid) {
                let why = error_chain(&error);
                cx.degraded(self.rows.source, &format!("an interpreter is not traced: {why}"));
            }
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.rows.crossed
    }

    fn add_target(&mut self, target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        if self.searched.len() < KEPT {
            self.searched.push((target.pid(), None, 0));
        }
        Ok(())
    }
}

/// Turns records into rows.
struct PauseRows {
    source: SourceId,
    threads: ThreadSpans<()>,
    crossed: u64,
}

impl PauseRows {
    fn new(source: SourceId) -> PauseRows {
        let threads = ThreadSpans::new(source, names::RUNTIME_PAUSES, KEPT);
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
