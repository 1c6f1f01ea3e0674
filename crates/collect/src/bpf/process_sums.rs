//! Reads the sums per process that `process_sums.h` keeps in the kernel.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::Ns;
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject};

use super::Bpf;
use super::layout::{from_bytes, shared_with_c};
use super::mapped::MappedArray;
use super::object::{LoadedObject, set_map_entries};
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;

/// Sums of an entry; as `SUMS` in `process_sums.h`.
pub(crate) const SUMS: usize = 4;

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
    map: MapHandle,
    changes: MappedArray<u64>,
    pendings: MappedArray<Pending>,
    seen_changes: u64,
    seen_pending: u64,
    next: Ns,
    shares: HashMap<(u32, u32), Share>,
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
    born: u64,
    last: [u64; SUMS],
    total: [u64; SUMS],
    present: bool,
}

/// Sets the sizes of the maps of `process_sums.h` for this machine; `pendings` as `PENDINGS` there.
///
/// # Errors
/// libbpf's.
pub(crate) fn configure(
    object: &mut OpenObject,
    bpf: &Bpf,
    pendings: u32,
) -> Result<(), libbpf_rs::Error> {
    let cpus = bpf.cpu_count() as u32;
    // An LRU map keeps free entries per CPU; a larger map takes longer to be read.
    set_map_entries(object, "sums", 512 + 64 * cpus)?;
    set_map_entries(object, "pendings", pendings * cpus)
}

impl ProcessSums {
    /// The sums of a loaded object.
    ///
    /// # Errors
    /// A map is missing or cannot be mapped.
    pub fn new(loaded: &LoadedObject) -> Result<ProcessSums, CollectError> {
        Ok(ProcessSums {
            map: loaded.map("sums")?,
            changes: loaded.mapped("sums_changed")?,
            pendings: loaded.mapped("pendings")?,
            seen_changes: 0,
            seen_pending: 0,
            next: Ns::ZERO,
            shares: HashMap::new(),
        })
    }

    /// If a reading is due, reads what has changed, and calls `write` with every share that has grown or
    /// whose closing zero is still to be written.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn each(&mut self, now: Ns, write: impl FnMut(&mut Share)) -> Result<(), CollectError> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + EVERY;
        self.read()?;
        self.shares.values_mut().filter(|share| share.is_due()).for_each(write);
        Ok(())
    }

    fn read(&mut self) -> Result<(), CollectError> {
        let changes = self.changes.read(0);
        let pending_total =
            self.pendings.iter().flat_map(|pending| pending.n).fold(0, u64::wrapping_add);
        if changes == self.seen_changes && pending_total == self.seen_pending {
            self.shares.values_mut().for_each(|share| share.added = [0; SUMS]);
            return Ok(());
        }
        self.seen_changes = changes;
        for share in self.shares.values_mut() {
            share.present = false;
            share.total = [0; SUMS];
        }
        self.read_sums()?;
        // What is pending is read after the map, as it moves there: it may be seen in neither for
        // a moment, but never in both.
        self.read_pending();
        for share in self.shares.values_mut() {
            for i in 0..SUMS {
                share.added[i] = share.total[i].saturating_sub(share.last[i]);
                share.last[i] = share.last[i].max(share.total[i]);
            }
        }
        self.shares.retain(|_, share| share.present || share.is_due());
        Ok(())
    }

    fn read_sums(&mut self) -> Result<(), CollectError> {
        let map = |source| CollectError::Map { map: "sums", source };
        // All at once: one system call.
        let entries = self.map.lookup_batch(self.map.max_entries(), MapFlags::ANY, MapFlags::ANY);
        for (key, value) in entries.map_err(map)? {
            let (Some(key), Some(sum)) = (from_bytes::<Key>(&key), from_bytes::<Sum>(&value))
            else {
                continue;
            };
            let share = self.shares.entry((key.tgid, key.slot)).or_default();
            share.found(key, sum.comm);
            if share.born != 0 && share.born != sum.born {
                // The entry was evicted in between, and started again from zero.
                share.last = [0; SUMS];
            }
            share.born = sum.born;
            share.total = sum.n;
        }
        Ok(())
    }

    fn read_pending(&mut self) {
        self.seen_pending = 0;
        for pending in self.pendings.iter() {
            self.seen_pending = pending.n.into_iter().fold(self.seen_pending, u64::wrapping_add);
            let key = pending.key;
            if key.tgid == 0 {
                continue;
            }
            let share = self.shares.entry((key.tgid, key.slot)).or_default();
            share.found(key, pending.comm);
            for (total, n) in share.total.iter_mut().zip(pending.n) {
                *total = total.wrapping_add(n);
            }
        }
    }
}

impl Share {
    fn found(&mut self, key: Key, comm: [u8; 16]) {
        (self.tgid, self.slot) = (key.tgid, key.slot);
        // A process that is summed while another one runs has no name at first.
        if comm[0] != 0 {
            self.comm = comm;
        }
        self.present = true;
    }

    fn is_due(&self) -> bool {
        self.added.iter().any(|&n| n > 0) || self.counters.iter().any(DeltaCounter::is_moving)
    }
}
