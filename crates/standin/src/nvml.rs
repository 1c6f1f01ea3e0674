//! `libnvidia-ml`, as far as `nvml-wrapper` 0.13 and a sampler ask it.
//!
//! Handles are numbers: a GPU's, or that of one of its MIG instances. The lags are the real ones:
//! utilisation is that of the last whole 167 ms, a process's that of whole seconds, and PCIe
//! throughput is measured over 20 ms while the caller waits. Timestamps are µs of CLOCK_REALTIME.
//!
//! What fools a reader of the real library is here too: with MIG on, the GPU itself has no
//! utilisation; a GPU off the bus fails every call with 15, and the wait for events with it,
//! at once and again, so that a client which does not wait spins.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gpuwhy_testkit::gpu::{self, Gpu, Machine, Quantity, ThrottleTime, uuid_text};
use gpuwhy_testkit::sys;

use crate::c::{self, Null, Out, Static, Text};
use crate::machine::{cuda_version, epoch, machine, now};

/// `nvmlReturn_t`, those that we say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Code {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Timeout = 10,
    GpuIsLost = 15,
    VersionMismatch = 25,
    Unknown = 999,
}

impl From<Null> for Code {
    fn from(_: Null) -> Code {
        Code::InvalidArgument
    }
}

type Answer = Result<(), Code>;

fn answer(f: impl FnOnce() -> Answer) -> u32 {
    c::guarded(Code::Unknown as u32, || match f() {
        Ok(()) => 0,
        Err(code) => code as u32,
    })
}

static SESSIONS: AtomicU64 = AtomicU64::new(0);

fn initialized() -> Result<&'static Machine, Code> {
    if SESSIONS.load(Relaxed) == 0 {
        return Err(Code::Uninitialized);
    }
    machine().ok_or(Code::Uninitialized)
}

/// `nvmlDevice_t`. A number that is far from a pointer anybody has, with the GPU's index in
/// bits 8 and up, and 1 + the MIG instance in the lowest.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device(usize);

const HANDLES: usize = 0x6e76_0000;

impl Device {
    fn of(gpu: usize) -> Device {
        Device(HANDLES | (gpu << 8))
    }

    fn mig_of(gpu: usize, instance: usize) -> Device {
        Device(HANDLES | (gpu << 8) | (instance + 1))
    }

    fn index(self) -> Result<usize, Code> {
        if self.0 & !0xffff != HANDLES {
            return Err(Code::InvalidArgument);
        }
        Ok((self.0 >> 8) & 0xff)
    }

    /// The MIG instance, if it is one.
    fn instance(self) -> Option<usize> {
        (self.0 & 0xff).checked_sub(1)
    }

    /// The GPU, also that of an instance, if it answers.
    fn any(self) -> Result<&'static Gpu, Code> {
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

    /// The whole GPU; an instance is not asked for such things.
    fn gpu(self) -> Result<&'static Gpu, Code> {
        let gpu = self.any()?;
        if self.instance().is_none() { Ok(gpu) } else { Err(Code::NotSupported) }
    }
}

fn text(to: Out<c_char>, room: c_uint, text: &str) -> Answer {
    match c::put_text(to, room as usize, text)? {
        true => Ok(()),
        false => Err(Code::InsufficientSize),
    }
}

fn micros(monotonic: u64) -> u64 {
    (monotonic + epoch()) / 1000
}

fn monotonic(micros: u64) -> u64 {
    (micros * 1000).saturating_sub(epoch())
}

/// Fills an array whose room is in `count`; sets the count, and fails if there is not the room.
fn fill<T: Copy>(items: &[T], count: Out<c_uint>, array: Out<T>) -> Answer {
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

fn begin() -> Answer {
    machine().ok_or(Code::DriverNotLoaded)?;
    SESSIONS.fetch_add(1, Relaxed);
    Ok(())
}

exported! {
    fn nvmlInit_v2() { begin() }
    fn nvmlInit() { begin() }
    fn nvmlInitWithFlags(_flags: c_uint) { begin() }

    fn nvmlShutdown() {
        match SESSIONS.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(Code::Uninitialized),
        }
    }

    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) {
        initialized()?;
        text(version, length, if cuda_version() >= 13000 { "580.126.09" } else { "570.86.10" })
    }

    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) {
        initialized()?;
        text(version, length, if cuda_version() >= 13000 { "13.580.126.09" } else { "12.570.86.10" })
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) {
        Ok(version.put(cuda_version() as c_int)?)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        Ok(version.put(cuda_version() as c_int)?)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, name: Out<c_char>, length: c_uint) {
        initialized()?;
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let comm = comm.map_err(|_| Code::NotFound)?;
        // The real one cuts it to the room that there is.
        let kept: String = comm.trim_end().chars().take((length as usize).saturating_sub(1)).collect();
        text(name, length, &kept)
    }
}

/// What a code means. Not a code itself, so apart from the others.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: u32) -> Static {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        13 => c"Function Not Found",
        15 => c"GPU is lost",
        25 => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    }
    .into()
}

// Which devices there are.

fn count(to: Out<c_uint>) -> Answer {
    Ok(to.put(initialized()?.count() as c_uint)?)
}

fn by_index(index: c_uint, to: Out<Device>) -> Answer {
    let gpu = initialized()?.gpu(index as usize).ok_or(Code::InvalidArgument)?;
    if !gpu.present() {
        return Err(Code::GpuIsLost);
    }
    Ok(to.put(Device::of(index as usize))?)
}

fn by_bus(bus: Text, to: Out<Device>) -> Answer {
    let machine = initialized()?;
    let wanted = bus.get()?.to_ascii_uppercase();
    // The domain may have four or eight digits, or be left out.
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

fn pci_info(device: Device, to: Out<PciInfo>) -> Answer {
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
        // NVML_GPU_VIRTUALIZATION_MODE_NONE
        Ok(to.put(0)?)
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

fn cpu_affinity(device: Device, words: c_uint, set: Out<c_ulong>) -> Answer {
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

// Clocks, temperature, power.

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
        // The video clock follows the SM's at about nine tenths.
        3 => Ok((gpu.get(sm) * 9 / 10) as c_uint),
        _ => Err(Code::InvalidArgument),
    }
}

fn reasons(device: Device, to: Out<c_ulonglong>) -> Answer {
    Ok(to.put(device.gpu()?.reasons(now()))?)
}

fn supported_reasons(device: Device, to: Out<c_ulonglong>) -> Answer {
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

fn version_of<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}

/// mJ since the machine was made: so much a second when idle, and more while kernels run.
fn energy(gpu: &Gpu) -> Result<u64, Code> {
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

// Utilisation and processes.

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlValue_t`; we only ever fill it with whole numbers, and the low half of a little-endian one
/// is the number of 32 bits.
type Value = u64;

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

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessV1 {
    pid: c_uint,
    memory: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which is that of the functions `_v3` too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessV2 {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}
const _: () = assert!(size_of::<ProcessV1>() == 16 && size_of::<ProcessV2>() == 24);

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

/// A GPU that has a utilisation of its own.
fn whole(device: Device) -> Result<&'static Gpu, Code> {
    let gpu = device.gpu()?;
    if gpu.get(Quantity::Mig) != 0 { Err(Code::NotSupported) } else { Ok(gpu) }
}

fn processes_v1(device: Device, count: Out<c_uint>, infos: Out<ProcessV1>) -> Answer {
    let found = device.any()?.processes();
    let found: Vec<ProcessV1> =
        found.iter().map(|p| ProcessV1 { pid: p.pid, memory: p.memory }).collect();
    fill(&found, count, infos)
}

fn processes_v2(device: Device, count: Out<c_uint>, infos: Out<ProcessV2>) -> Answer {
    let found = device.any()?.processes();
    // No instance is told as all bits; the processes of a cut GPU are all in its first one.
    let instance = if device.instance() == Some(0) { 1 } else { u32::MAX };
    let inside = |p: &gpu::Process| ProcessV2 {
        pid: p.pid,
        memory: p.memory,
        gpu_instance: instance,
        compute_instance: if instance == u32::MAX { u32::MAX } else { 0 },
    };
    let found: Vec<ProcessV2> = match device.instance() {
        Some(1..) => Vec::new(),
        _ => found.iter().map(inside).collect(),
    };
    fill(&found, count, infos)
}

/// No process draws.
fn no_processes(device: Device, count: Out<c_uint>) -> Answer {
    device.any()?;
    Ok(count.put(0)?)
}

fn memory(device: Device) -> Result<(u64, u64), Code> {
    let gpu = device.any()?;
    Ok(match device.instance().and_then(|i| gpu.mig(i)) {
        Some((_, total)) => (total, gpu.memory_used().min(total)),
        None => (gpu.get(Quantity::MemoryTotal), gpu.memory_used()),
    })
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
            // As the real one: how many there may be at most.
            return Ok(count.put(64)?);
        }
        if found.is_empty() {
            return Err(Code::NotFound);
        }
        // Here the room is a wish: as many as fit, the oldest first.
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

    fn nvmlDeviceGetComputeRunningProcesses(
        device: Device, count: Out<c_uint>, infos: Out<ProcessV1>,
    ) { processes_v1(device, count, infos) }
    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: Device, count: Out<c_uint>, infos: Out<ProcessV2>,
    ) { processes_v2(device, count, infos) }
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: Device, count: Out<c_uint>, infos: Out<ProcessV2>,
    ) { processes_v2(device, count, infos) }
    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: Device, count: Out<c_uint>, _infos: Out<ProcessV1>,
    ) { no_processes(device, count) }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: Device, count: Out<c_uint>, _infos: Out<ProcessV2>,
    ) { no_processes(device, count) }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: Device, count: Out<c_uint>, _infos: Out<ProcessV2>,
    ) { no_processes(device, count) }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: Device, count: Out<c_uint>, _infos: Out<ProcessV2>,
    ) { no_processes(device, count) }

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

/// Process, µs, percent.
fn process_samples(device: Device, last_seen: u64) -> Result<Vec<(u32, u64, u32)>, Code> {
    let found = whole(device)?.process_utilisation(monotonic(last_seen), now());
    let told = found.into_iter().map(|(pid, end, share)| (pid, micros(end), share));
    Ok(told.filter(|(_, at, _)| *at > last_seen).collect())
}

// PCIe, NVLink, memory errors.

fn link(gpu: &Gpu, link: c_uint) -> Answer {
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
        // The real one measures for 20 ms, and the caller waits.
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
        // The real one asks for a link that the board could have, of 18.
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
        // All errors are those of the first link.
        Ok(to.put(if of == 0 { total } else { 0 })?)
    }

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
        // NVML_MEMORY_LOCATION_DEVICE_MEMORY has them all.
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

/// Retired pages are all for double-bit errors (cause 1), since the machine was made.
fn retired(
    device: Device,
    cause: c_uint,
    count: Out<c_uint>,
    addresses: Out<c_ulonglong>,
    timestamps: Option<Out<c_ulonglong>>,
) -> Answer {
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

// Field values.

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    at_us: i64,
    latency_us: i64,
    value_type: c_uint,
    code: c_uint,
    value: Value,
}
const _: () = assert!(size_of::<FieldValue>() == 40);

/// `nvmlValueType_t`.
const UINT: c_uint = 1;
const ULONGLONG: c_uint = 3;

fn field(gpu: &Gpu, id: c_uint, scope: c_uint, at: u64) -> Result<(c_uint, u64), Code> {
    let plain = |quantity| Ok((UINT, gpu.get(quantity)));
    let long = |quantity| Ok((ULONGLONG, gpu.get(quantity)));
    let held = |held| Ok((ULONGLONG, gpu.throttle_time(held, at)));
    // Counters of a link: its number is the scope; all bits are the sum.
    let of_link = |quantity| match scope {
        0 | u32::MAX => Ok((ULONGLONG, gpu.get(quantity))),
        scope => link(gpu, scope).map(|()| (ULONGLONG, 0)),
    };
    match id {
        1 | 2 => plain(Quantity::Ecc),
        3 | 5 => long(Quantity::EccCorrected),
        4 | 6 => long(Quantity::EccUncorrected),
        30 => plain(Quantity::RetiredPages),
        29 => Ok((UINT, 0)),
        38 => long(Quantity::NvLinkCrc),
        52 => long(Quantity::NvLinkReplays),
        59 => long(Quantity::NvLinkRecoveries),
        74 => held(ThrottleTime::Power),
        75 => held(ThrottleTime::Thermal),
        76 => held(ThrottleTime::SyncBoost),
        77..=79 => Ok((ULONGLONG, 0)),
        82 => Ok((UINT, gpu.get(Quantity::Temperature) + 6)),
        83 | 191 => Ok((ULONGLONG, energy(gpu)?)),
        91 => plain(Quantity::NvLinks),
        94 => plain(Quantity::PcieReplays),
        95 => plain(Quantity::PcieReplayRollovers),
        138 | 140 => of_link(Quantity::NvLinkTx),
        139 | 141 => of_link(Quantity::NvLinkRx),
        142 => plain(Quantity::RemappedCorrectable),
        143 => plain(Quantity::RemappedUncorrectable),
        144 => plain(Quantity::RemapPending),
        145 => plain(Quantity::RemapFailed),
        161 => of_link(Quantity::NvLinkReplays),
        162 => of_link(Quantity::NvLinkRecoveries),
        163 => of_link(Quantity::NvLinkCrc),
        169 => plain(Quantity::PcieRecoveries),
        173 => plain(Quantity::PcieCorrectable),
        // Replays are asked for by NAKs.
        174 => plain(Quantity::PcieReplays),
        175..=183 => Ok((UINT, 0)),
        185 | 186 => Ok((UINT, gpu.power(at))),
        189 => Ok((UINT, 700_000)),
        190 => plain(Quantity::PowerLimit),
        197 => long(Quantity::PcieTx),
        198 => long(Quantity::PcieRx),
        269 => held(ThrottleTime::SwThermal),
        270 => held(ThrottleTime::HwThermal),
        271 => held(ThrottleTime::PowerBrake),
        _ => Err(Code::NotSupported),
    }
}

exported! {
    fn nvmlDeviceGetFieldValues(device: Device, count: c_int, values: Out<FieldValue>) {
        let gpu = device.gpu()?;
        if count < 1 || values.is_null() {
            return Err(Code::InvalidArgument);
        }
        for i in 0..count as usize {
            let mut value = values.get_at(i)?;
            let at = now();
            value.at_us = micros(at) as i64;
            value.latency_us = 1;
            match field(gpu, value.field, value.scope, at) {
                Ok((kind, number)) => {
                    (value.value_type, value.code, value.value) = (kind, 0, number);
                }
                Err(code) => value.code = code as c_uint,
            }
            values.put_at(i, value)?;
        }
        Ok(())
    }
}

// MIG.

exported! {
    fn nvmlDeviceGetMigMode(device: Device, current: Out<c_uint>, pending: Out<c_uint>) {
        let on = device.gpu()?.get(Quantity::Mig) as c_uint;
        current.put(on)?;
        Ok(pending.put(on)?)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, to: Out<c_uint>) {
        let gpu = device.gpu()?;
        // The real limit of a board is 7; without MIG there is none.
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
        // Ids of 3g.40gb begin with 1.
        Ok(to.put(device.instance().ok_or(Code::NotSupported)? as c_uint + 1)?)
    }

    fn nvmlDeviceGetComputeInstanceId(device: Device, to: Out<c_uint>) {
        device.any()?;
        device.instance().ok_or(Code::NotSupported)?;
        Ok(to.put(0)?)
    }
}

// Events.

const EVENT_XID: c_ulonglong = 0x8;
const EVENT_UNAVAILABLE: c_ulonglong = 0x4000;

/// `nvmlEventSet_t`: the number of a set.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct EventSet(usize);

/// `nvmlEventData_t`, that of `_v1` without its last two.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventData {
    device: Device,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}
const _: () = assert!(size_of::<EventData>() == 32);

/// As `nvmlEventSetWait` without `_v2` fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventDataV1 {
    device: Device,
    kind: c_ulonglong,
    data: c_ulonglong,
}

#[derive(Clone, Copy)]
struct Registered {
    gpu: usize,
    kinds: c_ulonglong,
    /// Xids before this one are told, or were before our time.
    next: u64,
    told_unavailable: bool,
}

static SETS: Mutex<Option<HashMap<usize, Vec<Registered>>>> = Mutex::new(None);

fn with_sets<R>(f: impl FnOnce(&mut HashMap<usize, Vec<Registered>>) -> R) -> R {
    let mut sets = SETS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    f(sets.get_or_insert_default())
}

fn wait(set: EventSet, timeout_ms: c_uint) -> Result<EventData, Code> {
    let machine = initialized()?;
    let until = now() + u64::from(timeout_ms) * 1_000_000;
    loop {
        let event = with_sets(|sets| {
            let all = sets.get_mut(&set.0).ok_or(Code::InvalidArgument)?;
            Ok::<_, Code>(all.iter_mut().find_map(|registered| next_event(machine, registered)))
        })?;
        if let Some(event) = event {
            return event;
        }
        let at = now();
        if at >= until {
            return Err(Code::Timeout);
        }
        sys::sleep_until(until.min(at + 2_000_000));
    }
}

fn next_event(machine: &Machine, registered: &mut Registered) -> Option<Result<EventData, Code>> {
    let gpu = machine.gpu(registered.gpu)?;
    let event = |kind, data| EventData {
        device: Device::of(registered.gpu),
        kind,
        data,
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    };
    while registered.next < gpu.xid_count() {
        let xid = gpu.xid_at(registered.next);
        registered.next += 1;
        if let Some(xid) = xid.filter(|_| registered.kinds & EVENT_XID != 0) {
            return Some(Ok(event(EVENT_XID, xid.number)));
        }
    }
    if gpu.present() {
        registered.told_unavailable = false;
        return None;
    }
    if registered.kinds & EVENT_UNAVAILABLE != 0 && !registered.told_unavailable {
        registered.told_unavailable = true;
        return Some(Ok(event(EVENT_UNAVAILABLE, 0)));
    }
    Some(Err(Code::GpuIsLost))
}

exported! {
    fn nvmlEventSetCreate(to: Out<EventSet>) {
        initialized()?;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let set = 0x6576_0000 + NEXT.fetch_add(1, Relaxed) as usize;
        to.put(EventSet(set))?;
        with_sets(|sets| sets.insert(set, Vec::new()));
        Ok(())
    }

    fn nvmlDeviceGetSupportedEventTypes(device: Device, to: Out<c_ulonglong>) {
        device.gpu()?;
        Ok(to.put(EVENT_XID | EVENT_UNAVAILABLE)?)
    }

    fn nvmlDeviceRegisterEvents(device: Device, kinds: c_ulonglong, set: EventSet) {
        let gpu = device.gpu()?;
        if kinds & !(EVENT_XID | EVENT_UNAVAILABLE) != 0 {
            return Err(Code::NotSupported);
        }
        let index = device.index()?;
        with_sets(|sets| -> Answer {
            let all = sets.get_mut(&set.0).ok_or(Code::InvalidArgument)?;
            all.push(Registered {
                gpu: index, kinds, next: gpu.xid_count(), told_unavailable: false,
            });
            Ok(())
        })
    }

    fn nvmlEventSetWait_v2(set: EventSet, to: Out<EventData>, timeout_ms: c_uint) {
        if to.is_null() {
            return Err(Code::InvalidArgument);
        }
        Ok(to.put(wait(set, timeout_ms)?)?)
    }

    fn nvmlEventSetWait(set: EventSet, to: Out<EventDataV1>, timeout_ms: c_uint) {
        if to.is_null() {
            return Err(Code::InvalidArgument);
        }
        let event = wait(set, timeout_ms)?;
        Ok(to.put(EventDataV1 { device: event.device, kind: event.kind, data: event.data })?)
    }

    fn nvmlEventSetFree(set: EventSet) {
        initialized()?;
        match with_sets(|sets| sets.remove(&set.0)) {
            Some(_) => Ok(()),
            None => Err(Code::InvalidArgument),
        }
    }
}

/// Functions that are there and that nobody has scripted. They look at no argument, so those of
/// any number may be given (the caller cleans up, in the C conventions of Linux).
macro_rules! unsupported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> u32 {
            match initialized() {
                Ok(_) => Code::NotSupported as u32,
                Err(code) => code as u32,
            }
        }
    )*};
}

unsupported! {
    nvmlDeviceGetFanSpeed nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetNumFans
    nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization
    nvmlDeviceGetEncoderStats nvmlDeviceGetEncoderSessions nvmlDeviceGetEncoderCapacity
    nvmlDeviceGetFBCStats nvmlDeviceGetFBCSessions
    nvmlDeviceGetDetailedEccErrors nvmlDeviceGetComputeMode nvmlDeviceGetPersistenceMode
    nvmlDeviceGetPowerState nvmlDeviceGetPowerManagementMode
    nvmlDeviceGetPowerManagementLimitConstraints nvmlDeviceGetAccountingMode
    nvmlDeviceGetAccountingPids nvmlDeviceGetAccountingStats
    nvmlDeviceGetNvLinkUtilizationCounter nvmlDeviceGetNvLinkUtilizationControl
    nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetTopologyCommonAncestor
    nvmlDeviceGetP2PStatus nvmlDeviceGetAttributes_v2 nvmlDeviceGetVbiosVersion
    nvmlDeviceGetInforomVersion nvmlDeviceGetInforomImageVersion nvmlDeviceGetBoardId
    nvmlDeviceGetBoardPartNumber nvmlDeviceGetNumGpuCores nvmlDeviceGetMemoryBusWidth
    nvmlDeviceGetPowerSource nvmlDeviceGetIrqNum nvmlDeviceGetBusType
    nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetAutoBoostedClocksEnabled nvmlDeviceGetMinMaxClockOfPState
    nvmlDeviceGetDisplayMode nvmlDeviceGetDisplayActive nvmlDeviceGetMultiGpuBoard
    nvmlDeviceGetGspFirmwareMode nvmlDeviceGetGspFirmwareVersion
    nvmlDeviceGetMemoryAffinity nvmlDeviceSetPersistenceMode
    nvmlGpmQueryDeviceSupport nvmlGpmSampleAlloc nvmlGpmSampleFree nvmlGpmSampleGet
    nvmlGpmMetricsGet
}
