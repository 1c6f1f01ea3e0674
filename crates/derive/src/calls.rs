//! What calls of libraries say of the threads that made them, where a profiler recorded calls.
//!
//! # What it sees
//! Calls of CUDA, of MPI and of the operating system's libraries, by thread, by what they do: synchronise,
//! copy, allocate, load code, launch; exchange with other ranks; sleep. They make *tiles*: at any time at most
//! one thing, the one that says most. A call of MPI is cut where the last of its ranks came, if the files of
//! several ranks are in the trace: until then it waits for that rank, from then on for the transfer.
//!
//! # Why it matters
//! A profile knows of a thread that it ran or slept, if it has scheduler events, and nothing else. A thread
//! that polls in `cudaMemcpy` or `MPI_Allreduce` runs; that it waits for a copy or for a rank is known from the
//! call alone.
//!
//! # What fools it
//! Calls are matched over ranks by their names and because they overlap: which communicator they belong to is
//! not known, nor which rank a point-to-point call names. These are matched only if the trace holds two ranks.
//! Clocks of files may differ: the rank that came last is named where it came later than all others by more than
//! that, and ranks whose clocks have no known error are not matched at all.
//!
//! Only profiles have such tracks; gpuwhy's own recordings have none, and nothing here applies to them.
use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use gpuwhy_schema::{
    ClockError, CopyKind, Entity, EntityId, EntityKind, Id, Ns, Rows, SourceId, ThreadState, Track,
    TrackId, names,
};

use crate::intervals::{Interval, clip, subtract, union};

/// A launch or an asynchronous copy that takes this long waits for something; shorter ones are work of the CPU.
pub(crate) const LONG: Ns = Ns::micros(100);

/// What a call does, as its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKind {
    /// Loads code onto a GPU, or makes a context there.
    Load,
    /// Allocates or registers memory.
    Allocate,
    /// Frees memory, for which CUDA first waits for what the GPU does.
    Free,
    /// Copies, and returns when that is done.
    Copy,
    /// Asks for a copy or a memset.
    CopyAsync,
    /// Waits for a GPU.
    Synchronise,
    /// MPI: all ranks of a communicator.
    Collective,
    /// MPI: two ranks.
    PointToPoint,
    /// Launches a kernel or a graph.
    Launch,
}

impl CallKind {
    /// Every kind, in the order of how much they say: of calls within each other the first counts.
    pub const ALL: [CallKind; 9] = [
        CallKind::Load,
        CallKind::Allocate,
        CallKind::Free,
        CallKind::Copy,
        CallKind::CopyAsync,
        CallKind::Synchronise,
        CallKind::Collective,
        CallKind::PointToPoint,
        CallKind::Launch,
    ];

    /// What people call it.
    pub fn as_str(self) -> &'static str {
        match self {
            CallKind::Load => "loading code",
            CallKind::Allocate => "allocating",
            CallKind::Free => "freeing",
            CallKind::Copy | CallKind::CopyAsync => "copying",
            CallKind::Synchronise => "synchronising",
            CallKind::Collective | CallKind::PointToPoint => "MPI",
            CallKind::Launch => "launching",
        }
    }

    /// What a call of CUDA or HIP does; `None` if it neither waits nor takes long by its nature.
    pub fn of_device(name: &str) -> Option<CallKind> {
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        // `cudaGetDeviceProperties` and the like contain none of these words.
        Some(match name {
            _ if has(&[
                "ModuleLoad",
                "ModuleUnload",
                "LibraryLoad",
                "LibraryUnload",
                "LinkC",
                "LinkAdd",
            ]) =>
            {
                CallKind::Load
            }
            _ if has(&["CtxCreate", "PrimaryCtxRetain", "GraphInstantiate", "InitDevice"]) => {
                CallKind::Load
            }
            _ if has(&["Synchronize"]) => CallKind::Synchronise,
            _ if has(&[
                "MemFree",
                "Free",
                "IpcCloseMemHandle",
                "HostUnregister",
                "MemRelease",
                "MemUnmap",
            ]) =>
            {
                CallKind::Free
            }
            _ if has(&["Malloc", "MemAlloc", "HostAlloc", "HostRegister", "IpcOpenMemHandle"]) => {
                CallKind::Allocate
            }
            _ if has(&[
                "MemCreate",
                "MemMap",
                "MemAddressReserve",
                "MemPoolCreate",
                "ArrayCreate",
            ]) =>
            {
                CallKind::Allocate
            }
            _ if has(&["Memset", "MemsetD", "PrefetchAsync"]) => CallKind::CopyAsync,
            _ if has(&["Memcpy"]) => match has(&["Async"]) {
                true => CallKind::CopyAsync,
                false => CallKind::Copy,
            },
            _ if has(&["Launch"]) => CallKind::Launch,
            _ => return None,
        })
    }

    /// What a call of MPI waits for; `None` if it does not wait.
    pub fn of_mpi(name: &str) -> Option<CallKind> {
        let name = name.strip_prefix("MPI_").or_else(|| name.strip_prefix("PMPI_")).unwrap_or(name);
        const OF_TWO: &[&str] = &[
            "Send",
            "Ssend",
            "Rsend",
            "Bsend",
            "Recv",
            "Mrecv",
            "Sendrecv",
            "Sendrecv_replace",
            "Wait",
            "Waitall",
            "Waitany",
            "Waitsome",
            "Probe",
            "Mprobe",
        ];
        const OF_ALL: &[&str] = &[
            "Barrier",
            "Bcast",
            "Reduce",
            "Allreduce",
            "Gather",
            "Allgather",
            "Scatter",
            "Alltoall",
            "Scan",
            "Exscan",
            "Reduce_scatter",
            "Comm_split",
            "Comm_dup",
            "Comm_create",
            "Win_fence",
            "Win_create",
            "Win_allocate",
            "Win_free",
            "Cart_create",
            "Init",
            "Finalize",
            "File_open",
            "File_close",
            "Neighbor_allgather",
            "Neighbor_alltoall",
        ];
        if OF_TWO.contains(&name) {
            return Some(CallKind::PointToPoint);
        }
        let base = name.trim_end_matches(['v', 'w']);
        let of_all = OF_ALL.iter().any(|of| {
            base == *of || name.strip_prefix(of).is_some_and(|rest| rest.starts_with('_'))
        });
        of_all.then_some(CallKind::Collective)
    }
}

/// The state of a thread that sleeps in a call of the operating system's libraries, as the scheduler would
/// give it: the state, and the number of the system call.
fn os_state(name: &str) -> (ThreadState, i64) {
    let number = match name.trim_end_matches("64") {
        "poll" | "ppoll" => 7,
        "select" | "pselect" | "epoll_wait" | "epoll_pwait" => 232,
        "read" | "pread" | "readv" | "preadv" | "fread" | "fgets" | "fgetc" | "getline" => 0,
        "write" | "pwrite" | "writev" | "fwrite" | "fflush" | "fputs" => 1,
        "recv" | "recvfrom" | "recvmsg" | "recvmmsg" | "accept" | "accept4" => 45,
        "send" | "sendto" | "sendmsg" | "sendmmsg" | "connect" => 44,
        "sleep" | "usleep" | "nanosleep" | "clock_nanosleep" => 35,
        "ioctl" => 16,
        "fsync" | "fdatasync" | "sync" | "msync" | "syncfs" => return (ThreadState::DiskWait, 74),
        name if name.starts_with("pthread_") || name.starts_with("sem_") || name == "futex" => 202,
        _ => 10_000,
    };
    (ThreadState::Sleep, number)
}

/// What a tile says that its thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Was in a call of CUDA; whether the whole call was long.
    Device(CallKind, bool),
    /// Waited in a call of MPI for this thread, of the rank that came last.
    Late(EntityId),
    /// Was in a call of MPI that all of its ranks were in.
    Transfer,
    /// Was in a call of MPI whose other ranks are not in the trace, or whose last rank is not known.
    Elsewhere,
    /// Was in a call of the operating system.
    Os(ThreadState, i64),
}

/// A stretch of time of a thread in which a call says what it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// When it began.
    pub from: Ns,
    /// When it ended.
    pub to: Ns,
    /// What it did.
    pub doing: Doing,
}

/// A call of MPI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MpiCall {
    /// When it began.
    pub from: Ns,
    /// When it ended.
    pub to: Ns,
    /// Whose call it is.
    pub thread: EntityId,
    /// The process of that thread.
    pub process: EntityId,
    /// The file that it was read from.
    pub source: SourceId,
    /// By how much the times of that may differ from another's.
    pub error: ClockError,
}

impl MpiCall {
    /// By how much the times of two calls may differ because of their clocks.
    pub fn between(&self, other: &MpiCall) -> ClockError {
        match self.source == other.source {
            true => ClockError::NONE,
            false => self.error.max(other.error),
        }
    }
}

/// Calls of MPI that may be one call of several ranks: by their kind and name and, where the clock of their file
/// cannot be compared with any other, by that file.
type MpiCalls = BTreeMap<(CallKind, gpuwhy_schema::Name, Option<SourceId>), Vec<MpiCall>>;

/// The calls of all threads.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Disjoint tiles of each thread, by their time.
    tiles: HashMap<EntityId, Vec<Tile>>,
    /// When other ranks waited for a process in a call of MPI.
    awaited: HashMap<EntityId, Vec<Interval>>,
    /// Threads whose calls of the operating system were recorded: beside these they compute.
    os_recorded: HashSet<EntityId>,
    /// When pages of managed memory were moved for a process.
    faults: HashMap<EntityId, Vec<Interval>>,
    recorded: bool,
}

/// Calls of one thread that are not tiles yet, by how much they say.
type Layers = BTreeMap<(u8, CallKind), Vec<Tile>>;

impl Calls {
    /// Of these rows; `process` says which process a thread belongs to.
    pub fn new(
        rows: &Rows,
        tracks: &HashMap<TrackId, &Track>,
        entities: &HashMap<EntityId, Entity>,
    ) -> Calls {
        let mut calls = Calls::default();
        let of_calls = |name: &str| {
            matches!(
                name,
                names::CUDA_CALLS | names::MPI_CALLS | names::OS_CALLS | names::GPU_PAGE_FAULTS
            )
        };
        calls.recorded = rows.track.iter().any(|track| of_calls(&track.name));
        if !calls.recorded {
            return calls;
        }
        let process = |thread: EntityId| match entities.get(&thread) {
            Some(e) if e.kind == EntityKind::Thread => e.parent.unwrap_or(thread),
            _ => thread,
        };
        let os = rows.track.iter().filter(|t| &*t.name == names::OS_CALLS);
        calls.os_recorded = os.map(|t| t.entity).collect();
        let mut layers: HashMap<EntityId, Layers> = HashMap::new();
        let mut mpi = MpiCalls::new();
        let errors: HashMap<SourceId, ClockError> =
            rows.source.iter().map(|source| (source.id, ClockError::of(source))).collect();
        for span in &rows.span {
            let Some(track) = tracks.get(&span.track) else { continue };
            let (from, to) = (span.ts, span.dur.map_or(Ns::MAX, |dur| span.ts.saturating_add(dur)));
            let thread = track.entity;
            let (layer, doing) = match &*track.name {
                names::CUDA_CALLS => {
                    let Some(kind) = CallKind::of_device(&span.name) else { continue };
                    let long = to.saturating_sub(from) >= LONG;
                    ((0, kind), Doing::Device(kind, long))
                }
                names::OS_CALLS => {
                    let (state, number) = os_state(&span.name);
                    ((2, CallKind::Launch), Doing::Os(state, number))
                }
                names::MPI_CALLS => {
                    let Some(kind) = CallKind::of_mpi(&span.name) else { continue };
                    let (source, process) = (track.source, process(thread));
                    let error = errors.get(&source).copied().unwrap_or_default();
                    let call = MpiCall { from, to, thread, process, source, error };
                    let name = match kind {
                        CallKind::PointToPoint => "".into(),
                        _ => span.name.clone(),
                    };
                    let alone = Some(source).filter(|_| error == ClockError::Unknown);
                    mpi.entry((kind, name, alone)).or_default().push(call);
                    continue;
                }
                names::GPU_PAGE_FAULTS => {
                    calls.faults.entry(process(thread)).or_default().push((from, to));
                    continue;
                }
                _ => continue,
            };
            let of_thread = layers.entry(thread).or_default();
            of_thread.entry(layer).or_default().push(Tile { from, to, doing });
        }
        calls.ranks(mpi, entities, rows, &mut layers);
        calls.managed(rows);
        calls.tiles = layers.into_iter().map(|(thread, layers)| (thread, tiles(layers))).collect();
        calls.awaited.values_mut().for_each(|list| *list = union(std::mem::take(list)));
        calls.faults.values_mut().for_each(|list| *list = union(std::mem::take(list)));
        calls
    }

    /// Cuts calls of MPI where the last of their ranks came.
    fn ranks(
        &mut self,
        mpi: MpiCalls,
        entities: &HashMap<EntityId, Entity>,
        rows: &Rows,
        layers: &mut HashMap<EntityId, Layers>,
    ) {
        let of_mpi = rows.track.iter().filter(|t| &*t.name == names::MPI_CALLS);
        let processes: HashSet<EntityId> =
            of_mpi.filter_map(|t| entities.get(&t.entity)?.parent).collect();
        let whole = all_ranks(&processes, entities);
        for ((kind, ..), mut list) in mpi {
            list.sort_unstable_by_key(|call| (call.to, call.from, call.thread));
            let matched = kind == CallKind::Collective || (processes.len() == 2 && whole);
            for group in groups(&list, matched) {
                let last = group.iter().max_by_key(|call| (call.from, call.thread));
                let Some(last) = last.filter(|_| group.len() > 1) else {
                    group
                        .iter()
                        .for_each(|call| put(layers, call, call.from, call.to, Doing::Elsewhere));
                    continue;
                };
                // Who came within the error of the clocks before the last one may have come after it.
                let is_sure = group
                    .iter()
                    .all(|call| call.between(last).carries(last.from.saturating_sub(call.from)));
                for call in group {
                    let came = last.from.clamp(call.from, call.to);
                    let late = if is_sure { Doing::Late(last.thread) } else { Doing::Elsewhere };
                    put(layers, call, call.from, came, late);
                    if is_sure && call.from < came {
                        self.awaited.entry(last.process).or_default().push((call.from, came));
                    }
                    let rest = if whole { Doing::Transfer } else { Doing::Elsewhere };
                    put(layers, call, came, call.to, rest);
                }
            }
        }
    }

    /// Managed memory that the driver moved.
    fn managed(&mut self, rows: &Rows) {
        let moved = rows.copy.iter().filter(|copy| copy.kind == CopyKind::Managed);
        let moved: HashMap<Id, EntityId> =
            moved.filter_map(|copy| Some((copy.id, copy.process?))).collect();
        for span in rows.span.iter().filter(|_| !moved.is_empty()) {
            if let (Some(process), Some(dur)) = (moved.get(&span.id), span.dur) {
                let faults = self.faults.entry(*process).or_default();
                faults.push((span.ts, span.ts.saturating_add(dur)));
            }
        }
    }

    /// Whether any profiler recorded calls: gpuwhy itself records none.
    pub fn are_recorded(&self) -> bool {
        self.recorded
    }

    /// What a thread's calls say, in the window.
    pub fn of(&self, thread: EntityId, window: Interval) -> &[Tile] {
        let Some(list) = self.tiles.get(&thread) else { return &[] };
        let first = list.partition_point(|tile| tile.to <= window.0);
        let last = list.partition_point(|tile| tile.from < window.1);
        &list[first..last.max(first)]
    }

    /// When other ranks waited for a process.
    pub fn awaited(&self, process: EntityId) -> &[Interval] {
        self.awaited.get(&process).map_or(&[], Vec::as_slice)
    }

    /// When pages of managed memory were moved for a process.
    pub fn faults(&self, process: EntityId) -> &[Interval] {
        self.faults.get(&process).map_or(&[], Vec::as_slice)
    }

    /// Whether a thread that is in no call computes: its calls of the operating system were recorded, and it is
    /// in none.
    pub fn computes_outside(&self, thread: EntityId) -> bool {
        self.os_recorded.contains(&thread)
    }
}

fn put(layers: &mut HashMap<EntityId, Layers>, call: &MpiCall, from: Ns, to: Ns, doing: Doing) {
    if from < to {
        let of_thread = layers.entry(call.thread).or_default();
        let layer = of_thread.entry((1, CallKind::Collective)).or_default();
        layer.push(Tile { from, to, doing });
    }
}

/// Whether these processes are all ranks of a job: rank 0 to the last.
pub(crate) fn all_ranks(
    processes: &HashSet<EntityId>,
    entities: &HashMap<EntityId, Entity>,
) -> bool {
    let rank = |process: &EntityId| {
        let above = std::iter::successors(entities.get(process), |e| entities.get(&e.parent?));
        above.take(8).find(|e| e.kind == EntityKind::Rank).and_then(|e| e.number)
    };
    let ranks: HashSet<i64> = processes.iter().filter_map(rank).collect();
    let n = processes.len() as i64;
    n >= 2 && ranks.len() == processes.len() && ranks.iter().all(|rank| (0..n).contains(rank))
}

/// The calls, sorted by their ends, that are one call of several ranks: each overlaps all others, and no two
/// are of one process. If they are not `matched`, each is alone.
pub(crate) fn groups(calls: &[MpiCall], matched: bool) -> Vec<&[MpiCall]> {
    let mut out = Vec::new();
    let mut seen: HashSet<EntityId> = HashSet::new();
    let mut begin = 0;
    for (i, call) in calls.iter().enumerate() {
        let joins = matched && call.from < calls[begin].to && !seen.contains(&call.process);
        if i > begin && !joins {
            out.push(&calls[begin..i]);
            begin = i;
            seen.clear();
        }
        seen.insert(call.process);
    }
    if begin < calls.len() {
        out.push(&calls[begin..]);
    }
    out
}

/// Makes calls disjoint: where they lie in each other, the one that says more counts.
fn tiles(layers: Layers) -> Vec<Tile> {
    let mut taken: Vec<Interval> = Vec::new();
    let mut out: Vec<Tile> = Vec::new();
    for mut list in layers.into_values() {
        list.sort_unstable_by_key(|tile| (tile.from, tile.to));
        let mut at = Ns::MIN;
        for Tile { from, to, doing } in list {
            // Calls of one kind may lie in each other: the driver's in the runtime's.
            let window = (from.max(at), to);
            if window.0 >= window.1 {
                continue;
            }
            at = to;
            let free = subtract(window, &taken).into_iter();
            out.extend(free.map(|(from, to)| Tile { from, to, doing }));
        }
        taken = union(out.iter().map(|tile| (tile.from, tile.to)).collect());
    }
    out.sort_unstable_by_key(|tile| tile.from);
    out
}

/// `window` cut where it lies in `sorted` and where it does not: pieces by their time, and which of both.
pub(crate) fn cut(window: Interval, sorted: &[Interval]) -> Vec<(Interval, bool)> {
    let inside = clip(sorted, window).into_iter().map(|piece| (piece, true));
    let outside = subtract(window, sorted).into_iter().map(|piece| (piece, false));
    let mut all: Vec<(Interval, bool)> = inside.chain(outside).collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_what_they_do() {
        let device = [
            ("cudaMemcpy", Some(CallKind::Copy)),
            ("cudaMemcpyFromSymbol", Some(CallKind::Copy)),
            ("cuMemcpyDtoDAsync_v2", Some(CallKind::CopyAsync)),
            ("cudaFreeHost", Some(CallKind::Free)),
            ("cudaHostAlloc", Some(CallKind::Allocate)),
            ("cudaMallocManaged", Some(CallKind::Allocate)),
            ("cuModuleLoadData", Some(CallKind::Load)),
            ("hipDeviceSynchronize", Some(CallKind::Synchronise)),
            ("cudaLaunchKernelExC_v11060", Some(CallKind::Launch)),
            ("cudaEventRecord", None),
            ("cudaGetDeviceProperties", None),
            ("cuModuleGetLoadingMode", None),
        ];
        for (name, kind) in device {
            assert_eq!(CallKind::of_device(name), kind, "{name}");
        }
        let mpi = [
            ("MPI_Allreduce", Some(CallKind::Collective)),
            ("MPI_Gatherv", Some(CallKind::Collective)),
            ("MPI_Alltoallw", Some(CallKind::Collective)),
            ("MPI_Reduce_scatter_block", Some(CallKind::Collective)),
            ("MPI_Sendrecv", Some(CallKind::PointToPoint)),
            ("MPI_Waitall", Some(CallKind::PointToPoint)),
            ("MPI_Isend", None),
            ("MPI_Iallreduce", None),
            ("MPI_Comm_rank", None),
        ];
        for (name, kind) in mpi {
            assert_eq!(CallKind::of_mpi(name), kind, "{name}");
        }
    }

    #[test]
    fn of_calls_within_each_other_the_one_that_says_more_counts() {
        let tile =
            |from, to, kind| Tile { from: Ns(from), to: Ns(to), doing: Doing::Device(kind, true) };
        let mut layers = Layers::new();
        let launch = tile(0, 100, CallKind::Launch);
        let loads = vec![tile(10, 30, CallKind::Load), tile(15, 20, CallKind::Load)];
        layers.insert((0, CallKind::Launch), vec![launch]);
        layers.insert((0, CallKind::Load), loads);
        let told: Vec<_> = tiles(layers)
            .iter()
            .map(|t| match t.doing {
                Doing::Device(kind, _) => format!("{} {}-{}", kind.as_str(), t.from.0, t.to.0),
                _ => unreachable!(),
            })
            .collect();
        assert_eq!(told, ["launching 0-10", "loading code 10-30", "launching 30-100"]);
    }
}
