//! Sequence numbers of sends and receives, which NCCL does not give: they are counted for each pair of
//! ranks and direction, so that both sides have the same number for the same message.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::names::LocalName;

const PLACES: usize = 4096;
const PROBES: usize = 16;
const BUSY: u64 = 1;

struct Place {
    /// `1 << 63 | generation << 48 | name << 32 | communicator << 24 | peer`.
    key: AtomicU64,
    next: AtomicU64,
}

/// Counters by communicator, operation and peer.
pub struct Peers {
    places: [Place; PLACES],
}

impl Peers {
    /// Nothing was sent.
    pub const fn new() -> Peers {
        Peers {
            places: [const { Place { key: AtomicU64::new(0), next: AtomicU64::new(0) } }; PLACES],
        }
    }

    /// The number of the next message, from 0; `None` if there is no place for this pair. `alive` says
    /// whether a communicator (with 15 bits of its generation) is still open: places of others are
    /// reused.
    pub fn next(
        &self,
        communicator: usize,
        generation: u64,
        operation: LocalName,
        peer: u32,
        alive: impl Fn(usize, u64) -> bool,
    ) -> Option<u64> {
        if peer >= 1 << 24 {
            return None;
        }
        let key = 1 << 63
            | (generation & 0x7fff) << 48
            | (operation.0 as u64) << 32
            | (communicator as u64 & 0xff) << 24
            | peer as u64;
        let hash = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize;
        let places = || (0..PROBES).map(|probe| &self.places[(hash + probe) % PLACES]);
        if let Some(place) = places().find(|place| place.key.load(Acquire) == key) {
            return Some(place.next.fetch_add(1, Relaxed));
        }
        for place in places() {
            let had = place.key.load(Acquire);
            let dead = had != BUSY && !alive((had >> 24 & 0xff) as usize, had >> 48 & 0x7fff);
            if (had == 0 || dead) && place.key.compare_exchange(had, BUSY, AcqRel, Relaxed).is_ok()
            {
                place.next.store(1, Relaxed);
                place.key.store(key, Release);
                return Some(0);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_counts_its_own_and_ended_communicators_make_room() {
        let peers = Box::new(Peers::new());
        let next = |generation, name, peer| {
            peers.next(3, generation, LocalName(name), peer, |_, g| g == generation)
        };
        assert_eq!(
            [next(1, 1, 0), next(1, 1, 0), next(1, 2, 0), next(1, 1, 9)].map(Option::unwrap),
            [0, 1, 0, 0]
        );
        assert_eq!(next(1, 1, 0), Some(2));
        let lost = (10..20_000).filter(|peer| next(1, 1, *peer).is_none()).count();
        assert!((15_800..19_000).contains(&lost), "{lost}");
        assert_eq!(next(1, 1, 0), Some(3));
        assert_eq!((10..3_000).filter(|peer| next(2, 1, *peer) != Some(0)).count(), 0);
        assert_eq!(next(2, 1, u32::MAX), None);
    }
}
