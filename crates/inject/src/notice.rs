//! Notices of what was lost or could not be recorded: a code, a text and a number, each at most once
//! a minute.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// What a notice is about. Codes are part of the trace: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// Events that were not recorded, for lack of room.
    NcclFull = 1,
    /// Communicators that were not followed, for lack of room.
    NcclCommunicators = 2,
    /// Times of the GPU that cannot be right.
    NcclTimer = 3,
    /// The user's own plug-in cannot be loaded.
    NcclNextMissing = 4,
    /// The user's own plug-in lacks the version of the interface that NCCL uses.
    NcclNextVersion = 5,
    /// Network operations that this process does for another one (PXN).
    NcclForeign = 6,
    /// The uncertainty of the GPU's clock, ns.
    NcclClock = 7,
    /// Names that were not kept, for lack of room.
    NcclNames = 8,
    /// Calls that were captured in a CUDA graph.
    NcclGraph = 9,
    /// Sends and receives without a number, for lack of room.
    NcclPeers = 10,
    /// Events that never ended.
    NcclUnended = 11,
    /// CUPTI cannot be used.
    CuptiMissing = 16,
    /// Another profiler uses CUPTI.
    CuptiShared = 17,
    /// CUPTI does not record a kind of activity.
    CuptiKind = 19,
    /// CUPTI's records have no times.
    CuptiTimes = 20,
    /// CUPTI asked for a buffer when none was free.
    CuptiBuffers = 21,
    /// CUPTI dropped records.
    CuptiDropped = 22,
    /// A panic in this library, which did not reach the program.
    OurFault = 23,
}

/// How many codes there may be.
const CODES: usize = 32;
/// A code is not reported more often, ns.
const EVERY: u64 = 60_000_000_000;

/// Writes a notice at once, if an agent is connected.
pub fn report(code: Code, text: &str, value: Option<f64>) {
    crate::ring::with(|ring| {
        let name = ring.name(text);
        let at = gpuwhy_wire::now();
        ring.write(gpuwhy_wire::Event::Notice { name, code: code as u32, value, at });
    });
}

impl Code {
    /// Codes that [`Notices`] counts.
    const COUNTED: [Code; 11] = [
        Code::NcclFull,
        Code::NcclCommunicators,
        Code::NcclTimer,
        Code::NcclNextMissing,
        Code::NcclNextVersion,
        Code::NcclForeign,
        Code::NcclClock,
        Code::NcclNames,
        Code::NcclGraph,
        Code::NcclPeers,
        Code::NcclUnended,
    ];

    /// The notice's text; its value is a count, but for [`Code::NcclClock`].
    pub const fn text(self) -> &'static str {
        match self {
            Code::NcclFull => "nccl: events were not recorded: too many were open at once",
            Code::NcclCommunicators => {
                "nccl: the work of some communicators is not recorded: too many are open"
            }
            Code::NcclTimer => "nccl: times of the GPU were missing, reversed or implausible",
            Code::NcclNextMissing => {
                "nccl: the profiler plug-in that GPUWHY_NCCL_NEXT names cannot be loaded"
            }
            Code::NcclNextVersion => {
                "nccl: the profiler plug-in that GPUWHY_NCCL_NEXT names lacks this NCCL's version of the interface"
            }
            Code::NcclForeign => {
                "nccl: network operations for other processes (PXN) are not recorded"
            }
            Code::NcclClock => "nccl: uncertainty of the GPU's clock, ns",
            Code::NcclNames => "nccl: names were not kept: there are too many",
            Code::NcclGraph => {
                "nccl: calls were captured in CUDA graphs; their launches may have no numbers of their own"
            }
            Code::NcclPeers => "nccl: sends and receives have no numbers: there are too many peers",
            Code::NcclUnended => "nccl: events never ended and were given up",
            Code::CuptiMissing => "cupti: kernels are not recorded",
            Code::CuptiShared => "cupti: another profiler uses it",
            Code::CuptiKind => "cupti: a kind of activity is not recorded",
            Code::CuptiTimes => "cupti: records without times",
            Code::CuptiBuffers => "cupti: no buffer was free",
            Code::CuptiDropped => "cupti: records were dropped",
            Code::OurFault => "gpuwhy's library panicked; the program was not affected",
        }
    }
}

/// The notices of one tenant.
pub struct Notices {
    /// By code: how often it happened, or a number.
    values: [AtomicU64; CODES],
    /// By code: the value that was last reported.
    reported: [AtomicU64; CODES],
    /// By code: when it may be reported again.
    next: [AtomicU64; CODES],
    /// One bit for each code whose value has changed.
    changed: AtomicU64,
}

impl Notices {
    /// Nothing has happened.
    pub const fn new() -> Notices {
        Notices {
            values: [const { AtomicU64::new(0) }; CODES],
            reported: [const { AtomicU64::new(0) }; CODES],
            next: [const { AtomicU64::new(0) }; CODES],
            changed: AtomicU64::new(0),
        }
    }

    /// It happened `more` times more.
    pub fn count(&self, code: Code, more: u64) {
        self.values[code as usize].fetch_add(more, Relaxed);
        self.changed.fetch_or(1 << code as u32, Relaxed);
    }

    /// It is `value` now.
    pub fn set(&self, code: Code, value: u64) {
        self.values[code as usize].store(value, Relaxed);
        self.changed.fetch_or(1 << code as u32, Relaxed);
    }

    /// How often it happened, or what was set.
    pub fn value(&self, code: Code) -> u64 {
        self.values[code as usize].load(Relaxed)
    }

    /// Whether [`Notices::report`] may have something to report.
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.changed.load(Relaxed) != 0
    }

    /// A new agent has received nothing: everything is reported again.
    pub fn forget_reported(&self) {
        for code in Code::COUNTED {
            if self.value(code) != 0 {
                self.reported[code as usize].store(0, Relaxed);
                self.next[code as usize].store(0, Relaxed);
                self.changed.fetch_or(1 << code as u32, Relaxed);
            }
        }
    }

    /// Calls `write` with text, code and value of what has changed and is due at `now`, CLOCK_MONOTONIC
    /// ns.
    pub fn report(&self, now: u64, mut write: impl FnMut(&'static str, u32, f64)) {
        let changed = self.changed.load(Relaxed);
        for code in Code::COUNTED {
            let i = code as usize;
            if changed & 1 << i == 0 || now < self.next[i].load(Relaxed) {
                continue;
            }
            // Of several threads that come at once, one reports.
            let next = self.next[i].load(Relaxed);
            if self.next[i].compare_exchange(next, now + EVERY, Relaxed, Relaxed).is_err() {
                continue;
            }
            self.changed.fetch_and(!(1 << i), Relaxed);
            let value = self.values[i].load(Relaxed);
            if self.reported[i].swap(value, Relaxed) != value {
                write(code.text(), code as u32, value as f64);
            }
        }
    }
}

impl Default for Notices {
    fn default() -> Notices {
        Notices::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(notices: &Notices, now: u64) -> Vec<(u32, f64)> {
        let mut reported = Vec::new();
        notices.report(now, |_, code, value| reported.push((code, value)));
        reported
    }

    #[test]
    fn a_code_is_reported_once_a_minute_with_all_that_happened_since() {
        let notices = Notices::new();
        assert_eq!(reported(&notices, 5), []);
        notices.count(Code::NcclFull, 2);
        assert_eq!(reported(&notices, 5), [(1, 2.0)]);
        notices.count(Code::NcclFull, 1);
        notices.count(Code::NcclTimer, 1);
        assert_eq!(reported(&notices, 6), [(3, 1.0)]);
        assert!(notices.has_changed());
        assert_eq!(reported(&notices, 5 + EVERY), [(1, 3.0)]);
        assert_eq!(reported(&notices, 5 + 2 * EVERY), []);
        notices.forget_reported();
        assert_eq!(reported(&notices, 6 + 2 * EVERY), [(1, 3.0), (3, 1.0)]);
    }
}
