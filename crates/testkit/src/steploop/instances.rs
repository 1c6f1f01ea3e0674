//! Directories that belong to a process by their name, a prefix and its pid: work directories and
//! control groups of running workloads, and what killed ones have left.

use std::path::{Path, PathBuf};

/// Directories `prefix` + pid whose process is alive.
pub(super) fn running(root: &Path, prefix: &str) -> Vec<PathBuf> {
    with_pids(root, prefix)
        .into_iter()
        .filter(|(_, pid)| is_alive(*pid))
        .map(|(dir, _)| dir)
        .collect()
}

/// Directories `prefix` + pid whose process is gone.
pub(super) fn orphans(root: &Path, prefix: &str) -> Vec<PathBuf> {
    with_pids(root, prefix)
        .into_iter()
        .filter(|(_, pid)| !is_alive(*pid))
        .map(|(dir, _)| dir)
        .collect()
}

fn is_alive(pid: i32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn with_pids(root: &Path, prefix: &str) -> Vec<(PathBuf, i32)> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((entry.path(), pid))
        })
        .collect()
}
