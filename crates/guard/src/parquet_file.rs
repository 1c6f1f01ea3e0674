//! Parquet: the footer, then the headers of the pages that are to be read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};

use crate::thrift::{self, Bad};
use crate::{Result, Unsound, guarded};

const MAX_FOOTER: u64 = 64 << 20;
/// Decompressed. Usual writers cut at 1 MiB, but a single text is not cut.
const MAX_PAGE: i64 = 256 << 20;
const MAX_PAGE_HEADER: usize = 1 << 20;
/// What the texts of a batch may take, if its dictionary is one long text.
const BATCH_TEXT: i64 = 256 << 20;
/// More rows than this in a byte are refused. Usual writers come to some hundreds, where nothing ever
/// changes.
const ROWS_A_BYTE: u64 = 4096;
/// Pages together may unpack to so much, and to [`ROWS_A_BYTE`] times the file: each that says it is
/// large costs as much memory to be filled, though nothing is in it.
const UNPACKED: u64 = 64 << 20;
/// Of the encodings in the Parquet format's `Encoding`.
const DELTA_BYTE_ARRAY: i64 = 7;

/// A file's metadata, looked over.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What its footer says.
    pub metadata: ArrowReaderMetadata,
    /// How many rows it has, by its footer and its row groups.
    pub rows: u64,
    /// How long it is.
    pub length: u64,
}

/// Reads the footer of a file.
///
/// # Errors
/// It is not a Parquet file, or contradicts itself.
pub fn metadata(file: &File) -> Result<Checked> {
    let (bytes, length) = footer(file)?;
    let damaged = |what: String| Unsound::Damaged(format!("its footer: {what}"));
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Skip);
    let metadata = guarded(|| {
        let metadata = ParquetMetaDataReader::decode_metadata(&bytes)?;
        ArrowReaderMetadata::try_new(Arc::new(metadata), options)
    })
    .map_err(damaged)?
    .map_err(|source| Unsound::Parquet { place: "its footer".into(), source })?;
    let said = metadata.metadata().file_metadata().num_rows();
    let groups = metadata.metadata().row_groups();
    let sum: i128 = groups.iter().map(|g| i128::from(g.num_rows())).sum();
    let rows = u64::try_from(said).ok().filter(|_| sum == i128::from(said));
    let Some(rows) = rows else {
        let what = format!("it holds {said} rows by its footer and {sum} by its row groups");
        return Err(Unsound::Damaged(what));
    };
    if rows > length.saturating_mul(ROWS_A_BYTE) {
        return Err(Unsound::Damaged(format!("{rows} rows in {length} bytes are absurd")));
    }
    Ok(Checked { metadata, rows, length })
}

/// The bytes of the footer, and how long the file is.
fn footer(file: &File) -> Result<(Vec<u8>, u64)> {
    let damaged = |what: String| Err(Unsound::Damaged(what));
    let read = |buffer: &mut [u8], at| {
        file.read_exact_at(buffer, at).map_err(Unsound::io("read the footer of"))
    };
    let length = file.metadata().map_err(Unsound::io("measure"))?.len();
    let Some(end) = length.checked_sub(8).filter(|end| *end >= 4) else {
        return damaged(format!("{length} bytes are no Parquet file"));
    };
    let mut tail = [0; 8];
    read(&mut tail, end)?;
    let [a, b, c, d, magic @ ..] = tail;
    let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
    if &magic != b"PAR1" {
        return damaged("its end: it does not end as Parquet files do".into());
    }
    if footer > end - 4 || footer > MAX_FOOTER {
        return damaged(format!("its footer says that it has {footer} bytes, of {length}"));
    }
    let mut bytes = vec![0; footer as usize];
    read(&mut bytes, end - footer)?;
    match thrift::check_footer(&bytes) {
        Ok(()) => Ok((bytes, length)),
        Err(Bad::CutOff) => damaged("its footer: it is cut off".into()),
        Err(Bad::Unsound(what)) => damaged(format!("its footer: {what}")),
    }
}

/// Looks over the pages of these row groups, and says how many rows a batch may have, `most` at most,
/// so that its texts stay within bounds.
///
/// # Errors
/// A page is cut off, or unpacks to what cannot be.
pub fn check_pages(file: &File, of: &Checked, groups: &[usize], most: usize) -> Result<usize> {
    let mut rows = most;
    let mut unpacked = 0u64;
    let mut window = vec![0; 512];
    for &group in groups {
        for column in of.metadata.metadata().row_group(group).columns() {
            let name = column.column_path().string();
            let bad = |at: u64, what: &str| {
                Err(Unsound::Damaged(format!("column `{name}`, byte {at}: {what}")))
            };
            // Where the reader begins.
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let (Ok(start), Ok(length)) =
                (u64::try_from(start), u64::try_from(column.compressed_size()))
            else {
                return bad(0, "it lies before the file");
            };
            let end = start.saturating_add(length);
            if end > of.length {
                return bad(start, "it lies behind the file");
            }
            let mut at = start;
            while at < end {
                let most = usize::try_from(end - at).unwrap_or(usize::MAX);
                let size = window.len().min(most);
                file.read_exact_at(&mut window[..size], at).map_err(Unsound::io("read"))?;
                let header = match thrift::page_header(&window[..size]) {
                    Ok(header) => header,
                    Err(Bad::CutOff) if size < most && size < MAX_PAGE_HEADER => {
                        window.resize(window.len() * 4, 0);
                        continue;
                    }
                    Err(Bad::CutOff) => return bad(at, "a page header is cut off"),
                    Err(Bad::Unsound(what)) => return bad(at, what),
                };
                if header.uncompressed > MAX_PAGE {
                    return bad(at, &format!("a page of {} bytes is absurd", header.uncompressed));
                }
                unpacked = unpacked.saturating_add(header.uncompressed.max(0) as u64);
                if unpacked > UNPACKED.saturating_add(of.length.saturating_mul(ROWS_A_BYTE)) {
                    let what = format!("{unpacked} bytes in the pages of {} are absurd", of.length);
                    return bad(at, &what);
                }
                match header.encoding {
                    // Each text would be able to repeat all of the one before it.
                    Some(DELTA_BYTE_ARRAY) => return bad(at, "an encoding that is not read"),
                    // The texts of a dictionary can be repeated in every row.
                    None if column.column_type() == parquet::basic::Type::BYTE_ARRAY => {
                        let fit = BATCH_TEXT / header.uncompressed.max(1);
                        rows = rows.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1);
                    }
                    _ => {}
                }
                at += header.length as u64 + header.compressed as u64;
            }
        }
    }
    Ok(rows)
}
