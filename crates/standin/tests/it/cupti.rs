//! `libcuda` and `libcupti` as a profiler in the program uses them: records are read at the offsets
//! of the C structures (notes on LLM inference, 10.2).

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use gpuwhy_testkit::gpu::{Defect, Machine};
use gpuwhy_testkit::{eventually, sys};

use crate::{Library, alone};

type Handle = *mut c_void;

const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
const DRIVER: u32 = 4;
const CONCURRENT_KERNEL: u32 = 10;
const GRAPH_TRACE: u32 = 51;

/// Size of each buffer for CUPTI; a few records fit.
const BUFFER: usize = 4096;
static REFUSE: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicUsize = AtomicUsize::new(0);
/// Completed buffers, cut to their valid bytes.
static COMPLETED: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());

extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, records: *mut usize) {
    REQUESTED.fetch_add(1, Relaxed);
    let at = if REFUSE.load(Relaxed) {
        std::ptr::null_mut()
    } else {
        Box::into_raw(vec![0u64; BUFFER / 8].into_boxed_slice()).cast()
    };
    // SAFETY: CUPTI gives three places for the answers.
    unsafe {
        *buffer = at;
        *size = BUFFER;
        *records = 0;
    }
}

extern "C" fn complete(_: Handle, _: u32, buffer: *mut u8, size: usize, valid: usize) {
    assert_eq!(size, BUFFER);
    let whole = std::ptr::slice_from_raw_parts_mut(buffer.cast::<u64>(), BUFFER / 8);
    // SAFETY: it is what `request` gave, given back once.
    let mut words = unsafe { Box::from_raw(whole) }.into_vec();
    words.truncate(valid / 8);
    COMPLETED.lock().unwrap().push(words);
}

extern "C" fn monotonic() -> u64 {
    sys::now()
}

/// A record's bytes.
#[derive(Clone, Debug)]
struct Record(Vec<u8>);

impl Record {
    fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.0[offset..offset + 4].try_into().unwrap())
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.0[offset..offset + 8].try_into().unwrap())
    }

    fn kind(&self) -> u32 {
        self.u32(0)
    }

    /// Start and end, for any kind.
    fn times(&self) -> (u64, u64) {
        let start = if matches!(self.kind(), DRIVER | GRAPH_TRACE) { 8 } else { 16 };
        (self.u64(start), self.u64(start + 8))
    }

    /// A kernel's name.
    fn name(&self) -> String {
        let name = self.u64(104) as *const c_char;
        // SAFETY: CUPTI keeps names for the life of the program.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
    }
}

/// A program with a profiler inside.
struct Client {
    cuda: Library,
    cupti: Library,
    stream: Handle,
    function: Handle,
}

impl Client {
    /// Registers callbacks as our collector does, enables the kinds, and takes a device.
    fn new(kinds: &[u32]) -> Client {
        let cupti = Library::load("libcupti.so.13");
        let cuda = Library::load("libcuda.so.1");
        let mut client =
            Client { cuda, cupti, stream: std::ptr::null_mut(), function: std::ptr::null_mut() };
        assert_eq!(client.clock(), 0);
        let code = call!(client.cupti, c"cuptiActivityRegisterCallbacks",
            request => extern "C" fn(*mut *mut u8, *mut usize, *mut usize),
            complete => extern "C" fn(Handle, u32, *mut u8, usize, usize));
        assert_eq!(code, 0);
        for kind in kinds {
            assert_eq!(client.enable(*kind), 0);
        }
        let (zero, mut device, mut context) = (0u32, 0, std::ptr::null_mut());
        assert_eq!(call!(client.cuda, c"cuInit", zero => u32), 0);
        assert_eq!(call!(client.cuda, c"cuDeviceGet", &mut device => *mut i32, 0 => i32), 0);
        let code = call!(client.cuda, c"cuDevicePrimaryCtxRetain",
            &mut context => *mut Handle, device => i32);
        assert_eq!(code, 0);
        assert_eq!(call!(client.cuda, c"cuCtxSetCurrent", context => Handle), 0);
        let (mut stream, mut module, image) = (client.stream, client.stream, c"");
        assert_eq!(call!(client.cuda, c"cuStreamCreate", &mut stream => *mut Handle, 1 => u32), 0);
        let code = call!(client.cuda, c"cuModuleLoadData",
            &mut module => *mut Handle, image.as_ptr() => *const c_char);
        assert_eq!(code, 0);
        client.stream = stream;
        let name = CString::new("_ZN7gpuloop4gemmEPKfS1_Pfiii").unwrap();
        let code = call!(client.cuda, c"cuModuleGetFunction", &mut client.function => *mut Handle,
            module => Handle, name.as_ptr() => *const c_char);
        assert_eq!(code, 0);
        client
    }

    fn clock(&self) -> u32 {
        call!(self.cupti, c"cuptiActivityRegisterTimestampCallback",
            monotonic => extern "C" fn() -> u64)
    }

    fn enable(&self, kind: u32) -> u32 {
        call!(self.cupti, c"cuptiActivityEnable", kind => u32)
    }

    fn disable(&self, kind: u32) -> u32 {
        call!(self.cupti, c"cuptiActivityDisable", kind => u32)
    }

    fn launch(&self, ns: u64) {
        let mut work = ns;
        let mut params = [(&raw mut work).cast::<c_void>()];
        let extra = std::ptr::null_mut::<Handle>();
        let code = call!(self.cuda, c"cuLaunchKernel", self.function => Handle,
            2 => u32, 3 => u32, 4 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
            self.stream => Handle, params.as_mut_ptr() => *mut Handle, extra => *mut Handle);
        assert_eq!(code, 0);
    }

    fn synchronize(&self) {
        assert_eq!(call!(self.cuda, c"cuStreamSynchronize", self.stream => Handle), 0);
    }

    /// A graph of this many kernels.
    fn graph(&self, kernels: usize) -> Handle {
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        let code = call!(self.cuda, c"cuStreamBeginCapture_v2", self.stream => Handle, 1 => u32);
        assert_eq!(code, 0);
        (0..kernels).for_each(|_| self.launch(1000));
        let code = call!(self.cuda, c"cuStreamEndCapture",
            self.stream => Handle, &mut graph => *mut Handle);
        assert_eq!(code, 0);
        let code = call!(self.cuda, c"cuGraphInstantiateWithFlags",
            &mut executable => *mut Handle, graph => Handle, 0 => u64);
        assert_eq!(code, 0);
        executable
    }

    fn replay(&self, graph: Handle) {
        let code = call!(self.cuda, c"cuGraphLaunch", graph => Handle, self.stream => Handle);
        assert_eq!(code, 0);
    }

    /// Waits for the device, flushes, and reads all records, in order.
    fn records(&self) -> Vec<Record> {
        self.synchronize();
        assert_eq!(call!(self.cupti, c"cuptiActivityFlushAll", 0 => u32), 0);
        let buffers = std::mem::take(&mut *COMPLETED.lock().unwrap());
        buffers.iter().flat_map(|words| self.read(words)).collect()
    }

    fn read(&self, words: &[u64]) -> Vec<Record> {
        let (buffer, valid) = (words.as_ptr().cast::<u8>(), words.len() * 8);
        let mut at = std::ptr::null_mut::<u8>();
        let mut starts = Vec::new();
        loop {
            let code = call!(self.cupti, c"cuptiActivityGetNextRecord", buffer => *const u8,
                valid => usize, &mut at => *mut *mut u8);
            match code {
                0 => starts.push(at as usize - buffer as usize),
                12 => break,
                code => panic!("cuptiActivityGetNextRecord: {code}"),
            }
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let ends = starts.iter().skip(1).copied().chain([valid]);
        starts.iter().zip(ends).map(|(from, to)| Record(bytes[*from..to].to_vec())).collect()
    }

    fn dropped(&self) -> usize {
        let mut dropped = 0;
        let null = std::ptr::null_mut();
        let code = call!(self.cupti, c"cuptiActivityGetNumDroppedRecords",
            null => Handle, 0 => u32, &mut dropped => *mut usize);
        assert_eq!(code, 0);
        dropped
    }

    fn memory_free(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        let code = call!(self.cuda, c"cuMemGetInfo_v2",
            &mut free => *mut usize, &mut total => *mut usize);
        assert_eq!(code, 0);
        free
    }
}

fn sizes(records: &[Record]) -> Vec<usize> {
    records.iter().map(|r| r.0.len()).collect()
}

/// A kernel, a copy each way, a memory set, a graph by node and as a whole. `expected` are the
/// sizes of kernel, copy and graph records in this version.
fn all_kinds(expected: [usize; 3]) {
    let client = Client::new(&[CONCURRENT_KERNEL, MEMCPY, MEMSET, DRIVER]);
    let before = sys::now();
    client.launch(300_000);
    let pinned = {
        let mut at = std::ptr::null_mut();
        let code = call!(client.cuda, c"cuMemAllocHost_v2", &mut at => *mut Handle, 8192 => usize);
        assert_eq!(code, 0);
        at
    };
    let mut pageable = [0u8; 100];
    let somewhere = 0x7f00_0000_0000u64;
    let code = call!(client.cuda, c"cuMemcpyHtoDAsync_v2", somewhere => u64, pinned => Handle,
        8192 => usize, client.stream => Handle);
    assert_eq!(code, 0);
    let code = call!(client.cuda, c"cuMemcpyDtoHAsync_v2", pageable.as_mut_ptr() => *mut u8,
        somewhere => u64, 100 => usize, client.stream => Handle);
    assert_eq!(code, 0);
    let code = call!(client.cuda, c"cuMemsetD8Async", somewhere => u64, 7 => u8, 4096 => usize,
        client.stream => Handle);
    assert_eq!(code, 0);
    let graph = client.graph(3);
    client.replay(graph);
    let records = client.records();
    let after = sys::now();

    let (calls, work): (Vec<Record>, Vec<Record>) =
        records.into_iter().partition(|r| r.kind() == DRIVER);
    let kinds: Vec<u32> = work.iter().map(Record::kind).collect();
    assert_eq!(kinds, [10, 1, 1, 2, 10, 10, 10], "in the order in which they ended");
    let [kernel, copy, whole] = expected;
    assert_eq!(sizes(&work), [kernel, copy, copy, 88, kernel, kernel, kernel]);
    let slack = 1_000_000;
    for r in &work {
        let (start, end) = r.times();
        assert!(before - slack <= start && start < end && end <= after + slack, "{start} {end}");
    }
    for two in work.windows(2) {
        assert!(two[0].times().1 <= two[1].times().0 + slack, "one stream, one after the other");
    }

    let k = &work[0];
    let length = k.times().1 - k.times().0;
    assert_eq!(length, 300_000);
    // Device, context, stream, grid and block.
    let numbers: Vec<u32> = [40, 44, 48, 52, 56, 60, 64, 68, 72].map(|at| k.u32(at)).into();
    assert_eq!(numbers, [0, 1, 13, 2, 3, 4, 32, 1, 1]);
    assert_eq!(k.name(), "_ZN7gpuloop4gemmEPKfS1_Pfiii");
    assert_eq!((k.u64(144), k.u32(156)), (0, 0), "no graph launched it");
    // Direction, and kinds of memory: pinned to device, device to pageable.
    assert_eq!(work[1].0[4..7], [1, 2, 3]);
    assert_eq!(work[2].0[4..7], [2, 3, 1]);
    assert_eq!([work[1].u64(8), work[2].u64(8), work[3].u64(8)], [8192, 100, 4096]);
    assert_eq!(work[3].u32(4), 7);
    let (id, nodes) = (work[4].u32(156), [4, 5, 6].map(|i: usize| work[i].u64(144)));
    assert!(id != 0 && nodes[0] != 0 && nodes[0] < nodes[1] && nodes[1] < nodes[2]);
    assert_eq!(work[4].u32(92), work[6].u32(92), "one launch");

    // Correlation ids tie work to its launch, which began before it.
    let call_of = |correlation| calls.iter().find(|c| c.u32(32) == correlation).unwrap();
    let launch = call_of(k.u32(92));
    assert_eq!((launch.0.len(), launch.u32(4), launch.u32(24)), (40, 307, std::process::id()));
    assert!(launch.times().0 <= k.times().0 + slack);
    assert_eq!(call_of(work[4].u32(92)).u32(4), 514);
    assert_eq!(call_of(work[1].u32(44)).u32(4), 277);

    // Then the whole graph instead of its nodes.
    assert_eq!(client.enable(GRAPH_TRACE), 0);
    assert_eq!(client.disable(DRIVER), 0);
    client.replay(graph);
    client.launch(10);
    let records = client.records();
    let kinds: Vec<u32> = records.iter().map(Record::kind).filter(|k| *k != DRIVER).collect();
    assert_eq!(kinds, [51, 10]);
    let trace = records.iter().find(|r| r.kind() == GRAPH_TRACE).unwrap();
    assert_eq!((trace.0.len(), trace.u32(28), trace.u32(36)), (whole, id, 13));
    assert_eq!(trace.times().1 - trace.times().0, 3000);
}

#[test]
fn records_of_cuda_13_0() {
    alone("cupti::records_of_cuda_13_0", &[], |_| all_kinds([216, 96, 56]));
}

#[test]
fn records_of_cuda_12_8() {
    let env = [("GPUWHY_STANDIN_CUDA", "12080")];
    alone("cupti::records_of_cuda_12_8", &env, |_| all_kinds([208, 88, 56]));
}

#[test]
fn records_of_cupti_13_5() {
    let env = [("GPUWHY_STANDIN_CUPTI", "130501")];
    alone("cupti::records_of_cupti_13_5", &env, |_| all_kinds([248, 96, 56]));
}

#[test]
fn a_record_is_delivered_only_after_its_kernel_has_ended() {
    alone("cupti::a_record_is_delivered_only_after_its_kernel_has_ended", &[], |_| {
        let client = Client::new(&[CONCURRENT_KERNEL]);
        client.launch(1000);
        client.launch(2_000_000_000);
        sys::sleep_until(sys::now() + 5_000_000);
        assert_eq!(call!(client.cupti, c"cuptiActivityFlushAll", 1 => u32), 0);
        let first = std::mem::take(&mut *COMPLETED.lock().unwrap());
        let seen: usize = first.iter().map(|words| client.read(words).len()).sum();
        assert!(seen <= 1, "the long one has not ended");
        assert_eq!(client.records().len(), 2 - seen);
    });
}

#[test]
fn full_buffers_are_completed_without_a_flush_and_refused_ones_are_counted() {
    alone(
        "cupti::full_buffers_are_completed_without_a_flush_and_refused_ones_are_counted",
        &[],
        |_| {
            let client = Client::new(&[CONCURRENT_KERNEL]);
            (0..40).for_each(|_| client.launch(1000));
            client.synchronize();
            // 18 records of 216 bytes fit into 4096.
            eventually("two full buffers", || COMPLETED.lock().unwrap().len() == 2);
            let records = client.records();
            assert_eq!(records.len(), 40);
            let mut correlations: Vec<u32> = records.iter().map(|r| r.u32(92)).collect();
            correlations.dedup();
            assert_eq!(correlations.len(), 40);
            assert!(correlations.is_sorted());

            REFUSE.store(true, Relaxed);
            (0..5).for_each(|_| client.launch(1000));
            assert!(client.records().is_empty());
            assert_eq!((client.dropped(), client.dropped()), (5, 0));
            REFUSE.store(false, Relaxed);
            client.launch(1000);
            assert_eq!(client.records().len(), 1);
        },
    );
}

#[test]
fn without_a_timestamp_callback_times_are_wall_clock() {
    alone("cupti::without_a_timestamp_callback_times_are_wall_clock", &[], |machine| {
        machine.set_defect(Defect::NoTimestampCallback, true);
        let cupti = Library::load("libcupti.so.13");
        let refused = call!(cupti, c"cuptiActivityRegisterTimestampCallback",
            monotonic => extern "C" fn() -> u64);
        assert_eq!(refused, 27);
        machine.set_defect(Defect::NoTimestampCallback, false);
        let client = Client::new(&[CONCURRENT_KERNEL]);
        client.launch(1000);
        assert!(client.records()[0].times().0 < 1 << 60);
        // cuptiFinalize drops the timestamp callback.
        assert_eq!(call!(client.cupti, c"cuptiFinalize"), 0);
        let code = call!(client.cupti, c"cuptiActivityRegisterCallbacks",
            request => extern "C" fn(*mut *mut u8, *mut usize, *mut usize),
            complete => extern "C" fn(Handle, u32, *mut u8, usize, usize));
        assert_eq!(code, 0);
        COMPLETED.lock().unwrap().clear();
        assert_eq!(client.enable(CONCURRENT_KERNEL), 0);
        client.launch(1000);
        let wall = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let start = client.records()[0].times().0;
        assert!(start.abs_diff(wall) < 1_000_000_000_000, "{start} is not near {wall}");
    });
}

#[test]
fn timestamps_go_wrong_and_recover() {
    alone("cupti::timestamps_go_wrong_and_recover", &[], |machine: &Machine| {
        let client = Client::new(&[CONCURRENT_KERNEL]);
        machine.set_defect_after(10);
        machine.set_defect(Defect::ZeroTimestamps, true);
        (0..100).for_each(|_| client.launch(1000));
        let times: Vec<(u64, u64)> = client.records().iter().map(Record::times).collect();
        assert_eq!(times.len(), 100);
        assert!(times[..10].iter().all(|(start, end)| 0 < *start && start < end));
        let zeros = times[10..].iter().filter(|t| **t == (0, 0)).count();
        let backwards = times[10..].iter().filter(|(start, end)| end < start).count();
        assert!(zeros > 80 && backwards > 0 && zeros + backwards == 90, "{zeros} {backwards}");
        machine.set_defect(Defect::ZeroTimestamps, false);
        client.launch(1000);
        let (start, end) = client.records()[0].times();
        assert_eq!(end - start, 1000);
    });
}

#[test]
fn kernels_of_graphs_leak_device_memory() {
    alone("cupti::kernels_of_graphs_leak_device_memory", &[], |machine| {
        let client = Client::new(&[CONCURRENT_KERNEL]);
        machine.set_defect_after(150);
        machine.set_defect_growth(1000 << 20);
        machine.set_defect(Defect::GraphGrowth, true);
        let free = client.memory_free();
        (0..50).for_each(|_| client.launch(1000));
        assert_eq!(client.records().len(), 50);
        assert_eq!(client.memory_free(), free, "kernels without a graph leak nothing");
        let graph = client.graph(20);
        (0..10).for_each(|_| client.replay(graph));
        let times: Vec<(u64, u64)> = client.records().iter().map(Record::times).collect();
        // 200 records of 10,000 at 1000 MiB.
        assert_eq!(free - client.memory_free(), 20 << 20);
        assert_eq!(times.iter().filter(|t| t.0 < t.1).count(), 150);
        // Graphs traced as a whole leak nothing.
        assert_eq!(client.enable(GRAPH_TRACE), 0);
        (0..100).for_each(|_| client.replay(graph));
        assert_eq!(client.records().len(), 100);
        assert_eq!(free - client.memory_free(), 20 << 20);
    });
}

#[test]
fn another_tool_subscribes_or_replaces_callbacks_or_buffers_are_lost() {
    let name = "cupti::another_tool_subscribes_or_replaces_callbacks_or_buffers_are_lost";
    // One defect from the environment, as a test of a whole program sets it.
    let env = [("GPUWHY_STANDIN_DEFECTS", "second-subscriber")];
    alone(name, &env, |machine| {
        let client = Client::new(&[CONCURRENT_KERNEL]);
        let null = std::ptr::null_mut::<c_void>();
        let mut subscriber = null;
        let code = call!(client.cupti, c"cuptiSubscribe", &mut subscriber => *mut Handle,
            null => Handle, null => Handle);
        assert_eq!(code, 39);
        let mut old = [0 as c_char; 64];
        let mut params = (32usize, 0usize, old.as_mut_ptr(), old.len());
        let code = call!(client.cupti, c"cuptiSubscribe_v2", &mut subscriber => *mut Handle,
            null => Handle, null => Handle,
            &mut params => *mut (usize, usize, *mut c_char, usize));
        assert_eq!(code, 39);
        // SAFETY: zeros follow what was written.
        let tool = unsafe { CStr::from_ptr(old.as_ptr()) };
        assert_eq!(tool, c"CUPTI for Nsight Systems");

        client.launch(1000);
        assert_eq!(client.records().len(), 1, "activity records need no subscriber");
        machine.set_defect(Defect::CallbacksReplaced, true);
        let requested = REQUESTED.load(Relaxed);
        (0..100).for_each(|_| client.launch(1000));
        assert!(client.records().is_empty());
        assert_eq!((REQUESTED.load(Relaxed), client.dropped()), (requested, 0));
        machine.set_defect(Defect::CallbacksReplaced, false);

        machine.set_defect(Defect::LostBuffers, true);
        (0..100).for_each(|_| client.launch(1000));
        assert!(client.records().is_empty());
        assert!(REQUESTED.load(Relaxed) > requested, "buffers are requested and never completed");
        machine.set_defect(Defect::LostBuffers, false);
        client.launch(1000);
        assert_eq!(client.records().len(), 1);
    });
}

#[test]
fn attributes_names_and_kinds() {
    alone("cupti::attributes_names_and_kinds", &[], |_| {
        let cupti = Library::load("libcupti.so");
        let mut version = 0;
        assert_eq!(call!(cupti, c"cuptiGetVersion", &mut version => *mut u32), 0);
        assert_eq!(version, 130_001);
        let pool = |set: Option<usize>| {
            let (mut size, mut value) = (8usize, set.unwrap_or(0));
            let (of, to) = (2u32, &raw mut value);
            let code = match set {
                None => call!(cupti, c"cuptiActivityGetAttribute",
                    of => u32, &mut size => *mut usize, to => *mut usize),
                Some(_) => call!(cupti, c"cuptiActivitySetAttribute",
                    of => u32, &mut size => *mut usize, to => *mut usize),
            };
            (code, value)
        };
        assert_eq!(pool(None), (0, 250));
        assert_eq!(pool(Some(8)), (0, 8));
        assert_eq!(pool(None), (0, 8));
        let mut name = std::ptr::null::<c_char>();
        let code = call!(cupti, c"cuptiGetCallbackName", 1 => u32, 307 => u32,
            &mut name => *mut *const c_char);
        assert_eq!(code, 0);
        // SAFETY: CUPTI's names live as long as it.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"cuLaunchKernel");
        for (kind, code) in [(0, 21), (99, 21), (10, 0), (3, 14)] {
            assert_eq!(call!(cupti, c"cuptiActivityEnable", kind => u32), code, "kind {kind}");
        }
    });
}

#[test]
fn the_driver_loads_the_injected_object_once_and_hides_devices() {
    let name = "cupti::the_driver_loads_the_injected_object_once_and_hides_devices";
    let object = crate::object();
    let env = [
        ("CUDA_VISIBLE_DEVICES", "1"),
        // It has no InitializeInjection, which the driver tolerates.
        ("CUDA_INJECTION64_PATH", object.to_str().unwrap()),
    ];
    alone(name, &env, |machine| {
        let cuda = Library::load("libcuda.so.1");
        let mut count = 0;
        assert_eq!(call!(cuda, c"cuDeviceGetCount", &mut count => *mut i32), 3);
        assert_eq!(call!(cuda, c"cuInit", 0 => u32), 0);
        assert_eq!(call!(cuda, c"cuDeviceGetCount", &mut count => *mut i32), 0);
        assert_eq!(count, 1);
        let mut uuid = [0u8; 16];
        let code = call!(cuda, c"cuDeviceGetUuid_v2", &mut uuid => *mut [u8; 16], 0 => i32);
        assert_eq!((code, uuid), (0, machine.gpu(1).unwrap().uuid()));
        let code = call!(cuda, c"cuDeviceGetUuid_v2", &mut uuid => *mut [u8; 16], 1 => i32);
        assert_eq!(code, 101);
        let mut name = std::ptr::null::<c_char>();
        let code = call!(cuda, c"cuGetErrorName", code => u32, &mut name => *mut *const c_char);
        assert_eq!(code, 0);
        // SAFETY: the driver's names live as long as it.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_INVALID_DEVICE");
    });
}
