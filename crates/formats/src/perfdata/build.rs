//! Small files that tests write: as files, pipes and compressed, in both byte orders, of two CPUs, with a switch, an interrupt,
//! a sample of a clock, a thread that is named, lost events, and records that are not in the order of time.

use crate::tracedat::build::{Bytes, record, switch, tracing_data};

/// Bits of `sample_type`: IP, TID, TIME, CPU, PERIOD and IDENTIFIER.
const CLOCK: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 8 | 1 << 16;
const WITH_RAW: u64 = CLOCK | 1 << 10;

/// The recorded events: type, config, `sample_type`, numbers and name. Types 1 and 2 are `sched_switch` and
/// `irq_handler_entry`, type 3 is not described.
const EVENTS: [(u64, u64, u64, &[u64], &str); 4] = [
    (2, 1, WITH_RAW, &[11, 12], "sched:sched_switch"),
    (2, 2, WITH_RAW, &[21], "irq:irq_handler_entry"),
    (1, 0, CLOCK, &[31], "cpu-clock:u"),
    (2, 77, WITH_RAW, &[41], "other:unknown"),
];

/// In which form a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    File,
    Pipe,
    Zipped,
}

/// A record with its header.
fn record_of(is_big: bool, kind: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.put(kind, 4).put(0, 2).put(8 + content.len() as u64, 2).bytes(content);
    bytes.all
}

/// Who, when, where and of which event.
type Of = ((u64, u64), u64, u64, u64);

fn sample(is_big: bool, ((pid, tid), time, cpu, id): Of, raw: Option<&Bytes>) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.put(id, 8).put(0xffff_ffff_8100_0000, 8).put(pid, 4).put(tid, 4).put(time, 8);
    bytes.put(cpu, 4).put(0, 4).put(1, 8);
    if let Some(raw) = raw {
        let size = (4 + raw.all.len()).next_multiple_of(8) - 4;
        bytes.put(size as u64, 4).bytes(&raw.all).bytes(&vec![0; size - raw.all.len()]);
    }
    record_of(is_big, 9, &bytes.all)
}

/// What a record ends with that is no sample.
fn trailer(bytes: &mut Bytes, ((pid, tid), time, cpu, id): Of) {
    bytes.put(pid, 4).put(tid, 4).put(time, 8).put(cpu, 4).put(0, 4).put(id, 8);
}

fn named(is_big: bool, of: Of, name: &[u8; 8]) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.put(of.0.0, 4).put(of.0.1, 4).bytes(name);
    trailer(&mut bytes, of);
    record_of(is_big, 3, &bytes.all)
}

fn forked(is_big: bool, of: Of, (pid, tid): (u64, u64)) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.put(pid, 4).put(of.0.0, 4).put(tid, 4).put(of.0.1, 4).put(of.1, 8);
    trailer(&mut bytes, of);
    record_of(is_big, 7, &bytes.all)
}

/// All records, in rounds of perf.
pub(super) fn records(is_big: bool) -> Vec<Vec<u8>> {
    let round = record_of(is_big, 68, &[]);
    let mut irq = record(is_big, 2, 7);
    irq.put(30, 4).put(4 << 16 | 16, 4).bytes(b"gpu\0");
    let begins = switch(is_big, (b"swapper\0", 0, 0), (b"python\0\0", 7));
    let ends = switch(is_big, (b"python\0\0", 7, 1), (b"swapper\0", 0));
    let stray = record(is_big, 77, 7);
    let mut lost = Bytes::new(is_big);
    lost.put(11, 8).put(3, 8);
    trailer(&mut lost, ((6, 7), 4_500, 0, 11));
    vec![
        named(is_big, ((6, 6), 0, 0, 11), b"trainer\0"),
        forked(is_big, ((6, 6), 900, 0, 11), (6, 7)),
        sample(is_big, ((0, 0), 1_000, 0, 11), Some(&begins)),
        sample(is_big, ((6, 7), 3_000, 0, 31), None),
        // The other CPU's, which are earlier.
        sample(is_big, ((6, 7), 1_500, 1, 21), Some(&irq)),
        round.clone(),
        sample(is_big, ((6, 7), 4_000, 0, 12), Some(&ends)),
        record_of(is_big, 2, &lost.all),
        sample(is_big, ((6, 7), 2_500, 1, 31), None),
        sample(is_big, ((6, 7), 5_000, 1, 41), Some(&stray)),
        // A mapping, which is not imported.
        record_of(is_big, 10, &[0; 32]),
        round.clone(),
        round,
    ]
}

fn attr(is_big: bool, (kind, config, sample_type, ..): (u64, u64, u64, &[u64], &str)) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    let flags = 1u64 << if is_big { 63 - 18 } else { 18 };
    bytes.put(kind, 4).put(128, 4).put(config, 8).put(1, 8).put(sample_type, 8);
    bytes.put(0, 8).put(flags, 8);
    bytes.all.resize(128, 0);
    bytes.all
}

fn text(bytes: &mut Bytes, text: &str) {
    let size = (text.len() + 1).next_multiple_of(64);
    bytes.put(size as u64, 4).bytes(text.as_bytes()).bytes(&vec![0; size - text.len()]);
}

/// Features but for the descriptions, by their numbers.
fn features(is_big: bool) -> Vec<(u64, Vec<u8>)> {
    let mut out = Vec::new();
    for (number, value) in [(3, "box"), (5, "6.1.0")] {
        let mut bytes = Bytes::new(is_big);
        text(&mut bytes, value);
        out.push((number, bytes.all));
    }
    let mut bytes = Bytes::new(is_big);
    bytes.put(EVENTS.len() as u64, 4).put(128, 4);
    for event in EVENTS {
        bytes.bytes(&attr(is_big, event)).put(event.3.len() as u64, 4);
        text(&mut bytes, event.4);
        for id in event.3 {
            bytes.put(*id, 8);
        }
    }
    out.push((12, bytes.all));
    out
}

/// One stream of zstd in records of its own, each of a part that does not end where a record does.
pub(super) fn zipped(is_big: bool, plain: &[u8], part: usize) -> Vec<u8> {
    use zstd::stream::raw::{Encoder, InBuffer, Operation as _, OutBuffer};
    let mut encoder = Encoder::new(1).unwrap();
    let mut out = Vec::new();
    for part in plain.chunks(part) {
        let mut packed = vec![0; part.len() + 1024];
        let mut to = OutBuffer::around(&mut packed[..]);
        let mut from = InBuffer::around(part);
        while from.pos < part.len() {
            encoder.run(&mut from, &mut to).unwrap();
        }
        assert_eq!(encoder.flush(&mut to).unwrap(), 0);
        let size = to.pos();
        out.extend(record_of(is_big, 81, &packed[..size]));
    }
    out
}

/// A file of that form.
pub(super) fn file(is_big: bool, form: Form) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.bytes(if is_big { super::file::BIG } else { super::file::LITTLE });
    let records: Vec<u8> = records(is_big).concat();
    let tracing = tracing_data(is_big);
    if form == Form::Pipe {
        bytes.put(16, 8);
        for event in EVENTS {
            let mut content = Bytes::new(is_big);
            content.bytes(&attr(is_big, event));
            for id in event.3 {
                content.put(*id, 8);
            }
            bytes.bytes(&record_of(is_big, 64, &content.all));
        }
        for (number, feature) in features(is_big) {
            let mut content = Bytes::new(is_big);
            content.put(number, 8).bytes(&feature);
            bytes.bytes(&record_of(is_big, 80, &content.all));
        }
        let mut size = Bytes::new(is_big);
        size.put(tracing.len() as u64, 4);
        bytes.bytes(&record_of(is_big, 66, &size.all)).bytes(&tracing);
        bytes.bytes(&vec![0; tracing.len().next_multiple_of(8) - tracing.len()]).bytes(&records);
        return bytes.all;
    }
    let records = if form == Form::Zipped { zipped(is_big, &records, 100) } else { records };
    let ids: Vec<u64> = EVENTS.iter().flat_map(|event| event.3).copied().collect();
    let attrs = 104 + 8 * ids.len() as u64;
    let data = attrs + 144 * EVENTS.len() as u64;
    bytes.put(104, 8).put(144, 8).put(attrs, 8).put(144 * EVENTS.len() as u64, 8);
    bytes.put(data, 8).put(records.len() as u64, 8).put(0, 8).put(0, 8);
    let mut features = features(is_big);
    features.insert(0, (1, tracing));
    let bits = features.iter().fold(0u64, |bits, (number, _)| bits | 1 << number);
    bytes.put(bits, 8).put(0, 8).put(0, 8).put(0, 8);
    for id in ids {
        bytes.put(id, 8);
    }
    let mut own = 104;
    for event in EVENTS {
        let size = 8 * event.3.len() as u64;
        bytes.bytes(&attr(is_big, event)).put(own, 8).put(size, 8);
        own += size;
    }
    bytes.bytes(&records);
    let mut at = (bytes.all.len() + 16 * features.len()) as u64;
    for (_, feature) in &features {
        bytes.put(at, 8).put(feature.len() as u64, 8);
        at += feature.len() as u64;
    }
    for (_, feature) in &features {
        bytes.bytes(feature);
    }
    bytes.all
}
