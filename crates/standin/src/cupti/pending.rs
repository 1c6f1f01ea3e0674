//! Activities that have not been delivered yet, in the order in which they end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::activity::{Activity, Operation, kind};
use super::settings::{ANY_CALL, ENABLED_CALLS, is_on};
use crate::lock::Mutex;

/// An activity that is delivered when it has ended; ordered by its end, then as it was reported.
struct Pending {
    ready: u64,
    order: u64,
    activity: Activity,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Pending) -> bool {
        (self.ready, self.order) == (other.ready, other.order)
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Pending) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Pending) -> std::cmp::Ordering {
        (self.ready, self.order).cmp(&(other.ready, other.order))
    }
}

/// Most activities that are kept; more are dropped and counted.
const PENDING: usize = 2 << 20;

static WAITING: Mutex<BinaryHeap<Reverse<Pending>>> = Mutex::new(BinaryHeap::new());
/// Activities that were lost since the client last asked.
pub(super) static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Keeps what ran on the device, if its kind is enabled.
pub fn report(activity: Activity) {
    let wanted = match activity.operation {
        Operation::Kernel { .. } => is_on(kind::KERNEL) || is_on(kind::CONCURRENT_KERNEL),
        Operation::Copy { .. } => is_on(kind::MEMCPY),
        Operation::PeerCopy { .. } => is_on(kind::MEMCPY2),
        Operation::Set { .. } => is_on(kind::MEMSET),
        Operation::Graph => is_on(kind::GRAPH_TRACE),
        Operation::Wait(_) => is_on(kind::SYNCHRONIZATION),
        Operation::Call { .. } => true,
    };
    if wanted {
        keep(activity);
    }
}

/// Keeps a thread's wait, for a stream (3) or a context (4), if waits are enabled.
pub fn report_wait(kind: u32, correlation: u32, start: u64, end: u64) {
    let operation = Operation::Wait(kind);
    report(Activity { context: 1, correlation, start, end, operation, ..Activity::default() });
}

/// Keeps a call of the driver, if all calls or those of this function are enabled.
pub fn report_call(cbid: u32, correlation: u32, start: u64, end: u64, code: u32) {
    let one_by_one = || ANY_CALL.load(Relaxed) && ENABLED_CALLS.lock().contains(&cbid);
    if is_on(kind::DRIVER) || one_by_one() {
        // SAFETY: it has no arguments and cannot fail.
        let thread = unsafe { libc::gettid() } as u32;
        let operation = Operation::Call { cbid, thread, code };
        keep(Activity { correlation, start, end, operation, ..Activity::default() });
    }
}

fn keep(activity: Activity) {
    static ORDER: AtomicU64 = AtomicU64::new(0);
    let mut waiting = WAITING.lock();
    if waiting.len() >= PENDING {
        DROPPED.fetch_add(1, Relaxed);
        return;
    }
    let order = ORDER.fetch_add(1, Relaxed);
    waiting.push(Reverse(Pending { ready: activity.end, order, activity }));
}

/// Takes what has ended by `at`, in the order of the ends.
pub(super) fn take_ready(at: u64) -> Vec<Activity> {
    let mut waiting = WAITING.lock();
    let mut ready = Vec::new();
    while waiting.peek().is_some_and(|Reverse(pending)| pending.ready <= at) {
        ready.extend(waiting.pop().map(|Reverse(pending)| pending.activity));
    }
    ready
}
