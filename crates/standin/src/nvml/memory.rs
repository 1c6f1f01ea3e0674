//! Memory of a device.

use std::ffi::{c_uint, c_ulonglong};

use gpuwhy_testkit::gpu::{self, Quantity};

use super::handle::{Device, version_of};
use super::{Code, status};
use crate::c::Out;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryV1 {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

fn memory(device: Device) -> Result<(u64, u64), Code> {
    let gpu = device.any()?;
    Ok(match device.instance().and_then(|i| gpu.mig(i)) {
        Some((_, total)) => (total, gpu.memory_used().min(total)),
        None => (gpu.get(Quantity::MemoryTotal), gpu.memory_used()),
    })
}

exported! {
    fn nvmlDeviceGetMemoryInfo(device: Device, to: Out<MemoryV1>) {
        let (total, used) = memory(device)?;
        Ok(to.put(MemoryV1 { total, free: total - used, used })?)
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Device, to: Out<MemoryV2>) {
        let version = to.get()?.version;
        if version != version_of::<MemoryV2>(2) {
            return Err(Code::VersionMismatch);
        }
        let (total, used) = memory(device)?;
        let reserved = gpu::RESERVED_BYTES.min(used);
        Ok(to.put(MemoryV2 { version, total, reserved, free: total - used, used: used - reserved })?)
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Device, to: Out<MemoryV1>) {
        device.gpu()?;
        // In the order of nvmlBAR1Memory_t: total, free, used.
        Ok(to.put(MemoryV1 { total: 128 << 30, free: 127 << 30, used: 1 << 30 })?)
    }
}
