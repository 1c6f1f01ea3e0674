//! What the NCCL plug-in costs the program that it lives in, in ns of its own CPU time.
//!
//! `cargo run --release -p gpuwhy-inject --example plugin_cost` prints one line of JSON. An *event* is
//! one call of `startEvent`, of which each has a `stopEvent` and half have a state. Cases: a ring
//! with room, a ring that is full, no ring; `low` is a call as it is by default (group, append,
//! launch, collective: 4 events), `phases` is that and one channel with three phases (8 events,
//! one record each for call, collective and phases). Each is run in a process of its own, since a
//! ring is a process's, in 31 rounds of 1,000 calls; the clock is CLOCK_THREAD_CPUTIME_ID.

use std::ffi::c_void;
use std::process::Command;
use std::ptr::{null, null_mut};

use gpuwhy_inject::nccl::abi::*;
use gpuwhy_inject::nccl::ncclProfiler_v7;
use gpuwhy_wire::{Consumer, Options, Ring};

const ROUNDS: usize = 31;
const CALLS: u64 = 1_000;

fn main() {
    if let Some(case) = std::env::args().nth(1) {
        return one(&case);
    }
    let program = std::env::current_exe().expect("this program has a path");
    let dir = std::env::temp_dir().join(format!("gpuwhy-cost-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    let mut lines = Vec::new();
    for ring in ["ring", "full", "none"] {
        for what in ["low", "phases", "off"] {
            let path = dir.join(format!("{ring}-{what}"));
            let mut child = Command::new(&program);
            child.arg(format!("{ring}-{what}")).env_remove("GPUWHY_INJECT_RING");
            let _ring = (ring != "none").then(|| {
                // In the full ring nothing is ever taken out.
                let slots = if ring == "full" { 64 } else { 1 << 16 };
                child.env("GPUWHY_INJECT_RING", &path);
                let options = Options { slots, ..Options::default() };
                Ring::create_with(&path, options).expect("a ring")
            });
            match what {
                "phases" => child.env("GPUWHY_NCCL_MASK", "0x8e46"),
                "off" => child.env("GPUWHY_OFF", "1"),
                _ => &mut child,
            };
            let output = child.output().expect("a child");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            lines.push(text.trim().to_owned());
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
    println!("{{{}}}", lines.join(","));
}

fn cpu_ns() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

struct Caller {
    context: *mut c_void,
}

impl Caller {
    fn start(&self, kind: u64, parent_obj: *mut c_void, of: OfV7) -> *mut c_void {
        let mut event = EventV7 { kind, parent_obj, rank: 0, of };
        let (mut handle, start) = (null_mut(), ncclProfiler_v7.start.expect("has start"));
        // SAFETY: as NCCL calls it.
        unsafe { start(self.context, &mut handle, std::ptr::from_mut(&mut event).cast()) };
        handle
    }

    fn stop(&self, handle: *mut c_void) {
        // NCCL stops none that is null.
        if !handle.is_null() {
            // SAFETY: any handle may be stopped.
            unsafe { ncclProfiler_v7.stop.expect("has stop")(handle) };
        }
    }

    fn ends(&self, handle: *mut c_void, what: i32, p_timer: u64) {
        if !handle.is_null() {
            let record = ncclProfiler_v7.record_state.expect("has recordEventState");
            // SAFETY: as NCCL calls it.
            unsafe { record(handle, what, &mut StateArgs { p_timer }) };
            self.stop(handle);
        }
    }

    /// One all-reduce; `started` counts the events.
    fn call(&self, seq_number: u64, phases: bool, started: &mut u64) {
        let group_api = GroupApi { graph_captured: 0, group_depth: 1 };
        let group = self.start(bit::GROUP_API, null_mut(), OfV7 { group_api });
        let (func, datatype) = (c"AllReduce".as_ptr(), c"ncclFloat32".as_ptr());
        let (count, root, stream) = (1 << 20, 0, null_mut());
        let coll_api =
            CollApi { func, count, datatype, root, stream, graph_captured: 0, user_tag: 0 };
        let api = self.start(bit::COLL_API, group, OfV7 { coll_api });
        self.stop(api);
        let kernel_launch = KernelLaunch { stream };
        let launch = self.start(bit::KERNEL_LAUNCH, group, OfV7 { kernel_launch });
        self.stop(launch);
        let coll = Coll {
            seq_number,
            func,
            send_buff: null(),
            recv_buff: null_mut(),
            count,
            root,
            datatype,
            n_channels: 1,
            n_warps: 16,
            algo: c"RING".as_ptr(),
            proto: c"LL128".as_ptr(),
            parent_group: null_mut(),
            kernel_variant: null(),
            is_sym_coll: 0,
            user_tag: 0,
        };
        let coll = self.start(bit::COLL, api, OfV7 { coll });
        self.stop(coll);
        self.stop(group);
        *started += 4;
        if !phases {
            return;
        }
        let at = 1_700_000_000_000_000_000 + gpuwhy_wire::now();
        let kernel_ch = KernelCh { channel_id: 0, p_timer: at };
        let channel = self.start(bit::KERNEL_CH, coll, OfV7 { kernel_ch });
        let names = [c"initial_sync", c"compute", c"final_sync"];
        for (id, name) in (0u8..).zip(names) {
            let p_timer = at + id as u64 * 100;
            let phase_name = name.as_ptr();
            let kernel_phase = KernelPhase { channel_id: 0, phase_id: id, phase_name, p_timer };
            let phase = self.start(bit::KERNEL_PHASE, channel, OfV7 { kernel_phase });
            self.ends(phase, state::KERNEL_PHASE_STOP, p_timer + 100);
        }
        self.ends(channel, state::KERNEL_CH_STOP, at + 300);
        *started += 4;
    }
}

fn one(case: &str) {
    let phases = !case.ends_with("low");
    let (mut context, mut mask) = (null_mut(), 0);
    let init = ncclProfiler_v7.init.expect("has init");
    // SAFETY: as NCCL calls it; the mask lives until the end.
    unsafe { init(&mut context, 1, &mut mask, c"world".as_ptr(), 1, 2, 0, null()) };
    let caller = Caller { context };
    let path = std::env::var_os("GPUWHY_INJECT_RING");
    let mut consumer = path
        .filter(|_| case.starts_with("ring"))
        .map(|path| Consumer::open(path).expect("the ring"));
    let (mut events, mut records, mut rounds) = (0, 0, Vec::new());
    for round in 0..ROUNDS as u64 + 3 {
        events = 0;
        let start = cpu_ns();
        for call in 0..CALLS {
            caller.call(round * CALLS + call, phases, &mut events);
        }
        let ns = cpu_ns() - start;
        // Unmeasured: the agent's work is another process's.
        records = consumer.as_mut().map_or(0, |consumer| {
            let drained = consumer.drain(usize::MAX, |_| {});
            assert_eq!(drained.lost, 0);
            drained.records
        });
        // The first rounds fill pools and tables.
        if round >= 3 {
            rounds.push(ns);
        }
    }
    rounds.sort_by(f64::total_cmp);
    let calls = CALLS as f64;
    let per = |total: f64, of: u64| {
        if of == 0 { "null".into() } else { format!("{:.1}", total / of as f64) }
    };
    let (low, median, high) = (rounds[0], rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
    println!(
        "\"{case}\":{{\"ns_per_call\":{:.0},\"min\":{:.0},\"max\":{:.0},\"events\":{},\
         \"ns_per_event\":{},\"records\":{},\"ns_per_record\":{}}}",
        median / calls,
        low / calls,
        high / calls,
        events / CALLS,
        per(median, events),
        records / CALLS,
        per(median, records),
    );
}
