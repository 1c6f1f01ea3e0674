//! Recording into a trace, without judging.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder, Status};
use gpuwhy_schema::{Ns, Rows, SourceState, TrackId, names};
use gpuwhy_store::{Options, Writer};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::trace_output::TraceOutput;

/// Exact records of threads that one CPU may write in a second. Ten times as many as beside a service that is only
/// watched: a recording is short, and asked for to be whole.
pub const CPU_RECORDS: u32 = 200_000;

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
    /// Rows recorded.
    pub rows: u64,
    /// Of these, rows that were lost because they could not be written.
    pub lost_rows: u64,
    /// Whether the trace is complete; if not, whoever opens it next recovers it.
    pub complete: bool,
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
    /// Exit status of the command, 128 + N if signal N ended it; `None` without a command, and if it
    /// went on when the recording ended.
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
    output: TraceOutput,
    path: PathBuf,
    began: Instant,
    start_cpu: Ns,
    counts: Counts,
}

impl Recording {
    /// Starts to record into `path`.
    ///
    /// # Errors
    /// The host cannot be recorded, or the trace cannot be made.
    pub fn start(path: &Path, config: Config, keep: Option<Duration>) -> Result<Recording> {
        let mut recorder = Recorder::start(config).map_err(Error::Start)?;
        let options = Options {
            keep_recent: keep.map(|k| Ns(k.as_nanos() as i64)),
            thread_begins: Some(|| {
                gpuwhy_collect::nice(10);
                Box::new(())
            }),
            ..Default::default()
        };
        let writer = Writer::create(path, options)?;
        let now = Instant::now();
        let start_cpu = recorder.status().cpu;
        Ok(Recording {
            output: TraceOutput::new(writer, &mut recorder),
            recorder,
            start_cpu,
            path: path.into(),
            began: now,
            counts: Counts::default(),
        })
    }

    /// Records for about one tick. That rows cannot be written is no error: see
    /// [`Recording::take_news`].
    ///
    /// # Errors
    /// The host cannot be read; another tick may succeed.
    pub fn tick(&mut self) -> Result<()> {
        let mut rows = self.recorder.poll(Duration::from_millis(200))?;
        self.counts.take(&rows);
        self.output.append(&mut rows);
        self.output.commit(&mut self.recorder);
        Ok(())
    }

    /// What users should be told of the trace's disk, each once: that it fails, and that it works
    /// again.
    pub fn take_news(&mut self) -> Vec<String> {
        self.output.take_news()
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

    /// Ends it.
    ///
    /// # Errors
    /// The trace cannot be completed.
    pub fn finish(self) -> Result<RecordingSummary> {
        let (summary, error) = self.close();
        error.map_or(Ok(summary), Err)
    }

    /// Ends it; what was recorded is said also if the trace cannot be completed, with the reason.
    pub fn close(self) -> (RecordingSummary, Option<Error>) {
        let Recording { recorder, output, path, began, start_cpu, mut counts } = self;
        let status = recorder.status();
        let last = recorder.finish();
        counts.take(&last);
        let closed = output.close(last);
        let mut degraded: Vec<String> = counts.degraded.into_values().collect();
        degraded.extend(closed.news);
        let summary = RecordingSummary {
            schema_version: 1,
            trace: path.display().to_string(),
            seconds: began.elapsed().as_secs_f64(),
            events: status.events,
            dropped: status.dropped,
            rows: counts.rows,
            lost_rows: closed.written.lost,
            complete: closed.error.is_none(),
            steps: counts.steps,
            observed: counts.observed,
            cpu_seconds: (status.cpu - start_cpu).as_secs_f64(),
            start_cpu_seconds: start_cpu.as_secs_f64(),
            bpf_seconds: status.bpf.map(|b| b.as_secs_f64()),
            bpf_runs: status.bpf_runs,
            rss_bytes: status.rss,
            degraded,
            command_status: None,
        };
        (summary, closed.error)
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
