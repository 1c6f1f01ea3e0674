//! What a window of requests amounts to: use of engines, queues, waits and by whom.
//!
//! # How
//! Executions of an engine do not overlap, so the time of each tenant on an engine up to any moment is a running sum
//! ([`Usage`]), and the time that a tenant ran in any stretch is a difference of two of its values. A wait is taken
//! apart by such differences, and what is left of it is idle time of the engine.

use std::collections::{BTreeMap, BTreeSet};

use super::model::Model;
use super::request::{Outcome, Request, Stage};

/// A wait while the engine is idle is the host's where the idle time is no longer than this: two ticks of GVT-g's
/// scheduler, ns.
pub const TICKS: i64 = 2_000_000;

/// Time that adds up over stretches that do not overlap.
#[derive(Clone, Debug, Default)]
pub struct Running {
    /// Begin, end and the sum before, ns.
    pieces: Vec<(i64, i64, i64)>,
}

impl Running {
    /// Of stretches in any order; overlaps count once.
    pub fn new(mut stretches: Vec<(i64, i64)>) -> Running {
        stretches.sort_unstable();
        let mut pieces: Vec<(i64, i64, i64)> = Vec::with_capacity(stretches.len());
        for (from, to) in stretches {
            let before = pieces.last().map_or((i64::MIN, 0), |&(a, b, sum)| (b, sum + (b - a)));
            let from = from.max(before.0);
            if from < to {
                pieces.push((from, to, before.1));
            }
        }
        Running { pieces }
    }

    /// The sum up to a moment, ns.
    fn until(&self, now: i64) -> i64 {
        let at = self.pieces.partition_point(|piece| piece.0 < now);
        match at.checked_sub(1).map(|at| self.pieces[at]) {
            Some((from, to, sum)) => sum + to.min(now) - from,
            None => 0,
        }
    }

    /// The time within a window, ns.
    pub fn within(&self, from: i64, to: i64) -> i64 {
        if from < to { self.until(to) - self.until(from) } else { 0 }
    }

    /// The same of stretches that are longer than `at_least` after they are cut to the window, and how many these are.
    /// The stretches themselves must be longer.
    fn longer_within(&self, from: i64, to: i64, at_least: i64) -> (i64, usize) {
        let first = self.pieces.partition_point(|piece| piece.1 <= from);
        let last = self.pieces.partition_point(|piece| piece.0 < to);
        if from >= to || first >= last {
            return (0, 0);
        }
        let cut = |at: usize| self.pieces[at].1.min(to) - self.pieces[at].0.max(from);
        let mut ends = vec![first, last - 1];
        ends.dedup();
        let short: Vec<i64> =
            ends.into_iter().map(cut).filter(|length| *length <= at_least).collect();
        (self.within(from, to) - short.iter().sum::<i64>(), last - first - short.len())
    }

    /// What of a window is not covered, in the order of time.
    pub(super) fn uncovered(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        let first = self.pieces.partition_point(|piece| piece.1 <= from);
        let (mut out, mut at) = (Vec::new(), from);
        for &(begin, end, _) in self.pieces[first..].iter().take_while(|piece| piece.0 < to) {
            if at < begin {
                out.push((at, begin));
            }
            at = at.max(end);
        }
        if at < to {
            out.push((at, to));
        }
        out
    }

    /// How long both this and another are, ns. In one pass over both: each may have millions of stretches.
    pub(super) fn overlap(&self, other: &Running) -> i64 {
        let (mut own, mut others) = (self.pieces.iter().peekable(), other.pieces.iter().peekable());
        let mut sum = 0;
        while let (Some(a), Some(b)) = (own.peek(), others.peek()) {
            sum += (a.1.min(b.1) - a.0.max(b.0)).max(0);
            if a.1 <= b.1 {
                own.next()
            } else {
                others.next()
            };
        }
        sum
    }

    /// The stretches between these that are longer than `at_least`, from the first to the last.
    fn gaps(&self, at_least: i64) -> Vec<(i64, i64)> {
        let mut out = Vec::new();
        let mut at = None;
        for &(from, to, _) in &self.pieces {
            if let Some(before) = at
                && from - before > at_least
            {
                out.push((before, from));
            }
            at = Some(to);
        }
        out
    }
}

/// Who used what, at any time.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// By engine and tenant.
    pub by_tenant: BTreeMap<(usize, usize), Running>,
    /// By engine.
    pub by_engine: BTreeMap<usize, Running>,
    /// By device and tenant: on any of its engines.
    pub(super) by_device: BTreeMap<(i64, usize), Running>,
    /// By device: stretches in which no engine has work, longer than the scheduler's own.
    idle: BTreeMap<i64, Running>,
    /// Of each request whose end was not seen: when a later one of its context ended. By then it was over, since a
    /// context's requests run in their order.
    pub(super) overtaken: BTreeMap<usize, i64>,
    /// The places of each tenant's requests.
    of_tenant: Vec<Vec<u32>>,
    /// By engine and tenant: stretches in which the host has a request of it; only of tenants whose guest's trace is known.
    on_host: BTreeMap<(usize, usize), Running>,
}

/// See [`Usage::on_host`].
fn on_host(requests: &[Request]) -> BTreeMap<(usize, usize), Running> {
    let known = requests.iter().filter(|one| one.in_guest().is_some());
    let known: BTreeSet<usize> = known.map(|one| one.tenant).collect();
    let mut out: BTreeMap<(usize, usize), Vec<(i64, i64)>> = BTreeMap::new();
    for one in requests.iter().filter(|one| known.contains(&one.tenant)) {
        if let Some(stretch) = one.when(Stage::VgpuQueued).zip(one.ended()) {
            out.entry((one.engine, one.tenant)).or_default().push(stretch);
        }
    }
    out.into_iter().map(|(key, all)| (key, Running::new(all))).collect()
}

/// See [`Usage::overtaken`].
fn overtaken(requests: &[Request]) -> BTreeMap<usize, i64> {
    let mut contexts: BTreeMap<_, Vec<(i64, usize)>> = BTreeMap::new();
    for (at, one) in requests.iter().enumerate() {
        if let Some(time) = one.queued().or(one.began()) {
            let context = (one.device, one.engine, one.tenant, one.context);
            contexts.entry(context).or_default().push((time, at));
        }
    }
    let mut out = BTreeMap::new();
    for mut own in contexts.into_values() {
        own.sort_unstable();
        let mut later = None;
        for (_, at) in own.into_iter().rev() {
            match requests[at].ended() {
                Some(ended) => later = Some(ended),
                None => out.extend(later.map(|ended| (at, ended))),
            }
        }
    }
    out
}

impl Usage {
    /// Of all requests.
    pub fn new(requests: &[Request]) -> Usage {
        let mut tenants: BTreeMap<(usize, usize), Vec<(i64, i64)>> = BTreeMap::new();
        let mut engines: BTreeMap<usize, Vec<(i64, i64)>> = BTreeMap::new();
        let mut shares: BTreeMap<(i64, usize), Vec<(i64, i64)>> = BTreeMap::new();
        let mut devices: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
        let mut of_tenant: Vec<Vec<u32>> = Vec::new();
        for (place, request) in requests.iter().enumerate() {
            if of_tenant.len() <= request.tenant {
                of_tenant.resize_with(request.tenant + 1, Vec::new);
            }
            // There are 20 million requests at most.
            of_tenant[request.tenant].push(place as u32);
            for one in &request.executions {
                let stretch = (one.from, one.to);
                tenants.entry((request.engine, request.tenant)).or_default().push(stretch);
                engines.entry(request.engine).or_default().push(stretch);
                shares.entry((request.device, request.tenant)).or_default().push(stretch);
                devices.entry(request.device).or_default().push(stretch);
            }
        }
        let idle = devices
            .into_iter()
            .map(|(device, all)| (device, Running::new(Running::new(all).gaps(TICKS))));
        Usage {
            of_tenant,
            overtaken: overtaken(requests),
            on_host: on_host(requests),
            idle: idle.collect(),
            by_tenant: tenants.into_iter().map(|(k, v)| (k, Running::new(v))).collect(),
            by_engine: engines.into_iter().map(|(k, v)| (k, Running::new(v))).collect(),
            by_device: shares.into_iter().map(|(k, v)| (k, Running::new(v))).collect(),
        }
    }

    /// The requests of a tenant with their places, in their order.
    pub(super) fn requests_of<'a>(
        &'a self,
        tenant: usize,
        all: &'a [Request],
    ) -> impl Iterator<Item = (usize, &'a Request)> {
        let places = self.of_tenant.get(tenant).map_or(&[][..], Vec::as_slice);
        places.iter().map(|place| (*place as usize, &all[*place as usize]))
    }

    /// Adds to `wait` where a stretch went in which a request was on no engine; the causes sum to the stretch.
    pub(super) fn off_engine(&self, request: &Request, (from, to): (i64, i64), wait: &mut Wait) {
        let to = to.max(from);
        wait.total += to - from;
        let heard = request.when(Stage::VgpuQueued).unwrap_or(from).clamp(from, to);
        let handed = held_until(request).map_or(from, |handed| handed.clamp(heard, to));
        self.in_guest(request, (from, heard), wait);
        self.split(request, (heard, handed), true, wait);
        self.split(request, (handed, to), false, wait);
    }

    /// Where the wait of a request went while it was in its guest: behind an own one that the host has, whatever that waits
    /// for, and else it is the guest's.
    fn in_guest(&self, request: &Request, (from, to): (i64, i64), wait: &mut Wait) {
        let none = Running::default();
        let on_host = self.on_host.get(&(request.engine, request.tenant)).unwrap_or(&none);
        let mut at = from;
        for (begin, end) in on_host.uncovered(from, to) {
            self.split(request, (at, begin), true, wait);
            wait.guest += end - begin;
            at = end;
        }
        self.split(request, (at, to), true, wait);
    }

    /// Where the wait of a request went between two of its stages; `held` says that it is in the queue of its virtual
    /// GPU, which has the device as a whole or not at all.
    fn split(&self, request: &Request, (from, to): (i64, i64), held: bool, wait: &mut Wait) {
        if from >= to {
            return;
        }
        let mut left = to - from;
        let own = self.by_tenant.get(&(request.engine, request.tenant));
        let own = own.map_or(0, |own| own.within(from, to));
        wait.predecessor += own;
        left -= own;
        if held {
            let others = self.by_device.range((request.device, 0)..=(request.device, usize::MAX));
            for (&(_, tenant), running) in others.filter(|((_, t), _)| *t != request.tenant) {
                take(&mut left, running.within(from, to), tenant, wait);
            }
            let idle = self.idle.get(&request.device);
            let idle = idle.map_or(0, |idle| idle.longer_within(from, to, TICKS).0);
            let idle = idle.min(left);
            wait.reserved += idle;
            wait.host += left - idle;
            return;
        }
        let others = self.by_tenant.range((request.engine, 0)..=(request.engine, usize::MAX));
        for (&(_, tenant), running) in others.filter(|((_, t), _)| *t != request.tenant) {
            take(&mut left, running.within(from, to), tenant, wait);
        }
        let dependency = request.when(Stage::Ready).map_or(0, |ready| ready.min(to) - from);
        let dependency = dependency.clamp(0, left);
        wait.dependency += dependency;
        wait.host += left - dependency;
    }

    /// Where the wait of a request went, if it began to run.
    pub fn wait(&self, request: &Request) -> Option<Wait> {
        let (from, to) = (request.queued()?, request.began()?);
        let mut wait = Wait::default();
        self.off_engine(request, (from, to), &mut wait);
        Some(wait)
    }
}

/// Until when a request was in the queue of its virtual GPU, ns; `None` if it never was.
fn held_until(request: &Request) -> Option<i64> {
    request.when(Stage::VgpuQueued)?;
    let handed = [Stage::VgpuSubmitted, Stage::HostQueued];
    let handed = handed.iter().filter_map(|stage| request.when(*stage)).min();
    Some(handed.or(request.began()).unwrap_or(i64::MAX))
}

fn take(left: &mut i64, time: i64, tenant: usize, wait: &mut Wait) {
    let time = time.min(*left);
    if time > 0 {
        *left -= time;
        *wait.others.entry(tenant).or_default() += time;
    }
}

/// Where a wait went, ns. The parts sum to the total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// From when a request was first heard of to when an engine first worked on it.
    pub total: i64,
    /// It was in its guest, which had no other request of the engine with the host.
    pub guest: i64,
    /// A request of the same tenant ran on the engine.
    pub predecessor: i64,
    /// Another tenant's request ran, by tenant.
    pub others: BTreeMap<usize, i64>,
    /// The device was idle for longer than the scheduler takes, and its virtual GPU was not given it.
    pub reserved: i64,
    /// It was not ready: something that it depends on was not done, while the engine had nothing to do.
    pub dependency: i64,
    /// The host took its time: threads, ticks of the scheduler.
    pub host: i64,
}

impl Wait {
    /// Behind other tenants, ns.
    pub fn behind(&self) -> i64 {
        self.others.values().sum()
    }

    pub(super) fn add(&mut self, other: &Wait) {
        self.total += other.total;
        self.guest += other.guest;
        self.predecessor += other.predecessor;
        self.reserved += other.reserved;
        self.dependency += other.dependency;
        self.host += other.host;
        for (tenant, time) in &other.others {
            *self.others.entry(*tenant).or_default() += time;
        }
    }
}

/// Mean and quantiles, ns; 0 of nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: i64,
    /// What 99 % do not exceed.
    pub p99: i64,
    /// The most.
    pub max: i64,
}

impl Spread {
    pub(super) fn of(mut all: Vec<i64>) -> Spread {
        if all.is_empty() {
            return Spread::default();
        }
        all.sort_unstable();
        let at = |share: f64| all[((all.len() - 1) as f64 * share).ceil() as usize];
        let mean = all.iter().map(|n| *n as f64).sum::<f64>() / all.len() as f64;
        Spread { mean, p50: at(0.5), p99: at(0.99), max: all[all.len() - 1] }
    }
}

/// A tenant in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantUse {
    /// The place of the tenant in [`Model::tenants`].
    pub tenant: usize,
    /// Requests that were done in the window.
    pub done: usize,
    /// Requests of which the end was not seen.
    pub unfinished: usize,
    /// Those of them that were over when a later one of their context ended: the events of their end are not there.
    pub overtaken: usize,
    /// Executions that ended with the request taken off its engine.
    pub preempted: usize,
    /// How long its requests ran on each engine within the window, ns, by the place in [`Model::engines`].
    pub busy: BTreeMap<usize, i64>,
    /// The wait of the requests that were done, summed.
    pub wait: Wait,
    /// The wait of each.
    pub waits: Spread,
    /// How long each ran.
    pub executions: Spread,
    /// From when each was first heard of to its end.
    pub latencies: Spread,
    /// Requests that waited, on average over the window.
    pub queue: f64,
    /// Rate of completions × mean wait: the queue by Little's law.
    pub little: f64,
    /// How long it had a request that waited or ran, within the window, ns.
    pub backlogged: i64,
    /// How long it had a request that waited to be given the device while the device was idle, ns: each moment counts
    /// once, however many wait.
    pub withheld: i64,
    /// How often that was.
    pub withheld_times: usize,
    /// How long one of its requests waited to be given the device while another tenant's ran, ns.
    pub blocked: i64,
    /// The first request and the last end in the window, ns.
    pub active: Option<(i64, i64)>,
}

/// An engine in a window.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineUse {
    /// The place of the engine in [`Model::engines`].
    pub engine: usize,
    /// How long it worked within the window, ns.
    pub busy: i64,
    /// Requests that were done in the window.
    pub done: usize,
    /// How long each waited before it was handed to the engine.
    pub software: Spread,
    /// How long each waited at the engine until those before it had ended.
    pub hardware: Spread,
    /// How long each ran.
    pub executions: Spread,
}

/// A window of the requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// The window, ns.
    pub window: (i64, i64),
    /// By tenant.
    pub tenants: Vec<TenantUse>,
    /// By engine.
    pub engines: Vec<EngineUse>,
}

/// Measures the requests that are done within a window, and the use of engines in it.
pub fn metrics(model: &Model, requests: &[Request], usage: &Usage, window: (i64, i64)) -> Metrics {
    let tenants = (0..model.tenants.len()).map(|at| tenant(at, requests, usage, window));
    let engines = usage.by_engine.iter();
    let engines = engines.map(|(&at, of)| engine(at, requests, of, window)).collect();
    Metrics { window, tenants: tenants.collect(), engines }
}

fn engine(at: usize, all: &[Request], running: &Running, window: (i64, i64)) -> EngineUse {
    let (mut software, mut hardware, mut executions) = (Vec::new(), Vec::new(), Vec::new());
    for request in all.iter().filter(|one| one.engine == at) {
        let ended = request.ended().filter(|t| *t >= window.0 && *t < window.1);
        if let (Some(_), Some(queued), Some(began)) = (ended, request.queued(), request.began()) {
            let handed = request.when(Stage::Running).unwrap_or(began).clamp(queued, began);
            software.push(handed - queued);
            hardware.push(began - handed);
            executions.push(request.executed());
        }
    }
    EngineUse {
        engine: at,
        busy: running.within(window.0, window.1),
        done: executions.len(),
        software: Spread::of(software),
        hardware: Spread::of(hardware),
        executions: Spread::of(executions),
    }
}

/// How long engines worked for a tenant within a window, ns, and the median of the executions of its requests that were done
/// there.
pub fn use_of(
    at: usize,
    all: &[Request],
    usage: &Usage,
    engines: &[usize],
    window: (i64, i64),
) -> (i64, i64) {
    let own = engines.iter().filter_map(|engine| usage.by_tenant.get(&(*engine, at)));
    let busy = own.map(|of| of.within(window.0, window.1)).sum();
    let done = |request: &Request| {
        let ended = request.ended().filter(|t| *t >= window.0 && *t < window.1)?;
        Some(ended).and(request.queued()).and(request.began()).map(|_| request.executed())
    };
    let executions = usage.requests_of(at, all).filter_map(|(_, one)| done(one)).collect();
    (busy, Spread::of(executions).p50)
}

/// Measures one tenant.
pub fn tenant(at: usize, all: &[Request], usage: &Usage, window: (i64, i64)) -> TenantUse {
    let mut out = TenantUse { tenant: at, ..TenantUse::default() };
    let own = usage.by_tenant.iter().filter(|((_, tenant), _)| *tenant == at);
    out.busy = own.map(|(&(engine, _), of)| (engine, of.within(window.0, window.1))).collect();
    let (mut waits, mut runs, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    let (mut waiting, mut backlog, mut held) = (0i64, Vec::new(), Vec::new());
    let inside = |from: i64, to: i64| (from.max(window.0), to.min(window.1));
    let mut device = 0;
    for (place, request) in usage.requests_of(at, all) {
        device = request.device;
        let over = usage.overtaken.get(&place).copied();
        out.overtaken += usize::from(over.is_some() && request.outcome == Outcome::Unfinished);
        out.unfinished += usize::from(request.outcome == Outcome::Unfinished);
        let preempted = request.executions.iter().filter(|one| one.preempted);
        out.preempted += preempted.filter(|e| e.to >= window.0 && e.to < window.1).count();
        let Some(queued) = request.queued().or(request.began()) else { continue };
        let handed = request.when(Stage::Running);
        let until = request.began().or(request.ended()).or(over).or(handed).unwrap_or(window.1);
        let (from, to) = inside(queued, until);
        // How long it really waited is not known.
        if over.is_none() {
            waiting += (to - from).max(0);
        }
        backlog.push(inside(queued, request.ended().or(over).unwrap_or(window.1)));
        if let Some(since) = request.when(Stage::VgpuQueued) {
            let handed = request.when(Stage::VgpuSubmitted).unwrap_or(until);
            held.push(inside(since, handed));
        }
        let ended = request.ended().filter(|t| *t >= window.0 && *t < window.1);
        let Some((ended, wait)) = ended.zip(usage.wait(request)) else { continue };
        out.done += 1;
        let since = out.active.map_or(queued, |(from, _)| from.min(queued));
        out.active = Some((since, out.active.map_or(ended, |(_, to)| to.max(ended))));
        waits.push(wait.total);
        runs.push(request.executed());
        latencies.push(ended - queued);
        out.wait.add(&wait);
    }
    let length = (window.1 - window.0).max(1) as f64;
    out.queue = waiting as f64 / length;
    out.little = waits.iter().map(|n| *n as f64).sum::<f64>() / length;
    out.backlogged = Running::new(backlog).within(window.0, window.1);
    let held = Running::new(held);
    let none = Running::default();
    let idle = usage.idle.get(&device).unwrap_or(&none);
    for (from, to, _) in &held.pieces {
        let (time, times) = idle.longer_within(*from, *to, TICKS);
        out.withheld += time;
        out.withheld_times += times;
    }
    let others = usage.by_device.iter().filter(|((of, who), _)| *of == device && *who != at);
    out.blocked = others.map(|(_, running)| held.overlap(running)).sum();
    (out.waits, out.executions) = (Spread::of(waits), Spread::of(runs));
    out.latencies = Spread::of(latencies);
    out
}
