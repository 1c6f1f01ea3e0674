//! The consumer's side of the ring.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::RawRing;
use crate::layout::{RECORD_WORDS, Slot};
use crate::record::{Record, decode_words};
use crate::sync::AtomicU64;

/// What was found at the ring's tail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Taken {
    /// A whole record.
    Record(Record),
    /// A slot without a valid record; it is free again.
    Torn,
    /// A slot whose producer did not come back in time; it is free again.
    Abandoned,
    /// A reserved slot whose producer still has time, and records may wait behind it.
    Waiting,
    /// No reserved slot.
    Empty,
}

/// The consumer's side. A ring must have only one; its position lies in the ring, so that another
/// consumer can continue after it.
#[derive(Debug)]
pub struct Tail {
    ring: RawRing,
    position: u64,
    patience: u64,
    /// Positions below the first have been reserved since the second, at least.
    waiting: Option<(u64, u64)>,
    /// The count of lost records when it was last read: our own copy, since the one in the ring can be
    /// overwritten.
    lost: u64,
    /// Repairs that may be made at once, and since when there were fewer than [`REPAIRS`].
    repairs: (u32, u64),
}

/// Repairs that may be made at once: each writes every slot, which a hostile producer could ask for
/// with each record.
const REPAIRS: u32 = 64;
/// How long it takes until one more may be made, ns.
const REPAIR_NS: u64 = 1_000_000_000;
/// More records than this cannot have been lost between two looks.
const MOST_LOST: u64 = 1 << 32;

/// What the count of lost records says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// So many since the last look.
    Records(u64),
    /// The count was overwritten: it went back, or further on than any producer can count.
    Garbage,
}

impl Tail {
    /// Continues where the last consumer of this ring stopped. A slot may stay reserved for
    /// `patience` ns before it is abandoned.
    pub fn new(ring: RawRing, patience: u64) -> Tail {
        let slots = ring.slots as u64;
        let header = ring.header();
        let (position, lost) = (header.tail.load(Acquire), header.lost_reported.load(Relaxed));
        let repairs = (REPAIRS, 0);
        let mut tail = Tail { ring, position, patience, waiting: None, lost, repairs };
        // The last consumer may have died after it freed a slot and before it stored its position.
        let mut freed = 0;
        while freed < slots && tail.is_freed() {
            tail.position = tail.position.wrapping_add(1);
            freed += 1;
        }
        if freed > 0 {
            ring.header().tail.store(tail.position, Release);
        }
        tail
    }

    fn is_freed(&self) -> bool {
        let sequence = self.ring.slot(self.position).sequence.load(Acquire);
        let next_lap = self.position.wrapping_add(self.ring.slots as u64);
        // A free slot of the next lap, or one already published there.
        sequence == next_lap || sequence == next_lap.wrapping_add(1)
    }

    /// Takes the slot at the tail. `now` is any clock of ns that does not go back.
    pub fn take(&mut self, now: u64) -> Taken {
        let (ring, position) = (self.ring, self.position);
        let slots = ring.slots as u64;
        let slot = ring.slot(position);
        let sequence = slot.sequence.load(Acquire);
        let published = position.wrapping_add(1);

        if sequence == published {
            let mut words = [0u64; RECORD_WORDS];
            for (to, from) in words.iter_mut().zip(&slot.words) {
                *to = from.load(Relaxed);
            }
            self.free(slot);
            let header = self.ring.header();
            return match decode_words(&words, position) {
                Ok(record) => {
                    add(&header.records, 1);
                    Taken::Record(record)
                }
                Err(_) => {
                    add(&header.torn, 1);
                    Taken::Torn
                }
            };
        }

        let reserved = self.ring.header().head.load(Acquire).wrapping_sub(position);
        if reserved > slots {
            // No producer reserves a slot that is not free, so the head was overwritten.
            return if self.repair(now) { Taken::Torn } else { Taken::Empty };
        }
        if sequence != position {
            // Neither free, reserved nor published at this position: overwritten. If the head is here,
            // producers could not pass; so the slot is made free at this position, else at the next lap.
            if reserved == 0 {
                slot.sequence.store(position, Release);
            } else {
                self.free(slot);
            }
            add(&self.ring.header().torn, 1);
            return Taken::Torn;
        }
        if reserved == 0 {
            self.waiting = None;
            return Taken::Empty;
        }

        let head = position.wrapping_add(reserved);
        let since = match self.waiting {
            Some((until, since)) if (until.wrapping_sub(position) as i64) > 0 => since,
            _ => {
                self.waiting = Some((head, now));
                now
            }
        };
        if now.saturating_sub(since) < self.patience {
            return Taken::Waiting;
        }
        // The producer may publish at this very moment; then the record is taken on the next look.
        let next_lap = position.wrapping_add(slots);
        if slot.sequence.compare_exchange(position, next_lap, AcqRel, Relaxed).is_err() {
            return Taken::Waiting;
        }
        self.advance();
        add(&self.ring.header().abandoned, 1);
        Taken::Abandoned
    }

    /// Records that found no free slot, since the last call.
    pub fn lost(&mut self) -> Lost {
        let header = self.ring.header();
        let lost = header.lost.load(Relaxed);
        let before = core::mem::replace(&mut self.lost, lost);
        header.lost_reported.store(lost, Relaxed);
        match lost.checked_sub(before) {
            Some(lost) if lost <= MOST_LOST => Lost::Records(lost),
            _ => Lost::Garbage,
        }
    }

    /// How many slots have been reserved and not been taken, if the head can be believed; never more
    /// than there are.
    pub fn reserved(&self) -> u64 {
        let reserved = self.ring.header().head.load(Acquire).wrapping_sub(self.position);
        reserved.min(self.ring.slots as u64)
    }

    /// The next position to be read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The ring.
    pub fn ring(&self) -> &RawRing {
        &self.ring
    }

    fn free(&mut self, slot: &Slot) {
        let next_lap = self.position.wrapping_add(self.ring.slots as u64);
        slot.sequence.store(next_lap, Release);
        self.advance();
    }

    fn advance(&mut self) {
        self.position = self.position.wrapping_add(1);
        self.ring.header().tail.store(self.position, Release);
    }

    /// Makes an overwritten ring usable again: empty, from the consumer's position on. Returns false
    /// where that was done too often of late; the ring stays as it is for a while.
    fn repair(&mut self, now: u64) -> bool {
        let (left, since) = &mut self.repairs;
        let more = now.saturating_sub(*since) / REPAIR_NS;
        if more > 0 {
            *left = left.saturating_add(u32::try_from(more).unwrap_or(REPAIRS)).min(REPAIRS);
            *since = now;
        }
        let Some(fewer) = left.checked_sub(1) else { return false };
        *left = fewer;
        let slots = self.ring.slots as u64;
        for i in 0..slots {
            let position = self.position.wrapping_add(i);
            self.ring.slot(position).sequence.store(position, Release);
        }
        let header = self.ring.header();
        header.head.store(self.position, Release);
        add(&header.torn, 1);
        self.waiting = None;
        true
    }
}

/// Only the consumer writes these counts.
fn add(count: &AtomicU64, n: u64) {
    count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
}
