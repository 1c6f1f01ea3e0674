//! The scheduler of virtual GPUs, and the host's driver below it.
//!
//! # How
//! A tick balances slices where 100 ms have passed, charges the virtual GPU that has the device, and looks for the next
//! one: of those with work and something left of their slice, who had the device the longest ago. The switch waits
//! until no engine has work, and no more is handed over until then. A request is never taken off an engine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::cpus::{self, Cpus};
use super::events::{Event, Value, kind};
use super::{Account, Load, Setup, Trace, Truth};

const MS: i64 = 1_000_000;
const BALANCE: i64 = 100 * MS;
const STAGES: u64 = 10;
/// From the thread that hands a request over to the engine.
const HAND_OVER: i64 = 20_000;
/// Until a thread that is woken runs.
const WAKES: i64 = 2_000;
/// From when a guest's driver has a request until what it depends on is done, and until it is handed over.
const RESOLVES: i64 = 2_000;
const HANDS: i64 = 5_000;
/// How long the host takes at least to catch what a guest hands over, and how much longer at most, ns.
const CATCHES: (i64, i64) = (3_000, 9_000);
/// How long a guest takes at least to hear of the end of a request, and how much longer at most, ns.
const HEARS: (i64, i64) = (15_000, 60_000);
/// From the end of a request to the thread that is woken for it.
const AFTER: i64 = 10_000;
const ENGINES: usize = 3;
const SERVICE: (i32, &str) = (200, "gvt_service_thr");
const WORKLOAD_THREADS: [(i32, &str); ENGINES] =
    [(210, "gvt workload 0"), (211, "gvt workload 1"), (212, "gvt workload 2")];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Tick,
    /// The first request of a load is prepared.
    Begins {
        vgpu: usize,
        load: usize,
    },
    Arrives {
        vgpu: usize,
        load: usize,
    },
    Ends {
        engine: usize,
    },
    /// The host catches what a guest has handed over.
    Crosses {
        vgpu: usize,
        engine: usize,
    },
    /// A guest hears that a request is done.
    Told {
        vgpu: usize,
        engine: usize,
    },
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Workload {
    load: usize,
    /// Which of the load's requests, from 1.
    number: i64,
    made: i64,
    queued: i64,
    runs: i64,
    address: i64,
}

#[derive(Clone, Debug, Default)]
struct State {
    queues: [VecDeque<Workload>; ENGINES],
    /// In the guest: what waits in its driver, what is on its way to the host, and how many were handed over and are not
    /// known to be done.
    in_guest: [VecDeque<Workload>; ENGINES],
    crossing: [VecDeque<Workload>; ENGINES],
    handed: [u32; ENGINES],
    /// Requests of each load of which it is not yet decided when they come.
    to_come: Vec<u32>,
    /// Requests that will come or have come, and are not done.
    on_their_way: u32,
    /// Requests of each load that have come, and that are done.
    came: Vec<i64>,
    done: Vec<i64>,
    allocated: i64,
    left: i64,
    sched_in: i64,
    sequence: [u32; ENGINES],
}

#[derive(Clone, Copy, Debug)]
struct Running {
    vgpu: usize,
    work: Workload,
    submitted: i64,
    from: i64,
    to: i64,
    sequence: u32,
    global: u32,
}

struct Host<'a> {
    setup: &'a Setup,
    trace: Trace,
    heap: BinaryHeap<Reverse<(i64, u64, What)>>,
    pushed: u64,
    now: i64,
    vgpus: Vec<State>,
    /// The run queue: who had the device the longest ago comes first.
    queue: Vec<usize>,
    current: Option<usize>,
    next: Option<Option<usize>>,
    need_reschedule: bool,
    engines: [Option<Running>; ENGINES],
    global: [u32; ENGINES],
    expires: i64,
    stage: u64,
    random: u64,
    cpus: Option<Cpus>,
    /// The buffers in the device's memory: whose, which, and their bytes; what was used the longest ago comes first.
    present: Vec<(usize, usize, u64)>,
}

/// Simulates until all requests are done, and at least as long as the set-up says.
pub fn run(setup: &Setup) -> Trace {
    let mut host = Host::new(setup);
    loop {
        let of_gpu = host.heap.peek().map(|Reverse((time, ..))| *time);
        let of_cpus = host.cpus.as_ref().and_then(Cpus::next);
        if of_cpus.is_some() && !host.unfinished() && host.now >= setup.lasts {
            break;
        }
        if let Some(time) = of_cpus.filter(|time| of_gpu.is_none_or(|gpu| *time < gpu)) {
            host.account(time);
            host.now = time;
            host.guests();
            continue;
        }
        let Some(Reverse((time, _, what))) = host.heap.pop() else { break };
        host.account(time);
        host.now = time;
        match what {
            What::Tick => {
                host.tick();
                if host.unfinished() || host.now < setup.lasts {
                    host.push(time + MS, What::Tick);
                }
            }
            What::Begins { vgpu, load } => host.begins(vgpu, load),
            What::Arrives { vgpu, load } => host.arrives(vgpu, load),
            What::Ends { engine } => host.ends(engine),
            What::Crosses { vgpu, engine } => host.crosses(vgpu, engine),
            What::Told { vgpu, engine } => host.told(vgpu, engine),
        }
    }
    host.trace.ended = host.now;
    if let Some(mut cpus) = host.cpus.take() {
        cpus.finish(host.now);
        host.trace.events.append(&mut cpus.events);
        host.trace.taken = cpus.ledger;
    }
    host.trace.events.sort_by_key(|event| event.time);
    host.trace.guests.iter_mut().for_each(|all| all.sort_by_key(|event| event.time));
    host.trace
}

impl<'a> Host<'a> {
    fn new(setup: &'a Setup) -> Host<'a> {
        let mut host = Host {
            setup,
            trace: Trace::default(),
            heap: BinaryHeap::new(),
            pushed: 0,
            now: 0,
            vgpus: Vec::new(),
            queue: (0..setup.vgpus.len()).collect(),
            current: None,
            next: None,
            need_reschedule: false,
            engines: [None; ENGINES],
            global: [0; ENGINES],
            expires: 0,
            stage: 0,
            random: setup.seed | 1,
            cpus: Cpus::new(setup),
            present: Vec::new(),
        };
        host.trace.accounts = vec![Account::default(); setup.vgpus.len()];
        host.trace.guests = vec![Vec::new(); setup.vgpus.len()];
        for (at, vgpu) in setup.vgpus.iter().enumerate() {
            let to_come = vgpu.loads.iter().map(|load| load.requests).collect();
            let none = vec![0; vgpu.loads.len()];
            let (came, done) = (none.clone(), none);
            host.vgpus.push(State { to_come, came, done, ..State::default() });
            for (place, load) in vgpu.loads.iter().enumerate() {
                for _ in 0..load.depth {
                    match vgpu.vcpus.is_empty() {
                        true => host.will_come(at, place, load.from),
                        false => host.push(load.from, What::Begins { vgpu: at, load: place }),
                    }
                }
            }
            host.object(at, true);
        }
        // The timer's phase is not that of the guests.
        let phase = (host.unit() * MS as f64) as i64;
        host.push(phase, What::Tick);
        host
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

    /// A number from 0 to 1 that belongs to a request, whatever the scheduler does: the n-th that comes or ends.
    fn of_request(&self, vgpu: usize, load: usize, ends: usize) -> f64 {
        let state = &self.vgpus[vgpu];
        let number = if ends == 0 { state.came[load] } else { state.done[load] };
        let place = ((vgpu << 8 | load) << 1 | ends) as u64;
        let mut mixed = self.setup.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (number as u64) << 20).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 32) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn unfinished(&self) -> bool {
        self.vgpus.iter().any(|vgpu| vgpu.on_their_way > 0 || vgpu.to_come.iter().any(|n| *n > 0))
    }

    fn has_work(&self, vgpu: usize) -> bool {
        let running = |one: &Option<Running>| one.is_some_and(|run| run.vgpu == vgpu);
        self.vgpus[vgpu].queues.iter().any(|queue| !queue.is_empty())
            || self.engines.iter().any(running)
    }

    fn is_busy(&self) -> bool {
        self.engines.iter().any(Option::is_some)
    }

    /// The ledger of the time since the last event.
    fn account(&mut self, until: i64) {
        let passed = until - self.now;
        let user = self.engines.iter().flatten().map(|run| run.vgpu).next();
        for (at, vgpu) in self.vgpus.iter().enumerate() {
            if vgpu.queues.iter().all(VecDeque::is_empty) {
                continue;
            }
            match user {
                None if vgpu.left <= 0 => self.trace.accounts[at].withheld += passed,
                Some(user) if user != at => self.trace.accounts[at].behind += passed,
                _ => {}
            }
        }
    }

    fn emit(&mut self, (tid, comm): (i32, &'static str), after: i64, name: &str, values: &[i64]) {
        let values = values.iter().map(|value| Value::Number(*value)).collect();
        let vgpu = usize::try_from((tid - cpus::process(0)) / 10).ok().filter(|_| tid > 1000);
        let cpu = match (&self.cpus, vgpu) {
            (Some(cpus), Some(vgpu)) => cpus.of(vgpu, 0).unwrap_or(cpus.spare()),
            (Some(cpus), None) => cpus.spare(),
            (None, _) => u32::from(tid != 0) * (tid as u32 % 4),
        };
        let pid = vgpu.map_or(tid, cpus::process);
        let time = self.now + after;
        self.trace.events.push(Event { time, cpu, tid, pid, comm, kind: kind(name), values });
    }

    /// The thread of a machine's virtual CPU, where its accesses to the device are caught.
    fn vcpu(vgpu: usize) -> (i32, &'static str) {
        cpus::vcpu(vgpu, 0)
    }

    /// The CPUs do what comes next, and requests of guests come of it.
    fn guests(&mut self) {
        let Some(cpus) = &mut self.cpus else { return };
        cpus.step();
        self.tell();
        let arrivals =
            self.cpus.as_mut().map_or_else(Vec::new, |c| std::mem::take(&mut c.arrivals));
        for (vgpu, load) in arrivals {
            self.arrives(vgpu, load);
        }
    }

    /// What the CPUs have to tell, in the order in which it happened.
    fn tell(&mut self) {
        if let Some(cpus) = &mut self.cpus {
            self.trace.events.append(&mut cpus.events);
        }
    }

    fn begins(&mut self, vgpu: usize, load: usize) {
        self.thinks(vgpu, load, 0);
    }

    /// The guest prepares the next request of a load, if there is one.
    fn thinks(&mut self, vgpu: usize, load: usize, thinks: i64) {
        let state = &mut self.vgpus[vgpu];
        if self.setup.vgpus[vgpu].vcpus.is_empty() {
            return self.will_come(vgpu, load, self.now + thinks);
        }
        if state.to_come[load] > 0 {
            state.to_come[load] -= 1;
            state.on_their_way += 1;
            if let Some(cpus) = &mut self.cpus {
                cpus.thinks(self.now, vgpu, load, thinks);
            }
            self.tell();
        }
    }

    fn object(&mut self, vgpu: usize, made: bool) {
        let setup = self.setup;
        for (number, size) in (0i64..).zip(&setup.vgpus[vgpu].buffers) {
            let address =
                0xffff_8881_0000_0000u64 as i64 + (vgpu as i64) * 0x1000 + number * 0x100_0000;
            match made {
                true => {
                    let values = [address, *size as i64];
                    self.emit(Host::vcpu(vgpu), 0, "i915_gem_object_create", &values);
                }
                false => self.emit(Host::vcpu(vgpu), 0, "i915_gem_object_destroy", &[address]),
            }
        }
        if !made {
            self.present.retain(|one| one.0 != vgpu);
        }
    }

    /// The buffers of a virtual GPU come into the device's memory, and others leave it for them.
    fn bind(&mut self, vgpu: usize, thread: (i32, &'static str)) {
        let setup = self.setup;
        for (buffer, size) in setup.vgpus[vgpu].buffers.iter().enumerate() {
            let known = self.present.iter().position(|one| *one == (vgpu, buffer, *size));
            if let Some(at) = known {
                self.present.remove(at);
            }
            let held = |of: &[(usize, usize, u64)]| of.iter().map(|one| one.2).sum::<u64>();
            while known.is_none()
                && !self.present.is_empty()
                && held(&self.present) + size > setup.memory
            {
                let (.., left) = self.present.remove(0);
                self.trace.evicted.0 += 1;
                self.trace.evicted.1 += left;
                self.emit(thread, 1_000, "i915_gem_evict", &[0, 1, left as i64, 0, 0]);
            }
            self.present.push((vgpu, buffer, *size));
        }
    }

    /// The next request of a load comes at a time, if there is one.
    fn will_come(&mut self, vgpu: usize, load: usize, time: i64) {
        let state = &mut self.vgpus[vgpu];
        if state.to_come[load] > 0 {
            state.to_come[load] -= 1;
            state.on_their_way += 1;
            self.push(time, What::Arrives { vgpu, load });
        }
    }

    fn arrives(&mut self, vgpu: usize, load: usize) {
        let Load { engine, runs, spread, .. } = self.setup.vgpus[vgpu].loads[load];
        self.vgpus[vgpu].came[load] += 1;
        let factor = 1.0 + spread * (2.0 * self.of_request(vgpu, load, 0) - 1.0);
        let runs = (runs as f64 * factor) as i64;
        // The slab gives addresses again.
        let address = 0xffff_8882_0000_0000u64 as i64
            + ((vgpu as i64) << 24)
            + ((load as i64) << 16)
            + (self.vgpus[vgpu].came[load] % 32) * 0x200;
        let (made, number) = (self.now, self.vgpus[vgpu].came[load]);
        let work = Workload { load, number, made, queued: made, runs, address };
        if self.setup.vgpus[vgpu].guest.is_none() {
            return self.queue(vgpu, engine, work);
        }
        self.guest_says(vgpu, &work, 0, "i915_gem_request_add");
        self.guest_says(vgpu, &work, RESOLVES, "i915_gem_request_submit");
        self.vgpus[vgpu].in_guest[engine].push_back(work);
        self.hand(vgpu, engine);
    }

    /// The host has a request of a virtual GPU.
    fn queue(&mut self, vgpu: usize, engine: usize, work: Workload) {
        let work = Workload { queued: self.now, ..work };
        let values = [0, vgpu as i64 + 1, engine as i64, work.address];
        self.vgpus[vgpu].queues[engine].push_back(work);
        self.emit(Host::vcpu(vgpu), 0, "gvt_workload_queue", &values);
        self.dispatch();
    }

    /// The guest's driver hands over what there is room for.
    fn hand(&mut self, vgpu: usize, engine: usize) {
        let ports = self.setup.vgpus[vgpu].guest.map_or(0, |guest| guest.ports);
        while self.vgpus[vgpu].handed[engine] < ports {
            let Some(work) = self.vgpus[vgpu].in_guest[engine].pop_front() else { return };
            self.guest_says(vgpu, &work, HANDS, "i915_gem_request_in");
            let state = &mut self.vgpus[vgpu];
            state.handed[engine] += 1;
            state.crossing[engine].push_back(work);
            let catches = self.takes(CATCHES);
            self.push(self.now + HANDS + catches, What::Crosses { vgpu, engine });
        }
    }

    fn crosses(&mut self, vgpu: usize, engine: usize) {
        if let Some(work) = self.vgpus[vgpu].crossing[engine].pop_front() {
            self.queue(vgpu, engine, work);
        }
    }

    fn told(&mut self, vgpu: usize, engine: usize) {
        self.vgpus[vgpu].handed[engine] -= 1;
        self.hand(vgpu, engine);
    }

    /// At least so long, and so much longer at most, ns.
    fn takes(&mut self, (at_least, longer): (i64, i64)) -> i64 {
        at_least + (self.unit() * longer as f64) as i64
    }

    /// A tracepoint of a guest's driver tells of a request.
    fn guest_says(&mut self, vgpu: usize, work: &Workload, after: i64, name: &str) {
        let Some(guest) = self.setup.vgpus[vgpu].guest else { return };
        let load = work.load as i64;
        let engine = self.setup.vgpus[vgpu].loads[work.load].engine as i64;
        let values = [0, load + 2, engine, work.number, work.number];
        let values = values.into_iter().chain((name == "i915_gem_request_in").then_some(0));
        let tid = 1_000 + work.load as i32;
        let event = Event {
            time: guest.shows(self.now + after),
            cpu: 0,
            tid,
            pid: tid,
            comm: "glxgears",
            kind: kind(name),
            values: values.map(Value::Number).collect(),
        };
        self.trace.guests[vgpu].push(event);
    }

    /// The threads of the engines take work of the virtual GPU that has the device.
    fn dispatch(&mut self) {
        let Some(vgpu) = self.current.filter(|_| !self.need_reschedule) else { return };
        for (engine, thread) in WORKLOAD_THREADS.into_iter().enumerate() {
            if self.engines[engine].is_some() {
                continue;
            }
            let state = &mut self.vgpus[vgpu];
            let Some(work) = state.queues[engine].pop_front() else { continue };
            state.sequence[engine] += 1;
            self.global[engine] += 1;
            let (sequence, global) = (state.sequence[engine], self.global[engine]);
            let from = self.now + HAND_OVER;
            let run = Running {
                vgpu,
                work,
                submitted: self.now + WAKES,
                from,
                to: from + work.runs,
                sequence,
                global,
            };
            self.engines[engine] = Some(run);
            self.bind(vgpu, thread);
            let (context, ring) = (context(vgpu), engine as i64);
            let (sequence, global) = (i64::from(sequence), i64::from(global));
            let submit = [0, vgpu as i64 + 1, ring, work.address, context, sequence];
            self.emit(thread, WAKES, "gvt_workload_submit", &submit);
            let request = [0, context, ring, sequence, 0];
            self.emit(thread, 5_000, "i915_gem_request_add", &request);
            let request = [0, context, ring, sequence, global];
            self.emit(thread, 8_000, "i915_gem_request_submit", &request);
            let values = [0, context, ring, sequence, global, 0];
            self.emit(thread, HAND_OVER, "i915_gem_request_in", &values);
            self.push(run.to + AFTER, What::Ends { engine });
        }
    }

    fn ends(&mut self, engine: usize) {
        let Some(run) = self.engines[engine].take() else { return };
        let Running { vgpu, work, submitted, from, to, .. } = run;
        let (ring, idle) = (engine as i64, (0, "swapper/0"));
        let (context, sequence, global) =
            (context(vgpu), i64::from(run.sequence), i64::from(run.global));
        self.emit(idle, -AFTER, "intel_engine_notify", &[0, ring, global, 1]);
        let request = [0, context, ring, sequence, global];
        self.emit(idle, 3_000 - AFTER, "i915_gem_request_out", &request);
        let done = [0, vgpu as i64 + 1, ring, work.address];
        self.emit(WORKLOAD_THREADS[engine], 0, "gvt_workload_complete", &done);
        self.emit(WORKLOAD_THREADS[engine], 2_000, "i915_gem_request_retire", &request);
        let Workload { made, queued, .. } = work;
        self.trace.requests.push(Truth { vgpu, engine, made, queued, submitted, from, to });
        let account = &mut self.trace.accounts[vgpu];
        account.busy += to - from;
        account.finished = account.finished.max(to);
        self.vgpus[vgpu].on_their_way -= 1;
        self.vgpus[vgpu].done[work.load] += 1;
        let load = &self.setup.vgpus[vgpu].loads[work.load];
        let around = self.of_request(vgpu, work.load, 1) - 0.5;
        let mut thinks = (load.thinks as f64 * (1.0 + load.spread * around)) as i64;
        if self.setup.vgpus[vgpu].guest.is_some() {
            let hears = self.takes(HEARS);
            self.guest_says(vgpu, &work, hears, "i915_gem_request_out");
            self.push(self.now + hears, What::Told { vgpu, engine });
            thinks += hears;
        }
        self.thinks(vgpu, work.load, thinks);
        if self.need_reschedule && !self.is_busy() {
            self.schedule();
        }
        self.dispatch();
    }

    fn tick(&mut self) {
        let setup = self.setup;
        let gone = |at: usize| setup.vgpus[at].leaves.is_some_and(|leaves| self.now >= leaves);
        let leaving: Vec<usize> =
            self.queue.iter().copied().filter(|at| gone(*at) && !self.has_work(*at)).collect();
        for at in leaving {
            self.queue.retain(|one| *one != at);
            self.object(at, false);
        }
        if self.now >= self.expires {
            self.balance();
            self.expires = self.now + BALANCE;
        }
        self.schedule();
        self.dispatch();
    }

    fn balance(&mut self) {
        let reset = self.stage.is_multiple_of(STAGES) || !self.setup.policy.debts;
        self.stage += 1;
        let weight = |at: usize| {
            let vgpu = &self.setup.vgpus[at];
            let changed = vgpu.changes.iter().rfind(|(from, _)| *from <= self.now);
            i64::from(changed.map_or(vgpu.weight, |(_, weight)| *weight))
        };
        let total: i64 = self.queue.iter().map(|at| weight(*at)).sum();
        for &at in &self.queue {
            let fair = BALANCE * weight(at) / total.max(1);
            let state = &mut self.vgpus[at];
            if reset {
                (state.allocated, state.left) = (fair, fair);
            } else {
                state.left += state.allocated;
            }
        }
    }

    /// Charges who has the device, chooses the next, and switches unless an engine has work.
    fn schedule(&mut self) {
        if let Some(current) = self.current {
            let state = &mut self.vgpus[current];
            state.left -= self.now - state.sched_in;
            state.sched_in = self.now;
        }
        let next = *self.next.get_or_insert(None);
        let next = if self.need_reschedule { next } else { self.pick() };
        self.next = Some(next);
        if next == self.current {
            self.need_reschedule = false;
            return;
        }
        self.need_reschedule = true;
        if self.is_busy() {
            return;
        }
        if let Some(before) = self.current {
            let values = [0, before as i64 + 1, self.vgpus[before].left];
            self.emit(SERVICE, 0, "gvt_sched_switch", &values);
        }
        self.current = next;
        if let Some(next) = next {
            self.vgpus[next].sched_in = self.now;
        }
        self.need_reschedule = false;
    }

    fn pick(&mut self) -> Option<usize> {
        let wants = |at: &&usize| self.has_work(**at);
        let mut busy = self.queue.iter().filter(wants);
        let conserving = self.setup.policy.work_conserving;
        let found = busy.clone().find(|at| self.vgpus[**at].left > 0).copied();
        let found = found.or_else(|| busy.next().copied().filter(|_| conserving))?;
        self.queue.retain(|at| *at != found);
        self.queue.push(found);
        Some(found)
    }
}

/// The context of a virtual GPU's shadow in the host's driver.
fn context(vgpu: usize) -> i64 {
    17 + 5 * vgpu as i64
}
