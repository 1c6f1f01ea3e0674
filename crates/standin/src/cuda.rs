//! `libcuda`, as far as a workload of kernels, copies and graphs needs it.
//!
//! A kernel does nothing but take time: its first parameter is a `u64`, the ns that it takes at
//! the nominal clock. That is our convention; everything else is the driver's interface. Copies
//! move no bytes, device addresses point to nothing, and module images are not read. What waits,
//! sleeps until the time that the engine has placed the work at.
//!
//! As the real driver does, [`cuInit`] loads the object that `CUDA_INJECTION64_PATH` names and
//! calls its `InitializeInjection`, once; [`CUDA_VISIBLE_DEVICES`](visible) hides devices; a stream
//! takes [`QUEUE`] launches ahead, and then a launch waits.
//!
//! What it does not model: the null stream's waiting for all others, events, and cooperative or
//! dependent launches. A GPU that is off the bus fails with `CUDA_ERROR_LAUNCH_FAILED` while it is,
//! and one that has reported an Xid in this process's work fails it for good.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, OnceLock};

use gpuwhy_testkit::gpu::{Direction, Gpu, Quantity, Run};
use gpuwhy_testkit::sys;

use crate::c::{self, Null, Out, Static, Text};
use crate::cupti::{self, Activity, CopyKind, MemoryKind, What};
use crate::lock::{Guard, Mutex};
use crate::machine::{cuda_version, machine, now, pid};

/// `CUresult`, those that we say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Code {
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidContext = 201,
    InvalidHandle = 400,
    NotReady = 600,
    LaunchFailed = 719,
    CaptureUnsupported = 900,
    Unknown = 999,
}

impl From<Null> for Code {
    fn from(_: Null) -> Code {
        Code::InvalidValue
    }
}

type Answer = Result<(), Code>;

fn answer(f: impl FnOnce() -> Answer) -> u32 {
    c::guarded(Code::Unknown as u32, || match f() {
        Ok(()) => 0,
        Err(code) => code as u32,
    })
}

/// Launches that a stream takes ahead.
pub const QUEUE: usize = 1024;
/// Device memory that a context takes.
const CONTEXT_BYTES: u64 = 512 << 20;

/// A context, stream, module and so on: a number that is nobody's address.
type Handle = usize;

/// The type of every stream that is not created: null, legacy, and per thread.
const DEFAULT_STREAMS: std::ops::RangeInclusive<Handle> = 0..=2;

#[derive(Default)]
struct Driver {
    contexts: HashMap<Handle, Context>,
    /// By device.
    primary: HashMap<usize, Handle>,
    /// By handle, or by that of the context for its default stream.
    streams: HashMap<Handle, Stream>,
    modules: HashMap<Handle, ()>,
    functions: HashMap<Handle, Static>,
    graphs: HashMap<Handle, Graph>,
    executables: HashMap<Handle, Graph>,
    /// Bytes and device by address.
    memory: BTreeMap<u64, (u64, usize)>,
    /// Pinned memory of the host: bytes by address.
    pinned: BTreeMap<usize, usize>,
    contexts_made: u32,
    streams_made: u32,
    graphs_made: u32,
}

#[derive(Clone, Copy)]
struct Context {
    device: usize,
    id: u32,
}

struct Stream {
    context: Handle,
    id: u32,
    until: u64,
    /// Ends of the last launches.
    queue: VecDeque<u64>,
    capture: Option<Vec<Node>>,
}

#[derive(Clone)]
struct Graph {
    id: u32,
    nodes: Vec<Node>,
}

/// What a stream does.
#[derive(Clone, Copy)]
enum Node {
    Kernel { name: Static, work: u64, grid: [i32; 3], block: [i32; 3], shared: i32 },
    Copy { kind: CopyKind, from: MemoryKind, to: MemoryKind, bytes: u64, peer: Option<Peer> },
    Set { value: u32, bytes: u64 },
}

#[derive(Clone, Copy)]
struct Peer {
    source: Context,
    target: Context,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(Mutex::default);
static INITIALIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<Handle> = const { Cell::new(0) };
}

fn ready() -> Answer {
    if INITIALIZED.load(Relaxed) { Ok(()) } else { Err(Code::NotInitialized) }
}

fn driver() -> Result<Guard<'static, Driver>, Code> {
    ready()?;
    Ok(DRIVER.lock())
}

fn handle() -> Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(0x6375_0000);
    NEXT.fetch_add(16, Relaxed)
}

/// The GPUs that the program sees, in its order: those of `CUDA_VISIBLE_DEVICES`, indices or
/// UUIDs up to the first that is none, or all.
fn visible() -> &'static [usize] {
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

fn gpu_of(device: usize) -> Result<&'static Gpu, Code> {
    let index = visible().get(device).ok_or(Code::InvalidDevice)?;
    machine().and_then(|m| m.gpu(*index)).ok_or(Code::InvalidDevice)
}

/// The GPU, if it works for us.
fn working(device: usize) -> Result<&'static Gpu, Code> {
    let gpu = gpu_of(device)?;
    if gpu.present() && !gpu.has_failed(pid()) { Ok(gpu) } else { Err(Code::LaunchFailed) }
}

fn device(ordinal: c_int) -> Result<usize, Code> {
    ready()?;
    let device = usize::try_from(ordinal).map_err(|_| Code::InvalidDevice)?;
    gpu_of(device).map(|_| device)
}

impl Driver {
    fn current(&self) -> Result<(Handle, Context), Code> {
        let current = CURRENT.get();
        let context = self.contexts.get(&current).ok_or(Code::InvalidContext)?;
        Ok((current, *context))
    }

    fn stream(&mut self, stream: Handle) -> Result<(&mut Stream, Context), Code> {
        let key = if DEFAULT_STREAMS.contains(&stream) { self.current()?.0 } else { stream };
        let stream = self.streams.get_mut(&key).ok_or(Code::InvalidHandle)?;
        let context = self.contexts.get(&stream.context).ok_or(Code::InvalidContext)?;
        Ok((stream, *context))
    }

    fn new_context(&mut self, device: usize) -> Result<Handle, Code> {
        if !working(device)?.allocate(pid(), CONTEXT_BYTES, now()) {
            return Err(Code::OutOfMemory);
        }
        self.contexts_made += 1;
        let context = handle();
        self.contexts.insert(context, Context { device, id: self.contexts_made });
        // 7 is what CUPTI calls the default stream of a first context.
        self.streams.insert(context, Stream::new(context, 7));
        Ok(context)
    }

    /// Whether host memory is pinned.
    fn host_kind(&self, address: usize) -> MemoryKind {
        match self.pinned.range(..=address).next_back() {
            Some((start, bytes)) if address < start + bytes => MemoryKind::Pinned,
            _ => MemoryKind::Pageable,
        }
    }

    /// Puts a node on a stream, or into its graph. Until when the caller must wait, 0 if at all.
    fn submit(&mut self, stream: Handle, node: Node, correlation: u32) -> Result<u64, Code> {
        let (stream, context) = self.stream(stream)?;
        if let Some(nodes) = &mut stream.capture {
            nodes.push(node);
            return Ok(0);
        }
        let at = now();
        let run = place(working(context.device)?, at, stream.until, &node);
        stream.until = run.end;
        let place = Place { context, stream: stream.id, correlation, graph: 0, node: 0, at };
        cupti::tell(place.activity(&node, run));
        let wait = if cupti::serialises() { run.end } else { stream.enqueue(run.end, at) };
        Ok(wait)
    }

    /// Runs a graph on a stream; as `submit`.
    fn replay(&mut self, graph: Handle, stream: Handle, correlation: u32) -> Result<u64, Code> {
        let graph = self.executables.get(&graph).ok_or(Code::InvalidHandle)?.clone();
        let (stream, context) = self.stream(stream)?;
        if stream.capture.is_some() {
            return Err(Code::CaptureUnsupported);
        }
        let gpu = working(context.device)?;
        let at = now();
        let mut whole: Option<Run> = None;
        for (i, node) in graph.nodes.iter().enumerate() {
            let run = place(gpu, at, stream.until, node);
            stream.until = run.end;
            whole = Some(Run { start: whole.map_or(run.start, |w| w.start), end: run.end });
            if !cupti::traces_graphs() {
                let place = Place {
                    context,
                    stream: stream.id,
                    correlation,
                    graph: graph.id,
                    node: node_id(graph.id, i),
                    at,
                };
                cupti::tell(place.activity(node, run));
            }
        }
        let whole = whole.unwrap_or(Run { start: at, end: at });
        if cupti::traces_graphs() {
            let place =
                Place { context, stream: stream.id, correlation, graph: graph.id, node: 0, at };
            cupti::tell(place.of(What::Graph, whole));
        }
        Ok(stream.enqueue(whole.end, at))
    }
}

impl Stream {
    fn new(context: Handle, id: u32) -> Stream {
        Stream { context, id, until: 0, queue: VecDeque::new(), capture: None }
    }

    /// Takes a launch into the queue. Until when the launching thread waits for room, 0 if there
    /// is.
    fn enqueue(&mut self, end: u64, at: u64) -> u64 {
        self.queue.push_back(end);
        while self.queue.front().is_some_and(|end| *end <= at) {
            self.queue.pop_front();
        }
        if self.queue.len() <= QUEUE { 0 } else { self.queue.pop_front().unwrap_or(0) }
    }
}

fn node_id(graph: u32, index: usize) -> u64 {
    u64::from(graph) << 32 | (index as u64 + 1)
}

fn place(gpu: &Gpu, at: u64, after: u64, node: &Node) -> Run {
    match *node {
        Node::Kernel { work, .. } => gpu.launch(at, after, pid(), work),
        Node::Copy { kind, bytes, .. } => gpu.copy(at, after, pid(), bytes, kind.direction()),
        Node::Set { bytes, .. } => gpu.copy(at, after, pid(), bytes, Direction::Within),
    }
}

/// Where something ran, and what launched it.
#[derive(Clone, Copy)]
struct Place {
    context: Context,
    stream: u32,
    correlation: u32,
    graph: u32,
    node: u64,
    at: u64,
}

impl Place {
    fn of(self, what: What, run: Run) -> Activity {
        Activity {
            gpu: visible().get(self.context.device).copied().unwrap_or(0),
            device: self.context.device as u32,
            context: self.context.id,
            stream: self.stream,
            correlation: self.correlation,
            graph: self.graph,
            node: self.node,
            queued: self.at,
            start: run.start,
            end: run.end,
            what,
        }
    }

    fn activity(self, node: &Node, run: Run) -> Activity {
        let what = match *node {
            Node::Kernel { name, grid, block, shared, .. } => {
                What::Kernel { name, grid, block, shared }
            }
            Node::Copy { kind, from, to, bytes, peer: None } => {
                What::Copy { kind, from, to, bytes }
            }
            Node::Copy { bytes, peer: Some(peer), .. } => What::PeerCopy {
                bytes,
                source: (peer.source.device as u32, peer.source.id),
                target: (peer.target.device as u32, peer.target.id),
            },
            Node::Set { value, bytes } => What::Set { value, bytes },
        };
        self.of(what, run)
    }
}

/// A call of the driver, from its start to its end, with the number that ties it to what it
/// launches.
struct Call {
    cbid: u32,
    correlation: u32,
    start: u64,
}

impl Call {
    fn begin(cbid: u32) -> Call {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Call { cbid, correlation: NEXT.fetch_add(1, Relaxed), start: now() }
    }

    /// Waits as long as the call has to, and tells of it.
    fn end(self, result: Result<u64, Code>) -> Answer {
        if let Ok(until @ 1..) = result {
            sys::sleep_until(until);
        }
        let code = result.map_or_else(|code| code as u32, |_| 0);
        let end = now();
        cupti::tell_call(self.cbid, self.correlation, self.start, end, code);
        match self.cbid {
            cupti::STREAM_SYNCHRONIZE => cupti::tell_wait(3, self.correlation, self.start, end),
            cupti::CTX_SYNCHRONIZE => cupti::tell_wait(4, self.correlation, self.start, end),
            _ => {}
        }
        result.map(|_| ())
    }
}

// The driver and its devices.

fn inject() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    let Some(path) = std::env::var_os("CUDA_INJECTION64_PATH") else { return };
    if path.is_empty() || ONCE.swap(true, Relaxed) {
        return;
    }
    let Ok(path) = std::ffi::CString::new(path.into_encoded_bytes()) else { return };
    // SAFETY: a C string; what the object's constructors do is the user's choice, as it is with
    // the real driver.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if object.is_null() {
        return;
    }
    // SAFETY: the object is loaded, and stays so.
    let symbol = unsafe { libc::dlsym(object, c"InitializeInjection".as_ptr()) };
    if symbol.is_null() {
        return;
    }
    // SAFETY: CUDA's documentation gives the function of this name this type.
    let initialize: extern "C" fn() -> c_int = unsafe { std::mem::transmute(symbol) };
    initialize();
}

fn uuid(to: Out<[u8; 16]>, ordinal: c_int) -> Answer {
    Ok(to.put(gpu_of(device(ordinal)?)?.uuid())?)
}

exported! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::InvalidValue);
        }
        if machine().is_none() || visible().is_empty() {
            return Err(Code::NoDevice);
        }
        // What is injected may call the driver.
        INITIALIZED.store(true, Relaxed);
        inject();
        Ok(())
    }

    fn cuDriverGetVersion(to: Out<c_int>) {
        Ok(to.put(cuda_version() as c_int)?)
    }

    fn cuDeviceGetCount(to: Out<c_int>) {
        ready()?;
        Ok(to.put(visible().len() as c_int)?)
    }

    fn cuDeviceGet(to: Out<c_int>, ordinal: c_int) {
        device(ordinal)?;
        Ok(to.put(ordinal)?)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: c_int, ordinal: c_int) {
        let gpu = gpu_of(device(ordinal)?)?;
        let room = usize::try_from(room).map_err(|_| Code::InvalidValue)?;
        let kept: String = gpu.name().chars().take(room.saturating_sub(1)).collect();
        match c::put_text(name, room, &kept)? {
            true => Ok(()),
            false => Err(Code::InvalidValue),
        }
    }

    fn cuDeviceGetUuid(to: Out<[u8; 16]>, ordinal: c_int) { uuid(to, ordinal) }
    fn cuDeviceGetUuid_v2(to: Out<[u8; 16]>, ordinal: c_int) { uuid(to, ordinal) }

    fn cuDeviceGetPCIBusId(to: Out<c_char>, room: c_int, ordinal: c_int) {
        let full = gpu_of(device(ordinal)?)?.bus_text();
        let room = usize::try_from(room).map_err(|_| Code::InvalidValue)?;
        // Four digits of domain, as CUDA writes it.
        match c::put_text(to, room, &full[4..])? {
            true => Ok(()),
            false => Err(Code::InvalidValue),
        }
    }

    fn cuDeviceTotalMem_v2(to: Out<usize>, ordinal: c_int) {
        Ok(to.put(gpu_of(device(ordinal)?)?.get(Quantity::MemoryTotal) as usize)?)
    }

    fn cuDeviceGetAttribute(to: Out<c_int>, attribute: c_int, ordinal: c_int) {
        let gpu = gpu_of(device(ordinal)?)?;
        let (domain, bus, slot) = gpu.bus();
        Ok(to.put(match attribute {
            // Clock in kHz, multiprocessors, bus, slot, domain, compute capability.
            13 => gpu.get(Quantity::SmClockMax) as c_int * 1000,
            16 => 132,
            33 => bus as c_int,
            34 => slot as c_int,
            50 => domain as c_int,
            75 => 9,
            _ => 0,
        })?)
    }
}

// Contexts.

fn create_context(to: Out<Handle>, ordinal: c_int) -> Answer {
    let device = device(ordinal)?;
    let context = driver()?.new_context(device)?;
    CURRENT.set(context);
    Ok(to.put(context)?)
}

exported! {
    fn cuDevicePrimaryCtxRetain(to: Out<Handle>, ordinal: c_int) {
        let device = device(ordinal)?;
        let mut driver = driver()?;
        let context = match driver.primary.get(&device) {
            Some(context) => *context,
            None => {
                let context = driver.new_context(device)?;
                driver.primary.insert(device, context);
                context
            }
        };
        Ok(to.put(context)?)
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) {
        device(ordinal).map(|_| ())
    }

    fn cuCtxCreate_v2(to: Out<Handle>, _flags: c_uint, ordinal: c_int) {
        create_context(to, ordinal)
    }

    fn cuCtxCreate_v4(to: Out<Handle>, _params: Out<c_int>, _flags: c_uint, ordinal: c_int) {
        create_context(to, ordinal)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        let mut driver = driver()?;
        let gone = driver.contexts.remove(&context).ok_or(Code::InvalidContext)?;
        driver.streams.retain(|_, stream| stream.context != context);
        driver.primary.retain(|_, primary| *primary != context);
        gpu_of(gone.device)?.release(pid(), CONTEXT_BYTES);
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) {
        if context != 0 && !driver()?.contexts.contains_key(&context) {
            return Err(Code::InvalidContext);
        }
        CURRENT.set(context);
        Ok(())
    }

    fn cuCtxGetCurrent(to: Out<Handle>) {
        ready()?;
        Ok(to.put(CURRENT.get())?)
    }

    fn cuCtxGetDevice(to: Out<c_int>) {
        Ok(to.put(driver()?.current()?.1.device as c_int)?)
    }

    fn cuCtxSynchronize() {
        let call = Call::begin(cupti::CTX_SYNCHRONIZE);
        let until = driver().and_then(|driver| {
            let (current, context) = driver.current()?;
            working(context.device)?;
            let streams = driver.streams.values().filter(|s| s.context == current);
            Ok(streams.map(|s| s.until).max().unwrap_or(0))
        });
        call.end(until)
    }
}

// Streams.

exported! {
    fn cuStreamCreate(to: Out<Handle>, _flags: c_uint) {
        let mut driver = driver()?;
        let (context, _) = driver.current()?;
        // CUPTI's numbers of created streams begin with 13 in a program of one context.
        let id = 13 + driver.streams_made;
        driver.streams_made += 1;
        let stream = handle();
        driver.streams.insert(stream, Stream::new(context, id));
        Ok(to.put(stream)?)
    }

    fn cuStreamCreateWithPriority(to: Out<Handle>, flags: c_uint, _priority: c_int) {
        match cuStreamCreate(to, flags) {
            0 => Ok(()),
            _ => Err(Code::InvalidContext),
        }
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        let mut driver = driver()?;
        if driver.contexts.contains_key(&stream) {
            return Err(Code::InvalidHandle);
        }
        driver.streams.remove(&stream).map(|_| ()).ok_or(Code::InvalidHandle)
    }

    fn cuStreamSynchronize(stream: Handle) {
        let call = Call::begin(cupti::STREAM_SYNCHRONIZE);
        let until = driver().and_then(|mut driver| {
            let (stream, context) = driver.stream(stream)?;
            if stream.capture.is_some() {
                return Err(Code::CaptureUnsupported);
            }
            working(context.device)?;
            Ok(stream.until)
        });
        call.end(until)
    }

    fn cuStreamQuery(stream: Handle) {
        let mut driver = driver()?;
        let (stream, context) = driver.stream(stream)?;
        working(context.device)?;
        if stream.until > now() { Err(Code::NotReady) } else { Ok(()) }
    }

    fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_uint) {
        let mut driver = driver()?;
        let (stream, _) = driver.stream(stream)?;
        if stream.capture.is_some() {
            return Err(Code::CaptureUnsupported);
        }
        stream.capture = Some(Vec::new());
        Ok(())
    }

    fn cuStreamEndCapture(stream: Handle, to: Out<Handle>) {
        let mut driver = driver()?;
        let (stream, _) = driver.stream(stream)?;
        let nodes = stream.capture.take().ok_or(Code::InvalidValue)?;
        driver.graphs_made += 1;
        let graph = Graph { id: driver.graphs_made, nodes };
        let at = handle();
        driver.graphs.insert(at, graph);
        Ok(to.put(at)?)
    }
}

// Graphs.

fn instantiate(to: Out<Handle>, graph: Handle) -> Answer {
    let mut driver = driver()?;
    let graph = driver.graphs.get(&graph).ok_or(Code::InvalidHandle)?.clone();
    driver.graphs_made += 1;
    let executable = Graph { id: driver.graphs_made, ..graph };
    let at = handle();
    driver.executables.insert(at, executable);
    Ok(to.put(at)?)
}

exported! {
    fn cuGraphInstantiateWithFlags(to: Out<Handle>, graph: Handle, _flags: u64) {
        instantiate(to, graph)
    }

    fn cuGraphInstantiate_v2(
        to: Out<Handle>, graph: Handle, _node: Out<Handle>, _log: Out<c_char>, _room: usize,
    ) {
        instantiate(to, graph)
    }

    fn cuGraphLaunch(graph: Handle, stream: Handle) {
        let call = Call::begin(cupti::GRAPH_LAUNCH);
        let done = driver().and_then(|mut d| d.replay(graph, stream, call.correlation));
        call.end(done)
    }

    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let driver = driver()?;
        let graph = driver.graphs.get(&graph).ok_or(Code::InvalidHandle)?;
        if !nodes.is_null() {
            for i in 0..graph.nodes.len().min(count.get()?) {
                nodes.put_at(i, node_id(graph.id, i) as Handle)?;
            }
        }
        Ok(count.put(graph.nodes.len())?)
    }

    fn cuGraphDestroy(graph: Handle) {
        driver()?.graphs.remove(&graph).map(|_| ()).ok_or(Code::InvalidHandle)
    }

    fn cuGraphExecDestroy(graph: Handle) {
        driver()?.executables.remove(&graph).map(|_| ()).ok_or(Code::InvalidHandle)
    }
}

// Kernels.

exported! {
    fn cuModuleLoadData(to: Out<Handle>, image: Out<u8>) {
        if image.is_null() {
            return Err(Code::InvalidValue);
        }
        let mut driver = driver()?;
        driver.current()?;
        let module = handle();
        driver.modules.insert(module, ());
        Ok(to.put(module)?)
    }

    fn cuModuleUnload(module: Handle) {
        driver()?.modules.remove(&module).ok_or(Code::InvalidHandle)
    }

    fn cuModuleGetFunction(to: Out<Handle>, module: Handle, name: Text) {
        let mut driver = driver()?;
        driver.modules.get(&module).ok_or(Code::InvalidHandle)?;
        let function = handle();
        driver.functions.insert(function, Static::leak(&name.get()?));
        Ok(to.put(function)?)
    }

    fn cuFuncGetName(to: Out<Static>, function: Handle) {
        Ok(to.put(*driver()?.functions.get(&function).ok_or(Code::InvalidHandle)?)?)
    }

    /// The first parameter is the work, ns at nominal clock.
    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle, params: Out<Out<u64>>,
        _extra: Out<usize>,
    ) {
        let call = Call::begin(cupti::LAUNCH_KERNEL);
        let launch = || {
            let mut driver = driver()?;
            let name = *driver.functions.get(&function).ok_or(Code::InvalidHandle)?;
            let node = Node::Kernel {
                name,
                work: params.get()?.get()?,
                grid: [grid_x, grid_y, grid_z].map(|n| n as i32),
                block: [block_x, block_y, block_z].map(|n| n as i32),
                shared: shared as i32,
            };
            driver.submit(stream, node, call.correlation)
        };
        let done = launch();
        call.end(done)
    }
}

// Memory.

fn allocate_host(to: Out<usize>, bytes: usize) -> Answer {
    if bytes == 0 {
        return Err(Code::InvalidValue);
    }
    let mut driver = driver()?;
    // SAFETY: the arguments are numbers; null is asked for below.
    let at = unsafe { libc::aligned_alloc(4096, bytes.next_multiple_of(4096)) };
    if at.is_null() {
        return Err(Code::OutOfMemory);
    }
    driver.pinned.insert(at as usize, bytes);
    Ok(to.put(at as usize)?)
}

/// A copy between host and device. Whoever copies from or to pageable memory waits for its end,
/// since the driver stages it.
fn copy(
    cbid: u32,
    kind: CopyKind,
    host: usize,
    bytes: usize,
    stream: Handle,
    wait: bool,
) -> Answer {
    let call = Call::begin(cbid);
    let submit = || {
        let mut driver = driver()?;
        let host = driver.host_kind(host);
        let (from, to) = match kind {
            CopyKind::ToDevice => (host, MemoryKind::Device),
            CopyKind::ToHost => (MemoryKind::Device, host),
            CopyKind::Within => (MemoryKind::Device, MemoryKind::Device),
        };
        let node = Node::Copy { kind, from, to, bytes: bytes as u64, peer: None };
        let room = driver.submit(stream, node, call.correlation)?;
        let (stream, _) = driver.stream(stream)?;
        let staged = kind != CopyKind::Within && host == MemoryKind::Pageable;
        let waits = stream.capture.is_none() && (wait || staged);
        Ok(if waits { stream.until } else { room })
    };
    let done = submit();
    call.end(done)
}

exported! {
    fn cuMemAlloc_v2(to: Out<u64>, bytes: usize) {
        let mut driver = driver()?;
        let (_, context) = driver.current()?;
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        let bytes = (bytes as u64).next_multiple_of(2 << 20);
        if !working(context.device)?.allocate(pid(), bytes, now()) {
            return Err(Code::OutOfMemory);
        }
        let after = driver.memory.last_key_value().map_or(0x7f00_0000_0000, |(at, m)| at + m.0);
        driver.memory.insert(after, (bytes, context.device));
        Ok(to.put(after)?)
    }

    fn cuMemFree_v2(at: u64) {
        let (bytes, device) = driver()?.memory.remove(&at).ok_or(Code::InvalidValue)?;
        gpu_of(device)?.release(pid(), bytes);
        Ok(())
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (_, context) = driver()?.current()?;
        let gpu = working(context.device)?;
        let bytes = gpu.get(Quantity::MemoryTotal);
        free.put(bytes.saturating_sub(gpu.memory_used()) as usize)?;
        Ok(total.put(bytes as usize)?)
    }

    fn cuMemAllocHost_v2(to: Out<usize>, bytes: usize) { allocate_host(to, bytes) }
    fn cuMemAllocHost(to: Out<usize>, bytes: usize) { allocate_host(to, bytes) }
    fn cuMemHostAlloc(to: Out<usize>, bytes: usize, _flags: c_uint) { allocate_host(to, bytes) }

    fn cuMemFreeHost(at: usize) {
        driver()?.pinned.remove(&at).ok_or(Code::InvalidValue)?;
        // SAFETY: it was in the table, so `allocate_host` made it, and nobody has freed it yet.
        unsafe { libc::free(at as *mut c_void) };
        Ok(())
    }

    fn cuMemcpyHtoDAsync_v2(_to: u64, from: usize, bytes: usize, stream: Handle) {
        copy(cupti::COPY_TO_DEVICE_ASYNC, CopyKind::ToDevice, from, bytes, stream, false)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, _from: u64, bytes: usize, stream: Handle) {
        copy(cupti::COPY_TO_HOST_ASYNC, CopyKind::ToHost, to, bytes, stream, false)
    }

    fn cuMemcpyHtoD_v2(_to: u64, from: usize, bytes: usize) {
        copy(cupti::COPY_TO_DEVICE, CopyKind::ToDevice, from, bytes, 0, true)
    }

    fn cuMemcpyDtoH_v2(to: usize, _from: u64, bytes: usize) {
        copy(cupti::COPY_TO_HOST, CopyKind::ToHost, to, bytes, 0, true)
    }

    fn cuMemcpyDtoDAsync_v2(_to: u64, _from: u64, bytes: usize, stream: Handle) {
        copy(cupti::COPY_WITHIN_ASYNC, CopyKind::Within, 0, bytes, stream, false)
    }

    fn cuMemcpyPeerAsync(
        _to: u64, to_context: Handle, _from: u64, from_context: Handle, bytes: usize,
        stream: Handle,
    ) {
        let call = Call::begin(cupti::COPY_PEER_ASYNC);
        let submit = || {
            let mut driver = driver()?;
            let context = |at| driver.contexts.get(at).copied().ok_or(Code::InvalidContext);
            let peer = Peer { source: context(&from_context)?, target: context(&to_context)? };
            let node = Node::Copy {
                kind: CopyKind::Within,
                from: MemoryKind::Device,
                to: MemoryKind::Device,
                bytes: bytes as u64,
                peer: Some(peer),
            };
            driver.submit(stream, node, call.correlation)
        };
        let done = submit();
        call.end(done)
    }

    fn cuMemsetD8Async(_at: u64, value: u8, bytes: usize, stream: Handle) {
        let call = Call::begin(cupti::MEMSET_ASYNC);
        let node = Node::Set { value: value.into(), bytes: bytes as u64 };
        let done = driver().and_then(|mut d| d.submit(stream, node, call.correlation));
        call.end(done)
    }
}

fn error_name(code: u32) -> Option<&'static CStr> {
    Some(match code {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        600 => c"CUDA_ERROR_NOT_READY",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => return None,
    })
}

fn put_error(code: u32, to: Out<Static>) -> Answer {
    match error_name(code) {
        Some(name) => Ok(to.put(name.into())?),
        None => {
            to.put(Static::NULL)?;
            Err(Code::InvalidValue)
        }
    }
}

exported! {
    fn cuGetErrorName(code: u32, to: Out<Static>) { put_error(code, to) }
    fn cuGetErrorString(code: u32, to: Out<Static>) { put_error(code, to) }
}
