//! `gpuwhy-query`: what `gpuwhy query` and `gpuwhy variability --cluster` run.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand};
use gpuwhy_query::output::{self, Format};
use gpuwhy_query::session::{Options, Session};
use gpuwhy_query::{roles, shards, views};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;

/// SQL over a trace.
#[derive(Parser)]
#[command(
    name = "gpuwhy query",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Without SQL, tables and views are listed. docs/query.md has their columns, and examples."
)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    query: Query,
}

#[derive(Subcommand)]
enum Role {
    /// Plan the queries of a cluster and distribute their tasks.
    Scheduler(roles::Scheduler),
    /// Execute tasks of a cluster.
    Executor(roles::Executor),
    /// The parts of a trace's variability, one JSON line each, for `gpuwhy variability --cluster`.
    #[command(hide = true)]
    Shards(Shards),
    /// The page of views and functions, for the docs.
    #[command(hide = true)]
    Views,
}

#[derive(Args)]
struct Query {
    /// A trace: a path, or s3://BUCKET/PATH.
    #[arg(required = true, value_name = "T.trace")]
    trace: Option<String>,
    /// A query; `-` reads it from standard input.
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// Output format; by default that of the ending of --output, else a table.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Write to this file instead of standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Length of the intervals of the views `stalls` and `device_intervals`, ms.
    #[arg(long, default_value_t = 1000.0, value_name = "MS")]
    interval: f64,
    #[command(flatten)]
    engine: Engine,
}

#[derive(Args)]
struct Engine {
    /// Run on the cluster of the scheduler at this address.
    #[arg(long, value_name = "df://HOST:PORT")]
    cluster: Option<String>,
    /// Threads, by default one a CPU; on a cluster partitions of the work, by default 16.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Memory that the operators of this process share before they spill to disk, MiB.
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    memory: usize,
}

impl Engine {
    fn options(&self, interval_ns: Option<i64>, most: usize) -> Options {
        let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let several = || if self.cluster.is_some() { 16 } else { all() };
        Options {
            partitions: self.threads.unwrap_or_else(several).max(1),
            memory: self.memory << 20,
            cluster: self.cluster.clone(),
            interval: interval_ns,
            most,
        }
    }
}

#[derive(Args)]
struct Shards {
    /// A trace: a path, or s3://BUCKET/PATH.
    trace: String,
    /// Length of an interval, ns; by default it suits the length of the work of devices.
    #[arg(long)]
    interval_ns: Option<i64>,
    /// The most intervals.
    #[arg(long)]
    most: usize,
    /// The most copies that are listed one by one.
    #[arg(long)]
    moved: usize,
    /// Names of collectives whose duration is mostly waiting for the last rank.
    #[arg(long, value_delimiter = ',')]
    waits: Vec<String>,
    #[command(flatten)]
    engine: Engine,
}

fn main() -> ExitCode {
    terminal::tell_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // What was typed may be the name of somebody's file.
        Err(error) if error.use_stderr() => {
            terminal::fail(error.render());
            return ExitCode::from(2);
        }
        // Help and version.
        Err(error) => error.exit(),
    };
    let level = if cli.role.is_some() { "info" } else { "error" };
    // `GPUWHY_LOG=debug` logs more.
    let from = env_logger::Env::new().filter_or("GPUWHY_LOG", level);
    let log = env_logger::Target::Pipe(Box::new(terminal::visible_stderr()));
    env_logger::Builder::from_env(from).format_target(false).target(log).init();
    // DataFusion walks deeply nested plans by recursion.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(32 << 20)
        .build();
    let done = runtime.context("cannot start the threads of the engine").and_then(|runtime| {
        // The first poll runs on this thread, whose stack is the system's.
        runtime.block_on(async { tokio::spawn(run(cli)).await.context("the query panicked")? })
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let broken = |e: &(dyn std::error::Error + 'static)| {
                e.downcast_ref::<std::io::Error>()
                    .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
            };
            // The reader of the output, such as `head`, has enough.
            if error.chain().any(broken) || format!("{error:#}").contains("Broken pipe") {
                return ExitCode::SUCCESS;
            }
            terminal::fail(format_args!("gpuwhy: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<()> {
    match cli.role {
        None => query(&cli.query).await,
        Some(Role::Scheduler(args)) => until_stopped(roles::scheduler(&args)).await,
        Some(Role::Executor(args)) => until_stopped(roles::executor(&args)).await,
        Some(Role::Shards(args)) => {
            let session =
                Session::open(&args.trace, &args.engine.options(args.interval_ns, args.most))
                    .await?;
            let Shards { most, moved, waits, .. } = args;
            let request = shards::Request { most, moved, waits };
            shards::write(&session, &request, &mut terminal::exact_stdout()).await
        }
        Some(Role::Views) => {
            terminal::show(Screen::new(false).block("", views::markdown()))?;
            Ok(())
        }
    }
}

/// Runs a server until it fails, or until SIGINT or SIGTERM.
async fn until_stopped(role: impl Future<Output = Result<()>>) -> Result<()> {
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        done = role => done,
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = term.recv() => Ok(()),
    }
}

async fn query(args: &Query) -> Result<()> {
    let began = Instant::now();
    let Some(trace) = &args.trace else { bail!("no trace is given") };
    let interval = (args.interval * 1e6).round();
    if !(1.0..=1e18).contains(&interval) {
        bail!("--interval {} is out of range; give milliseconds greater than 0", args.interval);
    }
    let session = Session::open(trace, &args.engine.options(Some(interval as i64), 1)).await?;
    session.opened.notes.iter().for_each(|note| terminal::note(format_args!("gpuwhy: {note}")));
    let sql = match args.sql.as_deref() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            text
        }
        Some(sql) => sql.to_owned(),
        None => return list(&session).await,
    };
    let by_name = || args.output.as_deref().and_then(Format::of);
    let format = args.format.or_else(by_name).unwrap_or(Format::Table);
    let (schema, rows) = session.query(&sql).await?;
    let count = output::write(schema, rows, format, args.output.as_deref()).await?;
    if args.output.is_some() || format == Format::Table {
        let seconds = began.elapsed().as_secs_f64();
        terminal::note(format_args!("{count} rows in {seconds:.2} s"));
    }
    Ok(())
}

async fn list(session: &Session) -> Result<()> {
    let mut screen = Screen::new(false);
    screen.line("views, and tables that have rows:");
    for (name, columns, rows) in session.contents().await? {
        let rows = rows.map_or(String::new(), |rows| format!(", {rows} rows"));
        screen
            .line(format_args!("  {name}{rows}"))
            .line(format_args!("    {}", columns.join(", ")));
    }
    screen.line("functions besides those of DataFusion:");
    for function in gpuwhy_query::functions::FUNCTIONS {
        screen.line(format_args!("  {}", function.call));
    }
    terminal::show(&screen)?;
    Ok(())
}
