//! Launches as the program makes them, in the order of its calls, until the thread that reads the maps takes them.
//!
//! A launch is written down before the driver is called, so that whatever has begun on a device is here. No lock is held
//! and nothing is allocated. Where so many were made that places were used again before anybody took them, that is told.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// How many there is room for.
const ROOM: u64 = 1 << 14;
/// How often a call is waited for that is not written whole.
const TRIES: u32 = 100;
/// Words of a place behind its turn.
const WORDS: usize = 5;

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A launch.
    Launch,
    /// A part of a graph that is being captured.
    Captured,
    /// The driver has refused the launch of this time.
    Refused,
}

/// A launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub context: u64,
    pub function: u64,
    pub stream: u64,
    /// When it was called, by our clock, ns.
    pub at: u64,
    pub kind: Kind,
}

/// What came of taking calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Some were lost.
    pub lost: bool,
    /// Every call that had been written down is among them.
    pub whole: bool,
}

struct Place {
    /// Twice the ticket and 1 while it is filled, and 1 more when it is.
    turn: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A ring of them.
pub struct Calls {
    places: [Place; ROOM as usize],
    next: AtomicU64,
    taken: AtomicU64,
}

impl Calls {
    pub const fn new() -> Calls {
        Calls {
            places: [const {
                Place { turn: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] }
            }; ROOM as usize],
            next: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }

    /// Writes a call down.
    pub fn push(&self, call: Call) {
        let ticket = self.next.fetch_add(1, AcqRel);
        let place = &self.places[(ticket % ROOM) as usize];
        let turn = 2 * ticket + 1;
        // Who comes a whole turn later has the place.
        if place.turn.fetch_max(turn, AcqRel) > turn {
            return;
        }
        let Call { context, function, stream, at, kind } = call;
        let kind = match kind {
            Kind::Launch => 1,
            Kind::Captured => 2,
            Kind::Refused => 3,
        };
        for (to, word) in place.words.iter().zip([context, function, stream, at, kind]) {
            to.store(word, Relaxed);
        }
        let _ = place.turn.compare_exchange(turn, turn + 1, Release, Relaxed);
    }

    /// Hands them over in order, up to the first that is not written whole yet. By one thread at a time.
    pub fn take(&self, mut each: impl FnMut(Call)) -> Taken {
        let (mut at, next) = (self.taken.load(Relaxed), self.next.load(Acquire));
        let mut lost = next - at > ROOM;
        if lost {
            at = next - ROOM;
        }
        let mut tries = 0;
        while at < next {
            let place = &self.places[(at % ROOM) as usize];
            let (turn, filled) = (place.turn.load(Acquire), 2 * at + 2);
            if turn < filled {
                // It takes a few ns, unless its thread was stopped.
                tries += 1;
                if tries > TRIES {
                    break;
                }
                std::thread::yield_now();
                continue;
            }
            let [context, function, stream, when, kind] =
                core::array::from_fn(|n| place.words[n].load(Relaxed));
            core::sync::atomic::fence(Acquire);
            at += 1;
            if place.turn.load(Relaxed) != filled {
                lost = true;
                continue;
            }
            let kind = match kind {
                1 => Kind::Launch,
                2 => Kind::Captured,
                _ => Kind::Refused,
            };
            each(Call { context, function, stream, at: when, kind });
        }
        self.taken.store(at, Relaxed);
        Taken { lost, whole: at == next }
    }

    /// In a forked child: what its parent launched is not its own.
    pub fn forget_after_fork(&self) {
        self.taken.store(self.next.load(Acquire), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at: u64) -> Call {
        Call { context: 1, function: 2, stream: 3, at, kind: Kind::Launch }
    }

    fn taken(calls: &Calls) -> (Vec<u64>, Taken) {
        let mut all = Vec::new();
        let taken = calls.take(|call| all.push(call.at));
        (all, taken)
    }

    const WHOLE: Taken = Taken { lost: false, whole: true };

    #[test]
    fn calls_are_taken_once_and_in_their_order() {
        static CALLS: Calls = Calls::new();
        [10, 20, 30].into_iter().for_each(|at| CALLS.push(call(at)));
        assert_eq!(taken(&CALLS), (vec![10, 20, 30], WHOLE));
        assert_eq!(taken(&CALLS), (vec![], WHOLE));
        CALLS.push(call(40));
        CALLS.forget_after_fork();
        CALLS.push(call(50));
        assert_eq!(taken(&CALLS), (vec![50], WHOLE));
    }

    #[test]
    fn a_call_that_is_being_written_holds_up_those_behind_it() {
        static CALLS: Calls = Calls::new();
        CALLS.push(call(10));
        let ticket = CALLS.next.fetch_add(1, AcqRel);
        CALLS.push(call(30));
        assert_eq!(taken(&CALLS), (vec![10], Taken { lost: false, whole: false }));
        CALLS.places[ticket as usize].turn.store(2 * ticket + 2, Release);
        assert_eq!(taken(&CALLS).0.len(), 2);
    }

    #[test]
    fn a_whole_turn_that_nobody_took_is_told() {
        static CALLS: Calls = Calls::new();
        (0..ROOM + 5).for_each(|at| CALLS.push(call(at)));
        let (all, told) = taken(&CALLS);
        assert_eq!((all.len() as u64, all[0]), (ROOM, 5));
        assert_eq!(told, Taken { lost: true, whole: true });
        CALLS.push(call(9));
        assert_eq!(taken(&CALLS), (vec![9], WHOLE));
    }

    #[test]
    fn threads_that_launch_at_once_lose_nothing() {
        static CALLS: Calls = Calls::new();
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    scope.spawn(move || {
                        (0..2000).for_each(|n| CALLS.push(call(10_000 * thread + n)))
                    })
                })
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                assert!(!CALLS.take(|call| all.push(call.at)).lost);
            }
        });
        assert_eq!(CALLS.take(|call| all.push(call.at)), WHOLE);
        assert_eq!(all.len(), 8000);
        for thread in 0..4 {
            let own: Vec<u64> = all.iter().copied().filter(|at| at / 10_000 == thread).collect();
            assert!(own.is_sorted(), "thread {thread}");
        }
    }
}
