//! The host's CPUs below the virtual machines: run queues, switches, wakeups, and a ledger of who took a CPU from whom.
//!
//! # How
//! Each thread is pinned to a CPU. Whoever has had the least of it runs next, for a slice that shrinks with the length
//! of the queue; one that is woken takes the CPU at once if it has had less than the current one by a ms. A thread works
//! through jobs and sleeps when there are none: that of a virtual CPU halts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::events::{Event, Value, kind};
use super::{Setup, Taken};

const MS: i64 = 1_000_000;
/// Of a queue, for all of its threads together.
const PERIOD: i64 = 6 * MS;
/// A woken thread is at most this far behind the others.
const CREDIT: i64 = 3 * MS;
/// A shorter job takes this long.
const LEAST: i64 = 2_000;
const HALTS: i64 = 12;
const INTERRUPTED: i64 = 1;
const NAMES: [&str; 8] = [
    "CPU 0/KVM",
    "CPU 1/KVM",
    "CPU 2/KVM",
    "CPU 3/KVM",
    "CPU 4/KVM",
    "CPU 5/KVM",
    "CPU 6/KVM",
    "CPU 7/KVM",
];

/// The number of the process of a virtual machine.
pub(super) fn process(vgpu: usize) -> i32 {
    1000 + 10 * vgpu as i32
}

/// The thread of a virtual CPU.
pub(super) fn vcpu(vgpu: usize, number: usize) -> (i32, &'static str) {
    (process(vgpu) + 1 + number as i32, NAMES[number % NAMES.len()])
}

/// What a thread has to do.
#[derive(Clone, Copy, Debug)]
struct Job {
    left: i64,
    /// The load whose next request follows; without one, it sleeps afterwards.
    load: Option<usize>,
}

#[derive(Clone, Debug)]
struct Thread {
    tid: i32,
    pid: i32,
    comm: &'static str,
    /// The virtual CPU's number, of one.
    vcpu: Option<usize>,
    party: usize,
    cpu: u32,
    /// How long it runs and sleeps by itself, ns.
    pace: (i64, i64),
    jobs: VecDeque<Job>,
    had: i64,
    ready: bool,
    /// Its CPU was taken by this party and, so far, first had by this other machine.
    taken: Option<(usize, Option<usize>)>,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    current: Option<usize>,
    ready: Vec<usize>,
    since: i64,
    slice: i64,
    /// What the one who ran last has had: who comes back is not far behind.
    floor: i64,
    turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Wakes(usize),
    Turn(u32, u64),
}

/// The CPUs of a host.
pub(super) struct Cpus {
    threads: Vec<Thread>,
    cpus: BTreeMap<u32, Cpu>,
    heap: BinaryHeap<Reverse<(i64, u64, What)>>,
    pushed: u64,
    now: i64,
    random: u64,
    /// Events since the last call of [`Cpus::step`] and by it.
    pub events: Vec<Event>,
    /// Loads of virtual GPUs whose next request comes now.
    pub arrivals: Vec<(usize, usize)>,
    pub ledger: Taken,
}

impl Cpus {
    /// Those that a set-up pins threads to; `None` if it pins none.
    pub fn new(setup: &Setup) -> Option<Cpus> {
        let machines = setup.vgpus.len();
        let mut threads = Vec::new();
        let mut add = |(tid, comm), pid, vcpu, party, cpu, pace| {
            let jobs = VecDeque::new();
            let (had, ready, taken) = (0, false, None);
            threads.push(Thread {
                tid,
                pid,
                comm,
                vcpu,
                party,
                cpu,
                pace,
                jobs,
                had,
                ready,
                taken,
            });
        };
        for (at, vgpu) in setup.vgpus.iter().enumerate() {
            for (number, one) in vgpu.vcpus.iter().enumerate() {
                let pace = (one.runs, one.halts);
                add(vcpu(at, number), process(at), Some(number), at, one.cpu, pace);
            }
        }
        for (at, one) in setup.tasks.iter().enumerate() {
            let tid = 300 + at as i32;
            add((tid, "stress"), tid, None, machines, one.cpu, (one.runs, one.halts));
        }
        if threads.is_empty() {
            return None;
        }
        let mut cpus = Cpus {
            cpus: threads.iter().map(|one| (one.cpu, Cpu::default())).collect(),
            threads,
            heap: BinaryHeap::new(),
            pushed: 0,
            now: 0,
            random: setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            events: Vec::new(),
            arrivals: Vec::new(),
            ledger: Taken::new(machines + 1),
        };
        for at in 0..cpus.threads.len() {
            if cpus.threads[at].pace.0 > 0 {
                let begins = (cpus.unit() * MS as f64) as i64;
                cpus.push(begins, What::Wakes(at));
            }
        }
        Some(cpus)
    }

    /// A CPU that no thread of a machine is pinned to: the driver's threads and its interrupts have it.
    pub fn spare(&self) -> u32 {
        self.cpus.keys().last().map_or(0, |last| last + 1)
    }

    /// The CPU of a virtual CPU.
    pub fn of(&self, vgpu: usize, number: usize) -> Option<u32> {
        let (tid, _) = vcpu(vgpu, number);
        self.threads.iter().find(|one| one.tid == tid).map(|one| one.cpu)
    }

    /// When something happens next.
    pub fn next(&self) -> Option<i64> {
        self.heap.peek().map(|Reverse((time, ..))| *time)
    }

    /// Does what happens next.
    pub fn step(&mut self) {
        let Some(Reverse((time, _, what))) = self.heap.pop() else { return };
        self.until(time);
        match what {
            What::Wakes(at) => {
                let work = (self.threads[at].pace.0 as f64 * self.around_one()) as i64;
                self.wake(at, Job { left: work.max(LEAST), load: None });
            }
            What::Turn(cpu, turn) => self.turn(cpu, turn),
        }
    }

    /// The guest's program thinks before its next request, on the first virtual CPU.
    ///
    /// False if the machine has none.
    pub fn thinks(&mut self, now: i64, vgpu: usize, load: usize, thinks: i64) -> bool {
        let (tid, _) = vcpu(vgpu, 0);
        let Some(at) = self.threads.iter().position(|one| one.tid == tid) else { return false };
        self.until(now);
        self.wake(at, Job { left: thinks.max(LEAST), load: Some(load) });
        true
    }

    /// The trace ends: waits that last are booked.
    pub fn finish(&mut self, now: i64) {
        self.until(now);
        for at in 0..self.threads.len() {
            self.booked(at);
        }
    }

    fn push(&mut self, time: i64, what: What) {
        self.pushed += 1;
        self.heap.push(Reverse((time, self.pushed, what)));
    }

    /// A number from 0 to 1 (xorshift64*).
    fn unit(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn around_one(&mut self) -> f64 {
        0.5 + self.unit()
    }

    fn emit(&mut self, cpu: u32, who: Option<usize>, after: i64, name: &str, values: Vec<Value>) {
        let idle = (0, 0, "swapper");
        let (tid, pid, comm) = who
            .map_or(idle, |at| (self.threads[at].tid, self.threads[at].pid, self.threads[at].comm));
        let time = self.now + after;
        self.events.push(Event { time, cpu, tid, pid, comm, kind: kind(name), values });
    }

    /// The time since the last step, booked to whoever had it.
    fn until(&mut self, now: i64) {
        let passed = now - self.now;
        self.now = now;
        for cpu in self.cpus.values_mut() {
            let Some(current) = cpu.current else { continue };
            let party = self.threads[current].party;
            self.threads[current].had += passed;
            if let Some(job) = self.threads[current].jobs.front_mut() {
                job.left -= passed;
            }
            cpu.floor = cpu.floor.max(self.threads[current].had);
            for &waits in &cpu.ready {
                self.ledger.behind[self.threads[waits].party][party] += passed;
            }
        }
    }

    fn wake(&mut self, at: usize, job: Job) {
        self.threads[at].jobs.push_back(job);
        if self.threads[at].ready {
            return;
        }
        let (number, tid, comm) =
            (self.threads[at].cpu, self.threads[at].tid, self.threads[at].comm);
        let Some(cpu) = self.cpus.get_mut(&number) else { return };
        cpu.ready.push(at);
        let (current, floor) = (cpu.current, cpu.floor);
        let thread = &mut self.threads[at];
        thread.ready = true;
        thread.had = thread.had.max(floor - CREDIT);
        let had = thread.had;
        let number_of = |n: i64| Value::Number(n);
        let values =
            vec![Value::Text(comm), number_of(tid.into()), number_of(20), number_of(number.into())];
        self.emit(number, current, 0, "sched_wakeup", values);
        match current {
            None => self.switch(number, 0),
            Some(current) if self.threads[current].had - had > MS => self.switch(number, 0),
            // The queue is longer now.
            Some(_) => self.goes_on(number),
        }
    }

    /// A job or a slice may have ended.
    fn turn(&mut self, number: u32, turn: u64) {
        let Some(cpu) = self.cpus.get(&number).filter(|cpu| cpu.turn == turn) else { return };
        let Some(current) = cpu.current else { return };
        let over = self.now - cpu.since >= cpu.slice && !cpu.ready.is_empty();
        if self.threads[current].jobs.front().is_some_and(|job| job.left <= 0) {
            let job = self.threads[current].jobs.pop_front();
            match job.and_then(|job| job.load) {
                Some(load) => self.arrivals.push((self.threads[current].party, load)),
                None => {
                    let sleeps = self.threads[current].pace.1 as f64 * self.around_one();
                    self.push(self.now + sleeps as i64, What::Wakes(current));
                }
            }
            if self.threads[current].jobs.is_empty() {
                return self.switch(number, 1);
            }
        }
        match over {
            true => self.switch(number, 0),
            false => self.goes_on(number),
        }
    }

    /// When the current thread of a CPU is looked at again.
    fn goes_on(&mut self, number: u32) {
        let now = self.now;
        let Some(cpu) = self.cpus.get_mut(&number) else { return };
        let Some(current) = cpu.current else { return };
        cpu.slice = (PERIOD / (cpu.ready.len() as i64 + 1)).max(MS);
        cpu.turn += 1;
        let turn = cpu.turn;
        let job = self.threads[current].jobs.front().map_or(0, |job| job.left.max(0));
        let slice = match cpu.ready.is_empty() {
            true => i64::MAX,
            false => (cpu.since + cpu.slice - now).max(0),
        };
        // Where a slice is over and nobody has had less, the next ms decides.
        let slice = if slice == 0 { MS } else { slice };
        self.push(now + job.min(slice), What::Turn(number, turn));
    }

    /// Another thread gets the CPU; the current one leaves it in this state, as the kernel writes it.
    fn switch(&mut self, number: u32, state: i64) {
        let threads = &self.threads;
        let Some(cpu) = self.cpus.get_mut(&number) else { return };
        let prev = cpu.current;
        let least = cpu.ready.iter().copied().min_by_key(|at| (threads[*at].had, *at));
        let stays = prev.filter(|_| state == 0);
        if let (Some(prev), Some(least)) = (stays, least)
            && threads[prev].had <= threads[least].had
        {
            return self.goes_on(number);
        }
        cpu.ready.retain(|at| Some(*at) != least);
        cpu.ready.extend(stays);
        cpu.current = least;
        cpu.since = self.now;
        if least.is_none() {
            // Nobody is looked at.
            cpu.turn += 1;
        }
        self.told(number, prev, least, state);
        self.booked_switch(number, prev, least, state);
        self.goes_on(number);
    }

    /// The events of a switch.
    fn told(&mut self, number: u32, prev: Option<usize>, next: Option<usize>, state: i64) {
        let name = |at: Option<usize>| at.map_or("swapper", |at| self.threads[at].comm);
        let tid = |at: Option<usize>| at.map_or(0, |at| i64::from(self.threads[at].tid));
        // In the kernel's own code, a preempted thread has one more bit.
        let bits = if state == 0 && self.random.is_multiple_of(8) { 0x100 } else { state };
        let n = Value::Number;
        let values = vec![
            Value::Text(name(prev)),
            n(tid(prev)),
            n(20),
            n(bits),
            Value::Text(name(next)),
            n(tid(next)),
            n(20),
        ];
        let vcpu = |at: Option<usize>| at.and_then(|at| self.threads[at].vcpu);
        let (left, entered) = (vcpu(prev), vcpu(next));
        if left.is_some() {
            let reason = if state == 0 { INTERRUPTED } else { HALTS };
            self.emit(number, prev, 0, "kvm_exit", vec![n(reason), n(0)]);
        }
        self.emit(number, prev, 0, "sched_switch", values);
        if let Some(vcpu) = entered {
            self.emit(number, next, 300, "kvm_entry", vec![n(vcpu as i64)]);
        }
    }

    fn booked_switch(&mut self, number: u32, prev: Option<usize>, next: Option<usize>, state: i64) {
        let host = self.ledger.direct.len() - 1;
        let party = |threads: &[Thread], at: usize| threads[at].party;
        if let (Some(prev), Some(next), 0) = (prev, next, state) {
            let (of, by) = (party(&self.threads, prev), party(&self.threads, next));
            self.ledger.direct[of][by] += 1;
            self.threads[prev].taken = Some((by, None));
        } else if let Some(prev) = prev {
            self.threads[prev].ready = false;
            self.ledger.halts[self.threads[prev].party] += 1;
        }
        let Some(next) = next else { return };
        self.booked(next);
        let by = party(&self.threads, next);
        let waiting = self.cpus.get(&number).map_or_else(Vec::new, |cpu| cpu.ready.clone());
        for at in waiting {
            let thread = &mut self.threads[at];
            if let Some((_, first @ None)) = &mut thread.taken
                && by != thread.party
                && by != host
            {
                *first = Some(by);
            }
        }
    }

    /// A thread's wait since its CPU was taken is over.
    fn booked(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        if let Some((by, first)) = thread.taken.take() {
            self.ledger.eventual[thread.party][first.unwrap_or(by)] += 1;
        }
    }
}
