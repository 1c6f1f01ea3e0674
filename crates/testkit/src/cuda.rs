//! A client of `libcuda`, loaded at run time: what a workload needs to launch kernels, copy, and
//! launch graphs.
//!
//! It loads `libcuda.so.1` as any program does, and so gets the stand-in (crate `gpuwhy-standin`)
//! if `LD_LIBRARY_PATH` leads there. Its kernels take the time of their first parameter, which is
//! the stand-in's convention, and its module has no code; a real driver refuses the module, and the
//! error explains that.
//!
//! The unsafe code here is calls of the driver's functions with the types of its documentation.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use anyhow::{Context as _, Result, bail};

type Handle = *mut c_void;

/// Declares the functions that are loaded from the driver.
macro_rules! functions {
    ($($field:ident = $name:literal ($($arg:ty),*);)*) => {
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> c_uint,)* }

        impl Functions {
            fn load() -> Result<Functions> {
                // SAFETY: a C string; the object's constructors are the driver's.
                let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if driver.is_null() {
                    bail!(
                        "cannot load libcuda.so.1; make links to the stand-in with \
                         `gpuwhy-testkit gpu-links` and put their directory into LD_LIBRARY_PATH"
                    );
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

/// The driver with one device, its context and one stream; for one thread.
pub(crate) struct Gpu {
    driver: Functions,
    stream: Handle,
    module: Handle,
}

/// A kernel by name.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(Handle);

/// An instantiated graph of launches.
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
    /// Its bytes.
    pub fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the driver gave this many bytes to us alone, which `pinned` has initialised.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Gpu {
    /// Initialises the driver and makes a device the current one of this thread.
    ///
    /// # Errors
    /// If there is no driver or no such device, or if it is not the stand-in.
    pub fn open(device: u32) -> Result<Gpu> {
        let driver = Functions::load()?;
        let (mut ordinal, mut context) = (0, null_mut());
        let mut gpu = Gpu { driver, stream: null_mut(), module: null_mut() };
        let d = &gpu.driver;
        // SAFETY: numbers, and results that live while each call runs.
        unsafe {
            gpu.check((d.init)(0)).context("cannot initialise CUDA")?;
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
                .context("cannot load the kernels, which only the stand-in of libcuda runs")?;
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

    /// A kernel of the module.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let mut function = null_mut();
        let text = CString::new(name).context("the name of a kernel contains a zero byte")?;
        // SAFETY: the module is loaded; the name and the result live while the call runs.
        let code = unsafe { (self.driver.function)(&mut function, self.module, text.as_ptr()) };
        self.check(code).with_context(|| format!("no kernel `{name}`"))?;
        Ok(Kernel(function))
    }

    /// Launches a kernel that takes `work` ns at the nominal clock.
    ///
    /// # Errors
    /// If the driver refuses, as after an Xid.
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

    /// Captures what `launches` launches as a graph.
    ///
    /// # Errors
    /// If the driver refuses.
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

    /// Launches a graph.
    ///
    /// # Errors
    /// If the driver refuses, as after an Xid.
    pub fn launch_graph(&self, graph: Graph) -> Result<()> {
        // SAFETY: the graph and the stream are ours.
        let code = unsafe { (self.driver.graph_launch)(graph.0, self.stream) };
        self.check(code).context("cannot launch a graph")
    }

    /// Waits until everything that was launched has ended.
    ///
    /// # Errors
    /// If work has failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is ours.
        let code = unsafe { (self.driver.stream_synchronize)(self.stream) };
        self.check(code).context("cannot wait for the stream")
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory> {
        let mut at = 0;
        // SAFETY: a result that lives while the call runs.
        let code = unsafe { (self.driver.allocate)(&mut at, bytes) };
        self.check(code)
            .with_context(|| format!("cannot allocate {bytes} bytes of device memory"))?;
        Ok(DeviceMemory { at, bytes })
    }

    /// Allocates pinned memory of the host, filled with zeros.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn pinned(&self, bytes: usize) -> Result<HostMemory> {
        let mut at = null_mut();
        // SAFETY: a result that lives while the call runs.
        let code = unsafe { (self.driver.allocate_host)(&mut at, bytes) };
        self.check(code)
            .with_context(|| format!("cannot allocate {bytes} bytes of pinned memory"))?;
        // SAFETY: the driver has just given this many bytes to us alone.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        Ok(HostMemory { at: at.cast(), bytes })
    }

    /// Starts a copy to the device, of as much as fits both.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn send(&self, from: &HostMemory, to: DeviceMemory) -> Result<()> {
        let bytes = from.bytes.min(to.bytes);
        // SAFETY: both have this many bytes and are never freed. The caller synchronises before it
        // changes them.
        let code = unsafe { (self.driver.to_device)(to.at, from.at.cast(), bytes, self.stream) };
        self.check(code).context("cannot copy to the device")
    }

    /// Starts a copy to the host, of as much as fits both.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn receive(&self, from: DeviceMemory, to: &mut HostMemory) -> Result<()> {
        let bytes = from.bytes.min(to.bytes);
        // SAFETY: as in `send`.
        let code = unsafe { (self.driver.to_host)(to.at.cast(), from.at, bytes, self.stream) };
        self.check(code).context("cannot copy to the host")
    }
}
