//! Looks over the Thrift in a Parquet file before the Parquet reader does.
//!
//! The reader skips what it does not know, and believes what that says of its own length: a list
//! of 2^31 booleans takes no bytes and so never ends, and lists within lists make it longer than
//! the age of the world (found by the fuzz target `parquet_reader`, in parquet 59.3.2). Here
//! everything takes at least one byte, so the time is bounded by the length.

/// What a page header says, as far as it matters to who wants to be safe from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub uncompressed: i64,
    pub compressed: i64,
    pub encoding: Option<i64>,
    /// How long it is itself.
    pub length: usize,
}

/// Why a stretch of bytes is not sound Thrift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// It may go on behind what we were given.
    CutOff,
    /// It is not.
    Unsound(&'static str),
}

const MAX_DEPTH: usize = 24;
const BOOLS: [u8; 2] = [1, 2];

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The integers of the outer structure and of the structures directly in it, by the number
    /// of the field in the outer one and in the inner one (0 for its own).
    found: Vec<(i64, i64, i64)>,
}

/// Goes over a footer, which is one structure.
pub(crate) fn check_footer(bytes: &[u8]) -> Result<(), Bad> {
    let mut walk = Walk { bytes, at: 0, found: Vec::new() };
    walk.structure(0, 0)
}

/// Reads the page header that begins with `bytes`.
pub(crate) fn page_header(bytes: &[u8]) -> Result<PageHeader, Bad> {
    let mut walk = Walk { bytes, at: 0, found: Vec::new() };
    walk.structure(0, 0)?;
    let find = |outer, inner| {
        walk.found.iter().find(|(o, i, _)| (*o, *i) == (outer, inner)).map(|(_, _, value)| *value)
    };
    let size = |field| {
        find(field, 0)
            .filter(|size| (0..=i64::from(i32::MAX)).contains(size))
            .ok_or(Bad::Unsound("a page header without a size"))
    };
    Ok(PageHeader {
        uncompressed: size(2)?,
        compressed: size(3)?,
        // data_page_header.encoding, data_page_header_v2.encoding
        encoding: find(5, 2).or(find(8, 4)),
        length: walk.at,
    })
}

impl Walk<'_> {
    fn byte(&mut self) -> Result<u8, Bad> {
        let byte = *self.bytes.get(self.at).ok_or(Bad::CutOff)?;
        self.at += 1;
        Ok(byte)
    }

    fn skip(&mut self, n: u64) -> Result<(), Bad> {
        let n = usize::try_from(n).map_err(|_| Bad::CutOff)?;
        let to = self.at.checked_add(n).filter(|to| *to <= self.bytes.len());
        self.at = to.ok_or(Bad::CutOff)?;
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, Bad> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Bad::Unsound("an integer of more than ten bytes"))
    }

    fn zigzag(&mut self) -> Result<i64, Bad> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn structure(&mut self, depth: usize, outer: i64) -> Result<(), Bad> {
        if depth > MAX_DEPTH {
            return Err(Bad::Unsound("structures within structures without end"));
        }
        let mut field = 0i64;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Ok(());
            }
            field = match header >> 4 {
                0 => self.zigzag()?,
                delta => field.saturating_add(i64::from(delta)),
            };
            match header & 0xf {
                4..=6 if depth < 2 => {
                    let value = self.zigzag()?;
                    let place = if depth == 0 { (field, 0) } else { (outer, field) };
                    self.found.push((place.0, place.1, value));
                }
                12 => self.structure(depth + 1, field)?,
                kind => self.value(kind, depth)?,
            }
            if self.found.len() > 64 {
                // A footer; nobody will ask for these.
                self.found.truncate(64);
            }
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<(), Bad> {
        match kind {
            kind if BOOLS.contains(&kind) => Ok(()),
            3 => self.skip(1),
            4..=6 => self.varint().map(drop),
            7 => self.skip(8),
            8 => {
                let length = self.varint()?;
                self.skip(length)
            }
            9 | 10 => {
                let header = self.byte()?;
                let count = match header >> 4 {
                    15 => self.varint()?,
                    count => u64::from(count),
                };
                self.elements(count, &[header & 0xf], depth)
            }
            11 => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                self.elements(count, &[kinds >> 4, kinds & 0xf], depth)
            }
            12 => self.structure(depth + 1, -1),
            _ => Err(Bad::Unsound("a type that Thrift does not have")),
        }
    }

    fn elements(&mut self, count: u64, kinds: &[u8], depth: usize) -> Result<(), Bad> {
        if count > 0 && kinds.iter().any(|kind| BOOLS.contains(kind)) {
            return Err(Bad::Unsound("a list of booleans, which no Parquet file has there"));
        }
        if depth > MAX_DEPTH {
            return Err(Bad::Unsound("lists within lists without end"));
        }
        for _ in 0..count {
            for &kind in kinds {
                self.value(kind, depth + 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_header_says_how_long_it_and_its_page_are() {
        // type 0, uncompressed 100, compressed 50, data_page_header { 5 values, encoding 0 }, end;
        // then the page.
        let bytes = [0x15, 0, 0x15, 200, 1, 0x15, 100, 0x2c, 0x15, 10, 0x15, 0, 0, 0, 7, 7, 7];
        let header = page_header(&bytes).unwrap();
        let expected =
            PageHeader { uncompressed: 100, compressed: 50, encoding: Some(0), length: 14 };
        assert_eq!(header, expected);
        for cut in 0..14 {
            assert_eq!(page_header(&bytes[..cut]), Err(Bad::CutOff), "{cut}");
        }
    }

    #[test]
    fn a_list_that_takes_no_bytes_is_refused_before_it_is_counted() {
        let bools = [0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07, 0];
        assert!(matches!(check_footer(&bools), Err(Bad::Unsound(_))));
        let nested = vec![0x1c; 1 << 20];
        assert!(matches!(check_footer(&nested), Err(Bad::Unsound(_))));
        let lists = vec![0x19; 1 << 20];
        assert!(matches!(check_footer(&lists), Err(Bad::Unsound(_))));
    }
}
