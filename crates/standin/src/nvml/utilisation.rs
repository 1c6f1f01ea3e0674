//! Utilisation of devices and of their processes.

use std::ffi::{c_uint, c_ulonglong};

use gpuwhy_testkit::gpu::{self, Gpu, Quantity};

use super::handle::{Device, fill, micros, monotonic, version_of};
use super::{Code, status};
use crate::c::Out;
use crate::machine::now;

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlValue_t`. Only whole numbers are stored; the low half is the number of 32 bits.
pub(super) type Value = u64;

/// `nvmlSample_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sample {
    at_us: c_ulonglong,
    value: Value,
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessSample {
    pid: c_uint,
    at_us: c_ulonglong,
    sm: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}
const _: () = assert!(size_of::<ProcessSample>() == 32);

/// `nvmlProcessUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessInfoSample {
    at_us: c_ulonglong,
    pid: c_uint,
    sm: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
    jpeg: c_uint,
    optical: c_uint,
}
const _: () = assert!(size_of::<ProcessInfoSample>() == 40);

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessesUtilization {
    version: c_uint,
    count: c_uint,
    last_seen_us: c_ulonglong,
    samples: Out<ProcessInfoSample>,
}

/// The GPU, if it has a utilisation of its own: not with MIG.
fn whole(device: Device) -> Result<&'static Gpu, Code> {
    let gpu = device.gpu()?;
    if gpu.get(Quantity::Mig) != 0 { Err(Code::NotSupported) } else { Ok(gpu) }
}

exported! {
    fn nvmlDeviceGetUtilizationRates(device: Device, to: Out<Utilization>) {
        let gpu = whole(device)?.utilisation(now());
        Ok(to.put(Utilization { gpu, memory: gpu / 3 })?)
    }

    fn nvmlDeviceGetSamples(
        device: Device, kind: c_uint, last_seen: c_ulonglong, value_type: Out<c_uint>,
        count: Out<c_uint>, samples: Out<Sample>,
    ) {
        let gpu = whole(device)?;
        let at = now();
        let since = monotonic(last_seen);
        let of = |value: &dyn Fn(u32) -> u64| -> Vec<Sample> {
            gpu.utilisation_samples(since, at)
                .iter()
                .map(|(end, share)| Sample { at_us: micros(*end), value: value(*share) })
                .filter(|sample| sample.at_us > last_seen)
                .collect()
        };
        let found = match kind {
            0 => of(&|share| match gpu.get(Quantity::Power) {
                0 => (90_000 + 5_500 * u64::from(share)).min(gpu.get(Quantity::PowerLimit)),
                scripted => scripted,
            }),
            1 => of(&u64::from),
            2 => of(&|share| u64::from(share / 3)),
            3 | 4 => of(&|_| 0),
            5 => of(&|_| gpu.get(Quantity::SmClock)),
            6 => of(&|_| gpu.get(Quantity::MemoryClock)),
            7..=9 => return Err(Code::NotSupported),
            _ => return Err(Code::InvalidArgument),
        };
        // NVML_VALUE_TYPE_UNSIGNED_INT
        value_type.put(1)?;
        if samples.is_null() {
            // As the real library: the most samples that there may be.
            return Ok(count.put(64)?);
        }
        if found.is_empty() {
            return Err(Code::NotFound);
        }
        // Unlike elsewhere, too little room is no error: as many as fit, the oldest first.
        let room = (count.get()? as usize).min(found.len());
        count.put(room as c_uint)?;
        for (i, sample) in found[..room].iter().enumerate() {
            samples.put_at(i, *sample)?;
        }
        Ok(())
    }

    fn nvmlDeviceGetProcessUtilization(
        device: Device, to: Out<ProcessSample>, count: Out<c_uint>, last_seen: c_ulonglong,
    ) {
        let found = process_samples(device, last_seen)?;
        let found: Vec<ProcessSample> = found
            .iter()
            .map(|(pid, at_us, sm)| ProcessSample {
                pid: *pid, at_us: *at_us, sm: *sm, memory: sm / 3, encoder: 0, decoder: 0,
            })
            .collect();
        if found.is_empty() && !to.is_null() {
            return Err(Code::NotFound);
        }
        if to.is_null() {
            count.put(found.len().max(gpu::PROCESSES) as c_uint)?;
            return Err(Code::InsufficientSize);
        }
        fill(&found, count, to)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(device: Device, to: Out<ProcessesUtilization>) {
        let mut asked = to.get()?;
        if asked.version != version_of::<ProcessesUtilization>(1) {
            return Err(Code::VersionMismatch);
        }
        let found = process_samples(device, asked.last_seen_us)?;
        let room = asked.count as usize;
        asked.count = found.len() as c_uint;
        to.put(asked)?;
        if found.is_empty() {
            return Err(Code::NotFound);
        }
        if room < found.len() {
            return Err(Code::InsufficientSize);
        }
        for (i, (pid, at_us, sm)) in found.iter().enumerate() {
            asked.samples.put_at(i, ProcessInfoSample {
                at_us: *at_us, pid: *pid, sm: *sm, memory: sm / 3,
                encoder: 0, decoder: 0, jpeg: 0, optical: 0,
            })?;
        }
        Ok(())
    }
}

/// Process, end of the second in µs, percent.
fn process_samples(device: Device, last_seen: u64) -> Result<Vec<(u32, u64, u32)>, Code> {
    let found = whole(device)?.process_utilisation(monotonic(last_seen), now());
    let samples = found.into_iter().map(|(pid, end, share)| (pid, micros(end), share));
    Ok(samples.filter(|(_, at, _)| *at > last_seen).collect())
}
