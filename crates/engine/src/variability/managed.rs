//! Managed memory: why it moved, and which kernels waited for it.
//!
//! Memory that was asked for ahead of its use costs its copy. Memory that moves on demand costs the kernel
//! that needs it: the copy lies beneath that very kernel. Both look alike but for the cause of the
//! migration, so that is what decides. Where a source does not give causes, memory is taken to have moved
//! on demand if no call of the program asks for memory ahead.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use gpuwhy_derive::managed::{Need, Needs, Stall};
use gpuwhy_schema::{Migration, Name};
use serde::Serialize;

use super::NS_MS;

/// Memory that moved for one reason.
#[derive(Clone, Debug, Serialize)]
pub struct MovedMemory {
    /// Why: `prefetch`, `page_fault`, `speculative_prefetch`, `eviction`, `access_counters`, `unknown`.
    pub cause: &'static str,
    /// Where to: `device` or `host`.
    pub to: &'static str,
    /// In how many copies.
    pub copies: u64,
    /// How many bytes.
    pub bytes: u64,
    /// How long these copies took, ms.
    pub ms: f64,
}

/// Managed memory of one device.
#[derive(Clone, Debug, Serialize)]
pub struct ManagedDevice {
    /// The device's place in the report's list of devices.
    pub device: usize,
    /// Why memory moved to it and from it.
    pub moved: Vec<MovedMemory>,
    /// Times in which it served page faults.
    pub fault_groups: u64,
    /// Page faults.
    pub page_faults: u64,
    /// Time in which a kernel ran there and waited for memory, ms.
    pub stalled_ms: f64,
}

/// Kernels of one name that waited for memory on one device.
#[derive(Clone, Debug, Serialize)]
pub struct StalledKernel {
    /// The device's place in the report's list of devices.
    pub device: usize,
    /// Their name.
    pub name: String,
    /// How many waited.
    pub kernels: u64,
    /// How long these ran, ms.
    pub total_ms: f64,
    /// Of that, how long they waited for page faults and for memory that moved on demand, ms.
    pub stalled_ms: f64,
    /// Page faults that began meanwhile.
    pub page_faults: u64,
    /// Bytes that moved to the device on demand meanwhile.
    pub bytes: u64,
}

/// All managed memory that moved.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Managed {
    /// Whether the program calls a function that asks for memory ahead; `None` if that is not known.
    pub asked_ahead: Option<bool>,
    /// By device.
    pub devices: Vec<ManagedDevice>,
    /// The kernels that waited, longest first.
    pub kernels: Vec<StalledKernel>,
}

impl Managed {
    /// Adds that of another report, whose devices are numbered alike.
    pub fn merge(&mut self, other: Managed) {
        self.asked_ahead = match (self.asked_ahead, other.asked_ahead) {
            (Some(a), Some(b)) => Some(a || b),
            (a, b) => a.or(b),
        };
        self.devices.extend(other.devices);
        self.devices.sort_by_key(|of| of.device);
        self.kernels.extend(other.kernels);
        self.sort();
    }

    /// Calls devices by their places in a report instead of their numbers.
    pub fn renumber(&mut self, places: &BTreeMap<usize, usize>) {
        let place = |device: &mut usize| match places.get(device) {
            Some(place) => {
                *device = *place;
                true
            }
            None => false,
        };
        self.devices.retain_mut(|of| place(&mut of.device));
        self.kernels.retain_mut(|of| place(&mut of.device));
    }

    fn sort(&mut self) {
        self.kernels.sort_by(|a, b| {
            b.stalled_ms.total_cmp(&a.stalled_ms).then_with(|| a.name.cmp(&b.name))
        });
    }
}

/// A copy of managed memory.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Why.
    pub cause: Migration,
    /// Whether to the device.
    pub to_device: bool,
    /// When it began.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// How many bytes.
    pub bytes: u64,
}

/// Page faults or copies of one process: on this device, or on one that is not known.
type Place<P> = (P, Option<u32>);

/// What is gathered before kernels are looked at. `P` is a process.
pub struct Gathering<P> {
    asked_ahead: Option<bool>,
    needs: HashMap<Place<P>, Vec<Need>>,
    moved: BTreeMap<(u32, Migration, bool), (u64, u64, i64)>,
    faults: BTreeMap<u32, (u64, u64)>,
}

impl<P: Copy + Eq + Hash> Gathering<P> {
    /// Nothing yet, of a program that asks for memory ahead, or does not.
    pub fn new(asked_ahead: Option<bool>) -> Gathering<P> {
        let (moved, faults) = (BTreeMap::new(), BTreeMap::new());
        Gathering { asked_ahead, needs: HashMap::new(), moved, faults }
    }

    /// A copy of managed memory of a process to or from a device.
    pub fn moved(&mut self, process: P, device: u32, copy: Moved) {
        let Moved { cause, to_device, start, end, bytes } = copy;
        let sum = self.moved.entry((device, cause, to_device)).or_default();
        *sum = (sum.0 + 1, sum.1.saturating_add(bytes), sum.2.saturating_add(end - start));
        let on_demand = match cause {
            Migration::Fault | Migration::Speculative => true,
            Migration::Unknown => self.asked_ahead == Some(false),
            Migration::Prefetch | Migration::Eviction | Migration::AccessCounters => false,
        };
        if on_demand && to_device {
            let need = Need { start, end, faults: 0, bytes };
            self.needs.entry((process, Some(device))).or_default().push(need);
        }
    }

    /// Page faults of a process on a device.
    pub fn faults(&mut self, process: P, device: Option<u32>, start: i64, end: i64, faults: u64) {
        if let Some(device) = device {
            let sum = self.faults.entry(device).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(faults));
        }
        let need = Need { start, end, faults, bytes: 0 };
        self.needs.entry((process, device)).or_default().push(need);
    }

    /// Whether there is no managed memory.
    pub fn is_empty(&self) -> bool {
        self.moved.is_empty() && self.needs.is_empty()
    }

    /// Goes on to the kernels, which are named by `N`.
    pub fn kernels<N: Eq + Hash>(self) -> Stalls<P, N> {
        let needs = self.needs.into_iter().map(|(place, needs)| (place, Needs::of(needs)));
        Stalls {
            asked_ahead: self.asked_ahead,
            moved: self.moved,
            faults: self.faults,
            needs: needs.collect(),
            kernels: HashMap::new(),
            devices: HashMap::new(),
        }
    }
}

/// The kernels that waited, as they come.
pub struct Stalls<P, N> {
    asked_ahead: Option<bool>,
    moved: BTreeMap<(u32, Migration, bool), (u64, u64, i64)>,
    faults: BTreeMap<u32, (u64, u64)>,
    needs: HashMap<Place<P>, Needs>,
    /// Kernels that waited: how many, how long they ran, what they waited for.
    kernels: HashMap<(u32, N), (u64, i64, Stall)>,
    /// By device: when the last kernel ends, and how long kernels waited, counted once.
    devices: HashMap<u32, (i64, i64)>,
}

impl<P: Copy + Eq + Hash, N: Eq + Hash> Stalls<P, N> {
    /// A kernel; those of a device must come in the order of their begin.
    pub fn kernel(&mut self, process: P, device: u32, name: N, start: i64, end: i64) {
        if self.needs.is_empty() {
            return;
        }
        let mut stall = Stall::default();
        let (last, stalled) = self.devices.entry(device).or_insert((i64::MIN, 0));
        let from = start.max(*last);
        *last = (*last).max(end);
        // What was served on a device that is not known may have been on this one.
        for place in [(process, Some(device)), (process, None)] {
            let Some(needs) = self.needs.get(&place) else { continue };
            stall.merge(&needs.stall(start, end));
            *stalled += needs.within(from, end);
        }
        if stall.ns > 0 {
            stall.ns = stall.ns.min(end - start);
            let sum = self.kernels.entry((device, name)).or_default();
            (sum.0, sum.1) = (sum.0 + 1, sum.1.saturating_add(end - start));
            sum.2.merge(&stall);
        }
    }

    /// All that moved, and all that waited.
    pub fn finish(self, name: impl Fn(&N) -> Name) -> Managed {
        let ms = |ns: i64| ns as f64 / NS_MS;
        let mut devices: BTreeMap<u32, ManagedDevice> = BTreeMap::new();
        let numbers = self.moved.keys().map(|key| key.0).chain(self.faults.keys().copied());
        for device in numbers.chain(self.devices.iter().filter(|d| d.1.1 > 0).map(|d| *d.0)) {
            devices.entry(device).or_insert_with(|| {
                let (fault_groups, page_faults) =
                    self.faults.get(&device).copied().unwrap_or_default();
                let stalled = self.devices.get(&device).map_or(0, |(_, stalled)| *stalled);
                let (device, moved) = (device as usize, Vec::new());
                let stalled_ms = ms(stalled);
                ManagedDevice { device, moved, fault_groups, page_faults, stalled_ms }
            });
        }
        for ((device, cause, to_device), (copies, bytes, ns)) in &self.moved {
            if let Some(of) = devices.get_mut(device) {
                of.moved.push(MovedMemory {
                    cause: cause.as_str(),
                    to: if *to_device { "device" } else { "host" },
                    copies: *copies,
                    bytes: *bytes,
                    ms: ms(*ns),
                });
            }
        }
        let kernels =
            self.kernels.iter().map(|((device, number), (count, ns, stall))| StalledKernel {
                device: *device as usize,
                name: name(number).to_string(),
                kernels: *count,
                total_ms: ms(*ns),
                stalled_ms: ms(stall.ns),
                page_faults: stall.faults,
                bytes: stall.bytes,
            });
        let kernels = kernels.collect();
        let devices = devices.into_values().collect();
        let mut all = Managed { asked_ahead: self.asked_ahead, devices, kernels };
        all.sort();
        all
    }
}
