//! Steps, phases, launches and device work that programs tell about by themselves.
//!
//! *What it sees*: the records of a `gpuwhy-wire` ring, written by any number of processes. *Why
//! it matters*: a step that its program marked is the best there is: it has a size and a rank.
//! *What fools it*: pids and tids are those of the writer's own pid namespace, so that a
//! container's steps find their threads only if it shares the host's; a program may write
//! anything, so that spans that would cross on a thread or overlap on a stream are dropped and
//! counted.
//!
//! Processes that write become targets, so that the states of their threads are recorded.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};

use gpuwhy_schema::{
    Counter, Discipline, EntityId, EntityKind, Id, Lane, Link, LinkKind, Mark, Measure, Name, Ns,
    SourceId, Span, Step, TrackId, names,
};
use gpuwhy_wire::{Consumer, Event, Record, Ring};

use crate::nest::Nest;
use crate::recorder::Target;
use crate::{CollectError, Context, Probe, Start};

/// Slots of a ring that we make ourselves: a tenth of a second of 600,000 records a second.
const SLOTS: u32 = 1 << 16;

/// Launches that wait for their kernels and kernels that wait for their launches.
const PENDING: usize = 1 << 16;

/// Steps that have begun or been named by a phase but have not ended, a thread.
const OPEN_STEPS: usize = 16;

/// Spans of a stream that a later one may come before.
const RECENT: usize = 64;

/// Threads, streams and names that are kept; who writes more than so many is forgotten and begins
/// anew.
const KEPT: usize = 1 << 16;

struct WireSource {
    consumer: Consumer,
    book: Book,
}

/// Starts the source; makes the ring if there is none yet.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let Some(path) = &start.config.wire else {
        return Err(CollectError::Unsupported {
            what: "no ring was named".into(),
            fix: "name one to record marked steps".into(),
        });
    };
    let failed = |source| CollectError::Wire { path: path.clone(), source };
    if !path.exists() {
        Ring::create(path, SLOTS).map_err(failed)?;
    }
    let consumer = Consumer::open(path).map_err(failed)?;
    Ok(Box::new(WireSource { consumer, book: Book::new(start.source) }))
}

impl Probe for WireSource {
    fn name(&self) -> &'static str {
        "wire"
    }

    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let book = &mut self.book;
        let drained = self.consumer.drain(usize::MAX, |record| book.record(&record, cx));
        book.recorded += drained.records;
        book.dropped += drained.lost + drained.torn + drained.abandoned;
        Ok(())
    }

    fn counted(&self) -> u64 {
        self.book.recorded
    }

    fn dropped(&self) -> u64 {
        self.book.dropped
    }

    fn finish(&mut self, _now: Ns, cx: &mut Context) {
        self.book.finish(cx);
    }
}

/// The rows that follow from records.
struct Book {
    source: SourceId,
    threads: HashMap<(u32, u32), Thread>,
    streams: HashMap<(u32, u16, u32), Stream>,
    counters: HashMap<(u32, Option<u16>, Name), TrackId>,
    pending: HashMap<(u32, u64), Half>,
    /// The keys of `pending`, oldest first.
    order: VecDeque<(u32, u64)>,
    names: HashSet<Name>,
    pids: HashSet<u32>,
    recorded: u64,
    dropped: u64,
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
    open: VecDeque<OpenStep>,
    nest: Nest,
}

/// A step of which a phase or the beginning was seen.
struct OpenStep {
    seq: u64,
    id: Id,
    begun: Option<Begun>,
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
}

impl Book {
    fn new(source: SourceId) -> Book {
        Book {
            source,
            threads: HashMap::new(),
            streams: HashMap::new(),
            counters: HashMap::new(),
            pending: HashMap::new(),
            order: VecDeque::new(),
            names: HashSet::new(),
            pids: HashSet::new(),
            recorded: 0,
            dropped: 0,
        }
    }

    fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return Name::clone(name);
        }
        if self.names.len() >= KEPT {
            self.names.clear();
        }
        let name: Name = text.into();
        self.names.insert(Name::clone(&name));
        name
    }

    fn record(&mut self, record: &Record<&str>, cx: &mut Context) {
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
                let name = self.name(name);
                let begun = Begun { name, start: ns(start), size, rank };
                self.thread(pid, tid, cx).step(seq, cx).begun = Some(begun);
            }
            Event::Step { name, seq, size, rank, start, dur } => {
                let name = self.name(name);
                let thread = self.thread(pid, tid, cx);
                let id = thread.step(seq, cx).id;
                thread.open.retain(|step| step.seq != seq);
                let (ts, end) = (ns(start), ns(start).saturating_add(ns(dur)));
                if thread.nest.fits(ts, end) {
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
                let name = self.name(name);
                let thread = self.thread(pid, tid, cx);
                let (ts, end) = (ns(start), ns(start).saturating_add(ns(dur)));
                if thread.nest.fits(ts, end) {
                    let parent = step.map(|seq| thread.step(seq, cx).id);
                    let (id, track) = (cx.ids.next_id(), thread.steps);
                    cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent, name });
                } else {
                    self.dropped += 1;
                }
            }
            Event::Mark { name, at, value } => {
                let (name, source) = (self.name(name), self.source);
                let thread = self.thread(pid, tid, cx);
                let entity = thread.entity;
                let track = *thread.marks.get_or_insert_with(|| {
                    cx.lanes.track(entity, None, Lane::marks("marks"), source)
                });
                cx.rows.mark.push(Mark { id: cx.ids.next_id(), ts: ns(at), track, name, value });
            }
            Event::Counter { name, unit, device, at, value } => {
                let name = self.name(name);
                if self.counters.len() >= KEPT {
                    self.counters.clear();
                }
                let source = self.source;
                let track = *self.counters.entry((pid, device, name)).or_insert_with_key(|key| {
                    let entity = match device {
                        Some(device) => gpu(pid, device, cx),
                        None => cx.people.process(&mut cx.lanes, pid, None),
                    };
                    let lane = Lane::counter(&key.2, unit, Measure::Gauge);
                    cx.lanes.track(entity, None, lane, source)
                });
                cx.rows.counter.push(Counter { ts: ns(at), track, value });
            }
            Event::Launch { name, correlation, start, dur, .. } => {
                let (name, source) = (self.name(name), self.source);
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
            Event::Kernel { name, device, stream, correlation, start, dur } => {
                let name = self.name(name);
                let (ts, end) = (ns(start), ns(start).saturating_add(ns(dur)));
                let stream = self.stream(pid, device, stream, cx);
                if !stream.fits(ts, end) {
                    self.dropped += 1;
                    return;
                }
                let (id, track, gpu) = (cx.ids.next_id(), stream.track, stream.gpu);
                cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
                cx.rows.kernel.push(gpuwhy_schema::Kernel {
                    id,
                    ts,
                    gpu,
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
                self.join((pid, correlation), Half::Kernel(id, ts), cx);
            }
        }
    }

    fn thread(&mut self, pid: u32, tid: u32, cx: &mut Context) -> &mut Thread {
        if self.threads.len() >= KEPT {
            self.threads.clear();
        }
        self.threads.entry((pid, tid)).or_insert_with(|| {
            let entity = cx.people.thread(&mut cx.lanes, tid, pid, None);
            let lane = Lane::spans(names::STEPS, Discipline::Nested);
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
        self.streams.entry((pid, device, stream)).or_insert_with(|| {
            let gpu = gpu(pid, device, cx);
            let key = format!("sim:{pid}:{device}:{stream}");
            let entity = cx.lanes.entity(EntityKind::Stream, &key, |e| {
                e.parent = Some(gpu);
                e.name = format!("stream {stream}").as_str().into();
                e.number = Some(i64::from(stream));
            });
            let lane = Lane::spans(names::STREAM, Discipline::Serial);
            Stream {
                gpu,
                track: cx.lanes.track(entity, None, lane, self.source),
                recent: VecDeque::new(),
            }
        })
    }

    /// Links a launch with its kernel, whichever of them comes first.
    fn join(&mut self, key: (u32, u64), half: Half, cx: &mut Context) {
        match (self.pending.entry(key), half) {
            (Entry::Occupied(other), half) => match (other.remove(), half) {
                (Half::Launch(from), Half::Kernel(to, ts))
                | (Half::Kernel(to, ts), Half::Launch(from)) => {
                    cx.rows.link.push(Link { ts, from, to, kind: LinkKind::Launch });
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

    /// Spans for the steps that were told to have begun and did not end.
    fn finish(&mut self, cx: &mut Context) {
        let mut threads: Vec<_> = self.threads.drain().collect();
        threads.sort_unstable_by_key(|(key, _)| *key);
        for (_, thread) in threads {
            // One of them at most: two open ones on one track would cross.
            let last = thread.open.into_iter().filter_map(|s| Some((s.id, s.seq, s.begun?))).last();
            if let Some((id, seq, begun)) = last
                && thread.nest.end().is_none_or(|end| end <= begun.start)
            {
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
    fn step(&mut self, seq: u64, cx: &mut Context) -> &mut OpenStep {
        let i = match self.open.iter().position(|step| step.seq == seq) {
            Some(i) => i,
            None => {
                if self.open.len() >= OPEN_STEPS {
                    self.open.pop_front();
                }
                self.open.push_back(OpenStep { seq, id: cx.ids.next_id(), begun: None });
                self.open.len() - 1
            }
        };
        &mut self.open[i]
    }
}

impl Stream {
    /// Whether a span overlaps none of the last ones.
    fn fits(&mut self, start: Ns, end: Ns) -> bool {
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
