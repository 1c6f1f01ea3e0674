//! Steps of unmodified programs: every call of a named function is one.
//!
//! *What it sees*: entry and return of the outermost call on a thread; and, as a step of its own (`wait before
//! NAME`), how long the thread waited for a CPU when it had been woken for the call. *Why it matters*: a server
//! that marks nothing still has a function that it calls once per request or step; what its clients wait for
//! begins when it is woken. *What fools it*: functions that are inlined or left by a jump or an exception (the step is counted as
//! lost); coroutines that change their stack inside; a function that is called very often costs
//! microseconds each time, and beyond [`CALLS_PER_SECOND`] on one CPU its steps are counted but
//! not written.
//!
//! With targets, calls of other processes are ignored; without any, each process that calls becomes a
//! target.

use std::env;
use std::path::{Path, PathBuf};

use foldhash::{HashSet, HashSetExt as _};
use gpuwhy_schema::{Discipline, Lane, Name, Ns, SourceId, Span, Step};
use gpuwhy_schema::{names, sources};

use crate::bpf::{Bpf, Head, LoadedObject, bpf_object, bytes_of, from_bytes, set_constants};
use crate::bpf::{shared_with_c, uprobes};
use crate::config::UprobeStep;
use crate::context::Context;
use crate::error::CollectError;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::sys::ns;
use crate::thread_tracks::ThreadTracks;
use crate::{elf, procfs};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |config| !config.steps.is_empty(),
    required_if: |_| true,
    ..ProbeSpec::new("steps", &sources::STEPS, "calls of functions as steps", start)
};

/// Steps that one CPU may begin in a second, in windows of 10 ms.
const CALLS_PER_SECOND: u32 = 20_000;

/// Threads and processes that are kept; beyond this number all are forgotten and start again.
const KEPT: usize = 1 << 16;

// The structs of `steps.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["steps"];

    struct StepRecord = "step_record" {
        head: Head,
        from: u64,
        woken: u64,
        ran: u64,
        tgid: u32,
        step: u32,
    }

    struct Constants = "constants" {
        any_process: u32,
        hops: u32,
        calls: u32,
        pad: u32,
    }
}

struct Steps {
    rows: StepRows,
    _loaded: LoadedObject,
}

/// A function to attach to: its file, and where in the file it begins.
struct Place<'a> {
    binary: PathBuf,
    offsets: Vec<usize>,
    step: &'a UprobeStep,
}

/// Finds the functions, then attaches to all of them.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let Start { bpf, config, cx, source } = start;
    let mut places = Vec::new();
    for step in &config.steps {
        let binary = executable(&step.binary);
        let offsets = elf::function_offsets(&binary, &step.symbol)?;
        places.push(Place { binary, offsets, step });
    }
    let constants = Constants {
        any_process: u32::from(config.targets.is_empty()),
        hops: u32::from(config.hops),
        calls: CALLS_PER_SECOND / 100,
        pad: 0,
    };
    // Where the kernel has sessions, one link takes both ends of a call.
    let loaded = attached(bpf, &constants, &places, true)
        .or_else(|_| attached(bpf, &constants, &places, false))?;
    cx.catalog.update_source(source, |s| {
        let functions: Vec<String> = config
            .steps
            .iter()
            .map(|step| format!("{}:{}", step.binary.display(), step.symbol))
            .collect();
        s.config = format!("{} steps={}", s.config, functions.join(",")).as_str().into();
    });
    let names = config.steps.iter().map(|step| (*elf::readable(&step.symbol)).into()).collect();
    Ok(Box::new(Steps { rows: StepRows::new(source, names), _loaded: loaded }))
}

fn attached(
    bpf: &Bpf,
    constants: &Constants,
    places: &[Place<'_>],
    session: bool,
) -> Result<LoadedObject, CollectError> {
    let mut loaded = bpf.load("steps", bpf_object!("steps"), |object| {
        uprobes::select_programs(object, session);
        set_constants(object, bytes_of(constants))
    })?;
    for (i, Place { binary, offsets, step }) in places.iter().enumerate() {
        let links = uprobes::attach(
            &loaded,
            &uprobes::Functions {
                pid: None,
                binary,
                offsets,
                cookies: &vec![i as u64; offsets.len()],
                description: &format!("`{}` of `{}`", step.symbol, binary.display()),
            },
        )?;
        loaded.links.extend(links);
    }
    Ok(loaded)
}

/// Attaches to a function of our own program that is never called, and detaches.
///
/// Other processes of the same program start while this is attached, so it must not be the entry
/// point: no return address lies on the stack there but the number of arguments, which a return
/// probe would replace.
pub(crate) fn try_attaching(bpf: &Bpf, session: bool) -> Result<(), CollectError> {
    let binary = PathBuf::from("/proc/self/exe");
    let address = never_called as extern "C" fn() -> u64 as usize as u64;
    let maps = PathBuf::from("/proc/self/maps");
    let text = std::fs::read_to_string(&maps)
        .map_err(|source| CollectError::Read { path: maps, source })?;
    let code = procfs::mappings(&text).find(|mapping| mapping.contains(address));
    let offsets = code.into_iter().map(|mapping| mapping.file_offset(address) as usize).collect();
    let step = UprobeStep { binary: binary.clone(), symbol: "never_called".into() };
    let constants = Constants { any_process: 0, hops: 0, calls: 0, pad: 0 };
    let place = Place { binary, offsets, step: &step };
    attached(bpf, &constants, &[place], session).map(drop)
}

/// What [`try_attaching`] attaches to. It is like no other function, so that they are not merged.
#[inline(never)]
extern "C" fn never_called() -> u64 {
    std::hint::black_box(0x6770_7577_6879)
}

/// The file that the shell runs under this name.
fn executable(name: &Path) -> PathBuf {
    if name.components().count() == 1 && !name.exists() {
        let path = env::var_os("PATH").unwrap_or_default();
        if let Some(found) = env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file())
        {
            return found;
        }
    }
    name.to_owned()
}

impl Probe for Steps {
    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        if let Some(record) = from_bytes::<StepRecord>(bytes) {
            self.rows.step(&record, cx);
        }
    }

    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let rows = &mut self.rows;
        if rows.crossed > 0 && !rows.noted {
            rows.noted = true;
            cx.degraded(rows.source, "calls that cross others on their thread were dropped");
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.rows.crossed
    }
}

/// Turns records into rows.
struct StepRows {
    source: SourceId,
    /// Of the functions, and then of the waits before them.
    names: Vec<Name>,
    /// With the number of steps of each name so far.
    threads: ThreadTracks<Vec<u64>>,
    processes: HashSet<u32>,
    crossed: u64,
    /// Whether the source's note mentions them.
    noted: bool,
}

impl StepRows {
    fn new(source: SourceId, mut names: Vec<Name>) -> StepRows {
        let waits: Vec<Name> =
            names.iter().map(|n| format!("wait before {n}").as_str().into()).collect();
        names.extend(waits);
        StepRows {
            source,
            names,
            threads: ThreadTracks::new(source, Lane::spans(names::STEPS, Discipline::Nested), KEPT),
            processes: HashSet::new(),
            crossed: 0,
            noted: false,
        }
    }

    fn step(&mut self, r: &StepRecord, cx: &mut Context) {
        let functions = self.names.len() / 2;
        let step = r.step as usize;
        if step >= functions {
            return;
        }
        if !self.processes.contains(&r.tgid) {
            if self.processes.len() >= KEPT {
                self.processes.clear();
            }
            self.processes.insert(r.tgid);
            cx.new_targets.add(r.tgid);
        }
        if r.woken > 0 && r.ran <= r.from {
            // A thread that was woken for an earlier step did not wait for this one.
            self.add(r, functions + step, ns(r.woken), ns(r.ran), cx);
        }
        if !self.add(r, step, ns(r.from), ns(r.head.ts), cx) {
            self.crossed += 1;
        }
    }

    /// One row of the thread, unless it crosses another or ends before it.
    fn add(&mut self, r: &StepRecord, name: usize, ts: Ns, end: Ns, cx: &mut Context) -> bool {
        let thread = self.threads.of(r.head.tid, r.tgid, cx);
        if !thread.nesting.fits(ts, end) {
            return false;
        }
        let (id, entity, track) = (cx.ids.next_id(), thread.entity, thread.track);
        thread.more.resize(self.names.len(), 0);
        let seq = thread.more[name];
        thread.more[name] += 1;
        let name = self.names[name].clone();
        cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
        cx.rows.step.push(Step { id, ts, thread: entity, seq, size: None, rank: None });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbered_for_each_function_and_crossing_ones_are_counted() {
        let mut cx = Context::new();
        let source = cx.catalog.source("bpf:steps", "test", "0", "");
        let mut rows = StepRows::new(source, vec!["outer".into(), "inner".into()]);
        for (step, from, ts) in [(1, 20, 30), (1, 40, 50), (0, 10, 60), (0, 55, 70), (7, 80, 90)] {
            let head = Head { ts, tid: 4_000_000_000, ..Head::default() };
            let record =
                StepRecord { head, from, tgid: 4_000_000_000, step, ..StepRecord::default() };
            rows.step(&record, &mut cx);
        }
        let steps: Vec<_> = cx
            .rows
            .span
            .iter()
            .zip(&cx.rows.step)
            .map(|(s, t)| (&*s.name, s.ts.0, t.seq))
            .collect();
        assert_eq!(steps, [("inner", 20, 0), ("inner", 40, 1), ("outer", 10, 0)]);
        assert_eq!(rows.crossed, 1);
        assert!(cx.new_targets.take().is_empty(), "no process has such a number");
    }

    #[test]
    fn a_thread_that_waited_for_a_cpu_did_so_before_the_first_step_that_it_was_woken_for() {
        let mut cx = Context::new();
        let source = cx.catalog.source("bpf:steps", "test", "0", "");
        let mut rows = StepRows::new(source, vec!["serve".into()]);
        // Called at 20, 40 and 70. It was woken at 10 and at 55, and never after it was called.
        for (woken, ran, from, ts) in
            [(10, 15, 20, 30), (10, 15, 40, 50), (55, 60, 70, 80), (95, 96, 90, 99)]
        {
            let head = Head { ts, tid: 4_000_000_000, ..Head::default() };
            rows.step(
                &StepRecord { head, from, woken, ran, tgid: 4_000_000_000, step: 0 },
                &mut cx,
            );
        }
        let steps: Vec<_> =
            cx.rows.span.iter().map(|s| (&*s.name, s.ts.0, s.dur.unwrap().0)).collect();
        let (wait, serve) = ("wait before serve", "serve");
        let expected = [
            (wait, 10, 5),
            (serve, 20, 10),
            (serve, 40, 10),
            (wait, 55, 5),
            (serve, 70, 10),
            (serve, 90, 9),
        ];
        assert_eq!(steps, expected);
        assert_eq!(rows.crossed, 0);
    }

    #[test]
    fn any_bytes_are_tolerated() {
        let mut cx = Context::new();
        let source = cx.catalog.source("bpf:steps", "test", "0", "");
        let mut rows = StepRows::new(source, vec!["call".into()]);
        for fill in [0x00, 0x01, 0x7f, 0xff] {
            for len in 0..64 {
                if let Some(record) = from_bytes::<StepRecord>(&vec![fill; len]) {
                    rows.step(&record, &mut cx);
                }
            }
        }
    }
}
