//! Stacks of threads, during incidents.
//!
//! *What it sees*: 99 times a second on each CPU, from a timer's interrupt, the stacks of the
//! thread that runs there, in the kernel and in the program; and where a target's thread went to sleep, if that
//! takes a millisecond or more. Of programs that the probe `python` has found an interpreter in, the functions of
//! Python with file and line, and the function of C that was running, instead of the interpreter's. *Why it matters*:
//! it shows what a culprit was doing while it was in the way, and what a program waited in. *What fools it*: programs built
//! without frame pointers have stacks of one frame; a function that the binary's symbol table does not name is shown as
//! its module; code with interrupts off is seen at its end; a stack of Python is cut after the innermost 32
//! frames. Of a thread that sleeps briefly and often, up to 15 sleeps are passed over, whatever they take. Attached
//! only while [`Probe::detail`] is on.

mod symbols;

use std::os::fd::{AsRawFd, IntoRawFd};

use foldhash::HashMap;
use gpuwhy_schema::{
    Frame, Lane, Name, Ns, STACKS_LAST, Sample, Shape, SourceId, Stack, names, sources,
};

use crate::bpf::{Head, LoadedObject, bpf_object, from_bytes, shared_with_c};
use crate::context::Context;
use crate::error::CollectError;
use crate::probe::{How, Probe, ProbeSpec, Shedding, Start};
use crate::python::{self, CodeObjects, Place, PythonFrame};
use crate::shed::Shed;
use crate::sys;
use symbols::Symbols;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    sheds: &[Shedding {
        shed: Shed::Detail,
        how: How::NoDetail,
        missing: "stacks are not sampled during incidents",
    }],
    ..ProbeSpec::new(
        "stacks",
        &sources::STACKS,
        "stacks of threads that run, and of those that go to sleep, during incidents",
        start,
    )
};

/// Samples a second on each CPU; not a round number, so as not to beat with periodic work.
const HZ: u64 = 99;
/// Frames of the kernel's stack and of the program's; as in `stacks.bpf.c`.
const KERNEL_DEPTH: usize = 16;
const USER_DEPTH: usize = 32;
const PYTHON_DEPTH: usize = 32;
/// Nodes and frames that are declared within [`STACKS_LAST`]; stacks end where they would need more.
const NODES: usize = 1 << 16;

// The struct of `stacks.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["stacks"];

    enum Kind = "kind" {
        Running,
        Slept,
    }

    struct Record = "stack_record" {
        head: Head,
        slept: u64,
        tgid: u32,
        pythons: u32,
        kernel_bytes: i32,
        user_bytes: i32,
        comm: [u8; 16],
        kernel: [u64; KERNEL_DEPTH],
        user: [u64; USER_DEPTH],
        python: [PythonFrame; PYTHON_DEPTH],
    }
}

struct Stacks {
    source: SourceId,
    loaded: LoadedObject,
    cpus: usize,
    declared: Declared,
    symbols: Symbols,
    pythons: CodeObjects,
}

/// A function of a stack, as the trace names it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Function {
    name: Name,
    module: Option<Name>,
    file: Option<Name>,
    line: Option<u32>,
}

/// Stacks and frames that the trace has.
#[derive(Default)]
struct Declared {
    nodes: HashMap<(Option<u32>, u32), u32>,
    frames: HashMap<Function, u32>,
    /// The last ids given out; none is given out twice.
    last: (u32, u32),
    since: Ns,
}

/// Samples nothing before detail is on.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let loaded = start.bpf.load("stacks", bpf_object!("stacks"), |_| Ok(()))?;
    // So that a missing privilege is reported at the start, and not in the first incident.
    sys::cpu_timer(0, HZ)
        .map_err(|source| CollectError::System { action: "sample CPU 0".into(), source })?;
    Ok(Box::new(Stacks {
        source: start.source,
        loaded,
        cpus: start.bpf.cpu_count(),
        declared: Declared::default(),
        symbols: Symbols::default(),
        pythons: CodeObjects::default(),
    }))
}

impl Probe for Stacks {
    fn tick(&mut self, now: Ns, _cx: &mut Context) -> Result<(), CollectError> {
        if now - self.declared.since >= STACKS_LAST {
            let last = self.declared.last;
            self.declared = Declared { last, since: now, ..Declared::default() };
        }
        Ok(())
    }

    fn event(&mut self, kind: u8, bytes: &[u8], cx: &mut Context) {
        let (Some(record), Some(kind)) = (from_bytes::<Record>(bytes), Kind::from_code(kind))
        else {
            return;
        };
        let thread = cx.thread(record.head.tid, record.tgid, Some(&record.comm));
        let (name, weight) = match kind {
            Kind::Running => (names::CPU_SAMPLES, 1e9 / HZ as f64),
            Kind::Slept => (names::SLEEP_SAMPLES, record.slept as f64),
        };
        let (unit, shape) = (Some("ns"), Shape::Sample);
        let lane = Lane { name, shape, unit, measure: None, discipline: None };
        let track = cx.catalog.track(thread, None, lane, self.source);
        let mut node = None;
        for function in self.stack(&record) {
            node = self.declared.node(node, function, cx).or(node);
        }
        let ts = Ns(record.head.ts as i64);
        cx.rows.sample.push(Sample { ts, track, stack: node, state: None, weight });
    }

    fn detail(&mut self, on: bool) -> Result<(), CollectError> {
        if !on {
            self.loaded.links.clear();
            self.symbols.forget();
            self.pythons.forget();
            return Ok(());
        }
        if !self.loaded.links.is_empty() {
            return Ok(());
        }
        for cpu in 0..self.cpus {
            // A possible CPU may be offline.
            let Ok(timer) = sys::cpu_timer(cpu, HZ) else { continue };
            for program in self.loaded.object.progs_mut().filter(|p| p.section() == "perf_event") {
                let link = program.attach_perf_event(timer.as_raw_fd()).map_err(|source| {
                    CollectError::Attach { probe: "stacks", target: format!("CPU {cpu}"), source }
                })?;
                self.loaded.links.push(link);
            }
            // The link closes it.
            let _ = timer.into_raw_fd();
        }
        self.loaded.attach()
    }
}

impl Stacks {
    /// The functions of a record, callers first.
    fn stack(&mut self, record: &Record) -> Vec<Function> {
        fn held(bytes: i32, all: &[u64]) -> &[u64] {
            &all[..(usize::try_from(bytes).unwrap_or(0) / 8).min(all.len())]
        }
        let user = held(record.user_bytes, &record.user);
        let count = (record.pythons as usize).min(PYTHON_DEPTH);
        let mut stack: Vec<Function> = Vec::new();
        for frame in record.python[..count].iter().rev().filter(|frame| frame.code != 0) {
            let place = self.pythons.place(record.tgid, *frame);
            stack.extend(place.map(Function::of_python));
        }
        let mut native = |address: &u64| {
            let (name, module) = self.symbols.user(record.tgid, *address);
            Function { name, module, file: None, line: None }
        };
        if stack.is_empty() {
            stack.extend(user.iter().rev().map(&mut native));
        } else {
            // Where it is in code that Python called; the functions around it are the interpreter's, and a place in
            // the C library without a name says nothing.
            let says_nothing = |f: &Function| {
                let module = f.module.as_deref().unwrap_or("libc.");
                python::is_python(module) || &*f.name == "?" && module.starts_with("libc.")
            };
            stack.extend(user.first().map(&mut native).filter(|function| !says_nothing(function)));
        }
        for address in held(record.kernel_bytes, &record.kernel).iter().rev() {
            let (name, module) = (self.symbols.kernel(*address), Some("kernel".into()));
            stack.push(Function { name, module, file: None, line: None });
        }
        stack
    }
}

impl Function {
    fn of_python(place: Place) -> Function {
        let Place { function, file, line } = place;
        let module = file.rsplit('/').next().map(Name::from);
        Function { name: function, module, file: Some(file), line }
    }
}

impl Declared {
    /// The node of a function called from `caller`, which is declared when it is new.
    fn node(&mut self, caller: Option<u32>, function: Function, cx: &mut Context) -> Option<u32> {
        if self.nodes.len() >= NODES || self.frames.len() >= NODES {
            return None;
        }
        let last = &mut self.last;
        let frame = *self.frames.entry(function).or_insert_with_key(|function| {
            last.1 += 1;
            let Function { name, module, file, line } = function.clone();
            cx.rows.frame.push(Frame { id: last.1, name, module, file, line });
            last.1
        });
        Some(*self.nodes.entry((caller, frame)).or_insert_with(|| {
            last.0 += 1;
            cx.rows.stack.push(Stack { id: last.0, parent: caller, frame });
            last.0
        }))
    }
}
