//! Ways in which programs move data that they need not move.
//!
//! # What it sees
//! Copies in the order of their begin: device, kind, bytes. *Ping-pong*: the same number of bytes goes to a
//! device and back again, over and over, so that what is computed on could have stayed there. *Host-staged
//! exchange*: bytes leave one device for the host and go from there to another device at once, and no copy
//! goes directly.
//!
//! # Why it matters
//! Both cost the full way over the host's link, and both are mended in one place of the program.
//!
//! # What fools it
//! Buffers of equal size that have nothing to do with each other. That is why few of them are not reported,
//! and their number is.

use std::collections::HashMap;

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the host to the device.
    In,
    /// From the device to the host.
    Out,
    /// From one device to another.
    Across,
}

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The device; of those that went across, the one that they left.
    pub device: u32,
    /// Which way.
    pub way: Way,
    /// How much.
    pub bytes: u64,
    /// When it began, ns.
    pub start: i64,
    /// When it ended, ns.
    pub end: i64,
}

/// Bytes that went to and fro.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingPong {
    /// Between the host and this device.
    pub device: u32,
    /// How many at a time.
    pub bytes: u64,
    /// How often they went in and out again.
    pub rounds: u64,
    /// What these copies took, ns.
    pub ns: i64,
}

/// Smaller copies are control, not data.
const DATA: u64 = 4096;
/// Rounds from which on it is a habit.
const HABIT: u64 = 16;

/// Data that go to a device and come back, in equal amounts and in turns; most time first. `copies` must be
/// sorted by their begin.
pub fn ping_pong(copies: &[Moved]) -> Vec<PingPong> {
    // Of each device and amount: the last way, the rounds, and the time.
    let mut seen: HashMap<(u32, u64), (Way, u64, i64)> = HashMap::new();
    for copy in copies.iter().filter(|c| c.bytes >= DATA && c.way != Way::Across) {
        let entry = seen.entry((copy.device, copy.bytes)).or_insert((Way::Out, 0, 0));
        entry.2 = entry.2.saturating_add(copy.end.saturating_sub(copy.start));
        if copy.way == Way::Out && entry.0 == Way::In {
            entry.1 += 1;
        }
        entry.0 = copy.way;
    }
    let mut found: Vec<PingPong> = seen
        .into_iter()
        .filter(|(_, (_, rounds, _))| *rounds >= HABIT)
        .map(|((device, bytes), (_, rounds, ns))| PingPong { device, bytes, rounds, ns })
        .collect();
    found.sort_by(|a, b| b.ns.cmp(&a.ns).then((a.device, a.bytes).cmp(&(b.device, b.bytes))));
    found
}

/// Bytes that went from one device to another by way of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// From this device.
    pub from: u32,
    /// To that one.
    pub to: u32,
    /// How often.
    pub times: u64,
    /// How many in all.
    pub bytes: u64,
    /// What both halves took, ns.
    pub ns: i64,
}

/// How soon the second half follows the first, ns.
const SOON: i64 = 1_000_000;
/// Copies that wait for their second half.
const WAITING: usize = 64;

/// Exchanges between devices by way of the host, if no copy goes directly between the two; most time first.
/// `copies` must be sorted by their begin.
pub fn host_staged(copies: &[Moved]) -> Vec<Staged> {
    let mut waiting: Vec<Moved> = Vec::new();
    let mut found: HashMap<(u32, u32), Staged> = HashMap::new();
    for copy in copies.iter().filter(|c| c.bytes >= DATA) {
        match copy.way {
            Way::Out => {
                if waiting.len() == WAITING {
                    waiting.remove(0);
                }
                waiting.push(*copy);
            }
            Way::In => {
                let fits = |out: &Moved| {
                    let gap = copy.start.saturating_sub(out.end);
                    out.device != copy.device
                        && out.bytes == copy.bytes
                        && (0..=SOON).contains(&gap)
                };
                // The latest: an earlier one of the same size was another exchange.
                let Some(at) = waiting.iter().rposition(fits) else { continue };
                let out = waiting.remove(at);
                let (from, to) = (out.device, copy.device);
                let staged = found.entry((from, to)).or_insert(Staged {
                    from,
                    to,
                    times: 0,
                    bytes: 0,
                    ns: 0,
                });
                staged.times += 1;
                staged.bytes = staged.bytes.saturating_add(copy.bytes);
                staged.ns += (out.end - out.start).saturating_add(copy.end - copy.start);
            }
            Way::Across => {}
        }
    }
    let direct = copies.iter().any(|c| c.way == Way::Across);
    let mut found: Vec<Staged> =
        found.into_values().filter(|s| s.times >= HABIT && !direct).collect();
    found.sort_by(|a, b| b.ns.cmp(&a.ns).then((a.from, a.to).cmp(&(b.from, b.to))));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(device: u32, way: Way, bytes: u64, start: i64) -> Moved {
        Moved { device, way, bytes, start, end: start + 100 }
    }

    #[test]
    fn data_that_come_and_go_are_reported_and_a_single_return_is_not() {
        let mut copies = Vec::new();
        for i in 0..20 {
            copies.push(copy(0, Way::In, 1 << 20, 1000 * i));
            copies.push(copy(0, Way::Out, 1 << 20, 1000 * i + 500));
            // Results of another size go out only.
            copies.push(copy(0, Way::Out, 1 << 16, 1000 * i + 600));
            // A flag goes in and out.
            copies.push(copy(0, Way::In, 4, 1000 * i + 700));
            copies.push(copy(0, Way::Out, 4, 1000 * i + 800));
        }
        let found = ping_pong(&copies);
        assert_eq!(found, [PingPong { device: 0, bytes: 1 << 20, rounds: 20, ns: 4000 }]);
        assert!(ping_pong(&copies[..20]).is_empty());
    }

    #[test]
    fn an_exchange_by_way_of_the_host_is_reported_unless_there_is_a_direct_one() {
        let mut copies = Vec::new();
        for i in 0..30 {
            copies.push(copy(0, Way::Out, 8192, 10_000_000 * i));
            copies.push(copy(1, Way::In, 8192, 10_000_000 * i + 200));
            // The same device, or much later, is no exchange.
            copies.push(copy(2, Way::Out, 8192, 10_000_000 * i + 1000));
            copies.push(copy(2, Way::In, 8192, 10_000_000 * i + 2000));
        }
        let found = host_staged(&copies);
        let pairs: Vec<_> = found.iter().map(|s| (s.from, s.to, s.times)).collect();
        assert_eq!(pairs, [(0, 1, 30)]);
        copies.push(copy(0, Way::Across, 8192, 400_000_000));
        assert!(host_staged(&copies).is_empty());
    }
}
