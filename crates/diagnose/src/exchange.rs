//! Ways in which programs move data that they need not move.
//!
//! # What it sees
//! Copies in the order of their begin: device, kind, bytes. *Ping-pong*: the same number of bytes goes to a
//! device and back again, over and over, so that what is computed on could have stayed there. *Host-staged
//! exchange*: bytes leave one device for the host and go from there to another device at once, and no copy
//! goes directly. A copy counts for one of them: what goes on to another device could not have stayed.
//!
//! # Why it matters
//! Both cost the full way over the host's link, and both are mended in one place of the program.
//!
//! # What fools it
//! Copies of devices whose times are not of one clock: whoever calls says which can be compared.
//! Buffers of equal size that have nothing to do with each other. That is why few of them are not reported,
//! and their number is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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

/// What was found among the copies of a recording.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    /// Data that go to a device and come back.
    pub ping_pong: Vec<PingPong>,
    /// Exchanges between devices by way of the host.
    pub host_staged: Vec<Staged>,
    /// What the times of the copies do not tell.
    pub undecided: Vec<Undecided>,
}

/// What there is among these copies, which must be sorted by their begin.
pub fn exchanges(copies: &[Moved], comparable: Comparable<'_>) -> Exchanges {
    let pairs = pairs(copies, comparable);
    let undecided = undecided(copies, comparable);
    Exchanges {
        ping_pong: ping_pong(copies, &pairs, &undecided),
        host_staged: host_staged(copies, &pairs),
        undecided,
    }
}

/// Data that go to a device and come back, in equal amounts and in turns; most time first.
///
/// Copies that are halves of an exchange with another device are left out; and where most of what leaves a
/// device in one amount goes on to another device, so is the rest of that amount, whose second halves came
/// too late to be recognised.
///
/// Where amounts may have gone on to a device that is not comparable ([`undecided`]), nothing is said of them.
fn ping_pong(copies: &[Moved], pairs: &[(usize, usize)], undecided: &[Undecided]) -> Vec<PingPong> {
    /// Of one device and amount.
    struct Seen {
        last: Way,
        rounds: u64,
        ns: i64,
        out: u64,
        went_on: u64,
    }
    let mut paired = vec![false; copies.len()];
    for (out, into) in pairs {
        (paired[*out], paired[*into]) = (true, true);
    }
    let often = often(copies);
    let undecided: HashSet<(u32, u64)> =
        undecided.iter().flat_map(|of| [(of.from, of.bytes), (of.to, of.bytes)]).collect();
    let mut seen: HashMap<(u32, u64), Seen> = HashMap::new();
    for (copy, paired) in copies.iter().zip(paired) {
        if copy.way == Way::Across || often.binary_search(&(copy.device, copy.bytes)).is_err() {
            continue;
        }
        let nothing = Seen { last: Way::Out, rounds: 0, ns: 0, out: 0, went_on: 0 };
        let entry = seen.entry((copy.device, copy.bytes)).or_insert(nothing);
        entry.out += u64::from(copy.way == Way::Out);
        entry.went_on += u64::from(copy.way == Way::Out && paired);
        if paired {
            continue;
        }
        entry.ns = entry.ns.saturating_add(copy.end.saturating_sub(copy.start));
        entry.rounds += u64::from(copy.way == Way::Out && entry.last == Way::In);
        entry.last = copy.way;
    }
    let mut found: Vec<PingPong> = seen
        .into_iter()
        .filter(|(_, seen)| seen.rounds >= HABIT && 2 * seen.went_on <= seen.out)
        .filter(|(amount, _)| !undecided.contains(amount))
        .map(|((device, bytes), Seen { rounds, ns, .. })| PingPong { device, bytes, rounds, ns })
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

/// By how much the clocks of two devices may differ for copies to be halves of one exchange between them, ns.
pub const CARRIES: i64 = SOON / 2;
/// Whether the times of two devices, by their numbers, are of one clock, or close enough to that.
pub type Comparable<'a> = &'a dyn Fn(u32, u32) -> bool;

/// The amounts that leave a device at least as often as is a habit, by device; of copies that hold data.
fn often(copies: &[Moved]) -> Vec<(u32, u64)> {
    let leave = copies.iter().filter(|c| c.bytes >= DATA && c.way == Way::Out);
    let mut amounts: Vec<(u32, u64)> = leave.map(|c| (c.device, c.bytes)).collect();
    amounts.sort_unstable();
    let many = amounts.chunk_by(|a, b| a == b).filter(|same| same.len() as u64 >= HABIT);
    many.map(|same| same[0]).collect()
}

/// Copies that leave a device for the host and go on to another device, as pairs of places.
fn pairs(copies: &[Moved], comparable: Comparable<'_>) -> Vec<(usize, usize)> {
    let mut waiting: Vec<usize> = Vec::new();
    let mut pairs = Vec::new();
    for (place, copy) in copies.iter().enumerate().filter(|(_, c)| c.bytes >= DATA) {
        match copy.way {
            Way::Out => {
                if waiting.len() == WAITING {
                    waiting.remove(0);
                }
                waiting.push(place);
            }
            Way::In => {
                let fits = |out: &usize| {
                    let out = &copies[*out];
                    let gap = copy.start.saturating_sub(out.end);
                    out.device != copy.device
                        && out.bytes == copy.bytes
                        && (0..=SOON).contains(&gap)
                        && comparable(out.device, copy.device)
                };
                // The latest: an earlier one of the same size was another exchange.
                if let Some(at) = waiting.iter().rposition(fits) {
                    pairs.push((waiting.remove(at), place));
                }
            }
            Way::Across => {}
        }
    }
    pairs
}

/// Exchanges between devices by way of the host, if no copy goes directly between the two; most time first.
fn host_staged(copies: &[Moved], pairs: &[(usize, usize)]) -> Vec<Staged> {
    if copies.iter().any(|c| c.way == Way::Across) {
        return Vec::new();
    }
    let mut found: HashMap<(u32, u32), Staged> = HashMap::new();
    for &(out, into) in pairs {
        let (out, into) = (&copies[out], &copies[into]);
        let (from, to) = (out.device, into.device);
        let staged =
            found.entry((from, to)).or_insert(Staged { from, to, times: 0, bytes: 0, ns: 0 });
        staged.times += 1;
        staged.bytes = staged.bytes.saturating_add(into.bytes);
        let both = (out.end - out.start).saturating_add(into.end - into.start);
        staged.ns = staged.ns.saturating_add(both);
    }
    let mut found: Vec<Staged> = found.into_values().filter(|s| s.times >= HABIT).collect();
    found.sort_by(|a, b| b.ns.cmp(&a.ns).then((a.from, a.to).cmp(&(b.from, b.to))));
    found
}

/// Bytes that may have gone from one device to another by way of the host, which their times do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Undecided {
    /// From this device.
    pub from: u32,
    /// To that one.
    pub to: u32,
    /// How many at a time.
    pub bytes: u64,
}

/// Amounts that often leave one device for the host and often come to another one, where the times of the two
/// are not `comparable`.
fn undecided(copies: &[Moved], comparable: Comparable<'_>) -> Vec<Undecided> {
    let devices: BTreeSet<u32> = copies.iter().map(|copy| copy.device).collect();
    let apart = |a: &u32| devices.iter().any(|b| a != b && !comparable(*a, *b));
    if !devices.iter().any(apart) {
        return Vec::new();
    }
    let mut seen: HashMap<u64, BTreeMap<u32, (u64, u64)>> = HashMap::new();
    for copy in copies.iter().filter(|c| c.bytes >= DATA && c.way != Way::Across) {
        let (out, into) = seen.entry(copy.bytes).or_default().entry(copy.device).or_default();
        *(if copy.way == Way::Out { out } else { into }) += 1;
    }
    let mut found = Vec::new();
    for (bytes, devices) in seen {
        let often = |of: fn(&(u64, u64)) -> u64| {
            devices.iter().filter(move |(_, counts)| of(counts) >= HABIT).map(|(device, _)| *device)
        };
        for from in often(|counts| counts.0) {
            let to = often(|counts| counts.1).filter(|to| *to != from && !comparable(from, *to));
            found.extend(to.map(|to| Undecided { from, to, bytes }));
        }
    }
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All devices have one clock.
    const ONE_CLOCK: Comparable<'static> = &|_, _| true;

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
        let found = exchanges(&copies, ONE_CLOCK).ping_pong;
        assert_eq!(found, [PingPong { device: 0, bytes: 1 << 20, rounds: 20, ns: 4000 }]);
        assert!(exchanges(&copies[..20], ONE_CLOCK).ping_pong.is_empty());
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
        let found = exchanges(&copies, ONE_CLOCK).host_staged;
        let pairs: Vec<_> = found.iter().map(|s| (s.from, s.to, s.times)).collect();
        assert_eq!(pairs, [(0, 1, 30)]);
        copies.push(copy(0, Way::Across, 8192, 400_000_000));
        assert!(exchanges(&copies, ONE_CLOCK).host_staged.is_empty());
    }

    #[test]
    fn halos_that_go_on_to_the_neighbour_could_not_have_stayed() {
        let mut copies = Vec::new();
        for i in 0..100 {
            let at = 10_000_000 * i;
            // Both give their border to the host, and take the other's.
            copies.push(copy(0, Way::Out, 65_536, at));
            copies.push(copy(1, Way::Out, 65_536, at + 50));
            // Now and then the other rank comes much later than the pair is recognised.
            let late = if i % 10 == 0 { 5_000_000 } else { 0 };
            copies.push(copy(1, Way::In, 65_536, at + 1000 + late));
            copies.push(copy(0, Way::In, 65_536, at + 1100 + late));
            // What device 0 computes on goes out and comes back unused by anybody else.
            copies.push(copy(0, Way::In, 1 << 20, at + 6_000_000));
            copies.push(copy(0, Way::Out, 1 << 20, at + 7_000_000));
        }
        let amounts: Vec<_> =
            exchanges(&copies, ONE_CLOCK).ping_pong.iter().map(|p| (p.device, p.bytes)).collect();
        assert_eq!(amounts, [(0, 1 << 20)], "halos are no ping-pong");
        let pairs: Vec<_> = exchanges(&copies, ONE_CLOCK)
            .host_staged
            .iter()
            .map(|s| (s.from, s.to, s.times))
            .collect();
        assert_eq!(pairs, [(0, 1, 90), (1, 0, 90)]);
    }

    #[test]
    fn what_goes_on_to_a_device_of_an_unknown_clock_is_neither_an_exchange_nor_could_it_have_stayed()
     {
        let mut copies = Vec::new();
        for i in 0..40 {
            let at = 10_000_000 * i;
            copies.push(copy(0, Way::Out, 65_536, at));
            copies.push(copy(1, Way::Out, 65_536, at + 50));
            copies.push(copy(1, Way::In, 65_536, at + 1000));
            copies.push(copy(0, Way::In, 65_536, at + 1100));
            // Of device 0 alone.
            copies.push(copy(0, Way::In, 1 << 20, at + 6_000_000));
            copies.push(copy(0, Way::Out, 1 << 20, at + 7_000_000));
        }
        let apart: Comparable<'_> = &|a, b| a == b;
        assert!(exchanges(&copies, apart).host_staged.is_empty());
        let of = |from, to| Undecided { from, to, bytes: 65_536 };
        assert_eq!(undecided(&copies, apart), [of(0, 1), of(1, 0)]);
        let amounts: Vec<_> =
            exchanges(&copies, apart).ping_pong.iter().map(|p| (p.device, p.bytes)).collect();
        assert_eq!(amounts, [(0, 1 << 20)]);
        assert!(undecided(&copies, ONE_CLOCK).is_empty());
    }
}
