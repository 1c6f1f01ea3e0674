//! Pressure stall information: the share of time in which some tasks, or all tasks, waited for CPU,
//! memory, I/O or interrupts.
//!
//! *What it sees*: the totals of `/proc/pressure/*`, in µs, ten times a second, and those of the
//! v2 cgroups of the targets where the kernel keeps them. *Why it matters*: it is the kernel's own
//! account of waiting, of all tasks, and stands beside what the probes see of the threads of
//! interest. *What fools it*: `cpu.full` is 0 by definition for the host; a task that spins does not
//! count as waiting.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use gpuwhy_schema::{Counter, EntityId, Lane, Measure, Ns, SourceId, TrackId, names, sources};

use crate::cgroup_path::Membership;
use crate::config::Target;
use crate::context::Context;
use crate::error::CollectError;
use crate::every::Every;
use crate::polled_files;
use crate::probe::{Probe, ProbeSpec, Start};

pub(crate) const PROBE: ProbeSpec =
    ProbeSpec::new("psi", &sources::PSI, "pressure on CPU, memory and disks", start);

/// Between two readings: the kernel itself averages over 2 s, and no verdict rests on pressure. Each reading of eight
/// files takes 100 µs.
const EVERY: Ns = Ns::millis(500);

/// How often new cgroups are looked for.
const SEARCH_EVERY: Ns = Ns::secs(5);

/// Cgroups whose pressure is read at most.
const CGROUPS: usize = 16;

const RESOURCES: [&str; 4] = ["cpu", "memory", "io", "irq"];

struct Psi {
    source: SourceId,
    targets: Vec<u32>,
    files: Vec<PressureFile>,
    cgroups: Vec<EntityId>,
    reads: Every,
    searches: Every,
    recorded: u64,
}

/// One open pressure file.
struct PressureFile {
    file: File,
    path: PathBuf,
    resource: &'static str,
    entity: EntityId,
    /// The last totals of `some` and of `full` that were written, and their tracks.
    last: [Option<u64>; 2],
    tracks: [Option<TrackId>; 2],
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let mut files = Vec::new();
    for resource in RESOURCES {
        let path = PathBuf::from(format!("/proc/pressure/{resource}"));
        match File::open(&path) {
            Ok(file) => files.push(PressureFile::new(file, path, resource, start.cx.host)),
            // `irq` came with 6.1.
            Err(_) if resource == "irq" => {}
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                return Err(CollectError::Unsupported {
                    missing: "this kernel keeps no pressure stall information".into(),
                    fix: "boot with `psi=1`, or build it with CONFIG_PSI".into(),
                });
            }
            Err(source) => return Err(CollectError::Read { path, source }),
        }
    }
    Ok(Box::new(Psi {
        source: start.source,
        targets: start.config.targets.iter().map(|target| target.pid() as u32).collect(),
        files,
        cgroups: Vec::new(),
        reads: Every::new(EVERY),
        searches: Every::new(SEARCH_EVERY),
        recorded: 0,
    }))
}

impl Probe for Psi {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        if !self.reads.is_due(now) {
            return Ok(());
        }
        if self.searches.is_due(now) {
            self.search(cx);
        }
        let (source, recorded) = (self.source, &mut self.recorded);
        let path = |file: &PressureFile| file.path.clone();
        polled_files::read_each(&mut self.files, path, |file| {
            *recorded += file.read(now, source, cx)?;
            Ok(())
        })
    }

    fn add_target(&mut self, target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        self.targets.push(target.pid() as u32);
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.recorded
    }
}

impl Psi {
    /// Opens the pressure files of the v2 cgroups that targets are in by now.
    fn search(&mut self, cx: &mut Context) {
        for &pid in &self.targets {
            let Some(all) = cx.attribution.cgroups(&mut cx.catalog, pid) else { continue };
            let is_v2 = |m: &&Membership| m.hierarchy == "v2" && m.path != "/";
            let Some(membership) = all.iter().find(is_v2) else { continue };
            let Some(folder) = cx.attribution.mounts().folder(membership) else { continue };
            let entity = cx.attribution.cgroup(&mut cx.catalog, membership);
            if self.cgroups.contains(&entity) || self.cgroups.len() >= CGROUPS {
                continue;
            }
            self.cgroups.push(entity);
            for resource in RESOURCES {
                let path = PathBuf::from(format!("{folder}/{resource}.pressure"));
                if let Ok(file) = File::open(&path) {
                    self.files.push(PressureFile::new(file, path, resource, entity));
                }
            }
        }
    }
}

impl PressureFile {
    fn new(file: File, path: PathBuf, resource: &'static str, entity: EntityId) -> PressureFile {
        PressureFile { file, path, resource, entity, last: [None; 2], tracks: [None; 2] }
    }

    /// Writes the totals that have changed, and returns how many there were.
    fn read(&mut self, now: Ns, source: SourceId, cx: &mut Context) -> io::Result<u64> {
        let mut buffer = [0; 256];
        let n = self.file.read_at(&mut buffer, 0)?;
        let totals = totals(&buffer[..n]);
        let mut rows = 0;
        for (i, word) in ["some", "full"].into_iter().enumerate() {
            let Some(total) = totals[i] else { continue };
            if self.last[i] == Some(total) {
                continue;
            }
            self.last[i] = Some(total);
            let track = *self.tracks[i].get_or_insert_with(|| {
                let name = format!("{}{}.{word}", names::PSI_PREFIX, self.resource);
                let kind = Lane::counter(&name, "us", Measure::Total);
                cx.catalog.track(self.entity, None, kind, source)
            });
            cx.rows.counter.push(Counter { ts: now, track, value: total as f64 });
            rows += 1;
        }
        Ok(rows)
    }
}

/// The totals of `some` and `full` in a pressure file, in µs.
fn totals(text: &[u8]) -> [Option<u64>; 2] {
    let mut totals = [None; 2];
    let Ok(text) = str::from_utf8(text) else { return totals };
    for line in text.lines() {
        let i = match line.split(' ').next() {
            Some("some") => 0,
            Some("full") => 1,
            _ => continue,
        };
        totals[i] = line.rsplit_once("total=").and_then(|(_, n)| n.parse().ok());
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_of_every_form_of_the_file() {
        let check = |text: &str, some, full| assert_eq!(totals(text.as_bytes()), [some, full]);
        check(
            "some avg10=0.44 avg60=0.19 avg300=0.06 total=2462961\n\
             full avg10=0.44 avg60=0.19 avg300=0.06 total=2318783\n",
            Some(2_462_961),
            Some(2_318_783),
        );
        check("full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n", None, Some(5));
        check("some avg10=0.00 avg60=0.00 avg300=0.00 total=\n", None, None);
        check("", None, None);
    }
}
