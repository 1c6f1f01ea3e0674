//! The tracker with a fake NCCL of each version and a clock that the test sets: situations, and the
//! records of them.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use gpuwhy_wire::{Event, NameId, Record};

use super::Detail;
use super::abi::*;
use super::follow::Tracker;
use super::multiplex::InitArgs;
use super::open::{Settings, TASKS, mask};
use super::outside::{Outside, Sink};
use crate::notice::Code;

/// How far the GPU's clock is ahead of the host's, ns.
const AHEAD: u64 = 1_700_000_000_000_000_000;

/// An agent that receives records as lines.
struct World {
    now: AtomicU64,
    generation: AtomicU64,
    names: Mutex<Vec<String>>,
    lines: Mutex<Vec<String>>,
}

impl World {
    const fn new() -> World {
        World {
            now: AtomicU64::new(1_000_000_000),
            generation: AtomicU64::new(1),
            names: Mutex::new(Vec::new()),
            lines: Mutex::new(Vec::new()),
        }
    }

    fn line(&self, event: Event) -> String {
        let names = self.names.lock().unwrap();
        let name = |id: NameId| match id.0 {
            0 => "-",
            n => &names[n as usize - 1],
        };
        let by = |on_gpu: bool| if on_gpu { "gpu" } else { "host" };
        match (Record { pid: 0, tid: 0, event }).named(name).event {
            Event::Communicator { name, communicator: c, id, rank, ranks, at: _ } => {
                format!("communicator {c} `{name}` {id:#x} rank {rank} of {ranks}")
            }
            Event::Collective { name, communicator, seq, bytes, how, on_gpu, start, dur } => {
                let by = by(on_gpu);
                format!("{communicator} {name} #{seq} {bytes} B {how} {by} {start}+{dur}")
            }
            Event::Message { name, communicator, peer, seq, bytes, on_gpu, start, dur } => {
                let by = by(on_gpu);
                format!("{communicator} {name} {peer} #{seq} {bytes} B {by} {start}+{dur}")
            }
            Event::Stage { name, operation, seq, channel, on_gpu, start, dur, .. } => {
                let channel = channel.map_or("mean".into(), |c| format!("ch {c}"));
                format!("  {operation} #{seq} {name} {channel} {} {start}+{dur}", by(on_gpu))
            }
            Event::Phase { name, start, dur, .. } => format!("phase {name} {start}+{dur}"),
            Event::Notice { code, value, .. } => format!("notice {code} {}", value.unwrap()),
            other => format!("{other:?}"),
        }
    }
}

impl Sink for World {
    fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    fn name(&self, name: &str) -> NameId {
        let mut names = self.names.lock().unwrap();
        let at = names.iter().position(|n| n == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        });
        NameId(at as u32 + 1)
    }

    fn write(&self, event: Event) {
        let line = self.line(event);
        self.lines.lock().unwrap().push(line);
    }
}

impl Outside for World {
    fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    fn with(&self, f: impl FnOnce(&dyn Sink)) {
        if self.generation.load(Relaxed) != 0 {
            f(self);
        }
    }
}

type Handle = *mut c_void;

/// NCCL of one version, with one communicator.
struct Nccl {
    tracker: &'static Tracker<World>,
    version: Version,
    context: Handle,
    mask: &'static mut c_int,
}

/// A collective, as it is unless a test says otherwise.
fn all_reduce(seq_number: u64, n_channels: u8) -> Coll {
    Coll {
        seq_number,
        func: c"AllReduce".as_ptr(),
        send_buff: null(),
        recv_buff: null_mut(),
        count: 1024,
        root: 0,
        datatype: c"ncclFloat16".as_ptr(),
        n_channels,
        n_warps: 16,
        algo: c"RING".as_ptr(),
        proto: c"LL128".as_ptr(),
        parent_group: null_mut(),
        kernel_variant: null(),
        is_sym_coll: 0,
        user_tag: 0,
    }
}

fn args(id: u64, name: &'static CStr) -> InitArgs {
    InitArgs { id, name: name.as_ptr(), nodes: 2, ranks: 8, rank: 3, logger: null() }
}

impl Nccl {
    fn with(tracker: &'static Tracker<World>, version: Version, settings: Settings) -> Nccl {
        Nccl::open(tracker, version, args(0xabc, c"world"), settings)
    }

    fn open(
        tracker: &'static Tracker<World>,
        version: Version,
        args: InitArgs,
        settings: Settings,
    ) -> Nccl {
        let (mut context, mask) = (null_mut(), Box::leak(Box::new(0)));
        // SAFETY: both can be written, the mask for ever.
        unsafe { tracker.init(version, &mut context, mask, args, &[null(); 4], || settings) };
        Nccl { tracker, version, context, mask }
    }

    fn at(&self, now: u64) -> &Nccl {
        self.tracker.outside.now.store(1_000_000_000 + now, Relaxed);
        self
    }

    /// The GPU's clock when the host's is `now`.
    fn gpu(&self, now: u64) -> u64 {
        AHEAD + 1_000_000_000 + now
    }

    fn lines(&self) -> Vec<String> {
        let lines = std::mem::take(&mut *self.tracker.outside.lines.lock().unwrap());
        // Times as the test gave them.
        let short = |word: &str| match word.split_once('+') {
            Some((start, dur)) => {
                format!("{}+{dur}", start.parse::<i64>().unwrap() - 1_000_000_000)
            }
            None => word.to_owned(),
        };
        let line = |line: &String| line.split(' ').map(short).collect::<Vec<_>>().join(" ");
        lines.iter().map(line).collect()
    }

    fn raw<T>(&self, mut descr: T) -> Handle {
        let mut handle = 1 as Handle;
        let at = core::ptr::from_mut(&mut descr).cast();
        // SAFETY: a descriptor of this version, by its callers.
        unsafe { self.tracker.start(self.version, self.context, &mut handle, at) };
        handle
    }

    fn coll(&self, parent: Handle, c: Coll) -> Handle {
        let (kind, parent_obj, rank) = (bit::COLL, parent, 3);
        let Coll { seq_number, func, send_buff, recv_buff, count, root, .. } = c;
        let Coll { datatype, n_channels, n_warps, algo, proto, parent_group, .. } = c;
        macro_rules! shorter {
            ($type:ident $(, $more:ident)*) => {
                $type {
                    seq_number, func, send_buff, recv_buff, count, root, datatype, n_channels,
                    n_warps, algo, proto, $($more,)*
                }
            };
        }
        match self.version {
            Version::V4 => {
                let of = OfV4 { coll: shorter!(CollV4) };
                self.raw(EventV4 { kind: kind as u8, parent_obj, rank, of })
            }
            Version::V5 => {
                let of = OfV5 { coll: shorter!(CollV5, parent_group) };
                self.raw(EventV5 { kind, parent_obj, rank, of })
            }
            Version::V6 => {
                let of = OfV6 { coll: shorter!(CollV5, parent_group) };
                self.raw(EventV6 { kind, parent_obj, rank, of })
            }
            Version::V7 => self.raw(EventV7 { kind, parent_obj, rank, of: OfV7 { coll: c } }),
        }
    }

    fn p2p(&self, parent: Handle, func: &CStr, peer: c_int) -> Handle {
        let (kind, parent_obj, rank, null) = (bit::P2P, parent, 3, null_mut());
        let (func, datatype) = (func.as_ptr(), c"ncclInt8".as_ptr());
        let v5 = P2pV5 {
            func,
            buff: null,
            datatype,
            count: 100,
            peer,
            n_channels: 1,
            parent_group: null,
        };
        match self.version {
            Version::V4 => {
                let p2p = P2pV4 { func, buff: null, datatype, count: 100, peer, n_channels: 1 };
                self.raw(EventV4 { kind: kind as u8, parent_obj, rank, of: OfV4 { p2p } })
            }
            Version::V5 => self.raw(EventV5 { kind, parent_obj, rank, of: OfV5 { p2p: v5 } }),
            Version::V6 => self.raw(EventV6 { kind, parent_obj, rank, of: OfV6 { p2p: v5 } }),
            Version::V7 => {
                let p2p = P2p {
                    func,
                    buff: null,
                    datatype,
                    count: 100,
                    peer,
                    n_channels: 1,
                    parent_group: null,
                    user_tag: 0,
                };
                self.raw(EventV7 { kind, parent_obj, rank, of: OfV7 { p2p } })
            }
        }
    }

    /// What looks alike in all versions but for `kind`.
    fn small(&self, kind: u64, parent_obj: Handle, fill: impl FnOnce(&mut OfV7)) -> Handle {
        let zero = EventV7 {
            kind,
            parent_obj,
            rank: 3,
            // SAFETY: all zero is a value of each of them.
            of: unsafe { core::mem::zeroed() },
        };
        let mut event = zero;
        fill(&mut event.of);
        if self.version == Version::V4 {
            // SAFETY: the beginning of one union is the other's.
            let of = unsafe { core::mem::transmute_copy::<OfV7, OfV4>(&event.of) };
            return self.raw(EventV4 { kind: kind as u8, parent_obj, rank: 3, of });
        }
        self.raw(event)
    }

    fn group(&self, group_depth: c_int) -> Handle {
        let group_api = GroupApi { graph_captured: 0, group_depth };
        self.small(bit::GROUP_API, null_mut(), |of| of.group_api = group_api)
    }

    fn api(&self, parent: Handle, captured: u8) -> Handle {
        let coll_api = CollApi {
            func: c"AllReduce".as_ptr(),
            count: 1024,
            datatype: c"ncclFloat16".as_ptr(),
            root: 0,
            stream: null_mut(),
            graph_captured: captured,
            user_tag: 0,
        };
        self.small(bit::COLL_API, parent, |of| of.coll_api = coll_api)
    }

    fn channel(&self, parent: Handle, channel_id: u8, p_timer: u64) -> Handle {
        let kernel_ch = KernelCh { channel_id, p_timer };
        self.small(bit::KERNEL_CH, parent, |of| of.kernel_ch = kernel_ch)
    }

    fn phase(&self, parent: Handle, phase_id: u8, first: u64, last: u64) {
        let name = [c"initial_sync", c"compute", c"final_sync", c"?"][phase_id as usize];
        let kernel_phase =
            KernelPhase { channel_id: 0, phase_id, phase_name: name.as_ptr(), p_timer: first };
        let handle = self.small(bit::KERNEL_PHASE, parent, |of| of.kernel_phase = kernel_phase);
        self.state(handle, state::KERNEL_PHASE_STOP, last);
        self.stop(handle);
    }

    fn state(&self, handle: Handle, what: c_int, p_timer: u64) {
        let mut args = StateArgs { p_timer };
        // SAFETY: these states have such arguments, the others none.
        unsafe { self.tracker.record_state(self.version, handle, what, &mut args) };
    }

    fn stop(&self, handle: Handle) {
        self.tracker.stop(self.version, handle);
    }

    /// A channel's end, as NCCL reports it.
    fn channel_ends(&self, handle: Handle, p_timer: u64) {
        self.state(handle, state::KERNEL_CH_STOP, p_timer);
        self.stop(handle);
    }

    fn finalize(&self) {
        self.tracker.finalize(self.version, self.context);
    }
}

/// A tracker for this test alone.
macro_rules! tracker {
    () => {{
        static TRACKER: Tracker<World> = Tracker::new(World::new());
        &TRACKER
    }};
}

fn check(nccl: &Nccl, expected: &str) {
    let lines = expected.lines().map(|line| line.trim_start()).filter(|line| !line.is_empty());
    let want: Vec<_> = lines.map(|line| line.replace('.', "").to_owned()).collect();
    let have: Vec<_> = nccl.lines().iter().map(|line| line.trim_start().to_owned()).collect();
    assert_eq!(have, want, "{:?}", nccl.version);
}

fn phases() -> Settings {
    Settings { mask: Some(0xffff), ..Settings::default() }
}

#[test]
fn a_call_is_recorded_as_its_group_and_its_collective_from_the_append_to_the_hand_over() {
    for (version, tracker) in
        [(Version::V5, tracker!()), (Version::V6, tracker!()), (Version::V7, tracker!())]
    {
        let nccl = Nccl::with(tracker, version, Settings::default());
        let group = nccl.at(100).group(1);
        let api = nccl.api(group, 0);
        nccl.at(110).stop(api);
        let coll = nccl.at(200).coll(api, all_reduce(5, 24));
        nccl.at(250).stop(coll);
        nccl.at(300).stop(group);
        check(
            &nccl,
            "communicator 0 `world` 0xabc rank 3 of 8
             0 AllReduce #5 2048 B RING/LL128/24 host 100+150
             phase ncclAllReduce 100+200",
        );
    }
}

#[test]
fn before_version_5_a_collective_is_its_hand_over() {
    let nccl = Nccl::with(tracker!(), Version::V4, Settings::default());
    assert_eq!(*nccl.mask, (bit::COLL | bit::P2P) as c_int);
    let coll = nccl.at(200).coll(null_mut(), all_reduce(0, 2));
    nccl.at(250).stop(coll);
    nccl.finalize();
    check(
        &nccl,
        "communicator 0 `world` 0xabc rank 3 of 8
         0 AllReduce #0 2048 B RING/LL128/2 host 200+50",
    );
}

#[test]
fn a_group_of_several_calls_is_recorded_as_a_group() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    nccl.lines();
    let group = nccl.at(100).group(2);
    let apis = [nccl.api(group, 0), nccl.api(group, 0)];
    apis.into_iter().for_each(|api| nccl.at(110).stop(api));
    nccl.at(300).stop(group);
    let alone = nccl.at(400).api(null_mut(), 0);
    nccl.at(410).stop(alone);
    check(&nccl, "phase nccl group 100+200\nphase ncclAllReduce 400+10");
}

#[test]
fn channels_give_a_collective_its_time_on_the_gpu_in_every_version() {
    for (version, tracker) in
        Version::ALL
            .into_iter()
            .zip([tracker!(), tracker!(), tracker!(), tracker!()] as [&Tracker<World>; 4])
    {
        let settings = Settings { mask: Some(bit::COLL | bit::KERNEL_CH), ..Settings::default() };
        let nccl = Nccl::with(tracker, version, settings);
        nccl.lines();
        let coll = nccl.at(200).coll(null_mut(), all_reduce(5, 2));
        nccl.at(250).stop(coll);
        // The first pair has no way to us: from then on the clock is known exactly.
        let a = nccl.at(1000).channel(coll, 0, nccl.gpu(1000));
        let b = nccl.at(1500).channel(coll, 1, nccl.gpu(1100));
        nccl.at(4000).channel_ends(b, nccl.gpu(3000));
        check(&nccl, "");
        nccl.at(9000).channel_ends(a, nccl.gpu(2500));
        check(
            &nccl,
            "0 AllReduce #5 2048 B RING/LL128/2 gpu 1000+2000
             AllReduce #5 channel mean gpu 1050+1700",
        );
    }
}

#[test]
fn phases_are_recorded_as_means_over_the_channels() {
    let nccl = Nccl::with(tracker!(), Version::V7, phases());
    nccl.lines();
    let coll = nccl.at(200).coll(null_mut(), all_reduce(7, 2));
    nccl.at(250).stop(coll);
    let starts = [1000, 1200];
    let channels = [0, 1].map(|c| {
        let gpu = starts[c];
        nccl.at(gpu).channel(coll, c as u8, nccl.gpu(gpu))
    });
    for (c, channel) in channels.into_iter().enumerate() {
        let t = |at| nccl.gpu(starts[c] + at);
        nccl.at(5000).phase(channel, 0, t(0), t(1000));
        nccl.phase(channel, 1, t(1000), t(1500));
        nccl.phase(channel, 2, t(1500), t(1600));
        nccl.channel_ends(channel, t(1600));
    }
    check(
        &nccl,
        "0 AllReduce #7 2048 B RING/LL128/2 gpu 1000+1800
         AllReduce #7 initial_sync mean gpu 1100+1000
         AllReduce #7 compute mean gpu 2100+500
         AllReduce #7 final_sync mean gpu 2600+100",
    );
}

#[test]
fn with_network_detail_each_channel_and_each_wait_is_recorded() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    nccl.tracker.set_detail(Detail::Network);
    nccl.lines();
    let api = nccl.at(190).api(null_mut(), 0);
    let coll = nccl.at(200).coll(api, all_reduce(7, 1));
    nccl.stop(coll);
    let proxy_op = ProxyOp {
        pid: std::process::id() as c_int,
        channel_id: 4,
        peer: 1,
        n_steps: 1,
        chunk_size: 1,
        is_send: 1,
    };
    let op = nccl.small(bit::PROXY_OP, coll, |of| of.proxy_op = proxy_op);
    let step = nccl.at(300).small(bit::PROXY_STEP, op, |of| of.proxy_step = ProxyStep { step: 0 });
    nccl.at(310).state(step, state::STEP_SEND_GPU_WAIT, 0);
    nccl.at(330).state(step, state::STEP_SEND_PEER_WAIT, 0);
    nccl.at(400).state(step, state::STEP_SEND_WAIT, 0);
    nccl.at(900).stop(step);
    nccl.stop(op);
    let channel = nccl.at(1000).channel(coll, 4, nccl.gpu(1000));
    nccl.at(2000).channel_ends(channel, nccl.gpu(1700));
    check(
        &nccl,
        "AllReduce #7 net:send_gpu_wait ch 4 host 310+20
         AllReduce #7 net:send_peer_wait ch 4 host 330+70
         AllReduce #7 net:send_wait ch 4 host 400+500
         AllReduce #7 channel ch 4 gpu 1000+700
         0 AllReduce #7 2048 B RING/LL128/1 gpu 1000+700
         AllReduce #7 channel mean gpu 1000+700",
    );
}

#[test]
fn messages_count_by_peer_and_direction() {
    for (version, tracker) in [(Version::V4, tracker!()), (Version::V7, tracker!())] {
        let nccl = Nccl::with(tracker, version, Settings::default());
        nccl.lines();
        for (func, peer) in [(c"Send", 1), (c"Send", 2), (c"Recv", 1), (c"Send", 1)] {
            let message = nccl.at(10).p2p(null_mut(), func, peer);
            nccl.at(20).stop(message);
        }
        check(
            &nccl,
            "0 Send 1 #0 100 B host 10+10
             0 Send 2 #0 100 B host 10+10
             0 Recv 1 #0 100 B host 10+10
             0 Send 1 #1 100 B host 10+10",
        );
    }
}

#[test]
fn symmetric_kernels_and_copy_engines_are_named() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    nccl.lines();
    let variant = Coll {
        kernel_variant: c"AGxLL_R".as_ptr(),
        is_sym_coll: 1,
        algo: c"R".as_ptr(),
        proto: c"".as_ptr(),
        ..all_reduce(1, 8)
    };
    let coll = nccl.at(10).coll(null_mut(), variant);
    nccl.at(20).stop(coll);
    let ce_coll = CeColl {
        seq_number: 9,
        func: c"AllGather".as_ptr(),
        send_buff: null(),
        recv_buff: null_mut(),
        count: 8,
        root: 0,
        datatype: c"ncclFloat64".as_ptr(),
        sync_strategy: c"MC".as_ptr(),
        intra_batch_sync: 0,
        batch_size: 0,
        num_batches: 0,
        ce_seq_num: 9,
        stream: null_mut(),
        user_tag: 0,
    };
    let ce = nccl.at(30).small(bit::CE_COLL, null_mut(), |of| of.ce_coll = ce_coll);
    nccl.at(70).stop(ce);
    check(
        &nccl,
        "0 AllReduce #1 2048 B sym/AGxLL_R/8 host 10+10
         0 CeAllGather #9 64 B CE/MC host 30+40",
    );
}

#[test]
fn stops_may_come_late_twice_or_never() {
    let nccl = Nccl::with(tracker!(), Version::V7, phases());
    nccl.lines();
    let coll = nccl.at(200).coll(null_mut(), all_reduce(1, 1));
    // The channel ends before the collective does.
    let channel = nccl.at(1000).channel(coll, 0, nccl.gpu(1000));
    nccl.at(1010).channel_ends(channel, nccl.gpu(1010));
    check(&nccl, "");
    nccl.at(1100).stop(coll);
    check(
        &nccl,
        "0 AllReduce #1 2048 B RING/LL128/1 gpu 1000+10
         AllReduce #1 channel mean gpu 1000+10",
    );
    // After the end nothing that is said of it counts.
    nccl.channel_ends(channel, nccl.gpu(9000));
    nccl.stop(coll);
    nccl.state(coll, 22, 5);
    nccl.phase(channel, 1, nccl.gpu(1), nccl.gpu(2));
    check(&nccl, "");
    // One that never ends is recorded when its communicator ends.
    let coll = nccl.at(2000).coll(null_mut(), all_reduce(2, 1));
    nccl.channel(coll, 0, nccl.gpu(2000));
    nccl.at(2500).finalize();
    check(&nccl, "0 AllReduce #2 2048 B RING/LL128/1 host 2000+500");
    // And what comes then belongs to no event.
    nccl.stop(coll);
    assert!(nccl.coll(null_mut(), all_reduce(3, 1)).is_null());
    nccl.finalize();
    check(&nccl, "");
}

#[test]
fn a_full_pool_gives_null_and_goes_on_when_collectives_end() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    nccl.lines();
    let handles: Vec<_> =
        (0..10_000).map(|i| nccl.at(i).coll(null_mut(), all_reduce(i, 0))).collect();
    let given = handles.iter().filter(|h| !h.is_null()).count();
    assert_eq!(given, TASKS);
    // Out of order.
    handles.iter().rev().for_each(|h| nccl.stop(*h));
    assert_eq!(nccl.tracker.notices.value(Code::NcclFull), (10_000 - TASKS) as u64);
    let lines = nccl.lines();
    assert_eq!(lines.iter().filter(|l| l.starts_with("0 AllReduce")).count(), TASKS);
    assert!(lines.iter().any(|l| l == "notice 1 5904"), "{:?}", &lines[..3]);
    assert!(!nccl.coll(null_mut(), all_reduce(1, 0)).is_null());
    let numbers: std::collections::HashSet<_> = handles.into_iter().collect();
    assert_eq!(numbers.len(), TASKS + 1, "no handle twice");
}

#[test]
fn what_never_ended_makes_room_after_a_minute_and_is_recorded() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    let old: Vec<_> = (0..TASKS as u64).map(|i| nccl.coll(null_mut(), all_reduce(i, 0))).collect();
    assert!(nccl.at(1_000_000_000).coll(null_mut(), all_reduce(1, 0)).is_null());
    nccl.lines();
    let new = nccl.at(62_000_000_000).coll(null_mut(), all_reduce(9_999, 0));
    assert!(!new.is_null());
    assert_eq!(nccl.lines().iter().filter(|l| l.contains("AllReduce #")).count(), 1);
    nccl.stop(old[64 % TASKS]);
    nccl.stop(new);
    assert!(nccl.lines().iter().any(|l| l.contains("#9999")));
}

#[test]
fn impossible_times_of_the_gpu_are_counted_and_the_hosts_are_recorded() {
    let nccl = Nccl::with(tracker!(), Version::V7, phases());
    nccl.lines();
    let g = |at| nccl.gpu(at);
    let cases = [(0, g(1)), (g(5), 0), (g(2000), g(1000)), (g(0), g(700_000_000_000)), (0, 0)];
    for (seq, (first, last)) in cases.into_iter().enumerate() {
        let coll = nccl.at(100).coll(null_mut(), all_reduce(seq as u64, 1));
        nccl.at(150).stop(coll);
        let channel = nccl.at(3000).channel(coll, 0, first);
        nccl.channel_ends(channel, last);
    }
    assert_eq!(nccl.tracker.notices.value(Code::NcclTimer), cases.len() as u64);
    let lines = nccl.lines();
    let host = lines.iter().filter(|line| line.contains("host 100+50")).count();
    assert_eq!(host, cases.len(), "{lines:#?}");
}

#[test]
fn a_kernel_long_before_its_call_is_another_calls() {
    let nccl = Nccl::with(tracker!(), Version::V7, phases());
    let second = 1_000_000_000;
    let first = nccl.coll(null_mut(), all_reduce(0, 1));
    let channel = nccl.at(20 * second - 50).channel(first, 0, nccl.gpu(20 * second - 50));
    nccl.channel_ends(channel, nccl.gpu(20 * second - 50));
    let api = nccl.at(20 * second).api(null_mut(), 0);
    let coll = nccl.coll(api, all_reduce(1, 1));
    nccl.at(20 * second + 50).stop(coll);
    let channel = nccl.at(21 * second).channel(coll, 0, nccl.gpu(2 * second));
    nccl.channel_ends(channel, nccl.gpu(21 * second));
    assert!(nccl.lines().iter().any(|l| l.contains("#1 2048 B RING/LL128/1 host 20000000000+50")));
    assert_eq!(nccl.tracker.notices.value(Code::NcclTimer), 1);
}

#[test]
fn a_captured_call_gives_no_times_to_its_launches() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    nccl.lines();
    let api = nccl.at(10).api(null_mut(), 1);
    nccl.at(20).stop(api);
    let coll = nccl.at(5000).coll(api, all_reduce(1, 1));
    nccl.at(5010).stop(coll);
    check(
        &nccl,
        "phase ncclAllReduce 10+10
         0 AllReduce #1 2048 B RING/LL128/1 host 5000+10
         notice 9 1",
    );
}

#[test]
fn a_new_agent_receives_the_communicators() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    check(&nccl, "communicator 0 `world` 0xabc rank 3 of 8");
    let one = |seq| {
        let coll = nccl.at(5).coll(null_mut(), all_reduce(seq, 1));
        nccl.stop(coll);
    };
    one(0);
    check(&nccl, "0 AllReduce #0 2048 B RING/LL128/1 host 5+0");
    nccl.tracker.outside.generation.store(0, Relaxed);
    one(1);
    nccl.tracker.tick();
    check(&nccl, "");
    // Another ring: names have other numbers.
    nccl.tracker.outside.names.lock().unwrap().clear();
    nccl.tracker.outside.generation.store(2, Relaxed);
    nccl.tracker.tick();
    nccl.tracker.tick();
    check(&nccl, "communicator 0 `world` 0xabc rank 3 of 8");
    nccl.tracker.outside.names.lock().unwrap().clear();
    nccl.tracker.outside.generation.store(3, Relaxed);
    one(2);
    check(
        &nccl,
        "communicator 0 `world` 0xabc rank 3 of 8
         0 AllReduce #2 2048 B RING/LL128/1 host 5+0",
    );
}

#[test]
fn masks_are_what_each_version_has_and_follow_the_detail() {
    let low = bit::COLL | bit::P2P | bit::COLL_API | bit::P2P_API | bit::KERNEL_LAUNCH;
    let net = bit::PROXY_OP | bit::PROXY_STEP | bit::NET_PLUGIN;
    let trackers: [&Tracker<World>; 4] = [tracker!(), tracker!(), tracker!(), tracker!()];
    for (version, tracker) in Version::ALL.into_iter().zip(trackers) {
        let nccl = Nccl::with(tracker, version, Settings::default());
        let mask = |nccl: &Nccl| *nccl.mask as u64;
        let ce = if version >= Version::V6 { bit::CE_COLL } else { 0 };
        let base = (low | ce) & version.bits();
        let phase = if version == Version::V7 { bit::KERNEL_PHASE } else { 0 };
        assert_eq!(mask(&nccl), base);
        tracker.set_detail(Detail::Phases);
        assert_eq!(mask(&nccl), base | bit::KERNEL_CH | phase);
        tracker.set_detail(Detail::Network);
        assert_eq!(mask(&nccl), base | bit::KERNEL_CH | phase | net);
        tracker.set_detail(Detail::Low);
        assert_eq!(mask(&nccl), base);
        nccl.finalize();
        tracker.set_detail(Detail::Network);
        assert_eq!(mask(&nccl), base, "after the end the mask is not ours any more");
    }
    let settings = Settings { mask: Some(0x42), ..Settings::default() };
    assert_eq!(*Nccl::with(tracker!(), Version::V7, settings).mask, 0x42);
}

#[test]
fn switched_off_it_asks_for_nothing_and_records_nothing() {
    let settings = Settings { off: true, ..Settings::default() };
    let nccl = Nccl::with(tracker!(), Version::V7, settings);
    assert_eq!(*nccl.mask, 0);
    nccl.tracker.set_detail(Detail::Network);
    assert_eq!(*nccl.mask, 0);
    assert!(nccl.coll(null_mut(), all_reduce(1, 1)).is_null());
    nccl.tracker.tick();
    nccl.finalize();
    check(&nccl, "");
}

#[test]
fn hostile_descriptors_are_survived() {
    let trackers: [&Tracker<World>; 4] = [tracker!(), tracker!(), tracker!(), tracker!()];
    for (version, tracker) in Version::ALL.into_iter().zip(trackers) {
        let nccl = Nccl::with(tracker, version, phases());
        nccl.lines();
        let nothing = Coll {
            func: null(),
            datatype: null(),
            algo: null(),
            proto: null(),
            ..all_reduce(1, 0)
        };
        let coll = nccl.at(5).coll(0xdead_beef as Handle, nothing);
        nccl.stop(coll);
        check(&nccl, "0 - #1 0 B //0 host 5+0");
        let long: Vec<u8> = std::iter::repeat_n(b'x', 300).chain([0]).collect();
        let odd = c"\xff\xfe";
        let coll = nccl.coll(
            usize::MAX as Handle,
            Coll {
                func: long.as_ptr().cast(),
                datatype: odd.as_ptr(),
                algo: odd.as_ptr(),
                count: usize::MAX,
                n_channels: 255,
                ..all_reduce(u64::MAX, 0)
            },
        );
        nccl.finalize();
        nccl.stop(coll);
        let nccl = Nccl::open(tracker, version, args(1, c""), Settings::default());
        for kind in [0, 3, 0xff, 1 << 20, u64::MAX, bit::PROXY_CTRL, bit::GROUP] {
            assert!(nccl.small(kind, null_mut(), |_| {}).is_null(), "{kind:#x}");
        }
        for kind in (0..16).map(|n| 1 << n) {
            let handle = nccl.small(kind, 7 as Handle, |_| {});
            // SAFETY: no state needs arguments.
            (0..40).for_each(|what| unsafe {
                tracker.record_state(version, handle, what, null_mut())
            });
            nccl.stop(handle);
        }
        for handle in [0, 1, 42, u64::MAX, 1 << 63, nccl.context as u64] {
            nccl.stop(handle as Handle);
            // SAFETY: as above.
            unsafe { tracker.record_state(version, handle as Handle, 22, null_mut()) };
        }
        // SAFETY: null is allowed everywhere.
        unsafe {
            tracker.start(version, nccl.context, null_mut(), null());
            tracker.start(version, nccl.context, &mut null_mut(), null());
            tracker.init(
                version,
                null_mut(),
                null_mut(),
                args(1, c""),
                &[null(); 4],
                Settings::default,
            );
        }
        tracker.finalize(version, 99 as Handle);
    }
}

#[test]
fn another_processs_network_operations_are_not_ours() {
    let nccl = Nccl::with(tracker!(), Version::V7, phases());
    let coll = nccl.coll(null_mut(), all_reduce(1, 0));
    let pid = std::process::id() as c_int + 1;
    let proxy_op = ProxyOp { pid, channel_id: 4, peer: 1, n_steps: 1, chunk_size: 1, is_send: 1 };
    assert!(nccl.small(bit::PROXY_OP, coll, |of| of.proxy_op = proxy_op).is_null());
    let foreign =
        Nccl { context: 0x7f00_1234_5678 as Handle, mask: Box::leak(Box::new(0)), ..nccl };
    assert!(foreign.small(bit::PROXY_OP, coll, |of| of.proxy_op = proxy_op).is_null());
    assert_eq!(foreign.tracker.notices.value(Code::NcclForeign), 2);
}

#[test]
fn communicators_beyond_the_last_are_counted_and_ended_ones_make_room() {
    let tracker = tracker!();
    let open = |id| Nccl::open(tracker, Version::V7, args(id, c"c"), Settings::default());
    let all: Vec<_> = (0..256).map(open).collect();
    let none = open(999);
    assert!(none.context.is_null() && none.coll(null_mut(), all_reduce(1, 1)).is_null());
    assert_eq!(tracker.notices.value(Code::NcclCommunicators), 1);
    all[17].finalize();
    assert!(!open(1000).context.is_null());
    assert!(all[17].coll(null_mut(), all_reduce(1, 1)).is_null(), "an old context fits nothing");
}

#[test]
fn after_a_fork_no_handle_of_the_parent_is_valid_and_a_new_communicator_works() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    let coll = nccl.coll(null_mut(), all_reduce(1, 1));
    nccl.lines();
    nccl.tracker.forget_after_fork();
    nccl.stop(coll);
    assert!(nccl.coll(null_mut(), all_reduce(1, 1)).is_null());
    nccl.finalize();
    nccl.tracker.tick();
    check(&nccl, "");
    let child = Nccl::with(nccl.tracker, Version::V7, Settings::default());
    let coll = child.at(5).coll(null_mut(), all_reduce(2, 1));
    child.stop(coll);
    assert_eq!(child.lines().len(), 2);
}

#[test]
fn a_collective_that_hangs_is_recorded_as_open() {
    let nccl = Nccl::with(tracker!(), Version::V7, phases());
    nccl.lines();
    let coll = nccl.at(0).coll(null_mut(), all_reduce(7, 1));
    nccl.stop(coll);
    nccl.channel(coll, 0, nccl.gpu(0));
    let second = 1_000_000_000;
    (1..13).for_each(|s| nccl.at(s * second).tracker.tick());
    check(
        &nccl,
        "AllReduce #7 open mean host 0+5000000000
         AllReduce #7 open mean host 0+10000000000",
    );
}

/// NCCL keeps with each task, and with each graph, what was asked for when it was made.
#[test]
fn kernels_that_were_not_asked_for_in_time_are_not_waited_for() {
    let nccl = Nccl::with(tracker!(), Version::V7, Settings::default());
    nccl.lines();
    // Appended before the detail was raised, handed over after.
    let api = nccl.at(10).api(null_mut(), 0);
    nccl.at(20).tracker.set_detail(Detail::Phases);
    let coll = nccl.at(30).coll(api, all_reduce(1, 1));
    nccl.at(40).stop(coll);
    // A graph's launches have no call: at first nothing is expected of them,
    let graph = nccl.at(50).coll(null_mut(), all_reduce(2, 1));
    nccl.at(60).stop(graph);
    check(
        &nccl,
        "0 AllReduce #1 2048 B RING/LL128/1 host 10+30
         0 AllReduce #2 2048 B RING/LL128/1 host 50+10",
    );
    // and when channels come after all, they are waited for from then on.
    let channel = nccl.at(70).channel(graph, 0, nccl.gpu(70));
    nccl.at(90).channel_ends(channel, nccl.gpu(80));
    let graph = nccl.at(100).coll(null_mut(), all_reduce(3, 1));
    nccl.at(110).stop(graph);
    check(&nccl, "");
    let channel = nccl.at(120).channel(graph, 0, nccl.gpu(120));
    nccl.at(140).channel_ends(channel, nccl.gpu(130));
    check(
        &nccl,
        "0 AllReduce #3 2048 B RING/LL128/1 gpu 120+10
         AllReduce #3 channel mean gpu 120+10",
    );
    // Another graph, made before: recorded when its channels were waited for in vain.
    let graph = nccl.at(200).coll(null_mut(), all_reduce(4, 1));
    nccl.at(210).stop(graph);
    nccl.at(10_000_000_300).tracker.tick();
    check(&nccl, "0 AllReduce #4 2048 B RING/LL128/1 host 200+10");
}

/// A plug-in that counts, for NCCL that is v7.
mod other {
    use super::*;
    use std::sync::atomic::AtomicI32;

    pub static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    pub static MASK: AtomicI32 = AtomicI32::new((bit::COLL | bit::KERNEL_CH) as c_int);
    static LAST: AtomicU64 = AtomicU64::new(0x1000);

    fn see(what: String) -> c_int {
        SEEN.lock().unwrap().push(what);
        SUCCESS
    }

    unsafe extern "C" fn init(
        context: *mut Handle,
        id: u64,
        mask: *mut c_int,
        _: *const core::ffi::c_char,
        _: c_int,
        _: c_int,
        rank: c_int,
        _: *const c_void,
    ) -> c_int {
        // SAFETY: as `init` is called.
        unsafe {
            *context = 0x77 as Handle;
            *mask = MASK.load(Relaxed);
        }
        see(format!("init {id:#x} {rank}"))
    }

    unsafe extern "C" fn start(context: Handle, handle: *mut Handle, descr: *mut c_void) -> c_int {
        // SAFETY: a descriptor of version 7 or 5, which begin alike.
        let (kind, parent) = unsafe {
            let descr = descr.cast::<EventV7>();
            ((*descr).kind, (*descr).parent_obj)
        };
        let own = LAST.fetch_add(0x10, Relaxed);
        // SAFETY: as `startEvent` is called.
        unsafe { *handle = own as Handle };
        see(format!("{context:?} start {kind:#x} under {parent:?}: {own:#x}"))
    }

    unsafe extern "C" fn stop(handle: Handle) -> c_int {
        see(format!("stop {handle:?}"))
    }

    unsafe extern "C" fn state(handle: Handle, state: c_int, _: *mut StateArgs) -> c_int {
        see(format!("state {handle:?} {state}"))
    }

    unsafe extern "C" fn finalize(context: Handle) -> c_int {
        see(format!("finalize {context:?}"))
    }

    pub static TABLE: Table<InitV5> = Table {
        name: c"other".as_ptr(),
        init: Some(init),
        start: Some(start),
        stop: Some(stop),
        record_state: Some(state),
        finalize: Some(finalize),
    };
}

#[test]
fn the_users_own_plug_in_gets_what_it_asked_for_under_its_own_handles() {
    let tracker = tracker!();
    tracker.next.take(Version::V7, &other::TABLE);
    let nccl = Nccl::with(tracker, Version::V7, Settings::default());
    let ours = mask(Version::V7, Detail::Low, None);
    assert_eq!(*nccl.mask as u64, ours | bit::KERNEL_CH);
    let message = nccl.p2p(null_mut(), c"Send", 1);
    nccl.stop(message);
    let api = nccl.at(5).api(null_mut(), 0);
    nccl.stop(api);
    nccl.stop(api);
    let coll = nccl.coll(api, all_reduce(1, 1));
    let channel = nccl.channel(coll, 0, nccl.gpu(100));
    nccl.stop(coll);
    nccl.channel_ends(channel, nccl.gpu(200));
    nccl.channel_ends(channel, nccl.gpu(200));
    nccl.finalize();
    let seen = other::SEEN.lock().unwrap().join("\n");
    assert_eq!(
        seen,
        "init 0xabc 3
0x77 start 0x4 under 0x0: 0x1000
stop 0x1000
0x77 start 0x200 under 0x0: 0x1010
stop 0x1010
0x77 start 0x2 under 0x1010: 0x1020
0x77 start 0x40 under 0x1020: 0x1030
stop 0x1020
state 0x1030 22
stop 0x1030
finalize 0x77"
    );
    let lines = nccl.lines();
    assert!(lines.iter().any(|l| l.contains("AllReduce #1")), "{lines:?}");
}

#[test]
fn a_plug_in_that_cannot_be_loaded_is_noticed() {
    let next = |name: &CStr| Settings { next: Some(name.to_owned()), ..Settings::default() };
    let nccl = Nccl::with(tracker!(), Version::V7, next(c"/nowhere/libplugin.so"));
    check(&nccl, "communicator 0 `world` 0xabc rank 3 of 8");
    nccl.tracker.tick();
    check(&nccl, "notice 4 1");
    // A library that is no plug-in at all.
    let nccl = Nccl::with(tracker!(), Version::V7, next(c"libc.so.6"));
    nccl.tracker.tick();
    assert!(nccl.lines().contains(&"notice 5 1".to_owned()));
    let nccl = Nccl::with(tracker!(), Version::V7, next(c"None"));
    nccl.tracker.tick();
    check(&nccl, "communicator 0 `world` 0xabc rank 3 of 8");
}

#[test]
fn threads_may_do_all_of_it_at_once() {
    let tracker = tracker!();
    let nccl = Nccl::with(tracker, Version::V7, phases());
    let context = nccl.context as usize;
    std::thread::scope(|scope| {
        let work = |thread: u64| {
            scope.spawn(move || {
                let mask = Box::leak(Box::new(0));
                let nccl = Nccl { tracker, version: Version::V7, context: context as Handle, mask };
                for i in 0..3_000 {
                    let coll = nccl.coll(null_mut(), all_reduce(thread << 32 | i, 2));
                    std::thread::scope(|scope| {
                        if i % 100 == 0 {
                            let (coll, at) = (coll as usize, nccl.gpu(50));
                            scope.spawn(move || {
                                let mask = Box::leak(Box::new(0));
                                let context = context as Handle;
                                let other = Nccl { tracker, version: Version::V7, context, mask };
                                let channel = other.channel(coll as Handle, 0, at);
                                other.channel_ends(channel, at + 10);
                            });
                        } else {
                            let channel = nccl.channel(coll, 0, nccl.gpu(50));
                            nccl.channel_ends(channel, nccl.gpu(60));
                        }
                        let channel = nccl.channel(coll, 1, nccl.gpu(55));
                        nccl.stop(coll);
                        nccl.channel_ends(channel, nccl.gpu(65));
                    });
                }
            })
        };
        // Joined by name: what a scope does at its end no thread sanitizer sees.
        let threads = [0, 1, 2, 3].map(work);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let lines = nccl.lines();
    let collectives = lines.iter().filter(|l| l.starts_with("0 AllReduce")).count();
    assert_eq!(collectives, 12_000, "each once");
    assert!(lines.iter().all(|l| !l.contains("host")), "all by the GPU");
}
