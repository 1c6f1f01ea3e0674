//! Where the time of requests and of their tenants went, in parts that sum to it, so that two runs can be subtracted.
//!
//! # How
//! A request's life is from when the host first heard of it to its end. While engines work on it, that is its execution;
//! the rest is taken apart by cause as waits are ([`Usage`]), also the time after it was taken off its engine ([`lives`]).
//! A tenant's time is from its first request to its last end. While any of its requests is on an engine, it executes; else
//! the request that has been on its way for longest says why none is; without a request it is up to the guest ([`work`]).
//!
//! # What fools it
//! Two runs compare only where the same events tell of them: a wait begins later in a trace without the queue of the
//! virtual GPU. [`Told`] says what was there.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use super::metrics::{Running, Spread, Usage, Wait};
use super::model::Model;
use super::request::{Request, Stage};

/// Stretches of consecutive requests, at most, of which the sums are kept: they say how much a mean varies by itself.
const BLOCKS: usize = 20;
/// Requests in such a stretch, where there are enough for at least 5.
const IN_BLOCK: usize = 4;

/// Time by where it went, ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Engines worked.
    pub execution: i64,
    /// The rest, by cause.
    pub off: Wait,
}

impl Parts {
    /// All, ns.
    pub fn total(&self) -> i64 {
        self.execution + self.off.total
    }
}

impl AddAssign<&Parts> for Parts {
    fn add_assign(&mut self, other: &Parts) {
        self.execution += other.execution;
        self.off.add(&other.off);
    }
}

/// What the events tell of the requests of a tenant on an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The stage in which the host first heard of most of them.
    pub first: Option<Stage>,
    /// Whether an event told when most of them came to the engine. Otherwise they are taken to have run as soon as they
    /// were handed over and what ran before had ended.
    pub running: bool,
    /// Whether an event told when any of them was ready: without it, dependencies count as the host's.
    pub ready: bool,
}

/// The requests of a tenant to an engine that were done within a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Lives {
    /// The place of the tenant in [`Model::tenants`].
    pub tenant: usize,
    /// The place of the engine in [`Model::engines`].
    pub engine: usize,
    /// How many.
    pub done: usize,
    /// From when the host first heard of each to its end.
    pub latencies: Spread,
    /// How long engines worked on each.
    pub executions: Spread,
    /// Where their latencies went, summed.
    pub parts: Parts,
    /// How much of that was after a request had been taken off its engine, until it ran again or ended, ns.
    pub again: i64,
    /// The sums of up to 20 stretches of consecutive requests, and how many requests each has.
    pub blocks: Vec<(usize, Parts)>,
    /// What the events tell.
    pub told: Told,
}

/// A tenant from its first request in a window to its last end there.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// When, ns.
    pub active: (i64, i64),
    /// Where the time went in which it had a request.
    pub parts: Parts,
    /// The time in which it had none, ns. With the parts it sums to the active time.
    pub guest: i64,
    /// Requests that were done.
    pub done: usize,
    /// Up to 20 stretches of requests that ended one after the other: how many, and how long it took from the end of the
    /// stretch before, ns.
    pub pace: Vec<(usize, i64)>,
}

/// Into how many stretches so many requests are cut.
fn stretches(requests: usize) -> usize {
    (requests / IN_BLOCK).clamp(5, BLOCKS).min(requests)
}

/// When a request's life was within a window: the host heard of it, it ran, and it ended there.
fn life(request: &Request, window: (i64, i64)) -> Option<(i64, i64)> {
    let (queued, ended) = (request.queued()?, request.ended()?);
    request.began()?;
    (window.0 <= ended && ended < window.1 && queued <= ended).then_some((queued, ended))
}

/// Where the life of a request went, and how much of it was off its engine after it had begun.
fn parts(request: &Request, (from, to): (i64, i64), usage: &Usage) -> (Parts, i64) {
    let (mut out, mut at, mut again) = (Parts::default(), from, 0);
    let begun = request.began().unwrap_or(to).clamp(from, to);
    for one in &request.executions {
        let (began, left) = (one.from.clamp(at, to), one.to.clamp(at, to));
        usage.off_engine(request, (at, began), &mut out.off);
        again += began - at.max(begun).min(began);
        out.execution += left - began;
        at = left;
    }
    usage.off_engine(request, (at, to), &mut out.off);
    again += to - at;
    (out, again)
}

/// The requests that are done within a window, by tenant and engine.
pub fn lives(requests: &[Request], usage: &Usage, window: (i64, i64)) -> Vec<Lives> {
    let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (at, one) in requests.iter().enumerate().filter(|(_, one)| life(one, window).is_some()) {
        groups.entry((one.tenant, one.engine)).or_default().push(at);
    }
    let of = |((tenant, engine), places): ((usize, usize), Vec<usize>)| {
        let own: Vec<&Request> = places.into_iter().map(|at| &requests[at]).collect();
        lives_of((tenant, engine), &own, usage, window)
    };
    groups.into_iter().map(of).collect()
}

fn lives_of(
    (tenant, engine): (usize, usize),
    own: &[&Request],
    usage: &Usage,
    window: (i64, i64),
) -> Lives {
    let count = stretches(own.len());
    let mut out = Lives {
        tenant,
        engine,
        done: own.len(),
        latencies: Spread::default(),
        executions: Spread::default(),
        parts: Parts::default(),
        again: 0,
        blocks: vec![(0, Parts::default()); count],
        told: told(own),
    };
    let (mut latencies, mut executions) = (Vec::new(), Vec::new());
    for (at, request) in own.iter().enumerate() {
        let Some((from, to)) = life(request, window) else { continue };
        let (parts, again) = parts(request, (from, to), usage);
        latencies.push(to - from);
        executions.push(parts.execution);
        out.again += again;
        let block = &mut out.blocks[at * count / own.len()];
        block.0 += 1;
        block.1 += &parts;
        out.parts += &parts;
    }
    (out.latencies, out.executions) = (Spread::of(latencies), Spread::of(executions));
    out
}

fn told(own: &[&Request]) -> Told {
    let mut firsts: BTreeMap<Stage, usize> = BTreeMap::new();
    let stages = [
        Stage::GuestQueued,
        Stage::GuestSubmitted,
        Stage::VgpuQueued,
        Stage::VgpuSubmitted,
        Stage::HostQueued,
        Stage::Ready,
    ];
    for request in own {
        let queued = request.queued();
        let first = stages.iter().find(|stage| request.when(**stage) == queued);
        *firsts.entry(*first.unwrap_or(&Stage::Running)).or_default() += 1;
    }
    let running = own.iter().filter(|one| one.when(Stage::Running).is_some()).count();
    Told {
        first: firsts.into_iter().max_by_key(|(_, n)| *n).map(|(stage, _)| stage),
        running: 2 * running > own.len(),
        ready: own.iter().any(|one| one.when(Stage::Ready).is_some()),
    }
}

/// Where the time of a tenant went within a window, from its first request to its last end; `None` if no request of it is
/// done there.
pub fn work(
    model: &Model,
    requests: &[Request],
    usage: &Usage,
    tenant: usize,
    window: (i64, i64),
) -> Option<Work> {
    let own = || usage.requests_of(tenant, requests);
    let lives: Vec<(i64, i64)> = own().filter_map(|(_, one)| life(one, window)).collect();
    let from = lives.iter().map(|life| life.0).min()?.max(window.0);
    let to = lives.iter().map(|life| life.1).max()?;
    let none = Running::default();
    let running = usage.by_device.get(&(model.tenants[tenant].device, tenant)).unwrap_or(&none);
    let (mut out, mut at, mut backlog) = (Parts::default(), from, 0);
    // Requests come by the time that the host first heard of them: the first that covers a moment is the oldest.
    for (place, request) in own() {
        let Some(queued) = request.queued().or(request.began()) else { continue };
        let over = usage.overtaken.get(&place).copied();
        let ended = request.ended().or(over).unwrap_or(to).min(to);
        let since = queued.max(at);
        if since >= ended {
            continue;
        }
        let mut off = 0;
        for stretch in running.uncovered(since, ended) {
            off += stretch.1 - stretch.0;
            usage.off_engine(request, stretch, &mut out.off);
        }
        out.execution += ended - since - off;
        backlog += ended - since;
        at = ended;
    }
    let mut ends: Vec<i64> = lives.iter().map(|life| life.1).collect();
    let (done, pace) = (ends.len(), pace(from, &mut ends));
    Some(Work { active: (from, to), parts: out, guest: to - from - backlog, done, pace })
}

/// How long stretches of requests took, one after the other from `from` on, by when each request ended.
fn pace(from: i64, ends: &mut [i64]) -> Vec<(usize, i64)> {
    ends.sort_unstable();
    let count = stretches(ends.len());
    let cut = |at: usize| at * ends.len() / count;
    let until = |at: usize| cut(at).checked_sub(1).map_or(from, |last| ends[last]);
    (0..count).map(|at| (cut(at + 1) - cut(at), until(at + 1) - until(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::followed;
    use super::*;

    /// Two virtual GPUs: the second one's request runs from 100 to 400 while the first one's waits, which then runs twice.
    const TAKEN_OFF: &str = "
        90 gvt_workload_queue dev=0 vgpu_id=2 ring_id=0 workload=0xb0
        95 gvt_workload_submit dev=0 vgpu_id=2 ring_id=0 workload=0xb0 ctx=22 seqno=1
        96 i915_gem_request_add dev=0 ctx=22 ring=0 seqno=1 global=0
        97 i915_gem_request_submit dev=0 ctx=22 ring=0 seqno=1 global=1
        100 i915_gem_request_in dev=0 ctx=22 ring=0 seqno=1 global_seqno=1 port=0
        200 gvt_workload_queue dev=0 vgpu_id=1 ring_id=0 workload=0xa0
        400 i915_gem_request_out dev=0 ctx=22 ring=0 seqno=1 global=1
        450 gvt_workload_submit dev=0 vgpu_id=1 ring_id=0 workload=0xa0 ctx=17 seqno=1
        460 i915_gem_request_add dev=0 ctx=17 ring=0 seqno=1 global=0
        470 i915_gem_request_submit dev=0 ctx=17 ring=0 seqno=1 global=2
        500 i915_gem_request_in dev=0 ctx=17 ring=0 seqno=1 global_seqno=2 port=0
        600 i915_gem_request_out dev=0 ctx=17 ring=0 seqno=1 global=2 completed=0
        650 i915_gem_request_in dev=0 ctx=17 ring=0 seqno=1 global_seqno=2 port=0
        800 i915_gem_request_out dev=0 ctx=17 ring=0 seqno=1 global=2 completed=1
        900 gvt_workload_queue dev=0 vgpu_id=1 ring_id=0 workload=0xa1
        900 gvt_workload_submit dev=0 vgpu_id=1 ring_id=0 workload=0xa1 ctx=17 seqno=2
        900 i915_gem_request_add dev=0 ctx=17 ring=0 seqno=2 global=0
        900 i915_gem_request_submit dev=0 ctx=17 ring=0 seqno=2 global=3
        900 i915_gem_request_in dev=0 ctx=17 ring=0 seqno=2 global_seqno=3 port=0
        1000 i915_gem_request_out dev=0 ctx=17 ring=0 seqno=2 global=3";

    #[test]
    fn a_life_is_executions_and_what_was_in_the_way_also_after_it_was_taken_off_its_engine() {
        let (model, requests) = followed(TAKEN_OFF);
        let usage = Usage::new(&requests);
        let all = lives(&requests, &usage, (0, 2_000));
        let own = all.iter().find(|one| model.tenants[one.tenant].name == "vGPU 1").unwrap();
        let other = model.tenants.iter().position(|one| one.name == "vGPU 2").unwrap();
        assert_eq!((own.done, own.parts.total()), (2, (800 - 200) + (1000 - 900)));
        assert_eq!(own.parts.execution, 100 + 150 + 100);
        assert_eq!(own.parts.off.others, BTreeMap::from([(other, 200)]));
        // From 400 to 500 the host handed it over, from 600 to 650 it was off its engine.
        assert_eq!((own.parts.off.host, own.parts.off.dependency, own.again), (130, 20, 50));
        assert_eq!(own.parts.off.total, 350);
        let sum = own.blocks.iter().map(|(n, parts)| (*n, parts.total()));
        assert_eq!(sum.collect::<Vec<_>>(), [(1, 600), (1, 100)]);
        let told = Told { first: Some(Stage::VgpuQueued), running: true, ready: true };
        assert_eq!(own.told, told);
    }

    #[test]
    fn the_time_of_a_tenant_is_execution_waits_and_the_guest() {
        let (model, requests) = followed(TAKEN_OFF);
        let usage = Usage::new(&requests);
        let at = model.tenants.iter().position(|one| one.name == "vGPU 1").unwrap();
        let own = work(&model, &requests, &usage, at, (0, 2_000)).unwrap();
        assert_eq!((own.active, own.guest), ((200, 1000), 100));
        assert_eq!((own.parts.execution, own.parts.off.total), (350, 350));
        assert_eq!(own.parts.off.behind(), 200);
        assert_eq!((own.done, own.pace), (2, vec![(1, 600), (1, 200)]));
        // Within a window, only from its begin on.
        let own = work(&model, &requests, &usage, at, (300, 900)).unwrap();
        assert_eq!((own.active, own.guest), ((300, 800), 0));
        assert_eq!((own.parts.execution, own.parts.off.behind()), (250, 100));
        assert_eq!(work(&model, &requests, &usage, at, (0, 100)), None);
    }

    #[test]
    fn requests_on_their_way_at_once_count_each_moment_of_their_tenant_once() {
        // The second waits behind the first, which is its own predecessor.
        let (model, requests) = followed(
            "10 i915:i915_request_add dev=0 ctx=3 class=0 instance=0 seqno=1
             20 i915:i915_request_in dev=0 ctx=3 class=0 instance=0 seqno=1 port=0
             30 i915:i915_request_add dev=0 ctx=3 class=0 instance=0 seqno=2
             90 i915:i915_request_out dev=0 ctx=3 class=0 instance=0 seqno=1 completed=1
             95 i915:i915_request_in dev=0 ctx=3 class=0 instance=0 seqno=2 port=0
             120 i915:i915_request_out dev=0 ctx=3 class=0 instance=0 seqno=2 completed=1",
        );
        let usage = Usage::new(&requests);
        let own = work(&model, &requests, &usage, 0, (0, 1_000)).unwrap();
        assert_eq!((own.active, own.guest), ((10, 120), 0));
        assert_eq!((own.parts.execution, own.parts.off.host), (95, 15));
        let all = lives(&requests, &usage, (0, 1_000));
        let parts = &all[0].parts;
        assert_eq!((parts.total(), parts.execution), (80 + 90, 70 + 25));
        assert_eq!((parts.off.predecessor, parts.off.host), (60, 15));
        let told = Told { first: Some(Stage::HostQueued), running: true, ready: false };
        assert_eq!(all[0].told, told);
    }

    #[test]
    fn what_a_driver_tells_out_of_order_is_cut_to_the_life_of_the_request() {
        let (_, mut requests) = followed(TAKEN_OFF);
        let one = requests.iter_mut().find(|one| one.sequence == 2).unwrap();
        // It was queued after it had begun, and left its engine after it was done.
        for stage in [Stage::VgpuQueued, Stage::VgpuSubmitted, Stage::HostQueued, Stage::Ready] {
            one.at[stage as usize] = Some(920);
        }
        one.at[Stage::Done as usize] = Some(990);
        let one = one.clone();
        let usage = Usage::new(&requests);
        let (parts, again) = parts(&one, life(&one, (0, 2_000)).unwrap(), &usage);
        assert_eq!((parts.execution, parts.off.total, again), (70, 0, 0));
    }
}
