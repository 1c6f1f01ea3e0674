//! The library by which the host of AMD's virtual GPUs (driver GIM) is asked: `libamdsmi.so` of MxGPU-Virtualization, whose
//! interface is `amdsmi.h` (8.0.0.K). It is another one than ROCm's `libamd_smi.so`, and has functions of virtual functions.

use std::ffi::{OsStr, c_uint, c_void};
use std::io;

use libloading::{Library, Symbol};

/// `AMDSMI_INIT_AMD_GPUS`.
const GPUS: u64 = 1 << 1;
/// `AMDSMI_MAX_DEVICES`.
const DEVICES: usize = 32;
/// More than an `amdsmi_vf_data_t` takes, of which a version may have reserved more.
const DATA: usize = 8192;
/// Where `amdsmi_vf_data_t` has `sched.total_active_time`, and how long that is (`AMDSMI_MAX_DATE_LENGTH`).
const ACTIVE: std::ops::Range<usize> = 292..324;

type Init = unsafe extern "C" fn(u64) -> c_uint;
type Handles = unsafe extern "C" fn(*mut c_void, *mut u32, *mut *mut c_void) -> c_uint;
type Address = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_uint;
type Count = unsafe extern "C" fn(*mut c_void, *mut u32, *mut u32) -> c_uint;
type ByIndex = unsafe extern "C" fn(*mut c_void, u32, *mut u64) -> c_uint;
type Data = unsafe extern "C" fn(u64, *mut u64) -> c_uint;

/// The library, which was started. It stays loaded and started until the process ends: it has threads of its own.
#[derive(Debug)]
pub(crate) struct AmdSmi {
    library: Library,
    /// Handles of GPUs, which are addresses that the library alone looks behind.
    gpus: Vec<usize>,
}

impl AmdSmi {
    /// Loads the library at this path.
    ///
    /// # Errors
    /// It cannot be loaded, is not the host's, or does not start.
    pub fn load(path: &OsStr) -> io::Result<AmdSmi> {
        // SAFETY: loading runs what the library does at its start. Its path is the system's or was named by whoever may run
        // programs with our privileges ([`super::library_from_env`]).
        let library = unsafe { Library::new(path) }.map_err(io::Error::other)?;
        let mut smi = AmdSmi { library, gpus: Vec::new() };
        // SAFETY: the function's type by amdsmi.h; it takes a number.
        smi.call("amdsmi_init", |init: Init| unsafe { init(GPUS) })?;
        let (mut count, mut handles) = (DEVICES as u32, [std::ptr::null_mut(); DEVICES]);
        // SAFETY: by amdsmi.h; there is room for as many handles as `count` says. The socket is not looked at.
        smi.call("amdsmi_get_processor_handles", |get: Handles| unsafe {
            get(std::ptr::null_mut(), &raw mut count, handles.as_mut_ptr())
        })?;
        let found = handles.iter().take(count as usize).filter(|handle| !handle.is_null());
        smi.gpus = found.map(|handle| handle.expose_provenance()).collect();
        Ok(smi)
    }

    /// How many GPUs there are.
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    fn gpu(&self, number: usize) -> io::Result<*mut c_void> {
        let handle = self.gpus.get(number).ok_or(io::ErrorKind::NotFound)?;
        Ok(std::ptr::with_exposed_provenance_mut(*handle))
    }

    /// Where a GPU is on the PCI bus, as `0000:03:00.0`.
    ///
    /// # Errors
    /// The library does not say.
    pub fn address(&self, gpu: usize) -> io::Result<String> {
        let (handle, mut bdf) = (self.gpu(gpu)?, 0);
        // SAFETY: by amdsmi.h; the handle is one that it gave out, and `amdsmi_bdf_t` is 64 bits.
        self.call("amdsmi_get_gpu_device_bdf", |get: Address| unsafe {
            get(handle, &raw mut bdf)
        })?;
        let (domain, bus, device) = (bdf >> 16, bdf >> 8 & 0xff, bdf >> 3 & 0x1f);
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.{}", bdf & 7))
    }

    /// How many virtual functions of a GPU are enabled.
    ///
    /// # Errors
    /// The library does not say.
    pub fn functions(&self, gpu: usize) -> io::Result<u32> {
        let (handle, mut enabled, mut supported) = (self.gpu(gpu)?, 0, 0);
        // SAFETY: by amdsmi.h; the handle is one that it gave out.
        self.call("amdsmi_get_num_vf", |get: Count| unsafe {
            get(handle, &raw mut enabled, &raw mut supported)
        })?;
        Ok(enabled)
    }

    /// How long a virtual function has had its GPU since the host's driver was loaded, as the library prints it:
    /// `HH:MM:SS.mmm`.
    ///
    /// # Errors
    /// The library does not say.
    pub fn active_time(&self, gpu: usize, function: u32) -> io::Result<String> {
        let (handle, mut of) = (self.gpu(gpu)?, 0);
        // SAFETY: by amdsmi.h; the handle is one that it gave out, and `amdsmi_vf_handle_t` is 64 bits.
        self.call("amdsmi_get_vf_handle_from_vf_index", |get: ByIndex| unsafe {
            get(handle, function, &raw mut of)
        })?;
        let mut data = [0_u64; DATA / 8];
        // SAFETY: by amdsmi.h; a structure of one number of 64 bits is handed over like that number, and there is room for
        // more than an `amdsmi_vf_data_t`.
        self.call("amdsmi_get_vf_data", |get: Data| unsafe { get(of, data.as_mut_ptr()) })?;
        let bytes: Vec<u8> = data.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let text = bytes[ACTIVE].split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Calls a function of the library by its name.
    fn call<F: Copy>(&self, name: &str, call: impl FnOnce(F) -> c_uint) -> io::Result<()> {
        // SAFETY: `F` is the function's type by amdsmi.h, as each call above says; it is used while the library is loaded.
        let function: Symbol<'_, F> =
            unsafe { self.library.get(name.as_bytes()) }.map_err(io::Error::other)?;
        match call(*function) {
            0 => Ok(()),
            code => Err(io::Error::other(format!("{name} returned {code}"))),
        }
    }
}
