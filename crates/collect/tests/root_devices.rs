//! Real disks, network links and memory. Each test makes the kernel do something and compares the
//! recorded rows with it.
//!
//! All tests load BPF programs, which needs root or CAP_BPF with CAP_PERFMON. Without them each test
//! prints why it was skipped.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use gpuwhy_collect::{Config, Recorder, Target};
use gpuwhy_schema::{
    Counter, Direction, Entity, EntityId, EntityKind, Io, IoOp, Message, Ns, Rows, Source,
    SourceState, Span, Table, Track, TrackId, names,
};

/// One recording at a time: two would record each other's disks and links.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Records while `act` runs on another thread, and half a second longer for the files that are read
/// ten times a second. `None`, after printing why, where BPF programs cannot be loaded.
fn record<T: Send>(targets: &[u32], act: impl FnOnce() -> T + Send) -> Option<(Trace, T)> {
    if fs::metadata("/proc/self").map(|m| m.uid()).ok() != Some(0) {
        println!("skipped: loading BPF programs needs root");
        return None;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let targets = targets.iter().map(|&pid| Target::Pid(pid as i32)).collect();
    let mut recorder = Recorder::start(Config { targets, ..Config::default() }).unwrap();
    let mut rows = Rows::default();
    let mut poll = |recorder: &mut Recorder| {
        rows.append(&mut recorder.poll(Duration::from_millis(10)).unwrap());
    };
    let done = std::thread::scope(|scope| {
        poll(&mut recorder);
        let acting = scope.spawn(act);
        while !acting.is_finished() {
            poll(&mut recorder);
        }
        for _ in 0..50 {
            poll(&mut recorder);
        }
        acting.join().unwrap()
    });
    rows.append(&mut recorder.finish());
    Some((Trace { rows }, done))
}

/// The recorded rows.
struct Trace {
    rows: Rows,
}

impl Trace {
    /// The entity as last declared.
    fn entity(&self, id: EntityId) -> &Entity {
        self.rows.entity.iter().rev().find(|e| e.id == id).expect("entities are declared")
    }

    /// The process of a thread; any other entity itself.
    fn process(&self, id: EntityId) -> &Entity {
        let entity = self.entity(id);
        match entity.kind {
            EntityKind::Thread => self.entity(entity.parent.expect("threads have a process")),
            _ => entity,
        }
    }

    /// Tracks of this name, with their entities.
    fn tracks<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (TrackId, &'a Entity)> + 'a {
        let named = self.rows.track.iter().filter(move |t| &*t.name == name);
        named.map(|t| (t.id, self.entity(t.entity)))
    }

    /// Counter rows on tracks of this name whose entity `is_selected`.
    fn counters<'a>(
        &'a self,
        name: &'a str,
        is_selected: impl Fn(&Entity) -> bool + 'a,
    ) -> impl Iterator<Item = &'a Counter> + 'a {
        let tracks: Vec<TrackId> =
            self.tracks(name).filter(|(_, e)| is_selected(e)).map(|(id, _)| id).collect();
        self.rows.counter.iter().filter(move |c| tracks.contains(&c.track))
    }

    fn sum(&self, name: &str, is_selected: impl Fn(&Entity) -> bool) -> f64 {
        self.counters(name, is_selected).map(|c| c.value).sum()
    }

    /// Block requests of process `pid`, with their spans.
    fn requests(&self, pid: u32) -> Vec<(&Span, &Io)> {
        let of = |io: &&Io| self.process(io.thread).number == Some(i64::from(pid));
        let span = |io: &Io| self.rows.span.iter().find(|s| s.id == io.id).unwrap();
        self.rows.io.iter().filter(of).map(|io| (span(io), io)).collect()
    }

    /// The source as it was told last.
    #[track_caller]
    fn source(&self, kind: &str) -> &Source {
        self.rows.source.iter().rev().find(|s| &*s.kind == kind).expect(kind)
    }

    /// Checks that the source recorded something; it may have left out parts.
    #[track_caller]
    fn source_ran(&self, kind: &str) {
        let source = self.source(kind);
        assert_ne!(source.state, SourceState::Unavailable, "{source:?}");
        assert!(source.recorded > 0, "{source:?}");
    }
}

/// The path of a file on a real disk, in a folder that is removed at the end.
fn file(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

fn spawn(program: &str, args: &[&str]) -> Child {
    Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

#[test]
fn root_a_direct_write_has_its_bytes_its_disk_and_its_writer() {
    let (_folder, path) = file("direct");
    let command = format!("exec dd if=/dev/zero of={} bs=1M count=8 oflag=direct", path.display());
    let mut tries = 0;
    let (pid, trace) = loop {
        let mut dd = waiting(&command);
        let pid = dd.id();
        let Some((trace, ())) = record(&[pid], || {
            go(&mut dd);
            assert!(dd.wait().unwrap().success());
        }) else {
            return;
        };
        tries += 1;
        // The kernel runs no program inside itself, so that a request can be missed while the
        // disk is busy with others; the source says so.
        match trace.source("bpf:block_io").dropped {
            0 => break (pid, trace),
            lost => assert!(tries < 5, "{lost} requests lost, and some in each try before"),
        }
    };
    trace.source_ran("bpf:block_io");
    let requests = trace.requests(pid);
    let writes: Vec<_> = requests.iter().filter(|(_, io)| io.op == IoOp::Write).collect();
    let bytes: u64 = writes.iter().map(|(_, io)| io.bytes).sum();
    assert_eq!(bytes, 8 << 20, "{writes:?}");
    for (span, io) in &writes {
        let issued = io.issued.expect("writes reach the device");
        assert!(span.ts <= issued && issued <= span.end().unwrap(), "{span:?} {io:?}");
        assert!(io.sync, "the writer waits for a direct write");
        assert_eq!(trace.entity(io.disk).kind, EntityKind::Disk);
        assert_eq!(&*trace.process(io.thread).name, "dd");
    }
    let disk = writes[0].1.disk;
    let of_dd = |e: &Entity| e.number == Some(i64::from(pid));
    let dd = trace.sum(names::DISK_BYTES, of_dd);
    let all = trace.sum(names::DISK_BYTES, |e| e.id == disk);
    assert!(dd >= (8 << 20) as f64 && dd <= all, "dd {dd} of {all}");
    // The track of a process's share has the disk's track as its parent.
    let share = trace
        .rows
        .track
        .iter()
        .find(|t| &*t.name == names::DISK_BYTES && of_dd(trace.entity(t.entity)));
    let whole = share.and_then(|t| t.parent).expect("the share of a process has a parent");
    assert!(trace.tracks(names::DISK_BYTES).any(|(id, e)| id == whole && e.id == disk));
    let time: Ns = writes.iter().map(|(s, io)| s.end().unwrap() - io.issued.unwrap()).sum();
    let counted = trace.sum(names::DISK_TIME, of_dd);
    assert!(counted >= time.0 as f64, "{counted} {time}");
}

#[test]
fn root_each_fsync_waits_for_a_request_of_its_own_thread_or_of_the_journal() {
    let (_folder, path) = file("storm");
    let Some((trace, calls)) = record(&[std::process::id()], || {
        let mut file = File::create(&path).unwrap();
        let mut calls = Vec::new();
        for _ in 0..40 {
            file.write_all(&[7; 4096]).unwrap();
            let begin = gpuwhy_collect::now();
            file.sync_all().unwrap();
            calls.push((begin, gpuwhy_collect::now()));
        }
        calls
    }) else {
        return;
    };
    trace.source_ran("bpf:block_io");
    let submitters = ["root_", "jbd2", "kworker", "xfs", "btrfs"];
    let mut flushes = 0;
    for (begin, end) in calls {
        let within: Vec<(&Span, &Io)> = trace
            .rows
            .io
            .iter()
            .map(|io| (trace.rows.span.iter().find(|s| s.id == io.id).unwrap(), io))
            .filter(|(s, io)| io.sync && s.ts >= begin && s.end().unwrap() <= end)
            .collect();
        assert!(!within.is_empty(), "an fsync of {} without a request", end - begin);
        let known = |io: &Io| {
            let name = &trace.entity(io.thread).name;
            submitters.iter().any(|s| name.starts_with(s))
        };
        let names: Vec<_> = within.iter().map(|(_, io)| &*trace.entity(io.thread).name).collect();
        assert!(within.iter().any(|(_, io)| known(io)), "{names:?}");
        flushes += within.iter().filter(|(_, io)| io.op == IoOp::Flush).count();
    }
    println!("{flushes} flushes");
}

#[test]
fn root_requests_beyond_the_limit_of_rows_are_summed_and_the_source_is_degraded() {
    let (_folder, path) = file("many");
    let Some((trace, made)) = record(&[], || {
        let all = vec![1; 4 << 20];
        fs::write(&path, all).unwrap();
        let mut file = OpenOptions::new();
        let file = file.read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        file.sync_all().unwrap();
        // Reads of 4096 aligned bytes, one after the other.
        let mut memory = vec![0_u8; 3 * 4096];
        let skip = memory.as_ptr().align_offset(4096);
        let begin = gpuwhy_collect::now();
        let mut made = 0_u64;
        while gpuwhy_collect::now() - begin < Ns::secs(2) {
            file.read_at(&mut memory[skip..skip + 4096], made % 1024 * 4096).unwrap();
            made += 1;
        }
        made
    }) else {
        return;
    };
    let pid = std::process::id();
    let rows = trace.requests(pid).iter().filter(|(_, io)| io.op == IoOp::Read).count() as u64;
    let bytes = trace.sum(names::DISK_BYTES, |e| {
        e.kind == EntityKind::Process && e.number == Some(i64::from(pid))
    });
    println!("{made} reads, {rows} rows, {bytes} bytes");
    assert!(bytes >= (made * 4096) as f64, "{made} reads, {bytes} bytes");
    let source = trace.rows.source.iter().rev().find(|s| &*s.kind == "bpf:block_io").unwrap();
    // On a slow disk all reads may fit below the limit: then each is a row.
    if rows < made {
        assert!(source.one_in > 1 && source.state == SourceState::Degraded, "{source:?}");
    }
    assert_eq!(source.dropped, 0, "{source:?}");
}

/// Two network namespaces, connected by a veth pair `a0`–`b0` (10.77.0.1 and 10.77.0.2) and removed
/// at the end.
struct Link {
    a: String,
    b: String,
}

impl Link {
    fn new() -> Link {
        let link = Link {
            a: format!("gpuwhy-a{}", std::process::id()),
            b: format!("gpuwhy-b{}", std::process::id()),
        };
        let (a, b) = (link.a.as_str(), link.b.as_str());
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!("-n {a} link add a0 type veth peer name b0 netns {b}"));
        ip(&format!("-n {a} address add 10.77.0.1/24 dev a0"));
        ip(&format!("-n {b} address add 10.77.0.2/24 dev b0"));
        ip(&format!("-n {a} link set a0 up"));
        ip(&format!("-n {b} link set b0 up"));
        link
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for namespace in [&self.a, &self.b].into_iter().filter(|name| !name.is_empty()) {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

fn ip(args: &str) {
    run("ip", args);
}

fn run(program: &str, args: &str) {
    let output = Command::new(program).args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {args}: {output:?}");
}

#[test]
fn root_packets_queued_by_a_rate_limit_have_a_delay_and_a_sender() {
    let mut pid = 0;
    let Some((trace, ())) = record(&[], || {
        let link = Link::new();
        // 1 Mbit/s drains a packet of 1042 bytes in 8.3 ms; 60 of them fit.
        run(
            "ip",
            &format!(
                "netns exec {} tc qdisc add dev a0 root tbf rate 1mbit burst 2kb limit 62kb",
                link.a
            ),
        );
        let send =
            "for i in {1..100}; do printf %01000d $i > /dev/udp/10.77.0.2/9; done; sleep 1; true";
        let mut bash = spawn("ip", &["netns", "exec", &link.a, "bash", "-c", send]);
        pid = bash.id();
        assert!(bash.wait().unwrap().success());
    }) else {
        return;
    };
    trace.source_ran("bpf:network");
    let a0 = |e: &Entity| e.kind == EntityKind::Nic && &*e.name == "a0";
    let all = trace.sum(names::NIC_TX_BYTES, a0);
    let of_sender = trace.sum(names::NIC_TX_BYTES, |e| e.number == Some(i64::from(pid)));
    let sender = trace.tracks(names::NIC_TX_BYTES).find(|(_, e)| e.number == Some(i64::from(pid)));
    assert_eq!(sender.map(|(_, e)| e.name.to_string()), Some("bash".into()), "{sender:?}");
    // 1000 bytes and 42 bytes of headers each. The first packet waits for ARP and is sent by the
    // softirq that receives the answer, so that it may lack a sender.
    assert!(of_sender >= 99.0 * 1042.0 && all >= of_sender, "{of_sender} of {all}");
    let longest = trace.counters(names::NIC_QUEUE, a0).map(|c| c.value).fold(0.0, f64::max);
    assert!((40.0..=80.0).contains(&longest), "{longest} packets");
    let delay = trace.sum(names::NIC_QUEUE_DELAY, a0) / 1e9;
    // About 60 packets wait 0.25 s each on average.
    assert!((7.0..30.0).contains(&delay), "{delay} s");
    let drops = trace.sum(names::NIC_DROPS, a0);
    assert!((20.0..=60.0).contains(&drops), "{drops} drops");
    // The queue is empty at the end.
    let last = trace.counters(names::NIC_QUEUE, a0).last().unwrap();
    assert_eq!(last.value, 0.0);
}

/// A device of the host's own namespace, removed at the end.
struct OwnDevice(String);

impl Drop for OwnDevice {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.0]).status();
    }
}

#[test]
fn root_a_device_that_loses_its_carrier_counts_how_often() {
    let device = OwnDevice(format!("gpuwhyc{}", std::process::id() % 100_000));
    let Some((trace, ())) = record(&[], || {
        let (name, other) = (&device.0, format!("{}p", device.0));
        ip(&format!("link add {name} type veth peer name {other}"));
        ip(&format!("address add 10.78.0.1/24 dev {name}"));
        let up_and_down = |state: &str| ip(&format!("link set {other} {state}"));
        ip(&format!("link set {name} up"));
        up_and_down("up");
        // It is found with its first packet.
        run("bash", "-c echo>/dev/udp/10.78.0.2/9");
        std::thread::sleep(Duration::from_millis(1500));
        for _ in 0..3 {
            up_and_down("down");
            std::thread::sleep(Duration::from_millis(100));
            up_and_down("up");
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_millis(1500));
    }) else {
        return;
    };
    let own = |e: &Entity| e.kind == EntityKind::Nic && *e.name == *device.0;
    assert_eq!(trace.sum(names::NIC_CARRIER_DOWNS, own), 3.0);
}

#[test]
fn root_both_ends_of_a_connection_agree_on_flow_and_position() {
    let Some((trace, ())) = record(&[std::process::id()], || {
        // It listens at a greater port than that of its client, as many a server does (gRPC's own is 50051).
        let greatest =
            (61_000..61_100).find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
        let listener = greatest.unwrap();
        let address = listener.local_addr().unwrap();
        // Messages are recorded from this process's first context switch on.
        std::thread::sleep(Duration::from_millis(50));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut buffer = [0; 1000];
                for _ in 0..20 {
                    stream.read_exact(&mut buffer).unwrap();
                    stream.write_all(&buffer[..10]).unwrap();
                }
            });
            let mut stream = TcpStream::connect(address).unwrap();
            let mut answer = [0; 10];
            for _ in 0..20 {
                stream.write_all(&[1; 1000]).unwrap();
                stream.read_exact(&mut answer).unwrap();
            }
        });
    }) else {
        return;
    };
    trace.source_ran("bpf:network");
    let rows = &trace.rows.message;
    let of = |direction, bytes| {
        let matches = move |m: &&Message| m.direction == direction && m.bytes == bytes;
        rows.iter().filter(matches).collect::<Vec<_>>()
    };
    for bytes in [1000, 10] {
        let sent = of(Direction::Send, bytes);
        let received = of(Direction::Receive, bytes);
        assert_eq!((sent.len(), received.len()), (20, 20), "{rows:?}");
        for (send, receive) in sent.iter().zip(&received) {
            assert_eq!((send.flow, send.position), (receive.flow, receive.position));
            assert_ne!(send.thread, receive.thread);
            assert_eq!(send.is_request(), Some(bytes == 1000), "who connected asks");
        }
        let steps: Vec<u32> =
            sent.windows(2).map(|w| w[1].position.wrapping_sub(w[0].position)).collect();
        assert!(steps.iter().all(|&step| u64::from(step) == bytes), "{steps:?}");
    }
    let flows: HashSet<u64> = rows.iter().map(|m| m.flow).collect();
    assert_eq!(flows.len(), 2, "one for each direction");
    for message in rows {
        assert!(trace.rows.mark.iter().any(|m| m.id == message.id && m.ts == message.ts));
    }
}

/// A request that is sent before its connection is accepted, and an answer that is read after the other end is closed.
fn ask_by_path(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    let mut here = UnixStream::connect(socket).unwrap();
    here.write_all(&[1; 500]).unwrap();
    let serving = std::thread::spawn(move || {
        let (mut there, _) = listener.accept().unwrap();
        there.read_exact(&mut [0; 500]).unwrap();
        there.write_all(&[1; 50]).unwrap();
    });
    serving.join().unwrap();
    here.read_exact(&mut [0; 50]).unwrap();
}

#[test]
fn root_both_ends_of_a_unix_socket_agree_on_the_flow_and_datagrams_are_no_messages() {
    let Some((trace, ())) = record(&[std::process::id()], || {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let (from, to) = UnixDatagram::pair().unwrap();
        // Messages are recorded from this process's first context switch on.
        std::thread::sleep(Duration::from_millis(50));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut buffer = [0; 700];
                for _ in 0..20 {
                    there.read_exact(&mut buffer).unwrap();
                    there.write_all(&buffer[..70]).unwrap();
                }
            });
            let mut answer = [0; 70];
            for _ in 0..20 {
                here.write_all(&[1; 700]).unwrap();
                here.read_exact(&mut answer).unwrap();
                from.send(&[1; 33]).unwrap();
                to.recv(&mut [0; 33]).unwrap();
            }
        });
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            ask_by_path(&folder.path().join("socket"));
        }
    }) else {
        return;
    };
    let flows_of = |bytes, direction| {
        let matches = |m: &&Message| m.direction == direction && m.bytes == bytes;
        trace.rows.message.iter().filter(matches).map(|m| m.flow).collect::<Vec<_>>()
    };
    let flows: Vec<Vec<u64>> = [700, 70, 500, 50]
        .into_iter()
        .map(|bytes| {
            let sent = flows_of(bytes, Direction::Send);
            assert_eq!(sent.len(), 20, "{bytes} bytes");
            assert_eq!(sent, flows_of(bytes, Direction::Receive), "{bytes} bytes");
            sent
        })
        .collect();
    let distinct = |flows: &mut dyn Iterator<Item = &u64>| flows.collect::<HashSet<_>>().len();
    // One pair of sockets, and twenty connections; each direction is its own.
    let of_each: Vec<usize> = flows.iter().map(|of| distinct(&mut of.iter())).collect();
    assert_eq!(of_each, [1, 1, 20, 20], "{flows:?}");
    assert_eq!(distinct(&mut flows.iter().flatten()), 1 + 1 + 20 + 20, "{flows:?}");
    let rows = &trace.rows.message;
    assert!(rows.iter().all(|m| m.bytes != 33), "datagrams");
    assert!(rows.iter().filter(|m| m.bytes <= 700).all(|m| m.position == 0), "{rows:?}");
}

/// How many pages of a file are in memory: eviction leaves those that somebody else just holds, as
/// compaction does.
fn cached_pages(path: &Path) -> usize {
    let asked = ["--raw", "--noheadings", "--output", "PAGES"];
    let printed = Command::new("fincore").args(asked).arg(path).output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    // Nothing is printed of a file without pages in memory, by some versions.
    String::from_utf8(printed.stdout).unwrap().trim().parse().unwrap_or(0)
}

#[test]
fn root_evicted_pages_count_for_the_process_that_evicts_them() {
    let (_folder, path) = file("cached");
    let pages = 2000;
    let Some((trace, (pid, left))) = record(&[], || {
        fs::write(&path, vec![7; pages * 4096]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        // `dd` with this flag and no count tells the kernel to drop the whole file.
        let from = format!("if={}", path.display());
        let mut dd = spawn("dd", &[&from, "iflag=nocache", "count=0"]);
        let pid = dd.id();
        assert!(dd.wait().unwrap().success());
        (pid, cached_pages(&path))
    }) else {
        return;
    };
    trace.source_ran("bpf:memory");
    assert!(left < pages / 2, "{left} pages were not evicted");
    let of_dd = |e: &Entity| e.number == Some(i64::from(pid));
    let evicted = trace.sum(names::PAGE_CACHE_EVICTED, of_dd);
    assert_eq!(evicted, (pages - left) as f64, "{:?}", trace.rows.source);
    let added = trace.sum("page_cache_added", |e| e.number == Some(std::process::id().into()));
    assert!(added >= pages as f64, "{added}");
    let evictor = trace.tracks(names::PAGE_CACHE_EVICTED).find(|(_, e)| of_dd(e)).unwrap().1;
    assert_eq!(&*evictor.name, "dd");
}

#[test]
fn root_pages_that_are_missed_count_for_who_had_evicted_them_and_others_for_nobody() {
    let (_folder, path) = file("evicted");
    let (_other, cold) = file("cold");
    let pages = 500;
    let drop_cache = |path: &Path| {
        let from = format!("if={}", path.display());
        let mut dd = spawn("dd", &[&from, "iflag=nocache", "count=0"]);
        assert!(dd.wait().unwrap().success());
        dd.id()
    };
    for path in [&path, &cold] {
        fs::write(path, vec![7; pages * 4096]).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    // Before anybody records.
    drop_cache(&cold);
    let cold_left = cached_pages(&cold);
    let Some((trace, (pid, left))) = record(&[], || {
        let pid = drop_cache(&path);
        let left = cached_pages(&path);
        assert_eq!(fs::read(&path).unwrap().len(), pages * 4096);
        assert_eq!(fs::read(&cold).unwrap().len(), pages * 4096);
        // What is written behind the end is no data that was missed.
        let mut longer = File::options().append(true).open(&path).unwrap();
        longer.write_all(&vec![7; 300 * 4096]).unwrap();
        (pid, left)
    }) else {
        return;
    };
    trace.source_ran("bpf:memory");
    assert!(left + cold_left < pages / 2, "{left} and {cold_left} pages were not evicted");
    let missed = |by: Option<u32>| -> f64 {
        let me = |e: &Entity| e.number == Some(std::process::id().into());
        let evictor = |track: &Track| {
            let parent = trace.rows.track.iter().find(|t| Some(t.id) == track.parent)?;
            let entity = trace.rows.entity.iter().rev().find(|e| e.id == parent.entity)?;
            entity.number
        };
        let tracks: Vec<TrackId> = trace
            .tracks(names::PAGE_CACHE_MISSED)
            .filter(|(id, e)| {
                let track = trace.rows.track.iter().find(|t| t.id == *id).unwrap();
                me(e) && evictor(track) == by.map(i64::from)
            })
            .map(|(id, _)| id)
            .collect();
        let rows = trace.rows.counter.iter().filter(|c| tracks.contains(&c.track));
        rows.map(|c| c.value).sum()
    };
    assert_eq!(missed(Some(pid)), (pages - left) as f64);
    // The test program reads libraries of `dd` and its own meanwhile.
    let cold = missed(None);
    let expected = (pages - cold_left) as f64;
    assert!((expected..expected + 200.0).contains(&cold), "{cold} instead of {expected}");
}

/// A cgroup of its own below the mount of a controller (`unified`: version 2); `None`, after printing
/// why, where that hierarchy is not mounted.
struct Group(PathBuf);

impl Group {
    fn new(controller: &str) -> Option<Group> {
        let path = PathBuf::from("/sys/fs/cgroup").join(controller);
        let path = path.join(format!("gpuwhy-test-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Some(Group(path)),
            Err(error) => {
                println!("skipped: cannot create `{}`: {error}", path.display());
                None
            }
        }
    }

    fn set(&self, file: &str, value: impl ToString) {
        let path = self.0.join(file);
        fs::write(&path, value.to_string()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    fn get(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A cgroup can be removed only when its last process has exited.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A shell that waits for a line on stdin before it runs `script`, so that it can be moved into a
/// cgroup first.
fn waiting(script: &str) -> Child {
    Command::new("bash")
        .args(["-c", &format!("read line; {script}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn go(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

#[test]
fn root_a_process_at_its_memory_limit_has_reclaim_spans() {
    let Some(group) = Group::new("memory") else { return };
    group.set("memory.limit_in_bytes", 64 << 20);
    let (_folder, path) = file("large");
    fs::write(&path, vec![1; 160 << 20]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let drop = format!("if={}", path.display());
    assert!(spawn("dd", &[&drop, "iflag=nocache", "count=0"]).wait().unwrap().success());
    // Reading more than the limit makes the process evict pages that it read before.
    let mut reader = waiting(&format!("cat {} > /dev/null; true", path.display()));
    let pid = reader.id();
    group.set("cgroup.procs", pid);
    let Some((trace, ())) = record(&[pid], || {
        go(&mut reader);
        assert!(reader.wait().unwrap().success());
    }) else {
        return;
    };
    let tracks: Vec<TrackId> = trace.tracks(names::MEMORY).map(|(id, _)| id).collect();
    let spans: Vec<&Span> = trace.rows.span.iter().filter(|s| tracks.contains(&s.track)).collect();
    let memcg = spans.iter().filter(|s| &*s.name == "memcg_reclaim").count();
    assert!(memcg > 10, "{memcg} of {} spans", spans.len());
    let thread = trace.rows.track.iter().find(|t| t.id == spans[0].track).unwrap().entity;
    assert_eq!(&*trace.entity(thread).name, "cat");
    let is_reader = |e: &Entity| e.kind == EntityKind::Process && &*e.name == "cat";
    let spanned: i64 =
        spans.iter().filter(|s| &*s.name != "compaction").map(|s| s.dur.unwrap().0).sum();
    let summed = trace.sum(names::RECLAIM, is_reader);
    assert!(summed >= spanned as f64 * 0.99, "{summed} {spanned}");
    let evicted = trace.sum(names::PAGE_CACHE_EVICTED, is_reader);
    assert!(evicted > 10_000.0, "{evicted} pages");
    let group = |e: &Entity| e.kind == EntityKind::Cgroup && e.name.contains("gpuwhy-test");
    assert!(trace.sum("memory_limit_hits", group) > 10.0);
}

#[test]
fn root_throttled_time_of_a_cgroup_agrees_with_its_statistics() {
    let Some(group) = Group::new("cpu") else { return };
    let mut burner = waiting("for ((;;)); do :; done");
    let pid = burner.id();
    group.set("cgroup.procs", pid);
    let Some((trace, throttled)) = record(&[pid], || {
        go(&mut burner);
        std::thread::sleep(Duration::from_millis(300));
        // The quota changes during the recording.
        group.set("cpu.cfs_quota_us", 5_000);
        std::thread::sleep(Duration::from_millis(1500));
        group.set("cpu.cfs_quota_us", -1);
        let stat = group.get("cpu.stat");
        burner.kill().unwrap();
        burner.wait().unwrap();
        let line = stat.lines().find_map(|l| l.strip_prefix("throttled_time ")).unwrap();
        line.parse::<f64>().unwrap()
    }) else {
        return;
    };
    let ours = |e: &Entity| e.kind == EntityKind::Cgroup && e.key.contains("v1:cpu:/gpuwhy-test");
    let recorded = trace.sum(names::THROTTLED, ours);
    assert!(throttled > 0.5e9, "{throttled}");
    assert!((recorded - throttled).abs() <= throttled * 0.1, "{recorded} of {throttled}");
    // The parent of the process is the cgroup that limits it.
    let burner = trace
        .rows
        .entity
        .iter()
        .rev()
        .find(|e| e.kind == EntityKind::Process && e.number == Some(i64::from(pid)))
        .unwrap();
    assert!(ours(trace.entity(burner.parent.unwrap())), "{burner:?}");
}

#[test]
fn root_pressure_of_the_host_is_a_growing_total() {
    let Some((trace, ())) = record(&[], || {
        // Two processes on one CPU.
        let mut hogs: Vec<Child> = (0..2)
            .map(|_| spawn("taskset", &["-c", "0", "bash", "-c", "for ((;;)); do :; done"]))
            .collect();
        std::thread::sleep(Duration::from_millis(800));
        for hog in &mut hogs {
            hog.kill().unwrap();
            hog.wait().unwrap();
        }
    }) else {
        return;
    };
    trace.source_ran("proc:psi");
    let rows: Vec<f64> =
        trace.counters("psi.cpu.some", |e| e.kind == EntityKind::Host).map(|c| c.value).collect();
    assert!(rows.windows(2).all(|w| w[0] < w[1]), "a total grows: {rows:?}");
    let us = rows.last().unwrap() - rows[0];
    assert!(us > 300_000.0, "{us}");
}

#[test]
fn root_packets_that_pass_through_virtual_devices_keep_their_sender() {
    let mut pid = 0;
    let Some((trace, ())) = record(&[], || {
        // `a0` to `b0`, then a router in b, then `b1` to `c0`: the path of a packet that leaves a
        // container.
        let link = Link::new();
        let (a, b) = (link.a.as_str(), link.b.as_str());
        let c = format!("gpuwhy-c{}", std::process::id());
        ip(&format!("netns add {c}"));
        let third = Link { a: c.clone(), b: String::new() };
        ip(&format!("-n {b} link add b1 type veth peer name c0 netns {c}"));
        ip(&format!("-n {b} address add 10.78.0.1/24 dev b1"));
        ip(&format!("-n {c} address add 10.78.0.2/24 dev c0"));
        ip(&format!("-n {b} link set b1 up"));
        ip(&format!("-n {c} link set c0 up"));
        ip(&format!("-n {a} route add default via 10.77.0.2"));
        ip(&format!("-n {c} route add default via 10.78.0.1"));
        let forward = ["netns", "exec", b, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
        assert!(spawn("ip", &forward).wait().unwrap().success());
        let listen = "my $l = IO::Socket::INET->new(Listen => 1, LocalPort => 7000) or die; \
                      my $s = $l->accept; 1 while sysread $s, my $d, 65536";
        let mut server =
            spawn("ip", &["netns", "exec", &c, "perl", "-MIO::Socket::INET", "-e", listen]);
        let send = "my $s; for (1..100) { $s = IO::Socket::INET->new('10.78.0.2:7000') and last; \
                    select undef, undef, undef, 0.05 } syswrite $s, 'x' x 10000 for 1..100";
        let mut sender =
            spawn("ip", &["netns", "exec", a, "perl", "-MIO::Socket::INET", "-e", send]);
        pid = sender.id();
        assert!(sender.wait().unwrap().success());
        server.wait().unwrap();
        drop(third);
    }) else {
        return;
    };
    let nic_of_share = |track: TrackId| {
        let parent = trace.rows.track.iter().find(|t| t.id == track)?.parent?;
        let nic = trace.rows.track.iter().find(|t| t.id == parent)?.entity;
        Some(&*trace.entity(nic).name)
    };
    let sent = |nic: &str| -> f64 {
        let of_sender = trace
            .tracks(names::NIC_TX_BYTES)
            .filter(|(id, e)| e.number == Some(i64::from(pid)) && nic_of_share(*id) == Some(nic));
        let tracks: Vec<TrackId> = of_sender.map(|(id, _)| id).collect();
        let rows = trace.rows.counter.iter().filter(|c| tracks.contains(&c.track));
        rows.map(|c| c.value).sum()
    };
    let (a0, b1) = (sent("a0"), sent("b1"));
    assert!(a0 >= 1e6, "{a0} bytes");
    // Some acknowledgements and retransmissions may lack a sender.
    assert!(b1 >= 0.9 * a0 && b1 <= 1.1 * a0, "{b1} of {a0} bytes");
}

#[test]
fn root_the_victim_of_an_oom_kill_has_a_mark() {
    let Some(group) = Group::new("memory") else { return };
    group.set("memory.limit_in_bytes", 24 << 20);
    let mut eater = waiting("x=$(head -c 100000000 /dev/zero | tr '\\0' x); true");
    let pid = eater.id();
    group.set("cgroup.procs", pid);
    let Some((trace, ())) = record(&[pid], || {
        go(&mut eater);
        eater.wait().unwrap();
    }) else {
        return;
    };
    let marks: Vec<_> = trace.rows.mark.iter().filter(|m| &*m.name == "oom_kill").collect();
    assert!(!marks.is_empty(), "{:?}", trace.rows.source);
    let track = trace.rows.track.iter().find(|t| t.id == marks[0].track).unwrap();
    let victim = trace.entity(track.entity);
    assert_eq!(victim.number.map(|n| n as f64), marks[0].value);
    assert_eq!((victim.kind, &*victim.name), (EntityKind::Process, "bash"));
}

#[test]
fn root_pressure_of_a_targets_cgroup_is_recorded() {
    let Some(group) = Group::new("unified") else { return };
    let hog = "for ((;;)); do :; done";
    let mut hogs: Vec<Child> =
        (0..2).map(|_| waiting(&format!("exec taskset -c 0 bash -c '{hog}'"))).collect();
    let pids: Vec<u32> = hogs.iter().map(Child::id).collect();
    for pid in &pids {
        group.set("cgroup.procs", pid);
    }
    let Some((trace, ())) = record(&pids, || {
        for hog in &mut hogs {
            go(hog);
        }
        std::thread::sleep(Duration::from_millis(800));
        for hog in &mut hogs {
            hog.kill().unwrap();
            hog.wait().unwrap();
        }
    }) else {
        return;
    };
    let ours = |e: &Entity| e.kind == EntityKind::Cgroup && e.key.starts_with("v2:/gpuwhy-test");
    let rows: Vec<f64> = trace.counters("psi.cpu.some", ours).map(|c| c.value).collect();
    assert!(rows.windows(2).all(|w| w[0] < w[1]), "a total grows: {rows:?}");
    // Two processes on one CPU: one of them always waits.
    assert!(rows.last().unwrap() - rows[0] > 300_000.0, "{rows:?}");
}
