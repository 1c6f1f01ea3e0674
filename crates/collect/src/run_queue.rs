//! Thread states: who ran, who waited for a CPU and behind whom, who slept and who woke it.
//!
//! *What it sees*: every context switch and wakeup. Threads of interest (those of the targets,
//! their children, and for [`WAKER_NS`] whoever woke one of them from task context, `hops` out)
//! get exact states: a record at switch-in tells the wait that ends, one at switch-out the slice.
//! While such a thread waited for a CPU, the CPU's ledger says who had it. Everything else is
//! summed: run queue wait and switches of the host.
//!
//! *Why it matters*: a step that takes longer is mostly a step that ran less; this says what its
//! threads did instead, and who ran in their place.
//!
//! *What fools it*: a waker that an interrupt borrowed (its context says so, and it is never
//! followed); time in interrupts is known as a sum for each slice, so its rows lie at the end of
//! the slice; a thread that is out of quota is known to be so at switch-out, and for how long at
//! switch-in, so that `throttled` comes first and `runnable` after it; a ledger of 64 slices a CPU
//! forgets the beginning of a wait that saw more of them (counted as dropped); beyond
//! [`RECORDS_PER_SECOND`] exact states are left out, which leaves gaps in them.

use std::fs;
use std::ops::Range;
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Counter, Discipline, EntityId, Lane, Mark, Measure, Name, Ns, SourceId, State, ThreadState,
    TrackId, WakeContext, Wakeup, names,
};

use crate::kernel::{self, Head, Kernel, Loaded, ProbeNumber, bpf_object, bytes_of, plain, record};
use crate::recorder::Target;
use crate::{CollectError, Context, Probe, Start};

/// How long a waker stays of interest after it woke a thread of interest: some checkpoints.
pub const WAKER_NS: u64 = 10_000_000_000;

/// Shorter stays of the idle task while a thread waits are the way of its wakeup: the processor
/// leaves its sleep.
const IDLE_NS: u32 = 50_000;

/// Less time than this in interrupts is left in the running row: two rows more for it would cost
/// more than they say.
const INTERRUPT_NS: i64 = 1_000;

/// Exact records that one CPU may write in a second; it can save them up for as long. A workload
/// with some thousand switches a second stays far below; of one that does nothing but switch, most
/// is left out and counted as dropped, so that it is not slowed by being watched.
pub(crate) const RECORDS_PER_SECOND: u32 = 20_000;

const KIND: u16 = (ProbeNumber::RunQueue as u16) << 8;
const WAIT: u16 = KIND;
const RUN: u16 = KIND + 1;
const MOVED: u16 = KIND + 2;
const OCCUPANT: u16 = KIND + 3;
const NAME: u16 = KIND + 4;
const EXIT: u16 = KIND + 5;
const SIGNAL: u16 = KIND + 6;

// The structs of `run_queue.bpf.c`, where each field is explained.

record! {
    struct WaitRecord {
        head: Head,
        wait: Wait,
    }
}

record! {
    struct Wait {
        from: u64,
        woken: u64,
        throttled: u64,
        tgid: u32,
        waker: u32,
        waker_tgid: u32,
        syscall: i32,
        state: u8,
        context: u8,
        wake_cpu: u16,
        pad: u32,
        waker_comm: [u8; 16],
    }
}

record! {
    struct RunRecord {
        head: Head,
        from: u64,
        hardirq_ns: u64,
        softirq_ns: u64,
        tgid: u32,
        syscall: i32,
        vec: u8,
        off: u8,
        pad: u16,
        pad2: u32,
    }
}

record! {
    struct MovedRecord {
        head: Head,
        tgid: u32,
        from_cpu: u16,
        to_cpu: u16,
    }
}

record! {
    struct OccupantRecord {
        head: Head,
        from: u64,
        tgid: u32,
        cpu: u16,
        pad: u16,
        comm: [u8; 16],
    }
}

record! {
    struct NameRecord {
        head: Head,
        tgid: u32,
        pad: u32,
        start: u64,
        leader_start: u64,
        comm: [u8; 16],
        leader_comm: [u8; 16],
    }
}

record! {
    struct ExitRecord {
        head: Head,
        tgid: u32,
        pad: u32,
    }
}

record! {
    struct SignalRecord {
        head: Head,
        tgid: u32,
        signal: u32,
        sender: u32,
        sender_tid: u32,
        comm: [u8; 16],
    }
}

record! {
    struct Tuning {
        waker_ns: u64,
        contexts_known: u32,
        has_prev_state: u32,
        idle_ns: u32,
        pad: u32,
    }
}

/// `enum off`: why a thread is off its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Off {
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

impl Off {
    fn from_code(code: u8) -> Off {
        match code {
            1 => Off::Preempted,
            2 => Off::Throttled,
            3 => Off::Sleep,
            4 => Off::Disk,
            5 => Off::Uninterruptible,
            6 => Off::Stopped,
            7 => Off::New,
            8 => Off::Dead,
            _ => Off::Unknown,
        }
    }

    /// The state of a thread that is off and has not been woken.
    fn asleep(self) -> ThreadState {
        match self {
            Off::Unknown | Off::Dead | Off::New => ThreadState::Unknown,
            Off::Preempted => ThreadState::Runnable,
            Off::Throttled => ThreadState::Throttled,
            Off::Sleep => ThreadState::Sleep,
            Off::Disk => ThreadState::DiskWait,
            Off::Uninterruptible => ThreadState::Uninterruptible,
            Off::Stopped => ThreadState::Stopped,
        }
    }

    /// As the third field of `/proc/PID/stat` has it.
    fn from_letter(letter: char) -> Off {
        match letter {
            'S' | 'I' | 'P' => Off::Sleep,
            'D' => Off::Uninterruptible,
            'T' | 't' => Off::Stopped,
            _ => Off::Unknown,
        }
    }
}

struct RunQueue {
    kernel: Rc<Kernel>,
    hops: u32,
    book: Book,
    waited: u64,
    switches: u64,
    up: [bool; 2],
    loaded: Loaded,
}

/// Starts the probe.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let Start { kernel, config, cx, source } = start;
    let contexts_known = !config.off.iter().any(|off| off == "interrupts");
    let tuning = Tuning {
        waker_ns: WAKER_NS,
        contexts_known: u32::from(contexts_known),
        has_prev_state: u32::from(kernel.tracepoint("sched_switch") >= Some(4)),
        idle_ns: IDLE_NS,
        pad: 0,
    };
    let loaded = kernel.load("run_queue", bpf_object!("run_queue"), |object| {
        for mut map in object.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(bytes_of(&tuning))?;
            } else if map.name() == "ledgers" {
                map.set_max_entries(kernel.cpu_count() as u32)?;
            }
        }
        Ok(())
    })?;
    let mut probe = RunQueue {
        kernel: Rc::clone(kernel),
        hops: u32::from(config.hops),
        book: Book::new(source),
        waited: 0,
        switches: 0,
        up: [false; 2],
        loaded,
    };
    for &target in &config.targets {
        probe.add_target(target, cx)?;
    }
    probe.loaded.attach()?;
    if !contexts_known {
        cx.lanes.update_source(source, |s| {
            s.state = gpuwhy_schema::SourceState::Degraded;
            s.note = Some("no waker is believed while the probe `interrupts` is off".into());
        });
    }
    Ok(Box::new(probe))
}

impl Probe for RunQueue {
    fn name(&self) -> &'static str {
        "run_queue"
    }

    fn kinds(&self) -> Range<u16> {
        ProbeNumber::RunQueue.kinds()
    }

    fn event(&mut self, kind: u16, bytes: &[u8], cx: &mut Context) {
        self.book.event(kind, bytes, cx);
    }

    fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        self.loaded.pause(paused)
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let (mut waited, mut switches) = (0, 0);
        for i in 0..self.kernel.cpu_count() {
            let cpu = self.kernel.cpu(i);
            waited += cpu.runq_wait_ns;
            switches += cpu.switches;
        }
        let deltas = [waited.wrapping_sub(self.waited), switches.wrapping_sub(self.switches)];
        (self.waited, self.switches) = (waited, switches);
        for (i, (name, unit)) in
            [(names::RUNQ_WAIT, "ns"), (names::SWITCHES, "1")].into_iter().enumerate()
        {
            if deltas[i] == 0 && !self.up[i] {
                continue;
            }
            self.up[i] = deltas[i] != 0;
            let track = *self.book.sums[i].get_or_insert_with(|| {
                let lane = Lane::counter(name, unit, Measure::Delta);
                cx.lanes.track(cx.host, None, lane, self.book.source)
            });
            cx.rows.counter.push(Counter { ts: now, track, value: deltas[i] as f64 });
        }
        Ok(())
    }

    fn add_target(&mut self, target: Target, cx: &mut Context) -> Result<(), CollectError> {
        let Target::Pid(pid) = target;
        let mut known = Vec::new();
        // A process that forks while we look may have a child that we did not see; look again
        // until nobody new turns up. Children of who is marked already are marked by the kernel.
        for _ in 0..8 {
            let family = family(pid);
            let fresh: Vec<u32> = family.into_iter().filter(|pid| !known.contains(pid)).collect();
            if fresh.is_empty() {
                break;
            }
            self.kernel.add_targets(&fresh, self.hops)?;
            for pid in fresh {
                known.push(pid);
                self.book.seed(pid, cx);
            }
        }
        Ok(())
    }

    fn going_on(&self, out: &mut Vec<State>) {
        out.extend(self.book.going_on(letter));
    }

    fn finish(&mut self, _now: Ns, cx: &mut Context) {
        self.book.finish(letter, cx);
    }
}

/// `pid` and its descendants that live now.
pub(crate) fn family(pid: i32) -> Vec<u32> {
    let Ok(pid) = u32::try_from(pid) else { return Vec::new() };
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&pid) = family.get(next) {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            family.extend(children.split_whitespace().filter_map(|c| c.parse::<u32>().ok()));
        }
        if family.len() > 16_000 {
            break;
        }
    }
    family
}

/// What is known of the threads of interest, and the rows that follow from records.
///
/// Each record stands for itself: it says from when it holds. So rows of a thread follow each
/// other without overlap, and where records were lost there is a gap.
struct Book {
    source: SourceId,
    threads: HashMap<u32, Thread>,
    cpus: HashMap<u16, CpuLane>,
    /// Who last stopped a process, by tgid.
    stoppers: HashMap<u32, u32>,
    sums: [Option<TrackId>; 2],
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
    /// Where it waited until when, when it was moved while it waited; seldom more than one.
    moves: Vec<(Ns, u16)>,
    /// It was found in this state by a look into /proc, and no record has come yet.
    seed: Option<(Ns, Off)>,
}

struct CpuLane {
    track: TrackId,
    end: Ns,
}

/// Moves of one wait that are kept; a thread that is moved more often loses the earlier ones.
const MOVES: usize = 64;

/// Threads and stopped processes that are kept at a time.
const THREADS: usize = 65_536;

impl Book {
    fn new(source: SourceId) -> Book {
        Book {
            source,
            threads: HashMap::new(),
            cpus: HashMap::new(),
            stoppers: HashMap::new(),
            sums: [None; 2],
            wakeup: "wakeup".into(),
        }
    }

    fn event(&mut self, kind: u16, bytes: &[u8], cx: &mut Context) {
        match kind {
            WAIT => {
                if let Some(r) = plain::<WaitRecord>(bytes) {
                    self.waited(&r, cx);
                }
            }
            RUN => {
                if let Some(r) = plain::<RunRecord>(bytes) {
                    self.ran(&r, cx);
                }
            }
            MOVED => {
                if let Some(r) = plain::<MovedRecord>(bytes) {
                    let thread = self.thread(r.head.tid, r.tgid, cx);
                    if thread.moves.len() >= MOVES {
                        thread.moves.remove(0);
                    }
                    thread.moves.push((ns(r.head.ts), r.from_cpu));
                }
            }
            OCCUPANT => {
                if let Some(r) = plain::<OccupantRecord>(bytes) {
                    self.occupied(&r, cx);
                }
            }
            NAME => {
                if let Some(r) = plain::<NameRecord>(bytes) {
                    // The leader first: a process is called what its leader is called.
                    if r.head.tid != r.tgid {
                        cx.people.thread(&mut cx.lanes, r.tgid, r.tgid, Some(&r.leader_comm));
                    }
                    cx.people.renamed(&mut cx.lanes, r.head.tid, r.tgid, &r.comm);
                }
            }
            EXIT => {
                if let Some(r) = plain::<ExitRecord>(bytes) {
                    cx.people.exited(&mut cx.lanes, r.head.tid, r.tgid, ns(r.head.ts));
                    if r.head.tid == r.tgid {
                        self.stoppers.remove(&r.tgid);
                    }
                }
            }
            SIGNAL => {
                if let Some(r) = plain::<SignalRecord>(bytes) {
                    self.signalled(&r, cx);
                }
            }
            _ => {}
        }
    }

    /// The thread's place in the book.
    fn thread(&mut self, tid: u32, tgid: u32, cx: &mut Context) -> &mut Thread {
        if self.threads.len() >= THREADS {
            // Threads that never ended in our sight: start over rather than grow. They lose
            // nothing but the row that is open now.
            self.threads.clear();
        }
        self.threads.entry(tid).or_insert_with(|| {
            let entity = cx.people.thread(&mut cx.lanes, tid, tgid, None);
            let lane = Lane::states(names::THREAD_STATE, Discipline::Sparse);
            let states = cx.lanes.track(entity, None, lane, self.source);
            Thread {
                tgid,
                entity,
                states,
                wakeups: None,
                end: Ns::MIN,
                open: None,
                moves: Vec::new(),
                seed: None,
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
        let mut off = Off::from_code(r.state);
        let thread = self.thread(head.tid, r.tgid, cx);
        let mut from = ns(r.from);
        if let Some((at, seen)) = thread.seed.take()
            && r.from == 0
        {
            (from, off) = (at, seen);
        }
        let woken = if r.woken > 0 { Some(ns(r.woken)) } else { None };
        // Since when it was ready to run: from its waking, or all along.
        let ready = match off {
            Off::Preempted | Off::Throttled => from,
            Off::New => woken.unwrap_or(from),
            _ => woken.unwrap_or(now),
        };
        if from.0 > 0 && ready > from {
            let arg = match off {
                Off::Stopped => stopper,
                _ => i64::from(r.syscall),
            };
            thread.row(from, ready, off.asleep(), arg, cx);
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
                cx.lanes.track(entity, None, Lane::marks(names::WAKEUPS), source)
            });
            let context = match r.context {
                1 => WakeContext::Task,
                2 => WakeContext::Softirq,
                3 => WakeContext::Hardirq,
                _ => WakeContext::Unknown,
            };
            // Whoever an interrupt borrowed has nothing to do with the wakeup: it is not named.
            let waker = (context == WakeContext::Task && r.waker > 0).then(|| {
                let comm = (r.waker_comm[0] != 0).then_some(&r.waker_comm[..]);
                cx.people.thread(&mut cx.lanes, r.waker, r.waker_tgid, comm)
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
        let off = Off::from_code(r.off);
        let thread = self.thread(r.head.tid, r.tgid, cx);
        thread.seed = None;
        thread.moves.clear();
        let from = ns(r.from);
        let cpu = i64::from(r.head.cpu);
        let length = now.saturating_sub(from).max(Ns::ZERO);
        let worth = |ns: u64| {
            let ns = i64::try_from(ns).unwrap_or(i64::MAX);
            if ns < INTERRUPT_NS { Ns::ZERO } else { Ns(ns) }
        };
        let hardirq = worth(r.hardirq_ns).min(length);
        let softirq = worth(r.softirq_ns).min(length - hardirq);
        let own = now - hardirq - softirq;
        thread.row(from, own, ThreadState::Running, cpu, cx);
        thread.row(own, now - hardirq, ThreadState::Softirq, i64::from(r.vec), cx);
        thread.row(now - hardirq, now, ThreadState::Hardirq, cpu, cx);
        thread.end = thread.end.max(now);
        thread.open = match off {
            Off::Dead => None,
            Off::Preempted | Off::Throttled => Some((off.asleep(), cpu)),
            Off::Stopped => Some((ThreadState::Stopped, stopper)),
            _ => Some((off.asleep(), i64::from(r.syscall))),
        };
        if off == Off::Dead {
            self.threads.remove(&r.head.tid);
        }
    }

    /// Somebody had a CPU that a thread of interest waited for.
    fn occupied(&mut self, r: &OccupantRecord, cx: &mut Context) {
        let (from, to) = (ns(r.from), ns(r.head.ts));
        let Some(&cpu) = cx.cpus.get(usize::from(r.cpu)) else { return };
        let lane = self.cpus.entry(r.cpu).or_insert_with(|| CpuLane {
            track: cx.lanes.track(
                cpu,
                None,
                Lane::states(names::OCCUPANT, Discipline::Sparse),
                self.source,
            ),
            end: Ns::MIN,
        });
        let from = from.max(lane.end);
        if to <= from {
            return;
        }
        let value = match r.head.tid {
            0 => 0,
            tid => i64::from(cx.people.thread(&mut cx.lanes, tid, r.tgid, Some(&r.comm)).0),
        };
        lane.end = to;
        cx.rows.state.push(State {
            ts: from,
            dur: Some(to - from),
            track: lane.track,
            value,
            arg: None,
        });
    }

    fn signalled(&mut self, r: &SignalRecord, cx: &mut Context) {
        let name = match r.signal {
            9 => "SIGKILL",
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
        let process = cx.people.process(&mut cx.lanes, r.tgid, None);
        // So that the sender has a name even if it is gone.
        if r.sender_tid > 0 {
            cx.people.thread(&mut cx.lanes, r.sender_tid, r.sender, Some(&r.comm));
        }
        let track = cx.lanes.track(process, None, Lane::marks(names::SIGNALS), self.source);
        cx.rows.mark.push(Mark {
            id: cx.ids.next_id(),
            ts: ns(r.head.ts),
            track,
            name: name.into(),
            value: Some(f64::from(r.sender)),
        });
    }

    /// Notes in which state the threads of `pid` are now: whoever sleeps from before the recording
    /// until after it makes no record.
    fn seed(&mut self, pid: u32, cx: &mut Context) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        for task in tasks.flatten() {
            let Ok(tid) = task.file_name().to_string_lossy().parse() else { continue };
            let Some(off) = letter(pid, tid).map(Off::from_letter) else { continue };
            let at = kernel::monotonic();
            let thread = self.thread(tid, pid, cx);
            if off != Off::Unknown && thread.end == Ns::MIN && thread.open.is_none() {
                thread.seed = Some((at, off));
            }
        }
    }

    /// States that still last, by thread; `letter` is the state of a thread as /proc has it.
    /// Whoever does not live does nothing, even if the record of its end was lost.
    fn going_on(&self, letter: impl Fn(u32, u32) -> Option<char>) -> Vec<State> {
        let mut threads: Vec<(&u32, &Thread)> = self.threads.iter().collect();
        threads.sort_unstable_by_key(|(tid, _)| **tid);
        let row = |(tid, thread): (&u32, &Thread)| {
            let now = letter(thread.tgid, *tid)?;
            let (ts, state, arg) = match (thread.open, thread.seed) {
                (Some((state, arg)), _) if thread.end > Ns::MIN => (thread.end, state, arg),
                (_, Some((at, off))) => (at, off.asleep(), -1),
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
        cx.rows.state.append(&mut self.going_on(letter));
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

/// The state of a thread as /proc has it.
pub(crate) fn letter(pid: u32, tid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}

fn ns(n: u64) -> Ns {
    Ns(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Entity, EntityKind, Rows};

    use super::*;
    use crate::kernel::tests::same_layout;
    use crate::recorder;

    #[test]
    fn both_halves_agree_on_the_records() {
        macro_rules! same {
            ($($rust:ident = $c:literal,)*) => {
                $(same_layout("run_queue", $c, size_of::<$rust>(), $rust::LAYOUT);)*
            };
        }
        same! {
            WaitRecord = "wait_record",
            Wait = "wait",
            RunRecord = "run_record",
            MovedRecord = "moved_record",
            OccupantRecord = "occupant_record",
            NameRecord = "name_record",
            ExitRecord = "exit_record",
            SignalRecord = "signal_record",
            Tuning = "tuning",
        }
    }

    const TGID: u32 = 4_000_000_000;
    const TID: u32 = 4_000_000_001;

    /// A book, and where its rows go.
    struct Desk {
        book: Book,
        cx: Context,
    }

    impl Desk {
        fn new() -> Desk {
            let mut cx = recorder::context();
            let source = cx.lanes.source("bpf:run_queue", "test", "0", "");
            Desk { book: Book::new(source), cx }
        }

        fn send<T: kernel::Plain>(
            &mut self,
            kind: u16,
            ts: u64,
            cpu: u16,
            make: impl FnOnce(Head) -> T,
        ) {
            let record = make(Head { ts, kind, cpu, tid: TID });
            self.book.event(kind, bytes_of(&record), &mut self.cx);
        }

        /// It comes to run at `ts`, on CPU 1.
        fn wait(&mut self, ts: u64, wait: Wait) {
            self.send(WAIT, ts, 1, |head| WaitRecord { head, wait: Wait { tgid: TGID, ..wait } });
        }

        /// It ceases to run at `ts`, on CPU 1.
        fn run(&mut self, ts: u64, run: RunRecord) {
            self.send(RUN, ts, 1, |head| RunRecord { head, tgid: TGID, ..run });
        }

        /// The states of the thread so far: `from..to state(arg)` in us, `..` for what lasts.
        fn states(&mut self) -> String {
            let mut rows = Rows::default();
            self.cx.lanes.drain(&mut rows);
            let track = self.book.threads.get(&TID).map(|t| t.states);
            let mut out = Vec::new();
            for row in self.cx.rows.state.drain(..).filter(|s| Some(s.track) == track) {
                let to = row.dur.map_or(String::new(), |d| ((row.ts + d).0 / 1000).to_string());
                let state = ThreadState::from_code(row.value).unwrap().as_str();
                out.push(format!("{}..{to} {state}({})", row.ts.0 / 1000, row.arg.unwrap()));
            }
            out.join(", ")
        }
    }

    const SLEEP: u8 = 3;
    const PREEMPTED: u8 = 1;
    const THROTTLED: u8 = 2;
    const STOPPED: u8 = 6;

    #[test]
    fn a_sleep_ends_with_its_waking_and_the_rest_is_waiting_for_a_cpu() {
        let mut desk = Desk::new();
        let slept = Wait {
            from: 1_000_000,
            woken: 3_000_000,
            state: SLEEP,
            syscall: 202,
            ..Wait::default()
        };
        desk.wait(3_500_000, slept);
        desk.run(
            5_000_000,
            RunRecord { from: 3_500_000, off: SLEEP, syscall: 35, ..RunRecord::default() },
        );
        assert_eq!(
            desk.states(),
            "1000..3000 sleep(202), 3000..3500 runnable(1), 3500..5000 running(1)"
        );
        desk.book.finish(|tgid, tid| ((tgid, tid) == (TGID, TID)).then_some('S'), &mut desk.cx);
        assert_eq!(desk.states(), "5000.. sleep(35)");
        desk.book.finish(|_, _| None, &mut desk.cx);
        assert_eq!(desk.states(), "", "a thread that is gone does nothing");
    }

    #[test]
    fn interrupts_lie_at_the_end_of_their_slice_and_small_change_stays_in_it() {
        let mut desk = Desk::new();
        let run = RunRecord {
            from: 1_000_000,
            hardirq_ns: 20_000,
            softirq_ns: 300_000,
            vec: 3,
            off: PREEMPTED,
            ..RunRecord::default()
        };
        desk.run(2_000_000, run);
        assert_eq!(
            desk.states(),
            "1000..1680 running(1), 1680..1980 softirq(3), 1980..2000 hardirq(1)"
        );
        desk.run(4_000_000, RunRecord { from: 3_000_000, hardirq_ns: 900, ..run_of(PREEMPTED) });
        assert_eq!(desk.states(), "3000..4000 running(1)");
        // Clocks are read apart: more interrupt than slice is cut to the slice.
        desk.run(6_000_000, RunRecord { from: 5_999_000, softirq_ns: 9_000_000, ..run_of(SLEEP) });
        assert_eq!(desk.states(), "5999..6000 softirq(0)");
    }

    fn run_of(off: u8) -> RunRecord {
        RunRecord { off, ..RunRecord::default() }
    }

    #[test]
    fn out_of_quota_comes_before_waiting_behind_others() {
        let mut desk = Desk::new();
        let wait =
            Wait { from: 1_000_000, throttled: 800_000, state: THROTTLED, ..Wait::default() };
        desk.wait(2_000_000, wait);
        assert_eq!(desk.states(), "1000..1800 throttled(1), 1800..2000 runnable(1)");
        // More quota time than wait is cut to the wait.
        desk.wait(4_000_000, Wait { from: 3_000_000, throttled: 9_000_000, ..wait });
        assert_eq!(desk.states(), "3000..4000 throttled(1)");
    }

    #[test]
    fn a_thread_that_is_moved_waits_first_here_and_then_there() {
        let mut desk = Desk::new();
        desk.send(MOVED, 1_400_000, 0, |head| MovedRecord {
            head,
            tgid: TGID,
            from_cpu: 0,
            to_cpu: 1,
        });
        desk.wait(2_000_000, Wait { from: 1_000_000, state: PREEMPTED, ..Wait::default() });
        assert_eq!(desk.states(), "1000..1400 runnable(0), 1400..2000 runnable(1)");
    }

    #[test]
    fn lost_records_leave_a_gap_and_no_overlap() {
        let mut desk = Desk::new();
        desk.run(2_000_000, RunRecord { from: 1_000_000, ..run_of(SLEEP) });
        // The wait's record was lost; the next slice says itself when it began.
        desk.run(9_000_000, RunRecord { from: 8_000_000, ..run_of(SLEEP) });
        assert_eq!(desk.states(), "1000..2000 running(1), 8000..9000 running(1)");
        // A record that goes back (a waker's last wait, told late) adds only what is new.
        desk.wait(
            9_500_000,
            Wait { from: 5_000_000, woken: 9_200_000, state: SLEEP, ..Wait::default() },
        );
        assert_eq!(desk.states(), "9000..9200 sleep(0), 9200..9500 runnable(1)");
    }

    #[test]
    fn a_waker_is_named_only_if_it_woke_by_itself() {
        let mut desk = Desk::new();
        for (context, expected) in [(1, true), (2, false), (3, false), (0, false), (77, false)] {
            let wait = Wait {
                from: 1_000,
                woken: 2_000,
                state: SLEEP,
                context,
                waker: TID + 1,
                waker_tgid: TID + 1,
                waker_comm: *b"mutex-holder\0\0\0\0",
                ..Wait::default()
            };
            desk.wait(3_000, wait);
            let wakeup = desk.cx.rows.wakeup.pop().unwrap();
            assert_eq!(wakeup.waker.is_some(), expected, "context {context}");
            if let Some(waker) = wakeup.waker {
                assert_eq!(&*desk.cx.lanes.get(waker).unwrap().name, "mutex-holder");
            }
        }
        // Nobody wakes who was preempted.
        desk.cx.rows.wakeup.clear();
        desk.wait(9_000, Wait { from: 8_000, state: PREEMPTED, ..Wait::default() });
        assert!(desk.cx.rows.wakeup.is_empty());
    }

    #[test]
    fn who_had_the_cpu_is_written_once_and_idle_is_nobody() {
        let mut desk = Desk::new();
        let mut had = |from, to, tid, comm: &[u8; 16]| {
            let head = Head { ts: to, kind: OCCUPANT, cpu: 0, tid };
            let record = OccupantRecord { head, from, tgid: tid, cpu: 1, pad: 0, comm: *comm };
            desk.book.event(OCCUPANT, bytes_of(&record), &mut desk.cx);
        };
        let (hog, idle) = (b"hog\0\0\0\0\0\0\0\0\0\0\0\0\0", b"swapper/1\0\0\0\0\0\0\0");
        had(1_000, 5_000, TID, hog);
        had(1_000, 5_000, TID, hog);
        had(4_000, 6_000, TID, hog);
        had(6_000, 7_000, 0, idle);
        let rows: Vec<_> =
            desk.cx.rows.state.iter().map(|s| (s.ts.0, s.dur.unwrap().0, s.value)).collect();
        let id = rows[0].2;
        assert_eq!(rows, [(1_000, 4_000, id), (5_000, 1_000, id), (6_000, 1_000, 0)]);
        assert_eq!(&*desk.cx.lanes.get(EntityId(id as u32)).unwrap().name, "hog");
        // A CPU that this host does not have is nobody's.
        let head = Head { ts: 9_000, kind: OCCUPANT, cpu: 0, tid: TID };
        let record = OccupantRecord { head, from: 1, tgid: TID, cpu: 60_000, pad: 0, comm: *hog };
        desk.book.event(OCCUPANT, bytes_of(&record), &mut desk.cx);
        assert_eq!(desk.cx.rows.state.len(), 3);
    }

    #[test]
    fn who_stopped_a_process_stands_with_its_stop() {
        let mut desk = Desk::new();
        desk.send(SIGNAL, 1_000_000, 0, |head| SignalRecord {
            head,
            tgid: TGID,
            signal: 19,
            sender: 77,
            sender_tid: 0,
            comm: [0; 16],
        });
        desk.run(2_000_000, RunRecord { from: 1_000_000, ..run_of(STOPPED) });
        desk.wait(
            5_000_000,
            Wait { from: 2_000_000, woken: 4_000_000, state: STOPPED, ..Wait::default() },
        );
        assert_eq!(
            desk.states(),
            "1000..2000 running(1), 2000..4000 stopped(77), 4000..5000 runnable(1)"
        );
        assert_eq!(&*desk.cx.rows.mark[0].name, "SIGSTOP");
        assert_eq!(desk.cx.rows.mark[0].value, Some(77.0));
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut desk = Desk::new();
        for kind in KIND..KIND + 9 {
            for len in 0..120 {
                for fill in [0x00, 0x01, 0x7f, 0xff] {
                    desk.book.event(kind, &vec![fill; len], &mut desk.cx);
                }
            }
        }
        let mut rows = Rows::default();
        desk.cx.lanes.drain(&mut rows);
        let known = |id: EntityId| rows.entity.iter().any(|e: &Entity| e.id == id);
        assert!(rows.track.iter().all(|t| known(t.entity)));
        assert!(rows.entity.iter().any(|e| e.kind == EntityKind::Thread));
    }
}
