//! Reads the sums per process that `bpf/sums.h` keeps.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::Ns;
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenMapMut, OpenObject};

use crate::context::CollectError;
use crate::delta::Delta;
use crate::kernel::{Kernel, Loaded, Mapped, plain, record};

/// Sums of an entry; as `SUMS` in `sums.h`.
pub(crate) const SUMS: usize = 4;

/// Readings of the processes' shares.
const EVERY: Ns = Ns::millis(100);

record! {
    /// As `struct sum_key` in `sums.h`.
    struct Key {
        tgid: u32,
        slot: u32,
    }
}

record! {
    /// As `struct sum` in `sums.h`.
    struct Sum {
        born: u64,
        n: [u64; SUMS],
        comm: [u8; 16],
    }
}

record! {
    /// As `struct pending` in `sums.h`.
    struct Pending {
        key: Key,
        n: [u64; SUMS],
        comm: [u8; 16],
    }
}

/// The sums of all processes, in the slots of a probe.
#[derive(Debug)]
pub(crate) struct Sums {
    map: MapHandle,
    changed: Mapped<u64>,
    pendings: Mapped<Pending>,
    seen_change: u64,
    seen_pending: u64,
    next: Ns,
    who: HashMap<(u32, u32), Who>,
}

/// One process in one slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Who {
    /// The process.
    pub tgid: u32,
    /// The slot.
    pub slot: u32,
    /// What it or one of its threads was called when it was first summed.
    pub comm: [u8; 16],
    /// What was added since the reading before.
    pub added: [u64; SUMS],
    /// Where the rows of each sum go.
    pub deltas: [Delta; SUMS],
    born: u64,
    last: [u64; SUMS],
    total: [u64; SUMS],
    present: bool,
}

/// Sets the sizes of the maps of `sums.h` for this machine; `pendings` as `PENDINGS` there.
pub(crate) fn configure(
    open: &mut OpenObject,
    kernel: &Kernel,
    pendings: u32,
) -> Result<(), libbpf_rs::Error> {
    let cpus = kernel.cpu_count() as u32;
    for mut map in open.maps_mut() {
        let map: &mut OpenMapMut<'_> = &mut map;
        match map.name().to_str() {
            // An LRU map keeps free entries per CPU; a larger map takes longer to be read.
            Some("sums") => map.set_max_entries(512 + 64 * cpus)?,
            Some("pendings") => map.set_max_entries(pendings * cpus)?,
            _ => {}
        }
    }
    Ok(())
}

impl Sums {
    /// Those of a loaded object.
    pub fn new(loaded: &Loaded) -> Result<Sums, CollectError> {
        Ok(Sums {
            map: loaded.map("sums")?,
            changed: loaded.mapped("sums_changed")?,
            pendings: loaded.mapped("pendings")?,
            seen_change: 0,
            seen_pending: 0,
            next: Ns::ZERO,
            who: HashMap::new(),
        })
    }

    /// If it is time to: reads what has changed, and hands `write` every process that added
    /// something or whose zero is still to be written.
    pub fn each(&mut self, now: Ns, write: impl FnMut(&mut Who)) -> Result<(), CollectError> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + EVERY;
        self.read()?;
        self.who.values_mut().filter(|who| who.due()).for_each(write);
        Ok(())
    }

    fn pending_total(&self) -> u64 {
        let all = (0..self.pendings.len()).map(|i| self.pendings.read(i));
        all.flat_map(|pending| pending.n).fold(0, u64::wrapping_add)
    }

    fn read(&mut self) -> Result<(), CollectError> {
        let changed = self.changed.read(0);
        if changed == self.seen_change && self.pending_total() == self.seen_pending {
            self.who.values_mut().for_each(|who| who.added = [0; SUMS]);
            return Ok(());
        }
        self.seen_change = changed;
        for who in self.who.values_mut() {
            who.present = false;
            who.total = [0; SUMS];
        }
        let map = |source| CollectError::Map { map: "sums", source };
        // All at once: one system call.
        let entries = self.map.lookup_batch(self.map.max_entries(), MapFlags::ANY, MapFlags::ANY);
        for (key, value) in entries.map_err(map)? {
            let (Some(key), Some(sum)) = (plain::<Key>(&key), plain::<Sum>(&value)) else {
                continue;
            };
            let who = self.who.entry((key.tgid, key.slot)).or_default();
            who.found(key, sum.comm);
            if who.born != 0 && who.born != sum.born {
                // The entry had given way to others, and began anew from zero.
                who.last = [0; SUMS];
            }
            who.born = sum.born;
            who.total = sum.n;
        }
        // What is pending is read after the map, as it moves there: it may be seen in neither for
        // a moment, but never in both.
        self.seen_pending = 0;
        for pending in (0..self.pendings.len()).map(|i| self.pendings.read(i)) {
            self.seen_pending = pending.n.into_iter().fold(self.seen_pending, u64::wrapping_add);
            let key = pending.key;
            if key.tgid == 0 {
                continue;
            }
            let who = self.who.entry((key.tgid, key.slot)).or_default();
            who.found(key, pending.comm);
            for (total, n) in who.total.iter_mut().zip(pending.n) {
                *total = total.wrapping_add(n);
            }
        }
        for who in self.who.values_mut() {
            for i in 0..SUMS {
                who.added[i] = who.total[i].saturating_sub(who.last[i]);
                who.last[i] = who.last[i].max(who.total[i]);
            }
        }
        self.who.retain(|_, who| who.present || who.due());
        Ok(())
    }
}

impl Who {
    fn found(&mut self, key: Key, comm: [u8; 16]) {
        (self.tgid, self.slot) = (key.tgid, key.slot);
        // Who is summed while somebody else runs has no name at first.
        if comm[0] != 0 {
            self.comm = comm;
        }
        self.present = true;
    }

    fn due(&self) -> bool {
        self.added.iter().any(|&n| n > 0) || self.deltas.iter().any(Delta::moving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::same_layout;

    #[test]
    fn both_halves_agree_on_every_sum() {
        for stem in ["block_io", "network", "memory"] {
            same_layout(stem, "sum_key", size_of::<Key>(), Key::LAYOUT);
            same_layout(stem, "sum", size_of::<Sum>(), Sum::LAYOUT);
            same_layout(stem, "pending", size_of::<Pending>(), Pending::LAYOUT);
        }
    }
}
