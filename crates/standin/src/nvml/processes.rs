//! Processes on a device.

use std::ffi::{c_uint, c_ulonglong};

use gpuwhy_testkit::gpu;

use super::handle::{Device, fill};
use super::{Status, status};
use crate::c::Out;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessV1 {
    pid: c_uint,
    memory: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which the functions `_v3` use too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessV2 {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}
const _: () = assert!(size_of::<ProcessV1>() == 16 && size_of::<ProcessV2>() == 24);

fn processes_v1(device: Device, count: Out<c_uint>, infos: Out<ProcessV1>) -> Status {
    let found = device.any()?.processes();
    let found: Vec<ProcessV1> =
        found.iter().map(|p| ProcessV1 { pid: p.pid, memory: p.memory }).collect();
    fill(&found, count, infos)
}

fn processes_v2(device: Device, count: Out<c_uint>, infos: Out<ProcessV2>) -> Status {
    let found = device.any()?.processes();
    // All bits set stand for no instance; with MIG all processes are in the first instance.
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

/// There are no graphics or MPS processes.
fn no_processes(device: Device, count: Out<c_uint>) -> Status {
    device.any()?;
    Ok(count.put(0)?)
}

exported! {
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
}
