//! Stacks of running threads, during incidents.
//!
//! *What it sees*: 99 times a second on each CPU, from a timer's interrupt, the stacks of the
//! thread that runs there, in the kernel and in the program. *Why it matters*: it shows what a culprit was doing
//! while it was in the way. *What fools it*: programs built without frame pointers have stacks of
//! one frame; a function that the binary's symbol table does not name is shown as its module; code
//! with interrupts off is seen at its end. Attached only while [`Probe::detail`] is on.

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
        "stacks of running threads during incidents",
        start,
    )
};

/// Samples a second on each CPU; not a round number, so as not to beat with periodic work.
const HZ: u64 = 99;
/// Frames of the kernel's stack and of the program's; as in `stacks.bpf.c`.
const KERNEL_DEPTH: usize = 16;
const USER_DEPTH: usize = 32;
/// Nodes and frames that are declared within [`STACKS_LAST`]; stacks end where they would need more.
const NODES: usize = 1 << 16;

// The struct of `stacks.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["stacks"];

    struct Record = "stack_record" {
        head: Head,
        tgid: u32,
        pad: u32,
        kernel_bytes: i32,
        user_bytes: i32,
        comm: [u8; 16],
        kernel: [u64; KERNEL_DEPTH],
        user: [u64; USER_DEPTH],
    }
}

struct Stacks {
    source: SourceId,
    loaded: LoadedObject,
    cpus: usize,
    declared: Declared,
    symbols: Symbols,
}

/// Stacks and frames that the trace has.
#[derive(Default)]
struct Declared {
    nodes: HashMap<(Option<u32>, u32), u32>,
    frames: HashMap<(Name, Option<Name>), u32>,
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

    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        let Some(record) = from_bytes::<Record>(bytes) else { return };
        let thread = cx.thread(record.head.tid, record.tgid, Some(&record.comm));
        let kind = Lane {
            name: names::CPU_SAMPLES,
            shape: Shape::Sample,
            unit: Some("ns"),
            measure: None,
            discipline: None,
        };
        let track = cx.catalog.track(thread, None, kind, self.source);
        let frames = |bytes: i32, all: &[u64]| -> usize {
            (usize::try_from(bytes).unwrap_or(0) / 8).min(all.len())
        };
        let mut node = None;
        let user = &record.user[..frames(record.user_bytes, &record.user)];
        let kernel = &record.kernel[..frames(record.kernel_bytes, &record.kernel)];
        // Callers first.
        for &address in user.iter().rev() {
            let (name, module) = self.symbols.user(record.tgid, address);
            node = self.declared.node(node, name, module, cx).or(node);
        }
        for &address in kernel.iter().rev() {
            let name = self.symbols.kernel(address);
            node = self.declared.node(node, name, Some("kernel".into()), cx).or(node);
        }
        let weight = 1e9 / HZ as f64;
        let ts = Ns(record.head.ts as i64);
        cx.rows.sample.push(Sample { ts, track, stack: node, state: None, weight });
    }

    fn detail(&mut self, on: bool) -> Result<(), CollectError> {
        if !on {
            self.loaded.links.clear();
            self.symbols.forget();
            return Ok(());
        }
        if !self.loaded.links.is_empty() {
            return Ok(());
        }
        for cpu in 0..self.cpus {
            // A possible CPU may be offline.
            let Ok(timer) = sys::cpu_timer(cpu, HZ) else { continue };
            for program in self.loaded.object.progs_mut() {
                let link = program.attach_perf_event(timer.as_raw_fd()).map_err(|source| {
                    CollectError::Attach { probe: "stacks", target: format!("CPU {cpu}"), source }
                })?;
                self.loaded.links.push(link);
            }
            // The link closes it.
            let _ = timer.into_raw_fd();
        }
        Ok(())
    }
}

impl Declared {
    /// The node of a function called from `caller`, which is declared when it is new.
    fn node(
        &mut self,
        caller: Option<u32>,
        name: Name,
        module: Option<Name>,
        cx: &mut Context,
    ) -> Option<u32> {
        if self.nodes.len() >= NODES || self.frames.len() >= NODES {
            return None;
        }
        let last = &mut self.last;
        let frame = *self.frames.entry((name.clone(), module.clone())).or_insert_with(|| {
            last.1 += 1;
            cx.rows.frame.push(Frame { id: last.1, name, module, file: None, line: None });
            last.1
        });
        Some(*self.nodes.entry((caller, frame)).or_insert_with(|| {
            last.0 += 1;
            cx.rows.stack.push(Stack { id: last.0, parent: caller, frame });
            last.0
        }))
    }
}
