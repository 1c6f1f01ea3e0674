//! The files of all tables but those rows of `attr` whose texts are numbered (`attr_file.rs`).
//!
//! # How
//! How a column is written follows from its type. Times and ids ascend, so that their differences are small numbers;
//! tracks, words and names repeat, so that they are numbers of a dictionary. zstd on top costs little and halves the
//! rest. The general writer of the Parquet library takes the same ways with a hash table for every value and a
//! compressor for every column, which was most of what writing a trace cost.
//!
//! # What fools it
//! Texts may all differ and be long: where a dictionary would take more than [`DICTIONARY`], the texts stand in the
//! rows.

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float64Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use foldhash::{HashMap, HashMapExt as _};
use parquet::basic::Encoding;
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescPtr;

use crate::beneath::Written;
use crate::pages::{Chunk, Out, Pages, delta, pack, pack_numbers, put, put_text, write_groups};

/// Bytes of the texts of a dictionary at most, and those of a page of texts that stand in their rows, about.
const DICTIONARY: usize = 1 << 20;
/// Places in which texts are looked for first: a power of two.
const PLACES: usize = 1 << 8;
/// No number.
const NONE: u32 = u32::MAX;

/// Writes batches, which follow each other in their order, in row groups of `most` rows.
pub(crate) fn write(
    file: &mut Written,
    schema: SchemaRef,
    properties: WriterProperties,
    batches: &[RecordBatch],
    most: usize,
    pages: &mut Pages,
) -> Result<()> {
    write_groups(file, schema, properties, groups(batches, most), |at, what, group| {
        let arrays: Vec<ArrayRef> = group.iter().map(|batch| batch.column(at).clone()).collect();
        Column::new(what, &arrays).chunk(pages)
    })
}

/// The rows in groups of `most`, each of parts of batches.
fn groups(batches: &[RecordBatch], most: usize) -> Vec<Vec<RecordBatch>> {
    let mut groups: Vec<Vec<RecordBatch>> = Vec::new();
    let mut room = 0;
    for batch in batches {
        let mut from = 0;
        while from < batch.num_rows() {
            if room == 0 {
                groups.push(Vec::new());
                room = most;
            }
            let rows = room.min(batch.num_rows() - from);
            if let Some(group) = groups.last_mut() {
                group.push(batch.slice(from, rows));
            }
            (from, room) = (from + rows, room - rows);
        }
    }
    groups
}

/// A column of a row group, in one array or several of the same type.
struct Column<'a> {
    what: ColumnDescPtr,
    arrays: &'a [ArrayRef],
    rows: usize,
    nulls: usize,
}

impl<'a> Column<'a> {
    fn new(what: ColumnDescPtr, arrays: &'a [ArrayRef]) -> Column<'a> {
        let rows = arrays.iter().map(|array| array.len()).sum();
        let nulls = arrays.iter().map(|array| array.null_count()).sum();
        Column { what, arrays, rows, nulls }
    }

    fn chunk(self, pages: &mut Pages) -> Result<Chunk> {
        let nulls = Some(self.nulls as u64);
        match self.arrays.first().map(|array| array.data_type()) {
            Some(DataType::Int64) => {
                let values: Vec<u64> = self.values::<Int64Type>().map(|v| v as u64).collect();
                let (least, most) = extent(self.values::<Int64Type>());
                self.differences(pages, &values, Statistics::int64(least, most, None, nulls, false))
            }
            Some(DataType::UInt64) => {
                let values: Vec<u64> = self.values::<UInt64Type>().collect();
                let (least, most) = extent(values.iter().copied());
                let bits = |value: Option<u64>| value.map(|value| value as i64);
                let of = Statistics::int64(bits(least), bits(most), None, nulls, false);
                self.differences(pages, &values, of)
            }
            Some(DataType::UInt32) => {
                let (least, most) = extent(self.values::<UInt32Type>());
                let bits = |value: Option<u32>| value.map(|value| value as i32);
                let of = Statistics::int32(bits(least), bits(most), None, nulls, false);
                let mut numbers = Numbers::up_to(most.unwrap_or(0), self.rows);
                let all: Vec<u32> =
                    self.values::<UInt32Type>().map(|v| numbers.number(v)).collect();
                pages.plain.clear();
                let entries = numbers.values.iter();
                entries.for_each(|value| pages.plain.extend_from_slice(&value.to_le_bytes()));
                self.numbered(pages, &all, numbers.values.len(), Some(of))
            }
            Some(DataType::Float64) => {
                let of = self.extent_of_fractions();
                let (mut known, mut values, mut all) = (HashMap::new(), Vec::new(), Vec::new());
                for value in self.values::<Float64Type>() {
                    all.push(*known.entry(value.to_bits()).or_insert_with(|| {
                        values.push(value);
                        values.len() as u32 - 1
                    }));
                }
                pages.plain.clear();
                let entries = values.iter();
                entries.for_each(|value| pages.plain.extend_from_slice(&value.to_le_bytes()));
                self.numbered(pages, &all, values.len(), Some(of))
            }
            Some(DataType::Boolean) => self.truths(pages),
            Some(DataType::Utf8) => self.texts(pages),
            other => Err(ParquetError::General(format!("no way to write a column of {other:?}"))),
        }
    }

    /// The values of the rows that have one.
    fn values<T: ArrowPrimitiveType>(&self) -> impl Iterator<Item = T::Native> {
        self.arrays.iter().flat_map(|array| {
            let array = array.as_primitive::<T>();
            let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
            let has_value = move |row: usize| nulls.is_none_or(|nulls| nulls.is_valid(row));
            let rows = array.values().iter().enumerate();
            rows.filter(move |(row, _)| has_value(*row)).map(|(_, value)| *value)
        })
    }

    /// Begins a page: which rows have a value, unless all must have one (levels of definition).
    fn begin(&self, pages: &mut Pages) {
        let out = &mut pages.plain;
        out.clear();
        if self.what.max_def_level() == 0 {
            return;
        }
        out.extend([0; 4]);
        if self.nulls == 0 || self.nulls == self.rows {
            put(out, (self.rows as u64) << 1);
            out.push(u8::from(self.nulls == 0));
        } else {
            let bits = self.arrays.iter().flat_map(|array| {
                let nulls = array.nulls();
                (0..array.len())
                    .map(move |row| u64::from(nulls.is_none_or(|nulls| nulls.is_valid(row))))
            });
            let groups = self.rows.div_ceil(8);
            put(out, (groups as u64) << 1 | 1);
            pack(bits.chain(std::iter::repeat_n(0, 8 * groups - self.rows)), 1, out);
        }
        let length = out.len() as u32 - 4;
        out[..4].copy_from_slice(&length.to_le_bytes());
    }

    /// Values that ascend, as their differences.
    fn differences(self, pages: &mut Pages, values: &[u64], of: Statistics) -> Result<Chunk> {
        self.begin(pages);
        delta(values, &mut pages.plain);
        let mut out = Out::default();
        pages.page(&mut out, self.rows, Encoding::DELTA_BINARY_PACKED)?;
        let encodings = [Encoding::DELTA_BINARY_PACKED, Encoding::RLE];
        out.chunk(self.what, self.rows, &encodings, Some(of))
    }

    /// Values as numbers of the dictionary whose entries are in `plain`.
    fn numbered(
        self,
        pages: &mut Pages,
        numbers: &[u32],
        entries: usize,
        of: Option<Statistics>,
    ) -> Result<Chunk> {
        let (mut out, entries) = (Out::default(), entries as u32);
        pages.dictionary(&mut out, entries)?;
        self.begin(pages);
        pack_numbers(numbers, entries, &mut pages.plain);
        pages.page(&mut out, self.rows, Encoding::RLE_DICTIONARY)?;
        let encodings = [Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY];
        out.chunk(self.what, self.rows, &encodings, of)
    }

    fn truths(self, pages: &mut Pages) -> Result<Chunk> {
        let all = self.arrays.iter().flat_map(|array| array.as_boolean().iter().flatten());
        let values: Vec<bool> = all.collect();
        let (least, most) = extent(values.iter().copied());
        let of = Statistics::boolean(least, most, None, Some(self.nulls as u64), false);
        self.begin(pages);
        pack(values.iter().map(|value| u64::from(*value)), 1, &mut pages.plain);
        let mut out = Out::default();
        pages.page(&mut out, self.rows, Encoding::PLAIN)?;
        out.chunk(self.what, self.rows, &[Encoding::PLAIN, Encoding::RLE], Some(of))
    }

    /// The least and the greatest fraction; what is no number is neither, and a zero may have either sign.
    fn extent_of_fractions(&self) -> Statistics {
        let numbers = || self.values::<Float64Type>().filter(|value| !value.is_nan());
        let least = numbers().reduce(f64::min).map(|least| if least == 0.0 { -0.0 } else { least });
        let most = numbers().reduce(f64::max).map(|most| if most == 0.0 { 0.0 } else { most });
        Statistics::double(least, most, None, Some(self.nulls as u64), false)
    }

    fn texts(self, pages: &mut Pages) -> Result<Chunk> {
        let mut dictionary = Dictionary::new();
        let mut numbers = Vec::with_capacity(self.rows - self.nulls);
        for array in self.arrays {
            let array = array.as_string::<i32>();
            for row in (0..array.len()).filter(|row| array.is_valid(*row)) {
                numbers.push(dictionary.number(array.value(row).as_bytes()));
            }
            if dictionary.bytes > DICTIONARY {
                return self.plain_texts(pages);
            }
        }
        pages.plain.clear();
        dictionary.texts.iter().for_each(|text| put_text(text, &mut pages.plain));
        self.numbered(pages, &numbers, dictionary.texts.len(), None)
    }

    /// Texts in their rows, a page where enough of them have come together.
    fn plain_texts(self, pages: &mut Pages) -> Result<Chunk> {
        let mut out = Out::default();
        for array in self.arrays {
            let offsets = array.as_string::<i32>().value_offsets();
            let mut from = 0;
            while from < array.len() {
                let most = i64::from(offsets[from]) + DICTIONARY as i64;
                let fits = |row: &usize| i64::from(offsets[row + 1]) <= most;
                let rows = (from..array.len()).take_while(fits).count().max(1);
                let part = [array.slice(from, rows)];
                let page = Column::new(self.what.clone(), &part);
                page.begin(pages);
                let texts = part[0].as_string::<i32>().iter().flatten();
                texts.for_each(|text| put_text(text.as_bytes(), &mut pages.plain));
                pages.page(&mut out, rows, Encoding::PLAIN)?;
                from += rows;
            }
        }
        out.chunk(self.what, self.rows, &[Encoding::PLAIN, Encoding::RLE], None)
    }
}

/// The least and the greatest value.
fn extent<T: Ord + Copy>(values: impl Iterator<Item = T>) -> (Option<T>, Option<T>) {
    values.fold((None, None), |(least, most), value| {
        let least = least.map_or(value, |least: T| least.min(value));
        (Some(least), Some(most.map_or(value, |most: T| most.max(value))))
    })
}

/// Gives values numbers, each the first time that it comes.
struct Numbers {
    values: Vec<u32>,
    /// The number of each value, where values are about as small as there are many.
    dense: Vec<u32>,
    sparse: HashMap<u32, u32>,
}

impl Numbers {
    fn up_to(most: u32, rows: usize) -> Numbers {
        let is_dense = (most as usize) < 4 * rows + 4096;
        let dense = if is_dense { vec![NONE; most as usize + 1] } else { Vec::new() };
        Numbers { values: Vec::new(), dense, sparse: HashMap::new() }
    }

    #[inline]
    fn number(&mut self, value: u32) -> u32 {
        let number = match self.dense.get_mut(value as usize) {
            Some(number) => number,
            None => self.sparse.entry(value).or_insert(NONE),
        };
        if *number == NONE {
            *number = self.values.len() as u32;
            self.values.push(value);
        }
        *number
    }
}

/// Gives texts numbers, each the first time that it comes.
struct Dictionary<'a> {
    texts: Vec<&'a [u8]>,
    /// What they take.
    bytes: usize,
    known: HashMap<&'a [u8], u32>,
    /// Those that came lately, each in a place that a little of it says.
    lately: Vec<(&'a [u8], u32)>,
}

impl<'a> Dictionary<'a> {
    fn new() -> Dictionary<'a> {
        let (texts, known) = (Vec::new(), HashMap::new());
        Dictionary { texts, bytes: 0, known, lately: vec![(&[], NONE); PLACES] }
    }

    #[inline]
    fn number(&mut self, text: &'a [u8]) -> u32 {
        let place = &mut self.lately[place(text)];
        if place.1 != NONE && place.0 == text {
            return place.1;
        }
        let next = self.texts.len() as u32;
        let number = *self.known.entry(text).or_insert(next);
        if number == next {
            self.texts.push(text);
            self.bytes += text.len() + 4;
        }
        *place = (text, number);
        number
    }
}

/// A place of [`PLACES`] by the length, the begin and the end of a text. Texts of the same place take it from each other.
fn place(text: &[u8]) -> usize {
    let (first, last) = match (text.first_chunk(), text.last_chunk()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => (text.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0),
    };
    // 2⁶⁴ divided by the golden ratio: the high bits of a product with it are spread evenly.
    let mixed = first ^ last.rotate_left(29) ^ text.len() as u64;
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Counter, Id, Ns, Span, State, Table, TrackId, schema};

    use super::*;
    use crate::dir::{Dir, Durability};
    use crate::segment::{self, Batches};

    /// What a file holds after these batches of a table have been written into it.
    fn read_back<T: Table>(batches: &[RecordBatch]) -> RecordBatch {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::make(folder.path(), Durability::ProcessDeath, None).unwrap();
        let path = format!("{}/00000.parquet", T::NAME);
        let file = segment::write::<T>(&dir, &path, 0, batches, &mut Pages::default()).unwrap();
        let mut read = Batches::open::<T>(&dir, &file, &(Ns::MIN..Ns::MAX)).unwrap();
        let mut all = Vec::new();
        while let Some(batch) = read.next() {
            all.push(batch.unwrap());
        }
        arrow_select::concat::concat_batches(&schema::<T>(), &all).unwrap()
    }

    fn same<T: Table>(batches: &[RecordBatch]) {
        let all = arrow_select::concat::concat_batches(&schema::<T>(), batches).unwrap();
        assert_eq!(read_back::<T>(batches), all);
    }

    fn span(n: u64, name: &str) -> Span {
        let dur = (!n.is_multiple_of(5)).then_some(Ns(n as i64 % 977 - 100));
        let parent = n.is_multiple_of(3).then_some(Id(n.wrapping_mul(0x9e37_79b9)));
        let track = TrackId((n * n % 1009) as u32);
        Span {
            id: Id(u64::MAX - n),
            ts: Ns((n as i64).wrapping_mul(1 << 40)),
            dur,
            track,
            parent,
            name: name.into(),
        }
    }

    #[test]
    fn columns_of_every_type_come_back_whatever_their_number() {
        for count in [0, 1, 7, 8, 9, 128, 129, 65_535, 65_536, 65_537, 140_000] {
            let spans: Vec<Span> = (0..count).map(|n| span(n, &format!("n{}", n % 300))).collect();
            same::<Span>(&[Span::batch(&spans)]);
        }
        let number = |n: u64| match n % 7 {
            0 => f64::NAN,
            1 => -0.0,
            2 => f64::INFINITY,
            _ => n as f64 / 8.0,
        };
        let track = TrackId(u32::MAX);
        let counters: Vec<Counter> =
            (0..1000).map(|n| Counter { ts: Ns(n as i64), track, value: number(n) }).collect();
        let back = read_back::<Counter>(&[Counter::batch(&counters)]);
        let bits = |rows: &[Counter]| rows.iter().map(|c| c.value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&Counter::rows(&back).unwrap()), bits(&counters));
    }

    #[test]
    fn columns_without_any_value_and_with_all_values_come_back() {
        for arg in [None, Some(-1), Some(i64::MIN)] {
            let state = |n| State { ts: Ns(n), dur: arg.map(Ns), track: TrackId(3), value: 1, arg };
            same::<State>(&[State::batch(&(0..100).map(state).collect::<Vec<_>>())]);
        }
    }

    #[test]
    fn batches_become_groups_that_lie_across_them() {
        let spans: Vec<Span> = (0..200_000).map(|n| span(n, "x")).collect();
        let batches: Vec<RecordBatch> = spans.chunks(33_333).map(Span::batch).collect();
        same::<Span>(&batches);
        let counts = |most| {
            let rows = |group: &Vec<RecordBatch>| group.iter().map(RecordBatch::num_rows).sum();
            groups(&batches, most).iter().map(rows).collect::<Vec<usize>>()
        };
        assert_eq!(counts(90_000), [90_000, 90_000, 20_000]);
    }

    #[test]
    fn texts_that_never_come_again_stand_in_their_rows() {
        let long = "é".repeat(500);
        let text = |n: u64| if n % 1000 == 3 { String::new() } else { format!("{n} {long}") };
        let spans: Vec<Span> = (0..10_000).map(|n| span(n, &text(n))).collect();
        same::<Span>(&[Span::batch(&spans)]);
        let one = "x".repeat(3 << 20);
        same::<Span>(&[Span::batch(&[span(1, &one), span(2, ""), span(3, &one), span(4, "y")])]);
    }
}
