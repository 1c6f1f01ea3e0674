//! `gpuwhy record`: the recorder's rows into a trace directory, until told to stop.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gpuwhy_collect::{Config, Recorder, Status, Target, UprobeStep};
use gpuwhy_schema::SourceState;
use gpuwhy_store::Writer;
use serde::Serialize;

use crate::args::Record;
use crate::exit;
use crate::inside::{self, Doors};
use crate::own::OwnFolder;

/// Records of one step are 64 bytes and a few a step; this holds seconds of them.
const RING_SLOTS: u32 = 1 << 15;
/// What a killed recorder may lose.
const COMMIT_EVERY: Duration = Duration::from_millis(500);

/// What a recording was, at its end.
#[derive(Debug, Serialize)]
pub struct Told {
    schema_version: u32,
    /// Where it is.
    pub trace: String,
    /// How long it took.
    pub seconds: f64,
    /// Events that the kernel handed over.
    pub events: u64,
    /// Events lost.
    pub dropped: u64,
    /// Rows written.
    pub rows: u64,
    /// CPU seconds of the recorder while it recorded.
    pub cpu_seconds: f64,
    /// CPU seconds that it took to start: the kernel's verifier, mostly.
    pub start_cpu_seconds: f64,
    /// CPU seconds of its BPF programs, where the kernel measures them.
    pub bpf_seconds: Option<f64>,
    /// How often they ran, where the kernel counts it.
    pub bpf_runs: u64,
    /// Resident memory of the recorder, bytes.
    pub rss_bytes: u64,
    /// Sources that saw less than they were asked to, and why.
    pub degraded: Vec<String>,
    /// How the command ended, if there was one.
    pub command_status: Option<i32>,
}

/// A recording under way.
pub struct Recording {
    recorder: Recorder,
    writer: Writer,
    path: PathBuf,
    began: Instant,
    start_cpu: gpuwhy_schema::Ns,
    committed: Instant,
    account: Account,
}

impl Recording {
    /// Starts to record into `path`.
    pub fn start(path: &Path, config: Config, keep: Option<Duration>) -> Result<Recording> {
        let recorder = Recorder::start(config)
            .context("cannot record; `gpuwhy doctor` says what this host allows")?;
        let keep_recent = keep.map(|k| gpuwhy_schema::Ns(k.as_nanos() as i64));
        let options = gpuwhy_store::Options {
            keep_recent,
            thread_begins: Some(|| gpuwhy_collect::nice(10)),
            ..Default::default()
        };
        let writer = Writer::create(path, options)
            .with_context(|| format!("cannot make the trace `{}`", path.display()))?;
        let now = Instant::now();
        let start_cpu = recorder.status().cpu;
        Ok(Recording {
            recorder,
            start_cpu,
            writer,
            path: path.into(),
            began: now,
            committed: now,
            account: Account::default(),
        })
    }

    /// Records for about a tick.
    pub fn turn(&mut self) -> Result<()> {
        let rows = self.recorder.poll(Duration::from_millis(200))?;
        self.take(rows)?;
        if self.committed.elapsed() >= COMMIT_EVERY {
            self.writer.flush_journal()?;
            self.committed = Instant::now();
        }
        Ok(())
    }

    /// Records until `until` says so.
    pub fn run_until(&mut self, mut until: impl FnMut() -> Result<bool>) -> Result<()> {
        while !until()? {
            self.turn()?;
        }
        Ok(())
    }

    /// Records for so long.
    pub fn run_for(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        self.run_until(|| Ok(Instant::now() >= end))
    }

    /// What it has cost and lost so far.
    pub fn status(&self) -> Status {
        self.recorder.status()
    }

    fn take(&mut self, mut rows: gpuwhy_schema::Rows) -> Result<()> {
        self.account.take(&rows);
        self.writer.append(&mut rows)?;
        Ok(())
    }

    /// Ends it, and says what it was.
    pub fn finish(self) -> Result<Told> {
        let Recording { recorder, mut writer, path, began, start_cpu, mut account, .. } = self;
        let status = recorder.status();
        let mut last = recorder.finish();
        account.take(&last);
        writer.append(&mut last)?;
        writer.finish()?;
        Ok(Told {
            schema_version: 1,
            trace: path.display().to_string(),
            seconds: began.elapsed().as_secs_f64(),
            events: status.events,
            dropped: status.dropped,
            rows: account.rows,
            cpu_seconds: (status.cpu - start_cpu).as_secs_f64(),
            start_cpu_seconds: start_cpu.as_secs_f64(),
            bpf_seconds: status.bpf.map(|b| b.as_secs_f64()),
            bpf_runs: status.bpf_runs,
            rss_bytes: status.rss,
            degraded: account.degraded.into_values().collect(),
            command_status: None,
        })
    }
}

/// What was taken, and which sources saw less than they were asked to.
#[derive(Default)]
struct Account {
    rows: u64,
    degraded: std::collections::BTreeMap<u32, String>,
}

impl Account {
    fn take(&mut self, rows: &gpuwhy_schema::Rows) {
        self.rows += rows.len() as u64;
        for source in &rows.source {
            if source.state == SourceState::Ok {
                self.degraded.remove(&source.id.0);
            } else {
                let note = source.note.as_deref().unwrap_or("no reason given");
                let says = format!("{}: {}: {note}", source.kind, source.state);
                self.degraded.insert(source.id.0, says);
            }
        }
    }
}

/// A ring for marked programs, in a folder of its own that goes away with it.
pub struct MarkRing {
    _ring: Option<gpuwhy_wire::Ring>,
    path: PathBuf,
    _folder: Option<OwnFolder>,
}

impl MarkRing {
    /// At `path`, or at a path of its own.
    pub fn make(path: Option<&Path>) -> Result<MarkRing> {
        let (path, folder) = match path {
            Some(path) => (path.to_path_buf(), None),
            None => {
                let folder = OwnFolder::make(["/dev/shm", "/run"])?;
                (folder.join("ring"), Some(folder))
            }
        };
        // A ring that is there already has programs that write to it.
        let ring = match path.exists() {
            true => None,
            false => Some(
                gpuwhy_wire::Ring::create(&path, RING_SLOTS)
                    .with_context(|| format!("cannot make the ring `{}`", path.display()))?,
            ),
        };
        Ok(MarkRing { _ring: ring, path, _folder: folder })
    }

    /// What GPUWHY_RING is to be.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A command that waits until recording has begun.
pub struct Gated {
    /// The process, which becomes the command.
    pub child: Child,
    gate: Gate,
}

/// The file that tells a waiting command to begin; it goes away with its last holder.
#[derive(Clone)]
pub struct Gate(Arc<OwnFolder>);

impl Gate {
    fn path(&self) -> PathBuf {
        self.0.join("gate")
    }

    /// Lets the command begin.
    pub fn go(&self) -> Result<()> {
        let path = self.path();
        std::fs::write(&path, b"go").with_context(|| format!("cannot write `{}`", path.display()))
    }
}

impl Gated {
    /// Starts `command`, waiting, with GPUWHY_RING set to `ring`, and what lets it be seen from
    /// inside.
    pub fn spawn(command: &[String], ring: &Path, doors: &Doors, output: Stdio) -> Result<Gated> {
        let gate = Gate(Arc::new(OwnFolder::make(["/dev/shm", "/run"])?));
        let own = std::env::current_exe().context("cannot find gpuwhy's own binary")?;
        let child = Command::new(own)
            .arg("__exec")
            .arg(gate.path())
            .arg("--")
            .args(command)
            .env("GPUWHY_RING", ring)
            .envs(doors.environment.iter().map(|(name, value)| (name, value)))
            .stdout(output)
            .spawn()
            .with_context(|| format!("cannot start `{}`", command[0]))?;
        Ok(Gated { child, gate })
    }

    /// What lets it become the command.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }
}

/// Waits for the gate, then becomes the command.
pub fn exec_when_told(gate: &Path, command: &[String]) -> Result<ExitCode> {
    let parent = std::os::unix::process::parent_id();
    while !gate.exists() {
        if std::os::unix::process::parent_id() != parent {
            bail!("the recorder went away before it had begun");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    Err(error).with_context(|| format!("cannot run `{}`", command[0]))
}

/// A flag that SIGINT and SIGTERM set.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the program at once, as people expect of ^C ^C.
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

/// Whether a trace has to be removed to make one there; an error when it may not be.
pub fn replaceable(path: &Path, force: bool) -> Result<bool> {
    if !path.exists() {
        return Ok(false);
    }
    if !force {
        bail!("`{}` exists already; --force replaces a trace", path.display());
    }
    if !path.join("trace.toml").is_file() {
        bail!("`{}` is no trace, so --force does not replace it", path.display());
    }
    Ok(true)
}

/// Makes room for a new trace, but never removes what is none.
pub fn make_room(path: &Path, force: bool) -> Result<()> {
    if !replaceable(path, force)? {
        return Ok(());
    }
    std::fs::remove_dir_all(path).with_context(|| format!("cannot remove `{}`", path.display()))
}

/// Makes room for a trace of these processes, unless they are not there or we may not record; then
/// the reason has been told, and this is what to exit with.
pub fn prepare(pids: &[i32], output: &Path, force: bool) -> Result<Option<ExitCode>> {
    for pid in pids {
        if !Path::new(&format!("/proc/{pid}")).exists() {
            bail!("there is no process {pid}");
        }
    }
    if let Some(reason) = crate::doctor::refusal() {
        eprintln!("gpuwhy: {reason}");
        return Ok(Some(exit::privilege()));
    }
    make_room(output, force)?;
    Ok(None)
}

/// Who is recorded exactly: these processes, and the command that was started.
pub fn targets(pids: &[i32], command: Option<&Gated>) -> Vec<Target> {
    let started = command.map(|gated| gated.child.id() as i32);
    pids.iter().copied().chain(started).map(Target::Pid).collect()
}

/// Records a trace.
pub fn run(args: &Record) -> Result<ExitCode> {
    if let Some(refused) = prepare(&args.pids, &args.output, args.force)? {
        return Ok(refused);
    }
    inside::check(&args.inside)?;
    let ring = MarkRing::make(args.ring.as_deref())?;
    let doors = Doors::prepare(&args.inside, !args.command.is_empty())?;
    let gated = match &args.command[..] {
        [] => None,
        command => Some(Gated::spawn(command, ring.path(), &doors, Stdio::inherit())?),
    };
    let targets = targets(&args.pids, gated.as_ref());
    let config = Config {
        targets,
        hops: args.hops,
        hz: args.hz,
        ring_bytes: (args.ring_kib * 1024).next_power_of_two(),
        steps: args
            .steps
            .iter()
            .map(|s| UprobeStep { binary: s.binary.clone(), symbol: s.symbol.clone() })
            .collect(),
        wire: Some(ring.path().to_path_buf()),
        doors: doors.config.clone(),
        ras: args.inside.nccl_ras.clone(),
        off: args.off.clone(),
    };
    let mut recording = Recording::start(&args.output, config, args.keep)?;
    let stop = stop_flag()?;
    let end = args.duration.map(|d| Instant::now() + d);
    let mut gated = gated;
    if let Some(gated) = &gated {
        gated.gate().go()?;
    }
    let told_live = std::io::stderr().is_terminal() && !args.json;
    if told_live {
        eprintln!("recording into {}; ^C ends it", args.output.display());
    }
    let mut told_at = Instant::now();
    let mut command_status = None;
    loop {
        recording.turn()?;
        if told_live && told_at.elapsed() >= Duration::from_secs(1) {
            told_at = Instant::now();
            let status = recording.status();
            eprint!(
                "\r{:>5.0} s  {:>10} events  {} lost  {:.1} % of a CPU  {} MiB ",
                recording.began.elapsed().as_secs_f64(),
                status.events,
                status.dropped,
                100.0 * status.cpu.as_secs_f64() / recording.began.elapsed().as_secs_f64(),
                status.rss >> 20
            );
        }
        if let Some(gated) = &mut gated
            && let Some(status) = gated.child.try_wait()?
        {
            command_status = Some(status.code().unwrap_or(-1));
            break;
        }
        if stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
    }
    if told_live {
        eprintln!();
    }
    if let Some(gated) = &mut gated
        && command_status.is_none()
    {
        // The command was ours to start, so it is ours to end.
        let _ = gpuwhy_collect::signal(gated.child.id() as i32, signal_hook::consts::SIGTERM);
        let _ = gated.child.wait();
    }
    let mut told = recording.finish()?;
    told.command_status = command_status;
    told.degraded.extend(doors.notes.iter().cloned());
    if args.json {
        println!("{}", serde_json::to_string_pretty(&told)?);
    } else {
        println!(
            "{}: {:.1} s, {} events, {} lost, {} rows; the recorder used {:.2} s of CPU and {} MiB",
            told.trace,
            told.seconds,
            told.events,
            told.dropped,
            told.rows,
            told.cpu_seconds,
            told.rss_bytes >> 20
        );
        for says in &told.degraded {
            println!("  {says}");
        }
        println!("next: gpuwhy diagnose {}", told.trace);
    }
    Ok(ExitCode::SUCCESS)
}
