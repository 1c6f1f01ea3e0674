//! What would have been: the requests that were observed, under another policy of GVT-g's scheduler.
//!
//! # How
//! A guest is taken to send its next request as long after the end of the one before as it did ([`Replay::observed`]), and
//! each request to run as long as it did. A model of the kernel's scheduler (drivers/gpu/drm/i915/gvt/sched_policy.c)
//! then says when each would have run: a tick each ms, slices by weight, a balance each 100 ms, a reset each second. The
//! replay of the policy that was in force shows how good the model is.
//!
//! # What fools it
//! A guest that sends by a clock, and not when its last request is done. Requests that would have run faster or slower
//! beside others. Virtual GPUs that send nothing are in no event: their weight is what makes the replay take as long as
//! was observed ([`Replay::unused_weight`]). Debts of before the trace are not known.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::request::{Outcome, Request, Stage};

const MS: i64 = 1_000_000;
const BALANCE: i64 = 100 * MS;
/// Balances from reset to reset.
const STAGES: u64 = 10;
/// A replay that takes this many times as long as was observed is given up.
const LONGEST: i64 = 64;

/// What GVT-g's scheduler may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether a virtual GPU whose slice is used up may have what nobody else wants.
    pub work_conserving: bool,
    /// Whether what is left or owed is carried over to the next 100 ms.
    pub debts: bool,
}

impl Policy {
    /// As the kernel does it.
    pub const KERNEL: Policy = Policy { work_conserving: false, debts: true };
}

/// When a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    At(i64),
    /// So long after the end of another request.
    After(usize, i64),
}

#[derive(Clone, Copy, Debug)]
struct Job {
    tenant: usize,
    engine: usize,
    runs: i64,
    comes: Comes,
}

/// When a request came, began and ended, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// It came into the queue of its virtual GPU.
    pub queued: i64,
    /// It began to run.
    pub from: i64,
    /// It was done.
    pub to: i64,
}

/// The requests of a device, to be replayed.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    jobs: Vec<Job>,
    /// The tenant of each request and when it came, began and ended, as observed.
    pub observed: Vec<(usize, Times)>,
    /// Requests that are left out, since their end or their virtual GPU was not seen.
    pub left_out: usize,
    tenants: Vec<usize>,
    engines: Vec<usize>,
    phase: i64,
    span: (i64, i64),
    hand_over: i64,
}

impl Replay {
    /// The requests of virtual GPUs of a device.
    pub fn new(requests: &[Request], device: i64) -> Replay {
        let mut out = Replay::default();
        let mut used = Vec::new();
        for request in requests.iter().filter(|one| one.device == device) {
            let queued = request.when(Stage::VgpuQueued);
            let (Some(queued), Some(from), Some(to)) = (queued, request.began(), request.ended())
            else {
                out.left_out += 1;
                continue;
            };
            if request.outcome != Outcome::Done {
                out.left_out += 1;
                continue;
            }
            used.push((request, Times { queued, from, to }));
        }
        used.sort_by_key(|(_, times)| (times.queued, times.from));
        let places: BTreeSet<usize> = used.iter().map(|(one, _)| one.tenant).collect();
        out.tenants = places.into_iter().collect();
        let engines: BTreeSet<usize> = used.iter().map(|(one, _)| one.engine).collect();
        out.engines = engines.into_iter().collect();
        // The device was given by a tick if it stood still before.
        let submitted = used.iter().filter_map(|(one, times)| {
            one.when(Stage::VgpuSubmitted).map(|handed| (handed, times.from))
        });
        let mut hand_over: Vec<i64> = submitted.map(|(handed, from)| from - handed).collect();
        hand_over.sort_unstable();
        out.hand_over = hand_over.get(hand_over.len() / 2).copied().unwrap_or(0).clamp(0, MS);
        out.span.0 = used.iter().map(|(_, times)| times.queued).min().unwrap_or(0);
        out.span.1 = used.iter().map(|(_, times)| times.to).max().unwrap_or(0);
        out.phase = phase(used.iter().filter_map(|(one, _)| one.when(Stage::VgpuSubmitted)));
        out.jobs = jobs(&used);
        out.observed = used.iter().map(|(one, times)| (one.tenant, *times)).collect();
        out
    }

    /// The tenants whose requests these are.
    pub fn tenants(&self) -> &[usize] {
        &self.tenants
    }

    /// When each request would have come, begun and ended, in the order of [`Replay::observed`]; `None` if the requests
    /// do not end in a reasonable time.
    ///
    /// `weights` are by tenant, 1 for those that are not there; `unused` is the weight of virtual GPUs that send nothing.
    pub fn run(
        &self,
        policy: Policy,
        weights: &BTreeMap<usize, f64>,
        unused: f64,
    ) -> Option<Vec<Times>> {
        let weight = |tenant: &usize| weights.get(tenant).copied().unwrap_or(1.0).max(1e-6);
        let weights: Vec<f64> = self.tenants.iter().map(weight).collect();
        let total = weights.iter().sum::<f64>() + unused;
        let allocated = weights.iter().map(|one| (BALANCE as f64 * one / total) as i64).collect();
        Device::new(self, policy, allocated).run()
    }

    /// The weight of virtual GPUs that send nothing, with which the kernel's policy takes as long as was observed; 0 if
    /// it takes no less without any.
    pub fn unused_weight(&self, weights: &BTreeMap<usize, f64>) -> f64 {
        let truth: i64 = self.observed.iter().map(|(_, times)| times.to - times.queued).sum();
        let longer = |unused: f64| {
            let times = self.run(Policy::KERNEL, weights, unused);
            times.is_none_or(|all| all.iter().map(|one| one.to - one.queued).sum::<i64>() > truth)
        };
        let all: f64 =
            self.tenants.iter().map(|one| weights.get(one).copied().unwrap_or(1.0)).sum();
        // Below 2 % of the device it is noise of ticks.
        let (mut least, mut most) = (0.0, 0.02 * all);
        if longer(most) {
            return 0.0;
        }
        while !longer(most) {
            least = most;
            most *= 2.0;
            if most > 64.0 * all {
                return least;
            }
        }
        for _ in 0..12 {
            let middle = f64::midpoint(least, most);
            if longer(middle) { most = middle } else { least = middle }
        }
        f64::midpoint(least, most)
    }
}

/// Where in the ms the scheduler ticks: the most frequent place of hand-overs, ns.
fn phase(handed: impl Iterator<Item = i64>) -> i64 {
    const BIN: i64 = 10_000;
    let mut bins: BTreeMap<i64, (u64, i64)> = BTreeMap::new();
    for time in handed {
        let place = time.rem_euclid(MS);
        let bin = bins.entry(place / BIN).or_insert((0, place));
        bin.0 += 1;
        bin.1 = bin.1.min(place);
    }
    bins.values().max_by_key(|(count, _)| *count).map_or(0, |(_, place)| *place)
}

/// When requests come: after the last end of the same tenant's on the same engine that no other request came after.
fn jobs(used: &[(&Request, Times)]) -> Vec<Job> {
    let mut ends: BTreeMap<(usize, usize), Vec<(i64, usize)>> = BTreeMap::new();
    for (at, (request, times)) in used.iter().enumerate() {
        ends.entry((request.tenant, request.engine)).or_default().push((times.to, at));
    }
    let mut passed: BTreeMap<(usize, usize), (usize, Vec<usize>)> = BTreeMap::new();
    ends.values_mut().for_each(|ends| ends.sort_unstable());
    let mut out = Vec::with_capacity(used.len());
    for (request, times) in used {
        let key = (request.tenant, request.engine);
        let ends = &ends[&key];
        let (next, free) = passed.entry(key).or_default();
        while let Some((_, at)) = ends.get(*next).filter(|(to, _)| *to <= times.queued) {
            free.push(*at);
            *next += 1;
        }
        let after = free.pop();
        let comes = match after {
            Some(at) => Comes::After(at, times.queued - used[at].1.to),
            None => Comes::At(times.queued),
        };
        let (tenant, engine, runs) = (request.tenant, request.engine, request.executed());
        out.push(Job { tenant, engine, runs, comes });
    }
    out
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Ended(usize),
    Came(usize),
    Tick,
}

#[derive(Clone, Debug, Default)]
struct Vgpu {
    queues: Vec<VecDeque<usize>>,
    running: usize,
    left: i64,
    allocated: i64,
}

impl Vgpu {
    fn wants(&self) -> bool {
        self.running > 0 || self.queues.iter().any(|queue| !queue.is_empty())
    }
}

/// A device under GVT-g's scheduler.
struct Device<'a> {
    replay: &'a Replay,
    policy: Policy,
    vgpus: Vec<Vgpu>,
    /// By how long ago they had the device.
    order: VecDeque<usize>,
    owner: Option<usize>,
    owned_since: i64,
    /// Who gets the device as soon as no engine works.
    waits: Option<Option<usize>>,
    engines: Vec<Option<usize>>,
    followers: Vec<Vec<(usize, i64)>>,
    heap: BinaryHeap<Reverse<(i64, What)>>,
    times: Vec<Times>,
    open: usize,
    balances: u64,
    balanced: i64,
    now: i64,
}

impl<'a> Device<'a> {
    fn new(replay: &'a Replay, policy: Policy, allocated: Vec<i64>) -> Device<'a> {
        let jobs = &replay.jobs;
        let mut followers = vec![Vec::new(); jobs.len()];
        let mut heap = BinaryHeap::new();
        for (at, job) in jobs.iter().enumerate() {
            match job.comes {
                Comes::At(time) => heap.push(Reverse((time, What::Came(at)))),
                Comes::After(before, gap) => followers[before].push((at, gap)),
            }
        }
        let start = replay.span.0 - (replay.span.0 - replay.phase).rem_euclid(MS);
        heap.push(Reverse((start, What::Tick)));
        let queues = vec![VecDeque::new(); replay.engines.len()];
        let vgpu = |allocated| Vgpu { queues: queues.clone(), allocated, ..Vgpu::default() };
        Device {
            vgpus: allocated.into_iter().map(vgpu).collect(),
            order: (0..replay.tenants.len()).collect(),
            owner: None,
            owned_since: 0,
            waits: None,
            engines: vec![None; replay.engines.len()],
            followers,
            heap,
            times: vec![Times::default(); jobs.len()],
            open: jobs.len(),
            balances: 0,
            balanced: i64::MIN,
            now: start,
            replay,
            policy,
        }
    }

    fn run(mut self) -> Option<Vec<Times>> {
        let (from, to) = self.replay.span;
        let limit = to.saturating_add((to - from).saturating_mul(LONGEST)).saturating_add(BALANCE);
        while self.open > 0 {
            let Reverse((time, what)) = self.heap.pop()?;
            if time > limit {
                return None;
            }
            self.now = time;
            match what {
                What::Tick => {
                    self.tick();
                    self.heap.push(Reverse((time + MS, What::Tick)));
                }
                What::Came(job) => {
                    let (tenant, engine) = self.place(job);
                    self.times[job].queued = time;
                    self.vgpus[tenant].queues[engine].push_back(job);
                }
                What::Ended(job) => self.ended(job),
            }
            self.hand_over();
        }
        Some(self.times)
    }

    /// The places of a request's tenant and engine.
    fn place(&self, job: usize) -> (usize, usize) {
        let job = &self.replay.jobs[job];
        let tenant = self.replay.tenants.binary_search(&job.tenant).unwrap_or(0);
        (tenant, self.replay.engines.binary_search(&job.engine).unwrap_or(0))
    }

    fn ended(&mut self, job: usize) {
        let (tenant, engine) = self.place(job);
        self.engines[engine] = None;
        self.vgpus[tenant].running -= 1;
        self.open -= 1;
        for &(next, gap) in &self.followers[job] {
            self.heap.push(Reverse((self.now + gap, What::Came(next))));
        }
        if self.waits.is_some() {
            self.decide();
        }
    }

    /// What the owner has queued goes to the engines, unless another is to have the device.
    fn hand_over(&mut self) {
        let Some(owner) = self.owner.filter(|_| self.waits.is_none()) else { return };
        for engine in 0..self.engines.len() {
            if self.engines[engine].is_some() {
                continue;
            }
            let Some(job) = self.vgpus[owner].queues[engine].pop_front() else { continue };
            let from = self.now + self.replay.hand_over;
            let to = from + self.replay.jobs[job].runs;
            (self.times[job].from, self.times[job].to) = (from, to);
            self.engines[engine] = Some(job);
            self.vgpus[owner].running += 1;
            self.heap.push(Reverse((to, What::Ended(job))));
        }
    }

    fn tick(&mut self) {
        if self.now >= self.balanced.saturating_add(BALANCE) {
            let reset = self.balances.is_multiple_of(STAGES) || !self.policy.debts;
            for vgpu in &mut self.vgpus {
                vgpu.left = if reset { vgpu.allocated } else { vgpu.left + vgpu.allocated };
            }
            self.balances += 1;
            self.balanced = self.now;
        }
        self.decide();
    }

    /// Charges the owner and finds the next.
    fn decide(&mut self) {
        if let Some(owner) = self.owner {
            self.vgpus[owner].left -= self.now - self.owned_since;
            self.owned_since = self.now;
        }
        let next = match self.waits {
            Some(next) => next,
            None => self.choose(),
        };
        if next == self.owner {
            self.waits = None;
        } else if self.engines.iter().any(Option::is_some) {
            self.waits = Some(next);
        } else {
            (self.owner, self.owned_since, self.waits) = (next, self.now, None);
        }
    }

    fn choose(&mut self) -> Option<usize> {
        let wants = |at: &usize| self.vgpus[*at].wants();
        let within = self.order.iter().position(|at| wants(at) && self.vgpus[*at].left > 0);
        let any = || self.order.iter().position(wants).filter(|_| self.policy.work_conserving);
        let chosen = self.order.remove(within.or_else(any)?)?;
        self.order.push_back(chosen);
        Some(chosen)
    }
}
