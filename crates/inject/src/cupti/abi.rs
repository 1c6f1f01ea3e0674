//! CUPTI's numbers and record layouts, as far as this crate reads them.
//!
//! Offsets are those of the headers of CUPTI 12.9, 13.0, 13.1 and 13.5 (`cupti_activity.h`), which
//! agree: later records only append. So one prefix for each kind is enough, and the library itself
//! finds the next record (`cuptiActivityGetNextRecord`).

use core::ffi::{c_char, c_void};

/// `CUptiResult`.
pub type Status = i32;
/// `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`: another profiler is here.
pub const MULTIPLE_SUBSCRIBERS: Status = 39;

/// `CUpti_ActivityKind`.
pub mod kind {
    /// Copies.
    pub const MEMCPY: u32 = 1;
    /// Memsets.
    pub const MEMSET: u32 = 2;
    /// Calls of the driver.
    pub const DRIVER: u32 = 4;
    /// Kernels, without making them wait for each other as kind 3 would.
    pub const CONCURRENT_KERNEL: u32 = 10;
    /// Copies between devices.
    pub const MEMCPY2: u32 = 22;
    /// Waits for streams, events and contexts.
    pub const SYNCHRONIZATION: u32 = 38;
    /// A launch of a CUDA graph as a whole.
    pub const GRAPH_TRACE: u32 = 51;
}

/// `CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER`; its value is a `u8`.
pub const ATTR_ZEROED_BUFFERS: u32 = 5;
/// `CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT`; its value is a `size_t`.
pub const ATTR_POOL_LIMIT: u32 = 2;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
pub const FLUSH_FORCED: u32 = 1;
/// `CUPTI_CB_DOMAIN_DRIVER_API`.
pub const DOMAIN_DRIVER: u32 = 1;

/// `CUpti_BuffersCallbackRequestFunc`.
pub type Requested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
/// `CUpti_TimestampCallbackFunc`.
pub type Timestamp = unsafe extern "C" fn() -> u64;
/// `CUpti_CallbackFunc`.
pub type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

/// Prefix of `CUpti_ActivityKernel5` to `13`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// `CUpti_ActivityKind`.
    pub kind: u32,
    _a: [u8; 12],
    /// When it began on the device, ns; 0 if unknown.
    pub start: u64,
    /// When it ended, ns; 0 if unknown.
    pub end: u64,
    _b: [u8; 8],
    /// The device's number in the process.
    pub device: u32,
    /// The context's number.
    pub context: u32,
    /// The stream's number.
    pub stream: u32,
    _c: [u8; 40],
    /// Ties it to the call that launched it.
    pub correlation: u32,
    _d: [u8; 8],
    /// The mangled name, a C string of CUPTI's.
    pub name: *const c_char,
    _e: [u8; 32],
    /// The node of a CUDA graph, or 0.
    pub graph_node: u64,
    _f: [u8; 4],
    /// The CUDA graph, or 0.
    pub graph: u32,
}

/// Prefix of `CUpti_ActivityMemcpy` to `6`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memcpy {
    /// `CUpti_ActivityKind`.
    pub kind: u32,
    /// The direction, `CUpti_ActivityMemcpyKind`.
    pub copy_kind: u8,
    /// The kind of memory read, `CUpti_ActivityMemoryKind`.
    pub from: u8,
    /// The kind of memory written, `CUpti_ActivityMemoryKind`.
    pub to: u8,
    /// `CUpti_ActivityFlag`.
    pub flags: u8,
    /// Bytes moved.
    pub bytes: u64,
    /// When it began on the device, ns; 0 if unknown.
    pub start: u64,
    /// When it ended, ns; 0 if unknown.
    pub end: u64,
    /// The device's number in the process.
    pub device: u32,
    /// The context's number.
    pub context: u32,
    /// The stream's number.
    pub stream: u32,
    /// Ties it to the call that launched it.
    pub correlation: u32,
}

/// Prefix of `CUpti_ActivityMemcpyPtoP` to `4`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemcpyPeer {
    /// `CUpti_ActivityKind`.
    pub kind: u32,
    /// The direction, `CUpti_ActivityMemcpyKind`.
    pub copy_kind: u8,
    /// The kind of memory read, `CUpti_ActivityMemoryKind`.
    pub from: u8,
    /// The kind of memory written, `CUpti_ActivityMemoryKind`.
    pub to: u8,
    /// `CUpti_ActivityFlag`.
    pub flags: u8,
    /// Bytes moved.
    pub bytes: u64,
    /// When it began on the device, ns; 0 if unknown.
    pub start: u64,
    /// When it ended, ns; 0 if unknown.
    pub end: u64,
    /// The device's number in the process.
    pub device: u32,
    /// The context's number.
    pub context: u32,
    /// The stream's number.
    pub stream: u32,
    /// The device read from.
    pub source_device: u32,
    /// The context read from.
    pub source_context: u32,
    /// The device written to.
    pub target_device: u32,
    /// The context written to.
    pub target_context: u32,
    /// Ties it to the call that launched it.
    pub correlation: u32,
}

/// Prefix of `CUpti_ActivityMemset` to `4`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memset {
    /// `CUpti_ActivityKind`.
    pub kind: u32,
    /// The value written.
    pub value: u32,
    /// Bytes written.
    pub bytes: u64,
    /// When it began on the device, ns; 0 if unknown.
    pub start: u64,
    /// When it ended, ns; 0 if unknown.
    pub end: u64,
    /// The device's number in the process.
    pub device: u32,
    /// The context's number.
    pub context: u32,
    /// The stream's number.
    pub stream: u32,
    /// Ties it to the call that launched it.
    pub correlation: u32,
}

/// Prefix of `CUpti_ActivityGraphTrace` and `2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GraphTrace {
    /// `CUpti_ActivityKind`.
    pub kind: u32,
    /// Ties it to the call that launched it.
    pub correlation: u32,
    /// When it began on the device, ns; 0 if unknown.
    pub start: u64,
    /// When it ended, ns; 0 if unknown.
    pub end: u64,
    /// The device's number in the process.
    pub device: u32,
    /// The CUDA graph.
    pub graph: u32,
    /// The context's number.
    pub context: u32,
    /// The stream's number.
    pub stream: u32,
}

/// Prefix of `CUpti_ActivitySynchronization` and `2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Synchronization {
    /// `CUpti_ActivityKind`.
    pub kind: u32,
    /// `CUpti_ActivitySynchronizationType`.
    pub what: u32,
    /// When the wait began, ns.
    pub start: u64,
    /// When the wait ended, ns.
    pub end: u64,
    /// Ties it to the call that waited.
    pub correlation: u32,
    /// The context's number.
    pub context: u32,
    /// The stream's number.
    pub stream: u32,
    /// The event's number.
    pub event: u32,
}

/// `CUpti_ActivityAPI`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Api {
    /// `CUpti_ActivityKind`.
    pub kind: u32,
    /// `CUpti_driver_api_trace_cbid`.
    pub call: u32,
    /// When the call began, ns.
    pub start: u64,
    /// When the call returned, ns.
    pub end: u64,
    /// The process's pid.
    pub process: u32,
    /// The thread's tid, in the process's pid namespace.
    pub thread: u32,
    /// Ties it to the work that it launched.
    pub correlation: u32,
    /// What the call returned.
    pub result: u32,
}

/// Types for which any bytes are a valid value.
///
/// # Safety
/// No byte pattern of the type's size is invalid.
pub unsafe trait Plain: Copy {}

// SAFETY: numbers, and a raw pointer; all patterns are values of theirs.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for Kernel {}
// SAFETY: as above.
unsafe impl Plain for Memcpy {}
// SAFETY: as above.
unsafe impl Plain for MemcpyPeer {}
// SAFETY: as above.
unsafe impl Plain for Memset {}
// SAFETY: as above.
unsafe impl Plain for GraphTrace {}
// SAFETY: as above.
unsafe impl Plain for Synchronization {}
// SAFETY: as above.
unsafe impl Plain for Api {}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(Kernel, start) == 16 && offset_of!(Kernel, device) == 40);
    assert!(offset_of!(Kernel, stream) == 48 && offset_of!(Kernel, correlation) == 92);
    assert!(offset_of!(Kernel, name) == 104 && offset_of!(Kernel, graph_node) == 144);
    assert!(offset_of!(Kernel, graph) == 156 && size_of::<Kernel>() == 160);
    assert!(offset_of!(Memcpy, bytes) == 8 && offset_of!(Memcpy, device) == 32);
    assert!(offset_of!(Memcpy, correlation) == 44 && size_of::<Memcpy>() == 48);
    assert!(offset_of!(MemcpyPeer, source_device) == 44);
    assert!(offset_of!(MemcpyPeer, correlation) == 60 && size_of::<MemcpyPeer>() == 64);
    assert!(offset_of!(Memset, bytes) == 8 && offset_of!(Memset, correlation) == 44);
    assert!(offset_of!(GraphTrace, start) == 8 && offset_of!(GraphTrace, stream) == 36);
    assert!(offset_of!(Synchronization, start) == 8 && offset_of!(Synchronization, stream) == 32);
    assert!(size_of::<GraphTrace>() == 40 && size_of::<Api>() == 40);
};
