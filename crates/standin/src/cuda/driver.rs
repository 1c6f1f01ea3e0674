//! The driver's state in this process: contexts, streams, modules, graphs and memory.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, OnceLock};

use gpuwhy_testkit::gpu::Gpu;

use super::code::Execution;
use super::{Code, Status};
use crate::c::Static;
use crate::cupti::{CopyKind, MemoryKind};
use crate::lock::{Guard, Mutex};
use crate::machine::{machine, now, pid};

/// Launches that a stream queues before a launch waits.
pub(super) const QUEUE: usize = 1024;
/// Device memory that a context uses.
pub(super) const CONTEXT_BYTES: u64 = 512 << 20;

/// A context, stream, module and so on: a number that is no address.
pub(super) type Handle = usize;

/// Handles of streams that are not created: null, legacy, and per thread.
pub(super) const DEFAULT_STREAMS: std::ops::RangeInclusive<Handle> = 0..=2;

/// All that this process has created.
#[derive(Default)]
pub(super) struct Driver {
    pub(super) contexts: HashMap<Handle, Context>,
    /// By device.
    pub(super) primary: HashMap<usize, Handle>,
    /// By handle, or by that of the context for its default stream.
    pub(super) streams: HashMap<Handle, Stream>,
    pub(super) modules: HashMap<Handle, ()>,
    pub(super) functions: HashMap<Handle, Static>,
    pub(super) code: Execution,
    pub(super) graphs: HashMap<Handle, Graph>,
    pub(super) executables: HashMap<Handle, Graph>,
    /// Bytes and device by address.
    pub(super) memory: BTreeMap<u64, (u64, usize)>,
    /// Pinned memory of the host: bytes by address.
    pub(super) pinned: BTreeMap<usize, usize>,
    /// Of that, what kernels reach: where they see it, and on which device.
    pub(super) registered: BTreeMap<usize, (u64, usize)>,
    pub(super) contexts_made: u32,
    pub(super) streams_made: u32,
    pub(super) graphs_made: u32,
}

/// A context: its device, and the number that CUPTI gives it.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub(super) device: usize,
    pub(super) id: u32,
}

/// A stream of a context.
pub(super) struct Stream {
    pub(super) context: Handle,
    pub(super) id: u32,
    /// 0 to -5, the most urgent one.
    pub(super) priority: c_int,
    /// When its last work ends.
    pub(super) until: u64,
    /// Ends of the launches that have not run yet.
    pub(super) queue: VecDeque<u64>,
    /// What was launched since a capture began.
    pub(super) capture: Option<Vec<Node>>,
}

/// A captured or instantiated graph.
#[derive(Clone)]
pub(super) struct Graph {
    pub(super) id: u32,
    pub(super) nodes: Vec<Node>,
}

/// Work on a stream.
#[derive(Clone, Copy)]
pub(super) enum Node {
    Kernel {
        name: Static,
        work: u64,
        grid: [i32; 3],
        block: [i32; 3],
        shared: i32,
        /// Which of the launches to execute ([`Execution`]) it is.
        run: Option<usize>,
        /// When it was executed: it began then, ns; 0 if it only takes time.
        begin: u64,
    },
    Copy {
        kind: CopyKind,
        from: MemoryKind,
        to: MemoryKind,
        bytes: u64,
        peer: Option<Peer>,
    },
    Set {
        value: u32,
        bytes: u64,
    },
}

/// The contexts of a copy between devices.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub(super) source: Context,
    pub(super) target: Context,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(Mutex::default);
/// Whether `cuInit` was called.
pub(super) static INITIALIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The context of this thread.
    pub(super) static CURRENT: Cell<Handle> = const { Cell::new(0) };
}

/// Fails before `cuInit`.
pub(super) fn ready() -> Status {
    if INITIALIZED.load(Relaxed) { Ok(()) } else { Err(Code::NotInitialized) }
}

/// The state, locked.
pub(super) fn driver() -> Result<Guard<'static, Driver>, Code> {
    ready()?;
    Ok(DRIVER.lock())
}

/// A new handle.
pub(super) fn handle() -> Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(0x6375_0000);
    NEXT.fetch_add(16, Relaxed)
}

/// The GPUs that the program sees, in its order: those of `CUDA_VISIBLE_DEVICES`, indices or
/// UUIDs up to the first that does not exist, or all.
pub(super) fn visible() -> &'static [usize] {
    static VISIBLE: OnceLock<Vec<usize>> = OnceLock::new();
    VISIBLE.get_or_init(|| {
        let Some(machine) = machine() else { return Vec::new() };
        let find = |word: &str| match word.trim().parse::<usize>() {
            Ok(index) => Some(index).filter(|i| *i < machine.count()),
            Err(_) => machine.gpus().iter().position(|g| g.uuid_text() == word.trim()),
        };
        match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => list.split(',').map_while(find).collect(),
            Err(_) => (0..machine.count()).collect(),
        }
    })
}

/// The GPU of a device ordinal.
pub(super) fn gpu_of(device: usize) -> Result<&'static Gpu, Code> {
    let index = visible().get(device).ok_or(Code::InvalidDevice)?;
    machine().and_then(|m| m.gpu(*index)).ok_or(Code::InvalidDevice)
}

/// The GPU, if it is on the bus and no Xid has hit this process.
pub(super) fn working(device: usize) -> Result<&'static Gpu, Code> {
    let gpu = gpu_of(device)?;
    if gpu.present() && !gpu.has_failed(pid()) { Ok(gpu) } else { Err(Code::LaunchFailed) }
}

/// The device of an ordinal, after `cuInit`.
pub(super) fn device(ordinal: c_int) -> Result<usize, Code> {
    ready()?;
    let device = usize::try_from(ordinal).map_err(|_| Code::InvalidDevice)?;
    gpu_of(device).map(|_| device)
}

impl Driver {
    /// The context of this thread.
    pub(super) fn current(&self) -> Result<(Handle, Context), Code> {
        let current = CURRENT.get();
        let context = self.contexts.get(&current).ok_or(Code::InvalidContext)?;
        Ok((current, *context))
    }

    /// A stream and its context; the default streams are those of the current context.
    pub(super) fn stream(&mut self, stream: Handle) -> Result<(&mut Stream, Context), Code> {
        let key = if DEFAULT_STREAMS.contains(&stream) { self.current()?.0 } else { stream };
        let stream = self.streams.get_mut(&key).ok_or(Code::InvalidHandle)?;
        let context = self.contexts.get(&stream.context).ok_or(Code::InvalidContext)?;
        Ok((stream, *context))
    }

    /// Creates a context with its default stream.
    pub(super) fn new_context(&mut self, device: usize) -> Result<Handle, Code> {
        if !working(device)?.allocate(pid(), CONTEXT_BYTES, now()) {
            return Err(Code::OutOfMemory);
        }
        self.contexts_made += 1;
        let context = handle();
        self.contexts.insert(context, Context { device, id: self.contexts_made });
        // CUPTI's number of the default stream of a program's first context.
        self.streams.insert(context, Stream::new(context, 7));
        Ok(context)
    }

    /// Whether memory of the host is pinned.
    pub(super) fn host_kind(&self, address: usize) -> MemoryKind {
        match self.pinned.range(..=address).next_back() {
            Some((start, bytes)) if address < start + bytes => MemoryKind::Pinned,
            _ => MemoryKind::Pageable,
        }
    }
}

impl Stream {
    /// An idle stream.
    pub(super) fn new(context: Handle, id: u32) -> Stream {
        Stream { context, id, priority: 0, until: 0, queue: VecDeque::new(), capture: None }
    }

    /// Queues a launch that ends at `end`. Returns until when the launching thread waits for room
    /// in the queue; 0 if there is room.
    pub(super) fn enqueue(&mut self, end: u64, at: u64) -> u64 {
        self.queue.push_back(end);
        while self.queue.front().is_some_and(|end| *end <= at) {
            self.queue.pop_front();
        }
        if self.queue.len() <= QUEUE { 0 } else { self.queue.pop_front().unwrap_or(0) }
    }
}
