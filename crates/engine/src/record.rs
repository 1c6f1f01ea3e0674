//! Recording into a trace, without judging.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder, Status};
use gpuwhy_schema::{Ns, Rows, SourceState, TrackId, names};
use gpuwhy_store::{Options, Writer};
use serde::Serialize;

use crate::error::{Error, Result};

/// What a killed recorder may lose.
const COMMIT_EVERY: Duration = Duration::from_millis(500);

/// Summary of a recording.
#[derive(Debug, Default, Serialize)]
pub struct RecordingSummary {
    /// The version of this document.
    pub schema_version: u32,
    /// Path of the trace.
    pub trace: String,
    /// How long it took.
    pub seconds: f64,
    /// Events that the kernel handed over.
    pub events: u64,
    /// Events lost.
    pub dropped: u64,
    /// Rows written.
    pub rows: u64,
    /// Steps that were recorded.
    pub steps: u64,
    /// What was recorded besides: where there are no steps, this tells why nothing can be judged.
    pub observed: Observed,
    /// CPU seconds of the recorder while it recorded.
    pub cpu_seconds: f64,
    /// CPU seconds of its start: the kernel's verifier, mostly.
    pub start_cpu_seconds: f64,
    /// CPU seconds of its BPF programs, where the kernel measures them.
    pub bpf_seconds: Option<f64>,
    /// How often they ran, where the kernel counts it.
    pub bpf_runs: u64,
    /// Resident memory of the recorder, bytes.
    pub rss_bytes: u64,
    /// Sources that recorded less than they were asked to, and why.
    pub degraded: Vec<String>,
    /// Exit status of the command, if there was one.
    pub command_status: Option<i32>,
}

/// How much was recorded of what a verdict could be made of.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Observed {
    /// Threads whose states were recorded.
    pub threads: u64,
    /// Requests to disks.
    pub requests: u64,
    /// Kernels of GPUs.
    pub kernels: u64,
    /// Waits for a GPU.
    pub gpu_waits: u64,
    /// Collectives.
    pub collectives: u64,
}

/// A recording under way.
pub struct Recording {
    recorder: Recorder,
    writer: Writer,
    path: PathBuf,
    began: Instant,
    start_cpu: Ns,
    committed: Instant,
    counts: Counts,
}

impl Recording {
    /// Starts to record into `path`.
    ///
    /// # Errors
    /// The host cannot be recorded, or the trace cannot be made.
    pub fn start(path: &Path, config: Config, keep: Option<Duration>) -> Result<Recording> {
        let recorder = Recorder::start(config).map_err(Error::Start)?;
        let options = Options {
            keep_recent: keep.map(|k| Ns(k.as_nanos() as i64)),
            thread_begins: Some(|| gpuwhy_collect::nice(10)),
            ..Default::default()
        };
        let writer = Writer::create(path, options)?;
        let now = Instant::now();
        let start_cpu = recorder.status().cpu;
        Ok(Recording {
            recorder,
            start_cpu,
            writer,
            path: path.into(),
            began: now,
            committed: now,
            counts: Counts::default(),
        })
    }

    /// Records for about one tick.
    ///
    /// # Errors
    /// The recording cannot go on.
    pub fn tick(&mut self) -> Result<()> {
        let rows = self.recorder.poll(Duration::from_millis(200))?;
        self.take(rows)?;
        if self.committed.elapsed() >= COMMIT_EVERY {
            self.writer.flush_journal()?;
            self.committed = Instant::now();
        }
        Ok(())
    }

    /// Records until `done` returns true.
    ///
    /// # Errors
    /// Those of [`Recording::tick`] and of `done`.
    pub fn run_until<E: From<Error>>(
        &mut self,
        mut done: impl FnMut() -> Result<bool, E>,
    ) -> Result<(), E> {
        while !done()? {
            self.tick()?;
        }
        Ok(())
    }

    /// Records for this long.
    ///
    /// # Errors
    /// Those of [`Recording::tick`].
    pub fn run_for(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        self.run_until(|| Ok::<_, Error>(Instant::now() >= end))
    }

    /// How long it has been recording.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// What it has cost and lost so far.
    pub fn status(&self) -> Status {
        self.recorder.status()
    }

    fn take(&mut self, mut rows: Rows) -> Result<()> {
        self.counts.take(&rows);
        self.writer.append(&mut rows)?;
        Ok(())
    }

    /// Ends it.
    ///
    /// # Errors
    /// The trace cannot be completed.
    pub fn finish(self) -> Result<RecordingSummary> {
        let Recording { recorder, mut writer, path, began, start_cpu, mut counts, .. } = self;
        let status = recorder.status();
        let mut last = recorder.finish();
        counts.take(&last);
        writer.append(&mut last)?;
        writer.finish()?;
        Ok(RecordingSummary {
            schema_version: 1,
            trace: path.display().to_string(),
            seconds: began.elapsed().as_secs_f64(),
            events: status.events,
            dropped: status.dropped,
            rows: counts.rows,
            steps: counts.steps,
            observed: counts.observed,
            cpu_seconds: (status.cpu - start_cpu).as_secs_f64(),
            start_cpu_seconds: start_cpu.as_secs_f64(),
            bpf_seconds: status.bpf.map(|b| b.as_secs_f64()),
            bpf_runs: status.bpf_runs,
            rss_bytes: status.rss,
            degraded: counts.degraded.into_values().collect(),
            command_status: None,
        })
    }
}

/// Rows written, and the sources that recorded less than they were asked to.
#[derive(Default)]
struct Counts {
    rows: u64,
    steps: u64,
    observed: Observed,
    /// Tracks that hold waits for a GPU.
    gpu_waits: HashSet<TrackId>,
    degraded: BTreeMap<u32, String>,
}

impl Counts {
    fn take(&mut self, rows: &Rows) {
        self.rows += rows.len() as u64;
        self.steps += rows.step.len() as u64;
        for track in &rows.track {
            self.observed.threads += u64::from(&*track.name == names::THREAD_STATE);
            if &*track.name == names::SYNCHRONIZATION {
                self.gpu_waits.insert(track.id);
            }
        }
        let waits = rows.span.iter().filter(|span| self.gpu_waits.contains(&span.track));
        self.observed.gpu_waits += waits.count() as u64;
        self.observed.requests += rows.io.len() as u64;
        self.observed.kernels += rows.kernel.len() as u64;
        self.observed.collectives += rows.collective.len() as u64;
        for source in &rows.source {
            if source.state == SourceState::Ok {
                self.degraded.remove(&source.id.0);
            } else {
                let note = source.note.as_deref().unwrap_or("no reason given");
                let text = format!("{}: {}: {note}", source.kind, source.state);
                self.degraded.insert(source.id.0, text);
            }
        }
    }
}
