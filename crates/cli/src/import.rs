//! `gpuwhy import`: other people's files as a trace.
//!
//! The trace is made beside its place and put there when it is whole, so that an interruption
//! leaves nothing half-made.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpuwhy_formats::{kineto, nsys, sqlite};
use gpuwhy_schema::Rows;
use gpuwhy_store::{Bulk, Options};
use serde_json::{Value, json};

use gpuwhy_engine::launch::{is_replaced, make_room};
use gpuwhy_engine::parallel::in_order;

use crate::args::stop_flag;

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SQLite exports of Nsight Systems (`nsys export -t sqlite`) or traces of the PyTorch profiler
    /// (.json, .json.gz); several files of one job, one a rank, become one trace
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

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Nsys,
    Kineto,
}

impl Format {
    fn of(path: &Path) -> Result<Format> {
        let mut head = Vec::new();
        let file = std::fs::File::open(path)
            .with_context(|| format!("cannot open `{}`", path.display()))?;
        if file.metadata().is_ok_and(|m| m.is_dir()) {
            if nsys::is_directory(path) {
                return Ok(Format::Nsys);
            }
            bail!(
                "`{}` is a directory without tables of Nsight Systems; give the files in it, or `nsys \
                 export -t sqlite` its report",
                path.display()
            );
        }
        file.take(4096)
            .read_to_end(&mut head)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        // A pointer of Git LFS is told by whom it would have been for.
        let pointer = head.starts_with(b"version https://git-lfs");
        let json = path.to_string_lossy().contains(".json");
        if sqlite::is_database(&head) || (pointer && !json) {
            return Ok(Format::Nsys);
        }
        if kineto::is_trace(&head) || pointer {
            return Ok(Format::Kineto);
        }
        let hint = match path.extension().and_then(|e| e.to_str()) {
            Some("nsys-rep" | "qdrep") => "; `nsys export -t sqlite` makes a database of it",
            _ => "",
        };
        bail!("`{}` is of no format that is known{hint}", path.display())
    }

    fn name(self) -> &'static str {
        match self {
            Format::Nsys => "Nsight Systems",
            Format::Kineto => "PyTorch profiler",
        }
    }
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
    fn put(&mut self, rows: &mut Rows, done: f64) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted; nothing was left behind");
        }
        self.rows += rows.len() as u64;
        self.writer.append(rows)?;
        let slow = self.began.elapsed() > Duration::from_secs(2);
        if self.is_terminal && slow && self.told.elapsed() > Duration::from_millis(200) {
            self.told = Instant::now();
            eprint!("\r\x1b[K{:3.0} %, {} rows", 100.0 * done, self.rows);
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
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Imports files as one trace.
pub fn run(args: &Args) -> Result<ExitCode> {
    let formats: Vec<Format> = args.files.iter().map(|f| Format::of(f)).collect::<Result<_>>()?;
    let format = formats[0];
    if let Some(other) = formats.iter().position(|f| *f != format) {
        bail!(
            "`{}` is of {}, `{}` of {}; files of one kind make one trace",
            args.files[0].display(),
            format.name(),
            args.files[other].display(),
            formats[other].name()
        );
    }
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
        is_terminal: std::io::stderr().is_terminal() && !args.json,
        rows: 0,
    };
    let threads =
        args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let about = match format {
        Format::Nsys => from_nsys(&args.files, threads, &mut sink)?,
        Format::Kineto => from_kineto(&args.files, &mut sink)?,
    };
    if sink.is_terminal && began.elapsed() > Duration::from_secs(2) {
        eprint!("\r\x1b[K");
    }
    let written = sink.writer.finish()?;
    make_room(&args.output, args.force)?;
    std::fs::rename(&partial.path, &args.output)
        .with_context(|| format!("cannot put the trace at `{}`", args.output.display()))?;
    partial.whole = true;
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        let document = json!({
            "schema_version": 1,
            "trace": args.output.display().to_string(),
            "format": format.name(),
            "rows": written.rows,
            "seconds": seconds,
            "about": about,
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        let files = match args.files.len() {
            1 => args.files[0].display().to_string(),
            n => format!("{n} files"),
        };
        println!(
            "{}: {} rows of {files} ({}) in {seconds:.2} s",
            args.output.display(),
            written.rows,
            format.name()
        );
        if let Some(by) = about["alignment"]["by"].as_str() {
            println!(
                "aligned by {} x {by}: their ends lie {:.3} us apart at the median, {:.3} us at p95 \
                 ({:.3} us by the reports' own clocks)",
                about["alignment"]["collectives"],
                us(&about["alignment"]["residual_p50_ns"]),
                us(&about["alignment"]["residual_p95_ns"]),
                us(&about["alignment"]["before_p50_ns"]),
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn us(ns: &Value) -> f64 {
    ns.as_f64().unwrap_or(0.0) / 1e3
}

fn from_nsys(files: &[PathBuf], threads: usize, sink: &mut Sink<'_>) -> Result<Value> {
    let reports: Vec<nsys::Report> =
        files.iter().map(nsys::Report::open).collect::<Result<_, _>>()?;
    let alignment = nsys::align(&reports)?;
    let mut import = nsys::Import::new(&reports, &alignment);
    let pages: usize = reports.iter().flat_map(|r| r.chunks()).map(|c| c.pages()).sum();
    let mut read = 0;
    for (number, report) in reports.iter().enumerate() {
        let chunks = report.chunks();
        let work = |i: usize| report.read(&chunks[i]);
        in_order(chunks.len(), threads, work, |i, piece| {
            let mut rows = import.place(report, number, piece?);
            read += chunks[i].pages();
            sink.put(&mut rows, read as f64 / pages.max(1) as f64)
        })?;
    }
    sink.put(&mut import.finish(&reports, &alignment), 1.0)?;
    let of = |report: &nsys::Report| {
        json!({
            "file": report.path().display().to_string(),
            "version": report.version,
            "schema": report.schema,
            "host": report.host,
            "rank": report.rank,
            "not_imported": report.unread.iter().map(|t| &t.0).collect::<Vec<_>>(),
        })
    };
    Ok(json!({
        "reports": reports.iter().map(of).collect::<Vec<_>>(),
        "alignment": {
            "shifts_ns": alignment.shifts,
            "by": alignment.by,
            "collectives": alignment.collectives,
            "residual_p50_ns": alignment.residual_p50_ns,
            "residual_p95_ns": alignment.residual_p95_ns,
            "before_p50_ns": alignment.before_p50_ns,
            "error_ns": alignment.error_ns,
        },
    }))
}

fn from_kineto(files: &[PathBuf], sink: &mut Sink<'_>) -> Result<Value> {
    // Times of several files are counted from the earliest of their bases, which may stand at
    // their ends.
    let bases: Vec<Option<i64>> = match files {
        [_] => vec![None],
        _ => files.iter().map(|file| Ok(kineto::File::about(file)?.base)).collect::<Result<_>>()?,
    };
    let first = bases.iter().flatten().min().copied().unwrap_or(0);
    let mut import = kineto::Import::new();
    let mut told = Vec::new();
    for (i, path) in files.iter().enumerate() {
        let shift = bases[i].map_or(0, |base| base.saturating_sub(first));
        let mut file = kineto::File::open(path, shift)?;
        let length = std::fs::metadata(path).map_or(1, |m| m.len().max(1));
        // Compressed traces are about a twelfth of their text.
        let gzipped = path.extension().is_some_and(|e| e == "gz");
        let text = length * if gzipped { 12 } else { 1 };
        std::thread::scope(|scope| -> Result<()> {
            let (send, receive) = std::sync::mpsc::sync_channel(4);
            let (file, import) = (&mut file, &mut import);
            scope.spawn(move || {
                loop {
                    let next = file.next(import).map(|rows| rows.map(|r| (r, file.offset())));
                    let over = !matches!(next, Ok(Some(_)));
                    if send.send(next).is_err() || over {
                        return;
                    }
                }
            });
            for next in receive {
                let Some((mut rows, offset)) = next? else { break };
                let done = (i as f64 + (offset as f64 / text as f64).min(1.0)) / files.len() as f64;
                sink.put(&mut rows, done)?;
            }
            Ok(())
        })?;
        told.push(json!({
            "file": path.display().to_string(),
            "events": file.events(),
            "rank": file.about.rank,
            "base_ns": file.about.base,
        }));
    }
    sink.put(&mut import.finish(), 1.0)?;
    Ok(json!({ "files": told }))
}
