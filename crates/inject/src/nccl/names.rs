//! Names by small numbers of our own, so that recording an event reads an array where the ring would
//! look up a text.
//!
//! NCCL uses the same few dozen constants over and over. Each is kept once, for good, in a table of
//! fixed size, with its number in the current ring.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use gpuwhy_wire::NameId;

use super::outside::Sink;

/// The most names; further ones are recorded without a name.
const PLACES: usize = 512;
/// Longer names are cut.
pub const BYTES: usize = 64;
const WORDS: usize = BYTES / 8;
const PROBES: usize = 16;

const EMPTY: u32 = 0;
const CLAIMED: u32 = 1;
const READY: u32 = 2;

/// The number of a name; 0 is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalName(pub u16);

struct Place {
    /// State in the lowest bits, the text's length above, the hash's upper half on top.
    state: AtomicU32,
    text: [AtomicU64; WORDS],
    /// Low half: its number in a ring. High half: that ring's generation, 0 for no ring.
    ring: AtomicU64,
}

/// The table.
pub struct Names {
    places: [Place; PLACES],
}

impl Names {
    /// A table without names.
    pub const fn new() -> Names {
        Names {
            places: [const {
                Place {
                    state: AtomicU32::new(0),
                    text: [const { AtomicU64::new(0) }; WORDS],
                    ring: AtomicU64::new(0),
                }
            }; PLACES],
        }
    }

    /// The number of a name, which is kept if it is new. 0 for an empty one, and if there is no
    /// place.
    pub fn id(&self, name: &[u8]) -> LocalName {
        let name = &name[..name.len().min(BYTES)];
        if name.is_empty() {
            return LocalName(0);
        }
        let mut text = [0u64; WORDS];
        let mut hash = name.len() as u64;
        for (word, eight) in text.iter_mut().zip(name.chunks(8)) {
            let mut le = [0u8; 8];
            le[..eight.len()].copy_from_slice(eight);
            *word = u64::from_le_bytes(le);
            hash = (hash ^ *word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        let used = name.len().div_ceil(8);
        let head = (hash >> 48 << 16) as u32 | (name.len() as u32) << 8;
        for probe in 0..PROBES {
            let index = (hash as usize).wrapping_add(probe) % PLACES;
            let place = &self.places[index];
            let mut state = place.state.load(Acquire);
            if state == EMPTY {
                match place.state.compare_exchange(EMPTY, CLAIMED, AcqRel, Acquire) {
                    Ok(_) => {
                        for (to, from) in place.text.iter().zip(text) {
                            to.store(from, Relaxed);
                        }
                        place.state.store(head | READY, Release);
                        return LocalName(index as u16 + 1);
                    }
                    Err(now) => state = now,
                }
            }
            // A name that is being written is passed over: two numbers for one name do no harm.
            let same = |(have, want): (&AtomicU64, &u64)| have.load(Relaxed) == *want;
            if state == head | READY && place.text.iter().zip(&text).take(used).all(same) {
                return LocalName(index as u16 + 1);
            }
        }
        LocalName(0)
    }

    /// The number of the name `parts` joined, cut at [`BYTES`].
    pub fn joined(&self, parts: &[&[u8]]) -> LocalName {
        let (mut buffer, mut used) = ([0u8; BYTES], 0);
        for part in parts {
            let take = part.len().min(BYTES - used);
            buffer[used..used + take].copy_from_slice(&part[..take]);
            used += take;
        }
        self.id(&buffer[..used])
    }

    /// The name's number in the ring.
    pub fn in_ring(&self, id: LocalName, sink: &dyn Sink) -> NameId {
        let Some(place) = (id.0 as usize).checked_sub(1).and_then(|i| self.places.get(i)) else {
            return NameId(0);
        };
        let generation = sink.generation() as u32 as u64;
        let known = place.ring.load(Relaxed);
        if known >> 32 == generation && known != 0 {
            return NameId(known as u32);
        }
        let state = place.state.load(Acquire);
        if state & 0xff != READY {
            return NameId(0);
        }
        let mut text = [0u8; BYTES];
        for (to, from) in text.chunks_exact_mut(8).zip(&place.text) {
            to.copy_from_slice(&from.load(Relaxed).to_le_bytes());
        }
        let length = (state >> 8 & 0xff) as usize;
        let id = sink.name(lossless(&text[..length.min(BYTES)]));
        place.ring.store(generation << 32 | id.0 as u64, Relaxed);
        id
    }
}

/// The longest beginning that is text.
fn lossless(bytes: &[u8]) -> &str {
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => core::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number_and_a_full_table_gives_none() {
        let names = Box::new(Names::new());
        let a = names.id(b"AllReduce");
        assert_ne!(a.0, 0);
        assert_eq!(names.id(b"AllReduce"), a);
        assert_eq!(names.joined(&[b"All", b"Reduce"]), a);
        assert_ne!(names.id(b"AllReduc"), a);
        assert_eq!(names.id(b"").0, 0);
        let long = [b'x'; 200];
        assert_eq!(names.id(&long), names.id(&long[..BYTES]));
        let none = (0..5_000u32).filter(|i| names.id(&i.to_le_bytes()).0 == 0).count();
        assert!((4_400..5_000).contains(&none), "{none}");
        assert_eq!(names.id(b"AllReduce"), a);
    }
}
