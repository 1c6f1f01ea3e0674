//! Rationing by cgroups: CPU quotas that were used up, memory limits that were hit.
//!
//! *What it sees*: `cpu.stat` of the cgroups that the targets and their descendants are in, and of
//! the cgroups above those, under v1 (`throttled_time`) and v2 (`throttled_usec`); every tick for
//! those that have a quota, once a second for the others, as a quota can be set at any time.
//! `memory.failcnt` and `memory.events` ten times a second. *Why it matters*: no tracepoint tells
//! of throttling, and a throttled thread looks like one that waits for a CPU. *What fools it*: the
//! kernel adds a period of throttling when it ends, so that the row lies at its end; the time is
//! summed over CPUs, so that a tick of 10 ms can hold 20 ms of it on two. Which thread waited, and
//! when exactly, is the `thread_state` track's to say.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use gpuwhy_schema::{EntityId, Lane, Measure, Ns, SourceId, names};

use crate::cgroup_path::Membership;
use crate::context::{CollectError, Context, Probe, Start};
use crate::delta::Delta;
use crate::recorder::Target;

/// Cgroups are looked for, and those without a quota read, so often.
const LOOK: Ns = Ns::secs(1);

/// Memory limits are read so often.
const MEMORY: Ns = Ns::millis(100);

/// Cgroups that are watched; more are not, and the source says so.
const CGROUPS: usize = 64;

/// Processes whose cgroups are read at each look.
const PROCESSES: usize = 32;

/// Counter track of a cgroup (delta, 1): how often its memory limit was hit.
const MEMORY_LIMIT_HITS: &str = "memory_limit_hits";

struct Cgroup {
    source: SourceId,
    targets: Vec<u32>,
    watched: Vec<Watched>,
    left_out: u64,
    next_look: Ns,
    next_memory: Ns,
    counted: u64,
}

/// One cgroup under one hierarchy.
struct Watched {
    membership: Membership,
    entity: EntityId,
    folder: PathBuf,
    what: What,
    file: File,
    /// Where a quota of CPU would be written.
    quota: Option<File>,
    delta: Delta,
    /// To be read every tick.
    hot: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// `cpu.stat`.
    Cpu,
    /// `memory.failcnt` or `memory.events`.
    Memory,
}

/// Starts the probe.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    if start.cx.people.mounts().hierarchies().next().is_none() {
        return Err(CollectError::Unsupported {
            what: "no cgroup hierarchy is mounted here".into(),
            fix: "mount one, or bind /sys/fs/cgroup of the host into this container".into(),
        });
    }
    let targets = start.config.targets.iter().map(|&Target::Pid(pid)| pid as u32).collect();
    Ok(Box::new(Cgroup {
        source: start.source,
        targets,
        watched: Vec::new(),
        left_out: 0,
        next_look: Ns::ZERO,
        next_memory: Ns::ZERO,
        counted: 0,
    }))
}

impl Probe for Cgroup {
    fn name(&self) -> &'static str {
        "cgroup"
    }

    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let look = now >= self.next_look;
        if look {
            self.next_look = now + LOOK;
            self.look(cx);
        }
        let memory = now >= self.next_memory;
        if memory {
            self.next_memory = now + MEMORY;
        }
        let mut failed = None;
        let source = self.source;
        let counted = &mut self.counted;
        self.watched.retain_mut(|watched| {
            let due = match watched.what {
                What::Cpu => watched.hot || look,
                What::Memory => memory,
            };
            if !due {
                return true;
            }
            match watched.read(now, source, cx) {
                Ok(added) => {
                    *counted += u64::from(added > 0);
                    if look && watched.what == What::Cpu {
                        watched.hot = added > 0 || watched.has_quota();
                    }
                    true
                }
                // The cgroup was removed.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => false,
                Err(source) => {
                    failed = Some(CollectError::Read { path: watched.folder.clone(), source });
                    true
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    fn add_target(&mut self, target: Target, _cx: &mut Context) -> Result<(), CollectError> {
        let Target::Pid(pid) = target;
        self.targets.push(pid as u32);
        Ok(())
    }

    fn counted(&self) -> u64 {
        self.counted
    }

    fn dropped(&self) -> u64 {
        self.left_out
    }
}

impl Cgroup {
    /// Watches the cgroups that targets and their descendants have come into.
    fn look(&mut self, cx: &mut Context) {
        let mut family = self.targets.clone();
        let mut all: Vec<_> = cx.people.processes().map(|p| (p.parent, p.pid)).collect();
        // Parents have smaller numbers most of the time, so that one pass finds most descendants
        // and the next look the rest.
        all.sort_unstable_by_key(|&(_, pid)| pid);
        for (parent, pid) in all {
            if family.len() < PROCESSES && family.contains(&parent) && !family.contains(&pid) {
                family.push(pid);
            }
        }
        for pid in family {
            for membership in cx.people.cgroups(&mut cx.lanes, pid).unwrap_or_default() {
                let what = match membership.hierarchy.as_str() {
                    "v1:cpu" => &[What::Cpu][..],
                    "v1:memory" => &[What::Memory],
                    "v2" => &[What::Cpu, What::Memory],
                    _ => continue,
                };
                for membership in upwards(membership) {
                    for &what in what {
                        self.watch(&membership, what, cx);
                    }
                }
            }
        }
    }

    fn watch(&mut self, membership: &Membership, what: What, cx: &mut Context) {
        let known = |w: &Watched| w.what == what && w.membership == *membership;
        if self.watched.iter().any(known) {
            return;
        }
        let Some(folder) = cx.people.mounts().folder(membership) else { return };
        let folder = PathBuf::from(folder);
        let names = match what {
            What::Cpu => &["cpu.stat"][..],
            What::Memory => &["memory.events", "memory.failcnt"],
        };
        let Some(file) = names.iter().find_map(|name| File::open(folder.join(name)).ok()) else {
            return;
        };
        let mut buffer = [0; BUFFER];
        let read = file.read_at(&mut buffer, 0).unwrap_or(0);
        // A v2 group without the cpu controller has a `cpu.stat` that knows no throttling.
        let Some(total) = total(what, &buffer[..read]) else { return };
        if self.watched.len() >= CGROUPS {
            self.left_out += 1;
            return;
        }
        let entity = cx.people.cgroup(&mut cx.lanes, membership);
        let open = |name| File::open(folder.join(name)).ok();
        let quota = match what {
            What::Cpu => open("cpu.cfs_quota_us").or_else(|| open("cpu.max")),
            What::Memory => None,
        };
        let mut watched = Watched {
            membership: membership.clone(),
            entity,
            folder,
            what,
            file,
            quota,
            delta: Delta::from(total),
            hot: false,
        };
        watched.hot = watched.has_quota();
        self.watched.push(watched);
    }
}

/// Enough for the files read here, of which v2's `cpu.stat` is the longest.
const BUFFER: usize = 1024;

impl Watched {
    fn read(&mut self, now: Ns, source: SourceId, cx: &mut Context) -> io::Result<u64> {
        let mut buffer = [0; BUFFER];
        let n = self.file.read_at(&mut buffer, 0)?;
        let Some(total) = total(self.what, &buffer[..n]) else { return Ok(0) };
        let (entity, what) = (self.entity, self.what);
        Ok(self.delta.to(total, now, &mut cx.rows, || {
            let lane = match what {
                What::Cpu => Lane::counter(names::THROTTLED, "ns", Measure::Delta),
                What::Memory => Lane::counter(MEMORY_LIMIT_HITS, "1", Measure::Delta),
            };
            cx.lanes.track(entity, None, lane, source)
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
fn upwards(membership: Membership) -> impl Iterator<Item = Membership> {
    let Membership { hierarchy, path } = membership;
    std::iter::successors(Some(path), |path| match path.rfind('/')? {
        0 if path.len() > 1 => Some("/".into()),
        0 => None,
        end => Some(path[..end].to_owned()),
    })
    .map(move |path| Membership { hierarchy: hierarchy.clone(), path })
}

/// ns throttled, or how often the memory limit was hit.
fn total(what: What, text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    match what {
        What::Cpu => field("throttled_time").or_else(|| field("throttled_usec")?.checked_mul(1000)),
        // `memory.failcnt` is one number.
        What::Memory => field("max").or_else(|| text.trim().parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_time_is_ns_in_both_versions() {
        let cpu = |text: &str| total(What::Cpu, text.as_bytes());
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
        let memory = |text: &str| total(What::Memory, text.as_bytes());
        assert_eq!(memory("42\n"), Some(42));
        assert_eq!(memory("low 0\nhigh 1\nmax 7\noom 0\noom_kill 0\n"), Some(7));
        assert_eq!(memory("none\n"), None);
    }

    #[test]
    fn the_quota_of_every_cgroup_above_counts() {
        let paths = |path: &str| {
            let start = Membership { hierarchy: "v2".into(), path: path.into() };
            upwards(start).map(|m| m.path).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(paths("/a/b/c"), "/a/b/c /a/b /a /");
        assert_eq!(paths("/a"), "/a /");
        assert_eq!(paths("/"), "/");
    }
}
