//! The recorded rows, indexed by the entity that they are about.

use foldhash::{HashMap, HashMapExt as _, HashSet};
use gpuwhy_schema::{
    Direction, Entity, EntityId, EntityKind, Id, IoOp, Ns, Rows, ThreadState, Track, TrackId,
    WAIT_FOR_GIL, WakeContext, names,
};

use crate::calls::Calls;
use crate::engine_waits::{EngineWait, Engines};
use crate::gpu::Gpus;
use crate::intervals::{self, Interval};
use crate::median::median;
use crate::syscall::{self, Wait};
use crate::wandering::Requests;

/// One state of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// When it began.
    pub from: Ns,
    /// When it ended; `Ns::MAX` if it has not.
    pub to: Ns,
    /// The state.
    pub state: ThreadState,
    /// `state.arg`: the CPU, or the system call; -1 if there is none.
    pub arg: i64,
}

impl Held {
    /// Whether the thread did something else than to wait on: between two waits for one thing it runs for a moment, and
    /// may have to wait for a CPU.
    fn ran_on(&self) -> bool {
        let waits = matches!(
            self.state,
            ThreadState::Runnable
                | ThreadState::Throttled
                | ThreadState::Hardirq
                | ThreadState::Softirq
        );
        !waits && self.to.saturating_sub(self.from) > AT_ONCE
    }
}

/// One wakeup of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Woken {
    /// When.
    pub ts: Ns,
    /// Only a waker that ran in its own context.
    pub waker: Option<EntityId>,
    /// An interrupt of the hardware woke it: its time was up, if it waited for no device.
    pub by_interrupt: bool,
}

/// One block request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// When it was submitted.
    pub queued: Ns,
    /// When the device got it.
    pub issued: Ns,
    /// When it completed; `Ns::MAX` if it has not.
    pub done: Ns,
    /// The disk.
    pub disk: EntityId,
    /// The thread that submitted it.
    pub thread: EntityId,
    /// The thread that issued it, if another one.
    pub issuer: Option<EntityId>,
    /// What it does.
    pub op: IoOp,
    /// How much it moves.
    pub bytes: u64,
}

/// Bytes handed over or taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// When.
    pub ts: Ns,
    /// The thread that sent or received them.
    pub thread: EntityId,
    /// The directed flow, the same at both ends.
    pub flow: u64,
    /// Whether they were sent or received.
    pub direction: Direction,
    /// The stream position behind the last of them, the same at both ends; it wraps.
    pub position: u32,
    /// Whether they went from who asks to who is asked, or back; none if that is not known.
    pub request: Option<bool>,
}

impl Sent {
    /// Whether no network lies between the ends, which are those of a Unix socket: what is sent has arrived.
    pub fn is_local(&self) -> bool {
        self.position == 0
    }
}

/// A counter's value, and the tick that it covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tick {
    /// When the tick began.
    pub from: Ns,
    /// When it ended.
    pub to: Ns,
    /// By how much the counter grew in it.
    pub value: f64,
}

/// What a process counted, and on which device.
#[derive(Debug)]
struct Counted {
    process: EntityId,
    on: EntityId,
    ticks: Vec<Tick>,
}

/// Recorded rows, indexed. Building it costs time and memory proportional to the rows; callers
/// bound both by reading only the range that they ask about.
#[derive(Debug, Default)]
pub struct World {
    entities: HashMap<EntityId, Entity>,
    states: HashMap<EntityId, Vec<Held>>,
    occupants: HashMap<i64, Vec<(Ns, Ns, EntityId)>>,
    wakeups: HashMap<EntityId, Vec<Woken>>,
    by_thread: HashMap<EntityId, Vec<Request>>,
    by_disk: HashMap<EntityId, Vec<Request>>,
    memory: HashMap<EntityId, Vec<Interval>>,
    /// From a try of a thread for a lock of a file that was in vain to the next: who held the lock.
    lock_tries: HashMap<EntityId, Vec<(Ns, Ns, EntityId)>>,
    messages: HashMap<EntityId, Vec<Sent>>,
    flows: HashMap<(u64, Direction), Vec<Sent>>,
    gpus: Gpus,
    calls: Calls,
    steal: HashMap<i64, Vec<Tick>>,
    by_process: HashMap<&'static str, Vec<Counted>>,
    throttled: HashMap<EntityId, Vec<Tick>>,
    /// Signals by which processes wake each other: when, and the pid of the sender, by process.
    signals: HashMap<EntityId, Vec<(Ns, i64)>>,
    /// When threads of engines and of their workers waited for each other.
    engine_waits: HashMap<EntityId, Vec<EngineWait>>,
    /// Processes that mark batches which they load.
    loaders: HashSet<EntityId>,
    workload: HashSet<EntityId>,
    /// Processes of the workload that are ranks of a job, with their number.
    ranks: HashMap<EntityId, i64>,
    /// When ranks were stopped: from, to, and which.
    stopped_ranks: Vec<(Ns, Ns, EntityId)>,
    /// What the steps of ranks take at the median, where some were stopped.
    usual_steps: HashMap<EntityId, Ns>,
    /// The thread that takes a process's steps.
    stepping: HashMap<EntityId, EntityId>,
    /// The threads of each process that have states.
    threads: HashMap<EntityId, Vec<EntityId>>,
    /// Threads that sleep in `read` or `poll`.
    takers: HashSet<EntityId>,
    /// Threads that take steps of their own, as those of a server that has one for each connection.
    steppers: HashSet<EntityId>,
    /// Processes whose threads answer what others of them have received.
    wandering: HashSet<EntityId>,
}

/// How long a delta covers when the row before it is missing: ten ticks at 100 Hz.
const LONGEST_TICK: Ns = Ns::millis(100);

impl World {
    /// Indexes `rows`. The workload is every process that has a step.
    pub fn new(rows: &Rows) -> World {
        let mut world = World::default();
        for entity in &rows.entity {
            world.entities.insert(entity.id, entity.clone());
        }
        let tracks: HashMap<TrackId, &Track> = rows.track.iter().map(|t| (t.id, t)).collect();
        world.index_states(rows, &tracks);
        world.index_wakeups(rows);
        world.index_io(rows);
        world.index_messages(rows);
        world.index_spans(rows, &tracks);
        world.index_counters(rows, &tracks);
        world.index_signals(rows, &tracks);
        world.calls = Calls::new(rows, &tracks, &world.entities);
        for step in &rows.step {
            let process = world.process(step.thread);
            world.workload.insert(process);
            if let Some(rank) = step.rank {
                world.ranks.entry(process).or_insert_with(|| rank.into());
            }
            world.stepping.entry(process).or_insert(step.thread);
            world.steppers.insert(step.thread);
        }
        world.index_wandering(rows);
        world.index_stopped_ranks(rows);
        let mut threads: HashMap<EntityId, Vec<EntityId>> = HashMap::default();
        for thread in world.states.keys().filter(|thread| world.is_workload(**thread)) {
            threads.entry(world.process(*thread)).or_default().push(*thread);
        }
        threads.values_mut().for_each(|all| all.sort_unstable());
        world.threads = threads;
        world
    }

    fn index_states(&mut self, rows: &Rows, tracks: &HashMap<TrackId, &Track>) {
        for row in &rows.state {
            let Some(track) = tracks.get(&row.track) else { continue };
            let to = row.dur.map_or(Ns::MAX, |dur| row.ts.saturating_add(dur));
            match &*track.name {
                names::THREAD_STATE => {
                    let state = ThreadState::from_code(row.value).unwrap_or(ThreadState::Unknown);
                    let arg = row.arg.unwrap_or(-1);
                    let held = Held { from: row.ts, to, state, arg };
                    if state == ThreadState::Sleep
                        && matches!(syscall::wait(arg), Wait::Read | Wait::Poll)
                    {
                        self.takers.insert(track.entity);
                    }
                    self.states.entry(track.entity).or_default().push(held);
                }
                names::OCCUPANT => {
                    let cpu = self.entities.get(&track.entity).and_then(|e| e.number);
                    let who = EntityId(u32::try_from(row.value).unwrap_or(0));
                    if let Some(cpu) = cpu {
                        self.occupants.entry(cpu).or_default().push((row.ts, to, who));
                    }
                }
                names::FILE_LOCK_HOLDER => {
                    let holder = EntityId(u32::try_from(row.value).unwrap_or(0));
                    self.lock_tries.entry(track.entity).or_default().push((row.ts, to, holder));
                }
                _ => {}
            }
        }
        for held in self.states.values_mut() {
            held.sort_unstable_by_key(|h| (h.from, h.to));
        }
        for slices in self.occupants.values_mut().chain(self.lock_tries.values_mut()) {
            slices.sort_unstable();
        }
    }

    fn index_wakeups(&mut self, rows: &Rows) {
        for row in &rows.wakeup {
            let believed = row.context == WakeContext::Task && row.waker != Some(row.woken);
            let waker = row.waker.filter(|_| believed);
            let by_interrupt = row.context == WakeContext::Hardirq;
            let woken = Woken { ts: row.ts, waker, by_interrupt };
            self.wakeups.entry(row.woken).or_default().push(woken);
        }
        for list in self.wakeups.values_mut() {
            list.sort_by_key(|w| w.ts);
        }
    }

    fn index_signals(&mut self, rows: &Rows, tracks: &HashMap<TrackId, &Track>) {
        for mark in &rows.mark {
            let Some(track) = tracks.get(&mark.track) else { continue };
            if let (names::SIGNALS, Some(sender)) = (&*track.name, mark.value) {
                let process = self.process(track.entity);
                self.signals.entry(process).or_default().push((mark.ts, sender as i64));
            }
        }
        self.signals.values_mut().for_each(|list| list.sort_unstable());
    }

    fn index_io(&mut self, rows: &Rows) {
        let spans: HashMap<Id, Ns> =
            rows.span.iter().filter_map(|s| Some((s.id, s.ts.saturating_add(s.dur?)))).collect();
        for io in &rows.io {
            let done = spans.get(&io.id).copied().unwrap_or(Ns::MAX);
            let issued = io.issued.unwrap_or(done).clamp(io.ts, done);
            let request = Request {
                queued: io.ts,
                issued,
                done,
                disk: io.disk,
                thread: io.thread,
                issuer: io.issuer.filter(|i| *i != io.thread),
                op: io.op,
                bytes: io.bytes,
            };
            self.by_thread.entry(io.thread).or_default().push(request);
            self.by_disk.entry(io.disk).or_default().push(request);
        }
        for list in self.by_thread.values_mut().chain(self.by_disk.values_mut()) {
            list.sort_by_key(|r| (r.done, r.queued));
        }
    }

    fn index_messages(&mut self, rows: &Rows) {
        for row in &rows.message {
            let sent = Sent {
                ts: row.ts,
                thread: row.thread,
                flow: row.flow,
                direction: row.direction,
                position: row.position,
                request: row.is_request(),
            };
            self.messages.entry(row.thread).or_default().push(sent);
            self.flows.entry((row.flow, row.direction)).or_default().push(sent);
        }
        for list in self.messages.values_mut().chain(self.flows.values_mut()) {
            list.sort_by_key(|m| m.ts);
        }
    }

    /// After the steps: when threads that take those of ranks were stopped.
    fn index_stopped_ranks(&mut self, rows: &Rows) {
        let stepping = self.ranks.keys().filter_map(|rank| Some((*rank, self.stepping.get(rank)?)));
        let states = stepping.flat_map(|(rank, thread)| {
            let all = self.states.get(thread).map_or(&[][..], Vec::as_slice);
            all.iter()
                .filter(|held| held.state == ThreadState::Stopped)
                .map(move |held| (held.from, held.to, rank))
        });
        self.stopped_ranks = states.collect();
        self.stopped_ranks.sort_unstable();
        if self.stopped_ranks.is_empty() {
            return;
        }
        let ranks: HashMap<Id, EntityId> =
            rows.step.iter().map(|step| (step.id, self.process(step.thread))).collect();
        let mut durations: HashMap<EntityId, Vec<Ns>> = HashMap::new();
        for span in &rows.span {
            if let (Some(rank), Some(dur)) = (ranks.get(&span.id), span.dur) {
                durations.entry(*rank).or_default().push(dur);
            }
        }
        self.usual_steps = durations
            .into_iter()
            .map(|(rank, all)| (rank, median(all.into_iter(), Ns::cmp)))
            .collect();
    }

    /// After the steps: it matters where several threads of a process take some.
    fn index_wandering(&mut self, rows: &Rows) {
        let mut steppers: HashMap<EntityId, u32> = HashMap::new();
        for thread in &self.steppers {
            *steppers.entry(self.process(*thread)).or_default() += 1;
        }
        let mut requests: HashMap<EntityId, Requests<EntityId>> = HashMap::new();
        for message in &rows.message {
            let process = self.process(message.thread);
            if steppers.get(&process).is_some_and(|many| *many > 1) {
                let of = requests.entry(process).or_default();
                of.take(message.thread, message, message.ts, None);
            }
        }
        let wandering = requests.into_iter().filter(|(_, of)| of.wander());
        self.wandering = wandering.map(|(process, _)| process).collect();
    }

    fn index_spans(&mut self, rows: &Rows, tracks: &HashMap<TrackId, &Track>) {
        let launchers: HashMap<Id, (Ns, EntityId)> = rows
            .mark
            .iter()
            .filter_map(|m| Some((m, tracks.get(&m.track)?)))
            .filter(|(_, track)| &*track.name == names::LAUNCHES)
            .map(|(m, track)| (m.id, (m.ts, self.process(track.entity))))
            .collect();
        let launched: HashMap<Id, (Ns, EntityId)> = rows
            .link
            .iter()
            .filter(|l| l.kind == gpuwhy_schema::LinkKind::Launch)
            .filter_map(|l| Some((l.to, *launchers.get(&l.from)?)))
            .collect();
        let entities = &self.entities;
        let above = |entity| entities.get(&entity).and_then(|e: &Entity| e.parent);
        self.gpus = Gpus::new(rows, tracks, above, &launched);
        let mut engines = Engines::default();
        for span in &rows.span {
            let Some(track) = tracks.get(&span.track) else { continue };
            engines.span(&span.name, track.entity, (span.ts, span.dur));
            if &*span.name == names::LOAD {
                self.loaders.insert(self.process(track.entity));
            }
            let to = span.dur.map_or(Ns::MAX, |dur| span.ts.saturating_add(dur));
            let memory = &*track.name == names::MEMORY;
            if memory && (span.name.ends_with("reclaim") || &*span.name == "compaction") {
                self.memory.entry(track.entity).or_default().push((span.ts, to));
            }
        }
        for list in self.memory.values_mut() {
            *list = intervals::union(std::mem::take(list));
        }
        self.engine_waits = engines.waits();
    }

    fn index_counters(&mut self, rows: &Rows, tracks: &HashMap<TrackId, &Track>) {
        let mut ticks: HashMap<TrackId, Vec<(Ns, f64)>> = HashMap::new();
        let wanted = [
            names::STEAL,
            names::THROTTLED,
            names::NIC_TX_BYTES,
            names::PAGE_CACHE_EVICTED,
            names::PAGE_CACHE_MISSED,
            names::RECLAIM,
            names::DISK_BYTES,
            names::DISK_TIME,
        ];
        for row in &rows.counter {
            if tracks.get(&row.track).is_some_and(|t| wanted.contains(&&*t.name)) {
                ticks.entry(row.track).or_default().push((row.ts, row.value));
            }
        }
        for (id, mut values) in ticks {
            values.sort_by_key(|v| v.0);
            let mut before = None;
            let list: Vec<Tick> = values
                .into_iter()
                .map(|(to, value)| {
                    let earliest = to.saturating_sub(LONGEST_TICK);
                    let from = before.map_or(earliest, |b: Ns| b.max(earliest));
                    before = Some(to);
                    Tick { from, to, value }
                })
                .collect();
            let track = tracks[&id];
            let entity = self.entities.get(&track.entity);
            let kind = entity.map(|e| e.kind);
            match (&*track.name, kind) {
                (names::STEAL, Some(EntityKind::Cpu)) => {
                    if let Some(cpu) = entity.and_then(|e| e.number) {
                        self.steal.insert(cpu, list);
                    }
                }
                (names::THROTTLED, Some(EntityKind::Cgroup)) => {
                    self.throttled.insert(track.entity, list);
                }
                (name, Some(EntityKind::Process)) => {
                    let on = track.parent.and_then(|p| tracks.get(&p)).map(|p| p.entity);
                    if let Some(name) = wanted.iter().find(|w| **w == name) {
                        let on = on.unwrap_or_default();
                        self.by_process.entry(name).or_default().push(Counted {
                            process: track.entity,
                            on,
                            ticks: list,
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// The process of a thread; a process is its own.
    pub fn process(&self, thread: EntityId) -> EntityId {
        match self.entities.get(&thread) {
            Some(e) if e.kind == EntityKind::Thread => e.parent.unwrap_or(thread),
            _ => thread,
        }
    }

    /// The other threads of its process that have states and take no steps.
    pub(crate) fn others_of_process(
        &self,
        thread: EntityId,
    ) -> impl Iterator<Item = EntityId> + '_ {
        let all = self.threads.get(&self.process(thread)).into_iter().flatten().copied();
        all.filter(move |other| *other != thread && !self.steppers.contains(other))
    }

    /// Whether a thread or process belongs to the work that has the steps.
    pub fn is_workload(&self, who: EntityId) -> bool {
        self.workload.contains(&self.process(who))
    }

    /// When a thread of an engine, or of a worker, waited for the other side.
    pub(crate) fn engine_waits(&self, thread: EntityId) -> &[EngineWait] {
        self.engine_waits.get(&thread).map_or(&[], Vec::as_slice)
    }

    /// Whether a thread belongs to a worker of a data loader, as it says itself.
    pub fn is_loader(&self, who: EntityId) -> bool {
        let process = self.process(who);
        self.loaders.contains(&process) && !self.workload.contains(&process)
    }

    /// Whether a thread does something else than the steps of the thread `own`, so that what it holds, it holds for
    /// itself: it belongs to another process that is no rank of the same job, or takes steps of its own, and none that began with
    /// other threads.
    pub fn is_other(&self, thread: EntityId, own: EntityId) -> bool {
        let process = self.process(thread);
        if !self.is_workload(thread) {
            return true;
        }
        let elsewhere = process != self.process(own);
        let steps = thread != own && self.steppers.contains(&thread) && !self.wander(thread);
        (elsewhere || steps) && !self.ranks.contains_key(&process)
    }

    /// Whether the threads of its process answer what others of them have received.
    pub(crate) fn wander(&self, thread: EntityId) -> bool {
        self.wandering.contains(&self.process(thread))
    }

    /// The entity, if it was declared.
    pub fn entity(&self, id: EntityId) -> Option<&Entity> {
        self.entities.get(&id)
    }

    /// Whether a process is a thread of the kernel that does what others left to it, by its name.
    pub(crate) fn is_kernel_worker(&self, process: EntityId) -> bool {
        self.entity(process).is_some_and(|entity| names::is_kernel_worker(&entity.name))
    }

    /// The states of a thread that overlap the window, in the order of time.
    pub(crate) fn states(&self, thread: EntityId, window: Interval) -> &[Held] {
        let Some(list) = self.states.get(&thread) else { return &[] };
        let first = list.partition_point(|h| h.to <= window.0);
        let last = list.partition_point(|h| h.from < window.1);
        &list[first..last.max(first)]
    }

    /// Which threads had a CPU in the window: from, to, thread.
    pub(crate) fn occupants(&self, cpu: i64, window: Interval) -> &[(Ns, Ns, EntityId)] {
        self.occupants.get(&cpu).map_or(&[], |list| within(list, window))
    }

    /// When another rank of the job was stopped for longer than a step of this one takes: it can do no more by itself from
    /// then on. None if the thread takes no steps of a rank.
    pub(crate) fn stopped_ranks(
        &self,
        thread: EntityId,
        window: Interval,
    ) -> Vec<(Ns, Ns, EntityId)> {
        let before = self.stopped_ranks.partition_point(|stopped| stopped.0 < window.1);
        if before == 0 {
            return Vec::new();
        }
        let own = self.process(thread);
        let (Some(rank), Some(usual)) = (self.ranks.get(&own), self.usual_steps.get(&own)) else {
            return Vec::new();
        };
        if self.stepping.get(&own) != Some(&thread) {
            return Vec::new();
        }
        let others =
            self.stopped_ranks[..before].iter().filter(|(_, _, other)| self.ranks[other] != *rank);
        let waited = others.map(|(from, to, other)| {
            (from.saturating_add(*usual).max(window.0), (*to).min(window.1), *other)
        });
        waited.filter(|(from, to, _)| from < to).collect()
    }

    /// From tries of a thread for locks of files that were in vain to the next ones: who held the lock.
    pub(crate) fn lock_tries(&self, thread: EntityId, window: Interval) -> &[(Ns, Ns, EntityId)] {
        self.lock_tries.get(&thread).map_or(&[], |list| within(list, window))
    }

    /// The wakeup that ended a sleep `[from, to)`: the last one within it or at its end.
    pub(crate) fn woken(&self, thread: EntityId, from: Ns, to: Ns) -> Option<Woken> {
        let list = self.wakeups.get(&thread)?;
        let after = list.partition_point(|w| w.ts <= to);
        list[..after].last().copied().filter(|w| w.ts >= from)
    }

    /// Whether a thread sleeps in system calls by which a program gets what it is to do; kernel threads sleep in none.
    pub(crate) fn takes_requests(&self, thread: EntityId) -> bool {
        self.takers.contains(&thread)
    }

    /// Who ended a wait that timed out at the end of `held` and was taken up again at once, as often as need be: a
    /// lock that is waited for a few milliseconds at a time.
    pub(crate) fn woken_at_last(&self, thread: EntityId, held: &Held) -> Option<Woken> {
        let list = self.states.get(&thread)?;
        let first = list.partition_point(|h| h.from < held.to);
        for next in list[first..].iter().take(AGAIN) {
            if next.state != ThreadState::Sleep {
                if next.ran_on() {
                    return None;
                }
                continue;
            }
            // What has got its message across did what it had waited for.
            let exchanged = self.message_after(thread, held.to, next.from).is_some();
            if next.arg != held.arg || exchanged {
                return None;
            }
            let woken = self.woken(thread, next.from, next.to);
            if let Some(woken) = woken.filter(|woken| woken.waker.is_some()) {
                return Some(woken);
            }
        }
        None
    }

    /// Whether a wait is one of several that follow each other at once, of which all but the last timed out.
    pub(crate) fn asks_again(&self, thread: EntityId, held: &Held) -> bool {
        let timed_out = |held: &Held| {
            self.woken(thread, held.from, held.to).is_none_or(|woken| woken.waker.is_none())
        };
        let Some(list) = self.states.get(&thread) else { return false };
        let first = list.partition_point(|h| h.from < held.to);
        let earlier = &list[..list.partition_point(|h| h.from < held.from)];
        let is_wait = |h: &&Held| h.state == ThreadState::Sleep && h.arg == held.arg;
        let before =
            earlier.iter().rev().take(AGAIN).find(|h| h.state == ThreadState::Sleep || h.ran_on());
        let next =
            list[first..].iter().take(AGAIN).find(|h| h.state == ThreadState::Sleep || h.ran_on());
        before.filter(is_wait).is_some_and(timed_out)
            || (next.filter(is_wait).is_some() && timed_out(held))
    }

    /// When a thread was last given Python's interpreter lock within `(from, to)`, and by whom, as far as it had to wait
    /// for it.
    pub(crate) fn got_gil(&self, thread: EntityId, (from, to): (Ns, Ns)) -> Option<(Ns, EntityId)> {
        let list = self.states.get(&thread)?;
        let before = &list[..list.partition_point(|held| held.from < to)];
        let recent = before.iter().rev().take_while(|held| held.to > from);
        let mut waits = recent.filter(|held| {
            held.state == ThreadState::Sleep && held.arg == WAIT_FOR_GIL && held.to < to
        });
        waits.find_map(|held| {
            let woken = self.woken(thread, held.from, held.to)?;
            Some((held.to, woken.waker.filter(|waker| *waker != thread)?))
        })
    }

    /// Who gave Python's interpreter lock up to a thread whose wait for it timed out at the end of `held`, and which then had
    /// it before it slept again: who is asked to drop the lock waits until somebody else has taken it, and is woken by
    /// that one (`FORCE_SWITCHING` in CPython's Python/ceval_gil.c).
    pub(crate) fn gave_gil_up(&self, thread: EntityId, held: &Held) -> Option<EntityId> {
        let list = self.states.get(&thread)?;
        let first = list.partition_point(|h| h.from < held.to);
        let next = list[first..].iter().find(|h| h.state == ThreadState::Sleep);
        let until = next.map_or(Ns::MAX, |next| next.from);
        let woke_of = |other: EntityId| {
            let list = self.wakeups.get(&other).map_or(&[][..], Vec::as_slice);
            let first = list.partition_point(|w| w.ts < held.to);
            let soon = list[first..].iter().take_while(|w| w.ts <= until);
            soon.filter(|w| w.waker == Some(thread)).map(|w| w.ts).find(|ts| {
                let slept = self.states(other, (ts.saturating_sub(Ns(1)), *ts));
                slept.iter().any(|h| h.state == ThreadState::Sleep && h.arg == WAIT_FOR_GIL)
            })
        };
        let others = self.threads.get(&self.process(thread)).into_iter().flatten();
        let others = others.filter(|other| **other != thread);
        let given = others.filter_map(|other| Some((woke_of(*other)?, *other)));
        given.min().map(|(_, other)| other)
    }

    /// Whether `by` woke the process of `thread` by a signal at `at`, as processes of one program do that hand over a
    /// lock. The kernel tells of the signal when it has woken the thread (`__send_signal_locked`).
    pub(crate) fn signalled(&self, thread: EntityId, by: EntityId, at: Ns) -> bool {
        let Some(list) = self.signals.get(&self.process(thread)) else { return false };
        let sender = self.entity(self.process(by)).and_then(|process| process.number);
        let first = list.partition_point(|signal| signal.0 < at.saturating_sub(SIGNALLED));
        let near = list[first..].iter().take_while(|s| s.0 <= at.saturating_add(SIGNALLED));
        near.into_iter().any(|signal| Some(signal.1) == sender)
    }

    /// The first message of `thread` at or after `ts`, no later than `until`.
    pub(crate) fn message_after(&self, thread: EntityId, ts: Ns, until: Ns) -> Option<Sent> {
        let list = self.messages.get(&thread)?;
        let first = list.partition_point(|m| m.ts < ts);
        list.get(first).copied().filter(|m| m.ts <= until)
    }

    /// The last message that a thread has sent or received before `ts`.
    pub(crate) fn message_before(
        &self,
        thread: EntityId,
        ts: Ns,
        direction: Direction,
    ) -> Option<Sent> {
        let list = self.messages.get(&thread)?;
        let before = &list[..list.partition_point(|m| m.ts <= ts)];
        before.iter().rev().find(|m| m.direction == direction).copied()
    }

    /// Whether the last message of a thread before `ts` is one that it received. Who waits for room has sent before; this
    /// one waits for what it will answer.
    pub(crate) fn owes_answer(&self, thread: EntityId, ts: Ns) -> bool {
        let last = |direction| self.message_before(thread, ts, direction).map(|m| m.ts);
        let received = last(Direction::Receive);
        received.is_some() && last(Direction::Send) <= received
    }

    /// Whether a thread had received a request that it had not answered yet; none if it is not known to answer any.
    pub(crate) fn serves(&self, thread: EntityId, at: Ns) -> Option<bool> {
        let list = self.messages.get(&thread)?;
        let before = &list[..list.partition_point(|m| m.ts <= at)];
        let last = before.iter().rev().find_map(|m| match (m.direction, m.request?) {
            (Direction::Receive, true) => Some(true),
            (Direction::Send, false) => Some(false),
            _ => None,
        });
        // Of one that only asks others it is known as well.
        last.or_else(|| before.iter().any(|m| m.request.is_some()).then_some(false))
    }

    /// When `by` gave `thread` something to do, which it did not do for a request of its own: it woke it since `since`, before `until`.
    /// Threads of a pool that do parts of a request for each other do so; who holds a lock of its own accord has not been
    /// woken by who waits for it.
    pub(crate) fn gave_work(
        &self,
        by: EntityId,
        thread: EntityId,
        (since, until): Interval,
    ) -> bool {
        let Some(list) = self.wakeups.get(&thread) else { return false };
        let before = &list[..list.partition_point(|w| w.ts <= until)];
        let recent = before.iter().rev().take_while(|w| w.ts >= since);
        let given = recent.filter(|w| w.waker == Some(by)).last();
        given.is_some_and(|w| self.serves(thread, w.ts) == Some(false))
    }

    /// What a thread received first after a wait, if that was sent during the wait and told to it by `waker`, who does nothing but wait
    /// for descriptors on behalf of others: it waited for any of several, took nothing, and woke the thread. It is an answer, or
    /// not known to be something to do.
    pub(crate) fn dispatched(
        &self,
        thread: EntityId,
        waker: EntityId,
        held: &Held,
        until: Ns,
    ) -> Option<Sent> {
        let answer = self.message_after(thread, held.to, until)?;
        if answer.direction != Direction::Receive || answer.request == Some(true) {
            return None;
        }
        if self.sent(&answer).is_some_and(|sent| sent.ts <= held.from) {
            return None;
        }
        let woke = self.woken(thread, held.from, held.to)?.ts;
        let waited = self
            .states(waker, (held.from, woke))
            .iter()
            .rev()
            .find(|h| h.state == ThreadState::Sleep && h.to <= woke)?;
        let polled = syscall::wait(waited.arg) == Wait::Poll;
        let took = self.message_after(waker, waited.to, woke);
        let took = took.is_some_and(|m| m.direction == Direction::Receive);
        (polled && !took).then_some(answer)
    }

    /// When the sender had handed over all bytes of what was received, and who it was.
    pub(crate) fn sent(&self, received: &Sent) -> Option<Sent> {
        let Sent { flow, position, ts: around, .. } = *received;
        let list = self.flows.get(&(flow, Direction::Send))?;
        // Positions wrap at 2^32 but grow with time, so a look back over what was sent shortly
        // before is enough; what was sent later than it was received cannot be it.
        let after = list.partition_point(|m| m.ts <= around);
        let covers = |m: &Sent| (m.position.wrapping_sub(position) as i32) >= 0;
        let earlier = list[..after].iter().rev().take_while(|m| covers(m)).last();
        earlier.copied().or_else(|| list[after..].iter().find(|m| covers(m)).copied())
    }

    /// The thread at the other end of a flow.
    pub(crate) fn other_end(&self, message: &Sent) -> Option<EntityId> {
        let other = match message.direction {
            Direction::Send => Direction::Receive,
            Direction::Receive => Direction::Send,
        };
        let list = self.flows.get(&(message.flow, other))?;
        let near = list.partition_point(|m| m.ts < message.ts).min(list.len() - 1);
        Some(list[near].thread)
    }

    /// The requests that a thread submitted and that overlap the window.
    pub(crate) fn requests_of(&self, thread: EntityId, window: Interval) -> Vec<Request> {
        let list = self.by_thread.get(&thread).map_or(&[][..], Vec::as_slice);
        overlapping(list, window).copied().collect()
    }

    /// Whether any request to a disk was recorded.
    pub(crate) fn has_disk_requests(&self) -> bool {
        !self.by_disk.is_empty()
    }

    /// When any disk had a request, of anybody, queued or with the device.
    pub(crate) fn disks_had_requests(&self, window: Interval) -> Vec<Interval> {
        let near = self.by_disk.values().flat_map(|list| overlapping(list, window));
        intervals::union(near.map(|r| (r.queued, r.done)).collect())
    }

    /// The request, of any thread, whose completion ended a wait at `end`.
    pub(crate) fn request_ending(&self, end: Ns, within: Ns) -> Option<Request> {
        self.by_disk
            .values()
            .filter_map(|list| {
                let after = list.partition_point(|r| r.done <= end);
                list[..after].last().copied()
            })
            .filter(|r| end.saturating_sub(r.done) <= within)
            .max_by_key(|r| r.done)
    }

    /// Who, outside the workload, had most bytes with `disk` during the window, overlap-weighted.
    ///
    /// Whoever submitted one of `own`, the requests waited for, is no neighbour.
    pub(crate) fn disk_neighbour(
        &self,
        disk: EntityId,
        window: Interval,
        own: &[Request],
    ) -> Option<EntityId> {
        let list = self.by_disk.get(&disk)?;
        let mut weight: HashMap<EntityId, f64> = HashMap::new();
        let near = || overlapping(list, window);
        // A worker that issues the workload's requests works for it.
        let issuers = near().filter(|r| self.is_workload(r.thread)).filter_map(|r| r.issuer);
        let workers: HashSet<EntityId> =
            issuers.chain(own.iter().map(|r| r.thread)).map(|w| self.process(w)).collect();
        for r in near() {
            let process = self.process(r.thread);
            if !self.is_workload(process) && !workers.contains(&process) {
                let overlap = Ns::overlap(r.queued, r.done, window.0, window.1).0 as f64;
                *weight.entry(process).or_default() += overlap * (1.0 + r.bytes as f64 / 4096.0);
            }
        }
        heaviest(weight)
    }

    /// Who, outside the workload and but for those `besides`, had the largest total of a per-process counter in the window.
    pub(crate) fn counted_most(
        &self,
        name: &'static str,
        on: Option<&HashSet<EntityId>>,
        besides: impl Fn(EntityId) -> bool,
        window: Interval,
    ) -> Option<EntityId> {
        let mut weight: HashMap<EntityId, f64> = HashMap::new();
        for counted in self.by_process.get(name)? {
            let is_own = self.is_workload(counted.process) || besides(counted.process);
            if is_own || on.is_some_and(|on| !on.contains(&counted.on)) {
                continue;
            }
            let sum = sum_of(&counted.ticks, window);
            if sum > 0.0 {
                *weight.entry(counted.process).or_default() += sum;
            }
        }
        heaviest(weight)
    }

    /// How many pages of data that files had already were not in the page cache when the process of `thread` needed them
    /// in the window, by who had evicted as many of those files; 0 is nobody. Empty if that was not recorded.
    pub(crate) fn missed(&self, thread: EntityId, window: Interval) -> Vec<(EntityId, f64)> {
        let process = self.process(thread);
        let lists = self.by_process.get(names::PAGE_CACHE_MISSED).map_or(&[][..], Vec::as_slice);
        let of_process = lists.iter().filter(|counted| counted.process == process);
        let sums = of_process.map(|counted| (counted.on, sum_of(&counted.ticks, window)));
        sums.filter(|(_, pages)| *pages > 0.0).collect()
    }

    /// The devices on which a process counted anything under `name`.
    pub(crate) fn devices_of(&self, name: &'static str, process: EntityId) -> HashSet<EntityId> {
        let lists = self.by_process.get(name).map_or(&[][..], Vec::as_slice);
        lists.iter().filter(|c| c.process == process).map(|c| c.on).collect()
    }

    /// When a thread freed memory so that it could allocate.
    pub(crate) fn memory(&self, thread: EntityId) -> &[Interval] {
        self.memory.get(&thread).map_or(&[], Vec::as_slice)
    }

    /// What GPUs did.
    pub(crate) fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// What calls say of threads, where a profiler recorded them.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// The thread that takes the steps of a process of the workload.
    pub(crate) fn stepping(&self, process: EntityId) -> Option<EntityId> {
        self.stepping.get(&process).copied()
    }

    /// Time that the hypervisor took from `cpu` during the window; ticks are spread evenly.
    pub(crate) fn stolen(&self, cpu: i64, window: Interval) -> Ns {
        self.steal.get(&cpu).map_or(Ns::ZERO, |ticks| Ns(sum_of(ticks, window) as i64))
    }

    /// The cgroup that was out of quota most in the window, or else around it: of a group that was just made or removed not
    /// all is counted.
    pub(crate) fn throttled_group(&self, window: Interval) -> Option<EntityId> {
        let most = |window| {
            let weigh = |(id, ticks): (&EntityId, &Vec<Tick>)| (*id, sum_of(ticks, window));
            heaviest(self.throttled.iter().map(weigh).filter(|(_, w)| *w > 0.0).collect())
        };
        let around = (window.0.saturating_sub(OUT_OF_QUOTA), window.1.saturating_add(OUT_OF_QUOTA));
        most(window).or_else(|| most(around))
    }
}

/// A group that was out of quota is counted as such within this time of when it was.
const OUT_OF_QUOTA: Ns = Ns::secs(2);
/// States that are looked at to see who ended a wait that timed out again and again.
const AGAIN: usize = 2048;
/// Between two such waits the thread runs no longer than this.
const AT_ONCE: Ns = Ns::millis(2);
/// A signal and its wakeup are no farther apart than this.
const SIGNALLED: Ns = Ns::millis(1);
/// How many requests a look-up considers at most.
const LOOK: usize = 4096;

/// Those of a list in order, which do not overlap, that reach into a window.
fn within(list: &[(Ns, Ns, EntityId)], window: Interval) -> &[(Ns, Ns, EntityId)] {
    let first = list.partition_point(|one| one.1 <= window.0);
    let last = list.partition_point(|one| one.0 < window.1);
    &list[first..last.max(first)]
}

/// Those of some requests, ordered by when they were done, that overlap the window.
fn overlapping(list: &[Request], window: Interval) -> impl Iterator<Item = &Request> {
    let first = list.partition_point(|r| r.done <= window.0);
    list[first..].iter().take(LOOK).filter(move |r| r.queued < window.1)
}

fn heaviest(weight: HashMap<EntityId, f64>) -> Option<EntityId> {
    weight.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))).map(|(id, _)| id)
}

fn sum_of(ticks: &[Tick], window: Interval) -> f64 {
    let first = ticks.partition_point(|t| t.to <= window.0);
    ticks[first..]
        .iter()
        .take_while(|t| t.from < window.1)
        .map(|t| {
            let whole = (t.to - t.from).0.max(1) as f64;
            t.value * Ns::overlap(t.from, t.to, window.0, window.1).0 as f64 / whole
        })
        .sum()
}
