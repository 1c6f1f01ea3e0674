//! `gpuwhy import`: files of other tools as a trace.
//!
//! The trace is made beside its place and put there when it is whole, so that an interruption
//! leaves nothing half-made.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpuwhy_formats::importer::{self, Batch, Import};
use gpuwhy_formats::importers;
use gpuwhy_formats::left_out::FileLeftOut;
use gpuwhy_schema::{AttrBatch, terminal};
use gpuwhy_store::{Bulk, Options};
use serde_json::json;

use gpuwhy_engine::launch::{is_replaced, make_room};

use crate::args::stop_flag;

/// Batches of rows that wait between the two threads: one is made while another is taken, and importers read ahead
/// themselves where that helps.
const BATCHES: usize = 0;
/// Files of which it is printed line by line what was left out.
const LEFT_OUT: usize = 20;

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SQLite exports of Nsight Systems (`nsys export -t sqlite`), traces of the PyTorch profiler (.json,
    /// .json.gz), kernel traces of trace-cmd (trace.dat), perf (perf.data) and Perfetto (.pftrace) or their text, or
    /// directories of CTF traces (LTTng); several files of one job, one a rank, become one trace
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The trace directory to create
    #[arg(short, long, default_value = "import.trace", value_name = "T.trace")]
    output: PathBuf,
    /// Memory for rows, MiB; the names of very many kernels, threads and tracks come on top
    #[arg(long, default_value_t = 384, value_name = "MIB")]
    max_memory: usize,
    /// Threads that read; one a CPU by default. The trace does not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Replace the output if it is a trace already
    #[arg(long)]
    force: bool,
    /// Print one JSON document that says what was imported
    #[arg(long)]
    json: bool,
}

/// Where the rows go, and how far it is.
struct Sink<'a> {
    writer: Bulk,
    stop: &'a AtomicBool,
    began: Instant,
    told: Instant,
    is_terminal: bool,
    rows: u64,
}

impl Sink<'_> {
    fn put(&mut self, batch: Batch) -> Result<()> {
        let Batch { mut rows, attrs, done } = batch;
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted; nothing was left behind");
        }
        let attr_rows = attrs.as_ref().map_or(0, AttrBatch::len);
        self.rows += (rows.len() + attr_rows) as u64;
        self.writer.append_attrs(attrs)?;
        self.writer.append(&mut rows)?;
        let slow = self.began.elapsed() > Duration::from_secs(2);
        if self.is_terminal && slow && self.told.elapsed() > Duration::from_millis(200) {
            self.told = Instant::now();
            terminal::status(format_args!("{:3.0} %, {} rows", 100.0 * done, self.rows));
        }
        Ok(())
    }
}

/// Removes what was begun unless it came to its end.
struct Partial {
    path: PathBuf,
    whole: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.whole {
            let _ = gpuwhy_store::remove(&self.path);
        }
    }
}

/// Imports files as one trace.
pub fn run(args: &Args) -> Result<ExitCode> {
    let importer = importers::find(&args.files)?;
    // Refused now rather than after the work; replaced when there is something to put there.
    is_replaced(&args.output, args.force)?;
    let mut name = args.output.clone().into_os_string();
    name.push(".partial");
    let stop = stop_flag()?;
    let began = Instant::now();
    let path = PathBuf::from(name);
    // What is held of files besides rows: pages, names, lanes.
    let rows = (args.max_memory.saturating_sub(64).max(16)) << 20;
    let writer = Bulk::create(&path, &Options::default(), rows)
        .with_context(|| format!("cannot make the trace `{}`", path.display()))?;
    let mut partial = Partial { path, whole: false };
    let mut sink = Sink {
        writer,
        stop: &stop,
        began,
        told: began,
        is_terminal: terminal::stderr_is_terminal() && !args.json,
        rows: 0,
    };
    let threads =
        args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let mut import = importer.open(&args.files, &importer::Options { threads })?;
    copy(&mut *import, &mut sink)?;
    let summary = import.summary();
    if sink.is_terminal && began.elapsed() > Duration::from_secs(2) {
        terminal::status("");
    }
    let written = sink.writer.finish()?;
    make_room(&args.output, args.force)?;
    gpuwhy_store::put_in_place(&partial.path, &args.output)?;
    partial.whole = true;
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        let document = json!({
            "schema_version": 1,
            "trace": args.output.display().to_string(),
            "format": importer.name(),
            "rows": written.rows,
            "seconds": seconds,
            "about": summary.about,
            "left_out": summary.left_out.iter().map(FileLeftOut::json).collect::<Vec<_>>(),
        });
        terminal::say_json(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let files = match args.files.len() {
            1 => args.files[0].display().to_string(),
            n => format!("{n} files"),
        };
        terminal::say(format_args!(
            "{}: {} rows of {files} ({}) in {seconds:.2} s",
            args.output.display(),
            written.rows,
            importer.name()
        ))?;
        for line in &summary.lines {
            terminal::say(line)?;
        }
        for file in summary.left_out.iter().take(LEFT_OUT) {
            terminal::say(file)?;
        }
        if let Some(more) = summary.left_out.len().checked_sub(LEFT_OUT).filter(|n| *n > 0) {
            let lost: u64 = summary.left_out[LEFT_OUT..].iter().map(|f| f.left_out.lost()).sum();
            terminal::say(format_args!("left out: {lost} rows of {more} more files; see --json"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the rows of an import, which a thread reads meanwhile.
fn copy(import: &mut dyn Import, sink: &mut Sink<'_>) -> Result<()> {
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::sync_channel(BATCHES);
        scope.spawn(move || {
            while let Some(batch) = import.next().transpose() {
                let failed = batch.is_err();
                if send.send(batch).is_err() || failed {
                    return;
                }
            }
        });
        for batch in receive {
            sink.put(batch?)?;
        }
        Ok(())
    })
}
