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

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Id, Lane, Lanes, Mark, Measure, Name, Ns, Rows, SourceId,
    Span, State, ThreadState, TrackId, WakeContext, Wakeup, names,
};

use super::sums::Sum;

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
    all: HashMap<i64, Task>,
    /// How many threads have had a number, where it was used again.
    again: HashMap<i64, u32>,
    wakeup: Name,
    /// What each process used of the CPUs.
    cpu_time: BTreeMap<EntityId, Sum>,
    /// Time that all threads waited for a CPU, and context switches.
    waited: Option<[Sum; 2]>,
}

impl Tasks {
    /// Of a host without threads yet.
    pub fn new(key: &str, host: EntityId, source: SourceId) -> Tasks {
        let (all, again) = (HashMap::new(), HashMap::new());
        let (wakeup, cpu_time) = ("wakeup".into(), BTreeMap::new());
        Tasks { key: key.into(), host, source, all, again, wakeup, cpu_time, waited: None }
    }

    /// The thread of this number.
    pub fn task(&mut self, tid: i64, lanes: &mut Lanes) -> &mut Task {
        let (key, host, again) = (&self.key, self.host, &self.again);
        self.all.entry(tid).or_insert_with(|| {
            let number = again.get(&tid).copied().unwrap_or(0);
            let process =
                lanes.entity(EntityKind::Process, &format!("{key}:of:{tid}@{number}"), |e| {
                    e.parent = Some(host);
                    e.name = format!("process of tid {tid}").as_str().into();
                });
            let entity = lanes.entity(EntityKind::Thread, &format!("{key}:{tid}@{number}"), |e| {
                e.parent = Some(process);
                e.name = format!("tid {tid}").as_str().into();
                e.number = Some(tid);
            });
            Task {
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
            }
        })
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
        let track = self.all.get(&tid).is_some_and(|task| task.call.is_some());
        let track = track.then(|| self.calls(tid, lanes));
        let Some(task) = self.all.remove(&tid) else { return };
        if let (Some((id, since, name)), Some(track)) = (task.call, track) {
            let dur = Some(Ns(now.saturating_sub(since)));
            rows.span.push(Span { id, ts: Ns(since), dur, track, parent: None, name });
        }
        lanes.end(task.entity, Ns(now));
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
        let mut tids: Vec<i64> = self.all.keys().copied().collect();
        tids.sort_unstable();
        for &tid in &tids {
            self.enter(tid, None, now, lanes, rows);
        }
        self.cpu_time.values_mut().for_each(|sum| sum.flush(now, rows));
        self.waited.iter_mut().flatten().for_each(|sum| sum.flush(now, rows));
        tids.retain(|tid| self.all.get(tid).is_some_and(|task| task.call.is_some()));
        tids
    }
}
