//! MIG.

use std::ffi::c_uint;

use gpuwhy_testkit::gpu::Quantity;

use super::handle::Device;
use super::{Code, status};
use crate::c::Out;

exported! {
    fn nvmlDeviceGetMigMode(device: Device, current: Out<c_uint>, pending: Out<c_uint>) {
        let on = device.gpu()?.get(Quantity::Mig) as c_uint;
        current.put(on)?;
        Ok(pending.put(on)?)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, to: Out<c_uint>) {
        let gpu = device.gpu()?;
        // A board has 7 at most, and none without MIG.
        Ok(to.put(if gpu.get(Quantity::Mig) != 0 { 7 } else { 0 })?)
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: c_uint, to: Out<Device>) {
        let gpu = device.gpu()?;
        gpu.mig(index as usize).ok_or(Code::NotFound)?;
        Ok(to.put(Device::mig_of(device.index()?, index as usize))?)
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Device, to: Out<Device>) {
        device.any()?;
        device.instance().ok_or(Code::InvalidArgument)?;
        Ok(to.put(Device::of(device.index()?))?)
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Device, to: Out<c_uint>) {
        device.any()?;
        Ok(to.put(u32::from(device.instance().is_some()))?)
    }

    fn nvmlDeviceGetGpuInstanceId(device: Device, to: Out<c_uint>) {
        device.any()?;
        // Ids of the profile 3g.40gb begin with 1.
        Ok(to.put(device.instance().ok_or(Code::NotSupported)? as c_uint + 1)?)
    }

    fn nvmlDeviceGetComputeInstanceId(device: Device, to: Out<c_uint>) {
        device.any()?;
        device.instance().ok_or(Code::NotSupported)?;
        Ok(to.put(0)?)
    }
}
