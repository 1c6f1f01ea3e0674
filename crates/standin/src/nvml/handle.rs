//! Sessions, handles of devices, and how values are passed to the caller.

use std::ffi::{c_char, c_uint};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gpuwhy_testkit::gpu::{Gpu, Machine};

use super::{Code, Status};
use crate::c::{self, Out};
use crate::machine::{epoch, machine};

/// Calls of `nvmlInit` that no `nvmlShutdown` has closed.
pub(super) static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// The machine, if there is a session.
pub(super) fn initialized() -> Result<&'static Machine, Code> {
    if SESSIONS.load(Relaxed) == 0 {
        return Err(Code::Uninitialized);
    }
    machine().ok_or(Code::Uninitialized)
}

/// `nvmlDevice_t`: a number far from any pointer, with the GPU's index in bits 8 to 15 and, for a
/// MIG instance, 1 + its index in the lowest byte.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device(usize);

const HANDLES: usize = 0x6e76_0000;

impl Device {
    /// The handle of a GPU.
    pub(super) fn of(gpu: usize) -> Device {
        Device(HANDLES | (gpu << 8))
    }

    /// The handle of a MIG instance.
    pub(super) fn mig_of(gpu: usize, instance: usize) -> Device {
        Device(HANDLES | (gpu << 8) | (instance + 1))
    }

    /// The index of the GPU.
    pub(super) fn index(self) -> Result<usize, Code> {
        if self.0 & !0xffff != HANDLES {
            return Err(Code::InvalidArgument);
        }
        Ok((self.0 >> 8) & 0xff)
    }

    /// The index of the MIG instance, if it is one.
    pub(super) fn instance(self) -> Option<usize> {
        (self.0 & 0xff).checked_sub(1)
    }

    /// The GPU, also that of an instance, if it is on the bus.
    pub(super) fn any(self) -> Result<&'static Gpu, Code> {
        let machine = initialized()?;
        let gpu = machine.gpu(self.index()?).ok_or(Code::InvalidArgument)?;
        if !gpu.present() {
            return Err(Code::GpuIsLost);
        }
        if self.instance().is_some_and(|i| gpu.mig(i).is_none()) {
            return Err(Code::InvalidArgument);
        }
        Ok(gpu)
    }

    /// The GPU; not supported for an instance.
    pub(super) fn gpu(self) -> Result<&'static Gpu, Code> {
        let gpu = self.any()?;
        if self.instance().is_none() { Ok(gpu) } else { Err(Code::NotSupported) }
    }
}

/// Copies text to the caller.
pub(super) fn text(to: Out<c_char>, room: c_uint, text: &str) -> Status {
    match c::put_text(to, room as usize, text)? {
        true => Ok(()),
        false => Err(Code::InsufficientSize),
    }
}

/// µs of CLOCK_REALTIME of a time of CLOCK_MONOTONIC in ns.
pub(super) fn micros(monotonic: u64) -> u64 {
    (monotonic + epoch()) / 1000
}

/// CLOCK_MONOTONIC in ns of a time of CLOCK_REALTIME in µs.
pub(super) fn monotonic(micros: u64) -> u64 {
    (micros * 1000).saturating_sub(epoch())
}

/// Fills an array with room for `count` items and sets the count; fails if there is too little
/// room.
pub(super) fn fill<T: Copy>(items: &[T], count: Out<c_uint>, array: Out<T>) -> Status {
    let room = count.get()? as usize;
    count.put(items.len() as c_uint)?;
    if room < items.len() {
        return Err(Code::InsufficientSize);
    }
    for (i, item) in items.iter().enumerate() {
        array.put_at(i, *item)?;
    }
    Ok(())
}

/// `NVML_STRUCT_VERSION` of a structure.
pub(super) fn version_of<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}
