//! Tails of launches: times in which few blocks still run, from a map that counts them.
//!
//! *What fools it.* Kernels that run side by side, or follow each other without a gap, are one to it: a tail is a time in
//! which less than half as many blocks run as did at most before it. A block counts as ended when its first thread has.
//! Launches shorter than a bin are not seen, and tails below [`LEAST_NS`] are not told.

use std::collections::VecDeque;

use gpuwhy_wire::images::Running;

/// Shorter tails are not told, ns.
const LEAST_NS: u64 = 1_000_000;
/// Times without work that are kept.
const IDLE: usize = 1024;
/// Bins that may yet be written to when they are read.
const UNFINISHED: u64 = 2;

/// A time in which few blocks still ran, by the device's clock, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    pub from: u64,
    pub to: u64,
    /// The most blocks that had run before.
    pub most: u64,
    /// The site where the last block of it ended, where a map tells.
    pub site: Option<u64>,
}

/// Follows the running blocks of a device.
#[derive(Debug)]
pub struct Tails {
    running: Running,
    /// What each bin held when it was last read.
    base: Vec<u64>,
    /// The next bin to read, counted from the clock's zero.
    next: u64,
    now: i64,
    most: i64,
    /// The first bin of the tail that the device is in.
    few: Option<u64>,
    /// The first bin of the time in which nothing runs, if the device is in one.
    none: Option<u64>,
    /// The last times in which nothing ran: the first bin of each, and the one behind it.
    idle: VecDeque<(u64, u64)>,
}

impl Tails {
    /// From `at` on, by the device's clock.
    pub fn new(running: Running, at: u64) -> Tails {
        let base = vec![0; running.bins as usize];
        let next = at >> running.shift;
        let (idle, none) = (VecDeque::new(), Some(next));
        Tails { running, base, next, now: 0, most: 0, few: None, none, idle }
    }

    /// Reads the bins up to `until`, by the device's clock; `bin` is what a bin holds, and `ended` what the other array says
    /// of it. The tails that ended.
    pub fn read(
        &mut self,
        until: u64,
        bin: impl Fn(u32) -> u64,
        ended: impl Fn(u32) -> u64,
    ) -> Vec<Tail> {
        let Running { bins, shift, .. } = self.running;
        let end = (until >> shift).saturating_sub(UNFINISHED);
        // What lies further back was idle: while kernels are launched, this is called more often.
        self.next = self.next.max(end.saturating_sub(u64::from(bins) - UNFINISHED));
        let mut tails = Vec::new();
        while self.next < end {
            let at = (self.next % u64::from(bins)) as u32;
            let held = bin(at);
            let change = held.wrapping_sub(self.base[at as usize]) as i64;
            self.base[at as usize] = held;
            let before = self.now;
            self.now = self.now.saturating_add(change).max(0);
            self.rest(before == 0 && change == 0);
            self.most = self.most.max(self.now);
            if self.now > 0 && self.now.saturating_mul(2) < self.most {
                self.few.get_or_insert(self.next);
            } else if let Some(from) = self.few.take() {
                // In the bin in which it ended, or the last one before.
                let word = |at: u64| ended((at % u64::from(bins)) as u32);
                let site = (from..=self.next).rev().find_map(|at| Running::ended(at, word(at)));
                let (from, to) = (from << shift, self.next << shift);
                let tail = Tail { from, to, most: self.most as u64, site };
                if tail.to - tail.from >= LEAST_NS {
                    tails.push(tail);
                }
                self.most = self.now;
            } else if self.now == 0 {
                self.most = 0;
            }
            self.next += 1;
        }
        tails
    }

    /// Whether nothing ran in the bin that is being read.
    fn rest(&mut self, nothing: bool) {
        if nothing {
            self.none.get_or_insert(self.next);
        } else if let Some(from) = self.none.take() {
            if self.idle.len() == IDLE {
                self.idle.pop_front();
            }
            self.idle.push_back((from, self.next));
        }
    }

    /// Blocks are counted from now on, or no more: those that run were not, or will not be, counted at both of their ends.
    pub fn forget(&mut self) {
        (self.now, self.most, self.few) = (0, 0, None);
    }

    /// Up to when bins were read, by the device's clock, ns.
    pub fn known_until(&self) -> u64 {
        self.next << self.running.shift
    }

    /// Since when nothing had run when a block began at `at`, by the device's clock, ns, to the beginning of a bin; `None`
    /// where something ran. Launches that are shorter than a bin are not seen.
    pub fn idle_before(&self, at: u64) -> Option<u64> {
        let bin = at >> self.running.shift;
        let now = self.none.map(|from| (from, self.next));
        let mut all = self.idle.iter().copied().chain(now).rev();
        // It began in the bin behind such a time, or within one, where it was too short to be seen.
        let (from, _) = all.find(|(from, to)| (*from..=*to).contains(&bin))?;
        Some(from << self.running.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: Running = Running { at: 0, bins: 256, shift: 16, ends: 0 };
    const BIN: u64 = 1 << 16;

    /// A device on which blocks begin and end.
    struct Device([u64; 256], [u64; 256]);

    impl Device {
        fn blocks(&mut self, count: u64, from: u64, to: u64) {
            let bin = |at: u64| ((at >> 16) % 256) as usize;
            self.0[bin(from)] = self.0[bin(from)].wrapping_add(count);
            self.0[bin(to)] = self.0[bin(to)].wrapping_sub(count);
        }

        /// The last block of a bin ended at a site.
        fn ended(&mut self, site: u64, to: u64) {
            self.1[((to >> 16) % 256) as usize] = (to >> 16) << 24 | (site + 1);
        }

        fn read(&self, tails: &mut Tails, until: u64) -> Vec<Tail> {
            tails.read(until, |bin| self.0[bin as usize], |bin| self.1[bin as usize])
        }
    }

    #[test]
    fn a_launch_that_waits_for_its_last_blocks_has_a_tail() {
        let (mut device, mut tails) = (Device([0; 256], [0; 256]), Tails::new(RUNNING, 1000 * BIN));
        device.blocks(100, 1010 * BIN, 1030 * BIN);
        device.blocks(2, 1010 * BIN, 1070 * BIN);
        // While it runs, nothing has ended.
        assert_eq!(device.read(&mut tails, 1050 * BIN), []);
        let found = device.read(&mut tails, 1100 * BIN);
        assert_eq!(found, [Tail { from: 1030 * BIN, to: 1070 * BIN, most: 102, site: None }]);
        // The same bins, a turn later.
        device.blocks(8, 1266 * BIN, 1290 * BIN);
        device.blocks(1, 1266 * BIN, 1320 * BIN);
        // Of another kernel, before the tail; and the one that it waits for.
        device.ended(3, 1289 * BIN);
        device.ended(4, 1320 * BIN);
        assert_eq!(device.read(&mut tails, 1200 * BIN), []);
        let found = device.read(&mut tails, 1340 * BIN);
        assert_eq!(found, [Tail { from: 1290 * BIN, to: 1320 * BIN, most: 9, site: Some(4) }]);
    }

    #[test]
    fn even_blocks_short_tails_and_single_blocks_have_none() {
        let (mut device, mut tails) = (Device([0; 256], [0; 256]), Tails::new(RUNNING, 0));
        device.blocks(64, 10 * BIN, 60 * BIN);
        // Less than a millisecond.
        device.blocks(64, 70 * BIN, 90 * BIN);
        device.blocks(1, 70 * BIN, 100 * BIN);
        device.blocks(1, 110 * BIN, 190 * BIN);
        assert_eq!(device.read(&mut tails, 200 * BIN), []);
    }

    #[test]
    fn a_launch_that_follows_without_a_gap_ends_the_tail() {
        let (mut device, mut tails) = (Device([0; 256], [0; 256]), Tails::new(RUNNING, 0));
        device.blocks(16, 10 * BIN, 30 * BIN);
        device.blocks(1, 10 * BIN, 60 * BIN);
        device.blocks(16, 60 * BIN, 90 * BIN);
        device.ended(6, 59 * BIN);
        let found = device.read(&mut tails, 120 * BIN);
        assert_eq!(found, [Tail { from: 30 * BIN, to: 60 * BIN, most: 17, site: Some(6) }]);
    }

    #[test]
    fn since_when_nothing_runs_is_known_of_each_begin() {
        let (mut device, mut tails) = (Device([0; 256], [0; 256]), Tails::new(RUNNING, 5 * BIN));
        device.blocks(4, 20 * BIN, 30 * BIN);
        device.blocks(4, 50 * BIN, 60 * BIN);
        // Shorter than a bin.
        device.blocks(1, 80 * BIN, 80 * BIN);
        device.read(&mut tails, 92 * BIN);
        assert_eq!(tails.known_until(), 90 * BIN);
        let since = |at: u64| tails.idle_before(at * BIN + 7).map(|since| since / BIN);
        assert_eq!([20, 50, 80, 89].map(since), [Some(5), Some(31), Some(61), Some(61)]);
        assert_eq!([4, 25, 55, 60].map(since), [None; 4]);
    }

    #[test]
    fn after_a_long_pause_the_next_launch_is_seen() {
        let (mut device, mut tails) = (Device([0; 256], [0; 256]), Tails::new(RUNNING, 0));
        device.blocks(17, 9010 * BIN, 9020 * BIN);
        // One of them runs on.
        device.0[9020 % 256] = device.0[9020 % 256].wrapping_add(1);
        assert_eq!(device.read(&mut tails, 9030 * BIN), []);
        device.0[9050 % 256] = device.0[9050 % 256].wrapping_sub(1);
        let found = device.read(&mut tails, 9060 * BIN);
        assert_eq!(found, [Tail { from: 9020 * BIN, to: 9050 * BIN, most: 17, site: None }]);
    }
}
