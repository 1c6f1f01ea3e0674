//! `libnvidia-ml` as a sampler uses it.

use std::ffi::{CStr, c_char};

use gpuwhy_testkit::gpu::{Machine, Quantity, ThrottleTime, UTILISATION_NS, reason};
use gpuwhy_testkit::{eventually, sys};

use crate::{Library, alone};

const NOT_SUPPORTED: u32 = 3;
const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const TIMEOUT: u32 = 10;
const GPU_IS_LOST: u32 = 15;

type Device = *mut u8;

struct Nvml(Library);

impl Nvml {
    fn init() -> Nvml {
        let nvml = Nvml(Library::load("libnvidia-ml.so.1"));
        assert_eq!(call!(nvml.0, c"nvmlInit_v2"), 0);
        nvml
    }

    fn device(&self, index: u32) -> Result<Device, u32> {
        let mut device = std::ptr::null_mut();
        match call!(self.0, c"nvmlDeviceGetHandleByIndex_v2", index => u32, &mut device => *mut Device)
        {
            0 => Ok(device),
            code => Err(code),
        }
    }

    /// One of the many functions that return a number of a device.
    fn number(&self, name: &CStr, device: Device) -> Result<u32, u32> {
        let mut value = 0;
        let symbol = self.0.symbol(name);
        // SAFETY: the functions that this is used for have this type.
        let code = unsafe {
            let function: extern "C" fn(Device, *mut u32) -> u32 = std::mem::transmute(symbol);
            function(device, &mut value)
        };
        if code == 0 { Ok(value) } else { Err(code) }
    }

    fn text(&self, name: &CStr, device: Device, room: u32) -> Result<String, u32> {
        let mut text = [0 as c_char; 96];
        let symbol = self.0.symbol(name);
        // SAFETY: as above; the buffer is at least as long as the room.
        let code = unsafe {
            let function: extern "C" fn(Device, *mut c_char, u32) -> u32 =
                std::mem::transmute(symbol);
            function(device, text.as_mut_ptr(), room)
        };
        if code != 0 {
            return Err(code);
        }
        // SAFETY: the function has ended the text with a zero.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_owned())
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Field {
    id: u32,
    scope: u32,
    at: i64,
    latency: i64,
    kind: u32,
    code: u32,
    value: u64,
}

fn fields(nvml: &Nvml, device: Device, ids: &[u32]) -> Vec<Field> {
    let mut all: Vec<Field> = ids.iter().map(|id| Field { id: *id, ..Field::default() }).collect();
    let (count, to) = (all.len() as i32, all.as_mut_ptr());
    let code = call!(nvml.0, c"nvmlDeviceGetFieldValues", device => Device, count => i32, to => *mut Field);
    assert_eq!(code, 0);
    all
}

#[test]
fn a_sampler_reads_what_was_scripted() {
    alone("nvml::a_sampler_reads_what_was_scripted", &[], |machine| {
        let nvml = Nvml::init();
        let mut count = 0;
        assert_eq!(call!(nvml.0, c"nvmlDeviceGetCount_v2", &mut count => *mut u32), 0);
        assert_eq!(count, 2);
        let device = nvml.device(1).unwrap();
        let gpu = machine.gpu(1).unwrap();
        assert_eq!(nvml.device(2), Err(INVALID_ARGUMENT));
        assert_eq!(nvml.text(c"nvmlDeviceGetName", device, 96).unwrap(), gpu.name());
        assert_eq!(nvml.text(c"nvmlDeviceGetUUID", device, 80).unwrap(), gpu.uuid_text());
        assert_eq!(nvml.number(c"nvmlDeviceGetIndex", device), Ok(1));

        gpu.set(Quantity::Temperature, 61);
        gpu.set(Quantity::Power, 333_000);
        let mut value = 0;
        let sensor = 0;
        let code = call!(nvml.0, c"nvmlDeviceGetTemperature",
            device => Device, sensor => u32, &mut value => *mut u32);
        assert_eq!((code, value), (0, 61));
        assert_eq!(nvml.number(c"nvmlDeviceGetPowerUsage", device), Ok(333_000));
        assert_eq!(nvml.number(c"nvmlDeviceGetCurrPcieLinkGeneration", device), Ok(5));
        gpu.pcie_link(3, 8);
        assert_eq!(nvml.number(c"nvmlDeviceGetCurrPcieLinkGeneration", device), Ok(3));
        assert_eq!(nvml.number(c"nvmlDeviceGetCurrPcieLinkWidth", device), Ok(8));
        assert_eq!(nvml.number(c"nvmlDeviceGetMaxPcieLinkWidth", device), Ok(16));
        assert_eq!(nvml.number(c"nvmlDeviceGetFanSpeed", device), Err(NOT_SUPPORTED));
    });
}

#[test]
fn a_throttle_shows_at_once_and_stays_in_the_counters() {
    alone("nvml::a_throttle_shows_at_once_and_stays_in_the_counters", &[], |machine| {
        let nvml = Nvml::init();
        let device = nvml.device(0).unwrap();
        let gpu = machine.gpu(0).unwrap();
        let reasons = |name| {
            let mut bits = 0u64;
            let symbol = nvml.0.symbol(name);
            // SAFETY: both names have this type.
            let code = unsafe {
                let function: extern "C" fn(Device, *mut u64) -> u32 = std::mem::transmute(symbol);
                function(device, &mut bits)
            };
            assert_eq!(code, 0);
            bits
        };
        assert_eq!(reasons(c"nvmlDeviceGetCurrentClocksEventReasons"), reason::IDLE);
        gpu.throttle(reason::HW_THERMAL | reason::HW_SLOWDOWN, 600, sys::now());
        for name in [
            c"nvmlDeviceGetCurrentClocksEventReasons",
            c"nvmlDeviceGetCurrentClocksThrottleReasons",
        ] {
            assert_eq!(reasons(name) & !reason::IDLE, 0x48);
        }
        let mut clock = 0;
        let sm = 1;
        call!(nvml.0, c"nvmlDeviceGetClockInfo",
            device => Device, sm => u32, &mut clock => *mut u32);
        assert_eq!(clock, 600);
        sys::sleep_until(sys::now() + 3_000_000);
        gpu.heal(sys::now());
        // An unknown field does not affect the others.
        let read = fields(&nvml, device, &[74, 75, 9999, 269, 270, 271]);
        let codes: Vec<u32> = read.iter().map(|f| f.code).collect();
        assert_eq!(codes, [0, 0, NOT_SUPPORTED, 0, 0, 0]);
        let exact = gpu.throttle_time(ThrottleTime::HwThermal, sys::now());
        assert!(exact >= 3_000_000);
        let values: Vec<u64> = read.iter().map(|f| f.value).collect();
        assert_eq!(values, [0, exact, 0, 0, exact, 0]);
        assert!(read[0].at > 1_000_000_000_000_000, "µs of CLOCK_REALTIME: {}", read[0].at);
    });
}

#[test]
fn small_buffers_and_null_pointers_are_refused_as_by_the_real_library() {
    let name = "nvml::small_buffers_and_null_pointers_are_refused_as_by_the_real_library";
    alone(name, &[], |machine| {
        let nvml = Nvml::init();
        let device = nvml.device(0).unwrap();
        assert_eq!(nvml.text(c"nvmlDeviceGetUUID", device, 40), Err(INSUFFICIENT_SIZE));
        assert_eq!(nvml.text(c"nvmlDeviceGetUUID", device, 41).unwrap().len(), 40);
        let null = std::ptr::null_mut::<u32>();
        let code = call!(nvml.0, c"nvmlDeviceGetPowerUsage", device => Device, null => *mut u32);
        assert_eq!(code, INVALID_ARGUMENT);
        let no_device = std::ptr::dangling_mut();
        assert_eq!(nvml.number(c"nvmlDeviceGetPowerUsage", no_device), Err(INVALID_ARGUMENT));

        let gpu = machine.gpu(0).unwrap();
        assert!(gpu.allocate(std::process::id(), 5 << 20, sys::now()));
        assert!(gpu.allocate(1, 7 << 20, sys::now()));
        let processes = |room: u32| {
            let mut count = room;
            // pid, memory, GPU instance and compute instance, in 24 bytes.
            let mut infos = [(0u32, 0u64, 0u32, 0u32); 4];
            let code = call!(nvml.0, c"nvmlDeviceGetComputeRunningProcesses_v3", device => Device,
                &mut count => *mut u32, infos.as_mut_ptr().cast() => *mut u8);
            (code, count)
        };
        assert_eq!(processes(0), (INSUFFICIENT_SIZE, 2));
        assert_eq!(processes(1), (INSUFFICIENT_SIZE, 2));
        assert_eq!(processes(4), (0, 2));
    });
}

#[test]
fn utilisation_lags_and_is_per_second_for_processes() {
    alone("nvml::utilisation_lags_and_is_per_second_for_processes", &[], |machine| {
        let nvml = Nvml::init();
        let device = nvml.device(0).unwrap();
        let rates = || {
            let mut rates = [0u32; 2];
            let to = rates.as_mut_ptr();
            call!(nvml.0, c"nvmlDeviceGetUtilizationRates", device => Device, to => *mut u32);
            rates[0]
        };
        assert_eq!(rates(), 0);
        let gpu = machine.gpu(0).unwrap();
        // Fills at least two whole windows; scheduled ahead, so that the test needs no timing.
        let begun = sys::now();
        gpu.launch(begun, 0, std::process::id(), 3 * UTILISATION_NS);
        assert_eq!(rates(), 0, "the window is not over");
        eventually("a full window", || rates() == 100);
        let mut samples = [(0u64, 0u64); 64];
        let (mut count, mut kind) = (64u32, 0u32);
        let (of_gpu, since) = (1u32, 0u64);
        let code = call!(nvml.0, c"nvmlDeviceGetSamples", device => Device, of_gpu => u32,
            since => u64, &mut kind => *mut u32, &mut count => *mut u32,
            samples.as_mut_ptr() => *mut (u64, u64));
        assert_eq!((code, kind), (0, 1));
        let seen = &samples[..count as usize];
        assert!(seen.windows(2).all(|w| w[1].0 - w[0].0 == UTILISATION_NS / 1000));
        assert!(seen.iter().any(|s| s.1 == 100));
        // There is no sample newer than the newest.
        let since = seen[seen.len() - 1].0;
        let code = call!(nvml.0, c"nvmlDeviceGetSamples", device => Device, of_gpu => u32,
            since => u64, &mut kind => *mut u32, &mut count => *mut u32,
            samples.as_mut_ptr() => *mut (u64, u64));
        if sys::now() < begun + 2 * UTILISATION_NS {
            assert_eq!(code, NOT_FOUND);
        }
        let mut found = [[0u32; 8]; 16];
        eventually("a second of the process", || {
            let (mut count, since) = (16u32, 0u64);
            let code = call!(nvml.0, c"nvmlDeviceGetProcessUtilization", device => Device,
                found.as_mut_ptr().cast() => *mut u32, &mut count => *mut u32, since => u64);
            code == 0 && count > 0
        });
        assert_eq!(found[0][0], std::process::id());
    });
}

#[test]
fn events_arrive_and_calls_fail_for_a_gpu_off_the_bus() {
    alone("nvml::events_arrive_and_calls_fail_for_a_gpu_off_the_bus", &[], |machine| {
        let nvml = Nvml::init();
        let (device, other) = (nvml.device(0).unwrap(), nvml.device(1).unwrap());
        let gpu = machine.gpu(0).unwrap();
        gpu.xid(13, 0, sys::now());
        let mut set = std::ptr::null_mut::<u8>();
        assert_eq!(call!(nvml.0, c"nvmlEventSetCreate", &mut set => *mut *mut u8), 0);
        let kinds = 0x8u64;
        for device in [device, other] {
            let code = call!(nvml.0, c"nvmlDeviceRegisterEvents", device => Device, kinds => u64,
                set => *mut u8);
            assert_eq!(code, 0);
        }
        let wait = |timeout: u32| {
            // Device, kind, data, and two instance ids.
            let mut event = [0u64; 4];
            let begun = sys::now();
            let code = call!(nvml.0, c"nvmlEventSetWait_v2", set => *mut u8,
                event.as_mut_ptr() => *mut u64, timeout => u32);
            (code, event[0] as usize == device as usize, event[2], sys::now() - begun)
        };
        let (code, _, _, took) = wait(30);
        assert_eq!(code, TIMEOUT, "Xids before the registration are not reported");
        assert!(took >= 30_000_000);
        gpu.xid(31, 77, sys::now());
        let (code, mine, xid, _) = wait(10_000);
        assert_eq!((code, mine, xid), (0, true, 31));

        gpu.fall_off_bus(sys::now());
        let (code, mine, xid, _) = wait(10_000);
        assert_eq!((code, mine, xid), (0, true, 79));
        assert_eq!(wait(10_000).0, GPU_IS_LOST);
        assert_eq!(nvml.device(0), Err(GPU_IS_LOST));
        for name in [
            c"nvmlDeviceGetPowerUsage",
            c"nvmlDeviceGetPcieReplayCounter",
            c"nvmlDeviceGetIndex",
            c"nvmlDeviceGetCurrPcieLinkWidth",
        ] {
            assert_eq!(nvml.number(name, device), Err(GPU_IS_LOST), "{name:?}");
            assert!(nvml.number(name, other).is_ok(), "{name:?}");
        }
        assert_eq!(nvml.text(c"nvmlDeviceGetUUID", device, 80), Err(GPU_IS_LOST));
        gpu.return_to_bus();
        assert!(nvml.number(c"nvmlDeviceGetPowerUsage", device).is_ok());
        assert_eq!(call!(nvml.0, c"nvmlEventSetFree", set => *mut u8), 0);
        assert_eq!(wait(0).0, INVALID_ARGUMENT);
        assert_eq!(call!(nvml.0, c"nvmlShutdown"), 0);
        assert_eq!(nvml.number(c"nvmlDeviceGetPowerUsage", other), Err(1), "uninitialized");
    });
}

#[test]
fn mig_instances_have_handles_and_their_gpu_has_no_utilisation() {
    let name = "nvml::mig_instances_have_handles_and_their_gpu_has_no_utilisation";
    alone(name, &[], |machine: &Machine| {
        let nvml = Nvml::init();
        let device = nvml.device(0).unwrap();
        machine.gpu(0).unwrap().set_mig(2);
        let instance = |index: u32| {
            let mut mig = std::ptr::null_mut();
            let code = call!(nvml.0, c"nvmlDeviceGetMigDeviceHandleByIndex", device => Device,
                index => u32, &mut mig => *mut Device);
            if code == 0 { Ok(mig) } else { Err(code) }
        };
        let second = instance(1).unwrap();
        assert_eq!(instance(2), Err(NOT_FOUND));
        let uuid = nvml.text(c"nvmlDeviceGetUUID", second, 80).unwrap();
        assert!(uuid.starts_with("MIG-"), "{uuid}");
        assert_eq!(nvml.number(c"nvmlDeviceGetGpuInstanceId", second), Ok(2));
        let mut rates = [0u32; 2];
        let to = rates.as_mut_ptr();
        let code =
            call!(nvml.0, c"nvmlDeviceGetUtilizationRates", device => Device, to => *mut u32);
        assert_eq!(code, NOT_SUPPORTED);
    });
}
