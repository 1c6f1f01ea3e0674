//! What CUPTI calls: it asks for buffers, and gives them back with records, which are written to the
//! ring.
//!
//! CUPTI calls from the program's threads and from its own, and more than one at a time; so all state
//! here is atomic, or tried and never waited for.

use core::ffi::c_void;
use core::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use gpuwhy_wire::{Event, NameId};

use super::abi;
use super::buffers::{self, Buffers};
use super::calls::CallNames;
use super::library::Cupti;
use super::records::{self, NameCache, Read};
use crate::exclusive::Exclusive;
use crate::ring::{self, Ring};

/// `cuptiActivityGetNextRecord`.
type Next = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> abi::Status;
/// `cuptiActivityGetNumDroppedRecords`.
type Dropped = unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> abi::Status;

/// The buffers that CUPTI fills.
pub static BUFFERS: Buffers = Buffers::new();

static KERNEL_NAMES: Exclusive<NameCache> = Exclusive::new(NameCache::new());
static CALL_NAMES: Exclusive<CallNames> = Exclusive::new(CallNames::new());

/// [`Next`] and [`Dropped`] as numbers; 0 until [`register`].
static NEXT: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Is added to CUPTI's times, ns; 0 where CUPTI takes our clock.
static OFFSET: AtomicI64 = AtomicI64::new(0);
/// CUPTI is forced to give back what has not ended.
static IS_FORCED: AtomicBool = AtomicBool::new(false);

static RECORDS: AtomicU64 = AtomicU64::new(0);
static TIMED: AtomicU64 = AtomicU64::new(0);
static UNTIMED: AtomicU64 = AtomicU64::new(0);
static RETURNED: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static COST: AtomicU64 = AtomicU64::new(0);

/// What the callbacks have counted in this process.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Records that were written to the ring.
    pub records: u64,
    /// Records of work with times.
    pub timed: u64,
    /// Records of work without times, which should have had some.
    pub untimed: u64,
    /// Buffers that CUPTI gave back.
    pub returned: u64,
    /// Records that CUPTI dropped.
    pub lost: u64,
    /// Time in callbacks, ns.
    pub cost: u64,
}

/// The counts now.
pub fn counts() -> Counts {
    Counts {
        records: RECORDS.load(Relaxed),
        timed: TIMED.load(Relaxed),
        untimed: UNTIMED.load(Relaxed),
        returned: RETURNED.load(Relaxed),
        lost: LOST.load(Relaxed),
        cost: COST.load(Relaxed),
    }
}

/// Registers the callbacks with CUPTI, which then takes our clock if it can.
pub fn register(cupti: &Cupti) -> abi::Status {
    // SAFETY: the callback stays where it is, since this object is never unloaded.
    let ours = cupti.timestamps.is_some_and(|register| unsafe { register(timestamp) } == 0);
    OFFSET.store(i64::from(!ours), Release);
    update_offset();
    NEXT.store(cupti.next as usize as u64, Release);
    DROPPED.store(cupti.dropped as usize as u64, Release);
    // SAFETY: as above.
    unsafe { (cupti.register)(requested, completed) }
}

/// Has CUPTI give back all buffers, also records of work that has not ended: the end of the process.
pub fn flush_forced(cupti: &Cupti) {
    IS_FORCED.store(true, Release);
    // SAFETY: a function of CUPTI, called as its header says.
    unsafe { (cupti.flush)(abi::FLUSH_FORCED) };
    IS_FORCED.store(false, Release);
}

/// In a forked child: unlocks the caches, whose holder exists in the parent only.
pub fn forget_after_fork() {
    KERNEL_NAMES.open_after_fork();
    CALL_NAMES.open_after_fork();
}

/// Measures the difference between CUPTI's clock, which is CLOCK_REALTIME where CUPTI does not take
/// ours, and CLOCK_MONOTONIC.
pub fn update_offset() {
    if OFFSET.load(Relaxed) != 0 {
        let mut real = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to our stack.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut real) };
        let real = real.tv_sec * 1_000_000_000 + real.tv_nsec;
        // Never 0, which means that there is nothing to add.
        OFFSET.store((gpuwhy_wire::now() as i64 - real).min(-1), Release);
    }
}

fn to_monotonic(cupti: u64) -> u64 {
    cupti.saturating_add_signed(OFFSET.load(Relaxed))
}

unsafe extern "C" fn timestamp() -> u64 {
    gpuwhy_wire::now()
}

/// CUPTI asks for a buffer.
unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    crate::guarded((), || {
        if buffer.is_null() || size.is_null() || most.is_null() {
            return;
        }
        let ours = BUFFERS.take();
        // SAFETY: CUPTI gives places for its answers, none of them null (checked).
        unsafe {
            *buffer = ours.unwrap_or(null_mut());
            *size = if ours.is_some() { buffers::BYTES } else { 0 };
            *most = 0;
        }
    });
}

/// CUPTI gives a buffer back, with `valid` bytes of records.
unsafe extern "C" fn completed(
    context: *mut c_void,
    stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    crate::guarded((), || {
        let began = gpuwhy_wire::now();
        RETURNED.fetch_add(1, Relaxed);
        if !BUFFERS.is_out(buffer) {
            return;
        }
        let valid = valid.min(buffers::BYTES);
        // SAFETY: a buffer of ours that CUPTI had until now: `BYTES` bytes, which are not
        // written while we hold it.
        let bytes = unsafe { std::slice::from_raw_parts(buffer, valid) };
        match KERNEL_NAMES.with(|names| write_records(bytes, buffer, Some(names))) {
            Some(()) => {}
            None => write_records(bytes, buffer, None),
        }
        BUFFERS.give_back(buffer, valid);
        count_lost(context, stream);
        COST.fetch_add(gpuwhy_wire::now().saturating_sub(began), Relaxed);
    });
}

/// Adds what CUPTI has dropped on this stream since it was last asked.
fn count_lost(context: *mut c_void, stream: u32) {
    let dropped = DROPPED.load(Acquire) as usize;
    if dropped != 0 {
        // SAFETY: stored by `register` from a function pointer of this type.
        let dropped = unsafe { std::mem::transmute::<usize, Dropped>(dropped) };
        let mut lost = 0;
        // SAFETY: context and stream are those that CUPTI gave; the pointer is to our stack.
        if unsafe { dropped(context, stream, &raw mut lost) } == 0 {
            LOST.fetch_add(lost as u64, Relaxed);
        }
    }
}

/// Writes every record of a buffer to the ring.
fn write_records(bytes: &[u8], buffer: *mut u8, mut names: Option<&mut NameCache>) {
    let next = NEXT.load(Acquire) as usize;
    if next == 0 {
        return;
    }
    // SAFETY: stored by `register` from a function pointer of this type.
    let next = unsafe { std::mem::transmute::<usize, Next>(next) };
    let (mut timed, mut untimed, mut written) = (0, 0, 0);
    let mut record: *mut u8 = null_mut();
    ring::with(|ring| {
        // The smallest record has 8 bytes, and a library that does not advance ends the loop too.
        for _ in 0..bytes.len() / 8 {
            let before = record;
            // SAFETY: the buffer, its valid bytes, and a place for the answer on our stack.
            if unsafe { next(buffer, bytes.len(), &raw mut record) } != 0 || record <= before {
                break;
            }
            let Some(rest) = bytes.get(record as usize - buffer as usize..) else { break };
            // SAFETY: CUPTI wrote this record; names of kernels are its own C strings.
            match unsafe { records::event(rest, to_monotonic, names.as_deref_mut(), ring) } {
                Read::Event(event) => {
                    timed += 1;
                    written += 1;
                    ring.write(event);
                }
                Read::NoTime => untimed += 1,
                Read::Other => {
                    if let Some(call) = records::call(rest, to_monotonic) {
                        written += 1;
                        write_call(ring, &call);
                    }
                }
            }
        }
    });
    RECORDS.fetch_add(written, Relaxed);
    TIMED.fetch_add(timed, Relaxed);
    // Work that was forced out before it ended rightly has no times.
    if !IS_FORCED.load(Acquire) {
        UNTIMED.fetch_add(untimed, Relaxed);
    }
}

fn write_call(ring: &Ring, call: &records::Call) {
    let name = CALL_NAMES.with(|calls| calls.name(call.call, ring));
    ring.write_as(
        call.thread,
        Event::Launch {
            name: name.unwrap_or(NameId(0)),
            // The kernel's record has the device; the call's has none.
            device: 0,
            stream: 0,
            correlation: call.correlation,
            start: call.start,
            dur: call.dur,
        },
    );
}
