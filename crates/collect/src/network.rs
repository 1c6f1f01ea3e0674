//! Links: who sent how much through which device, how long packets waited to be sent, what was
//! dropped; and which bytes of a TCP stream a thread of interest sent or received when.
//!
//! *What it sees*: every packet that is queued for sending, on every device of every network
//! namespace; the length of each queueing discipline whenever it changes; packets dropped because
//! a device, its queue or the backlog was full; NAPI polls; TCP retransmissions; and each send and
//! receive of threads of interest on TCP sockets. *Why it matters*: a step that waits for its peer
//! may wait for a link that somebody else fills. *What fools it*: packets that softirqs send are
//! put down to the process that last sent on the socket, or through the virtual device that they
//! came out of; behind a tunnel or a user-space network stack, to nobody. Two ends of a stream see
//! the same flow only if no address is translated between them.
//!
//! *Queue delay.* The sum of the packets' waits is the number of packets in the queue integrated
//! over time, whatever the order they leave in, and that integral needs no table of packets; it
//! also survives that `tbf` cuts large packets into segments inside its queue.

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Direction, EntityId, EntityKind, Lane, Mark, Measure, Message, Name, Ns, SourceId, TrackId,
    names,
};

use crate::block_io::name;
use crate::context::{CollectError, Context, Probe, Start};
use crate::delta::Delta;
use crate::kernel::{Head, Kernel, Loaded, Mapped, ProbeNumber, bpf_object, plain, record};
use crate::sums::{self, Sums};

/// New devices are looked for so often.
const LOOK: Ns = Ns::millis(100);

/// `/proc/net/softnet_stat` is read so often.
const SOFTNET: Ns = Ns::secs(1);

/// The length of a queue is believed so long after it last changed.
const STALE: Ns = Ns::secs(10);

/// Tracks of messages that are remembered.
const MESSAGE_TRACKS: usize = 16 * 1024;

/// Counter tracks of a NIC (delta, 1): times it was polled, and packets taken from it. On the
/// host: of the CPUs' backlogs, through which loopback and veth pass.
const NAPI_POLLS: &str = "napi_polls";
const NAPI_PACKETS: &str = "napi_packets";

/// Counter track of the host (delta, 1): packets dropped as a CPU's backlog was full.
const BACKLOG_DROPS: &str = "backlog_drops";

record! {
    /// As `struct nic` in `network.bpf.c`.
    struct Nic {
        key: u64,
        used: u64,
        tx_bytes: u64,
        tx_packets: u64,
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
}

record! {
    /// As `struct rest` in `network.bpf.c`.
    struct Rest {
        retransmits: u64,
        backlog_polls: u64,
        backlog_packets: u64,
        lost: u64,
    }
}

record! {
    /// As `struct message` in `network.bpf.c`.
    struct MessageRecord {
        head: Head,
        local: [u8; 16],
        remote: [u8; 16],
        local_port: u16,
        remote_port: u16,
        tgid: u32,
        bytes: u32,
        position: u32,
        receive: u32,
        pad: u32,
    }
}

struct Network {
    source: SourceId,
    nics: Mapped<Nic>,
    rests: Mapped<Rest>,
    sums: Sums,
    /// What is known of each slot of `nics` in use.
    lanes: HashMap<usize, Lanes>,
    host: [Delta; 4],
    messages: HashMap<EntityId, TrackId>,
    words: [Name; 2],
    tick: Ns,
    counted: u64,
    next_look: Ns,
    next_softnet: Ns,
    loaded: Loaded,
}

/// A device's tracks and what was last read of it.
#[derive(Debug)]
struct Lanes {
    key: u64,
    entity: EntityId,
    bytes_track: TrackId,
    bytes: Delta,
    queue: Delta,
    delay: Delta,
    drops: Delta,
    polls: Delta,
    polled: Delta,
    queued: u64,
}

/// Starts the probe.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let kernel: &Rc<Kernel> = start.kernel;
    let mut loaded = kernel.load("network", bpf_object!("network"), |open| {
        sums::configure(open, kernel, 1)?;
        for mut map in open.maps_mut() {
            if map.name() == "rests" {
                map.set_max_entries(kernel.cpu_count() as u32)?;
            }
        }
        for mut program in open.progs_mut() {
            // Reasons came with 5.17.
            if program.name() == "kfree_skb" && kernel.tracepoint("kfree_skb") < Some(3) {
                program.set_autoload(false);
            }
        }
        Ok(())
    })?;
    loaded.attach()?;
    let hz = i64::from(start.config.hz.clamp(1, 1000));
    Ok(Box::new(Network {
        source: start.source,
        nics: loaded.mapped("nics")?,
        rests: loaded.mapped("rests")?,
        sums: Sums::new(&loaded)?,
        lanes: HashMap::new(),
        host: [Delta::default(); 4],
        messages: HashMap::new(),
        words: ["send".into(), "receive".into()],
        tick: Ns(1_000_000_000 / hz),
        counted: 0,
        next_look: Ns::ZERO,
        next_softnet: Ns::ZERO,
        loaded,
    }))
}

impl Probe for Network {
    fn name(&self) -> &'static str {
        "network"
    }

    fn kinds(&self) -> std::ops::Range<u16> {
        ProbeNumber::Network.kinds()
    }

    fn event(&mut self, _kind: u16, bytes: &[u8], cx: &mut Context) {
        let Some(record) = plain::<MessageRecord>(bytes) else { return };
        let thread = cx.people.thread(&mut cx.lanes, record.head.tid, record.tgid, None);
        if self.messages.len() >= MESSAGE_TRACKS {
            self.messages.clear();
        }
        let track = *self.messages.entry(thread).or_insert_with(|| {
            cx.lanes.track(thread, None, Lane::marks(names::MESSAGES), self.source)
        });
        let id = cx.ids.next_id();
        let message = Message { id, ..record.message(thread) };
        cx.rows.mark.push(Mark {
            id,
            ts: message.ts,
            track,
            name: self.words[usize::from(message.direction == Direction::Receive)].clone(),
            value: Some(message.bytes as f64),
        });
        cx.rows.message.push(message);
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if now >= self.next_look {
            self.next_look = now + LOOK;
            self.look(cx);
        }
        for (&slot, lanes) in &mut self.lanes {
            let nic = self.nics.read(slot);
            if nic.key == lanes.key {
                self.counted += lanes.write(&nic, now, self.tick, self.source, cx);
            }
        }
        self.shares(now, cx)?;
        self.rest(now, cx);
        if now >= self.next_softnet {
            self.next_softnet = now + SOFTNET;
            self.softnet(now, cx)?;
        }
        Ok(())
    }

    fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        self.loaded.pause(paused)
    }

    fn counted(&self) -> u64 {
        self.counted
    }

    fn dropped(&self) -> u64 {
        (0..self.rests.len()).map(|i| self.rests.read(i).lost).sum()
    }
}

impl Network {
    /// Finds devices that sent or received their first packet, and those whose slot belongs to
    /// another one by now.
    fn look(&mut self, cx: &mut Context) {
        for slot in 0..self.nics.len() {
            let nic = self.nics.read(slot);
            let known = self.lanes.get(&slot).is_some_and(|lanes| lanes.key == nic.key);
            // The slot is taken before the name is written.
            if nic.key == 0 || nic.name[0] == 0 || known {
                continue;
            }
            let name = name(&nic.name);
            let key = format!("{}/{name}", nic.netns);
            let entity = cx.lanes.entity(EntityKind::Nic, &key, |e| {
                e.parent = Some(cx.host);
                e.name = name.as_str().into();
                e.number = Some(i64::from(nic.ifindex));
            });
            let lane = Lane::counter(names::NIC_TX_BYTES, "By", Measure::Delta);
            let lanes = Lanes {
                key: nic.key,
                entity,
                bytes_track: cx.lanes.track(entity, None, lane, self.source),
                bytes: Delta::default(),
                queue: Delta::default(),
                delay: Delta::default(),
                drops: Delta::default(),
                polls: Delta::default(),
                polled: Delta::default(),
                queued: 0,
            };
            self.lanes.insert(slot, lanes);
        }
    }

    /// How much of a device's bytes each process sent.
    fn shares(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let (nics, source) = (&self.lanes, self.source);
        self.sums.each(now, |who| {
            let Some(nic) = nics.get(&(who.slot as usize)) else { return };
            let Context { lanes, rows, people, .. } = &mut *cx;
            let (tgid, comm) = (who.tgid, who.comm);
            who.deltas[0].add(who.added[0], now, rows, || {
                let comm = (comm[0] != 0).then_some(&comm[..]);
                let process = people.process(lanes, tgid, comm);
                let lane = Lane::counter(names::NIC_TX_BYTES, "By", Measure::Delta);
                lanes.track(process, Some(nic.bytes_track), lane, source)
            });
        })
    }

    /// What belongs to the host as a whole.
    fn rest(&mut self, now: Ns, cx: &mut Context) {
        let mut sum = Rest::default();
        for i in 0..self.rests.len() {
            let rest = self.rests.read(i);
            sum.retransmits += rest.retransmits;
            sum.backlog_polls += rest.backlog_polls;
            sum.backlog_packets += rest.backlog_packets;
        }
        let totals = [sum.retransmits, sum.backlog_polls, sum.backlog_packets];
        let words = [names::TCP_RETRANSMITS, NAPI_POLLS, NAPI_PACKETS];
        for ((delta, total), word) in self.host.iter_mut().zip(totals).zip(words) {
            self.counted += delta.to(total, now, &mut cx.rows, || {
                let lane = Lane::counter(word, "1", Measure::Delta);
                cx.lanes.track(cx.host, None, lane, self.source)
            });
        }
    }

    fn softnet(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let path = "/proc/net/softnet_stat";
        let text = fs::read_to_string(path)
            .map_err(|source| CollectError::Read { path: PathBuf::from(path), source })?;
        let dropped = backlog_drops(&text);
        let [.., drops] = &mut self.host;
        if *drops == Delta::default() {
            *drops = Delta::from(dropped);
        }
        drops.to(dropped, now, &mut cx.rows, || {
            let lane = Lane::counter(BACKLOG_DROPS, "1", Measure::Delta);
            cx.lanes.track(cx.host, None, lane, self.source)
        });
        Ok(())
    }
}

impl Lanes {
    /// Writes what has changed, and says how many packets it was.
    fn write(&mut self, nic: &Nic, now: Ns, tick: Ns, source: SourceId, cx: &mut Context) -> u64 {
        let entity = self.entity;
        let mut track = |name: &str, unit: &str, measure: Measure| {
            cx.lanes.track(entity, None, Lane::counter(name, unit, measure), source)
        };
        let rows = &mut cx.rows;
        let bytes_track = self.bytes_track;
        self.bytes.to(nic.tx_bytes, now, rows, || bytes_track);

        let queued = u64::try_from(nic.queued).unwrap_or(0);
        let waited = now.0 - nic.since as i64;
        let standing = nic.since != 0 && waited > 0 && waited < STALE.0;
        // The kernel sums up when the queue changes; until now it stood as it stands.
        let since = if standing { queued.saturating_mul(waited as u64) } else { 0 };
        self.delay.to(nic.queue_ns.saturating_add(since), now, rows, || {
            track(names::NIC_QUEUE_DELAY, "ns", Measure::Delta)
        });
        let recent = (nic.peak_tick + 2) as i64 * 10_000_000 > now.0 - tick.0;
        let peak = if recent { nic.peak } else { 0 };
        let most = if standing { peak.max(queued).max(self.queued) } else { 0 };
        self.queued = queued;
        self.queue.add(most, now, rows, || track(names::NIC_QUEUE, "1", Measure::Gauge));
        let drops =
            self.drops.to(nic.drops, now, rows, || track(names::NIC_DROPS, "1", Measure::Delta));
        self.polls.to(nic.polls, now, rows, || track(NAPI_POLLS, "1", Measure::Delta));
        let polled =
            self.polled.to(nic.polled, now, rows, || track(NAPI_PACKETS, "1", Measure::Delta));
        drops + polled
    }
}

impl MessageRecord {
    /// The row, but for its id.
    fn message(&self, thread: EntityId) -> Message {
        let local = (self.local, self.local_port);
        let remote = (self.remote, self.remote_port);
        let (direction, sender, receiver) = match self.receive {
            0 => (Direction::Send, local, remote),
            _ => (Direction::Receive, remote, local),
        };
        Message {
            id: gpuwhy_schema::Id::default(),
            ts: Ns(self.head.ts as i64),
            thread,
            direction,
            flow: flow(sender, receiver),
            bytes: u64::from(self.bytes),
            position: self.position,
        }
    }
}

/// The flow from a sender to a receiver: FNV-1a over both addresses and ports. Both ends see the
/// same addresses, and an IPv6 socket that speaks IPv4 has them as `::ffff:a.b.c.d`, which is how
/// all IPv4 addresses are written here.
fn flow(sender: ([u8; 16], u16), receiver: ([u8; 16], u16)) -> u64 {
    let ports = [sender.1.to_be_bytes(), receiver.1.to_be_bytes()];
    let bytes = sender.0.iter().chain(&receiver.0).chain(ports.as_flattened());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The second number of each line, in hexadecimal, summed over the CPUs.
fn backlog_drops(softnet_stat: &str) -> u64 {
    let dropped = |line: &str| u64::from_str_radix(line.split_ascii_whitespace().nth(1)?, 16).ok();
    softnet_stat.lines().filter_map(dropped).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::same_layout;

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
        assert_eq!(sent.flow, 0x37bf_154a_326e_dee3);
    }

    #[test]
    fn a_record_of_a_receive_is_read_as_it_was_written() {
        let mut raw = Vec::new();
        raw.extend(77_u64.to_ne_bytes());
        raw.extend(0x0500_u16.to_ne_bytes());
        raw.extend(0_u16.to_ne_bytes());
        raw.extend(42_u32.to_ne_bytes());
        raw.extend(address(2));
        raw.extend(address(1));
        raw.extend(80_u16.to_ne_bytes());
        raw.extend(5000_u16.to_ne_bytes());
        for n in [41_u32, 1448, 0xffff_fff0, 1, 0] {
            raw.extend(n.to_ne_bytes());
        }
        let record = plain::<MessageRecord>(&raw).unwrap();
        let row = record.message(EntityId(9));
        assert_eq!((row.ts, row.bytes, row.position), (Ns(77), 1448, 0xffff_fff0));
        assert_eq!((record.head.tid, record.tgid, row.thread), (42, 41, EntityId(9)));
        assert_eq!(row.flow, flow((address(1), 5000), (address(2), 80)));
        assert!(plain::<MessageRecord>(&raw[..71]).is_none());
    }

    #[test]
    fn drops_of_all_backlogs_are_summed() {
        let text = "0000a1b2 00000003 00000000 00000000\n0000a1b2 0000000f 00000000\nrubbish\n";
        assert_eq!(backlog_drops(text), 18);
        assert_eq!(backlog_drops(""), 0);
    }

    fn context() -> Context {
        let mut lanes = gpuwhy_schema::Lanes::default();
        let host = lanes.entity(EntityKind::Host, "host", |_| {});
        Context {
            lanes,
            rows: gpuwhy_schema::Rows::default(),
            ids: gpuwhy_schema::Ids::of_shard(0),
            people: crate::Attribution::new(host),
            host,
            cpus: Vec::new(),
            wanted: Vec::new(),
            gpu_memory: Default::default(),
            gpu_used: Default::default(),
            inside: Default::default(),
        }
    }

    #[test]
    fn a_queue_that_stands_still_goes_on_waiting_until_it_is_stale() {
        let mut cx = context();
        let mut lanes = Lanes {
            key: 1,
            entity: cx.host,
            bytes_track: TrackId(99),
            bytes: Delta::default(),
            queue: Delta::default(),
            delay: Delta::default(),
            drops: Delta::default(),
            polls: Delta::default(),
            polled: Delta::default(),
            queued: 0,
        };
        let ms = |n: i64| Ns::millis(100_000 + n);
        let mut at = |n: i64, queued: i64, since: i64, queue_ns: u64| {
            let nic = Nic { key: 1, queued, queue_ns, since: ms(since).0 as u64, ..Nic::default() };
            lanes.write(&nic, ms(n), Ns::millis(10), SourceId(1), &mut cx);
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

    #[test]
    fn both_halves_agree_on_every_record() {
        same_layout("network", "nic", size_of::<Nic>(), Nic::LAYOUT);
        same_layout("network", "rest", size_of::<Rest>(), Rest::LAYOUT);
        same_layout("network", "message", size_of::<MessageRecord>(), MessageRecord::LAYOUT);
    }
}
