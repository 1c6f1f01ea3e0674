//! Control groups of the workload, of version 1 or 2, for quotas and memory limits.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Version of a control group: which files it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// `cpu.cfs_quota_us`, `memory.limit_in_bytes`.
    V1,
    /// `cpu.max`, `memory.max`.
    V2,
}

/// A control group that was made for the workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Version of its files.
    pub version: Version,
    /// Its directory.
    pub dir: PathBuf,
    /// Its path below the mount, as `/proc/PID/cgroup` shows it.
    pub path: String,
}

/// The control groups that the ranks are in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Groups {
    /// Limits CPU time.
    pub cpu: Option<Group>,
    /// Limits memory.
    pub memory: Option<Group>,
    /// Of version 2, for pressure stall information, even if it limits nothing.
    pub unified: Option<Group>,
}

/// Where control groups are mounted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mounts {
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
    unified: Option<PathBuf>,
}

fn mounts(mountinfo: &str) -> Mounts {
    let mut mounts = Mounts::default();
    for line in mountinfo.lines() {
        // ... root mount-point options optional* - type source super-options
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(point) = left.split(' ').nth(4).map(PathBuf::from) else { continue };
        let mut right = right.split(' ');
        let kind = right.next().unwrap_or_default();
        let options = right.nth(1).unwrap_or_default();
        let place = match kind {
            "cgroup" if options.split(',').any(|o| o == "cpu") => &mut mounts.cpu,
            "cgroup" if options.split(',').any(|o| o == "memory") => &mut mounts.memory,
            "cgroup2" => &mut mounts.unified,
            _ => continue,
        };
        // The first mount is the system's own; later ones are those of containers and chroots.
        place.get_or_insert(point);
    }
    mounts
}

impl Groups {
    /// Makes groups called `name`, as far as this system allows; `notes` gets what it does not
    /// allow.
    pub fn create(name: &str, notes: &mut Vec<String>) -> Groups {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = mounts(&mountinfo);
        let path = format!("/{name}");
        let make = |root: &Option<PathBuf>, version, notes: &mut Vec<String>| {
            let dir = root.as_ref()?.join(name);
            match fs::create_dir(&dir) {
                Ok(()) => Some(Group { version, dir, path: path.clone() }),
                Err(error) => {
                    notes.push(format!("no cgroup `{}`: {error}", dir.display()));
                    None
                }
            }
        };
        if let Some(root) = &mounts.unified {
            // May fail where a v1 hierarchy has the controller, or in a group with processes.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+cpu +memory");
        }
        let unified = make(&mounts.unified, Version::V2, notes);
        let has = |file: &str| unified.clone().filter(|group| group.dir.join(file).exists());
        let cpu = has("cpu.max").or_else(|| make(&mounts.cpu, Version::V1, notes));
        let memory = has("memory.max").or_else(|| make(&mounts.memory, Version::V1, notes));
        for (group, what) in [(&cpu, "CPU"), (&memory, "memory")] {
            if group.is_none() {
                notes.push(format!("no cgroup limits {what} of this workload"));
            }
        }
        Groups { cpu, memory, unified }
    }

    fn all(&self) -> impl Iterator<Item = &Group> {
        [&self.cpu, &self.memory, &self.unified].into_iter().flatten()
    }

    /// Moves the calling process into the groups.
    pub fn join(&self) -> Result<()> {
        for group in self.all() {
            group.join()?;
        }
        Ok(())
    }

    /// Removes the groups, whose processes have ended.
    pub fn remove(&self) {
        for group in self.all() {
            // The kernel may still be busy with the exit of the last process.
            for _ in 0..50 {
                match fs::remove_dir(&group.dir) {
                    Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    }
                    _ => break,
                }
            }
        }
    }

    /// Removes the groups of supervisors that were killed: those named `prefix` + pid of a process
    /// that no longer exists.
    pub fn remove_stale(prefix: &str) {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = mounts(&mountinfo);
        for root in [mounts.cpu, mounts.memory, mounts.unified].into_iter().flatten() {
            for dir in super::instances::orphans(&root, prefix) {
                let _ = fs::remove_dir(dir);
            }
        }
    }
}

impl Group {
    /// Moves the calling process into the group.
    pub fn join(&self) -> Result<()> {
        self.write("cgroup.procs", "0")
    }

    /// The key of the group in traces: version, hierarchy and path.
    pub fn key(&self, controller: &str) -> String {
        match self.version {
            Version::V1 => format!("v1:{controller}:{}", self.path),
            Version::V2 => format!("v2:{}", self.path),
        }
    }

    /// Sets the CPU time that the group may use in each 100 ms, µs; `None` is no limit.
    pub fn set_quota(&self, quota_us: Option<u64>) -> Result<()> {
        match (self.version, quota_us) {
            (Version::V1, quota) => {
                self.write("cpu.cfs_period_us", "100000")?;
                self.write("cpu.cfs_quota_us", &quota.map_or(-1, |q| q as i64).to_string())
            }
            (Version::V2, None) => self.write("cpu.max", "max 100000"),
            (Version::V2, Some(quota)) => self.write("cpu.max", &format!("{quota} 100000")),
        }
    }

    /// Sets the memory that the group may use, page cache included, bytes.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<()> {
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        self.write(file, &bytes.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path: PathBuf = self.dir.join(file);
        write(&path, text)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write `{text}` to `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hierarchies_are_found_where_they_are_mounted() {
        let hybrid = "\
30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
33 25 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
90 80 0:26 / /chroot/sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct";
        let path = |p: &str| Some(PathBuf::from(p));
        let want = Mounts {
            cpu: path("/sys/fs/cgroup/cpu"),
            memory: path("/sys/fs/cgroup/memory"),
            unified: path("/sys/fs/cgroup/unified"),
        };
        assert_eq!(mounts(hybrid), want);
        let v2 = "29 22 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mounts(v2), Mounts { unified: path("/sys/fs/cgroup"), ..Mounts::default() });
        assert_eq!(mounts("garbage\n - \n1 2 - cgroup"), Mounts::default());
    }
}
