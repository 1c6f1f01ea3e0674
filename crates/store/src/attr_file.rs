//! The file of `attr`, whose rows an import hands over with their texts numbered.
//!
//! # How
//! The table has several times the rows of all others together, and the general writer would look each text up again
//! to find the number that it has already. Here the numbers are written as they are: keys and values as numbers of a
//! dictionary (RLE_DICTIONARY), ids as differences (DELTA_BINARY_PACKED), as in files that the general writer makes.
//! Pages and their order are those of the format (github.com/apache/parquet-format, `Encodings.md`), so that any reader
//! of Parquet reads them.

use bytes::Bytes;
use gpuwhy_schema::{Attr, AttrBatch, Table as _, Texts, schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, Type, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter as _};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use crate::beneath::Written;

/// As that of the other tables.
const LEVEL: i32 = 1;
/// Differences that are packed together, and of them those that have the same width.
const BLOCK: usize = 128;
const MINIBLOCK: usize = 32;

/// Writes batches, each or several as a row group of at most `most` rows where no single one has more.
pub(crate) fn write(
    file: &mut Written,
    properties: WriterProperties,
    batches: &[AttrBatch],
    most: usize,
) -> Result<()> {
    let (mut writer, _) =
        ArrowWriter::try_new(file, schema::<Attr>(), Some(properties))?.into_serialized_writer()?;
    let types = writer.schema_descr().clone();
    let mut pages = Pages::new()?;
    let mut rest = batches;
    while let Some(first) = rest.first() {
        let mut rows = first.len();
        let more = rest[1..].iter().take_while(|batch| {
            rows += batch.len();
            rows <= most
        });
        let (group, after) = rest.split_at(1 + more.count());
        rest = after;
        if group.iter().all(AttrBatch::is_empty) {
            continue;
        }
        let mut row_group = writer.next_row_group()?;
        for at in 0..Attr::columns().len() {
            let chunk = pages.chunk(types.column(at), group)?;
            row_group.append_column(&chunk.bytes, chunk.close)?;
        }
        row_group.close()?;
    }
    writer.close()?;
    Ok(())
}

/// The bytes of a column of a row group, and what the footer says of them.
struct Chunk {
    bytes: Bytes,
    close: ColumnCloseResult,
}

/// Makes pages, with buffers that are used again.
struct Pages {
    zstd: zstd::bulk::Compressor<'static>,
    plain: Vec<u8>,
}

impl Pages {
    fn new() -> Result<Pages> {
        let zstd = zstd::bulk::Compressor::new(LEVEL)?;
        Ok(Pages { zstd, plain: Vec::new() })
    }

    fn chunk(&mut self, column: ColumnDescPtr, group: &[AttrBatch]) -> Result<Chunk> {
        match column.name() {
            "id" => self.ids(column, group),
            "key" => self.texts(column, group, |batch| (&batch.keys, &batch.key_texts)),
            "value" => self.texts(column, group, |batch| (&batch.values, &batch.value_texts)),
            other => Err(ParquetError::General(format!("no column `{other}` in `attr`"))),
        }
    }

    fn ids(&mut self, column: ColumnDescPtr, group: &[AttrBatch]) -> Result<Chunk> {
        let ids: Vec<u64> = group.iter().flat_map(|batch| &batch.ids).copied().collect();
        let (least, most) = (ids.iter().min().copied(), ids.iter().max().copied());
        let bits = |id: Option<u64>| id.map(|id| id as i64);
        let statistics = Statistics::int64(bits(least), bits(most), None, Some(0), false);
        self.plain.clear();
        delta(&ids, &mut self.plain);
        let mut out = Out::default();
        self.page(&mut out, ids.len(), Encoding::DELTA_BINARY_PACKED)?;
        out.chunk(column, ids.len(), &[Encoding::DELTA_BINARY_PACKED], Some(statistics))
    }

    fn texts(
        &mut self,
        column: ColumnDescPtr,
        group: &[AttrBatch],
        of: impl Fn(&AttrBatch) -> (&Vec<u32>, &Texts),
    ) -> Result<Chunk> {
        debug_assert_eq!(column.physical_type(), Type::BYTE_ARRAY);
        self.plain.clear();
        let (mut numbers, mut texts) = (Vec::new(), 0);
        for batch in group {
            let (of_rows, of_texts) = of(batch);
            numbers.extend(of_rows.iter().map(|number| number + texts));
            texts += of_texts.len() as u32;
            for text in of_texts.iter() {
                self.plain.extend_from_slice(&(text.len() as u32).to_le_bytes());
                self.plain.extend_from_slice(text.as_bytes());
            }
        }
        let mut out = Out::default();
        self.dictionary(&mut out, texts)?;
        self.plain.clear();
        pack_numbers(&numbers, width(u64::from(texts.saturating_sub(1))), &mut self.plain);
        self.page(&mut out, numbers.len(), Encoding::RLE_DICTIONARY)?;
        let encodings = [Encoding::PLAIN, Encoding::RLE_DICTIONARY];
        out.chunk(column, numbers.len(), &encodings, None)
    }

    fn dictionary(&mut self, out: &mut Out, texts: u32) -> Result<()> {
        let page = Page::DictionaryPage {
            buf: self.zstd.compress(&self.plain)?.into(),
            num_values: texts,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        out.has_dictionary = true;
        out.write(CompressedPage::new(page, self.plain.len()))
    }

    /// A page of values that are never null, so that it has no levels.
    fn page(&mut self, out: &mut Out, rows: usize, encoding: Encoding) -> Result<()> {
        let page = Page::DataPage {
            buf: self.zstd.compress(&self.plain)?.into(),
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        out.write(CompressedPage::new(page, self.plain.len()))
    }
}

/// Pages one after the other.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    unpacked: usize,
    has_dictionary: bool,
    data_at: usize,
}

impl Out {
    fn write(&mut self, page: CompressedPage) -> Result<()> {
        self.data_at = self.bytes.len();
        let mut sink = TrackedWrite::new(&mut self.bytes);
        let spec = SerializedPageWriter::new(&mut sink).write_page(page)?;
        let _: &mut Vec<u8> = sink.into_inner()?;
        self.unpacked += spec.uncompressed_size;
        Ok(())
    }

    fn chunk(
        self,
        column: ColumnDescPtr,
        rows: usize,
        encodings: &[Encoding],
        statistics: Option<Statistics>,
    ) -> Result<Chunk> {
        let mut metadata = ColumnChunkMetaData::builder(column)
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
            .set_encodings(encodings.to_vec())
            .set_total_compressed_size(self.bytes.len() as i64)
            .set_total_uncompressed_size(self.unpacked as i64)
            .set_num_values(rows as i64)
            .set_data_page_offset(self.data_at as i64)
            .set_dictionary_page_offset(self.has_dictionary.then_some(0));
        if let Some(statistics) = statistics {
            metadata = metadata.set_statistics(statistics);
        }
        let close = ColumnCloseResult {
            bytes_written: self.bytes.len() as u64,
            rows_written: rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok(Chunk { bytes: self.bytes.into(), close })
    }
}

/// How many bits a number takes.
fn width(number: u64) -> u32 {
    64 - number.leading_zeros()
}

/// A number with seven bits a byte, the lowest first (LEB128).
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The lowest `width` bits of each number, one behind the other, the lowest bit first.
fn pack(numbers: impl Iterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    let (mut held, mut bits) = (0u128, 0);
    for number in numbers {
        held |= u128::from(number) << bits;
        bits += width;
        if bits >= 64 {
            out.extend_from_slice(&(held as u64).to_le_bytes());
            held >>= 64;
            bits -= 64;
        }
    }
    out.extend_from_slice(&(held as u64).to_le_bytes()[..bits.div_ceil(8) as usize]);
}

/// Numbers of a dictionary, as one run of packed bits (`RLE_DICTIONARY`).
fn pack_numbers(numbers: &[u32], width: u32, out: &mut Vec<u8>) {
    out.push(width as u8);
    let groups = numbers.len().div_ceil(8);
    put(out, (groups as u64) << 1 | 1);
    let unused = 8 * groups - numbers.len();
    let all = numbers.iter().map(|number| u64::from(*number));
    pack(all.chain(std::iter::repeat_n(0, unused)), width, out);
}

/// Differences of numbers in blocks (`DELTA_BINARY_PACKED`).
fn delta(numbers: &[u64], out: &mut Vec<u8>) {
    put(out, BLOCK as u64);
    put(out, (BLOCK / MINIBLOCK) as u64);
    put(out, numbers.len() as u64);
    let zigzag = |number: i64| (number << 1 ^ number >> 63) as u64;
    put(out, zigzag(numbers.first().copied().unwrap_or(0) as i64));
    let mut before = numbers.first().copied().unwrap_or(0);
    for block in numbers.get(1..).unwrap_or_default().chunks(BLOCK) {
        let mut differences = [0i64; BLOCK];
        for (difference, number) in differences.iter_mut().zip(block) {
            *difference = number.wrapping_sub(before) as i64;
            before = *number;
        }
        let least = differences[..block.len()].iter().min().copied().unwrap_or(0);
        let mut above = [0u64; BLOCK];
        for (above, difference) in above.iter_mut().zip(&differences[..block.len()]) {
            *above = difference.wrapping_sub(least) as u64;
        }
        put(out, zigzag(least));
        let widths = above.chunks(MINIBLOCK).map(|part| width(part.iter().fold(0, |a, b| a | b)));
        let widths: Vec<u32> = widths.collect();
        out.extend(widths.iter().map(|width| *width as u8));
        // Miniblocks behind the last value are not written.
        let parts = above.chunks(MINIBLOCK).zip(widths).take(block.len().div_ceil(MINIBLOCK));
        for (part, width) in parts {
            pack(part.iter().copied(), width, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Id, Ns};

    use super::*;
    use crate::dir::{Dir, Durability};
    use crate::segment::{Batches, write_attrs};

    /// What a file holds after batches of rows have been written into it, and how many row groups it has.
    fn read_back(batches: &[Vec<Attr>]) -> Vec<Attr> {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::make(folder.path(), Durability::ProcessDeath, None).unwrap();
        let batches: Vec<AttrBatch> = batches.iter().map(|rows| AttrBatch::of(rows)).collect();
        let file = write_attrs(&dir, "attr/00000.parquet", 0, &batches).unwrap();
        let mut read = Batches::open::<Attr>(&dir, &file, &(Ns::MIN..Ns::MAX)).unwrap();
        let mut rows = Vec::new();
        while let Some(batch) = read.next() {
            rows.extend(Attr::rows(&batch.unwrap()).unwrap());
        }
        assert_eq!(rows.len() as u64, file.rows);
        rows
    }

    fn attr(id: u64, key: &str, value: &str) -> Attr {
        Attr { id: Id(id), key: key.into(), value: value.into() }
    }

    #[test]
    fn rows_come_back_whatever_their_number() {
        for count in [1, 2, 7, 8, 9, 31, 32, 33, 34, 127, 128, 129, 130, 1000, 200_000] {
            let row = |n: u64| attr(n / 3, ["a", "b", "é"][n as usize % 3], &(n % 77).to_string());
            let rows: Vec<Attr> = (0..count).map(row).collect();
            assert_eq!(read_back(std::slice::from_ref(&rows)), rows, "{count}");
        }
    }

    #[test]
    fn batches_with_numbers_of_their_own_become_one_group_and_keep_their_texts() {
        let batch = |from: u64| {
            let texts = (from..from + 50).map(|n| attr(n, "n", &n.to_string()));
            texts.chain([attr(from, "from", "x"), attr(from, "n", "")]).collect::<Vec<_>>()
        };
        let batches = [batch(0), Vec::new(), batch(1000), batch(7)];
        assert_eq!(read_back(&batches), batches.concat());
    }

    #[test]
    fn ids_may_be_anything() {
        let ids = [u64::MAX, 0, u64::MAX / 2, 1, 1, 1 << 63, (1 << 63) - 1, 5];
        let rows: Vec<Attr> = ids.iter().map(|id| attr(*id, "k", "v")).collect();
        assert_eq!(read_back(std::slice::from_ref(&rows)), rows);
    }

    #[test]
    fn values_that_never_come_again_are_kept() {
        let rows: Vec<Attr> = (0..100_000u64)
            .map(|n| attr(n, "address", &n.wrapping_mul(0x9e37_79b9).to_string()))
            .collect();
        let batches: Vec<Vec<Attr>> = rows.chunks(30_000).map(<[Attr]>::to_vec).collect();
        assert_eq!(read_back(&batches), rows);
    }
}
