//! What NCCL calls: a table for each version, all leading to one [`Tracker`](super::follow::Tracker).
//!
//! NCCL tries the newest version that it knows first, so each NCCL calls us through its own version
//! and needs no adapter.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::from_ref;

use super::TRACKER;
use super::abi::{InitV4, InitV5, SUCCESS, StateArgs, Table, Version};
use super::multiplex::InitArgs;
use super::open::settings;
use crate::{guarded, link, tenants};

const NAME: *const c_char = c"gpuwhy".as_ptr();

/// For NCCL 2.27.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Table<InitV4> = Table {
    name: NAME,
    init: Some(init_v4),
    start: Some(start::<4>),
    stop: Some(stop::<4>),
    record_state: Some(record_state::<4>),
    finalize: Some(finalize::<4>),
};

/// For NCCL 2.28.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: Table<InitV5> = table::<5>();

/// For NCCL 2.29 and 2.30.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static ncclProfiler_v6: Table<InitV5> = table::<6>();

/// For NCCL 2.31 and later.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub static ncclProfiler_v7: Table<InitV5> = table::<7>();

const fn table<const V: u8>() -> Table<InitV5> {
    Table {
        name: NAME,
        init: Some(init::<V>),
        start: Some(start::<V>),
        stop: Some(stop::<V>),
        record_state: Some(record_state::<V>),
        finalize: Some(finalize::<V>),
    }
}

const fn version<const V: u8>() -> Version {
    match V {
        4 => Version::V4,
        5 => Version::V5,
        6 => Version::V6,
        _ => Version::V7,
    }
}

fn begin(version: Version, context: *mut *mut c_void, mask: *mut c_int, args: InitArgs) -> c_int {
    guarded(SUCCESS, || {
        link::start(&tenants::TENANTS);
        let tables = [
            from_ref(&ncclProfiler_v4).cast(),
            from_ref(&ncclProfiler_v5).cast(),
            from_ref(&ncclProfiler_v6).cast(),
            from_ref(&ncclProfiler_v7).cast(),
        ];
        // SAFETY: NCCL called us with these.
        unsafe { TRACKER.init(version, context, mask, args, &tables, settings) };
        SUCCESS
    })
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    id: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: *const c_void,
) -> c_int {
    begin(Version::V4, context, mask, InitArgs { id, name, nodes, ranks, rank, logger })
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn init<const V: u8>(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: *const c_void,
) -> c_int {
    begin(version::<V>(), context, mask, InitArgs { id, name, nodes, ranks, rank, logger })
}

unsafe extern "C" fn start<const V: u8>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut c_void,
) -> c_int {
    guarded(SUCCESS, || {
        // SAFETY: NCCL called us with these.
        unsafe { TRACKER.start(version::<V>(), context, handle, descr) };
        SUCCESS
    })
}

unsafe extern "C" fn stop<const V: u8>(handle: *mut c_void) -> c_int {
    guarded(SUCCESS, || {
        TRACKER.stop(version::<V>(), handle);
        SUCCESS
    })
}

unsafe extern "C" fn record_state<const V: u8>(
    handle: *mut c_void,
    state: c_int,
    args: *mut StateArgs,
) -> c_int {
    guarded(SUCCESS, || {
        // SAFETY: NCCL called us with these.
        unsafe { TRACKER.record_state(version::<V>(), handle, state, args) };
        SUCCESS
    })
}

unsafe extern "C" fn finalize<const V: u8>(context: *mut c_void) -> c_int {
    guarded(SUCCESS, || {
        TRACKER.finalize(version::<V>(), context);
        SUCCESS
    })
}
