//! Virtual GPUs of a host, and the log of their scheduler.
//!
//! With `GPUWHY_STANDIN_VGPUS` set the machine's driver is a host's, and each process on a GPU stands for the program that
//! holds a virtual GPU of it: its memory is that one's, its turns are those of a software runlist. The log keeps the last 200
//! times that a runlist was taken off the engine, the newest last, as the real one does.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_ulonglong};

use gpuwhy_testkit::gpu::{Gpu, Process, SLICE_NS, Turn, Turns, uuid_text};

use super::handle::{Device, fill, initialized, text};
use super::{Code, Status, status};
use crate::c::Out;
use crate::lock::Mutex;
use crate::machine::now;

/// `NVML_SCHEDULER_SW_MAX_LOG_ENTRIES`.
const ENTRIES: usize = 200;
/// The type of all virtual GPUs.
const TYPE: c_uint = 1014;
const TYPE_NAME: &str = "NVIDIA H100-40C";
/// `NVML_VGPU_SCHEDULER_ENGINE_TYPE_GRAPHICS`, `NVML_VGPU_SCHEDULER_POLICY_EQUAL_SHARE`, `NVML_VGPU_SCHEDULER_ARR_DISABLE`.
const GRAPHICS: c_uint = 1;
const EQUAL_SHARE: c_uint = 2;
const NO_ARR: c_uint = 1;

/// Whether the driver is that of a host of virtual GPUs.
pub(super) fn is_host() -> bool {
    std::env::var_os("GPUWHY_STANDIN_VGPUS").is_some()
}

/// `nvmlVgpuSchedulerLogEntry_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Entry {
    timestamp: c_ulonglong,
    time_run_total: c_ulonglong,
    time_run: c_ulonglong,
    runlist: c_uint,
    target_time_slice: c_ulonglong,
    cumulative_preemption_time: c_ulonglong,
}

/// `nvmlVgpuSchedulerLog_t`; without adaptive round robin its parameters are the time slice alone.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Log {
    engine: c_uint,
    policy: c_uint,
    arr_mode: c_uint,
    time_slice: c_uint,
    unused: c_uint,
    count: c_uint,
    entries: [Entry; ENTRIES],
}
const _: () = assert!(size_of::<Log>() == 24 + 48 * ENTRIES);

/// What was logged of a GPU.
#[derive(Default)]
struct Logged {
    turns: Turns,
    /// By process.
    totals: BTreeMap<u32, u64>,
    entries: Vec<Entry>,
}

static LOGS: Mutex<BTreeMap<usize, Logged>> = Mutex::new(BTreeMap::new());

impl Logged {
    /// Logs the turns that are over.
    fn follow(&mut self, gpu: &Gpu, now: u64) {
        self.turns.follow(gpu);
        let known = std::mem::take(&mut self.turns.ahead);
        let (over, ahead): (Vec<Turn>, _) = known.into_iter().partition(|turn| turn.end <= now);
        self.turns.ahead = ahead;
        for turn in over {
            let total = self.totals.entry(turn.pid).or_default();
            *total += turn.end - turn.start;
            self.entries.push(Entry {
                timestamp: turn.end,
                time_run_total: *total,
                time_run: turn.end - turn.start,
                runlist: turn.pid,
                target_time_slice: SLICE_NS,
                cumulative_preemption_time: 0,
            });
        }
        self.entries.drain(..self.entries.len().saturating_sub(ENTRIES));
    }
}

/// The processes of a host's GPU.
fn holders(device: Device) -> Result<Vec<Process>, Code> {
    let gpu = device.gpu()?;
    if is_host() { Ok(gpu.processes()) } else { Err(Code::NotSupported) }
}

/// The process that holds a virtual GPU: its number is that of the instance.
fn holder(instance: c_uint) -> Result<Process, Code> {
    let machine = initialized()?;
    let mut all = machine.gpus().iter().flat_map(Gpu::processes);
    all.find(|one| one.pid == instance).ok_or(Code::NotFound)
}

exported! {
    fn nvmlDeviceGetActiveVgpus(device: Device, count: Out<c_uint>, instances: Out<c_uint>) {
        let instances_of: Vec<c_uint> = holders(device)?.iter().map(|one| one.pid).collect();
        if instances.is_null() {
            // As the real library: no error where there is none.
            count.put(instances_of.len() as c_uint)?;
            return if instances_of.is_empty() { Ok(()) } else { Err(Code::InsufficientSize) };
        }
        fill(&instances_of, count, instances)
    }

    fn nvmlVgpuInstanceGetUUID(instance: c_uint, uuid: Out<c_char>, room: c_uint) {
        holder(instance)?;
        let mut bytes = [0x67; 16];
        bytes[..4].copy_from_slice(&instance.to_be_bytes());
        text(uuid, room, &uuid_text("", &bytes))
    }

    fn nvmlVgpuInstanceGetFbUsage(instance: c_uint, bytes: Out<c_ulonglong>) {
        Ok(bytes.put(holder(instance)?.memory)?)
    }

    fn nvmlVgpuInstanceGetType(instance: c_uint, kind: Out<c_uint>) {
        holder(instance)?;
        Ok(kind.put(TYPE)?)
    }

    fn nvmlVgpuTypeGetName(kind: c_uint, name: Out<c_char>, room: Out<c_uint>) {
        if kind != TYPE {
            return Err(Code::InvalidArgument);
        }
        text(name, room.get()?, TYPE_NAME)
    }

    fn nvmlDeviceGetVgpuSchedulerLog(device: Device, to: Out<Log>) {
        holders(device)?;
        logged(device, to)
    }
}

fn logged(device: Device, to: Out<Log>) -> Status {
    let (gpu, number) = (device.gpu()?, device.index()?);
    let mut logs = LOGS.lock();
    let log = logs.entry(number).or_default();
    log.follow(gpu, now());
    let mut entries = [Entry::default(); ENTRIES];
    entries[..log.entries.len()].copy_from_slice(&log.entries);
    Ok(to.put(Log {
        engine: GRAPHICS,
        policy: EQUAL_SHARE,
        arr_mode: NO_ARR,
        time_slice: SLICE_NS as c_uint,
        unused: 0,
        count: log.entries.len() as c_uint,
        entries,
    })?)
}
