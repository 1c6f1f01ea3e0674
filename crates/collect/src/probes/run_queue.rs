//! Thread states: when each thread ran, waited for a CPU (and which thread had it) and slept, and
//! which thread woke it.
//!
//! *What it sees*: every context switch and wakeup. Threads of interest (those of the targets,
//! their children, and for [`WAKER_NS`] threads that woke one of them from task context, `hops` wakers
//! away at most) get exact states: a record at switch-in describes the wait that ends, one at
//! switch-out the slice. While such a thread waits for a CPU, the CPU's ledger lists the threads that
//! ran there. All other threads are summed: run queue wait and switches of the host, and what each process
//! used of the CPUs (`cpu_time`), by which a process that began to run more is told from one that was in the
//! way all the time; with it the page faults of threads of interest; and what the hypervisor took of what ran
//! on each CPU (`steal`), where the kernel accounts for it (`CONFIG_PARAVIRT_TIME_ACCOUNTING`); and
//! of a thread that is in `ioctl(KVM_RUN)` when it leaves its CPU, that it runs a virtual CPU, and which.
//!
//! *Why it matters*: most slow steps are slow because their threads ran less. The states show what
//! the threads did instead, and what ran in their place.
//!
//! *What fools it*: a wakeup from an interrupt, which names the interrupted thread (the context of the
//! wakeup shows this, and that thread is not followed); time in interrupts is known as a sum for each slice, so its rows lie at the end of
//! the slice; that a thread is out of quota is known at switch-out, and for how long only at
//! switch-in, so that `throttled` is written first and `runnable` after it; a ledger of 64 slices a CPU
//! loses the beginning of a wait that saw more of them (counted as dropped); where in a slice the
//! hypervisor took its part is not known, and less than 50 µs are added to what the next slice lost; of a thread
//! that calls `sched_yield` over and over and gets its CPU back within 50 µs, the time in which others had the
//! CPU is known as a sum for each run of at most 2 ms, and its row lies at the begin of the run; beyond
//! [`Config::cpu_records`](crate::Config::cpu_records) in a second on one CPU exact states are left out, which leaves gaps
//! in them.

use std::fs;
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Counter, Discipline, EntityId, Lane, Mark, Measure, Name, Ns, SourceId, State, ThreadState,
    TrackId, WakeContext, Wakeup, names, sources,
};

use crate::bpf::process_sums::{self, ProcessSums};
use crate::bpf::{
    Bpf, Head, LoadedObject, bpf_object, bytes_of, from_bytes, set_constants, set_map_entries,
    shared_with_c,
};
use crate::config::Target;
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::probe::{How, Probe, ProbeSpec, Shedding, Start};
use crate::procfs::{process_tree, state_letter, vcpu_number};
use crate::shed::Shed;
use crate::sys::{self, ns};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    sheds: &[
        Shedding {
            shed: Shed::Wakers,
            how: How::Knob(|knobs| knobs.without_wakers = 1),
            missing: "wakers are not recorded exactly",
        },
        Shedding {
            shed: Shed::Exact,
            how: How::Knob(|knobs| knobs.record_ns *= 10),
            missing: "a tenth of the exact records is written",
        },
        Shedding {
            shed: Shed::Threads,
            how: How::Pause,
            missing: "thread states are not recorded",
        },
    ],
    ..ProbeSpec::new(
        "run_queue",
        &sources::RUN_QUEUE,
        "thread states, which thread woke which, what had the CPU meanwhile",
        start,
    )
};

/// How long a waker stays of interest after it woke a thread of interest: some checkpoints.
const WAKER_NS: u64 = 10_000_000_000;

/// Shorter runs of the idle task while a thread waits belong to its wakeup: the processor leaves its
/// sleep.
const IDLE_NS: u32 = 50_000;

/// Less time than this in interrupts is left in the running row: two rows more for it would cost
/// more than they are worth.
const INTERRUPT_NS: u32 = 1_000;

/// Moves of one wait that are kept; a thread that is moved more often loses the earlier ones.
const MOVES: usize = 64;

/// Counter track of a process (delta, 1): page faults of its threads of interest, as the kernel counts them.
const PAGE_FAULTS: &str = "page_faults";

/// Threads and stopped processes that are kept at a time.
const THREADS: usize = 65_536;

// The structs and enums of `run_queue.bpf.c`, where each is explained.
shared_with_c! {
    objects ["run_queue"];

    enum Kind = "kind" { Wait, Run, Moved, Occupant, Name, Exit, Signal, Stolen, }

    enum Summed = "summed" { CpuNs, Faults, }

    enum OffCpu = "off_cpu" {
        Unknown,
        Preempted,
        Throttled,
        Sleep,
        Disk,
        Uninterruptible,
        Stopped,
        New,
        Dead,
    }

    enum Interrupted = "context" { Unknown, Task, Softirq, Hardirq, }

    struct WaitRecord = "wait_record" {
        head: Head,
        wait: Wait,
    }

    struct Wait = "wait" {
        from: u64,
        woken: u64,
        throttled: u64,
        tgid: u32,
        waker: u32,
        waker_tgid: u32,
        syscall: i32,
        off_cpu: u8,
        context: u8,
        wake_cpu: u16,
        pad: u32,
        waker_comm: [u8; 16],
    }

    struct RunRecord = "run_record" {
        head: Head,
        from: u64,
        hardirq_ns: u64,
        softirq_ns: u64,
        tgid: u32,
        syscall: i32,
        vec: u8,
        off_cpu: u8,
        pad: u16,
        vcpu: i32,
        yielded_ns: u64,
    }

    struct MovedRecord = "moved_record" {
        head: Head,
        tgid: u32,
        from_cpu: u16,
        to_cpu: u16,
    }

    struct OccupantRecord = "occupant_record" {
        head: Head,
        from: u64,
        tgid: u32,
        cpu: u16,
        pad: u16,
        comm: [u8; 16],
    }

    struct NameRecord = "name_record" {
        head: Head,
        tgid: u32,
        target: u32,
        start: u64,
        leader_start: u64,
        comm: [u8; 16],
        leader_comm: [u8; 16],
    }

    struct ExitRecord = "exit_record" {
        head: Head,
        tgid: u32,
        pad: u32,
    }

    struct SignalRecord = "signal_record" {
        head: Head,
        tgid: u32,
        signal: u32,
        sender: u32,
        sender_tid: u32,
        comm: [u8; 16],
    }

    struct StolenRecord = "stolen_record" {
        head: Head,
        from: u64,
        ns: u64,
    }

    struct Constants = "constants" {
        waker_ns: u64,
        contexts_known: u32,
        has_prev_state: u32,
        idle_ns: u32,
        interrupt_ns: u32,
    }
}

impl OffCpu {
    fn of(code: u8) -> OffCpu {
        OffCpu::from_code(code).unwrap_or(OffCpu::Unknown)
    }

    /// The state of a thread that is off its CPU and has not been woken.
    fn state(self) -> ThreadState {
        match self {
            OffCpu::Unknown | OffCpu::Dead | OffCpu::New => ThreadState::Unknown,
            OffCpu::Preempted => ThreadState::Runnable,
            OffCpu::Throttled => ThreadState::Throttled,
            OffCpu::Sleep => ThreadState::Sleep,
            OffCpu::Disk => ThreadState::DiskWait,
            OffCpu::Uninterruptible => ThreadState::Uninterruptible,
            OffCpu::Stopped => ThreadState::Stopped,
        }
    }

    /// By the third field of `/proc/PID/stat`.
    fn from_letter(letter: char) -> OffCpu {
        match letter {
            'S' | 'I' | 'P' => OffCpu::Sleep,
            'D' => OffCpu::Uninterruptible,
            'T' | 't' => OffCpu::Stopped,
            _ => OffCpu::Unknown,
        }
    }
}

struct RunQueue {
    bpf: Rc<Bpf>,
    hops: u32,
    states: ThreadStates,
    /// Run queue wait and switches of the host.
    host: [DeltaCounter; 2],
    /// What each process used of the CPUs.
    used: ProcessSums,
    loaded: LoadedObject,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let Start { bpf, config, cx, source } = start;
    let interrupts = super::interrupts::PROBE.name;
    let contexts_known = !config.off.iter().any(|off| off == interrupts);
    let constants = Constants {
        waker_ns: WAKER_NS,
        contexts_known: u32::from(contexts_known),
        has_prev_state: u32::from(bpf.tracepoint_arguments("sched_switch") >= Some(4)),
        idle_ns: IDLE_NS,
        interrupt_ns: INTERRUPT_NS,
    };
    let loaded = bpf.load("run_queue", bpf_object!("run_queue"), |object| {
        set_constants(object, bytes_of(&constants))?;
        process_sums::configure(object, bpf, 1)?;
        set_map_entries(object, "ledgers", bpf.cpu_count() as u32)
    })?;
    let mut probe = RunQueue {
        bpf: Rc::clone(bpf),
        hops: u32::from(config.hops),
        states: ThreadStates::new(source),
        host: [DeltaCounter::default(); 2],
        used: ProcessSums::new(&loaded)?,
        loaded,
    };
    for &target in &config.targets {
        probe.add_target(target, cx)?;
    }
    probe.loaded.attach()?;
    if !contexts_known {
        cx.degraded(source, "no waker is known while the probe `interrupts` is off");
    }
    Ok(Box::new(probe))
}

impl Probe for RunQueue {
    fn event(&mut self, kind: u8, bytes: &[u8], cx: &mut Context) {
        self.states.event(kind, bytes, cx);
    }

    fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        self.loaded.pause(paused)
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let (mut waited, mut switches) = (0, 0);
        for i in 0..self.bpf.cpu_count() {
            let cpu = self.bpf.cpu(i);
            waited += cpu.runq_wait_ns;
            switches += cpu.switches;
        }
        let totals = [(names::RUNQ_WAIT, "ns", waited), (names::SWITCHES, "1", switches)];
        for (counter, (name, unit, total)) in self.host.iter_mut().zip(totals) {
            counter.update(total, now, &mut cx.rows, || {
                let kind = Lane::counter(name, unit, Measure::Delta);
                cx.catalog.track(cx.host, None, kind, self.states.source)
            });
        }
        let source = self.states.source;
        self.used.each(now, |share| {
            let Context { catalog, rows, attribution, .. } = &mut *cx;
            let (tgid, comm) = (share.tgid, share.comm);
            for (summed, name, unit) in
                [(Summed::CpuNs, names::CPU_TIME, "ns"), (Summed::Faults, PAGE_FAULTS, "1")]
            {
                let i = summed as usize;
                share.counters[i].add(share.added[i], now, rows, || {
                    let process = attribution.process(catalog, tgid, Some(&comm));
                    let kind = Lane::counter(name, unit, Measure::Delta);
                    catalog.track(process, None, kind, source)
                });
            }
        });
        Ok(())
    }

    fn add_target(&mut self, target: Target, cx: &mut Context) -> Result<(), CollectError> {
        let mut known = Vec::new();
        // A process that forks while we read /proc may have a child that we did not see; read again
        // until no new one turns up. The kernel marks children of processes that are marked.
        for _ in 0..8 {
            let tree = process_tree(target.pid());
            let fresh: Vec<u32> = tree.into_iter().filter(|pid| !known.contains(pid)).collect();
            if fresh.is_empty() {
                break;
            }
            self.bpf.add_targets(&fresh, self.hops)?;
            for pid in fresh {
                cx.watched.insert(pid);
                known.push(pid);
                self.states.seed(pid, cx);
            }
        }
        Ok(())
    }

    fn open_states(&self, out: &mut Vec<State>) {
        out.extend(self.states.open(state_letter));
    }

    fn finish(&mut self, _now: Ns, cx: &mut Context) {
        self.states.finish(state_letter, cx);
    }
}

/// Turns records into states of the threads of interest.
///
/// Each record is complete in itself: it says from when it holds. So rows of a thread follow each
/// other without overlap, and where records were lost there is a gap.
struct ThreadStates {
    source: SourceId,
    threads: HashMap<u32, Thread>,
    cpus: HashMap<u16, OfCpu>,
    /// What the hypervisor took of each CPU.
    stolen: HashMap<u16, OfCpu>,
    /// The process that last stopped a process, by tgid.
    stoppers: HashMap<u32, u32>,
    wakeup: Name,
}

struct Thread {
    tgid: u32,
    entity: EntityId,
    states: TrackId,
    wakeups: Option<TrackId>,
    /// The end of its last row.
    end: Ns,
    /// What it does since then, if that is known.
    open: Option<(ThreadState, i64)>,
    /// CPUs for which it waited, each until when, if it was moved while it waited; seldom more than
    /// one.
    moves: Vec<(Ns, u16)>,
    /// /proc showed it in this state, and no record has arrived yet.
    seed: Option<(Ns, OffCpu)>,
    /// The descriptor of the virtual CPU that it ran last, if that was looked up.
    vcpu: Option<i32>,
}

/// A track of one CPU, as far as it was written.
struct OfCpu {
    track: TrackId,
    end: Ns,
}

impl ThreadStates {
    fn new(source: SourceId) -> ThreadStates {
        ThreadStates {
            source,
            threads: HashMap::new(),
            cpus: HashMap::new(),
            stolen: HashMap::new(),
            stoppers: HashMap::new(),
            wakeup: "wakeup".into(),
        }
    }

    fn event(&mut self, kind: u8, bytes: &[u8], cx: &mut Context) {
        match Kind::from_code(kind) {
            Some(Kind::Wait) => {
                if let Some(r) = from_bytes::<WaitRecord>(bytes) {
                    self.waited(&r, cx);
                }
            }
            Some(Kind::Run) => {
                if let Some(r) = from_bytes::<RunRecord>(bytes) {
                    self.ran(&r, cx);
                }
            }
            Some(Kind::Moved) => {
                if let Some(r) = from_bytes::<MovedRecord>(bytes) {
                    let thread = self.thread(r.head.tid, r.tgid, cx);
                    if thread.moves.len() >= MOVES {
                        thread.moves.remove(0);
                    }
                    thread.moves.push((ns(r.head.ts), r.from_cpu));
                }
            }
            Some(Kind::Occupant) => {
                if let Some(r) = from_bytes::<OccupantRecord>(bytes) {
                    self.occupied(&r, cx);
                }
            }
            Some(Kind::Name) => {
                if let Some(r) = from_bytes::<NameRecord>(bytes) {
                    if r.target != 0 {
                        cx.watched.insert(r.tgid);
                    }
                    // The leader first: a process is called what its leader is called.
                    if r.head.tid != r.tgid {
                        cx.thread(r.tgid, r.tgid, Some(&r.leader_comm));
                    }
                    cx.attribution.renamed(&mut cx.catalog, r.head.tid, r.tgid, &r.comm);
                }
            }
            Some(Kind::Exit) => {
                if let Some(r) = from_bytes::<ExitRecord>(bytes) {
                    let (tid, at) = (r.head.tid, ns(r.head.ts));
                    cx.attribution.exited(&mut cx.catalog, tid, r.tgid, at);
                    if r.head.tid == r.tgid {
                        self.stoppers.remove(&r.tgid);
                        cx.watched.remove(&r.tgid);
                    }
                }
            }
            Some(Kind::Signal) => {
                if let Some(r) = from_bytes::<SignalRecord>(bytes) {
                    self.signalled(&r, cx);
                }
            }
            Some(Kind::Stolen) => {
                if let Some(r) = from_bytes::<StolenRecord>(bytes) {
                    self.stolen(&r, cx);
                }
            }
            None => {}
        }
    }

    /// What is known of the thread.
    fn thread(&mut self, tid: u32, tgid: u32, cx: &mut Context) -> &mut Thread {
        if self.threads.len() >= THREADS {
            // Threads whose end was not recorded: start over rather than grow. They lose nothing but
            // the row that is open now.
            self.threads.clear();
        }
        self.threads.entry(tid).or_insert_with(|| {
            let entity = cx.thread(tid, tgid, None);
            let kind = Lane::states(names::THREAD_STATE, Discipline::Sparse);
            let states = cx.catalog.track(entity, None, kind, self.source);
            Thread {
                tgid,
                entity,
                states,
                wakeups: None,
                end: Ns::MIN,
                open: None,
                moves: Vec::new(),
                seed: None,
                vcpu: None,
            }
        })
    }

    /// A wait has ended: the thread runs.
    fn waited(&mut self, r: &WaitRecord, cx: &mut Context) {
        let now = ns(r.head.ts);
        let WaitRecord { head, wait: r } = r;
        let source = self.source;
        let stopper = self.stoppers.get(&r.tgid).map_or(-1, |&pid| i64::from(pid));
        let wakeup = Name::clone(&self.wakeup);
        let mut off = OffCpu::of(r.off_cpu);
        let thread = self.thread(head.tid, r.tgid, cx);
        let mut from = ns(r.from);
        if let Some((at, seen)) = thread.seed.take()
            && r.from == 0
        {
            (from, off) = (at, seen);
        }
        let woken = if r.woken > 0 { Some(ns(r.woken)) } else { None };
        // Since when it was ready to run: since it was woken, or all the time.
        let ready = match off {
            OffCpu::Preempted | OffCpu::Throttled => from,
            OffCpu::New => woken.unwrap_or(from),
            _ => woken.unwrap_or(now),
        };
        if from.0 > 0 && ready > from {
            let arg = match off {
                OffCpu::Stopped => stopper,
                _ => i64::from(r.syscall),
            };
            thread.row(from, ready, off.state(), arg, cx);
        }
        if ready.0 > 0 {
            let throttled = ready.saturating_add(ns(r.throttled)).min(now);
            let mut moves = std::mem::take(&mut thread.moves);
            let mut at = ready;
            for (end, cpu) in moves.iter().copied().chain([(now, head.cpu)]) {
                let end = end.clamp(at, now);
                let cpu = i64::from(cpu);
                thread.row(at, end.min(throttled), ThreadState::Throttled, cpu, cx);
                thread.row(at.max(throttled), end, ThreadState::Runnable, cpu, cx);
                at = end;
            }
            moves.clear();
            thread.moves = moves;
        }
        thread.end = thread.end.max(now);
        thread.open = Some((ThreadState::Running, i64::from(head.cpu)));

        if let Some(woken) = woken {
            let entity = thread.entity;
            let track = *thread.wakeups.get_or_insert_with(|| {
                cx.catalog.track(entity, None, Lane::marks(names::WAKEUPS), source)
            });
            let context = match Interrupted::from_code(r.context) {
                Some(Interrupted::Task) => WakeContext::Task,
                Some(Interrupted::Softirq) => WakeContext::Softirq,
                Some(Interrupted::Hardirq) => WakeContext::Hardirq,
                Some(Interrupted::Unknown) | None => WakeContext::Unknown,
            };
            // A thread that an interrupt borrowed has nothing to do with the wakeup: it is not named.
            let waker = (context == WakeContext::Task && r.waker > 0).then(|| {
                let comm = (r.waker_comm[0] != 0).then_some(&r.waker_comm[..]);
                cx.thread(r.waker, r.waker_tgid, comm)
            });
            let id = cx.ids.next_id();
            cx.rows.mark.push(Mark { id, ts: woken, track, name: wakeup, value: None });
            cx.rows.wakeup.push(Wakeup {
                id,
                ts: woken,
                woken: entity,
                waker,
                context,
                cpu: u32::from(r.wake_cpu),
            });
        }
    }

    /// A slice has ended: the thread is off its CPU.
    fn ran(&mut self, r: &RunRecord, cx: &mut Context) {
        let now = ns(r.head.ts);
        let stopper = self.stoppers.get(&r.tgid).map_or(-1, |&pid| i64::from(pid));
        let off = OffCpu::of(r.off_cpu);
        let thread = self.thread(r.head.tid, r.tgid, cx);
        thread.seed = None;
        thread.moves.clear();
        let from = ns(r.from);
        let cpu = i64::from(r.head.cpu);
        let length = now.saturating_sub(from).max(Ns::ZERO);
        let worth_a_row = |ns: u64| {
            let ns = i64::try_from(ns).unwrap_or(i64::MAX);
            if ns < i64::from(INTERRUPT_NS) { Ns::ZERO } else { Ns(ns) }
        };
        let hardirq = worth_a_row(r.hardirq_ns).min(length);
        let softirq = worth_a_row(r.softirq_ns).min(length - hardirq);
        let own = now - hardirq - softirq;
        let yielded = worth_a_row(r.yielded_ns).min(own - from);
        thread.row(from, from.saturating_add(yielded), ThreadState::Runnable, cpu, cx);
        thread.row(from + yielded, own, ThreadState::Running, cpu, cx);
        thread.row(own, now - hardirq, ThreadState::Softirq, i64::from(r.vec), cx);
        thread.row(now - hardirq, now, ThreadState::Hardirq, cpu, cx);
        thread.end = thread.end.max(now);
        thread.open = match off {
            OffCpu::Dead => None,
            OffCpu::Preempted | OffCpu::Throttled => Some((off.state(), cpu)),
            OffCpu::Stopped => Some((ThreadState::Stopped, stopper)),
            _ => Some((off.state(), i64::from(r.syscall))),
        };
        if off == OffCpu::Dead {
            self.threads.remove(&r.head.tid);
        } else if r.vcpu >= 0 {
            self.runs_vcpu(r, cx);
        }
    }

    /// A thread is in the call that runs a virtual CPU: a mark says so, once, if the descriptor is of one.
    fn runs_vcpu(&mut self, r: &RunRecord, cx: &mut Context) {
        let source = self.source;
        let thread = self.thread(r.head.tid, r.tgid, cx);
        if thread.vcpu.replace(r.vcpu) == Some(r.vcpu) {
            return;
        }
        let Some(number) = vcpu_number(r.tgid, r.vcpu) else { return };
        let entity = thread.entity;
        let track = cx.catalog.track(entity, None, Lane::marks(names::MARKS), source);
        let (id, name) = (cx.ids.next_id(), names::KVM_VCPU.into());
        cx.rows.mark.push(Mark {
            id,
            ts: ns(r.head.ts),
            track,
            name,
            value: Some(f64::from(number)),
        });
    }

    /// A thread had a CPU for which a thread of interest waited.
    fn occupied(&mut self, r: &OccupantRecord, cx: &mut Context) {
        let (from, to) = (ns(r.from), ns(r.head.ts));
        let Some(&cpu) = cx.cpus.get(usize::from(r.cpu)) else { return };
        let occupants = self.cpus.entry(r.cpu).or_insert_with(|| {
            let kind = Lane::states(names::OCCUPANT, Discipline::Sparse);
            let track = cx.catalog.track(cpu, None, kind, self.source);
            OfCpu { track, end: Ns::MIN }
        });
        let from = from.max(occupants.end);
        if to <= from {
            return;
        }
        let value = match r.head.tid {
            0 => 0,
            tid => i64::from(cx.thread(tid, r.tgid, Some(&r.comm)).0),
        };
        occupants.end = to;
        cx.rows.state.push(State {
            ts: from,
            dur: Some(to - from),
            track: occupants.track,
            value,
            arg: None,
        });
    }

    /// The hypervisor took a part of what had a CPU. The zero before it says when that began.
    fn stolen(&mut self, r: &StolenRecord, cx: &mut Context) {
        let (from, to) = (ns(r.from), ns(r.head.ts));
        let Some(&cpu) = cx.cpus.get(usize::from(r.head.cpu)) else { return };
        let stolen = self.stolen.entry(r.head.cpu).or_insert_with(|| {
            let kind = Lane::counter(names::STEAL, "ns", Measure::Delta);
            OfCpu { track: cx.catalog.track(cpu, None, kind, self.source), end: Ns::MIN }
        });
        let from = from.max(stolen.end);
        if to <= from {
            return;
        }
        let counter = |ts, value| Counter { ts, track: stolen.track, value };
        if from > stolen.end {
            cx.rows.counter.push(counter(from, 0.0));
        }
        cx.rows.counter.push(counter(to, r.ns as f64));
        stolen.end = to;
    }

    fn signalled(&mut self, r: &SignalRecord, cx: &mut Context) {
        let name = match r.signal {
            9 => "SIGKILL",
            10 => "SIGUSR1",
            12 => "SIGUSR2",
            23 => "SIGURG",
            15 => "SIGTERM",
            18 => "SIGCONT",
            19 => "SIGSTOP",
            20 => "SIGTSTP",
            _ => return,
        };
        if matches!(r.signal, 19 | 20) {
            if self.stoppers.len() >= THREADS {
                self.stoppers.clear();
            }
            self.stoppers.insert(r.tgid, r.sender);
        }
        let process = cx.process(r.tgid, None);
        // So that the sender has a name even if it has ended.
        if r.sender_tid > 0 {
            cx.thread(r.sender_tid, r.sender, Some(&r.comm));
        }
        let track = cx.catalog.track(process, None, Lane::marks(names::SIGNALS), self.source);
        cx.rows.mark.push(Mark {
            id: cx.ids.next_id(),
            ts: ns(r.head.ts),
            track,
            name: name.into(),
            value: Some(f64::from(r.sender)),
        });
    }

    /// Notes in which state the threads of `pid` are now: a thread that sleeps from before the
    /// recording until after it makes no record.
    fn seed(&mut self, pid: u32, cx: &mut Context) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        for task in tasks.flatten() {
            let Ok(tid) = task.file_name().to_string_lossy().parse() else { continue };
            let Some(off) = state_letter(pid, tid).map(OffCpu::from_letter) else { continue };
            let at = sys::monotonic();
            let thread = self.thread(tid, pid, cx);
            if off != OffCpu::Unknown && thread.end == Ns::MIN && thread.open.is_none() {
                thread.seed = Some((at, off));
            }
        }
    }

    /// States that still last, by thread; `letter` is the state of a thread as /proc has it. A thread
    /// that does not live is in no state, even if the record of its end was lost.
    fn open(&self, letter: impl Fn(u32, u32) -> Option<char>) -> Vec<State> {
        let mut threads: Vec<(&u32, &Thread)> = self.threads.iter().collect();
        threads.sort_unstable_by_key(|(tid, _)| **tid);
        let row = |(tid, thread): (&u32, &Thread)| {
            let now = letter(thread.tgid, *tid)?;
            let (ts, state, arg) = match (thread.open, thread.seed) {
                (Some((state, arg)), _) if thread.end > Ns::MIN => (thread.end, state, arg),
                (_, Some((at, off))) => (at, off.state(), -1),
                // It was woken and has not left its CPU since.
                _ if thread.end > Ns::MIN && now == 'R' => (thread.end, ThreadState::Running, -1),
                _ => return None,
            };
            let track = thread.states;
            Some(State { ts, dur: None, track, value: state.code(), arg: Some(arg) })
        };
        threads.into_iter().filter_map(row).collect()
    }

    fn finish(&mut self, letter: impl Fn(u32, u32) -> Option<char>, cx: &mut Context) {
        cx.rows.state.append(&mut self.open(letter));
    }
}

impl Thread {
    /// A row for `[from, to)`, as far as it lies behind the last one.
    fn row(&mut self, from: Ns, to: Ns, state: ThreadState, arg: i64, cx: &mut Context) {
        let from = from.max(self.end);
        if to <= from {
            return;
        }
        self.end = to;
        cx.rows.state.push(State {
            ts: from,
            dur: Some(to - from),
            track: self.states,
            value: state.code(),
            arg: Some(arg),
        });
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Entity, EntityKind, Rows};

    use super::*;
    use crate::bpf::layout::Plain;

    const TGID: u32 = 4_000_000_000;
    const TID: u32 = 4_000_000_001;

    /// Records of one thread, and the states that follow.
    struct Scene {
        thread_states: ThreadStates,
        cx: Context,
    }

    impl Scene {
        fn new() -> Scene {
            let mut cx = Context::new();
            let source = cx.catalog.source("bpf:run_queue", "test", "0", "");
            Scene { thread_states: ThreadStates::new(source), cx }
        }

        fn send<T: Plain>(&mut self, kind: Kind, ts: u64, cpu: u16, make: impl FnOnce(Head) -> T) {
            let record = make(Head { ts, cpu, tid: TID, ..Head::default() });
            self.thread_states.event(kind as u8, bytes_of(&record), &mut self.cx);
        }

        /// The thread begins to run at `ts`, on CPU 1.
        fn wait(&mut self, ts: u64, wait: Wait) {
            self.send(Kind::Wait, ts, 1, |head| WaitRecord {
                head,
                wait: Wait { tgid: TGID, ..wait },
            });
        }

        /// The thread ceases to run at `ts`, on CPU 1.
        fn run(&mut self, ts: u64, run: RunRecord) {
            self.send(Kind::Run, ts, 1, |head| RunRecord { head, tgid: TGID, ..run });
        }

        /// The states of the thread so far: `from..to state(arg)` in µs, `..` for a state that lasts.
        fn states(&mut self) -> String {
            let mut rows = Rows::default();
            self.cx.catalog.drain(&mut rows);
            let track = self.thread_states.threads.get(&TID).map(|t| t.states);
            let mut out = Vec::new();
            for row in self.cx.rows.state.drain(..).filter(|s| Some(s.track) == track) {
                let to = row.dur.map_or(String::new(), |d| ((row.ts + d).0 / 1000).to_string());
                let state = ThreadState::from_code(row.value).unwrap().as_str();
                out.push(format!("{}..{to} {state}({})", row.ts.0 / 1000, row.arg.unwrap()));
            }
            out.join(", ")
        }
    }

    const SLEEP: u8 = OffCpu::Sleep as u8;
    const PREEMPTED: u8 = OffCpu::Preempted as u8;
    const THROTTLED: u8 = OffCpu::Throttled as u8;
    const STOPPED: u8 = OffCpu::Stopped as u8;

    #[test]
    fn a_sleep_ends_with_its_waking_and_the_rest_is_waiting_for_a_cpu() {
        let mut scene = Scene::new();
        let slept = Wait {
            from: 1_000_000,
            woken: 3_000_000,
            off_cpu: SLEEP,
            syscall: 202,
            ..Wait::default()
        };
        scene.wait(3_500_000, slept);
        scene.run(
            5_000_000,
            RunRecord { from: 3_500_000, off_cpu: SLEEP, syscall: 35, ..RunRecord::default() },
        );
        assert_eq!(
            scene.states(),
            "1000..3000 sleep(202), 3000..3500 runnable(1), 3500..5000 running(1)"
        );
        scene
            .thread_states
            .finish(|tgid, tid| ((tgid, tid) == (TGID, TID)).then_some('S'), &mut scene.cx);
        assert_eq!(scene.states(), "5000.. sleep(35)");
        scene.thread_states.finish(|_, _| None, &mut scene.cx);
        assert_eq!(scene.states(), "", "a thread that has ended is in no state");
    }

    #[test]
    fn interrupts_lie_at_the_end_of_their_slice_and_short_ones_stay_in_it() {
        let mut scene = Scene::new();
        let run = RunRecord {
            from: 1_000_000,
            hardirq_ns: 20_000,
            softirq_ns: 300_000,
            vec: 3,
            off_cpu: PREEMPTED,
            ..RunRecord::default()
        };
        scene.run(2_000_000, run);
        assert_eq!(
            scene.states(),
            "1000..1680 running(1), 1680..1980 softirq(3), 1980..2000 hardirq(1)"
        );
        scene.run(4_000_000, RunRecord { from: 3_000_000, hardirq_ns: 900, ..run_of(PREEMPTED) });
        assert_eq!(scene.states(), "3000..4000 running(1)");
        // Clocks are read apart: more interrupt than slice is cut to the slice.
        scene.run(6_000_000, RunRecord { from: 5_999_000, softirq_ns: 9_000_000, ..run_of(SLEEP) });
        assert_eq!(scene.states(), "5999..6000 softirq(0)");
    }

    #[test]
    fn what_others_had_of_a_run_that_yields_lies_at_its_begin() {
        let mut scene = Scene::new();
        let run = |from| RunRecord { from, yielded_ns: 400_000, ..run_of(SLEEP) };
        scene.run(2_000_000, run(1_000_000));
        assert_eq!(scene.states(), "1000..1400 runnable(1), 1400..2000 running(1)");
        scene.run(4_000_000, run(3_900_000));
        assert_eq!(scene.states(), "3900..4000 runnable(1)", "never more than the run");
    }

    fn run_of(off: u8) -> RunRecord {
        RunRecord { off_cpu: off, ..RunRecord::default() }
    }

    #[test]
    fn throttled_comes_before_runnable() {
        let mut scene = Scene::new();
        let wait =
            Wait { from: 1_000_000, throttled: 800_000, off_cpu: THROTTLED, ..Wait::default() };
        scene.wait(2_000_000, wait);
        assert_eq!(scene.states(), "1000..1800 throttled(1), 1800..2000 runnable(1)");
        // More quota time than wait is cut to the wait.
        scene.wait(4_000_000, Wait { from: 3_000_000, throttled: 9_000_000, ..wait });
        assert_eq!(scene.states(), "3000..4000 throttled(1)");
    }

    #[test]
    fn a_thread_that_is_moved_waits_for_one_cpu_and_then_for_the_other() {
        let mut scene = Scene::new();
        scene.send(Kind::Moved, 1_400_000, 0, |head| MovedRecord {
            head,
            tgid: TGID,
            from_cpu: 0,
            to_cpu: 1,
        });
        scene.wait(2_000_000, Wait { from: 1_000_000, off_cpu: PREEMPTED, ..Wait::default() });
        assert_eq!(scene.states(), "1000..1400 runnable(0), 1400..2000 runnable(1)");
    }

    #[test]
    fn lost_records_leave_a_gap_and_no_overlap() {
        let mut scene = Scene::new();
        scene.run(2_000_000, RunRecord { from: 1_000_000, ..run_of(SLEEP) });
        // The wait's record was lost; the record of the next slice says when it began.
        scene.run(9_000_000, RunRecord { from: 8_000_000, ..run_of(SLEEP) });
        assert_eq!(scene.states(), "1000..2000 running(1), 8000..9000 running(1)");
        // A record that goes back (a waker's last wait, written late) adds only what is new.
        scene.wait(
            9_500_000,
            Wait { from: 5_000_000, woken: 9_200_000, off_cpu: SLEEP, ..Wait::default() },
        );
        assert_eq!(scene.states(), "9000..9200 sleep(0), 9200..9500 runnable(1)");
    }

    #[test]
    fn a_waker_is_named_only_if_it_woke_from_task_context() {
        let mut scene = Scene::new();
        for (context, expected) in [(1, true), (2, false), (3, false), (0, false), (77, false)] {
            let wait = Wait {
                from: 1_000,
                woken: 2_000,
                off_cpu: SLEEP,
                context,
                waker: TID + 1,
                waker_tgid: TID + 1,
                waker_comm: *b"mutex-holder\0\0\0\0",
                ..Wait::default()
            };
            scene.wait(3_000, wait);
            let wakeup = scene.cx.rows.wakeup.pop().unwrap();
            assert_eq!(wakeup.waker.is_some(), expected, "context {context}");
            if let Some(waker) = wakeup.waker {
                assert_eq!(&*scene.cx.catalog.get(waker).unwrap().name, "mutex-holder");
            }
        }
        // A thread that was preempted is not woken.
        scene.cx.rows.wakeup.clear();
        scene.wait(9_000, Wait { from: 8_000, off_cpu: PREEMPTED, ..Wait::default() });
        assert!(scene.cx.rows.wakeup.is_empty());
    }

    #[test]
    fn an_occupant_is_written_once_and_the_idle_task_is_0() {
        let mut scene = Scene::new();
        let mut had = |from, to, tid, comm: &[u8; 16]| {
            let head = Head { ts: to, tid, ..Head::default() };
            let record = OccupantRecord { head, from, tgid: tid, cpu: 1, pad: 0, comm: *comm };
            scene.thread_states.event(Kind::Occupant as u8, bytes_of(&record), &mut scene.cx);
        };
        let (hog, idle) = (b"hog\0\0\0\0\0\0\0\0\0\0\0\0\0", b"swapper/1\0\0\0\0\0\0\0");
        had(1_000, 5_000, TID, hog);
        had(1_000, 5_000, TID, hog);
        had(4_000, 6_000, TID, hog);
        had(6_000, 7_000, 0, idle);
        let rows: Vec<_> =
            scene.cx.rows.state.iter().map(|s| (s.ts.0, s.dur.unwrap().0, s.value)).collect();
        let id = rows[0].2;
        assert_eq!(rows, [(1_000, 4_000, id), (5_000, 1_000, id), (6_000, 1_000, 0)]);
        assert_eq!(&*scene.cx.catalog.get(EntityId(id as u32)).unwrap().name, "hog");
        // A CPU that this host does not have has no track.
        let head = Head { ts: 9_000, tid: TID, ..Head::default() };
        let record = OccupantRecord { head, from: 1, tgid: TID, cpu: 60_000, pad: 0, comm: *hog };
        scene.thread_states.event(Kind::Occupant as u8, bytes_of(&record), &mut scene.cx);
        assert_eq!(scene.cx.rows.state.len(), 3);
    }

    #[test]
    fn what_the_hypervisor_took_lies_in_the_slice_that_lost_it() {
        let mut scene = Scene::new();
        let mut took = |from, to, took| {
            scene.send(Kind::Stolen, to, 1, |head| StolenRecord { head, from, ns: took });
        };
        took(1_000_000, 5_000_000, 700_000);
        took(5_000_000, 6_000_000, 60_000);
        // Of an idle CPU that was late to wake up.
        took(8_500_000, 9_000_000, 500_000);
        // A CPU that this host does not have has no track.
        scene.send(Kind::Stolen, 1, 60_000, |head| StolenRecord { head, from: 0, ns: 1 });
        let rows = &scene.cx.rows.counter;
        assert!(rows.iter().all(|c| c.track == rows[0].track));
        let rows: Vec<_> = rows.iter().map(|c| (c.ts.0 / 1000, c.value)).collect();
        let zero = |at| (at, 0.0);
        let expected = [zero(1000), (5000, 700e3), (6000, 60e3), zero(8500), (9000, 500e3)];
        assert_eq!(rows, expected);
    }

    #[test]
    fn the_sender_of_a_stop_signal_is_noted_with_the_stop() {
        let mut scene = Scene::new();
        scene.send(Kind::Signal, 1_000_000, 0, |head| SignalRecord {
            head,
            tgid: TGID,
            signal: 19,
            sender: 77,
            sender_tid: 0,
            comm: [0; 16],
        });
        scene.run(2_000_000, RunRecord { from: 1_000_000, ..run_of(STOPPED) });
        scene.wait(
            5_000_000,
            Wait { from: 2_000_000, woken: 4_000_000, off_cpu: STOPPED, ..Wait::default() },
        );
        assert_eq!(
            scene.states(),
            "1000..2000 running(1), 2000..4000 stopped(77), 4000..5000 runnable(1)"
        );
        assert_eq!(&*scene.cx.rows.mark[0].name, "SIGSTOP");
        assert_eq!(scene.cx.rows.mark[0].value, Some(77.0));
    }

    #[test]
    fn any_bytes_are_tolerated() {
        let mut scene = Scene::new();
        for kind in 0..Kind::ALL.len() as u8 + 2 {
            for len in 0..120 {
                for fill in [0x00, 0x01, 0x7f, 0xff] {
                    scene.thread_states.event(kind, &vec![fill; len], &mut scene.cx);
                }
            }
        }
        let mut rows = Rows::default();
        scene.cx.catalog.drain(&mut rows);
        let known = |id: EntityId| rows.entity.iter().any(|e: &Entity| e.id == id);
        assert!(rows.track.iter().all(|t| known(t.entity)));
        assert!(rows.entity.iter().any(|e| e.kind == EntityKind::Thread));
    }
}
