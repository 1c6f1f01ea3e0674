//! The threads of a host: their names and processes, their states from switch to switch, and who woke them.
//!
//! # How
//! A thread that leaves a CPU sleeps, or is still ready to run, by the state that the switch names; a wakeup makes it
//! ready; the next switch to it ends its wait. Each state becomes a row when it ends. The thread that ran when a
//! wakeup happened is its waker, unless an interrupt had borrowed it.
//!
//! # What fools it
//! Before its first event a thread's state is not known, and no row says one. Tracers that name no processes leave
//! each thread in a process of its own.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Id, Lane, Lanes, Mark, Measure, Name, Ns, Rows, SourceId,
    Span, State, ThreadState, TrackId, WakeContext, Wakeup, names,
};

use super::sums::Sum;

/// How many threads are found again without a look at the table of all: a power of two.
const LATELY: usize = 1 << 8;
/// The lane of system calls of a thread.
pub(super) const SYSCALLS: &str = "syscalls";

/// A thread.
#[derive(Debug)]
pub(super) struct Task {
    pub entity: EntityId,
    /// The process that it belongs to, as far as is known.
    pub process: EntityId,
    comm: Vec<u8>,
    pid: Option<i64>,
    states: Option<TrackId>,
    wakeups: Option<TrackId>,
    calls: Option<TrackId>,
    marks: Option<TrackId>,
    /// Its state and since when.
    state: Option<(ThreadState, i64)>,
    cpu: i64,
    /// Block requests that it waits for.
    pub requests: u32,
    /// The system call that it is in: its span, when it began, and its name.
    pub call: Option<(Id, i64, Name)>,
}

/// The threads of a host.
#[derive(Debug)]
pub(super) struct Tasks {
    /// What tells their entities from those of other hosts.
    key: String,
    host: EntityId,
    pub source: SourceId,
    /// The threads that live: places in `all`, of which some are free.
    places: HashMap<i64, usize>,
    all: Vec<Task>,
    free: Vec<usize>,
    /// Threads that were asked for lately, and their places: most events are about one of a few.
    lately: Vec<(i64, usize)>,
    /// How many threads have had a number, where it was used again.
    again: HashMap<i64, u32>,
    wakeup: Name,
    /// What each process used of the CPUs.
    cpu_time: HashMap<EntityId, Sum>,
    /// Time that all threads waited for a CPU, and context switches.
    waited: Option<[Sum; 2]>,
}

impl Tasks {
    /// Of a host without threads yet.
    pub fn new(key: &str, host: EntityId, source: SourceId) -> Tasks {
        Tasks {
            key: key.into(),
            host,
            source,
            places: HashMap::new(),
            all: Vec::new(),
            free: Vec::new(),
            lately: (0..LATELY).map(nobody).collect(),
            again: HashMap::new(),
            wakeup: "wakeup".into(),
            cpu_time: HashMap::new(),
            waited: None,
        }
    }

    /// The thread of this number.
    #[inline]
    pub fn task(&mut self, tid: i64, lanes: &mut Lanes) -> &mut Task {
        let slot = tid as usize % LATELY;
        if self.lately[slot].0 != tid {
            let place = match self.places.get(&tid) {
                Some(place) => *place,
                None => self.begins(tid, lanes),
            };
            self.lately[slot] = (tid, place);
        }
        let place = self.lately[slot].1;
        &mut self.all[place]
    }

    /// A thread that was not known: its place.
    fn begins(&mut self, tid: i64, lanes: &mut Lanes) -> usize {
        let (key, host) = (&self.key, self.host);
        let number = self.again.get(&tid).copied().unwrap_or(0);
        let process = lanes.entity(EntityKind::Process, &format!("{key}:of:{tid}@{number}"), |e| {
            e.parent = Some(host);
            e.name = format!("process of tid {tid}").as_str().into();
        });
        let entity = lanes.entity(EntityKind::Thread, &format!("{key}:{tid}@{number}"), |e| {
            e.parent = Some(process);
            e.name = format!("tid {tid}").as_str().into();
            e.number = Some(tid);
        });
        let task = Task {
            entity,
            process,
            comm: Vec::new(),
            pid: None,
            states: None,
            wakeups: None,
            calls: None,
            marks: None,
            state: None,
            cpu: -1,
            requests: 0,
            call: None,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.all[place] = task;
                place
            }
            None => {
                self.all.push(task);
                self.all.len() - 1
            }
        };
        self.places.insert(tid, place);
        place
    }

    /// The thread is called this, and belongs to this process.
    pub fn learn(&mut self, tid: i64, pid: Option<i64>, comm: Option<&[u8]>, lanes: &mut Lanes) {
        let host = self.host;
        let task = self.task(tid, lanes);
        if let Some(comm) = comm.filter(|comm| !comm.is_empty() && *comm != task.comm) {
            task.comm = comm.to_vec();
            let name: Name = String::from_utf8_lossy(comm).into();
            lanes.update(task.entity, |e| e.name = name.clone());
            // A process is called like its first thread.
            if task.pid.is_none_or(|pid| pid == tid) {
                lanes.update(task.process, |e| e.name = name);
            }
        }
        if let Some(pid) = pid.filter(|_| task.pid != pid) {
            task.pid = Some(pid);
            let key = format!("{}:pid{pid}", self.key);
            let task = self.task(tid, lanes);
            let entity = task.entity;
            let process = lanes.entity(EntityKind::Process, &key, |e| {
                e.parent = Some(host);
                e.name = format!("pid {pid}").as_str().into();
                e.number = Some(pid);
            });
            let name: Name = String::from_utf8_lossy(&task.comm).into();
            if pid == tid && !name.is_empty() {
                lanes.update(process, |e| e.name = name);
            }
            lanes.update(entity, |e| e.parent = Some(process));
            task.process = process;
        }
    }

    /// Ends the state that a thread is in and begins another.
    fn enter(
        &mut self,
        tid: i64,
        state: Option<ThreadState>,
        now: i64,
        lanes: &mut Lanes,
        rows: &mut Rows,
    ) {
        let source = self.source;
        let task = self.task(tid, lanes);
        if let Some((before, since)) = task.state
            && now > since
        {
            let entity = task.entity;
            let track = *task.states.get_or_insert_with(|| {
                let lane = Lane::states(names::THREAD_STATE, Discipline::Sparse);
                lanes.track(entity, None, lane, source)
            });
            let arg = match before {
                ThreadState::Running | ThreadState::Runnable => task.cpu,
                _ => -1,
            };
            rows.state.push(State {
                ts: Ns(since),
                dur: Some(Ns(now.saturating_sub(since))),
                track,
                value: before.code(),
                arg: Some(arg),
            });
        }
        let (before, process) = (task.state, task.process);
        task.state = state.map(|state| (state, now));
        match before {
            Some((ThreadState::Running, since)) if now > since => {
                let lane = Lane::counter(names::CPU_TIME, "ns", Measure::Delta);
                let sum = self.cpu_time.entry(process);
                let sum = sum.or_insert_with(|| Sum::new(lanes.track(process, None, lane, source)));
                sum.add(now.saturating_sub(since) as f64, since, now, rows);
            }
            Some((ThreadState::Runnable, since)) if now > since => {
                self.waited(lanes)[0].add(now.saturating_sub(since) as f64, since, now, rows);
            }
            _ => {}
        }
    }

    /// The sums of the host.
    fn waited(&mut self, lanes: &mut Lanes) -> &mut [Sum; 2] {
        let (host, source) = (self.host, self.source);
        self.waited.get_or_insert_with(|| {
            [(names::RUNQ_WAIT, "ns"), (names::SWITCHES, "1")].map(|(name, unit)| {
                let lane = Lane::counter(name, unit, Measure::Delta);
                Sum::new(lanes.track(host, None, lane, source))
            })
        })
    }

    /// A thread gets a CPU.
    pub fn runs(&mut self, tid: i64, cpu: u32, now: i64, lanes: &mut Lanes, rows: &mut Rows) {
        // It waited for this CPU.
        self.task(tid, lanes).cpu = i64::from(cpu);
        self.enter(tid, Some(ThreadState::Running), now, lanes, rows);
        self.waited(lanes)[1].add(1.0, now, now, rows);
    }

    /// A thread leaves its CPU, in a state as the kernel writes it: bits, 0 for ready to run (include/linux/sched.h;
    /// the bits of the end of a thread have moved, and mean an end in all versions).
    pub fn leaves(
        &mut self,
        tid: i64,
        cpu: u32,
        bits: i64,
        now: i64,
        lanes: &mut Lanes,
        rows: &mut Rows,
    ) {
        let task = self.task(tid, lanes);
        task.cpu = i64::from(cpu);
        let state = match bits & 0x7f {
            // An idle kernel thread is reported as this bit alone since Linux 4.14.
            0 if bits & 0x80 != 0 => Some(ThreadState::Uninterruptible),
            0 => Some(ThreadState::Runnable),
            bits if bits & 1 != 0 => Some(ThreadState::Sleep),
            bits if bits & 2 != 0 && task.requests > 0 => Some(ThreadState::DiskWait),
            bits if bits & 2 != 0 => Some(ThreadState::Uninterruptible),
            bits if bits & 0xc != 0 => Some(ThreadState::Stopped),
            _ => None,
        };
        self.enter(tid, state, now, lanes, rows);
        if state.is_none() {
            self.ends(tid, now, lanes, rows);
        }
    }

    /// A thread is woken, on this CPU and in this context, by `waker`.
    pub fn wakes(
        &mut self,
        tid: i64,
        id: Id,
        by: (WakeContext, Option<i64>, u32),
        now: i64,
        lanes: &mut Lanes,
        rows: &mut Rows,
    ) -> bool {
        let (context, waker, cpu) = by;
        let task = self.task(tid, lanes);
        // `sched_waking` and `sched_wakeup` tell of the same wakeup, and one of a running thread ends no wait.
        if matches!(task.state, Some((ThreadState::Running | ThreadState::Runnable, _))) {
            return false;
        }
        self.enter(tid, Some(ThreadState::Runnable), now, lanes, rows);
        let waker = waker.filter(|_| context == WakeContext::Task);
        let waker = waker.map(|waker| self.task(waker, lanes).entity);
        let (source, name) = (self.source, self.wakeup.clone());
        let task = self.task(tid, lanes);
        let woken = task.entity;
        let track = *task
            .wakeups
            .get_or_insert_with(|| lanes.track(woken, None, Lane::marks(names::WAKEUPS), source));
        let ts = Ns(now);
        rows.mark.push(Mark { id, ts, track, name, value: None });
        rows.wakeup.push(Wakeup { id, ts, woken, waker, context, cpu });
        true
    }

    /// A thread is no more: its number may be given to another. It does not return from the system call that it is in.
    fn ends(&mut self, tid: i64, now: i64, lanes: &mut Lanes, rows: &mut Rows) {
        let Some(place) = self.places.get(&tid).copied() else { return };
        if let Some((id, since, name)) = self.all[place].call.take() {
            let track = self.calls(tid, lanes);
            let dur = Some(Ns(now.saturating_sub(since)));
            rows.span.push(Span { id, ts: Ns(since), dur, track, parent: None, name });
        }
        lanes.end(self.all[place].entity, Ns(now));
        self.places.remove(&tid);
        self.free.push(place);
        let slot = tid as usize % LATELY;
        self.lately[slot] = nobody(slot);
        *self.again.entry(tid).or_default() += 1;
    }

    /// The track of a thread's system calls.
    pub fn calls(&mut self, tid: i64, lanes: &mut Lanes) -> TrackId {
        let source = self.source;
        let task = self.task(tid, lanes);
        let entity = task.entity;
        *task.calls.get_or_insert_with(|| {
            lanes.track(entity, None, Lane::spans(SYSCALLS, Discipline::Nested), source)
        })
    }

    /// The track of a thread's other events.
    pub fn marks(&mut self, tid: i64, lanes: &mut Lanes) -> TrackId {
        let source = self.source;
        let task = self.task(tid, lanes);
        let entity = task.entity;
        *task
            .marks
            .get_or_insert_with(|| lanes.track(entity, None, Lane::marks(names::MARKS), source))
    }

    /// The trace has ended: so have all states. The numbers of the threads that are in a system call are returned.
    pub fn finish(&mut self, now: i64, lanes: &mut Lanes, rows: &mut Rows) -> Vec<i64> {
        let mut tids: Vec<i64> = self.places.keys().copied().collect();
        tids.sort_unstable();
        for &tid in &tids {
            self.enter(tid, None, now, lanes, rows);
        }
        let mut sums: Vec<(&EntityId, &mut Sum)> = self.cpu_time.iter_mut().collect();
        sums.sort_unstable_by_key(|(process, _)| **process);
        sums.into_iter().for_each(|(_, sum)| sum.flush(now, rows));
        self.waited.iter_mut().flatten().for_each(|sum| sum.flush(now, rows));
        tids.retain(|tid| self.task(*tid, lanes).call.is_some());
        tids
    }
}

/// What stands in a slot of [`Tasks::lately`] for no thread: a number that belongs into another slot.
fn nobody(slot: usize) -> (i64, usize) {
    (slot as i64 + 1, 0)
}
