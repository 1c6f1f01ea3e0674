//! Clocks, temperature, power, and why clocks are low.

use std::ffi::{c_int, c_uint, c_ulonglong};

use gpuwhy_testkit::gpu::{Gpu, Quantity, ThrottleTime};

use super::handle::{Device, initialized, micros, version_of};
use super::{Code, Status, status};
use crate::c::Out;
use crate::machine::now;

fn temperature(device: Device, sensor: c_uint) -> Result<u64, Code> {
    match sensor {
        0 => Ok(device.gpu()?.get(Quantity::Temperature)),
        _ => Err(Code::InvalidArgument),
    }
}

fn clock(device: Device, kind: c_uint, sm: Quantity, memory: Quantity) -> Result<c_uint, Code> {
    let gpu = device.gpu()?;
    match kind {
        0 | 1 => Ok(gpu.get(sm) as c_uint),
        2 => Ok(gpu.get(memory) as c_uint),
        // The video clock is about nine tenths of the SM clock.
        3 => Ok((gpu.get(sm) * 9 / 10) as c_uint),
        _ => Err(Code::InvalidArgument),
    }
}

fn reasons(device: Device, to: Out<c_ulonglong>) -> Status {
    Ok(to.put(device.gpu()?.reasons(now()))?)
}

fn supported_reasons(device: Device, to: Out<c_ulonglong>) -> Status {
    device.gpu()?;
    Ok(to.put(0x1ff)?)
}

/// `nvmlViolationTime_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ViolationTime {
    reference_us: c_ulonglong,
    violation_ns: c_ulonglong,
}

/// `nvmlTemperature_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TemperatureV1 {
    version: c_uint,
    sensor: c_uint,
    temperature: c_int,
}

/// Energy since the machine was created, mJ: 90 W when idle, 550 W more while kernels run.
pub(super) fn energy(gpu: &Gpu) -> Result<u64, Code> {
    let lived = now().saturating_sub(initialized()?.created());
    Ok(lived / 1_000_000 * 90 + gpu.busy() / 1_000_000 * 550)
}

exported! {
    fn nvmlDeviceGetTemperature(device: Device, sensor: c_uint, to: Out<c_uint>) {
        Ok(to.put(temperature(device, sensor)? as c_uint)?)
    }

    fn nvmlDeviceGetTemperatureV(device: Device, to: Out<TemperatureV1>) {
        let mut value = to.get()?;
        if value.version != version_of::<TemperatureV1>(1) {
            return Err(Code::VersionMismatch);
        }
        value.temperature = temperature(device, value.sensor)? as c_int;
        Ok(to.put(value)?)
    }

    fn nvmlDeviceGetTemperatureThreshold(device: Device, kind: c_uint, to: Out<c_uint>) {
        device.gpu()?;
        match kind {
            0 => Ok(to.put(92)?),
            1 => Ok(to.put(89)?),
            2 => Ok(to.put(95)?),
            3 => Ok(to.put(87)?),
            _ => Err(Code::NotSupported),
        }
    }

    fn nvmlDeviceGetPowerUsage(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.power(now()) as c_uint)?)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.get(Quantity::PowerLimit) as c_uint)?)
    }

    fn nvmlDeviceGetPowerManagementLimit(device: Device, to: Out<c_uint>) {
        Ok(to.put(device.gpu()?.get(Quantity::PowerLimit) as c_uint)?)
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(device: Device, to: Out<c_uint>) {
        device.gpu()?;
        Ok(to.put(700_000)?)
    }

    fn nvmlDeviceGetTotalEnergyConsumption(device: Device, to: Out<c_ulonglong>) {
        Ok(to.put(energy(device.gpu()?)?)?)
    }

    fn nvmlDeviceGetClockInfo(device: Device, kind: c_uint, to: Out<c_uint>) {
        Ok(to.put(clock(device, kind, Quantity::SmClock, Quantity::MemoryClock)?)?)
    }

    fn nvmlDeviceGetMaxClockInfo(device: Device, kind: c_uint, to: Out<c_uint>) {
        Ok(to.put(clock(device, kind, Quantity::SmClockMax, Quantity::MemoryClockMax)?)?)
    }

    fn nvmlDeviceGetApplicationsClock(device: Device, kind: c_uint, to: Out<c_uint>) {
        Ok(to.put(clock(device, kind, Quantity::SmClockMax, Quantity::MemoryClockMax)?)?)
    }

    fn nvmlDeviceGetDefaultApplicationsClock(device: Device, kind: c_uint, to: Out<c_uint>) {
        Ok(to.put(clock(device, kind, Quantity::SmClockMax, Quantity::MemoryClockMax)?)?)
    }

    fn nvmlDeviceGetMaxCustomerBoostClock(device: Device, kind: c_uint, to: Out<c_uint>) {
        Ok(to.put(clock(device, kind, Quantity::SmClockMax, Quantity::MemoryClockMax)?)?)
    }

    fn nvmlDeviceGetClock(device: Device, kind: c_uint, which: c_uint, to: Out<c_uint>) {
        let (sm, memory) = match which {
            0 => (Quantity::SmClock, Quantity::MemoryClock),
            1..=3 => (Quantity::SmClockMax, Quantity::MemoryClockMax),
            _ => return Err(Code::InvalidArgument),
        };
        Ok(to.put(clock(device, kind, sm, memory)?)?)
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(device: Device, to: Out<c_ulonglong>) {
        reasons(device, to)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Device, to: Out<c_ulonglong>) {
        reasons(device, to)
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(device: Device, to: Out<c_ulonglong>) {
        supported_reasons(device, to)
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(device: Device, to: Out<c_ulonglong>) {
        supported_reasons(device, to)
    }

    fn nvmlDeviceGetViolationStatus(device: Device, policy: c_uint, to: Out<ViolationTime>) {
        let gpu = device.gpu()?;
        let at = now();
        let violation_ns = match policy {
            0 => gpu.throttle_time(ThrottleTime::Power, at),
            1 => gpu.throttle_time(ThrottleTime::Thermal, at),
            2 => gpu.throttle_time(ThrottleTime::SyncBoost, at),
            3..=5 => 0,
            10 | 11 => return Err(Code::NotSupported),
            _ => return Err(Code::InvalidArgument),
        };
        Ok(to.put(ViolationTime { reference_us: micros(at), violation_ns })?)
    }
}
