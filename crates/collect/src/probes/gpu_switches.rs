//! Context switches of NVIDIA GPUs: whose context had the engine for kernels, and from when until when.
//!
//! *What it sees*: what the GPU's scheduler of contexts (FECS) tells NVIDIA's driver of each switch, all processes of the host
//! included, without anything inside them. *Why it matters*: processes that share a GPU take turns, and a kernel that was
//! preempted looks like a slow one from its own process. This says whose turn it was instead. *What fools it*:
//!
//! - A context that has the engine need not work: it keeps the engine until another one wants it. So a turn says who was not
//!   running, and only while somebody waited also who was.
//! - The driver hands records on 30 times a second. Its log holds 8,192 of them; what it drops is counted.
//! - A process under MPS is the server of MPS here. A virtual machine is the process that holds its virtual GPU.
//! - Copies, and the engines of video, are not in it.
//! - Times are read on the GPU's clock, which is compared with CLOCK_MONOTONIC once a second.
//! - While it records, GPUs count as used, so that the driver does not put them to sleep.
//!
//! **Never run on hardware**: no machine of our tests has a GPU. What is tested is this code over a stand-in that answers as the
//! published source of the driver (595.45.04) does.

mod driver;
mod ring;

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{SendError, SyncSender};
use std::time::Duration;

use gpuwhy_schema::{
    Discipline, EntityId, EntityKind, Lane, Ns, SourceId, State, TrackId, names, sources,
};

use super::drm_clients::{engine_of, share_track};
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::every::Every;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::rounds::{Polled, Readings, Rounds};
use crate::sys;
use driver::{Logged, Said};
use ring::Switch;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |config| config.gpu_switches,
    required_if: |config| config.gpu_switches,
    ..ProbeSpec::new(
        "gpu_switches",
        &sources::GPU_SWITCHES,
        "whose context had an NVIDIA GPU, by the driver's log of its context switches",
        start,
    )
};

/// Between two readings.
const EVERY: Duration = Duration::from_millis(100);
/// Between two comparisons of the clocks.
const CLOCKS: Ns = Ns::secs(1);
/// Records of a switch may come this long after it.
const LATE: Ns = Ns::millis(150);
/// A turn that lasts longer is written in parts, so that it is seen while it lasts.
const TURN: Ns = Ns::secs(1);

/// What the log of one GPU said.
#[derive(Debug)]
struct Reading {
    uuid: String,
    at: Ns,
    said: Result<Said, String>,
}

/// Reads the logs of all GPUs.
struct Reader {
    gpus: Vec<Logged>,
    clocks: Every,
}

impl Reader {
    fn read(&mut self, readings: &SyncSender<Reading>) -> Result<(), SendError<Reading>> {
        let at = sys::monotonic();
        let is_asked = self.clocks.is_due(at);
        let mut all = Ok(());
        self.gpus.retain_mut(|gpu| {
            let said = gpu.read(is_asked).map_err(|why| why.to_string());
            let goes_on = said.is_ok();
            if let Err(error) = readings.send(Reading { uuid: gpu.uuid.clone(), at, said }) {
                all = Err(error);
            }
            goes_on
        });
        all
    }
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let gpus = driver::all().map_err(|why| CollectError::Unsupported {
        missing: format!("context switches of GPUs: {why}"),
        fix: "record without `--gpu-switches`".into(),
    })?;
    let mut reader = Reader { gpus, clocks: Every::new(CLOCKS) };
    let round = move |readings: &SyncSender<Reading>| reader.read(readings);
    let reads = Rounds::start("gpuwhy-gpu", "context switches of GPUs", (EVERY, 64), round)?;
    let rows = SwitchRows { source: start.source, ..SwitchRows::default() };
    Ok(Box::new(Polled { reads, rows }))
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
struct Turn {
    pid: Option<u32>,
    context: u32,
    since: Ns,
}

/// The engine of a GPU, or of a partition of it.
#[derive(Debug)]
struct Engine {
    entity: EntityId,
    owners: TrackId,
    turn: Option<Turn>,
    /// The end of the last turn: what is written does not overlap.
    written_to: Ns,
    /// What each had since the last row, and its rows.
    had: BTreeMap<EntityId, u64>,
    times: HashMap<EntityId, DeltaCounter>,
    times_at: Ns,
}

/// A GPU.
#[derive(Debug, Default)]
struct Gpu {
    /// What is to be added to its clock; none before the first comparison.
    clock: Option<i64>,
    lost: u64,
    /// When its log was read first: nothing is known of before.
    began: Option<Ns>,
    engines: BTreeMap<Option<(u8, u8)>, Engine>,
}

/// Makes rows of readings.
#[derive(Debug, Default)]
struct SwitchRows {
    source: SourceId,
    gpus: BTreeMap<String, Gpu>,
    written: u64,
    /// By how much times may be off, ns.
    error: i64,
}

impl Readings for SwitchRows {
    type Reading = Reading;

    fn take(&mut self, reading: Reading, cx: &mut Context) {
        let source = self.source;
        let said = match reading.said {
            Ok(said) => said,
            Err(why) => return cx.degraded(source, &format!("{}: {why}", reading.uuid)),
        };
        let gpu = self.gpus.entry(reading.uuid.clone()).or_default();
        gpu.lost = said.lost;
        let began = *gpu.began.get_or_insert(reading.at);
        if let Some((clock, error)) = said.clock {
            gpu.clock = Some(clock);
            if error > self.error {
                self.error = error;
                let word = format!("clock_error_ns={error}");
                cx.catalog.update_source(source, |s| s.config = word.as_str().into());
            }
        }
        let Some(clock) = gpu.clock else { return };
        let states = cx.rows.state.len();
        for switch in said.switches {
            let at = Ns((switch.at as i64).saturating_add(clock));
            let engine = gpu.engines.entry(switch.partition).or_insert_with(|| {
                let mut engine = engine(&reading.uuid, switch.partition, at, source, cx);
                // Who ceases to have it had it all the time before.
                let Switch { pid, context, .. } = switch;
                engine.turn = Some(Turn { pid, context, since: began }).filter(|_| !switch.begins);
                engine
            });
            engine.switch(switch, at, cx);
        }
        let settled = reading.at.saturating_sub(LATE);
        for engine in gpu.engines.values_mut() {
            engine.settle(settled, source, cx);
        }
        self.written += (cx.rows.state.len() - states) as u64;
    }

    fn finish(&mut self, now: Ns, cx: &mut Context) {
        let settled = now.saturating_sub(LATE);
        for engine in self.gpus.values_mut().flat_map(|gpu| gpu.engines.values_mut()) {
            engine.until(settled, cx);
            engine.times_at = engine.times_at.min(settled.saturating_sub(TURN));
            engine.settle(settled, self.source, cx);
        }
    }

    fn recorded(&self) -> u64 {
        self.written
    }

    fn dropped(&self) -> u64 {
        self.gpus.values().map(|gpu| gpu.lost).sum()
    }
}

impl Engine {
    fn switch(&mut self, switch: Switch, at: Ns, cx: &mut Context) {
        // Also where the record of an end is lost.
        self.until(at, cx);
        let Switch { pid, context, .. } = switch;
        self.turn = switch.begins.then_some(Turn { pid, context, since: at });
    }

    /// Writes whose turn it is up to `to`.
    fn until(&mut self, to: Ns, cx: &mut Context) {
        let Some(turn) = &mut self.turn else { return };
        let from = turn.since.max(self.written_to);
        if to <= from {
            return;
        }
        turn.since = to;
        self.written_to = to;
        let (pid, context) = (turn.pid, turn.context);
        let process = pid.map(|pid| cx.process(pid, None));
        let (dur, value) = (to.saturating_sub(from), process.map_or(0, |process| process.0 as i64));
        let (track, arg) = (self.owners, Some(i64::from(context)));
        cx.rows.state.push(State { ts: from, dur: Some(dur), track, value, arg });
        if let Some(process) = process {
            *self.had.entry(process).or_default() += dur.0.unsigned_abs();
        }
    }

    /// No record of before `to` comes any more.
    fn settle(&mut self, to: Ns, source: SourceId, cx: &mut Context) {
        if self.turn.is_some_and(|turn| to.saturating_sub(turn.since) >= TURN) {
            self.until(to, cx);
        }
        if to.saturating_sub(self.times_at) < TURN {
            return;
        }
        self.times_at = to;
        let had = std::mem::take(&mut self.had);
        let engine = self.entity;
        for process in had.keys() {
            self.times.entry(*process).or_default();
        }
        for (process, counter) in &mut self.times {
            let ns = had.get(process).copied().unwrap_or(0);
            let catalog = &mut cx.catalog;
            counter.add(ns, to, &mut cx.rows, || share_track(*process, engine, source, catalog));
        }
        self.times.retain(|_, counter| counter.is_moving());
    }
}

/// The engine for kernels of a GPU, or of a partition of it.
fn engine(
    uuid: &str,
    partition: Option<(u8, u8)>,
    now: Ns,
    source: SourceId,
    cx: &mut Context,
) -> Engine {
    let host = cx.host;
    let gpu = cx.catalog.entity(EntityKind::Gpu, uuid, |e| {
        e.parent = Some(host);
        e.name = uuid.into();
    });
    let name = match partition {
        None => "kernels".to_owned(),
        Some((gpu, compute)) => {
            format!("kernels of GPU instance {gpu}, compute instance {compute}")
        }
    };
    let entity = engine_of(gpu, &name, 1, cx);
    let lane = Lane::states(names::ENGINE_OWNER, Discipline::Sparse);
    let owners = cx.catalog.track(entity, None, lane, source);
    Engine {
        entity,
        owners,
        turn: None,
        written_to: Ns::MIN,
        had: BTreeMap::new(),
        times: HashMap::new(),
        times_at: now,
    }
}

#[cfg(test)]
mod tests;
