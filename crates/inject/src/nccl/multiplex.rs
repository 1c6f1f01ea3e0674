//! The user's own profiler plug-in beside ours: NCCL loads only one (its issue 1981), so we load the
//! other and pass everything on.
//!
//! It gets what NCCL would have given it: the events of its own mask, with the events above them that
//! NCCL reports unasked, under its own handles. It does not get network operations of other processes'
//! tasks, whose handles we cannot translate, and events for which we had no room.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{offset_of, transmute};
use core::ptr::{null, null_mut};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicPtr};

use super::abi::{Coll, EventV7, InitV4, InitV5, P2p, StateArgs, Table, Version, bit};
use crate::notice::{Code, Notices};

/// Whether NCCL gives events of `kind` to a plug-in that asked for `mask`.
///
/// It gives the events above one that is asked for too (`src/plugin/profiler.cc`).
pub const fn delivered(mask: u64, kind: u64) -> bool {
    use bit::*;
    const BELOW: u64 = PROXY_OP | PROXY_STEP | KERNEL_CH | NET_PLUGIN;
    const CE: u64 = CE_COLL | CE_SYNC | CE_BATCH;
    // NCCL adds channels itself where phases are asked for.
    let mask = if mask & KERNEL_PHASE != 0 { mask | KERNEL_CH } else { mask };
    let by = match kind {
        GROUP_API => {
            GROUP_API | P2P_API | COLL_API | KERNEL_LAUNCH | GROUP | COLL | P2P | BELOW | CE
        }
        COLL_API => COLL_API | COLL | BELOW | CE,
        P2P_API => P2P_API | P2P | BELOW,
        GROUP => GROUP | COLL | P2P | BELOW,
        COLL => COLL | BELOW,
        P2P => P2P | BELOW,
        PROXY_OP => PROXY_OP | PROXY_STEP | NET_PLUGIN,
        PROXY_STEP => PROXY_STEP | NET_PLUGIN,
        CE_COLL => CE,
        other => other,
    };
    mask & by != 0
}

/// The tables of all versions have the same layout, but for the type of `init`.
type AnyTable = Table<unsafe extern "C" fn()>;

/// The arguments of `init` but for context and mask.
#[derive(Clone, Copy)]
pub struct InitArgs {
    /// The communicator's identity, equal on all ranks.
    pub id: u64,
    /// Its name.
    pub name: *const c_char,
    /// How many nodes it has.
    pub nodes: c_int,
    /// How many ranks it has.
    pub ranks: c_int,
    /// The rank of this process.
    pub rank: c_int,
    /// NCCL's logger.
    pub logger: *const c_void,
}

/// The other plug-in, if there is one.
pub struct Next {
    tables: [AtomicPtr<AnyTable>; 4],
    /// Its masks of events, which it takes for NCCL's own.
    masks: [AtomicI32; 4],
    /// Its masks when they were last given to NCCL.
    seen: [AtomicI32; 4],
}

impl Next {
    /// No other plug-in.
    pub const fn new() -> Next {
        Next {
            tables: [const { AtomicPtr::new(null_mut()) }; 4],
            masks: [const { AtomicI32::new(0) }; 4],
            seen: [const { AtomicI32::new(0) }; 4],
        }
    }

    /// Loads the plug-in `name` as NCCL would, and uses its table of `version`. `ours` are our own
    /// tables: a name that leads back to us is no other plug-in.
    pub fn open(
        &self,
        name: &CStr,
        version: Version,
        ours: &[*const c_void; 4],
        notices: &Notices,
    ) {
        if !self.tables[version.index()].load(Relaxed).is_null() {
            return;
        }
        if name.to_bytes().eq_ignore_ascii_case(b"none") {
            return;
        }
        let Some(library) = library(name) else {
            return notices.set(Code::NcclNextMissing, 1);
        };
        let symbol = |version: Version| {
            // SAFETY: an open library and a C string.
            unsafe { libc::dlsym(library, version.symbol().as_ptr()) }
        };
        let table = symbol(version);
        if table.is_null() {
            let best = Version::ALL.into_iter().rfind(|v| !symbol(*v).is_null());
            return notices.set(Code::NcclNextVersion, best.map_or(1, |v| v as u64));
        }
        if !ours.contains(&table.cast_const()) {
            self.tables[version.index()].store(table.cast(), Relaxed);
        }
    }

    /// Uses a table that is loaded already.
    #[cfg(test)]
    pub(crate) fn take<I>(&self, version: Version, table: &'static Table<I>) {
        self.tables[version.index()].store(core::ptr::from_ref(table).cast_mut().cast(), Relaxed);
    }

    #[inline]
    fn table(&self, version: Version) -> Option<&'static AnyTable> {
        let table = self.tables[version.index()].load(Relaxed);
        // SAFETY: null or a plug-in's exported table of this version; its library is never closed.
        unsafe { table.as_ref() }
    }

    /// The events that it asks for.
    #[inline]
    pub fn mask(&self, version: Version) -> u64 {
        self.masks[version.index()].load(Relaxed) as u32 as u64
    }

    /// Whether its mask has changed since it was given to NCCL.
    #[inline]
    pub fn has_changed_mask(&self, version: Version) -> bool {
        let index = version.index();
        self.seen[index].load(Relaxed) != self.masks[index].load(Relaxed)
    }

    /// Its mask is now given to NCCL.
    pub fn mask_applied(&self, version: Version) {
        let index = version.index();
        self.seen[index].store(self.masks[index].load(Relaxed), Relaxed);
    }

    /// A communicator is made. Returns the plug-in's context, or `None` if there is no plug-in or it
    /// refuses this communicator.
    pub fn init(&self, version: Version, args: InitArgs) -> Option<*mut c_void> {
        let table = self.table(version)?;
        let init = table.init?;
        let mask = self.masks[version.index()].as_ptr();
        let InitArgs { id, name, nodes, ranks, rank, logger } = args;
        let mut context = null_mut();
        let result = if version == Version::V4 {
            // SAFETY: a table of version 4 has this `init`.
            let init = unsafe { transmute::<unsafe extern "C" fn(), InitV4>(init) };
            // SAFETY: as NCCL calls it; the mask is a static of ours, which lives as long as NCCL's.
            unsafe { init(&mut context, mask, name, id, nodes, ranks, rank, logger) }
        } else {
            // SAFETY: tables since version 5 have this `init`.
            let init = unsafe { transmute::<unsafe extern "C" fn(), InitV5>(init) };
            // SAFETY: as above.
            unsafe { init(&mut context, id, mask, name, nodes, ranks, rank, logger) }
        };
        self.mask_applied(version);
        (result == super::abi::SUCCESS).then_some(context)
    }

    /// An event begins; `translate` turns our handles into the plug-in's. Returns the plug-in's handle, or 0.
    ///
    /// # Safety
    /// `descr` must point to a whole descriptor of `version`.
    pub unsafe fn start(
        &self,
        version: Version,
        context: u64,
        descr: *const c_void,
        kind: u64,
        translate: impl Fn(u64) -> u64,
    ) -> u64 {
        let Some(start) = self.table(version).and_then(|table| table.start) else { return 0 };
        // A copy, because the plug-in has other handles for the parents.
        let mut copy = [0u64; size_of::<EventV7>() / 8];
        let bytes = version.descr_bytes();
        // SAFETY: the caller promised that many bytes there; the copy is at least as large.
        unsafe {
            core::ptr::copy_nonoverlapping(descr.cast::<u8>(), copy.as_mut_ptr().cast(), bytes)
        };
        let mut parent = |offset: usize| copy[offset / 8] = translate(copy[offset / 8]);
        parent(offset_of!(EventV7, parent_obj));
        if version >= Version::V5 {
            const OF: usize = offset_of!(EventV7, of);
            match kind {
                bit::COLL => parent(OF + offset_of!(Coll, parent_group)),
                bit::P2P => parent(OF + offset_of!(P2p, parent_group)),
                _ => {}
            }
        }
        let mut handle = null_mut();
        // SAFETY: a table of this version, a descriptor of this version, its own context.
        unsafe { start(context as *mut c_void, &mut handle, copy.as_mut_ptr().cast()) };
        handle as u64
    }

    /// An event of the plug-in ends.
    pub fn stop(&self, version: Version, handle: u64) {
        if let Some(stop) = self.table(version).and_then(|table| table.stop) {
            // SAFETY: its own handle, which it gets back here once.
            unsafe { stop(handle as *mut c_void) };
        }
    }

    /// An event of the plug-in changes its state.
    pub fn record_state(&self, version: Version, handle: u64, state: c_int, args: *mut StateArgs) {
        if let Some(record) = self.table(version).and_then(|table| table.record_state) {
            // SAFETY: its own handle, and what NCCL gave for the state.
            unsafe { record(handle as *mut c_void, state, args) };
        }
    }

    /// A communicator of the plug-in is finalised.
    pub fn finalize(&self, version: Version, context: u64) {
        if context == 0 {
            return;
        }
        if let Some(finalize) = self.table(version).and_then(|table| table.finalize) {
            // SAFETY: its own context.
            unsafe { finalize(context as *mut c_void) };
        }
    }
}

/// The library that NCCL would load for `name`: by that path or name, or else as a suffix.
fn library(name: &CStr) -> Option<*mut c_void> {
    let open = |name: *const c_char| {
        // SAFETY: null (the program itself) or a C string.
        let library = unsafe { libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!library.is_null()).then_some(library)
    };
    let text = name.to_bytes();
    if text.is_empty() {
        return open(c"libnccl-profiler.so".as_ptr());
    }
    if text.eq_ignore_ascii_case(b"STATIC_PLUGIN") {
        return open(null());
    }
    if let Some(library) = open(name.as_ptr()) {
        return Some(library);
    }
    let is_file = text.starts_with(b"lib") && text.ends_with(b".so");
    let suffix = !text.contains(&b'/') && !is_file;
    let long = [b"libnccl-profiler-", text, b".so\0"].concat();
    suffix.then(|| open(long.as_ptr().cast())).flatten()
}

#[cfg(test)]
mod tests {
    use super::bit::*;
    use super::*;

    #[test]
    fn a_plug_in_gets_what_it_asked_for_and_what_is_above() {
        assert!(delivered(COLL, COLL) && delivered(COLL, GROUP) && delivered(COLL, COLL_API));
        assert!(!delivered(COLL, P2P) && !delivered(COLL, KERNEL_CH));
        assert!(!delivered(COLL, PROXY_OP) && !delivered(COLL, KERNEL_LAUNCH));
        assert!(delivered(NET_PLUGIN, PROXY_STEP) && delivered(NET_PLUGIN, COLL));
        assert!(delivered(KERNEL_PHASE, KERNEL_CH) && delivered(KERNEL_PHASE, COLL_API));
        assert!(delivered(CE_SYNC, CE_COLL) && !delivered(CE_COLL, CE_SYNC));
        assert!(!delivered(0, GROUP_API) && !delivered(0xffff, 1 << 20));
    }
}
