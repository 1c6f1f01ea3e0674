//! Rows of `attr` that are made column by column.
//!
//! An import of a kernel's trace has several times as many of them as of all other rows. As [`Attr`]s, each would be two
//! shared texts, which are looked up, counted and copied into columns at the end. Here a key has a number for the whole
//! import, and a value one for its batch: most values come again, and a number that comes again is not even written out.
//! The texts of a batch are the dictionary that its file needs.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::builder::{StringBuilder, UInt64Builder};

use crate::{Attr, Id, Name, schema};

/// Places in which values are looked for: a power of two. One that has lost its place to another gets a second number,
/// which costs a text and nothing else.
const PLACES: usize = 1 << 13;
/// 2⁶⁴ divided by the golden ratio: the high bits of a product with it are spread evenly (Fibonacci hashing, Knuth 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// No number.
const NONE: u32 = u32::MAX;

/// The number of a key in [`AttrColumns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrKey(u32);

/// Texts, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    all: String,
    ends: Vec<usize>,
}

impl Texts {
    /// The text of this number; empty if there is none.
    pub fn get(&self, number: u32) -> &str {
        let at = number as usize;
        let from = if at == 0 { 0 } else { self.ends.get(at - 1).copied().unwrap_or(0) };
        let to = self.ends.get(at).copied().unwrap_or(from);
        self.all.get(from..to).unwrap_or("")
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len() as u32).map(|number| self.get(number))
    }

    /// Adds a text and says its number.
    fn push(&mut self, text: &str) -> u32 {
        self.all.push_str(text);
        self.ends.push(self.all.len());
        self.ends.len() as u32 - 1
    }

    /// Adds a number as text: the general way of the standard library takes several times as long.
    fn push_number(&mut self, mut rest: u64, is_negative: bool) -> u32 {
        // 2⁶⁴ has 20 digits.
        let mut text = [b'-'; 21];
        let mut at = text.len();
        while rest >= 10 {
            let two = (rest % 100) as u8;
            rest /= 100;
            at -= 2;
            (text[at], text[at + 1]) = (b'0' + two / 10, b'0' + two % 10);
        }
        if rest > 0 || at == text.len() {
            at -= 1;
            text[at] = b'0' + rest as u8;
        }
        at -= usize::from(is_negative);
        self.push(std::str::from_utf8(&text[at..]).unwrap_or_default())
    }
}

/// Rows of `attr`: of each its id, and the numbers of its key and value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttrBatch {
    /// The ids of the rows that the attributes are of.
    pub ids: Vec<u64>,
    /// Their keys, as numbers of [`AttrBatch::key_texts`].
    pub keys: Vec<u32>,
    /// Their values, as numbers of [`AttrBatch::value_texts`].
    pub values: Vec<u32>,
    /// The keys, each once.
    pub key_texts: Texts,
    /// The values; the same text may have several numbers.
    pub value_texts: Texts,
}

impl AttrBatch {
    /// Of rows.
    pub fn of(rows: &[Attr]) -> AttrBatch {
        let mut columns = AttrColumns::default();
        for row in rows {
            let key = columns.key(&row.key);
            columns.push_text(row.id, key, row.value.as_bytes());
        }
        columns.take().unwrap_or_default()
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Each row: its id, key and value.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &str, &str)> {
        let numbers = self.ids.iter().zip(&self.keys).zip(&self.values);
        numbers.map(|((id, key), value)| {
            (Id(*id), self.key_texts.get(*key), self.value_texts.get(*value))
        })
    }

    /// The same rows as columns of the table.
    pub fn columns(&self) -> RecordBatch {
        let mut ids = UInt64Builder::with_capacity(self.len());
        let (mut keys, mut values) = (StringBuilder::new(), StringBuilder::new());
        for (id, key, value) in self.iter() {
            ids.append_value(id.0);
            keys.append_value(key);
            values.append_value(value);
        }
        let columns = vec![
            Arc::new(ids.finish()) as _,
            Arc::new(keys.finish()) as _,
            Arc::new(values.finish()) as _,
        ];
        let batch = RecordBatch::try_new(schema::<Attr>(), columns);
        batch.expect("the columns are those of the table, one value a row")
    }
}

/// Makes rows of `attr`.
#[derive(Default)]
pub struct AttrColumns {
    key_numbers: HashMap<Name, u32>,
    key_names: Vec<Name>,
    rows: AttrBatch,
    /// Integers and texts with their numbers, each in the place that its hash says: the bits of an integer and whether
    /// it is negative, and the hash of a text.
    integers: Vec<(u64, bool, u32)>,
    texts: Vec<(u64, u32)>,
}

impl AttrColumns {
    /// The number of a key, for all batches.
    pub fn key(&mut self, name: &Name) -> AttrKey {
        if let Some(number) = self.key_numbers.get(name) {
            return AttrKey(*number);
        }
        let number = self.key_names.len() as u32;
        self.key_names.push(name.clone());
        self.key_numbers.insert(name.clone(), number);
        AttrKey(number)
    }

    /// Adds a row whose value is an unsigned number.
    #[inline]
    pub fn push_unsigned(&mut self, id: Id, key: AttrKey, value: u64) {
        self.integer(id, key, value, false);
    }

    /// Adds a row whose value is a number with a sign.
    #[inline]
    pub fn push_signed(&mut self, id: Id, key: AttrKey, value: i64) {
        self.integer(id, key, value as u64, value < 0);
    }

    #[inline]
    fn integer(&mut self, id: Id, key: AttrKey, bits: u64, is_negative: bool) {
        let place = place(bits.wrapping_mul(GOLDEN));
        if self.integers.is_empty() {
            self.integers = vec![(0, false, NONE); PLACES];
        }
        let held = self.integers[place];
        let number = match held {
            (same, sign, number) if same == bits && sign == is_negative && number != NONE => number,
            _ => {
                let size = if is_negative { bits.wrapping_neg() } else { bits };
                let number = self.rows.value_texts.push_number(size, is_negative);
                self.integers[place] = (bits, is_negative, number);
                number
            }
        };
        self.row(id, key, number);
    }

    /// Adds a row whose value is a text; what is no UTF-8 is replaced.
    pub fn push_text(&mut self, id: Id, key: AttrKey, text: &[u8]) {
        let hash = hash(text);
        let place = place(hash);
        if self.texts.is_empty() {
            self.texts = vec![(0, NONE); PLACES];
        }
        let (held, number) = self.texts[place];
        let is_same =
            held == hash && number != NONE && self.rows.value_texts.get(number).as_bytes() == text;
        let number = if is_same {
            number
        } else {
            let number = self.rows.value_texts.push(&String::from_utf8_lossy(text));
            self.texts[place] = (hash, number);
            number
        };
        self.row(id, key, number);
    }

    #[inline]
    fn row(&mut self, id: Id, key: AttrKey, value: u32) {
        self.rows.ids.push(id.0);
        self.rows.keys.push(key.0);
        self.rows.values.push(value);
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes all rows out; `None` if there are none.
    pub fn take(&mut self) -> Option<AttrBatch> {
        if self.rows.is_empty() {
            return None;
        }
        // The next ones will be about as many.
        let (rows, texts) = (self.rows.len(), self.rows.value_texts.len());
        let fresh = AttrBatch {
            ids: Vec::with_capacity(rows),
            keys: Vec::with_capacity(rows),
            values: Vec::with_capacity(rows),
            key_texts: Texts::default(),
            value_texts: Texts {
                all: String::with_capacity(self.rows.value_texts.all.len()),
                ends: Vec::with_capacity(texts),
            },
        };
        let mut taken = std::mem::replace(&mut self.rows, fresh);
        self.integers.fill((0, false, NONE));
        self.texts.fill((0, NONE));
        let mut numbers = vec![NONE; self.key_names.len()];
        for key in &mut taken.keys {
            let number = &mut numbers[*key as usize];
            if *number == NONE {
                *number = taken.key_texts.push(&self.key_names[*key as usize]);
            }
            *key = *number;
        }
        Some(taken)
    }
}

fn place(hash: u64) -> usize {
    (hash >> (64 - PLACES.ilog2())) as usize
}

/// A number for a text. Texts that have the same one take the place from each other, and nothing worse.
fn hash(text: &[u8]) -> u64 {
    let mut all = text.len() as u64;
    let mut add = |word: u64| all = (all.rotate_left(23) ^ word).wrapping_mul(GOLDEN);
    let (words, rest) = text.as_chunks::<8>();
    words.iter().for_each(|word| add(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(u64::from_le_bytes(last));
    all ^ all >> 29
}

impl fmt::Debug for AttrColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttrColumns").field("rows", &self.rows.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table as _;

    fn of(id: u64, key: &str, value: &str) -> Attr {
        Attr { id: Id(id), key: key.into(), value: value.into() }
    }

    #[test]
    fn columns_hold_the_same_rows_as_rows_do() {
        let rows = [of(7, "dev", "259"), of(7, "name", ""), of(u64::MAX, "é", "a\nb")];
        let batch = AttrBatch::of(&rows);
        assert_eq!(batch.len(), 3);
        assert_eq!(batch.columns(), Attr::batch(&rows));
        assert_eq!(Attr::rows(&batch.columns()).unwrap(), rows);
    }

    #[test]
    fn a_value_keeps_its_text_whatever_came_before_it() {
        let mut columns = AttrColumns::default();
        let mut rows = Vec::new();
        let (a, b) = (columns.key(&"a".into()), columns.key(&"b".into()));
        assert!(columns.take().is_none());
        for round in 0..3 {
            // More values than there are places, so that some lose theirs, and all come twice.
            for value in (0..3 * PLACES as u64).chain(0..100) {
                columns.push_unsigned(Id(value), a, value);
                columns.push_signed(Id(value), b, -(value as i64));
                columns.push_text(Id(value), a, format!("text {value}").as_bytes());
                rows.push(of(value, "a", &value.to_string()));
                rows.push(of(value, "b", &(-(value as i64)).to_string()));
                rows.push(of(value, "a", &format!("text {value}")));
            }
            columns.push_unsigned(Id(1), a, u64::MAX);
            columns.push_signed(Id(1), a, -1);
            columns.push_text(Id(1), b, b"a\xff");
            columns.push_text(Id(1), b, b"a\xff");
            rows.extend([of(1, "a", "18446744073709551615"), of(1, "a", "-1")]);
            rows.extend([of(1, "b", "a\u{fffd}"), of(1, "b", "a\u{fffd}")]);
            let batch = columns.take().unwrap();
            assert_eq!(Attr::rows(&batch.columns()).unwrap(), rows, "round {round}");
            rows.clear();
        }
        assert!(columns.is_empty() && columns.take().is_none());
    }

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        let mut columns = AttrColumns::default();
        let key = columns.key(&"n".into());
        let powers = (0..20).flat_map(|n| [10u64.pow(n) - 1, 10u64.pow(n), 10u64.pow(n) + 1]);
        let numbers: Vec<u64> = powers.chain([105, u64::MAX, i64::MAX as u64, 1 << 63]).collect();
        for number in &numbers {
            columns.push_unsigned(Id(0), key, *number);
            columns.push_signed(Id(1), key, *number as i64);
            columns.push_signed(Id(2), key, (*number as i64).wrapping_neg());
        }
        let expected = numbers.iter().flat_map(|number| {
            let signed = *number as i64;
            [number.to_string(), signed.to_string(), signed.wrapping_neg().to_string()]
        });
        let batch = columns.take().unwrap();
        let values: Vec<&str> = batch.iter().map(|(_, _, value)| value).collect();
        assert_eq!(values, expected.collect::<Vec<_>>());
    }

    #[test]
    fn values_that_come_again_have_one_text() {
        let mut columns = AttrColumns::default();
        let key = columns.key(&"cpu".into());
        for n in 0..1000 {
            columns.push_unsigned(Id(n), key, n % 4);
            columns.push_text(Id(n), key, b"render");
        }
        let batch = columns.take().unwrap();
        assert_eq!(batch.value_texts.iter().collect::<Vec<_>>(), ["0", "render", "1", "2", "3"]);
        assert_eq!(batch.key_texts.iter().collect::<Vec<_>>(), ["cpu"]);
    }
}
