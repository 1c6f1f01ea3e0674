//! Calls of NCCL in processes that were not started for us: entry and return of what libnccl exports.
//!
//! *What it sees*: in targets and their descendants, whichever file NCCL lies in, every outermost call
//! that moves data, groups calls, or makes or ends communicators; of each its time, its result, and
//! from its arguments the operation, the bytes, the peer and the communicator. *Why it matters*: a job
//! that runs already cannot be given the plug-in, and which rank calls late, with how much, is half of
//! why a collective was slow.
//!
//! *What fools it*:
//! - **A span is the call that enqueues**, on the lane `nccl_calls` of its thread, and not the
//!   collective: that runs on the GPU later. A call that takes long was itself held up, by a full
//!   queue, by connecting, by the launch in `ncclGroupEnd`.
//! - Who this rank is was said when the communicator was made. Calls on one that is older than the
//!   recording have no detail `collective` but attributes: bytes, peer, a number for the communicator
//!   (its address, which means something in this process only), and `seq` counted from here on.
//!   Where the making was seen, the communicator is called what NCCL itself calls it, and `seq` is
//!   equal on all ranks, as `collective` promises. What ncclCommSplit, Shrink and Grow make has no rank
//!   that its arguments tell, so its calls are attributes too.
//! - A call that failed is not counted: ranks would differ for ever.
//! - Graphs: what was captured is called once and runs many times.
//! - NCCL that is linked into a program which exports none of its functions is not found.
//! - Before Linux 6.10 a link that looks at one process sees only calls of its first thread.
//!
//! *What it costs the target*: 1.2 us of CPU a call that is told, both ends and the record together,
//! and 5 ms of the recorder's once a process, to attach. Measured with `examples/nccl_cost.rs` against
//! libnccl 2.27.7 and 2.32.3, two runs each, on two shared virtual CPUs (Linux 6.18, load 7): an
//! ncclAllReduce that is refused took 88 to 137 ns before and 1304 to 1370 ns after (least of 200
//! bursts of 100; median 1504 to 1676), ncclGroupStart with ncclGroupEnd 67 to 129 and 2279 to 2639
//! ns. All that were looked at of these libraries' functions begin with a push, which the kernel does
//! by itself; ncclGetErrorString, which begins with a compare, costs 10 us a call by `--step uprobe:`
//! in the same runs. Other processes that use the same file pay nothing: there are as many links as
//! processes.
//!
//! Processes whose plug-in tells of a communicator ([`Context::inside`]) are let go of, so that nothing
//! is told twice.

mod functions;
mod libraries;

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Attr, Collective, Discipline, EntityId, Lane, Name, Ns, SourceId, SourceState, Span, TrackId,
    names,
};
use libbpf_rs::{Link, UprobeMultiOpts};

use crate::kernel::{Head, Kernel, Loaded, ProbeNumber, bpf_object, bytes_of, plain, record};
use crate::nest::Nest;
use crate::recorder::Target;
use crate::{CollectError, Context, Probe, Start, story};
use functions::{FUNCTIONS, Fate, Function, IN_PROGRESS, communicator_of, result, size_of_type};
use libraries::{FileKey, Finder, Library, Told, Who};

/// Calls that one CPU may begin in a second, in windows of 10 ms.
const CALLS_PER_SECOND: u32 = 20_000;
/// Processes with NCCL that are looked at.
const PROCESSES: usize = 512;
/// Threads that are kept; more begin anew.
const THREADS: usize = 1 << 14;
/// Communicators that are kept, and peers and operations of each that are counted.
const COMMUNICATORS: usize = 1 << 12;
const COUNTED: usize = 1 << 12;
/// Parameters of a call, communicators of ncclCommInitAll, words of an id; as in `nccl_calls.bpf.c`.
const ARGS: usize = 7;
const MADE: usize = 16;
const ID_WORDS: usize = 16;

const CALL: u16 = (ProbeNumber::NcclCalls as u16) << 8;
const MAKE: u16 = CALL | 1;

// The structs of `nccl_calls.bpf.c`, where each field is explained.

record! {
    struct CallRecord {
        head: Head,
        from: u64,
        tgid: u32,
        function: u32,
        result: i32,
        pad: u32,
        args: [u64; ARGS],
    }
}

record! {
    struct MakeRecord {
        call: CallRecord,
        made: [u64; MADE],
        id: [u64; ID_WORDS],
    }
}

record! {
    struct Tuning {
        calls: u32,
        pad: u32,
    }
}

struct NcclCalls {
    kernel: Rc<Kernel>,
    /// Whoever looks for NCCL, once there is somebody to look at.
    finder: Option<Finder>,
    loaded: Option<Loaded>,
    links: HashMap<(Who, FileKey), Vec<Link>>,
    book: Book,
    /// Why a library could not be looked at; told once.
    trouble: Option<String>,
}

/// Starts the probe. Nothing is loaded before NCCL was found in a target.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    if let Some(why) = start.kernel.refused() {
        return Err(CollectError::Unsupported {
            what: format!("BPF cannot be used: {why}"),
            fix: "run as root, or give the program CAP_BPF and CAP_PERFMON".into(),
        });
    }
    let mut probe = NcclCalls {
        kernel: Rc::clone(start.kernel),
        finder: None,
        loaded: None,
        links: HashMap::new(),
        book: Book::new(start.source),
        trouble: None,
    };
    for &target in &start.config.targets {
        probe.add_target(target, start.cx)?;
    }
    Ok(Box::new(probe))
}

impl NcclCalls {
    /// Attaches to the library for this process only.
    fn attach(
        &mut self,
        (pid, start): Who,
        path: &Path,
        library: &Library,
    ) -> Result<(), CollectError> {
        let place = ((pid, start), library.key.clone());
        if self.links.contains_key(&place) || self.links.len() >= PROCESSES {
            return Ok(());
        }
        let attached = |loaded: &mut Loaded| attach(loaded, pid, path, library);
        let links = match &mut self.loaded {
            Some(loaded) => attached(loaded)?,
            // Where the kernel has sessions, one link takes both ends of a call.
            none => {
                let mut load = |session| {
                    let mut loaded = load(&self.kernel, session)?;
                    let links = attached(&mut loaded)?;
                    *none = Some(loaded);
                    Ok(links)
                };
                load(true).or_else(|_: CollectError| load(false))?
            }
        };
        self.links.insert(place, links);
        Ok(())
    }

    fn let_go(&mut self, gone: impl Fn(Who) -> bool) {
        self.links.retain(|(who, _), _| !gone(*who));
    }
}

fn load(kernel: &Kernel, session: bool) -> Result<Loaded, CollectError> {
    let tuning = Tuning { calls: CALLS_PER_SECOND / 100, pad: 0 };
    kernel.load("nccl_calls", bpf_object!("nccl_calls"), |object| {
        for mut map in object.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(bytes_of(&tuning))?;
            }
        }
        for mut program in object.progs_mut() {
            let is_session = program.name() == "nccl_session";
            program.set_autoload(is_session == session);
        }
        Ok(())
    })
}

fn attach(
    loaded: &mut Loaded,
    pid: u32,
    path: &Path,
    library: &Library,
) -> Result<Vec<Link>, CollectError> {
    let offsets: Vec<usize> = library.functions.iter().map(|(offset, _)| *offset).collect();
    let cookie = |number: u8| FUNCTIONS[usize::from(number)].cookie(number);
    let cookies: Vec<u64> = library.functions.iter().map(|(_, number)| cookie(*number)).collect();
    let mut links = Vec::new();
    for program in loaded.object.progs_mut() {
        if !program.autoload() {
            continue;
        }
        let options = UprobeMultiOpts {
            offsets: offsets.clone(),
            cookies: cookies.clone(),
            retprobe: program.name() == "nccl_return",
            session: program.name() == "nccl_session",
            ..UprobeMultiOpts::default()
        };
        let link = program.attach_uprobe_multi_with_opts(pid as i32, path, "", options).map_err(
            |source| CollectError::Attach {
                probe: "nccl_calls",
                to: format!("`{}`", path.display()),
                source,
            },
        )?;
        links.push(link);
    }
    Ok(links)
}

impl Probe for NcclCalls {
    fn name(&self) -> &'static str {
        "nccl_calls"
    }

    fn kinds(&self) -> Range<u16> {
        ProbeNumber::NcclCalls.kinds()
    }

    fn event(&mut self, kind: u16, bytes: &[u8], cx: &mut Context) {
        match kind {
            CALL => {
                if let Some(r) = plain::<CallRecord>(bytes) {
                    self.book.call(&r, &[], &[], cx);
                }
            }
            MAKE => {
                if let Some(r) = plain::<MakeRecord>(bytes) {
                    self.book.call(&r.call, &r.made, &r.id, cx);
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        while let Some(told) = self.finder.as_ref().and_then(Finder::next) {
            match told {
                Told::Gone(who) => {
                    self.let_go(|other| other == who);
                    self.book.forget(who.0);
                }
                Told::Maps(who, ..) if cx.inside.contains(&who.0) => {}
                Told::Maps(who, path, library) => {
                    if let Err(error) = self.attach(who, &path, &library) {
                        // One that ended meanwhile, or a kernel without multi links.
                        self.trouble.get_or_insert_with(|| story(&error));
                    }
                }
            }
        }
        if !cx.inside.is_empty() && !self.links.is_empty() {
            let inside = &cx.inside;
            self.links.retain(|(who, _), _| !inside.contains(&who.0));
        }
        let crossed = self.book.crossed > 0;
        if (self.trouble.is_some() || crossed) && !self.book.told {
            self.book.told = true;
            let note = match &self.trouble {
                Some(why) => format!("a library is not looked at: {why}"),
                None => "calls that cross others on their thread were dropped".into(),
            };
            cx.lanes.update_source(self.book.source, |s| {
                s.state = SourceState::Degraded;
                s.note = Some(note.as_str().into());
            });
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.book.crossed
    }

    fn add_target(&mut self, target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        let Target::Pid(pid) = target;
        match &self.finder {
            Some(finder) => finder.add(pid),
            None => {
                self.finder = Some(Finder::begin(vec![pid]).map_err(|source| {
                    CollectError::System { what: "start a thread that finds NCCL".into(), source }
                })?);
            }
        }
        Ok(())
    }
}

/// The rows that follow from records.
struct Book {
    source: SourceId,
    /// Names of [`FUNCTIONS`], and of their operations.
    names: Vec<(Name, Name)>,
    threads: HashMap<u32, Thread>,
    /// By process and address.
    communicators: HashMap<(u32, u64), Communicator>,
    crossed: u64,
    told: bool,
}

struct Thread {
    entity: EntityId,
    track: TrackId,
    nest: Nest,
}

/// A communicator as one process has it.
#[derive(Default)]
struct Communicator {
    /// Where its making was seen.
    place: Option<Place>,
    /// Calls so far: operation by its first function, peer.
    counted: HashMap<(Name, Option<u32>), u64>,
}

#[derive(Clone, Copy)]
struct Place {
    id: u64,
    rank: u32,
    ranks: u32,
}

impl Book {
    fn new(source: SourceId) -> Book {
        let names = FUNCTIONS.iter().map(|f| (f.symbol.into(), f.op.into())).collect();
        Book {
            source,
            names,
            threads: HashMap::new(),
            communicators: HashMap::new(),
            crossed: 0,
            told: false,
        }
    }

    /// A process is gone, and with it what it called its communicators.
    fn forget(&mut self, pid: u32) {
        self.communicators.retain(|(of, _), _| *of != pid);
    }

    fn call(&mut self, r: &CallRecord, made: &[u64], id: &[u64], cx: &mut Context) {
        let Some(function) = FUNCTIONS.get(r.function as usize) else { return };
        let call = Call { function, r };
        if !cx.inside.contains(&r.tgid) {
            self.tell(&call, cx);
        }
        // Who makes communicators is remembered in any case: a plug-in may fall silent.
        self.remember(&call, made, id);
    }

    fn tell(&mut self, call: &Call<'_>, cx: &mut Context) {
        let r = call.r;
        if self.threads.len() >= THREADS {
            self.threads.clear();
        }
        let (tid, source) = (r.head.tid, self.source);
        let entity = cx.people.thread(&mut cx.lanes, tid, r.tgid, None);
        let mut begin = || {
            let lane = Lane::spans(names::NCCL_CALLS, Discipline::Nested);
            let track = cx.lanes.track(entity, None, lane, source);
            Thread { entity, track, nest: Nest::default() }
        };
        let thread = self.threads.entry(tid).or_insert_with(&mut begin);
        if thread.entity != entity {
            // The number was given to another thread.
            *thread = begin();
        }
        let (ts, end) = (ns(r.from), ns(r.head.ts));
        if !thread.nest.fits(ts, end) {
            self.crossed += 1;
            return;
        }
        let (name, op) = self.names[r.function as usize].clone();
        let (id, track) = (cx.ids.next_id(), thread.track);
        cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
        let mut attr = |key: &str, value: &str| {
            cx.rows.attr.push(Attr { id, key: key.into(), value: value.into() });
        };
        if call.failed() || r.result == IN_PROGRESS {
            attr("result", &result(r.result));
        }
        let Some(address) = call.argument(call.function.comm).filter(|a| *a != 0) else { return };
        if self.communicators.len() >= COMMUNICATORS {
            self.communicators.clear();
        }
        let communicator = self.communicators.entry((r.tgid, address)).or_default();
        let place = communicator.place;
        if call.function.count == 0 || call.failed() {
            attr("communicator", &call.communicator(place, address));
            return;
        }
        let (peer, bytes) = (call.peer(), call.bytes());
        if communicator.counted.len() >= COUNTED {
            communicator.counted.clear();
        }
        // Sends and receives are numbered for each peer, so that both ends meet.
        let per_peer = matches!(&*op, "Send" | "Recv").then_some(peer).flatten();
        let counted = communicator.counted.entry((op.clone(), per_peer)).or_insert(0);
        let seq = *counted;
        *counted += 1;
        match (place, bytes) {
            (Some(Place { id: communicator, rank, ranks }), Some(bytes)) => {
                cx.rows.collective.push(Collective {
                    id,
                    ts,
                    communicator,
                    seq,
                    op,
                    bytes,
                    rank,
                    ranks,
                    peer,
                    algorithm: None,
                    protocol: None,
                    channels: None,
                });
            }
            _ => {
                attr("communicator", &call.communicator(place, address));
                attr("seq", &seq.to_string());
                if let Some(bytes) = bytes {
                    attr("bytes", &bytes.to_string());
                }
                if let Some(peer) = peer {
                    attr("peer", &peer.to_string());
                }
            }
        }
    }

    /// Communicators that begin or end with this call.
    fn remember(&mut self, call: &Call<'_>, made: &[u64], id: &[u64]) {
        let (function, r) = (call.function, call.r);
        if call.failed() {
            return;
        }
        if function.fate == Fate::Ends
            && let Some(address) = call.argument(function.comm)
        {
            self.communicators.remove(&(r.tgid, address));
        }
        let number = |p: u8| call.argument(p).map(|n| n as u32);
        for (i, &address) in made.iter().enumerate().filter(|(_, address)| **address != 0) {
            if self.communicators.len() >= COMMUNICATORS {
                self.communicators.clear();
            }
            let ranks = number(function.ranks);
            let rank = if function.makes_all() { Some(i as u32) } else { number(function.rank) };
            let id = match (function.id, function.makes_all()) {
                // Nobody else has part in it, so that any number will do that no other has.
                (0, true) => Some(communicator_of(&[u64::from(r.tgid), made[0], r.from])),
                (0, false) => None,
                _ => id.iter().any(|word| *word != 0).then(|| communicator_of(id)),
            };
            let place = match (id, rank, ranks) {
                (Some(id), Some(rank), Some(ranks)) if rank < ranks => {
                    Some(Place { id, rank, ranks })
                }
                _ => None,
            };
            // An address that is used again is another communicator.
            let fresh = Communicator { place, ..Communicator::default() };
            self.communicators.insert((r.tgid, address), fresh);
        }
    }
}

/// A call, by what its function's parameters mean.
struct Call<'a> {
    function: &'static Function,
    r: &'a CallRecord,
}

impl Call<'_> {
    fn argument(&self, parameter: u8) -> Option<u64> {
        self.r.args.get(usize::from(parameter).checked_sub(1)?).copied()
    }

    fn failed(&self) -> bool {
        self.r.result != 0 && self.r.result != IN_PROGRESS
    }

    fn bytes(&self) -> Option<u64> {
        let size = size_of_type(self.argument(self.function.datatype)?)?;
        self.argument(self.function.count)?.checked_mul(size)
    }

    fn peer(&self) -> Option<u32> {
        // The upper half of a register that holds an int says nothing.
        self.argument(self.function.peer).map(|peer| peer as u32)
    }

    fn communicator(&self, place: Option<Place>, address: u64) -> String {
        match place {
            Some(place) => format!("{:016x}", place.id),
            None => format!("at {address:#x} of pid {}", self.r.tgid),
        }
    }
}

fn ns(n: u64) -> Ns {
    Ns(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
