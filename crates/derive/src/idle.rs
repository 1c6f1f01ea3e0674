//! Why a stream was idle between its work.
//!
//! # What it sees
//! Kernels, copies and memsets of one stream and when each was launched: a stream that copies is not idle.
//! The gap before a piece of work is *host wait* if its launch began after the work before it had ended:
//! there was nothing to run. It is *kernel wait* if it is no longer than a device takes from one kernel to
//! the next that is queued already; and *other* if the work was queued and did not run: it waited for an
//! event or for another stream.
//!
//! *Source*: the idle time breakdown of Holistic Trace Analysis 0.5.0, whose three causes these are.
//!
//! # What fools it
//! A launch that the trace does not hold counts as queued.

/// Between kernels that are queued a device is idle for no longer than this, ns (as HTA has it).
pub const BACK_TO_BACK: i64 = 30;

/// A kernel, copy or memset of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// When it began.
    pub start: i64,
    /// When it ended.
    pub end: i64,
    /// When its launch began, if that is known.
    pub launched: Option<i64>,
}

/// Why a stream was idle for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing had been launched.
    HostWait,
    /// The device came to the next piece of work.
    KernelWait,
    /// Work was queued and waited for something else.
    Other,
}

/// A time in which a stream was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When the work before it had ended.
    pub start: i64,
    /// When the work after it began.
    pub end: i64,
    /// Why.
    pub cause: Cause,
    /// The place of the work after it.
    pub next: usize,
}

/// Time between work, by its cause, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Idle {
    /// Nothing had been launched.
    pub host_wait_ns: i64,
    /// The device came to the next kernel.
    pub kernel_wait_ns: i64,
    /// A kernel was queued and waited for something else.
    pub other_ns: i64,
    /// How many gaps there were.
    pub gaps: u64,
}

impl Idle {
    /// All of it.
    pub fn total_ns(&self) -> i64 {
        self.host_wait_ns + self.kernel_wait_ns + self.other_ns
    }

    /// What two stretches come to.
    pub fn merge(&mut self, other: &Idle) {
        self.host_wait_ns += other.host_wait_ns;
        self.kernel_wait_ns += other.kernel_wait_ns;
        self.other_ns += other.other_ns;
        self.gaps += other.gaps;
    }
}

/// The gaps between the work of one stream, which must be sorted by its begin.
pub fn gaps(work: &[Queued]) -> impl Iterator<Item = Gap> {
    let mut end = i64::MAX;
    work.iter().enumerate().filter_map(move |(next, queued)| {
        let start = end;
        end = if end == i64::MAX { queued.end } else { end.max(queued.end) };
        let length = queued.start.saturating_sub(start);
        let cause = match queued.launched {
            Some(launched) if launched > start => Cause::HostWait,
            _ if length <= BACK_TO_BACK => Cause::KernelWait,
            _ => Cause::Other,
        };
        (length > 0).then_some(Gap { start, end: queued.start, cause, next })
    })
}

/// What the gaps between the work of one stream come to.
pub fn idle(work: &[Queued]) -> Idle {
    let mut out = Idle::default();
    for gap in gaps(work) {
        out.gaps += 1;
        let length = gap.end - gap.start;
        match gap.cause {
            Cause::HostWait => out.host_wait_ns += length,
            Cause::KernelWait => out.kernel_wait_ns += length,
            Cause::Other => out.other_ns += length,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: i64, end: i64, launched: Option<i64>) -> Queued {
        Queued { start, end, launched }
    }

    #[test]
    fn gaps_have_the_causes_that_launches_show() {
        let kernels = [
            at(0, 100, Some(-10)),
            // Launched while the first ran, and begun at once.
            at(120, 200, Some(50)),
            // Launched after the second had ended: the host came late.
            at(500, 600, Some(450)),
            // Launched long before, and still it waited.
            at(1000, 1100, Some(0)),
            at(1200, 1300, None),
        ];
        let idle = idle(&kernels);
        assert_eq!((idle.kernel_wait_ns, idle.host_wait_ns, idle.other_ns), (20, 300, 500));
        assert_eq!((idle.gaps, idle.total_ns()), (4, 820));
    }

    #[test]
    fn kernels_that_overlap_leave_no_gap() {
        let kernels = [at(0, 100, None), at(10, 20, None), at(50, 150, None), at(150, 160, None)];
        assert_eq!(idle(&kernels), Idle::default());
        assert_eq!(idle(&[]), Idle::default());
    }
}
