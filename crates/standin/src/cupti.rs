//! `libcupti`: activity records in the real layouts, and its known defects.
//!
//! What the driver has placed is told here ([`tell`]) and kept until its scripted end has come;
//! then a thread of our own writes it into the buffer that the client's callback gave, as a record
//! of the version of CUPTI that we say to be. Full buffers are completed by that thread at once;
//! those in use only by `cuptiActivityFlushAll`. If no buffer is given, records are dropped and
//! counted. Sizes and offsets are those of the headers of CUPTI 13.0.85; of later versions only
//! the sizes are known, and what they append is 0.
//!
//! The callback for timestamps is asked while records are written, not when the work ran, and the
//! work's time is moved by the difference of the clocks, as the real library interpolates.
//!
//! The defects are those of [`gpuwhy_testkit::gpu::Defect`], asked for each record or call, so
//! that they can come and go while a program runs.
//!
//! What fools a reader: with KERNEL (3) instead of CONCURRENT_KERNEL (10) each launch waits for its
//! kernel; while GRAPH_TRACE (51) is on, no kernels of graphs are told.
#![allow(non_snake_case)]

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use gpuwhy_testkit::gpu::{Defect, Direction};
use gpuwhy_testkit::sys;

use crate::c::{self, Null, Out, Static};
use crate::lock::{Guard, Mutex};
use crate::machine::{cuda_version, env_number, machine, now, pid, realtime};

/// `CUptiResult`, those that we say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Code {
    InvalidParameter = 1,
    InvalidOperation = 7,
    ParameterSizeNotSufficient = 10,
    MaxLimitReached = 12,
    NotCompatible = 14,
    InvalidKind = 21,
    NotSupported = 27,
    MultipleSubscribers = 39,
    Unknown = 999,
}

impl From<Null> for Code {
    fn from(_: Null) -> Code {
        Code::InvalidParameter
    }
}

type Answer = Result<(), Code>;

fn answer(f: impl FnOnce() -> Answer) -> u32 {
    c::guarded(Code::Unknown as u32, || match f() {
        Ok(()) => 0,
        Err(code) => code as u32,
    })
}

// Callback ids of the driver's functions (cupti_driver_cbid.h).
pub const CTX_SYNCHRONIZE: u32 = 17;
pub const STREAM_SYNCHRONIZE: u32 = 126;
pub const MEMSET_ASYNC: u32 = 216;
pub const COPY_TO_DEVICE: u32 = 276;
pub const COPY_TO_DEVICE_ASYNC: u32 = 277;
pub const COPY_TO_HOST: u32 = 278;
pub const COPY_TO_HOST_ASYNC: u32 = 279;
pub const COPY_WITHIN_ASYNC: u32 = 281;
pub const LAUNCH_KERNEL: u32 = 307;
pub const COPY_PEER_ASYNC: u32 = 319;
pub const GRAPH_LAUNCH: u32 = 514;
/// One more than the highest.
const CBIDS: u32 = 807;

/// `CUpti_ActivityKind`.
mod kind {
    pub const MEMCPY: u32 = 1;
    pub const MEMSET: u32 = 2;
    pub const KERNEL: u32 = 3;
    pub const DRIVER: u32 = 4;
    pub const CONCURRENT_KERNEL: u32 = 10;
    pub const MEMCPY2: u32 = 22;
    pub const SYNCHRONIZATION: u32 = 38;
    pub const GRAPH_TRACE: u32 = 51;
    /// One more than the highest.
    pub const COUNT: u32 = 55;
}

/// `CUpti_ActivityMemcpyKind`, those that there are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CopyKind {
    ToDevice = 1,
    ToHost = 2,
    Within = 8,
}

impl CopyKind {
    pub fn direction(self) -> Direction {
        match self {
            CopyKind::ToDevice => Direction::ToDevice,
            CopyKind::ToHost => Direction::ToHost,
            CopyKind::Within => Direction::Within,
        }
    }
}

/// `CUpti_ActivityMemoryKind`, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemoryKind {
    Pageable = 1,
    Pinned = 2,
    Device = 3,
}

/// Something that ran on a device. Times are CLOCK_MONOTONIC ns.
#[derive(Clone, Copy)]
pub struct Activity {
    /// The GPU, by the machine's number.
    pub gpu: usize,
    /// The GPU, by the program's.
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
    /// 0 if no graph launched it.
    pub graph: u32,
    pub node: u64,
    pub queued: u64,
    pub start: u64,
    pub end: u64,
    pub what: What,
}

#[derive(Clone, Copy)]
pub enum What {
    Kernel {
        name: Static,
        grid: [i32; 3],
        block: [i32; 3],
        shared: i32,
    },
    Copy {
        kind: CopyKind,
        from: MemoryKind,
        to: MemoryKind,
        bytes: u64,
    },
    /// Device and context of both ends.
    PeerCopy {
        bytes: u64,
        source: (u32, u32),
        target: (u32, u32),
    },
    Set {
        value: u32,
        bytes: u64,
    },
    Graph,
    /// A thread waited, by `CUpti_ActivitySynchronizationType`.
    Wait(u32),
    /// Callback id, thread and result.
    Call {
        cbid: u32,
        thread: u32,
        code: u32,
    },
}

// The records.

/// Plain numbers without gaps, so that all of their bytes are set.
///
/// # Safety
/// The type is `repr(C)`, has no padding, and any bytes are a valid value.
unsafe trait Plain: Copy {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `size_of` bytes that live as long as `self`, all of them set: no padding.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }
}

/// Declares a record with its size and where some fields are.
macro_rules! record {
    (
        $(#[$about:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* }
        at { $($at:ident: $offset:literal),* }
    ) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        struct $name { $($field: $type,)* }
        // The sum of the fields is the whole, so there is no gap.
        const _: () = assert!(size_of::<$name>() == $size && 0 $(+ size_of::<$type>())* == $size);
        $(const _: () = assert!(std::mem::offset_of!($name, $at) == $offset);)*
        // SAFETY: `repr(C)`; all fields are integers and arrays of them; without padding, as the
        // assertion above has it.
        unsafe impl Plain for $name {}
    };
}

record! {
    /// `CUpti_ActivitySynchronization` in its first 40 bytes, `CUpti_ActivitySynchronization2`.
    Synchronization = 56 {
        kind: u32,
        what: u32,
        start: u64,
        end: u64,
        correlation: u32,
        context: u32,
        stream: u32,
        event: u32,
        later: [u64; 2],
    }
    at { start: 8, correlation: 24, stream: 32 }
}

record! {
    /// `CUpti_ActivityKernel9` in its first 208 bytes, `CUpti_ActivityKernel10` in its first 216,
    /// and so on up to `CUpti_ActivityKernel13`.
    Kernel = 248 {
        kind: u32,
        cache_config: u8,
        shared_memory_config: u8,
        registers: u16,
        partitioned_requested: u32,
        partitioned_executed: u32,
        start: u64,
        end: u64,
        completed: u64,
        device: u32,
        context: u32,
        stream: u32,
        grid: [i32; 3],
        block: [i32; 3],
        static_shared: i32,
        dynamic_shared: i32,
        local_per_thread: u32,
        local_total: u32,
        correlation: u32,
        grid_id: i64,
        name: u64,
        reserved: u64,
        queued: u64,
        submitted: u64,
        launch_type: u8,
        carveout: [u8; 2],
        padding: u8,
        shared_executed: u32,
        graph_node: u64,
        shared_limit: u32,
        graph: u32,
        access_policy: u64,
        channel: u32,
        channel_type: u32,
        cluster: [u32; 3],
        cluster_policy: u32,
        local_total_v2: u64,
        cluster_size_max: u32,
        clusters_active_max: u32,
        device_launched: u8,
        padding3: [u8; 7],
        later: [u64; 4],
    }
    at {
        start: 16, end: 24, device: 40, context: 44, stream: 48, grid: 52, block: 64,
        correlation: 92, name: 104, queued: 120, graph_node: 144, graph: 156,
        access_policy: 160, local_total_v2: 192, device_launched: 208
    }
}

record! {
    /// `CUpti_ActivityMemcpy5` in its first 88 bytes, `CUpti_ActivityMemcpy6`.
    Memcpy = 96 {
        kind: u32,
        copy_kind: u8,
        source_kind: u8,
        target_kind: u8,
        flags: u8,
        bytes: u64,
        start: u64,
        end: u64,
        device: u32,
        context: u32,
        stream: u32,
        correlation: u32,
        runtime_correlation: u32,
        padding: u32,
        reserved: u64,
        graph_node: u64,
        graph: u32,
        channel: u32,
        channel_type: u32,
        device_launched: u8,
        padding2: [u8; 3],
        count: u64,
    }
    at { start: 16, device: 32, correlation: 44, graph_node: 64, graph: 72, count: 88 }
}

record! {
    /// `CUpti_ActivityMemcpyPtoP4`, which is packed and then aligned to 8.
    PeerMemcpy = 96 {
        kind: u32,
        copy_kind: u8,
        source_kind: u8,
        target_kind: u8,
        flags: u8,
        bytes: u64,
        start: u64,
        end: u64,
        device: u32,
        context: u32,
        stream: u32,
        source_device: u32,
        source_context: u32,
        target_device: u32,
        target_context: u32,
        correlation: u32,
        reserved: u64,
        graph_node: u64,
        graph: u32,
        channel: u32,
        channel_type: u32,
        padding: u32,
    }
    at { start: 16, device: 32, correlation: 60, graph_node: 72, graph: 80 }
}

record! {
    /// `CUpti_ActivityMemset4`.
    Memset = 88 {
        kind: u32,
        value: u32,
        bytes: u64,
        start: u64,
        end: u64,
        device: u32,
        context: u32,
        stream: u32,
        correlation: u32,
        flags: u16,
        memory_kind: u16,
        padding: u32,
        reserved: u64,
        graph_node: u64,
        graph: u32,
        channel: u32,
        channel_type: u32,
        device_launched: u8,
        padding2: [u8; 3],
    }
    at { start: 16, device: 32, correlation: 44, graph_node: 64, graph: 72 }
}

record! {
    /// `CUpti_ActivityGraphTrace` in its first 48 bytes, `CUpti_ActivityGraphTrace2`.
    GraphTrace = 56 {
        kind: u32,
        correlation: u32,
        start: u64,
        end: u64,
        device: u32,
        graph: u32,
        context: u32,
        stream: u32,
        reserved: u64,
        end_device: u32,
        end_context: u32,
    }
    at { start: 8, device: 24, graph: 28, stream: 36, end_device: 48 }
}

record! {
    /// `CUpti_ActivityAPI`.
    Api = 40 {
        kind: u32,
        cbid: u32,
        start: u64,
        end: u64,
        process: u32,
        thread: u32,
        correlation: u32,
        code: u32,
    }
    at { start: 8, process: 24, correlation: 32 }
}

/// `CUPTI_API_VERSION`: 18 to 28 is CUDA 12, from 13.0 on it is 130001 and so on.
fn version() -> u32 {
    static VERSION: AtomicU64 = AtomicU64::new(0);
    match VERSION.load(Relaxed) {
        0 => {
            let by_cuda = if cuda_version() >= 13000 { 130_001 } else { 26 };
            let version = env_number("GPUWHY_STANDIN_CUPTI").unwrap_or(by_cuda);
            VERSION.store(version.into(), Relaxed);
            version
        }
        version => version as u32,
    }
}

/// Bytes of a record of this kind, as this version writes it.
fn size_of_kind(kind: u32) -> Option<usize> {
    Some(match (kind, version()) {
        (kind::KERNEL | kind::CONCURRENT_KERNEL, v) => match v {
            0..=130_000 => 208,
            130_001..=130_100 => 216,
            130_101..=130_299 => 224,
            130_300..=130_399 => 232,
            _ => 248,
        },
        (kind::MEMCPY, 0..=130_000) => 88,
        (kind::MEMCPY, _) => 96,
        (kind::MEMCPY2, _) => 96,
        (kind::MEMSET, _) => 88,
        (kind::GRAPH_TRACE, 0..=22) => 48,
        (kind::GRAPH_TRACE, _) => 56,
        (kind::SYNCHRONIZATION, 0..=25) => 40,
        (kind::SYNCHRONIZATION, _) => 56,
        (kind::DRIVER, _) => 40,
        _ => return None,
    })
}

// What is waiting.

struct Pending {
    ready: u64,
    order: u64,
    activity: Activity,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Pending) -> bool {
        (self.ready, self.order) == (other.ready, other.order)
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Pending) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Pending) -> std::cmp::Ordering {
        (self.ready, self.order).cmp(&(other.ready, other.order))
    }
}

/// More than this waiting is dropped, and counted.
const PENDING: usize = 2 << 20;

static WAITING: Mutex<BinaryHeap<Reverse<Pending>>> = Mutex::new(BinaryHeap::new());
static DROPPED: AtomicU64 = AtomicU64::new(0);
static KINDS: AtomicU64 = AtomicU64::new(0);
static CBIDS_ON: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static ANY_CBID: AtomicBool = AtomicBool::new(false);
static LATENCY: AtomicBool = AtomicBool::new(false);

fn locked<T>(mutex: &'static Mutex<T>) -> Guard<'static, T> {
    mutex.lock()
}

fn is_on(kind: u32) -> bool {
    KINDS.load(Relaxed) & 1 << kind != 0
}

/// Whether each launch waits for its kernel.
pub fn serialises() -> bool {
    is_on(kind::KERNEL)
}

/// Whether graphs are told as a whole.
pub fn traces_graphs() -> bool {
    is_on(kind::GRAPH_TRACE)
}

/// Takes what ran on the device, if its kind is enabled.
pub fn tell(activity: Activity) {
    let wanted = match activity.what {
        What::Kernel { .. } => is_on(kind::KERNEL) || is_on(kind::CONCURRENT_KERNEL),
        What::Copy { .. } => is_on(kind::MEMCPY),
        What::PeerCopy { .. } => is_on(kind::MEMCPY2),
        What::Set { .. } => is_on(kind::MEMSET),
        What::Graph => is_on(kind::GRAPH_TRACE),
        What::Wait(_) => is_on(kind::SYNCHRONIZATION),
        What::Call { .. } => true,
    };
    if wanted {
        keep(activity);
    }
}

/// Takes a thread's wait for a stream (3) or a context (4).
pub fn tell_wait(what: u32, correlation: u32, start: u64, end: u64) {
    tell(Activity {
        gpu: 0,
        device: 0,
        context: 1,
        stream: 0,
        correlation,
        graph: 0,
        node: 0,
        queued: 0,
        start,
        end,
        what: What::Wait(what),
    });
}

/// Takes a call of the driver, if calls of its kind are enabled.
pub fn tell_call(cbid: u32, correlation: u32, start: u64, end: u64, code: u32) {
    let one_by_one = || ANY_CBID.load(Relaxed) && locked(&CBIDS_ON).contains(&cbid);
    if is_on(kind::DRIVER) || one_by_one() {
        // SAFETY: it has no arguments and cannot fail.
        let thread = unsafe { libc::gettid() } as u32;
        keep(Activity {
            gpu: 0,
            device: 0,
            context: 0,
            stream: 0,
            correlation,
            graph: 0,
            node: 0,
            queued: 0,
            start,
            end,
            what: What::Call { cbid, thread, code },
        });
    }
}

fn keep(activity: Activity) {
    static ORDER: AtomicU64 = AtomicU64::new(0);
    let mut waiting = locked(&WAITING);
    if waiting.len() >= PENDING {
        DROPPED.fetch_add(1, Relaxed);
        return;
    }
    let order = ORDER.fetch_add(1, Relaxed);
    waiting.push(Reverse(Pending { ready: activity.end, order, activity }));
}

// Delivery.

type Request = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type Clock = extern "C" fn() -> u64;

static CALLBACKS: Mutex<Option<(Request, Complete)>> = Mutex::new(None);
static CLOCK: Mutex<Option<Clock>> = Mutex::new(None);
static DELIVERY: Mutex<Delivery> =
    Mutex::new(Delivery { buffer: None, told: 0, nodes: 0, grown: 0 });

thread_local! {
    static DELIVERING: Cell<bool> = const { Cell::new(false) };
}

/// The buffer in use, and what has been written by this process.
struct Delivery {
    buffer: Option<Buffer>,
    /// Records of what ran on a device.
    told: u64,
    /// Of those, kernels of graphs.
    nodes: u64,
    /// Device memory that these have cost, bytes.
    grown: u64,
}

struct Buffer {
    at: *mut u8,
    size: usize,
    used: usize,
    records: usize,
    records_max: usize,
}

// SAFETY: the client has given the memory to us, whichever thread we write it from.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Asks the client for one; `None` if it gives none that a record fits in.
    fn request(request: Request) -> Option<Buffer> {
        let (mut at, mut size, mut records_max) = (std::ptr::null_mut(), 0, 0);
        request(&mut at, &mut size, &mut records_max);
        // The real library asks for buffers aligned to 8 bytes.
        let usable = !at.is_null() && size >= 512 && (at as usize).is_multiple_of(8);
        usable.then_some(Buffer { at, size, used: 0, records: 0, records_max })
    }

    fn write(&mut self, record: &[u8]) -> bool {
        let full = self.records_max != 0 && self.records >= self.records_max;
        if full || self.size - self.used < record.len() {
            return false;
        }
        // SAFETY: the client's buffer has `size` bytes, of which so many are left; it cannot
        // overlap with our record.
        unsafe {
            std::ptr::copy_nonoverlapping(record.as_ptr(), self.at.add(self.used), record.len());
        }
        self.used += record.len();
        self.records += 1;
        true
    }

    /// Gives it back, unless it is to be lost.
    fn complete(self, complete: Complete) {
        if !has(Defect::LostBuffers) {
            complete(std::ptr::null_mut(), 0, self.at, self.size, self.used);
        }
    }
}

fn has(defect: Defect) -> bool {
    machine().is_some_and(|m| m.has(defect))
}

/// The client's clock (or CLOCK_REALTIME) minus CLOCK_MONOTONIC: of three readings the one that
/// took least.
fn clock_offset() -> u64 {
    let clock = *locked(&CLOCK);
    let read = || {
        let before = now();
        let there = clock.map_or_else(realtime, |clock| clock());
        let after = now();
        (after - before, there.wrapping_sub(before + (after - before) / 2))
    };
    let readings = [read(), read(), read()];
    readings.iter().min().map_or(0, |(_, offset)| *offset)
}

/// Writes what has ended into the client's buffers, and completes those that are full; all of
/// them if `flush`.
fn deliver(flush: bool) -> Answer {
    if DELIVERING.get() {
        // The client's callback calls us.
        return Err(Code::InvalidOperation);
    }
    let mut delivery = locked(&DELIVERY);
    DELIVERING.set(true);
    c::guarded((), || delivery.deliver(flush));
    DELIVERING.set(false);
    Ok(())
}

impl Delivery {
    fn deliver(&mut self, flush: bool) {
        let ready = take_ready(now());
        let callbacks = *locked(&CALLBACKS);
        if has(Defect::CallbacksReplaced) {
            // It goes to somebody else, with what was in our buffer.
            return;
        }
        let Some((request, complete)) = callbacks else {
            DROPPED.fetch_add(ready.len() as u64, Relaxed);
            return;
        };
        let offset = if ready.is_empty() { 0 } else { clock_offset() };
        for mut activity in ready {
            activity.start = activity.start.wrapping_add(offset);
            activity.end = activity.end.wrapping_add(offset);
            activity.queued = activity.queued.wrapping_add(offset);
            self.spoil(&mut activity);
            self.write(&activity, request, complete);
        }
        if flush && let Some(buffer) = self.buffer.take_if(|b| b.used > 0) {
            buffer.complete(complete);
        }
    }

    fn write(&mut self, activity: &Activity, request: Request, complete: Complete) {
        if let Some(buffer) = &mut self.buffer {
            if encoded(activity, |bytes| buffer.write(bytes)) {
                return;
            }
            if let Some(full) = self.buffer.take() {
                full.complete(complete);
            }
        }
        self.buffer = Buffer::request(request);
        let written = match &mut self.buffer {
            Some(buffer) => encoded(activity, |bytes| buffer.write(bytes)),
            None => false,
        };
        if !written {
            DROPPED.fetch_add(1, Relaxed);
        }
    }

    /// Does to a record what the defects do.
    fn spoil(&mut self, activity: &mut Activity) {
        let Some(machine) = machine() else { return };
        if matches!(activity.what, What::Call { .. }) {
            return;
        }
        let mut bad = machine.has(Defect::ZeroTimestamps) && self.told >= machine.defect_after();
        let of_graph = activity.graph != 0 && matches!(activity.what, What::Kernel { .. });
        if of_graph && machine.has(Defect::GraphGrowth) {
            let due = (self.nodes + 1) * machine.defect_growth() / 10_000;
            while self.grown + GROWTH <= due {
                if let Some(gpu) = machine.gpu(activity.gpu) {
                    gpu.allocate(pid(), GROWTH, now());
                }
                self.grown += GROWTH;
            }
            bad |= self.nodes >= machine.defect_after();
            self.nodes += 1;
        }
        if bad {
            // As it was seen: nearly all are 0, and some end before they start.
            if self.told % 50 == 7 {
                activity.end = activity.start - 1;
            } else {
                (activity.start, activity.end) = (0, 0);
            }
        }
        self.told += 1;
    }
}

/// Device memory is lost in pieces of this size.
const GROWTH: u64 = 1 << 20;

fn take_ready(at: u64) -> Vec<Activity> {
    let mut waiting = locked(&WAITING);
    let mut ready = Vec::new();
    while waiting.peek().is_some_and(|Reverse(pending)| pending.ready <= at) {
        ready.extend(waiting.pop().map(|Reverse(pending)| pending.activity));
    }
    ready
}

/// Calls `write` with the bytes of the record.
fn encoded(a: &Activity, write: impl FnOnce(&[u8]) -> bool) -> bool {
    let size = |kind| size_of_kind(kind).unwrap_or(0);
    match a.what {
        What::Kernel { name, grid, block, shared } => {
            let kind = if is_on(kind::KERNEL) { kind::KERNEL } else { kind::CONCURRENT_KERNEL };
            let queued = if LATENCY.load(Relaxed) { a.queued } else { 0 };
            let record = Kernel {
                kind,
                registers: 64,
                start: a.start,
                end: a.end,
                device: a.device,
                context: a.context,
                stream: a.stream,
                grid,
                block,
                dynamic_shared: shared,
                correlation: a.correlation,
                grid_id: i64::from(a.correlation),
                name: name.address(),
                queued,
                submitted: queued,
                graph_node: a.node,
                graph: a.graph,
                channel: 8,
                // CUPTI_CHANNEL_TYPE_COMPUTE
                channel_type: 1,
                ..Kernel::default()
            };
            write(&record.bytes()[..size(kind)])
        }
        What::Copy { kind: copy_kind, from, to, bytes } => {
            let record = Memcpy {
                kind: kind::MEMCPY,
                copy_kind: copy_kind as u8,
                source_kind: from as u8,
                target_kind: to as u8,
                // CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC
                flags: 1,
                bytes,
                start: a.start,
                end: a.end,
                device: a.device,
                context: a.context,
                stream: a.stream,
                correlation: a.correlation,
                graph_node: a.node,
                graph: a.graph,
                channel: 16,
                channel_type: 2,
                count: 1,
                ..Memcpy::default()
            };
            write(&record.bytes()[..size(kind::MEMCPY)])
        }
        What::PeerCopy { bytes, source, target } => {
            let record = PeerMemcpy {
                kind: kind::MEMCPY2,
                // CUPTI_ACTIVITY_MEMCPY_KIND_PTOP
                copy_kind: 10,
                source_kind: MemoryKind::Device as u8,
                target_kind: MemoryKind::Device as u8,
                flags: 1,
                bytes,
                start: a.start,
                end: a.end,
                device: a.device,
                context: a.context,
                stream: a.stream,
                source_device: source.0,
                source_context: source.1,
                target_device: target.0,
                target_context: target.1,
                correlation: a.correlation,
                graph_node: a.node,
                graph: a.graph,
                channel: 16,
                channel_type: 2,
                ..PeerMemcpy::default()
            };
            write(record.bytes())
        }
        What::Set { value, bytes } => {
            let record = Memset {
                kind: kind::MEMSET,
                value,
                bytes,
                start: a.start,
                end: a.end,
                device: a.device,
                context: a.context,
                stream: a.stream,
                correlation: a.correlation,
                flags: 1,
                memory_kind: MemoryKind::Device as u16,
                graph_node: a.node,
                graph: a.graph,
                channel: 8,
                channel_type: 1,
                ..Memset::default()
            };
            write(record.bytes())
        }
        What::Graph => {
            let record = GraphTrace {
                kind: kind::GRAPH_TRACE,
                correlation: a.correlation,
                start: a.start,
                end: a.end,
                device: a.device,
                graph: a.graph,
                context: a.context,
                stream: a.stream,
                end_device: a.device,
                end_context: a.context,
                ..GraphTrace::default()
            };
            write(&record.bytes()[..size(kind::GRAPH_TRACE)])
        }
        What::Wait(what) => {
            let record = Synchronization {
                kind: kind::SYNCHRONIZATION,
                what,
                start: a.start,
                end: a.end,
                correlation: a.correlation,
                context: a.context,
                stream: a.stream,
                ..Synchronization::default()
            };
            write(&record.bytes()[..size(kind::SYNCHRONIZATION)])
        }
        What::Call { cbid, thread, code } => {
            let record = Api {
                kind: kind::DRIVER,
                cbid,
                start: a.start,
                end: a.end,
                process: pid(),
                thread,
                correlation: a.correlation,
                code,
            };
            write(record.bytes())
        }
    }
}

/// So often the thread looks for what has ended.
const PERIOD_NS: u64 = 5_000_000;

fn start_worker() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Relaxed) {
        return;
    }
    let work = || {
        loop {
            sys::sleep_until(now() + PERIOD_NS);
            if deliver(false).is_err() {
                return;
            }
        }
    };
    // Without it, only FlushAll delivers.
    let _ = std::thread::Builder::new().name("cupti-worker".into()).spawn(work);
}

// The interface.

static SUBSCRIBED: AtomicU64 = AtomicU64::new(0);
static ATTRIBUTES: Mutex<Option<HashMap<u32, Vec<u8>>>> = Mutex::new(None);

/// `CUpti_SubscriberParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SubscriberParams {
    size: usize,
    name: usize,
    old_name: Out<c_char>,
    old_size: usize,
}

fn subscribe(to: Out<usize>) -> Answer {
    if to.is_null() {
        return Err(Code::InvalidParameter);
    }
    if has(Defect::SubscriberRefused) || SUBSCRIBED.swap(1, Relaxed) != 0 {
        return Err(Code::MultipleSubscribers);
    }
    Ok(to.put(0x6370)?)
}

fn attribute(attribute: u32) -> Option<Vec<u8>> {
    let default = match attribute {
        0 => 3_200_000usize,
        1 => 8_388_608,
        2 => 250,
        3 | 4 => 25_000,
        6 | 7 => 3,
        5 | 8 => return Some(vec![0]),
        9 => return Some(vec![1]),
        10 => 8_388_608,
        _ => return None,
    };
    let set = locked(&ATTRIBUTES).as_ref().and_then(|all| all.get(&attribute).cloned());
    Some(set.unwrap_or_else(|| default.to_le_bytes().to_vec()))
}

fn kind_bit(kind: u32) -> Result<u64, Code> {
    match kind {
        1..kind::COUNT => Ok(1 << kind),
        _ => Err(Code::InvalidKind),
    }
}

exported! {
    fn cuptiGetVersion(to: Out<u32>) { Ok(to.put(version())?) }

    fn cuptiGetTimestamp(to: Out<u64>) {
        Ok(to.put(locked(&CLOCK).map_or_else(realtime, |clock| clock()))?)
    }

    fn cuptiSubscribe(to: Out<usize>, _callback: usize, _user: usize) { subscribe(to) }

    fn cuptiSubscribe_v2(
        to: Out<usize>, _callback: usize, _user: usize, params: Out<SubscriberParams>,
    ) {
        if version() < 130_001 {
            return Err(Code::NotSupported);
        }
        let params = if params.is_null() { None } else { Some(params.get()?) };
        if params.is_some_and(|p| p.size < size_of::<SubscriberParams>()) {
            return Err(Code::InvalidParameter);
        }
        let done = subscribe(to);
        if let (Err(Code::MultipleSubscribers), Some(params)) = (done, params) {
            let _ = c::put_text(params.old_name, params.old_size, "CUPTI for Nsight Systems");
        }
        done
    }

    fn cuptiUnsubscribe(subscriber: usize) {
        if subscriber != 0x6370 || SUBSCRIBED.swap(0, Relaxed) == 0 {
            return Err(Code::InvalidParameter);
        }
        Ok(())
    }

    /// Callbacks of calls can be asked for and never come.
    fn cuptiEnableCallback(_enable: u32, _subscriber: usize, _domain: u32, _cbid: u32) { Ok(()) }
    fn cuptiEnableDomain(_enable: u32, _subscriber: usize, _domain: u32) { Ok(()) }

    fn cuptiActivityRegisterCallbacks(request: Option<Request>, complete: Option<Complete>) {
        let both = request.zip(complete).ok_or(Code::InvalidParameter)?;
        *locked(&CALLBACKS) = Some(both);
        start_worker();
        Ok(())
    }

    fn cuptiActivityRegisterTimestampCallback(clock: Option<Clock>) {
        let clock = clock.ok_or(Code::InvalidParameter)?;
        if has(Defect::NoTimestampCallback) {
            return Err(Code::NotSupported);
        }
        *locked(&CLOCK) = Some(clock);
        Ok(())
    }

    fn cuptiActivityEnable(of: u32) {
        let bit = kind_bit(of)?;
        let other = match of {
            kind::KERNEL => kind::CONCURRENT_KERNEL,
            kind::CONCURRENT_KERNEL => kind::KERNEL,
            _ => 0,
        };
        if other != 0 && is_on(other) {
            return Err(Code::NotCompatible);
        }
        KINDS.fetch_or(bit, Relaxed);
        Ok(())
    }

    fn cuptiActivityDisable(of: u32) {
        KINDS.fetch_and(!kind_bit(of)?, Relaxed);
        Ok(())
    }

    fn cuptiActivityEnableDriverApi(cbid: u32, enable: u8) {
        if !(1..CBIDS).contains(&cbid) {
            return Err(Code::InvalidParameter);
        }
        let mut on = locked(&CBIDS_ON);
        on.retain(|c| *c != cbid);
        if enable != 0 {
            on.push(cbid);
        }
        ANY_CBID.store(!on.is_empty(), Relaxed);
        Ok(())
    }

    /// There is no runtime here, so nothing to tell of it.
    fn cuptiActivityEnableRuntimeApi(_cbid: u32, _enable: u8) { Ok(()) }

    fn cuptiActivityEnableLatencyTimestamps(enable: u8) {
        LATENCY.store(enable != 0, Relaxed);
        Ok(())
    }

    /// Blackwell and later.
    fn cuptiActivityEnableHWTrace(_enable: u8) { Err(Code::NotSupported) }

    /// A forced flush is like another: what has not ended is not told.
    fn cuptiActivityFlushAll(_flag: u32) { deliver(true) }

    /// Full buffers come without being asked for, so this changes nothing.
    fn cuptiActivityFlushPeriod(_ms: u32) { Ok(()) }

    fn cuptiActivityGetNextRecord(buffer: Out<u8>, valid: usize, record: Out<Out<u8>>) {
        if buffer.is_null() {
            return Err(Code::InvalidParameter);
        }
        let last = record.get()?;
        let offset = match last.is_null() {
            true => 0,
            false => {
                let size = size_of_kind(last.cast::<u32>(0).get()?).ok_or(Code::InvalidKind)?;
                last.address().wrapping_sub(buffer.address()) + size
            }
        };
        if offset + size_of::<u32>() > valid {
            return Err(Code::MaxLimitReached);
        }
        let size = size_of_kind(buffer.cast::<u32>(offset).get()?).ok_or(Code::InvalidKind)?;
        if offset + size > valid {
            return Err(Code::MaxLimitReached);
        }
        Ok(record.put(buffer.cast(offset))?)
    }

    fn cuptiActivityGetNumDroppedRecords(_context: usize, _stream: u32, to: Out<usize>) {
        if to.is_null() {
            return Err(Code::InvalidParameter);
        }
        Ok(to.put(DROPPED.swap(0, Relaxed) as usize)?)
    }

    fn cuptiActivitySetAttribute(of: u32, size: Out<usize>, value: Out<u8>) {
        let expected = attribute(of).ok_or(Code::InvalidParameter)?.len();
        if size.get()? < expected {
            return Err(Code::ParameterSizeNotSufficient);
        }
        let bytes = (0..expected).map(|i| value.get_at(i)).collect::<Result<Vec<u8>, Null>>()?;
        locked(&ATTRIBUTES).get_or_insert_default().insert(of, bytes);
        Ok(())
    }

    fn cuptiActivityGetAttribute(of: u32, size: Out<usize>, value: Out<u8>) {
        let set = attribute(of).ok_or(Code::InvalidParameter)?;
        let room = size.get()?;
        size.put(set.len())?;
        if room < set.len() {
            return Err(Code::ParameterSizeNotSufficient);
        }
        for (i, byte) in set.iter().enumerate() {
            value.put_at(i, *byte)?;
        }
        Ok(())
    }

    fn cuptiGetCallbackName(domain: u32, cbid: u32, to: Out<Static>) {
        // The driver's functions only.
        let name = if domain == 1 { callback_name(cbid) } else { None };
        to.put(name.map_or(Static::NULL, Static::from))?;
        name.map(|_| ()).ok_or(Code::InvalidParameter)
    }

    fn cuptiGetResultString(code: u32, to: Out<Static>) {
        let name = match code {
            0 => c"CUPTI_SUCCESS",
            1 => c"CUPTI_ERROR_INVALID_PARAMETER",
            7 => c"CUPTI_ERROR_INVALID_OPERATION",
            10 => c"CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT",
            12 => c"CUPTI_ERROR_MAX_LIMIT_REACHED",
            14 => c"CUPTI_ERROR_NOT_COMPATIBLE",
            21 => c"CUPTI_ERROR_INVALID_KIND",
            27 => c"CUPTI_ERROR_NOT_SUPPORTED",
            39 => c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            999 => c"CUPTI_ERROR_UNKNOWN",
            _ => return Err(Code::InvalidParameter),
        };
        Ok(to.put(name.into())?)
    }

    fn cuptiFinalize() {
        let done = deliver(true);
        // What is left of the client's is empty.
        let callbacks = locked(&CALLBACKS).take();
        if let (Some((_, complete)), Some(empty)) = (callbacks, locked(&DELIVERY).buffer.take()) {
            empty.complete(complete);
        }
        KINDS.store(0, Relaxed);
        locked(&CBIDS_ON).clear();
        ANY_CBID.store(false, Relaxed);
        *locked(&CLOCK) = None;
        SUBSCRIBED.store(0, Relaxed);
        done
    }
}

fn callback_name(cbid: u32) -> Option<&'static CStr> {
    Some(match cbid {
        CTX_SYNCHRONIZE => c"cuCtxSynchronize",
        STREAM_SYNCHRONIZE => c"cuStreamSynchronize",
        MEMSET_ASYNC => c"cuMemsetD8Async",
        COPY_TO_DEVICE => c"cuMemcpyHtoD_v2",
        COPY_TO_DEVICE_ASYNC => c"cuMemcpyHtoDAsync_v2",
        COPY_TO_HOST => c"cuMemcpyDtoH_v2",
        COPY_TO_HOST_ASYNC => c"cuMemcpyDtoHAsync_v2",
        COPY_WITHIN_ASYNC => c"cuMemcpyDtoDAsync_v2",
        LAUNCH_KERNEL => c"cuLaunchKernel",
        COPY_PEER_ASYNC => c"cuMemcpyPeerAsync",
        GRAPH_LAUNCH => c"cuGraphLaunch",
        _ => return None,
    })
}
