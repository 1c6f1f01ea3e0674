//! Keeps the recording within its limits by leaving things out, in a declared order.

use std::time::Instant;

use gpuwhy_collect::{Shed, Status};
use gpuwhy_schema::Ns;

/// What recording may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Share of the machine's CPU time, in the kernel and here together; judging, and writing what is kept for
    /// it, are not counted: they are done when something is the matter, and give way.
    pub cpu_share: f64,
    /// Resident memory in bytes.
    pub rss: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { cpu_share: 0.04, rss: 256 << 20 }
    }
}

/// Seconds in a row above the limit before something is left out.
const PATIENCE: u32 = 3;
/// Seconds in a row below [`RELIEF`] of the limit before the last thing is taken back; doubled
/// each time that it had to be left out again soon after.
const CALM: u32 = 10;
/// How much of the limit must be free before more is recorded again.
const RELIEF: f64 = 0.6;
/// The longest that something stays left out without a new try, in seconds.
const LONGEST: u32 = 640;

/// What is to be done about the cost of the last second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Leave out the first so many of [`Shed::ORDER`].
    Shed(usize),
    /// Hold half as much of the past.
    Forget,
}

/// The cost of the last second, and what was done about those before.
#[derive(Debug)]
pub struct Governor {
    limits: Limits,
    cpus: f64,
    at: Instant,
    last: Status,
    recording: Ns,
    over: u32,
    under: u32,
    calm: u32,
    shed: usize,
    /// Share of the machine that the BPF programs took in the last second.
    pub bpf_share: f64,
    /// Share of the machine that this process took in the last second, all of it.
    pub cpu_share: f64,
}

impl Governor {
    /// Begins with nothing left out.
    pub fn new(limits: Limits, status: Status) -> Governor {
        let cpus = std::thread::available_parallelism().map_or(1.0, |n| usize::from(n) as f64);
        Governor {
            limits,
            cpus,
            at: Instant::now(),
            last: status,
            recording: gpuwhy_collect::thread_time(),
            over: 0,
            under: 0,
            calm: CALM,
            shed: 0,
            bpf_share: 0.0,
            cpu_share: 0.0,
        }
    }

    /// Whether a second has passed since it was last asked.
    pub fn is_due(&self) -> bool {
        self.at.elapsed().as_secs_f64() >= 1.0
    }

    /// Looks at what recording cost since the last call; `recording` is the CPU time so far of the
    /// thread that records, without judging and keeping.
    pub fn second(&mut self, status: Status, recording: Ns) -> Option<Order> {
        let wall = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        let of_machine = |ns: Ns| ns.as_secs_f64() / wall / self.cpus;
        let bpf = |s: &Status| s.bpf.unwrap_or(Ns::ZERO);
        self.bpf_share = of_machine(bpf(&status).saturating_sub(bpf(&self.last)));
        self.cpu_share = of_machine(status.cpu.saturating_sub(self.last.cpu));
        let here = of_machine(recording.saturating_sub(self.recording));
        (self.last, self.recording) = (status, recording);
        self.weigh(self.bpf_share + here, status.rss)
    }

    fn weigh(&mut self, share: f64, rss: u64) -> Option<Order> {
        if rss > self.limits.rss {
            return Some(Order::Forget);
        }
        if share > self.limits.cpu_share {
            self.under = 0;
            self.over += 1;
            if self.over >= PATIENCE && self.shed < Shed::ORDER.len() {
                self.over = 0;
                self.shed += 1;
                return Some(Order::Shed(self.shed));
            }
            return None;
        }
        self.over = 0;
        if self.shed == 0 || share > RELIEF * self.limits.cpu_share {
            self.under = 0;
            return None;
        }
        self.under += 1;
        if self.under < self.calm {
            return None;
        }
        self.under = 0;
        self.shed -= 1;
        // What comes back may bring the load back with it.
        self.calm = if self.shed == 0 { CALM } else { (2 * self.calm).min(LONGEST) };
        Some(Order::Shed(self.shed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn governor() -> Governor {
        let status = Status::default();
        Governor::new(Limits { cpu_share: 0.02, rss: 1 << 28 }, status)
    }

    fn seconds(governor: &mut Governor, n: usize, share: f64) -> Vec<Order> {
        (0..n).filter_map(|_| governor.weigh(share, 1 << 20)).collect()
    }

    #[test]
    fn a_busy_moment_changes_nothing() {
        let mut governor = governor();
        assert_eq!(seconds(&mut governor, 2, 0.5), []);
        assert_eq!(seconds(&mut governor, 1, 0.01), []);
        assert_eq!(seconds(&mut governor, 2, 0.5), []);
    }

    #[test]
    fn load_that_stays_is_shed_step_by_step_and_no_further_than_there_is() {
        let mut governor = governor();
        let orders = seconds(&mut governor, 100, 0.05);
        let all: Vec<Order> = (1..=Shed::ORDER.len()).map(Order::Shed).collect();
        assert_eq!(orders, all);
    }

    #[test]
    fn what_was_shed_comes_back_slower_each_time() {
        let mut governor = governor();
        seconds(&mut governor, 6, 0.05);
        assert_eq!(seconds(&mut governor, 9, 0.001), []);
        assert_eq!(seconds(&mut governor, 1, 0.001), [Order::Shed(1)]);
        assert_eq!(seconds(&mut governor, 3, 0.05), [Order::Shed(2)]);
        assert_eq!(seconds(&mut governor, 19, 0.001), []);
        assert_eq!(seconds(&mut governor, 1, 0.001), [Order::Shed(1)]);
    }

    #[test]
    fn just_below_the_limit_nothing_comes_back() {
        let mut governor = governor();
        seconds(&mut governor, 3, 0.05);
        assert_eq!(seconds(&mut governor, 1000, 0.019), []);
    }

    #[test]
    fn too_much_memory_shortens_the_past() {
        assert_eq!(governor().weigh(0.0, 1 << 29), Some(Order::Forget));
    }
}
