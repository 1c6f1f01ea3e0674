//! A stand-in for `libamdsmi.so`, the library of the host of AMD's virtual GPUs (MxGPU-Virtualization 8.0.0.K), with its C
//! interface: one GPU, whose virtual functions had it for as long as a file says, a line of milliseconds for each function.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `GPUWHY_STANDIN_AMDSMI` | the file; without it the library does not start |

use std::ffi::{c_uint, c_void};

/// `AMDSMI_STATUS_SUCCESS`, `_INVAL`, `_NOT_FOUND`, `_NOT_INIT`.
const SUCCESS: c_uint = 0;
const INVALID: c_uint = 1;
const NOT_FOUND: c_uint = 31;
const NOT_INITIALIZED: c_uint = 32;
/// The handle of the GPU, and what handles of its functions begin at.
const GPU: usize = 0x6770;
const FUNCTIONS: u64 = 0x100;

/// How long each function had the GPU, ms.
fn had() -> Option<Vec<u64>> {
    let text = std::fs::read_to_string(std::env::var_os("GPUWHY_STANDIN_AMDSMI")?).ok()?;
    text.lines().map(|line| line.trim().parse().ok()).collect()
}

/// Writes a result where the caller wants it.
fn put<T>(to: *mut T, value: T) -> c_uint {
    if to.is_null() {
        return INVALID;
    }
    // SAFETY: by amdsmi.h a caller gives null or where it has room for the value.
    unsafe { to.write(value) };
    SUCCESS
}

/// As amdsmi.h has it.
#[unsafe(no_mangle)]
pub extern "C" fn amdsmi_init(_flags: u64) -> c_uint {
    had().map_or(NOT_INITIALIZED, |_| SUCCESS)
}

/// As amdsmi.h has it: the library does not look at the socket.
#[unsafe(no_mangle)]
pub extern "C" fn amdsmi_get_processor_handles(
    _socket: *mut c_void,
    count: *mut u32,
    handles: *mut *mut c_void,
) -> c_uint {
    match put(count, 1) {
        SUCCESS => put(handles, std::ptr::without_provenance_mut(GPU)),
        code => code,
    }
}

/// As amdsmi.h has it.
#[unsafe(no_mangle)]
pub extern "C" fn amdsmi_get_gpu_device_bdf(gpu: *mut c_void, bdf: *mut u64) -> c_uint {
    // Domain 0, bus 3, device 0, function 0.
    if gpu.addr() == GPU { put(bdf, 3 << 8) } else { NOT_FOUND }
}

/// As amdsmi.h has it.
#[unsafe(no_mangle)]
pub extern "C" fn amdsmi_get_num_vf(
    gpu: *mut c_void,
    enabled: *mut u32,
    supported: *mut u32,
) -> c_uint {
    let Some(had) = had().filter(|_| gpu.addr() == GPU) else { return NOT_FOUND };
    match put(enabled, had.len() as u32) {
        SUCCESS => put(supported, 31),
        code => code,
    }
}

/// As amdsmi.h has it.
#[unsafe(no_mangle)]
pub extern "C" fn amdsmi_get_vf_handle_from_vf_index(
    gpu: *mut c_void,
    index: u32,
    handle: *mut u64,
) -> c_uint {
    let many = had().map_or(0, |had| had.len() as u32);
    if gpu.addr() == GPU && index < many {
        put(handle, FUNCTIONS + u64::from(index))
    } else {
        NOT_FOUND
    }
}

/// `amdsmi_vf_data_t`, as far as the time that the function had the GPU, and its size.
#[repr(C)]
pub struct VfData {
    counts: [u64; 4],
    state: u32,
    dates: [[u8; 32]; 8],
    total_active_time: [u8; 32],
    total_running_time: [u8; 32],
    reserved: [u64; 11],
    guards: [u8; 512],
}

const _: () = assert!(std::mem::offset_of!(VfData, total_active_time) == 292);

/// As amdsmi.h has it.
#[unsafe(no_mangle)]
pub extern "C" fn amdsmi_get_vf_data(handle: u64, data: *mut VfData) -> c_uint {
    let had = handle.checked_sub(FUNCTIONS).and_then(|index| had()?.get(index as usize).copied());
    let Some(ms) = had else { return NOT_FOUND };
    let (seconds, fraction) = (ms / 1000, ms % 1000);
    let clock = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let text = format!("{:02}:{:02}:{:02}.{fraction:03}", clock.0, clock.1, clock.2);
    let mut total_active_time = [0; 32];
    total_active_time[..text.len()].copy_from_slice(text.as_bytes());
    put(
        data,
        VfData {
            counts: [0; 4],
            // AMDSMI_VF_STATE_ACTIVE
            state: 2,
            dates: [[0; 32]; 8],
            total_active_time,
            total_running_time: [0; 32],
            reserved: [0; 11],
            guards: [0; 512],
        },
    )
}
