//! Events: Xids, and GPUs that are no longer available.

use std::collections::HashMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gpuwhy_testkit::gpu::Machine;
use gpuwhy_testkit::sys;

use super::handle::{Device, initialized};
use super::{Code, Status, status};
use crate::c::Out;
use crate::machine::now;

const EVENT_XID: c_ulonglong = 0x8;
const EVENT_UNAVAILABLE: c_ulonglong = 0x4000;

/// `nvmlEventSet_t`: the number of a set.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct EventSet(usize);

/// `nvmlEventData_t`.
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

/// The event data of `nvmlEventSetWait` without `_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EventDataV1 {
    device: Device,
    kind: c_ulonglong,
    data: c_ulonglong,
}

/// A device in an event set.
#[derive(Clone, Copy)]
struct Registered {
    gpu: usize,
    kinds: c_ulonglong,
    /// Number of the next Xid to report; earlier ones were reported or came before the
    /// registration.
    next: u64,
    /// Whether it was reported that the GPU is off the bus.
    unavailable_reported: bool,
}

/// The event sets by number.
static SETS: Mutex<Option<HashMap<usize, Vec<Registered>>>> = Mutex::new(None);

fn with_sets<R>(f: impl FnOnce(&mut HashMap<usize, Vec<Registered>>) -> R) -> R {
    let mut sets = SETS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    f(sets.get_or_insert_default())
}

/// Waits for an event of a set.
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

/// The next event of a device, or the error that every wait fails with while it is off the bus.
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
        registered.unavailable_reported = false;
        return None;
    }
    if registered.kinds & EVENT_UNAVAILABLE != 0 && !registered.unavailable_reported {
        registered.unavailable_reported = true;
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
        with_sets(|sets| -> Status {
            let all = sets.get_mut(&set.0).ok_or(Code::InvalidArgument)?;
            all.push(Registered {
                gpu: index, kinds, next: gpu.xid_count(), unavailable_reported: false,
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
