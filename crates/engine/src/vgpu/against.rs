//! Two runs: by how much longer the requests of each tenant took, and in which parts, by whom.
//!
//! # How
//! Tenants of both runs are matched by name. The mean latency of a tenant's requests to an engine is a sum of parts
//! (execution, waits by cause) in each run, so that its change is the sum of theirs. So is the time of a tenant from its
//! first request to its last end, which besides changes with the number of requests. What varies by itself is told from
//! the means of stretches of requests.
//!
//! # What fools it
//! A request is whatever the driver calls one: a run whose requests hold more work each shows it as longer executions.

mod change;
mod names;
pub(super) mod page;
mod says;

use std::collections::BTreeMap;

use gpuwhy_derive::vgpu::metrics::{Spread, Usage};
use gpuwhy_derive::vgpu::parts::{self, Lives, Parts, Told, Work};
use gpuwhy_derive::vgpu::{Model, Request, Stage};
use gpuwhy_diagnose::vgpu::noise::{is_change, noise};

use super::{MS, Times, order};
pub use change::{
    Both, Comparison, LatencyChange, Part, PartChange, TenantChange, Unmatched, UseChange,
    WorkChange,
};
use names::Names;

/// Fewer requests say nothing about the time of a tenant.
const FEW: usize = 5;
/// A part that changed by more than this share of the base's latency, and by more than may be chance, is a change, even if
/// another part hides it or the latency varies too much to say.
const LARGE: f64 = 0.1;
/// Shares of a tenant's requests by engine that differ by more than this are another kind of work.
const MIX: f64 = 0.05;

/// One of the two runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    pub title: &'a str,
    pub model: &'a Model,
    pub requests: &'a [Request],
    pub window: (i64, i64),
}

/// A run with what is measured of it.
struct Measured<'a> {
    of: Side<'a>,
    usage: Usage,
    lives: Vec<Lives>,
    /// By tenant, its device and its name in the run.
    names: &'a [(i64, String)],
}

impl<'a> Measured<'a> {
    fn new(of: Side<'a>, names: &'a [(i64, String)]) -> Measured<'a> {
        let usage = Usage::new(of.requests);
        let lives = parts::lives(of.requests, &usage, of.window);
        Measured { of, usage, lives, names }
    }

    fn lives(&self, tenant: usize) -> impl Iterator<Item = &Lives> {
        self.lives.iter().filter(move |one| one.tenant == tenant)
    }

    fn engine(&self, at: usize) -> &str {
        &self.of.model.engines[at].name
    }

    fn work(&self, tenant: usize) -> Option<Work> {
        parts::work(self.of.model, self.of.requests, &self.usage, tenant, self.of.window)
    }

    fn done(&self, tenant: usize) -> usize {
        self.lives(tenant).map(|one| one.done).sum()
    }

    /// Parts by what they are called; the dependencies of requests are the host's where the other run does not know them.
    fn named(&self, parts: &Parts, dependencies: bool) -> BTreeMap<Part, i64> {
        let off = &parts.off;
        let (dependency, host) = match dependencies {
            true => (off.dependency, off.host + off.guest),
            false => (0, off.host + off.guest + off.dependency),
        };
        let mut out = BTreeMap::from([
            (Part::Execution, parts.execution),
            (Part::OwnPredecessor, off.predecessor),
            (Part::ReservedIdle, off.reserved),
            (Part::Dependency, dependency),
            (Part::Host, host),
        ]);
        for (tenant, time) in &off.others {
            *out.entry(Part::OtherTenant(self.names[*tenant].1.clone())).or_default() += time;
        }
        out
    }

    fn seconds(&self) -> f64 {
        (self.of.window.1 - self.of.window.0).max(1) as f64 / 1e9
    }
}

/// The run beside the base.
pub(super) fn compare(run: Side<'_>, base: Side<'_>) -> Comparison {
    let names = names::names(&run.model.tenants, &base.model.tenants);
    let run = Measured::new(run, &names.run);
    let base = Measured::new(base, &names.base);
    let mut not_compared = missing(&run, &base);
    let both = Both { base: &base, run: &run };
    let mut tenants = Vec::new();
    for at in order::tenants(run.of.model) {
        let Some(&(_, other)) = names.pairs.iter().find(|pair| pair.0 == at) else { continue };
        tenants.extend(tenant(both, (at, other), &mut not_compared));
    }
    let changed = |one: &TenantChange| {
        let latencies = one.engines.iter().map(|of| of.changed);
        latencies.chain(one.work.iter().map(|of| of.changed)).any(|of| of == Some(true))
    };
    Comparison {
        base: base.of.title.to_owned(),
        base_from_s: base.of.window.0 as f64 / 1e9,
        base_to_s: base.of.window.1 as f64 / 1e9,
        changed: tenants.iter().any(changed),
        tenants,
        uses: uses(both),
        unmatched: unmatched(both, &names),
        not_compared,
    }
}

/// What the events of one run do not tell and those of the other do.
fn missing(run: &Measured<'_>, base: &Measured<'_>) -> Vec<String> {
    let (of_run, of_base) = (run.of.model.missing(), base.of.model.missing());
    let mut out = Vec::new();
    for (side, own, other) in [("run", &of_run, &of_base), ("base", &of_base, &of_run)] {
        for (event, what) in own.iter().filter(|one| !other.contains(one)) {
            out.push(format!("{what}: the {side} has no {event}"));
        }
    }
    for (side, of) in [("run", run), ("base", base)] {
        if of.of.requests.is_empty() {
            out.push(format!("anything: the {side} has no request to a GPU"));
        }
    }
    out
}

fn unmatched(both: Both<&Measured<'_>>, names: &Names) -> Vec<Unmatched> {
    let mut out = Vec::new();
    for (only_in, of, places) in
        [("run", both.run, &names.only_run), ("base", both.base, &names.only_base)]
    {
        for at in places.iter().filter(|at| of.of.requests.iter().any(|one| one.tenant == **at)) {
            out.push(Unmatched { name: of.names[*at].1.clone(), only_in, requests: of.done(*at) });
        }
    }
    out
}

fn tenant(
    both: Both<&Measured<'_>>,
    (at, other): (usize, usize),
    not_compared: &mut Vec<String>,
) -> Option<TenantChange> {
    let (run, base) = (both.run, both.base);
    let name = &run.names[at].1;
    let works = Both { base: base.work(other), run: run.work(at) };
    let (Some(own), Some(before)) = (&works.run, &works.base) else {
        let of = match (works.run.is_some(), works.base.is_some()) {
            (true, _) => "base's",
            (_, true) => "run's",
            _ => return None,
        };
        not_compared.push(format!("{name}: none of its requests is done in the {of} window"));
        return None;
    };
    let works = Both { base: before, run: own };
    let mut engines = Vec::new();
    let (mut alike, mut dependencies) = (true, true);
    for lives in run.lives(at) {
        let engine = run.engine(lives.engine);
        let Some(before) = base.lives(other).find(|one| base.engine(one.engine) == engine) else {
            not_compared.push(format!("{name} on {engine}: the base has no such requests"));
            continue;
        };
        let lives = Both { base: before, run: lives };
        let differ = differ(lives.map(|one| one.told));
        not_compared.extend(differ.iter().map(|why| format!("{name} on {engine}: {}", why.1)));
        alike &= differ.iter().all(|(of, _)| *of == Differ::Dependencies);
        dependencies &= differ.is_empty();
        engines.push(latency(both, lives, works, &differ));
    }
    for lives in base.lives(other) {
        let engine = base.engine(lives.engine);
        if !run.lives(at).any(|one| run.engine(one.engine) == engine) {
            not_compared.push(format!("{name} on {engine}: the run has no such requests"));
        }
    }
    let work = match why_no_work(both, (at, other), works) {
        Some(why) => {
            not_compared.push(format!("{name}, the time for the same work: {why}"));
            None
        }
        None => alike.then(|| work(both, works, name, dependencies)),
    };
    let before = &base.of.model.tenants[other].name;
    let mut out = TenantChange {
        name: name.clone(),
        base_name: (before != name).then(|| before.clone()),
        device: run.of.model.tenants[at].device,
        engines,
        work,
    };
    let several = out.engines.len() > 1;
    for one in &mut out.engines {
        one.says = says::latency(name, one, several);
    }
    Some(out)
}

/// What two runs do not tell alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Differ {
    /// From when on requests are known: no latencies or waits are compared.
    Begin,
    /// When they came to the engine: latencies are compared, and not their parts.
    Engine,
    /// When they were ready: dependencies count as the host's.
    Dependencies,
}

/// What two runs do not tell alike of the same requests, and what comes of that.
fn differ(told: Both<Told>) -> Vec<(Differ, String)> {
    let mut out = Vec::new();
    if told.run.first != told.base.first {
        let [run, base] = [told.run.first, told.base.first].map(stage);
        out.push((
            Differ::Begin,
            format!("latencies and waits: they begin with {run} in the run and {base} in the base"),
        ));
    }
    let only = |run: bool| if run { "base" } else { "run" };
    if told.run.running != told.base.running {
        let without = only(told.run.running);
        out.push((
            Differ::Engine,
            format!("executions apart from waits: the {without} does not tell when requests came to the engine"),
        ));
    }
    if told.run.ready != told.base.ready {
        let without = only(told.run.ready);
        out.push((
            Differ::Dependencies,
            format!("dependencies apart from the host: the {without} does not tell when requests were ready"),
        ));
    }
    out
}

fn stage(of: Option<Stage>) -> &'static str {
    match of {
        Some(Stage::GuestQueued | Stage::GuestSubmitted) => "the guest's queue",
        Some(Stage::VgpuQueued) => "the queue of the virtual GPU",
        Some(Stage::VgpuSubmitted) => "the hand-over by the virtual GPU",
        Some(Stage::HostQueued) => "the queue of the host's driver",
        Some(Stage::Ready) => "the moment in which they are ready",
        _ => "the engine",
    }
}

fn per_request(sum: i64, requests: usize) -> f64 {
    sum as f64 / MS / requests.max(1) as f64
}

fn latency(
    both: Both<&Measured<'_>>,
    lives: Both<&Lives>,
    works: Both<&Work>,
    differ: &[(Differ, String)],
) -> LatencyChange {
    let lacks = |of: Differ| differ.iter().any(|(one, _)| *one == of);
    let times = |of: fn(&Lives) -> &Spread| lives.map(|one| Times::of(of(one)));
    let blocks = |one: &Lives, of: &dyn Fn(&Parts) -> i64| -> Vec<f64> {
        one.blocks.iter().map(|(n, parts)| per_request(of(parts), *n)).collect()
    };
    let noise_of = |base: &dyn Fn(&Parts) -> i64, run: &dyn Fn(&Parts) -> i64| {
        noise(&blocks(lives.base, base), &blocks(lives.run, run))
    };
    let means = lives.map(|one| per_request(one.parts.total(), one.done));
    let change = (!lacks(Differ::Begin)).then_some(means.run - means.base);
    let noise_ms = change.and_then(|_| noise_of(&Parts::total, &Parts::total));
    let dependencies = !lacks(Differ::Dependencies);
    let named = |of: &Measured<'_>, parts: &Parts| of.named(parts, dependencies);
    let sums =
        Both { base: named(both.base, &lives.base.parts), run: named(both.run, &lives.run.parts) };
    let mut kinds: Vec<&Part> = sums.base.keys().chain(sums.run.keys()).collect();
    kinds.sort();
    kinds.dedup();
    let comparable = !lacks(Differ::Begin) && !lacks(Differ::Engine);
    let part = |kind: &Part| {
        let of =
            |side: &Measured<'_>, parts: &Parts| named(side, parts).get(kind).copied().unwrap_or(0);
        let mean =
            |sums: &BTreeMap<Part, i64>, n| per_request(sums.get(kind).copied().unwrap_or(0), n);
        let base_ms = mean(&sums.base, lives.base.done);
        let run_ms = mean(&sums.run, lives.run.done);
        PartChange {
            part: kind.clone(),
            base_ms,
            run_ms,
            change_ms: run_ms - base_ms,
            noise_ms: noise_of(&|parts| of(both.base, parts), &|parts| of(both.run, parts)),
        }
    };
    let parts = kinds.into_iter().filter(|_| comparable).map(part);
    let parts: Vec<PartChange> =
        parts.filter(|one| one.base_ms != 0.0 || one.run_ms != 0.0).collect();
    let large = |one: &PartChange| {
        let change = one.change_ms.abs();
        one.noise_ms.is_some_and(|noise| change > noise && change > LARGE * means.base)
    };
    let changed = change.and_then(|change| is_change(means.base, change, noise_ms));
    let rate = |one: &Lives, work: &Work| {
        one.done as f64 * 1e9 / (work.active.1 - work.active.0).max(1) as f64
    };
    LatencyChange {
        engine: both.run.engine(lives.run.engine).to_owned(),
        requests: lives.map(|one| one.done),
        requests_per_s: Both {
            base: rate(lives.base, works.base),
            run: rate(lives.run, works.run),
        },
        latency: times(|one| &one.latencies),
        execution: times(|one| &one.executions),
        taken_off_ms: lives.map(|one| per_request(one.again, one.done)),
        change_ms: change,
        noise_ms,
        changed: changed.map(|changed| changed || parts.iter().any(large)),
        parts,
        says: String::new(),
    }
}

/// Why the time for the same work cannot be said.
fn why_no_work(
    both: Both<&Measured<'_>>,
    (at, other): (usize, usize),
    works: Both<&Work>,
) -> Option<String> {
    let few = works.run.done.min(works.base.done);
    if few < FEW {
        return Some(format!("one of the runs has {few} requests, fewer than {FEW}"));
    }
    let share = |of: &Measured<'_>, tenant: usize, engine: &str, done: usize| {
        let own = of.lives(tenant).filter(|one| of.engine(one.engine) == engine);
        own.map(|one| one.done).sum::<usize>() as f64 / done as f64
    };
    let engines = both.run.lives(at).map(|one| both.run.engine(one.engine));
    let engines = engines.chain(both.base.lives(other).map(|one| both.base.engine(one.engine)));
    for engine in engines {
        let run = share(both.run, at, engine, works.run.done);
        let base = share(both.base, other, engine, works.base.done);
        if (run - base).abs() > MIX {
            return Some(format!(
                "{:.0} % of its requests are to {engine} in the run and {:.0} % in the base",
                100.0 * run,
                100.0 * base
            ));
        }
    }
    None
}

fn work(
    both: Both<&Measured<'_>>,
    works: Both<&Work>,
    name: &str,
    dependencies: bool,
) -> WorkChange {
    let sums = |of: &Measured<'_>, work: &Work| {
        let mut sums = of.named(&work.parts, dependencies);
        sums.insert(Part::Guest, work.guest);
        sums
    };
    let (run, base) = (sums(both.run, works.run), sums(both.base, works.base));
    let scale = works.run.done as f64 / works.base.done as f64;
    let mut kinds: Vec<&Part> = base.keys().chain(run.keys()).collect();
    kinds.sort();
    kinds.dedup();
    let part = |kind: &Part| {
        let of = |sums: &BTreeMap<Part, i64>| sums.get(kind).copied().unwrap_or(0) as f64 / MS;
        let (base_ms, run_ms) = (of(&base) * scale, of(&run));
        let change_ms = run_ms - base_ms;
        PartChange { part: kind.clone(), base_ms, run_ms, change_ms, noise_ms: None }
    };
    let parts = kinds.into_iter().map(part);
    let seconds = |work: &Work| (work.active.1 - work.active.0) as f64 / 1e9;
    let active_s = works.map(seconds);
    let at_base_pace_s = active_s.base * scale;
    // Seconds that as many requests as the run has take at the pace of a stretch.
    let blocks = |work: &Work| -> Vec<f64> {
        let all = works.run.done as f64 / 1e9;
        work.pace.iter().map(|(n, time)| all * *time as f64 / *n as f64).collect()
    };
    let noise_s = noise(&blocks(works.base), &blocks(works.run));
    let mut out = WorkChange {
        requests: works.map(|work| work.done),
        active_s,
        change_s: active_s.run - active_s.base,
        by_requests_s: at_base_pace_s - active_s.base,
        at_base_pace_s,
        noise_s,
        changed: is_change(at_base_pace_s, active_s.run - at_base_pace_s, noise_s),
        parts: parts.filter(|one| one.base_ms != 0.0 || one.run_ms != 0.0).collect(),
        says: String::new(),
    };
    out.says = says::work(name, &out);
    out
}

/// Who used the engines: by the names of engine and tenant.
fn uses(both: Both<&Measured<'_>>) -> Vec<UseChange> {
    let mut all: BTreeMap<(i64, String, String), Both<Used>> = BTreeMap::new();
    for (of, is_run) in [(both.base, false), (both.run, true)] {
        for (&(engine, tenant), running) in &of.usage.by_tenant {
            let (device, name) = of.names[tenant].clone();
            let key = (device, of.engine(engine).to_owned(), name);
            let entry = all.entry(key).or_default();
            let used = if is_run { &mut entry.run } else { &mut entry.base };
            let busy = running.within(of.of.window.0, of.of.window.1);
            used.percent += busy as f64 / 1e7 / of.seconds();
            let own = of.lives(tenant).filter(|one| one.engine == engine);
            for lives in own {
                used.done += lives.done;
                used.rate += lives.done as f64 / of.seconds();
                used.ran += lives.parts.execution;
            }
        }
    }
    let mut out: Vec<UseChange> = all.into_iter().map(use_change).collect();
    out.retain(|one| one.used_percent.base > 0.0 || one.used_percent.run > 0.0);
    out.sort_by(|a, b| b.change.abs().total_cmp(&a.change.abs()));
    out
}

/// Use of an engine by a tenant in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    percent: f64,
    done: usize,
    rate: f64,
    ran: i64,
}

fn use_change(((device, engine, tenant), both): ((i64, String, String), Both<Used>)) -> UseChange {
    let execution_ms = both.map(|one| (one.done > 0).then(|| per_request(one.ran, one.done)));
    let rates = both.map(|one| one.rate);
    // Without a request in one of the runs all of the change is their number.
    let length = |own: Option<f64>, other: Option<f64>| own.or(other).unwrap_or(0.0);
    let base = length(execution_ms.base, execution_ms.run);
    let run = length(execution_ms.run, execution_ms.base);
    // A rate times a length: the halves of what is by both go to either. ms a second are tenths of a percent.
    let by_requests = (rates.run - rates.base) * (run + base) / 2.0 / 10.0;
    let by_length = (run - base) * (rates.run + rates.base) / 2.0 / 10.0;
    let change = both.run.percent - both.base.percent;
    UseChange {
        device,
        engine,
        tenant,
        used_percent: both.map(|one| one.percent),
        requests_per_s: rates,
        execution_ms,
        change,
        by_requests,
        by_length,
        rest: change - by_requests - by_length,
    }
}
