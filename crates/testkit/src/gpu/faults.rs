//! What can happen to a GPU: set values, throttling, bad links, Xids, falling off the bus.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::engine::LONGEST_NS;
use super::layout::{Gpu, XIDS};
use super::quantity::{Quantity, ThrottleTime};

impl Gpu {
    /// Sets a value. For [`Quantity::Reasons`] use [`Gpu::throttle`], which starts and stops the
    /// counters of throttling too.
    pub fn set(&self, quantity: Quantity, value: u64) {
        self.values[quantity as usize].store(value, Relaxed);
    }

    /// Adds to a counter.
    pub fn add(&self, quantity: Quantity, more: u64) {
        self.values[quantity as usize].fetch_add(more, Relaxed);
    }

    /// Whether it is on the bus and answers.
    pub fn present(&self) -> bool {
        self.present.load(Relaxed) != 0
    }

    /// Takes it off the bus: it reports Xid 79, then every call on it fails.
    pub fn fall_off_bus(&self, now: u64) {
        self.xid(79, 0, now);
        self.present.store(0, Relaxed);
    }

    /// Puts it back on the bus.
    pub fn return_to_bus(&self) {
        self.present.store(1, Relaxed);
    }

    /// Sets the clock and the [`reason`](super::reason)s for it, which replace earlier ones; the
    /// counters of the reasons grow from now on. No reasons and the highest clock end a throttle.
    pub fn throttle(&self, reasons: u64, clock_mhz: u64, now: u64) {
        let _guard = self.lock();
        self.set(Quantity::SmClock, clock_mhz.max(1));
        self.set(Quantity::Reasons, reasons);
        for counter in ThrottleTime::ALL {
            let cell = &self.throttle_times[counter as usize];
            let since = cell.since.load(Acquire);
            match (since != 0, counter.grows(reasons)) {
                (false, true) => cell.since.store(now.max(1), Release),
                (true, false) => {
                    // A reader between the two stores may count the stretch twice for an instant,
                    // but never sees less than before: `throttle_time` reads `since` again.
                    cell.base.fetch_add(now.saturating_sub(since), AcqRel);
                    cell.since.store(0, Release);
                }
                _ => {}
            }
        }
    }

    /// Starts or stops PCIe replays, which slow copies down.
    pub fn pcie_replay(&self, on: bool) {
        self.set(Quantity::PcieReplaying, u64::from(on));
    }

    /// Retrains the PCIe link at another generation and width; copies are slower in proportion.
    pub fn pcie_link(&self, generation: u64, width: u64) {
        self.set(Quantity::PcieGeneration, generation);
        self.set(Quantity::PcieWidth, width);
        self.add(Quantity::PcieRecoveries, 1);
    }

    /// Reports an Xid, in the work of a process or of no known one (0).
    pub fn xid(&self, number: u64, pid: u64, now: u64) {
        let _guard = self.lock();
        let count = self.xid_count.load(Relaxed);
        let cell = &self.xids[count as usize % XIDS];
        cell.number.store(number, Relaxed);
        cell.at.store(now, Relaxed);
        cell.pid.store(pid, Relaxed);
        self.xid_count.store(count + 1, Release);
    }

    /// Stops all work for `ns`, as while a GPU recovers from an error: kernels launched from now on
    /// start after that.
    pub fn stall(&self, now: u64, ns: u64) {
        let _guard = self.lock();
        for process in &self.processes {
            let until = process.until.load(Relaxed).max(now);
            process.until.store(until.saturating_add(ns.min(LONGEST_NS)), Relaxed);
        }
    }

    /// Sets clock, temperature, power, link and presence to those of a new machine; counters keep
    /// their values.
    pub fn heal(&self, now: u64) {
        self.throttle(0, self.get(Quantity::SmClockMax), now);
        self.set(Quantity::MemoryClock, self.get(Quantity::MemoryClockMax));
        self.set(Quantity::Temperature, 42);
        self.set(Quantity::Power, 0);
        self.set(Quantity::PcieGeneration, self.get(Quantity::PcieGenerationMax));
        self.set(Quantity::PcieWidth, self.get(Quantity::PcieWidthMax));
        self.set(Quantity::Bandwidth, 50_000_000_000);
        self.pcie_replay(false);
        self.return_to_bus();
    }

    /// Splits it into this many MIG instances; 0 turns MIG off.
    pub fn set_mig(&self, instances: usize) {
        for (i, mig) in self.migs.iter().enumerate() {
            mig.present.store(u64::from(i < instances), Relaxed);
        }
        self.set(Quantity::Mig, u64::from(instances > 0));
    }
}
