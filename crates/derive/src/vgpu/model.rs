//! From events to requests: which events belong to one request, and what they do to it.
//!
//! # How
//! A request is known by several names (its workload, its number in its context, its number on the engine, its
//! fence); each event looks it up by the one that it has. Numbers are compared by their low 32 bits, since some events
//! cut them. A name whose request has ended belongs to a new request when an event comes that begins one.
//!
//! *Invariant:* executions of an engine do not overlap: what was handed to it while another request runs begins when
//! that one ends. Events that cannot be are counted and change nothing.

use std::collections::BTreeMap;

use foldhash::HashMap;

use super::event::Event;
use super::request::{Execution, Outcome, Request, Stage, Tenant, TenantKey, in_order};
use super::rules::{self, Action, Key, RULES, Rule, fields};

/// Requests that are held at most; further ones are counted and left out.
const REQUESTS: usize = 20_000_000;
/// The device's own memory among the places of TTM (include/drm/ttm/ttm_placement.h).
const VRAM: i64 = 2;
/// Buffers of which the size is remembered at most.
const OBJECTS: usize = 1 << 22;

/// By what an engine is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum EngineKey {
    Class(i64, i64),
    Name(String),
}

/// An engine of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// The number of the device.
    pub device: i64,
    /// What users are shown.
    pub name: String,
    key: EngineKey,
    /// When it ended its last execution.
    idle_since: i64,
}

/// A name of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Id {
    Request(i64, usize, i64, u32),
    Global(i64, usize, u32),
    Workload(i64, i64, i64),
    Fence(i64, u32),
    Job(i64),
    Command(i64, usize, i64),
}

/// What is left of a virtual GPU's slice when the device is taken from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// When, ns.
    pub at: i64,
    /// The place of the tenant in [`Model::tenants`].
    pub tenant: usize,
    /// What is left, ns; below 0 it is a debt.
    pub left: i64,
}

/// Memory that one thread or process asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Buffers that were made.
    pub made: u64,
    /// Bytes of those that are left at the end.
    pub live: u64,
    /// The most bytes at any time.
    pub peak: u64,
}

/// Something had to leave the device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// When, ns.
    pub at: i64,
    /// Bytes that left, or that room was made for.
    pub bytes: u64,
    /// Bytes of all buffers that were made and are not gone, as far as events tell.
    pub live: u64,
    /// Whose thread needed the room.
    pub by: String,
}

/// Events that did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misfits {
    /// Events of a request of which nothing else is known.
    pub unmatched: u64,
    /// Events that a request had already.
    pub repeated: u64,
    /// Events that cannot follow what was seen of their request before.
    pub impossible: u64,
    /// Events without the fields that name their request.
    pub nameless: u64,
    /// Requests that ended without having begun to run.
    pub never_ran: u64,
    /// Requests beyond the limit, which are left out.
    pub left_out: u64,
    /// Buffers that went and of which the size is not known.
    pub unknown_objects: u64,
}

/// How many events there were of each rule.
#[derive(Clone, Copy, Debug)]
pub struct Counts(pub [u64; RULES.len()]);

impl Default for Counts {
    fn default() -> Counts {
        Counts([0; RULES.len()])
    }
}

/// Follows events.
#[derive(Debug, Default)]
pub struct Model {
    /// Engines, in the order in which they appeared.
    pub engines: Vec<Engine>,
    /// Tenants, in the order in which they appeared.
    pub tenants: Vec<Tenant>,
    /// Slices of virtual GPUs.
    pub slices: Vec<Slice>,
    /// Who stands for a thread, by its number: what it asks for counts as theirs.
    pub groups: BTreeMap<i64, String>,
    /// Whose a client of a driver is, by its number.
    pub clients: BTreeMap<i64, String>,
    /// Memory by whoever asked for it.
    pub memory: BTreeMap<String, Memory>,
    /// The same of all together.
    pub all_memory: Memory,
    /// What had to leave the device's memory, in the order of time.
    pub evictions: Vec<Eviction>,
    /// Events that did not fit.
    pub misfits: Misfits,
    /// How many events there were of each rule.
    pub counts: Counts,
    /// The time of the first event and of the last.
    pub span: Option<(i64, i64)>,
    requests: Vec<Live>,
    ids: HashMap<Id, usize>,
    owners: HashMap<(i64, i64), usize>,
    objects: HashMap<i64, (String, u64)>,
}

/// A request with what is needed to follow it.
#[derive(Debug)]
struct Live {
    request: Request,
    /// The rules whose events it had, as bits.
    seen: u64,
    /// Since when an engine has it.
    handed: Option<i64>,
    /// It turned out to be another one, which has its times.
    absorbed: bool,
    ids: Vec<Id>,
}

impl Model {
    /// Takes the next event. Events come in the order of their times; those that are of no concern are passed over.
    pub fn event(&mut self, event: &Event<'_>) {
        let Some(place) = RULES.iter().position(|rule| rule.event == event.short_name()) else {
            return;
        };
        self.counts.0[place] += 1;
        let span = self.span.get_or_insert((event.time, event.time));
        span.1 = span.1.max(event.time);
        let rule = &RULES[place];
        match rule.action {
            Action::Slice => self.slice(event),
            Action::ObjectMade => self.object_made(event),
            Action::ObjectGone => self.object_gone(event),
            Action::Evicted => self.evicted(event),
            Action::To(_) | Action::Out => self.transition(event, rule, place),
        }
    }

    /// Ends the trace: the requests, by the time that the host first heard of them.
    pub fn finish(&mut self) -> Vec<Request> {
        let live = std::mem::take(&mut self.requests);
        self.ids.clear();
        let mut out: Vec<Request> =
            live.into_iter().filter(|one| !one.absorbed).map(|one| one.request).collect();
        in_order(&mut out);
        out
    }

    /// What cannot be told because events are missing that a vendor's events go together with.
    pub fn missing(&self) -> Vec<(&'static str, &'static str)> {
        let any = |prefix: &str| {
            RULES.iter().zip(self.counts.0).any(|(r, n)| n > 0 && r.event.starts_with(prefix))
        };
        let old = any("i915_gem_request");
        let wanted = |rule: &Rule| match rule.event {
            event if event.starts_with("gvt_") => any("gvt_"),
            event if event.starts_with("i915_gem_request") => old,
            _ => false,
        };
        let absent = RULES.iter().zip(self.counts.0).filter(|(rule, n)| *n == 0 && wanted(rule));
        absent.map(|(r, _)| (r.event, r.without)).filter(|(_, what)| !what.is_empty()).collect()
    }

    fn transition(&mut self, event: &Event<'_>, rule: &Rule, place: usize) {
        let device = event.integer(fields::DEVICE).unwrap_or(0);
        let Some(engine) = self.engine(event, rule, device) else {
            return self.by_fence(event, rule, place);
        };
        let Some(id) = id(event, rule.key, device, engine) else {
            self.misfits.nameless += 1;
            return;
        };
        let Some(at) = self.find(event, rule, id, (device, engine)) else { return };
        if rule.key == Key::Workload {
            self.names_of_workload(event, at, device);
        }
        let at = self.joined(event, rule, at, (device, engine));
        if let Some(global) = event.integer(fields::GLOBAL).filter(|n| *n > 0)
            && rule.action == Action::To(Stage::Running)
        {
            self.name(Id::Global(device, engine, global as u32), at);
        }
        self.apply(at, event, rule, place);
    }

    /// An event that names no engine, only a fence or a job.
    fn by_fence(&mut self, event: &Event<'_>, rule: &Rule, place: usize) {
        let Some(id) = id(event, rule.key, 0, 0) else {
            self.misfits.nameless += 1;
            return;
        };
        match self.ids.get(&id).copied() {
            Some(at) => self.apply(at, event, rule, place),
            // Most fences are not of jobs.
            None if rule.event == "dma_fence_signaled" => {}
            None => self.misfits.unmatched += 1,
        }
    }

    /// The request that an event is about; a new one where none is known and the event may begin one.
    fn find(
        &mut self,
        event: &Event<'_>,
        rule: &Rule,
        id: Id,
        (device, engine): (i64, usize),
    ) -> Option<usize> {
        if let Some(&at) = self.ids.get(&id) {
            let live = &self.requests[at];
            let over = live.request.stage >= Stage::Done;
            let resumed = rule.action == Action::To(Stage::Running)
                && live.request.stage < Stage::Retired
                && live.request.when(Stage::HostQueued).is_some();
            if !(over && rule.begins) || resumed {
                return Some(at);
            }
        } else if !rule.begins {
            // Notifications tell of all requests of an engine, and of its own use of it.
            self.misfits.unmatched += u64::from(rule.key != Key::Global && rule.key != Key::Fence);
            return None;
        }
        if self.requests.len() >= REQUESTS {
            self.misfits.left_out += 1;
            return None;
        }
        let tenant = self.tenant_of(event, rule, device);
        let context = event.integer(fields::CONTEXT).unwrap_or(-1);
        let sequence = event.integer(fields::SEQUENCE).or(event.integer(fields::ID)).unwrap_or(-1);
        let request = Request {
            device,
            engine,
            tenant,
            context,
            sequence,
            at: [None; Stage::COUNT],
            stage: Stage::GuestQueued,
            executions: Vec::new(),
            outcome: Outcome::Unfinished,
        };
        self.requests.push(Live {
            request,
            seen: 0,
            handed: None,
            absorbed: false,
            ids: Vec::new(),
        });
        let at = self.requests.len() - 1;
        self.name(id, at);
        Some(at)
    }

    fn name(&mut self, id: Id, at: usize) {
        self.ids.insert(id.clone(), at);
        self.requests[at].ids.push(id);
    }

    /// Whose a new request is.
    fn tenant_of(&mut self, event: &Event<'_>, rule: &Rule, device: i64) -> usize {
        let vgpu = event.integer(fields::VGPU).filter(|_| rule.key == Key::Workload);
        let context = event.integer(fields::CONTEXT);
        if let Some(&owner) = context.and_then(|ctx| self.owners.get(&(device, ctx))) {
            return owner;
        }
        let client = event.integer(fields::CLIENT);
        let (key, name) = match (vgpu, client, event.tid) {
            (Some(id), ..) => (TenantKey::Vgpu(id), format!("vGPU {id}")),
            (None, Some(id), _) => {
                let whose = self.clients.get(&id).map(|who| format!("{who}, "));
                (TenantKey::Client(id), format!("{}client {id}", whose.unwrap_or_default()))
            }
            (None, None, Some(tid)) if tid > 0 => {
                let comm = event.comm.unwrap_or("thread");
                (TenantKey::Thread(tid), format!("{comm} ({tid})"))
            }
            _ => (TenantKey::Unknown, "not known".to_owned()),
        };
        self.tenant(device, key, name)
    }

    fn tenant(&mut self, device: i64, key: TenantKey, name: String) -> usize {
        let known = self.tenants.iter().position(|one| one.device == device && one.key == key);
        known.unwrap_or_else(|| {
            self.tenants.push(Tenant { device, key, name });
            self.tenants.len() - 1
        })
    }

    /// A workload that was handed to the host's driver is known there by its context and number.
    fn names_of_workload(&mut self, event: &Event<'_>, at: usize, device: i64) {
        let named = event.integer(fields::CONTEXT).zip(event.integer(fields::SEQUENCE));
        let Some((context, sequence)) = named else { return };
        let request = &mut self.requests[at].request;
        (request.context, request.sequence) = (context, sequence);
        let owner = request.tenant;
        self.owners.insert((device, context), owner);
    }

    /// The host's driver may have told of a workload's request before GVT-g does: then the two are one.
    fn joined(
        &mut self,
        event: &Event<'_>,
        rule: &Rule,
        at: usize,
        (device, engine): (i64, usize),
    ) -> usize {
        let Some(id) = id(event, Key::Request, device, engine) else { return at };
        if rule.key != Key::Workload {
            return at;
        }
        let other = self.ids.get(&id).copied();
        let other = other.filter(|i| *i != at && self.requests[*i].request.stage < Stage::Retired);
        // A number that was used before belongs to an older request.
        let fresh = other.filter(|i| {
            let (host, own) = (&self.requests[*i].request, &self.requests[at].request);
            host.when(Stage::VgpuSubmitted).is_none() && host.queued() >= own.queued()
        });
        if let Some(host) = fresh {
            let early = std::mem::take(&mut self.requests[host]);
            self.requests[host].absorbed = true;
            let live = &mut self.requests[at];
            for (mine, theirs) in live.request.at.iter_mut().zip(early.request.at) {
                *mine = mine.or(theirs);
            }
            live.request.stage = live.request.stage.max(early.request.stage);
            live.request.executions = early.request.executions;
            live.request.outcome = early.request.outcome;
            live.seen |= early.seen;
            live.handed = live.handed.or(early.handed);
            for id in early.ids {
                self.name(id, at);
            }
        } else {
            self.name(id, at);
        }
        at
    }

    /// Does to a request what the event says.
    fn apply(&mut self, at: usize, event: &Event<'_>, rule: &Rule, place: usize) {
        let live = &mut self.requests[at];
        let bit = 1u64 << place;
        let again = live.seen & bit != 0;
        live.seen |= bit;
        let stage = live.request.stage;
        match rule.action {
            Action::To(Stage::Running) => self.runs(at, event.time, again),
            Action::Out => {
                let preempted = event.integer(fields::COMPLETED) == Some(0);
                match stage {
                    Stage::Running => self.leaves(at, event.time, preempted),
                    // A notification came first.
                    Stage::Done | Stage::Notified if !again => {}
                    _ if again => self.misfits.repeated += 1,
                    _ => self.misfits.impossible += 1,
                }
            }
            _ if again => self.misfits.repeated += 1,
            Action::To(Stage::Done) => match stage {
                Stage::Running => self.leaves(at, event.time, false),
                stage if stage < Stage::Running => self.never_ran(at, event.time),
                _ => self.misfits.impossible += 1,
            },
            Action::To(Stage::Notified) => {
                if stage == Stage::Running {
                    self.leaves(at, event.time, false);
                } else if stage < Stage::Running && matches!(rule.key, Key::Workload | Key::Command)
                {
                    self.unseen_execution(at, event.time);
                }
                self.enter(at, Stage::Notified, event.time);
            }
            Action::To(Stage::Retired) => self.retire(at, event.time),
            Action::To(to) => {
                // The events of GVT-g and of the host's driver come in either order, and so do those of one moment.
                let submit = to == Stage::VgpuSubmitted && stage <= Stage::Running;
                let known = live.request.at.iter().flatten().min();
                let at_once = known.is_some_and(|first| event.time <= *first);
                if stage > to && !submit && !at_once {
                    self.misfits.impossible += u64::from(live.request.when(to).is_none());
                    return;
                }
                self.enter(at, to, event.time);
            }
            _ => {}
        }
    }

    fn enter(&mut self, at: usize, stage: Stage, now: i64) {
        let request = &mut self.requests[at].request;
        request.at[stage as usize].get_or_insert(now);
        request.stage = request.stage.max(stage);
    }

    /// An engine gets a request, perhaps again.
    fn runs(&mut self, at: usize, now: i64, again: bool) {
        let live = &mut self.requests[at];
        match live.request.stage {
            Stage::Running => {
                self.misfits.repeated += u64::from(again);
                return;
            }
            // It had left the engine, and not because its work was done.
            Stage::Done | Stage::Notified => {
                if let Some(last) = live.request.executions.last_mut() {
                    last.preempted = true;
                }
                live.request.at[Stage::Done as usize] = None;
                live.request.at[Stage::Notified as usize] = None;
                live.request.outcome = Outcome::Unfinished;
            }
            _ => {}
        }
        live.handed = Some(now);
        live.request.stage = Stage::Running;
        live.request.at[Stage::Running as usize].get_or_insert(now);
    }

    /// An engine lets go of a request.
    fn leaves(&mut self, at: usize, now: i64, preempted: bool) {
        let live = &mut self.requests[at];
        let engine = &mut self.engines[live.request.engine];
        if let Some(handed) = live.handed.take() {
            let from = handed.max(engine.idle_since).min(now);
            live.request.executions.push(Execution { from, to: now, preempted });
            engine.idle_since = engine.idle_since.max(now);
        }
        if preempted {
            live.request.stage = Stage::Preempted;
            live.request.at[Stage::Preempted as usize].get_or_insert(now);
        } else {
            live.request.stage = Stage::Done;
            live.request.at[Stage::Done as usize] = Some(now);
            live.request.outcome = Outcome::Done;
        }
    }

    /// Only GVT-g's events are traced, or a guest's: it ran after it was handed over and after what ran before it.
    fn unseen_execution(&mut self, at: usize, now: i64) {
        let live = &mut self.requests[at];
        let handed = live.request.when(Stage::VgpuSubmitted);
        match handed.or(live.request.when(Stage::GuestSubmitted)) {
            Some(handed) => {
                live.handed = Some(handed);
                self.leaves(at, now, false);
            }
            None => self.never_ran(at, now),
        }
    }

    /// It ended and nothing was seen of its execution.
    fn never_ran(&mut self, at: usize, now: i64) {
        self.misfits.never_ran += 1;
        self.leaves(at, now, false);
    }

    fn retire(&mut self, at: usize, now: i64) {
        if self.requests[at].request.stage < Stage::Done {
            self.never_ran(at, now);
        }
        self.enter(at, Stage::Retired, now);
        // Its names are free.
        for id in std::mem::take(&mut self.requests[at].ids) {
            if self.ids.get(&id) == Some(&at) && !matches!(id, Id::Workload(..)) {
                self.ids.remove(&id);
            } else {
                self.requests[at].ids.push(id);
            }
        }
    }

    fn slice(&mut self, event: &Event<'_>) {
        let device = event.integer(fields::DEVICE).unwrap_or(0);
        match event.integer(fields::VGPU).zip(event.integer(fields::LEFT)) {
            Some((id, left)) => {
                let tenant = self.tenant(device, TenantKey::Vgpu(id), format!("vGPU {id}"));
                self.slices.push(Slice { at: event.time, tenant, left });
            }
            None => self.misfits.nameless += 1,
        }
    }

    fn object_made(&mut self, event: &Event<'_>) {
        let Some((object, size)) = event.integer(fields::OBJECT).zip(event.integer(fields::SIZE))
        else {
            self.misfits.nameless += 1;
            return;
        };
        let owner = self.asks(event);
        if self.objects.len() >= OBJECTS {
            self.misfits.left_out += 1;
            return;
        }
        let size = u64::try_from(size).unwrap_or(0);
        for memory in [self.memory.entry(owner.clone()).or_default(), &mut self.all_memory] {
            memory.made += 1;
            memory.live = memory.live.saturating_add(size);
            memory.peak = memory.peak.max(memory.live);
        }
        // An address that is made twice went in between, unseen.
        if let Some((before, size)) = self.objects.insert(object, (owner, size)) {
            self.misfits.repeated += 1;
            self.freed(&before, size);
        }
    }

    fn object_gone(&mut self, event: &Event<'_>) {
        match event.integer(fields::OBJECT).and_then(|object| self.objects.remove(&object)) {
            Some((owner, size)) => self.freed(&owner, size),
            None => self.misfits.unknown_objects += 1,
        }
    }

    fn freed(&mut self, owner: &str, size: u64) {
        if let Some(memory) = self.memory.get_mut(owner) {
            memory.live = memory.live.saturating_sub(size);
        }
        self.all_memory.live = self.all_memory.live.saturating_sub(size);
    }

    /// Who asks for memory by an event: the machine of the thread, or the thread.
    fn asks(&self, event: &Event<'_>) -> String {
        let group = event.tid.and_then(|tid| self.groups.get(&tid));
        match (group, event.comm, event.tid) {
            (Some(group), ..) => group.clone(),
            (None, Some(comm), Some(tid)) => format!("{comm} ({tid})"),
            (None, None, Some(tid)) => format!("thread {tid}"),
            (None, _, None) => "not known".to_owned(),
        }
    }

    fn evicted(&mut self, event: &Event<'_>) {
        let places = event.integer(fields::FROM_PLACE).zip(event.integer(fields::TO_PLACE));
        // What moves between other places, or comes to the device, makes no room there.
        if places.is_some_and(|(from, to)| from != VRAM || to == VRAM) {
            return;
        }
        let Some(size) = event.integer(fields::SIZE) else {
            self.misfits.nameless += 1;
            return;
        };
        if self.evictions.len() >= OBJECTS {
            self.misfits.left_out += 1;
            return;
        }
        let (bytes, by) = (u64::try_from(size).unwrap_or(0), self.asks(event));
        let live = self.all_memory.live;
        self.evictions.push(Eviction { at: event.time, bytes, live, by });
    }

    /// The engine of an event; `None` if it names none.
    fn engine(&mut self, event: &Event<'_>, rule: &Rule, device: i64) -> Option<usize> {
        let class = event.integer(fields::CLASS).zip(event.integer(fields::INSTANCE));
        let key = if let Some((class, instance)) = class {
            EngineKey::Class(class, instance)
        } else if let Some(ring) = event.integer(fields::RING) {
            let (class, instance) = *RINGS.get(usize::try_from(ring).ok()?)?;
            EngineKey::Class(class, instance)
        } else if rule.event == "dma_fence_signaled" {
            return None;
        } else {
            EngineKey::Name(event.text(fields::TIMELINE)?.to_owned())
        };
        let known = self.engines.iter().position(|one| one.device == device && one.key == key);
        Some(known.unwrap_or_else(|| {
            let name = match &key {
                EngineKey::Class(class, instance) => {
                    let class = usize::try_from(*class).ok().and_then(|class| CLASSES.get(class));
                    format!("{}{instance}", class.unwrap_or(&"engine"))
                }
                EngineKey::Name(name) => name.clone(),
            };
            self.engines.push(Engine { device, name, key, idle_since: i64::MIN });
            self.engines.len() - 1
        }))
    }
}

impl Default for Live {
    fn default() -> Live {
        Live {
            request: Request {
                device: 0,
                engine: 0,
                tenant: 0,
                context: -1,
                sequence: -1,
                at: [None; Stage::COUNT],
                stage: Stage::GuestQueued,
                executions: Vec::new(),
                outcome: Outcome::Unfinished,
            },
            seen: 0,
            handed: None,
            absorbed: true,
            ids: Vec::new(),
        }
    }
}

/// Names of i915's classes of engines.
const CLASSES: [&str; 5] = ["render", "copy", "video", "video-enhance", "compute"];
/// Class and instance of i915's and GVT-g's rings by their numbers.
const RINGS: [(i64, i64); 5] = [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)];

/// The name of a request in an event.
fn id(event: &Event<'_>, key: Key, device: i64, engine: usize) -> Option<Id> {
    let sequence = || event.integer(fields::SEQUENCE).map(|n| n as u32);
    Some(match key {
        Key::Request => Id::Request(device, engine, event.integer(fields::CONTEXT)?, sequence()?),
        Key::Global => Id::Global(device, engine, sequence()?),
        Key::Workload => {
            Id::Workload(device, event.integer(fields::VGPU)?, event.integer(fields::WORKLOAD)?)
        }
        Key::Fence => Id::Fence(event.integer(fields::CONTEXT)?, sequence()?),
        Key::Job => Id::Job(event.integer(fields::FENCE)?),
        Key::Command => {
            let fence = || event.integer(fields::FENCE_ID).filter(|n| *n != 0);
            let number = sequence().map(i64::from).or_else(fence);
            Id::Command(device, engine, number?)
        }
    })
}

/// Whether the model takes an event, by its name.
pub fn takes(name: &str) -> bool {
    rules::of(name.rsplit(':').next().unwrap_or(name)).is_some()
}
