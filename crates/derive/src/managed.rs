//! How long kernels wait for managed memory that moves on demand.
//!
//! # What it sees
//! Per process and device, when the device served page faults and when memory moved to it because of them;
//! and the kernels that ran there meanwhile. That time is a stall of the kernel, however busy the device
//! looks.
//!
//! # Why it matters
//! Such a copy lies beneath the very kernel that waits for it: as a copy beneath a kernel it would cost
//! nothing.
//!
//! # What fools it
//! A kernel of many blocks goes on with some while others wait: the stall is an upper limit. Where two
//! kernels run at once, both are taken to wait.

use gpuwhy_schema::Ns;

use crate::intervals::union;

/// A time in which a device served page faults, or memory moved to it on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// When it began.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// Page faults, if it is a time of such.
    pub faults: u64,
    /// Bytes, if it is memory that moved.
    pub bytes: u64,
}

/// What a kernel waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// For how long, ns.
    pub ns: i64,
    /// Page faults that began meanwhile.
    pub faults: u64,
    /// Bytes of memory that began to move meanwhile.
    pub bytes: u64,
}

impl Stall {
    /// What two kernels come to.
    pub fn merge(&mut self, other: &Stall) {
        self.ns += other.ns;
        self.faults = self.faults.saturating_add(other.faults);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// The needs of one process on one device, to be asked about any time.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Their union, and how much of it lies before each piece.
    cover: Vec<(i64, i64)>,
    before: Vec<i64>,
    /// Begins in order, with the faults and bytes up to and including each.
    starts: Vec<(i64, u64, u64)>,
}

impl Needs {
    /// Of these, in any order.
    pub fn of(mut needs: Vec<Need>) -> Needs {
        let cover: Vec<(i64, i64)> =
            union(needs.iter().map(|n| (Ns(n.start), Ns(n.end))).collect())
                .into_iter()
                .map(|(from, to)| (from.0, to.0))
                .collect();
        let mut sum = 0;
        let before = cover
            .iter()
            .map(|(from, to)| {
                let before = sum;
                sum += to - from;
                before
            })
            .collect();
        needs.sort_by_key(|n| n.start);
        let (mut faults, mut bytes) = (0u64, 0u64);
        let starts = needs
            .iter()
            .map(|n| {
                faults = faults.saturating_add(n.faults);
                bytes = bytes.saturating_add(n.bytes);
                (n.start, faults, bytes)
            })
            .collect();
        Needs { cover, before, starts }
    }

    /// Time in which there was a need, ns.
    pub fn total_ns(&self) -> i64 {
        self.until(i64::MAX)
    }

    /// Time in which there was a need before `at`, ns.
    fn until(&self, at: i64) -> i64 {
        let next = self.cover.partition_point(|(from, _)| *from < at);
        let Some(last) = next.checked_sub(1) else { return 0 };
        let (from, to) = self.cover[last];
        self.before[last] + (to.min(at) - from)
    }

    /// Time with a need in `[from, to)`, ns.
    pub fn within(&self, from: i64, to: i64) -> i64 {
        if from < to { self.until(to) - self.until(from) } else { 0 }
    }

    /// What a kernel that ran from `start` to `end` waited for.
    pub fn stall(&self, start: i64, end: i64) -> Stall {
        let sums = |at: i64| {
            let next = self.starts.partition_point(|(from, ..)| *from < at);
            next.checked_sub(1).map_or((0, 0), |last| (self.starts[last].1, self.starts[last].2))
        };
        let (a, b) = (sums(start), sums(end.max(start)));
        let ns = self.within(start, end);
        // What began before the kernel and reaches into it is time of the kernel, and not counted twice.
        Stall { ns, faults: b.0 - a.0, bytes: b.1 - a.1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_waits_while_its_device_serves_faults_and_memory_moves() {
        let need = |start, end, faults, bytes| Need { start, end, faults, bytes };
        // Faults 100..150 and 300..400; memory moves 120..200, because of the first.
        let needs =
            Needs::of(vec![need(300, 400, 5, 0), need(100, 150, 7, 0), need(120, 200, 0, 4096)]);
        assert_eq!(needs.total_ns(), 200);
        assert_eq!(needs.stall(0, 1000), Stall { ns: 200, faults: 12, bytes: 4096 });
        assert_eq!(needs.stall(0, 130), Stall { ns: 30, faults: 7, bytes: 4096 });
        assert_eq!(needs.stall(180, 310), Stall { ns: 30, faults: 5, bytes: 0 });
        assert_eq!(needs.stall(200, 300), Stall::default());
        assert_eq!(needs.stall(500, 400), Stall::default());
        assert_eq!(Needs::default().stall(0, i64::MAX), Stall::default());
    }
}
