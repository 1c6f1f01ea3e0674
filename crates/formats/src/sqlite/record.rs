//! Rows: a header of types, then the values.

/// A value of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Value<'a> {
    /// NULL, or a column that the table lacks.
    #[default]
    Null,
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Real(f64),
    /// A text, as its bytes.
    Text(&'a [u8]),
    /// Bytes.
    Blob(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Its value as an integer.
    pub fn int(self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(n),
            // Some tools store integers as floating-point numbers.
            Value::Real(n) if n.fract() == 0.0 && n.abs() < 9e15 => Some(n as i64),
            _ => None,
        }
    }

    /// Its value as a floating-point number.
    pub fn real(self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(n as f64),
            Value::Real(n) => Some(n),
            _ => None,
        }
    }

    /// Its text, up to the first byte that is not UTF-8.
    pub fn text(self) -> Option<&'a str> {
        match self {
            Value::Text(bytes) => Some(match std::str::from_utf8(bytes) {
                Ok(text) => text,
                Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(),
            }),
            _ => None,
        }
    }
}

/// The varint at `at` and where it ends (SQLite file format, section 1.6).
pub(super) fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 {
        return Some((u64::from(first), at + 1));
    }
    let mut n = u64::from(first & 0x7f);
    for i in 1..8 {
        let byte = *bytes.get(at + i)?;
        n = n << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((n, at + i + 1));
        }
    }
    Some((n << 8 | u64::from(*bytes.get(at + 8)?), at + 9))
}

/// Stands for a column that is not wanted.
const SKIP: u8 = u8::MAX;

/// Which columns of a row are wanted, and their positions among the results.
pub(super) struct Want<const N: usize> {
    /// For each column up to the last wanted one: its position, or [`SKIP`].
    places: Vec<u8>,
    /// The position of the column that is the rowid.
    rowid: Option<usize>,
}

/// Why a row cannot be read.
type Bad = &'static str;

impl<const N: usize> Want<N> {
    /// Of these columns, where `rowid` is the column that is an alias of the rowid.
    pub fn new(wanted: [Option<usize>; N], rowid: Option<usize>) -> Want<N> {
        let columns = wanted.iter().flatten().max().map_or(0, |last| last + 1);
        let mut places = vec![SKIP; columns];
        for (place, column) in wanted.iter().enumerate() {
            if let Some(column) = column {
                places[*column] = place as u8;
            }
        }
        let rowid = rowid.and_then(|rowid| wanted.iter().position(|w| *w == Some(rowid)));
        Want { places, rowid }
    }

    /// The wanted values of a record; `None` if they lie beyond `record`, which is only its beginning.
    pub fn decode<'a>(
        &self,
        record: &'a [u8],
        rowid: i64,
        is_whole: bool,
    ) -> Result<Option<[Value<'a>; N]>, Bad> {
        self.values(record, rowid, |from, to| match record.get(from..to) {
            Some(bytes) => Ok(Some(bytes)),
            None if is_whole => Err("a value lies outside of it"),
            None => Ok(None),
        })
    }

    /// The same for a record that was assembled from its overflow pages. Where it was too long for that,
    /// the last text is cut off.
    pub fn decode_cut<'a>(
        &self,
        record: &'a [u8],
        rowid: i64,
        is_whole: bool,
    ) -> Result<[Value<'a>; N], Bad> {
        let cut = |from: usize, to: usize| match record.get(from..to) {
            Some(bytes) => Ok(Some(bytes)),
            None if is_whole => Err("a value lies outside of it"),
            None => Ok(Some(record.get(from..).unwrap_or_default())),
        };
        self.values(record, rowid, cut)?.ok_or("a value lies outside of it")
    }

    fn values<'a>(
        &self,
        record: &'a [u8],
        rowid: i64,
        get: impl Fn(usize, usize) -> Result<Option<&'a [u8]>, Bad>,
    ) -> Result<Option<[Value<'a>; N]>, Bad> {
        let mut out = [Value::Null; N];
        let (header, mut at) = varint(record, 0).ok_or("it is empty")?;
        let header = usize::try_from(header).map_err(|_| "its header is too long")?;
        let mut from = header;
        for &place in &self.places {
            // A column that was added to the table after this row is null.
            if at >= header {
                break;
            }
            let Some((kind, next)) = varint(record, at) else {
                return match get(at, header)? {
                    Some(_) => Err("its header is cut off"),
                    None => Ok(None),
                };
            };
            at = next;
            let size = size_of(kind)?;
            let to = from.checked_add(size).ok_or("a value is too long")?;
            if place != SKIP {
                match kind {
                    0 => {}
                    8 => out[usize::from(place)] = Value::Int(0),
                    9 => out[usize::from(place)] = Value::Int(1),
                    _ => {
                        let Some(bytes) = get(from, to)? else { return Ok(None) };
                        out[usize::from(place)] = value(kind, bytes, size)?;
                    }
                }
            }
            from = to;
        }
        if let Some(place) = self.rowid {
            out[place] = Value::Int(rowid);
        }
        Ok(Some(out))
    }
}

/// How many bytes a value of this type takes.
fn size_of(kind: u64) -> Result<usize, Bad> {
    match kind {
        0 | 8 | 9 => Ok(0),
        1..=4 => Ok(kind as usize),
        5 => Ok(6),
        6 | 7 => Ok(8),
        10 | 11 => Err("a value has a type that is not used"),
        long => usize::try_from((long - 12) / 2).map_err(|_| "a value is too long"),
    }
}

fn value(kind: u64, bytes: &[u8], size: usize) -> Result<Value<'_>, Bad> {
    Ok(match kind {
        1..=6 if bytes.len() == size => Value::Int(signed(bytes)),
        7 if bytes.len() == size => {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            Value::Real(f64::from_be_bytes(eight))
        }
        1..=7 => return Err("a number is cut off"),
        text if text % 2 == 1 => Value::Text(bytes),
        _ => Value::Blob(bytes),
    })
}

/// A big-endian two's complement number of up to eight bytes.
fn signed(bytes: &[u8]) -> i64 {
    let mut n = i64::from(bytes[0] as i8);
    for &byte in &bytes[1..] {
        n = n << 8 | i64::from(byte);
    }
    n
}
