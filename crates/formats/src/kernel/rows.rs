//! From events of a kernel's tracer to the rows that the recorder writes of the same things.
//!
//! # What it makes
//! Thread states, wakeups and occupants of CPUs from `sched_*`; spans and sums of time from interrupts and softirqs;
//! block requests from `block_rq_*`; bytes queued to network devices; system calls as spans of their threads. Every
//! other event is a mark on its thread, or else on its CPU or host, and its fields are attributes of the mark.
//!
//! # What fools it
//! Events of before the trace are not known: a request whose insertion was not seen begins when it was issued, and
//! one of which only the completion was seen is left out and counted. Events that the tracer lost leave a thread in
//! the state that it had.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    AttrColumns, AttrKey, Discipline, EntityId, EntityKind, Id, Io, IoOp, Lane, Lanes, Mark,
    Measure, Name, Names, Ns, Rows, SourceId, Span, State, TrackId, WakeContext, names,
};

use super::action::{Action, Place, Stage, action};
use super::sums::Sum;
use super::tasks::Tasks;
use crate::importer::Batch;
use gpuwhy_tracepoint::{EventType, RawEvent, Value};

/// Span lanes of a CPU: interrupt handlers, and softirqs.
const LANES: [&str; 2] = ["irq", "softirq"];
const IRQ: usize = 0;
const SOFTIRQ: usize = 1;
/// Rows that are handed out at once, about, and after how many events they are counted.
const BATCH: usize = 1 << 16;
const COUNTED: u64 = 64;
/// The attribute of a system call that says what it returned.
const RESULT: &str = "ret";
/// What is summed of a disk's requests.
const DISK_SUMS: [Lane<'static>; 2] = [
    Lane::counter(names::DISK_BYTES, "By", Measure::Delta),
    Lane::counter(names::DISK_TIME, "ns", Measure::Delta),
];
/// Block requests that are on their way at most.
const REQUESTS: usize = 1 << 16;
/// CPUs of a host.
const CPUS: u32 = 1 << 16;
/// Interrupts of a host whose handlers' names are kept, at most.
const HANDLERS: usize = 1 << 12;
/// Softirqs by their vectors (include/linux/interrupt.h).
const VECTORS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// A CPU.
#[derive(Debug)]
struct Cpu {
    entity: EntityId,
    occupant: Option<TrackId>,
    marks: Option<TrackId>,
    /// Its [`LANES`].
    lanes: [Option<TrackId>; LANES.len()],
    /// Who runs on it and since when.
    current: Option<(i64, i64)>,
    /// Interrupt handlers that have begun, the innermost last.
    hardirqs: Vec<(i64, Name)>,
    softirq: Option<(i64, usize)>,
    /// Of time in softirqs, by their vectors, and in interrupt handlers.
    sums: [Option<Sum>; VECTORS.len() + 1],
}

/// A disk.
#[derive(Debug)]
struct Disk {
    entity: EntityId,
    io: TrackId,
    /// Bytes and time with the device of all its requests.
    all: [Sum; 2],
    /// The same of those of each process.
    of: BTreeMap<EntityId, [Sum; 2]>,
}

/// A block request on its way.
#[derive(Debug)]
struct Request {
    queued: i64,
    issued: Option<i64>,
    thread: i64,
    issuer: Option<i64>,
    op: (IoOp, bool),
    sectors: u64,
}

/// A machine.
#[derive(Debug)]
struct Host {
    key: String,
    name: Name,
    entity: EntityId,
    tasks: Tasks,
    /// By their numbers.
    cpus: Vec<Option<Box<Cpu>>>,
    requests: HashMap<(i64, i64), Request>,
    disks: BTreeMap<i64, Disk>,
    nics: BTreeMap<Name, Sum>,
    /// What interrupt handlers are called, by the numbers of their interrupts, with the text that the tracer gives them.
    handlers: HashMap<i64, (Vec<u8>, Name)>,
    /// What softirqs are called.
    vectors: [Option<Name>; VECTORS.len()],
    marks: Option<TrackId>,
}

impl Host {
    /// A CPU of which there has been an event.
    fn cpu(&mut self, number: u32) -> Option<&mut Cpu> {
        self.cpus.get_mut(number as usize)?.as_deref_mut()
    }
}

/// A type of event with what it means.
#[derive(Debug)]
struct Kind {
    what: EventType,
    /// The numbers of its fields' names.
    keys: Vec<AttrKey>,
    /// The number of [`RESULT`].
    result: AttrKey,
    action: Action,
    host: usize,
    count: u64,
}

/// What events became.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events.
    pub events: u64,
    /// Block requests that completed and of which nothing else was seen.
    pub unknown_requests: u64,
    /// Events that are earlier than one before them.
    pub backwards: u64,
    /// The first time and the last.
    pub span: Option<(i64, i64)>,
}

/// Makes rows of events.
#[derive(Debug, Default)]
pub struct KernelRows {
    /// Entities, tracks and sources of what is imported.
    pub lanes: Lanes,
    rows: Rows,
    hosts: Vec<Host>,
    kinds: Vec<Kind>,
    names: Names,
    /// The fields of events, which are most of all rows.
    attrs: AttrColumns,
    last_id: u64,
    tally: Tally,
}

impl KernelRows {
    /// A machine, whose rows are of `source`; `key` tells it from others.
    pub fn host(&mut self, key: &str, name: &str, source: SourceId) -> usize {
        let entity = self.lanes.entity(EntityKind::Host, key, |e| e.name = name.into());
        if let Some(known) = self.hosts.iter().position(|host| host.entity == entity) {
            return known;
        }
        self.hosts.push(Host {
            key: key.into(),
            name: name.into(),
            entity,
            tasks: Tasks::new(key, entity, source),
            cpus: Vec::new(),
            requests: HashMap::new(),
            disks: BTreeMap::new(),
            nics: BTreeMap::new(),
            handlers: HashMap::new(),
            vectors: Default::default(),
            marks: None,
        });
        self.hosts.len() - 1
    }

    /// Declares a type of event of a host; the number is that of [`RawEvent::kind`].
    pub fn declare(&mut self, what: EventType, host: usize) -> usize {
        let action = action(&what);
        let keys = what.fields.iter().map(|field| self.attrs.key(field)).collect();
        let result = self.attrs.key(&self.names.name(RESULT));
        self.kinds.push(Kind { what, keys, result, action, host, count: 0 });
        self.kinds.len() - 1
    }

    /// The type of event of this number.
    #[cfg(test)]
    pub(crate) fn kind(&self, number: usize) -> Option<&EventType> {
        self.kinds.get(number).map(|kind| &kind.what)
    }

    /// What a host is called.
    pub fn host_name(&self, host: usize) -> &str {
        self.hosts.get(host).map_or("", |host| &host.name)
    }

    /// A thread of a host is called this, or belongs to this process, as the tracer says besides its events.
    pub fn learn(&mut self, host: usize, tid: i64, pid: Option<i64>, comm: Option<&[u8]>) {
        if tid > 0
            && let Some(host) = self.hosts.get_mut(host)
        {
            host.tasks.learn(tid, pid, comm, &mut self.lanes);
        }
    }

    /// How many events there were of each type that there were any of.
    pub fn counts(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.kinds.iter().filter(|kind| kind.count > 0).map(|kind| (&kind.what.name, kind.count))
    }

    /// What events became so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The rows made since the last call, when about so much has been read.
    pub fn take(&mut self, done: f64) -> Batch {
        let mut rows = Rows::default();
        self.lanes.drain(&mut rows);
        rows.append(&mut self.rows);
        Batch { rows, attrs: self.attrs.take(), done }
    }

    /// Whether so many rows are held that they are to be taken. They are counted now and then, since there are many
    /// tables.
    pub fn is_full(&self) -> bool {
        self.tally.events.is_multiple_of(COUNTED) && self.rows.len() + self.attrs.len() >= BATCH
    }

    /// Makes the rows of an event. Events come in the order of their times; one of an undeclared type is left out.
    pub fn event(&mut self, event: &RawEvent) {
        let Some(kind) = self.kinds.get_mut(event.kind) else { return };
        kind.count += 1;
        self.tally.events += 1;
        let (first, last) = self.tally.span.unwrap_or((event.time, event.time));
        self.tally.backwards += u64::from(event.time < last);
        self.tally.span = Some((first.min(event.time), last.max(event.time)));
        let mut at = At {
            kind,
            host: &mut self.hosts,
            lanes: &mut self.lanes,
            rows: &mut self.rows,
            names: &mut self.names,
            attrs: &mut self.attrs,
            last_id: &mut self.last_id,
            tally: &mut self.tally,
            event,
            // What has happened stays: states do not go back with a clock that does.
            now: last.max(event.time),
        };
        at.event();
    }

    /// The trace has ended.
    pub fn finish(&mut self) {
        let Some((_, end)) = self.tally.span else { return };
        let (lanes, rows) = (&mut self.lanes, &mut self.rows);
        for host in &mut self.hosts {
            for tid in host.tasks.finish(end, lanes, rows) {
                let track = host.tasks.calls(tid, lanes);
                if let Some((id, since, name)) = host.tasks.task(tid, lanes).call.take() {
                    rows.span.push(Span {
                        id,
                        ts: Ns(since),
                        dur: None,
                        track,
                        parent: None,
                        name,
                    });
                }
            }
            for cpu in host.cpus.iter_mut().flatten() {
                if let Some(slice) = cpu.current.filter(|(_, since)| end > *since) {
                    occupied(slice, end, cpu, &mut host.tasks, lanes, rows);
                }
                cpu.sums.iter_mut().flatten().for_each(|sum| sum.flush(end, rows));
            }
            host.nics.values_mut().for_each(|sum| sum.flush(end, rows));
            for disk in host.disks.values_mut() {
                let sums = disk.of.values_mut().chain([&mut disk.all]);
                sums.flatten().for_each(|sum| sum.flush(end, rows));
            }
        }
    }
}

/// An event and what it is about.
struct At<'a> {
    kind: &'a Kind,
    host: &'a mut Vec<Host>,
    lanes: &'a mut Lanes,
    rows: &'a mut Rows,
    names: &'a mut Names,
    attrs: &'a mut AttrColumns,
    last_id: &'a mut u64,
    tally: &'a mut Tally,
    event: &'a RawEvent,
    /// The time of the event, or of one before it if that is later.
    now: i64,
}

impl At<'_> {
    fn id(&mut self) -> Id {
        *self.last_id += 1;
        Id(*self.last_id)
    }

    fn host(&mut self) -> &mut Host {
        &mut self.host[self.kind.host]
    }

    /// The CPU of the event.
    fn cpu(&mut self) -> Option<(u32, &mut Cpu)> {
        let number = self.event.cpu.filter(|cpu| *cpu < CPUS)?;
        let host = &mut self.host[self.kind.host];
        let (key, entity, lanes) = (&host.key, host.entity, &mut *self.lanes);
        let place = number as usize;
        if host.cpus.len() <= place {
            host.cpus.resize_with(place + 1, || None);
        }
        let cpu: &mut Cpu = host.cpus[place].get_or_insert_with(|| {
            let entity = lanes.entity(EntityKind::Cpu, &format!("{key}:cpu{number}"), |e| {
                e.parent = Some(entity);
                e.name = format!("CPU {number}").as_str().into();
                e.number = Some(i64::from(number));
            });
            Box::new(Cpu {
                entity,
                occupant: None,
                marks: None,
                lanes: [None; LANES.len()],
                current: None,
                hardirqs: Vec::new(),
                softirq: None,
                sums: Default::default(),
            })
        });
        Some((number, cpu))
    }

    /// The thread that ran when the event happened, as far as that is known.
    fn tid(&mut self) -> Option<i64> {
        match self.event.tid {
            Some(tid) => Some(tid),
            None => self.cpu().and_then(|(_, cpu)| cpu.current).map(|(tid, _)| tid),
        }
    }

    fn event(&mut self) {
        let (kind, event, now) = (self.kind, self.event, self.now);
        if let Some(tid) = event.tid.filter(|tid| *tid > 0)
            && (event.pid.is_some() || event.comm.is_some())
        {
            self.learn(tid, event.pid, event.comm);
        }
        match &kind.action {
            Action::Switch { .. } => self.switch(),
            Action::Wake { tid, comm } => {
                let Some(tid) = event.integer(*tid).filter(|tid| *tid > 0) else { return };
                self.learn(tid, None, *comm);
                self.wake(tid);
            }
            Action::Fork { tid, pid, comm } | Action::Known { tid, pid, comm } => {
                if let Some(tid) = event.integer(*tid).filter(|tid| *tid > 0) {
                    self.learn(tid, event.integer(*pid), *comm);
                }
                if matches!(kind.action, Action::Fork { .. }) {
                    self.mark();
                }
            }
            Action::Rename { tid, comm } => {
                if let Some(tid) = event.integer(*tid).filter(|tid| *tid > 0) {
                    self.learn(tid, None, *comm);
                }
            }
            Action::Exit { .. } | Action::Other => self.mark(),
            Action::Hardirq { begins, irq, name } => self.hardirq(*begins, *irq, *name, now),
            Action::Softirq { begins, vector } => self.softirq(*begins, *vector, now),
            Action::Block { .. } => self.block(),
            Action::Transmit { device, length } => {
                self.transmit(*device, *length, now);
                self.mark();
            }
            Action::Enter { call } => self.enter_call(call.clone(), now),
            Action::EnterNumber { id } => {
                let number = event.integer(*id).map_or("?".into(), |number| number.to_string());
                let call = self.names.name(&format!("syscall {number}"));
                self.enter_call(call, now);
            }
            Action::Return { result } => self.return_call(*result, now),
        }
    }

    fn learn(&mut self, tid: i64, pid: Option<i64>, comm: Place) {
        let comm = self.event.bytes(comm);
        self.host[self.kind.host].tasks.learn(tid, pid, comm, self.lanes);
    }

    fn switch(&mut self) {
        let Action::Switch { prev, prev_comm, prev_state, next, next_comm } = self.kind.action
        else {
            return;
        };
        let (event, now) = (self.event, self.now);
        let ids = event.integer(prev).zip(event.integer(next));
        let (Some((prev, next)), true) = (ids, self.cpu().is_some()) else { return self.mark() };
        let state = event.integer(prev_state).unwrap_or(0);
        let Some((number, cpu)) = self.cpu() else { return };
        let before = cpu.current.replace((next, now));
        // What ran before the first switch is known by it, and not since when.
        let slice = before.filter(|(tid, since)| *tid == prev && now > *since);
        for (tid, comm) in [(prev, prev_comm), (next, next_comm)] {
            if tid > 0 {
                self.learn(tid, None, comm);
            }
        }
        let host = &mut self.host[self.kind.host];
        if let (Some(slice), Some(Some(cpu))) = (slice, host.cpus.get_mut(number as usize)) {
            occupied(slice, now, cpu, &mut host.tasks, self.lanes, self.rows);
        }
        if prev > 0 {
            host.tasks.leaves(prev, number, state, now, self.lanes, self.rows);
        }
        if next > 0 {
            host.tasks.runs(next, number, now, self.lanes, self.rows);
        }
    }

    fn wake(&mut self, tid: i64) {
        let (waker, now, id) = (self.tid(), self.now, self.id());
        let mut context = match waker {
            None | Some(0) => WakeContext::Unknown,
            Some(_) => WakeContext::Task,
        };
        let mut number = 0;
        if let Some((cpu, of_cpu)) = self.cpu() {
            number = cpu;
            if !of_cpu.hardirqs.is_empty() {
                context = WakeContext::Hardirq;
            } else if of_cpu.softirq.is_some() {
                context = WakeContext::Softirq;
            }
        }
        let by = (context, waker, number);
        let tasks = &mut self.host[self.kind.host].tasks;
        tasks.wakes(tid, id, by, now, self.lanes, self.rows);
    }

    /// Adds time in interrupts to the sums of the event's CPU; those of softirqs are numbered by their vectors.
    fn borrowed(&mut self, sum: usize, from: i64, now: i64) {
        let source = self.host().tasks.source;
        let Some(number) = self.event.cpu else { return };
        let Some(cpu) = self.host[self.kind.host].cpu(number) else { return };
        let (entity, lanes) = (cpu.entity, &mut *self.lanes);
        let sum = cpu.sums[sum].get_or_insert_with(|| {
            let name = match VECTORS.get(sum) {
                Some(vector) => format!("{}{vector}", names::SOFTIRQ_PREFIX),
                None => names::HARDIRQ.to_owned(),
            };
            let lane = Lane::counter(&name, "ns", Measure::Delta);
            Sum::new(lanes.track(entity, None, lane, source))
        });
        sum.add(now.saturating_sub(from) as f64, from, now, self.rows);
    }

    /// A span on one of the [`LANES`] of the event's CPU.
    fn on_cpu(&mut self, lane: usize, name: Name, from: i64, now: i64) {
        let (source, id) = (self.host().tasks.source, self.id());
        let Some(number) = self.event.cpu else { return };
        let Some(cpu) = self.host[self.kind.host].cpu(number) else { return };
        let (entity, lanes) = (cpu.entity, &mut *self.lanes);
        let track = *cpu.lanes[lane].get_or_insert_with(|| {
            lanes.track(entity, None, Lane::spans(LANES[lane], Discipline::Nested), source)
        });
        let dur = Some(Ns(now.saturating_sub(from)));
        self.rows.span.push(Span { id, ts: Ns(from), dur, track, parent: None, name });
    }

    fn hardirq(&mut self, begins: bool, irq: Place, name: Place, now: i64) {
        let name = begins.then(|| self.handler(irq, name));
        let Some((_, cpu)) = self.cpu() else { return self.mark() };
        if let Some(name) = name {
            // More than a few are in each other only where exits were lost.
            if cpu.hardirqs.len() >= 16 {
                cpu.hardirqs.clear();
            }
            cpu.hardirqs.push((now, name));
        } else if let Some((from, name)) = cpu.hardirqs.pop() {
            self.on_cpu(IRQ, name, from, now);
            self.borrowed(VECTORS.len(), from, now);
        }
    }

    /// What a handler's spans are called.
    fn handler(&mut self, irq: Place, name: Place) -> Name {
        let number = self.event.integer(irq).unwrap_or(-1);
        let text = self.event.bytes(name).unwrap_or_default();
        let handlers = &mut self.host[self.kind.host].handlers;
        if let Some((known, name)) = handlers.get(&number)
            && known == text
        {
            return name.clone();
        }
        let shown = match text {
            b"" => format!("irq {number}"),
            text => format!("irq {number} {}", String::from_utf8_lossy(text)),
        };
        let name = self.names.name(&shown);
        if handlers.len() < HANDLERS {
            handlers.insert(number, (text.to_vec(), name.clone()));
        }
        name
    }

    fn softirq(&mut self, begins: bool, vector: Place, now: i64) {
        let vector = self.event.integer(vector).and_then(|v| usize::try_from(v).ok());
        let vector = vector.filter(|v| *v < VECTORS.len());
        let (Some(vector), Some((_, cpu))) = (vector, self.cpu()) else { return self.mark() };
        if begins {
            cpu.softirq = Some((now, vector));
        } else if let Some((from, _)) = cpu.softirq.take().filter(|begun| begun.1 == vector) {
            let (vectors, names) = (&mut self.host[self.kind.host].vectors, &mut *self.names);
            let name = vectors[vector].get_or_insert_with(|| names.name(VECTORS[vector])).clone();
            self.on_cpu(SOFTIRQ, name, from, now);
            self.borrowed(vector, from, now);
        }
    }

    fn block(&mut self) {
        let Action::Block { stage, dev, sector, sectors, op, tid } = self.kind.action else {
            return;
        };
        let (event, now) = (self.event, self.now);
        let place = event.integer(dev).zip(event.integer(sector));
        let Some(place) = place else { return self.mark() };
        let sectors = event.integer(sectors).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        let op = operation(event, op);
        let tid = match event.integer(tid) {
            Some(tid) => Some(tid),
            None => self.tid(),
        };
        let host = &mut self.host[self.kind.host];
        match stage {
            Stage::Queued | Stage::Issued => {
                if host.requests.len() >= REQUESTS {
                    self.tally.unknown_requests += host.requests.len() as u64;
                    host.requests.clear();
                }
                let thread = tid.unwrap_or(0);
                let mut is_new = false;
                let request = host.requests.entry(place).or_insert_with(|| {
                    is_new = true;
                    Request { queued: now, issued: None, thread, issuer: None, op, sectors }
                });
                if stage == Stage::Issued {
                    request.issued = Some(now);
                    request.issuer = tid;
                    request.sectors = request.sectors.max(sectors);
                }
                if is_new && thread > 0 {
                    let task = host.tasks.task(thread, self.lanes);
                    task.requests = task.requests.saturating_add(1);
                }
            }
            Stage::Completed => match host.requests.remove(&place) {
                None => self.tally.unknown_requests += 1,
                Some(request) => self.completed(place, &request, now),
            },
        }
    }

    fn completed(&mut self, (dev, sector): (i64, i64), request: &Request, now: i64) {
        let id = self.id();
        let host = &mut self.host[self.kind.host];
        let (key, parent, source) = (&host.key, host.entity, host.tasks.source);
        let lanes = &mut *self.lanes;
        let disk = host.disks.entry(dev).or_insert_with(|| {
            let (major, minor) = (dev >> 20 & 0xfff, dev & 0xf_ffff);
            let entity = lanes.entity(EntityKind::Disk, &format!("{key}:{major}:{minor}"), |e| {
                e.parent = Some(parent);
                e.name = format!("disk {major}:{minor}").as_str().into();
                // As user space numbers devices (glibc, makedev).
                e.number = Some((major << 8) | (minor & 0xff) | ((minor & !0xff) << 12));
            });
            let io = lanes.track(entity, None, Lane::spans(names::IO, Discipline::Overlap), source);
            let sum = |lane| Sum::new(lanes.track(entity, None, lane, source));
            Disk { entity, io, all: DISK_SUMS.map(sum), of: BTreeMap::new() }
        });
        let task = host.tasks.task(request.thread, lanes);
        task.requests = task.requests.saturating_sub(1);
        let (thread, process) = (task.entity, task.process);
        let parents = disk.all.each_ref().map(Sum::track);
        let of = disk.of.entry(process).or_insert_with(|| {
            std::array::from_fn(|i| {
                Sum::new(lanes.track(process, Some(parents[i]), DISK_SUMS[i], source))
            })
        });
        let bytes = request.sectors.saturating_mul(512);
        let from = request.issued.unwrap_or(request.queued);
        for sums in [&mut disk.all, of] {
            sums[0].add(bytes as f64, now, now, self.rows);
            sums[1].add(now.saturating_sub(from) as f64, from, now, self.rows);
        }
        let (disk, track) = (disk.entity, disk.io);
        let issuer = request.issuer.filter(|tid| *tid > 0 && *tid != request.thread);
        let issuer = issuer.map(|tid| host.tasks.task(tid, lanes).entity);
        let (ts, (op, sync)) = (Ns(request.queued), request.op);
        let name = self.names.name(op.as_str());
        let dur = Some(Ns(now.saturating_sub(request.queued)));
        self.rows.span.push(Span { id, ts, dur, track, parent: None, name });
        self.rows.io.push(Io {
            id,
            ts,
            disk,
            thread,
            op,
            sync,
            bytes,
            sector: sector as u64,
            issued: request.issued.map(Ns),
            issuer,
        });
    }

    fn transmit(&mut self, device: Place, length: Place, now: i64) {
        let device = self.event.bytes(device).map(String::from_utf8_lossy);
        let (Some(device), Some(length)) = (device, self.event.integer(length)) else { return };
        let host = &mut self.host[self.kind.host];
        if let Some(sum) = host.nics.get_mut(&*device) {
            return sum.add(length as f64, now, now, self.rows);
        }
        let name = self.names.name(&device);
        let (key, parent, source) = (&host.key, host.entity, host.tasks.source);
        let lanes = &mut *self.lanes;
        let sum = host.nics.entry(name.clone()).or_insert_with(|| {
            let nic = lanes.entity(EntityKind::Nic, &format!("{key}:nic:{name}"), |e| {
                e.parent = Some(parent);
                e.name = name;
            });
            let lane = Lane::counter(names::NIC_TX_BYTES, "By", Measure::Delta);
            Sum::new(lanes.track(nic, None, lane, source))
        });
        sum.add(length as f64, now, now, self.rows);
    }

    fn enter_call(&mut self, name: Name, now: i64) {
        let Some(tid) = self.tid().filter(|tid| *tid > 0) else { return self.mark() };
        let id = self.id();
        self.close_call(tid, now);
        self.attributes(id);
        let task = self.host[self.kind.host].tasks.task(tid, self.lanes);
        task.call = Some((id, now, name));
    }

    fn return_call(&mut self, result: Place, now: i64) {
        let Some(tid) = self.tid().filter(|tid| *tid > 0) else { return self.mark() };
        if let Some(id) = self.close_call(tid, now)
            && let Some(result) = result.and_then(|result| self.event.values.get(result))
        {
            attribute(self.attrs, id, self.kind.result, result, &self.event.text);
        }
    }

    /// Ends the system call that a thread is in. One whose return was lost ends when the next one begins.
    fn close_call(&mut self, tid: i64, now: i64) -> Option<Id> {
        let tasks = &mut self.host[self.kind.host].tasks;
        let (id, since, name) = tasks.task(tid, self.lanes).call.take()?;
        let track = tasks.calls(tid, self.lanes);
        let dur = Some(Ns(now.saturating_sub(since)));
        self.rows.span.push(Span { id, ts: Ns(since), dur, track, parent: None, name });
        Some(id)
    }

    /// The event as a mark with its fields.
    fn mark(&mut self) {
        let (id, kind) = (self.id(), self.kind);
        let tid = self.tid().filter(|tid| *tid > 0);
        let host = &mut self.host[kind.host];
        let source = host.tasks.source;
        let track = if let Some(tid) = tid {
            host.tasks.marks(tid, self.lanes)
        } else {
            let host_entity = host.entity;
            let lanes = &mut *self.lanes;
            let cpu = self.event.cpu.and_then(|cpu| host.cpus.get_mut(cpu as usize));
            let (entity, known) = match cpu {
                Some(Some(cpu)) => (cpu.entity, &mut cpu.marks),
                _ => (host_entity, &mut host.marks),
            };
            *known
                .get_or_insert_with(|| lanes.track(entity, None, Lane::marks(names::MARKS), source))
        };
        let (ts, name) = (Ns(self.event.time), kind.what.name.clone());
        self.rows.mark.push(Mark { id, ts, track, name, value: None });
        self.attributes(id);
    }

    /// The fields of the event as attributes of a row.
    fn attributes(&mut self, id: Id) {
        for (key, value) in self.kind.keys.iter().zip(&self.event.values) {
            attribute(self.attrs, id, *key, value, &self.event.text);
        }
    }
}

/// A field as an attribute of a row, unless the event lacks it; texts lie in `bytes`.
fn attribute(attrs: &mut AttrColumns, id: Id, key: AttrKey, value: &Value, bytes: &[u8]) {
    match value {
        Value::Absent => {}
        Value::Unsigned(value) => attrs.push_unsigned(id, key, *value),
        Value::Signed(value) => attrs.push_signed(id, key, *value),
        Value::Text(range) => {
            attrs.push_text(id, key, bytes.get(range.clone()).unwrap_or_default());
        }
        Value::Float(_) => {
            let mut text = String::new();
            value.show(bytes, &mut text);
            attrs.push_text(id, key, text.as_bytes());
        }
    }
}

/// Who had a CPU since when.
fn occupied(
    (tid, since): (i64, i64),
    now: i64,
    cpu: &mut Cpu,
    tasks: &mut Tasks,
    lanes: &mut Lanes,
    rows: &mut Rows,
) {
    let value = match tid {
        0 => 0,
        tid => i64::from(tasks.task(tid, lanes).entity.0),
    };
    let (entity, source) = (cpu.entity, tasks.source);
    let track = *cpu.occupant.get_or_insert_with(|| {
        lanes.track(entity, None, Lane::states(names::OCCUPANT, Discipline::Sparse), source)
    });
    let dur = Some(Ns(now.saturating_sub(since)));
    rows.state.push(State { ts: Ns(since), dur, track, value, arg: None });
}

/// What a request does and whether it is synchronous: as letters (ftrace, perf) or as LTTng's bits.
fn operation(event: &RawEvent, place: Place) -> (IoOp, bool) {
    if let Some(letters) = event.bytes(place) {
        let op = match letters.first() {
            Some(b'R') => IoOp::Read,
            Some(b'W') => IoOp::Write,
            Some(b'D') => IoOp::Discard,
            Some(b'F') if letters.get(1) == Some(&b'W') => IoOp::Write,
            Some(b'F') => IoOp::Flush,
            _ => IoOp::Other,
        };
        return (op, letters.contains(&b'S'));
    }
    // lttng-modules, include/instrumentation/events/block.h.
    let bits = event.integer(place).unwrap_or(0);
    let op = match bits {
        bits if bits & 0x1 != 0 => IoOp::Write,
        bits if bits & 0x2 != 0 => IoOp::Discard,
        bits if bits & 0x4 != 0 => IoOp::Read,
        bits if bits & 0x500 != 0 => IoOp::Flush,
        _ => IoOp::Other,
    };
    (op, bits & 0x20 != 0)
}
