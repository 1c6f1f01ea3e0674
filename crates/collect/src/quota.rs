//! What a guest may cost: a guest is a process that sends records, through the agent socket or through
//! the ring of marked steps, and that may be broken or hostile.
//!
//! Every limit is here, and in the table of `docs/inside.md`. A guest that has used up a quota loses its
//! own records, which are counted, and its source says so; whatever it does, a neighbour loses nothing:
//! the budget of all guests together is shared fairly ([`gpuwhy_wire::Server::serve`]).

use gpuwhy_schema::Ns;
use gpuwhy_wire::{ClientLimits, Options};

/// Something that is used up, and grows again with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// How much comes back in a second.
    pub per_second: u64,
    /// How much can be saved up, and used at once.
    pub at_once: u64,
}

/// Records of one guest. A process that starts a kernel every 20 µs without a pause stays below; CUPTI
/// hands over what a device gathered at once, tens of thousands of records at times.
pub(crate) const RECORDS: Rate = Rate { per_second: 50_000, at_once: 1 << 17 };
/// Records of all guests together, which they share fairly.
pub(crate) const ALL_RECORDS: Rate = Rate { per_second: 250_000, at_once: 1 << 17 };
/// Records of all rings that are read in one tick, so that no tick takes long. Those of a burst stay in their
/// ring until the next one.
pub(crate) const RECORDS_PER_TICK: u64 = 1 << 14;
/// Bytes of one guest: [`RECORD_BYTES`] a record and the text of its names, [`ENTITY_BYTES`] an entity.
pub(crate) const BYTES: Rate = Rate { per_second: 8 << 20, at_once: 24 << 20 };
/// What a record counts as, apart from its names.
pub(crate) const RECORD_BYTES: u64 = 64;
/// What an entity or a track counts as.
pub(crate) const ENTITY_BYTES: u64 = 256;
/// Entities that one guest makes: streams, ranks, devices, threads that cannot be verified.
pub(crate) const NEW_ENTITIES: Rate = Rate { per_second: 128, at_once: 512 };
/// Entities of one guest at a time.
pub(crate) const ENTITIES: usize = 512;
/// GPUs that one guest can name by their UUIDs.
pub(crate) const DEVICES: usize = 64;
/// Tracks of one guest at a time.
pub(crate) const TRACKS: usize = 1024;
/// Threads of one guest that are known at a time.
pub(crate) const THREADS: usize = 512;
/// Files of /proc that are read for one guest. A process that starts threads by the hundred is known by
/// its burst.
pub(crate) const LOOK_UPS: Rate = Rate { per_second: 128, at_once: 2048 };
/// Files of /proc that are read to find the writers of the ring of marked steps.
pub(crate) const WRITER_LOOK_UPS: Rate = Rate { per_second: 512, at_once: 4096 };
/// Writers of the ring of marked steps at a time.
pub(crate) const WRITERS: usize = 256;
/// Texts of one guest that its source's note shows, as long as the guest lives.
pub(crate) const NOTES: u32 = 4;
/// Phases and stages of one guest that wait for their step or collective.
pub(crate) const HELD_SPANS: usize = 8192;
/// Requests of one guest at a time; of more, no more is known than that they were in a batch.
pub(crate) const REQUESTS: usize = 1 << 14;
/// Changes of one batch that are held until its step ends.
pub(crate) const BATCH_CHANGES: usize = 2048;
/// Batches of one thread whose step or output is awaited.
pub(crate) const BATCHES: usize = 16;
/// Bytes of a request's name.
pub(crate) const REQUEST_KEY: usize = 128;
/// Launches and kernels of all guests that wait for each other; each guest has its share, but no more
/// than the first number and no less than the second.
pub(crate) const UNLINKED: (usize, usize, usize) = (1 << 18, 1 << 16, 1 << 12);
/// Collectives of all guests that are remembered after they were written, shared likewise.
pub(crate) const REMEMBERED: (usize, usize, usize) = (1 << 16, 1 << 12, 1 << 10);
/// A stream that was not used for so long has ended; so has a thread that cannot be verified.
pub(crate) const IDLE: Ns = Ns::secs(60);
/// As [`IDLE`] where a guest has used up [`ENTITIES`].
pub(crate) const IDLE_WHEN_FULL: Ns = Ns::secs(1);
/// How often a guest's idle entities are looked for.
pub(crate) const IDLE_CHECK: Ns = Ns::secs(1);
/// How far a record may lie in the future: clocks of devices are converted.
pub(crate) const AHEAD: Ns = Ns::secs(2);

/// Processes at the agent socket. The first eight have rings of 5 MiB (65,536 records), the others of
/// 0.6 MiB (8,192): 76 MiB in all.
pub(crate) const CLIENTS: ClientLimits = ClientLimits {
    all: 64,
    per_pid: 4,
    per_uid: 48,
    ring: Options { slots: 1 << 16, names: 1 << 13, mode: 0o600 },
    whole_rings: (8, 8),
    small_ring: Options { slots: 1 << 13, names: 1 << 10, mode: 0o600 },
};

/// A guest's share of what all guests have together.
pub(crate) fn share((all, most, least): (usize, usize, usize), guests: usize) -> usize {
    (all / guests.max(1)).clamp(least, most)
}

/// What is left of a [`Rate`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// In billionths, so that no time is lost between ticks.
    left: u128,
    at: Ns,
}

const BILLION: u128 = 1_000_000_000;

impl Bucket {
    /// A full one.
    pub fn new(rate: Rate) -> Bucket {
        Bucket { rate, left: u128::from(rate.at_once) * BILLION, at: Ns::MIN }
    }

    /// Adds what has come back until `now`.
    pub fn refill(&mut self, now: Ns) {
        if self.at != Ns::MIN && now > self.at {
            let since = now.saturating_sub(self.at).0.unsigned_abs();
            let most = u128::from(self.rate.at_once) * BILLION;
            self.left += u128::from(self.rate.per_second) * u128::from(since);
            self.left = self.left.min(most);
        }
        self.at = self.at.max(now);
    }

    /// How much can be taken now.
    pub fn left(&self) -> u64 {
        u64::try_from(self.left / BILLION).unwrap_or(u64::MAX)
    }

    /// Takes `n` if there is as much; returns whether there was.
    pub fn take(&mut self, n: u64) -> bool {
        let n = u128::from(n) * BILLION;
        let enough = self.left >= n;
        if enough {
            self.left -= n;
        }
        enough
    }
}

/// A quota that a guest has used up, as its source's note calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    Records,
    Bytes,
    Entities,
    Tracks,
    Threads,
    LookUps,
}

impl Quota {
    /// All of them.
    pub const ALL: [Quota; 6] = [
        Quota::Records,
        Quota::Bytes,
        Quota::Entities,
        Quota::Tracks,
        Quota::Threads,
        Quota::LookUps,
    ];

    /// What is said of a guest that has used it up.
    pub fn text(self) -> String {
        let rate =
            |rate: Rate, what: &str| format!("more than {} {what} a second", rate.per_second);
        let what = match self {
            Quota::Records => rate(RECORDS, "records"),
            Quota::Bytes => rate(BYTES, "bytes of records and names"),
            Quota::Entities => format!(
                "more than {ENTITIES} streams, ranks and devices at a time, or {} new ones a second",
                NEW_ENTITIES.per_second
            ),
            Quota::Tracks => format!("more than {TRACKS} counters and other tracks"),
            Quota::Threads => format!("more than {THREADS} threads at a time"),
            Quota::LookUps => rate(LOOK_UPS, "threads that nobody has seen before"),
        };
        format!("{what}: the others are counted as dropped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_up_comes_back_with_time_and_is_not_saved_without_end() {
        let mut bucket = Bucket::new(Rate { per_second: 100, at_once: 10 });
        bucket.refill(Ns(5));
        assert!(bucket.take(10) && !bucket.take(1));
        bucket.refill(Ns(5 + 9_999_999));
        assert!(!bucket.take(1), "not quite a hundredth of a second");
        bucket.refill(Ns(5 + 10_000_000));
        assert!(bucket.take(1) && !bucket.take(1));
        // A clock that goes back gives nothing.
        bucket.refill(Ns(0));
        assert_eq!(bucket.left(), 0);
        bucket.refill(Ns::secs(1000));
        assert_eq!(bucket.left(), 10);
    }

    #[test]
    fn all_rings_together_fit_beside_the_recorder_in_the_units_memory() {
        assert!(CLIENTS.ring_bytes() <= 76 << 20, "{}", CLIENTS.ring_bytes());
    }
}
