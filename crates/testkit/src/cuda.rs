//! A client of `libcuda`, loaded when it is asked for: what a workload needs to launch kernels,
//! copy and replay graphs.
//!
//! It asks for `libcuda.so.1` as any program does, so it meets the stand-in (crate
//! `gpuwhy-standin`) where `LD_LIBRARY_PATH` leads there. Its kernels take the time that their
//! first parameter says, which is the stand-in's convention, and module images are not read; so a
//! real driver refuses the module, and this says so.
//!
//! The unsafe code here is calls of the driver's functions with the types of its documentation.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use anyhow::{Context as _, Result, bail};

type Handle = *mut c_void;

/// Declares the functions of the driver that are loaded.
macro_rules! functions {
    ($($field:ident = $name:literal ($($arg:ty),*);)*) => {
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> c_uint,)* }

        impl Functions {
            fn load() -> Result<Functions> {
                // SAFETY: a C string; the object's constructors are the driver's.
                let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if driver.is_null() {
                    bail!("cannot load libcuda.so.1; is the stand-in in LD_LIBRARY_PATH?");
                }
                let find = |name: &CStr| {
                    // SAFETY: the driver is loaded, and never unloaded.
                    let symbol = unsafe { libc::dlsym(driver, name.as_ptr()) };
                    if symbol.is_null() {
                        bail!("libcuda.so.1 has no {}", name.to_string_lossy());
                    }
                    Ok(symbol)
                };
                Ok(Functions {
                    $($field: {
                        let symbol = find($name)?;
                        // SAFETY: the driver's documentation gives the function of this name
                        // this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> c_uint,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    device = c"cuDeviceGet" (*mut c_int, c_int);
    retain = c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    set_current = c"cuCtxSetCurrent" (Handle);
    stream_create = c"cuStreamCreate" (*mut Handle, c_uint);
    stream_synchronize = c"cuStreamSynchronize" (Handle);
    begin_capture = c"cuStreamBeginCapture_v2" (Handle, c_uint);
    end_capture = c"cuStreamEndCapture" (Handle, *mut Handle);
    instantiate = c"cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    graph_launch = c"cuGraphLaunch" (Handle, Handle);
    module_load = c"cuModuleLoadData" (*mut Handle, *const u8);
    function = c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    launch = c"cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
    allocate = c"cuMemAlloc_v2" (*mut u64, usize);
    allocate_host = c"cuMemAllocHost_v2" (*mut *mut c_void, usize);
    to_device = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    to_host = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    error_name = c"cuGetErrorName" (c_uint, *mut *const c_char);
}

/// The driver with one device, its context and one stream. For one thread.
pub(crate) struct Gpu {
    driver: Functions,
    stream: Handle,
    module: Handle,
}

/// A kernel by name.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(Handle);

/// Launches that are replayed together.
#[derive(Clone, Copy)]
pub(crate) struct Graph(Handle);

/// Device memory, never freed.
#[derive(Clone, Copy)]
pub(crate) struct DeviceMemory {
    at: u64,
    bytes: usize,
}

/// Pinned memory of the host, never freed.
pub(crate) struct HostMemory {
    at: *mut u8,
    bytes: usize,
}

impl HostMemory {
    pub fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the driver gave so many bytes to us alone, which `pinned` has set.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Gpu {
    /// Initializes the driver and takes a device, which this thread then uses.
    pub fn open(device: u32) -> Result<Gpu> {
        let driver = Functions::load()?;
        let (mut ordinal, mut context) = (0, null_mut());
        let mut gpu = Gpu { driver, stream: null_mut(), module: null_mut() };
        let d = &gpu.driver;
        // SAFETY: numbers, and results that live while each call runs.
        unsafe {
            gpu.check((d.init)(0)).context("cannot initialize CUDA")?;
            gpu.check((d.device)(&mut ordinal, device as c_int))
                .with_context(|| format!("no CUDA device {device}"))?;
            gpu.check((d.retain)(&mut context, ordinal)).context("cannot make a CUDA context")?;
            gpu.check((d.set_current)(context)).context("cannot use the CUDA context")?;
        }
        let (mut stream, mut module) = (null_mut(), null_mut());
        // SAFETY: as above; the image ends with the zero that ends a text of PTX.
        unsafe {
            // CU_STREAM_NON_BLOCKING
            gpu.check((d.stream_create)(&mut stream, 1)).context("cannot make a CUDA stream")?;
            gpu.check((d.module_load)(&mut module, c"gpuwhy".to_bytes_with_nul().as_ptr()))
                .context("cannot load the kernels, which are for the stand-in")?;
        }
        (gpu.stream, gpu.module) = (stream, module);
        Ok(gpu)
    }

    fn check(&self, code: c_uint) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: a number, and a result that lives while the call runs.
        unsafe { (self.driver.error_name)(code, &mut name) };
        if name.is_null() {
            bail!("CUDA error {code}");
        }
        // SAFETY: the driver gives text that lives as long as itself.
        bail!("{} ({code})", unsafe { CStr::from_ptr(name) }.to_string_lossy());
    }

    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let mut function = null_mut();
        let text = CString::new(name).context("a kernel's name has no zeros")?;
        // SAFETY: the module is loaded; the name and the result live while the call runs.
        let code = unsafe { (self.driver.function)(&mut function, self.module, text.as_ptr()) };
        self.check(code).with_context(|| format!("no kernel `{name}`"))?;
        Ok(Kernel(function))
    }

    /// Launches a kernel of so many ns at the nominal clock.
    pub fn launch(&self, kernel: Kernel, mut work: u64) -> Result<()> {
        let mut params = [(&raw mut work).cast::<c_void>()];
        // SAFETY: the kernel is of our module and takes one u64, which lives while the call runs;
        // the driver copies it.
        let code = unsafe {
            (self.driver.launch)(
                kernel.0,
                132,
                1,
                1,
                256,
                1,
                1,
                0,
                self.stream,
                params.as_mut_ptr(),
                null_mut(),
            )
        };
        self.check(code).context("cannot launch a kernel")
    }

    /// Records what `launches` launches, to be replayed.
    pub fn capture(&self, launches: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: the stream is ours; CU_STREAM_CAPTURE_MODE_THREAD_LOCAL.
        self.check(unsafe { (self.driver.begin_capture)(self.stream, 1) })
            .context("cannot begin a graph")?;
        launches()?;
        // SAFETY: the stream is ours and captures; results live while each call runs.
        unsafe {
            self.check((self.driver.end_capture)(self.stream, &mut graph))
                .context("cannot end a graph")?;
            self.check((self.driver.instantiate)(&mut executable, graph, 0))
                .context("cannot instantiate a graph")?;
        }
        Ok(Graph(executable))
    }

    pub fn replay(&self, graph: Graph) -> Result<()> {
        // SAFETY: the graph and the stream are ours.
        let code = unsafe { (self.driver.graph_launch)(graph.0, self.stream) };
        self.check(code).context("cannot launch a graph")
    }

    /// Waits until all that was launched has ended.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is ours.
        let code = unsafe { (self.driver.stream_synchronize)(self.stream) };
        self.check(code).context("cannot wait for the stream")
    }

    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory> {
        let mut at = 0;
        // SAFETY: a result that lives while the call runs.
        let code = unsafe { (self.driver.allocate)(&mut at, bytes) };
        self.check(code).with_context(|| format!("no {bytes} bytes of device memory"))?;
        Ok(DeviceMemory { at, bytes })
    }

    pub fn pinned(&self, bytes: usize) -> Result<HostMemory> {
        let mut at = null_mut();
        // SAFETY: a result that lives while the call runs.
        let code = unsafe { (self.driver.allocate_host)(&mut at, bytes) };
        self.check(code).with_context(|| format!("no {bytes} bytes of pinned memory"))?;
        // SAFETY: the driver has just given so many bytes to us alone.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        Ok(HostMemory { at: at.cast(), bytes })
    }

    /// Copies as much as fits both to the device, while the program goes on.
    pub fn send(&self, from: &HostMemory, to: DeviceMemory) -> Result<()> {
        let bytes = from.bytes.min(to.bytes);
        // SAFETY: both have so many bytes and are never freed. The caller synchronises before it
        // changes them.
        let code = unsafe { (self.driver.to_device)(to.at, from.at.cast(), bytes, self.stream) };
        self.check(code).context("cannot copy to the device")
    }

    /// Copies as much as fits both to the host, while the program goes on.
    pub fn receive(&self, from: DeviceMemory, to: &mut HostMemory) -> Result<()> {
        let bytes = from.bytes.min(to.bytes);
        // SAFETY: as in `send`.
        let code = unsafe { (self.driver.to_host)(to.at.cast(), from.at, bytes, self.stream) };
        self.check(code).context("cannot copy to the host")
    }
}
