//! Calls of NCCL in processes that were not started by gpuwhy: entry and return of the functions that
//! libnccl exports.
//!
//! *What it sees*: in targets and their descendants, whichever file NCCL lies in, every outermost call
//! that moves data, groups calls, or creates or ends communicators; of each its time, its result, and
//! from its arguments the operation, the bytes, the peer and the communicator. *Why it matters*: a job
//! that runs already cannot be given the plug-in, and which rank calls late, with how much, is half of
//! why a collective was slow.
//!
//! *What fools it*:
//! - **A span is the call that enqueues**, on the track `nccl_calls` of its thread, and not the
//!   collective: that runs on the GPU later. A call that takes long was itself delayed, by a full
//!   queue, by connecting, by the launch in `ncclGroupEnd`.
//! - A process learns its rank when it creates the communicator. Calls on one that is older than the
//!   recording have no detail `collective` but attributes: bytes, peer, a number for the communicator
//!   (its address, which means something in this process only), and `seq` counted from here on.
//!   Where the creation was seen, the communicator has the number that NCCL itself gives it, and `seq`
//!   is equal on all ranks, as `collective` promises. The arguments of ncclCommSplit, Shrink and Grow
//!   do not tell the new rank, so that calls on their communicators have attributes too.
//! - A call that failed is not counted: ranks would differ for ever.
//! - Graphs: what was captured is called once and runs many times.
//! - NCCL that is linked into a program which exports none of its functions is not found.
//! - Before Linux 6.10 a link for one process sees only calls of its first thread.
//!
//! *What it costs the target*: 1.2 µs of CPU for a call that is recorded, both ends and the record
//! together, and 5 ms of the recorder's once for each process, to attach. Measured with
//! `examples/nccl_cost.rs` against libnccl 2.27.7 and 2.32.3, two runs each, on two shared virtual CPUs
//! (Linux 6.18, load 7): an ncclAllReduce that is refused took 88 to 137 ns before and 1304 to 1370 ns
//! after (least of 200 bursts of 100; median 1504 to 1676), ncclGroupStart with ncclGroupEnd 67 to 129
//! and 2279 to 2639 ns. All traced functions of these libraries begin with a push, which the kernel
//! emulates; ncclGetErrorString, which begins with a compare, costs 10 µs a call by `--step uprobe:`
//! in the same runs. Other processes that use the same file pay nothing: there are as many links as
//! processes.
//!
//! Processes whose plug-in reports a communicator ([`PluginProcesses`]) are detached from, so that no
//! call is recorded twice.
//!
//! [`PluginProcesses`]: crate::between_probes::PluginProcesses

mod finder;
mod functions;

use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Attr, Collective, Discipline, Id, Lane, Name, Ns, SourceId, Span, names, sources,
};
use libbpf_rs::Link;

use crate::bpf::{
    Bpf, Head, LoadedObject, bpf_object, bytes_of, from_bytes, set_constants, shared_with_c,
    uprobes,
};
use crate::config::Target;
use crate::context::Context;
use crate::error::{CollectError, error_chain};
use crate::probe::{Probe, ProbeSpec, Start};
use crate::sys::{self, ns};
use crate::thread_tracks::ThreadTracks;
use finder::{FileKey, Finder, Found, Library, ProcessKey};
use functions::{FUNCTIONS, Function, IN_PROGRESS, communicator_hash, result_text, size_of_type};

/// Comes after `inject`, so that it knows which processes have a plug-in.
pub(crate) const PROBE: ProbeSpec = ProbeSpec::new(
    "nccl_calls",
    &sources::NCCL_CALLS,
    "calls of NCCL in processes that do not have our plug-in",
    start,
);

/// Calls that one CPU may begin in a second, in windows of 10 ms.
const CALLS_PER_SECOND: u32 = 20_000;
/// Processes with NCCL that are traced.
const PROCESSES: usize = 512;
/// Threads that are kept; beyond this number all are forgotten and start again.
const THREADS: usize = 1 << 14;
/// Communicators that are kept, and peers and operations of each that are counted.
const COMMUNICATORS: usize = 1 << 12;
const COUNTED: usize = 1 << 12;
/// Parameters of a call, communicators of ncclCommInitAll, words of an id; as in `nccl_calls.bpf.c`.
const ARGS: usize = 7;
const MADE: usize = 16;
const ID_WORDS: usize = 16;

// The structs and enums of `nccl_calls.bpf.c`, where each is explained.
shared_with_c! {
    objects ["nccl_calls"];

    enum Kind = "kind" { Call, Make, }

    struct CallRecord = "call_record" {
        head: Head,
        from: u64,
        tgid: u32,
        function: u32,
        result: i32,
        pad: u32,
        args: [u64; ARGS],
    }

    struct MakeRecord = "make_record" {
        call: CallRecord,
        made: [u64; MADE],
        id: [u64; ID_WORDS],
    }

    struct Constants = "constants" {
        calls: u32,
        pad: u32,
    }
}

struct NcclCalls {
    bpf: Rc<Bpf>,
    /// Finds processes with NCCL, once there is a target.
    finder: Option<Finder>,
    loaded: Option<LoadedObject>,
    links: HashMap<(ProcessKey, FileKey), Vec<Link>>,
    rows: CallRows,
    /// The first reason why a library could not be traced.
    failure: Option<String>,
}

/// Loads nothing before NCCL was found in a target.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    start.bpf.check()?;
    let mut probe = NcclCalls {
        bpf: Rc::clone(start.bpf),
        finder: None,
        loaded: None,
        links: HashMap::new(),
        rows: CallRows::new(start.source),
        failure: None,
    };
    for &target in &start.config.targets {
        probe.add_target(target, start.cx)?;
    }
    Ok(Box::new(probe))
}

impl NcclCalls {
    /// Attaches to the library for this process only.
    fn attach(&mut self, process: ProcessKey, library: &Library) -> Result<(), CollectError> {
        let place = (process, library.key.clone());
        if self.links.contains_key(&place) || self.links.len() >= PROCESSES {
            return Ok(());
        }
        let links = match &self.loaded {
            Some(loaded) => attach(loaded, process.0, library)?,
            // Where the kernel has sessions, one link takes both ends of a call.
            None => {
                let first = |session| {
                    let loaded = load(&self.bpf, session)?;
                    let links = attach(&loaded, process.0, library)?;
                    Ok((loaded, links))
                };
                let (loaded, links) = first(true).or_else(|_: CollectError| first(false))?;
                self.loaded = Some(loaded);
                links
            }
        };
        self.links.insert(place, links);
        Ok(())
    }
}

fn load(bpf: &Bpf, session: bool) -> Result<LoadedObject, CollectError> {
    let constants = Constants { calls: CALLS_PER_SECOND / 100, pad: 0 };
    bpf.load("nccl_calls", bpf_object!("nccl_calls"), |object| {
        uprobes::select_programs(object, session);
        set_constants(object, bytes_of(&constants))
    })
}

fn attach(loaded: &LoadedObject, pid: u32, library: &Library) -> Result<Vec<Link>, CollectError> {
    let offsets: Vec<usize> = library.functions.iter().map(|(offset, _)| *offset).collect();
    let cookie = |number: u8| FUNCTIONS[usize::from(number)].cookie(number);
    let cookies: Vec<u64> = library.functions.iter().map(|(_, number)| cookie(*number)).collect();
    uprobes::attach(
        loaded,
        &uprobes::Functions {
            pid: Some(pid),
            binary: &sys::path_of(&library.file),
            offsets: &offsets,
            cookies: &cookies,
            description: &format!("`{}` of process {pid}", library.name),
        },
    )
}

impl Probe for NcclCalls {
    fn event(&mut self, kind: u8, bytes: &[u8], cx: &mut Context) {
        match Kind::from_code(kind) {
            Some(Kind::Call) => {
                if let Some(r) = from_bytes::<CallRecord>(bytes) {
                    self.rows.call(&r, &[], &[], cx);
                }
            }
            Some(Kind::Make) => {
                if let Some(r) = from_bytes::<MakeRecord>(bytes) {
                    self.rows.call(&r.call, &r.made, &r.id, cx);
                }
            }
            None => {}
        }
    }

    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        while let Some(found) = self.finder.as_ref().and_then(Finder::next) {
            match found {
                Found::Ended(process) => {
                    self.links.retain(|(other, _), _| *other != process);
                    self.rows.forget(process.0);
                }
                Found::Library(process, ..) if cx.plugins.contains(process.0) => {}
                Found::Library(process, library) => {
                    if let Err(error) = self.attach(process, &library) {
                        // The process has ended meanwhile, or the kernel has no multi links.
                        self.failure.get_or_insert_with(|| error_chain(&error));
                    }
                }
            }
        }
        if !cx.plugins.is_empty() && !self.links.is_empty() {
            self.links.retain(|((pid, _), _), _| !cx.plugins.contains(*pid));
        }
        let crossed = self.rows.crossed > 0;
        if (self.failure.is_some() || crossed) && !self.rows.noted {
            self.rows.noted = true;
            let note = match &self.failure {
                Some(why) => format!("a library is not traced: {why}"),
                None => "calls that cross others on their thread were dropped".into(),
            };
            cx.degraded(self.rows.source, &note);
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.rows.crossed
    }

    fn add_target(&mut self, target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        match &self.finder {
            Some(finder) => finder.add(target.pid()),
            None => {
                let action = "start a thread that finds NCCL";
                let failed = |source| CollectError::System { action: action.into(), source };
                self.finder = Some(Finder::start(vec![target.pid()]).map_err(failed)?);
            }
        }
        Ok(())
    }
}

/// Turns records into rows.
struct CallRows {
    source: SourceId,
    /// Names of [`FUNCTIONS`], and of their operations.
    names: Vec<(Name, Name)>,
    threads: ThreadTracks<()>,
    /// By process and address.
    communicators: HashMap<(u32, u64), Communicator>,
    crossed: u64,
    /// Whether the source's note says what is missing.
    noted: bool,
}

/// A communicator as one process has it.
#[derive(Default)]
struct Communicator {
    /// Known if its creation was seen.
    membership: Option<Membership>,
    /// Calls so far: by operation and, for messages, peer.
    counted: HashMap<(Name, Option<u32>), u64>,
}

/// The place of a process in a communicator.
#[derive(Clone, Copy)]
struct Membership {
    communicator: u64,
    rank: u32,
    ranks: u32,
}

impl CallRows {
    fn new(source: SourceId) -> CallRows {
        let names = FUNCTIONS.iter().map(|f| (f.symbol.into(), f.op.into())).collect();
        CallRows {
            source,
            names,
            threads: ThreadTracks::new(
                source,
                Lane::spans(names::NCCL_CALLS, Discipline::Nested),
                THREADS,
            ),
            communicators: HashMap::new(),
            crossed: 0,
            noted: false,
        }
    }

    /// A process has ended, and with it the addresses of its communicators.
    fn forget(&mut self, pid: u32) {
        self.communicators.retain(|(of, _), _| *of != pid);
    }

    fn call(&mut self, r: &CallRecord, made: &[u64], id: &[u64], cx: &mut Context) {
        let Some(function) = FUNCTIONS.get(r.function as usize) else { return };
        let call = Call { function, r };
        if !cx.plugins.contains(r.tgid) {
            self.write(&call, cx);
        }
        // New communicators are remembered in any case: a plug-in may fall silent.
        self.update_communicators(&call, made, id);
    }

    /// Writes the call, with what is known of its operation.
    fn write(&mut self, call: &Call<'_>, cx: &mut Context) {
        let r = call.r;
        let (ts, end) = (ns(r.from), ns(r.head.ts));
        let thread = self.threads.of(r.head.tid, r.tgid, cx);
        if !thread.nesting.fits(ts, end) {
            self.crossed += 1;
            return;
        }
        let track = thread.track;
        let (name, op) = self.names[r.function as usize].clone();
        let id = cx.ids.next_id();
        cx.rows.span.push(Span { id, ts, dur: Some(end - ts), track, parent: None, name });
        if call.failed() || r.result == IN_PROGRESS {
            attr(id, "result", &result_text(r.result), cx);
        }
        let Some(address) = call.argument(call.function.comm).filter(|a| *a != 0) else { return };
        if self.communicators.len() >= COMMUNICATORS {
            self.communicators.clear();
        }
        let communicator = self.communicators.entry((r.tgid, address)).or_default();
        if call.function.count == 0 || call.failed() {
            let name = call.communicator_name(communicator.membership, address);
            attr(id, "communicator", &name, cx);
            return;
        }
        communicator.write_operation(call, id, op, address, cx);
    }

    /// Adds communicators that the call created, and removes one that it ended.
    fn update_communicators(&mut self, call: &Call<'_>, made: &[u64], id: &[u64]) {
        let (function, r) = (call.function, call.r);
        if call.failed() {
            return;
        }
        if function.ends
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
            let communicator = match (function.id, function.makes_all()) {
                // No other process takes part in it, so that any unique number will do.
                (0, true) => Some(communicator_hash(&[u64::from(r.tgid), made[0], r.from])),
                (0, false) => None,
                _ => id.iter().any(|word| *word != 0).then(|| communicator_hash(id)),
            };
            let membership = match (communicator, rank, ranks) {
                (Some(communicator), Some(rank), Some(ranks)) if rank < ranks => {
                    Some(Membership { communicator, rank, ranks })
                }
                _ => None,
            };
            // An address that is used again is another communicator.
            let fresh = Communicator { membership, ..Communicator::default() };
            self.communicators.insert((r.tgid, address), fresh);
        }
    }
}

impl Communicator {
    /// Counts a call that moves data, and writes its operation: as detail `collective` where the
    /// membership is known, else as attributes.
    fn write_operation(
        &mut self,
        call: &Call<'_>,
        id: Id,
        op: Name,
        address: u64,
        cx: &mut Context,
    ) {
        let (peer, bytes) = (call.peer(), call.bytes());
        if self.counted.len() >= COUNTED {
            self.counted.clear();
        }
        // Sends and receives are numbered for each peer, so that the numbers of both ends match.
        let per_peer = matches!(&*op, "Send" | "Recv").then_some(peer).flatten();
        let counted = self.counted.entry((op.clone(), per_peer)).or_insert(0);
        let seq = *counted;
        *counted += 1;
        match (self.membership, bytes) {
            (Some(Membership { communicator, rank, ranks }), Some(bytes)) => {
                cx.rows.collective.push(Collective {
                    id,
                    ts: ns(call.r.from),
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
            (membership, bytes) => {
                attr(id, "communicator", &call.communicator_name(membership, address), cx);
                attr(id, "seq", &seq.to_string(), cx);
                if let Some(bytes) = bytes {
                    attr(id, "bytes", &bytes.to_string(), cx);
                }
                if let Some(peer) = peer {
                    attr(id, "peer", &peer.to_string(), cx);
                }
            }
        }
    }
}

fn attr(id: Id, key: &str, value: &str, cx: &mut Context) {
    cx.rows.attr.push(Attr { id, key: key.into(), value: value.into() });
}

/// A call, with the meaning of its function's parameters.
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
        // The upper half of a register that holds an int is undefined.
        self.argument(self.function.peer).map(|peer| peer as u32)
    }

    fn communicator_name(&self, membership: Option<Membership>, address: u64) -> String {
        match membership {
            Some(membership) => format!("{:016x}", membership.communicator),
            None => format!("at {address:#x} of pid {}", self.r.tgid),
        }
    }
}

#[cfg(test)]
mod tests;
