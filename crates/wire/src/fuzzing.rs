//! What the fuzz targets call: each end of the agent socket, opposite an end that sends anything.
//!
//! Not part of the interface.

#![expect(clippy::disallowed_methods, reason = "any descriptor will do")]

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};

use crate::images::{Late, Plan, Records, State};
use crate::map::{Options, Ring};
use crate::record::{Event, Record};
use crate::socket::{RawEnd, Received, Server, ServerOptions, Settings, hello};

const RING: Options = Options { slots: 16, names: 16, mode: 0o600 };

/// Two messages: the first byte is the length of the first one.
fn messages(data: &[u8]) -> [&[u8]; 2] {
    let Some((cut, rest)) = data.split_first() else { return [&[], &[]] };
    let (first, second) = rest.split_at(rest.len().min(usize::from(*cut)));
    [first, second]
}

/// Sends an agent two messages, with descriptors in the second. The process is welcomed or refused, and
/// nothing of it is left when it has gone.
pub fn server_receives(data: &[u8]) {
    thread_local! {
        static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
    }
    let path = std::env::temp_dir().join(format!("gpuwhy-fuzz-{}", std::process::id()));
    SERVER.with_borrow_mut(|server| {
        let server = server.get_or_insert_with(|| {
            let options = ServerOptions::of(2, RING);
            Server::listen(&path, options, Settings::USUAL).expect("a socket of our own")
        });
        let [first, second] = messages(data);
        let other = RawEnd::connect(server.path()).expect("we listen");
        let descriptor = std::io::stderr().as_raw_fd();
        // An empty message is the end; what does not fit is refused by the system.
        let _ = other.send(first, &[]);
        let polled = server.poll(|_, _| {}, |_| {});
        let _ = other.send(second, &[descriptor; 2]);
        let again = server.poll(|_, _| {}, |_| {});
        assert!(polled.connected + again.connected <= 1 && server.peers().count() <= 1);
        drop(other);
        server.poll(|_, _| {}, |_| {});
        assert_eq!(server.peers().count(), 0, "a process that has gone is dropped");
    });
}

/// Sends a client two messages, with a ring or another descriptor in the first. What it takes for a ring
/// can be written to.
pub fn client_receives(data: &[u8]) {
    let (kind, data) = data.split_first().unwrap_or((&0, &[]));
    let [first, second] = messages(data);
    let (other, client) = RawEnd::with_client().expect("two sockets");
    let ring = Ring::memfd(RING).expect("memory for a small ring");
    let descriptors = [ring.as_fd().as_raw_fd(), std::io::stderr().as_raw_fd()];
    let descriptors = match kind % 4 {
        0 => &descriptors[..0],
        1 => &descriptors[..1],
        2 => &descriptors[1..],
        _ => &descriptors[..],
    };
    let _ = other.send(first, descriptors);
    let _ = other.send(second, &[]);
    for _ in 0..2 {
        match client.recv(0) {
            Received::Welcome(producer, _) => {
                let name = producer.name("fuzz");
                producer.write(Event::Mark { name, at: 1, value: None });
            }
            Received::Settings(settings) => assert_eq!(again(settings), Some(settings)),
            Received::Nothing | Received::Closed => {}
        }
    }
}

/// What the ends of a probed program read of each other: a plan, whose head is right if the first byte is even, or else
/// words that the program wrote into memory which the controller reads records and launches from.
pub fn images(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    if kind % 2 == 0 {
        let Some(plan) = Plan::of(data) else { return };
        let (bytes, shown) = (plan.state_bytes, plan.shown_bytes());
        assert!(shown >= bytes && plan.records_at() <= shown);
        assert!(plan.places.iter().all(|(_, at)| *at < bytes));
        assert!(plan.rings.iter().all(|ring| ring.slot(ring.sms.saturating_sub(1), 0) < bytes));
        let last = plan.launches.map(|all| all.word(all.slots.saturating_sub(1), 0));
        assert!(last.is_none_or(|at| at < bytes));
        return;
    }
    const AT: u64 = 64;
    let all = AT + Late::bytes(1) + Records::BYTES;
    let state = State::new(all).expect("memory");
    for twelve in data.chunks_exact(12) {
        let (at, value) = twelve.split_at(4);
        let at = u32::from_le_bytes(at.try_into().unwrap_or_default());
        // Most of what is read lies near the beginning.
        let within = if at % 2 == 0 { 2048 } else { all };
        let word = u64::from(at / 2) % (within / 8);
        state.put(8 * word, u64::from_le_bytes(value.try_into().unwrap_or_default()));
    }
    let late = state.late(AT, 0);
    assert!(late.quantile(0.5) <= late.quantile(1.0));
    let records = Records::new(&state, AT + Late::bytes(1));
    let mut taken = 0;
    records.take(|_, _, record| taken += record.len() as u64);
    assert!(taken <= Records::BYTES);
    records.take(|_, _, _| panic!("what was taken is gone"));
}

/// A plan, and words that are a record: seeds.
pub fn valid_images() -> [Vec<u8>; 2] {
    let plan = Plan {
        image: 7,
        state_bytes: 64,
        words: vec![1, 2],
        places: vec![(0, 8)],
        ..Plan::default()
    };
    let memory = plan.share().expect("memory for a small plan");
    let records = (64 + Late::bytes(1)) / 8;
    let word = |number: u64, value: u64| {
        [&(number as u32 * 2).to_le_bytes()[..], &value.to_le_bytes()].concat()
    };
    let words = [
        word(records, 24),
        word(records + 3, 3 << 32 | 8),
        word(records + 4, 5),
        word(records + 5, 6),
    ];
    let plan = memory.read(0, memory.len());
    // Memory is whole pages.
    let used =
        plan.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1).next_multiple_of(8);
    [[&[0], &plan[..used]].concat(), [vec![1], words.concat()].concat()]
}

/// Settings that were received, sent and received again.
fn again(settings: Settings) -> Option<Settings> {
    let (other, client) = RawEnd::with_client().ok()?;
    other.send(&settings.encode(), &[]).ok()?;
    match client.recv(0) {
        Received::Settings(settings) => Some(settings),
        _ => None,
    }
}

/// A valid hello of a library, and an agent's valid settings: seeds.
pub fn valid_messages() -> [Vec<u8>; 2] {
    [hello(7).to_vec(), Settings::USUAL.encode().to_vec()]
}

/// A valid record of each kind, with and (`-bare`) without its optional fields: seeds, by name.
pub fn valid_records() -> Vec<(String, Record)> {
    let mut records = Vec::new();
    for (suffix, first) in [("", 0), ("-bare", 1)] {
        for &(kind, name) in Event::KINDS {
            // Optional fields are there if their number is even.
            let mut numbers = (first..).step_by(2);
            let event = Event::example(kind, || numbers.next().unwrap_or(first));
            let Some(event) = event else { continue };
            records.push((snake_case(name) + suffix, Record { pid: 42, tid: 43, event }));
        }
    }
    records
}

fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for (i, letter) in name.char_indices() {
        if letter.is_uppercase() && i > 0 {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}
