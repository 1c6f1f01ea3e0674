//! An activity record of CUPTI as an event for the ring.

use core::ffi::{CStr, c_char};

use gpuwhy_wire::{Event, NameId};

use super::abi::{self, Plain, kind};
use super::names::short;
use crate::ring::Ring;

/// What was read from a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Read {
    /// The event that it records.
    Event(Event),
    /// It has no valid times: 0, or an end before its start. A record that was forced out before its
    /// work ended looks the same.
    NoTime,
    /// Something that is not recorded as work.
    Other,
}

/// The direction of a copy, from `CUpti_ActivityMemcpyKind`, and whether the host's memory is pinned,
/// from `CUpti_ActivityMemoryKind`.
fn direction(copy_kind: u8, from: u8, to: u8) -> &'static str {
    let host = if copy_kind == 1 { from } else { to };
    match (copy_kind, host) {
        (1, 1) => "HtoD pageable",
        (1, 2) => "HtoD pinned",
        (1, _) => "HtoD",
        (2, 1) => "DtoH pageable",
        (2, 2) => "DtoH pinned",
        (2, _) => "DtoH",
        (8, _) => "DtoD",
        (9, _) => "HtoH",
        (10, _) => "PtoP",
        _ => "copy",
    }
}

/// Names of kernels by the address of their text, since CUPTI uses one text for all launches of a
/// kernel. Letters of the text are compared too, since a module that is unloaded leaves its address to
/// another.
pub struct NameCache {
    places: [Place; NameCache::PLACES],
    generation: u64,
}

#[derive(Clone, Copy)]
struct Place {
    at: *const c_char,
    head: [u8; 16],
    tail: [u8; 8],
    len: usize,
    id: NameId,
}

// SAFETY: the pointers are compared and never followed through the cache.
unsafe impl Send for NameCache {}

impl NameCache {
    const PLACES: usize = 512;

    /// An empty cache.
    pub const fn new() -> NameCache {
        let empty =
            Place { at: core::ptr::null(), head: [0; 16], tail: [0; 8], len: 0, id: NameId(0) };
        NameCache { places: [empty; NameCache::PLACES], generation: 0 }
    }

    /// The number in the ring of the name `name`, which lies at `at`.
    fn id(&mut self, at: *const c_char, name: &[u8], ring: &Ring) -> NameId {
        if self.generation != ring.generation {
            *self = NameCache::new();
            self.generation = ring.generation;
        }
        let (mut head, mut tail) = ([0; 16], [0; 8]);
        let n = name.len().min(16);
        head[..n].copy_from_slice(&name[..n]);
        let n = name.len().min(8);
        tail[..n].copy_from_slice(&name[name.len() - n..]);
        let place = &mut self.places[(at as usize >> 3) % NameCache::PLACES];
        if (place.at, place.len, place.head, place.tail) != (at, name.len(), head, tail) {
            let id = ring.name(short(name).as_str());
            *place = Place { at, head, tail, len: name.len(), id };
        }
        place.id
    }
}

/// The number in the ring of a kernel's name.
///
/// # Safety
/// `at` is null or a C string.
unsafe fn name(at: *const c_char, names: Option<&mut NameCache>, ring: &Ring) -> NameId {
    if at.is_null() {
        return ring.name("kernel");
    }
    // SAFETY: the caller promises a C string.
    let text = unsafe { CStr::from_ptr(at) }.to_bytes();
    match names {
        Some(names) => names.id(at, text, ring),
        None => ring.name(short(text).as_str()),
    }
}

/// The `T` that a record begins with, if the record is long enough.
fn read<T: Plain>(record: &[u8]) -> Option<T> {
    // SAFETY: long enough; any bytes are a valid `T`, as `Plain` promises; `read_unaligned` asks
    // nothing of the address.
    (record.len() >= size_of::<T>())
        .then(|| unsafe { record.as_ptr().cast::<T>().read_unaligned() })
}

/// Reads one record. `clock` turns the record's times into those of CLOCK_MONOTONIC.
///
/// # Safety
/// The record was written by CUPTI: the name that a kernel's record points to is null or a C
/// string.
pub unsafe fn event(
    record: &[u8],
    clock: impl Fn(u64) -> u64,
    names: Option<&mut NameCache>,
    ring: &Ring,
) -> Read {
    let times =
        |start: u64, end: u64| (start != 0 && end >= start).then(|| (clock(start), end - start));
    let Some(kind) = read::<u32>(record) else { return Read::Other };
    let event = match kind {
        kind::CONCURRENT_KERNEL => {
            let Some(r) = read::<abi::Kernel>(record) else { return Read::Other };
            let Some((start, dur)) = times(r.start, r.end) else { return Read::NoTime };
            Event::Kernel {
                // SAFETY: the caller promises that the name is null or a C string.
                name: unsafe { name(r.name, names, ring) },
                device: r.device as u16,
                stream: r.stream,
                correlation: r.correlation.into(),
                graph: (r.graph != 0).then_some(r.graph.into()),
                start,
                dur,
            }
        }
        kind::MEMCPY => {
            let Some(r) = read::<abi::Memcpy>(record) else { return Read::Other };
            let Some(times) = times(r.start, r.end) else { return Read::NoTime };
            copy(
                ring.name(direction(r.copy_kind, r.from, r.to)),
                (r.device, r.stream, r.correlation),
                r.bytes,
                times,
            )
        }
        kind::MEMCPY2 => {
            let Some(r) = read::<abi::MemcpyPeer>(record) else { return Read::Other };
            let Some(times) = times(r.start, r.end) else { return Read::NoTime };
            copy(ring.name("PtoP"), (r.device, r.stream, r.correlation), r.bytes, times)
        }
        kind::MEMSET => {
            let Some(r) = read::<abi::Memset>(record) else { return Read::Other };
            let Some(times) = times(r.start, r.end) else { return Read::NoTime };
            copy(ring.name("memset"), (r.device, r.stream, r.correlation), r.bytes, times)
        }
        kind::GRAPH_TRACE => {
            let Some(r) = read::<abi::GraphTrace>(record) else { return Read::Other };
            let Some((start, dur)) = times(r.start, r.end) else { return Read::NoTime };
            Event::Kernel {
                name: ring.name("CUDA graph"),
                device: r.device as u16,
                stream: r.stream,
                correlation: r.correlation.into(),
                graph: Some(r.graph.into()),
                start,
                dur,
            }
        }
        kind::SYNCHRONIZATION => {
            let Some(r) = read::<abi::Synchronization>(record) else { return Read::Other };
            let Some((start, dur)) = times(r.start, r.end) else { return Read::NoTime };
            // `CUpti_ActivitySynchronizationType`; 2 has a stream wait and no thread.
            let what = match r.what {
                1 => "event",
                3 => "stream",
                4 => "context",
                _ => return Read::Other,
            };
            let (stream, correlation) = (r.stream, r.correlation.into());
            Event::Wait { name: ring.name(what), stream, correlation, start, dur }
        }
        _ => return Read::Other,
    };
    Read::Event(event)
}

/// A copy: its name; device, stream and correlation; bytes; start and duration.
fn copy(
    name: NameId,
    (device, stream, correlation): (u32, u32, u32),
    bytes: u64,
    (start, dur): (u64, u64),
) -> Event {
    let (device, correlation) = (device as u16, correlation.into());
    Event::Copy { name, device, stream, correlation, bytes, start, dur }
}

/// A driver call that launches work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// `CUpti_driver_api_trace_cbid`.
    pub call: u32,
    /// The calling thread, in the process's own pid namespace.
    pub thread: u32,
    /// Ties it to its kernels.
    pub correlation: u64,
    /// When it began, CLOCK_MONOTONIC ns.
    pub start: u64,
    /// How long it took, ns.
    pub dur: u64,
}

/// Reads a record of a driver call.
pub fn call(record: &[u8], clock: impl Fn(u64) -> u64) -> Option<Call> {
    let r = read::<abi::Api>(record)?;
    let whole = r.kind == kind::DRIVER && r.start != 0 && r.end >= r.start;
    whole.then(|| Call {
        call: r.call,
        thread: r.thread,
        correlation: r.correlation.into(),
        start: clock(r.start),
        dur: r.end - r.start,
    })
}
