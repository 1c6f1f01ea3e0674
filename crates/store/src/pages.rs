//! Pages of Parquet, one a column and row group: how numbers are packed, compressed, and described in the footer.
//!
//! # How
//! Times and ids are written as differences (DELTA_BINARY_PACKED), what repeats as numbers of a dictionary
//! (RLE_DICTIONARY). Pages and their order are those of the format (github.com/apache/parquet-format, `Encodings.md`), so
//! that any reader of Parquet reads them. Buffers and the compressor's memory are used again from page to page.

use arrow_schema::SchemaRef;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter as _};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use crate::beneath::Written;

/// The level of zstd.
pub(crate) const LEVEL: i32 = 1;
/// Differences that are packed together, and of them those that have the same width.
const BLOCK: usize = 128;
const MINIBLOCK: usize = 32;

/// The bytes of a column of a row group, and what the footer says of them.
pub(crate) struct Chunk {
    pub bytes: Bytes,
    pub close: ColumnCloseResult,
}

/// Makes pages. The compressor takes a megabyte, which is touched once if one makes the pages of many files.
#[derive(Default)]
pub(crate) struct Pages {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    /// What the next page holds.
    pub plain: Vec<u8>,
}

impl Pages {
    fn compressed(&mut self) -> Result<Bytes> {
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            none => none.insert(zstd::bulk::Compressor::new(LEVEL)?),
        };
        Ok(zstd.compress(&self.plain)?.into())
    }

    /// Adds what is in `plain` as the dictionary of a column.
    pub fn dictionary(&mut self, out: &mut Out, texts: u32) -> Result<()> {
        let page = Page::DictionaryPage {
            buf: self.compressed()?,
            num_values: texts,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        out.has_dictionary = true;
        out.write(CompressedPage::new(page, self.plain.len()))
    }

    /// Adds what is in `plain` as a page of so many rows.
    pub fn page(&mut self, out: &mut Out, rows: usize, encoding: Encoding) -> Result<()> {
        let page = Page::DataPage {
            buf: self.compressed()?,
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        out.data_at = out.data_at.or(Some(out.bytes.len()));
        out.write(CompressedPage::new(page, self.plain.len()))
    }
}

/// Pages one after the other.
#[derive(Default)]
pub(crate) struct Out {
    bytes: Vec<u8>,
    unpacked: usize,
    has_dictionary: bool,
    /// Where the first page of rows begins.
    data_at: Option<usize>,
}

impl Out {
    fn write(&mut self, page: CompressedPage) -> Result<()> {
        let mut sink = TrackedWrite::new(&mut self.bytes);
        let spec = SerializedPageWriter::new(&mut sink).write_page(page)?;
        let _: &mut Vec<u8> = sink.into_inner()?;
        self.unpacked += spec.uncompressed_size;
        Ok(())
    }

    /// The pages as a column of so many rows.
    pub fn chunk(
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
            .set_data_page_offset(self.data_at.unwrap_or(0) as i64)
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

/// Writes row groups; `chunk` makes each column, by its number, of what is in a group.
pub(crate) fn write_groups<G>(
    file: &mut Written,
    schema: SchemaRef,
    properties: WriterProperties,
    groups: impl IntoIterator<Item = G>,
    mut chunk: impl FnMut(usize, ColumnDescPtr, &G) -> Result<Chunk>,
) -> Result<()> {
    let (mut writer, _) =
        ArrowWriter::try_new(file, schema, Some(properties))?.into_serialized_writer()?;
    let types = writer.schema_descr().clone();
    for group in groups {
        let mut row_group = writer.next_row_group()?;
        for at in 0..types.num_columns() {
            let chunk = chunk(at, types.column(at), &group)?;
            row_group.append_column(&chunk.bytes, chunk.close)?;
        }
        row_group.close()?;
    }
    writer.close()?;
    Ok(())
}

/// A text with its length before it.
pub(crate) fn put_text(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

/// How many bits a number takes.
fn width(number: u64) -> u32 {
    64 - number.leading_zeros()
}

/// A number with seven bits a byte, the lowest first (LEB128).
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The lowest `width` bits of each number, which has no others, one behind the other, the lowest bit first.
#[inline]
pub(crate) fn pack(numbers: impl Iterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    let (mut held, mut bits) = (0u64, 0);
    for number in numbers {
        held |= number << bits;
        bits += width;
        if bits >= 64 {
            out.extend_from_slice(&held.to_le_bytes());
            bits -= 64;
            // What the word had no room for.
            held = if bits == 0 { 0 } else { number >> (width - bits) };
        }
    }
    out.extend_from_slice(&held.to_le_bytes()[..bits.div_ceil(8) as usize]);
}

/// Numbers of a dictionary of so many entries (`RLE_DICTIONARY`): as one run of packed bits, or one of the same number.
pub(crate) fn pack_numbers(numbers: &[u32], entries: u32, out: &mut Vec<u8>) {
    let width = width(u64::from(entries.saturating_sub(1)));
    out.push(width as u8);
    if width == 0 {
        put(out, (numbers.len() as u64) << 1);
        return;
    }
    let groups = numbers.len().div_ceil(8);
    put(out, (groups as u64) << 1 | 1);
    let unused = 8 * groups - numbers.len();
    let all = numbers.iter().map(|number| u64::from(*number));
    out.reserve(groups * width as usize + 8);
    pack(all.chain(std::iter::repeat_n(0, unused)), width, out);
}

/// Differences of numbers in blocks (`DELTA_BINARY_PACKED`).
pub(crate) fn delta(numbers: &[u64], out: &mut Vec<u8>) {
    put(out, BLOCK as u64);
    put(out, (BLOCK / MINIBLOCK) as u64);
    put(out, numbers.len() as u64);
    let zigzag = |number: i64| (number << 1 ^ number >> 63) as u64;
    put(out, zigzag(numbers.first().copied().unwrap_or(0) as i64));
    // Each block with the number before it.
    for (block, from) in
        numbers.get(1..).unwrap_or_default().chunks(BLOCK).zip((0..).step_by(BLOCK))
    {
        let mut differences = [0i64; BLOCK];
        for ((difference, number), before) in
            differences.iter_mut().zip(block).zip(&numbers[from..])
        {
            *difference = number.wrapping_sub(*before) as i64;
        }
        let least = differences[..block.len()].iter().min().copied().unwrap_or(0);
        let mut above = [0u64; BLOCK];
        for (above, difference) in above.iter_mut().zip(&differences[..block.len()]) {
            *above = difference.wrapping_sub(least) as u64;
        }
        put(out, zigzag(least));
        let (parts, _) = above.as_chunks::<MINIBLOCK>();
        let mut widths = [0; BLOCK / MINIBLOCK];
        for (width_of, part) in widths.iter_mut().zip(parts) {
            *width_of = width(part.iter().fold(0, |a, b| a | b));
        }
        out.extend(widths.map(|width| width as u8));
        // Miniblocks behind the last value are not written.
        for (part, width) in parts.iter().zip(widths).take(block.len().div_ceil(MINIBLOCK)) {
            pack(part.iter().copied(), width, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that were packed, taken out bit by bit.
    fn unpacked(bytes: &[u8], width: u32, count: usize) -> Vec<u64> {
        let bit = |at: usize| u64::from(bytes[at / 8] >> (at % 8) & 1);
        let number = |n: usize| (0..width as usize).map(|i| bit(n * width as usize + i) << i).sum();
        (0..count).map(number).collect()
    }

    #[test]
    fn numbers_of_any_width_lie_bit_behind_bit() {
        for width in 1..=64 {
            let all = u64::MAX >> (64 - width);
            let numbers: Vec<u64> = (0..200u64)
                .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) & all)
                .chain([0, all, all, 0, 1])
                .collect();
            let mut out = vec![0xee];
            pack(numbers.iter().copied(), width, &mut out);
            assert_eq!(out.len(), 1 + (numbers.len() * width as usize).div_ceil(8), "{width}");
            assert_eq!(unpacked(&out[1..], width, numbers.len()), numbers, "{width}");
        }
        let mut out = Vec::new();
        pack([0, 0, 0].into_iter(), 0, &mut out);
        assert!(out.is_empty());
    }
}
