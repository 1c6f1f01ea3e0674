//! The NCCL profiler interface, versions 4 to 7, as its headers declare it
//! (`src/include/plugin/profiler/profiler_v{4,5,6,7}.h` of NVIDIA/nccl, Apache-2.0).
//!
//! A field that two versions share lies at the same offset in both, with one exception: `type` is
//! one byte in version 4 and eight later. So one reader, [`Descr`], reads all four; the assertions
//! below are what it relies on. Sizes and offsets were taken from the debug information of the
//! published libraries.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::ptr::addr_of;

/// A version of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// NCCL 2.27.
    V4 = 4,
    /// NCCL 2.28.
    V5 = 5,
    /// NCCL 2.29 and 2.30.
    V6 = 6,
    /// NCCL 2.31 and later.
    V7 = 7,
}

impl Version {
    /// All of them.
    pub const ALL: [Version; 4] = [Version::V4, Version::V5, Version::V6, Version::V7];

    /// Its place in [`Version::ALL`].
    pub const fn index(self) -> usize {
        self as usize - 4
    }

    /// The symbol that NCCL looks for.
    pub const fn symbol(self) -> &'static core::ffi::CStr {
        match self {
            Version::V4 => c"ncclProfiler_v4",
            Version::V5 => c"ncclProfiler_v5",
            Version::V6 => c"ncclProfiler_v6",
            Version::V7 => c"ncclProfiler_v7",
        }
    }

    /// Bytes of its event descriptor.
    pub const fn descr_bytes(self) -> usize {
        match self {
            Version::V4 => size_of::<EventV4>(),
            Version::V5 => size_of::<EventV5>(),
            Version::V6 => size_of::<EventV6>(),
            Version::V7 => size_of::<EventV7>(),
        }
    }

    /// The event bits that it has.
    pub const fn bits(self) -> u64 {
        match self {
            Version::V4 => 0xff,
            Version::V5 => 0xfff,
            Version::V6 => 0x7fff,
            Version::V7 => 0xffff,
        }
    }
}

/// Event bits; an event is one of them, a mask is any of them.
pub mod bit {
    /// A legacy group of tasks.
    pub const GROUP: u64 = 1;
    /// A collective, from its hand-over to the threads of NCCL.
    pub const COLL: u64 = 1 << 1;
    /// A send or receive.
    pub const P2P: u64 = 1 << 2;
    /// What the network thread does for one channel of a task.
    pub const PROXY_OP: u64 = 1 << 3;
    /// One transfer of a proxy operation.
    pub const PROXY_STEP: u64 = 1 << 4;
    /// The network thread at its own work: idle, asleep, appending.
    pub const PROXY_CTRL: u64 = 1 << 5;
    /// A task's kernel on one channel.
    pub const KERNEL_CH: u64 = 1 << 6;
    /// What a network plug-in defines.
    pub const NET_PLUGIN: u64 = 1 << 7;
    /// A group of calls, also of one.
    pub const GROUP_API: u64 = 1 << 8;
    /// A call of a collective.
    pub const COLL_API: u64 = 1 << 9;
    /// A call of a send or receive.
    pub const P2P_API: u64 = 1 << 10;
    /// The launch of the kernel of a group.
    pub const KERNEL_LAUNCH: u64 = 1 << 11;
    /// A collective by copy engines.
    pub const CE_COLL: u64 = 1 << 12;
    /// A barrier of a collective by copy engines.
    pub const CE_SYNC: u64 = 1 << 13;
    /// Copies of a collective by copy engines.
    pub const CE_BATCH: u64 = 1 << 14;
    /// A phase of a kernel on one channel.
    pub const KERNEL_PHASE: u64 = 1 << 15;
}

/// States that an event passes through; NCCL reports each as it is entered.
pub mod state {
    /// A send waits for data of the GPU.
    pub const STEP_SEND_GPU_WAIT: c_int = 8;
    /// A send waits for the network.
    pub const STEP_SEND_WAIT: c_int = 9;
    /// A receive waits for the network.
    pub const STEP_RECV_WAIT: c_int = 10;
    /// A receive waits for the data to reach the GPU's memory.
    pub const STEP_RECV_FLUSH_WAIT: c_int = 11;
    /// A receive waits for the GPU to take the data.
    pub const STEP_RECV_GPU_WAIT: c_int = 12;
    /// A proxy operation has begun.
    pub const PROXY_OP_IN_PROGRESS: c_int = 19;
    /// A send waits for the other rank to be ready.
    pub const STEP_SEND_PEER_WAIT: c_int = 20;
    /// A network plug-in's update.
    pub const NET_PLUGIN_UPDATE: c_int = 21;
    /// A kernel has ended on a channel; comes with the time.
    pub const KERNEL_CH_STOP: c_int = 22;
    /// `ncclGroupStart` has returned.
    pub const GROUP_START_API_STOP: c_int = 23;
    /// `ncclGroupEnd` was called.
    pub const GROUP_END_API_START: c_int = 24;
    /// A phase has ended; comes with the time.
    pub const KERNEL_PHASE_STOP: c_int = 31;

    use core::ffi::c_int;
}

// What is `bool` in the headers is a byte here: C may have left any value in it.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type,)* }
    )*};
}

type Text = *const c_char;
type Object = *mut c_void;

layouts! {
    /// From `ncclGroupStart` to `ncclGroupEnd`, also the group that each single call makes.
    GroupApi { graph_captured: u8, group_depth: c_int, }
    /// The part of a call that appends a collective to its group; version 7.
    CollApi {
        func: Text, count: usize, datatype: Text, root: c_int, stream: Object,
        graph_captured: u8, user_tag: u64,
    }
    /// Versions 5 and 6.
    CollApiV5 {
        func: Text, count: usize, datatype: Text, root: c_int, stream: Object,
        graph_captured: u8,
    }
    /// The part of a call that appends a send or receive to its group; version 7.
    P2pApi {
        func: Text, count: usize, datatype: Text, stream: Object, graph_captured: u8,
        user_tag: u64,
    }
    /// Versions 5 and 6.
    P2pApiV5 {
        func: Text, count: usize, datatype: Text, stream: Object, graph_captured: u8,
    }
    /// The call that launches the kernel of a group.
    KernelLaunch { stream: Object, }
    /// A collective; version 7.
    Coll {
        seq_number: u64, func: Text, send_buff: *const c_void, recv_buff: Object, count: usize,
        root: c_int, datatype: Text, n_channels: u8, n_warps: u8, algo: Text, proto: Text,
        parent_group: Object, kernel_variant: Text, is_sym_coll: u8, user_tag: u64,
    }
    /// Versions 5 and 6.
    CollV5 {
        seq_number: u64, func: Text, send_buff: *const c_void, recv_buff: Object, count: usize,
        root: c_int, datatype: Text, n_channels: u8, n_warps: u8, algo: Text, proto: Text,
        parent_group: Object,
    }
    /// Version 4.
    CollV4 {
        seq_number: u64, func: Text, send_buff: *const c_void, recv_buff: Object, count: usize,
        root: c_int, datatype: Text, n_channels: u8, n_warps: u8, algo: Text, proto: Text,
    }
    /// A send or receive; version 7.
    P2p {
        func: Text, buff: Object, datatype: Text, count: usize, peer: c_int, n_channels: u8,
        parent_group: Object, user_tag: u64,
    }
    /// Versions 5 and 6.
    P2pV5 {
        func: Text, buff: Object, datatype: Text, count: usize, peer: c_int, n_channels: u8,
        parent_group: Object,
    }
    /// Version 4.
    P2pV4 {
        func: Text, buff: Object, datatype: Text, count: usize, peer: c_int, n_channels: u8,
    }
    /// What the thread that feeds the network does for one channel of a task. `pid` is that of
    /// the process whose task it is, which with PXN is another one.
    ProxyOp {
        pid: c_int, channel_id: u8, peer: c_int, n_steps: c_int, chunk_size: c_int,
        is_send: c_int,
    }
    /// One transfer of a [`ProxyOp`].
    ProxyStep { step: c_int, }
    /// A task's kernel on one channel; `p_timer` is the GPU's `%globaltimer`.
    KernelCh { channel_id: u8, p_timer: u64, }
    /// What a network plug-in defines.
    NetPlugin { id: i64, data: Object, }
    /// A collective by copy engines; version 7.
    CeColl {
        seq_number: u64, func: Text, send_buff: *const c_void, recv_buff: Object, count: usize,
        root: c_int, datatype: Text, sync_strategy: Text, intra_batch_sync: u8,
        batch_size: u32, num_batches: u32, ce_seq_num: u32, stream: Object, user_tag: u64,
    }
    /// Version 6.
    CeCollV6 {
        seq_number: u64, func: Text, send_buff: *const c_void, recv_buff: Object, count: usize,
        root: c_int, datatype: Text, sync_strategy: Text, intra_batch_sync: u8,
        batch_size: u32, num_batches: u32, ce_seq_num: u32, stream: Object,
    }
    /// A barrier of a [`CeColl`].
    CeSync { is_complete: u8, n_ranks: c_int, }
    /// Copies of a [`CeColl`].
    CeBatch { num_ops: c_int, total_bytes: usize, use_intra_sync: u8, }
    /// A phase of a [`KernelCh`], its parent.
    KernelPhase { channel_id: u8, phase_id: u8, phase_name: Text, p_timer: u64, }
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident: $type:ty, $union:ident { $($field:ident: $of:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub union $union { $(pub $field: $of,)* }

        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct $name {
            pub kind: $type,
            pub parent_obj: Object,
            pub rank: c_int,
            pub of: $union,
        }
    )*};
}

events! {
    /// The descriptor of version 4.
    EventV4: u8, OfV4 {
        coll: CollV4, p2p: P2pV4, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelCh,
        net_plugin: NetPlugin,
    }
    /// The descriptor of version 5.
    EventV5: u64, OfV5 {
        group_api: GroupApi, coll_api: CollApiV5, p2p_api: P2pApiV5, kernel_launch: KernelLaunch,
        coll: CollV5, p2p: P2pV5, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelCh,
        net_plugin: NetPlugin,
    }
    /// The descriptor of version 6.
    EventV6: u64, OfV6 {
        group_api: GroupApi, coll_api: CollApiV5, p2p_api: P2pApiV5, kernel_launch: KernelLaunch,
        coll: CollV5, p2p: P2pV5, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelCh,
        net_plugin: NetPlugin, ce_coll: CeCollV6, ce_sync: CeSync, ce_batch: CeBatch,
    }
    /// The descriptor of version 7.
    EventV7: u64, OfV7 {
        group_api: GroupApi, coll_api: CollApi, p2p_api: P2pApi, kernel_launch: KernelLaunch,
        coll: Coll, p2p: P2p, proxy_op: ProxyOp, proxy_step: ProxyStep, kernel_ch: KernelCh,
        net_plugin: NetPlugin, ce_coll: CeColl, ce_sync: CeSync, ce_batch: CeBatch,
        kernel_phase: KernelPhase,
    }
}

/// What comes with a state; versions 4 to 7.
#[repr(C)]
#[derive(Clone, Copy)]
pub union StateArgs {
    /// Bytes transferred, of a proxy step.
    pub trans_size: usize,
    /// Operations appended, of the network thread.
    pub appended_proxy_ops: c_int,
    /// What a network plug-in defines.
    pub data: Object,
    /// The GPU's `%globaltimer`, ns.
    pub p_timer: u64,
}

/// `ncclSuccess`, the only result that we ever return.
pub const SUCCESS: c_int = 0;

/// `init` of version 4; the last argument is NCCL's logger.
pub type InitV4 = unsafe extern "C" fn(
    *mut Object,
    *mut c_int,
    Text,
    u64,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;
/// `init` of versions 5 to 7.
pub type InitV5 = unsafe extern "C" fn(
    *mut Object,
    u64,
    *mut c_int,
    Text,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;
/// `startEvent`.
pub type Start = unsafe extern "C" fn(Object, *mut Object, *mut c_void) -> c_int;
/// `stopEvent`.
pub type Stop = unsafe extern "C" fn(Object) -> c_int;
/// `recordEventState`.
pub type RecordState = unsafe extern "C" fn(Object, c_int, *mut StateArgs) -> c_int;
/// `finalize`.
pub type Finalize = unsafe extern "C" fn(Object) -> c_int;

/// What a plug-in exports; `I` is [`InitV4`] or [`InitV5`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table<I> {
    /// The plug-in's name.
    pub name: Text,
    /// A communicator is made.
    pub init: Option<I>,
    /// An event begins.
    pub start: Option<Start>,
    /// An event ends.
    pub stop: Option<Stop>,
    /// An event changes its state.
    pub record_state: Option<RecordState>,
    /// A communicator is finalised.
    pub finalize: Option<Finalize>,
}

// SAFETY: the name is a literal, the rest are functions; nothing of it changes.
unsafe impl<I: Sync> Sync for Table<I> {}

const UNION: usize = 24;

const _: () = {
    assert!(size_of::<Table<InitV5>>() == 48 && size_of::<StateArgs>() == 8);
    assert!(size_of::<EventV4>() == 104 && size_of::<EventV5>() == 112);
    assert!(size_of::<EventV6>() == 112 && size_of::<EventV7>() == 136);
    assert!(offset_of!(EventV4, parent_obj) == 8 && offset_of!(EventV7, parent_obj) == 8);
    assert!(offset_of!(EventV4, rank) == 16 && offset_of!(EventV7, rank) == 16);
    assert!(offset_of!(EventV4, of) == UNION && offset_of!(EventV5, of) == UNION);
    assert!(offset_of!(EventV6, of) == UNION && offset_of!(EventV7, of) == UNION);
    assert!(UNION + offset_of!(GroupApi, group_depth) == 28);
    assert!(UNION + offset_of!(CollApi, stream) == 56);
    assert!(UNION + offset_of!(CollApi, graph_captured) == 64);
    assert!(UNION + offset_of!(CollApi, user_tag) == 72);
    assert!(offset_of!(CollApi, graph_captured) == offset_of!(CollApiV5, graph_captured));
    assert!(UNION + offset_of!(P2pApi, graph_captured) == 56);
    assert!(UNION + offset_of!(P2pApi, user_tag) == 64);
    assert!(offset_of!(P2pApi, graph_captured) == offset_of!(P2pApiV5, graph_captured));
    assert!(UNION + offset_of!(Coll, func) == 32 && UNION + offset_of!(Coll, count) == 56);
    assert!(UNION + offset_of!(Coll, datatype) == 72);
    assert!(UNION + offset_of!(Coll, n_channels) == 80);
    assert!(UNION + offset_of!(Coll, algo) == 88 && UNION + offset_of!(Coll, proto) == 96);
    assert!(UNION + offset_of!(Coll, parent_group) == 104);
    assert!(UNION + offset_of!(Coll, kernel_variant) == 112);
    assert!(UNION + offset_of!(Coll, is_sym_coll) == 120);
    assert!(UNION + offset_of!(Coll, user_tag) == 128);
    assert!(offset_of!(CollV4, proto) == offset_of!(Coll, proto));
    assert!(offset_of!(CollV5, parent_group) == offset_of!(Coll, parent_group));
    assert!(UNION + offset_of!(P2p, datatype) == 40 && UNION + offset_of!(P2p, count) == 48);
    assert!(UNION + offset_of!(P2p, peer) == 56 && UNION + offset_of!(P2p, n_channels) == 60);
    assert!(UNION + offset_of!(P2p, parent_group) == 64 && UNION + offset_of!(P2p, user_tag) == 72);
    assert!(offset_of!(P2pV4, n_channels) == offset_of!(P2p, n_channels));
    assert!(offset_of!(P2pV5, parent_group) == offset_of!(P2p, parent_group));
    assert!(
        UNION + offset_of!(ProxyOp, channel_id) == 28 && UNION + offset_of!(ProxyOp, peer) == 32
    );
    assert!(
        UNION + offset_of!(ProxyOp, n_steps) == 36 && UNION + offset_of!(ProxyOp, is_send) == 44
    );
    assert!(UNION + offset_of!(KernelCh, p_timer) == 32);
    assert!(UNION + offset_of!(NetPlugin, data) == 32);
    assert!(UNION + offset_of!(CeColl, sync_strategy) == 80);
    assert!(UNION + offset_of!(CeColl, intra_batch_sync) == 88);
    assert!(UNION + offset_of!(CeColl, ce_seq_num) == 100);
    assert!(UNION + offset_of!(CeColl, stream) == 104);
    assert!(UNION + offset_of!(CeColl, user_tag) == 112);
    assert!(offset_of!(CeCollV6, stream) == offset_of!(CeColl, stream));
    assert!(UNION + offset_of!(CeSync, n_ranks) == 28);
    assert!(UNION + offset_of!(CeBatch, total_bytes) == 32);
    assert!(UNION + offset_of!(KernelPhase, phase_id) == 25);
    assert!(UNION + offset_of!(KernelPhase, phase_name) == 32);
    assert!(UNION + offset_of!(KernelPhase, p_timer) == 40);
};

/// A descriptor that NCCL gave us: its address and its version.
#[derive(Clone, Copy)]
pub struct Descr {
    at: *const EventV7,
    version: Version,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $method:ident -> $type:ty = $($path:ident).+, since $since:ident or $else:expr;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub fn $method(&self) -> $type {
            if self.version < Version::$since {
                return $else;
            }
            // SAFETY: `new`'s caller promised a whole descriptor of `version`, which has this
            // field, at the offset that it has in version 7 (asserted above). No reference to
            // the whole is made, so that a shorter descriptor is never touched beyond its end.
            unsafe { addr_of!((*self.at).of.$($path).+).read() }
        }
    )*};
}

impl Descr {
    /// A descriptor of `version` at `at`.
    ///
    /// # Safety
    /// `at` must point to a whole descriptor of that version that stays as it is while this is
    /// used.
    pub unsafe fn new(at: *const c_void, version: Version) -> Descr {
        Descr { at: at.cast(), version }
    }

    /// The event bit.
    #[inline]
    pub fn kind(&self) -> u64 {
        match self.version {
            // SAFETY: a whole descriptor (`new`), whose first byte this is.
            Version::V4 => unsafe { self.at.cast::<u8>().read() as u64 },
            // SAFETY: as above, eight bytes since version 5.
            _ => unsafe { self.at.cast::<u64>().read() },
        }
    }

    /// The handle of the event that this one is a part of.
    #[inline]
    pub fn parent(&self) -> u64 {
        // SAFETY: all versions have it there (asserted above).
        unsafe { addr_of!((*self.at).parent_obj).read() as u64 }
    }

    fields! {
        /// How deep the group is nested: 1 is that of a single call.
        group_depth -> c_int = group_api.group_depth, since V5 or 0;
        /// The operation.
        coll_api_func -> Text = coll_api.func, since V5 or core::ptr::null();
        /// Whether the call was captured into a graph, and runs with each of its launches.
        coll_api_captured -> u8 = coll_api.graph_captured, since V5 or 0;
        /// The operation.
        p2p_api_func -> Text = p2p_api.func, since V5 or core::ptr::null();
        /// As for collectives.
        p2p_api_captured -> u8 = p2p_api.graph_captured, since V5 or 0;
        /// The call's number within its communicator and operation.
        coll_seq -> u64 = coll.seq_number, since V4 or 0;
        /// The operation.
        coll_func -> Text = coll.func, since V4 or core::ptr::null();
        /// Elements.
        coll_count -> usize = coll.count, since V4 or 0;
        /// Their type.
        coll_datatype -> Text = coll.datatype, since V4 or core::ptr::null();
        /// Channels.
        coll_channels -> u8 = coll.n_channels, since V4 or 0;
        /// Algorithm.
        coll_algo -> Text = coll.algo, since V4 or core::ptr::null();
        /// Protocol.
        coll_proto -> Text = coll.proto, since V4 or core::ptr::null();
        /// The legacy group.
        coll_group -> Object = coll.parent_group, since V5 or core::ptr::null_mut();
        /// The symmetric kernel's name.
        coll_variant -> Text = coll.kernel_variant, since V7 or core::ptr::null();
        /// Whether a symmetric kernel runs it.
        coll_symmetric -> u8 = coll.is_sym_coll, since V7 or 0;
        /// The operation.
        p2p_func -> Text = p2p.func, since V4 or core::ptr::null();
        /// Elements' type.
        p2p_datatype -> Text = p2p.datatype, since V4 or core::ptr::null();
        /// Elements.
        p2p_count -> usize = p2p.count, since V4 or 0;
        /// The other rank.
        p2p_peer -> c_int = p2p.peer, since V4 or 0;
        /// Channels.
        p2p_channels -> u8 = p2p.n_channels, since V4 or 0;
        /// The legacy group.
        p2p_group -> Object = p2p.parent_group, since V5 or core::ptr::null_mut();
        /// The process whose task it is.
        proxy_pid -> c_int = proxy_op.pid, since V4 or 0;
        /// The channel.
        proxy_channel -> u8 = proxy_op.channel_id, since V4 or 0;
        /// The channel.
        kernel_channel -> u8 = kernel_ch.channel_id, since V4 or 0;
        /// When it began, by the GPU's clock.
        kernel_timer -> u64 = kernel_ch.p_timer, since V4 or 0;
        /// The call's number within its communicator.
        ce_seq -> u64 = ce_coll.seq_number, since V6 or 0;
        /// The operation.
        ce_func -> Text = ce_coll.func, since V6 or core::ptr::null();
        /// Elements.
        ce_count -> usize = ce_coll.count, since V6 or 0;
        /// Their type.
        ce_datatype -> Text = ce_coll.datatype, since V6 or core::ptr::null();
        /// `MC` or `UC`: by multicast or one by one.
        ce_strategy -> Text = ce_coll.sync_strategy, since V6 or core::ptr::null();
        /// The channel.
        phase_channel -> u8 = kernel_phase.channel_id, since V7 or 0;
        /// Which phase: 0, 1 or 2.
        phase_id -> u8 = kernel_phase.phase_id, since V7 or 0;
        /// When it began, by the GPU's clock.
        phase_timer -> u64 = kernel_phase.p_timer, since V7 or 0;
    }
}
