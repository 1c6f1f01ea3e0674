//! PCIe and NVLink.

use std::ffi::{c_uint, c_ulonglong};

use gpuwhy_testkit::gpu::{Gpu, Quantity};
use gpuwhy_testkit::sys;

use super::handle::Device;
use super::{Code, Status, status};
use crate::c::Out;
use crate::machine::now;

/// Fails if the GPU does not have this NVLink.
pub(super) fn link(gpu: &Gpu, link: c_uint) -> Status {
    if u64::from(link) < gpu.get(Quantity::NvLinks) { Ok(()) } else { Err(Code::InvalidArgument) }
}

/// MB/s of a lane and direction, by generation.
fn pcie_speed(generation: u64) -> c_uint {
    match generation {
        1 => 2500,
        2 => 5000,
        3 => 8000,
        4 => 16000,
        5 => 32000,
        _ => 64000,
    }
}

exported! {
    fn nvmlDeviceGetPcieThroughput(device: Device, counter: c_uint, to: Out<c_uint>) {
        let gpu = device.gpu()?;
        let quantity = match counter {
            0 => Quantity::PcieTx,
            1 => Quantity::PcieRx,
            _ => return Err(Code::InvalidArgument),
        };
        // The real library measures for 20 ms, and the caller waits.
        let (before, from) = (gpu.get(quantity), now());
        sys::sleep_until(from + 20_000_000);
        let bytes = gpu.get(quantity) - before;
        let ns = (now() - from).max(1);
        // KB/s.
        Ok(to.put((bytes as u128 * 1_000_000 / ns as u128) as c_uint)?)
    }

    fn nvmlDeviceGetPcieReplayCounter(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.get(Quantity::PcieReplays) as c_uint)?)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.get(Quantity::PcieGeneration) as c_uint)?)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.get(Quantity::PcieWidth) as c_uint)?)
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.get(Quantity::PcieGenerationMax) as c_uint)?)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.get(Quantity::PcieWidthMax) as c_uint)?)
    }

    fn nvmlDeviceGetPcieSpeed(device: Device, to: Out<c_uint>) {
        Ok(to.put(pcie_speed(device.gpu()?.get(Quantity::PcieGeneration)))?)
    }

    fn nvmlDeviceGetPcieLinkMaxSpeed(device: Device, to: Out<c_uint>) {
        let generation = device.gpu()?.get(Quantity::PcieGenerationMax);
        // nvmlPcieLinkMaxSpeed: 1 is 2.5 GT/s, 5 is 32 GT/s.
        Ok(to.put(generation.min(6) as c_uint)?)
    }

    fn nvmlDeviceGetNvLinkState(device: Device, of: c_uint, to: Out<c_uint>) {
        // The real library accepts any of the 18 links that a board may have.
        let gpu = device.gpu()?;
        if of >= 18 {
            return Err(Code::InvalidArgument);
        }
        Ok(to.put(u32::from(link(gpu, of).is_ok()))?)
    }

    fn nvmlDeviceGetNvLinkVersion(device: Device, of: c_uint, to: Out<c_uint>) {
        link(device.gpu()?, of)?;
        Ok(to.put(4)?)
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        device: Device, of: c_uint, counter: c_uint, to: Out<c_ulonglong>,
    ) {
        let gpu = device.gpu()?;
        link(gpu, of)?;
        let total = match counter {
            0 => gpu.get(Quantity::NvLinkReplays),
            1 => gpu.get(Quantity::NvLinkRecoveries),
            2 => gpu.get(Quantity::NvLinkCrc),
            3 => 0,
            4 => return Err(Code::NotSupported),
            _ => return Err(Code::InvalidArgument),
        };
        // All errors are counted at the first link.
        Ok(to.put(if of == 0 { total } else { 0 })?)
    }
}
