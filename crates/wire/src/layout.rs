//! The bytes of a ring, shared with `include/gpuwhy.h`; `tests/layout.txt` is the golden text.
//!
//! One file or memfd: a [`Header`] page, then the name table, then the slots. All words are little
//! endian, as on every machine that this runs on.

use core::mem::size_of;

use crate::sync::{AtomicU32, AtomicU64};

/// The first eight bytes of a ring.
pub const MAGIC: u64 = u64::from_le_bytes(*b"GPUWHYRG");
/// The layout's version, which also tells which kinds of record there are; a ring of another version
/// is refused.
pub const VERSION: u32 = 2;
/// Bytes before the name table.
pub const HEADER_BYTES: usize = 4096;
/// 64-bit words of a record.
pub const RECORD_WORDS: usize = 7;
/// Bytes of a record.
pub const RECORD_BYTES: usize = RECORD_WORDS * 8;
/// 64-bit words of a name's text.
pub const NAME_WORDS: usize = 15;
/// Bytes of a name's text; longer names are cut.
pub const NAME_BYTES: usize = NAME_WORDS * 8;
/// The fewest slots of a ring.
pub const MIN_SLOTS: u32 = 2;
/// The most slots of a ring: 256 MiB.
pub const MAX_SLOTS: u32 = 1 << 22;
/// The fewest places for names.
pub const MIN_NAMES: u32 = 2;
/// The most places for names: 8 MiB.
pub const MAX_NAMES: u32 = 1 << 16;

/// The first page. What producers write and what the consumer writes lie on cache lines of their
/// own.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`], written last by the creator.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Size of a [`Slot`].
    pub slot_bytes: AtomicU32,
    /// Number of slots, a power of two.
    pub slots: AtomicU32,
    /// Number of places for names, a power of two.
    pub names: AtomicU32,
    /// Size of a [`NameEntry`].
    pub name_bytes: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Size of the whole ring.
    pub total_bytes: AtomicU64,
    /// When it was made, CLOCK_MONOTONIC ns.
    pub created: AtomicU64,
    _pad0: [u64; 10],
    /// The next position that a producer will reserve.
    pub head: AtomicU64,
    _pad1: [u64; 7],
    /// Records that found no free slot.
    pub lost: AtomicU64,
    /// Records whose producer came back after the consumer had abandoned their slot.
    pub late: AtomicU64,
    /// Names that found no place; their records are named by number 0.
    pub names_lost: AtomicU64,
    _pad2: [u64; 5],
    /// The next position that the consumer will look at.
    pub tail: AtomicU64,
    /// The part of `lost` that a consumer has already reported.
    pub lost_reported: AtomicU64,
    /// Records delivered since the ring was made.
    pub records: AtomicU64,
    /// Slots that held no whole record.
    pub torn: AtomicU64,
    /// Slots that were reserved but not published in time.
    pub abandoned: AtomicU64,
    _pad3: [u64; 3],
}

/// A place for one record.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// Whether it is free or published, and for which position; see the crate's documentation.
    pub sequence: AtomicU64,
    /// The record.
    pub words: [AtomicU64; RECORD_WORDS],
}

/// A place for one name: written once, never changed.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct NameEntry {
    /// 0 is free; else `hash << 32 | bytes << 8 | state`.
    pub state: AtomicU64,
    /// The text in UTF-8, padded by zeros.
    pub text: [AtomicU64; NAME_WORDS],
}

/// State of a name that is being written.
pub const NAME_CLAIMED: u64 = 1;
/// State of a name that can be read.
pub const NAME_READY: u64 = 2;

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);
// Under loom an atomic is a name for its history, of another size.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 64 && size_of::<NameEntry>() == 128);

/// Bytes of a ring with this many slots and names.
pub const fn total_bytes(slots: u32, names: u32) -> usize {
    HEADER_BYTES + names as usize * size_of::<NameEntry>() + slots as usize * size_of::<Slot>()
}

/// Odd constants, one for each word: the fractional digits of pi, so that they are above suspicion.
const MULTIPLIERS: [u64; RECORD_WORDS + 1] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6d,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
];

/// The checksum of a record at a position; the low 32 bits of word 0, where it is kept, do not
/// count.
///
/// A multilinear sum, whose products can be computed in parallel: a change of one word always changes the
/// sum, and a mixture of two records passes once in 2^32.
pub fn check(words: &[u64; RECORD_WORDS], position: u64) -> u32 {
    let mut sum = position.wrapping_mul(MULTIPLIERS[RECORD_WORDS]);
    sum = sum.wrapping_add((words[0] >> 32).wrapping_mul(MULTIPLIERS[0]));
    let mut i = 1;
    while i < RECORD_WORDS {
        sum = sum.wrapping_add(words[i].wrapping_mul(MULTIPLIERS[i]));
        i += 1;
    }
    mix(sum)
}

/// The hash of a name's text, padded by zeros.
pub fn hash(text: &[u64], bytes: usize) -> u32 {
    let mut sum = (bytes as u64).wrapping_mul(MULTIPLIERS[0]);
    for word in text {
        sum = (sum ^ word).wrapping_mul(MULTIPLIERS[1]);
        sum ^= sum >> 32;
    }
    mix(sum)
}

fn mix(sum: u64) -> u32 {
    ((sum ^ (sum >> 29)).wrapping_mul(MULTIPLIERS[5]) >> 32) as u32
}
