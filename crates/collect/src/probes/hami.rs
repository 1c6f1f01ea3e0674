//! Limits that HAMi's library gives containers on shared GPUs, and when it holds their launches back.
//!
//! *What it sees*: the file of each container below `/usr/local/vgpu/containers` (`POD-UID_CONTAINER/….cache`), once a
//! second, and which processes it is of. *Why it matters*: a process that reaches its limit, or that waits for a container
//! with a higher priority, is slow without anybody else being in its way by any number of the driver. *What fools it*:
//!
//! - A limit says what a process may have, and not that it wanted more: its use is NVML's to say.
//! - The container can write to its file. What it says counts for processes of that pod alone, by their cgroups; the numbers
//!   are the container's own word.
//! - A file may be left behind by a container that has gone; then no process of it is found.
//! - HAMi's monitor decides every 5 s who waits: what lasts less is not there to be seen.

pub(crate) mod region;

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use gpuwhy_schema::{Counter, EntityId, EntityKind, Lane, Measure, Ns, SourceId, names, sources};

use crate::context::Context;
use crate::error::CollectError;
use crate::every::Every;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::procfs::Proc;
use crate::rounds::{Polled, Readings, Rounds};
use crate::sys;
use region::{Limit, Region, Unread};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |_| Path::new(CONTAINERS).is_dir(),
    ..ProbeSpec::new(
        "hami",
        &sources::HAMI,
        "what HAMi's library lets the processes of containers have of a GPU, and when it holds them back",
        start,
    )
};

/// Where HAMi's device plug-in puts the files of containers.
const CONTAINERS: &str = "/usr/local/vgpu/containers";
/// Between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks for files, at least.
const SEARCH: Ns = Ns::secs(5);
/// Files that are read; further ones are counted.
const FILES: usize = 256;
/// What has not changed is written again after so long, so that any window of a trace has it.
const AGAIN: Ns = Ns::secs(10);

#[derive(Debug)]
struct Reading {
    at: Ns,
    /// What the files say, of the processes that are of their pods.
    containers: Vec<Region>,
    /// Files and processes that were not read or believed.
    left_out: u64,
    /// A version of the file that is not known.
    version: Option<(u32, u32)>,
}

struct Reader {
    folder: PathBuf,
    proc: Proc,
    /// By the names of their folders.
    files: Vec<(String, File)>,
    too_many: u64,
    searches: Every,
}

impl Reader {
    fn new(folder: &Path, proc: Proc) -> Reader {
        let (folder, files) = (folder.to_owned(), Vec::new());
        Reader { folder, proc, files, too_many: 0, searches: Every::new(SEARCH) }
    }

    fn read(&mut self) -> Reading {
        let at = sys::monotonic();
        if self.searches.is_due(at) {
            self.search();
        }
        let mut reading =
            Reading { at, containers: Vec::new(), left_out: self.too_many, version: None };
        for (container, file) in &self.files {
            let mut region = match Region::read(|to, from| file.read_exact_at(to, from)) {
                Ok(region) => region,
                Err(Unread::Version(major, minor)) => {
                    reading.version = Some((major, minor));
                    reading.left_out += 1;
                    continue;
                }
                Err(Unread::Other) => continue,
            };
            region.processes.retain(|pid| {
                let is_of = is_of_pod(&self.proc, *pid, container);
                // One that has ended is not there any more, and nobody's.
                let left_out = !is_of && self.proc.start_time(*pid).is_some();
                reading.left_out += u64::from(left_out);
                is_of
            });
            reading.containers.push(region);
        }
        reading
    }

    /// Looks for files of containers.
    fn search(&mut self) {
        (self.files, self.too_many) = (Vec::new(), 0);
        let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        for folder in folders(&self.folder).take(16 * FILES) {
            let container = folder.file_name().to_string_lossy().into_owned();
            for entry in folders(&folder.path()).take(FILES) {
                let path = entry.path();
                if path.extension().is_none_or(|extension| extension != "cache") {
                    continue;
                }
                // The container may put anything there.
                let Ok(file) = sys::open_in(&folder.path(), &entry.file_name()) else { continue };
                match self.files.len() < FILES {
                    true => self.files.push((container.clone(), file)),
                    false => self.too_many += 1,
                }
            }
        }
    }
}

/// Whether a process is of the pod whose number the name of a folder begins with (`UID_CONTAINER`): its cgroup is called
/// after it, with `-` or, by systemd, with `_`.
fn is_of_pod(proc: &Proc, pid: u32, container: &str) -> bool {
    let pod = container.split('_').next().unwrap_or_default();
    let Ok(cgroups) = fs::read_to_string(proc.path(format!("{pid}/cgroup"))) else { return false };
    pod.len() >= 32 && (cgroups.contains(pod) || cgroups.contains(&pod.replace('-', "_")))
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut reader = Reader::new(Path::new(CONTAINERS), Proc::default());
    let round = move |readings: &SyncSender<Reading>| readings.send(reader.read());
    let reads = Rounds::start("gpuwhy-hami", "the limits of containers", (EVERY, 16), round)?;
    let rows = LimitRows { source: start.source, ..LimitRows::default() };
    Ok(Box::new(Polled { reads, rows }))
}

/// Makes rows of readings.
#[derive(Debug, Default)]
struct LimitRows {
    source: SourceId,
    /// By process, GPU and what: the value that was last written, and when.
    last: HashMap<(u32, EntityId, &'static str), (u64, Ns)>,
    told: Option<(u32, u32)>,
    written: u64,
    left_out: u64,
}

impl Readings for LimitRows {
    type Reading = Reading;

    fn take(&mut self, reading: Reading, cx: &mut Context) {
        self.left_out = self.left_out.max(reading.left_out);
        if let Some((major, minor)) = reading.version.filter(|_| self.told != reading.version) {
            self.told = reading.version;
            let note = format!("files of HAMi's version {major}.{minor} are not read; 1 is known");
            cx.degraded(self.source, &note);
        }
        for region in &reading.containers {
            for pid in &region.processes {
                for limit in &region.limits {
                    self.write(*pid, limit, region, reading.at, cx);
                }
            }
        }
        self.last.retain(|_, (_, at)| reading.at.saturating_sub(*at) < Ns(6 * AGAIN.0));
    }

    fn recorded(&self) -> u64 {
        self.written
    }

    fn dropped(&self) -> u64 {
        self.left_out
    }
}

impl LimitRows {
    fn write(&mut self, pid: u32, limit: &Limit, region: &Region, ts: Ns, cx: &mut Context) {
        let host = cx.host;
        let gpu = cx.catalog.entity(EntityKind::Gpu, &limit.uuid, |e| {
            e.parent = Some(host);
            e.name = limit.uuid.as_str().into();
        });
        let sm = if region.in_force && (1..100).contains(&limit.sm) { limit.sm } else { 100 };
        let memory = (limit.memory > 0).then_some(limit.memory);
        let held = u64::from(region.held_back);
        let of_memory = (names::PROCESS_GPU_MEMORY_LIMIT, "By", names::GPU_MEMORY_USED, "By");
        let of_sm = (names::PROCESS_SM_LIMIT, "%", names::GPU_UTILIZATION, "%");
        let of_hold = (names::PROCESS_HELD_BACK, "1", names::GPU_UTILIZATION, "%");
        let all = [(of_memory, memory), (of_sm, Some(sm)), (of_hold, Some(held))];
        for ((name, unit, of_gpu, its_unit), value) in all {
            let Some(value) = value else { continue };
            let key = (pid, gpu, name);
            let before = self.last.get(&key);
            if before.is_some_and(|(last, at)| *last == value && ts.saturating_sub(*at) < AGAIN) {
                continue;
            }
            self.last.insert(key, (value, ts));
            let lane = Lane::counter(of_gpu, its_unit, Measure::Gauge);
            let parent = cx.catalog.track(gpu, None, lane, self.source);
            let process = cx.process(pid, None);
            let lane = Lane::counter(name, unit, Measure::Gauge);
            let track = cx.catalog.track(process, Some(parent), lane, self.source);
            cx.rows.counter.push(Counter { ts, track, value: value as f64 });
            self.written += 1;
        }
    }
}

#[cfg(test)]
mod tests;
