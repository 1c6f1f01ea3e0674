//! The sealed files: one Parquet file a table and segment, its rows sorted by start.
//!
//! Anybody's Parquet reader can read them: `read_parquet('x.trace/span/*.parquet')`.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, SchemaRef};
use gpuwhy_schema::{Ns, Table};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnPath;

use crate::dir::Dir;
use crate::guard::guarded;
use crate::manifest;
use crate::thrift::{self, Bad};
use crate::{Error, Result};

/// Rows of a row group: what a reader must decode at least when it wants one row.
const GROUP_ROWS: usize = 64 * 1024;
/// Rows of a batch when reading.
pub(crate) const BATCH_ROWS: usize = 8 * 1024;

/// More rows than this in a byte are refused. Our writer comes to some hundreds, where nothing ever
/// changes.
const ROWS_A_BYTE: u64 = 4096;
const MAX_FOOTER: u64 = 64 << 20;
/// Decompressed. Our writer cuts at 1 MiB, but a single text is not cut.
const MAX_PAGE: i64 = 256 << 20;
const MAX_PAGE_HEADER: usize = 1 << 20;
/// What the texts of a batch may take, if its dictionary is one long text.
const BATCH_TEXT: i64 = 256 << 20;
/// Of the encodings in the Parquet format's `Encoding`.
const DELTA_BYTE_ARRAY: i64 = 7;

/// How a table's columns are written.
///
/// Times and ids ascend, so their differences are small numbers (DELTA_BINARY_PACKED, which also
/// spares the dictionary that would have to be built and thrown away); names and tracks repeat
/// (dictionary). zstd 1 on top costs little and halves the rest.
fn properties<T: Table>() -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("gpuwhy-store ", env!("CARGO_PKG_VERSION")).into())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).expect("1 is a zstd level")))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for column in T::columns() {
        let path = || ColumnPath::from(column.name);
        match column.data_type {
            DataType::Int64 | DataType::UInt64 => {
                properties = properties
                    .set_column_dictionary_enabled(path(), false)
                    .set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED);
            }
            DataType::Utf8 => {
                // Nobody prunes by name, and the least and greatest text may be long.
                properties =
                    properties.set_column_statistics_enabled(path(), EnabledStatistics::None);
            }
            _ => {}
        }
    }
    properties.build()
}

/// The starts and ends of a batch's rows.
pub(crate) struct Times<'a> {
    start: &'a [i64],
    lasting: Option<&'a arrow_array::Int64Array>,
}

impl<'a> Times<'a> {
    /// `None` for tables without time, and for batches that are not of this table.
    pub fn of<T: Table>(batch: &'a RecordBatch) -> Option<Times<'a>> {
        let column = |name| batch.column_by_name(name)?.as_primitive_opt::<Int64Type>();
        Some(Times { start: column(T::START?)?.values(), lasting: T::LASTING.and_then(column) })
    }

    /// `None` while it has not ended.
    pub fn end(&self, row: usize) -> Option<i64> {
        match self.lasting {
            None => Some(self.start[row]),
            Some(lasting) if lasting.is_null(row) => None,
            Some(lasting) => Some(self.start[row].saturating_add(lasting.value(row))),
        }
    }

    /// The order of rows in a file: by start, and of those that start together the longest
    /// first, so that what contains comes before what is contained.
    pub fn key(&self, row: usize) -> (i64, std::cmp::Reverse<i64>) {
        (self.start[row], std::cmp::Reverse(self.end(row).unwrap_or(i64::MAX)))
    }

    /// The first row that is out of order.
    pub fn disorder(&self) -> Option<usize> {
        (1..self.start.len()).find(|&row| self.key(row - 1) > self.key(row))
    }

    /// The least start, the latest end of what has ended, and how many have not.
    pub fn extent(&self) -> Option<(i64, i64, u64)> {
        let min_start = *self.start.iter().min()?;
        let (mut max_end, mut open) = (i64::MIN, 0);
        for row in 0..self.start.len() {
            match self.end(row) {
                Some(end) => max_end = max_end.max(end),
                None => {
                    open += 1;
                    max_end = max_end.max(self.start[row]);
                }
            }
        }
        Some((min_start, max_end, open))
    }
}

/// The batch in the order of its file.
pub(crate) fn sorted<T: Table>(batch: RecordBatch) -> RecordBatch {
    let Some(times) = Times::of::<T>(&batch) else { return batch };
    if times.disorder().is_none() {
        return batch;
    }
    let mut order: Vec<u32> = (0..batch.num_rows() as u32).collect();
    order.sort_by_key(|&row| times.key(row as usize));
    take(&batch, order)
}

/// These rows of a batch, in this order.
pub(crate) fn take(batch: &RecordBatch, rows: Vec<u32>) -> RecordBatch {
    arrow_select::take::take_record_batch(batch, &UInt32Array::from(rows))
        .expect("the rows taken are rows of the batch")
}

/// Writes a sorted batch as `relative`, and says what the manifest has to say of it.
pub(crate) fn write<T: Table>(
    dir: &Dir,
    relative: &str,
    segment: u32,
    batch: &RecordBatch,
) -> Result<manifest::File> {
    let extent = Times::of::<T>(batch).and_then(|t| t.extent());
    let ((), bytes) = dir.commit(relative, |file, path| {
        let write = || -> Result<(), ParquetError> {
            let properties = properties::<T>();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties))?;
            writer.write(batch)?;
            writer.close()?;
            Ok(())
        };
        write().map_err(|source| match source {
            // What the disk said, not what Parquet says that the disk said.
            ParquetError::External(e) => match e.downcast::<std::io::Error>() {
                Ok(e) => Error::io("write", path)(*e),
                Err(e) => parquet_error(path, "while writing", ParquetError::External(e)),
            },
            source => parquet_error(path, "while writing", source),
        })
    })?;
    Ok(manifest::File {
        table: T::NAME.into(),
        path: relative.into(),
        segment,
        rows: batch.num_rows() as u64,
        bytes,
        min_start: extent.map(|e| e.0),
        max_end: extent.map(|e| e.1),
        open: extent.map_or(0, |e| e.2),
        repeats_from: None,
    })
}

fn parquet_error(path: &Path, place: impl Into<String>, source: ParquetError) -> Error {
    Error::Parquet { path: path.into(), place: place.into(), source }
}

/// One sealed file, open for reading, batch by batch.
pub(crate) struct Batches {
    path: PathBuf,
    reader: ParquetRecordBatchReader,
    /// With the metadata that says table and version, which the reader's own batches lack.
    schema: SchemaRef,
    /// The row of the file that the next batch begins with; exact if no row group was left out.
    pub row: u64,
    rows: u64,
}

impl Batches {
    /// Opens the file that `file` tells of, and checks that it is what the manifest says; of its
    /// row groups only those are read that may overlap `range`.
    pub fn open<T: Table>(dir: &Path, file: &manifest::File, range: &Range<Ns>) -> Result<Batches> {
        let path = dir.join(&file.path);
        let handle = open_checked(dir, &path, file.bytes)?;
        Batches::of_file::<T>(handle, path, Some(file.rows), range)
    }

    /// Reads a file whose place in a trace has been checked, if it is in one; `rows` is what the
    /// manifest says.
    fn of_file<T: Table>(
        handle: File,
        path: PathBuf,
        rows: Option<u64>,
        range: &Range<Ns>,
    ) -> Result<Batches> {
        let footer = Footer::read(&handle, &path)?;
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Skip);
        let metadata = guarded(|| {
            let metadata = ParquetMetaDataReader::decode_metadata(&footer.bytes)?;
            ArrowReaderMetadata::try_new(Arc::new(metadata), options)
        })
        .map_err(|what| Error::damaged(&path, format!("its footer: {what}")))?
        .map_err(|e| parquet_error(&path, "its footer", e))?;
        let found = metadata.metadata().file_metadata().num_rows();
        let groups = metadata.metadata().row_groups();
        let sum: i128 = groups.iter().map(|g| i128::from(g.num_rows())).sum();
        let said = rows.unwrap_or(found.max(0) as u64);
        if found < 0 || found as u64 != said || sum != i128::from(found) {
            return Err(Error::damaged(
                &path,
                format!(
                    "it holds {found} rows by its footer, {sum} by its row groups, and {said} by {}",
                    manifest::MANIFEST
                ),
            ));
        }
        if said > footer.file_length.saturating_mul(ROWS_A_BYTE) {
            let what = format!("{said} rows in {} bytes are absurd", footer.file_length);
            return Err(Error::damaged(&path, what));
        }
        check_columns::<T>(&metadata, &path)?;
        let wanted: Vec<usize> =
            (0..groups.len()).filter(|&i| group_meets::<T>(&groups[i], range)).collect();
        let batch_rows = check_pages(&handle, &path, footer.file_length, &metadata, &wanted)?;
        let rows = wanted.iter().map(|&i| groups[i].num_rows().max(0) as u64).sum();
        let reader = guarded(|| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(handle, metadata.clone())
                .with_batch_size(batch_rows)
                .with_row_groups(wanted)
                .build()
        })
        .map_err(|what| Error::damaged(&path, what))?
        .map_err(|e| parquet_error(&path, "its first row group", e))?;
        Ok(Batches { path, reader, schema: Arc::clone(metadata.schema()), row: 0, rows })
    }

    pub fn next(&mut self) -> Option<Result<RecordBatch>> {
        let place = format!("rows from {} on", self.row);
        let batch = match guarded(|| self.reader.next()) {
            Err(what) => return Some(Err(Error::damaged(&self.path, format!("{place}: {what}")))),
            Ok(Some(Err(e))) => {
                return Some(Err(parquet_error(&self.path, place, ParquetError::from(e))));
            }
            Ok(Some(Ok(batch))) => batch,
            Ok(None) if self.row == self.rows => return None,
            Ok(None) => {
                let what = format!("it ends after {} of {} rows", self.row, self.rows);
                self.row = self.rows;
                return Some(Err(Error::damaged(&self.path, what)));
            }
        };
        let rows = batch.num_rows() as u64;
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), batch.columns().to_vec())
            .map_err(|e| Error::damaged(&self.path, format!("{place}: {e}")));
        self.row += rows;
        Some(batch)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The footer of a file, looked over.
struct Footer {
    bytes: Vec<u8>,
    file_length: u64,
}

impl Footer {
    fn read(file: &File, path: &Path) -> Result<Footer> {
        let read = |buffer: &mut [u8], at| {
            file.read_exact_at(buffer, at).map_err(Error::io("read the footer of", path))
        };
        let file_length = file.metadata().map_err(Error::io("measure", path))?.len();
        let Some(end) = file_length.checked_sub(8).filter(|end| *end >= 4) else {
            return Err(Error::damaged(path, format!("{file_length} bytes are no Parquet file")));
        };
        let mut tail = [0; 8];
        read(&mut tail, end)?;
        let [a, b, c, d, magic @ ..] = tail;
        let length = u64::from(u32::from_le_bytes([a, b, c, d]));
        if &magic != b"PAR1" {
            return Err(Error::damaged(path, "its end: it does not end as Parquet files do"));
        }
        if length > end - 4 || length > MAX_FOOTER {
            let what = format!("its footer says that it has {length} bytes, of {file_length}");
            return Err(Error::damaged(path, what));
        }
        let mut bytes = vec![0; length as usize];
        read(&mut bytes, end - length)?;
        match thrift::check_footer(&bytes) {
            Ok(()) => Ok(Footer { bytes, file_length }),
            Err(Bad::CutOff) => Err(Error::damaged(path, "its footer: it is cut off")),
            Err(Bad::Unsound(what)) => Err(Error::damaged(path, format!("its footer: {what}"))),
        }
    }
}

/// Looks over the pages of these row groups, and says how many rows a batch may have so that its
/// texts stay within [`BATCH_TEXT`].
fn check_pages(
    file: &File,
    path: &Path,
    file_length: u64,
    metadata: &ArrowReaderMetadata,
    groups: &[usize],
) -> Result<usize> {
    let mut rows = BATCH_ROWS;
    let mut window = vec![0; 512];
    for &group in groups {
        for column in metadata.metadata().row_group(group).columns() {
            let name = column.column_path().string();
            let bad = |at: u64, what: &str| {
                Err(Error::damaged(path, format!("column `{name}`, byte {at}: {what}")))
            };
            let start = column.dictionary_page_offset().unwrap_or(i64::MAX);
            let start = start.min(column.data_page_offset());
            let (Ok(start), Ok(length)) =
                (u64::try_from(start), u64::try_from(column.compressed_size()))
            else {
                return bad(0, "it lies before the file");
            };
            let end = start.saturating_add(length);
            if end > file_length {
                return bad(start, "it lies behind the file");
            }
            let mut at = start;
            while at < end {
                let most = usize::try_from(end - at).unwrap_or(usize::MAX);
                let size = window.len().min(most);
                file.read_exact_at(&mut window[..size], at).map_err(Error::io("read", path))?;
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
                match header.encoding {
                    // Each text would be able to repeat all of the one before it.
                    Some(DELTA_BYTE_ARRAY) => return bad(at, "an encoding that no trace uses"),
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

/// Opens a file whose path the manifest gave, if it lies in the trace and has its length.
fn open_checked(dir: &Path, path: &Path, bytes: u64) -> Result<File> {
    // `Manifest::parse` has seen to it that the path has no `..`; a link could still lead out.
    for part in [path.parent().unwrap_or(dir), path] {
        let found = std::fs::symlink_metadata(part).map_err(Error::io("open", part))?;
        if !found.is_dir() && !found.is_file() {
            return Err(Error::damaged(part, "it is not a regular file"));
        }
    }
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let metadata = file.metadata().map_err(Error::io("measure", path))?;
    if !metadata.is_file() {
        return Err(Error::damaged(path, "it is not a regular file"));
    }
    if metadata.len() != bytes {
        return Err(Error::damaged(
            path,
            format!("it has {} bytes, {} says {bytes}", metadata.len(), manifest::MANIFEST),
        ));
    }
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(Error::io("read", path))?;
    if &magic != b"PAR1" {
        return Err(Error::damaged(path, "byte 0: it does not begin as Parquet files do"));
    }
    Ok(file)
}

/// Refuses a file whose columns are not its table's, before any of them is decoded.
fn check_columns<T: Table>(metadata: &ArrowReaderMetadata, path: &Path) -> Result<()> {
    let found = metadata.schema();
    let empty = RecordBatch::new_empty(Arc::clone(found));
    T::rows(&empty).map_err(Error::schema(path, "its columns"))?;
    // A column that is not ours costs memory and tells nothing; and a nested one, in a hostile
    // file, costs it without bound.
    if found.fields().len() != T::columns().len() {
        let what = format!(
            "it has {} columns, {} has {}",
            found.fields().len(),
            T::NAME,
            T::columns().len()
        );
        return Err(Error::damaged(path, what));
    }
    Ok(())
}

/// Whether a row of this group may overlap `range`, by what its statistics say.
fn group_meets<T: Table>(group: &RowGroupMetaData, range: &Range<Ns>) -> bool {
    let statistics = |name: &str| {
        let column = group.columns().iter().find(|c| c.column_path().string() == name)?;
        match column.statistics()? {
            Statistics::Int64(s) => {
                Some((*s.min_opt()?, *s.max_opt()?, s.null_count_opt().unwrap_or(1)))
            }
            _ => None,
        }
    };
    let Some(start) = T::START else { return true };
    let Some((first, last, _)) = statistics(start) else { return true };
    let end = match T::LASTING.map(statistics) {
        None => last,
        Some(Some((_, longest, 0))) => last.saturating_add(longest),
        Some(_) => i64::MAX,
    };
    Ns(first) < range.end && Ns(end) >= range.start
}

/// Reads a Parquet file as one of a trace's, from its first row to its last, and says how many
/// rows it had: what the fuzz target does.
pub(crate) fn read_file<T: Table>(path: &Path) -> Result<u64> {
    let handle = File::open(path).map_err(Error::io("open", path))?;
    let mut batches = Batches::of_file::<T>(handle, path.into(), None, &(Ns::MIN..Ns::MAX))?;
    while let Some(batch) = batches.next() {
        T::rows(&batch?).map_err(Error::schema(path, "its rows"))?;
    }
    Ok(batches.row)
}
