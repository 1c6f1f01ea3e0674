//! Looks over the Thrift in a Parquet file before the Parquet reader does.
//!
//! The reader skips what it does not know, and believes what that says of its own length: a list
//! of 2^31 booleans takes no bytes and so never ends, and lists within lists make it longer than
//! the age of the world (found by the fuzz target `parquet_reader`, in parquet 59.3.2). Here
//! everything takes at least one byte, so the time is bounded by the length. What is known has the type
//! that the format gives it, once: else the reader would see other bytes as lists than this does.

/// What a page header says, as far as it matters to who wants to be safe from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageHeader {
    /// Bytes of the page when it is decompressed.
    pub uncompressed: i64,
    /// Bytes of the page in the file, after its header.
    pub compressed: i64,
    /// How the values are encoded: a number of Parquet's `Encoding`; `None` for dictionary and index pages.
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

/// What a field or an element is. The reader does not look at what a field that it knows says it is,
/// and would read the rest of the file as something else.
#[derive(Clone, Copy, Debug)]
enum Is {
    Bool,
    Byte,
    Int,
    Double,
    Binary,
    List(&'static Is),
    Structure(Known),
}
use Is::{Binary, Bool, Byte, Double, Int, List, Structure};

/// The fields of a structure that the reader knows; others it skips as what they say they are.
type Known = &'static [(i16, Is)];

// parquet-format's parquet.thrift, by the names that it has there.
const EMPTY: Is = Structure(&[]);
const STATISTICS: Is = Structure(&[
    (1, Binary),
    (2, Binary),
    (3, Int),
    (4, Int),
    (5, Binary),
    (6, Binary),
    (7, Bool),
    (8, Bool),
    (9, Int),
]);
const DATA_PAGE: Known = &[(1, Int), (2, Int), (3, Int), (4, Int), (5, STATISTICS)];
const DATA_PAGE_V2: Known =
    &[(1, Int), (2, Int), (3, Int), (4, Int), (5, Int), (6, Int), (7, Bool), (8, STATISTICS)];
const PAGE_HEADER: Known = &[
    (1, Int),
    (2, Int),
    (3, Int),
    (4, Int),
    (5, Structure(DATA_PAGE)),
    (6, EMPTY),
    (7, Structure(&[(1, Int), (2, Int), (3, Bool)])),
    (8, Structure(DATA_PAGE_V2)),
];
const TIME_UNIT: Is = Structure(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]);
const TIME: Is = Structure(&[(1, Bool), (2, TIME_UNIT)]);
const LOGICAL_TYPE: Is = Structure(&[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Structure(&[(1, Int), (2, Int)])),
    (6, EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Structure(&[(1, Byte), (2, Bool)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Structure(&[(1, Byte)])),
    (17, Structure(&[(1, Binary)])),
    (18, Structure(&[(1, Binary), (2, Int)])),
]);
const SCHEMA_ELEMENT: Is = Structure(&[
    (1, Int),
    (2, Int),
    (3, Int),
    (4, Binary),
    (5, Int),
    (6, Int),
    (7, Int),
    (8, Int),
    (9, Int),
    (10, LOGICAL_TYPE),
]);
const KEY_VALUE: Is = Structure(&[(1, Binary), (2, Binary)]);
const THREE_INTS: Is = Structure(&[(1, Int), (2, Int), (3, Int)]);
const SORTING_COLUMN: Is = Structure(&[(1, Int), (2, Bool), (3, Bool)]);
const SIZE_STATISTICS: Is = Structure(&[(1, Int), (2, List(&Int)), (3, List(&Int))]);
const BOUNDING_BOX: Is = Structure(&[
    (1, Double),
    (2, Double),
    (3, Double),
    (4, Double),
    (5, Double),
    (6, Double),
    (7, Double),
    (8, Double),
]);
const GEOSPATIAL_STATISTICS: Is = Structure(&[(1, BOUNDING_BOX), (2, List(&Int))]);
const COLUMN_META_DATA: Is = Structure(&[
    (1, Int),
    (2, List(&Int)),
    (3, List(&Binary)),
    (4, Int),
    (5, Int),
    (6, Int),
    (7, Int),
    (8, List(&KEY_VALUE)),
    (9, Int),
    (10, Int),
    (11, Int),
    (12, STATISTICS),
    (13, List(&THREE_INTS)),
    (14, Int),
    (15, Int),
    (16, SIZE_STATISTICS),
    (17, GEOSPATIAL_STATISTICS),
]);
const COLUMN_KEY: Is = Structure(&[(1, List(&Binary)), (2, Binary)]);
const COLUMN_CHUNK: Is = Structure(&[
    (1, Binary),
    (2, Int),
    (3, COLUMN_META_DATA),
    (4, Int),
    (5, Int),
    (6, Int),
    (7, Int),
    (8, Structure(&[(1, EMPTY), (2, COLUMN_KEY)])),
    (9, Binary),
]);
const ROW_GROUP: Is = Structure(&[
    (1, List(&COLUMN_CHUNK)),
    (2, Int),
    (3, Int),
    (4, List(&SORTING_COLUMN)),
    (5, Int),
    (6, Int),
    (7, Int),
]);
const AES: Is = Structure(&[(1, Binary), (2, Binary), (3, Bool)]);
const COLUMN_ORDER: Is = Structure(&[(1, EMPTY), (2, EMPTY)]);
const FILE_META_DATA: Known = &[
    (1, Int),
    (2, List(&SCHEMA_ELEMENT)),
    (3, Int),
    (4, List(&ROW_GROUP)),
    (5, List(&KEY_VALUE)),
    (6, Binary),
    (7, List(&COLUMN_ORDER)),
    (8, Structure(&[(1, AES), (2, AES)])),
    (9, Binary),
];

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The integers of the outer structure and of the structures directly in it, by the number
    /// of the field in the outer one and in the inner one (0 for its own).
    found: Vec<(i16, i16, i64)>,
}

/// Goes over a footer, which is one structure.
pub(crate) fn check_footer(bytes: &[u8]) -> Result<(), Bad> {
    let mut walk = Walk { bytes, at: 0, found: Vec::new() };
    walk.structure(Some(FILE_META_DATA), 0, 0)
}

/// Reads the page header that begins with `bytes`.
pub(crate) fn page_header(bytes: &[u8]) -> Result<PageHeader, Bad> {
    let mut walk = Walk { bytes, at: 0, found: Vec::new() };
    walk.structure(Some(PAGE_HEADER), 0, 0)?;
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

    /// A structure, which is the field `outer` of the one around it.
    fn structure(&mut self, known: Option<Known>, depth: usize, outer: i16) -> Result<(), Bad> {
        if depth > MAX_DEPTH {
            return Err(Bad::Unsound("structures within structures without end"));
        }
        let mut field = 0i16;
        let mut seen = 0u64;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Ok(());
            }
            let number = match header >> 4 {
                0 => self.zigzag()?,
                delta => i64::from(field) + i64::from(delta),
            };
            field = i16::try_from(number).map_err(|_| Bad::Unsound("a field of no such number"))?;
            let is = known.and_then(|k| k.iter().find(|(number, _)| *number == field)).map(|k| k.1);
            if is.is_some() {
                if seen & (1 << field) != 0 {
                    return Err(Bad::Unsound("a field that is there twice"));
                }
                seen |= 1 << field;
            }
            match (header & 0xf, is) {
                (4..=6, Some(Int)) if depth < 2 => {
                    let value = self.zigzag()?;
                    let place = if depth == 0 { (field, 0) } else { (outer, field) };
                    // Of a footer nobody asks for them.
                    if self.found.len() < 64 {
                        self.found.push((place.0, place.1, value));
                    }
                }
                (12, Some(Structure(known))) => self.structure(Some(known), depth + 1, field)?,
                (kind, is) => self.value(kind, is, depth)?,
            }
        }
    }

    fn value(&mut self, kind: u8, is: Option<Is>, depth: usize) -> Result<(), Bad> {
        let as_known = match is {
            None => true,
            Some(Bool) => BOOLS.contains(&kind),
            Some(Byte) => kind == 3,
            Some(Int) => (4..=6).contains(&kind),
            Some(Double) => kind == 7,
            Some(Binary) => kind == 8,
            Some(List(_)) => kind == 9,
            Some(Structure(_)) => kind == 12,
        };
        if !as_known {
            return Err(Bad::Unsound("a field of another type than Parquet gives it"));
        }
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
                let of = match is {
                    Some(List(of)) => Some(*of),
                    _ => None,
                };
                self.elements(count, &[header & 0xf], of, depth)
            }
            11 => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                self.elements(count, &[kinds >> 4, kinds & 0xf], None, depth)
            }
            12 => {
                let known = match is {
                    Some(Structure(known)) => Some(known),
                    _ => None,
                };
                self.structure(known, depth + 1, -1)
            }
            _ => Err(Bad::Unsound("a type that Thrift does not have")),
        }
    }

    fn elements(
        &mut self,
        count: u64,
        kinds: &[u8],
        of: Option<Is>,
        depth: usize,
    ) -> Result<(), Bad> {
        if count > 0 && kinds.iter().any(|kind| BOOLS.contains(kind)) {
            return Err(Bad::Unsound("a list of booleans, which no Parquet file has there"));
        }
        if depth > MAX_DEPTH {
            return Err(Bad::Unsound("lists within lists without end"));
        }
        for _ in 0..count {
            for &kind in kinds {
                self.value(kind, of, depth + 1)?;
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
    fn a_field_that_the_reader_would_read_as_something_else_is_refused() {
        let header = [0x15, 0, 0x15, 200, 1, 0x15, 100, 0];
        assert!(page_header(&header).is_ok());
        let unsound = |bytes: &[u8]| matches!(page_header(bytes), Err(Bad::Unsound(_)));
        // type: a list; crc: a text.
        assert!(unsound(&[0x19, 0, 0x15, 200, 1, 0x15, 100, 0]));
        assert!(unsound(&[0x15, 0, 0x15, 200, 1, 0x15, 100, 0x18, 0, 0]));
        // Field 2 for the second time, by its number; and field 2 + 2^16.
        assert!(unsound(&[0x15, 0, 0x15, 200, 1, 0x15, 100, 0x05, 4, 2, 0]));
        assert!(unsound(&[0x15, 0, 0x15, 200, 1, 0x15, 100, 0x05, 0x84, 0x80, 0x08, 2, 0]));
        // What is not known may be anything: 20 is a list of two integers.
        assert!(page_header(&[0x15, 0, 0x15, 200, 1, 0x15, 100, 0x09, 40, 0x25, 2, 2, 0]).is_ok());
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
