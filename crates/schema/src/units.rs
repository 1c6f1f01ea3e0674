//! Time and identity as types, so that a duration is never taken for a pid.

use std::fmt;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// Nanoseconds on the trace clock (CLOCK_MONOTONIC of the reference host), or a span of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ns(pub i64);

impl Ns {
    /// Nothing at all, and the origin of the trace clock.
    pub const ZERO: Ns = Ns(0);
    /// The latest time there is: the end of what has not ended yet.
    pub const MAX: Ns = Ns(i64::MAX);
    /// The earliest time there is.
    pub const MIN: Ns = Ns(i64::MIN);

    /// `n` seconds.
    pub const fn secs(n: i64) -> Ns {
        Ns(n.saturating_mul(1_000_000_000))
    }

    /// `n` milliseconds.
    pub const fn millis(n: i64) -> Ns {
        Ns(n.saturating_mul(1_000_000))
    }

    /// `n` microseconds.
    pub const fn micros(n: i64) -> Ns {
        Ns(n.saturating_mul(1_000))
    }

    /// In milliseconds, for display.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// In seconds, for display.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The sum, clamped to what fits: times come from files that may hold anything.
    pub const fn saturating_add(self, other: Ns) -> Ns {
        Ns(self.0.saturating_add(other.0))
    }

    /// The difference, clamped to what fits.
    pub const fn saturating_sub(self, other: Ns) -> Ns {
        Ns(self.0.saturating_sub(other.0))
    }

    /// How long `[a, b)` and `[c, d)` overlap; never negative.
    pub fn overlap(a: Ns, b: Ns, c: Ns, d: Ns) -> Ns {
        b.min(d).saturating_sub(a.max(c)).max(Ns::ZERO)
    }
}

impl Add for Ns {
    type Output = Ns;
    fn add(self, other: Ns) -> Ns {
        Ns(self.0 + other.0)
    }
}

impl Sub for Ns {
    type Output = Ns;
    fn sub(self, other: Ns) -> Ns {
        Ns(self.0 - other.0)
    }
}

impl Neg for Ns {
    type Output = Ns;
    fn neg(self) -> Ns {
        Ns(-self.0)
    }
}

impl AddAssign for Ns {
    fn add_assign(&mut self, other: Ns) {
        self.0 += other.0;
    }
}

impl SubAssign for Ns {
    fn sub_assign(&mut self, other: Ns) {
        self.0 -= other.0;
    }
}

impl std::iter::Sum for Ns {
    fn sum<I: Iterator<Item = Ns>>(parts: I) -> Ns {
        Ns(parts.map(|n| n.0).sum())
    }
}

impl fmt::Display for Ns {
    /// With the unit that leaves a readable number: `812 ns`, `1.250 ms`, `30.000 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        match n.unsigned_abs() {
            0..=9_999 => write!(f, "{n} ns"),
            10_000..=999_999 => write!(f, "{:.1} us", n as f64 / 1e3),
            1_000_000..=9_999_999_999 => write!(f, "{:.3} ms", n as f64 / 1e6),
            _ => write!(f, "{:.3} s", n as f64 / 1e9),
        }
    }
}

/// The identity of a span or a mark: `shard 16 | sequence 48`.
///
/// Shards are written in parallel without coordination, so each takes a shard number once and
/// counts from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

impl Id {
    /// Bits that count within a shard.
    pub const SEQUENCE_BITS: u32 = 48;

    /// Sequence number `sequence` (its low 48 bits) of shard `shard`.
    pub const fn new(shard: u16, sequence: u64) -> Id {
        Id(((shard as u64) << Id::SEQUENCE_BITS) | (sequence & ((1 << Id::SEQUENCE_BITS) - 1)))
    }

    /// The shard that gave out this id.
    pub const fn shard(self) -> u16 {
        (self.0 >> Id::SEQUENCE_BITS) as u16
    }

    /// The number within its shard.
    pub const fn sequence(self) -> u64 {
        self.0 & ((1 << Id::SEQUENCE_BITS) - 1)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.shard(), self.sequence())
    }
}

/// Gives out the ids of one shard, in order.
#[derive(Debug)]
pub struct Ids {
    shard: u16,
    next: u64,
}

impl Ids {
    /// Ids of `shard`, from its first on.
    pub fn of_shard(shard: u16) -> Ids {
        Ids { shard, next: 0 }
    }

    /// The next id that nobody has.
    pub fn next_id(&mut self) -> Id {
        self.next += 1;
        Id::new(self.shard, self.next)
    }
}

macro_rules! small_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

small_id! {
    /// The identity of an entity: a process, a CPU, a disk, a GPU.
    EntityId
}
small_id! {
    /// The identity of a track: one lane of one shape of one entity.
    TrackId
}
small_id! {
    /// The identity of a source: one probe, importer or library that made rows.
    SourceId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_keeps_its_shard_and_its_sequence() {
        let id = Id::new(0xffff, (1 << 48) - 1);
        assert_eq!((id.shard(), id.sequence()), (0xffff, (1 << 48) - 1));
        assert_eq!(Id::new(3, 7).to_string(), "3.7");
    }

    #[test]
    fn intervals_that_do_not_meet_overlap_by_nothing() {
        let n = |a, b, c, d| Ns::overlap(Ns(a), Ns(b), Ns(c), Ns(d)).0;
        assert_eq!(n(0, 10, 5, 20), 5);
        assert_eq!(n(0, 10, 10, 20), 0);
        assert_eq!(n(0, 10, 30, 20), 0);
        assert_eq!(n(i64::MIN, i64::MAX, 0, 4), 4);
    }
}
