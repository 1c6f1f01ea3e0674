//! Initialisation, and the devices of the program.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use gpuwhy_testkit::gpu::Quantity;

use super::driver::{INITIALIZED, device, gpu_of, ready, visible};
use super::execute::ARCH;
use super::{Code, Status, status};
use crate::c::{self, Out};
use crate::machine::{cuda_version, machine};

/// Loads what `CUDA_INJECTION64_PATH` names, once.
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

fn uuid(to: Out<[u8; 16]>, ordinal: c_int) -> Status {
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
        // The injected object may call the driver.
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
            // CU_DEVICE_ATTRIBUTE: clock in kHz, multiprocessors, PCI bus, device and domain, and
            // the two numbers of the compute capability.
            13 => gpu.get(Quantity::SmClockMax) as c_int * 1000,
            16 => 132,
            33 => bus as c_int,
            34 => slot as c_int,
            50 => domain as c_int,
            75 => (ARCH / 10) as c_int,
            76 => (ARCH % 10) as c_int,
            _ => 0,
        })?)
    }
}
