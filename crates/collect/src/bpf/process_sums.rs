//! Reads the sums per process that `process_sums.h` keeps in the kernel.

use foldhash::HashMap;
use gpuwhy_schema::Ns;
use libbpf_rs::{MapHandle, OpenObject};

use super::Bpf;
use super::layout::{bytes_of, shared_with_c};
use super::mapped::MappedArray;
use super::object::{LoadedObject, put, set_map_entries};
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::every::Every;

/// Sums of an entry; as `SUMS` in `process_sums.h`.
pub(crate) const SUMS: usize = 4;

/// The key of an entry that changes hands; as in `process_sums.h`.
const CHANGES_HANDS: u64 = u64::MAX;

/// An entry that was not added to for this long is freed: on a host that compiles, the processes of an hour are
/// thousands.
const IDLE: Ns = Ns::secs(10);

/// Between two readings.
const EVERY: Ns = Ns::millis(100);

// The structs of `process_sums.h`, where each field is explained.
shared_with_c! {
    objects ["block_io", "network", "memory", "run_queue"];

    struct Key = "sum_key" {
        tgid: u32,
        slot: u32,
    }

    struct Sum = "sum" {
        born: u64,
        used: u64,
        n: [u64; SUMS],
        comm: [u8; 16],
    }

    struct Pending = "pending" {
        key: Key,
        n: [u64; SUMS],
        comm: [u8; 16],
    }
}

/// The sums of all processes, in the slots of a probe.
#[derive(Debug)]
pub(crate) struct ProcessSums {
    keys_map: MapHandle,
    keys: MappedArray<u64>,
    /// Where keys are, as far as they were made before [`ProcessSums::seen_made`] was read.
    places: Vec<usize>,
    seen_made: u64,
    sums: MappedArray<Sum>,
    changes: MappedArray<u64>,
    pendings: MappedArray<Pending>,
    seen_changes: u64,
    seen_pending: u64,
    reads: Every,
    shares: Shares,
}

/// What the entries said when they were last read, and what follows for each process.
#[derive(Debug, Default)]
struct Shares {
    of: HashMap<(u32, u32), Share>,
    entries: HashMap<usize, Entry>,
}

/// An entry as it was last read.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: (u32, u32),
    born: u64,
    n: [u64; SUMS],
    /// When it was last found to have grown.
    grown: Ns,
}

/// The sums of one process in one slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Share {
    /// The process.
    pub tgid: u32,
    /// The slot.
    pub slot: u32,
    /// What it or one of its threads was called when it was first summed.
    pub comm: [u8; 16],
    /// What was added since the reading before.
    pub added: [u64; SUMS],
    /// Where the rows of each sum go.
    pub counters: [DeltaCounter; SUMS],
    last: [u64; SUMS],
    total: [u64; SUMS],
    present: bool,
}

/// Sets the size of the map of `process_sums.h` that depends on this machine; `pendings` as `PENDINGS` there.
///
/// # Errors
/// libbpf's.
pub(crate) fn configure(
    object: &mut OpenObject,
    bpf: &Bpf,
    pendings: u32,
) -> Result<(), libbpf_rs::Error> {
    set_map_entries(object, "pendings", pendings * bpf.cpu_count() as u32)
}

impl ProcessSums {
    /// The sums of a loaded object.
    ///
    /// # Errors
    /// A map is missing or cannot be mapped.
    pub fn new(loaded: &LoadedObject) -> Result<ProcessSums, CollectError> {
        Ok(ProcessSums {
            keys_map: loaded.map("sum_keys")?,
            keys: loaded.mapped("sum_keys")?,
            places: Vec::new(),
            seen_made: 0,
            sums: loaded.mapped("sums")?,
            changes: loaded.mapped("sums_changed")?,
            pendings: loaded.mapped("pendings")?,
            seen_changes: 0,
            seen_pending: 0,
            reads: Every::new(EVERY),
            shares: Shares::default(),
        })
    }

    /// If a reading is due, reads what has changed, and calls `write` with every share that has grown or
    /// whose closing zero is still to be written.
    pub fn each(&mut self, now: Ns, write: impl FnMut(&mut Share)) {
        if !self.reads.is_due(now) {
            return;
        }
        self.read(now);
        self.shares.of.values_mut().filter(|share| share.is_due()).for_each(write);
    }

    fn read(&mut self, now: Ns) {
        let changes = self.changes.read(0);
        let pending_total =
            self.pendings.iter().flat_map(|pending| pending.n).fold(0, u64::wrapping_add);
        if changes == self.seen_changes && pending_total == self.seen_pending {
            self.shares.of.values_mut().for_each(|share| share.added = [0; SUMS]);
            return;
        }
        self.seen_changes = changes;
        let made = self.changes.read(1);
        if made != self.seen_made {
            self.seen_made = made;
            let keys = self.keys.iter().enumerate();
            self.places = keys.filter(|(_, key)| *key != 0).map(|(at, _)| at).collect();
        }
        self.shares.begin();
        for &at in &self.places {
            let key = self.keys.read(at);
            if key == 0 || key == CHANGES_HANDS {
                continue;
            }
            let sum = self.sums.read(at);
            // It may have changed hands since its key was read.
            if self.keys.read(at) == key {
                self.shares.entry(at, ((key >> 32) as u32, key as u32), &sum, now);
            }
        }
        // What is pending is read after the sums, as it moves there: it may be seen in neither for
        // a moment, but never in both.
        self.seen_pending = 0;
        for pending in self.pendings.iter() {
            self.seen_pending = pending.n.into_iter().fold(self.seen_pending, u64::wrapping_add);
            if pending.key.tgid != 0 {
                self.shares.pending(&pending);
            }
        }
        self.shares.end();
        for at in self.shares.idle_since(now.saturating_sub(IDLE)) {
            let freed = put(&self.keys_map, "sum_keys", bytes_of(&(at as u32)), bytes_of(&0_u64));
            if freed.is_ok() {
                self.shares.forget(at);
            }
        }
    }
}

impl Shares {
    fn begin(&mut self) {
        for share in self.of.values_mut() {
            share.present = false;
            share.total = [0; SUMS];
        }
    }

    fn entry(&mut self, at: usize, key: (u32, u32), sum: &Sum, now: Ns) {
        let read = Entry { key, born: sum.born, n: sum.n, grown: now };
        let entry = self.entries.entry(at).or_insert(read);
        let before = *entry;
        *entry = read;
        if (before.key, before.born) != (key, sum.born) {
            self.no_longer_holds(&before);
        } else if before.n == sum.n {
            entry.grown = before.grown;
        }
        self.share(key, sum.comm, sum.n);
    }

    /// What an entry held is no longer in the total of its process.
    fn no_longer_holds(&mut self, entry: &Entry) {
        if let Some(share) = self.of.get_mut(&entry.key) {
            for (last, n) in share.last.iter_mut().zip(entry.n) {
                *last = last.saturating_sub(n);
            }
        }
    }

    /// Where the entries are that have not grown since then.
    fn idle_since(&self, since: Ns) -> Vec<usize> {
        let idle = self.entries.iter().filter(|(_, entry)| entry.grown < since);
        idle.map(|(at, _)| *at).collect()
    }

    fn forget(&mut self, at: usize) {
        if let Some(entry) = self.entries.remove(&at) {
            self.no_longer_holds(&entry);
        }
    }

    fn pending(&mut self, pending: &Pending) {
        self.share((pending.key.tgid, pending.key.slot), pending.comm, pending.n);
    }

    fn share(&mut self, key: (u32, u32), comm: [u8; 16], n: [u64; SUMS]) {
        let share = self.of.entry(key).or_default();
        (share.tgid, share.slot) = key;
        // A process that is summed while another one runs has no name at first.
        if comm[0] != 0 {
            share.comm = comm;
        }
        share.present = true;
        for (total, n) in share.total.iter_mut().zip(n) {
            *total = total.wrapping_add(n);
        }
    }

    fn end(&mut self) {
        for share in self.of.values_mut() {
            for i in 0..SUMS {
                share.added[i] = share.total[i].saturating_sub(share.last[i]);
                share.last[i] = share.last[i].max(share.total[i]);
            }
        }
        self.of.retain(|_, share| share.present || share.is_due());
    }
}

impl Share {
    fn is_due(&self) -> bool {
        self.added.iter().any(|&n| n > 0) || self.counters.iter().any(DeltaCounter::is_moving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One reading of these entries, `(place, tgid, born, sum)`, and pendings, `(tgid, sum)`; what was added for
    /// each process.
    fn reading(
        shares: &mut Shares,
        entries: &[(usize, u32, u64, u64)],
        pendings: &[(u32, u64)],
    ) -> Vec<(u32, u64)> {
        reading_at(Ns::ZERO, shares, entries, pendings)
    }

    fn reading_at(
        now: Ns,
        shares: &mut Shares,
        entries: &[(usize, u32, u64, u64)],
        pendings: &[(u32, u64)],
    ) -> Vec<(u32, u64)> {
        shares.begin();
        for &(at, tgid, born, n) in entries {
            let sum = Sum { born, n: [n, 0, 0, 0], ..Sum::default() };
            shares.entry(at, (tgid, 0), &sum, now);
        }
        for &(tgid, n) in pendings {
            let key = Key { tgid, slot: 0 };
            shares.pending(&Pending { key, n: [n, 0, 0, 0], ..Pending::default() });
        }
        shares.end();
        let mut added: Vec<_> = shares.of.values().map(|s| (s.tgid, s.added[0])).collect();
        added.sort_unstable();
        added
    }

    #[test]
    fn what_moves_from_a_cpu_to_the_sums_is_counted_once() {
        let mut shares = Shares::default();
        assert_eq!(reading(&mut shares, &[], &[(7, 100)]), [(7, 100)]);
        assert_eq!(reading(&mut shares, &[], &[(7, 150)]), [(7, 50)]);
        assert_eq!(reading(&mut shares, &[(3, 7, 1, 160)], &[(8, 5)]), [(7, 10), (8, 5)]);
        assert_eq!(reading(&mut shares, &[(3, 7, 1, 160)], &[(7, 4), (8, 5)]), [(7, 4), (8, 0)]);
    }

    #[test]
    fn an_entry_that_changes_hands_costs_neither_process_what_it_does_next() {
        let mut shares = Shares::default();
        assert_eq!(reading(&mut shares, &[(3, 7, 1, 1000)], &[]), [(7, 1000)]);
        assert_eq!(reading(&mut shares, &[(3, 9, 2, 50)], &[(7, 10)]), [(7, 10), (9, 50)]);
        // It comes back, at another place; and the other one to the same place, after a third one.
        assert_eq!(reading(&mut shares, &[(3, 9, 2, 60), (4, 7, 3, 25)], &[]), [(7, 15), (9, 10)]);
        assert_eq!(reading(&mut shares, &[(3, 9, 5, 20), (4, 7, 3, 25)], &[]), [(7, 0), (9, 20)]);
    }

    #[test]
    fn a_process_with_two_entries_has_the_sum_of_both() {
        let mut shares = Shares::default();
        assert_eq!(reading(&mut shares, &[(3, 7, 1, 10), (4, 7, 2, 5)], &[]), [(7, 15)]);
        assert_eq!(reading(&mut shares, &[(3, 7, 1, 11), (4, 7, 2, 7)], &[]), [(7, 3)]);
    }

    #[test]
    fn a_process_that_is_idle_is_forgotten_and_counted_on_when_it_comes_back() {
        let mut shares = Shares::default();
        let both = [(3, 7, 1, 1000), (5, 8, 2, 10)];
        assert_eq!(reading_at(Ns::secs(1), &mut shares, &both, &[]), [(7, 1000), (8, 10)]);
        let one_grows = [(3, 7, 1, 1000), (5, 8, 2, 30)];
        assert_eq!(reading_at(Ns::secs(9), &mut shares, &one_grows, &[]), [(7, 0), (8, 20)]);
        assert_eq!(shares.idle_since(Ns::secs(1)), [0_usize; 0]);
        assert_eq!(shares.idle_since(Ns::secs(5)), [3]);
        shares.forget(3);
        let back = [(4, 7, 3, 5), (5, 8, 2, 30)];
        assert_eq!(reading_at(Ns::secs(10), &mut shares, &back, &[]), [(7, 5), (8, 0)]);
        assert!(shares.idle_since(Ns::secs(9)).is_empty());
    }
}
