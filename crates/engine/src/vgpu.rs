//! Tenants that share a GPU: the events of a trace as requests, measured and judged.
//!
//! # How
//! The marks of a trace that the model knows are read in the order of their times, with their fields; what they amount
//! to is measured over a window, and each tenant is judged over the time in which it was active. Marks and their fields
//! of the tracepoints that the model knows are held in memory, and no others.

pub mod against;
mod counted;
mod fields;
mod hosts;
mod joined;
mod lanes;
mod order;
mod page;
mod perfetto;
mod placement;
mod text;
mod turns;
mod vcpus;
mod what_if;
#[cfg(test)]
mod world;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuwhy_derive::vgpu::metrics::{self, Metrics, Spread, TenantUse, Usage, Wait};
use gpuwhy_derive::vgpu::model::{Eviction, takes};
use gpuwhy_derive::vgpu::rules::RULES;
use gpuwhy_derive::vgpu::{Model, Request, Stage, slices};
use gpuwhy_diagnose::vgpu::{
    Finding, MemoryFacts, PlacementFacts, TenantFacts, findings, memory_finding, placement_finding,
};
use gpuwhy_schema::{EntityId, EntityKind, Mark, TrackId};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::source::{EVER, TraceSource};
use against::Comparison;
pub use counted::{CountedReport, LimitReport, SharingReport, TurnsReport};
use fields::{Fields, event};
pub use gpuwhy_derive::vgpu::replay;
pub use hosts::{GuestReport, HostMoveReport, HostReport, HostsReport, hosts};
pub use joined::{GuestProcessReport, GuestTrace, JoinedReport};
pub use placement::{MoveReport, PhaseReport, PlacedReport, PlacementReport};
use vcpus::{Guests, OnCpus};
pub use vcpus::{MachineReport, PreemptedReport, VcpuReport};
pub use what_if::{Change, Fared, Weights, WhatIf, WhatIfReport, WhatIfTenant};

const MS: f64 = 1e6;
/// The version of [`Report`].
pub const SCHEMA_VERSION: u32 = 1;

/// Mean and quantiles, ms.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// What 99 % do not exceed.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

impl Times {
    fn of(spread: &Spread) -> Times {
        let ms = |n: i64| n as f64 / MS;
        Times {
            mean: spread.mean / MS,
            p50: ms(spread.p50),
            p99: ms(spread.p99),
            max: ms(spread.max),
        }
    }
}

/// Where the waits of a tenant's requests went, ms in sum. The parts sum to the total.
#[derive(Clone, Debug, Serialize)]
pub struct Waits {
    /// All.
    pub total_ms: f64,
    /// Its own request ran.
    pub own_predecessor_ms: f64,
    /// Another tenant's request ran, by its name.
    pub other_tenant_ms: BTreeMap<String, f64>,
    /// The device was idle and was not given to it.
    pub reserved_idle_ms: f64,
    /// Something that it depends on was not done.
    pub dependency_ms: f64,
    /// The host's threads and the scheduler's tick.
    pub host_ms: f64,
    /// The guest had it, and the host had none of its requests; known of guests whose traces were given.
    pub guest_ms: f64,
}

/// A tenant in the window.
#[derive(Clone, Debug, Serialize)]
pub struct TenantReport {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: i64,
    /// Requests that were done in the window.
    pub requests: usize,
    /// Requests of which the end was not seen.
    pub unfinished: usize,
    /// Those of them that were over when a later one of their context ended: the events of their end are not there.
    pub overtaken: usize,
    /// Executions that ended with the request taken off its engine.
    pub preempted: usize,
    /// Use of each engine, % of the window, by the engine's name.
    pub utilisation: BTreeMap<String, f64>,
    /// Of a request from when it was first heard of, by its guest if that is traced and else by the host, to its first execution.
    pub wait: Times,
    /// Of a request on engines.
    pub execution: Times,
    /// Of a request from when it was first heard of to its end.
    pub latency: Times,
    /// Where the waits went.
    pub waits: Waits,
    /// Requests that waited, on average.
    pub queue: f64,
    /// The same by Little's law, from completions and their mean wait.
    pub queue_by_little: f64,
    /// From its first request to its last end, s.
    pub active_s: f64,
    /// How long it had requests, s.
    pub backlogged_s: f64,
    /// Its slices one after the other, as far as what it gained tells: they follow its weight.
    pub slices: Vec<SliceReport>,
    /// What was left of its slice when the device was taken from it, ms: the least. Below 0 it is a debt.
    pub least_left_ms: Option<f64>,
}

/// The slice of a tenant for some time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SliceReport {
    /// When it was first seen, s on the clock of the trace.
    pub from_s: f64,
    /// When it was last seen.
    pub to_s: f64,
    /// How long it is, ms of each 100 ms.
    pub slice_ms: f64,
}

/// An engine in the window.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: i64,
    /// Use, % of the window.
    pub utilisation: f64,
    /// How long it worked within the window, ms.
    pub busy_ms: f64,
    /// Requests that were done in the window.
    pub requests: usize,
    /// Of a request from when the host first heard of it until it was handed to the engine.
    pub software_queue: Times,
    /// Of a request from then until those before it had ended.
    pub hardware_queue: Times,
    /// Of a request on the engine.
    pub execution: Times,
}

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct FindingReport {
    /// What kind.
    pub rule: &'static str,
    /// Whom it is about.
    pub tenant: String,
    /// Who was in the way.
    pub culprit: Option<String>,
    /// What it cost, ms.
    pub cost_ms: Option<f64>,
    /// How long the tenant would have been active without it, ms.
    pub counterfactual_ms: Option<f64>,
    /// Jain's index of fairness.
    pub fairness: Option<f64>,
    /// In a sentence.
    pub says: String,
}

/// What had to leave the device's memory so that something else fitted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct EvictionReport {
    /// How often.
    pub times: u64,
    /// Bytes that left, or that room was made for, in sum.
    pub bytes: u64,
}

/// Events that did not fit.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MisfitReport {
    /// Of requests of which nothing else is known.
    pub unmatched: u64,
    /// A second time.
    pub repeated: u64,
    /// That cannot follow what came before.
    pub impossible: u64,
    /// Without the fields that name a request.
    pub nameless: u64,
    /// Requests that ended without having begun to run.
    pub never_ran: u64,
    /// Beyond the limit.
    pub left_out: u64,
    /// Buffers that went and of which the size is not known.
    pub unknown_objects: u64,
}

/// What is known of the tenants of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this document.
    pub schema_version: u32,
    /// From what the numbers are.
    pub provenance: &'static str,
    /// The window, s on the clock of the trace.
    pub from_s: f64,
    /// Its end.
    pub to_s: f64,
    /// By tenant.
    pub tenants: Vec<TenantReport>,
    /// By engine.
    pub engines: Vec<EngineReport>,
    /// Guests whose own traces were given as well.
    pub guests: Vec<JoinedReport>,
    /// How each GPU is shared, and what can be known then.
    pub sharing: Vec<SharingReport>,
    /// How much of GPUs each process had, by what drivers count and sample.
    pub counted: Vec<CountedReport>,
    /// Memory by whoever asked for it: bytes at the end, and at most.
    pub memory: BTreeMap<String, (u64, u64)>,
    /// What had to leave the device's memory in the window, by whose threads needed the room.
    pub evictions: BTreeMap<String, EvictionReport>,
    /// The threads of virtual machines on the host's CPUs; `None` where none is known, or no states of threads are.
    pub vcpus: Option<VcpuReport>,
    /// Where virtual CPUs would wait less; `None` where no machine is known.
    pub placement: Option<PlacementReport>,
    /// By device, what would have been under the policies that were asked for.
    pub what_if: Vec<WhatIfReport>,
    /// What was found.
    pub findings: Vec<FindingReport>,
    /// Events by their names.
    pub events: BTreeMap<&'static str, u64>,
    /// Events that are missing, and what is not known without them.
    pub missing: Vec<(&'static str, &'static str)>,
    /// Events that did not fit.
    pub misfits: MisfitReport,
    /// What changed since another run, if that was asked for.
    pub against: Option<Comparison>,
}

impl Report {
    /// Whether anything changed where two runs are compared, and else whether there is a finding.
    pub fn found_something(&self) -> bool {
        self.against.as_ref().map_or(!self.findings.is_empty(), |of| of.changed)
    }
}

/// What is asked of a trace.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only requests that end in it count, ns on the clock of the trace.
    pub window: Option<Range<i64>>,
    /// The policies that the requests of the whole trace are replayed under.
    pub what_if: Vec<WhatIf>,
    /// The weights that tenants had; others are taken to have had 1.
    pub weights: Weights,
    /// Another run to compare with.
    pub against: Option<Base>,
    /// Traces of guests, made at the same time.
    pub guests: Vec<GuestTrace>,
}

/// What of a trace counts, ns on its clock: from a time on, until before a time; all of it without either.
pub fn window(from: Option<Duration>, to: Option<Duration>) -> Option<Range<i64>> {
    let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    from.or(to)?;
    Some(from.map_or(i64::MIN, ns)..to.map_or(i64::MAX, ns))
}

/// A run that another one is compared with.
#[derive(Clone, Debug, Default)]
pub struct Base {
    /// Its trace.
    pub path: PathBuf,
    /// Only requests that end in it count, ns on the clock of that trace.
    pub window: Option<Range<i64>>,
}

/// What became of a trace: a report, and what its pictures are drawn from.
#[derive(Debug)]
pub struct Vgpu {
    /// The report.
    pub report: Report,
    title: String,
    model: Model,
    requests: Vec<Request>,
    owned: Vec<turns::Owned>,
    on_cpus: Option<OnCpus>,
    window: (i64, i64),
}

impl Vgpu {
    /// The page with pictures; at most `page::LIMIT` bytes unless tables alone are more.
    pub fn html(&self) -> String {
        page::html(self)
    }
}

/// Reads a trace and reports on its tenants.
///
/// # Errors
/// The trace, the one to compare with or that of a guest cannot be read, a window holds nothing of its trace, or nothing says
/// which requests of a guest are which of the host's.
pub fn vgpu(path: &Path, options: &Options) -> Result<Vgpu> {
    let source = TraceSource::open(path)?;
    let window = within(&source, path, options.window.as_ref())?;
    let (model, mut requests, guests) = follow(&source)?;
    let joined = joined::join(&model, &mut requests, &options.guests)?;
    let on_cpus = OnCpus::read(&source, &guests, &model.tenants)?;
    let mut report = report(&model, &requests, window);
    report.guests = joined;
    report.sharing = counted::sharing(&source, &model);
    report.counted = counted::counted(&source, window)?;
    let owned = turns::owned(&source, window)?;
    turns::instead(&mut report.counted, &owned, window);
    if requests.is_empty() && !report.counted.is_empty() {
        report.provenance = "counts and samples of drivers";
    }
    report.vcpus = on_cpus.as_ref().map(|of| of.report(window));
    report.placement = on_cpus.as_ref().zip(report.vcpus.as_ref()).map(|(of, vcpus)| {
        placement::report(of, &model, &requests, window, vcpus.machine_by_machine)
    });
    report.findings.extend(report.placement.as_ref().and_then(misplaced));
    report.findings.extend(overcommitted(&model, &report, window));
    report.what_if = what_if::report(&model, &requests, &options.what_if, &options.weights.0);
    let title = path.display().to_string();
    if let Some(base) = &options.against {
        let side = against::Side { title: &title, model: &model, requests: &requests, window };
        report.against = Some(compared(side, base)?);
    }
    Ok(Vgpu { report, title, model, requests, owned, on_cpus, window })
}

/// A run beside another one.
fn compared(run: against::Side<'_>, base: &Base) -> Result<Comparison> {
    let source = TraceSource::open(&base.path)?;
    let window = within(&source, &base.path, base.window.as_ref())?;
    let (model, requests, _) = follow(&source)?;
    let title = base.path.display().to_string();
    let base = against::Side { title: &title, model: &model, requests: &requests, window };
    Ok(against::compare(run, base))
}

/// What of a window a trace has, ns; all of it without one.
fn within(source: &TraceSource, path: &Path, asked: Option<&Range<i64>>) -> Result<(i64, i64)> {
    let known = source.trace().summary();
    let whole = (known.start.unwrap_or(0), known.end.map_or(0, |end| end.saturating_add(1)));
    let Some(asked) = asked else { return Ok(whole) };
    let (from, to) = (asked.start.max(whole.0), asked.end.min(whole.1));
    if from < to {
        return Ok((from, to));
    }
    // Where no end was asked for, it is the trace's.
    let end = if asked.end == i64::MAX { whole.1 } else { asked.end };
    let seconds = |ns: i64| ns as f64 / 1e9;
    Err(Error::EmptyWindow {
        path: path.to_owned(),
        from: seconds(asked.start.max(0)),
        to: seconds(end),
        begins: seconds(whole.0),
        ends: seconds(whole.1),
    })
}

/// The events of a trace as requests, and what they say of virtual machines.
fn follow(source: &TraceSource) -> Result<(Model, Vec<Request>, Guests)> {
    let trace = source.trace();
    let threads = Threads::of(source);
    let mut guests = Guests::named(source);
    let mut clients = counted::Clients::of(source);
    let mut marks: Vec<Mark> = Vec::new();
    for rows in trace.read::<Mark>(EVER) {
        for mark in rows? {
            clients.mark(&mark);
            if takes(&mark.name) {
                marks.push(mark);
            } else if let Some(thread) = threads.by_track.get(&mark.track) {
                guests.event(&mark.name, thread.entity);
            }
        }
    }
    let fields = Fields::read(trace, &marks)?;
    let thread = |mark: &Mark| threads.by_track.get(&mark.track);
    for (place, mark) in marks.iter().enumerate() {
        if mark.name.ends_with("gvt_workload_queue")
            && let Some(thread) = thread(mark)
        {
            let own = fields.of(place);
            guests.uses(&event(mark, &own, Some((thread.tid, thread.comm))), thread.entity);
        }
    }
    // What is asked for before the first request belongs to the machine that sends it.
    let mut model = Model::default();
    model.groups = guests.groups(source);
    model.clients = clients.names;
    for (place, mark) in marks.iter().enumerate() {
        let thread = thread(mark).map(|one| (one.tid, one.comm));
        model.event(&event(mark, &fields.of(place), thread));
    }
    let requests = model.finish();
    Ok((model, requests, guests))
}

/// A thread that a track belongs to.
#[derive(Clone, Copy, Debug)]
struct Thread<'a> {
    entity: EntityId,
    tid: Option<i64>,
    comm: &'a str,
}

/// The threads that tracks of marks belong to.
struct Threads<'a> {
    by_track: HashMap<TrackId, Thread<'a>>,
}

impl Threads<'_> {
    fn of(source: &TraceSource) -> Threads<'_> {
        let rows = source.entities_and_tracks();
        let threads: HashMap<EntityId, Thread<'_>> = rows
            .entity
            .iter()
            .filter(|one| one.kind == EntityKind::Thread)
            .map(|one| (one.id, Thread { entity: one.id, tid: one.number, comm: &one.name }))
            .collect();
        let of = |track: &gpuwhy_schema::Track| {
            threads.get(&track.entity).map(|thread| (track.id, *thread))
        };
        Threads { by_track: rows.track.iter().filter_map(of).collect() }
    }
}

/// What requests amount to.
fn report(model: &Model, requests: &[Request], window: (i64, i64)) -> Report {
    let usage = Usage::new(requests);
    let all = metrics::metrics(model, requests, &usage, window);
    let used = |one: &&TenantUse| one.done + one.unfinished > 0;
    let tenants = order::tenants(model).into_iter().map(|at| &all.tenants[at]).filter(used);
    let tenants = tenants.map(|one| tenant(model, requests, &all, one)).collect();
    let engines = order::engines(model).into_iter();
    let engines = engines.filter_map(|at| all.engines.iter().find(|one| one.engine == at));
    let engines = engines.map(|one| EngineReport {
        name: model.engines[one.engine].name.clone(),
        device: model.engines[one.engine].device,
        utilisation: percent(one.busy, &all),
        busy_ms: one.busy as f64 / MS,
        requests: one.done,
        software_queue: Times::of(&one.software),
        hardware_queue: Times::of(&one.hardware),
        execution: Times::of(&one.executions),
    });
    Report {
        schema_version: SCHEMA_VERSION,
        provenance: "exact intervals of requests",
        from_s: window.0 as f64 / 1e9,
        to_s: window.1 as f64 / 1e9,
        tenants,
        engines: engines.collect(),
        guests: Vec::new(),
        sharing: Vec::new(),
        counted: Vec::new(),
        memory: model.memory.iter().map(|(who, of)| (who.clone(), (of.live, of.peak))).collect(),
        evictions: evictions(model, window),
        vcpus: None,
        placement: None,
        what_if: Vec::new(),
        findings: judged(model, requests, &usage, &all),
        events: RULES.iter().zip(model.counts.0).filter(|(_, n)| *n > 0).map(counted).collect(),
        missing: model.missing(),
        misfits: misfits(model),
        against: None,
    }
}

fn counted((rule, n): (&gpuwhy_derive::vgpu::rules::Rule, u64)) -> (&'static str, u64) {
    (rule.event, n)
}

fn misfits(model: &Model) -> MisfitReport {
    let of = model.misfits;
    MisfitReport {
        unmatched: of.unmatched,
        repeated: of.repeated,
        impossible: of.impossible,
        nameless: of.nameless,
        never_ran: of.never_ran,
        left_out: of.left_out,
        unknown_objects: of.unknown_objects,
    }
}

fn percent(time: i64, of: &Metrics) -> f64 {
    percent_of(time as f64, of.window)
}

fn percent_of(time: f64, window: (i64, i64)) -> f64 {
    100.0 * time / (window.1 - window.0).max(1) as f64
}

/// The slices of a tenant within the window.
fn slices(model: &Model, requests: &[Request], at: usize, window: (i64, i64)) -> Vec<SliceReport> {
    let inside = |time: &i64| window.0 <= *time && *time < window.1;
    let own = model.slices.iter().filter(|one| one.tenant == at && inside(&one.at));
    let taken: Vec<(i64, i64)> = own.map(|one| (one.at, one.left)).collect();
    let own = requests.iter().filter(|one| one.tenant == at);
    let mut handed: Vec<i64> =
        own.filter_map(|one| one.when(Stage::VgpuSubmitted)).filter(inside).collect();
    handed.sort_unstable();
    let found = slices::slices(&taken, &handed).into_iter();
    found
        .map(|one| SliceReport {
            from_s: one.from as f64 / 1e9,
            to_s: one.to as f64 / 1e9,
            slice_ms: one.slice as f64 / MS,
        })
        .collect()
}

fn tenant(model: &Model, requests: &[Request], all: &Metrics, one: &TenantUse) -> TenantReport {
    let who = &model.tenants[one.tenant];
    let utilisation = one
        .busy
        .iter()
        .map(|(engine, busy)| (model.engines[*engine].name.clone(), percent(*busy, all)));
    let left = model.slices.iter().filter(|slice| slice.tenant == one.tenant);
    TenantReport {
        name: who.name.clone(),
        device: who.device,
        requests: one.done,
        unfinished: one.unfinished,
        overtaken: one.overtaken,
        preempted: one.preempted,
        utilisation: utilisation.collect(),
        wait: Times::of(&one.waits),
        execution: Times::of(&one.executions),
        latency: Times::of(&one.latencies),
        waits: waits(model, &one.wait),
        queue: one.queue,
        queue_by_little: one.little,
        active_s: one.active.map_or(0.0, |(from, to)| (to - from) as f64 / 1e9),
        backlogged_s: one.backlogged as f64 / 1e9,
        slices: slices(model, requests, one.tenant, all.window),
        least_left_ms: left.map(|slice| slice.left).min().map(|left| left as f64 / MS),
    }
}

fn waits(model: &Model, wait: &Wait) -> Waits {
    let others = wait.others.iter();
    let others =
        others.map(|(who, time)| (model.tenants[*who].name.clone(), *time as f64 / MS)).collect();
    Waits {
        total_ms: wait.total as f64 / MS,
        own_predecessor_ms: wait.predecessor as f64 / MS,
        other_tenant_ms: others,
        reserved_idle_ms: wait.reserved as f64 / MS,
        dependency_ms: wait.dependency as f64 / MS,
        host_ms: wait.host as f64 / MS,
        guest_ms: wait.guest as f64 / MS,
    }
}

/// Each tenant over the time in which it was active within the window.
fn judged(model: &Model, requests: &[Request], usage: &Usage, all: &Metrics) -> Vec<FindingReport> {
    let facts: Vec<TenantFacts> = all
        .tenants
        .iter()
        .filter_map(|one| {
            let (from, to) = one.active?;
            let window = (from.max(all.window.0), (to + 1).min(all.window.1));
            let own = metrics::tenant(one.tenant, requests, usage, window);
            let device = model.tenants[one.tenant].device;
            let of_device = |of: i64| of == device;
            let engines = model.engines.iter().enumerate();
            let engines: Vec<usize> =
                engines.filter(|(_, of)| of_device(of.device)).map(|(at, _)| at).collect();
            let others = model.tenants.iter().enumerate();
            let others = others.filter(|(at, of)| *at != one.tenant && of_device(of.device));
            Some(TenantFacts {
                name: model.tenants[one.tenant].name.clone(),
                active: window.1 - window.0,
                backlogged: own.backlogged,
                busy: own.busy.values().sum(),
                withheld: own.withheld,
                withheld_times: own.withheld_times,
                blocked: own.blocked,
                done: own.done,
                queue: own.queue,
                others: others
                    .map(|(at, other)| {
                        let (busy, median) = metrics::use_of(at, requests, usage, &engines, window);
                        (other.name.clone(), busy, median)
                    })
                    .collect(),
            })
        })
        .collect();
    findings(&facts).into_iter().map(told).collect()
}

/// Whether virtual CPUs should be on other CPUs.
fn misplaced(of: &PlacementReport) -> Option<FindingReport> {
    let to_say = |one: &MoveReport| {
        let MoveReport { vcpu, from_cpu, to_cpu, instead } = one;
        let instead = instead.as_ref().map_or_else(String::new, |who| format!(", and {who} there"));
        format!("{vcpu} from CPU {from_cpu} to CPU {to_cpu}{instead}")
    };
    let ns = |seconds: f64| (seconds * 1e9) as i64;
    let facts = PlacementFacts {
        tenant: of.moves.first().map(|one| one.vcpu.clone())?,
        moves: of.moves.iter().map(to_say).collect(),
        preemptions: (of.preemptions, of.preemptions_foretold),
        waited: (ns(of.waited_s), ns(of.waited_foretold_s)),
        ran: ns(of.ran_s),
    };
    placement_finding(&facts).map(told)
}

/// The evictions of a window.
fn evicted(model: &Model, window: (i64, i64)) -> impl Iterator<Item = &Eviction> {
    model.evictions.iter().filter(move |one| (window.0..window.1).contains(&one.at))
}

fn evictions(model: &Model, window: (i64, i64)) -> BTreeMap<String, EvictionReport> {
    let mut all: BTreeMap<String, EvictionReport> = BTreeMap::new();
    for one in evicted(model, window) {
        let sum = all.entry(one.by.clone()).or_default();
        sum.times += 1;
        sum.bytes = sum.bytes.saturating_add(one.bytes);
    }
    all
}

/// Whether tenants want more memory than there is.
fn overcommitted(model: &Model, of: &Report, window: (i64, i64)) -> Option<FindingReport> {
    let first = evicted(model, window).map(|one| one.live).min().unwrap_or(0);
    let facts = MemoryFacts {
        evictions: of.evictions.values().map(|one| one.times as usize).sum(),
        evicted: of.evictions.values().fold(0, |sum: u64, one| sum.saturating_add(one.bytes)),
        live: (first, model.all_memory.peak),
        holders: of.memory.iter().map(|(who, (_, most))| (who.clone(), *most)).collect(),
    };
    memory_finding(&facts).map(told)
}

fn told(one: Finding) -> FindingReport {
    FindingReport {
        rule: one.rule.as_str(),
        tenant: one.tenant,
        culprit: one.culprit,
        cost_ms: one.cost.map(|ns| ns as f64 / MS),
        counterfactual_ms: one.counterfactual.map(|ns| ns as f64 / MS),
        fairness: one.fairness,
        says: one.says,
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_collect::GPU_EVENTS;
    use gpuwhy_derive::vgpu::rules::RULES;

    #[test]
    fn what_the_model_knows_is_what_record_asks_the_kernel_for() {
        let known: Vec<&str> = RULES.iter().map(|rule| rule.event).collect();
        assert_eq!(known, GPU_EVENTS);
    }
}
