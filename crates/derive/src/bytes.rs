//! Partial results as bytes, as they pass between processes.
//!
//! Whole numbers only, in LEB128; signed ones in zigzag. Reading trusts no length: each is checked
//! against the bytes that are left.

use std::fmt;

/// Bytes that are not those of a partial result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The byte at which that shows.
    pub at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} is not what a part of a result has there", self.at)
    }
}

impl std::error::Error for Malformed {}

/// A partial result: written as bytes by one process, read and merged by another.
pub trait Partial: Sized {
    /// Writes it at the end of `out`.
    fn write(&self, out: &mut Vec<u8>);
    /// Reads it.
    ///
    /// # Errors
    /// The bytes are not those of one.
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// Its bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    /// Reads it from these bytes, of which none may be left.
    ///
    /// # Errors
    /// They are not the bytes of one.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader { bytes, at: 0 };
        let part = Self::read(&mut from)?;
        if from.at == bytes.len() { Ok(part) } else { Err(from.malformed()) }
    }
}

/// Appends a whole number.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed one.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, (value.wrapping_shl(1) ^ (value >> 63)) as u64);
}

/// Bytes, and how far they are read.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// That what was read last is wrong.
    pub(crate) fn malformed(&self) -> Malformed {
        Malformed { at: self.at }
    }

    /// A whole number.
    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(self.malformed())?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(self.malformed());
            }
            self.at += 1;
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    /// A signed one.
    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A whole number that is not greater than `most`.
    pub(crate) fn count_up_to(&mut self, most: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.number()?).ok().filter(|count| *count <= most);
        count.ok_or(self.malformed())
    }

    /// How many there are of what takes at least `each` bytes.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.number()?).map_err(|_| self.malformed())?;
        let left = (self.bytes.len() - self.at) / each.max(1);
        if count <= left { Ok(count) } else { Err(self.malformed()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct One(u64, i64);

    impl Partial for One {
        fn write(&self, out: &mut Vec<u8>) {
            put(out, self.0);
            put_signed(out, self.1);
        }
        fn read(from: &mut Reader<'_>) -> Result<One, Malformed> {
            Ok(One(from.number()?, from.signed()?))
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back(a in any::<u64>(), b in any::<i64>()) {
            let back = One::from_bytes(&One(a, b).to_bytes()).unwrap();
            prop_assert_eq!((back.0, back.1), (a, b));
        }

        #[test]
        fn nothing_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = One::from_bytes(&bytes);
        }
    }

    #[test]
    fn what_is_cut_too_long_or_followed_by_more_is_refused_with_its_place() {
        let at = |bytes: &[u8]| One::from_bytes(bytes).map(|_| ()).unwrap_err().at;
        assert_eq!(at(&[0x80]), 1);
        assert_eq!(at(&[0xff; 12]), 9);
        assert_eq!(at(&[1, 2, 3]), 2);
        assert_eq!(Reader { bytes: &[200, 1, 0], at: 0 }.count(1).unwrap_err().at, 2);
    }
}
