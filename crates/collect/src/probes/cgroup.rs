//! Limits of cgroups: CPU quotas that were used up, memory limits that were hit.
//!
//! *What it sees*: `cpu.stat` of the cgroups that the targets and their descendants are in, and of
//! the cgroups above those, under v1 (`throttled_time`) and v2 (`throttled_usec`); every tick for
//! those that have a quota, once a second for the others, as a quota can be set at any time.
//! `memory.failcnt` and `memory.events` ten times a second. *Why it matters*: no tracepoint reports
//! throttling, and a throttled thread looks like one that waits for a CPU. *What fools it*: the
//! kernel adds a period of throttling when it ends, so that the row lies at its end; the time is
//! summed over CPUs, so that a tick of 10 ms can hold 20 ms of it on two. Which thread waited, and
//! when exactly, is in its `thread_state` track.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use foldhash::{HashSet, HashSetExt as _};
use gpuwhy_schema::{EntityId, Lane, Measure, Ns, SourceId, names, sources};

use crate::cgroup_path::Membership;
use crate::config::Target;
use crate::context::Context;
use crate::delta_counter::DeltaCounter;
use crate::error::CollectError;
use crate::every::Every;
use crate::polled_files;
use crate::probe::{Probe, ProbeSpec, Start};

pub(crate) const PROBE: ProbeSpec =
    ProbeSpec::new("cgroup", &sources::CGROUP, "CPU quotas that were used up", start);

/// How often new cgroups are looked for, and those without a quota are read.
const SEARCH_EVERY: Ns = Ns::secs(1);

/// How often groups that had no limit of a kind are looked at again: controllers are seldom given to a group
/// after its processes.
const LOOK_AGAIN: Ns = Ns::secs(10);

/// How often memory limits are read.
const MEMORY_EVERY: Ns = Ns::millis(100);

/// Cgroups that are watched at most; the source counts those beyond as dropped.
const CGROUPS: usize = 64;

/// Processes whose cgroups are read at each search.
const PROCESSES: usize = 32;

/// Bytes that are read of a file; v2's `cpu.stat` is the longest.
const BUFFER: usize = 1024;

/// Counter track of a cgroup (delta, 1): how often its memory limit was hit.
const MEMORY_LIMIT_HITS: &str = "memory_limit_hits";

struct Cgroup {
    source: SourceId,
    targets: Vec<u32>,
    watched: Vec<Watched>,
    /// Groups that have no limit of this kind.
    without: HashSet<(Membership, Limit)>,
    next_look: Ns,
    left_out: u64,
    searches: Every,
    reads_memory: Every,
    recorded: u64,
}

/// One limit of one cgroup under one hierarchy.
struct Watched {
    membership: Membership,
    entity: EntityId,
    folder: PathBuf,
    limit: Limit,
    file: File,
    /// The file that a CPU quota is written to.
    quota: Option<File>,
    counter: DeltaCounter,
    /// Whether it is read every tick.
    every_tick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Limit {
    /// `cpu.stat`.
    Cpu,
    /// `memory.failcnt` or `memory.events`.
    Memory,
}

fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    if start.cx.attribution.mounts().hierarchies().next().is_none() {
        return Err(CollectError::Unsupported {
            missing: "no cgroup hierarchy is mounted here".into(),
            fix: "mount one, or bind /sys/fs/cgroup of the host into this container".into(),
        });
    }
    Ok(Box::new(Cgroup {
        source: start.source,
        targets: start.config.targets.iter().map(|target| target.pid() as u32).collect(),
        watched: Vec::new(),
        without: HashSet::new(),
        next_look: Ns::ZERO,
        left_out: 0,
        searches: Every::new(SEARCH_EVERY),
        reads_memory: Every::new(MEMORY_EVERY),
        recorded: 0,
    }))
}

impl Probe for Cgroup {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let search_due = self.searches.is_due(now);
        if search_due {
            if now >= self.next_look {
                self.next_look = now + LOOK_AGAIN;
                self.without.clear();
            }
            self.search(cx);
        }
        let memory_due = self.reads_memory.is_due(now);
        let (source, recorded) = (self.source, &mut self.recorded);
        let path = |watched: &Watched| watched.folder.clone();
        polled_files::read_each(&mut self.watched, path, |watched| {
            let is_due = match watched.limit {
                Limit::Cpu => watched.every_tick || search_due,
                Limit::Memory => memory_due,
            };
            if !is_due {
                return Ok(());
            }
            let added = watched.read(now, source, cx)?;
            *recorded += u64::from(added > 0);
            if search_due && watched.limit == Limit::Cpu {
                watched.every_tick = added > 0 || watched.has_quota();
            }
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

    fn dropped(&self) -> u64 {
        self.left_out
    }
}

impl Cgroup {
    /// Watches the cgroups that targets and their descendants are in by now.
    fn search(&mut self, cx: &mut Context) {
        let mut members = self.targets.clone();
        let mut all: Vec<_> = cx.attribution.processes().map(|p| (p.parent, p.pid)).collect();
        // Parents have smaller numbers most of the time, so that one pass finds most descendants
        // and the next search the rest.
        all.sort_unstable_by_key(|&(_, pid)| pid);
        for (parent, pid) in all {
            if members.len() < PROCESSES && members.contains(&parent) && !members.contains(&pid) {
                members.push(pid);
            }
        }
        let mut seen = HashSet::new();
        for pid in members {
            let cgroups = cx.attribution.cgroups(&mut cx.catalog, pid).unwrap_or_default();
            // Processes of one tree are in the same groups.
            for membership in cgroups.into_iter().filter(|group| seen.insert(group.clone())) {
                let limits = match membership.hierarchy.as_str() {
                    "v1:cpu" => &[Limit::Cpu][..],
                    "v1:memory" => &[Limit::Memory],
                    "v2" => &[Limit::Cpu, Limit::Memory],
                    _ => continue,
                };
                for membership in with_ancestors(membership) {
                    for &limit in limits {
                        self.watch(&membership, limit, cx);
                    }
                }
            }
        }
    }

    fn watch(&mut self, membership: &Membership, limit: Limit, cx: &mut Context) {
        let is_known = |w: &Watched| w.limit == limit && w.membership == *membership;
        let place = (membership.clone(), limit);
        if self.watched.iter().any(is_known) || self.without.contains(&place) {
            return;
        }
        let Some(folder) = cx.attribution.mounts().folder(membership) else { return };
        let folder = PathBuf::from(folder);
        let names = match limit {
            Limit::Cpu => &["cpu.stat"][..],
            Limit::Memory => &["memory.events", "memory.failcnt"],
        };
        let file = names.iter().find_map(|name| File::open(folder.join(name)).ok());
        let mut buffer = [0; BUFFER];
        let read = file.as_ref().map_or(0, |file| file.read_at(&mut buffer, 0).unwrap_or(0));
        // A v2 group without the cpu controller has a `cpu.stat` without throttling.
        let (Some(file), Some(total)) = (file, total(limit, &buffer[..read])) else {
            self.without.insert(place);
            return;
        };
        if self.watched.len() >= CGROUPS {
            self.left_out += 1;
            return;
        }
        let entity = cx.attribution.cgroup(&mut cx.catalog, membership);
        let open = |name| File::open(folder.join(name)).ok();
        let quota = match limit {
            Limit::Cpu => open("cpu.cfs_quota_us").or_else(|| open("cpu.max")),
            Limit::Memory => None,
        };
        let mut watched = Watched {
            membership: membership.clone(),
            entity,
            folder,
            limit,
            file,
            quota,
            counter: DeltaCounter::starting_at(total),
            every_tick: false,
        };
        watched.every_tick = watched.has_quota();
        self.watched.push(watched);
    }
}

impl Watched {
    /// Writes what was added since the last reading, and returns it.
    fn read(&mut self, now: Ns, source: SourceId, cx: &mut Context) -> io::Result<u64> {
        let mut buffer = [0; BUFFER];
        let n = self.file.read_at(&mut buffer, 0)?;
        let Some(total) = total(self.limit, &buffer[..n]) else { return Ok(0) };
        let (entity, limit) = (self.entity, self.limit);
        Ok(self.counter.update(total, now, &mut cx.rows, || {
            let kind = match limit {
                Limit::Cpu => Lane::counter(names::THROTTLED, "ns", Measure::Delta),
                Limit::Memory => Lane::counter(MEMORY_LIMIT_HITS, "1", Measure::Delta),
            };
            cx.catalog.track(entity, None, kind, source)
        }))
    }

    fn has_quota(&self) -> bool {
        let mut buffer = [0; BUFFER];
        let Some(Ok(n)) = self.quota.as_ref().map(|quota| quota.read_at(&mut buffer, 0)) else {
            return false;
        };
        !buffer[..n].starts_with(b"-1") && !buffer[..n].starts_with(b"max")
    }
}

/// A cgroup and those above it; a quota of any of them is a quota of all its members.
fn with_ancestors(membership: Membership) -> impl Iterator<Item = Membership> {
    let Membership { hierarchy, path } = membership;
    std::iter::successors(Some(path), |path| match path.rfind('/')? {
        0 if path.len() > 1 => Some("/".into()),
        0 => None,
        end => Some(path[..end].to_owned()),
    })
    .map(move |path| Membership { hierarchy: hierarchy.clone(), path })
}

/// ns throttled, or how often the memory limit was hit.
fn total(limit: Limit, text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    match limit {
        Limit::Cpu => {
            field("throttled_time").or_else(|| field("throttled_usec")?.checked_mul(1000))
        }
        // `memory.failcnt` is one number.
        Limit::Memory => field("max").or_else(|| text.trim().parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_time_is_ns_in_both_versions() {
        let cpu = |text: &str| total(Limit::Cpu, text.as_bytes());
        assert_eq!(
            cpu("nr_periods 9\nnr_throttled 4\nthrottled_time 123456789\n"),
            Some(123_456_789)
        );
        let v2 = "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 1\nnr_throttled 1\n\
                  throttled_usec 77\nnr_bursts 0\nburst_usec 0\n";
        assert_eq!(cpu(v2), Some(77_000));
        assert_eq!(cpu("usage_usec 9\nuser_usec 5\nsystem_usec 4\n"), None);
        assert_eq!(cpu("throttled_usec 99999999999999999999\n"), None);
        assert_eq!(cpu("throttled_usec 18446744073709551615\n"), None);
    }

    #[test]
    fn memory_limits_are_counted_in_both_versions() {
        let memory = |text: &str| total(Limit::Memory, text.as_bytes());
        assert_eq!(memory("42\n"), Some(42));
        assert_eq!(memory("low 0\nhigh 1\nmax 7\noom 0\noom_kill 0\n"), Some(7));
        assert_eq!(memory("none\n"), None);
    }

    #[test]
    fn the_quota_of_every_cgroup_above_counts() {
        let paths = |path: &str| {
            let start = Membership { hierarchy: "v2".into(), path: path.into() };
            with_ancestors(start).map(|m| m.path).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(paths("/a/b/c"), "/a/b/c /a/b /a /");
        assert_eq!(paths("/a"), "/a /");
        assert_eq!(paths("/"), "/");
    }
}
