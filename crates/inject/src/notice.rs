//! Notices of what was lost or could not be recorded: a code, a text and a number, each at most once
//! a minute.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// What a notice is about. Codes are part of the trace: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// Events for which there was no room.
    NcclFull = 1,
    /// Communicators for which there was no room.
    NcclCommunicators = 2,
    /// Times of the GPU that cannot be.
    NcclTimer = 3,
    /// The plug-in that the user wants besides cannot be loaded.
    NcclNextMissing = 4,
    /// The plug-in that the user wants besides is of other versions than NCCL speaks.
    NcclNextVersion = 5,
    /// Work that this process does for the tasks of another one (PXN).
    NcclForeign = 6,
    /// How well the GPU's clock is known.
    NcclClock = 7,
    /// Names for which there was no room.
    NcclNames = 8,
    /// Collectives of a graph.
    NcclGraph = 9,
    /// Pairs of ranks for which there was no room.
    NcclPeers = 10,
    /// Events that never ended.
    NcclUnended = 11,
    /// No CUPTI that can be used.
    CuptiMissing = 16,
    /// Another profiler uses CUPTI.
    CuptiShared = 17,
    /// A kind of record cannot be had.
    CuptiKind = 19,
    /// Records have no times.
    CuptiTimes = 20,
    /// All buffers are CUPTI's.
    CuptiBuffers = 21,
    /// CUPTI dropped records.
    CuptiDropped = 22,
    /// A fault of our own, which did not reach the program.
    OurFault = 23,
}

/// How many codes there may be.
const CODES: usize = 32;
/// A code is not told more often, ns.
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
    /// Those that are counted.
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

    /// What it says; the notice's value is the number that the text speaks of.
    pub const fn text(self) -> &'static str {
        match self {
            Code::NcclFull => "nccl: so many events found no room and are not told",
            Code::NcclCommunicators => {
                "nccl: so many communicators found no room and their work is not told"
            }
            Code::NcclTimer => {
                "nccl: so many times of the GPU were missing, reversed or implausible"
            }
            Code::NcclNextMissing => {
                "nccl: the profiler plug-in of GPUWHY_NCCL_NEXT cannot be loaded"
            }
            Code::NcclNextVersion => {
                "nccl: the profiler plug-in of GPUWHY_NCCL_NEXT lacks the version that this NCCL speaks"
            }
            Code::NcclForeign => {
                "nccl: so many network operations belong to tasks of other processes and are not told"
            }
            Code::NcclClock => "nccl: times of the GPU are known to so many ns",
            Code::NcclNames => "nccl: so many names found no room",
            Code::NcclGraph => {
                "nccl: so many calls were captured in CUDA graphs, whose launches NCCL may not number"
            }
            Code::NcclPeers => {
                "nccl: so many sends and receives have no number of their own, for too many peers"
            }
            Code::NcclUnended => "nccl: so many events never ended and were given up",
            Code::CuptiMissing => "cupti: kernels are not seen",
            Code::CuptiShared => "cupti: another profiler uses it",
            Code::CuptiKind => "cupti: a kind of record cannot be had",
            Code::CuptiTimes => "cupti: so many records have no times",
            Code::CuptiBuffers => "cupti: so often no buffer was free",
            Code::CuptiDropped => "cupti: so many records were dropped",
            Code::OurFault => "so many faults of our own did not reach the program",
        }
    }
}

/// The notices of one tenant.
pub struct Notices {
    /// What is said: a count, or the bits of a number.
    values: [AtomicU64; CODES],
    told: [AtomicU64; CODES],
    next: [AtomicU64; CODES],
    /// Codes of which there is news.
    news: AtomicU64,
}

impl Notices {
    /// Nothing to say.
    pub const fn new() -> Notices {
        Notices {
            values: [const { AtomicU64::new(0) }; CODES],
            told: [const { AtomicU64::new(0) }; CODES],
            next: [const { AtomicU64::new(0) }; CODES],
            news: AtomicU64::new(0),
        }
    }

    /// It happened `more` times.
    pub fn count(&self, code: Code, more: u64) {
        self.values[code as usize].fetch_add(more, Relaxed);
        self.news.fetch_or(1 << code as u32, Relaxed);
    }

    /// It is `value` now.
    pub fn set(&self, code: Code, value: u64) {
        self.values[code as usize].store(value, Relaxed);
        self.news.fetch_or(1 << code as u32, Relaxed);
    }

    /// How often it happened, or what it is.
    pub fn value(&self, code: Code) -> u64 {
        self.values[code as usize].load(Relaxed)
    }

    /// Whether [`Notices::report`] may have something to say.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news.load(Relaxed) != 0
    }

    /// A new listener knows nothing: what was said is said again.
    pub fn again(&self) {
        for code in Code::COUNTED {
            if self.value(code) != 0 {
                self.told[code as usize].store(0, Relaxed);
                self.next[code as usize].store(0, Relaxed);
                self.news.fetch_or(1 << code as u32, Relaxed);
            }
        }
    }

    /// Says what is new to somebody who listens, at `now`.
    pub fn report(&self, now: u64, mut write: impl FnMut(&'static str, u32, f64)) {
        let news = self.news.load(Relaxed);
        for code in Code::COUNTED {
            let i = code as usize;
            if news & 1 << i == 0 || now < self.next[i].load(Relaxed) {
                continue;
            }
            // One thread of those that come at once speaks.
            let next = self.next[i].load(Relaxed);
            if self.next[i].compare_exchange(next, now + EVERY, Relaxed, Relaxed).is_err() {
                continue;
            }
            self.news.fetch_and(!(1 << i), Relaxed);
            let value = self.values[i].load(Relaxed);
            if self.told[i].swap(value, Relaxed) != value {
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

    fn told(notices: &Notices, now: u64) -> Vec<(u32, f64)> {
        let mut told = Vec::new();
        notices.report(now, |_, code, value| told.push((code, value)));
        told
    }

    #[test]
    fn a_thing_is_said_once_a_minute_with_all_that_came_together() {
        let notices = Notices::new();
        assert_eq!(told(&notices, 5), []);
        notices.count(Code::NcclFull, 2);
        assert_eq!(told(&notices, 5), [(1, 2.0)]);
        notices.count(Code::NcclFull, 1);
        notices.count(Code::NcclTimer, 1);
        assert_eq!(told(&notices, 6), [(3, 1.0)]);
        assert!(notices.has_news());
        assert_eq!(told(&notices, 5 + EVERY), [(1, 3.0)]);
        assert_eq!(told(&notices, 5 + 2 * EVERY), []);
        notices.again();
        assert_eq!(told(&notices, 6 + 2 * EVERY), [(1, 3.0), (3, 1.0)]);
    }
}
