//! Records, and their 56 bytes.
//!
//! | bytes | place | what |
//! |---|---|---|
//! | 0..4 | | checksum |
//! | 4 | | kind |
//! | 5 | | flags: which of the places `Device`, `Extra`, `A`, `B` hold something, and `OnGpu` |
//! | 6..8 | `Device` | number of a device or communicator |
//! | 8..12 | `Name` | name |
//! | 12..16 | `Extra` | stream, rank, peer, step, request, or another name |
//! | 16..20 | | pid |
//! | 20..24 | | tid |
//! | 24..32 | `Start` | start, ns |
//! | 32..40 | `Dur` | duration, ns |
//! | 40..48 | `A`, or `A0` and `A1` | sequence number, correlation or value; two counts |
//! | 48..56 | `B`, or `B0` and `B1` | size, bytes or graph; two counts |
//!
//! Each kind of record is declared once, in `kinds.rs`, with the place of each of its fields.

mod fields;
mod kinds;

use core::fmt;

use crate::layout::{RECORD_BYTES, RECORD_WORDS, check};
use fields::Fields;
pub use kinds::Event;

/// A place in the ring's name table, from 1; 0 is a name that found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NameId(pub u32);

/// One record, with names as numbers ([`NameId`]) or as text (`&str`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record<N = NameId> {
    /// The process that wrote it, in that process's own pid namespace.
    pub pid: u32,
    /// The thread that wrote it, in that process's own pid namespace.
    pub tid: u32,
    /// What happened.
    pub event: Event<N>,
}

impl<N: Copy> Record<N> {
    /// The same record with its names looked up by `name`.
    pub fn named<M>(&self, name: impl FnMut(N) -> M) -> Record<M> {
        Record { pid: self.pid, tid: self.tid, event: self.event.named(name) }
    }
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecord {
    /// Not [`RECORD_BYTES`] bytes.
    Length(usize),
    /// The checksum does not fit the words and the position: torn, or of another lap.
    Checksum,
    /// There is no such kind of record.
    Kind(u8),
    /// A field that this kind needs is missing, or there is one that it cannot have.
    Flags {
        /// The kind.
        kind: u8,
        /// Its flags.
        flags: u8,
    },
    /// It ends after the year 2262.
    Time,
    /// Its value is infinite or not a number.
    Value,
    /// A number of ranks or of a name that has more than 32 bits.
    Number(u64),
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRecord::Length(n) => write!(f, "a record has {RECORD_BYTES} bytes, not {n}"),
            BadRecord::Checksum => {
                write!(f, "the checksum does not match the record at this position")
            }
            BadRecord::Kind(kind) => write!(f, "there is no kind of record {kind}"),
            BadRecord::Flags { kind, flags } => {
                write!(f, "a record of kind {kind} cannot have the flags {flags:#x}")
            }
            BadRecord::Time => write!(f, "its time does not fit 63 bits of nanoseconds"),
            BadRecord::Value => write!(f, "its value is not finite"),
            BadRecord::Number(n) => write!(f, "its number {n} does not fit 32 bits"),
        }
    }
}

impl core::error::Error for BadRecord {}

/// The words of a record, without a checksum.
///
/// Never fails; a value that is not finite is encoded, and refused by [`decode`].
#[inline]
pub fn encode(record: &Record) -> [u64; RECORD_WORDS] {
    record.event.encode().words(record.pid, record.tid)
}

/// Writes the checksum for this position into the words.
#[inline]
pub fn seal(words: &mut [u64; RECORD_WORDS], position: u64) {
    let sum = check(words, position);
    words[0] = words[0] & !0xffff_ffff | sum as u64;
}

/// Reads a record that was written at this position of a ring.
///
/// # Errors
/// [`BadRecord`]: any bytes that [`seal`] and [`encode`] would not have made of a record with
/// finite values and with times below 2^63.
pub fn decode(bytes: &[u8], position: u64) -> Result<Record, BadRecord> {
    if bytes.len() != RECORD_BYTES {
        return Err(BadRecord::Length(bytes.len()));
    }
    let mut words = [0u64; RECORD_WORDS];
    for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut le = [0u8; 8];
        le.copy_from_slice(eight);
        *word = u64::from_le_bytes(le);
    }
    decode_words(&words, position)
}

pub(crate) fn decode_words(
    words: &[u64; RECORD_WORDS],
    position: u64,
) -> Result<Record, BadRecord> {
    if words[0] as u32 != check(words, position) {
        return Err(BadRecord::Checksum);
    }
    let fields = Fields::of(words);
    let flags = Event::flags(fields.kind).ok_or(BadRecord::Kind(fields.kind))?;
    if !flags.allow(fields.flags) {
        return Err(BadRecord::Flags { kind: fields.kind, flags: fields.flags });
    }
    match fields.start.checked_add(fields.dur) {
        Some(end) if end <= i64::MAX as u64 => {}
        _ => return Err(BadRecord::Time),
    }
    let event = Event::decode(&fields)?;
    Ok(Record { pid: words[2] as u32, tid: (words[2] >> 32) as u32, event })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Events of all kinds.
    fn events() -> impl Strategy<Value = Event> {
        (0..Event::KINDS.len(), any::<[u64; 8]>()).prop_map(|(kind, numbers)| {
            let mut numbers = numbers.into_iter();
            Event::example(Event::KINDS[kind].0, || numbers.next().unwrap()).unwrap()
        })
    }

    fn bytes(words: &[u64; RECORD_WORDS]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    proptest! {
        #[test]
        fn a_record_comes_back_as_it_was_written(
            event in events(), pid: u32, tid: u32, position: u64,
        ) {
            let record = Record { pid, tid, event };
            let mut words = encode(&record);
            seal(&mut words, position);
            prop_assert_eq!(decode(&bytes(&words), position), Ok(record));
            prop_assert_eq!(decode(&bytes(&words), position + 64), Err(BadRecord::Checksum));
        }

        #[test]
        fn a_mixture_of_two_records_is_torn(
            a in events(), b in events(), position: u64, mixed in 1u8..127,
        ) {
            let (mut left, mut right) = (
                encode(&Record { pid: 1, tid: 1, event: a }),
                encode(&Record { pid: 1, tid: 1, event: b }),
            );
            seal(&mut left, position);
            seal(&mut right, position);
            let mut mixture = left;
            for i in 0..RECORD_WORDS {
                if mixed & 1 << i != 0 {
                    mixture[i] = right[i];
                }
            }
            prop_assume!(mixture != left && mixture != right);
            prop_assert_eq!(decode(&bytes(&mixture), position), Err(BadRecord::Checksum));
        }

        #[test]
        fn any_sealed_bytes_decode_to_what_encodes_to_them_or_to_an_error(
            mut words: [u64; RECORD_WORDS], kind in 0u8..24, flags in 0u8..32, position: u64,
        ) {
            words[0] = (kind as u64) << 32 | (flags as u64) << 40 | words[0] >> 48 << 48;
            words[3] >>= 1;
            words[4] >>= 2;
            seal(&mut words, position);
            if let Ok(record) = decode(&bytes(&words), position) {
                let mut again = encode(&record);
                seal(&mut again, position);
                prop_assert_eq!(decode(&bytes(&again), position), Ok(record));
            }
        }
    }

    fn refused(change: impl FnOnce(&mut [u64; RECORD_WORDS])) -> BadRecord {
        let event =
            Event::Counter { name: NameId(1), unit: NameId(2), device: None, at: 5, value: 1.0 };
        let mut words = encode(&Record { pid: 1, tid: 1, event });
        change(&mut words);
        seal(&mut words, 9);
        decode(&bytes(&words), 9).unwrap_err()
    }

    #[test]
    fn nonsense_is_refused_by_its_reason() {
        assert_eq!(decode(&[0; 55], 0), Err(BadRecord::Length(55)));
        assert_eq!(refused(|w| w[0] = 99 << 32), BadRecord::Kind(99));
        assert_eq!(refused(|w| w[0] = 0), BadRecord::Kind(0));
        assert_eq!(refused(|w| w[0] = 5 << 32), BadRecord::Flags { kind: 5, flags: 0 });
        assert_eq!(refused(|w| w[3] = u64::MAX), BadRecord::Time);
        assert_eq!(refused(|w| w[4] = i64::MAX as u64), BadRecord::Time);
        assert_eq!(refused(|w| w[5] = f64::NAN.to_bits()), BadRecord::Value);
    }
}
