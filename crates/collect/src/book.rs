//! What programs and libraries tell, as rows: steps and phases, launches and device work,
//! collectives and what they are made of.
//!
//! Records come in the order in which they were written, which is that of their ends at best; what
//! refers to each other (a phase to its step, a launch to its kernel, a stage to its collective)
//! may come in either order and is held until both are there, or until there are too many of them.
//! Everything that is held has a limit, and what a program tells that cannot be is dropped and
//! counted.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use gpuwhy_schema::{
    Collective, Copy, CopyKind, Counter, Discipline, EntityId, EntityKind, Id, Lane, Link,
    LinkKind, Mark, Measure, Name, Ns, SourceId, Span, Step, TrackId, names,
};
use gpuwhy_wire::{Event, Record};

use crate::nest::Nest;
use crate::recorder::Target;
use crate::{Context, OpenStep};

/// Launches that wait for their kernels and kernels that wait for their launches.
const PENDING: usize = 1 << 16;

/// Phases of one step that are held until it ends; more are counted as dropped.
const PHASES: usize = 256;

/// Steps that have begun or been named by a phase but have not ended, a thread.
const OPEN_STEPS: usize = 16;

/// Spans of a stream that a later one may come before.
const RECENT: usize = 64;

/// Threads, streams and names that are kept; who writes more than so many is forgotten and begins
/// anew.
const KEPT: usize = 1 << 16;

/// Collectives of which a stage was told before they were, in all.
const STAGED: usize = 1 << 12;

/// Things that a source's note says at a time.
const SAID: usize = 6;

/// The notice that says how well a GPU's clock is known.
const CLOCK_KNOWN: u32 = 7;

/// Stages of one collective.
const STAGES: usize = 1 << 10;

/// The rows that follow from records.
pub(crate) struct Book {
    source: SourceId,
    threads: HashMap<(u32, u32), Thread>,
    streams: HashMap<(u32, u16, u32), Stream>,
    counters: HashMap<(u32, Option<u16>, Name), TrackId>,
    pending: HashMap<(u32, u64), Half>,
    /// The keys of `pending`, oldest first.
    order: VecDeque<(u32, u64)>,
    pids: HashSet<u32>,
    pub(crate) recorded: u64,
    pub(crate) dropped: u64,
    whose: Devices,
    /// Which GPU a process means by a number.
    gpus: HashMap<(u32, u16), EntityId>,
    ranks: HashMap<(u32, u16), Rank>,
    /// What was told of collectives before they had ended.
    staged: HashMap<Call, Vec<Span>>,
    /// The keys of `staged`, oldest first.
    stages: VecDeque<Call>,
    graphs: HashMap<u64, Name>,
    /// What the source's note says.
    said: VecDeque<String>,
    /// When the latest work of a process's devices ended.
    worked: HashMap<u32, Ns>,
    /// Collectives that were told, and the keys, oldest first.
    told: HashMap<Call, Id>,
    told_order: VecDeque<Call>,
}

/// Whose the devices are that records number.
#[derive(Clone, core::marker::Copy, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// The programs' own, each process having its own; a stream does one thing at a time.
    Simulated,
    /// The host's, known by their UUIDs; nodes of a graph on one stream may overlap.
    Real,
}

/// A collective of one rank: process, communicator, operation and number.
type Call = (u32, u16, Name, u64);

/// This process in a communicator.
struct Rank {
    id: u64,
    rank: u32,
    ranks: u32,
    collectives: TrackId,
    stages: TrackId,
}

/// One end of a launch link, waiting for the other.
enum Half {
    Launch(Id),
    Kernel(Id, Ns),
}

struct Thread {
    entity: EntityId,
    steps: TrackId,
    launches: Option<TrackId>,
    marks: Option<TrackId>,
    open: VecDeque<Unfinished>,
    nest: Nest,
}

/// A step of which a phase or the beginning was seen.
struct Unfinished {
    seq: u64,
    id: Id,
    begun: Option<Begun>,
    /// Its phases so far; they are told with it, so that their parent is always there.
    phases: Vec<Span>,
}

struct Begun {
    name: Name,
    start: Ns,
    size: Option<i64>,
    rank: Option<u32>,
}

struct Stream {
    gpu: EntityId,
    track: TrackId,
    recent: VecDeque<(Ns, Ns)>,
    /// Whether it does one thing at a time.
    serial: bool,
}

impl Book {
    pub(crate) fn new(source: SourceId, devices: Devices) -> Book {
        Book {
            source,
            threads: HashMap::new(),
            streams: HashMap::new(),
            counters: HashMap::new(),
            pending: HashMap::new(),
            order: VecDeque::new(),
            pids: HashSet::new(),
            recorded: 0,
            dropped: 0,
            whose: devices,
            gpus: HashMap::new(),
            ranks: HashMap::new(),
            staged: HashMap::new(),
            stages: VecDeque::new(),
            graphs: HashMap::new(),
            said: VecDeque::new(),
            worked: HashMap::new(),
            told: HashMap::new(),
            told_order: VecDeque::new(),
        }
    }

    pub(crate) fn record(&mut self, record: &Record<&Name>, cx: &mut Context) {
        let Record { pid, tid, event } = *record;
        if !self.pids.contains(&pid) {
            if self.pids.len() >= KEPT {
                self.pids.clear();
            }
            self.pids.insert(pid);
            if let Ok(pid) = i32::try_from(pid) {
                cx.wanted.push(Target::Pid(pid));
            }
        }
        match event {
            Event::StepOpen { name, seq, size, rank, start } => {
                let name = Name::clone(name);
                let begun = Begun { name, start: ns(start), size, rank };
                self.thread(pid, tid, cx).step(seq, cx).begun = Some(begun);
            }
            Event::Step { name, seq, size, rank, start, dur } => {
                let name = Name::clone(name);
                let thread = self.thread(pid, tid, cx);
                let Unfinished { id, phases, .. } = thread.step(seq, cx);
                let (id, mut phases) = (*id, std::mem::take(phases));
                thread.open.retain(|step| step.seq != seq);
                let (ts, end) = (ns(start), ns(start).saturating_add(ns(dur)));
                let fits = thread.nest.fits(ts, end);
                if !fits {
                    phases.iter_mut().for_each(|phase| phase.parent = None);
                }
                cx.rows.span.append(&mut phases);
                if fits {
                    let track = thread.steps;
                    cx.rows.span.push(Span {
                        id,
                        ts,
                        dur: Some(end - ts),
                        track,
                        parent: None,
                        name,
                    });
                    cx.rows.step.push(Step { id, ts, thread: thread.entity, seq, size, rank });
                } else {
                    self.dropped += 1;
                }
            }
            Event::Phase { name, step, start, dur } => {
                let name = Name::clone(name);
                let thread = self.thread(pid, tid, cx);
                let (ts, end) = (ns(start), ns(start).saturating_add(ns(dur)));
                if thread.nest.fits(ts, end) {
                    let (id, track) = (cx.ids.next_id(), thread.steps);
                    let dur = Some(end - ts);
                    let span = Span { id, ts, dur, track, parent: None, name };
                    match step.map(|seq| thread.step(seq, cx)) {
                        Some(step) if step.phases.len() < PHASES => {
                            step.phases.push(Span { parent: Some(step.id), ..span });
                        }
                        Some(_) => self.dropped += 1,
                        None => cx.rows.span.push(span),
                    }
                } else {
                    self.dropped += 1;
                }
            }
            Event::Mark { name, at, value } => {
                let (name, source) = (Name::clone(name), self.source);
                let thread = self.thread(pid, tid, cx);
                let entity = thread.entity;
                let track = *thread.marks.get_or_insert_with(|| {
                    cx.lanes.track(entity, None, Lane::marks("marks"), source)
                });
                cx.rows.mark.push(Mark { id: cx.ids.next_id(), ts: ns(at), track, name, value });
            }
            Event::Counter { name, unit, device, at, value } => {
                let name = Name::clone(name);
                if self.counters.len() >= KEPT {
                    self.counters.clear();
                }
                let source = self.source;
                let track = *self.counters.entry((pid, device, name)).or_insert_with_key(|key| {
                    let entity = match device {
                        Some(device) => {
                            let known = self.gpus.get(&(pid, device)).copied();
                            known.unwrap_or_else(|| gpu(pid, device, cx))
                        }
                        None => cx.people.process(&mut cx.lanes, pid, None),
                    };
                    let ours = key.2.starts_with("inject.");
                    let measure = if ours { Measure::Total } else { Measure::Gauge };
                    let lane = Lane::counter(&key.2, unit, measure);
                    cx.lanes.track(entity, None, lane, source)
                });
                cx.rows.counter.push(Counter { ts: ns(at), track, value });
            }
            Event::Launch { name, correlation, start, dur, .. } => {
                let (name, source) = (Name::clone(name), self.source);
                let thread = self.thread(pid, tid, cx);
                let entity = thread.entity;
                let track = *thread.launches.get_or_insert_with(|| {
                    cx.lanes.track(entity, None, Lane::marks(names::LAUNCHES), source)
                });
                let id = cx.ids.next_id();
                // A mark's value says how long the call took, in ns.
                let value = Some(dur as f64);
                cx.rows.mark.push(Mark { id, ts: ns(start), track, name, value });
                self.join((pid, correlation), Half::Launch(id), cx);
            }
            Event::Kernel { name, device, stream, correlation, graph, start, dur } => {
                let name = match graph {
                    Some(graph) if &**name == "CUDA graph" => self.graph_name(graph),
                    _ => Name::clone(name),
                };
                let at = (ns(start), ns(dur));
                let launch = (pid, correlation);
                let Some((id, gpu)) = self.on_stream(launch, (device, stream), name, at, cx) else {
                    return;
                };
                let (ts, process) = (at.0, Some(cx.people.process(&mut cx.lanes, pid, None)));
                cx.rows.kernel.push(gpuwhy_schema::Kernel {
                    id,
                    ts,
                    gpu,
                    process,
                    correlation: Some(correlation),
                    grid_x: 1,
                    grid_y: 1,
                    grid_z: 1,
                    block_x: 1,
                    block_y: 1,
                    block_z: 1,
                    registers: None,
                    shared_bytes: None,
                    graph_node: None,
                });
            }
            Event::Copy { name, device, stream, correlation, bytes, start, dur } => {
                let (kind, text, pinned) = way(name);
                let (at, name) = ((ns(start), ns(dur)), text.into());
                let launch = (pid, correlation);
                let Some((id, gpu)) = self.on_stream(launch, (device, stream), name, at, cx) else {
                    return;
                };
                let on = |yes: bool| yes.then_some(gpu);
                let (ts, process) = (at.0, Some(cx.people.process(&mut cx.lanes, pid, None)));
                cx.rows.copy.push(Copy {
                    id,
                    ts,
                    kind,
                    bytes,
                    from: on(!matches!(kind, CopyKind::HostToDevice | CopyKind::Memset)),
                    to: on(!matches!(kind, CopyKind::DeviceToHost | CopyKind::PeerToPeer)),
                    pinned: pinned.map(Name::from),
                    process,
                    correlation: Some(correlation),
                });
            }
            Event::Wait { name, start, dur, .. } => {
                let (name, source) = (Name::clone(name), self.source);
                let process = cx.people.process(&mut cx.lanes, pid, None);
                let lane = Lane::spans(names::SYNCHRONIZATION, Discipline::Overlap);
                let track = cx.lanes.track(process, None, lane, source);
                let (id, ts, dur) = (cx.ids.next_id(), ns(start), Some(ns(dur)));
                cx.rows.span.push(Span { id, ts, dur, track, parent: None, name });
            }
            Event::Device { name, device, .. } => {
                if self.gpus.len() >= KEPT {
                    self.gpus.clear();
                }
                let gpu = real_gpu(name, cx);
                self.gpus.insert((pid, device), gpu);
                // What was told before it was known which GPU that is lies on lanes of its own.
                self.streams.retain(|key, _| (key.0, key.1) != (pid, device));
            }
            Event::Communicator { name, communicator, id, rank, ranks, .. } => {
                self.communicator(pid, communicator, (name, id, rank, ranks), cx);
            }
            Event::Collective { name, communicator, seq, bytes, how, start, dur, .. } => {
                let call = (pid, communicator, Name::clone(name), seq);
                let told = (ns(start), ns(dur), bytes, None, Some(&**how));
                self.collective(call, told, cx);
            }
            Event::Message { name, communicator, peer, seq, bytes, start, dur, .. } => {
                let call = (pid, communicator, Name::clone(name), seq);
                self.collective(call, (ns(start), ns(dur), bytes, Some(peer), None), cx);
            }
            Event::Stage { name, communicator, operation, seq, channel, start, dur, .. } => {
                let call = (pid, communicator, Name::clone(operation), seq);
                let name = Name::clone(name);
                let Some(rank) = self.ranks.get(&(pid, communicator)) else {
                    self.dropped += 1;
                    return;
                };
                let (id, ts, dur) = (cx.ids.next_id(), ns(start), Some(ns(dur)));
                let stage = Span { id, ts, dur, track: rank.stages, parent: None, name };
                self.stage(call, stage, channel, cx);
            }
            Event::Notice { name, code, value, at } => {
                let source = self.source;
                // The trace says it where it was said, and the source for all to see.
                let process = cx.people.process(&mut cx.lanes, pid, None);
                let lane = Lane::marks(names::NOTICES);
                let track = cx.lanes.track(process, None, lane, source);
                let comm = cx.lanes.get(process).map_or_else(Name::default, |e| e.name.clone());
                // How well a clock is known is no loss.
                if code != CLOCK_KNOWN {
                    self.say(&format!("{comm} (pid {pid}): {name}"), cx);
                }
                let value = value.or(Some(f64::from(code)));
                let (id, ts, name) = (cx.ids.next_id(), ns(at), Name::clone(name));
                cx.rows.mark.push(Mark { id, ts, track, name, value });
            }
        }
    }

    /// The source sees less than it was asked to, and why.
    pub(crate) fn say(&mut self, note: &str, cx: &mut Context) {
        if self.said.iter().any(|said| said == note) {
            return;
        }
        if self.said.len() >= SAID {
            self.said.pop_front();
        }
        self.said.push_back(note.to_owned());
        let all: Vec<&str> = self.said.iter().map(String::as_str).collect();
        let all = all.join("; ");
        cx.lanes.update_source(self.source, |s| {
            s.state = gpuwhy_schema::SourceState::Degraded;
            s.note = Some(all.as_str().into());
        });
    }

    /// When the latest work that a process told of ended.
    pub(crate) fn last_work(&self, pid: u32) -> Option<Ns> {
        self.worked.get(&pid).copied()
    }

    /// A process has gone: its numbers may be used again.
    pub(crate) fn process_ended(&mut self, pid: u32) {
        self.threads.retain(|key, _| key.0 != pid);
        self.streams.retain(|key, _| key.0 != pid);
        self.gpus.retain(|key, _| key.0 != pid);
        self.ranks.retain(|key, _| key.0 != pid);
        self.pids.remove(&pid);
        self.worked.remove(&pid);
    }

    fn graph_name(&mut self, graph: u64) -> Name {
        if self.graphs.len() >= KEPT {
            self.graphs.clear();
        }
        let name = self.graphs.entry(graph);
        name.or_insert_with(|| format!("CUDA graph {graph}").as_str().into()).clone()
    }

    /// A communicator's rank in this process has a lane for its collectives, and one for what they
    /// are made of.
    fn communicator(
        &mut self,
        pid: u32,
        number: u16,
        (name, id, rank, ranks): (&str, u64, u32, u32),
        cx: &mut Context,
    ) {
        if self.ranks.len() >= KEPT {
            self.ranks.clear();
        }
        if self.whose == Devices::Real && cx.inside.len() < KEPT {
            cx.inside.insert(pid);
        }
        let process = cx.people.process(&mut cx.lanes, pid, None);
        // The process is part of it: a number is used again by the next job.
        let key = format!("{id:016x}/{rank}@{pid}");
        let entity = cx.lanes.entity(EntityKind::Rank, &key, |e| {
            e.parent = Some(process);
            let of = if name.is_empty() { format!("{id:x}") } else { name.to_owned() };
            e.name = format!("rank {rank} of {of}").as_str().into();
            e.number = Some(i64::from(rank));
        });
        let (source, overlap) = (self.source, Discipline::Overlap);
        let lane = Lane::spans(names::COLLECTIVES, overlap);
        let collectives = cx.lanes.track(entity, None, lane, source);
        let lane = Lane::spans(names::COLLECTIVE_STAGES, overlap);
        let stages = cx.lanes.track(entity, Some(collectives), lane, source);
        self.ranks.insert((pid, number), Rank { id, rank, ranks, collectives, stages });
    }

    /// A collective or message that has ended, and its stages so far.
    fn collective(
        &mut self,
        call: Call,
        (ts, dur, bytes, peer, how): (Ns, Ns, u64, Option<u32>, Option<&str>),
        cx: &mut Context,
    ) {
        let Some(rank) = self.ranks.get(&(call.0, call.1)) else {
            self.dropped += 1;
            return;
        };
        let (op, seq) = (call.2.clone(), call.3);
        let id = cx.ids.next_id();
        let (track, name) = (rank.collectives, op.clone());
        cx.rows.span.push(Span { id, ts, dur: Some(dur), track, parent: None, name });
        let mut how = how.into_iter().flat_map(|how| how.split('/'));
        let mut word = || how.next().filter(|w| !w.is_empty() && *w != "?");
        let (algorithm, protocol) = (word().map(Name::from), word().map(Name::from));
        cx.rows.collective.push(Collective {
            id,
            ts,
            communicator: rank.id,
            seq,
            op,
            bytes,
            rank: rank.rank,
            ranks: rank.ranks,
            peer,
            algorithm,
            protocol,
            channels: word().and_then(|n| n.parse().ok()),
        });
        for mut stage in self.staged.remove(&call).unwrap_or_default() {
            stage.parent = Some(id);
            cx.rows.span.push(stage);
        }
        if self.told.insert(call.clone(), id).is_none() {
            self.told_order.push_back(call);
        }
        if self.told_order.len() > STAGED
            && let Some(oldest) = self.told_order.pop_front()
        {
            self.told.remove(&oldest);
        }
    }

    /// A stage is told with or after its collective, so that its parent is always there.
    fn stage(&mut self, call: Call, mut stage: Span, channel: Option<u32>, cx: &mut Context) {
        if let Some(channel) = channel {
            let (key, value) = ("channel".into(), channel.to_string().as_str().into());
            cx.rows.attr.push(gpuwhy_schema::Attr { id: stage.id, key, value });
        }
        if let Some(&id) = self.told.get(&call) {
            stage.parent = Some(id);
            cx.rows.span.push(stage);
            return;
        }
        let staged = match self.staged.entry(call) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                self.stages.push_back(place.key().clone());
                place.insert(Vec::new())
            }
        };
        if staged.len() < STAGES {
            staged.push(stage);
        } else {
            self.dropped += 1;
        }
        while self.stages.len() > STAGED {
            let oldest = self.stages.pop_front();
            if let Some(orphans) = oldest.and_then(|call| self.staged.remove(&call)) {
                cx.rows.span.extend(orphans);
            }
        }
    }

    fn thread(&mut self, pid: u32, tid: u32, cx: &mut Context) -> &mut Thread {
        if self.threads.len() >= KEPT {
            self.threads.clear();
        }
        self.threads.entry((pid, tid)).or_insert_with(|| {
            let entity = cx.people.thread(&mut cx.lanes, tid, pid, None);
            // What a library tells of a thread does not nest with what its program does.
            let name = match self.whose {
                Devices::Simulated => names::STEPS,
                Devices::Real => names::LIBRARY_CALLS,
            };
            let lane = Lane::spans(name, Discipline::Nested);
            Thread {
                entity,
                steps: cx.lanes.track(entity, None, lane, self.source),
                launches: None,
                marks: None,
                open: VecDeque::new(),
                nest: Nest::default(),
            }
        })
    }

    fn stream(&mut self, pid: u32, device: u16, stream: u32, cx: &mut Context) -> &mut Stream {
        if self.streams.len() >= KEPT {
            self.streams.clear();
        }
        let (whose, known) = (self.whose, self.gpus.get(&(pid, device)).copied());
        self.streams.entry((pid, device, stream)).or_insert_with(|| {
            let gpu = known.unwrap_or_else(|| gpu(pid, device, cx));
            let (of, discipline) = match whose {
                Devices::Simulated => ("sim", Discipline::Serial),
                Devices::Real => ("cuda", Discipline::Overlap),
            };
            let on = if known.is_some() { gpu.0.to_string() } else { format!("?{device}") };
            let key = format!("{of}:{pid}:{on}:{stream}");
            let entity = cx.lanes.entity(EntityKind::Stream, &key, |e| {
                e.parent = Some(gpu);
                e.name = format!("stream {stream}").as_str().into();
                e.number = Some(i64::from(stream));
            });
            let lane = Lane::spans(names::STREAM, discipline);
            Stream {
                gpu,
                track: cx.lanes.track(entity, None, lane, self.source),
                recent: VecDeque::new(),
                serial: whose == Devices::Simulated,
            }
        })
    }

    /// A piece of a stream's work, from when and for how long: its span and its GPU. `None` where
    /// its stream has no room then.
    fn on_stream(
        &mut self,
        launch: (u32, u64),
        (device, stream): (u16, u32),
        name: Name,
        (ts, dur): (Ns, Ns),
        cx: &mut Context,
    ) -> Option<(Id, EntityId)> {
        let end = ts.saturating_add(dur);
        let worked = self.worked.entry(launch.0).or_default();
        *worked = end.max(*worked);
        let stream = self.stream(launch.0, device, stream, cx);
        if !stream.fits(ts, end) {
            self.dropped += 1;
            return None;
        }
        let (id, track, gpu) = (cx.ids.next_id(), stream.track, stream.gpu);
        cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
        self.join(launch, Half::Kernel(id, ts), cx);
        Some((id, gpu))
    }

    /// Links a launch with its kernel, whichever of them comes first.
    fn join(&mut self, key: (u32, u64), half: Half, cx: &mut Context) {
        match (self.pending.entry(key), half) {
            (Entry::Occupied(other), half) => match (other.remove(), half) {
                (Half::Launch(from), Half::Kernel(to, ts))
                | (Half::Kernel(to, ts), Half::Launch(from)) => {
                    cx.rows.link.push(Link { ts, from, to, kind: LinkKind::Launch });
                    if self.whose == Devices::Real {
                        // The nodes of a graph have one launch.
                        self.pending.insert(key, Half::Launch(from));
                    }
                }
                // The same number twice: the later one is what a later half means.
                (_, half) => {
                    self.pending.insert(key, half);
                }
            },
            (Entry::Vacant(place), half) => {
                place.insert(half);
                self.order.push_back(key);
                if self.order.len() > PENDING
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.pending.remove(&oldest);
                }
            }
        }
    }

    /// The step of each thread that began last and has not ended. A process that the ring names
    /// by a number that is not its own here is not seen to live.
    pub(crate) fn open_steps(&self, before: Ns, lives: impl Fn(u32, u32) -> bool) -> Vec<OpenStep> {
        let last = |(&(pid, tid), thread): (&(u32, u32), &Thread)| {
            let (step, begun) =
                thread.open.iter().rev().find_map(|s| Some((s, s.begun.as_ref()?)))?;
            (begun.start < before && lives(pid, tid)).then(|| OpenStep {
                id: step.id,
                ts: begun.start,
                thread: thread.entity,
                track: thread.steps,
                seq: step.seq,
                name: begun.name.clone(),
                size: begun.size,
                rank: begun.rank,
            })
        };
        self.threads.iter().filter_map(last).collect()
    }

    /// Spans for the steps that were told to have begun and did not end.
    pub(crate) fn finish(&mut self, cx: &mut Context) {
        let mut orphans: Vec<Span> = self.staged.drain().flat_map(|(_, stages)| stages).collect();
        orphans.sort_unstable_by_key(|stage| stage.id);
        cx.rows.span.append(&mut orphans);
        let mut threads: Vec<_> = self.threads.drain().collect();
        threads.sort_unstable_by_key(|(key, _)| *key);
        for (_, thread) in threads {
            // One of them at most: two open ones on one track would cross.
            let last = thread.open.iter().rposition(|s| s.begun.is_some());
            let mut nest = thread.nest;
            for (i, mut step) in thread.open.into_iter().enumerate() {
                let begun = step.begun.take().filter(|_| last == Some(i));
                let told = begun.filter(|begun| nest.fits(begun.start, Ns::MAX));
                if told.is_none() {
                    step.phases.iter_mut().for_each(|phase| phase.parent = None);
                }
                cx.rows.span.append(&mut step.phases);
                let Some(begun) = told else { continue };
                let (id, seq) = (step.id, step.seq);
                let Begun { name, start: ts, size, rank } = begun;
                let track = thread.steps;
                cx.rows.span.push(Span { id, ts, dur: None, track, parent: None, name });
                cx.rows.step.push(Step { id, ts, thread: thread.entity, seq, size, rank });
            }
        }
    }
}

impl Thread {
    /// The step `seq`, which has not ended.
    fn step(&mut self, seq: u64, cx: &mut Context) -> &mut Unfinished {
        let i = match self.open.iter().position(|step| step.seq == seq) {
            Some(i) => i,
            None => {
                if self.open.len() >= OPEN_STEPS {
                    self.open.pop_front();
                }
                let id = cx.ids.next_id();
                self.open.push_back(Unfinished { seq, id, begun: None, phases: Vec::new() });
                self.open.len() - 1
            }
        };
        &mut self.open[i]
    }
}

impl Stream {
    /// Whether a span overlaps none of the last ones, where none may.
    fn fits(&mut self, start: Ns, end: Ns) -> bool {
        if !self.serial {
            return true;
        }
        if self.recent.iter().any(|&(from, to)| from < end && start < to) {
            return false;
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((start, end));
        true
    }
}

/// What a copy is, what it is called, and whether the host's memory was pinned, by what its record
/// calls it.
fn way(name: &str) -> (CopyKind, &'static str, Option<&str>) {
    let (which, pinned) = name.split_once(' ').unwrap_or((name, ""));
    let (kind, text) = match which {
        "HtoD" => (CopyKind::HostToDevice, "copy host to device"),
        "DtoH" => (CopyKind::DeviceToHost, "copy device to host"),
        "DtoD" => (CopyKind::DeviceToDevice, "copy device to device"),
        "PtoP" => (CopyKind::PeerToPeer, "copy peer to peer"),
        "HtoH" => (CopyKind::HostToHost, "copy host to host"),
        "memset" => (CopyKind::Memset, "memset"),
        _ => (CopyKind::Other, "copy"),
    };
    (kind, text, Some(pinned).filter(|p| !p.is_empty()))
}

/// The GPU of this UUID, which NVML's readings are of too.
fn real_gpu(uuid: &str, cx: &mut Context) -> EntityId {
    let host = cx.host;
    cx.lanes.entity(EntityKind::Gpu, uuid, |e| e.parent = Some(host))
}

/// The simulated GPU `device` of process `pid`.
fn gpu(pid: u32, device: u16, cx: &mut Context) -> EntityId {
    let host = cx.host;
    cx.lanes.entity(EntityKind::Gpu, &format!("sim:{pid}:{device}"), |e| {
        e.parent = Some(host);
        e.name = format!("gpu {device} of {pid}").as_str().into();
        e.number = Some(i64::from(device));
    })
}

fn ns(n: u64) -> Ns {
    Ns(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::Rows;

    use super::*;
    use crate::recorder;

    /// What one thread of one process tells, and the rows that come of it.
    fn told(events: &[Event<&str>]) -> (Rows, u64) {
        let mut cx = recorder::context();
        let source = cx.lanes.source("wire", "test", "0", "");
        let mut book = Book::new(source, Devices::Simulated);
        for &event in events {
            let (pid, tid) = (4_000_000_000, 4_000_000_001);
            let record = Record { pid, tid, event };
            let mut names: HashMap<&str, Name> = HashMap::new();
            record.named(|name| names.insert(name, name.into()));
            book.record(&record.named(|name| &names[name]), &mut cx);
        }
        book.finish(&mut cx);
        let mut rows = Rows::default();
        cx.lanes.drain(&mut rows);
        rows.append(&mut cx.rows);
        (rows, book.dropped)
    }

    fn step(seq: u64, start: u64, dur: u64) -> Event<&'static str> {
        Event::Step { name: "step", seq, size: Some(64), rank: Some(1), start, dur }
    }

    #[test]
    fn phases_are_children_of_their_step_which_is_told_after_them() {
        let phase = |name, start, dur| Event::Phase { name, step: Some(7), start, dur };
        let (rows, dropped) =
            told(&[phase("load", 10, 5), phase("sync", 15, 10), step(7, 10, 20), step(8, 30, 5)]);
        let ids: Vec<_> = rows.span.iter().map(|s| (&*s.name, s.id, s.parent)).collect();
        let whole = ids[2].1;
        assert_eq!((ids[0].0, ids[0].2), ("load", Some(whole)));
        assert_eq!((ids[1].0, ids[1].2), ("sync", Some(whole)));
        assert_eq!((ids[2].0, ids[2].2), ("step", None));
        let steps: Vec<_> = rows.step.iter().map(|s| (s.id, s.seq, s.size, s.rank)).collect();
        assert_eq!(steps, [(whole, 7, Some(64), Some(1)), (ids[3].1, 8, Some(64), Some(1))]);
        assert_eq!(dropped, 0);
    }

    #[test]
    fn a_phase_of_a_step_that_was_never_told_is_nobodys_child() {
        let phase = |name, start, dur| Event::Phase { name, step: Some(7), start, dur };
        let (rows, dropped) = told(&[phase("load", 10, 5), phase("sync", 15, 10)]);
        let spans: Vec<_> = rows.span.iter().map(|s| (&*s.name, s.parent)).collect();
        assert_eq!(spans, [("load", None), ("sync", None)]);
        assert_eq!(dropped, 0);
    }

    #[test]
    fn a_step_that_never_ends_is_open() {
        let open =
            |seq, start| Event::StepOpen { name: "step", seq, size: None, rank: None, start };
        let (rows, _) = told(&[open(0, 10), step(0, 10, 5), open(1, 20)]);
        let spans: Vec<_> = rows.span.iter().map(|s| (s.ts.0, s.dur.map(|d| d.0))).collect();
        assert_eq!(spans, [(10, Some(5)), (20, None)]);
        assert_eq!(rows.step.len(), 2);
    }

    #[test]
    fn the_step_that_began_last_is_told_while_its_thread_lives() {
        let mut book = Book::new(SourceId(0), Devices::Simulated);
        let mut cx = recorder::context();
        let name: Name = "step".into();
        let open = |seq, start| Record {
            pid: 4_000_000_000,
            tid: 4_000_000_001,
            event: Event::StepOpen { name: &name, seq, size: Some(8), rank: Some(1), start },
        };
        book.record(&open(3, 10), &mut cx);
        book.record(&open(4, 20), &mut cx);
        let told = book.open_steps(Ns(50), |_, _| true);
        assert_eq!(told.iter().map(|s| (s.seq, s.ts.0)).collect::<Vec<_>>(), [(4, 20)]);
        assert!(book.open_steps(Ns(15), |_, _| true).is_empty(), "younger than that");
        assert!(book.open_steps(Ns(50), |_, _| false).is_empty(), "the process is gone");
    }

    #[test]
    fn a_launch_leads_to_its_kernel_in_either_order() {
        let launch = |correlation, start| Event::Launch {
            name: "launch",
            device: 0,
            stream: 1,
            correlation,
            start,
            dur: 3,
        };
        let kernel = |correlation, start| Event::Kernel {
            name: "gemm",
            device: 0,
            stream: 1,
            correlation,
            graph: None,
            start,
            dur: 50,
        };
        let (rows, dropped) =
            told(&[launch(1, 10), kernel(1, 20), kernel(2, 70), launch(2, 12), kernel(3, 90)]);
        let links: Vec<_> = rows
            .link
            .iter()
            .map(|l| {
                let mark = rows.mark.iter().find(|m| m.id == l.from).unwrap();
                let span = rows.span.iter().find(|s| s.id == l.to).unwrap();
                (mark.ts.0, span.ts.0, l.ts.0)
            })
            .collect();
        assert_eq!(links, [(10, 20, 20), (12, 70, 70)]);
        assert_eq!(dropped, 1, "the third kernel overlaps the second on its stream");
        let stream = rows.entity.iter().find(|e| e.kind == EntityKind::Stream).unwrap();
        let gpu = rows.entity.iter().find(|e| Some(e.id) == stream.parent).unwrap();
        assert_eq!(&*gpu.key, "sim:4000000000:0");
        assert!(rows.kernel.iter().all(|k| k.gpu == gpu.id));
    }

    #[test]
    fn counters_belong_to_their_device_and_others_to_their_process() {
        let counter =
            |name, device| Event::Counter { name, unit: "MHz", device, at: 5, value: 1980.0 };
        let (rows, _) = told(&[counter("sm_clock", Some(2)), counter("queue", None)]);
        let whose = |name: &str| {
            let track = rows.track.iter().find(|t| &*t.name == name).unwrap();
            rows.entity.iter().find(|e| e.id == track.entity).unwrap().kind
        };
        assert_eq!(whose("sm_clock"), EntityKind::Gpu);
        assert_eq!(whose("queue"), EntityKind::Process);
    }
}
