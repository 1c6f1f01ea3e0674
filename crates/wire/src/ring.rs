//! The ring's algorithm over a piece of shared memory; no system calls, no clock, no allocation.
//!
//! Other processes write this memory at the same time, and may write anything. So it is accessed only
//! through atomics, sizes are read once and checked against the length of the mapping, and every loop
//! has a bound of its own.

mod tail;

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::layout::*;
use crate::record::{NameId, seal};
pub use tail::{Lost, Tail, Taken};

/// How often a producer tries again when others take its slot, before it counts the record as lost.
const TRIES: usize = if cfg!(loom) { 4 } else { 1000 };
/// How many places after the one that its hash selects a name may lie.
const PROBES: u32 = 64;

/// Why memory is not a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRing {
    /// Shorter than its header, or than its header says.
    Short {
        /// Bytes that there are.
        have: usize,
        /// Bytes that the ring needs.
        want: u64,
    },
    /// It does not begin with [`MAGIC`].
    Magic(u64),
    /// Made by another version.
    Version(u32),
    /// An invalid size in the header.
    Size {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
}

impl fmt::Display for BadRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRing::Short { have, want } => {
                write!(f, "it has {have} bytes, but the ring needs {want}")
            }
            BadRing::Magic(found) => write!(f, "it begins with {found:#018x} and not as a ring"),
            BadRing::Version(found) => {
                write!(
                    f,
                    "it is a ring of version {found}, this program needs {VERSION}: use the same \
                     version of gpuwhy on both sides"
                )
            }
            BadRing::Size { what, value } => {
                write!(f, "its header has the invalid size {what} = {value}")
            }
        }
    }
}

impl core::error::Error for BadRing {}

/// What happened to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The consumer will see it.
    Published,
    /// No slot was free; counted in `lost`.
    Full,
    /// The consumer had given up the slot; counted in `late`.
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
// used from any thread; the caller of `init` or `open` promised that the memory outlives it.
unsafe impl Send for RawRing {}
// SAFETY: as above.
unsafe impl Sync for RawRing {}

impl RawRing {
    /// Makes a ring out of zeroed memory and opens it.
    ///
    /// # Errors
    /// [`BadRing`] for numbers of slots or names that are out of bounds or not powers of two, and for too
    /// little memory.
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

    /// Opens a ring that exists.
    ///
    /// # Errors
    /// [`BadRing`] for memory that is not a ring of this version, or only a part of one.
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
        // `Header`, which is all atomics, and padding that is never read.
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

    /// Writes a record to the ring, or counts why it could not. Never waits.
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
            // A name that is being written is passed over, even if it is this one: its writer may be
            // dead, and two numbers for one name do no harm.
            if state == head | NAME_READY
                && entry.text.iter().zip(text).all(|(have, want)| have.load(Relaxed) == *want)
            {
                return NameId(index + 1);
            }
        }
        self.header().names_lost.fetch_add(1, Relaxed);
        NameId(0)
    }

    /// Copies the text of a name into `buffer` and returns its length; `None` for a number whose place in
    /// the table is empty, not finished or invalid.
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

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
