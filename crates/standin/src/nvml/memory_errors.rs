//! ECC errors, remapped rows and retired pages.

use std::ffi::{c_uint, c_ulonglong};

use gpuwhy_testkit::gpu::Quantity;

use super::handle::{Device, fill, initialized, micros};
use super::{Code, Status, status};
use crate::c::Out;

exported! {
    fn nvmlDeviceGetEccMode(device: Device, current: Out<c_uint>, pending: Out<c_uint>) {
        let on = device.gpu()?.get(Quantity::Ecc) as c_uint;
        current.put(on)?;
        Ok(pending.put(on)?)
    }

    fn nvmlDeviceGetTotalEccErrors(
        device: Device, kind: c_uint, _counter: c_uint, to: Out<c_ulonglong>,
    ) {
        Ok(to.put(ecc_errors(device, kind)?)?)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        device: Device, kind: c_uint, _counter: c_uint, location: c_uint, to: Out<c_ulonglong>,
    ) {
        let errors = ecc_errors(device, kind)?;
        // All errors are in NVML_MEMORY_LOCATION_DEVICE_MEMORY.
        Ok(to.put(if location == 2 { errors } else { 0 })?)
    }

    fn nvmlDeviceGetRemappedRows(
        device: Device, corrected: Out<c_uint>, uncorrected: Out<c_uint>, pending: Out<c_uint>,
        failed: Out<c_uint>,
    ) {
        let gpu = device.gpu()?;
        corrected.put(gpu.get(Quantity::RemappedCorrectable) as c_uint)?;
        uncorrected.put(gpu.get(Quantity::RemappedUncorrectable) as c_uint)?;
        pending.put(gpu.get(Quantity::RemapPending) as c_uint)?;
        Ok(failed.put(gpu.get(Quantity::RemapFailed) as c_uint)?)
    }

    fn nvmlDeviceGetRetiredPages(
        device: Device, cause: c_uint, count: Out<c_uint>, addresses: Out<c_ulonglong>,
    ) { retired(device, cause, count, addresses, None) }

    fn nvmlDeviceGetRetiredPages_v2(
        device: Device, cause: c_uint, count: Out<c_uint>, addresses: Out<c_ulonglong>,
        timestamps: Out<c_ulonglong>,
    ) { retired(device, cause, count, addresses, Some(timestamps)) }

    fn nvmlDeviceGetRetiredPagesPendingStatus(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.get(Quantity::RemapPending) as c_uint)?)
    }
}

fn ecc_errors(device: Device, kind: c_uint) -> Result<u64, Code> {
    let gpu = device.gpu()?;
    if gpu.get(Quantity::Ecc) == 0 {
        return Err(Code::NotSupported);
    }
    match kind {
        0 => Ok(gpu.get(Quantity::EccCorrected)),
        1 => Ok(gpu.get(Quantity::EccUncorrected)),
        _ => Err(Code::InvalidArgument),
    }
}

/// All retired pages are for double-bit errors (cause 1), at the time when the machine was created.
fn retired(
    device: Device,
    cause: c_uint,
    count: Out<c_uint>,
    addresses: Out<c_ulonglong>,
    timestamps: Option<Out<c_ulonglong>>,
) -> Status {
    let gpu = device.gpu()?;
    let pages = if cause == 1 { gpu.get(Quantity::RetiredPages) } else { 0 };
    if cause > 1 {
        return Err(Code::InvalidArgument);
    }
    let found: Vec<c_ulonglong> = (0..pages).map(|page| 0x1000 * (page + 1)).collect();
    fill(&found, count, addresses)?;
    if let Some(timestamps) = timestamps.filter(|t| !t.is_null()) {
        let made = micros(initialized()?.created()) / 1_000_000;
        for page in 0..found.len() {
            timestamps.put_at(page, made)?;
        }
    }
    Ok(())
}
