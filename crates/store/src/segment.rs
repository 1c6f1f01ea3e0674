//! The sealed files: one Parquet file a table and segment, its rows sorted by start.
//!
//! Anybody's Parquet reader can read them: `read_parquet('x.trace/span/*.parquet')`.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;
use gpuwhy_guard::guarded;
use gpuwhy_schema::{Attr, AttrBatch, Ns, Table, schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::statistics::Statistics;

use crate::beneath::Written;
use crate::dir::Dir;
use crate::pages::Pages;
use crate::{Error, Result, attr_file, manifest, table_file};

/// Rows of a row group: what a reader must decode at least when it wants one row.
const GROUP_ROWS: usize = 64 * 1024;
/// Rows of a batch when reading.
pub(crate) const BATCH_ROWS: usize = 8 * 1024;

/// What the footers of all files have in common.
fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_created_by(concat!("gpuwhy-store ", env!("CARGO_PKG_VERSION")).into())
        .set_offset_index_disabled(true)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .build()
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
    take(&batch, order(times.start, |row| times.key(row).1))
}

/// Puts rows into the order of their file, if they have times.
pub(crate) fn arrange<T: Table>(rows: &mut [T]) {
    if T::START.is_none() {
        return;
    }
    let end = |row: &T| std::cmp::Reverse(row.end().map_or(i64::MAX, |end| end.0));
    let starts: Vec<i64> = rows.iter().map(|row| row.start().map_or(0, |start| start.0)).collect();
    let follows = |row: usize| {
        let (before, this) = (starts[row - 1], starts[row]);
        before < this || before == this && end(&rows[row - 1]) <= end(&rows[row])
    };
    if (1..rows.len()).all(follows) {
        return;
    }
    let mut order = order(&starts, |row| end(&rows[row]));
    // Each goes to its place and makes the place free that another one goes to, until one goes to the first place.
    for first in 0..rows.len() {
        let mut to = first;
        loop {
            let from = order[to] as usize;
            order[to] = to as u32;
            if from == first {
                break;
            }
            rows.swap(to, from);
            to = from;
        }
    }
}

/// The rows in the order of their starts and, of those that start together, of what `then` says; those of which both are
/// the same stay as they are.
fn order<K: Ord>(starts: &[i64], then: impl Fn(usize) -> K) -> Vec<u32> {
    let least = starts.iter().copied().min().unwrap_or(0);
    let most = starts.iter().copied().max().unwrap_or(0);
    let bits = usize::BITS - starts.len().leading_zeros();
    let rows = 0..starts.len() as u32;
    if (most.wrapping_sub(least) as u64).leading_zeros() < bits {
        let mut order: Vec<u32> = rows.collect();
        order.sort_by_key(|row| (starts[*row as usize], then(*row as usize)));
        return order;
    }
    // Start and row in one number, which sorts several times as fast.
    let number = |row: u32| {
        let since = starts[row as usize].wrapping_sub(least) as u64;
        since << bits | u64::from(row)
    };
    let mut order: Vec<u64> = rows.map(number).collect();
    order.sort_unstable();
    let row = |number: u64| (number & ((1 << bits) - 1)) as usize;
    for together in order.chunk_by_mut(|a, b| *a >> bits == *b >> bits) {
        if together.len() > 1 {
            together.sort_by_key(|number| then(row(*number)));
        }
    }
    order.into_iter().map(|number| row(number) as u32).collect()
}

/// These rows of a batch, in this order.
pub(crate) fn take(batch: &RecordBatch, rows: Vec<u32>) -> RecordBatch {
    arrow_select::take::take_record_batch(batch, &UInt32Array::from(rows))
        .expect("the rows taken are rows of the batch")
}

/// Writes batches, which follow each other in their order, as `relative`, and says what the manifest has to say of it.
pub(crate) fn write<T: Table>(
    dir: &Dir,
    relative: &str,
    segment: u32,
    batches: &[RecordBatch],
    pages: &mut Pages,
) -> Result<manifest::File> {
    let extents = batches.iter().filter_map(|batch| Times::of::<T>(batch)?.extent());
    let extent = extents.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1), a.2 + b.2));
    let bytes = commit(dir, relative, |file| {
        table_file::write(file, schema::<T>(), properties(), batches, GROUP_ROWS, pages)
    })?;
    Ok(manifest::File {
        table: T::NAME.into(),
        path: relative.into(),
        segment,
        rows: batches.iter().map(|batch| batch.num_rows() as u64).sum(),
        bytes,
        min_start: extent.map(|e| e.0),
        max_end: extent.map(|e| e.1),
        open: extent.map_or(0, |e| e.2),
        repeats_from: None,
    })
}

/// Writes rows of `attr` whose texts are numbered; see [`crate::attr_file`].
pub(crate) fn write_attrs(
    dir: &Dir,
    relative: &str,
    segment: u32,
    batches: &[AttrBatch],
    pages: &mut Pages,
) -> Result<manifest::File> {
    let bytes = commit(dir, relative, |file| {
        attr_file::write(file, properties(), batches, GROUP_ROWS, pages)
    })?;
    Ok(manifest::File {
        table: Attr::NAME.into(),
        path: relative.into(),
        segment,
        rows: batches.iter().map(|batch| batch.len() as u64).sum(),
        bytes,
        min_start: None,
        max_end: None,
        open: 0,
        repeats_from: None,
    })
}

/// Lets `write` write a file, and says how many bytes it has.
fn commit(
    dir: &Dir,
    relative: &str,
    write: impl FnOnce(&mut Written) -> Result<(), ParquetError>,
) -> Result<u64> {
    let ((), bytes) = dir.commit(relative, |file, path| {
        write(file).map_err(|source| match source {
            // What the disk said, not what Parquet says that the disk said.
            ParquetError::External(e) => match e.downcast::<std::io::Error>() {
                Ok(e) => Error::io("write", path)(*e),
                Err(e) => parquet_error(path, "while writing", ParquetError::External(e)),
            },
            source => parquet_error(path, "while writing", source),
        })
    })?;
    Ok(bytes)
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
    /// Opens the file that `file` describes, and checks that it is what the manifest says; of its
    /// row groups only those are read that may overlap `range`.
    pub fn open<T: Table>(dir: &Dir, file: &manifest::File, range: &Range<Ns>) -> Result<Batches> {
        Batches::open_columns::<T>(dir, file, range, &[])
    }

    /// The same with these columns alone; all, if none is named.
    pub fn open_columns<T: Table>(
        dir: &Dir,
        file: &manifest::File,
        range: &Range<Ns>,
        columns: &[&str],
    ) -> Result<Batches> {
        let path = dir.at(&file.path);
        let handle = open_checked(dir, &file.path, file.bytes)?;
        Batches::of_file::<T>(handle, path, Some(file.rows), range, columns)
    }

    /// Reads a file whose place in a trace has been checked, if it is in one; `rows` is what the
    /// manifest says.
    fn of_file<T: Table>(
        handle: File,
        path: PathBuf,
        rows: Option<u64>,
        range: &Range<Ns>,
        columns: &[&str],
    ) -> Result<Batches> {
        let checked = gpuwhy_guard::metadata(&handle).map_err(Error::unsound(&path))?;
        let said = rows.unwrap_or(checked.rows);
        if checked.rows != said {
            let what = format!(
                "it holds {} rows by its footer, and {said} by {}",
                checked.rows,
                manifest::MANIFEST
            );
            return Err(Error::damaged(&path, what));
        }
        let metadata = checked.metadata.clone();
        let groups = metadata.metadata().row_groups();
        check_columns::<T>(&metadata, &path)?;
        let wanted: Vec<usize> =
            (0..groups.len()).filter(|&i| group_meets::<T>(&groups[i], range)).collect();
        let batch_rows = gpuwhy_guard::check_pages(&handle, &checked, &wanted, BATCH_ROWS)
            .map_err(Error::unsound(&path))?;
        let rows = wanted.iter().map(|&i| groups[i].num_rows().max(0) as u64).sum();
        let mut schema = Arc::clone(metadata.schema());
        let mut mask = ProjectionMask::all();
        if !columns.is_empty() {
            let is_wanted = |name: &str| columns.contains(&name);
            let places: Vec<usize> =
                (0..schema.fields().len()).filter(|&i| is_wanted(schema.field(i).name())).collect();
            schema = Arc::new(schema.project(&places).expect("the places are of its own fields"));
            mask =
                ProjectionMask::roots(metadata.metadata().file_metadata().schema_descr(), places);
        }
        let reader = guarded(|| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(handle, metadata)
                .with_batch_size(batch_rows)
                .with_row_groups(wanted)
                .with_projection(mask)
                .build()
        })
        .map_err(|what| Error::damaged(&path, what))?
        .map_err(|e| parquet_error(&path, "its first row group", e))?;
        Ok(Batches { path, reader, schema, row: 0, rows })
    }

    /// The next batch; `None` after the last row. An error names the file and the row.
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

    /// The file that the batches come from.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a file whose path the manifest gave, if it lies in the trace and has its length.
fn open_checked(dir: &Dir, relative: &str, bytes: u64) -> Result<File> {
    let path = &dir.at(relative);
    let mut file = dir.file(relative)?;
    let metadata = file.metadata().map_err(Error::io("measure", path))?;
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
    // A column that is not ours only costs memory; and a nested one, in a hostile
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
    let mut batches = Batches::of_file::<T>(handle, path.into(), None, &(Ns::MIN..Ns::MAX), &[])?;
    while let Some(batch) = batches.next() {
        T::rows(&batch?).map_err(Error::schema(path, "its rows"))?;
    }
    Ok(batches.row)
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Span, TrackId};

    use super::*;

    #[test]
    fn rows_are_sorted_by_start_then_the_longest_first_however_far_apart_they_are() {
        let span = |number: usize, start: i64| Span {
            id: gpuwhy_schema::Id(number as u64),
            ts: Ns(start),
            dur: (!number.is_multiple_of(7)).then_some(Ns(number as i64 * 31 % 5)),
            track: TrackId(1),
            parent: None,
            name: "s".into(),
        };
        for ends in [[0, 0], [-40, 40], [i64::MIN, i64::MAX]] {
            let starts = (0..500).map(|n| n * 7919 % 37).chain(ends);
            let spans: Vec<Span> = starts.enumerate().map(|(n, start)| span(n, start)).collect();
            let mut expected = spans.clone();
            expected.sort_by_key(|span| {
                let end = span.dur.map_or(i64::MAX, |dur| span.ts.0.saturating_add(dur.0));
                (span.ts, std::cmp::Reverse(end))
            });
            assert_eq!(Span::rows(&sorted::<Span>(Span::batch(&spans))).unwrap(), expected);
            let mut spans = spans;
            arrange(&mut spans);
            assert_eq!(spans, expected);
        }
    }
}
