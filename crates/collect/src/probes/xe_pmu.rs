//! Virtual functions of Intel GPUs that are shared by SR-IOV (driver xe): how long each had each engine.
//!
//! *What it sees*: the driver's performance counters (`xe_<device>` below `/sys/bus/event_source/devices`), once a second:
//! ticks that an engine worked for a function, of all ticks. *Why it matters*: the host of virtual machines sees nothing else
//! of what they do on the GPU: their clients are their own, and the GPU's firmware schedules. *What fools it*:
//!
//! - It is a share of ticks: that two functions had an engine in the same second does not say that one waited for the other.
//! - Which machine a function was given to is not told.
//! - While its counters are open, the driver does not let the GPU sleep.

mod pmu;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use gpuwhy_schema::{EntityId, EntityKind, Lanes, Ns, SourceId, sources};

use super::drm_clients::{device_entity, engine_of, share_track};
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::every::Every;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::rounds::{Polled, Readings, Rounds};
use crate::sys;
use pmu::{CLASSES, Event, Pmu};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |_| !pmu::all(Path::new(SYS)).is_empty(),
    ..ProbeSpec::new(
        "xe_pmu",
        &sources::XE_PMU,
        "how long virtual functions of Intel GPUs (SR-IOV) had each engine",
        start,
    )
};

const SYS: &str = "/sys";
/// Between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks for functions.
const SEARCH: Ns = Ns::secs(10);
/// Counters that are opened, two for each engine and function.
const COUNTERS: usize = 1024;

/// A number that only grows.
type Ticks = Box<dyn FnMut() -> io::Result<u64> + Send>;
/// Opens a counter: the number of its kind, what it counts, and the CPU that it is read on.
type Open = Box<dyn Fn(&Event) -> io::Result<Ticks> + Send>;

/// An engine as one function has it.
struct Counted {
    device: String,
    function: u32,
    class: usize,
    active: Ticks,
    total: Ticks,
    last: (u64, u64),
}

/// What a function had of the engines of a class: the share of their ticks, summed over them.
#[derive(Debug)]
struct Had {
    device: String,
    function: u32,
    class: usize,
    engines: u32,
    share: f64,
}

#[derive(Debug)]
struct Reading {
    at: Ns,
    had: Vec<Had>,
    /// Counters that were not opened, being too many.
    left_out: u64,
    /// Why none was opened.
    refused: Option<String>,
}

struct Reader {
    open: Open,
    found: Vec<Pmu>,
    counted: Vec<Counted>,
    left_out: u64,
    refused: Option<String>,
    searches: Every,
}

impl Reader {
    fn new(open: Open) -> Reader {
        let (found, counted) = (Vec::new(), Vec::new());
        Reader { open, found, counted, left_out: 0, refused: None, searches: Every::new(SEARCH) }
    }

    fn read(&mut self, root: &Path, at: Ns) -> Reading {
        if self.searches.is_due(at) {
            let found = pmu::all(root);
            // Functions come and go together, by one number.
            if found != self.found {
                self.found = found;
                self.begin();
            }
        }
        let mut had: BTreeMap<(String, u32, usize), (u32, f64)> = BTreeMap::new();
        for one in &mut self.counted {
            let (Ok(active), Ok(total)) = ((one.active)(), (one.total)()) else { continue };
            let (more, of) = (active.saturating_sub(one.last.0), total.saturating_sub(one.last.1));
            one.last = (active, total);
            let sum = had.entry((one.device.clone(), one.function, one.class)).or_default();
            sum.0 += 1;
            sum.1 += if of > 0 { (more as f64 / of as f64).min(1.0) } else { 0.0 };
        }
        let had = had.into_iter().map(|((device, function, class), (engines, share))| Had {
            device,
            function,
            class,
            engines,
            share,
        });
        let refused = self.refused.clone();
        Reading { at, had: had.collect(), left_out: self.left_out, refused }
    }

    /// Opens what there is to count.
    fn begin(&mut self) {
        (self.counted, self.left_out, self.refused) = (Vec::new(), 0, None);
        for pmu in &self.found {
            for [active, total] in pmu.events() {
                if 2 * self.counted.len() >= COUNTERS {
                    self.left_out += 2;
                    continue;
                }
                let both = (self.open)(&active).and_then(|a| Ok((a, (self.open)(&total)?)));
                let (mut active_ticks, mut total_ticks) = match both {
                    Ok(both) => both,
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        self.refused = Some(error.to_string());
                        return;
                    }
                    // The device has no such engine.
                    Err(_) => continue,
                };
                let last = (active_ticks().unwrap_or(0), total_ticks().unwrap_or(0));
                self.counted.push(Counted {
                    device: pmu.device.clone(),
                    function: active.function,
                    class: active.class,
                    active: active_ticks,
                    total: total_ticks,
                    last,
                });
            }
        }
    }
}

/// By the kernel.
fn perf(event: &Event) -> io::Result<Ticks> {
    let mut file = File::from(sys::counter(event.kind, event.config, event.cpu)?);
    Ok(Box::new(move || {
        let mut bytes = [0; 8];
        file.read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }))
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut reader = Reader::new(Box::new(perf));
    let round = move |readings: &SyncSender<Reading>| {
        readings.send(reader.read(Path::new(SYS), sys::monotonic()))
    };
    let reads = Rounds::start("gpuwhy-xe", "counters of virtual functions", (EVERY, 16), round)?;
    let rows = FunctionRows { source: start.source, ..FunctionRows::default() };
    Ok(Box::new(Polled { reads, rows }))
}

/// Makes rows of readings.
#[derive(Debug, Default)]
struct FunctionRows {
    source: SourceId,
    last: Option<Ns>,
    times: HashMap<(EntityId, EntityId), DeltaCounter>,
    refused: bool,
    written: u64,
    left_out: u64,
}

impl Readings for FunctionRows {
    type Reading = Reading;

    fn take(&mut self, reading: Reading, cx: &mut Context) {
        self.left_out = self.left_out.max(reading.left_out);
        if let Some(why) = reading.refused.filter(|_| !std::mem::replace(&mut self.refused, true)) {
            let note = format!("counters of xe are not read: {why}; they need CAP_PERFMON");
            cx.degraded(self.source, &note);
        }
        let passed = self.last.map_or(Ns::ZERO, |last| reading.at.saturating_sub(last));
        self.last = Some(reading.at);
        let before = cx.rows.counter.len();
        for one in reading.had {
            let gpu = device_entity(&format!("xe {}", one.device), cx);
            let engine = engine_of(gpu, CLASSES[one.class], one.engines, cx);
            let function = function(gpu, one.function, &mut cx.catalog);
            let ns = (one.share * passed.0.max(0) as f64) as u64;
            let (source, catalog) = (self.source, &mut cx.catalog);
            let track = || share_track(function, engine, source, catalog);
            let counter = self.times.entry((function, engine)).or_default();
            counter.add(ns, reading.at, &mut cx.rows, track);
        }
        self.written += (cx.rows.counter.len() - before) as u64;
    }

    fn recorded(&self) -> u64 {
        self.written
    }

    fn dropped(&self) -> u64 {
        self.left_out
    }
}

/// A function of a GPU: 0 is the host's own.
pub(super) fn function(gpu: EntityId, number: u32, catalog: &mut Lanes) -> EntityId {
    let of = catalog.get(gpu).map_or_else(String::new, |e| e.key.to_string());
    catalog.entity(EntityKind::Vgpu, &format!("{of}/function/{number}"), |e| {
        e.parent = Some(gpu);
        let name = if number == 0 { "physical function" } else { "virtual function" };
        e.name = name.into();
        e.number = Some(i64::from(number));
    })
}

#[cfg(test)]
mod tests;
