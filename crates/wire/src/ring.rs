//! The ring's algorithm over a piece of shared memory; no system calls, no clock, no allocation.
//!
//! Other processes write this memory at the same time, and may write anything. So it is touched
//! only through atomics, sizes are read once and checked against the length of the mapping, and
//! every loop has a bound of its own.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::layout::*;
use crate::record::{NameId, Record, decode_words, seal};
use crate::sync::AtomicU64;

/// How often a producer tries again when others take its slot, before it counts a loss.
const TRIES: usize = if cfg!(loom) { 4 } else { 1000 };
/// How many places a name may be away from where its hash points.
const PROBES: u32 = 64;

/// Why a piece of memory is not a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRing {
    /// Shorter than its header, or than its header says.
    Short {
        /// Bytes that there are.
        have: usize,
        /// Bytes that there should be.
        want: u64,
    },
    /// It does not begin with [`MAGIC`].
    Magic(u64),
    /// Made by another version.
    Version(u32),
    /// A size in the header that no ring has.
    Size {
        /// Which.
        what: &'static str,
        /// What it says.
        value: u64,
    },
}

impl fmt::Display for BadRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRing::Short { have, want } => write!(f, "{have} bytes where a ring needs {want}"),
            BadRing::Magic(found) => write!(f, "it begins with {found:#018x}, not as a ring"),
            BadRing::Version(found) => {
                write!(f, "it is a ring of version {found}, this program speaks {VERSION}")
            }
            BadRing::Size { what, value } => write!(f, "its header says {what} = {value}"),
        }
    }
}

impl core::error::Error for BadRing {}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The consumer will see it.
    Published,
    /// No slot was free; counted in `lost`.
    Full,
    /// The consumer had given up on the slot; counted in `late`.
    Late,
}

/// A ring in a piece of shared memory, as producers and the consumer see it.
#[derive(Clone, Copy, Debug)]
pub struct RawRing {
    base: NonNull<u8>,
    slots: u32,
    names: u32,
}

// SAFETY: all access through `base` is by atomics (see `header`, `slot` and `name`), which may be
// used from any thread; whoever made the ring promised that the memory outlives it.
unsafe impl Send for RawRing {}
// SAFETY: as above.
unsafe impl Sync for RawRing {}

impl RawRing {
    /// Makes a ring out of zeroed memory and opens it.
    ///
    /// # Errors
    /// [`BadRing`] for numbers of slots or names that are out of bounds or no powers of two, and
    /// for too little memory.
    ///
    /// # Safety
    /// As for [`RawRing::open`].
    pub unsafe fn init(
        base: NonNull<u8>,
        bytes: usize,
        slots: u32,
        names: u32,
        created: u64,
    ) -> Result<RawRing, BadRing> {
        sizes(slots, names)?;
        let want = total_bytes(slots, names);
        if bytes < want {
            return Err(BadRing::Short { have: bytes, want: want as u64 });
        }
        let ring = RawRing { base, slots, names };
        let header = ring.header();
        header.version.store(VERSION, Relaxed);
        header.slot_bytes.store(size_of::<Slot>() as u32, Relaxed);
        header.slots.store(slots, Relaxed);
        header.names.store(names, Relaxed);
        header.name_bytes.store(size_of::<NameEntry>() as u32, Relaxed);
        header.total_bytes.store(want as u64, Relaxed);
        header.created.store(created, Relaxed);
        for position in 0..slots as u64 {
            ring.slot(position).sequence.store(position, Relaxed);
        }
        header.magic.store(MAGIC, Release);
        Ok(ring)
    }

    /// Opens a ring that somebody made.
    ///
    /// # Errors
    /// [`BadRing`] for memory that is no ring of this version, or a piece of one.
    ///
    /// # Safety
    /// `base` is aligned to 64 bytes; `bytes` bytes from there are mapped readable and writable,
    /// and stay so for as long as the ring or a copy of it is used. Others may write the memory at
    /// the same time.
    pub unsafe fn open(base: NonNull<u8>, bytes: usize) -> Result<RawRing, BadRing> {
        if bytes < HEADER_BYTES {
            return Err(BadRing::Short { have: bytes, want: HEADER_BYTES as u64 });
        }
        let ring = RawRing { base, slots: MIN_SLOTS, names: MIN_NAMES };
        let header = ring.header();
        let magic = header.magic.load(Acquire);
        if magic != MAGIC {
            return Err(BadRing::Magic(magic));
        }
        let version = header.version.load(Relaxed);
        if version != VERSION {
            return Err(BadRing::Version(version));
        }
        // Read once: what is checked is what is used.
        let (slots, names) = (header.slots.load(Relaxed), header.names.load(Relaxed));
        sizes(slots, names)?;
        for (what, value, expected) in [
            ("slot_bytes", header.slot_bytes.load(Relaxed), size_of::<Slot>()),
            ("name_bytes", header.name_bytes.load(Relaxed), size_of::<NameEntry>()),
        ] {
            if value as usize != expected {
                return Err(BadRing::Size { what, value: value as u64 });
            }
        }
        let want = total_bytes(slots, names);
        if bytes < want {
            return Err(BadRing::Short { have: bytes, want: want as u64 });
        }
        Ok(RawRing { base, slots, names })
    }

    /// How many records the ring holds.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The header, for its counts.
    pub fn header(&self) -> &Header {
        // SAFETY: `open` and `init` checked that the mapping holds a header; any bytes are a valid
        // `Header`, which is all atomics and padding that nobody reads.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    fn slot(&self, position: u64) -> &Slot {
        let index = position as usize & (self.slots as usize - 1);
        let offset =
            HEADER_BYTES + self.names as usize * size_of::<NameEntry>() + index * size_of::<Slot>();
        // SAFETY: `index < slots` because slots is a power of two, and the mapping holds
        // `total_bytes(slots, names)` bytes; the offset is a multiple of 64; any bytes are a valid
        // `Slot`, which is all atomics.
        unsafe { self.base.add(offset).cast::<Slot>().as_ref() }
    }

    fn name_entry(&self, index: u32) -> &NameEntry {
        let index = (index & (self.names - 1)) as usize;
        let offset = HEADER_BYTES + index * size_of::<NameEntry>();
        // SAFETY: as in `slot`: `index < names`, and names is a power of two.
        unsafe { self.base.add(offset).cast::<NameEntry>().as_ref() }
    }

    /// Puts a record into the ring, or counts why not. Never waits.
    #[inline]
    pub fn push(&self, words: &mut [u64; RECORD_WORDS]) -> Pushed {
        match self.reserve() {
            Some(position) => self.publish(position, words),
            None => {
                self.header().lost.fetch_add(1, Relaxed);
                Pushed::Full
            }
        }
    }

    /// Reserves the next position, or `None` if the ring is full.
    #[inline]
    fn reserve(&self) -> Option<u64> {
        let head = &self.header().head;
        let mut position = head.load(Relaxed);
        for _ in 0..TRIES {
            let sequence = self.slot(position).sequence.load(Acquire);
            match sequence.wrapping_sub(position) as i64 {
                0 => match head.compare_exchange_weak(
                    position,
                    position.wrapping_add(1),
                    Relaxed,
                    Relaxed,
                ) {
                    Ok(_) => return Some(position),
                    Err(now) => position = now,
                },
                behind if behind < 0 => return None,
                _ => position = head.load(Relaxed),
            }
        }
        None
    }

    /// Writes and publishes a record at a position that this producer reserved.
    #[inline]
    fn publish(&self, position: u64, words: &mut [u64; RECORD_WORDS]) -> Pushed {
        seal(words, position);
        let slot = self.slot(position);
        for (to, from) in slot.words.iter().zip(words.iter()) {
            to.store(*from, Relaxed);
        }
        let mine =
            slot.sequence.compare_exchange(position, position.wrapping_add(1), Release, Relaxed);
        if mine.is_err() {
            self.header().late.fetch_add(1, Relaxed);
            return Pushed::Late;
        }
        Pushed::Published
    }

    /// The number of a name, which is added to the table if it is new. Text over [`NAME_BYTES`]
    /// is cut between characters. [`NameId`] 0, and a count, if there is no place.
    #[inline]
    pub fn intern(&self, name: &str) -> NameId {
        let name = cut(name);
        let mut text = [0u64; NAME_WORDS];
        let words = name.len().div_ceil(8);
        for (word, eight) in text.iter_mut().zip(name.as_bytes().chunks(8)) {
            let mut le = [0u8; 8];
            le[..eight.len()].copy_from_slice(eight);
            *word = u64::from_le_bytes(le);
        }
        let text = &text[..words];
        let hash = hash(text, name.len());
        let head = (hash as u64) << 32 | (name.len() as u64) << 8;
        for probe in 0..PROBES.min(self.names) {
            let index = hash.wrapping_add(probe) & (self.names - 1);
            let entry = self.name_entry(index);
            let mut state = entry.state.load(Acquire);
            if state == 0 {
                match entry.state.compare_exchange(0, head | NAME_CLAIMED, AcqRel, Acquire) {
                    Ok(_) => {
                        for (to, from) in entry.text.iter().zip(text) {
                            to.store(*from, Relaxed);
                        }
                        entry.state.store(head | NAME_READY, Release);
                        return NameId(index + 1);
                    }
                    Err(now) => state = now,
                }
            }
            // A name that is being written is passed over, even if it is this one: its writer
            // may be dead, and two numbers for one name do no harm.
            if state == head | NAME_READY
                && entry.text.iter().zip(text).all(|(have, want)| have.load(Relaxed) == *want)
            {
                return NameId(index + 1);
            }
        }
        self.header().names_lost.fetch_add(1, Relaxed);
        NameId(0)
    }

    /// Copies the text of a name into `buffer` and says how long it is; `None` for a number that
    /// is not, not yet or not rightly in the table.
    pub fn name(&self, id: NameId, buffer: &mut [u8; NAME_BYTES]) -> Option<usize> {
        let index = id.0.checked_sub(1)?;
        if index >= self.names {
            return None;
        }
        let entry = self.name_entry(index);
        let state = entry.state.load(Acquire);
        let bytes = (state >> 8 & 0xff_ffff) as usize;
        if state & 0xff != NAME_READY || bytes > NAME_BYTES {
            return None;
        }
        let mut text = [0u64; NAME_WORDS];
        for (to, from) in text.iter_mut().zip(&entry.text) {
            *to = from.load(Relaxed);
        }
        for (eight, word) in buffer.chunks_exact_mut(8).zip(&text) {
            eight.copy_from_slice(&word.to_le_bytes());
        }
        (hash(&text[..bytes.div_ceil(8)], bytes) == (state >> 32) as u32).then_some(bytes)
    }

    /// The number of places in the name table.
    pub fn names(&self) -> u32 {
        self.names
    }
}

fn sizes(slots: u32, names: u32) -> Result<(), BadRing> {
    if !slots.is_power_of_two() || !(MIN_SLOTS..=MAX_SLOTS).contains(&slots) {
        return Err(BadRing::Size { what: "slots", value: slots as u64 });
    }
    if !names.is_power_of_two() || !(MIN_NAMES..=MAX_NAMES).contains(&names) {
        return Err(BadRing::Size { what: "names", value: names as u64 });
    }
    Ok(())
}

fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// What a look at the ring's tail found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Taken {
    /// A whole record.
    Record(Record),
    /// A slot with something else than a record; it is free again.
    Torn,
    /// A slot whose producer did not come back in time; it is free again.
    Abandoned,
    /// A reserved slot whose producer still has time, and records may wait behind it.
    Waiting,
    /// Nothing.
    Empty,
}

/// The consumer's side. There must be one for a ring; its position lies in the ring, so that
/// another one can go on after it.
#[derive(Debug)]
pub struct Tail {
    ring: RawRing,
    position: u64,
    patience: u64,
    /// Positions below the first have been reserved since the second, at least.
    waiting: Option<(u64, u64)>,
}

impl Tail {
    /// Goes on where the last consumer of this ring left off. A slot may stay reserved for
    /// `patience` ns before it is abandoned.
    pub fn new(ring: RawRing, patience: u64) -> Tail {
        let slots = ring.slots as u64;
        let mut tail =
            Tail { ring, position: ring.header().tail.load(Acquire), patience, waiting: None };
        // The last consumer may have died after it freed a slot and before it said so.
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

    /// Takes what lies at the tail. `now` is any clock of ns that does not go back.
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
            self.repair();
            return Taken::Torn;
        }
        if sequence != position {
            // Neither free, reserved nor published here: overwritten. If the head stands here,
            // producers could not pass; so the slot is made free at this position, else freed.
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

    /// Records that found no free slot since a consumer last asked, and records that came late.
    pub fn lost(&mut self) -> u64 {
        let header = self.ring.header();
        let lost = header.lost.load(Relaxed);
        let told = header.lost_told.load(Relaxed);
        header.lost_told.store(lost, Relaxed);
        // A count that went back was overwritten; then nothing is known.
        lost.saturating_sub(told)
    }

    /// The next position to be looked at.
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

    /// Makes an overwritten ring usable again: empty, from the consumer's position on.
    fn repair(&mut self) {
        let slots = self.ring.slots as u64;
        for i in 0..slots {
            let position = self.position.wrapping_add(i);
            self.ring.slot(position).sequence.store(position, Release);
        }
        let header = self.ring.header();
        header.head.store(self.position, Release);
        add(&header.torn, 1);
        self.waiting = None;
    }
}

/// Only the consumer writes these counts.
fn add(count: &AtomicU64, n: u64) {
    count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Event, encode};

    const PATIENCE: u64 = 100;

    /// A ring of 4 slots and 4 names in memory of its own, which is leaked: it is small.
    fn ring() -> RawRing {
        #[repr(align(64))]
        struct Memory([u8; total_bytes(4, 4)]);
        let memory = Box::leak(Box::new(Memory([0; total_bytes(4, 4)])));
        // SAFETY: aligned, of this length, and never freed.
        unsafe {
            RawRing::init(NonNull::from(&mut memory.0).cast(), total_bytes(4, 4), 4, 4, 0).unwrap()
        }
    }

    fn mark(at: u64) -> [u64; RECORD_WORDS] {
        let event = Event::Mark { name: NameId(0), at, value: None };
        encode(&Record { pid: 1, tid: 1, event })
    }

    /// What a consumer sees at `now`: marks by their time, `!` torn, `x` abandoned, `~` waiting.
    fn look(tail: &mut Tail, now: u64) -> String {
        let mut seen = Vec::new();
        for _ in 0..tail.ring.slots {
            seen.push(match tail.take(now) {
                Taken::Record(Record { event: Event::Mark { at, .. }, .. }) => at.to_string(),
                Taken::Record(_) => "?".to_string(),
                Taken::Torn => "!".to_string(),
                Taken::Abandoned => "x".to_string(),
                Taken::Waiting => {
                    seen.push("~".to_string());
                    break;
                }
                Taken::Empty => break,
            });
        }
        seen.join(" ")
    }

    fn push(ring: &RawRing, at: u64) -> Pushed {
        ring.push(&mut mark(at))
    }

    #[test]
    fn a_full_ring_counts_and_goes_on() {
        let ring = ring();
        let mut tail = Tail::new(ring, PATIENCE);
        let pushed: Vec<_> = (0..6).map(|at| push(&ring, at)).collect();
        assert_eq!(pushed[3..], [Pushed::Published, Pushed::Full, Pushed::Full]);
        assert_eq!(look(&mut tail, 0), "0 1 2 3");
        assert_eq!((tail.lost(), tail.lost()), (2, 0));
        push(&ring, 6);
        assert_eq!(look(&mut tail, 0), "6");
    }

    #[test]
    fn slots_of_dead_producers_are_waited_for_once() {
        let ring = ring();
        let mut tail = Tail::new(ring, PATIENCE);
        push(&ring, 0);
        ring.reserve().unwrap();
        push(&ring, 2);
        ring.reserve().unwrap();
        assert_eq!(look(&mut tail, 1000), "0 ~");
        assert_eq!(look(&mut tail, 1099), "~");
        assert_eq!(look(&mut tail, 1100), "x 2 x");
        push(&ring, 4);
        assert_eq!(look(&mut tail, 1101), "4");
    }

    #[test]
    fn a_slot_that_was_reserved_later_has_time_of_its_own() {
        let ring = ring();
        let mut tail = Tail::new(ring, PATIENCE);
        ring.reserve().unwrap();
        assert_eq!(look(&mut tail, 1000), "~");
        let later = ring.reserve().unwrap();
        assert_eq!(look(&mut tail, 1100), "x ~");
        assert_eq!(ring.publish(later, &mut mark(7)), Pushed::Published);
        assert_eq!(look(&mut tail, 1101), "7");
    }

    #[test]
    fn a_producer_that_comes_back_late_is_refused() {
        let ring = ring();
        let mut tail = Tail::new(ring, PATIENCE);
        let stopped = ring.reserve().unwrap();
        assert_eq!(look(&mut tail, 0), "~");
        assert_eq!(look(&mut tail, 100), "x");
        assert_eq!(ring.publish(stopped, &mut mark(9)), Pushed::Late);
        assert_eq!(look(&mut tail, 200), "");
        assert_eq!(ring.header().late.load(Relaxed), 1);
        push(&ring, 1);
        assert_eq!(look(&mut tail, 200), "1");
    }

    #[test]
    fn a_late_producer_that_writes_over_another_lap_is_seen_as_torn() {
        let ring = ring();
        let mut tail = Tail::new(ring, PATIENCE);
        let stopped = ring.reserve().unwrap();
        look(&mut tail, 0);
        look(&mut tail, 100);
        for at in 1..5 {
            push(&ring, at);
        }
        // A whole record, but of the lap before.
        assert_eq!(ring.publish(stopped, &mut mark(9)), Pushed::Late);
        assert_eq!(look(&mut tail, 200), "1 2 3 !");
        // A part of a record.
        push(&ring, 5);
        ring.slot(5).words[3].store(77, Relaxed);
        assert_eq!(look(&mut tail, 200), "!");
    }

    #[test]
    fn a_new_consumer_goes_on_where_the_last_one_left_off() {
        let ring = ring();
        let mut first = Tail::new(ring, PATIENCE);
        for at in 0..3 {
            push(&ring, at);
        }
        first.take(0);
        assert_eq!(look(&mut Tail::new(ring, PATIENCE), 0), "1 2");
    }

    #[test]
    fn a_consumer_that_died_after_freeing_a_slot_delays_nobody() {
        let ring = ring();
        for at in 0..3 {
            push(&ring, at);
        }
        let mut first = Tail::new(ring, PATIENCE);
        first.take(0);
        first.take(0);
        ring.header().tail.store(1, Relaxed);
        push(&ring, 3);
        push(&ring, 4);
        let mut second = Tail::new(ring, PATIENCE);
        assert_eq!(second.position(), 2);
        assert_eq!(look(&mut second, 0), "2 3 4");
    }

    #[test]
    fn names_are_kept_once_and_their_table_has_an_end() {
        let ring = ring();
        let step = ring.intern("step");
        assert_eq!(ring.intern("step"), step);
        let mut buffer = [0; NAME_BYTES];
        assert_eq!(ring.name(step, &mut buffer), Some(4));
        assert_eq!(&buffer[..4], b"step");
        let ids: Vec<_> = ["a", "b", "c", "d"].map(|n| ring.intern(n)).to_vec();
        assert_eq!(ids.iter().filter(|id| id.0 == 0).count(), 1);
        assert_eq!(ring.header().names_lost.load(Relaxed), 1);
        assert_eq!(ring.intern("step"), step);
        for nobody in [0, 5, u32::MAX] {
            assert_eq!(ring.name(NameId(nobody), &mut buffer), None);
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let ring = ring();
        let id = ring.intern(&"\u{20ac}".repeat(50));
        let mut buffer = [0; NAME_BYTES];
        let bytes = ring.name(id, &mut buffer).unwrap();
        assert_eq!(std::str::from_utf8(&buffer[..bytes]), Ok("\u{20ac}".repeat(40).as_str()));
    }

    #[test]
    fn a_name_whose_writer_died_is_passed_over() {
        let ring = ring();
        let text = u64::from_le_bytes(*b"step\0\0\0\0");
        let hash = hash(&[text], 4);
        let entry = ring.name_entry(hash & 3);
        entry.state.store((hash as u64) << 32 | 4 << 8 | NAME_CLAIMED, Relaxed);
        let id = ring.intern("step");
        assert_ne!(id, NameId((hash & 3) + 1));
        let mut buffer = [0; NAME_BYTES];
        assert_eq!(ring.name(NameId((hash & 3) + 1), &mut buffer), None);
        assert_eq!(ring.name(id, &mut buffer), Some(4));
    }

    proptest! {
        /// Whatever lies in the memory, a consumer looks at no more slots than there are, and then
        /// the ring works again.
        #[test]
        fn an_overwritten_ring_is_survived_and_repaired(
            slots in prop::collection::vec(prop_oneof![0u64..12, any::<u64>()], 32),
            head in prop_oneof![0u64..12, any::<u64>()],
            start in prop_oneof![0u64..12, any::<u64>()],
            names in prop::collection::vec(any::<u64>(), 64),
        ) {
            let ring = ring();
            for (i, words) in slots.chunks(8).enumerate() {
                let slot = ring.slot(i as u64);
                slot.sequence.store(words[0], Relaxed);
                for (to, from) in slot.words.iter().zip(&words[1..]) {
                    to.store(*from, Relaxed);
                }
            }
            for (i, words) in names.chunks(16).enumerate() {
                let entry = ring.name_entry(i as u32);
                entry.state.store(words[0], Relaxed);
                for (to, from) in entry.text.iter().zip(&words[1..]) {
                    to.store(*from, Relaxed);
                }
            }
            ring.header().head.store(head, Relaxed);
            ring.header().tail.store(start, Relaxed);

            push(&ring, 1);
            ring.intern("step");
            let mut buffer = [0; NAME_BYTES];
            for id in 0..6 {
                ring.name(NameId(id), &mut buffer);
            }
            let mut tail = Tail::new(ring, PATIENCE);
            let mut now = 0;
            // A slot is repaired when the consumer comes to it: within a lap.
            for at in 0..16 {
                look(&mut tail, now);
                now += PATIENCE;
                push(&ring, at);
            }
            look(&mut tail, now);
            prop_assert_eq!(tail.take(now), Taken::Empty);
            for at in 0..12 {
                prop_assert_eq!(push(&ring, at), Pushed::Published);
                prop_assert_eq!(look(&mut tail, now), at.to_string());
            }
        }

        /// A header of any bytes is opened only if all of the ring lies within the memory.
        #[test]
        fn a_header_is_believed_only_within_the_memory(
            slots: u32, names: u32, slot_bytes in 0u32..128, version in 0u32..3, short: bool,
        ) {
            let ring = ring();
            let header = ring.header();
            header.slots.store(slots, Relaxed);
            header.names.store(names, Relaxed);
            header.slot_bytes.store(slot_bytes, Relaxed);
            header.version.store(version, Relaxed);
            let bytes = total_bytes(4, 4) - short as usize;
            // SAFETY: `ring` leaked this memory, of at least this length.
            if let Ok(opened) = unsafe { RawRing::open(ring.base, bytes) } {
                prop_assert!(total_bytes(opened.slots, opened.names) <= bytes);
            }
        }
    }
}
