//! The critical path of GPU work: what the end of a recording waited for, back to its begin.
//!
//! # What it sees
//! Work of devices, the calls that launched it, and all other calls of the threads. It walks backwards from the
//! end of the last piece of work. A piece of work waited for the one before it in its stream, if that was still
//! running when it had been launched; for work of another stream, if a call says so (`cudaStreamWaitEvent`, a
//! graph, a copy of the default stream); else for its launch. A thread that returns from a call that waits for
//! a device waited for the work that ended in that call; in a call of MPI, for the rank that came last. All
//! other time is the thread's own.
//!
//! Every nanosecond lies in exactly one segment, so the segments sum to the length of the range.
//!
//! # Why it matters
//! Only what lies on the path can make the program faster: a kernel that runs beneath a copy costs nothing. What
//! a name has on the path is at most what is gained if it took no time, since another path may then be the
//! longest.
//!
//! # What fools it
//! A wait whose cause is in no row: an event that another thread recorded, a lock, a pipe, a kernel that spins
//! until a peer comes. The path then stays with whoever waited. Kernels of collectives count as communication
//! and are not followed to the last rank: nothing in a profile says which of them belong together.
//!
//! *Source*: the edges are those of the lightweight critical path analysis of Holistic Trace Analysis 0.5.0,
//! which finds the longest path in a graph of one rank. Walked backwards, each point has one predecessor, the
//! one that ended last, so no graph is kept.

mod host;
#[cfg(test)]
mod tests;
use std::ops::Range;

use foldhash::HashMap;
use gpuwhy_schema::CopyKind;

use crate::calls::{CallKind, LONG};
pub use host::{Hosts, Lane, ThreadOf};

/// From the end of what it waits for to its begin, work takes no longer than this, ns.
const CLOSE: i64 = 20_000;
/// So many pieces of work are looked at for each wait.
const SCAN: usize = 1024;
/// So many calls before a launch are looked at for a wait for an event.
const CALLS: usize = 64;
/// Work of one stream may overlap; this many are looked at for the one that ended last.
const OVERLAP: usize = 8;
/// After so many steps at the same time, waits are no longer followed; after twice as many, the path is lost.
const STUCK: u32 = 16;

/// What a piece of work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A kernel that computes.
    Kernel,
    /// A kernel of a communication library.
    Communication,
    /// A copy or a memset.
    Copy(CopyKind),
}

/// A kernel, a copy or a memset.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// When it began.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// Its stream.
    pub stream: u32,
    /// Within what its launch is unique: a process, or a source.
    pub owner: u64,
    /// What it does.
    pub what: What,
    /// The number of its name.
    pub name: u32,
}

/// The call that launched a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its thread, by the number in [`Hosts`].
    pub thread: u32,
    /// When it began.
    pub start: i64,
}

/// The work of a recording, in the order of its begin.
pub trait Recording {
    /// How many pieces there are.
    fn count(&self) -> usize;
    /// One of them.
    fn work(&self, place: usize) -> Work;
    /// What launched it, if the recording has that.
    fn launch(&self, place: usize) -> Option<Launch>;
}

/// What a thread of the host did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Loaded code onto a device, or made a context.
    Load,
    /// Allocated or registered memory.
    Allocate,
    /// Freed memory.
    Free,
    /// Staged a copy, or asked for one.
    Copy,
    /// Returned from a wait for a device, or waited for something that is not known.
    Synchronise,
    /// Launched kernels or graphs.
    Launch,
    /// Was in another call of the device's runtime or driver.
    Device,
    /// Was in a call of MPI that waits for nobody.
    Mpi,
    /// Was in a call of another library.
    Library,
    /// Was in a call of the operating system.
    Os,
    /// Was in no call.
    NoCall,
}

/// What a segment of the path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A thread's own time.
    Host(Host),
    /// From the end of the launching call to the begin of the work: 100 µs at most.
    LaunchLatency,
    /// A kernel computed.
    Kernel,
    /// A kernel of a communication library ran, or waited for its peers.
    Communication,
    /// A copy or memset.
    Copy(CopyKind),
    /// Between a piece of work and the next, which was queued.
    Queue,
    /// Work was queued for more than 100 µs and waited for something that is not known.
    Queued,
    /// All ranks that the trace holds were in a call of MPI, and these are all ranks of the job.
    MpiTransfer,
    /// In a call of MPI, for a rank that the trace does not hold or that is not known.
    MpiWait,
    /// Before work whose launch is not in the trace.
    NotKnown,
}

impl Part {
    /// Its word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Part::Host(Host::Load) => "host_load",
            Part::Host(Host::Allocate) => "host_allocate",
            Part::Host(Host::Free) => "host_free",
            Part::Host(Host::Copy) => "host_copy",
            Part::Host(Host::Synchronise) => "host_synchronise",
            Part::Host(Host::Launch) => "host_launch",
            Part::Host(Host::Device) => "host_device_call",
            Part::Host(Host::Mpi) => "host_mpi",
            Part::Host(Host::Library) => "host_library",
            Part::Host(Host::Os) => "host_os",
            Part::Host(Host::NoCall) => "host_no_call",
            Part::LaunchLatency => "launch_latency",
            Part::Kernel => "kernel",
            Part::Communication => "communication_kernel",
            Part::Copy(CopyKind::Memset) => "memset",
            Part::Copy(CopyKind::HostToDevice) => "copy_h2d",
            Part::Copy(CopyKind::DeviceToHost) => "copy_d2h",
            Part::Copy(CopyKind::DeviceToDevice) => "copy_d2d",
            Part::Copy(CopyKind::PeerToPeer) => "copy_p2p",
            Part::Copy(CopyKind::HostToHost) => "copy_h2h",
            Part::Copy(CopyKind::Managed) => "copy_managed",
            Part::Copy(_) => "copy_other",
            Part::Queue => "queue_gap",
            Part::Queued => "queued",
            Part::MpiTransfer => "mpi_transfer",
            Part::MpiWait => "mpi_wait",
            Part::NotKnown => "not_known",
        }
    }

    /// The same in words.
    pub fn label(self) -> &'static str {
        match self {
            Part::Host(Host::Load) => "host: loading code",
            Part::Host(Host::Allocate) => "host: allocating",
            Part::Host(Host::Free) => "host: freeing",
            Part::Host(Host::Copy) => "host: copying",
            Part::Host(Host::Synchronise) => "host: synchronising",
            Part::Host(Host::Launch) => "host: launching",
            Part::Host(Host::Device) => "host: other calls of CUDA or HIP",
            Part::Host(Host::Mpi) => "host: other calls of MPI",
            Part::Host(Host::Library) => "host: calls of libraries",
            Part::Host(Host::Os) => "host: calls of the operating system",
            Part::Host(Host::NoCall) => "host: in no call",
            Part::LaunchLatency => "from a launch to its work",
            Part::Kernel => "kernels",
            Part::Communication => "kernels that communicate",
            Part::Copy(CopyKind::Memset) => "memsets",
            Part::Copy(CopyKind::HostToDevice) => "copies to a device",
            Part::Copy(CopyKind::DeviceToHost) => "copies to the host",
            Part::Copy(CopyKind::DeviceToDevice) => "copies within a device",
            Part::Copy(CopyKind::PeerToPeer) => "copies between devices",
            Part::Copy(CopyKind::HostToHost) => "copies within the host",
            Part::Copy(CopyKind::Managed) => "managed memory that moves",
            Part::Copy(_) => "other copies",
            Part::Queue => "between work that was queued",
            Part::Queued => "queued, for what the trace does not say",
            Part::MpiTransfer => "MPI, with all ranks in the call",
            Part::MpiWait => "MPI, for ranks that are not known",
            Part::NotKnown => "not known: before work without a launch in the trace",
        }
    }

    /// By what the program is bound there.
    pub fn bound(self) -> Bound {
        match self {
            Part::Host(_) => Bound::Cpu,
            Part::LaunchLatency => Bound::Launch,
            Part::Kernel | Part::Copy(CopyKind::Memset) => Bound::Compute,
            Part::Communication
            | Part::Copy(CopyKind::PeerToPeer)
            | Part::MpiTransfer
            | Part::MpiWait => Bound::Communication,
            Part::Copy(_) => Bound::Copies,
            Part::Queue | Part::Queued => Bound::Queue,
            Part::NotKnown => Bound::NotKnown,
        }
    }
}

/// By what a program is bound, in the words of Holistic Trace Analysis; copies are not told apart there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bound {
    /// Threads of the host.
    Cpu,
    /// From launches to their work.
    Launch,
    /// Kernels that compute, and memsets.
    Compute,
    /// Kernels that communicate, copies between devices, MPI.
    Communication,
    /// Copies between host and device, and within a device.
    Copies,
    /// Between kernels that are queued.
    Queue,
    /// What is not in the trace.
    NotKnown,
}

impl Bound {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Bound::Cpu => "cpu",
            Bound::Launch => "gpu_kernel_launch_overhead",
            Bound::Compute => "gpu_compute",
            Bound::Communication => "gpu_communication",
            Bound::Copies => "gpu_copies",
            Bound::Queue => "gpu_kernel_kernel_overhead",
            Bound::NotKnown => "not_known",
        }
    }

    /// The same in words.
    pub fn label(self) -> &'static str {
        match self {
            Bound::Cpu => "the host",
            Bound::Launch => "launch latency",
            Bound::Compute => "computing",
            Bound::Communication => "communication",
            Bound::Copies => "copies",
            Bound::Queue => "waiting of queued work",
            Bound::NotKnown => "not known",
        }
    }
}

/// A stretch of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// When it begins.
    pub from: i64,
    /// When it ends.
    pub to: i64,
    /// What it is.
    pub part: Part,
    /// The number of its name: of the kernel, or of the call as in [`Hosts::name`].
    pub name: Option<u32>,
}

/// By what the path went from one thread or piece of work to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edge {
    /// From work to its launch.
    Launch,
    /// To the work before it in the same stream.
    Stream,
    /// To work of another stream, since a stream was made to wait for an event.
    Event,
    /// To work of another stream of the same graph.
    Graph,
    /// From a copy that the host waits for to work of another stream.
    DefaultStream,
    /// From a call that waits for a device to the work that ended in it.
    Wait,
    /// From a launch to the work that made room in the queue.
    FullQueue,
    /// From a rank to the one that came last.
    Rank,
    /// From a thread that had done nothing to the one that was seen last.
    Thread,
    /// From work without a launch to the work before it in its stream.
    NoLaunch,
}

impl Edge {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Edge::Launch => "launch",
            Edge::Stream => "stream",
            Edge::Event => "event",
            Edge::Graph => "graph",
            Edge::DefaultStream => "default_stream",
            Edge::Wait => "wait",
            Edge::FullQueue => "full_queue",
            Edge::Rank => "rank",
            Edge::Thread => "thread",
            Edge::NoLaunch => "no_launch",
        }
    }
}

/// What was met on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A stretch of time; each begins where the one before it ended, going backwards.
    Segment(Segment),
    /// A crossing.
    Edge(Edge),
    /// A call of MPI whose last rank is not known, since the clocks are not aligned well enough.
    NotAligned,
    /// Work that began before its launch did: clocks are off.
    Skewed,
}

/// Walks from the end of `range` to its begin.
pub fn walk(recording: &impl Recording, hosts: &Hosts, range: Range<i64>, tell: impl FnMut(Step)) {
    let (mut streams, mut ends) = (Lists::default(), Lists::default());
    let mut in_stream: Vec<u32> = Vec::with_capacity(recording.count());
    let mut last: Option<(i64, usize)> = None;
    for place in 0..recording.count() {
        let work = recording.work(place);
        in_stream.push(streams.push(u64::from(work.stream), place as u32));
        if work.start < range.end {
            last = last.max(Some((work.end.min(range.end), place)));
        }
    }
    // Stream by stream these are nearly sorted, so that sorting is merging.
    for place in streams.lists.iter().flatten() {
        ends.push(recording.work(*place as usize).owner, *place);
    }
    for list in &mut ends.lists {
        list.sort_by_key(|place| recording.work(*place as usize).end);
    }
    let until = ends.lists.iter().map(Vec::len).collect();
    let hints: Vec<Hint> = hosts.threads.iter().map(Hint::end).collect();
    let (from, t) = (range.start, range.end);
    let mut walk =
        Walk { recording, hosts, streams, in_stream, ends, until, hints, from, t, tell, stuck: 0 };
    let at = last.map_or(At::Nowhere, |(_, place)| At::Work(place));
    if let Some((end, _)) = last {
        walk.go(end, Part::NotKnown, None);
    }
    walk.run(at);
}

/// The places of work by stream, or by owner.
#[derive(Default)]
struct Lists {
    numbers: HashMap<u64, usize>,
    lists: Vec<Vec<u32>>,
    /// The list that was used last.
    last: Option<(u64, usize)>,
}

impl Lists {
    /// Adds a place; which place in its list that is.
    fn push(&mut self, of: u64, place: u32) -> u32 {
        let number = match self.last {
            Some((last, number)) if last == of => number,
            _ => {
                let next = self.lists.len();
                let number = *self.numbers.entry(of).or_insert(next);
                if number == next {
                    self.lists.push(Vec::new());
                }
                self.last = Some((of, number));
                number
            }
        };
        let list = &mut self.lists[number];
        list.push(place);
        list.len() as u32 - 1
    }
}

/// Where the path is.
#[derive(Clone, Copy, Debug)]
enum At {
    /// In a piece of work.
    Work(usize),
    /// On a thread, which is in the call that began at `issued` if it is in one that launched the work from
    /// which the path came.
    Thread { thread: u32, issued: i64 },
    /// Nobody knows.
    Nowhere,
}

impl At {
    fn thread(thread: u32) -> At {
        At::Thread { thread, issued: i64::MIN }
    }
}

/// Near which calls of a thread the walk is: mostly it goes from one to the one before.
struct Hint {
    at: usize,
    launch: usize,
}

impl Hint {
    fn end(thread: &host::Thread) -> Hint {
        Hint { at: thread.calls.len(), launch: thread.calls.len() }
    }
}

struct Walk<'a, R, T> {
    recording: &'a R,
    hosts: &'a Hosts,
    streams: Lists,
    /// The place of each piece of work in the list of its stream.
    in_stream: Vec<u32>,
    /// By owner, in the order of their ends.
    ends: Lists,
    /// How many of each of these lists had ended: as time goes back, fewer and fewer.
    until: Vec<usize>,
    /// By thread.
    hints: Vec<Hint>,
    from: i64,
    /// Down to which the path is known.
    t: i64,
    tell: T,
    /// Steps at the same time.
    stuck: u32,
}

/// A launch as the walk sees it.
#[derive(Clone, Copy)]
struct Issued {
    launch: Launch,
    /// The place of its call.
    place: Option<usize>,
    /// Before this, the work was not in its queue.
    at: i64,
    /// The call returns when the work is done.
    waits: bool,
    /// Other work that it launched may have to end before.
    graph: bool,
}

impl<R: Recording, T: FnMut(Step)> Walk<'_, R, T> {
    fn run(&mut self, mut at: At) {
        while self.t > self.from {
            let before = self.t;
            at = match at {
                At::Work(place) => self.work(place),
                At::Thread { thread, issued } => self.thread(thread, issued),
                At::Nowhere => {
                    self.go(self.from, Part::NotKnown, None);
                    At::Nowhere
                }
            };
            self.stuck = if self.t < before { 0 } else { self.stuck + 1 };
            if self.stuck > 2 * STUCK {
                at = At::Nowhere;
            }
        }
    }

    /// Goes back to `from`.
    fn go(&mut self, from: i64, part: Part, name: Option<u32>) {
        let from = from.max(self.from);
        if from < self.t {
            (self.tell)(Step::Segment(Segment { from, to: self.t, part, name }));
            self.t = from;
        }
    }

    /// How long ago that was.
    fn since(&self, time: i64) -> i64 {
        self.t.saturating_sub(time)
    }

    fn cross(&mut self, edge: Edge, to: At) -> At {
        (self.tell)(Step::Edge(edge));
        to
    }

    /// Goes through a piece of work to what it waited for.
    fn work(&mut self, place: usize) -> At {
        let work = self.recording.work(place);
        let (part, name) = match work.what {
            What::Kernel => (Part::Kernel, Some(work.name)),
            What::Communication => (Part::Communication, Some(work.name)),
            What::Copy(kind) => (Part::Copy(kind), None),
        };
        self.go(work.start, part, name);
        let before = self.before_in_stream(place, &work);
        let Some(launch) = self.recording.launch(place) else {
            return match before {
                Some((end, before)) => {
                    self.go(end, Part::NotKnown, None);
                    self.cross(Edge::NoLaunch, At::Work(before))
                }
                None => At::Nowhere,
            };
        };
        if launch.start > work.start {
            (self.tell)(Step::Skewed);
        }
        let issued = self.issued(launch, before.map(|(end, _)| end));
        let queued = before.filter(|(end, _)| *end > issued.at);
        let since = queued.map_or(issued.at, |(end, _)| end);
        if let Some((edge, end, other)) = self.other_stream(&work, &issued, before, since) {
            self.go(end, Part::Queue, None);
            return self.cross(edge, At::Work(other));
        }
        if let Some((end, before)) = queued {
            let long = self.since(end) > LONG.0;
            let part = if long { Part::Queued } else { Part::Queue };
            self.go(end, part, None);
            return self.cross(Edge::Stream, At::Work(before));
        }
        if !issued.waits {
            let long = self.since(issued.at) > LONG.0;
            let part = if long { Part::Queued } else { Part::LaunchLatency };
            self.go(issued.at, part, None);
        }
        let Launch { thread, start } = launch;
        self.cross(Edge::Launch, At::Thread { thread, issued: start })
    }

    /// The piece of work of the same stream that ended last before this one began, and when.
    fn before_in_stream(&self, place: usize, work: &Work) -> Option<(i64, usize)> {
        let number = self.streams.numbers[&u64::from(work.stream)];
        let earlier = &self.streams.lists[number][..self.in_stream[place] as usize];
        let earlier = earlier.iter().rev().take(OVERLAP).map(|place| *place as usize);
        let ended = earlier.map(|place| (self.recording.work(place).end, place));
        ended.filter(|(end, _)| *end <= self.t).max()
    }

    /// When the work that begins now was put into its queue; `before` is when the work before it had ended.
    fn issued(&mut self, launch: Launch, before: Option<i64>) -> Issued {
        let thread = &self.hosts.threads[launch.thread as usize];
        let hint = &mut self.hints[launch.thread as usize].launch;
        let place = thread.call_at(launch.start, hint);
        let call = place.map(|place| &thread.calls[place]);
        let end = call.map_or(launch.start, |call| call.end).min(self.t);
        let meaning = call.map(|call| self.hosts.meaning(call));
        let kind = meaning.and_then(|meaning| meaning.kind);
        let lasts = call.filter(|call| call.end > self.t).map(host::Call::length);
        let waits = match kind {
            Some(CallKind::Copy) => lasts.is_some(),
            // A copy of pageable memory is not asynchronous.
            Some(CallKind::CopyAsync) => lasts.is_some_and(|long| long >= LONG.0),
            _ => false,
        };
        // A copy is put into its queue at any time of its call: if it began soon after the work before it had
        // ended, it had waited for that.
        let behind = before.is_some_and(|end| self.since(end) <= LONG.0);
        let at = if waits && behind { launch.start.min(self.t) } else { end };
        let graph = meaning.is_some_and(|meaning| meaning.graph);
        Issued { launch, place, at, waits, graph }
    }

    /// Work of another stream that ended after `since` and that this work, which begins now, waited for.
    fn other_stream(
        &mut self,
        work: &Work,
        issued: &Issued,
        before: Option<(i64, usize)>,
        since: i64,
    ) -> Option<(Edge, i64, usize)> {
        let (t, recording, launch) = (self.t, self.recording, issued.launch);
        // What a copy of the default stream waits for ends while the copy's call goes on.
        let since = match issued.waits {
            true => launch.start.max(before.map_or(i64::MIN, |(end, _)| end)),
            false => since,
        };
        let event = self.wait_for_event(issued, before);
        if event.is_none() && !issued.graph && !issued.waits {
            return None;
        }
        let (list, last) = self.ended(work.owner)?;
        for place in list[..last].iter().rev().take(CALLS).map(|place| *place as usize) {
            let other = recording.work(place);
            if other.end <= since || t.saturating_sub(other.end) > CLOSE {
                break;
            }
            let Some(theirs) = recording.launch(place) else { continue };
            if other.stream == work.stream || other.start >= t {
                continue;
            }
            if issued.graph && theirs == launch {
                return Some((Edge::Graph, other.end, place));
            }
            if issued.waits && theirs.start < launch.start {
                return Some((Edge::DefaultStream, other.end, place));
            }
            if event.is_some_and(|at| theirs.start < at) {
                return Some((Edge::Event, other.end, place));
            }
        }
        None
    }

    /// When the launching thread last made a stream wait for an event, since it launched the work before it in
    /// the same stream.
    fn wait_for_event(&self, issued: &Issued, before: Option<(i64, usize)>) -> Option<i64> {
        let (launch, place) = (issued.launch, issued.place?);
        if !self.hosts.streams_wait {
            return None;
        }
        let before = before.and_then(|(_, place)| self.recording.launch(place));
        let before = before.filter(|before| before.thread == launch.thread);
        let thread = &self.hosts.threads[launch.thread as usize];
        let calls = thread.calls[..place].iter().rev().take(CALLS);
        let mut calls = calls.take_while(|call| before.is_none_or(|b| call.start > b.start));
        calls.find(|call| self.hosts.meaning(call).stream_waits).map(|call| call.start)
    }

    /// The work of an owner in the order of its end, and how much of that has ended by now.
    fn ended(&mut self, owner: u64) -> Option<(&[u32], usize)> {
        let number = *self.ends.numbers.get(&owner)?;
        let (list, until) = (&self.ends.lists[number], &mut self.until[number]);
        let ends_later = |place: u32| self.recording.work(place as usize).end > self.t;
        while until.checked_sub(1).is_some_and(|last| ends_later(list[last])) {
            *until -= 1;
        }
        Some((&list[..], *until))
    }

    fn end(&self, place: u32) -> i64 {
        self.recording.work(place as usize).end
    }

    /// Goes back by one call of a thread, or by the time since its last call.
    fn thread(&mut self, number: u32, issued: i64) -> At {
        let (hosts, stay) = (self.hosts, At::Thread { thread: number, issued });
        let thread = &hosts.threads[number as usize];
        let tile = thread.before(self.t, &mut self.hints[number as usize].at);
        let Some(place) = tile.call else { return self.no_call(number, tile.from, stay) };
        let call = &thread.calls[place];
        let meaning = hosts.meaning(call);
        let name = Some(call.name);
        if matches!(meaning.kind, Some(CallKind::Collective | CallKind::PointToPoint)) {
            return self.mpi(number, (call.start, call.name), tile.from, stay);
        }
        let part = Part::Host(meaning.host);
        if self.stuck <= STUCK
            && let Some((edge, place)) = self.waited_for(number, call, tile.from, issued)
        {
            self.go(self.end(place as u32), part, name);
            return self.cross(edge, At::Work(place));
        }
        self.go(tile.from, part, name);
        stay
    }

    /// The work that a thread waited for in a call, in which it has been since `from` and still is.
    fn waited_for(
        &mut self,
        thread: u32,
        call: &host::Call,
        from: i64,
        issued: i64,
    ) -> Option<(Edge, usize)> {
        let meaning = self.hosts.meaning(call);
        let (kind, long) = (meaning.kind?, call.length() >= LONG.0);
        let own_call = issued == call.start || (issued > call.start && issued < call.end);
        match kind {
            CallKind::Synchronise => {}
            CallKind::Copy | CallKind::Free if !own_call => {}
            CallKind::CopyAsync if !own_call && long => {}
            CallKind::Launch if long => {}
            _ => return None,
        }
        let (t, recording) = (self.t, self.recording);
        let (list, last) = self.ended(self.hosts.threads[thread as usize].of.owner)?;
        // Work that goes on after its own call waits for nothing, but the call waited until it had begun.
        let copies = matches!(kind, CallKind::Copy | CallKind::CopyAsync);
        let own = |place: &usize| {
            let launch = recording.launch(*place);
            launch.is_some_and(|l| l.thread == thread && l.start >= call.start && l.start < t)
        };
        if copies {
            let running = list[last..].iter().take(OVERLAP).map(|place| *place as usize);
            let mut running = running.filter(|place| recording.work(*place).start < t);
            if let Some(place) = running.find(own) {
                return Some((Edge::Wait, place));
            }
        }
        let mut other = None;
        for place in list[..last].iter().rev().take(SCAN).map(|place| *place as usize) {
            let work = recording.work(place);
            let late = t.saturating_sub(work.end);
            if work.end <= from {
                break;
            }
            if work.start >= t {
                continue;
            }
            let launch = recording.launch(place);
            let mine = launch.is_some_and(|l| l.thread == thread && l.start < t);
            match kind {
                CallKind::Launch if late > CLOSE => break,
                CallKind::Launch if mine && launch.is_some_and(|l| l.start < call.start) => {
                    return Some((Edge::FullQueue, place));
                }
                CallKind::Copy if mine && (late <= LONG.0 || own(&place)) => {
                    return Some((Edge::Wait, place));
                }
                CallKind::CopyAsync if own(&place) => return Some((Edge::Wait, place)),
                CallKind::Synchronise | CallKind::Free if mine => return Some((Edge::Wait, place)),
                CallKind::Synchronise if other.is_none() => {
                    // What the trace has no launch of was launched before it began, most likely.
                    let before = launch.is_none_or(|l| l.start < call.start);
                    other = before.then_some((Edge::Wait, place));
                    if meaning.whole_device && other.is_some() {
                        return other;
                    }
                }
                _ => {}
            }
        }
        other
    }

    /// Goes back in a call of MPI, in which the thread has been since `from`.
    fn mpi(&mut self, thread: u32, (start, name): (i64, u32), from: i64, stay: At) -> At {
        let all = self.hosts.all_ranks;
        let together = if all { Part::MpiTransfer } else { Part::MpiWait };
        let Some(last) = self.hosts.last(thread, start) else {
            self.go(from, Part::MpiWait, Some(name));
            return stay;
        };
        let later = last.at.saturating_sub(start);
        if last.thread == thread || later <= 0 {
            self.go(from, together, Some(name));
            return stay;
        }
        let aligned = self.hosts.apart(thread, last.thread).is_some_and(|apart| later > apart);
        if !aligned {
            (self.tell)(Step::NotAligned);
        }
        if !aligned || last.at >= self.t || self.stuck > STUCK {
            self.go(from, Part::MpiWait, Some(name));
            return stay;
        }
        self.go(from.max(last.at), together, Some(name));
        if self.t > last.at {
            return stay;
        }
        self.cross(Edge::Rank, At::thread(last.thread))
    }

    /// Goes back on a thread that has been in no call since `from`.
    fn no_call(&mut self, thread: u32, from: i64, stay: At) -> At {
        let part = Part::Host(Host::NoCall);
        let (mut own, mut idle) = (from, from == i64::MIN);
        if self.hosts.has_operators(thread) {
            let active = self.hosts.threads[thread as usize].active_before(self.t);
            match active {
                Some((begin, end)) if end == self.t => {
                    self.go(begin.max(from), part, None);
                    return stay;
                }
                Some((_, end)) => own = own.max(end),
                None => {}
            }
            idle = own == i64::MIN || self.since(own) >= LONG.0;
        }
        if idle
            && self.stuck <= STUCK
            && let Some((other, at)) = self.hosts.seen_last(thread, own, self.t)
        {
            self.go(at, part, None);
            return self.cross(Edge::Thread, At::thread(other));
        }
        self.go(own, part, None);
        stay
    }
}
