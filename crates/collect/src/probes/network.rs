//! Network devices: which process sent how much through which device, how long packets waited to be
//! sent, what was dropped; and which bytes of a TCP stream a thread of interest sent or received when.
//!
//! *What it sees*: every packet that is queued for sending, on every device of every network
//! namespace; the length of each queueing discipline whenever it changes; packets dropped because
//! a device, its queue or the backlog was full; NAPI polls; TCP retransmissions; and each send and
//! receive of threads of interest on TCP sockets. *Why it matters*: a step that waits for its peer
//! may wait for a link that another process fills. *What fools it*: packets that softirqs send are
//! attributed to the process that last sent on the socket, or through the virtual device that they
//! came out of; behind a tunnel or a user-space network stack, to no process. Two ends of a stream
//! see the same flow only if no address is translated between them.
//!
//! *Queue delay.* The sum of the packets' waits is the number of packets in the queue integrated
//! over time, whatever the order in which they leave, and that integral needs no table of packets; it
//! also holds where `tbf` cuts large packets into segments inside its queue.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Direction, EntityId, EntityKind, Lane, Mark, Measure, Message, Name, Ns, SourceId, TrackId,
    flow, names, sources,
};

use crate::bpf::process_sums::{self, ProcessSums};
use crate::bpf::{
    Head, LoadedObject, MappedArray, bpf_object, from_bytes, leave_out, set_map_entries,
    shared_with_c, text_of,
};
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::every::Every;
use crate::probe::{How, Probe, ProbeSpec, Shedding, Start};
use crate::shed::Shed;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    sheds: &[
        Shedding {
            shed: Shed::Messages,
            how: How::Knob(|knobs| knobs.without_messages = 1),
            missing: "messages are not recorded",
        },
        Shedding {
            shed: Shed::Network,
            how: How::Pause,
            missing: "network devices are not recorded",
        },
    ],
    ..ProbeSpec::new(
        "network",
        &sources::NETWORK,
        "queues, drops and bytes of network devices, messages between processes",
        start,
    )
};

/// How often new devices are looked for.
const SEARCH_EVERY: Ns = Ns::millis(100);

/// How often `/proc/net/softnet_stat` is read.
const SOFTNET_EVERY: Ns = Ns::secs(1);

/// How often it is read whether devices lost their carrier.
const CARRIER_EVERY: Ns = Ns::secs(1);

/// How long after its last change the length of a queue is written as still valid.
const STALE: Ns = Ns::secs(10);

/// Tracks of messages that are remembered.
const MESSAGE_TRACKS: usize = 16 * 1024;

/// Counter tracks of a NIC (delta, 1): times it was polled, and packets taken from it. On the
/// host: of the CPUs' backlogs, through which loopback and veth pass.
const NAPI_POLLS: &str = "napi_polls";
const NAPI_PACKETS: &str = "napi_packets";

/// Counter track of the host (delta, 1): packets dropped as a CPU's backlog was full.
const BACKLOG_DROPS: &str = "backlog_drops";

// The structs of `network.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["network"];

    struct Nic = "nic" {
        key: u64,
        used: u64,
        tx_bytes: u64,
        drops: u64,
        polls: u64,
        polled: u64,
        queue_ns: u64,
        since: u64,
        queued: i64,
        peak_tick: u64,
        peak: u64,
        netns: u32,
        ifindex: u32,
        loopback: u32,
        is_virtual: u32,
        name: [u8; 16],
    }

    struct HostTotals = "host_totals" {
        retransmits: u64,
        backlog_polls: u64,
        backlog_packets: u64,
        lost: u64,
    }

    struct MessageRecord = "message" {
        head: Head,
        local: [u8; 16],
        remote: [u8; 16],
        local_port: u16,
        remote_port: u16,
        tgid: u32,
        bytes: u32,
        position: u32,
        receive: u32,
        role: u32,
    }
}

struct Network {
    source: SourceId,
    nics: MappedArray<Nic>,
    host_totals: MappedArray<HostTotals>,
    sums: ProcessSums,
    /// The tracks of each slot of `nics` in use.
    tracks: HashMap<usize, NicTracks>,
    /// Retransmissions, polls and packets of the backlogs, and drops of the backlogs.
    host: [DeltaCounter; 4],
    messages: HashMap<EntityId, TrackId>,
    /// What marks of sends and receives are called.
    mark_names: [Name; 2],
    tick: Ns,
    recorded: u64,
    searches: Every,
    reads_softnet: Every,
    reads_carriers: Every,
    /// The network namespace that sysfs shows.
    netns: u32,
    loaded: LoadedObject,
}

/// A device's entity and counters.
#[derive(Debug)]
struct NicTracks {
    key: u64,
    entity: EntityId,
    bytes_track: TrackId,
    bytes: DeltaCounter,
    queue: DeltaCounter,
    delay: DeltaCounter,
    drops: DeltaCounter,
    polls: DeltaCounter,
    polled: DeltaCounter,
    /// Packets in the queue at the last reading.
    queued: u64,
    /// How often the device has lost its carrier, by its file; none if there is no such file.
    carrier_downs: Option<(PathBuf, DeltaCounter)>,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let bpf = start.bpf;
    let mut loaded = bpf.load("network", bpf_object!("network"), |object| {
        process_sums::configure(object, bpf, 2)?;
        set_map_entries(object, "host_totals", bpf.cpu_count() as u32)?;
        // Reasons came with 5.17.
        if bpf.tracepoint_arguments("kfree_skb") < Some(3) {
            leave_out(object, "kfree_skb");
        }
        Ok(())
    })?;
    loaded.attach()?;
    let hz = i64::from(start.config.hz.clamp(1, 1000));
    Ok(Box::new(Network {
        source: start.source,
        nics: loaded.mapped("nics")?,
        host_totals: loaded.mapped("host_totals")?,
        sums: ProcessSums::new(&loaded)?,
        tracks: HashMap::new(),
        host: [DeltaCounter::default(); 4],
        messages: HashMap::new(),
        mark_names: ["send".into(), "receive".into()],
        tick: Ns(1_000_000_000 / hz),
        recorded: 0,
        searches: Every::new(SEARCH_EVERY),
        reads_softnet: Every::new(SOFTNET_EVERY),
        reads_carriers: Every::new(CARRIER_EVERY),
        netns: fs::metadata("/proc/self/ns/net").map_or(0, |of| of.ino() as u32),
        loaded,
    }))
}

impl Probe for Network {
    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        let Some(record) = from_bytes::<MessageRecord>(bytes) else { return };
        let thread = cx.thread(record.head.tid, record.tgid, None);
        if self.messages.len() >= MESSAGE_TRACKS {
            self.messages.clear();
        }
        let track = *self.messages.entry(thread).or_insert_with(|| {
            cx.catalog.track(thread, None, Lane::marks(names::MESSAGES), self.source)
        });
        let id = cx.ids.next_id();
        let message = Message { id, ..record.message(thread) };
        cx.rows.mark.push(Mark {
            id,
            ts: message.ts,
            track,
            name: self.mark_names[usize::from(message.direction == Direction::Receive)].clone(),
            value: Some(message.bytes as f64),
        });
        cx.rows.message.push(message);
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if self.searches.is_due(now) {
            self.search(cx);
        }
        for (&slot, tracks) in &mut self.tracks {
            let nic = self.nics.read(slot);
            if nic.key == tracks.key {
                self.recorded += tracks.write(&nic, now, self.tick, self.source, cx);
            }
        }
        self.write_shares(now, cx);
        self.write_host(now, cx);
        if self.reads_softnet.is_due(now) {
            self.read_softnet(now, cx)?;
        }
        if self.reads_carriers.is_due(now) {
            for nic in self.tracks.values_mut() {
                nic.read_carrier(now, self.source, cx);
            }
        }
        Ok(())
    }

    fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        self.loaded.pause(paused)
    }

    fn recorded(&self) -> u64 {
        self.recorded
    }

    fn dropped(&self) -> u64 {
        self.host_totals.iter().map(|totals| totals.lost).sum()
    }
}

impl Network {
    /// Finds devices that sent or received their first packet, and those whose slot belongs to
    /// another one by now.
    fn search(&mut self, cx: &mut Context) {
        for slot in 0..self.nics.len() {
            let nic = self.nics.read(slot);
            let is_known = self.tracks.get(&slot).is_some_and(|tracks| tracks.key == nic.key);
            // The slot is taken before the name is written.
            if nic.key == 0 || nic.name[0] == 0 || is_known {
                continue;
            }
            let name = text_of(&nic.name);
            let entity =
                cx.catalog.entity(EntityKind::Nic, &format!("{}/{name}", nic.netns), |e| {
                    e.parent = Some(cx.host);
                    e.name = name.as_str().into();
                    e.number = Some(i64::from(nic.ifindex));
                });
            let kind = Lane::counter(names::NIC_TX_BYTES, "By", Measure::Delta);
            let bytes_track = cx.catalog.track(entity, None, kind, self.source);
            let mut tracks = NicTracks::new(nic.key, entity, bytes_track);
            if nic.netns == self.netns && nic.loopback == 0 {
                let path = PathBuf::from(format!("/sys/class/net/{name}/carrier_down_count"));
                tracks.carrier_downs =
                    number_in(&path).map(|downs| (path, DeltaCounter::starting_at(downs)));
            }
            self.tracks.insert(slot, tracks);
        }
    }

    /// Writes how much of a device's bytes each process sent.
    fn write_shares(&mut self, now: Ns, cx: &mut Context) {
        let (nics, source) = (&self.tracks, self.source);
        self.sums.each(now, |share| {
            let Some(nic) = nics.get(&(share.slot as usize)) else { return };
            let Context { catalog, rows, attribution, .. } = &mut *cx;
            let (tgid, comm) = (share.tgid, share.comm);
            share.counters[0].add(share.added[0], now, rows, || {
                let comm = (comm[0] != 0).then_some(&comm[..]);
                let process = attribution.process(catalog, tgid, comm);
                let kind = Lane::counter(names::NIC_TX_BYTES, "By", Measure::Delta);
                catalog.track(process, Some(nic.bytes_track), kind, source)
            });
        });
    }

    /// Writes what belongs to the host as a whole.
    fn write_host(&mut self, now: Ns, cx: &mut Context) {
        let mut sum = HostTotals::default();
        for totals in self.host_totals.iter() {
            sum.retransmits += totals.retransmits;
            sum.backlog_polls += totals.backlog_polls;
            sum.backlog_packets += totals.backlog_packets;
        }
        let totals = [sum.retransmits, sum.backlog_polls, sum.backlog_packets];
        let tracks = [names::TCP_RETRANSMITS, NAPI_POLLS, NAPI_PACKETS];
        for ((counter, total), name) in self.host.iter_mut().zip(totals).zip(tracks) {
            self.recorded += counter.update(total, now, &mut cx.rows, || {
                let kind = Lane::counter(name, "1", Measure::Delta);
                cx.catalog.track(cx.host, None, kind, self.source)
            });
        }
    }

    fn read_softnet(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let path = "/proc/net/softnet_stat";
        let text = fs::read_to_string(path)
            .map_err(|source| CollectError::Read { path: PathBuf::from(path), source })?;
        let dropped = backlog_drops(&text);
        let [.., drops] = &mut self.host;
        if *drops == DeltaCounter::default() {
            *drops = DeltaCounter::starting_at(dropped);
        }
        drops.update(dropped, now, &mut cx.rows, || {
            let kind = Lane::counter(BACKLOG_DROPS, "1", Measure::Delta);
            cx.catalog.track(cx.host, None, kind, self.source)
        });
        Ok(())
    }
}

impl NicTracks {
    fn new(key: u64, entity: EntityId, bytes_track: TrackId) -> NicTracks {
        let zero = DeltaCounter::default();
        NicTracks {
            key,
            entity,
            bytes_track,
            bytes: zero,
            queue: zero,
            delay: zero,
            drops: zero,
            polls: zero,
            polled: zero,
            queued: 0,
            carrier_downs: None,
        }
    }

    /// Writes how often the device has lost its carrier since the last reading.
    fn read_carrier(&mut self, now: Ns, source: SourceId, cx: &mut Context) {
        let Some((path, downs)) = &mut self.carrier_downs else { return };
        // A device that is gone has no file any more.
        let Some(total) = number_in(path) else { return };
        downs.update(total, now, &mut cx.rows, || {
            let lane = Lane::counter(names::NIC_CARRIER_DOWNS, "1", Measure::Delta);
            cx.catalog.track(self.entity, None, lane, source)
        });
    }

    /// Writes what has changed, and returns how many packets it was.
    fn write(&mut self, nic: &Nic, now: Ns, tick: Ns, source: SourceId, cx: &mut Context) -> u64 {
        let entity = self.entity;
        let mut track = |name: &str, unit: &str, measure: Measure| {
            cx.catalog.track(entity, None, Lane::counter(name, unit, measure), source)
        };
        let rows = &mut cx.rows;
        let bytes_track = self.bytes_track;
        self.bytes.update(nic.tx_bytes, now, rows, || bytes_track);

        let queued = u64::try_from(nic.queued).unwrap_or(0);
        let waited = now.0 - nic.since as i64;
        let is_fresh = nic.since != 0 && waited > 0 && waited < STALE.0;
        // The kernel sums up when the queue changes; since then its length has been the same.
        let since = if is_fresh { queued.saturating_mul(waited as u64) } else { 0 };
        self.delay.update(nic.queue_ns.saturating_add(since), now, rows, || {
            track(names::NIC_QUEUE_DELAY, "ns", Measure::Delta)
        });
        let is_recent = (nic.peak_tick + 2) as i64 * 10_000_000 > now.0 - tick.0;
        let peak = if is_recent { nic.peak } else { 0 };
        let most = if is_fresh { peak.max(queued).max(self.queued) } else { 0 };
        self.queued = queued;
        self.queue.add(most, now, rows, || track(names::NIC_QUEUE, "1", Measure::Gauge));
        let drops = self
            .drops
            .update(nic.drops, now, rows, || track(names::NIC_DROPS, "1", Measure::Delta));
        self.polls.update(nic.polls, now, rows, || track(NAPI_POLLS, "1", Measure::Delta));
        let polled =
            self.polled.update(nic.polled, now, rows, || track(NAPI_PACKETS, "1", Measure::Delta));
        drops + polled
    }
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The local end has connected itself, or has been accepted.
const ROLE_ASKS: u32 = 1;
const ROLE_IS_ASKED: u32 = 2;

impl MessageRecord {
    /// The row, without its id.
    fn message(&self, thread: EntityId) -> Message {
        let local = (self.local, self.local_port);
        let remote = (self.remote, self.remote_port);
        let (direction, sender, receiver) = match self.receive {
            0 => (Direction::Send, local, remote),
            _ => (Direction::Receive, remote, local),
        };
        let flow = match self.role {
            ROLE_ASKS => flow::of_roles(local, remote, self.receive == 0),
            ROLE_IS_ASKED => flow::of_roles(remote, local, self.receive != 0),
            _ => flow::of_ends(sender, receiver),
        };
        Message {
            id: gpuwhy_schema::Id::default(),
            ts: Ns(self.head.ts as i64),
            thread,
            direction,
            flow,
            bytes: u64::from(self.bytes),
            position: self.position,
        }
    }
}

/// The second number of each line, in hexadecimal, summed over the CPUs.
fn backlog_drops(softnet_stat: &str) -> u64 {
    let dropped = |line: &str| u64::from_str_radix(line.split_ascii_whitespace().nth(1)?, 16).ok();
    softnet_stat.lines().filter_map(dropped).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(a: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, a]
    }

    #[test]
    fn both_ends_of_a_stream_compute_the_same_flow_and_each_direction_is_its_own() {
        let end = |local, local_port, remote, remote_port, receive| {
            let record = MessageRecord {
                local: address(local),
                local_port,
                remote: address(remote),
                remote_port,
                receive,
                ..MessageRecord::default()
            };
            record.message(EntityId(1))
        };
        let sent = end(1, 5000, 2, 80, 0);
        let received = end(2, 80, 1, 5000, 1);
        assert_eq!(sent.flow, received.flow);
        assert_eq!((sent.direction, received.direction), (Direction::Send, Direction::Receive));
        let answer = end(2, 80, 1, 5000, 0);
        assert_ne!(sent.flow, answer.flow);
        assert_ne!(sent.flow, end(1, 5001, 2, 80, 0).flow);
        // Part of the format: another recorder on the other host must agree.
        assert_eq!(sent.flow, 0xf7bf_154a_326e_dee2);
    }

    #[test]
    fn who_connected_asks_whatever_the_ports_are() {
        let end = |local, local_port, remote, remote_port, receive, role| {
            let (local, remote) = (address(local), address(remote));
            let record = MessageRecord {
                local,
                local_port,
                remote,
                remote_port,
                receive,
                role,
                ..MessageRecord::default()
            };
            record.message(EntityId(1))
        };
        // A server that listens at a greater port than that of its client.
        let (asks, is_asked) = (
            |receive, role| end(1, 40_000, 2, 50_051, receive, role),
            |receive, role| end(2, 50_051, 1, 40_000, receive, role),
        );
        assert_eq!(asks(0, 0).is_request(), Some(false), "by its ports");
        let (sent, received) = (asks(0, ROLE_ASKS), is_asked(1, ROLE_IS_ASKED));
        assert_eq!((sent.flow, sent.is_request()), (received.flow, Some(true)));
        let (answer, heard) = (is_asked(0, ROLE_IS_ASKED), asks(1, ROLE_ASKS));
        assert_eq!((answer.flow, answer.is_request()), (heard.flow, Some(false)));
        assert_eq!(answer.flow, sent.opposite());
        // Where both say the same, it is the same.
        assert_eq!(end(1, 5000, 2, 80, 0, ROLE_ASKS).flow, end(1, 5000, 2, 80, 0, 0).flow);
    }

    #[test]
    fn a_record_of_a_receive_is_read_as_it_was_written() {
        let mut raw = Vec::new();
        raw.extend(77_u64.to_ne_bytes());
        raw.extend([0, 5]);
        raw.extend(0_u16.to_ne_bytes());
        raw.extend(42_u32.to_ne_bytes());
        raw.extend(address(2));
        raw.extend(address(1));
        raw.extend(80_u16.to_ne_bytes());
        raw.extend(5000_u16.to_ne_bytes());
        for n in [41_u32, 1448, 0xffff_fff0, 1, ROLE_IS_ASKED] {
            raw.extend(n.to_ne_bytes());
        }
        let record = from_bytes::<MessageRecord>(&raw).unwrap();
        let row = record.message(EntityId(9));
        assert_eq!((row.ts, row.bytes, row.position), (Ns(77), 1448, 0xffff_fff0));
        assert_eq!((record.head.tid, record.tgid, row.thread), (42, 41, EntityId(9)));
        assert_eq!(row.flow, flow::of_ends((address(1), 5000), (address(2), 80)));
        assert!(from_bytes::<MessageRecord>(&raw[..71]).is_none());
    }

    #[test]
    fn drops_of_all_backlogs_are_summed() {
        let text = "0000a1b2 00000003 00000000 00000000\n0000a1b2 0000000f 00000000\nrubbish\n";
        assert_eq!(backlog_drops(text), 18);
        assert_eq!(backlog_drops(""), 0);
    }

    #[test]
    fn packets_in_a_queue_that_does_not_change_go_on_waiting_until_it_is_stale() {
        let mut cx = Context::new();
        let mut tracks = NicTracks::new(1, cx.host, TrackId(99));
        let ms = |n: i64| Ns::millis(100_000 + n);
        let mut at = |n: i64, queued: i64, since: i64, queue_ns: u64| {
            let nic = Nic { key: 1, queued, queue_ns, since: ms(since).0 as u64, ..Nic::default() };
            tracks.write(&nic, ms(n), Ns::millis(10), SourceId(1), &mut cx);
        };
        at(0, 0, 0, 0);
        at(10, 4, 5, 0); // 4 packets for 5 ms
        at(20, 4, 5, 0); // and for 10 ms more
        at(30, 0, 21, 64_000_000); // gone at 21: 16 ms in all
        at(40, 0, 21, 64_000_000);
        at(50, 0, 21, 64_000_000);
        let all: Vec<_> = cx.rows.counter.iter().map(|c| (c.track, c.value)).collect();
        let delay = all[0].0;
        let of = |track| all.iter().filter(|r| r.0 == track).map(|r| r.1).collect::<Vec<_>>();
        assert_eq!(of(delay), [20e6, 40e6, 4e6, 0.0]);
        let queue = all.iter().find(|r| r.0 != delay).unwrap().0;
        assert_eq!(of(queue), [4.0, 4.0, 4.0, 0.0]);
    }
}
