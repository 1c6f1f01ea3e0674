//! Rings of records, emptied while kernels run.
//!
//! A ring's records are numbered without gaps, and each says in the word that is written last which one it is. So whoever
//! has a copy takes those that are there, in order, up to the first that is not written whole: those that were there in the
//! copy before, since nobody says in which order a copy reads its bytes. Then the places are given back by a kernel, since the device takes places by the same counter meanwhile. That kernel has a stream of its own and is
//! waited for by nobody: where the device has no room for it, the ring fills, and the device counts what it drops.

use gpuwhy_wire::images::{Records, Ring, State};

use crate::driver::Giver;
use crate::types::Code;

/// The rings of an image in one context.
#[derive(Debug)]
pub struct Rings {
    rings: Vec<One>,
    giver: Giver,
}

#[derive(Debug)]
struct One {
    ring: Ring,
    /// For each SM: records that were taken, and places that are not given back yet.
    taken: Vec<u64>,
    owed: Vec<u64>,
    /// Records that were whole in the last copy.
    whole: Vec<u64>,
}

impl Rings {
    /// Of maps at an address of the device, in the calling thread's context.
    pub fn new(rings: &[Ring]) -> Result<Option<Rings>, Code> {
        let most = rings.iter().map(|ring| ring.sms as usize).max();
        let Some(most) = most.filter(|most| *most > 0) else { return Ok(None) };
        let giver = Giver::new(most)?;
        let one = |ring: &Ring| {
            let none = vec![0; ring.sms as usize];
            One { ring: *ring, taken: none.clone(), owed: none.clone(), whole: none }
        };
        Ok(Some(Rings { rings: rings.iter().map(one).collect(), giver }))
    }

    /// Takes what a copy holds, for the controller. `last`: nothing more is written. Whether there was anything.
    pub fn take(&mut self, state: &State, records: &Records<'_>, last: bool) -> bool {
        let number = |at| state.number(at);
        let came = self.rings.iter_mut().map(|one| one.take(&number, records, last));
        let came = came.fold(false, |before, came| before | came);
        if last {
            records.tell_left(self.rings.iter().map(One::left).sum());
        }
        came
    }

    /// Gives places back, if the last ones are; `maps` is the address of the maps. In the calling thread's context.
    pub fn give_back(&mut self, maps: u64) {
        for One { ring, owed, .. } in &mut self.rings {
            if owed.iter().all(|owed| *owed == 0) {
                continue;
            }
            // Places that are not given back stay owed.
            if self.giver.give(maps + ring.at + 8, ring.bytes(), owed) {
                owed.fill(0);
            }
        }
    }

    /// Ends it, in its context.
    pub fn end(self) {
        self.giver.end();
    }
}

impl One {
    /// Records of the last copy that were not taken.
    fn left(&self) -> u64 {
        self.whole.iter().zip(&self.taken).map(|(whole, taken)| whole - taken).sum()
    }

    fn take(&mut self, number: &dyn Fn(u64) -> u64, records: &Records<'_>, last: bool) -> bool {
        let (ring, mut came) = (self.ring, false);
        for sm in 0..ring.sms {
            let at = sm as usize;
            // What is behind the last record has the number of a record before it.
            let is_whole =
                |n: u64| (number(ring.slot(sm, n)) >> 32) as u32 == (n as u32).wrapping_add(1);
            let first = self.taken[at];
            let end = (first..).take(ring.slots as usize).find(|n| !is_whole(*n));
            let end = end.unwrap_or(first + u64::from(ring.slots));
            let until = if last { end } else { self.whole[at].min(end) };
            self.whole[at] = end;
            came |= end > first;
            for n in first..until {
                let slot = ring.slot(sm, n);
                let bytes = (number(slot) as u32).min(ring.slot_bytes - 8);
                let put = |word: u32| number(slot + 8 + 8 * u64::from(word));
                if !records.push(ring.map, sm, bytes, put) {
                    break;
                }
                self.taken[at] += 1;
                self.owed[at] += 1;
            }
        }
        came
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A ring of two SMs with 4 slots of 8 bytes, whose records are numbers.
    const RING: Ring = Ring { map: 5, sms: 2, at: 64, slots: 4, slot_bytes: 16 };

    fn one() -> One {
        One { ring: RING, taken: vec![0; 2], owed: vec![0; 2], whole: vec![0; 2] }
    }

    #[test]
    fn records_are_taken_in_order_up_to_the_first_that_is_not_whole() {
        let state = State::new(Records::BYTES).unwrap();
        let records = Records::new(&state, 0);
        let (mut device, mut one) = (HashMap::<u64, u64>::new(), one());
        let write = |device: &mut HashMap<u64, u64>, sm: u32, number: u64, value: u64| {
            device.insert(RING.slot(sm, number) + 8, value);
            device.insert(RING.slot(sm, number), (number + 1) << 32 | 8);
        };
        let mut all = Vec::new();
        let mut took = |device: &HashMap<u64, u64>, one: &mut One| {
            one.take(&|at| device.get(&at).copied().unwrap_or(0), &records, false);
            all.clear();
            assert!(records.take(|map, sm, bytes| {
                assert_eq!((map, bytes.len()), (5, 8));
                all.push((sm, u64::from(bytes[0])));
            }));
            all.clone()
        };
        assert!(!one.take(&|_| 0, &records, false));
        write(&mut device, 0, 0, 10);
        write(&mut device, 1, 0, 20);
        write(&mut device, 1, 2, 22);
        assert_eq!(
            took(&device, &mut one),
            [],
            "a copy may have read them while they were written"
        );
        assert_eq!(took(&device, &mut one), [(0, 10), (1, 20)], "record 1 of SM 1 is not whole");
        write(&mut device, 1, 1, 21);
        assert_eq!(took(&device, &mut one), []);
        assert_eq!(took(&device, &mut one), [(1, 21), (1, 22)]);
        assert_eq!(took(&device, &mut one), []);
        assert_eq!(one.owed, [1, 3]);
        // Places that were given back are written again.
        (3..7).for_each(|n| write(&mut device, 1, n, 20 + n));
        assert_eq!(took(&device, &mut one), []);
        assert_eq!(took(&device, &mut one), [(1, 23), (1, 24), (1, 25), (1, 26)]);
        write(&mut device, 0, 1, 11);
        assert!(one.take(&|at| device.get(&at).copied().unwrap_or(0), &records, true));
        let mut last = Vec::new();
        assert!(records.take(|_, sm, bytes| last.push((sm, bytes[0]))));
        assert_eq!(last, [(0, 11)], "nothing more is written");
    }

    #[test]
    fn what_the_controller_has_no_room_for_stays_where_it_is() {
        let state = State::new(Records::BYTES).unwrap();
        let records = Records::new(&state, 0);
        while records.push(1, 0, 4096, |_| 0) {}
        while records.push(1, 0, 0, |_| 0) {}
        let mut one = one();
        one.take(&|at| if at == RING.slot(0, 0) { 1 << 32 | 8 } else { 0 }, &records, true);
        assert_eq!((one.taken[0], one.owed[0], one.left()), (0, 0, 1));
    }
}
