//! Writes the rows of a query as text, JSON, Arrow or Parquet.

use std::io::{BufWriter, Stdout, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::writer::FileWriter;
use datafusion::arrow::json::{ArrayWriter, LineDelimitedWriter};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use futures::StreamExt as _;
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Visible;
use gpuwhy_store::Output;

/// The most rows of a text table.
const TABLE_ROWS: usize = 1000;

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A text table of at most 1000 rows.
    Table,
    /// Comma-separated values with a header.
    Csv,
    /// One JSON array of objects.
    Json,
    /// One JSON object a line.
    Ndjson,
    /// An Arrow IPC file.
    Arrow,
    /// A Parquet file, compressed with zstd.
    Parquet,
}

impl Format {
    /// The format for the ending of a file's name.
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "csv" => Some(Format::Csv),
            "json" => Some(Format::Json),
            "ndjson" | "jsonl" => Some(Format::Ndjson),
            "arrow" | "ipc" | "feather" => Some(Format::Arrow),
            "parquet" => Some(Format::Parquet),
            _ => None,
        }
    }
}

/// Standard output, or a file that appears under its name only when it is complete.
enum Sink {
    /// For a program, to the byte.
    Exact(BufWriter<Stdout>),
    /// For people: names in a trace may hold anything.
    Shown(Visible<BufWriter<Stdout>>),
    /// Root follows no link that somebody else puts there.
    File(BufWriter<Output>),
}

impl Sink {
    fn open(path: Option<&Path>, format: Format) -> Result<Sink> {
        let Some(path) = path else {
            let out = BufWriter::new(terminal::exact_stdout());
            // A table is for people, wherever it goes.
            return Ok(match format == Format::Table || terminal::stdout_is_terminal() {
                true => Sink::Shown(Visible::new(out)),
                false => Sink::Exact(out),
            });
        };
        Ok(Sink::File(BufWriter::new(Output::create(path)?)))
    }

    fn finish(mut self) -> Result<()> {
        self.flush()?;
        if let Sink::File(file) = self {
            file.into_inner().map_err(|error| error.into_error())?.finish()?;
        }
        Ok(())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Sink::Exact(out) => out.write(bytes),
            Sink::Shown(out) => out.write(bytes),
            Sink::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Sink::Exact(out) => out.flush(),
            Sink::Shown(out) => out.flush(),
            Sink::File(file) => file.flush(),
        }
    }
}

/// Writes rows as the engine finds them, and returns their number.
///
/// # Errors
/// The engine fails, or the output cannot be written; no incomplete file is left.
pub async fn write(
    schema: SchemaRef,
    mut rows: SendableRecordBatchStream,
    format: Format,
    path: Option<&Path>,
) -> Result<u64> {
    if matches!(format, Format::Arrow | Format::Parquet)
        && path.is_none()
        && terminal::stdout_is_terminal()
    {
        bail!("{format:?} is a binary format; write it to a file with --output");
    }
    let mut sink = Sink::open(path, format)?;
    let mut count = 0;
    macro_rules! each {
        ($batch:ident => $do:expr) => {
            while let Some(batch) = rows.next().await {
                let $batch = batch?;
                count += $batch.num_rows() as u64;
                $do;
            }
        };
    }
    match format {
        Format::Table => {
            let mut held: Vec<RecordBatch> = Vec::new();
            let mut room = TABLE_ROWS;
            while let Some(batch) = rows.next().await {
                let batch = batch?;
                let taken = batch.num_rows().min(room);
                held.push(batch.slice(0, taken));
                count += taken as u64;
                room -= taken;
                if taken < batch.num_rows() {
                    terminal::note(format_args!(
                        "gpuwhy: only the first {TABLE_ROWS} rows are shown; --format csv prints all"
                    ));
                    break;
                }
            }
            if held.is_empty() {
                held.push(RecordBatch::new_empty(Arc::clone(&schema)));
            }
            writeln!(sink, "{}", pretty_format_batches(&held)?)?;
        }
        Format::Csv => {
            let mut csv = WriterBuilder::new().with_header(true).build(&mut sink);
            // The header, even without rows.
            csv.write(&RecordBatch::new_empty(Arc::clone(&schema)))?;
            each!(batch => csv.write(&batch)?);
        }
        Format::Json => {
            let mut json = ArrayWriter::new(&mut sink);
            each!(batch => json.write(&batch)?);
            json.finish()?;
            writeln!(sink)?;
        }
        Format::Ndjson => {
            let mut json = LineDelimitedWriter::new(&mut sink);
            each!(batch => json.write(&batch)?);
            json.finish()?;
        }
        Format::Arrow => {
            let mut file = FileWriter::try_new(&mut sink, &schema)?;
            each!(batch => file.write(&batch)?);
            file.finish()?;
        }
        Format::Parquet => {
            let properties = WriterProperties::builder()
                .set_compression(Compression::ZSTD(ZstdLevel::default()))
                .build();
            let mut file = ArrowWriter::try_new(&mut sink, Arc::clone(&schema), Some(properties))?;
            each!(batch => file.write(&batch)?);
            file.close()?;
        }
    }
    sink.finish()?;
    Ok(count)
}
