//! The sums that a recording comes to: whole numbers, so that shards, threads and machines can add
//! them up in any order and get the same to the last digit.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use gpuwhy_derive::devices::Waiter;
use gpuwhy_derive::sweep::{Cut, Intervals};
use gpuwhy_derive::{Quantiles, Stretches, Sum};
use gpuwhy_diagnose::exchange::{Moved, Way};
use gpuwhy_schema::{CopyKind, Name};

/// The most copies that are examined for exchanges; later ones are left out.
pub const MOVED: usize = 4 << 20;

/// The sums of a recording, or of a shard of one.
pub struct Sums {
    /// What each device did in each interval.
    pub intervals: Intervals,
    /// Kernels by name.
    pub kernels: BTreeMap<Name, KernelSum>,
    /// Copies between devices: from, to.
    pub links: BTreeMap<(u32, u32), LinkSum>,
    /// Waits in collectives, by collective and who waits.
    pub waits: BTreeMap<(Name, Waiter), WaitSum>,
    /// End of the last work of a device.
    pub last_end: i64,
    /// Rows read.
    pub rows: u64,
    /// Copies, for the ways in which data go back and forth; ordered by their start when all are merged.
    pub moved: Vec<Moved>,
}

/// Kernels of one name.
#[derive(Clone, Default)]
pub struct KernelSum {
    /// Their durations.
    pub sum: Sum,
    /// Quantiles of their durations.
    pub quantiles: Quantiles,
    /// Their durations over time, to see when they changed.
    pub stretches: Stretches,
}

impl KernelSum {
    /// Adds a kernel that began in `interval`.
    pub fn add(&mut self, interval: usize, dur: i64) {
        self.sum.add(dur);
        self.quantiles.add(dur);
        self.stretches.add(interval, dur);
    }

    /// Adds the kernels of another shard.
    pub fn merge(&mut self, other: &KernelSum) {
        self.sum.merge(&other.sum);
        self.quantiles.merge(&other.quantiles);
        self.stretches.merge(&other.stretches);
    }
}

/// Copies from one device to another.
#[derive(Clone, Default)]
pub struct LinkSum {
    /// Their durations.
    pub durations: Sum,
    /// Their bytes.
    pub bytes: u64,
}

/// Calls of one rank or process to one collective.
#[derive(Clone, Default)]
pub struct WaitSum {
    /// Their durations.
    pub sum: Sum,
    /// Start and duration of the first call, which waits for programs to start.
    pub first: Option<(i64, i64)>,
}

impl Sums {
    /// Nothing yet.
    pub fn new(cut: Cut) -> Sums {
        Sums {
            intervals: Intervals::new(cut),
            kernels: BTreeMap::new(),
            links: BTreeMap::new(),
            waits: BTreeMap::new(),
            last_end: i64::MIN,
            rows: 0,
            moved: Vec::new(),
        }
    }

    /// Adds kernels of a name.
    pub fn add_kernels(&mut self, name: Name, theirs: KernelSum) {
        match self.kernels.entry(name) {
            Entry::Occupied(mut ours) => ours.get_mut().merge(&theirs),
            Entry::Vacant(place) => _ = place.insert(theirs),
        }
    }

    /// Adds those of another shard.
    pub fn merge(&mut self, other: Sums) {
        // Into nothing, what is large is moved rather than copied.
        if self.intervals.devices.is_empty() && self.intervals.cut == other.intervals.cut {
            self.intervals = other.intervals;
        } else {
            self.intervals.merge(&other.intervals);
        }
        for (name, stat) in other.kernels {
            self.add_kernels(name, stat);
        }
        for (link, theirs) in other.links {
            let ours = self.links.entry(link).or_default();
            ours.durations.merge(&theirs.durations);
            ours.bytes += theirs.bytes;
        }
        for (key, theirs) in other.waits {
            let ours = self.waits.entry(key).or_default();
            ours.sum.merge(&theirs.sum);
            ours.first = ours.first.into_iter().chain(theirs.first).min();
        }
        self.last_end = self.last_end.max(other.last_end);
        self.rows += other.rows;
        if self.moved.is_empty() {
            self.moved = other.moved;
        } else {
            self.moved.extend(other.moved);
        }
        self.moved.truncate(MOVED);
    }
}

/// A copy as one that goes in, out or across; `None` if it stays where it is.
pub fn moved(device: u32, kind: CopyKind, bytes: u64, start: i64, end: i64) -> Option<Moved> {
    let way = match kind {
        CopyKind::HostToDevice => Way::In,
        CopyKind::DeviceToHost => Way::Out,
        CopyKind::PeerToPeer => Way::Across,
        _ => return None,
    };
    Some(Moved { device, way, bytes, start, end })
}
