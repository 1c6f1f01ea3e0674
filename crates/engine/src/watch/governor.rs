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
/// How often the past that is held is halved at most: with less of it nothing could be judged any more.
const HALVINGS: u32 = 4;
/// The longest that something stays left out without a new try, in seconds.
const LONGEST: u32 = 640;

/// What is to be done about the cost of the last second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Leave out this many of [`Shed::ORDER`], from its beginning.
    Shed(usize),
    /// Give back memory that is no longer used.
    GiveBack,
    /// Hold half as much of the past.
    Forget,
    /// Hold twice as much of it again.
    Remember,
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
    /// Seconds in a row with too much memory, and with enough to hold more.
    full: u32,
    roomy: u32,
    /// Seconds that there must be enough before more is held.
    room: u32,
    halvings: u32,
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
            full: 0,
            roomy: 0,
            room: CALM,
            halvings: 0,
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
        if let Some(order) = self.weigh_memory(rss) {
            return Some(order);
        }
        // When the past is as short as it may be, less has to come in.
        let is_full = self.full > 0 && self.halvings == HALVINGS;
        if is_full || share > self.limits.cpu_share {
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
        // Neither does anything come back while there is too much of it.
        if self.full > 0 || self.shed == 0 || share > RELIEF * self.limits.cpu_share {
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

impl Governor {
    /// What memory asks for. An allocator keeps what was freed, so that the first thing to do is to have it
    /// given back; what is still held after that is shortened step by step.
    fn weigh_memory(&mut self, rss: u64) -> Option<Order> {
        if rss > self.limits.rss {
            self.roomy = 0;
            self.full += 1;
            return match self.full % PATIENCE {
                1 => Some(Order::GiveBack),
                0 if self.halvings < HALVINGS => {
                    self.halvings += 1;
                    Some(Order::Forget)
                }
                _ => None,
            };
        }
        self.full = 0;
        if self.halvings == 0 || rss as f64 > RELIEF * self.limits.rss as f64 {
            self.roomy = 0;
            return None;
        }
        self.roomy += 1;
        if self.roomy < self.room {
            return None;
        }
        self.roomy = 0;
        self.halvings -= 1;
        // What is held again may be too much again.
        self.room = (2 * self.room).min(LONGEST);
        Some(Order::Remember)
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

    fn holding(governor: &mut Governor, n: usize, rss: u64) -> Vec<Order> {
        (0..n).filter_map(|_| governor.weigh(0.0, rss)).collect()
    }

    #[test]
    fn too_much_memory_is_given_back_and_then_the_past_is_shortened_and_no_further_than_it_may() {
        let mut governor = governor();
        assert_eq!(holding(&mut governor, 2, 1 << 29), [Order::GiveBack]);
        // That was enough.
        assert_eq!(holding(&mut governor, 100, 1 << 27), []);
        // It is not, and comes again: also what is recorded becomes less in the end.
        let orders = holding(&mut governor, 600, 1 << 29);
        let forgot = orders.iter().filter(|o| **o == Order::Forget).count();
        assert_eq!(forgot, HALVINGS as usize);
        assert_eq!(
            orders.iter().filter(|o| matches!(o, Order::Shed(_))).count(),
            Shed::ORDER.len()
        );
        let first = orders.iter().position(|o| matches!(o, Order::Shed(_))).unwrap();
        let last = orders.iter().rposition(|o| *o == Order::Forget).unwrap();
        assert!(last < first, "{orders:?}");
    }

    #[test]
    fn with_memory_to_spare_the_past_grows_again_slower_each_time() {
        let mut governor = governor();
        holding(&mut governor, 6, 1 << 29);
        assert_eq!(governor.halvings, 2);
        assert_eq!(holding(&mut governor, 9, 1 << 20), []);
        assert_eq!(holding(&mut governor, 1, 1 << 20), [Order::Remember]);
        assert_eq!(holding(&mut governor, 19, 1 << 20), []);
        assert_eq!(holding(&mut governor, 1, 1 << 20), [Order::Remember]);
        // Nothing is left to take back, and just below the limit nothing would be.
        assert_eq!(holding(&mut governor, 1000, 1 << 20), []);
        holding(&mut governor, 3, 1 << 29);
        assert_eq!(holding(&mut governor, 1000, (1 << 28) - 1), []);
    }
}
