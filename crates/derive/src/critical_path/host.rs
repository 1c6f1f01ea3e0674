//! The calls of threads, as the critical path asks for them: in which call a thread was, what that call does,
//! and which rank came last to a call of MPI.
use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashSet, HashSetExt as _};
use gpuwhy_schema::{ClockError, Entity, EntityId, Name, Ns, SourceId};

use super::Host;
use crate::calls::{CallKind, MpiCall, all_ranks, groups};

/// Calls within each other beyond this depth are not told apart.
const DEPTH: usize = 64;
/// Of the names that were seen last, so many are found without hashing.
const RECENT: usize = 8;

/// Whose calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The runtime or the driver of a GPU.
    Device,
    /// MPI.
    Mpi,
    /// Another library, as NCCL.
    Library,
    /// The operating system's libraries; they count only outside of other calls.
    Os,
}

/// A thread of the host.
#[derive(Clone, Copy, Debug)]
pub struct ThreadOf {
    /// Its entity.
    pub entity: EntityId,
    /// Its process.
    pub process: EntityId,
    /// Within what launches are unique, as in [`super::Work::owner`].
    pub owner: u64,
    /// The number of its source: times of one source are of one clock.
    pub source: u32,
}

/// What the name of a call says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meaning {
    pub host: Host,
    pub kind: Option<CallKind>,
    /// Whether it waits for all streams of a device.
    pub whole_device: bool,
    /// Whether it makes a stream wait for an event.
    pub stream_waits: bool,
    /// Whether it launches a graph.
    pub graph: bool,
}

impl Meaning {
    fn of(lane: Lane, name: &str) -> Meaning {
        let kind = match lane {
            Lane::Device => CallKind::of_device(name),
            Lane::Mpi => CallKind::of_mpi(name),
            Lane::Library | Lane::Os => None,
        };
        let host = match (lane, kind) {
            (Lane::Mpi, _) => Host::Mpi,
            (Lane::Library, _) => Host::Library,
            (Lane::Os, _) => Host::Os,
            (Lane::Device, Some(CallKind::Load)) => Host::Load,
            (Lane::Device, Some(CallKind::Allocate)) => Host::Allocate,
            (Lane::Device, Some(CallKind::Free)) => Host::Free,
            (Lane::Device, Some(CallKind::Copy | CallKind::CopyAsync)) => Host::Copy,
            (Lane::Device, Some(CallKind::Synchronise)) => Host::Synchronise,
            (Lane::Device, Some(CallKind::Launch)) => Host::Launch,
            (Lane::Device, _) => Host::Device,
        };
        let whole_device = ["DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize"]
            .iter()
            .any(|of| name.contains(of));
        let stream_waits = name.contains("StreamWaitEvent");
        Meaning { host, kind, whole_device, stream_waits, graph: name.contains("GraphLaunch") }
    }
}

/// A call of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub start: i64,
    pub end: i64,
    /// The number of its name.
    pub name: u32,
    /// The place of the call around it; `NONE` if there is none.
    parent: u32,
}

const NONE: u32 = u32::MAX;

impl Call {
    /// How long it took.
    pub fn length(&self) -> i64 {
        self.end.saturating_sub(self.start)
    }
}

/// A thread and what it did.
#[derive(Debug)]
pub(super) struct Thread {
    pub of: ThreadOf,
    /// In the order of their begin; of those that begin together the outermost is first.
    pub calls: Vec<Call>,
    /// When it was in an operator of a framework: disjoint, in the order of time.
    pub active: Vec<(i64, i64)>,
}

/// What a thread did just before some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// The place of the call that it was in, if any.
    pub call: Option<usize>,
    /// Since when; `i64::MIN` if it had been in no call before.
    pub from: i64,
}

/// How many calls, which are in the order of their begin, begin before `t`; the answer is near `hint`.
fn begun(calls: &[Call], t: i64, hint: usize) -> usize {
    let earlier = |place: usize| calls.get(place).is_some_and(|call| call.start < t);
    let (mut low, mut high) = (hint.min(calls.len()), hint.min(calls.len()));
    let mut step = 1;
    while low > 0 && !earlier(low - 1) {
        high = low - 1;
        low = low.saturating_sub(step);
        step *= 2;
    }
    step = 1;
    while earlier(high) {
        low = high + 1;
        high = (high + step).min(calls.len());
        step *= 2;
    }
    low + calls[low..high].partition_point(|call| call.start < t)
}

impl Thread {
    /// What it did just before `t`; `hint` says near which call that may be.
    pub fn before(&self, t: i64, hint: &mut usize) -> Tile {
        *hint = begun(&self.calls, t, *hint);
        let Some(last) = hint.checked_sub(1) else {
            return Tile { call: None, from: i64::MIN };
        };
        let mut at = last;
        if self.calls[at].end >= t {
            return Tile { call: Some(at), from: self.calls[at].start };
        }
        let mut from = self.calls[at].end;
        for _ in 0..DEPTH {
            let parent = self.calls[at].parent;
            if parent == NONE {
                break;
            }
            at = parent as usize;
            if self.calls[at].end >= t {
                return Tile { call: Some(at), from };
            }
            from = from.max(self.calls[at].end);
        }
        Tile { call: None, from }
    }

    /// The place of the call that began then; the outermost, if several did. `hint` says near which call that
    /// may be.
    pub fn call_at(&self, start: i64, hint: &mut usize) -> Option<usize> {
        let place = begun(&self.calls, start, *hint);
        *hint = place;
        self.calls.get(place).filter(|call| call.start == start).map(|_| place)
    }

    /// When the operator ended that it was in last before `t`, which is at most `t`, and when that began.
    pub fn active_before(&self, t: i64) -> Option<(i64, i64)> {
        let last = self.active.partition_point(|(from, _)| *from < t).checked_sub(1)?;
        let (from, to) = self.active[last];
        Some((from, to.min(t)))
    }

    /// When it was seen last before `t`, in a call or an operator.
    pub fn seen_before(&self, t: i64) -> Option<i64> {
        let tile = self.before(t, &mut self.calls.len());
        let in_call = match tile.call {
            Some(_) => Some(t),
            None => (tile.from != i64::MIN).then_some(tile.from),
        };
        in_call.max(self.active_before(t).map(|(_, to)| to))
    }

    /// Puts calls into order, and says which lies in which.
    fn nest(&mut self, of_os: impl Fn(u32) -> bool) {
        let by_time = |call: &Call| (call.start, std::cmp::Reverse(call.end));
        if !self.calls.is_sorted_by_key(by_time) {
            self.calls.sort_by_key(by_time);
        }
        // The calls that are open, and whether these or one around them is not of the operating system.
        let mut open: Vec<(u32, i64, bool)> = Vec::new();
        let mut kept = 0;
        for place in 0..self.calls.len() {
            let mut call = self.calls[place];
            while open.last().is_some_and(|(_, end, _)| *end <= call.start) {
                open.pop();
            }
            let (parent, within_other) =
                open.last().map_or((NONE, false), |(place, _, other)| (*place, *other));
            let os = of_os(call.name);
            if os && within_other {
                continue;
            }
            call.parent = parent;
            self.calls[kept] = call;
            open.push((kept as u32, call.end, within_other || !os));
            kept += 1;
        }
        self.calls.truncate(kept);
        self.calls.shrink_to_fit();
    }
}

/// The rank that came last to a call of MPI.
#[derive(Clone, Copy, Debug)]
pub(super) struct Last {
    /// Its thread.
    pub thread: u32,
    /// When it came.
    pub at: i64,
}

/// A name of a call, and what it says.
#[derive(Debug)]
struct Named {
    name: Name,
    lane: Lane,
    meaning: Meaning,
}

/// The threads of the host and their calls.
#[derive(Debug, Default)]
pub struct Hosts {
    pub(super) threads: Vec<Thread>,
    numbers: HashMap<EntityId, u32>,
    names: Vec<Named>,
    number_of: [HashMap<Name, u32>; 4],
    recent: [Option<(Name, Lane, u32)>; RECENT],
    next: usize,
    /// The last rank of each call of MPI that is matched: by thread and begin.
    last: HashMap<(u32, i64), Last>,
    /// Whether any call makes a stream wait for an event.
    pub(super) streams_wait: bool,
    /// Whether the trace holds all ranks of the job.
    pub(super) all_ranks: bool,
    /// By how much times of two sources may be off, ns; `None` if that is not known.
    apart: Option<i64>,
    /// Threads by owner that another thread's idle time may lead to.
    others: HashMap<u64, Vec<u32>>,
    /// Owners of whose threads operators were recorded.
    with_operators: HashSet<u64>,
}

/// An idle thread leads to one of so many others.
const OTHERS: usize = 64;

impl Hosts {
    /// Times of two sources may be off by so much; `None` if that is not known.
    pub fn new(apart: Option<i64>) -> Hosts {
        Hosts { apart, ..Hosts::default() }
    }

    /// The number of a thread.
    pub fn thread(&mut self, of: ThreadOf) -> u32 {
        let threads = &mut self.threads;
        *self.numbers.entry(of.entity).or_insert_with(|| {
            threads.push(Thread { of, calls: Vec::new(), active: Vec::new() });
            threads.len() as u32 - 1
        })
    }

    /// The number of the thread of an entity.
    pub fn number(&self, entity: EntityId) -> Option<u32> {
        self.numbers.get(&entity).copied()
    }

    /// A call of a thread.
    pub fn call(&mut self, thread: u32, lane: Lane, name: &Name, start: i64, end: i64) {
        let name = self.name_number(lane, name);
        let call = Call { start, end: end.max(start), name, parent: NONE };
        self.threads[thread as usize].calls.push(call);
    }

    /// An operator that a thread was in; they must come in the order of their begin.
    pub fn operator(&mut self, thread: u32, start: i64, end: i64) {
        let active = &mut self.threads[thread as usize].active;
        match active.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => active.push((start, end.max(start))),
        }
    }

    fn name_number(&mut self, lane: Lane, name: &Name) -> u32 {
        // Names of rows that were read together share their memory.
        let same = |known: &&(Name, Lane, u32)| Arc::ptr_eq(&known.0, name) && known.1 == lane;
        if let Some((_, _, number)) = self.recent.iter().flatten().find(same) {
            return *number;
        }
        let names = &mut self.names;
        let number = *self.number_of[lane as usize].entry(name.clone()).or_insert_with(|| {
            names.push(Named { name: name.clone(), lane, meaning: Meaning::of(lane, name) });
            names.len() as u32 - 1
        });
        self.recent[self.next] = Some((name.clone(), lane, number));
        self.next = (self.next + 1) % RECENT;
        number
    }

    /// When the first call began, once all are here.
    pub fn first(&self) -> Option<i64> {
        self.threads.iter().filter_map(|thread| Some(thread.calls.first()?.start)).min()
    }

    /// The name of a call by its number.
    pub fn name(&self, number: u32) -> &Name {
        &self.names[number as usize].name
    }

    pub(super) fn meaning(&self, call: &Call) -> Meaning {
        self.names[call.name as usize].meaning
    }

    /// All calls are here; these are the entities of the trace.
    pub fn finish(&mut self, entities: &[Entity]) {
        let names = &self.names;
        self.streams_wait = names.iter().any(|of| of.meaning.stream_waits);
        for thread in &mut self.threads {
            thread.nest(|name| names[name as usize].lane == Lane::Os);
        }
        for (number, thread) in self.threads.iter().enumerate() {
            if !thread.active.is_empty() {
                self.with_operators.insert(thread.of.owner);
            }
            let launches =
                |call: &Call| names[call.name as usize].meaning.kind == Some(CallKind::Launch);
            let of = self.others.entry(thread.of.owner).or_default();
            if of.len() < OTHERS && (!thread.active.is_empty() || thread.calls.iter().any(launches))
            {
                of.push(number as u32);
            }
        }
        self.match_ranks(entities);
    }

    /// Finds the last rank of each call of MPI, as the accounting of `diagnose` does.
    fn match_ranks(&mut self, entities: &[Entity]) {
        let mut by_name: BTreeMap<(CallKind, u32), Vec<MpiCall>> = BTreeMap::new();
        let mut processes: HashSet<EntityId> = HashSet::new();
        let error = self.apart.map_or(ClockError::Unknown, |ns| ClockError::Within(Ns(ns)));
        for thread in &self.threads {
            let ThreadOf { entity, process, source, .. } = thread.of;
            let source = SourceId(source);
            for call in &thread.calls {
                let Named { lane, meaning, .. } = self.names[call.name as usize];
                if lane != Lane::Mpi {
                    continue;
                }
                processes.insert(process);
                let Some(kind) = meaning.kind else { continue };
                let name = if kind == CallKind::PointToPoint { 0 } else { call.name };
                let (from, to) = (Ns(call.start), Ns(call.end));
                let call = MpiCall { from, to, thread: entity, process, source, error };
                by_name.entry((kind, name)).or_default().push(call);
            }
        }
        if processes.len() < 2 {
            return;
        }
        let entities: HashMap<EntityId, Entity> =
            entities.iter().map(|e| (e.id, e.clone())).collect();
        self.all_ranks = all_ranks(&processes, &entities);
        for ((kind, _), mut calls) in by_name {
            if kind == CallKind::PointToPoint && !(processes.len() == 2 && self.all_ranks) {
                continue;
            }
            calls.sort_unstable_by_key(|call| (call.to, call.from, call.thread));
            for group in groups(&calls, true).into_iter().filter(|group| group.len() > 1) {
                let Some(last) = group.iter().max_by_key(|call| (call.from, call.thread)) else {
                    continue;
                };
                let came = Last { thread: self.numbers[&last.thread], at: last.from.0 };
                let of = |call: &MpiCall| ((self.numbers[&call.thread], call.from.0), came);
                self.last.extend(group.iter().map(of));
            }
        }
    }

    /// The rank that came last to the call of MPI that `thread` began at `start`, if it is known.
    pub(super) fn last(&self, thread: u32, start: i64) -> Option<Last> {
        self.last.get(&(thread, start)).copied()
    }

    /// By how much the times of two threads may be off.
    pub(super) fn apart(&self, one: u32, other: u32) -> Option<i64> {
        let source = |thread: u32| self.threads[thread as usize].of.source;
        if source(one) == source(other) { Some(0) } else { self.apart }
    }

    /// Whether operators of the process of a thread were recorded: then a thread that is in none, and in no
    /// call, does nothing that the trace knows.
    pub(super) fn has_operators(&self, thread: u32) -> bool {
        self.with_operators.contains(&self.threads[thread as usize].of.owner)
    }

    /// The other thread of the same process that was seen last, in a call or an operator, after `own` and not
    /// after `t`; and when.
    pub(super) fn seen_last(&self, thread: u32, own: i64, t: i64) -> Option<(u32, i64)> {
        let with_operators = self.has_operators(thread);
        let others = self.others.get(&self.threads[thread as usize].of.owner)?;
        let others = others.iter().filter(|other| **other != thread);
        let seen = others.filter_map(|other| {
            let of = &self.threads[*other as usize];
            // A thread without operators among others that have them only looks after something.
            let counts = !with_operators || !of.active.is_empty();
            let at = of.seen_before(t).filter(|at| counts && *at > own)?;
            Some((*other, at))
        });
        seen.max_by_key(|(number, at)| (*at, std::cmp::Reverse(*number)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn calls_are_found_from_any_hint(
            mut starts in prop::collection::vec(0i64..50, 0..40), t in -1i64..52, hint in 0usize..60,
        ) {
            starts.sort_unstable();
            let of = |start: &i64| Call { start: *start, end: *start, name: 0, parent: NONE };
            let calls: Vec<Call> = starts.iter().map(of).collect();
            prop_assert_eq!(begun(&calls, t, hint), starts.partition_point(|start| *start < t));
        }
    }
}
