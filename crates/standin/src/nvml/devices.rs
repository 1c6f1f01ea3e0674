//! Which devices there are, and what they are.

use std::ffi::{c_char, c_int, c_uint, c_ulong};

use gpuwhy_testkit::gpu::{self, Gpu, uuid_text};
use gpuwhy_testkit::sys;

use super::handle::{Device, initialized, text};
use super::{Code, Status, status};
use crate::c::{self, Out, Text};

fn count(to: Out<c_uint>) -> Status {
    Ok(to.put(initialized()?.count() as c_uint)?)
}

fn by_index(index: c_uint, to: Out<Device>) -> Status {
    let gpu = initialized()?.gpu(index as usize).ok_or(Code::InvalidArgument)?;
    if !gpu.present() {
        return Err(Code::GpuIsLost);
    }
    Ok(to.put(Device::of(index as usize))?)
}

fn by_bus(bus: Text, to: Out<Device>) -> Status {
    let machine = initialized()?;
    let wanted = bus.get()?.to_ascii_uppercase();
    // The domain may have eight digits, four, or be left out.
    let same = |gpu: &Gpu| {
        let full = gpu.bus_text();
        [&full[..], &full[4..], &full[9..]].contains(&&*wanted)
    };
    let index = machine.gpus().iter().position(same).ok_or(Code::NotFound)?;
    by_index(index as c_uint, to)
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PciInfo {
    bus_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem: c_uint,
    bus_id: [c_char; 32],
}
const _: () = assert!(size_of::<PciInfo>() == 68);

fn pci_info(device: Device, to: Out<PciInfo>) -> Status {
    let gpu = device.gpu()?;
    let (domain, bus, slot) = gpu.bus();
    let full = gpu.bus_text();
    Ok(to.put(PciInfo {
        bus_legacy: c::chars(&full[4..]),
        domain,
        bus,
        device: slot,
        device_id: 0x2330_10de,
        subsystem: 0x16c1_10de,
        bus_id: c::chars(&full),
    })?)
}

exported! {
    fn nvmlDeviceGetCount_v2(to: Out<c_uint>) { count(to) }
    fn nvmlDeviceGetCount(to: Out<c_uint>) { count(to) }
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: Out<Device>) { by_index(index, to) }
    fn nvmlDeviceGetHandleByIndex(index: c_uint, to: Out<Device>) { by_index(index, to) }
    fn nvmlDeviceGetHandleByPciBusId_v2(bus: Text, to: Out<Device>) { by_bus(bus, to) }
    fn nvmlDeviceGetHandleByPciBusId(bus: Text, to: Out<Device>) { by_bus(bus, to) }
    fn nvmlDeviceGetPciInfo_v3(device: Device, to: Out<PciInfo>) { pci_info(device, to) }
    fn nvmlDeviceGetPciInfo_v2(device: Device, to: Out<PciInfo>) { pci_info(device, to) }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, to: Out<Device>) {
        let machine = initialized()?;
        let wanted = uuid.get()?;
        for (index, gpu) in machine.gpus().iter().enumerate() {
            if gpu.uuid_text() == wanted {
                return by_index(index as c_uint, to);
            }
            for instance in 0..gpu::MIGS {
                if gpu.mig(instance).is_some_and(|m| uuid_text("MIG-", &m.0) == wanted) {
                    return Ok(to.put(Device::mig_of(index, instance))?);
                }
            }
        }
        Err(Code::NotFound)
    }

    fn nvmlDeviceGetName(device: Device, name: Out<c_char>, length: c_uint) {
        let gpu = device.any()?;
        match device.instance() {
            None => text(name, length, &gpu.name()),
            Some(_) => text(name, length, &format!("{} MIG 3g.40gb", gpu.name())),
        }
    }

    fn nvmlDeviceGetUUID(device: Device, uuid: Out<c_char>, length: c_uint) {
        let gpu = device.any()?;
        match device.instance().and_then(|i| gpu.mig(i)) {
            None => text(uuid, length, &gpu.uuid_text()),
            Some((of_instance, _)) => text(uuid, length, &uuid_text("MIG-", &of_instance)),
        }
    }

    fn nvmlDeviceGetSerial(device: Device, serial: Out<c_char>, length: c_uint) {
        device.gpu()?;
        text(serial, length, &format!("165012300{:04}", device.index()?))
    }

    fn nvmlDeviceGetIndex(device: Device, to: Out<c_uint>) {
        device.any()?;
        Ok(to.put(device.instance().map_or(device.index()?, |i| i) as c_uint)?)
    }

    fn nvmlDeviceGetMinorNumber(device: Device, to: Out<c_uint>) {
        device.gpu()?;
        Ok(to.put(device.index()? as c_uint)?)
    }

    fn nvmlDeviceGetBrand(device: Device, to: Out<c_uint>) {
        device.gpu()?;
        // NVML_BRAND_NVIDIA
        Ok(to.put(14)?)
    }

    fn nvmlDeviceGetArchitecture(device: Device, to: Out<c_uint>) {
        device.gpu()?;
        // NVML_DEVICE_ARCH_HOPPER
        Ok(to.put(9)?)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<c_int>, minor: Out<c_int>) {
        device.any()?;
        major.put(9)?;
        Ok(minor.put(0)?)
    }

    fn nvmlDeviceGetPerformanceState(device: Device, to: Out<c_uint>) {
        device.gpu()?;
        Ok(to.put(0)?)
    }

    fn nvmlDeviceGetVirtualizationMode(device: Device, to: Out<c_uint>) {
        device.gpu()?;
        // NVML_GPU_VIRTUALIZATION_MODE_NONE, or that of a host of virtual GPUs.
        Ok(to.put(if super::virtual_gpus::is_host() { 3 } else { 0 })?)
    }

    fn nvmlDeviceGetNumaNodeId(device: Device, to: Out<c_uint>) {
        device.gpu()?;
        Ok(to.put(0)?)
    }

    fn nvmlDeviceGetCpuAffinity(device: Device, words: c_uint, set: Out<c_ulong>) {
        cpu_affinity(device, words, set)
    }

    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: Device, words: c_uint, set: Out<c_ulong>, _scope: c_uint,
    ) {
        cpu_affinity(device, words, set)
    }
}

fn cpu_affinity(device: Device, words: c_uint, set: Out<c_ulong>) -> Status {
    device.gpu()?;
    if words == 0 {
        return Err(Code::InvalidArgument);
    }
    let cpus = sys::cpus();
    for word in 0..words as usize {
        let bits = cpus.iter().filter(|cpu| **cpu / 64 == word);
        set.put_at(word, bits.fold(0, |mask, cpu| mask | 1 << (cpu % 64)))?;
    }
    Ok(())
}
