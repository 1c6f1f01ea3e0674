//! TCP segments that are sent again, and the processes that wait for them.
//!
//! *What it sees*: each retransmission, its reason, and the process that last sent on its socket: as
//! counters of processes, and as marks of threads of interest. *Why it matters*: a segment that is
//! lost stops the whole stream behind it, for a round trip where later segments reveal the loss and
//! for 200 ms or more where only a timeout does; a collective over sockets then waits for one rank
//! although no link is full. *What fools it*: a segment that is only late, or reordered, is sent again
//! as well; of a socket that several processes share, the last sender is named; a socket that nothing
//! was sent on since the recording began has no known process (the host's counter, which the probe
//! `network` writes, counts its retransmissions too); connections that the kernel itself makes (NFS,
//! RDMA over TCP) belong to kernel threads.
//!
//! *What it costs*: 0.17 to 0.18 µs of each send on a TCP socket, to remember the sender (two runs of
//! 300,000 sends of 64 bytes over loopback on two shared virtual CPUs, Linux 6.18, by the kernel's own
//! statistics, which add 20 to 40 ns).

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{EntityId, Lane, Mark, Measure, Name, Ns, SourceId, TrackId, names, sources};

use crate::bpf::process_sums::{self, ProcessSums, Share};
use crate::bpf::shared_with_c;
use crate::bpf::{Head, LoadedObject, bpf_object, bytes_of, from_bytes, set_constants};
use crate::context::Context;
use crate::error::CollectError;
use crate::probe::{How, Probe, ProbeSpec, Shedding, Start};
use crate::shed::Shed;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    sheds: &[Shedding {
        shed: Shed::Network,
        how: How::Pause,
        missing: "TCP retransmissions are not recorded",
    }],
    ..ProbeSpec::new(
        "tcp",
        &sources::TCP,
        "TCP segments that are sent again, and the processes that wait for them",
        start,
    )
};

/// Counter track of a process (delta, 1): of its retransmissions, those after a timeout.
const TCP_TIMEOUTS: &str = "tcp_timeouts";

/// Mark track of a thread: retransmissions on sockets that it sends on; a mark is called what its
/// [`Reason`] is, its value is the segment's length in bytes.
const TCP_EVENTS: &str = "tcp_events";

/// Tracks of threads that are remembered.
const THREAD_TRACKS: usize = 16 * 1024;

// The structs and enums of `tcp.bpf.c`, where each is explained.
shared_with_c! {
    objects ["tcp"];

    enum Summed = "summed" { Segments, Timeouts, }

    enum Reason = "reason" { Fast, Timeout, Probe, Connect, Accept, }

    struct Constants = "constants" {
        has_error: u32,
        pad: u32,
    }

    struct Retransmit = "retransmit" {
        head: Head,
        tgid: u32,
        bytes: u32,
        reason: u32,
        pad: u32,
        comm: [u8; 16],
    }
}

impl Reason {
    /// What its marks are called.
    fn name(self) -> &'static str {
        match self {
            Reason::Fast => "fast_retransmit",
            Reason::Timeout => "timeout_retransmit",
            Reason::Probe => "tail_loss_probe",
            Reason::Connect => "syn_retransmit",
            Reason::Accept => "synack_retransmit",
        }
    }
}

struct Tcp {
    sums: ProcessSums,
    rows: TcpRows,
    loaded: LoadedObject,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let bpf = start.bpf;
    let has_error = bpf.tracepoint_arguments("tcp_retransmit_skb") >= Some(3);
    let constants = Constants { has_error: u32::from(has_error), pad: 0 };
    let mut loaded = bpf.load("tcp", bpf_object!("tcp"), |object| {
        process_sums::configure(object, bpf, 2)?;
        set_constants(object, bytes_of(&constants))
    })?;
    loaded.attach()?;
    if bpf.tracepoint_arguments("sock_send_length").is_none() {
        let note = "before Linux 6.3 retransmissions are known only of processes that connect or \
                    listen while recording";
        start.cx.degraded(start.source, note);
    }
    let sums = ProcessSums::new(&loaded)?;
    Ok(Box::new(Tcp { sums, rows: TcpRows::new(start.source), loaded }))
}

impl Probe for Tcp {
    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        if let Some(record) = from_bytes::<Retransmit>(bytes) {
            self.rows.mark(&record, cx);
        }
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let rows = &mut self.rows;
        self.sums.each(now, |share| rows.share(share, now, cx));
        Ok(())
    }

    fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        self.loaded.pause(paused)
    }

    fn recorded(&self) -> u64 {
        // Those of threads of interest came through the ring as well, which the recorder counts.
        self.rows.summed.saturating_sub(self.rows.marks)
    }
}

/// Turns records and sums into rows.
struct TcpRows {
    source: SourceId,
    tracks: HashMap<EntityId, TrackId>,
    /// Names of marks, by [`Reason`].
    names: [Name; Reason::ALL.len()],
    /// Retransmissions in the sums so far, and marks.
    summed: u64,
    marks: u64,
}

impl TcpRows {
    fn new(source: SourceId) -> TcpRows {
        let names = Reason::ALL.map(|reason| reason.name().into());
        TcpRows { source, tracks: HashMap::new(), names, summed: 0, marks: 0 }
    }

    /// Writes a retransmission for a thread of interest.
    fn mark(&mut self, record: &Retransmit, cx: &mut Context) {
        let Some(name) = self.names.get(record.reason as usize) else { return };
        let thread = cx.thread(record.head.tid, record.tgid, Some(&record.comm));
        if self.tracks.len() >= THREAD_TRACKS {
            self.tracks.clear();
        }
        let track = *self.tracks.entry(thread).or_insert_with(|| {
            cx.catalog.track(thread, None, Lane::marks(TCP_EVENTS), self.source)
        });
        let (id, ts) = (cx.ids.next_id(), Ns(record.head.ts as i64));
        let value = Some(f64::from(record.bytes));
        cx.rows.mark.push(Mark { id, ts, track, name: name.clone(), value });
        self.marks += 1;
    }

    /// Writes what was added to a process's sums.
    fn share(&mut self, share: &mut Share, now: Ns, cx: &mut Context) {
        self.summed += share.added[Summed::Segments as usize];
        let (source, tgid, comm) = (self.source, share.tgid, share.comm);
        let Context { catalog, rows, attribution, host, .. } = cx;
        for (summed, name) in
            [(Summed::Segments, names::TCP_RETRANSMITS), (Summed::Timeouts, TCP_TIMEOUTS)]
        {
            let i = summed as usize;
            share.counters[i].add(share.added[i], now, rows, || {
                let kind = Lane::counter(name, "1", Measure::Delta);
                // The host's counter of the same name is the whole of which this is a share.
                let whole =
                    (summed == Summed::Segments).then(|| catalog.track(*host, None, kind, source));
                let process = attribution.process(catalog, tgid, Some(&comm));
                catalog.track(process, whole, kind, source)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use gpuwhy_schema::{EntityKind, Rows};

    use super::*;
    use crate::config::{Config, Target};
    use crate::recorder::Recorder;

    /// A process that does not exist, so that /proc has nothing about it.
    const PID: u32 = 4_000_000_000;
    const COMM: [u8; 16] = *b"trainer\0\0\0\0\0\0\0\0\0";

    #[test]
    fn retransmissions_are_marks_of_the_thread_and_shares_of_the_process() {
        let mut cx = Context::new();
        let source = cx.catalog.source("bpf:tcp", "test", "0", "");
        let mut tcp = TcpRows::new(source);
        for (ts, reason) in [(10, 0), (20, 1), (30, 9)] {
            let head = Head { ts, tid: PID, ..Head::default() };
            let record = Retransmit {
                head,
                tgid: PID,
                bytes: 1448,
                reason,
                comm: COMM,
                ..Retransmit::default()
            };
            tcp.mark(&record, &mut cx);
        }
        let mut share = Share::default();
        (share.tgid, share.comm) = (PID, COMM);
        for (now, added) in [(100, [3, 1, 0, 0]), (200, [0; 4]), (300, [0; 4])] {
            share.added = added;
            tcp.share(&mut share, Ns(now), &mut cx);
        }
        assert_eq!((tcp.summed, tcp.marks), (3, 2));
        let rows = cx.take_rows();
        let marks: Vec<_> = rows.mark.iter().map(|m| (m.ts.0, &*m.name, m.value)).collect();
        let expected =
            [(10, "fast_retransmit", Some(1448.0)), (20, "timeout_retransmit", Some(1448.0))];
        assert_eq!(marks, expected, "an unknown reason is left out");
        let process = rows.entity.iter().find(|e| e.kind == EntityKind::Process).unwrap();
        assert_eq!(&*process.name, "trainer");
        assert_eq!(counter(&rows, process.id, names::TCP_RETRANSMITS), [3.0, 0.0]);
        assert_eq!(counter(&rows, process.id, TCP_TIMEOUTS), [1.0, 0.0]);
        let is_share = |t: &&gpuwhy_schema::Track| {
            t.entity == process.id && &*t.name == names::TCP_RETRANSMITS
        };
        let whole = rows.track.iter().find(is_share).unwrap().parent.unwrap();
        assert_eq!(rows.track.iter().find(|t| t.id == whole).unwrap().entity, cx.host);
    }

    fn counter(rows: &Rows, entity: EntityId, name: &str) -> Vec<f64> {
        let track = rows.track.iter().find(|t| t.entity == entity && &*t.name == name);
        let of = |c: &&gpuwhy_schema::Counter| track.is_some_and(|t| t.id == c.track);
        rows.counter.iter().filter(of).map(|c| c.value).collect()
    }

    #[test]
    fn any_bytes_are_tolerated() {
        let mut cx = Context::new();
        let source = cx.catalog.source("bpf:tcp", "test", "0", "");
        let mut tcp = TcpRows::new(source);
        for fill in [0x00, 0x01, 0x7f, 0xff] {
            for len in 0..80 {
                if let Some(record) = from_bytes::<Retransmit>(&vec![fill; len]) {
                    tcp.mark(&record, &mut cx);
                }
            }
        }
    }

    /// A network namespace with a loopback device that drops packets, gone at the end.
    struct LossyNetwork(String);

    impl LossyNetwork {
        fn new() -> Option<LossyNetwork> {
            let name = format!("gpuwhy-tcp{}", std::process::id());
            let run = |command: &str| {
                let output = Command::new("sh").args(["-c", command]).output().unwrap();
                let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                if output.status.success() { Ok(()) } else { Err(format!("{command}: {error}")) }
            };
            if let Err(error) = run(&format!("ip netns add {name}")) {
                println!("skipped: {error}");
                return None;
            }
            let network = LossyNetwork(name);
            let name = &network.0;
            run(&format!("ip -n {name} link set lo mtu 1500 up")).unwrap();
            let qdisc = format!("tc -n {name} qdisc add dev lo root");
            // Where the kernel has no netem, a queue that is too short drops packets as well.
            run(&format!("{qdisc} netem loss 5%"))
                .or_else(|_| run(&format!("{qdisc} tbf rate 100mbit burst 5kb limit 20kb")))
                .unwrap();
            Some(network)
        }

        fn perl(&self, script: &str) -> std::process::Child {
            let inside = ["netns", "exec", &self.0, "perl", "-MIO::Socket::INET", "-e", script];
            Command::new("ip").args(inside).spawn().unwrap()
        }
    }

    impl Drop for LossyNetwork {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
        }
    }

    #[test]
    fn root_lost_packets_are_sent_again_and_their_sender_is_named() {
        let Some(network) = LossyNetwork::new() else { return };
        let listen = "my $l = IO::Socket::INET->new(Listen => 1, LocalPort => 7000) or die; \
                      my $s = $l->accept; 1 while sysread $s, my $d, 65536";
        let mut server = network.perl(listen);
        // It waits until it is recorded.
        let send = "sleep 2; my $s; for (1..100) { $s = IO::Socket::INET->new('127.0.0.1:7000') and \
                    last; select undef, undef, undef, 0.05 } syswrite $s, 'x' x 65536 for 1..200";
        let mut sender = network.perl(send);
        let pid = sender.id();
        let targets = vec![Target::Pid(pid as i32)];
        let only = Config::only(&["run_queue", "interrupts", "network", "tcp"]);
        let mut recorder = Recorder::start(Config { targets, ..only }).unwrap();
        let (begun, mut rows) = (Instant::now(), Rows::default());
        while sender.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60) {
            rows.append(&mut recorder.poll(Duration::from_millis(10)).unwrap());
        }
        for _ in 0..50 {
            rows.append(&mut recorder.poll(Duration::from_millis(10)).unwrap());
        }
        rows.append(&mut recorder.finish());
        let _ = sender.kill();
        sender.wait().unwrap();
        server.wait().unwrap();

        let source = rows.source.iter().rev().find(|s| &*s.kind == "bpf:tcp").unwrap();
        if source.state == gpuwhy_schema::SourceState::Unavailable {
            println!("skipped: {source:?}");
            return;
        }
        let is_sender = |e: &&gpuwhy_schema::Entity| {
            e.kind == EntityKind::Process && e.number == Some(i64::from(pid))
        };
        let process = rows.entity.iter().rev().find(is_sender).expect("the sender has rows");
        assert_eq!(&*process.name, "perl");
        let sent_again: f64 = counter(&rows, process.id, names::TCP_RETRANSMITS).iter().sum();
        let host = rows.entity.iter().find(|e| e.kind == EntityKind::Host).unwrap();
        let of_host: f64 = counter(&rows, host.id, names::TCP_RETRANSMITS).iter().sum();
        assert!(sent_again >= 5.0, "{sent_again} retransmissions");
        assert!(sent_again <= of_host, "{sent_again} of {of_host}");
        let tracks: Vec<TrackId> =
            rows.track.iter().filter(|t| &*t.name == TCP_EVENTS).map(|t| t.id).collect();
        let marks: Vec<&str> =
            rows.mark.iter().filter(|m| tracks.contains(&m.track)).map(|m| &*m.name).collect();
        let fast = marks.iter().filter(|name| **name == "fast_retransmit").count();
        println!("{sent_again} of {of_host} retransmissions, {fast} of them fast");
        assert!(fast > 0, "{marks:?}");
        assert_eq!(marks.len() as f64, sent_again, "each is a mark, as the sender is a target");
    }
}
