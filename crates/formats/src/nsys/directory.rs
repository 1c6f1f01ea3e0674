//! The tables of a report as a directory of files, one a table: Parquet as `nsys export -t parquetdir`
//! writes it, or Arrow as `-t arrowdir` does.
//!
//! Nsight Systems writes Arrow *streams* under the ending `.arrow`; files of the Arrow file format are read as
//! well. In place of a database's leaf pages there are stretches of rows: of a Parquet file 512 rows each, of
//! an Arrow file or stream its record batches. Ids are unsigned in these files and signed in a database; their bits are
//! the same.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, BooleanArray, DictionaryArray, Float32Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, LargeStringArray, RecordBatch, StringArray, UInt8Array, UInt16Array,
    UInt32Array, UInt64Array,
};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, Field, Schema};
use gpuwhy_guard::{Checked, Stream, check_blocks, check_pages, check_stream, guarded};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::sqlite::{TableDef, Value};
use crate::{Error, Result};

/// Rows of a stretch of a Parquet file.
const STRETCH: usize = 512;
/// How many rows are decoded at once.
const BATCH: usize = 8192;
/// A batch of more rows a byte than bits is made of nulls that are not there.
const ROWS_A_BYTE: usize = 8;
/// A directory with more files is no report.
const MAX_FILES: usize = 1 << 12;

/// The kind of a file.
#[derive(Debug)]
enum Kind {
    /// With the number of rows that are decoded at once.
    Parquet(Checked, usize),
    /// With the number of its record batches.
    Arrow(usize),
    /// With where its messages lie.
    ArrowStream(Stream),
}

/// Some stretches of a file, read one after the other.
struct Stretches {
    file: File,
    rest: VecDeque<Range<u64>>,
}

impl Read for Stretches {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.front().is_some_and(|stretch| stretch.is_empty()) {
            self.rest.pop_front();
        }
        let Some(stretch) = self.rest.front_mut() else { return Ok(0) };
        let most = usize::try_from(stretch.end - stretch.start).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let count = self.file.read_at(&mut buffer[..most], stretch.start)?;
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        stretch.start += count as u64;
        Ok(count)
    }
}

impl Stretches {
    /// A stream of some of the batches of a stream.
    fn of(file: File, stream: &Stream, batches: &[Range<u64>]) -> Stretches {
        let mut rest = VecDeque::from([stream.schema.clone()]);
        if let (Some(first), Some(last)) = (batches.first(), batches.last()) {
            let before = stream.dictionaries.iter().take_while(|d| d.start < first.start);
            rest.extend(before.cloned());
            // Dictionaries between the batches come along.
            rest.push_back(first.start..last.end);
        }
        Stretches { file, rest }
    }
}

#[derive(Debug)]
struct Table {
    def: TableDef,
    path: PathBuf,
    kind: Kind,
}

/// A directory of tables.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    tables: BTreeMap<String, Table>,
}

/// Whether a directory holds such an export.
pub(super) fn is_directory(path: &Path) -> bool {
    let known = ["StringIds.parquet", "StringIds.arrow"];
    known.iter().any(|name| path.join(name).is_file())
}

fn damaged(path: &Path, place: &str, error: impl std::fmt::Display) -> Error {
    Error::damaged(path, place, error.to_string())
}

/// The names of columns. Nested columns get none, so that they are never read: in a hostile file they
/// would take memory without bound.
fn names(schema: &Schema) -> Vec<String> {
    let name = |f: &std::sync::Arc<Field>| match f.data_type().is_nested() {
        true => String::new(),
        false => f.name().clone(),
    };
    schema.fields().iter().map(name).collect()
}

/// Opens a regular file.
fn file(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let metadata = file.metadata().map_err(Error::io("measure", path))?;
    if !metadata.is_file() {
        return Err(damaged(path, "its kind", "it is not a regular file"));
    }
    Ok(file)
}

impl Table {
    fn parquet(path: &Path, name: &str) -> Result<Table> {
        let file = file(path)?;
        let checked = gpuwhy_guard::metadata(&file).map_err(Error::unsound(path))?;
        let groups: Vec<usize> = (0..checked.metadata.metadata().num_row_groups()).collect();
        let rows = check_pages(&file, &checked, &groups, BATCH).map_err(Error::unsound(path))?;
        let columns = names(checked.metadata.schema());
        let def = TableDef::plain(name, columns);
        Ok(Table { def, path: path.into(), kind: Kind::Parquet(checked, rows) })
    }

    fn arrow(path: &Path, name: &str) -> Result<Table> {
        let file = file(path)?;
        let mut magic = [0; 6];
        let is_file = file.read_exact_at(&mut magic, 0).is_ok() && &magic == b"ARROW1";
        if !is_file {
            return Table::arrow_stream(path, name, file);
        }
        check_blocks(&file).map_err(Error::unsound(path))?;
        let reader = guarded(|| FileReader::try_new(file, None))
            .map_err(|e| damaged(path, "its footer", e))?
            .map_err(|e| damaged(path, "its footer", e))?;
        let columns = names(&reader.schema());
        let def = TableDef::plain(name, columns);
        Ok(Table { def, path: path.into(), kind: Kind::Arrow(reader.num_batches()) })
    }
}

impl Table {
    fn arrow_stream(path: &Path, name: &str, file: File) -> Result<Table> {
        let stream = check_stream(&file).map_err(Error::unsound(path))?;
        let open = || StreamReader::try_new(Stretches::of(file, &stream, &[]), None);
        let reader = guarded(open)
            .map_err(|e| damaged(path, "its schema", e))?
            .map_err(|e| damaged(path, "its schema", e))?;
        let def = TableDef::plain(name, names(&reader.schema()));
        Ok(Table { def, path: path.into(), kind: Kind::ArrowStream(stream) })
    }
}

impl Directory {
    /// Opens all its files and reads the names of their columns.
    pub fn open(path: &Path) -> Result<Directory> {
        let mut all = Directory { path: path.into(), tables: BTreeMap::new() };
        for entry in path.read_dir().map_err(Error::io("open", path))? {
            let file = entry.map_err(Error::io("read", path))?.path();
            let (Some(name), Some(ending)) = (
                file.file_stem().and_then(|name| name.to_str()),
                file.extension().and_then(|ending| ending.to_str()),
            ) else {
                continue;
            };
            let name = name.to_owned();
            let opened = match ending {
                "parquet" => Table::parquet(&file, &name)?,
                "arrow" => Table::arrow(&file, &name)?,
                _ => continue,
            };
            all.tables.insert(name.to_ascii_lowercase(), opened);
            if all.tables.len() > MAX_FILES {
                return Err(damaged(path, "its files", format!("more than {MAX_FILES} tables")));
            }
        }
        Ok(all)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = &TableDef> {
        self.tables.values().map(|table| &table.def)
    }

    /// The table of that name, in any case of letters.
    pub fn table(&self, name: &str) -> Option<&TableDef> {
        self.tables.get(&name.to_ascii_lowercase()).map(|table| &table.def)
    }

    fn of(&self, def: &TableDef) -> Result<&Table> {
        let found = self.tables.get(&def.name.to_ascii_lowercase());
        found.ok_or_else(|| damaged(&self.path, &def.name, "there is no such table"))
    }

    /// The numbers of its stretches.
    pub fn leaves(&self, def: &TableDef) -> Result<Vec<u32>> {
        let table = self.of(def)?;
        let count = match &table.kind {
            Kind::Parquet(checked, _) => {
                usize::try_from(checked.rows).unwrap_or(usize::MAX).div_ceil(STRETCH)
            }
            Kind::Arrow(batches) => *batches,
            Kind::ArrowStream(stream) => stream.batches.len(),
        };
        let count = u32::try_from(count);
        let count =
            count.map_err(|_| damaged(&table.path, "its footer", "it declares too many rows"))?;
        Ok((0..count).collect())
    }

    /// How many rows a table has. Batches of an Arrow file say it themselves and are read for that, if the file
    /// is no larger than `most` bytes.
    pub fn rows(&self, def: &TableDef, most: u64) -> Option<u64> {
        let table = self.of(def).ok()?;
        if let Kind::Parquet(checked, _) = &table.kind {
            return Some(checked.rows);
        }
        if std::fs::metadata(&table.path).ok()?.len() > most {
            return None;
        }
        let mut rows = 0;
        let each = |_, _: [Value<'_>; 0]| {
            rows += 1;
            Ok(())
        };
        self.scan(def, &self.leaves(def).ok()?, [], each).ok()?;
        Some(rows)
    }

    /// How many stretches one thread is to read at a time.
    pub fn leaves_at_a_time(&self, def: &TableDef, usual: usize) -> usize {
        match self.of(def).map(|table| &table.kind) {
            Ok(Kind::Arrow(_) | Kind::ArrowStream(_)) => 1,
            _ => usual,
        }
    }

    /// Calls `each` with the number of the row, from 1, and the `wanted` columns of every row of these
    /// stretches. A column that the table lacks (`None`) is null.
    pub fn scan<const N: usize>(
        &self,
        def: &TableDef,
        leaves: &[u32],
        wanted: [Option<usize>; N],
        mut each: impl FnMut(i64, [Value<'_>; N]) -> Result<()>,
    ) -> Result<()> {
        let table = self.of(def)?;
        let mut columns: Vec<usize> = wanted.iter().flatten().copied().collect();
        if columns.is_empty() && !def.columns.is_empty() {
            // The number of rows is known only with a column.
            columns.push(0);
        }
        columns.sort_unstable();
        columns.dedup();
        // Columns come in the order of the file, whatever the order in which they are asked for.
        let places = wanted.map(|column| columns.iter().position(|c| Some(*c) == column));
        let mut rest = leaves;
        while let Some(&first) = rest.first() {
            let run = rest.iter().enumerate().take_while(|(i, leaf)| **leaf == first + *i as u32);
            let run = run.count();
            rest = &rest[run..];
            let mut row = (first as usize * STRETCH) as i64;
            let mut take = |batch: RecordBatch| -> Result<()> {
                let (rows, bytes) = (batch.num_rows(), batch.get_array_memory_size());
                if rows > ROWS_A_BYTE * bytes.max(STRETCH) {
                    let place = format!("after row {row}");
                    let says = format!("it declares {rows} rows and holds {bytes} bytes of them");
                    return Err(damaged(&table.path, &place, says));
                }
                let cells: Vec<Cells<'_>> =
                    batch.columns().iter().map(|column| Cells::of(column.as_ref())).collect();
                for at in 0..batch.num_rows() {
                    row += 1;
                    each(row, places.map(|p| p.map_or(Value::Null, |p| cells[p].value(at))))?;
                }
                Ok(())
            };
            table.batches(first as usize, run, &columns, &mut take)?;
        }
        Ok(())
    }
}

impl Table {
    /// Hands these columns of `run` stretches from the `first` on to `take`.
    fn batches(
        &self,
        first: usize,
        run: usize,
        columns: &[usize],
        take: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<()> {
        let bad = |e: &dyn std::fmt::Display| {
            damaged(&self.path, &format!("after row {}", first * STRETCH), e)
        };
        let file = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        match &self.kind {
            Kind::Parquet(checked, rows) => {
                let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
                    file,
                    checked.metadata.clone(),
                );
                let mask = ProjectionMask::roots(builder.parquet_schema(), columns.to_vec());
                let build = || {
                    let builder = builder.with_projection(mask).with_batch_size(*rows);
                    builder.with_offset(first * STRETCH).with_limit(run * STRETCH).build()
                };
                let mut reader = guarded(build).map_err(|e| bad(&e))?.map_err(|e| bad(&e))?;
                while let Some(batch) = guarded(|| reader.next()).map_err(|e| bad(&e))? {
                    take(batch.map_err(|e| bad(&e))?)?;
                }
            }
            Kind::Arrow(_) => {
                let open = || {
                    let mut reader = FileReader::try_new(file, Some(columns.to_vec()))?;
                    reader.set_index(first)?;
                    Ok::<_, ArrowError>(reader)
                };
                let mut reader = guarded(open).map_err(|e| bad(&e))?.map_err(|e| bad(&e))?;
                for _ in 0..run {
                    let Some(batch) = guarded(|| reader.next()).map_err(|e| bad(&e))? else {
                        break;
                    };
                    take(batch.map_err(|e| bad(&e))?)?;
                }
            }
            Kind::ArrowStream(stream) => {
                let batches = stream.batches.get(first..first + run).unwrap_or_default();
                let some = Stretches::of(file, stream, batches);
                let open = || StreamReader::try_new(some, Some(columns.to_vec()));
                let mut reader = guarded(open).map_err(|e| bad(&e))?.map_err(|e| bad(&e))?;
                while let Some(batch) = guarded(|| reader.next()).map_err(|e| bad(&e))? {
                    take(batch.map_err(|e| bad(&e))?)?;
                }
            }
        }
        Ok(())
    }
}

/// A column of a batch.
enum Cells<'a> {
    I8(&'a Int8Array),
    I16(&'a Int16Array),
    I32(&'a Int32Array),
    I64(&'a Int64Array),
    U8(&'a UInt8Array),
    U16(&'a UInt16Array),
    U32(&'a UInt32Array),
    U64(&'a UInt64Array),
    F32(&'a Float32Array),
    F64(&'a Float64Array),
    Bool(&'a BooleanArray),
    Text(&'a StringArray),
    LongText(&'a LargeStringArray),
    Choice(&'a DictionaryArray<Int32Type>, &'a StringArray),
    /// Of a type that tables of reports do not have.
    Other,
}

impl<'a> Cells<'a> {
    fn of(column: &'a dyn Array) -> Cells<'a> {
        let any = column.as_any();
        macro_rules! first {
            ($($variant:ident $array:ty),+ $(,)?) => {
                $(if let Some(array) = any.downcast_ref::<$array>() {
                    return Cells::$variant(array);
                })+
            };
        }
        first!(
            I64 Int64Array,
            U64 UInt64Array,
            I32 Int32Array,
            U32 UInt32Array,
            Text StringArray,
            I16 Int16Array,
            U16 UInt16Array,
            I8 Int8Array,
            U8 UInt8Array,
            F64 Float64Array,
            F32 Float32Array,
            Bool BooleanArray,
            LongText LargeStringArray,
        );
        let choice = any.downcast_ref::<DictionaryArray<Int32Type>>();
        let choice = choice.and_then(|d| Some((d, d.values().as_any().downcast_ref()?)));
        choice.map_or(Cells::Other, |(keys, values)| Cells::Choice(keys, values))
    }

    fn value(&self, at: usize) -> Value<'a> {
        macro_rules! cell {
            ($array:expr, $value:expr) => {
                if $array.is_null(at) { Value::Null } else { $value }
            };
        }
        match *self {
            Cells::I8(a) => cell!(a, Value::Int(a.value(at).into())),
            Cells::I16(a) => cell!(a, Value::Int(a.value(at).into())),
            Cells::I32(a) => cell!(a, Value::Int(a.value(at).into())),
            Cells::I64(a) => cell!(a, Value::Int(a.value(at))),
            Cells::U8(a) => cell!(a, Value::Int(a.value(at).into())),
            Cells::U16(a) => cell!(a, Value::Int(a.value(at).into())),
            Cells::U32(a) => cell!(a, Value::Int(a.value(at).into())),
            Cells::U64(a) => cell!(a, Value::Int(a.value(at) as i64)),
            Cells::F32(a) => cell!(a, Value::Real(a.value(at).into())),
            Cells::F64(a) => cell!(a, Value::Real(a.value(at))),
            Cells::Bool(a) => cell!(a, Value::Int(a.value(at).into())),
            Cells::Text(a) => cell!(a, Value::Text(a.value(at).as_bytes())),
            Cells::LongText(a) => cell!(a, Value::Text(a.value(at).as_bytes())),
            Cells::Choice(keys, values) => match keys.key(at) {
                Some(key) if key < values.len() && values.is_valid(key) => {
                    Value::Text(values.value(key).as_bytes())
                }
                _ => Value::Null,
            },
            Cells::Other => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::ArrayRef;
    use arrow_ipc::writer::{FileWriter, StreamWriter};
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::nsys::report::Report;
    use crate::sqlite::Database;

    /// A column of a database's table as Nsight's own export types it: ids unsigned, small numbers small.
    fn column(database: &Database, table: &TableDef, at: usize) -> ArrayRef {
        let leaves = database.leaves(table).unwrap();
        let (mut ints, mut reals, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        let (mut has_text, mut has_real) = (false, false);
        database
            .scan(table, &leaves, [Some(at)], |_, [value]| {
                has_text |= matches!(value, Value::Text(_) | Value::Blob(_));
                has_real |= matches!(value, Value::Real(_));
                ints.push(value.int());
                reals.push(value.real());
                texts.push(value.text().map(str::to_owned));
                Ok(())
            })
            .unwrap();
        let name = table.columns[at].to_ascii_lowercase();
        let whole = || ints.iter().copied();
        if has_text {
            Arc::new(StringArray::from(texts))
        } else if has_real {
            Arc::new(Float64Array::from(reals))
        } else if name.starts_with("global") || name == "id" || name.ends_with("id") {
            Arc::new(whole().map(|v| v.map(|v| v as u64)).collect::<UInt64Array>())
        } else if name.starts_with("grid") || name.starts_with("block") {
            Arc::new(whole().map(|v| v.map(|v| v as i32)).collect::<Int32Array>())
        } else {
            Arc::new(whole().collect::<Int64Array>())
        }
    }

    /// What `nsys export -t parquetdir` writes, the Arrow file format, and what `-t arrowdir` writes.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Export {
        Parquet,
        ArrowFile,
        ArrowStream,
    }

    fn export(from: &Path, to: &Path, kind: Export) {
        let database = Database::open(from).unwrap();
        for table in database.tables() {
            let columns: Vec<ArrayRef> =
                (0..table.columns.len()).map(|at| column(&database, table, at)).collect();
            let fields: Vec<Field> = table
                .columns
                .iter()
                .zip(&columns)
                .map(|(name, column)| Field::new(name, column.data_type().clone(), true))
                .collect();
            let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
            let ending = if kind == Export::Parquet { "parquet" } else { "arrow" };
            let file = File::create(to.join(format!("{}.{ending}", table.name))).unwrap();
            if kind == Export::Parquet {
                let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
                writer.write(&batch).unwrap();
                writer.close().unwrap();
            } else if kind == Export::ArrowStream {
                let mut writer = StreamWriter::try_new(file, &batch.schema()).unwrap();
                for from in (0..batch.num_rows()).step_by(1000) {
                    let rows = 1000.min(batch.num_rows() - from);
                    writer.write(&batch.slice(from, rows)).unwrap();
                }
                writer.finish().unwrap();
            } else {
                let mut writer = FileWriter::try_new(file, &batch.schema()).unwrap();
                // Several batches.
                for from in (0..batch.num_rows()).step_by(1000) {
                    let rows = 1000.min(batch.num_rows() - from);
                    writer.write(&batch.slice(from, rows)).unwrap();
                }
                writer.finish().unwrap();
            }
        }
    }

    #[test]
    fn a_directory_is_read_as_the_database_of_the_same_report() {
        let Some(data) = crate::shared_data() else { return };
        for name in ["jacobi_mpi8/rank3.sqlite", "jacc_cg_2026_2.sqlite"] {
            let database = data.join("nsys").join(name);
            let (expected, _) = crate::nsys::tests::rows(&[Report::open(&database).unwrap()]);
            for kind in [Export::Parquet, Export::ArrowFile, Export::ArrowStream] {
                // The rank stands in the file's name.
                let dir = tempfile::tempdir().unwrap();
                let to = dir.path().join(database.file_stem().unwrap());
                std::fs::create_dir(&to).unwrap();
                export(&database, &to, kind);
                assert!(is_directory(&to));
                let (rows, _) = crate::nsys::tests::rows(&[Report::open(&to).unwrap()]);
                assert_eq!(rows.span, expected.span, "{name} {kind:?}");
                assert_eq!(rows.kernel, expected.kernel, "{name} {kind:?}");
                assert_eq!(rows.copy, expected.copy, "{name} {kind:?}");
                assert_eq!(rows.link, expected.link, "{name} {kind:?}");
                assert_eq!(rows.track.len(), expected.track.len(), "{name} {kind:?}");
            }
        }
    }

    /// An Arrow stream of one column of texts, with its values in a dictionary if so.
    fn stream(dictionary: bool) -> Vec<u8> {
        let texts = ["a", "b", "a", "c"];
        let column: ArrayRef = match dictionary {
            true => Arc::new(texts.into_iter().collect::<DictionaryArray<Int32Type>>()),
            false => Arc::new(StringArray::from(texts.to_vec())),
        };
        let batch = RecordBatch::try_from_iter([("value", column)]).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        for from in [0, 2] {
            writer.write(&batch.slice(from, 2)).unwrap();
        }
        writer.into_inner().unwrap()
    }

    /// The texts of a table that is this stream, read batch by batch, or the error.
    fn texts(bytes: &[u8]) -> Result<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("StringIds.arrow"), bytes).unwrap();
        let directory = Directory::open(dir.path())?;
        let table = directory.table("StringIds").unwrap();
        let mut all = Vec::new();
        for leaf in directory.leaves(table)? {
            directory.scan(table, &[leaf], [table.column("value")], |_, [value]| {
                all.push(value.text().unwrap_or("?").to_owned());
                Ok(())
            })?;
        }
        Ok(all)
    }

    #[test]
    fn an_arrow_stream_is_read_batch_by_batch_with_its_dictionaries() {
        for dictionary in [false, true] {
            let bytes = stream(dictionary);
            assert_eq!(texts(&bytes).unwrap(), ["a", "b", "a", "c"], "{dictionary}");
            // A stream may end without the mark of its end.
            assert_eq!(texts(&bytes[..bytes.len() - 8]).unwrap().len(), 4);
        }
    }

    #[test]
    fn an_arrow_stream_that_is_cut_off_or_lies_about_its_lengths_is_refused() {
        let whole = stream(false);
        let says = |bytes: &[u8]| texts(bytes).unwrap_err().to_string();
        assert!(says(b"").contains("it is empty"), "{}", says(b""));
        assert!(says(&whole[..whole.len() - 20]).contains("StringIds.arrow"));
        let more = [&*whole, b"more"].concat();
        assert!(says(&more).contains("4 bytes follow its end"), "{}", says(&more));
        let mut long = whole.clone();
        long[4..8].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        assert!(says(&long).contains("its head has 2147483647 bytes"), "{}", says(&long));
        // Whatever is damaged: an error or other values, but no panic and no more rows.
        let mut state = 3u64;
        for _ in 0..3000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut bytes = whole.clone();
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 24) as u8;
            if let Ok(texts) = texts(&bytes) {
                assert!(texts.len() <= 8 * bytes.len(), "{}", texts.len());
            }
        }
    }

    /// A column of nothing but nulls takes no room, whatever its length; a loop over it takes seconds.
    #[test]
    fn a_batch_of_more_rows_than_its_bytes_can_hold_is_refused() {
        let nothing = |rows| -> Vec<u8> {
            let column: ArrayRef = Arc::new(arrow_array::NullArray::new(rows));
            let batch = RecordBatch::try_from_iter([("value", column)]).unwrap();
            let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
            writer.write(&batch).unwrap();
            writer.finish().unwrap();
            writer.into_inner().unwrap()
        };
        assert_eq!(texts(&nothing(1000)).unwrap().len(), 1000);
        let says = texts(&nothing(1 << 40)).unwrap_err().to_string();
        assert!(says.contains("it declares 1099511627776 rows"), "{says}");
    }

    #[test]
    fn a_file_that_is_cut_off_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["StringIds.parquet", "OSRT_API.arrow"] {
            let path = dir.path().join(name);
            std::fs::write(&path, b"PAR1 and no more").unwrap();
            let says = Report::open(dir.path()).unwrap_err().to_string();
            assert!(says.contains(name) && says.contains("its"), "{says}");
            std::fs::remove_file(&path).unwrap();
        }
        let says = Report::open(dir.path()).unwrap_err().to_string();
        assert!(says.contains("no table StringIds"), "{says}");
    }
}
