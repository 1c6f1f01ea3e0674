//! What a user may type.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Why did this GPU work take longer than it should have, who did it, and how sure are we?
#[derive(Debug, Parser)]
#[command(name = "gpuwhy", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 nothing anomalous or \
inconclusive, 5 a privilege is missing.\nStart with `gpuwhy doctor`, then \
`gpuwhy record -o run.trace -- CMD` and `gpuwhy diagnose run.trace`.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// One command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What this host lets us see, and the exact fix for what it does not.
    Doctor(Doctor),
    /// Record a trace from every source that this host offers.
    Record(Record),
    /// Judge while it happens: a verdict seconds after something became slower.
    Watch(Watch),
    /// Ranked causes with evidence: text, --json or --html.
    Diagnose(Diagnose),
    /// Other people's files as a trace: Nsight Systems, PyTorch profiler.
    Import(Import),
    /// Which intervals, ranks and links differ from the others: stalls, stragglers, slow links.
    Variability(Variability),
    /// Ask a trace in SQL; `gpuwhy query --help` says how, if gpuwhy-query is here.
    #[command(disable_help_flag = true)]
    Query {
        /// Passed on to gpuwhy-query.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "T.trace [SQL]")]
        args: Vec<String>,
    },
    /// Check every invariant of a trace.
    Validate(Validate),
    /// Write a trace in another tool's format.
    Export(Export),
    /// Run a disturbance with a label, to see whether it is found.
    Inject(Inject),
    /// Run the simulated distributed training loop that the injectors disturb.
    Steploop(Steploop),
    /// See a real verdict about a real slowdown on this machine.
    Demo(Demo),
    /// Benchmarks whose results the docs quote.
    Bench(Bench),
    /// Shell completions on stdout.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Every help page in Markdown, for the docs.
    #[command(hide = true)]
    HelpAll,
    /// The manual page of a command, in roff.
    #[command(hide = true)]
    Man,
    /// Waits for the recorder, then becomes the command.
    #[command(hide = true, name = "__exec")]
    ExecWhenTold {
        /// The file whose appearance is the sign.
        gate: PathBuf,
        /// The command.
        #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// One JSON document.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `record`.
#[derive(Debug, Args)]
pub struct Record {
    /// The trace directory to make.
    #[arg(short, long, default_value = "gpuwhy.trace", value_name = "T.trace")]
    pub output: PathBuf,
    /// Replace the output if it is a trace already.
    #[arg(long)]
    pub force: bool,
    /// Stop after this long.
    #[arg(long = "for", value_name = "30s", value_parser = duration)]
    pub duration: Option<Duration>,
    /// A process whose threads, present and future, are recorded exactly. May be repeated.
    #[arg(short, long = "pid", value_name = "PID")]
    pub pids: Vec<i32>,
    /// A function whose every call is a step. May be repeated.
    #[arg(long = "step", value_name = "uprobe:BINARY:SYMBOL", value_parser = uprobe)]
    pub steps: Vec<UprobeStep>,
    /// The shared-memory ring that marked programs write to (their GPUWHY_RING); made if absent.
    #[arg(long, value_name = "PATH")]
    pub ring: Option<PathBuf>,
    /// How often aggregates are read, a second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub hz: u32,
    /// How many wakers away from the recorded processes threads are recorded too.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub hops: u8,
    /// Size of the kernel's ring in KiB, rounded up to a power of two.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=262_144))]
    pub ring_kib: u32,
    /// A probe to leave off, by the name that `doctor` gives it. May be repeated.
    #[arg(long = "off", value_name = "PROBE")]
    pub off: Vec<String>,
    /// Keep only the last so many seconds on disk.
    #[arg(long, value_name = "10m", value_parser = duration)]
    pub keep: Option<Duration>,
    /// Print one JSON document at the end instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub inside: Inside,
    /// The command to run and record.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// What is told from inside of processes that use GPUs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Inside GPU processes")]
pub struct Inside {
    /// Kernels and copies, as CUPTI tells them; a CUDA graph as a whole, or node by node.
    #[arg(long, value_enum, default_value = "graphs", value_name = "DETAIL")]
    pub kernels: KernelDetail,
    /// Tell the nodes of CUDA graphs for a part of the time: so many ms of every so many.
    #[arg(long, value_name = "ON/EVERY", value_parser = crate::inside::share)]
    pub graph_nodes: Option<(u32, u32)>,
    /// Tell the calls that launch kernels too, which costs about as much again.
    #[arg(long)]
    pub launches: bool,
    /// Collectives, as NCCL tells them: that they were called, their phases on the device, or what
    /// the network's threads wait for as well.
    #[arg(long, value_enum, default_value = "calls", value_name = "DETAIL")]
    pub collectives: CollectiveDetail,
    /// The socket at which libraries inside processes knock (their GPUWHY_DOOR). A command gets one
    /// of its own; otherwise /run/gpuwhy/door.
    #[arg(long, value_name = "PATH")]
    pub door: Option<PathBuf>,
    /// Ask NCCL's own RAS, while something is the matter, which rank is behind: at HOST:PORT, or where
    /// it usually listens on this host. Answering has crashed jobs with NCCL before 2.29.2, and rarely
    /// since: see docs/inside.md.
    #[arg(
        long,
        value_name = "HOST:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub nccl_ras: Option<gpuwhy_collect::RasAt>,
    /// The library that the command loads, if not the one beside gpuwhy.
    #[arg(long, value_name = "PATH", hide = true)]
    pub inject_library: Option<PathBuf>,
}

/// How kernels are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KernelDetail {
    /// Not at all.
    Off,
    /// One by one, but a CUDA graph as a whole.
    Graphs,
    /// One by one, also those of CUDA graphs.
    Nodes,
}

/// How collectives are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CollectiveDetail {
    /// Not at all.
    Off,
    /// That they were called.
    Calls,
    /// And their phases on the device.
    Phases,
    /// And what the network's threads wait for.
    Network,
}

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub struct Watch {
    /// The trace directory to make: aggregates throughout, everything around findings.
    #[arg(short, long, default_value = "gpuwhy-watch.trace", value_name = "T.trace")]
    pub output: PathBuf,
    /// Replace the output if it is a trace already.
    #[arg(long)]
    pub force: bool,
    /// Stop after this long.
    #[arg(long = "for", value_name = "30m", value_parser = duration)]
    pub duration: Option<Duration>,
    /// A process whose threads, present and future, are watched exactly. May be repeated.
    #[arg(short, long = "pid", value_name = "PID")]
    pub pids: Vec<i32>,
    /// A function whose every call is a step. May be repeated.
    #[arg(long = "step", value_name = "uprobe:BINARY:SYMBOL", value_parser = uprobe)]
    pub steps: Vec<UprobeStep>,
    /// The shared-memory ring that marked programs write to (their GPUWHY_RING); made if absent.
    #[arg(long, value_name = "PATH")]
    pub ring: Option<PathBuf>,
    /// How often aggregates are read, a second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub hz: u32,
    /// How much of the recent past is held in memory in full.
    #[arg(long, value_name = "30s", default_value = "30s", value_parser = duration)]
    pub recent: Duration,
    /// Keep only the last so much of the trace on disk.
    #[arg(long, value_name = "24h", value_parser = duration)]
    pub keep: Option<Duration>,
    /// The share of the machine's CPU time, in per cent, beyond which less is recorded.
    #[arg(long, default_value_t = 4.0, value_name = "PERCENT")]
    pub max_cpu: f64,
    /// The memory in MiB beyond which less of the past is held.
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub max_memory: u64,
    /// A probe to leave off, by the name that `doctor` gives it. May be repeated.
    #[arg(long = "off", value_name = "PROBE")]
    pub off: Vec<String>,
    /// False incidents a day that are tolerated.
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub false_alarms_per_day: f64,
    /// The least slowdown worth a finding, in per cent.
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT")]
    pub min_effect: f64,
    /// Confidence below which the verdict is "insufficient evidence".
    #[arg(long, default_value_t = 0.5, value_name = "P")]
    pub decide_at: f64,
    #[command(flatten)]
    pub inside: Inside,
    /// Tell the correlator at this address of steps and findings, and answer it.
    #[arg(long, value_name = "HOST:PORT")]
    pub to: Option<String>,
    /// What this node is called there; its host name by default.
    #[arg(long, value_name = "NAME", requires = "to")]
    pub node: Option<String>,
    /// How wrong this node's clock is to seem there, s; for tests.
    #[arg(long, value_name = "S", default_value_t = 0, hide = true, allow_negative_numbers = true)]
    pub skew: i64,
    /// The phase of a step in which ranks wait for each other.
    #[arg(long, value_name = "PHASE", default_value = "allreduce")]
    pub collective: String,
    /// Watch nothing here, but join what nodes tell at this address: which rank came late, and what
    /// its node knows of the cause. There is no encryption; listen where only nodes can reach.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["to", "pids", "steps", "command"])]
    pub join: Option<String>,
    /// JSON documents, one a line, instead of text.
    #[arg(long)]
    pub json: bool,
    /// The command to run and watch.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `uprobe:BINARY:SYMBOL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UprobeStep {
    /// The program or library.
    pub binary: PathBuf,
    /// The function.
    pub symbol: String,
}

/// Arguments of `diagnose`.
#[derive(Debug, Args)]
pub struct Diagnose {
    /// The trace to judge.
    #[arg(value_name = "T.trace")]
    pub trace: PathBuf,
    /// One JSON document.
    #[arg(long)]
    pub json: bool,
    /// Write a self-contained page here, too.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Which method judges.
    #[arg(long, value_enum, default_value_t = Detector::Accounting)]
    pub detector: Detector,
    /// False incidents a day that are tolerated.
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub false_alarms_per_day: f64,
    /// The least slowdown worth a finding, in per cent.
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT")]
    pub min_effect: f64,
    /// Confidence below which the verdict is "insufficient evidence".
    #[arg(long, default_value_t = 0.5, value_name = "P")]
    pub decide_at: f64,
}

/// A method of judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Detector {
    /// Accounting for every nanosecond of the steps.
    Accounting,
    /// The published 3σ and lagged-correlation method (Darzi et al.), for comparison.
    Darzi,
}

/// Arguments of `variability`.
#[derive(Debug, Args)]
pub struct Variability {
    /// A trace of GPU work, or databases of Nsight Systems as they are (these without links and
    /// stragglers, which need the calls of MPI).
    #[arg(required = true, value_name = "T.trace | FILE")]
    pub inputs: Vec<PathBuf>,
    /// Another recording of the same work, from before: which kernels changed since.
    #[arg(long, value_name = "T.trace | FILE")]
    pub against: Option<PathBuf>,
    /// Write a page with pictures, too.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How long an interval is.
    #[arg(long, default_value = "1s", value_parser = duration, value_name = "TIME")]
    pub interval: Duration,
    /// Anomalous intervals and kernels that are told.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub top: usize,
    /// Stretches of time that the work is cut into; the answer does not depend on it.
    #[arg(long, value_name = "N")]
    pub shards: Option<usize>,
    /// Threads; as many as there are CPUs if not said. The answer does not depend on it.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Let the query engine read the rows: of the cluster with this scheduler, or `local` in a process
    /// of this machine. The trace may then lie at s3://BUCKET/PATH. The answer does not depend on it.
    #[arg(long, value_name = "df://HOST:PORT")]
    pub cluster: Option<String>,
    /// One JSON document.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct Import {
    /// Databases of Nsight Systems (`nsys export -t sqlite`) or traces of the PyTorch profiler
    /// (.json, .json.gz); several of one job, one a rank, become one trace.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where the trace goes.
    #[arg(short, long, default_value = "import.trace", value_name = "T.trace")]
    pub output: PathBuf,
    /// Memory to make do with, MiB; names and lanes of very many come on top.
    #[arg(long, default_value_t = 384, value_name = "MIB")]
    pub max_memory: usize,
    /// Threads that read; as many as there are CPUs if not said. The trace does not depend on it.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Replace a trace that is there already.
    #[arg(long)]
    pub force: bool,
    /// One JSON document that says what was imported.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct Validate {
    /// The trace to check.
    #[arg(value_name = "T.trace")]
    pub trace: PathBuf,
    /// One JSON document.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The trace to export.
    #[arg(value_name = "T.trace")]
    pub trace: PathBuf,
    /// Write a Perfetto trace here.
    #[arg(long, value_name = "FILE")]
    pub perfetto: PathBuf,
    /// From this second of the recording on.
    #[arg(long, value_name = "S")]
    pub from: Option<f64>,
    /// Up to this second of the recording.
    #[arg(long, value_name = "S")]
    pub to: Option<f64>,
    /// Print one JSON document about what was written.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inject`.
#[derive(Debug, Args)]
pub struct Inject {
    /// What to do to a running `gpuwhy steploop`.
    pub kind: gpuwhy_testkit::inject::Kind,
    /// Seconds to wait before.
    #[arg(long, default_value_t = 0.0, value_name = "S")]
    pub after: f64,
    /// How long it lasts.
    #[arg(long = "for", default_value = "5s", value_name = "5s", value_parser = duration)]
    pub duration: Duration,
    /// How strong it is; 1 is usual.
    #[arg(long, default_value_t = 1.0)]
    pub intensity: f64,
    /// Whether it happens in the workload's own control groups.
    #[arg(long, value_enum, default_value = "other")]
    pub placement: gpuwhy_testkit::inject::Placement,
    /// Work directory of the workload, if more than one runs.
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
}

/// Arguments of `steploop`.
#[derive(Debug, Args)]
pub struct Steploop {
    /// How long to run; until interrupted if absent.
    #[arg(long = "for", value_name = "30s", value_parser = duration)]
    pub duration: Option<Duration>,
    /// How many ranks.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub ranks: u32,
    /// Have the ranks talk over loopback.
    #[arg(long)]
    pub loopback: bool,
    /// Write every step here as CSV, apart from any recorder.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// The ring that steps are marked in; else that of GPUWHY_RING. `{rank}` in it is the rank's
    /// number.
    #[arg(long, value_name = "PATH")]
    pub ring: Option<PathBuf>,
    /// A new directory for its files, on a real file system.
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Where to leave demo.trace, report.html, demo.pftrace and verdict.json.
    #[arg(short, long, default_value = "target/demo", value_name = "DIR")]
    pub output: PathBuf,
    /// Which disturbance to inject.
    #[arg(long, default_value = "cpu-hog", value_name = "INJECTOR")]
    pub injector: gpuwhy_testkit::inject::Kind,
    /// Seconds of undisturbed steps before it.
    #[arg(long, default_value_t = 10)]
    pub before: u64,
    /// Seconds of disturbance.
    #[arg(long, default_value_t = 8)]
    pub during: u64,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// Which benchmark.
    #[command(subcommand)]
    pub which: BenchCommand,
}

/// One benchmark.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// What watching costs and how fast it is, over read rates.
    Rates(BenchRates),
    /// A workload that overloads the watcher: what is shed, and how much it is slowed.
    Overload(BenchOverload),
    /// A long watch with a disturbance every minute: does memory stay flat?
    Soak(BenchSoak),
    /// Three nodes with wrong clocks, one disturbed: is the rank named at the centre, and why?
    Nodes(BenchNodes),
    /// Faults of random kind, strength, place and time, judged while they happen.
    Faults(BenchFaults),
    /// Every injector, several fresh trials each: is the class right, and the culprit?
    Injectors(BenchInjectors),
    /// False alarms per clean 5 s window: ours and the published method on the same recordings.
    Darzi(BenchDarzi),
    /// What recording costs, on five workloads.
    Overhead(BenchOverhead),
    /// The recorder killed at random moments: does every trace open, validate and hold all?
    Crash(BenchCrash),
    /// An unmodified Redis, disturbed by a CPU hog and by a disk hog.
    Server(BenchServer),
    /// A generated database of Nsight Systems or trace of the PyTorch profiler, with stalls at known
    /// places.
    TraceData(BenchTraceData),
}

/// Arguments of `bench trace-data`.
#[derive(Debug, Args)]
pub struct BenchTraceData {
    /// Kernels, over all GPUs.
    #[arg(long, default_value_t = 1_000_000)]
    pub kernels: u64,
    /// Copies at most, stalls included.
    #[arg(long, default_value_t = 100_000)]
    pub copies: u64,
    /// GPUs.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub gpus: u8,
    /// What everything follows from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A trace of the PyTorch profiler instead of a database.
    #[arg(long)]
    pub kineto: bool,
    /// Where it goes.
    #[arg(short, long, default_value = "target/traces/generated.sqlite")]
    pub output: PathBuf,
}

/// Arguments of `bench injectors`.
#[derive(Debug, Args)]
pub struct BenchInjectors {
    /// Trials of each injector.
    #[arg(long, default_value_t = 5)]
    pub trials: u32,
    /// Only these injectors.
    #[arg(long = "only", value_name = "INJECTOR")]
    pub only: Vec<gpuwhy_testkit::inject::Kind>,
    /// Where the results go; trials that are there already are kept and counted.
    #[arg(long, default_value = "bench/results/injectors.json")]
    pub output: PathBuf,
    /// Where the traces of the trials go.
    #[arg(long, default_value = "target/trials")]
    pub traces: PathBuf,
    /// Forget earlier results.
    #[arg(long)]
    pub fresh: bool,
    /// Seconds of undisturbed steps before an injection.
    #[arg(long, default_value_t = 9)]
    pub before: u64,
    /// Seconds of disturbance.
    #[arg(long, default_value_t = 7)]
    pub during: u64,
}

/// Arguments of `bench faults`.
#[derive(Debug, Args)]
pub struct BenchFaults {
    /// For how long to add trials, minutes; 0 scores what there is.
    #[arg(long, default_value_t = 60)]
    pub minutes: u64,
    /// How long one run of the workload lasts, minutes.
    #[arg(long, default_value_t = 10)]
    pub session_minutes: u64,
    /// The first session's seed; later ones count up.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only these injectors; `none` and `load-change` alone make recordings without faults.
    #[arg(long = "only", value_name = "INJECTOR")]
    pub only: Vec<gpuwhy_testkit::inject::Kind>,
    /// Where the results go; trials that are there already are kept and counted.
    #[arg(long, default_value = "bench/results/faults.json")]
    pub output: PathBuf,
    /// Where the traces of the sessions go.
    #[arg(long, default_value = "target/faults")]
    pub traces: PathBuf,
    /// Keep every row in the traces, and not only those around findings.
    #[arg(long)]
    pub everything: bool,
    /// Do not keep the traces; the trials cannot be judged again then.
    #[arg(long, conflicts_with = "everything")]
    pub drop_traces: bool,
    /// Judge the stored traces of all trials again with this program, with all its probes and with
    /// one group of them taken away at a time, and add no trials.
    #[arg(long, conflicts_with = "fresh")]
    pub rejudge: bool,
    /// Forget earlier results.
    #[arg(long)]
    pub fresh: bool,
}

/// Arguments of `bench rates`.
#[derive(Debug, Args)]
pub struct BenchRates {
    /// Reads a second.
    #[arg(long, default_values_t = [10, 30, 100, 300, 1000])]
    pub hz: Vec<u32>,
    /// Runs at each rate; the rates take turns.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Injections in each run.
    #[arg(long, default_value_t = 2)]
    pub injections: u32,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/rates.json")]
    pub output: PathBuf,
    /// Where the traces go.
    #[arg(long, default_value = "target/live")]
    pub traces: PathBuf,
}

/// Arguments of `bench overload`.
#[derive(Debug, Args)]
pub struct BenchOverload {
    /// Messages of each sender.
    #[arg(long, default_value_t = 30_000)]
    pub loops: u32,
    /// Rounds of each way to run it; they take turns.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// The limit, per cent of the machine.
    #[arg(long, default_value_t = 2.0)]
    pub max_cpu: f64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/overload.json")]
    pub output: PathBuf,
    /// Where the traces go.
    #[arg(long, default_value = "target/live")]
    pub traces: PathBuf,
}

/// Arguments of `bench soak`.
#[derive(Debug, Args)]
pub struct BenchSoak {
    /// For how long.
    #[arg(long, default_value_t = 30)]
    pub minutes: u64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/soak.json")]
    pub output: PathBuf,
    /// Where the trace goes.
    #[arg(long, default_value = "target/live")]
    pub traces: PathBuf,
    /// Keep the trace.
    #[arg(long)]
    pub keep_traces: bool,
}

/// Arguments of `bench nodes`.
#[derive(Debug, Args)]
pub struct BenchNodes {
    /// Trials of each fault.
    #[arg(long, default_value_t = 3)]
    pub trials: u32,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/nodes.json")]
    pub output: PathBuf,
    /// Where the traces go.
    #[arg(long, default_value = "target/live")]
    pub traces: PathBuf,
}

/// Arguments of `bench darzi`.
#[derive(Debug, Args)]
pub struct BenchDarzi {
    /// Clean recordings.
    #[arg(long, default_value_t = 3)]
    pub recordings: u32,
    /// Seconds of each.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/darzi.json")]
    pub output: PathBuf,
    /// Where the recordings go.
    #[arg(long, default_value = "target/darzi")]
    pub traces: PathBuf,
}

/// Arguments of `bench overhead`.
#[derive(Debug, Args)]
pub struct BenchOverhead {
    /// Rounds of off, on, off for each workload.
    #[arg(long, default_value_t = 5)]
    pub rounds: u32,
    /// Seconds of the workloads that last as long as asked.
    #[arg(long, default_value_t = 6)]
    pub seconds: u64,
    /// Only these workloads.
    #[arg(long = "only", value_name = "WORKLOAD")]
    pub only: Vec<String>,
    /// A folder on a disk, for the workloads' files.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub work_dir: PathBuf,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/overhead.json")]
    pub output: PathBuf,
}

/// Arguments of `bench crash`.
#[derive(Debug, Args)]
pub struct BenchCrash {
    /// How many kills.
    #[arg(long, default_value_t = 50)]
    pub kills: u32,
    /// Seed of the moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/crash.json")]
    pub output: PathBuf,
    /// Where the recordings go.
    #[arg(long, default_value = "target/crash")]
    pub traces: PathBuf,
}

/// Arguments of `bench server`.
#[derive(Debug, Args)]
pub struct BenchServer {
    /// The function of redis-server that is a step: it writes and syncs what was received.
    #[arg(long, default_value = "beforeSleep")]
    pub symbol: String,
    /// Seconds of undisturbed load.
    #[arg(long, default_value_t = 8)]
    pub before: u64,
    /// Seconds of disturbance.
    #[arg(long, default_value_t = 8)]
    pub during: u64,
    /// A folder on a disk, for the server's files and the disk hog's.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub work_dir: PathBuf,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/server.json")]
    pub output: PathBuf,
    /// Where the recordings go.
    #[arg(long, default_value = "target/server")]
    pub traces: PathBuf,
}

/// `30s`, `500ms`, `5m`, `2h`, or a number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is no duration; try `30s`"))?;
    let seconds = match unit {
        "" | "s" => number,
        "ms" => number / 1e3,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(format!("`{unit}` is no unit of time; use ms, s, m or h")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is too long"))
}

fn uprobe(text: &str) -> Result<UprobeStep, String> {
    let help = "write uprobe:BINARY:SYMBOL, such as uprobe:/usr/bin/redis-server:processCommand";
    let rest = text.strip_prefix("uprobe:").ok_or(help)?;
    let (binary, symbol) = rest.rsplit_once(':').ok_or(help)?;
    if binary.is_empty() || symbol.is_empty() {
        return Err(help.into());
    }
    Ok(UprobeStep { binary: binary.into(), symbol: symbol.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units_and_say_what_they_want() {
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("20"), Ok(Duration::from_secs(20)));
        assert!(duration("20 parsecs").unwrap_err().contains("ms, s, m or h"));
        assert!(duration("1e99h").is_err());
    }

    #[test]
    fn a_uprobe_names_its_binary_and_symbol() {
        let step = uprobe("uprobe:/opt/a:b/redis-server:call").unwrap();
        assert_eq!((step.binary, step.symbol), ("/opt/a:b/redis-server".into(), "call".into()));
        assert!(uprobe("redis-server:call").is_err());
        assert!(uprobe("uprobe:redis-server").is_err());
    }
}
