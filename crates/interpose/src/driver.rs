//! The driver's functions that we call ourselves.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use std::sync::OnceLock;

use gpuwhy_wire::now;

use crate::linker::look_up;
use crate::ours::ours;
use crate::types::{Code, Handle, SUCCESS};

/// `CUresult` where the driver lacks a function.
const NOT_SUPPORTED: Code = 801;

/// Declares functions of the driver: each is looked up once, and without it the call is not supported.
macro_rules! functions {
    ($(fn $field:ident = $name:literal ($($arg:ident: $type:ty),*);)*) => {
        struct Functions { $($field: *mut c_void,)* }

        // SAFETY: addresses of functions.
        unsafe impl Send for Functions {}
        // SAFETY: as above.
        unsafe impl Sync for Functions {}

        fn functions() -> &'static Functions {
            static FOUND: OnceLock<Functions> = OnceLock::new();
            FOUND.get_or_init(|| Functions { $($field: look_up($name),)* })
        }

        $(
            #[allow(clippy::too_many_arguments)]
            fn $field($($arg: $type),*) -> Code {
                let found = functions().$field;
                if found.is_null() {
                    return NOT_SUPPORTED;
                }
                // SAFETY: CUDA's documentation gives the function of this name this type; each caller below gives
                // results that live while it runs.
                unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Code>(found)($($arg),*)
                }
            }
        )*
    };
}

functions! {
    fn device_count = c"cuDeviceGetCount" (to: *mut c_int);
    fn device_attribute = c"cuDeviceGetAttribute" (to: *mut c_int, which: c_int, device: c_int);
    fn context_current = c"cuCtxGetCurrent" (to: *mut Handle);
    fn context_device = c"cuCtxGetDevice" (to: *mut c_int);
    fn context_push = c"cuCtxPushCurrent_v2" (context: Handle);
    fn context_pop = c"cuCtxPopCurrent_v2" (to: *mut Handle);
    fn primary_state = c"cuDevicePrimaryCtxGetState" (device: c_int, flags: *mut c_uint, active: *mut c_int);
    fn capture_mode = c"cuThreadExchangeStreamCaptureMode" (mode: *mut c_int);
    fn capture_status = c"cuStreamIsCapturing" (stream: Handle, to: *mut c_uint);
    fn stream_create = c"cuStreamCreate" (to: *mut Handle, flags: c_uint);
    fn stream_destroy = c"cuStreamDestroy_v2" (stream: Handle);
    fn stream_query = c"cuStreamQuery" (stream: Handle);
    fn stream_wait = c"cuStreamSynchronize" (stream: Handle);
    fn allocate_memory = c"cuMemAlloc_v2" (to: *mut u64, bytes: usize);
    fn free_memory = c"cuMemFree_v2" (at: u64);
    fn host_register = c"cuMemHostRegister_v2" (at: *mut c_void, bytes: usize, flags: c_uint);
    fn host_unregister = c"cuMemHostUnregister" (at: *mut c_void);
    fn host_pointer = c"cuMemHostGetDevicePointer_v2" (to: *mut u64, at: *mut c_void, flags: c_uint);
    fn zero_memory = c"cuMemsetD8Async" (at: u64, value: u8, bytes: usize, stream: Handle);
    fn copy_to_device = c"cuMemcpyHtoDAsync_v2" (to: u64, from: *const c_void, bytes: usize, stream: Handle);
    fn copy_to_host = c"cuMemcpyDtoHAsync_v2" (to: *mut c_void, from: u64, bytes: usize, stream: Handle);
    fn module_load = c"cuModuleLoadData" (to: *mut Handle, image: *const c_void);
    fn module_load_with = c"cuModuleLoadDataEx" (
        to: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void
    );
    fn library_load = c"cuLibraryLoadData" (
        to: *mut Handle, image: *const c_void, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
        more: *mut c_int, more_values: *mut *mut c_void, more_count: c_uint
    );
    fn link_data = c"cuLinkAddData_v2" (
        link: Handle, kind: c_int, data: *mut c_void, bytes: usize, name: *const c_char, count: c_uint,
        options: *mut c_int, values: *mut *mut c_void
    );
    fn module_global = c"cuModuleGetGlobal_v2" (
        to: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char
    );
    fn module_function = c"cuModuleGetFunction" (to: *mut Handle, module: Handle, name: *const c_char);
    fn library_kernel = c"cuLibraryGetKernel" (to: *mut Handle, library: Handle, name: *const c_char);
    fn kernel_function = c"cuKernelGetFunction" (to: *mut Handle, kernel: Handle);
    fn set_attribute = c"cuFuncSetAttribute" (function: Handle, which: c_int, value: c_int);
    fn resident_blocks = c"cuOccupancyMaxActiveBlocksPerMultiprocessor" (
        to: *mut c_int, function: Handle, threads: c_int, shared: usize
    );
    fn stream_create_with = c"cuStreamCreateWithPriority" (to: *mut Handle, flags: c_uint, priority: c_int);
    fn function_parameter = c"cuFuncGetParamInfo" (
        function: Handle, number: usize, at: *mut usize, bytes: *mut usize
    );
    fn kernel_parameter = c"cuKernelGetParamInfo" (
        kernel: Handle, number: usize, at: *mut usize, bytes: *mut usize
    );
    fn prefetch_before = c"cuMemPrefetchAsync" (at: u64, bytes: usize, device: c_int, stream: Handle);
    fn prefetch_to = c"cuMemPrefetchAsync_v2" (
        at: u64, bytes: usize, to: Location, flags: c_uint, stream: Handle
    );
    fn advise_before = c"cuMemAdvise" (at: u64, bytes: usize, advice: c_int, device: c_int);
    fn advise_at = c"cuMemAdvise_v2" (at: u64, bytes: usize, advice: c_int, place: Location);
    fn launch_kernel = c"cuLaunchKernel" (
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void
    );
    fn library_global = c"cuLibraryGetGlobal" (
        to: *mut u64, bytes: *mut usize, library: Handle, name: *const c_char
    );
}

/// `CUmemLocation`: what it is (1: a device, 2: the host), and its number.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    number: c_int,
}

/// `CU_DEVICE_CPU`, where CUDA before 12.2 takes a device.
const HOST: c_int = -1;

impl Location {
    /// A device, or the host.
    fn of(device: Option<c_int>) -> Location {
        let kind = if device.is_some() { 1 } else { 2 };
        Location { kind, number: device.unwrap_or(0) }
    }
}

/// A call's result.
type Result<T> = core::result::Result<T, Code>;

fn done(code: Code) -> Result<()> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// The least compute capability, times 10, and the most streaming multiprocessors of the devices that the program sees.
/// They do not change: a program that loads thousands of images has them asked once.
pub fn devices() -> Option<(u32, u32)> {
    static KNOWN: OnceLock<(u32, u32)> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Some(*known);
    }
    Some(*KNOWN.get_or_init({
        let asked = ask_devices()?;
        move || asked
    }))
}

fn ask_devices() -> Option<(u32, u32)> {
    /// `CU_DEVICE_ATTRIBUTE_…`: MULTIPROCESSOR_COUNT, COMPUTE_CAPABILITY_MAJOR and _MINOR.
    const WHICH: [c_int; 3] = [16, 75, 76];
    let mut count = 0;
    done(device_count(&raw mut count)).ok()?;
    let mut all: Option<(u32, u32)> = None;
    for device in 0..count {
        let mut values = [0; 3];
        for (value, which) in values.iter_mut().zip(WHICH) {
            done(device_attribute(value, which, device)).ok()?;
        }
        let [sms, major, minor] = values.map(|value| u32::try_from(value).unwrap_or(0));
        let arch = major * 10 + minor;
        all = Some(all.map_or((arch, sms), |(least, most)| (least.min(arch), most.max(sms))));
    }
    all
}

/// The context of the calling thread; null if it has none.
pub fn current() -> Handle {
    let mut context = null_mut();
    if context_current(&raw mut context) == SUCCESS { context } else { null_mut() }
}

/// The device of the calling thread's context.
pub fn device() -> Result<c_int> {
    let mut device = 0;
    done(context_device(&raw mut device))?;
    Ok(device)
}

/// Whether a device's primary context exists.
pub fn primary_is_there(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 0);
    primary_state(device, &raw mut flags, &raw mut active) == SUCCESS && active != 0
}

/// Calls `f` with a context as the calling thread's.
pub fn within<R>(context: Handle, f: impl FnOnce() -> Result<R>) -> Result<R> {
    done(context_push(context))?;
    let out = f();
    let mut popped = null_mut();
    done(context_pop(&raw mut popped))?;
    out
}

/// Calls `f` while the calling thread may allocate and copy although one of its streams is being captured.
pub fn relaxed<R>(f: impl FnOnce() -> R) -> R {
    // CU_STREAM_CAPTURE_MODE_RELAXED
    let mut mode = 2;
    let exchanged = capture_mode(&raw mut mode) == SUCCESS;
    let out = f();
    if exchanged {
        capture_mode(&raw mut mode);
    }
    out
}

/// Whether what is launched on a stream becomes part of a graph.
pub fn is_capturing(stream: Handle) -> bool {
    let mut status = 0;
    // CU_STREAM_CAPTURE_STATUS_NONE is 0. The legacy default stream answers with an error while others are captured, and
    // is not captured itself.
    capture_status(stream, &raw mut status) == SUCCESS && status != 0
}

/// A stream that waits for no other, in the calling thread's context.
#[derive(Debug)]
pub struct Stream(Handle);

impl Stream {
    pub fn new() -> Result<Stream> {
        /// `CU_STREAM_NON_BLOCKING`.
        const FLAGS: c_uint = 1;
        let mut stream = null_mut();
        done(stream_create(&raw mut stream, FLAGS))?;
        Ok(Stream(stream))
    }

    /// Device memory, all zero.
    pub fn zeros(&self, bytes: usize) -> Result<u64> {
        let mut at = 0;
        done(allocate_memory(&raw mut at, bytes))?;
        let zeroed = done(zero_memory(at, 0, bytes, self.0)).and_then(|()| self.wait());
        zeroed.map(|()| at).inspect_err(|_| _ = free_memory(at))
    }

    /// Writes words to device memory.
    pub fn put(&self, at: u64, words: &[u64]) -> Result<()> {
        done(copy_to_device(at, words.as_ptr().cast(), size_of_val(words), self.0))?;
        self.wait()
    }

    /// Copies device memory to memory of the host, which has room for it.
    pub fn get(&self, at: u64, to: *mut u8, bytes: usize) -> Result<()> {
        done(copy_to_host(to.cast(), at, bytes, self.0))?;
        self.wait()
    }

    /// Moves managed memory to a device, some time later. CUDA has two functions for it: since 12.2 one that takes a place, and
    /// since 13 that one alone in its headers.
    pub fn prefetch(&self, at: u64, bytes: u64, device: c_int) -> Result<()> {
        let place = Location::of(Some(device));
        match prefetch_to(at, bytes as usize, place, 0, self.0) {
            NOT_SUPPORTED => done(prefetch_before(at, bytes as usize, device, self.0)),
            code => done(code),
        }
    }

    fn wait(&self) -> Result<()> {
        done(stream_wait(self.0))
    }

    /// Destroys it, and frees device memory.
    pub fn end(self, at: u64) {
        stream_destroy(self.0);
        free(at);
    }
}

/// Frees device memory.
pub fn free(at: u64) {
    free_memory(at);
}

/// Memory of this process that kernels reach, in one context.
#[derive(Debug)]
pub struct Mapped {
    at: *mut c_void,
    device: u64,
}

impl Mapped {
    /// Pins memory at the beginning of a page; it has to stay there until [`Mapped::end`].
    pub fn new(at: *mut u8, bytes: usize) -> Result<Mapped> {
        /// `CU_MEMHOSTREGISTER_DEVICEMAP`.
        const FLAGS: c_uint = 2;
        let (at, mut device) = (at.cast(), 0);
        done(host_register(at, bytes, FLAGS))?;
        let found = done(host_pointer(&raw mut device, at, 0));
        found.map(|()| Mapped { at, device }).inspect_err(|_| _ = host_unregister(at))
    }

    /// Where kernels see it.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// No kernel reaches it any more.
    pub fn end(self) {
        host_unregister(self.at);
    }
}

/// A kernel that reads the device's clock.
const CLOCK: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry gpuwhy_clock(.param .u64 to) {
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [to];
    mov.u64 %rd2, %globaltimer;
    st.global.u64 [%rd1], %rd2;
    ret;
}
";

/// The device's clock in one context.
#[derive(Debug)]
pub struct Clock {
    kernel: Handle,
    at: u64,
}

/// Loads a kernel of ours into the calling thread's context.
fn kernel_of(text: &CStr, name: &CStr) -> Result<Handle> {
    let (mut module, mut kernel) = (null_mut(), null_mut());
    done(ours(|| module_load(&raw mut module, text.as_ptr().cast())))?;
    done(module_function(&raw mut kernel, module, name.as_ptr()))?;
    Ok(kernel)
}

/// Subtracts numbers from counters that lie at equal distances: thread by thread.
const GIVE: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry gpuwhy_give(.param .u64 to, .param .u64 stride, .param .u64 from, .param .u32 count) {
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [stride];
    ld.param.u64 %rd3, [from];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r2, 128, %r3;
    setp.ge.u32 %p1, %r4, %r1;
    @%p1 ret;
    mul.wide.u32 %rd4, %r4, 8;
    add.s64 %rd4, %rd3, %rd4;
    ld.global.u64 %rd5, [%rd4];
    neg.s64 %rd5, %rd5;
    cvt.u64.u32 %rd6, %r4;
    mul.lo.s64 %rd6, %rd6, %rd2;
    add.s64 %rd6, %rd1, %rd6;
    red.global.add.u64 [%rd6], %rd5;
    ret;
}
";

/// Gives places of rings back, in one context, on a stream of its own.
#[derive(Debug)]
pub struct Giver {
    kernel: Handle,
    stream: Stream,
    /// Device memory for the numbers.
    at: u64,
}

impl Giver {
    /// For so many rings at a time, in the calling thread's context.
    pub fn new(most: usize) -> Result<Giver> {
        let kernel = kernel_of(GIVE, c"gpuwhy_give")?;
        let stream = Stream::new()?;
        let at = stream.zeros(8 * most)?;
        Ok(Giver { kernel, stream, at })
    }

    /// Subtracts numbers from counters that lie `stride` bytes apart, from `to` on, some time later. Whether it will: not
    /// where the last ones are still to come.
    pub fn give(&self, to: u64, stride: u64, numbers: &[u64]) -> bool {
        if stream_query(self.stream.0) != SUCCESS || self.stream.put(self.at, numbers).is_err() {
            return false;
        }
        let (mut to, mut stride, mut from) = (to, stride, self.at);
        let mut count = numbers.len() as c_uint;
        let words = [&raw mut to, &raw mut stride, &raw mut from].map(<*mut u64>::cast::<c_void>);
        let mut params = [words[0], words[1], words[2], (&raw mut count).cast()];
        let (blocks, none, params) = (count.div_ceil(128), null_mut(), params.as_mut_ptr());
        let code =
            launch_kernel(self.kernel, blocks, 1, 1, 128, 1, 1, 0, self.stream.0, params, none);
        code == SUCCESS
    }

    /// Ends it, in its context.
    pub fn end(self) {
        self.stream.end(self.at);
    }
}

impl Clock {
    /// In the calling thread's context.
    pub fn new(stream: &Stream) -> Result<Clock> {
        Ok(Clock { kernel: kernel_of(CLOCK, c"gpuwhy_clock")?, at: stream.zeros(8)? })
    }

    /// What is to be added to the device's clock for ours, ns, by the reading of several that took least time, and how
    /// long it took, ns.
    pub fn offset(&self, stream: &Stream) -> Result<(i64, u64)> {
        const READINGS: usize = 5;
        let mut best: Option<(u64, i64)> = None;
        for _ in 0..READINGS {
            let (mut at, mut value) = (self.at, 0_u64);
            let mut params = [(&raw mut at).cast::<c_void>()];
            let before = now();
            let (none, params) = (null_mut(), params.as_mut_ptr());
            done(launch_kernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, stream.0, params, none))?;
            stream.wait()?;
            let took = now().saturating_sub(before);
            stream.get(self.at, (&raw mut value).cast(), 8)?;
            let offset = (before + took / 2).wrapping_sub(value) as i64;
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((took, offset));
            }
        }
        Ok(best.map_or((0, u64::MAX), |(took, offset)| (offset, took)))
    }
}

/// Loads a module from PTX text, with the program's options.
pub fn load_module(
    to: *mut Handle,
    text: *const c_void,
    options: Option<(c_uint, *mut c_int, *mut *mut c_void)>,
) -> Code {
    match options {
        None => module_load(to, text),
        Some((count, options, values)) => module_load_with(to, text, count, options, values),
    }
}

/// Loads a library from PTX text, with the program's options.
#[allow(clippy::too_many_arguments)]
pub fn load_library(
    to: *mut Handle,
    text: *const c_void,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
    more: *mut c_int,
    more_values: *mut *mut c_void,
    more_count: c_uint,
) -> Code {
    library_load(to, text, options, values, count, more, more_values, more_count)
}

/// Adds text to a link, with the program's name for it and its options.
#[allow(clippy::too_many_arguments)]
pub fn link_text(
    link: Handle,
    kind: c_int,
    text: *const c_void,
    bytes: usize,
    name: *const c_char,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Code {
    link_data(link, kind, text.cast_mut(), bytes, name, count, options, values)
}

/// A function of a module.
pub fn function_of_module(module: Handle, name: &CStr) -> Result<Handle> {
    let mut function = null_mut();
    done(module_function(&raw mut function, module, name.as_ptr()))?;
    Ok(function)
}

/// A kernel of a library.
pub fn kernel_of_library(library: Handle, name: &CStr) -> Result<Handle> {
    let mut kernel = null_mut();
    done(library_kernel(&raw mut kernel, library, name.as_ptr()))?;
    Ok(kernel)
}

/// The function that a kernel of a library is in the calling thread's context.
pub fn function_of_kernel(kernel: Handle) -> Result<Handle> {
    let mut function = null_mut();
    done(kernel_function(&raw mut function, kernel))?;
    Ok(function)
}

/// How many blocks of so many threads, with so many bytes of shared memory beside the function's own, run at once on the
/// device of the calling thread's context.
pub fn resident(function: Handle, threads: u32, shared: u32) -> Result<u64> {
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` and `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
    const DYNAMIC_SHARED: c_int = 8;
    const MULTIPROCESSORS: c_int = 16;
    /// What a launch may add to a function's shared memory without having asked for more.
    const USUAL: u32 = 40 << 10;
    if shared > USUAL {
        done(set_attribute(function, DYNAMIC_SHARED, shared as c_int))?;
    }
    let (mut each, mut sms) = (0, 0);
    done(resident_blocks(&raw mut each, function, threads as c_int, shared as usize))?;
    done(device_attribute(&raw mut sms, MULTIPROCESSORS, device()?))?;
    Ok(u64::try_from(each).unwrap_or(0) * u64::try_from(sms).unwrap_or(0))
}

/// Advises about managed memory (`CUmem_advise`), for a device or the host. There are two functions, as for prefetches.
pub fn advise(at: u64, bytes: u64, advice: c_int, device: Option<c_int>) -> Result<()> {
    match advise_at(at, bytes as usize, advice, Location::of(device)) {
        NOT_SUPPORTED => done(advise_before(at, bytes as usize, advice, device.unwrap_or(HOST))),
        code => done(code),
    }
}

/// Creates a stream with a priority.
pub fn stream_with_priority(to: *mut Handle, flags: c_uint, priority: c_int) -> Code {
    stream_create_with(to, flags, priority)
}

/// Which parameters of a function, or of a library's kernel, have eight bytes; none where the driver does not tell (before
/// CUDA 12.4).
pub fn wide_parameters(function: Handle, of_library: bool) -> Vec<usize> {
    /// More are not looked at.
    const MOST: usize = 64;
    let bytes_of = |number| {
        let (mut at, mut bytes) = (0, 0);
        let told = match of_library {
            false => function_parameter(function, number, &raw mut at, &raw mut bytes),
            true => kernel_parameter(function, number, &raw mut at, &raw mut bytes),
        };
        (told == SUCCESS).then_some(bytes)
    };
    let all = (0..MOST).map_while(|number| Some((number, bytes_of(number)?)));
    all.filter(|(_, bytes)| *bytes == 8).map(|(number, _)| number).collect()
}

/// Whether all that was put on a stream has ended.
pub fn is_idle(stream: Handle) -> bool {
    stream_query(stream) == SUCCESS
}

/// Address and size of a variable of a module.
pub fn global_of_module(module: Handle, name: &CStr) -> Result<(u64, usize)> {
    let (mut at, mut bytes) = (0, 0);
    done(module_global(&raw mut at, &raw mut bytes, module, name.as_ptr()))?;
    Ok((at, bytes))
}

/// The same of a library, in the calling thread's context.
pub fn global_of_library(library: Handle, name: &CStr) -> Result<(u64, usize)> {
    let (mut at, mut bytes) = (0, 0);
    done(library_global(&raw mut at, &raw mut bytes, library, name.as_ptr()))?;
    Ok((at, bytes))
}
