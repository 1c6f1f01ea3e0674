//! The phases of the programs in a profile, and what they spent them on.
//!
//! Only programs whose calls of CUDA or MPI a profiler recorded have phases here; gpuwhy's own recordings have no
//! such calls. The rows are read once, in the order of time; what is kept are disjoint stretches of time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gpuwhy_derive::calls::CallKind;
use gpuwhy_derive::devices::Above;
use gpuwhy_derive::os_calls;
use gpuwhy_derive::phases::{self, Activity, PhaseKind};
use gpuwhy_derive::{Interval, clip, subtract, union};
use gpuwhy_diagnose::detect::{Detection, Step};
use gpuwhy_report::table;
use gpuwhy_schema::{
    ClockError, Copy, CopyKind, EntityId, EntityKind, Id, Kernel, Name, Ns, Rows, SourceId, Span,
    TrackId, names, sources,
};
use gpuwhy_store::{Read, Trace};
use serde::Serialize;

use crate::error::Result;
use crate::source::{EVER, TraceSource};

/// Programs that are told: of more, those whose calls took most time. The others are counted.
const PROGRAMS: usize = 256;
/// Threads of a program whose calls are followed, in the order of their first calls. The others are counted.
const THREADS: usize = 64;
/// What takes this share of the time is told of a program, whether or not anything is slower than usual.
const MOST: f64 = 0.5;
/// What takes a smaller share of a phase is not listed.
const LISTED: f64 = 0.01;
/// A phase that holds this share of a program's time is worth a statement of its own.
const WORTH: f64 = 0.2;

/// The programs of a trace.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// By their ranks and pids.
    pub told: Vec<Program>,
    /// What was not looked at; `None` if all was.
    pub not_told: Option<NotTold>,
}

/// Programs and threads that were not looked at, because there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NotTold {
    /// Programs with calls: the others spent more time in theirs.
    pub programs: usize,
    /// Of so many.
    pub of_programs: usize,
    /// Threads with calls, of the programs that are told.
    pub threads: usize,
}

impl NotTold {
    /// For people.
    pub fn text(&self) -> String {
        let NotTold { programs, of_programs, threads } = *self;
        let mut not = Vec::new();
        if programs > 0 {
            not.push(format!(
                "{programs} of {of_programs} programs, which spent less time in calls than the others"
            ));
        }
        if threads > 0 {
            not.push(format!(
                "{threads} threads, which called later than the first {THREADS} of their programs"
            ));
        }
        format!("not looked at: {}", not.join("; "))
    }
}

/// A program, its phases, and what it spent its time on.
#[derive(Clone, Debug, Serialize)]
pub struct Program {
    /// Its name.
    pub process: String,
    /// Its pid.
    pub pid: Option<i64>,
    /// Its rank, where it is known.
    pub rank: Option<i64>,
    /// One behind the other, from its first call to its last.
    pub phases: Vec<Phase>,
    /// What takes most of its time, in words.
    pub mostly: Vec<String>,
    /// Its process.
    #[serde(skip)]
    pub entity: EntityId,
    /// When calls of its main thread that wait for the GPU ended.
    #[serde(skip)]
    pub waits: Vec<Ns>,
}

/// A phase of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// What it is called.
    pub name: String,
    /// `set_up`, `work`, `between`, `end`, or `whole` if the program has no phases.
    pub kind: &'static str,
    /// When it begins, ns on the trace clock.
    pub from_ns: i64,
    /// When it ends.
    pub to_ns: i64,
    /// What it was spent on.
    pub spent: Spent,
    /// Phases of one program with the same number do the same: they are iterations.
    #[serde(skip)]
    pub series: usize,
}

/// What a stretch of time of a program was spent on. The GPUs' times and the thread's overlap.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Spent {
    /// Any kernel ran.
    pub kernels_ms: f64,
    /// Any copy ran; memsets are none.
    pub copies_ms: f64,
    /// A copy ran and no kernel did.
    pub copies_alone_ms: f64,
    /// Pages of managed memory were moved, or a GPU waited for them.
    pub managed_ms: f64,
    /// The thread with most calls of CUDA and MPI was in calls, by what these do; of the operating system's, where
    /// it was in no other call.
    pub calls_ms: BTreeMap<&'static str, f64>,
}

/// Disjoint stretches of time, as they come up.
#[derive(Debug, Default)]
struct Times {
    list: Vec<Interval>,
    /// How long the list may grow before it is made disjoint.
    room: usize,
}

impl Times {
    fn add(&mut self, stretch: Interval) {
        self.list.push(stretch);
        if self.list.len() > self.room.max(1 << 16) {
            self.list = union(std::mem::take(&mut self.list));
            self.room = 2 * self.list.len();
        }
    }

    fn disjoint(self) -> Vec<Interval> {
        union(self.list)
    }
}

/// What is seen of a program while the rows are read.
struct Seen {
    activity: Activity,
    kernels: Times,
    copies: Times,
    managed: Times,
    threads: HashMap<EntityId, ThreadSeen>,
    /// Threads whose calls are not followed.
    other_threads: HashSet<EntityId>,
    /// Where the outermost range of each track ends.
    ranges: HashMap<TrackId, Ns>,
}

/// What is seen of a thread.
#[derive(Default)]
struct ThreadSeen {
    calls: BTreeMap<CallKind, Times>,
    /// Calls of the operating system, by what they do.
    os: BTreeMap<&'static str, Times>,
    /// How long it was in the others.
    total: i64,
    waits: Vec<Ns>,
}

/// What the spans of a track say.
#[derive(Clone, Copy)]
enum Role {
    Stream(SourceId),
    Calls { thread: EntityId, process: EntityId },
    Mpi { thread: EntityId, process: EntityId },
    Os { thread: EntityId, process: EntityId },
    Faults { process: EntityId },
    Ranges { process: EntityId },
}

/// What a piece of a device's work is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Kernel,
    Copy,
    Managed,
    Memset,
}

/// The programs of a trace.
///
/// # Errors
/// The trace cannot be read.
pub fn of_trace(source: &TraceSource) -> Result<Programs> {
    let catalog = source.entities_and_tracks();
    let above = Above::new(&catalog.entity);
    let (roles, mut processes, of_source) = roles(source, &above);
    let of_programs = processes.len();
    if of_programs > PROGRAMS {
        processes = busiest(source.trace(), &roles, processes)?;
    }
    let programs = of_programs - processes.len();
    let manifest = source.trace().manifest();
    let first = manifest.first_start(&["span"]);
    let (Some(from), Some(to), false) = (first, manifest.end, processes.is_empty()) else {
        return Ok(Programs::default());
    };
    let mut seen: HashMap<EntityId, Seen> =
        processes.into_iter().map(|process| (process, Seen::new((Ns(from), Ns(to))))).collect();
    read(source.trace(), &roles, &of_source, &mut seen)?;
    let threads = seen.values().map(|seen| seen.other_threads.len()).sum();
    let not_told = NotTold { programs, of_programs, threads };
    let mut told: Vec<Program> = seen
        .into_iter()
        .filter_map(|(process, seen)| {
            let entity = above.get(process)?;
            let rank = above.find(process, EntityKind::Rank).and_then(|rank| rank.number);
            let (phases, mostly, waits) = seen.told()?;
            let (name, pid) = (entity.name.to_string(), entity.number);
            Some(Program { process: name, pid, rank, phases, mostly, entity: process, waits })
        })
        .collect();
    told.sort_by_key(|p| (p.rank.unwrap_or(i64::MAX), p.pid, p.entity));
    let not_told = Some(not_told).filter(|not| not.programs + not.threads > 0);
    Ok(Programs { told, not_told })
}

/// The programs whose calls took most time. The rows are read once more for that.
fn busiest(
    trace: &Trace,
    roles: &HashMap<TrackId, Role>,
    processes: Vec<EntityId>,
) -> Result<Vec<EntityId>> {
    let mut busy: HashMap<EntityId, i64> = processes.into_iter().map(|of| (of, 0)).collect();
    for rows in trace.read::<Span>(EVER) {
        for span in rows? {
            if let Some(Role::Calls { process, .. } | Role::Mpi { process, .. }) =
                roles.get(&span.track)
                && let (Some(busy), Some(dur)) = (busy.get_mut(process), span.dur)
            {
                *busy = busy.saturating_add(dur.0);
            }
        }
    }
    let mut all: Vec<(EntityId, i64)> = busy.into_iter().collect();
    all.sort_unstable_by_key(|(process, ns)| (std::cmp::Reverse(*ns), *process));
    all.truncate(PROGRAMS);
    Ok(all.into_iter().map(|(process, _)| process).collect())
}

type Roles = (HashMap<TrackId, Role>, Vec<EntityId>, HashMap<SourceId, EntityId>);

/// The role of each track, the processes with calls, and the first of these of each source.
fn roles(source: &TraceSource, above: &Above<'_>) -> Roles {
    let catalog = source.entities_and_tracks();
    let calls = |name: &str| matches!(name, names::CUDA_CALLS | names::MPI_CALLS);
    let callers: HashSet<EntityId> =
        catalog.track.iter().filter(|t| calls(&t.name)).map(|t| t.entity).collect();
    let mut roles: HashMap<TrackId, Role> = HashMap::new();
    let mut processes: Vec<EntityId> = Vec::new();
    let mut known: HashSet<EntityId> = HashSet::new();
    let mut of_source: HashMap<SourceId, EntityId> = HashMap::new();
    for track in &catalog.track {
        let thread = track.entity;
        let process = above.find(thread, EntityKind::Process).map(|e| e.id);
        let role = match (&*track.name, process) {
            (names::STREAM, _) => Role::Stream(track.source),
            (names::CUDA_CALLS, Some(process)) => Role::Calls { thread, process },
            (names::MPI_CALLS, Some(process)) => Role::Mpi { thread, process },
            (names::OS_CALLS, Some(process)) if callers.contains(&thread) => {
                Role::Os { thread, process }
            }
            (names::GPU_PAGE_FAULTS, Some(process)) => Role::Faults { process },
            (names::NVTX | names::ANNOTATIONS, Some(process)) => Role::Ranges { process },
            _ => continue,
        };
        roles.insert(track.id, role);
        if let Role::Calls { process, .. } | Role::Mpi { process, .. } = role {
            of_source.entry(track.source).or_insert(process);
            if known.insert(process) {
                processes.push(process);
            }
        }
    }
    (roles, processes, of_source)
}

/// Reads all spans.
fn read(
    trace: &Trace,
    roles: &HashMap<TrackId, Role>,
    of_source: &HashMap<SourceId, EntityId>,
    seen: &mut HashMap<EntityId, Seen>,
) -> Result<()> {
    let mut details = Details::new(trace);
    for rows in trace.read::<Span>(EVER) {
        for span in rows? {
            let (Some(role), Some(dur)) = (roles.get(&span.track), span.dur) else { continue };
            let stretch = (span.ts, span.ts.saturating_add(dur));
            match *role {
                Role::Stream(source) => {
                    let Some((owner, work)) = details.of(&span)? else { continue };
                    let owner = owner.or_else(|| of_source.get(&source).copied());
                    if let Some(seen) = owner.and_then(|owner| seen.get_mut(&owner)) {
                        seen.work(&span.name, work, stretch);
                    }
                }
                Role::Calls { thread, process } => {
                    if let Some(seen) = seen.get_mut(&process) {
                        seen.activity.add(&span.name, stretch, phases::Kind::Call);
                        seen.call(thread, CallKind::of_device(&span.name), stretch);
                    }
                }
                Role::Mpi { thread, process } => {
                    if let Some(seen) = seen.get_mut(&process) {
                        seen.activity.add(&span.name, stretch, phases::Kind::Exchange);
                        seen.call(thread, CallKind::of_mpi(&span.name), stretch);
                    }
                }
                Role::Os { thread, process } => {
                    if let Some(seen) = seen.get_mut(&process) {
                        seen.os_call(thread, &span.name, stretch);
                    }
                }
                Role::Faults { process } => {
                    if let Some(seen) = seen.get_mut(&process) {
                        seen.managed.add(stretch);
                    }
                }
                Role::Ranges { process } => {
                    if let Some(seen) = seen.get_mut(&process) {
                        let end = seen.ranges.entry(span.track).or_insert(Ns::MIN);
                        if span.ts >= *end {
                            *end = stretch.1;
                            seen.activity.mark(&span.name, stretch);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// The details of device work, read along with its spans, which come by their begin as well.
struct Details {
    kernels: Read<Kernel>,
    copies: Read<Copy>,
    /// Read to here.
    until: (Ns, Ns),
    known: HashMap<Id, (Option<EntityId>, Work)>,
}

impl Details {
    fn new(trace: &Trace) -> Details {
        let (kernels, copies) = (trace.read::<Kernel>(EVER), trace.read::<Copy>(EVER));
        Details { kernels, copies, until: (Ns::MIN, Ns::MIN), known: HashMap::new() }
    }

    /// Whose work a span is, and what.
    fn of(&mut self, span: &Span) -> Result<Option<(Option<EntityId>, Work)>> {
        while self.until.0 <= span.ts {
            let Some(rows) = self.kernels.next().transpose()? else {
                self.until.0 = Ns::MAX;
                break;
            };
            self.until.0 = rows.last().map_or(self.until.0, |row| row.ts);
            self.known.extend(rows.into_iter().map(|k| (k.id, (k.process, Work::Kernel))));
        }
        while self.until.1 <= span.ts {
            let Some(rows) = self.copies.next().transpose()? else {
                self.until.1 = Ns::MAX;
                break;
            };
            self.until.1 = rows.last().map_or(self.until.1, |row| row.ts);
            self.known.extend(rows.into_iter().map(|copy| {
                let work = match copy.kind {
                    CopyKind::Memset => Work::Memset,
                    CopyKind::Managed => Work::Managed,
                    _ => Work::Copy,
                };
                (copy.id, (copy.process, work))
            }));
        }
        Ok(self.known.remove(&span.id))
    }
}

impl Seen {
    fn new(recording: Interval) -> Seen {
        Seen {
            activity: Activity::new(recording),
            kernels: Times::default(),
            copies: Times::default(),
            managed: Times::default(),
            threads: HashMap::new(),
            other_threads: HashSet::new(),
            ranges: HashMap::new(),
        }
    }

    fn work(&mut self, name: &Name, work: Work, stretch: Interval) {
        let kind = match work {
            Work::Kernel => phases::Kind::Kernel,
            Work::Copy | Work::Managed => phases::Kind::Exchange,
            Work::Memset => phases::Kind::Call,
        };
        self.activity.add(name, stretch, kind);
        match work {
            Work::Kernel => self.kernels.add(stretch),
            Work::Copy => self.copies.add(stretch),
            Work::Managed => {
                self.copies.add(stretch);
                self.managed.add(stretch);
            }
            Work::Memset => {}
        }
    }

    fn call(&mut self, thread: EntityId, kind: Option<CallKind>, stretch: Interval) {
        let Some(kind) = kind else { return };
        if !self.threads.contains_key(&thread) && self.threads.len() >= THREADS {
            self.other_threads.insert(thread);
            return;
        }
        let of_thread = self.threads.entry(thread).or_default();
        of_thread.total += (stretch.1 - stretch.0).0;
        of_thread.calls.entry(kind).or_default().add(stretch);
        if matches!(kind, CallKind::Synchronise | CallKind::Copy) {
            of_thread.waits.push(stretch.1);
        }
    }

    /// A call of the operating system. Phases are of what a program does with GPUs and other ranks, so it makes none.
    fn os_call(&mut self, thread: EntityId, name: &Name, stretch: Interval) {
        if self.threads.contains_key(&thread) || self.threads.len() < THREADS {
            let of_thread = self.threads.entry(thread).or_default();
            of_thread.os.entry(os_calls::kind(name)).or_default().add(stretch);
        }
    }

    /// The phases, what takes most of the time, and the waits of the main thread.
    fn told(self) -> Option<(Vec<Phase>, Vec<String>, Vec<Ns>)> {
        let extent = self.activity.extent()?;
        let did = |times: &Times| !times.list.is_empty();
        if !did(&self.kernels) && !did(&self.copies) && self.threads.is_empty() {
            return None;
        }
        let main = self.threads.into_iter().max_by_key(|(id, thread)| (thread.total, id.0));
        let ThreadSeen { calls, os, mut waits, .. } =
            main.map(|(_, thread)| thread).unwrap_or_default();
        waits.sort_unstable();
        let times = Spending {
            kernels: self.kernels.disjoint(),
            copies: self.copies.disjoint(),
            managed: self.managed.disjoint(),
            calls: disjoint(calls, os),
        };
        let phase = |name: String, kind, (from, to): Interval, series| Phase {
            name,
            kind,
            from_ns: from.0,
            to_ns: to.0,
            spent: times.within((from, to)),
            series,
        };
        let mut list: Vec<Phase> = self
            .activity
            .phases()
            .into_iter()
            .map(|p| phase(p.name, kind_name(p.kind), (p.from, p.to), p.series))
            .collect();
        let whole = phase("whole program".into(), "whole", extent, 0);
        if list.is_empty() {
            list.push(whole.clone());
        }
        let mostly = mostly(&whole, &list);
        Some((list, mostly, waits))
    }
}

fn kind_name(kind: PhaseKind) -> &'static str {
    match kind {
        PhaseKind::SetUp => "set_up",
        PhaseKind::Work => "work",
        PhaseKind::Between => "between",
        PhaseKind::End => "end",
    }
}

/// Calls within each other count once, as what says most: what a call of CUDA asks of the operating system is that
/// call's.
fn disjoint(
    calls: BTreeMap<CallKind, Times>,
    os: BTreeMap<&'static str, Times>,
) -> BTreeMap<&'static str, Vec<Interval>> {
    let mut taken: Vec<Interval> = Vec::new();
    let mut out: BTreeMap<&'static str, Vec<Interval>> = BTreeMap::new();
    for (kind, times) in calls.into_iter().map(|(kind, times)| (kind.as_str(), times)).chain(os) {
        let list = times.disjoint();
        let free = list.iter().flat_map(|stretch| subtract(*stretch, &taken));
        out.entry(kind).or_default().extend(free);
        taken.extend(list);
        taken = union(taken);
    }
    out.values_mut().for_each(|list| *list = union(std::mem::take(list)));
    out
}

/// When a program did what.
struct Spending {
    kernels: Vec<Interval>,
    copies: Vec<Interval>,
    managed: Vec<Interval>,
    calls: BTreeMap<&'static str, Vec<Interval>>,
}

impl Spending {
    fn within(&self, window: Interval) -> Spent {
        let sum = |list: &[Interval]| list.iter().map(|(from, to)| (*to - *from).0).sum::<i64>();
        let ms = |list: &[Interval]| sum(&clip(list, window)) as f64 / 1e6;
        let copies = clip(&self.copies, window);
        let alone = copies.iter().map(|copy| sum(&subtract(*copy, &self.kernels))).sum::<i64>();
        let calls = self.calls.iter().map(|(name, list)| (*name, ms(list)));
        Spent {
            kernels_ms: ms(&self.kernels),
            copies_ms: sum(&copies) as f64 / 1e6,
            copies_alone_ms: alone as f64 / 1e6,
            managed_ms: ms(&self.managed),
            calls_ms: calls.filter(|(_, ms)| *ms > 0.0).collect(),
        }
    }
}

impl Program {
    /// What people call it.
    pub fn name(&self) -> String {
        let rank = self.rank.map(|rank| format!("rank {rank}, ")).unwrap_or_default();
        // A process without a name is called by its pid already.
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        let pid = pid.filter(|pid| *pid != self.process).map(|pid| format!(" ({pid})"));
        format!("{rank}{}{}", self.process, pid.unwrap_or_default())
    }

    /// What takes most of its time, by its name.
    pub fn mostly(&self) -> impl Iterator<Item = String> {
        self.mostly.iter().map(|says| format!("{}: {says}", self.name()))
    }
}

impl Phase {
    /// How long it took, ms.
    pub fn ms(&self) -> f64 {
        self.to_ns.saturating_sub(self.from_ns) as f64 / 1e6
    }

    /// What it was spent on, for people: the largest shares first.
    pub fn text(&self) -> String {
        let mut of_gpu = vec![("kernels", self.spent.kernels_ms), ("copies", self.spent.copies_ms)];
        of_gpu.push(("managed memory", self.spent.managed_ms));
        let calls = self.spent.calls_ms.iter().map(|(name, ms)| (*name, *ms)).collect();
        let [of_gpu, calls] = [of_gpu, calls].map(|shares| self.shares(shares));
        match (of_gpu.is_empty(), calls.is_empty()) {
            (true, true) => "less than 1 % in any call or on a GPU".into(),
            (false, true) => format!("GPU: {of_gpu}"),
            (true, false) => format!("thread: {calls}"),
            (false, false) => format!("GPU: {of_gpu}; thread: {calls}"),
        }
    }

    fn shares(&self, mut shares: Vec<(&'static str, f64)>) -> String {
        let whole = self.ms().max(1e-6);
        shares.retain(|(_, ms)| *ms >= LISTED * whole);
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        let each = shares.iter().map(|(name, ms)| format!("{name} {:.0} %", 100.0 * ms / whole));
        each.collect::<Vec<_>>().join(", ")
    }
}

/// What takes most of a program's time, or else of its longer phases of work.
fn mostly(whole: &Phase, phases: &[Phase]) -> Vec<String> {
    let of_whole = most_of(whole);
    if !of_whole.is_empty() {
        return of_whole;
    }
    let long = phases.iter().filter(|p| p.kind == "work" && p.ms() >= WORTH * whole.ms());
    long.flat_map(most_of).collect()
}

fn most_of(phase: &Phase) -> Vec<String> {
    let Spent { kernels_ms, copies_ms, copies_alone_ms, managed_ms, calls_ms } = &phase.spent;
    let whole = phase.ms().max(1e-6);
    let time = |ms: f64| match ms {
        1000.0.. => format!("{:.2} s", ms / 1000.0),
        _ => format!("{ms:.1} ms"),
    };
    let of = match phase.kind {
        "whole" => "the time".to_owned(),
        _ => format!("the time of `{}`", phase.name),
    };
    let goes = |ms: f64, to: &str| {
        let share = 100.0 * ms / whole;
        format!("{share:.0} % of {of} goes to {to}: {} of {}", time(ms), time(whole))
    };
    let kernels = format!("kernels run {:.0} % of it", 100.0 * kernels_ms / whole);
    let mut out = Vec::new();
    let most = MOST * whole;
    if *managed_ms >= most {
        out.push(format!("{}; {kernels}", goes(*managed_ms, "moving managed memory")));
    } else if *copies_ms >= most {
        let alone = time(*copies_alone_ms);
        out.push(format!("{}, {alone} of it while no kernel ran", goes(*copies_ms, "copies")));
    }
    let waits = match *kernels_ms >= most {
        true => format!("{kernels}, which such calls wait for"),
        false => kernels.clone(),
    };
    for (name, ms) in calls_ms.iter().filter(|(_, ms)| **ms >= most) {
        let calls = match *name {
            "synchronising" => "waiting for the GPU in calls that synchronise",
            "copying" => "calls that copy",
            "allocating" | "freeing" => "calls that allocate or free memory",
            "MPI" => "calls of MPI",
            "launching" => "calls that launch",
            "reading and writing" => "OS calls that read or write",
            "sleeping" => "OS calls that sleep",
            "waiting for events" => "OS calls that wait for events, such as poll",
            "waiting for threads" => "OS calls that wait for threads or processes",
            "sending and receiving" => "OS calls that send or receive",
            "other OS calls" => "other OS calls",
            _ => "calls that load code",
        };
        let rest = if *name == "MPI" { &kernels } else { &waits };
        out.push(format!("{}; {rest}", goes(*ms, calls)));
    }
    out
}

/// How to detect what is slower in a profile. It lasts seconds and was made to be looked at: its phases are learned
/// in a fifth of their time, and a single round that took ten times as long is worth a finding if it lost as much
/// as the slow rounds of other findings do.
pub fn detection(of: &Detection, units: &[Step]) -> Detection {
    let mut extent: HashMap<_, (Ns, Ns)> = HashMap::new();
    for step in units {
        let seen = extent.entry(step.signature()).or_insert((step.ts, step.end()));
        seen.1 = seen.1.max(step.end());
    }
    let fifth = extent.values().map(|(from, to)| Ns((*to - *from).0 / 5)).min();
    Detection {
        learn_for: fifth.map_or(of.learn_for, |fifth| fifth.min(of.learn_for)),
        hang: of.hang.min(of.min_lost),
        ..*of
    }
}

/// What the verdicts on a profile rest on.
#[derive(Clone, Debug, Serialize)]
pub struct RestsOn {
    /// Whose calls were recorded: `CUDA`, `MPI`, `the operating system`.
    pub calls: Vec<&'static str>,
    /// Whether the scheduler's events were.
    pub scheduler_events: bool,
    /// What is not in the trace, and what therefore is not known.
    pub missing: Vec<&'static str>,
    /// What is not said, because the clocks of different files are not known well enough.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_said: Vec<String>,
    /// What sources lost or left out.
    pub lost: Vec<String>,
}

impl RestsOn {
    /// What the verdicts on a profile rest on; `None` of a trace without calls.
    pub fn of(source: &TraceSource) -> Option<RestsOn> {
        let catalog = source.entities_and_tracks();
        let has = |name: &str| catalog.track.iter().any(|track| &*track.name == name);
        let all = [
            (names::CUDA_CALLS, "CUDA"),
            (names::MPI_CALLS, "MPI"),
            (names::OS_CALLS, "the operating system"),
        ];
        let calls: Vec<&str> =
            all.iter().filter(|(track, _)| has(track)).map(|(_, what)| *what).collect();
        let scheduler_events = has(names::THREAD_STATE);
        let is_ours = |kind: &str| sources::ALL.iter().any(|source| source.kind == kind);
        let profiled = scheduler_events && !catalog.source.iter().any(|s| is_ours(&s.kind));
        if calls.is_empty() && !profiled {
            return None;
        }
        let mut missing = Vec::new();
        if !has(names::CUDA_CALLS) {
            missing.push("calls of CUDA: what threads waited for on a GPU");
        }
        if !scheduler_events {
            missing.push(
                "scheduler events: whether a thread outside of calls ran, slept or had no CPU",
            );
        }
        if !has(names::OS_CALLS) {
            missing.push(
                "calls of the operating system: what a thread outside of other calls slept in",
            );
        }
        let ranks = catalog.entity.iter().filter(|e| e.kind == EntityKind::Rank).count();
        if ranks > 1 && !has(names::MPI_CALLS) {
            missing.push("calls of MPI: which rank waited for which");
        }
        let lost = catalog.source.iter().filter(|s| s.dropped > 0);
        let lost = lost.map(|s| {
            format!("{} of {} rows of {} were lost", s.dropped, s.dropped + s.recorded, s.kind)
        });
        let (not_said, lost) = (not_said(catalog), lost.collect());
        Some(RestsOn { calls, scheduler_events, missing, not_said, lost })
    }

    /// For people, in lines.
    pub fn text(&self) -> Vec<String> {
        let mut on = Vec::new();
        if !self.calls.is_empty() {
            on.push(format!("calls of {}", self.calls.join(", ")));
        }
        if self.scheduler_events {
            on.push("scheduler events".into());
        }
        let mut out = vec![format!("Rests on {}.", on.join(" and "))];
        out.extend(self.missing.iter().map(|what| format!("  not in the trace: {what}")));
        out.extend(self.not_said.iter().map(|what| format!("  {what}")));
        out.extend(self.lost.iter().map(|what| format!("  lost: {what}")));
        out
    }
}

/// By how much times of the files that have calls of MPI may be off.
pub(crate) fn clocks_of_mpi(catalog: &Rows) -> ClockError {
    let of_mpi = catalog.track.iter().filter(|track| &*track.name == names::MPI_CALLS);
    let files: BTreeSet<SourceId> = of_mpi.map(|track| track.source).collect();
    if files.len() < 2 {
        return ClockError::NONE;
    }
    let errors = catalog.source.iter().filter(|s| files.contains(&s.id)).map(ClockError::of);
    errors.max().unwrap_or_default()
}

/// What is not said of ranks whose calls of MPI are in different files.
fn not_said(catalog: &Rows) -> Vec<String> {
    match clocks_of_mpi(catalog) {
        ClockError::NONE => Vec::new(),
        ClockError::Within(ns) => vec![format!(
            "not said which rank came last into a call of MPI where it came less than {:.3} ms after another \
             one: by so much the clocks of their files may differ",
            ns.as_millis_f64()
        )],
        ClockError::Unknown => vec![
            "not said which rank waits for which in calls of MPI: by how much the clocks of their files \
             differ is not known"
                .into(),
        ],
    }
}

/// What to say of a profile in which there is nothing to compare.
pub fn without_rounds(programs: &[Program], trace: &str) -> String {
    let also = match programs.is_empty() {
        true => String::new(),
        false => format!(
            " What it was spent on is below; `gpuwhy variability {trace}` shows its stalls, gaps and critical path."
        ),
    };
    format!(
        "{trace} is a profile without marked steps, and holds no GPU waits or collectives that are regular enough to \
         take in their place: nothing in it can be called slower than usual.{also}"
    )
}

/// The names of phases are as long as a program likes; for a table they are cut.
pub fn shown(name: &str) -> String {
    const WIDE: usize = 24;
    table::shortened(name, WIDE).0
}

#[cfg(test)]
mod tests;
