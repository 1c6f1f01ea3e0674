//! Delivery: records of what has ended are written into the client's buffers, spoiled by defects.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use gpuwhy_testkit::gpu::Defect;
use gpuwhy_testkit::sys;

use super::activity::{Activity, Operation};
use super::encode::with_record;
use super::pending::{DROPPED, take_ready};
use super::settings::{CALLBACKS, CLOCK, CompleteBuffer, RequestBuffer};
use super::{Code, Status};
use crate::c;
use crate::lock::Mutex;
use crate::machine::{machine, now, pid, realtime};

/// The state of delivery; locked while the client's callbacks run.
pub(super) static DELIVERY: Mutex<Delivery> =
    Mutex::new(Delivery { buffer: None, device_records: 0, graph_kernels: 0, lost_bytes: 0 });

thread_local! {
    /// Whether this thread delivers, so that a call from the client's callback is seen as one.
    static DELIVERING: Cell<bool> = const { Cell::new(false) };
}

/// The buffer in use, and what has been written by this process.
pub(super) struct Delivery {
    pub(super) buffer: Option<Buffer>,
    /// Records of what ran on a device.
    device_records: u64,
    /// Those of kernels of graphs.
    graph_kernels: u64,
    /// Device memory that they have cost under [`Defect::GraphGrowth`], bytes.
    lost_bytes: u64,
}

/// A buffer of the client.
pub(super) struct Buffer {
    at: *mut u8,
    size: usize,
    used: usize,
    records: usize,
    records_max: usize,
}

// SAFETY: the client has given the memory to us, whichever thread we write it from.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Requests a buffer from the client; `None` if it returns none that a record fits in.
    fn request(request: RequestBuffer) -> Option<Buffer> {
        let (mut at, mut size, mut records_max) = (std::ptr::null_mut(), 0, 0);
        request(&mut at, &mut size, &mut records_max);
        // The real library requires buffers aligned to 8 bytes.
        let usable = !at.is_null() && size >= 512 && (at as usize).is_multiple_of(8);
        usable.then_some(Buffer { at, size, used: 0, records: 0, records_max })
    }

    /// Appends a record; false if the buffer is full.
    fn write(&mut self, record: &[u8]) -> bool {
        let full = self.records_max != 0 && self.records >= self.records_max;
        if full || self.size - self.used < record.len() {
            return false;
        }
        // SAFETY: the client's buffer has `size` bytes, of which enough are left; it cannot
        // overlap with our record.
        unsafe {
            std::ptr::copy_nonoverlapping(record.as_ptr(), self.at.add(self.used), record.len());
        }
        self.used += record.len();
        self.records += 1;
        true
    }

    /// Returns it to the client, unless a defect loses it.
    pub(super) fn complete(self, complete: CompleteBuffer) {
        if !has(Defect::LostBuffers) {
            complete(std::ptr::null_mut(), 0, self.at, self.size, self.used);
        }
    }
}

/// Whether CUPTI has this defect now.
pub(super) fn has(defect: Defect) -> bool {
    machine().is_some_and(|m| m.has(defect))
}

/// The client's clock (or CLOCK_REALTIME) minus CLOCK_MONOTONIC, from the fastest of three
/// readings.
fn clock_offset() -> u64 {
    let clock = *CLOCK.lock();
    let read = || {
        let before = now();
        let there = clock.map_or_else(realtime, |clock| clock());
        let after = now();
        (after - before, there.wrapping_sub(before + (after - before) / 2))
    };
    let readings = [read(), read(), read()];
    readings.iter().min().map_or(0, |(_, offset)| *offset)
}

/// Writes what has ended into the client's buffers and completes those that are full, with `flush`
/// also the one in use.
pub(super) fn deliver(flush: bool) -> Status {
    if DELIVERING.get() {
        // A call from the client's callback.
        return Err(Code::InvalidOperation);
    }
    let mut delivery = DELIVERY.lock();
    DELIVERING.set(true);
    c::guarded((), || delivery.deliver(flush));
    DELIVERING.set(false);
    Ok(())
}

impl Delivery {
    fn deliver(&mut self, flush: bool) {
        let ready = take_ready(now());
        let callbacks = *CALLBACKS.lock();
        if has(Defect::CallbacksReplaced) {
            // The records go to the other tool.
            return;
        }
        let Some((request, complete)) = callbacks else {
            DROPPED.fetch_add(ready.len() as u64, Relaxed);
            return;
        };
        let offset = if ready.is_empty() { 0 } else { clock_offset() };
        for mut activity in ready {
            activity.start = activity.start.wrapping_add(offset);
            activity.end = activity.end.wrapping_add(offset);
            activity.queued = activity.queued.wrapping_add(offset);
            self.spoil(&mut activity);
            self.write(&activity, request, complete);
        }
        if flush && let Some(buffer) = self.buffer.take_if(|b| b.used > 0) {
            buffer.complete(complete);
        }
    }

    /// Writes a record into the buffer in use, or into a new one if it is full.
    fn write(&mut self, activity: &Activity, request: RequestBuffer, complete: CompleteBuffer) {
        if let Some(buffer) = &mut self.buffer {
            if with_record(activity, |bytes| buffer.write(bytes)) {
                return;
            }
            if let Some(full) = self.buffer.take() {
                full.complete(complete);
            }
        }
        self.buffer = Buffer::request(request);
        let written = match &mut self.buffer {
            Some(buffer) => with_record(activity, |bytes| buffer.write(bytes)),
            None => false,
        };
        if !written {
            DROPPED.fetch_add(1, Relaxed);
        }
    }

    /// Applies the defects to an activity.
    fn spoil(&mut self, activity: &mut Activity) {
        let Some(machine) = machine() else { return };
        if matches!(activity.operation, Operation::Call { .. }) {
            return;
        }
        let mut bad =
            machine.has(Defect::ZeroTimestamps) && self.device_records >= machine.defect_after();
        let of_graph =
            activity.graph != 0 && matches!(activity.operation, Operation::Kernel { .. });
        if of_graph && machine.has(Defect::GraphGrowth) {
            let due = (self.graph_kernels + 1) * machine.defect_growth() / 10_000;
            while self.lost_bytes + GROWTH <= due {
                if let Some(gpu) = machine.gpu(activity.gpu) {
                    gpu.allocate(pid(), GROWTH, now());
                }
                self.lost_bytes += GROWTH;
            }
            bad |= self.graph_kernels >= machine.defect_after();
            self.graph_kernels += 1;
        }
        if bad {
            // As observed: nearly all times are 0, and some records end before they start.
            if self.device_records % 50 == 7 {
                activity.end = activity.start - 1;
            } else {
                (activity.start, activity.end) = (0, 0);
            }
        }
        self.device_records += 1;
    }
}

/// Device memory is lost in pieces of this size.
const GROWTH: u64 = 1 << 20;

/// Period at which the thread delivers what has ended, ns.
const PERIOD_NS: u64 = 5_000_000;

/// Starts the thread that delivers; only the first call does.
pub(super) fn start_worker() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Relaxed) {
        return;
    }
    let work = || {
        loop {
            sys::sleep_until(now() + PERIOD_NS);
            if deliver(false).is_err() {
                return;
            }
        }
    };
    // If it cannot be started, only FlushAll delivers.
    let _ = std::thread::Builder::new().name("cupti-worker".into()).spawn(work);
}
