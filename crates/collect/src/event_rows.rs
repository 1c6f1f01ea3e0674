//! Turns the records of programs and in-process libraries into rows: steps and phases, launches and
//! device work, collectives and their stages.
//!
//! Records arrive in the order in which they were written, which is the order of their ends at best.
//! Records that belong together (a phase and its step, a launch and its kernel, a stage and its
//! collective) may arrive in either order; the first one is held until the other one is there, or
//! until too many are held. Everything that is held has a limit. A record that contradicts others is
//! dropped and counted.

mod collectives;
mod device;
mod steps;

use std::collections::VecDeque;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use gpuwhy_schema::{
    Counter, EntityId, EntityKind, Lane, Mark, Measure, Name, Ns, SourceId, TrackId, names,
};
use gpuwhy_wire::{Event, Record};

use crate::context::Context;
use crate::sys::ns;
use collectives::Collectives;
use device::{Launches, Stream};
use steps::{StepBegin, Thread};

/// Threads, streams, names and the like that are kept; beyond this number all are forgotten and start again.
const KEPT: usize = 1 << 16;

/// Notices that a source's note shows at a time.
const NOTICES: usize = 6;

/// The code of the notice that says how precisely a GPU's clock is known: `NcclClock` of
/// `gpuwhy-inject`.
const CLOCK_PRECISION: u32 = 7;

/// Turns records into rows.
pub(crate) struct EventRows {
    /// Records that became rows.
    pub recorded: u64,
    /// Records that did not fit.
    pub dropped: u64,
    source: SourceId,
    devices: Devices,
    /// Processes that were made targets.
    processes: HashSet<u32>,
    threads: HashMap<(u32, u32), Thread>,
    counters: HashMap<(u32, Option<u16>, Name), TrackId>,
    /// Which GPU a process means by a number.
    gpus: HashMap<(u32, u16), EntityId>,
    streams: HashMap<(u32, u16, u32), Stream>,
    launches: Launches,
    graph_names: HashMap<u64, Name>,
    /// When the latest work on a device ended, by process.
    last_work: HashMap<u32, Ns>,
    collectives: Collectives,
    /// What the source's note shows, oldest first.
    notices: VecDeque<String>,
}

/// What the numbers of devices in records mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// Simulated devices, of which each process has its own; a stream does one thing at a time.
    Simulated,
    /// The host's GPUs, known by their UUIDs; nodes of a graph on one stream may overlap.
    Real,
}

/// The process and the thread that wrote a record.
type Writer = (u32, u32);

/// When something began, and how long it took.
#[derive(Clone, Copy)]
struct Times {
    ts: Ns,
    dur: Ns,
}

impl Times {
    fn of(start: u64, dur: u64) -> Times {
        Times { ts: ns(start), dur: ns(dur) }
    }

    fn end(self) -> Ns {
        self.ts.saturating_add(self.dur)
    }
}

impl EventRows {
    /// With no rows yet, for `source`.
    pub fn new(source: SourceId, devices: Devices) -> EventRows {
        EventRows {
            recorded: 0,
            dropped: 0,
            source,
            devices,
            processes: HashSet::new(),
            threads: HashMap::new(),
            counters: HashMap::new(),
            gpus: HashMap::new(),
            streams: HashMap::new(),
            launches: Launches::default(),
            graph_names: HashMap::new(),
            last_work: HashMap::new(),
            collectives: Collectives::default(),
            notices: VecDeque::new(),
        }
    }

    /// Writes the rows that follow from a record.
    pub fn record(&mut self, record: &Record<&Name>, cx: &mut Context) {
        let Record { pid, tid, event } = *record;
        self.make_target(pid, cx);
        let writer = (pid, tid);
        match event {
            Event::StepOpen { name, seq, size, rank, start } => {
                let begin = StepBegin { name: name.clone(), start: ns(start), size, rank };
                self.step_begins(writer, seq, begin, cx);
            }
            Event::Step { name, seq, size, rank, start, dur } => {
                let begin = StepBegin { name: name.clone(), start: ns(start), size, rank };
                self.step_ends(writer, seq, begin, Times::of(start, dur).end(), cx);
            }
            Event::Phase { name, step, start, dur } => {
                self.phase(writer, step, name.clone(), Times::of(start, dur), cx);
            }
            Event::Mark { name, at, value } => self.mark(writer, name.clone(), ns(at), value, cx),
            Event::Counter { name, unit, device, at, value } => {
                self.counter(pid, device, (name, unit), (ns(at), value), cx);
            }
            Event::Launch { name, correlation, start, dur, .. } => {
                self.launch(writer, correlation, name.clone(), Times::of(start, dur), cx);
            }
            Event::Kernel { name, device, stream, correlation, graph, start, dur } => {
                let name = self.kernel_name(name, graph);
                let (launch, place) = ((pid, correlation), (device, stream));
                self.kernel(launch, place, name, Times::of(start, dur), cx);
            }
            Event::Copy { name, device, stream, correlation, bytes, start, dur } => {
                let (launch, place) = ((pid, correlation), (device, stream));
                self.copy(launch, place, (name, bytes), Times::of(start, dur), cx);
            }
            Event::Wait { name, start, dur, .. } => {
                self.device_wait(pid, name.clone(), Times::of(start, dur), cx);
            }
            Event::Device { name, device, .. } => self.device(pid, device, name, cx),
            Event::Communicator { name, communicator, id, rank, ranks, .. } => {
                self.communicator((pid, communicator), name, id, (rank, ranks), cx);
            }
            Event::Collective { name, communicator, seq, bytes, how, start, dur, .. } => {
                let operation = (pid, communicator, name.clone(), seq);
                let times = Times::of(start, dur);
                self.collective(operation, times, bytes, (None, Some(&**how)), cx);
            }
            Event::Message { name, communicator, peer, seq, bytes, start, dur, .. } => {
                let operation = (pid, communicator, name.clone(), seq);
                self.collective(operation, Times::of(start, dur), bytes, (Some(peer), None), cx);
            }
            Event::Stage { name, communicator, operation, seq, channel, start, dur, .. } => {
                let operation = (pid, communicator, operation.clone(), seq);
                self.stage(operation, name.clone(), Times::of(start, dur), channel, cx);
            }
            Event::Notice { name, code, value, at } => {
                self.notice(pid, (name, code, value), ns(at), cx);
            }
        }
    }

    /// A process that writes records becomes a target.
    fn make_target(&mut self, pid: u32, cx: &mut Context) {
        if self.processes.contains(&pid) {
            return;
        }
        if self.processes.len() >= KEPT {
            self.processes.clear();
        }
        self.processes.insert(pid);
        cx.new_targets.add(pid);
    }

    fn mark(&mut self, writer: Writer, name: Name, ts: Ns, value: Option<f64>, cx: &mut Context) {
        let source = self.source;
        let thread = self.thread(writer, cx);
        let entity = thread.entity;
        let track = *thread
            .marks
            .get_or_insert_with(|| cx.catalog.track(entity, None, Lane::marks("marks"), source));
        cx.rows.mark.push(Mark { id: cx.ids.next_id(), ts, track, name, value });
    }

    fn counter(
        &mut self,
        pid: u32,
        device: Option<u16>,
        (name, unit): (&Name, &Name),
        (ts, value): (Ns, f64),
        cx: &mut Context,
    ) {
        if self.counters.len() >= KEPT {
            self.counters.clear();
        }
        let source = self.source;
        let key = (pid, device, name.clone());
        let track = *self.counters.entry(key).or_insert_with_key(|key| {
            let entity = match device {
                Some(device) => {
                    let known = self.gpus.get(&(pid, device)).copied();
                    known.unwrap_or_else(|| device::simulated_gpu(pid, device, cx))
                }
                None => cx.process(pid, None),
            };
            // The library's own counters are totals; programs' are values of the moment.
            let is_ours = key.2.starts_with("inject.");
            let measure = if is_ours { Measure::Total } else { Measure::Gauge };
            cx.catalog.track(entity, None, Lane::counter(&key.2, unit, measure), source)
        });
        cx.rows.counter.push(Counter { ts, track, value });
    }

    /// A library reports what it cannot record: a mark in the trace, and the source's note.
    fn notice(
        &mut self,
        pid: u32,
        (name, code, value): (&Name, u32, Option<f64>),
        ts: Ns,
        cx: &mut Context,
    ) {
        let process = cx.process(pid, None);
        let track = cx.catalog.track(process, None, Lane::marks(names::NOTICES), self.source);
        let comm = cx.catalog.get(process).map_or_else(Name::default, |e| e.name.clone());
        // How precisely a clock is known is no loss.
        if code != CLOCK_PRECISION {
            self.add_to_note(&format!("{comm} (pid {pid}): {name}"), cx);
        }
        let value = value.or(Some(f64::from(code)));
        let (id, name) = (cx.ids.next_id(), name.clone());
        cx.rows.mark.push(Mark { id, ts, track, name, value });
    }

    /// Writes into the source's note that it sees less than it was asked to, and why.
    pub fn add_to_note(&mut self, notice: &str, cx: &mut Context) {
        if self.notices.iter().any(|known| known == notice) {
            return;
        }
        if self.notices.len() >= NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice.to_owned());
        let all: Vec<&str> = self.notices.iter().map(String::as_str).collect();
        cx.degraded(self.source, &all.join("; "));
    }

    /// When the latest device work that a process reported ended.
    pub fn last_work(&self, pid: u32) -> Option<Ns> {
        self.last_work.get(&pid).copied()
    }

    /// A process has ended: its numbers may be used again.
    pub fn process_ended(&mut self, pid: u32) {
        self.threads.retain(|key, _| key.0 != pid);
        self.streams.retain(|key, _| key.0 != pid);
        self.gpus.retain(|key, _| key.0 != pid);
        self.collectives.process_ended(pid);
        self.processes.remove(&pid);
        self.last_work.remove(&pid);
    }

    /// Writes the steps that have begun and not ended, and the stages without a collective.
    pub fn finish(&mut self, cx: &mut Context) {
        self.collectives.finish(cx);
        self.finish_steps(cx);
    }
}

/// The GPU with this UUID, which NVML's readings belong to as well.
fn gpu_of_uuid(uuid: &str, cx: &mut Context) -> EntityId {
    let host = cx.host;
    cx.catalog.entity(EntityKind::Gpu, uuid, |e| e.parent = Some(host))
}

#[cfg(test)]
mod tests;
