//! Hostile guests: 63 rings that are written to as fast as possible, with random numbers and names, beside
//! one honest neighbour. What does the recorder use, and what does the neighbour lose?

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpuwhy_collect::{Config, Recorder, SocketConfig};
use gpuwhy_diagnose::stats::{quantile, sorted};
use gpuwhy_engine::launch;
use gpuwhy_schema::{Name, Ns, Rows};
use gpuwhy_store::{Options, Writer};
use gpuwhy_testkit::guest::{self, Manner, Place, Summary, Task};
use gpuwhy_testkit::helper::HelperProcess;

use super::{Args, Measured};
use crate::result::Figure;

/// An hour in all.
const SECONDS: usize = 3600;
/// Trials of it.
const TRIALS: usize = 3;
/// Rings that are written to as fast as possible, by processes of two users with this many each.
const HOSTILE: usize = 63;
const RINGS: usize = 4;
/// Records a second of the neighbour.
const HONEST: u32 = 1000;
/// How long the neighbour writes before and after the others, s.
const CALM: f64 = 1.0;

/// What one trial was.
#[derive(Debug, Default)]
struct Trial {
    seconds: f64,
    rss_mib: f64,
    tick_p99_ms: f64,
    disk_mib_s: f64,
    rows: u64,
    /// Of the neighbour: written, and missing in the rows.
    written: u64,
    missing: u64,
    /// Of the others.
    rings: usize,
    attempts: u64,
    /// Of what the resident memory is made.
    resident: String,
    note: String,
}

/// Measures it.
pub fn run(args: &Args) -> Result<Measured> {
    let seconds = (args.tries(SECONDS) as f64 / TRIALS as f64).max(3.0);
    let folder = tempfile_folder()?;
    let mut trials = Vec::new();
    for n in 0..TRIALS {
        let trial = trial(&folder, seconds, args.seed + 1000 * n as u64)?;
        trials.push(trial);
    }
    let _ = std::fs::remove_dir_all(&folder);
    let of = |value: fn(&Trial) -> f64| Figure::of(&trials.iter().map(value).collect::<Vec<_>>());
    let sum = |value: fn(&Trial) -> u64| trials.iter().map(value).sum::<u64>();
    let lost = Figure::share(sum(|t| t.missing) as usize, sum(|t| t.written) as usize);
    let figures = [
        ("hostile_guest_rss_mib", of(|t| t.rss_mib)),
        ("hostile_guest_neighbour_loss", lost),
        ("hostile_guest_tick_p99_ms", of(|t| t.tick_p99_ms)),
        ("hostile_guest_disk_mib_s", of(|t| t.disk_mib_s)),
    ]
    .map(|(name, figure)| (name.to_owned(), figure))
    .into();
    let notes = trials
        .iter()
        .map(|t| {
            format!(
                "{:.0} s: {} hostile rings, {} records attempted, {} rows written; the neighbour wrote \
                 {}; resident: {}; {}",
                t.seconds, t.rings, t.attempts, t.rows, t.written, t.resident, t.note
            )
        })
        .collect();
    Ok(Measured { figures, notes, ..Measured::default() })
}

/// A folder for the socket and the trace, which other users can find the socket in.
fn tempfile_folder() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("gpuwhy-guests-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make `{}`", folder.display()))?;
    let rights = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&folder, rights)?;
    Ok(folder)
}

fn trial(folder: &Path, seconds: f64, seed: u64) -> Result<Trial> {
    let socket = folder.join("agent.sock");
    let agent_socket = SocketConfig { mode: 0o666, ..SocketConfig::usual(socket.clone()) };
    let config = Config { agent_socket: Some(agent_socket), ..Config::default() };
    let mut recording = Recording::start(&folder.join("trace"), config)?;
    let task = |index, rings, seconds, manner, uid| Task {
        index,
        at: Place::Socket(socket.clone(), rings),
        seconds,
        seed: seed + u64::from(index),
        manner,
        own_namespace: false,
        uid,
    };
    let honest = Manner::Honest { threads: 2, per_second: HONEST };
    let mut honest = guest::start(&task(0, 1, seconds + 2.0 * CALM, honest, None))?;
    recording.run_for(CALM)?;
    let is_root = sys_is_root();
    let mut hostile = Vec::new();
    for (n, first) in (0..HOSTILE).step_by(RINGS).enumerate() {
        let rings = RINGS.min(HOSTILE - first);
        // No user may take all places.
        let uid = (is_root && n % 2 == 1).then_some(65_534);
        hostile.push(guest::start(&task(1 + n as u32, rings, seconds, Manner::Flood, uid))?);
    }
    let (from, written) = (Instant::now(), bytes_written());
    recording.run_until(|| all_over(&mut hostile))?;
    let flooded = from.elapsed().as_secs_f64();
    let written = bytes_written().saturating_sub(written);
    let others = hostile.into_iter().map(HelperProcess::finish).collect::<Result<Vec<Summary>>>();
    let others = others.context("a hostile guest failed")?;
    recording.run_until(|| Ok(honest.ended()?.is_some()))?;
    let honest = honest.finish().context("the honest guest failed")?;
    ensure!(honest.written > 0, "the honest guest wrote nothing");
    let mut trial = recording.finish()?;
    trial.seconds = flooded;
    trial.disk_mib_s = written as f64 / f64::from(1 << 20) / flooded;
    trial.rings = others.iter().map(|other| other.rings).sum();
    trial.attempts = others.iter().map(|other| other.written).sum();
    trial.written = honest.written;
    trial.missing = honest.written.saturating_sub(trial.missing);
    Ok(trial)
}

fn all_over(hostile: &mut [HelperProcess<Summary>]) -> Result<bool> {
    for one in hostile {
        if one.ended()?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sys_is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&match std::fs::metadata("/proc/self") {
        Ok(meta) => meta,
        Err(_) => return false,
    }) == 0
}

/// What `gpuwhy record` does, with a look at the rows on their way.
struct Recording {
    recorder: Recorder,
    writer: Writer,
    path: PathBuf,
    committed: Instant,
    /// How long each tick took from the end of the last one, ms.
    ticks: Vec<f64>,
    last: Instant,
    rss: u64,
    resident: String,
    rows: u64,
    seen: u64,
    note: Option<Name>,
}

impl Recording {
    fn start(path: &Path, config: Config) -> Result<Recording> {
        launch::make_room(path, true)?;
        let recorder = Recorder::start(config)?;
        let options = Options {
            thread_begins: Some(|| {
                gpuwhy_collect::nice(10);
                Box::new(())
            }),
            // As a recorder of a whole host runs.
            keep_recent: Some(Ns::secs(60)),
            ..Options::default()
        };
        let writer = Writer::create(path, options)?;
        let now = Instant::now();
        Ok(Recording {
            recorder,
            writer,
            path: path.to_owned(),
            committed: now,
            ticks: Vec::new(),
            last: now,
            rss: 0,
            resident: String::new(),
            rows: 0,
            seen: 0,
            note: None,
        })
    }

    fn take(&mut self, mut rows: Rows) -> Result<()> {
        self.rows += rows.len() as u64;
        self.seen += rows.mark.iter().filter(|mark| mark.name.starts_with("0:g0.")).count() as u64;
        if let Some(note) = rows.source.iter().rev().find_map(|source| {
            source.note.clone().filter(|note| &*source.kind == "inject" && !note.is_empty())
        }) {
            self.note = Some(note);
        }
        self.writer.append(&mut rows)?;
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        let rows = self.recorder.poll(Duration::from_millis(200))?;
        self.take(rows)?;
        if self.committed.elapsed() >= Duration::from_millis(500) {
            self.writer.flush_journal()?;
            self.committed = Instant::now();
            let rss = self.recorder.status().rss;
            if rss > self.rss {
                (self.rss, self.resident) = (rss, resident());
            }
        }
        let now = Instant::now();
        self.ticks.push((now - self.last).as_secs_f64() * 1e3);
        self.last = now;
        Ok(())
    }

    fn run_until(&mut self, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        while !done()? {
            self.tick()?;
        }
        Ok(())
    }

    fn run_for(&mut self, seconds: f64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        self.run_until(|| Ok(Instant::now() >= end))
    }

    /// `missing` is what was seen of the neighbour.
    fn finish(mut self) -> Result<Trial> {
        self.run_for(CALM)?;
        let rss = self.rss;
        let p99 = quantile(&sorted(self.ticks.iter().copied()), 0.99);
        let Recording { recorder, mut writer, path, mut seen, note, rows, resident, .. } = self;
        let mut last = recorder.finish();
        seen += last.mark.iter().filter(|mark| mark.name.starts_with("0:g0.")).count() as u64;
        writer.append(&mut last)?;
        writer.finish()?;
        let _ = std::fs::remove_dir_all(&path);
        Ok(Trial {
            rss_mib: rss as f64 / f64::from(1 << 20),
            tick_p99_ms: p99,
            rows,
            missing: seen,
            resident,
            note: note.map_or_else(|| "no quota was used up".into(), |note| note.to_string()),
            ..Trial::default()
        })
    }
}

/// Bytes that this process has written so far.
fn bytes_written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Anonymous memory, files and shared memory of this process.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
    };
    format!(
        "{} MiB of its own, {} of files, {} of rings and maps",
        of("RssAnon:"),
        of("RssFile:"),
        of("RssShmem:")
    )
}
