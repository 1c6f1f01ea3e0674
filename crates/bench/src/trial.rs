//! One trial: the workload, the recorder, a labelled disturbance, and the trace.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_collect::{Config, Target};
use gpuwhy_diagnose::detect::Step;
use gpuwhy_testkit::inject::{Injector, Kind, Label, Placement, Spec};
use gpuwhy_testkit::steploop::Ready;

use gpuwhy_engine::launch::{self, Gate, GatedCommand, Instrumentation, MarkRing};
use gpuwhy_engine::record::{Recording, RecordingSummary};

use crate::program;

/// How long the parts of a trial last.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Undisturbed, after a second in which caches warm.
    pub before: Duration,
    /// Disturbed.
    pub during: Duration,
    /// Undisturbed again.
    pub after: Duration,
}

/// What a trial was.
pub struct Trial {
    /// What was injected.
    pub label: Label,
    /// The recorder's summary.
    pub summary: RecordingSummary,
}

/// A child that is ended with us.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // SIGTERM first: workload and injectors undo what they did.
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = gpuwhy_collect::signal(self.0.id() as i32, signal_hook::consts::SIGTERM);
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn lines(child: &mut Child) -> Result<Receiver<String>> {
    let out = child.stdout.take().ok_or_else(|| anyhow!("the child has no output"))?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    Ok(receive)
}

/// The workload, started and waiting for its recorder.
pub struct Workload {
    gate: Gate,
    output: Receiver<String>,
    ring: MarkRing,
    pid: i32,
    ready_by: Instant,
    _child: Ended,
}

impl Workload {
    /// Starts it.
    pub fn spawn() -> Result<Workload> {
        let ring = MarkRing::make(None)?;
        let own = program::own()?;
        let command = [program::own()?.into_os_string(), "steploop".into()];
        let mut gated = GatedCommand::spawn(
            &own,
            &command,
            ring.path(),
            &Instrumentation::none(),
            None,
            Stdio::piped(),
        )?;
        let output = lines(&mut gated.child)?;
        Ok(Workload {
            gate: gated.gate(),
            output,
            ring,
            pid: gated.child.id() as i32,
            ready_by: Instant::now() + Duration::from_secs(60),
            _child: Ended(gated.child),
        })
    }

    /// How to record it.
    pub fn config(&self) -> Config {
        Config {
            targets: vec![Target::Pid(self.pid)],
            wire: Some(self.ring.path().to_path_buf()),
            ..Config::default()
        }
    }

    /// Lets it begin.
    pub fn go(&mut self) -> Result<()> {
        self.ready_by = Instant::now() + Duration::from_secs(60);
        Ok(self.gate.open()?)
    }

    /// What it says of itself once it has begun.
    pub fn ready(&self) -> Result<Option<Ready>> {
        let Some(line) = self.output.try_recv().ok().filter(|line| line.starts_with('{')) else {
            if Instant::now() > self.ready_by {
                bail!("the workload was not ready within a minute");
            }
            return Ok(None);
        };
        let ready = serde_json::from_str(&line);
        ready.context("cannot understand the first line of the workload").map(Some)
    }
}

/// Records the workload into `trace` while `injector` disturbs it, reporting progress to `say`.
pub fn run(trace: &Path, injector: Kind, plan: &Plan, say: &mut dyn FnMut(&str)) -> Result<Trial> {
    launch::make_room(trace, true)?;
    let mut workload = Workload::spawn()?;
    let mut recording = Recording::start(trace, workload.config(), None)?;
    workload.go()?;
    say("the workload starts");
    let mut ready = None;
    recording.run_until(|| {
        ready = workload.ready()?;
        anyhow::Ok(ready.is_some())
    })?;
    let Some(target) = ready else { bail!("the workload was not ready") };
    recording.run_for(Duration::from_secs(1) + plan.before)?;
    if injector != Kind::None {
        say(&format!("{} starts", injector.name()));
    }
    let spec = Spec {
        kind: injector,
        after: 0.0,
        seconds: plan.during.as_secs_f64(),
        intensity: 1.0,
        placement: Placement::Other,
        target,
    };
    // The injector ends with the thread that started it.
    let disturbing = std::thread::spawn(move || Injector::start(spec)?.finish());
    let end = Instant::now() + plan.during + Duration::from_secs(30);
    recording.run_until(|| {
        if Instant::now() > end {
            bail!("{} did not end in time", injector.name());
        }
        anyhow::Ok(disturbing.is_finished())
    })?;
    let label = disturbing.join().map_err(|_| anyhow!("the injector's thread panicked"))??;
    recording.run_for(plan.after)?;
    say("recorded");
    let summary = recording.finish()?;
    Ok(Trial { label, summary })
}

/// How much the steps of one name changed.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Effect {
    /// The steps' name.
    pub name: String,
    /// Mean before the onset, ms.
    pub before_ms: f64,
    /// Mean of steps that overlap the disturbance, ms.
    pub during_ms: f64,
}

/// Measures the truth of an injection: did it change the steps? They are compared with those since
/// `since`.
pub fn effects(steps: &[Step], since: i64, from: i64, to: i64) -> Vec<Effect> {
    let mut by_name: std::collections::BTreeMap<&str, [Vec<f64>; 2]> = Default::default();
    for step in steps.iter().filter(|step| step.ts.0 >= since) {
        let sums = by_name.entry(&step.name).or_default();
        let ms = step.dur.as_millis_f64();
        if step.end().0 <= from {
            sums[0].push(ms);
        } else if step.ts.0 < to {
            sums[1].push(ms);
        }
    }
    let mean = gpuwhy_diagnose::stats::mean;
    by_name
        .into_iter()
        .filter(|(_, [before, during])| !before.is_empty() && !during.is_empty())
        .map(|(name, [before, during])| Effect {
            name: name.to_string(),
            before_ms: mean(&before[before.len().min(5)..]),
            during_ms: mean(&during),
        })
        .collect()
}

/// Waits until `recorder`, which was started a moment ago, has made the trace.
pub fn recording_begins(recorder: &mut Child, trace: &Path) -> Result<()> {
    let by = Instant::now() + Duration::from_secs(20);
    while !trace.join("trace.toml").exists() {
        if Instant::now() > by || recorder.try_wait()?.is_some() {
            bail!("the recorder did not start");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
