//! The plug-in through the real libnccl of several versions, without a GPU.
//!
//! Each case runs this program again as a child, since a ring, a mask and a plug-in are a
//! process's; the child plays NCCL, and the parent reads the ring. Libraries come
//! from `scripts/nccl.sh` and are never part of the repository; one that is missing is skipped.

mod driver;
mod straggler;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::time::Duration;

use driver::{AHEAD, Handle, Library, gpu_now};
use gpuwhy_inject::nccl::abi::{Version, bit, state};
use gpuwhy_wire::{Consumer, Event, Options, Ring};

const CHILD: &str = "GPUWHY_TEST_NCCL_CHILD";
const MICRO: u64 = 1_000;

/// What a child printed, and the records in its ring.
struct Ran {
    output: String,
    events: Vec<Event<String>>,
    lost: u64,
}

/// The library of that version, or a word why the test cannot be done.
fn library(version: &str) -> Option<PathBuf> {
    let path = driver::libraries().join(version).join("libnccl.so.2");
    if path.is_file() {
        return Some(path);
    }
    println!("skipped: no libnccl {version}; `scripts/nccl.sh {version}` fetches it");
    None
}

fn run(scenario: &str, library: &Path, env: &[(&str, &str)]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ring");
    let _ring = Ring::create_with(&path, Options { slots: 1 << 15, ..Options::default() }).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, scenario)
        .env("GPUWHY_TEST_NCCL_LIBRARY", library)
        .env("GPUWHY_RING", &path)
        .env("GPUWHY_INJECT_RING", &path)
        .env_remove("GPUWHY_NCCL_NEXT")
        .env_remove("GPUWHY_NCCL_MASK")
        .env_remove("GPUWHY_OFF")
        .envs(env.iter().copied());
    let output = child.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{scenario}: {}\n{all}", output.status);
    let mut events = Vec::new();
    let mut consumer = Consumer::open(&path).unwrap();
    let drained = consumer.drain(usize::MAX, |record| {
        events.push(record.named(|name| name.to_string()).event);
    });
    assert_eq!((drained.torn, drained.abandoned), (0, 0));
    Ran { output: text(&output.stdout), events, lost: drained.lost }
}

/// Runs the scenario that the parent wants, in a process of its own.
#[test]
fn child() {
    let Ok(scenario) = std::env::var(CHILD) else { return };
    let library = PathBuf::from(std::env::var_os("GPUWHY_TEST_NCCL_LIBRARY").unwrap());
    let plugin = std::env::var_os("GPUWHY_TEST_NCCL_PLUGIN").map(PathBuf::from);
    let plugin = plugin.or_else(driver::plugin).expect("libgpuwhy_inject.so beside this program");
    if let Some(rank) = scenario.strip_prefix("rank ") {
        let rank = rank.parse().unwrap();
        let late = std::time::Duration::from_millis(if rank == 1 { 20 } else { 0 });
        let of = straggler::Straggler {
            when: 0..u64::MAX,
            rank,
            ranks: 2,
            steps: 4,
            late,
            compute: std::time::Duration::from_millis(1),
            channels: 2,
            barrier: std::env::var_os("GPUWHY_TEST_NCCL_BARRIER").unwrap().into(),
        };
        return straggler::straggler(&library, &plugin, of).unwrap();
    }
    let library = Library::open(&library).unwrap();
    let nccl = library.load(&plugin).unwrap();
    println!("nccl {} speaks v{} took v{}", nccl.version, nccl.speaks as u8, nccl.took);
    match scenario.as_str() {
        "conform" => conform(&nccl),
        "low" => low(&nccl),
        "flood" => flood(&nccl),
        "conform_less" => conform_less(&nccl),
        other => panic!("no scenario {other}"),
    }
}

fn sleep_us(us: u64) {
    std::thread::sleep(Duration::from_micros(us));
}

/// Everything that NCCL reports, with stops in odd orders.
fn conform(nccl: &driver::Nccl) {
    let world = nccl.init(c"world", 0xfeed, 1, 4);
    let other = nccl.init(c"tensor", 0xbeef, 0, 2);
    println!("mask {:#x}", nccl.mask());

    // A collective of two channels with three phases each.
    let group = world.group(1);
    let api = world.api(group, 1 << 20);
    nccl.state(group, state::GROUP_START_API_STOP, 0);
    nccl.stop(api);
    nccl.state(group, state::GROUP_END_API_START, 0);
    let launch = world.launch(group);
    nccl.stop(launch);
    let coll = world.all_reduce(api, 3, 1 << 20, 2);
    nccl.stop(coll);
    nccl.stop(group);
    // NCCL does that: the handle of the call's append is kept and stopped again.
    nccl.stop(api);
    let began = gpu_now();
    let channels = [0u8, 1].map(|c| world.channel(coll, c, began + c as u64 * 20 * MICRO));
    sleep_us(2_000);
    for (c, channel) in channels.into_iter().enumerate() {
        let t = |us: u64| began + c as u64 * 20 * MICRO + us * MICRO;
        world.phase(channel, c as u8, 0, t(0), t(1000));
        world.phase(channel, c as u8, 1, t(1000), t(1400));
        world.phase(channel, c as u8, 2, t(1400), t(1500));
        world.channel_ends(channel, t(1500));
        // After its end.
        nccl.state(channel, state::KERNEL_CH_STOP, t(9000));
        nccl.stop(channel);
    }
    nccl.stop(coll);

    // Sends and receives, with the network.
    for (func, peer) in [(c"Send", 2), (c"Recv", 2), (c"Send", 2)] {
        let message = other.p2p(func, peer, 4096, 1);
        nccl.stop(message);
        let op = other.proxy_op(message, std::process::id() as i32, 5);
        let step = other.proxy_step(op, 0);
        for what in [state::STEP_SEND_GPU_WAIT, state::STEP_SEND_PEER_WAIT, state::STEP_SEND_WAIT] {
            nccl.state(step, what, 0);
            sleep_us(200);
        }
        nccl.stop(step);
        nccl.stop(op);
        let at = gpu_now();
        let channel = other.channel(message, 5, at);
        sleep_us(100);
        other.channel_ends(channel, at + 50 * MICRO);
    }
    // Another process's task.
    let foreign = other.proxy_op(0x7fff_dead_0010 as Handle, 1, 0);
    assert!(foreign.is_null());
    // Times that cannot be.
    let bad = world.all_reduce(null_mut(), 4, 1, 1);
    nccl.stop(bad);
    let channel = world.channel(bad, 0, 0);
    world.channel_ends(channel, 0);
    // Never stopped: recorded when the communicator ends.
    world.all_reduce(null_mut(), 5, 1, 1);
    world.finalize();
    // Handles of a communicator that is gone, and of no communicator.
    for handle in [coll, bad, group, 8 as Handle, usize::MAX as Handle] {
        nccl.state(handle, state::KERNEL_CH_STOP, 1);
        nccl.stop(handle);
    }
    other.finalize();
}

/// As it is by default: only calls and tasks.
fn low(nccl: &driver::Nccl) {
    let world = nccl.init(c"world", 0xfeed, 0, 2);
    println!("mask {:#x}", nccl.mask());
    for seq in 0..3 {
        let group = world.group(1);
        let api = world.api(group, 256);
        nccl.stop(api);
        let coll = world.all_reduce(api, seq, 256, 4);
        nccl.stop(coll);
        nccl.stop(group);
        let channel = world.channel(coll, 0, gpu_now());
        assert!(channel.is_null());
    }
    world.finalize();
}

/// What two plug-ins at once are given, as NCCL gives it: by the mask that it finds.
fn conform_less(nccl: &driver::Nccl) {
    let world = nccl.init(c"world", 0xfeed, 0, 2);
    let other = nccl.init(c"tensor", 0xbeef, 0, 2);
    for seq in 0..4 {
        let group = world.group(1);
        let api = world.api(group, 256);
        nccl.stop(api);
        let coll = world.all_reduce(api, seq, 256, 1);
        nccl.stop(coll);
        nccl.stop(group);
        let at = gpu_now();
        let channel = world.channel(coll, 0, at);
        world.channel_ends(channel, at + 1);
        let message = other.p2p(c"Recv", 1, 8, 1);
        nccl.stop(message);
    }
    world.finalize();
    other.finalize();
}

/// Ten thousand collectives at once, stopped from the last to the first.
fn flood(nccl: &driver::Nccl) {
    let world = nccl.init(c"world", 0xfeed, 0, 2);
    let all: Vec<_> = (0..10_000).map(|i| world.all_reduce(null_mut(), i, 1, 4)).collect();
    let given = all.iter().filter(|handle| !handle.is_null()).count();
    println!("given {given}");
    all.iter().rev().for_each(|handle| nccl.stop(*handle));
    all.iter().for_each(|handle| nccl.stop(*handle));
    let again = world.all_reduce(null_mut(), 10_000, 1, 4);
    assert!(!again.is_null());
    world.finalize();
}

fn count<T: Ord>(of: impl Iterator<Item = T>) -> BTreeMap<T, u32> {
    let mut counts = BTreeMap::new();
    of.for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

/// The version of the interface that each release speaks.
const RELEASES: [(&str, i32, Version); 6] = [
    ("2.27.7", 22707, Version::V4),
    ("2.28.9", 22809, Version::V5),
    ("2.29.7", 22907, Version::V6),
    ("2.30.7", 23007, Version::V6),
    ("2.31.2", 23102, Version::V7),
    ("2.32.3", 23203, Version::V7),
];

fn conformance(release: &str) {
    let (_, number, version) = *RELEASES.iter().find(|(r, ..)| *r == release).unwrap();
    let Some(library) = library(release) else { return };
    let v = version as u8;
    let greeting = format!("nccl {number} speaks v{v} took v{v}\n");

    let ran = run("conform", &library, &[("GPUWHY_NCCL_MASK", "0xffff")]);
    let output = ran.output.split_once(&greeting).expect(&ran.output).1;
    assert!(output.starts_with(&format!("mask {:#x}\n", version.bits())), "{output}");
    assert_eq!(ran.lost, 0);
    check_conform(&ran.events, version);

    let ran = run("low", &library, &[]);
    let mut want = bit::COLL | bit::P2P | bit::COLL_API | bit::P2P_API | bit::KERNEL_LAUNCH;
    want = (want | bit::CE_COLL) & version.bits();
    assert!(ran.output.contains(&format!("mask {want:#x}\n")), "{}", ran.output);
    let collectives = ran.events.iter().filter_map(|event| match event {
        Event::Collective { name, seq, bytes, how, on_gpu: false, .. } => {
            Some((name.as_str(), *seq, *bytes, how.as_str()))
        }
        _ => None,
    });
    let want = (0..3).map(|seq| ("AllReduce", seq, 1024, "RING/SIMPLE/4"));
    assert!(collectives.eq(want), "{:#?}", ran.events);
    let phases = ran.events.iter().filter(|e| matches!(e, Event::Phase { .. })).count();
    assert_eq!(phases, if version >= Version::V5 { 3 } else { 0 });

    let ran = run("flood", &library, &[]);
    assert!(ran.output.contains("given 4096\n"), "{}", ran.output);
    let collectives = ran.events.iter().filter(|e| matches!(e, Event::Collective { .. })).count();
    assert_eq!(collectives, 4097);
    let full = |e: &&Event<String>| matches!(e, Event::Notice { code: 1, value: Some(v), .. } if *v == 5904.0);
    assert_eq!(ran.events.iter().filter(full).count(), 1);

    let ran = run("conform", &library, &[("GPUWHY_OFF", "1")]);
    assert!(ran.output.contains("mask 0x0\n"), "{}", ran.output);
    assert!(ran.events.is_empty(), "{:#?}", ran.events);
    println!("libnccl {release}: v{v}, conforms");
}

fn check_conform(events: &[Event<String>], version: Version) {
    let communicators: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Communicator { name, communicator, id, rank, ranks, .. } => {
                Some((name.as_str(), *communicator, *id, *rank, *ranks))
            }
            _ => None,
        })
        .collect();
    assert_eq!(communicators, [("world", 0, 0xfeed, 1, 4), ("tensor", 1, 0xbeef, 0, 2)]);

    let collectives: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Collective { name, communicator, seq, bytes, how, on_gpu, start, dur } => {
                assert_eq!((name.as_str(), *communicator), ("AllReduce", 0));
                Some((*seq, *bytes, how.as_str(), *on_gpu, *start, *dur))
            }
            _ => None,
        })
        .collect();
    let short: Vec<_> = collectives.iter().map(|c| (c.0, c.1, c.2, c.3)).collect();
    let want = [
        (3, 4 << 20, "RING/SIMPLE/2", true),
        (4, 4, "RING/SIMPLE/1", false),
        (5, 4, "RING/SIMPLE/1", false),
    ];
    assert_eq!(short, want);
    let (start, dur) = (collectives[0].4, collectives[0].5);
    assert_eq!(dur, 1520 * MICRO);

    // Times of the GPU lie on the host's clock: this process has the same.
    let now = gpuwhy_wire::now();
    assert!(start < now && now - start < 60_000_000_000, "{start} is {} ago", now - start);

    let stages = events.iter().filter_map(|event| match event {
        Event::Stage { name, communicator: 0, operation, seq, channel, on_gpu, start: at, dur } => {
            assert_eq!((operation.as_str(), *seq, *on_gpu), ("AllReduce", 3, true));
            Some((name.as_str(), *channel, (at - start) / MICRO, dur / MICRO))
        }
        _ => None,
    });
    let stages: Vec<_> = stages.collect();
    if version == Version::V7 {
        let want = [
            ("initial_sync", None, 10, 1000),
            ("compute", None, 1010, 400),
            ("final_sync", None, 1410, 100),
        ];
        assert_eq!(stages, want);
    } else {
        assert_eq!(stages, [("channel", None, 10, 1500)]);
    }

    let messages = events.iter().filter_map(|event| match event {
        Event::Message { name, communicator: 1, peer, seq, bytes, on_gpu, dur, .. } => {
            Some((name.as_str(), *peer, *seq, *bytes, *on_gpu, dur / MICRO))
        }
        _ => None,
    });
    let want = [
        ("Send", 2, 0, 4096, true, 50),
        ("Recv", 2, 0, 4096, true, 50),
        ("Send", 2, 1, 4096, true, 50),
    ];
    // NCCL 2.27's messages have channels, too.
    assert_eq!(messages.collect::<Vec<_>>(), want);

    let waits = count(events.iter().filter_map(|event| match event {
        Event::Stage { name, communicator: 1, channel: Some(5), on_gpu: false, dur, .. } => {
            assert!(*dur >= 200 * MICRO);
            Some(name.as_str())
        }
        _ => None,
    }));
    let want = ["net:send_gpu_wait", "net:send_peer_wait", "net:send_wait"].map(|wait| (wait, 3));
    assert_eq!(waits, want.into());

    let phases: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Phase { name, .. } => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let want: &[_] = if version >= Version::V5 { &["ncclAllReduce"] } else { &[] };
    assert_eq!(phases, want);

    let notices = count(events.iter().filter_map(|event| match event {
        Event::Notice { code, .. } => Some(*code),
        _ => None,
    }));
    assert_eq!(notices.get(&3), Some(&1), "times that cannot be: {notices:?}");
    assert_eq!(notices.get(&6), Some(&1), "another process's: {notices:?}");
    assert!(AHEAD > start);
}

/// Compiles the other plug-in for one version; `None` without a C compiler.
fn counting_plugin(dir: &Path, version: u8) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nccl/counts.c");
    let object = dir.join(format!("libnccl-profiler-counts{version}.so"));
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&object)
        .arg(format!("-DVERSION={version}"))
        .arg(source)
        .status();
    if !done.is_ok_and(|status| status.success()) {
        println!("skipped: `cc` cannot compile the other plug-in");
        return None;
    }
    Some(object)
}

/// The users' own plug-in sees the same as without us, while we see what we want.
fn multiplex(release: &str) {
    let (.., version) = *RELEASES.iter().find(|(r, ..)| *r == release).unwrap();
    let Some(library) = library(release) else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(plugin) = counting_plugin(dir.path(), version as u8) else { return };
    let counts = dir.path().join("counts");
    let plugin = plugin.to_str().unwrap();
    let file = counts.to_str().unwrap();
    let alone = [("COUNTS_FILE", file), ("GPUWHY_TEST_NCCL_PLUGIN", plugin)];
    let ran = run("conform_less", &library, &alone);
    assert!(ran.events.is_empty());
    let without_us = std::fs::read_to_string(&counts).unwrap();

    let with = [("COUNTS_FILE", file), ("GPUWHY_NCCL_NEXT", plugin), ("GPUWHY_NCCL_MASK", "0x46")];
    let ran = run("conform_less", &library, &with);
    assert_eq!(std::fs::read_to_string(&counts).unwrap(), without_us);
    let gpu = |e: &&Event<String>| matches!(e, Event::Collective { on_gpu: true, .. });
    assert_eq!(ran.events.iter().filter(gpu).count(), 4, "{:#?}", ran.events);

    // Ours off: the other one works all the same.
    let off = [("COUNTS_FILE", file), ("GPUWHY_NCCL_NEXT", plugin), ("GPUWHY_OFF", "1")];
    let ran = run("conform_less", &library, &off);
    assert_eq!(std::fs::read_to_string(&counts).unwrap(), without_us);
    assert!(ran.events.is_empty(), "{:#?}", ran.events);

    // By its suffix, as NCCL would find it.
    let suffix = format!("counts{}", version as u8);
    let path = dir.path().to_str().unwrap();
    let named = [("COUNTS_FILE", file), ("GPUWHY_NCCL_NEXT", &suffix), ("LD_LIBRARY_PATH", path)];
    std::fs::remove_file(&counts).unwrap();
    run("conform_less", &library, &named);
    assert_eq!(std::fs::read_to_string(&counts).unwrap(), without_us);

    // One of another version is done without, and said.
    let stranger = if version == Version::V7 { 5 } else { 7 };
    if let Some(plugin) = counting_plugin(dir.path(), stranger) {
        let stranger = [("GPUWHY_NCCL_NEXT", plugin.to_str().unwrap())];
        let ran = run("conform_less", &library, &stranger);
        let notice = |e: &&Event<String>| matches!(e, Event::Notice { code: 5, .. });
        assert_eq!(ran.events.iter().filter(notice).count(), 1, "{:#?}", ran.events);
    }
    println!("libnccl {release}, two plug-ins: {}", without_us.trim());
}

/// Two ranks of which one is late: the other one's first phase is the wait.
#[test]
fn the_rank_that_waits_is_not_the_one_that_is_late() {
    let Some(library) = library("2.32.3") else { return };
    let dir = tempfile::tempdir().unwrap();
    let barrier = dir.path().join("barrier");
    let env =
        [("GPUWHY_NCCL_MASK", "0x8e46"), ("GPUWHY_TEST_NCCL_BARRIER", barrier.to_str().unwrap())];
    let ranks = std::thread::scope(|scope| {
        let ranks = ["rank 0", "rank 1"].map(|rank| {
            let (library, env) = (&library, &env);
            scope.spawn(move || run(rank, library, env))
        });
        ranks.map(|rank| rank.join().unwrap())
    });
    let waits = |ran: &Ran| {
        let wait = |event: &Event<String>| match event {
            Event::Stage { name, on_gpu: true, channel: None, dur, .. }
                if name == "initial_sync" =>
            {
                Some(*dur)
            }
            _ => None,
        };
        ran.events.iter().filter_map(wait).collect::<Vec<_>>()
    };
    let [early, late] = [waits(&ranks[0]), waits(&ranks[1])];
    assert_eq!(early.len(), 4, "{:#?}", ranks[0].events);
    // The late one may come last of all, and find everybody there.
    let (early, late): (u64, u64) = (early.iter().sum(), late.iter().sum());
    assert!(early > late, "{early} ns and {late} ns");
    for ran in &ranks {
        let steps = ran.events.iter().filter(|e| matches!(e, Event::Step { .. })).count();
        let collectives = ran
            .events
            .iter()
            .filter(|e| matches!(e, Event::Collective { on_gpu: true, .. }))
            .count();
        assert_eq!((steps, collectives), (4, 4));
    }
}

#[test]
fn two_plug_ins_at_once_through_libnccl_2_27_7() {
    multiplex("2.27.7");
}

#[test]
fn two_plug_ins_at_once_through_libnccl_2_30_7() {
    multiplex("2.30.7");
}

#[test]
fn two_plug_ins_at_once_through_libnccl_2_32_3() {
    multiplex("2.32.3");
}

macro_rules! releases {
    ($($name:ident: $release:literal,)*) => {$(
        #[test]
        fn $name() {
            conformance($release);
        }
    )*};
}

releases! {
    libnccl_2_27_7_speaks_version_4: "2.27.7",
    libnccl_2_28_9_speaks_version_5: "2.28.9",
    libnccl_2_29_7_speaks_version_6: "2.29.7",
    libnccl_2_30_7_speaks_version_6: "2.30.7",
    libnccl_2_31_2_speaks_version_7: "2.31.2",
    libnccl_2_32_3_speaks_version_7: "2.32.3",
}
