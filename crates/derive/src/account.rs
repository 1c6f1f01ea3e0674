//! Where a step's time went.
//!
//! # What it sees
//! The states of the step's thread tile the step. Running, runnable, throttled and interrupted
//! time explain themselves; a sleep is explained by what ended it. A wakeup from a task's own
//! context leads to that task, and what *it* did during the sleep is where the time went; a
//! received message leads to its sender until the sender had handed the bytes over, and to the
//! network from then on; an I/O wait leads to the request; a wait while the step's own kernels
//! ran leads to the GPU, whose time is split in `gpu`.
//!
//! Where a profiler recorded calls (of CUDA, MPI, the operating system), they say what the thread did in
//! them: see `account::calls`. gpuwhy's own recordings hold no such tracks.
//!
//! # Why it matters
//! "iowait" is not the disk and "waiting for rank 1" is not rank 1: a flush-completion kworker
//! that is starved by a neighbour's softirqs looks like both. The walk ends at the thread that
//! was held up by something else than another thread.
//!
//! # What fools it
//! Spinning waits look like work. A waker that only passes the baton (a thread pool's dispatcher)
//! is taken for the holder. Threads beyond the recorder's hops are not seen and end the walk as
//! `unknown`.

mod calls;
mod helpers;

use foldhash::HashMap;
use gpuwhy_schema::{
    Direction, EntityId, EntityKind, Id, IoOp, Ns, Part, PartKind, Rows, ThreadState,
};

use crate::gpu::Doing;
use crate::intervals::{Interval, clip, subtract, union};
use crate::syscall::{self, Wait};
use crate::world::{Held, Request, Sent, Woken, World};

/// Threads that had the interpreter lock one after another during one wait for it that are told apart.
const HOLDERS: usize = 64;

/// How an accounting is done.
#[derive(Clone, Copy, Debug)]
pub struct Accounting {
    /// How many waits the walk crosses before it gives up.
    pub hops: u32,
    /// How late after its wakeup a thread may finish the call that consumed the message.
    pub message_within: Ns,
    /// How long before the end of a wait the request that ended it may have completed.
    pub completion_within: Ns,
    /// The same where the wait had requests of its own, so that a neighbour's is not taken for it.
    pub completion_at_once: Ns,
}

impl Default for Accounting {
    fn default() -> Accounting {
        Accounting {
            hops: 6,
            message_within: Ns::millis(500),
            completion_within: Ns::millis(5),
            completion_at_once: Ns::micros(100),
        }
    }
}

/// Where the time of steps went.
#[derive(Clone, Debug, Default)]
pub struct Accounted {
    /// The parts of each step: they tile it, so they sum to its duration.
    pub parts: Vec<Part>,
    /// What other threads of its process waited for while its own thread ran, and, as a part of the kind `run` from its
    /// begin on, for how long the busiest of them ran meanwhile. See `account/helpers.rs`.
    pub helpers: Vec<Part>,
}

/// The parts of every step in `rows` that has ended.
pub fn parts(rows: &Rows, accounting: &Accounting) -> Vec<Part> {
    account(rows, accounting).parts
}

/// Where the time of every step in `rows` went that has ended.
pub fn account(rows: &Rows, accounting: &Accounting) -> Accounted {
    let world = World::new(rows);
    let durations: HashMap<Id, Ns> =
        rows.span.iter().filter_map(|s| Some((s.id, s.dur?))).collect();
    let mut out = Accounted::default();
    for step in &rows.step {
        let Some(&dur) = durations.get(&step.id) else { continue };
        let (thread, window) = (step.thread, (step.ts, step.ts.saturating_add(dur)));
        let begun = || Walk {
            world: &world,
            accounting,
            step: step.id,
            since: step.ts,
            path: vec![thread],
            out: Vec::new(),
        };
        let mut walk = begun();
        walk.thread(thread, window, Via::Own);
        out.parts.append(&mut merge(walk.out));
        out.helpers.append(&mut helpers::of(begun(), thread, window));
    }
    out
}

/// How the walk came to a thread, which says what its running means for the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    /// It is the step's own thread.
    Own,
    /// It ended a wait for a lock or condition.
    Futex,
    /// It ended a wait of its own process that had timed out and was taken up again: it gave up a lock, such as the
    /// interpreter lock of Python, that the other one asked for again and again.
    Holder,
    /// It held Python's interpreter lock.
    Gil,
    /// It sends or takes what the step's thread waits to receive or send.
    Peer,
    /// A kernel thread that finishes an uninterruptible wait: a flush or journal worker.
    Worker,
    /// It is a rank that came late into a collective, whatever it did instead.
    Rank,
}

struct Walk<'w> {
    world: &'w World,
    accounting: &'w Accounting,
    step: Id,
    /// When the step began.
    since: Ns,
    path: Vec<EntityId>,
    out: Vec<Part>,
}

impl Walk<'_> {
    fn put(&mut self, window: Interval, kind: PartKind, blame: Option<EntityId>) {
        if window.0 >= window.1 {
            return;
        }
        let thread = *self.path.last().expect("the path begins with the step's thread");
        if blame.is_none() && self.world.calls().are_recorded() {
            for (piece, kind, blame) in self.told(thread, window, kind) {
                self.put_exactly(thread, piece, kind, blame);
            }
            return;
        }
        self.put_exactly(thread, window, kind, blame);
    }

    fn put_exactly(
        &mut self,
        thread: EntityId,
        (from, to): Interval,
        kind: PartKind,
        blame: Option<EntityId>,
    ) {
        let hops = self.path.len() as u32 - 1;
        self.out.push(Part {
            step: self.step,
            ts: from,
            dur: to - from,
            kind,
            thread,
            blame,
            hops,
        });
    }

    /// Accounts for `window` of `thread`: each state in turn, and what was not recorded.
    fn thread(&mut self, thread: EntityId, window: Interval, via: Via) {
        let mut at = window.0;
        for held in self.world.states(thread, window).iter().copied() {
            let from = held.from.max(at);
            let to = held.to.min(window.1);
            if from >= to {
                continue;
            }
            self.unseen((at, from), via);
            self.state(thread, held, (from, to), via);
            at = to;
        }
        self.unseen((at, window.1), via);
    }

    /// No state was recorded of the thread in that time; calls may say what it did.
    fn unseen(&mut self, window: Interval, via: Via) {
        let thread = *self.path.last().expect("the path begins with the step's thread");
        self.in_calls(thread, None, window, via, |walk, rest| walk.not_recorded(rest, via));
    }

    /// Nothing was recorded of the thread in that time.
    fn not_recorded(&mut self, window: Interval, via: Via) {
        let thread = *self.path.last().expect("the path begins with the step's thread");
        match via {
            Via::Gil => self.put(window, PartKind::Gil, Some(thread)),
            _ if self.computes(thread) => self.put(window, PartKind::Run, None),
            // Whoever holds the lock held it, whatever else it did.
            Via::Futex if self.is_other(thread) => {
                self.put(window, PartKind::Lock, Some(self.holder(thread)));
            }
            Via::Rank => {
                let late = self.world.process(thread);
                self.put(window, PartKind::Peer, Some(late));
            }
            _ => self.put(window, PartKind::Unknown, None),
        }
    }

    fn state(&mut self, thread: EntityId, held: Held, window: Interval, via: Via) {
        if calls::says_more(&held) {
            self.in_calls(thread, Some(held), window, via, |walk, rest| {
                walk.scheduled(thread, held, rest, via);
            });
        } else {
            self.scheduled(thread, held, window, via);
        }
    }

    /// What the scheduler says of the thread, but for the time in which it waits for the other side of its engine, however
    /// it does so: what that side did.
    fn scheduled(&mut self, thread: EntityId, held: Held, window: Interval, via: Via) {
        let world = self.world;
        let waits = match via {
            Via::Own | Via::Peer | Via::Rank => world.engine_waits(thread),
            Via::Futex | Via::Holder | Via::Gil | Via::Worker => &[],
        };
        let mut at = window.0;
        let first = waits.partition_point(|wait| wait.to <= window.0);
        for wait in waits[first..].iter().take_while(|wait| wait.from < window.1) {
            let (from, to) = (wait.from.max(at), wait.to.min(window.1));
            if from < to && !self.path.contains(&wait.awaited) {
                self.in_state(thread, held, (at, from), via);
                self.follow(wait.awaited, (from, to), Via::Rank);
                at = to;
            }
        }
        self.in_state(thread, held, (at, window.1), via);
    }

    fn in_state(&mut self, thread: EntityId, held: Held, window: Interval, via: Via) {
        if window.0 >= window.1 {
            return;
        }
        match held.state {
            ThreadState::Running => self.running(thread, held.arg, window, via),
            ThreadState::Runnable => self.runnable(held.arg, window),
            ThreadState::Throttled => {
                let group = self.world.throttled_group(window);
                let group = group.or_else(|| self.cgroup(thread));
                self.put(window, PartKind::Throttled, group);
            }
            ThreadState::Hardirq => self.put(window, PartKind::Hardirq, None),
            ThreadState::Softirq => self.put(window, PartKind::Softirq, None),
            ThreadState::Stopped => {
                let process = self.world.process(thread);
                self.put(window, PartKind::Stopped, Some(process));
            }
            // A worker that sleeps has nothing to do yet: the request waits for the device.
            ThreadState::Sleep if via == Via::Worker => self.full_queue(window),
            ThreadState::Sleep => self.sleep(thread, held, window, via),
            ThreadState::DiskWait | ThreadState::Uninterruptible => {
                self.uninterruptible(thread, held, window, via);
            }
            ThreadState::Unknown => self.unseen(window, via),
        }
    }

    /// The cgroup of a thread that may have a quota of CPU time. Of the first version, the group that its process belongs to
    /// may be one of another controller.
    fn cgroup(&self, thread: EntityId) -> Option<EntityId> {
        let process = self.world.entity(self.world.process(thread))?;
        let parent = self.world.entity(process.parent?)?;
        let is_of_others = parent.key.starts_with("v1:") && !parent.key.starts_with("v1:cpu:");
        (parent.kind == EntityKind::Cgroup && !is_of_others).then_some(parent.id)
    }

    /// On a CPU. A rank that runs on while another one is stopped waits for it: it spins.
    fn running(&mut self, thread: EntityId, cpu: i64, window: Interval, via: Via) {
        let stopped = match via {
            Via::Own | Via::Rank => self.world.stopped_ranks(thread, window),
            Via::Peer | Via::Futex | Via::Holder | Via::Gil | Via::Worker => Vec::new(),
        };
        self.in_turn(
            window,
            &stopped,
            |walk, piece, rank| walk.put(piece, PartKind::Stopped, Some(rank)),
            |walk, piece| walk.awake(thread, cpu, piece, via),
        );
    }

    /// A window in which others had their times, in the order of their begin, one after the other: `during` accounts for
    /// those, and `rest` for what lies between.
    fn in_turn(
        &mut self,
        window: Interval,
        times: &[(Ns, Ns, EntityId)],
        during: impl Fn(&mut Self, Interval, EntityId),
        rest: impl Fn(&mut Self, Interval),
    ) {
        let mut at = window.0;
        for &(from, to, who) in times {
            let (from, to) = (from.max(at), to.min(window.1));
            if from < to {
                if at < from {
                    rest(self, (at, from));
                }
                during(self, (from, to), who);
                at = to;
            }
        }
        if at < window.1 {
            rest(self, (at, window.1));
        }
    }

    /// While its library says that it waits for its device, it spins.
    fn awake(&mut self, thread: EntityId, cpu: i64, window: Interval, via: Via) {
        let world = self.world;
        let spins = match via {
            Via::Own | Via::Rank | Via::Peer => world.gpus().waits(world.process(thread)),
            Via::Futex | Via::Holder | Via::Gil | Via::Worker => &[],
        };
        for piece in clip(spins, window) {
            self.or_gpu(thread, piece, |walk, rest| walk.working(thread, cpu, rest, via));
        }
        for piece in subtract(window, spins) {
            self.working(thread, cpu, piece, via);
        }
    }

    /// On a CPU: its own work, less what the hypervisor took and what it spent freeing memory.
    fn working(&mut self, thread: EntityId, cpu: i64, window: Interval, via: Via) {
        let world = self.world;
        for piece in clip(world.memory(thread), window) {
            let taker = self.memory_taker(piece);
            self.put(piece, PartKind::Reclaim, taker);
        }
        let (kind, blame) = match via {
            Via::Futex | Via::Peer | Via::Gil if world.is_loader(thread) => {
                (PartKind::Input, Some(world.process(thread)))
            }
            Via::Futex if self.is_other(thread) => (PartKind::Lock, Some(self.holder(thread))),
            Via::Holder => (PartKind::Lock, Some(thread)),
            Via::Gil => (PartKind::Gil, Some(thread)),
            Via::Worker if !world.is_workload(thread) => (PartKind::BlockCompletion, None),
            // What it did for the step it did, whoever asked for it.
            Via::Peer if self.is_of_others(thread) => (PartKind::Run, Some(world.process(thread))),
            _ => (PartKind::Run, None),
        };
        for (from, to) in subtract(window, world.memory(thread)) {
            let stolen = world.stolen(cpu, (from, to)).min(to - from);
            self.put((from, to - stolen), kind, blame);
            self.put((to - stolen, to), PartKind::Steal, None);
        }
    }

    /// Ready to run: behind whoever was on that CPU, less what the hypervisor took from it meanwhile. Whoever is on a
    /// CPU that is not there does not hold it.
    fn runnable(&mut self, cpu: i64, window: Interval) {
        let world = self.world;
        let mut at = window.0;
        for &(from, to, who) in world.occupants(cpu, window) {
            let (from, to) = (from.max(at), to.min(window.1));
            if from >= to {
                continue;
            }
            self.put((at, from), PartKind::Runnable, None);
            let blame = (who != EntityId(0)).then(|| world.process(who));
            let stolen = world.stolen(cpu, (from, to)).min(to - from);
            self.put((from, to - stolen), PartKind::Runnable, blame);
            self.put((to - stolen, to), PartKind::Steal, None);
            at = to;
        }
        self.put((at, window.1), PartKind::Runnable, None);
    }

    fn memory_taker(&self, (from, to): Interval) -> Option<EntityId> {
        // Memory is taken before it is missed; a second covers the 10 Hz of these counters and
        // the time that a cache takes to be needed again.
        let window = (from.saturating_sub(Ns::secs(1)), to.saturating_add(Ns::millis(100)));
        let counted = |name| self.world.counted_most(name, None, |_| false, window);
        counted(gpuwhy_schema::names::PAGE_CACHE_EVICTED)
            .or_else(|| counted(gpuwhy_schema::names::RECLAIM))
    }

    /// A wait for data that was not in the page cache: nobody's doing if none of it had been evicted.
    fn missed(&mut self, (from, to): Interval) {
        let thread = *self.path.last().expect("the path begins with the step's thread");
        // These counters are read at 10 Hz.
        let near = (from.saturating_sub(Ns::millis(100)), to.saturating_add(Ns::millis(100)));
        let pages = self.world.missed(thread, near);
        let all: f64 = pages.iter().map(|(_, pages)| pages).sum();
        if all == 0.0 {
            return self.put((from, to), PartKind::CacheMiss, self.memory_taker((from, to)));
        }
        let nobody = EntityId::default();
        let cold: f64 = pages.iter().filter(|(by, _)| *by == nobody).map(|(_, pages)| pages).sum();
        let from_cold = to.saturating_sub(Ns(((to - from).0 as f64 * cold / all) as i64));
        let evictors = pages.iter().filter(|(by, _)| *by != nobody);
        let most = evictors.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let taker = most.and_then(|(by, _)| match self.world.is_workload(*by) {
            // It freed its own pages, as somebody else needed the memory.
            true => self.world.counted_most(gpuwhy_schema::names::RECLAIM, None, |_| false, near),
            false => Some(*by),
        });
        self.put((from, from_cold), PartKind::CacheMiss, taker);
        self.put((from_cold, to), PartKind::ColdRead, None);
    }

    fn own(&self) -> EntityId {
        *self.path.first().expect("the path begins with the step's thread")
    }

    /// Whether a thread does something else than the step: see [`World::is_other`].
    fn is_other(&self, thread: EntityId) -> bool {
        self.world.is_other(thread, self.own())
    }

    /// Whether a thread is of another process that does something else than the step, though it may take steps itself.
    fn is_of_others(&self, thread: EntityId) -> bool {
        let within = self.world.process(thread) == self.world.process(self.own());
        !within && self.is_other(thread)
    }

    /// Who holds what the step waits for if this thread does: its process, or the thread itself if that is the
    /// step's own.
    fn holder(&self, thread: EntityId) -> EntityId {
        let process = self.world.process(thread);
        if process == self.world.process(self.own()) { thread } else { process }
    }

    /// An interruptible sleep. Between two tries for a lock of a file, its holder is what is waited for.
    fn sleep(&mut self, thread: EntityId, held: Held, window: Interval, via: Via) {
        let world = self.world;
        let tries = match syscall::wait(held.arg) {
            Wait::Timer | Wait::Poll if !(via == Via::Futex && self.is_other(thread)) => {
                world.lock_tries(thread, window)
            }
            _ => &[],
        };
        self.in_turn(
            window,
            tries,
            |walk, piece, holder| {
                walk.follow(holder, piece, walk.through(thread, via, holder, Via::Futex));
            },
            |walk, piece| walk.asleep(thread, held, piece, via),
        );
    }

    fn asleep(&mut self, thread: EntityId, held: Held, window: Interval, via: Via) {
        if via == Via::Gil {
            return self.put_as(window, via, PartKind::Gil);
        }
        let wait = syscall::wait(held.arg);
        let woken = self.world.woken(thread, held.from, held.to);
        let timed_out = || match wait {
            Wait::Futex | Wait::Gil | Wait::Poll => self.world.woken_at_last(thread, &held),
            _ => None,
        };
        // The clock's interrupt ends a wait for a lock, a condition or descriptors if its time is up.
        let is_over = woken.is_some_and(|woken| woken.by_interrupt);
        let woken = woken.filter(|woken| woken.waker.is_some()).or_else(timed_out);
        let waker = woken.and_then(|woken| woken.waker);
        let handed_over = woken.zip(waker).is_some_and(|(woken, by)| {
            matches!(wait, Wait::Futex | Wait::FileLock)
                || self.world.signalled(thread, by, woken.ts)
        });
        // Somebody else who holds a lock and sleeps holds it, unless it waits for a lock itself.
        let holds = via == Via::Futex && self.is_other(thread);
        match wait {
            _ if holds && !handed_over => self.put_as(window, via, PartKind::Unknown),
            Wait::Poll if handed_over => self.or_gpu(thread, window, |walk, piece| {
                if let Some(waker) = waker {
                    walk.follow(waker, piece, Via::Futex);
                }
            }),
            Wait::Read | Wait::Write | Wait::Receive | Wait::Send | Wait::Poll
                if self.message(thread, held, window) => {}
            Wait::Gil => self.gil(thread, &held, window, via, woken),
            Wait::Futex | Wait::FileLock => {
                self.or_gpu(thread, window, |walk, piece| match waker {
                    Some(waker) => walk.woken_by(waker, thread, &held, piece, via),
                    None if is_over => walk.put_as(piece, via, PartKind::Timer),
                    None => walk.put(piece, PartKind::Unknown, None),
                })
            }
            Wait::Timer => self.or_gpu(thread, window, |walk, piece| {
                walk.put_as(piece, via, PartKind::Timer);
            }),
            Wait::Send | Wait::Receive => match waker {
                Some(waker) => self.follow(waker, window, Via::Peer),
                None => self.put(window, PartKind::Network, None),
            },
            _ => self.or_gpu(thread, window, |walk, piece| match waker {
                Some(waker) => walk.follow(waker, piece, Via::Peer),
                None if is_over && wait == Wait::Poll => {
                    walk.put_as(piece, via, PartKind::Timer);
                }
                None => walk.put_as(piece, via, PartKind::Unknown),
            }),
        }
    }

    /// A wait for a lock, a condition, or what another thread was given to do, which `waker` ended.
    fn woken_by(
        &mut self,
        waker: EntityId,
        thread: EntityId,
        held: &Held,
        window: Interval,
        via: Via,
    ) {
        let world = self.world;
        let within = world.process(waker) == world.process(thread);
        let holds = via == Via::Futex && self.is_other(thread);
        if within {
            let until = held.to.saturating_add(self.accounting.message_within);
            match world.dispatched(thread, waker, held, until) {
                // Whoever holds the lock held it, whatever it waited for.
                Some(_) if holds => return self.put_as(window, via, PartKind::Unknown),
                Some(answer) => return self.came(thread, &answer, window),
                None => {}
            }
            if !holds && world.gave_work(thread, waker, (self.since, held.to)) {
                return self.follow(waker, window, Via::Peer);
            }
        }
        let how = self.gave_up(waker, thread, held);
        self.follow(waker, window, self.through(thread, via, waker, how));
    }

    /// A wait for Python's interpreter lock: who gave it up had it since it got it itself, and until then had it who gave
    /// it to that one.
    fn gil(
        &mut self,
        thread: EntityId,
        held: &Held,
        window: Interval,
        via: Via,
        woken: Option<Woken>,
    ) {
        let unknown = match self.has_an_interpreter_for_itself(thread, via) {
            true => PartKind::Unknown,
            false => PartKind::Gil,
        };
        let given = woken.and_then(|woken| Some((woken.waker?, woken.ts)));
        let given_up = || Some((self.world.gave_gil_up(thread, held)?, held.to));
        let Some((mut holder, mut to)) = given.or_else(given_up) else {
            return self.put(window, unknown, None);
        };
        let mut left = vec![window];
        for _ in 0..HOLDERS {
            let got = self.world.got_gil(holder, (window.0, to));
            let from = got.map_or(window.0, |(at, _)| at);
            for piece in clip(&left, (from, to.max(window.0))) {
                self.follow(holder, piece, self.through(thread, via, holder, Via::Gil));
            }
            left = left.iter().flat_map(|piece| subtract(*piece, &[(from, to)])).collect();
            let Some((at, giver)) = got else { break };
            (holder, to) = (giver, at);
        }
        for piece in left {
            self.put(piece, unknown, None);
        }
    }

    /// Whether a thread that was reached `via` something belongs to no process of the work, nor to the other side of
    /// its engine.
    fn has_an_interpreter_for_itself(&self, thread: EntityId, via: Via) -> bool {
        via != Via::Rank && !self.world.is_workload(thread)
    }

    /// What `waker` did when it ended a wait of `thread` for a lock or condition. A wait for a result lasts until the
    /// result is there; one that times out and begins again asks for a lock, and who holds that and computes does
    /// so instead of the waiting thread.
    fn gave_up(&self, waker: EntityId, thread: EntityId, held: &Held) -> Via {
        let world = self.world;
        let of_one_process = world.process(waker) == world.process(thread);
        match of_one_process && world.asks_again(thread, held) {
            true => Via::Holder,
            false => Via::Futex,
        }
    }

    /// How a waker is reached from a thread that was itself reached `via` something. The threads of another
    /// process wait for each other as it likes, and for its interpreter's lock: what holds the step is what that
    /// process was asked for, as a batch of a loader, and a lock only where the step waits for a lock of it.
    fn through(&self, thread: EntityId, via: Via, waker: EntityId, how: Via) -> Via {
        let within = self.world.process(thread) == self.world.process(waker);
        let theirs = match how {
            Via::Futex => self.is_other(thread),
            Via::Gil => self.has_an_interpreter_for_itself(thread, via),
            _ => false,
        };
        if within && theirs { via } else { how }
    }

    /// As `kind`, unless the thread is somebody else who holds what the step waits for.
    fn put_as(&mut self, window: Interval, via: Via, kind: PartKind) {
        let thread = *self.path.last().expect("the path begins with the step's thread");
        match via {
            Via::Futex if self.is_other(thread) => {
                self.put(window, PartKind::Lock, Some(self.holder(thread)));
            }
            Via::Rank => {
                let late = self.world.process(thread);
                self.put(window, PartKind::Peer, Some(late));
            }
            Via::Gil => self.put(window, PartKind::Gil, Some(thread)),
            // In a profile calls may say more of it.
            _ if kind == PartKind::Timer && !self.world.calls().are_recorded() => {
                let slept = self.world.process(thread);
                self.put(window, kind, Some(slept));
            }
            _ => self.put(window, kind, None),
        }
    }

    /// The pieces of a wait in which the GPU did something for the thread's process, or for others
    /// while its kernels were queued; `rest` accounts for the others.
    fn or_gpu(&mut self, thread: EntityId, window: Interval, rest: impl Fn(&mut Self, Interval)) {
        let world = self.world;
        let process = world.process(thread);
        let mut at = window.0;
        for piece in world.gpus().pieces(process, window) {
            self.or_queued(process, (at, piece.from), &rest);
            at = piece.to;
            let part = (piece.from, piece.to);
            match piece.doing {
                Doing::Work => self.put(part, PartKind::Gpu, None),
                Doing::Throttled(gpu) => self.put(part, PartKind::GpuThrottled, Some(gpu)),
                // The driver's log may not tell whose context it was.
                Doing::Others(who) => {
                    let known = Some(who).filter(|who| *who != EntityId(0));
                    self.put(part, PartKind::GpuQueue, known);
                }
                Doing::Fault(gpu) => self.put(part, PartKind::GpuFault, Some(gpu)),
                Doing::Copy(who) => self.put(part, PartKind::Copy, Some(who)),
                Doing::Late(late) => match world.stepping(late) {
                    Some(rank) if !self.path.contains(&rank) => {
                        self.follow(rank, part, Via::Rank);
                    }
                    _ => self.put(part, PartKind::Peer, Some(late)),
                },
            }
        }
        self.or_queued(process, (at, window.1), &rest);
    }

    /// A time in which the GPU did nothing for the process.
    fn or_queued(
        &mut self,
        process: EntityId,
        window: Interval,
        rest: &impl Fn(&mut Self, Interval),
    ) {
        if window.0 >= window.1 {
            return;
        }
        let behind = self.world.gpus().behind(process, window);
        let queued = |walk: &mut Self, piece, who| walk.put(piece, PartKind::GpuQueue, Some(who));
        self.in_turn(window, &behind, queued, rest);
    }

    /// A wait for a message on a stream socket; false if no recorded message explains it.
    fn message(&mut self, thread: EntityId, held: Held, window: Interval) -> bool {
        if held.to == Ns::MAX {
            // Nothing has moved yet. It is expected from whom the last one came, or went to.
            let direction = match syscall::wait(held.arg) {
                Wait::Write | Wait::Send => Direction::Send,
                _ => Direction::Receive,
            };
            let last = self.world.message_before(thread, held.from, direction);
            let ends = last.and_then(|last| Some((last, self.world.other_end(&last)?)));
            let Some((last, peer)) = ends else { return false };
            self.peer(peer, window, &last);
            return true;
        }
        let until = held.to.saturating_add(self.accounting.message_within);
        let Some(message) = self.world.message_after(thread, held.to, until) else { return false };
        // Who sends through a Unix socket, or makes room in it, wakes whoever waits for that: the waker tells more, since this
        // may have been a wait for something else, after which there was something to exchange. A call that receives or sends
        // is for nothing else.
        let for_it = matches!(syscall::wait(held.arg), Wait::Receive | Wait::Send);
        let waker = || self.world.woken(thread, held.from, held.to).and_then(|woken| woken.waker);
        if message.is_local() && (!for_it || waker().is_some()) {
            return false;
        }
        let polls_to_send =
            message.direction == Direction::Send && syscall::wait(held.arg) == Wait::Poll;
        if polls_to_send && self.world.owes_answer(thread, held.from) {
            return false;
        }
        self.came(thread, &message, window);
        true
    }

    /// A wait for a message: what the other end did until it was sent, and its way from then on.
    fn came(&mut self, thread: EntityId, message: &Sent, window: Interval) {
        let Some(peer) = self.world.other_end(message) else {
            let user = self.link_user(thread, thread, window);
            return self.put(window, PartKind::Network, user);
        };
        // From then on the bytes were the transport's business.
        let sent = match message.direction {
            Direction::Receive if !message.is_local() => self.world.sent(message).map(|m| m.ts),
            // What is sent to a Unix socket has arrived; a sender that sleeps waits for room, which its peer makes by receiving.
            Direction::Receive | Direction::Send => None,
        };
        let handed = sent.unwrap_or(window.1).clamp(window.0, window.1);
        self.peer(peer, (window.0, handed), message);
        let user = self.link_user(thread, peer, (handed, window.1));
        self.put((handed, window.1), PartKind::Network, user);
    }

    /// What the peer did while the step's thread waited for it: what it spent in the transport is
    /// the network's, the rest is followed.
    fn peer(&mut self, peer: EntityId, window: Interval, message: &Sent) {
        if window.0 >= window.1 {
            return;
        }
        if message.is_local() {
            return self.follow(peer, window, Via::Peer);
        }
        let world = self.world;
        let transport: Vec<Interval> = world
            .states(peer, window)
            .iter()
            .filter(|h| h.state == ThreadState::Sleep)
            .filter(|h| {
                let toward = matches!(syscall::wait(h.arg), Wait::Send | Wait::Write);
                let back = matches!(syscall::wait(h.arg), Wait::Receive | Wait::Read | Wait::Poll);
                match message.direction {
                    Direction::Receive => toward,
                    Direction::Send => back,
                }
            })
            .map(|h| (h.from.max(window.0), h.to.min(window.1)))
            .collect();
        let transport = union(transport);
        for piece in clip(&transport, window) {
            let thread = *self.path.last().expect("the path begins with the step's thread");
            let user = self.link_user(peer, thread, piece);
            self.put(piece, PartKind::Network, user);
        }
        for piece in subtract(window, &transport) {
            self.follow(peer, piece, Via::Peer);
        }
    }

    /// Who, outside the workload, sent most over a link that this thread's process sends over. Neither it nor whom it
    /// exchanges messages with is in its own way, and what a worker of the kernel sends was somebody else's to send.
    fn link_user(
        &self,
        thread: EntityId,
        other_end: EntityId,
        (from, to): Interval,
    ) -> Option<EntityId> {
        let name = gpuwhy_schema::names::NIC_TX_BYTES;
        let links = self.world.devices_of(name, self.world.process(thread));
        // The per-process byte counters are read at 10 Hz.
        let near = (from.saturating_sub(Ns::millis(100)), to.saturating_add(Ns::millis(100)));
        let ends = [thread, other_end].map(|end| self.world.process(end));
        let besides = |who: EntityId| ends.contains(&who) || self.world.is_kernel_worker(who);
        self.world.counted_most(name, Some(&links), besides, near)
    }

    /// How many threads away from the step's own the walk may come to this one. Where requests wander, each passes through
    /// many.
    fn farthest(&self, thread: EntityId) -> u32 {
        let hops = self.accounting.hops;
        if self.world.wander(thread) { 3 * hops } else { hops }
    }

    /// Continues at another thread, unless the walk has been there or has gone far enough.
    fn follow(&mut self, thread: EntityId, window: Interval, via: Via) {
        if window.0 >= window.1 {
            return;
        }
        let outside = via == Via::Futex && self.is_other(thread);
        if self.path.contains(&thread) || self.path.len() as u32 > self.farthest(thread) {
            let (kind, blame) = match via {
                Via::Gil => (PartKind::Gil, Some(thread).filter(|holder| *holder != self.own())),
                _ if outside => (PartKind::Lock, Some(self.holder(thread))),
                _ => (PartKind::Unknown, None),
            };
            return self.put(window, kind, blame);
        }
        self.path.push(thread);
        self.thread(thread, window, via);
        self.path.pop();
    }

    /// An uninterruptible wait: reclaim, a block request, or a worker that finishes one.
    fn uninterruptible(&mut self, thread: EntityId, held: Held, window: Interval, via: Via) {
        let world = self.world;
        for piece in clip(world.memory(thread), window) {
            let taker = self.memory_taker(piece);
            self.put(piece, PartKind::Reclaim, taker);
        }
        let waker = world.woken(thread, held.from, held.to).and_then(|w| w.waker);
        for piece in subtract(window, world.memory(thread)) {
            match waker.filter(|waker| !self.path.contains(waker)) {
                Some(server) if self.is_served_by(server, thread, held, piece) => {
                    self.follow(server, piece, Via::Peer);
                }
                Some(waker) => self.worker(thread, waker, held, piece),
                _ => self.requests(thread, held, piece, via),
            }
        }
    }

    /// Whether a wait for data of a file was for another process that serves it (a file system in user space, FUSE): a
    /// process that asks the kernel for what it is to do brought it, and no disk had a request of this thread.
    fn is_served_by(
        &self,
        server: EntityId,
        thread: EntityId,
        held: Held,
        window: Interval,
    ) -> bool {
        let world = self.world;
        held.state == ThreadState::DiskWait
            && world.process(server) != world.process(thread)
            && world.takes_requests(server)
            && world.requests_of(thread, window).is_empty()
    }

    /// A wait that a worker ended. While the thread's own request was with the device the worker
    /// had nothing to do yet; after that, what the worker did is where the time went.
    fn worker(&mut self, thread: EntityId, waker: EntityId, held: Held, window: Interval) {
        let requests = self.world.requests_of(thread, window);
        let own = union(requests.iter().map(|r| (r.queued, r.done)).collect());
        for piece in clip(&own, window) {
            self.requests(thread, held, piece, Via::Own);
        }
        for piece in subtract(window, &own) {
            self.follow(waker, piece, Via::Worker);
        }
    }

    /// A wait that an interrupt ended: the thread's own requests, and the one that completed when
    /// the wait did, which a worker may have submitted for it (a flush, a journal write).
    fn requests(&mut self, thread: EntityId, held: Held, window: Interval, via: Via) {
        let mut requests = self.world.requests_of(thread, window);
        let own_done = requests.iter().map(|r| r.done).max();
        let within = match own_done {
            None => self.accounting.completion_within,
            Some(_) => self.accounting.completion_at_once,
        };
        let last = self.world.request_ending(held.to, within);
        requests.extend(last.filter(|r| own_done.is_none_or(|own| r.done > own)));
        if requests.is_empty() {
            return self.no_request(held, window, via);
        }
        let wait = syscall::wait(held.arg);
        let missed = requests.iter().any(|r| r.op == IoOp::Read)
            && (wait == Wait::Read || (wait == Wait::None && via == Via::Own));
        let device = union(requests.iter().map(|r| (r.issued, r.done)).collect());
        for piece in clip(&device, window) {
            if missed {
                self.missed(piece);
            } else {
                self.put(piece, PartKind::BlockDevice, self.neighbour(&requests, piece));
            }
        }
        for rest in subtract(window, &device) {
            self.beside_the_device(&requests, held, rest, via);
        }
    }

    /// The time of a wait in which no request of it was with the device: queued, not yet
    /// submitted, or completed.
    fn beside_the_device(&mut self, requests: &[Request], held: Held, window: Interval, via: Via) {
        let thread = *self.path.last().expect("the path begins with the step's thread");
        let mut queued: Vec<&Request> = requests.iter().filter(|r| r.queued < r.issued).collect();
        queued.sort_by_key(|r| r.queued);
        let mut left = vec![window];
        for request in queued {
            let mut still = Vec::new();
            for piece in left {
                let within = (request.queued.max(piece.0), request.issued.min(piece.1));
                still.append(&mut subtract(piece, &[within]));
                match request.issuer {
                    Some(issuer) if self.is_seen(issuer, within) => {
                        self.follow(issuer, within, Via::Worker);
                    }
                    _ => {
                        let neighbour = self.neighbour(requests, within);
                        self.put(within, PartKind::BlockQueue, neighbour);
                    }
                }
            }
            left = still;
        }
        let last_done = requests.iter().map(|r| r.done).max().unwrap_or(window.1);
        for piece in left {
            let done = last_done.clamp(piece.0, piece.1);
            let before = (piece.0, done);
            // Whoever submits the next request of the wait had to come to it first.
            let next = requests.iter().filter(|r| r.queued >= done).min_by_key(|r| r.queued);
            match next.map(|r| r.thread).filter(|t| *t != thread && self.is_seen(*t, before)) {
                Some(worker) => self.follow(worker, before, Via::Worker),
                None => self.no_request(held, before, via),
            }
            self.put((done, piece.1), PartKind::BlockCompletion, None);
        }
    }

    /// A wait for I/O without a request: the thread waits for a place in a full queue, or for a
    /// page that somebody else is writing. Either way whoever keeps the disk busy is in the way.
    fn no_request(&mut self, held: Held, window: Interval, via: Via) {
        if held.state != ThreadState::DiskWait {
            return self.put_as(window, via, PartKind::Unknown);
        }
        self.full_queue(window);
    }

    /// Behind whoever kept the disks busiest. Where nobody did and no disk had a request, though requests are recorded, it is
    /// not known what the thread waited for.
    fn full_queue(&mut self, window: Interval) {
        // The per-process counters of disks are read at 10 Hz.
        let near =
            (window.0.saturating_sub(Ns::millis(100)), window.1.saturating_add(Ns::millis(100)));
        let busiest =
            self.world.counted_most(gpuwhy_schema::names::DISK_TIME, None, |_| false, near);
        if busiest.is_some() || !self.world.has_disk_requests() {
            return self.put(window, PartKind::BlockQueue, busiest);
        }
        let had_requests = self.world.disks_had_requests(window);
        for piece in clip(&had_requests, window) {
            self.put(piece, PartKind::BlockQueue, None);
        }
        for piece in subtract(window, &had_requests) {
            self.put(piece, PartKind::Unknown, None);
        }
    }

    fn is_seen(&self, thread: EntityId, window: Interval) -> bool {
        !self.path.contains(&thread) && !self.world.states(thread, window).is_empty()
    }

    fn neighbour(&self, requests: &[Request], window: Interval) -> Option<EntityId> {
        let disk = requests.iter().max_by_key(|r| r.bytes)?.disk;
        self.world.disk_neighbour(disk, window, requests)
    }
}

/// Sorts by time and joins neighbours that say the same.
fn merge(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|p| p.ts);
    let mut out: Vec<Part> = Vec::with_capacity(parts.len());
    for part in parts {
        match out.last_mut() {
            Some(last)
                if last.ts + last.dur == part.ts
                    && (last.kind, last.thread, last.blame, last.hops)
                        == (part.kind, part.thread, part.blame, part.hops) =>
            {
                last.dur += part.dur;
            }
            _ => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests;
